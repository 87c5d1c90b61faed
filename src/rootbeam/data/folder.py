"""The canonical folder on disk: its layout, written atomically, and its description read back.

DIR/dataset.json               {"format": 1, "name", "licence", "rows", "users", "items", "timed", ...}
DIR/events/part-00000.parquet  the events, in the order of the source
DIR/items.parquet              optional: one row per item
DIR/test/                      optional: a second canonical folder, the test events of the source
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from rootbeam.core.errors import EventsError
from rootbeam.core.inplace import put_in_place
from rootbeam.data.contract import COLUMNS

FORMAT = 1
DATASET = "dataset.json"
EVENTS = "events"
ITEMS = "items.parquet"


def is_folder(path: Path) -> bool:
    """Whether `path` is a canonical folder."""
    return (path / DATASET).is_file()


def read_meta(folder: Path) -> dict[str, Any]:
    """The content of dataset.json, checked for its format number."""
    path = folder / DATASET
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EventsError(f"{folder} has no {DATASET}, so it is not a data set folder") from None
    except (OSError, ValueError) as problem:
        raise EventsError(f"{path} cannot be read as JSON ({problem}); fetch the data set again") from None
    if not isinstance(meta, dict) or not isinstance(meta.get("format"), int):
        raise EventsError(f"{path} carries no format number; fetch the data set again")
    if meta["format"] > FORMAT:
        raise EventsError(
            f"{path} has format {meta['format']} and this version reads up to {FORMAT}; update rootbeam"
        )
    return meta


def events_glob(folder: Path) -> str:
    """The pattern of the event files of a canonical folder (its `test/` is not among them)."""
    return str(folder / EVENTS / "*.parquet")


def write_folder(
    out: Path,
    frames: Iterable[pl.DataFrame | pl.LazyFrame],
    items: pl.DataFrame | None,
    meta: Mapping[str, Any],
) -> Path:
    """Writes a canonical folder beside `out` and renames it into place, whole or not at all."""
    with replacing(out) as beside:
        write_into(beside, frames, items, meta)
    return out


def write_into(
    folder: Path,
    frames: Iterable[pl.DataFrame | pl.LazyFrame],
    items: pl.DataFrame | None,
    meta: Mapping[str, Any],
) -> None:
    """Writes the layout into a folder that is not yet visible; each frame becomes one part file.

    Lazy frames are streamed, so a source larger than memory can be written.
    """
    (folder / EVENTS).mkdir(parents=True)
    for part, frame in enumerate(frames):
        lazy = frame.lazy()
        present = set(lazy.collect_schema().names())
        ordered = lazy.select([name for name in COLUMNS if name in present])
        ordered.sink_parquet(folder / EVENTS / f"part-{part:05d}.parquet", compression="zstd")
    if items is not None:
        items.write_parquet(folder / ITEMS, compression="zstd")
    described = {"format": FORMAT, **meta, **_counts(folder)}
    (folder / DATASET).write_text(
        json.dumps(described, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _counts(folder: Path) -> dict[str, Any]:
    events = pl.scan_parquet(events_glob(folder))
    counts = events.select(
        rows=pl.len(), users=pl.col("user_id").n_unique(), items=pl.col("item_id").n_unique()
    ).collect()
    return {**counts.row(0, named=True), "timed": "timestamp" in events.collect_schema().names()}


@contextmanager
def replacing(out: Path, marker: str = DATASET) -> Iterator[Path]:
    """A new folder beside `out` that takes its place when the block ends well, and vanishes when not.

    Only an empty folder, or one that holds the file `marker`, is ever replaced.
    """
    out = Path(os.path.realpath(out))  # a link stays a link: what it points at is replaced
    if out.exists() and not (out / marker).is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise EventsError(f"{out} exists and is not a data set folder; name a new or an empty folder")
    beside = out.with_name(f".{out.name}.{secrets.token_hex(4)}.new")
    try:
        beside.mkdir(parents=True)
    except OSError as problem:
        raise EventsError(
            f"{out} cannot be written ({problem.strerror}); name a folder you may write to"
        ) from None
    try:
        yield beside
        put_in_place(beside, out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
