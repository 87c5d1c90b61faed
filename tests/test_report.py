"""The report: what its headline says, that it is one safe offline file, and that parts may be missing."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rootbeam.core.errors import InputError, MissingExtraError
from rootbeam.evaluate.report import ReportContent, headline, write_report
from rootbeam.evaluate.report_charts import bundled_script
from rootbeam.evaluate.report_parts import amount, quantity, script_safe_json, signed

HOSTILE = "</script><script>alert('x')</script><img src=http://evil.example/x.png> & \"Sons\" \u2028"


def interval(mean: float, half: float = 0.0126, n: int = 1234) -> dict[str, Any]:
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": n}


def difference(mean: float, half: float, p_value: float) -> dict[str, Any]:
    return {"mean": mean, "low": mean - half, "high": mean + half, "p_value": p_value, "n": 1234}


def rival(name: str, gap: float, half: float, p_value: float, **others: dict[str, Any]) -> dict[str, Any]:
    """A rival whose ndcg@10 is ours (.123) less `gap`; `others` are differences in recall20 and so on."""
    gaps = {"ndcg@10": difference(gap, half, p_value)}
    gaps |= {key.replace("20", "@20"): value for key, value in others.items()}
    ours = {"ndcg@10": 0.123, "recall@20": 0.2}
    return {
        "name": name,
        "params": {"l2": 412.339},
        "trials": 10,
        "metrics": {metric: interval(ours[metric] - found["mean"]) for metric, found in gaps.items()},
        "difference": gaps,
        "skipped": None,
    }


def ladder_row(name: str, mean: float, chosen: bool, b: float = 0.2) -> dict[str, Any]:
    return {
        "model": name,
        "metrics": {"ndcg@10": interval(mean)},
        "ms_per_user": 0.031,
        "chosen": chosen,
        "a": 1.5,
        "b": b,
        "half_life_days": None if name == "popularity" else 30.0,
        "settings": {"best_step": 400},
    }


def manifest() -> dict[str, Any]:
    points = [{"step": 100.0 * n, "loss": 7.0 - n / 10, "value": 0.1 + n / 1000} for n in range(1, 6)]
    return {
        "version": "0.1.0",
        "seed": 3,
        "model": "sequence",
        "items": 300,
        "users": 2000,
        "config": {"ladder": {"metric": "ndcg@10", "level": 0.95}, "data": {"repeats": "forbid"}},
        "ladder": [ladder_row("popularity", 0.06, False), ladder_row("sequence", 0.135, True, b=0.0)],
        "curves": {"sequence": points},
        "trained_through_ms": 0,
    }


def evaluation() -> dict[str, Any]:
    return {
        "protocol": {"catalogue": "full", "seen_items": "filtered"},
        "users": 1234,
        "excluded_users": 17,
        "metrics": {"recall@20": interval(0.2), "ndcg@10": interval(0.123)},
        "slices": {"new_users": {"users": 40, "metrics": {"ndcg@10": interval(0.05)}}},
        "coverage": {"coverage@10": 0.312},
        "retrieval": {"mode": "exact", "beam": None, "latency_ms": {"p50": 1.31, "p99": 2.92}},
        "breakdown": {
            "user_activity": [
                {"from": 1, "to": 6, "users": 600, "recall@20": interval(0.15)},
                {"from": 7, "to": 1290, "users": 634, "recall@20": interval(0.25)},
            ],
            "item_popularity": [
                {
                    "group": "head",
                    "from_events": 90,
                    "to_events": 400,
                    "items": 12,
                    "labels": 80,
                    "recall@20": 0.4,
                },
                {
                    "group": "tail",
                    "from_events": 0,
                    "to_events": 20,
                    "items": 90,
                    "labels": 0,
                    "recall@20": None,
                },
            ],
            "concentration": {"most_recommended_items": 3, "share@20": 0.271},
        },
    }


def description() -> dict[str, Any]:
    quantiles = {"0": 1.0, "0.5": 20.0, "1": 300.0}
    return {
        "events": 50_123,
        "users": 2000,
        "items": 300,
        "density": 0.08,
        "first_ms": 0,
        "last_ms": 86_400_000,
        "events_per_user": quantiles,
        "events_per_item": quantiles,
        "repeat_rate": 0.0,
        "burst_rate": None,
        "shortages": (),
    }


def examples() -> list[dict[str, Any]]:
    recommended = [{"title": "Fargo", "score": 4.25, "rank": 1}, {"title": HOSTILE, "score": 4.0, "rank": 2}]
    return [{"user_id": HOSTILE, "history": [f"Film {n}" for n in range(20)], "recommended": recommended}]


SKIPPED = {
    "name": "iALS",
    "params": None,
    "trials": 0,
    "metrics": {},
    "difference": None,
    "skipped": "implicit is not installed",
}


def full() -> ReportContent:
    rivals = [rival("EASE", 0.022, 0.012, 0.002), rival("item-kNN", 0.05, 0.01, 0.002), SKIPPED]
    return ReportContent("Films", manifest(), description(), evaluation(), rivals, examples())


def against(*rivals: dict[str, Any]) -> str:
    return headline(ReportContent("Films", manifest(), None, evaluation(), list(rivals)))


# --- the headline ---

OURS = "Serves the sequence model: ndcg@10 .123 [.110, .136] on 1,234 users"


def test_headline_better() -> None:
    assert against(rival("popularity", 0.06, 0.01, 0.002), rival("EASE", 0.022, 0.012, 0.002)) == (
        f"{OURS}, significantly better than the best tuned rival (EASE .101; difference +.022 [.010, .034])."
    )


def test_headline_worse() -> None:
    assert against(rival("popularity", 0.06, 0.01, 0.002), rival("EASE", -0.022, 0.012, 0.002)) == (
        f"{OURS}, significantly WORSE than the best tuned rival (EASE .145; difference −.022 [−.034, −.010])."
    )


@pytest.mark.parametrize(
    ("gap", "shown"), [(0.002, "EASE .121; difference +.002"), (-0.002, "EASE .125; difference −.002")]
)
def test_headline_not_distinguishable(gap: float, shown: str) -> None:
    found = against(rival("EASE", gap, 0.012, 0.6))
    assert found.startswith(f"{OURS}, not distinguishable from the best tuned rival ({shown} [")


def test_headline_names_other_metrics_on_which_it_is_worse() -> None:
    worse = difference(-0.01, 0.006, 0.004)
    assert against(rival("EASE", 0.022, 0.012, 0.002, recall20=worse)).endswith(
        "(EASE .101; difference +.022 [.010, .034]). It is significantly WORSE than the best tuned rival on "
        "recall@20 (EASE; difference −.010 [−.016, −.004])."
    )


def test_headline_lists_many_such_metrics_without_their_intervals() -> None:
    names = ("recall@20", "hit@20", "mrr@20")
    best = rival("EASE", -0.022, 0.012, 0.002)
    best["metrics"] |= {name: interval(0.3) for name in names}
    best["difference"] |= {name: difference(-0.01, 0.006, 0.004) for name in names}
    measured = {"metrics": {"ndcg@10": interval(0.123)} | {name: interval(0.29) for name in names}}
    found = headline(ReportContent("Films", manifest(), None, evaluation() | measured, [best]))
    assert found.endswith(
        "(EASE .145; difference −.022 [−.034, −.010]). It is significantly WORSE than the best tuned rival "
        "on recall@20 (EASE; difference −.010), hit@20 (EASE; difference −.010) "
        "and mrr@20 (EASE; difference −.010)."
    )


def test_headline_looks_for_the_best_rival_of_each_metric() -> None:
    recall_leader = rival("kNN", 0.08, 0.01, 0.002, recall20=difference(-0.01, 0.006, 0.004))
    found = against(rival("EASE", 0.022, 0.012, 0.002, recall20=difference(0.03, 0.01, 0.002)), recall_leader)
    assert "best tuned rival (EASE .101" in found
    assert "on recall@20 (kNN; difference −.010" in found


@pytest.mark.parametrize("p_value", [0.05, 0.3])
def test_a_difference_that_is_not_significant_elsewhere_is_not_called_worse(p_value: float) -> None:
    found = against(rival("EASE", 0.022, 0.012, 0.002, recall20=difference(-0.01, 0.02, p_value)))
    assert "WORSE" not in found


def test_headline_never_rounds_a_significant_end_to_zero() -> None:
    found = against(rival("EASE", 0.0103, 0.0101, 0.04))
    assert "difference +.0103 [.0002, .0204]" in found


def test_headline_without_rivals_says_so() -> None:
    content = ReportContent("Films", manifest(), None, evaluation())
    assert headline(content) == f"{OURS}; no rival was run, so whether that is good is not known."
    skipped = dataclasses.replace(content, rivals=[SKIPPED])
    assert headline(skipped) == f"{OURS}; no rival could be run, so whether that is good is not known."


def test_headline_without_a_paired_test_says_so() -> None:
    untested = rival("EASE", 0.022, 0.012, 0.002) | {"difference": None}
    assert against(untested) == f"{OURS}; the best tuned rival is EASE .101, and no paired test was made."


def test_headline_without_evaluation_says_that_validation_flatters() -> None:
    found = headline(ReportContent("Films", manifest()))
    assert found == (
        "Serves the sequence model; it has not been evaluated on later events "
        "(ndcg@10 .135 [.122, .148] on the validation users it was chosen by, which flatters)."
    )


def test_headline_of_an_empty_evaluation() -> None:
    nobody = {"mean": None, "low": None, "high": None, "n": 0}
    empty = evaluation() | {"users": 0, "metrics": {"ndcg@10": nobody}}
    found = headline(ReportContent("Films", manifest(), None, empty))
    assert found == (
        "Serves the sequence model: none of the evaluated users can be scored, "
        "so how good it is is not known."
    )


def test_headline_takes_another_metric_where_the_ladders_was_not_evaluated() -> None:
    other = evaluation() | {"metrics": {"hit@5": interval(0.4)}, "users": 1}
    assert headline(ReportContent("Films", manifest(), None, other)).startswith(
        "Serves the sequence model: hit@5 .400 ["
    )


def test_headline_of_a_bare_manifest() -> None:
    assert headline(ReportContent("x", {"model": "popularity"})) == (
        "Serves the popularity model; it has not been evaluated."
    )


# --- numbers ---


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [(0.1234, 3, ".123"), (1.0, 3, "1.000"), (-0.5, 2, "−.50"), (-0.0001, 3, ".000"), (None, 3, "–")],
)
def test_amount(value: float | None, digits: int, shown: str) -> None:
    assert amount(value, digits) == shown


@pytest.mark.parametrize(("value", "shown"), [(0.02, "+.020"), (-0.02, "−.020"), (0.0, ".000")])
def test_signed(value: float, shown: str) -> None:
    assert signed(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1234567, "1,234,567"), (20.0, "20"), (412.339, "412"), (1234.56, "1,234.6"), ("x", "x"), (None, "–")],
)
def test_quantity(value: Any, shown: str) -> None:
    assert quantity(value) == shown


# --- the file ---


class Page(HTMLParser):
    """Elements with their attributes, the text outside scripts, and the texts of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag if tag in self.raw else self.inside
        if tag in self.raw:
            self.raw[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = "" if tag == self.inside else self.inside

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.raw[self.inside][-1] += data
        else:
            self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def written(content: ReportContent, folder: Path) -> Page:
    path = folder / "report.html"
    write_report(path, content)
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return written(full(), tmp_path_factory.mktemp("report"))


def test_the_headline_and_the_sections_stand_in_order(page: Page) -> None:
    assert headline(full()) in page.text
    assert [attributes["id"] for attributes in page.of("section")] == [
        "ladder",
        "rivals",
        "activity",
        "popularity",
        "curves",
        "coverage",
        "retrieval",
        "examples",
        "data",
        "limits",
        "settings",
    ]


def test_nothing_is_fetched(page: Page) -> None:
    fetching = {"src", "srcset", "data", "action", "poster", "background", "formaction"}
    for tag, attributes in page.elements:
        assert tag not in {"link", "iframe", "object", "embed", "img", "base", "audio", "video"}
        assert not fetching & attributes.keys(), tag
        assert (attributes.get("href") or "#").startswith("#"), attributes
    for style in page.raw["style"]:
        assert "@import" not in style
        assert "url(" not in style
    # Of the other scripts two are data; the bundle names addresses (of XML, of Vega's editor), opens none.
    assert not re.search(r"https?:|fetch\(|XMLHttpRequest|import\(", page.raw["script"][-1])


def test_charts_name_no_address(page: Page) -> None:
    assert "$schema" not in json.dumps(charts_of(page))
    assert "http" not in json.dumps(charts_of(page))


def test_the_page_itself_forbids_to_fetch(page: Page) -> None:
    policy = next(m["content"] for m in page.of("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe-eval" not in policy
    assert "http" not in policy
    assert not {"connect-src", "font-src", "frame-src", "worker-src"} & rules.keys()


def test_vega_is_inlined_once_and_complete(page: Page) -> None:
    assert page.raw["script"].count(bundled_script()) == 1
    assert sum("vegaEmbed=" in script for script in page.raw["script"]) == 1


def test_the_file_is_of_sensible_size(tmp_path: Path) -> None:
    write_report(tmp_path / "r.html", full())
    assert (tmp_path / "r.html").stat().st_size < 2_000_000


def test_titles_are_escaped_everywhere(page: Page) -> None:
    # data, charts, the bundle and the page's own script: a title that broke out would make a fifth
    assert len(page.of("script")) == 4
    assert " ".join(HOSTILE.split()) in page.text


def test_every_text_that_comes_in_is_escaped(tmp_path: Path) -> None:
    """HOSTILE in the place of every string of the content, keys that are shown included."""

    def poisoned(value: Any) -> Any:
        if isinstance(value, str):
            return HOSTILE
        if isinstance(value, dict):
            return {key: poisoned(inner) for key, inner in value.items()}
        return [poisoned(inner) for inner in value] if isinstance(value, list | tuple) else value

    content = full()
    kept = {"ladder": {"metric": "ndcg@10", "level": 0.95}, HOSTILE: {HOSTILE: HOSTILE}}
    rivals = [poisoned(one) | {"skipped": None} for one in content.rivals or []]
    bad = ReportContent(
        HOSTILE,
        poisoned(content.manifest) | {"config": kept},
        poisoned(content.description),
        poisoned(content.evaluation) | {"protocol": {HOSTILE: HOSTILE}},
        [*rivals, SKIPPED | {"skipped": HOSTILE}],
        poisoned(content.examples),
    )
    page = written(bad, tmp_path)
    assert len(page.of("script")) == 4
    assert page.of("img") == []
    assert {tag for tag, _ in page.elements if tag.startswith("s")} == {"script", "section", "span", "style"}


def test_the_numbers_stand_in_the_page_as_json(page: Page) -> None:
    index = next(i for i, a in enumerate(page.of("script")) if a.get("id") == "report-data")
    found = json.loads(page.raw["script"][index])
    assert found["evaluation"] == evaluation()
    assert found["manifest"] == manifest()
    assert found["rivals"] == full().rivals
    assert found["examples"] == examples()
    assert found["headline"] == headline(full())


def test_json_has_no_nan_and_cannot_end_its_script() -> None:
    text = script_safe_json({"a": math.nan, "b": [math.inf, "</script>"], "c": "\u2028&<!--"}).text
    assert json.loads(text) == {"a": None, "b": [None, "</script>"], "c": "\u2028&<!--"}
    assert not set("<>&\u2028") & set(text)


def charts_of(page: Page) -> dict[str, Any]:
    index = next(i for i, a in enumerate(page.of("script")) if a.get("id") == "report-charts")
    charts: dict[str, Any] = json.loads(page.raw["script"][index])
    return charts


def test_every_chart_has_a_place_and_every_place_a_chart(page: Page) -> None:
    places = [attributes for attributes in page.of("div") if "data-chart" in attributes]
    assert {place["data-chart"] for place in places} == charts_of(page).keys()
    assert charts_of(page).keys() >= {
        "values",
        "differences",
        "activity",
        "popularity",
        "curve-sequence-loss",
    }
    assert all(place["role"] == "img" and place["aria-label"] for place in places)


def test_charts_hold_the_values_of_the_tables(page: Page) -> None:
    def values(spec: Any) -> list[list[dict[str, Any]]]:
        if isinstance(spec, list):
            return [found for inner in spec for found in values(inner)]
        if not isinstance(spec, dict):
            return []
        own = [spec["values"]] if isinstance(spec.get("values"), list) else []
        return own + [found for inner in spec.values() for found in values(inner)]

    dots = next(v for v in values(charts_of(page)["values"]) if "label" in v[0])
    assert [row["label"] for row in dots] == ["sequence (served)", "EASE", "item-kNN"]
    assert [row["mean"] for row in dots] == pytest.approx([0.123, 0.101, 0.073])
    gaps = next(v for v in values(charts_of(page)["differences"]) if "label" in v[0])
    assert [row["mean"] for row in gaps] == pytest.approx([0.022, 0.05])


def test_tables_can_be_read_by_machines_that_speak(page: Page) -> None:
    tables = page.of("table")
    assert len(page.of("caption")) == len(tables) > 8
    assert all(cell.get("scope") in {"row", "col"} for cell in page.of("th"))
    assert page.of("html")[0]["lang"] == "en"
    assert any(
        (m.get("name"), m.get("content")) == ("viewport", "width=device-width, initial-scale=1")
        for m in page.of("meta")
    )


def test_light_and_dark(page: Page) -> None:
    style = page.raw["style"][0]
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    dark = dark.split("* {")[0]
    names = {"page", "raised", "text", "muted", "line", "accent", "neutral", "worse", "better", "mark"}
    assert all(f"--{name}:" in light and f"--{name}:" in dark for name in names)
    used = set(re.findall(r"var\(--([a-z]+)\)", json.dumps(charts_of(page)) + style + page.raw["script"][-1]))
    assert used <= names


def luminance(color: str) -> float:
    """[WCAG 2.2] Σ weight · linear channel."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return math.fsum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1])
@pytest.mark.parametrize(
    ("name", "least"),
    [("text", 7), ("muted", 4.5), ("accent", 4.5), ("worse", 4.5), ("better", 4.5), ("neutral", 3)],
)
def test_colours_stand_out_from_the_page(page: Page, scheme: int, name: str, least: float) -> None:
    block = page.raw["style"][0].split("@media (prefers-color-scheme: dark)")[scheme].split("}")[0]
    color = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block))
    above, below = sorted((luminance(color[name]), luminance(color["page"])), reverse=True)
    assert (above + 0.05) / (below + 0.05) >= least


# --- what the sections say ---


def test_sections_say_what_matters(page: Page) -> None:
    for said in (
        "Not run: iALS: implicit is not installed.",
        "▲ +.022 [.010, .034]",
        "(the last 15 of 20)",
        "31.2 %",
        "1.31 ms",
        "What these numbers do not say",
        "1970-01-02 00:00 UTC",
        "l2 412",
    ):
        assert said in page.text, said
    assert "Film 5" in page.text
    assert "Film 4 " not in page.text


def test_a_cheaper_model_that_is_served_is_explained(tmp_path: Path) -> None:
    rows = [ladder_row("neighbours", 0.13, True), ladder_row("sequence", 0.135, False)]
    found = written(ReportContent("x", manifest() | {"model": "neighbours", "ladder": rows}), tmp_path).text
    assert (
        "The highest mean is that of sequence; neighbours is not significantly worse and costs less." in found
    )


def test_a_ladder_of_one_rung_claims_no_comparison(tmp_path: Path) -> None:
    rows = [ladder_row("sequence", 0.13, True)]
    found = written(ReportContent("x", manifest() | {"ladder": rows}), tmp_path).text
    assert "Only sequence was tried, so nothing was compared." in found


PARTS = ("description", "evaluation", "rivals", "examples")


@pytest.mark.parametrize("missing", PARTS)
def test_missing_parts_are_left_out(missing: str, tmp_path: Path) -> None:
    page = written(dataclasses.replace(full(), **{missing: None}), tmp_path)
    shown = {attributes["id"] for attributes in page.of("section")}
    gone = {
        "description": {"data"},
        "evaluation": {"rivals", "activity", "popularity", "coverage", "retrieval"},
        "rivals": set(),
        "examples": {"examples"},
    }[missing]
    assert not gone & shown
    assert shown >= {"ladder", "curves", "limits", "settings"}
    assert "None" not in page.text


@pytest.mark.parametrize("key", [key for key in evaluation() if key != "users"])
def test_parts_of_the_evaluation_may_be_missing(key: str, tmp_path: Path) -> None:
    less = {name: value for name, value in evaluation().items() if name != key}
    assert "limits" in {
        a["id"] for a in written(dataclasses.replace(full(), evaluation=less), tmp_path).of("section")
    }


@pytest.mark.parametrize("bare", [{}, {"model": "popularity", "ladder": [], "curves": {}, "config": {}}])
def test_a_bare_manifest_makes_a_report(bare: dict[str, Any], tmp_path: Path) -> None:
    page = written(ReportContent("Small", bare, None, None, [], []), tmp_path)
    assert {a["id"] for a in page.of("section")} <= {"limits", "settings"}


def test_an_empty_ladder_row_and_one_point_of_a_curve(tmp_path: Path) -> None:
    row = ladder_row("popularity", 0.1, True) | {"metrics": {}}
    bare = {"model": "popularity", "ladder": [row], "curves": {"sequence": [{"step": 1.0, "loss": 2.0}]}}
    page = written(ReportContent("Small", bare), tmp_path)
    assert "curves" not in {a["id"] for a in page.of("section")}


# --- what can go wrong ---


@pytest.mark.parametrize("module", ["altair", "vl_convert"])
def test_without_the_extra_the_error_names_the_command(
    module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rootbeam\[report\]'"):
        write_report(tmp_path / "report.html", full())
    assert list(tmp_path.iterdir()) == []


def test_the_headline_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert headline(full()).startswith("Serves the sequence model")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        write_report(tmp_path, full())


def test_an_old_report_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write_report(path, full())
    write_report(path, ReportContent("Second", {"model": "popularity"}))
    assert "Second" in path.read_text()
    assert "Fargo" not in path.read_text()
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
