"""`rootbeam demo`: from nothing to a compared, explained recommender."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from rootbeam.cli.terminal import Json, Quiet, Screen, Seed, interval_text, stop_on_interrupt, table


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for data, bundle and report.")] = Path("demo"),
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Use a simulated log instead of ML-100K.")
    ] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="The smallest run that touches everything.")] = False,
    budget: Annotated[str, typer.Option("--budget", help="Time for training.")] = "2m",
    trials: Annotated[int, typer.Option("--trials", help="Tuning trials for each rival.", min=1)] = 12,
    json: Json = False,
    quiet: Quiet = False,
    seed: Seed = 0,
) -> None:
    """From nothing to a compared and explained recommender.

    Fetches ML-100K, trains, compares with tuned rivals, shows recommendations, writes report.html.
    """
    from rootbeam.demonstrate import Plan, demonstrate

    screen = Screen(json, quiet)
    started = time.monotonic()
    with stop_on_interrupt(screen) as should_stop, screen.progress() as progress:
        plan = Plan.smallest(out, seed) if smoke else Plan(out, seed, _seconds(budget), trials, simulate)
        shown = demonstrate(plan, progress, screen.say, should_stop)
    rows = [
        [r["name"], *(interval_text(r["metrics"].get(m)) for m in shown["metrics"])] for r in shown["rows"]
    ]
    lines = [
        *table(rows, ["model", *(f"{m} [95 %]" for m in shown["metrics"])]),
        "",
        shown["headline"],
    ]
    for example in shown["examples"]:
        lines += ["", f"user {example['user_id']} watched, newest last:"]
        lines += [f"    {title}" for title in example["history"]]
        lines += ["  and may like:"]
        lines += [f"{row['rank']:>4}. {row['title']}" for row in example["recommended"]]
    seconds = time.monotonic() - started
    lines += [
        "",
        f"{seconds:.0f} s. The report is {out / 'report.html'}; go on with",
        f"  {program()} recommend {out / 'bundle'} --user {shown['examples'][0]['user_id']}",
        f"  {program()} inspect {out / 'bundle'}",
    ]
    screen.result(shown | {"seconds": round(seconds, 1)}, lines)


def program() -> str:
    """How this program is called from here: by name where the shell finds it, else by its path."""
    return "rootbeam" if shutil.which("rootbeam") else sys.argv[0]


def _seconds(budget: str) -> float:
    from rootbeam.cli.terminal import seconds_of

    return seconds_of(budget)
