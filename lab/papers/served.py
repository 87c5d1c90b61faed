"""What is served, against every tuned rival: a time split, the whole ladder, the product's own choice and refit.

Nothing here is tuned by hand: the rung, its blend and the rivals' settings are chosen on validation, the
test part is read once. Each row keeps every user's values, so that ours minus a rival's is paired by user.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from lab.harness import Context, rounded
from rootbeam.compare import Rivalry, compare
from rootbeam.core.config import Config, RunConfig
from rootbeam.core.types import Log
from rootbeam.data.split import split
from rootbeam.evaluate.protocol import Evaluation
from rootbeam.recommender import Recommender

METRICS = ("ndcg@10", "recall@20")
BUDGET_SECONDS = 300.0  # of `rootbeam train`
TRIALS = 20  # of every rival


def run(context: Context) -> None:
    parts = split(frame_of(context.data.log), by="time")
    context.results.note("split", parts.report.to_dict())
    context.results.note("settings", {"budget_seconds": BUDGET_SECONDS, "trials": TRIALS})
    for seed in context.missing({"row": "rootbeam"}, context.seeds):
        if not context.missing({"row": "rootbeam"}, [seed]):
            return
        start = time.monotonic()
        run_config = RunConfig(seed=seed, budget_seconds=BUDGET_SECONDS, device=context.device)
        recommender = Recommender(replace(Config(), run=run_config)).fit(parts.train, parts.valid)
        evaluation = recommender.evaluate(parts.test)  # reads the test labels
        ours = time.monotonic() - start
        rivals = compare(recommender, parts, evaluation, trials=TRIALS, seed=seed)
        keep(context, seed, ours, recommender, evaluation, rivals)


def keep(
    context: Context,
    seed: int,
    seconds: float,
    recommender: Recommender,
    evaluation: Evaluation,
    rivals: list[Rivalry],
) -> None:
    """A cell for every rival, then ours with the differences; ours last, so that a cut run is repeated."""
    for rival in rivals:
        if rival.skipped is None:
            values = {name: rival.values[name] for name in METRICS}
            extra = {"params": rival.params, "trials": rival.trials}
            context.results.add(context.session, {"row": rival.name}, seed, 0.0, values, extra)
    trained = recommender.model.trained
    ladder = [{key: row[key] for key in ("model", "metrics", "chosen")} for row in trained.ladder]
    differences = {
        rival.name: {
            name: {key: rounded(value) for key, value in rival.difference[name].items()} for name in METRICS
        }
        for rival in rivals
        if rival.skipped is None
    }
    extra = {"served": trained.rung, "ladder": ladder, "ours_minus_rival": differences}
    values = {name: evaluation.values[name] for name in METRICS}
    context.results.add(context.session, {"row": "rootbeam"}, seed, seconds, values, extra)
    for name in METRICS:
        best = max((r for r in rivals if r.skipped is None), key=lambda r: float(r.metrics[name]["mean"]))
        gap: Any = best.difference[name]
        context.say(
            f"{context.data.name} seed {seed}: {trained.rung} {name} {np.nanmean(evaluation.values[name]):.4f}; "
            f"best rival {best.name} {best.metrics[name]['mean']:.4f}, "
            f"difference {gap['mean']:+.4f} [{gap['low']:+.4f}, {gap['high']:+.4f}]"
        )


def frame_of(log: Log) -> pl.DataFrame:
    """The log as canonical events, its dense ids as ids."""
    return pl.DataFrame(
        {
            "user_id": log.users(),
            "item_id": log.items.astype(np.int64),
            "timestamp": pl.Series(log.times).cast(pl.Datetime("ms")),
            "weight": np.ones(log.n_events, dtype=np.float32),
        }
    )
