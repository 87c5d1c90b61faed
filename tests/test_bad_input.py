"""Bad input by the dozen: exit code 2, one line on stderr that says what was wrong, never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from test_train import SMALL
from worlds import checkerboard

from rootbeam.cli import main
from rootbeam.core.config import Config
from rootbeam.core.errors import InputError
from rootbeam.recommender import Recommender
from rootbeam.tune import search

HEAD = "user_id,item_id,timestamp\n"
GOOD = HEAD + "".join(f"u{n % 5},i{n % 7},{1_600_000_000 + 86_400 * n}\n" for n in range(60))
FILES: dict[str, str | bytes] = {
    "good.csv": GOOD,
    "empty.csv": "",
    "header.csv": HEAD,
    "blank.csv": "\n\n\n",
    "nouser.csv": "item_id,timestamp\ni1,1600000000\n",
    "noitem.csv": "user_id,timestamp\nu1,1600000000\n",
    "other.csv": "customer,product\na,b\n",
    "binary.csv": bytes(range(256)) * 8,
    "binary.parquet": b"PAR1" + bytes(range(256)) * 8,
    "binary.csv.gz": b"\x1f\x8b" + bytes(range(256)),
    "noid.csv": HEAD + "u1,i1,1600000000\n,i2,1600000001\n",
    "long.csv": HEAD + "x" * 1_000_000 + ",i1,1600000000\n",
    "future.csv": HEAD + "u1,i1,253370764800000\n",
    "ms9999.csv": HEAD + "u1,i1,9999-12-31T23:59:59\n",
    "when.csv": HEAD + "u1,i1,yesterday\n",
    "nantime.csv": HEAD + "u1,i1,nan\n",
    "ragged.csv": HEAD + "u1,i1\nu2,i2,1600000000,9,9\n",
    "rating.csv": "user_id,item_id,rating\nu1,i1,good\n",
    "weight.csv": "user_id,item_id,weight\nu1,i1,-1\n",
    "types.csv": "user_id,item_id,event_type\nu1,i1,view\n",
    "broken.jsonl": '{"user_id": "u1", "item_id":\n',
    "list.jsonl": "[1, 2]\n",
    "events.xlsx": b"PK\x03\x04nonsense",
    "items.csv": "item_id,title\ni1,A\ni1,B\n",
    "noitems.csv": "title\nA\n",
    "bad.toml": "[sequence",
    "unknown.toml": "[sequence]\nwidth = 3\n",
    "list.json": "[]",
    "error.json": '{"error": "x", "exit_code": 2}',
    "none.txt": "\n\n",
    "users.csv": "name\nu1\n",
    "float.jsonl": '{"user_id": 1.5}\n',
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    for name, content in FILES.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    nan = pl.DataFrame({"user_id": [1.0, float("nan")], "item_id": ["a", "b"]})
    nan.write_parquet(folder / "nan.parquet")
    pl.DataFrame({"user_id": [[1]], "item_id": ["a"]}).write_parquet(folder / "nested.parquet")
    pl.DataFrame({"user_id": ["u"], "item_id": ["a"]}).clear().write_parquet(folder / "norows.parquet")
    (folder / "empty").mkdir()
    Recommender(SMALL).fit(checkerboard(users=12), model="neighbours").save(folder / "model")
    untimed = checkerboard(users=12).drop("timestamp")
    Recommender(SMALL).fit(untimed, model="popularity").save(folder / "untimed")
    (folder / "split").mkdir()
    (folder / "split" / "split.json").write_text("{}")
    (folder / "splitlist").mkdir()
    (folder / "splitlist" / "split.json").write_text("[]")
    checkerboard(users=12).write_parquet(folder / "known.parquet")
    newer = checkerboard(users=12).with_columns(pl.col("timestamp") + pl.duration(days=400))
    newer.write_parquet(folder / "newer.parquet")
    assert (
        main(["data", "split", str(folder / "known.parquet"), "--out", str(folder / "whole"), "--quiet"]) == 0
    )
    for name, damage in (("cut", lambda b: b[: len(b) // 2]), ("edited", lambda b: b[:-1] + b"!")):
        shutil.copytree(folder / "model", folder / name)
        weights = folder / name / "weights.safetensors"
        weights.write_bytes(damage(weights.read_bytes()))
    shutil.copytree(folder / "model", folder / "lacking")
    (folder / "lacking" / "ids.parquet").unlink()
    return folder


TRAIN = "train --out new --model popularity {}"
RECOMMEND = "recommend model --user u1"
CASES: list[tuple[str, str, str]] = [
    # what, the command, words of the one line
    ("an empty file", TRAIN.format("empty.csv"), "empty.csv"),
    ("a header alone", TRAIN.format("header.csv"), "no rows"),
    ("blank lines", TRAIN.format("blank.csv"), "blank.csv"),
    ("no rows", TRAIN.format("norows.parquet"), "no rows"),
    ("no user column", TRAIN.format("nouser.csv"), "user_id"),
    ("no item column", TRAIN.format("noitem.csv"), "item_id"),
    ("other names", TRAIN.format("other.csv"), "customer"),
    ("a binary file", TRAIN.format("binary.csv"), "binary.csv"),
    ("a binary parquet", TRAIN.format("binary.parquet"), "binary.parquet"),
    ("a damaged gzip", TRAIN.format("binary.csv.gz"), "binary.csv.gz"),
    ("a null id", TRAIN.format("noid.csv"), "row 3"),
    ("nan ids", TRAIN.format("nan.parquet"), "user_id"),
    ("lists as ids", TRAIN.format("nested.parquet"), "user_id"),
    ("a million characters", TRAIN.format("long.csv"), "row 2"),
    ("milliseconds in the year 9999", TRAIN.format("future.csv"), "timestamp"),
    ("the year 9999", TRAIN.format("ms9999.csv"), "timestamp"),
    ("a word as time", TRAIN.format("when.csv"), "yesterday"),
    ("nan as time", TRAIN.format("nantime.csv"), "timestamp"),
    ("ragged rows", TRAIN.format("ragged.csv"), "row 2"),
    ("a word as rating", TRAIN.format("rating.csv"), "good"),
    ("a negative weight", TRAIN.format("weight.csv"), "weight"),
    ("broken json", TRAIN.format("broken.jsonl"), "broken.jsonl"),
    ("json that is no object", TRAIN.format("list.jsonl"), "list.jsonl"),
    ("a spreadsheet", TRAIN.format("events.xlsx"), "events.xlsx"),
    ("no such file", TRAIN.format("nowhere.csv"), "nowhere.csv"),
    ("an empty folder", TRAIN.format("empty"), "empty"),
    ("a glob of nothing", TRAIN.format("*.nothing"), "*.nothing"),
    ("a bundle as events", TRAIN.format("model"), "model"),
    ("a name that is too long", TRAIN.format("x" * 5000), "File name too long"),
    ("a damaged split", TRAIN.format("split"), "split again"),
    ("a split of another kind", TRAIN.format("splitlist"), "split.json is damaged"),
    ("one item twice", TRAIN.format("good.csv --items items.csv"), "more than once"),
    ("items without ids", TRAIN.format("good.csv --items noitems.csv"), "item_id"),
    ("no such items", TRAIN.format("good.csv --items none.csv"), "none.csv"),
    ("columns of one word", TRAIN.format("good.csv --columns uid"), "needed name=value"),
    ("columns of another name", TRAIN.format("good.csv --columns person=user_id"), "person"),
    ("columns that are not there", TRAIN.format("good.csv --columns user_id=uid"), "uid"),
    ("weights of one word", TRAIN.format("types.csv --weights view"), "needed name=value"),
    ("weights that are words", TRAIN.format("types.csv --weights view=much"), "needed a number"),
    ("negative weights", TRAIN.format("types.csv --weights view=-1"), "-1"),
    ("nan weights", TRAIN.format("types.csv --weights view=nan"), "nan"),
    ("weights that drop all", TRAIN.format("types.csv --weights view=0"), "event"),
    ("min-rating without ratings", TRAIN.format("good.csv --min-rating 3"), "rating"),
    ("min-rating of a word", TRAIN.format("good.csv --min-rating high"), "--min-rating"),
    ("an unknown policy", TRAIN.format("good.csv --on-bad-rows pray"), "pray"),
    ("a setting without a section", TRAIN.format("good.csv --set dimension=8"), "section.key=value"),
    ("an unknown setting", TRAIN.format("good.csv --set sequence.width=8"), "sequence.width"),
    ("an unknown section", TRAIN.format("good.csv --set sequences.length=8"), "did you mean 'sequence'"),
    ("a setting of another type", TRAIN.format("good.csv --set sequence.length=long"), "a whole number"),
    ("a setting out of range", TRAIN.format("good.csv --set sequence.dropout=2"), "below 1"),
    ("a dimension beyond memory", TRAIN.format("good.csv --set sequence.dimension=1000000000"), "8192"),
    ("an unknown metric", TRAIN.format("good.csv --set ladder.metric=luck@10"), "luck"),
    ("a metric without k", TRAIN.format("good.csv --set ladder.metric=ndcg"), "ndcg@10"),
    ("bad toml", TRAIN.format("good.csv --config bad.toml"), "is not TOML"),
    ("unknown names in toml", TRAIN.format("good.csv --config unknown.toml"), "sequence.width"),
    ("no such toml", TRAIN.format("good.csv --config none.toml"), "none.toml"),
    ("a budget of a word", TRAIN.format("good.csv --budget soon"), "--budget is 'soon'"),
    ("a budget of nothing", TRAIN.format("good.csv --budget 0m"), "--budget is '0m'"),
    ("a negative budget", TRAIN.format("good.csv --budget=-1m"), "--budget is '-1m'"),
    ("an unknown model", "train good.csv --out new --model magic", "--model is 'magic'"),
    ("an unknown device", TRAIN.format("good.csv --device tpu"), "auto, cpu or cuda"),
    ("repeats of another word", TRAIN.format("good.csv --repeats maybe"), "allow or forbid"),
    ("a negative seed", TRAIN.format("good.csv --seed=-1"), "--seed"),
    ("a seed too large", TRAIN.format("good.csv --seed 99999999999"), "run.seed"),
    ("no --out", "train good.csv", "--out"),
    ("out is a file", "train good.csv --out good.csv", "is not a bundle"),
    ("out is a folder of others", "train good.csv --out .", "is not a bundle"),
    ("out is the root", "train good.csv --out /", "is not a bundle"),
    ("out lies below a file", "train good.csv --out good.csv/model", "lies below a file"),
    ("trained is no such file", TRAIN.format("good.csv --trained none.safetensors"), "none.safetensors"),
    ("trained is no arrays", TRAIN.format("good.csv --trained good.csv"), "not a safetensors file"),
    ("trained is other arrays", TRAIN.format("good.csv --trained model/weights.safetensors"), "no trained"),
    ("no such bundle", "inspect nowhere", "is not a bundle"),
    ("the bundle is a file", "inspect good.csv", "is not a bundle"),
    ("the bundle is a folder", "inspect empty", "is not a bundle"),
    ("a truncated bundle", "inspect cut", "weights.safetensors"),
    ("an edited bundle", "recommend edited --user u1", "weights.safetensors"),
    ("a bundle with a missing file", "evaluate lacking known.parquet", "ids.parquet"),
    ("report of no bundle", "report nowhere --out r.html", "is not a bundle"),
    ("report of a damaged bundle", "report cut --out r.html", "weights.safetensors"),
    ("report into a folder", "report model --out empty", "empty"),
    ("report without --out", "report model", "--out"),
    ("an evaluation that is no json", "report model --out r --evaluation good.csv", "no JSON"),
    ("an evaluation that is a list", "report model --out r --evaluation list.json", "no JSON"),
    ("an evaluation that failed", "report model --out r --evaluation error.json", "no JSON"),
    ("no such evaluation", "report model --out r --evaluation none.json", "none.json"),
    ("events the model learned", "evaluate model known.parquet", "no event is later than the training"),
    ("new events alone", "evaluate model newer.parquet", "give the whole log"),
    ("a split the model learned", "evaluate model whole", "learned from events of the split's test part"),
    ("a model without times", "evaluate untimed known.parquet", "without times"),
    ("events that are empty", "evaluate model empty.csv", "empty.csv"),
    ("nobody to recommend to", "recommend model", "exactly one of --user"),
    ("two ways at once", RECOMMEND + " --history i1", "exactly one of --user"),
    ("k of 0", RECOMMEND + " -k 0", "-k"),
    ("k of a word", RECOMMEND + " -k ten", "'-k'"),
    ("only unknown items allowed", RECOMMEND + " --allow x,y", "none of the 2 allowed items"),
    ("allow of no such file", RECOMMEND + " --allow @none.txt.gz", "none.txt.gz"),
    ("deny of a binary file", RECOMMEND + " --deny @binary.csv", "binary.csv"),
    ("a file of nobody", "recommend model --users none.txt", "names no user"),
    ("no such file of users", "recommend model --users nowhere.txt", "nowhere.txt"),
    ("a folder of users", "recommend model --users empty", "empty"),
    ("a binary file of users", "recommend model --users binary.csv", "binary.csv"),
    ("a damaged parquet of users", "recommend model --users binary.parquet", "binary.parquet"),
    ("users under another name", "recommend model --users users.csv", "needed user_id"),
    ("users that are fractions", "recommend model --users float.jsonl", "needed strings or integers"),
    ("an unknown ending", "recommend model --users users.csv --out recs.xlsx", ".parquet, .csv, .jsonl"),
    ("tuning what cannot be", "tune good.csv --out study --model popularity", "--model is 'popularity'"),
    ("tuning into a file", "tune good.csv --out good.csv --model neighbours", "is not a folder"),
    ("tuning without trials", "tune good.csv --out study --trials 0", "--trials"),
    ("an unknown data set", "data fetch ml-1000", "ml-1000"),
    ("a data set that needs a path", "data fetch ml-25m", "--from"),
    ("simulating nothing", "data simulate --out log --events 0", "--events"),
    ("simulating no time", "data simulate --out log --events 10 --days=-1", "days"),
    ("simulating into a folder of others", "data simulate --out . --events 10 --users 3", "not a data set"),
    ("an unknown split", "data split good.csv --out s --by luck", "luck"),
    ("shares of everything", "data split good.csv --out s --valid 0.5 --test 0.5", "below 1"),
    ("a split by time without time", "data split types.csv --out s", "needs a timestamp"),
    ("validating nothing", "data validate nowhere.csv", "nowhere.csv"),
    ("describing a binary file", "data describe binary.csv", "binary.csv"),
    ("no such verb", "trian good.csv --out new", "trian"),
    ("no such verb of data", "data fetsh ml-100k", "fetsh"),
    ("no such option", "inspect model --jsn", "--jsn"),
    ("an argument too many", "inspect model model", "model"),
    ("an argument too few", "evaluate model", "events"),
    ("an option without its value", "recommend model --user", "--user"),
    ("bytes that are no text", "recommend model --user \udcff", "UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "words"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_bad_input_is_one_line_and_exit_code_2(place, monkeypatch, capsys, command, words):
    monkeypatch.chdir(place)
    given = command.split()
    verb = 2 if given[0] == "data" else 1
    code = main([*given[:verb], "--quiet", *given[verb:]])
    said = capsys.readouterr()
    made = (place / "new").exists()
    shutil.rmtree(place / "new", ignore_errors=True)
    assert said.out == ""
    assert "Traceback" not in said.err
    assert said.err.count("\n") == 1, said.err[-600:]
    assert said.err.startswith("error: ")
    assert words in said.err
    assert len(said.err) < 5000
    assert code == 2
    assert not made


@pytest.mark.parametrize(
    "command",
    [
        "train empty.csv --out new",
        "evaluate model known.parquet",
        "recommend cut --user u1",
        "inspect nowhere",
        "trian",
    ],
)
def test_the_console_says_the_same(place, command):
    done = subprocess.run(
        [sys.executable, "-c", "from rootbeam.cli import run; run()", *command.split(), "--json"],
        cwd=place, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert json.loads(done.stdout) == {"error": last.removeprefix("error: "), "exit_code": 2}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--user", "nobody at all"],
        ["--user", ""],
        ["--user", "x" * 1_000_000],
        ["--user", "ü\n\t\x00🐢"],
        ["--history", "no such item"],
        ["--history", ""],
        ["--history", ",,,"],
        ["--user", "u1", "-k", "99999999999999999999"],
        ["--user", "u1", "--deny", "no such item"],
        ["--user", "u1", "--allow", ""],
    ],
    ids=lambda arguments: " ".join(arguments)[:30],
)
def test_what_is_merely_unknown_gets_a_sensible_answer(place, capsys, arguments):
    assert main(["recommend", str(place / "model"), *arguments, "--json"]) == 0
    said = capsys.readouterr()
    (answer,) = json.loads(said.out)["users"]
    assert answer["source"] in ("fallback", "model", None)
    assert "Traceback" not in said.err


def test_a_place_that_may_not_be_written_is_one_line(place, tmp_path, capsys):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    code = main([*["train", "good.csv", "--model", "popularity", "--out"], str(tmp_path / "m"), "--quiet"])
    said = capsys.readouterr().err
    assert code == 1
    assert said.startswith("error: no permission for ")
    assert said.count("\n") == 1


def test_a_full_disk_is_one_line_and_not_the_inputs_fault(place, monkeypatch, capsys):
    from rootbeam.core import bundle

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.chdir(place)
    monkeypatch.setattr(bundle, "_write_synced", full)
    assert main([*TRAIN.format("good.csv").split(), "--quiet"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: No space left on device: ")
    assert said.count("\n") == 1
    shutil.rmtree("new.partial")


def test_memory_that_runs_out_is_one_line(place, monkeypatch, capsys):
    def greedy(path):
        raise MemoryError

    monkeypatch.setattr("rootbeam.recommender.load", greedy)
    assert main(["recommend", str(place / "model"), "--user", "u1"]) == 1
    assert capsys.readouterr().err.startswith("error: out of memory")


def test_a_mistake_of_ours_is_not_hidden(place, monkeypatch):
    def mistaken(path):
        raise RuntimeError("a bug")

    monkeypatch.setattr("rootbeam.recommender.load", mistaken)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["recommend", str(place / "model"), "--user", "u1"])


def test_ctrl_c_before_training_is_one_line(place, monkeypatch, capsys):
    def impatient(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("rootbeam.recommender.load", impatient)
    assert main(["recommend", str(place / "model"), "--user", "u1"]) == 1
    assert capsys.readouterr().err == "error: stopped by the user\n"


def test_tuning_where_nothing_can_be_validated_is_refused(tmp_path):
    strangers = checkerboard(users=10, events=1)
    with pytest.raises(InputError, match="no user has events both before and after"):
        search(strangers, None, Config(), tmp_path, trials=1, model="neighbours")
