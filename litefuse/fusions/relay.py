"""How operators compute in another layout of their tensors.

:func:`relay` takes the layout that one input or output of an operator shall have, and says which layouts its other
tensors then have, and which of its constants and options change. It knows operators that compute element by element,
move elements, or work along axes that the layout keeps apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from litefuse.fusions.layout import Impossible, Layout, Order, Reshaped, Shape, Shuffled
from litefuse.fusions.operands import RESHAPES, input_of, integer, integers, option, paddings
from litefuse.fusions.rule import Numerics
from litefuse.graph import Graph, OperatorKind
from litefuse.graph.graph import Array
from litefuse.schema.enums import BuiltinOperator, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator
from litefuse.schema.types import FLOATS

# Kernels that broadcast, slice and reduce do so in four dimensions at least; beyond that it depends on the kernel.
SAFE_RANK = 4


@dataclass
class Relaid:
    """How an operator computes in another layout.

    Attributes:
        layouts: the layouts of the tensors that it then reads and writes; all others stay as they are.
        constants: new values of constant inputs, by slot.
        options: options that change.
        kind: the operator to use instead.
        numerics: how its results relate to those in the old layout.
        rows: in how many runs of neighbouring elements it computes, in the old layout and in the new one; (0, 0) for
            operators that go through all elements at once. Short runs are slow.
    """

    layouts: dict[int, Layout] = field(default_factory=dict)
    constants: dict[int, Array] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    kind: OperatorKind | None = None
    numerics: Numerics = Numerics.EXACT
    rows: tuple[int, int] = (0, 0)

    def place(self, graph: Graph, tensor: int, layout: Layout | None, slot: int | None = None) -> None:
        """Records the layout of a tensor, or the new value when it is a constant."""
        if layout is None or layout.is_identity:
            return
        q = graph.quantization(tensor)
        if q is not None and _per_axis(graph, tensor):
            # Quantised slice by slice along an axis, which must stay.
            axis = None if q.details is not None else q.quantized_dimension
            if axis is None or not isinstance(layout, Shuffled) or axis >= len(layout.old) - 1:
                raise Impossible
        value = graph.constant(tensor)
        if value is not None and slot is not None:
            self.constants[slot] = layout.moved(value)
        elif graph.is_constant(tensor) or self.layouts.setdefault(tensor, layout) != layout:
            raise Impossible


def _named(names: str) -> frozenset[OperatorKind]:
    return frozenset(BuiltinOperator[name] for name in names.split())


UNARY: frozenset[OperatorKind] = _named(
    "ABS CAST CEIL COS DEQUANTIZE ELU EXP FLOOR GELU HARD_SWISH LEAKY_RELU LOG LOGICAL_NOT LOGISTIC NEG QUANTIZE RELU "
    "RELU6 RELU_0_TO_1 RELU_N1_TO_1 ROUND RSQRT SIGN SIN SQRT SQUARE TANH ZEROS_LIKE"
)
BINARY: frozenset[OperatorKind] = _named(
    "ADD ATAN2 DIV EQUAL FLOOR_DIV FLOOR_MOD GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_OR MAXIMUM "
    "MINIMUM MUL NOT_EQUAL POW PRELU SQUARED_DIFFERENCE SUB"
)
_SELECTIONS = frozenset({Op.SELECT, Op.SELECT_V2})
ELEMENTWISE = UNARY | BINARY | _SELECTIONS
# Kernels may compute the last elements of a tensor by other code than the rest: vector instructions for the one, the
# C library for the other. So the place of an element in memory matters to what these give, in the last bits.
_BY_VECTORS = _named(
    "ATAN2 COS ELU EXP GELU HARD_SWISH L2_NORMALIZATION LOG LOGISTIC LOG_SOFTMAX POW RSQRT SIN SOFTMAX TANH"
)
_REDUCTIONS = frozenset({Op.MEAN, Op.SUM, Op.REDUCE_PROD, Op.REDUCE_MAX, Op.REDUCE_MIN, Op.REDUCE_ANY, Op.REDUCE_ALL})
_LAST_AXIS = frozenset({Op.SOFTMAX, Op.LOG_SOFTMAX, Op.L2_NORMALIZATION})


class _Call:
    """One operator and the tensor whose layout is given."""

    def __init__(self, graph: Graph, op: Operator, tensor: int, layout: Layout) -> None:
        self.graph, self.op, self.tensor, self.layout = graph, op, tensor, layout
        self.kind = graph.kind(op)
        self.relaid = Relaid()

    def shape(self, tensor: int) -> Shape:
        """The shape of a tensor."""
        shape = self.graph.shape(tensor) if tensor >= 0 else None
        if shape is None:
            raise Impossible
        return shape

    @property
    def from_output(self) -> bool:
        """Whether the layout is that of an output."""
        return self.tensor in self.op.outputs

    def known(self, found: list[int] | None) -> list[int]:
        """Constants that must be known."""
        if found is None:
            raise Impossible
        return found

    def place(self, tensor: int, layout: Layout | None, slot: int | None = None) -> None:
        """See Relaid.place."""
        self.relaid.place(self.graph, tensor, layout, slot)

    def main(self, tensor: int) -> Layout:
        """The layout of an input or output of equal rank, given that of another, from which it differs in length only.

        The axes along which they differ are in it where they are in the given one.
        """
        shape = self.shape(tensor)
        if len(shape) != len(self.layout.old):
            raise Impossible
        return self.layout.sibling(shape)

    def runs_from(self, layout: Layout, axes: Iterable[int], parts: int = 1) -> None:
        """Counts the runs of an operator that moves elements in one piece from the last of some axes on."""
        axes = list(axes)
        if axes and not layout.keeps_places:
            counts = (_elements(shape[: max(p)]) for shape, p in self._both(layout, axes))
            self.relaid.rows = tuple(parts * n for n in counts)  # type: ignore[assignment]

    def runs_with(self, layout: Layout, marks: Sequence[Hashable]) -> None:
        """Counts the runs of an operator that goes along axes of equal marks at once."""
        if layout.keeps_places or not layout.is_view:
            return
        found = []
        for shape, places in self._both(layout, range(len(marks))):
            by_place = [marks[places.index(p)] for p in range(len(shape))]
            last = len(shape) - 1
            while last >= 0 and (shape[last] == 1 or by_place[last] == by_place[-1]):
                last -= 1
            found.append(_elements(shape[: last + 1]) if last >= 0 else 0)
        self.relaid.rows = found[0], found[1]

    @staticmethod
    def _both(layout: Layout, axes: Iterable[int]) -> list[tuple[Shape, list[int]]]:
        return [(layout.old, list(axes)), (layout.new, [layout.axis(a) for a in axes])]


def _elements(shape: Shape) -> int:
    return math.prod(max(d, 1) for d in shape)


def relay(graph: Graph, op: Operator, tensor: int, layout: Layout) -> Relaid | None:
    """How ``op`` computes when ``tensor``, one of its inputs or outputs, is in ``layout``; None when it cannot.

    ``tensor`` must be computed. Inputs that are broadcast, and outputs of other rank, may stay in their old layout:
    only what is among the result's ``layouts`` changes.
    """
    handler = _HANDLERS.get(graph.kind(op))
    if handler is None or graph.has_state(op) or graph.is_kept(op) or min(op.outputs, default=-1) < 0:
        return None
    data = op.inputs[:1] if graph.kind(op) is Op.FULLY_CONNECTED else op.inputs
    if any(_per_axis(graph, t) for t in (*data, *op.outputs) if t >= 0):
        return None
    call = _Call(graph, op, tensor, layout)
    try:
        handler(call)
    except Impossible:
        return None
    relaid = call.relaid
    if relaid.layouts.get(tensor) != layout or any(not _fits(lay) for lay in relaid.layouts.values()):
        return None
    return relaid


def _fits(layout: Layout) -> bool:
    return 0 not in layout.old and len(layout.new) <= max(SAFE_RANK, len(layout.old))


def _rank(graph: Graph, tensor: int) -> int:
    return len(graph.shape(tensor) or ())


def _per_axis(graph: Graph, tensor: int) -> bool:
    q = graph.quantization(tensor)
    return q is not None and (q.details is not None or (q.scale is not None and len(q.scale) > 1))


def _is_float(call: _Call) -> bool:
    return any(call.graph.type(t) in FLOATS for t in (*call.op.inputs, *call.op.outputs) if t >= 0)


def _elementwise(call: _Call) -> None:
    graph, op = call.graph, call.op
    out = op.outputs[0]
    shape = call.shape(out)
    if call.shape(call.tensor) != shape:
        raise Impossible  # from an operand that is broadcast nothing follows for the result
    count = 1 if call.kind in UNARY else 2 if call.kind in BINARY else 3
    if len([t for t in op.inputs if t >= 0]) != count:
        raise Impossible
    if call.kind is Op.SELECT and any(call.shape(t) != shape for t in op.inputs):
        raise Impossible
    call.place(out, call.layout)
    operands = [(1,) * (len(shape) - len(call.shape(t))) + call.shape(t) for t in op.inputs[:count]]
    call.runs_with(call.layout, [tuple(o[a] == 1 for o in operands) for a in range(len(shape))])
    for slot, t in enumerate(op.inputs[:count]):
        value = graph.constant(t)
        if value is not None and isinstance(call.layout, Order):
            # A constant can be given the axes that it lacks.
            if value.size > 1 and not _stays(call.layout, value.ndim):
                full = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
                call.relaid.constants[slot] = call.layout.sibling(full.shape).moved(full)
        else:
            call.place(t, call.layout.operand(call.shape(t)), slot)
    if call.layout.keeps_places:
        return
    if call.kind in _BY_VECTORS and _is_float(call):
        call.relaid.numerics = Numerics.REASSOCIATED
    elif call.kind is Op.DEQUANTIZE and _has_zero_point(graph, op.inputs[0]):
        # Vectors give s * q + (-s * z), which rounds otherwise than the s * (q - z) of the last elements.
        call.relaid.numerics = Numerics.REASSOCIATED
    elif call.kind is Op.QUANTIZE and graph.is_float(op.inputs[0]):
        call.relaid.numerics = Numerics.QUANTIZED


def _has_zero_point(graph: Graph, tensor: int) -> bool:
    q = graph.quantization(tensor)
    return q is not None and q.zero_point is not None and bool(np.any(q.zero_point))


def _stays(layout: Order, count: int) -> bool:
    """Whether the last ``count`` axes stay where they are."""
    rank = len(layout.order)
    return layout.order[rank - count :] == tuple(range(rank - count, rank))


def _concatenation(call: _Call) -> None:
    op = call.op
    axis = option(op, "axis") % max(len(call.layout.old), 1)
    place = call.layout.axis(axis)
    for slot, t in enumerate(op.inputs):
        call.place(t, call.main(t), slot)
    whole = call.main(op.outputs[0])
    call.place(op.outputs[0], whole)
    call.runs_from(whole, [axis], len(op.inputs))
    call.relaid.options["axis"] = place


def _split(call: _Call) -> None:
    op = call.op
    slot_x, slot_axis = (1, 0) if call.kind is Op.SPLIT else (0, 2)
    axis = integer(call.graph, input_of(op, slot_axis))
    x = op.inputs[slot_x]
    if axis is None or call.graph.is_constant(x):
        raise Impossible
    axis %= max(len(call.layout.old), 1)
    place = call.layout.axis(axis)
    for t in (x, *op.outputs):
        call.place(t, call.main(t))
    call.runs_from(call.main(x), [axis], len(op.outputs))
    call.relaid.constants[slot_axis] = np.full(call.shape(op.inputs[slot_axis]), place, np.int32)


def _pad(call: _Call) -> None:
    graph, op = call.graph, call.op
    amounts = paddings(graph, op)
    if amounts is None:
        raise Impossible
    before, after = call.main(op.inputs[0]), call.main(op.outputs[0])
    moved = np.zeros((len(before.new), 2), np.int32)
    for axis, row in enumerate(amounts):
        if np.any(row):
            moved[call.layout.axis(axis)] = row
    call.place(op.inputs[0], before)
    call.place(op.outputs[0], after)
    call.runs_with(after, [*range(len(amounts))])
    call.relaid.constants[1] = moved


def _slice(call: _Call) -> None:
    graph, op = call.graph, call.op
    begin, size = (call.known(integers(graph, input_of(op, slot))) for slot in (1, 2))
    shape = call.shape(op.inputs[0])
    before, after = call.main(op.inputs[0]), call.main(op.outputs[0])
    axes = []
    begins, sizes = [0] * len(before.new), list(before.new)  # -1, for dimensions that are not known, is everything
    for axis, (b, n, d) in enumerate(zip(begin, size, shape, strict=True)):
        if b != 0 or n not in (-1, d):
            place = call.layout.axis(axis)
            begins[place], sizes[place] = b, n
            axes.append(axis)
    call.runs_from(after, axes)
    call.place(op.inputs[0], before)
    call.place(op.outputs[0], after)
    dtype = graph.constant(op.inputs[1]).dtype  # type: ignore[union-attr]
    call.relaid.constants |= {1: np.array(begins, dtype), 2: np.array(sizes, dtype)}


def _strided_slice(call: _Call) -> None:
    graph, op = call.graph, call.op
    begin, end, stride = (call.known(integers(graph, input_of(op, slot))) for slot in (1, 2, 3))
    shape = call.shape(op.inputs[0])
    if len(begin) != len(shape) or any(option(op, n) for n in ("ellipsis_mask", "new_axis_mask", "offset")):
        raise Impossible
    shrink = [axis for axis in range(len(shape)) if option(op, "shrink_axis_mask") >> axis & 1]
    if shrink and call.from_output:
        raise Impossible
    before = call.main(op.inputs[0])
    rank = len(before.new)
    begins, ends, strides, masks = [0] * rank, [0] * rank, [1] * rank, dict.fromkeys(("begin", "end"), (1 << rank) - 1)
    shrunk = 0
    axes: list[int] = []
    for axis in range(len(shape)):
        masked = {name: option(op, f"{name}_mask") >> axis & 1 for name in masks}
        whole = masked["begin"] and masked["end"] and stride[axis] == 1 and axis not in shrink
        if whole:
            continue
        place = call.layout.axis(axis)
        axes.append(axis)
        begins[place], ends[place], strides[place] = begin[axis], end[axis], stride[axis]
        for name in masks:
            masks[name] &= ~((1 - masked[name]) << place)
        shrunk |= (axis in shrink) << place
    call.runs_from(before, axes)
    left = before.without(shrink)
    after = left.sibling(call.shape(op.outputs[0])) if len(left.old) == _rank(graph, op.outputs[0]) else None
    if after is None:
        raise Impossible
    call.place(op.inputs[0], before)
    call.place(op.outputs[0], after)
    call.relaid.constants |= {
        1: np.array(begins, np.int32),
        2: np.array(ends, np.int32),
        3: np.array(strides, np.int32),
    }
    call.relaid.options |= {"begin_mask": masks["begin"], "end_mask": masks["end"], "shrink_axis_mask": shrunk}


def _reduction(call: _Call) -> None:
    graph, op = call.graph, call.op
    x, out = op.inputs[0], op.outputs[0]
    shape = call.shape(x)
    rank = len(shape)
    axes = sorted({a % max(rank, 1) for a in call.known(integers(graph, input_of(op, 1)))})
    keep = bool(option(op, "keep_dims"))
    if not axes or (call.from_output and not keep):
        raise Impossible
    before = call.layout.sibling(shape) if call.from_output else call.layout
    places = [call.layout.axis(a) for a in axes]
    if keep:
        after = call.main(out)
    else:
        after = before.without(axes)
        if not after.is_identity:
            # Axes of size one that only the layout brings may go along with the reduced ones.
            extra = _superfluous(after)
            if extra is not None:
                left = [p for p in range(len(before.new)) if p not in places]
                places += [left[i] for i in extra]
                after = Reshaped(after.old, after.old)
    call.place(x, before)
    call.place(out, after)
    call.runs_with(before, [a in axes for a in range(rank)])
    call.relaid.constants[1] = np.array(sorted(places), np.int32)
    call.relaid.numerics = _of_reduction(call, axes, sorted(places), before)


def _superfluous(layout: Layout) -> list[int] | None:
    """The axes of size one that have to go for the new shape to become the old one, or None."""
    if not isinstance(layout, Reshaped):
        return None
    gone = []
    rest = list(layout.old)
    for place, size in enumerate(layout.new):
        if rest and rest[0] == size:
            rest.pop(0)
        elif size == 1:
            gone.append(place)
        else:
            return None
    return gone if not rest else None


def _of_reduction(call: _Call, axes: list[int], places: list[int], before: Layout) -> Numerics:
    if call.kind in (Op.REDUCE_MAX, Op.REDUCE_MIN, Op.REDUCE_ANY, Op.REDUCE_ALL):
        return Numerics.EXACT
    if _is_float(call):
        return Numerics.REASSOCIATED
    if all(call.graph.quantization(t) is None for t in (call.op.inputs[0], call.op.outputs[0])):
        return Numerics.EXACT  # integers, which wrap around in any order
    if call.kind is Op.REDUCE_PROD:
        raise Impossible  # rounds after each factor
    # MEAN of 8 bits over the middle axes of four has a kernel of its own, which rounds in another way.
    special = [len(shape) == 4 and found == [1, 2] for shape, found in ((before.old, axes), (before.new, places))]
    same = call.kind is Op.MEAN and (not option(call.op, "keep_dims") or special[0] == special[1])
    return Numerics.EXACT if same else Numerics.QUANTIZED


def _last_axis(call: _Call) -> None:
    x, out = call.op.inputs[0], call.op.outputs[0]
    last = len(call.layout.old) - 1
    if call.layout.axis(last) != len(call.layout.new) - 1:
        raise Impossible
    call.place(x, call.layout)
    call.place(out, call.layout)
    if _is_float(call) and not call.layout.keeps_places:
        call.relaid.numerics = Numerics.REASSOCIATED


def _fully_connected(call: _Call) -> None:
    op, layout = call.op, call.layout
    x, out, weights = op.inputs[0], op.outputs[0], op.inputs[1]
    if weights == call.tensor or option(op, "weights_format"):
        raise Impossible
    if _is_float(call) and not layout.keeps_places:
        call.relaid.numerics = Numerics.REASSOCIATED  # rows, or what is added up, in another order
    shape = call.shape(weights)
    shuffled = _flattened(layout, shape[-1:]) if x == call.tensor else None
    if shuffled is not None:
        call.place(x, layout)
        call.place(weights, Shuffled(shape, *shuffled), 1)
        return
    if not option(op, "keep_num_dims"):
        raise Impossible
    before, after = call.main(x), call.main(out)
    for one in (before, after):
        if one.axis(len(one.old) - 1) != len(one.new) - 1:
            raise Impossible
    call.place(x, before)
    call.place(out, after)


def _flattened(layout: Layout, last: Shape) -> tuple[Shape, tuple[int, ...]] | None:
    """What becomes of the last axis when a tensor is flattened to rows of a length: the axes in it, and their order."""
    if isinstance(layout, Shuffled):
        return (layout.inner, layout.order) if layout.old[-1:] == last else None
    if not isinstance(layout, Order):
        return None
    for first in reversed(range(len(layout.old))):
        inner = layout.old[first:]
        if min(inner) > 0 and (math.prod(inner),) == last:
            kept = layout.order[:first] == tuple(range(first))
            return (inner, tuple(a - first for a in layout.order[first:])) if kept else None
    return None


def _tile(call: _Call) -> None:
    graph, op = call.graph, call.op
    counts = call.known(integers(graph, input_of(op, 1)))
    before, after = call.main(op.inputs[0]), call.main(op.outputs[0])
    moved = [1] * len(before.new)
    for axis, count in enumerate(counts):
        if count != 1:
            moved[call.layout.axis(axis)] = count
    call.place(op.inputs[0], before)
    call.place(op.outputs[0], after)
    call.runs_from(before, [a for a, count in enumerate(counts) if count != 1])
    call.relaid.constants[1] = np.array(moved, np.int32)


def _reverse(call: _Call) -> None:
    axes = [a % max(len(call.layout.old), 1) for a in call.known(integers(call.graph, input_of(call.op, 1)))]
    call.place(call.op.inputs[0], call.layout)
    call.place(call.op.outputs[0], call.layout)
    call.relaid.constants[1] = np.array([call.layout.axis(a) for a in axes], np.int32)


def _gather(call: _Call) -> None:
    op = call.op
    places = call.graph.constant(input_of(op, 1))
    axis = option(op, "axis") % max(len(call.layout.old), 1)
    if places is None or places.ndim != 1 or option(op, "batch_dims") or call.graph.is_constant(op.inputs[0]):
        raise Impossible
    before, after = call.main(op.inputs[0]), call.main(op.outputs[0])
    call.place(op.inputs[0], before)
    call.place(op.outputs[0], after)
    call.runs_from(after, [axis])
    call.relaid.options["axis"] = call.layout.axis(axis)


def _arg(call: _Call) -> None:
    axis = integer(call.graph, input_of(call.op, 1))
    if axis is None or call.from_output:
        raise Impossible
    axis %= max(len(call.layout.old), 1)
    call.place(call.op.inputs[0], call.layout)
    call.place(call.op.outputs[0], call.layout.without([axis]))
    shape = call.shape(call.op.inputs[1])
    call.relaid.constants[1] = np.full(shape, call.layout.axis(axis), np.int32)


def _pack(call: _Call) -> None:
    op, out = call.op, call.op.outputs[0]
    axis = option(op, "axis") % max(len(call.shape(out)), 1)
    if call.from_output:
        whole, place = call.layout, call.layout.axis(axis)
        single = whole.without([axis])
    else:
        single = call.layout
        whole, place = single.with_axis(axis, len(op.inputs))
    for slot, t in enumerate(op.inputs):
        call.place(t, single.sibling(call.shape(t)), slot)
    call.place(out, whole)
    call.runs_from(whole, [axis], len(op.inputs))
    call.relaid.options["axis"] = place


def _unpack(call: _Call) -> None:
    op, x = call.op, call.op.inputs[0]
    axis = option(op, "axis") % max(len(call.shape(x)), 1)
    if call.from_output:
        single = call.layout
        whole, place = single.with_axis(axis, len(op.outputs))
    else:
        whole, place = call.layout, call.layout.axis(axis)
        single = whole.without([axis])
    call.place(x, whole)
    for t in op.outputs:
        call.place(t, single)
    call.runs_from(whole, [axis], len(op.outputs))
    call.relaid.options["axis"] = place


def _reshape(call: _Call) -> None:
    op, layout = call.op, call.layout
    x, out = op.inputs[0], op.outputs[0]
    if not isinstance(layout, Order) or call.graph.is_constant(x):
        raise Impossible
    source, target = call.shape(x), call.shape(out)
    rows = len(target) - 1
    if not call.from_output and len(source) - rows > 1 and target[:rows] == source[:rows]:
        flattened = _flattened(layout, target[rows:])
        if flattened is not None and len(flattened[0]) == len(source) - rows:
            call.place(x, layout)
            call.place(out, Shuffled(target, *flattened))
            return
    other = layout.through_reshape(source if call.from_output else target)
    before, after = (other, layout) if call.from_output else (layout, other)
    call.place(x, before)
    call.place(out, after)
    if call.kind is Op.RESHAPE and after.is_identity:
        return  # the target, which need not be known, is as before
    if after.new.count(-1) > 1:
        raise Impossible
    call.relaid.kind = Op.RESHAPE
    call.relaid.constants[1] = np.array(after.new, np.int32)
    call.relaid.options["new_shape"] = list(after.new)


_HANDLERS: dict[OperatorKind, Callable[[_Call], None]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(_LAST_AXIS, _last_axis),
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys((Op.PAD, Op.PADV2, Op.MIRROR_PAD), _pad),
    **dict.fromkeys((Op.SPLIT, Op.SPLIT_V), _split),
    **dict.fromkeys((Op.ARG_MAX, Op.ARG_MIN), _arg),
    Op.CONCATENATION: _concatenation,
    Op.SLICE: _slice,
    Op.STRIDED_SLICE: _strided_slice,
    Op.FULLY_CONNECTED: _fully_connected,
    Op.TILE: _tile,
    Op.REVERSE_V2: _reverse,
    Op.GATHER: _gather,
    Op.PACK: _pack,
    Op.UNPACK: _unpack,
}


def transposable(type: TensorType, shape: Sequence[int]) -> bool:
    """Whether TRANSPOSE and RESHAPE take tensors of this type and rank in every runtime of interest."""
    return type in _MOVABLE and len(shape) <= 6


_MOVABLE = frozenset(
    {TensorType.FLOAT32, TensorType.INT8, TensorType.UINT8, TensorType.INT16, TensorType.INT32, TensorType.INT64}
)
