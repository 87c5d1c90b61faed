"""The tree's arithmetic, restated: a node h levels above the leaves has Bʰ of them, except the last node."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rootbeam.core.errors import BundleError, ConfigError, InputError, RootbeamError
from rootbeam.core.files import read_arrays, write_arrays
from rootbeam.core.tree import Tree, level_sizes
from rootbeam.core.types import ITEMS


def tree_of(n: int, branch: int, seed: int = 0) -> Tree:
    return Tree(np.random.default_rng(seed).permutation(n), branch)


shapes = st.tuples(st.integers(1, 70), st.integers(2, 5), st.integers(0, 3))


@settings(deadline=None, max_examples=150)
@given(shapes)
def test_counts_height_and_ranges_follow_from_the_number_of_leaves(shape):
    n, branch, seed = shape
    tree = tree_of(n, branch, seed)
    assert branch**tree.height >= n
    assert tree.height == 0 or branch ** (tree.height - 1) < n
    for level in range(tree.height + 1):
        above = tree.height - level
        assert tree.nodes(level) == math.ceil(n / branch**above)
        start, stop = tree.leaves_below(level, np.arange(tree.nodes(level)))
        assert list(start) == [i * branch**above for i in range(tree.nodes(level))]
        assert list(stop) == [*start[1:], n]


@settings(deadline=None, max_examples=150)
@given(shapes)
def test_children_and_ancestors_are_each_others_inverse(shape):
    n, branch, seed = shape
    tree = tree_of(n, branch, seed)
    items = np.arange(n)
    np.testing.assert_array_equal(tree.item_of_leaf[tree.ancestors(items, tree.height)], items)
    np.testing.assert_array_equal(tree.ancestors(items, 0), np.zeros(n))
    for level in range(tree.height):
        children = tree.children(level, np.arange(tree.nodes(level)))
        assert children.shape == (tree.nodes(level), branch)
        assert sorted(children[children >= 0]) == list(range(tree.nodes(level + 1)))
        parents, below = tree.ancestors(items, level), tree.ancestors(items, level + 1)
        assert all(child in children[parent] for child, parent in zip(below, parents, strict=True))


@settings(deadline=None, max_examples=150)
@given(shapes, st.data())
def test_a_nodes_offset_is_the_largest_below_it_and_counts_add_up(shape, data):
    n, branch, seed = shape
    tree = tree_of(n, branch, seed)
    values = st.sampled_from([-np.inf, -1.0, 0.0, 2.5])
    offset = np.array(data.draw(st.lists(values, min_size=n, max_size=n)), dtype=np.float32)
    offsets, counts = tree.node_offsets(offset), tree.node_counts(offset > -np.inf)
    assert len(offsets) == len(counts) == tree.height + 1
    for level in range(tree.height + 1):
        for node in range(tree.nodes(level)):
            below = [offset[item] for item in range(n) if tree.ancestors(np.array(item), level) == node]
            assert offsets[level][node] == max(below)
            assert counts[level][node] == sum(value > -np.inf for value in below)


def test_the_tree_of_seven_leaves_and_three_branches_by_hand():
    tree = Tree(np.array([6, 5, 4, 3, 2, 1, 0]), 3)
    assert tree.sizes == (1, 3, 7)
    assert tree.leaf_of_item.tolist() == [6, 5, 4, 3, 2, 1, 0]
    assert tree.children(1, np.array([0, 2, -1])).tolist() == [[0, 1, 2], [6, -1, -1], [-1, -1, -1]]
    assert tree.ancestors(np.array([[0, -1], [6, 3]]), 1).tolist() == [[2, -1], [0, 1]]
    start, stop = tree.leaves_below(1, np.array([2, -1]))
    assert (start.tolist(), stop.tolist()) == ([6, 0], [7, 0])


def test_one_item_is_root_and_leaf():
    tree = Tree(np.array([0]), 2)
    assert (tree.height, tree.nodes(0), tree.ancestors(np.array([0]), 0).tolist()) == (0, 1, [0])
    assert [level.balance for level in tree.summary()] == [1.0]


@pytest.mark.parametrize("branch", [2, 3, 64])
def test_sizes_at_and_beside_powers_of_the_branch(branch):
    assert level_sizes(branch**2, branch) == [1, branch, branch**2]
    assert level_sizes(branch**2 + 1, branch) == [1, 2, branch + 1, branch**2 + 1]


def test_nobody_can_change_a_tree():
    given_order = np.array([1, 0, 2])
    tree = Tree(given_order, 2)
    given_order[0] = 7
    assert tree.item_of_leaf.tolist() == [1, 0, 2]
    with pytest.raises(ValueError, match="read-only"):
        tree.item_of_leaf[0] = 2
    with pytest.raises(AttributeError):
        tree.branch = 3


def test_arrays_there_and_back_through_a_file(tmp_path):
    tree = tree_of(37, 5)
    write_arrays(tmp_path / "tree.safetensors", tree.to_arrays())
    again = Tree.from_arrays(read_arrays(tmp_path / "tree.safetensors")[0])
    np.testing.assert_array_equal(again.item_of_leaf, tree.item_of_leaf)
    assert (again.branch, again.sizes) == (5, tree.sizes)


def test_summary_by_hand():
    # Leaves by pairs: (a a) (a b) (b); nodes of two pairs: (a a a b) (b).
    tree = Tree(np.arange(5), 2)
    levels = tree.summary(np.array([7, 7, 7, 9, 9]))
    assert [level.nodes for level in levels] == [1, 2, 3, 5]
    assert [(level.fewest_leaves, level.most_leaves) for level in levels] == [(5, 5), (1, 4), (1, 2), (1, 1)]
    assert [level.purity for level in levels] == [3 / 5, (3 + 1) / 5, (2 + 1 + 1) / 5, 1.0]
    assert [level.balance for level in levels] == [1.0, 1 / 4, 1 / 2, 1.0]


def test_purity_leaves_items_without_a_category_out():
    tree = Tree(np.arange(4), 2)
    assert [level.purity for level in tree.summary(np.array([-1, 0, 1, 1]))] == [2 / 3, 1.0, 1.0]
    assert [level.purity for level in tree.summary(np.full(4, -1))] == [None, None, None]
    assert [level.purity for level in tree.summary()] == [None, None, None]


FIVE = Tree(np.arange(5), 2)
BAD = {
    "no item": (lambda: Tree(np.array([], dtype=np.int32), 2), ConfigError, "at least 1"),
    "branch of one": (lambda: Tree(np.arange(3), 1), ConfigError, "branch is 1"),
    "branch of 65": (lambda: Tree(np.arange(3), 65), ConfigError, "from 2 to 64"),
    "an item twice": (lambda: Tree(np.array([0, 2, 2]), 2), InputError, "holds 2 2 times and 1 never"),
    "an item too many": (lambda: Tree(np.array([0, 3, 1]), 2), InputError, "holds 3; 3 leaves"),
    "a negative item": (lambda: Tree(np.array([0, -1, 1]), 2), InputError, "holds -1"),
    "fractions": (lambda: Tree(np.array([0.0, 1.0]), 2), InputError, "integers"),
    "a matrix": (lambda: Tree(np.zeros((1, 1), dtype=int), 2), InputError, "vector"),
    "the level of items": (lambda: FIVE.nodes(ITEMS), ConfigError, r"levels are 0 \(the root\) to 3"),
    "a level too deep": (lambda: FIVE.ancestors(np.array([0]), 4), ConfigError, "level 4"),
    "children of leaves": (lambda: FIVE.children(3, np.array([0])), ConfigError, "none"),
    "a node too many": (lambda: FIVE.children(1, np.array([2])), InputError, "node 2"),
    "a node below padding": (lambda: FIVE.leaves_below(1, np.array([-2])), InputError, "node -2"),
    "an item not there": (lambda: FIVE.ancestors(np.array([5]), 1), InputError, "item 5"),
    "half an item": (lambda: FIVE.ancestors(np.array([0.5]), 1), InputError, "integers"),
    "a short offset": (lambda: FIVE.node_offsets(np.zeros(4, dtype=np.float32)), InputError, "each of 5"),
    "short codes": (lambda: FIVE.summary(np.zeros(4, dtype=int)), InputError, "codes"),
    "no arrays": (lambda: Tree.from_arrays({}), BundleError, "item_of_leaf and branch"),
    "no single branch": (
        lambda: Tree.from_arrays({"item_of_leaf": np.arange(3), "branch": np.array([2, 2])}),
        BundleError,
        "one integer",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_in_one_line(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message) as raised:
        call()
    assert isinstance(raised.value, RootbeamError)
    assert "\n" not in str(raised.value)
