"""How sure a mean over users is: bootstrap intervals and paired comparisons, numpy alone.

NaN stands for a user who takes no part. The result depends on the values and the seed, not on the order of
the users.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from rootbeam.core.errors import ConfigError, InputError
from rootbeam.core.types import Float64

_CELLS_AT_ONCE = 4_000_000  # resampled values held at once: 32 MB of indices, 32 MB of values


@dataclass(frozen=True)
class Interval:
    """A mean over `n` users and the ends of its interval; all NaN when n = 0."""

    mean: float
    low: float
    high: float
    n: int

    def to_dict(self) -> dict[str, float | int | None]:
        """For JSON, which has no NaN: None instead."""
        return _without_nan(asdict(self))


@dataclass(frozen=True)
class Difference:
    """The mean of a - b over users, its interval, and the two-sided p-value of "no difference"."""

    mean: float
    low: float
    high: float
    p_value: float
    n: int

    def to_dict(self) -> dict[str, float | int | None]:
        """For JSON, which has no NaN: None instead."""
        return _without_nan(asdict(self))


def mean_interval(
    values: npt.ArrayLike, *, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> Interval:
    """The mean of `values` (users,) with its percentile bootstrap interval over users."""
    used = _used(values)
    if not len(used):
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = float(used.mean())
    low, high = _percentiles(_bootstrap_means(used, draws, seed), level)
    return Interval(mean, min(low, mean), max(high, mean), len(used))


def paired_difference(
    a: npt.ArrayLike, b: npt.ArrayLike, *, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> Difference:
    """The mean of a - b over the users who have both, with its paired bootstrap interval and p-value.

    p = 2 · (1 + the smaller of the numbers of resampled means ≤ 0 and ≥ 0) ÷ (draws + 1), at most 1: the
    level at which the percentile interval would just touch 0. One user alone is no evidence: p = 1.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise InputError(
            f"{first.shape} values against {second.shape}: a paired test needs the same users in both"
        )
    used = _used(first - second)
    if not len(used):
        return Difference(math.nan, math.nan, math.nan, math.nan, 0)
    mean = float(used.mean())
    means = _bootstrap_means(used, draws, seed)
    low, high = _percentiles(means, level)
    p_value = 2 * (1 + min(int((means <= 0).sum()), int((means >= 0).sum()))) / (draws + 1)
    if len(used) == 1:
        p_value = 1.0
    return Difference(mean, min(low, mean), max(high, mean), min(1.0, p_value), len(used))


def _bootstrap_means(used: Float64, draws: int, seed: int) -> Float64:
    """(draws,) means of samples of len(used) users with replacement."""
    if draws < 1:
        raise ConfigError(f"draws = {draws}: a bootstrap needs at least one draw (1000 is usual)")
    if used[0] == used[-1]:  # ascending: all the same, where rounding must not invent a spread
        return np.full(draws, used[0])
    rng = np.random.default_rng(seed)
    distinct, counts = np.unique(used, return_counts=True)
    means = np.empty(draws)
    # Many users share few values (hit@k has two): then drawing how often each value occurs is the same
    # bootstrap for a fraction of the numbers.
    few = len(distinct) * 8 <= len(used)
    step = max(1, _CELLS_AT_ONCE // (len(distinct) if few else len(used)))
    for start in range(0, draws, step):
        size = min(step, draws - start)
        if few:
            sample = rng.multinomial(len(used), counts / len(used), size=size)  # (size, distinct)
            means[start : start + size] = sample @ distinct / len(used)
        else:
            chosen = rng.integers(0, len(used), size=(size, len(used)))  # (size, users)
            means[start : start + size] = used[chosen].mean(axis=1)
    return means


def _percentiles(means: Float64, level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ConfigError(f"level = {level}: an interval's level lies between 0 and 1, as 0.95")
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _used(values: npt.ArrayLike) -> Float64:
    """The values that are not NaN, ascending, so that the order of users cannot matter."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise InputError(f"values of shape {array.shape}: needed one value per user, (users,)")
    used = np.sort(array[~np.isnan(array)])
    if len(used) and not np.isfinite(used[[0, -1]]).all():
        raise InputError("values hold an infinity: needed finite numbers, NaN for users who take no part")
    return used


def _without_nan(fields: dict[str, float | int]) -> dict[str, float | int | None]:
    return {name: None if math.isnan(value) else value for name, value in fields.items()}
