"""How quantised kernels turn numbers of one scale into numbers of another, value by value.

A tensor quantised as a whole stores x as q = round(x / scale) + zero_point, limited to its type. Going from one such
encoding to another multiplies q - zero_point by m = scale / scale', which kernels do in fixed point. Four ways are in
use, and differ by one where the true value lies near the middle between two integers, or not so near:

* in two steps: m = f * 2**shift with f rounded to 31 bits; the product with f is rounded to an integer, and that, when
  shifted to the right, again: half up (ai-edge-litert's builtin kernels for INT8 and UINT8, also NEON) or half away
  from zero (those for INT16; gemmlowp's);
* in one step, with the same f (builds with TFLITE_SINGLE_ROUNDING, some microcontrollers);
* with m rounded to 8 bits behind the point (XNNPACK, between equal types).

Whoever wants to say that two graphs give equal numbers has to look at all of them. Those said to be ai-edge-litert's
and XNNPACK's reproduce version 2.3.0 bit for bit over hundreds of random pairs of encodings. (Sources:
tflite/kernels/internal/common.cc, quantization_util.cc, reference/requantize.h; XNNPACK's qs8-vcvt by experiment.)
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from litefuse.graph import Graph
from litefuse.schema.enums import TensorType
from litefuse.schema.types import NUMPY, RANGES

Integers: TypeAlias = NDArray[np.int64]

BYTES = frozenset({TensorType.INT8, TensorType.UINT8})
INTEGERS = BYTES | {TensorType.INT16}
# Scales far from the ends of float32, so that nothing over- or underflows on the way.
_SANE = (1e-30, 1e30)
# A factor with which every number but zero leaves the range of any type.
_MOST = 2.0**20
# Ratios of scales between which XNNPACK converts.
_DELEGATED = (1 / 256, 128)
# Distance to the middle between two integers, in steps, that float32 arithmetic on 16 bits cannot bridge.
_CLEAR = 1 / 64


class Encoding(NamedTuple):
    """How a tensor stores real numbers: (q - point) * scale, for q in the range of the type."""

    type: TensorType
    scale: float
    point: int

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest q."""
        return RANGES[self.type]

    @property
    def reach(self) -> tuple[float, float]:
        """The smallest and the largest real number."""
        low, high = self.range
        return (low - self.point) * self.scale, (high - self.point) * self.scale

    def all(self) -> Integers:
        """Every q there is."""
        low, high = self.range
        return np.arange(low, high + 1, dtype=np.int64)


def encoding(graph: Graph, tensor: int) -> Encoding | None:
    """The encoding of an INT8, UINT8 or INT16 tensor with one scale for all elements; None for others."""
    type, q = graph.type(tensor), graph.quantization(tensor)
    if type not in INTEGERS or q is None or q.details is not None or q.scale is None or len(q.scale) != 1:
        return None
    scale = float(q.scale[0])
    point = int(q.zero_point[0]) if q.zero_point is not None and len(q.zero_point) else 0
    low, high = RANGES[type]
    if not _SANE[0] < scale < _SANE[1] or not low <= point <= high:
        return None
    return Encoding(type, scale, point)


def multiplier(real: float) -> tuple[int, int]:
    """A positive factor as f and shift, with real = f * 2**(shift - 31) and f below 2**31."""
    fraction, shift = math.frexp(real)
    fixed = math.floor(fraction * 2.0**31 + 0.5)
    if fixed == 2**31:
        fixed, shift = 2**30, shift + 1
    return (0, 0) if shift < -31 else (fixed, shift)


def _in_two_steps(x: Integers, real: float, *, away: bool) -> Integers:
    fixed, shift = multiplier(real)
    left, right = max(shift, 0), max(-shift, 0)
    product = (x << left) * fixed
    high = (product + (1 << 30)) >> 31
    half = (1 << right) >> 1
    if away:
        magnitude: Integers = (np.abs(high) + half) >> right
        return np.where(high < 0, -magnitude, magnitude)
    return (high + half) >> right


def _in_one_step(x: Integers, real: float) -> Integers:
    fixed, shift = multiplier(real)
    total = 31 - shift
    return (x * fixed + (1 << (total - 1))) >> total if total > 0 else (x * fixed) << -total


def _in_eight_bits(x: Integers, real: float) -> Integers:
    return (x * int(np.rint(np.float32(256) * np.float32(real))) + 128) >> 8


def requantizations(q: Integers, a: Encoding, b: Encoding) -> list[Integers]:
    """What each kind of kernel makes of numbers in encoding ``a`` when it converts them to ``b``.

    In the order of the module's text, in two steps half up first. The last is what ai-edge-litert does with XNNPACK,
    which is one of the others where XNNPACK does not take the types or the ratio of the scales.
    """
    x, real = q - a.point, min(a.scale / b.scale, _MOST)
    kinds = [_in_two_steps(x, real, away=False), _in_two_steps(x, real, away=True), _in_one_step(x, real)]
    if a.type == b.type and a.type in BYTES and _DELEGATED[0] <= real <= _DELEGATED[1]:
        kinds.append(_in_eight_bits(x, real))
    else:
        kinds.append(kinds[0 if {a.type, b.type} <= BYTES else 1])
    low, high = b.range
    return [np.clip(kind + b.point, low, high) for kind in kinds]


def requantized_twice(q: Integers, a: Encoding, b: Encoding, c: Encoding) -> list[Integers]:
    """What each kind of kernel makes of numbers that are converted from ``a`` to ``b`` and then to ``c``."""
    return [requantizations(first, b, c)[i] for i, first in enumerate(requantizations(q, a, b))]


def quantized(real: NDArray[np.float64], b: Encoding) -> Integers | None:
    """Real numbers in encoding ``b``; None where one lies so near the middle between two that kernels may disagree."""
    steps = real / b.scale
    low, high = b.range
    inside = (steps > low - b.point - 1) & (steps < high - b.point + 1)
    if np.any(np.abs(np.abs(steps - np.floor(steps)) - 0.5)[inside] < _CLEAR):
        return None
    return np.clip(np.floor(np.clip(steps, -1e6, 1e6) + 0.5).astype(np.int64) + b.point, low, high)


def dequantized(q: Integers, a: Encoding) -> NDArray[np.float64]:
    """The real numbers that q stands for."""
    steps: NDArray[np.float64] = (q - a.point).astype(np.float64)
    return np.multiply(steps, a.scale, dtype=np.float64)


def to_array(values: Integers, b: Encoding) -> NDArray[np.generic]:
    """Numbers as an array of the encoding's type."""
    return values.astype(NUMPY[b.type])
