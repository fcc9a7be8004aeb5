"""Which tensors may share bytes, per runtime, and why; which were refused, and why.

Three kinds of sharing:

* **view**: source and target hold the same data at the same addresses, wholly (RESHAPE) or in part (an input of a
  CONCATENATION is a part of its output where the outer dimensions are 1). The kernel then copies a range of memory
  onto itself, with ``memcpy`` or an element loop, or skips the copy. Copying a range onto itself leaves it as it is in
  every C library in use, although the C standard leaves ``memcpy`` of equal ranges undefined. A view may be read while
  its source is, but neither may be written over while the other is needed.
* **in place**: the operator writes its output over an input that nothing needs any more. It is legal where the kernel
  has read everything of an element (or, for SOFTMAX, LOG_SOFTMAX and L2_NORMALIZATION, of a row) before it writes
  that element, and elements have one width, so that element ``i`` is at the same address in both. Of a broadcasting
  operator only an operand of the output's own size qualifies. Read from the reference kernels of tflite-micro
  (tensorflow/lite/micro/kernels, kernels/internal/reference); block-wise optimised kernels keep to it as well, since
  they load a block before they store the same block.
* **residual** (litefuse's delegate only): CONV_2D or FULLY_CONNECTED and the ADD that consumes it run as one kernel
  that reads the other operand of the ADD and writes over it; the product of the convolution is never in memory.

Operators that read an input element after having written another output element (convolutions, pools, reductions,
transposes, resizing, padding, CUMSUM) never share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import NamedTuple

from litefuse.arena.lifetimes import TFLITE, TFLM, Runtime, Sizes
from litefuse.graph.graph import Graph
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator, QuantizationParameters
from litefuse.schema.types import bits


class ShareKind(Enum):
    """How two tensors share bytes; see the module."""

    VIEW = "view"
    IN_PLACE = "in place"
    RESIDUAL = "residual"


class Share(NamedTuple):
    """Leave for two tensors of a subgraph to share bytes.

    Attributes:
        operator: the operator (position in the file) that reads ``source`` and writes ``target``.
        source: tensor index.
        target: tensor index.
        offset: where the target starts, in bytes after the start of the source; negative where the source is a part
            of the target.
        kind: what must hold for the share to be used (see the module).
        reason: why it is legal, in words.
        producer: for RESIDUAL, the convolution's position; it must run directly before ``operator``.
        skipped: for RESIDUAL, the convolution's output, which takes no memory.
    """

    operator: int
    source: int
    target: int
    offset: int
    kind: ShareKind
    reason: str
    producer: int = -1
    skipped: int = -1


class Refused(NamedTuple):
    """A pair of tensors that looks like it could share and must not, with the reason in words."""

    operator: int
    source: int
    target: int
    reason: str


@dataclass
class Legal:
    """The shares that are legal in a runtime, whatever the order, and the refusals."""

    shares: list[Share] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


_RESHAPING = frozenset({Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS, Op.BITCAST})
_ROWS = frozenset({Op.SOFTMAX, Op.LOG_SOFTMAX, Op.L2_NORMALIZATION})
_UNARY = frozenset(
    {
        Op.RELU,
        Op.RELU6,
        Op.RELU_N1_TO_1,
        Op.RELU_0_TO_1,
        Op.LOGISTIC,
        Op.TANH,
        Op.HARD_SWISH,
        Op.LEAKY_RELU,
        Op.ELU,
        Op.GELU,
        Op.ABS,
        Op.NEG,
        Op.SQRT,
        Op.RSQRT,
        Op.SQUARE,
        Op.SIN,
        Op.COS,
        Op.LOG,
        Op.EXP,
        Op.FLOOR,
        Op.CEIL,
        Op.ROUND,
        Op.SIGN,
        Op.LOGICAL_NOT,
        Op.QUANTIZE,
        Op.DEQUANTIZE,
        Op.CAST,
        Op.ZEROS_LIKE,
    }
)
_BINARY = frozenset(
    {
        Op.ADD,
        Op.SUB,
        Op.MUL,
        Op.DIV,
        Op.MAXIMUM,
        Op.MINIMUM,
        Op.SQUARED_DIFFERENCE,
        Op.POW,
        Op.FLOOR_DIV,
        Op.FLOOR_MOD,
        Op.LOGICAL_AND,
        Op.LOGICAL_OR,
        Op.EQUAL,
        Op.NOT_EQUAL,
        Op.GREATER,
        Op.GREATER_EQUAL,
        Op.LESS,
        Op.LESS_EQUAL,
        Op.PRELU,
        Op.SELECT,
        Op.SELECT_V2,
        Op.ADD_N,
    }
)
IN_PLACE = _UNARY | _BINARY | _ROWS
# What TFLite's registrations allow (`inplace_operator` in tensorflow/lite/kernels/*.cc).
_TFLITE_IN_PLACE = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.SOFTMAX, Op.LOG_SOFTMAX, Op.DYNAMIC_UPDATE_SLICE})
_TFLITE_OPERANDS = 3
# The smallest tensor that TFLite shares where the data change: more than a scalar.
_TFLITE_SCALAR = 4


def legal_shares(graph: Graph, runtime: Runtime, sizes: Sizes) -> Legal:
    """Every share that is legal in a runtime, and the refusals with their reasons.

    Whether a source is still needed when its target is written depends on the order and is for the caller to see to,
    as is that an input of the model is not written over. ``sizes`` are those of
    :func:`litefuse.arena.lifetimes.sizes`; tensors that are not in them take no part.
    """
    legal = Legal()
    finder = _Finder(graph, runtime, sizes.bytes)
    for position, op in enumerate(graph.subgraph.operators):
        for item in finder.of(position, op):
            if isinstance(item, Share):
                legal.shares.append(item)
            else:
                legal.refused.append(item)
    return legal


class _Finder:
    def __init__(self, graph: Graph, runtime: Runtime, sizes: dict[int, int]) -> None:
        self.graph, self.runtime, self.sizes = graph, runtime, sizes
        self.place = {op: i for i, op in enumerate(graph.subgraph.operators)}

    def of(self, position: int, op: Operator) -> Iterator[Share | Refused]:
        kind = self.graph.kind(op)
        tflite = self.runtime is TFLITE
        outputs = [t for t in op.outputs if t >= 0]
        if not outputs:
            return
        if kind in _RESHAPING:
            yield from self._whole(position, op)
        elif kind in (_TFLITE_IN_PLACE if tflite else IN_PLACE):
            yield from self._in_place(position, op, kind)
        elif tflite:
            return
        elif kind in (Op.CONCATENATION, Op.PACK):
            yield from self._joined(position, op, kind)
        elif kind in (Op.SPLIT, Op.SPLIT_V, Op.UNPACK):
            yield from self._parts(position, op, kind)
        elif kind in (Op.SLICE, Op.STRIDED_SLICE):
            yield from self._cut(position, op, kind)
        if kind is Op.ADD and self.runtime is not TFLM and not tflite:
            yield from self._residual(position, op)

    def _shape(self, tensor: int) -> tuple[int, ...]:
        return tuple(self.graph.tensor(tensor).shape or ())

    def _pair(self, source: int, target: int) -> bool:
        return source >= 0 and source in self.sizes and target in self.sizes and source != target

    def _at_border(self, source: int, target: int) -> str | None:
        """TFLite never shares with what the application sees."""
        if self.runtime is TFLITE:
            if source in self.graph.inputs:
                return "TFLite never shares an input of the subgraph"
            if target in self.graph.outputs:
                return "TFLite never shares an output of the subgraph"
        return None

    # -- views ---------------------------------------------------------------------------------------------------

    def _whole(self, position: int, op: Operator) -> Iterator[Share | Refused]:
        source, target = op.inputs[0], op.outputs[0]
        if not self._pair(source, target):
            return
        why = self._at_border(source, target)
        if why is None and self.sizes[source] != self.sizes[target]:
            why = f"the sizes differ: {self.sizes[source]} and {self.sizes[target]} bytes"
        if why is not None:
            yield Refused(position, source, target, why)
            return
        kind = self.graph.kind(op).name
        yield Share(position, source, target, 0, ShareKind.VIEW, f"{kind} does not change the data")

    def _part(
        self, position: int, whole: int, part: int, offset: int, whole_is_output: bool, reason: str
    ) -> Share | Refused:
        """A part of a larger tensor; ``offset`` in bytes from the start of the whole."""
        source, target = (part, whole) if whole_is_output else (whole, part)
        if offset % self.runtime.alignment:
            why = f"the part starts at byte {offset}, which is not a multiple of {self.runtime.alignment}"
            return Refused(position, source, target, why)
        return Share(position, source, target, -offset if whole_is_output else offset, ShareKind.VIEW, reason)

    def _same_numbers(self, a: int, b: int) -> str | None:
        if self.graph.type(a) != self.graph.type(b):
            return "the types differ"
        if bits(self.graph.type(a)) not in (8, 16, 32, 64, 128):
            return "elements are not whole bytes"
        if not _same_scale(self.graph.quantization(a), self.graph.quantization(b)):
            return "the quantisation differs, so that the kernel converts the values"
        return None

    def _joined(self, position: int, op: Operator, kind: Op) -> Iterator[Share | Refused]:
        whole = op.outputs[0]
        shape = self._shape(whole)
        axis = getattr(op.builtin_options, "axis", 0)
        if whole not in self.sizes or not shape:
            return
        axis += len(shape) if axis < 0 else 0
        offset = 0
        seen: set[int] = set()
        for part in op.inputs:
            size = self.sizes.get(part)
            if size is None:
                count = prod(self._shape(part)) if part >= 0 else 0
                width = bits(self.graph.type(whole)) or 0
                offset += count * width // 8
                continue
            why = self._same_numbers(part, whole)
            if why is None and prod(shape[:axis]) != 1:
                why = f"{kind.name} interleaves its inputs: the dimensions before its axis are not 1"
            if why is None and self.graph.activation(op):
                why = f"{kind.name} has a fused activation"
            if why is None and part in seen:
                why = f"{kind.name} reads the same tensor twice"
            if why is not None:
                yield Refused(position, part, whole, why)
            else:
                seen.add(part)
                reason = f"{kind.name} copies this input to bytes {offset} to {offset + size} of its output"
                yield self._part(position, whole, part, offset, True, reason)
            offset += size

    def _parts(self, position: int, op: Operator, kind: Op) -> Iterator[Share | Refused]:
        whole = op.inputs[1] if kind is Op.SPLIT and len(op.inputs) > 1 else op.inputs[0]
        if whole not in self.sizes:
            return
        shape = self._shape(whole)
        if kind is Op.UNPACK:
            axis: int | None = getattr(op.builtin_options, "axis", 0)
        else:
            axis = self._number(op.inputs[0 if kind is Op.SPLIT else 2])
        if axis is None or not shape:
            return
        axis += len(shape) if axis < 0 else 0
        offset = 0
        for part in op.outputs:
            if part not in self.sizes:
                return
            why = self._same_numbers(part, whole)
            if why is None and prod(shape[:axis]) != 1:
                why = f"{kind.name} picks from every row: the dimensions before its axis are not 1"
            if why is not None:
                yield Refused(position, whole, part, why)
            else:
                end = offset + self.sizes[part]
                reason = f"{kind.name} copies bytes {offset} to {end} of its input to this output"
                yield self._part(position, whole, part, offset, False, reason)
            offset += self.sizes[part]

    def _cut(self, position: int, op: Operator, kind: Op) -> Iterator[Share | Refused]:
        whole, part = op.inputs[0], op.outputs[0]
        if not self._pair(whole, part):
            return
        shape = self._shape(whole)
        bounds = self._bounds(op, kind, shape)
        if bounds is None:
            return
        begin, count = bounds
        why = self._same_numbers(part, whole)
        width = self.sizes[whole] // max(prod(shape), 1)
        if prod(count) * width != self.sizes[part]:
            return
        partial = [axis for axis, (n, dim) in enumerate(zip(count, shape, strict=True)) if n != dim]
        if why is None and partial and prod(count[: partial[-1]]) != 1:
            why = f"the elements that {kind.name} takes are not contiguous"
        if why is not None:
            yield Refused(position, whole, part, why)
            return
        offset = 0
        for start, dim in zip(begin, shape, strict=True):
            offset = offset * dim + start
        reason = f"{kind.name} copies contiguous bytes of its input"
        yield self._part(position, whole, part, offset * width, False, reason)

    def _bounds(self, op: Operator, kind: Op, shape: tuple[int, ...]) -> tuple[list[int], list[int]] | None:
        """Start and number of elements in each dimension of a slice with stride 1; None where they are not known."""
        values = [self._numbers(t) for t in op.inputs[1:]]
        if any(v is None or len(v) != len(shape) for v in values):
            return None
        if kind is Op.SLICE:
            begin, size = values[0] or [], values[1] or []
            count = [dim - b if n == -1 else n for b, n, dim in zip(begin, size, shape, strict=True)]
            return begin, count
        options = op.builtin_options
        if any(getattr(options, name, 0) for name in ("ellipsis_mask", "new_axis_mask", "offset")):
            return None
        starts, counts = [], []
        for axis, dim in enumerate(shape):
            start, end, stride = ((v or [])[axis] for v in values)
            if stride != 1:
                return None
            start = 0 if getattr(options, "begin_mask", 0) >> axis & 1 else min(max(start + dim * (start < 0), 0), dim)
            if getattr(options, "shrink_axis_mask", 0) >> axis & 1:
                end = start + 1
            elif getattr(options, "end_mask", 0) >> axis & 1:
                end = dim
            else:
                end = min(max(end + dim * (end < 0), 0), dim)
            starts.append(start)
            counts.append(max(end - start, 0))
        return starts, counts

    def _numbers(self, tensor: int) -> list[int] | None:
        value = self.graph.constant(tensor) if tensor >= 0 else None
        return None if value is None or value.dtype.kind not in "iu" else [int(v) for v in value.reshape(-1)]

    def _number(self, tensor: int) -> int | None:
        values = self._numbers(tensor)
        return values[0] if values is not None and len(values) == 1 else None

    # -- in place ------------------------------------------------------------------------------------------------

    def _in_place(self, position: int, op: Operator, kind: Op) -> Iterator[Share | Refused]:
        target = op.outputs[0]
        if target not in self.sizes:
            return
        operands = op.inputs
        if kind is Op.PRELU or kind in _UNARY or kind in _ROWS or kind is Op.DYNAMIC_UPDATE_SLICE:
            operands = op.inputs[:1]
        for source in dict.fromkeys(operands[:_TFLITE_OPERANDS] if self.runtime is TFLITE else operands):
            if not self._pair(source, target):
                continue
            why = self._at_border(source, target) or self._not_in_place(source, target, kind)
            if why is not None:
                yield Refused(position, source, target, why)
                continue
            if kind in _ROWS:
                reason = f"{kind.name} has read a row before it writes it"
            elif kind is Op.DYNAMIC_UPDATE_SLICE:
                reason = f"{kind.name} changes only the updated part"
            else:
                reason = f"{kind.name} reads each element before it writes it"
            yield Share(position, source, target, 0, ShareKind.IN_PLACE, reason)

    def _not_in_place(self, source: int, target: int, kind: Op) -> str | None:
        widths = bits(self.graph.type(source)), bits(self.graph.type(target))
        if widths[0] != widths[1] and {TensorType.RESOURCE} != {self.graph.type(source), self.graph.type(target)}:
            return f"its elements have {widths[0]} bits, those of the output {widths[1]}"
        if self.sizes[source] != self.sizes[target]:
            return f"{kind.name} broadcasts it: {self.sizes[source]} bytes, the output has {self.sizes[target]}"
        if self.runtime is TFLITE:
            if self.sizes[source] <= _TFLITE_SCALAR:
                return "TFLite does not share scalars"
            if len(self.graph.readers(source)) > 1:
                return "TFLite shares only with an input that is read once"
        return None

    # -- residuals -----------------------------------------------------------------------------------------------

    def _residual(self, position: int, op: Operator) -> Iterator[Share]:
        target = op.outputs[0]
        if len(op.inputs) != 2 or op.inputs[0] == op.inputs[1] or target not in self.sizes:
            return
        for product, residual in (op.inputs, op.inputs[::-1]):
            maker = self.graph.producer(product)
            if maker is None or self.graph.kind(maker) not in (Op.CONV_2D, Op.FULLY_CONNECTED):
                continue
            sizes = {self.sizes.get(t) for t in (product, residual, target)}
            if len(sizes) != 1 or residual in maker.inputs or self.graph.only_reader(product) is not op:
                continue
            if len({self.graph.type(t) for t in (product, residual, target)}) != 1 or len(maker.outputs) != 1:
                continue
            name = self.graph.kind(maker).name
            reason = f"{name} with its ADD is one kernel, which writes over the residual"
            yield Share(
                position, residual, target, 0, ShareKind.RESIDUAL, reason, producer=self.place[maker], skipped=product
            )


def _same_scale(a: QuantizationParameters | None, b: QuantizationParameters | None) -> bool:
    def numbers(q: QuantizationParameters | None) -> tuple[list[float], list[int]]:
        if q is None or q.scale is None:
            return [], []
        points = [0] * len(q.scale) if q.zero_point is None else [int(z) for z in q.zero_point]
        return [float(s) for s in q.scale], points

    return a is b or numbers(a) == numbers(b)
