"""The recipe: from arrays of events to a trained rung of the ladder. numpy, torch and safetensors alone.

1. popularity   nothing to learn but how fast it ages
2. neighbours   item–item weights, tuned on validation
3. sequence     a causal transformer over the history, stopped early by validation
4. the cheapest rung that is not significantly worse than the best is chosen
5. and refitted on all events through the last

Every stage leaves its result in the state folder; `python -m rootbeam.train ARRAYS --out FILE` runs it on
a machine that has nothing else.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rootbeam.core.config import Config, config_of, to_dict
from rootbeam.core.errors import BundleError, ConfigError, InputError, InterruptedTraining, RootbeamError
from rootbeam.core.files import Array, fingerprint, read_arrays, write_arrays
from rootbeam.core.types import Histories, Log, Ragged, Scorer
from rootbeam.data.history import replay
from rootbeam.ladder import (
    Blend,
    Judge,
    Judged,
    affordable_users,
    choose,
    judge_of,
    milliseconds_per_user,
    unit_scale,
)
from rootbeam.learn.fit import Fit, Progress, Runtime, encoder_from_arrays, fit_sequence, silent
from rootbeam.learn.neighbours import (
    NeighbourScorer,
    PrunedWeights,
    ease_from_gram,
    fits,
    gram,
    item_knn_weights,
    prune,
)
from rootbeam.learn.scorers import ConstantScorer, SequenceScorer
from rootbeam.learn.sequence import SequenceEncoder

EASE_MEMORY_BYTES = 6 * 2**30
EASE_SHARE = 0.2  # of the budget, for the inverses of the search
INVERSE_FLOPS_PER_SECOND = 2.5e10  # in float64, on two ordinary cores
STOPPING_USERS = 2000  # validation users that early stopping looks at, at most
STOPPING_CELLS = 300_000_000  # users · items · blends of one look
SELECTION_SHARE = 0.5  # of the time budget; the refit takes about as long


@dataclass(frozen=True)
class Task:
    """What training needs: a log, validation users, and everything known for the refit."""

    train: Log
    valid_inputs: Log  # what the validation users did before
    valid_labels: Ragged  # and next; a row for every user of valid_inputs
    full: Log  # all events through the last, in the same item ids

    def fingerprint(self) -> str:
        logs = (self.train, self.valid_inputs, self.full)
        arrays = [a for log in logs for a in (log.items, log.times, log.weights, log.user_ptr)]
        return fingerprint(*arrays, self.valid_labels.values, self.valid_labels.ptr)


@dataclass(frozen=True)
class Trained:
    """The rung that is served, and the ladder it was chosen from."""

    rung: str
    blend: Blend
    arrays: dict[str, Array]
    settings: dict[str, Any]
    ladder: list[dict[str, Any]]
    curves: dict[str, list[dict[str, float]]]


def train(
    task: Task,
    config: Config,
    *,
    state: Path | None = None,
    progress: Progress = silent,
    should_stop: Callable[[], bool] = lambda: False,
    model: str | None = None,
) -> Trained:
    """Climbs the ladder, chooses, refits. With `state`, finished stages are read back instead of repeated."""
    started = time.monotonic()
    stages = Stages(state, task.fingerprint(), config)
    stages.claim(model)
    runtime = Runtime(device_of(config), None, config.run.checkpoint_seconds, progress, should_stop)
    judge = _judge(task, config)
    rungs: list[Judged] = []
    for name in _rungs_to_try(task, config, judge, model):
        progress("ladder", len(rungs), len(config.ladder.models), name)
        rungs.append(stages.once(name, partial(_climb, name, task, config, judge, runtime, stages, started)))
    chosen = next((r for r in rungs if r.name == model), None) or choose(rungs, config.ladder.level)
    progress("ladder", len(rungs), len(rungs), f"{chosen.name} is chosen; refitting through the last event")
    served = stages.once("served", lambda: _refit(chosen, task, config, runtime, stages))
    return Trained(
        chosen.name,
        served.blend,
        served.arrays,
        served.settings,
        [_row(rung, config.ladder.metric, rung is chosen) for rung in rungs],
        {rung.name: rung.curve for rung in rungs if rung.curve},
    )


def validate_rung(task: Task, config: Config, name: str) -> Judged:
    """One rung on the validation users, nothing chosen or refitted: what `tune` searches by."""
    runtime = Runtime(device_of(config))
    stages = Stages(None, "", config)
    return _climb(name, task, config, _judge(task, config), runtime, stages, time.monotonic())


def _judge(task: Task, config: Config) -> Judge:
    now = int(task.train.times.max()) if task.train.n_events else 0
    return judge_of(
        task.train,
        task.valid_inputs,
        task.valid_labels,
        now,
        config.ladder,
        config.data.repeats,
        config.data.history_length,
        config.run.seed,
    )


def _climb(
    name: str, task: Task, config: Config, judge: Judge, runtime: Runtime, stages: Stages, started: float
) -> Judged:
    if name == "popularity":
        return _popularity(task, judge)
    if name == "neighbours":
        return _neighbours(task, config, judge, runtime)
    return _sequence(task, config, judge, runtime, stages, started)


def device_of(config: Config) -> str:
    if config.run.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("run.device is cuda and torch finds no GPU; use auto or cpu")
    if config.run.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return config.run.device


def scorer_of(rung: str, arrays: Mapping[str, Array], settings: Mapping[str, Any], n_items: int) -> Scorer:
    """The scorer that a rung's arrays stand for."""
    if rung == "popularity":
        return ConstantScorer(n_items)
    if rung == "neighbours":
        return NeighbourScorer(PrunedWeights.from_arrays(arrays), float(settings["decay"]))
    if rung == "sequence":
        return SequenceScorer(encoder_from_arrays(dict(arrays), _shape(settings)))
    raise BundleError(f"the model is a {rung!r}; this version knows popularity, neighbours and sequence")


def _rungs_to_try(task: Task, config: Config, judge: Judge, model: str | None) -> list[str]:
    wanted = [model] if model is not None else list(config.ladder.models)
    if len(judge.histories):
        return wanted
    # Nothing to choose by: what is cheapest, unless a model was asked for by name.
    return wanted[:1]


def _popularity(task: Task, judge: Judge) -> Judged:
    scorer = ConstantScorer(task.train.n_items)
    if not len(judge.histories):
        return Judged("popularity", Blend(0.0, 1.0, math.inf), np.zeros(0), 0.0)
    blend, values = judge.tune(scorer, (1.0,), 0.0)
    return Judged("popularity", blend, values, milliseconds_per_user(scorer, judge.histories, judge.depth))


def _neighbours(task: Task, config: Config, judge: Judge, runtime: Runtime) -> Judged:
    """Weights by the best setting; then the decay; then the blend. Each on validation users."""
    candidates = weight_settings(task.train.n_items, config)
    counts = gram(task.train) if "l2" in candidates[0] else None
    best: tuple[float, dict[str, Any], PrunedWeights] | None = None
    for done, settings in enumerate(candidates):
        runtime.progress("neighbours", done, len(candidates), str(settings))
        if runtime.should_stop():
            raise InterruptedTraining("stopped while the neighbours' weights were tuned")
        weights = _weights(task.train, settings, config, counts)
        for decay in config.neighbours.decays:
            value = _mean(judge.values(NeighbourScorer(weights, decay), Blend(1.0, 0.0, math.inf)))
            if best is None or value > best[0]:
                best = (value, settings | {"decay": decay}, weights)
    assert best is not None
    _, settings, weights = best
    scorer = NeighbourScorer(weights, settings["decay"])
    return _blended("neighbours", scorer, config, judge, settings, weights.to_arrays())


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


def _weights(log: Log, settings: Mapping[str, Any], config: Config, counts: Any = None) -> PrunedWeights:
    if "l2" in settings:
        full = ease_from_gram(gram(log) if counts is None else counts, settings["l2"])
        return prune(full, config.neighbours.keep)
    return item_knn_weights(log, settings["neighbours"])


def _sequence(
    task: Task, config: Config, judge: Judge, runtime: Runtime, stages: Stages, started: float
) -> Judged:
    stopping = _for_stopping(judge, task.train.n_items, config)

    def value(encoder: SequenceEncoder) -> float:
        """What matters is how good the blend is: the encoder alone peaks long before."""
        scorer = SequenceScorer(encoder)
        scale = unit_scale(scorer, stopping.histories)
        return _mean(stopping.tune(scorer, config.ladder.recency_weights, scale)[1])

    left = config.run.budget_seconds - (time.monotonic() - started)
    fit = fit_sequence(
        task.train,
        config.sequence,
        config.training,
        seed=config.run.seed,
        runtime=dataclasses.replace(runtime, checkpoint=stages.path("sequence-run")),
        what="sequence",
        validate=value if len(stopping.histories) else None,
        seconds=max(1.0, SELECTION_SHARE * left),
    )
    settings = {"shape": dataclasses.asdict(config.sequence)} | _steps(fit)
    scorer = SequenceScorer(encoder_from_arrays(fit.arrays, config.sequence).to(runtime.device))
    rung = _blended("sequence", scorer, config, judge, settings, fit.arrays)
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
    name: str,
    scorer: Scorer,
    config: Config,
    judge: Judge,
    settings: dict[str, Any],
    arrays: dict[str, Array],
) -> Judged:
    scale = unit_scale(scorer, judge.histories)
    if not len(judge.histories):
        return Judged(name, Blend(scale, 0.0, math.inf), np.zeros(0), 0.0, settings, arrays)
    blend, values = judge.tune(scorer, config.ladder.recency_weights, scale)
    cost = milliseconds_per_user(scorer, judge.histories, judge.depth)
    return Judged(name, blend, values, cost, settings, arrays)


def _refit(rung: Judged, task: Task, config: Config, runtime: Runtime, stages: Stages) -> Judged:
    """The same settings on all events; the number of steps grows with the number of events."""
    if rung.name == "popularity":
        return rung
    if rung.name == "neighbours":
        weights = _weights(task.full, rung.settings, config)
        scorer: Scorer = NeighbourScorer(weights, rung.settings["decay"])
        arrays = weights.to_arrays()
    else:
        growth = task.full.n_events / max(1, task.train.n_events)
        fit = fit_sequence(
            task.full,
            config.sequence,
            config.training,
            seed=config.run.seed,
            runtime=dataclasses.replace(runtime, checkpoint=stages.path("refit-run")),
            what="refit",
            schedule=(
                round(rung.settings["best_step"] * growth),
                round(rung.settings["total_steps"] * growth),
            ),
        )
        arrays = fit.arrays
        scorer = SequenceScorer(encoder_from_arrays(arrays, config.sequence))
    histories = _sample_histories(task.full, config)
    blend = dataclasses.replace(rung.blend, a=unit_scale(scorer, histories))
    return dataclasses.replace(rung, blend=blend, arrays=arrays)


def _sample_histories(log: Log, config: Config) -> Histories:
    users = np.flatnonzero(np.diff(log.user_ptr) > 0)
    chosen = np.random.default_rng([config.run.seed, 11]).permutation(users)[:512]
    return replay(log, config.data.history_length).take(np.sort(chosen))


def _shape(settings: Mapping[str, Any]) -> Any:
    return config_of({"sequence": settings["shape"]}).sequence


def _mean(values: Any) -> float:
    return float(np.nanmean(values)) if len(values) else -math.inf


def _row(rung: Judged, metric: str, chosen: bool) -> dict[str, Any]:
    from rootbeam.intervals import mean_interval

    return {
        "model": rung.name,
        "metrics": {metric: mean_interval(rung.values).to_dict()} if len(rung.values) else {},
        "ms_per_user": round(rung.ms_per_user, 4),
        "chosen": chosen,
        "a": rung.blend.a,
        "b": rung.blend.b,
        "half_life_days": None if math.isinf(rung.blend.half_life_days) else rung.blend.half_life_days,
        "settings": {key: value for key, value in rung.settings.items() if key != "shape"},
    }


@dataclass(frozen=True)
class Stages:
    """Results of finished stages, one file each; without a folder nothing is kept."""

    folder: Path | None
    fingerprint: str
    config: Config

    def path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.safetensors"

    def claim(self, model: str | None) -> None:
        """The first run marks the folder; later ones must be the same run, checkpoints within a stage too."""
        path = self.path("run")
        if path is None:
            return
        mark = {"fingerprint": self.fingerprint, "config": to_dict(self.config), "model": model}
        if path.exists():
            self._check(read_arrays(path)[1], mark)
        else:
            write_arrays(path, {}, mark)

    def once(self, name: str, work: Callable[[], Judged]) -> Judged:
        path = self.path(name)
        if path is not None and path.exists():
            arrays, meta = read_arrays(path)
            values = arrays.pop("rung/values")
            return _judged(meta, arrays, values)
        result = work()
        if path is not None:
            meta = {
                "name": result.name,
                "blend": [result.blend.a, result.blend.b, _finite(result.blend.half_life_days)],
                "ms_per_user": result.ms_per_user,
                "settings": result.settings,
                "curve": result.curve,
            }
            write_arrays(path, result.arrays | {"rung/values": result.values}, meta)
        return result

    def _check(self, found: Any, mark: Mapping[str, Any]) -> None:
        if found != mark:
            raise InputError(
                f"{self.folder} holds a run with other data or settings, or another --model; "
                "give the same ones to --resume, or remove the folder to start over"
            )


def _finite(number: float) -> float | None:
    return None if math.isinf(number) else number


def _judged(meta: Mapping[str, Any], arrays: dict[str, Array], values: Any) -> Judged:
    a, b, half_life = meta["blend"]
    blend = Blend(a, b, math.inf if half_life is None else half_life)
    return Judged(meta["name"], blend, values, meta["ms_per_user"], meta["settings"], arrays, meta["curve"])


def write_task(path: Path, task: Task, config: Config) -> None:
    """One file that a bare machine can train from."""
    arrays: dict[str, Array] = {}
    for name, log in (("train", task.train), ("valid", task.valid_inputs), ("full", task.full)):
        arrays |= {f"{name}/{key}": getattr(log, key) for key in ("items", "times", "weights", "user_ptr")}
    arrays |= {"labels/values": task.valid_labels.values, "labels/ptr": task.valid_labels.ptr}
    meta = {"n_items": task.train.n_items, "timed": task.train.timed, "config": to_dict(config)}
    write_arrays(path, arrays, meta)


def read_task(path: Path) -> tuple[Task, Config]:
    arrays, meta = read_arrays(path)
    try:
        logs = [
            Log(
                arrays[f"{name}/items"],
                arrays[f"{name}/times"],
                arrays[f"{name}/weights"],
                arrays[f"{name}/user_ptr"],
                n_items=meta["n_items"],
                timed=meta["timed"],
            )
            for name in ("train", "valid", "full")
        ]
        labels = Ragged(arrays["labels/values"], arrays["labels/ptr"])
    except (KeyError, TypeError):
        raise InputError(f"{path} is not a training task; make one with `rootbeam train --export`") from None
    return Task(logs[0], logs[1], labels, logs[2]), config_of(meta["config"])


def write_trained(path: Path, trained: Trained, fingerprint: str) -> None:
    meta = dataclasses.asdict(dataclasses.replace(trained, arrays={}))
    meta["blend"]["half_life_days"] = _finite(meta["blend"]["half_life_days"])
    write_arrays(path, trained.arrays, meta | {"fingerprint": fingerprint})


def read_trained(path: Path) -> tuple[Trained, str]:
    """What was trained, and the fingerprint of the task it was trained on."""
    arrays, meta = read_arrays(path)
    if not isinstance(meta, dict) or "fingerprint" not in meta:
        raise InputError(f"{path} holds no trained model; make one with `python -m rootbeam.train`")
    fingerprint = meta.pop("fingerprint")
    half_life = meta["blend"]["half_life_days"]
    meta["blend"] = Blend(
        meta["blend"]["a"], meta["blend"]["b"], math.inf if half_life is None else half_life
    )
    return Trained(**(meta | {"arrays": arrays})), fingerprint


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rootbeam.train", description=__doc__)
    parser.add_argument("arrays", type=Path, help="a task made by `rootbeam train EVENTS --export FILE`")
    parser.add_argument("--out", type=Path, required=True, help="the trained arrays, one safetensors file")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--state", type=Path, help="folder of finished stages, to resume from")
    given = parser.parse_args(arguments)

    def say(what: str, done: int, of: int, detail: str) -> None:
        print(f"{what} {done}/{of} {detail}", file=sys.stderr, flush=True)

    try:
        task, config = read_task(given.arrays)
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, device=given.device))
        trained = train(task, config, state=given.state, progress=say)
        write_trained(given.out, trained, task.fingerprint())
    except RootbeamError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps({"out": str(given.out), "rung": trained.rung, "ladder": trained.ladder}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
