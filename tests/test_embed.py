"""Stage-1 embeddings on a world of two groups of users, each of which takes its own half of the items."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from rootbeam import metrics
from rootbeam.core.errors import ConfigError, InputError
from rootbeam.core.types import Log, Ragged
from rootbeam.data.history import replay
from rootbeam.learn import objectives
from rootbeam.learn.embed import (
    EmbedTraining,
    Factors,
    MatrixFactorisation,
    MeanTower,
    epoch_batches,
    fit_embeddings,
    mean_scorer,
)
from rootbeam.search.exact import ExactRetriever

USERS, ITEMS, TAKEN = 60, 20, 6  # every user takes 6 of the 10 items of its group
TRAINING = EmbedTraining(dimension=8, batch=64, epochs=40, learning_rate=0.03, weight_decay=1e-4)

OBJECTIVES: dict[str, Callable[[], objectives.Objective]] = {
    "full softmax": objectives.full_softmax,
    "sampled, uniform": lambda: objectives.sampled_softmax(8),
    "sampled, popularity": lambda: objectives.sampled_softmax(8, power=1.0),
    "ssl": objectives.ssl,
    "ssl-pop": objectives.ssl_pop,
    "bir raw": lambda: objectives.bir("raw"),
    "bir appendix": lambda: objectives.bir("appendix"),
    "bir corrected": lambda: objectives.bir("corrected"),
    "bir independent": lambda: objectives.bir("raw", "independent"),
    "xir": objectives.xir,
    "mns": objectives.mns,
    "g-tower": objectives.g_tower,
    "bpr": objectives.bpr,
    "ccf": lambda: objectives.ccf(8),
}


def group_of(user: int) -> int:
    return user % 2


def world() -> tuple[Log, Ragged]:
    """What users took, and the four items of their group that they did not."""
    rng = np.random.default_rng(0)
    taken, rest = [], []
    for user in range(USERS):
        own = rng.permutation(10) + 10 * group_of(user)
        taken.append(own[:TAKEN])
        rest.append(own[TAKEN:])
    items = np.concatenate(taken).astype(np.int32)
    times, weights = np.arange(len(items)), np.ones(len(items), dtype=np.float32)
    return Log(items, times, weights, np.arange(USERS + 1) * TAKEN, ITEMS), Ragged.from_rows(rest)


LOG, REST = world()


def recall_of_factors(arrays: dict[str, np.ndarray]) -> float:
    scores = Factors.of(arrays).scores(torch.arange(USERS)).numpy()
    scores[LOG.users(), LOG.items] = -np.inf
    return float(metrics.recall(metrics.rank_items(scores, 4), REST, 4).mean())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_loss_finds_the_groups(name: str) -> None:
    fitted = fit_embeddings(LOG, MatrixFactorisation(), OBJECTIVES[name](), TRAINING, seed=1)
    assert recall_of_factors(fitted.arrays) > 0.8  # a random order of the 14 unseen items gives 4 / 14
    assert fitted.curve[-1]["loss"] < fitted.curve[0]["loss"]
    assert fitted.epoch == TRAINING.epochs


def test_two_towers_serve_users_they_never_saw() -> None:
    fitted = fit_embeddings(LOG, MeanTower(length=4), objectives.full_softmax(), TRAINING, seed=1)
    scorer = mean_scorer(fitted.arrays)
    strangers = Log(
        np.array([0, 3, 15, 11], np.int32), np.arange(4), np.ones(4, np.float32), np.array([0, 2, 4]), ITEMS
    )
    histories = replay(strangers, 4)
    found = ExactRetriever(scorer).retrieve(histories, 8, exclude=histories.seen)
    assert set(found.items[0]) == set(range(10)) - {0, 3}
    assert set(found.items[1]) == set(range(10, 20)) - {15, 11}


def test_a_mean_tower_sees_only_what_came_before() -> None:
    tower, log = (
        MeanTower(length=2),
        Log(
            np.array([0, 1, 2, 3, 4], np.int32), np.arange(5), np.ones(5, np.float32), np.array([0, 1, 5]), 5
        ),
    )
    assert tower.examples(log).tolist() == [2, 3, 4]  # events 0 and 1 are their users' first
    tables = {"history": torch.eye(5)}
    expected = [[0, 1, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5, 0]]
    assert tower.users(tables, log, np.array([2, 3, 4])).tolist() == expected


@pytest.mark.parametrize("encoder", [MatrixFactorisation(), MeanTower()])
@pytest.mark.parametrize("name", ["bir raw", "xir", "g-tower"])
def test_the_seed_decides(encoder: MatrixFactorisation | MeanTower, name: str) -> None:
    training = EmbedTraining(dimension=4, batch=64, epochs=2)

    def fit(seed: int) -> dict[str, np.ndarray]:
        return fit_embeddings(LOG, encoder, OBJECTIVES[name](), training, seed=seed).arrays

    first, again, other = fit(3), fit(3), fit(4)
    for table in first:
        np.testing.assert_array_equal(first[table], again[table])
        assert not np.array_equal(first[table], other[table])


def test_the_best_validation_is_kept() -> None:
    values = iter([0.1, 0.7, 0.3])
    seen: list[dict[str, np.ndarray]] = []

    def validate(arrays: dict[str, np.ndarray]) -> float:
        seen.append(arrays)
        return next(values)

    training = EmbedTraining(dimension=4, batch=64, epochs=5, validate_every=2)
    fitted = fit_embeddings(
        LOG, MatrixFactorisation(), objectives.ssl_pop(), training, seed=0, validate=validate
    )
    assert fitted.epoch == 4
    assert [point.get("value") for point in fitted.curve] == [None, 0.1, None, 0.7, 0.3]
    np.testing.assert_array_equal(fitted.arrays["items"], seen[1]["items"])


def test_an_epoch_is_a_permutation_in_whole_batches() -> None:
    batches = epoch_batches(10, 3, seed=0, epoch=1)
    assert [len(batch) for batch in batches] == [3, 3, 3]
    assert len(set(np.concatenate(batches).tolist())) == 9
    assert [len(batch) for batch in epoch_batches(10, 64, seed=0, epoch=1)] == [10]
    assert not np.array_equal(batches[0], epoch_batches(10, 3, seed=0, epoch=2)[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "batch is 0; it must be positive"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0; it must be positive"),
        ({"epochs": 0}, "epochs is 0"),
        ({"weight_decay": -1e-5}, "weight_decay=-1e-05"),
        ({"decay": 1.5}, "decay=1.5"),
    ],
)
def test_bad_settings(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        EmbedTraining(**settings)  # type: ignore[arg-type]


def test_users_of_one_event_give_a_mean_tower_nothing() -> None:
    log = Log(np.array([0, 1], np.int32), np.arange(2), np.ones(2, np.float32), np.array([0, 1, 2]), 2)
    with pytest.raises(InputError, match="none of the 2 events can be trained on"):
        fit_embeddings(log, MeanTower(), objectives.ssl(), TRAINING, seed=0)
