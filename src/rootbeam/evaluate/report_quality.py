"""Sections of the report about how good the model is: text, tables, and the charts they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rootbeam.evaluate import report_charts as charts
from rootbeam.evaluate.report_content import (
    ReportContent,
    difference_to,
    digits_for,
    ladder_metric,
    metrics_of,
    span,
    verdict,
)
from rootbeam.evaluate.report_parts import (
    NOTHING,
    Cell,
    Html,
    amount,
    count,
    element,
    figure,
    join,
    number,
    paragraph,
    percent,
    quantity,
    signed,
    table,
)

Charts = dict[str, dict[str, Any]]  # by name, added to by a section that shows them


def ladder(content: ReportContent) -> list[Html]:
    rows = content.manifest.get("ladder") or []
    if not rows:
        return []
    metric = ladder_metric(content.manifest)
    chosen = next((index for index, row in enumerate(rows) if row.get("chosen")), None)
    columns = ["model", f"{metric}, validation", "ms per user", "a", "b", "half-life", "served"]
    body = [
        [
            row["model"],
            _interval_cell(metrics_of(row).get(metric)),
            number(f"{row.get('ms_per_user', 0):.3f}"),
            number(quantity(row.get("a"))),
            number(quantity(row.get("b"))),
            number(_half_life(row)),
            "served" if row.get("chosen") else "",
        ]
        for row in rows
    ]
    return [
        paragraph(_how_chosen(content, rows, metric)),
        table("The ladder, cheapest first", columns, body, chosen),
        paragraph(
            "score = a · model(user, item) + b · log recent(item), where recent is a count of events that "
            "halves every half-life. These numbers were used to choose, so they flatter.",
            class_="note",
        ),
    ]


def _half_life(row: Mapping[str, Any]) -> str:
    if not row.get("b"):
        return NOTHING  # without recency in the score there is nothing that ages
    return "∞" if row.get("half_life_days") is None else count(row["half_life_days"], "day")


def _how_chosen(content: ReportContent, rows: list[dict[str, Any]], metric: str) -> str:
    level = content.manifest.get("config", {}).get("ladder", {}).get("level", 0.95)
    if len(rows) == 1:
        return f"Only {rows[0]['model']} was tried, so nothing was compared."
    means = {row["model"]: metrics_of(row)[metric]["mean"] for row in rows if metric in metrics_of(row)}
    rule = (
        "Served is the cheapest model that is not significantly worse than the best on the validation users "
        f"({metric}, paired bootstrap over users, level {100 * level:g} %). It was then refitted with the "
        "same settings on all events through the last."
    )
    best = max(means, key=lambda name: means[name], default=None)
    if best is not None and best != content.model:
        rule += (
            f" The highest mean is that of {best}; {content.model} is not significantly worse and costs less."
        )
    return rule


def quality(content: ReportContent, drawn: Charts) -> list[Html]:
    measured = content.measured()
    if not measured:
        return []
    rivals = content.compared()
    systems = [(f"{content.model} (served)", measured), *((r["name"], metrics_of(r)) for r in rivals)]
    body = [[name, *(_interval_cell(found.get(metric)) for metric in measured)] for name, found in systems]
    return [
        *([_quality_charts(content, drawn)] if rivals else []),
        table("Mean over users with 95 % interval", ["model", *measured], body, 0),
        *_differences(rivals, list(measured)),
        *_rival_notes(content),
    ]


def _differences(rivals: list[dict[str, Any]], names: list[str]) -> list[Html]:
    if not any(difference_to(rival, metric) for rival in rivals for metric in names):
        return []
    caption = "Served model − rival, paired over users, with 95 % interval"
    body = [[r["name"], *(_difference_cell(difference_to(r, metric)) for metric in names)] for r in rivals]
    key = "▲ significantly better, ▼ significantly worse (p < .05); without a mark: not distinguishable."
    return [table(caption, ["rival", *names], body), paragraph(key, class_="note")]


def _quality_charts(content: ReportContent, drawn: Charts) -> Html:
    metric = content.metric
    ours = content.measured()[metric]
    rows = [_dot(f"{content.model} (served)", ours, charts.SERVED)]
    gaps = []
    for rival in content.compared():
        if metric in metrics_of(rival):
            rows.append(_dot(rival["name"], rival["metrics"][metric], charts.NEUTRAL))
        difference = difference_to(rival, metric)
        if difference:
            color = {"better": charts.SERVED, "worse": charts.WORSE}.get(verdict(difference), charts.NEUTRAL)
            gaps.append(_dot(rival["name"], difference, color))
    drawn["values"] = charts.intervals(sorted(rows, key=lambda row: -row["mean"]), metric)
    says = (
        f"{metric} with 95 % intervals of the served model and {count(len(rows) - 1, 'rival')}; see the table"
    )
    figures = [figure("values", f"{metric} and its 95 % interval", says)]
    if gaps:
        gaps.sort(key=lambda row: row["mean"])
        drawn["differences"] = charts.intervals(gaps, f"difference in {metric}", zero=True)
        caption = "Served − rival: right of zero the served model is better"
        figures.append(
            figure("differences", caption, f"Differences in {metric} to each rival; see the table")
        )
    return element("div", join(figures), class_="figures")


def _dot(label: str, interval: Mapping[str, Any], color: str) -> dict[str, Any]:
    return {"label": label, "color": color} | {end: interval[end] for end in ("mean", "low", "high")}


def _rival_notes(content: ReportContent) -> list[Html]:
    rivals = content.rivals or []
    rows = [
        [r["name"], number(quantity(r.get("trials"))), _params(r.get("params"))] for r in content.compared()
    ]
    parts = []
    if rows:
        parts.append(
            table("What each rival was tuned to, on validation users", ["rival", "trials", "params"], rows)
        )
    skipped = [f"{rival['name']}: {rival['skipped']}" for rival in rivals if rival.get("skipped")]
    if skipped:
        parts.append(paragraph(f"Not run: {'; '.join(skipped)}.", class_="note"))
    return parts


def _params(params: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {quantity(value)}" for name, value in (params or {}).items()) or NOTHING


def activity(content: ReportContent, drawn: Charts) -> list[Html]:
    rows = _breakdown(content).get("user_activity") or []
    parts = [_by_activity(rows, drawn)] if rows else []
    return [*parts, *_slices(content)]


def _by_activity(rows: list[dict[str, Any]], drawn: Charts) -> Html:
    metric = next(key for key in rows[0] if key not in ("from", "to", "users"))
    labels = [_range(row["from"], row["to"]) for row in rows]
    dots = [_dot(label, row[metric], charts.SERVED) for label, row in zip(labels, rows, strict=True)]
    drawn["activity"] = charts.intervals(dots, metric)
    caption = f"{metric} by events before the labels"
    body = [
        [label, number(quantity(row["users"])), _interval_cell(row[metric])]
        for label, row in zip(labels, rows, strict=True)
    ]
    chart = figure("activity", caption, f"{caption}; see the table")
    return element("div", join([chart, table(caption, ["events", "users", metric], body)]), class_="figures")


def _slices(content: ReportContent) -> list[Html]:
    slices = (content.evaluation or {}).get("slices") or {}
    shown = {name: part for name, part in slices.items() if part.get("users")}
    if not shown:
        return []
    names = list(content.measured()) or list(metrics_of(next(iter(shown.values()))))
    body = [
        [
            f"{name.replace('_', ' ')} ({quantity(part['users'])})",
            *(_interval_cell(metrics_of(part).get(metric)) for metric in names),
        ]
        for name, part in shown.items()
    ]
    parts = [table("Slices of the users", ["users", *names], body)]
    if "new_users" in shown:
        parts.append(
            paragraph(
                "New users have no event in the training data. Those without any event before their labels "
                "are answered by recent popularity, and the headline leaves them out.",
                class_="note",
            )
        )
    return parts


def popularity(content: ReportContent, drawn: Charts) -> list[Html]:
    rows = _breakdown(content).get("item_popularity") or []
    if not rows:
        return []
    metric = next(key for key in rows[0] if key.startswith("recall@"))
    drawn["popularity"] = charts.bars(
        [
            {"label": row["group"], "value": row[metric], "labels": row["labels"]}
            for row in rows
            if row[metric] is not None
        ],
        f"{metric}, over labels",
    )
    total = sum(row["labels"] for row in rows) or 1
    body = [
        [
            row["group"],
            number(_range(row["from_events"], row["to_events"])),
            number(quantity(row["items"])),
            number(quantity(row["labels"])),
            number(percent(row["labels"] / total)),
            number(amount(row[metric])),
        ]
        for row in rows
    ]
    columns = ["items", "events of an item", "items in it", "labels", "share of labels", metric]
    return [
        figure(
            "popularity",
            f"{metric} by the popularity of the item",
            f"{metric} by item popularity; see the table",
        ),
        table("Labels found, by the popularity of their item", columns, body),
        paragraph(
            "The head holds the most popular items that together make the first 20 % of the events, the "
            "upper middle goes on to 50 %, the lower middle to 80 %, and the tail is the rest. Here every "
            "label counts the same, while in the headline every user does.",
            class_="note",
        ),
    ]


def curves(content: ReportContent, drawn: Charts) -> list[Html]:
    parts = []
    best = {
        row["model"]: (row.get("settings") or {}).get("best_step")
        for row in content.manifest.get("ladder", [])
    }
    for rung, points in (content.manifest.get("curves") or {}).items():
        figures = []
        for key, measure in (("loss", "training loss"), ("value", ladder_metric(content.manifest))):
            if sum(point.get(key) is not None for point in points) < 2:
                continue
            name = f"curve-{rung}-{key}"
            drawn[name] = charts.curve(points, key, measure, best.get(rung))
            where = "" if key == "loss" else ", on validation users"
            figures.append(figure(name, f"{rung}: {measure}{where}", f"{measure} of {rung} by training step"))
        if figures:
            parts.append(element("div", join(figures), class_="figures"))
    if parts:
        parts.append(paragraph("The dashed line marks the step whose weights were kept.", class_="note"))
    return parts


def coverage(content: ReportContent) -> list[Html]:
    found = (content.evaluation or {}).get("coverage") or {}
    rows = [
        [f"share of the catalogue in at least one list ({name})", number(percent(v))]
        for name, v in found.items()
    ]
    concentration = _breakdown(content).get("concentration") or {}
    for name, value in concentration.items():
        if name.startswith("share@") and value is not None:
            items = count(concentration["most_recommended_items"], "item")
            depth = name.partition("@")[2]
            text = f"share of the top {depth} places that go to the most recommended 1 % ({items})"
            rows.append([text, number(percent(value))])
    return [table("Coverage and concentration", ["measure", "value"], rows)] if rows else []


def retrieval(content: ReportContent) -> list[Html]:
    found = (content.evaluation or {}).get("retrieval") or {}
    if not found:
        return []
    names = {
        "mode": "search",
        "beam": "beam width",
        "nodes_scored_share": "share of nodes scored",
        "overlap@20": "overlap with exact search in the top 20",
        "recall_ratio@20": "recall@20 ÷ that of exact search",
    }
    rows = [[text, number(quantity(found[key]))] for key, text in names.items() if found.get(key) is not None]
    latency = found.get("latency_ms") or {}
    rows += [
        [f"latency of one request, {name}", number(f"{value:.2f} ms")] for name, value in latency.items()
    ]
    parts = [table("Retrieval", ["measure", "value"], rows)]
    if found.get("mode") == "exact":
        parts.append(
            paragraph("Exact search scores every item, so nothing is lost in the search.", class_="note")
        )
    return parts


def _breakdown(content: ReportContent) -> Mapping[str, Any]:
    return (content.evaluation or {}).get("breakdown") or {}


def _interval_cell(interval: Mapping[str, Any] | None) -> Cell:
    if interval is None or interval.get("mean") is None:
        return number(NOTHING)
    digits = digits_for(interval)
    return number(_with_interval(amount(interval["mean"], digits), span(interval, digits)))


def _difference_cell(difference: Mapping[str, Any] | None) -> Cell:
    if difference is None:
        return number(NOTHING)
    digits, found = digits_for(difference), verdict(difference)
    mark = {"better": "▲ ", "worse": "▼ "}.get(found, "")
    text = f"{mark}{signed(difference['mean'], digits)}"
    return number(_with_interval(text, span(difference, digits)), found.split()[0])


def _with_interval(value: str, interval: str) -> Html:
    return join([element("span", value, class_="mean"), element("span", interval, class_="interval")], " ")


def _range(low: int, high: int) -> str:
    return quantity(low) if low == high else f"{quantity(low)}–{quantity(high)}"
