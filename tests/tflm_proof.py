"""Proves that tensors which share memory in a plan for TensorFlow Lite Micro do so without harm.

TFLM follows a plan blindly, so this looks at every two tensors that live at the same time and overlap in the arena, and
wants one of two explanations, found from the model and not from the planner:

- **Views.** The shared bytes hold the same values in both: a RESHAPE and what it reads, a piece of a CONCATENATION or
  SPLIT whose outer dimensions are 1, or a chain of these. Kernels copy such bytes onto themselves.
- **In place.** One is read for the last time by the operator that computes the other, both begin at the same byte, and
  TFLM's portable kernel reads element i before it writes element i and never again.

Everything else is a fault. Planners are not consulted, so that their mistakes are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from litefuse.arena import tflm
from litefuse.graph.graph import Graph
from litefuse.schema.enums import ActivationFunctionType, BuiltinOperator
from litefuse.schema.operators import Op
from litefuse.schema.tables import Model, Operator, Tensor

_NAMES = (
    "ABS CEIL COS EXP FLOOR LOG NEG ROUND RSQRT SIN SQRT SQUARE LOGICAL_NOT RELU RELU6 LEAKY_RELU ELU HARD_SWISH "
    "LOGISTIC TANH QUANTIZE DEQUANTIZE CAST ADD SUB MUL DIV MAXIMUM MINIMUM SQUARED_DIFFERENCE FLOOR_DIV FLOOR_MOD "
    "LOGICAL_AND LOGICAL_OR PRELU SELECT_V2 ADD_N EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL SOFTMAX "
    "LOG_SOFTMAX L2_NORMALIZATION ZEROS_LIKE"
)
IN_PLACE = frozenset(BuiltinOperator[name] for name in _NAMES.split())
"""Operators whose portable TFLM kernels may write their result over an input of the result's shape."""

_SAME_BYTES = frozenset({Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS})
_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


class _Edge(NamedTuple):
    """That `tensor` would begin `start` bytes after the tensor that holds this edge, were both in one place."""

    tensor: int
    start: int


def faults(model: Model, offsets: Mapping[tuple[int, int], int]) -> list[str]:
    """What is wrong with a plan for TFLM, one line each; an empty list means that results stay the same.

    Args:
        model: the model, with its operators in the order in which they will run.
        offsets: bytes from the start of the arena by (subgraph, tensor). Tensors without one are placed by TFLM around
            the others and cannot clash.
    """
    found: list[str] = []
    planned: list[tflm.Block] = []
    known = {(b.subgraph, b.tensor): b for b in tflm.blocks(model) if b.tensor >= 0}
    for (s, t), offset in offsets.items():
        if not (0 <= s < len(model.subgraphs) and 0 <= t < len(model.subgraphs[s].tensors)):
            found.append(f"there is no tensor {t} in subgraph {s}")
        elif offset < 0:
            found.append(f"{_name(model, s, t)}: offset {offset} is negative")
        elif offset % tflm.ALIGNMENT:
            found.append(f"{_name(model, s, t)}: offset {offset} is not a multiple of {tflm.ALIGNMENT}")
        if (s, t) in known:
            planned.append(known[s, t])
    proofs = [_Views(Graph(model, s)) for s in range(len(model.subgraphs))]
    for a, b in _overlapping(planned, offsets):
        if a.subgraph == b.subgraph and proofs[a.subgraph].explain(a, b, offsets):
            continue
        found.append(
            f"{_name(model, a.subgraph, a.tensor)} at {offsets[a.subgraph, a.tensor]} and "
            f"{_name(model, b.subgraph, b.tensor)} at {offsets[b.subgraph, b.tensor]} overlap while both are needed"
        )
    return found


def _name(model: Model, subgraph: int, tensor: int) -> str:
    place = f"tensor `{model.subgraphs[subgraph].tensors[tensor].name or f'#{tensor}'}`"
    return place + (f" of subgraph {subgraph}" if subgraph else "")


def _overlapping(
    planned: list[tflm.Block], offsets: Mapping[tuple[int, int], int]
) -> Iterator[tuple[tflm.Block, tflm.Block]]:
    """The pairs that overlap in time and in place, the earlier one first."""
    alive: list[tflm.Block] = []
    for block in sorted(planned, key=lambda b: (b.first, b.last)):
        alive = [other for other in alive if other.last >= block.first]
        start = offsets[block.subgraph, block.tensor]
        for other in alive:
            at = offsets[other.subgraph, other.tensor]
            if at < start + block.bytes and start < at + other.bytes:
                yield other, block
        alive.append(block)


class _Views:
    """Which tensors of a graph hold the same bytes, and which results may be written over an input."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sizes = [tflm.tensor_bytes(t) or 0 for t in graph.tensors]
        self.edges: dict[int, list[_Edge]] = {}
        for op in graph.operators():
            for part, whole, start in _pieces(graph, op):
                self.edges.setdefault(part, []).append(_Edge(whole, -start))
                self.edges.setdefault(whole, []).append(_Edge(part, start))

    def explain(self, a: tflm.Block, b: tflm.Block, offsets: Mapping[tuple[int, int], int]) -> bool:
        """Whether two blocks that overlap may do so; `a` begins to live no later than `b`."""
        at, other = (offsets[x.subgraph, x.tensor] for x in (a, b))
        begin, end = max(at, other), min(at + self.sizes[a.tensor], other + self.sizes[b.tensor])
        # Bytes that only rounding adds are never written.
        if begin >= end or self._same(a.tensor, at, b.tensor, other, begin, end):
            return True
        return at == other and self._written_over(a, b)

    def _same(self, a: int, at: int, b: int, other: int, begin: int, end: int) -> bool:
        """Whether the bytes from `begin` to `end` are the same in `a`, which begins at `at`, and `b`, at `other`."""
        seen = {(a, at)}
        waiting = [(a, at)]
        while waiting:
            tensor, start = waiting.pop()
            for edge in self.edges.get(tensor, ()):
                place = (edge.tensor, start + edge.start)
                covers = place[1] <= begin and end <= place[1] + self.sizes[edge.tensor]
                if not covers or place in seen:
                    continue
                if place == (b, other):
                    return True
                seen.add(place)
                waiting.append(place)
        return False

    def _written_over(self, a: tflm.Block, b: tflm.Block) -> bool:
        graph = self.graph
        op = graph.producer(b.tensor)
        if op is None or graph.kind(op) not in IN_PLACE or a.last != b.first or a.tensor not in op.inputs:
            return False
        read, written = graph.tensors[a.tensor], graph.tensors[b.tensor]
        elements = [_elements(t) for t in (read, written)]
        if elements[0] != elements[1] or not all(elements):
            return False
        # Writing wider elements than were read would run ahead of the reading.
        return self.sizes[b.tensor] <= self.sizes[a.tensor]


def _elements(tensor: Tensor) -> list[int]:
    """The shape without dimensions of 1 in front; a scalar is [1]."""
    shape = [1] if tensor.shape is None else [int(d) for d in tensor.shape]
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape or [1]


def _pieces(graph: Graph, op: Operator) -> Iterator[tuple[int, int, int]]:
    """The (part, whole, start) for which an operator copies bytes unchanged: part is whole[start:start + its size]."""
    kind = graph.kind(op)
    if kind in (Op.CONCATENATION, Op.PACK):
        if graph.activation(op) == ActivationFunctionType.NONE:
            yield from _along(graph, op.outputs[0], op.inputs, int(getattr(op.builtin_options, "axis", 0)))
    elif kind is Op.UNPACK:
        yield from _along(graph, op.inputs[0], op.outputs, int(getattr(op.builtin_options, "axis", 0)))
    elif kind in (Op.SPLIT, Op.SPLIT_V):
        whole, axis = (op.inputs[1], op.inputs[0]) if kind is Op.SPLIT else (op.inputs[0], op.inputs[2])
        given = graph.constant(axis)
        if given is not None and given.size == 1:
            yield from _along(graph, whole, op.outputs, int(given.reshape(-1)[0]))
    elif kind in (Op.SLICE, Op.STRIDED_SLICE):
        start = _cut(graph, op, kind)
        if start is not None:
            yield op.outputs[0], op.inputs[0], start
    elif kind in _SAME_BYTES and _sizes(graph, op.inputs[:1]) == _sizes(graph, op.outputs):
        yield op.outputs[0], op.inputs[0], 0


def _along(graph: Graph, whole: int, parts: Sequence[int], axis: int) -> Iterator[tuple[int, int, int]]:
    """The pieces of a tensor that lie one behind the other because no dimension before the axis is above 1."""
    shape = _shape(graph, whole)
    axis += len(shape) if axis < 0 else 0
    if any(d != 1 for d in shape[:axis]) or any(t >= 0 and graph.type(t) != graph.type(whole) for t in parts):
        return
    start = 0
    for part, size in zip(parts, _sizes(graph, parts), strict=True):
        yield part, whole, start
        start += size


def _cut(graph: Graph, op: Operator, kind: Op) -> int | None:
    """Where in its input a slice's result begins, in bytes, if it is one contiguous stretch of it; else None."""
    whole, part = op.inputs[0], op.outputs[0]
    shape = _shape(graph, whole)
    lists = [graph.constant(t) for t in op.inputs[1:]]
    if any(v is None or v.size != len(shape) for v in lists) or not shape:
        return None
    numbers = [[int(n) for n in v.reshape(-1)] for v in lists if v is not None]
    if kind is Op.SLICE:
        index = [slice(b, None if n == -1 else b + n) for b, n in zip(*numbers, strict=True)]
    else:
        masks = {n: int(getattr(op.builtin_options, n, 0)) for n in _MASKS}
        if masks["ellipsis_mask"] or masks["new_axis_mask"] or getattr(op.builtin_options, "offset", False):
            return None
        index = []
        for axis, (begin, end, stride) in enumerate(zip(*numbers, strict=True)):
            if stride != 1:
                return None
            first = None if masks["begin_mask"] >> axis & 1 else begin
            last = None if masks["end_mask"] >> axis & 1 else end
            if masks["shrink_axis_mask"] >> axis & 1:
                first, last = begin, begin + 1 or None
            index.append(slice(first, last))
    taken = [range(*cut.indices(dim)) for cut, dim in zip(index, shape, strict=True)]
    counts = [len(r) for r in taken]
    partial = [axis for axis, (count, dim) in enumerate(zip(counts, shape, strict=True)) if count != dim]
    if 0 in counts or (partial and any(count != 1 for count in counts[: partial[-1]])):
        return None
    first = 0
    for r, dim in zip(taken, shape, strict=True):
        first = first * dim + r.start
    width = (tflm.tensor_bytes(graph.tensors[whole]) or 0) // prod(shape)
    return first * width if prod(counts) * width == tflm.tensor_bytes(graph.tensors[part]) else None


def _shape(graph: Graph, tensor: int) -> list[int]:
    shape = graph.tensors[tensor].shape
    return [] if shape is None else [int(d) for d in shape]


def _sizes(graph: Graph, tensors: Sequence[int]) -> list[int]:
    return [(tflm.tensor_bytes(graph.tensors[t]) or 0) if t >= 0 else 0 for t in tensors]
