"""A folder that takes the place of another in one step."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def put_in_place(new: Path, path: Path) -> None:
    """Gives the folder `new` the name `path`; a folder of that name is gone afterwards.

    Where the kernel cannot exchange two names, there is an instant in which `path` does not exist.
    """
    if not path.exists():
        new.rename(path)
        return
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.old")
    if _exchange(new, path):
        new.rename(aside)  # what stood at `path`
    else:
        path.rename(aside)
        try:
            new.rename(path)
        except OSError:
            aside.rename(path)
            raise
    shutil.rmtree(aside, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Swaps two names in one step, where the kernel and the file system can."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    names = os.fsencode(first), os.fsencode(second)
    return bool(renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)
