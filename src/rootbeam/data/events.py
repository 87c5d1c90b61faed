"""Reading events: any source -> the canonical frame with a report, in memory or as a folder on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from rootbeam.core.errors import EventsError
from rootbeam.data.contract import ReadOptions, ReadReport, is_canonical
from rootbeam.data.duplicates import count_distinct, find_duplicates, pair_hashes, repeat_rate, row_hashes
from rootbeam.data.folder import ITEMS, is_folder
from rootbeam.data.formats import Source
from rootbeam.data.ingest import common_schema, conform, ingest
from rootbeam.data.items import read_items
from rootbeam.data.spool import scan_batches, write_canonical

__all__ = [
    "Events",
    "ReadOptions",
    "ReadReport",
    "frame_of",
    "read_events",
    "scan_batches",
    "write_canonical",
]


@dataclass(frozen=True)
class Events:
    """Canonical events, what reading them found, and the items where they are known."""

    frame: pl.DataFrame
    report: ReadReport
    items: pl.DataFrame | None = None


def read_events(
    source: Source,
    *,
    columns: Mapping[str, str] | None = None,
    weights: Mapping[str, float] | None = None,
    min_rating: float | None = None,
    on_bad_rows: Literal["fail", "quarantine"] = "fail",
    rejected: str | Path | None = None,
    items: Source | None = None,
    batch_bytes: int = ReadOptions.batch_bytes,
) -> Events:
    """Read a file, folder, glob, canonical folder or polars frame into memory; see `ReadOptions`."""
    options = ReadOptions(
        columns=dict(columns or {}),
        weights=weights,
        min_rating=min_rating,
        on_bad_rows=on_bad_rows,
        rejected=Path(rejected) if rejected is not None else None,
        batch_bytes=batch_bytes,
    )
    frames: list[pl.DataFrame] = []
    tally = ingest(source, options, frames.append)
    schema = common_schema(frame.schema for frame in frames)
    frame = pl.concat([conform(each, schema) for each in frames])
    frames.clear()
    frame, duplicates = drop_duplicates(frame)
    report = tally.report(duplicates, repeat_rate(count_distinct(pair_hashes(frame)), frame.height))
    return _with_items(Events(frame, report), items if items is not None else _items_beside(source))


def drop_duplicates(frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The first of each set of equal rows, in order, and how many were dropped."""
    found = find_duplicates(row_hashes(frame), lambda rows: frame[rows])
    keep = np.ones(frame.height, dtype=np.bool_)
    keep[found] = False
    return (frame.filter(pl.Series(keep)) if len(found) else frame), len(found)


def _items_beside(source: Source) -> Path | None:
    """The items of a canonical folder."""
    if isinstance(source, pl.DataFrame) or not is_folder(Path(source)):
        return None
    path = Path(source) / ITEMS
    return path if path.exists() else None


def _with_items(events: Events, source: Source | None) -> Events:
    """Events and items side by side, their item ids of one type: strings where either has strings."""
    if source is None:
        return events
    items = read_items(source)
    frame = events.frame
    if frame.schema["item_id"] != items.schema["item_id"]:
        frame, items = (each.with_columns(pl.col("item_id").cast(pl.String)) for each in (frame, items))
    return Events(frame, events.report, items)


def frame_of(events: Events | pl.DataFrame) -> pl.DataFrame:
    """The canonical frame of what any later function is given; a frame that is none yet is read into one."""
    if isinstance(events, Events):
        return events.frame
    if not isinstance(events, pl.DataFrame):
        raise EventsError(
            f"events are a {type(events).__name__}; needed the Events of read_events, or a polars frame"
        )
    return events if is_canonical(events.schema) else read_events(events).frame
