"""Expressions for tests of what is spelled out in operators: ``model(lambda x: x * relu6(x + 3) / 6)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from litefuse.graph.build import Builder
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op

COMPARISONS = frozenset({Op.GREATER, Op.GREATER_EQUAL, Op.LESS, Op.LESS_EQUAL, Op.EQUAL, Op.NOT_EQUAL})


class T:
    """A tensor of a model that is being built, with Python's arithmetic."""

    __array_ufunc__ = None  # so that numpy leaves arithmetic with arrays to this class

    def __init__(self, builder: Builder, tensor: int) -> None:
        self.builder = builder
        self.tensor = tensor

    def to(self, value: Any) -> int:
        """The tensor of an operand: one of these, or a constant."""
        return value.tensor if isinstance(value, T) else self.builder.constant("c", np.asarray(value, np.float32))

    def op(self, kind: Op, *inputs: Any, **how: Any) -> T:
        """An operator; `how` is what Builder.op takes."""
        if kind in COMPARISONS:
            how.setdefault("type", TensorType.BOOL)
        return T(self.builder, self.builder.op(kind, [self.to(i) for i in inputs], **how))

    def of(self, kind: Op, **how: Any) -> T:
        """An operator with this one input."""
        return self.op(kind, self, **how)

    def reduce(self, kind: Op, axes: int | Sequence[int], keep_dims: bool = True) -> T:
        """A reduction."""
        constant = self.builder.constant("axes", np.asarray(axes, np.int32))
        return T(self.builder, self.builder.op(kind, [self.tensor, constant], keep_dims=keep_dims))

    def reshape(self, *shape: int) -> T:
        """A RESHAPE."""
        constant = self.builder.constant("shape", np.asarray(shape, np.int32))
        return T(self.builder, self.builder.op(Op.RESHAPE, [self.tensor, constant], shape=shape))

    def transpose(self, *order: int) -> T:
        """A TRANSPOSE."""
        return T(
            self.builder,
            self.builder.op(Op.TRANSPOSE, [self.tensor, self.builder.constant("order", np.asarray(order, np.int32))]),
        )

    def __add__(self, other: Any) -> T:
        return self.op(Op.ADD, self, other)

    def __radd__(self, other: Any) -> T:
        return self.op(Op.ADD, other, self)

    def __sub__(self, other: Any) -> T:
        return self.op(Op.SUB, self, other)

    def __rsub__(self, other: Any) -> T:
        return self.op(Op.SUB, other, self)

    def __mul__(self, other: Any) -> T:
        return self.op(Op.MUL, self, other)

    def __rmul__(self, other: Any) -> T:
        return self.op(Op.MUL, other, self)

    def __truediv__(self, other: Any) -> T:
        return self.op(Op.DIV, self, other)

    def __rtruediv__(self, other: Any) -> T:
        return self.op(Op.DIV, other, self)

    def __pow__(self, other: Any) -> T:
        return self.op(Op.POW, self, other)

    def __neg__(self) -> T:
        return self.of(Op.NEG)


def relu(x: T) -> T:
    return x.of(Op.RELU)


def relu6(x: T) -> T:
    return x.of(Op.RELU6)


def exp(x: T) -> T:
    return x.of(Op.EXP)


def log(x: T) -> T:
    return x.of(Op.LOG)


def tanh(x: T) -> T:
    return x.of(Op.TANH)


def sigmoid(x: T) -> T:
    return x.of(Op.LOGISTIC)


def sqrt(x: T) -> T:
    return x.of(Op.SQRT)


def rsqrt(x: T) -> T:
    return x.of(Op.RSQRT)


def square(x: T) -> T:
    return x.of(Op.SQUARE)


def absolute(x: T) -> T:
    return x.of(Op.ABS)


def maximum(x: T, y: Any) -> T:
    return x.op(Op.MAXIMUM, x, y)


def minimum(x: T, y: Any) -> T:
    return x.op(Op.MINIMUM, x, y)


def clip(x: T, low: float, high: float) -> T:
    return maximum(minimum(x, high), low)


def greater(x: Any, y: Any) -> T:
    return (x if isinstance(x, T) else y).op(Op.GREATER, x, y)


def select(condition: T, x: Any, y: Any, kind: Op = Op.SELECT_V2) -> T:
    return condition.op(kind, condition, x, y, type=TensorType.FLOAT32)


def fused(x: T, activation: ActivationFunctionType) -> T:
    """Gives the operator that was written last a fused activation."""
    op = x.builder._subgraph.operators[-1]
    assert op.outputs == [x.tensor]
    op.builtin_options.fused_activation_function = activation
    return x


def model(f: Callable[..., Any], *shapes: Sequence[int]) -> Model:
    """A model of a function of tensors, which returns one tensor or several; by default of one of [1, 4, 5, 3]."""
    builder = Builder()
    inputs = [
        T(builder, builder.input(f"x{i}" if i else "x", list(shape)))
        for i, shape in enumerate(shapes or ((1, 4, 5, 3),))
    ]
    found = f(*inputs)
    outputs = found if isinstance(found, (tuple, list)) else (found,)
    return builder.model([t.tensor for t in outputs])
