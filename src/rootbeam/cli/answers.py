"""`rootbeam evaluate`, `inspect`, `report`, `doctor`: how good a bundle is and what is in it."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rootbeam.cli.sources import is_split, open_events, options_of, read_split
from rootbeam.cli.terminal import (
    Bundle,
    Columns,
    Json,
    MinRating,
    OnBadRows,
    Quiet,
    Screen,
    Seed,
    Weights,
    interval_text,
    table,
)

if TYPE_CHECKING:
    import polars as pl

    from rootbeam.data.split import Holdout
    from rootbeam.recommender import Recommender


def evaluate(
    bundle: Bundle,
    events: Annotated[
        str, typer.Argument(help="A folder made by `data split`, or events that go on after the training.")
    ],
    per_user: Annotated[
        Path | None, typer.Option("--per-user", help="Write every user's values (Parquet).")
    ] = None,
    columns: Columns = None,
    weights: Weights = None,
    min_rating: MinRating = None,
    on_bad_rows: OnBadRows = "fail",
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = 0,
) -> None:
    """How good a model is, on events it has not learned from.

    Metrics over the full catalogue, with intervals, and by kind of user.
    """
    from rootbeam.recommender import load

    screen = Screen(json, quiet)
    recommender = load(bundle)
    if is_split(events):
        _, _, holdout, _, made = read_split(events)
        _require_unseen(recommender, made)
        screen.say("evaluating on the test part of the split")
    else:
        read = open_events(events, options_of(columns, weights, min_rating, on_bad_rows), screen)
        holdout = later_than_training(read.frame, recommender)
    found = recommender.evaluate(holdout)
    if per_user is not None:
        _per_user(found, holdout, per_user)
    rows = [[name, interval_text(i.to_dict())] for name, i in found.metrics.items()]
    lines = [
        f"{found.users:,} users, {found.excluded_users:,} without labels excluded; full catalogue of "
        f"{found.protocol['items']:,} items, seen items {found.protocol['seen_items']}",
        *table(rows, ["metric", "mean [95 %]"]),
        *[
            f"{name.replace('_', ' ')}: {part['users']:,} users, "
            f"ndcg@10 {interval_text(part['metrics']['ndcg@10'])}"
            for name, part in found.slices.items()
        ],
        f"{found.retrieval['mode']} search, {found.retrieval['latency_ms']['p50']:.2f} ms a user (p50)",
    ]
    screen.result(found.to_dict(), lines)


def _require_unseen(recommender: Recommender, made: dict[str, Any]) -> None:
    """The test part of a split by time must begin after the last event of the training."""
    from rootbeam.core.errors import EventsError

    through, cut_offs = recommender.model.facts.get("trained_through_ms"), made.get("cut_offs_ms")
    if through is not None and cut_offs and through >= cut_offs[1]:
        raise EventsError(
            "the model has learned from events of the split's test part: nothing would be measured honestly; "
            "train on the folder of the split"
        )


def later_than_training(frame: pl.DataFrame, recommender: Recommender) -> Holdout:
    """Events after the model's last one are labels, those before are histories."""
    import polars as pl

    from rootbeam.core.errors import EventsError
    from rootbeam.data.split import Holdout

    through = recommender.model.facts.get("trained_through_ms")
    if through is None or "timestamp" not in frame.columns:
        raise EventsError(
            "without times it cannot be told which events the model has not seen; "
            "make a split with `rootbeam data split`, train on it and evaluate on it"
        )
    time = pl.col("timestamp").to_physical()
    labels = frame.filter(time > through)
    if not len(labels):
        raise EventsError(
            "no event is later than the training, so nothing would be measured honestly; "
            "give newer events, or train and evaluate on a folder made by `rootbeam data split`"
        )
    inputs = frame.filter(time <= through)
    if not len(inputs):
        raise EventsError(
            "all events are later than the training, so no user has a history to recommend from; "
            "give the whole log, the old events and the new ones"
        )
    later = labels
    if recommender.config.data.repeats == "forbid":
        labels = labels.join(inputs, on=["user_id", "item_id"], how="anti", maintain_order="left")
    return Holdout(inputs, labels, later)


def _per_user(found: Any, holdout: Holdout, path: Path) -> None:
    import polars as pl

    from rootbeam.data.arrays import ids_of

    users = ids_of(holdout.inputs["user_id"], holdout.labels["user_id"])
    path.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame({"user_id": users.back(found.rows.tolist()), **found.values}).write_parquet(path)


def inspect(bundle: Bundle, json: Json = False, quiet: Quiet = False, seed: Seed = 0) -> None:
    """What is in a bundle: the ladder and its choice, sizes, hashes."""
    from rootbeam.cli.training import ladder_lines
    from rootbeam.core.bundle import open_bundle

    manifest = open_bundle(bundle, dict)
    lines = [
        f"{bundle}: {manifest['model']} over {manifest['items']:,} items and {manifest['users']:,} users, "
        f"from {manifest['events']:,} events",
        f"format {manifest['format']}, Rootbeam {manifest['version']}, seed {manifest['seed']}; "
        "every hash is right",
        "",
        *ladder_lines(manifest["ladder"], manifest["config"]["ladder"]["metric"]),
        "",
        *table(
            [
                [name, f"{(bundle / name).stat().st_size:,}", sha[:12]]
                for name, sha in manifest["files"].items()
            ],
            ["file", "bytes", "sha256"],
        ),
    ]
    Screen(json, quiet).result(manifest, lines)


def report(
    bundle: Bundle,
    out: Annotated[Path, typer.Option("--out", help="The HTML file.")],
    evaluation: Annotated[
        Path | None,
        typer.Option("--evaluation", help="JSON of `evaluate --json`, shown as well."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = 0,
) -> None:
    """One HTML file that opens offline.

    The ladder, metrics with intervals, slices, curves, settings.
    """
    from rootbeam.core.bundle import open_bundle
    from rootbeam.evaluate.report import ReportContent, write_report

    manifest = open_bundle(bundle, dict)
    measured = None if evaluation is None else read_evaluation(evaluation, bundle)
    content = ReportContent(
        title=f"Rootbeam: {bundle.name}",
        manifest=manifest,
        description=None,
        evaluation=measured,
        rivals=None,
        examples=None,
    )
    write_report(out, content)
    Screen(json, quiet).result({"report": str(out)}, [f"wrote {out}"])


def read_evaluation(path: Path, bundle: Path) -> dict[str, Any]:
    from rootbeam.core.errors import ConfigError

    try:
        measured = jsonlib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        measured = None
    if not isinstance(measured, dict) or not {"protocol", "users", "metrics", "slices"} <= measured.keys():
        raise ConfigError(
            f"{path} is no JSON of an evaluation; make it with "
            f"`rootbeam evaluate {bundle} EVENTS --json > {path}`"
        )
    return measured


def doctor(json: Json = False, quiet: Quiet = False, seed: Seed = 0) -> None:
    """What this machine offers, what is missing and how to get it.

    Exit code 1 when something is wrong.
    """
    from rootbeam.doctor import examine

    checks = examine()
    marks = {"ok": "ok      ", "optional": "optional", "problem": "PROBLEM "}
    lines = [
        f"{marks[c.status]}  {c.name:<14} {c.detail}" + (f"  -> {c.remedy}" if c.remedy else "")
        for c in checks
    ]
    wrong = any(c.status == "problem" for c in checks)
    value = {"ok": not wrong, "checks": [vars(c) for c in checks]}
    Screen(json, quiet).result(value, lines)
    if wrong:
        raise typer.Exit(1)
