"""Arithmetic of two operands: the delegate's kernels against TFLite's reference kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from elementwise_cases import (
    FLOAT,
    INT8,
    INT16,
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

from litefuse.schema.enums import ActivationFunctionType as A
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op

ACTIVATIONS = [A.NONE, A.RELU, A.RELU6, A.RELU_N1_TO_1]
FUSED = [Op.ADD, Op.SUB, Op.MUL, Op.DIV]
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((), ()),
    ((5,), ()),
    ((), (3, 4)),
    ((7,), (7,)),
    ((1,), (1, 1, 1)),
    ((4, 1), (1, 5)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (3, 1)),
    ((3, 1, 2), (1, 4, 1)),
    ((2, 1, 3, 1), (5, 1, 4)),
    ((1, 2, 1, 3, 1), (2, 1, 2, 1, 2)),
    ((2, 1, 2, 1, 2, 1), (1, 3, 1, 2, 1, 2)),
    ((2, 1, 2, 3, 1, 2), (3, 1)),
]


def activation(kind: Op, a: A) -> dict[str, Any]:
    return {"fused_activation_function": a} if kind in FUSED else {}


def floats(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    values = rng.normal(0, 3, shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.2, rng.choice(SPECIALS, shape), values).astype(np.float32)


@pytest.mark.parametrize(
    "kind",
    [Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MAXIMUM, Op.MINIMUM, Op.SQUARED_DIFFERENCE, Op.POW, Op.FLOOR_MOD, Op.FLOOR_DIV],
)
def test_floats(kind: Op) -> None:
    rng = np.random.default_rng(1)
    cases = Cases()
    for a in ACTIVATIONS if kind in FUSED else ACTIVATIONS[:1]:
        for first, second in SHAPES:
            x, y = floats(rng, first), floats(rng, second)
            if kind == Op.FLOOR_DIV:
                y = np.where(y == 0, np.float32(2), y)
            cases.add(kind, [x, y], **activation(kind, a))
    everything = [SPECIALS[:, None], SPECIALS[None, :]]
    if kind == Op.FLOOR_DIV:
        everything[1] = everything[1][everything[1] != 0][None, :]
    cases.add(kind, everything)
    cases.check()


@pytest.mark.parametrize("rank", [7, 8])
def test_high_ranks(rank: int) -> None:
    rng = np.random.default_rng(rank)
    cases = Cases()
    for kind in (Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MAXIMUM, Op.MINIMUM, Op.SQUARED_DIFFERENCE, Op.POW, Op.FLOOR_MOD):
        first = tuple(int(d) for d in rng.choice([1, 2, 3], rank))
        second = tuple(int(rng.choice([1, d])) for d in first)
        cases.add(kind, [floats(rng, first), floats(rng, second)])
        cases.add(kind, [floats(rng, second[2:]), floats(rng, first)])
    cases.check()


def test_random_shapes() -> None:
    rng = np.random.default_rng(10)
    for _ in range(3):
        cases = Cases()
        for _ in range(40):
            rank = int(rng.integers(0, 9))
            full = rng.integers(1, 4, rank) if rank > 5 else rng.integers(1, 6, rank)
            first, second = (
                tuple(int(d) for d in np.where(rng.random(rank) < 0.4, 1, full))[int(rng.integers(0, rank + 1)) :]
                for _ in range(2)
            )
            x, y = (rng.normal(0, 1, s).astype(np.float32) for s in (first, second))
            cases.add([Op.SUB, Op.MAXIMUM][int(rng.integers(2))], [x, y])
        cases.check()


def test_products_of_numbers_that_wrap() -> None:
    """Plain integers: sums and products are modulo their width, and activations clamp what is left."""
    rng = np.random.default_rng(2)
    cases = Cases()
    kinds = {
        np.int16: [Op.ADD, Op.MUL, Op.MAXIMUM, Op.MINIMUM],
        np.int32: [Op.ADD, Op.SUB, Op.MUL, Op.MAXIMUM, Op.MINIMUM, Op.SQUARED_DIFFERENCE],
        np.int64: [Op.ADD, Op.SUB, Op.MUL, Op.MAXIMUM, Op.MINIMUM],
    }
    for dtype, members in kinds.items():
        info = np.iinfo(dtype)
        edges = np.array([info.min, info.min + 1, -7, -1, 0, 1, 2, 6, 7, info.max - 1, info.max], dtype)
        for kind in members:
            for a in ACTIVATIONS if kind in FUSED else ACTIVATIONS[:1]:
                cases.add(kind, [edges[:, None], edges[None]], **activation(kind, a))
                x, y = (rng.integers(-100, 100, (3, 5)).astype(dtype) for _ in range(2))
                cases.add(kind, [x, y], **activation(kind, a))
    cases.check()


def test_stored_numbers_are_compared_as_they_are() -> None:
    cases = Cases()
    for type in (INT8, UINT8):
        x = all_of(type)[::5]
        for kind in (Op.MAXIMUM, Op.MINIMUM):
            cases.add(kind, [Q(x[:, None], 0.1, 3), Q(x[None], 0.3, 5)], scale=0.2, zero_point=7)
    cases.check()


def add_quantized(cases: Cases, rng: np.random.Generator, kind: Op, type: TensorType, x: Array, y: Array, a: A) -> None:
    first, second = random_quantization(rng, type), random_quantization(rng, type)
    if kind in (Op.ADD, Op.SUB):
        reach = first[0] + second[0]
    elif kind == Op.DIV:
        reach = first[0] / second[0] / 8
    elif kind == Op.MUL:
        reach = first[0] * second[0] * (4096 if type == INT16 else 64)
    else:
        reach = max(first[0], second[0]) ** 2 * 128
    scale, zero_point = random_quantization(rng, type, reach)
    if kind == Op.DIV:
        y = np.where(y == second[1], np.asarray(1 if second[1] != 1 else 2, y.dtype), y)
    cases.add(kind, [Q(x, *first), Q(y, *second)], scale=scale, zero_point=zero_point, **activation(kind, a))


@pytest.mark.parametrize(
    ("kind", "type"),
    [*((kind, type) for kind in FUSED for type in (INT8, UINT8)), (Op.SQUARED_DIFFERENCE, INT8)],
)
def test_every_pair_of_bytes(kind: Op, type: TensorType) -> None:
    rng = np.random.default_rng(3)
    cases = Cases()
    x = all_of(type)
    for i in range(8):
        add_quantized(cases, rng, kind, type, x[:, None], x[None], ACTIVATIONS[i % 4])
    pairs = np.repeat(x, 256), np.tile(x, 256)
    for _ in range(2):
        add_quantized(cases, rng, kind, type, *pairs, A.NONE)
    cases.check()


@pytest.mark.parametrize("kind", [Op.ADD, Op.SUB, Op.MUL, Op.DIV])
def test_shorts(kind: Op) -> None:
    rng = np.random.default_rng(4)
    cases = Cases()
    edges = np.array([-32768, -32767, -16384, -129, -3, -2, -1, 0, 1, 2, 3, 127, 5461, 32766, 32767], np.int16)
    for i in range(12):
        a = ACTIVATIONS[i % 4]
        add_quantized(cases, rng, kind, INT16, edges[:, None], edges[None], a)
        x, y = (rng.integers(-32768, 32768, 1000).astype(np.int16) for _ in range(2))
        add_quantized(cases, rng, kind, INT16, x, y, a)
    cases.check()


def test_quotients_far_from_the_output_scale() -> None:
    """Quotients that are nearly zero, for which TFLite's kernel shifts by more than the width of its numbers."""
    x = all_of(INT8)
    y = np.where(x == 0, np.int8(1), x)
    cases = Cases()
    for scale in (0.001, 0.05, 0.5, 1.0, 2.0, 30.0, 5000.0):
        cases.add(Op.DIV, [Q(x[:, None], 0.1), Q(y[None], 0.1)], scale=scale)
    edges = np.array([-32768, -12345, -2, -1, 1, 3, 100, 32767], np.int16)
    for scale in (1e-5, 0.1, 1.0, 100.0):
        cases.add(Op.DIV, [Q(np.r_[edges, np.int16(0)][:, None], 0.01), Q(edges[None], 0.01)], scale=scale)
    cases.check()


@pytest.mark.parametrize("kind", [Op.ADD, Op.SUB])
def test_shorts_with_powers_of_two(kind: Op) -> None:
    rng = np.random.default_rng(5)
    x, y = (np.r_[rng.integers(-32768, 32768, 500), -32768, 32767, -32768, 32767].astype(np.int16) for _ in range(2))
    y[-1], y[-2] = y[-2], y[-1]
    cases = Cases()
    for i, (a, b) in enumerate([(0, 0), (-1, 0), (0, -3), (-15, 0), (0, -20), (-31, 0)]):
        options = {"pot_scale_int16": True, "fused_activation_function": ACTIVATIONS[i % 4]}
        cases.add(kind, [Q(x, 2.0 ** (a - 5)), Q(y, 2.0 ** (b - 5))], scale=2.0**-5, **options)
        if kind == Op.SUB:
            cases.add(kind, [Q(x[:, None], 2.0 ** (a - 5)), Q(y[:9], 2.0 ** (b - 5))], scale=2.0**-5, **options)
    # Not powers of two: the flag does not count.
    cases.add(kind, [Q(x, 0.3), Q(y, 0.25)], scale=0.5, pot_scale_int16=True)
    cases.check()


def test_products_of_shorts_to_bytes() -> None:
    rng = np.random.default_rng(6)
    x, y = (np.r_[rng.integers(-32768, 32768, 500), -32768, -32768, 32767].astype(np.int16) for _ in range(2))
    cases = Cases()
    for i, zero_point in enumerate((-128, -5, 0, 127)):
        a = {"fused_activation_function": ACTIVATIONS[i]}
        operands = [Q(x, 2.0**-15), Q(y, 2.0**-15)]
        cases.add(Op.MUL, operands, to=INT8, scale=1 / 128, zero_point=zero_point, **a)
        cases.add(Op.MUL, operands, to=UINT8, scale=1 / 128, zero_point=zero_point + 128, **a)
    cases.check()


def test_powers() -> None:
    rng = np.random.default_rng(7)
    cases = Cases()
    x = np.r_[rng.uniform(0, 4, 50), SPECIALS].astype(np.float32)
    for n in (0.0, 0.5, 1.0, 2.0, 3.0, 4.999995, 7.0, 100.0, 1e6, -1.0, -2.5, np.inf, np.nan, 2147483648.0):
        cases.add(Op.POW, [x, np.float32(n)])
        cases.add(Op.POW, [x, Constant(np.full((1,), n, np.float32))])
        cases.add(Op.POW, [np.float32(abs(n)), x])
    base = np.array([-(2**31), -70000, -3, -1, 0, 1, 2, 10, 46341, 2**31 - 1], np.int32)
    for n in (0, 1, 2, 3, 31, 32, 33):
        cases.add(Op.POW, [base, np.int32(n)])
        cases.add(Op.POW, [base, np.full(base.shape, n, np.int32)])
    cases.add(Op.POW, [base[:, None], np.arange(12, dtype=np.int32)])
    cases.check()


def test_floored_division() -> None:
    cases = Cases()
    for dtype in (np.int8, np.int16, np.int32, np.int64):
        info = np.iinfo(dtype)
        x = np.array([info.min, info.min + 1, -100, -7, -1, 0, 1, 7, 100, info.max], dtype)
        # The lowest number by -1 overflows, which ends the reference's program for wide ones.
        y = x[x != 0] if dtype in (np.int8, np.int16) else x[(x != 0) & (x != -1)]
        cases.add(Op.FLOOR_MOD, [x[:, None], y[None]])
        cases.add(Op.FLOOR_MOD, [x[1:, None], np.array([-1, 3, -3], dtype)])
        if dtype != np.int64:
            cases.add(Op.FLOOR_DIV, [x[:, None], y[None]])
            cases.add(Op.FLOOR_DIV, [x[:, None], np.array([-1, 3, -3], dtype)])
    x = np.array([-(2**31) + 1, -7, 0, 7, 2**31 - 1], np.int32)
    for a in ACTIVATIONS:
        cases.add(Op.DIV, [x[:, None], np.array([-1, 1, 2, -2, 3], np.int32)], fused_activation_function=a)
    cases.check()


@pytest.mark.parametrize("type", [FLOAT, INT8, UINT8, INT16])
def test_prelu(type: TensorType) -> None:
    rng = np.random.default_rng(8)
    cases = Cases()
    shapes = [((3, 4, 5), (5,)), ((2, 3, 4, 5), (1, 1, 5)), ((2, 3), (2, 3)), ((2, 3, 4), (3, 1)), ((4,), ())]
    for shape, alphas in shapes * 2:
        if type == FLOAT:
            cases.add(Op.PRELU, [floats(rng, shape), floats(rng, alphas)])
            continue
        alpha_type = INT8 if type == INT16 else type
        x = rng.choice(all_of(type), shape)
        alpha = rng.choice(all_of(alpha_type), alphas)
        scale, zero_point = random_quantization(rng, type)
        given = [Q(x, *random_quantization(rng, type)), Constant(alpha, *random_quantization(rng, alpha_type, 0.01))]
        cases.add(Op.PRELU, given, scale=scale, zero_point=zero_point)
    if type in (INT8, UINT8):
        x = all_of(type)
        for _ in range(6):
            scale, zero_point = random_quantization(rng, type)
            given = Q(np.repeat(x[:, None], 256, 1), *random_quantization(rng, type))
            alpha = Q(x, *random_quantization(rng, type, 0.02))
            cases.add(Op.PRELU, [given, alpha], scale=scale, zero_point=zero_point)
    cases.check()


def test_other_shapes_than_those_of_the_file() -> None:
    rng = np.random.default_rng(9)
    for kind in (Op.ADD, Op.POW, Op.PRELU):
        cases = Cases()
        cases.add(kind, [np.ones((2, 3), np.float32), np.ones((1, 3), np.float32)])
        for first, second in [((4, 3), (1, 3)), ((2, 5), (2, 5)), ((7, 2), (1, 1))]:
            cases.inputs = [floats(rng, first), np.abs(floats(rng, second))]
            cases.check()


def test_empty_operands() -> None:
    cases = Cases()
    for kind in (Op.ADD, Op.MUL, Op.MAXIMUM, Op.POW):
        cases.add(kind, [np.zeros((2, 0, 3), np.float32), np.ones((1, 3), np.float32)])
        cases.add(kind, [np.zeros((0,), np.float32), np.ones((), np.float32)])
    for got in cases.results():
        assert got.size == 0


def test_division_by_zero_at_run_time() -> None:
    """TFLite's kernels return an error; there is none to return in a region."""
    x = np.array([-7, 0, 7], np.int32)
    zero = np.zeros(3, np.int32)
    cases = Cases()
    cases.add(Op.DIV, [x, zero])
    cases.add(Op.FLOOR_DIV, [x, zero])
    cases.add(Op.FLOOR_MOD, [x, zero])
    cases.add(Op.FLOOR_MOD, [x.astype(np.int64), zero.astype(np.int64)])
    cases.add(Op.DIV, [Q((x + 1).astype(np.int8), 0.1, 1), Q(np.full(3, 5, np.int8), 0.1, 5)], scale=0.1, zero_point=9)
    cases.add(
        Op.DIV,
        [Q(x.astype(np.int16), 0.1), Q(zero.astype(np.int16), 0.1)],
        scale=0.001,
        fused_activation_function=A.RELU6,
    )
    cases.add(Op.FLOOR_DIV, [x.astype(np.float32), zero.astype(np.float32)])
    cases.add(Op.POW, [np.array([2, 1, -1, 0], np.int32), np.array([-1, -5, -3, -1], np.int32)])
    lowest = np.array([-(2**31)], np.int32)
    for kind in (Op.DIV, Op.FLOOR_MOD):
        cases.add(kind, [lowest, np.array([-1], np.int32)])
    cases.add(Op.FLOOR_MOD, [np.array([-(2**63)]), np.array([-1])])
    got = cases.results()
    for result in got[:4]:
        assert result.tolist() == [0, 0, 0]
    assert got[4].tolist() == [-128, 9, 127]
    assert got[5].tolist() == [0, 0, 6000]
    assert np.array_equal(got[6], np.array([-np.inf, np.nan, np.inf], np.float32), equal_nan=True)
    assert got[7].tolist()[:3] == [0, 1, -1]
    assert got[8].tolist() == lowest.tolist()
    assert got[9].tolist() == got[10].tolist() == [0]


ONES = np.ones(3, np.float32)
BYTES = np.ones(3, np.int8)


@pytest.mark.parametrize(
    ("kind", "operands", "options", "reason"),
    [
        (Op.ADD, [ONES, ONES], {"fused_activation_function": A.TANH}, "fused activation 4 is not supported"),
        (Op.ADD, [BYTES, BYTES], {}, "no quantisation"),
        (Op.ADD, [Q(BYTES, 0.1), Q(BYTES, 0.1)], {"scale": 1e-9}, "differ by a factor of"),
        (Op.SUB, [Q(BYTES, 0.1), Q(BYTES, 0.1)], {"scale": 1e-9}, "differ by a factor of"),
        (Op.ADD, [Q(BYTES, 0.1, 128), Q(BYTES, 0.1)], {"scale": 0.1}, "zero point"),
        (Op.ADD, [Q(BYTES, -0.1), Q(BYTES, 0.1)], {"scale": 0.1}, "scale"),
        (Op.ADD, [Q(BYTES, float("nan")), Q(BYTES, 0.1)], {"scale": 0.1}, "scale"),
        (Op.ADD, [Q(BYTES, [0.1, 0.2, 0.3]), Q(BYTES, 0.1)], {"scale": 0.1}, "per channel"),
        (Op.ADD, [Q(ONES.astype(np.int16), 0.1, 1), Q(ONES.astype(np.int16), 0.1)], {"scale": 0.1}, "instead of 0"),
        (Op.SUB, [ONES.astype(np.int16), ONES.astype(np.int16)], {}, "no quantisation"),
        (
            Op.ADD,
            [Q(np.ones((2, 3), np.int16), 0.5), Q(np.ones(3, np.int16), 0.5)],
            {"scale": 0.5, "pot_scale_int16": True},
            "broadcasts int16",
        ),
        (
            Op.ADD,
            [Q(np.ones(3, np.int16), 0.25), Q(np.ones(3, np.int16), 0.25)],
            {"scale": 0.5, "pot_scale_int16": True},
            "of which one input's must be the output's",
        ),
        (Op.MUL, [Q(BYTES, 1e20), Q(BYTES, 1e10)], {"scale": 1.0}, "differ by a factor of"),
        (Op.MUL, [np.ones(3, bool), np.ones(3, bool)], {}, "bool is not supported"),
        (Op.DIV, [ONES.astype(np.int32), Constant(np.array([1, 0, 2], np.int32))], {}, "constant that has zeros"),
        (Op.DIV, [Q(BYTES, 0.1), Constant(np.array([1, 5, 2], np.int8), 0.1, 5)], {"scale": 0.1}, "has zeros"),
        (Op.FLOOR_DIV, [ONES, Constant(np.array([1, -0.0, 2], np.float32))], {}, "has zeros"),
        (Op.FLOOR_MOD, [ONES.astype(np.int64), Constant(np.array([1, 0, 2]))], {}, "has zeros"),
        (Op.FLOOR_DIV, [ONES.astype(np.int64), ONES.astype(np.int64)], {}, "int64 is not supported"),
        (Op.POW, [ONES.astype(np.int32), Constant(np.array([1, -1, 2], np.int32))], {}, "negative exponents"),
        (Op.POW, [Q(BYTES, 0.1), Q(BYTES, 0.1)], {"scale": 0.1}, "int8 is not supported"),
        (Op.SQUARED_DIFFERENCE, [Q(BYTES.view(np.uint8), 0.1)] * 2, {"scale": 0.1}, "uint8 is not supported"),
        (Op.PRELU, [Q(np.ones(3, np.int16), 0.1), Q(np.ones(3, np.int16), 0.1)], {"scale": 0.1}, "need int8"),
        (Op.PRELU, [ONES, np.ones((2, 3), np.float32)], {}, "does not broadcast to its input"),
    ],
)
def test_refusals(kind: Op, operands: list[Array | Q], options: dict[str, Any], reason: str) -> None:
    assert reason in refused(kind, operands, **options)


def test_refuses_shapes_and_types_that_do_not_fit() -> None:
    assert "do not fit together" in refused(Op.ADD, [ONES, np.ones(2, np.float32)], shape=[3])
    assert "its inputs are float32 and int32" in refused(Op.ADD, [ONES, np.ones(3, np.int32)])
    assert "its output is int32 where its inputs are float32" in refused(Op.ADD, [ONES, ONES], to=TensorType.INT32)
