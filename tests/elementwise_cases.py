"""What the tests of elementwise kernels share: many operators in one model, run with and without the delegate.

::

    cases = Cases()
    cases.add(Op.ADD, [a, b], fused_activation_function=RELU)
    cases.check()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from delegate import both, outputs_of, packaged, refusal, start
from numpy.typing import NDArray

from litefuse.delegates.runtime import load
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.types import NUMPY, RANGES, tensor_type

Array = NDArray[Any]

FLOAT, HALF = TensorType.FLOAT32, TensorType.FLOAT16
INT8, UINT8, INT16 = TensorType.INT8, TensorType.UINT8, TensorType.INT16
INT32, INT64, BOOL = TensorType.INT32, TensorType.INT64, TensorType.BOOL

# Floats at which functions and comparisons go wrong, if they do.
_LARGEST = np.finfo(np.float32).max
SPECIALS = np.array(
    [0.0, -0.0, np.nan, np.inf, -np.inf, _LARGEST, -_LARGEST, 1e-45, -1e-45, 1e-38, -1e-38, 1, -1, 0.5, -0.5, 1.5, -1.5,
     2.5, -2.5, 3, -3, 6, -6, 0.49999997, -0.49999997, 8388609, -8388609, 2147483648, -2147483648, 9.3e18,
     -9.3e18, 1e20],
    np.float32,
)  # fmt: skip


class Q:
    """A value with its quantisation."""

    def __init__(self, value: Array, scale: Any = None, zero_point: Any = 0, axis: int = 0) -> None:
        self.value = np.asarray(value)
        self.quantization = None if scale is None else quantized(scale, zero_point, axis)


class Constant(Q):
    """One that is in the model."""


class Cases:
    """Operators that do not depend on each other."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.inputs: list[Array] = []
        self.outputs: list[int] = []
        self.names: list[str] = []
        self.operands = 0

    def add(
        self,
        kind: Op,
        operands: Sequence[Array | Q],
        *,
        to: TensorType | None = None,
        scale: Any = None,
        zero_point: Any = 0,
        axis: int = 0,
        shape: Sequence[int] | None = None,
        version: int = 1,
        **options: Any,
    ) -> None:
        """One operator. Its output has the type ``to`` (that of the first operand) and ``scale``, if any."""
        given = [v if isinstance(v, Q) else Q(v) for v in operands]
        tensors = []
        for v in given:
            self.operands += 1
            name = f"operand_{self.operands}"
            if isinstance(v, Constant):
                tensors.append(self.builder.constant(name, v.value, v.quantization))
            else:
                tensors.append(self.builder.input(name, v.value.shape, tensor_type(v.value.dtype), v.quantization))
                self.inputs.append(v.value)
        type = tensor_type(given[0].value.dtype) if to is None else to
        made = self.builder.op(
            kind,
            tensors,
            shape=np.broadcast_shapes(*(v.value.shape for v in given)) if shape is None else shape,
            type=type,
            quantization=None if scale is None else quantized(scale, zero_point, axis),
            version=version,
            **options,
        )
        self.outputs.append(made)
        details = [f"{v.value.dtype}{list(v.value.shape)} {describe(v.quantization)}" for v in given]
        self.names.append(f"{kind.name}({', '.join(details)}) -> {type.name} {scale} {zero_point} {options}")

    def model(self) -> Model:
        return self.builder.model(self.outputs)

    def check(self, *, ulps: int = 0, reference: bool = True) -> None:
        """All results are those of TFLite's kernels, floats but for so many units in the last place."""
        expected, got = both(self.model(), self.inputs, reference=reference)
        for name, a, b in zip(self.names, expected, got, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype), name
            assert_same(a, b, name, ulps)

    def results(self) -> list[Array]:
        """What the delegate computes."""
        delegate = load()
        return outputs_of(start(packaged(self.model()), delegates=[delegate]), self.inputs)


def describe(q: Any) -> str:
    return "" if q is None else f"{np.asarray(q.scale).tolist()} {np.asarray(q.zero_point).tolist()}"


def bits(x: Array) -> NDArray[np.int64]:
    """Floats as integers in the same order, next to each other where they are."""
    raw = x.view(np.int32 if x.itemsize == 4 else np.int16).astype(np.int64)
    lowest = np.int64(1) << (8 * x.itemsize - 1)
    return np.where(raw < 0, -lowest - raw, raw)


def assert_same(a: Array, b: Array, name: str, ulps: int = 0) -> None:
    if a.dtype.kind != "f":
        wrong = a != b
    elif ulps:
        wrong = np.where(np.isnan(a) | np.isnan(b), np.isnan(a) != np.isnan(b), np.abs(bits(a) - bits(b)) > ulps)
    else:  # the sign of zeros counts
        raw = np.int32 if a.itemsize == 4 else np.int16
        wrong = ~(np.isnan(a) & np.isnan(b)) & (a.view(raw) != b.view(raw))
    where = np.argwhere(wrong)[:5].tolist()
    told = [(i, a[tuple(i)], b[tuple(i)]) for i in where]
    assert not np.any(wrong), f"{name}: {np.count_nonzero(wrong)} of {a.size} differ (index, expected, got): {told}"


def refused(kind: Op, operands: Sequence[Array | Q], **options: Any) -> str:
    """Why the delegate refuses an operator."""
    cases = Cases()
    cases.add(kind, operands, **options)
    return refusal(cases.model())


def all_of(type: TensorType) -> Array:
    low, high = RANGES[type]
    return np.arange(low, high + 1).astype(NUMPY[type])


def random_quantization(rng: np.random.Generator, type: TensorType, around: float = 0.05) -> tuple[float, int]:
    """A scale within a factor of 4 of ``around``, and a zero point, often an end of the range."""
    low, high = RANGES[type]
    scale = float(np.float32(around * 4.0 ** rng.uniform(-1, 1)))
    if type == INT16:
        return scale, 0
    return scale, int(rng.choice([low, high, 0 if low < 0 else 128, int(rng.integers(low, high + 1))]))
