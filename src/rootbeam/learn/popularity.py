"""Recent popularity: event counts that halve every `half_life_days`.

An infinite half-life gives all-time popularity. The ladder adds `b · log_recent(counts)` to what a
model says, so counts must become finite numbers for items that nobody has touched yet.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from rootbeam.core.errors import ConfigError
from rootbeam.core.types import Float32, Float64, Int32, Log

DAY_MS = 86_400_000
SMOOTHING = 0.1  # the pseudo-count every item is given, as a share of the mean count


def recent_counts(log: Log, now: int, half_life_days: float) -> Float64:
    """Σ over the events of an item with time ≤ now of weight · 2^(−(now − time) / half-life), (items,).

    `now` is in milliseconds; events after it are ignored, so that a count "as of" some moment never
    sees the future. An untimed log has no age: it takes half_life_days = inf alone, and all its
    events count. (A `now` more than a thousand half-lives after the last event leaves only zeros.)
    """
    _check_half_life(half_life_days)
    if not log.timed:
        if math.isfinite(half_life_days):
            raise ConfigError(
                f"half_life_days={half_life_days:g} needs timestamps and this log has none: "
                "use half_life_days=inf, or give the events a timestamp column"
            )
        return _sum_by_item(log.items, log.weights, log.n_items)
    past = log.times <= now
    decayed = log.weights[past] * _decay(now - log.times[past], half_life_days)  # (past events,)
    return _sum_by_item(log.items[past], decayed, log.n_items)


def decay_counts(counts: Float64, elapsed_ms: int, half_life_days: float) -> Float64:
    """The same counts `elapsed_ms` later: counts · 2^(−elapsed / half-life), (items,).

    Add the weight of each new event to it and it equals `recent_counts` over the longer log.
    """
    _check_half_life(half_life_days)
    if elapsed_ms < 0:
        raise ConfigError(
            f"elapsed_ms={elapsed_ms} is negative and counts cannot be made younger: "
            "pass the milliseconds since the counts were made"
        )
    return counts * _decay(np.asarray(elapsed_ms), half_life_days)


def log_recent(counts: Float64) -> Float32:
    """log(1 + counts / s) with s = SMOOTHING · mean(counts), (items,); 0 where the count is 0.

    Up to a constant it is log(counts + s), the log of each item's smoothed share: finite, and in the order
    of the counts. s follows the mean because a fixed pseudo-count of 1 would drown every difference once
    a short half-life has shrunk the counts; so the result does not change when all weights are scaled, or
    while time passes without events. No counts at all give zeros.
    """
    mean = float(counts.mean()) if len(counts) else 0.0
    if mean == 0.0:
        return np.zeros(len(counts), dtype=np.float32)
    share = counts / mean  # divided first: SMOOTHING · mean may underflow when the mean does not
    return np.log1p(share / SMOOTHING).astype(np.float32)


def _sum_by_item(items: Int32, amounts: npt.NDArray[Any], n_items: int) -> Float64:
    return np.bincount(items, weights=amounts, minlength=n_items).astype(np.float64)


def _decay(age_ms: npt.NDArray[Any], half_life_days: float) -> Float64:
    """2^(−age / half-life); exactly 1 for an infinite half-life."""
    return np.exp2(-np.asarray(age_ms, dtype=np.float64) / (half_life_days * DAY_MS))


def _check_half_life(half_life_days: float) -> None:
    if not half_life_days > 0:
        raise ConfigError(
            f"half_life_days={half_life_days:g} must be positive: give a number of days, or inf for all time"
        )
