"""What training is given and what it gives, and how both stand in one file of arrays."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootbeam.core.config import Config, config_of, to_dict
from rootbeam.core.errors import InputError
from rootbeam.core.files import Array, fingerprint, read_arrays, write_arrays
from rootbeam.core.types import Log, Ragged
from rootbeam.ladder import Blend


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


def mark_of(task: Task, config: Config) -> str:
    """What training elsewhere must share with here: the events and the settings, not the device or budget."""
    plain = to_dict(config_of(to_dict(config))) | {"run": {"seed": config.run.seed}}
    settings = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]
    return f"{task.fingerprint()}-{settings}"


def write_trained(path: Path, trained: Trained, mark: str) -> None:
    meta = {
        "rung": trained.rung,
        "blend": trained.blend.to_dict(),
        "settings": trained.settings,
        "ladder": trained.ladder,
        "curves": trained.curves,
        "mark": mark,
    }
    write_arrays(path, trained.arrays, meta)


def read_trained(path: Path) -> tuple[Trained, str]:
    """What was trained, and the mark of the task and settings it was trained with."""
    arrays, meta = read_arrays(path)
    if not isinstance(meta, dict) or "mark" not in meta:
        raise InputError(f"{path} holds no trained model; make one with `python -m rootbeam.train`")
    trained = Trained(
        meta["rung"], Blend.from_dict(meta["blend"]), arrays, meta["settings"], meta["ladder"], meta["curves"]
    )
    return trained, meta["mark"]
