"""What in-batch training remembers between steps: XIR's cache, and item frequencies seen in a stream.

Both are frozen values; a step returns the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, final

import torch
from torch import Tensor

from rootbeam.core.errors import ConfigError, InputError
from rootbeam.learn.losses import Reduce, accidental_hits, reduced
from rootbeam.learn.samplers import Draws, resample, resample_independent, unnormalised_weights

PRIME: Final = 2**31 - 1


@final
@dataclass(frozen=True)
class XirCache:
    """Items kept from earlier batches, and how often every item was drawn so far (plus one)."""

    items: Tensor  # (size,) int64, with repetitions
    occurrences: Tensor  # (n_items,) int64 ≥ 1


def start_cache(n_items: int, size: int, generator: torch.Generator) -> XirCache:
    """`size` items drawn uniformly (XIR: size = |B|), every occurrence 1."""
    if n_items < 1 or size < 2:
        raise ConfigError(
            f"a cache of {size} out of {n_items} items; at least 2 out of at least 1 are needed"
        )
    device = generator.device
    items = torch.randint(n_items, (size,), generator=generator, device=device)
    return XirCache(items, torch.ones(n_items, dtype=torch.int64, device=device))


def xir_loss(
    scores: Tensor,
    cache_scores: Tensor,
    items: Tensor,
    log_popularity: Tensor,
    cache: XirCache,
    generator: torch.Generator,
    cache_weight: float,
    draws: Draws = "systematic",
    reduce: Reduce = "mean",
) -> tuple[Tensor, XirCache]:
    """λ · L(cache) + (1 − λ) · L(batch), λ = cache_weight, and the next cache.

    L(X) = −s_i + log(e^{s_i} + Σ_j c_j e^{s_j}), c the counts of |cache|/2 columns of X drawn with
    softmax_j(s_j − log q_j): q the popularity p in the batch, the occurrences in the cache, which is
    the distribution either was drawn from. Items drawn gain their counts as occurrences; the next cache is
    drawn from this step's distinct drawn items in proportion to their occurrences.
    scores (batch, batch) with the positives on the diagonal, cache_scores (batch, size) of cache.items,
    items and log_popularity (batch,) by column. Other columns that hold the row's own item are never drawn.
    """
    if not 0.0 <= cache_weight <= 1.0:
        raise ConfigError(f"cache_weight is {cache_weight}; it must be between 0 and 1")
    size = len(cache.items)
    if cache_scores.shape != (len(items), size):
        raise InputError(
            f"cache_scores have shape {tuple(cache_scores.shape)}; {(len(items), size)} is needed"
        )
    items = items.long()
    log_occurrences = cache.occurrences[cache.items].to(scores.dtype).log()
    own = items[:, None] == cache.items[None, :]  # (batch, size)
    batch_hits = accidental_hits(items)
    cache_counts = _drawn(cache_scores, log_occurrences, own, size // 2, draws, generator)
    batch_counts = _drawn(scores, log_popularity, batch_hits, size - size // 2, draws, generator)
    positive = scores.diagonal()
    from_cache = _counted_loss(positive, cache_scores, cache_counts)
    from_batch = _counted_loss(positive, scores, batch_counts)
    losses = cache_weight * from_cache + (1.0 - cache_weight) * from_batch  # (batch,)
    drawn = torch.zeros_like(cache.occurrences)
    drawn.index_add_(0, cache.items, cache_counts.to(torch.float64).sum(dim=0).long())
    drawn.index_add_(0, items, batch_counts.to(torch.float64).sum(dim=0).long())
    return reduced(losses, reduce), _next_cache(cache, drawn, generator)


def _drawn(
    scores: Tensor, log_proposal: Tensor, mask: Tensor, count: int, draws: Draws, generator: torch.Generator
) -> Tensor:
    """How often each column is drawn, out of `count` draws per row.  # (rows, columns)"""
    weights, _ = unnormalised_weights(scores, log_proposal, mask)
    return resample(weights, count, draws, generator)


def _counted_loss(positive: Tensor, scores: Tensor, counts: Tensor) -> Tensor:
    """−s_i + log(e^{s_i} + Σ_j c_j e^{s_j}), c constant.  # (rows,)"""
    logits = torch.cat([positive[:, None], scores + counts.log()], dim=1)  # (rows, 1 + columns)
    return torch.logsumexp(logits, dim=1) - positive


def _next_cache(cache: XirCache, drawn: Tensor, generator: torch.Generator) -> XirCache:
    """drawn (n_items,) how often every item was drawn in this step."""
    occurrences = cache.occurrences + drawn
    candidates = drawn.nonzero().squeeze(1)  # (distinct,)
    if len(candidates) == 0:  # every column of every row was the row's own item
        return replace(cache, occurrences=occurrences)
    shares = occurrences[candidates].to(torch.float64)[None, :]
    counts = resample_independent(shares, len(cache.items), generator)[0].long()
    return XirCache(torch.repeat_interleave(candidates, counts), occurrences)


@final
@dataclass(frozen=True)
class FrequencyEstimator:
    """Item frequencies of a stream, from a moving average of the gap between occurrences, in hashed arrays.

    For training on a stream whose popularity is not known beforehand (Yi et al., RecSys 2019, Algorithm 2):
    pass `log_frequency` to `in_batch_softmax_loss` as log popularity.
    """

    last_seen: Tensor  # (hashes, buckets) int64, the step a bucket was last hit; 0 = before the stream
    gaps: Tensor  # (hashes, buckets) float64, estimated steps between two hits
    multipliers: Tensor  # (hashes,) int64 in [1, PRIME)
    offsets: Tensor  # (hashes,) int64 in [0, PRIME)
    step: int  # of the last update
    rate: float  # of the moving average, 0 < rate < 1


def start_frequencies(
    buckets: int, initial_gap: float, generator: torch.Generator, hashes: int = 2, rate: float = 0.05
) -> FrequencyEstimator:
    """Every gap starts at `initial_gap` steps (the catalogue's size over the batch's is a fair guess)."""
    if buckets < 1 or hashes < 1 or initial_gap < 1.0 or not 0.0 < rate < 1.0:
        raise ConfigError(
            f"buckets={buckets}, hashes={hashes}, initial_gap={initial_gap}, rate={rate}; "
            "the first three must be at least 1 and the rate between 0 and 1"
        )
    shape, device = (hashes, buckets), generator.device
    return FrequencyEstimator(
        last_seen=torch.zeros(shape, dtype=torch.int64, device=device),
        gaps=torch.full(shape, initial_gap, dtype=torch.float64, device=device),
        multipliers=torch.randint(1, PRIME, (hashes,), generator=generator, device=device),
        offsets=torch.randint(PRIME, (hashes,), generator=generator, device=device),
        step=0,
        rate=rate,
    )


def update_gaps(state: FrequencyEstimator, items: Tensor, step: int) -> FrequencyEstimator:
    """gap ← (1 − rate) gap + rate (step − last seen), last seen ← step, in the buckets of items (batch,).

    An item that stands in a batch twice counts once: the frequency is that of batches holding the item.
    """
    if step <= state.step:
        raise InputError(
            f"step {step} does not come after step {state.step}; steps are counted from 1 upwards"
        )
    buckets = _buckets(state, items)  # (hashes, batch)
    gaps, last_seen = state.gaps.gather(1, buckets), state.last_seen.gather(1, buckets)
    updated = (1.0 - state.rate) * gaps + state.rate * (step - last_seen)
    return replace(
        state,
        gaps=state.gaps.scatter(1, buckets, updated),
        last_seen=state.last_seen.scatter(1, buckets, step),
        step=step,
    )


def log_frequency(state: FrequencyEstimator, items: Tensor) -> Tensor:
    """log q = −log max_h gap_h, (batch,) float32: collisions only shorten a gap, so the longest counts."""
    gaps = state.gaps.gather(1, _buckets(state, items)).amax(dim=0)
    return -gaps.clamp(min=1.0).log().to(torch.float32)


def _buckets(state: FrequencyEstimator, items: Tensor) -> Tensor:
    """((a x + b) mod PRIME) mod buckets, for each hash.  # (hashes, batch)"""
    keys = items[None, :] * state.multipliers[:, None] + state.offsets[:, None]
    return keys % PRIME % state.gaps.shape[1]
