"""The protocol: users with labels get a list over the full catalogue; the metrics keep every user's value."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rootbeam import metrics
from rootbeam.core.types import Bool, Float64, Histories, Int32, Ragged
from rootbeam.evaluate.breakdown import breakdown
from rootbeam.intervals import Interval, mean_interval

METRICS = (
    "recall@10",
    "recall@20",
    "ndcg@10",
    "ndcg@20",
    "precision@10",
    "map@10",
    "mrr@10",
    "hit@10",
)
LATENCY_SAMPLES = 200

Retrieve = Callable[[Histories, int], Int32]  # (histories, k) -> (users, k), -1 where fewer exist


@dataclass(frozen=True)
class Evaluation:
    """Means with intervals, slices, and every user's values."""

    protocol: dict[str, Any]
    users: int
    excluded_users: int
    metrics: dict[str, Interval]
    slices: dict[str, dict[str, Any]]
    coverage: dict[str, float]
    retrieval: dict[str, Any]
    breakdown: dict[str, Any]  # by activity of users and popularity of items: evaluate/breakdown.py
    values: dict[str, Float64] = field(repr=False)  # (users,)
    rows: Int32 = field(repr=False)  # (users,) the rows of the labels these values belong to

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `rootbeam evaluate --json`."""
        return {
            "protocol": self.protocol,
            "users": self.users,
            "excluded_users": self.excluded_users,
            "metrics": {name: interval.to_dict() for name, interval in self.metrics.items()},
            "slices": self.slices,
            "coverage": self.coverage,
            "retrieval": self.retrieval,
            "breakdown": self.breakdown,
        }


def evaluate_lists(
    retrieve: Retrieve,
    histories: Histories,
    labels: Ragged,
    *,
    n_items: int,
    slices: Mapping[str, Bool],
    protocol: Mapping[str, Any],
    names: Sequence[str] = METRICS,
    retrieval: Mapping[str, Any] | None = None,
    popularity: Float64 | None = None,
    seed: int = 0,
) -> Evaluation:
    """Evaluates every row that has labels. `popularity` (items,): events before the labels.

    The headline holds the users with at least one event before their labels; users without any are
    answered by the fallback and stand in the slice `new_users` only.
    """
    has_labels = labels.lengths() > 0
    rows = np.flatnonzero(has_labels)
    depth = max(metrics.parse_name(name)[1] for name in names)
    ranked = retrieve(histories.take(rows), depth)
    values = metrics.compute(ranked, labels.take(rows), names)
    known = histories.events[rows] > 0
    of_known = {name: v[known] for name, v in values.items()}
    headline = {name: mean_interval(v, seed=seed) for name, v in of_known.items()}
    parts = breakdown(
        ranked[known],
        labels.take(rows[known]),
        of_known,
        histories.events[rows[known]],
        popularity,
        n_items,
        seed,
    )
    return Evaluation(
        protocol=dict(protocol),
        users=int(known.sum()),
        excluded_users=int((~has_labels).sum()),
        metrics=headline,
        slices={name: _slice(values, mask[rows], seed) for name, mask in slices.items()},
        coverage={
            f"coverage@{k}": metrics.coverage(ranked[known], n_items, k) for k in (10, 20) if k <= depth
        },
        retrieval=dict(retrieval or {}),
        breakdown=parts,
        values=of_known,
        rows=rows[known].astype(np.int32),
    )


def _slice(values: Mapping[str, Float64], mask: Bool, seed: int) -> dict[str, Any]:
    return {
        "users": int(mask.sum()),
        "metrics": {name: mean_interval(v[mask], seed=seed).to_dict() for name, v in values.items()},
    }


def activity_slices(histories: Histories, known_to_model: Bool) -> dict[str, Bool]:
    """new_users: not in the training events; the others inactive or active by the median of their events."""
    events = histories.events
    threshold = float(np.median(events[known_to_model])) if known_to_model.any() else 0.0
    return {
        "new_users": ~known_to_model,
        "inactive_users": known_to_model & (events <= threshold),
        "active_users": known_to_model & (events > threshold),
    }


def single_latency_ms(retrieve: Retrieve, histories: Histories, k: int, seed: int = 0) -> dict[str, float]:
    """p50 and p99 of one request for one user, in milliseconds."""
    if not len(histories):
        return {"p50": 0.0, "p99": 0.0}
    rows = np.random.default_rng(seed).integers(0, len(histories), LATENCY_SAMPLES)
    milliseconds = []
    for row in rows:
        one = histories.take(np.array([row]))
        start = time.perf_counter()
        retrieve(one, k)
        milliseconds.append(1000.0 * (time.perf_counter() - start))
    p50, p99 = np.percentile(milliseconds, (50, 99))
    return {"p50": round(float(p50), 4), "p99": round(float(p99), 4)}
