"""Exact search: every item is scored. The ground truth of every other search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rootbeam.core.errors import ConfigError
from rootbeam.core.types import ITEMS, PADDING, Float32, Histories, Int32, Ragged, Scorer
from rootbeam.search.filters import NEVER, exclude_rows

SCORES_AT_ONCE = 4_000_000  # of one block of users, so that it stays in the cache


@dataclass(frozen=True)
class Found:
    """The best items of every user, best first; padded with -1 (score −∞) where fewer exist."""

    items: Int32  # (users, k)
    scores: Float32  # (users, k)


@dataclass(frozen=True)
class ExactRetriever:
    """score = scale · scorer(user, item) + offset(item), over all items."""

    scorer: Scorer
    scale: float = 1.0

    @torch.inference_mode()
    def retrieve(
        self,
        histories: Histories,
        k: int,
        *,
        offset: Float32 | None = None,
        exclude: Ragged | None = None,
        allow: Int32 | None = None,
    ) -> Found:
        """The k best items of every user.

        offset (items,): priors, −∞ for what is never returned; exclude: items never returned to a row;
        allow: the only items that may be returned.
        """
        if k < 1:
            raise ConfigError(f"k is {k}; needed at least 1")
        nodes = None if allow is None else torch.from_numpy(np.unique(allow[allow >= 0]).astype(np.int64))
        n_nodes = self.scorer.n_items if nodes is None else len(nodes)
        items = np.full((len(histories), k), PADDING, dtype=np.int32)
        scores = np.full((len(histories), k), NEVER, dtype=np.float32)
        if n_nodes == 0 or len(histories) == 0:
            return Found(items, scores)
        prior = None if offset is None else torch.from_numpy(offset)
        block = max(1, SCORES_AT_ONCE // n_nodes)
        for start in range(0, len(histories), block):
            rows = np.arange(start, min(start + block, len(histories)))
            query = self.scorer.encode(histories.take(rows))
            best, value = self._block(query, k, prior, None if exclude is None else exclude.take(rows), nodes)
            items[rows, : best.shape[1]] = best
            scores[rows, : best.shape[1]] = value
        return Found(items, scores)

    def _block(
        self, query: object, k: int, prior: Tensor | None, exclude: Ragged | None, nodes: Tensor | None
    ) -> tuple[Int32, Float32]:
        scores = self.scorer.score(query, ITEMS, nodes)  # (batch, nodes)
        if self.scale != 1.0:
            scores = scores.mul_(self.scale)
        if prior is not None:
            prior = prior.to(scores.device)
            scores = scores.add_(prior if nodes is None else prior[nodes])
        if exclude is not None and len(exclude.values):
            exclude_rows(scores, exclude, nodes)
        value, column = top_k(scores, k)
        item = column if nodes is None else nodes[column]
        item = torch.where(value == NEVER, PADDING, item)
        return item.cpu().numpy().astype(np.int32), value.float().cpu().numpy()


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(batch, nodes) -> the k best values and columns, best first; equal scores by column, lowest first."""
    n = scores.shape[1]
    value, column = scores.topk(min(k + 1, n), dim=1)
    k = min(k, n)
    # A tie across the cut leaves it open which of the equals topk keeps: settle those rows by a stable sort.
    if n > k:
        tied = (value[:, k - 1] == value[:, k]) & (value[:, k] != NEVER)
        rows = tied.nonzero()[:, 0]
        if len(rows):
            order = scores[rows].argsort(dim=1, descending=True, stable=True)[:, :k]
            column[rows, :k] = order
            value[rows, :k] = scores[rows].gather(1, order)
        value, column = value[:, :k], column[:, :k]
    if bool((value[:, 1:] == value[:, :-1]).any()):
        column, by_column = column.sort(dim=1)
        value, by_value = value.gather(1, by_column).sort(dim=1, descending=True, stable=True)
        column = column.gather(1, by_value)
    return value, column
