"""Reductions: what the rules about softmax and normalisation share, and rules that bring them to one form."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from litefuse.fusions.operands import RESHAPES, input_of, integers
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph, OperatorKind
from litefuse.graph.pattern import NONE
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator, ReducerOptions

# Versions from which operators broadcast tensors of more than four dimensions (op_version.cc); ADD and MUL always did.
_WIDE = {Op.SUB: 3, Op.DIV: 2, Op.MAXIMUM: 3, Op.MINIMUM: 3}


class Reduction(NamedTuple):
    """A tensor that is the reduction of another one over some axes, which it keeps with size one.

    Attributes:
        source: the tensor that is reduced.
        axes: the axes, counted from 0, in order.
        operators: the reduction, and the RESHAPE, SQUEEZE or EXPAND_DIMS that puts the axes back if it drops them.
    """

    source: int
    axes: tuple[int, ...]
    operators: tuple[Operator, ...]


def reduction(graph: Graph, tensor: int, kinds: Collection[OperatorKind]) -> Reduction | None:
    """The reduction of one of these kinds that computes a tensor; None when none does, or its axes are not known."""
    op = graph.producer(tensor)
    behind: tuple[Operator, ...] = ()
    if op is not None and graph.kind(op) in RESHAPES:
        behind = (op,)
        op = graph.producer(op.inputs[0])
    if op is None or graph.kind(op) not in kinds:
        return None
    source = op.inputs[0]
    axes = reduced_axes(graph, op)
    shape, kept = graph.shape(source), graph.shape(tensor)
    # With one unknown dimension at most, equal shapes mean that a RESHAPE puts every element back in its place.
    if axes is None or shape is None or kept != shape_without(shape, axes) or kept.count(-1) > 1:
        return None
    return Reduction(source, axes, (op, *behind))


def reduced_axes(graph: Graph, op: Operator) -> tuple[int, ...] | None:
    """The axes over which a reduction runs, counted from 0 and in order; None when they are not known."""
    shape, axes = graph.shape(op.inputs[0]), integers(graph, input_of(op, 1))
    if shape is None or axes is None or not all(-len(shape) <= a < len(shape) for a in axes):
        return None
    return tuple(sorted({a % len(shape) for a in axes}))


def shape_without(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """A shape with some axes of size one."""
    return tuple(1 if i in axes else d for i, d in enumerate(shape))


def binary(graph: Graph, tensor: int, kind: OperatorKind) -> Operator | None:
    """The operator of a kind with two inputs and no fused activation that computes a tensor, or None."""
    op = graph.producer(tensor)
    if op is None or graph.kind(op) is not kind or len(op.inputs) != 2 or graph.activation(op) != NONE:
        return None
    return op


def unary(graph: Graph, tensor: int, kind: OperatorKind) -> Operator | None:
    """The operator of a kind with one input that computes a tensor, or None."""
    op = graph.producer(tensor)
    return op if op is not None and graph.kind(op) is kind and len(op.inputs) == 1 else None


def scalar_operand(graph: Graph, op: Operator | None) -> tuple[int, float] | None:
    """The tensor and the number that a binary operator joins; None when it joins others."""
    if op is None or len(op.inputs) != 2:
        return None
    for x, constant in (op.inputs, op.inputs[::-1]):
        number = graph.splat(constant)
        if number is not None and not graph.is_constant(x):
            return x, number
    return None


def is_reciprocal(graph: Graph, op: Operator) -> bool:
    """Whether an operator is DIV(1, x)."""
    return graph.kind(op) is Op.DIV and len(op.inputs) == 2 and graph.splat(op.inputs[0]) == 1.0


class Writer:
    """Writes float operators in front of another one; names are derived from that one's output."""

    def __init__(self, graph: Graph, before: Operator) -> None:
        self.graph = graph
        self.before = before
        self.name = graph.name(before.outputs[0])

    def op(self, kind: OperatorKind, *inputs: int, like: int | None = None, **options: Any) -> int:
        """An operator whose result has the shape of ``like``, by default of its first input; returns the result."""
        shape_of = inputs[0] if like is None else like
        out = self.graph.add_tensor(f"{self.name}/{kind.name.lower()}", (), TensorType.FLOAT32, like=shape_of)
        self.graph.add_operator(kind, inputs, [out], before=self.before, version=self.version(kind, *inputs), **options)
        return out

    def reduce(self, kind: OperatorKind, x: int, axes: Sequence[int]) -> int:
        """A reduction that keeps its axes."""
        graph = self.graph
        shape = graph.shape(x)
        assert shape is not None
        constant = graph.add_constant(f"{self.name}/axes", np.array(axes, np.int32))
        name = f"{self.name}/{kind.name.lower()}"
        out = graph.add_tensor(name, shape_without(shape, axes), TensorType.FLOAT32)
        graph.add_operator(kind, [x, constant], [out], before=self.before, keep_dims=True)
        return out

    def version(self, kind: OperatorKind, *inputs: int) -> int:
        """The version that an operator with these inputs needs."""
        shapes = {self.graph.shape(t) for t in inputs}
        wide = len(shapes) > 1 and any(shape is None or len(shape) > 4 for shape in shapes)
        return _WIDE.get(kind, 1) if wide else 1

    def replace(self, kind: OperatorKind, *inputs: int, **options: Any) -> Operator:
        """Puts an operator in the place of the one before which others were written."""
        return self.graph.replace(self.before, kind, inputs, version=self.version(kind, *inputs), **options)


class SumToMean(Rule):
    """SUM(x) times 1/n, or divided by n, for the number n of elements in each sum, is MEAN(x).

    For 1/n rounded to six digits or better. Results differ in the last bits.
    """

    name = "sum-to-mean"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.MUL, Op.DIV})
    example = """
        graph main(%x: f32[1,4,4,8]) {
          %s = SUM(%x, i32[2]=(1, 2))
          %y = MUL(%s, c[]=0.0625)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Puts MEAN in the place of the MUL or DIV."""
        found = scalar_operand(graph, op)
        total = graph.producer(found[0]) if found is not None else None
        if found is None or total is None or graph.kind(total) is not Op.SUM or graph.activation(op) != NONE:
            return None
        tensor, number = found
        shape, axes = graph.shape(total.inputs[0]), reduced_axes(graph, total)
        if shape is None or axes is None or not graph.is_float(op.outputs[0]) or any(shape[a] <= 0 for a in axes):
            return None
        if graph.kind(op) is Op.DIV and (op.inputs[0] != tensor or number == 0):
            return None
        count = math.prod(shape[a] for a in axes)
        factor = number if graph.kind(op) is Op.MUL else 1 / number
        if not math.isclose(factor * count, 1, rel_tol=1e-6) or graph.shape(tensor) != graph.shape(op.outputs[0]):
            return None
        shared = graph.why_shared(tensor, op)
        if shared:
            return Refused(shared)
        graph.replace(op, Op.MEAN, total.inputs, options=total.builtin_options)
        return Applied(f"of {count} numbers")


class MergeReductions(Rule):
    """mean(mean(x, a), b) is mean(x, a and b), and likewise SUM, REDUCE_MAX and REDUCE_MIN.

    Of equal kinds, of which both keep their axes or neither does. Results of MEAN and SUM differ in the last bits.
    """

    name = "merge-reductions"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.MEAN, Op.SUM, Op.REDUCE_MAX, Op.REDUCE_MIN})
    example = """
        graph main(%x: f32[1,4,4,8]) {
          %a = MEAN(%x, i32[1]=1) {keep_dims=true}
          %y = MEAN(%a, i32[1]=2) {keep_dims=true}
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Reduces over the axes of both at once."""
        first = graph.producer(op.inputs[0])
        if first is None or graph.kind(first) is not graph.kind(op) or not graph.is_float(op.outputs[0]):
            return None
        options, shape = op.builtin_options, graph.shape(first.inputs[0])
        inner, outer = reduced_axes(graph, first), reduced_axes(graph, op)
        if not isinstance(options, ReducerOptions) or shape is None or inner is None or outer is None:
            return None
        if getattr(first.builtin_options, "keep_dims", None) != options.keep_dims:
            return None
        left = range(len(shape)) if options.keep_dims else [i for i in range(len(shape)) if i not in inner]
        if any(a >= len(left) for a in outer):
            return None
        shared = graph.why_shared(op.inputs[0], op)
        if shared:
            return Refused(shared)
        axes = sorted({*inner, *(left[a] for a in outer)})
        constant = graph.add_constant(f"{graph.name(op.outputs[0])}/axes", np.array(axes, np.int32))
        graph.replace(op, graph.kind(op), [first.inputs[0], constant], options=options)
        return Applied(f"over axes {', '.join(map(str, axes))}")


RULES: tuple[Rule, ...] = (SumToMean(), MergeReductions())
