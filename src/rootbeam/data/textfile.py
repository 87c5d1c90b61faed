"""Text files of rows (CSV, TSV, RecBole, JSON Lines; also gzip): whole-line blocks, then frames of strings.

Blocks are parsed by polars, all columns as strings: on narrow logs that is as fast as a typed read, keeps
an id like 007 as it was written, and lets one code path find bad values. A block that does not parse is
taken apart line by line, so that one damaged line costs one row and is named by its number.
"""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from rootbeam.core.errors import EventsError

NEWLINE, QUOTE = 10, 34
SHORT_BYTES = 4096  # below, numpy's overhead costs more than its speed saves
LONGEST_LINE_BYTES = 64 * 2**20
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Lines:
    """Consecutive whole lines of a file. `first_row` is the number of the first, the header being row 1."""

    data: bytes
    first_row: int


@dataclass(frozen=True)
class Parsed:
    """The rows of some lines, and the lines that are none: (row number, the line, what is wrong)."""

    frame: pl.DataFrame
    rows: npt.NDArray[np.int64]
    malformed: list[tuple[int, str, str]]
    n_lines: int


def read_chunks(path: Path, size: int) -> Iterator[bytes]:
    """The decompressed bytes of a file, about `size` at a time."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as stream:
            while chunk := stream.read(size):
                yield chunk
    except (OSError, EOFError, zlib.error) as error:
        raise EventsError(f"{path} cannot be read ({error}); needed a complete, readable file") from None


def read_lines(path: Path, size: int, quoted: bool) -> Iterator[bytes]:
    """Blocks of whole lines; with `quoted`, a newline between double quotes ends no line."""
    rest = b""
    for number, chunk in enumerate(read_chunks(path, size)):
        if number == 0:
            check_text(path, chunk)
        block = rest + chunk if rest else chunk
        end = _whole_lines(block, quoted)
        if end:
            yield block[:end]
        rest = block[end:]
        if len(rest) > max(LONGEST_LINE_BYTES, 4 * size):
            raise EventsError(
                f"{path} has a line of more than {len(rest) >> 20} MiB: a double quote opens a field that is "
                "not closed, or this is no text file of rows; close the quote"
            )
    if rest:
        yield rest


def _whole_lines(block: bytes, quoted: bool) -> int:
    """Length of the longest prefix of whole lines; 0 when there is none."""
    end = block.rfind(b"\n") + 1
    while quoted and end and block.count(b'"', 0, end) % 2:
        end = block.rfind(b"\n", 0, block.rfind(b'"', 0, end)) + 1
    return end


def check_text(path: Path, head: bytes) -> None:
    """Refuse what is no text at all."""
    if b"\0" in head[:65536]:
        raise EventsError(
            f"{path} is a binary file (or UTF-16); needed UTF-8 text: check the extension, or convert it"
        )


def is_empty(path: Path) -> EventsError:
    return EventsError(f"{path} is empty; needed at least a header and a row")


def skip_blank(block: bytes) -> tuple[int, bytes]:
    """How many blank lines a block starts with, and what follows them."""
    rest = block.lstrip(b"\r\n")
    return block.count(b"\n", 0, len(block) - len(rest)), rest


def split_lines(data: bytes, quoted: bool) -> list[bytes]:
    """The lines without their ends."""
    if not quoted or b'"' not in data:
        lines = data.split(b"\n")
        return lines[:-1] if data.endswith(b"\n") else lines
    ends = np.flatnonzero(_outside(data, NEWLINE)) + 1
    bounds = [0, *ends.tolist(), *([len(data)] if not len(ends) or ends[-1] < len(data) else [])]
    return [data[a:b].removesuffix(b"\n") for a, b in itertools.pairwise(bounds)]


def _outside(data: bytes, byte: int) -> Mask:
    """(bytes,) where `byte` stands outside double quotes."""
    marks = np.frombuffer(data, np.uint8)
    inside = np.bitwise_xor.accumulate(marks == QUOTE)
    return np.asarray((marks == byte) & ~inside)


def count_outside(data: bytes, byte: int, quoted: bool) -> int:
    """How often a byte occurs, leaving out what stands between double quotes."""
    if quoted and b'"' in data:
        return int(np.count_nonzero(_outside(data, byte)))
    if len(data) < SHORT_BYTES:
        return data.count(byte)
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == byte))


def is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True)
class Delimited:
    """How the lines of a CSV or TSV file become columns, all strings."""

    names: tuple[str, ...]
    separator: str
    quoted: bool

    def parse(self, lines: Lines) -> Parsed:
        data = lines.data
        n_lines = count_outside(data, NEWLINE, self.quoted) + (not data.endswith(b"\n"))
        # polars fills short lines with null and refuses long ones, so the total shows any short line
        separators = count_outside(data, ord(self.separator), self.quoted)
        if is_utf8(data) and separators == n_lines * (len(self.names) - 1):
            try:
                frame = self._frame(data)
            except pl.exceptions.PolarsError:
                pass
            else:
                if frame.height == n_lines:
                    rows = np.arange(lines.first_row, lines.first_row + n_lines, dtype=np.int64)
                    return Parsed(frame, rows, [], n_lines)
        split = split_lines(data, self.quoted)
        return parse_singly(
            split, lines.first_row, self._fault, self._frame, pl.DataFrame(schema=self._schema())
        )

    def _schema(self) -> dict[str, pl.DataType]:
        """Columns are known by their index: names may be empty or occur twice."""
        return {str(index): pl.String() for index in range(len(self.names))}

    def _frame(self, data: bytes) -> pl.DataFrame:
        return pl.read_csv(
            data,
            has_header=False,
            schema=self._schema(),
            separator=self.separator,
            quote_char='"' if self.quoted else None,
        )

    def _fault(self, line: bytes) -> str | None:
        if not is_utf8(line):
            return "is not valid UTF-8; convert the file to UTF-8"
        fields = count_outside(line, ord(self.separator), self.quoted) + 1
        if self.quoted and line.count(b'"') % 2:
            return "has a double quote that is not closed"
        if fields != len(self.names):
            return f"has {fields} fields; needed {len(self.names)} as in the header"
        return None


def parse_singly(
    lines: list[bytes],
    first_row: int,
    fault: Callable[[bytes], str | None],
    parse: Callable[[bytes], pl.DataFrame],
    empty: pl.DataFrame,
) -> Parsed:
    """Parse what can be parsed. Blank lines are skipped; other lines without a row are malformed."""
    malformed: list[tuple[int, str, str]] = []
    good: list[tuple[int, bytes]] = []
    for row, line in enumerate(lines, start=first_row):
        if not line.strip():
            continue
        reason = fault(line)
        if reason is None:
            good.append((row, line))
        else:
            malformed.append((row, line.decode(errors="replace"), reason))
    frames: list[pl.DataFrame] = []
    _parse_halves(good, parse, frames, malformed)
    lost = {row for row, _, _ in malformed}
    rows = np.array([row for row, _ in good if row not in lost], dtype=np.int64)
    return Parsed(pl.concat(frames) if frames else empty, rows, sorted(malformed), len(lines))


def _parse_halves(
    lines: list[tuple[int, bytes]],
    parse: Callable[[bytes], pl.DataFrame],
    frames: list[pl.DataFrame],
    malformed: list[tuple[int, str, str]],
) -> None:
    """Parse all lines at once, or each half apart, down to the single line that fails."""
    if not lines:
        return
    try:
        frame = parse(b"\n".join(line for _, line in lines) + b"\n")
        if frame.height == len(lines):
            frames.append(frame)
            return
    except pl.exceptions.PolarsError:
        pass
    if len(lines) == 1:
        row, line = lines[0]
        malformed.append(
            (row, line.decode(errors="replace"), "cannot be parsed; check its quotes and braces")
        )
        return
    middle = len(lines) // 2
    _parse_halves(lines[:middle], parse, frames, malformed)
    _parse_halves(lines[middle:], parse, frames, malformed)
