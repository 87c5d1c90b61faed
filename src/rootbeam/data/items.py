"""Reading items: one row per item, its id, what is known of it, and its features.

    item_id     String or Int64, unchanged from the source; unique
    title       String, optional
    category    String, optional
    available   Boolean, optional; an item without a value is available
    others      numbers, strings and lists are kept as they are

Sources: Parquet, CSV, TSV, JSON Lines (text also .gz), RecBole `.item`, a canonical folder, a polars frame.
Items fit in memory. In text a column is numeric when every value is; `a_seq` of RecBole becomes a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from rootbeam.core.errors import EventsError
from rootbeam.data.contract import describe_bad_row, shorten
from rootbeam.data.folder import ITEMS, is_folder
from rootbeam.data.formats import (
    BYTE_ORDER_MARK,
    FRAME,
    JSON,
    RECBOLE,
    SEPARATORS,
    Source,
    format_of,
    header_names,
    missing_column,
    no_parquet,
    take_header,
)
from rootbeam.data.textfile import Delimited, Lines, check_text, is_empty, read_chunks, skip_blank
from rootbeam.data.validate import (
    failure_records,
    first_failure,
    id_column,
    integers_if_spelled_so,
    wrong_type,
)

KNOWN = ("item_id", "title", "category", "available")
YES, NO = ("true", "1", "1.0", "yes"), ("false", "0", "0.0", "no")


def read_items(source: Source, *, columns: Mapping[str, str] | None = None) -> pl.DataFrame:
    """The items frame of a source. `columns` maps canonical names to its own, as in title=movie_title."""
    frame, file, numbered_from = _open(source)
    frame = _rename(frame, columns or {}, file)
    rows = pl.int_range(numbered_from, numbered_from + frame.height, eager=True, dtype=pl.Int64)
    frame = _checked_ids(frame, rows, file)
    for name in ("title", "category"):
        if name in frame.columns:
            frame = frame.with_columns(_text(frame.get_column(name), file))
    if "available" in frame.columns:
        frame = frame.with_columns(_available(frame.get_column("available"), rows, file))
    frame = frame.unique(maintain_order=True)
    repeated = frame.filter(pl.col("item_id").is_duplicated()).get_column("item_id")
    if len(repeated):
        raise EventsError(
            f"{file} describes {repeated.n_unique():,} items more than once and differently, "
            f"{shorten(str(repeated[0]), 20)} for one; needed one row per item"
        )
    known = [name for name in KNOWN if name in frame.columns]
    return frame.select(*known, pl.exclude(*known))


def _rename(frame: pl.DataFrame, columns: Mapping[str, str], file: str) -> pl.DataFrame:
    for name, source in {"item_id": "item_id", **columns}.items():
        if source not in frame.columns:
            raise EventsError(missing_column(name, source, frame.columns, file))
    hidden = [name for name, source in columns.items() if name != source and name in frame.columns]
    return frame.drop(hidden).rename({source: name for name, source in columns.items()})


def _checked_ids(frame: pl.DataFrame, rows: pl.Series, file: str) -> pl.DataFrame:
    """Items with one canonical id each; a bad id stops the reading."""
    column = id_column("item_id", frame.schema["item_id"], file)
    parsed = frame.with_columns(column.value.alias("new:item_id"))
    bad = first_failure(parsed, column.checks)
    if bad is not None:
        records = failure_records(parsed, file, rows, column.checks, bad).sort("row")
        named = "; ".join(describe_bad_row(record, False) for record in records.head(10).to_dicts())
        raise EventsError(f"{file}: {records.height:,} of {frame.height:,} items cannot be used: {named}")
    return frame.with_columns(parsed.get_column("new:item_id").alias("item_id"))


def _text(values: pl.Series, file: str) -> pl.Series:
    dtype = values.dtype
    if dtype == pl.List(pl.String):  # words, as in RecBole's token_seq
        return values.list.join(" ")
    if dtype.is_nested() or dtype == pl.Binary:
        raise wrong_type(values.name, dtype, file, "strings")
    return values.cast(pl.String)


def _available(values: pl.Series, rows: pl.Series, file: str) -> pl.Series:
    """true, 1, yes -> True; false, 0, no -> False; nothing -> null."""
    if values.dtype == pl.Boolean:
        return values
    text = _text(values, file).str.to_lowercase()
    answer = pl.DataFrame({"text": text}).select(
        pl.when(pl.col("text").is_in(YES))
        .then(True)
        .when(pl.col("text").is_in(NO))
        .then(False)
        .alias("answer")
    )["answer"]
    unclear = (answer.is_null() & (text.fill_null("") != "")).arg_true()
    if len(unclear):
        first = int(unclear[0])
        raise EventsError(
            f"{file}: row {rows[first]}: available {shorten(str(values[first]))} is neither true nor false; "
            "needed true, false, 1 or 0"
        )
    return answer.alias("available")


# -- sources -------------------------------------------------------------------------------------------------


def _open(source: Source) -> tuple[pl.DataFrame, str, int]:
    """The rows as they stand, what to call the source, and the number of its first row."""
    if isinstance(source, pl.DataFrame):
        return source, FRAME, 1
    if not isinstance(source, (str, Path)):
        raise EventsError(f"items are a {type(source).__name__}; needed a path or a polars frame")
    path = Path(source)
    if is_folder(path):
        path = path / ITEMS
    if not path.is_file():
        raise EventsError(f"{path} is no file; needed a file of items with a column item_id")
    suffix = format_of(path)
    if suffix == ".parquet":
        return _open_parquet(path), str(path), 1
    data = b"".join(read_chunks(path, 2**24))
    check_text(path, data)
    _, data = skip_blank(data)
    if not data:
        raise is_empty(path)
    if suffix in JSON:
        return _open_json(path, data.removeprefix(BYTE_ORDER_MARK)), str(path), 1
    return _open_delimited(path, data, suffix), str(path), 2


def _open_parquet(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise no_parquet(path, error) from None


def _open_json(path: Path, data: bytes) -> pl.DataFrame:
    try:
        return pl.read_ndjson(data, infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        first = shorten(str(error).splitlines()[0], 120)
        raise EventsError(
            f"{path} cannot be read as JSON Lines ({first}); needed one object a line"
        ) from None


def _open_delimited(path: Path, data: bytes, suffix: str) -> pl.DataFrame:
    quoted = suffix not in RECBOLE
    header, rest = take_header(data, quoted)
    names = header_names(path, header)
    if len(set(names)) < len(names):
        raise EventsError(f"{path} has two columns of one name; needed different ones: {', '.join(names)}")
    parsed = Delimited(names, SEPARATORS[suffix], quoted).parse(Lines(rest, 2))
    if parsed.malformed:
        row, line, reason = parsed.malformed[0]
        raise EventsError(
            f'{path}: {len(parsed.malformed):,} lines are no items; row {row}: "{shorten(line)}" {reason}'
        )
    frame = parsed.frame.rename({str(index): name for index, name in enumerate(names)})
    if quoted:
        return frame.with_columns(_typed(frame.get_column(name)) for name in names)
    kinds = [field.partition(":")[2].strip() for field in header.decode("utf-8-sig").split("\t")]
    return frame.with_columns(
        _typed_by_recbole(frame.get_column(name), kind) for name, kind in zip(names, kinds, strict=True)
    )


def _typed(values: pl.Series) -> pl.Series:
    """Numbers where every value is one and spelled as one; an id of 007 stays a string."""
    given = values.drop_nulls()
    if not len(given) or values.name in ("title", "category"):
        return values
    if integers_if_spelled_so(given).dtype == pl.Int64:
        return values.cast(pl.Int64)
    numbers = values.cast(pl.Float64, strict=False)
    is_number = numbers.null_count() == values.null_count() and values.name != "item_id"
    return numbers if is_number and not given.str.contains(r"^0[0-9]").any() else values


def _typed_by_recbole(values: pl.Series, kind: str) -> pl.Series:
    if kind == "float":
        return values.cast(pl.Float64, strict=False)
    if kind == "token_seq":
        return values.str.split(" ")
    if kind == "float_seq":
        return values.str.split(" ").cast(pl.List(pl.Float64), strict=False)
    return values
