"""External ids (strings or integers, returned unchanged) against dense int32 ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rootbeam.core.types import PADDING, Int32

ExternalId = str | int
INT64_DIGITS = 19


@dataclass(frozen=True)
class Ids:
    """external[d] is the id that the source used for dense id d."""

    external: Sequence[ExternalId]

    def __len__(self) -> int:
        return len(self.external)

    @cached_property
    def _dense_of(self) -> dict[ExternalId, int]:
        return {external: dense for dense, external in enumerate(self.external)}

    @property
    def are_integers(self) -> bool:
        return bool(self.external) and isinstance(self.external[0], int)

    def dense(self, external: Iterable[ExternalId]) -> Int32:
        """Dense ids; -1 where the id is unknown."""
        of = self._dense_of
        return np.fromiter((of.get(self.as_stored(e), PADDING) for e in external), dtype=np.int32)

    def __contains__(self, external: ExternalId) -> bool:
        return self.as_stored(external) in self._dense_of

    def back(self, dense: Iterable[int]) -> list[ExternalId]:
        """External ids of dense ids."""
        return [self.external[d] for d in dense]

    def extended(self, external: Iterable[ExternalId]) -> Ids:
        """These ids, then those of `external` not among them, in the order they come."""
        new = [e for e in dict.fromkeys(map(self.as_stored, external)) if e not in self._dense_of]
        return Ids([*self.external, *new])

    def as_stored(self, external: ExternalId) -> ExternalId:
        """A command line only has strings: "42" means 42 where the source's ids are integers."""
        if isinstance(external, np.integer):  # from a numpy array
            external = int(external)
        if self.are_integers and isinstance(external, str):
            digits = external.removeprefix("-")
            if not (digits.isascii() and digits.isdigit() and len(digits) <= INT64_DIGITS):
                return external
            number = int(external)
            return number if -(2**63) <= number < 2**63 else external
        if self.external and not self.are_integers and not isinstance(external, str):
            return str(external)
        return external
