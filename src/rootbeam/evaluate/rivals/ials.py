"""iALS as a rival, by the package `implicit`: a weighted factorisation, users folded in from their items."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import torch

from rootbeam.core.errors import MissingExtraError
from rootbeam.core.types import Float32, Histories, Log, Ragged
from rootbeam.data.history import distinct
from rootbeam.evaluate.rivals.rival import (
    Integers,
    LogIntegers,
    LogUniform,
    Params,
    Range,
    Rival,
    Scores,
    popular_without_history,
)

PACKAGES = ("implicit", "scipy", "threadpoolctl")


def ials() -> Rival:
    """`alpha` is the confidence in a used item, against 1 for all others; `regularization` is unscaled."""
    space: dict[str, Range] = {
        "factors": LogIntegers(16, 256, default=64),
        "regularization": LogUniform(0.001, 100.0, default=1.0),
        "alpha": LogUniform(1.0, 100.0, default=10.0),
        "iterations": Integers(5, 30, default=15),
    }
    return Rival("iALS", space, _fit)


def why_missing() -> str | None:
    """The reason why iALS cannot run here, if there is one."""
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    return f"iALS needs {', '.join(absent)}, not installed here: pip install 'rootbeam[lab]'"


def _fit(log: Log, params: Params, seed: int) -> Scores:
    reason = why_missing()
    if reason is not None:
        raise MissingExtraError(reason)
    from implicit.cpu.als import AlternatingLeastSquares
    from threadpoolctl import threadpool_limits

    # implicit runs its own threads, each calling BLAS: with threads inside those it is ten times slower.
    with threadpool_limits(1, "blas"):
        model = AlternatingLeastSquares(**params, num_threads=torch.get_num_threads(), random_state=seed)
        model.fit(_user_items(distinct(log.sequences()), log.n_items), show_progress=False)

    def scores(histories: Histories) -> Float32:
        with threadpool_limits(1, "blas"):
            user_items = _user_items(histories.seen, log.n_items)
            users = model.recalculate_user(np.arange(len(histories)), user_items)  # (batch, factors)
        return np.asarray(users @ model.item_factors.T, dtype=np.float32)

    return popular_without_history(scores, log)


def _user_items(rows: Ragged, n_items: int) -> Any:
    """A scipy CSR of ones, (rows, items); items that came after the fit are left out."""
    from scipy.sparse import csr_matrix

    known = rows.values < n_items
    user, item = rows.row_of_value()[known], rows.values[known]
    ones = np.ones(len(item), dtype=np.float32)
    return csr_matrix((ones, (user, item)), shape=(len(rows), n_items))
