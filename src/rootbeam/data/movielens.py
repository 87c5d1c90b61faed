"""MovieLens in all its formats, as canonical frames. Item and user ids are strings, as in the source."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from rootbeam.core.errors import EventsError
from rootbeam.data.layouts import (
    Loaded,
    canonical,
    expect,
    from_seconds,
    genre_items,
    lines_of,
    locate,
)

GENRES_100K = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama"),
    *("Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War"),
    "Western",
)


def recbole(interactions: bytes, items: bytes, *, title: str, user_prefix: str = "") -> Loaded:
    """RecBole's atomic files; `title` names the column that holds it, `user_prefix` is taken off ids.

    The cross-domain package's ML-1M writes user 1 as `1m_1` and puts titles where item ids stood: the
    prefix is undone, the titles stay, for the numbers are not in it.
    """
    events = _atomic(interactions).with_columns(
        pl.col("user_id").str.strip_prefix(user_prefix),
        pl.col("rating", "timestamp").cast(pl.Float64),
    )
    described = _atomic(items)
    genres = pl.col(described.columns[-1]).str.split(" ")
    described = described.with_columns(
        release_year=pl.col("release_year").cast(pl.Float64, strict=False).cast(pl.Int64)
    )
    return Loaded(
        canonical(
            events.lazy(),
            "user_id",
            "item_id",
            timestamp=from_seconds("timestamp"),
            rating=pl.col("rating"),
        ),
        genre_items(described, "item_id", title, genres),
    )


def _atomic(content: bytes) -> pl.DataFrame:
    """A tab separated table whose header is name:type; every column as text."""
    frame = pl.read_csv(content, separator="\t", quote_char=None, infer_schema=False)
    return frame.rename(lambda name: name.split(":")[0])


def u_data(source: Path) -> Loaded:
    """ML-100K as GroupLens gives it: u.data (tabs), u.item (bars, Latin-1, a flag per genre)."""
    data, items = locate(source, ("u.data", "u.item"))
    expect(data, r"\d+\t\d+\t\d+\t\d+", "196\t242\t3\t881250949")
    expect(items, r"\d+(\|[^|]*){4}(\|[01]){19}", "1|Toy Story (1995)|01-Jan-1995||http://…|0|0|0|1|…")
    schema = {"user": pl.String, "item": pl.String, "rating": pl.Float64, "seconds": pl.Int64}
    events = pl.scan_csv(data, separator="\t", has_header=False, schema=schema, quote_char=None)
    fields = lines_of(items).select(pl.col("line").str.split("|"))
    if (fields["line"].list.len() != 5 + len(GENRES_100K)).any():
        raise EventsError(f"u.item: expected {5 + len(GENRES_100K)} fields divided by | in every line")
    flagged = [
        pl.when(pl.col("line").list.get(5 + number) == "1").then(pl.lit(genre))
        for number, genre in enumerate(GENRES_100K)
    ]
    described = fields.select(
        item=pl.col("line").list.get(0),
        title=pl.col("line").list.get(1),
        genres=pl.concat_list(flagged).list.drop_nulls(),
    )
    return Loaded(_rated(events), genre_items(described, "item", "title", pl.col("genres")))


def double_colon(source: Path) -> Loaded:
    """ML-1M and ML-10M: `::` between the fields. Read with one colon, every second column is empty."""
    ratings, movies = locate(source, ("ratings.dat", "movies.dat"))
    expect(ratings, r"\d+::\d+::[\d.]+::\d+", "1::1193::5::978300760")
    expect(movies, r"\d+::.+::.*", "1::Toy Story (1995)::Animation|Children's|Comedy")
    columns = {"user": pl.String, "item": pl.String, "rating": pl.Float64, "seconds": pl.Int64}
    schema: dict[str, type[pl.DataType]] = {}
    for number, (name, dtype) in enumerate(columns.items()):
        schema |= {f"empty_{number}": pl.String, name: dtype} if number else {name: dtype}
    events = pl.scan_csv(ratings, separator=":", has_header=False, schema=schema, quote_char=None)
    # The last `::` ends the title, whatever the title holds.
    described = lines_of(movies).select(
        pl.col("line").str.extract_groups(r"^(?<item>\d+)::(?<title>.*)::(?<genres>.*)$").struct.unnest()
    )
    if described["item"].has_nulls():
        raise EventsError("movies.dat: expected id::title::genres in every line")
    return Loaded(_rated(events), genre_items(described, "item", "title", pl.col("genres").str.split("|")))


def csv(source: Path) -> Loaded:
    """ML-20M, 25M, 32M and the `latest` ones: ratings.csv and movies.csv with a header."""
    ratings, movies = locate(source, ("ratings.csv", "movies.csv"))
    expect(ratings, "userId,movieId,rating,timestamp", "userId,movieId,rating,timestamp")
    expect(movies, "movieId,title,genres", "movieId,title,genres")
    schema = {"userId": pl.String, "movieId": pl.String, "rating": pl.Float64, "timestamp": pl.Int64}
    names = {"userId": "user", "movieId": "item", "timestamp": "seconds"}
    events = pl.scan_csv(ratings, schema=schema).rename(names)
    described = pl.read_csv(movies, schema=dict.fromkeys(("movieId", "title", "genres"), pl.String))
    return Loaded(_rated(events), genre_items(described, "movieId", "title", pl.col("genres").str.split("|")))


def _rated(events: pl.LazyFrame) -> pl.LazyFrame:
    return canonical(events, "user", "item", timestamp=from_seconds("seconds"), rating=pl.col("rating"))
