"""Slices, joins and splits that can do with fewer of each other.

compose-slices::

    slice(slice(x))  = slice(x)               SLICE, STRIDED_SLICE with positive strides
    gather(gather(x, i), j) = gather(x, i[j]) along one axis, also with a slice along that axis in either place

gather-to-slice: GATHER(x, [k, k + 1, ... k + n]) = SLICE(x).

slice-of-part: SLICE(CONCATENATION(..., x, ...)) = SLICE(x), where all that it takes is part of x.

parts-of-whole: CONCATENATION(SPLIT(x)) = x, PACK(UNPACK(x)) = x; SPLIT(CONCATENATION(x, y)) = x, y;
UNPACK(PACK(x, y)) = x, y.

flatten-concatenation: CONCATENATION(x, CONCATENATION(y, z)) = CONCATENATION(x, y, z).

transpose-to-reshape: TRANSPOSE that moves only axes of size one is RESHAPE.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from litefuse.fusions import xnnpack
from litefuse.fusions.identity import same_quantization
from litefuse.fusions.operands import input_of, integer, integers, option, permutation
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph
from litefuse.graph.graph import Array
from litefuse.graph.infer.movement import spans
from litefuse.graph.infer.site import Facts, ShapeError, Site, Unknown
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

_SLICES = frozenset({Op.SLICE, Op.STRIDED_SLICE})
_TAKES = _SLICES | {Op.GATHER}
_SLICE_VERSIONS = {TensorType.INT8: 2, TensorType.INT16: 4}


@dataclass(frozen=True)
class _Slice:
    """What a SLICE or STRIDED_SLICE takes.

    Attributes:
        ranges: the places along each axis of the input, None for all of them.
        shrink: axes that are dropped, of which one place is taken.
    """

    ranges: tuple[range | None, ...]
    shrink: frozenset[int] = frozenset()

    def along(self) -> list[int]:
        """The axes of which not everything is taken."""
        return [axis for axis, places in enumerate(self.ranges) if places is not None]


def _read_slice(graph: Graph, op: Operator) -> _Slice | None:
    """What a slice with constant bounds and positive strides takes; None for others and for new axes."""
    x = input_of(op, 0)
    shape = graph.shape(x) if x >= 0 else None
    if shape is None or not same_quantization(graph, x, op.outputs[0]) or graph.tensor(x).is_variable:
        return None
    found: list[range | None] = []
    if graph.kind(op) is Op.SLICE:
        begin, size = integers(graph, input_of(op, 1)), integers(graph, input_of(op, 2))
        if begin is None or size is None or not len(begin) == len(size) == len(shape):
            return None
        for b, n, d in zip(begin, size, shape, strict=True):
            if b == 0 and n in (-1, d):
                found.append(None)
            elif b < 0 or (n < 0 and d < 0):
                return None
            else:
                found.append(range(b, d if n < 0 else b + n))
        return None if any(r is not None and not r for r in found) else _Slice(tuple(found))
    begin, end, strides = (integers(graph, input_of(op, slot)) for slot in (1, 2, 3))
    if begin is None or end is None or strides is None or not len(begin) == len(end) == len(strides) <= len(shape):
        return None
    if any(option(op, name) for name in ("ellipsis_mask", "new_axis_mask", "offset")):
        return None
    try:
        taken = spans(Site(Facts(graph), op))
    except (ShapeError, Unknown):
        return None
    shrink = frozenset(axis for axis, span in enumerate(taken) if span.shrink)
    for axis, (span, d) in enumerate(zip(taken, shape, strict=True)):
        masked = (option(op, "begin_mask") & option(op, "end_mask")) >> axis & 1
        whole = axis >= len(strides) or (masked and strides[axis] == 1)
        if (whole or span.places == slice(0, d, 1)) and axis not in shrink:
            found.append(None)
        elif span.places is None or span.places.step < 1:
            return None
        else:
            found.append(range(span.places.start, span.places.stop, span.places.step))
    return None if any(r is not None and not r for r in found) else _Slice(tuple(found), shrink)


def _set_slice(graph: Graph, op: Operator, x: int, taken: _Slice, strided: Operator | None) -> None:
    """Makes a slice take ``taken`` of ``x``, as a STRIDED_SLICE of the version of ``strided`` or as a SLICE."""
    name, shape = graph.name(op.outputs[0]), graph.shape(x) or ()

    def constant(what: str, values: list[int]) -> int:
        return graph.add_constant(f"{name}/{what}", np.array(values, np.int32))

    begin = [0 if r is None else r.start for r in taken.ranges]
    if strided is None:
        size = [d if r is None else len(r) for r, d in zip(taken.ranges, shape, strict=True)]
        inputs = [x, constant("begin", begin), constant("size", size)]
        version = max(_SLICE_VERSIONS.get(graph.type(x), 1), 5 if len(shape) > 4 else 1)
        graph.replace(op, Op.SLICE, inputs, version=version)
        return
    whole = sum(1 << axis for axis, r in enumerate(taken.ranges) if r is None)
    end = [0 if r is None else r.stop for r in taken.ranges]
    strides = [1 if r is None else r.step for r in taken.ranges]
    graph.replace(
        op,
        Op.STRIDED_SLICE,
        [x, constant("begin", begin), constant("end", end), constant("strides", strides)],
        version=graph.version(strided),
        begin_mask=whole,
        end_mask=whole,
        shrink_axis_mask=sum(1 << axis for axis in taken.shrink),
    )


def _after(inner: range | None, outer: range | None) -> range | None:
    """The places that ``outer`` takes of those that ``inner`` took."""
    return inner if outer is None else outer if inner is None else inner[outer.start : outer.stop : outer.step]


@dataclass(frozen=True)
class _Gather:
    """The places along one axis that a GATHER with constant indices takes."""

    axis: int
    places: Array


def _read_gather(graph: Graph, op: Operator) -> _Gather | None:
    x = input_of(op, 0)
    shape, places = graph.shape(x) if x >= 0 else None, graph.constant(input_of(op, 1))
    axis = option(op, "axis")
    if shape is None or places is None or option(op, "batch_dims") or not -len(shape) <= axis < len(shape):
        return None
    axis %= len(shape)
    if places.size == 0 or np.any(places < 0) or shape[axis] < 0 or np.any(places >= shape[axis]):
        return None
    if not same_quantization(graph, x, op.outputs[0]) or graph.tensor(x).is_variable:
        return None
    return _Gather(axis, places)


class ComposeSlices(Rule):
    """slice(slice(x)) = slice(x) and gather(gather(x, i), j) = gather(x, i[j]), and mixed along one axis.

    For constant positions and positive strides. A slice that others read too may be passed over if all of them take
    slices.
    """

    name = "compose-slices"
    numerics = Numerics.EXACT
    kinds = _TAKES
    example = """
        graph main(%x: f32[1,16]) {
          %a = SLICE(%x, i32[2]=(0, 2), i32[2]=(1, 12))
          %y = SLICE(%a, i32[2]=(0, 3), i32[2]=(1, 4))
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Makes the second take its elements from the first's input."""
        middle = op.inputs[0]
        inner = graph.producer(middle)
        if inner is None or graph.kind(inner) not in _TAKES:
            return None
        shared = graph.why_shared(middle, *(r for r in graph.readers(middle) if graph.kind(r) in _TAKES))
        done = self._slices(graph, inner, op, bool(shared)) or self._gathers(graph, inner, op, bool(shared))
        if not done:
            return None
        return Refused(shared) if shared else Applied()

    @staticmethod
    def _slices(graph: Graph, inner: Operator, op: Operator, dry: bool) -> bool:
        if graph.kind(inner) is Op.GATHER or graph.kind(op) is Op.GATHER:
            return False
        first, second = _read_slice(graph, inner), _read_slice(graph, op)
        if first is None or second is None or first.shrink:
            return False
        ranges = tuple(_after(a, b) for a, b in zip(first.ranges, second.ranges, strict=True))
        strided = next((o for o in (op, inner) if graph.kind(o) is Op.STRIDED_SLICE), None)
        if not dry:
            _set_slice(graph, op, inner.inputs[0], _Slice(ranges, second.shrink), strided)
        return True

    @staticmethod
    def _gathers(graph: Graph, inner: Operator, op: Operator, dry: bool) -> bool:
        axis: int | None = None
        places: Array | None = None
        for one in (inner, op):
            if graph.kind(one) is Op.GATHER:
                gather = _read_gather(graph, one)
                if gather is None or axis not in (None, gather.axis) or (one is inner and gather.places.ndim != 1):
                    return False
                axis, following = gather.axis, gather.places.astype(np.int32)
            else:
                taken = _read_slice(graph, one)
                if taken is None or taken.shrink or len(taken.along()) != 1 or axis not in (None, taken.along()[0]):
                    return False
                (axis,) = taken.along()
                following = np.array(taken.ranges[axis], np.int32)
            places = following if places is None else places[following]
        assert places is not None
        gathers = [o for o in (op, inner) if graph.kind(o) is Op.GATHER]
        if not gathers or places.size == 0:
            return False
        if not dry:
            indices = graph.add_constant(f"{graph.name(op.outputs[0])}/indices", places)
            version = graph.version(gathers[0])
            graph.replace(op, Op.GATHER, [inner.inputs[0], indices], version=version, axis=axis)
        return True


class GatherToSlice(Rule):
    """GATHER(x, [k, k + 1, ... k + n]) = SLICE(x), which XNNPACK takes, for the types that it takes."""

    name = "gather-to-slice"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.GATHER})
    example = """
        graph main(%x: f32[1,16]) {
          %a = GATHER(%x, i32[4]=(2, 3, 4, 5)) {axis=1}
          %y = RELU(%a)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Replaces a GATHER between XNNPACK's operators."""
        found = _read_gather(graph, op)
        x = op.inputs[0]
        shape = graph.static_shape(x)
        if found is None or shape is None or found.places.ndim != 1 or graph.is_constant(x):
            return None
        first = int(found.places[0])
        places = range(first, first + len(found.places))
        if not np.array_equal(found.places, np.array(places)):
            return None
        if graph.type(x) not in xnnpack.TYPES or not xnnpack.joins(graph, op):
            return None
        ranges = tuple(places if axis == found.axis else None for axis in range(len(shape)))
        _set_slice(graph, op, x, _Slice(ranges), None)
        return Applied()


# -- parts and wholes --------------------------------------------------------------------------------------------------


def _joined(graph: Graph, tensor: int) -> tuple[Operator, int, list[tuple[int, range]]] | None:
    """The CONCATENATION that makes a tensor, its axis, and its inputs with the places that they take along it."""
    op = graph.producer(tensor)
    shape = graph.shape(tensor)
    if op is None or graph.kind(op) is not Op.CONCATENATION or shape is None or not shape:
        return None
    if option(op, "fused_activation_function"):
        return None
    axis = option(op, "axis") % len(shape)
    parts: list[tuple[int, range]] = []
    start = 0
    for part in op.inputs:
        size = (graph.shape(part) or ())[axis : axis + 1]
        if not size or size[0] < 0 or not same_quantization(graph, part, tensor) or graph.tensor(part).is_variable:
            return None
        parts.append((part, range(start, start + size[0])))
        start += size[0]
    return op, axis, parts


class SliceOfPart(Rule):
    """SLICE(CONCATENATION(..., x, ...)) = SLICE(x), where all that it takes is part of x; also STRIDED_SLICE."""

    name = "slice-of-part"
    numerics = Numerics.EXACT
    kinds = _SLICES
    example = """
        graph main(%a: f32[1,8], %b: f32[1,8]) {
          %c = CONCATENATION(%a, %b) {axis=1}
          %y = SLICE(%c, i32[2]=(0, 10), i32[2]=(1, 4))
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Makes the slice read the part."""
        joined = _joined(graph, op.inputs[0])
        taken = _read_slice(graph, op) if joined is not None else None
        if joined is None or taken is None:
            return None
        join, axis, parts = joined
        places = taken.ranges[axis]
        if not places:
            return None
        for part, whole in parts:
            if places[0] in whole and places[-1] in whole:
                offset = whole.start
                moved = range(places.start - offset, places.stop - offset, places.step)
                is_all = moved == range(len(whole)) and axis not in taken.shrink
                vanishes = is_all and taken.along() == [axis]
                if not vanishes and (shared := graph.why_shared(join.outputs[0], op)):
                    return Refused(shared)  # nothing would be saved
                ranges = (*taken.ranges[:axis], None if is_all else moved, *taken.ranges[axis + 1 :])
                strided = op if graph.kind(op) is Op.STRIDED_SLICE else None
                _set_slice(graph, op, part, _Slice(ranges, taken.shrink), strided)
                return Applied()
        return None


class PartsOfWhole(Rule):
    """What is split and joined again, or joined and split again, at the same places is there already.

    CONCATENATION(SPLIT(x)) = x, PACK(UNPACK(x)) = x, SPLIT(CONCATENATION(x, y)) = x, y, UNPACK(PACK(x, y)) = x, y; also
    with SPLIT_V.
    """

    name = "parts-of-whole"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.CONCATENATION, Op.PACK, Op.SPLIT, Op.SPLIT_V, Op.UNPACK})
    example = """
        graph main(%x: f32[1,16]) {
          %a, %b = SPLIT(i32[]=1, %x)
          %c = CONCATENATION(%a, %b) {axis=1}
          %y = TANH(%c)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Bypasses the second operator."""
        kind = graph.kind(op)
        if kind in (Op.CONCATENATION, Op.PACK):
            whole = self._whole(graph, op)
            if whole is None or not same_quantization(graph, whole, op.outputs[0]):
                return None
            if graph.bypass(op, whole):
                return Applied()
            return Refused(f"`{graph.name(whole)}` and its copy are both inputs or outputs of the model")
        parts = self._parts(graph, op)
        if parts is None:
            return None
        if any(t in graph.outputs for t in op.outputs):
            return Refused("its results are outputs of the model, which an operator must write")
        for tensor, part in zip(op.outputs, parts, strict=True):
            graph.replace_uses(tensor, part)
        graph.prune(op.outputs)
        return Applied()

    @staticmethod
    def _whole(graph: Graph, op: Operator) -> int | None:
        """The tensor whose parts are joined, if all are, in order."""
        split = graph.producer(op.inputs[0]) if op.inputs else None
        if split is None or list(op.inputs) != list(split.outputs) or option(op, "fused_activation_function"):
            return None
        kind, before = graph.kind(op), graph.kind(split)
        if kind is Op.PACK and before is Op.UNPACK:
            x, axis = split.inputs[0], option(split, "axis")
        elif kind is Op.CONCATENATION and before in (Op.SPLIT, Op.SPLIT_V):
            slot = 1 if before is Op.SPLIT else 0
            found = integer(graph, input_of(split, 2 - 2 * slot))
            if found is None:
                return None
            x, axis = split.inputs[slot], found
        else:
            return None
        rank = len(graph.shape(x) or ())
        same = rank > 0 and axis % rank == option(op, "axis") % rank
        return x if same and not graph.tensor(x).is_variable else None

    @staticmethod
    def _parts(graph: Graph, op: Operator) -> list[int] | None:
        """The tensors that were joined, if they are what is split off."""
        kind = graph.kind(op)
        if kind is Op.UNPACK:
            whole = op.inputs[0]
            pack = graph.producer(whole)
            rank = len(graph.shape(whole) or ())
            if pack is None or graph.kind(pack) is not Op.PACK or not rank or len(pack.inputs) != len(op.outputs):
                return None
            same = option(pack, "axis") % rank == option(op, "axis") % rank
            parts = list(pack.inputs)
        else:
            slot = 1 if kind is Op.SPLIT else 0
            whole, axis = op.inputs[slot], integer(graph, input_of(op, 2 - 2 * slot))
            joined = _joined(graph, whole)
            if joined is None or axis is None or len(joined[2]) != len(op.outputs):
                return None
            rank = len(graph.shape(whole) or ())
            parts = [part for part, _ in joined[2]]
            same = axis % rank == joined[1] and all(
                (graph.shape(t) or ())[axis % rank : axis % rank + 1] == (len(places),)
                for t, (_, places) in zip(op.outputs, joined[2], strict=True)
            )
        fits = all(same_quantization(graph, a, b) for a, b in zip(parts, op.outputs, strict=True))
        return parts if same and fits and not any(graph.tensor(t).is_variable for t in parts) else None


class FlattenConcatenation(Rule):
    """CONCATENATION(x, CONCATENATION(y, z)) = CONCATENATION(x, y, z), unless XNNPACK would no longer take it.

    XNNPACK joins five tensors at most.
    """

    name = "flatten-concatenation"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.CONCATENATION})
    example = """
        graph main(%x: f32[1,8], %y: f32[1,8], %z: f32[1,8]) {
          %a = CONCATENATION(%y, %z) {axis=1}
          %b = CONCATENATION(%x, %a) {axis=1}
          return %b
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Takes the inputs of one inner CONCATENATION over."""
        rank = len(graph.shape(op.outputs[0]) or ())
        refusal: Refused | None = None
        for middle in dict.fromkeys(op.inputs):
            joined = _joined(graph, middle)
            if joined is None or not rank or joined[1] != option(op, "axis") % rank:
                continue
            if op.inputs.count(middle) != 1 or not same_quantization(graph, middle, op.outputs[0]):
                continue
            parts = [part for part, _ in joined[2]]
            count = len(op.inputs) + len(parts) - 1
            if xnnpack.takes(graph, op) and count > xnnpack.MOST_CONCATENATED:
                refusal = Refused(
                    f"XNNPACK joins {xnnpack.MOST_CONCATENATED} tensors at most, and this would be {count}"
                )
                continue
            if shared := graph.why_shared(middle, op):
                refusal = Refused(shared)
                continue
            slot = op.inputs.index(middle)
            inputs = [*op.inputs[:slot], *parts, *op.inputs[slot + 1 :]]
            graph.replace(op, Op.CONCATENATION, inputs, version=graph.version(op), options=op.builtin_options)
            return Applied()
        return refusal


class TransposeToReshape(Rule):
    """TRANSPOSE that moves only axes of size one is RESHAPE, which need not touch the elements."""

    name = "transpose-to-reshape"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.TRANSPOSE})
    example = """
        graph main(%x: f32[1,1,8,16]) {
          %y = TRANSPOSE(%x, i32[4]=(0, 2, 1, 3))
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Replaces the operator when the other axes keep their order."""
        order, shape = permutation(graph, op), graph.shape(op.inputs[0])
        if (
            order is None
            or shape is None
            or len(order) != len(shape)
            or not same_quantization(graph, op.inputs[0], op.outputs[0])
        ):
            return None
        moved = [axis for axis in order if shape[axis] != 1]
        if moved != sorted(moved) or order == sorted(order) or shape.count(-1) > 1:
            return None
        target = [shape[axis] for axis in order]
        constant = graph.add_constant(f"{graph.name(op.outputs[0])}/shape", np.array(target, np.int32))
        graph.replace(op, Op.RESHAPE, [op.inputs[0], constant], new_shape=target)
        return Applied()


RULES: tuple[Rule, ...] = (
    PartsOfWhole(),
    SliceOfPart(),
    ComposeSlices(),
    GatherToSlice(),
    FlattenConcatenation(),
    TransposeToReshape(),
)
