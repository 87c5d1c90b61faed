"""Splits: toy logs by hand, and properties that no log may break."""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from shared_data import shared

from rootbeam.core.errors import ConfigError, EventsError, InputError
from rootbeam.data.events import read_events
from rootbeam.data.split import Holdout, Split, split
from rootbeam.data.split_report import By, PartReport

BYS = get_args(By)


def log(rows: list[tuple[Any, Any, int]], order: str = "timestamp") -> pl.DataFrame:
    """Canonical events of (user, item, time) rows; the rating numbers them, to tell events apart."""
    frame = pl.DataFrame(rows, schema=["user_id", "item_id", order], orient="row").with_columns(
        weight=pl.lit(1.0, pl.Float32), rating=pl.int_range(pl.len()).cast(pl.Float64)
    )
    if order == "timestamp":
        return frame.with_columns(pl.from_epoch("timestamp", "ms").cast(pl.Datetime("ms")))
    return frame


def rows(frame: pl.DataFrame) -> list[int]:
    return [int(number) for number in frame["rating"]]


def test_time_split_cuts_at_the_quantiles_of_the_times() -> None:
    """Ten events at times 0 to 9, shuffled rows; 80 % are before 8, 90 % before 9."""
    times = [3, 0, 9, 1, 2, 8, 4, 7, 5, 6]
    frame = log([(f"u{time % 2}", "a", time) for time in times])
    found = split(frame, repeats="allow")
    assert found.report.cut_offs_ms == (8, 9)
    assert set(rows(found.train)) == {i for i, time in enumerate(times) if time < 8}
    assert rows(found.valid.inputs) == rows(found.train)
    assert rows(found.valid.labels) == [times.index(8)]
    assert set(rows(found.test.inputs)) == {i for i, time in enumerate(times) if time < 9}
    assert rows(found.test.labels) == [times.index(9)]
    assert rows(found.train) == sorted(rows(found.train))  # the row order of the source


def test_time_split_puts_equal_times_on_one_side() -> None:
    frame = log([("u", "a", 0)] * 5 + [("u", "a", 1)] * 5)
    found = split(frame, valid=0.1, test=0.3, repeats="allow")
    assert rows(found.train) == [0, 1, 2, 3, 4]
    assert rows(found.test.labels) == [5, 6, 7, 8, 9]
    assert rows(found.valid.labels) == []
    assert any("valid has no label" in warning for warning in found.report.warnings)


def test_a_share_of_0_leaves_a_part_empty_and_says_so() -> None:
    frame = log([("u", "a", time) for time in range(10)])
    without_test = split(frame, valid=0.2, test=0.0, repeats="allow")
    assert rows(without_test.valid.labels) == [8, 9]
    assert rows(without_test.test.inputs) == list(range(10))
    assert without_test.test.labels.is_empty()
    assert any("test has no label" in warning for warning in without_test.report.warnings)
    without_valid = split(frame, valid=0.0, test=0.2, repeats="allow")
    assert without_valid.valid.labels.is_empty()
    assert rows(without_valid.test.labels) == [8, 9]


def test_cold_items_seen_labels_and_cold_users_are_counted() -> None:
    before = [("u", "a", t) for t in range(8)]
    frame = log([*before, ("u", "b", 8), ("u", "a", 9), ("u", "b", 10), ("new", "a", 11), ("new", "z", 12)])
    found = split(frame, valid=1 / 13, test=4 / 13)
    # valid: b is met nowhere before time 8. test: u had a and b before 9; z is unknown; new is a new user.
    assert found.report.valid == PartReport(0, 0, 0, 8, 1, 1, 0, 1)
    assert found.report.test == PartReport(1, 1, 1, 9, 1, 1, 2, 1)
    assert rows(found.test.labels) == [11]
    text = "\n".join(found.report.lines())
    assert "1 labels of 1 unknown items" in text
    assert "2 labels the user had already" in text
    allowed = split(frame, valid=1 / 13, test=4 / 13, repeats="allow")
    assert rows(allowed.test.labels) == [9, 10, 11]
    assert allowed.report.test.seen_labels_removed == 0


@pytest.mark.parametrize(("length", "middle"), [(2, 1), (3, 2), (4, 3), (15, 8), (16, 9), (70, 36)])
def test_user_split_halves_a_history_as_dtr_does(length: int, middle: int) -> None:
    """int(n / 2 + 1) events are input; a history of two keeps one label."""
    if length > 2:
        assert middle == int(length / 2 + 1)
    # Rows stand newest first: the order must come from the time.
    frame = log([(user, item, length - item) for user in range(4) for item in range(length)])
    found = split(frame, by="users", valid=0.25, test=0.25)
    for part in (found.valid, found.test):
        assert part.inputs["item_id"].to_list() == list(range(length - middle, length))
        assert part.labels["item_id"].to_list() == list(range(length - middle))
    assert found.train["user_id"].n_unique() == 2


def test_user_split_takes_shares_of_users_and_drops_the_short() -> None:
    frame = log([(user, item, item) for user in range(100) for item in range(20 if user % 2 else 14)])
    found = split(frame, by="users", valid=0.1, test=0.2, min_events=15)
    report = found.report
    assert report.train_users == 70
    assert report.valid.users + report.test.users + report.short_users == 30
    assert report.short_events_dropped == 14 * report.short_users
    assert report.short_users > 0
    assert set(found.test.labels["user_id"].unique() % 2) == {1}


def test_user_split_can_train_on_the_inputs_of_held_out_users() -> None:
    frame = log([(user, item, item) for user in range(20) for item in range(6)])
    apart = split(frame, by="users", seed=3)
    together = split(frame, by="users", seed=3, train_on_inputs=True)
    extra = rows(apart.valid.inputs) + rows(apart.test.inputs)
    assert sorted(rows(together.train)) == sorted(rows(apart.train) + extra)
    assert rows(together.test.labels) == rows(apart.test.labels)


def test_leave_one_out_takes_the_last_two_events() -> None:
    frame = log([("u", "a", 5), ("u", "b", 1), ("v", "a", 0), ("u", "c", 3), ("v", "b", 1), ("w", "c", 0)])
    found = split(frame, by="leave-one-out")
    assert rows(found.test.labels) == [0]
    assert rows(found.valid.labels) == [3]
    assert rows(found.valid.inputs) == rows(found.train) == [1, 2, 4, 5]
    assert rows(found.test.inputs) == [1, 2, 3, 4, 5]
    assert found.report.short_users == 2  # v and w have no three events: train alone
    assert found.report.short_events_dropped == 0


# Users with too few events for labels stay in train, so that every item is known there.
KNOWN = [("v", "a", 0), ("v", "b", 0), ("w", "c", 0)]


def test_ties_in_order_keep_the_order_of_the_source() -> None:
    for order in ("timestamp", "position"):
        frame = log([*KNOWN, *[("u", item, 7) for item in "abc"]], order)
        found = split(frame, by="leave-one-out")
        assert found.test.labels["item_id"].to_list() == ["c"]
        assert found.valid.labels["item_id"].to_list() == ["b"]


def test_position_orders_where_there_is_no_time_and_rows_where_there_is_neither() -> None:
    frame = log([("u", "a", 2), ("u", "b", 0), ("u", "c", 1), *KNOWN], "position")
    ordered = split(frame, by="leave-one-out")
    assert ordered.test.labels["item_id"].to_list() == ["a"]
    assert not any("order of the rows" in warning for warning in ordered.report.warnings)
    unordered = split(frame.drop("position"), by="leave-one-out")
    assert unordered.test.labels["item_id"].to_list() == ["c"]
    assert any("order of the rows" in warning for warning in unordered.report.warnings)


def test_random_split_holds_its_shares_even_for_short_histories() -> None:
    frame = log([(user, item, 0) for user in range(2000) for item in range(4)])
    found = split(frame, by="random", valid=0.1, test=0.2)
    # A user's count is 4 · .2 rounded by chance: 0 or 1 with standard deviation .4, so 2,000 users give
    # 1,600 ± 18. Of valid, 800 ± 22.
    assert len(found.test.labels) == pytest.approx(1600, abs=80)
    assert len(found.valid.labels) == pytest.approx(800, abs=100)
    assert found.report.train_users == 2000


@pytest.mark.parametrize("by", BYS)
def test_leakage_is_said_where_there_is_some(by: By) -> None:
    frame = log([(user, item, user + item) for user in range(20) for item in range(10)])
    found = split(frame, by=by).report
    expected = by in ("leave-one-out", "random")
    assert any("leakage" in warning for warning in found.warnings) is expected
    assert any("leakage" in line for line in found.lines()) is expected
    assert json.loads(json.dumps(found.to_dict()))["by"] == by


@pytest.mark.parametrize("order", ["position", None])
def test_time_split_of_untimed_events_names_the_alternatives(order: str | None) -> None:
    frame = log([("u", "a", 0), ("u", "b", 1)], "position")
    with pytest.raises(EventsError) as error:
        split(frame if order else frame.drop("position"), by="time")
    message = str(error.value)
    assert "timestamp" in message
    assert all(other in message for other in BYS if other != "time")


GOOD = log([(user, item, user + item) for user in range(5) for item in range(4)])


@pytest.mark.parametrize(
    "settings_",
    [
        {"by": "weekday"},
        {"by": "leave_one_out"},
        {"repeats": "maybe"},
        {"valid": -0.1},
        {"valid": 0.5, "test": 0.5},
        {"test": 1.0},
        {"valid": float("nan")},
        {"by": "users", "min_events": 1},
        {"by": "time", "min_events": 15},
        {"by": "random", "train_on_inputs": True},
    ],
)
def test_bad_settings_are_refused(settings_: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        split(GOOD, **settings_)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "frame",
    [
        GOOD.drop("user_id"),
        GOOD.drop("item_id"),
        GOOD.head(0),
        pl.DataFrame(),
        GOOD.with_columns(pl.lit(None).alias("user_id")),
        GOOD.with_columns(pl.lit(None, pl.Datetime("ms")).alias("timestamp")),
        GOOD.with_columns(pl.lit(0).cast(pl.Datetime("ms")).alias("timestamp")),  # one moment: no train
    ],
)
def test_bad_frames_are_refused(frame: pl.DataFrame) -> None:
    with pytest.raises(EventsError) as error:
        split(frame)
    assert "\n" not in str(error.value)


def test_all_users_held_out_leaves_nothing_to_train_on() -> None:
    with pytest.raises(EventsError, match="no event to train on"):
        split(log([("u", "a", 0), ("u", "b", 1)]), by="users", valid=0.0, test=0.9)


@st.composite
def logs(draw: st.DrawFn) -> pl.DataFrame:
    event = st.tuples(st.sampled_from("uvwxyz"), st.sampled_from("abcdefgh"), st.integers(0, 15))
    return log(draw(st.lists(event, min_size=4, max_size=60)))


def split_or_skip(frame: pl.DataFrame, by: By, **options: Any) -> Split:
    try:
        return split(frame, by=by, valid=0.2, test=0.3, **options)
    except InputError:
        assume(False)
        raise


ANY_BY = st.sampled_from(BYS)
REPEATS = st.sampled_from(["forbid", "allow"])


@settings(max_examples=60, deadline=None)
@given(logs(), ANY_BY, REPEATS, st.integers(0, 5))
def test_no_event_is_lost_or_doubled(frame: pl.DataFrame, by: By, repeats: Any, seed: int) -> None:
    found = split_or_skip(frame, by, repeats=repeats, seed=seed)
    report = found.report
    parts = [found.train, found.valid.labels, found.test.labels]
    if by == "users":  # there alone inputs are events of their own
        parts += [found.valid.inputs, found.test.inputs]
    kept = [row for part in parts for row in rows(part)]
    dropped = report.short_events_dropped + sum(
        part.cold_labels_removed + part.seen_labels_removed for part in (report.valid, report.test)
    )
    assert len(set(kept)) == len(kept)
    assert len(kept) + dropped == len(frame) == report.events


@settings(max_examples=60, deadline=None)
@given(logs(), ANY_BY, REPEATS)
def test_labels_are_never_among_inputs_or_training(frame: pl.DataFrame, by: By, repeats: Any) -> None:
    found = split_or_skip(frame, by, repeats=repeats)
    for part in (found.valid, found.test):
        labels = set(rows(part.labels))
        assert not labels & set(rows(part.inputs))
        assert not labels & set(rows(found.train))
    assert not set(rows(found.test.labels)) & set(rows(found.valid.inputs))


@settings(max_examples=60, deadline=None)
@given(logs(), REPEATS)
def test_time_split_knows_nothing_of_the_future(frame: pl.DataFrame, repeats: Any) -> None:
    found = split_or_skip(frame, "time", repeats=repeats)
    for part in (found.valid, found.test):
        if len(part.labels):
            assert part.inputs["timestamp"].max() < part.labels["timestamp"].min()  # type: ignore[operator]
            assert found.train["timestamp"].max() < part.labels["timestamp"].min()  # type: ignore[operator]


@settings(max_examples=60, deadline=None)
@given(logs(), st.sampled_from(["users", "leave-one-out"]))
def test_no_user_has_a_label_older_than_an_input(frame: pl.DataFrame, by: By) -> None:
    found = split_or_skip(frame, by)
    for part in (found.valid, found.test):
        for user in part.labels["user_id"].unique():
            mine = pl.col("user_id") == user
            label, given_ = part.labels.filter(mine)["timestamp"], part.inputs.filter(mine)["timestamp"]
            assert given_.max() <= label.min()  # type: ignore[operator]


@settings(max_examples=60, deadline=None)
@given(logs(), ANY_BY)
def test_forbidden_repeats_and_unknown_items_are_gone(frame: pl.DataFrame, by: By) -> None:
    found = split_or_skip(frame, by, repeats="forbid")

    def pairs(part: pl.DataFrame) -> set[tuple[str, str]]:
        return set(part.select("user_id", "item_id").iter_rows())

    for part, report in ((found.valid, found.report.valid), (found.test, found.report.test)):
        assert not pairs(part.labels) & pairs(part.inputs)
        known = set(part.inputs["item_id"]) | set(found.train["item_id"])
        assert set(part.labels["item_id"]) <= known
        users, with_input = set(part.labels["user_id"]), set(part.inputs["user_id"])
        assert (report.users, report.cold_users) == (len(users), len(users - with_input))
        assert (report.labels, report.input_events) == (len(part.labels), len(part.inputs))


@settings(max_examples=30, deadline=None)
@given(logs(), st.integers(0, 3))
def test_user_split_shares_no_user(frame: pl.DataFrame, seed: int) -> None:
    found = split_or_skip(frame, "users", seed=seed)

    def users(part: Holdout) -> set[str]:
        return set(part.inputs["user_id"]) | set(part.labels["user_id"])

    train = set(found.train["user_id"])
    assert not train & users(found.valid)
    assert not train & users(found.test)
    assert not users(found.valid) & users(found.test)


@pytest.mark.parametrize("by", ["users", "random"])
def test_the_seed_decides(by: By) -> None:
    frame = log([(user, item, item) for user in range(50) for item in range(10)])
    first, again, other = (split(frame, by=by, seed=seed).test.labels for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)


def test_the_users_held_out_do_not_depend_on_the_order_of_the_rows() -> None:
    frame = log([(user, item, item) for user in range(50) for item in range(10)])
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=0)
    held = [set(split(f, by="users", seed=1).test.labels["user_id"]) for f in (frame, shuffled)]
    assert held[0] == held[1]


def test_the_columns_pass_through_unchanged() -> None:
    found = split(GOOD.with_columns(event_type=pl.lit("view")))
    for part in (found.train, found.valid.labels, found.test.inputs):
        assert part.schema == {**GOOD.schema, "event_type": pl.String}


def test_events_and_raw_frames_are_taken_as_they_come() -> None:
    raw = GOOD.select("user_id", "item_id", pl.col("timestamp").dt.epoch("ms") + 10**12)
    read = read_events(raw)
    assert split(read).train.equals(split(raw).train)
    assert split(read).train.equals(split(read.frame).train)


def test_dtr_authors_own_halves_follow_the_same_rule() -> None:
    released = pl.read_parquet(shared("mind-dtr/test.parquet"))
    sizes = released.select(h=pl.col("history").list.len(), n=pl.col("labels").list.len()).cast(pl.Int64)
    whole = sizes.filter(pl.col("h") < 69)  # longer inputs were cut by them
    total = (whole["h"] + whole["n"]).to_numpy()
    assert np.array_equal(whole["h"].to_numpy(), (total / 2 + 1).astype(int))


def test_movielens_by_time_in_round_shares() -> None:
    frame = pl.read_parquet(shared("ml-1m/events.parquet"))
    timed = frame.with_columns(pl.from_epoch("timestamp", "s").cast(pl.Datetime("ms")))
    report = split(timed).report
    assert report.train_events == pytest.approx(0.8 * len(frame), abs=100)
    assert report.test.labels + report.test.cold_labels_removed == pytest.approx(0.1 * len(frame), abs=100)
