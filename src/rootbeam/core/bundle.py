"""A bundle on disk: a folder of hashed files under one manifest, replaced in one step.

A reader sees the old bundle or the new one. Loading checks every hash and names the file that fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rootbeam.core.errors import BundleError
from rootbeam.core.files import sha256_of
from rootbeam.core.inplace import put_in_place

FORMAT = 1
MANIFEST = "manifest.json"
_ATTEMPTS = 20  # to read a bundle that is replaced while it is read

Read = TypeVar("Read")


def write_bundle(path: Path, files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> None:
    """Writes the files and their manifest beside `path`, then puts the folder in its place."""
    path = check_place(path)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    beside.mkdir(parents=True)
    try:
        for name, content in files.items():
            _write_synced(beside / name, content)
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        complete = {"format": FORMAT, **manifest, "files": hashes}
        complete["sha256"] = _self_hash(complete)
        _write_synced(beside / MANIFEST, _text_of(complete).encode())
        _sync_folder(beside)
        put_in_place(beside, path)
        _sync_folder(path.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def check_place(path: Path) -> Path:
    """Where a bundle for `path` goes, links followed; only an empty folder or a bundle is ever replaced."""
    place = Path(os.path.realpath(path))
    if any(parent.exists() and not parent.is_dir() for parent in place.parents):
        raise BundleError(f"{path} lies below a file; give the name of a folder")
    if place.exists() and not _is_bundle(place) and not (place.is_dir() and not any(place.iterdir())):
        raise BundleError(f"{path} exists and is not a bundle; give another place or remove it first")
    return place


def open_bundle(path: Path, read: Callable[[dict[str, Any]], Read]) -> Read:
    """read(manifest) after every hash is checked; again when the bundle was replaced meanwhile.

    Files are opened one after another, so a writer may put a new bundle in place between two of them.
    """
    for _ in range(_ATTEMPTS):
        manifest = read_manifest(path)
        try:
            check_files(path, manifest)
            found = read(manifest)
        except (BundleError, OSError):
            if read_manifest(path) == manifest:
                raise
        else:
            if read_manifest(path) == manifest:
                return found
    raise BundleError(f"{path} is replaced faster than it can be read; wait until its writer is done")


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest, its own hash checked; a newer format is refused."""
    file = path / MANIFEST
    try:
        text = file.read_bytes().decode()
        manifest = json.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(
            f"{path} is not a bundle: it has no {MANIFEST}; "
            f"make one with `rootbeam train EVENTS --out {path}`"
        ) from None
    except (OSError, ValueError):
        raise BundleError(f"{file} is damaged: it is not JSON; restore the bundle or train again") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise BundleError(f"{file} is damaged: it has no format number; restore the bundle or train again")
    if manifest["format"] > FORMAT:
        raise BundleError(
            f"{path} has format {manifest['format']} and this version reads up to {FORMAT}; update rootbeam"
        )
    if manifest.get("sha256") != _self_hash(manifest) or text != _text_of(manifest):
        raise BundleError(
            f"{file} was edited or cut short: its hash differs; restore the bundle or train again"
        )
    return manifest


def check_files(path: Path, manifest: Mapping[str, Any]) -> None:
    """Every file is there and has the hash the manifest names."""
    for name, expected in manifest["files"].items():
        file = path / name
        if not file.is_file():
            raise BundleError(f"{path} lacks {name}; restore the bundle or train again")
        if sha256_of(file) != expected:
            raise BundleError(f"{file} was edited or cut short: its hash differs; restore it or train again")


def _self_hash(manifest: Mapping[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _text_of(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, indent=2) + "\n"


def _is_bundle(path: Path) -> bool:
    """Whether the folder was written as a bundle, damaged or not in other files than the manifest."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and {"format", "files", "sha256"} <= manifest.keys()


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
