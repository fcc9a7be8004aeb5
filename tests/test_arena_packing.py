"""Packing: always valid, never below the bound, optimal where a brute force can tell, and the known hard problems."""

from __future__ import annotations

import itertools
import os
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litefuse.arena import _native
from litefuse.arena.checker import check_packing
from litefuse.arena.greedy import best, place, sweep
from litefuse.arena.packing import Packing, pack
from litefuse.arena.problem import Buffer, Problem, ProblemError, read_csv

FOREVER = float("inf")


@st.composite
def problems(draw: st.DrawFn, most: int, longest: int = 10, largest: int = 1000) -> Problem:
    number = draw(st.integers(0, most))
    rows = [
        (draw(st.integers(0, longest)), draw(st.integers(1, longest)), draw(st.integers(0, largest)))
        for _ in range(number)
    ]
    return Problem([Buffer(f"b{i}", lower, lower + length, size) for i, (lower, length, size) in enumerate(rows)])


def optimum(problem: Problem) -> int:
    """The lowest peak, by trying all orders: some order that puts each buffer on top of what is below is best."""
    buffers = [b for b in problem.buffers if b.size]
    least = sum(b.size for b in buffers)
    for order in itertools.permutations(buffers):
        tops: list[tuple[Buffer, int]] = []
        for b in order:
            base = max((top for c, top in tops if c.lower < b.upper and b.lower < c.upper), default=0)
            tops.append((b, base + b.size))
        least = min(least, max((top for _, top in tops), default=0))
    return least


def valid(problem: Problem, packing: Packing, alignment: int = 1) -> None:
    assert check_packing(problem.buffers, packing.offsets, alignment, packing.peak) == []
    assert list(packing.offsets) == [b.id for b in problem.buffers]
    assert packing.peak >= packing.lower_bound >= problem.lower_bound(alignment)


@settings(deadline=None)
@given(problems(40), st.sampled_from([1, 3, 16, 64]))
def test_packings_are_valid(problem: Problem, alignment: int) -> None:
    packing = pack(problem, alignment=alignment, seconds=0.2)
    valid(problem, packing, alignment)
    assert packing.proved == (packing.peak == packing.lower_bound)
    assert packing.fits(packing.peak)
    assert not packing.fits(packing.peak - 1)


@settings(deadline=None)
@given(problems(6, longest=5, largest=6))
def test_tiny_problems_are_optimal_and_proved(problem: Problem) -> None:
    best_peak = optimum(problem)
    packing = pack(problem)
    valid(problem, packing)
    assert packing.proved
    assert packing.peak == best_peak
    if best_peak > problem.lower_bound():
        # Infeasible capacities are proved so by the search, not by the bound.
        below = pack(problem, capacity=best_peak - 1)
        assert below.lower_bound == best_peak
        assert not below.fits(best_peak - 1)
        valid(problem, below)
    assert pack(problem, capacity=best_peak).fits(best_peak)


@settings(deadline=None)
@given(problems(6, longest=5, largest=8), st.integers(-2, 2))
def test_the_exact_search_alone_agrees_with_brute_force(problem: Problem, off: int) -> None:
    best_peak = optimum(problem)
    packer = _native.Packer([(b.lower, b.upper, b.size) for b in problem.buffers], best_peak + off)
    assert packer.run(10**9, 60.0) == ("infeasible" if off < 0 else "found")
    if off >= 0:
        offsets = dict(zip((b.id for b in problem.buffers), packer.offsets, strict=True))
        assert check_packing(problem.buffers, offsets, capacity=best_peak + off) == []
    else:
        assert packer.offsets == []


# The most live bytes are 5, but 6 are needed.
GAP_ROWS = [(0, 10, 1), (0, 1, 3), (0, 7, 1), (1, 6, 2), (1, 4, 1), (4, 9, 1), (6, 7, 1), (6, 11, 1), (7, 9, 2)]
GAP = Problem([Buffer(str(i), *row) for i, row in enumerate([*GAP_ROWS, (9, 11, 3), (10, 11, 1)])])


def fits_by_trying(problem: Problem, capacity: int) -> bool:
    """Whether a packing exists, by trying each offset for each buffer."""

    def put(at: int, used: frozenset[tuple[int, int]]) -> bool:
        if at == len(problem.buffers):
            return True
        b = problem.buffers[at]
        for offset in range(capacity - b.size + 1):
            cells = {(t, x) for t in range(b.lower, b.upper) for x in range(offset, offset + b.size)}
            if not cells & used and put(at + 1, used | cells):
                return True
        return False

    return put(0, frozenset())


def test_the_bound_can_be_out_of_reach_and_the_search_proves_it() -> None:
    assert not fits_by_trying(GAP, 5)
    assert fits_by_trying(GAP, 6)
    assert GAP.lower_bound() == 5
    packing = pack(GAP)
    valid(GAP, packing)
    assert packing.proved
    assert packing.peak == 6
    infeasible = pack(GAP, capacity=5)
    assert infeasible.lower_bound == 6
    assert not infeasible.fits(5)
    # With an alignment of 4 each size counts as 4, and seven buffers live at once in the middle.
    assert pack(GAP, alignment=4).lower_bound == GAP.lower_bound(4)
    # The same shape in other units.
    scaled = Problem([b._replace(size=b.size * 48) for b in GAP.buffers])
    assert pack(scaled, alignment=16).peak == 6 * 48


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**9))
def test_random_tilings_agree_with_trying_all_offsets(seed: int) -> None:
    """Problems in which every moment is full to the bound: the hardest of their size."""
    generator = random.Random(seed)
    times, height = generator.randrange(4, 9), generator.randrange(3, 6)
    load = [0] * times
    buffers: list[Buffer] = []
    for lower in range(times):
        while load[lower] < height:
            upper = min(times, lower + generator.randrange(1, times))
            while max(load[lower:upper]) >= height:
                upper -= 1
            size = generator.randrange(1, min(3, height - max(load[lower:upper])) + 1)
            for t in range(lower, upper):
                load[t] += size
            buffers.append(Buffer(str(len(buffers)), lower, upper, size))
    problem = Problem(buffers[:12])
    bound = problem.lower_bound()
    assert pack(problem).proved
    assert (pack(problem).peak == bound) == fits_by_trying(problem, bound)


@settings(deadline=None)
@given(problems(30), st.sampled_from(["size", "sweep", "best"]))
def test_quick_packings_are_valid(problem: Problem, which: str) -> None:
    buffers = problem.buffers
    if which == "size":
        order = sorted(range(len(buffers)), key=lambda i: -buffers[i].size)
        offsets = place(buffers, order, lowest=False, deadline=FOREVER)
        assert offsets is not None
    elif which == "sweep":
        offsets = sweep(buffers).offsets
    else:
        offsets = best(buffers, bound=0, deadline=FOREVER).offsets
    assert check_packing(buffers, dict(zip((b.id for b in buffers), offsets, strict=True))) == []


def full(seed: int) -> list[tuple[int, int, int]]:
    """(lower, upper, size) of buffers that fill 300 units at each of 120 times, so that quick packings do not do."""
    generator = random.Random(seed)
    load = [0] * 120
    rows = []
    for lower in range(120):
        while load[lower] < 300:
            upper = min(120, lower + generator.choice([1, 2, 4, 8, 16, 60]))
            size = min(generator.randrange(8, 70), 300 - max(load[lower:upper]))
            while size <= 0:
                upper -= 1
                size = 300 - max(load[lower:upper])
            for t in range(lower, upper):
                load[t] += size
            rows.append((lower, upper, size))
    return rows


@pytest.mark.parametrize(("capacity", "answer"), [(300, "infeasible"), (316, "found")])
def test_the_result_is_the_same_every_time_however_it_is_cut_into_calls(capacity: int, answer: str) -> None:
    def run(nodes: int) -> tuple[list[str], list[int], int]:
        packer = _native.Packer(full(2), capacity)
        answers = ["limit"]
        while answers[-1] == "limit":
            answers.append(packer.run(nodes, 1e9))
        return answers, packer.offsets, packer.nodes

    whole = run(10**6)
    assert whole == run(10**6)
    assert whole[0] == ["limit", answer]
    pieces = run(1)
    assert len(pieces[0]) > 3
    assert pieces[0][-1] == answer
    assert pieces[1:] == whole[1:]


def test_the_order_of_the_buffers_does_not_matter_to_the_search() -> None:
    rows = full(2)
    shuffled = list(rows)
    random.Random(2).shuffle(shuffled)
    packings = []
    for given_rows in (rows, shuffled):
        packer = _native.Packer(given_rows, 316)
        assert packer.run(10**6, 1e9) == "found"
        packings.append((sorted(zip(given_rows, packer.offsets, strict=True)), packer.nodes))
    assert packings[0] == packings[1]


def test_fixed_offsets_stay_and_the_rest_goes_around() -> None:
    problem = Problem([Buffer("a", 0, 4, 10), Buffer("b", 2, 6, 20), Buffer("c", 3, 5, 5)])
    packing = pack(problem, alignment=4, fixed={"a": 8})
    valid(problem, packing, 4)
    assert packing.offsets["a"] == 8
    assert packing.offsets["c"] == 0
    for fixed, message in [
        ({"x": 0}, "no such buffer"),
        ({"a": -4}, "no multiple"),
        ({"a": 6}, "no multiple"),
        ({"a": 0, "b": 8}, "overlap"),
    ]:
        with pytest.raises(ProblemError, match=message):
            pack(problem, alignment=4, fixed=fixed)


@settings(deadline=None)
@given(problems(20), st.randoms(use_true_random=False))
def test_fixed_offsets_of_a_packing_are_kept(problem: Problem, generator: random.Random) -> None:
    first = pack(problem, alignment=4, seconds=0.2)
    fixed = {name: offset for name, offset in first.offsets.items() if generator.random() < 0.5}
    second = pack(problem, alignment=4, seconds=0.2, fixed=fixed)
    valid(problem, second, 4)
    assert {name: second.offsets[name] for name in fixed} == fixed


def test_a_capacity_below_the_bound_is_infeasible_at_once() -> None:
    problem = Problem([Buffer("a", 0, 2, 10), Buffer("b", 1, 3, 10)])
    packing = pack(problem, capacity=19)
    assert packing.lower_bound == 20
    assert not packing.fits(19)
    assert not pack(problem, capacity=-1).fits(-1)
    with pytest.raises(ProblemError, match="alignment"):
        pack(problem, alignment=0)


@pytest.mark.parametrize("shift", [0, 61, 62, 64, 200])
def test_huge_numbers(shift: int) -> None:
    big = 1 << shift
    problem = Problem([Buffer(str(i), -big + i, big + 2 * i, big + i) for i in range(5)])
    packing = pack(problem, seconds=0.5)
    valid(problem, packing)
    assert packing.proved
    # Times past 64 bits do not keep the search from proving what it proves for small ones.
    stretched = Problem([b._replace(lower=b.lower << shift, upper=b.upper << shift) for b in GAP.buffers])
    assert pack(stretched).peak == 6
    assert pack(stretched).proved


def test_the_native_search_refuses_what_it_cannot_count() -> None:
    for buffers, capacity, error in [
        ([(0, 1, 2**60 + 1)], 5, ValueError),
        ([(0, 1, 2**59), (5, 6, 2**59), (5, 6, 1)], 5, ValueError),
        ([(0, 1, 2**63)], 5, TypeError),
        ([(0, 1, -1)], 5, ValueError),
        ([(1, 1, 1)], 5, ValueError),
        ([(0, 1, 1)] * (_native.MAX_BUFFERS + 1), 5, ValueError),
        ([(0, 1)], 5, TypeError),
    ]:
        with pytest.raises(error):
            _native.Packer(buffers, capacity)  # type: ignore[arg-type]
    widest = [(-(2**63), 2**63 - 1, 2**59), (-(2**63), 2**63 - 1, 2**59)]
    assert _native.Packer(widest, 2**63 - 1).run(2**62, float("nan")) == "found"
    assert _native.Packer(widest, -(2**63)).run(2**62, -1.0) == "infeasible"
    assert _native.Packer([(0, 2, 5), (1, 3, 5)], 10).run(-1, 1.0) in ("limit", "found")


def test_supports_that_lift_each_other_do_not_take_forever() -> None:
    """Buffers of size 1 beside huge ones: naive propagation would climb in steps of 1."""
    generator = random.Random(3)
    for _ in range(20):
        rows = [
            (
                low := generator.randrange(12),
                low + generator.randrange(1, 9),
                generator.choice([1, 2, 2**40, 2**40 + 1]),
            )
            for _ in range(25)
        ]
        problem = Problem([Buffer(str(i), *row) for i, row in enumerate(rows)])
        packing = pack(problem, seconds=0.3)
        valid(problem, packing)
        assert packing.seconds < 5


def test_many_buffers_stay_bounded() -> None:
    generator = random.Random(2)
    rows = [(low := generator.randrange(10**6), low + generator.randrange(1, 10**6)) for _ in range(20_000)]
    problem = Problem([Buffer(str(i), *row, generator.randrange(10**6)) for i, row in enumerate(rows)])
    packing = pack(problem, seconds=1.0)
    valid(problem, packing)
    assert packing.seconds < 15


def test_threads_run_side_by_side_and_a_shared_packer_is_refused() -> None:
    rows = [(i % 7, i % 7 + 1 + i % 5, 1 + i * 37 % 101) for i in range(120)]
    capacity = Problem([Buffer(str(i), *row) for i, row in enumerate(rows)]).lower_bound()
    packer = _native.Packer(rows, capacity)
    answers: list[str] = []
    errors: list[RuntimeError] = []

    def run() -> None:
        try:
            answers.append(packer.run(10**9, 0.3))
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) + len(errors) == 2
    assert answers


def arena_problems() -> list[object]:
    files = sorted((Path(os.environ.get("LITEFUSE_CORPUS") or "/nonexistent") / "arena").glob("*.csv"))
    skipped = pytest.param(None, marks=pytest.mark.skip(reason="LITEFUSE_CORPUS is not set, or holds no arena/*.csv"))
    return [pytest.param(path, id=path.stem) for path in files] or [skipped]


@pytest.mark.parametrize("path", arena_problems())
def test_known_hard_problems_reach_the_bound(path: Path) -> None:
    """The capacity is part of the file's name. It is the bound, but for C, whose bound (1039360) is reached as well."""
    problem = read_csv(path)
    bound = problem.lower_bound()
    packing = pack(problem, capacity=bound, seconds=120)
    valid(problem, packing)
    assert packing.proved
    assert packing.peak == bound <= int(path.stem.split(".")[1])
