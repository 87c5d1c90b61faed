"""The canonical events frame, how to read into it, and what reading found: plain data, no file access.

Canonical columns, in this order; the first three of the optional ones are parsed, the rest checked:

    user_id, item_id   String or Int64, unchanged from the source
    timestamp          Datetime("ms"), UTC without a zone      (a log without it is "untimed")
    position           Int64, order within the user
    event_type         String
    rating             Float64, finite
    propensity         Float64 in (0, 1]
    request_id         String
    weight             Float32, always present, > 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import polars as pl

from rootbeam.core.errors import EventsError

ID_COLUMNS = ("user_id", "item_id")
COLUMNS = (
    "user_id",
    "item_id",
    "timestamp",
    "position",
    "weight",
    "event_type",
    "rating",
    "propensity",
    "request_id",
)
TIMESTAMP = pl.Datetime("ms")
DTYPES: Mapping[str, pl.DataType] = {
    "timestamp": TIMESTAMP,
    "position": pl.Int64(),
    "event_type": pl.String(),
    "rating": pl.Float64(),
    "propensity": pl.Float64(),
    "request_id": pl.String(),
    "weight": pl.Float32(),
}
MAX_ID_LENGTH = 512


@dataclass(frozen=True)
class ReadOptions:
    """How a source becomes canonical events.

    columns       canonical name -> name in the source
    weights       event type -> weight; 0 drops its events. Multiplies a `weight` column where there is one
    min_rating    events rated below are dropped; None keeps every rating
    on_bad_rows   "fail" names the first ten and raises; "quarantine" writes all of them to `rejected`
    rejected      the file for bad rows; None is ./rejected.parquet, or rejected.parquet of the folder written
    batch_bytes   bytes of text read at a time; Parquet takes one row per 32 of them
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, float] | None = None
    min_rating: float | None = None
    on_bad_rows: Literal["fail", "quarantine"] = "fail"
    rejected: Path | None = None
    batch_bytes: int = 32 * 2**20

    def __post_init__(self) -> None:
        if self.on_bad_rows not in ("fail", "quarantine"):
            raise EventsError(f'on_bad_rows is "{self.on_bad_rows}"; needed "fail" or "quarantine"')
        unknown = sorted(set(self.columns) - set(COLUMNS))
        if unknown:
            raise EventsError(
                f"columns renames {', '.join(unknown)}; the canonical names are {', '.join(COLUMNS)}: "
                "write canonical=source, as in user_id=uid"
            )
        for event_type, weight in (self.weights or {}).items():
            if not 0 <= weight < float("inf"):
                raise EventsError(f'weight of "{event_type}" is {weight}; needed a finite number >= 0')
        if self.batch_bytes < 1:
            raise EventsError(f"batch_bytes is {self.batch_bytes}; needed at least 1")


@dataclass(frozen=True)
class ReadReport:
    """What reading found: rows = kept + duplicates + rejected + dropped_zero_weight + dropped_low_rating.

    repeat_rate is the share of kept events whose (user, item) was seen before.
    """

    rows: int
    kept: int
    duplicates: int
    rejected: int
    dropped_zero_weight: int
    dropped_low_rating: int
    timed: bool
    repeat_rate: float
    files: tuple[str, ...]

    def notes(self) -> tuple[str, ...]:
        """What a person should know, a sentence each; empty when every row was kept."""
        notes = []
        if self.duplicates:
            notes.append(f"{self.duplicates:,} exact duplicates dropped, the first of each kept")
        if self.duplicates and not self.timed:
            notes.append(
                "the log has no timestamp: a repeat cannot be told from a duplicate, so repeats go too"
            )
        if self.rejected:
            notes.append(f"{self.rejected:,} bad rows set aside")
        if self.dropped_zero_weight:
            notes.append(f"{self.dropped_zero_weight:,} events of weight 0 dropped")
        if self.dropped_low_rating:
            notes.append(f"{self.dropped_low_rating:,} events rated below the minimum dropped")
        return tuple(notes)


@dataclass(frozen=True)
class RawBatch:
    """Some rows of a source under canonical names, values as the source has them.

    Text formats give String columns (`ids_are_text`: an integer id is then recognised by its spelling).
    """

    frame: pl.DataFrame
    rows: pl.Series  # (rows,) Int64, numbered as a person finds them in the file
    file: str
    malformed: pl.DataFrame  # REJECTED rows that could not be split into columns at all
    ids_are_text: bool


REJECTED: Mapping[str, Any] = {
    "file": pl.String(),
    "row": pl.Int64(),
    "column": pl.String(),
    "value": pl.String(),
    "reason": pl.String(),
}


def rejected_frame(records: Sequence[tuple[str, int, str | None, str | None, str]] = ()) -> pl.DataFrame:
    """Bad rows as a frame of file, row, column, value (shortened), reason."""
    return pl.DataFrame(list(records), schema=dict(REJECTED), orient="row")


def describe_bad_row(record: Mapping[str, object], name_file: bool) -> str:
    """row 17: timestamp 253402300799 is in the year 9999; needed a time before 2100"""
    what = " ".join(str(part) for part in (record["column"], record["value"]) if part not in (None, ""))
    if record["column"] is None:
        what = f'"{record["value"]}"'
    file = f"{record['file']} " if name_file else ""
    return f"{file}row {record['row']}: {what} {record['reason']}"


def shorten(value: str, length: int = 40) -> str:
    """At most `length` characters, on one line, so that a message stays readable."""
    flat = value.encode("unicode_escape").decode("ascii") if not value.isprintable() else value
    return flat if len(flat) <= length else flat[:length] + "…"


def is_canonical(schema: pl.Schema) -> bool:
    """Whether a frame of this schema can be used as it stands."""
    names = set(schema)
    if not {*ID_COLUMNS, "weight"} <= names <= set(COLUMNS):
        return False
    ids_fit = all(schema[name] in (pl.String, pl.Int64) for name in ID_COLUMNS)
    return ids_fit and all(schema[name] == DTYPES[name] for name in names - set(ID_COLUMNS))
