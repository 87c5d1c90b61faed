"""Rivals are treated as ours is: the same users to tune on, the same items to return."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from test_train import SMALL
from worlds import checkerboard

from rootbeam import compare as module
from rootbeam.compare import compare
from rootbeam.core.types import Ragged
from rootbeam.data.split import Holdout, Split, split
from rootbeam.evaluate.rivals.line_up import LineUp
from rootbeam.evaluate.rivals.popularity import all_time
from rootbeam.recommender import Recommender


@pytest.fixture(autouse=True)
def popularity_alone(monkeypatch):
    monkeypatch.setattr(module, "line_up", lambda log, memory: LineUp((all_time(),), {}))


def with_newcomers(frame: pl.DataFrame) -> pl.DataFrame:
    """As many users again who come on the last days only."""
    last = int(frame["timestamp"].to_physical().max())
    late = frame.with_columns(
        pl.concat_str(pl.lit("n"), "user_id").alias("user_id"),
        (pl.lit(last) - pl.int_range(pl.len()) * 500).cast(pl.Datetime("ms")).alias("timestamp"),
    )
    return pl.concat([frame, late.head(200)])


def test_rivals_are_tuned_on_users_with_a_history_as_ours_is(monkeypatch):
    tuned_on: list[np.ndarray] = []

    def tune(rival, log, histories, labels: Ragged, *rest, **more):
        tuned_on.append(histories.events * (labels.lengths() > 0))
        return module_tune(rival, log, histories, labels, *rest, **more)

    module_tune = module.tune_rival
    monkeypatch.setattr(module, "tune_rival", tune)
    parts = split(with_newcomers(checkerboard()), by="time")
    assert parts.report.valid.cold_users > 0
    rec = Recommender(SMALL).fit(parts.train, parts.valid, model="popularity")
    compare(rec, parts, rec.evaluate(parts.test), trials=2, seed=0, names=("recall@20",))
    assert len(tuned_on[0]) == parts.report.valid.users - parts.report.valid.cold_users
    assert (tuned_on[0] > 0).all()


def test_a_rival_returns_no_unavailable_item_either():
    parts = split(checkerboard(), by="time")
    items = pl.DataFrame({"item_id": [f"i{n}" for n in range(20)], "available": [n >= 10 for n in range(20)]})
    rec = Recommender(SMALL).fit(parts.train, parts.valid, items=items, model="popularity")
    ours = rec.evaluate(parts.test, metrics=("recall@20",))
    theirs = compare(rec, parts, ours, trials=1, seed=0, names=("recall@20",))[0]
    # Depth 20 returns every item that is left: all that may differ is which items may be returned.
    np.testing.assert_array_equal(theirs.values["recall@20"], ours.values["recall@20"])
    assert ours.metrics["recall@20"].mean < 1.0


def test_without_a_validation_user_the_rivals_have_their_defaults():
    frame = checkerboard()
    parts = split(frame, by="time")
    nobody = parts.valid.labels.clear()
    parts = Split(parts.train, Holdout(parts.train, nobody, parts.valid.later), parts.test, parts.report)
    rec = Recommender(SMALL).fit(parts.train, parts.valid, model="popularity")
    found = compare(rec, parts, rec.evaluate(parts.test), trials=3, seed=0, names=("recall@20",))[0]
    assert (found.params, found.trials) == ({"count": "events"}, 0)
