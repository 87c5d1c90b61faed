"""Every verb end to end, in process, on a small simulated world."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import polars as pl
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from rootbeam.cli import main
from rootbeam.core.config import Config
from rootbeam.train import main as train_elsewhere
from rootbeam.tune import SPACES

TINY = [
    *("--set", "training.least_steps=20", "--set", "training.epochs=1", "--set", "training.batch=16"),
    *("--set", "sequence.dimension=8", "--set", "sequence.blocks=1", "--set", "sequence.length=8"),
    *("--set", "neighbours.ease_l2=10,100", "--set", "neighbours.decays=1,0.9", "--seed", "3"),
]
INTERVAL = {"mean", "low", "high"}


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def answer(capsys, *arguments: object) -> dict:
    """What a verb prints with --json: exactly one object on stdout."""
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    assert out.count("\n") == 1
    return json.loads(out)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """log/ events; split/ its parts; model/ trained on the split."""
    folder = tmp_path_factory.mktemp("world")
    sizes = ("--users", "60", "--items", "40", "--events", "1500")
    assert main(["data", "simulate", "--out", str(folder / "log"), *sizes, "--quiet"]) == 0
    assert main(["data", "split", str(folder / "log"), "--out", str(folder / "split"), "--quiet"]) == 0
    train = ["train", str(folder / "split"), "--out", str(folder / "model"), *TINY, "--quiet"]
    assert main([*train, "--budget", "none"]) == 0
    return folder


@pytest.fixture(scope="module")
def users(world) -> list[str]:
    return pl.read_parquet(world / "split" / "train.parquet")["user_id"].unique(maintain_order=True).to_list()


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- data ---------------------------------------------------------------------------


def test_data_verbs(capsys, tmp_path):
    made = answer(capsys, "data", "simulate", "--out", tmp_path / "log", "--events", 300, "--users", 20)
    assert made["rows"] == 300
    assert answer(capsys, "data", "validate", tmp_path / "log")["kept"] == 300
    described = answer(capsys, "data", "describe", tmp_path / "log")
    assert described["events"] == 300
    parts = answer(capsys, "data", "split", tmp_path / "log", "--out", tmp_path / "split", "--by", "random")
    assert parts["by"] == "random"
    assert parts["events"] == 300
    assert {"ml-100k", "ml-1m"} <= {s["name"] for s in answer(capsys, "data", "fetch", "list")["sources"]}


def test_data_verbs_speak_to_people_too(capsys, world, tmp_path):
    assert "1,500 rows, 1,500 kept" in run(capsys, "data", "validate", world / "log")[1]
    assert "1,500" in run(capsys, "data", "describe", world / "log")[1]
    told = run(capsys, "data", "split", world / "log", "--out", tmp_path / "s")[1]
    assert "split by time" in told


# -- train --------------------------------------------------------------------------


def test_train_answers_with_its_ladder(capsys, world, tmp_path):
    told = answer(capsys, "train", world / "log", "--out", tmp_path / "m", "--model", "neighbours", *TINY)
    assert told["bundle"] == str(tmp_path / "m")
    assert told["model"] == "neighbours"
    (row,) = told["ladder"]
    assert {"model", "metrics", "ms_per_user", "chosen"} <= row.keys()
    assert row["chosen"]
    assert row["metrics"]["ndcg@10"].keys() >= INTERVAL
    assert [p.name for p in tmp_path.iterdir()] == ["m"], "the state is left behind"


def test_train_shows_its_table_last_and_its_progress_on_stderr(capsys, world, tmp_path):
    code, out, err = run(capsys, "train", world / "split", "--out", tmp_path / "m", *TINY)
    assert code == 0
    assert re.search(r"^(popularity|neighbours|sequence) is served; wrote ", out.splitlines()[-1])
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["popularity", "neighbours", "sequence"]
    assert out.count(" served") == 1 + out.splitlines()[-1].count(" served")
    assert "sequence" in err
    assert "\x1b" not in out + err, "escape codes where there is no terminal"


def test_quiet_says_the_result_alone(capsys, world, tmp_path):
    arguments = ("train", world / "log", "--out", tmp_path / "m", "--model", "popularity", *TINY, "--quiet")
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "popularity is served" in out


def test_a_bundle_is_replaced_and_the_seed_decides(capsys, world, tmp_path):
    again = tmp_path / "again"
    for _ in range(2):
        answer(capsys, "train", world / "split", "--out", again, *TINY, "--budget", "none")
    assert sha(again / "weights.safetensors") == sha(world / "model" / "weights.safetensors")


def test_a_task_trained_elsewhere_gives_the_same_model(capsys, world, tmp_path):
    task, trained = tmp_path / "task.safetensors", tmp_path / "trained.safetensors"
    same = ("train", world / "split", *TINY, "--budget", "none", "--model", "sequence")
    here = ("train", world / "split", *TINY, "--budget", "none")
    told = answer(capsys, *here, "--out", tmp_path / "m", "--export", task)
    assert told == {"task": str(task)}
    assert not (tmp_path / "m").exists()
    assert train_elsewhere([str(task), "--out", str(trained), "--device", "cpu"]) == 0
    answer(capsys, *here, "--out", tmp_path / "m", "--trained", trained)
    for name in ("weights.safetensors", "histories.safetensors", "popularity.safetensors", "ids.parquet"):
        assert sha(tmp_path / "m" / name) == sha(world / "model" / name)
    code, _, err = run(
        capsys, *same[:1], world / "log", *same[2:], "--out", tmp_path / "n", "--trained", trained
    )
    assert code == 2
    assert "trained on other events or settings" in err


def test_resuming_what_never_began_just_trains(capsys, world, tmp_path):
    answer(capsys, "train", world / "split", "--out", tmp_path / "m", *TINY, "--budget", "none", "--resume")
    assert sha(tmp_path / "m" / "weights.safetensors") == sha(world / "model" / "weights.safetensors")


def interrupted(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a training in its own process and sends Ctrl-C once the sequence rung has a checkpoint."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", "from rootbeam.cli import run; run()", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    checkpoint = folder / "sequence-run.safetensors"
    until = time.monotonic() + 60
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def test_ctrl_c_leaves_a_state_that_resume_finishes_to_the_same_bits(capsys, world, tmp_path):
    def train(name: str) -> list[str]:
        longer = ("--set", "training.least_steps=90", "--set", "training.patience=1000")
        often = ("--set", "run.checkpoint_seconds=0", "--budget", "none", "--model", "sequence")
        return ["train", str(world / "split"), "--out", str(tmp_path / name), *TINY, *longer, *often]

    stopped = interrupted(tmp_path / "m.partial", *train("m"))
    assert stopped.returncode == 1
    assert "Traceback" not in stopped.stderr
    last = stopped.stderr.splitlines()[-1]
    assert re.match(r"error: stopped at step \d+ of \d+ \(sequence\); the same command with --resume", last)
    assert not (tmp_path / "m").exists()
    assert main([*train("m"), "--resume", "--quiet"]) == 0
    assert main([*train("whole"), "--quiet"]) == 0
    for name in ("weights.safetensors", "histories.safetensors", "popularity.safetensors"):
        assert sha(tmp_path / "m" / name) == sha(tmp_path / "whole" / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "whole"]


def test_without_resume_an_old_state_is_removed_and_nothing_else_is(capsys, world, tmp_path):
    state = tmp_path / "m.partial"
    state.mkdir()
    (state / "popularity.safetensors").write_bytes(b"old")
    arguments = ("train", world / "split", "--out", tmp_path / "m", "--model", "popularity", *TINY)
    code, _, err = run(capsys, *arguments)
    assert code == 0
    assert "starting over" in err
    state.mkdir()
    (state / "thesis.tex").write_text("mine")
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert "is in the way" in err
    assert (state / "thesis.tex").read_text() == "mine"


# -- inspect, evaluate, report ------------------------------------------------------


def test_inspect_has_the_shape_of_the_design(capsys, world):
    told = answer(capsys, "inspect", world / "model")
    keys = {"format", "version", "config", "items", "users", "ladder", "tree", "metrics", "files"}
    assert keys <= told.keys()
    for name, digest in told["files"].items():
        assert sha(world / "model" / name) == digest
    assert {"model", "metrics", "ms_per_user", "chosen"} <= told["ladder"][0].keys()
    assert sum(row["chosen"] for row in told["ladder"]) == 1
    code, out, _ = run(capsys, "inspect", world / "model")
    assert code == 0
    assert "every hash is right" in out


def test_evaluate_has_the_shape_of_the_design(capsys, world, tmp_path):
    per_user = tmp_path / "new" / "users.parquet"
    told = answer(capsys, "evaluate", world / "model", world / "split", "--per-user", per_user)
    assert {"protocol", "users", "excluded_users", "metrics", "slices", "retrieval"} <= told.keys()
    assert told["metrics"]["recall@20"].keys() >= INTERVAL
    assert {"new_users", "inactive_users", "active_users"} == told["slices"].keys()
    retrieval = told["retrieval"]
    assert {"mode", "beam", "nodes_scored_share", "overlap@20", "recall_ratio@20"} <= retrieval.keys()
    assert {"p50", "p99"} <= retrieval["latency_ms"].keys()
    values = pl.read_parquet(per_user)
    assert len(values) == told["users"]
    assert values["ndcg@10"].mean() == pytest.approx(told["metrics"]["ndcg@10"]["mean"])
    assert set(values["user_id"]) <= set(pl.read_parquet(world / "split/test/labels.parquet")["user_id"])


def test_evaluating_the_whole_log_measures_what_came_after_the_training(capsys, world):
    code, out, _ = run(capsys, "evaluate", world / "model", world / "log")
    assert code == 0
    assert "ndcg@10" in out
    split = answer(capsys, "evaluate", world / "model", world / "split")
    log = answer(capsys, "evaluate", world / "model", world / "log")
    # The same users and labels, but for labels of items that the split drops as cold.
    assert log["users"] >= split["users"]
    assert log["metrics"]["hit@10"]["mean"] == pytest.approx(split["metrics"]["hit@10"]["mean"], abs=0.05)


def test_report_writes_one_file(capsys, world, tmp_path):
    evaluation = tmp_path / "evaluation.json"
    evaluation.write_text(json.dumps(answer(capsys, "evaluate", world / "model", world / "split")))
    told = answer(capsys, "report", world / "model", "--out", tmp_path / "r.html", "--evaluation", evaluation)
    assert told == {"report": str(tmp_path / "r.html")}
    assert "ndcg@10" in (tmp_path / "r.html").read_text()
    assert run(capsys, "report", world / "model", "--out", tmp_path / "short.html")[0] == 0


# -- recommend ----------------------------------------------------------------------


def test_recommend_to_users(capsys, world, users):
    told = answer(capsys, "recommend", world / "model", "--user", users[0], "--user", users[1], "-k", 3)
    assert [each["user_id"] for each in told["users"]] == users[:2]
    for each in told["users"]:
        assert each["source"] == "model"
        assert [item["rank"] for item in each["items"]] == [1, 2, 3]
        assert {"item_id", "score", "rank"} == each["items"][0].keys()
    code, out, _ = run(capsys, "recommend", world / "model", "--user", users[0], "-k", 3)
    assert code == 0
    assert len(out.splitlines()) == 4
    assert out.startswith(f"user {users[0]}\n")
    assert str(told["users"][0]["items"][0]["item_id"]) in out.splitlines()[1]


def test_a_user_named_twice_is_answered_once(capsys, world, users):
    told = answer(capsys, "recommend", world / "model", "--user", users[0], "--user", users[0], "-k", 3)
    assert [len(each["items"]) for each in told["users"]] == [3]


def test_unknown_users_are_answered_and_said_to_be_unknown(capsys, world):
    told = answer(capsys, "recommend", world / "model", "--user", "nobody", "-k", 2)
    assert told["users"][0]["source"] == "fallback"
    assert len(told["users"][0]["items"]) == 2
    _, out, err = run(capsys, "recommend", world / "model", "--user", "nobody")
    assert "unknown to the model" in out
    assert "1 of 1 users are unknown" in err


def test_a_user_for_whom_nothing_is_left_still_has_an_answer(capsys, world, users):
    arguments = ("recommend", world / "model", "--user", users[0], "--allow", "")
    assert answer(capsys, *arguments) == {"users": [{"user_id": users[0], "source": None, "items": []}]}
    assert "no item is left" in run(capsys, *arguments)[1]


def test_recommend_to_a_history(capsys, world, users, tmp_path):
    items = pl.read_parquet(world / "split/train.parquet")["item_id"].unique(maintain_order=True).to_list()
    history = f"{items[0]}, {items[1]},no such item"
    told = answer(capsys, "recommend", world / "model", "--history", history, "-k", 4)
    (found,) = told["users"]
    assert len(found["items"]) == 4
    assert not {items[0], items[1]} & {item["item_id"] for item in found["items"]}
    assert (
        "1 of 3 items of the history are unknown"
        in run(capsys, "recommend", world / "model", "--history", history)[2]
    )
    out = tmp_path / "h.csv"
    answer(capsys, "recommend", world / "model", "--history", history, "--out", out)
    assert pl.read_csv(out).columns == ["history", "item_id", "score", "rank", "source"]


def test_filters(capsys, world, users, tmp_path):
    everything = answer(
        capsys, "recommend", world / "model", "--user", users[0], "-k", 10**9, "--include-seen"
    )
    items = [item["item_id"] for item in everything["users"][0]["items"]]
    assert len(items) == answer(capsys, "inspect", world / "model")["items"]
    unseen = answer(capsys, "recommend", world / "model", "--user", users[0], "-k", 10**9)
    assert len(unseen["users"][0]["items"]) < len(items)
    listed = tmp_path / "allowed.txt"
    listed.write_text("\n".join(str(item) for item in items[:5]))
    told = answer(
        capsys, "recommend", world / "model", "--user", users[0], "--include-seen",
        "--allow", f"@{listed}", "--deny", f"{items[0]},{items[1]}",
    )  # fmt: skip
    assert [item["item_id"] for item in told["users"][0]["items"]] == items[2:5]


@pytest.mark.parametrize("source", ["users.txt", "users.csv", "users.tsv", "users.parquet", "users.jsonl"])
@pytest.mark.parametrize("target", ["recs.parquet", "new/recs.csv", "recs.jsonl", "r.ndjson"])
def test_recommend_to_a_file_of_users(capsys, world, users, tmp_path, source, target):
    frame = pl.DataFrame({"user_id": [*users[:4], users[0], "nobody"], "other": range(6)})
    path = tmp_path / source
    if source == "users.txt":
        path.write_text("\n".join(frame["user_id"]) + "\n\n")
    else:
        {
            ".csv": frame.write_csv,
            ".tsv": lambda p: frame.write_csv(p, separator="\t"),
            ".parquet": frame.write_parquet,
            ".jsonl": frame.write_ndjson,
        }[path.suffix](path)
    told = answer(capsys, "recommend", world / "model", "--users", path, "--out", tmp_path / target, "-k", 3)
    assert told == {"out": str(tmp_path / target), "users": 5, "rows": 15}
    readers = {
        ".parquet": pl.read_parquet,
        ".csv": pl.read_csv,
        ".jsonl": pl.read_ndjson,
        ".ndjson": pl.read_ndjson,
    }
    found = readers[Path(target).suffix](tmp_path / target)
    assert found.columns == ["user_id", "item_id", "score", "rank", "source"]
    assert found["user_id"].unique(maintain_order=True).to_list() == [*users[:4], "nobody"]
    assert found.filter(pl.col("source") == "fallback")["user_id"].unique().to_list() == ["nobody"]


# -- tune, doctor, the rest ---------------------------------------------------------


def test_tune_adds_trials_and_its_best_settings_train(capsys, world, tmp_path):
    arguments = ("tune", world / "split", "--out", tmp_path / "study", "--model", "neighbours", *TINY)
    first = answer(capsys, *arguments, "--trials", 2)
    assert first["trials"] == 2
    assert first["value"] == max(first["values"])
    more = answer(capsys, *arguments, "--trials", 2)
    assert more["trials"] == 4
    assert more["values"][:2] == first["values"]
    assert more["value"] >= first["value"]
    journal = JournalStorage(JournalFileBackend(str(tmp_path / "study" / "study.log")))
    drawn = [trial.params["l2"] for trial in optuna.load_study(study_name=None, storage=journal).trials]
    assert len(set(drawn)) == 4, "a resumed study draws what it drew before"
    best = tmp_path / "study" / "best.toml"
    told = answer(
        capsys, "train", world / "split", "--config", best, "--model", "neighbours", "--out", tmp_path / "m"
    )
    assert told["ladder"][0]["metrics"]["ndcg@10"]["mean"] == pytest.approx(more["value"], abs=0.05)


@pytest.mark.parametrize("name", SPACES)
def test_a_space_holds_valid_settings_alone_and_moves_all_it_declares(name):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [SPACES[name](study.ask(), Config()) for _ in range(30)]  # a Config checks itself
    section = {"sequence": "training", "neighbours": "neighbours"}[name]
    assert len({getattr(config, section) for config in drawn}) == 30


def test_doctor(capsys):
    told = answer(capsys, "doctor")
    assert told["ok"]
    assert {"name", "status", "detail", "remedy"} <= told["checks"][0].keys()
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    assert "torch" in out


@pytest.mark.parametrize(
    "verb",
    [
        *(
            [],
            ["demo"],
            ["train"],
            ["evaluate"],
            ["recommend"],
            ["tune"],
            ["inspect"],
            ["report"],
            ["doctor"],
        ),
        *(["data"], ["data", "fetch"], ["data", "simulate"], ["data", "validate"]),
        *(["data", "describe"], ["data", "split"]),
    ],
    ids=" ".join,
)
def test_every_verb_has_help_and_the_common_options(capsys, verb):
    code, out, err = run(capsys, *verb, "--help")
    assert (code, err) == (0, "")
    assert "Usage: rootbeam" in out
    if verb not in ([], ["data"]):
        for option in ("--json", "--seed", "--quiet"):
            assert option in out


def test_version(capsys):
    from rootbeam import __version__

    assert run(capsys, "--version") == (0, f"{__version__}\n", "")


def test_an_error_with_json_is_one_object_too(capsys, tmp_path):
    code, out, err = run(capsys, "inspect", tmp_path / "none", "--json")
    assert code == 2
    told = json.loads(out)
    assert told["exit_code"] == 2
    assert err == f"error: {told['error']}\n"
