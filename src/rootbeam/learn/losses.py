"""Losses as pure functions of scores. Lower is better; `reduce` is "mean" (a scalar) or "none" (batch,).

Notation: s_uj is the score of row u and column j, i the positive of row u, B the batch, p_j the
probability of item j among training events. Scores may be any real numbers; a mask is True where a
pair is left out. docs/theory.md, "In-batch importance resampling", derives what is only stated here.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from rootbeam.core.errors import ConfigError, InputError, RootbeamError
from rootbeam.core.types import Ragged
from rootbeam.learn.samplers import Draws, resample, unnormalised_weights

Reduce = Literal["mean", "none"]
Estimator = Literal["appendix", "corrected", "raw"]


def full_softmax_loss(scores: Tensor, targets: Tensor, reduce: Reduce = "mean") -> Tensor:
    """−s_ui + log Σ_j e^{s_uj} over all items.  scores (batch, items), targets (batch,)"""
    positive = scores.gather(1, targets[:, None].long()).squeeze(1)  # (batch,)
    return reduced(torch.logsumexp(scores, dim=1) - positive, reduce)


def sampled_softmax_loss(
    positive: Tensor,
    negative: Tensor,
    log_q: Tensor,
    collisions: Tensor | None = None,
    reduce: Reduce = "mean",
) -> Tensor:
    """−s_i + log(e^{s_i} + Σ_j e^{s_j − log(M q_j)}), the j drawn from q, M of them.

    positive (batch,), negative (batch, M), log_q (batch, M) or (M,), collisions (batch, M) True where a
    negative is the positive: it is left out, so the positive stands in the denominator once.
    E Σ_j e^{s_j}/(M q_j) = Σ_{j≠i} e^{s_j} when collisions are masked.
    """
    corrected = negative - (log_q + math.log(negative.shape[1]))  # (batch, M)
    if collisions is not None:
        corrected = corrected.masked_fill(collisions, -torch.inf)
    denominator = torch.logsumexp(torch.cat([positive[:, None], corrected], dim=1), dim=1)
    return reduced(denominator - positive, reduce)


def mixed_negative_loss(
    scores: Tensor,
    items: Tensor,
    extra_scores: Tensor,
    extra_items: Tensor,
    log_popularity: Tensor,
    n_items: int,
    reduce: Reduce = "mean",
) -> Tensor:
    """Mixed negative sampling: the batch's other items and M uniform items, as one draw from their mixture.

    −s_i + log(e^{s_i} + Σ_j e^{s_j − log(N q_j)}),  N = B − 1 + M,  q_j = ((B − 1) p_j + M / n_items) / N.
    scores (batch, batch) with the positive on the diagonal, items (batch,), extra_scores (batch, M),
    extra_items (M,), log_popularity (n_items,) with Σ p = 1. Collisions with the positive are left out.
    """
    columns = torch.cat([items, extra_items]).long()  # (batch + M,)
    batch, extra = len(items), len(extra_items)
    in_batch = log_popularity[columns] + math.log(batch - 1) if batch > 1 else None
    uniform = torch.full_like(log_popularity[columns], math.log(max(extra, 1) / n_items))
    if extra == 0:
        uniform = torch.full_like(uniform, -torch.inf)
    log_expected = uniform if in_batch is None else torch.logaddexp(in_batch, uniform)  # log(N q_j)
    logits = torch.cat([scores, extra_scores], dim=1) - log_expected  # (batch, batch + M)
    # the positive's own column is among the hits: it returns below, uncorrected and once
    logits = logits.masked_fill(items.long()[:, None] == columns[None, :], -torch.inf)
    positive = scores.diagonal()
    return reduced(torch.logsumexp(torch.cat([positive[:, None], logits], 1), 1) - positive, reduce)


def in_batch_softmax_loss(
    scores: Tensor,
    items: Tensor | None,
    log_popularity: Tensor | None = None,
    mask: Tensor | None = None,
    reduce: Reduce = "mean",
) -> Tensor:
    """−t_uu + log Σ_{j∈B} e^{t_uj},  t = s (SSL), or t_uj = s_uj − log p_j (SSL-Pop).

    scores (..., batch, batch) with the positives on the diagonal, log_popularity (..., batch) by column.
    Columns that hold the row's own item again are left out (`items` None keeps them, as released code
    does), and so is what `mask` (..., batch, batch) marks; the diagonal always stays. Leading dimensions
    are batches on their own. Not twice differentiable.
    """
    _check_square(scores)
    with torch.no_grad():
        log_p = torch.zeros_like(scores[..., 0, :]) if log_popularity is None else log_popularity.detach()
        softmax, shift = unnormalised_weights(scores, log_p, _excluded(items, mask))
        total = softmax.sum(dim=-1)  # (..., batch) > 0: the positive is never left out
        value = shift + total.log() - (_diagonal(scores) - log_p).to(shift.dtype)
        gradient = softmax.div_(total[..., None])
        _diagonal(gradient).sub_(1.0)
    return reduced(_with_gradient(scores, value, gradient), reduce)


def bir_loss(
    scores: Tensor,
    items: Tensor | None,
    log_popularity: Tensor,
    generator: torch.Generator,
    estimator: Estimator = "corrected",
    draws: Draws = "systematic",
    mask: Tensor | None = None,
    reduce: Reduce = "mean",
) -> Tensor:
    """In-batch importance resampling: −s_uu + log(e^{s_uu} + Σ_j c_uj k_uj e^{s_uj}).

    c_u are the counts of m = |B| columns drawn with w(j|u) = softmax_j(s_uj − log p_j); c and k are
    constants to the gradient. What k is names the estimator, and what its sum estimates:

    raw        k = 1                        as released; the row's own column can be drawn too
    appendix   k = 1 / (m w_uj)             Σ_{j∈B, j≠u} e^{s_uj}: SSL, no popularity correction
    corrected  k = 1 / (m w_uj (|B|−1) p_j) Σ_{j≠i} e^{s_uj} over all items

    The last two draw from the other columns only, so that the positive is in the denominator once.
    scores (..., batch, batch) with the positives on the diagonal, log_popularity (..., batch) by column
    (`corrected` needs Σ p = 1 over all items), `items` and `mask` as in `in_batch_softmax_loss`. A row with
    no other column left has loss 0 under the last two. Not twice differentiable.
    """
    _check_square(scores)
    if estimator not in ("appendix", "corrected", "raw"):
        raise ConfigError(f'estimator is {estimator!r}; it must be "appendix", "corrected" or "raw"')
    with torch.no_grad():
        never_drawn = _excluded(items, mask)
        if estimator != "raw":
            never_drawn = _with_diagonal(never_drawn, scores)
        weights, shift = unnormalised_weights(scores, log_popularity, never_drawn)
        counts = resample(weights, scores.shape[-1], draws, generator)
        value, gradient = _resampled_denominator(scores, log_popularity, weights, shift, counts, estimator)
    return reduced(_with_gradient(scores, value, gradient), reduce)


def _resampled_denominator(
    scores: Tensor,
    log_popularity: Tensor,
    weights: Tensor,
    shift: Tensor,
    counts: Tensor,
    estimator: Estimator,
) -> tuple[Tensor, Tensor]:
    """The loss of every row and its gradient by the scores.  # (..., batch), (..., batch, batch)

    k e^{s} is never formed: since e^{s_j} = v_j p_j e^{shift} and w_j = v_j / Σv, it is v_j p_j e^{shift}
    (raw), p_j e^{shift} Σv / m (appendix), e^{shift} Σv / (m (|B|−1)) (corrected). Overwrites `counts`.
    """
    batch = scores.shape[-1]
    log_scale = shift  # (..., batch) the logarithm of what all terms of a row share
    if estimator == "raw":
        counts.mul_(weights)
    else:
        log_scale = shift + (weights.sum(dim=-1) / batch).log()
    if estimator == "corrected":
        log_scale = log_scale - math.log(max(batch - 1, 1))
    else:
        counts.mul_(log_popularity.detach().exp()[..., None, :])
    positive = _diagonal(scores.detach()).to(shift.dtype)  # (..., batch)
    log_denominator = torch.logaddexp(positive, log_scale + counts.sum(dim=-1).log())
    gradient = counts.mul_((log_scale - log_denominator).exp_()[..., None])
    _diagonal(gradient).add_((positive - log_denominator).exp_() - 1.0)
    return log_denominator - positive, gradient


class _ValueWithGradient(torch.autograd.Function):
    """A row loss (..., batch) whose gradient by the scores (..., batch, batch) was computed along with it."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[..., None], None, None


def _with_gradient(scores: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
    losses: Tensor = _ValueWithGradient.apply(scores, value, gradient)  # type: ignore[no-untyped-call]
    return losses


def accidental_hits(items: Tensor, users: Tensor | None = None, positives: Ragged | None = None) -> Tensor:
    """True at (u, j), j ≠ u, where column j's item is row u's own item or a known positive of row u's user.

    items (..., batch), users (batch,) the rows of `positives`, which holds every user's items (for items
    without leading dimensions) -> (..., batch, batch) bool, False on the diagonal.
    """
    if (users is None) != (positives is None):
        raise InputError("accidental_hits was given only one of users and positives; both or none are needed")
    hits = items[..., :, None] == items[..., None, :]  # (..., batch, batch)
    if users is not None and positives is not None:
        distinct, column = torch.unique(items, return_inverse=True)  # (distinct,), (batch,)
        known = positives.take(users.cpu().numpy())
        known_items = torch.from_numpy(known.values).to(items)  # (pairs,)
        known_rows = torch.from_numpy(known.row_of_value()).to(items.device)
        place = torch.searchsorted(distinct, known_items).clamp_(max=len(distinct) - 1)
        present = distinct[place] == known_items
        table = torch.zeros(len(items), len(distinct), dtype=torch.bool, device=items.device)
        table[known_rows[present], place[present]] = True
        hits |= table[:, column]
    _diagonal(hits).fill_(False)
    return hits


def bpr_loss(positive: Tensor, negative: Tensor, reduce: Reduce = "mean") -> Tensor:
    """−log σ(s_i − s_j), averaged over the negatives.  positive (batch,), negative (batch,) or (batch, n)"""
    difference = positive - negative if negative.dim() == 1 else positive[:, None] - negative
    losses = functional.softplus(-difference)
    return reduced(losses if losses.dim() == 1 else losses.mean(dim=1), reduce)


def ccf_loss(
    positive: Tensor, offered: Tensor, collisions: Tensor | None = None, reduce: Reduce = "mean"
) -> Tensor:
    """−s_i + log Σ_{j∈O} e^{s_j}, the offer set O = {i} and the items shown beside it [2ts, Eq. 10].

    positive (batch,), offered (batch, n) the scores of the items not chosen (drawn at random where the log
    does not say what was shown; no correction for how), collisions (batch, n) True where one is i itself.
    """
    if collisions is not None:
        offered = offered.masked_fill(collisions, -torch.inf)
    choice = torch.cat([positive[:, None], offered], dim=1)  # (batch, 1 + n)
    return reduced(torch.logsumexp(choice, dim=1) - positive, reduce)


def binary_loss(positive: Tensor, negative: Tensor, reduce: Reduce = "mean") -> Tensor:
    """−log σ(s_i) − mean_j log(1 − σ(s_j)).  positive (batch,), negative (batch, n)"""
    return reduced(functional.softplus(-positive) + functional.softplus(negative).mean(dim=1), reduce)


def check_finite(loss: Tensor, name: str) -> Tensor:
    """The loss itself, or an error that says which loss is not finite. Costs a synchronisation on a GPU."""
    if not bool(torch.isfinite(loss).all()):
        raise RootbeamError(
            f"{name} is {float(loss.detach().sum())}, not a finite number; lower the learning rate or resume "
            "from an earlier state"
        )
    return loss


def _excluded(items: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """The pairs that are no negatives (..., batch, batch), never the diagonal; None where none is known."""
    if items is not None:
        hits = accidental_hits(items)
        if mask is None:
            return hits
        mask = hits | mask
    elif mask is None:
        return None
    excluded = mask.clone()
    _diagonal(excluded).fill_(False)
    return excluded


def _with_diagonal(mask: Tensor | None, scores: Tensor) -> Tensor:
    """The mask with the diagonal marked too.  # (..., batch, batch)"""
    mask = torch.zeros_like(scores, dtype=torch.bool) if mask is None else mask
    _diagonal(mask).fill_(True)
    return mask


def _diagonal(square: Tensor) -> Tensor:
    """A view of the diagonal.  # (..., batch, batch) -> (..., batch)"""
    return square.diagonal(dim1=-2, dim2=-1)


def _check_square(scores: Tensor) -> None:
    if scores.dim() < 2 or scores.shape[-2] != scores.shape[-1] or scores.numel() == 0:
        raise InputError(
            f"scores have shape {tuple(scores.shape)}; (batch, batch) with the positives on the "
            "diagonal is needed"
        )


def reduced(losses: Tensor, reduce: Reduce) -> Tensor:
    """The losses (batch,) as they are, or their mean."""
    if reduce == "mean":
        return losses.mean()
    if reduce == "none":
        return losses
    raise ConfigError(f'reduce is {reduce!r}; it must be "mean" or "none"')
