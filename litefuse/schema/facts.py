"""Numbers that the validator needs to know of shapes and arrays, found without trusting them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# More elements than 63 bits can count.
TOO_MANY = 1 << 63
# Elements of arrays (scales, sparse indices) that are looked at before the rest is taken on trust: ten times what the
# largest known models hold. Files can be made in which everything refers to the same bytes.
_MOST_ELEMENTS = 1 << 28


def elements(shape: Sequence[int]) -> int | None:
    """The number of elements of a shape, TOO_MANY at most; None with a negative dimension."""
    count = 1
    for size in shape:
        if size < 0:
            return None
        count = min(count * size, TOO_MANY)
    return 0 if 0 in shape else count


class Range(NamedTuple):
    """The smallest and the largest number of an array; both NaN when it holds a NaN."""

    low: float
    high: float

    @property
    def finite(self) -> bool:
        """Whether no number is infinite or NaN."""
        return math.isfinite(self.low) and math.isfinite(self.high)


class Numbers:
    """Looks at arrays, each once and not at more elements in all than any honest model has."""

    def __init__(self) -> None:
        self._left = _MOST_ELEMENTS
        self._ranges: dict[int, tuple[NDArray[Any], Range]] = {}  # with the array, so that its id stays its own

    def spend(self, count: int) -> bool:
        """Whether so many more elements may be looked at."""
        self._left -= count
        return self._left >= 0

    def range(self, array: NDArray[Any]) -> Range | None:
        """The range of an array, or None where it is empty or too much has been looked at already."""
        # Reading gives the same object for the same place of the file.
        known = self._ranges.get(id(array))
        if known is None:
            if not array.size or not self.spend(array.size):
                return None
            if array.size == 1:
                found = Range(float(array[0]), float(array[0]))
            else:
                found = Range(float(np.min(array)), float(np.max(array)))
            known = self._ranges[id(array)] = (array, found)
        return known[1]
