"""A log with known truth: the users of a made-up world (world.py) meet its logging policy (slates.py).

A wanted item becomes an event unless the user took it before. A share of repeat consumption is added
afterwards: users come back to what they took, without the policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from rootbeam.core.errors import ConfigError
from rootbeam.core.types import Int64
from rootbeam.data.names import category_paths, item_titles
from rootbeam.data.slates import Shown, show
from rootbeam.data.world import Truth, make_truth
from rootbeam.data.world_config import DAY_MS, SimulationConfig

_BATCHES = 5  # a period that falls behind for so long leaves the rest to the next
_MOST_SLOTS_PER_EVENT = 400  # beyond this the world is saturated: users took what they would take


@dataclass(frozen=True)
class Simulation:
    """A log, its catalogue, and the truth behind both.

    `events` is canonical, plus `shown_rank`: the rank (from 1) in the slate. `propensity` is the probability
    that the policy put the item in that slot (and in no slot before it). A repeat has no request and no rank,
    and its propensity is 1: the user needed no policy for it.
    `impressions`, on request, has every slot shown: `clicked` says whether it became an event, `consumed`
    whether the user had taken the item before (and so could not take it).
    """

    events: pl.DataFrame
    items: pl.DataFrame
    truth: Truth
    impressions: pl.DataFrame | None = None


def simulate(
    config: SimulationConfig | None = None,
    *,
    seed: int = 0,
    users: int | None = None,
    items: int | None = None,
    events: int | None = None,
    days: float | None = None,
    drift: float | None = None,
    repeats: float | None = None,
    impressions: bool = False,
) -> Simulation:
    """A log of exactly `events` events; the same seed gives the same log. Keywords override `config`."""
    given = {
        "users": users,
        "items": items,
        "events": events,
        "days": days,
        "drift": drift,
        "repeats": repeats,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    config = replace(config or SimulationConfig(), **chosen)  # type: ignore[arg-type]
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed={seed!r} is not a whole number of at least 0: give one")
    world_rng, log_rng, repeat_rng = np.random.default_rng(seed).spawn(3)
    truth = make_truth(config, world_rng)
    shown, fresh = _run(truth, log_rng, keep_all=impressions)
    taken = shown.take(fresh)
    again = _repeats(taken, config, repeat_rng)
    return Simulation(
        events=_events_frame(taken, again),
        items=_items_frame(truth),
        truth=truth,
        impressions=_impressions_frame(shown, fresh) if impressions else None,
    )


def _run(truth: Truth, rng: np.random.Generator, *, keep_all: bool) -> tuple[Shown, Int64]:
    """Period by period until the events are there: the slots kept, and the rows that became events, by time.

    How many requests a period gets follows from the events still missing; the log ends with its last event.
    What one request shows, and what is wanted of it, never depends on that number.
    """
    config, goal = truth.config, truth.config.fresh_events
    kept: list[Shown] = []
    consumed = np.empty(0, dtype=np.int64)  # sorted codes of the (user, item) pairs taken
    requests, per_request = 0, 0.3 * float(truth.examination(np.arange(1, config.slate + 1)).sum())
    for period in range(config.periods):
        due = math.ceil(goal * (period + 1) / config.periods)
        last = period == config.periods - 1
        parts: list[Shown] = []
        new, spent = np.empty(0, dtype=np.int64), 0
        while len(consumed) + len(new) < due and (last or len(parts) < _BATCHES):
            count = math.ceil((due - len(consumed) - len(new)) / per_request)
            count = min(count, max(1_000, 4 * spent, requests))  # a rate of nearly 0 is no reason to explode
            parts.append(show(truth, period, count, requests, rng, keep_all=keep_all))
            requests, spent = requests + count, spent + count
            new = _first_takes(Shown.concat(parts), consumed, config.items)[1]
            per_request = max(len(new), 0.5) / spent
            _refuse_saturated(config, requests, len(consumed) + len(new))
        kept += parts
        consumed = np.sort(np.concatenate([consumed, new]), kind="stable")
    shown = Shown.concat(kept)
    rows, _ = _first_takes(shown, np.empty(0, dtype=np.int64), config.items)
    rows = rows[np.lexsort((shown.rank[rows], shown.request[rows], shown.taken_ms[rows]))][:goal]
    before_end = np.flatnonzero(shown.shown_ms <= shown.taken_ms[rows[-1]])
    return shown.take(before_end), np.searchsorted(before_end, rows)


def _refuse_saturated(config: SimulationConfig, requests: int, reached: int) -> None:
    if requests * config.slate > _MOST_SLOTS_PER_EVENT * config.fresh_events + 1_000_000:
        raise ConfigError(
            f"events={config.events} is too many for users={config.users} × items={config.items}: after "
            f"{requests} requests only {reached} pairs were taken; lower events, or raise users or items"
        )


def _first_takes(shown: Shown, consumed: Int64, n_items: int) -> tuple[Int64, Int64]:
    """Rows whose item is taken (wanted, for the first time, not in `consumed`), and their pair codes."""
    rows = np.flatnonzero(shown.wanted)
    pair = shown.user[rows] * n_items + shown.item[rows]
    if len(consumed):
        place = np.minimum(np.searchsorted(consumed, pair), len(consumed) - 1)
        new = consumed[place] != pair
        rows, pair = rows[new], pair[new]
    order = np.lexsort((shown.taken_ms[rows], pair))
    rows, pair = rows[order], pair[order]
    first = np.diff(pair, prepend=-1) != 0
    return rows[first], pair[first]


def _repeats(taken: Shown, config: SimulationConfig, rng: np.random.Generator) -> tuple[Int64, Int64, Int64]:
    """User, item, time of the repeats: right after an event, a user returns to an item taken until then,
    lately rather than long ago."""
    count = config.events - config.fresh_events
    order = np.lexsort((taken.taken_ms, taken.user))
    user, item, time = taken.user[order], taken.item[order], taken.taken_ms[order]
    trigger = rng.integers(0, len(order), size=count)
    history = trigger - np.searchsorted(user, user[trigger]) + 1  # events of the user until the trigger
    back = (rng.random(count) ** 2 * history).astype(np.int64)
    end_ms = config.start_ms + int(config.days * DAY_MS)
    room = np.minimum(30 * 60_000, end_ms - time[trigger])
    later = 1 + (rng.random(count) * room).astype(np.int64)
    return user[trigger], item[trigger - back], time[trigger] + later


def _events_frame(taken: Shown, again: tuple[Int64, Int64, Int64]) -> pl.DataFrame:
    policy_made = pl.DataFrame(
        {
            "user": taken.user,
            "item": taken.item,
            "timestamp": taken.taken_ms,
            "propensity": taken.propensity,
            "request": taken.request,
            "shown_rank": taken.rank,
        }
    )
    repeated = pl.DataFrame(dict(zip(("user", "item", "timestamp"), again, strict=True)))
    both = pl.concat([policy_made, repeated], how="diagonal").sort("timestamp", maintain_order=True)
    return _named(both).select(
        "user_id",
        "item_id",
        "timestamp",
        pl.lit(1.0, dtype=pl.Float32).alias("weight"),
        pl.col("propensity").fill_null(1.0),
        "request_id",
        "shown_rank",
    )


def _impressions_frame(shown: Shown, fresh: Int64) -> pl.DataFrame:
    clicked = np.zeros(len(shown.user), dtype=np.bool_)
    clicked[fresh] = True
    frame = pl.DataFrame(
        {
            "user": shown.user,
            "item": shown.item,
            "timestamp": shown.shown_ms,
            "request": shown.request,
            "shown_rank": shown.rank,
            "propensity": shown.propensity,
            "clicked": clicked,
        }
    ).sort("timestamp", "request", "shown_rank")
    consumed = (pl.col("clicked").cast(pl.Int64).cum_sum().over("user", "item") - pl.col("clicked")) > 0
    return _named(frame).with_columns(consumed=consumed).drop("user", "item", "request")


def _named(frame: pl.DataFrame) -> pl.DataFrame:
    """Codes to the ids of the outside world, milliseconds to times."""
    return frame.with_columns(
        user_id=pl.format("u{}", "user"),
        item_id=pl.format("i{}", "item"),
        timestamp=pl.col("timestamp").cast(pl.Datetime("ms")),
        request_id=pl.format("r{}", "request"),
        shown_rank=pl.col("shown_rank").cast(pl.Int64),
    )


def _items_frame(truth: Truth) -> pl.DataFrame:
    paths = category_paths(truth.config.depth, truth.config.branch)
    leaf = truth.category_codes[-1]
    return pl.DataFrame(
        {
            "item_id": [f"i{item}" for item in range(truth.config.items)],
            "title": item_titles(paths, leaf),
            "category": [paths[code][-1] for code in leaf],
            "category_path": [paths[code] for code in leaf],
        }
    )
