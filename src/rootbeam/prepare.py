"""From frames to what training needs, and from what it gives to a model: ids, logs, the validation part."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from rootbeam.core.config import Config
from rootbeam.core.errors import InputError
from rootbeam.core.ids import Ids
from rootbeam.core.types import Log
from rootbeam.data.arrays import ids_of, to_log
from rootbeam.data.history import replay
from rootbeam.data.items import read_items
from rootbeam.data.split import Holdout, split
from rootbeam.data.split_report import Repeats
from rootbeam.learn.popularity import recent_counts
from rootbeam.metrics import parse_name
from rootbeam.model import Counts, Model
from rootbeam.task import Task, Trained

VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Prepared:
    """Dense arrays for training, and the ids they stand for."""

    task: Task
    users: Ids
    items: Ids


def prepare(frame: pl.DataFrame, valid: Holdout | None, config: Config) -> Prepared:
    """Ids over everything known, and the logs of the recipe."""
    parse_name(config.ladder.metric)
    if not len(frame):
        raise InputError("there are no events to learn from; give at least one")
    if valid is None:
        frame, valid = _hold_out(frame, config)
    later = valid.later
    users = ids_of(frame["user_id"], valid.inputs["user_id"], later["user_id"])
    items = ids_of(frame["item_id"], valid.inputs["item_id"], later["item_id"])
    full = _union(frame, valid.inputs, later)
    task = Task(
        train=to_log(frame, users, items),
        valid_inputs=to_log(valid.inputs, users, items),
        valid_labels=to_log(valid.labels, users, items).sequences(),
        full=to_log(full, users, items),
    )
    return Prepared(task, users, items)


def _union(frame: pl.DataFrame, inputs: pl.DataFrame, later: pl.DataFrame) -> pl.DataFrame:
    """Every event once, also what `frame` shares with the others; equal events of one part all stay."""
    if frame.equals(inputs):  # as in a split by time
        return pl.concat([frame, later], how="diagonal")
    held_out = pl.concat([inputs, later], how="diagonal")
    numbered = [
        part.with_columns(nth=pl.int_range(pl.len()).over(part.columns)) for part in (frame, held_out)
    ]
    return pl.concat(numbered, how="diagonal").unique(maintain_order=True).drop("nth")


def _hold_out(frame: pl.DataFrame, config: Config) -> tuple[pl.DataFrame, Holdout]:
    """The last tenth by time; every user's last event, where time tells no tenth from the rest, or where
    nobody of the last tenth was there before (so that nothing could be chosen by it).
    """
    repeats: Repeats = "allow" if config.data.repeats == "allow" else "forbid"
    if _has_a_last_tenth(frame):
        # The test part of a split without a validation part is the tenth to choose by.
        parts = split(frame, by="time", valid=0.0, test=VALIDATION_SHARE, repeats=repeats)
        if parts.test.labels["user_id"].is_in(parts.test.inputs["user_id"].implode()).any():
            return parts.train, parts.test
    parts = split(frame, by="leave-one-out", repeats=repeats)
    return pl.concat([parts.train, parts.valid.later], how="diagonal"), parts.test


def _has_a_last_tenth(frame: pl.DataFrame) -> bool:
    held = round(len(frame) * VALIDATION_SHARE)
    if "timestamp" not in frame.columns or not held:
        return False
    times = frame["timestamp"].sort()
    return bool(times[-held] > times[0])


def assemble(prepared: Prepared, trained: Trained, items: pl.DataFrame | None, config: Config) -> Model:
    """The model with the state it serves from: histories and popularity through the last event."""
    log = prepared.task.full
    now = int(log.times.max()) if log.timed and log.n_events else 0
    fallback_half_life = next(
        (row["half_life_days"] for row in trained.ladder if row["model"] == "popularity"), None
    )
    return Model(
        config=config,
        trained=trained,
        users=prepared.users,
        items=prepared.items,
        catalogue=catalogue_of(prepared.items, items),
        histories=replay(log, config.data.history_length, _sequence_by_time(log)),
        recent=_counts_of(log, now, trained.blend.half_life_days),
        fallback=_counts_of(log, now, math.inf if fallback_half_life is None else fallback_half_life),
        facts={
            "data_fingerprint": prepared.task.fingerprint(),
            "events": log.n_events,
            "timed": log.timed,
            "watermark": log.n_events,
            "trained_through_ms": now if log.timed else None,
            "tree": None,
        },
    )


def _counts_of(log: Log, now: int, half_life_days: float) -> Counts:
    return Counts(recent_counts(log, now, half_life_days), now, half_life_days)


def _sequence_by_time(log: Log) -> np.ndarray:
    """(events,) the number of every event in the order of time, from 1."""
    number = np.empty(log.n_events, dtype=np.int64)
    number[np.argsort(log.times, kind="stable")] = np.arange(1, log.n_events + 1)
    if not log.timed:
        return np.arange(1, log.n_events + 1)
    # Within a user numbers must ascend, as the log does; equal times are in the order of the source.
    return number


def catalogue_of(ids: Ids, items: pl.DataFrame | None) -> pl.DataFrame:
    """What is known of the model's items, in dense order."""
    known = pl.DataFrame({"item_id": pl.Series(ids.external)})
    if items is None or not len(items):
        return known
    items = read_items(items)
    if items.schema["item_id"] != known.schema["item_id"]:
        items = items.with_columns(pl.col("item_id").cast(known.schema["item_id"], strict=False))
    items = items.unique("item_id", keep="first", maintain_order=True)
    return known.join(items, on="item_id", how="left", maintain_order="left")
