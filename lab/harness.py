"""Results of recipes: which cells exist, what they gave, and how they were made. Written as a run goes.

A cell is a dictionary of settings and a seed. `lab/results/PAPER-DATA.json` holds every finished cell, so
that the same command run again does only what is missing. Several processes may add to one file.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import platform
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.data import Data
from rootbeam.core.files import read_arrays, write_arrays, write_bytes
from rootbeam.core.types import Float64
from rootbeam.intervals import mean_interval

FORMAT = 1
RESULTS = Path(__file__).parent / "results"
INLINE_BYTES = 500_000  # of per-user values before compression; more go to a file beside, not committed
Settings = Mapping[str, Any]


@dataclass
class Results:
    """The file of one paper on one data set."""

    path: Path
    content: dict[str, Any]
    users: dict[str, Any] = field(default_factory=dict)  # "cell/metric" -> (users,) float16

    @staticmethod
    def open(path: Path, paper: str, data: str) -> Results:
        content = {"format": FORMAT, "paper": paper, "data": data, "notes": {}, "sessions": [], "cells": []}
        results = Results(path, content)
        results._read()
        return results

    def cell(self, settings: Settings, seed: int) -> dict[str, Any] | None:
        """The finished cell, if it is."""
        key = cell_key(settings, seed)
        return next((c for c in self.content["cells"] if c["key"] == key), None)

    def values(self, settings: Settings, seed: int, metric: str) -> Float64:
        """(users,) of a finished cell; NaN for users without labels."""
        return np.asarray(self.users[f"{cell_key(settings, seed)}/{metric}"], dtype=np.float64)

    def begin(self, session: dict[str, Any]) -> int:
        """Notes how the cells to come are made; the session's number."""
        with self._locked():
            self.content["sessions"].append(session)
            return len(self.content["sessions"]) - 1

    def add(
        self,
        session: int,
        settings: Settings,
        seed: int,
        seconds: float,
        per_user: Mapping[str, Float64],
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """A finished cell: means and bootstrap intervals over users of per-user values, and more facts."""
        key = cell_key(settings, seed)
        metrics = {}
        for name, values in per_user.items():
            found = mean_interval(values)
            metrics[name] = {k: rounded(v) for k, v in found.to_dict().items()}
        cell = {
            "key": key,
            "settings": dict(settings),
            "seed": seed,
            "session": session,
            "seconds": round(seconds, 1),
            "metrics": metrics,
            **(extra or {}),
        }
        with self._locked():
            self.content["cells"] = [c for c in self.content["cells"] if c["key"] != key] + [cell]
            for name, values in per_user.items():
                self.users[f"{key}/{name}"] = np.asarray(values, dtype=np.float16)

    def summarise(self) -> None:
        """Notes of every row: its metrics over seeds, and intervals over users of the means over seeds."""
        rows: dict[str, list[dict[str, Any]]] = {}
        for cell in self.content["cells"]:
            if "tune" not in cell["settings"]:
                rows.setdefault(cell["key"].rpartition(" seed=")[0], []).append(cell)
        self.note("rows", {row: self._summary(cells) for row, cells in rows.items()})

    def _summary(self, cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
        metrics = {}
        for name in cells[0].get("means", cells[0]["metrics"]):
            of_seed = [c["means"][name] if "means" in c else c["metrics"][name]["mean"] for c in cells]
            found: dict[str, Any] = {"mean": rounded(float(np.mean(of_seed))), "per_seed": of_seed}
            values = [self.users.get(f"{c['key']}/{name}") for c in cells]
            if all(each is not None for each in values):
                stacked = np.stack([np.asarray(each, dtype=np.float64) for each in values])  # (seeds, users)
                known = ~np.isnan(stacked).all(axis=0)
                interval = mean_interval(np.nanmean(stacked[:, known], axis=0))
                found |= {"low": rounded(interval.low), "high": rounded(interval.high), "users": interval.n}
            metrics[name] = self._noted(cells, name, found)
        return {"settings": cells[0]["settings"], "seeds": [c["seed"] for c in cells], "metrics": metrics}

    def _noted(self, cells: Sequence[dict[str, Any]], name: str, found: dict[str, Any]) -> dict[str, Any]:
        """What was noted before of the same values, where their users are in a file that is not here."""
        row = cells[0]["key"].rpartition(" seed=")[0]
        before = self.content["notes"].get("rows", {}).get(row, {}).get("metrics", {}).get(name, {})
        kept: dict[str, Any] = before if before.get("per_seed") == found["per_seed"] else found
        return found if "low" in found else kept

    def note(self, name: str, value: Any) -> None:
        """A fact about the whole, such as a comparison or a count."""
        with self._locked():
            self.content["notes"][name] = value

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """What other processes have added is read before, and all is written after."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._read()
            yield
            self._write()

    @property
    def _beside(self) -> Path:
        return self.path.with_suffix(".users.safetensors")

    def _read(self) -> None:
        if not self.path.exists():
            return
        self.content = json.loads(self.path.read_text())
        inline = self.content.pop("per_user", None)
        if isinstance(inline, dict):
            self.users |= {name: _unpacked(text) for name, text in inline.items()}
        elif self._beside.exists():
            self.users |= read_arrays(self._beside)[0]

    def _write(self) -> None:
        shown: Any = f"{len(self.users)} arrays in {self._beside.name}, not committed"
        if sum(values.nbytes for values in self.users.values()) <= INLINE_BYTES:
            shown = {name: _packed(values) for name, values in sorted(self.users.items())}
        else:
            write_arrays(self._beside, self.users)
        content = self.content | {"per_user": shown}
        write_bytes(self.path, (to_json(content) + "\n").encode())


@dataclass
class Context:
    """What a recipe is given."""

    data: Data
    seeds: Sequence[int]
    device: str
    results: Results
    command: Sequence[str]
    deadline: float  # of time.monotonic()
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    skipped: int = 0  # cells left undone because the time was up

    @cached_property
    def session(self) -> int:
        """The number of this run in the results; only a run that adds a cell gets one."""
        return self.results.begin(session_of(self.command, self.device))

    def missing(self, settings: Settings, seeds: Sequence[int]) -> list[int]:
        """The seeds of a row that are wanted, not done, and still within the budget."""
        if any(str(settings.get(name)) not in values for name, values in self.only.items()):
            return []
        undone = [seed for seed in seeds if self.results.cell(settings, seed) is None]
        if undone and time.monotonic() > self.deadline:
            self.skipped += len(undone)
            return []
        return undone

    def say(self, text: str) -> None:
        print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def cell_key(settings: Settings, seed: int) -> str:
    """A short readable key: "batch=512 row=bir seed=0"."""
    return " ".join(f"{name}={settings[name]}" for name in sorted(settings)) + f" seed={seed}"


def session_of(command: Sequence[str], device: str) -> dict[str, Any]:
    """How and where: command, commit, machine, versions."""
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    return {
        "command": " ".join(["python", "-m", "lab", *command]),
        "commit": commit(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cpus": os.cpu_count(), "architecture": platform.machine(), "gpu": gpu},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "threads": torch.get_num_threads(),
        "device": device,
    }


def commit() -> str:
    """The checkout's commit, "+" where files differ from it; ROOTBEAM_COMMIT where there is no git."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("ROOTBEAM_COMMIT", "unknown")


def to_json(content: Mapping[str, Any]) -> str:
    """One cell, session or array a line: small, and readable in a diff."""
    lines = []
    for name, value in content.items():
        if isinstance(value, list):
            inner = ",\n".join("  " + json.dumps(each, allow_nan=False) for each in value)
            text = f"[\n{inner}\n ]" if value else "[]"
        elif isinstance(value, dict):
            pairs = (f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in value.items())
            text = "{\n" + ",\n".join(pairs) + "\n }" if value else "{}"
        else:
            text = json.dumps(value)
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}"


def rounded(value: float | int | None, places: int = 5) -> float | int | None:
    return value if value is None or isinstance(value, int) else round(value, places)


def _packed(values: Any) -> str:
    return base64.b64encode(zlib.compress(values.astype("<f2").tobytes(), 9)).decode()


def _unpacked(text: str) -> Any:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<f2")


def pick_device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted


def fail(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr)
    raise SystemExit(2)
