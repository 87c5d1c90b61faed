"""Events larger than memory: a source streamed into a canonical folder, and read back in batches."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from rootbeam.core.types import Int64
from rootbeam.data.contract import ID_COLUMNS, ReadOptions, ReadReport
from rootbeam.data.duplicates import (
    Hashes,
    count_distinct,
    find_duplicates,
    pair_hashes,
    repeat_rate,
    row_hashes,
)
from rootbeam.data.folder import DATASET, EVENTS, FORMAT, ITEMS, replacing
from rootbeam.data.formats import Source
from rootbeam.data.ingest import common_schema, conform, ingest

PART_ROWS = 1_000_000


@dataclass
class PartWriter:
    """Canonical frames -> part files of at least PART_ROWS rows, with the hashes of their rows."""

    folder: Path
    schemas: list[pl.Schema] = field(default_factory=list)  # of every part
    lengths: list[int] = field(default_factory=list)
    rows: list[Hashes] = field(default_factory=list)
    pairs: list[Hashes] = field(default_factory=list)
    waiting: list[pl.DataFrame] = field(default_factory=list)

    def add(self, frame: pl.DataFrame) -> None:
        self.waiting.append(frame)
        if sum(each.height for each in self.waiting) >= PART_ROWS:
            self.flush()

    def flush(self) -> None:
        if not self.waiting:
            return
        schema = common_schema(frame.schema for frame in self.waiting)
        frame = pl.concat([conform(each, schema) for each in self.waiting])
        self.waiting.clear()
        frame.write_parquet(self.path(len(self.lengths)))
        self.schemas.append(frame.schema)
        self.lengths.append(frame.height)
        self.rows.append(row_hashes(frame))
        self.pairs.append(pair_hashes(frame))

    def path(self, part: int) -> Path:
        return self.folder / f"part-{part:05d}.parquet"

    def read(self, part: int) -> pl.DataFrame:
        return pl.read_parquet(self.path(part), glob=False)

    def starts(self) -> Int64:
        """(parts + 1,) the index of every part's first row, and the number of rows."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    def unify(self) -> None:
        """Give every part the common schema; equal rows of different types had different hashes."""
        common = common_schema(self.schemas)
        for part, schema in enumerate(self.schemas):
            if dict(schema) != common:
                frame = conform(self.read(part), common)
                frame.write_parquet(self.path(part))
                self.schemas[part] = frame.schema
                self.rows[part], self.pairs[part] = row_hashes(frame), pair_hashes(frame)

    def fetch(self, indices: Int64) -> pl.DataFrame:
        """The rows of ascending indices, read from the parts."""
        bounds = np.searchsorted(indices, self.starts())
        frames: list[pl.DataFrame] = [
            self.read(part)[indices[low:high] - start]
            for part, (low, high, start) in enumerate(
                zip(bounds[:-1], bounds[1:], self.starts()[:-1], strict=True)
            )
            if high > low
        ]
        return pl.concat(frames)

    def remove(self, indices: Int64) -> None:
        """Rewrite the parts without the rows of ascending indices."""
        starts = self.starts()
        bounds = np.searchsorted(indices, starts)
        for part in range(len(self.lengths)):
            here = indices[bounds[part] : bounds[part + 1]] - starts[part]
            if len(here):
                keep = np.ones(self.lengths[part], dtype=np.bool_)
                keep[here] = False
                self.read(part).filter(pl.Series(keep)).write_parquet(self.path(part))


def write_canonical(
    source: Source,
    out_dir: str | Path,
    options: ReadOptions = ReadOptions(),
    *,
    name: str | None = None,
    licence: str | None = None,
    items: pl.DataFrame | None = None,
) -> ReadReport:
    """Stream a source into the canonical folder `out_dir`, which appears whole or not at all.

    Memory: one batch, and 16 bytes a row for the hashes that find duplicates and repeats.
    """
    out = Path(out_dir)
    with replacing(out) as beside:
        if options.on_bad_rows == "quarantine" and options.rejected is None:
            options = replace(options, rejected=beside / "rejected.parquet")
        written = _write_events(source, beside / EVENTS, options)
        if items is not None:
            items.write_parquet(beside / ITEMS)
        about = _describe(written, name or out.name, licence)
        (beside / DATASET).write_text(
            json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    return written.report


@dataclass(frozen=True)
class Written:
    report: ReadReport
    users: int
    items: int


def _write_events(source: Source, folder: Path, options: ReadOptions) -> Written:
    folder.mkdir(parents=True)
    writer = PartWriter(folder)
    tally = ingest(source, options, writer.add)
    writer.flush()
    writer.unify()
    parts = [writer.path(part) for part in range(len(writer.lengths))]
    with ThreadPoolExecutor(max_workers=2) as pool:  # all four sort, one thread each
        pairs = pool.submit(lambda: count_distinct(np.concatenate(writer.pairs)))
        suspects = pool.submit(lambda: find_duplicates(np.concatenate(writer.rows), writer.fetch))
        users, items = (pool.submit(_distinct, parts, name) for name in ID_COLUMNS)
        duplicates = suspects.result()
        counts = pairs.result(), users.result(), items.result()
    writer.remove(duplicates)
    kept = sum(writer.lengths) - len(duplicates)
    report = tally.report(len(duplicates), repeat_rate(counts[0], kept))
    return Written(report, counts[1], counts[2])


def _describe(written: Written, name: str, licence: str | None) -> dict[str, Any]:
    report = written.report
    return {
        "format": FORMAT,
        "name": name,
        "licence": licence,
        "rows": report.kept,
        "users": written.users,
        "items": written.items,
        "timed": report.timed,
        "repeat_rate": report.repeat_rate,
        "duplicates": report.duplicates,
        "rejected": report.rejected,
    }


def _distinct(parts: list[Path], name: str) -> int:
    ids = pl.scan_parquet(parts, glob=False).select(name)
    if ids.collect_schema()[name] == pl.Int64:
        return count_distinct(ids.collect().get_column(name).to_numpy())
    return int(ids.select(pl.col(name).n_unique()).collect().item())


def scan_batches(source: Source, options: ReadOptions = ReadOptions()) -> Iterator[pl.DataFrame]:
    """The canonical events of a source, without duplicates, a batch at a time.

    A duplicate, a bad row or an id that is no integer may stand in the last line, so the source is first
    spooled to a temporary folder; nothing is handed out of a source that cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="rootbeam-") as folder:
        _write_events(source, Path(folder) / EVENTS, options)
        for part in sorted((Path(folder) / EVENTS).iterdir()):
            frame = pl.read_parquet(part, glob=False)
            if frame.height:
                yield frame
