"""Matrix factorisation of many runs at once: tables (runs, users, d), batched products, one Adam per run.

The runs share the objective, the batch size and the number of epochs, and differ in seed, learning rate and
weight decay. Numbers are those of `rootbeam.learn.embed.fit_embeddings` run by run, to rounding. On a GPU
a step is captured once as a CUDA graph and replayed, since small batches are bound by launching kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rootbeam.core.types import Log
from rootbeam.learn.embed import EmbedTraining, Factors, MatrixFactorisation, epoch_batches, item_counts
from rootbeam.learn.objectives import Objective, Step, take_rows
from rootbeam.learn.samplers import log_popularity


@dataclass(frozen=True)
class Run:
    """What one run has of its own."""

    log: Log
    seed: int
    learning_rate: float
    weight_decay: float


@dataclass
class Fitted:
    """The best factors of a run so far (the last, without validation)."""

    factors: Factors | None = None
    value: float = -math.inf
    epoch: int = 0
    losses: list[float] = field(default_factory=list)  # one an epoch
    values: list[float] = field(default_factory=list)  # one a validation


def fit_stacked(
    runs: Sequence[Run],
    objective: Callable[[], Objective],
    training: EmbedTraining,
    *,
    device: str,
    side_by_side: bool,
    validate: Callable[[int, Factors], float] | None = None,
) -> list[Fitted]:
    """`side_by_side`: the objective takes leading dimensions; else it is called for one run after another."""
    job = _Job(runs, objective, training, torch.device(device), side_by_side)
    fitted = [Fitted() for _ in runs]
    for epoch in range(1, training.epochs + 1):
        losses = job.epoch(epoch)
        for run, loss in zip(fitted, losses, strict=True):
            run.losses.append(loss)
        last = epoch == training.epochs
        if validate is None and last:
            for number, run in enumerate(fitted):
                run.factors, run.epoch = job.factors(number), epoch
        if validate is not None and (epoch % training.validate_every == 0 or last):
            for number, run in enumerate(fitted):
                value = validate(number, job.factors(number))
                run.values.append(value)
                if value > run.value:
                    copy = Factors(
                        *(t.clone() for t in (job.factors(number).users, job.factors(number).items))
                    )
                    run.factors, run.value, run.epoch = copy, value, epoch
    return fitted


class _Job:
    """The tensors of the runs, at fixed addresses, and the step that works on them."""

    def __init__(
        self,
        runs: Sequence[Run],
        objective: Callable[[], Objective],
        training: EmbedTraining,
        device: torch.device,
        side_by_side: bool,
    ) -> None:
        self.runs, self.training, self.device = runs, training, device
        self.objectives = [objective() for _ in runs[: 1 if side_by_side else None]]
        self.side_by_side = side_by_side
        encoder, settings = MatrixFactorisation(), (training.dimension, training.init_scale)
        starts = [encoder.start(run.log, *settings, run.seed) for run in runs]
        self.users, self.items = (
            torch.stack([start[name] for start in starts]).to(device).requires_grad_()
            for name in ("users", "items")
        )  # (runs, users, d), (runs, items, d)
        counts = [log_popularity(torch.from_numpy(item_counts(run.log))) for run in runs]
        self.log_p = torch.stack(counts).to(device)  # (runs, items)
        self.generators = [torch.Generator(device).manual_seed(run.seed) for run in runs]
        self.states: list[Any] = [None] * len(runs)
        self.events = runs[0].log.n_events
        self.batch = min(training.batch, self.events)
        sides = ([run.log.users() for run in runs], [run.log.items for run in runs])
        self.pairs = [torch.from_numpy(np.stack(side).astype(np.int64)).to(device) for side in sides]
        self.rows = [pairs.clone() for pairs in self.pairs]  # (runs, events), in the epoch's order
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.columns = torch.arange(self.batch, device=device)
        self.loss = torch.zeros(len(runs), device=device)
        self.steps = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        on_gpu = device.type == "cuda"
        self.rates = [torch.tensor(run.learning_rate, device=device) for run in runs]
        self.views = [(self.users.detach()[r], self.items.detach()[r]) for r in range(len(runs))]
        groups = [
            {
                "params": list(views),
                "lr": rate if on_gpu else run.learning_rate,
                "weight_decay": run.weight_decay,
            }
            for views, rate, run in zip(self.views, self.rates, runs, strict=True)
        ]
        self.optimizer = torch.optim.Adam(groups, fused=True, capturable=on_gpu)

    def factors(self, run: int) -> Factors:
        return Factors(*self.views[run])

    def epoch(self, number: int) -> list[float]:
        """One pass over the events; the mean loss of every run."""
        steps = self._shuffle(number)
        self.position.zero_()
        self.loss.zero_()
        for _ in range(steps):
            self.steps += 1
            if self.graph is not None:
                self.graph.replay()
                continue
            self._step()
            if self.device.type == "cuda" and self.side_by_side and self.steps == 3:
                self._capture()
        if number % self.training.decay_every == 0:
            self._decay()
        return (self.loss / steps).tolist()

    def _shuffle(self, epoch: int) -> int:
        """Puts each run's pairs in the order of the epoch; the number of batches."""
        orders: dict[int, Tensor] = {}
        for number, run in enumerate(self.runs):
            if run.seed not in orders:
                order = np.concatenate(epoch_batches(self.events, self.batch, run.seed, epoch))
                orders[run.seed] = torch.from_numpy(order.astype(np.int32)).to(self.device)
            chosen = orders[run.seed]
            for target, pairs in zip(self.rows, self.pairs, strict=True):
                target[number, : len(chosen)] = pairs[number].index_select(0, chosen)
        batches: int = self.events // self.batch
        return batches

    def _step(self) -> None:
        at = self.position + self.columns  # (batch,)
        users, items = (rows.index_select(1, at) for rows in self.rows)  # (runs, batch)
        if self.side_by_side:
            vectors = take_rows(self.users, users)
            step = Step(vectors, items, self.items, self.log_p, self.generators[0], self.steps)
            each = self.objectives[0](step, None)[0].mean(dim=-1)  # (runs,)
        else:
            each = torch.stack([self._single(r, users[r], items[r]) for r in range(len(self.runs))])
        gradients = torch.autograd.grad(each.sum(), (self.users, self.items))
        for number, views in enumerate(self.views):
            for view, gradient in zip(views, gradients, strict=True):
                view.grad = gradient[number]
        self.optimizer.step()
        self.loss += each.detach()
        self.position += self.batch

    def _single(self, run: int, users: Tensor, items: Tensor) -> Tensor:
        vectors = take_rows(self.users[run], users)
        step = Step(vectors, items, self.items[run], self.log_p[run], self.generators[run], self.steps)
        each, self.states[run] = self.objectives[run](step, self.states[run])
        mean: Tensor = each.mean()
        return mean

    def _capture(self) -> None:
        """Records one step; what a capture records it does not run."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generators[0])
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            self._step()
        self.graph = graph

    def _decay(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            rate.mul_(self.training.decay)
            if not isinstance(group["lr"], Tensor):
                group["lr"] *= self.training.decay
