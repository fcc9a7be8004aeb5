"""Pieces of models that compute shapes, as the converter writes them for Keras models with any batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from litefuse.graph.build import Builder
from litefuse.schema import Model
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op

I32, I64 = TensorType.INT32, TensorType.INT64


def weights(*shape: int) -> Any:
    """Float weights, different in each place."""
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def shape_of(b: Builder, x: int, rank: int, name: str = "") -> int:
    """SHAPE(x)."""
    return b.op(Op.SHAPE, [x], name=name, shape=[rank], type=I32, out_type=I32)


def element(b: Builder, vector: int, place: int, name: str = "") -> int:
    """One element of an integer vector, as a scalar."""
    bounds = [b.constant(f"bound_{place}", [p]) for p in (place, place + 1, 1)]
    return b.op(Op.STRIDED_SLICE, [vector, *bounds], name=name, shape=[], type=I32, shrink_axis_mask=1)


def packed(b: Builder, *elements: int, name: str = "") -> int:
    """Integer scalars as a vector."""
    return b.op(Op.PACK, list(elements), name=name, shape=[len(elements)], type=I32, values_count=len(elements), axis=0)


def target(b: Builder, x: int, rank: int, *rest: int, name: str = "target") -> int:
    """[batch of x, *rest] as a vector."""
    return packed(b, element(b, shape_of(b, x, rank), 0), *(b.constant("d", d) for d in rest), name=name)


def gated(b: Builder, x: int, channels: int = 4) -> int:
    """Squeeze and excitation over [batch, height, width, channels], as in EfficientNet."""
    mean = b.op(Op.MEAN, [x, b.constant("axes", [1, 2])], shape=[-1, channels])
    wide = b.op(Op.RESHAPE, [mean, target(b, mean, 2, 1, 1, channels)], shape=[-1, 1, 1, channels])
    filters = [b.constant("w", weights(channels, 1, 1, channels)), b.constant("b", weights(channels))]
    gate = b.op(
        Op.LOGISTIC, [b.op(Op.CONV_2D, [wide, *filters], shape=[-1, 1, 1, channels])], shape=[-1, 1, 1, channels]
    )
    return b.op(Op.MUL, [x, gate], name="gated", shape=[-1, 6, 6, channels])


def dense(b: Builder, x: int, units: int = 6) -> int:
    """A dense layer over the last axis of [batch, 3, 5, 4], as in ConvNeXt."""
    shape = shape_of(b, x, 4)

    def part(*places: int) -> int:
        indices = b.constant("places", list(places))
        return b.op(Op.GATHER, [shape, indices], shape=[len(places)], type=I32)

    free, axis = part(0, 1, 2), b.constant("axis", [0])
    rows, columns = (b.op(Op.REDUCE_PROD, [p, axis], shape=[], type=I32) for p in (free, part(3)))
    flat = b.op(Op.RESHAPE, [x, packed(b, rows, columns)], name="flat", shape=[-1, -1])
    matrix = [b.constant("w", weights(units, 4)), b.constant("b", weights(units))]
    product = b.op(Op.FULLY_CONNECTED, [flat, *matrix], shape=[-1, units])
    back = b.op(Op.CONCATENATION, [free, b.constant("units", [units])], shape=[4], type=I32, axis=0)
    return b.op(Op.RESHAPE, [product, back], name="dense", shape=[-1, 3, 5, units])


def gated_model(signature: str | None = "serving_default") -> Model:
    """A model of :func:`gated` on `x`, [batch, 6, 6, 4]."""
    b = Builder()
    return b.model([gated(b, b.input("x", [-1, 6, 6, 4]))], signature)


def dense_model() -> Model:
    """A model of :func:`dense` on `x`, [batch, 3, 5, 4], with a RELU behind it."""
    b = Builder()
    return b.model([b.op(Op.RELU, [dense(b, b.input("x", [-1, 3, 5, 4]))], name="y", shape=[-1, 3, 5, 6])])
