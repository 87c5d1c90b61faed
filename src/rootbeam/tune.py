"""A resumable search over a declared space of settings, on validation data only."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rootbeam.core.config import Config, to_dict
from rootbeam.core.errors import ConfigError, InputError, MissingExtraError
from rootbeam.core.files import write_bytes
from rootbeam.learn.fit import Progress, silent
from rootbeam.prepare import prepare
from rootbeam.task import Task
from rootbeam.train import validate_rung

if TYPE_CHECKING:
    import polars as pl

    from rootbeam.data.split import Holdout


def search(
    frame: pl.DataFrame,
    valid: Holdout | None,
    base: Config,
    folder: Path,
    *,
    trials: int,
    model: str = "sequence",
    progress: Progress = silent,
) -> dict[str, Any]:
    """Adds trials to the study in `folder` and writes its best settings as best.toml."""
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise MissingExtraError("tune needs optuna; pip install 'rootbeam[tune]'") from None
    if model not in SPACES:
        raise ConfigError(f"--model is {model!r}; settings can be searched for {', '.join(SPACES)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{folder} is not a folder; give another place for the study") from None
    task = prepare(frame, valid, base).task
    if not ((task.valid_labels.lengths() > 0) & (np.diff(task.valid_inputs.user_ptr) > 0)).any():
        raise InputError(
            "no user has events both before and after the validation cut, so no setting can be told from "
            "another; give more events, or a folder made by `rootbeam data split`"
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name=f"{model}-{base.ladder.metric}-{task.fingerprint()}",
        storage=JournalStorage(JournalFileBackend(str(folder / "study.log"))),
        direction="maximize",
        load_if_exists=True,
    )
    before = len(study.trials)
    # Trials that are added must not draw again what the first ones drew.
    study.sampler = optuna.samplers.TPESampler(seed=base.run.seed + before)

    def objective(trial: Any) -> float:
        done = len(study.get_trials(deepcopy=False)) - 1 - before
        progress("trials", done, trials, f"best {_best(study)}")
        return _value(task, SPACES[model](trial, base), model)

    study.optimize(objective, n_trials=trials)
    progress("trials", trials, trials, f"best {_best(study)}")
    best = SPACES[model](optuna.trial.FixedTrial(study.best_params), base)
    write_bytes(folder / "best.toml", toml_of(best).encode())
    return {
        "study": str(folder),
        "model": model,
        "trials": len(study.trials),
        "metric": base.ladder.metric,
        "value": study.best_value,
        "settings": study.best_params,
        "values": [t.value for t in study.trials if t.value is not None],
    }


def _best(study: Any) -> str:
    values = [t.value for t in study.get_trials(deepcopy=False) if t.value is not None]
    return f"{max(values):.4f}" if values else "-"


def _value(task: Task, config: Config, model: str) -> float:
    return float(np.nanmean(validate_rung(task, config, model).values))


def sequence_space(trial: Any, base: Config) -> Config:
    heads = base.sequence.heads
    shape = dataclasses.replace(
        base.sequence,
        dimension=heads * trial.suggest_int("dimension_per_head", 16, 96, step=16),
        blocks=trial.suggest_int("blocks", 1, 3),
        length=trial.suggest_categorical("length", [25, 50, 100, 200]),
        dropout=trial.suggest_float("dropout", 0.05, 0.6),
    )
    training = dataclasses.replace(
        base.training,
        learning_rate=trial.suggest_float("learning_rate", 3e-4, 5e-3, log=True),
        batch=trial.suggest_categorical("batch", [64, 128, 256]),
        weight_decay=trial.suggest_float("weight_decay", 1e-4, 0.3, log=True),
    )
    return dataclasses.replace(base, sequence=shape, training=training)


def neighbours_space(trial: Any, base: Config) -> Config:
    setting = dataclasses.replace(
        base.neighbours,
        ease_l2=(trial.suggest_float("l2", 1.0, 10_000.0, log=True),),
        keep=trial.suggest_int("keep", 20, 1000, log=True),
        decays=(trial.suggest_float("decay", 0.7, 1.0),),
    )
    return dataclasses.replace(base, neighbours=setting)


SPACES = {"sequence": sequence_space, "neighbours": neighbours_space}


def toml_of(config: Config) -> str:
    """The configuration as TOML that `config_from` reads back."""
    lines = []
    for section, content in to_dict(config).items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml_value(value)}" for key, value in content.items()]
        lines.append("")
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(v) for v in value) + "]"
    if value == "inf":
        return "inf"
    return json.dumps(value) if isinstance(value, str) else repr(value)
