"""Stage-1 embeddings: one vector a user and one an item, trained so that s(u, i) = u · i ranks what u chose.

Two encoders of users: `MatrixFactorisation` looks the user up in a table, `MeanTower` takes the mean of the
history's vectors in a table of their own, and so knows users it was not trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rootbeam.core.errors import ConfigError, InputError
from rootbeam.core.files import Array
from rootbeam.core.types import Int64, Log
from rootbeam.learn import losses
from rootbeam.learn.objectives import Objective, Step, take_rows
from rootbeam.learn.samplers import log_popularity
from rootbeam.learn.scorers import MeanScorer, linear_score, mean_of_history

Tables = dict[str, Tensor]  # "items" (n_items, d), and "users" (users, d) or "history" (n_items, d)


@dataclass(frozen=True)
class EmbedTraining:
    """How embeddings learn. Weight decay is Adam's own: added to the gradient, not to the step."""

    dimension: int = 64
    init_scale: float = 0.1  # tables start as N(0, scale²)
    batch: int = 1024
    epochs: int = 25
    learning_rate: float = 0.01
    weight_decay: float = 1e-5
    decay: float = 0.95  # the learning rate falls by this factor
    decay_every: int = 5  # epochs
    validate_every: int = 1  # epochs

    def __post_init__(self) -> None:
        for name in ("dimension", "batch", "epochs", "learning_rate", "decay_every", "validate_every"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive")
        if self.weight_decay < 0 or self.init_scale < 0 or not 0 < self.decay <= 1:
            raise ConfigError(
                f"weight_decay={self.weight_decay}, init_scale={self.init_scale}, decay={self.decay}; "
                "the first two must be 0 or more and decay above 0 and at most 1"
            )


class Encoder(Protocol):
    """How events become users' vectors."""

    def start(self, log: Log, dimension: int, scale: float, seed: int) -> Tables: ...

    def examples(self, log: Log) -> Int64:
        """(examples,) the events that can be trained on."""
        ...

    def users(self, tables: Tables, log: Log, events: Int64) -> Tensor:
        """(batch, d) the vectors of those events' users, as before the event."""
        ...


@dataclass(frozen=True)
class MatrixFactorisation:
    """Every user has a vector of its own."""

    def start(self, log: Log, dimension: int, scale: float, seed: int) -> Tables:
        return _normal({"users": log.n_users, "items": log.n_items}, dimension, scale, seed)

    def examples(self, log: Log) -> Int64:
        return np.arange(log.n_events)

    def users(self, tables: Tables, log: Log, events: Int64) -> Tensor:
        rows = np.searchsorted(log.user_ptr, events, side="right") - 1
        return take_rows(tables["users"], torch.from_numpy(rows).to(tables["users"].device))


@dataclass(frozen=True)
class MeanTower:
    """A user is the mean of the vectors of the last `length` items before the event."""

    length: int = 50

    def start(self, log: Log, dimension: int, scale: float, seed: int) -> Tables:
        return _normal({"history": log.n_items, "items": log.n_items}, dimension, scale, seed)

    def examples(self, log: Log) -> Int64:
        first = np.isin(np.arange(log.n_events), log.user_ptr[:-1])  # nothing comes before these
        return np.flatnonzero(~first)

    def users(self, tables: Tables, log: Log, events: Int64) -> Tensor:
        start = log.user_ptr[np.searchsorted(log.user_ptr, events, side="right") - 1]
        positions = events[:, None] + np.arange(-self.length, 0)  # (batch, length)
        inside = positions >= start[:, None]
        items = np.where(inside, log.items[np.maximum(positions, 0)], -1).astype(np.int64)
        return mean_of_history(tables["history"], torch.from_numpy(items).to(tables["history"].device))


@dataclass(frozen=True)
class EmbedFit:
    """The tables at the best validation (the last epoch's, without one), and the way there."""

    arrays: dict[str, Array]
    epoch: int  # of the tables, from 1
    curve: list[dict[str, float]] = field(default_factory=list)  # {epoch, loss, value} an epoch


def fit_embeddings(
    log: Log,
    encoder: Encoder,
    objective: Objective,
    training: EmbedTraining,
    *,
    seed: int,
    device: str = "cpu",
    validate: Callable[[dict[str, Array]], float] | None = None,
) -> EmbedFit:
    """Trains for `training.epochs`; a function of the log, the seed and the settings."""
    examples = encoder.examples(log)
    if not len(examples):
        raise InputError(f"none of the {log.n_events} events can be trained on; give users more events")
    starting = encoder.start(log, training.dimension, training.init_scale, seed)
    tables = {name: table.to(device).requires_grad_() for name, table in starting.items()}
    log_p = log_popularity(torch.from_numpy(item_counts(log))).to(device)
    optimizer = torch.optim.Adam(
        tables.values(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, training.decay_every, training.decay)
    generator = torch.Generator(device).manual_seed(seed)
    state, number = None, 0
    best, best_value, best_epoch, curve = to_arrays(tables), -math.inf, 0, []
    for epoch in range(1, training.epochs + 1):
        total = torch.zeros((), device=device)
        batches = epoch_batches(len(examples), training.batch, seed, epoch)
        for batch in batches:
            events, number = examples[batch], number + 1
            items = torch.from_numpy(log.items[events].astype(np.int64)).to(device)
            users = encoder.users(tables, log, events)
            each, state = objective(Step(users, items, tables["items"], log_p, generator, number), state)
            optimizer.zero_grad()
            each.mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += each.detach().mean()
        schedule.step()
        losses.check_finite(total, "embedding")
        point = {"epoch": float(epoch), "loss": float(total) / len(batches)}
        if validate is not None and (epoch % training.validate_every == 0 or epoch == training.epochs):
            arrays = to_arrays(tables)
            point["value"] = validate(arrays)
            if point["value"] > best_value:
                best, best_value, best_epoch = arrays, point["value"], epoch
        curve.append(point)
    if best_epoch:
        return EmbedFit(best, best_epoch, curve)
    return EmbedFit(to_arrays(tables), training.epochs, curve)


def epoch_batches(examples: int, batch: int, seed: int, epoch: int) -> list[Int64]:
    """The batches of an epoch: a permutation, cut; what is left over is dropped.

    A batch is also the negatives of its rows, so a small last one would be another loss.
    """
    batch = min(batch, examples)
    order = np.random.default_rng([seed, 1, epoch]).permutation(examples)
    return list(order[: examples // batch * batch].reshape(-1, batch))


def item_counts(log: Log) -> Int64:
    """(n_items,) events of every item."""
    return np.bincount(log.items, minlength=log.n_items)


def to_arrays(tables: Tables) -> dict[str, Array]:
    return {name: table.detach().cpu().numpy().copy() for name, table in tables.items()}


def mean_scorer(arrays: dict[str, Array], device: str = "cpu") -> MeanScorer:
    """The scorer of a fitted `MeanTower`."""
    return MeanScorer(*(torch.from_numpy(arrays[name]).to(device) for name in ("history", "items")))


@dataclass(frozen=True)
class Factors:
    """A fitted `MatrixFactorisation`. It knows the users it was trained on and no others."""

    users: Tensor  # (users, d)
    items: Tensor  # (n_items, d)

    @staticmethod
    def of(arrays: dict[str, Array], device: str = "cpu") -> Factors:
        return Factors(*(torch.from_numpy(arrays[name]).to(device) for name in ("users", "items")))

    def scores(self, rows: Tensor, nodes: Tensor | None = None) -> Tensor:
        """(rows, nodes) of those users; all items where `nodes` is None."""
        return linear_score(self.users[rows], self.items, nodes)


def _normal(rows: dict[str, int], dimension: int, scale: float, seed: int) -> Tables:
    generator = torch.Generator().manual_seed(seed)
    return {name: scale * torch.randn(n, dimension, generator=generator) for name, n in rows.items()}
