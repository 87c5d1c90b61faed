"""In-batch importance resampling: SSL, SSL-Pop, MNS, G-Tower, BIR and XIR on one matrix factorisation.

ML-100K as the released code has it: 10-core, then the events rated at or above the user's own mean
(943 × 1,152, 53,473), 20 % of every user's events for testing, fixed settings, the last epoch. No validation.

Every other log: 10 % of every user's events for validation and 10 % for testing; learning rate and weight
decay are chosen for each method and batch size (Figure 7) by validation NDCG@10 on the split of seed 0, the
epoch by the same on the split of each seed, and test labels are read once, at the end.

All items are ranked but those the user has in training (and validation, when testing).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.data import Parts, core, liked, split_per_user
from lab.harness import Context, Settings, cell_key, rounded
from lab.judge import Judge, judge_of
from lab.stacked import Fitted, Run, fit_stacked
from rootbeam.core.types import Float64, Log
from rootbeam.intervals import paired_difference
from rootbeam.learn import objectives
from rootbeam.learn.embed import EmbedTraining, Factors

DIMENSION, INIT_SCALE = 32, 1.0  # as released
METRICS = ("recall@20", "ndcg@10", "recall@10", "recall@50")
KEPT = ("recall@20",)  # per user
BATCHES = (256, 512, 1024, 2048, 4096, 8192)
CURVE_ROWS = ("ssl-pop", "bir")
OTHER_ROWS, OTHER_BATCH = ("ssl", "mns", "g-tower", "xir", "bir-corrected"), 2048
DECAYS = (5e-6, 1e-5, 2e-5)  # a coarse grid on Gowalla, kept in the results, had 1e-6 and 1e-4 far behind
FEW_USERS, THEIR_DECAYS = 10_000, (1e-4, 2e-4, 4e-4)  # a user's row then has a gradient in more of the steps
EPOCHS, VALIDATE_EVERY, VALIDATION_USERS = 30, 5, 6000


@dataclass(frozen=True)
class Row:
    """A line of the tables."""

    objective: Callable[[], objectives.Objective]
    side_by_side: bool = True  # can be trained for many runs at once


ROWS = {
    "ssl": Row(lambda: objectives.ssl()),
    "ssl-pop": Row(lambda: objectives.ssl_pop()),
    "mns": Row(lambda: objectives.mns(), side_by_side=False),
    "g-tower": Row(lambda: objectives.g_tower(), side_by_side=False),
    "bir": Row(lambda: objectives.bir("raw")),
    "bir-corrected": Row(lambda: objectives.bir("corrected")),
    "bir-appendix": Row(lambda: objectives.bir("appendix")),
    "xir": Row(lambda: objectives.xir(cache_weight=0.2), side_by_side=False),
}


def run(context: Context) -> None:
    if context.data.ratings is not None:
        fixed(context)
    else:
        tuned(context)


def fixed(context: Context) -> None:
    """As released: no choice is made."""
    data = liked(core(context.data, 10))
    log = data.log
    counts = {"users": log.n_users, "items": log.n_items, "events": log.n_events}
    context.results.note("data", counts)
    context.say(f"{log.n_users:,} users × {log.n_items:,} items, {log.n_events:,} events")
    training = EmbedTraining(
        DIMENSION, INIT_SCALE, batch=512, epochs=25, learning_rate=0.01, weight_decay=1e-5
    )
    for name, row in ROWS.items():
        settings = {"row": name, "batch": training.batch}
        seeds = context.missing(settings, context.seeds)
        if not seeds:
            continue
        start = time.monotonic()
        parts = [split_per_user(log, 0.0, 0.2, seed) for seed in seeds]
        runs = [Run(p.train, s, 0.01, 1e-5) for p, s in zip(parts, seeds, strict=True)]
        fitted = fit(context, row, runs, training)
        seconds = (time.monotonic() - start) / len(seeds)
        for part, seed, found in zip(parts, seeds, fitted, strict=True):
            add_test(context, settings, seed, seconds, part, found)
    compare(context, [{"row": name, "batch": training.batch} for name in ROWS], "ssl-pop", context.seeds)


DIFFERS = (
    f"Where this differs from the paper's Figure 7: {EPOCHS} epochs with the best of every {VALIDATE_EVERY} "
    f"by validation (at most {VALIDATION_USERS:,} users of it) instead of 100; six settings a method and "
    "batch size, whose range of rates moves with the steps of an epoch.",
)


def tuned(context: Context) -> None:
    """Learning rate and weight decay by validation, for each method and batch size."""
    context.results.note("remarks", list(DIFFERS))
    log = context.data.log
    counts = {"users": log.n_users, "items": log.n_items, "events": log.n_events}
    context.results.note("data", counts)
    cells = [(row, batch) for batch in BATCHES for row in CURVE_ROWS]
    cells += [(row, OTHER_BATCH) for row in OTHER_ROWS]
    first = None
    for row, batch in cells:
        points = [point_settings(row, batch, rate, decay) for rate, decay in grid(log, batch)]
        todo = [point for point in points if context.missing(point, [0])]
        if todo:
            first = first or split_per_user(log, 0.1, 0.1, 0)
            tune(context, row, batch, todo, first)
    splits: dict[int, Parts] = {}
    for row, batch in cells:
        settings = {"row": row, "batch": batch}
        chosen = best_point(context, log, row, batch)
        seeds = context.missing(settings, context.seeds)
        if not seeds or chosen is None:
            continue
        for seed in seeds:
            splits.setdefault(seed, split_per_user(log, 0.1, 0.1, seed))
        test(context, settings, chosen, [splits[seed] for seed in seeds], seeds)
    compare(context, [{"row": r, "batch": b} for r, b in cells], "ssl-pop", context.seeds)


def grid(log: Log, batch: int) -> list[tuple[float, float]]:
    """Six points, the same for every method: the fewer steps an epoch has, the higher the rates."""
    steps = 0.8 * log.n_events / batch
    by_steps = ((1200, (0.001, 0.003)), (300, (0.003, 0.01)), (50, (0.01, 0.03)), (0, (0.03, 0.1)))
    rates = next(rates for least, rates in by_steps if steps >= least)
    return list(itertools.product(rates, THEIR_DECAYS if log.n_users < FEW_USERS else DECAYS))


def point_settings(row: str, batch: int, rate: float, decay: float) -> dict[str, Any]:
    return {"tune": row, "row": row, "batch": batch, "lr": rate, "wd": decay}


def training_of(batch: int) -> EmbedTraining:
    return EmbedTraining(DIMENSION, INIT_SCALE, batch, EPOCHS, validate_every=VALIDATE_EVERY)


def tune(context: Context, row: str, batch: int, points: Sequence[Settings], parts: Parts) -> None:
    """Every point of the grid at once, on one split and one seed."""
    start = time.monotonic()
    judge = judge_of(
        parts.valid, [parts.train.sequences()], parts.train.n_items, context.device, VALIDATION_USERS
    )
    runs = [Run(parts.train, 0, point["lr"], point["wd"]) for point in points]
    fitted = fit(context, ROWS[row], runs, training_of(batch), [judge] * len(runs))
    seconds = (time.monotonic() - start) / len(points)
    for point, found in zip(points, fitted, strict=True):
        context.results.add(context.session, point, 0, seconds, {}, facts(found))
    best = max(zip(fitted, points, strict=True), key=lambda pair: pair[0].value)
    context.say(
        f"tune {row} batch {batch}: {best[0].value:.4f} at lr {best[1]['lr']}, wd {best[1]['wd']}, "
        f"epoch {best[0].epoch} ({len(points)} runs of {seconds:.1f} s)"
    )


def best_point(context: Context, log: Log, row: str, batch: int) -> dict[str, Any] | None:
    """The settings with the best validation; None before all of the grid is done."""
    points = [point_settings(row, batch, rate, decay) for rate, decay in grid(log, batch)]
    cells = [context.results.cell(point, 0) for point in points]
    if any(cell is None for cell in cells):
        return None
    best: dict[str, Any] = max((c for c in cells if c), key=lambda cell: cell["validation"])["settings"]
    return best


def test(
    context: Context, settings: Settings, chosen: Settings, parts: Sequence[Parts], seeds: Sequence[int]
) -> None:
    """All seeds at once at the chosen settings."""
    start = time.monotonic()
    judges = [
        judge_of(p.valid, [p.train.sequences()], p.train.n_items, context.device, VALIDATION_USERS)
        for p in parts
    ]
    runs = [Run(p.train, s, chosen["lr"], chosen["wd"]) for p, s in zip(parts, seeds, strict=True)]
    fitted = fit(context, ROWS[settings["row"]], runs, training_of(settings["batch"]), judges)
    seconds = (time.monotonic() - start) / len(seeds)
    for part, seed, found in zip(parts, seeds, fitted, strict=True):
        add_test(context, settings, seed, seconds, part, found, {"lr": chosen["lr"], "wd": chosen["wd"]})


def fit(
    context: Context,
    row: Row,
    runs: Sequence[Run],
    training: EmbedTraining,
    judges: Sequence[Judge] | None = None,
) -> list[Fitted]:
    def validate(run: int, factors: Factors) -> float:
        assert judges is not None
        return float(np.nanmean(judges[run].measure(factors, ["ndcg@10"])["ndcg@10"]))

    return fit_stacked(
        runs,
        row.objective,
        training,
        device=context.device,
        side_by_side=row.side_by_side,
        validate=validate if judges else None,
    )


def add_test(
    context: Context,
    settings: Settings,
    seed: int,
    seconds: float,
    parts: Parts,
    found: Fitted,
    extra: Settings | None = None,
) -> None:
    """Reads the test labels."""
    assert found.factors is not None
    train: Log = parts.train
    judge = judge_of(parts.test, [train.sequences(), parts.valid], train.n_items, context.device)
    measured = judge.measure(found.factors, METRICS)
    per_user = {name: whole(measured[name], judge, train.n_users) for name in KEPT}
    means = {name: rounded(float(values.mean())) for name, values in measured.items()}
    context.results.add(
        context.session, settings, seed, seconds, per_user, {**facts(found), **(extra or {}), "means": means}
    )
    context.say(f"{settings} seed {seed}: " + ", ".join(f"{k} {v:.4f}" for k, v in means.items()))


def whole(values: Float64, judge: Judge, n_users: int) -> Float64:
    """(n_users,) NaN for those who were not judged."""
    out = np.full(n_users, np.nan)
    out[judge.rows] = values
    return out


def facts(found: Fitted) -> dict[str, Any]:
    facts: dict[str, Any] = {"epoch": found.epoch, "losses": [rounded(x, 4) for x in found.losses[::5]]}
    if found.values:
        facts |= {"validation": rounded(found.value), "validations": [rounded(v, 4) for v in found.values]}
    return facts


def compare(context: Context, rows: Sequence[Settings], base: str, seeds: Sequence[int]) -> None:
    """Each row less the base at the same batch size, paired by user and seed: users are what is resampled."""
    found = {}
    results = context.results
    for settings in rows:
        against = {**settings, "row": base}
        if settings["row"] == base:
            continue
        shared = [s for s in seeds if results.cell(settings, s) and results.cell(against, s)]
        shared = [s for s in shared if _has_users(context, settings, against, s)]
        if not shared:
            continue
        each = [
            results.values(settings, s, "recall@20") - results.values(against, s, "recall@20") for s in shared
        ]
        stacked = np.stack(each)  # (seeds, users)
        known = ~np.isnan(stacked).all(axis=0)
        mean = np.nanmean(stacked[:, known], axis=0)
        difference = paired_difference(mean, np.zeros_like(mean)).to_dict()
        found[f"{settings['row']} - {base} @ {settings['batch']}"] = {
            **{name: rounded(value) for name, value in difference.items()},
            "per_seed": [rounded(float(np.nanmean(values))) for values in each],
        }
    if found:
        results.note("recall@20 differences", found)


def _has_users(context: Context, a: Settings, b: Settings, seed: int) -> bool:
    return all(f"{cell_key(s, seed)}/recall@20" in context.results.users for s in (a, b))
