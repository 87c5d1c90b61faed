"""First trees over items: by category, by k-means on vectors or on interactions, by chance.

Each is a function of its arguments and the seed. Learning moves items afterwards; a good start saves rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rootbeam.core.errors import ConfigError, InputError
from rootbeam.core.tree import Numbers, Tree
from rootbeam.core.types import Float32, Float64, Int64, Log
from rootbeam.index.balanced import ITERATIONS, balanced_order

SPARE_DIRECTIONS = 8  # of the subspace iteration: the last ones converge slowly


def random_tree(n_items: int, branch: int, seed: int) -> Tree:
    """Items in an order drawn by the seed."""
    return Tree(np.random.default_rng(seed).permutation(max(n_items, 0)), branch)


def category_tree(codes: Numbers, branch: int, seed: int) -> Tree:
    """Items of one category side by side; categories in an order drawn by the seed; items by id.

    codes (items,), or (items, levels) for paths such as department, aisle, shelf, coarsest first: categories
    with the same parent are side by side too. Any integers do; those without a category may share one.
    [dtr, §6.1: shuffle the categories, sort the items by category, halve recursively]
    """
    codes = np.asarray(codes)
    if codes.ndim not in (1, 2) or not np.issubdtype(codes.dtype, np.integer):
        raise InputError(
            f"codes are {codes.dtype} of shape {codes.shape}; give integers (items,) or (items, levels)"
        )
    paths = codes if codes.ndim == 2 else codes[:, None]
    rng = np.random.default_rng(seed)
    keys = []
    for level in range(paths.shape[1]):
        categories, code = np.unique(paths[:, level], return_inverse=True)
        keys.append(rng.permutation(len(categories))[code])
    # lexsort sorts by its last key first, and leaves equal rows in the order of items.
    return Tree(np.lexsort((np.arange(len(paths)), *keys[::-1])), branch)


def kmeans_tree(vectors: Float32, branch: int, seed: int, iterations: int = ITERATIONS) -> Tree:
    """Balanced k-means from the root down on vectors (items, d), such as stage-1 embeddings."""
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise InputError(f"vectors have shape {vectors.shape}; give (items, dimension), one row an item")
    strange = ~np.isfinite(vectors).all(axis=1)
    if strange.any():
        raise InputError(f"the vector of item {int(np.argmax(strange))} is not finite; give finite numbers")
    return Tree(balanced_order(vectors, branch, seed, iterations), branch)


def interaction_tree(log: Log, branch: int, seed: int, dimension: int = 64) -> Tree:
    """Balanced k-means on who touched an item: items with the same users come together."""
    return kmeans_tree(interaction_vectors(log, dimension, seed), branch, seed)


def interaction_vectors(log: Log, dimension: int, seed: int, iterations: int = 4) -> Float32:
    """(items, d): the normalised interaction columns of the items in d directions that hold most of them.

    X (users, items) is 1 where the user touched the item; X̂ is X with columns of length 1 (zero where nobody
    did). By subspace iteration P ← orth(X̂ X̂ᵀ P), from a random start with a few directions to spare,
    P (users, d + spare) spans the leading left singular vectors of X̂; what is given is X̂ᵀ P, turned so that
    its d longest directions are kept. Distances of rows are those of the columns within that space, and
    d = min(users, items) loses nothing.
    """
    if dimension < 1:
        raise ConfigError(f"dimension is {dimension}; it must be at least 1")
    if not log.n_events:
        raise InputError("a log without events says nothing of its items; use random_tree")
    most = min(log.n_users, log.n_items)
    dimension, directions = min(dimension, most), min(dimension + SPARE_DIRECTIONS, most)
    pairs = np.unique(log.users() * log.n_items + log.items)
    users, items = pairs // log.n_items, pairs % log.n_items
    values = 1.0 / np.sqrt(np.bincount(items, minlength=log.n_items)[items])
    by_item = np.argsort(items, kind="stable")
    to_users = _Rows.of(users, items, values, log.n_users)  # X̂
    to_items = _Rows.of(items[by_item], users[by_item], values[by_item], log.n_items)  # X̂ᵀ
    generator = torch.Generator().manual_seed(seed)
    basis = to_users.times(torch.randn(log.n_items, directions, generator=generator))
    for _ in range(iterations):
        basis = torch.linalg.qr(basis)[0]
        basis = to_users.times(to_items.times(basis))
    vectors = to_items.times(torch.linalg.qr(basis)[0])  # (items, directions)
    axes = torch.linalg.eigh(vectors.T @ vectors)[1].flip(1)  # the longest first
    found: Float32 = (vectors @ axes[:, :dimension]).numpy()
    return found


@dataclass(frozen=True)
class _Rows:
    """A sparse matrix by rows; `embedding_bag` sums weighted rows without a copy of them."""

    columns: Tensor  # (entries,)
    ptr: Tensor  # (rows + 1,)
    values: Tensor  # (entries,)

    @staticmethod
    def of(rows: Int64, columns: Int64, values: Float64, n_rows: int) -> _Rows:
        """rows ascending"""
        ptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_rows))])
        return _Rows(*(torch.from_numpy(array) for array in (columns, ptr, values.astype(np.float32))))

    def times(self, dense: Tensor) -> Tensor:
        """(columns, d) -> (rows, d)"""
        return torch.nn.functional.embedding_bag(
            self.columns,
            dense,
            self.ptr,
            mode="sum",
            per_sample_weights=self.values,
            include_last_offset=True,
        )
