"""Every loss against its formula written out with `math`, row by row, in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rootbeam.core.errors import ConfigError, InputError, RootbeamError
from rootbeam.core.types import Ragged
from rootbeam.learn import losses
from rootbeam.learn.samplers import in_batch_weights, log_popularity, resample

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
ESTIMATORS = ("raw", "appendix", "corrected")
DRAWS = ("systematic", "independent")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def rows(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Batch:
    """Six rows over five items; columns 0 and 3 hold the same item, and so do 1 and 5."""

    items = torch.tensor([4, 2, 0, 4, 1, 2])
    counts = torch.tensor([7, 1, 12, 0, 3])  # item 3 was never trained on
    log_p = log_popularity(counts).double()[items]
    scores = normal(6, 6, seed=1)
    size = 6


def test_full_softmax() -> None:
    scores, targets = normal(4, 5), torch.tensor([0, 4, 2, 2])
    expected = [
        -float(scores[u, t]) + math.log(sum(math.exp(float(scores[u, j])) for j in range(5)))
        for u, t in enumerate(targets.tolist())
    ]
    torch.testing.assert_close(losses.full_softmax_loss(scores, targets, "none"), rows(expected), **CLOSE)
    torch.testing.assert_close(
        losses.full_softmax_loss(scores, targets),
        torch.tensor(sum(expected) / 4, dtype=torch.float64),
        **CLOSE,
    )


@pytest.mark.parametrize("shared_proposal", [True, False])
def test_sampled_softmax(shared_proposal: bool) -> None:
    positive, negative = normal(4), normal(4, 3, seed=1)
    log_q = normal(3, seed=2) if shared_proposal else normal(4, 3, seed=2)
    collisions = torch.tensor([[0, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 1]], dtype=torch.bool)
    expected = []
    for u in range(4):
        denominator = math.exp(float(positive[u]))
        for j in range(3):
            if not collisions[u, j]:
                q = math.exp(float(log_q[j] if shared_proposal else log_q[u, j]))
                denominator += math.exp(float(negative[u, j])) / (3 * q)
        expected.append(-float(positive[u]) + math.log(denominator))
    got = losses.sampled_softmax_loss(positive, negative, log_q, collisions, "none")
    torch.testing.assert_close(got, rows(expected), **CLOSE)
    assert float(got[2]) == 0.0  # nothing but the positive is left


def test_sampled_softmax_without_collisions_counts_every_negative() -> None:
    positive, negative = normal(2), normal(2, 3, seed=1)
    uniform = torch.full((3,), -math.log(3), dtype=torch.float64)  # M q = 1: the plain softmax over both
    expected = losses.full_softmax_loss(torch.cat([positive[:, None], negative], 1), torch.zeros(2).long())
    torch.testing.assert_close(losses.sampled_softmax_loss(positive, negative, uniform), expected, **CLOSE)


@pytest.mark.parametrize("extra", [0, 3])
def test_mixed_negatives(extra: int) -> None:
    log_p = log_popularity(Batch.counts).double()
    extra_items = torch.tensor([3, 4, 3])[:extra]
    extra_scores = normal(6, 3, seed=5)[:, :extra]
    columns = Batch.items.tolist() + extra_items.tolist()
    all_scores = torch.cat([Batch.scores, extra_scores], 1)
    expected = []
    for u in range(6):
        denominator = math.exp(float(Batch.scores[u, u]))
        for j, item in enumerate(columns):
            if item != columns[u]:
                expected_count = 5 * math.exp(float(log_p[item])) + extra / 5  # N q_j
                denominator += math.exp(float(all_scores[u, j])) / expected_count
        expected.append(-float(Batch.scores[u, u]) + math.log(denominator))
    got = losses.mixed_negative_loss(
        Batch.scores, Batch.items, extra_scores, extra_items, log_p, n_items=5, reduce="none"
    )
    torch.testing.assert_close(got, rows(expected), **CLOSE)


def test_mixed_negatives_of_a_single_row_are_the_uniform_ones_alone() -> None:
    log_p = log_popularity(Batch.counts).double()
    extra = losses.mixed_negative_loss(
        normal(1, 1), torch.tensor([0]), normal(1, 2, seed=3), torch.tensor([1, 2]), log_p, n_items=5
    )
    expected = losses.sampled_softmax_loss(
        normal(1, 1)[0], normal(1, 2, seed=3), torch.full((2,), -math.log(5), dtype=torch.float64)
    )
    torch.testing.assert_close(extra, expected, **CLOSE)


def in_batch_formula(log_p: list[float], hidden: Callable[[int, int], bool]) -> Tensor:
    expected = []
    for u in range(Batch.size):
        terms = [
            math.exp(float(Batch.scores[u, j]) - log_p[j])
            for j in range(Batch.size)
            if j == u or not hidden(u, j)
        ]
        expected.append(-(float(Batch.scores[u, u]) - log_p[u]) + math.log(sum(terms)))
    return rows(expected)


def same_item(u: int, j: int) -> bool:
    return bool(Batch.items[u] == Batch.items[j])


@pytest.mark.parametrize("popular", [True, False], ids=["SSL-Pop", "SSL"])
@pytest.mark.parametrize("with_items", [True, False])
@pytest.mark.parametrize("with_mask", [True, False])
def test_in_batch_softmax(popular: bool, with_items: bool, with_mask: bool) -> None:
    mask = normal(6, 6, seed=9) > 0.5
    mask[0, 0] = True  # a known positive of its own row: the diagonal stays all the same

    def hidden(u: int, j: int) -> bool:
        return (with_items and same_item(u, j)) or (with_mask and bool(mask[u, j]))

    got = losses.in_batch_softmax_loss(
        Batch.scores,
        Batch.items if with_items else None,
        Batch.log_p if popular else None,
        mask if with_mask else None,
        "none",
    )
    log_p = Batch.log_p.tolist() if popular else [0.0] * 6
    torch.testing.assert_close(got, in_batch_formula(log_p, hidden), **CLOSE)


@pytest.mark.parametrize("popular", [True, False])
def test_in_batch_gradient_is_autograds(popular: bool) -> None:
    log_p = Batch.log_p if popular else None
    scores = Batch.scores.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda s: losses.in_batch_softmax_loss(s, Batch.items, log_p, reduce="none"), scores
    )


def bir_formula(scores: Tensor, log_p: Tensor, counts: Tensor, w: Tensor, estimator: str) -> Tensor:
    """The definition term by term; counts and w are constants, so autograd gives the reference gradient."""
    batch = len(scores)
    expected = []
    for u in range(batch):
        denominator = scores[u, u].exp()
        for j in range(batch):
            count = float(counts[u, j])
            if count == 0:
                continue
            k = 1.0
            if estimator != "raw":
                k = 1 / (batch * float(w[u, j]))
            if estimator == "corrected":
                k /= (batch - 1) * math.exp(float(log_p[j]))
            denominator = denominator + count * k * scores[u, j].exp()
        expected.append(denominator.log() - scores[u, u])
    return torch.stack(expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("with_items", [True, False])
@pytest.mark.parametrize("with_mask", [True, False])
def test_bir_is_its_definition(estimator: str, draws: str, with_items: bool, with_mask: bool) -> None:
    mask = normal(6, 6, seed=9) > 0.8
    excluded = torch.zeros(6, 6, dtype=torch.bool)
    for u in range(6):
        for j in range(6):
            own = u == j
            excluded[u, j] = (
                estimator != "raw"
                if own
                else (with_items and same_item(u, j)) or (with_mask and bool(mask[u, j]))
            )
    w = in_batch_weights(Batch.scores, Batch.log_p, excluded)
    counts = resample(w, 6, draws, generator(7))
    assert counts.sum() == 36
    reference = Batch.scores.clone().requires_grad_()
    expected = bir_formula(reference, Batch.log_p, counts, w, estimator)
    upstream = normal(6, seed=11)
    (expected * upstream).sum().backward()

    scores = Batch.scores.clone().requires_grad_()
    log_p = Batch.log_p.clone().requires_grad_()
    got = losses.bir_loss(
        scores,
        Batch.items if with_items else None,
        log_p,
        generator(7),
        estimator,
        draws,
        mask if with_mask else None,
        "none",
    )
    (got * upstream).sum().backward()
    torch.testing.assert_close(got, expected, **CLOSE)
    torch.testing.assert_close(scores.grad, reference.grad, **CLOSE)
    assert log_p.grad is None  # the weights carry no gradient


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("draws", DRAWS)
def test_leading_dimensions_are_batches_on_their_own(estimator: str, draws: str) -> None:
    items = torch.stack([Batch.items, Batch.items.flip(0)])
    log_p = torch.stack([Batch.log_p, Batch.log_p.flip(0)])
    mask = normal(2, 6, 6, seed=9) > 0.8
    excluded = items[:, :, None] == items[:, None, :]
    excluded |= mask
    excluded[:, range(6), range(6)] = estimator != "raw"
    table = normal(2, 6, 6, seed=2)
    w = torch.stack([in_batch_weights(table[b], log_p[b], excluded[b]) for b in range(2)])
    counts = resample(w, 6, draws, generator(7))
    reference, scores = table.clone().requires_grad_(), table.clone().requires_grad_()
    expected = torch.stack(
        [bir_formula(reference[b], log_p[b], counts[b], w[b], estimator) for b in range(2)]
    )
    got = losses.bir_loss(scores, items, log_p, generator(7), estimator, draws, mask, "none")
    torch.testing.assert_close(got, expected, **CLOSE)
    (got.sum() + expected.sum()).backward()
    torch.testing.assert_close(scores.grad, reference.grad, **CLOSE)
    plain = [losses.in_batch_softmax_loss(table[b], items[b], log_p[b], mask[b], "none") for b in range(2)]
    both = losses.in_batch_softmax_loss(table, items, log_p, mask, "none")
    torch.testing.assert_close(both, torch.stack(plain), **CLOSE)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_bir_in_float32_is_close_to_double(estimator: str) -> None:
    """The uniforms differ between dtypes, so the draws are pinned by making every weight equal."""
    log_p = torch.zeros(8)
    scores = torch.full((8, 8), 2.0)
    single = losses.bir_loss(scores, None, log_p, generator(), estimator)
    double = losses.bir_loss(scores.double(), None, log_p.double(), generator(), estimator)
    assert single.dtype == torch.float32
    assert float(single) == pytest.approx(float(double), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scores_are_counted_in_float32(dtype: torch.dtype) -> None:
    scores = normal(600, 600).to(dtype).requires_grad_()
    loss = losses.bir_loss(scores, None, torch.zeros(600), generator())
    loss.backward()
    assert loss.dtype == torch.float32
    assert scores.grad is not None
    assert scores.grad.dtype == dtype


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3, 1e4])
def test_extreme_scores_give_finite_losses_and_gradients(estimator: str, draws: str, scale: float) -> None:
    scores = (normal(32, 32).float() * scale).requires_grad_()
    log_p = log_popularity(torch.tensor([0, 1, 10**9, 5]))[torch.arange(32) % 4]
    loss = losses.bir_loss(scores, torch.arange(32) % 4, log_p, generator(), estimator, draws)
    loss.backward()
    assert torch.isfinite(loss)
    assert loss >= 0
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_of_a_row_cancel(estimator: str) -> None:
    """Adding a constant to a row changes no softmax, so its gradient sums to zero."""
    scores = Batch.scores.clone().requires_grad_()
    losses.bir_loss(scores, Batch.items, Batch.log_p, generator(), estimator).backward()
    assert scores.grad is not None
    torch.testing.assert_close(scores.grad.sum(1), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("estimator", "expected"), [("raw", math.log(2)), ("appendix", 0.0), ("corrected", 0.0)]
)
@pytest.mark.parametrize("draws", DRAWS)
def test_a_batch_of_one(estimator: str, expected: float, draws: str) -> None:
    """raw draws the only column once: e^s / (e^s + e^s). The others have nothing to draw."""
    scores = torch.tensor([[3.0]], requires_grad=True)
    loss = losses.bir_loss(scores, torch.tensor([0]), torch.zeros(1), generator(), estimator, draws)
    loss.backward()
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert scores.grad is not None
    assert scores.grad.item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("estimator", ["appendix", "corrected"])
@pytest.mark.parametrize("draws", DRAWS)
def test_a_batch_of_one_item_has_no_negatives(estimator: str, draws: str) -> None:
    scores = normal(4, 4).requires_grad_()
    loss = losses.bir_loss(
        scores, torch.full((4,), 3), torch.zeros(4).double(), generator(), estimator, draws
    )
    loss.backward()
    assert loss.item() == 0.0
    torch.testing.assert_close(scores.grad, torch.zeros_like(scores), rtol=0, atol=0)


def test_duplicates_of_the_positive_are_never_pushed_down() -> None:
    """Column 3 holds row 0's item: its gradient in row 0 is 0 with items given, positive without."""
    for items, expected_zero in ((Batch.items, True), (None, False)):
        scores = Batch.scores.clone().requires_grad_()
        losses.in_batch_softmax_loss(scores, items, Batch.log_p).backward()
        assert scores.grad is not None
        assert (float(scores.grad[0, 3]) == 0.0) == expected_zero


def test_accidental_hits_by_value() -> None:
    positives = Ragged.from_rows([[0, 4], [], [1, 2, 9]])
    users = torch.tensor([0, 2, 1, 1, 0, 2])
    by_item = [(0, 3), (3, 0), (1, 5), (5, 1)]
    # items of the columns: 4 2 0 4 1 2; user 0 knows 0 and 4, user 2 knows 1, 2 and 9 (not in the batch)
    by_user = [(0, 2), (0, 3), (4, 0), (4, 2), (4, 3), (1, 4), (1, 5), (5, 1), (5, 4)]
    for arguments, pairs in (((), by_item), ((users, positives), by_item + by_user)):
        expected = torch.zeros(6, 6, dtype=torch.bool)
        for pair in pairs:
            expected[pair] = True
        assert torch.equal(losses.accidental_hits(Batch.items, *arguments), expected)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_accidental_hits_is_its_definition(data: st.DataObject) -> None:
    items = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))
    users = data.draw(st.lists(st.integers(0, 2), min_size=len(items), max_size=len(items)))
    known = [sorted(data.draw(st.sets(st.integers(0, 8), max_size=5))) for _ in range(3)]
    got = losses.accidental_hits(torch.tensor(items), torch.tensor(users), Ragged.from_rows(known))
    for u in range(len(items)):
        for j in range(len(items)):
            assert bool(got[u, j]) == (u != j and (items[u] == items[j] or items[j] in known[users[u]]))


def test_bpr() -> None:
    positive, negative = normal(3), normal(3, 2, seed=1)

    def log_loss(u: int, j: int) -> float:
        return -math.log(1 / (1 + math.exp(-float(positive[u] - negative[u, j]))))

    torch.testing.assert_close(
        losses.bpr_loss(positive, negative, "none"),
        rows([(log_loss(u, 0) + log_loss(u, 1)) / 2 for u in range(3)]),
        **CLOSE,
    )
    torch.testing.assert_close(
        losses.bpr_loss(positive, negative[:, 0], "none"), rows([log_loss(u, 0) for u in range(3)]), **CLOSE
    )


def test_ccf_is_a_choice_among_what_was_offered() -> None:
    positive, offered = normal(3), normal(3, 4, seed=1)
    collisions = torch.zeros(3, 4, dtype=torch.bool)
    collisions[1, 2] = True
    expected = []
    for u in range(3):
        shown = [float(positive[u])] + [float(offered[u, j]) for j in range(4) if not collisions[u, j]]
        expected.append(math.log(sum(math.exp(s) for s in shown)) - float(positive[u]))
    torch.testing.assert_close(
        losses.ccf_loss(positive, offered, collisions, "none"), rows(expected), **CLOSE
    )
    assert float(losses.ccf_loss(torch.zeros(1), torch.zeros(1, 9))) == pytest.approx(math.log(10))


def test_binary() -> None:
    positive, negative = normal(3), normal(3, 2, seed=1)
    expected = []
    for u in range(3):
        hit = 1 / (1 + math.exp(-float(positive[u])))
        misses = [1 - 1 / (1 + math.exp(-float(negative[u, j]))) for j in range(2)]
        expected.append(-math.log(hit) - (math.log(misses[0]) + math.log(misses[1])) / 2)
    torch.testing.assert_close(losses.binary_loss(positive, negative, "none"), rows(expected), **CLOSE)


def test_mean_is_the_mean_of_the_rows() -> None:
    each = losses.bir_loss(Batch.scores, Batch.items, Batch.log_p, generator(), reduce="none")
    mean = losses.bir_loss(Batch.scores, Batch.items, Batch.log_p, generator())
    assert each.shape == (6,)
    torch.testing.assert_close(mean, each.mean(), **CLOSE)


def test_check_finite_names_the_loss() -> None:
    loss = torch.tensor(1.5)
    assert losses.check_finite(loss, "bir_loss") is loss
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(RootbeamError, match=r"bir_loss is .*not a finite number"):
            losses.check_finite(torch.tensor(bad), "bir_loss")


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("draws", DRAWS)
def test_a_nan_score_reaches_the_loss(estimator: str, draws: str) -> None:
    scores = Batch.scores.clone()
    scores[2, 1] = math.nan
    loss = losses.bir_loss(scores, None, Batch.log_p, generator(), estimator, draws)
    with pytest.raises(RootbeamError):
        losses.check_finite(loss, "bir_loss")


SQUARE = torch.zeros(2, 2)
BAD_CALLS: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "estimator": (
        ConfigError,
        "estimator is 'mean'",
        lambda: losses.bir_loss(SQUARE, None, torch.zeros(2), generator(), "mean"),  # type: ignore[arg-type]
    ),
    "draws": (
        ConfigError,
        "draws is 'sorted'",
        lambda: losses.bir_loss(SQUARE, None, torch.zeros(2), generator(), draws="sorted"),  # type: ignore[arg-type]
    ),
    "reduce": (
        ConfigError,
        "reduce is 'sum'",
        lambda: losses.bpr_loss(torch.zeros(2), torch.zeros(2), "sum"),  # type: ignore[arg-type]
    ),
    "not square": (
        InputError,
        r"shape \(2, 3\)",
        lambda: losses.bir_loss(torch.zeros(2, 3), None, torch.zeros(3), generator()),
    ),
    "no rows": (
        InputError,
        r"shape \(0, 0\)",
        lambda: losses.in_batch_softmax_loss(torch.zeros(0, 0), None),
    ),
    "one dimension": (
        InputError,
        r"shape \(4,\)",
        lambda: losses.in_batch_softmax_loss(torch.zeros(4), None),
    ),
    "users without positives": (
        InputError,
        "only one of users and positives",
        lambda: losses.accidental_hits(torch.zeros(2).long(), users=torch.zeros(2).long()),
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_say_what_was_given(name: str) -> None:
    error, message, call = BAD_CALLS[name]
    with pytest.raises(error, match=message):
        call()
