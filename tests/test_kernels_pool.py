"""The reference kernels of AVERAGE_POOL_2D and MAX_POOL_2D against the runtime's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delegate import both, refusal
from kernel_cases import DTYPES, Cases, values

from litefuse.graph.build import Builder, quantized
from litefuse.schema.enums import ActivationFunctionType, Padding, TensorType
from litefuse.schema.operators import Op

FLOAT, INT8, UINT8, INT16 = TensorType.FLOAT32, TensorType.INT8, TensorType.UINT8, TensorType.INT16
POOLS = (Op.AVERAGE_POOL_2D, Op.MAX_POOL_2D)
ACTIVATIONS = (
    ActivationFunctionType.NONE,
    ActivationFunctionType.RELU,
    ActivationFunctionType.RELU6,
    ActivationFunctionType.RELU_N1_TO_1,
)
CASES = 32  # operators in one model


def axis(rng: np.random.Generator, padding: Padding) -> tuple[int, int, int]:
    """Input, filter and stride; SAME filters may be larger than the input."""
    filter = int(rng.integers(1, 6))
    size = int(rng.integers(1, 11)) if padding == Padding.SAME else int(rng.integers(filter, filter + 8))
    return size, filter, int(rng.integers(1, 5))


@pytest.mark.parametrize("type", [FLOAT, INT8, UINT8, INT16], ids=lambda t: t.name)
@pytest.mark.parametrize("op", POOLS, ids=lambda o: o.name)
def test_random_windows(op: Op, type: TensorType) -> None:
    rng = np.random.default_rng([int(op), int(type)])
    cases = Cases()
    for _ in range(CASES):
        padding, activation = Padding(int(rng.integers(2))), ACTIVATIONS[int(rng.integers(4))]
        (h, kh, sh), (w, kw, sw) = axis(rng, padding), axis(rng, padding)
        shape = (int(rng.integers(1, 4)), h, w, int(rng.integers(1, 9)))
        parameters = None
        if type != FLOAT:
            info = np.iinfo(DTYPES[type])
            middle = (info.min + info.max + 1) // 2
            point = (
                0 if type == INT16 else int(rng.choice([info.min, info.max, middle, rng.integers(info.min, info.max)]))
            )
            parameters = quantized(float(10 ** rng.uniform(-2, 0)) / (1 if type != INT16 else 128), point)
        cases.op(
            f"{shape} by {kh, kw} / {sh, sw} {padding.name} {activation.name} {parameters}",
            op,
            [cases.input(values(rng, shape, type), parameters)],
            stride_h=sh,
            stride_w=sw,
            filter_height=kh,
            filter_width=kw,
            padding=padding,
            fused_activation_function=activation,
        )
    cases.check(distinct=20)


def test_not_a_number_and_infinities() -> None:
    cases = Cases()
    for one in (np.nan, np.inf, -np.inf, -0.0):
        data = np.full((1, 3, 3, 2), -np.inf if one == -np.inf else 1, np.float32)
        data[0, 1, 1, 0] = one
        x = cases.input(data)
        for op in POOLS:
            for activation in ACTIVATIONS:
                cases.op(
                    f"{op.name} of {one} {activation.name}",
                    op,
                    [x],
                    filter_height=2,
                    filter_width=2,
                    fused_activation_function=activation,
                )
    cases.check()


def test_rounding_of_every_average() -> None:
    # All sums of three int8, halves of four among them, on both sides of zero.
    cases = Cases()
    for type in (INT8, UINT8, INT16):
        info = np.iinfo(DTYPES[type])
        first = np.arange(info.min, info.max + 1, 1 if type != INT16 else 101)
        data = np.stack([first, np.roll(first, 1), np.roll(first, 7), np.full_like(first, info.max)], axis=1)
        x = cases.input(data.reshape(-1, 1, 4, 1).astype(DTYPES[type]), quantized(0.1, 0))
        for width in (2, 3, 4):
            cases.op(f"{type.name} {width}", Op.AVERAGE_POOL_2D, [x], filter_width=width, padding=Padding.VALID)
    cases.check(distinct=100)


def test_large_windows() -> None:
    rng = np.random.default_rng(4)
    cases = Cases()
    for type in (FLOAT, INT8, UINT8, INT16):
        # Sums as large as they can be.
        data = values(rng, (1, 250, 260, 3), type)
        if type != FLOAT:
            data[..., 1], data[..., 2] = np.iinfo(data.dtype).min, np.iinfo(data.dtype).max
        x = cases.input(data, None if type == FLOAT else quantized(0.1, 0))
        for op in POOLS:
            cases.op(f"{op.name} {type.name}", op, [x], filter_height=250, filter_width=260, padding=Padding.VALID)
    cases.check()


def test_without_quantisation() -> None:
    rng = np.random.default_rng(5)
    cases = Cases()
    for type in (INT8, UINT8, INT16):
        x = cases.input(values(rng, (2, 5, 5, 3), type))
        for op in POOLS:
            cases.op(f"{op.name} {type.name}", op, [x], filter_height=2, filter_width=3, stride_w=2)
    cases.check(distinct=20)


def test_int16_is_not_asked_for_equal_scales() -> None:
    rng = np.random.default_rng(6)
    cases = Cases()
    x = cases.input(values(rng, (2, 5, 5, 3), INT16), quantized(0.1, 0))
    for op in POOLS:
        cases.op(op.name, op, [x], filter_height=2, type=INT16, quantization=quantized(0.3, 0))
    cases.check(distinct=20)


@pytest.mark.parametrize(
    ("shape", "padding"),
    [
        ((0, 4, 4, 3), Padding.SAME),
        ((1, 0, 4, 3), Padding.SAME),
        ((1, 4, 4, 0), Padding.VALID),
        ((1, 1, 4, 3), Padding.VALID),
    ],
)
def test_empty_outputs(shape: tuple[int, ...], padding: Padding) -> None:
    b = Builder()
    x = b.input("x", shape)
    model = b.model([b.op(op, [x], filter_height=2, padding=padding) for op in POOLS])
    expected, got = both(model, [np.ones(shape, np.float32)])
    assert [g.shape for g in got] == [e.shape for e in expected]
    assert all(g.size == 0 for g in got)


def test_other_shapes_at_run_time() -> None:
    b = Builder()
    x = b.input("x", [-1, 6, 6, 2], INT8, quantized(0.05, 3))
    model = b.model([b.op(op, [x], filter_height=3, filter_width=2, stride_h=2) for op in POOLS])
    rng = np.random.default_rng(1)
    for shape in ((3, 6, 6, 2), (1, 9, 4, 2)):
        expected, got = both(model, [values(rng, shape, INT8)])
        for a, c in zip(expected, got, strict=True):
            np.testing.assert_array_equal(c, a)
            assert c.shape == a.shape == (shape[0], -(-shape[1] // 2), shape[2], 2)


def model(
    op: Op = Op.AVERAGE_POOL_2D,
    type: TensorType = INT8,
    source: Any = (0.1, 0),
    result: Any = (0.1, 0),
    to: TensorType | None = None,
    shape: tuple[int, ...] = (1, 4, 4, 2),
    **options: Any,
) -> Any:
    b = Builder()
    x = b.input("x", shape, type, source and quantized(*source))
    y = b.op(op, [x], shape=[1, 1, 1, 1], type=to or type, quantization=result and quantized(*result), **options)
    return b.model([y])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (model(type=TensorType.INT32), "inputs of type int32 are not supported"),
        (model(to=UINT8), "its input is int8 and its output uint8"),
        (model(shape=(4, 4, 2)), "its input has rank 3, not 4"),
        (model(stride_h=0), "its stride along the height is 0"),
        (model(stride_w=-1), "its stride along the width is -1"),
        (model(filter_height=0), "its filter's height is 0"),
        (model(filter_width=9, padding=Padding.VALID), "its filter covers 9 positions of the width"),
        (model(result=(0.2, 0)), "its input and output are quantised differently"),
        (model(Op.MAX_POOL_2D, result=(0.1, 1)), "its input and output are quantised differently"),
        (model(source=None), "its input has no quantisation"),
        (model(fused_activation_function=ActivationFunctionType.TANH), "fused activation"),
        (
            model(source=None, result=None, fused_activation_function=ActivationFunctionType.RELU),
            "its output has no quantisation, which a fused activation needs",
        ),
        (
            model(type=INT16, shape=(1, 256, 256, 1), filter_height=256, filter_width=256),
            "its windows of 65536 elements are too large for sums",
        ),
    ],
)
def test_refusals(bad: Any, reason: str) -> None:
    assert reason in refusal(bad)
