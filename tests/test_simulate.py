"""The simulated log does what its truth says: exposure, clicks, popularity, births, drift, repeats."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from rootbeam.core.errors import ConfigError
from rootbeam.data.contract import COLUMNS, DTYPES
from rootbeam.data.names import category_paths, item_titles
from rootbeam.data.simulate import Simulation, simulate
from rootbeam.data.world_config import DAY_MS, SimulationConfig

START_MS = SimulationConfig().start_ms


def codes(frame: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Dense users and items of a frame: "u12" is 12, "i7" is 7."""
    return tuple(frame[name].str.slice(1).cast(pl.Int64).to_numpy() for name in ("user_id", "item_id"))


@pytest.fixture(scope="module")
def default() -> Simulation:
    return simulate()


@pytest.fixture(scope="module")
def shown() -> Simulation:
    """Everyone likes little, so that a handful of events takes thousands of requests."""
    tiny = SimulationConfig(
        users=4, items=10, events=20, days=2, slate=4, appeal=-6, depth=2, branch=2, births=0.9
    )
    return simulate(tiny, seed=1, impressions=True)


@pytest.fixture(scope="module")
def clicked() -> Simulation:
    settings = SimulationConfig(users=300, items=200, events=6_000, days=10, slate=6, depth=2, branch=3)
    return simulate(settings, seed=2, impressions=True)


# The frames


def test_events_keep_the_canonical_contract(default: Simulation) -> None:
    frame = default.events
    expected = [name for name in COLUMNS if name in frame.columns]
    assert frame.columns == [*expected, "shown_rank"]
    assert set(expected) == {"user_id", "item_id", "timestamp", "weight", "propensity", "request_id"}
    assert frame["user_id"].dtype == pl.String
    assert frame["item_id"].dtype == pl.String
    assert all(frame[name].dtype == DTYPES[name] for name in expected if name in DTYPES)
    assert frame.null_count().sum_horizontal().item() == 0
    assert frame["timestamp"].is_sorted()
    assert frame["propensity"].is_between(0, 1, closed="right").all()
    assert (frame["weight"] == 1).all()


def test_the_log_has_the_sizes_asked_for(default: Simulation) -> None:
    assert len(default.events) == 100_000
    assert len(default.items) == 1_500
    users, items = codes(default.events)
    assert users.max() < 2_000
    assert items.max() < 1_500
    stamps = default.events["timestamp"].cast(pl.Int64)
    assert stamps.min() >= START_MS
    assert stamps.max() <= START_MS + 90 * DAY_MS
    assert stamps.max() > START_MS + 88 * DAY_MS


@pytest.mark.parametrize("events", [1, 37, 500])
@pytest.mark.parametrize("days", [0.01, 1, 7.5, 1_000])
def test_exactly_the_events_asked_for(events: int, days: float) -> None:
    log = simulate(users=60, items=40, events=events, days=days, seed=events)
    assert len(log.events) == events
    assert log.events["timestamp"].cast(pl.Int64).max() <= START_MS + days * DAY_MS


def test_the_seed_decides(clicked: Simulation) -> None:
    again = simulate(clicked.truth.config, seed=2, impressions=True)
    assert again.events.equals(clicked.events)
    assert again.items.equals(clicked.items)
    assert again.impressions.equals(clicked.impressions)
    assert not simulate(clicked.truth.config, seed=5).events.equals(clicked.events)


def test_keeping_impressions_changes_nothing_else(clicked: Simulation) -> None:
    without = simulate(clicked.truth.config, seed=2)
    assert without.impressions is None
    assert_frame_equal(without.events, clicked.events)  # propensities up to rounding


def test_keywords_override_the_config() -> None:
    log = simulate(
        SimulationConfig(users=50, items=30, events=9), users=70, events=100, drift=0.5, days=3, seed=0
    )
    assert log.truth.config == SimulationConfig(users=70, items=30, events=100, drift=0.5, days=3)


def test_one_item_is_a_world() -> None:
    log = simulate(users=50, items=1, events=20, seed=0)
    assert log.events["item_id"].unique().to_list() == ["i0"]
    assert log.events["user_id"].n_unique() == 20


def test_the_first_event_is_never_a_repeat() -> None:
    assert simulate(users=5, items=5, events=1, repeats=0.95, seed=0).events["request_id"].null_count() == 0


def test_impressions_and_events_tell_one_story(clicked: Simulation) -> None:
    on = ["user_id", "item_id", "request_id", "shown_rank"]
    taken = clicked.impressions.filter("clicked")
    joined = taken.join(clicked.events, on=on, suffix="_event")
    assert len(taken) == len(clicked.events) == len(joined)
    assert (joined["propensity"] == joined["propensity_event"]).all()
    waited = (joined["timestamp_event"] - joined["timestamp"]).dt.total_milliseconds()
    assert waited.min() >= 0
    assert waited.max() < 60_000
    assert not clicked.impressions.select("request_id", "item_id").is_duplicated().any()


# Exposure


def test_items_are_shown_as_often_as_the_truth_says(shown: Simulation) -> None:
    truth, frame = shown.truth, shown.impressions
    user, item = codes(frame)
    period = truth.period_of(frame["timestamp"].to_numpy())
    first = frame["shown_rank"].to_numpy() == 1  # every request fills its first slot
    deviations = []
    for day in range(2):
        now_ms = START_MS + day * DAY_MS
        m = truth.exposure(np.arange(4)[:, None], np.arange(10)[None], now_ms)  # (users, items)
        requests = np.bincount(user[first & (period == day)], minlength=4)[:, None]
        assert requests.min() > 50
        seen = np.zeros((4, 10))
        np.add.at(seen, (user[period == day], item[period == day]), 1)
        assert (seen[m == 0] == 0).all()
        spread = np.sqrt(requests * m * (1 - m))
        deviations.append(((seen - requests * m)[m > 0] / spread[m > 0]).ravel())
    z = np.concatenate(deviations)
    assert np.abs(z).max() < 4.5
    assert 0.6 < np.mean(z**2) < 1.5  # binomial, neither wider nor narrower


def test_the_policy_knows_users(shown: Simulation) -> None:
    m = shown.truth.exposure(np.arange(4)[:, None], np.arange(10)[None], START_MS)
    assert np.abs(m[0] - m[1]).max() > 0.05


def test_slot_probabilities_sum_to_one(default: Simulation) -> None:
    p = default.truth.slot_probability(np.arange(20)[:, None], np.arange(1_500)[None], START_MS + 40 * DAY_MS)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-9)


def test_exposure_follows_from_the_slots(default: Simulation) -> None:
    at = (7, np.arange(30), START_MS + 5 * DAY_MS)
    p, m = default.truth.slot_probability(*at), default.truth.exposure(*at)
    for one, expected in zip(p.tolist(), m.tolist(), strict=True):
        assert math.isclose(1 - math.prod([1 - one] * 10), expected, abs_tol=1e-12)


def test_recorded_propensity_is_first_drawn_at_this_rank(clicked: Simulation) -> None:
    frame = clicked.impressions.head(2_000)
    p = clicked.truth.slot_probability(*codes(frame), frame["timestamp"].to_numpy())
    rank = frame["shown_rank"].to_numpy()
    np.testing.assert_allclose(frame["propensity"], p * (1 - p) ** (rank - 1), rtol=1e-9)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_inverse_propensities_count_the_items_that_could_be_shown(shown: Simulation, rank: int) -> None:
    """E[Σ 1/propensity over one rank of one request] = the number of available items."""
    frame, truth = shown.impressions, shown.truth
    period = truth.period_of(frame["timestamp"].to_numpy())
    first = frame["shown_rank"].to_numpy() == 1
    available = np.array([(truth.attractiveness(day) > 0).sum() for day in range(2)])
    here = frame["shown_rank"].to_numpy() == rank
    inverse = 1 / frame["propensity"].to_numpy()[here]
    expected = available[period[first]].sum()
    spread = math.sqrt((inverse**2).sum())
    assert abs(inverse.sum() - expected) < 4 * spread
    assert spread < 0.1 * expected  # tight enough to fail


# Clicks


def test_click_rate_is_relevance_times_examination(clicked: Simulation) -> None:
    frame = clicked.impressions.filter(~pl.col("consumed"))
    gamma = clicked.truth.relevance(*codes(frame), frame["timestamp"].to_numpy())
    rank = frame["shown_rank"].to_numpy()
    chance = gamma * 1 / rank
    took = frame["clicked"].to_numpy()
    groups = [rank == r for r in range(1, 7)]
    groups += list(np.digitize(gamma, [0.05, 0.15, 0.3]) == np.arange(4)[:, None])
    for group in groups:
        p = chance[group]
        assert len(p) > 500
        assert abs(took[group].sum() - p.sum()) < 4 * math.sqrt((p * (1 - p)).sum())


def test_nothing_is_taken_twice_without_repeats(clicked: Simulation) -> None:
    assert not clicked.events.select("user_id", "item_id").is_duplicated().any()
    consumed = clicked.impressions.filter("consumed")
    assert len(consumed) > 1_000
    assert not consumed["clicked"].any()


def test_relevance_restated() -> None:
    truth = simulate(users=5, items=6, events=3, days=1, seed=4).truth
    config = replace(truth.config)
    day, user = START_MS, 2
    theta = truth.taste([user], day)[0]
    for item in range(6):
        age_days = (START_MS - truth.birth_ms[item]) / DAY_MS
        leaf = truth.category_codes[-1, item]
        wave = config.trend * math.sin(2 * math.pi * truth.trend_phase[leaf])
        affinity = math.sqrt(config.dimensions) * sum(theta * truth.item_vectors[item])
        liking = 1 / (1 + math.exp(-(config.appeal + config.sharpness * affinity + wave)))
        fading = 0.5 ** (age_days / (truth.half_life_ms[item] / DAY_MS)) if age_days >= 0 else 0.0
        assert truth.relevance(user, item, day) == pytest.approx(liking * fading, rel=1e-4)


# Laws


def test_popularity_follows_the_law() -> None:
    flat = SimulationConfig(
        users=20_000, items=200, events=20_000, days=5, popularity_exponent=0.8, activity_exponent=0,
        explore=0, popular=1, evergreen=1, births=0, sharpness=0, trend=0, drift=0,
    )  # fmt: skip
    _, item = codes(simulate(flat, seed=0).events)
    counts = np.sort(np.bincount(item, minlength=200))[::-1][:80]
    slope = np.polyfit(np.log(np.arange(1, 81)), np.log(counts), 1)[0]
    assert slope == pytest.approx(-0.8, abs=0.08)


def test_activity_follows_the_law() -> None:
    settings = SimulationConfig(users=200, items=3_000, events=8_000, days=5, activity_exponent=0.5, drift=0)
    log = simulate(settings, seed=0)
    user, _ = codes(log.events)
    expected = np.sort(log.truth.activity)
    np.testing.assert_allclose(
        expected[::-1], np.arange(1, 201) ** -0.5 / sum(r**-0.5 for r in range(1, 201))
    )
    counts = np.bincount(user, minlength=200)
    busiest = np.argsort(-log.truth.activity)
    assert counts[busiest[:20]].mean() > 2 * counts[busiest[100:]].mean()
    assert np.corrcoef(counts, log.truth.activity)[0, 1] > 0.5


def test_items_appear_only_after_birth(default: Simulation) -> None:
    _, item = codes(default.events)
    stamps = default.events["timestamp"].cast(pl.Int64).to_numpy()
    born = default.truth.birth_ms
    assert (stamps >= born[item]).all()
    later = np.flatnonzero(born > START_MS)
    assert len(later) > 500
    assert np.isin(later, item).mean() > 0.7
    assert default.truth.relevance(0, later, START_MS).max() == 0
    assert default.truth.exposure(0, later, START_MS).max() == 0


def test_items_fade_and_evergreens_do_not(default: Simulation) -> None:
    truth = default.truth
    evergreen = np.isinf(truth.half_life_ms)
    assert evergreen.mean() == pytest.approx(0.2, abs=0.05)
    old = truth.birth_ms <= START_MS
    early, late = truth.attractiveness(0), truth.attractiveness(80)
    assert (early[old & evergreen] == 1).all()
    assert (late[old & evergreen] == 1).all()
    fading = old & ~evergreen & (late > 1e-3)
    halvings = 80 * DAY_MS / truth.half_life_ms[fading]
    np.testing.assert_allclose(early[fading] / late[fading], 2**halvings, rtol=1e-6)


def test_without_drift_tastes_are_fixed() -> None:
    truth = simulate(users=40, items=30, events=50, drift=0, seed=0).truth
    users = np.arange(40)
    np.testing.assert_array_equal(truth.taste(users, START_MS), truth.taste(users, START_MS + 89 * DAY_MS))


def test_drift_takes_tastes_apart() -> None:
    truth = simulate(users=3_000, items=30, events=50, drift=0.02, seed=0).truth
    users = np.arange(3_000)
    start = truth.taste(users, START_MS)
    np.testing.assert_allclose(np.linalg.norm(start, axis=1), 1)
    kept = [
        (start * truth.taste(users, START_MS + d * DAY_MS)).sum(axis=1).mean() for d in (0, 10, 30, 60, 89)
    ]
    assert all(later < earlier for earlier, later in pairwise(kept))
    assert kept[3] == pytest.approx(math.exp(-0.02 * 60), abs=0.08)


def test_tastes_move_without_jumps() -> None:
    truth = simulate(users=500, items=30, events=50, drift=0.02, seed=0).truth
    path = np.stack([truth.taste(np.arange(500), START_MS + d * DAY_MS) for d in range(90)])
    step = (path[1:] * path[:-1]).sum(axis=2).mean(axis=1)  # (days - 1,)
    assert step.min() > 0.97
    assert step.max() < 1


@pytest.mark.parametrize("repeats", [0.2, 0.6])
def test_repeats_are_the_share_asked_for(repeats: float) -> None:
    events = simulate(users=200, items=150, events=5_000, repeats=repeats, seed=0).events
    assert len(events) == 5_000
    again = events.select(pl.struct("user_id", "item_id").is_first_distinct().not_()).to_series()
    assert again.sum() == round(repeats * 5_000)
    assert events.filter(again)["request_id"].null_count() == again.sum()  # each after its first consumption
    assert (events.filter(again)["propensity"] == 1).all()
    assert events["timestamp"].is_sorted()


def test_repeats_come_from_the_whole_history_and_lean_to_the_recent() -> None:
    events = simulate(users=50, items=400, events=6_000, repeats=0.5, seed=0).events
    firsts: dict[str, list[str]] = {}
    ages = []
    for user, item, request in events.select("user_id", "item_id", "request_id").iter_rows():
        if request is not None:
            firsts.setdefault(user, []).append(item)
        else:
            ages.append((len(firsts[user]) - 1 - firsts[user].index(item)) / len(firsts[user]))
    assert len(ages) == 3_000
    assert 0.25 < np.mean(ages) < 0.45  # E[u²] = 1/3; 1/2 were it uniform
    assert max(ages) > 0.9


def test_categories_hang_together(default: Simulation) -> None:
    vectors, levels = default.truth.item_vectors, default.truth.category_codes
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    cosine = vectors @ vectors.T
    same = levels[:, :, None] == levels[:, None, :]  # (depth, items, items)
    np.fill_diagonal(same[-1], False)
    leaf, branch = cosine[same[-1]].mean(), cosine[same[0] & ~same[-1]].mean()
    apart = cosine[~same[0]].mean()
    assert leaf > branch + 0.2
    assert branch > apart + 0.1


def test_the_tree_order_keeps_categories_together(default: Simulation) -> None:
    order = default.truth.tree_order
    assert sorted(order) == list(range(1_500))
    assert (np.diff(default.truth.category_codes[:, order], axis=1) >= 0).all()


# Names


def test_items_have_readable_names_of_their_own(default: Simulation) -> None:
    items = default.items
    assert items.columns == ["item_id", "title", "category", "category_path"]
    assert items["title"].n_unique() == 1_500
    assert items["category"].n_unique() == 125
    assert items["category_path"].list.len().unique().to_list() == [3]
    assert (items["category_path"].list.last() == items["category"]).all()
    leaf = default.truth.category_codes[-1]
    assert pl.DataFrame({"name": items["category"], "leaf": leaf}).unique().height == 125
    first = items.filter(pl.col("item_id") == "i0").row(0, named=True)
    assert first["title"].startswith(first["category_path"][1])


@pytest.mark.parametrize(("depth", "branch"), [(1, 1), (1, 60), (2, 30), (3, 16), (6, 4), (12, 2)])
def test_category_names_never_collide(depth: int, branch: int) -> None:
    paths = category_paths(depth, branch)
    assert len({tuple(path) for path in paths}) == branch**depth
    assert len({path[-1] for path in paths}) == branch**depth
    assert len(set(item_titles(paths, np.arange(branch**depth)))) == branch**depth


# Is it worth learning from?


def test_personal_models_beat_popularity_and_recency_matters(default: Simulation) -> None:
    user, item = codes(default.events)
    cut, shape = 90_000, (2_000, 1_500)
    history = np.zeros(shape, dtype=np.float32)
    history[user[:cut], item[:cut]] = 1
    labels = np.zeros(shape, dtype=bool)
    labels[user[cut:], item[cut:]] = True
    labels &= history.sum(axis=0) > 0

    def recall_at_20(scores: np.ndarray) -> float:
        ranked = np.argsort(-np.where(history > 0, -np.inf, scores), axis=1, kind="stable")[:, :20]
        hits = np.take_along_axis(labels, ranked, axis=1).sum(axis=1)
        some = labels.sum(axis=1) > 0
        return float((hits[some] / labels.sum(axis=1)[some]).mean())

    together = history.T @ history
    count = np.diag(together).copy()
    cosine = together / np.sqrt(np.outer(count, count) + 1e-9)
    np.fill_diagonal(cosine, 0)
    inverse = np.linalg.inv(together + 100 * np.eye(1_500))
    ease = -inverse / np.diag(inverse)
    np.fill_diagonal(ease, 0)
    days_ago = (default.events["timestamp"][cut] - default.events["timestamp"][:cut]).dt.total_hours() / 24
    recent = np.bincount(item[:cut], weights=0.5 ** (days_ago.to_numpy() / 7), minlength=1_500)

    popular = recall_at_20(np.broadcast_to(count, shape))
    personal = recall_at_20(history @ ease)
    assert personal > 1.6 * popular
    assert recall_at_20(history @ cosine) > 1.5 * popular
    assert recall_at_20(np.broadcast_to(recent, shape)) > 1.05 * popular
    fitted = history @ ease
    assert recall_at_20(fitted / fitted.std() + np.log(recent + 1e-3)) > 1.05 * personal


@pytest.mark.slow
def test_a_million_events_take_seconds() -> None:
    began = time.process_time()
    log = simulate(users=20_000, items=10_000, events=1_000_000, seed=0)
    assert time.process_time() - began < 30  # about 5 on a free core
    assert len(log.events) == 1_000_000


# Bad settings

BAD: list[tuple[dict[str, Any], str]] = [
    ({"users": 0}, "users=0"),
    ({"users": -5}, "users=-5"),
    ({"users": 2.5}, "users=2.5"),
    ({"users": True}, "users=True"),
    ({"users": "many"}, "users='many'"),
    ({"items": 0}, "items=0"),
    ({"events": 0}, "events=0"),
    ({"days": 0}, "days=0"),
    ({"days": math.nan}, "days=nan"),
    ({"days": math.inf}, "days=inf"),
    ({"drift": -0.1}, "drift=-0.1"),
    ({"repeats": -0.1}, "repeats=-0.1"),
    ({"repeats": 1.0}, "repeats=1.0"),
    ({"start_ms": -1}, "start_ms=-1"),
    ({"depth": 0}, "depth=0"),
    ({"branch": 0}, "branch=0"),
    ({"depth": 13, "branch": 2}, "leaf categories"),
    ({"dimensions": 0}, "dimensions=0"),
    ({"slate": 0}, "slate=0"),
    ({"slate": 101}, "slate=101"),
    ({"evergreen": 1.5}, "evergreen=1.5"),
    ({"births": -0.5}, "births=-0.5"),
    ({"half_life_days": 0}, "half_life_days=0"),
    ({"popularity_exponent": -1}, "popularity_exponent=-1"),
    ({"explore": 0.7, "popular": 0.7}, "explore + popular"),
    ({"users": 10, "items": 10, "events": 101}, "users × items = 100"),
]


@pytest.mark.parametrize(("settings", "named"), BAD, ids=[str(settings) for settings, _ in BAD])
def test_bad_settings_are_refused_in_one_line(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SimulationConfig(**settings)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "settings", [{"users": 0}, {"drift": -1.0}, {"seed": -1}, {"seed": 1.5}, {"seed": None}]
)
def test_bad_keywords_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        simulate(**settings)


def test_a_saturated_world_is_refused() -> None:
    with pytest.raises(ConfigError, match="too many for users=10 × items=10"):
        simulate(SimulationConfig(users=10, items=10, events=100, half_life_days=0.05, evergreen=0), seed=0)
