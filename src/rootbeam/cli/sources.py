"""Opening what a verb was given: event files with the reading options, split folders, item files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rootbeam.cli.terminal import Screen, pairs, weights_of
from rootbeam.core.errors import EventsError

if TYPE_CHECKING:
    import polars as pl

    from rootbeam.data.contract import ReadOptions
    from rootbeam.data.events import Events
    from rootbeam.data.split import Holdout, Split

SPLIT = "split.json"
WITHOUT_TIME = "without time; if a column holds it, name it with --columns timestamp=COLUMN"
PARTS = ("inputs", "labels", "later")


def options_of(
    columns: str | None,
    weights: str | None,
    min_rating: float | None,
    on_bad_rows: str,
    rejected: Path | None = None,
) -> ReadOptions:
    from rootbeam.data.contract import ReadOptions

    return ReadOptions(
        columns=pairs(columns, "--columns"),
        weights=weights_of(weights),
        min_rating=min_rating,
        on_bad_rows=on_bad_rows,  # type: ignore[arg-type]
        rejected=rejected,
    )


def open_events(source: str, options: ReadOptions, screen: Screen) -> Events:
    from rootbeam.data.events import read_events

    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    events = read_events(source, **given)
    found = events.report
    screen.say(
        f"read {found.kept:,} events of {events.frame['user_id'].n_unique():,} users and "
        f"{events.frame['item_id'].n_unique():,} items from {source}"
    )
    screen.say(*(f"  {note}" for note in found.notes()))
    if not found.timed:
        screen.say(f"  {WITHOUT_TIME}")
    if found.repeat_rate > 0.2:
        screen.say(
            f"  {found.repeat_rate:.0%} of the events repeat an item the user had before: "
            "consider --repeats allow, which may recommend seen items again"
        )
    return events


def open_items(path: Path | None) -> pl.DataFrame | None:
    if path is None:
        return None
    from rootbeam.data.items import read_items

    return read_items(path)


def is_split(source: str) -> bool:
    return (Path(source) / SPLIT).is_file()


def repeats_of(source: str) -> str | None:
    """How a split was made; a model is trained for the same."""
    return read_report(Path(source))["repeats"] if is_split(source) else None


def read_report(folder: Path) -> dict[str, Any]:
    try:
        report = json.loads((folder / SPLIT).read_text(encoding="utf-8"))
        return {"repeats": "forbid", **report}
    except (OSError, ValueError, TypeError) as error:
        raise EventsError(f"{folder / SPLIT} is damaged ({error}); split again") from None


def write_split(parts: Split, items: pl.DataFrame | None, out: Path) -> dict[str, Any]:
    """OUT/train.parquet, OUT/valid and OUT/test with inputs, labels and later, and what was dropped."""
    from rootbeam.core.files import write_json
    from rootbeam.data.folder import replacing

    report = {"format": 1, **parts.report.to_dict()}
    with replacing(out, SPLIT) as folder:
        parts.train.write_parquet(folder / "train.parquet")
        for name, holdout in (("valid", parts.valid), ("test", parts.test)):
            (folder / name).mkdir()
            for part in PARTS:
                getattr(holdout, part).write_parquet(folder / name / f"{part}.parquet")
        if items is not None:
            items.write_parquet(folder / "items.parquet")
        write_json(folder / SPLIT, report)
    return report


def read_holdout(folder: Path) -> Holdout:
    import polars as pl

    from rootbeam.data.split import Holdout

    try:
        return Holdout(*(pl.read_parquet(folder / f"{part}.parquet") for part in PARTS))
    except (FileNotFoundError, pl.exceptions.PolarsError) as error:
        raise EventsError(
            f"{folder} is not a holdout of `rootbeam data split` ({str(error).splitlines()[0]}); split again"
        ) from None


def read_split(source: str) -> tuple[pl.DataFrame, Holdout, Holdout, pl.DataFrame | None, dict[str, Any]]:
    """train, valid, test, items and the report of a folder made by `data split`."""
    import polars as pl

    folder = Path(source)
    try:
        report = read_report(folder)
        train = pl.read_parquet(folder / "train.parquet")
        items = pl.read_parquet(folder / "items.parquet") if (folder / "items.parquet").exists() else None
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise EventsError(
            f"{folder} is not a whole split ({str(error).splitlines()[0]}); split again"
        ) from None
    return train, read_holdout(folder / "valid"), read_holdout(folder / "test"), items, report
