"""Public data sets other than MovieLens, in the formats their authors publish, as canonical frames."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import polars as pl

from rootbeam.core.errors import EventsError
from rootbeam.core.types import Float64
from rootbeam.data.layouts import (
    UNUSED_SEPARATOR,
    Loaded,
    canonical,
    expect,
    first_line,
    from_milliseconds,
    from_seconds,
    locate,
    one_file,
)

ASIN = r"(?:B[0-9A-Z]{9}|\d{9}[\dX])"
JSON_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
CSV_SUFFIXES = (".csv", ".csv.gz")
MIND_TIME = "%m/%d/%Y %I:%M:%S %p"


def amazon_2014(source: Path) -> Loaded:
    """Reviews as JSON lines, or ratings as user,item,rating,seconds without a header."""
    path = one_file(source, JSON_SUFFIXES + CSV_SUFFIXES)
    if path.name.endswith(JSON_SUFFIXES):
        return _reviews(path)
    _refuse_swapped(path, rf"{ASIN},(?!{ASIN},).*", "amazon-2018")
    expect(path, r"[^,]+,[^,]+,[\d.]+,\d+", "A39HTATAQ9V7YF,0205616461,5.0,1369699200")
    return _ratings(path, "user", "item")


def amazon_2018(source: Path) -> Loaded:
    """Reviews as JSON lines, or ratings as item,user,rating,seconds without a header."""
    path = one_file(source, JSON_SUFFIXES + CSV_SUFFIXES)
    if path.name.endswith(JSON_SUFFIXES):
        return _reviews(path)
    _refuse_swapped(path, rf"(?!{ASIN},)[^,]+,{ASIN},.*", "amazon-2014")
    expect(path, r"[^,]+,[^,]+,[\d.]+,\d+", "0001713353,A1C6M8LCIX4M6M,5.0,1123804800")
    return _ratings(path, "item", "user")


def amazon_2023(source: Path) -> Loaded:
    """Reviews as JSON lines, or ratings as CSV with a header; times in milliseconds."""
    path = one_file(source, JSON_SUFFIXES + CSV_SUFFIXES)
    schema = {"user_id": pl.String, "parent_asin": pl.String, "rating": pl.Float64, "timestamp": pl.Int64}
    if path.name.endswith(JSON_SUFFIXES):
        _expect_keys(path, tuple(schema))
        lines = pl.scan_ndjson(path, schema=schema)
    else:
        header = ",".join(schema)
        expect(path, header + ".*", header)
        lines = pl.scan_csv(path, schema_overrides=schema, infer_schema=False)
    time = from_milliseconds(pl.col("timestamp"))
    return Loaded(canonical(lines, "user_id", "parent_asin", timestamp=time, rating=pl.col("rating")))


def _reviews(path: Path) -> Loaded:
    """The JSON lines of 2014 and 2018; of their many keys four are read."""
    schema = {
        "reviewerID": pl.String,
        "asin": pl.String,
        "overall": pl.Float64,
        "unixReviewTime": pl.Int64,
    }
    _expect_keys(path, tuple(schema))
    lines = pl.scan_ndjson(path, schema=schema)
    time = from_seconds("unixReviewTime")
    return Loaded(canonical(lines, "reviewerID", "asin", timestamp=time, rating=pl.col("overall")))


def _ratings(path: Path, first: str, second: str) -> Loaded:
    schema = {first: pl.String, second: pl.String, "rating": pl.Float64, "seconds": pl.Int64}
    lines = pl.scan_csv(path, has_header=False, schema=schema, quote_char=None)
    return Loaded(
        canonical(lines, "user", "item", timestamp=from_seconds("seconds"), rating=pl.col("rating"))
    )


def _expect_keys(path: Path, keys: tuple[str, ...]) -> None:
    """JSON lines whose first object has the keys; every line is checked for nulls after reading."""
    every = "".join(rf'(?=.*"{key}"\s*:)' for key in keys)
    expect(path, rf"{every}\s*\{{.*", "{" + ", ".join(f'"{key}": …' for key in keys) + "}")


def _refuse_swapped(path: Path, pattern: str, other: str) -> None:
    """The editions differ only in which of user and item comes first: a product id gives it away."""
    line = first_line(path)
    if re.fullmatch(pattern, line):
        raise EventsError(
            f"{path.name}: {line[:60]!r} is the column order of {other}; fetch it under that name"
        )


def mind(source: Path) -> Loaded:
    """Clicks from the impressions of behaviors.tsv: the impression is the request, its time the event's.

    The history column is left out: its clicks carry no time and come before every impression. What was
    shown and not clicked is left out too.
    """
    behaviors, news = locate(source, ("behaviors.tsv", "news.tsv"))
    expect(
        behaviors,
        r"[^\t]+\t[^\t]+\t[^\t]+ [AP]M\t[^\t]*\t\S+-[01](?: \S+-[01])*\s*",
        "1\tU13740\t11/11/2019 9:05:58 AM\tN55189 N42782\tN55689-1 N35729-0",
    )
    names = ("request", "user", "time", "history", "shown")
    columns = dict.fromkeys(names, pl.String)
    rows = pl.scan_csv(behaviors, separator="\t", has_header=False, schema=columns, quote_char=None)
    shown = rows.with_columns(pl.col("shown").str.split(" ")).explode("shown")
    clicked = shown.filter(pl.col("shown").str.ends_with("-1")).with_columns(
        pl.col("shown").str.strip_suffix("-1")
    )
    events = canonical(
        clicked,
        "user",
        "shown",
        timestamp=pl.col("time").str.to_datetime(MIND_TIME, time_unit="ms"),
        event_type=pl.lit("click"),
        request_id=pl.col("request"),
    )
    return Loaded(events, _news(news))


def _news(path: Path) -> pl.DataFrame:
    expect(
        path,
        r"[^\t]+(?:\t[^\t]*){7}",
        "N55528\tlifestyle\tlifestyleroyals\tThe Brands …\t…\thttps://…\t[]\t[]",
    )
    names = ("item_id", "category", "subcategory", "title", "abstract", "url", "in_title", "in_abstract")
    columns = dict.fromkeys(names, pl.String)
    rows = pl.read_csv(path, separator="\t", has_header=False, schema=columns, quote_char=None)
    tags = pl.concat_list("subcategory").list.drop_nulls()
    return rows.select("item_id", "title", "category", subcategories=tags).unique(
        "item_id", keep="first", maintain_order=True
    )


def yahoo_r3(source: Path) -> Loaded:
    """Ratings users chose to give (train) and ratings of songs drawn at random (test); no times."""
    prefix = "ydata-ymusic-rating-study-v1_0"
    paths = locate(source, (f"{prefix}-train.txt", f"{prefix}-test.txt"))
    train, test = (_tabbed_ratings(path) for path in paths)
    return Loaded(train, test=test)


def _tabbed_ratings(path: Path) -> pl.LazyFrame:
    expect(path, r"\d+\t\d+\t[\d.]+\s*", "1\t14\t5")
    schema = {"user": pl.String, "item": pl.String, "rating": pl.Float64}
    rows = pl.scan_csv(path, separator="\t", has_header=False, schema=schema, quote_char=None)
    return canonical(rows, "user", "item", rating=pl.col("rating"))


def coat(source: Path) -> Loaded:
    """Two matrices (users, items), 0 where there is no rating: self-chosen coats (train), random ones (test).

    Ids are the row and column numbers, from 0. `propensities.ascii`, where it lies beside, goes with train.
    """
    train_path, test_path = locate(source, ("train.ascii", "test.ascii"))
    train, test = _matrix(train_path), _matrix(test_path)
    beside = train_path.with_name("propensities.ascii")
    propensities = _matrix(beside) if beside.is_file() else None
    for name, other in (("test.ascii", test), ("propensities.ascii", propensities)):
        if other is not None and other.shape != train.shape:
            raise EventsError(f"{name} is {other.shape} and train.ascii {train.shape}; they must agree")
    return Loaded(_chosen(train, propensities), test=_chosen(test, None))


def _matrix(path: Path) -> Float64:
    """(users, items) numbers divided by blanks, one user a line."""
    expect(path, r"\s*[\d.]+(?:e[-+]?\d+)?(?:\s+[\d.]+(?:e[-+]?\d+)?)*\s*", "0 0 4 0 0 1 0")
    try:
        return np.loadtxt(path, dtype=np.float64, ndmin=2)
    except ValueError as problem:
        reason = str(problem).split(";")[0].splitlines()[0]
        raise EventsError(f"{path.name}: expected a matrix of numbers, one user a line ({reason})") from None


def _chosen(ratings: Float64, propensities: Float64 | None) -> pl.LazyFrame:
    users, items = np.nonzero(ratings)
    frame = pl.LazyFrame({"user": users, "item": items, "rating": ratings[users, items]})
    if propensities is None:
        return canonical(frame, "user", "item", rating=pl.col("rating"))
    chosen = propensities[users, items]
    if not ((chosen > 0) & (chosen <= 1)).all():
        raise EventsError(
            "propensities.ascii: expected numbers above 0 and at most 1 where train has a rating"
        )
    frame = frame.with_columns(propensity=pl.Series(chosen))
    return canonical(frame, "user", "item", rating=pl.col("rating"), propensity=pl.col("propensity"))


def gowalla(source: Path) -> Loaded:
    """SNAP's check-ins (timed, with coordinates), or the train.txt and test.txt of graph papers (untimed)."""
    plain = "loc-gowalla_totalCheckins.txt"
    paths = locate(source, (plain,), (f"{plain}.gz",), ("train.txt", "test.txt"))
    if len(paths) == 1:
        return _checkins(paths[0])
    return Loaded(_adjacency(paths[0]), test=_adjacency(paths[1]))


def _checkins(path: Path) -> Loaded:
    expect(
        path,
        r"\d+\t\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\t[-\d.e]+\t[-\d.e]+\t\S+\s*",
        "0\t2010-10-19T23:55:27Z\t30.2359091167\t-97.7951395833\t22847",
    )
    schema = {
        "user": pl.String,
        "time": pl.String,
        "latitude": pl.Float64,
        "longitude": pl.Float64,
        "item": pl.String,
    }
    rows = pl.scan_csv(path, separator="\t", has_header=False, schema=schema, quote_char=None)
    time = pl.col("time").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="ms")
    places = (
        rows.select(item_id="item", latitude="latitude", longitude="longitude")
        .unique("item_id", keep="first", maintain_order=True)
        .collect()
    )
    return Loaded(canonical(rows, "user", "item", timestamp=time), places)


def _adjacency(path: Path) -> pl.LazyFrame:
    """One user a line, then the items, divided by blanks; a user may have none. The order means nothing."""
    expect(path, r"\d+(?: \d*)*", "0 12 7 345")
    lines = pl.scan_csv(
        path, separator=UNUSED_SEPARATOR, has_header=False, schema={"line": pl.String}, quote_char=None
    )
    words = lines.select(words=pl.col("line").str.split(" "))
    pairs = words.select(user=pl.col("words").list.first(), item=pl.col("words").list.slice(1)).explode(
        "item"
    )
    return canonical(pairs.filter(pl.col("item") != ""), "user", "item")


def jodie(source: Path) -> Loaded:
    """Wikipedia, Reddit, MOOC and LastFM of JODIE. Its seconds count from the first event: they are kept,
    so the dates stand in 1970. The row's label and features, more than the header names, are left out.
    """
    path = one_file(source, (".csv",))
    expect(path, "user_id,item_id,timestamp,state_label.*", "user_id,item_id,timestamp,state_label,…")
    rows = pl.scan_csv(
        path,
        has_header=False,
        skip_rows=1,
        infer_schema=False,
        quote_char=None,
        truncate_ragged_lines=True,
    )
    columns = rows.collect_schema().names()
    if len(columns) < 3:
        raise EventsError(f"{path.name}: expected rows like '0,0,0.0,0,-0.18'; is the file complete?")
    user, item, seconds = columns[:3]
    timed = rows.with_columns(pl.col(seconds).cast(pl.Float64))
    return Loaded(canonical(timed, user, item, timestamp=from_seconds(seconds)))
