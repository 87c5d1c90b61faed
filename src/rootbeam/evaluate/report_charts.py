"""The charts of the report as Vega-Lite specifications, and the one script that draws them offline.

Colours are the CSS variables of the page (report.css), so that light and dark need no second drawing.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from rootbeam.core.errors import MissingExtraError

ROW_HEIGHT = 34
CHART_HEIGHT = 220
SERVED, NEUTRAL, WORSE = "var(--accent)", "var(--neutral)", "var(--worse)"


def altair() -> Any:
    return _needed("altair")


def bundled_script() -> str:
    """Vega, Vega-Lite and vega-embed as one script; safe inside a script element."""
    script = str(_needed("vl_convert").javascript_bundle())
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.replace("_", "-")
        raise MissingExtraError(
            f"the report needs {name}, which is not installed; pip install 'rootbeam[report]'"
        ) from None


def intervals(rows: Sequence[Mapping[str, Any]], measure: str, *, zero: bool = False) -> dict[str, Any]:
    """A dot and its interval for every row {label, mean, low, high, color}, in the order given.

    `zero` adds the line of "no difference".
    """
    alt = altair()
    base = alt.Chart(alt.Data(values=[dict(row) for row in rows]))
    y = alt.Y("label:N", sort=None, title=None)
    color = alt.Color("color:N", scale=None, legend=None)
    tip = [
        alt.Tooltip("label:N", title="of"),
        alt.Tooltip("mean:Q", title=measure, format=".4f"),
        alt.Tooltip("low:Q", format=".4f"),
        alt.Tooltip("high:Q", format=".4f"),
    ]
    scale = alt.Scale(zero=zero, nice=True)
    layers = [
        base.mark_rule(strokeWidth=3, strokeCap="round").encode(
            y=y, x=alt.X("low:Q", title=measure, scale=scale), x2="high:Q", color=color, tooltip=tip
        ),
        base.mark_point(size=90, filled=True, opacity=1).encode(y=y, x="mean:Q", color=color, tooltip=tip),
    ]
    if zero:
        line = alt.Chart(alt.Data(values=[{"zero": 0}]))
        layers.insert(0, line.mark_rule(color="var(--text)", strokeDash=[4, 3]).encode(x="zero:Q"))
    return _spec(alt.layer(*layers).properties(width="container", height=ROW_HEIGHT * len(rows)))


def bars(rows: Sequence[Mapping[str, Any]], measure: str) -> dict[str, Any]:
    """A bar for every row {label, value, labels}, in the order given."""
    alt = altair()
    base = alt.Chart(alt.Data(values=[dict(row) for row in rows]))
    chart = base.mark_bar(color=SERVED, height={"band": 0.62}, cornerRadiusEnd=3).encode(
        y=alt.Y("label:N", sort=None, title=None),
        x=alt.X("value:Q", title=measure, scale=alt.Scale(zero=True, nice=True)),
        tooltip=[
            alt.Tooltip("label:N", title="items"),
            alt.Tooltip("labels:Q", title="labels", format=","),
            alt.Tooltip("value:Q", title=measure, format=".4f"),
        ],
    )
    return _spec(chart.properties(width="container", height=ROW_HEIGHT * len(rows)))


def curve(
    points: Sequence[Mapping[str, Any]], key: str, measure: str, best_step: float | None
) -> dict[str, Any]:
    """points {step, key} as a line; a dashed line where training is kept."""
    alt = altair()
    values = [{"step": point["step"], key: point[key]} for point in points if point.get(key) is not None]
    base = alt.Chart(alt.Data(values=values))
    tip = [alt.Tooltip("step:Q", format=","), alt.Tooltip(f"{key}:Q", title=measure, format=".4f")]
    layers = [
        base.mark_line(color=SERVED, strokeWidth=2, point={"size": 28, "color": SERVED}).encode(
            x=alt.X("step:Q", title="step", axis=alt.Axis(format="~s", tickCount=5)),
            y=alt.Y(f"{key}:Q", title=measure, scale=alt.Scale(zero=False, nice=True)),
            tooltip=tip,
        )
    ]
    if best_step is not None:
        line = alt.Chart(alt.Data(values=[{"best": best_step}]))
        layers.append(line.mark_rule(color="var(--text)", strokeDash=[4, 3]).encode(x="best:Q"))
    return _spec(alt.layer(*layers).properties(width="container", height=CHART_HEIGHT))


def _spec(chart: Any) -> dict[str, Any]:
    """Without `$schema`, an address, and without Altair's theme: the page brings its own."""
    spec: dict[str, Any] = chart.to_dict()
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}
