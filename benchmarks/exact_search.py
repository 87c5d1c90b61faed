"""Exact retrieval with a linear head against one bare matrix product plus top-k, interleaved in one run.

Ours answers whole requests: blocks of users, prior added, each user's seen items left out, ties by item id.
`python benchmarks/exact_search.py` prints JSON; must show: ratio at most 1.3.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from rootbeam.core.types import Histories, Ragged
from rootbeam.learn.scorers import VectorQuery, linear_score
from rootbeam.search.exact import ExactRetriever


@dataclass(frozen=True)
class Lookup:
    """A linear head whose user vectors are given; the user is the one item of `last`."""

    users: torch.Tensor  # (users, dimension)
    items: torch.Tensor  # (items, dimension)

    @property
    def n_items(self) -> int:
        return len(self.items)

    def encode(self, histories: Histories) -> VectorQuery:
        return VectorQuery(self.users[torch.from_numpy(histories.last[:, -1].astype(np.int64))])

    def score(self, query: VectorQuery, level: int, nodes: torch.Tensor | None) -> torch.Tensor:
        return linear_score(query.vectors, self.items, nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=6040)
    parser.add_argument("--items", type=int, default=3706)
    parser.add_argument("--dimension", type=int, default=64)
    parser.add_argument("--seen", type=int, default=165, help="seen items of each user")
    parser.add_argument("-k", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    generator = torch.Generator().manual_seed(0)
    scorer = Lookup(
        torch.randn(given.users, given.dimension, generator=generator),
        torch.randn(given.items, given.dimension, generator=generator),
    )
    rng = np.random.default_rng(0)
    seen = Ragged.from_rows(
        [np.sort(rng.choice(given.items, given.seen, replace=False)) for _ in range(given.users)]
    )
    users = np.arange(given.users)
    histories = Histories(users[:, None].astype(np.int32), seen, users, users)
    prior = rng.normal(size=given.items).astype(np.float32)
    retriever = ExactRetriever(scorer)

    def bare() -> None:
        with torch.inference_mode():
            (scorer.users @ scorer.items.T).topk(given.k, dim=1)

    def ours() -> None:
        retriever.retrieve(histories, given.k, offset=prior, exclude=seen)

    bare_ms, ours_ms = interleaved(bare, ours, given.repetitions)
    print(
        json.dumps(
            {
                "users": given.users,
                "items": given.items,
                "bare_ms": round(bare_ms, 2),
                "exact_retriever_ms": round(ours_ms, 2),
                "ratio": round(ours_ms / bare_ms, 3),
                "threads": given.threads,
            }
        )
    )


def interleaved(
    first: Callable[[], None], second: Callable[[], None], repetitions: int
) -> tuple[float, float]:
    """Medians in milliseconds, after one warm-up each."""
    times: tuple[list[float], list[float]] = ([], [])
    for repetition in range(repetitions + 1):
        for work, kept in zip((first, second), times, strict=True):
            start = time.perf_counter()
            work()
            if repetition:
                kept.append(1000.0 * (time.perf_counter() - start))
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    main()
