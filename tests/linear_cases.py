"""Operands for tests of kernels that add up products, and models with many such operators side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from litefuse.graph.build import Builder, quantized
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op

ACTIVATIONS = (
    ActivationFunctionType.NONE,
    ActivationFunctionType.RELU,
    ActivationFunctionType.RELU6,
    ActivationFunctionType.RELU_N1_TO_1,
)


class Arithmetic(NamedTuple):
    """What types an operator computes with; hybrid is float32 input with int8 weights."""

    input: TensorType
    weights: TensorType
    bias: TensorType
    per_channel: bool = False


FLOAT = Arithmetic(TensorType.FLOAT32, TensorType.FLOAT32, TensorType.FLOAT32)
UINT8 = Arithmetic(TensorType.UINT8, TensorType.UINT8, TensorType.INT32)
INT8 = Arithmetic(TensorType.INT8, TensorType.INT8, TensorType.INT32)
INT8_CHANNEL = INT8._replace(per_channel=True)
INT16 = Arithmetic(TensorType.INT16, TensorType.INT8, TensorType.INT64)
INT16_CHANNEL = INT16._replace(per_channel=True)
INT16_NARROW = Arithmetic(TensorType.INT16, TensorType.INT8, TensorType.INT32, True)
HYBRID = Arithmetic(TensorType.FLOAT32, TensorType.INT8, TensorType.FLOAT32)
HYBRID_CHANNEL = HYBRID._replace(per_channel=True)
INTEGERS = (UINT8, INT8, INT8_CHANNEL, INT16, INT16_CHANNEL)

NUMPY = {
    TensorType.FLOAT32: np.dtype(np.float32),
    TensorType.UINT8: np.dtype(np.uint8),
    TensorType.INT8: np.dtype(np.int8),
    TensorType.INT16: np.dtype(np.int16),
    TensorType.INT32: np.dtype(np.int32),
    TensorType.INT64: np.dtype(np.int64),
}


def named(arithmetic: Arithmetic) -> str:
    """Such as ``int8-per-channel``, for ids of tests."""
    weights = "" if arithmetic.weights == arithmetic.input else f"x{arithmetic.weights.name}"
    bias = "-narrow" if arithmetic == INT16_NARROW else ""
    return f"{arithmetic.input.name}{weights}".lower() + ("-per-channel" if arithmetic.per_channel else "") + bias


def values(rng: np.random.Generator, shape: Sequence[int], type: TensorType) -> np.ndarray:
    """Random numbers of a type, with its extremes and zero among them (float32: ordinary numbers and zeros)."""
    dtype = NUMPY[type]
    if dtype.kind == "f":
        found = rng.normal(size=shape).astype(dtype)
        return np.where(rng.random(shape) < 0.1, dtype.type(0), found)
    info = np.iinfo(dtype)
    low, high = (info.min, info.max) if info.bits <= 16 else (-(1 << 12), 1 << 12)
    found = rng.integers(low, high, size=shape, endpoint=True, dtype=dtype)
    extremes = rng.choice(np.array([low, high, 0], dtype), size=shape)
    return np.where(rng.random(shape) < 0.15, extremes, found)


def zero_point(rng: np.random.Generator, type: TensorType) -> int:
    """One that the type can hold, often an extreme; 0 where only that is allowed."""
    if type not in (TensorType.INT8, TensorType.UINT8):
        return 0
    info = np.iinfo(NUMPY[type])
    return int(rng.choice([info.min, info.max, 0, int(rng.integers(info.min, info.max + 1))]))


class Operands(NamedTuple):
    """Tensors of one operator, and how its output is quantised."""

    x: int
    weights: int
    bias: int | None
    output: Any
    type: TensorType

    @property
    def inputs(self) -> list[int]:
        return [self.x, self.weights, *([] if self.bias is None else [self.bias])]


class Group:
    """A model of many operators that do not depend on each other, so that one interpreter runs many cases."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.builder = Builder()
        self.feeds: list[np.ndarray] = []
        self.outputs: list[int] = []
        self.labels: list[str] = []

    def feed(self, value: np.ndarray, type: TensorType, quantization: Any = None) -> int:
        """An input of the model with its value. Returns the tensor's index."""
        self.feeds.append(value)
        return self.builder.input(f"x{len(self.feeds)}", value.shape, type, quantization)

    def operands(
        self,
        arithmetic: Arithmetic,
        x_shape: Sequence[int],
        weights_shape: Sequence[int],
        axis: int,
        *,
        bias: bool = True,
        x: np.ndarray | None = None,
    ) -> Operands:
        """Input, weights quantised along ``axis``, and bias, with scales that spread the outputs over their range."""
        rng, b = self.rng, self.builder
        real = arithmetic.input == TensorType.FLOAT32
        channels = weights_shape[axis]
        n = len(self.outputs)
        x_scale = 0.0 if real else float(rng.uniform(0.002, 0.05))
        x_points = None if real else quantized(x_scale, zero_point(rng, arithmetic.input))
        value = values(rng, x_shape, arithmetic.input) if x is None else x
        fed = self.feed(value, arithmetic.input, x_points)

        scales = rng.uniform(0.002, 0.05, channels if arithmetic.per_channel else 1).astype(np.float32)
        weights_points = None
        if arithmetic.weights != TensorType.FLOAT32:
            point = zero_point(rng, arithmetic.weights) if arithmetic.weights == TensorType.UINT8 else 0
            weights_points = quantized(scales, point, axis if arithmetic.per_channel else 0)
        drawn = values(rng, weights_shape, arithmetic.weights)
        if real and arithmetic.weights == TensorType.INT8:
            # With weights of -128 the runtime's hybrid kernels are wrong on x86.
            drawn = np.maximum(drawn, -127)
        weights = b.constant(f"w{n}", drawn, weights_points)

        bias_tensor = None
        if bias:
            bias_points = None
            if not real:
                bias_points = quantized(np.float32(x_scale) * scales, 0, 0)
            bias_tensor = b.constant(f"b{n}", values(rng, [channels], arithmetic.bias), bias_points)
        output = None
        if not real:
            # Products of symmetric weights cancel; where weights have a zero point too they add up.
            depth = np.prod(weights_shape) / channels
            sums = 70.0 * (depth * 2 if arithmetic == UINT8 else np.sqrt(depth))
            scale = x_scale * float(scales.mean()) * sums / rng.uniform(0.5, 2.0)
            output = quantized(scale, zero_point(rng, arithmetic.input))
        return Operands(fed, weights, bias_tensor, output, arithmetic.input)

    def op(self, kind: Op, inputs: Sequence[int], operands: Operands, label: str, **options: Any) -> int:
        """Adds an operator whose output is the model's."""
        tensor = self.builder.op(kind, inputs, type=operands.type, quantization=operands.output, **options)
        self.outputs.append(tensor)
        self.labels.append(label)
        return tensor

    def model(self) -> Any:
        return self.builder.model(self.outputs)


def check_equal(labels: Sequence[str], expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> None:
    """The same shapes, types and numbers, NaN like NaN."""
    assert len(expected) == len(found) == len(labels)
    for label, a, b in zip(labels, expected, found, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), label
        np.testing.assert_array_equal(b, a, err_msg=label)


def check_spread(outputs: Sequence[np.ndarray]) -> None:
    """Outputs of integers that are not all clamped or all the same, so that equality says something."""
    numbers = np.concatenate([o.ravel() for o in outputs])
    info = np.iinfo(numbers.dtype)
    inside = numbers[(numbers > info.min) & (numbers < info.max)]
    assert inside.size > numbers.size // 10
    assert np.unique(inside).size > 20
