"""Bootstrap intervals against what theory says about them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rootbeam import intervals
from rootbeam.core.errors import InputError
from rootbeam.intervals import mean_interval, paired_difference


def test_the_interval_has_the_width_of_normal_theory() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, size=2000)
    found = mean_interval(values, draws=4000)
    half = 1.96 * values.std() / math.sqrt(2000)
    # A 2.5 % quantile of 4,000 draws has a standard error of about 4.2 % of half the width.
    assert found.mean == pytest.approx(values.mean())
    assert found.high - found.mean == pytest.approx(half, rel=0.15)
    assert found.mean - found.low == pytest.approx(half, rel=0.15)
    assert found.n == 2000


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("kind", ["normal", "hit"])
def test_the_interval_covers_the_truth_as_often_as_it_says(level: float, kind: str) -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(400):
        values = rng.normal(1.0, 1.0, 200) if kind == "normal" else (rng.random(200) < 0.3).astype(float)
        truth = 1.0 if kind == "normal" else 0.3
        found = mean_interval(values, level=level, draws=400, seed=trial)
        covered += found.low <= truth <= found.high
    # Three standard errors of a share of 400 trials, plus .015 for the percentile method at n = 200.
    assert covered / 400 == pytest.approx(level, abs=3 * math.sqrt(level * (1 - level) / 400) + 0.015)


def test_few_and_many_distinct_values_are_resampled_alike() -> None:
    """The same values, once drawn by counts, once (told apart by a hair) one by one."""
    hit = (np.random.default_rng(5).random(3000) < 0.2).astype(float)
    by_count = mean_interval(hit, draws=4000)
    by_value = mean_interval(hit + np.linspace(0, 1e-9, 3000), draws=4000)
    width = by_value.high - by_value.low
    assert by_count.low == pytest.approx(by_value.low, abs=0.08 * width)
    assert by_count.high == pytest.approx(by_value.high, abs=0.08 * width)


def test_chunks_bound_the_memory_and_keep_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=500)
    whole = mean_interval(values, draws=2000)
    monkeypatch.setattr(intervals, "_CELLS_AT_ONCE", 1700)
    chunked = mean_interval(values, draws=2000)
    assert chunked.low == pytest.approx(whole.low, abs=0.1 * (whole.high - whole.low))


def test_no_difference_gives_p_values_spread_evenly() -> None:
    rng = np.random.default_rng(2)
    p_values = []
    for trial in range(400):
        shared = rng.normal(size=150)
        a, b = shared + rng.normal(size=150) * 0.1, shared + rng.normal(size=150) * 0.1
        p_values.append(paired_difference(a, b, draws=400, seed=trial).p_value)
    for level in (0.05, 0.2, 0.5):
        share = np.mean(np.array(p_values) <= level)
        assert share == pytest.approx(level, abs=3 * math.sqrt(level * (1 - level) / 400) + 0.02)


def test_pairing_finds_what_the_separate_intervals_cannot() -> None:
    rng = np.random.default_rng(3)
    shared = rng.normal(size=500)
    a, b = shared + 0.05 + rng.normal(size=500) * 0.1, shared + rng.normal(size=500) * 0.1
    assert mean_interval(b).high > mean_interval(a).low
    found = paired_difference(a, b)
    assert found.low > 0
    assert found.p_value == pytest.approx(2 / 1001)  # no draw out of 1,000 fell below 0
    assert found.mean == pytest.approx((a - b).mean())


def test_swapping_the_two_turns_the_difference_around() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.normal(0.2, 1, 300), rng.normal(size=300)
    straight, turned = paired_difference(a, b, draws=4000), paired_difference(b, a, draws=4000)
    width = straight.high - straight.low
    assert turned.mean == pytest.approx(-straight.mean)
    assert turned.low == pytest.approx(-straight.high, abs=0.1 * width)


def test_equal_systems_are_never_different() -> None:
    values = np.random.default_rng(0).random(50)
    found = paired_difference(values, values)
    assert (found.mean, found.low, found.high, found.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_users_with_nan_take_no_part() -> None:
    values = np.array([0.1, 0.5, 0.9, 0.3])
    assert mean_interval([0.1, math.nan, 0.5, 0.9, math.nan, 0.3]) == mean_interval(values)
    found = paired_difference([1.0, math.nan, 2.0], [0.5, 1.0, math.nan])
    assert (found.n, found.mean) == (1, 0.5)


def test_nobody_gives_nan_and_json_null() -> None:
    for nothing in (mean_interval([]), mean_interval([math.nan]), paired_difference([], [])):
        assert nothing.n == 0
        assert math.isnan(nothing.mean)
        assert nothing.to_dict()["mean"] is None
        json.dumps(nothing.to_dict(), allow_nan=False)
    assert paired_difference([], []).to_dict()["p_value"] is None


def test_one_user_is_a_point_and_no_evidence() -> None:
    assert mean_interval([0.1]).to_dict() == {"mean": 0.1, "low": 0.1, "high": 0.1, "n": 1}
    assert paired_difference([0.5], [0.2]).p_value == 1.0


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.randoms())
def test_order_does_not_matter_and_the_ends_lie_around_the_mean(values: list[float], random: Any) -> None:
    found = mean_interval(values, draws=50)
    shuffled = values[:]
    random.shuffle(shuffled)
    assert mean_interval(shuffled, draws=50) == found
    assert min(values) - 1e-12 <= found.low <= found.mean <= found.high <= max(values) + 1e-12


def test_the_seed_decides() -> None:
    values = np.random.default_rng(0).random(100)
    assert mean_interval(values, seed=1) == mean_interval(values, seed=1)
    assert mean_interval(values, seed=1) != mean_interval(values, seed=2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: mean_interval([0.1, 0.2], level=0),
        lambda: mean_interval([0.1, 0.2], level=95),
        lambda: mean_interval([0.1, 0.2], draws=0),
        lambda: mean_interval([[0.1, 0.2]]),
        lambda: mean_interval([math.inf, 0.2]),
        lambda: paired_difference([1.0, 2.0], [1.0]),
    ],
)
def test_bad_settings_are_refused(call: Any) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)
