"""fold is the only definition of a history; everything vectorised equals it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import log_of

from rootbeam.core.types import Event
from rootbeam.data.history import concatenate, empty_history, fold, from_items, replay, replay_of, stack

LENGTH = 4
user_rows = st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=6)


@settings(deadline=None)
@given(user_rows, st.integers(1, 8))
def test_replay_equals_folding_event_by_event(rows, length):
    log = log_of(rows, 10)
    histories = replay(log, length)
    for user in range(len(rows)):
        history = empty_history(length)
        for event in range(log.user_ptr[user], log.user_ptr[user + 1]):
            history = fold(history, Event(int(log.items[event]), event + 1))
        replayed = histories.one(user)
        assert replayed.last.tolist() == history.last.tolist()
        assert replayed.seen == history.seen
        assert replayed.events == history.events == len(rows[user])
        assert replayed.watermark == history.watermark


@settings(deadline=None)
@given(user_rows)
def test_stack_take_and_concatenate_keep_every_user(rows):
    histories = replay(log_of(rows, 10), LENGTH)
    order = np.arange(len(rows))[::-1]
    again = concatenate([stack([histories.one(int(row))]) for row in order])
    taken = histories.take(order)
    for name in ("last", "events", "watermark"):
        np.testing.assert_array_equal(getattr(again, name), getattr(taken, name))
    assert [again.seen.row(i).tolist() for i in order] == [taken.seen.row(i).tolist() for i in order]


def test_an_event_at_or_below_the_watermark_changes_nothing():
    history = fold(fold(empty_history(LENGTH), Event(3, 5)), Event(4, 6))
    assert fold(history, Event(9, 6)) is history
    assert fold(history, Event(9, 2)) is history
    assert fold(history, Event(9, 7)).last.tolist() == [-1, 3, 4, 9]


def test_padding_stands_on_the_left_and_item_zero_is_a_real_item():
    histories = from_items([[0, 1], [], [0, 1, 2, 3, 4]], LENGTH)
    assert histories.last.tolist() == [[-1, -1, 0, 1], [-1] * 4, [1, 2, 3, 4]]
    assert histories.seen.row(2).tolist() == [0, 1, 2, 3, 4]
    assert histories.events.tolist() == [2, 0, 5]


def test_a_repeated_item_counts_as_an_event_and_is_seen_once():
    histories = from_items([[7, 7, 7]], LENGTH)
    assert histories.last.tolist() == [[-1, 7, 7, 7]]
    assert histories.seen.row(0).tolist() == [7]
    assert histories.events.tolist() == [3]


def test_some_users_alone_have_the_rows_of_all():
    log = log_of([[3, 1, 3], [], [0], [2, 2, 4, 1]], n_items=5)
    rows = np.array([3, 1, 0])
    all_users, some = replay(log, 2).take(rows), replay_of(log, rows, 2)
    for name in ("last", "events", "watermark"):
        np.testing.assert_array_equal(getattr(some, name), getattr(all_users, name))
    np.testing.assert_array_equal(some.seen.values, all_users.seen.values)
    np.testing.assert_array_equal(some.seen.ptr, all_users.seen.ptr)


def test_histories_made_in_blocks_are_those_made_at_once(monkeypatch):
    log = log_of([[3, 1, 3], [], [0], [2, 2, 4, 1]], n_items=5)
    monkeypatch.setattr("rootbeam.data.history.CELLS_AT_ONCE", 4)
    np.testing.assert_array_equal(replay(log, 3).last, [[3, 1, 3], [-1, -1, -1], [-1, -1, 0], [2, 4, 1]])
