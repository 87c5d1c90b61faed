"""A scorer of your own in exact search: what tends to follow the item that a user touched last.

A scorer needs three things and no base class: `n_items`, `encode` and `score` (rootbeam.core.types.Scorer).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from rootbeam.core.types import PADDING, Histories
from rootbeam.data.history import from_items
from rootbeam.search.exact import ExactRetriever


@dataclass(frozen=True)
class FollowsScorer:
    """score(user, item) = how often `item` came right after the user's last item in the log."""

    follows: torch.Tensor  # (items, items), row = the item before
    n_items: int

    def encode(self, histories: Histories) -> torch.Tensor:
        """(batch, items): all that a user's scores depend on; zeros for a user without a last item."""
        last = torch.from_numpy(histories.last[:, -1]).long()
        return self.follows[last.clamp_min(0)].masked_fill((last == PADDING)[:, None], 0.0)

    def score(self, query: torch.Tensor, level: int, nodes: torch.Tensor | None) -> torch.Tensor:
        """(batch, nodes): all items (None), the same for everyone (n,), or each user's own (batch, n)."""
        if nodes is None:
            return query.clone()  # the retriever adds its offset in place
        return query[:, nodes] if nodes.dim() == 1 else query.gather(1, nodes)


if __name__ == "__main__":
    titles = ["bread", "butter", "jam", "tea", "milk"]
    baskets = [[0, 1, 2], [0, 1], [3, 4], [0, 1, 2, 3, 4], [0, 3]]
    before, after = torch.tensor([pair for basket in baskets for pair in pairwise(basket)]).T
    follows = torch.zeros(len(titles), len(titles))
    follows.index_put_((before, after), torch.ones(len(before)), accumulate=True)
    users = [[3, 0], [1], [4, 3]]
    found = ExactRetriever(FollowsScorer(follows, len(titles))).retrieve(from_items(users), k=2)
    for history, items in zip(users, found.items.tolist(), strict=True):
        print(" + ".join(titles[item] for item in history), "->", " or ".join(titles[item] for item in items))
