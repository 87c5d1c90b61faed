"""First trees: permutations with exact capacities that bring together what belongs together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import log_of

from rootbeam.core.errors import ConfigError, InputError
from rootbeam.core.tree import Tree
from rootbeam.index.balanced import assign
from rootbeam.index.build import (
    category_tree,
    interaction_tree,
    interaction_vectors,
    kmeans_tree,
    random_tree,
)


def blobs(n_blobs: int, each: int, dimension: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points close to far-apart centres, in no order -> (points, the blob of each)"""
    rng = np.random.default_rng(seed)
    centres = 100.0 * np.eye(n_blobs, max(dimension, n_blobs))
    blob = rng.permutation(np.repeat(np.arange(n_blobs), each))
    return (centres[blob] + rng.normal(size=(len(blob), centres.shape[1]))).astype(np.float32), blob


def purity(tree: Tree, codes: np.ndarray, level: int) -> float:
    return tree.summary(codes)[level].purity


BUILDERS = {
    "random": lambda n, branch, seed: random_tree(n, branch, seed),
    "category": lambda n, branch, seed: category_tree(np.arange(n) % 4, branch, seed),
    "k-means": lambda n, branch, seed: kmeans_tree(
        np.random.default_rng(7).normal(size=(n, 3)).astype(np.float32), branch, seed
    ),
    "interactions": lambda n, branch, seed: interaction_tree(
        log_of([[0, n - 1], list(range(0, n, 2)), list(range(0, n, 3))], n), branch, seed
    ),
}


@pytest.mark.parametrize("builder", BUILDERS)
@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 70), branch=st.integers(2, 5))
def test_every_builder_gives_a_permutation_that_the_seed_decides(builder, n, branch):
    tree = BUILDERS[builder](n, branch, 3)
    assert sorted(tree.item_of_leaf) == list(range(n))
    np.testing.assert_array_equal(tree.item_of_leaf, BUILDERS[builder](n, branch, 3).item_of_leaf)


@pytest.mark.parametrize("builder", ["random", "category", "k-means"])
def test_another_seed_gives_another_tree(builder):
    orders = {tuple(BUILDERS[builder](64, 2, seed).item_of_leaf) for seed in range(5)}
    assert len(orders) > 1


# --- categories ---


@pytest.mark.parametrize("branch", [2, 3, 4])
def test_categories_of_the_size_of_a_node_fill_nodes_of_their_own(branch):
    codes = np.random.default_rng(1).permutation(np.repeat(np.arange(branch**2), branch))  # N = B³
    tree = category_tree(codes, branch, 0)
    assert purity(tree, codes, 2) == 1.0
    assert purity(tree, codes, 1) == 1 / branch
    for node in range(branch**2):  # within a category items stand by id
        start, stop = tree.leaves_below(2, np.array(node))
        assert (np.diff(tree.item_of_leaf[start:stop]) > 0).all()


def test_categories_stay_together_whatever_their_size_in_an_order_of_the_seed():
    codes = np.random.default_rng(2).integers(6, size=50) * 11 - 3  # any integers
    orders = set()
    for seed in range(8):
        along = codes[category_tree(codes, 3, seed).item_of_leaf]
        runs = along[np.flatnonzero(np.append(True, along[1:] != along[:-1]))]
        assert len(runs) == len(set(runs)) == len(set(codes))
        orders.add(tuple(runs))
    assert len(orders) > 1


def test_paths_keep_children_of_a_category_together():
    rng = np.random.default_rng(3)
    paths = np.stack([rng.integers(3, size=60), rng.integers(4, size=60)], axis=1)  # shelf numbers are reused
    along = paths[category_tree(paths, 2, 0).item_of_leaf]
    for columns in (along[:, :1], along):
        changes = 1 + (columns[1:] != columns[:-1]).any(axis=1).sum()
        assert changes == len(np.unique(columns, axis=0))


# --- balanced k-means ---


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 4), st.lists(st.integers(1, 6), min_size=2, max_size=5), st.integers(0, 99))
def test_every_child_gets_exactly_what_it_has_room_for(nodes, capacities, seed):
    cost = np.random.default_rng(seed).integers(4, size=(nodes, sum(capacities), len(capacities)))
    child = assign(cost.astype(np.float32), np.array(capacities))
    for row in child:
        assert np.bincount(row, minlength=len(capacities)).tolist() == capacities


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_two_children_share_their_points_at_the_least_cost(left, right, seed):
    cost = np.random.default_rng(seed).integers(9, size=(1, left + right, 2)).astype(np.float32)
    child = assign(cost, np.array([left, right]))[0]
    found = cost[0, np.arange(left + right), child].sum()
    # Least: all to the right, then the `left` points move that gain most.
    gains = np.sort(cost[0, :, 0] - cost[0, :, 1])[:left]
    assert found == cost[0, :, 1].sum() + gains.sum()


@pytest.mark.parametrize(("branch", "each"), [(2, 16), (3, 9), (4, 4), (5, 5), (16, 16)])
def test_clusters_of_the_size_of_a_node_are_recovered(branch, each):
    for seed in range(5):
        vectors, blob = blobs(branch, each, seed=seed)
        tree = kmeans_tree(vectors, branch, seed)
        assert tree.span(1) == each
        assert purity(tree, blob, 1) == 1.0


def test_a_hierarchy_of_clusters_is_recovered_level_by_level():
    rng = np.random.default_rng(4)
    item = rng.permutation(81)
    coarse, fine = item // 27, item // 9  # three clusters of three clusters of nine
    vectors = 1000.0 * np.eye(3)[coarse] @ rng.normal(size=(3, 6)) + 30.0 * rng.normal(size=(9, 6))[fine]
    vectors += 0.1 * rng.normal(size=vectors.shape)
    tree = kmeans_tree(vectors.astype(np.float32), 3, 0)
    assert purity(tree, coarse, 1) == 1.0
    assert purity(tree, fine, 2) == 1.0


def test_the_small_last_node_takes_the_small_cluster():
    """Nine items over B = 2: the root's children hold eight and one."""
    vectors, _ = blobs(1, 9)
    vectors[4] += 1000.0
    for seed in range(5):
        assert kmeans_tree(vectors, 2, seed).item_of_leaf[8] == 4


def test_iterations_bring_points_nearer_to_the_means_of_their_nodes():
    vectors = np.random.default_rng(8).normal(size=(256, 4)).astype(np.float32)

    def spread(iterations: int) -> float:
        nodes = vectors[kmeans_tree(vectors, 4, 0, iterations).item_of_leaf].reshape(4, 64, 4)
        return float(((nodes - nodes.mean(1, keepdims=True)) ** 2).sum())

    assert spread(10) < 0.97 * spread(1)


def test_equal_vectors_still_make_a_tree():
    assert sorted(kmeans_tree(np.ones((33, 2), dtype=np.float32), 4, 0).item_of_leaf) == list(range(33))


# --- interactions ---


def test_interaction_vectors_have_the_inner_products_of_the_normalised_columns():
    rows = [[0, 1, 1, 2], [1, 2], [2, 4], [0, 4, 4]]  # item 3 is nobody's
    touched = np.array([[item in row for item in range(5)] for row in rows], dtype=float)  # (users, items)
    length = np.sqrt((touched**2).sum(0))
    columns = touched / np.where(length == 0, 1.0, length)
    vectors = interaction_vectors(log_of(rows, 5), 64, 0)
    assert vectors.shape == (5, 4)  # no more than there are users
    np.testing.assert_allclose(vectors @ vectors.T, columns.T @ columns, atol=1e-5)


def test_few_dimensions_hold_what_the_leading_singular_vectors_hold():
    rng = np.random.default_rng(5)
    rows = [list(rng.choice(40, size=8, replace=False)) for _ in range(60)]
    touched = np.array([[item in row for item in range(40)] for row in rows], dtype=float)
    columns = touched / np.sqrt(touched.sum(0))
    most = (np.linalg.svd(columns, compute_uv=False)[:6] ** 2).sum()  # no six directions hold more
    vectors = interaction_vectors(log_of(rows, 40), 6, 0)
    assert 0.97 * most < (vectors**2).sum() < 1.0001 * most


def test_items_of_the_same_users_come_together():
    group = np.random.default_rng(6).permutation(np.repeat(np.arange(4), 8))
    rows = [list(np.flatnonzero(group == user % 4)) for user in range(40)]
    assert purity(interaction_tree(log_of(rows, 32), 2, 0), group, 2) == 1.0  # nodes of eight


# --- bad input ---

LOG = log_of([[0, 1]], 2)
BAD = {
    "no items": (lambda: random_tree(0, 2, 0), ConfigError, "at least 1"),
    "a branch too many": (lambda: random_tree(3, 65, 0), ConfigError, "branch is 65"),
    "codes that are words": (lambda: category_tree(np.array(["a"]), 2, 0), InputError, "give integers"),
    "codes in a cube": (lambda: category_tree(np.zeros((1, 1, 1), int), 2, 0), InputError, "give integers"),
    "no codes": (lambda: category_tree(np.zeros(0, int), 2, 0), ConfigError, "at least 1"),
    "vectors in a row": (lambda: kmeans_tree(np.zeros(3), 2, 0), InputError, "one row an item"),
    "vectors without numbers": (lambda: kmeans_tree(np.zeros((3, 0)), 2, 0), InputError, "one row an item"),
    "not a number": (lambda: kmeans_tree(np.array([[0.0], [np.nan]]), 2, 0), InputError, "vector of item 1"),
    "no dimension": (lambda: interaction_tree(LOG, 2, 0, 0), ConfigError, "dimension is 0"),
    "no events": (lambda: interaction_tree(log_of([[]], 2), 2, 0), InputError, "random_tree"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_in_one_line(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)
