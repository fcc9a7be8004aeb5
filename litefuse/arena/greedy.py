"""Quick packings: each places the buffers one after the other, in some order, and never moves one again.

Orders and fits are those of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (MLSys 2020)
and of the allocators in use (TFLite, TFLM), and some that the exact search does well with. None of them is good for all
models, the best of them nearly always is.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from litefuse.arena.problem import Buffer

# Orders that look at the load during a lifetime take quadratic time; they are left out for more buffers than these.
_MANY = 5000


class Greedy(NamedTuple):
    """A packing and what made it.

    Attributes:
        offsets: one for each buffer, in their order.
        peak: the end of the highest buffer.
        method: what made it, for people.
    """

    offsets: list[int]
    peak: int
    method: str


def best(buffers: Sequence[Buffer], *, bound: int, deadline: float, fixed: Mapping[int, int] | None = None) -> Greedy:
    """The best of all quick packings; stops at one whose peak is the lower ``bound``, or at the deadline.

    Args:
        buffers: what is to be packed, with sizes in any unit.
        bound: a peak that need not be improved upon, in the same unit.
        deadline: a time of ``time.monotonic()``. One packing is made even if it has passed.
        fixed: offsets that are given, by the buffer's index; they must not overlap.
    """
    result: Greedy | None = None
    for packing in _all(buffers, deadline, fixed or {}):
        if result is None or packing.peak < result.peak:
            result = packing
        if result.peak <= bound:
            break
    assert result is not None
    return result


def _all(buffers: Sequence[Buffer], deadline: float, fixed: Mapping[int, int]) -> Iterator[Greedy]:
    if fixed:
        # One on top of the other: always possible, and at once.
        yield _stacked(buffers, fixed)
    else:
        yield sweep(buffers)
    for name, key in _orders(buffers):
        order = sorted((i for i in range(len(buffers)) if i not in fixed), key=key)
        for fit in ("lowest", "best"):
            offsets = place(buffers, order, lowest=fit == "lowest", deadline=deadline, fixed=fixed)
            if offsets is None:
                return
            yield Greedy(offsets, _peak(buffers, offsets), f"greedy by {name}, {fit} fit")


def _peak(buffers: Sequence[Buffer], offsets: Sequence[int]) -> int:
    return max((offset + buffer.size for buffer, offset in zip(buffers, offsets, strict=True)), default=0)


def _stacked(buffers: Sequence[Buffer], fixed: Mapping[int, int]) -> Greedy:
    top = max((offset + buffers[i].size for i, offset in fixed.items()), default=0)
    offsets = []
    for i, buffer in enumerate(buffers):
        offsets.append(fixed.get(i, top))
        if i not in fixed:
            top += buffer.size
    return Greedy(offsets, _peak(buffers, offsets), "stacked")


def _orders(buffers: Sequence[Buffer]) -> Iterator[tuple[str, Callable[[int], tuple[int, ...]]]]:
    def duration(i: int) -> int:
        return buffers[i].upper - buffers[i].lower

    def area(i: int) -> int:
        return duration(i) * buffers[i].size

    yield "size", lambda i: (-buffers[i].size, buffers[i].lower, i)
    if len(buffers) <= _MANY:
        load = _worst_loads(buffers)
        yield "breadth", lambda i: (-load[i], -buffers[i].size, i)
        yield "breadth and duration", lambda i: (-load[i], -duration(i), -area(i), i)
    yield "area", lambda i: (-area(i), -buffers[i].size, i)
    yield "duration", lambda i: (-duration(i), -buffers[i].size, i)
    yield "first use", lambda i: (buffers[i].lower, -buffers[i].size, i)
    yield "last use", lambda i: (-buffers[i].upper, -buffers[i].size, i)


def _worst_loads(buffers: Sequence[Buffer]) -> list[int]:
    """For each buffer, the most that is live at a time of its life."""
    times = sorted({buffer.lower for buffer in buffers} | {buffer.upper for buffer in buffers})
    index = {time: i for i, time in enumerate(times)}
    changes = [0] * len(times)
    for buffer in buffers:
        changes[index[buffer.lower]] += buffer.size
        changes[index[buffer.upper]] -= buffer.size
    loads, live = [], 0
    for change in changes:
        live += change
        loads.append(live)
    return [max(loads[index[buffer.lower] : index[buffer.upper]]) for buffer in buffers]


def place(
    buffers: Sequence[Buffer],
    order: Sequence[int],
    *,
    lowest: bool,
    deadline: float,
    fixed: Mapping[int, int] | None = None,
) -> list[int] | None:
    """Places the buffers in the given order, each into the lowest or the smallest gap in which it fits.

    Returns an offset for each buffer, or None if the deadline (a time of ``time.monotonic()``) came first.
    """
    offsets = [0] * len(buffers)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, lower, upper), ascending
    for i, offset in (fixed or {}).items():
        buffer = buffers[i]
        offsets[i] = offset
        bisect.insort(placed, (offset, offset + buffer.size, buffer.lower, buffer.upper))
    for i in order:
        if time.monotonic() > deadline:
            return None
        _, lower, upper, size = buffers[i]
        if size == 0:
            continue
        top, found, narrowest = 0, -1, -1
        for start, end, other_lower, other_upper in placed:
            if other_lower < upper and lower < other_upper:
                gap = start - top
                if gap >= size and (found < 0 or gap < narrowest):
                    found, narrowest = top, gap
                    if lowest or gap == size:
                        break
                if end > top:
                    top = end
        offset = found if found >= 0 else top
        offsets[i] = offset
        bisect.insort(placed, (offset, offset + size, lower, upper))
    return offsets


def sweep(buffers: Sequence[Buffer]) -> Greedy:
    """Goes through time like an allocator: smallest hole that fits, else on top; quick for any number of buffers."""
    offsets = [0] * len(buffers)
    holes: list[tuple[int, int]] = []  # (size, offset), ascending
    hole_at: dict[int, int] = {}  # size by offset
    hole_before: dict[int, int] = {}  # size by end
    top = 0  # nothing is live from here on

    def add(offset: int, size: int) -> None:
        bisect.insort(holes, (size, offset))
        hole_at[offset] = size
        hole_before[offset + size] = size

    def remove(offset: int, size: int) -> None:
        del holes[bisect.bisect_left(holes, (size, offset))]
        del hole_at[offset], hole_before[offset + size]

    events = [(b.lower, 1, -b.size, i) for i, b in enumerate(buffers) if b.size]
    events += [(b.upper, 0, 0, i) for i, b in enumerate(buffers) if b.size]
    for _, starts, _, i in sorted(events):
        size = buffers[i].size
        if starts:
            at = bisect.bisect_left(holes, (size, -1))
            if at < len(holes):
                hole, offset = holes[at]
                remove(offset, hole)
                if hole > size:
                    add(offset + size, hole - size)
            else:
                offset = top
                top += size
            offsets[i] = offset
        else:
            offset = offsets[i]
            if offset in hole_before:
                before = hole_before[offset]
                remove(offset - before, before)
                offset, size = offset - before, size + before
            if offset + size in hole_at:
                after = hole_at[offset + size]
                remove(offset + size, after)
                size += after
            if offset + size == top:
                top = offset
            else:
                add(offset, size)
    return Greedy(offsets, _peak(buffers, offsets), "greedy in the order of time")
