"""XIR's cache and the streaming frequencies: their invariants, and one step written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rootbeam.core.errors import ConfigError, InputError
from rootbeam.learn import xir
from rootbeam.learn.samplers import in_batch_weights, log_popularity, resample

ITEMS, BATCH, SIZE = 40, 12, 11  # an odd cache: 5 draws from it, 6 from the batch


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(seed: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scores, cache scores, items and their log popularity; half of the items were never counted."""
    items = torch.randint(ITEMS, (BATCH,), generator=generator(seed))
    counts = torch.arange(ITEMS) % 2 * torch.arange(ITEMS)
    scores = torch.randn(BATCH, BATCH, generator=generator(seed + 1), dtype=torch.float64)
    cache_scores = torch.randn(BATCH, SIZE, generator=generator(seed + 2), dtype=torch.float64)
    return scores, cache_scores, items, log_popularity(counts).double()[items]


def test_a_new_cache_is_uniform_and_every_item_occurred_once() -> None:
    cache = xir.start_cache(5, 20_000, generator())
    assert torch.equal(cache.occurrences, torch.ones(5, dtype=torch.int64))
    shares = torch.bincount(cache.items, minlength=5) / 20_000
    assert ((shares - 0.2).abs() < 5 * math.sqrt(0.2 * 0.8 / 20_000)).all()


@pytest.mark.parametrize("draws", ["systematic", "independent"])
def test_the_loss_is_its_definition(draws: str) -> None:
    scores, cache_scores, items, log_p = batch()
    cache = xir.XirCache(torch.randint(ITEMS, (SIZE,), generator=generator(3)), torch.arange(1, ITEMS + 1))
    cache.items[2] = items[5]  # an accidental hit in the cache
    share = 0.2
    got, _ = xir.xir_loss(
        scores,
        cache_scores,
        items,
        log_p,
        cache,
        generator(8),
        share,
        draws,
        "none",  # type: ignore[arg-type]
    )
    source = generator(8)
    sums = []
    for table, log_q, columns, half in (
        (cache_scores, cache.occurrences[cache.items].double().log(), cache.items, 5),
        (scores, log_p, items, 6),
    ):
        hits = items[:, None] == columns[None, :]
        if columns is items:
            hits.fill_diagonal_(False)
        counts = resample(in_batch_weights(table, log_q, hits), half, draws, source)  # type: ignore[arg-type]
        assert (counts.sum(1) == half).all()
        sums.append((counts * table.exp()).sum(1))
    for u in range(BATCH):
        own = math.exp(float(scores[u, u]))
        parts = [math.log(1 + float(total[u]) / own) for total in sums]
        assert float(got[u]) == pytest.approx(share * parts[0] + (1 - share) * parts[1], rel=1e-10)


@pytest.mark.parametrize("draws", ["systematic", "independent"])
def test_invariants_over_many_steps(draws: str) -> None:
    source = generator(4)
    cache = xir.start_cache(ITEMS, SIZE, source)
    for step in range(30):
        scores, cache_scores, items, log_p = batch(seed=step)
        before = cache.items.clone(), cache.occurrences.clone()
        _, following = xir.xir_loss(
            scores,
            cache_scores,
            items,
            log_p,
            cache,
            source,
            0.2,
            draws,  # type: ignore[arg-type]
        )
        assert torch.equal(cache.items, before[0])
        assert torch.equal(cache.occurrences, before[1])
        gained = following.occurrences - cache.occurrences
        seen = torch.cat([cache.items, items])
        assert gained.min() >= 0
        assert gained.sum() == BATCH * SIZE  # |cache| draws from both parts together, in every row
        assert set(gained.nonzero().flatten().tolist()) <= set(seen.tolist())
        assert following.items.shape == (SIZE,)
        assert (gained[following.items] > 0).all()  # only what was drawn in this step
        cache = following


def test_the_next_cache_follows_the_occurrences() -> None:
    drawn = torch.tensor([0, 2, 0, 5])
    cache = xir.XirCache(torch.zeros(30_000, dtype=torch.int64), torch.tensor([9, 1, 50, 2]))
    following = xir._next_cache(cache, drawn, generator())
    shares = torch.bincount(following.items, minlength=4) / 30_000
    expected = torch.tensor([0.0, 3 / 10, 0.0, 7 / 10])
    assert ((shares - expected).abs() < 5 * math.sqrt(0.21 / 30_000)).all()
    assert following.occurrences.tolist() == [9, 3, 50, 7]


@pytest.mark.parametrize("draws", ["systematic", "independent"])
def test_a_world_of_one_item_keeps_its_cache(draws: str) -> None:
    """Every cached item is every row's positive: the cache draws nothing and its loss is 0."""
    cache = xir.start_cache(1, 4, generator())
    cache_scores = torch.zeros(2, 4, requires_grad=True)
    loss, following = xir.xir_loss(
        torch.zeros(2, 2),
        cache_scores,
        torch.zeros(2).long(),
        torch.zeros(2),
        cache,
        generator(),
        1.0,
        draws,  # type: ignore[arg-type]
    )
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(cache_scores.grad, torch.zeros(2, 4))
    assert torch.equal(following.items, cache.items)


def test_items_may_be_int32() -> None:
    scores, cache_scores, items, log_p = batch()
    cache = xir.start_cache(ITEMS, SIZE, generator())
    wide, _ = xir.xir_loss(scores, cache_scores, items, log_p, cache, generator(), 0.5)
    narrow, following = xir.xir_loss(scores, cache_scores, items.int(), log_p, cache, generator(), 0.5)
    torch.testing.assert_close(wide, narrow, rtol=0, atol=0)
    assert following.items.dtype == torch.int64
    state = xir.start_frequencies(7, 5.0, generator())
    wide_state, narrow_state = (xir.update_gaps(state, i, 1) for i in (items, items.int()))
    assert torch.equal(wide_state.gaps, narrow_state.gaps)


def test_both_parts_get_gradients_in_their_share() -> None:
    scores, cache_scores, items, log_p = batch()
    cache = xir.start_cache(ITEMS, SIZE, generator())
    norms = []
    for share in (0.0, 1.0):
        table = cache_scores.clone().requires_grad_()
        loss, _ = xir.xir_loss(scores, table, items, log_p, cache, generator(), share)
        loss.backward()
        assert table.grad is not None
        norms.append(table.grad.norm().item())
    assert norms[0] == 0.0
    assert norms[1] > 0.0


def test_occurrences_stay_exact_where_float32_would_not() -> None:
    cache = xir.XirCache(torch.tensor([0, 1]), torch.tensor([2**24, 1]))
    following = xir._next_cache(cache, torch.tensor([1, 1]), generator())
    assert following.occurrences.tolist() == [2**24 + 1, 2]


def test_one_update_of_the_gaps_by_hand() -> None:
    state = xir.start_frequencies(buckets=1009, initial_gap=8.0, generator=generator(), rate=0.25)
    state = xir.update_gaps(state, torch.tensor([3, 3]), step=4)  # twice in a batch counts once
    after_first = 0.75 * 8.0 + 0.25 * 4
    state = xir.update_gaps(state, torch.tensor([3]), step=6)
    after_second = 0.75 * after_first + 0.25 * 2
    got = xir.log_frequency(state, torch.tensor([3, 500]))
    torch.testing.assert_close(got, torch.tensor([-math.log(after_second), -math.log(8.0)]))


def test_updates_leave_the_old_state_alone() -> None:
    state = xir.start_frequencies(16, 5.0, generator())
    gaps = state.gaps.clone()
    xir.update_gaps(state, torch.arange(4), step=1)
    assert torch.equal(state.gaps, gaps)
    assert state.step == 0


def test_frequencies_of_a_periodic_stream_are_found_despite_collisions() -> None:
    """Items 0 and 5 share a bucket in the first of two hashes, x mod 5, not in the second, where 0 goes to
    (PRIME − 1) mod 5 = 1 and 5 wraps to 4. Item 5 comes every step, item 0 every 16: the longest is its own.
    """
    state = xir.start_frequencies(5, 4.0, generator(), hashes=2, rate=0.1)
    state = replace(state, multipliers=torch.tensor([1, 1]), offsets=torch.tensor([0, xir.PRIME - 1]))
    for step in range(1, 1601):
        state = xir.update_gaps(state, torch.tensor([5] if step % 16 else [0, 5]), step)
    # 100 updates: the start weighs 0.9^100 < 3e-5
    got = xir.log_frequency(state, torch.tensor([0, 5])).exp()
    torch.testing.assert_close(got, torch.tensor([1 / 16, 1.0]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("initial_gap", [1.0, 50.0])
def test_a_moving_average_forgets_where_it_started(initial_gap: float) -> None:
    """After n hits the start weighs (1 − rate)^n: 0.9^100 < 3e-5."""
    state = xir.start_frequencies(1009, initial_gap, generator(), rate=0.1)
    for step in range(4, 404, 4):
        state = xir.update_gaps(state, torch.tensor([7]), step)
    assert float(xir.log_frequency(state, torch.tensor([7]))) == pytest.approx(-math.log(4), abs=50 * 3e-5)


def call_xir(share: float, columns: int, reduce: str = "mean") -> object:
    cache = xir.start_cache(5, 4, generator())
    return xir.xir_loss(
        torch.zeros(2, 2),
        torch.zeros(2, columns),
        torch.tensor([0, 1]),
        torch.zeros(2),
        cache,
        generator(),
        share,
        reduce=reduce,  # type: ignore[arg-type]
    )


BAD_CALLS: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "share": (ConfigError, "cache_weight is 1.5", lambda: call_xir(1.5, 4)),
    "nan share": (ConfigError, "cache_weight is nan", lambda: call_xir(math.nan, 4)),
    "columns": (InputError, r"shape \(2, 3\); \(2, 4\)", lambda: call_xir(0.5, 3)),
    "reduce": (ConfigError, "reduce is 'sum'", lambda: call_xir(0.5, 4, "sum")),
    "cache of one": (ConfigError, "a cache of 1", lambda: xir.start_cache(5, 1, generator())),
    "no items": (ConfigError, "out of 0 items", lambda: xir.start_cache(0, 4, generator())),
    "no buckets": (ConfigError, "buckets=0", lambda: xir.start_frequencies(0, 5.0, generator())),
    "gap below one": (ConfigError, "initial_gap=0.5", lambda: xir.start_frequencies(4, 0.5, generator())),
    "rate": (ConfigError, "rate=1.0", lambda: xir.start_frequencies(4, 5.0, generator(), rate=1.0)),
    "step": (
        InputError,
        "step 0 does not come after step 0",
        lambda: xir.update_gaps(xir.start_frequencies(4, 5.0, generator()), torch.tensor([1]), 0),
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_say_what_was_given(name: str) -> None:
    error, message, call = BAD_CALLS[name]
    with pytest.raises(error, match=message):
        call()
