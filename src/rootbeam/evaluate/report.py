"""One HTML file that says how good a model is, and opens offline: nothing in it is fetched."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from string import Template

from rootbeam.core.errors import InputError
from rootbeam.core.files import write_bytes
from rootbeam.evaluate import report_context as context
from rootbeam.evaluate import report_quality as quality
from rootbeam.evaluate.report_charts import bundled_script
from rootbeam.evaluate.report_content import ReportContent, headline
from rootbeam.evaluate.report_parts import Html, element, html, join, script_safe_json, section

__all__ = ["ReportContent", "headline", "write_report"]


def write_report(path: Path, content: ReportContent) -> None:
    """Writes the report to `path` in one step; needs the extra `report`."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file, as {path / 'report.html'}")
    write_bytes(path, page(content).encode())


def page(content: ReportContent) -> str:
    """The whole file as text."""
    drawn: quality.Charts = {}
    sections = list(all_sections(content, drawn))
    links = join(element("li", element("a", title, href=f"#{key}")) for key, title, _ in sections)
    return Template(_packaged("report.html")).substitute(
        title=html(content.title).text,
        headline=html(headline(content)).text,
        contents=links.text,
        sections=join(part for _, _, part in sections).text,
        style=_packaged("report.css"),
        data=script_safe_json(dataclasses.asdict(content) | {"headline": headline(content)}).text,
        charts=script_safe_json(drawn).text,
        vega=bundled_script(),
        script=_packaged("report.js"),
    )


def all_sections(content: ReportContent, drawn: quality.Charts) -> Iterator[tuple[str, str, Html]]:
    """(key, title, HTML) of every section there is something to say in; its charts are added to `drawn`."""
    for key, title, parts in (
        ("ladder", "How the model was chosen", quality.ladder(content)),
        ("rivals", "How good it is", quality.quality(content, drawn)),
        ("activity", "By user activity", quality.activity(content, drawn)),
        ("popularity", "By item popularity", quality.popularity(content, drawn)),
        ("curves", "How training went", quality.curves(content, drawn)),
        ("coverage", "What the lists hold", quality.coverage(content)),
        ("retrieval", "How items are found", quality.retrieval(content)),
        ("examples", "Examples", context.examples(content)),
        ("data", "The data", context.data(content)),
        ("limits", "Protocol and limits", context.limits(content)),
        ("settings", "Settings", context.settings(content)),
    ):
        if parts:
            yield key, title, section(key, title, *parts)


def _packaged(name: str) -> str:
    return resources.files("rootbeam.evaluate").joinpath(name).read_text(encoding="utf-8")
