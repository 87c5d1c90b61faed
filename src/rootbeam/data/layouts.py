"""What the loaders share: finding the files of a source, checking its first line, canonical columns."""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rootbeam.core.errors import EventsError

UNUSED_SEPARATOR = "\x1f"  # a byte that text files do not hold: the whole line becomes one column


@dataclass(frozen=True)
class Loaded:
    """A source as canonical frames; nothing is read before the events are collected or streamed."""

    events: pl.LazyFrame
    items: pl.DataFrame | None = None
    test: pl.LazyFrame | None = None


def locate(source: Path, *layouts: tuple[str, ...]) -> tuple[Path, ...]:
    """The files of the first layout (a tuple of file names) that lies complete in `source`.

    `source` is the folder itself, a folder with that folder inside, or one of the files.
    """
    if not source.exists():
        raise EventsError(f"{source} does not exist; expected {_spoken(layouts)} there")
    home = source if source.is_dir() else source.parent
    inner = sorted(path for path in home.iterdir() if path.is_dir()) if source.is_dir() else []
    for layout in layouts:
        if source.is_file() and source.name not in layout:
            continue
        for folder in [home, *inner]:
            paths = tuple(folder / name for name in layout)
            if all(path.is_file() for path in paths):
                return paths
    raise EventsError(f"{source}: expected {_spoken(layouts)}, found {_found(home)}")


def one_file(source: Path, suffixes: tuple[str, ...]) -> Path:
    """`source` itself, or the only file in it with one of the suffixes."""
    spoken = " or ".join(f"*{suffix}" for suffix in suffixes)
    if not source.exists():
        raise EventsError(f"{source} does not exist; expected a file {spoken}")
    if source.is_file():
        if not source.name.endswith(suffixes):
            raise EventsError(f"{source.name}: expected a file {spoken}; is this the right file?")
        return source
    files = sorted(path for path in source.iterdir() if path.name.endswith(suffixes) and path.is_file())
    if len(files) != 1:
        raise EventsError(
            f"{source}: expected one file {spoken}, found {_found(source)}; name the file itself"
        )
    return files[0]


def _spoken(layouts: tuple[tuple[str, ...], ...]) -> str:
    return ", or ".join(" and ".join(layout) for layout in layouts)


def _found(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(names[:8]) + more) if names else "an empty folder"


def first_line(path: Path) -> str:
    """The first line of a text file, gzip or not; at most 100,000 characters."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as stream:
                line = stream.readline(100_000)
        else:
            with path.open("rb") as stream:
                line = stream.readline(100_000)
    except (OSError, EOFError, zlib.error) as problem:
        raise EventsError(f"{path.name} cannot be read ({problem}); is it complete?") from None
    return line.decode("utf-8", errors="replace").removeprefix("\ufeff").rstrip("\r\n")


def expect(path: Path, pattern: str, example: str) -> str:
    """The first line, which must match the pattern whole; the example shows what was expected."""
    line = first_line(path)
    if not re.fullmatch(pattern, line):
        shown = line if len(line) <= 80 else line[:79] + "…"
        raise EventsError(
            f"{path.name}: expected lines like {example!r}, found {shown!r}; is this the right file?"
        )
    return line


def lines_of(path: Path) -> pl.DataFrame:
    """The lines of a small text file, UTF-8 or else Latin-1, as one column `line`."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    lines = text.replace("\r\n", "\n").split("\n")  # splitlines would also break at Latin-1 controls
    return pl.DataFrame({"line": lines}, schema={"line": pl.String}).filter(pl.col("line") != "")


def canonical(frame: pl.LazyFrame, user: str, item: str, **columns: pl.Expr) -> pl.LazyFrame:
    """Ids as strings, weight 1, and the further canonical columns as given."""
    ids = {"user_id": pl.col(user).cast(pl.String), "item_id": pl.col(item).cast(pl.String)}
    return frame.select(**ids, weight=pl.lit(1.0, dtype=pl.Float32), **columns)


def from_seconds(column: str) -> pl.Expr:
    """Seconds since 1970, whole or not, as a naive UTC time in milliseconds."""
    return from_milliseconds((pl.col(column) * 1000).round())


def from_milliseconds(expression: pl.Expr) -> pl.Expr:
    return expression.cast(pl.Int64).cast(pl.Datetime("ms"))


def genre_items(frame: pl.DataFrame, item: str, title: str, genres: pl.Expr) -> pl.DataFrame:
    """Items with `category`, the first genre, and the list `genres`; unnamed genres are none at all."""
    unnamed = ["", "(no genres listed)", "unknown"]
    named = genres.fill_null(pl.lit([], dtype=pl.List(pl.String))).list.eval(
        pl.element().filter(~pl.element().is_in(unnamed))
    )
    return (
        frame.with_columns(genres=named)
        .select(
            "genres",
            *[column for column in ("release_year",) if column in frame.columns],
            item_id=pl.col(item).cast(pl.String),
            title=pl.col(title),
            category=pl.col("genres").list.first(),
        )
        .select(
            "item_id", "title", "category", "genres", pl.exclude("item_id", "title", "category", "genres")
        )
    )
