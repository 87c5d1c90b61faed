"""Draws: their proposals by frequency, and the exact properties of counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rootbeam.core.errors import ConfigError, InputError
from rootbeam.learn import samplers


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_log_popularity_counts_an_unseen_item_once() -> None:
    got = samplers.log_popularity(torch.tensor([6, 0, 1, 2]))
    expected = [math.log(6 / 10), math.log(1 / 10), math.log(1 / 10), math.log(2 / 10)]
    torch.testing.assert_close(got, torch.tensor(expected), rtol=1e-6, atol=0)


def test_uniform_items_are_uniform_and_say_so() -> None:
    items, log_q = samplers.uniform_items((40_000, 2), 5, generator())
    assert items.shape == log_q.shape == (40_000, 2)
    torch.testing.assert_close(log_q, torch.full((40_000, 2), -math.log(5)))
    shares = torch.bincount(items.flatten(), minlength=5) / 80_000
    tolerance = 5 * math.sqrt(0.2 * 0.8 / 80_000)  # five standard deviations
    assert (shares - 0.2).abs().max() < tolerance


@pytest.mark.parametrize("power", [1.0, 0.75])
def test_popularity_items_follow_their_log_q(power: float) -> None:
    counts = [50, 1, 9, 0, 40]
    clamped = [max(c, 1) ** power for c in counts]
    q = torch.tensor([c / sum(clamped) for c in clamped])
    log_p = samplers.log_popularity(torch.tensor(counts))
    items, log_q = samplers.popularity_items((80_000,), power * log_p, generator())
    torch.testing.assert_close(log_q, q[items].log(), rtol=1e-5, atol=1e-5)
    shares = torch.bincount(items, minlength=5) / 80_000
    assert ((shares - q).abs() < 5 * (q * (1 - q) / 80_000).sqrt()).all()


def test_popularity_items_never_draw_probability_zero() -> None:
    log_p = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
    items, _ = samplers.popularity_items((10_000,), log_p, generator())
    assert set(items.tolist()) == {1, 3}


def test_in_batch_weights_by_value() -> None:
    scores = torch.tensor([[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    log_p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    mask = torch.tensor([[False, False, True], [False, False, False]])
    top = [math.exp(0.5) / 0.2, math.exp(-1.0) / 0.5, 0.0]
    low = [1 / 0.2, 1 / 0.5, 1 / 0.3]
    expected = torch.tensor([[v / sum(row) for v in row] for row in (top, low)], dtype=torch.float64)
    got = samplers.in_batch_weights(scores, log_p, mask)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_in_batch_weights_of_a_row_without_columns_are_zero() -> None:
    weights = samplers.in_batch_weights(torch.randn(2, 3), torch.zeros(3), torch.ones(2, 3, dtype=torch.bool))
    assert torch.equal(weights, torch.zeros(2, 3))


def exact_expectation(weights: list[Fraction], draws: int) -> list[Fraction]:
    """E count_j over u ~ U[0, 1), exactly: counts only change where some m C_j − u crosses an integer,
    so they are constant between the fractional parts of the m C_j; each piece is tried in its middle."""
    total = sum(weights, Fraction(0))
    shares = [sum(weights[: j + 1], Fraction(0)) / total for j in range(len(weights))]
    breaks = sorted({Fraction(0), Fraction(1)} | {draws * c % 1 for c in shares})
    pieces = list(itertools.pairwise(breaks))
    uniforms = torch.tensor([float((a + b) / 2) for a, b in pieces], dtype=torch.float64)
    table = torch.tensor([[float(w) for w in weights]], dtype=torch.float64).expand(len(pieces), -1)
    counts = samplers.systematic_counts(table, draws, uniforms)  # (pieces, columns)
    return [
        sum(((b - a) * int(counts[r, j]) for r, (a, b) in enumerate(pieces)), Fraction(0))
        for j in range(len(weights))
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 12))
def test_systematic_counts_have_exactly_the_right_expectation(weights: list[int], draws: int) -> None:
    if sum(weights) == 0:
        weights[0] = 1
    expected = [Fraction(draws * w, sum(weights)) for w in weights]
    assert exact_expectation([Fraction(w) for w in weights], draws) == expected


def random_weights(seed: int, rows: int, columns: int, sharpness: float, dtype: torch.dtype) -> Tensor:
    weights = (torch.randn(rows, columns, generator=generator(seed), dtype=dtype) * sharpness).exp()
    return weights * (torch.rand(rows, columns, generator=generator(seed + 1)) > 0.3)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    columns=st.integers(1, 300),
    draws=st.integers(1, 5000),
    sharpness=st.sampled_from([0.0, 1.0, 8.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    draw=st.sampled_from([samplers.resample_systematic, samplers.resample_independent]),
)
def test_counts_are_whole_and_add_up(
    seed: int,
    columns: int,
    draws: int,
    sharpness: float,
    dtype: torch.dtype,
    draw: Callable[[Tensor, int, torch.Generator], Tensor],
) -> None:
    weights = random_weights(seed, 3, columns, sharpness, dtype)
    before = weights.clone()
    counts = draw(weights, draws, generator(seed))
    assert torch.equal(weights, before)
    assert counts.dtype == dtype
    assert torch.equal(counts, counts.round())
    assert (counts >= 0).all()
    assert (counts[weights == 0] == 0).all()
    total = torch.where(weights.sum(1) > 0, float(draws), 0.0).to(dtype)
    assert torch.equal(counts.sum(1), total)


@pytest.mark.parametrize("uniform", [0.0, 1e-12, 0.5, 1 - 2**-24, 1 - 2**-53])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ends_of_the_unit_interval_lose_no_draw(uniform: float, dtype: torch.dtype) -> None:
    """At 8,192 draws m − u rounds to m − 1 or m in float32; trailing zeros must not catch the last draw."""
    weights = random_weights(5, 1, 8192, 3.0, dtype)
    weights[0, :3] = 0
    weights[0, -5:] = 0
    counts = samplers.systematic_counts(weights, 8192, torch.tensor([uniform], dtype=dtype))
    assert counts.sum() == 8192
    assert (counts >= 0).all()
    assert (counts[weights == 0] == 0).all()


@pytest.mark.parametrize(("dtype", "slack"), [(torch.float32, 2e-3), (torch.float64, 1e-9)])
def test_systematic_counts_are_within_one_of_their_expectation(dtype: torch.dtype, slack: float) -> None:
    """`slack`: the rounding of C_j, and of m C_j − u ≤ 4,096, on both sides of a difference."""
    weights = random_weights(3, 4, 4096, 1.0, dtype)
    expected = 4096 * weights.double() / weights.double().sum(1, keepdim=True)
    counts = samplers.resample_systematic(weights, 4096, generator())
    assert (counts.double() - expected).abs().max() < 1 + slack


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
@pytest.mark.parametrize("place", ["first", "last", "all"])
def test_extreme_uniforms_are_still_independent_draws(
    uniform: float, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spacing of 0 (at the ends, a uniform of 0 or 1) draws no column of weight 0 and loses no draw."""

    def rand(shape: tuple[int, int], **kwargs: object) -> Tensor:
        table = torch.full(shape, 0.5)
        table[:, {"first": slice(0, 1), "last": slice(-1, None), "all": slice(None)}[place]] = uniform
        return table

    monkeypatch.setattr(torch, "rand", rand)
    weights = torch.tensor([[0.0, 1.0, 2.0, 0.0, 1.0, 0.0]])
    counts = samplers.resample_independent(weights, 3000, generator())
    assert counts.sum() == 3000
    assert (counts[weights == 0] == 0).all()


def test_a_uniform_of_zero_is_no_item_of_probability_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **kwargs: torch.zeros(shape, dtype=torch.float64))
    items, _ = samplers.popularity_items((2,), torch.tensor([-math.inf, 0.0]), generator())
    assert items.tolist() == [1, 1]


def test_independent_counts_are_multinomial() -> None:
    """Mean m w_j, variance m w_j (1 − w_j), covariance −m w_j w_k, over 20,000 rows; five standard errors."""
    w = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
    rows, draws = 20_000, 4
    counts = samplers.resample_independent((w * 7).expand(rows, -1), draws, generator())
    torch.testing.assert_close(counts.mean(0), draws * w, rtol=0, atol=5 * math.sqrt(draws / 4 / rows))
    covariance = torch.cov(counts.T)
    expected = draws * (torch.diag(w) - w[:, None] * w[None, :])
    torch.testing.assert_close(covariance, expected, rtol=0, atol=5 * draws / math.sqrt(rows))


def test_systematic_counts_vary_by_at_most_a_quarter() -> None:
    weights = torch.rand(6, generator=generator(2), dtype=torch.float64)
    grid = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    counts = samplers.systematic_counts(weights.expand(1000, -1), 6, grid)
    assert (counts.var(0, correction=0) <= 0.25 + 1e-9).all()
    assert (counts.mean(0) - 6 * weights / weights.sum()).abs().max() <= 1 / 1000 + 1e-9


def test_sums_of_a_parallel_scan_are_put_in_order() -> None:
    """What a GPU may return: a sum that falls by a rounding error, and one that moves over a weight of 0."""
    weights = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0]])
    sums = torch.tensor([[1e-7, 1.0, 1.0000001, 0.9999999, 2.0000002]])
    expected = torch.tensor([[0.0, 1.0, 1.0, 1.0, 1.0]])
    assert torch.equal(samplers._in_order(sums, weights), expected)


@pytest.mark.parametrize("draws", ["systematic", "independent"])
def test_the_same_seed_draws_the_same(draws: samplers.Draws) -> None:
    weights = random_weights(1, 3, 20, 1.0, torch.float32)
    first = samplers.resample(weights, 9, draws, generator(4))
    assert torch.equal(first, samplers.resample(weights, 9, draws, generator(4)))
    assert not torch.equal(first, samplers.resample(weights, 9, draws, generator(5)))


ONES = torch.ones(1, 2)
BAD_CALLS: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "negative count": (InputError, "negative", lambda: samplers.log_popularity(torch.tensor([1, -1]))),
    "no items": (InputError, "0 items", lambda: samplers.uniform_items((3,), 0, generator())),
    "no draws": (InputError, "0 draws", lambda: samplers.resample_systematic(ONES, 0, generator())),
    "too many draws": (
        InputError,
        "2097152 draws",
        lambda: samplers.resample_independent(ONES, 1 << 21, generator()),
    ),
    "one dimension": (
        InputError,
        r"shape \(2,\)",
        lambda: samplers.resample_systematic(torch.ones(2), 1, generator()),
    ),
    "no columns": (
        InputError,
        r"shape \(2, 0\)",
        lambda: samplers.resample_independent(torch.ones(2, 0), 1, generator()),
    ),
    "unknown draws": (
        ConfigError,
        "draws is 'alias'",
        lambda: samplers.resample(ONES, 1, "alias", generator()),  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_say_what_was_given(name: str) -> None:
    error, message, call = BAD_CALLS[name]
    with pytest.raises(error, match=message):
        call()
