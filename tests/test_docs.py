"""What the documentation shows is what happens: code runs, output agrees, commands, links and files exist."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rootbeam
from rootbeam.core.config import Config, LadderConfig, SequenceConfig, SequenceTraining

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN = [page for page in PAGES if page.name != "command-line.md"]
SOURCES = ROOT / "src" / "rootbeam"
COMMAND_LINE = runpy.run_path(str(ROOT / "docs" / "make_command_line.py"))
VERBS = set(COMMAND_LINE["verbs"]())
# The README's log is served by its neighbours; an encoder of almost nothing saves the test its training.
SHORT = Config(
    sequence=SequenceConfig(dimension=8, blocks=1, length=5),
    training=SequenceTraining(epochs=1, least_steps=1),
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in FENCE.findall(page.read_text()) if kind == language]


def printed(code: str, namespace: dict[str, Any]) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(code, namespace)
    return shown.getvalue()


def is_number(word: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", word) is not None


def words(text: str) -> list[str]:
    """Words and numbers; frames and rules around them may be as wide as they like."""
    return re.findall(r"[^\s│┌┐└┘├┤┬┴┼─═╞╡╪┆\[\],()]+", text)


def assert_same_output(shown: str, expected: str) -> None:
    """Word for word, numbers to a hundredth: other machines add in another order."""
    got, wanted = words(shown), words(expected)
    assert len(got) == len(wanted), f"{shown}\nis not\n{expected}"
    for one, other in zip(got, wanted, strict=True):
        if is_number(one) and is_number(other):
            assert float(one) == pytest.approx(float(other), rel=0.01, abs=0.002), f"{one} is not {other}"
        else:
            assert one == other


# --- the README's code ---


def readme_block() -> str:
    (code,) = blocks(ROOT / "README.md", "python")
    return code


def test_the_example_is_the_readmes_code() -> None:
    source = (ROOT / "examples" / "first_steps.py").read_text()
    assert source.partition('"""\n\n')[2] == readme_block()
    assert len(readme_block().splitlines()) == 12


def test_the_readmes_code_prints_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rootbeam.recommender.Config", lambda: SHORT)
    (expected,) = blocks(ROOT / "README.md", "text")
    assert_same_output(printed(readme_block(), {}), expected)
    assert (tmp_path / "model" / "manifest.json").is_file()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_example_prints_the_same_with_the_whole_ladder(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "first_steps.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    (expected,) = blocks(ROOT / "README.md", "text")
    assert_same_output(run.stdout, expected)


def test_output_that_differs_is_noticed() -> None:
    assert_same_output("│ u1 ┆ 9.0094 │", "u1  9.0093")
    with pytest.raises(AssertionError):
        assert_same_output("u1 9.0", "u1 9.2")
    with pytest.raises(AssertionError):
        assert_same_output("u1 9.0", "u2 9.0")


def test_the_readme_names_the_public_names_and_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    listed = text.partition("those of `rootbeam.__all__`:")[2].partition(".")[0]
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(rootbeam.__all__)
    assert "make demo" in text
    assert "make test" in text


def test_the_scorer_of_your_own_says_what_follows() -> None:
    source = (ROOT / "examples" / "own_scorer.py").read_text()
    shown = printed(source, {"__name__": "__main__"}).splitlines()
    # Bread is followed by butter three times and by tea once; butter by jam; tea by milk. Ties: first item.
    assert shown == ["tea + bread -> butter or tea", "butter -> jam or bread", "milk + tea -> milk or bread"]


# --- other pages' code ---


def test_the_numbers_of_the_compatibility_page() -> None:
    (code,) = blocks(ROOT / "docs" / "compatibility.md", "python")
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    shown = re.findall(r"^(metrics\..*?)  # \[(.*?)\]$", code, re.MULTILINE)
    assert len(shown) == 4
    for call, numbers in shown:
        expected = [float(number) for number in numbers.split(",")]
        assert list(eval(call, namespace)) == pytest.approx(expected, abs=0.0005), call


def test_the_page_of_questions_answers_all_and_its_calls_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "questions.md"
    numbers = [int(number) for number in re.findall(r"^\*\*(\d+)\. ", page.read_text(), re.MULTILINE)]
    assert numbers == list(range(1, 21))
    monkeypatch.chdir(tmp_path)
    log = rootbeam.simulate(users=80, items=40, events=1500, days=30, seed=1)
    small = Config(ladder=LadderConfig(models=("popularity", "neighbours")))
    rec = rootbeam.Recommender(small).fit(log.events, items=log.items)
    rec.save("model")
    namespace = {"rb": rootbeam, "rec": rec}
    for code in blocks(page, "python"):
        exec(code, namespace)
    assert rec.history_of("new") == ["i7"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_nightly_job_runs_two_nights(tmp_path: Path) -> None:
    import polars as pl

    page = ROOT / "docs" / "retrain-nightly.md"
    (script,) = blocks(page, "bash")
    (gate,) = blocks(page, "python")
    for given, here in (
        ("cd /srv/shop ", f"cd {shlex.quote(str(tmp_path))} "),
        (
            "rootbeam=.venv/bin/rootbeam",
            f"rootbeam={shlex.quote(str(Path(sys.executable).parent / 'rootbeam'))}",
        ),
        ("--budget 45m", "--budget 5s --set training.least_steps=20"),
        ("$(date +%F)", "$NIGHT"),
    ):
        assert script.count(given) == 1, given
        script = script.replace(given, here)
    (tmp_path / "retrain.sh").write_text(script)
    (tmp_path / "gate.py").write_text(gate)
    log = rootbeam.simulate(users=300, items=100, events=5000, days=30, seed=3)
    cut = log.events["timestamp"].sort()[4500]
    columns = pl.col("user_id", "item_id", "timestamp")
    (tmp_path / "events").mkdir()
    log.events.filter(pl.col("timestamp") < cut).select(columns).write_parquet(
        tmp_path / "events/first.parquet"
    )
    log.items.write_parquet(tmp_path / "items.parquet")
    log.events.select("user_id").unique().write_csv(tmp_path / "active-users.csv")

    def night(name: str) -> None:
        subprocess.run(["bash", "retrain.sh"], cwd=tmp_path, env=os.environ | {"NIGHT": name}, check=True)

    night("2026-03-01")
    assert os.readlink(tmp_path / "models" / "current") == "2026-03-01"
    assert not (tmp_path / "models" / "2026-03-01.forward.json").exists()
    log.events.filter(pl.col("timestamp") >= cut).select(columns).write_parquet(
        tmp_path / "events/later.parquet"
    )
    night("2026-03-02")
    assert os.readlink(tmp_path / "models" / "current") == "2026-03-02"
    forward = (tmp_path / "models" / "2026-03-02.forward.json").read_text()
    assert '"ndcg@10": {"mean": 0.' in forward
    assert (tmp_path / "models" / "2026-03-01" / "manifest.json").exists()
    night("2026-03-02")  # a second run of a night that is done changes nothing


# --- commands ---


def commands(text: str) -> list[list[str]]:
    """The words after `rootbeam` of every command in shell blocks and inline code."""
    shell = [code for kind, code in FENCE.findall(text) if kind in ("sh", "bash")]
    inline = re.findall(r"`((?:\.venv/bin/)?rootbeam [^`]+)`", FENCE.sub("", text).replace("\n", " "))
    found = []
    for line in [*"\n".join(shell).replace("\\\n", " ").splitlines(), *inline]:
        line = line.replace('"$rootbeam"', "rootbeam")
        for part in re.split(r"&&|\|\||[|;>]", line.partition(" #")[0]):
            split = shlex.split(part)
            if split and re.fullmatch(r"(\.venv/bin/)?rootbeam", split[0]):
                found.append(split[1:])
    return found


@functools.cache
def help_of(verb: str) -> str:
    return str(COMMAND_LINE["help_of"](verb))


def problem_of(command: list[str]) -> str | None:
    """What is wrong with a shown command: an unknown verb, or an option the verb does not have."""
    names = [word for word in command if not word.startswith("-")]
    verb = " ".join(names[: 2 if names[:1] == ["data"] else 1])
    if verb not in VERBS:
        return f"no verb {verb!r}"
    options = [word for word in command if re.fullmatch(r"--?[a-z][a-z-]*", word)]
    known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", help_of(verb)))
    missing = [option for option in options if option not in known]
    return f"{verb} has no {', '.join(missing)}" if missing else None


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_every_command_shown_exists_with_its_options(page: Path) -> None:
    problems = [problem for command in commands(page.read_text()) if (problem := problem_of(command))]
    assert not problems


def test_commands_are_found_and_wrong_ones_noticed() -> None:
    text = "```sh\nrootbeam train a.csv \\\n  --out b && rootbeam tune x --nope\n```\nand `rootbeam fly`"
    first, second, third = commands(text)
    assert first == ["train", "a.csv", "--out", "b"]
    assert problem_of(first) is None
    assert problem_of(second) == "tune has no --nope"
    assert problem_of(third) == "no verb 'fly'"
    assert len(commands((ROOT / "README.md").read_text())) >= 5
    assert len(commands((ROOT / "docs" / "retrain-nightly.md").read_text())) >= 4


def test_the_page_of_the_command_line_is_current() -> None:
    page = ROOT / "docs" / "command-line.md"
    assert page.read_text() == COMMAND_LINE["page"](), "run: python docs/make_command_line.py"


# --- links and files ---


def anchors(page: Path) -> set[str]:
    """What a link may name behind #: headings in lower case, spaces as dashes, without punctuation."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)} links to {target}"
        assert file.is_relative_to(ROOT), f"{name_of(page)} links out of the repository: {target}"
        assert not anchor or anchor in anchors(file), f"{name_of(page)} links to {target}"


def test_every_page_is_linked_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    for page in PAGES:
        assert page.name == "README.md" or f"({name_of(page)})" in text, (
            f"the README does not lead to {page.name}"
        )


def architecture() -> tuple[str, str]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    now, _, planned = text.partition("## Planned")
    return now, planned


def test_the_architecture_names_every_top_level_module() -> None:
    now, _ = architecture()
    for path in SOURCES.iterdir():
        if path.suffix == ".py" and path.stem != "__init__":
            assert f"`{path.name}`" in now, f"ARCHITECTURE.md does not name {path.name}"
        elif path.is_dir() and path.name != "__pycache__":
            assert f"## `{path.name}/`" in now, f"ARCHITECTURE.md has no section on {path.name}/"


def test_the_architecture_names_no_file_that_is_not_there() -> None:
    now, _ = architecture()
    there = {
        path.name for folder in (SOURCES, ROOT / "tests", ROOT / "examples") for path in folder.rglob("*.py")
    }
    named = {name.rpartition("/")[2] for name in re.findall(r"`([\w/]+\.py)`", now)}
    assert len(named) > 40
    assert not named - there


@pytest.mark.parametrize("package", ["data", "learn", "index", "search", "cli"])
def test_the_architecture_names_every_file_of_a_folder(package: str) -> None:
    now, _ = architecture()
    for path in (SOURCES / package).glob("[!_]*.py"):
        assert f"`{path.name}`" in now, f"ARCHITECTURE.md does not name {package}/{path.name}"


def test_what_is_planned_is_not_there_yet() -> None:
    _, planned = architecture()
    named = re.findall(r"`((?:\w+/)+\w*)`", planned)
    assert {"index/targets", "serve/", "scale/"} <= set(named)
    for name in set(named) - {"learn/", "evaluate/"}:
        assert not (SOURCES / name).exists(), f"{name} exists: it is no longer planned"
        assert not (SOURCES / f"{name}.py").exists(), f"{name} exists: it is no longer planned"


def test_no_page_shows_a_path_of_one_machine() -> None:
    for page in PAGES:
        assert not re.search(r"/(work|root|home|tmp)/", page.read_text()), name_of(page)


# --- statements of docs/theory.md and docs/limits.md that are plain arithmetic or a default ---


def test_the_defaults_that_the_pages_state() -> None:
    config = Config()
    assert config.data.history_length == 200
    assert config.neighbours.keep == 300
    assert config.sequence.length == 50
    assert config.ladder.metric == "ndcg@10"
    from rootbeam.rungs import EASE_MEMORY_BYTES

    assert round(math.sqrt(EASE_MEMORY_BYTES / 28), -3) == 15_000  # items for which EASE fits
