"""Readable made-up names for the items and categories of a simulated world; the same for every seed."""

from __future__ import annotations

import numpy as np

from rootbeam.core.types import Int64

_NOUNS = [
    "Road",
    "River",
    "Garden",
    "Harbour",
    "Lantern",
    "Orchard",
    "Mountain",
    "Window",
    "Compass",
    "Violin",
    "Meadow",
    "Bridge",
    "Castle",
    "Forest",
    "Island",
    "Kettle",
    "Mirror",
    "Needle",
    "Tower",
    "Valley",
    "Feather",
    "Market",
    "Candle",
    "Anchor",
]
_ADJECTIVES = [
    "Amber",
    "Silver",
    "Quiet",
    "Crimson",
    "Golden",
    "Hidden",
    "Northern",
    "Velvet",
    "Paper",
    "Winter",
    "Copper",
    "Emerald",
    "Gentle",
    "Ivory",
    "Marble",
    "Scarlet",
    "Silent",
    "Wooden",
    "Azure",
    "Distant",
    "Early",
    "Hollow",
    "Misty",
    "Painted",
]
_QUALIFIERS = [
    "Classic",
    "Modern",
    "Small",
    "Grand",
    "Coastal",
    "Upland",
    "Evening",
    "Morning",
    "Royal",
    "Plain",
    "Festive",
    "Travel",
    "Studio",
    "Night",
    "Summer",
    "Harvest",
]


def category_paths(depth: int, branch: int) -> list[list[str]]:
    """The names from the top level to the leaf of every leaf category, such as
    ["Road", "Amber Road", "Amber Road Classic"]; siblings and leaves never share a name."""
    paths: list[list[str]] = [[]]
    for level in range(depth):
        paths = [
            [*path, _child_name(path, level, parent, child)]
            for parent, path in enumerate(paths)
            for child in range(branch)
        ]
    return paths


def _child_name(path: list[str], level: int, parent: int, child: int) -> str:
    if level == 0:
        return _word(_NOUNS, child, 0)
    if level == 1:
        return f"{_word(_ADJECTIVES, child, 5 * parent)} {path[-1]}"
    return f"{path[-1]} {_word(_QUALIFIERS, child, 3 * parent)}"


def _word(words: list[str], index: int, shift: int) -> str:
    """The words in a rotated order; numbered from the second round on."""
    word = words[(index + shift) % len(words)]
    round_ = index // len(words)
    return f"{word} {'I' * (round_ + 1) if round_ < 3 else round_ + 1}" if round_ else word


def item_titles(paths: list[list[str]], leaf: Int64) -> list[str]:
    """ "Amber Road 12": the second level's name and a running number within it."""
    family = np.array([path[min(1, len(path) - 1)] for path in paths])
    names, code = np.unique(family, return_inverse=True)
    of_item = code[leaf]
    order = np.argsort(of_item, kind="stable")
    counts = np.bincount(of_item, minlength=len(names))
    number = np.empty(len(leaf), dtype=np.int64)
    number[order] = np.arange(len(leaf)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    return [f"{names[code]} {n}" for code, n in zip(of_item, number, strict=True)]
