"""Scorers with a constant or a linear head; each is final and fits the `Scorer` Protocol."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rootbeam.core.errors import ConfigError
from rootbeam.core.types import ITEMS, Float32, Histories
from rootbeam.learn.sequence import SequenceEncoder


def require_items_level(level: int) -> None:
    """For scorers that know items only, not the inner nodes of a tree."""
    if level != ITEMS:
        raise ConfigError(f"level {level} was asked of a scorer that scores items only; use exact search")


@dataclass(frozen=True)
class CountQuery:
    """A batch of which only the size is known."""

    size: int

    def __len__(self) -> int:
        return self.size


@dataclass(frozen=True)
class ConstantScorer:
    """Zero for everyone: what is left is the prior, that is, popularity."""

    n_items: int

    def encode(self, histories: Histories) -> CountQuery:
        return CountQuery(len(histories))

    def score(self, query: CountQuery, level: int, nodes: Tensor | None) -> Tensor:
        require_items_level(level)
        return torch.zeros(len(query), self.n_items if nodes is None else nodes.shape[-1])


@dataclass(frozen=True)
class VectorQuery:
    """One vector a user."""

    vectors: Tensor  # (batch, dimension)

    def __len__(self) -> int:
        return len(self.vectors)


def linear_score(users: Tensor, items: Tensor, nodes: Tensor | None) -> Tensor:
    """users (batch, d) · items (items, d) for nodes None, (n,) or (batch, n) -> (batch, nodes)"""
    if nodes is None:
        return users @ items.T
    chosen = items[nodes.to(items.device)]
    if nodes.dim() == 1:
        return users @ chosen.T
    return torch.einsum("bd,bnd->bn", users, chosen)


@dataclass(frozen=True)
class SequenceScorer:
    """A trained sequence encoder; the user vector is the one at the newest position."""

    encoder: SequenceEncoder

    @property
    def n_items(self) -> int:
        return self.encoder.n_items

    @torch.inference_mode()
    def encode(self, histories: Histories) -> VectorQuery:
        self.encoder.eval()
        length = self.encoder.config.length
        last = histories.last[:, -length:]
        # Short histories cost less: columns that are padding for everyone are left out.
        used = np.flatnonzero((last >= 0).any(axis=0))
        last = last[:, used[0] :] if len(used) else last[:, -1:]
        device = self.encoder.items.weight.device
        hidden = self.encoder(torch.from_numpy(np.ascontiguousarray(last, dtype=np.int64)).to(device))
        return VectorQuery(hidden[:, -1])

    @torch.inference_mode()
    def score(self, query: VectorQuery, level: int, nodes: Tensor | None) -> Tensor:
        require_items_level(level)
        return linear_score(query.vectors, self.encoder.item_vectors(), nodes)


@dataclass(frozen=True)
class MeanScorer:
    """Two towers: the user is the mean of the history's item vectors (a second table), the item its own."""

    history_vectors: Tensor  # (items, dimension)
    vectors: Tensor  # (items, dimension)

    @property
    def n_items(self) -> int:
        return len(self.vectors)

    def encode(self, histories: Histories) -> VectorQuery:
        last = torch.from_numpy(histories.last.astype(np.int64)).to(self.vectors.device)
        return VectorQuery(mean_of_history(self.history_vectors, last))

    def score(self, query: VectorQuery, level: int, nodes: Tensor | None) -> Tensor:
        require_items_level(level)
        return linear_score(query.vectors, self.vectors, nodes)


def mean_of_history(vectors: Tensor, items: Tensor) -> Tensor:
    """items (batch, length), -1 = padding -> (batch, dimension); zero for an empty history"""
    real = (items >= 0).to(vectors.dtype)
    picked = vectors[items.clamp_min(0)] * real[..., None]
    return picked.sum(1) / real.sum(1, keepdim=True).clamp_min(1.0)


def as_array(vectors: Tensor) -> Float32:
    return vectors.detach().float().cpu().numpy()
