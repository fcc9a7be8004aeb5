"""The checker of packings: right ones pass, and every kind of broken one is caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litefuse.arena.checker import check_packing
from litefuse.arena.packing import pack
from litefuse.arena.problem import Buffer, Problem

BUFFERS = [Buffer("a", 0, 3, 32), Buffer("b", 1, 4, 16), Buffer("c", 3, 6, 48), Buffer("d", 0, 6, 8)]
OFFSETS = {"a": 0, "b": 48, "c": 0, "d": 64}


def test_a_right_packing_has_no_faults() -> None:
    assert check_packing(BUFFERS, OFFSETS, 16, 72) == []
    assert check_packing([], {}) == []


@pytest.mark.parametrize(
    ("offsets", "faults"),
    [
        ({"d": 32}, ["buffers c (bytes 0 to 48) and d (bytes 32 to 40) overlap between times 3 and 6"]),
        ({"a": -16}, ["buffer a: its offset -16 is negative"]),
        ({"a": 8}, ["buffer a: its offset 8 is no multiple of 16"]),
        ({"d": 80}, ["buffer d ends at 88, past the capacity 72"]),
        ({"a": None}, ["3 offsets for 4 buffers", "buffer a has no offset"]),
        ({"e": 96}, ["5 offsets for 4 buffers", "offset 96 is for e, but there is no such buffer"]),
        ({"a": 0.0}, ["buffer a: its offset 0.0 is no integer"]),
        ({"a": False}, ["buffer a: its offset False is no integer"]),
    ],
)
def test_each_fault_is_named(offsets: dict[str, Any], faults: list[str]) -> None:
    broken = {name: offset for name, offset in (OFFSETS | offsets).items() if offset is not None}
    assert check_packing(BUFFERS, broken, 16, 72) == faults


def test_twice_the_same_id() -> None:
    faults = check_packing(BUFFERS, [*OFFSETS.items(), ("a", 128)], 16)
    assert faults == ["5 offsets for 4 buffers", "buffer a has two offsets, 0 and 128"]
    faults = check_packing([*BUFFERS, BUFFERS[0]], OFFSETS, 16)
    assert faults == ["buffer a is there twice in the problem", "4 offsets for 5 buffers"]


def test_one_buffer_may_cover_many_others() -> None:
    buffers = [Buffer("long", 0, 9, 100), *(Buffer(f"s{i}", i, i + 1, 10) for i in range(9))]
    faults = check_packing(buffers, {b.id: 10 * i for i, b in enumerate(buffers)})
    assert len(faults) == 9
    assert all("buffers long" in fault for fault in faults)


def test_buffers_without_a_size_overlap_nothing() -> None:
    assert check_packing([Buffer("a", 0, 9, 8), Buffer("b", 0, 9, 0)], {"a": 0, "b": 4}) == []


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    number = draw(st.integers(2, 12))
    rows = [(draw(st.integers(0, 12)), draw(st.integers(1, 8)), draw(st.integers(1, 100))) for _ in range(number)]
    return Problem([Buffer(str(i), lower, lower + length, size) for i, (lower, length, size) in enumerate(rows)])


@settings(deadline=None)
@given(problems(), st.sampled_from([1, 16]), st.randoms(use_true_random=False))
def test_mutations_are_caught(problem: Problem, alignment: int, random: Any) -> None:
    """Breaks a right packing in every way, and finds overlaps exactly where drawing all bytes finds them."""
    packing = pack(problem, alignment=alignment, seconds=0.2)
    capacity = packing.peak
    assert check_packing(problem.buffers, packing.offsets, alignment, capacity) == []
    victim = random.choice(problem.buffers)

    def faults(offset: int | None) -> list[str]:
        offsets = {k: v for k, v in packing.offsets.items() if k != victim.id}
        return check_packing(
            problem.buffers, offsets if offset is None else offsets | {victim.id: offset}, alignment, capacity
        )

    assert any("has no offset" in fault for fault in faults(None))
    assert any("is negative" in fault for fault in faults(-alignment))
    assert any("past the capacity" in fault for fault in faults(aligned_up(capacity, alignment)))
    if alignment > 1:
        assert any("no multiple" in fault for fault in faults(packing.offsets[victim.id] + 1))
    other = random.choice(problem.buffers)
    moved = packing.offsets | {victim.id: packing.offsets[other.id]}
    found = any("overlap" in fault for fault in check_packing(problem.buffers, moved))
    assert found == drawn_twice(problem, moved)


def aligned_up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def drawn_twice(problem: Problem, offsets: dict[str, int]) -> bool:
    """Whether some byte is used by two buffers at some time, found by drawing each byte at each time."""
    times = max(b.upper for b in problem.buffers)
    image = np.zeros((times, max(offsets[b.id] + b.size for b in problem.buffers)), int)
    for b in problem.buffers:
        image[b.lower : b.upper, offsets[b.id] : offsets[b.id] + b.size] += 1
    return bool((image > 1).any())
