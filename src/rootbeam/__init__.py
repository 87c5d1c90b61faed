"""Rootbeam: an interaction log becomes a recommender, and says honestly how good it is.

Public names are imported when first used, so that `import rootbeam` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Config": "rootbeam.core.config",
    "ExactRetriever": "rootbeam.search.exact",
    "Recommender": "rootbeam.recommender",
    "Tree": "rootbeam.core.tree",
    "TreeRetriever": "rootbeam.search.beam",
    "evaluate": "rootbeam.recommender",
    "load": "rootbeam.recommender",
    "read_events": "rootbeam.data.events",
    "simulate": "rootbeam.data.simulate",
    "split": "rootbeam.data.split",
}

__all__ = [
    "Config",
    "ExactRetriever",
    "Recommender",
    "Tree",
    "TreeRetriever",
    "evaluate",
    "load",
    "read_events",
    "simulate",
    "split",
]

if TYPE_CHECKING:
    from rootbeam.core.config import Config
    from rootbeam.core.tree import Tree
    from rootbeam.data.events import read_events
    from rootbeam.data.simulate import simulate
    from rootbeam.data.split import split
    from rootbeam.recommender import Recommender, evaluate, load
    from rootbeam.search.beam import TreeRetriever
    from rootbeam.search.exact import ExactRetriever


class _Package(ModuleType):
    """A submodule may carry the name of a public function (`evaluate`): importing it does not hide that."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'rootbeam' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
