"""Finds what is wrong with a packing. Knows nothing of how packings are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol


class Lifetime(Protocol):
    """What the checker looks at: a buffer as ``litefuse.arena.problem.Buffer`` has it."""

    @property
    def id(self) -> str:
        """Its name."""

    @property
    def lower(self) -> int:
        """The first time at which it lives."""

    @property
    def upper(self) -> int:
        """The first time at which it no longer lives."""

    @property
    def size(self) -> int:
        """Bytes."""


def check_packing(
    buffers: Sequence[Lifetime],
    offsets: Mapping[str, int] | Iterable[tuple[str, int]],
    alignment: int = 1,
    capacity: int | None = None,
) -> list[str]:
    """Says everything that is wrong with a packing; nothing if it is right.

    Args:
        buffers: what had to be packed.
        offsets: bytes, by id; pairs are taken as well, so that an id which is there twice shows.
        alignment: bytes; every offset must be a multiple of it.
        capacity: bytes that the arena has, or None if any size is right.

    Faults are: an id that is unknown, missing or there twice (among the buffers too), an offset that is no integer,
    negative, or not aligned, an end past the capacity, and two buffers that live at the same time and share a byte.
    """
    faults: list[str] = []
    known: dict[str, Lifetime] = {}
    for buffer in buffers:
        if buffer.id in known:
            faults.append(f"buffer {buffer.id} is there twice in the problem")
        known[buffer.id] = buffer
    pairs = list(offsets.items() if isinstance(offsets, Mapping) else offsets)
    if len(pairs) != len(buffers):
        faults.append(f"{len(pairs)} offsets for {len(buffers)} buffers")
    placed: dict[str, int] = {}
    for name, offset in pairs:
        if name not in known:
            faults.append(f"offset {offset} is for {name}, but there is no such buffer")
            continue
        if name in placed:
            faults.append(f"buffer {name} has two offsets, {placed[name]} and {offset}")
            continue
        if not isinstance(offset, int) or isinstance(offset, bool):
            faults.append(f"buffer {name}: its offset {offset!r} is no integer")
            continue
        placed[name] = offset
        end = offset + known[name].size
        if offset < 0:
            faults.append(f"buffer {name}: its offset {offset} is negative")
        if offset % alignment:
            faults.append(f"buffer {name}: its offset {offset} is no multiple of {alignment}")
        if capacity is not None and end > capacity:
            faults.append(f"buffer {name} ends at {end}, past the capacity {capacity}")
    given = {name for name, _ in pairs}
    faults += [f"buffer {name} has no offset" for name in known if name not in given]
    return faults + _overlaps(known, placed)


def _overlaps(known: Mapping[str, Lifetime], placed: Mapping[str, int]) -> list[str]:
    """Pairs that share a byte at some time. Goes up through the addresses; `under` holds what reaches up to here."""
    faults: list[str] = []
    under: list[str] = []
    for name in sorted(placed, key=lambda n: (placed[n], n)):
        buffer, offset = known[name], placed[name]
        if buffer.size == 0:
            continue
        under = [other for other in under if placed[other] + known[other].size > offset]
        for other in under:
            if known[other].lower < buffer.upper and buffer.lower < known[other].upper:
                faults.append(
                    f"buffers {other} (bytes {placed[other]} to {placed[other] + known[other].size}) and {name} "
                    f"(bytes {offset} to {offset + buffer.size}) overlap between times "
                    f"{max(buffer.lower, known[other].lower)} and {min(buffer.upper, known[other].upper)}"
                )
        under.append(name)
    return faults
