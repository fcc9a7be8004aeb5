"""Arithmetic in fewer or cheaper operators.

Signs::

    a + (-b) = a - b      a - (-b) = a + b      (-a) * (-b) = a * b      (-a) * c = a * (-c)      0 - a = -a

IEEE negation is exact, so that these give the same bits with the builtin kernels. XNNPACK's may differ in the sign of
zero and take numbers below 1.2e-38 for zero, in NEG as in the others; the rules are not called exact therefore.

Powers: x^2 = x * x, x^3 = x * x * x, x^0.5 = sqrt(x), x^-1 = 1 / x and so on. XNNPACK does not take POW, whose kernel
takes as long as 45 additions. SQUARE is left alone and x * x is not made SQUARE: under XNNPACK they are the same, but
the builtin kernel of SQUARE takes ten times as long as MUL.

Chains of MUL, ADD, SUB and DIV by constants are one MUL and one ADD. A DIV by a constant is a MUL by its inverse (0.75
to 1.0 under XNNPACK, 0.3 to 1.0 with the builtin kernels).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from litefuse.fusions.affine import Affine, operand, read_affine
from litefuse.fusions.forms import Form, X
from litefuse.fusions.reductions import Writer, binary, scalar_operand
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.fusions.univariate import Cone, Spelled, range_of
from litefuse.graph import Graph
from litefuse.graph.pattern import NONE
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

# A chain that adds a number and takes most of it away again may round on purpose, as (x + 12582912) - 12582912 does.
_LARGE_SHIFT = 1024.0
_MOST_LINKS = 16
# Operators that give whole numbers, and operators for whose results the last bit may matter: 49 * (1/49) is below 1.
_WHOLE = frozenset({Op.CAST, Op.FLOOR, Op.CEIL, Op.ROUND, Op.SIGN, Op.FLOOR_DIV, Op.RANGE})
_STEPS = frozenset({Op.CAST, Op.FLOOR, Op.CEIL, Op.ROUND, Op.SIGN, Op.FLOOR_DIV, Op.FLOOR_MOD}) | {
    *(Op.GREATER, Op.GREATER_EQUAL, Op.LESS, Op.LESS_EQUAL, Op.EQUAL, Op.NOT_EQUAL)
}
_VIEWS = frozenset({Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS, Op.TRANSPOSE})


# -- signs -------------------------------------------------------------------------------------------------------------


def _negated(graph: Graph, tensor: int) -> tuple[int, Operator] | None:
    """The tensor of which another is the negative, by NEG, MUL or DIV by -1, or 0 - x, and the operator."""
    op = graph.producer(tensor)
    if op is None or not graph.is_float(tensor) or graph.activation(op) != NONE or len(op.outputs) != 1:
        return None
    kind = graph.kind(op)
    if kind is Op.NEG and len(op.inputs) == 1:
        return op.inputs[0], op
    found = scalar_operand(graph, op)
    if found is None or kind not in (Op.MUL, Op.DIV) or found[1] != -1 or graph.shape(found[0]) != graph.shape(tensor):
        return None
    return (found[0], op) if kind is Op.MUL or op.inputs[0] == found[0] else None


class NegatedOperand(Rule):
    """a + (-b) is a - b, a - (-b) is a + b, (-a) * (-b) is a * b, and (-a) * c is a * (-c) for a constant c.

    For FLOAT32, and -x by NEG or by MUL or DIV by -1. The same bits, but for zeros and subnormal numbers under XNNPACK.
    The negation goes, or stays for other readers.
    """

    name = "negated-operand"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.ADD, Op.SUB, Op.MUL})
    example = """
        graph main(%a: f32[1,8], %b: f32[1,8]) {
          %n = NEG(%b)
          %y = ADD(%a, %n)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Reads the tensor behind the negation."""
        if len(op.inputs) != 2 or not graph.is_float(op.outputs[0]):
            return None
        a, b = op.inputs
        minus_a, minus_b = _negated(graph, a), _negated(graph, b)
        kind = graph.kind(op)
        if kind in (Op.ADD, Op.SUB):
            if minus_b is not None:
                return self._rewrite(graph, op, Op.SUB if kind is Op.ADD else Op.ADD, a, minus_b[0])
            if minus_a is not None and kind is Op.ADD:
                return self._rewrite(graph, op, Op.SUB, b, minus_a[0])
            return None
        if minus_a is not None and minus_b is not None:
            return self._rewrite(graph, op, Op.MUL, minus_a[0], minus_b[0])
        for slot, minus in enumerate((minus_a, minus_b)):
            constant = graph.constant(op.inputs[1 - slot])
            if minus is not None and constant is not None and constant.dtype == np.float32:
                other = graph.add_constant(graph.name(op.inputs[1 - slot]), -constant)
                return self._rewrite(graph, op, Op.MUL, minus[0], other)
        return None

    @staticmethod
    def _rewrite(graph: Graph, op: Operator, kind: Op, a: int, b: int) -> Outcome:
        Writer(graph, op).replace(kind, a, b, fused_activation_function=graph.activation(op))
        return Applied(kind.name)


class EvenOfNegated(Rule):
    """f(-x) is f(x) for ABS, SQUARE and COS. The same bits with the builtin kernels; see the module about XNNPACK."""

    name = "even-of-negated"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.ABS, Op.SQUARE, Op.COS})
    example = """
        graph main(%x: f32[1,8]) {
          %n = NEG(%x)
          %y = ABS(%n)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Reads the tensor behind the negation."""
        minus = _negated(graph, op.inputs[0])
        if minus is None:
            return None
        graph.set_input(op, 0, minus[0])
        graph.prune(minus[1].outputs)
        return Applied("")


class Negation(Rule):
    """0 - x is NEG(x), and -(a - b) is b - a. The results differ in the sign of zero."""

    name = "negation"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.SUB, Op.NEG})
    example = """
        graph main(%x: f32[1,8]) {
          %y = SUB(zero[]=0.0, %x)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Writes NEG, or SUB the other way round."""
        if not graph.is_float(op.outputs[0]):
            return None
        if graph.kind(op) is Op.SUB:
            zero, x = op.inputs
            if graph.splat(zero) != 0 or graph.shape(x) != graph.shape(op.outputs[0]) or graph.activation(op) != NONE:
                return None
            graph.replace(op, Op.NEG, [x])
            return Applied("NEG")
        difference = binary(graph, op.inputs[0], Op.SUB)
        if difference is None:
            return None
        shared = graph.why_shared(op.inputs[0], op)
        if shared:
            return Refused(shared)
        Writer(graph, op).replace(Op.SUB, *reversed(difference.inputs))
        return Applied("SUB")


# -- powers ------------------------------------------------------------------------------------------------------------

_SQUARE = Form(Op.MUL, (X, X))
_POWERS: dict[float, Form] = {
    1.0: Form(Op.MUL, (X, 1.0)),
    2.0: _SQUARE,
    3.0: Form(Op.MUL, (_SQUARE, X)),
    4.0: Form(Op.MUL, (_SQUARE, _SQUARE)),
    5.0: Form(Op.MUL, (Form(Op.MUL, (_SQUARE, _SQUARE)), X)),
    6.0: Form(Op.MUL, (Form(Op.MUL, (_SQUARE, _SQUARE)), _SQUARE)),
    0.5: Form(Op.SQRT, (X,)),
    1.5: Form(Op.MUL, (X, Form(Op.SQRT, (X,)))),
    0.25: Form(Op.SQRT, (Form(Op.SQRT, (X,)),)),
    -0.5: Form(Op.RSQRT, (X,)),
    -1.0: Form(Op.DIV, (1.0, X)),
    -2.0: Form(Op.DIV, (1.0, _SQUARE)),
}


class Power(Spelled):
    """x^2 is x * x, x^3 is x * x * x, and so on up to 6; x^0.5 is SQRT(x), x^-0.5 RSQRT(x), x^-1 is 1 / x.

    Also for exponents 1.5, 0.25 and -2. Products of float32 differ from POW by 2^-23 of the result for each MUL, and
    sqrt(-inf) is NaN where POW gives infinity. Negative exponents are left to POW where x may be 0: it gives infinity
    there, the builtin kernel of DIV the largest float, and RSQRT of -0 is negative.
    """

    name = "power"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.POW})
    example = """
        graph main(%x: f32[1,8]) {
          %y = POW(%x, two[]=2.0)
          return %y
        }
    """
    needs = frozenset({Op.POW})

    def forms(self, cone: Cone) -> Iterable[Form]:
        """The form for the exponent."""
        exponent = cone.constants.get(cone.operators[-1].inputs[1])
        return [_POWERS[exponent]] if len(cone.operators) == 1 and exponent in _POWERS else []

    def why_not(self, cone: Cone) -> str | None:
        """Also declines where x may be 0 and the exponent is negative."""
        low, high = range_of(cone.graph, cone.source)
        exponent = cone.constants.get(cone.operators[-1].inputs[1], 0.0)
        if exponent < 0 and low <= 0 <= high:
            return f"`{cone.graph.name(cone.source)}` may be 0, for which POW gives infinity and other operators do not"
        return super().why_not(cone)


class SquaredDifference(Rule):
    """(a - b)^2 is SQUARED_DIFFERENCE(a, b), by SQUARE or by MUL of the difference with itself.

    The same bits, except that the builtin kernels of SUB and MUL stop at the largest float and SQUARED_DIFFERENCE goes
    to infinity. Time under XNNPACK 0.5 to 0.7. Where one of them is broadcast the builtin kernel is slow, so that
    models that XNNPACK may not take, having unknown dimensions, keep their two operators.
    """

    name = "squared-difference"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.SQUARE, Op.MUL})
    example = """
        graph main(%a: f32[1,8], %b: f32[1,8]) {
          %d = SUB(%a, %b)
          %y = MUL(%d, %d)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Writes SQUARED_DIFFERENCE."""
        difference = binary(graph, op.inputs[0], Op.SUB)
        if difference is None or graph.activation(op) != NONE or not graph.is_float(op.outputs[0]):
            return None
        if graph.kind(op) is Op.MUL and op.inputs[0] != op.inputs[1]:
            return None
        shapes = [graph.static_shape(t) for t in difference.inputs]
        if shapes[0] != shapes[1] and None in shapes:
            return None
        if any(shape is not None and len(shape) > 4 for shape in shapes) and shapes[0] != shapes[1]:
            return None
        shared = graph.why_shared(op.inputs[0], op)
        if shared:
            return None  # others need the difference itself
        graph.replace(op, Op.SQUARED_DIFFERENCE, difference.inputs)
        return Applied("")


# -- chains of constants -----------------------------------------------------------------------------------------------


def _counts(graph: Graph, x: int, result: int) -> str | None:
    """Why the last bit of a result that is computed from ``x`` may matter, or None."""
    while True:
        maker = graph.producer(x)
        if maker is None or graph.kind(maker) not in _VIEWS:
            break
        x = maker.inputs[0]
    if maker is not None and graph.kind(maker) in _WHOLE:
        return f"{graph.where(maker)} gives whole numbers, of which it may matter that the result is one too"
    reader = next((r for r in graph.readers(result) if graph.kind(r) in _STEPS), None)
    return None if reader is None else f"{graph.where(reader)} has steps, on whose sides results could come to lie"


class AffineChain(Rule):
    """((x * a + b) * c - d) / e is x * s + t, for constants that are numbers or vary along one axis.

    Three and more of MUL, ADD, SUB and DIV by constants become a MUL and an ADD, two become one where one is enough.
    Declined where large numbers are added and taken away again, which rounds on purpose, and where FLOOR and the like
    read the result or whole numbers go in.
    """

    name = "affine-chain"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.MUL, Op.ADD, Op.SUB, Op.DIV})
    example = """
        graph main(%x: f32[1,8]) {
          %a = SUB(%x, c1[]=0.5)
          %b = MUL(%a, c2[]=2.0)
          %y = ADD(%b, c3[]=3.0)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Writes at most two operators in place of the chain that ends in ``op``."""
        last = read_affine(graph, op)
        if not isinstance(last, Affine):
            return None
        found, links = last, [op]
        largest = float(np.max(np.abs(last.shift)))
        while len(links) < _MOST_LINKS:
            slots = operand(graph, links[-1])
            assert slots is not None
            x = links[-1].inputs[slots[0]]
            maker = graph.producer(x)
            before = read_affine(graph, maker) if maker is not None else None
            if maker is None or not isinstance(before, Affine) or graph.activation(maker) != NONE:
                break
            merged = _compose(before, found)
            if merged is None:
                break
            if graph.why_shared(x, links[-1]):
                break
            largest = max(largest, float(np.max(np.abs(before.shift * found.scale))))
            found = merged
            links.append(maker)
        needed = int(found.scales) + int(found.shifts)
        if len(links) == 1 or max(needed, 1) >= len(links):
            return None
        if largest >= _LARGE_SHIFT and largest > 4 * float(np.max(np.abs(found.shift))):
            return Refused("a large number is added and taken away again, which rounds on purpose")
        slots = operand(graph, links[-1])
        assert slots is not None
        reason = _counts(graph, links[-1].inputs[slots[0]], op.outputs[0])
        if reason:
            return Refused(reason)
        return self._rewrite(graph, op, links, found)

    @staticmethod
    def _rewrite(graph: Graph, op: Operator, links: list[Operator], found: Affine) -> Outcome:
        slots = operand(graph, links[-1])
        assert slots is not None
        x = links[-1].inputs[slots[0]]
        shape = graph.shape(x)
        assert shape is not None
        name, activation = graph.name(op.outputs[0]), graph.activation(op)
        with np.errstate(over="ignore"):
            scale, shift = (v.astype(np.float32) for v in (found.scale, found.shift))
        if not (np.all(np.isfinite(scale)) and np.all(np.isfinite(shift))):
            return None
        frame = [] if found.axis is None else [1] * (len(shape) - found.axis)
        if found.axis is not None:
            frame[0] = -1
        write = Writer(graph, op)

        def constant(value: np.ndarray[tuple[int, ...], np.dtype[np.float32]], what: str) -> int:
            return graph.add_constant(f"{name}/{what}", value.reshape(frame))

        fused = {"fused_activation_function": activation}
        if not found.shifts:
            write.replace(Op.MUL, x, constant(scale, "scale"), **fused)
        elif not found.scales:
            write.replace(Op.ADD, x, constant(shift, "shift"), **fused)
        else:
            scaled = write.op(Op.MUL, x, constant(scale, "scale"))
            write.replace(Op.ADD, scaled, constant(shift, "shift"), **fused)
        return Applied(f"{len(links)} operators")


def _compose(first: Affine, then: Affine) -> Affine | None:
    """``then`` behind ``first``; None when they vary along different axes."""
    axes = {a.axis for a in (first, then) if a.axis is not None}
    if len(axes) > 1:
        return None
    with np.errstate(all="ignore"):
        scale, shift = first.scale * then.scale, first.shift * then.scale + then.shift
    scale, shift = np.broadcast_arrays(scale, shift)
    return Affine(axes.pop() if axes else None, scale, shift)


class DivideByConstant(Rule):
    """x / c is x * (1/c). The same bits for powers of two; results differ in the last bit for others.

    For others it is declined where FLOOR and the like read the result, or whole numbers go in.
    """

    name = "divide-by-constant"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.DIV})
    example = """
        graph main(%x: f32[1,8]) {
          %y = DIV(%x, c[]=3.0)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Writes MUL."""
        if len(op.inputs) != 2 or graph.is_constant(op.inputs[0]) or not graph.is_float(op.outputs[0]):
            return None
        divisor = graph.constant(op.inputs[1])
        if divisor is None or divisor.dtype != np.float32 or divisor.size == 0:
            return None
        with np.errstate(all="ignore"):
            inverse = (1.0 / divisor.astype(np.float64)).astype(np.float32)
        normal = np.isfinite(inverse) & (np.abs(inverse) >= np.finfo(np.float32).tiny)
        if not np.all(normal):
            return Refused(f"the inverse of the divisor `{graph.name(op.inputs[1])}` is not an ordinary float32")
        if not np.all(np.abs(np.frexp(divisor)[0]) == 0.5):
            reason = _counts(graph, op.inputs[0], op.outputs[0])
            if reason:
                return Refused(reason)
        constant = graph.add_constant(graph.name(op.inputs[1]), inverse)
        activation = graph.activation(op)
        Writer(graph, op).replace(Op.MUL, op.inputs[0], constant, fused_activation_function=activation)
        return Applied("")


RULES: tuple[Rule, ...] = (
    NegatedOperand(),
    EvenOfNegated(),
    Negation(),
    Power(),
    SquaredDifference(),
    AffineChain(),
    DivideByConstant(),
)
