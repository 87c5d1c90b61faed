"""Breakdowns by activity and popularity, against counts made by hand and against the definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootbeam import metrics
from rootbeam.core.errors import ConfigError, InputError
from rootbeam.core.types import Float64, Int32, Int64, Ragged
from rootbeam.data.history import from_items
from rootbeam.evaluate.breakdown import (
    POPULARITY_GROUPS,
    by_activity,
    by_popularity,
    concentration,
    popularity_groups,
)
from rootbeam.evaluate.protocol import evaluate_lists


def floats(*values: float) -> Float64:
    return np.array(values, dtype=np.float64)


def integers(*values: int) -> Int64:
    return np.array(values, dtype=np.int64)


def lists(*rows: list[int]) -> Int32:
    return np.array(rows, dtype=np.int32)


# --- users ---


def test_activity_bins_hold_their_users_and_the_means_of_those() -> None:
    events = integers(1, 2, 3, 4, 10, 20, 30, 40, 500, 600)
    values = floats(0, 0, 0, 1, 1, 1, 0, 1, 1, 1)
    rows = by_activity(values, events, "recall@10")
    assert [(row["from"], row["to"], row["users"]) for row in rows] == [
        (1, 2, 2),
        (3, 4, 2),
        (10, 20, 2),
        (30, 40, 2),
        (500, 600, 2),
    ]
    assert [row["recall@10"]["mean"] for row in rows] == [0.0, 0.5, 1.0, 0.5, 1.0]
    assert [row["recall@10"]["n"] for row in rows] == [2] * 5


def test_users_equally_active_share_a_bin() -> None:
    rows = by_activity(floats(0, 1, 1, 0, 1), integers(7, 7, 7, 7, 9), "hit@5")
    assert [(row["from"], row["to"], row["users"]) for row in rows] == [(7, 7, 4), (9, 9, 1)]
    assert rows[0]["hit@5"]["mean"] == 0.5


def test_without_users_there_are_no_bins() -> None:
    assert by_activity(floats(), integers(), "recall@10") == []


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 60)), min_size=1, max_size=80), st.integers(1, 8))
def test_activity_bins_are_a_partition(users: list[tuple[float, int]], bins: int) -> None:
    values, events = floats(*(v for v, _ in users)), integers(*(e for _, e in users))
    rows = by_activity(values, events, "ndcg@10", bins=bins)
    assert 1 <= len(rows) <= bins
    assert sum(row["users"] for row in rows) == len(users)
    for row in rows:
        inside = (events >= row["from"]) & (events <= row["to"])
        assert inside.sum() == row["users"]
        assert row["ndcg@10"]["mean"] == pytest.approx(values[inside].mean())
    assert all(a["to"] < b["from"] for a, b in itertools.pairwise(rows))
    total = math.fsum(row["users"] * row["ndcg@10"]["mean"] for row in rows)
    assert total / len(users) == pytest.approx(values.mean())


@pytest.mark.parametrize(
    ("values", "events", "bins", "error"),
    [
        (floats(1, 0), integers(1), 5, InputError),
        (floats(1), integers(1, 2), 5, InputError),
        (np.zeros((2, 2)), np.zeros((2, 2), np.int64), 5, InputError),
        (floats(1), integers(1), 0, ConfigError),
        (floats(1), integers(1), -3, ConfigError),
    ],
)
def test_bad_activity_is_refused(values: Float64, events: Int64, bins: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        by_activity(values, events, "recall@10", bins=bins)


# --- items ---


def test_groups_by_the_share_of_more_popular_items() -> None:
    # Of 100 events, more popular items hold 0, 30, 55, 75 and 90.
    assert popularity_groups(floats(30, 25, 20, 15, 10)).tolist() == [0, 1, 2, 2, 3]
    assert popularity_groups(floats(10, 0, 25, 15, 30, 20)).tolist() == [3, 3, 1, 2, 0, 2]


def test_a_bound_belongs_to_the_group_below_it() -> None:
    # 35 + 15 = 50 above the third, 50 + 12 + 11 + 7 = 80 above the sixth of 100
    assert popularity_groups(floats(35, 15, 12, 11, 7, 6, 5, 4, 3, 2)).tolist() == [
        0,
        1,
        2,
        2,
        2,
        3,
        3,
        3,
        3,
        3,
    ]


def test_one_giant_item_is_the_head() -> None:
    assert popularity_groups(floats(1, 97, 1, 1)).tolist() == [3, 0, 3, 3]


def test_equally_popular_items_stay_together() -> None:
    assert popularity_groups(floats(4, 4, 4, 4, 4)).tolist() == [0] * 5
    assert popularity_groups(floats(8, 1, 1)).tolist() == [0, 3, 3]


def test_without_events_everything_is_tail() -> None:
    assert popularity_groups(floats(0, 0, 0)).tolist() == [3, 3, 3]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40))
def test_groups_follow_the_definition(counts: list[int]) -> None:
    groups = popularity_groups(floats(*counts))
    for item, count in enumerate(counts):
        above = sum(other for other in counts if other > count)
        # above / sum >= bound in whole numbers, free of rounding
        index = sum(10 * above >= tenths * sum(counts) for tenths in (2, 5, 8))
        assert groups[item] == (index if count else 3)


def test_recall_of_a_group_is_labels_found_over_labels() -> None:
    popularity = floats(60, 30, 9, 1)  # head; 60 % above: lower middle; 90 %, 99 %: tail
    labels = Ragged.from_rows([[0, 1], [0, 2], [3], [0, 0, 1]])
    ranked = lists([0, 2, 1], [3, 0, 2], [1, 3, 0], [2, 0, 1])
    rows = {row["group"]: row for row in by_popularity(ranked, labels, popularity, 2)}
    assert list(rows) == ["head", "lower middle", "tail"]
    # head: item 0 wanted by users 0, 1, 3 and found by all three; the label listed twice counts once
    assert rows["head"] == {
        "group": "head",
        "from_events": 60,
        "to_events": 60,
        "items": 1,
        "labels": 3,
        "recall@2": 3 / 3,
    }
    # lower middle: item 1 wanted by users 0 and 3, at rank 3 for both
    assert (rows["lower middle"]["labels"], rows["lower middle"]["recall@2"]) == (2, 0 / 2)
    # tail: item 2 of user 1 at rank 3 is missed, item 3 of user 2 at rank 2 is found
    assert (rows["tail"]["items"], rows["tail"]["labels"], rows["tail"]["recall@2"]) == (2, 2, 1 / 2)
    assert (rows["tail"]["from_events"], rows["tail"]["to_events"]) == (1, 9)


def test_labels_outside_the_catalogue_are_missed_in_a_group_of_their_own() -> None:
    rows = by_popularity(lists([0, 1], [1, 0]), Ragged.from_rows([[0, 7], [7, 8]]), floats(5, 1), 2)
    assert rows[-1] == {
        "group": "not in the catalogue",
        "from_events": 0,
        "to_events": 0,
        "items": 2,
        "labels": 3,
        "recall@2": 0.0,
    }


def test_a_group_without_labels_has_no_recall() -> None:
    rows = by_popularity(lists([0]), Ragged.from_rows([[0]]), floats(97, 1, 1, 1), 1)
    assert [(row["group"], row["recall@1"]) for row in rows] == [("head", 1.0), ("tail", None)]


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_groups_together_are_the_micro_average(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    users, n_items = 8, 12
    ranked = np.array([rng.permutation(n_items)[:6] for _ in range(users)], dtype=np.int32)
    labels = Ragged.from_rows([rng.integers(0, n_items, rng.integers(0, 5)) for _ in range(users)])
    rows = by_popularity(ranked, labels, rng.integers(0, 20, n_items).astype(np.float64), k)
    assert sum(row["items"] for row in rows) == n_items
    assert {row["group"] for row in rows} <= set(POPULARITY_GROUPS)
    wanted = [set(labels.row(user).tolist()) for user in range(users)]
    found = sum(len(wanted[user] & set(ranked[user, :k].tolist())) for user in range(users))
    assert sum(row["labels"] for row in rows) == sum(map(len, wanted))
    assert sum(row["labels"] * (row[f"recall@{k}"] or 0) for row in rows) == pytest.approx(found)


@pytest.mark.parametrize(
    ("ranked", "labels", "popularity", "k", "error"),
    [
        (lists([0]), Ragged.from_rows([[0]]), floats(1), 0, ConfigError),
        (lists([0]), Ragged.from_rows([[0]]), floats(1), -1, ConfigError),
        (lists([0]), Ragged.from_rows([[0], [0]]), floats(1), 1, InputError),
        (lists([0]), Ragged.from_rows([[0]]), floats(-1), 1, InputError),
        (lists([0]), Ragged.from_rows([[0]]), floats(math.nan), 1, InputError),
        (lists([0]), Ragged.from_rows([[0]]), floats(math.inf), 1, InputError),
        (lists([0]), Ragged.from_rows([[0]]), np.ones((1, 1)), 1, InputError),
        (np.zeros((1, 1)), Ragged.from_rows([[0]]), floats(1), 1, InputError),
    ],
)
def test_bad_popularity_is_refused(
    ranked: Int32, labels: Ragged, popularity: Float64, k: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        by_popularity(ranked, labels, popularity, k)


# --- concentration ---


def test_concentration_of_the_same_list_for_everyone() -> None:
    same = np.tile(np.arange(10, dtype=np.int32), (5, 1))
    # 1 % of 200 items are 2, which take 2 of the 10 places
    assert concentration(same, 200, 10) == 2 / 10
    assert concentration(same, 200, 1) == 1.0


def test_concentration_of_even_lists_is_the_share() -> None:
    even = np.arange(100, dtype=np.int32).reshape(10, 10)
    assert concentration(even, 100, 10) == 1 / 100
    assert concentration(even, 100, 10, share=0.25) == 25 / 100


def test_concentration_leaves_padding_out() -> None:
    assert concentration(lists([3, -1], [3, 4]), 50, 2) == 2 / 3
    assert concentration(lists([-1, -1]), 50, 2) is None


@pytest.mark.parametrize(("n_items", "share"), [(0, 0.01), (-1, 0.01), (5, 0.0), (5, 1.1), (5, math.nan)])
def test_bad_concentration_is_refused(n_items: int, share: float) -> None:
    with pytest.raises(ConfigError):
        concentration(lists([0]), n_items, 1, share)


# --- in the evaluation ---


def test_the_evaluation_holds_the_breakdown_of_its_headline_users() -> None:
    histories = from_items([[0, 1], [0], [], [0, 1, 2, 3]], 4)
    labels = Ragged.from_rows([[2], [3], [0], [4]])
    every = lists([2, 0], [1, 3], [0, 1], [1, 0])
    rows_of = {2: every[0], 1: every[1], 0: every[2], 4: every[3]}

    def retrieve(chosen: object, k: int) -> Int32:
        return np.array([rows_of[int(n)][:k] for n in chosen.events], dtype=np.int32)  # type: ignore[attr-defined]

    evaluation = evaluate_lists(
        retrieve,
        histories,
        labels,
        n_items=5,
        slices={},
        protocol={},
        names=("ndcg@2", "recall@2"),
        popularity=floats(4, 3, 2, 1, 0),
    )
    found = evaluation.to_dict()["breakdown"]
    # user 2 has no events and is no headline user
    assert [(row["from"], row["to"], row["users"]) for row in found["user_activity"]] == [
        (1, 1, 1),
        (2, 2, 1),
        (4, 4, 1),
    ]
    assert [row["recall@2"]["mean"] for row in found["user_activity"]] == [1.0, 1.0, 0.0]
    # shares of more popular items: item 2 has 7/10 above it, items 3 and 4 more than 8/10
    assert [(row["group"], row["labels"], row["recall@2"]) for row in found["item_popularity"]] == [
        ("head", 0, None),
        ("upper middle", 0, None),
        ("lower middle", 1, 1.0),
        ("tail", 2, 1 / 2),
    ]
    # places of headline users: 2, 0 · 1, 3 · 1, 0; the most recommended ⌈.01 · 5⌉ = 1 item takes 2 of 6
    assert found["concentration"] == {"most_recommended_items": 1, "share@2": 2 / 6}
    assert evaluation.metrics["recall@2"].mean == pytest.approx(
        float(np.mean(metrics.recall(every[[0, 1, 3]], labels.take(np.array([0, 1, 3])), 2)))
    )


def test_without_popularity_the_items_are_left_out() -> None:
    histories = from_items([[0, 1]], 4)
    evaluation = evaluate_lists(
        lambda chosen, k: np.full((len(chosen), k), 2, dtype=np.int32),
        histories,
        Ragged.from_rows([[2]]),
        n_items=3,
        slices={},
        protocol={},
        names=("ndcg@1",),
    )
    assert evaluation.breakdown["item_popularity"] == []
    assert evaluation.breakdown["user_activity"][0]["ndcg@1"]["mean"] == 1.0
