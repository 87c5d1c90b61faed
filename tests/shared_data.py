"""Where the benchmark data lies beside a developer's checkout; tests that need it skip where it is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared(name: str) -> Path:
    """The path of a file or folder of the benchmark data, or a skip with the reason."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs {name} of the benchmark data beside the checkout")
    return path
