"""Arrays that a recipe can run on anywhere: one safetensors file, made once from canonical events.

`prepare` is the only part of the lab that reads events, and so the only one that needs polars.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rootbeam.core.errors import InputError
from rootbeam.core.files import Array, read_arrays, write_arrays
from rootbeam.core.types import Float32, Int64, Log, Ragged

DRIFT = "drift-"  # the name of a simulated log, before its seed
PLACES = ("data", "../shared/data")  # where `prepare NAME` looks for a folder of that name
LIKED = (
    "-liked"  # NAME-liked: NAME's 10-core, then what is rated at or above the user's mean, without ratings
)


@dataclass(frozen=True)
class Data:
    """A log, and the ratings of its events where the source has them."""

    name: str
    log: Log
    ratings: Float32 | None = None  # (events,)


def prepare(name: str, out: Path, source: Path | None = None) -> Data:
    """Reads the events of `source` (a folder NAME in PLACES where None) and writes their arrays to `out`.

    NAME-liked keeps what users rated at or above their mean; drift-SEED is a simulated log whose tastes move.
    """
    from rootbeam.core.ids import Ids
    from rootbeam.data.arrays import ids_of, to_log
    from rootbeam.data.events import read_events

    if name.startswith(DRIFT):
        return simulated(name, out)
    plain = name.removesuffix(LIKED)
    folder = source or next((Path(p) / plain for p in PLACES if (Path(p) / plain).exists()), None)
    if folder is None:
        raise InputError(f"no folder {plain} in {' or '.join(PLACES)}; give --from PATH, or fetch it there")
    lone = folder / "events.parquet"
    frame = read_events(lone if lone.exists() else folder).frame
    users, items = Ids(frame["user_id"].unique().sort().to_list()), ids_of(frame["item_id"])
    log = to_log(frame, users, items)
    ratings = None
    if "rating" in frame.columns:  # dense in the log's order: carried through as the weight
        rated = frame.with_columns(weight=frame["rating"].cast(frame["weight"].dtype))
        ratings = to_log(rated, users, items).weights
    data = Data(name, log, ratings)
    if name.endswith(LIKED):
        data = replace(liked(core(data, 10)), ratings=None)
    write_data(out, data)
    return data


def simulated(name: str, out: Path) -> Data:
    """A world of its own for every seed, with tastes that drift 2.5 times as fast as by default."""
    from rootbeam.data.arrays import ids_of, to_log
    from rootbeam.data.simulate import simulate

    frame = simulate(seed=int(name.removeprefix(DRIFT)), drift=0.02).events
    data = Data(name, to_log(frame, ids_of(frame["user_id"]), ids_of(frame["item_id"])))
    write_data(out, data)
    return data


def write_data(path: Path, data: Data) -> None:
    log = data.log
    arrays: dict[str, Array] = {"items": log.items, "user_ptr": log.user_ptr}
    if log.timed:
        arrays["times"] = log.times
    if data.ratings is not None:
        arrays["ratings"] = data.ratings
    write_arrays(path, arrays, {"name": data.name, "n_items": log.n_items})


def read_data(path: Path) -> Data:
    arrays, meta = read_arrays(path)
    items = arrays["items"]
    times = arrays.get("times", np.arange(len(items), dtype=np.int64))
    weights = np.ones(len(items), dtype=np.float32)
    log = Log(items, times, weights, arrays["user_ptr"], meta["n_items"], "times" in arrays)
    return Data(meta["name"], log, arrays.get("ratings"))


def core(data: Data, least: int) -> Data:
    """Users and items with at least `least` events, until all have; items are numbered anew."""
    log, kept = data.log, np.arange(data.log.n_events)
    users = log.users()
    while True:
        by_user = np.bincount(users[kept], minlength=log.n_users)
        by_item = np.bincount(log.items[kept], minlength=log.n_items)
        enough = (by_user[users[kept]] >= least) & (by_item[log.items[kept]] >= least)
        if enough.all():
            return _renumbered(data, kept)
        kept = kept[enough]


def liked(data: Data) -> Data:
    """The events rated at or above the user's own mean; the catalogue stays."""
    if data.ratings is None:
        return data
    users, ratings = data.log.users(), data.ratings.astype(np.float64)
    counts = np.bincount(users, minlength=data.log.n_users)
    means = np.bincount(users, ratings, data.log.n_users) / np.maximum(counts, 1)
    return _of_events(data, np.flatnonzero(ratings >= means[users] - 1e-9))


@dataclass(frozen=True)
class Parts:
    """A log to train on, and what is to be predicted of each of its users."""

    train: Log
    valid: Ragged  # (users, ...)
    test: Ragged  # (users, ...)


def split_per_user(log: Log, valid: float, test: float, seed: int) -> Parts:
    """Random shares of every user's events, rounded; the rest is for training."""
    users = log.users()
    order = np.lexsort((np.random.default_rng([seed, 2]).random(log.n_events), users))
    lengths = np.diff(log.user_ptr)
    place = np.arange(log.n_events) - np.repeat(log.user_ptr[:-1], lengths)  # within the user, shuffled
    n_test, n_valid = (np.repeat(np.rint(lengths * share), lengths) for share in (test, valid))
    of_test, of_valid = place < n_test, (place >= n_test) & (place < n_test + n_valid)
    train = np.sort(order[~of_test & ~of_valid])
    parts = (_of_events(Data("", log), np.sort(order[chosen])).log for chosen in (of_valid, of_test))
    valid_log, test_log = parts
    return Parts(_of_events(Data("", log), train).log, valid_log.sequences(), test_log.sequences())


def leave_last_out(log: Log) -> Parts:
    """Each user's last event for testing, the one before for validation; fewer than 3 events all train."""
    lengths = np.diff(log.user_ptr)
    long = lengths >= 3
    last = log.user_ptr[1:] - 1
    held = np.zeros(log.n_events, dtype=bool)
    held[last[long]] = held[last[long] - 1] = True
    train = _of_events(Data("", log), np.flatnonzero(~held)).log
    ptr = np.concatenate([[0], np.cumsum(long)]).astype(np.int64)
    return Parts(train, Ragged(log.items[last[long] - 1], ptr), Ragged(log.items[last[long]], ptr))


def joined(log: Log, labels: Ragged) -> Log:
    """The log with each user's labels put after its events."""
    users = np.concatenate([log.users(), labels.row_of_value()])
    order = np.argsort(users, kind="stable")
    items = np.concatenate([log.items, labels.values])[order].astype(np.int32)
    ptr = log.user_ptr + labels.ptr
    return Log(items, np.arange(len(items)), np.ones(len(items), np.float32), ptr, log.n_items, False)


def _of_events(data: Data, kept: Int64) -> Data:
    log = data.log
    counts = np.bincount(log.users()[kept], minlength=log.n_users)
    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    part = Log(log.items[kept], log.times[kept], log.weights[kept], ptr, log.n_items, log.timed)
    return Data(data.name, part, None if data.ratings is None else data.ratings[kept])


def _renumbered(data: Data, kept: Int64) -> Data:
    """Those events, without the users and items that are left without any."""
    part = _of_events(data, kept)
    present, items = np.unique(part.log.items, return_inverse=True)
    lengths = np.diff(part.log.user_ptr)
    ptr = np.concatenate([[0], np.cumsum(lengths[lengths > 0])]).astype(np.int64)
    log = replace(part.log, items=items.astype(np.int32), user_ptr=ptr, n_items=len(present))
    return Data(data.name, log, part.ratings)
