"""From canonical frames to dense arrays: ids, logs and label sets."""

from __future__ import annotations

import numpy as np
import polars as pl

from rootbeam.core.ids import Ids
from rootbeam.core.types import PADDING, Int32, Log, Ragged


def ids_of(*columns: pl.Series) -> Ids:
    """The distinct ids of the columns, in order of first appearance."""
    return Ids(pl.concat([column.rename("id") for column in columns]).unique(maintain_order=True).to_list())


def dense_column(column: pl.Series, ids: Ids) -> Int32:
    """Dense ids of a column; -1 where unknown."""
    if ids.external and not ids.are_integers:
        column = column.cast(pl.String)  # the other way round "7" and "07" would both be 7
    known = pl.DataFrame(
        {"id": pl.Series(ids.external, dtype=column.dtype, strict=False), "dense": np.arange(len(ids))},
        schema_overrides={"dense": pl.Int32},
    )
    joined = column.rename("id").to_frame().join(known, on="id", how="left", maintain_order="left")
    return joined["dense"].fill_null(PADDING).to_numpy().astype(np.int32)


def to_log(frame: pl.DataFrame, users: Ids, items: Ids) -> Log:
    """The log of a canonical frame; events of unknown users or items are left out."""
    user = dense_column(frame["user_id"], users)
    item = dense_column(frame["item_id"], items)
    timed = "timestamp" in frame.columns
    if timed:
        time = frame["timestamp"].to_physical().to_numpy().astype(np.int64)
    elif "position" in frame.columns:
        time = frame["position"].to_numpy().astype(np.int64)
    else:
        time = np.arange(len(frame), dtype=np.int64)
    weight = frame["weight"].to_numpy().astype(np.float32)
    known = (user != PADDING) & (item != PADDING)
    user, item, time, weight = user[known], item[known], time[known], weight[known]
    order = np.lexsort((time, user))  # stable: equal times keep the order of the source
    counts = np.bincount(user, minlength=len(users))
    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Log(item[order], time[order], weight[order], ptr, len(items), timed)


def to_labels(frame: pl.DataFrame, users: Ids, items: Ids) -> Ragged:
    """Each user's label items, duplicates kept; a row for every user of `users`."""
    log = to_log(frame, users, items)
    return log.sequences()
