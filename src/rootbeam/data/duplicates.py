"""Exact duplicates in a stream of frames: 64-bit hashes find the suspects, the rows themselves decide.

Equal rows have equal hashes, so a row whose hash occurs once has no duplicate. Rows with a common hash are
fetched and compared whole, so two different rows that share a hash both stay.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl

from rootbeam.core.types import Int64

Hashes = npt.NDArray[np.uint64]
ROWS_AT_A_TIME = 4_000_000
MARKS_PER_VALUE = 8  # bytes of marks that a value may cost


def row_hashes(frame: pl.DataFrame) -> Hashes:
    """(rows,) one hash of all columns."""
    return frame.hash_rows(seed=0).to_numpy()


def pair_hashes(frame: pl.DataFrame) -> Hashes:
    """(rows,) one hash of (user, item)."""
    return row_hashes(frame.select("user_id", "item_id"))


def repeat_rate(distinct_pairs: int, kept: int) -> float:
    """1 - distinct (user, item) / events: the share of events whose pair was seen before.

    Duplicates may still be among the pairs, they add no distinct one. Two pairs of one hash count as one:
    with n pairs that is expected n² / 2⁶⁵ times, 3·10⁻⁶ times in ten million.
    """
    return 1.0 - distinct_pairs / kept if kept else 0.0


def count_distinct(values: Hashes | Int64) -> int:
    """By marking where the values lie close together, else by sorting; both are faster than hashing."""
    if not len(values):
        return 0
    low, high = int(values.min()), int(values.max())
    if high - low < MARKS_PER_VALUE * len(values):
        seen = np.zeros(high - low + 1, dtype=np.bool_)
        seen[values - values.dtype.type(low)] = True
        return int(np.count_nonzero(seen))
    ordered = np.sort(values)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + 1


def find_duplicates(hashes: Hashes, fetch: Callable[[Int64], pl.DataFrame]) -> Int64:
    """Indices, ascending, of rows that equal an earlier row. `fetch` gives the rows of ascending indices."""
    ordered = np.sort(hashes)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    common = repeated[np.diff(repeated, prepend=~repeated[:1]) != 0]
    if not len(common):
        return np.empty(0, dtype=np.int64)
    suspects = np.flatnonzero(np.isin(hashes, common, kind="sort")).astype(np.int64)
    groups = 1 + len(suspects) // ROWS_AT_A_TIME
    found = []
    for group in range(groups):  # equal rows share a hash, so they fall into one group
        rows = suspects[hashes[suspects] % np.uint64(groups) == group]
        first = fetch(rows).select(pl.struct(pl.all()).is_first_distinct()).to_series().to_numpy()
        found.append(rows[~first])
    return np.sort(np.concatenate(found))
