"""Slices, joins and splits that cancel or merge; the same elements, and no copy that is not needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litefuse.fusions import dead_code, identity, slicing
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from tests.rules import apply, fuse, kinds, looped, operators, refusals

PARTS, OF_PART, COMPOSE, TO_SLICE, FLATTEN, TO_RESHAPE = slicing.RULES
F32, I8, U8, I32 = (TensorType[n] for n in ("FLOAT32", "INT8", "UINT8", "INT32"))
SHAPE = (2, 6, 8, 5)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def cut(b: Builder, x: int, begin: list[int], size: list[int], **options: Any) -> int:
    return b.op(Op.SLICE, [x, b.constant("begin", begin), b.constant("size", size)], **options)


def strided(b: Builder, x: int, begin: list[int], end: list[int], strides: list[int], **options: Any) -> int:
    bounds = [b.constant(n, v) for n, v in (("begin", begin), ("end", end), ("strides", strides))]
    return b.op(Op.STRIDED_SLICE, [x, *bounds], **options)


def gather(b: Builder, x: int, places: Any, axis: int) -> int:
    return b.op(Op.GATHER, [x, b.constant("places", np.array(places, np.int32))], axis=axis)


def split(b: Builder, x: int, axis: int, count: int, **options: Any) -> list[int]:
    options = {"type": F32} | options
    first = b.op(Op.SPLIT, [b.constant("axis", np.int32(axis)), x], num_splits=count, outputs=count, **options)
    return [first + i for i in range(count)]


def split_v(b: Builder, x: int, axis: int, sizes: list[int]) -> list[int]:
    inputs = [x, b.constant("sizes", sizes), b.constant("axis", np.int32(axis))]
    first = b.op(Op.SPLIT_V, inputs, num_splits=len(sizes), outputs=len(sizes))
    return [first + i for i in range(len(sizes))]


def unpack(b: Builder, x: int, axis: int, count: int) -> list[int]:
    first = b.op(Op.UNPACK, [x], axis=axis, num=count, outputs=count)
    return [first + i for i in range(count)]


def model_of(make: Any, *shapes: tuple[int, ...]) -> Model:
    """A model of what ``make`` builds on its inputs, each read and the result written by other operators."""
    b = Builder()
    inputs = [b.op(Op.NEG, [b.input(f"x{i}", s)]) for i, s in enumerate(shapes)]
    made = make(b, *inputs)
    return b.model([b.op(Op.ABS, [t]) for t in (made if isinstance(made, list) else [made])])


# -- slices of slices ----------------------------------------------------------------------------------------------


def test_two_slices() -> None:
    model = model_of(lambda b, x: cut(b, cut(b, x, [0, 1, 2, 0], [2, 5, -1, 4]), [1, 2, 0, 1], [-1, 2, 3, 2]), SHAPE)
    assert kinds(fuse(model, COMPOSE)[0]) == ["NEG", "SLICE", "ABS"]


def test_strided_slices() -> None:
    def make(b: Builder, x: int) -> int:
        y = strided(b, x, [0, 1, 0, -4], [2, 99, 8, 5], [1, 2, 1, 1], begin_mask=1)
        return strided(b, y, [0, -2, 1, 0], [1, 3, 8, 0], [1, 1, 3, 2], end_mask=8)

    assert kinds(fuse(model_of(make, SHAPE), COMPOSE)[0]) == ["NEG", "STRIDED_SLICE", "ABS"]


@pytest.mark.parametrize("first", ["slice", "strided"])
def test_an_axis_that_is_dropped_in_the_end(first: str) -> None:
    def make(b: Builder, x: int) -> int:
        if first == "slice":
            y = cut(b, x, [0, 1, 2, 0], [2, 4, 6, 5])
        else:
            y = strided(b, x, [0, 1, 2, 0], [2, 5, 8, 5], [1, 1, 2, 1])
        return strided(b, y, [0, 3, 0, 0], [2, 4, 2, 5], [1, 1, 1, 1], shrink_axis_mask=2)

    assert kinds(fuse(model_of(make, SHAPE), COMPOSE)[0]) == ["NEG", "STRIDED_SLICE", "ABS"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_two_slices(data: st.DataObject) -> None:
    def bounds(size: int) -> tuple[int, int, int]:
        stride = data.draw(st.integers(1, 3))
        begin = data.draw(st.integers(0, size - 1))
        end = data.draw(st.integers(begin + 1, size + 1))
        if data.draw(st.booleans()):
            begin -= size
        return begin, end, stride

    def make(b: Builder, x: int) -> int:
        y, shape = x, (3, 7, 5)
        for _ in range(2):
            begins, ends, strides = (list(v) for v in zip(*(bounds(d) for d in shape), strict=True))
            shape = tuple(
                len(range(d)[f : min(e, d) : s]) for d, f, e, s in zip(shape, begins, ends, strides, strict=True)
            )
            y = strided(b, y, begins, ends, strides)
        return y

    model = model_of(make, (3, 7, 5))
    after, report = fuse(model, COMPOSE, cases=["normal"], xnnpack=[False])
    assert report.counts() == {"compose-slices": 1}
    assert kinds(after).count("STRIDED_SLICE") == 1


def test_slices_of_an_unknown_batch() -> None:
    def make(b: Builder, x: int) -> int:
        y = strided(b, x, [0, 1], [0, 5], [1, 1], begin_mask=1, end_mask=1)
        return strided(b, y, [0, 0], [0, 2], [1, 1], begin_mask=1, end_mask=1)

    after, _ = fuse(model_of(make, (-1, 6)), COMPOSE)
    assert kinds(after) == ["NEG", "STRIDED_SLICE", "ABS"]
    model = model_of(lambda b, x: cut(b, cut(b, x, [0, 1], [-1, 4]), [0, 0], [-1, 2]), (-1, 6))
    assert kinds(fuse(model, COMPOSE)[0]) == ["NEG", "SLICE", "ABS"]


def test_all_that_read_the_first_slice_are_slices() -> None:
    def make(b: Builder, x: int) -> list[int]:
        y = cut(b, x, [0, 1, 0, 0], [2, 4, 8, 5])
        return [cut(b, y, [0, i, 0, 0], [2, 1, 8, 5]) for i in range(4)]

    after, report = fuse(model_of(make, SHAPE), COMPOSE)
    assert kinds(after).count("SLICE") == report.counts()["compose-slices"] == 4


def test_gathers() -> None:
    model = model_of(lambda b, x: gather(b, gather(b, x, [5, 0, 3, 3], 1), [[2, 0], [1, 1]], 2), SHAPE)
    assert kinds(fuse(model, COMPOSE)[0]) != ["NEG", "GATHER", "ABS"]  # another axis
    model = model_of(lambda b, x: gather(b, gather(b, x, [5, 0, 3, 3], 1), [[2, 0], [1, 1]], 1), SHAPE)
    assert kinds(fuse(model, COMPOSE)[0]) == ["NEG", "GATHER", "ABS"]
    model = model_of(lambda b, x: gather(b, cut(b, x, [0, 2, 0, 0], [2, 4, 8, 5]), [3, 0], 1), SHAPE)
    assert kinds(fuse(model, COMPOSE)[0]) == ["NEG", "GATHER", "ABS"]
    model = model_of(lambda b, x: cut(b, gather(b, x, [5, 0, 3, 3], 1), [0, 1, 0, 0], [2, 2, 8, 5]), SHAPE)
    assert kinds(fuse(model, COMPOSE)[0]) == ["NEG", "GATHER", "ABS"]


def test_what_does_not_compose() -> None:
    backwards = lambda b, x: strided(b, cut(b, x, [0, 1], [2, 4]), [0, 3], [2, -5], [1, -1])  # noqa: E731
    assert refusals(model_of(backwards, (2, 6)), COMPOSE) == []
    fresh = lambda b, x: strided(b, cut(b, x, [0, 1], [2, 4]), [0, 0], [2, 4], [1, 1], new_axis_mask=1)  # noqa: E731
    assert refusals(model_of(fresh, (2, 6)), COMPOSE) == []
    dropped = lambda b, x: strided(  # noqa: E731
        b, strided(b, x, [1, 0], [2, 6], [1, 1], shrink_axis_mask=1), [1], [3], [1]
    )
    assert refusals(model_of(dropped, (2, 6)), COMPOSE) == []
    apart = lambda b, x: cut(b, gather(b, x, [3, 1], 1), [1, 0], [1, 2])  # noqa: E731
    assert refusals(model_of(apart, (2, 6)), COMPOSE) == []


def test_the_first_slice_is_needed() -> None:
    def make(b: Builder, x: int) -> list[int]:
        y = cut(b, x, [0, 1], [2, 4])
        return [cut(b, y, [0, 1], [2, 2]), y]

    (reason,) = refusals(model_of(make, (2, 6)), COMPOSE)
    assert "also read by ABS" in reason


# -- GATHER of neighbours --------------------------------------------------------------------------------------------


def test_neighbours_are_a_slice() -> None:
    model = model_of(lambda b, x: gather(b, x, [2, 3, 4], 2), SHAPE)
    assert kinds(fuse(model, TO_SLICE)[0]) == ["NEG", "SLICE", "ABS"]
    b = Builder()
    x = b.op(
        Op.LOGISTIC,
        [b.input("x", SHAPE, I8, quantized(0.1, 3))],
        version=2,
        type=I8,
        quantization=quantized(1 / 256, -128),
    )
    y = b.op(Op.GATHER, [x, b.constant("i", ints(0, 1))], axis=-1, version=2)
    model = b.model([b.op(Op.TANH, [y], version=2, type=I8, quantization=quantized(1 / 128, 0))])
    assert kinds(fuse(model, TO_SLICE)[0]) == ["LOGISTIC", "SLICE", "TANH"]


def test_other_gathers_stay() -> None:
    for places in ([2, 1], [0, 2], [1, 1], 3, [[0, 1]]):
        assert refusals(model_of(lambda b, x, p=places: gather(b, x, p, 1), SHAPE), TO_SLICE) == []
    assert refusals(model_of(lambda b, x: gather(b, x, [0, 1], 1), (-1, 6)), TO_SLICE) == []
    b = Builder()
    y = b.op(
        Op.GATHER, [b.op(Op.CUMSUM, [b.input("x", (6, 2)), b.constant("a", np.int32(0))]), b.constant("i", ints(1, 2))]
    )
    model = b.model([b.op(Op.CUMSUM, [y, b.constant("c", np.int32(0))])])
    assert refusals(model, TO_SLICE) == []  # XNNPACK is nowhere near


# -- parts of joined tensors -----------------------------------------------------------------------------------------


def test_a_slice_that_takes_one_part() -> None:
    def make(b: Builder, x: int, y: int) -> int:
        return cut(b, b.op(Op.CONCATENATION, [x, y], axis=-1), [0, 0, 0, 5], [2, 6, 8, 3])

    after, _ = fuse(model_of(make, SHAPE, (2, 6, 8, 3)), OF_PART, *identity.RULES, *dead_code.RULES)
    assert kinds(after) == ["NEG", "ABS"]


def test_a_slice_within_one_part() -> None:
    def make(b: Builder, x: int, y: int) -> int:
        joined = b.op(Op.CONCATENATION, [x, y], axis=1)
        return strided(b, joined, [0, 7, 0, 1], [2, 9, 8, 5], [1, 1, 2, 3], end_mask=8)

    after, _ = fuse(model_of(make, SHAPE, (2, 4, 8, 5)), OF_PART, *dead_code.RULES)
    assert kinds(after) == ["NEG", "STRIDED_SLICE", "ABS"]


def test_slices_that_stay() -> None:
    def both(b: Builder, x: int, y: int) -> int:
        return cut(b, b.op(Op.CONCATENATION, [x, y], axis=1), [0, 4, 0, 0], [2, 4, 8, 5])

    assert refusals(model_of(both, SHAPE, SHAPE), OF_PART) == []

    def needed(b: Builder, x: int, y: int) -> list[int]:
        joined = b.op(Op.CONCATENATION, [x, y], axis=1)
        return [cut(b, joined, [0, 7, 0, 0], [2, 2, 8, 5]), joined]

    (reason,) = refusals(model_of(needed, SHAPE, SHAPE), OF_PART)
    assert "also read by ABS" in reason


def test_parts_that_were_rescaled_when_joined() -> None:
    b = Builder()
    x, y = b.input("x", (1, 4), U8, quantized(0.1, 3)), b.input("y", (1, 4), U8, quantized(0.2, 5))
    joined = b.op(Op.CONCATENATION, [x, y], axis=1, type=U8, quantization=quantized(0.2, 5))
    assert refusals(b.model([cut(b, joined, [0, 0], [1, 4])]), OF_PART) == []
    b = Builder()
    x, y = b.input("x", (1, 4), U8, quantized(0.1, 3)), b.input("y", (1, 4), U8, quantized(0.2, 5))
    joined = b.op(Op.CONCATENATION, [x, y], axis=1, type=U8, quantization=quantized(0.2, 5))
    first, second = split(b, joined, 1, 2, type=U8, quantization=quantized(0.2, 5))
    q = {"type": U8, "quantization": quantized(0.2, 5)}
    assert refusals(b.model([b.op(Op.RELU, [t], version=2, **q) for t in (first, second)]), PARTS) == []


# -- split and joined, joined and split --------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [1, -3])
def test_split_and_joined(axis: int) -> None:
    model = model_of(lambda b, x: b.op(Op.CONCATENATION, split(b, x, 1, 3), axis=axis), SHAPE)
    assert kinds(fuse(model, PARTS)[0]) == ["NEG", "ABS"]
    model = model_of(lambda b, x: b.op(Op.CONCATENATION, split_v(b, x, axis, [1, 2, 3]), axis=1), SHAPE)
    assert kinds(fuse(model, PARTS)[0]) == ["NEG", "ABS"]


def test_unpacked_and_packed() -> None:
    model = model_of(lambda b, x: b.op(Op.PACK, unpack(b, x, 1, 6), axis=-3, values_count=6), SHAPE)
    assert kinds(fuse(model, PARTS)[0]) == ["NEG", "ABS"]


def test_joined_and_split() -> None:
    def make(b: Builder, x: int, y: int) -> list[int]:
        return split(b, b.op(Op.CONCATENATION, [x, y], axis=3), -1, 2)

    assert kinds(fuse(model_of(make, SHAPE, SHAPE), PARTS)[0]) == ["NEG", "NEG", "ABS", "ABS"]

    def unequal(b: Builder, x: int, y: int) -> list[int]:
        return split_v(b, b.op(Op.CONCATENATION, [x, y], axis=1), 1, [6, 2])

    assert kinds(fuse(model_of(unequal, SHAPE, (2, 2, 8, 5)), PARTS)[0]) == ["NEG", "NEG", "ABS", "ABS"]


def test_packed_and_unpacked() -> None:
    def make(b: Builder, x: int, y: int) -> list[int]:
        return unpack(b, b.op(Op.PACK, [x, y], axis=2, values_count=2), 2, 2)

    assert kinds(fuse(model_of(make, (-1, 6, 5), (-1, 6, 5)), PARTS)[0]) == ["NEG", "NEG", "ABS", "ABS"]


def test_other_orders_other_axes_other_places() -> None:
    swapped = lambda b, x: b.op(Op.CONCATENATION, split(b, x, 1, 2)[::-1], axis=1)  # noqa: E731
    assert refusals(model_of(swapped, SHAPE), PARTS) == []
    some = lambda b, x: b.op(Op.CONCATENATION, split(b, x, 1, 3)[:2], axis=1)  # noqa: E731
    assert refusals(model_of(some, SHAPE), PARTS) == []
    across = lambda b, x: b.op(Op.CONCATENATION, split(b, x, 1, 2), axis=2)  # noqa: E731
    assert refusals(model_of(across, SHAPE), PARTS) == []
    elsewhere = lambda b, x, y: split_v(b, b.op(Op.CONCATENATION, [x, y], axis=1), 1, [5, 7])  # noqa: E731
    assert refusals(model_of(elsewhere, SHAPE, SHAPE), PARTS) == []
    across_too = lambda b, x, y: split(b, b.op(Op.CONCATENATION, [x, y], axis=1), 2, 2)  # noqa: E731
    assert refusals(model_of(across_too, SHAPE, SHAPE), PARTS) == []
    unpacked = lambda b, x, y: unpack(b, b.op(Op.PACK, [x, y], axis=0, values_count=2), 1, 2)  # noqa: E731
    assert refusals(model_of(unpacked, SHAPE, SHAPE), PARTS) == []


def test_outputs_of_the_model_must_be_written() -> None:
    b = Builder()
    x = b.input("x", SHAPE)
    (reason,) = refusals(b.model([b.op(Op.CONCATENATION, split(b, x, 1, 3), axis=1)]), PARTS)
    assert "both inputs or outputs" in reason
    b = Builder()
    joined = b.op(Op.CONCATENATION, [b.op(Op.NEG, [b.input("x", SHAPE)]), b.op(Op.ABS, [b.input("y", SHAPE)])], axis=1)
    (reason,) = refusals(b.model(split(b, joined, 1, 2)), PARTS)
    assert "outputs of the model" in reason


def test_inside_a_loop() -> None:
    b = Builder()
    y = b.op(Op.CONCATENATION, split(b, b.op(Op.TANH, [b.input("x", (2, 4))]), 1, 2), axis=1)
    assert kinds(fuse(looped(b.model([b.op(Op.NEG, [y])])), PARTS)[0], 2) == ["TANH", "NEG", "ADD"]


# -- nested joins ----------------------------------------------------------------------------------------------------


def nested(outer: int, inner: int, **options: Any) -> Model:
    b = Builder()
    parts = [b.input(f"x{i}", (2, 3), **options) for i in range(outer - 1 + inner)]
    y = b.op(Op.CONCATENATION, parts[:inner], axis=-1)
    return b.model([b.op(Op.CONCATENATION, [*parts[inner:-1], y, parts[-1]], axis=1)])


def test_joins_of_joins() -> None:
    after, _ = fuse(nested(3, 3), FLATTEN)
    assert kinds(after) == ["CONCATENATION"]
    (op,) = operators(after, "CONCATENATION")
    assert len(op.inputs) == 5


def test_xnnpack_takes_five() -> None:
    (reason,) = refusals(nested(3, 4), FLATTEN)
    assert "XNNPACK joins 5 tensors at most, and this would be 6" in reason
    assert kinds(fuse(nested(6, 2), FLATTEN)[0]) == ["CONCATENATION"]  # it does not take this one anyway
    assert kinds(fuse(nested(3, 4, type=I32), FLATTEN)[0]) == ["CONCATENATION"]


def test_joins_that_stay_apart() -> None:
    def shared(b: Builder, x: int, y: int) -> list[int]:
        joined = b.op(Op.CONCATENATION, [x, y], axis=1)
        return [b.op(Op.CONCATENATION, [joined, x], axis=1), joined]

    (reason,) = refusals(model_of(shared, (2, 3), (2, 3)), FLATTEN)
    assert "also read by ABS" in reason
    twice = lambda b, x, y: b.op(Op.CONCATENATION, [b.op(Op.CONCATENATION, [x, y], axis=1)] * 2, axis=1)  # noqa: E731
    assert refusals(model_of(twice, (2, 3), (2, 3)), FLATTEN) == []
    across = lambda b, x, y: b.op(  # noqa: E731
        Op.CONCATENATION, [b.op(Op.CONCATENATION, [x, y], axis=0), b.constant("c", np.ones((4, 1), np.float32))], axis=1
    )
    assert refusals(model_of(across, (2, 3), (2, 3)), FLATTEN) == []


# -- transpositions that move nothing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "order"),
    [((1, 6, 1, 5), [2, 1, 3, 0]), ((-1, 6, 1), [0, 2, 1]), ((1, 1, 7), [2, 0, 1]), ((1, -1, 4), [1, 0, 2])],
)
def test_moving_axes_of_size_one(shape: tuple[int, ...], order: list[int]) -> None:
    b = Builder()
    y = b.op(
        Op.TRANSPOSE,
        [b.op(Op.NEG, [b.input("x", shape)], shape=shape), b.constant("p", order)],
        shape=[shape[a] for a in order],
    )
    model = b.model([b.op(Op.ABS, [y], shape=[shape[a] for a in order])])
    assert kinds(fuse(model, TO_RESHAPE)[0]) == ["NEG", "RESHAPE", "ABS"]


@pytest.mark.parametrize(
    ("shape", "order"), [((1, 6, 5), [0, 2, 1]), ((-1, 6, 1), [1, 0, 2]), ((-1, -1, 1), [0, 2, 1]), ((2, 3), [0, 1])]
)
def test_other_transpositions_stay(shape: tuple[int, ...], order: list[int]) -> None:
    b = Builder()
    after = [shape[a] for a in order]
    y = b.op(Op.TRANSPOSE, [b.op(Op.NEG, [b.input("x", shape)], shape=shape), b.constant("p", order)], shape=after)
    assert refusals(b.model([b.op(Op.ABS, [y], shape=after)]), TO_RESHAPE) == []


def test_variables_may_change_in_between() -> None:
    b = Builder()
    x = b.input("x", (2, 6))
    model = b.model([b.op(Op.NEG, [cut(b, cut(b, x, [0, 1], [2, 4]), [0, 1], [2, 2])])])
    model.subgraphs[0].tensors[0].is_variable = True
    assert apply(model, *slicing.RULES).counts() == {}
