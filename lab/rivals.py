"""The rivals of the package by the protocol of `lab/papers/bir.py`: popularity, item-kNN, EASE, iALS.

A random 80/10/10 of every user's events; each rival gets the same number of trials on validation NDCG@10 with
the split of seed 0, and is then fitted on the training part alone, as the rows of `bir` are. Seen items are
left out. Test labels are read once.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.data import joined, split_per_user
from lab.harness import Context, rounded
from rootbeam import metrics
from rootbeam.core.types import Histories, Log
from rootbeam.data.history import replay
from rootbeam.evaluate.rivals.line_up import line_up
from rootbeam.evaluate.rivals.rival import Rival, top_k
from rootbeam.evaluate.rivals.tuning import tune_rival

TRIALS = 10
MEMORY_BYTES = 4 << 30  # for EASE's inverse; above it EASE is left out, and the results say so
LENGTH = 200  # items of a history that a rival may read
METRICS = ("recall@20", "ndcg@10")


def run(context: Context) -> None:
    log = context.data.log
    taking_part = line_up(log, MEMORY_BYTES)
    context.results.note("skipped", taking_part.skipped)
    for rival in taking_part.rivals:
        settings = {"row": rival.name}
        if not context.missing(settings, context.seeds):
            continue
        parts = split_per_user(log, 0.1, 0.1, 0)
        histories = replay(parts.train, LENGTH)
        tuned = tune_rival(rival, parts.train, histories, parts.valid, True, TRIALS, 0)
        for seed in context.missing(settings, context.seeds):
            test(context, log, rival, tuned.params, seed)


def test(context: Context, log: Log, rival: Rival, params: dict[str, object], seed: int) -> None:
    """Fits on the training part of the seed's split and reads its test labels."""
    start = time.monotonic()
    parts = split_per_user(log, 0.1, 0.1, seed)
    scores = rival.fit(parts.train, params, seed)
    known = replay(parts.train, LENGTH)  # what is scored from: the training events
    seen = replay(joined(parts.train, parts.valid), LENGTH).seen  # what is left out: the validation's too

    def without_seen(histories: Histories) -> npt.NDArray[Any]:
        table = np.array(scores(histories), dtype=np.float32)
        left_out = seen.take(histories.watermark)
        table[left_out.row_of_value(), left_out.values] = -np.inf
        return table

    rows = replace(known, watermark=np.arange(len(known)))  # carries the row through top_k's batches
    ranked = top_k(without_seen, rows, 20, exclude_seen=False)
    values = metrics.compute(ranked, parts.test, METRICS)
    context.results.add(
        context.session,
        {"row": rival.name},
        seed,
        time.monotonic() - start,
        values,
        {"params": shown(params)},
    )
    means = ", ".join(f"{name} {np.nanmean(v):.4f}" for name, v in values.items())
    context.say(f"{rival.name} seed {seed}: {means}")


def shown(params: dict[str, object]) -> dict[str, object]:
    return {name: rounded(value) if isinstance(value, float) else value for name, value in params.items()}
