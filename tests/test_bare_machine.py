"""Training runs where nothing but numpy, torch and safetensors is installed, and on a GPU where one is."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from test_train import SMALL
from worlds import checkerboard

from rootbeam.learn.fit import Runtime, fit_sequence
from rootbeam.prepare import prepare
from rootbeam.task import read_trained, write_task
from rootbeam.train import train

ALONE = """
import sys

BLOCKED = {"polars", "msgspec", "typer", "rich", "altair", "optuna", "implicit", "scipy", "pandas", "pyarrow"}

class Without:
    # The finders of this machine, to whom the blocked packages do not exist.
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in BLOCKED else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from rootbeam.train import main
code = main(sys.argv[1:])
assert not BLOCKED & set(sys.modules), BLOCKED & set(sys.modules)
sys.exit(code)
"""


def test_the_whole_ladder_trains_with_every_other_package_blocked(tmp_path):
    task = prepare(checkerboard(), None, SMALL).task
    write_task(tmp_path / "task.safetensors", task, SMALL)
    arguments = [str(tmp_path / "task.safetensors"), "--out", str(tmp_path / "trained.safetensors")]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *arguments, "--device", "cpu"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [row["model"] for row in json.loads(done.stdout)["ladder"]] == list(SMALL.ladder.models)
    trained, _ = read_trained(tmp_path / "trained.safetensors")
    here = train(task, SMALL)
    assert trained.rung == here.rung
    for name, array in here.arrays.items():
        np.testing.assert_allclose(trained.arrays[name], array, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_training_on_a_gpu_learns_what_training_on_the_cpu_learns():
    task = prepare(checkerboard(), None, SMALL).task
    training = dataclasses.replace(SMALL.training, learning_rate=0.01)
    losses = {}
    for device in ("cpu", "cuda"):
        fit = fit_sequence(
            task.train,
            SMALL.sequence,
            training,
            seed=0,
            runtime=Runtime(device=device),
            what="x",
            validate=lambda encoder: 0.0,
            schedule=(80, 80),
        )
        losses[device] = fit.curve[-1]["loss"]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=0.05)
