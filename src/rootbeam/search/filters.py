"""What may be recommended: priors and exclusions as one vector over items, and exclusions of single users."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rootbeam.core.types import Bool, Float32, Int32, Ragged

NEVER = float("-inf")


def item_offset(prior: Float32 | None, available: Bool | None, deny: Int32 | None, n_items: int) -> Float32:
    """(items,) the prior, and −∞ where an item is unavailable or denied."""
    offset = np.zeros(n_items, dtype=np.float32) if prior is None else prior.astype(np.float32, copy=True)
    if available is not None:
        offset[~available] = NEVER
    if deny is not None:
        offset[deny[deny >= 0]] = NEVER
    return offset


def exclude_rows(scores: Tensor, exclude: Ragged, nodes: Tensor | None) -> None:
    """Sets scores[row, item] to −∞, in place, for every item of `exclude`'s rows.

    scores (batch, nodes); nodes (nodes,) are the items of the columns, None when column i is item i.
    """
    rows = torch.from_numpy(exclude.row_of_value()).to(scores.device)
    columns = torch.from_numpy(exclude.values.astype(np.int64)).to(scores.device)
    if nodes is not None:
        column_of_item = torch.full((int(max(columns.max(), nodes.max())) + 1,), -1, device=scores.device)
        column_of_item[nodes] = torch.arange(len(nodes), device=scores.device)
        columns = column_of_item[columns]
        rows, columns = rows[columns >= 0], columns[columns >= 0]
    # One flat index is several times cheaper than a pair.
    scores.view(-1).index_fill_(0, rows * scores.shape[1] + columns, NEVER)
