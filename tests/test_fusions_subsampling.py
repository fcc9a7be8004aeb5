"""Subsampling in front of 1x1 convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rules import fuse, kinds, refusals

from litefuse.fusions.subsampling import SubsamplingIntoConvolution
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model
from litefuse.schema.enums import ActivationFunctionType, Padding, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import QuantizationParameters

RULE = SubsamplingIntoConvolution()
RNG = np.random.default_rng(5)


def picked(b: Builder, kind: Op, x: int, steps: tuple[int, int], **options: Any) -> int:
    if kind is Op.STRIDED_SLICE:
        constants = {"begin": [0] * 4, "end": [9999] * 4, "strides": [1, *steps, 1]} | options
        masks = {k: v for k, v in constants.items() if k.endswith("mask")}
        return b.op(kind, [x, *(b.constant(n, constants[n]) for n in ("begin", "end", "strides"))], **masks)
    window = {"filter_height": 1, "filter_width": 1, "padding": Padding.VALID} | options
    return b.op(kind, [x], stride_h=steps[0], stride_w=steps[1], **window)


def conv(b: Builder, x: int, size: int = 1, channels: int = 3, kind: Op = Op.CONV_2D, **options: Any) -> int:
    depthwise = kind is Op.DEPTHWISE_CONV_2D
    shape = (1, size, size, channels) if depthwise else (4, size, size, channels)
    weights = b.constant("w", RNG.standard_normal(shape).astype(np.float32))
    bias = b.constant("b", RNG.standard_normal(channels if depthwise else 4).astype(np.float32))
    return b.op(kind, [x, weights, bias], **({"depth_multiplier": 1} if depthwise else {}) | options)


def model(kind: Op, steps: tuple[int, int] = (2, 2), size: tuple[int, int] = (9, 8), **options: Any) -> Model:
    b = Builder()
    x = b.input("x", [2, *size, 3])
    return b.model([conv(b, picked(b, kind, x, steps, **options))])


KINDS = [Op.MAX_POOL_2D, Op.AVERAGE_POOL_2D, Op.STRIDED_SLICE]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [(2, 2), (3, 1), (1, 2)])
@pytest.mark.parametrize("size", [(9, 8), (8, 7), (2, 3), (1, 1)])
def test_strides_multiply(kind: Op, steps: tuple[int, int], size: tuple[int, int]) -> None:
    after, report = fuse(model(kind, steps, size), RULE)
    assert kinds(after) == ["CONV_2D"]
    assert report.counts() == {RULE.name: 1}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", Padding)
@pytest.mark.parametrize("of", [Op.CONV_2D, Op.DEPTHWISE_CONV_2D])
def test_readers_with_strides_of_their_own(kind: Op, padding: Padding, of: Op) -> None:
    b = Builder()
    y = picked(b, kind, b.input("x", [1, 13, 11, 3]), (2, 3))
    same = {"stride_h": 2, "stride_w": 2, "padding": padding, "kind": of}
    after, _ = fuse(b.model([conv(b, y, **same), conv(b, y, **same)]), RULE)
    assert kinds(after) == [of.name] * 2


def test_dynamic_batch() -> None:
    b = Builder()
    x = b.input("x", [-1, 6, 6, 3])
    y = b.op(Op.MAX_POOL_2D, [x], stride_h=2, stride_w=2, filter_height=1, filter_width=1, shape=[-1, 3, 3, 3])
    after, _ = fuse(b.model([conv(b, y, shape=[-1, 3, 3, 4])]), RULE)
    assert kinds(after) == ["CONV_2D"]


@pytest.mark.parametrize("kind", KINDS)
def test_int8(kind: Op) -> None:
    b = Builder()
    x = b.input("x", [1, 9, 9, 3], TensorType.INT8, quantized(0.05, 3))
    y = picked(b, kind, x, (2, 2))
    weights = b.constant(
        "w", RNG.integers(-127, 128, (4, 1, 1, 3), np.int8), quantized([0.01, 0.02, 0.03, 0.01], [0] * 4)
    )
    bias = b.constant("b", RNG.integers(-500, 500, 4, np.int32), quantized([0.0005, 0.001, 0.0015, 0.0005], [0] * 4))
    out: QuantizationParameters = quantized(0.1, -4)
    after, _ = fuse(b.model([b.op(Op.CONV_2D, [y, weights, bias], quantization=out)]), RULE)
    assert kinds(after) == ["CONV_2D"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Op.MAX_POOL_2D, {"filter_height": 2}),
        (Op.AVERAGE_POOL_2D, {"filter_width": 2}),
        (Op.MAX_POOL_2D, {"fused_activation_function": ActivationFunctionType.RELU}),
        (Op.STRIDED_SLICE, {"begin": [0, 1, 0, 0]}),
        (Op.STRIDED_SLICE, {"end": [2, 8, 8, 3]}),
        (Op.STRIDED_SLICE, {"strides": [2, 2, 2, 1]}),
        (Op.STRIDED_SLICE, {"strides": [1, 1, 1, 1]}),
    ],
)
def test_what_does_more_is_no_candidate(kind: Op, options: dict[str, Any]) -> None:
    assert refusals(model(kind, **options), RULE) == []


def test_kernels_of_more_than_a_pixel_are_no_readers() -> None:
    b = Builder()
    y = picked(b, Op.MAX_POOL_2D, b.input("x", [1, 9, 9, 3]), (2, 2))
    assert refusals(b.model([conv(b, y, size=3)]), RULE) == []


def test_other_readers_and_outputs_are_reasons() -> None:
    b = Builder()
    y = picked(b, Op.MAX_POOL_2D, b.input("x", [1, 9, 9, 3]), (2, 2))
    (reason,) = refusals(b.model([conv(b, y), b.op(Op.ABS, [y])]), RULE)
    assert "also read by ABS" in reason
    b = Builder()
    y = picked(b, Op.MAX_POOL_2D, b.input("x", [1, 9, 9, 3]), (2, 2))
    (reason,) = refusals(b.model([conv(b, y), y]), RULE)
    assert "output" in reason
