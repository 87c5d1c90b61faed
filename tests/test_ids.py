"""External ids against dense ids: unchanged, and strings of a command line understood."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootbeam.core.ids import Ids

NAMES = st.lists(st.text(max_size=5), unique=True, max_size=20)
NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, min_size=1, max_size=20)


@given(st.one_of(NAMES, NUMBERS))
def test_back_is_the_inverse_of_dense(external):
    ids = Ids(external)
    np.testing.assert_array_equal(ids.dense(external), np.arange(len(external)))
    assert ids.back(ids.dense(external)) == external
    assert all(e in ids for e in external)


@given(NUMBERS)
def test_integers_are_found_by_their_digits(numbers):
    ids = Ids(numbers)
    assert ids.are_integers
    np.testing.assert_array_equal(ids.dense(str(n) for n in numbers), np.arange(len(numbers)))


@pytest.mark.parametrize("stranger", ["c", "", "A", "a ", "1", 1, None])
def test_unknown_names_are_padding(stranger):
    assert Ids(["a", "b"]).dense(["b", stranger]).tolist() == [1, -1]
    assert stranger not in Ids(["a", "b"])


@pytest.mark.parametrize("stranger", ["x", "", "-", "1.0", "²", "٣", "1e3", "9" * 19, "9" * 5000, 4, None])
def test_what_is_no_integer_is_unknown_among_integers(stranger):
    assert Ids([3, 7]).dense([7, stranger]).tolist() == [1, -1]


def test_numbers_are_found_among_strings_that_spell_them():
    assert Ids(["3", "07"]).dense([3, np.int64(3), 7]).tolist() == [0, 0, -1]


def test_numpy_integers_are_integers():
    assert Ids([3, 7]).dense(np.array([7, 3, 5])).tolist() == [1, 0, -1]


def test_no_ids_know_nobody():
    assert len(Ids([])) == 0
    assert not Ids([]).are_integers
    assert Ids([]).dense(["a", 1]).tolist() == [-1, -1]
    assert Ids(["a"]).dense([]).dtype == np.int32


@given(NAMES, NAMES)
def test_extending_keeps_dense_ids_and_adds_each_new_one_once(first, second):
    ids = Ids(first).extended([*second, *second])
    assert list(ids.external[: len(first)]) == first
    assert list(ids.external[len(first) :]) == [e for e in second if e not in first]


def test_extending_integers_by_their_digits_adds_nothing():
    assert Ids([3, 7]).extended(["7", 3]).external == [3, 7]
    assert Ids(["3", "7"]).extended([7, 9]).external == ["3", "7", "9"]
