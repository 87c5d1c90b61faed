"""The Recommender: fit, recommend, observe, evaluate, save, load."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from rootbeam.core.config import RUNGS, Config
from rootbeam.core.errors import ConfigError, EventsError, InputError, UnknownIdError
from rootbeam.core.ids import ExternalId
from rootbeam.core.types import Bool, Event, Float32, Histories, History, Int32, Ragged
from rootbeam.data.arrays import ids_of, to_log
from rootbeam.data.events import Events, frame_of
from rootbeam.data.history import concatenate, empty_history, fold, from_items, replay, stack
from rootbeam.data.split import Holdout
from rootbeam.evaluate.protocol import METRICS, Evaluation, activity_slices, evaluate_lists, single_latency_ms
from rootbeam.learn.fit import Progress, silent
from rootbeam.learn.popularity import log_recent
from rootbeam.learn.scorers import ConstantScorer
from rootbeam.model import Counts, Model, load_model, save_model
from rootbeam.prepare import assemble, prepare
from rootbeam.search.exact import ExactRetriever, Found
from rootbeam.search.filters import item_offset
from rootbeam.task import mark_of, read_trained
from rootbeam.train import train

USERS_AT_ONCE = 4096


@dataclass(frozen=True)
class Observed:
    """What became of observed events."""

    applied: int
    unknown_items: int  # events of items the model does not know; they wait for the next training


class Recommender:
    """A recommender over one log. `fit` or `load` gives it a model; `observe` moves its users on."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        self._model: Model | None = None
        self._live: dict[ExternalId, History] = {}  # users whom events moved since training
        self._recent: Counts | None = None
        self._fallback: Counts | None = None
        self._sequence = 0

    # -- training ---------------------------------------------------------------------------------

    def fit(
        self,
        events: Events | pl.DataFrame,
        valid: Holdout | None = None,
        *,
        items: pl.DataFrame | None = None,
        model: str | None = None,
        state: Path | None = None,
        progress: Progress = silent,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Recommender:
        """Climbs the ladder on validation users, chooses a rung and refits it through the last event.

        Without `valid`, the last tenth of the events (of each user, where there is no time) is held out to
        choose by, and is learned from afterwards.
        """
        if model is not None and model not in RUNGS:
            raise ConfigError(f"model is {model!r}; needed one of {', '.join(RUNGS)}")
        frame = frame_of(events)
        if items is None:
            items = getattr(events, "items", None)
        prepared = prepare(frame, valid, self.config)
        trained = train(
            prepared.task, self.config, state=state, progress=progress, should_stop=should_stop, model=model
        )
        self._become(assemble(prepared, trained, items, self.config))
        return self

    def adopt(
        self,
        events: Events | pl.DataFrame,
        valid: Holdout | None,
        trained: Path,
        *,
        items: pl.DataFrame | None = None,
    ) -> Recommender:
        """Like `fit`, with the arrays that `python -m rootbeam.train` made of the same events elsewhere."""
        prepared = prepare(frame_of(events), valid, self.config)
        done, mark = read_trained(trained)
        if mark != mark_of(prepared.task, self.config):
            raise InputError(f"{trained} was trained on other events or settings; export the task again")
        if items is None:
            items = getattr(events, "items", None)
        self._become(assemble(prepared, done, items, self.config))
        return self

    def _become(self, model: Model) -> None:
        self._model, self.config = model, model.config
        self._live, self._recent, self._fallback = {}, model.recent, model.fallback
        self._sequence = int(model.histories.watermark.max(initial=0))

    @property
    def model(self) -> Model:
        if self._model is None:
            raise InputError(
                "this Recommender has no model yet; call fit(events) or rootbeam.load(path) first"
            )
        return self._model

    # -- recommending -----------------------------------------------------------------------------

    def recommend(
        self,
        users: Sequence[ExternalId],
        k: int = 10,
        *,
        exclude_seen: bool | None = None,
        allow: Iterable[ExternalId] | None = None,
        deny: Iterable[ExternalId] | None = None,
    ) -> pl.DataFrame:
        """user_id, item_id, score, rank, source: k rows a user wherever k items exist.

        `source` is `model`, or `fallback` (recent popularity) for users the model knows nothing of.
        exclude_seen None follows the bundle's --repeats: seen items are left out unless repeats are allowed.
        """
        if isinstance(users, str):
            raise InputError(
                f"users is the text {users[:40]!r}; needed a list of users, as in [{users[:40]!r}]"
            )
        users = [self.model.users.as_stored(user) for user in users]
        histories = self._histories_of(users)
        return self._frame(_id_series(users), "user_id", histories, k, exclude_seen, allow, deny)

    def recommend_from_history(
        self,
        histories: Sequence[Sequence[ExternalId]],
        k: int = 10,
        *,
        exclude_seen: bool | None = None,
        allow: Iterable[ExternalId] | None = None,
        deny: Iterable[ExternalId] | None = None,
    ) -> pl.DataFrame:
        """The same for histories given as items, oldest first; `history` numbers them from 0."""
        if any(isinstance(row, str) for row in histories):
            raise InputError("a history is a text; needed a list of item ids for every user: [['i7', 'i9']]")
        dense = [[int(i) for i in self.model.items.dense(row) if i >= 0] for row in histories]
        length = self.model.histories.last.shape[1]
        given = from_items(dense, length)
        numbers = pl.int_range(len(dense), eager=True)
        return self._frame(numbers, "history", given, k, exclude_seen, allow, deny)

    def observe(self, events: Events | pl.DataFrame) -> Observed:
        """Moves users and popularity on by new events, in order of time; the model stays as it is."""
        frame = _in_order_of_time(frame_of(events))
        items = self.model.items.dense(frame["item_id"].to_list())
        known = items >= 0
        frame, items = frame.filter(pl.Series(known)), items[known]
        for user, item in zip(self._user_ids(frame), items.tolist(), strict=True):
            self._sequence += 1
            history = self._live.get(user) or self._stored(user)
            self._live[user] = fold(history, Event(item, self._sequence))
        recent, fallback = self._counts(), self._fallback_counts()
        times = (
            frame["timestamp"].to_physical().to_numpy()
            if "timestamp" in frame.columns
            else np.full(len(frame), recent.as_of_ms)
        )
        weights = frame["weight"].to_numpy()
        self._recent = recent.with_events(items, weights, times)
        self._fallback = fallback.with_events(items, weights, times)
        return Observed(len(items), int((~known).sum()))

    def _user_ids(self, frame: pl.DataFrame) -> list[ExternalId]:
        users = [self.model.users.as_stored(user) for user in frame["user_id"].to_list()]
        if self.model.users.are_integers:
            stray = next((user for user in users if not isinstance(user, int)), None)
            if stray is not None:
                raise EventsError(
                    f"user_id {str(stray)[:40]!r} is no integer, and the users of this model are integers; "
                    "observe events with the same kind of ids"
                )
        return users

    def history_of(self, user: ExternalId) -> list[ExternalId]:
        """The last items of a user, oldest first; empty for an unknown user."""
        last = self._histories_of([self.model.users.as_stored(user)]).last[0]
        return self.model.items.back(last[last >= 0])

    def retrieve(
        self,
        histories: Histories,
        k: int,
        exclude_seen: bool | None = None,
        allow: Int32 | None = None,
        deny: Int32 | None = None,
    ) -> tuple[Found, Bool]:
        """Dense items for dense histories, and which rows were answered by the fallback."""
        model = self.model
        seen = self.config.data.repeats == "forbid" if exclude_seen is None else exclude_seen
        fallback = histories.seen.lengths() == 0
        items = np.full((len(histories), k), -1, dtype=np.int32)
        scores = np.full((len(histories), k), -math.inf, dtype=np.float32)
        known, strangers = np.flatnonzero(~fallback), np.flatnonzero(fallback)
        offset = item_offset(self._prior(), model.available, deny, len(model.items))
        for start in range(0, len(known), USERS_AT_ONCE):
            part = known[start : start + USERS_AT_ONCE]
            chosen = histories.take(part)
            found = ExactRetriever(model.scorer, model.trained.blend.a).retrieve(
                chosen, k, offset=offset, exclude=chosen.seen if seen else None, allow=allow
            )
            items[part], scores[part] = found.items, found.scores
        if len(strangers):  # who have seen nothing, so that one list is everyone's
            offset = item_offset(self._fallback_prior(), model.available, deny, len(model.items))
            found = ExactRetriever(ConstantScorer(len(model.items))).retrieve(
                histories.take(strangers[:1]), k, offset=offset, allow=allow
            )
            items[strangers], scores[strangers] = found.items, found.scores
        return Found(items, scores), fallback

    def _frame(
        self,
        keys: pl.Series,
        key_name: str,
        histories: Histories,
        k: int,
        exclude_seen: bool | None,
        allow: Iterable[ExternalId] | None,
        deny: Iterable[ExternalId] | None,
    ) -> pl.DataFrame:
        if k < 1:
            raise ConfigError(f"k is {k}; needed at least 1")
        k = min(k, len(self.model.items))
        allowed = None if allow is None else self._known_items(allow)
        denied = None if deny is None else self.model.items.dense(deny)
        found, fallback = self.retrieve(histories, k, exclude_seen, allowed, denied)
        row, place = np.nonzero(found.items >= 0)
        item_ids = pl.Series(self.model.items.external)
        return pl.DataFrame(
            {
                key_name: keys.gather(row),
                "item_id": item_ids.gather(found.items[row, place]),
                "score": found.scores[row, place],
                "rank": (place + 1).astype(np.int32),
                "source": pl.Series(["model", "fallback"]).gather(fallback[row].astype(np.int64)),
            }
        )

    def _known_items(self, external: Iterable[ExternalId]) -> Int32:
        given = list(external)
        dense = self.model.items.dense(given)
        if given and not (dense >= 0).any():
            raise UnknownIdError(
                f"none of the {len(given)} allowed items is known to the model, "
                f"such as {str(given[0])[:40]!r}; check the ids"
            )
        return dense

    def _histories_of(self, users: Sequence[ExternalId]) -> Histories:
        model = self.model
        rows = model.users.dense(users)
        apart = np.array(
            [row < 0 or user in self._live for user, row in zip(users, rows, strict=True)], dtype=bool
        )
        if not apart.any():
            return model.histories.take(rows)
        others = stack(
            [self._live.get(users[i]) or self._stored(users[i]) for i in np.flatnonzero(apart).tolist()]
        )
        together = concatenate([model.histories.take(rows[~apart]), others])
        order = np.empty(len(users), dtype=np.int64)
        order[np.concatenate([np.flatnonzero(~apart), np.flatnonzero(apart)])] = np.arange(len(users))
        return together.take(order)

    def _stored(self, user: ExternalId) -> History:
        row = int(self.model.users.dense([user])[0])
        if row < 0:
            return empty_history(self.model.histories.last.shape[1])
        return self.model.histories.one(row)

    def _counts(self) -> Counts:
        return self._recent if self._recent is not None else self.model.recent

    def _fallback_counts(self) -> Counts:
        return self._fallback if self._fallback is not None else self.model.fallback

    def _prior(self) -> Float32 | None:
        blend = self.model.trained.blend
        return np.float32(blend.b) * log_recent(self._counts().values) if blend.b else None

    def _fallback_prior(self) -> Float32:
        return log_recent(self._fallback_counts().values)

    # -- how good it is, and keeping it -----------------------------------------------------------

    def evaluate(self, holdout: Holdout, *, metrics: Sequence[str] = METRICS) -> Evaluation:
        """Full-catalogue metrics with intervals and slices; see evaluate/protocol.py."""
        return evaluate(self, holdout, metrics=metrics)

    def save(self, path: str | Path) -> None:
        """Writes the bundle; users observed since training are folded into its histories."""
        save_model(Path(path), self._with_live_state())

    def _with_live_state(self) -> Model:
        if not self._live:
            return self.model
        model = self.model
        users = model.users.extended(self._live)
        return replace(
            model,
            users=users,
            histories=self._histories_of(users.external),
            recent=self._counts(),
            fallback=self._fallback_counts(),
            facts=model.facts | {"watermark": self._sequence, "trained_through_ms": self._learned_through()},
        )

    def _learned_through(self) -> int | None:
        """Popularity learns from what is observed, so later events alone are unseen."""
        through: int | None = self.model.facts["trained_through_ms"]
        return None if through is None else max(through, self._counts().as_of_ms)


def _in_order_of_time(frame: pl.DataFrame) -> pl.DataFrame:
    order = next((name for name in ("timestamp", "position") if name in frame.columns), None)
    return frame if order is None else frame.sort(order, maintain_order=True)


def _id_series(ids: Sequence[ExternalId]) -> pl.Series:
    """Integers where all are; a name among them makes all of them strings."""
    if ids and all(isinstance(each, int) for each in ids):
        return pl.Series(ids)
    return pl.Series([str(each) for each in ids], dtype=pl.String)


def load(path: str | Path) -> Recommender:
    """Reads a bundle; every hash is checked."""
    recommender = Recommender()
    recommender._become(load_model(Path(path)))
    return recommender


def evaluate(recommender: Recommender, holdout: Holdout, *, metrics: Sequence[str] = METRICS) -> Evaluation:
    """A fitted recommender on a holdout: the histories are the holdout's inputs, nothing else.

    What was observed since training is left out, popularity included: it may be what is to be predicted.
    """
    model = recommender.model
    as_trained = Recommender()
    as_trained._become(model)
    users = ids_of(holdout.inputs["user_id"], holdout.labels["user_id"])
    inputs = to_log(holdout.inputs, users, model.items)
    histories = replay(inputs, model.config.data.history_length)
    # Labels the model has no item for stay, out of reach: they count as missed.
    every_item = model.items.extended(holdout.labels["item_id"].to_list())
    labels = to_log(holdout.labels, users, every_item).sequences()
    in_training = model.users.dense(users.external)
    known = (in_training >= 0) & (histories.events > 0)

    def lists(chosen: Histories, k: int) -> Int32:
        return as_trained.retrieve(chosen, k)[0].items

    return evaluate_lists(
        lists,
        histories,
        labels,
        n_items=len(model.items),
        slices=activity_slices(histories, known),
        protocol=protocol_of(model, holdout),
        names=metrics,
        retrieval=retrieval_of(lists, histories, labels),
        popularity=np.bincount(inputs.items, minlength=len(model.items)).astype(np.float64),
        seed=model.config.run.seed,
    )


def protocol_of(model: Model, holdout: Holdout) -> dict[str, Any]:
    return {
        "catalogue": "full",
        "items": len(model.items),
        "seen_items": "filtered" if model.config.data.repeats == "forbid" else "allowed",
        "headline": "users with at least one event before their labels",
        "interval": "95 % bootstrap over users",
        "label_events": len(holdout.labels),
        "input_events": len(holdout.inputs),
    }


def retrieval_of(
    lists: Callable[[Histories, int], Int32], histories: Histories, labels: Ragged
) -> Mapping[str, Any]:
    """Exact search scores every item, so its fidelity is 1 by definition."""
    rows = np.flatnonzero((labels.lengths() > 0) & (histories.events > 0))
    return {
        "mode": "exact",
        "beam": None,
        "nodes_scored_share": 1.0,
        "overlap@20": 1.0,
        "recall_ratio@20": 1.0,
        "latency_ms": single_latency_ms(partial(lists), histories.take(rows), 20),
    }
