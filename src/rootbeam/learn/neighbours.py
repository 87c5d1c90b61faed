"""Item neighbours: one weight per pair of items, learned in closed form, and the scorer that adds them up.

W[i, j] says how much having item i in the history speaks for item j. EASE finds W by a ridge
regression over all items at once; item-kNN counts co-occurrence, for catalogues too large for an inverse.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
import torch

from rootbeam.core.errors import BundleError, ConfigError
from rootbeam.core.types import ITEMS, PADDING, Bool, Float32, Float64, Histories, Int32, Int64, Log
from rootbeam.data.history import distinct

PAIRS_PER_BLOCK = 1 << 24  # bounds the memory of one block of the co-occurrence matrix
DENSE_SHARE = 8  # weights filling more than 1 / 8 of the matrix are multiplied as a dense matrix

Similarity = Literal["cosine", "jaccard"]


@dataclass(frozen=True)
class PrunedWeights:
    """The weights that were kept, by source: item i's are values[ptr[i]:ptr[i + 1]], targets ascending."""

    ptr: Int64  # (items + 1,)
    targets: Int32  # (kept,)
    values: Float32  # (kept,)

    @property
    def n_items(self) -> int:
        return len(self.ptr) - 1

    def to_arrays(self) -> dict[str, np.ndarray]:
        return {"ptr": self.ptr, "targets": self.targets, "values": self.values}

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> PrunedWeights:
        """The inverse of `to_arrays`; a BundleError where the arrays do not fit together."""
        missing = {"ptr", "targets", "values"} - set(arrays)
        if missing:
            raise BundleError(f"neighbour weights lack {', '.join(sorted(missing))}: save the model again")
        ptr = np.asarray(arrays["ptr"], dtype=np.int64)
        targets = np.asarray(arrays["targets"], dtype=np.int32)
        values = np.asarray(arrays["values"], dtype=np.float32)
        if not (len(ptr) and ptr[0] == 0 and (np.diff(ptr) >= 0).all()):
            raise BundleError("neighbour weights: ptr does not ascend from 0: save the model again")
        if not ptr[-1] == len(targets) == len(values):
            raise BundleError(
                f"neighbour weights: ptr names {ptr[-1]} entries, there are {len(targets)} targets "
                f"and {len(values)} values: save the model again"
            )
        if len(targets) and not (targets.min() >= 0 and targets.max() < len(ptr) - 1):
            raise BundleError(
                f"neighbour weights: a target lies outside the {len(ptr) - 1} items: save the model again"
            )
        if not np.isfinite(values).all():
            raise BundleError("neighbour weights: a value is not finite: save the model again")
        return PrunedWeights(ptr, targets, values)


@dataclass(frozen=True)
class BagQuery:
    """The weighted items of a batch of histories."""

    rows: Int64  # (entries,) ascending
    items: Int32  # (entries,)
    weights: Float32  # (entries,)
    size: int

    def __len__(self) -> int:
        return self.size


@dataclass(frozen=True)
class NeighbourScorer:
    """score(user, j) = Σ_i x_i · W[i, j] over the items i of the history; a Scorer of the items level alone.

    decay = 1: x_i = 1 for every item ever seen, as EASE is trained. decay < 1: every place of `last` adds
    decay^age to the item that stands there, age 0 being the newest; items older than `last` are left out.
    """

    weights: PrunedWeights
    decay: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise ConfigError(f"decay={self.decay:g} is out of range: give 0 < decay ≤ 1 (1 = no decay)")

    @property
    def n_items(self) -> int:
        return self.weights.n_items

    def encode(self, histories: Histories) -> BagQuery:
        """Items that the weights do not know, because they came later, are left out."""
        if self.decay == 1:
            return _seen_bag(histories, self.n_items)
        rows, places = np.nonzero((histories.last != PADDING) & (histories.last < self.n_items))
        ages = histories.last.shape[1] - 1 - places
        amounts = (self.decay**ages).astype(np.float32)
        return BagQuery(rows, histories.last[rows, places], amounts, len(histories))

    def score(self, query: BagQuery, level: int = ITEMS, nodes: torch.Tensor | None = None) -> torch.Tensor:
        if level != ITEMS:
            raise ConfigError(
                f"item neighbours have no tree levels and level {level} was asked for: "
                "score the items level, or search with ExactRetriever"
            )
        scores = self._score_all(query)  # (batch, items)
        if nodes is None:
            return scores
        return scores[:, nodes] if nodes.ndim == 1 else scores.gather(1, nodes.long())

    def _score_all(self, query: BagQuery) -> torch.Tensor:
        if self._dense is not None:
            bag = _sparse(query.rows, query.items, query.weights, (len(query), self.n_items))
            return _product(bag, self._dense)
        used, columns = np.unique(query.items, return_inverse=True)
        bag = _sparse(query.rows, columns, query.weights, (len(query), len(used)))
        return _product(bag, _rows_of(self.weights, used)).to_dense()

    @cached_property
    def _dense(self) -> torch.Tensor | None:
        """(items, items) where so much was kept that a sparse product would be the slower one."""
        if len(self.weights.values) * DENSE_SHARE < self.n_items**2:
            return None
        return _rows_of(self.weights, np.arange(self.n_items)).to_dense()


def score_dense(weights: Float32, histories: Histories) -> Float32:
    """(batch, items) what a `NeighbourScorer` without decay gives, from weights that were never pruned."""
    query = _seen_bag(histories, len(weights))
    bag = _sparse(query.rows, query.items, query.weights, (len(query), len(weights)))
    return _product(bag, torch.from_numpy(weights)).numpy()


def fits(n_items: int, memory_bytes: int) -> bool:
    """Whether `ease_weights` over so many items stays within so much memory; where not, use item-kNN.

    28 bytes per pair of items: the counts in float32 and, at the peak, three matrices in float64.
    """
    return 28 * n_items**2 <= memory_bytes


def gram(log: Log) -> Float32:
    """XᵀX, (items, items): how many users have both items. X[u, i] = 1 where u has i, however often."""
    counts = np.zeros((log.n_items, log.n_items), dtype=np.float32)
    for first, block in _co_occurrence(log):
        counts[first : first + len(block)] = block.to_dense().numpy()
    return counts


def ease_weights(log: Log, l2: float) -> Float32:
    """EASE of the log, (items, items): the B with zero diagonal that minimises |X − XB|² + l2 · |B|²."""
    return ease_from_gram(gram(log), l2)


def ease_from_gram(counts: Float32, l2: float) -> Float32:
    """B[i, j] = −P[i, j] / P[j, j] and B[j, j] = 0, with P = (XᵀX + l2 · I)⁻¹; (items, items).

    [Steck 2019, Embarrassingly Shallow Autoencoders for Sparse Data, Eq. 8]. In float64: the largest
    eigenvalue of XᵀX can exceed l2 by more than float32 resolves.
    """
    if not (l2 > 0 and math.isfinite(l2)):
        raise ConfigError(f"l2={l2:g} must be positive and finite: give a regularisation such as 500")
    regularised = torch.from_numpy(counts.astype(np.float64))
    regularised.diagonal().add_(l2)
    factor, failed = torch.linalg.cholesky_ex(regularised)
    if failed:
        raise ConfigError(f"l2={l2:g} is too small for these counts to be inverted: give 1 or more")
    del regularised
    inverse = torch.cholesky_inverse(factor)
    del factor
    weights = (inverse / -inverse.diagonal()).to(torch.float32)
    weights.fill_diagonal_(0)
    return weights.numpy()


def item_knn_weights(
    log: Log,
    neighbours: int,
    shrink: float = 0.0,
    similarity: Similarity = "cosine",
    popularity_power: float = 0.5,
) -> PrunedWeights:
    """For each target j, its `neighbours` most similar sources i; ties go to the lower id.

    With n_i the users of item i, n_ij the users of both, p the popularity power:
    cosine   n_ij / (n_i^(1−p) · n_j^p + shrink): p = ½ is the cosine, a smaller p favours popular targets;
    jaccard  n_ij / (n_i + n_j − n_ij + shrink).
    """
    _check_knn(neighbours, shrink, similarity, popularity_power)
    n = np.bincount(distinct(log.sequences()).values, minlength=log.n_items).astype(np.float64)
    as_source, as_target = n ** (1 - popularity_power), n**popularity_power
    kept_sources, kept_targets, kept_values = [], [], []
    for first, block in _co_occurrence(log):
        block = block.coalesce()
        targets, sources = (index.numpy() for index in block.indices())
        targets = targets + first
        together = block.values().numpy().astype(np.float64)
        if similarity == "cosine":
            similar = together / (as_source[sources] * as_target[targets] + shrink)
        else:
            similar = together / (n[sources] + n[targets] - together + shrink)
        similar[sources == targets] = -1  # below every real similarity
        best = _strongest_of_each(targets, similar, neighbours)
        kept_sources.append(sources[best])
        kept_targets.append(targets[best])
        kept_values.append(similar[best])
    if not kept_values:
        return PrunedWeights(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))
    return _by_source(
        np.concatenate(kept_sources), np.concatenate(kept_targets), np.concatenate(kept_values), log.n_items
    )


def prune(weights: Float32, keep: int) -> PrunedWeights:
    """For each target j, the `keep` sources with the largest |W[i, j]|; zeros are never kept.

    Per target, because then every item with any neighbour stays reachable. Per source, a small keep ranked
    a little better on ML-1M but left items of ML-100k that nothing points to; a keep of 100 made them level.
    """
    if keep < 1:
        raise ConfigError(f"keep={keep} is too small: keep at least 1 neighbour per item")
    n_items = len(weights)
    step = max(1, PAIRS_PER_BLOCK // max(1, n_items))
    sources: list[Int64] = []
    targets: list[Int64] = []
    for first in range(0, n_items, step):
        magnitude = torch.from_numpy(np.abs(weights[:, first : first + step].T))  # (targets, items)
        top = magnitude.topk(min(keep, n_items), dim=1)
        columns = np.arange(first, first + len(magnitude))[:, None]
        nonzero = top.values.numpy() != 0
        sources.append(top.indices.numpy()[nonzero])
        targets.append(np.broadcast_to(columns, nonzero.shape)[nonzero])
    if not n_items:
        return PrunedWeights(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))
    source, target = np.concatenate(sources), np.concatenate(targets)
    return _by_source(source, target, weights[source, target], n_items)


def _seen_bag(histories: Histories, n_items: int) -> BagQuery:
    known = histories.seen.values < n_items
    rows, items = histories.seen.row_of_value()[known], histories.seen.values[known]
    return BagQuery(rows, items, np.ones(len(items), dtype=np.float32), len(histories))


def strongest(weights: PrunedWeights, keep: int) -> PrunedWeights:
    """For each target, the `keep` largest of the weights that are there; nothing is counted again."""
    sources = np.repeat(np.arange(weights.n_items), np.diff(weights.ptr))
    order = np.lexsort((sources, weights.targets))  # target by target, ties to the lower source
    sources, targets, values = sources[order], weights.targets[order].astype(np.int64), weights.values[order]
    kept = _strongest_of_each(targets, values.astype(np.float64), keep)
    return _by_source(sources[kept], targets[kept], values[kept], weights.n_items)


def _co_occurrence(log: Log) -> Iterator[tuple[int, torch.Tensor]]:
    """Rows of XᵀX from the first item on: (first item, sparse (block, items)).

    Never a dense users × items matrix. The cost is Σ over users of (their items)², and blocks are cut by it.
    """
    pairs = distinct(log.sequences())
    users, items = pairs.row_of_value(), pairs.values
    ones = np.ones(len(items), dtype=np.float32)
    matrix = _sparse(users, items, ones, (log.n_users, log.n_items))
    by_item = np.argsort(items, kind="stable")
    item_ptr = np.concatenate([[0], np.cumsum(np.bincount(items, minlength=log.n_items))])  # (items + 1,)
    cost_before = np.concatenate([[0], np.cumsum(pairs.lengths()[users[by_item]])])[item_ptr]  # (items + 1,)
    first = 0
    while first < log.n_items:
        stop = int(np.searchsorted(cost_before, cost_before[first] + PAIRS_PER_BLOCK, side="right")) - 1
        stop = max(first + 1, stop)
        entries = by_item[item_ptr[first] : item_ptr[stop]]
        rows, values = items[entries] - first, ones[: len(entries)]
        block = _sparse(rows, users[entries], values, (stop - first, log.n_users))
        yield first, _product(block, matrix)
        first = stop


def _strongest_of_each(group: Int64, value: Float64, count: int) -> Bool:
    """Which values are among the `count` largest of their group and not negative; ties go to the first.

    The groups stand one after the other.
    """
    chosen = value >= 0
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(group)) + 1, [len(group)]])
    for place in np.flatnonzero(np.diff(bounds) > count):
        members = slice(bounds[place], bounds[place + 1])
        values = value[members]
        last_in = np.partition(values, -count)[-count]
        above, level = values > last_in, values == last_in
        chosen[members] &= above | (level & (np.cumsum(level) <= count - above.sum()))
    return chosen


def _by_source(sources: Int64, targets: Int64, values: np.ndarray, n_items: int) -> PrunedWeights:
    order = np.lexsort((targets, sources))
    ptr = np.concatenate([[0], np.cumsum(np.bincount(sources, minlength=n_items))])
    return PrunedWeights(
        ptr.astype(np.int64), targets[order].astype(np.int32), values[order].astype(np.float32)
    )


def _rows_of(weights: PrunedWeights, sources: np.ndarray) -> torch.Tensor:
    """Sparse (sources, items): only the weights these sources have."""
    lengths = np.diff(weights.ptr)[sources]
    ends = np.cumsum(lengths)
    rows = np.repeat(np.arange(len(sources)), lengths)
    places = np.arange(len(rows)) + np.repeat(weights.ptr[:-1][sources] - (ends - lengths), lengths)
    return _sparse(rows, weights.targets[places], weights.values[places], (len(sources), weights.n_items))


def _sparse(rows: Any, columns: Any, values: Float32, shape: tuple[int, int]) -> torch.Tensor:
    indices = np.stack([np.asarray(rows, dtype=np.int64), np.asarray(columns, dtype=np.int64)])
    return torch.sparse_coo_tensor(
        torch.from_numpy(indices), torch.from_numpy(values), size=shape, check_invariants=False
    )


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left @ right; sparse where both are."""
    _take_beta_warning()
    product: torch.Tensor = torch.sparse.mm(left, right)
    return product


@cache
def _take_beta_warning() -> None:
    """torch warns once per process that CSR, which its sparse product uses inside, is in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        empty = torch.zeros(1, 1).to_sparse()
        torch.sparse.mm(empty, empty)


def _check_knn(neighbours: int, shrink: float, similarity: str, popularity_power: float) -> None:
    if neighbours < 1:
        raise ConfigError(f"neighbours={neighbours} is too small: keep at least 1 neighbour per item")
    if not (shrink >= 0 and math.isfinite(shrink)):
        raise ConfigError(f"shrink={shrink:g} must be 0 or more and finite: 0 means no shrinkage")
    if similarity not in ("cosine", "jaccard"):
        raise ConfigError(f"similarity={similarity!r} is unknown: choose cosine or jaccard")
    if not 0 <= popularity_power <= 1:
        raise ConfigError(
            f"popularity_power={popularity_power:g} is out of range: give 0 to 1 (0.5 is the cosine)"
        )
