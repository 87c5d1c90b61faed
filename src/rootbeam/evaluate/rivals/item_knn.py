"""Item-kNN as a rival: the sum of the similarities to every item of the history."""

from __future__ import annotations

from rootbeam.core.types import Float32, Histories, Log
from rootbeam.evaluate.rivals.rival import (
    Choice,
    LogIntegers,
    LogUniform,
    Params,
    Range,
    Rival,
    Scores,
    Uniform,
    popular_without_history,
)
from rootbeam.learn.neighbours import NeighbourScorer, item_knn_weights


def item_knn() -> Rival:
    space: dict[str, Range] = {
        "neighbours": LogIntegers(5, 1000, default=100),
        "shrink": LogUniform(0.1, 1000.0, default=10.0),
        "similarity": Choice(("cosine", "jaccard"), default="cosine"),
        "popularity_power": Uniform(0.0, 1.0, default=0.5),
    }
    return Rival("item-kNN", space, _fit)


def _fit(log: Log, params: Params, seed: int) -> Scores:
    scorer = NeighbourScorer(item_knn_weights(log, **params))

    def scores(histories: Histories) -> Float32:
        return scorer.score(scorer.encode(histories)).numpy()

    return popular_without_history(scores, log)
