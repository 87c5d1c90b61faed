"""Training windows of a log: stretches of a user's sequence, each position with the item that follows it.

Every draw is a function of (seed, step) alone, so that a resumed run draws what an uninterrupted one would.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rootbeam.core.errors import InputError
from rootbeam.core.types import PADDING, Float32, Int32, Int64, Log


@dataclass(frozen=True)
class Windows:
    """A log seen as windows of `length` inputs and `length` targets."""

    log: Log
    length: int
    user_of_window: Int64  # (windows,) a user of n targets stands here ⌈n / length⌉ times
    _orders: dict[tuple[int, int], Int64] = field(default_factory=dict, repr=False, compare=False)

    def steps_per_epoch(self, batch: int) -> int:
        return -(-len(self.user_of_window) // batch)

    def order(self, seed: int, epoch: int) -> Int64:
        """(windows,) the users in the order of an epoch; that of the latest one is kept."""
        if (seed, epoch) not in self._orders:
            self._orders.clear()
            rng = np.random.default_rng([seed, 1, epoch])
            self._orders[seed, epoch] = rng.permutation(self.user_of_window)
        return self._orders[seed, epoch]


@dataclass(frozen=True)
class WindowBatch:
    inputs: Int32  # (batch, length) padded on the left with -1
    targets: Int32  # (batch, length) the item after each input; -1 where there is none
    weights: Float32  # (batch, length) of the target event


def windows_of(log: Log, length: int) -> Windows:
    targets = np.maximum(np.diff(log.user_ptr) - 1, 0)
    users = np.repeat(np.arange(log.n_users), -(-targets // length))
    if not len(users):
        raise InputError(
            f"no user of the {log.n_users} given has two events; a sequence model needs at least one who has"
        )
    return Windows(log, length, users)


def draw(windows: Windows, batch: int, step: int, seed: int) -> WindowBatch:
    """The batch of a step: each epoch is a new permutation of the windows, each window a random crop."""
    epoch, place = divmod(step, windows.steps_per_epoch(batch))
    users = windows.order(seed, epoch)[place * batch : (place + 1) * batch]
    log, length = windows.log, windows.length
    start, end = log.user_ptr[users], log.user_ptr[users + 1]
    spare = np.maximum(end - start - (length + 1), 0)
    end = end - np.random.default_rng([seed, 2, step]).integers(0, spare + 1)
    positions = end[:, None] + np.arange(-(length + 1), 0)  # (batch, length + 1)
    inside = positions >= start[:, None]
    positions = np.maximum(positions, 0)
    items = np.where(inside, log.items[positions], PADDING)
    inputs, targets = items[:, :-1], items[:, 1:]
    targets = np.where(inputs == PADDING, PADDING, targets)
    return WindowBatch(inputs, targets, log.weights[positions[:, 1:]])
