"""One training step of in-batch importance resampling against SSL-Pop, side by side.

    python benchmarks/bir_step.py [--threads 2] [--batch 2048] [--pairs 15]

A step is: gather the rows of two embedding tables (20,000 users and items, d = 64), batch × batch scores,
loss, backward, Adam on the gathered rows. Only the loss differs. The steps run interleaved, so that what
else the machine does hits all alike; a ratio is the median over the rounds of the ratio within a round.
Prints {"ssl_pop_ms", "bir_systematic_ms", "bir_independent_ms", "ratios"}, medians in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from rootbeam.learn.losses import bir_loss, in_batch_softmax_loss
from rootbeam.learn.samplers import log_popularity, popularity_items

USERS, ITEMS, DIMENSION, LEARNING_RATE = 20_000, 20_000, 64, 1e-3
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


class Table:
    """An embedding table with Adam's two moments, all updated in the gathered rows only."""

    def __init__(self, rows: int, generator: torch.Generator) -> None:
        self.values = torch.randn(rows, DIMENSION, generator=generator) * 0.3
        self.first = torch.zeros(rows, DIMENSION)
        self.second = torch.zeros(rows, DIMENSION)

    def gather(self, rows: Tensor) -> Tensor:
        return self.values[rows].requires_grad_()

    def update(self, rows: Tensor, gathered: Tensor) -> None:
        gradient = gathered.grad
        assert gradient is not None
        first = self.first[rows].lerp_(gradient, 0.1)
        second = self.second[rows].lerp_(gradient.square(), 0.001)
        self.first[rows], self.second[rows] = first, second
        self.values[rows] = gathered.detach() - LEARNING_RATE * first / (second.sqrt() + 1e-8)


def step_ms(users: Table, items: Table, batch: tuple[Tensor, Tensor], log_p: Tensor, loss: Loss) -> float:
    start = time.perf_counter()
    user_rows, item_rows = batch
    query, key = users.gather(user_rows), items.gather(item_rows)  # (batch, d)
    loss(query @ key.T, item_rows, log_p[item_rows]).backward()
    users.update(user_rows, query)
    items.update(item_rows, key)
    return (time.perf_counter() - start) * 1e3


def measure(batch_size: int, pairs: int, independent_rounds: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    log_p = log_popularity(1e5 / torch.arange(1, ITEMS + 1))  # Zipf
    users, items = Table(USERS, generator), Table(ITEMS, generator)
    losses: dict[str, Loss] = {
        "ssl_pop": in_batch_softmax_loss,
        "bir_systematic": lambda s, i, p: bir_loss(s, i, p, generator, draws="systematic"),
        "bir_independent": lambda s, i, p: bir_loss(s, i, p, generator, draws="independent"),
    }
    times: dict[str, list[float]] = {name: [] for name in losses}
    warm_up = 2
    for round_ in range(warm_up + pairs):
        users_drawn = torch.randint(USERS, (batch_size,), generator=generator)
        batch = users_drawn, popularity_items((batch_size,), log_p, generator)[0]
        for name, loss in losses.items():
            if name == "bir_independent" and round_ >= warm_up + independent_rounds:
                continue
            elapsed_ms = step_ms(users, items, batch, log_p, loss)
            if round_ >= warm_up:
                times[name].append(elapsed_ms)
    base = times.pop("ssl_pop")
    # strict=False: the slow independent draws run in the first rounds only
    ratios = {
        name: round(statistics.median(t / b for t, b in zip(series, base, strict=False)), 2)
        for name, series in times.items()
    }
    medians = {f"{name}_ms": round(statistics.median(series), 2) for name, series in times.items()}
    return {"ssl_pop_ms": round(statistics.median(base), 2), **medians, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--independent-rounds", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(json.dumps(measure(arguments.batch, arguments.pairs, arguments.independent_rounds)))


if __name__ == "__main__":
    main()
