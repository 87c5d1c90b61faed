"""`rootbeam data`: fetch, simulate, validate, describe, split."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from rootbeam.cli.sources import WITHOUT_TIME, open_events, open_items, options_of, write_split
from rootbeam.cli.terminal import Columns, Json, MinRating, OnBadRows, Quiet, Repeats, Screen, Seed, Weights

data_app = typer.Typer(
    help="Fetch, simulate, validate, describe and split events.", no_args_is_help=True, rich_markup_mode=None
)
Out = Annotated[Path, typer.Option("--out", help="Folder to write.")]
Events = Annotated[
    str, typer.Argument(help="Parquet, CSV, TSV, JSON Lines, RecBole files, a folder or a quoted glob.")
]


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="ml-100k, ml-1m, …; `list` shows all of them.")],
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write; NAME by default.")] = None,
    source: Annotated[Path | None, typer.Option("--from", help="Your own copy of the data set.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = 0,
) -> None:
    """A public data set as a canonical folder; shows its licence."""
    from rootbeam.data import sources
    from rootbeam.data.folder import read_meta

    screen = Screen(json, quiet)
    if name == "list":
        found = sources.names()
        rows = [f"{s.name:<12} {'--from PATH' if s.needs_path else 'downloads':<12} {s.about}" for s in found]
        screen.result({"sources": [{"name": s.name, "needs_path": s.needs_path} for s in found]}, rows)
        return
    folder = sources.fetch(name, out or Path(name), source=source, progress=screen.say)
    meta = read_meta(folder)
    screen.result({"folder": str(folder), **meta}, [f"wrote {meta['rows']:,} events to {folder}"])


@data_app.command()
def simulate(
    out: Out,
    users: Annotated[int | None, typer.Option(help="Users of the world.", min=1)] = None,
    items: Annotated[int | None, typer.Option(help="Items of the world.", min=1)] = None,
    events: Annotated[int | None, typer.Option(help="Events to draw.", min=1)] = None,
    days: Annotated[float | None, typer.Option(help="Length of the log in days.")] = None,
    drift: Annotated[float | None, typer.Option(help="How fast tastes move, per day.")] = None,
    repeats: Annotated[float | None, typer.Option(help="Share of repeat consumption.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = 0,
) -> None:
    """A log of a made-up world whose truth is known."""
    from rootbeam.data.folder import write_folder
    from rootbeam.data.simulate import simulate as run

    made = run(users=users, items=items, events=events, days=days, drift=drift, repeats=repeats, seed=seed)
    meta = {"name": "simulated", "licence": "made up; no restriction", "seed": seed}
    write_folder(out, [made.events], made.items, meta)
    Screen(json, quiet).result(
        {"folder": str(out), "rows": len(made.events)}, [f"wrote {len(made.events):,} events to {out}"]
    )


@data_app.command()
def validate(
    events: Events,
    out: Annotated[Path | None, typer.Option("--out", help="Write the canonical folder here.")] = None,
    columns: Columns = None,
    weights: Weights = None,
    min_rating: MinRating = None,
    on_bad_rows: OnBadRows = "fail",
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = 0,
) -> None:
    """Checks every row; with --out, writes the canonical Parquet folder in bounded memory."""
    from rootbeam.data.events import write_canonical

    options = options_of(columns, weights, min_rating, on_bad_rows)
    if out is None:
        found = open_events(events, options, Screen(json, True)).report
    else:
        found = write_canonical(events, out, options)
    lines = [
        f"{found.rows:,} rows, {found.kept:,} kept, {found.duplicates:,} exact duplicates, "
        f"{found.rejected:,} rejected, "
        f"{found.dropped_zero_weight + found.dropped_low_rating:,} dropped by rule",
        f"repeat rate {found.repeat_rate:.1%}; {'timed' if found.timed else WITHOUT_TIME}",
    ]
    Screen(json, quiet).result(dataclasses.asdict(found), lines)


@data_app.command()
def describe(
    events: Events,
    items: Annotated[Path | None, typer.Option("--items", help="File of items.")] = None,
    columns: Columns = None,
    weights: Weights = None,
    min_rating: MinRating = None,
    on_bad_rows: OnBadRows = "fail",
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = 0,
) -> None:
    """What is in the events, whether it is enough, and what training would take."""
    from rootbeam.data.describe import describe as run

    options = options_of(columns, weights, min_rating, on_bad_rows)
    read = open_events(events, options, Screen(json, True))
    found = run(read, open_items(items) if items else read.items)
    Screen(json, quiet).result(found.to_dict(), found.lines())


@data_app.command()
def split(
    events: Events,
    out: Out,
    by: Annotated[str, typer.Option("--by", help="time, users, leave-one-out or random.")] = "time",
    valid: Annotated[float, typer.Option(help="Share held out for choosing.")] = 0.1,
    test: Annotated[float, typer.Option(help="Share held out for the last word.")] = 0.1,
    items: Annotated[Path | None, typer.Option("--items", help="File of items.")] = None,
    repeats: Repeats = None,
    columns: Columns = None,
    weights: Weights = None,
    min_rating: MinRating = None,
    on_bad_rows: OnBadRows = "fail",
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = 0,
) -> None:
    """Train, validation and test folders for `train` and `evaluate`; says what was dropped."""
    from rootbeam.data.split import split as run

    screen = Screen(json, quiet)
    read = open_events(events, options_of(columns, weights, min_rating, on_bad_rows), screen)
    parts = run(read, by=by, valid=valid, test=test, seed=seed, repeats=repeats or "forbid")  # type: ignore[arg-type]
    report = write_split(parts, open_items(items) if items else read.items, out)
    screen.result({"folder": str(out), **report}, [*parts.report.lines(), f"wrote {out}"])
