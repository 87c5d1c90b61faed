"""The one definition of a user's history, shared by training and serving.

`fold` takes a history and an event to the next history. `replay` does the same for whole logs at once;
a property test proves the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rootbeam.core.types import PADDING, Event, Histories, History, Int32, Int64, Log, Ragged

DEFAULT_LENGTH = 200
CELLS_AT_ONCE = 4_000_000  # places of histories looked up at once: bounds the memory of `last_items`


def empty_history(length: int = DEFAULT_LENGTH) -> History:
    """The history of a user nothing is known of."""
    return History(np.full(length, PADDING, dtype=np.int32), frozenset(), 0, 0)


def fold(history: History, event: Event) -> History:
    """The history after one more event; an event at or before the watermark changes nothing."""
    if event.sequence <= history.watermark:
        return history
    last = np.append(history.last[1:], np.int32(event.item)) if len(history.last) else history.last
    return History(last, history.seen | {event.item}, history.events + 1, event.sequence)


def replay(log: Log, length: int = DEFAULT_LENGTH, sequence: Int64 | None = None) -> Histories:
    """Every user's history after the whole log; event e has number `sequence[e]`, else e + 1."""
    numbers = np.arange(1, log.n_events + 1) if sequence is None else sequence
    last_event = np.maximum(log.user_ptr[1:] - 1, 0)
    has_events = np.diff(log.user_ptr) > 0
    watermark = np.where(has_events, numbers[last_event] if log.n_events else 0, 0).astype(np.int64)
    return Histories(
        last_items(log.sequences(), length), distinct(log.sequences()), np.diff(log.user_ptr), watermark
    )


def replay_of(log: Log, users: npt.NDArray[Any], length: int = DEFAULT_LENGTH) -> Histories:
    """The rows `users` of `replay(log, length)`, without making the others."""
    sequences = log.sequences().take(users)
    events = sequences.lengths()
    watermark = np.where(events > 0, log.user_ptr[1:][users], 0).astype(np.int64)
    return Histories(last_items(sequences, length), distinct(sequences), events, watermark)


def last_items(sequences: Ragged, length: int) -> Int32:
    """(rows, length) the last items of every row, oldest first, padded on the left with -1."""
    last = np.full((len(sequences), length), PADDING, dtype=np.int32)
    if not len(sequences.values):
        return last
    offsets = np.arange(-length, 0)  # (length,)
    step = max(1, CELLS_AT_ONCE // max(1, length))
    for first in range(0, len(sequences), step):
        begin, end = (side[first : first + step, None] for side in (sequences.ptr[:-1], sequences.ptr[1:]))
        positions = end + offsets  # (rows of the block, length)
        items = sequences.values[np.maximum(positions, 0)]
        last[first : first + step] = np.where(positions >= begin, items, PADDING)
    return last


def distinct(sequences: Ragged) -> Ragged:
    """Each row's distinct values, ascending."""
    rows = sequences.row_of_value()
    order = np.lexsort((sequences.values, rows))
    rows, values = rows[order], sequences.values[order]
    first = np.ones(len(values), dtype=bool)
    first[1:] = (rows[1:] != rows[:-1]) | (values[1:] != values[:-1])
    counts = np.bincount(rows[first], minlength=len(sequences))
    return Ragged(values[first], np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


def from_items(histories: Sequence[Iterable[int]], length: int = DEFAULT_LENGTH) -> Histories:
    """Histories given as lists of dense items, oldest first."""
    sequences = Ragged.from_rows([list(row) for row in histories])
    counts = sequences.lengths()
    return Histories(last_items(sequences, length), distinct(sequences), counts, counts.copy())


def stack(histories: Sequence[History]) -> Histories:
    """Single histories of one length as arrays."""
    return Histories(
        np.stack([history.last for history in histories]).astype(np.int32),
        Ragged.from_rows([sorted(history.seen) for history in histories]),
        np.array([history.events for history in histories], dtype=np.int64),
        np.array([history.watermark for history in histories], dtype=np.int64),
    )


def concatenate(parts: Sequence[Histories]) -> Histories:
    """The rows of all parts, in order; histories of one length."""
    lengths = np.concatenate([part.seen.lengths() for part in parts])
    seen = Ragged(
        np.concatenate([part.seen.values for part in parts]).astype(np.int32),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )
    return Histories(
        np.concatenate([part.last for part in parts]),
        seen,
        np.concatenate([part.events for part in parts]),
        np.concatenate([part.watermark for part in parts]),
    )
