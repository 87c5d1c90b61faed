"""Training of the sequence encoder: one resumable loop.

All randomness of a step (windows, negatives, dropout) is a function of (seed, step). A checkpoint holds
parameters, Adam's moments and the step, and going on from it gives the bits of an uninterrupted run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rootbeam.core.config import SequenceConfig, SequenceTraining
from rootbeam.core.errors import InterruptedTraining
from rootbeam.core.files import Array, read_arrays, write_arrays
from rootbeam.core.types import Log
from rootbeam.learn import losses, samplers
from rootbeam.learn.sequence import SequenceEncoder
from rootbeam.learn.windows import draw, windows_of

Progress = Callable[[str, int, int, str], None]  # (what, done, of, detail)
BETAS = (0.9, 0.98)
FINAL_RATE = 0.05  # the cosine ends here, as a share of the learning rate
NEGATIVE_POWER = 0.5  # negatives are drawn by popularity to this power
CALIBRATION_STEPS = 12


def silent(what: str, done: int, of: int, detail: str) -> None:
    """Progress nobody watches."""


@dataclass(frozen=True)
class Runtime:
    """What surrounds a run: where it computes, where it keeps its state, who watches, who may stop it."""

    device: str = "cpu"
    checkpoint: Path | None = None
    checkpoint_seconds: float = 30.0
    progress: Progress = silent
    should_stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Fit:
    """A fitted encoder: its parameters at the best validation (the last, without one), and the way there."""

    arrays: dict[str, Array]
    steps: int  # made
    best_step: int
    total_steps: int  # of the learning rate's schedule
    best_value: float
    curve: list[dict[str, float]] = field(default_factory=list)  # {step, loss, value} a validation


def fit_sequence(
    log: Log,
    shape: SequenceConfig,
    training: SequenceTraining,
    *,
    seed: int,
    runtime: Runtime,
    what: str,
    validate: Callable[[SequenceEncoder], float] | None = None,
    seconds: float = math.inf,
    schedule: tuple[int, int] | None = None,
) -> Fit:
    """Trains until early stopping, the budget or the last epoch.

    `seconds` is turned into a number of steps once, by timing the first steps, and kept on resume.
    `schedule` (stop, total) fixes the steps instead: a refit repeats what the selection found best.
    """
    windows = windows_of(log, shape.length)
    per_epoch = windows.steps_per_epoch(training.batch)
    encoder = SequenceEncoder(log.n_items, shape, torch.Generator().manual_seed(seed)).to(runtime.device)
    optimizer = torch.optim.AdamW(
        encoder.parameters(), lr=1.0, betas=BETAS, weight_decay=training.weight_decay, fused=True
    )
    log_popularity = _negative_proposal(log, training).to(runtime.device)
    state = _State(total=schedule[1] if schedule else 0, stop=schedule[0] if schedule else 0)
    if runtime.checkpoint is not None and runtime.checkpoint.exists():
        state = _load(runtime.checkpoint, encoder, optimizer)
    if not state.total:
        state.total = max(training.epochs * per_epoch, training.least_steps)
        if math.isfinite(seconds):
            left = seconds - training.validations * _time_validation(encoder, validate)
            step_seconds = _time_steps(windows, shape, training, log_popularity, seed, runtime)
            state.total = max(1, min(int(left / step_seconds), state.total))
        state.stop = state.total
        if runtime.checkpoint is not None:  # the budget is turned into steps once, however early a run ends
            _save(runtime.checkpoint, encoder, optimizer, state)
    every = max(1, min(max(per_epoch, state.total // training.validations), state.total // 8))
    saved_at = time.monotonic()
    while state.step < state.stop and not state.finished:
        rate = _learning_rate(training, state.step, state.total)
        loss = _train_step(encoder, optimizer, windows, training, log_popularity, state.step, seed, rate)
        state.step += 1
        state.loss_sum += loss
        state.loss_count += 1
        if state.step % every == 0 or state.step == state.stop:
            _validate(state, encoder, validate, training.patience)
        if state.step % 10 == 0 or state.step == state.stop:
            runtime.progress(what, state.step, state.stop, state.describe())
        stopping = runtime.should_stop()
        if runtime.checkpoint is not None and (
            stopping or time.monotonic() - saved_at > runtime.checkpoint_seconds
        ):
            _save(runtime.checkpoint, encoder, optimizer, state)
            saved_at = time.monotonic()
        if stopping:
            raise InterruptedTraining(f"stopped at step {state.step} of {state.stop} ({what})")
    if runtime.checkpoint is not None:
        _save(runtime.checkpoint, encoder, optimizer, state)
    arrays = state.best if validate is not None and state.best else encoder_arrays(encoder)
    best_step = state.best_step if validate is not None and state.best else state.step
    return Fit(arrays, state.step, best_step, state.total, state.best_value, state.curve)


def encoder_arrays(encoder: SequenceEncoder) -> dict[str, Array]:
    return {name: p.detach().cpu().numpy().copy() for name, p in encoder.named_parameters()}


def encoder_from_arrays(arrays: dict[str, Array], shape: SequenceConfig) -> SequenceEncoder:
    n_items = len(arrays["items.weight"]) - 1
    encoder = SequenceEncoder(n_items, shape)
    encoder.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in arrays.items()})
    return encoder.eval()


def sequence_loss(
    encoder: SequenceEncoder,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    training: SequenceTraining,
    log_popularity: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Weighted mean over all positions with a target of the softmax loss, full or sampled."""
    real = targets >= 0
    hidden = encoder(inputs)[real]  # (positions, dimension)
    wanted, weight = targets[real], weights[real]
    vectors = encoder.item_vectors()
    if encoder.n_items <= training.full_softmax_items:
        each = torch.nn.functional.cross_entropy(hidden @ vectors.T, wanted, reduction="none")
    else:
        drawn, log_q = samplers.popularity_items((training.negatives,), log_popularity, generator)
        positive = (hidden * vectors[wanted]).sum(1)
        each = losses.sampled_softmax_loss(
            positive, hidden @ vectors[drawn].T, log_q, wanted[:, None] == drawn[None, :], reduce="none"
        )
    return losses.check_finite((each * weight).sum() / weight.sum(), "sequence")


@dataclass
class _State:
    """Where a run stands; everything but parameters and moments."""

    total: int
    stop: int
    step: int = 0
    best_value: float = -math.inf
    best_step: int = 0
    bad: int = 0
    finished: bool = False
    loss_sum: float = 0.0
    loss_count: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Array] = field(default_factory=dict)

    def describe(self) -> str:
        if not self.curve:
            return ""
        last = self.curve[-1]
        value = f", validation {last['value']:.4f} (best {self.best_value:.4f})" if "value" in last else ""
        return f"loss {last['loss']:.3f}{value}"


def _negative_proposal(log: Log, training: SequenceTraining) -> Tensor:
    counts = torch.from_numpy(np.bincount(log.items, minlength=log.n_items))
    return NEGATIVE_POWER * samplers.log_popularity(counts)


def _learning_rate(training: SequenceTraining, step: int, total: int) -> float:
    """Linear warm-up, then a cosine down to FINAL_RATE."""
    warm = min(1.0, (step + 1) / max(1, min(training.warmup_steps, total // 10)))
    cosine = 0.5 * (1.0 + math.cos(math.pi * step / max(1, total)))
    return training.learning_rate * warm * (FINAL_RATE + (1.0 - FINAL_RATE) * cosine)


def _train_step(
    encoder: SequenceEncoder,
    optimizer: torch.optim.Optimizer,
    windows: Any,
    training: SequenceTraining,
    log_popularity: Tensor,
    step: int,
    seed: int,
    rate: float,
) -> float:
    device = log_popularity.device
    batch = draw(windows, training.batch, step, seed)
    inputs = torch.from_numpy(batch.inputs.astype(np.int64)).to(device)
    targets = torch.from_numpy(batch.targets.astype(np.int64)).to(device)
    weights = torch.from_numpy(batch.weights).to(device)
    generator = torch.Generator(device).manual_seed(_mix(seed, 3, step))
    encoder.train()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        _seed_dropout(device, _mix(seed, 4, step))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = sequence_loss(encoder, inputs, targets, weights, training, log_popularity, generator)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach())


def _seed_dropout(device: torch.device, seed: int) -> None:
    """Dropout takes no generator. (torch.manual_seed would also format a stack trace for absent devices.)"""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _mix(seed: int, stream: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, stream, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _time_steps(
    windows: Any,
    shape: SequenceConfig,
    training: SequenceTraining,
    log_popularity: Tensor,
    seed: int,
    runtime: Runtime,
) -> float:
    """Median seconds a step takes, on a throw-away copy."""
    encoder = SequenceEncoder(windows.log.n_items, shape).to(runtime.device)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1.0, fused=True)
    seconds = []
    for step in range(CALIBRATION_STEPS):
        start = time.perf_counter()
        _train_step(encoder, optimizer, windows, training, log_popularity, step, seed, 1e-5)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[2:]))


def _time_validation(encoder: SequenceEncoder, validate: Callable[[SequenceEncoder], float] | None) -> float:
    if validate is None:
        return 0.0
    start = time.perf_counter()
    validate(encoder)
    return time.perf_counter() - start


def _validate(
    state: _State,
    encoder: SequenceEncoder,
    validate: Callable[[SequenceEncoder], float] | None,
    patience: int,
) -> None:
    point = {"step": float(state.step), "loss": state.loss_sum / max(1, state.loss_count)}
    state.loss_sum, state.loss_count = 0.0, 0
    if validate is not None:
        value = validate(encoder)
        point["value"] = value
        if value > state.best_value:
            state.best_value, state.best_step, state.bad = value, state.step, 0
            state.best = encoder_arrays(encoder)
        else:
            state.bad += 1
            state.finished = state.bad >= patience
    state.curve.append(point)


def _save(path: Path, encoder: SequenceEncoder, optimizer: torch.optim.Optimizer, state: _State) -> None:
    arrays = {f"parameter/{name}": array for name, array in encoder_arrays(encoder).items()}
    for (name, _), moments in zip(encoder.named_parameters(), _moments(optimizer), strict=False):
        arrays |= {f"{kind}/{name}": value.detach().cpu().numpy() for kind, value in moments.items()}
    arrays |= {f"best/{name}": array for name, array in state.best.items()}
    meta = {k: v for k, v in vars(state).items() if k != "best"}
    meta["best_value"] = None if state.best_value == -math.inf else state.best_value
    write_arrays(path, arrays, meta)


def _moments(optimizer: torch.optim.Optimizer) -> list[dict[str, Tensor]]:
    parameters = optimizer.param_groups[0]["params"]
    return [dict(optimizer.state[p]) for p in parameters if p in optimizer.state]


def _load(path: Path, encoder: SequenceEncoder, optimizer: torch.optim.Optimizer) -> _State:
    arrays, meta = read_arrays(path)
    meta["best_value"] = -math.inf if meta["best_value"] is None else meta["best_value"]
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            parameter.copy_(torch.from_numpy(arrays[f"parameter/{name}"]))
            kinds = [kind for kind in ("step", "exp_avg", "exp_avg_sq") if f"{kind}/{name}" in arrays]
            if kinds:
                optimizer.state[parameter] = {
                    kind: torch.from_numpy(arrays[f"{kind}/{name}"].copy()).to(parameter.device)
                    for kind in kinds
                }
    best = {key.removeprefix("best/"): a for key, a in arrays.items() if key.startswith("best/")}
    return _State(**meta, best=best)
