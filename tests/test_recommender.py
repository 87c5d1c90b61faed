"""The Recommender on worlds whose right answer is known."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from test_train import SMALL
from worlds import DAY_MS, checkerboard

import rootbeam as rb
from rootbeam.core.config import DataConfig
from rootbeam.core.errors import ConfigError, EventsError, InputError, UnknownIdError
from rootbeam.data.history import replay
from rootbeam.data.split import Holdout, split
from rootbeam.learn.popularity import recent_counts
from rootbeam.prepare import prepare
from rootbeam.recommender import Recommender, load
from rootbeam.task import mark_of, write_trained
from rootbeam.train import train

WORLD = checkerboard()
ITEMS = 20


@pytest.fixture(scope="module")
def fitted():
    return Recommender(SMALL).fit(WORLD, model="neighbours")


@pytest.fixture
def fresh(fitted, tmp_path):
    fitted.save(tmp_path / "fresh")
    return load(tmp_path / "fresh")


def frame(rows: list[tuple], *columns: str) -> pl.DataFrame:
    """A canonical frame of (user, item[, days]) rows."""
    made = pl.DataFrame(
        rows, schema=list(columns or ("user_id", "item_id", "timestamp"))[: len(rows[0])], orient="row"
    )
    if "timestamp" in made.columns:
        ms = (pl.col("timestamp") * DAY_MS).cast(pl.Int64)
        made = made.with_columns(pl.from_epoch(ms, time_unit="ms").cast(pl.Datetime("ms")))
    return made.with_columns(weight=pl.lit(1.0, pl.Float32))


def seen_by(user) -> set:
    return set(WORLD.filter(pl.col("user_id") == user)["item_id"])


def parity(name: str) -> int:
    return int(name[1:]) % 2


# -- what is recommended ------------------------------------------------------------


def test_each_half_of_the_checkerboard_gets_its_own_color(fitted):
    for user in ("u0", "u1", "u2", "u3"):
        mine = {f"i{i}" for i in range(ITEMS) if i % 2 == parity(user)}
        missing = mine - seen_by(user)
        top = fitted.recommend([user], k=max(1, len(missing)))["item_id"].to_list()
        assert set(top) >= missing


def test_the_frame_is_as_the_design_says(fitted):
    found = fitted.recommend(["u1", "u0"], k=5)
    assert found.columns == ["user_id", "item_id", "score", "rank", "source"]
    assert found["user_id"].to_list() == ["u1"] * 5 + ["u0"] * 5
    assert found["rank"].to_list() == [1, 2, 3, 4, 5] * 2
    assert set(found["source"]) == {"model"}
    for _, rows in found.group_by("user_id"):
        assert rows["score"].is_sorted(descending=True)
        assert rows["item_id"].n_unique() == 5
        assert rows["score"].is_finite().all()


def test_a_user_answered_alone_is_answered_the_same(fitted):
    users = ["u5", "nobody", "u2", "u5"]
    together = fitted.recommend(users, k=4)
    assert_frame_equal(together, pl.concat([fitted.recommend([u], k=4) for u in users]))


def test_a_history_is_answered_as_the_user_who_has_it(fitted):
    users = ["u0", "u7", "u31"]
    by_history = fitted.recommend_from_history([fitted.history_of(u) for u in users], k=6)
    by_user = fitted.recommend(users, k=6)
    assert by_history["history"].to_list() == [0] * 6 + [1] * 6 + [2] * 6
    assert_frame_equal(by_history.drop("history"), by_user.drop("user_id"))


@pytest.mark.parametrize("rung", ["popularity", "neighbours", "sequence"])
def test_saving_and_loading_changes_nothing(rung, tmp_path):
    before = Recommender(SMALL).fit(WORLD, model=rung)
    before.save(tmp_path / "m")
    after = load(tmp_path / "m")
    users = [*(f"u{n}" for n in range(60)), "stranger"]
    assert_frame_equal(after.recommend(users, k=7), before.recommend(users, k=7), check_exact=True)
    assert after.config == before.config
    assert after.model.facts == before.model.facts
    assert after.model.trained.ladder == before.model.trained.ladder
    after.save(tmp_path / "again")
    for name in ("weights.safetensors", "histories.safetensors", "ids.parquet"):
        assert (tmp_path / "m" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


# -- exactly k ----------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 9, 10, 20, 21, 10**12])
@pytest.mark.parametrize("exclude_seen", [True, False])
def test_exactly_k_items_whenever_k_exist(fitted, k, exclude_seen):
    allow, deny = [f"i{n}" for n in range(14)] + ["unheard of"], ["i1", "i2", "i3", "unheard of"]
    users = ["u0", "u1", "u2", "stranger"]
    found = fitted.recommend(users, k=k, exclude_seen=exclude_seen, allow=allow, deny=deny)
    for user in users:
        left = set(allow[:-1]) - set(deny) - (seen_by(user) if exclude_seen else set())
        got = found.filter(pl.col("user_id") == user)["item_id"].to_list()
        assert len(got) == len(set(got)) == min(k, len(left))
        assert set(got) <= left


def test_items_that_are_not_available_are_never_returned(tmp_path):
    items = pl.DataFrame(
        {
            "item_id": [f"i{n}" for n in range(ITEMS)] + ["never seen"],
            "title": [f"Title {n}" for n in range(ITEMS)] + ["Ghost"],
            "available": [n % 3 != 0 if n != 1 else None for n in range(ITEMS)] + [True],
        }
    )
    rec = Recommender(SMALL).fit(WORLD, items=items, model="neighbours")
    rec.save(tmp_path / "m")
    for each in (rec, load(tmp_path / "m")):
        found = each.recommend(["u0", "stranger"], k=ITEMS, exclude_seen=False)
        expected = {f"i{n}" for n in range(ITEMS) if n % 3 != 0}
        for _, rows in found.group_by("user_id"):
            assert set(rows["item_id"]) == expected
        titles = dict(zip(each.model.items.external, each.model.titles, strict=True))
        assert titles == {f"i{n}": f"Title {n}" for n in range(ITEMS)}


def test_a_catalogue_in_another_order_or_type_finds_its_items():
    events = frame([(u, n, d) for u in range(6) for d, n in enumerate((10, 20, 30))])
    items = pl.DataFrame({"item_id": ["30", "010", "10", "20", "x"], "title": ["c", "late", "a", "b", "?"]})
    rec = Recommender(SMALL).fit(events, items=items.filter(pl.col("item_id") != "010"), model="popularity")
    assert dict(zip(rec.model.items.external, rec.model.titles, strict=True)) == {10: "a", 20: "b", 30: "c"}
    twice = Recommender(SMALL).fit(events, items=items, model="popularity")
    assert len(twice.model.catalogue) == 3


def test_bad_items_are_refused():
    with pytest.raises(EventsError, match="item_id"):
        Recommender(SMALL).fit(WORLD, items=pl.DataFrame({"title": ["a"]}), model="popularity")


def test_nothing_allowed_is_nothing_and_only_unknown_ones_are_an_error(fitted):
    assert len(fitted.recommend(["u0"], allow=[])) == 0
    with pytest.raises(UnknownIdError, match="none of the 2 allowed items"):
        fitted.recommend(["u0"], allow=["x", "y"])
    assert len(fitted.recommend(["u0"], k=3, deny=["x", "y"])) == 3


def test_no_users_are_no_rows(fitted):
    assert fitted.recommend([]).columns == ["user_id", "item_id", "score", "rank", "source"]
    assert len(fitted.recommend([])) == len(fitted.recommend_from_history([])) == 0


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_refused(fitted, k):
    with pytest.raises(ConfigError, match="k is"):
        fitted.recommend(["u0"], k=k)


def test_a_text_is_not_a_list_of_ids(fitted):
    with pytest.raises(InputError, match="needed a list"):
        fitted.recommend("u0")
    with pytest.raises(InputError, match="needed a list"):
        fitted.recommend_from_history(["i1", "i2"])


# -- the unknown --------------------------------------------------------------------


def test_unknown_users_get_recent_popularity_and_are_flagged(fitted):
    found = fitted.recommend(["u0", "stranger"], k=ITEMS, exclude_seen=False)
    assert found.filter(pl.col("user_id") == "u0")["source"].unique().to_list() == ["model"]
    strange = found.filter(pl.col("user_id") == "stranger")
    assert strange["source"].unique().to_list() == ["fallback"]
    counts = dict(zip(fitted.model.items.external, fitted.model.fallback.values, strict=True))
    order = [counts[item] for item in strange["item_id"]]
    assert order == sorted(order, reverse=True)
    log = prepare(WORLD, None, SMALL).task.full
    now, half_life = int(log.times.max()), fitted.model.fallback.half_life_days
    by_hand = [
        sum(
            2.0 ** (-(now - t) / DAY_MS / half_life)
            for t, i in zip(log.times, log.items, strict=True)
            if i == item
        )
        for item in range(ITEMS)
    ]
    np.testing.assert_allclose(fitted.model.fallback.values, by_hand, rtol=1e-9)


def test_unknown_items_of_a_history_are_passed_over(fitted):
    known = fitted.recommend_from_history([["i2", "i4"]], k=5)
    assert_frame_equal(fitted.recommend_from_history([["i2", "?", "i4", ""]], k=5), known)
    nothing = fitted.recommend_from_history([["?", "!"], []], k=5)
    assert nothing["source"].to_list() == ["fallback"] * 10


def test_history_of(fitted):
    rows = WORLD.filter(pl.col("user_id") == "u4").sort("timestamp")
    assert fitted.history_of("u4") == rows["item_id"].to_list()
    assert fitted.history_of("stranger") == []


def test_a_recommender_without_a_model_says_what_to_do():
    for call in (lambda r: r.recommend(["u"]), lambda r: r.save("x"), lambda r: r.observe(WORLD)):
        with pytest.raises(InputError, match="call fit"):
            call(Recommender())


# -- observing ----------------------------------------------------------------------


def test_an_observed_event_moves_the_user_at_once(fresh):
    before = fresh.recommend(["u0", "new"], k=10)
    item = before["item_id"][0]
    told = fresh.observe(frame([("u0", item, 30), ("new", "i3", 30), ("u0", "unheard of", 30)]))
    assert (told.applied, told.unknown_items) == (2, 1)
    after = fresh.recommend(["u0", "new"], k=10)
    assert item not in after.filter(pl.col("user_id") == "u0")["item_id"]
    assert fresh.history_of("u0")[-1] == item
    assert fresh.history_of("new") == ["i3"]
    mine = after.filter(pl.col("user_id") == "new")
    assert set(mine["source"]) == {"model"}
    assert {parity(i) for i in mine.head(9)["item_id"]} == {1}


@pytest.mark.parametrize("rung", ["popularity", "neighbours"])
def test_observing_equals_replaying_the_longer_log(rung, tmp_path):
    """Histories bit by bit, and the popularity, late events included, to rounding."""
    rng = np.random.default_rng(0)
    new = frame(
        [
            (f"u{rng.integers(0, 70)}", f"i{rng.integers(0, ITEMS)}", 8.0 + float(rng.random()) * 20)
            for _ in range(80)
        ]
    ).with_columns(weight=pl.Series(rng.random(80) + 0.5, dtype=pl.Float32))
    # Histories are in the order in which events are told; so those of a user must not be older than his last.
    last = WORLD.group_by("user_id").agg(pl.col("timestamp").max().alias("last"))
    new = (
        new.join(last, on="user_id", how="left")
        .filter(pl.col("last").is_null() | (pl.col("timestamp") > pl.col("last")))
        .drop("last")
    )
    rec = Recommender(SMALL).fit(WORLD, model=rung)
    for part in (
        new.sort("timestamp")[:30],
        new.sort("timestamp")[30:].sample(fraction=1, shuffle=True, seed=1),
    ):
        rec.observe(part)
    rec.save(tmp_path / "m")
    again = load(tmp_path / "m")
    users, items = again.model.users, rec.model.items
    from rootbeam.data.arrays import to_log

    log = to_log(pl.concat([WORLD, new], how="diagonal"), users, items)
    expected = replay(log, SMALL.data.history_length)
    for name in ("last", "events"):
        np.testing.assert_array_equal(getattr(again.model.histories, name), getattr(expected, name))
    np.testing.assert_array_equal(again.model.histories.seen.values, expected.seen.values)
    np.testing.assert_array_equal(again.model.histories.seen.ptr, expected.seen.ptr)
    recent = again.model.recent
    assert recent.as_of_ms == int(log.times.max())
    np.testing.assert_allclose(
        recent.values, recent_counts(log, recent.as_of_ms, recent.half_life_days), rtol=1e-9
    )
    assert again.model.facts["watermark"] == len(WORLD) + len(new) == again.model.histories.watermark.max()
    everyone = [*users.external, "stranger"]
    assert_frame_equal(again.recommend(everyone), rec.recommend(everyone), check_exact=True)


def test_popularity_moves_at_once(tmp_path):
    rec = Recommender(SMALL).fit(WORLD, model="popularity")
    counts = dict(zip(rec.model.items.external, rec.model.recent.values, strict=True))
    coldest = min(counts, key=counts.get)
    rec.observe(frame([(f"crowd{n}", coldest, 40) for n in range(500)]))
    assert rec.recommend(["u0"], k=1, exclude_seen=False)["item_id"].to_list() == [coldest]


def test_events_without_time_or_weight_can_be_observed(fresh):
    assert fresh.observe(pl.DataFrame({"user_id": ["n", "n"], "item_id": ["i1", "i3"]})).applied == 2
    assert fresh.history_of("n") == ["i1", "i3"]
    assert fresh.observe(WORLD.clear()).applied == 0


# -- kinds of ids and of logs -------------------------------------------------------


def integers() -> pl.DataFrame:
    return WORLD.with_columns(
        pl.col("user_id").str.slice(1).cast(pl.Int64) + 10**18, pl.col("item_id").str.slice(1).cast(pl.Int64)
    )


def test_integer_ids_stay_integers(tmp_path):
    rec = Recommender(SMALL).fit(integers(), model="neighbours")
    rec.save(tmp_path / "m")
    rec = load(tmp_path / "m")
    found = rec.recommend([10**18, 10**18 + 1], k=3)
    assert found.schema["user_id"] == found.schema["item_id"] == pl.Int64
    assert set(found["source"]) == {"model"}
    assert_frame_equal(rec.recommend([str(10**18), str(10**18 + 1)], k=3), found)
    assert rec.history_of(str(10**18)) == rec.history_of(10**18) != []
    mixed = rec.recommend([10**18, "a name"], k=3)
    assert mixed["user_id"].to_list() == [str(10**18)] * 3 + ["a name"] * 3
    assert mixed["source"].to_list() == ["model"] * 3 + ["fallback"] * 3


def test_integer_ids_are_observed_as_integers_however_they_are_spelled(tmp_path):
    rec = Recommender(SMALL).fit(integers(), model="neighbours")
    rec.observe(frame([(str(10**18), "3", 30), (str(5), "4", 30)]))
    assert rec.history_of(10**18)[-1] == 3
    rec.save(tmp_path / "m")
    assert load(tmp_path / "m").history_of(5) == [4]
    with pytest.raises(EventsError, match="'anna' is no integer"):
        rec.observe(frame([("anna", "3", 30)]))


def test_integers_are_found_among_names_that_spell_them(tmp_path):
    named = integers().with_columns(pl.col("user_id", "item_id").cast(pl.String))
    rec = Recommender(SMALL).fit(named, model="neighbours")
    rec.observe(frame([(10**18, 3, 30), (7, 4, 30)]))
    assert rec.history_of(10**18)[-1] == "3"
    rec.save(tmp_path / "m")
    assert load(tmp_path / "m").history_of(7) == ["4"]


@pytest.mark.parametrize(
    "log",
    [
        frame([("u", "i", 0)]),
        frame([("u", "i")]),
        frame([("u", "i", 0), ("v", "i", 1), ("w", "i", 2)]),
        frame([("u", "i", 0), ("u", "j", 0), ("v", "i", 0)]),
        frame([("u", f"i{n}", n) for n in range(12)]),
        frame([(f"u{n}", f"i{n}", n) for n in range(12)]),
        frame([("u", "i", n) for n in range(12)]),
        frame([(f"u{n % 5}", f"i{n % 8}", n // 39) for n in range(40)]),
    ],
    ids=[
        "one event",
        "one untimed event",
        "one item",
        "one moment",
        "one user",
        "strangers",
        "one pair",
        "nearly one moment",
    ],
)
def test_the_smallest_logs_have_sensible_answers(log, tmp_path):
    rec = Recommender(SMALL).fit(log)
    rec.save(tmp_path / "m")
    rec = load(tmp_path / "m")
    user, every_item = log["user_id"][0], set(log["item_id"])
    seen = set(log.filter(pl.col("user_id") == user)["item_id"])
    assert set(rec.recommend([user], k=50)["item_id"]) == every_item - seen
    assert set(rec.recommend([user], k=50, exclude_seen=False)["item_id"]) == every_item
    assert set(rec.recommend(["stranger"], k=50)["item_id"]) == every_item


def test_a_user_with_one_event_is_known_to_the_model():
    log = pl.concat([WORLD, frame([("once", "i4", 3)])])
    rec = Recommender(SMALL).fit(log, model="neighbours")
    found = rec.recommend(["once"], k=9)
    assert set(found["source"]) == {"model"}
    assert {parity(i) for i in found["item_id"]} == {0}


def test_no_events_are_refused():
    with pytest.raises(InputError, match="no events"):
        Recommender(SMALL).fit(WORLD.clear())


def test_an_unknown_model_is_refused():
    with pytest.raises(ConfigError, match="model is 'magic'; needed one of popularity"):
        Recommender(SMALL).fit(WORLD, model="magic")


@pytest.mark.parametrize("ordered", ["by row", "by position"])
def test_logs_without_times(ordered, tmp_path):
    untimed = WORLD.sort("user_id", "timestamp").drop("timestamp")
    if ordered == "by position":
        places = pl.int_range(pl.len(), dtype=pl.Int64).over("user_id")
        untimed = untimed.with_columns(position=places).sample(fraction=1, shuffle=True, seed=3)
    rec = Recommender(SMALL).fit(untimed, model="neighbours")
    rec.save(tmp_path / "m")
    rec = load(tmp_path / "m")
    expected = WORLD.filter(pl.col("user_id") == "u9").sort("timestamp")["item_id"].to_list()
    assert rec.history_of("u9") == expected
    assert math.isinf(rec.model.recent.half_life_days)
    assert rec.model.facts["trained_through_ms"] is None
    assert {parity(i) for i in rec.recommend_from_history([["i2", "i4", "i6"]], k=7)["item_id"]} == {0}
    rec.observe(untimed.head(0))
    rec.observe(frame([("u9", "i0", 12)]))
    assert rec.history_of("u9")[-1] == "i0"


# -- evaluation ---------------------------------------------------------------------


def test_values_checked_by_hand():
    """Popularity alone: the lists are the same for everyone but for what was seen."""
    rows = [
        ("a", "x", 0),
        ("b", "x", 0),
        ("c", "x", 0),
        ("a", "y", 0),
        ("b", "y", 0),
        ("c", "z", 0),
        ("d", "w", 0),
    ]
    log = frame(rows)
    rec = Recommender(SMALL).fit(log, model="popularity")
    inputs = frame([("a", "x", 0), ("a", "y", 0), ("b", "x", 0), ("c", "w", 0)])
    labels = frame(
        [
            ("a", "z", 9),  # a is offered z w (ties in the order of the items): rank 1
            ("b", "w", 9), ("b", "w", 9), ("b", "never heard of", 9),  # b is offered y z w: rank 3
            ("new", "x", 9),  # no inputs: a new user, apart
        ]
    )  # fmt: skip
    found = rec.evaluate(Holdout(inputs, labels, labels))
    assert found.users == 2
    assert found.excluded_users == 1  # c has no label
    assert found.metrics["recall@10"].mean == pytest.approx((1 + 1 / 2) / 2)
    assert found.metrics["hit@10"].mean == 1.0
    assert found.metrics["mrr@10"].mean == pytest.approx((1 + 1 / 3) / 2)
    assert found.metrics["precision@10"].mean == pytest.approx((1 / 10 + 1 / 10) / 2)
    ideal = 1 / math.log2(2) + 1 / math.log2(3)
    assert found.metrics["ndcg@10"].mean == pytest.approx((1 + (1 / math.log2(4)) / ideal) / 2)
    assert found.slices["new_users"]["users"] == 1
    assert found.slices["new_users"]["metrics"]["mrr@10"]["mean"] == 1.0  # x is the most popular


def test_the_headline_is_the_mean_of_the_users_and_slices_add_up():
    parts = split(
        pl.concat([WORLD, frame([("late", f"i{n}", 15 + n / 10) for n in range(3)])]), by="time", test=0.25
    )
    rec = Recommender(SMALL).fit(parts.train, parts.valid, model="neighbours")
    found = rec.evaluate(parts.test)
    with_labels = parts.test.labels["user_id"].n_unique()
    assert "late" in set(parts.test.labels["user_id"])
    assert "late" not in set(parts.test.inputs["user_id"])
    assert found.users == with_labels - 1
    for name, interval in found.metrics.items():
        assert interval.mean == pytest.approx(float(np.mean(found.values[name])))
        assert interval.low <= interval.mean <= interval.high
        assert len(found.values[name]) == len(found.rows) == found.users
    slices = found.slices
    assert set(slices) == {"new_users", "inactive_users", "active_users"}
    assert sum(part["users"] for part in slices.values()) == with_labels
    known = [slices["inactive_users"], slices["active_users"]]
    total = sum(part["users"] * part["metrics"]["ndcg@10"]["mean"] for part in known if part["users"])
    assert total / sum(part["users"] for part in known) == pytest.approx(found.metrics["ndcg@10"].mean)
    assert slices["new_users"]["users"] == 1


def test_the_checkerboard_is_predicted_better_than_by_popularity():
    parts = split(WORLD, by="time", test=0.2)
    value = {
        rung: Recommender(SMALL)
        .fit(parts.train, parts.valid, model=rung)
        .evaluate(parts.test)
        .metrics["ndcg@10"]
        .mean
        for rung in ("popularity", "neighbours")
    }
    # Popularity offers both colors: among ten places about half of them are of the wrong one.
    assert value["neighbours"] > 1.2 * value["popularity"]


def test_labels_the_model_has_no_item_for_count_as_missed():
    rec = Recommender(SMALL).fit(WORLD, model="popularity")
    inputs = frame([("u0", "i0", 0)])
    known, unknown = frame([("u0", "i2", 9)]), frame([("u0", "i2", 9), ("u0", "brand new", 9)])
    one = rec.evaluate(Holdout(inputs, known, known), metrics=("recall@20",))
    half = rec.evaluate(Holdout(inputs, unknown, unknown), metrics=("recall@20",))
    assert (one.metrics["recall@20"].mean, half.metrics["recall@20"].mean) == (1.0, 0.5)


def test_labels_may_spell_integer_ids_as_strings():
    rec = Recommender(SMALL).fit(integers(), model="popularity")
    inputs = frame([("7", "0", 0)])
    labels = frame([("7", "2", 9), ("7", "brand new", 9)])
    found = rec.evaluate(Holdout(inputs, labels, labels), metrics=("recall@20",))
    assert found.metrics["recall@20"].mean == 0.5


def test_fitting_without_valid_holds_out_the_last_tenth_and_learns_from_it_afterwards():
    rec = Recommender(
        dataclasses.replace(SMALL, ladder=dataclasses.replace(SMALL.ladder, models=("popularity",)))
    ).fit(WORLD)
    assert rec.model.facts["events"] == len(WORLD)
    assert rec.model.trained.ladder[0]["metrics"]["ndcg@10"]["mean"] > 0
    assert rec.model.facts["trained_through_ms"] == WORLD["timestamp"].to_physical().max()


def test_where_only_newcomers_fill_the_last_tenth_the_last_event_of_each_user_is_held_out():
    """Thirty users a day, each gone the next: no user of the last day has a past."""
    turns = ("xyz", "yzx", "zxy")
    rows = [(f"u{day}-{n}", item, day) for day in range(12) for n in range(30) for item in turns[n % 3]]
    rec = Recommender(SMALL).fit(frame(rows), model="popularity")
    assert rec.model.trained.ladder[0]["metrics"]["ndcg@10"]["n"] == 12 * 30


def test_repeats_allowed_recommends_what_was_seen():
    config = dataclasses.replace(SMALL, data=DataConfig(repeats="allow"))
    rows = [
        (f"u{n}", item, day) for n in range(20) for day, item in enumerate(["x", "y", "x", "y", "x", "y"])
    ]
    rec = Recommender(config).fit(frame(rows), model="neighbours")
    assert set(rec.recommend(["u0"])["item_id"]) == {"x", "y"}
    assert len(rec.recommend(["u0"], exclude_seen=True)) == 0


def test_the_first_lines_of_the_design_run(tmp_path):
    """rb.load before rb.evaluate: a submodule of that name must not hide the function."""
    parts = rb.split(WORLD, by="time")
    rec = rb.Recommender(SMALL).fit(parts.train, parts.valid, model="popularity")
    rec.save(tmp_path / "model")
    loaded = rb.load(tmp_path / "model")
    assert rb.evaluate(loaded, parts.test).metrics == rec.evaluate(parts.test).metrics


# -- what may be learned from ---------------------------------------------------------


def rising() -> tuple[pl.DataFrame, Holdout]:
    """`old` was popular, then `new` is: 30 users have one other item each, and take `new` next."""
    past = [(f"u{n}", f"x{n}", n) for n in range(30)] + [(f"v{n}", "old", n) for n in range(30)]
    past += [("w", "new", 0)]
    labels = frame([(f"u{n}", "new", 40) for n in range(30)])
    return frame(past), Holdout(frame(past), labels, labels)


def test_an_evaluation_does_not_see_what_was_observed():
    events, holdout = rising()
    rec = Recommender(SMALL).fit(events, model="popularity")
    before = rec.evaluate(holdout, metrics=("hit@1",)).metrics["hit@1"].mean
    rec.observe(holdout.later)
    rec.observe(holdout.later)
    assert before == rec.evaluate(holdout, metrics=("hit@1",)).metrics["hit@1"].mean == 0.0


def test_a_saved_model_says_through_when_it_has_observed(tmp_path):
    events, holdout = rising()
    rec = Recommender(SMALL).fit(events, model="popularity")
    rec.observe(holdout.later)
    rec.save(tmp_path / "m")
    assert load(tmp_path / "m").model.facts["trained_through_ms"] == 40 * DAY_MS


def test_strangers_get_what_is_popular_after_what_was_observed(tmp_path):
    events, holdout = rising()
    rec = Recommender(SMALL).fit(events, model="popularity")
    assert rec.recommend(["stranger"], k=1)["item_id"].to_list() == ["old"]
    rec.observe(holdout.later)
    rec.observe(holdout.later)
    rec.save(tmp_path / "m")
    for each in (rec, load(tmp_path / "m")):
        assert each.recommend(["stranger", "other"], k=1)["item_id"].to_list() == ["new", "new"]


def test_equal_events_are_all_learned_from_in_the_refit():
    rows = [(f"u{n}", item) for n in range(20) for item in ("a", "b", "a", "b", "a", "b")]
    config = dataclasses.replace(SMALL, data=DataConfig(repeats="allow"))
    assert prepare(frame(rows), None, config).task.full.n_events == 120
    timed = frame([(*row, place // 12) for place, row in enumerate(rows)])
    assert prepare(timed, None, config).task.full.n_events == 120
    parts = split(timed, by="users", valid=0.2, test=0.2, repeats="allow", train_on_inputs=True)
    full = prepare(parts.train, parts.valid, config).task.full
    assert full.n_events == len(parts.train) + len(parts.valid.later)


def test_integers_of_numpy_are_the_integers_of_the_log():
    rec = Recommender(SMALL).fit(integers(), model="popularity")
    users = integers()["user_id"].unique().sort()[:3]
    assert_frame_equal(rec.recommend(users.to_numpy(), k=2), rec.recommend(users.to_list(), k=2))


def test_text_ids_that_spell_one_number_stay_apart():
    rows = [(f"u{n}", item, n) for n in range(20) for item in ("7", "07", "8")]
    rec = Recommender(SMALL).fit(frame(rows), model="popularity")
    inputs = pl.DataFrame({"user_id": ["s"], "item_id": [7]}).with_columns(weight=pl.lit(1.0, pl.Float32))
    labels = pl.DataFrame({"user_id": ["s"], "item_id": [8]}).with_columns(weight=pl.lit(1.0, pl.Float32))
    found = rec.evaluate(Holdout(inputs, labels, labels), metrics=("recall@10",))
    assert (found.users, found.metrics["recall@10"].mean) == (1, 1.0)


def test_what_was_trained_with_other_settings_is_not_adopted(tmp_path):
    task = prepare(WORLD, None, SMALL).task
    one_rung = dataclasses.replace(SMALL, ladder=dataclasses.replace(SMALL.ladder, models=("popularity",)))
    write_trained(tmp_path / "t", train(task, one_rung), mark_of(task, one_rung))
    elsewhere = dataclasses.replace(
        one_rung, run=dataclasses.replace(one_rung.run, device="cpu", budget_seconds=9.0)
    )
    assert Recommender(elsewhere).adopt(WORLD, None, tmp_path / "t").model.trained.rung == "popularity"
    with pytest.raises(InputError, match="other events or settings"):
        Recommender(SMALL).adopt(WORLD, None, tmp_path / "t")
