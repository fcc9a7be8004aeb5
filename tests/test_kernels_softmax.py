"""The reference kernels of SOFTMAX, LOG_SOFTMAX and L2_NORMALIZATION against the runtime's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delegate import both, refusal
from kernel_cases import DTYPES, Cases, values

from litefuse.graph.build import Builder, quantized
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op

FLOAT, INT8, UINT8, INT16 = TensorType.FLOAT32, TensorType.INT8, TensorType.UINT8, TensorType.INT16
CASES = 32  # operators in one model

# What the output of each operator must be quantised to.
RESULTS: dict[tuple[Op, TensorType], tuple[float, int]] = {
    (Op.SOFTMAX, INT8): (1 / 256, -128),
    (Op.SOFTMAX, UINT8): (1 / 256, 0),
    (Op.SOFTMAX, INT16): (1 / 32768, 0),
    (Op.LOG_SOFTMAX, INT8): (1 / 16, 127),
    (Op.LOG_SOFTMAX, UINT8): (1 / 16, 255),
    (Op.L2_NORMALIZATION, INT8): (1 / 128, 0),
    (Op.L2_NORMALIZATION, UINT8): (1 / 128, 128),
}
WIDE = (1 / 65536, -32768)  # int16 outputs of 8-bit inputs


def rows(rng: np.random.Generator, shape: list[int], type: TensorType) -> Any:
    """Numbers over the whole range, or close together somewhere in it."""
    if type == FLOAT or rng.random() < 0.5:
        return values(rng, shape, type)
    info = np.iinfo(DTYPES[type])
    spread = int(rng.choice([0, 1, 5, 40]))
    near = int(rng.integers(info.min, info.max + 1)) + rng.integers(-spread, spread + 1, shape)
    return np.clip(near, info.min, info.max).astype(DTYPES[type])


@pytest.mark.parametrize(("op", "type"), list(RESULTS), ids=lambda p: p.name)
def test_random_rows_of_integers(op: Op, type: TensorType) -> None:
    rng = np.random.default_rng([int(op), int(type)])
    info = np.iinfo(DTYPES[type])
    cases = Cases()
    for _ in range(CASES):
        shape = [*rng.integers(1, 5, int(rng.integers(0, 4))).tolist(), int(rng.choice([1, 2, 3, 7, 20, 100, 400]))]
        # From scales at which all elements count alike to those at which only the largest does.
        scale = float(10 ** (rng.uniform(-5, -0.5) if type == INT16 else rng.uniform(-3.5, 2.5)))
        point = 0 if type == INT16 else int(rng.choice([info.min, info.max, rng.integers(info.min, info.max)]))
        wide = op == Op.SOFTMAX and type != INT16 and rng.random() < 0.4
        options = {"beta": float(rng.choice([1.0, 0.3, 2.5]))} if op == Op.SOFTMAX else {}
        x = cases.input(rows(rng, shape, type), quantized(scale, point))
        cases.op(
            f"{shape}, scale {scale}, zero point {point}, {options}, wide {wide}",
            op,
            [x],
            type=INT16 if wide else type,
            quantization=quantized(*(WIDE if wide else RESULTS[op, type])),
            **options,
        )
    cases.check(distinct=20)


@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.LOG_SOFTMAX, Op.L2_NORMALIZATION], ids=lambda o: o.name)
def test_random_rows_of_floats(op: Op) -> None:
    rng = np.random.default_rng(int(op))
    cases = Cases()
    for _ in range(CASES):
        shape = [*rng.integers(1, 5, int(rng.integers(0, 4))).tolist(), int(rng.choice([1, 2, 3, 7, 20, 100, 400]))]
        options = {"beta": float(rng.choice([1.0, 0.3, 2.5, 0.0, -1.0]))} if op == Op.SOFTMAX else {}
        x = cases.input(values(rng, shape, FLOAT) * np.float32(rng.choice([1e-8, 1, 30])))
        cases.op(f"{shape}, {options}", op, [x], **options)
    # Only the exponential and the logarithm may come from another library than the runtime's.
    cases.check(rtol=0 if op == Op.L2_NORMALIZATION else 1e-6, atol=2e-6 if op == Op.LOG_SOFTMAX else 0, distinct=20)


def test_floats_at_their_limits() -> None:
    cases = Cases()
    for row in (
        [-np.inf, -np.inf],
        [np.nan, 1],
        [1, np.nan],
        [np.inf, 2],
        [-np.inf, 2],
        [-0.0, 0.0],
        [3e38, -3e38],
        [1e-30, 2e-30],
    ):
        x = cases.input(np.float32([row]))
        for op in (Op.SOFTMAX, Op.LOG_SOFTMAX, Op.L2_NORMALIZATION):
            cases.op(f"{op.name} of {row}", op, [x])
    cases.check(rtol=1e-6)


def test_long_rows() -> None:
    rng = np.random.default_rng(2)
    cases = Cases()
    for op, type, depth, scale in (
        (Op.SOFTMAX, INT8, 511, 0.02),
        (Op.SOFTMAX, UINT8, 1001, 0.5),
        (Op.SOFTMAX, INT16, 65536, 1e-4),
        (Op.LOG_SOFTMAX, INT8, 4095, 0.1),
        (Op.LOG_SOFTMAX, UINT8, 4095, 0.001),
        (Op.L2_NORMALIZATION, INT8, 33025, 0.1),
        (Op.L2_NORMALIZATION, UINT8, 33025, 0.1),
    ):
        x = cases.input(values(rng, (2, depth), type), quantized(scale, 0))
        cases.op(f"{op.name} {depth}", op, [x], type=type, quantization=quantized(*RESULTS[op, type]))
    # All alike, which makes the largest sums.
    for op, type, depth in ((Op.SOFTMAX, INT8, 511), (Op.LOG_SOFTMAX, INT8, 4095), (Op.SOFTMAX, INT16, 65536)):
        x = cases.input(np.zeros((1, depth), DTYPES[type]), quantized(0.1, 0))
        cases.op(f"{op.name} {depth} alike", op, [x], type=type, quantization=quantized(*RESULTS[op, type]))
    cases.check()


@pytest.mark.parametrize("depth", [512, 600, 8191])
def test_a_softmax_too_flat_for_eight_bits(depth: int) -> None:
    # The runtime's reference kernel stops the process at sums of 512, so the optimised one is the measure.
    b = Builder()
    x = b.input("x", [2, depth], INT8, quantized(0.1, 0))
    made = b.op(Op.SOFTMAX, [x], type=INT8, quantization=quantized(*RESULTS[Op.SOFTMAX, INT8]))
    data = np.zeros((2, depth), np.int8)
    data[1, : depth - 511] = -128  # so far below that they do not count
    expected, got = both(b.model([made]), [data], reference=False)
    assert np.abs(got[0].astype(int) - expected[0]).max() <= (1 if depth == 512 else 0)
    assert set(got[0][0]) == {-128}
    assert set(got[0][1, depth - 511 :]) == {-127}


def test_the_square_roots_of_every_magnitude() -> None:
    cases = Cases()
    for type in (INT8, UINT8):
        # Squares from 0 and 1 up, then sums of many.
        data = np.zeros((128 + 17, 1 << 12), DTYPES[type])
        for i in range(128):
            data[i, 0] = i
        for i in range(17):
            data[128 + i, : int(2 ** (i * 12 / 16))] = 127
        x = cases.input(data, quantized(0.5, 0))
        op = Op.L2_NORMALIZATION
        cases.op(type.name, op, [x], type=type, quantization=quantized(*RESULTS[op, type]))
    cases.check(distinct=20)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,)])
def test_empty_inputs(shape: tuple[int, ...]) -> None:
    b = Builder()
    x = b.input("x", shape)
    model = b.model([b.op(op, [x], shape=shape) for op in (Op.SOFTMAX, Op.LOG_SOFTMAX, Op.L2_NORMALIZATION)])
    expected, got = both(model, [np.zeros(shape, np.float32)])
    assert [g.shape for g in got] == [e.shape for e in expected] == [shape] * 3


def test_other_shapes_at_run_time() -> None:
    b = Builder()
    x = b.input("x", [-1, 6], INT8, quantized(0.05, 3))
    model = b.model(
        [b.op(op, [x], type=INT8, quantization=quantized(*RESULTS[op, t])) for op, t in RESULTS if t == INT8]
    )
    rng = np.random.default_rng(1)
    for batch in (5, 2):
        expected, got = both(model, [values(rng, (batch, 6), INT8)])
        for a, c in zip(expected, got, strict=True):
            assert a.shape == (batch, 6)
            np.testing.assert_array_equal(c, a)


def model(
    op: Op,
    type: TensorType = INT8,
    source: Any = (0.1, 0),
    result: Any = None,
    to: TensorType | None = None,
    shape: tuple[int, ...] = (2, 3),
    **options: Any,
) -> Any:
    b = Builder()
    x = b.input("x", shape, type, source and quantized(*source))
    result = RESULTS.get((op, to or type)) if result is None else result
    y = b.op(op, [x], shape=shape, type=to or type, quantization=result and quantized(*result), **options)
    return b.model([y])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (model(Op.SOFTMAX, FLOAT, None, shape=()), "its input is a scalar"),
        (model(Op.SOFTMAX, TensorType.INT32, None), "inputs of type int32 are not supported"),
        (model(Op.SOFTMAX, to=UINT8), "its input is int8 and its output uint8"),
        (model(Op.SOFTMAX, source=None), "its input has no quantisation"),
        (model(Op.SOFTMAX, result=(1 / 128, -128)), "its output has the scale 0.0078125"),
        (model(Op.SOFTMAX, result=(1 / 256, 0)), "the zero point 0, not 0.00390625 and -128"),
        (model(Op.SOFTMAX, to=INT16), "its output has the scale 3.05176e-05"),
        (model(Op.SOFTMAX, INT16, result=(1 / 256, 0)), "not 1/32768"),
        (model(Op.SOFTMAX, INT16, source=(0.1, 7)), "a zero point other than 0"),
        (model(Op.SOFTMAX, INT16, source=(60.0, 0)), "its input's scale 60 is too large"),
        (model(Op.SOFTMAX, source=(1e-9, 0)), "too small for the fixed-point exponential"),
        (model(Op.SOFTMAX, beta=-1.0), "its beta is -1"),
        (model(Op.SOFTMAX, shape=(1, 8192)), "its rows of 8192 elements are too long"),
        (model(Op.SOFTMAX, INT16, shape=(1, 65537)), "its rows of 65537 elements are too long"),
        (model(Op.LOG_SOFTMAX, INT16), "inputs of type int16 are not supported"),
        (model(Op.LOG_SOFTMAX, result=(1 / 8, 127)), "not 0.0625 and 127"),
        (model(Op.LOG_SOFTMAX, UINT8, result=(1 / 16, 127)), "not 0.0625 and 255"),
        (model(Op.LOG_SOFTMAX, source=(2.0**-27, 0)), "too small for the fixed-point exponential"),
        (model(Op.LOG_SOFTMAX, shape=(1, 4096)), "its rows of 4096 elements are too long"),
        (model(Op.L2_NORMALIZATION, INT16), "inputs of type int16 are not supported"),
        (model(Op.L2_NORMALIZATION, result=(1 / 127, 0)), "not 1/128 and 0"),
        (model(Op.L2_NORMALIZATION, UINT8, result=(1 / 128, 0)), "not 1/128 and 128"),
        (
            model(Op.L2_NORMALIZATION, FLOAT, None, fused_activation_function=ActivationFunctionType.RELU),
            "it has a fused activation",
        ),
        (model(Op.L2_NORMALIZATION, shape=(1, 33026)), "its rows of 33026 elements are too long"),
    ],
)
def test_refusals(bad: Any, reason: str) -> None:
    assert reason in refusal(bad)
