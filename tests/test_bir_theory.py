"""The theory of in-batch importance resampling, enumerated or simulated; docs/theory.md tells the outcome.

`others` are the batch's columns other than the row's own: the appendix's B, from which m = |B| + 1 columns
are drawn (m is the batch's size). Θ are the scores themselves unless a test says otherwise, so G = 1.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from rootbeam.learn import losses
from rootbeam.learn.samplers import (
    in_batch_weights,
    log_popularity,
    popularity_items,
    resample,
    systematic_counts,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def total_variation(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().sum() / 2)


# ---- the resampled set: Lemma 3.1 and Theorem 3.1 ---------------------------------------------------------

COUNTS = torch.tensor([400, 200, 100, 100, 50, 50, 40, 30, 20, 10])
LOG_P = log_popularity(COUNTS).double()
ITEMS = len(COUNTS)


def resampled_shares(item_scores: Tensor, batch: int, draws: str, seed: int) -> Tensor:
    """How a row's resampled set spreads over the items, for one batch drawn by popularity.  # (items,)"""
    items, _ = popularity_items((batch,), LOG_P, generator(seed))
    weights = in_batch_weights(item_scores[items][None, :], LOG_P[items])
    counts = resample(weights, batch, draws, generator(seed + 1))[0]  # type: ignore[arg-type]
    return torch.zeros(ITEMS, dtype=torch.float64).index_add(0, items, counts) / batch


def expected_distance(target: Tensor, batch: int, independent: bool) -> float:
    """A bound on E TV(resampled set, target), to first order in 1/√batch.

    Item a stands n_a ~ Binomial(batch, p_a) times in the batch, and its weight moves by the factor
    n_a/(batch p_a), of standard deviation √((1 − p_a)/(batch p_a)); normalising at most doubles that.
    Independent draws add √(t_a (1 − t_a)/batch) per item; E|x| ≤ standard deviation. For systematic draws
    nothing is added: they must do without that allowance.
    """
    p = LOG_P.exp()
    spread = target * ((1 - p) / (batch * p)).sqrt() * 2
    drawn = (target * (1 - target) / batch).sqrt() if independent else torch.zeros_like(target)
    return float((spread + drawn).sum() / 2)


@pytest.mark.parametrize("draws", ["independent", "systematic"])
@pytest.mark.parametrize("scored", [False, True], ids=["Lemma 3.1", "Theorem 3.1"])
def test_the_resampled_set_tends_to_the_softmax(draws: str, scored: bool) -> None:
    """Equal scores: inverse popularity makes it uniform. Any scores: the softmax over all items."""
    scores = torch.randn(ITEMS, generator=generator(9), dtype=torch.float64) * (1.0 if scored else 0.0)
    target = scores.softmax(0)
    distances = []
    for batch in (200, 2_000, 20_000):
        seeds = range(0, 20, 2)
        mean = sum(total_variation(resampled_shares(scores, batch, draws, s), target) for s in seeds) / len(
            seeds
        )
        assert mean < expected_distance(target, batch, draws == "independent")
        distances.append(mean)
    # ten times the batch, √10 times closer; 2 leaves room for chance
    assert distances[0] > 2 * distances[1] > 4 * distances[2]
    assert total_variation(LOG_P.exp(), target) > 10 * distances[2]  # popularity itself is far away


# ---- what each estimator's sum estimates ------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Row 0 of a batch: its own column first, then the others."""

    scores: Tensor  # (batch,)
    log_p: Tensor  # (batch,)

    @property
    def batch(self) -> int:
        return len(self.scores)

    def weights(self, estimator: str) -> Tensor:
        mask = torch.zeros(1, self.batch, dtype=torch.bool)
        mask[0, 0] = estimator != "raw"
        return in_batch_weights(self.scores[None, :], self.log_p, mask)[0]

    def loss(self, counts: Tensor, estimator: str, patch: pytest.MonkeyPatch) -> tuple[float, Tensor]:
        """bir_loss of row 0 with the counts given instead of drawn, and its gradient.  # (), (batch,)"""
        scores = self.scores.expand(self.batch, -1).clone()
        scores.fill_diagonal_(0.0)
        scores[0] = self.scores
        scores.requires_grad_()
        with patch.context() as inner:
            inner.setattr(losses, "resample", lambda *_: counts.expand(self.batch, -1).clone())
            loss = losses.bir_loss(scores, None, self.log_p, generator(), estimator, reduce="none")[0]  # type: ignore[arg-type]
        loss.backward()
        assert scores.grad is not None
        return loss.item(), scores.grad[0]

    def outcomes(self, estimator: str) -> list[tuple[float, Tensor]]:
        """Every result of |batch| independent draws: its probability and counts."""
        w = self.weights(estimator)
        possible = [j for j in range(self.batch) if w[j] > 0]
        results = []
        for counts in itertools.product(range(self.batch + 1), repeat=len(possible)):
            if sum(counts) != self.batch:
                continue
            table = torch.zeros(self.batch, dtype=torch.float64)
            table[possible] = torch.tensor(counts, dtype=torch.float64)
            ways = math.factorial(self.batch) / math.prod(math.factorial(c) for c in counts)
            chance = math.prod(float(w[j]) ** c for j, c in zip(possible, counts, strict=True))
            results.append((ways * chance, table))
        assert math.isclose(sum(chance for chance, _ in results), 1.0, rel_tol=1e-12)
        return results

    def expected_sum(self, estimator: str, patch: pytest.MonkeyPatch) -> float:
        """E Σ_j c_j k_j e^{s_j}: the denominator without the positive term."""
        own = math.exp(float(self.scores[0]))
        return sum(
            chance * (math.exp(self.loss(counts, estimator, patch)[0]) * own - own)
            for chance, counts in self.outcomes(estimator)
        )

    def expected_gradient(self, estimator: str, patch: pytest.MonkeyPatch) -> Tensor:
        gradient = torch.zeros(self.batch, dtype=torch.float64)
        for chance, counts in self.outcomes(estimator):
            gradient += chance * self.loss(counts, estimator, patch)[1]
        return gradient


ROW = Row(double(0.3, -0.8, 1.1, 0.4), double(0.1, 0.5, 0.3, 0.1).log())


def test_the_appendix_estimates_the_in_batch_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """E Σ e^{s_o}/(m w_o) = Z_B: the popularity cancels, and with the positive term it is plain SSL."""
    z_b = sum(math.exp(float(s)) for s in ROW.scores[1:])
    assert ROW.expected_sum("appendix", monkeypatch) == pytest.approx(z_b, rel=1e-12)


def test_raw_estimates_a_sharpened_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """E Σ e^{s_o} = m Σ_j w_j e^{s_j}, where w_j already holds e^{s_j}: no estimate of any softmax sum."""
    v = [math.exp(float(s) - float(p)) for s, p in zip(ROW.scores, ROW.log_p, strict=True)]
    expected = sum(4 * x / sum(v) * math.exp(float(s)) for x, s in zip(v, ROW.scores, strict=True))
    assert ROW.expected_sum("raw", monkeypatch) == pytest.approx(expected, rel=1e-12)


def test_corrected_estimates_the_sum_over_all_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over every batch of three columns beside the positive, drawn by p, and every draw: E = Z over items."""
    item_scores, p = double(0.3, -0.8, 1.1), double(0.2, 0.5, 0.3)
    positive = 0
    z = sum(math.exp(float(s)) for s in item_scores)
    expectations = {"corrected": 0.0, "appendix": 0.0}
    for columns in itertools.product(range(3), repeat=3):
        items = torch.tensor([positive, *columns])
        chance = math.prod(float(p[j]) for j in columns)
        row = Row(item_scores[items], p[items].log())
        for estimator in expectations:
            expectations[estimator] += chance * row.expected_sum(estimator, monkeypatch)
    assert expectations["corrected"] == pytest.approx(z, rel=1e-12)
    popularity_weighted = 3 * sum(float(q) * math.exp(float(s)) for q, s in zip(p, item_scores, strict=True))
    assert expectations["appendix"] == pytest.approx(popularity_weighted, rel=1e-12)
    assert abs(expectations["appendix"] - z) > 0.05 * z


def test_corrected_without_hits_estimates_the_sum_over_the_other_items() -> None:
    """Masking accidental hits removes e^{s_i} from that sum: the positive term completes Z exactly."""
    item_scores, p = double(0.3, -0.8, 1.1), double(0.2, 0.5, 0.3)
    expected_denominator = 0.0
    for columns in itertools.product(range(3), repeat=3):
        items = torch.tensor([0, *columns])
        scores = item_scores[items].expand(4, -1)
        # row 0 is the row wanted: its own column is column 0
        loss = losses.bir_loss(scores, items, p[items].log(), generator(), "corrected", reduce="none")[0]
        chance = math.prod(float(p[j]) for j in columns)
        expected_denominator += chance * math.exp(loss.item() + float(item_scores[0]))
    assert expected_denominator == pytest.approx(sum(math.exp(float(s)) for s in item_scores), rel=1e-12)


@pytest.mark.parametrize("draws", ["independent", "systematic"])
def test_the_corrected_value_does_not_depend_on_the_draws(draws: str) -> None:
    """k e^s is the same for every column, so V is the log-q corrected sampled softmax over the batch."""
    items, _ = popularity_items((24,), LOG_P, generator(3))
    scores = torch.randn(24, 24, generator=generator(4), dtype=torch.float64)
    off = ~torch.eye(24, dtype=torch.bool)
    negatives = scores[off].view(24, 23)
    log_q = LOG_P[items].expand(24, -1)[off].view(24, 23)
    hits = (items[:, None] == items[None, :])[off].view(24, 23)
    expected = losses.sampled_softmax_loss(scores.diagonal(), negatives, log_q, hits, "none")
    for seed in range(3):
        got = losses.bir_loss(
            scores,
            items,
            LOG_P[items],
            generator(seed),
            "corrected",
            draws,
            reduce="none",  # type: ignore[arg-type]
        )
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_the_corrected_gradient_is_unbiased_for_the_sampled_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its denominator is constant, so nothing of Theorem 3.2's bias is left; the draws only add variance."""
    scores = ROW.scores.clone().requires_grad_()
    losses.sampled_softmax_loss(scores[:1], scores[None, 1:], ROW.log_p[1:]).backward()
    assert scores.grad is not None
    torch.testing.assert_close(
        ROW.expected_gradient("corrected", monkeypatch), scores.grad, rtol=1e-12, atol=1e-12
    )


def test_systematic_draws_keep_the_expectations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a grid of u: the appendix's sum is Z_B and the corrected gradient unbiased here too."""
    steps = 2_000
    grid = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    weights = ROW.weights("appendix").expand(steps, -1)
    distinct, times = torch.unique(systematic_counts(weights, 4, grid), dim=0, return_counts=True)
    own, z_b, mean_sum = math.exp(0.3), sum(math.exp(float(s)) for s in ROW.scores[1:]), 0.0
    for counts, number in zip(distinct, times, strict=True):
        value, _ = ROW.loss(counts, "appendix", monkeypatch)
        mean_sum += float(number) / steps * (math.exp(value) * own - own)
    assert mean_sum == pytest.approx(z_b, rel=4 / steps)  # each of three counts is off by at most 1/steps


# ---- Theorem 3.2 with its lemmas corrected -----------------------------------------------------------------


@dataclass(frozen=True)
class Moments:
    """V = e^{s_i} + (1/m) Σ X, X_k = e^{s_k}/w_k = p_k Z_Bp with probability w_k, over all draws."""

    a: float  # e^{s_i} ≤ V
    z: float  # e^{s_i} + Z_B = E V
    z_b: float
    x: Tensor  # (others,)
    w: Tensor  # (others,)
    m: int

    @staticmethod
    def of(row: Row) -> Moments:
        a = math.exp(float(row.scores[0]))
        z_b = float(row.scores[1:].exp().sum())
        w = row.weights("appendix")[1:]
        return Moments(a, a + z_b, z_b, row.scores[1:].exp() / w, w, row.batch)

    def sums(self, draws: int) -> list[tuple[float, float]]:
        """(probability, Σ X) of every sequence of that many draws."""
        index = range(len(self.x))
        return [
            (math.prod(float(self.w[k]) for k in drawn), sum(float(self.x[k]) for k in drawn))
            for drawn in itertools.product(index, repeat=draws)
        ]

    def mean_of(self, function: object, draws: int) -> float:
        assert callable(function)
        return sum(chance * function(self.a + total / self.m) for chance, total in self.sums(draws))

    @property
    def variance(self) -> float:
        """(Σ_k e^{2 s_k}/w_k − Z_B²)/m, the corrected numerator of Lemma A.3."""
        return (float((self.x.square() * self.w).sum()) - self.z_b**2) / self.m


ROWS = [
    ROW,
    Row(double(-1.0, 0.0, 0.0, 0.0), double(0.05, 0.6, 0.3, 0.05).log()),
    Row(double(2.0, 1.0, -1.5, 0.2, -0.4), double(0.3, 0.1, 0.2, 0.35, 0.05).log()),
]


@pytest.mark.parametrize("row", ROWS)
def test_x_is_popularity_times_z_bp(row: Row) -> None:
    z_bp = float((row.scores[1:] - row.log_p[1:]).exp().sum())
    torch.testing.assert_close(Moments.of(row).x, row.log_p[1:].exp() * z_bp, rtol=1e-12, atol=0)


@pytest.mark.parametrize("row", ROWS)
def test_lemmas_a3_and_a6_the_right_way_round(row: Row) -> None:
    """1/E V ≤ E 1/V ≤ 1/E V + Var V/(E V)³ + E|V − E V|³/a⁴ and ≤ 1/E V + Var V/a³ (printed: E 1/V twice)."""
    moments = Moments.of(row)
    mean = moments.mean_of(lambda v: v, moments.m)
    assert mean == pytest.approx(moments.z, rel=1e-12)
    variance = moments.mean_of(lambda v: (v - mean) ** 2, moments.m)
    assert variance == pytest.approx(moments.variance, rel=1e-9)
    inverse = moments.mean_of(lambda v: 1 / v, moments.m)
    third = moments.mean_of(lambda v: abs(v - mean) ** 3, moments.m)
    assert 1 / mean < inverse
    assert inverse < 1 / mean + variance / mean**3 + third / moments.a**4
    assert inverse < 1 / mean + variance / moments.a**3


@pytest.mark.parametrize("row", ROWS)
def test_lemma_a4_has_z_squared_not_more(row: Row) -> None:
    """E W = (e^{s_i} + (m−1)/m Z_B)² + (m−1)/m² (Σ e^{2s}/w − Z_B²), which is Z² + O(1/m).

    The printed Z² + Σ e^{2s}/w is larger than E W for every m, by what does not vanish.
    """
    moments = Moments.of(row)
    m = moments.m
    second = float((moments.x.square() * moments.w).sum())
    expected = (moments.a + (m - 1) / m * moments.z_b) ** 2 + (m - 1) / m**2 * (second - moments.z_b**2)
    assert moments.mean_of(lambda v: v**2, m - 1) == pytest.approx(expected, rel=1e-12)
    assert expected < moments.z**2 + second


def gradient_limits(row: Row, features: Tensor) -> tuple[Tensor, Tensor]:
    """Theorem 3.2 corrected, without an o(1/m), for ∇s_k = features[k] (batch, parameters).

    |E∇L − ∇L_Z| ≤ |E U| Var V/(Z² a) + Δ,  Δ ≤ (G/m) max|X_j − X_l| Z_B E[1/W]; both.  # (parameters,)
    L_Z is the softmax over the positive and the others, E U = Σ e^{s_k} ∇s_k over them.
    """
    moments = Moments.of(row)
    mean_u = (row.scores.exp()[:, None] * features).sum(0).abs()
    largest = float(features[1:].abs().max())
    inverse_w = moments.mean_of(lambda v: 1 / v**2, moments.m - 1)
    spread = float(moments.x.max() - moments.x.min())
    delta = largest / moments.m * spread * moments.z_b * inverse_w
    first = mean_u * moments.variance / (moments.z**2 * moments.a)
    return first + delta, torch.full_like(mean_u, delta)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("seed", range(4))
def test_theorem_3_2_with_the_lemmas_corrected(row: Row, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient's bias lies within the bound on both sides, for linear scores with random features; and
    it is a bias towards the softmax over the BATCH: the full softmax is not what the appendix approaches."""
    features = torch.randn(row.batch, 3, generator=generator(seed), dtype=torch.float64)
    got = row.expected_gradient("appendix", monkeypatch) @ features
    softmax = row.scores.softmax(0)
    softmax[0] -= 1
    bias = got - softmax @ features
    bound, _ = gradient_limits(row, features)
    assert bias.abs().max() > 1e-6  # there is a bias to bound
    assert (bias.abs() <= bound + 1e-12).all()


@pytest.mark.parametrize("row", ROWS)
def test_lemma_a2_ratio_of_expectations(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """|E[U/V] − E[U] E[1/V]| ≤ Δ_m, by coordinates of the scores."""
    moments = Moments.of(row)
    features = torch.eye(row.batch, dtype=torch.float64)
    ratio = row.expected_gradient("appendix", monkeypatch)
    ratio[0] += 1  # E[U/V]: without −∇s_i
    product = row.scores.exp() * moments.mean_of(lambda v: 1 / v, moments.m)
    _, delta = gradient_limits(row, features)
    assert ((ratio - product).abs() <= delta + 1e-12).all()


def test_the_printed_bound_of_theorem_3_2_fails() -> None:
    """Two other items of equal score, one 99 times rarer: m draws with w = (0.99, 0.01), e^s = 1.

    The rare one's X is 100, so Σ e^{2s}/w = 101 dwarfs Z² ≈ 4. For s_1 = −θ, s_2 = θ at θ = 0 the bias is
    above twice the printed bound however large m is, and below the one with Z² as the denominator.
    """
    a, w, x, slope = 1e-3, (0.01, 0.99), (100.0, 1 / 0.99), (-1.0, 1.0)
    z_b, z, second = 2.0, 2.0 + a, 100.0 + 1 / 0.99
    for m in (1_000, 10_000):
        ratio = 0.0
        for rare in range(m + 1):
            log_chance = (
                math.lgamma(m + 1)
                - math.lgamma(rare + 1)
                - math.lgamma(m - rare + 1)
                + rare * math.log(w[0])
                + (m - rare) * math.log(w[1])
            )
            terms = rare / m * x[0], (m - rare) / m * x[1]
            u = terms[0] * slope[0] + terms[1] * slope[1]
            ratio += math.exp(log_chance) * u / (a + sum(terms))
        bias = ratio  # E U = −1 + 1 = 0, so the softmax's gradient and the first term of the bound are 0
        numerator = 2 / m * (x[0] - x[1]) * z_b
        assert bias > 2 * numerator / (z**2 + second)
        assert bias < numerator / z**2


# ---- popularity correction in the limit -------------------------------------------------------------------


def item_gradient(loss_rows: Tensor, scores: Tensor, items: Tensor, row: int) -> Tensor:
    """The gradient of one row's loss by the scores of the items: its columns summed by item.  # (items,)"""
    (gradient,) = torch.autograd.grad(loss_rows[row], scores)
    return torch.zeros(ITEMS, dtype=torch.float64).index_add(0, items, gradient[row].double())


@pytest.mark.parametrize("estimator", ["SSL-Pop", "corrected"])
def test_gradients_tend_to_the_full_softmax(estimator: str) -> None:
    """A batch of 1,500: within `expected_distance` of the full softmax's gradient over ten items, in total
    variation; SSL without popularity is further away than that, so the test tells them apart."""
    batch, row = 1_500, 0
    items, _ = popularity_items((batch,), LOG_P, generator(5))
    item_scores = torch.randn(ITEMS, generator=generator(6), dtype=torch.float64) * 0.5
    target = item_scores.softmax(0)
    tolerance = expected_distance(target, batch, independent=False)
    target[items[row]] -= 1
    scores = item_scores[items].expand(batch, -1).float().requires_grad_()
    log_p = LOG_P[items].float()
    corrected = (
        losses.in_batch_softmax_loss(scores, None, log_p, reduce="none")
        if estimator == "SSL-Pop"
        else losses.bir_loss(scores, items, log_p, generator(), "corrected", reduce="none")
    )
    assert total_variation(item_gradient(corrected, scores, items, row), target) < tolerance
    plain = losses.in_batch_softmax_loss(scores, None, None, reduce="none")
    assert total_variation(item_gradient(plain, scores, items, row), target) > tolerance


def pushed_down(estimator: str, item_scores: Tensor, positive: int) -> Tensor:
    """How the mean gradient of one row spreads over the items that it pushes down.  # (items,)"""
    batch, total = 96, torch.zeros(ITEMS, dtype=torch.float64)
    for seed in range(100):
        items, _ = popularity_items((batch,), LOG_P, generator(seed))
        items[0] = positive
        scores = item_scores[items].expand(batch, -1).clone().requires_grad_()
        loss = losses.bir_loss(
            scores,
            items,
            LOG_P[items],
            generator(seed),
            estimator,
            reduce="none",  # type: ignore[arg-type]
        )
        total += item_gradient(loss, scores, items, 0)
    total[positive] = 0
    return total / total.sum()


def without(shares: Tensor, item: int) -> Tensor:
    rest = shares.clone()
    rest[item] = 0
    return rest / rest.sum()


def test_what_each_estimator_pushes_down() -> None:
    """Negatives are pushed down in proportion to e^s (corrected), p e^s (appendix), e^{2s} (raw).

    Over 100 batches of 96 the mean is within a tenth in total variation of its own, and the three are more
    than twice that apart.
    """
    item_scores, positive = torch.randn(ITEMS, generator=generator(9), dtype=torch.float64), 3
    expected = {
        "corrected": item_scores.softmax(0),
        "appendix": (item_scores + LOG_P).softmax(0),
        "raw": (2 * item_scores).softmax(0),
    }
    for estimator in expected:
        got = pushed_down(estimator, item_scores, positive)
        for other, shares in expected.items():
            distance = total_variation(got, without(shares, positive))
            assert distance < 0.1 if other == estimator else distance > 0.2
