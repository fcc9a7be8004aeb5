"""Layouts are maps: what they say of axes, operands and constants must hold for arrays. The cut must be the least."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from litefuse.fusions.layout import Impossible, Layout, Order, Reshaped, Shuffled, regroup
from litefuse.fusions.relayout import _Cut

Shape = tuple[int, ...]
shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def numbers(shape: Shape) -> np.ndarray:
    return np.arange(math.prod(shape)).reshape(shape)


@st.composite
def orders(draw: Any) -> Order:
    shape = draw(shapes)
    return Order(shape, tuple(draw(st.permutations(range(len(shape))))))


@st.composite
def reshapings(draw: Any) -> Reshaped:
    """Two shapes of one size: the second joins and splits runs of the first, with axes of size one strewn in."""
    factors = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))

    def shape() -> Shape:
        found, i = [], 0
        while i < len(factors):
            n = draw(st.integers(1, 2))
            found.append(math.prod(factors[i : i + n]))
            i += n
        for _ in range(draw(st.integers(0, 2))):
            found.insert(draw(st.integers(0, len(found))), 1)
        return tuple(found)

    return Reshaped(shape(), shape())


@st.composite
def shufflings(draw: Any) -> Shuffled:
    inner = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple))
    outer = draw(st.lists(st.integers(1, 3), max_size=2).map(tuple))
    return Shuffled((*outer, math.prod(inner)), inner, tuple(draw(st.permutations(range(len(inner))))))


layouts = st.one_of(orders(), reshapings(), shufflings())


@given(layouts)
def test_moving_there_and_back(layout: Layout) -> None:
    x = numbers(layout.old)
    moved = layout.moved(x)
    assert moved.shape == layout.new
    assert np.array_equal(layout.inverse().moved(moved), x)
    assert layout.then(layout.inverse()).is_identity
    if layout.is_identity:
        assert np.array_equal(moved, x)


@given(layouts, st.data())
def test_an_axis_is_where_it_is_said_to_be(layout: Layout, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(layout.old) - 1))
    try:
        place = layout.axis(axis)
    except Impossible:
        assume(False)
    x = numbers(layout.old)
    order = np.array(data.draw(st.permutations(range(layout.old[axis]))))
    assert np.array_equal(layout.moved(np.take(x, order, axis)), np.take(layout.moved(x), order, place))


@given(layouts, st.data())
def test_siblings_are_joined_along_an_axis(layout: Layout, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(layout.old) - 1))
    other = (*layout.old[:axis], layout.old[axis] + data.draw(st.integers(1, 2)), *layout.old[axis + 1 :])
    try:
        place = layout.axis(axis)
        sibling = layout.sibling(other)
    except Impossible:
        assume(False)
    x, y = numbers(layout.old), numbers(other) + 100
    both = np.concatenate([x, y], axis)
    whole = layout.sibling(both.shape)
    assert np.array_equal(whole.moved(both), np.concatenate([layout.moved(x), sibling.moved(y)], place))


@given(layouts, st.data())
def test_operands_are_broadcast_alike(layout: Layout, data: st.DataObject) -> None:
    rank = len(layout.old)
    kept = data.draw(st.integers(0, rank))
    shape = tuple(d if data.draw(st.booleans()) else 1 for d in layout.old[rank - kept :])
    try:
        there = layout.operand(shape)
    except Impossible:
        assume(False)
    x, y = numbers(layout.old), numbers(shape) * 1000
    moved = y if there is None else there.moved(y)
    assert np.array_equal(layout.moved(x + y), layout.moved(x) + moved)
    assert (layout.moved(x) + moved).shape == layout.new


@given(layouts, st.data())
def test_dropping_axes(layout: Layout, data: st.DataObject) -> None:
    axes = data.draw(st.sets(st.integers(0, len(layout.old) - 1)))
    try:
        places = [layout.axis(a) for a in axes]
        left = layout.without(axes)
    except Impossible:
        assume(False)
    x = numbers(layout.old)
    assert np.array_equal(left.moved(x.sum(tuple(axes))), layout.moved(x).sum(tuple(places)))


@given(layouts, st.data())
def test_adding_an_axis(layout: Layout, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(layout.old)))
    try:
        whole, place = layout.with_axis(axis, 2)
    except Impossible:
        assume(False)
    parts = [numbers(layout.old), numbers(layout.old) + 100]
    assert np.array_equal(whole.moved(np.stack(parts, axis)), np.stack([layout.moved(p) for p in parts], place))


@given(reshapings(), st.data())
def test_orders_pass_through_reshapes(reshaping: Reshaped, data: st.DataObject) -> None:
    order = Order(reshaping.old, tuple(data.draw(st.permutations(range(len(reshaping.old))))))
    try:
        after = order.through_reshape(reshaping.new)
    except Impossible:
        assume(False)
    x = numbers(order.old)
    assert np.array_equal(after.moved(x.reshape(reshaping.new)), order.moved(x).reshape(after.new))


def test_orders_pass_through_common_reshapes() -> None:
    nhwc = (0, 2, 3, 1)
    assert Order((1, 8, 4, 5), nhwc).through_reshape((1, 8, 20)).order == (0, 2, 1)
    assert Order((1, 8, 1, 1), nhwc).through_reshape((1, 8)).order == (0, 1)
    assert Order((1, 8, 1, 1), nhwc).through_reshape((1, 1, 1, 8)).is_identity
    assert Order((-1, 8, 4, 5), nhwc).through_reshape((-1, 8, 20)).order == (0, 2, 1)
    with pytest.raises(Impossible):
        Order((1, 8, 4, 5), nhwc).through_reshape((1, 32, 5))
    with pytest.raises(Impossible):
        Order((-1, 8, 4), (0, 2, 1)).through_reshape((-1, 16, 4))


@given(reshapings())
def test_groups_hold_the_same_elements(reshaping: Reshaped) -> None:
    groups = regroup(reshaping.old, reshaping.new)
    assert groups is not None
    for i, shape in enumerate((reshaping.old, reshaping.new)):
        assert [a for group in groups for a in group[i]] == list(range(len(shape)))
    for before, after in groups:
        assert math.prod(reshaping.old[a] for a in before) == math.prod(reshaping.new[a] for a in after)


def test_groups_of_unknown_sizes() -> None:
    assert regroup((-1, 6), (-1, 1, 6)) == [
        (range(1), range(1)),
        (range(1, 1), range(1, 2)),
        (range(1, 2), range(2, 3)),
    ]
    assert regroup((-1, 6), (-1, 12)) == [(range(2), range(2))]  # the unknown is another one
    assert regroup((-1, -1, 6), (-1, 6)) is None
    assert regroup((2, 6), (-1, 6)) is None
    assert regroup((2, 0), (0, 2)) is None
    assert regroup((2, 6), (2, 7)) is None


def test_axes_of_unknown_sizes() -> None:
    layout = Reshaped((-1, 9, 4), (-1, 1, 9, 4))
    assert [layout.axis(a) for a in range(3)] == [0, 2, 3]
    with pytest.raises(Impossible):
        Reshaped((-1, 9, 4), (-1, 36)).axis(1)
    with pytest.raises(Impossible):
        Reshaped((-1, 8), (-1, 4)).axis(0)  # half as many in each row, so twice as many rows


# -- the cut -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 9)), max_size=18))
def test_the_cut_is_the_cheapest(count: int, edges: list[tuple[int, int, int]]) -> None:
    names = [0, 6, *range(1, count + 1)]
    edges = [(a, b, c) for a, b, c in edges if a in names and b in names and a != b]
    cut = _Cut()
    for a, b, c in edges:
        cut.add(a, b, c)
    cost, side = cut.solve(0, 6)

    def price(first: set[Any]) -> int:
        return sum(c for a, b, c in edges if a in first and b not in first)

    inner = names[2:]
    choices = [{0, *chosen} for size in range(len(inner) + 1) for chosen in itertools.combinations(inner, size)]
    assert cost == min(price(choice) for choice in choices) == price(side & set(names))
    cheapest = [choice for choice in choices if price(choice) == cost]
    assert all(side & set(names) <= choice for choice in cheapest)  # the smallest of them
