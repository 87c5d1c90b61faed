"""What is served, against every tuned rival: a time split, the whole ladder, its own choice and refit.

Nothing here is tuned by hand: the rung, its blend and the rivals' settings are chosen on validation, the
test part is read once. Each row keeps every user's values, so that ours minus a rival's is paired by user.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import polars as pl

from lab.harness import Context, rounded
from rootbeam.compare import Rivalry, compare
from rootbeam.core.config import Config, RunConfig
from rootbeam.core.types import Log
from rootbeam.data.split import split
from rootbeam.evaluate.protocol import Evaluation
from rootbeam.intervals import mean_interval
from rootbeam.recommender import Recommender

METRICS = ("ndcg@10", "recall@20")
BUDGET_SECONDS = 300.0  # of `rootbeam train`
TRIALS = 20  # of every rival
OURS = "rootbeam"


def run(context: Context) -> None:
    parts = split(frame_of(context.data.log), by="time")
    context.results.note("split", parts.report.to_dict())
    context.results.note("remarks", [f"{BUDGET_SECONDS:g} s of training, {TRIALS} trials for every rival."])
    for seed in context.missing({"row": OURS}, context.seeds):
        if not context.missing({"row": OURS}, [seed]):
            break
        start = time.monotonic()
        run_config = RunConfig(seed=seed, budget_seconds=BUDGET_SECONDS, device=context.device)
        recommender = Recommender(replace(Config(), run=run_config)).fit(parts.train, parts.valid)
        evaluation = recommender.evaluate(parts.test)  # reads the test labels
        ours = time.monotonic() - start
        rivals = compare(recommender, parts, evaluation, trials=TRIALS, seed=seed)
        keep(context, seed, ours, recommender, evaluation, rivals)
    note_differences(context)


def keep(
    context: Context,
    seed: int,
    seconds: float,
    recommender: Recommender,
    evaluation: Evaluation,
    rivals: list[Rivalry],
) -> None:
    """A cell for every rival, then ours; ours last, so that a run cut short is repeated whole."""
    for rival in rivals:
        if rival.skipped is None:
            values = {name: rival.values[name] for name in METRICS}
            context.results.add(
                context.session, {"row": rival.name}, seed, 0.0, values, {"params": rival.params}
            )
    trained = recommender.model.trained
    ladder = [{key: row[key] for key in ("model", "metrics", "chosen")} for row in trained.ladder]
    values = {name: evaluation.values[name] for name in METRICS}
    extra = {"served": trained.rung, "ladder": ladder}
    context.results.add(context.session, {"row": OURS}, seed, seconds, values, extra)
    context.say(
        f"{context.data.name} seed {seed}: {trained.rung}, "
        + ", ".join(f"{name} {np.nanmean(v):.4f}" for name, v in values.items())
        + f", {seconds:.0f} s"
    )


def note_differences(context: Context) -> None:
    """Ours minus each rival: paired by user, the mean over seeds of every user's difference."""
    results = context.results
    rivals = sorted({c["settings"]["row"] for c in results.content["cells"]} - {OURS})
    for metric in METRICS:
        found = {}
        for rival in rivals:
            each = [
                results.values({"row": OURS}, seed, metric) - results.values({"row": rival}, seed, metric)
                for seed in context.seeds
                if results.cell({"row": OURS}, seed)
            ]
            if each:
                interval = mean_interval(np.mean(each, axis=0)).to_dict()
                found[f"{OURS} - {rival}"] = {key: rounded(value) for key, value in interval.items()}
        results.note(f"{metric} differences", found)


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
