"""Balanced k-means, level by level: every node of a left-packed tree gets exactly the leaves it has room for.

All nodes of a level but the last have the same size, so a level is split in one batch of tensors.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rootbeam.core.tree import level_sizes
from rootbeam.core.types import Bool, Float32, Int64

ITERATIONS = 10


def balanced_order(vectors: Float32, branch: int, seed: int, iterations: int = ITERATIONS) -> Int64:
    """vectors (items, d) -> (items,) the items from the leftmost leaf to the rightmost.

    A node's items are split among its children by k-means under their capacities. The order of the leaves of
    one parent means nothing to a search: it is by item.
    """
    n = len(vectors)
    height = len(level_sizes(n, branch)) - 1
    centred = vectors.astype(np.float32) - vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    points = torch.from_numpy(centred)
    order = np.arange(n)
    for level in range(height - 1):
        span = branch ** (height - level)  # leaves below a full node of this level
        child = span // branch
        full = n // span * span
        rng = np.random.default_rng([seed, level])
        for start, stop, width in ((0, full, span), (full, n, n - full)):
            if width > child and stop > start:
                members = order[start:stop].reshape(-1, width)
                capacities = np.diff(np.append(np.arange(0, width, child), width))
                order[start:stop] = split(points, members, capacities, rng, iterations).reshape(-1)
    return order


def split(
    points: Tensor, members: Int64, capacities: Int64, rng: np.random.Generator, iterations: int
) -> Int64:
    """members (nodes, size) rows of points (items, d) -> the same, each node's sorted by child, then item.

    capacities (children,) of every node, descending, add up to size.
    """
    vectors = points[torch.from_numpy(members)]  # (nodes, size, d)
    room = torch.from_numpy(capacities)
    centres = starting_centres(vectors, len(capacities), rng)  # (nodes, children, d)
    child = np.full(members.shape, -1)
    for _ in range(iterations):
        before, child = child, assign(squared_distances(vectors, centres).numpy(), capacities)
        if np.array_equal(before, child):
            break
        chosen = torch.nn.functional.one_hot(torch.from_numpy(child), len(capacities)).to(vectors.dtype)
        centres = chosen.transpose(1, 2) @ vectors / room[:, None]
    by_child = np.lexsort((members, child), axis=1)
    return np.take_along_axis(members, by_child, axis=1)


def squared_distances(vectors: Tensor, centres: Tensor) -> Tensor:
    """vectors (nodes, size, d), centres (nodes, children, d) -> |v − c|² (nodes, size, children)"""
    norms = vectors.square().sum(2)[:, :, None] + centres.square().sum(2)[:, None]
    return torch.baddbmm(norms, vectors, centres.transpose(1, 2), alpha=-2.0).clamp_min_(0.0)


def starting_centres(vectors: Tensor, children: int, rng: np.random.Generator) -> Tensor:
    """vectors (nodes, size, d) -> (nodes, children, d): k-means++, the most crowded first.

    Each next centre is a point drawn in proportion to its squared distance from the nearest one so far.
    """
    nodes, size, _ = vectors.shape
    row = torch.arange(nodes)
    pick = torch.from_numpy(rng.integers(size, size=nodes))
    centres = [vectors[row, pick]]
    nearest = torch.full((nodes, size), torch.inf)
    while len(centres) < children:
        distance = squared_distances(vectors, centres[-1][:, None])[:, :, 0]
        nearest = torch.minimum(nearest, distance)
        gumbel = torch.from_numpy(rng.gumbel(size=(nodes, size)).astype(np.float32))
        pick = (nearest.log() + gumbel).argmax(1)
        centres.append(vectors[row, pick])
    found = torch.stack(centres, 1)
    # The last child of the last node is the smallest: it goes to the centre that the fewest points are near.
    near = squared_distances(vectors, found).argmin(2)
    crowd = torch.nn.functional.one_hot(near, children).sum(1)
    crowded = crowd.argsort(dim=1, descending=True, stable=True)
    return found.gather(1, crowded[:, :, None].expand_as(found))


def assign(cost: Float32, capacities: Int64) -> Int64:
    """cost (nodes, size, children), 2 children or more -> child (nodes, size), capacities[c] points for c.

    In rounds: a point asks for the cheapest child that has room. A child that more ask for than it has room
    for takes those that would lose most by their second choice, and is full. Optimal for two children.
    """
    nodes, size, children = cost.shape
    flat = cost.reshape(-1, children)
    child = np.full(nodes * size, -1)
    room = np.tile(capacities, (nodes, 1))  # (nodes, children)
    waiting = np.arange(nodes * size)
    while len(waiting):
        node = waiting // size
        open_cost = np.where(room[node] > 0, flat[waiting], np.inf)
        wanted = open_cost.argmin(1)
        first, second = np.partition(open_cost, 1, axis=1)[:, :2].T
        slot = node * children + wanted
        taken = _taken(slot, second - first, room.reshape(-1))
        child[waiting[taken]] = wanted[taken]
        room -= np.bincount(slot[taken], minlength=room.size).reshape(room.shape)
        waiting = waiting[~taken]
    return child.reshape(nodes, size)


def _taken(slot: Int64, regret: Float32, room: Int64) -> Bool:
    """slot (points,) asked for, room (slots,) -> who gets in: all where there is room, else by regret."""
    asked = np.bincount(slot, minlength=len(room))
    crowded = asked > room
    taken = ~crowded[slot]
    rivals = np.flatnonzero(crowded[slot])
    rivals = rivals[np.lexsort((-regret[rivals], slot[rivals]))]  # equal regrets: the point that comes first
    in_slot = np.where(crowded, asked, 0)
    rank = np.arange(len(rivals)) - (np.cumsum(in_slot) - in_slot)[slot[rivals]]
    taken[rivals] = rank < room[slot[rivals]]
    return taken
