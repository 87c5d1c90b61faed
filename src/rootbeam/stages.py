"""The state folder of a run: what finished stages gave, so that a resumed run goes on after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootbeam.core.config import Config, to_dict
from rootbeam.core.errors import InputError
from rootbeam.core.files import read_arrays, write_arrays
from rootbeam.ladder import Blend, Judged


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
            return Judged(arrays=arrays, values=values, **(meta | {"blend": Blend.from_dict(meta["blend"])}))
        result = work()
        if path is not None:
            meta = {
                "name": result.name,
                "blend": result.blend.to_dict(),
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
