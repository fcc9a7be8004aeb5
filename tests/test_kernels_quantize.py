"""QUANTIZE, DEQUANTIZE and CAST: the delegate's kernels against TFLite's reference kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from elementwise_cases import (
    BOOL,
    FLOAT,
    HALF,
    INT8,
    INT16,
    INT32,
    INT64,
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
from litefuse.schema.types import NUMPY, RANGES

TYPES = [FLOAT, HALF, INT8, UINT8, INT16, INT32, INT64, BOOL]
REQUANTIZED = [
    (INT8, INT8), (INT8, UINT8), (INT8, INT16), (UINT8, INT8), (UINT8, UINT8), (UINT8, INT16), (INT16, INT8),
    (INT16, INT16), (INT16, INT32), (INT32, INT8), (INT32, INT16),
]  # fmt: skip


def per_channel(rng: np.random.Generator, type: TensorType, n: int) -> tuple[list[float], list[int]]:
    pairs = [random_quantization(rng, type) for _ in range(n)]
    return [scale for scale, _ in pairs], [point for _, point in pairs]


@pytest.mark.parametrize("type", [INT8, UINT8, INT16])
def test_floats_to_integers(type: TensorType) -> None:
    rng = np.random.default_rng(1)
    cases = Cases()
    low, high = RANGES[type]
    for i in range(24):
        scale, zero_point = random_quantization(rng, type, (1e-3, 0.05, 3.0, 1e5)[i % 4])
        # Halves between numbers, their neighbours, and what is beyond the range.
        steps = np.arange(low - 300, high + 300, 0.5 if type != INT16 else 7.5) - zero_point
        x = (steps * np.float32(scale)).astype(np.float32)
        x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf)), SPECIALS])
        cases.add(Op.QUANTIZE, [x.astype(np.float32)], to=type, scale=scale, zero_point=zero_point)
    cases.check()


@pytest.mark.parametrize("type", [INT8, UINT8, INT16])
def test_channels(type: TensorType) -> None:
    rng = np.random.default_rng(2)
    cases = Cases()
    for shape, axis in [((3, 4, 5), 0), ((3, 4, 5), 1), ((3, 4, 5), 2), ((7,), 0), ((2, 1, 3, 2), 3), ((4, 3), 1)]:
        x = (rng.normal(0, 4, shape)).astype(np.float32)
        scale, zero_point = per_channel(rng, type, shape[axis])
        cases.add(Op.QUANTIZE, [x], to=type, scale=scale, zero_point=zero_point, axis=axis)
        if type != INT16:
            stored = rng.choice(all_of(type), shape)
            cases.add(Op.DEQUANTIZE, [Q(stored, scale, zero_point, axis)], to=FLOAT)
    # One channel is the same as one scale for all.
    cases.add(Op.QUANTIZE, [np.ones((2, 1), np.float32)], to=type, scale=[0.1], zero_point=[0], axis=1)
    cases.check()


@pytest.mark.parametrize(("source", "target"), REQUANTIZED)
def test_requantization(source: TensorType, target: TensorType) -> None:
    rng = np.random.default_rng(3)
    cases = Cases()
    for i in range(30):
        around = {INT8: 0.05, UINT8: 0.05, INT16: 2e-4, INT32: 1e-7}
        first = (3e-7, i - 15) if source == INT32 else random_quantization(rng, source, around[source])
        scale, zero_point = (1e-7, 1234) if target == INT32 else random_quantization(rng, target, around[target])
        if i % 5 == 0:
            scale = first[0] * 2.0 ** (i // 5 - 2)  # exact ties, and equal scales
        if i == 1:
            scale, first, zero_point = 0.5, (0.5, -128 if source == INT8 else 0), 0 if target != INT8 else -128
        x = rng.integers(-(2**31), 2**31, 500).astype(np.int32) if source == INT32 else all_of(source)
        if source == INT32:
            x = np.r_[x, np.arange(-1000, 1000), -(2**31), 2**31 - 1].astype(np.int32)
        cases.add(Op.QUANTIZE, [Q(x, *first)], to=target, scale=scale, zero_point=zero_point)
    cases.check()


def test_requantization_between_very_different_scales() -> None:
    cases = Cases()
    for ratio in (1e-12, 2.0**-31, 2.0**-20, 1e5, 2.0**22, 2.0**29):
        for type in (INT8, INT16):
            cases.add(Op.QUANTIZE, [Q(all_of(type), 0.5)], to=type, scale=0.5 / ratio)
    cases.check()


def test_integers_to_floats() -> None:
    rng = np.random.default_rng(4)
    cases = Cases()
    for type in (INT8, UINT8, INT16):
        for i in range(12):
            given = random_quantization(rng, type, (1e-38, 1e-5, 0.05, 1e30)[i % 4])
            cases.add(Op.DEQUANTIZE, [Q(all_of(type), *given)], to=FLOAT)
            cases.add(Op.DEQUANTIZE, [Constant(all_of(type)[:9].reshape(3, 3), *given)], to=FLOAT)
    cases.check()


def test_every_half() -> None:
    x = np.arange(65536).astype(np.uint16).view(np.float16)
    cases = Cases()
    cases.add(Op.DEQUANTIZE, [x], to=FLOAT)
    cases.add(Op.DEQUANTIZE, [Constant(x[:100])], to=FLOAT)
    for type in TYPES:
        cases.add(Op.CAST, [x], to=type)
    cases.check()


def test_floats_to_halves() -> None:
    """All halves, the middles between them, and the floats next to those."""
    halves = np.arange(0x7C01).astype(np.uint16).view(np.float16).astype(np.float32)
    middles = ((halves[:-1].astype(np.float64) + halves[1:]) / 2).astype(np.float32)
    middles[-1] = 65520
    x = np.concatenate([halves, middles, *(np.nextafter(middles, np.float32(to)) for to in (0, np.inf))])
    cases = Cases()
    cases.add(Op.CAST, [np.concatenate([x, -x, SPECIALS])], to=HALF)
    cases.check()


@pytest.mark.parametrize("source", TYPES)
def test_casts(source: TensorType) -> None:
    rng = np.random.default_rng(5)
    dtype = np.dtype(NUMPY[source])
    if dtype.kind == "f":
        x = np.concatenate([SPECIALS, rng.normal(0, 1e3, 300), rng.normal(0, 1e10, 100), np.arange(-300, 300) / 2])
        with np.errstate(over="ignore"):
            x = x.astype(dtype)
    elif dtype.kind == "b":
        x = np.array([True, False, True])
    else:
        info = np.iinfo(dtype)
        x = rng.integers(info.min, info.max, 300, dtype, endpoint=True)
        edges = [s * 2**p + d for p in range(64) for d in (-1, 0, 1) for s in (-1, 1)]
        edges = [e for e in edges if info.min <= e <= info.max]
        x = np.r_[x, np.array(edges, dtype), np.array([info.min, info.max], dtype)]
    cases = Cases()
    for target in TYPES:
        cases.add(Op.CAST, [x], to=target)
        cases.add(Op.CAST, [x[:12].reshape(2, 3, 1, 2) if len(x) > 3 else x.reshape(3, 1)], to=target)
        cases.add(Op.CAST, [Constant(x[:3])], to=target)
    if source in (INT8, UINT8):  # quantisation does not count
        cases.add(Op.CAST, [Q(x, 0.1, 3)], to=FLOAT)
    cases.check()


def test_bytes_of_bools() -> None:
    """Files may hold bools other than 0 and 1."""
    cases = Cases()
    raw = Constant(np.array([0, 1, 2, 255], np.uint8))
    tensor = cases.builder.constant("raw", raw.value, type=BOOL)
    x = cases.builder.input("x", [4], INT32)
    cases.inputs.append(np.zeros(4, np.int32))
    cast = cases.builder.op(Op.CAST, [tensor], shape=[4], type=INT32)
    cases.outputs.append(cases.builder.op(Op.ADD, [x, cast], shape=[4]))
    assert cases.results()[0].tolist() == [0, 1, 1, 1]


def test_empty_inputs() -> None:
    cases = Cases()
    nothing = np.zeros((2, 0), np.float32)
    cases.add(Op.QUANTIZE, [nothing], to=INT8, scale=0.1)
    cases.add(Op.QUANTIZE, [nothing], to=INT8, scale=[0.1, 0.2], zero_point=[1, 2], axis=0)
    cases.add(Op.DEQUANTIZE, [Q(nothing.astype(np.int8), 0.1)], to=FLOAT)
    cases.add(Op.CAST, [nothing], to=INT64)
    assert all(result.size == 0 for result in cases.results())


BYTES = np.ones((2, 3), np.int8)
FLOATS = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("kind", "operand", "options", "reason"),
    [
        (Op.QUANTIZE, FLOATS, {"to": INT8}, "no quantisation"),
        (Op.QUANTIZE, FLOATS, {"to": INT8, "scale": 0.0}, "no quantisation"),
        (Op.QUANTIZE, FLOATS, {"to": INT8, "scale": 0.1, "zero_point": 200}, "zero point"),
        (Op.QUANTIZE, FLOATS, {"to": INT32, "scale": 0.1}, "from float32 to int32"),
        (Op.QUANTIZE, FLOATS, {"to": INT8, "scale": [0.1, float("inf")]}, "scale of inf"),
        (Op.QUANTIZE, FLOATS, {"to": INT8, "scale": [0.1, 0.1], "zero_point": [0, 999]}, "zero point of 999"),
        (Op.QUANTIZE, Q(BYTES, 0.1), {"to": INT8, "scale": [0.1, 0.1]}, "per channel"),
        (Op.QUANTIZE, Q(BYTES, 0.1), {"to": INT8, "scale": 1e-20}, "differ by a factor of"),
        (Op.QUANTIZE, BYTES, {"to": INT8, "scale": 0.1}, "its input has no quantisation"),
        (Op.QUANTIZE, Q(BYTES, 0.1), {"to": INT32, "scale": 0.1}, "from int8 to int32"),
        (Op.QUANTIZE, Q(BYTES.astype(np.int16), 0.1), {"to": UINT8, "scale": 0.1}, "from int16 to uint8"),
        (Op.QUANTIZE, Q(BYTES.astype(np.int16), 0.1, 1), {"to": INT16, "scale": 0.1}, "instead of 0"),
        (Op.DEQUANTIZE, BYTES, {"to": FLOAT}, "no quantisation"),
        (Op.DEQUANTIZE, Q(BYTES.astype(np.int32), 0.1), {"to": FLOAT}, "from int32"),
        (Op.DEQUANTIZE, Q(BYTES.astype(np.int16), 0.1, 1), {"to": FLOAT}, "instead of 0"),
        (Op.DEQUANTIZE, Q(BYTES.astype(np.int16), [0.1, 0.2]), {"to": FLOAT}, "int16 per channel"),
        (Op.DEQUANTIZE, Q(BYTES, 0.1), {"to": INT32}, "instead of float32"),
        (Op.CAST, FLOATS, {"to": TensorType.FLOAT64}, "not"),
    ],
)
def test_refusals(kind: Op, operand: Array | Q, options: dict[str, Any], reason: str) -> None:
    assert reason in refused(kind, [operand], **options)


def test_refuses_to_be_resized_along_the_axis_of_its_scales() -> None:
    cases = Cases()
    cases.add(Op.DEQUANTIZE, [Q(BYTES, [0.1, 0.2])], to=FLOAT)
    cases.inputs = [np.ones((2, 5), np.int8)]
    expected = np.ones((2, 5)) * np.float32([[0.1], [0.2]])
    assert np.array_equal(cases.results()[0], expected.astype(np.float32))
    cases.inputs = [np.ones((4, 3), np.int8)]
    with pytest.raises(RuntimeError):
        cases.results()
