"""QUANTIZE and DEQUANTIZE where they are not needed.

    QUANTIZE(DEQUANTIZE(q))          = QUANTIZE(q)             between numbers of one type
    QUANTIZE(QUANTIZE(q))            = QUANTIZE(q)
    QUANTIZE(move(DEQUANTIZE(q)))    = move(QUANTIZE(q))       and the QUANTIZE goes when q had the right scale already
    QUANTIZE of all parts of x       = parts of QUANTIZE(x)
    concat(QUANTIZE(p), QUANTIZE(q)) = QUANTIZE(concat(p, q))  where p and q have one scale

All of it is exact: a rule goes over every number that q can hold (256, or 65,536 for INT16) and applies only when both
forms give the same in each of the ways in which kernels round (see :mod:`litefuse.fusions.fixed_point`). For different
scales that is seldom so: fixed point is off by one for about 6 % of the numbers, where the way through floats is not.

Measured with ai-edge-litert 2.3.0 and XNNPACK on x86, one thread: QUANTIZE(q) takes 0.4 to 0.8 of the time of the pair
between equal types. From INT8 to UINT8 or back it takes 1.7 to 7 times as long, because XNNPACK leaves it to the
builtin kernel: such pairs stay. Moving bytes in the place of floats is 1.05 to 2.3 times as fast for the operators
below, a convolution before them included, but 0.9 times for MIRROR_PAD, whose kernels copy element by element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from litefuse.fusions.fixed_point import (
    BYTES,
    Encoding,
    dequantized,
    encoding,
    quantized,
    requantizations,
    requantized_twice,
    to_array,
)
from litefuse.fusions.operands import input_of
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph, OperatorKind
from litefuse.graph.pattern import NONE
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

# Makes what is to be used in the place of a tensor, before an operator, in a given tensor or a new one; returns which.
Maker: TypeAlias = Callable[[Operator, "int | None"], int]

# Operators that only move elements (MAX_POOL_2D chooses among them, which keeps their order), with the number of
# leading inputs that carry them (None: all) and the version that knows INT8.
_MOVERS: dict[OperatorKind, tuple[int | None, int]] = {
    Op.BATCH_TO_SPACE_ND: (1, 2),
    Op.CONCATENATION: (None, 2),
    Op.DEPTH_TO_SPACE: (1, 2),
    Op.EXPAND_DIMS: (1, 1),
    Op.GATHER: (1, 2),
    Op.MAX_POOL_2D: (1, 2),
    Op.PACK: (None, 2),
    Op.PAD: (1, 2),
    Op.RESHAPE: (1, 1),
    Op.RESIZE_NEAREST_NEIGHBOR: (1, 2),
    Op.REVERSE_V2: (1, 3),
    Op.SLICE: (1, 2),
    Op.SPACE_TO_DEPTH: (1, 2),
    Op.SQUEEZE: (1, 1),
    Op.STRIDED_SLICE: (1, 2),
    Op.TILE: (1, 3),
    Op.TRANSPOSE: (1, 2),
}
# The slot of the input that is divided, and the version that knows INT8.
_DIVIDERS: dict[OperatorKind, tuple[int, int]] = {Op.SPLIT: (1, 2), Op.SPLIT_V: (0, 2), Op.UNPACK: (0, 2)}
_JOINERS = frozenset({Op.CONCATENATION, Op.PACK})
_REQUANTIZES = 2


class _No(Exception):
    """The conversion cannot be moved. The reason is empty where nothing would be gained."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


def _through_float(a: Encoding, c: Encoding) -> str | None:
    """Why QUANTIZE from ``a`` to ``c`` may not stand for DEQUANTIZE and QUANTIZE; None when it may."""
    if a == c:
        return None
    if a.type != c.type:
        return f"XNNPACK does not convert {a.type.name} to {c.type.name}, so that one QUANTIZE is slower than the two"
    if a.type not in BYTES:
        return f"XNNPACK does not convert {a.type.name}, so that one QUANTIZE is no faster than the two"
    q = a.all()
    expected = quantized(dequantized(q, a), c)
    if expected is None:
        return "some values lie halfway between two others, and kernels round them differently"
    wrong = max(int(np.count_nonzero(got != expected)) for got in requantizations(q, a, c))
    return f"{wrong} of {len(q)} values would come out differently with some kernels" if wrong else None


def _in_succession(a: Encoding, b: Encoding, c: Encoding) -> str | None:
    """Why QUANTIZE from ``a`` to ``c`` may not stand for two by way of ``b``; None when it may."""
    q = a.all()
    direct = [q] * 4 if a == c else requantizations(q, a, c)
    twice = requantized_twice(q, a, b, c)
    wrong = max(int(np.count_nonzero(x != y)) for x, y in zip(direct, twice, strict=True))
    return f"{wrong} of {len(q)} values would come out differently with some kernels" if wrong else None


class DequantizeQuantize(Rule):
    """QUANTIZE(DEQUANTIZE(q)) = QUANTIZE(q), for INT8 to INT8 or UINT8 to UINT8, where every value comes out the same.

    That is so for equal scales, where the zero point is moved. Where both are equal, nothing is left: see cancel-pairs.
    """

    name = "dequantize-quantize"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.QUANTIZE})
    example = """
        graph main(%x: i8[1,8]{scale=0.5}) {
          %f = DEQUANTIZE(%x)
          %y: i8[1,8]{scale=0.5, zero=3} = QUANTIZE(%f)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Makes the QUANTIZE read integers."""
        maker = graph.producer(input_of(op, 0))
        if maker is None or graph.kind(maker) is not Op.DEQUANTIZE:
            return None
        source = maker.inputs[0]
        a, c = encoding(graph, source), encoding(graph, op.outputs[0])
        if a is None or c is None or a == c or graph.tensor(source).is_variable:
            return None
        if reason := _through_float(a, c):
            return Refused(reason)
        graph.replace(op, Op.QUANTIZE, [source], version=max(graph.version(op), _REQUANTIZES))
        return Applied("")


class QuantizeQuantize(Rule):
    """QUANTIZE(QUANTIZE(q)) = QUANTIZE(q), or q, for integers q, where every value comes out the same.

    Floats are left alone: kernels make different integers of numbers beyond 2**31 steps, whatever the second may do.
    """

    name = "quantize-quantize"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.QUANTIZE})
    example = """
        graph main(%x: u8[1,8]{scale=0.5, zero=128}) {
          %a: i8[1,8]{scale=0.5} = QUANTIZE(%x)
          %y: i8[1,8]{scale=0.5, zero=-10} = QUANTIZE(%a)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Makes the second QUANTIZE read what the first reads, or removes it."""
        middle = input_of(op, 0)
        maker = graph.producer(middle)
        if maker is None or graph.kind(maker) is not Op.QUANTIZE or graph.tensor(maker.inputs[0]).is_variable:
            return None
        source = maker.inputs[0]
        a, b, c = encoding(graph, source), encoding(graph, middle), encoding(graph, op.outputs[0])
        if a is None or b is None or c is None or b == c:
            return None
        if reason := _in_succession(a, b, c):
            return Refused(reason)
        if a == c:
            both = f"`{graph.name(source)}` and `{graph.name(op.outputs[0])}` are both at the edge of the graph"
            return Applied("the two undo each other") if graph.bypass(op, source) else Refused(both)
        graph.replace(op, Op.QUANTIZE, [source], version=max(graph.version(op), _REQUANTIZES))
        return Applied("")


class QuantizeAboveMoves(Rule):
    """QUANTIZE(move(x)) = move(QUANTIZE(x)), where the QUANTIZE merges exactly with what makes x.

    Up to DEQUANTIZE, QUANTIZE of integers and constants, through RESHAPE, SQUEEZE, EXPAND_DIMS, TRANSPOSE,
    CONCATENATION, PACK, PAD, SLICE, STRIDED_SLICE, GATHER, TILE, REVERSE_V2, RESIZE_NEAREST_NEIGHBOR, DEPTH_TO_SPACE,
    SPACE_TO_DEPTH, BATCH_TO_SPACE_ND and MAX_POOL_2D. DEQUANTIZE before and QUANTIZE behind then go where both have the
    same scale.
    """

    name = "quantize-above-moves"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.QUANTIZE})
    example = """
        graph main(%x: i8[1,4,4,8]{scale=0.5}) {
          %f = DEQUANTIZE(%x)
          %a = RESHAPE(%f, i32[2]=(1, 128))
          %y: i8[1,128]{scale=0.5} = QUANTIZE(%a)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Lets the operators before work on what this QUANTIZE makes."""
        middle = input_of(op, 0)
        maker, target = graph.producer(middle), encoding(graph, op.outputs[0])
        if maker is None or graph.kind(maker) not in _MOVERS or target is None or target.type not in BYTES:
            return None
        if encoding(graph, middle) == target:
            return None  # see RemoveIdentity
        try:
            make = _Ascent(graph, op.outputs[0], target).into(middle, op)
        except _No as no:
            return Refused(no.reason) if no.reason else None
        graph.remove(op)
        make(maker, op.outputs[0])
        return Applied("")


class _Ascent:
    """Finds how a tensor can be made in another encoding. Changes nothing until what it returns is called.

    Args:
        graph: the subgraph.
        like: a tensor with the encoding.
        target: the encoding.
    """

    def __init__(self, graph: Graph, like: int, target: Encoding) -> None:
        self.graph, self.like, self.target = graph, like, target
        self.merges = False

    def into(self, tensor: int, reader: Operator) -> Maker:
        """A way to make ``tensor``, which only ``reader`` reads. Raises _No where there is none, or nothing merges."""
        make = self._tensor(tensor, reader)
        if not self.merges:
            raise _No
        return make

    def _tensor(self, tensor: int, reader: Operator) -> Maker:
        graph = self.graph
        maker = graph.producer(tensor)
        if maker is None:
            return self._constant(tensor)
        if graph.kind(maker) in (Op.DEQUANTIZE, Op.QUANTIZE):
            self.merges = True
            return self._converted(maker, tensor)
        if graph.kind(maker) not in _MOVERS:
            raise _No
        make = self._moved(maker, tensor)
        if shared := graph.why_shared(tensor, reader):
            raise _No(shared)
        return make

    def _moved(self, op: Operator, tensor: int) -> Maker:
        graph, target = self.graph, self.target
        count, version = _MOVERS[graph.kind(op)]
        slots = range(len(op.inputs) if count is None else count)
        if graph.activation(op) != NONE or any(graph.type(op.inputs[slot]) != graph.type(tensor) for slot in slots):
            raise _No
        if any(encoding(graph, op.inputs[slot]) != encoding(graph, tensor) for slot in slots):
            raise _No  # it converts on the way, as CONCATENATION of UINT8 may
        makers = {slot: self._tensor(op.inputs[slot], op) for slot in slots}

        def make(before: Operator, out: int | None) -> int:
            made: dict[int, int] = {}
            for slot, maker in makers.items():
                old = op.inputs[slot]
                if old not in made:
                    made[old] = maker(op, None)
                graph.set_input(op, slot, made[old])
                graph.prune([old])
            if target.type == TensorType.INT8:
                graph.set_version(op, version)
            new = _like(graph, tensor, self.like) if out is None else out
            graph.set_output(op, 0, new)
            return new

        return make

    def _converted(self, op: Operator, tensor: int) -> Maker:
        graph, target, source = self.graph, self.target, op.inputs[0]
        a, b = encoding(graph, source), encoding(graph, tensor)
        if a is None or graph.tensor(source).is_variable:
            raise _No
        reason = _through_float(a, target) if b is None else _in_succession(a, b, target)
        if reason:
            raise _No(f"{graph.where(op)} does not merge with it: {reason}")
        if a == target:
            return lambda before, out: source

        def make(before: Operator, out: int | None) -> int:
            new = _like(graph, tensor, self.like)
            graph.add_operator(Op.QUANTIZE, [source], [new], before=before, version=_REQUANTIZES)
            return new

        return make

    def _constant(self, tensor: int) -> Maker:
        graph, target = self.graph, self.target
        value, a = graph.constant(tensor), encoding(graph, tensor)
        if value is None or (a is None and value.dtype != np.float32):
            raise _No
        if a is None:
            found = quantized(value.astype(np.float64), target) if np.all(np.isfinite(value)) else None
        else:
            kinds = requantizations(value.astype(np.int64), a, target)
            found = kinds[0] if all(np.array_equal(kinds[0], kind) for kind in kinds) else None
        if found is None:
            raise _No(
                f"`{graph.name(tensor)}` holds values halfway between two others, which kernels round differently"
            )
        array, q = to_array(found, target), graph.tensor(self.like).quantization
        return lambda before, out: graph.add_constant(graph.name(tensor), array, quantization=q)


def _like(graph: Graph, shaped: int, encoded: int) -> int:
    """A new tensor with the name and shape of one tensor and the type and quantisation of another."""
    t = graph.tensor(encoded)
    return graph.add_tensor(graph.name(shaped), (), t.type, quantization=t.quantization, like=shaped)


class QuantizeBeforeDivision(Rule):
    """QUANTIZE of each part of x = the parts of QUANTIZE(x), for SPLIT, SPLIT_V and UNPACK.

    All parts are quantised to the same INT8 or UINT8 encoding, and nothing else reads them.
    """

    name = "quantize-before-division"
    numerics = Numerics.EXACT
    kinds = frozenset(_DIVIDERS)
    example = """
        graph main(%x: f32[1,16]) {
          %a, %b = SPLIT(i32[]=1, %x)
          %y: i8[1,8]{scale=0.05} = QUANTIZE(%a)
          %z: i8[1,8]{scale=0.05} = QUANTIZE(%b)
          return %y, %z
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Puts one QUANTIZE in front of the operator."""
        slot, version = _DIVIDERS[graph.kind(op)]
        x = input_of(op, slot)
        first = [next((r for r in graph.readers(t) if graph.kind(r) is Op.QUANTIZE), None) for t in op.outputs]
        converters = [converter for converter in first if converter is not None]
        if x < 0 or len(converters) < len(op.outputs) or len(converters) < 2 or graph.tensor(x).is_variable:
            return None
        targets = [encoding(graph, converter.outputs[0]) for converter in converters]
        target = targets[0]
        if target is None or target.type not in BYTES or any(t != target for t in targets):
            return None
        if not graph.is_float(x) and any(encoding(graph, t) != encoding(graph, x) for t in (x, *op.outputs)):
            return None
        for tensor, converter in zip(op.outputs, converters, strict=True):
            if shared := graph.why_shared(tensor, converter):
                return Refused(shared)
        whole = _like(graph, x, converters[0].outputs[0])
        needed = max(graph.version(converter) for converter in converters)
        graph.add_operator(Op.QUANTIZE, [x], [whole], before=op, version=needed)
        for i, converter in enumerate(converters):
            graph.remove(converter)
            graph.set_output(op, i, converter.outputs[0])
        graph.set_input(op, slot, whole)
        if target.type == TensorType.INT8:
            graph.set_version(op, version)
        return Applied(f"{len(converters)} times")


class QuantizeBehindJoin(Rule):
    """concat(QUANTIZE(p), QUANTIZE(q)) = QUANTIZE(concat(p, q)), where p and q have the same encoding; PACK likewise.

    From integers to integers only: floats are four times as much to join.
    """

    name = "quantize-behind-join"
    numerics = Numerics.EXACT
    kinds = _JOINERS
    example = """
        graph main(%p: i8[1,8]{scale=0.1}, %q: i8[1,8]{scale=0.1}) {
          %a: i8[1,8]{scale=0.2} = QUANTIZE(%p)
          %b: i8[1,8]{scale=0.2} = QUANTIZE(%q)
          %y: i8[1,16]{scale=0.2} = CONCATENATION(%a, %b) {axis=1}
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Puts one QUANTIZE behind the operator."""
        converters = [graph.producer(t) for t in op.inputs]
        found = [c for c in converters if c is not None and graph.kind(c) is Op.QUANTIZE]
        if len(found) < len(op.inputs) or len({id(c) for c in found}) < 2 or graph.activation(op) != NONE:
            return None
        sources = [c.inputs[0] for c in found]
        out = op.outputs[0]
        before, after = encoding(graph, sources[0]), encoding(graph, out)
        if before is None or before.type not in BYTES or any(encoding(graph, s) != before for s in sources):
            return None
        if after is None or any(encoding(graph, t) != after for t in op.inputs):
            return None
        for tensor in op.inputs:
            if shared := graph.why_shared(tensor, op):
                return Refused(shared)
        joined = _like(graph, out, sources[0])
        needed = max(graph.version(c) for c in found)
        version = graph.version(op) if before.type == after.type else (2 if before.type == TensorType.INT8 else 1)
        kind, options = graph.kind(op), op.builtin_options
        graph.add_operator(kind, sources, [joined], before=op, version=version, options=options)
        graph.replace(op, Op.QUANTIZE, [joined], version=needed)
        return Applied(f"{len(found)} times")


RULES: tuple[Rule, ...] = (
    DequantizeQuantize(),
    QuantizeQuantize(),
    QuantizeAboveMoves(),
    QuantizeBeforeDivision(),
    QuantizeBehindJoin(),
)
