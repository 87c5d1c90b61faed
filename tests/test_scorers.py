"""The contract of a Scorer, which every implementation passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rootbeam.core.config import SequenceConfig
from rootbeam.core.errors import ConfigError
from rootbeam.core.types import ITEMS, Scorer
from rootbeam.data.history import from_items
from rootbeam.learn.neighbours import NeighbourScorer, prune
from rootbeam.learn.scorers import ConstantScorer, MeanScorer, SequenceScorer
from rootbeam.learn.sequence import SequenceEncoder

N = 7
HISTORIES = from_items([[0, 3, 5], [6], [], [1, 1, 2, 4, 0, 3]], 4)


def neighbours(decay: float) -> NeighbourScorer:
    weights = np.random.default_rng(0).normal(size=(N, N)).astype(np.float32)
    np.fill_diagonal(weights, 0.0)
    return NeighbourScorer(prune(weights, 4), decay)


def sequence() -> SequenceScorer:
    shape = SequenceConfig(dimension=8, blocks=2, heads=2, length=5)
    return SequenceScorer(SequenceEncoder(N, shape, torch.Generator().manual_seed(0)))


def mean() -> MeanScorer:
    generator = torch.Generator().manual_seed(1)
    return MeanScorer(torch.randn(N, 5, generator=generator), torch.randn(N, 5, generator=generator))


SCORERS = {
    "constant": lambda: ConstantScorer(N),
    "neighbours": lambda: neighbours(1.0),
    "neighbours that forget": lambda: neighbours(0.8),
    "sequence": sequence,
    "mean of history": mean,
}


@pytest.fixture(params=SCORERS)
def scorer(request) -> Scorer:
    return SCORERS[request.param]()


def all_scores(scorer: Scorer, rows: list[int]) -> torch.Tensor:
    return scorer.score(scorer.encode(HISTORIES.take(np.array(rows))), ITEMS, None)


def test_it_knows_its_items_and_scores_everyone_finitely(scorer):
    assert scorer.n_items == N
    assert len(scorer.encode(HISTORIES)) == len(HISTORIES)
    scores = all_scores(scorer, [0, 1, 2, 3])
    assert scores.shape == (4, N)
    assert torch.isfinite(scores).all()


def test_chosen_nodes_have_the_scores_they_have_among_all(scorer):
    query, everything = scorer.encode(HISTORIES), all_scores(scorer, [0, 1, 2, 3])
    same = torch.tensor([5, 0, 3])
    torch.testing.assert_close(scorer.score(query, ITEMS, same), everything[:, same])
    own = torch.tensor([[0, 1], [2, 3], [4, 5], [6, 0]])
    torch.testing.assert_close(scorer.score(query, ITEMS, own), everything.gather(1, own))


def test_a_user_alone_scores_as_in_a_batch(scorer):
    together = all_scores(scorer, [0, 1, 2, 3])
    for row in range(4):
        torch.testing.assert_close(all_scores(scorer, [row])[0], together[row], rtol=1e-5, atol=1e-6)


@torch.inference_mode()
def test_the_tensor_is_the_callers_own(scorer):
    query = scorer.encode(HISTORIES)
    first = scorer.score(query, ITEMS, None)
    expected = first.clone()
    first.fill_(-1e9)
    torch.testing.assert_close(scorer.score(query, ITEMS, None), expected)


def test_a_level_it_does_not_know_is_refused(scorer):
    with pytest.raises(ConfigError, match="level"):
        scorer.score(scorer.encode(HISTORIES), 3, None)


def test_what_lies_beyond_the_encoders_length_does_not_matter():
    long, short = from_items([[6, 0, 1, 2, 3, 4]], 6), from_items([[5, 0, 1, 2, 3, 4]], 6)
    scorer = sequence()  # reads five items
    torch.testing.assert_close(
        scorer.score(scorer.encode(long), ITEMS, None), scorer.score(scorer.encode(short), ITEMS, None)
    )


def test_order_matters_to_the_sequence_and_not_to_the_mean():
    there, back = from_items([[0, 1, 2]], 3), from_items([[2, 1, 0]], 3)
    for scorer, differs in ((sequence(), True), (mean(), False)):
        scores = [scorer.score(scorer.encode(h), ITEMS, None) for h in (there, back)]
        assert (not torch.allclose(*scores, atol=1e-6)) is differs


def test_the_encoder_is_causal():
    """The vector at a position depends on nothing that comes after it."""
    encoder = sequence().encoder.eval()
    first, second = torch.tensor([[-1, 0, 1, 2, 3]]), torch.tensor([[-1, 0, 1, 6, 5]])
    with torch.inference_mode():
        torch.testing.assert_close(encoder(first)[:, :3], encoder(second)[:, :3])
        assert not torch.allclose(encoder(first)[:, 3:], encoder(second)[:, 3:])


def test_padding_changes_nothing():
    """Positions count from the newest item, so padding in front leaves every real position as it is."""
    encoder = sequence().encoder.eval()
    with torch.inference_mode():
        bare = encoder(torch.tensor([[0, 1, 2]]))
        padded = encoder(torch.tensor([[-1, -1, 0, 1, 2]]))
    torch.testing.assert_close(padded[:, 2:], bare)
