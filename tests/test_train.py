"""The recipe: choice, refit, and resuming to the same bits from every point it can stop at."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from worlds import checkerboard

from rootbeam.core.config import (
    Config,
    LadderConfig,
    NeighboursConfig,
    RunConfig,
    SequenceConfig,
    SequenceTraining,
)
from rootbeam.core.errors import InputError, InterruptedTraining
from rootbeam.learn.fit import Runtime, fit_sequence
from rootbeam.learn.windows import draw, windows_of
from rootbeam.prepare import prepare
from rootbeam.rungs import scorer_of, weight_settings
from rootbeam.task import mark_of, read_task, read_trained, write_task
from rootbeam.train import main, train

SMALL = Config(
    ladder=LadderConfig(metric="ndcg@10"),
    neighbours=NeighboursConfig(ease_l2=(1.0, 10.0), decays=(1.0, 0.8)),
    sequence=SequenceConfig(dimension=8, blocks=1, heads=2, length=6),
    training=SequenceTraining(epochs=1, least_steps=24, batch=8, patience=100),
    run=RunConfig(seed=3, checkpoint_seconds=0.0),
)


@pytest.fixture(scope="module")
def task():
    return prepare(checkerboard(), None, SMALL).task


@pytest.fixture(scope="module")
def whole(task):
    return train(task, SMALL, model="sequence")


def test_the_checkerboard_is_learned(task):
    trained = train(task, SMALL)
    values = {row["model"]: row["metrics"]["ndcg@10"]["mean"] for row in trained.ladder}
    assert values["neighbours"] > 2 * values["popularity"]
    assert [row["model"] for row in trained.ladder if row["chosen"]] == [trained.rung]
    assert trained.rung != "popularity"


def test_the_refit_learns_from_items_that_came_after_the_cut(task):
    assert task.full.n_events > task.train.n_events
    trained = train(task, SMALL, model="neighbours")
    late = set(task.full.items) - set(task.train.items)
    assert (
        scorer_of("neighbours", trained.arrays, trained.settings, task.full.n_items).n_items
        == task.full.n_items
    )
    assert late <= set(range(task.full.n_items))


@pytest.mark.parametrize("stop_after", [1, 5, 23, 30, 40], ids=lambda n: f"stopped at check {n}")
def test_a_stopped_run_resumes_to_the_same_bits(task, whole, tmp_path, stop_after):
    checks = itertools.count(1)
    with pytest.raises(InterruptedTraining, match="stopped at step"):
        train(task, SMALL, state=tmp_path, model="sequence", should_stop=lambda: next(checks) >= stop_after)
    resumed = train(task, SMALL, state=tmp_path, model="sequence")
    assert resumed.arrays.keys() == whole.arrays.keys()
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(resumed.arrays[name], array, err_msg=name)
    assert resumed.blend == whole.blend
    assert resumed.curves == whole.curves


def test_a_killed_run_goes_on_from_its_last_checkpoint(task, whole, tmp_path):
    def die(what, done, of, detail):
        if what == "refit" and done >= 10:
            raise RuntimeError("the power is gone")

    with pytest.raises(RuntimeError, match="power"):
        train(task, SMALL, state=tmp_path, model="sequence", progress=die)
    resumed = train(task, SMALL, state=tmp_path, model="sequence")
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(resumed.arrays[name], array, err_msg=name)


def test_the_number_of_steps_of_a_budget_is_kept_even_when_the_first_step_is_the_last(task, tmp_path):
    path = tmp_path / "run.safetensors"

    def fitted(seconds, **kept):
        runtime = Runtime(checkpoint=path, checkpoint_seconds=1e9, **kept)
        return fit_sequence(
            task.train, SMALL.sequence, SMALL.training, seed=0, runtime=runtime, what="x", seconds=seconds
        )

    def die() -> bool:
        raise RuntimeError("the power is gone")

    with pytest.raises(RuntimeError, match="power"):
        fitted(1e-9, should_stop=die)
    assert fitted(1e9).total_steps == 1  # 1e-9 s bought one step, and that was settled then


def test_the_number_of_steps_of_a_budget_is_kept_on_resume(task, tmp_path):
    config = dataclasses.replace(SMALL, run=dataclasses.replace(SMALL.run, budget_seconds=60.0))
    checks = itertools.count(1)
    with pytest.raises(InterruptedTraining):
        train(task, config, state=tmp_path, model="sequence", should_stop=lambda: next(checks) >= 3)
    import json

    from rootbeam.core.files import read_arrays

    total = read_arrays(tmp_path / "sequence-run.safetensors")[1]["total"]
    resumed = train(task, config, state=tmp_path, model="sequence")
    assert resumed.settings["total_steps"] == total
    assert json.dumps(resumed.settings)


def test_resuming_with_other_data_is_refused(task, tmp_path):
    train(task, SMALL, state=tmp_path, model="popularity")
    other = prepare(checkerboard(seed=1), None, SMALL).task
    with pytest.raises(InputError, match="other data or settings"):
        train(other, SMALL, state=tmp_path, model="popularity")


@pytest.mark.parametrize("other", ["data", "weights", "settings", "model"])
def test_resuming_within_a_rung_with_anything_else_is_refused(task, tmp_path, other):
    checks = itertools.count(1)
    with pytest.raises(InterruptedTraining):
        train(task, SMALL, state=tmp_path, model="sequence", should_stop=lambda: next(checks) >= 5)
    given = {"data": prepare(checkerboard(seed=1), None, SMALL).task}.get(other, task)
    if other == "weights":
        given = dataclasses.replace(
            task, train=dataclasses.replace(task.train, weights=task.train.weights * 2)
        )
    config = dataclasses.replace(SMALL, run=RunConfig(seed=4)) if other == "settings" else SMALL
    with pytest.raises(InputError, match="other data or settings"):
        train(given, config, state=tmp_path, model="neighbours" if other == "model" else "sequence")


def test_two_runs_with_one_seed_are_equal_and_with_two_are_not(task):
    def fitted(seed):
        return fit_sequence(
            task.train,
            SMALL.sequence,
            SMALL.training,
            seed=seed,
            runtime=Runtime(),
            what="x",
            schedule=(5, 5),
        ).arrays["items.weight"]

    np.testing.assert_array_equal(fitted(0), fitted(0))
    assert not np.array_equal(fitted(0), fitted(1))


def test_the_loss_falls(task):
    fit = fit_sequence(
        task.train,
        SMALL.sequence,
        dataclasses.replace(SMALL.training, learning_rate=0.01),
        seed=0,
        runtime=Runtime(),
        what="x",
        validate=lambda encoder: 0.0,
        schedule=(80, 80),
    )
    assert fit.curve[-1]["loss"] < 0.9 * fit.curve[0]["loss"]


def test_a_catalogue_too_large_for_the_full_softmax_draws_negatives(task):
    training = dataclasses.replace(SMALL.training, full_softmax_items=1, negatives=8)
    fit = fit_sequence(
        task.train, SMALL.sequence, training, seed=0, runtime=Runtime(), what="x", validate=lambda e: 0.0,
        schedule=(80, 80),
    )  # fmt: skip
    assert fit.curve[-1]["loss"] < fit.curve[0]["loss"]


def test_without_validation_users_the_cheapest_rung_is_served(task):
    labels = dataclasses.replace(task.valid_labels, ptr=np.zeros_like(task.valid_labels.ptr))
    trained = train(dataclasses.replace(task, valid_labels=labels), SMALL)
    assert trained.rung == "popularity"
    assert trained.ladder[0]["metrics"] == {}


def test_a_task_goes_to_a_file_and_comes_back_trained(task, tmp_path, capsys):
    config = dataclasses.replace(
        SMALL, ladder=dataclasses.replace(SMALL.ladder, models=("popularity", "neighbours"))
    )
    write_task(tmp_path / "task.safetensors", task, config)
    again, read = read_task(tmp_path / "task.safetensors")
    assert read == config
    assert again.fingerprint() == task.fingerprint()
    out = tmp_path / "trained.safetensors"
    assert main([str(tmp_path / "task.safetensors"), "--out", str(out), "--device", "cpu"]) == 0
    trained, mark = read_trained(out)
    here = train(task, config)
    assert mark == mark_of(task, config)
    assert trained.rung == here.rung == "neighbours"
    assert trained.blend == here.blend
    assert math.isfinite(trained.blend.a)
    np.testing.assert_array_equal(trained.arrays["values"], here.arrays["values"])
    assert "neighbours" in capsys.readouterr().out


def test_a_file_that_is_not_a_task_is_one_line(tmp_path, capsys):
    (tmp_path / "x.safetensors").write_bytes(b"nonsense")
    assert main([str(tmp_path / "x.safetensors"), "--out", str(tmp_path / "y")]) == 2
    assert "not a safetensors file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("n_items", "budget_seconds", "expected"),
    [
        (1000, 600.0, [{"l2": l2} for l2 in (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)]),
        (12_101, 600.0, [{"l2": 100.0}]),  # 12101³ / 2.5e10 = 71 s each, a fifth of 600 s for all of them
        (12_101, 60.0, [{"neighbours": k} for k in (20, 50, 100, 200)]),
        (20_000, math.inf, [{"neighbours": k} for k in (20, 50, 100, 200)]),  # 28 · 20000² bytes > 6 GiB
    ],
)
def test_the_budget_and_the_memory_decide_how_neighbours_are_searched(n_items, budget_seconds, expected):
    config = dataclasses.replace(Config(), run=RunConfig(budget_seconds=budget_seconds))
    assert weight_settings(n_items, config) == expected


def test_the_refit_weighs_recency_as_the_users_it_was_tuned_on_saw_it(task, tmp_path):
    """The rest of the users may have much shorter histories, and so much smaller scores."""
    config = dataclasses.replace(SMALL, run=dataclasses.replace(SMALL.run, seed=1))
    again = dataclasses.replace(task, full=task.train)  # the refit then learns what the rung did
    trained = train(again, config, model="neighbours")
    assert trained.blend.a == trained.ladder[0]["a"]


def test_a_draw_does_not_depend_on_the_draws_before(task):
    def arrays(windows, step):
        batch = draw(windows, 8, step, 3)
        return np.concatenate([batch.inputs, batch.targets], axis=1)

    used = windows_of(task.train, 6)
    steps = used.steps_per_epoch(8)
    for step in (0, steps, 1, 2 * steps + 1, 0):
        np.testing.assert_array_equal(arrays(used, step), arrays(windows_of(task.train, 6), step))
    epoch = np.concatenate([used.order(3, 0), used.order(3, 1)])
    np.testing.assert_array_equal(np.bincount(epoch), 2 * np.bincount(used.user_of_window))


def test_where_the_budget_affords_no_inverse_item_knn_is_tuned_and_refitted(task):
    config = dataclasses.replace(SMALL, run=dataclasses.replace(SMALL.run, budget_seconds=1e-9))
    trained = train(task, config, model="neighbours")
    assert trained.settings["neighbours"] in config.neighbours.knn_neighbours
    popular = train(task, config, model="popularity")
    value, floor = (t.ladder[0]["metrics"]["ndcg@10"]["mean"] for t in (trained, popular))
    assert value > 2 * floor  # the checkerboard
