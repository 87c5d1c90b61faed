"""A trained model with the state it serves from, and how it stands in a bundle."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from rootbeam import __version__
from rootbeam.core.bundle import open_bundle, write_bundle
from rootbeam.core.config import Config, config_of, to_dict
from rootbeam.core.errors import BundleError
from rootbeam.core.files import arrays_to_bytes, read_arrays
from rootbeam.core.ids import Ids
from rootbeam.core.types import Bool, Float64, Histories, Int32, Int64, Ragged, Scorer
from rootbeam.ladder import Blend
from rootbeam.learn.popularity import DAY_MS, decay_counts
from rootbeam.rungs import scorer_of
from rootbeam.task import Trained


@dataclass(frozen=True)
class Counts:
    """Event counts of the items that halve with time, as of a moment."""

    values: Float64  # (items,)
    as_of_ms: int
    half_life_days: float

    def at(self, now_ms: int) -> Counts:
        """The same counts at a later moment."""
        elapsed = max(0, now_ms - self.as_of_ms)
        values = decay_counts(self.values, elapsed, self.half_life_days)
        return Counts(values, self.as_of_ms + elapsed, self.half_life_days)

    def with_events(self, items: Int32, weights: Float64, times_ms: Int64) -> Counts:
        """As of the newest of the events, if that is later; each event enters at its own age."""
        now = self.at(int(times_ms.max(initial=self.as_of_ms)))
        aged = weights * np.exp2((times_ms - now.as_of_ms) / (self.half_life_days * DAY_MS))  # (events,)
        values = now.values + np.bincount(items, aged, minlength=len(now.values))
        return Counts(values, now.as_of_ms, self.half_life_days)


@dataclass(frozen=True)
class Model:
    """Everything a bundle holds. Immutable: what moves while serving stands in the Recommender."""

    config: Config
    trained: Trained
    users: Ids
    items: Ids
    catalogue: pl.DataFrame  # item_id and what else is known of the items, in dense order
    histories: Histories  # of the users, through the last event
    recent: Counts  # under the half-life of the served blend
    fallback: Counts  # under the half-life of the popularity rung
    facts: dict[str, Any]  # data fingerprint, watermark, counts, split report, version

    @cached_property
    def scorer(self) -> Scorer:
        return scorer_of(self.trained.rung, self.trained.arrays, self.trained.settings, len(self.items))

    @cached_property
    def available(self) -> Bool | None:
        if "available" not in self.catalogue.columns:
            return None
        return self.catalogue["available"].fill_null(True).to_numpy().astype(bool)

    @cached_property
    def titles(self) -> list[str] | None:
        return self.catalogue["title"].to_list() if "title" in self.catalogue.columns else None


def save_model(path: Path, model: Model) -> None:
    """Writes the bundle beside `path` and puts it in place in one step."""
    histories, blend = model.histories, model.trained.blend
    files = {
        "weights.safetensors": arrays_to_bytes(model.trained.arrays),
        "histories.safetensors": arrays_to_bytes(
            {
                "last": histories.last,
                "seen/values": histories.seen.values,
                "seen/ptr": histories.seen.ptr,
                "events": histories.events,
                "watermark": histories.watermark,
            }
        ),
        "popularity.safetensors": arrays_to_bytes(
            {"recent": model.recent.values, "fallback": model.fallback.values}
        ),
        "ids.parquet": _parquet(_ids_frame(model)),
        "items.parquet": _parquet(model.catalogue),
        "MODEL_CARD.md": model_card(model).encode(),
    }
    manifest = {
        "version": __version__,
        "config": to_dict(model.config),
        "seed": model.config.run.seed,
        "items": len(model.items),
        "users": len(model.users),
        "integer_ids": {"users": model.users.are_integers, "items": model.items.are_integers},
        "model": model.trained.rung,
        "blend": blend.to_dict(),
        "settings": model.trained.settings,
        "ladder": model.trained.ladder,
        "curves": model.trained.curves,
        "popularity": {
            "as_of_ms": {"recent": model.recent.as_of_ms, "fallback": model.fallback.as_of_ms},
            "fallback_half_life_days": _finite(model.fallback.half_life_days),
        },
        "metrics": next((row["metrics"] for row in model.trained.ladder if row["chosen"]), {}),
        **model.facts,
    }
    write_bundle(path, files, manifest)


def load_model(path: Path) -> Model:
    """Reads a bundle after checking every hash."""
    return open_bundle(path, lambda manifest: _model_of(path, manifest))


def _model_of(path: Path, manifest: dict[str, Any]) -> Model:
    try:
        return _read_model(path, manifest)
    except (KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise BundleError(f"{path} does not hold what its manifest says ({error!r}); train again") from None


def _read_model(path: Path, manifest: dict[str, Any]) -> Model:
    weights, _ = read_arrays(path / "weights.safetensors")
    state, _ = read_arrays(path / "histories.safetensors")
    counts, _ = read_arrays(path / "popularity.safetensors")
    blend = Blend.from_dict(manifest["blend"])
    as_of = manifest["popularity"]["as_of_ms"]
    users, items = _read_ids(path / "ids.parquet", manifest["integer_ids"])
    trained = Trained(
        manifest["model"], blend, weights, manifest["settings"], manifest["ladder"], manifest["curves"]
    )
    known = [
        "format",
        "version",
        "config",
        "seed",
        "items",
        "users",
        "integer_ids",
        "model",
        "blend",
        "settings",
        "ladder",
        "curves",
        "popularity",
        "metrics",
        "files",
        "sha256",
    ]
    return Model(
        config=config_of(manifest["config"]),
        trained=trained,
        users=users,
        items=items,
        catalogue=pl.read_parquet(path / "items.parquet"),
        histories=Histories(
            state["last"],
            Ragged(state["seen/values"], state["seen/ptr"]),
            state["events"],
            state["watermark"],
        ),
        recent=Counts(counts["recent"], as_of["recent"], blend.half_life_days),
        fallback=Counts(
            counts["fallback"],
            as_of["fallback"],
            _infinite(manifest["popularity"]["fallback_half_life_days"]),
        ),
        facts={key: value for key, value in manifest.items() if key not in known},
    )


def model_card(model: Model) -> str:
    """What a person should know before using the model."""
    facts, rows = model.facts, model.trained.ladder
    lines = [
        "# Model card",
        "",
        f"Made by Rootbeam {__version__} from {facts.get('events', 0):,} events of "
        f"{len(model.users):,} users and {len(model.items):,} items.",
        "",
        f"Served: **{model.trained.rung}**, the cheapest rung that was not significantly worse than the best "
        f"on validation users ({model.config.ladder.metric}, paired bootstrap, level "
        f"{model.config.ladder.level:g}).",
        "",
        f"| rung | {model.config.ladder.metric} | ms per user | served |",
        "|---|---|---|---|",
    ]
    for row in rows:
        value = row["metrics"].get(model.config.ladder.metric, {})
        shown = (
            f"{value['mean']:.4f} [{value['low']:.4f}, {value['high']:.4f}]"
            if value.get("mean") is not None
            else "no validation users"
        )
        mark = "yes" if row["chosen"] else ""
        lines.append(f"| {row['model']} | {shown} | {row['ms_per_user']:.3f} | {mark} |")
    lines += [
        "",
        "The numbers were used to choose, so they flatter; `rootbeam evaluate` on later events is the honest "
        "measure. Items without any event are not recommended. Users without any known event get recent "
        "popularity, marked `fallback`. What users were never shown is not corrected for.",
        "",
        "```json",
        json.dumps({"settings": to_dict(model.config), **facts}, indent=2),
        "```",
        "",
    ]
    return "\n".join(lines)


def _ids_frame(model: Model) -> pl.DataFrame:
    return pl.concat(
        [
            pl.DataFrame({"kind": [kind] * len(ids), "id": [str(e) for e in ids.external]}, schema=_ID_SCHEMA)
            for kind, ids in (("user", model.users), ("item", model.items))
        ]
    )


_ID_SCHEMA = {"kind": pl.String, "id": pl.String}


def _read_ids(path: Path, integers: dict[str, bool]) -> tuple[Ids, Ids]:
    frame = pl.read_parquet(path)
    found = []
    for kind, key in (("user", "users"), ("item", "items")):
        column = frame.filter(pl.col("kind") == kind)["id"]
        found.append(Ids((column.cast(pl.Int64) if integers[key] else column).to_list()))
    return found[0], found[1]


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()


def _finite(number: float) -> float | None:
    return None if math.isinf(number) else number


def _infinite(number: float | None) -> float:
    return math.inf if number is None else number
