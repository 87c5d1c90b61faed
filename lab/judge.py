"""Ranking all items for the users of a split, seen ones left out, and measuring the lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rootbeam import metrics
from rootbeam.core.types import Float64, Int64, Ragged
from rootbeam.learn.embed import Factors
from rootbeam.search.exact import top_k

SCORES_AT_ONCE = 200_000_000  # on a GPU; a tenth of it on a CPU


@dataclass(frozen=True)
class Judge:
    """Users with labels, their labels, and what each has seen as flat places in blocks of scores."""

    rows: Int64  # (users,) of the factors
    labels: Ragged  # (users, ...)
    blocks: list[tuple[Tensor, Tensor]]  # the rows of a block, and what they have seen in it
    n_items: int

    def rank(self, factors: Factors, depth: int) -> Int64:
        """(users, depth), best first, -1 where nothing unseen is left."""
        ranked = np.full((len(self.rows), depth), -1, dtype=np.int64)
        done = 0
        for rows, seen in self.blocks:
            scores = factors.scores(rows)
            scores.view(-1).index_fill_(0, seen, -torch.inf)
            value, item = top_k(scores, depth)
            found = torch.where(value == -torch.inf, -1, item).cpu().numpy()
            ranked[done : done + len(rows), : found.shape[1]] = found
            done += len(rows)
        return ranked

    def measure(self, factors: Factors, names: Sequence[str]) -> dict[str, Float64]:
        depth = max(metrics.parse_name(name)[1] for name in names)
        with torch.inference_mode():
            measured: dict[str, Float64] = metrics.compute(self.rank(factors, depth), self.labels, names)
        return measured


def judge_of(
    labels: Ragged, seen: Sequence[Ragged], n_items: int, device: str, most: int | None = None
) -> Judge:
    """The users with a label, or `most` of them drawn with a fixed seed."""
    rows = np.flatnonzero(labels.lengths() > 0)
    if most is not None and len(rows) > most:
        rows = np.sort(np.random.default_rng(0).permutation(rows)[:most])
    block = max(1, (SCORES_AT_ONCE // (1 if device == "cuda" else 10)) // n_items)
    blocks = []
    for start in range(0, len(rows), block):
        chosen = rows[start : start + block]
        parts = [each.take(chosen) for each in seen]
        places = np.concatenate([part.row_of_value() * n_items + part.values for part in parts])
        blocks.append((torch.from_numpy(chosen).to(device), torch.from_numpy(places).to(device)))
    return Judge(rows, labels.take(rows), blocks, n_items)
