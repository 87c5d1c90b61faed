"""What a report says, and the sentence at its top: pure functions over the JSON of the other commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rootbeam.evaluate.report_parts import amount, count, signed

SIGNIFICANT_P = 0.05
DEFAULT_METRIC = "ndcg@10"
INTERVALS_ELSEWHERE = 2  # metrics beyond the headline's whose intervals a reader can take in


@dataclass(frozen=True)
class ReportContent:
    """The parts of a report as plain JSON values; None leaves a part out."""

    title: str
    manifest: Mapping[str, Any]  # of the bundle
    description: Mapping[str, Any] | None = None  # Description.to_dict()
    evaluation: Mapping[str, Any] | None = None  # Evaluation.to_dict()
    # name, params, trials, metrics: {metric: interval}, difference: {metric: ours − rival's} | None,
    # skipped: why it did not run | None
    rivals: list[dict[str, Any]] | None = None
    examples: list[dict[str, Any]] | None = (
        None  # user_id, history: [title], recommended: [{title, score, rank}]
    )

    @property
    def model(self) -> str:
        return str(self.manifest.get("model", "chosen"))

    @property
    def metric(self) -> str:
        """The metric of the headline: what the ladder chose by, where it was evaluated."""
        chosen_by = ladder_metric(self.manifest)
        measured = metrics_of(self.evaluation)
        return chosen_by if chosen_by in measured or not measured else next(iter(measured))

    def measured(self) -> dict[str, Any]:
        """The evaluated intervals by metric, that of the headline first."""
        found = metrics_of(self.evaluation)
        return {name: found[name] for name in sorted(found, key=lambda name: name != self.metric)}

    def compared(self) -> list[dict[str, Any]]:
        """The rivals that ran."""
        return [rival for rival in self.rivals or [] if not rival.get("skipped")]


def ladder_metric(manifest: Mapping[str, Any]) -> str:
    """What the rungs of the ladder were compared by."""
    stated = manifest.get("config", {}).get("ladder", {}).get("metric")
    rows = [row.get("metrics") or {} for row in manifest.get("ladder", [])]
    return str(stated or next((name for row in rows for name in row), DEFAULT_METRIC))


def metrics_of(source: Mapping[str, Any] | None) -> dict[str, Any]:
    """The intervals that hold a number, by metric."""
    found = (source or {}).get("metrics") or {}
    return {name: value for name, value in found.items() if value and value.get("mean") is not None}


def best_rival(content: ReportContent, metric: str) -> dict[str, Any] | None:
    """The rival with the highest mean; the first of equals."""
    having = [rival for rival in content.compared() if metric in metrics_of(rival)]
    return max(having, key=lambda rival: rival["metrics"][metric]["mean"], default=None)


def difference_to(rival: Mapping[str, Any], metric: str) -> dict[str, Any] | None:
    """{mean, low, high, p_value} of ours − the rival's, where it was computed."""
    found = (rival.get("difference") or {}).get(metric)
    return found if found and found.get("mean") is not None else None


def verdict(difference: Mapping[str, Any]) -> str:
    """better, worse or not distinguishable: by the paired test at 5 %."""
    if difference["p_value"] is None or difference["p_value"] >= SIGNIFICANT_P:
        return "not distinguishable"
    return "better" if difference["mean"] > 0 else "worse"


def headline(content: ReportContent) -> str:
    """What is served, how good it is, and how it stands against the best rival, good or bad."""
    served = f"Serves the {content.model} model"
    measured = metrics_of(content.evaluation).get(content.metric)
    if content.evaluation is None:
        return f"{served}{_validation_clause(content)}."
    if measured is None:
        return f"{served}: none of the evaluated users can be scored, so how good it is is not known."
    digits = _digits(content)
    users = count(content.evaluation.get("users", measured.get("n", 0)), "user")
    value = f"{content.metric} {amount(measured['mean'], digits)} {span(measured, digits)} on {users}"
    return f"{served}: {value}{_comparison_clause(content, digits)}"


def span(interval: Mapping[str, Any], digits: int) -> str:
    """[low, high]"""
    return f"[{amount(interval['low'], digits)}, {amount(interval['high'], digits)}]"


def _validation_clause(content: ReportContent) -> str:
    chosen = next((row for row in content.manifest.get("ladder", []) if row.get("chosen")), None)
    value = metrics_of(chosen).get(ladder_metric(content.manifest))
    if value is None:
        return "; it has not been evaluated"
    digits = digits_for(value)
    return (
        f"; it has not been evaluated on later events ({ladder_metric(content.manifest)} "
        f"{amount(value['mean'], digits)} {span(value, digits)} on the validation users it was chosen by, "
        "which flatters)"
    )


def _comparison_clause(content: ReportContent, digits: int) -> str:
    best = best_rival(content, content.metric)
    if best is None:
        ran = "could be run" if content.rivals else "was run"
        return f"; no rival {ran}, so whether that is good is not known."
    score = f"{best['name']} {amount(best['metrics'][content.metric]['mean'], digits)}"
    difference = difference_to(best, content.metric)
    if difference is None:
        return f"; the best tuned rival is {score}, and no paired test was made.{_elsewhere_worse(content)}"
    relation = {
        "better": "significantly better than",
        "worse": "significantly WORSE than",
        "not distinguishable": "not distinguishable from",
    }[verdict(difference)]
    gap = f"difference {signed(difference['mean'], digits)} {span(difference, digits)}"
    return f", {relation} the best tuned rival ({score}; {gap}).{_elsewhere_worse(content)}"


def _elsewhere_worse(content: ReportContent) -> str:
    """The other metrics on which the best rival is significantly better; they may not hide in a table."""
    losses = []
    for metric in content.measured():
        best = best_rival(content, metric)
        difference = difference_to(best, metric) if best else None
        if metric != content.metric and best and difference and verdict(difference) == "worse":
            losses.append((metric, best["name"], difference))
    if not losses:
        return ""
    with_interval = len(losses) <= INTERVALS_ELSEWHERE
    *others, last = (_loss(*loss, with_interval) for loss in losses)
    listed = f"{', '.join(others)} and {last}" if others else last
    return f" It is significantly WORSE than the best tuned rival on {listed}."


def _loss(metric: str, rival: str, difference: Mapping[str, Any], with_interval: bool) -> str:
    digits = digits_for(difference)
    interval = f" {span(difference, digits)}" if with_interval else ""
    return f"{metric} ({rival}; difference {signed(difference['mean'], digits)}{interval})"


def _digits(content: ReportContent) -> int:
    """Enough decimals for the narrowest interval of the headline."""
    return digits_for(*_headline_intervals(content))


def _headline_intervals(content: ReportContent) -> Iterator[Mapping[str, Any]]:
    yield metrics_of(content.evaluation)[content.metric]
    best = best_rival(content, content.metric)
    if best is not None:
        difference = difference_to(best, content.metric)
        if difference is not None:
            yield difference


def digits_for(*intervals: Mapping[str, Any]) -> int:
    """Three decimals; up to six where an interval is narrow, or an end of a difference would read as zero."""
    digits = 3
    for interval in intervals:
        width = abs(interval["high"] - interval["low"])
        while digits < 6 and 0 < width < 2 * 10**-digits:
            digits += 1
        if "p_value" in interval:
            ends = (abs(interval["low"]), abs(interval["high"]))
            while digits < 6 and any(0 < end < 0.5 * 10**-digits for end in ends):
                digits += 1
    return digits
