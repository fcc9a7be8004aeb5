"""Packs buffers into an arena: quick packings first, then an exact search if they leave a gap."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from litefuse.arena import _native, greedy
from litefuse.arena.problem import Buffer, Problem, ProblemError, aligned

# Decisions (ten to fifty microseconds each for hundreds of buffers) of the exact search at one capacity, in the first
# round.
_FIRST_NODES = 20_000
_NO_LIMIT = 2**62
# A capacity above the bound gets one in so many decisions of what the bound itself gets.
_SHARE_ABOVE = 32
# Steps in capacity finer than this part of the peak are not tried before the next round.
_RESOLUTION = 256
# The part of the time that quick packings may take if an exact search is to follow.
_GREEDY_SHARE = 0.25


@dataclass(frozen=True)
class Packing:
    """Where each buffer lies.

    Attributes:
        offsets: the offset in bytes of each buffer, by id, in the order of the problem.
        peak: bytes of the arena: the end of the highest buffer, its size rounded up to the alignment.
        lower_bound: bytes below which no arena is possible; proved.
        method: what found the offsets.
        seconds: how long it took.
    """

    offsets: dict[str, int]
    peak: int
    lower_bound: int
    method: str
    seconds: float

    @property
    def proved(self) -> bool:
        """Whether it is proved that no packing has a lower peak."""
        return self.peak == self.lower_bound

    def fits(self, capacity: int) -> bool:
        """Whether an arena of ``capacity`` bytes holds it. None of them can if ``lower_bound`` is above."""
        return self.peak <= capacity


def pack(
    problem: Problem,
    *,
    alignment: int = 1,
    capacity: int | None = None,
    seconds: float = 10.0,
    fixed: Mapping[str, int] | None = None,
) -> Packing:
    """Finds offsets at which buffers that live at the same time do not overlap.

    Without a capacity the peak is made as low as the time allows. With a capacity the search ends as soon as a packing
    fits into it, or when it is known that none does: then ``lower_bound`` is above the capacity, and the packing is
    the best quick one. ``lower_bound`` starts as the most live bytes and rises by what the search proves.

    Args:
        problem: the buffers.
        alignment: bytes; offsets are multiples of it, and sizes are rounded up to it.
        capacity: bytes.
        seconds: about how long it may take. The result does not depend on it as long as it suffices.
        fixed: offsets in bytes that are given, by id. There is no exact search then.

    Raises ProblemError for an alignment below 1, and for fixed offsets that overlap, are negative or not aligned, or
    whose id does not exist.
    """
    begin = time.monotonic()
    if alignment < 1:
        raise ProblemError(f"the alignment is {alignment}; it must be 1 or more")
    sizes = [aligned(buffer.size, alignment) for buffer in problem.buffers]
    pinned = _fixed(problem, sizes, alignment, fixed or {})
    # Buffers that stand on each other have offsets that are sums of sizes, so the greatest common divisor is the unit.
    unit = alignment if pinned else math.gcd(*sizes) or alignment
    buffers = [b._replace(size=size // unit) for b, size in zip(problem.buffers, sizes, strict=True)]
    search = _Search(buffers, begin, seconds, {i: offset // unit for i, offset in pinned.items()})
    if capacity is None:
        search.minimise()
    else:
        search.fit(capacity // unit)
    found = search.best
    return Packing(
        {buffer.id: offset * unit for buffer, offset in zip(buffers, found.offsets, strict=True)},
        found.peak * unit,
        search.lower * unit,
        found.method,
        time.monotonic() - begin,
    )


def _fixed(problem: Problem, sizes: list[int], alignment: int, fixed: Mapping[str, int]) -> dict[int, int]:
    """The fixed offsets by index, checked."""
    index = {buffer.id: i for i, buffer in enumerate(problem.buffers)}
    result: dict[int, int] = {}
    for name, offset in fixed.items():
        if name not in index:
            raise ProblemError(f"buffer {name} has a fixed offset, but there is no such buffer")
        if offset < 0 or offset % alignment:
            raise ProblemError(f"buffer {name}: its fixed offset {offset} is no multiple of the alignment {alignment}")
        result[index[name]] = offset
    order = sorted(result, key=lambda i: result[i])
    for at, i in enumerate(order):
        for j in order[at + 1 :]:
            if result[j] >= result[i] + sizes[i]:
                break
            a, b = problem.buffers[i], problem.buffers[j]
            if sizes[j] and a.lower < b.upper and b.lower < a.upper:
                raise ProblemError(f"buffers {a.id} and {b.id} overlap at their fixed offsets")
    return result


class _Search:
    """The best packing and the best bound so far, all in units.

    Attributes:
        best: the packing with the lowest peak so far.
        lower: the highest proved lower bound so far.
    """

    def __init__(self, buffers: list[Buffer], begin: float, seconds: float, fixed: dict[int, int]) -> None:
        self.deadline = begin + seconds
        self.lower = Problem(buffers).lower_bound()
        self.lower = max([self.lower, *(offset + buffers[i].size for i, offset in fixed.items())])
        self.rows = _rows(buffers)
        self.exact = (
            not fixed
            and len(buffers) <= _native.MAX_BUFFERS
            and sum(buffer.size for buffer in buffers) <= _native.MAX_TOTAL_SIZE
        )
        greedy_deadline = begin + seconds * _GREEDY_SHARE if self.exact else self.deadline
        self.best = greedy.best(buffers, bound=self.lower, deadline=greedy_deadline, fixed=fixed)

    def fit(self, capacity: int) -> None:
        """Looks for a packing within the capacity, until there is one, none, or no time."""
        if self.exact and self.lower <= capacity < self.best.peak:
            packer = _native.Packer(self.rows, capacity)
            self._try(packer, capacity, _NO_LIMIT)

    def minimise(self) -> None:
        """Lowers the peak and raises the bound until they meet, or time is up.

        Each round asks at the lower bound, then bisects between it and the peak in fewer decisions, and each round
        takes twice the decisions of the one before. An answer "there is none" near the bound is followed by greater and
        greater steps up.
        """
        if not self.exact:
            return
        bottom: tuple[int, _native.Packer] | None = None
        nodes = _FIRST_NODES
        while self._open():
            step = 0
            while self._open():
                target = min(self.lower + step, self.best.peak - 1)
                if bottom is None or bottom[0] != target:
                    bottom = (target, _native.Packer(self.rows, target))
                answer = self._try(bottom[1], target, nodes)
                if answer == "infeasible":
                    step = 2 * step + 1
                elif step == 0:
                    break
                else:
                    step = 0
            tried = self.lower
            while self._open() and self.best.peak - 1 - tried > self.best.peak // _RESOLUTION:
                target = (tried + self.best.peak) // 2
                answer = self._try(_native.Packer(self.rows, target), target, nodes // _SHARE_ABOVE)
                if answer != "found":
                    tried = target
            nodes *= 2

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _open(self) -> bool:
        return self.best.peak > self.lower and self._left() > 0

    def _try(self, packer: _native.Packer, capacity: int, nodes: int) -> str:
        answer = packer.run(nodes, self._left())
        if answer == "found":
            offsets = packer.offsets
            peak = max(offset + row[2] for offset, row in zip(offsets, self.rows, strict=True))
            self.best = greedy.Greedy(offsets, peak, "exact search")
        elif answer == "infeasible":
            self.lower = max(self.lower, capacity + 1)
        return answer


def _rows(buffers: list[Buffer]) -> list[tuple[int, int, int]]:
    """The buffers for the native search; times that it cannot count are replaced by their ranks."""
    times = [t for buffer in buffers for t in (buffer.lower, buffer.upper)]
    if all(-(2**62) < t < 2**62 for t in times):
        return [(buffer.lower, buffer.upper, buffer.size) for buffer in buffers]
    rank = {t: i for i, t in enumerate(sorted(set(times)))}
    return [(rank[buffer.lower], rank[buffer.upper], buffer.size) for buffer in buffers]
