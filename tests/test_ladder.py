"""Blends, the judge and the choice."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from worlds import DAY_MS, log_of

from rootbeam.core.config import LadderConfig
from rootbeam.core.types import Ragged
from rootbeam.ladder import Blend, Judged, choose, half_lives, judge_of, unit_scale
from rootbeam.learn.neighbours import NeighbourScorer, PrunedWeights
from rootbeam.learn.scorers import ConstantScorer

N = 6


def rung(name: str, values: list[float]) -> Judged:
    return Judged(name, Blend(1.0, 0.0, math.inf), np.array(values), 1.0)


def cycle_scorer() -> NeighbourScorer:
    """Whoever had item i gets item i + 1: the truth of the toy world below."""
    targets = (np.arange(N) + 1) % N
    return NeighbourScorer(
        PrunedWeights(np.arange(N + 1), targets.astype(np.int32), np.ones(N, dtype=np.float32)), 0.5
    )


def cycle_judge(users: int = 30, **settings):
    """Users walk around a cycle of items; the label is the next one."""
    rows = [[u % N, (u + 1) % N] for u in range(users)]
    labels = Ragged.from_rows([[(u + 2) % N] for u in range(users)])
    log = log_of(rows, N, [[0, DAY_MS] for _ in rows])
    config = dataclasses.replace(LadderConfig(metric="ndcg@1"), **settings)
    return judge_of(log, log, labels, DAY_MS, config, "forbid", 4, seed=0)


def test_the_judge_gives_every_user_the_metric_by_hand():
    judge = cycle_judge()
    np.testing.assert_array_equal(judge.values(cycle_scorer(), Blend(1.0, 0.0, math.inf)), np.ones(30))
    # Recent popularity alone: equal counts tie, so the lowest unseen item is returned to everyone.
    values = judge.values(ConstantScorer(N), Blend(0.0, 1.0, math.inf))
    expected = []
    for user in range(30):
        unseen = [i for i in range(N) if i not in (user % N, (user + 1) % N)]
        expected.append(1.0 if unseen[0] == (user + 2) % N else 0.0)
    np.testing.assert_array_equal(values, expected)


def test_tune_returns_the_values_of_the_blend_it_returns():
    judge = cycle_judge()
    blend, values = judge.tune(cycle_scorer(), (0.0, 0.1, 1.0), 1.0)
    np.testing.assert_array_equal(values, judge.values(cycle_scorer(), blend))
    assert values.mean() == 1.0


def test_users_without_history_or_labels_are_not_judged():
    log = log_of([[0, 1], [], [2]], N)
    labels = Ragged.from_rows([[2], [3], []])
    judge = judge_of(log, log, labels, 9, LadderConfig(), "forbid", 4, seed=0)
    assert len(judge.histories) == 1
    assert judge.labels.row(0).tolist() == [2]


def test_the_sample_of_users_is_bounded_and_seeded():
    first, second = cycle_judge(max_users=7), cycle_judge(max_users=7)
    assert len(first.histories) == 7
    np.testing.assert_array_equal(first.histories.last, second.histories.last)


@pytest.mark.parametrize(
    ("better_by", "expected"),
    [(0.0, "cheap"), (0.2, "dear")],
    ids=["equal: the cheaper is served", "clearly better: the dearer is served"],
)
def test_the_cheapest_not_significantly_worse_is_served(better_by, expected):
    noise = np.random.default_rng(0).normal(0.5, 0.1, 400)
    cheap = rung("cheap", list(noise))
    dear = rung("dear", list(noise + better_by + np.random.default_rng(1).normal(0, 0.05, 400)))
    assert choose([cheap, dear], 0.95).name == expected


@pytest.mark.parametrize("level", [0.99, 0.999, 0.9999])
def test_a_strict_level_can_still_be_reached(level):
    worse = np.linspace(0.0, 0.5, 50).tolist()
    rungs = [rung("cheap", worse), rung("dear", [value + 0.5 for value in worse])]
    assert choose(rungs, level).name == "dear"


def test_a_cheaper_rung_that_is_better_wins_outright():
    assert choose([rung("cheap", [1.0] * 50), rung("dear", [0.5] * 50)], 0.95).name == "cheap"


def test_half_lives_follow_the_span_of_the_log():
    log = log_of([[0, 1]], N, [[0, 10 * DAY_MS]])
    assert half_lives(log, LadderConfig(half_lives_days=(1.0, 20.0, 21.0))) == [1.0, 20.0, math.inf]
    assert half_lives(dataclasses.replace(log, timed=False), LadderConfig()) == [math.inf]


def test_unit_scale_makes_the_deviation_one():
    judge = cycle_judge()
    scale = unit_scale(cycle_scorer(), judge.histories)
    scores = cycle_scorer().score(cycle_scorer().encode(judge.histories)) * scale
    assert scores.std(dim=1, correction=0).mean().item() == pytest.approx(1.0, rel=1e-6)
    assert unit_scale(ConstantScorer(N), judge.histories) == 1.0
