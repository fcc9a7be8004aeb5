"""The ways in which kernels requantise, against the kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rules import results

from litefuse.fusions.fixed_point import (
    Encoding,
    dequantized,
    encoding,
    multiplier,
    quantized,
    requantizations,
    requantized_twice,
    to_array,
)
from litefuse.graph import Graph
from litefuse.graph.build import Builder
from litefuse.graph.build import quantized as parameters
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op

INT8, UINT8, INT16 = TensorType.INT8, TensorType.UINT8, TensorType.INT16
rng = np.random.default_rng(5)


def random_encoding(type: TensorType, scale: float) -> Encoding:
    low, high = Encoding(type, 1.0, 0).range
    point = 0 if type == INT16 else int(rng.integers(low, high + 1))
    return Encoding(type, float(np.float32(scale)), point)


def run(a: Encoding, b: Encoding, *, xnnpack: bool, through_float: bool = False) -> np.ndarray:
    builder = Builder()
    q = a.all()
    x = builder.input("x", [len(q)], a.type, parameters(a.scale, a.point))
    if through_float:
        x = builder.op(Op.DEQUANTIZE, [x], type=TensorType.FLOAT32, version=2)
    y = builder.op(Op.QUANTIZE, [x], type=b.type, quantization=parameters(b.scale, b.point), version=2)
    (result,) = results(builder.model([y]), to_array(q, a), xnnpack=xnnpack)
    return result.astype(np.int64)


@pytest.mark.parametrize(
    ("first", "second"), [(INT8, INT8), (UINT8, UINT8), (INT8, UINT8), (UINT8, INT8), (INT8, INT16), (INT16, INT8)]
)
def test_requantizations_are_those_of_the_runtime(first: TensorType, second: TensorType) -> None:
    for i in range(25):
        scale = math.exp(rng.uniform(-6, 0))
        ratio = 2.0 ** rng.integers(-4, 5) if i % 5 == 0 else math.exp(rng.uniform(-3, 3))
        a, b = random_encoding(first, scale), random_encoding(second, scale * ratio)
        kinds = requantizations(a.all(), a, b)
        builtin = kinds[1 if INT16 in (first, second) else 0]
        assert np.array_equal(run(a, b, xnnpack=False), builtin), (a, b)
        assert np.array_equal(run(a, b, xnnpack=True), kinds[-1]), (a, b)


@pytest.mark.parametrize("type", [INT8, UINT8])
def test_quantized_is_what_comes_through_floats(type: TensorType) -> None:
    compared = 0
    for _ in range(60):
        a = random_encoding(type, math.exp(rng.uniform(-6, 0)))
        b = random_encoding(type, a.scale * math.exp(rng.uniform(-1, 1)))
        expected = quantized(dequantized(a.all(), a), b)
        if expected is not None:
            compared += 1
            for xnnpack in (False, True):
                assert np.array_equal(run(a, b, xnnpack=xnnpack, through_float=True), expected)
    assert compared > 2


def test_values_between_two_are_not_decided() -> None:
    b = Encoding(INT8, 2.0, 0)
    assert quantized(np.array([1.0]), b) is None
    assert quantized(np.array([3.001]), b) is None
    found = quantized(np.array([0.9, 3.9, -300.0, 1e30]), b)
    assert found is not None
    assert found.tolist() == [0, 2, -128, 127]
    assert quantized(np.array([257.0]), b) is not None  # beyond the largest in any case


@pytest.mark.parametrize("real", [1.0, 0.5, 3.7, 1e-3, 123.456, 1 - 2.0**-40])
def test_multiplier(real: float) -> None:
    fixed, shift = multiplier(real)
    assert 2**30 <= fixed < 2**31
    assert math.isclose(fixed * 2.0 ** (shift - 31), real, rel_tol=2.0**-31)


def test_vanishing_multiplier() -> None:
    assert multiplier(2.0**-40) == (0, 0)


@pytest.mark.parametrize("ratio", [1e-25, 1 / 300, 200.0, 1e25])
def test_extreme_ratios(ratio: float) -> None:
    a = Encoding(INT8, float(np.float32(0.1)), 3)
    b = Encoding(INT8, float(np.float32(0.1 / ratio)), -5)
    builtin, *_, delegate = requantizations(a.all(), a, b)
    if ratio < 1e20:  # beyond, the kernels themselves overflow
        assert np.array_equal(run(a, b, xnnpack=False), builtin)
        assert np.array_equal(run(a, b, xnnpack=True), delegate)
    assert set(np.unique(delegate)) <= ({-128, -5, 127} if ratio > 100 else {-5, -6, -4})


def test_there_and_back_again() -> None:
    a, b = Encoding(INT8, 0.5, 3), Encoding(UINT8, 0.5, 131)
    for kind in requantized_twice(a.all(), a, b, a):
        assert np.array_equal(kind, a.all())


def test_encoding() -> None:
    b = Builder()
    tensors = [
        b.input("per tensor", [2], INT8, parameters(0.5, 3)),
        b.input("per channel", [2], INT8, parameters([0.5, 0.25])),
        b.input("none", [2], INT8),
        b.input("float", [2]),
        b.input("zero scale", [2], INT8, parameters(0.0)),
        b.input("wide", [2], TensorType.INT32, parameters(0.5)),
    ]
    graph = Graph(b.model(tensors))
    assert [encoding(graph, t) for t in tensors] == [Encoding(INT8, 0.5, 3)] + [None] * 5
    assert Encoding(INT8, 0.5, 3).reach == (-65.5, 62.0)
