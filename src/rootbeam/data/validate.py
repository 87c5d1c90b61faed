"""A raw batch -> its canonical events, the rows that cannot be used, and what was dropped on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl

from rootbeam.core.errors import EventsError
from rootbeam.data.contract import (
    COLUMNS,
    DTYPES,
    ID_COLUMNS,
    MAX_ID_LENGTH,
    REJECTED,
    TIMESTAMP,
    RawBatch,
    ReadOptions,
    shorten,
)
from rootbeam.data.timestamps import END_MS, Unit, column_to_ms, is_time_type, out_of_range

LARGEST_EXACT_FLOAT = 2.0**53
ID_SHOWN, VALUE_SHOWN = 20, 40
UNTOUCHED = (*ID_COLUMNS, "event_type", "request_id")  # blanks in them are their own


@dataclass(frozen=True)
class Check:
    """A row where `bad` holds cannot be used; `reason` ends the sentence "row 17: rating 9e999 ..."."""

    column: str
    bad: pl.Expr
    reason: str | pl.Expr


@dataclass(frozen=True)
class Column:
    """A canonical column as an expression over the raw columns, and what can be wrong with it.

    Checks may use the raw columns by name and the value as "new:NAME".
    """

    name: str
    value: pl.Expr
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class ValidBatch:
    frame: pl.DataFrame  # canonical
    rejected: pl.DataFrame  # REJECTED rows
    zero_weight: int
    low_rating: int


def validate(raw: RawBatch, options: ReadOptions, unit: Unit) -> ValidBatch:
    """Apply the data contract to one batch. Order is kept; duplicates are not looked for here."""
    source = _spelled_integers(raw.frame) if raw.ids_are_text else raw.frame
    columns, parsed, bad = _parse(source, raw.file, options, unit)
    if bad is not None and pl.String in source.dtypes:  # blanks around numbers are rare and slow to look for
        source = source.with_columns(pl.col(pl.String).exclude(*UNTOUCHED).str.strip_chars())
        columns, parsed, bad = _parse(source, raw.file, options, unit)
    rejected = raw.malformed
    good = parsed
    if bad is not None:
        checks = [check for column in columns for check in column.checks]
        rejected = pl.concat([rejected, failure_records(parsed, raw.file, raw.rows, checks, bad)]).sort(
            "row", maintain_order=True
        )
        good = parsed.filter(bad < 0)
    frame = _canonical(good, [column.name for column in columns])
    frame, zero_weight, low_rating = _drop(frame, options)
    if raw.ids_are_text:  # rows that were left out do not decide the type of the ids
        frame = _spelled_integers(frame)
    return ValidBatch(_without_empty(frame), rejected, zero_weight, low_rating)


def _parse(
    source: pl.DataFrame, file: str, options: ReadOptions, unit: Unit
) -> tuple[list[Column], pl.DataFrame, pl.Series | None]:
    """The canonical columns, the source with each value beside it as "new:NAME", and the checks failed."""
    columns = [_column(name, source, file, options, unit) for name in COLUMNS if _is_wanted(name, source)]
    parsed = source.with_columns(column.value.alias(f"new:{column.name}") for column in columns)
    return columns, parsed, first_failure(parsed, [check for column in columns for check in column.checks])


def _is_wanted(name: str, source: pl.DataFrame) -> bool:
    return name == "weight" or name in source.columns


def _canonical(parsed: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    return parsed.select(
        pl.col(f"new:{name}").cast(pl.Int64).cast(TIMESTAMP).alias(name)
        if name == "timestamp"
        else pl.col(f"new:{name}").cast(DTYPES[name]).alias(name)
        if name in DTYPES
        else pl.col(f"new:{name}").alias(name)
        for name in names
    )


def first_failure(parsed: pl.DataFrame, checks: Sequence[Check]) -> pl.Series | None:
    """(rows,) the index of the first check a row fails, -1 for none; None when all rows pass all checks."""
    if not parsed.height:
        return None
    failed = parsed.select(
        check.bad.fill_null(False).any().alias(str(index)) for index, check in enumerate(checks)
    )
    failing = [index for index, any_failed in enumerate(failed.row(0)) if any_failed]
    if not failing:
        return None
    first = pl.coalesce(
        *(pl.when(checks[index].bad.fill_null(False)).then(pl.lit(index, pl.Int32)) for index in failing),
        pl.lit(-1, pl.Int32),
    )
    return parsed.select(first.alias("bad")).to_series()


def failure_records(
    parsed: pl.DataFrame, file: str, numbers: pl.Series, checks: Sequence[Check], bad: pl.Series
) -> pl.DataFrame:
    """The rows that fail a check as REJECTED rows, in the order of the checks."""
    frames: list[pl.DataFrame] = []
    for index in sorted(set(bad.unique().to_list()) - {-1}):
        check = checks[index]
        where = (bad == index).arg_true()
        rows = parsed[where]
        shown = ID_SHOWN if check.column in ID_COLUMNS else VALUE_SHOWN
        values = [_shown(value, shown) for value in rows.get_column(check.column).to_list()]
        reason = pl.lit(check.reason) if isinstance(check.reason, str) else check.reason
        frames.append(
            rows.select(
                pl.lit(file).alias("file"),
                numbers.gather(where).alias("row"),
                pl.lit(check.column).alias("column"),
                pl.Series("value", values, pl.String),
                reason.alias("reason"),
            ).cast(dict(REJECTED))
        )
    return pl.concat(frames)


def _shown(value: object, length: int) -> str | None:
    return None if value is None else shorten(str(value), length)


def _drop(frame: pl.DataFrame, options: ReadOptions) -> tuple[pl.DataFrame, int, int]:
    """Leave out events of weight 0, then those rated below the minimum; with the count of each."""
    weighted = frame.filter(pl.col("weight") > 0)
    if options.min_rating is None:
        return weighted, frame.height - weighted.height, 0
    rated = weighted.filter(pl.col("rating") >= options.min_rating)
    return rated, frame.height - weighted.height, weighted.height - rated.height


def _spelled_integers(frame: pl.DataFrame) -> pl.DataFrame:
    text = [frame.get_column(name) for name in ID_COLUMNS if frame.schema[name] == pl.String]
    with ThreadPoolExecutor(max_workers=2) as pool:
        return frame.with_columns(pool.map(integers_if_spelled_so, text))


def _without_empty(frame: pl.DataFrame) -> pl.DataFrame:
    """No optional column without any value: it says nothing, and JSON Lines always has them all."""
    optional = [name for name in frame.columns if name not in ID_COLUMNS]
    return frame.drop(name for name in optional if frame.height and frame[name].null_count() == frame.height)


def integers_if_spelled_so(ids: pl.Series) -> pl.Series:
    """Int64 when every string is an integer as Python prints it, so that no id changes; else unchanged."""
    if ids.head(100).cast(pl.Int64, strict=False).null_count():
        return ids
    numbers = ids.cast(pl.Int64, strict=False)
    if numbers.null_count():
        return ids
    # "007", "+7", "-0" and " 7" are all longer than the number printed: equal totals leave room for none.
    return numbers if ids.str.len_bytes().sum() == printed_length(numbers) else ids


def printed_length(numbers: pl.Series) -> int:
    """Characters of all the integers as Python prints them, together."""
    values = numbers.to_numpy()
    magnitudes = np.abs(values)
    total = len(values) + int(np.count_nonzero(values < 0))
    power, largest = 10, int(magnitudes.max(initial=0))
    while power <= largest:
        total += int(np.count_nonzero(magnitudes >= power))
        power *= 10
    return total


# -- the columns ---------------------------------------------------------------------------------------------


def _column(name: str, source: pl.DataFrame, file: str, options: ReadOptions, unit: Unit) -> Column:
    if name == "weight":
        return _weight(source, file, options)
    dtype, new = source.schema[name], pl.col(f"new:{name}")
    if name in ID_COLUMNS:
        return id_column(name, dtype, file)
    if name == "timestamp":
        return _timestamp(dtype, unit, file)
    if name in ("event_type", "request_id"):
        return _string(name, dtype, file, required=name == "event_type" and options.weights is not None)
    if name == "position":
        return _position(dtype, file)
    value, checks = _number(name, dtype, file)
    if name == "propensity":
        checks.append(Check(name, (new <= 0) | (new > 1), "is no probability; needed one above 0, at most 1"))
    if name == "rating" and options.min_rating is not None:
        checks.append(Check(name, new.is_null(), "is missing; min_rating needs one on every row"))
    return Column(name, value, tuple(checks))


def wrong_type(name: str, dtype: pl.DataType, file: str, needed: str) -> EventsError:
    return EventsError(
        f"{file}: column {name} holds {dtype}; needed {needed}: convert it, or choose another with columns"
    )


def id_column(name: str, dtype: pl.DataType, file: str) -> Column:
    column, new = pl.col(name), pl.col(f"new:{name}")
    missing = Check(name, column.is_null(), "is missing")
    if dtype.is_integer():
        unfit = Check(name, new.is_null(), "does not fit 64 bits")
        return Column(name, column.cast(pl.Int64, strict=False), (missing, unfit))
    if dtype.is_float():
        whole = column.is_finite() & (column == column.floor()) & (column.abs() <= LARGEST_EXACT_FLOAT)
        unfit = Check(name, ~whole, "is not a whole number; needed strings or integers")
        return Column(name, column.cast(pl.Int64, strict=False), (missing, unfit))
    if not (dtype in (pl.String, pl.Null) or isinstance(dtype, (pl.Categorical, pl.Enum))):
        raise wrong_type(name, dtype, file, "strings or integers")
    empty = Check(name, new == "", "is empty")
    long = Check(name, new.str.len_chars() > MAX_ID_LENGTH, f"is longer than {MAX_ID_LENGTH} characters")
    return Column(name, column.cast(pl.String), (missing, empty, long))


def _timestamp(dtype: pl.DataType, unit: Unit, file: str) -> Column:
    if not is_time_type(dtype):
        raise wrong_type("timestamp", dtype, file, "seconds, milliseconds, ISO 8601 or datetimes")
    column, ms = pl.col("timestamp"), pl.col("new:timestamp")
    text = "ISO 8601, as in 2024-05-01T12:00:00Z"
    needed = text if unit == "text" else f"{unit} since 1970, as in the first rows"
    blank = ms.is_null() & (column.is_null() if dtype != pl.String else column.is_null() | (column == ""))
    checks = (
        Check("timestamp", blank, "is missing"),
        Check("timestamp", ms.is_null(), f"is no time; needed {needed}"),
        Check("timestamp", ~ms.is_finite(), "is not finite"),
        Check("timestamp", (ms < 0) | (ms >= END_MS), out_of_range(ms)),
    )
    return Column("timestamp", column_to_ms("timestamp", dtype, unit), checks)


def _string(name: str, dtype: pl.DataType, file: str, required: bool) -> Column:
    categorical = isinstance(dtype, (pl.Categorical, pl.Enum))
    if not (dtype in (pl.String, pl.Null) or categorical or dtype.is_integer()):
        raise wrong_type(name, dtype, file, "strings")
    text = pl.col(name).cast(pl.String)
    missing = Check(name, pl.col(f"new:{name}").is_null(), "is missing; weights need one on every row")
    return Column(name, pl.when(text != "").then(text), (missing,) if required else ())


def _number(name: str, dtype: pl.DataType, file: str) -> tuple[pl.Expr, list[Check]]:
    """Float64, null where nothing is given."""
    column, new = pl.col(name), pl.col(f"new:{name}")
    if not (dtype.is_numeric() or dtype in (pl.String, pl.Null)):
        raise wrong_type(name, dtype, file, "numbers")
    checks = [Check(name, ~new.is_finite(), "is not finite")]
    if dtype == pl.String:
        checks.insert(0, Check(name, new.is_null() & (column != ""), "is not a number"))
    return column.cast(pl.Float64, strict=False), checks


def _position(dtype: pl.DataType, file: str) -> Column:
    number, checks = _number("position", dtype, file)
    new = pl.col("new:position")
    whole = number.is_finite() & (number == number.floor()) & (number.abs() <= LARGEST_EXACT_FLOAT)
    from_float = pl.when(whole).then(number).cast(pl.Int64, strict=False)
    exact = pl.col("position").cast(pl.Int64, strict=False) if not dtype.is_float() else from_float
    missing = pl.col("position").is_null()
    if dtype == pl.String:
        exact = pl.coalesce(exact, from_float)
        missing |= pl.col("position") == ""
    checks = [
        Check("position", missing, "is missing"),
        Check("position", new.is_null(), "is not a whole number of 64 bits"),
    ]
    return Column("position", exact, tuple(checks))


def _weight(source: pl.DataFrame, file: str, options: ReadOptions) -> Column:
    """The `weight` column (1 without one) times the weight of the event type, where there is a map.

    A weight too small or too large for Float32 becomes 0 or infinite here, and is dropped or refused.
    """
    value = pl.lit(1.0)
    checks: list[Check] = []
    if "weight" in source.columns:
        value, checks = _number("weight", source.schema["weight"], file)
        new = pl.col("new:weight")
        checks.append(Check("weight", value.is_null(), "is missing"))
        checks.append(Check("weight", new < 0, "is negative; needed a weight of at least 0"))
    if options.weights is not None:
        value = value * _event_weight(source, file, options.weights)
    return Column("weight", value.cast(pl.Float32), tuple(checks))


def _event_weight(source: pl.DataFrame, file: str, weights: Mapping[str, float]) -> pl.Expr:
    found = source.get_column("event_type").cast(pl.String).drop_nulls().unique().sort().to_list()
    unknown = [event_type for event_type in found if event_type and event_type not in weights]
    if unknown:
        names = ", ".join(shorten(event_type) for event_type in unknown[:10])
        raise EventsError(
            f"{file}: event types without a weight: {names}; the types found are "
            f"{', '.join(shorten(event_type) for event_type in found[:20])}: give each a weight, 0 drops it"
        )
    mapped = {str(name): float(weight) for name, weight in weights.items()}
    return pl.col("event_type").cast(pl.String).replace_strict(mapped, default=None, return_dtype=pl.Float64)
