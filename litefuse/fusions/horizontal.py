"""Convolutions and FULLY_CONNECTEDs side by side on one input become one.

    concat(conv(x, W1), conv(x, W2)) = conv(x, [W1; W2])          the CONCATENATION disappears
    conv(x, W1), conv(x, W2)         = split(conv(x, [W1; W2]))   a SPLIT appears

Output channels do not know of each other, so that weights and biases are just put one behind the other. Each copy of
a result costs memory traffic, though, so that the two differ in worth.

In front of a CONCATENATION along the channels it always pays: that operator copied all the results. Measured with
ai-edge-litert 2.3.0 and XNNPACK on x86 (AVX2), one thread, medians of paired runs over 60 pairs to quadruples of
convolutions (1x1 and 3x3, 4x4 to 112x112, 12 to 128 output channels together) and 100 of FULLY_CONNECTED: 1.0 to 3.2
times as fast, never slower.

Behind a SPLIT it seldom does. The same shapes run at 0.4 to 1.4 times the speed, and Q, K and V of an attention at
0.93 to 1.06. XNNPACK computes output channels in panels of 8, 16 or 32, depending on the machine, so that two
convolutions of 64 channels do as much work as one of 128, and the SPLIT comes on top: about 64 cycles for each piece of
each pixel, and 2 more for each channel when the result does not fit the cache. It pays where fewer panels are left,
each of which costs about a cycle for each of the weights that belong to an output channel (a quarter of that for
integers). The rule asks that for all three widths of panels: then 430 random groups ran 1.02 to 4.1 times as fast, and
the nine pairs of 36 channels with 256 weights of `basic_pitch_nmp` 1.2 times. With the builtin kernels it is 1.0 to 4
times, but 0.5 to 0.9 for some groups of single channels, which those compute as matrix times vector. Pieces of
different sizes would need a SLICE each, which XNNPACK runs at the cost of another convolution (0.5 to 1.0 times the
speed for FULLY_CONNECTED with few rows); they are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from litefuse.fusions.constant_folding import MAX_GROWTH
from litefuse.fusions.identity import same_quantization
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.fusions.stored import store, stored
from litefuse.graph import Graph
from litefuse.graph.pattern import NONE
from litefuse.schema.declare import diff
from litefuse.schema.enums import FullyConnectedOptionsWeightsFormat, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import FullyConnectedOptions, Operator, QuantizationParameters
from litefuse.schema.types import FLOATS

# Makes a tensor, when called, right before an operator.
Maker: TypeAlias = Callable[[Operator], int]

_KINDS = frozenset({Op.CONV_2D, Op.FULLY_CONNECTED})
# Widths of XNNPACK's panels of output channels: SSE and NEON, AVX2, AVX512.
_PANELS = (8, 16, 32)
# In cycles, of which a panel takes one for each of its weights per output channel.
_PIECE = 64
_CHANNEL = 2
# How many times more integers than floats a panel takes in at a time.
_INTEGERS = 4
_CACHE_BYTES = 256 * 1024
# XNNPACK's limit on the pieces of a SPLIT.
_MOST_PIECES = 4


class _No(Exception):
    """These operators cannot be merged. The reason is empty where they do not belong together at all."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


def _alike(graph: Graph, a: Operator, b: Operator) -> bool:
    """Whether two operators differ in nothing but their weights and the number of their output channels."""
    return (
        graph.kind(a) is graph.kind(b)
        and a.inputs[0] == b.inputs[0]
        and len(a.inputs) == len(b.inputs)
        and graph.version(a) == graph.version(b)
        and not any(diff(a.builtin_options, b.builtin_options))
        and graph.type(a.outputs[0]) == graph.type(b.outputs[0])
        and _frame(graph, a) == _frame(graph, b) is not None
    )


def _frame(graph: Graph, op: Operator) -> tuple[object, ...] | None:
    """The type and shape of weights and result but for the output channels; None where they are not known."""
    out, weights = graph.shape(op.outputs[0]), graph.static_shape(op.inputs[1])
    if not out or not weights or out[-1] != weights[0]:
        return None
    return graph.type(op.inputs[1]), weights[1:], out[:-1]


def _channels(graph: Graph, op: Operator) -> int:
    shape = graph.shape(op.outputs[0])
    assert shape is not None
    return shape[-1]


class _Merged:
    """One operator that computes what several alike do, one result behind the other. Raises _No where it cannot be."""

    def __init__(self, graph: Graph, ops: Sequence[Operator]) -> None:
        self.graph, self.ops = graph, ops
        first, where = ops[0], graph.where(ops[0])
        options, x, weights = first.builtin_options, graph.shape(first.inputs[0]), graph.shape(first.inputs[1])
        if isinstance(options, FullyConnectedOptions):
            if options.weights_format != FullyConnectedOptionsWeightsFormat.DEFAULT:
                raise _No(f"the weights of {where} are in a shuffled format")
        elif x is None or weights is None or x[-1] != weights[-1]:
            raise _No(f"{where} has groups of channels, which would be dealt out anew")
        for op in ops[1:]:
            if not same_quantization(graph, op.outputs[0], first.outputs[0]):
                raise _No(f"{graph.where(op)} has another output scale or zero point than {where}")
        self.channels = [_channels(graph, op) for op in ops]
        self._operands = [self._join(slot) for slot in range(1, len(first.inputs))]

    def add(self, before: Operator, out: int | None = None) -> int:
        """Adds the operator, with its result in the tensor ``out`` or a new one, which is returned."""
        graph, first = self.graph, self.ops[0]
        old = first.outputs[0]
        if out is None:
            shape = (*(graph.shape(old) or ())[:-1], sum(self.channels))
            quantization = graph.tensor(old).quantization
            out = graph.add_tensor(f"{graph.name(old)}/merged", shape, graph.type(old), quantization=quantization)
        inputs = [first.inputs[0], *(make(before) for make in self._operands)]
        kind, version, options = graph.kind(first), graph.version(first), first.builtin_options
        graph.add_operator(kind, inputs, [out], before=before, version=version, options=options)
        return out

    def _join(self, slot: int) -> Maker:
        """The weights or biases one behind the other."""
        graph, where = self.graph, self.graph.where(self.ops[0])
        tensors = [op.inputs[slot] for op in self.ops]
        if max(tensors) < 0:
            return lambda before: -1
        if min(tensors) < 0:
            raise _No(f"not all of {', '.join(str(graph.where(op)) for op in self.ops)} have a bias")
        parts = [part for part in (stored(graph, tensor) for tensor in tensors) if part is not None]
        if len(parts) < len(tensors):
            raise _No(f"the weights or biases of {where} are not all dense constants")
        if [len(part.value) for part in parts if part.value.ndim] != self.channels:
            raise _No
        if len({(graph.type(part.tensor), part.is_half, part.value.shape[1:]) for part in parts}) > 1:
            raise _No(f"the weights beside {where} are of another type")
        joined = np.concatenate([part.value for part in parts])
        quantization = self._scales([part.tensor for part in parts])
        if joined.nbytes > MAX_GROWTH and not self._stay_together(tensors):
            raise _No(f"`{graph.name(tensors[0])}` is also used elsewhere, so that the file would hold it twice")
        return lambda before: store(graph, parts[0], joined, before, quantization)

    def _stay_together(self, tensors: list[int]) -> bool:
        """Whether all that reads one of the constants stands beside what reads the others, to be merged likewise.

        The results, though equal, are constants of their own until ShareConstants finds them.
        """
        graph = self.graph
        sources = [sorted(op.inputs[0] for op in graph.readers(tensor)) for tensor in tensors]
        return len(set(tensors)) == len(tensors) and all(source == sources[0] for source in sources)

    def _scales(self, tensors: list[int]) -> QuantizationParameters | None:
        """The quantisation of the constants put one behind the other."""
        graph = self.graph
        found = [graph.quantization(tensor) for tensor in tensors]
        if all(q is None for q in found):
            return None
        scales, points = [], []
        for q, count in zip(found, self.channels, strict=True):
            if q is None or q.scale is None or q.details is not None or len(q.scale) not in (1, count):
                raise _No
            if len(q.scale) > 1 and q.quantized_dimension != 0:
                raise _No
            scales.append(np.asarray(q.scale, np.float32))
            points.append(np.zeros(len(q.scale), np.int64) if q.zero_point is None else np.asarray(q.zero_point))
        whole = [len(scale) == 1 for scale in scales]
        if all(whole) and len({(float(s[0]), int(p[0])) for s, p in zip(scales, points, strict=True)}) == 1:
            return found[0]
        # CONV_2D has always taken a scale for each channel, FULLY_CONNECTED only lately.
        where = graph.where(self.ops[0])
        if graph.type(self.ops[0].inputs[0]) in FLOATS or (all(whole) and graph.kind(self.ops[0]) is not Op.CONV_2D):
            raise _No(f"the weights beside {where} have another scale, and one for each channel is not supported")
        if any(np.any(point != 0) for point in points):
            raise _No(f"the weights beside {where} have zero points, and so must all have the same scale")
        vector = np.concatenate([np.broadcast_to(s, n) for s, n in zip(scales, self.channels, strict=True)])
        return QuantizationParameters(scale=vector, zero_point=np.zeros(len(vector), np.int64), quantized_dimension=0)


class _Merge(Rule):
    """Base: what is exact on integers may be summed up in another order on floats."""

    def fits(self, graph: Graph, op: Operator) -> bool:
        """Whether the operator is one of the kind and class that this rule merges."""
        if graph.kind(op) not in _KINDS or len(op.outputs) != 1 or len(op.inputs) < 2 or min(op.inputs[:2]) < 0:
            return False
        if graph.tensor(op.inputs[0]).is_variable:
            return False  # it may change between one operator and the next
        exact = graph.type(op.outputs[0]) not in FLOATS
        return exact is (self.numerics is Numerics.EXACT)


class MergeBeforeConcatenation(_Merge):
    """concat(conv(x, W1), conv(x, W2)) = conv(x, [W1; W2]), for CONV_2D and FULLY_CONNECTED.

    The operators have the same input, kernel size, strides, padding, dilation, activation, types and output
    quantisation, stand side by side in a CONCATENATION along the channels, and nothing else reads their results.
    Floats are summed up in another order where the kernel chooses it by the number of channels.
    """

    name = "merge-before-concatenation"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.CONCATENATION})
    example = """
        graph main(%x: f32[1,8,8,16]) {
          %a = CONV_2D(%x, w1[16,1,1,16], b1[16])
          %b = CONV_2D(%x, w2[16,1,1,16], b2[16])
          %y = CONCATENATION(%a, %b) {axis=3}
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Merges the first operators side by side that can be."""
        out = graph.shape(op.outputs[0])
        axis = getattr(op.builtin_options, "axis", 0)
        if not out or axis not in (-1, len(out) - 1) or graph.activation(op) != NONE:
            return None
        refusal: Refused | None = None
        for start, ops in self._runs(graph, op):
            reason = next((r for o in ops if (r := graph.why_shared(o.outputs[0], op))), None)
            if reason is None:
                try:
                    return self._apply(graph, op, start, _Merged(graph, ops))
                except _No as no:
                    reason = no.reason
            refusal = refusal or (Refused(reason) if reason else None)
        return refusal

    def _runs(self, graph: Graph, op: Operator) -> list[tuple[int, list[Operator]]]:
        """The longest stretches of alike producers of neighbouring inputs, and where they begin."""
        runs: list[tuple[int, list[Operator]]] = []
        for slot, tensor in enumerate(op.inputs):
            maker = graph.producer(tensor)
            if maker is None or not self.fits(graph, maker) or op.inputs.count(tensor) > 1:
                continue
            if not same_quantization(graph, tensor, op.outputs[0]):
                continue
            if runs and slot == runs[-1][0] + len(runs[-1][1]) and _alike(graph, runs[-1][1][0], maker):
                runs[-1][1].append(maker)
            else:
                runs.append((slot, [maker]))
        return [run for run in runs if len(run[1]) > 1]

    @staticmethod
    def _apply(graph: Graph, op: Operator, start: int, merged: _Merged) -> Applied:
        old = [o.outputs[0] for o in merged.ops]
        last = next(o for o in reversed(list(graph.operators())) if o in merged.ops)
        if len(old) == len(op.inputs):
            merged.add(last, op.outputs[0])
            graph.remove(op)
            graph.prune(old)
        else:
            inputs = [*op.inputs[:start], merged.add(last), *op.inputs[start + len(old) :]]
            graph.replace(op, Op.CONCATENATION, inputs, version=graph.version(op), options=op.builtin_options)
        return Applied(f"{len(old)} operators")


class MergeQuantizedBeforeConcatenation(MergeBeforeConcatenation):
    """concat(conv(x, W1), conv(x, W2)) = conv(x, [W1; W2]), for CONV_2D and FULLY_CONNECTED of INT8, UINT8 and INT16.

    As for floats, but integers add up to the same whatever the order. Weights with one scale each become weights with
    one for each channel.
    """

    name = "merge-quantized-before-concatenation"
    numerics = Numerics.EXACT
    example = """
        graph main(%x: i8[1,8,8,16]{scale=0.02}) {
          %a: i8[1,8,8,16]{scale=0.1} = CONV_2D(%x, w1:i8[16,1,1,16]{scale=0.005}, b1:i32[16]{scale=0.0001})
          %b: i8[1,8,8,16]{scale=0.1} = CONV_2D(%x, w2:i8[16,1,1,16]{scale=0.005}, b2:i32[16]{scale=0.0001})
          %y: i8[1,8,8,32]{scale=0.1} = CONCATENATION(%a, %b) {axis=3}
          return %y
        }
    """


class MergeBeforeSplit(_Merge):
    """conv(x, W1), conv(x, W2) = split(conv(x, [W1; W2])), for two to four operators with equally many channels.

    Only where it pays: where the channels fill fewer panels of 8, 16 and 32 together than apart, and that is worth
    more than the copies that SPLIT makes. Q, K and V of an attention, for example, are better left apart.
    """

    name = "merge-before-split"
    numerics = Numerics.REASSOCIATED
    kinds = _KINDS
    example = """
        graph main(%x: f32[1,4,4,256]) {
          %y = CONV_2D(%x, w1[4,1,1,256], b1[4]=0.5)
          %z = CONV_2D(%x, w2[4,1,1,256], b2[4]=-0.5)
          return %y, %z
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Merges ``op`` with the operators like it that follow on the same input."""
        if not self.fits(graph, op):
            return None
        ops = self._siblings(graph, op)
        if len(ops) < 2 or ops[0] is not op:
            return None
        readers = {reader for o in ops for reader in graph.readers(o.outputs[0])}
        if len(readers) == 1 and graph.kind(*readers) is Op.CONCATENATION:
            return None  # see MergeBeforeConcatenation
        try:
            merged = _Merged(graph, ops)
        except _No as no:
            return Refused(no.reason) if no.reason else None
        if reason := self._why_not_worth(graph, merged):
            return Refused(reason)
        self._apply(graph, merged)
        return Applied(f"{len(ops)} operators")

    @staticmethod
    def _siblings(graph: Graph, op: Operator) -> list[Operator]:
        """Operators like ``op``, itself included, in execution order."""
        found = {r for r in graph.readers(op.inputs[0]) if graph.kind(r) is graph.kind(op) and _alike(graph, op, r)}
        found = {r for r in found if _channels(graph, r) == _channels(graph, op)}
        if len(found) < 2:
            return []
        return [o for o in graph.operators() if o in found][:_MOST_PIECES]

    @staticmethod
    def _why_not_worth(graph: Graph, merged: _Merged) -> str | None:
        first, total = merged.ops[0], sum(merged.channels)
        shape, weights = graph.shape(first.outputs[0]), graph.static_shape(first.inputs[1])
        assert shape is not None
        assert weights is not None
        panels = min(sum(-(-c // width) for c in merged.channels) - -(-total // width) for width in _PANELS)
        exact = graph.type(first.outputs[0]) not in FLOATS
        gain = panels * math.prod(weights[1:]) // (_INTEGERS if exact else 1)
        pixels = math.prod(abs(d) for d in shape[:-1])
        large = pixels * total * (1 if exact else 4) > _CACHE_BYTES
        cost = _PIECE * len(merged.ops) + (_CHANNEL * total if large else 0)
        if gain > cost:
            return None
        all_of_them = ", ".join(str(graph.where(op)) for op in merged.ops)
        if panels == 0:
            return f"one operator for {all_of_them} would be no less work, and a SPLIT behind it more"
        return (
            f"one operator for {all_of_them} would save about {gain} cycles for each pixel or row, "
            f"and the SPLIT behind it would cost {cost}"
        )

    @staticmethod
    def _apply(graph: Graph, merged: _Merged) -> None:
        first = merged.ops[0]
        old = [op.outputs[0] for op in merged.ops]
        shape, type = graph.shape(old[0]), graph.type(old[0])
        assert shape is not None
        together = merged.add(first)
        axis = graph.add_constant(f"{graph.name(together)}/axis", np.array(len(shape) - 1, np.int32))
        version = {TensorType.INT8: 2, TensorType.INT16: 4}.get(type, 1)
        graph.add_operator(Op.SPLIT, [axis, together], old, before=first, version=version, num_splits=len(old))
        for op in merged.ops:
            graph.remove(op)
        graph.prune(t for op in merged.ops for t in op.inputs[1:])


class MergeQuantizedBeforeSplit(MergeBeforeSplit):
    """conv(x, W1), conv(x, W2) = split(conv(x, [W1; W2])), for two to four such operators of INT8, UINT8 and INT16.

    Where it pays, as for floats, but integers add up to the same whatever the order.
    """

    name = "merge-quantized-before-split"
    numerics = Numerics.EXACT
    example = """
        graph main(%x: i8[1,4,4,256]{scale=0.02}) {
          %y: i8[1,4,4,4]{scale=0.1} = CONV_2D(%x, w1:i8[4,3,3,256]{scale=0.005}, b1:i32[4]{scale=0.0001}=100)
          %z: i8[1,4,4,4]{scale=0.1} = CONV_2D(%x, w2:i8[4,3,3,256]{scale=0.005}, b2:i32[4]{scale=0.0001}=-100)
          return %y, %z
        }
    """


RULES: tuple[Rule, ...] = (
    MergeQuantizedBeforeConcatenation(),
    MergeBeforeConcatenation(),
    MergeQuantizedBeforeSplit(),
    MergeBeforeSplit(),
)
