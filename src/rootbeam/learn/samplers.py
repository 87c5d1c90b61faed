"""Drawing items: uniform, by popularity, and resampling the columns of a batch.

Every function takes its randomness from an explicit `torch.Generator` on the device of its tensors.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rootbeam.core.errors import ConfigError, InputError

Draws = Literal["independent", "systematic"]
MOST_DRAWS = 1 << 20  # in float32, with room for the fraction that a systematic draw needs


def log_popularity(counts: Tensor) -> Tensor:
    """counts (items,) -> log p, p = max(count, 1) / sum of the same.  # (items,) float32

    The clamp keeps an item that training never saw at the probability of one seen once, so that log 0
    never occurs. Σ p = 1 over all items, which the `corrected` estimator of `bir_loss` needs.
    """
    if bool((counts < 0).any()):
        raise InputError("a popularity count is negative; pass the number of training events per item")
    clamped = counts.to(torch.float64).clamp(min=1.0)
    return (clamped / clamped.sum()).log().to(torch.float32)


def uniform_items(
    shape: tuple[int, ...], n_items: int, generator: torch.Generator, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Items drawn uniformly with replacement: ids and log q = −log n_items.  # (shape), (shape)"""
    if n_items < 1:
        raise InputError(f"cannot draw from {n_items} items; at least one is needed")
    items = torch.randint(n_items, shape, generator=generator, device=device)
    return items, -torch.full(shape, float(n_items), device=device).log()


def popularity_items(
    shape: tuple[int, ...], log_popularity: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Items drawn with q = softmax(log_popularity (items,)): ids and log q.  # (shape), (shape)

    Raise popularity to a power by scaling its logarithm: `popularity_items(shape, 0.75 * log_p, generator)`.
    """
    log_q = log_popularity - torch.logsumexp(log_popularity, dim=0)
    cumulative = log_q.to(torch.float64).exp().cumsum(dim=0)
    cumulative = cumulative / cumulative[-1]  # (items,) ends at exactly 1
    uniforms = torch.rand(shape, generator=generator, device=log_q.device, dtype=torch.float64)
    # right=True: the first item whose cumulative exceeds u, so an item of probability 0 is never drawn.
    items = torch.searchsorted(cumulative, uniforms, right=True)
    return items, log_q[items]


def in_batch_weights(scores: Tensor, log_popularity: Tensor, mask: Tensor | None = None) -> Tensor:
    """w(j|u) = softmax_j(s_uj − log p_j) over the columns of the batch [theory, Eq. 1], detached.

    scores (rows, columns), log_popularity (columns,), mask (rows, columns) True = never drawn
    -> (rows, columns). A row with every column masked has weights 0.
    """
    weights = unnormalised_weights(scores, log_popularity, mask)[0]
    return weights.div_(weights.sum(dim=1, keepdim=True).clamp_(min=torch.finfo(weights.dtype).tiny))


def unnormalised_weights(
    scores: Tensor, log_popularity: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(v, shift) with w(j|u) = v_uj / Σ_k v_uk and e^{s_uj − log p_j} = v_uj e^{shift_u}; max_j v_uj = 1.

    scores (..., rows, columns), log_popularity (..., columns) -> (..., rows, columns), (..., rows); v is 0
    where masked.
    """
    dtype = torch.promote_types(scores.dtype, torch.float32)  # counts up to |B| are not exact in less
    log_popularity = log_popularity.detach().to(dtype)
    weights = scores.detach().to(dtype) - log_popularity[..., None, :]  # (..., rows, columns)
    if mask is not None:
        weights.masked_fill_(mask, -torch.inf)
    shift = weights.amax(dim=-1)  # (..., rows)
    shift.masked_fill_(shift == -torch.inf, 0.0)  # a row with nothing left: 0 rather than −inf − (−inf)
    return weights.sub_(shift[..., None]).exp_(), shift


def resample(weights: Tensor, count: int, draws: Draws, generator: torch.Generator) -> Tensor:
    """`resample_systematic` or `resample_independent`, by name.  # (..., rows, columns)"""
    if draws == "systematic":
        return resample_systematic(weights, count, generator)
    if draws == "independent":
        return resample_independent(weights, count, generator)
    raise ConfigError(f'draws is {draws!r}; it must be "independent" or "systematic"')


def resample_systematic(weights: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """How often each column is drawn when `draws` columns per row are drawn with w by one uniform per row.

    With C_j = Σ_{k≤j} w_k / Σ_k w_k and u ~ U[0, 1): count_j = ⌈m C_j − u⌉ − ⌈m C_{j−1} − u⌉.
    E count_j = m w_j, |count_j − m w_j| < 1 and Σ_j count_j = m exactly; a column of weight 0 is never
    drawn, and a row of weights 0 draws nothing. weights (..., rows, columns) ≥ 0, not necessarily
    normalised -> counts of the same shape and dtype.
    """
    shape = weights.shape[:-1]
    uniforms = torch.rand(shape, generator=generator, device=weights.device, dtype=weights.dtype)
    return systematic_counts(weights, draws, uniforms)


def systematic_counts(weights: Tensor, draws: int, uniforms: Tensor) -> Tensor:
    """`resample_systematic` at given uniforms (..., rows) in [0, 1)."""
    _check_draws(weights, draws)
    points = _cumulative_shares(weights)  # (..., rows, columns)
    # m − u must not round to m − 1, or the last draw of the row would be lost.
    latest = 1.0 - draws * torch.finfo(points.dtype).eps
    torch.add(-uniforms.clamp(max=latest)[..., None], points, alpha=draws, out=points)
    return _differences(points.ceil_())  # points: draws that fall at or before each column


def resample_independent(weights: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """How often each column is drawn in `draws` independent draws per row: Multinomial(draws, w).

    weights (..., rows, columns) ≥ 0, not necessarily normalised -> counts of the same shape and dtype;
    Σ_j count_j = draws, a column of weight 0 is never drawn, and a row of weights 0 draws nothing.
    Slower than `resample_systematic`, and noisier: Var count_j = m w_j (1 − w_j) instead of at most 1/4.
    """
    _check_draws(weights, draws)
    # m sorted uniforms are the partial sums of m + 1 exponentials over their total: no sort is needed.
    shape, device = (*weights.shape[:-1], draws + 1), weights.device
    uniforms = torch.rand(shape, generator=generator, device=device, dtype=weights.dtype)
    # no exponential is 0, so no uniform is, and a share of 0 has none at or below it
    spacings = uniforms.neg_().log1p_().neg_().clamp_(min=torch.finfo(weights.dtype).eps)
    ordered = _cumulative_shares(spacings)[..., :draws].contiguous()
    below = torch.searchsorted(ordered, _cumulative_shares(weights), right=True, out_int32=True)
    return _differences(below.to(weights.dtype))


def _cumulative_shares(weights: Tensor) -> Tensor:
    """Σ_{k≤j} w_k / Σ_k w_k  # (..., rows, columns), 0 where all weights of the row are 0.

    The shares never fall from one column to the next, stay the same where the weight is 0, and end at 1.
    """
    shares = weights.cumsum(dim=-1)
    if weights.device.type != "cpu":  # a CPU adds in order, in double; a parallel scan may round unevenly
        shares = _in_order(shares, weights)
    total = shares[..., -1:].clone()
    return shares.div_(total.masked_fill_(total == 0, 1.0))


def _in_order(sums: Tensor, weights: Tensor) -> Tensor:
    """Running sums (..., rows, columns) made monotone, and constant where the weight is 0."""
    return sums.masked_fill(weights == 0, 0.0).cummax(dim=-1).values


def _differences(cumulative: Tensor) -> Tensor:
    """The counts (..., rows, columns) of which these are the running sums."""
    counts = torch.empty_like(cumulative)
    counts[..., 0] = cumulative[..., 0]
    torch.sub(cumulative[..., 1:], cumulative[..., :-1], out=counts[..., 1:])
    return counts


def _check_draws(weights: Tensor, draws: int) -> None:
    if weights.dim() < 2 or weights.shape[-1] == 0:
        raise InputError(f"weights have shape {tuple(weights.shape)}; (rows, columns) is needed")
    if not 1 <= draws <= MOST_DRAWS:
        raise InputError(f"{draws} draws per row were asked for; 1 to {MOST_DRAWS} can be counted exactly")
