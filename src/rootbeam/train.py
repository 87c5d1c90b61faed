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
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rootbeam.core.config import Config
from rootbeam.core.errors import ConfigError, RootbeamError
from rootbeam.intervals import mean_interval
from rootbeam.ladder import Judge, Judged, choose, judge_of
from rootbeam.learn.fit import Progress, Runtime, silent
from rootbeam.rungs import Run, climb, refit
from rootbeam.stages import Stages
from rootbeam.task import Task, Trained, mark_of, read_task, write_trained


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
    run = Run(task, config, _judge(task, config), runtime, stages, started)
    rungs: list[Judged] = []
    for name in _rungs_to_try(run, model):
        progress("ladder", len(rungs), len(config.ladder.models), name)
        rungs.append(stages.once(name, partial(climb, name, run)))
    chosen = next((r for r in rungs if r.name == model), None) or choose(rungs, config.ladder.level)
    progress("ladder", len(rungs), len(rungs), f"{chosen.name} is chosen; refitting through the last event")
    served = stages.once("served", lambda: refit(chosen, run))
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
    stages, runtime = Stages(None, "", config), Runtime(device_of(config))
    return climb(name, Run(task, config, _judge(task, config), runtime, stages, time.monotonic()))


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


def device_of(config: Config) -> str:
    if config.run.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("run.device is cuda and torch finds no GPU; use auto or cpu")
    if config.run.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return config.run.device


def _rungs_to_try(run: Run, model: str | None) -> list[str]:
    wanted = [model] if model is not None else list(run.config.ladder.models)
    if len(run.judge.histories):
        return wanted
    # Nothing to choose by: what is cheapest, unless a model was asked for by name.
    return wanted[:1]


def _row(rung: Judged, metric: str, chosen: bool) -> dict[str, Any]:
    return {
        "model": rung.name,
        "metrics": {metric: mean_interval(rung.values).to_dict()} if len(rung.values) else {},
        "ms_per_user": round(rung.ms_per_user, 4),
        "chosen": chosen,
        **rung.blend.to_dict(),
        "settings": {key: value for key, value in rung.settings.items() if key != "shape"},
    }


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
        write_trained(given.out, trained, mark_of(task, config))
    except RootbeamError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps({"out": str(given.out), "rung": trained.rung, "ladder": trained.ladder}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
