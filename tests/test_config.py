"""Settings: defaults that hold, every problem named at once, TOML and --set read alike."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootbeam.core.config import CHECKS, Config, RunConfig, check, config_from, config_of, to_dict
from rootbeam.core.errors import ConfigError
from rootbeam.tune import toml_of

CONFIGS = st.builds(
    Config,
    run=st.builds(
        RunConfig,
        seed=st.integers(0, 2**31 - 1),
        budget_seconds=st.one_of(st.just(math.inf), st.floats(1e-9, 1e9)),
        device=st.sampled_from(["auto", "cpu"]),
    ),
    ladder=st.builds(
        type(Config().ladder),
        metric=st.sampled_from(["ndcg@10", "recall@20"]),
        half_lives_days=st.lists(st.floats(1e-3, 1e6), max_size=4).map(tuple),
        models=st.sampled_from([("popularity",), ("popularity", "sequence")]),
    ),
)


def problems_of(*settings: str) -> str:
    with pytest.raises(ConfigError) as raised:
        config_from(None, settings)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_the_defaults_hold():
    assert check(Config()) == []
    assert config_from() == Config()


def test_every_check_names_a_setting_that_exists():
    for section, key, _, _ in CHECKS:
        getattr(getattr(Config(), section), key)


@given(CONFIGS)
def test_toml_comes_back_as_it_was(tmp_path_factory, config):
    path = tmp_path_factory.getbasetemp() / "config.toml"
    path.write_text(toml_of(config), encoding="utf-8")
    assert config_from(path) == config


@given(CONFIGS)
def test_json_comes_back_as_it_was(config):
    assert config_of(json.loads(json.dumps(to_dict(config), allow_nan=False))) == config


def test_settings_stand_above_the_file(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('[sequence]\ndimension = 32\nblocks = 3\n[data]\nrepeats = "allow"\n')
    config = config_from(path, ["sequence.dimension=128", " ladder.half_lives_days = 1, 2.5 "])
    assert (config.sequence.dimension, config.sequence.blocks) == (128, 3)
    assert config.data.repeats == "allow"
    assert config.ladder.half_lives_days == (1.0, 2.5)


def test_the_last_of_two_settings_counts():
    assert config_from(None, ["run.seed=1", "run.seed=2"]).run.seed == 2


def test_all_problems_are_named_at_once():
    message = problems_of(
        "nonsense",
        "sequense.dimension=8",
        "sequence.dimensions=8",
        "sequence.blocks=two",
        "training.epochs=0",
        "sequence.heads=3",
    )
    for part in (
        "--set was given 'nonsense'; needed section.key=value",
        "no section 'sequense'; did you mean 'sequence'?",
        "no setting 'sequence.dimensions'; did you mean 'dimension'?",
        "sequence.blocks is 'two'; needed a whole number",
        "training.epochs is 0; needed a positive count",
        "sequence.dimension is 64; needed a multiple of sequence.heads (3)",
    ):
        assert part in message


def test_without_a_close_name_the_known_ones_are_listed():
    assert "known are data, ladder, neighbours, sequence, training, run" in problems_of("zzz.a=1")
    assert "known are repeats, history_length" in problems_of("data.zzz=1")


@pytest.mark.parametrize(
    ("setting", "needed"),
    [
        ("sequence.dimension=8.5", "a whole number"),
        ("sequence.dimension=", "a whole number"),
        ("sequence.dimension=" + "9" * 5000, "a whole number"),
        ("sequence.dimension=1000000000", "1 to 8192"),
        ("sequence.dropout=nan", "a number"),
        ("sequence.dropout=1", "below 1"),
        ("sequence.heads=0", "a positive count"),
        ("training.learning_rate=-1", "a positive rate"),
        ("training.batch=0", "1 to 1000000"),
        ("data.repeats=maybe", "allow or forbid"),
        ("data.history_length=0", "1 to 10000"),
        ("ladder.models=", "some of popularity, neighbours, sequence"),
        ("ladder.models=magic", "some of popularity, neighbours, sequence"),
        ("ladder.half_lives_days=1,,2", "a list of float"),
        ("ladder.half_lives_days=0", "positive days"),
        ("ladder.metric=ndcg", "a metric such as ndcg@10"),
        ("ladder.metric=ndcg@0", "a metric such as ndcg@10"),
        ("ladder.level=1", "between 0 and 1"),
        ("neighbours.ease_l2=0", "positive penalties"),
        ("neighbours.decays=1.5", "at most 1"),
        ("run.device=tpu", "auto, cpu or cuda"),
        ("run.seed=-1", "0 to 2147483647"),
        ("run.budget_seconds=0", "a positive time"),
    ],
)
def test_what_is_out_of_range_says_what_is_needed(setting, needed):
    message = problems_of(setting)
    assert setting.partition("=")[0] in message
    assert needed in message


@pytest.mark.parametrize("setting", ["", "=", "a=1", "a.b", ".=1", "data.=1", ".repeats=allow", "a.b\nc=1"])
def test_what_is_no_setting_is_refused(setting):
    assert problems_of(setting)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[data", "is not TOML"),
        ("repeats = 'allow'", "outside a section"),
        ("[data]\nrepeats = true", "needed a text"),
        ("[data]\nhistory_length = true", "needed a whole number"),
        ("[data]\nhistory_length = 2020-01-01", "needed a whole number"),
        ("[data]\nhistory_length = inf", "needed a whole number"),
        ("[ladder]\nhalf_lives_days = 3", "needed a list of float"),
        ("[ladder]\nhalf_lives_days = [[1.0]]", "needed a list of float"),
        ("[ladder]\nhalf_lives_days = {a = 1}", "needed a list of float"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, text, words):
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as raised:
        config_from(path)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_binary_missing_or_a_folder_is_refused(tmp_path):
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not TOML"):
        config_from(tmp_path / "b.toml")
    with pytest.raises(ConfigError, match="no configuration file"):
        config_from(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="is not TOML"):
        config_from(tmp_path)


def test_a_config_made_by_hand_is_checked_too():
    with pytest.raises(ConfigError, match=r"run.seed is -1"):
        Config(run=RunConfig(seed=-1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().run.seed = 1
