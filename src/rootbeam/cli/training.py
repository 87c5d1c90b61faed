"""`rootbeam train` and `rootbeam tune`."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rootbeam.cli.sources import is_split, open_events, open_items, options_of, read_split, repeats_of
from rootbeam.cli.terminal import (
    Columns,
    ConfigFile,
    Json,
    MinRating,
    OnBadRows,
    Quiet,
    Repeats,
    Screen,
    Seed,
    Settings,
    Weights,
    interval_text,
    seconds_of,
    stop_on_interrupt,
    table,
)

if TYPE_CHECKING:
    import polars as pl

    from rootbeam.core.config import Config
    from rootbeam.data.split import Holdout

Budget = Annotated[
    str | None, typer.Option("--budget", help="Time for training: 90s, 10m (the default), 2h, or none.")
]
Device = Annotated[str | None, typer.Option("--device", help="auto (the default), cpu or cuda.")]
Events = Annotated[str, typer.Argument(help="Events, or a folder made by `data split`.")]
Items = Annotated[
    Path | None, typer.Option("--items", help="item_id with title, category, available, features.")
]


def config_for(
    config: Path | None,
    settings: list[str] | None,
    seed: int,
    budget: str | None,
    device: str | None,
    repeats: str | None,
) -> Config:
    """File and --set first; the options of the verb on top."""
    from rootbeam.core.config import config_from

    built = config_from(config, settings or [])
    run = dataclasses.replace(built.run, seed=seed or built.run.seed, device=device or built.run.device)
    if budget is not None:
        run = dataclasses.replace(run, budget_seconds=seconds_of(budget))
    data = dataclasses.replace(built.data, repeats=repeats or built.data.repeats)
    return dataclasses.replace(built, run=run, data=data)


def train(
    events: Events,
    out: Annotated[Path, typer.Option("--out", help="The bundle, a folder.")],
    items: Items = None,
    budget: Budget = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run, if there is one.")
    ] = False,
    model: Annotated[
        str | None, typer.Option("--model", help="Serve this rung whatever validation says.")
    ] = None,
    device: Device = None,
    export: Annotated[
        Path | None,
        typer.Option("--export", help="Only write the task, for `python -m rootbeam.train` elsewhere."),
    ] = None,
    trained: Annotated[
        Path | None, typer.Option("--trained", help="Build the bundle from what was trained elsewhere.")
    ] = None,
    repeats: Repeats = None,
    columns: Columns = None,
    weights: Weights = None,
    min_rating: MinRating = None,
    on_bad_rows: OnBadRows = "fail",
    config: ConfigFile = None,
    settings: Settings = None,
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = 0,
) -> None:
    """Trains a ladder of models and writes the one that is served.

    Served is the cheapest that is not significantly worse than the best.

    The choice is made on the last tenth of the events (or the validation part of a split) and refitted
    through the last event. Ctrl-C leaves a state that --resume goes on from, to the same bits.
    """
    from rootbeam.core.bundle import check_place
    from rootbeam.core.errors import ConfigError

    screen = Screen(json, quiet)
    place = check_place(out)  # now, rather than after the training
    chosen = config_for(config, settings, seed, budget, device, repeats or repeats_of(events))
    if model is not None and model not in chosen.ladder.models:
        raise ConfigError(f"--model is {model!r}; needed one of {', '.join(chosen.ladder.models)}")
    frame, valid, catalogue = _inputs(
        events, items, options_of(columns, weights, min_rating, on_bad_rows), screen
    )
    if export is not None:
        _export(export, frame, valid, chosen, screen)
        return
    state = place.with_name(f"{place.name}.partial")
    if state.exists() and not resume:
        _start_over(state, screen)
    recommender = _fit(frame, valid, catalogue, chosen, model, state, trained, screen)
    recommender.save(out)
    shutil.rmtree(state, ignore_errors=True)
    ladder = recommender.model.trained.ladder
    served = recommender.model.trained.rung
    screen.result(
        {"bundle": str(out), "model": served, "ladder": ladder},
        [*ladder_lines(ladder, chosen.ladder.metric), "", f"{served} is served; wrote {out}"],
    )


def _inputs(
    events: str, items: Path | None, options: Any, screen: Screen
) -> tuple[pl.DataFrame, Holdout | None, pl.DataFrame | None]:
    if is_split(events):
        frame, valid, _, known, _ = read_split(events)
        return frame, valid, open_items(items) if items else known
    read = open_events(events, options, screen)
    return read.frame, None, open_items(items) if items else read.items


def _start_over(state: Path, screen: Screen) -> None:
    """Removes the state of an earlier run, and nothing that cannot be one."""
    from rootbeam.core.errors import ConfigError

    if not state.is_dir() or any(
        not file.name.endswith((".safetensors", ".part")) for file in state.iterdir()
    ):
        raise ConfigError(
            f"{state} is in the way and no state of a training; move it or choose another --out"
        )
    screen.say(f"starting over: {state} is removed (--resume would have gone on with it)")
    shutil.rmtree(state)


def _export(path: Path, frame: pl.DataFrame, valid: Holdout | None, config: Config, screen: Screen) -> None:
    from rootbeam.prepare import prepare
    from rootbeam.task import write_task

    write_task(path, prepare(frame, valid, config).task, config)
    screen.result(
        {"task": str(path)},
        [
            f"wrote {path}; run `python -m rootbeam.train {path} --out FILE` where the GPU is,",
            "then the same `rootbeam train` with --trained FILE instead of --export",
        ],
    )


def _fit(
    frame: pl.DataFrame,
    valid: Holdout | None,
    items: pl.DataFrame | None,
    config: Config,
    model: str | None,
    state: Path,
    trained: Path | None,
    screen: Screen,
) -> Any:
    from rootbeam.core.errors import InterruptedTraining
    from rootbeam.recommender import Recommender

    if trained is not None:
        return Recommender(config).adopt(frame, valid, trained, items=items)
    with stop_on_interrupt(screen) as should_stop, screen.progress() as progress:
        try:
            return Recommender(config).fit(
                frame,
                valid,
                items=items,
                model=model,
                state=state,
                progress=progress,
                should_stop=should_stop,
            )
        except (InterruptedTraining, KeyboardInterrupt) as stop:
            said = str(stop) or "stopped"
            raise InterruptedTraining(
                f"{said}; the same command with --resume goes on from {state}"
            ) from None


def ladder_lines(ladder: list[dict[str, Any]], metric: str) -> list[str]:
    rows = [
        [
            row["model"],
            interval_text(row["metrics"].get(metric)),
            f"{row['ms_per_user']:.3f}",
            f"{row['a']:.3g}",
            f"{row['b']:.3g}",
            "all time" if row["half_life_days"] is None else f"{row['half_life_days']:g} d",
            "served" if row["chosen"] else "",
        ]
        for row in ladder
    ]
    return table(rows, ["rung", f"{metric} (validation)", "ms/user", "a", "b", "half-life", ""])


def tune(
    events: Events,
    out: Annotated[Path, typer.Option("--out", help="Folder of the study; an existing one is continued.")],
    trials: Annotated[int, typer.Option(help="Trials to add.", min=1)] = 20,
    model: Annotated[str, typer.Option("--model", help="The rung whose settings are searched.")] = "sequence",
    budget: Annotated[str, typer.Option("--budget", help="Time for each trial.")] = "2m",
    device: Device = None,
    repeats: Repeats = None,
    columns: Columns = None,
    weights: Weights = None,
    min_rating: MinRating = None,
    on_bad_rows: OnBadRows = "fail",
    config: ConfigFile = None,
    settings: Settings = None,
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = 0,
) -> None:
    """Searches settings on validation data.

    Writes STUDY/best.toml for `train --config`; a study that exists is continued."""
    from rootbeam.tune import search

    screen = Screen(json, quiet)
    base = config_for(config, settings, seed, budget, device, repeats or repeats_of(events))
    frame, valid, _ = _inputs(events, None, options_of(columns, weights, min_rating, on_bad_rows), screen)
    with screen.progress() as progress:
        study = search(frame, valid, base, out, trials=trials, model=model, progress=progress)
    lines = [
        f"best of {study['trials']} trials: {study['metric']} {study['value']:.4f}",
        *(f"  {key} = {value}" for key, value in study["settings"].items()),
        f"use it: rootbeam train {events} --config {out / 'best.toml'} --out BUNDLE",
    ]
    screen.result(study, lines)
