"""One step ahead: the next batch is read while the last one is worked on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def read_ahead(source: Iterator[Item]) -> Iterator[Item]:
    """The same items in the same order; errors arise where they would have. At most one item waits."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = reader.submit(next, source, None)
        while (item := coming.result()) is not None:
            coming = reader.submit(next, source, None)
            yield item
