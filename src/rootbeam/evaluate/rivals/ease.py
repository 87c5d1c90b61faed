"""EASE as a rival, with every weight kept: nothing is pruned away from what it is compared by."""

from __future__ import annotations

from rootbeam.core.types import Float32, Histories, Log
from rootbeam.evaluate.rivals.rival import LogUniform, Params, Rival, Scores, popular_without_history
from rootbeam.learn.neighbours import ease_from_gram, gram, score_dense


def ease() -> Rival:
    counted: list[tuple[Log, Float32]] = []  # the last log and its counts: the trials of one log share them

    def fit(log: Log, params: Params, seed: int) -> Scores:
        if not counted or counted[0][0] is not log:
            counted[:] = [(log, gram(log))]
        weights = ease_from_gram(counted[0][1], params["l2"])

        def scores(histories: Histories) -> Float32:
            return score_dense(weights, histories)

        return popular_without_history(scores, log)

    return Rival("EASE", {"l2": LogUniform(1.0, 10_000.0, default=500.0)}, fit)
