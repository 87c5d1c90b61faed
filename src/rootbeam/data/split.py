"""Split events into training, validation and test, and count what every step leaves out.

| by              | train                       | inputs                     | labels                    |
|-----------------|-----------------------------|----------------------------|---------------------------|
| `time`          | before T1                   | before T1 · before T2      | T1 to T2 · from T2        |
| `users`         | the events of other users   | first halves of histories  | second halves             |
| `leave-one-out` | all but the last two events | all before the label       | last but one · last event |
| `random`        | the rest                    | train · train and valid    | shares of every history   |

(validation · test.) Frames keep the row order of the source, which breaks ties in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import polars as pl

from rootbeam.core.errors import ConfigError, EventsError
from rootbeam.core.types import Bool, Int64
from rootbeam.data.events import Events, frame_of
from rootbeam.data.split_report import By, PartReport, Repeats, SplitReport

_LEAKAGE = (
    "leakage: {by} trains on events that happened after the labels it is tested on, so the numbers flatter "
    'every model; use by="time" for numbers to act on'
)
_UNORDERED = (
    "the events have neither timestamp nor position: the order of the rows was taken as the order of events"
)


@dataclass(frozen=True)
class Holdout:
    """What may be known (`inputs`) and what is to be predicted (`labels`), both event frames.

    `later` is every event of the labels' period, those dropped as labels too: what a refit learns from.
    """

    inputs: pl.DataFrame
    labels: pl.DataFrame
    later: pl.DataFrame


@dataclass(frozen=True)
class Split:
    """Events to train on, and two sets of labels to predict."""

    train: pl.DataFrame
    valid: Holdout
    test: Holdout
    report: SplitReport


def split(
    events: Events | pl.DataFrame,
    by: By = "time",
    *,
    valid: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    repeats: Repeats = "forbid",
    min_events: int = 2,
    train_on_inputs: bool = False,
) -> Split:
    """Split events by `time`, `users`, `leave-one-out` or `random`; see the table above.

    `valid` and `test` are shares: of the events (`time`, `random`) or of the users (`users`). Labels of items
    met neither in training nor in the inputs are removed and counted; so are labels the user already had in
    the inputs, unless `repeats` is "allow". For `users` only: held-out users with fewer than `min_events` are
    dropped (DTR: 15), and `train_on_inputs` puts the held-out users' first halves into train as well, as
    DTR's released code does.
    """
    _check_settings(by, valid, test, repeats, min_events, train_on_inputs)
    frame = frame_of(events)
    columns = _columns_of(frame)
    cut_offs = None
    rng = np.random.default_rng(seed)
    if by == "time":
        parts, cut_offs = _by_time(columns, valid, test)
    elif by == "users":
        parts = _by_users(columns, valid, test, rng, min_events, train_on_inputs)
    elif by == "leave-one-out":
        parts = _leave_one_out(columns)
    else:
        parts = _at_random(columns, valid, test, rng)
    if not parts.train.any():
        raise EventsError(
            f'split by="{by}" leaves no event to train on out of {len(frame):,}: '
            f"give more events, smaller shares than valid={valid} and test={test}, or another split"
        )
    return _finish(frame, columns, parts, by, repeats, cut_offs)


@dataclass(frozen=True)
class _Columns:
    """The events as arrays, in the order of the source."""

    users: Int64  # (events,) dense, by ascending id
    items: Int64  # (events,) dense
    order: Int64  # (events,) milliseconds, or the position, or the row
    ordered_by: Literal["timestamp", "position", "row"]
    lengths: Int64  # (users,) events of each user
    n_items: int

    def places(self, order: np.ndarray[Any, Any]) -> Int64:
        """(events,) the place of each event among its user's events, from 0; ties by row."""
        by_user = np.lexsort((order, self.users))
        starts = np.cumsum(self.lengths) - self.lengths
        places = np.empty(len(self.users), dtype=np.int64)
        places[by_user] = np.arange(len(self.users)) - np.repeat(starts, self.lengths)
        return places


@dataclass(frozen=True)
class _Parts:
    """Which events go where, each (events,)."""

    train: Bool
    valid_inputs: Bool
    valid_labels: Bool
    test_inputs: Bool
    test_labels: Bool
    short_users: int = 0
    dropped: int = 0


def _by_time(columns: _Columns, valid: float, test: float) -> tuple[_Parts, tuple[int, int]]:
    if columns.ordered_by != "timestamp":
        raise EventsError(
            'split by="time" needs a timestamp and the events have none: '
            'give a timestamp column, or split by "users", "leave-one-out" or "random"'
        )
    times, count = np.sort(columns.order), len(columns.order)
    first, second = (
        int(times[count - held]) if held else int(times[-1]) + 1
        for held in (round(count * (valid + test)), round(count * test))
    )
    before_first, before_second = columns.order < first, columns.order < second
    parts = _Parts(before_first, before_first, before_second & ~before_first, before_second, ~before_second)
    return parts, (first, second)


def _by_users(
    columns: _Columns,
    valid: float,
    test: float,
    rng: np.random.Generator,
    min_events: int,
    train_on_inputs: bool,
) -> _Parts:
    n_users = len(columns.lengths)
    shuffled = rng.permutation(n_users)
    n_valid, n_test = round(n_users * valid), round(n_users * test)
    part = np.zeros(n_users, dtype=np.int64)  # 0 train, 1 valid, 2 test
    part[shuffled[:n_valid]] = 1
    part[shuffled[n_valid : n_valid + n_test]] = 2
    short = (part > 0) & (columns.lengths < min_events)
    part[short] = -1
    # DTR's middle, int(n / 2 + 1), but a history of two keeps one event as its label.
    middle = np.minimum(columns.lengths // 2 + 1, columns.lengths - 1)
    of_event = part[columns.users]
    is_input = columns.places(columns.order) < middle[columns.users]
    train = of_event == 0
    if train_on_inputs:
        train = train | (is_input & (of_event > 0))
    is_valid, is_test = of_event == 1, of_event == 2
    return _Parts(
        train,
        is_valid & is_input,
        is_valid & ~is_input,
        is_test & is_input,
        is_test & ~is_input,
        short_users=int(short.sum()),
        dropped=int(columns.lengths[short].sum()),
    )


def _leave_one_out(columns: _Columns) -> _Parts:
    from_end = columns.lengths[columns.users] - columns.places(columns.order)  # 1 is the last event
    long_enough = columns.lengths >= 3  # one to know, one for each label
    held = long_enough[columns.users]
    test, valid = held & (from_end == 1), held & (from_end == 2)
    train = ~test & ~valid
    return _Parts(train, train, valid, ~test, test, short_users=int((~long_enough).sum()))


def _at_random(columns: _Columns, valid: float, test: float, rng: np.random.Generator) -> _Parts:
    places = columns.places(rng.random(len(columns.users)))
    # Shares of a short history are rounded up or down by chance, so that they hold on average; one event
    # always stays in train.
    chance = rng.random(len(columns.lengths))
    held = np.minimum(np.floor(columns.lengths * (valid + test) + chance), columns.lengths - 1)
    held_for_test = np.minimum(np.floor(columns.lengths * test + chance), held)
    is_test = places < held_for_test[columns.users]
    is_valid = (places < held[columns.users]) & ~is_test
    train = ~is_test & ~is_valid
    return _Parts(train, train, is_valid, ~is_test, is_test)


def _finish(
    frame: pl.DataFrame,
    columns: _Columns,
    parts: _Parts,
    by: By,
    repeats: Repeats,
    cut_offs: tuple[int, int] | None,
) -> Split:
    valid_kept, valid = _clean(columns, parts.train, parts.valid_inputs, parts.valid_labels, repeats)
    test_kept, test = _clean(columns, parts.train, parts.test_inputs, parts.test_labels, repeats)
    train = frame.filter(parts.train)
    report = SplitReport(
        by=by,
        repeats=repeats,
        events=len(frame),
        users=len(columns.lengths),
        items=columns.n_items,
        train_events=len(train),
        train_users=_distinct(columns.users[parts.train]),
        train_items=_distinct(columns.items[parts.train]),
        valid=valid,
        test=test,
        cut_offs_ms=cut_offs,
        short_users=parts.short_users,
        short_events_dropped=parts.dropped,
        warnings=_warnings(columns, by, valid, test),
    )
    valid_inputs = train if parts.valid_inputs is parts.train else frame.filter(parts.valid_inputs)
    return Split(
        train,
        Holdout(valid_inputs, frame.filter(valid_kept), frame.filter(parts.valid_labels)),
        Holdout(frame.filter(parts.test_inputs), frame.filter(test_kept), frame.filter(parts.test_labels)),
        report,
    )


def _clean(
    columns: _Columns, train: Bool, inputs: Bool, labels: Bool, repeats: Repeats
) -> tuple[Bool, PartReport]:
    """The labels that can be predicted, and the counts of the others."""
    known = np.zeros(columns.n_items, dtype=np.bool_)
    known[columns.items[train | inputs]] = True
    cold = labels & ~known[columns.items]
    seen = np.zeros(len(labels), dtype=np.bool_)
    if repeats == "forbid":
        pairs = columns.users * columns.n_items + columns.items
        warm = np.flatnonzero(labels & ~cold)
        has_labels = np.zeros(len(columns.lengths), dtype=np.bool_)
        has_labels[columns.users[warm]] = True
        seen[warm[np.isin(pairs[warm], pairs[inputs & has_labels[columns.users]])]] = True
    kept = labels & ~cold & ~seen
    with_input = np.zeros(len(columns.lengths), dtype=np.bool_)
    with_input[columns.users[inputs]] = True
    label_users = np.unique(columns.users[kept])
    report = PartReport(
        users=len(label_users),
        cold_users=int((~with_input[label_users]).sum()),
        labels=int(kept.sum()),
        input_events=int(inputs.sum()),
        cold_items=_distinct(columns.items[cold]),
        cold_labels_removed=int(cold.sum()),
        seen_labels_removed=int(seen.sum()),
        users_without_labels_left=_distinct(columns.users[labels]) - len(label_users),
    )
    return kept, report


def _warnings(columns: _Columns, by: By, valid: PartReport, test: PartReport) -> tuple[str, ...]:
    warnings = []
    if by in ("leave-one-out", "random"):
        warnings.append(_LEAKAGE.format(by=by))
    if by in ("users", "leave-one-out") and columns.ordered_by == "row":
        warnings.append(_UNORDERED)
    warnings += [
        f"{name} has no label left: nothing can be measured on it"
        for name, part in (("valid", valid), ("test", test))
        if not part.labels
    ]
    return tuple(warnings)


def _columns_of(frame: pl.DataFrame) -> _Columns:
    if frame.is_empty():
        raise EventsError("no events to split: give at least a few per user")
    users, n_users = _dense(frame["user_id"])
    items, n_items = _dense(frame["item_id"])
    lengths = np.bincount(users, minlength=n_users)
    if "timestamp" in frame.columns:
        moment = _without_nulls(frame["timestamp"]).dt.epoch("ms").to_numpy()
        return _Columns(users, items, moment, "timestamp", lengths, n_items)
    if "position" in frame.columns:
        position = _without_nulls(frame["position"]).to_numpy()
        return _Columns(users, items, position, "position", lengths, n_items)
    return _Columns(users, items, np.arange(len(frame)), "row", lengths, n_items)


def _dense(column: pl.Series) -> tuple[Int64, int]:
    """(events,) the place of each value among the distinct values ascending; and their number."""
    values = _without_nulls(column).rename("id").to_frame()
    distinct = values.unique().sort("id").with_row_index("dense")
    dense = values.join(distinct, on="id", how="left", maintain_order="left")["dense"]
    return dense.to_numpy().astype(np.int64), len(distinct)


def _without_nulls(column: pl.Series) -> pl.Series:
    if column.null_count():
        raise EventsError(
            f"{column.name} is null in {column.null_count():,} events: read them with rb.read_events"
        )
    return column


def _check_settings(
    by: str, valid: float, test: float, repeats: str, min_events: int, train_on_inputs: bool
) -> None:
    if by not in get_args(By):
        raise ConfigError(f'split by="{by}": needed one of {", ".join(get_args(By))}')
    if repeats not in get_args(Repeats):
        raise ConfigError(f'repeats="{repeats}": needed "forbid" or "allow"')
    if not (0 <= valid < 1 and 0 <= test < 1 and valid + test < 1):
        raise ConfigError(f"valid={valid} and test={test}: needed shares from 0 that together stay below 1")
    if min_events < 2:
        raise ConfigError(f"min_events={min_events}: a history needs 2 events to give an input and a label")
    if by != "users" and (min_events != 2 or train_on_inputs):
        raise ConfigError(
            f'min_events and train_on_inputs belong to by="users", not to by="{by}": leave them out'
        )


def _distinct(values: Int64) -> int:
    return len(np.unique(values))
