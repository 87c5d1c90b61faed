"""Where a result comes from: by how active the users are, by how popular the items are; numpy alone.

An average hides that a model may serve busy users and popular items only. So the per-user values are split by
the number of events a user had before the labels, and the labels by the popularity of their item.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from rootbeam import metrics
from rootbeam.core.errors import ConfigError, InputError
from rootbeam.core.types import PADDING, Bool, Float64, Int64, Ragged
from rootbeam.intervals import mean_interval

ACTIVITY_BINS = 5
POPULARITY_GROUPS = ("head", "upper middle", "lower middle", "tail")
POPULARITY_BOUNDS = (0.2, 0.5, 0.8)  # share of all events that more popular items hold
CONCENTRATION_SHARE = 0.01  # of the catalogue


def by_activity(
    values: Float64, events: Int64, name: str, *, bins: int = ACTIVITY_BINS, seed: int = 0
) -> list[dict[str, Any]]:
    """The mean of `values` (users,) in quantile bins of `events` (users,), least active first.

    Users with equally many events share a bin, so there may be fewer bins than asked for, of unequal sizes.
    `from` and `to` are the fewest and the most events of the bin's users, both included.
    """
    if bins < 1:
        raise ConfigError(f"bins = {bins}: needed at least 1")
    if values.shape != events.shape or values.ndim != 1:
        raise InputError(
            f"{values.shape} values for {events.shape} users' events: needed one of each per user"
        )
    if not len(values):
        return []
    edges = np.quantile(events, np.arange(1, bins) / bins, method="inverted_cdf")
    bin_of_user = np.searchsorted(edges, events, side="left")
    rows = []
    for number in np.unique(bin_of_user):
        inside = bin_of_user == number
        rows.append(
            {
                "from": int(events[inside].min()),
                "to": int(events[inside].max()),
                "users": int(inside.sum()),
                name: mean_interval(values[inside], seed=seed).to_dict(),
            }
        )
    return rows


def by_popularity(
    ranked: npt.NDArray[Any], labels: Ragged, popularity: Float64, k: int
) -> list[dict[str, Any]]:
    """recall@k by the popularity of the label's item, micro-averaged: labels found in the top k ÷ labels.

    Items are ordered by `popularity` (items,), their events before the labels. An item belongs to the head
    where more popular items hold less than 20 % of all events, to the upper middle below 50 %, to the lower
    middle below 80 %, else to the tail; items without any event are tail. Equally popular items stay
    together. A label whose item lies outside the catalogue can never be found, and has a group of its own.
    `from_events` and `to_events` are the fewest and the most events of an item of the group.
    """
    if popularity.ndim != 1 or not np.isfinite(popularity).all() or (popularity < 0).any():
        raise InputError("popularity needs one finite count of 0 or more for every item, (items,)")
    wanted, found = _labels_and_found(ranked, labels, k)
    group = popularity_groups(popularity)
    n_items, outside = len(popularity), len(POPULARITY_GROUPS)
    group_of_any = np.full(max(n_items, int(wanted.max(initial=-1)) + 1), outside)
    group_of_any[:n_items] = group
    labels_in = np.bincount(group_of_any[wanted], minlength=outside + 1)
    found_in = np.bincount(group_of_any[found], minlength=outside + 1)
    rows = []
    for number, name in enumerate((*POPULARITY_GROUPS, "not in the catalogue")):
        counts = popularity[group == number]
        items = len(counts) if number < outside else len(np.unique(wanted[wanted >= n_items]))
        if not items:
            continue
        rows.append(
            {
                "group": name,
                "from_events": int(counts.min()) if len(counts) else 0,
                "to_events": int(counts.max(initial=0)),
                "items": items,
                "labels": int(labels_in[number]),
                f"recall@{k}": float(found_in[number] / labels_in[number]) if labels_in[number] else None,
            }
        )
    return rows


def popularity_groups(popularity: Float64) -> Int64:
    """(items,) the index into POPULARITY_GROUPS of every item; see `by_popularity`."""
    distinct, place = np.unique(-popularity, return_inverse=True)  # most popular first
    # of all items of that popularity
    events = np.bincount(place, weights=popularity, minlength=len(distinct))
    total = float(events.sum())
    if total == 0:
        return np.full(len(popularity), len(POPULARITY_BOUNDS), dtype=np.int64)
    share_above = (np.cumsum(events) - events) / total
    group = np.searchsorted(POPULARITY_BOUNDS, share_above, side="right")
    return group[place].astype(np.int64)


def concentration(
    ranked: npt.NDArray[Any], n_items: int, k: int, share: float = CONCENTRATION_SHARE
) -> float | None:
    """Share of all places in the users' top k that the most recommended ⌈share · n_items⌉ items take.

    `share` itself where every item is recommended equally often, 1 where all lists hold the same few items;
    None where nothing is recommended.
    """
    if n_items < 1:
        raise ConfigError(f"concentration over {n_items} items: the catalogue needs at least one item")
    if not 0 < share <= 1:
        raise ConfigError(f"share = {share}: needed above 0 and at most 1, as 0.01")
    shown = ranked[:, :k]
    shown = shown[shown != PADDING]
    if not len(shown):
        return None
    times_shown = np.bincount(shown, minlength=n_items)
    top = np.sort(times_shown)[::-1][: math.ceil(share * n_items)]
    return float(top.sum() / len(shown))


def breakdown(
    ranked: npt.NDArray[Any],
    labels: Ragged,
    values: dict[str, Float64],
    events: Int64,
    popularity: Float64 | None,
    n_items: int,
    seed: int = 0,
) -> dict[str, Any]:
    """All of the above for the users of the headline: of the first recall measured, else the first metric."""
    name = next((name for name in values if name.startswith("recall@")), next(iter(values)))
    _, k = metrics.parse_name(name)
    return {
        "user_activity": by_activity(values[name], events, name, seed=seed),
        "item_popularity": [] if popularity is None else by_popularity(ranked, labels, popularity, k),
        "concentration": {
            "most_recommended_items": math.ceil(CONCENTRATION_SHARE * n_items),
            f"share@{k}": concentration(ranked, n_items, k),
        },
    }


def _labels_and_found(ranked: npt.NDArray[Any], labels: Ragged, k: int) -> tuple[Int64, Int64]:
    """The items of all users' distinct labels, and of those found in the top k."""
    if k < 1:
        raise ConfigError(f"k = {k}: the cut-off must be a whole number from 1")
    top = ranked[:, :k]
    is_hit: Bool = metrics.hits(top, labels)
    count = int(labels.values.max(initial=0)) + 1
    real = labels.values >= 0
    pairs = np.unique(labels.row_of_value()[real] * count + labels.values[real])
    return pairs % count, top[is_hit].astype(np.int64)
