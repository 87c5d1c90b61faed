"""Tuning a rival on validation: every rival gets the same number of trials, and none sees test labels."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from rootbeam import metrics
from rootbeam.core.errors import ConfigError, InputError
from rootbeam.core.types import Histories, Log, Ragged
from rootbeam.evaluate.rivals.rival import Params, Rival, top_k


@dataclass(frozen=True)
class Trial:
    params: Params
    value: float  # the mean of the metric over the users that have labels
    seconds: float  # to fit and rank; 0 where the same params had been tried before


@dataclass(frozen=True)
class Tuned:
    """The best trial of one rival. Refit with its params on train and validation together before testing."""

    name: str
    params: Params
    value: float
    table: tuple[Trial, ...]  # every trial, in order; the first has the defaults


def tune_rival(
    rival: Rival,
    train_log: Log,
    histories: Histories,
    labels: Ragged,
    exclude_seen: bool,
    trials: int,
    seed: int,
    metric: str = "ndcg@10",
) -> Tuned:
    """Random search over rival.space: the defaults first, then trials − 1 draws; the first of equals wins.

    `histories` and `labels` are those of the validation users, row by row; users without labels are left out.
    """
    if trials < 1:
        raise ConfigError(f"trials={trials} is too small: give at least 1, which tries the defaults")
    if len(histories) != len(labels):
        raise InputError(f"{len(histories)} histories for {len(labels)} users' labels: give one row per user")
    metrics.parse_name(metric)
    with_labels = np.flatnonzero(labels.lengths() > 0)
    if not len(with_labels):
        raise InputError("no validation user has a label: nothing can be tuned; enlarge the validation part")
    histories, labels = histories.take(with_labels), labels.take(with_labels)

    rng = np.random.default_rng(seed)
    table: list[Trial] = []
    for number in range(trials):
        params = rival.draw(rng) if number else rival.defaults()
        earlier = next((trial for trial in table if trial.params == params), None)
        if earlier is not None:
            table.append(Trial(params, earlier.value, 0.0))
            continue
        start = time.perf_counter()
        value = _value(rival, params, train_log, histories, labels, exclude_seen, seed, metric)
        table.append(Trial(params, value, time.perf_counter() - start))
    best = max(table, key=lambda trial: trial.value)
    return Tuned(rival.name, best.params, best.value, tuple(table))


def _value(
    rival: Rival,
    params: Params,
    log: Log,
    histories: Histories,
    labels: Ragged,
    exclude_seen: bool,
    seed: int,
    metric: str,
) -> float:
    _, k = metrics.parse_name(metric)
    ranked = top_k(rival.fit(log, params, seed), histories, k, exclude_seen)
    return float(metrics.compute(ranked, labels, [metric])[metric].mean())
