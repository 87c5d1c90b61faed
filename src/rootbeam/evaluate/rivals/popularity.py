"""Popularity as a rival: the same list for everybody, of all time or of late."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from rootbeam.core.types import Float64, Histories, Log
from rootbeam.data.history import distinct
from rootbeam.evaluate.rivals.rival import Choice, LogUniform, Params, Rival, Scores
from rootbeam.learn.popularity import recent_counts


def all_time() -> Rival:
    """How often an item was ever used, by events or by distinct users."""
    return Rival("popularity", {"count": Choice(("events", "users"), default="events")}, _fit_all_time)


def recent() -> Rival:
    """Event counts that halve every `half_life_days`, as of the last event of the log. Needs timestamps."""
    half_life = LogUniform(0.1, 1000.0, default=14.0)
    return Rival("recent popularity", {"half_life_days": half_life}, _fit_recent)


def _fit_all_time(log: Log, params: Params, seed: int) -> Scores:
    if params["count"] == "users":
        users = np.bincount(distinct(log.sequences()).values, minlength=log.n_items)
        return _same_for_all(users.astype(np.float64))
    return _same_for_all(recent_counts(log, _last_event(log), math.inf))


def _fit_recent(log: Log, params: Params, seed: int) -> Scores:
    return _same_for_all(recent_counts(log, _last_event(log), params["half_life_days"]))


def _last_event(log: Log) -> int:
    return int(log.times.max(initial=0))


def _same_for_all(counts: Float64) -> Scores:
    def scores(histories: Histories) -> npt.NDArray[np.float64]:
        return np.broadcast_to(counts, (len(histories), len(counts)))

    return scores
