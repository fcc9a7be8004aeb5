"""PReLU spelled in elementary operators becomes PRELU.

PReLU(x) = max(x, 0) + alpha * min(x, 0). Producers without a PRELU of their own spell it as a sum or a difference of
the two halves, or, where alpha <= 1, as max(x, alpha * x). The half of the negative side comes in many forms, all of
which are constants times min(x, 0)::

    min(x, 0)           RELU(-x)            x - ABS(x)          x - RELU(x)
    = 1 * min(x, 0)     = -1 * min(x, 0)    = 2 * min(x, 0)     = 1 * min(x, 0)

with MUL by constants, NEG, DIV by a power of two, or a depthwise 1x1 convolution without bias around them.

What the kernels do (ai-edge-litert 2.3.0): in both runtimes PRELU gives x for x > 0 and the once rounded product
alpha * x for x < 0. The spellings give the same bits for ordinary numbers: one of the two halves is zero, doubling and
halving are exact, and only one factor in a product may be other than a power of two. What keeps the rule from being
called exact is the sign of zero, numbers below 1.2e-38 (a factor of 0.5 may round them, and XNNPACK's arithmetic takes
them for zero, while its PRELU does not), and spellings that leave the finite numbers (inf - inf in x - ABS(x), products
beyond the largest float).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from litefuse.fusions.activation import QUANTIZED, keeps_shape
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph.graph import Array, Graph
from litefuse.schema.enums import ActivationFunctionType
from litefuse.schema.operators import Op
from litefuse.schema.tables import DepthwiseConv2DOptions, Operator

NONE, RELU = ActivationFunctionType.NONE, ActivationFunctionType.RELU


# How many factors may stand around a half; more are the work of constant folding.
_MAX_FACTORS = 4


@dataclass
class Spelling:
    """A PReLU spelled in other operators.

    Attributes:
        source: the tensor x.
        alpha: the slope for negative x in float64, of a shape that broadcasts with x.
        inner: the operators between x and the last one, which are no longer needed afterwards.
        constants: the constant tensors that take part.
        problem: what in the spelling itself keeps it from being a PReLU, or None.
    """

    source: int
    alpha: Array = field(default_factory=lambda: np.ones(()))
    inner: list[Operator] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    problem: str | None = None

    def scale(self, factor: Array | float) -> None:
        """Multiplies alpha by a constant. At run time each factor is a rounding, except a power of two."""
        factor = np.asarray(factor, np.float64)
        with np.errstate(all="ignore"):
            product = self.alpha * factor
            stored = product.astype(np.float32).astype(np.float64)
        if not np.all(_is_power_of_two(self.alpha) | _is_power_of_two(factor)) or not np.array_equal(stored, product):
            self.problem = "the product of the constants is not a float32, so that rounding would change"
        self.alpha = product

    @property
    def channels(self) -> Array:
        """The slopes as [-1, channels]; usable when all rows are equal."""
        return self.alpha.reshape(-1, self.alpha.shape[-1] if self.alpha.ndim else 1)

    @property
    def is_splat(self) -> bool:
        """Whether there is one slope for all channels."""
        return bool(self.alpha.size and np.all(self.alpha == self.alpha.flat[0]))


def _is_power_of_two(value: Array) -> Array:
    return np.asarray((value == 0) | (np.abs(np.frexp(value)[0]) == 0.5))


def spelling(graph: Graph, op: Operator) -> Spelling | None:
    """The PReLU that ends in ``op``, or None. Whether it may be replaced is for :func:`why_not` to say."""
    kind = graph.kind(op)
    if kind in (Op.MAXIMUM, Op.MINIMUM):
        for x, multiple in _orders(op):
            found = _multiple(graph, multiple)
            if found is not None and found.source == x:
                # max(x, a x) is x for x > 0 and a x for x < 0 exactly when a <= 1; min(x, a x) exactly when a >= 1.
                if not np.all(found.alpha <= 1 if kind is Op.MAXIMUM else found.alpha >= 1):
                    limit = "above" if kind is Op.MAXIMUM else "below"
                    found.problem = f"{kind.name}(x, a * x) is no PReLU where a is {limit} 1"
                return found
        return None
    for positive, negative in _orders(op)[: 2 if kind is Op.ADD else 1]:
        half, found = _positive_half(graph, positive), _negative_half(graph, negative)
        if half is not None and found is not None and half.source == found.source >= 0:
            if kind is Op.SUB:
                found.scale(-1.0)
            found.inner.extend(half.inner)
            found.constants.extend(half.constants)
            return found
    return None


def why_not(graph: Graph, op: Operator, found: Spelling) -> str | None:
    """Why a spelling cannot be replaced by one operator, or None when it can."""
    out, x = op.outputs[0], found.source
    if graph.type(out) in QUANTIZED:
        return (
            f"{graph.type(out).name} values: one operator would round differently, and the quantised PRELU "
            f"of the runtimes is many times slower"
        )
    if not (graph.is_float(out) and graph.is_float(x)):
        return f"PRELU has no kernel for {graph.type(out).name} values"
    if found.problem:
        return found.problem
    if graph.activation(op) != NONE:
        return f"{graph.kind(op).name} has a fused {graph.activation(op).name}, which PRELU cannot have"
    if graph.tensor(x).is_variable:
        return f"tensor `{graph.name(x)}` is a variable"
    if graph.shape(x) is None or not keeps_shape(graph, x, tuple(found.constants), out):
        return "a constant may change the shape by broadcasting"
    if not np.all(found.channels == found.channels[0]):
        return "the slope differs along another axis than the last; PRELU wants one per channel"
    if not np.all(np.isfinite(found.alpha)):
        return "a slope is not a finite number"
    reasons = (graph.why_shared(inner.outputs[0], op, *found.inner) for inner in found.inner)
    return next((reason for reason in reasons if reason), None)


def _positive_half(graph: Graph, tensor: int) -> Spelling | None:
    """RELU(x), or MAXIMUM(x, 0)."""
    op = graph.producer(tensor)
    if op is None:
        return None
    if graph.kind(op) is Op.RELU:
        return Spelling(_only(op), inner=[op])
    if graph.kind(op) is Op.MAXIMUM:
        for x, zero in _orders(op):
            if graph.splat(zero) == 0:
                return Spelling(x, inner=[op], constants=[zero])
    return None


def _negative_half(graph: Graph, tensor: int) -> Spelling | None:
    """A constant times min(x, 0), as a Spelling with that constant for alpha."""
    outside: list[Operator] = []
    factors: list[tuple[Array | float, list[int]]] = []
    while len(factors) <= _MAX_FACTORS:
        op = graph.producer(tensor)
        if op is None:
            return None
        outside.append(op)
        found = _minimum(graph, op)
        if found is not None:
            for factor, constants in factors:
                found.scale(factor)
                found.constants.extend(constants)
            found.inner.extend(outside)
            return found
        peeled = _factor(graph, op)
        if peeled is None:
            return None
        tensor = peeled[0]
        factors.append(peeled[1:])
    return None


def _minimum(graph: Graph, op: Operator) -> Spelling | None:
    """min(x, 0) or a small multiple of it, in the forms that are not a product."""
    kind, activation = graph.kind(op), graph.activation(op)
    if kind is Op.MINIMUM:
        for x, zero in _orders(op):
            if graph.splat(zero) == 0:
                return Spelling(x, constants=[zero])
    if kind is Op.SUB and activation == NONE:
        for x, half in _orders(op)[:1]:
            inner = graph.producer(half)
            if inner is not None and graph.kind(inner) in (Op.ABS, Op.RELU) and _only(inner) == x:
                return Spelling(x, np.float64(2.0 if graph.kind(inner) is Op.ABS else 1.0), [inner])
    if kind is Op.MUL and activation == RELU:  # RELU(-x) after fusion
        negated = _multiple(graph, op.outputs[0], RELU)
        if negated is not None and negated.is_splat and negated.alpha.flat[0] == -1:
            negated.inner.clear()
            return negated
    relu = _positive_half(graph, op.outputs[0])
    if relu is not None:
        negated = _multiple(graph, relu.source)
        if negated is not None and negated.is_splat and negated.alpha.flat[0] == -1:
            negated.constants.extend(relu.constants)
            return negated
    return None


def _multiple(graph: Graph, tensor: int, activation: ActivationFunctionType = NONE) -> Spelling | None:
    """A constant times x for any x."""
    op = graph.producer(tensor)
    peeled = _factor(graph, op, activation) if op is not None else None
    if op is None or peeled is None:
        return None
    found = Spelling(peeled[0], inner=[op], constants=peeled[2])
    found.scale(peeled[1])
    return found


def _factor(
    graph: Graph, op: Operator, activation: ActivationFunctionType = NONE
) -> tuple[int, Array | float, list[int]] | None:
    """The tensor and the constant whose rounded product an operator computes, and the constant's tensor if any."""
    kind = graph.kind(op)
    if kind is Op.NEG and activation == NONE:
        return _only(op), -1.0, []
    if graph.activation(op) != activation:
        return None
    if kind is Op.MUL:
        for x, other in _orders(op):
            constant = graph.constant(other)
            if constant is not None and constant.size and constant.dtype.kind in "fiu":
                return x, _real(graph, other, constant), [other]
    if kind is Op.DIV:
        for x, other in _orders(op)[:1]:
            divisor = graph.splat(other)
            if divisor and graph.is_float(other) and _is_power_of_two(np.float64(divisor)):
                return x, 1.0 / divisor, [other]
    if kind is Op.DEPTHWISE_CONV_2D and isinstance(op.builtin_options, DepthwiseConv2DOptions) and len(op.inputs) > 1:
        x, filter, options = op.inputs[0], op.inputs[1], op.builtin_options
        weights, shape = graph.constant(filter), graph.shape(x) if x >= 0 else None
        if (
            weights is not None
            and graph.is_float(x)
            and graph.is_float(filter)
            and shape
            and weights.shape == (1, 1, 1, shape[-1])
            and (options.stride_h, options.stride_w) == (1, 1)
            and all(t < 0 or graph.splat(t) == 0 for t in op.inputs[2:])
        ):
            return x, weights.reshape(-1), []
    return None


def _orders(op: Operator) -> list[tuple[int, int]]:
    """The inputs of a binary operator in both orders; none for what is not one."""
    if len(op.inputs) != 2 or min(op.inputs) < 0 or len(op.outputs) != 1:
        return []
    return [(op.inputs[0], op.inputs[1]), (op.inputs[1], op.inputs[0])]


def _only(op: Operator) -> int:
    """The input of a unary operator, or -1, which is the input of none."""
    return op.inputs[0] if len(op.inputs) == len(op.outputs) == 1 else -1


def _real(graph: Graph, tensor: int, constant: Array) -> Array:
    """A constant's real values, quantised ones included."""
    q = graph.quantization(tensor)
    value = constant.astype(np.float64)
    if constant.dtype.kind == "f" or q is None or q.scale is None or len(q.scale) != 1:
        return value
    point = q.zero_point[0] if q.zero_point is not None and len(q.zero_point) else 0
    return np.asarray((value - float(point)) * float(q.scale[0]))


class PReLU(Rule):
    """max(x, 0) + alpha * min(x, 0), or max(x, alpha * x) with alpha <= 1, is PRELU(x, alpha).

    The halves are recognised in every form that the module lists, and alpha is the product of the constants in them.
    Only one slope per channel is taken, as every delegate's PRELU wants it, and only products that need no rounding:
    then the results differ from the original's in no bit, but for the sign of zero and numbers below 1.2e-38. One
    slope for all channels is LEAKY_RELU: see :mod:`litefuse.fusions.leaky_relu`.
    """

    name = "prelu"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.ADD, Op.SUB, Op.MAXIMUM, Op.MINIMUM})
    example = """
        graph main(%x: f32[1,4,4,16]) {
          %p = RELU(%x)
          %n = NEG(%x)
          %q = RELU(%n)
          %r = MUL(%q, a[16])
          %y = SUB(%p, %r)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Puts PRELU in the place of the spelling's last operator."""
        found = spelling(graph, op)
        if found is None or found.is_splat:
            return None
        reason = why_not(graph, op, found)
        if reason:
            return Refused(reason)
        # Shaped as Keras and TensorFlow's converter shape it: one dimension less than x, all but the last of size 1.
        rank = max(1, len(graph.shape(found.source) or ()) - 1)
        alpha = found.channels[0].astype(np.float32).reshape([1] * (rank - 1) + [-1])
        name = graph.name(op.outputs[0])
        graph.replace(op, Op.PRELU, [found.source, graph.add_constant(f"{name}/alpha", alpha)])
        return Applied(f"{len(found.inner) + 1} operators")


RULES: tuple[Rule, ...] = (PReLU(),)
