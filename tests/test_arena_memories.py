"""Tensors in several memories."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litefuse.arena.checker import check_packing
from litefuse.arena.memories import Memory, parse_bytes, parse_memories, place
from litefuse.arena.packing import pack
from litefuse.arena.problem import Buffer, Problem
from litefuse.errors import BudgetError

FAST, SLOW = Memory("sram", 100, 1.0), Memory("psram", 10_000, 4.0)


@pytest.mark.parametrize(
    ("text", "value"), [("65536", 65536), ("64K", 65536), ("0.5M", 524288), ("1GiB", 1 << 30), ("2kb", 2048), ("0", 0)]
)
def test_sizes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "K", "-1", "1T", "1.5.2", "ten"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="such as 256K"):
        parse_bytes(text)


def test_memories_are_read() -> None:
    assert parse_memories("sram=320K,psram=8M:slow") == [Memory("sram", 320 << 10), Memory("psram", 8 << 20, 4.0)]
    assert parse_memories("a=1:2.5") == [Memory("a", 1, 2.5)]


@pytest.mark.parametrize("text", ["sram", "=3K", "a=1K:fast", "a=1K:0", "a=1K,a=2K", "a=", "a=1:inf"])
def test_no_memories(text: str) -> None:
    with pytest.raises(ValueError, match=r"memory is|cost of|same name|size is"):
        parse_memories(text)


def random_problems() -> st.SearchStrategy[tuple[list[Buffer], list[int]]]:
    one = st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(1, 60), st.integers(0, 9))
    return st.lists(one, min_size=1, max_size=7).map(
        lambda rows: ([Buffer(str(i), a, a + n, s) for i, (a, n, s, _) in enumerate(rows)], [t for *_, t in rows])
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(random_problems())
def test_the_cheapest_of_all_choices(case: tuple[list[Buffer], list[int]]) -> None:
    buffers, moved = case
    traffic = {b.id: t * b.size for b, t in zip(buffers, moved, strict=True)}
    found = place(Problem(buffers), traffic, [SLOW, FAST])
    for memory in (FAST, SLOW):
        inside = [b for b in buffers if found.memory[b.id] == memory.name]
        offsets = {b.id: found.offsets[b.id] for b in inside}
        assert check_packing(inside, offsets, alignment=1, capacity=memory.size) == []
    best = min(
        sum(traffic[b.id] * (1 if stays else 4) for b, stays in zip(buffers, choice, strict=True))
        for choice in itertools.product([True, False], repeat=len(buffers))
        if pack(Problem([b for b, stays in zip(buffers, choice, strict=True) if stays]), capacity=100).fits(100)
    )
    assert found.lower_bound <= best + 1e-6
    assert found.cost >= best - 1e-6
    if found.proved:
        assert found.cost == pytest.approx(best)
    assert found.cost == sum(u.memory.cost * u.traffic for u in found.uses)


def test_what_is_moved_most_stays_fast() -> None:
    buffers = [Buffer("hot", 0, 4, 60), Buffer("cold", 0, 4, 60), Buffer("later", 5, 6, 90)]
    found = place(Problem(buffers), {"hot": 600, "cold": 60, "later": 90}, [FAST, SLOW], alignment=4)
    assert found.memory == {"hot": "sram", "cold": "psram", "later": "sram"}
    assert found.proved
    assert [u.traffic for u in found.uses] == [690, 60]


def test_three_memories() -> None:
    buffers = [Buffer(str(i), 0, 2, 50) for i in range(6)]
    memories = [Memory("a", 100, 1.0), Memory("b", 100, 2.0), Memory("c", 100, 8.0)]
    found = place(Problem(buffers), {str(i): 50 * (i + 1) for i in range(6)}, memories)
    assert [found.memory[str(i)] for i in range(6)] == ["c", "c", "b", "b", "a", "a"]


def test_everything_in_one() -> None:
    found = place(Problem([Buffer("a", 0, 1, 10)]), {"a": 20}, [FAST])
    assert (found.cost, found.proved) == (20, True)
    assert place(Problem([]), {}, [FAST, SLOW]).cost == 0


@pytest.mark.parametrize(
    ("memories", "words"),
    [
        ([Memory("sram", 50)], "take 120 bytes, and sram has 50"),
        ([Memory("sram", 50), Memory("psram", 60, 2)], "120 bytes live at one time, and sram and psram have 110"),
        ([Memory("sram", 50), Memory("psram", 80, 2)], "needs 120 bytes, and psram has 80"),
    ],
)
def test_what_does_not_fit_is_said(memories: list[Memory], words: str) -> None:
    buffers = [Buffer("a", 0, 1, 60), Buffer("b", 0, 1, 60)]
    with pytest.raises(BudgetError, match=words):
        place(Problem(buffers), {}, memories)
