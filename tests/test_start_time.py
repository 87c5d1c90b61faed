"""Starting must feel instant: nobody waits for torch to see a help page."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAVY = {"torch", "polars", "numpy", "msgspec", "rich", "typer", "altair"}


def best_seconds(command: list[str]) -> float:
    """The fastest of three runs; what disturbs a run only ever makes it slower."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def modules_after(statement: str) -> set[str]:
    """The top-level names in sys.modules after the statement, in an interpreter of its own."""
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(subprocess.run(python(code), check=True, capture_output=True, text=True).stdout.split())


def test_import_rootbeam_loads_nothing_heavy() -> None:
    assert "torch" in modules_after("import torch"), "the probe itself must see what is loaded"
    assert modules_after("import rootbeam") & HEAVY == set()


def test_import_rootbeam_takes_less_than_300_ms() -> None:
    assert best_seconds(python("import rootbeam")) < 0.3


@pytest.mark.skipif(
    not (Path(__file__).parents[1] / "src" / "rootbeam" / "cli.py").exists(), reason="no command line yet"
)
class TestCommandLine:
    COMMAND = str(Path(sys.executable).with_name("rootbeam"))

    def test_help_takes_less_than_500_ms(self) -> None:
        assert best_seconds([self.COMMAND, "--help"]) < 0.5

    def test_help_loads_neither_torch_nor_polars(self) -> None:
        assert modules_after("import rootbeam.cli") & {"torch", "polars"} == set()
