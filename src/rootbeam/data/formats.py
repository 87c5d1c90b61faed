"""Every kind of source as an iterator of raw batches: which files, which columns, which rows.

Parquet          rows are numbered from 1
CSV, TSV         the header is row 1, so numbers agree with an editor; `.gz` behind the extension is undone
JSON Lines       one object a line, numbered from 1; .jsonl or .ndjson, also .gz
RecBole          .inter: tab-separated, no quotes, header `user_id:token item_id:token`; a token is a string
polars frame     rows are numbered from 1
"""

from __future__ import annotations

import csv
import difflib
import glob
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from rootbeam.core.errors import EventsError
from rootbeam.data.contract import COLUMNS, ID_COLUMNS, RawBatch, ReadOptions, rejected_frame, shorten
from rootbeam.data.folder import EVENTS, is_folder, read_meta
from rootbeam.data.jsonlines import JsonLines, keys_of
from rootbeam.data.textfile import Delimited, Lines, Parsed, is_empty, read_lines, skip_blank

Source = str | Path | pl.DataFrame

SEPARATORS = {".csv": ",", ".tsv": "\t", ".inter": "\t", ".item": "\t"}
RECBOLE = (".inter", ".item")
JSON = (".jsonl", ".ndjson")
EVENT_FORMATS = (".parquet", ".csv", ".tsv", *JSON, ".inter")
BYTES_PER_PARQUET_ROW = 32
FRAME = "the frame"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LATE_JSON_KEYS = ("event_type", "rating", "propensity", "request_id")

ALIASES = {
    "user_id": ("user", "userid", "uid", "customer", "customer_id", "visitorid", "session_id"),
    "item_id": ("item", "itemid", "iid", "product", "product_id", "movieid", "movie_id", "article_id", "sku"),
    "timestamp": ("time", "ts", "date", "datetime", "unix_timestamp", "created_at", "event_time"),
    "event_type": ("event", "type", "action", "behavior"),
    "rating": ("score", "stars"),
}


def files_of(source: str | Path) -> list[Path]:
    """The event files a path, folder, canonical folder or glob stands for, in the order of their names."""
    path = Path(source)
    if path.is_dir():
        return _files_in(path)
    if path.exists():
        format_of(path)
        return [path]
    if any(mark in str(source) for mark in "*?["):
        found = sorted(Path(name) for name in glob.glob(str(source), recursive=True) if Path(name).is_file())
        if not found:
            raise EventsError(f"{source} matches no file; check the pattern, and quote it in a shell")
        for each in found:
            format_of(each)
        return found
    raise EventsError(
        f"{source} does not exist; needed a file, a folder or a glob of {', '.join(EVENT_FORMATS)}"
    )


def _files_in(folder: Path) -> list[Path]:
    if is_folder(folder):
        read_meta(folder)
        return sorted((folder / EVENTS).glob("*.parquet"))
    visible = sorted(each for each in folder.iterdir() if each.is_file() and each.name[0] not in "._")
    events = [each for each in visible if _suffix(each) in EVENT_FORMATS]
    recbole = [each for each in events if _suffix(each) == ".inter"]
    if not events:
        raise EventsError(f"{folder} holds no file of events; needed one of {', '.join(EVENT_FORMATS)} in it")
    return recbole or events


def _suffix(path: Path) -> str:
    """The extension that tells the format, .gz left out."""
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()


def format_of(path: Path) -> str:
    suffix = _suffix(path)
    if suffix not in (*EVENT_FORMATS, ".item") or (suffix == ".parquet" and path.suffix == ".gz"):
        raise EventsError(
            f'{path} has the extension "{path.suffix}"; needed one of {", ".join(EVENT_FORMATS)} '
            "(text also with .gz): rename or convert it"
        )
    return suffix


# -- columns -------------------------------------------------------------------------------------------------


def choose_columns(found: Sequence[str], options: ReadOptions, file: str) -> dict[str, str]:
    """canonical name -> name in the source, for the columns that are there; the required ones must be."""
    required = {*ID_COLUMNS, *options.columns}
    if options.weights is not None:
        required.add("event_type")
    if options.min_rating is not None:
        required.add("rating")
    chosen = {name: options.columns.get(name, name) for name in COLUMNS}
    for name in COLUMNS:
        count = found.count(chosen[name])
        if count > 1:
            raise EventsError(
                f"{file} has {count} columns named {chosen[name]}; needed one: rename the others"
            )
        if not count and name in required:
            raise EventsError(missing_column(name, chosen[name], found, file))
    return {name: source for name, source in chosen.items() if source in found}


def missing_column(name: str, source: str, found: Sequence[str], file: str) -> str:
    listed = ", ".join(shorten(column) for column in found[:20]) or "no column"
    wanted = {alias.replace("_", "") for alias in (name, *ALIASES.get(name, ()))}
    close = [column for column in found if column.lower().replace("_", "") in wanted]
    close = close or difflib.get_close_matches(source, list(found), n=1, cutoff=0.5)
    example = shorten(close[0]) if close else "NAME"
    renamed = f" ({source} was named for it)" if source != name else ""
    return f"{file} has no column {name}{renamed}; it has {listed}: name it with --columns {name}={example}"


# -- batches -------------------------------------------------------------------------------------------------


def raw_batches(source: Source, options: ReadOptions) -> Iterator[RawBatch]:
    """The rows of a source in order, under canonical names."""
    if isinstance(source, pl.DataFrame):
        yield from frame_batches(source, options)
        return
    if not isinstance(source, (str, Path)):
        raise EventsError(
            f"events are a {type(source).__name__}; needed a path, a folder, a glob or a polars frame"
        )
    for path in files_of(source):
        suffix = format_of(path)
        if suffix == ".parquet":
            yield from parquet_batches(path, options)
        elif suffix in JSON:
            yield from json_batches(path, options)
        else:
            yield from delimited_batches(path, options)


def frame_batches(frame: pl.DataFrame, options: ReadOptions) -> Iterator[RawBatch]:
    chosen = choose_columns(frame.columns, options, FRAME)
    named = frame.select(pl.col(source).alias(name) for name, source in chosen.items())
    step = max(1, options.batch_bytes // BYTES_PER_PARQUET_ROW)
    for start in range(0, frame.height, step):
        part = named[start : start + step]
        yield RawBatch(part, _numbers(start, part.height), FRAME, rejected_frame(), False)


def parquet_batches(path: Path, options: ReadOptions) -> Iterator[RawBatch]:
    step = max(1, options.batch_bytes // BYTES_PER_PARQUET_ROW)
    try:
        lazy = pl.scan_parquet(path, glob=False)
        chosen = choose_columns(lazy.collect_schema().names(), options, str(path))
        named = lazy.select(pl.col(source).alias(name) for name, source in chosen.items())
        height = lazy.select(pl.len()).collect().item()
        for start in range(0, height, step):
            part = named.slice(start, step).collect()
            yield RawBatch(part, _numbers(start, part.height), str(path), rejected_frame(), False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise no_parquet(path, error) from None


def no_parquet(path: Path, error: Exception) -> EventsError:
    first = shorten(str(error).splitlines()[0] if str(error) else type(error).__name__, 160)
    return EventsError(
        f"{path} cannot be read as Parquet ({first}); needed a complete Parquet file: write it again"
    )


def _numbers(start: int, count: int) -> pl.Series:
    return pl.int_range(start + 1, start + 1 + count, eager=True, dtype=pl.Int64)


def delimited_batches(path: Path, options: ReadOptions) -> Iterator[RawBatch]:
    suffix = format_of(path)
    quoted = suffix not in RECBOLE
    row = 1
    layout: Delimited | None = None
    chosen: dict[str, str] = {}
    for block in read_lines(path, options.batch_bytes, quoted):
        data = block
        if layout is None:
            blank_lines, data = skip_blank(block)
            row += blank_lines
            if not data:
                continue
            header, data = take_header(data, quoted)
            layout = Delimited(header_names(path, header), SEPARATORS[suffix], quoted)
            chosen = choose_columns(layout.names, options, str(path))
            row += 1
        if data:
            parsed = layout.parse(Lines(data, row))
            positions = {name: str(layout.names.index(source)) for name, source in chosen.items()}
            yield _text_batch(parsed, positions, str(path), ids_are_text=suffix not in RECBOLE)
            row += parsed.n_lines
    if layout is None:
        raise is_empty(path)


def take_header(block: bytes, quoted: bool) -> tuple[bytes, bytes]:
    """The first line, and what follows it."""
    end = block.find(b"\n")
    while quoted and end >= 0 and block.count(b'"', 0, end) % 2:
        end = block.find(b"\n", end + 1)
    return (block, b"") if end < 0 else (block[:end], block[end + 1 :])


def header_names(path: Path, line: bytes) -> tuple[str, ...]:
    """The column names of a CSV, TSV or RecBole file."""
    suffix = format_of(path)
    try:
        text = line.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError:
        raise EventsError(f"{path} has a header that is not UTF-8; convert the file to UTF-8") from None
    if suffix in RECBOLE:
        return tuple(field.split(":")[0].strip() for field in text.split("\t"))
    try:
        names = next(csv.reader(text.splitlines(keepends=True), delimiter=SEPARATORS[suffix]), [])
    except csv.Error as error:
        raise EventsError(f"{path} has a header that cannot be read ({error}); needed column names") from None
    return tuple(name.strip() for name in names)


def json_batches(path: Path, options: ReadOptions) -> Iterator[RawBatch]:
    row = 1
    layout: JsonLines | None = None
    for block in read_lines(path, options.batch_bytes, quoted=False):
        data = block
        if layout is None:
            blank_lines, data = skip_blank(block.removeprefix(BYTE_ORDER_MARK))
            row += blank_lines
            if not data:
                continue
            layout = JsonLines(choose_json_columns(keys_of(path, data), options, str(path)))
        parsed, ids_as_strings = layout.parse(Lines(data, row))
        layout = JsonLines(layout.columns, ids_as_strings)
        yield _text_batch(parsed, {name: name for name in layout.columns}, str(path), ids_are_text=False)
        row += parsed.n_lines
    if layout is None:
        raise is_empty(path)


def choose_json_columns(keys: Sequence[str], options: ReadOptions, file: str) -> dict[str, str]:
    """As `choose_columns`; the keys of the first objects decide, but a late optional key is not lost."""
    late = {name: options.columns.get(name, name) for name in LATE_JSON_KEYS}
    return {**late, **choose_columns(keys, options, file)}


def _text_batch(parsed: Parsed, columns: dict[str, str], file: str, ids_are_text: bool) -> RawBatch:
    frame = parsed.frame.select(pl.col(source).alias(name) for name, source in columns.items())
    records = [(file, row, None, shorten(line), reason) for row, line, reason in parsed.malformed]
    return RawBatch(
        frame, pl.Series("row", parsed.rows, pl.Int64), file, rejected_frame(records), ids_are_text
    )
