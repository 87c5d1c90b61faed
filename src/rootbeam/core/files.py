"""Files of arrays: safetensors with a JSON header, written beside and renamed into place."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rootbeam.core.errors import BundleError

Array = npt.NDArray[Any]
META = "rootbeam"  # the key of the safetensors header that holds our JSON


def write_arrays(path: Path, arrays: Mapping[str, Array], meta: Any = None) -> None:
    """A reader sees the old file or the new one, never half of one."""
    write_bytes(path, arrays_to_bytes(arrays, meta))


def arrays_to_bytes(arrays: Mapping[str, Array], meta: Any = None) -> bytes:
    """The content of a safetensors file."""
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return save(contiguous, metadata={META: json.dumps(meta)})


def read_arrays(path: Path) -> tuple[dict[str, Array], Any]:
    """The arrays and the JSON value of a file made by `write_arrays`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            meta = json.loads((file.metadata() or {}).get(META, "null"))
            return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118
    except FileNotFoundError:
        raise BundleError(
            f"no file {path.name} in {path.parent}; the folder is incomplete: make it again"
        ) from None
    except (SafetensorError, ValueError, OSError) as error:
        raise BundleError(
            f"{path} is not a safetensors file ({error}); it is damaged: make it again"
        ) from None


def write_bytes(path: Path, content: bytes) -> None:
    """Durable and atomic: written beside, synced, renamed into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(*arrays: Array) -> str:
    """A short hash of the contents of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(str((array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
