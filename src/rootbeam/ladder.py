"""The ladder: how a rung is blended with recency, judged on validation users, and chosen.

score = a · model(user, item) + b · log recent(item, now)
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from rootbeam import metrics
from rootbeam.core.config import LadderConfig
from rootbeam.core.files import Array
from rootbeam.core.types import ITEMS, Float32, Float64, Histories, Log, Ragged, Scorer
from rootbeam.data.history import replay_of
from rootbeam.intervals import paired_difference
from rootbeam.learn.popularity import DAY_MS, log_recent, recent_counts
from rootbeam.search.exact import SCORES_AT_ONCE, ExactRetriever, top_k
from rootbeam.search.filters import exclude_rows

SCALE_USERS = 512  # of whom the deviation of a model's scores is measured
TIMED_USERS = 128
LEAST_USERS = 200  # however large the catalogue
JUDGED_CELLS = 4_000_000_000  # users · items · blends; fewer users are judged where it would be more


@dataclass(frozen=True)
class Blend:
    """score = a · model + b · log recent, with counts that halve every `half_life_days`."""

    a: float
    b: float
    half_life_days: float

    def to_dict(self) -> dict[str, float | None]:
        """For JSON, which has no infinity: None instead."""
        half_life = None if math.isinf(self.half_life_days) else self.half_life_days
        return {"a": self.a, "b": self.b, "half_life_days": half_life}

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> Blend:
        half_life = plain["half_life_days"]
        return Blend(plain["a"], plain["b"], math.inf if half_life is None else half_life)


@dataclass(frozen=True)
class Judged:
    """A rung on the validation users."""

    name: str
    blend: Blend
    values: Float64  # (users,) the ladder's metric
    ms_per_user: float
    settings: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)

    @property
    def value(self) -> float:
        return float(np.nanmean(self.values)) if len(self.values) else math.nan


@dataclass(frozen=True)
class Judge:
    """The validation users: what they did before, what they did next, what may not be returned."""

    histories: Histories
    labels: Ragged
    exclude: Ragged | None
    log_priors: dict[float, Float32]  # half-life in days -> log recent, (items,)
    metric: str

    @property
    def depth(self) -> int:
        return metrics.parse_name(self.metric)[1]

    def first(self, users: int) -> Judge:
        """The same with at most so many users."""
        rows = np.arange(min(users, len(self.histories)))
        exclude = None if self.exclude is None else self.exclude.take(rows)
        return replace(
            self, histories=self.histories.take(rows), labels=self.labels.take(rows), exclude=exclude
        )

    def values(self, scorer: Scorer, blend: Blend) -> Float64:
        """(users,) the metric of a scorer under a blend."""
        prior = None if blend.b == 0.0 else np.float32(blend.b) * self.log_priors[blend.half_life_days]
        found = ExactRetriever(scorer, blend.a).retrieve(
            self.histories, self.depth, offset=prior, exclude=self.exclude
        )
        return metrics.compute(found.items, self.labels, (self.metric,))[self.metric]

    def tune(self, scorer: Scorer, weights: Sequence[float], scale: float) -> tuple[Blend, Float64]:
        """The best of all blends of the scorer and a prior; each user is scored once."""
        blends = [Blend(scale, 0.0, math.inf)] if 0.0 in weights else []
        blends += [Blend(scale, b, h) for h in self.log_priors for b in weights if b > 0]
        ranked = self._rank_under_all(scorer, blends)
        values = [metrics.compute(r, self.labels, (self.metric,))[self.metric] for r in ranked]
        best = max(range(len(blends)), key=lambda i: float(np.nanmean(values[i])))
        return blends[best], values[best]

    @torch.inference_mode()
    def _rank_under_all(self, scorer: Scorer, blends: Sequence[Blend]) -> list[Any]:
        ranked = [np.empty((len(self.histories), self.depth), dtype=np.int64) for _ in blends]
        block = max(1, SCORES_AT_ONCE // scorer.n_items)
        for start in range(0, len(self.histories), block):
            rows = np.arange(start, min(start + block, len(self.histories)))
            model = scorer.score(scorer.encode(self.histories.take(rows)), ITEMS, None) * blends[0].a
            if self.exclude is not None:
                exclude_rows(model, self.exclude.take(rows), None)
            for out, blend in zip(ranked, blends, strict=True):
                scores = model
                if blend.b > 0:
                    prior = torch.from_numpy(self.log_priors[blend.half_life_days]).to(model.device)
                    scores = model + blend.b * prior
                value, column = top_k(scores, self.depth)
                best = torch.where(torch.isneginf(value), -1, column).cpu().numpy()
                out[rows] = np.pad(best, ((0, 0), (0, self.depth - best.shape[1])), constant_values=-1)
        return ranked


def judge_of(
    log: Log,
    inputs: Log,
    labels: Ragged,
    now: int,
    config: LadderConfig,
    repeats: str,
    length: int,
    seed: int,
) -> Judge:
    """The users who have both inputs and labels, at most `max_users` of them, drawn by the seed."""
    usable = np.flatnonzero((labels.lengths() > 0) & (np.diff(inputs.user_ptr) > 0))
    priors = {h: log_recent(recent_counts(log, now, h)) for h in half_lives(log, config)}
    blends = len(priors) * len(config.recency_weights)
    most = min(config.max_users, affordable_users(JUDGED_CELLS, log.n_items * blends))
    if len(usable) > most:
        usable = np.sort(np.random.default_rng([seed, 10]).permutation(usable)[:most])
    histories = replay_of(inputs, usable, length)
    exclude = histories.seen if repeats == "forbid" else None
    return Judge(histories, labels.take(usable), exclude, priors, config.metric)


def affordable_users(cells: int, cells_per_user: int) -> int:
    return max(LEAST_USERS, cells // max(1, cells_per_user))


def half_lives(log: Log, config: LadderConfig) -> list[float]:
    """Those worth trying: none without times, none much longer than the log, always infinity."""
    if not log.timed or not log.n_events:
        return [math.inf]
    span_days = float(log.times.max() - log.times.min()) / DAY_MS
    return [*(h for h in config.half_lives_days if h <= 2 * span_days), math.inf]


@torch.inference_mode()
def unit_scale(scorer: Scorer, histories: Histories) -> float:
    """a such that a · model has deviation 1 over the items, on average over users."""
    rows = np.arange(min(SCALE_USERS, len(histories)))
    block = max(1, SCORES_AT_ONCE // scorer.n_items)
    parts = [rows[i : i + block] for i in range(0, len(rows), block)]
    deviations = [
        scorer.score(scorer.encode(histories.take(part)), ITEMS, None).std(dim=1, correction=0)
        for part in parts
    ]
    deviation = float(torch.cat(deviations).mean()) if deviations else 0.0
    return 1.0 / deviation if deviation > 0 else 1.0


def milliseconds_per_user(scorer: Scorer, histories: Histories, k: int) -> float:
    """Of a batch of users, the best of three."""
    rows = np.arange(min(TIMED_USERS, len(histories)))
    if not len(rows):
        return 0.0
    batch = histories.take(rows)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        ExactRetriever(scorer).retrieve(batch, k, exclude=batch.seen)
        seconds.append(time.perf_counter() - start)
    return 1000.0 * min(seconds) / len(rows)


def choose(rungs: Sequence[Judged], level: float) -> Judged:
    """The first rung (cheapest first) that is not significantly worse than the best; paired bootstrap."""
    best = max(rungs, key=lambda rung: rung.value)
    draws = max(1000, math.ceil(4 / (1.0 - level)))  # no p-value is below 2 / draws
    for rung in rungs:
        if rung is best:
            break
        found = paired_difference(rung.values, best.values, level=level, draws=draws)
        if found.p_value > 1.0 - level:
            return rung
    return best
