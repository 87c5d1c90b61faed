"""Sections of the report about what stands behind the numbers: examples, data, protocol, settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rootbeam.evaluate.report_content import (
    ReportContent,
)
from rootbeam.evaluate.report_parts import (
    Cell,
    Html,
    element,
    join,
    number,
    paragraph,
    percent,
    quantity,
    table,
)

EXAMPLE_HISTORY = 15  # titles of a history that are shown, the newest


def examples(content: ReportContent) -> list[Html]:
    return [_example(example) for example in content.examples or []]


def _example(example: Mapping[str, Any]) -> Html:
    history = list(example.get("history") or [])
    hidden = len(history) - EXAMPLE_HISTORY
    items = join(element("li", title) for title in history[-EXAMPLE_HISTORY:])
    before = (
        f"History, oldest first{f' (the last {EXAMPLE_HISTORY} of {len(history)})' if hidden > 0 else ''}"
    )
    past = element("ul", items, class_="history") if history else paragraph("No known event.")
    rows = [
        [str(item["rank"]), Cell(item["title"]), number(f"{item['score']:.3f}")]
        for item in example.get("recommended") or []
    ]
    caption = f"Recommended to user {example['user_id']}"
    left = element("div", join([element("h4", before), past]))
    right = table(caption, ["rank", "item", "score"], rows)
    inner = [element("h3", f"User {example['user_id']}"), element("div", join([left, right]), class_="pair")]
    return element("article", join(inner))


def data(content: ReportContent) -> list[Html]:
    found = content.description
    if not found:
        return []
    texts = {
        "events": ("events", quantity),
        "users": ("users", quantity),
        "items": ("items", quantity),
        "density": ("density (distinct user–item pairs ÷ all possible)", lambda v: percent(v, 3)),
        "first_ms": ("first event", _moment),
        "last_ms": ("last event", _moment),
        "repeat_rate": ("events that repeat an item of the same user", percent),
        "burst_rate": ("events that share user and timestamp with another", percent),
        "top_items_share": ("events on the most popular 1 % of items", percent),
        "cold_users": ("users of a test part without any earlier event", quantity),
        "known_items_share": ("items that the items file describes", percent),
    }
    rows = [
        [text, number(show(found[key]))] for key, (text, show) in texts.items() if found.get(key) is not None
    ]
    parts = [table("The log", ["measure", "value"], rows)]
    per_user, per_item = found.get("events_per_user") or {}, found.get("events_per_item") or {}
    if per_user and per_item:
        quantiles = [
            [_quantile(share), number(quantity(value)), number(quantity(per_item.get(share)))]
            for share, value in per_user.items()
        ]
        parts.append(table("Events per user and per item", ["quantile", "per user", "per item"], quantiles))
    if found.get("shortages"):
        parts.append(
            paragraph(f"Too little for a learned model: {', '.join(found['shortages'])}.", class_="warning")
        )
    return parts


def limits(content: ReportContent) -> list[Html]:
    protocol = (content.evaluation or {}).get("protocol") or {}
    rows = [[key.replace("_", " "), _value(value)] for key, value in protocol.items()]
    evaluation = content.evaluation or {}
    if "excluded_users" in evaluation:
        rows.append(["users without labels, left out", quantity(evaluation["excluded_users"])])
    parts = [table("How it was measured", ["what", "value"], rows)] if rows else []
    said = join(element("li", text) for text in _unsaid(content))
    return [*parts, element("h3", "What these numbers do not say"), element("ul", said)]


def _unsaid(content: ReportContent) -> Iterator[str]:
    yield (
        "Whether people would have liked what they were shown: only items that users found in the past, "
        "often because something showed them, can count as hits. A good item nobody was shown counts as a "
        "miss. What users were never shown is not corrected for."
    )
    yield "What a change of recommendations does to users or sales. That takes an online experiment."
    yield "Anything about items without a single event: they are not recommended."
    yield (
        "How it will be next season: the interval covers the chance of having these users and not others, "
        "not the change of times."
    )
    if content.compared():
        yield (
            "That no better rival exists. Every rival was tuned with the trials stated, on validation "
            "users. Which of them is best was decided on the users shown here, which favours the rivals a "
            "little; the p-values are not corrected for the number of comparisons."
        )


def settings(content: ReportContent) -> list[Html]:
    manifest = content.manifest
    facts = {
        name: manifest[key]
        for key, name in (
            ("version", "Rootbeam version"),
            ("seed", "seed"),
            ("events", "events learned from"),
            ("users", "users"),
            ("items", "items"),
            ("data_fingerprint", "fingerprint of the data"),
        )
        if manifest.get(key) is not None
    }
    if manifest.get("trained_through_ms") is not None:
        facts["learned through"] = _moment(manifest["trained_through_ms"])
    parts = []
    if facts:
        parts.append(
            table("The bundle", ["what", "value"], [[key, _value(value)] for key, value in facts.items()])
        )
    for name, values in (manifest.get("config") or {}).items():
        if isinstance(values, Mapping):
            rows = [[key, _value(value)] for key, value in values.items()]
            parts.append(table(f"Settings: {name}", ["setting", "value"], rows))
    return [element("div", join(parts), class_="columns")] if parts else []


def _quantile(share: str) -> str:
    return {"0": "least", "0.5": "median", "1": "most"}.get(share, f"{100 * float(share):g} %")


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_value(inner) for inner in value)
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:g}" if isinstance(value, float) else quantity(value)
