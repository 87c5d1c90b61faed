"""The lab on tiny arrays: recipes run, resume and give tables; many runs at once equal single ones."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from shared_data import shared

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from lab import __main__ as command  # noqa: E402
from lab import data as lab_data  # noqa: E402
from lab.data import Data  # noqa: E402
from lab.harness import Results, cell_key  # noqa: E402
from lab.judge import judge_of  # noqa: E402
from lab.papers import bir  # noqa: E402
from lab.stacked import Run, fit_stacked  # noqa: E402
from rootbeam import metrics  # noqa: E402
from rootbeam.core.types import Log, Ragged  # noqa: E402
from rootbeam.learn import objectives  # noqa: E402
from rootbeam.learn.embed import EmbedTraining, Factors, MatrixFactorisation, fit_embeddings  # noqa: E402

USERS, ITEMS, EACH = 40, 60, 20


def tiny_log(seed: int = 0) -> Log:
    rng = np.random.default_rng(seed)
    likes = 1.0 / np.arange(1, ITEMS + 1)
    rows = [rng.choice(ITEMS, EACH, replace=False, p=likes / likes.sum()) for _ in range(USERS)]
    items = np.concatenate(rows).astype(np.int32)
    weights = np.ones(len(items), np.float32)
    return Log(items, np.arange(len(items)), weights, np.arange(USERS + 1) * EACH, ITEMS)


@pytest.fixture
def arrays(tmp_path: Path) -> Callable[..., list[str]]:
    """The arguments of `lab run` for a tiny log."""

    def make(rated: bool) -> list[str]:
        log = tiny_log()
        ratings = np.random.default_rng(1).integers(1, 6, log.n_events).astype(np.float32) if rated else None
        lab_data.write_data(tmp_path / "tiny.safetensors", Data("tiny", log, ratings))
        return [
            *("--data", "tiny", "--arrays", str(tmp_path / "tiny.safetensors")),
            *("--results", str(tmp_path), "--device", "cpu", "--seeds", "2"),
        ]

    return make


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes at a size for tests."""
    monkeypatch.setattr(bir, "BATCHES", (32, 64))
    monkeypatch.setattr(bir, "OTHER_BATCH", 64)
    monkeypatch.setattr(bir, "EPOCHS", 2)
    monkeypatch.setattr(bir, "THEIR_DECAYS", (1e-5,))


def read(folder: Path, name: str) -> dict[str, object]:
    return json.loads((folder / f"{name}.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.usefixtures("small")
def test_bir_with_and_without_choice(tmp_path: Path, arrays: Callable[..., list[str]]) -> None:
    for rated in (True, False):
        command.main(["run", "bir", *arrays(rated)])
        content = read(tmp_path, "bir-tiny")
        rows = {cell["settings"]["row"] for cell in content["cells"]}  # type: ignore[attr-defined]
        assert rows == (set(bir.ROWS) if rated else {*bir.CURVE_ROWS, *bir.OTHER_ROWS})
        command.main(["tables", "--results", str(tmp_path), "--out", str(tmp_path / "results.md")])
        page = (tmp_path / "results.md").read_text()
        assert "| ssl-pop |" in page
        assert ("BIR − SSL-Pop" in page) is not rated  # the curve needs two batch sizes
        (tmp_path / "bir-tiny.json").unlink()


def test_sequence_and_rivals(tmp_path: Path, arrays: Callable[..., list[str]]) -> None:
    for paper, row in (("sequence", "sequence"), ("rivals", "EASE")):
        command.main(["run", paper, *arrays(False)])
        content = read(tmp_path, f"{paper}-tiny")
        seeds = [c["seed"] for c in content["cells"] if c["settings"]["row"] == row]  # type: ignore[attr-defined]
        assert seeds == [0, 1]
        recalls = content["notes"]["rows"][f"row={row}"]["metrics"]["ndcg@10"]  # type: ignore[index]
        assert recalls["low"] <= recalls["mean"] <= recalls["high"]
    command.main(["tables", "--results", str(tmp_path), "--out", str(tmp_path / "results.md")])
    page = (tmp_path / "results.md").read_text()
    assert "python -m lab run rivals --data tiny --seeds 2" in page
    assert "published" not in page.partition("## ")[2]


@pytest.mark.usefixtures("small")
def test_a_second_run_does_what_is_missing(tmp_path: Path, arrays: Callable[..., list[str]]) -> None:
    arguments = ["run", "bir", *arrays(True), "--only", "row=ssl,ssl-pop"]
    command.main(arguments)
    first = read(tmp_path, "bir-tiny")
    command.main(arguments)
    assert read(tmp_path, "bir-tiny") == first  # nothing was run: not even the time of a session changed
    path = tmp_path / "bir-tiny.json"
    content = json.loads(path.read_text())
    lost = content["cells"].pop(1)
    path.write_text(json.dumps(content))
    command.main(arguments)
    again = read(tmp_path, "bir-tiny")
    found = next(c for c in again["cells"] if c["key"] == lost["key"])  # type: ignore[attr-defined]
    assert found["metrics"] == lost["metrics"]
    assert found["session"] == 1  # made by another run, which is noted
    assert len(again["sessions"]) == 2  # type: ignore[arg-type]


def test_no_cell_is_begun_after_the_budget(
    tmp_path: Path, arrays: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    command.main(["run", "bir", *arrays(True), "--budget", "0s"])
    assert "0 cells; 16 cells left for want of time: run it again" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "bir", "--data", "x", "--arrays", "no.safetensors"], "no file no.safetensors; make it with"),
        (["run", "bir", "--data", "x", "--budget", "soon"], "--budget was given 'soon'"),
        (
            ["prepare", "nothing", "--out", "x"],
            "no folder nothing in data or ../shared/data; give --from PATH",
        ),
    ],
)
def test_bad_arguments(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    arrays: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrays(False)
    monkeypatch.chdir(tmp_path)
    if "--budget" in arguments:
        arguments = [*arguments, "--arrays", "tiny.safetensors", "--results", "."]
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_results_keep_every_users_value(tmp_path: Path) -> None:
    results = Results.open(tmp_path / "p-d.json", "p", "d")
    number = results.begin({"command": "c"})
    values = np.array([0.25, math.nan, 1.0])
    results.add(number, {"row": "a"}, 0, 1.0, {"recall@20": values})
    again = Results.open(tmp_path / "p-d.json", "p", "d")
    np.testing.assert_array_equal(again.values({"row": "a"}, 0, "recall@20"), values)
    cell = again.cell({"row": "a"}, 0)
    assert cell is not None
    assert cell["metrics"]["recall@20"]["mean"] == (0.25 + 1.0) / 2
    assert cell["metrics"]["recall@20"]["n"] == 2
    assert cell_key({"b": 1, "a": 2}, 3) == "a=2 b=1 seed=3"


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    first = Results.open(tmp_path / "p-d.json", "p", "d")
    second = Results.open(tmp_path / "p-d.json", "p", "d")
    for results, row in ((first, "a"), (second, "b"), (first, "c")):
        number = results.begin({"command": row})
        results.add(number, {"row": row}, 0, 1.0, {"m@1": np.ones(2)})
    rows = [
        cell["settings"]["row"] for cell in Results.open(tmp_path / "p-d.json", "p", "d").content["cells"]
    ]
    assert rows == ["a", "b", "c"]


# --- the protocols ---


def test_random_shares_of_every_user() -> None:
    log = tiny_log()
    parts = lab_data.split_per_user(log, 0.1, 0.2, seed=3)
    for user in range(USERS):
        pieces = [parts.train.sequences().row(user), parts.valid.row(user), parts.test.row(user)]
        assert [len(piece) for piece in pieces] == [14, 2, 4]  # of 20
        assert sorted(np.concatenate(pieces)) == sorted(log.sequences().row(user))
    other = lab_data.split_per_user(log, 0.1, 0.2, seed=4)
    assert not np.array_equal(other.test.values, parts.test.values)


def test_leave_last_out_by_hand() -> None:
    log = Log(np.arange(8, dtype=np.int32), np.arange(8), np.ones(8, np.float32), np.array([0, 4, 6, 8]), 8)
    log = replace(log, user_ptr=np.array([0, 4, 6, 8]))
    parts = lab_data.leave_last_out(log)
    assert [parts.train.sequences().row(user).tolist() for user in range(3)] == [[0, 1], [4, 5], [6, 7]]
    assert [parts.valid.row(user).tolist() for user in range(3)] == [[2], [], []]
    assert [parts.test.row(user).tolist() for user in range(3)] == [[3], [], []]
    both = lab_data.joined(parts.train, parts.valid)
    assert both.sequences().row(0).tolist() == [0, 1, 2]
    assert both.sequences().row(2).tolist() == [6, 7]


def test_core_and_liked_by_hand() -> None:
    # user 0 and 1 share items 0 and 1; user 2 has item 2 alone, which nobody else has
    log = Log(
        np.array([0, 1, 0, 1, 2], np.int32), np.arange(5), np.ones(5, np.float32), np.array([0, 2, 4, 5]), 3
    )
    data = Data("d", log, np.array([1, 5, 3, 3, 4], np.float32))
    kept = lab_data.core(data, 2)
    assert (kept.log.n_users, kept.log.n_items, kept.log.n_events) == (2, 2, 4)
    chosen = lab_data.liked(kept)  # means 3 and 3
    assert [chosen.log.sequences().row(user).tolist() for user in range(2)] == [[1], [0, 1]]
    assert chosen.log.n_items == 2


def test_ml_100k_is_the_released_codes(tmp_path: Path) -> None:
    data = lab_data.prepare("ml-100k", tmp_path / "a.safetensors", shared("ml-100k"))
    assert data.log.n_events == 100_000
    ten_core = lab_data.core(data, 10)
    assert ten_core.log.n_events == 97_953
    log = lab_data.liked(ten_core).log
    assert (log.n_users, log.n_items, log.n_events) == (943, 1_152, 53_473)
    chosen = lab_data.prepare("ml-100k-liked", tmp_path / "b.safetensors", shared("ml-100k"))
    assert chosen.ratings is None
    np.testing.assert_array_equal(chosen.log.items, log.items)
    again = lab_data.read_data(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(again.log.items, data.log.items)
    np.testing.assert_array_equal(again.log.times, data.log.times)


def test_a_judge_ranks_what_was_not_seen() -> None:
    factors = Factors(torch.tensor([[1.0], [1.0], [-1.0]]), torch.tensor([[1.0], [4.0], [3.0], [2.0]]))
    labels = Ragged.from_rows([[2], [], [3, 1]])
    judge = judge_of(labels, [Ragged.from_rows([[1], [], [0]])], 4, "cpu")
    assert judge.rows.tolist() == [0, 2]
    assert judge.rank(factors, 2).tolist() == [[2, 3], [3, 2]]  # user 2 likes small; 0 was seen
    assert judge.measure(factors, ["recall@2"])["recall@2"].tolist() == [1.0, 0.5]
    assert metrics.parse_name("recall@2") == ("recall", 2)


# --- many runs at once ---


@pytest.mark.parametrize("name", ["ssl", "ssl_pop", "mns", "xir", "g_tower"])
def test_runs_side_by_side_equal_single_runs(name: str) -> None:
    training = EmbedTraining(dimension=4, init_scale=0.5, batch=64, epochs=3, decay_every=1)
    settings = [(0, 0.01, 1e-4), (1, 0.03, 0.0), (0, 0.003, 1e-3)]
    runs = [Run(tiny_log(seed), seed, rate, decay) for seed, rate, decay in settings]
    make = getattr(objectives, name)
    together = fit_stacked(runs, make, training, device="cpu", side_by_side=name in ("ssl", "ssl_pop"))
    for run, found in zip(runs, together, strict=True):
        alone = fit_embeddings(
            run.log,
            MatrixFactorisation(),
            make(),
            replace(training, learning_rate=run.learning_rate, weight_decay=run.weight_decay),
            seed=run.seed,
        )
        assert found.factors is not None
        for table, name_of in ((found.factors.users, "users"), (found.factors.items, "items")):
            np.testing.assert_allclose(table.numpy(), alone.arrays[name_of], atol=1e-5)
        np.testing.assert_allclose(found.losses, [point["loss"] for point in alone.curve], rtol=1e-5)


def test_one_run_of_bir_side_by_side_is_the_single_run() -> None:
    training = EmbedTraining(dimension=4, batch=64, epochs=2, learning_rate=0.01, weight_decay=1e-4)
    run = Run(tiny_log(), 5, 0.01, 1e-4)
    (found,) = fit_stacked([run], objectives.bir, training, device="cpu", side_by_side=True)
    alone = fit_embeddings(run.log, MatrixFactorisation(), objectives.bir(), training, seed=5)
    assert found.factors is not None
    np.testing.assert_allclose(found.factors.items.numpy(), alone.arrays["items"], atol=1e-5)


def test_recipes_run_where_there_is_no_polars() -> None:
    blocked = (
        "import sys; sys.modules.update(dict.fromkeys(('polars', 'msgspec', 'typer', 'implicit', 'scipy')))"
    )
    modules = "lab.__main__, lab.papers.bir, lab.papers.sequence, lab.tables"
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked}; import {modules}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
