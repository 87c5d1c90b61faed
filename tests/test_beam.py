"""Beam search against exact search: equal where it must be, k items whenever k exist, nothing forbidden."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rootbeam.core.errors import ConfigError, InputError
from rootbeam.core.tree import Tree, level_sizes
from rootbeam.core.types import ITEMS, Histories, Ragged
from rootbeam.data.history import from_items
from rootbeam.index.build import kmeans_tree, random_tree
from rootbeam.learn.scorers import ConstantScorer
from rootbeam.search import beam as beam_module
from rootbeam.search.beam import TreeRetriever, prefers_exact
from rootbeam.search.exact import ExactRetriever


@dataclass(frozen=True)
class MaximumScorer:
    """Scores of items in a table; an inner node has the best score of the leaves below it.

    A row a user, who is the one item of the history. With such nodes a beam of k or more finds the k best.
    """

    table: torch.Tensor  # (users, items)
    tree: Tree
    calls: list[tuple[int, int]] = field(default_factory=list)  # (level, nodes for a user) of every call

    @property
    def n_items(self) -> int:
        return self.table.shape[1]

    def encode(self, histories: Histories) -> torch.Tensor:
        return torch.from_numpy(histories.last[:, -1].astype(np.int64))

    def score(self, query: torch.Tensor, level: int, nodes: torch.Tensor | None) -> torch.Tensor:
        scores = self.table[query]
        if level != ITEMS:
            assert 1 <= level < self.tree.height, "inner nodes are those between the root and the leaves"
            scores = torch.from_numpy(
                np.stack([self.tree.node_offsets(row)[level] for row in scores.numpy()])
            )
        self.calls.append((level, scores.shape[1] if nodes is None else nodes.shape[-1]))
        if nodes is None:
            return scores.clone()
        return scores[:, nodes] if nodes.dim() == 1 else scores.gather(1, nodes)


def users(count: int) -> Histories:
    return from_items([[user] for user in range(count)], 2)


@dataclass(frozen=True)
class World:
    """A table of different scores for each user, over a tree."""

    tree: Tree
    scorer: MaximumScorer
    n_users: int

    @property
    def everyone(self) -> Histories:
        return users(self.n_users)


def world(n: int, branch: int, seed: int, n_users: int = 3) -> World:
    rng = np.random.default_rng(seed)
    tree = random_tree(n, branch, seed)
    table = torch.from_numpy(np.stack([rng.permutation(n) for _ in range(n_users)]).astype(np.float32))
    return World(tree, MaximumScorer(table, tree), n_users)


worlds = st.builds(world, st.integers(1, 70), st.integers(2, 5), st.integers(0, 999))


def draw_filters(data: st.DataObject, n: int, n_users: int) -> dict:
    """Items that nobody may have, that single users may not have, and a list of the only ones allowed."""
    some = st.lists(st.integers(0, n - 1), max_size=n)
    prior = data.draw(st.sampled_from([0.0, 0.5]))
    offset = np.full(n, prior, dtype=np.float32)
    offset[data.draw(some)] = -np.inf
    allow = data.draw(st.none() | some)
    return {
        "offset": data.draw(st.sampled_from([None, offset])),
        "exclude": data.draw(
            st.none() | st.builds(Ragged.from_rows, st.lists(some, min_size=n_users, max_size=n_users))
        ),
        "allow": None if allow is None else np.array(allow, dtype=np.int32),
    }


def may_have(filters: dict, n: int, user: int) -> set[int]:
    items = set(range(n))
    if filters["offset"] is not None:
        items -= set(np.flatnonzero(filters["offset"] == -np.inf))
    if filters["exclude"] is not None:
        items -= set(filters["exclude"].row(user).tolist())
    return items if filters["allow"] is None else items & set(filters["allow"].tolist())


# --- the properties ---


@settings(deadline=None, max_examples=200)
@given(worlds, st.integers(1, 9), st.integers(0, 9))
def test_a_beam_of_k_over_the_best_leaf_of_every_node_is_exact(world, k, more):
    found = TreeRetriever(world.scorer, world.tree, k + more).retrieve(world.everyone, k)
    truth = ExactRetriever(world.scorer).retrieve(world.everyone, k)
    np.testing.assert_array_equal(found.items, truth.items)
    np.testing.assert_array_equal(found.scores, truth.scores)


@settings(deadline=None, max_examples=300)
@given(worlds, st.integers(1, 12), st.integers(1, 12), st.data())
def test_k_allowed_items_come_back_whenever_k_exist(world, k, beam, data):
    n = world.tree.n_items
    filters = draw_filters(data, n, world.n_users)
    found = TreeRetriever(world.scorer, world.tree, beam, scale=2.0).retrieve(world.everyone, k, **filters)
    assert found.items.shape == found.scores.shape == (world.n_users, k)
    prior = np.zeros(n) if filters["offset"] is None else filters["offset"]
    for user in range(world.n_users):
        allowed = may_have(filters, n, user)
        given_items = [item for item in found.items[user] if item >= 0]
        assert len(given_items) == len(set(given_items)) == min(k, len(allowed))
        assert set(given_items) <= allowed
        expected = [2.0 * float(world.scorer.table[user, item]) + prior[item] for item in given_items]
        assert found.scores[user].tolist() == expected + [-np.inf] * (k - len(given_items))
        assert expected == sorted(expected, reverse=True)
        assert found.items[user].tolist() == given_items + [-1] * (k - len(given_items))


@settings(deadline=None, max_examples=200)
@given(worlds, st.integers(1, 12), st.data())
def test_filters_that_take_what_scores_low_leave_the_beam_exact(world, k, data):
    """The best leaf of a node is then one that may be returned, wherever there is one."""
    n = world.tree.n_items
    filters = draw_filters(data, n, world.n_users)
    table = world.scorer.table.clone()
    for user in range(world.n_users):
        table[user, [item for item in range(n) if item not in may_have(filters, n, user)]] -= 1000.0
    scorer = MaximumScorer(table, world.tree)
    found = TreeRetriever(scorer, world.tree, k).retrieve(world.everyone, k, **filters)
    truth = ExactRetriever(scorer).retrieve(world.everyone, k, **filters)
    np.testing.assert_array_equal(found.items, truth.items)
    np.testing.assert_array_equal(found.scores, truth.scores)


@settings(deadline=None, max_examples=150)
@given(worlds, st.integers(1, 12), st.data())
def test_a_beam_that_holds_the_catalogue_is_exact_search(world, k, data):
    """Whatever the scores, the priors and the filters; ties by item too."""
    n = world.tree.n_items
    filters = draw_filters(data, n, world.n_users)
    if filters["offset"] is not None:
        filters["offset"] += np.array(
            data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.float32
        )
    scorer = MaximumScorer(world.scorer.table % 3, world.tree)
    found = TreeRetriever(scorer, world.tree, n).retrieve(world.everyone, k, **filters)
    truth = ExactRetriever(scorer).retrieve(world.everyone, k, **filters)
    np.testing.assert_array_equal(found.items, truth.items)
    np.testing.assert_array_equal(found.scores, truth.scores)


@settings(deadline=None, max_examples=150)
@given(worlds, st.integers(1, 6), st.data())
def test_nodes_scored_is_what_the_scorer_is_asked_for(world, k, data):
    inner = max(world.tree.height - 1, 0)
    widths = st.lists(st.integers(1, 9), min_size=inner, max_size=inner).map(tuple)
    beam = data.draw(st.integers(1, 9) | widths)
    retriever = TreeRetriever(world.scorer, world.tree, beam)
    retriever.retrieve(world.everyone, k)
    asked = list(world.scorer.calls)
    world.scorer.calls.clear()
    # Children beyond the last node are asked for too, and not counted: fewer than B at every level.
    assert 0 <= sum(nodes for _, nodes in asked) - retriever.nodes_scored(k) < world.tree.branch * len(asked)
    levels = [world.tree.height if level == ITEMS else level for level, _ in asked]
    assert levels == sorted(set(levels))
    assert levels[-1] == world.tree.height


# --- examples by hand ---


def small(
    order: list[int], table: list[list[float]], beam: int | tuple[int, ...], **more: float
) -> TreeRetriever:
    tree = Tree(np.array(order), 2)
    return TreeRetriever(MaximumScorer(torch.tensor(table), tree), tree, beam, **more)


def test_a_denied_best_item_can_mislead_a_narrow_beam_but_not_empty_it():
    """The scorer's node 0 looks best by item 0, which nobody may have; below it only item 1 is any good."""
    table = [[9.0, 1.0, *[0.5] * 6, 5.0, *[0.1] * 7]]
    deny = np.zeros(16, dtype=np.float32)
    deny[0] = -np.inf
    narrow, wide = (small(list(range(16)), table, beam) for beam in (1, 2))
    assert narrow.retrieve(users(1), 1, offset=deny).items.tolist() == [[1]]
    assert wide.retrieve(users(1), 1, offset=deny).items.tolist() == [[8]]


def test_equal_scores_go_to_the_lower_item_among_those_reached():
    tree = Tree(np.array([7, 6, 5, 4, 3, 2, 1, 0]), 2)
    found = TreeRetriever(MaximumScorer(torch.zeros(1, 8), tree), tree, 2).retrieve(users(1), 2)
    # Of equal nodes the lower are kept: leaves 7 6 5 4 are reached, and of those items 4 and 5 come first.
    assert found.items.tolist() == [[4, 5]]


def test_equal_nodes_go_to_the_lower_one_whatever_is_above_them():
    """Level 3 has the scores 4 3 5 3 0 0 0 0; of the two threes the first is kept."""
    table = np.zeros((1, 16), dtype=np.float32)
    table[0, [0, 2, 4, 6]] = [4.0, 3.0, 5.0, 3.0]
    assert small(list(range(16)), table.tolist(), 3).retrieve(users(1), 3).items.tolist() == [[4, 0, 2]]


def test_the_beam_follows_scale_and_priors_down_the_tree():
    """0.5 · 8 + 0 is less than 0.5 · 0 + 5, at the root's children as at the leaves."""
    prior = np.zeros(8, dtype=np.float32)
    prior[7] = 5.0
    table = [[8.0, 7.0, 6.0, 5.0, 0.0, 0.0, 0.0, 0.0]]
    found = small(list(range(8)), table, 1, scale=0.5).retrieve(users(1), 1, offset=prior)
    assert (found.items.tolist(), found.scores.tolist()) == ([[7]], [[5.0]])
    assert small(list(range(8)), table, 1).retrieve(users(1), 1, offset=prior).items.tolist() == [[0]]


def test_an_item_both_denied_and_excluded_counts_once():
    """Item 1 is denied and excluded: the node of items 0 and 1 still has item 0 to give."""
    deny = np.zeros(32, dtype=np.float32)
    deny[1] = -np.inf
    table = np.zeros((1, 32), dtype=np.float32)
    table[0, 0] = 1.0
    found = small(list(range(31, -1, -1)), table.tolist(), 1).retrieve(
        users(1), 1, offset=deny, exclude=Ragged.from_rows([[1]])
    )
    assert found.items.tolist() == [[0]]


def test_a_user_who_has_seen_all_below_the_best_nodes_goes_elsewhere():
    """Both users' best sixty items are excluded for the first alone, and the beam is no wider for it."""
    n = 64
    table = torch.arange(n, 0, -1, dtype=torch.float32).expand(2, n).clone()
    tree = Tree(np.arange(n), 2)
    scorer = MaximumScorer(table, tree)
    found = TreeRetriever(scorer, tree, 2).retrieve(
        users(2), 2, exclude=Ragged.from_rows([list(range(60)), []])
    )
    assert found.items.tolist() == [[60, 61], [0, 1]]
    assert max(nodes for _, nodes in scorer.calls) == 4


def test_no_user_gives_no_answer_and_blocks_of_users_change_nothing(monkeypatch):
    one = world(50, 3, 1, n_users=7)
    retriever = TreeRetriever(one.scorer, one.tree, 4)
    assert retriever.retrieve(from_items([], 2), 3).items.shape == (0, 3)
    exclude = Ragged.from_rows([[user, 2 * user] for user in range(7)])
    together = retriever.retrieve(one.everyone, 3, exclude=exclude)
    monkeypatch.setattr(beam_module, "NODES_AT_ONCE", 25)  # two users at once
    apart = retriever.retrieve(one.everyone, 3, exclude=exclude)
    np.testing.assert_array_equal(together.items, apart.items)
    np.testing.assert_array_equal(together.scores, apart.scores)


def test_a_short_allow_list_is_scored_exactly():
    one = world(70, 2, 2)
    retriever = TreeRetriever(one.scorer, one.tree, 2)
    allow = np.arange(retriever.nodes_scored(2), dtype=np.int32)
    retriever.retrieve(one.everyone, 2, allow=allow)
    assert [level for level, _ in one.scorer.calls] == [ITEMS]
    one.scorer.calls.clear()
    retriever.retrieve(one.everyone, 2, allow=np.arange(len(allow) + 1, dtype=np.int32))
    assert len(one.scorer.calls) > 1


def test_widths_by_level_are_used_and_never_below_k():
    tree = Tree(np.arange(64), 2)  # levels of 1, 2, 4, 8, 16, 32, 64 nodes
    scorer = MaximumScorer(torch.zeros(1, 64), tree)
    wide_then_narrow = TreeRetriever(scorer, tree, (2, 4, 4, 8, 3))
    # Level 3: all 8, keep 4. Level 4: 8 fit into 8, not scored. Level 5: 16, keep 3. Leaves: 6.
    wide_then_narrow.retrieve(users(1), 1)
    assert scorer.calls == [(3, 8), (5, 16), (ITEMS, 6)]
    assert wide_then_narrow.nodes_scored(1) == 8 + 16 + 6
    # For k = 5 the widths are (5, 5, 5, 8, 5): level 4 scores the ten children of 5 and keeps 8.
    assert wide_then_narrow.nodes_scored(5) == 8 + 10 + 16 + 10


def test_the_rule_of_auto_counts_nodes():
    # B = 2, beam 150 over 3,706 items: levels of 232, 464, 927, 1853, 3706 nodes are wider than the beam.
    assert level_sizes(3706, 2)[-5:] == [232, 464, 927, 1853, 3706]
    tree = random_tree(3706, 2, 0)
    assert TreeRetriever(ConstantScorer(3706), tree, 150).nodes_scored(20) == 232 + 4 * 300
    assert not prefers_exact(3706, 2, 150)
    assert prefers_exact(1000, 2, 300)  # 500 nodes, then 600 of the leaves
    assert not prefers_exact(100_000, 2, 1000)
    assert prefers_exact(3000, 2, 1000)


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(2, 64), st.integers(1, 400))
def test_small_catalogues_prefer_exact_search(n, branch, beam):
    scored = TreeRetriever(ConstantScorer(n), random_tree(n, branch, 0), beam).nodes_scored(1)
    assert prefers_exact(n, branch, beam) is (n <= scored)
    if n <= beam:
        assert prefers_exact(n, branch, beam)


def test_cost_grows_with_the_logarithm_of_the_catalogue():
    """One level more, 2·beam nodes more: 10 k to 1 M items are seven levels."""
    costs = [
        TreeRetriever(ConstantScorer(n), random_tree(n, 2, 0), 100).nodes_scored(20) for n in (2**13, 2**20)
    ]
    assert costs[1] - costs[0] == 7 * 2 * 100
    assert costs[0] == 128 + (13 - 7) * 200  # the first level wider than the beam is scored as a whole


def test_clustered_vectors_are_found_through_their_means():
    """A real linear scorer: nodes are means of their leaves; a beam that scores a tenth finds nearly all."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(64, 16))
    vectors = (centres[rng.integers(64, size=4000)] + 0.2 * rng.normal(size=(4000, 16))).astype(np.float32)
    tree = kmeans_tree(vectors, 4, 0)
    scorer = MeansScorer(torch.from_numpy(vectors), tree)
    retriever = TreeRetriever(scorer, tree, 20)
    assert retriever.nodes_scored(10) < 400
    found = retriever.retrieve(users(50), 10).items
    truth = ExactRetriever(scorer).retrieve(users(50), 10).items
    overlap = [len(set(a) & set(b)) / 10 for a, b in zip(found, truth, strict=True)]
    assert np.mean(overlap) > 0.9


@dataclass(frozen=True)
class MeansScorer:
    """Users are random vectors near items; a node's vector is the mean of its leaves'."""

    vectors: torch.Tensor  # (items, d)
    tree: Tree

    @property
    def n_items(self) -> int:
        return len(self.vectors)

    def encode(self, histories: Histories) -> torch.Tensor:
        return self.vectors[torch.from_numpy(histories.last[:, -1].astype(np.int64))]

    def score(self, query: torch.Tensor, level: int, nodes: torch.Tensor | None) -> torch.Tensor:
        table = self.vectors
        if level != ITEMS:
            leaves = self.vectors[torch.from_numpy(self.tree.item_of_leaf.astype(np.int64))]
            table = torch.stack([part.mean(0) for part in leaves.split(self.tree.span(level))])
        scores = query @ table.T
        return scores if nodes is None else scores.gather(1, nodes)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_scorer_on_the_gpu_is_searched_there():
    one = world(70, 3, 4)
    filters = {
        "offset": np.linspace(0, 1, 70, dtype=np.float32),
        "exclude": Ragged.from_rows([[3, 4], [], [69]]),
    }
    here = TreeRetriever(one.scorer, one.tree, 4).retrieve(one.everyone, 3, **filters)
    there = TreeRetriever(OnCuda(one.scorer), one.tree, 4).retrieve(one.everyone, 3, **filters)
    np.testing.assert_array_equal(here.items, there.items)
    np.testing.assert_allclose(here.scores, there.scores)


@dataclass(frozen=True)
class OnCuda:
    """The same scores, on the GPU."""

    scorer: MaximumScorer

    @property
    def n_items(self) -> int:
        return self.scorer.n_items

    def encode(self, histories: Histories) -> torch.Tensor:
        return self.scorer.encode(histories)

    def score(self, query: torch.Tensor, level: int, nodes: torch.Tensor | None) -> torch.Tensor:
        return self.scorer.score(query, level, None if nodes is None else nodes.cpu()).cuda()


# --- bad input ---

BAD = {
    "k of zero": (lambda: small([0, 1], [[0.0, 0.0]], 2).retrieve(users(1), 0), ConfigError, "k is 0"),
    "beam of zero": (lambda: small([0, 1], [[0.0, 0.0]], 0), ConfigError, "beam is 0"),
    "a width of zero": (lambda: small([0, 1, 2], [[0.0] * 3], (0,)), ConfigError, "beam is 0"),
    "too few widths": (lambda: small(list(range(9)), [[0.0] * 9], (2, 2)), ConfigError, "or 3"),
    "another catalogue": (
        lambda: TreeRetriever(ConstantScorer(3), Tree(np.arange(4), 2), 2),
        ConfigError,
        "knows 3 items and the tree 4",
    ),
    "a scorer of items alone": (
        lambda: TreeRetriever(ConstantScorer(9), Tree(np.arange(9), 2), 1).retrieve(users(1), 1),
        ConfigError,
        "exact search",
    ),
    "an offset of another catalogue": (
        lambda: small(list(range(9)), [[0.0] * 9], 1).retrieve(users(1), 1, offset=np.zeros(99, np.float32)),
        InputError,
        "each of 9",
    ),
    "the rule without items": (lambda: prefers_exact(0, 2, 5), ConfigError, "at least 1"),
    "the rule without a beam": (lambda: prefers_exact(9, 2, 0), ConfigError, "beam is 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_in_one_line(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)
