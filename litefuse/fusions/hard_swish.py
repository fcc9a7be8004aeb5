"""Hard-swish and hard-sigmoid, however they are spelled.

hard_swish(x) = x * hard_sigmoid(x), hard_sigmoid(x) = relu6(x + 3) / 6 = clip(x / 6 + 1/2, 0, 1)
(Howard et al., Searching for MobileNetV3, arXiv:1905.02244, section 5.2). Factors of 1/6 may stand anywhere and be
rounded: see :mod:`litefuse.fusions.univariate` for what is recognised and within which tolerance.

Time under XNNPACK against ADD+RELU6, MUL, MUL: HARD_SWISH 0.3 to 0.45, HARD_SWISH and a MUL 0.6; the hard-sigmoid below
against MUL, ADD, MINIMUM, RELU: 0.95, and 0.25 with the builtin kernels.
"""

from __future__ import annotations

from collections.abc import Iterable

from litefuse.fusions.activation import CLAMPS, TAKES, clamp, keeps_shape
from litefuse.fusions.forms import Form, X
from litefuse.fusions.rule import Applied, Numerics, Outcome, Rule
from litefuse.fusions.univariate import Cone, Spelled, scalar
from litefuse.graph import Graph
from litefuse.graph.pattern import NONE
from litefuse.schema.enums import ActivationFunctionType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

_GATE = Form(Op.ADD, (X, 3.0), activation=ActivationFunctionType.RELU6)
_CLAMPS = frozenset({*CLAMPS, Op.MAXIMUM, Op.MINIMUM, Op.SELECT, Op.SELECT_V2})


class HardSwish(Spelled):
    """x * relu6(x + 3) / 6, or x * clip(x / 6 + 1/2, 0, 1), is HARD_SWISH(x).

    In any order and grouping, with MUL by 1/6 or DIV by 6 before or behind, and clamps of any kind. What is left of a
    rounded factor, such as 0.16667, stays as a MUL. The once rounded x * gate / 6 of HARD_SWISH differs from the
    spellings in the last bits, within 2e-7 of the result.
    """

    name = "hard-swish"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.MUL, Op.DIV})
    example = """
        graph main(%x: f32[1,8,8,16]) {
          %a = ADD(%x, three[]=3.0) {activation=RELU6}
          %b = MUL(%x, %a)
          %y = MUL(%b, sixth[]=0.16666667)
          return %y
        }
    """
    needs = _CLAMPS

    def forms(self, cone: Cone) -> Iterable[Form]:
        """HARD_SWISH."""
        return (Form(Op.HARD_SWISH, (X,)),)


class HardSigmoid(Spelled):
    """clip(x / 6 + 1/2, 0, 1), in any spelling that takes more, is relu6(x + 3) * 1/6.

    These are an ADD with a fused RELU6 and a MUL, of which the first can go into the bias and the activation of a
    convolution before it, and the second into the weights of one behind.
    """

    name = "hard-sigmoid"
    numerics = Numerics.REASSOCIATED
    kinds = _CLAMPS | {Op.MUL, Op.DIV}
    example = """
        graph main(%x: f32[1,8,8,16]) {
          %a = MUL(%x, sixth[]=0.16666667)
          %b = ADD(%a, half[]=0.5)
          %c = MINIMUM(%b, one[]=1.0)
          %y = RELU(%c)
          return %y
        }
    """
    needs = _CLAMPS

    def forms(self, cone: Cone) -> Iterable[Form]:
        """ADD with RELU6, then MUL."""
        return (Form(Op.MUL, (_GATE, 1 / 6)),)


class ReluBeforeMinimum(Rule):
    """relu(min(x, c)) = min(relu(x), c) for c >= 0, where the operator that computes x can apply the RELU itself.

    This is what becomes of clip(x, 0, 1) behind a convolution, such as a hard-sigmoid whose factor and term went into
    its weights: one operator less. MINIMUM(NaN, c) is c with the builtin kernels, so that NaN may come out differently.
    """

    name = "relu-before-minimum"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.RELU, Op.MAXIMUM})
    example = """
        graph main(%x: f32[1,8,8,8]) {
          %a = CONV_2D(%x, w[16,1,1,8], b[16])
          %m = MINIMUM(%a, one[]=1.0)
          %y = RELU(%m)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Swaps the two; the activation rules fuse the RELU then."""
        this = clamp(graph, op)
        if this is None or this.limits[0] != 0 or not graph.is_float(op.outputs[0]):
            return None
        below = graph.producer(this.source)
        minimum = clamp(graph, below) if below is not None and graph.kind(below) is Op.MINIMUM else None
        if below is None or minimum is None or minimum.limits[1] < 0 or graph.only_reader(this.source) is not op:
            return None
        maker = graph.producer(minimum.source)
        out = op.outputs[0]
        if (
            maker is None
            or graph.kind(maker) not in TAKES
            or graph.activation(maker) != NONE
            or graph.only_reader(minimum.source) is not below
            or not keeps_shape(graph, minimum.source, tuple(t for t in below.inputs if t != minimum.source), out)
            or not keeps_shape(graph, this.source, tuple(t for t in op.inputs if t != this.source), out)
        ):
            return None
        limit = next(t for t in below.inputs if t != minimum.source)
        relu = graph.add_tensor(f"{graph.name(out)}/relu", (), graph.type(out), like=minimum.source)
        graph.add_operator(Op.RELU, [minimum.source], [relu], before=below)
        graph.replace(op, Op.MINIMUM, [relu, limit])
        return Applied(f"RELU moves to {graph.kind(maker).name}")


class RoundedHardSwish(Rule):
    """HARD_SWISH(x) * 1.00002 is what x * relu6(x + 3) * 0.16667 comes to; 1/6 was meant, so the MUL is dropped.

    For factors within 2.5e-5 of one, where no weights follow into which the factor could go: results change by that
    much.
    """

    name = "repair-hard-swish"
    numerics = Numerics.REPAIR
    deviation = 2.5e-5
    kinds = frozenset({Op.MUL})
    example = """
        graph main(%x: f32[1,8,8,16]) {
          %h = HARD_SWISH(%x)
          %y = MUL(%h, factor[]=1.00002)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Drops the MUL."""
        if graph.activation(op) != NONE or len(op.inputs) != 2 or not graph.is_float(op.outputs[0]):
            return None
        out = op.outputs[0]
        for x, factor in (op.inputs, op.inputs[::-1]):
            swish, number = graph.producer(x), scalar(graph, factor)
            if swish is None or graph.kind(swish) is not Op.HARD_SWISH or number is None:
                continue
            if abs(number - 1) > self.deviation or not keeps_shape(graph, x, (factor,), out):
                continue
            if (
                graph.readers(out)
                and out not in graph.outputs
                and all(_has_weights(graph, r) for r in graph.readers(out))
            ):
                continue  # the factor goes there
            return Applied(f"times {number:.6g}") if graph.bypass(op, x) else None
        return None


def _has_weights(graph: Graph, op: Operator) -> bool:
    kind = graph.kind(op)
    return kind in (Op.CONV_2D, Op.DEPTHWISE_CONV_2D, Op.FULLY_CONNECTED) and graph.is_constant(op.inputs[1])


RULES: tuple[Rule, ...] = (HardSwish(), HardSigmoid(), ReluBeforeMinimum(), RoundedHardSwish())
