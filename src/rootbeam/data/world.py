"""A made-up world whose truth is known: who likes what, when, and what the logging policy shows.

Time is cut into periods (days, for logs of up to 400 days). Tastes, attractiveness, availability and the
policy are constant within a period, so that every probability below is exact for any time of the log.

    affinity(u, i, t)  = √d · ⟨θ_u(t), v_i⟩                                ~ N(0, 1) over random users
    γ(u, i, t)         = a_i(t) · σ(appeal + sharpness · affinity + trend_c(t))     c the leaf category of i
    p(i | u, t)        = ε / N(t) + π · w_i / W + τ · q(c | u) · w_i / W_c,     w_i = popularity_i · a_i(t)
    q(c | u)           ∝ exp(policy_sharpness · √d · ⟨θ̂_u(t), v_c⟩)         over categories with an item
    m(u, i, t)         = 1 − (1 − p)^slate                                 the slots are drawn independently
    examination(rank)  = rank^−η
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rootbeam.core.types import Float32, Float64, Int64
from rootbeam.data.world_config import DAY_MS, SimulationConfig

_KNOTS = 17  # a taste path is drawn at so many points in time and interpolated between them
_LEAST_ATTRACTIVENESS = 1e-4  # keeps every available item's probability far from rounding

Time = int | npt.NDArray[np.generic]


@dataclass(frozen=True)
class Policy:
    """The logging policy in one period, by position: items in tree order, so that categories are ranges."""

    weights: Float64  # (items,) popularity · attractiveness by position, 0 where not available
    edges: Float64  # (items + 1,) cumulative weights
    available: Int64  # (available,) positions
    category_mass: Float64  # (leaves,) W_c


@dataclass(frozen=True)
class Truth:
    """All that is known of the world. Users and items are dense codes: "u12" is 12, "i7" is 7.

    `time` is milliseconds since 1970 (or datetime64); users, items and time broadcast against each other.
    """

    config: SimulationConfig
    item_vectors: Float32  # (items, dimensions) unit length
    leaf_vectors: Float32  # (leaves, dimensions) unit length
    taste_knots: Float32  # (knots, users, dimensions) evenly spaced over the log; one knot where drift is 0
    policy_error: Float32  # (users, dimensions)
    popularity: Float64  # (items,)
    activity: Float64  # (users,) sums to 1
    birth_ms: Int64  # (items,) may lie before the log
    half_life_ms: Float64  # (items,) inf where evergreen
    trend_cycles: Float64  # (leaves,) waves over the log
    trend_phase: Float64  # (leaves,)
    category_codes: Int64  # (depth, items) node of every item at every level, the leaf category last
    tree_order: Int64  # (items,) item at every position of the true hierarchy
    leaf_ptr: Int64  # (leaves + 1,) positions of leaf c are leaf_ptr[c]:leaf_ptr[c + 1]

    def period_of(self, time: Time) -> Int64:
        """The period a time falls in; times outside the log belong to the nearest period."""
        moment = np.asarray(time)
        if moment.dtype.kind == "M":
            moment = moment.astype("datetime64[ms]")
        since = moment.astype(np.int64) - self.config.start_ms
        return np.clip(since / self.config.period_ms, 0, self.config.periods - 1).astype(np.int64)

    def relevance(self, users: npt.ArrayLike, items: npt.ArrayLike, time: Time) -> Float64:
        """γ: the probability that u takes i once examined, for an item not yet consumed; 0 before birth."""
        return self._by_period(users, items, time, self.relevance_in)

    def slot_probability(self, users: npt.ArrayLike, items: npt.ArrayLike, time: Time) -> Float64:
        """p: the probability that one slot of a request of u at that time draws i."""
        return self._by_period(users, items, time, self.slot_probability_in)

    def exposure(self, users: npt.ArrayLike, items: npt.ArrayLike, time: Time) -> Float64:
        """m: the probability that a request of u at that time shows i anywhere in its slate."""
        return np.asarray(1.0 - (1.0 - self.slot_probability(users, items, time)) ** self.config.slate)

    def examination(self, rank: npt.ArrayLike) -> Float64:
        """The probability that the slot of this rank (from 1) is looked at."""
        return np.asarray(rank, dtype=np.float64) ** -self.config.examination_exponent

    def taste(self, users: npt.ArrayLike, time: int) -> Float64:
        """(users, dimensions) unit vectors θ_u(t)."""
        return self.taste_in(np.asarray(users, dtype=np.int64), int(self.period_of(time)))

    def attractiveness(self, period: int) -> Float64:
        """(items,) a_i: 1 at birth, halved every half-life; 0 while not available."""
        start_ms = self.config.start_ms + period * self.config.period_ms
        age_ms = start_ms - self.birth_ms
        faded = np.exp2(-np.maximum(age_ms, 0) / self.half_life_ms)
        return np.where(age_ms >= 0, np.maximum(faded, _LEAST_ATTRACTIVENESS), 0.0)

    def taste_in(self, users: Int64, period: int) -> Float64:
        """(users, dimensions) θ_u in a period."""
        last = len(self.taste_knots) - 1
        place = last * period / self.config.periods
        knot = int(place)
        path = self.taste_knots[knot, users].astype(np.float64)
        if last:
            path = path + (place - knot) * (self.taste_knots[knot + 1, users] - path)
        return _unit(path)

    def relevance_in(self, users: Int64, items: Int64, period: int) -> Float64:
        """γ of pairs (n,) in one period."""
        distinct, row = np.unique(users, return_inverse=True)
        taste = self.taste_in(distinct, period).astype(np.float32)
        affinity = np.einsum("nd,nd->n", taste[row], self.item_vectors[items]) * math.sqrt(taste.shape[1])
        trend = self.trend_in(period)[self.category_codes[-1, items]]
        logit = self.config.appeal + self.config.sharpness * affinity.astype(np.float64) + trend
        return np.asarray(self.attractiveness(period)[items] / (1.0 + np.exp(-logit)))

    def trend_in(self, period: int) -> Float64:
        """(leaves,) what the wave of every category adds to the logit of its items."""
        passed = period / self.config.periods
        return np.asarray(
            self.config.trend * np.sin(2 * math.pi * (self.trend_cycles * passed + self.trend_phase))
        )

    def slot_probability_in(self, users: Int64, items: Int64, period: int) -> Float64:
        """p of pairs (n,) in one period."""
        config, policy = self.config, self.policy_in(period)
        distinct, row = np.unique(users, return_inverse=True)
        leaf = self.category_codes[-1, items]
        by_item = np.empty(config.items)
        by_item[self.tree_order] = policy.weights
        weight = by_item[items]
        within = np.divide(weight, policy.category_mass[leaf], out=np.zeros_like(weight), where=weight > 0)
        by_taste = self.leaf_probability_in(distinct, policy, period)[row, leaf] * within
        by_popularity = weight / policy.edges[-1]
        uniform = (weight > 0) / len(policy.available)
        taste_share = 1.0 - config.explore - config.popular
        mixture = config.explore * uniform + config.popular * by_popularity + taste_share * by_taste
        return np.asarray(mixture)

    def policy_in(self, period: int) -> Policy:
        weights = (self.popularity * self.attractiveness(period))[self.tree_order]
        edges = np.concatenate([[0.0], np.cumsum(weights)])
        mass = edges[self.leaf_ptr[1:]] - edges[self.leaf_ptr[:-1]]
        return Policy(weights, edges, np.flatnonzero(weights > 0), mass)

    def leaf_probability_in(self, users: Int64, policy: Policy, period: int) -> Float64:
        """(users, leaves) q: which category the policy's taste part draws from."""
        believed = _unit(self.taste_in(users, period) + self.policy_error[users])
        scale = self.config.policy_sharpness * math.sqrt(self.config.dimensions)
        logits = scale * (believed @ self.leaf_vectors.T.astype(np.float64))
        logits[:, policy.category_mass <= 0] = -np.inf
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def _by_period(
        self,
        users: npt.ArrayLike,
        items: npt.ArrayLike,
        time: Time,
        pairs: Callable[[Int64, Int64, int], Float64],
    ) -> Float64:
        """Broadcast, and compute every period's pairs in one go."""
        user, item, period = np.broadcast_arrays(
            np.asarray(users, dtype=np.int64), np.asarray(items, dtype=np.int64), self.period_of(time)
        )
        flat_user, flat_item, flat_period = user.ravel(), item.ravel(), period.ravel()
        result = np.empty(len(flat_period))
        order = np.argsort(flat_period, kind="stable")
        present, starts = np.unique(flat_period[order], return_index=True)
        for one, rows in zip(present, np.split(order, starts[1:]), strict=True):
            result[rows] = pairs(flat_user[rows], flat_item[rows], int(one))
        return result.reshape(period.shape)


def make_truth(config: SimulationConfig, rng: np.random.Generator) -> Truth:
    """Draw a world. It depends on the sizes and the laws, not on how many events are asked for."""
    codes, node_sums = _grow_categories(config, rng)
    leaf = codes[-1]
    noise = _normal(rng, config.items, config.dimensions)
    item_vectors = _unit(node_sums[leaf] + config.item_noise * noise).astype(np.float32)
    birth_ms = _births_ms(config, rng)
    half_life_days = config.half_life_days * np.exp2(rng.normal(0.0, 0.5, config.items))
    half_life_days[rng.random(config.items) < config.evergreen] = np.inf
    activity = _power_law(config.users, config.activity_exponent, rng)
    return Truth(
        config=config,
        item_vectors=item_vectors,
        leaf_vectors=_unit(node_sums).astype(np.float32),
        taste_knots=_taste_knots(config, rng),
        policy_error=(config.policy_noise * _normal(rng, config.users, config.dimensions)).astype(np.float32),
        popularity=_power_law(config.items, config.popularity_exponent, rng),
        activity=activity / activity.sum(),
        birth_ms=birth_ms,
        half_life_ms=half_life_days * DAY_MS,
        trend_cycles=rng.uniform(0.5, 2.0, config.leaves),
        trend_phase=rng.random(config.leaves),
        category_codes=codes,
        tree_order=np.argsort(leaf, kind="stable"),
        leaf_ptr=np.searchsorted(np.sort(leaf), np.arange(config.leaves + 1)),
    )


def _grow_categories(config: SimulationConfig, rng: np.random.Generator) -> tuple[Int64, Float64]:
    """Codes (depth, items) and, per leaf category, the sum of the node vectors along its path (leaves, d)."""
    leaf = rng.permutation(config.items) % config.leaves
    codes = [leaf // config.branch ** (config.depth - level) for level in range(1, config.depth + 1)]
    sums = np.zeros((1, config.dimensions))
    for level in range(1, config.depth + 1):
        nodes = _normal(rng, config.branch**level, config.dimensions)
        sums = np.repeat(sums, config.branch, axis=0) + nodes
    return np.stack(codes).astype(np.int64), sums


def _taste_knots(config: SimulationConfig, rng: np.random.Generator) -> Float32:
    """A stationary Gaussian path per user; from knot to knot it keeps a correlation of exp(−drift · days)."""
    knots = _KNOTS if config.drift > 0 else 1
    path = np.empty((knots, config.users, config.dimensions), dtype=np.float32)
    path[0] = _normal(rng, config.users, config.dimensions)
    kept = math.exp(-config.drift * config.days / (_KNOTS - 1))
    for knot in range(1, knots):
        fresh = _normal(rng, config.users, config.dimensions)
        path[knot] = kept * path[knot - 1] + math.sqrt(1.0 - kept**2) * fresh
    return path


def _births_ms(config: SimulationConfig, rng: np.random.Generator) -> Int64:
    birth = rng.uniform(-1.0, 1.0, config.items) * config.births * config.days * DAY_MS
    birth[np.argmin(birth)] = min(birth.min(), 0.0)  # something can be shown from the first moment
    return config.start_ms + birth.astype(np.int64)


def _power_law(size: int, exponent: float, rng: np.random.Generator) -> Float64:
    """rank^−exponent, the ranks dealt out at random."""
    return np.asarray((rng.permutation(size) + 1.0) ** -exponent, dtype=np.float64)


def _normal(rng: np.random.Generator, rows: int, dimensions: int) -> Float64:
    """Gaussian rows of expected squared length 1."""
    return np.asarray(rng.standard_normal((rows, dimensions)) / math.sqrt(dimensions))


def _unit(vectors: Float64) -> Float64:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12))
