"""Pieces of HTML and numbers as text. Whatever comes in as text goes out escaped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape as _escape
from typing import Any

MINUS = "\N{MINUS SIGN}"
NOTHING = "–"


@dataclass(frozen=True)
class Html:
    """Text that is HTML already; any other text is escaped where it enters."""

    text: str

    def __add__(self, other: Html) -> Html:
        return Html(self.text + other.text)


@dataclass(frozen=True)
class Cell:
    """A cell of a table: `numeric` cells are aligned by their digits; `note` names its colour."""

    content: Any
    numeric: bool = False
    note: str = ""


def html(value: Any) -> Html:
    """Escaped, unless it is HTML already."""
    return value if isinstance(value, Html) else Html(_escape(str(value), quote=True))


def join(parts: Iterable[Any], between: str = "\n") -> Html:
    return Html(between.join(html(part).text for part in parts))


def element(tag: str, content: Any, **attributes: str) -> Html:
    """<tag ...>content</tag>; a trailing underscore of an attribute's name is dropped, others are hyphens."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_escape(value, quote=True)}"'
        for name, value in attributes.items()
    )
    return Html(f"<{tag}{written}>{html(content).text}</{tag}>")


def paragraph(text: Any, **attributes: str) -> Html:
    return element("p", text, **attributes)


def section(key: str, title: str, *parts: Any) -> Html:
    heading = element("h2", title, id=f"{key}-title")
    return element("section", join([heading, *parts]), id=key, aria_labelledby=f"{key}-title")


def table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], marked: int | None = None
) -> Html:
    """A table whose first column names its rows; `marked` is the row that stands out."""
    rows = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    numeric = [any(row[column].numeric for row in rows) for column in range(len(columns))]
    head = join(
        (
            element("th", name, scope="col", class_="number" if is_number else "text")
            for name, is_number in zip(columns, numeric, strict=True)
        ),
        "",
    )
    body = join(
        element("tr", _cells(row), class_="marked") if number == marked else element("tr", _cells(row))
        for number, row in enumerate(rows)
    )
    inner = join([element("caption", caption), element("thead", element("tr", head)), element("tbody", body)])
    # Wide tables scroll by themselves, so that a phone never scrolls the page sideways.
    return element(
        "div", element("table", inner), class_="scroll", tabindex="0", role="region", aria_label=caption
    )


def _cells(row: Sequence[Cell]) -> Html:
    first, *others = row
    cells = [element("th", first.content, scope="row")]
    for cell in others:
        kind = " ".join(name for name in ("number" if cell.numeric else "text", cell.note) if name)
        cells.append(element("td", cell.content, class_=kind))
    return join(cells, "")


def number(content: Any, note: str = "") -> Cell:
    return Cell(content, numeric=True, note=note)


def figure(key: str, caption: str, says: str) -> Html:
    """The place of the chart `key`; `says` is what it shows, for those who cannot see it."""
    chart = element("div", "", class_="chart", data_chart=key, role="img", aria_label=says)
    return element("figure", join([element("figcaption", caption), chart]))


def script_safe_json(value: Any) -> Html:
    """JSON that can stand inside a script element: nothing in it can end the element."""
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=str)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)


def _finite(value: Any) -> Any:
    """JSON has neither NaN nor infinity: null instead."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def amount(value: float | None, digits: int = 3) -> str:
    """.123: a share or a metric, without the zero that says nothing."""
    if value is None:
        return NOTHING
    text = f"{abs(value):.{digits}f}"
    text = text[1:] if text.startswith("0.") else text
    return (MINUS if value < 0 and any(c in "123456789" for c in text) else "") + text


def signed(value: float | None, digits: int = 3) -> str:
    """+.022 or −.022"""
    if value is None:
        return NOTHING
    text = amount(value, digits)
    return text if text.startswith(MINUS) or not any(c in "123456789" for c in text) else f"+{text}"


def percent(value: float | None, digits: int = 1) -> str:
    return NOTHING if value is None else f"{100 * value:.{digits}f} %"


def quantity(value: Any) -> str:
    """A number as people read it: thousands apart, no more digits than it is worth."""
    if value is None:
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.3g}"


def count(value: Any, noun: str) -> str:
    """1 user, 1,234 users"""
    return f"{quantity(value)} {noun}" + ("" if value == 1 else "s")
