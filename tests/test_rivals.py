from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootbeam import metrics
from rootbeam.core.errors import ConfigError, InputError, MissingExtraError
from rootbeam.core.types import Histories, Log, Ragged
from rootbeam.data.history import replay
from rootbeam.evaluate.rivals import ials, popularity
from rootbeam.evaluate.rivals.ease import ease
from rootbeam.evaluate.rivals.item_knn import item_knn
from rootbeam.evaluate.rivals.line_up import line_up
from rootbeam.evaluate.rivals.rival import (
    Choice,
    Integers,
    LogIntegers,
    LogUniform,
    Params,
    Range,
    Rival,
    Scores,
    Uniform,
    best_items,
    top_k,
)
from rootbeam.evaluate.rivals.tuning import tune_rival

GIB = 2**30


def make_log(rows: list[list[int]], n_items: int, timed: bool = True) -> Log:
    lengths = [len(row) for row in rows]
    items = np.array([item for row in rows for item in row], dtype=np.int32)
    return Log(
        items,
        np.arange(len(items), dtype=np.int64) * 3_600_000,
        np.ones(len(items), dtype=np.float32),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        n_items,
        timed,
    )


def checkerboard(users: int = 60, n_items: int = 20, each: int = 6) -> Log:
    """Even users like even items, odd users odd items."""
    rng = np.random.default_rng(0)
    rows = [
        rng.choice(np.arange(user % 2, n_items, 2), each, replace=False).tolist() for user in range(users)
    ]
    return make_log(rows, n_items)


def constant(scores: list[float]) -> Scores:
    return lambda histories: np.tile(np.array(scores), (len(histories), 1))


def histories_of(rows: list[list[int]], n_items: int) -> Histories:
    return replay(make_log(rows, n_items), 10)


LOG = checkerboard()
RIVALS = line_up(LOG, GIB).rivals
PERSONAL = {"item-kNN", "EASE", "iALS"}


# --- ranking


@given(
    st.integers(1, 4).flatmap(
        lambda rows: st.lists(
            st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 2.0]), min_size=7, max_size=7),
            min_size=rows,
            max_size=rows,
        )
    ),
    st.integers(1, 9),
)
def test_selecting_equals_sorting_with_ties_by_item(scores: list[list[float]], k: int) -> None:
    table = np.array(scores)
    np.testing.assert_array_equal(best_items(table, k), metrics.rank_items(table, k))


def test_top_k_leaves_out_the_seen_only_when_told() -> None:
    histories = histories_of([[2], [0, 1]], 4)
    scores = constant([1.0, 2.0, 3.0, 0.5])
    assert top_k(scores, histories, 2, exclude_seen=False).tolist() == [[2, 1], [2, 1]]
    assert top_k(scores, histories, 2, exclude_seen=True).tolist() == [[1, 0], [2, 3]]


def test_top_k_pads_and_ignores_seen_items_from_later() -> None:
    histories = histories_of([[0, 1, 9]], 10)
    assert top_k(constant([3.0, 2.0, 1.0]), histories, 4, exclude_seen=True).tolist() == [[2, -1, -1, -1]]


def test_top_k_does_not_depend_on_batches() -> None:
    rng = np.random.default_rng(0)
    taste = rng.normal(size=(30, 30))
    histories = replay(make_log([[int(i)] for i in rng.integers(30, size=1300)], 30), 3)

    def scores(batch: Histories) -> np.ndarray:
        return taste[batch.last[:, -1]]

    ranked = top_k(scores, histories, 5, exclude_seen=False)
    assert ranked.dtype == np.int32
    np.testing.assert_array_equal(ranked, metrics.rank_items(scores(histories), 5))


def test_top_k_does_not_write_into_the_scores() -> None:
    table = np.array([[1.0, 2.0, 3.0]])
    top_k(lambda histories: table, histories_of([[2]], 3), 1, exclude_seen=True)
    assert table.tolist() == [[1.0, 2.0, 3.0]]


def test_nan_scores_are_refused() -> None:
    with pytest.raises(InputError, match="NaN"):
        top_k(constant([1.0, math.nan]), histories_of([[0]], 2), 1, exclude_seen=False)


@pytest.mark.parametrize("k", [0, -1])
def test_k_must_be_positive(k: int) -> None:
    with pytest.raises(ConfigError, match="k="):
        top_k(constant([1.0]), histories_of([[0]], 1), k, exclude_seen=False)


# --- spaces


@pytest.mark.parametrize(
    "space",
    [
        Uniform(0.2, 0.9, 0.5),
        LogUniform(0.01, 100.0, 1.0),
        Integers(3, 6, 4),
        LogIntegers(2, 500, 50),
        Choice(("a", "b"), "a"),
    ],
)
def test_draws_stay_inside_and_reach_around(space: Range) -> None:
    rng = np.random.default_rng(0)
    drawn = [space.draw(rng) for _ in range(2000)]
    if isinstance(space, Choice):
        assert set(drawn) == set(space.values)
        return
    assert all(space.low <= value <= space.high for value in drawn)
    if isinstance(space, Integers):
        assert set(drawn) == set(range(space.low, space.high + 1))
    if isinstance(space, LogUniform | LogIntegers):
        middle = math.sqrt(space.low * space.high)
        assert 0.4 < sum(value < middle for value in drawn) / 2000 < 0.6


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: rival.name)
def test_defaults_lie_in_the_space(rival: Rival) -> None:
    for name, choice in rival.space.items():
        default = rival.defaults()[name]
        inside = (
            default in choice.values if isinstance(choice, Choice) else choice.low <= default <= choice.high
        )
        assert inside, name


# --- tuning


def _needle(tried: list[float]) -> Rival:
    """Ranks the right item first only where x is near 3."""

    def fit(log: Log, params: Params, seed: int) -> Scores:
        tried.append(params["x"])
        return constant([1.0, 0.0] if abs(params["x"] - 3) > 1 else [0.0, 1.0])

    return Rival("needle", {"x": Uniform(0.0, 10.0, default=9.0)}, fit)


LABEL_ONE = Ragged.from_rows([[1], []])
TWO_USERS = histories_of([[], [0]], 2)


def test_tuning_tries_the_defaults_first_and_finds_the_best() -> None:
    tried: list[float] = []
    log = make_log([[0], [1]], 2)
    tuned = tune_rival(_needle(tried), log, TWO_USERS, LABEL_ONE, False, 20, seed=0, metric="hit@1")
    assert tried[0] == 9.0
    assert len(tried) == len(tuned.table) == 20
    assert abs(tuned.params["x"] - 3) <= 1
    assert tuned.value == 1.0
    assert [trial.value for trial in tuned.table] == [float(abs(x - 3) <= 1) for x in tried]


def test_tuning_averages_over_users_with_labels_alone() -> None:
    log = make_log([[0], [1]], 2)
    rival = Rival("fixed", {}, lambda log, params, seed: constant([1.0, 0.0]))
    labels = Ragged.from_rows([[0], [], [1]])
    histories = histories_of([[], [], []], 2)
    assert tune_rival(rival, log, histories, labels, False, 1, 0, "hit@1").value == 0.5
    second = 1 / math.log2(3)  # item 1 stands at rank 2
    assert tune_rival(rival, log, histories, labels, False, 1, 0).value == pytest.approx((1 + second) / 2)


def test_the_same_seed_tries_the_same_and_another_another() -> None:
    log = make_log([[0], [1]], 2)
    tables = []
    for seed in (1, 1, 2):
        tried: list[float] = []
        tune_rival(_needle(tried), log, TWO_USERS, LABEL_ONE, False, 5, seed)
        tables.append(tried)
    assert tables[0] == tables[1] != tables[2]


def test_equal_trials_go_to_the_first_and_are_not_fitted_twice() -> None:
    fitted: list[Params] = []

    def fit(log: Log, params: Params, seed: int) -> Scores:
        fitted.append(params)
        return constant([1.0, 0.0])

    rival = Rival("flat", {"x": Choice(("a", "b"), "b")}, fit)
    tuned = tune_rival(rival, make_log([[0]], 2), TWO_USERS, LABEL_ONE, False, 8, 0)
    assert tuned.params == {"x": "b"}
    assert len(tuned.table) == 8
    assert sorted(params["x"] for params in fitted) == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"trials": 0}, ConfigError, "trials"),
        ({"labels": Ragged.from_rows([[1]])}, InputError, "2 histories for 1"),
        ({"labels": Ragged.from_rows([[], []])}, InputError, "no validation user"),
        ({"metric": "luck@10"}, ConfigError, "luck"),
        ({"metric": "ndcg"}, ConfigError, "ndcg"),
    ],
)
def test_tuning_refuses_what_makes_no_sense(changes: dict, error: type[Exception], match: str) -> None:
    arguments = {"trials": 1, "labels": LABEL_ONE, "metric": "ndcg@10"} | changes
    with pytest.raises(error, match=match):
        tune_rival(_needle([]), make_log([[0]], 2), TWO_USERS, exclude_seen=False, seed=0, **arguments)


def test_tuning_has_no_way_to_see_test_labels() -> None:
    named = set(inspect.signature(tune_rival).parameters)
    assert named == {
        "rival", "train_log", "histories", "labels", "exclude_seen", "trials", "seed", "metric",
    }  # fmt: skip
    assert len(inspect.signature(_needle([]).fit).parameters) == 3  # log, params, seed: no labels at all


def test_every_rival_gets_the_same_number_of_trials() -> None:
    histories, labels = replay(LOG, 10), Ragged.from_rows([[user % 2] for user in range(60)])
    tables = [tune_rival(rival, LOG, histories, labels, True, 4, seed=0).table for rival in RIVALS]
    assert [len(table) for table in tables] == [4] * len(RIVALS)


# --- the rivals themselves


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: rival.name)
def test_scores_have_a_row_per_history_and_repeat(rival: Rival) -> None:
    histories = histories_of([[0, 2], [1], []], 20)
    first = rival.fit(LOG, rival.defaults(), 3)(histories)
    again = rival.fit(LOG, rival.defaults(), 3)(histories)
    assert first.shape == (3, 20)
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("name", sorted(PERSONAL))
def test_personal_rivals_understand_a_checkerboard(name: str) -> None:
    rival = next((rival for rival in RIVALS if rival.name == name), None)
    if rival is None:
        pytest.skip(line_up(LOG, GIB).skipped[name])
    params = rival.defaults() | ({"factors": 2} if name == "iALS" else {})  # the world has rank two
    histories = histories_of([[0, 2, 4, 6], [1, 3, 5, 7]], 20)
    ranked = top_k(rival.fit(LOG, params, 0), histories, 6, exclude_seen=True)
    for parity in (0, 1):
        assert set(ranked[parity].tolist()) == set(range(8 + parity, 20, 2))


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: rival.name)
def test_whoever_has_no_history_gets_something_popular(rival: Rival) -> None:
    log = make_log([[3, 1], [3, 2], [3, 1], [3]], 5)
    params = rival.defaults() | ({"factors": 2} if rival.name == "iALS" else {})
    ranked = top_k(rival.fit(log, params, 0), histories_of([[]], 5), 1, exclude_seen=True)
    assert ranked.tolist() == [[3]]


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: rival.name)
def test_histories_may_hold_items_from_after_the_fit(rival: Rival) -> None:
    params = rival.defaults() | ({"factors": 2} if rival.name == "iALS" else {})
    ranked = top_k(rival.fit(LOG, params, 0), histories_of([[0, 25], [25]], 30), 3, exclude_seen=True)
    assert ((ranked >= 0) & (ranked < 20)).all()


def test_popularity_counts_events_or_users() -> None:
    log = make_log([[0, 0, 0], [1], [1]], 3)
    history = histories_of([[]], 3)
    fit = popularity.all_time().fit
    assert fit(log, {"count": "events"}, 0)(history).tolist() == [[3.0, 2.0, 0.0]]
    assert fit(log, {"count": "users"}, 0)(history).tolist() == [[1.0, 2.0, 0.0]]


def test_recent_popularity_is_as_of_the_last_event_of_its_log() -> None:
    log = make_log([[0, 1]], 2)  # one hour apart
    scores = popularity.recent().fit(log, {"half_life_days": 1 / 24}, 0)(histories_of([[]], 2))
    assert scores.tolist() == [[0.5, 1.0]]


def test_ease_counts_a_new_log_anew() -> None:
    rival, history = ease(), histories_of([[0]], 4)
    for pair in ([0, 1], [0, 2], [0, 3]):
        log = make_log([pair, pair, [3, 2, 1]], 4)
        ranked = top_k(rival.fit(log, {"l2": 0.1}, 0), history, 1, exclude_seen=True)
        assert ranked.tolist() == [[pair[1]]]


def test_item_knn_hands_on_all_its_parameters() -> None:
    assert set(item_knn().space) == {"neighbours", "shrink", "similarity", "popularity_power"}
    params = {"neighbours": 1, "shrink": 0.0, "similarity": "jaccard", "popularity_power": 0.5}
    log = make_log([[0, 1], [0, 1], [0, 2]], 3)
    scores = item_knn().fit(log, params, 0)(histories_of([[0]], 3))
    assert scores[0].tolist() == pytest.approx([0.0, 2 / 3, 1 / 3])


def test_the_seed_reaches_ials() -> None:
    if ials.why_missing():
        pytest.skip(ials.why_missing())
    params = {"factors": 4, "regularization": 0.1, "alpha": 5.0, "iterations": 2}
    histories = histories_of([[0, 2]], 20)
    one, two = (ials.ials().fit(LOG, params, seed)(histories) for seed in (1, 2))
    assert not np.array_equal(one, two)


# --- who takes part


def test_everyone_takes_part_where_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ials, "why_missing", lambda: None)
    names = [rival.name for rival in line_up(LOG, GIB).rivals]
    assert names == ["popularity", "recent popularity", "item-kNN", "EASE", "iALS"]
    assert line_up(LOG, GIB).skipped == {}


def test_a_missing_package_skips_ials_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ials, "PACKAGES", ("surely_not_installed",))
    found = line_up(LOG, GIB)
    assert "iALS" not in [rival.name for rival in found.rivals]
    assert "surely_not_installed" in found.skipped["iALS"]
    assert "pip install" in found.skipped["iALS"]
    with pytest.raises(MissingExtraError, match="surely_not_installed"):
        ials.ials().fit(LOG, {}, 0)


def test_too_little_memory_skips_ease() -> None:
    found = line_up(LOG, 1000)
    assert "EASE" not in [rival.name for rival in found.rivals]
    assert "20 items" in found.skipped["EASE"]


def test_an_untimed_log_skips_recent_popularity() -> None:
    untimed = make_log([[0, 1], [1]], 2, timed=False)
    found = line_up(untimed, GIB)
    assert "recent popularity" not in [rival.name for rival in found.rivals]
    assert "timestamps" in found.skipped["recent popularity"]
    with pytest.raises(ConfigError, match="timestamps"):
        popularity.recent().fit(untimed, {"half_life_days": 1.0}, 0)
