"""Times as sources write them -> milliseconds since 1970, UTC. Valid: from 1970, before 2100."""

from __future__ import annotations

from typing import Literal

import polars as pl

Unit = Literal["seconds", "milliseconds", "text"]

END_MS = 4_102_444_800_000  # 2100-01-01
MILLISECONDS_FROM = 1e11  # as seconds this is the year 5138, as milliseconds March 1973
YEARS_POLARS_CAN_NAME_MS = 8e15
SAMPLE_ROWS = 10_000

ISO = (
    r"^\s*(\d{4}-\d{2}-\d{2})"
    r"(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?\s*(?:([Zz])|([+-])(\d{2}):?(\d{2})?)?)?\s*$"
)


def decide_unit(times: pl.Series) -> Unit:
    """How a source writes time, from its first rows: the median tells seconds from milliseconds.

    Strings are ISO 8601 ("text") unless more of them are numbers; between equals, the first decides.
    """
    sample = times.drop_nulls()
    if sample.dtype == pl.String:
        sample = sample.filter(sample != "")
        numbers = sample.str.strip_chars().cast(pl.Float64, strict=False)
        n_numbers, n_iso = numbers.count(), iso_to_ms(sample).count()
        if n_iso > n_numbers or (n_iso == n_numbers and len(sample) and numbers.is_null()[0]):
            return "text"
        sample = numbers.drop_nulls()
    elif not sample.dtype.is_numeric():
        return "text"
    median = sample.cast(pl.Float64).drop_nans().quantile(0.5, "lower")
    return "milliseconds" if median is not None and median >= MILLISECONDS_FROM else "seconds"


def number_to_ms(value: pl.Expr, unit: Unit) -> pl.Expr:
    """Float64 milliseconds, a fraction of a second kept to the millisecond."""
    return (value * 1000.0).round() if unit == "seconds" else value.round()


def iso_to_ms(texts: pl.Series) -> pl.Series:
    """Float64 milliseconds of ISO 8601 dates, with or without time; else null. No zone means UTC."""
    groups = texts.str.extract_groups(ISO).struct.unnest()
    hour, minute, second, zone_hour, zone_minute = (
        pl.col(name).cast(pl.Int64).fill_null(0) for name in ("2", "3", "4", "8", "9")
    )
    fraction_ms = pl.col("5").str.pad_end(3, "0").str.slice(0, 3).cast(pl.Int64).fill_null(0)
    zone_sign = pl.when(pl.col("7") == "-").then(-1).otherwise(1)
    day_ms = pl.col("1").str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("ms")).dt.epoch("ms")
    minutes = hour * 60 + minute - zone_sign * (zone_hour * 60 + zone_minute)
    is_time = (hour < 24) & (minute < 60) & (second < 60) & (zone_hour < 24) & (zone_minute < 60)
    ms = pl.when(is_time).then(day_ms + (minutes * 60 + second) * 1000 + fraction_ms)
    return groups.select(ms.cast(pl.Float64).alias(texts.name)).to_series()


def column_to_ms(name: str, dtype: pl.DataType, unit: Unit) -> pl.Expr:
    """Float64 milliseconds of a source column; null where the value is no time. NaN and infinity stay."""
    column = pl.col(name)
    if isinstance(dtype, pl.Datetime):
        naive = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if dtype.time_zone else column
        return naive.dt.epoch("ms").cast(pl.Float64)
    if dtype == pl.Date:
        return column.cast(pl.Datetime("ms")).dt.epoch("ms").cast(pl.Float64)
    if dtype == pl.String:
        if unit == "text":
            return column.map_batches(iso_to_ms, return_dtype=pl.Float64)
        return number_to_ms(column.cast(pl.Float64, strict=False), unit)
    return number_to_ms(column.cast(pl.Float64, strict=False), unit)


def is_time_type(dtype: pl.DataType) -> bool:
    """Whether a column of this type can hold times at all."""
    return isinstance(dtype, pl.Datetime) or dtype in (pl.Date, pl.String, pl.Null) or dtype.is_numeric()


def out_of_range(ms: pl.Expr) -> pl.Expr:
    """Why a finite time cannot be used, as a sentence's end."""
    year = ms.cast(pl.Int64, strict=False).cast(pl.Datetime("ms")).dt.year()
    nameable = ms.abs() < YEARS_POLARS_CAN_NAME_MS
    needed = pl.when(ms < 0).then(pl.lit("from 1970 on")).otherwise(pl.lit("before 2100"))
    return (
        pl.when(nameable)
        .then(pl.format("is in the year {}; needed a time {}", pl.when(nameable).then(year), needed))
        .otherwise(pl.lit("is no time between 1970 and 2100"))
    )
