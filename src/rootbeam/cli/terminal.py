"""What every verb shares: options, output, progress, interruption."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rootbeam.core.errors import ConfigError

Bundle = Annotated[Path, typer.Argument(help="A bundle made by `rootbeam train`.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout; everything else on stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no remarks.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything drawn.", min=0)]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Settings from a TOML file.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="One setting, such as sequence.dimension=128; repeatable.")
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", help="Names in the source: user_id=uid,timestamp=ts.", metavar="A=B,…"),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights", help="Weight of each event type; 0 drops it: view=1,purchase=5.", metavar="T=W,…"
    ),
]
MinRating = Annotated[float | None, typer.Option("--min-rating", help="Lower ratings are not events.")]
OnBadRows = Annotated[
    str,
    typer.Option(
        "--on-bad-rows",
        help="fail names the first ten; quarantine writes all to rejected.parquet and goes on.",
    ),
]
Repeats = Annotated[
    str | None,
    typer.Option("--repeats", help="forbid recommends only unseen items; allow suits music and groceries."),
]
PLAIN_SECONDS = 5.0  # between two lines of progress where there is no terminal


@dataclass(frozen=True)
class Screen:
    """Where a verb's words go: the result to stdout, everything else to stderr."""

    as_json: bool
    quiet: bool

    def say(self, *lines: str) -> None:
        if not self.quiet:
            for line in lines:
                print(line, file=sys.stderr, flush=True)

    def result(self, value: dict[str, Any], lines: Sequence[str]) -> None:
        """The JSON object, or the lines for a person."""
        if self.as_json:
            print(json.dumps(value, allow_nan=False))
        else:
            for line in lines:
                print(line)

    @contextmanager
    def progress(self) -> Iterator[Callable[[str, int, int, str], None]]:
        """A function (what, done, of, detail): bars on a terminal, plain lines elsewhere."""
        if self.quiet:
            yield lambda what, done, of, detail: None
        elif sys.stderr.isatty():
            with _bars() as show:
                yield show
        else:
            yield _plain_lines()


def _plain_lines() -> Callable[[str, int, int, str], None]:
    last: dict[str, float] = {}

    def show(what: str, done: int, of: int, detail: str) -> None:
        now = time.monotonic()
        if done in (0, of) or now - last.get(what, -PLAIN_SECONDS) >= PLAIN_SECONDS:
            last[what] = now
            print(f"{what} {done}/{of}" + (f": {detail}" if detail else ""), file=sys.stderr, flush=True)

    return show


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int, str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, of: int, detail: str) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=of, detail=detail)
            progress.update(tasks[what], completed=done, total=of, detail=detail)

        yield show


@contextmanager
def stop_on_interrupt(screen: Screen) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks training to stop at the next step and keep its state; the second ends at once."""
    asked = False

    def ask(signum: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        screen.say("stopping at the next step; Ctrl-C again ends at once")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def pairs(text: str | None, option: str) -> dict[str, str]:
    """ "a=b,c=d" as a mapping."""
    found = {}
    for part in (text or "").split(",") if text else []:
        name, equals, value = part.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise ConfigError(f"{option} was given {part!r}; needed name=value, separated by commas")
        found[name.strip()] = value.strip()
    return found


def weights_of(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    weights = {}
    for name, value in pairs(text, "--weights").items():
        try:
            weights[name] = float(value)
        except ValueError:
            raise ConfigError(f"--weights gives {name} the weight {value!r}; needed a number") from None
    return weights


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(budget: str) -> float:
    """ "90s", "10m", "2h" or "none"."""
    if budget == "none":
        return float("inf")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", budget.strip())
    if match is None or float(match[1]) <= 0:
        raise ConfigError(f"--budget is {budget!r}; needed a time such as 90s, 10m or 2h, or none")
    return float(match[1]) * _UNITS[match[2] or "s"]


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> list[str]:
    """Columns padded to their widest cell; the first to the left, the others to the right."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return [lines[0], "  ".join("-" * w for w in widths), *lines[1:]]


def interval_text(value: dict[str, Any] | None) -> str:
    if not value or value.get("mean") is None:
        return "-"
    return f"{value['mean']:.4f} [{value['low']:.4f}, {value['high']:.4f}]"
