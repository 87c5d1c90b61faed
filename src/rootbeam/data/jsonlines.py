"""JSON Lines: one object a line -> columns, ids with their JSON type, everything else as strings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from rootbeam.core.errors import EventsError
from rootbeam.data.contract import ID_COLUMNS, shorten
from rootbeam.data.textfile import NEWLINE, Lines, Parsed, count_outside, is_utf8, parse_singly, split_lines

FIRST_LINES = 1000
NOT_AN_ID = r"^(?:true|false|[\[{].*|-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)$"
INTEGER = r"^-?[0-9]+$"


def keys_of(path: Path, data: bytes) -> list[str]:
    """The keys of the first objects, in the order of their appearance."""
    keys: dict[str, None] = {}
    objects = 0
    for line in data.split(b"\n", FIRST_LINES)[:FIRST_LINES]:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            objects += 1
            keys.update(dict.fromkeys(value))
    if not objects:
        first = data.split(b"\n", 1)[0].decode(errors="replace")
        raise EventsError(
            f'{path} holds no JSON objects in its first lines (the first is "{shorten(first)}"); '
            "needed one object a line"
        )
    return list(keys)


@dataclass(frozen=True)
class JsonLines:
    """How objects become columns. `ids_as_strings`: ids that were seen not to be integers throughout."""

    columns: Mapping[str, str]  # canonical name -> key
    ids_as_strings: frozenset[str] = frozenset()

    def parse(self, lines: Lines) -> tuple[Parsed, frozenset[str]]:
        """The rows, and `ids_as_strings` for the lines that follow."""
        for strings in (self.ids_as_strings, frozenset(ID_COLUMNS[:1]), frozenset(ID_COLUMNS[1:])):
            whole = self._whole(lines, strings | self.ids_as_strings)
            if whole is not None:
                return whole, strings | self.ids_as_strings
        strings = frozenset(ID_COLUMNS)
        parsed = self._whole(lines, strings) or self._line_by_line(lines)
        return parsed, strings

    def _whole(self, lines: Lines, strings: frozenset[str]) -> Parsed | None:
        """All lines at once, or None when a line is damaged or an id has another type."""
        n_lines = count_outside(lines.data, NEWLINE, False) + (not lines.data.endswith(b"\n"))
        if not is_utf8(lines.data):
            return None
        try:
            frame = self._frame(lines.data, strings)
        except pl.exceptions.PolarsError:
            return None
        if frame.height != n_lines:
            return None
        rows = pl.int_range(lines.first_row, lines.first_row + n_lines, eager=True).to_numpy()
        return _refuse_other_types(Parsed(frame, rows, [], n_lines), lines, self.columns, strings)

    def _line_by_line(self, lines: Lines) -> Parsed:
        strings = frozenset(ID_COLUMNS)
        schema = dict.fromkeys(self.columns, pl.String())
        parsed = parse_singly(
            split_lines(lines.data, False),
            lines.first_row,
            _fault,
            lambda data: self._frame(data, strings),
            pl.DataFrame(schema=schema),
        )
        return _refuse_other_types(parsed, lines, self.columns, strings)

    def _frame(self, data: bytes, strings: frozenset[str]) -> pl.DataFrame:
        integers = set(ID_COLUMNS) - strings
        schema = {key: pl.Int64() if name in integers else pl.String() for name, key in self.columns.items()}
        frame = pl.read_ndjson(data, schema=schema)
        return frame.select(pl.col(key).alias(name) for name, key in self.columns.items())


def _fault(line: bytes) -> str | None:
    if not is_utf8(line):
        return "is not valid UTF-8; convert the file to UTF-8"
    try:
        value = json.loads(line)
    except ValueError:
        return "is not JSON; needed one object a line"
    except RecursionError:
        return "is nested too deep; needed one flat object a line"
    return None if isinstance(value, dict) else "is no JSON object; needed one object a line"


def _refuse_other_types(
    parsed: Parsed, lines: Lines, columns: Mapping[str, str], strings: frozenset[str]
) -> Parsed:
    """Read as a string, true or 1.5 looks like an id: such rows are looked up in the source and set aside."""
    suspect = pl.lit(False)
    for name in sorted(strings):
        suspect |= pl.col(name).str.contains(NOT_AN_ID) & ~pl.col(name).str.contains(INTEGER)
    where = parsed.frame.select(suspect.fill_null(False).alias("suspect")).to_series().arg_true().to_list()
    if not where:
        return parsed
    split = split_lines(lines.data, False)
    refused: dict[int, tuple[int, str, str]] = {}
    for index in where:
        row = int(parsed.rows[index])
        found = json.loads(split[row - lines.first_row])
        for name in ID_COLUMNS:
            value = found.get(columns[name])
            if not isinstance(value, (str, int, type(None))) or isinstance(value, bool):
                reason = f"has {name} {shorten(json.dumps(value), 20)}; needed a string or an integer"
                refused.setdefault(index, (row, json.dumps(found), reason))
    keep = [index for index in range(len(parsed.rows)) if index not in refused]
    malformed = sorted([*parsed.malformed, *refused.values()])
    return Parsed(parsed.frame[keep], parsed.rows[keep], malformed, parsed.n_lines)
