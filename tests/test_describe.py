"""A small log described by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from shared_data import shared

from rootbeam.core.errors import EventsError
from rootbeam.data import describe as module
from rootbeam.data.describe import COSTS, describe, training_bytes, training_seconds
from rootbeam.data.events import read_events

DAY = 86_400_000


def log(rows: list[tuple[str, str, int]]) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    return frame.with_columns(
        pl.from_epoch("timestamp", "ms").cast(pl.Datetime("ms")), weight=pl.lit(1.0, pl.Float32)
    )


SMALL = log([("u", "a", 0), ("u", "b", 0), ("u", "a", DAY), ("v", "a", 2 * DAY), ("v", "c", 3 * DAY)])


def test_counts_of_a_log_of_five_events() -> None:
    found = describe(SMALL)
    assert (found.events, found.users, found.items) == (5, 2, 3)
    assert found.density == 4 / (2 * 3)  # ua, ub, va, vc
    assert (found.first_ms, found.last_ms) == (0, 3 * DAY)
    assert found.repeat_rate == pytest.approx(1 / 5)  # u's second a
    assert found.burst_rate == 2 / 5  # u's a and b at time 0
    assert found.top_items_share == 3 / 5  # 1 % of 3 items is rounded up to one item: a
    assert (found.events_per_user["0"], found.events_per_user["1"]) == (2, 3)
    assert (found.events_per_item["0"], found.events_per_item["0.5"], found.events_per_item["1"]) == (1, 1, 3)


def test_few_events_are_too_few_and_the_lines_say_of_what() -> None:
    found = describe(SMALL)
    assert not found.enough
    assert found.shortages == ("5 events of 1,000", "2 users of 50", "3 items of 20")
    text = "\n".join(found.lines())
    assert "popularity will be served" in text
    assert "order of the rows" in text


def many(users: int, items: int, events: int) -> pl.DataFrame:
    """Users and items in turn, one event a second."""
    return log([(f"u{number % users}", f"i{number % items}", number * 1000) for number in range(events)])


@pytest.mark.parametrize(
    ("users", "items", "events", "enough"),
    [(50, 20, 1000, True), (50, 20, 999, False), (49, 50, 1000, False), (100, 19, 1000, False)],
)
def test_enough_begins_at_the_stated_thresholds(users: int, items: int, events: int, enough: bool) -> None:
    assert (module.MIN_EVENTS, module.MIN_USERS, module.MIN_ITEMS) == (1000, 50, 20)
    found = describe(many(users, items, events))
    assert (found.users, found.items, found.events) == (users, items, events)
    assert found.enough is enough


@pytest.mark.parametrize(("items", "top"), [(99, 1), (100, 1), (101, 2), (200, 2)])
def test_the_top_items_are_one_in_a_hundred_rounded_up(items: int, top: int) -> None:
    frame = log([(f"u{n}", f"i{n}", n) for n in range(items)])
    assert describe(frame).top_items_share == pytest.approx(top / items)


@pytest.mark.parametrize(("repeated", "suggested"), [(20, "forbid"), (21, "allow")])
def test_repeats_are_suggested_above_a_fifth(repeated: int, suggested: str) -> None:
    rows = [("u", f"i{n}", n) for n in range(100 - repeated)] + [
        ("u", "i0", 1000 + n) for n in range(repeated)
    ]
    found = describe(log(rows))
    assert found.repeat_rate == pytest.approx(repeated / 100)
    assert found.suggested_repeats == suggested
    assert any(f"--repeats {suggested}" in line for line in found.lines())


def test_cold_users_are_those_who_come_after_the_second_cut_off() -> None:
    """Ten users, one event each moment: the last of ten events is a user never seen, of an item seen."""
    rows = [(f"u{n}", "a", n) for n in range(8)] + [("u0", "b", 8), ("late", "a", 9)]
    found = describe(log(rows))
    assert (found.cold_users, found.test_users) == (1, 1)


def test_without_times_there_is_no_span_no_burst_and_no_cold_user() -> None:
    found = describe(SMALL.drop("timestamp"))
    assert not found.timed
    assert (found.first_ms, found.burst_rate, found.cold_users, found.test_users) == (None,) * 4
    assert any("no timestamps" in line for line in found.lines())


def test_one_moment_is_no_time_split_and_no_error() -> None:
    found = describe(SMALL.with_columns(pl.lit(0).cast(pl.Datetime("ms")).alias("timestamp")))
    assert found.cold_users is None
    assert found.burst_rate == 1.0


def test_items_file_coverage_is_a_share_of_the_items_in_the_events() -> None:
    assert describe(SMALL).known_items_share is None
    found = describe(SMALL, pl.DataFrame({"item_id": ["a", "b", "never seen"]}))
    assert found.known_items_share == 2 / 3
    with pytest.raises(EventsError, match="same type"):
        describe(SMALL, pl.DataFrame({"item_id": [1, 2]}))
    with pytest.raises(EventsError, match="item_id"):
        describe(SMALL, pl.DataFrame({"id": ["a"]}))


def test_time_is_that_of_the_formula() -> None:
    costs = replace(COSTS, dim=8, length=10, logits=50, epochs=3, inverses=2)
    each = 6 * (24 * 8 * 8 + 4 * 10 * 8 + 50 * 8)
    expected = (
        costs.fixed_seconds
        + 2 * 100**3 / costs.inverse_flops_per_second
        + 3 * 1000 * each / costs.flops_per_second
    )
    assert training_seconds(1000, 100, costs) == pytest.approx(expected)


def test_a_catalogue_too_large_for_an_inverse_costs_none() -> None:
    small, large = training_seconds(1000, 15_000), training_seconds(1000, 16_000)
    assert large < small
    assert training_bytes(1000, 16_000) < training_bytes(1000, 15_000)


def test_memory_is_that_of_the_larger_rung() -> None:
    costs = replace(COSTS, positions_per_batch=10, logits=50)
    rest = costs.fixed_bytes + 1000 * costs.bytes_per_event
    encoder = 100 * costs.dim * costs.bytes_per_parameter + 10 * 50 * costs.bytes_per_logit
    inverse = costs.inverse_bytes * 100**2
    assert inverse > encoder
    assert training_bytes(1000, 100, costs) == pytest.approx(rest + inverse)
    assert training_bytes(1000, 100, replace(costs, inverse_bytes=1.0)) == pytest.approx(rest + encoder)


def test_events_bring_their_own_items_file() -> None:
    events = replace(read_events(SMALL), items=pl.DataFrame({"item_id": ["a"]}))
    assert describe(events).known_items_share == pytest.approx(1 / 3)


def test_the_dictionary_is_json() -> None:
    found = json.loads(json.dumps(describe(SMALL).to_dict(), allow_nan=False))
    assert found["events"] == 5
    assert found["suggested_repeats"] == "forbid"


@pytest.mark.parametrize(
    "frame",
    [
        SMALL.drop("user_id"),
        SMALL.drop("item_id"),
        SMALL.head(0),
        pl.DataFrame(),
    ],
)
def test_bad_frames_are_refused(frame: Any) -> None:
    with pytest.raises(EventsError) as error:
        describe(frame)
    assert "\n" not in str(error.value)


def test_movielens_is_enough_and_comes_in_bursts() -> None:
    frame = pl.read_parquet(shared("ml-1m/events.parquet"))
    found = describe(frame.with_columns(pl.from_epoch("timestamp", "s").cast(pl.Datetime("ms"))))
    assert (found.events, found.users, found.items) == (1_000_209, 6_040, 3_706)
    assert found.enough
    assert found.suggested_repeats == "forbid"
    assert found.burst_rate is not None
    assert found.burst_rate > 0.5  # ratings were entered page by page
