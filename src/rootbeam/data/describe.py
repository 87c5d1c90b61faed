"""What a log holds, whether it is enough to learn from, and what training on it would cost."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import polars as pl

from rootbeam.core.errors import EventsError
from rootbeam.data.events import Events, frame_of
from rootbeam.data.split import split

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
MIN_EVENTS, MIN_USERS, MIN_ITEMS = 1_000, 50, 20  # below any of these popularity is served
REPEAT_RATE_TO_ALLOW = 0.2
BURST_RATE_TO_WARN = 0.1
_MS_PER_DAY = 86_400_000


@dataclass(frozen=True)
class Costs:
    """The constants of `training_seconds` and `training_bytes`, for the default settings on two CPU cores.

    Measured on ML-1M: a step of 3,200 positions takes .04 s, an inverse over 3,706 items 2 s.
    """

    dim: int = 64
    length: int = 50
    logits: int = 512  # negatives of the sampled softmax, the most a position is scored against
    epochs: int = 40  # some 20 until early stopping, and as many again for the refit
    flops_per_second: float = 7.5e10
    fixed_seconds: float = 10.0  # reading, popularity, writing
    inverses: int = 7  # of EASE: six penalties and the refit
    inverse_flops_per_second: float = 2.5e10
    inverse_bytes: float = 28.0  # per pair of items; above `most_inverse_bytes` item-kNN takes over
    most_inverse_bytes: float = 6 * 2**30
    bytes_per_event: float = 64.0  # the frame, the arrays and one working copy
    bytes_per_parameter: float = 16.0  # value, gradient and Adam's two moments, fp32
    positions_per_batch: int = 3_200
    bytes_per_logit: float = 8.0  # value and gradient, fp32
    fixed_bytes: float = 4e8  # the interpreter with torch and polars loaded


COSTS = Costs()


@dataclass(frozen=True)
class Description:
    """Counts and shares of a log; shares lie between 0 and 1."""

    events: int
    users: int
    items: int
    density: float  # distinct (user, item) pairs ÷ (users · items)
    timed: bool
    first_ms: int | None  # milliseconds since 1970 UTC
    last_ms: int | None
    events_per_user: dict[str, float]  # quantile -> events
    events_per_item: dict[str, float]
    median_events_per_user: float
    repeat_rate: float  # share of events whose user had the item before
    suggested_repeats: str  # "allow" or "forbid"
    burst_rate: float | None  # share of events with another of the same user at the same time
    top_items_share: float  # share of events that fall on the most popular 1 % of items
    cold_users: int | None  # of a time split 80/10/10: test users without any earlier event
    test_users: int | None
    known_items_share: float | None  # share of the events' items that the items file describes
    enough: bool
    shortages: tuple[str, ...]
    training_seconds: float
    training_bytes: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.events:,} events, {self.users:,} users, {self.items:,} items, density {self.density:.3%}",
            _span_line(self),
            f"events per user: {_quantile_text(self.events_per_user)}",
            f"events per item: {_quantile_text(self.events_per_item)}",
            f"the most popular 1 % of items take {self.top_items_share:.0%} of the events",
            _repeat_line(self),
            *_burst_lines(self),
            *_cold_lines(self),
            *_items_lines(self),
            _enough_line(self),
            f"training: about {_duration(self.training_seconds)} on two cores where --budget allows it "
            f"(10 min by default), {self.training_bytes / 1e9:.1f} GB of memory",
        ]


def describe(events: Events | pl.DataFrame, items: pl.DataFrame | None = None) -> Description:
    """Describe a log; `items` (default: the events' own) says which items have a description."""
    frame = frame_of(events)
    if items is None and isinstance(events, Events):
        items = events.items
    if frame.is_empty():
        raise EventsError("no events to describe: give a log with at least one event")
    per_user = frame.group_by("user_id").len()["len"]
    per_item = frame.group_by("item_id").len()["len"]
    pairs = frame.select("user_id", "item_id").unique().height
    repeat_rate = (len(frame) - pairs) / len(frame)
    repeats = "allow" if repeat_rate > REPEAT_RATE_TO_ALLOW else "forbid"
    first_ms, last_ms = _span_ms(frame)
    cold_users, test_users = _cold_under_a_time_split(frame, repeats)
    shortages = _shortages(len(frame), len(per_user), len(per_item))
    return Description(
        events=len(frame),
        users=len(per_user),
        items=len(per_item),
        density=pairs / (len(per_user) * len(per_item)),
        timed=first_ms is not None,
        first_ms=first_ms,
        last_ms=last_ms,
        events_per_user=_quantiles(per_user),
        events_per_item=_quantiles(per_item),
        median_events_per_user=_quantiles(per_user)["0.5"],
        repeat_rate=repeat_rate,
        suggested_repeats=repeats,
        burst_rate=_burst_rate(frame),
        top_items_share=int(per_item.top_k(math.ceil(len(per_item) / 100)).sum()) / len(frame),
        cold_users=cold_users,
        test_users=test_users,
        known_items_share=_known_items_share(frame, items),
        enough=not shortages,
        shortages=shortages,
        training_seconds=training_seconds(len(frame), len(per_item)),
        training_bytes=training_bytes(len(frame), len(per_item)),
    )


def training_seconds(positions: int, items: int, costs: Costs = COSTS) -> float:
    """fixed + EASE's inverses + epochs · positions · 6 · (24 d² + 4 length · d + logits · d) ÷ flops/s.

    6: two flops a multiplication, forward and twice backward. 24 d²: two blocks of the encoder.
    """
    d = costs.dim
    each = 6 * (24 * d**2 + 4 * costs.length * d + min(items, costs.logits) * d)
    inverses = costs.inverses * items**3 / costs.inverse_flops_per_second if _inverts(items, costs) else 0.0
    return costs.fixed_seconds + inverses + costs.epochs * positions * each / costs.flops_per_second


def training_bytes(positions: int, items: int, costs: Costs = COSTS) -> float:
    """fixed + the events + the larger of EASE's inverse and the encoder with one batch of logits."""
    logits = min(positions, costs.positions_per_batch) * min(items, costs.logits) * costs.bytes_per_logit
    encoder = items * costs.dim * costs.bytes_per_parameter + logits
    inverse = costs.inverse_bytes * items**2 if _inverts(items, costs) else 0.0
    return costs.fixed_bytes + positions * costs.bytes_per_event + max(encoder, inverse)


def _inverts(items: int, costs: Costs) -> bool:
    return costs.inverse_bytes * items**2 <= costs.most_inverse_bytes


def _quantiles(counts: pl.Series) -> dict[str, float]:
    return {f"{share:g}": float(counts.quantile(share, "nearest") or 0) for share in QUANTILES}


def _span_ms(frame: pl.DataFrame) -> tuple[int | None, int | None]:
    if "timestamp" not in frame.columns:
        return None, None
    times = frame["timestamp"].dt.epoch("ms")
    return int(times.min()), int(times.max())  # type: ignore[arg-type]


def _burst_rate(frame: pl.DataFrame) -> float | None:
    if "timestamp" not in frame.columns:
        return None
    together = frame.group_by("user_id", "timestamp").len()["len"]
    return int(together.filter(together > 1).sum()) / len(frame)


def _cold_under_a_time_split(frame: pl.DataFrame, repeats: str) -> tuple[int | None, int | None]:
    """(test users without earlier events, test users); None where no such split can be made."""
    if "timestamp" not in frame.columns:
        return None, None
    try:
        test = split(frame, by="time", repeats="allow" if repeats == "allow" else "forbid").report.test
    except EventsError:  # all events at one moment
        return None, None
    return test.cold_users, test.users


def _known_items_share(frame: pl.DataFrame, items: pl.DataFrame | None) -> float | None:
    if items is None:
        return None
    if "item_id" not in items.columns:
        raise EventsError(f"the items lack item_id, they have {', '.join(items.columns)}: rename the column")
    seen, described = frame["item_id"].unique(), items["item_id"]
    if seen.dtype != described.dtype:
        raise EventsError(
            f"item_id is {seen.dtype} in the events and {described.dtype} in the items: "
            "give both the same type"
        )
    return int(seen.is_in(described.implode()).sum()) / len(seen)


def _shortages(events: int, users: int, items: int) -> tuple[str, ...]:
    needs = (("events", events, MIN_EVENTS), ("users", users, MIN_USERS), ("items", items, MIN_ITEMS))
    return tuple(f"{have:,} {name} of {least:,}" for name, have, least in needs if have < least)


def _span_line(found: Description) -> str:
    if found.first_ms is None or found.last_ms is None:
        return "no timestamps: a time split is not possible, and recency cannot be used"
    days = (found.last_ms - found.first_ms) / _MS_PER_DAY
    return f"from {_day(found.first_ms)} to {_day(found.last_ms)} UTC, {days:,.1f} days"


def _repeat_line(found: Description) -> str:
    if found.suggested_repeats == "allow":
        return (
            f"{found.repeat_rate:.0%} of the events repeat an item of the same user: "
            f"use --repeats allow (suggested above {REPEAT_RATE_TO_ALLOW:.0%})"
        )
    return f"{found.repeat_rate:.0%} of the events repeat an item of the same user: --repeats forbid fits"


def _burst_lines(found: Description) -> list[str]:
    if found.burst_rate is None or found.burst_rate <= BURST_RATE_TO_WARN:
        return []
    return [
        f"warning: {found.burst_rate:.0%} of the events share their user and timestamp with another event; "
        "inside such a burst the order is the order of the rows, not the order things happened"
    ]


def _cold_lines(found: Description) -> list[str]:
    if not found.test_users:
        return []
    return [
        f"time split 80/10/10: {found.cold_users:,} of {found.test_users:,} test users "
        "have no earlier event (they are served as new users)"
    ]


def _items_lines(found: Description) -> list[str]:
    if found.known_items_share is None:
        return []
    return [f"the items file describes {found.known_items_share:.1%} of the items in the events"]


def _enough_line(found: Description) -> str:
    if found.enough:
        return "enough to learn from"
    return f"too little for a learned model ({', '.join(found.shortages)} needed): popularity will be served"


def _quantile_text(quantiles: dict[str, float]) -> str:
    named = {"0": "min", "0.5": "median", "1": "max"}
    return ", ".join(
        f"{named.get(share, f'{float(share):.0%}')} {count:,.0f}" for share, count in quantiles.items()
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _day(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, tz=UTC).strftime("%Y-%m-%d")
