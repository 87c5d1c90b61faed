"""What `rootbeam demo` does: data, split, training, rivals, examples, report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rootbeam.compare import Rivalry, compare
from rootbeam.core.config import Config, NeighboursConfig, RunConfig, SequenceConfig, SequenceTraining
from rootbeam.core.errors import RootbeamError
from rootbeam.data.describe import describe
from rootbeam.data.events import Events, read_events
from rootbeam.data.folder import write_folder
from rootbeam.data.simulate import simulate
from rootbeam.data.sources import fetch
from rootbeam.data.split import split
from rootbeam.evaluate.protocol import Evaluation
from rootbeam.evaluate.report import ReportContent, headline, write_report
from rootbeam.learn.fit import Progress
from rootbeam.recommender import Recommender

SHOWN_METRICS = ("ndcg@10", "recall@20")
EXAMPLES = 3
HISTORY_SHOWN = 6
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How much the demo does."""

    out: Path
    seed: int
    budget_seconds: float
    trials: int
    simulated: bool
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    config: Config = dataclasses.field(default_factory=Config)

    @staticmethod
    def smallest(out: Path, seed: int) -> Plan:
        """Touches everything within a minute: a small world, a small encoder, two trials."""
        config = Config(
            sequence=SequenceConfig(dimension=16, blocks=1, length=20),
            training=SequenceTraining(epochs=2),
            neighbours=NeighboursConfig(ease_l2=(100.0,), decays=(1.0, 0.9)),
        )
        sizes = {"users": 300, "items": 200, "events": 8000}
        return Plan(out, seed, 15.0, 2, True, sizes, config)


def demonstrate(plan: Plan, progress: Progress, say: Say, should_stop: Callable[[], bool]) -> dict[str, Any]:
    """Runs the plan; returns what the command prints."""
    events, source = _data(plan, say)
    for line in describe(events).lines():
        say(f"  {line}")
    parts = split(events, by="time", seed=plan.seed)
    for line in parts.report.lines():
        say(f"  {line}")
    config = dataclasses.replace(
        plan.config, run=RunConfig(seed=plan.seed, budget_seconds=plan.budget_seconds)
    )
    recommender = Recommender(config).fit(
        parts.train, parts.valid, items=events.items, progress=progress, should_stop=should_stop
    )
    evaluation = recommender.evaluate(parts.test)
    rivals = compare(recommender, parts, evaluation, trials=plan.trials, seed=plan.seed, progress=progress)
    recommender.save(plan.out / "bundle")
    examples = _examples(
        recommender, parts.test.inputs["user_id"].unique(maintain_order=True).to_list(), plan
    )
    from rootbeam.core.bundle import read_manifest

    content = ReportContent(
        title=f"Rootbeam on {source}",
        manifest=read_manifest(plan.out / "bundle"),
        description=describe(events).to_dict(),
        evaluation=evaluation.to_dict(),
        rivals=[rival.to_dict() for rival in rivals],
        examples=examples,
    )
    write_report(plan.out / "report.html", content)
    return {
        "source": source,
        "model": recommender.model.trained.rung,
        "metrics": list(SHOWN_METRICS),
        "rows": _rows(recommender, evaluation, rivals),
        "headline": headline(content),
        "examples": examples,
        "evaluation": evaluation.to_dict(),
        "rivals": [rival.to_dict() for rival in rivals],
    }


def _data(plan: Plan, say: Say) -> tuple[Events, str]:
    """ML-100K; where it cannot be had, a simulated log, said loudly."""
    if not plan.simulated:
        try:
            return read_events(fetch("ml-100k", plan.out / "data", progress=say)), "MovieLens 100K"
        except RootbeamError as error:
            say("*" * 78)
            say(f"*  ML-100K cannot be fetched: {error}")
            say("*  GOING ON WITH A SIMULATED LOG: the numbers below say nothing about real users.")
            say("*" * 78)
    made = simulate(seed=plan.seed, **plan.sizes)  # type: ignore[arg-type]
    folder = plan.out / "data-simulated"
    write_folder(
        folder, [made.events], made.items, {"name": "simulated", "licence": "made up; no restriction"}
    )
    say(f"simulated {len(made.events):,} events of a made-up world")
    return read_events(folder), "a simulated log"


def _rows(recommender: Recommender, evaluation: Evaluation, rivals: list[Rivalry]) -> list[dict[str, Any]]:
    ours = {
        "name": f"Rootbeam ({recommender.model.trained.rung})",
        "metrics": {name: i.to_dict() for name, i in evaluation.metrics.items()},
    }
    return [ours, *({"name": r.name, "metrics": r.metrics} for r in rivals if r.skipped is None)]


def _examples(recommender: Recommender, users: list[Any], plan: Plan) -> list[dict[str, Any]]:
    """Three users drawn by the seed, with what they had and what they are offered."""
    chosen = np.random.default_rng([plan.seed, 20]).permutation(len(users))[:EXAMPLES]
    items, titles = recommender.model.items, recommender.model.titles

    def title_of(item: Any) -> str:
        row = int(items.dense([item])[0])
        return (titles[row] if titles and row >= 0 else None) or str(item)

    examples = []
    for index in chosen:
        user = users[int(index)]
        found = recommender.recommend([user], k=10)
        examples.append(
            {
                "user_id": str(user),
                "history": [title_of(item) for item in recommender.history_of(user)[-HISTORY_SHOWN:]],
                "recommended": [
                    {"title": title_of(row["item_id"]), "score": row["score"], "rank": row["rank"]}
                    for row in found.to_dicts()
                ],
            }
        )
    return examples
