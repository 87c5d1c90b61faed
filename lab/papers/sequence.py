"""The sequence rung by its paper's protocol: leave-one-out, the full catalogue ranked, seen items left out.

Each user's last event is for testing, the one before for early stopping and nothing else; the encoder, the
loss and the loop are the package's own. The test history holds the validation event; there is no refit on it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from lab.data import Parts, joined, leave_last_out
from lab.harness import Context, rounded
from rootbeam import metrics
from rootbeam.core.config import SequenceConfig, SequenceTraining
from rootbeam.core.types import Float64, Histories, Log, Ragged
from rootbeam.data.history import replay
from rootbeam.learn.fit import Runtime, encoder_from_arrays, fit_sequence
from rootbeam.learn.scorers import SequenceScorer
from rootbeam.learn.sequence import SequenceEncoder
from rootbeam.search.exact import ExactRetriever

METRICS = ("ndcg@10", "recall@10")

# Written out, since the defaults are the product's; both catalogues are small enough for the full softmax.
COMMON: dict[str, Any] = {
    "learning_rate": 1e-3,
    "patience": 5,
    "validations": 12,
    "warmup_steps": 100,
    "full_softmax_items": 20_000,
}
SETTINGS = {
    "beauty": (
        SequenceConfig(dimension=128, blocks=2, heads=2, length=50, dropout=0.5),
        SequenceTraining(batch=256, epochs=25, **COMMON),
    ),
    "ml-1m": (
        SequenceConfig(dimension=128, blocks=2, heads=2, length=200, dropout=0.2),
        SequenceTraining(batch=128, epochs=50, **COMMON),
    ),
}
SMALL = (
    SequenceConfig(dimension=16, blocks=1, length=10),
    SequenceTraining(batch=64, epochs=2, least_steps=10),
)


def run(context: Context) -> None:
    log = context.data.log
    log = replace(log, weights=np.ones(log.n_events, np.float32))
    shape, training = SETTINGS.get(context.data.name, SMALL)
    parts = leave_last_out(log)
    context.results.note("data", {"users": log.n_users, "items": log.n_items, "events": log.n_events})
    context.results.note("settings", {"shape": vars(shape), "training": vars(training)})
    context.results.note("ties", ties(log))
    settings = {"row": "sequence"}
    for seed in context.missing(settings, context.seeds):
        if not context.missing(settings, [seed]):
            return
        start = time.monotonic()
        fitted = one_seed(context, parts, shape, training, seed)
        encoder = encoder_from_arrays(fitted.arrays, shape).to(context.device)
        seen = joined(parts.train, parts.valid)
        measured = measure(encoder, seen, parts.test, METRICS)  # reads the test labels
        seconds = time.monotonic() - start
        extra: dict[str, Any] = {
            "steps": fitted.steps,
            "best_step": fitted.best_step,
            "validation": rounded(fitted.best_value),
            "validations": [rounded(point["value"], 4) for point in fitted.curve],
            "ms_per_step": rounded(1000 * seconds / max(1, fitted.steps), 2),
        }
        context.results.add(
            context.session, settings, seed, seconds, {name: measured[name] for name in METRICS}, extra
        )
        shown = ", ".join(f"{name} {np.nanmean(values):.4f}" for name, values in measured.items())
        context.say(f"{context.data.name} seed {seed}: {shown}, {fitted.steps} steps, {seconds:.0f} s")


def one_seed(
    context: Context, parts: Parts, shape: SequenceConfig, training: SequenceTraining, seed: int
) -> Any:
    histories = replay(parts.train, shape.length)

    def validate(encoder: SequenceEncoder) -> float:
        return float(np.nanmean(of_histories(encoder, histories, parts.valid, ("ndcg@10",))["ndcg@10"]))

    runtime = Runtime(device=context.device)
    return fit_sequence(
        parts.train, shape, training, seed=seed, runtime=runtime, what="sequence", validate=validate
    )


def measure(
    encoder: SequenceEncoder, seen: Log, labels: Ragged, names: tuple[str, ...]
) -> dict[str, Float64]:
    return of_histories(encoder, replay(seen, encoder.config.length), labels, names)


def of_histories(
    encoder: SequenceEncoder, histories: Histories, labels: Ragged, names: tuple[str, ...]
) -> dict[str, Float64]:
    found = ExactRetriever(SequenceScorer(encoder)).retrieve(histories, 10, exclude=histories.seen)
    measured: dict[str, Float64] = metrics.compute(found.items, labels, names)
    return measured


def ties(log: Log) -> dict[str, float]:
    """Where order was not known: shares of neighbouring events, and of test events, at one time stamp."""
    users = log.users()
    neighbours = users[1:] == users[:-1]
    same = neighbours & (log.times[1:] == log.times[:-1])
    last = log.user_ptr[1:][np.diff(log.user_ptr) >= 3] - 1
    return {
        "adjacent_events": round(float(same.sum() / max(1, neighbours.sum())), 4),
        "test_events": round(float((log.times[last] == log.times[last - 1]).mean()), 4),
    }
