"""What a rival is: a name, what can be tuned, and a function from a log to scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rootbeam.core.errors import ConfigError, InputError
from rootbeam.core.types import PADDING, Histories, Int32, Log
from rootbeam.learn.popularity import recent_counts

Params = dict[str, Any]
Scores = Callable[[Histories], npt.NDArray[Any]]  # histories -> (batch, items), higher is better
Fit = Callable[[Log, Params, int], Scores]  # log, params, seed

BATCH = 512


@dataclass(frozen=True)
class Uniform:
    """A number anywhere from low to high."""

    low: float
    high: float
    default: float

    def draw(self, rng: np.random.Generator) -> float:
        return float(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class LogUniform:
    """A number from low to high whose logarithm is uniform."""

    low: float
    high: float
    default: float

    def draw(self, rng: np.random.Generator) -> float:
        return float(np.exp(rng.uniform(math.log(self.low), math.log(self.high))))


@dataclass(frozen=True)
class Integers:
    """A whole number from low to high, both included."""

    low: int
    high: int
    default: int

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high, endpoint=True))


@dataclass(frozen=True)
class LogIntegers:
    """A whole number from low to high, both included, whose logarithm is about uniform."""

    low: int
    high: int
    default: int

    def draw(self, rng: np.random.Generator) -> int:
        drawn = np.exp(rng.uniform(math.log(self.low), math.log(self.high + 1)))
        return min(int(drawn), self.high)


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    values: tuple[Any, ...]
    default: Any

    def draw(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]


Range = Uniform | LogUniform | Integers | LogIntegers | Choice


@dataclass(frozen=True)
class Rival:
    """Something the result is compared with. `fit` sees a log and nothing else."""

    name: str
    space: Mapping[str, Range]
    fit: Fit

    def defaults(self) -> Params:
        return {name: choice.default for name, choice in self.space.items()}

    def draw(self, rng: np.random.Generator) -> Params:
        return {name: choice.draw(rng) for name, choice in self.space.items()}


def popular_without_history(scores: Scores, log: Log) -> Scores:
    """The same scores, but all-time popularity where there is no history to say anything from."""
    counts = recent_counts(log, int(log.times.max(initial=0)), math.inf)

    def scores_or_popularity(histories: Histories) -> npt.NDArray[Any]:
        known = histories.seen.lengths() > 0
        return np.where(known[:, None], scores(histories), counts)

    return scores_or_popularity


def top_k(scores: Scores, histories: Histories, k: int, exclude_seen: bool) -> Int32:
    """(users, k) the best items of every user, best first, padded with -1; ties go to the lower id."""
    if k < 1:
        raise ConfigError(f"k={k} is too small: ask for at least 1 item")
    ranked = np.full((len(histories), k), PADDING, dtype=np.int32)
    for first in range(0, len(histories), BATCH):
        batch = histories.take(np.arange(first, min(first + BATCH, len(histories))))
        table = np.array(scores(batch))  # (batch, items); a copy, for it is written to
        if np.isnan(table).any():
            raise InputError("the scores hold NaN and cannot be ranked: check the parameters of the fit")
        if exclude_seen:
            rows, items = batch.seen.row_of_value(), batch.seen.values
            known = items < table.shape[1]
            table[rows[known], items[known]] = -np.inf
        ranked[first : first + BATCH] = best_items(table, k)
    return ranked


def best_items(scores: npt.NDArray[Any], k: int) -> Int32:
    """(batch, k) of scores (batch, items), by selection instead of sorting; −inf is never ranked.

    The same as `metrics.rank_items`, at a cost that does not sort the catalogue.
    """
    batch, n_items = scores.shape
    ranked = np.full((batch, k), PADDING, dtype=np.int32)
    wanted = min(k, n_items)
    if not batch or not wanted:
        return ranked
    last_in = np.partition(scores, n_items - wanted, axis=1)[:, n_items - wanted, None]  # (batch, 1)
    above = scores > last_in
    level = (scores == last_in) & (scores > -np.inf)
    room = wanted - above.sum(axis=1, keepdims=True)
    rows, items = np.nonzero(above | (level & (np.cumsum(level, axis=1) <= room)))
    order = np.lexsort((items, -scores[rows, items], rows))
    rows, items = rows[order], items[order]
    ranked[rows, np.arange(len(rows)) - np.searchsorted(rows, rows)] = items
    return ranked
