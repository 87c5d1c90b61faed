"""A SASRec-type encoder: a causal transformer over the last items of a history, with a linear head.

[Kang & McAuley 2018]; trained with softmax over the catalogue (full or sampled) at every position, which
repairs most of what the published binary loss with one negative loses.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rootbeam.core.config import SequenceConfig

INITIAL_SCALE = 0.02


class SequenceEncoder(nn.Module):
    """items (batch, length), -1 = padding on the left -> a user vector at every position."""

    def __init__(
        self, n_items: int, config: SequenceConfig, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.n_items = n_items
        self.config = config
        self.items = nn.Embedding(n_items + 1, config.dimension)  # the last row is padding
        self.positions = nn.Embedding(config.length, config.dimension)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.blocks)])
        self.norm = nn.LayerNorm(config.dimension)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Embedding):
                    module.weight.normal_(0.0, INITIAL_SCALE, generator=generator)
                if isinstance(module, nn.Linear):
                    module.bias.zero_()
            self.items.weight[n_items].zero_()

    def forward(self, items: Tensor) -> Tensor:
        """(batch, length) -> (batch, length, dimension)"""
        real = items >= 0
        rows = torch.where(real, items, self.n_items)
        hidden = self.items(rows) * math.sqrt(self.config.dimension)
        hidden = hidden + self.positions.weight[-items.shape[1] :]
        hidden = F.dropout(hidden, self.config.dropout, self.training) * real[..., None]
        for block in self.blocks:
            hidden = block(hidden, real)
        normed: Tensor = self.norm(hidden)
        return normed

    def item_vectors(self) -> Tensor:
        """(items, dimension) the linear head, tied to the input embeddings."""
        return self.items.weight[: self.n_items]


class Block(nn.Module):
    """Pre-norm causal attention and feed-forward, each with a residual."""

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__()
        self.config = config
        d = config.dimension
        self.attention_norm = nn.LayerNorm(d)
        self.query_key_value = nn.Linear(d, 3 * d)
        self.output = nn.Linear(d, d)
        self.forward_norm = nn.LayerNorm(d)
        self.wide = nn.Linear(d, config.feed_forward * d)
        self.narrow = nn.Linear(config.feed_forward * d, d)

    def forward(self, hidden: Tensor, real: Tensor) -> Tensor:
        dropout = self.config.dropout
        hidden = hidden + F.dropout(self.attend(self.attention_norm(hidden), real), dropout, self.training)
        inner = F.gelu(self.wide(self.forward_norm(hidden)))
        return hidden + F.dropout(self.narrow(inner), dropout, self.training)

    def attend(self, hidden: Tensor, real: Tensor) -> Tensor:
        batch, length, d = hidden.shape
        heads = self.config.heads
        query, key, value = (
            part.view(batch, length, heads, d // heads).transpose(1, 2)  # (batch, heads, length, d/heads)
            for part in self.query_key_value(hidden).chunk(3, dim=-1)
        )
        before = torch.ones(length, length, dtype=torch.bool, device=hidden.device).tril()
        # A padded position sees itself, so that no row of the softmax is empty.
        itself = torch.eye(length, dtype=torch.bool, device=hidden.device)
        visible = (before & real[:, None, None, :]) | itself  # (batch, 1, length, length)
        drop = self.config.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=drop)
        joined: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, d))
        return joined
