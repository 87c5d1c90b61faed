"""The rungs of the ladder: how each is fitted, tuned on validation, and refitted on everything."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rootbeam.core.config import Config, config_of
from rootbeam.core.errors import BundleError, InterruptedTraining
from rootbeam.core.files import Array
from rootbeam.core.types import Log, Scorer
from rootbeam.ladder import Blend, Judge, Judged, affordable_users, milliseconds_per_user, unit_scale
from rootbeam.learn.fit import Fit, Runtime, encoder_from_arrays, fit_sequence
from rootbeam.learn.neighbours import (
    NeighbourScorer,
    PrunedWeights,
    ease_from_gram,
    fits,
    gram,
    item_knn_weights,
    prune,
    strongest,
)
from rootbeam.learn.scorers import ConstantScorer, SequenceScorer
from rootbeam.learn.sequence import SequenceEncoder
from rootbeam.stages import Stages
from rootbeam.task import Task

EASE_MEMORY_BYTES = 6 * 2**30
EASE_SHARE = 0.2  # of the budget, for the inverses of the search
INVERSE_FLOPS_PER_SECOND = 2.5e10  # in float64, on two ordinary cores
STOPPING_USERS = 2000  # validation users that early stopping looks at, at most
STOPPING_CELLS = 300_000_000  # users · items · blends of one look
SELECTION_SHARE = 0.5  # of the time budget; the refit takes about as long


@dataclass(frozen=True)
class Run:
    """What every rung is fitted from."""

    task: Task
    config: Config
    judge: Judge
    runtime: Runtime
    stages: Stages
    started: float  # of time.monotonic()

    def seconds_left(self) -> float:
        return self.config.run.budget_seconds - (time.monotonic() - self.started)


def climb(name: str, run: Run) -> Judged:
    """The rung of that name."""
    if name == "popularity":
        return popularity(run)
    if name == "neighbours":
        return neighbours(run)
    return sequence(run)


def scorer_of(rung: str, arrays: Mapping[str, Array], settings: Mapping[str, Any], n_items: int) -> Scorer:
    """The scorer that a rung's arrays stand for."""
    if rung == "popularity":
        return ConstantScorer(n_items)
    if rung == "neighbours":
        return NeighbourScorer(PrunedWeights.from_arrays(arrays), float(settings["decay"]))
    if rung == "sequence":
        return SequenceScorer(encoder_from_arrays(dict(arrays), _shape(settings)))
    raise BundleError(f"the model is a {rung!r}; this version knows popularity, neighbours and sequence")


def popularity(run: Run) -> Judged:
    """Nothing is learned but how fast popularity ages."""
    judge, scorer = run.judge, ConstantScorer(run.task.train.n_items)
    if not len(judge.histories):
        return Judged("popularity", Blend(0.0, 1.0, math.inf), np.zeros(0), 0.0)
    blend, values = judge.tune(scorer, (1.0,), 0.0)
    return Judged("popularity", blend, values, milliseconds_per_user(scorer, judge.histories, judge.depth))


def neighbours(run: Run) -> Judged:
    """Weights by the best setting and decay; then the blend. Each on validation users."""
    task, config, runtime = run.task, run.config, run.runtime
    candidates = weight_settings(task.train.n_items, config)
    weights_by = _weights_by(task.train, candidates, config)
    best: tuple[float, dict[str, Any], PrunedWeights] | None = None
    for done, settings in enumerate(candidates):
        runtime.progress("neighbours", done, len(candidates), str(settings))
        if runtime.should_stop():
            raise InterruptedTraining("stopped while the neighbours' weights were tuned")
        weights = weights_by(settings)
        for decay in config.neighbours.decays:
            value = _mean(run.judge.values(NeighbourScorer(weights, decay), Blend(1.0, 0.0, math.inf)))
            if best is None or value > best[0]:
                best = (value, settings | {"decay": decay}, weights)
    assert best is not None
    _, settings, weights = best
    scorer = NeighbourScorer(weights, settings["decay"])
    return _blended("neighbours", scorer, run, settings, weights.to_arrays())


def weight_settings(n_items: int, config: Config) -> list[dict[str, Any]]:
    """EASE with as many penalties as memory and budget allow, evenly spread; item-kNN where that is none."""
    grid = config.neighbours.ease_l2
    each_seconds = n_items**3 / INVERSE_FLOPS_PER_SECOND
    affordable = min(len(grid), EASE_SHARE * config.run.budget_seconds / each_seconds)
    if affordable < 1 or not fits(n_items, EASE_MEMORY_BYTES):
        return [{"neighbours": k} for k in config.neighbours.knn_neighbours]
    count = int(affordable)
    places = np.linspace(0, len(grid) - 1, count + 2)[1:-1] if count < len(grid) else np.arange(len(grid))
    return [{"l2": grid[round(place)]} for place in places]


def _weights_by(
    log: Log, candidates: Sequence[Mapping[str, Any]], config: Config
) -> Callable[[Mapping[str, Any]], PrunedWeights]:
    """The weights of each candidate; what items have in common is counted once for all."""
    if "l2" in candidates[0]:
        counts = gram(log)
        return lambda settings: prune(ease_from_gram(counts, settings["l2"]), config.neighbours.keep)
    widest = item_knn_weights(log, max(settings["neighbours"] for settings in candidates))
    return lambda settings: strongest(widest, settings["neighbours"])


def sequence(run: Run) -> Judged:
    """The encoder at its best validation, then the blend."""
    task, config, runtime = run.task, run.config, run.runtime
    stopping = _for_stopping(run.judge, task.train.n_items, config)

    def value(encoder: SequenceEncoder) -> float:
        """What matters is how good the blend is: the encoder alone peaks long before."""
        scorer = SequenceScorer(encoder)
        scale = unit_scale(scorer, stopping.histories)
        return _mean(stopping.tune(scorer, config.ladder.recency_weights, scale)[1])

    fit = fit_sequence(
        task.train,
        config.sequence,
        config.training,
        seed=config.run.seed,
        runtime=dataclasses.replace(runtime, checkpoint=run.stages.path("sequence-run")),
        what="sequence",
        validate=value if len(stopping.histories) else None,
        seconds=max(1.0, SELECTION_SHARE * run.seconds_left()),
    )
    settings = {"shape": dataclasses.asdict(config.sequence)} | _steps(fit)
    scorer = SequenceScorer(encoder_from_arrays(fit.arrays, config.sequence).to(runtime.device))
    rung = _blended("sequence", scorer, run, settings, fit.arrays)
    return dataclasses.replace(rung, curve=fit.curve)


def _for_stopping(judge: Judge, n_items: int, config: Config) -> Judge:
    """Some of the users, and the one half-life that popularity likes best."""
    affordable = affordable_users(STOPPING_CELLS, n_items * len(config.ladder.recency_weights))
    some = judge.first(min(STOPPING_USERS, affordable))
    if not len(some.histories):
        return some
    popular, _ = some.tune(ConstantScorer(n_items), (1.0,), 0.0)
    half_life = popular.half_life_days
    return dataclasses.replace(some, log_priors={half_life: some.log_priors[half_life]})


def _steps(fit: Fit) -> dict[str, int]:
    return {"steps": fit.steps, "best_step": fit.best_step, "total_steps": fit.total_steps}


def _blended(
    name: str, scorer: Scorer, run: Run, settings: dict[str, Any], arrays: dict[str, Array]
) -> Judged:
    judge = run.judge
    scale = unit_scale(scorer, judge.histories)
    if not len(judge.histories):
        return Judged(name, Blend(scale, 0.0, math.inf), np.zeros(0), 0.0, settings, arrays)
    blend, values = judge.tune(scorer, run.config.ladder.recency_weights, scale)
    cost = milliseconds_per_user(scorer, judge.histories, judge.depth)
    return Judged(name, blend, values, cost, settings, arrays)


def refit(rung: Judged, run: Run) -> Judged:
    """The same settings on all events; the number of steps grows with the number of events."""
    task, config = run.task, run.config
    if rung.name == "popularity":
        return rung
    if rung.name == "neighbours":
        weights = _weights_by(task.full, [rung.settings], config)(rung.settings)
        scorer: Scorer = NeighbourScorer(weights, rung.settings["decay"])
        arrays = weights.to_arrays()
    else:
        growth = task.full.n_events / max(1, task.train.n_events)
        fit = fit_sequence(
            task.full,
            config.sequence,
            config.training,
            seed=config.run.seed,
            runtime=dataclasses.replace(run.runtime, checkpoint=run.stages.path("refit-run")),
            what="refit",
            schedule=(
                round(rung.settings["best_step"] * growth),
                round(rung.settings["total_steps"] * growth),
            ),
        )
        arrays = fit.arrays
        scorer = SequenceScorer(encoder_from_arrays(arrays, config.sequence))
    # Of the users that b was chosen on: a model's deviation is another for other users.
    blend = dataclasses.replace(rung.blend, a=unit_scale(scorer, run.judge.histories))
    return dataclasses.replace(rung, blend=blend, arrays=arrays)


def _shape(settings: Mapping[str, Any]) -> Any:
    return config_of({"sequence": settings["shape"]}).sequence


def _mean(values: Any) -> float:
    return float(np.nanmean(values)) if len(values) else -math.inf
