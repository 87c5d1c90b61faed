"""What a split kept and what it dropped, for people and for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

By = Literal["time", "users", "leave-one-out", "random"]
Repeats = Literal["forbid", "allow"]


@dataclass(frozen=True)
class PartReport:
    """What became of the labels of validation or test."""

    users: int  # with a label left
    cold_users: int  # of these, without any input event: evaluated apart, as new users
    labels: int  # events left to predict
    input_events: int
    cold_items: int  # items seen neither in training nor in the inputs
    cold_labels_removed: int  # their events
    seen_labels_removed: int  # the user had the item in the inputs already (repeats forbidden)
    users_without_labels_left: int


@dataclass(frozen=True)
class SplitReport:
    """Counts of everything that was kept and dropped."""

    by: By
    repeats: Repeats
    events: int
    users: int
    items: int
    train_events: int
    train_users: int
    train_items: int
    valid: PartReport
    test: PartReport
    cut_offs_ms: tuple[int, int] | None  # T1 and T2 of a time split, milliseconds since 1970 UTC
    short_users: int  # too few events to give labels: dropped (`users`), or all in train (`leave-one-out`)
    short_events_dropped: int
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        lines = [
            f"split by {self.by}: {self.events:,} events, {self.users:,} users, {self.items:,} items",
            f"  train: {self.train_events:,} events, {self.train_users:,} users, {self.train_items:,} items",
        ]
        lines += _part_lines("valid", self.valid) + _part_lines("test", self.test)
        if self.cut_offs_ms:
            first, second = (_utc(moment) for moment in self.cut_offs_ms)
            lines.append(f"  cut-offs (UTC): valid from {first}, test from {second}")
        if self.short_users:
            fate = "dropped" if self.short_events_dropped else "kept in train alone"
            lines.append(f"  users with too few events for labels: {self.short_users:,}, {fate}")
        return lines + [f"  warning: {warning}" for warning in self.warnings]


def _part_lines(name: str, part: PartReport) -> list[str]:
    lines = [
        f"  {name}: {part.labels:,} labels of {part.users:,} users, of whom {part.cold_users:,} new; "
        f"{part.input_events:,} input events"
    ]
    removed = []
    if part.cold_labels_removed:
        removed.append(f"{part.cold_labels_removed:,} labels of {part.cold_items:,} unknown items")
    if part.seen_labels_removed:
        removed.append(f"{part.seen_labels_removed:,} labels the user had already")
    if part.users_without_labels_left:
        removed.append(f"with them {part.users_without_labels_left:,} users")
    return lines + ([f"    removed: {', '.join(removed)}"] if removed else [])


def _utc(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
