"""Per-channel affine maps, y = x * scale + shift, and how they pass through other operators.

Frozen BatchNorm reaches a `.tflite` file as MUL and ADD (or SUB, DIV) by constants. A constant counts as per-channel
when it varies along one axis at most, however it is spelled: [C], [1, 1, 1, C], a scalar, or a full tensor of equal
rows. Values are held in float64, so that folding rounds once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litefuse.graph import Graph
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Affine:
    """y = x * scale + shift along one axis of x.

    Attributes:
        axis: the axis (counted from 0) along which the values vary; None when they are the same everywhere.
        scale: float64, of the axis' length, or of length 1 when ``axis`` is None.
        shift: likewise, of the same length.
    """

    axis: int | None
    scale: Vector
    shift: Vector

    @property
    def scales(self) -> bool:
        """Whether it multiplies at all."""
        return bool(np.any(self.scale != 1.0))

    @property
    def shifts(self) -> bool:
        """Whether it adds anything."""
        return bool(np.any(self.shift != 0.0))

    @property
    def positive(self) -> bool:
        """Whether every scale is above zero, so that it keeps the order of values."""
        return bool(np.all(self.scale > 0.0))

    def on_axis(self, axis: int | None) -> Affine:
        """The same values along another axis."""
        return Affine(axis if self.axis is not None else None, self.scale, self.shift)

    def take(self, start: int, size: int) -> Affine:
        """The part for ``size`` channels from ``start`` on."""
        if self.axis is None:
            return self
        return Affine(self.axis, self.scale[start : start + size], self.shift[start : start + size])

    def vectors(self, size: int) -> tuple[Vector, Vector]:
        """Scale and shift as vectors of ``size`` elements."""
        return np.broadcast_to(self.scale, size), np.broadcast_to(self.shift, size)


def operand(graph: Graph, op: Operator) -> tuple[int, int] | None:
    """The slots of the variable and of the constant input of a binary operator with exactly one constant."""
    if len(op.inputs) != 2:
        return None
    constant = [graph.constant(t) is not None for t in op.inputs]
    if constant == [False, True]:
        return 0, 1
    return (1, 0) if constant == [True, False] else None


def read_affine(graph: Graph, op: Operator) -> Affine | str | None:
    """What a MUL, ADD, SUB or DIV by a constant does to its variable input.

    Returns None when the operator is nothing of the kind, and a reason when only its constant is in the way.
    """
    slots = operand(graph, op)
    if slots is None or not graph.is_float(op.outputs[0]) or not all(graph.is_float(t) for t in op.inputs):
        return None
    variable, constant = (op.inputs[s] for s in slots)
    shape, out = graph.shape(variable), graph.shape(op.outputs[0])
    if shape is None or out is None or shape != out:
        return None  # broadcasting makes the output larger than x, or nobody knows
    value = graph.constant(constant)
    assert value is not None
    found = along_one_axis(value.astype(np.float64), shape)
    if found is None:
        return None
    axis, vector = found
    one, zero = np.ones_like(vector), np.zeros_like(vector)
    kind = graph.kind(op)
    if kind is Op.MUL:
        affine = Affine(axis, vector, zero)
    elif kind is Op.ADD:
        affine = Affine(axis, one, vector)
    elif kind is Op.SUB:
        affine = Affine(axis, one, -vector) if slots == (0, 1) else Affine(axis, -one, vector)
    elif kind is Op.DIV and slots == (0, 1):
        if np.any(vector == 0.0):
            return f"the divisor `{graph.name(constant)}` contains zero"
        affine = Affine(axis, 1.0 / vector, zero)
    else:
        return None
    if not (np.all(np.isfinite(affine.scale)) and np.all(np.isfinite(affine.shift))):
        return f"the constant `{graph.name(constant)}` is not finite"
    return affine


def along_one_axis(value: NDArray[Any], shape: tuple[int, ...]) -> tuple[int | None, NDArray[Any]] | None:
    """The axis of ``shape`` along which ``value``, broadcast to it, varies, and the values along it.

    Returns None when it varies along several axes, or does not broadcast to ``shape`` without enlarging it.
    """
    if value.ndim > len(shape):
        if any(d != 1 for d in value.shape[: value.ndim - len(shape)]):
            return None
        value = value.reshape(value.shape[value.ndim - len(shape) :])
    value = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
    if value.size == 0 or not _fits(value.shape, shape):
        return None
    axis = None
    for i in range(value.ndim):
        if value.shape[i] > 1 and not bool(np.all(value == np.take(value, [0], i))):
            if axis is not None:
                return None
            axis = i
    if axis is None:
        return None if value.size == 0 else (None, value.reshape(-1)[:1])
    corner = tuple(slice(None) if i == axis else 0 for i in range(value.ndim))
    return axis, value[corner]


def _fits(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    return all(s in (1, d) for s, d in zip(small, large, strict=True))


def through_reshape(affine: Affine, source: tuple[int, ...], target: tuple[int, ...]) -> Affine | None:
    """The affine map of a tensor of shape ``source`` as one of the same elements in shape ``target``.

    None when the values would vary along several axes of ``target``, or depend on a dimension that is not known.
    """
    if affine.axis is None:
        return affine
    first, last = 0, 0
    limit = min(len(source), len(target))
    while first < limit and source[first] == target[first]:
        first += 1
    if affine.axis < first:
        return affine
    while last < limit - first and source[-1 - last] == target[-1 - last]:
        last += 1
    if affine.axis >= len(source) - last:
        return affine.on_axis(affine.axis - len(source) + len(target))
    inner, outer = source[first : len(source) - last], target[first : len(target) - last]
    # The dimension that is open may be anywhere; what varies must lie behind it in both shapes.
    cut_in = max((i + 1 for i, d in enumerate(inner) if d < 0), default=0)
    cut_out = max((i + 1 for i, d in enumerate(outer) if d < 0), default=0)
    inner, outer = inner[cut_in:], outer[cut_out:]
    axis = affine.axis - first - cut_in
    if axis < 0 or math.prod(inner) != math.prod(outer):
        return None
    frame = [1] * len(inner)
    frame[axis] = inner[axis]
    found: list[tuple[int | None, Vector]] = []
    for vector in (affine.scale, affine.shift):
        spread = np.broadcast_to(vector.reshape(frame), inner).reshape(outer)
        place = along_one_axis(spread, outer)
        if place is None:
            return None
        found.append(place)
    axes = {a for a, _ in found if a is not None}
    if not axes:
        return Affine(None, found[0][1], found[1][1])
    if len(axes) != 1:
        return None
    (place_axis,) = axes
    size = outer[place_axis]
    scale, shift = np.broadcast_to(found[0][1], size), np.broadcast_to(found[1][1], size)
    return Affine(place_axis + first + cut_out, scale, shift)
