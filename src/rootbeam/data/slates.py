"""What the policy of a simulated world shows, and what users want of it: one period at a time.

A request shows a slate whose slots the policy draws independently; an item drawn a second time leaves its
slot empty, so an item stands in a slate once. The slot at rank r is looked at with probability r^−η, and an
item looked at is wanted with probability γ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rootbeam.core.types import Bool, Float64, Int64
from rootbeam.data.world import Policy, Truth
from rootbeam.data.world_config import DAY_MS, SimulationConfig

_REQUESTS_PER_SESSION = 3.0
_GAP_MS = 60_000.0  # mean time between two requests of a session
_LOOK_MS = 3_000.0  # time from one slot to the next
_CELLS = 2**22  # users × leaf categories held at once


@dataclass(frozen=True)
class Shown:
    """Slots shown, as columns (rows,)."""

    user: Int64
    item: Int64
    request: Int64
    rank: Int64  # from 1
    shown_ms: Int64
    taken_ms: Int64  # when the item is taken, if it is
    propensity: Float64
    wanted: Bool  # looked at and liked: taken, unless taken before

    def take(self, rows: Int64 | Bool) -> Shown:
        return Shown(**{name: column[rows] for name, column in vars(self).items()})

    @staticmethod
    def concat(parts: list[Shown]) -> Shown:
        columns = [vars(part) for part in parts]
        return Shown(**{name: np.concatenate([part[name] for part in columns]) for name in columns[0]})


def show(
    truth: Truth, period: int, count: int, first_request: int, rng: np.random.Generator, *, keep_all: bool
) -> Shown:
    """`count` requests of one period, in pieces that bound the memory."""
    user, start_ms = _requests(truth, period, count, rng)
    policy = truth.policy_in(period)
    piece = max(1, min(50_000, _CELLS // truth.config.leaves))
    parts = []
    for low in range(0, count, piece):
        now = slice(low, min(low + piece, count))
        shown = _slates(truth, policy, period, user[now], start_ms[now], first_request + low, rng)
        shown = shown if keep_all else shown.take(shown.wanted)
        propensity = _slot_propensity(truth, shown, period)
        parts.append(replace(shown, propensity=propensity))
    return Shown.concat(parts)


def _requests(truth: Truth, period: int, count: int, rng: np.random.Generator) -> tuple[Int64, Int64]:
    """User and time (count,) of requests, in sessions that lie wholly within the period."""
    length = rng.geometric(1.0 / _REQUESTS_PER_SESSION, size=count)  # more sessions than needed, then cut
    length = length[: np.searchsorted(np.cumsum(length), count) + 1]
    session = np.repeat(np.arange(len(length)), length)[:count]
    edges = np.cumsum(truth.activity)
    user = np.searchsorted(edges, rng.random(len(length)) * edges[-1], side="right")
    user = np.minimum(user, truth.config.users - 1)
    passed = np.cumsum(rng.exponential(_GAP_MS, size=count) + _LOOK_MS * truth.config.slate)
    head = np.searchsorted(session, np.arange(len(length)))
    passed -= passed[head][session]
    tail = np.append(head[1:], count) - 1
    duration = passed[tail] + _look_ms(truth.config) * (truth.config.slate + 1)
    shrink = np.minimum(1.0, 0.5 * truth.config.period_ms / duration)
    start = _moments(truth.config, period, len(length), rng) * (
        1.0 - shrink * duration / truth.config.period_ms
    )
    begin_ms = truth.config.start_ms + period * truth.config.period_ms
    return user[session], np.ceil(begin_ms + start[session] + shrink[session] * passed).astype(np.int64)


def _moments(config: SimulationConfig, period: int, count: int, rng: np.random.Generator) -> Float64:
    """(count,) milliseconds since the period began; a daily rhythm, busiest at 20:00, quietest at 08:00."""
    grid = np.linspace(0.0, config.period_ms, 24 * math.ceil(config.period_ms / DAY_MS) + 1)
    clock = (config.start_ms + period * config.period_ms + grid) / DAY_MS
    busy = 1.0 + 0.8 * np.cos(2 * math.pi * (clock - 20 / 24))
    passed = np.concatenate([[0.0], np.cumsum((busy[1:] + busy[:-1]) / 2)])
    return np.asarray(np.interp(rng.random(count) * passed[-1], passed, grid))


def _look_ms(config: SimulationConfig) -> float:
    return min(_LOOK_MS, config.period_ms / (8 * config.slate))


def _slates(
    truth: Truth,
    policy: Policy,
    period: int,
    user: Int64,
    start_ms: Int64,
    first_request: int,
    rng: np.random.Generator,
) -> Shown:
    """One slate per request (n,): draw the slots, blank the doubles, let the user look and choose."""
    config = truth.config
    item = _draw_items(truth, policy, period, user, rng)  # (n, slate)
    request, slot = np.nonzero(_first_in_row(item))
    who, what = user[request], item[request, slot]
    looked = rng.random(len(slot)) < truth.examination(slot + 1)
    wanted = looked.copy()
    wanted[looked] = rng.random(int(looked.sum())) < truth.relevance_in(who[looked], what[looked], period)
    delay = _look_ms(config) * (slot + rng.random(len(slot)))
    return Shown(
        user=who,
        item=what,
        request=first_request + request,
        rank=slot + 1,
        shown_ms=start_ms[request],
        taken_ms=start_ms[request] + delay.astype(np.int64),
        propensity=np.zeros(len(slot)),  # filled in for the rows that are kept
        wanted=wanted,
    )


def _draw_items(truth: Truth, policy: Policy, period: int, user: Int64, rng: np.random.Generator) -> Int64:
    """(n, slate) items: every slot draws, independently, from the policy's mixture."""
    config = truth.config
    shape = (len(user), config.slate)
    part, point = rng.random(shape), rng.random(shape)
    low, high = np.zeros(shape), np.full(shape, policy.edges[-1])
    by_taste = part >= config.explore + config.popular
    leaf = _draw_leaves(truth, policy, period, user, by_taste, rng)
    low[by_taste] = policy.edges[truth.leaf_ptr[leaf]]
    high[by_taste] = policy.edges[truth.leaf_ptr[leaf + 1]]
    place = np.minimum(low + point * (high - low), np.nextafter(high, 0.0))  # rounding never reaches the next
    position = np.searchsorted(policy.edges, place, side="right") - 1
    uniform = part < config.explore
    position[uniform] = policy.available[(point[uniform] * len(policy.available)).astype(np.int64)]
    return np.asarray(truth.tree_order[position])


def _draw_leaves(
    truth: Truth, policy: Policy, period: int, user: Int64, by_taste: Bool, rng: np.random.Generator
) -> Int64:
    """A leaf category for every slot marked in `by_taste` (n, slate), in row order."""
    distinct, row_of_user = np.unique(user, return_inverse=True)
    edges = np.cumsum(truth.leaf_probability_in(distinct, policy, period), axis=1)
    edges /= edges[:, -1:]
    row = row_of_user[np.nonzero(by_taste)[0]]
    ladder = (edges + np.arange(len(distinct))[:, None]).ravel()  # row r covers (r, r + 1]
    place = np.minimum(row + rng.random(len(row)), np.nextafter(row + 1.0, 0.0))
    return np.asarray(np.searchsorted(ladder, place, side="right") - row * truth.config.leaves)


def _first_in_row(item: Int64) -> Bool:
    """(n, slate) whether the item stands in no earlier slot of its row."""
    first = np.ones(item.shape, dtype=np.bool_)
    for slot in range(1, item.shape[1]):
        first[:, slot] = (item[:, :slot] != item[:, slot : slot + 1]).all(axis=1)
    return first


def _slot_propensity(truth: Truth, shown: Shown, period: int) -> Float64:
    """P(this item, first at this rank) = p · (1 − p)^(rank − 1); over the ranks it sums to m."""
    probability = truth.slot_probability_in(shown.user, shown.item, period)
    return np.asarray(probability * (1.0 - probability) ** (shown.rank - 1))
