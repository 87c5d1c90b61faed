"""The tree over items: immutable arrays, left-packed, every leaf at one depth.

Levels count from the root: level 0 is the root and level `height` the leaves, whose nodes are the positions
0 … N − 1 from left to right. `ITEMS` (−1), the last level of any scorer, is that same bottom level named by
item instead of by position: a search asks a scorer for inner nodes at levels 1 … height − 1 by node index,
and for leaves at `ITEMS` by item id. A tree has no level −1: `item_of_leaf` and `leaf_of_item` lead across.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rootbeam.core.errors import BundleError, ConfigError, InputError
from rootbeam.core.types import PADDING, Float32, Int32, Int64

LEAST_BRANCH, MOST_BRANCH = 2, 64
Numbers = npt.NDArray[np.integer[Any]]


def level_sizes(n_items: int, branch: int) -> list[int]:
    """Nodes of every level, root first: ⌈N / Bʰ⌉ stand h levels above the leaves, up to the single root."""
    if n_items < 1:
        raise ConfigError(f"a tree of {n_items} items was asked for; it needs at least 1")
    if not LEAST_BRANCH <= branch <= MOST_BRANCH:
        raise ConfigError(f"branch is {branch}; it must be from {LEAST_BRANCH} to {MOST_BRANCH}")
    sizes = [n_items]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // branch))
    return sizes[::-1]


@dataclass(frozen=True)
class LevelSummary:
    """One level in numbers."""

    level: int
    nodes: int
    fewest_leaves: int  # below a node; only the last node of a level has fewer than the others
    most_leaves: int
    purity: float | None  # share of leaves in their node's most frequent category; None without categories

    @property
    def balance(self) -> float:
        """fewest / most leaves below a node of this level; 1 is even."""
        return self.fewest_leaves / self.most_leaves


@dataclass(frozen=True, eq=False)
class Tree:
    """N items in a B-ary tree; item_of_leaf (N,) is a permutation of the items, leaves from left to right.

    Node i of a level has the children B·i … B·i + B − 1 of the next level, clipped to those that exist.
    Never changed: an update is a new tree. Node numbers are checked, and −1 (padding) stays −1.
    """

    item_of_leaf: Numbers  # (N,) int32, whatever integers were given
    branch: int
    leaf_of_item: Int32 = field(init=False, repr=False)  # (N,)
    sizes: tuple[int, ...] = field(init=False, repr=False)  # nodes of every level, root first

    def __post_init__(self) -> None:
        given = np.asarray(self.item_of_leaf)
        if given.ndim != 1 or not np.issubdtype(given.dtype, np.integer):
            raise InputError(
                f"item_of_leaf has shape {given.shape} and type {given.dtype}; give a vector of integers"
            )
        sizes = level_sizes(len(given), self.branch)
        check_permutation(given)
        item_of_leaf = given.astype(np.int32)  # a copy: what the caller does to its own changes nothing here
        leaf_of_item = np.empty_like(item_of_leaf)
        leaf_of_item[item_of_leaf] = np.arange(len(item_of_leaf), dtype=np.int32)
        for array in (item_of_leaf, leaf_of_item):
            array.flags.writeable = False
        object.__setattr__(self, "item_of_leaf", item_of_leaf)
        object.__setattr__(self, "leaf_of_item", leaf_of_item)
        object.__setattr__(self, "sizes", tuple(sizes))

    @property
    def n_items(self) -> int:
        return len(self.item_of_leaf)

    @property
    def height(self) -> int:
        """Steps from the root to a leaf: the least H with Bᴴ ≥ N."""
        return len(self.sizes) - 1

    def nodes(self, level: int) -> int:
        """How many nodes the level has."""
        self.span(level)
        return self.sizes[level]

    def span(self, level: int) -> int:
        """Leaves below a node of the level, where they are all there: B^(height − level)."""
        if not 0 <= level <= self.height:
            raise ConfigError(
                f"level {level} was asked of a tree of height {self.height}; "
                f"levels are 0 (the root) to {self.height} (the leaves)"
            )
        return int(self.branch ** (self.height - level))

    def ancestors(self, items: Numbers, level: int) -> Int32:
        """items, any shape -> the nodes of the level above them; leaf positions at level `height`."""
        span = self.span(level)
        items = _in_range(items, self.n_items, "item")
        return np.where(items >= 0, self.leaf_of_item[items] // span, PADDING).astype(np.int32)

    def children(self, level: int, nodes: Numbers) -> Int32:
        """nodes (...) of the level -> (..., branch) nodes of the next; −1 where there is none."""
        if level == self.height:
            raise ConfigError(f"children of level {level} were asked for; it is the leaves, which have none")
        nodes = _in_range(nodes, self.nodes(level), f"level {level}'s node")
        below = nodes[..., None].astype(np.int64) * self.branch + np.arange(self.branch)
        real = (nodes[..., None] >= 0) & (below < self.sizes[level + 1])
        return np.where(real, below, PADDING).astype(np.int32)

    def leaves_below(self, level: int, nodes: Numbers) -> tuple[Int64, Int64]:
        """nodes (...) of the level -> start, stop (...): leaf positions start … stop − 1 are below."""
        span = self.span(level)
        nodes = _in_range(nodes, self.nodes(level), f"level {level}'s node").astype(np.int64)
        start = np.where(nodes >= 0, nodes * span, 0)
        return start, np.where(nodes >= 0, np.minimum(start + span, self.n_items), 0)

    def node_offsets(self, offset: Float32) -> list[Float32]:
        """offset (items,) -> by level, root first, (nodes,): the largest offset of the leaves below.

        −∞ exactly where every leaf below has −∞. The last entry is by leaf, not by item.
        """
        return self._upwards(self._by_leaf(offset, "offset").astype(np.float32), np.maximum)

    def node_counts(self, chosen: npt.NDArray[np.bool_]) -> list[Int64]:
        """chosen (items,) -> by level, root first, (nodes,): how many of the leaves below are chosen."""
        return self._upwards(self._by_leaf(chosen, "chosen").astype(np.int64), np.add)

    def summary(self, codes: Numbers | None = None) -> list[LevelSummary]:
        """Every level in numbers, root first.

        codes (items,) is the category of every item; items with a negative one are left out of the purity.
        """
        by_leaf = None if codes is None else self._by_leaf(codes, "codes")
        levels = []
        for level, nodes in enumerate(self.sizes):
            start, stop = self.leaves_below(level, np.arange(nodes))
            purity = None if by_leaf is None else _purity(by_leaf, self.span(level))
            leaves = stop - start
            levels.append(LevelSummary(level, nodes, int(leaves.min()), int(leaves.max()), purity))
        return levels

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` makes the same tree of."""
        return {"item_of_leaf": self.item_of_leaf, "branch": np.array([self.branch], dtype=np.int32)}

    @staticmethod
    def from_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> Tree:
        missing = [name for name in ("item_of_leaf", "branch") if name not in arrays]
        if missing:
            raise BundleError(f"the arrays of a tree lack {' and '.join(missing)}; make the file again")
        branch = arrays["branch"]
        if branch.shape != (1,) or not np.issubdtype(branch.dtype, np.integer):
            raise BundleError(
                f"the branch of a tree has shape {branch.shape}, not one integer; make it again"
            )
        return Tree(arrays["item_of_leaf"], int(branch[0]))

    def _by_leaf(self, values: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
        """(items,) -> (leaves,)"""
        values = np.asarray(values)
        if values.shape != (self.n_items,):
            raise InputError(
                f"{name} has shape {values.shape}; it needs one value for each of {self.n_items}"
            )
        return values[self.item_of_leaf]

    def _upwards(self, leaves: npt.NDArray[Any], merge: np.ufunc) -> list[npt.NDArray[Any]]:
        """Level by level, root first, what `merge` makes of a node's children."""
        levels = [leaves]
        for _ in range(self.height):
            first_child = np.arange(0, len(levels[-1]), self.branch)
            levels.append(merge.reduceat(levels[-1], first_child))
        return levels[::-1]


def check_permutation(items: Numbers) -> None:
    """Refuses what does not hold each of 0 … N − 1 once, and says which."""
    n = len(items)
    strange = items[(items < 0) | (items >= n)]
    if len(strange):
        raise InputError(f"item_of_leaf holds {strange[0]}; {n} leaves hold each of 0 to {n - 1} once")
    counts = np.bincount(items, minlength=n)
    if (counts != 1).any():
        twice, never = int(np.argmax(counts > 1)), int(np.argmin(counts))
        raise InputError(
            f"item_of_leaf holds {twice} {counts[twice]} times and {never} never; each must be once"
        )


def _in_range(numbers: Numbers, size: int, what: str) -> Numbers:
    numbers = np.asarray(numbers)
    if not np.issubdtype(numbers.dtype, np.integer) and numbers.size:
        raise InputError(f"{what} numbers are {numbers.dtype}; give integers")
    numbers = numbers.astype(np.int64)
    if numbers.size and not (numbers.min() >= PADDING and numbers.max() < size):
        strange = numbers[(numbers < PADDING) | (numbers >= size)].flat[0]
        raise InputError(f"{what} {strange} was asked for; there are {size}, from 0")
    return numbers


def _purity(by_leaf: Numbers, span: int) -> float | None:
    """Leaves in the most frequent category of their node (`span` leaves each) ÷ leaves with a category."""
    leaf = np.flatnonzero(by_leaf >= 0)
    if not len(leaf):
        return None
    categories, code = np.unique(by_leaf[leaf], return_inverse=True)
    pairs, counts = np.unique(leaf // span * len(categories) + code, return_counts=True)
    node = pairs // len(categories)
    first_of_node = np.flatnonzero(np.concatenate([[True], node[1:] != node[:-1]]))
    return float(np.maximum.reduceat(counts, first_of_node).sum() / len(leaf))
