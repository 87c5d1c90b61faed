"""The arrays and Protocols that stages hand each other; numpy and torch alone.

Item and user ids are dense int32 everywhere in here; -1 is padding and item 0 is a real item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

PADDING = -1
ITEMS = -1  # the last level of any scorer: the items themselves


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: row r is values[ptr[r]:ptr[r + 1]]."""

    values: Int32  # (total,)
    ptr: Int64  # (rows + 1,)

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def row(self, index: int) -> Int32:
        return self.values[self.ptr[index] : self.ptr[index + 1]]

    def lengths(self) -> Int64:
        return np.diff(self.ptr)

    def row_of_value(self) -> Int64:
        """(total,) the row each value stands in."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths())

    def take(self, rows: npt.NDArray[Any]) -> Ragged:
        """The rows named, in that order."""
        lengths = self.lengths()[rows]
        ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        within = np.arange(ptr[-1]) - np.repeat(ptr[:-1], lengths)
        return Ragged(self.values[np.repeat(self.ptr[:-1][rows], lengths) + within], ptr)

    @staticmethod
    def from_rows(rows: list[Any]) -> Ragged:
        ptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        parts = [np.asarray(row, dtype=np.int32) for row in rows]
        return Ragged(np.concatenate([np.zeros(0, dtype=np.int32), *parts]), ptr)


@dataclass(frozen=True)
class Log:
    """The dense interaction log, sorted by user, then time (ties keep the order of the source)."""

    items: Int32  # (events,)
    times: Int64  # (events,) milliseconds since 1970 UTC; the order within the user where not timed
    weights: Float32  # (events,) > 0
    user_ptr: Int64  # (users + 1,)
    n_items: int
    timed: bool = True

    @property
    def n_users(self) -> int:
        return len(self.user_ptr) - 1

    @property
    def n_events(self) -> int:
        return len(self.items)

    def sequences(self) -> Ragged:
        """Each user's items, oldest first."""
        return Ragged(self.items, self.user_ptr)

    def users(self) -> Int64:
        """(events,) the user of every event."""
        return self.sequences().row_of_value()


@dataclass(frozen=True)
class Event:
    """One event as a history sees it. `sequence` numbers the events of the whole log, from 1."""

    item: int
    sequence: int


@dataclass(frozen=True)
class History:
    """What is kept of one user without any model. Made only by `fold` (data/history.py)."""

    last: Int32  # (length,) the last items, oldest first, padded on the left with -1
    seen: frozenset[int]
    events: int
    watermark: int  # sequence number of the last event applied


@dataclass(frozen=True)
class Histories:
    """The histories of many users as arrays; row r equals one `History`."""

    last: Int32  # (users, length)
    seen: Ragged  # (users, ...) ascending
    events: Int64  # (users,)
    watermark: Int64  # (users,)

    def __len__(self) -> int:
        return len(self.last)

    def take(self, rows: npt.NDArray[Any]) -> Histories:
        return Histories(self.last[rows], self.seen.take(rows), self.events[rows], self.watermark[rows])

    def one(self, row: int) -> History:
        return History(
            self.last[row],
            frozenset(self.seen.row(row).tolist()),
            int(self.events[row]),
            int(self.watermark[row]),
        )


class Query(Protocol):
    """What a scorer needs of a batch of users; opaque to whoever carries it."""

    def __len__(self) -> int: ...


class Scorer(Protocol):
    """Gives every node of a level a logit for every user of a batch; higher is better."""

    @property
    def n_items(self) -> int: ...

    def encode(self, histories: Histories) -> Any:
        """histories (batch) -> the scorer's own Query."""
        ...

    def score(self, query: Any, level: int, nodes: torch.Tensor | None) -> torch.Tensor:
        """Logits (batch, nodes). `level` ITEMS is the items; nodes None means all of the level,
        (n,) the same nodes for every row, (batch, n) each row its own.

        The tensor belongs to the caller, who writes on it: give a new one every time.
        """
        ...
