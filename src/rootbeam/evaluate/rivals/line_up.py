"""Who takes part: the rivals that a log and this machine allow, and why the others do not."""

from __future__ import annotations

from dataclasses import dataclass

from rootbeam.core.types import Log
from rootbeam.evaluate.rivals import ease, ials, item_knn, popularity
from rootbeam.evaluate.rivals.rival import Rival
from rootbeam.learn.neighbours import fits


@dataclass(frozen=True)
class LineUp:
    rivals: tuple[Rival, ...]
    skipped: dict[str, str]  # name of the rival -> reason


def line_up(log: Log, memory_bytes: int) -> LineUp:
    """All rivals, cheapest first, less those that cannot run on this log within so much memory."""
    reasons = {
        "recent popularity": None if log.timed else "the log has no timestamps",
        "EASE": None
        if fits(log.n_items, memory_bytes)
        else f"an inverse over {log.n_items:,} items does not fit into {memory_bytes / 2**30:.1f} GiB",
        "iALS": ials.why_missing(),
    }
    everyone = (popularity.all_time(), popularity.recent(), item_knn.item_knn(), ease.ease(), ials.ials())
    return LineUp(
        tuple(rival for rival in everyone if reasons.get(rival.name) is None),
        {name: reason for name, reason in reasons.items() if reason is not None},
    )
