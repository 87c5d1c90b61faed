"""Beam search down a tree, in batched torch: the readable reference. Exact search is its ground truth.

A node's score is scale · scorer(user, node) + offset(node), and a node's offset is the largest of the leaves
below it. Nodes without a leaf that this user may be given are never kept, so every node kept leads to an item
that may be returned. As the beam is never narrower than k, k items come back whenever k exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rootbeam.core.errors import ConfigError
from rootbeam.core.tree import Tree, level_sizes
from rootbeam.core.types import ITEMS, PADDING, Float32, Histories, Int32, Int64, Ragged, Scorer
from rootbeam.search.exact import ExactRetriever, Found, top_k
from rootbeam.search.filters import NEVER, item_offset

NODES_AT_ONCE = 200_000  # scored for one block of users at one level, each with a row of embeddings
Beam = int | tuple[int, ...]


@dataclass(frozen=True)
class TreeRetriever:
    """score = scale · scorer(user, item) + offset(item), over the items that the beam reaches.

    `beam` is how many nodes are kept at a level: one number, or a tuple of one for each of the levels
    1 … height − 1. It is widened to k where k is more.
    """

    scorer: Scorer
    tree: Tree
    beam: Beam
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.scorer.n_items != self.tree.n_items:
            raise ConfigError(
                f"the scorer knows {self.scorer.n_items} items and the tree {self.tree.n_items}; "
                "give a tree over the scorer's items"
            )
        beam_widths(self.beam, self.tree.height, 1)

    def nodes_scored(self, k: int) -> int:
        """Nodes, leaves among them, that the search for k items scores for one user at most."""
        widths = beam_widths(self.beam, self.tree.height, k)
        return sum(step.candidates for step in steps(self.tree.sizes, self.tree.branch, widths))

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
        """The k best items of every user; arguments as `ExactRetriever.retrieve`.

        Where no more items are allowed than the beam would score nodes, and where the beam holds every node,
        all of them are scored: the answer is that of exact search.
        """
        if k < 1:
            raise ConfigError(f"k is {k}; needed at least 1")
        exact = ExactRetriever(self.scorer, self.scale)
        plan = steps(self.tree.sizes, self.tree.branch, beam_widths(self.beam, self.tree.height, k))
        if len(plan) == 1:
            return exact.retrieve(histories, k, offset=offset, exclude=exclude, allow=allow)
        if allow is not None:
            offset = only_allowed(offset, allow, self.tree.n_items)
        if offset is not None:
            allowed = np.flatnonzero(offset != NEVER)
            if len(allowed) <= sum(step.candidates for step in plan):
                short: Int32 = allowed.astype(np.int32)
                return exact.retrieve(histories, k, offset=offset, exclude=exclude, allow=short)
        offsets = None if offset is None else level_offsets(self.tree, offset)
        allowed_below = None if exclude is None else allowed_leaves(self.tree, offset)
        items = np.full((len(histories), k), PADDING, dtype=np.int32)
        scores = np.full((len(histories), k), NEVER, dtype=np.float32)
        block = max(1, NODES_AT_ONCE // max(step.candidates for step in plan))
        for start in range(0, len(histories), block):
            rows = np.arange(start, min(start + block, len(histories)))
            query = self.scorer.encode(histories.take(rows))
            closed = None
            if exclude is not None and allowed_below is not None:
                closed = closed_nodes(self.tree, exclude.take(rows), allowed_below)
            best, value = search(
                self.scorer, self.tree, query, k, plan, offsets=offsets, closed=closed, scale=self.scale
            )
            items[rows, : best.shape[1]] = best.cpu().numpy()
            scores[rows, : best.shape[1]] = value.float().cpu().numpy()
        return Found(items, scores)


@dataclass(frozen=True)
class Step:
    """A level at which nodes are scored: for each user this many, of which `kept` go on."""

    level: int
    candidates: int
    kept: int


def steps(sizes: Sequence[int], branch: int, widths: Sequence[int]) -> list[Step]:
    """Where a beam has to choose, and last the leaves.

    At a level where no more nodes are reached than the beam holds, all go on and none is scored.
    """
    found, reached, height = [], 1, len(sizes) - 1
    for level in range(height):
        reached = min(reached * branch, sizes[level]) if level else 1
        if reached > widths[level]:
            found.append(Step(level, reached, widths[level]))
            reached = widths[level]
    leaves = min(reached * branch, sizes[height]) if height else 1
    return [*found, Step(height, leaves, leaves)]


def beam_widths(beam: Beam, height: int, k: int) -> list[int]:
    """Nodes kept at the levels 0 … height − 1, never fewer than k."""
    inner = max(height - 1, 0)
    given = (beam,) * inner if isinstance(beam, int) else tuple(beam)
    if len(given) != inner:
        raise ConfigError(
            f"beam has {len(given)} widths; a tree of height {height} needs one number, or {inner}: "
            "one for each level between the root and the leaves"
        )
    narrowest = beam if isinstance(beam, int) else min(beam, default=1)
    if narrowest < 1:
        raise ConfigError(f"beam is {narrowest}; it must be at least 1")
    return [1, *(max(width, k) for width in given)][:height]


def prefers_exact(n_items: int, branch: int, beam: Beam) -> bool:
    """Whether exact search scores no more nodes for a user than a beam over a tree of this shape would.

    The rule by which `auto` chooses. It counts and never measures: a function of these three alone.
    """
    sizes = level_sizes(n_items, branch)
    plan = steps(sizes, branch, beam_widths(beam, len(sizes) - 1, 1))
    return n_items <= sum(step.candidates for step in plan)


def only_allowed(offset: Float32 | None, allow: Int32, n_items: int) -> Float32:
    """(items,) the offset, and −∞ for what is not in `allow`."""
    chosen = np.zeros(n_items, dtype=np.bool_)
    chosen[allow[allow >= 0]] = True
    return item_offset(offset, chosen, None, n_items)


# What follows goes by level from the root; the last one, found at `ITEMS` too, by item instead of by leaf.


def level_offsets(tree: Tree, offset: Float32) -> list[Tensor]:
    """offset (items,) -> by level, (nodes,) the largest of the leaves below."""
    return [torch.from_numpy(values) for values in (*tree.node_offsets(offset)[:-1], offset)]


def allowed_leaves(tree: Tree, offset: Float32 | None) -> list[Int64]:
    """By level, (nodes,) how many leaves below may be returned to anyone."""
    may = np.ones(tree.n_items, dtype=np.bool_) if offset is None else offset != NEVER
    return [*tree.node_counts(may)[:-1], may.astype(np.int64)]


def closed_nodes(tree: Tree, exclude: Ragged, allowed_below: list[Int64]) -> list[Tensor]:
    """By level, ascending row · nodes + node: below these no leaf is left for the row's user.

    Those are nodes of which as many leaves are excluded as may be returned to anyone.
    """
    pairs = np.unique(exclude.row_of_value() * tree.n_items + exclude.values)
    rows, items = pairs // tree.n_items, pairs % tree.n_items
    lost = allowed_below[ITEMS][items] > 0  # what nobody may be given takes nothing more away
    rows, items = rows[lost], items[lost]
    closed = []
    for level, nodes in enumerate(tree.sizes[:-1]):
        keys, counts = np.unique(rows * nodes + tree.ancestors(items, level), return_counts=True)
        closed.append(keys[counts == allowed_below[level][keys % nodes]])
    return [torch.from_numpy(keys) for keys in (*closed, pairs)]


def search(
    scorer: Scorer,
    tree: Tree,
    query: object,
    k: int,
    plan: Sequence[Step],
    *,
    offsets: list[Tensor] | None = None,
    closed: list[Tensor] | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """A batch of users down the tree by the plan of `steps` -> items and scores (batch, k), best first.

    offsets and closed are those of `level_offsets` and `closed_nodes`.
    Fewer columns come back where fewer leaves are reached, −1 with −∞ where fewer may be returned. Equal
    scores go to the lower item, and at inner nodes to the lower node.
    """
    rows = len(query)  # type: ignore[arg-type]
    nodes: Tensor = torch.zeros(rows, 1, dtype=torch.int64)
    level = 0
    for step in plan[:-1]:
        everyone = level == 0  # all reach every node of the first level that is scored
        if everyone:
            nodes = torch.arange(tree.nodes(step.level)).expand(rows, -1)
        else:
            nodes = descend(tree, nodes, level, step.level)
        level = step.level
        scores = scorer.score(query, level, None if everyone else nodes.clamp_min(0))
        nodes = nodes.to(scores.device)
        limit(scores, tree, nodes, level, scale, offsets, closed)
        nodes = keep(scores, nodes, step.kept)
    leaves = descend(tree, nodes, level, tree.height)
    item_of_leaf = torch.from_numpy(tree.item_of_leaf.astype(np.int64)).to(leaves.device)
    items = torch.where(leaves < 0, PADDING, item_of_leaf[leaves.clamp_min(0)])
    items = items.sort(dim=1).values  # so that the lower column of equals is the lower item
    scores = scorer.score(query, ITEMS, items.clamp_min(0))
    items = items.to(scores.device)
    limit(scores, tree, items, ITEMS, scale, offsets, closed)
    value, column = top_k(scores, k)
    return torch.where(value == NEVER, PADDING, items.gather(1, column)), value


def descend(tree: Tree, nodes: Tensor, level: int, to_level: int) -> Tensor:
    """nodes (batch, n) of a level -> (batch, n · Bˢ) all nodes s levels below; −1 where there is none."""
    width = min(tree.branch ** (to_level - level), tree.nodes(to_level))
    below = nodes[:, :, None] * width + torch.arange(width, device=nodes.device)
    real = (nodes[:, :, None] >= 0) & (below < tree.nodes(to_level))
    return torch.where(real, below, PADDING).flatten(1)


def limit(
    scores: Tensor,
    tree: Tree,
    nodes: Tensor,
    level: int,
    scale: float,
    offsets: list[Tensor] | None,
    closed: list[Tensor] | None,
) -> None:
    """scores (batch, n) of nodes (batch, n), items at `ITEMS`: in place, scale · score + offset, or −∞."""
    if scale != 1.0:
        scores.mul_(scale)
    if offsets is not None:
        scores.add_(offsets[level].to(scores.device)[nodes.clamp_min(0)])
    scores.masked_fill_(nodes < 0, NEVER)
    if closed is not None and len(closed[level]):
        row = torch.arange(len(nodes), device=nodes.device)[:, None]
        keys = (row * tree.sizes[level] + nodes.clamp_min(0)).contiguous()
        shut = closed[level].to(scores.device)
        place = torch.searchsorted(shut, keys).clamp_max(len(shut) - 1)
        scores.masked_fill_(shut[place] == keys, NEVER)


def keep(scores: Tensor, nodes: Tensor, width: int) -> Tensor:
    """The nodes (batch, width) of the best scores, ascending; −1 where only closed ones are left."""
    value, column = top_k(scores, width)
    return torch.where(value == NEVER, PADDING, nodes.gather(1, column)).sort(dim=1).values
