"""Softmax and log-softmax spelled by hand.

softmax(x) = exp(x - m) / sum(exp(x - m)) for any m that is the same along the axis; with m = max(x) nothing overflows.
log_softmax(x) = (x - m) - log(sum(exp(x - m))).

What pays under XNNPACK (ai-edge-litert 2.3.0, time against the spelling):

* SOFTMAX over the last axis against REDUCE_MAX, SUB, EXP, SUM, DIV: 0.65 to 1.0; against EXP, SUM, DIV, which overflows
  for x above 88, 0.9 to 1.2. With the builtin kernels 0.35 to 0.6.
* Two TRANSPOSEs around a SOFTMAX, to have another axis last, against those five operators over that axis: 1.1 to 13
  where 32 numbers or more lie behind the axis, 0.3 to 1 where fewer do. So the rules take such TRANSPOSEs away, and
  leave a softmax by hand over another axis as it is.
* XNNPACK does not take LOG_SOFTMAX: against REDUCE_MAX, SUB, EXP, SUM, LOG, SUB it takes 0.75 to 1.0 up to 512 numbers,
  and up to 2 beyond. LOG of a SOFTMAX takes 1.1 to 1.3 beyond.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from litefuse.fusions.operands import permutation
from litefuse.fusions.reductions import (
    Reduction,
    Writer,
    binary,
    is_reciprocal,
    reduction,
    scalar_operand,
    shape_without,
    unary,
)
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.fusions.univariate import range_of
from litefuse.graph import Graph
from litefuse.graph.pattern import NONE
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator, SoftmaxOptions

# exp(x) is a float32 up to 88.7; up to here, the sum of some thousands is too.
_SAFE = 80.0
# What may be added to the sum, which is 1 at least where the maximum was subtracted, without being noticed.
_NEGLIGIBLE = 1e-7
# Up to how many numbers LOG_SOFTMAX pays, and from how many behind the axis TRANSPOSEs do not.
_SMALL = 512
_BEHIND = 32


class Exponentials(NamedTuple):
    """exp(x - m) and its sum over some axes.

    Attributes:
        source: the tensor x, or x - m where that is also read elsewhere.
        shifted: x - m, or x where nothing is subtracted.
        shift: m, or -1.
        exp: the EXP.
        axes: the axes of the sum.
        stable: whether nothing can overflow.
        inner: the operators from ``source`` to the sum.
    """

    source: int
    shifted: int
    shift: int
    exp: Operator
    axes: tuple[int, ...]
    stable: bool
    inner: list[Operator]


def exponentials(graph: Graph, total: int, root: Operator) -> Exponentials | None:
    """The exponentials of which a tensor is the sum, in a spelling that ends in ``root``; None when there are none."""
    summed = reduction(graph, total, {Op.SUM})
    exp = unary(graph, summed.source, Op.EXP) if summed is not None else None
    if summed is None or exp is None or not graph.is_float(total):
        return None
    inner = [exp, *summed.operators]
    shifted = exp.inputs[0]
    source, shift, stable = shifted, -1, range_of(graph, shifted)[1] <= _SAFE
    minus = binary(graph, shifted, Op.SUB)
    shape = graph.shape(shifted)
    if minus is not None and shape is not None and graph.shape(minus.inputs[0]) == shape:
        x, m = minus.inputs
        if graph.shape(m) == shape_without(shape, summed.axes):
            shift = m
            stable = stable or _is_maximum(reduction(graph, m, {Op.REDUCE_MAX}), x, summed.axes)
            if not graph.why_shared(shifted, exp, root):
                source = x
                inner.append(minus)
    return Exponentials(source, shifted, shift, exp, summed.axes, stable, inner)


def _is_maximum(found: Reduction | None, x: int, axes: tuple[int, ...]) -> bool:
    return found is not None and found.source == x and found.axes == axes


def _is_last(graph: Graph, found: Exponentials) -> bool:
    shape = graph.shape(found.source)
    return shape is not None and found.axes == (len(shape) - 1,)


def _is_small(graph: Graph, tensor: int) -> bool:
    shape = graph.static_shape(tensor)
    return shape is not None and math.prod(shape) <= _SMALL


def _why_not(graph: Graph, root: Operator, found: Exponentials, inner: list[Operator]) -> str | None:
    """Why a spelling that ends in ``root`` cannot be replaced, or None when it can."""
    out = root.outputs[0]
    if graph.shape(out) != graph.shape(found.source):
        return "a constant may change the shape by broadcasting"
    if graph.tensor(found.source).is_variable:
        return f"tensor `{graph.name(found.source)}` is a variable"
    reasons = (graph.why_shared(op.outputs[0], root, *inner) for op in inner)
    return next((reason for reason in reasons if reason), None)


def _subtract_maximum(graph: Graph, found: Exponentials) -> int:
    """Subtracts the maximum from what EXP reads and returns the difference."""
    write = Writer(graph, found.exp)
    x = found.shifted
    difference = write.op(Op.SUB, x, write.reduce(Op.REDUCE_MAX, x, found.axes))
    graph.set_input(found.exp, 0, difference)
    return difference


class Softmax(Rule):
    """exp(x - m) / sum(exp(x - m)) over the last axis, with the maximum for m, is SOFTMAX(x).

    With DIV, or MUL by the reciprocal. Up to 1e-7 may be added to the sum, which is 1 at least. Results differ in the
    last bits.
    """

    name = "softmax"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.DIV, Op.MUL})
    example = """
        graph main(%x: f32[1,10]) {
          %m = REDUCE_MAX(%x, i32[1]=1) {keep_dims=true}
          %d = SUB(%x, %m)
          %e = EXP(%d)
          %s = SUM(%e, i32[1]=1) {keep_dims=true}
          %y = DIV(%e, %s)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Puts SOFTMAX in the place of the division."""
        if graph.activation(op) != NONE or len(op.inputs) != 2 or not graph.is_float(op.outputs[0]):
            return None
        for numerator, denominator, between in _quotients(graph, op):
            total, added, more = _without_epsilon(graph, denominator)
            found = exponentials(graph, total, op)
            if found is None or found.exp.outputs[0] != numerator:
                continue
            if found.stable is (self.numerics is Numerics.REPAIR) or (found.stable and not _is_last(graph, found)):
                continue
            if added > _NEGLIGIBLE or (added and not found.stable):
                return Refused(f"{added:g} is added to the sum, which SOFTMAX does not do")
            reason = _why_not(graph, op, found, [*found.inner, *between, *more])
            if reason:
                return Refused(reason)
            if not _is_last(graph, found):
                _subtract_maximum(graph, found)
                return Applied("the maximum is subtracted")
            graph.replace(op, Op.SOFTMAX, [found.source], beta=1.0)
            return Applied(f"over {len(graph.shape(found.source) or ()) - 1}")
        return None


class RepairSoftmax(Softmax):
    """exp(x) / sum(exp(x)) overflows for x above 88: over the last axis it is SOFTMAX(x), which does not.

    Over other axes the maximum is subtracted first. Left alone where x is known to be 80 at most.
    """

    name = "repair-softmax"
    numerics = Numerics.REPAIR
    example = """
        graph main(%x: f32[1,10]) {
          %e = EXP(%x)
          %s = SUM(%e, i32[1]=1) {keep_dims=true}
          %y = DIV(%e, %s)
          return %y
        }
    """


def _quotients(graph: Graph, op: Operator) -> Iterator[tuple[int, int, list[Operator]]]:
    """Numerator and denominator of a DIV or of a MUL by a reciprocal, and the operators in between."""
    if graph.kind(op) is Op.DIV:
        yield op.inputs[0], op.inputs[1], []
        return
    for a, b in (op.inputs, op.inputs[::-1]):
        below = graph.producer(b)
        if below is not None and is_reciprocal(graph, below) and graph.activation(below) == NONE:
            yield a, below.inputs[1], [below]


def _without_epsilon(graph: Graph, tensor: int) -> tuple[int, float, list[Operator]]:
    """A sum, what is added to it so that it is not zero, and the operator that adds it."""
    op = binary(graph, tensor, Op.ADD)
    found = scalar_operand(graph, op)
    return (tensor, 0.0, []) if op is None or found is None else (found[0], abs(found[1]), [op])


class LogSoftmax(Rule):
    """x - m - log(sum(exp(x - m))) over the last axis, with the maximum for m, is LOG_SOFTMAX(x) for up to 512 numbers.

    Beyond, LOG_SOFTMAX is slower, because XNNPACK does not take it. Results differ in the last bits.
    """

    name = "log-softmax"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.SUB})
    example = """
        graph main(%x: f32[1,10]) {
          %m = REDUCE_MAX(%x, i32[1]=1) {keep_dims=true}
          %d = SUB(%x, %m)
          %e = EXP(%d)
          %s = SUM(%e, i32[1]=1) {keep_dims=true}
          %l = LOG(%s)
          %y = SUB(%d, %l)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Puts LOG_SOFTMAX in the place of the last subtraction."""
        if graph.activation(op) != NONE or len(op.inputs) != 2 or not graph.is_float(op.outputs[0]):
            return None
        x, behind = op.inputs
        inner: list[Operator] = []
        plus = binary(graph, behind, Op.ADD)  # log(sum(exp(x - m))) + m
        for logarithm, m in (plus.inputs, plus.inputs[::-1]) if plus is not None else ((behind, -1),):
            log = unary(graph, logarithm, Op.LOG)
            found = exponentials(graph, log.inputs[0], op) if log is not None else None
            if log is None or found is None:
                continue
            inner = [*found.inner, log]
            if plus is None and x == found.shifted:
                return self._rewrite(graph, op, found, inner)
            minus = binary(graph, found.shifted, Op.SUB)
            if plus is not None and minus is not None and [x, m] == minus.inputs and m == found.shift:
                return self._rewrite(graph, op, found, [*inner, plus])
        return None

    def _rewrite(self, graph: Graph, op: Operator, found: Exponentials, inner: list[Operator]) -> Outcome:
        use_operator = _is_last(graph, found) and _is_small(graph, found.source)
        if found.stable is (self.numerics is Numerics.REPAIR) or (found.stable and not use_operator):
            return None
        reason = _why_not(graph, op, found, inner)
        if reason:
            return Refused(reason)
        if use_operator:
            graph.replace(op, Op.LOG_SOFTMAX, [found.source])
            return Applied("")
        log = next(r for r in inner if graph.kind(r) is Op.LOG)
        before = list(op.inputs)
        graph.set_input(op, 0, _subtract_maximum(graph, found))
        graph.set_input(op, 1, log.outputs[0])
        graph.prune(before)
        return Applied("the maximum is subtracted")


class RepairLogSoftmax(LogSoftmax):
    """x - log(sum(exp(x))) overflows for x above 88: the maximum of x is subtracted first, or LOG_SOFTMAX takes over.

    Left alone where x is known to be 80 at most.
    """

    name = "repair-log-softmax"
    numerics = Numerics.REPAIR
    example = """
        graph main(%x: f32[1,10]) {
          %e = EXP(%x)
          %s = SUM(%e, i32[1]=1) {keep_dims=true}
          %l = LOG(%s)
          %y = SUB(%x, %l)
          return %y
        }
    """


class LogOfSoftmax(Rule):
    """log(softmax(x)) is x - m - log(sum(exp(x - m))) with m = max(x), or LOG_SOFTMAX(x) for up to 512 numbers.

    Where softmax(x) is below 1e-38, its logarithm is minus infinity; now it is right.
    """

    name = "repair-log-of-softmax"
    numerics = Numerics.REPAIR
    kinds = frozenset({Op.LOG})
    example = """
        graph main(%x: f32[1,10]) {
          %s = SOFTMAX(%x)
          %y = LOG(%s)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Writes the six operators, or the one, in place of the two."""
        softmax = unary(graph, op.inputs[0], Op.SOFTMAX)
        if softmax is None or not _is_plain(graph, softmax):
            return None
        shared = graph.why_shared(softmax.outputs[0], op)
        if shared:
            return Refused(shared)
        x = softmax.inputs[0]
        if _is_small(graph, x):
            graph.replace(op, Op.LOG_SOFTMAX, [x])
            return Applied("")
        write = Writer(graph, op)
        axes = (len(graph.shape(x) or ()) - 1,)
        shifted = write.op(Op.SUB, x, write.reduce(Op.REDUCE_MAX, x, axes))
        total = write.reduce(Op.SUM, write.op(Op.EXP, shifted), axes)
        write.replace(Op.SUB, shifted, write.op(Op.LOG, total))
        return Applied("")


class SoftmaxWithoutTransposes(Rule):
    """SOFTMAX between a TRANSPOSE and its inverse is exp(x - m) / sum(exp(x - m)) over the axis that was made the last.

    Where at least 32 numbers lie behind that axis; with fewer, TRANSPOSE and SOFTMAX are faster. Results differ in the
    last bits.
    """

    name = "softmax-without-transposes"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.TRANSPOSE})
    example = """
        graph main(%x: f32[1,8,64]) {
          %a = TRANSPOSE(%x, i32[3]=(0, 2, 1))
          %s = SOFTMAX(%a)
          %y = TRANSPOSE(%s, i32[3]=(0, 2, 1))
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Writes the five operators in place of the three."""
        softmax = unary(graph, op.inputs[0], Op.SOFTMAX)
        first = graph.producer(softmax.inputs[0]) if softmax is not None else None
        if softmax is None or first is None or graph.kind(first) is not Op.TRANSPOSE or not _is_plain(graph, softmax):
            return None
        x, order, back = first.inputs[0], permutation(graph, first), permutation(graph, op)
        shape = graph.shape(x)
        if order is None or back is None or shape is None or [order[i] for i in back] != list(range(len(shape))):
            return None
        axis = order[-1]
        behind = shape[axis + 1 :]
        if any(d < 0 for d in behind) or math.prod(behind) < _BEHIND:
            return None
        for inner in (softmax, first):
            shared = graph.why_shared(inner.outputs[0], op, softmax)
            if shared:
                return Refused(shared)
        write = Writer(graph, op)
        exp = write.op(Op.EXP, write.op(Op.SUB, x, write.reduce(Op.REDUCE_MAX, x, (axis,))))
        write.replace(Op.DIV, exp, write.reduce(Op.SUM, exp, (axis,)))
        return Applied(f"over axis {axis}")


def _is_plain(graph: Graph, softmax: Operator) -> bool:
    options = softmax.builtin_options
    shape = graph.shape(softmax.inputs[0])
    is_float = graph.is_float(softmax.inputs[0]) and graph.is_float(softmax.outputs[0])
    return bool(is_float and shape and isinstance(options, SoftmaxOptions) and options.beta == 1.0)


RULES: tuple[Rule, ...] = (
    Softmax(),
    RepairSoftmax(),
    LogSoftmax(),
    RepairLogSoftmax(),
    LogOfSoftmax(),
    SoftmaxWithoutTransposes(),
)
