"""`rootbeam evaluate`, `recommend`, `inspect`, `report`, `doctor`: what a bundle says."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rootbeam.cli.sources import is_split, open_events, options_of, read_split
from rootbeam.cli.terminal import (
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

Bundle = Annotated[Path, typer.Argument(help="A bundle made by `rootbeam train`.")]


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
    """Full-catalogue metrics with intervals, by kind of user; on events the model has not learned from."""
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


def recommend(
    bundle: Bundle,
    user: Annotated[list[str] | None, typer.Option("--user", help="A user id; repeatable.")] = None,
    history: Annotated[
        str | None, typer.Option("--history", help="Items of someone unknown, oldest first: a,b,c.")
    ] = None,
    users: Annotated[
        Path | None, typer.Option("--users", help="File with a user_id column, or an id a line.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="With --users: Parquet, CSV or JSON Lines.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Items a user.", min=1)] = 10,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also items the user had before.")
    ] = False,
    allow: Annotated[str | None, typer.Option("--allow", help="Only these items: a,b,c or @FILE.")] = None,
    deny: Annotated[str | None, typer.Option("--deny", help="Never these items: a,b,c or @FILE.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = 0,
) -> None:
    """The best k items of known users, or of someone given by a history."""
    from rootbeam.core.errors import ConfigError
    from rootbeam.recommender import load

    screen = Screen(json, quiet)
    if sum(given is not None and given != [] for given in (user, history, users)) != 1:
        raise ConfigError("needed exactly one of --user, --history and --users")
    if out is not None and out.suffix not in WRITERS:
        raise ConfigError(f"--out is {out.name}; needed a name that ends in {', '.join(WRITERS)}")
    recommender = load(bundle)
    filters: dict[str, Any] = {
        "exclude_seen": False if include_seen else None,
        "allow": _id_list(allow),
        "deny": _id_list(deny),
    }
    if history is not None:
        items = [item.strip() for item in history.split(",") if item.strip()]
        _warn_unknown(recommender, items, screen)
        key, ids = "history", list[Any]([0])
        found = recommender.recommend_from_history([items], k, **filters)
    else:
        given = list(user) if user else read_users(users)
        key, ids = "user_id", [recommender.model.users.as_stored(each) for each in dict.fromkeys(given)]
        found = recommender.recommend(ids, k, **filters)
        _warn_strangers(found, len(ids), screen)
    if out is not None:
        _write(found, out)
        screen.result(
            {"out": str(out), "users": len(ids), "rows": len(found)}, [f"wrote {len(found):,} rows to {out}"]
        )
        return
    answers = _answers(found, key, ids)
    screen.result({"users": answers}, _lines(answers, key, recommender))


def read_users(path: Path | None) -> list[Any]:
    """User ids of a file: its user_id column, or a line each."""
    import polars as pl

    from rootbeam.core.errors import EventsError

    assert path is not None
    try:
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path)
        elif path.suffix in (".csv", ".tsv"):
            frame = pl.read_csv(path, separator="\t" if path.suffix == ".tsv" else ",", infer_schema=False)
        elif path.suffix in (".jsonl", ".ndjson"):
            frame = pl.read_ndjson(path, infer_schema_length=None)
        else:
            lines = path.read_text(encoding="utf-8").splitlines()
            frame = pl.DataFrame({"user_id": [line.strip() for line in lines if line.strip()]})
    except FileNotFoundError:
        raise EventsError(
            f"no file {path}; give --users a file with a user_id column or an id a line"
        ) from None
    except (pl.exceptions.PolarsError, UnicodeDecodeError, OSError) as error:
        raise EventsError(
            f"{path} cannot be read ({str(error).splitlines()[0]}); needed a user_id column"
        ) from None
    if "user_id" not in frame.columns:
        raise EventsError(f"{path} has the columns {', '.join(frame.columns)}; needed user_id")
    if frame["user_id"].dtype not in (pl.String, pl.Null) and not frame["user_id"].dtype.is_integer():
        raise EventsError(f"{path}: user_id is {frame['user_id'].dtype}; needed strings or integers")
    users = frame["user_id"].drop_nulls().unique(maintain_order=True).to_list()
    if not users:
        raise EventsError(f"{path} names no user; needed a user_id column or an id a line")
    return users


def _id_list(given: str | None) -> list[str] | None:
    from rootbeam.core.errors import ConfigError

    if given is None:
        return None
    if given.startswith("@"):
        try:
            return [
                line.strip()
                for line in Path(given[1:]).read_text(encoding="utf-8").splitlines()
                if line.strip()
            ]
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"no readable file {given[1:]!r}; needed an item id a line") from None
    return [item.strip() for item in given.split(",") if item.strip()]


def _warn_unknown(recommender: Recommender, items: list[str], screen: Screen) -> None:
    unknown = [item for item in items if item not in recommender.model.items]
    if unknown:
        shown = ", ".join(item[:40] for item in unknown[:3])
        screen.say(f"{len(unknown)} of {len(items)} items of the history are unknown to the model: {shown}")


def _warn_strangers(found: pl.DataFrame, users: int, screen: Screen) -> None:
    strangers = found.filter(found["source"] == "fallback")["user_id"].n_unique()
    if strangers:
        screen.say(f"{strangers:,} of {users:,} users are unknown to the model: recent popularity instead")


def _answers(found: pl.DataFrame, key: str, ids: list[Any]) -> list[dict[str, Any]]:
    """A dictionary for each of `ids`; without items for whom the filters leave none."""
    rows = {value: part for (value,), part in found.group_by(key)}
    as_text = not found[key].dtype.is_integer()
    answers = []
    for each in ids:
        part = rows.get(str(each) if as_text else each, found.clear())
        items = part.sort("rank").select("item_id", "score", "rank").to_dicts()
        answers.append({key: each, "source": part["source"][0] if items else None, "items": items})
    return answers


def _lines(answers: list[dict[str, Any]], key: str, recommender: Recommender) -> list[str]:
    titles = recommender.model.titles
    lines: list[str] = []
    for answer in answers:
        head = f"user {answer[key]}" if key == "user_id" else "history"
        if answer["source"] == "fallback":
            head += " (unknown to the model: recent popularity)"
        if not answer["items"]:
            head += " (no item is left to recommend)"
        lines += ["", head]
        dense = recommender.model.items.dense(item["item_id"] for item in answer["items"])
        for item, row in zip(answer["items"], dense, strict=True):
            title = f"  {titles[row]}" if titles and titles[row] else ""
            lines.append(f"{item['score']:9.4f}  {item['item_id']}{title}")
    return lines[1:]


WRITERS = {
    ".parquet": "write_parquet",
    ".csv": "write_csv",
    ".jsonl": "write_ndjson",
    ".ndjson": "write_ndjson",
}


def _write(frame: pl.DataFrame, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    getattr(frame, WRITERS[out.suffix])(out)


def inspect(bundle: Bundle, json: Json = False, quiet: Quiet = False, seed: Seed = 0) -> None:
    """What is in a bundle: the ladder and its choice, settings, sizes, hashes."""
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
    """One HTML file that opens offline: the ladder, metrics with intervals, slices, curves, settings."""
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
    """Versions, CPU features, GPU, what is missing and how to get it; exit code 1 when something is wrong."""
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
