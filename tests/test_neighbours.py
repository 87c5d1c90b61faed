from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rootbeam.core.errors import BundleError, ConfigError
from rootbeam.core.types import ITEMS, PADDING, Log
from rootbeam.data.history import replay
from rootbeam.learn import neighbours
from rootbeam.learn.neighbours import (
    NeighbourScorer,
    PrunedWeights,
    ease_from_gram,
    ease_weights,
    fits,
    gram,
    item_knn_weights,
    prune,
    score_dense,
    strongest,
)


def make_log(rows: list[list[int]], n_items: int) -> Log:
    """A log from each user's items, oldest first."""
    lengths = [len(row) for row in rows]
    items = np.array([item for row in rows for item in row], dtype=np.int32)
    return Log(
        items,
        np.arange(len(items), dtype=np.int64),
        np.ones(len(items), dtype=np.float32),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        n_items,
    )


def random_log(seed: int, users: int = 60, n_items: int = 12) -> Log:
    rng = np.random.default_rng(seed)
    return make_log([rng.integers(n_items, size=rng.integers(0, 9)).tolist() for _ in range(users)], n_items)


def incidence(log: Log) -> np.ndarray:
    """(users, items) the 0/1 matrix X."""
    matrix = np.zeros((log.n_users, log.n_items))
    matrix[log.users(), log.items] = 1
    return matrix


def dense(weights: PrunedWeights) -> np.ndarray:
    table = np.zeros((weights.n_items, weights.n_items), dtype=np.float32)
    for source in range(weights.n_items):
        for place in range(weights.ptr[source], weights.ptr[source + 1]):
            assert table[source, weights.targets[place]] == 0, "stored twice"
            table[source, weights.targets[place]] = weights.values[place]
    return table


def checkerboard(users: int = 30, n_items: int = 20, each: int = 6) -> Log:
    """Even users like even items, odd users odd items."""
    rng = np.random.default_rng(0)
    rows = [
        rng.choice(np.arange(user % 2, n_items, 2), each, replace=False).tolist() for user in range(users)
    ]
    return make_log(rows, n_items)


logs = st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=8).map(
    lambda rows: make_log(rows, 6)
)


# --- the matrix of co-occurrence


@given(logs)
def test_gram_is_the_product_of_the_dense_matrix(log: Log) -> None:
    matrix = incidence(log)
    counts = gram(log)
    assert counts.dtype == np.float32
    np.testing.assert_array_equal(counts, matrix.T @ matrix)


@pytest.mark.parametrize("pairs", [1, 7, 50, 400])
def test_the_size_of_the_blocks_changes_nothing(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log = random_log(3)
    weights = np.random.default_rng(0).normal(size=(12, 12)).astype(np.float32)
    whole, knn, kept = gram(log), item_knn_weights(log, 3), prune(weights, 3)
    monkeypatch.setattr(neighbours, "PAIRS_PER_BLOCK", pairs)
    np.testing.assert_array_equal(gram(log), whole)
    np.testing.assert_array_equal(dense(item_knn_weights(log, 3)), dense(knn))
    np.testing.assert_array_equal(dense(prune(weights, 3)), dense(kept))


# --- EASE


@pytest.mark.parametrize("l2", [0.5, 10.0, 1000.0])
def test_ease_is_its_closed_form(l2: float) -> None:
    log = random_log(1)
    matrix = incidence(log)
    inverse = np.linalg.inv(matrix.T @ matrix + l2 * np.eye(12))
    expected = np.eye(12) - inverse / np.diag(inverse)[None, :]
    np.testing.assert_allclose(ease_weights(log, l2), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("l2", [0.5, 10.0, 1000.0])
def test_ease_is_the_constrained_optimum(l2: float) -> None:
    """½ of the gradient of |X − XB|² + l2 · |B|² is XᵀX(B − I) + l2 · B: zero wherever B may move."""
    log = random_log(2)
    matrix, weights = incidence(log), ease_weights(log, l2).astype(np.float64)
    gradient = matrix.T @ matrix @ (weights - np.eye(12)) + l2 * weights
    assert (np.diag(weights) == 0).all()
    off_diagonal = ~np.eye(12, dtype=bool)
    assert np.abs(gradient[off_diagonal]).max() < 1e-5 * np.abs(np.diag(gradient)).max()


def test_ease_does_not_write_to_the_counts() -> None:
    counts = gram(random_log(4))
    before = counts.copy()
    ease_from_gram(counts, 10.0)
    np.testing.assert_array_equal(counts, before)


def test_ease_keeps_its_precision_where_l2_is_small_against_the_counts() -> None:
    """Two items always taken together: only l2 tells them apart, and float32 would lose it."""
    rng = np.random.default_rng(0)
    matrix = (rng.random((500, 6)) < 0.9).astype(np.float64)
    matrix[:, 1] = matrix[:, 0]
    counts = matrix.T @ matrix * 10_000  # as if there were five million users
    inverse = np.linalg.inv(counts + np.eye(6))
    expected = np.eye(6) - inverse / np.diag(inverse)[None, :]
    np.testing.assert_allclose(ease_from_gram(counts.astype(np.float32), 1.0), expected, rtol=1e-4, atol=1e-6)


def test_an_item_nobody_has_gets_no_weight() -> None:
    log = make_log([[0, 1], [0, 1], [1]], n_items=4)
    weights = ease_weights(log, 1.0)
    assert not weights[2:].any()
    assert not weights[:, 2:].any()
    assert weights[0, 1] > 0


@pytest.mark.parametrize("l2", [0.0, -1.0, math.nan, math.inf])
def test_ease_refuses_a_senseless_l2(l2: float) -> None:
    with pytest.raises(ConfigError, match="l2"):
        ease_weights(random_log(0), l2)


def test_fits_counts_28_bytes_per_pair() -> None:
    assert fits(1000, 28_000_000)
    assert not fits(1000, 27_999_999)


# --- item-kNN


def similarity_by_definition(log: Log, i: int, j: int, shrink: float, similarity: str, power: float) -> float:
    of_i = {u for u, row in enumerate(incidence(log)) if row[i]}
    of_j = {u for u, row in enumerate(incidence(log)) if row[j]}
    if not of_i & of_j:
        return 0.0
    if similarity == "jaccard":
        return len(of_i & of_j) / (len(of_i | of_j) + shrink)
    return len(of_i & of_j) / (math.pow(len(of_i), 1 - power) * math.pow(len(of_j), power) + shrink)


@pytest.mark.parametrize(
    ("shrink", "similarity", "power"),
    [
        (0.0, "cosine", 0.5),
        (10.0, "cosine", 0.5),
        (0.0, "cosine", 0.0),
        (3.0, "cosine", 0.8),
        (0.0, "jaccard", 0.5),
        (5.0, "jaccard", 0.5),
    ],
)
@pytest.mark.parametrize("count", [1, 3, 50])
def test_knn_is_its_definition(shrink: float, similarity: str, power: float, count: int) -> None:
    log = random_log(5)
    found = dense(item_knn_weights(log, count, shrink, similarity, power))
    for j in range(12):
        similar = {
            i: similarity_by_definition(log, i, j, shrink, similarity, power) for i in range(12) if i != j
        }
        nearest = sorted(similar, key=lambda i: (-similar[i], i))[:count]
        expected = [similar[i] if i in nearest else 0.0 for i in range(j)] + [0.0]
        expected += [similar[i] if i in nearest else 0.0 for i in range(j + 1, 12)]
        assert found[:, j].tolist() == pytest.approx(expected, rel=1e-6)


def test_the_cosine_of_two_items_always_taken_together_is_one() -> None:
    log = make_log([[0, 1], [1, 0], [2]], n_items=3)
    assert dense(item_knn_weights(log, 5))[0, 1] == pytest.approx(1.0)
    assert dense(item_knn_weights(log, 5, shrink=2.0))[0, 1] == pytest.approx(2 / (2 + 2))


def test_equally_near_neighbours_go_to_the_lower_id() -> None:
    log = make_log([[0, 1, 2, 3]], n_items=4)
    assert np.flatnonzero(dense(item_knn_weights(log, 2))[:, 0]).tolist() == [1, 2]
    assert np.flatnonzero(dense(item_knn_weights(log, 2))[:, 3]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"neighbours": 0}, "neighbours"),
        ({"neighbours": -3}, "neighbours"),
        ({"neighbours": 5, "shrink": -0.1}, "shrink"),
        ({"neighbours": 5, "shrink": math.nan}, "shrink"),
        ({"neighbours": 5, "shrink": math.inf}, "shrink"),
        ({"neighbours": 5, "similarity": "euclid"}, "similarity"),
        ({"neighbours": 5, "similarity": ""}, "similarity"),
        ({"neighbours": 5, "popularity_power": 1.1}, "popularity_power"),
        ({"neighbours": 5, "popularity_power": -0.1}, "popularity_power"),
        ({"neighbours": 5, "popularity_power": math.nan}, "popularity_power"),
    ],
)
def test_knn_refuses_senseless_settings(settings: dict, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        item_knn_weights(random_log(0), **settings)


@pytest.mark.parametrize("log", [make_log([], 0), make_log([], 3), make_log([[]], 3), make_log([[1]], 3)])
def test_logs_without_a_pair_give_no_neighbours(log: Log) -> None:
    assert len(item_knn_weights(log, 5).values) == 0
    assert item_knn_weights(log, 5).n_items == log.n_items
    assert not ease_weights(log, 1.0).any()
    assert prune(ease_weights(log, 1.0), 5).n_items == log.n_items


# --- pruning


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_pruning_keeps_the_strongest_sources_of_every_target(keep: int) -> None:
    weights = np.random.default_rng(0).normal(size=(7, 7)).astype(np.float32)
    np.fill_diagonal(weights, 0)
    kept = dense(prune(weights, keep))
    for j in range(7):
        strongest = sorted(range(7), key=lambda i: -abs(weights[i, j]))[:keep]
        assert sorted(np.flatnonzero(kept[:, j])) == sorted(strongest)
        assert kept[strongest, j].tolist() == weights[strongest, j].tolist()


@pytest.mark.parametrize("keep", [7, 100])
def test_keeping_all_is_no_pruning(keep: int) -> None:
    weights = np.random.default_rng(1).normal(size=(7, 7)).astype(np.float32)
    np.fill_diagonal(weights, 0)
    np.testing.assert_array_equal(dense(prune(weights, keep)), weights)
    assert len(prune(weights, keep).values) == 7 * 6  # no zero is stored


@pytest.mark.parametrize("keep", [0, -1])
def test_pruning_refuses_to_keep_nothing(keep: int) -> None:
    with pytest.raises(ConfigError, match="keep"):
        prune(np.ones((2, 2), np.float32), keep)


def test_arrays_there_and_back() -> None:
    weights = prune(ease_weights(random_log(6), 5.0), 3)
    arrays = weights.to_arrays()
    again = PrunedWeights.from_arrays(arrays)
    for name in ("ptr", "targets", "values"):
        assert arrays[name].dtype == getattr(again, name).dtype
        np.testing.assert_array_equal(arrays[name], getattr(again, name))


GOOD = {"ptr": [0, 1, 2], "targets": [1, 0], "values": [0.5, 0.5]}


@pytest.mark.parametrize(
    "damage",
    [
        {"ptr": None},
        {"targets": None},
        {"values": None},
        {"ptr": []},
        {"ptr": [1, 1, 2]},
        {"ptr": [0, 2, 1]},
        {"ptr": [0, 1, 3]},
        {"targets": [1]},
        {"values": [0.5]},
        {"targets": [1, 2]},
        {"targets": [1, -1]},
        {"values": [0.5, math.nan]},
        {"values": [0.5, math.inf]},
    ],
)
def test_damaged_arrays_are_refused(damage: dict) -> None:
    arrays = {name: np.array(value) for name, value in (GOOD | damage).items() if value is not None}
    with pytest.raises(BundleError, match="neighbour weights"):
        PrunedWeights.from_arrays(arrays)
    PrunedWeights.from_arrays({name: np.array(value) for name, value in GOOD.items()})


# --- the scorer


def score_by_loops(weights: np.ndarray, log: Log, user: int, length: int, decay: float) -> list[float]:
    items = log.sequences().row(user).tolist()
    if decay == 1:
        bag = [(item, 1.0) for item in set(items)]
    else:
        bag = [(item, decay**age) for age, item in enumerate(reversed(items[-length:]))]
    return [sum(x * float(weights[i, j]) for i, x in bag) for j in range(len(weights))]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([1.0, 0.9, 0.3]), st.sampled_from([1, 2, 12]))
def test_the_scorer_is_a_double_loop(seed: int, decay: float, keep: int) -> None:
    """keep = 1 is scored as a sparse product, keep = 12 as a dense one."""
    log = random_log(seed, users=7)
    weights = prune(np.random.default_rng(seed).normal(size=(12, 12)).astype(np.float32), keep)
    scorer = NeighbourScorer(weights, decay)
    query = scorer.encode(replay(log, 4))
    scores = scorer.score(query, ITEMS, None)
    assert len(query) == 7
    assert scores.dtype == torch.float32
    for user in range(7):
        expected = score_by_loops(dense(weights), log, user, 4, decay)
        assert scores[user].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_both_products_are_tested() -> None:
    weights = np.random.default_rng(0).normal(size=(12, 12)).astype(np.float32)
    assert NeighbourScorer(prune(weights, 1))._dense is None
    assert NeighbourScorer(prune(weights, 12))._dense is not None


def test_nodes_choose_columns() -> None:
    log = random_log(8, users=5)
    scorer = NeighbourScorer(prune(ease_weights(log, 1.0), 4))
    query = scorer.encode(replay(log, 10))
    everything = scorer.score(query, ITEMS, None)
    same = torch.tensor([3, 0, 3])
    own = torch.arange(10, dtype=torch.int32).reshape(5, 2)
    assert torch.equal(scorer.score(query, ITEMS, same), everything[:, [3, 0, 3]])
    for row in range(5):
        assert torch.equal(scorer.score(query, ITEMS, own)[row], everything[row, own[row].long()])


@pytest.mark.parametrize("level", [0, 1, 5])
def test_there_are_no_levels(level: int) -> None:
    scorer = NeighbourScorer(prune(ease_weights(random_log(0), 1.0), 4))
    with pytest.raises(ConfigError, match=f"level {level}"):
        scorer.score(scorer.encode(replay(random_log(0), 5)), level, None)


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.01, math.nan, math.inf])
def test_a_decay_lies_in_0_to_1(decay: float) -> None:
    with pytest.raises(ConfigError, match="decay"):
        NeighbourScorer(prune(np.ones((2, 2), np.float32), 1), decay)


def test_decay_ages_by_place_and_forgets_what_is_older_than_last() -> None:
    weights = prune(np.eye(4, k=0, dtype=np.float32), 4)  # score = the amount itself
    scorer = NeighbourScorer(weights, decay=0.5)
    scores = scorer.score(scorer.encode(replay(make_log([[3, 0, 1, 2], [2, 2]], 4), 3)))
    assert scores[0].tolist() == [0.25, 0.5, 1.0, 0.0]  # item 3 has left `last`
    assert scores[1].tolist() == [0.0, 0.0, 1.5, 0.0]


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_no_history_scores_zero_and_items_from_later_are_left_out(decay: float) -> None:
    weights = prune(np.eye(3, dtype=np.float32), 1)
    scorer = NeighbourScorer(weights, decay)
    histories = replay(make_log([[], [7], [0, 7]], n_items=8), 4)
    assert (histories.last[0] == PADDING).all()
    scores = scorer.score(scorer.encode(histories))
    assert scores[:2].tolist() == [[0.0] * 3] * 2
    assert scores[2, 0] > 0


def test_dense_scores_equal_those_of_everything_kept() -> None:
    log = random_log(9)
    weights = ease_weights(log, 2.0)
    scorer = NeighbourScorer(prune(weights, 12))
    histories = replay(log, 5)
    expected = scorer.score(scorer.encode(histories)).numpy()
    np.testing.assert_allclose(score_dense(weights, histories), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [1.0, 0.9])
@pytest.mark.parametrize("method", ["ease", "ease pruned", "cosine", "jaccard"])
def test_a_checkerboard_world_is_understood(method: str, decay: float) -> None:
    """Who likes even items is recommended the other even items, before any odd one."""
    log = checkerboard()
    weights = {
        "ease": lambda: prune(ease_weights(log, 5.0), 20),
        "ease pruned": lambda: prune(ease_weights(log, 5.0), 6),
        "cosine": lambda: item_knn_weights(log, 9),
        "jaccard": lambda: item_knn_weights(log, 9, similarity="jaccard"),
    }[method]()
    scorer = NeighbourScorer(weights, decay)
    histories = replay(make_log([[0, 2, 4, 6], [1, 3, 5, 7]], 20), 10)
    scores = scorer.score(scorer.encode(histories)).numpy()
    for parity in (0, 1):
        unseen = np.arange(8, 20)
        ranked = unseen[np.argsort(-scores[parity, unseen], kind="stable")]
        assert set(ranked[:6].tolist()) == set(range(8 + parity, 20, 2))


def test_a_penalty_lost_in_rounding_is_refused_in_one_line():
    with pytest.raises(ConfigError, match="too small"):
        ease_from_gram(np.full((30, 30), 1000.0, dtype=np.float32), 1e-14)


@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_the_strongest_of_many_neighbours_are_the_few(count: int) -> None:
    log = random_log(3)
    few = item_knn_weights(log, count, shrink=0.37)
    np.testing.assert_array_equal(dense(strongest(item_knn_weights(log, 9, shrink=0.37), count)), dense(few))
