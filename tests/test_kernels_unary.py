"""Elementwise operators of one input: the delegate's kernels against TFLite's reference kernels.

Those of 8 and 16 bits are compared for every number that there is, under many quantisations. ELU, CEIL and ROUND have
no reference kernels; theirs are the usual ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delegate import both
from elementwise_cases import (
    INT8,
    INT16,
    INT32,
    SPECIALS,
    UINT8,
    Array,
    Cases,
    Q,
    all_of,
    random_quantization,
    refused,
)

from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.types import RANGES

UNREFERENCED = {Op.ELU, Op.CEIL, Op.ROUND}
FLOATS = [
    Op.RELU, Op.RELU6, Op.RELU_N1_TO_1, Op.RELU_0_TO_1, Op.LEAKY_RELU, Op.ELU, Op.HARD_SWISH, Op.LOGISTIC, Op.TANH,
    Op.EXP, Op.LOG, Op.SQRT, Op.RSQRT, Op.SQUARE, Op.ABS, Op.NEG, Op.SIGN, Op.SIN, Op.COS, Op.FLOOR, Op.CEIL,
    Op.ROUND,
]  # fmt: skip
STORED = [
    *((kind, type) for kind in (Op.RELU, Op.RELU6, Op.LEAKY_RELU, Op.GELU, Op.LOGISTIC, Op.TANH)
      for type in (INT8, UINT8, INT16)),
    *((kind, type) for kind in (Op.RELU_N1_TO_1, Op.RELU_0_TO_1, Op.HARD_SWISH) for type in (INT8, UINT8)),
    *((kind, type) for kind in (Op.EXP, Op.LOG, Op.SQRT, Op.RSQRT, Op.ABS) for type in (INT8, INT16)),
    (Op.ELU, INT8),
]  # fmt: skip


def options_of(kind: Op, i: int) -> dict[str, Any]:
    if kind == Op.LEAKY_RELU:
        return {"alpha": (0.1, 0.3, 0.0, 1.0, 1.7, -0.5, -1.3)[i % 7]}
    return {"approximate": bool(i % 2)} if kind == Op.GELU else {}


@pytest.mark.parametrize("kind", FLOATS)
def test_floats(kind: Op) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([
        SPECIALS, np.linspace(-20, 20, 4001), rng.normal(0, 2, 3000), np.exp(rng.uniform(-80, 80, 500)),
        -np.exp(rng.uniform(-80, 80, 500)),
    ]).astype(np.float32)  # fmt: skip
    cases = Cases()
    for i in range(7 if kind == Op.LEAKY_RELU else 2):
        cases.add(kind, [x], **options_of(kind, i))
    cases.add(kind, [np.float32(0.7)], **options_of(kind, 0))
    cases.add(kind, [x[:120].reshape(2, 3, 4, 5)], **options_of(kind, 1))
    cases.check(reference=kind not in UNREFERENCED)


def test_floats_of_gelu() -> None:
    """The reference computes it with vectorised functions of its own, and its tanh reaches -1 early."""
    rng = np.random.default_rng(3)
    x = np.concatenate([SPECIALS, np.linspace(-20, 20, 4001), rng.normal(0, 2, 3000)]).astype(np.float32)
    exact = Cases()
    exact.add(Op.GELU, [x], approximate=False)
    exact.check(ulps=16)
    approximate = Cases()
    approximate.add(Op.GELU, [x], approximate=True)
    (a,), (b,) = both(approximate.model(), approximate.inputs)
    with np.errstate(all="ignore"):
        bound = 4 * np.spacing(np.abs(a)) + 2e-7 * np.abs(x)
        close = (np.abs(a - b) <= bound) | (a == b) | (np.isnan(a) & np.isnan(b))
    assert np.all(close), (x[~close][:5], a[~close][:5], b[~close][:5])


def quantizations(rng: np.random.Generator, kind: Op, type: TensorType, i: int) -> tuple[tuple[float, int], ...]:
    """Those of the input and of the output, such that results are spread over the range, more or less."""
    low, high = RANGES[type]
    wide = type == INT16
    if kind == Op.LOGISTIC:
        around = (0.03, 0.2, 0.005)[i % 3] / (256 if wide else 1)
        output = (1 / 32768, 0) if wide else (1 / 256, (low, 0, high, low)[i % 4])
        return random_quantization(rng, type, around), output
    if kind == Op.TANH and wide:
        # Powers of two have a way of their own.
        scale = (2.0**-12, 2.0**-11, 2.0**-13, 1e-4, 3e-3, 1e-6, 0.5)[i % 7]
        return (scale, 0), (1 / 32768, 0)
    around = (0.02, 0.1, 0.5)[i % 3] / (256 if wide else 1)
    source = random_quantization(rng, type, around)
    reach = (high - low) * source[0]
    if kind == Op.EXP:
        result = np.exp((high - source[1]) * source[0])
        return source, random_quantization(rng, type, float(min(result, 1e6)) / (high - low))
    if kind == Op.LOG:
        return source, random_quantization(rng, type, 10 / (high - low))
    if kind == Op.SQRT:
        return source, random_quantization(rng, type, np.sqrt(reach) / (high - low))
    if kind == Op.RSQRT:
        return source, random_quantization(rng, type, 1 / np.sqrt(source[0]) / (high - low))
    if kind == Op.TANH:
        return source, random_quantization(rng, type, 1 / 128)
    return source, random_quantization(rng, type, source[0] if i % 2 else reach / 4 / (high - low))


@pytest.mark.parametrize(("kind", "type"), STORED)
def test_every_stored_number(kind: Op, type: TensorType) -> None:
    rng = np.random.default_rng(2)
    cases = Cases()
    for i in range(14 if type == INT16 else 42):
        source, (scale, zero_point) = quantizations(rng, kind, type, i)
        if kind == Op.HARD_SWISH:
            scale = max(scale, source[0] / 100)
        x = all_of(type)
        if kind in (Op.SQRT, Op.RSQRT):
            x = np.maximum(x, np.asarray(source[1], x.dtype))  # the reference stops at negative numbers
        cases.add(kind, [Q(x, *source)], scale=scale, zero_point=zero_point, **options_of(kind, i))
    cases.check(reference=kind not in UNREFERENCED)


def test_hard_swish_at_the_ends_of_its_scales() -> None:
    cases = Cases()
    for type, zero_points in ((INT8, (-128, 0, 127)), (UINT8, (0, 100, 255))):
        for scale in (1e-6, 1e-3, 3 / 32768 * 128, 0.02, 1.0, 50.0, 1e4):
            for ratio in (0.008, 0.5, 1.0, 7.0, 1e3, 1e8):
                for zero_point in zero_points:
                    given = Q(all_of(type), scale, zero_point)
                    cases.add(Op.HARD_SWISH, [given], scale=scale * ratio, zero_point=zero_points[1])
    cases.check()


def test_tables_of_functions_that_overflow() -> None:
    """Results that 32 bits cannot hold come out as in TFLite's tables on the same machine."""
    cases = Cases()
    for scale in (1.0, 0.5, 3.0):
        cases.add(Op.EXP, [Q(all_of(INT8), scale)], scale=0.1, zero_point=-3)
        cases.add(Op.EXP, [Q(all_of(INT8), scale)], scale=0.1, zero_point=3)
        cases.add(Op.EXP, [Q(all_of(INT16), scale / 256)], scale=0.1)
        cases.add(Op.EXP, [Q(all_of(INT16), scale)], scale=0.1)
    for scale in (1e9, 3e38):  # the latter gives infinities and NaN
        cases.add(Op.GELU, [Q(all_of(INT8), scale, 3)], scale=scale / 1e12, zero_point=-7)
        cases.add(Op.GELU, [Q(all_of(UINT8), scale, 131)], scale=scale / 1e12, zero_point=9)
        cases.add(Op.LOG, [Q(all_of(INT8), 1e-5)], scale=1e-12, zero_point=5)
    cases.check()


def test_logistic_of_shorts_by_every_way() -> None:
    cases = Cases()
    for scale in (2.0**-12, 2.0**-11, 2.0**-13, 1e-5, 1e-7, 0.1, 1.0, 4.0, 6.0, 1000.0):
        cases.add(Op.LOGISTIC, [Q(all_of(INT16), scale)], scale=1 / 32768)
        cases.add(Op.TANH, [Q(all_of(INT16), scale)], scale=1 / 32768)
    cases.check()


def test_integers_that_are_not_quantized() -> None:
    edges = {
        np.int32: np.array([-(2**31), -(2**31) + 1, -5, 0, 5, 2**31 - 1], np.int32),
        np.int64: np.array([-(2**63), -5, 0, 5, 2**63 - 1]),
    }
    cases = Cases()
    for kind in (Op.ABS, Op.NEG, Op.SIGN):
        cases.add(kind, [edges[np.int32]])
    cases.add(Op.NEG, [edges[np.int64]])
    for type in (INT8, INT16):
        cases.add(Op.NEG, [all_of(type)])
        cases.add(Op.NEG, [Q(all_of(type), 0.1, 3 if type == INT8 else 0)], scale=0.2)
    cases.add(Op.ABS, [all_of(INT16)])
    cases.check()


def test_roots_of_negative_numbers_count_as_those_of_zero() -> None:
    """TFLite's kernels return an error."""
    cases = Cases()
    cases.add(Op.SQRT, [Q(all_of(INT8), 0.1, 4)], scale=0.05, zero_point=-100)
    cases.add(Op.RSQRT, [Q(all_of(INT8), 0.1, 4)], scale=0.05, zero_point=-100)
    cases.add(Op.SQRT, [Q(all_of(INT16), 0.001)], scale=0.0005)
    cases.add(Op.RSQRT, [Q(all_of(INT16), 0.001)], scale=0.005)
    sqrt, rsqrt, sqrt_16, rsqrt_16 = cases.results()
    assert set(sqrt[:133].tolist()) == {-100}
    assert sqrt[134] > -100
    assert set(rsqrt[:133].tolist()) == {127}
    assert rsqrt[-1] < 127
    assert set(sqrt_16[:32769].tolist()) == {0}
    assert sqrt_16[-1] > 0
    assert set(rsqrt_16[:32769].tolist()) == {rsqrt_16[32768]}


def test_empty_inputs() -> None:
    cases = Cases()
    for kind in (Op.RELU, Op.TANH, Op.ABS):
        cases.add(kind, [np.zeros((2, 0), np.float32)])
    assert all(result.size == 0 for result in cases.results())


BYTES = np.ones(3, np.int8)
SHORTS = np.ones(3, np.int16)


@pytest.mark.parametrize(
    ("kind", "operand", "options", "reason"),
    [
        (Op.RELU, BYTES, {}, "no quantisation"),
        (Op.RELU, Q(BYTES, 0.1), {}, "its output has no quantisation"),
        (Op.RELU, Q(BYTES, [0.1, 0.1, 0.2]), {"scale": 0.1}, "per channel"),
        (Op.RELU, Q(SHORTS, 0.1, 1), {"scale": 0.1}, "instead of 0"),
        (Op.RELU, Q(BYTES, 1e20), {"scale": 1e-3}, "differ by a factor of"),
        (Op.RELU6, Q(BYTES, 1e-10), {"scale": 1e-10}, "too small for a limit of 6"),
        (Op.RELU_N1_TO_1, Q(SHORTS, 0.1), {"scale": 0.1}, "int16 is not supported"),
        (Op.RELU, np.ones(3, np.int32), {}, "int32 is not supported"),
        (Op.LEAKY_RELU, Q(BYTES, 0.1), {"scale": 0.1, "alpha": float("nan")}, "differ by a factor of nan"),
        (Op.HARD_SWISH, Q(BYTES, 1.0), {"scale": 1e-3}, "too small for that of its input"),
        (Op.LOGISTIC, Q(BYTES, 0.1), {"scale": 0.1}, "instead of 1/256"),
        (Op.LOGISTIC, Q(SHORTS, 0.1), {"scale": 0.1}, "instead of 1/32768"),
        (Op.TANH, Q(SHORTS, 0.1), {"scale": 0.1}, "instead of 1/32768"),
        (Op.TANH, Q(SHORTS, 1e-20), {"scale": 1 / 32768}, "the scale of its input is 1e-20"),
        (Op.TANH, Q(SHORTS, 1e20), {"scale": 1 / 32768}, "the scale of its input is 1e+20"),
        (Op.RSQRT, Q(BYTES, 1.0), {"scale": 1e9}, "too large"),
        (Op.SQUARE, Q(BYTES, 0.1), {"scale": 0.1}, "int8 is not supported"),
        (Op.ABS, BYTES, {}, "no quantisation"),
        (Op.LOG, SHORTS, {}, "no quantisation"),
        (Op.EXP, Q(BYTES.view(np.uint8), 0.1), {"scale": 0.1}, "uint8 is not supported"),
        (Op.SIN, np.ones(3, bool), {}, "bool is not supported"),
        (Op.TANH, np.ones(3, np.float32), {"to": INT32}, "its output is int32 where its input is float32"),
    ],
)
def test_refusals(kind: Op, operand: Array | Q, options: dict[str, Any], reason: str) -> None:
    assert reason in refused(kind, [operand], **options)
