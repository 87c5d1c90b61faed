"""Source -> canonical frames, one batch at a time, with the counts and the bad rows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from rootbeam.core.errors import EventsError
from rootbeam.data.ahead import read_ahead
from rootbeam.data.contract import (
    COLUMNS,
    DTYPES,
    ID_COLUMNS,
    RawBatch,
    ReadOptions,
    ReadReport,
    describe_bad_row,
    rejected_frame,
)
from rootbeam.data.formats import Source, raw_batches
from rootbeam.data.timestamps import SAMPLE_ROWS, Unit, decide_unit
from rootbeam.data.validate import ValidBatch, validate

NAMED_BAD_ROWS = 10
ORDERING = ("timestamp", "position")


@dataclass
class Tally:
    """What has been counted so far; the one thing here that changes."""

    rows: int = 0
    rejected: int = 0
    zero_weight: int = 0
    low_rating: int = 0
    timed: bool = False
    files: dict[str, None] = field(default_factory=dict)
    first_bad: list[dict[str, object]] = field(default_factory=list)

    def add(self, raw: RawBatch, valid: ValidBatch) -> None:
        self.rows += raw.frame.height + raw.malformed.height
        self.rejected += valid.rejected.height
        self.zero_weight += valid.zero_weight
        self.low_rating += valid.low_rating
        self.timed = "timestamp" in raw.frame.columns
        self.files[raw.file] = None
        self.first_bad += valid.rejected.head(NAMED_BAD_ROWS - len(self.first_bad)).to_dicts()

    def report(self, duplicates: int, repeat_rate: float) -> ReadReport:
        dropped = self.rejected + self.zero_weight + self.low_rating + duplicates
        return ReadReport(
            rows=self.rows,
            kept=self.rows - dropped,
            duplicates=duplicates,
            rejected=self.rejected,
            dropped_zero_weight=self.zero_weight,
            dropped_low_rating=self.low_rating,
            timed=self.timed,
            repeat_rate=repeat_rate,
            files=tuple(self.files),
        )


def ingest(source: Source, options: ReadOptions, keep: Callable[[pl.DataFrame], None]) -> Tally:
    """Validate every batch of a source and hand its events, where there are any, to `keep`."""
    tally = Tally()
    unit: Unit | None = None
    ordering: tuple[str, tuple[str, ...]] | None = None
    path = options.rejected or Path("rejected.parquet")
    with tempfile.TemporaryDirectory(prefix="rootbeam-") as spool:
        for raw in read_ahead(raw_batches(source, options)):
            ordering = _same_ordering(ordering, raw)
            if unit is None and "timestamp" in raw.frame.columns and raw.frame.height:
                unit = decide_unit(raw.frame.get_column("timestamp").head(SAMPLE_ROWS))
            valid = validate(raw, options, unit or "seconds")
            if valid.rejected.height and options.on_bad_rows == "quarantine":
                valid.rejected.write_parquet(Path(spool) / f"{tally.rows:020d}.parquet")
            tally.add(raw, valid)
            if valid.frame.height and (options.on_bad_rows == "quarantine" or not tally.rejected):
                keep(valid.frame)
        if tally.rejected and options.on_bad_rows == "fail":
            raise EventsError(_bad_rows_message(tally))
        if options.on_bad_rows == "quarantine":
            _publish_rejected(Path(spool), path)
    _check_some_left(tally)
    return tally


def _same_ordering(seen: tuple[str, tuple[str, ...]] | None, raw: RawBatch) -> tuple[str, tuple[str, ...]]:
    """Files of one log are all timed or all not: half an order is none."""
    here = tuple(name for name in ORDERING if name in raw.frame.columns)
    if seen is None or seen[1] == here:
        return raw.file, here
    raise EventsError(
        f"{raw.file} has {' and '.join(here) or 'neither timestamp nor position'} while {seen[0]} has "
        f"{' and '.join(seen[1]) or 'neither'}; needed the same in every file: read them apart"
    )


def _bad_rows_message(tally: Tally) -> str:
    rows = "; ".join(describe_bad_row(record, len(tally.files) > 1) for record in tally.first_bad)
    more = (
        f"; and {tally.rejected - len(tally.first_bad):,} more"
        if tally.rejected > len(tally.first_bad)
        else ""
    )
    where = next(iter(tally.files)) if len(tally.files) == 1 else f"{len(tally.files)} files"
    return (
        f"{where}: {tally.rejected:,} of {tally.rows:,} rows cannot be used: {rows}{more}. "
        "Correct them, or set them aside with on_bad_rows=quarantine (--on-bad-rows quarantine)"
    )


def _publish_rejected(spool: Path, path: Path) -> None:
    """Bad rows of all batches as one file, in the order of the source."""
    parts = sorted(spool.glob("*.parquet"))
    whole = spool / "rejected"
    lazy = pl.scan_parquet(parts) if parts else rejected_frame().lazy()
    lazy.sink_parquet(whole)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(whole, path)
    except OSError as problem:
        raise EventsError(
            f"{path} cannot be written ({problem.strerror}); name another file for bad rows"
        ) from None


def _check_some_left(tally: Tally) -> None:
    if not tally.rows:
        raise EventsError("the source holds no rows; needed at least one event")
    if tally.rejected + tally.zero_weight + tally.low_rating == tally.rows:
        raise EventsError(
            f"no event is left of {tally.rows:,} rows: {tally.rejected:,} bad, "
            f"{tally.zero_weight:,} of weight 0, {tally.low_rating:,} rated too low; "
            "check columns, weights and min_rating"
        )


# -- one schema for all batches ------------------------------------------------------------------------------


def common_schema(schemas: Iterable[pl.Schema]) -> dict[str, pl.DataType]:
    """Every column that occurs. Ids that are strings anywhere are strings everywhere: 5 becomes "5"."""
    found = list(schemas)
    common: dict[str, pl.DataType] = {}
    for name in COLUMNS:
        if name in ID_COLUMNS:
            common[name] = pl.String() if any(schema[name] == pl.String for schema in found) else pl.Int64()
        elif any(name in schema for schema in found):
            common[name] = DTYPES[name]
    return common


def conform(frame: pl.DataFrame, schema: dict[str, pl.DataType]) -> pl.DataFrame:
    """The same events under the common schema; a column the frame lacks is null."""
    return frame.select(
        pl.col(name).cast(dtype) if name in frame.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in schema.items()
    )
