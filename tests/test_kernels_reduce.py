"""The reference kernels of MEAN, SUM, REDUCE_MAX, REDUCE_MIN and REDUCE_PROD against the runtime's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delegate import both, refusal
from kernel_cases import DTYPES, Cases, values

from litefuse.fusions.fixed_point import Encoding, requantizations
from litefuse.graph.build import Builder, quantized
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op

FLOAT, INT32, INT64 = TensorType.FLOAT32, TensorType.INT32, TensorType.INT64
INT8, UINT8, INT16, BOOL = TensorType.INT8, TensorType.UINT8, TensorType.INT16, TensorType.BOOL
REDUCERS = (Op.MEAN, Op.SUM, Op.REDUCE_MAX, Op.REDUCE_MIN, Op.REDUCE_PROD)
QUANTIZED = (INT8, UINT8, INT16)
CASES = 24  # operators in one model


def zero_point(rng: np.random.Generator, type: TensorType) -> int:
    info = np.iinfo(DTYPES[type])
    return 0 if type == INT16 else int(rng.choice([info.min, info.max, rng.integers(info.min, info.max)]))


def parameters(rng: np.random.Generator, op: Op, type: TensorType, elements: int) -> tuple[Any, Any]:
    """Quantisation of the input and the output, such that outputs use their range without always leaving it."""
    if type not in QUANTIZED or (op == Op.REDUCE_PROD and (type == UINT8 or rng.random() < 0.3)):
        return None, None
    scale = float(10 ** rng.uniform(-3, 0))
    if op == Op.REDUCE_PROD:
        scale = float(rng.uniform(0.005, 0.1))
        return quantized(scale, zero_point(rng, type)), quantized(float(rng.uniform(0.005, 2)), zero_point(rng, type))
    source = quantized(scale, zero_point(rng, type))
    if op in (Op.REDUCE_MAX, Op.REDUCE_MIN):
        return source, source
    larger = float(10 ** rng.uniform(-0.5, 0.5)) * (np.sqrt(elements) if op == Op.SUM else 1)
    return source, quantized(scale * larger, zero_point(rng, type))


@pytest.mark.parametrize(
    ("op", "type"),
    # For sums of int8 and int16 see test_sum_of_signed_integers.
    [(o, t) for o in REDUCERS for t in (FLOAT, INT32, INT64, *QUANTIZED) if o != Op.SUM or t not in (INT8, INT16)],
    ids=lambda p: p.name,
)
def test_random_axes(op: Op, type: TensorType) -> None:
    rng = np.random.default_rng([REDUCERS.index(op), int(type)])
    cases = Cases()
    for _ in range(CASES):
        rank = int(rng.integers(0, 6))
        shape = rng.integers(1, 6, rank).tolist()
        axes = rng.integers(-rank, rank, int(rng.integers(1, rank + 2))) if rank else np.zeros(1)
        keep = bool(rng.integers(2))
        reduced = {int(a) % rank for a in axes} if rank else set()
        source, result = parameters(rng, op, type, int(np.prod([shape[a] for a in reduced])))
        x = cases.input(values(rng, shape, type), source)
        cases.op(
            f"{shape} over {axes}, keep {keep}, {source} to {result}",
            op,
            [x, cases.builder.constant("axes", axes.astype(np.int32))],
            type=type,
            quantization=result,
            keep_dims=keep,
        )
    cases.check(distinct=8)


@pytest.mark.parametrize("type", [INT8, INT16], ids=lambda t: t.name)
def test_sum_of_signed_integers(type: TensorType) -> None:
    # The runtime's reference kernel reads the bytes as uint8, so its arithmetic for uint8 is the measure here. Its
    # optimised kernel computes in float32, which rounds another way now and then.
    rng = np.random.default_rng(int(type))
    b = Builder()
    outputs, feeds, wanted = [], [], []
    for shape, axes, scale, to in (
        ((3, 8, 7, 5), (1, 2), 0.05, 0.4),
        ((2, 5), (1,), 0.01, 0.008),
        ((1, 9, 9, 3), (0, 1, 2, 3), 0.3, 7.0),
        ((4, 300), (-1,), 0.02, 0.3),
    ):
        source, result = (Encoding(type, float(np.float32(s)), zero_point(rng, type)) for s in (scale, to))
        value = values(rng, shape, type)
        x = b.input(f"x{len(feeds)}", shape, type, quantized(source.scale, source.point))
        made = b.op(
            Op.SUM,
            [x, b.constant("axes", np.int32(axes))],
            type=type,
            quantization=quantized(result.scale, result.point),
        )
        outputs.append(made)
        feeds.append(value)
        total = (value.astype(np.int64) - source.point).sum(axis=axes)
        wanted.append(requantizations(total, Encoding(type, source.scale, 0), result)[1])
    optimised, got = both(b.model(outputs), feeds, reference=False)
    for one, other, exact in zip(got, optimised, wanted, strict=True):
        np.testing.assert_array_equal(one, exact)
        assert np.abs(one.astype(np.int64) - other).max() <= 1
    assert np.unique(np.concatenate([g.ravel() for g in got])).size > 10


@pytest.mark.parametrize("numbers", [True, False])
def test_not_a_number_and_infinities(numbers: bool) -> None:
    nan = 0.5 if numbers else np.nan
    x = np.array([[-np.inf, -np.inf], [nan, 1], [1, nan], [-0.0, -0.0], [np.inf, 2], [3e38, 3e38]], np.float32)
    cases = Cases()
    for op in REDUCERS:
        for value, axes in ((x, [1]), (x, [0]), (x, [0, 1]), (x[0], [0]), (x[1], [0]), (x[2], [0])):
            given = cases.input(value)
            cases.op(f"{op.name} of {value} over {axes}", op, [given, cases.builder.constant("a", np.int32(axes))])
    # What a NaN makes of an extreme depends on the order, which is another one in every set of kernels.
    cases.check(fast=numbers)


@pytest.mark.parametrize("op", REDUCERS, ids=lambda o: o.name)
def test_integers_that_overflow(op: Op) -> None:
    rng = np.random.default_rng(3)
    cases = Cases()
    for type in (INT32, INT64, INT16, INT8, UINT8):
        if type in QUANTIZED and op in (Op.MEAN, Op.SUM):
            continue  # those are quantised
        info = np.iinfo(DTYPES[type])
        x = rng.integers(info.min, info.max, (4, 9, 2), DTYPES[type], endpoint=True)
        for axes in ([1], [0, 1, 2], [0, 2]):
            cases.op(f"{type.name} over {axes}", op, [cases.input(x), cases.builder.constant("a", axes)], type=type)
    cases.check()


@pytest.mark.parametrize("op", REDUCERS, ids=lambda o: o.name)
@pytest.mark.parametrize("type", [FLOAT, INT32, UINT8], ids=lambda t: t.name)
def test_empty_inputs(op: Op, type: TensorType) -> None:
    parameters = quantized(0.5, 3) if type == UINT8 and op != Op.REDUCE_PROD else None
    cases = Cases()
    x = cases.input(np.zeros((2, 0, 3), DTYPES[type]), parameters)
    for axes, shape in (([1], [2, 3]), ([0, 1, 2], []), ([0], [0, 3])):
        cases.op(str(axes), op, [x, cases.builder.constant("a", axes)], shape=shape, type=type, quantization=parameters)
    cases.check(distinct=1)


def test_bool() -> None:
    cases = Cases()
    x = cases.input(np.array([[True, False, False], [False, False, False], [True, True, True]]))
    for op in (Op.REDUCE_MAX, Op.REDUCE_MIN):
        for axes in ([0], [1], [0, 1]):
            cases.op(f"{op.name} {axes}", op, [x, cases.builder.constant("a", axes)], type=BOOL)
    cases.check()


def test_scalars() -> None:
    cases = Cases()
    scalar, vector = cases.input(np.float32(7)), cases.input(np.float32([[1, 2], [3, 5]]))
    for op in REDUCERS:
        # Axes of scalars are not looked at; an axis may itself be a scalar.
        cases.op(f"{op.name} of a scalar", op, [scalar, cases.builder.constant("a", [5])])
        cases.op(f"{op.name} along a scalar", op, [vector, cases.builder.constant("a", np.int32(1))])
    cases.check()


@pytest.mark.parametrize("type", QUANTIZED, ids=lambda t: t.name)
def test_factors_at_their_limits(type: TensorType) -> None:
    rng = np.random.default_rng(8)
    cases = Cases()
    for source, result in ((1.0, 3e9), (1.0, 2.0**31), (4e5, 1.0), (1e-30, 1e-30), (1e30, 3e29), (1.0, 1.0)):
        for point in (0,) if type == INT16 else (np.iinfo(DTYPES[type]).min, np.iinfo(DTYPES[type]).max):
            x = cases.input(values(rng, (3, 50, 70), type), quantized(source, int(point)))
            for axes in ([1, 2], [1]):
                cases.op(
                    f"{source} to {result}, {point}, {axes}",
                    Op.MEAN,
                    [x, cases.builder.constant("a", np.int32(axes))],
                    type=type,
                    quantization=quantized(result, int(point)),
                )
    cases.check(distinct=20)


def test_other_shapes_at_run_time() -> None:
    b = Builder()
    x = b.input("x", [-1, 4, 3])
    model = b.model([b.op(op, [x, b.constant("a", [1, 2])]) for op in REDUCERS])
    rng = np.random.default_rng(1)
    for batch in (5, 1):
        expected, got = both(model, [values(rng, (batch, 4, 3), FLOAT)])
        for a, c in zip(expected, got, strict=True):
            assert a.shape == (batch,)
            np.testing.assert_array_equal(c, a)


def model(
    op: Op = Op.MEAN,
    type: TensorType = INT8,
    source: Any = (0.1, 0),
    result: Any = (0.1, 0),
    axes: Any = 1,
    to: TensorType | None = None,
    shape: tuple[int, ...] = (2, 3),
) -> Any:
    b = Builder()
    x = b.input("x", shape, type, source and quantized(*source))
    a = b.input("axes", [1], INT32) if axes is None else b.constant("axes", axes)
    y = b.op(op, [x, a], shape=[2], type=type if to is None else to, quantization=result and quantized(*result))
    return b.model([y])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (model(axes=None), "its axes are computed at run time"),
        (model(axes=np.int64([1])), "its axes are int64, not int32"),
        (model(axes=np.int32([2])), "it reduces axis 2 of an input of rank 2"),
        (model(axes=np.int32([-3])), "it reduces axis -3 of an input of rank 2"),
        (model(to=UINT8), "its input is int8 and its output uint8"),
        (model(source=None), "its input has no quantisation"),
        (model(op=Op.SUM, result=None), "its output has no quantisation"),
        (model(source=([0.1, 0.2], [0, 0])), "its input is quantised per channel"),
        (model(source=(float("inf"), 0)), "a scale of inf"),
        (model(source=(0.0, 0)), "its input has no quantisation"),
        (model(result=(0.1, 200)), "a zero point of 200"),
        (model(type=INT16, source=(0.1, 3)), "a zero point other than 0"),
        (model(op=Op.REDUCE_MAX, result=(0.2, 0)), "its input and output are quantised differently"),
        (model(op=Op.REDUCE_MIN, result=(0.1, 1)), "its input and output are quantised differently"),
        (model(source=(1e30, 0), result=(1e-8, 0)), "times that of its output"),
        (model(op=Op.REDUCE_PROD, type=UINT8), "it multiplies quantised numbers of type uint8"),
        (model(op=Op.REDUCE_PROD, type=FLOAT), "it multiplies quantised numbers of type float32"),
        (model(op=Op.REDUCE_PROD, source=(200.0, 0)), "its input's scale is too large"),
        (model(op=Op.REDUCE_PROD, shape=(2, 0)), "it multiplies the elements of an empty quantised input"),
        (model(type=BOOL, source=None, result=None), "inputs of type bool are not supported"),
    ],
)
def test_refusals(bad: Any, reason: str) -> None:
    assert reason in refusal(bad)
