"""Every metric against its definition written out, against trec_eval, and under random lists."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from rootbeam import metrics
from rootbeam.core.errors import ConfigError, InputError
from rootbeam.core.types import Ragged

ALL = [f"{name}@{{}}" for name in metrics.NAMES]

# USERS.md, "How libraries disagree", k = 10: A has 20 relevant items and hits at ranks 1 and 5, B has one
# relevant item, hit at rank 3.
RANKED = np.array([[0, 50, 51, 52, 1, 53, 54, 55, 56, 57], [60, 61, 0, 62, 63, 64, 65, 66, 67, 68]])
LABELS = Ragged.from_rows([[0, 1, *range(100, 118)], [0]])


def discount(rank: int) -> float:
    return 1 / math.log2(rank + 1)


@pytest.mark.parametrize(
    ("name", "of_a", "of_b"),
    [
        ("precision", 2 / 10, 1 / 10),
        ("recall", 2 / 20, 1 / 1),
        ("f1", 2 * 0.2 * 0.1 / (0.2 + 0.1), 2 * 0.1 * 1 / (0.1 + 1)),
        ("hit", 1.0, 1.0),
        ("mrr", 1 / 1, 1 / 3),
        ("dcg", discount(1) + discount(5), discount(3)),
        ("dcg_biif", 1 / math.log2(0 + 2) + 1 / math.log2(4 + 2), 1 / math.log2(2 + 2)),
        (
            "ndcg",
            (discount(1) + discount(5)) / sum(discount(r) for r in range(1, 11)),
            discount(3) / discount(1),
        ),
        ("map", (1 / 1 + 2 / 5) / 10, (1 / 3) / 1),
        ("map_biif", (1 / 1 + 2 / 5) / 2, (1 / 3) / 1),
        ("recall_with_duplicates", 2 / 20, 1 / 1),
    ],
)
def test_the_two_users_libraries_disagree_about(name: str, of_a: float, of_b: float) -> None:
    function = {"map": metrics.map_}.get(name) or getattr(metrics, name)
    expected = pytest.approx([of_a, of_b], abs=1e-12)
    assert function(RANKED, LABELS, 10).tolist() == expected
    assert metrics.compute(RANKED, LABELS, [f"{name}@10"])[f"{name}@10"].tolist() == expected


def test_the_published_figures_of_those_users() -> None:
    values = metrics.compute(RANKED, LABELS, ["ndcg@10", "recall@10", "map@10", "hit@10"])
    assert values["ndcg@10"].round(3).tolist() == [0.305, 0.5]
    assert values["recall@10"][0] == pytest.approx(0.10)
    assert values["map@10"][0] == pytest.approx(0.14)
    assert values["hit@10"].mean() == 1.0


def test_every_metric_is_tested_by_name() -> None:
    covered = {
        "precision", "recall", "f1", "hit", "mrr", "dcg", "dcg_biif", "ndcg", "map", "map_biif",
        "recall_with_duplicates",
    }  # fmt: skip
    assert set(metrics.NAMES) == covered


def test_labels_are_deduplicated_but_for_the_metric_that_says_otherwise() -> None:
    ranked, labels = np.array([[7, 1, 2, 3]]), Ragged.from_rows([[7, 7, 7, 9]])
    assert metrics.recall(ranked, labels, 4).tolist() == [1 / 2]
    assert metrics.recall_with_duplicates(ranked, labels, 4).tolist() == [1 / 4]
    assert metrics.ndcg(ranked, labels, 4).tolist() == pytest.approx([1 / (discount(1) + discount(2))])


def test_an_item_twice_in_a_list_counts_where_it_first_stands() -> None:
    ranked, labels = np.array([[5, 9, 9, 8]]), Ragged.from_rows([[9, 8]])
    assert metrics.hits(ranked, labels).tolist() == [[False, True, False, True]]
    assert metrics.recall(ranked, labels, 4).tolist() == [1.0]


def test_padding_is_never_a_hit_and_item_0_is_an_item() -> None:
    ranked = np.array([[-1, 0, -1], [0, -1, -1], [-1, -1, -1]])
    labels = Ragged.from_rows([[0], [1], [3]])
    assert metrics.hits(ranked, labels).tolist() == [[False, True, False], [False] * 3, [False] * 3]


def test_users_without_labels_get_nan_in_every_metric() -> None:
    labels = Ragged.from_rows([[1], [], [2]])
    ranked = np.array([[1, 2], [1, 2], [3, 4]])
    for name, values in metrics.compute(ranked, labels, [n.format(2) for n in ALL]).items():
        assert np.isnan(values).tolist() == [False, True, False], name
        assert values[2] == 0.0, name


def test_a_list_shorter_than_k_is_filled_with_misses() -> None:
    ranked, labels = np.array([[4]]), Ragged.from_rows([[4, 5]])
    assert metrics.precision(ranked, labels, 10).tolist() == [1 / 10]
    assert metrics.ndcg(ranked, labels, 10).tolist() == pytest.approx([1 / (discount(1) + discount(2))])


def test_no_users_and_no_depth_give_no_values() -> None:
    nobody = Ragged.from_rows([])
    assert metrics.recall(np.empty((0, 5), dtype=np.int64), nobody, 5).shape == (0,)
    assert metrics.recall(np.empty((1, 0), dtype=np.int64), Ragged.from_rows([[1]]), 5).tolist() == [0.0]
    assert metrics.compute(np.empty((0, 5), dtype=np.int64), nobody, []) == {}


def test_hits_do_not_depend_on_how_many_rows_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    ranked = np.argsort(rng.random((50, 40)), axis=1)[:, :10]
    labels = Ragged.from_rows([rng.integers(0, 40, size=6) for _ in range(50)])
    whole = metrics.hits(ranked, labels)
    monkeypatch.setattr(metrics, "_CELLS_AT_ONCE", 30)
    assert (metrics.hits(ranked, labels) == whole).all()
    expected = [[item in labels.row(user) for item in ranked[user]] for user in range(50)]
    assert whole.tolist() == expected


def test_coverage_is_the_share_of_the_catalogue_anyone_sees() -> None:
    ranked = np.array([[0, 1, 9], [1, -1, -1]])
    assert metrics.coverage(ranked, n_items=10, k=2) == 2 / 10
    assert metrics.coverage(ranked, n_items=10, k=3) == 3 / 10
    assert metrics.coverage(np.full((2, 3), -1), n_items=10, k=3) == 0.0


def test_average_popularity_is_the_mean_over_the_items_shown() -> None:
    ranked = np.array([[0, 1, 2], [2, -1, -1], [-1, -1, -1]])
    values = metrics.average_popularity(ranked, np.array([10, 20, 60]), k=2)
    assert values[:2].tolist() == [15.0, 60.0]
    assert np.isnan(values[2])


def test_rank_items_breaks_ties_by_id_and_leaves_filtered_items_out() -> None:
    scores = np.array([[1.0, 3.0, 3.0, 2.0], [-np.inf, 0.0, -np.inf, 0.0], [5, 5, 5, 5]])
    assert metrics.rank_items(scores, 3).tolist() == [[1, 2, 3], [1, 3, -1], [0, 1, 2]]
    assert metrics.rank_items(scores[:1], 6).tolist() == [[1, 2, 3, 0, -1, -1]]


@pytest.mark.parametrize(
    "name", ["recal@20", "recall", "recall@", "recall@0", "recall@-1", "recall@x", "@5", ""]
)
def test_bad_names_say_what_is_known(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        metrics.compute(RANKED, LABELS, [name])
    assert name in str(error.value)
    assert "recall" in str(error.value)


def test_an_unknown_name_lists_every_known_one() -> None:
    with pytest.raises(ConfigError) as error:
        metrics.compute(RANKED, LABELS, ["auc@5"])
    assert all(known in str(error.value) for known in metrics.NAMES)


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.recall(RANKED, LABELS, 0),
        lambda: metrics.recall(RANKED[0], LABELS, 5),
        lambda: metrics.recall(RANKED.astype(float), LABELS, 5),
        lambda: metrics.recall(RANKED[:1], LABELS, 5),
        lambda: metrics.coverage(RANKED, 10, 5),
        lambda: metrics.coverage(RANKED, 0, 5),
        lambda: metrics.average_popularity(RANKED, np.ones(3), 5),
        lambda: metrics.rank_items(np.array([[np.nan, 1.0]]), 1),
        lambda: metrics.rank_items(np.array([1.0]), 1),
        lambda: metrics.rank_items(np.array([[1.0]]), 0),
    ],
)
def test_bad_arrays_are_refused_in_one_line(call: Any) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)


@st.composite
def judged_lists(draw: st.DrawFn) -> tuple[np.ndarray, list[list[int]], int]:
    """Ranked lists without duplicates (padded at the end), label lists with duplicates, a cut-off."""
    n_items = draw(st.integers(2, 15))
    users = draw(st.integers(1, 6))
    depth = draw(st.integers(1, n_items))
    ranked = np.full((users, depth), -1)
    for user in range(users):
        order = draw(st.permutations(range(n_items)))[: draw(st.integers(0, depth))]
        ranked[user, : len(order)] = order
    labels = [draw(st.lists(st.integers(0, n_items - 1), max_size=8)) for _ in range(users)]
    return ranked, labels, draw(st.integers(1, n_items + 2))


def by_the_definition(ranked: list[int], labels: list[int], k: int) -> dict[str, float]:
    """All metrics of one user, from the definitions, without arrays."""
    relevant = set(labels)
    top = ranked[:k]
    ranks = [rank for rank, item in enumerate(top, start=1) if item in relevant]
    found = len(ranks)
    precision, recall = found / k, found / len(relevant)
    gain = sum(discount(rank) for rank in ranks)
    ideal = sum(discount(rank) for rank in range(1, min(len(relevant), k) + 1))
    average = sum(len([r for r in ranks if r <= rank]) / rank for rank in ranks)
    return {
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall) if found else 0.0,
        "ndcg": gain / ideal,
        "map": average / min(len(relevant), k),
        "mrr": 1 / ranks[0] if found else 0.0,
        "hit": 1.0 if found else 0.0,
        "dcg": gain,
        "dcg_biif": gain,
        "map_biif": average / found if found else 0.0,
        "recall_with_duplicates": found / len(labels),
    }


@settings(deadline=None)
@given(judged_lists())
def test_every_metric_equals_its_definition(case: tuple[np.ndarray, list[list[int]], int]) -> None:
    ranked, labels, k = case
    values = metrics.compute(ranked, Ragged.from_rows(labels), [name.format(k) for name in ALL])
    for user, relevant in enumerate(labels):
        if relevant:
            for name, expected in by_the_definition(ranked[user].tolist(), relevant, k).items():
                assert values[f"{name}@{k}"][user] == pytest.approx(expected, abs=1e-12), name


@settings(deadline=None)
@given(judged_lists())
def test_shares_lie_between_0_and_1(case: tuple[np.ndarray, list[list[int]], int]) -> None:
    ranked, labels, k = case
    values = metrics.compute(ranked, Ragged.from_rows(labels), [name.format(k) for name in ALL])
    for name, array in values.items():
        if not name.startswith("dcg"):
            known = array[~np.isnan(array)]
            assert ((known >= 0) & (known <= 1)).all(), name


@settings(deadline=None)
@given(judged_lists())
def test_recall_hit_mrr_and_dcg_grow_with_k(case: tuple[np.ndarray, list[list[int]], int]) -> None:
    ranked, rows, k = case
    labels = Ragged.from_rows(rows)
    for metric in (metrics.recall, metrics.hit, metrics.mrr, metrics.dcg):
        shallow, deep = metric(ranked, labels, k), metric(ranked, labels, k + 1)
        assert (np.isnan(shallow) | (deep >= shallow)).all()


@settings(deadline=None)
@given(judged_lists(), st.randoms())
def test_permuting_users_permutes_values(case: tuple[np.ndarray, list[list[int]], int], random: Any) -> None:
    ranked, rows, k = case
    order = list(range(len(rows)))
    random.shuffle(order)
    names = [name.format(k) for name in ALL]
    straight = metrics.compute(ranked, Ragged.from_rows(rows), names)
    shuffled = metrics.compute(ranked[order], Ragged.from_rows(rows).take(np.array(order)), names)
    for name in names:
        assert np.array_equal(straight[name][order], shuffled[name], equal_nan=True)


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(1, 25))
def test_a_perfect_list_scores_exactly_1(labels: list[int], k: int) -> None:
    ranked = np.array([list(dict.fromkeys(labels)) + [1000 + filler for filler in range(30)]])
    values = metrics.compute(ranked, Ragged.from_rows([labels]), [f"{m}@{k}" for m in ("ndcg", "map", "mrr")])
    assert [value.tolist() for value in values.values()] == [[1.0]] * 3


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=1, max_size=5), st.integers(1, 8)
)
def test_ranking_ties_go_to_the_lower_id(scores: list[list[int]], k: int) -> None:
    ranked = metrics.rank_items(np.array(scores), k)
    for row, found in zip(scores, ranked.tolist(), strict=True):
        expected = sorted(range(6), key=lambda item: (-row[item], item))[:k]
        assert found == expected + [-1] * (k - len(expected))


@settings(max_examples=50, deadline=None)
@given(judged_lists())
def test_trec_eval_agrees_where_the_definitions_coincide(
    case: tuple[np.ndarray, list[list[int]], int],
) -> None:
    ranked, rows, k = case
    qrel = {f"u{user}": {str(item): 1 for item in labels} for user, labels in enumerate(rows) if labels}
    # trec_eval sorts by score: give the place in the list, so that it reads the same list.
    run = {
        f"u{user}": {str(item): float(-place) for place, item in enumerate(row) if item >= 0}
        for user, row in enumerate(ranked.tolist())
    }
    evaluator = pytrec_eval.RelevanceEvaluator(
        qrel, {f"ndcg_cut.{k}", f"P.{k}", f"recall.{k}", f"map_cut.{k}", "recip_rank"}
    )
    theirs = evaluator.evaluate({user: row for user, row in run.items() if row})
    deep = ranked.shape[1]
    names = [f"ndcg@{k}", f"precision@{k}", f"recall@{k}", f"map@{k}", f"mrr@{deep}"]
    ours = metrics.compute(ranked, Ragged.from_rows(rows), names)
    for user, labels in enumerate(rows):
        if f"u{user}" not in theirs:
            continue
        pairs = [(f"ndcg@{k}", f"ndcg_cut_{k}"), (f"precision@{k}", f"P_{k}"), (f"recall@{k}", f"recall_{k}")]
        pairs.append((f"mrr@{deep}", "recip_rank"))
        if len(set(labels)) <= k:  # trec_eval's map_cut divides by |R|, ours by min(|R|, k)
            pairs.append((f"map@{k}", f"map_cut_{k}"))
        for mine, other in pairs:
            assert ours[mine][user] == pytest.approx(theirs[f"u{user}"][other], abs=1e-9), mine
