"""A fitted recommender beside its rivals: the same split, the same users, every rival tuned alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rootbeam import metrics
from rootbeam.core.ids import Ids
from rootbeam.core.types import Float64, Histories, Int32, Log, Ragged
from rootbeam.data.history import replay_of
from rootbeam.data.split import Split
from rootbeam.evaluate.protocol import METRICS, Evaluation
from rootbeam.evaluate.rivals.line_up import line_up
from rootbeam.evaluate.rivals.rival import Rival, Scores, top_k
from rootbeam.evaluate.rivals.tuning import tune_rival
from rootbeam.intervals import mean_interval, paired_difference
from rootbeam.learn.fit import Progress, silent
from rootbeam.prepare import prepare
from rootbeam.recommender import Recommender

RIVAL_MEMORY_BYTES = 6 * 2**30


@dataclass(frozen=True)
class Rivalry:
    """One rival: how it was tuned, how good it is, and ours minus it on the same users."""

    name: str
    params: dict[str, Any]
    trials: int
    values: dict[str, Float64]  # (users,)
    metrics: dict[str, dict[str, Any]]
    difference: dict[str, dict[str, Any]]
    skipped: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "params": self.params,
            "trials": self.trials,
            "metrics": self.metrics,
            "difference": self.difference or None,
            "skipped": self.skipped,
        }


@dataclass(frozen=True)
class _Arrays:
    """The split as dense arrays, in one set of ids."""

    train: Log
    valid_histories: Histories  # of those who have labels and a history, as ours is tuned on
    valid_labels: Ragged
    full: Log  # what the rivals are refitted on, as ours is
    test_histories: Histories  # of the users of the headline, in its order
    test_labels: Ragged
    unavailable: Int32  # items that ours does not return either


def compare(
    recommender: Recommender,
    parts: Split,
    evaluation: Evaluation,
    *,
    trials: int,
    seed: int,
    progress: Progress = silent,
    names: Sequence[str] = METRICS,
) -> list[Rivalry]:
    """Tunes every rival on validation, refits it on train and validation, and tests it on our test users."""
    config = recommender.config
    exclude = config.data.repeats == "forbid"
    arrays = _arrays(recommender, parts, evaluation)
    contest = line_up(arrays.train, RIVAL_MEMORY_BYTES)
    depth = max(metrics.parse_name(name)[1] for name in names)
    found = []
    for done, rival in enumerate(contest.rivals):
        progress("rivals", done, len(contest.rivals), f"tuning {rival.name}, {trials} trials")
        params, tried = rival.defaults(), 0
        if len(arrays.valid_histories):
            params, tried = _tuned(rival, arrays, exclude, trials, seed, config.ladder.metric), trials
        scores = without(rival.fit(arrays.full, params, seed), arrays.unavailable)
        ranked = top_k(scores, arrays.test_histories, depth, exclude)
        values = metrics.compute(ranked, arrays.test_labels, names)
        found.append(_rivalry(rival.name, params, tried, values, evaluation, seed))
    progress("rivals", len(contest.rivals), len(contest.rivals), "")
    skipped = [Rivalry(name, {}, 0, {}, {}, {}, reason) for name, reason in contest.skipped.items()]
    return found + skipped


def _tuned(
    rival: Rival, arrays: _Arrays, exclude: bool, trials: int, seed: int, metric: str
) -> dict[str, Any]:
    histories, labels = arrays.valid_histories, arrays.valid_labels
    return tune_rival(rival, arrays.train, histories, labels, exclude, trials, seed, metric=metric).params


def without(scores: Scores, items: Int32) -> Scores:
    """The same scores, −∞ for `items`."""
    if not len(items):
        return scores

    def others(histories: Histories) -> npt.NDArray[Any]:
        table = np.array(scores(histories), dtype=np.float64)  # (batch, items)
        table[:, items] = -np.inf
        return table

    return others


def _rivalry(
    name: str,
    params: dict[str, Any],
    trials: int,
    values: dict[str, Float64],
    evaluation: Evaluation,
    seed: int,
) -> Rivalry:
    return Rivalry(
        name,
        params,
        trials,
        values,
        {m: mean_interval(v, seed=seed).to_dict() for m, v in values.items()},
        {m: paired_difference(evaluation.values[m], v, seed=seed).to_dict() for m, v in values.items()},
    )


def _arrays(recommender: Recommender, parts: Split, evaluation: Evaluation) -> _Arrays:
    from rootbeam.data.arrays import ids_of, to_log

    config = recommender.config
    prepared = prepare(parts.train, parts.valid, config)
    task, length = prepared.task, config.data.history_length
    users = ids_of(parts.test.inputs["user_id"], parts.test.labels["user_id"])
    # The rows of the evaluation count users in this same order.
    every_item = prepared.items.extended(parts.test.labels["item_id"].to_list())
    rows = np.asarray(evaluation.rows)
    usable = np.flatnonzero((task.valid_labels.lengths() > 0) & (np.diff(task.valid_inputs.user_ptr) > 0))
    return _Arrays(
        train=task.train,
        valid_histories=replay_of(task.valid_inputs, usable, length),
        valid_labels=task.valid_labels.take(usable),
        full=task.full,
        test_histories=replay_of(to_log(parts.test.inputs, users, prepared.items), rows, length),
        test_labels=to_log(parts.test.labels, users, every_item).sequences().take(rows),
        unavailable=_unavailable(recommender, prepared.items),
    )


def _unavailable(recommender: Recommender, items: Ids) -> Int32:
    model = recommender.model
    if model.available is None:
        return np.zeros(0, dtype=np.int32)
    gone = items.dense(model.items.back(np.flatnonzero(~model.available).tolist()))
    return gone[gone >= 0]
