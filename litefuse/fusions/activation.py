"""RELU, RELU6, RELU_N1_TO_1 and their spellings: merged with each other, then into the operator that feeds them.

All of them limit values to an interval. Limiting to [a, b] and then to [c, d] limits to [clip(a), clip(b)], with clip
the second limit, so that any chain is one interval, and what matters is only which intervals an operator can say.

What the stock kernels do beside finite numbers (measured with ai-edge-litert 2.3.0, builtin kernels and XNNPACK):

* RELU, RELU6 and RELU_N1_TO_1 alone and as a fused activation agree bit for bit: NaN stays NaN, -0.0 keeps its sign,
  and infinities are clamped. The exceptions are CONV_3D, whose fused RELU turns -0.0 into 0.0, and a redundant RELU
  behind the builtin MAX_POOL_2D, which turns NaN into the lowest float.
* MAXIMUM and MINIMUM with a constant agree with those under XNNPACK. Their builtin kernel answers with one operand when
  the comparison fails, so that MAXIMUM(NaN, 0) is 0 and MAXIMUM(-0.0, 0.0) is 0.0. A chain spelled with them gives
  the same numbers after fusion, but passes NaN on and may differ in the sign of zero. Where they take part, the rules
  are therefore rules of their own, which are not called exact.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph.graph import Graph
from litefuse.schema.enums import ActivationFunctionType, FullyConnectedOptionsWeightsFormat, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import FullyConnectedOptions, Operator
from litefuse.schema.types import RANGES

Interval = tuple[float, float]
EVERYTHING: Interval = (-math.inf, math.inf)

FUSED: dict[ActivationFunctionType, Interval] = {
    ActivationFunctionType.NONE: EVERYTHING,
    ActivationFunctionType.RELU: (0.0, math.inf),
    ActivationFunctionType.RELU6: (0.0, 6.0),
    ActivationFunctionType.RELU_N1_TO_1: (-1.0, 1.0),
}
CLAMPS: dict[Op, Interval] = {
    Op.RELU: (0.0, math.inf),
    Op.RELU6: (0.0, 6.0),
    Op.RELU_N1_TO_1: (-1.0, 1.0),
    Op.RELU_0_TO_1: (0.0, 1.0),
}
# The operators that a chain may become. RELU_0_TO_1 is not among them: XNNPACK does not know it.
_SINGLE = {CLAMPS[op]: op for op in (Op.RELU, Op.RELU6, Op.RELU_N1_TO_1)}

QUANTIZED = frozenset({TensorType.INT8, TensorType.UINT8, TensorType.INT16})
_ALL = QUANTIZED | {TensorType.FLOAT32}
# Operators whose kernels honour the fused activation, and for which output types.
TAKES: dict[Op, frozenset[TensorType]] = {
    Op.CONV_2D: _ALL,
    Op.DEPTHWISE_CONV_2D: _ALL,
    Op.FULLY_CONNECTED: _ALL,
    Op.TRANSPOSE_CONV: _ALL,
    Op.CONV_3D: frozenset({TensorType.FLOAT32}),
    Op.ADD: _ALL,
    Op.SUB: _ALL,
    Op.MUL: _ALL,
    Op.DIV: _ALL,
    Op.AVERAGE_POOL_2D: _ALL,
    Op.MAX_POOL_2D: _ALL,
    Op.L2_POOL_2D: frozenset({TensorType.FLOAT32}),
}
# Operators with the field in their options whose kernels reject it, or ignore it (CONV_3D_TRANSPOSE).
_REJECTS = frozenset({Op.CONCATENATION, Op.L2_NORMALIZATION, Op.CONV_3D_TRANSPOSE})
# The version from which an operator knows its fused activation (op_version.cc).
VERSIONS = {Op.TRANSPOSE_CONV: 4}
# Operators whose outputs hold nothing but elements of their first input.
_MOVES = frozenset(
    {
        Op.RESHAPE,
        Op.SQUEEZE,
        Op.EXPAND_DIMS,
        Op.TRANSPOSE,
        Op.MAX_POOL_2D,
        Op.SLICE,
        Op.STRIDED_SLICE,
        Op.GATHER,
        Op.TILE,
        Op.MIRROR_PAD,
        Op.REVERSE_V2,
        Op.DEPTH_TO_SPACE,
        Op.SPACE_TO_DEPTH,
        Op.BATCH_TO_SPACE_ND,
        Op.RESIZE_NEAREST_NEIGHBOR,
    }
)
_LOOK_BACK = 16


class Clamp(NamedTuple):
    """An operator that limits ``source`` to ``limits``: real numbers, or stored integers of quantised tensors."""

    source: int
    limits: Interval


def clamp(graph: Graph, op: Operator) -> Clamp | None:
    """What a RELU, or a MAXIMUM or MINIMUM with a constant of one value, limits its input to; None for others."""
    kind = graph.kind(op)
    if not op.inputs or min(op.inputs) < 0 or len(op.outputs) != 1:
        return None
    if kind in CLAMPS and len(op.inputs) == 1:
        limits = limits_of(graph, op.outputs[0], CLAMPS[kind])
        return None if limits is None else Clamp(op.inputs[0], limits)
    if kind in (Op.MAXIMUM, Op.MINIMUM) and len(op.inputs) == 2:
        for source, other in (op.inputs, reversed(op.inputs)):
            number = graph.splat(other)
            if number is not None and not math.isnan(number) and not graph.is_constant(source):
                limits = (number, math.inf) if kind is Op.MAXIMUM else (-math.inf, number)
                return Clamp(source, compose(_stored(graph, source), limits))
    return None


def limits_of(graph: Graph, tensor: int, interval: Interval) -> Interval | None:
    """An interval of real numbers in the units in which a tensor is stored.

    Quantised kernels clamp at zero_point + round(bound / scale) within the type's range. None when a bound lies so
    near the middle between two integers that runtimes may round it differently, or without a scale per tensor.
    """
    if graph.type(tensor) not in QUANTIZED:
        return interval
    stored = _stored(graph, tensor)
    scale_and_point = _scale(graph, tensor)
    if scale_and_point is None:
        return None
    scale, point = scale_and_point
    found = []
    for bound in interval:
        exact = float(np.float32(bound) / np.float32(scale))
        if math.isinf(exact):
            found.append(stored[0] if exact < 0 else stored[1])
            continue
        near = math.floor(exact + 0.5)
        ambiguous = abs(exact - math.floor(exact) - 0.5) <= max(1e-3, abs(exact) * 2.0**-21)
        if ambiguous and stored[0] < near + point <= stored[1]:
            return None
        found.append(min(max(float(near + point), stored[0]), stored[1]))
    return found[0], found[1]


def _stored(graph: Graph, tensor: int) -> Interval:
    """All that a tensor can store: the integers of a quantised type, and all real numbers else."""
    kind = graph.type(tensor)
    return (float(RANGES[kind][0]), float(RANGES[kind][1])) if kind in QUANTIZED else EVERYTHING


def known_limits(graph: Graph, tensor: int, look_back: int = _LOOK_BACK) -> Interval:
    """An interval in which all values of a tensor lie for certain, in the units in which it is stored."""
    op = graph.producer(tensor)
    if op is None or look_back == 0:
        return _stored(graph, tensor)
    this = clamp(graph, op)
    if this is not None:
        source, limits = this
    else:
        source = op.inputs[0] if op.inputs and graph.kind(op) in _MOVES else -1
        own = FUSED.get(graph.activation(op)) if graph.type(tensor) in TAKES.get(graph.kind(op), ()) else None
        limits = limits_of(graph, tensor, own or EVERYTHING) or EVERYTHING
    known = _stored(graph, tensor)
    if source >= 0 and same_encoding(graph, source, tensor):
        known = known_limits(graph, source, look_back - 1)
    return compose(known, limits)


def compose(first: Interval, then: Interval) -> Interval:
    """The interval that limiting to ``first`` and then to ``then`` limits to."""
    return min(max(first[0], then[0]), then[1]), min(max(first[1], then[0]), then[1])


def same_encoding(graph: Graph, a: int, b: int) -> bool:
    """Whether two tensors store the same value by the same number: equal type, and scale and zero point if any."""
    if graph.type(a) != graph.type(b):
        return False
    return graph.type(a) not in QUANTIZED or (_scale(graph, a) is not None and _scale(graph, a) == _scale(graph, b))


def keeps_shape(graph: Graph, source: int, others: tuple[int, ...], result: int) -> bool:
    """Whether an elementwise operator on ``source`` and constants ``others`` surely gives the shape of ``source``.

    Dimensions that are only known at run time may broadcast against a constant only where that has size 1.
    """
    shape, before, after = graph.shape(source), graph.static_shape(source), graph.static_shape(result)
    if before is not None and after is not None and before != after:
        return False
    for dims in filter(None, map(graph.shape, others)):
        if shape is None or len(dims) > len(shape):
            return False
        if any(d not in (1, s) for d, s in zip(dims[::-1], shape[::-1], strict=False)):
            return False
    return True


def _scale(graph: Graph, tensor: int) -> tuple[float, int] | None:
    """Scale and zero point of a tensor quantised as a whole."""
    q = graph.quantization(tensor)
    if q is None or q.details is not None or q.scale is None or len(q.scale) != 1 or not q.scale[0] > 0:
        return None
    return float(q.scale[0]), int(q.zero_point[0]) if q.zero_point is not None and len(q.zero_point) else 0


def _constants(op: Operator, source: int) -> tuple[int, ...]:
    return tuple(t for t in op.inputs if t != source)


def _has_variable(graph: Graph, *tensors: int) -> bool:
    return any(graph.tensor(t).is_variable for t in tensors)


def _numerics(graph: Graph, *clamps: Operator) -> Numerics:
    """How far results may differ when clamps are replaced by RELUs or fused activations that limit the same."""
    spelled = any(graph.kind(op) not in CLAMPS and graph.is_float(op.outputs[0]) for op in clamps)
    return Numerics.REASSOCIATED if spelled else Numerics.EXACT


def _say(limits: Interval) -> str:
    low, high = limits
    return f"[{low:g}, {high:g}]".replace("[-inf", "(-inf").replace("inf]", "inf)")


class MergeClamps(Rule):
    """Clamps behind clamps: clip(clip(x, a, b), c, d) = clip(x, clip(a, c, d), clip(b, c, d)).

    A clamp that changes nothing any more goes away: RELU after an operator with a fused RELU6, RELU of an INT8 tensor
    whose zero point is -128, and so on, also across operators that only move values, such as RESHAPE or MAX_POOL_2D.
    Two clamps become the second alone where that implies the first (RELU, RELU6), or for FLOAT32 the one operator that
    says both.

    Comparisons do not round, so that all this is exact. For quantised tensors the bounds are compared as stored
    integers, and scale and zero point must be the same before and behind; the kernels then copy what they do not clamp,
    which the tests prove over all 256 values.
    """

    name = "merge-clamps"
    numerics = Numerics.EXACT
    kinds = frozenset({*CLAMPS, Op.MAXIMUM, Op.MINIMUM})
    example = """
        graph main(%x: f32[1,8]) {
          %a = RELU(%x)
          %y = RELU6(%a)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Removes the clamp, makes it read what the clamp before it reads, or replaces both by one."""
        this = clamp(graph, op)
        if this is None or not _is_plain(graph, op, this):
            return None
        alone = _numerics(graph, op) is self.numerics
        before = known_limits(graph, this.source)
        if compose(before, this.limits) == before:
            if not alone:
                return None
            if not graph.bypass(op, this.source):
                return Refused("it changes nothing, but the output of the model needs a tensor of its own")
            return Applied(f"values are within {_say(before)} already")
        first = graph.producer(this.source)
        previous = clamp(graph, first) if first else None
        is_float = graph.is_float(op.outputs[0])
        if first and previous and _is_plain(graph, first, previous) and _numerics(graph, op, first) is self.numerics:
            both = compose(previous.limits, this.limits)
            single = _SINGLE.get(both) if is_float else None
            if both == this.limits or single:
                # While others read it, the first clamp would stay and could no longer be part of its producer.
                shared = graph.why_shared(this.source, op)
                if shared:
                    return Refused(shared)
            if both == this.limits:
                graph.set_input(op, op.inputs.index(this.source), previous.source)
                graph.prune([this.source])
                return Applied(f"{graph.kind(first).name} before it is implied")
            if single:
                names = f"{graph.kind(first).name} and {graph.kind(op).name}"
                graph.replace(op, single, [previous.source])
                return Applied(f"{names} are one {single.name}")
        if is_float and alone and graph.kind(op) not in CLAMPS and this.limits in _SINGLE:
            kind = graph.kind(op).name
            graph.replace(op, _SINGLE[this.limits], [this.source])
            return Applied(f"{kind} is {_SINGLE[this.limits].name}")
        return None


class MergeMinMax(MergeClamps):
    """max(x, 0) is relu(x), and clamps behind clamps are one, of FLOAT32 by MAXIMUM or MINIMUM with a constant.

    MAXIMUM with 0 then MINIMUM with 6, in either order, is RELU6; MAXIMUM with 0 is RELU. The builtin kernels of
    MAXIMUM and MINIMUM replace NaN and -0.0, which RELU keeps; all other results are the same bits.
    """

    name = "merge-min-max"
    numerics = Numerics.REASSOCIATED
    example = """
        graph main(%x: f32[1,8]) {
          %a = MAXIMUM(%x, zero[]=0.0)
          %y = MINIMUM(%a, six[]=6.0)
          return %y
        }
    """


def _is_plain(graph: Graph, op: Operator, found: Clamp) -> bool:
    """Whether a clamp changes neither shape nor type nor scale, and nothing else can write what it reads."""
    out = op.outputs[0]
    return (
        (graph.is_float(out) or graph.type(out) in QUANTIZED)
        and same_encoding(graph, found.source, out)
        and keeps_shape(graph, found.source, _constants(op, found.source), out)
        and not _has_variable(graph, found.source, out)
    )


class FuseActivation(Rule):
    """A clamp behind an operator with a fused activation: clip(f(x), a, b) = f with that activation.

    The kernels of CONV_2D, DEPTHWISE_CONV_2D, FULLY_CONNECTED, TRANSPOSE_CONV (from version 4), ADD, SUB, MUL, DIV,
    AVERAGE_POOL_2D, MAX_POOL_2D, and for FLOAT32 CONV_3D and L2_POOL_2D clamp each result just before they store it,
    with the same comparison that the operator alone uses; nothing else in them changes. A fused activation that is
    already there is composed with the new one. CONCATENATION and L2_NORMALIZATION have the field but reject it.

    For INT8, UINT8 and INT16 both clamp stored integers at zero_point + round(bound / scale). That is the same where
    the clamp's output has the operator's own scale and zero point. With another scale the clamp rounds a second time,
    which one kernel cannot reproduce, and the rule declines.
    """

    name = "fuse-activation"
    numerics = Numerics.EXACT
    kinds = frozenset({*CLAMPS, Op.MAXIMUM, Op.MINIMUM})
    example = """
        graph main(%x: f32[1,8,8,3]) {
          %a = CONV_2D(%x, w[16,3,3,3], b[16])
          %y = RELU(%a)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Sets the producer's activation and takes the clamp away."""
        source = self._source(graph, op)
        producer = graph.producer(source) if source is not None else None
        if source is None or producer is None or _numerics(graph, op) is not self.numerics:
            return None
        kind = graph.kind(producer)
        if kind in _REJECTS:
            return Refused(f"{kind.name} has no kernel with a fused activation")
        if kind not in TAKES or len(producer.outputs) != 1:
            return None
        reason = self._why_not(graph, op, source, producer)
        if reason:
            return Refused(reason)
        own = FUSED.get(graph.activation(producer))
        if own is None:
            return Refused(f"{kind.name} already has the fused activation {graph.activation(producer).name}")
        this, before = clamp(graph, op), limits_of(graph, source, own)
        if this is None or before is None:
            return Refused("a bound lies halfway between two quantised values; runtimes round it differently")
        both = compose(before, this.limits)
        if both == before:
            return None  # nothing to fuse: see MergeClamps
        activation = next((a for a in self._candidates(graph, op) if limits_of(graph, source, FUSED[a]) == both), None)
        if activation is None:
            return Refused(f"values would be limited to {_say(both)}, which no fused activation says")
        if both[0] >= both[1]:
            return Refused("only one value would remain, which XNNPACK does not accept as a range")
        shared = graph.why_shared(source, op)
        if shared:
            return Refused(shared)
        if not graph.bypass(op, source):
            return Refused(f"output of {graph.where(producer)} is also an output of the model")
        graph.set_activation(producer, activation)
        graph.set_version(producer, VERSIONS.get(kind, 1))
        return Applied(f"{activation.name} into {kind.name}")

    @staticmethod
    def _source(graph: Graph, op: Operator) -> int | None:
        """The tensor that a clamp limits, even where the bounds themselves cannot be said."""
        if graph.kind(op) in CLAMPS:
            return op.inputs[0] if len(op.inputs) == len(op.outputs) == 1 else None
        found = clamp(graph, op)
        return found and found.source

    @staticmethod
    def _candidates(graph: Graph, op: Operator) -> list[ActivationFunctionType]:
        """The activations in the order of preference: the one that is named like the operator first."""
        return sorted(FUSED, key=lambda a: a.name != graph.kind(op).name)

    @staticmethod
    def _why_not(graph: Graph, op: Operator, source: int, producer: Operator) -> str | None:
        kind, out = graph.kind(producer), op.outputs[0]
        where = graph.where(producer)
        if graph.type(source) not in TAKES[kind]:
            return f"clamps of {graph.type(source).name} values are not fused into {kind.name}"
        if graph.type(out) in QUANTIZED:
            a, b = _scale(graph, source), _scale(graph, out)
            if a is None or b is None:
                return f"the {graph.type(out).name} values have no single scale"
            for one, other, what in zip(a, b, ("scale", "zero point"), strict=True):
                if one != other:
                    return (
                        f"output {what} {one:g} of {where} differs from {other:g} of {graph.kind(op).name}: "
                        f"fusing would change rounding"
                    )
        if not keeps_shape(graph, source, _constants(op, source), out):
            return f"{graph.kind(op).name} may change the shape {_shape(graph, source)} by broadcasting"
        if _has_variable(graph, source, out):
            return f"tensor `{graph.name(source)}` is a variable"
        options = producer.builtin_options
        if options is not None and not hasattr(options, "fused_activation_function"):
            return f"{where} has the options of another operator"
        if isinstance(options, FullyConnectedOptions) and options.weights_format != (
            FullyConnectedOptionsWeightsFormat.DEFAULT
        ):
            return f"{where} has shuffled weights, whose kernel is left alone"
        if options is None and graph.type(out) is TensorType.INT16:
            return f"{where} has no options, and adding them would choose another INT16 kernel"
        return None


class FuseMinMax(FuseActivation):
    """max(f(x), 0) = f with a fused RELU, and the like, for MAXIMUM and MINIMUM of FLOAT32 with a constant.

    MINIMUM with 6 behind a fused RELU makes that RELU6, for example; the operators are those of fuse-activation. The
    builtin kernels of MAXIMUM and MINIMUM replace NaN and -0.0, which a fused activation keeps; all other results
    are the same bits.
    """

    name = "fuse-min-max"
    numerics = Numerics.REASSOCIATED
    example = """
        graph main(%x: f32[1,8,8,3]) {
          %a = CONV_2D(%x, w[16,3,3,3], b[16])
          %y = MAXIMUM(%a, zero[]=0.0)
          return %y
        }
    """


def _shape(graph: Graph, tensor: int) -> str:
    shape = graph.shape(tensor)
    return "of unknown rank" if shape is None else str(list(shape))


RULES: tuple[Rule, ...] = (MergeClamps(), MergeMinMax(), FuseActivation(), FuseMinMax())
