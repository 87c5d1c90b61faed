"""What a batch of (user, chosen item) pairs is trained on: the pure losses, fed from embedding tables.

An objective is a function (Step, state) -> (losses (..., batch), next state). The state is what the objective
remembers between steps, None at first and always where it remembers nothing. All shapes may carry leading
dimensions (runs side by side) under ssl, ssl_pop and bir.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rootbeam.learn import losses
from rootbeam.learn.samplers import Draws, popularity_items, uniform_items
from rootbeam.learn.xir import log_frequency, start_cache, start_frequencies, update_gaps, xir_loss


@dataclass(frozen=True)
class Step:
    """One batch: the users' vectors, the items they chose, and the table of all items."""

    users: Tensor  # (..., batch, d)
    items: Tensor  # (..., batch)
    table: Tensor  # (..., n_items, d)
    log_popularity: Tensor  # (..., n_items), Σ p = 1
    generator: torch.Generator
    number: int  # of the step, from 1

    @property
    def n_items(self) -> int:
        return self.table.shape[-2]

    def scores(self, items: Tensor) -> Tensor:
        """(..., batch, m) every user against the items (..., m)."""
        return self.users @ take_rows(self.table, items).mT

    def log_p(self) -> Tensor:
        """(..., batch) log popularity of the chosen items."""
        return self.log_popularity.gather(-1, self.items)


Objective = Callable[[Step, Any], tuple[Tensor, Any]]


def take_rows(table: Tensor, rows: Tensor) -> Tensor:
    """table (..., n, d), rows (..., m) -> (..., m, d); one index_select, whose gradient is one index_add."""
    flat = table.reshape(-1, table.shape[-1])
    if table.dim() > 2:
        first = torch.arange(0, len(flat), table.shape[-2], device=rows.device)  # (runs,)
        rows = rows + first.view(*table.shape[:-2], 1)
    return flat.index_select(0, rows.flatten()).view(*rows.shape, table.shape[-1])


def ssl(mask_hits: bool = True) -> Objective:
    """In-batch softmax, uncorrected. `mask_hits` leaves out columns that hold the row's own item again."""

    def objective(step: Step, state: Any) -> tuple[Tensor, Any]:
        own = step.items if mask_hits else None
        return losses.in_batch_softmax_loss(step.scores(step.items), own, reduce="none"), state

    return objective


def ssl_pop(mask_hits: bool = True) -> Objective:
    """In-batch softmax of s − log p."""

    def objective(step: Step, state: Any) -> tuple[Tensor, Any]:
        own = step.items if mask_hits else None
        scores = step.scores(step.items)
        return losses.in_batch_softmax_loss(scores, own, step.log_p(), reduce="none"), state

    return objective


def bir(
    estimator: losses.Estimator = "corrected", draws: Draws = "systematic", mask_hits: bool = True
) -> Objective:
    """In-batch importance resampling."""

    def objective(step: Step, state: Any) -> tuple[Tensor, Any]:
        own = step.items if mask_hits else None
        scores, log_p = step.scores(step.items), step.log_p()
        return losses.bir_loss(scores, own, log_p, step.generator, estimator, draws, reduce="none"), state

    return objective


def xir(cache_weight: float = 0.2) -> Objective:
    """Resampling from the batch and from a cache of the batch's size, mixed by `cache_weight`."""

    def objective(step: Step, state: Any) -> tuple[Tensor, Any]:
        cache = state or start_cache(step.n_items, len(step.items), step.generator)
        return xir_loss(
            step.scores(step.items),
            step.scores(cache.items),
            step.items,
            step.log_p(),
            cache,
            step.generator,
            cache_weight,
            reduce="none",
        )

    return objective


def mns(extra: int | None = None) -> Objective:
    """Mixed negatives: the batch and `extra` uniform items, as many as the batch's where None."""

    def objective(step: Step, state: Any) -> tuple[Tensor, Any]:
        count = len(step.items) if extra is None else extra
        drawn, _ = uniform_items((count,), step.n_items, step.generator, step.items.device)
        return losses.mixed_negative_loss(
            step.scores(step.items),
            step.items,
            step.scores(drawn),
            drawn,
            step.log_popularity,
            step.n_items,
            reduce="none",
        ), state

    return objective


def g_tower(rate: float = 0.05) -> Objective:
    """In-batch softmax corrected by frequencies estimated from the stream of batches (Google's towers)."""

    def objective(step: Step, state: Any) -> tuple[Tensor, Any]:
        if state is None:
            gap = max(1.0, step.n_items / len(step.items))
            state = start_frequencies(16 * step.n_items, gap, step.generator, rate=rate)
        state = update_gaps(state, step.items, step.number)
        estimated = log_frequency(state, step.items)
        scores = step.scores(step.items)
        return losses.in_batch_softmax_loss(scores, step.items, estimated, reduce="none"), state

    return objective


def full_softmax() -> Objective:
    """Softmax over the whole catalogue."""

    def objective(step: Step, state: Any) -> tuple[Tensor, Any]:
        return losses.full_softmax_loss(step.users @ step.table.T, step.items, reduce="none"), state

    return objective


def sampled_softmax(negatives: int = 256, power: float = 0.0) -> Objective:
    """Softmax over `negatives` items drawn by popularity^power; 0 is uniform."""

    def objective(step: Step, state: Any) -> tuple[Tensor, Any]:
        drawn, log_q = popularity_items((negatives,), power * step.log_popularity, step.generator)
        positive = (step.users * take_rows(step.table, step.items)).sum(-1)
        hits = step.items[:, None] == drawn[None, :]
        return losses.sampled_softmax_loss(positive, step.scores(drawn), log_q, hits, reduce="none"), state

    return objective


def bpr() -> Objective:
    """The chosen item above one drawn uniformly."""

    def objective(step: Step, state: Any) -> tuple[Tensor, Any]:
        drawn, _ = uniform_items(tuple(step.items.shape), step.n_items, step.generator, step.items.device)
        both = (step.users * take_rows(step.table, rows) for rows in (step.items, drawn))
        positive, negative = (product.sum(-1) for product in both)
        return losses.bpr_loss(positive, negative, reduce="none"), state

    return objective


def ccf(offered: int = 20) -> Objective:
    """A choice among the item and `offered` others drawn uniformly, uncorrected."""

    def objective(step: Step, state: Any) -> tuple[Tensor, Any]:
        drawn, _ = uniform_items((offered,), step.n_items, step.generator, step.items.device)
        positive = (step.users * take_rows(step.table, step.items)).sum(-1)
        hits = step.items[:, None] == drawn[None, :]
        return losses.ccf_loss(positive, step.scores(drawn), hits, reduce="none"), state

    return objective
