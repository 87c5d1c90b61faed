"""The public surface: a name joins or leaves it by changing this file."""

from __future__ import annotations

import importlib

import pytest

import rootbeam

NAMES = [
    "Config",
    "ExactRetriever",
    "Recommender",
    "Tree",
    "TreeRetriever",
    "evaluate",
    "load",
    "read_events",
    "simulate",
    "split",
]


def test_the_public_names_are_these():
    assert rootbeam.__all__ == NAMES
    assert dir(rootbeam) == sorted([*NAMES, "__version__"])


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_imports_is_callable_and_says_what_it_is(name):
    value = getattr(rootbeam, name)
    assert callable(value)
    assert value.__doc__
    assert value.__name__ == name
    assert value.__module__.startswith("rootbeam.")


def test_a_function_wins_over_the_submodule_of_its_name():
    for name in ("rootbeam.evaluate.protocol", "rootbeam.data.split", "rootbeam.data.simulate"):
        importlib.import_module(name)
    assert callable(rootbeam.evaluate)
    assert callable(rootbeam.split)


def test_other_names_are_refused_by_name():
    with pytest.raises(AttributeError, match="no attribute 'fit'"):
        _ = rootbeam.fit


def test_the_version_is_a_version():
    assert all(part.isdigit() for part in rootbeam.__version__.split("."))
