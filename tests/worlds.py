"""Toy worlds whose right answer is known by construction."""

from __future__ import annotations

import numpy as np
import polars as pl

from rootbeam.core.types import Log, Ragged

DAY_MS = 86_400_000


def log_of(rows: list[list[int]], n_items: int, times: list[list[int]] | None = None) -> Log:
    """A log from a list of items for each user; event e happens at time e unless times are given."""
    sequences = Ragged.from_rows(rows)
    given = [time for row in times for time in row] if times is not None else range(len(sequences.values))
    return Log(
        sequences.values,
        np.array(list(given), dtype=np.int64),
        np.ones(len(sequences.values), dtype=np.float32),
        sequences.ptr,
        n_items,
    )


def checkerboard(users: int = 60, items: int = 20, events: int = 12, seed: int = 0) -> pl.DataFrame:
    """Even users take even items, odd users odd ones, in an order that walks through the catalogue."""
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        start = int(rng.integers(0, items))
        mine = [(start + 2 * step) % items for step in range(events)]
        mine = [item - item % 2 + user % 2 for item in mine]
        mine = list(dict.fromkeys(mine))
        begin = int(rng.integers(0, 5 * DAY_MS))
        rows += [
            {"user_id": f"u{user}", "item_id": f"i{item}", "timestamp": begin + place * DAY_MS}
            for place, item in enumerate(mine)
        ]
    frame = pl.DataFrame(rows).sort("timestamp")
    return frame.with_columns(
        pl.from_epoch("timestamp", time_unit="ms").cast(pl.Datetime("ms")), weight=pl.lit(1.0, pl.Float32)
    )
