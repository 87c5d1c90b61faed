"""Exact search and filters: k items whenever k exist, ties by item id, nothing forbidden ever returned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rootbeam import metrics
from rootbeam.core.errors import ConfigError
from rootbeam.core.types import Histories, Ragged
from rootbeam.data.history import from_items
from rootbeam.search.exact import ExactRetriever, top_k
from rootbeam.search.filters import item_offset


@dataclass(frozen=True)
class TableScorer:
    """Scores written in a table, a row a user; the user is the one item of the history."""

    table: torch.Tensor  # (users, items)

    @property
    def n_items(self) -> int:
        return self.table.shape[1]

    def encode(self, histories: Histories) -> torch.Tensor:
        return torch.from_numpy(histories.last[:, -1].astype(np.int64))

    def score(self, query: torch.Tensor, level: int, nodes: torch.Tensor | None) -> torch.Tensor:
        scores = self.table[query].clone()
        return scores if nodes is None else scores[:, nodes]


def users(count: int) -> Histories:
    return from_items([[user] for user in range(count)], 2)


tables = st.integers(1, 5).flatmap(
    lambda rows: st.integers(1, 9).flatmap(
        lambda columns: st.lists(
            st.lists(st.sampled_from([0.0, 1.0, 2.0, -1.0]), min_size=columns, max_size=columns),
            min_size=rows,
            max_size=rows,
        )
    )
)


@settings(deadline=None, max_examples=200)
@given(tables, st.integers(1, 12), st.data())
def test_equals_a_stable_sort_of_all_scores_under_every_filter(table, k, data):
    scores = np.array(table)
    n_users, n_items = scores.shape
    some = st.lists(st.integers(0, n_items - 1), max_size=n_items, unique=True)
    excluded = [data.draw(some) for _ in range(n_users)]
    deny = data.draw(some)
    allow = data.draw(st.none() | some)
    expected = scores.copy()
    for user, items in enumerate(excluded):
        expected[user, items] = -np.inf
    expected[:, deny] = -np.inf
    if allow is not None:
        expected[:, [i for i in range(n_items) if i not in allow]] = -np.inf
    found = ExactRetriever(TableScorer(torch.tensor(table))).retrieve(
        users(n_users),
        k,
        offset=item_offset(None, None, np.array(deny, dtype=np.int32), n_items),
        exclude=Ragged.from_rows(excluded),
        allow=None if allow is None else np.array(allow, dtype=np.int32),
    )
    np.testing.assert_array_equal(found.items, metrics.rank_items(expected, k))


def test_scale_and_prior_add_up():
    table = torch.tensor([[1.0, 2.0, 3.0]])
    prior = np.array([0.5, 0.0, -9.0], dtype=np.float32)
    found = ExactRetriever(TableScorer(table), scale=2.0).retrieve(users(1), 3, offset=prior)
    assert found.items.tolist() == [[1, 0, 2]]
    assert found.scores.tolist() == [[4.0, 2.5, -3.0]]


def test_unavailable_items_never_come_back_even_when_k_is_the_catalogue():
    available = np.array([True, False, True])
    offset = item_offset(None, available, None, 3)
    found = ExactRetriever(TableScorer(torch.tensor([[1.0, 5.0, 2.0]]))).retrieve(users(1), 3, offset=offset)
    assert found.items.tolist() == [[2, 0, -1]]
    assert found.scores[0, 2] == -np.inf


def test_no_user_and_an_empty_allow_list_give_empty_answers():
    retriever = ExactRetriever(TableScorer(torch.zeros(1, 3)))
    assert retriever.retrieve(from_items([], 2), 2).items.shape == (0, 2)
    assert retriever.retrieve(users(1), 2, allow=np.array([], dtype=np.int32)).items.tolist() == [[-1, -1]]


def test_k_below_one_is_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        ExactRetriever(TableScorer(torch.zeros(1, 3))).retrieve(users(1), 0)


def test_a_tie_across_the_cut_goes_to_the_lower_item():
    scores = torch.zeros(3, 1000)
    scores[1, 700] = 1.0
    value, column = top_k(scores, 4)
    assert column.tolist() == [[0, 1, 2, 3], [700, 0, 1, 2], [0, 1, 2, 3]]
    assert value[1].tolist() == [1.0, 0.0, 0.0, 0.0]
