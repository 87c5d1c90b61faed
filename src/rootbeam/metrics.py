"""How good ranked lists are: pure functions over arrays, one value per user.

Every metric takes `ranked`, int (users, depth), best first and padded with -1, and `labels`, a `Ragged` of
each user's relevant items, and gives Float64 (users,). Relevance is binary. R is the set of a user's distinct
labels; a user without labels gets NaN and belongs in no average. An item that stands twice in a list counts
where it stands first. Lists shorter than k are scored as if the missing places held irrelevant items.
Ranks count from 1: the discount of rank r is 1 / log2(r + 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rootbeam.core.errors import ConfigError, InputError
from rootbeam.core.types import PADDING, Bool, Float64, Int64, Ragged

Ranked = npt.NDArray[Any]  # (users, depth) integers, padded with -1

_CELLS_AT_ONCE = 4_000_000  # ranked places looked up at once: bounds the memory of `hits`


def precision(ranked: Ranked, labels: Ragged, k: int) -> Float64:
    """Hits in the top k ÷ k."""
    return _precision(judge(ranked, labels, k), k)


def recall(ranked: Ranked, labels: Ragged, k: int) -> Float64:
    """Hits in the top k ÷ |R|."""
    return _recall(judge(ranked, labels, k), k)


def f1(ranked: Ranked, labels: Ragged, k: int) -> Float64:
    """2PR ÷ (P + R) of each user's own precision and recall, which is 2·hits ÷ (k + |R|)."""
    return _f1(judge(ranked, labels, k), k)


def hit(ranked: Ranked, labels: Ragged, k: int) -> Float64:
    """1 where any of the top k is relevant, else 0."""
    return _hit(judge(ranked, labels, k), k)


def mrr(ranked: Ranked, labels: Ragged, k: int) -> Float64:
    """1 ÷ the rank of the first hit in the top k; 0 without a hit."""
    return _mrr(judge(ranked, labels, k), k)


def dcg(ranked: Ranked, labels: Ragged, k: int) -> Float64:
    """Σ 1 ÷ log2(rank + 1) over the hits in the top k."""
    return _dcg(judge(ranked, labels, k), k)


def ndcg(ranked: Ranked, labels: Ragged, k: int) -> Float64:
    """DCG ÷ the DCG of the best list possible, which has min(|R|, k) hits at the top."""
    return _ndcg(judge(ranked, labels, k), k)


def map_(ranked: Ranked, labels: Ragged, k: int) -> Float64:
    """Σ precision at the rank of each hit in the top k, ÷ min(|R|, k)."""
    return _map(judge(ranked, labels, k), k)


def dcg_biif(ranked: Ranked, labels: Ragged, k: int) -> Float64:
    """Σ 1 ÷ log2(i + 2) over the hits at 0-based place i of the top k: DCG as Biif's and CJMF's code has it.

    The same number as `dcg`. The name marks their protocol, which ranks a user's exposed test items alone.
    """
    return _dcg(judge(ranked, labels, k), k)


def map_biif(ranked: Ranked, labels: Ragged, k: int) -> Float64:
    """Σ precision at the rank of each hit in the top k, ÷ the number of those hits; 0 without a hit."""
    return _map_biif(judge(ranked, labels, k), k)


def recall_with_duplicates(ranked: Ranked, labels: Ragged, k: int) -> Float64:
    """Distinct hits in the top k ÷ the length of the label list with its duplicates, as DTR's code has it."""
    return _recall_with_duplicates(judge(ranked, labels, k), k)


def coverage(ranked: Ranked, n_items: int, k: int) -> float:
    """The share of the catalogue's `n_items` items that stand in at least one user's top k."""
    if n_items < 1:
        raise ConfigError(f"coverage of {n_items} items: the catalogue needs at least one item")
    top = np.unique(_top(ranked, k))
    shown = top[top != PADDING]
    _refuse_unknown_items(shown, n_items)
    return len(shown) / n_items


def average_popularity(ranked: Ranked, popularity: npt.NDArray[Any], k: int) -> Float64:
    """The mean of `popularity` (items,) over each user's top k; NaN for an empty list."""
    top = _top(ranked, k)  # (users, k)
    present = top != PADDING
    _refuse_unknown_items(top[present], len(popularity))
    total = np.bincount(
        np.nonzero(present)[0], weights=np.asarray(popularity, np.float64)[top[present]], minlength=len(top)
    )
    return _divide(total, present.sum(axis=1))


def hits(ranked: Ranked, labels: Ragged) -> Bool:
    """(users, depth) whether each place holds one of the user's labels, for the first time in the list."""
    ranked = _checked(ranked)
    if len(ranked) != len(labels):
        raise InputError(
            f"{len(ranked)} ranked lists for {len(labels)} users' labels: give one list per user"
        )
    item_count = max(ranked.max(initial=0), labels.values.max(initial=0)) + 1
    keys, _ = _label_keys(labels, int(item_count))
    found = np.zeros(ranked.shape, dtype=np.bool_)
    if not len(keys) or not ranked.size:
        return found
    step = max(1, _CELLS_AT_ONCE // ranked.shape[1])
    for start in range(0, len(ranked), step):
        found[start : start + step] = _hits_of_rows(
            ranked[start : start + step], start, keys, int(item_count)
        )
    return found


def rank_items(scores: npt.NDArray[Any], k: int) -> Int64:
    """(users, k) the best items of a score matrix (users, items), ties by item id: the reference ranking.

    Items scored -inf are filtered: they never appear, and -1 fills the places left over.
    """
    _check_k(k)
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 2:
        raise InputError(f"scores of shape {scores.shape}: needed (users, items)")
    if np.isnan(scores).any():
        raise InputError("scores hold NaN: items cannot be ranked by it; use -inf for items to be left out")
    ranked = np.full((len(scores), k), PADDING, dtype=np.int64)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    allowed = np.take_along_axis(scores, best, axis=1) > -np.inf
    ranked[:, : best.shape[1]] = np.where(allowed, best, PADDING)
    return ranked


def compute(
    ranked: Ranked, labels: Ragged, names: Iterable[str] = ("recall@20", "ndcg@20", "hit@20")
) -> dict[str, Float64]:
    """The named metrics, such as "recall@20", each (users,); the lists are compared with the labels once."""
    wanted = {name: parse_name(name) for name in names}
    if not wanted:
        return {}
    judged = judge(ranked, labels, max(k for _, k in wanted.values()))
    return {name: _FORMULAS[metric](judged.top(k), k) for name, (metric, k) in wanted.items()}


def parse_name(name: str) -> tuple[str, int]:
    """ "recall@20" -> ("recall", 20)."""
    metric, at, cutoff = name.partition("@")
    if metric not in _FORMULAS or not at:
        raise ConfigError(f'unknown metric "{name}": needed NAME@K with NAME one of {", ".join(_FORMULAS)}')
    if not (cutoff.isascii() and cutoff.isdigit() and int(cutoff) > 0):
        raise ConfigError(f'metric "{name}": what follows @ must be a whole number from 1, as in {metric}@20')
    return metric, int(cutoff)


@dataclass(frozen=True)
class Judged:
    """Ranked lists compared with labels: the hits, and how many there could have been."""

    user: Int64  # (hits,) ascending
    rank: Int64  # (hits,) from 1, ascending within the user
    relevant: Int64  # (users,) |R|: distinct labels
    listed: Int64  # (users,) labels with their duplicates

    def top(self, k: int) -> Judged:
        """The hits of the first k places alone."""
        kept = self.rank <= k
        return Judged(self.user[kept], self.rank[kept], self.relevant, self.listed)

    def total(self, values: npt.NDArray[Any] | None = None) -> Float64:
        """(users,) the sum over each user's hits of `values` (hits,), or of 1."""
        return np.bincount(self.user, weights=values, minlength=len(self.relevant)).astype(np.float64)

    def ordinal(self) -> Int64:
        """(hits,) the number of the hit among its user's hits, from 1."""
        first = np.searchsorted(self.user, self.user, side="left")
        return np.arange(1, len(self.user) + 1) - first


def judge(ranked: Ranked, labels: Ragged, k: int) -> Judged:
    """Compare the top k with the labels."""
    user, place = np.nonzero(hits(_top(ranked, k), labels))
    listed = labels.lengths()
    item_count = int(labels.values.max(initial=0)) + 1
    _, relevant = _label_keys(labels, item_count)
    return Judged(user, place + 1, relevant, listed)


def _precision(judged: Judged, k: int) -> Float64:
    return _divide(judged.total(), np.where(judged.relevant > 0, k, 0))


def _recall(judged: Judged, k: int) -> Float64:
    return _divide(judged.total(), judged.relevant)


def _f1(judged: Judged, k: int) -> Float64:
    return _divide(2 * judged.total(), np.where(judged.relevant > 0, k + judged.relevant, 0))


def _hit(judged: Judged, k: int) -> Float64:
    return _divide(np.minimum(judged.total(), 1), np.minimum(judged.relevant, 1))


def _mrr(judged: Judged, k: int) -> Float64:
    reciprocal = judged.total((judged.ordinal() == 1) / judged.rank)
    return _divide(reciprocal, np.minimum(judged.relevant, 1))


def _dcg(judged: Judged, k: int) -> Float64:
    return _divide(judged.total(_discount(judged.rank)), np.minimum(judged.relevant, 1))


def _ndcg(judged: Judged, k: int) -> Float64:
    # Both sums add from rank 1 downwards, so that a perfect list is exactly 1.
    deepest = min(k, int(judged.relevant.max(initial=0)))
    ideal = np.concatenate([[0.0], np.cumsum(_discount(np.arange(1, deepest + 1)))])
    return _divide(judged.total(_discount(judged.rank)), ideal[np.minimum(judged.relevant, k)])


def _map(judged: Judged, k: int) -> Float64:
    return _divide(judged.total(judged.ordinal() / judged.rank), np.minimum(judged.relevant, k))


def _map_biif(judged: Judged, k: int) -> Float64:
    found = np.maximum(judged.total(), 1)
    return _divide(judged.total(judged.ordinal() / judged.rank), np.where(judged.relevant > 0, found, 0))


def _recall_with_duplicates(judged: Judged, k: int) -> Float64:
    return _divide(judged.total(), np.where(judged.relevant > 0, judged.listed, 0))


_FORMULAS: dict[str, Callable[[Judged, int], Float64]] = {
    "precision": _precision,
    "recall": _recall,
    "f1": _f1,
    "ndcg": _ndcg,
    "map": _map,
    "mrr": _mrr,
    "hit": _hit,
    "dcg": _dcg,
    "dcg_biif": _dcg,
    "map_biif": _map_biif,
    "recall_with_duplicates": _recall_with_duplicates,
}
NAMES = tuple(_FORMULAS)


def _discount(rank: npt.NDArray[Any]) -> Float64:
    return np.asarray(1 / np.log2(rank + 1.0), dtype=np.float64)


def _divide(numerator: npt.NDArray[Any], denominator: npt.NDArray[Any]) -> Float64:
    """Quotient with NaN where the denominator is 0."""
    quotient: Float64 = np.full(len(numerator), np.nan)
    np.divide(numerator, denominator, out=quotient, where=denominator > 0)
    return quotient


def _label_keys(labels: Ragged, item_count: int) -> tuple[Int64, Int64]:
    """user · item_count + item of every distinct label, ascending; and how many each user has (users,)."""
    user = labels.row_of_value()
    real = labels.values >= 0
    keys = np.unique(user[real] * item_count + labels.values[real])
    return keys, np.bincount(keys // item_count, minlength=len(labels))


def _hits_of_rows(ranked: Ranked, first_user: int, keys: Int64, item_count: int) -> Bool:
    users = np.arange(first_user, first_user + len(ranked), dtype=np.int64)
    wanted = users[:, None] * item_count + ranked  # (users, depth)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    flat = np.flatnonzero((keys[place] == wanted) & (ranked >= 0))
    # np.unique names the first of equal values, and row-major order is the order of the list.
    _, first = np.unique(wanted.ravel()[flat], return_index=True)
    found = np.zeros(ranked.size, dtype=np.bool_)
    found[flat[first]] = True
    return found.reshape(ranked.shape)


def _checked(ranked: Ranked) -> Ranked:
    ranked = np.asarray(ranked)
    if ranked.ndim != 2 or (ranked.size and not np.issubdtype(ranked.dtype, np.integer)):
        raise InputError(
            f"ranked of shape {ranked.shape} and type {ranked.dtype}: "
            "needed integers (users, depth), padded with -1"
        )
    return ranked


def _top(ranked: Ranked, k: int) -> Ranked:
    _check_k(k)
    return _checked(ranked)[:, :k]


def _check_k(k: int) -> None:
    if k < 1:
        raise ConfigError(f"k = {k}: the cut-off must be a whole number from 1")


def _refuse_unknown_items(items: npt.NDArray[Any], n_items: int) -> None:
    if len(items) and (items.max() >= n_items or items.min() < 0):
        raise InputError(f"ranked holds item {items.max()}, the catalogue only 0 to {n_items - 1}")
