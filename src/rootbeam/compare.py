"""A fitted recommender beside its rivals: the same split, the same users, every rival tuned alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rootbeam import metrics
from rootbeam.core.types import Float64, Histories, Log, Ragged
from rootbeam.data.history import replay
from rootbeam.data.split import Split
from rootbeam.evaluate.protocol import METRICS, Evaluation
from rootbeam.evaluate.rivals.line_up import line_up
from rootbeam.evaluate.rivals.rival import top_k
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
    valid_histories: Histories
    valid_labels: Ragged
    full: Log  # what the rivals are refitted on, as ours is
    test_histories: Histories  # of the users of the headline, in its order
    test_labels: Ragged


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
        tuned = tune_rival(
            rival,
            arrays.train,
            arrays.valid_histories,
            arrays.valid_labels,
            exclude,
            trials,
            seed,
            metric=config.ladder.metric,
        )
        scores = rival.fit(arrays.full, tuned.params, seed)
        ranked = top_k(scores, arrays.test_histories, depth, exclude)
        values = metrics.compute(ranked, arrays.test_labels, names)
        found.append(_rivalry(rival.name, tuned.params, trials, values, evaluation, seed))
    progress("rivals", len(contest.rivals), len(contest.rivals), "")
    skipped = [Rivalry(name, {}, 0, {}, {}, {}, reason) for name, reason in contest.skipped.items()]
    return found + skipped


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
    histories = replay(to_log(parts.test.inputs, users, prepared.items), length).take(rows)
    labels = to_log(parts.test.labels, users, every_item).sequences().take(rows)
    return _Arrays(
        task.train, replay(task.valid_inputs, length), task.valid_labels, task.full, histories, labels
    )
