"""Normalisation by mean and variance, by length, and inverse square roots.

Producers write layer normalisation with the scale g and the shift b multiplied out (batch normalisation at inference is
written so, where it pays)::

    x * (r * g) + (b - m * (r * g))  =  ((x - m) * r) * g + b        r = rsqrt(variance + epsilon)

On the left, r * g, its product with m, and the sum with b are as large as x when m and r have one number per row. On
the right, x - m is there for the variance already, nothing cancels, and g and b may fold into a FULLY_CONNECTED behind.

Time under XNNPACK (ai-edge-litert 2.3.0) at 56x56x96 to 7x7x768, against the left with SQUARED_DIFFERENCE: 0.57 to 0.8,
and 0.37 to 0.44 where g and b fold; with the builtin kernels 0.33 to 0.5.

What does not pay: L2_NORMALIZATION, which XNNPACK does not take, against MUL, SUM, MAXIMUM, RSQRT, MUL takes 0.8 to 1.0
up to 128 numbers, and 1.3 to 3.6 beyond. Its kernel divides by max(norm, 1e-6), so that only that spelling agrees with
it for all vectors: adding 1e-12 to the squared norm gives something else for norms below 1e-3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from litefuse.fusions.forms import Form, X
from litefuse.fusions.reductions import Reduction, Writer, binary, is_reciprocal, reduction, scalar_operand, unary
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.fusions.univariate import Cone, Spelled, range_of
from litefuse.graph import Graph
from litefuse.graph.pattern import NONE
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

_SMALL = 128
_EPSILON = 1e-12


class LayerNorm(Rule):
    """x * (r * g) + (b - m * (r * g)) is ((x - m) * r) * g + b, where r and m have one number per row of x.

    In either order of operands, with NEG(m) * (r * g) + b for the difference, and without b. Nothing cancels any more,
    so that results differ from the original's by its own error, of the order of 2^-24 * abs(m) * r * g.
    """

    name = "layer-norm"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.ADD, Op.SUB})
    example = """
        graph main(%x: f32[16,64], %m: f32[16,1], %r: f32[16,1]) {
          %s = MUL(%r, g[64])
          %p = MUL(%x, %s)
          %q = MUL(%m, %s)
          %d = SUB(b[64], %q)
          %y = ADD(%p, %d)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Writes the right hand side in place of the left."""
        out = op.outputs[0]
        shape = graph.shape(out)
        if len(op.inputs) != 2 or not shape or not graph.is_float(out):
            return None
        for scaled, rest in (op.inputs, op.inputs[::-1])[: 2 if graph.kind(op) is Op.ADD else 1]:
            times = binary(graph, scaled, Op.MUL)
            for x, factor in _both(times):
                gain = binary(graph, factor, Op.MUL)
                for r, g in _both(gain):
                    if not graph.is_constant(g) or graph.shape(x) != shape or graph.shape(factor) != shape:
                        continue
                    for m, b, inner in _offsets(graph, rest, factor, graph.kind(op) is Op.SUB):
                        if self._is_row(graph, r, shape) and self._is_row(graph, m, shape):
                            assert times is not None
                            assert gain is not None
                            return self._rewrite(graph, op, (x, m, r, g, b), [times, gain, *inner])
        return None

    @staticmethod
    def _is_row(graph: Graph, tensor: int, shape: tuple[int, ...]) -> bool:
        """Whether a tensor has one number for each row of the last axis, and more than one number per row is saved."""
        return graph.is_float(tensor) and graph.shape(tensor) == (*shape[:-1], 1) and shape[-1] != 1

    @staticmethod
    def _rewrite(graph: Graph, op: Operator, parts: tuple[int, int, int, int, int], inner: list[Operator]) -> Outcome:
        x, m, r, g, b = parts
        reasons = (graph.why_shared(o.outputs[0], op, *inner) for o in inner)
        shared = next((reason for reason in reasons if reason), None)
        if shared:
            return Refused(shared)
        if graph.tensor(x).is_variable:
            return Refused(f"tensor `{graph.name(x)}` is a variable")
        activation = graph.activation(op)
        write = Writer(graph, op)
        normal = write.op(Op.MUL, write.op(Op.SUB, x, m), r)
        if b < 0:
            write.replace(Op.MUL, normal, g, fused_activation_function=activation)
        else:
            write.replace(Op.ADD, write.op(Op.MUL, normal, g), b, fused_activation_function=activation)
        return Applied("with scale" if b < 0 else "with scale and shift")


def _both(op: Operator | None) -> Iterator[tuple[int, int]]:
    """The inputs of a binary operator in both orders."""
    if op is not None:
        a, b = op.inputs
        yield a, b
        yield b, a


def _offsets(graph: Graph, tensor: int, factor: int, negated: bool) -> Iterator[tuple[int, int, list[Operator]]]:
    """The ways to read a tensor as b - m * factor, or as m * factor when ``negated``: m, b (-1 for 0), operators."""
    if negated:
        for m, inner in _products(graph, tensor, factor, False):
            yield m, -1, inner
        return
    for m, inner in _products(graph, tensor, factor, True):
        yield m, -1, inner
    plus, minus = binary(graph, tensor, Op.ADD), binary(graph, tensor, Op.SUB)
    for product, b in _both(plus):
        for m, inner in _products(graph, product, factor, True):
            if plus is not None and graph.is_constant(b):
                yield m, b, [plus, *inner]
    if minus is not None and graph.is_constant(minus.inputs[0]):
        for m, inner in _products(graph, minus.inputs[1], factor, False):
            yield m, minus.inputs[0], [minus, *inner]


def _products(graph: Graph, tensor: int, factor: int, negated: bool) -> Iterator[tuple[int, list[Operator]]]:
    """The ways to read a tensor as m * factor, or as NEG(m) * factor: m and the operators."""
    times = binary(graph, tensor, Op.MUL)
    for m, other in _both(times):
        if times is None or other != factor:
            continue
        if not negated:
            yield m, [times]
            continue
        minus = unary(graph, m, Op.NEG)
        if minus is not None:
            yield minus.inputs[0], [times]


class ShareDifference(Rule):
    """SQUARED_DIFFERENCE(x, m) is d * d, where d = x - m or m - x is computed anyway.

    The same bits, except that the builtin kernels of SUB and MUL stop at the largest float and SQUARED_DIFFERENCE goes
    to infinity. Time under XNNPACK against SQUARED_DIFFERENCE of a tensor and one number per row: 0.75 to 1.0; with the
    builtin kernels, whose SQUARED_DIFFERENCE broadcasts slowly, 0.1.
    """

    name = "share-difference"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.SUB, Op.SQUARED_DIFFERENCE})
    example = """
        graph main(%x: f32[16,64], %m: f32[16,1]) {
          %d = SUB(%x, %m)
          %s = SQUARED_DIFFERENCE(%x, %m)
          return %d, %s
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Replaces the SQUARED_DIFFERENCE, computing the difference before it if need be."""
        if len(op.inputs) != 2 or not graph.is_float(op.outputs[0]):
            return None
        for other in graph.readers(op.inputs[0]):
            difference, square = (op, other) if graph.kind(op) is Op.SUB else (other, op)
            if graph.kind(difference) is not Op.SUB or graph.kind(square) is not Op.SQUARED_DIFFERENCE:
                continue
            d = difference.outputs[0]
            if set(difference.inputs) != set(square.inputs) or graph.activation(difference) != NONE:
                continue
            if next(o for o in graph.operators() if o is difference or o is square) is square:
                # The difference is computed too late. All its readers are behind the one that is written here.
                earlier = Writer(graph, square).op(Op.SUB, *difference.inputs, like=d)
                is_output = d in graph.outputs
                graph.bypass(difference, earlier)
                d = d if is_output else earlier
            graph.replace(square, Op.MUL, [d, d])
            return Applied("")
        return None


class DivideByRoot(Rule):
    """x / sqrt(v) is x * rsqrt(v), for any two tensors.

    Time under XNNPACK 0.8 to 1.0, with the builtin kernels 0.9 to 1.0. Results differ in the last bits.
    """

    name = "divide-by-root"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.DIV})
    example = """
        graph main(%x: f32[16,64], %v: f32[16,1]) {
          %r = SQRT(%v)
          %y = DIV(%x, %r)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Writes RSQRT and MUL."""
        root = unary(graph, op.inputs[1], Op.SQRT)
        if root is None or not graph.is_float(op.outputs[0]) or graph.is_constant(op.inputs[0]):
            return None
        shared = graph.why_shared(root.outputs[0], op)
        if shared:
            return Refused(shared)
        write = Writer(graph, op)
        inverse = write.op(Op.RSQRT, root.inputs[0])
        write.replace(Op.MUL, op.inputs[0], inverse, fused_activation_function=graph.activation(op))
        return Applied("")


class MultiplyByReciprocal(Rule):
    """x * (1 / v) is x / v, where v is as large as x.

    Where v is smaller, the reciprocals are fewer, and MUL is faster than DIV. Results differ in the last bits.
    """

    name = "multiply-by-reciprocal"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.MUL})
    example = """
        graph main(%x: f32[1,64], %v: f32[1,64]) {
          %r = DIV(one[]=1.0, %v)
          %y = MUL(%x, %r)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Writes DIV."""
        if not graph.is_float(op.outputs[0]):
            return None
        for x, inverse in _both(op):
            division = binary(graph, inverse, Op.DIV)
            if division is None or not is_reciprocal(graph, division) or graph.is_constant(x) or x == inverse:
                continue
            shape = graph.static_shape(op.outputs[0])
            if shape is None or not graph.static_shape(division.inputs[1]) == graph.static_shape(inverse) == shape:
                continue
            shared = graph.why_shared(inverse, op)
            if shared:
                return Refused(shared)
            Writer(graph, op).replace(Op.DIV, x, division.inputs[1], fused_activation_function=graph.activation(op))
            return Applied("")
        return None


class Roots(Spelled):
    """1 / sqrt(x), sqrt(1 / x) and x^-0.5 are RSQRT(x), and 1 / rsqrt(x) is SQRT(x).

    Where x is known to be positive: of zero, RSQRT is infinite, but the builtin kernel of DIV gives the largest float.
    """

    name = "rsqrt"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.DIV, Op.SQRT, Op.POW, Op.MUL})
    example = """
        graph main(%x: f32[1,64]) {
          %a = MAXIMUM(%x, epsilon[]=0.001)
          %r = SQRT(%a)
          %y = DIV(one[]=1.0, %r)
          return %y
        }
    """
    needs = frozenset({Op.SQRT, Op.POW, Op.DIV})

    def forms(self, cone: Cone) -> Iterable[Form]:
        """Both roots."""
        return Form(Op.RSQRT, (X,)), Form(Op.SQRT, (X,))

    def why_not(self, cone: Cone) -> str | None:
        """Zeros are in the way too."""
        if not range_of(cone.graph, cone.source)[0] > 0:
            return f"tensor `{cone.graph.name(cone.source)}` may be zero, where runtimes differ"
        return super().why_not(cone)


class L2Norm(Rule):
    """x / sqrt(max(sum(x^2), 1e-12)) over the last axis is L2_NORMALIZATION(x), for up to 128 numbers.

    Also x * rsqrt(...), and x / max(sqrt(sum(x^2)), 1e-6). Beyond, the operators together are faster, because XNNPACK
    does not take L2_NORMALIZATION. Results differ in the last bits.
    """

    name = "l2-norm"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.DIV, Op.MUL})
    example = """
        graph main(%x: f32[1,64]) {
          %q = MUL(%x, %x)
          %s = SUM(%q, i32[1]=1) {keep_dims=true}
          %m = MAXIMUM(%s, epsilon[]=1e-12)
          %r = RSQRT(%m)
          %y = MUL(%x, %r)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Puts L2_NORMALIZATION in the place of the last operator."""
        if graph.activation(op) != NONE or len(op.inputs) != 2 or not graph.is_float(op.outputs[0]):
            return None
        for x, norm in list(_both(op))[: 2 if graph.kind(op) is Op.MUL else 1]:
            found = _squared_norm(graph, norm, inverse=graph.kind(op) is Op.MUL)
            shape = graph.static_shape(x)
            if found is None or found[0].axes != (len(shape or ()) - 1,) or not _is_square(graph, found[0].source, x):
                continue
            total, epsilon, inner = found
            if shape is None or math.prod(shape) > _SMALL or graph.shape(op.outputs[0]) != shape:
                return None
            if not math.isclose(epsilon, _EPSILON, rel_tol=1e-3):
                return Refused(f"the squared norm is {epsilon:g} at least, where L2_NORMALIZATION has 1e-12")
            inner += [*total.operators, *filter(None, [graph.producer(total.source)])]
            reasons = (graph.why_shared(o.outputs[0], op, *inner) for o in inner)
            reason = next((r for r in reasons if r), None)
            if reason:
                return Refused(reason)
            graph.replace(op, Op.L2_NORMALIZATION, [x])
            return Applied("")
        return None


def _squared_norm(graph: Graph, tensor: int, *, inverse: bool) -> tuple[Reduction, float, list[Operator]] | None:
    """The sum whose root (or whose inverse root) a tensor is, the least that it is taken for, and the operators."""
    inner: list[Operator] = []
    epsilon = 0.0
    root = Op.RSQRT if inverse else Op.SQRT
    for kind in (Op.MAXIMUM, root, Op.MAXIMUM):
        op = graph.producer(tensor)
        if op is None or graph.kind(op) is not kind:
            if kind is root:
                return None
            continue
        if kind is Op.MAXIMUM:
            pair = scalar_operand(graph, op)
            if pair is None or epsilon:
                return None
            # The first MAXIMUM is of the norm itself, the second of its square.
            tensor, epsilon = pair[0], pair[1] if inner else pair[1] ** 2
            if inverse and not inner:
                return None
        else:
            tensor = op.inputs[0]
        inner.append(op)
    total = reduction(graph, tensor, {Op.SUM})
    return None if total is None or not epsilon else (total, epsilon, inner)


def _is_square(graph: Graph, tensor: int, x: int) -> bool:
    """Whether a tensor is x * x."""
    op = graph.producer(tensor)
    if op is None or graph.activation(op) != NONE:
        return False
    return op.inputs == ([x] if graph.kind(op) is Op.SQUARE else [x, x]) and graph.kind(op) in (Op.SQUARE, Op.MUL)


RULES: tuple[Rule, ...] = (
    L2Norm(),
    Roots(),
    DivideByRoot(),
    MultiplyByReciprocal(),
    LayerNorm(),
    ShareDifference(),
)
