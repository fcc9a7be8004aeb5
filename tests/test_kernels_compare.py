"""Comparisons, logic and selection: the delegate's kernels against TFLite's reference kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from elementwise_cases import (
    BOOL,
    FLOAT,
    INT8,
    INT16,
    INT32,
    SPECIALS,
    UINT8,
    Array,
    Cases,
    Constant,
    Q,
    all_of,
    random_quantization,
    refused,
)

from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op

EQUALITY = [Op.EQUAL, Op.NOT_EQUAL]
ORDER = [Op.LESS, Op.LESS_EQUAL, Op.GREATER, Op.GREATER_EQUAL]
SHAPES: list[tuple[tuple[int, ...], ...]] = [
    ((), (), ()),
    ((5,), (), (5,)),
    ((4, 1), (1, 5), (4, 5)),
    ((2, 3, 4), (4,), (3, 1)),
    ((3, 1, 2), (1, 4, 1), ()),
    ((2, 1, 3, 1), (5, 1, 4), (1, 5, 3, 1)),
    ((1, 2, 1, 3, 1, 2), (2, 1, 2, 1, 2, 1), (2,)),
    ((2, 1, 2, 1, 1, 2, 1, 2), (1, 3, 1, 2, 1, 1, 2, 1), (2, 1)),
]


@pytest.mark.parametrize("kind", EQUALITY + ORDER)
def test_plain_numbers(kind: Op) -> None:
    rng = np.random.default_rng(1)
    cases = Cases()
    cases.add(kind, [SPECIALS[:, None], SPECIALS[None]], to=BOOL)
    for dtype in (np.float32, np.int32, np.int64):
        for first, second, _ in SHAPES:
            cases.add(kind, [rng.integers(-2, 3, s).astype(dtype) for s in (first, second)], to=BOOL)
            cases.add(kind, [rng.integers(-2, 3, first).astype(dtype) for _ in range(2)], to=BOOL)
        if dtype != np.float32:
            info = np.iinfo(dtype)
            edges = np.array([info.min, -1, 0, 1, info.max], dtype)
            cases.add(kind, [edges[:, None], edges[None]], to=BOOL)
    if kind in EQUALITY:
        for first, second, _ in SHAPES:
            cases.add(kind, [rng.integers(0, 2, s).astype(bool) for s in (first, second)], to=BOOL)
    if kind != Op.NOT_EQUAL:
        x = np.array([-32768, -1, 0, 1, 32767], np.int16)
        cases.add(kind, [x[:, None], x[None]], to=BOOL)
    cases.check()


@pytest.mark.parametrize("type", [INT8, UINT8])
@pytest.mark.parametrize("kind", EQUALITY + ORDER)
def test_every_pair_of_bytes(kind: Op, type: TensorType) -> None:
    rng = np.random.default_rng(2)
    cases = Cases()
    x = all_of(type)
    for i in range(8):
        first, second = (random_quantization(rng, type, (1e-3, 0.02, 0.2, 1e-6)[i % 4]) for _ in range(2))
        if i == 0:
            second = first
        if i == 1:
            second = (first[0] / 2, 0)
        cases.add(kind, [Q(x[:, None], *first), Q(x[None], *second)], to=BOOL)
        cases.add(kind, [Q(x, *first), Q(x[::-1], *second)], to=BOOL)
    cases.check()


def test_shorts_with_scales() -> None:
    """Equality takes scales into account, order does not, in TFLite."""
    rng = np.random.default_rng(3)
    x = np.array([-32768, -20000, -3, -2, -1, 0, 1, 2, 3, 4, 6, 10000, 20000, 32767], np.int16)
    cases = Cases()
    for kind in EQUALITY + ORDER:
        for first, second in [(0.1, 0.1), (0.1, 0.2), (0.3, 0.15), (1e-4, 1e-4), (0.9, 0.01)]:
            cases.add(kind, [Q(x[:, None], first), Q(x[None], second)], to=BOOL)
            y = rng.integers(-100, 100, 500).astype(np.int16)
            cases.add(kind, [Q(y, first), Q(rng.permutation(y), second)], to=BOOL)
    cases.check()


def test_logic() -> None:
    rng = np.random.default_rng(4)
    cases = Cases()
    for first, second, _ in SHAPES:
        for kind in (Op.LOGICAL_AND, Op.LOGICAL_OR):
            cases.add(kind, [rng.integers(0, 2, s).astype(bool) for s in (first, second)])
            cases.add(kind, [rng.integers(0, 2, first).astype(bool) for _ in range(2)])
        cases.add(Op.LOGICAL_NOT, [rng.integers(0, 2, first).astype(bool)])
    cases.check()


def values(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> Array:
    if np.dtype(dtype) == bool:
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0, 100, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8, np.int16, np.int32, np.int64, bool])
def test_selection(dtype: Any) -> None:
    rng = np.random.default_rng(5)
    type = {np.float32: FLOAT, np.int8: INT8, np.uint8: UINT8, np.int16: INT16, np.int32: INT32}.get(dtype)
    cases = Cases()
    for shapes in SHAPES:
        for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
            condition = rng.integers(0, 2, shapes[order[0]]).astype(bool)
            x, y = (values(rng, dtype, shapes[i]) for i in order[1:])
            to = {"to": type} if type is not None else {"to": BOOL if dtype is bool else TensorType.INT64}
            cases.add(Op.SELECT_V2, [condition, x, y], **to)
    for shape in [(4,), (4, 3), (4, 2, 3), (1, 5)]:
        for condition_shape in {shape, shape[:1], ()}:
            condition = rng.integers(0, 2, condition_shape).astype(bool)
            x, y = (values(rng, dtype, shape) for _ in range(2))
            cases.add(Op.SELECT, [condition, x, y], shape=shape, **to)
    cases.check()


def test_selection_between_single_elements_keeps_the_shape_of_the_file() -> None:
    cases = Cases()
    x, y = np.array([3.0], np.float32), np.array([[4.0]], np.float32)
    for kind in (Op.SELECT, Op.SELECT_V2):
        for shape in ([], [1], [1, 1, 1]):
            cases.add(kind, [np.array(True), x, y], to=FLOAT, shape=shape)
            cases.add(kind, [np.array([[False]]), x, y], to=FLOAT, shape=shape)
    cases.check()


def test_selection_copies_what_is_not_a_number() -> None:
    cases = Cases()
    condition = np.arange(len(SPECIALS)) % 2 == 0
    cases.add(Op.SELECT_V2, [condition, SPECIALS, SPECIALS[::-1].copy()], to=FLOAT)
    cases.check()


def test_bytes_of_bools() -> None:
    """Files may hold bools other than 0 and 1; results are 0 or 1."""
    cases = Cases()
    b = cases.builder
    raw = b.constant("raw", np.array([0, 1, 2, 255], np.uint8), type=BOOL)
    ones = b.input("ones", [4], BOOL)
    cases.inputs.append(np.ones(4, bool))
    for kind in (Op.EQUAL, Op.LOGICAL_AND, Op.LOGICAL_OR, Op.NOT_EQUAL):
        cases.outputs.append(b.op(kind, [ones, raw], shape=[4], type=BOOL))
    x, y = b.constant("x", np.full(4, 5, np.int32)), b.constant("y", np.full(4, 6, np.int32))
    cases.outputs.append(b.op(Op.SELECT_V2, [raw, x, y], shape=[4], type=INT32))
    cases.outputs.append(b.op(Op.LOGICAL_NOT, [raw], shape=[4], type=BOOL))
    got = [result.view(np.uint8) if result.dtype == bool else result for result in cases.results()]
    assert [r.tolist() for r in got] == [
        [0, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0], [6, 5, 5, 5], [1, 0, 0, 0],
    ]  # fmt: skip


def test_empty_operands() -> None:
    nothing = np.zeros((0, 3), np.float32)
    cases = Cases()
    cases.add(Op.LESS, [nothing, np.ones(3, np.float32)], to=BOOL)
    cases.add(Op.SELECT_V2, [np.ones((1, 3), bool), nothing, nothing], to=FLOAT)
    cases.add(Op.LOGICAL_NOT, [nothing.astype(bool)])
    assert all(result.size == 0 for result in cases.results())


ONES = np.ones(3, np.float32)
YES = np.ones(3, bool)
BYTES = np.ones(3, np.int8)


@pytest.mark.parametrize(
    ("kind", "operands", "options", "reason"),
    [
        (Op.LESS, [YES, YES], {"to": BOOL}, "bool is not supported"),
        (Op.LESS, [ONES, ONES.astype(np.int32)], {"to": BOOL}, "its inputs are float32 and int32"),
        (Op.LESS, [ONES, ONES], {"to": INT32}, "instead of bool"),
        (Op.LESS, [ONES, np.ones(2, np.float32)], {"to": BOOL, "shape": [3]}, "do not fit together"),
        (Op.EQUAL, [BYTES, BYTES], {"to": BOOL}, "no quantisation"),
        (Op.EQUAL, [Q(BYTES, 0.1), BYTES], {"to": BOOL}, "second input has no quantisation"),
        (Op.EQUAL, [Q(BYTES, 1.0), Q(BYTES, 0.5)], {"to": BOOL}, "not below one"),
        (Op.NOT_EQUAL, [ONES.astype(np.int16)] * 2, {"to": BOOL}, "int16 without quantisation"),
        (Op.LOGICAL_AND, [ONES, ONES], {"to": BOOL}, "instead of bool"),
        (Op.LOGICAL_NOT, [ONES], {"to": BOOL}, "instead of bool"),
        (Op.SELECT, [ONES, ONES, ONES], {"to": FLOAT}, "its condition is float32"),
        (Op.SELECT, [YES, ONES, ONES.astype(np.int32)], {"to": FLOAT}, "chooses between float32 and int32"),
        (Op.SELECT, [YES, np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)], {"to": FLOAT}, "does not fit"),
        (Op.SELECT, [YES, ONES, np.ones((1, 3), np.float32)], {"to": FLOAT}, "between shapes"),
        (Op.SELECT_V2, [YES, ONES, Constant(np.ones(2, np.float32))], {"to": FLOAT, "shape": [3]}, "do not fit"),
    ],
)
def test_refusals(kind: Op, operands: list[Array | Q], options: dict[str, Any], reason: str) -> None:
    assert reason in refused(kind, operands, **options)
