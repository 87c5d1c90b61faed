from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootbeam.core.errors import ConfigError
from rootbeam.core.types import Log
from rootbeam.learn.popularity import decay_counts, log_recent, recent_counts

DAY = 24 * 60 * 60 * 1000
HALF_LIVES = st.sampled_from([0.5, 3.0, 30.0, math.inf])


def make_log(events: list[tuple[int, int, float]], n_items: int, timed: bool = True) -> Log:
    """A log of one user from (item, time, weight)."""
    items, times, weights = zip(*sorted(events, key=lambda event: event[1]), strict=True)
    return Log(
        np.array(items, dtype=np.int32),
        np.array(times, dtype=np.int64),
        np.array(weights, dtype=np.float32),
        np.array([0, len(events)], dtype=np.int64),
        n_items,
        timed,
    )


events = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 100 * DAY), st.sampled_from([0.5, 1.0, 2.0, 5.0])),
    min_size=1,
    max_size=30,
)


def test_counts_are_the_formula_worked_by_hand() -> None:
    log = make_log([(0, 0, 1.0), (0, 7 * DAY, 2.0), (2, 10 * DAY, 1.0)], n_items=4)
    counts = recent_counts(log, now=10 * DAY, half_life_days=5.0)
    expected = [math.pow(2, -10 / 5) + 2 * math.pow(2, -3 / 5), 0.0, 1.0, 0.0]
    assert counts.dtype == np.float64
    assert counts == pytest.approx(expected, rel=1e-12)


def test_one_half_life_halves() -> None:
    log = make_log([(0, 0, 1.0)], n_items=1)
    assert recent_counts(log, now=3 * DAY, half_life_days=3.0)[0] == pytest.approx(0.5)


@given(events, st.integers(0, 100 * DAY))
def test_an_infinite_half_life_sums_the_weights_of_the_past(rows: list, now: int) -> None:
    counts = recent_counts(make_log(rows, 5), now, math.inf)
    for item in range(5):
        assert counts[item] == sum(w for i, t, w in rows if i == item and t <= now)


@given(events, st.integers(0, 100 * DAY), HALF_LIVES)
def test_what_happens_after_now_changes_nothing(rows: list, now: int, half_life: float) -> None:
    past = [row for row in rows if row[1] <= now]
    whole = recent_counts(make_log(rows, 5), now, half_life)
    if past:
        np.testing.assert_array_equal(whole, recent_counts(make_log(past, 5), now, half_life))
    else:
        assert not whole.any()


def test_an_event_at_now_counts_in_full_and_one_a_millisecond_later_not_at_all() -> None:
    log = make_log([(0, 1000, 1.0), (1, 1001, 1.0)], n_items=2)
    assert recent_counts(log, now=1000, half_life_days=1.0).tolist() == [1.0, 0.0]


@given(events, st.integers(0, 100 * DAY), st.integers(0, 50 * DAY), HALF_LIVES)
def test_decaying_and_adding_equals_counting_again(
    rows: list, now: int, elapsed: int, half_life: float
) -> None:
    log = make_log(rows, 5)
    counts = decay_counts(recent_counts(log, now, half_life), elapsed, half_life)
    for item, time, weight in rows:
        if now < time <= now + elapsed:
            counts[item] += weight * 2 ** (-(now + elapsed - time) / (half_life * DAY))
    np.testing.assert_allclose(recent_counts(log, now + elapsed, half_life), counts, rtol=1e-9, atol=1e-12)


def test_decay_leaves_its_argument_alone() -> None:
    counts = np.array([4.0, 2.0])
    assert decay_counts(counts, 2 * DAY, 1.0).tolist() == [1.0, 0.5]
    assert counts.tolist() == [4.0, 2.0]


def test_an_untimed_log_counts_everything_whatever_now_is() -> None:
    log = make_log([(0, 0, 1.0), (1, 1, 2.0), (1, 2, 2.0)], n_items=2, timed=False)
    assert recent_counts(log, now=-1, half_life_days=math.inf).tolist() == [1.0, 4.0]


def test_an_untimed_log_refuses_a_half_life() -> None:
    log = make_log([(0, 0, 1.0)], n_items=1, timed=False)
    with pytest.raises(ConfigError, match="timestamps"):
        recent_counts(log, now=0, half_life_days=7.0)


@pytest.mark.parametrize("half_life", [0.0, -1.0, math.nan, -math.inf])
@pytest.mark.parametrize("timed", [True, False])
def test_a_half_life_must_be_positive(half_life: float, timed: bool) -> None:
    with pytest.raises(ConfigError, match="half_life_days"):
        recent_counts(make_log([(0, 0, 1.0)], 1, timed), 0, half_life)
    with pytest.raises(ConfigError, match="half_life_days"):
        decay_counts(np.ones(1), 0, half_life)


def test_counts_cannot_be_made_younger() -> None:
    with pytest.raises(ConfigError, match="negative"):
        decay_counts(np.ones(2), -1, 7.0)


def test_an_empty_log_counts_zero() -> None:
    empty = Log(
        np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(1, np.int64), 3
    )
    for half_life in (1.0, math.inf):
        counts = recent_counts(empty, 0, half_life)
        assert counts.dtype == np.float64
        assert counts.tolist() == [0.0, 0.0, 0.0]


def test_log_recent_is_its_formula() -> None:
    counts = np.array([0.0, 1.0, 5.0])  # the mean is 2, a tenth of it 0.2
    expected = [0.0, math.log(1 + 1 / 0.2), math.log(1 + 5 / 0.2)]
    assert log_recent(counts).dtype == np.float32
    assert log_recent(counts).tolist() == pytest.approx(expected, rel=1e-6)


@given(st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=20))
def test_log_recent_is_finite_and_keeps_the_order(values: list[float]) -> None:
    counts = np.array(values)
    logs = log_recent(counts)
    assert np.isfinite(logs).all()
    assert (logs[counts == 0] == 0).all()
    assert (np.diff(logs[np.argsort(counts, kind="stable")]) >= 0).all()


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=20), st.sampled_from([1e-12, 0.25, 3.0, 1e9]))
def test_log_recent_does_not_feel_the_scale(values: list[int], scale: float) -> None:
    counts = np.array(values, dtype=np.float64)
    np.testing.assert_allclose(log_recent(counts * scale), log_recent(counts), rtol=1e-5)


@pytest.mark.parametrize("counts", [np.zeros(3), np.zeros(0)])
def test_log_recent_of_nothing_is_zero(counts: np.ndarray) -> None:
    assert log_recent(counts).tolist() == [0.0] * len(counts)


@pytest.mark.parametrize("tiny", [5e-324, 1e-310, 1e-300])
def test_log_recent_survives_counts_that_have_almost_decayed_away(tiny: float) -> None:
    logs = log_recent(np.array([0.0, tiny, 8 * tiny]))
    assert np.isfinite(logs).all()
    assert logs[0] == 0
    assert logs[2] > logs[1] > 0 or tiny == 5e-324
