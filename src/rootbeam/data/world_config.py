"""The settings of a simulated world, and what is wrong with bad ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from rootbeam.core.errors import ConfigError

DAY_MS = 86_400_000
_MAX_PERIODS = 400
_MAX_LEAVES = 4096


@dataclass(frozen=True)
class SimulationConfig:
    """What the world is like; every rate is per day, every share within [0, 1]."""

    users: int = 2_000
    items: int = 1_500
    events: int = 100_000
    days: float = 90.0
    start_ms: int = 1_704_067_200_000  # 2024-01-01 UTC
    repeats: float = 0.0  # share of the events that consume an item again
    drift: float = 0.008  # the correlation of a taste with itself d days later is about exp(−drift · d)
    trend: float = 0.5  # amplitude of the categories' own waves, in logits
    depth: int = 3  # levels of the category tree, without the root
    branch: int = 5
    dimensions: int = 12
    item_noise: float = 0.5  # spread of an item about its leaf category, relative to a node vector
    appeal: float = -1.5  # logit of liking an item that is neither near nor far
    sharpness: float = 2.0  # how much taste decides
    popularity_exponent: float = 0.7  # the item of rank r has popularity r^−exponent
    activity_exponent: float = 0.6  # the user of rank r opens sessions in proportion to r^−exponent
    births: float = 0.8  # items are born uniformly from −births · days to +births · days
    half_life_days: float = 20.0  # median half-life of an item's attractiveness
    evergreen: float = 0.2  # share of items that never fade
    slate: int = 10
    examination_exponent: float = 1.0
    explore: float = 0.1  # ε: share of slots drawn uniformly over the available items
    popular: float = 0.25  # π: share of slots drawn by popularity; the rest goes by taste
    policy_sharpness: float = 2.0
    policy_noise: float = 0.7  # error of the policy's idea of a taste, relative to the taste

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_number(field.name, getattr(self, field.name), whole=field.type == "int")
        for name in ("users", "items", "events", "depth", "branch", "dimensions", "slate"):
            _check_range(name, getattr(self, name), 1, math.inf)
        for name in ("evergreen", "births", "explore", "popular"):
            _check_range(name, getattr(self, name), 0, 1)
        for name in ("drift", "trend", "item_noise", "sharpness", "policy_sharpness", "policy_noise"):
            _check_range(name, getattr(self, name), 0, 1000)
        for name in ("popularity_exponent", "activity_exponent", "examination_exponent"):
            _check_range(name, getattr(self, name), 0, 10)
        _check_range("appeal", self.appeal, -10, 10)
        _check_range("repeats", self.repeats, 0, 0.95)
        _check_range("days", self.days, 0.01, 36_525)
        _check_range("half_life_days", self.half_life_days, 0.01, math.inf)
        _check_range("start_ms", self.start_ms, 0, 4_102_444_800_000)
        _check_range("slate", self.slate, 1, 100)
        _check_range("explore + popular", self.explore + self.popular, 0, 1)
        if self.depth * math.log(self.branch) > math.log(_MAX_LEAVES) + 1e-9:
            raise ConfigError(
                f"branch={self.branch} and depth={self.depth} give more than {_MAX_LEAVES} leaf categories: "
                "lower one of them"
            )
        if self.fresh_events > self.users * self.items:
            raise ConfigError(
                f"events={self.events} is more than users × items = {self.users * self.items} allows: "
                "lower events, or raise repeats"
            )

    @property
    def fresh_events(self) -> int:
        """Events that consume an item for the first time."""
        return max(1, self.events - round(self.repeats * self.events))

    @property
    def periods(self) -> int:
        return min(max(math.ceil(self.days), 1), _MAX_PERIODS)

    @property
    def period_ms(self) -> float:
        return self.days * DAY_MS / self.periods

    @property
    def leaves(self) -> int:
        return int(self.branch**self.depth)


def _check_number(name: str, value: object, *, whole: bool) -> None:
    kind = "a whole number" if whole else "a finite number"
    accepted = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, accepted) or not math.isfinite(value):
        raise ConfigError(f"{name}={value!r} is not {kind}: give {kind}")


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        needed = f"at least {low}" if high == math.inf else f"from {low} to {high}"
        raise ConfigError(f"{name}={value} is out of range: give {needed}")
