"""Every setting of training, as small frozen dataclasses; read from TOML and `section.key=value`."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rootbeam.core.errors import ConfigError

RUNGS = ("popularity", "neighbours", "sequence")


@dataclass(frozen=True)
class DataConfig:
    """What a history keeps and whether a seen item may be recommended again."""

    repeats: str = "forbid"  # forbid recommends only unseen items; allow suits music and groceries
    history_length: int = 200  # items kept of a user's past, the newest


@dataclass(frozen=True)
class LadderConfig:
    """Which models are tried and how one of them is chosen."""

    models: tuple[str, ...] = RUNGS  # cheapest first
    metric: str = "ndcg@10"
    level: float = 0.95  # a cheaper rung is served unless it is worse at this confidence
    half_lives_days: tuple[float, ...] = (1.0, 3.0, 7.0, 14.0, 30.0, 90.0, 365.0)  # infinity is always tried
    recency_weights: tuple[float, ...] = (
        0.0,
        0.1,
        0.2,
        0.4,
        0.8,
        1.6,
        3.2,
        6.4,
    )  # b, with a · model of deviation 1
    max_users: int = 5000  # validation users that choices are made on


@dataclass(frozen=True)
class NeighboursConfig:
    """Item–item weights: EASE where its inverse fits in memory, else item-kNN."""

    ease_l2: tuple[float, ...] = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
    knn_neighbours: tuple[int, ...] = (20, 50, 100, 200)
    keep: int = 300  # weights kept for each item
    decays: tuple[float, ...] = (1.0, 0.98, 0.95, 0.9, 0.8, 0.6)  # weight of an event by its age in events


@dataclass(frozen=True)
class SequenceConfig:
    """Shape of the sequence encoder."""

    dimension: int = 64
    blocks: int = 2
    heads: int = 2
    length: int = 50  # items of the history that are read
    dropout: float = 0.2
    feed_forward: int = 4  # width of the hidden layer, in dimensions


@dataclass(frozen=True)
class SequenceTraining:
    """How the sequence encoder learns."""

    learning_rate: float = 2e-3
    weight_decay: float = 0.0
    batch: int = 64  # windows a step
    epochs: int = 60  # at most; a budget or early stopping may end sooner
    least_steps: int = 800  # what small logs get, however many epochs that is
    patience: int = 5  # validations without a better value before stopping
    validations: int = 40  # over the whole schedule, one an epoch at most
    warmup_steps: int = 100
    full_softmax_items: int = 1000  # larger catalogues draw negatives instead
    negatives: int = 512  # shared by the batch, drawn by popularity^0.5


@dataclass(frozen=True)
class RunConfig:
    """Seed, device and the time that may be spent."""

    seed: int = 0
    budget_seconds: float = 600.0  # for training; inf leaves it to epochs and early stopping
    device: str = "auto"  # auto takes a GPU when torch finds one
    checkpoint_seconds: float = 30.0


@dataclass(frozen=True)
class Config:
    """All settings; every section has defaults that work."""

    data: DataConfig = field(default_factory=DataConfig)
    ladder: LadderConfig = field(default_factory=LadderConfig)
    neighbours: NeighboursConfig = field(default_factory=NeighboursConfig)
    sequence: SequenceConfig = field(default_factory=SequenceConfig)
    training: SequenceTraining = field(default_factory=SequenceTraining)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        problems = check(self)
        if problems:
            raise ConfigError("; ".join(problems))


_METRIC = re.compile(r"[a-z_]+@[1-9][0-9]{0,3}")


def _positive(value: float) -> bool:
    return value > 0


CHECKS: tuple[tuple[str, str, Callable[[Any], bool], str], ...] = (
    ("data", "repeats", lambda v: v in ("allow", "forbid"), "allow or forbid"),
    ("data", "history_length", lambda v: 1 <= v <= 10_000, "1 to 10000"),
    ("ladder", "models", lambda v: bool(v) and set(v) <= set(RUNGS), f"some of {', '.join(RUNGS)}"),
    ("ladder", "metric", lambda v: _METRIC.fullmatch(v) is not None, "a metric such as ndcg@10"),
    ("ladder", "level", lambda v: 0 < v < 1, "between 0 and 1"),
    ("ladder", "half_lives_days", lambda v: all(h > 0 for h in v), "positive days"),
    ("ladder", "recency_weights", lambda v: bool(v) and all(b >= 0 for b in v), "weights of 0 or more"),
    ("ladder", "max_users", _positive, "a positive count"),
    ("neighbours", "ease_l2", lambda v: bool(v) and all(x > 0 for x in v), "positive penalties"),
    ("neighbours", "knn_neighbours", lambda v: bool(v) and all(x > 0 for x in v), "positive counts"),
    ("neighbours", "keep", _positive, "a positive count"),
    ("neighbours", "decays", lambda v: bool(v) and all(0 < x <= 1 for x in v), "above 0 and at most 1"),
    ("sequence", "dimension", lambda v: 1 <= v <= 8192, "1 to 8192"),
    ("sequence", "blocks", lambda v: 1 <= v <= 100, "1 to 100"),
    ("sequence", "heads", _positive, "a positive count"),
    ("sequence", "length", lambda v: 1 <= v <= 10_000, "1 to 10000"),
    ("sequence", "dropout", lambda v: 0 <= v < 1, "at least 0 and below 1"),
    ("sequence", "feed_forward", lambda v: 1 <= v <= 100, "1 to 100"),
    ("training", "learning_rate", _positive, "a positive rate"),
    ("training", "weight_decay", lambda v: v >= 0, "0 or more"),
    ("training", "batch", lambda v: 1 <= v <= 1_000_000, "1 to 1000000"),
    ("training", "epochs", _positive, "a positive count"),
    ("training", "patience", _positive, "a positive count"),
    ("training", "least_steps", lambda v: v >= 0, "0 or more"),
    ("training", "validations", _positive, "a positive count"),
    ("training", "negatives", _positive, "a positive count"),
    ("run", "seed", lambda v: 0 <= v < 2**31, "0 to 2147483647"),
    ("run", "budget_seconds", _positive, "a positive time"),
    ("run", "device", lambda v: v in ("auto", "cpu", "cuda"), "auto, cpu or cuda"),
)


def check(config: Config | types.SimpleNamespace) -> list[str]:
    """Everything wrong with a configuration, or with its sections in a namespace; a line each."""
    problems = []
    for section, key, holds, needed in CHECKS:
        value = getattr(getattr(config, section), key)
        if not holds(value):
            problems.append(f"{section}.{key} is {value!r}; needed {needed}")
    if config.sequence.dimension % max(config.sequence.heads, 1):
        problems.append(
            f"sequence.dimension is {config.sequence.dimension}; needed a multiple of "
            f"sequence.heads ({config.sequence.heads})"
        )
    return problems


def config_from(path: Path | None = None, settings: Iterable[str] = ()) -> Config:
    """Defaults, then a TOML file, then `section.key=value` settings; all problems in one error."""
    values: dict[str, dict[str, Any]] = {}
    if path is not None:
        values = read_toml(path)
    malformed = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if equals and dot:
            values.setdefault(section, {})[key] = text.strip()
        else:
            malformed.append(f"--set was given {setting!r}; needed section.key=value")
    return config_of(values, malformed)


def read_toml(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            loaded = tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"no configuration file at {path}; check --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    for section, content in loaded.items():
        if not isinstance(content, dict):
            raise ConfigError(
                f"{path}: {section!r} stands outside a section; needed [section] and key = value"
            )
    return loaded


def config_of(values: Mapping[str, Mapping[str, Any]], malformed: Iterable[str] = ()) -> Config:
    """A Config from nested mappings, such as TOML or a manifest; `malformed` are problems known before."""
    hints = typing.get_type_hints(Config)
    sections = {f.name: hints[f.name]() for f in dataclasses.fields(Config)}
    built, problems = {}, list(malformed)
    for section, content in values.items():
        if section not in sections:
            problems.append(f"no section {section!r}{_hint(section, sections)}")
            continue
        built[section] = _section(hints[section], section, content, problems)
    if problems:
        problems += check(types.SimpleNamespace(**(sections | built)))
        raise ConfigError("; ".join(problems))
    return Config(**built)


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values; infinities as the string "inf", since JSON has none."""
    return {
        section: {key: _plain(value) for key, value in content.items()}
        for section, content in dataclasses.asdict(config).items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return "inf" if value == math.inf else value


def _section(kind: type, section: str, content: Mapping[str, Any], problems: list[str]) -> Any:
    hints = typing.get_type_hints(kind)
    known = {}
    for key, value in content.items():
        if key not in hints:
            problems.append(f"no setting {f'{section}.{key}'!r}{_hint(key, hints)}")
            continue
        try:
            known[key] = _convert(value, hints[key])
        except (TypeError, ValueError):
            problems.append(f"{section}.{key} is {value!r}; needed {_name(hints[key])}")
    return kind(**known)


def _hint(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def _convert(value: Any, kind: Any) -> Any:
    if isinstance(kind, types.GenericAlias):
        element = typing.get_args(kind)[0]
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(_convert(part, element) for part in parts)
    if isinstance(value, bool):
        raise TypeError
    if kind is int:
        if isinstance(value, float) and not value.is_integer():
            raise ValueError
        return int(value)
    if kind is float:
        number = float(value)
        if math.isnan(number):
            raise ValueError
        return number
    if not isinstance(value, str):
        raise TypeError
    return value.strip()


def _name(kind: Any) -> str:
    if isinstance(kind, types.GenericAlias):
        return f"a list of {typing.get_args(kind)[0].__name__}"
    return {"int": "a whole number", "float": "a number", "str": "a text"}[kind.__name__]
