"""TensorFlow Lite Micro: which operators it has, what it needs memory for, and where its own planner puts it.

TFLM holds tensors and the kernels' scratch at the low end of its arena, the *head*. Its greedy planner knows for each
of these blocks the size, rounded up to 16 bytes, and the first and last moment of use. Blocks with a given offset (see
:mod:`litefuse.arena.offline`) are put there first; then come the others, largest first, each at the lowest place that
is free while it lives. :func:`head_bytes` does the same sums, so that a plan can be judged without the runtime.

Sources, read at tensorflow/tflite-micro commit 90b983c2: `micro_allocation_info.cc` (times and what needs memory),
`greedy_memory_planner.cc`, `memory_helpers.cc` (sizes), `python_ops_resolver.cc` and the portable kernels (operators,
types, scratch). Ports with kernels of their own (CMSIS-NN, Xtensa, ...) ask for more scratch than these.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flatbuffers import flexbuffers

from litefuse.arena.lifetimes import TFLM
from litefuse.arena.problem import aligned
from litefuse.errors import LitefuseError
from litefuse.graph.graph import Graph
from litefuse.schema import tables
from litefuse.schema.enums import BuiltinOperator, TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op, builtin_code
from litefuse.schema.tables import Operator, SubGraph, Tensor
from litefuse.schema.types import NUMPY
from litefuse.schema.writer import as_bytes

ALIGNMENT = TFLM.alignment
"""Bytes to which TFLM rounds the size of every block; its planner puts blocks at multiples of it."""
_POINTER = 8  # ADD_N keeps pointers in its scratch; 4 on a 32-bit processor
_T = TensorType

# -- operators ---------------------------------------------------------------------------------------------------

_SHORT = {
    "f32": _T.FLOAT32,
    "i8": _T.INT8,
    "i16": _T.INT16,
    "i32": _T.INT32,
    "i64": _T.INT64,
    "u8": _T.UINT8,
    "u32": _T.UINT32,
    "i4": _T.INT4,
    "bool": _T.BOOL,
}


def _types(names: str) -> frozenset[TensorType]:
    return frozenset(_SHORT[name] for name in names.split())


# The builtin operators that TFLM has, by the element types that the kernel takes for the input that decides ("any":
# it does not look). TFLM ignores the version of an operator code: what a version added works if its types are here.
_BY_TYPES = {
    "any": "ASSIGN_VARIABLE BROADCAST_TO CALL_ONCE IF READ_VARIABLE RESHAPE SHAPE SQUEEZE VAR_HANDLE WHILE",
    "f32": "CEIL COS EXP FLOOR FLOOR_DIV FLOOR_MOD L2_POOL_2D LOG NEG ROUND SIN SQRT SQUARE",
    "bool": "LOGICAL_AND LOGICAL_NOT LOGICAL_OR REDUCE_ALL",
    "i32 i64": "BROADCAST_ARGS",
    "f32 i8": "ADD_N ARG_MAX ARG_MIN BATCH_TO_SPACE_ND CUMSUM DEPTH_TO_SPACE ELU EMBEDDING_LOOKUP GATHER HARD_SWISH "
    "L2_NORMALIZATION LOG_SOFTMAX MIRROR_PAD REDUCE_MAX REDUCE_MIN RESIZE_BILINEAR RSQRT SPACE_TO_BATCH_ND "
    "SPACE_TO_DEPTH SVDF",
    "f32 i8 i16": "ABS AVERAGE_POOL_2D BATCH_MATMUL CONV_2D DEPTHWISE_CONV_2D EXPAND_DIMS FULLY_CONNECTED LEAKY_RELU "
    "LOGISTIC MAX_POOL_2D MEAN PRELU RELU RELU6 RESIZE_NEAREST_NEIGHBOR SELECT_V2 SOFTMAX SUM TANH TRANSPOSE "
    "TRANSPOSE_CONV UNIDIRECTIONAL_SEQUENCE_LSTM",
    "f32 i8 i32": "DIV FILL GATHER_ND",
    "f32 i8 i16 i32": "ADD DYNAMIC_UPDATE_SLICE MUL PAD PADV2 SPLIT SPLIT_V SQUARED_DIFFERENCE SUB UNPACK",
    "f32 i8 i16 i32 i64": "GREATER MAXIMUM MINIMUM PACK",
    "f32 i8 i32 i64": "GREATER_EQUAL LESS LESS_EQUAL ZEROS_LIKE",
    "bool f32 i8 i32 i64": "EQUAL NOT_EQUAL",
    "bool f32 i8 i16 i32": "SLICE STRIDED_SLICE",
    "bool f32 i8 i16 i32 i64": "CONCATENATION",
    "bool f32 i8 i16 i32 i64 u8": "REVERSE_V2",
    "bool f32 i8 i16 i32 u32": "CAST",
    "i8 i16 u8": "DEQUANTIZE",
    "f32 i8 i16 i32 u8": "QUANTIZE",
}
OPERATORS: dict[Op, frozenset[TensorType] | None] = {
    BuiltinOperator[name]: None if types == "any" else _types(types)
    for types, names in _BY_TYPES.items()
    for name in names.split()
}
"""The builtin operators that TFLM has, with the element types of the deciding input; None where any will do."""
_DECIDING = {Op.EMBEDDING_LOOKUP: 1, Op.FILL: 1, Op.SELECT_V2: 1, Op.SPLIT: 1, Op.TRANSPOSE_CONV: 2}

_MATRIX = {_T.FLOAT32: _types("f32"), _T.INT8: _types("i8"), _T.INT16: _types("i8")}
_MATRIX_4 = _MATRIX | {_T.INT8: _types("i8 i4")}
_WEIGHTS: dict[Op, Mapping[TensorType, frozenset[TensorType]]] = {
    Op.CONV_2D: _MATRIX_4,
    Op.DEPTHWISE_CONV_2D: _MATRIX_4,
    Op.FULLY_CONNECTED: _MATRIX_4,
    Op.TRANSPOSE_CONV: _MATRIX,
    Op.UNIDIRECTIONAL_SEQUENCE_LSTM: _MATRIX,
    Op.BATCH_MATMUL: {t: frozenset({t}) for t in _types("f32 i8 i16")},
    Op.SVDF: {t: frozenset({t}) for t in _types("f32 i8")},
}
"""The types of input 1, the weights, by the type of input 0. There are no hybrid kernels."""

_SIGNAL = (
    "Delay Energy FftAutoScale FilterBank FilterBankLog FilterBankSpectralSubtraction FilterBankSquareRoot Framer "
    "Irfft OverlapAdd PCAN Rfft Stacker Window"
)
CUSTOM_OPERATORS = frozenset(
    {"TFLite_Detection_PostProcess", "CIRCULAR_BUFFER", "TFLM_DECODE", "ethos-u"}
    | {"Signal" + name for name in _SIGNAL.split()}
)
"""The custom operators that TFLM's full resolver has, by name."""
_CUSTOM_TYPES = {"TFLite_Detection_PostProcess": _types("f32")}


def unsupported(model: Model) -> list[str]:
    """What in a model TFLM cannot run: one line each with the place, the reason, and what to do about it.

    Checked are the operators, the types of the deciding input and of the weights, LSTM intermediates, and tensors that
    TFLM cannot size (it loads a model with such tensors, and then writes where it should not). A model without a
    finding may still fail in a kernel's own checks.
    """
    found: list[str] = []
    for s, subgraph in enumerate(model.subgraphs):
        graph = Graph(model, s)
        for op in subgraph.operators:
            reason = _why_not(graph, op)
            if reason:
                found.append(f"{graph.where(op)}: {reason}")
        for t, tensor in enumerate(subgraph.tensors):
            place = f"tensor `{graph.name(t)}`" + (f" of subgraph {s}" if s else "")
            if _width(tensor.type) is None:
                found.append(f"{place}: TFLM has no {tensor.type.name} tensors; do that part outside the model")
            reason = unsized(graph, t)
            if reason:
                found.append(f"{place}: {reason}; give the model fixed shapes")
    if any(b.offset > 1 for b in model.buffers):
        found.append("the file keeps buffers outside the flatbuffer, where TFLM does not look; write it below 2 GB")
    return found


def _why_not(graph: Graph, op: Operator) -> str | None:
    code = graph.model.operator_codes[op.opcode_index]
    kind = builtin_code(code)
    if kind == Op.CUSTOM:
        if code.custom_code in CUSTOM_OPERATORS:
            allowed = _CUSTOM_TYPES.get(code.custom_code)
            return _refused_type(graph, op, 0, allowed) or _refused_type(graph, op, 1, allowed)
        return "TFLM has no such custom operator; register its kernel in the firmware, or replace it by builtin ones"
    if kind not in OPERATORS:
        return "TFLM has no such operator; express it by operators it has, or leave it to the code around the model"
    kind = Op(kind)
    for t in op.intermediates or ():
        if tensor_bytes(graph.tensors[t]):
            return "TFLM wants intermediate tensors to be empty; convert with TensorFlow 2.7 or later"
    refused = _refused_type(graph, op, _DECIDING.get(kind, 0), OPERATORS[kind])
    if refused:
        return refused
    weights = _WEIGHTS.get(kind)
    if weights is not None and len(op.inputs) > 1 and op.inputs[1] >= 0:
        type_ = graph.type(op.inputs[_DECIDING.get(kind, 0)])
        other = graph.type(op.inputs[1])
        if other not in weights[type_]:
            what = f"TFLM's kernel takes {_named(weights[type_])} weights with {type_.name} inputs, not {other.name}"
            return f"{what}; {_advice(type_ if other in _types('i8 i4') else other)}"
    return None


def _refused_type(graph: Graph, op: Operator, at: int, allowed: frozenset[TensorType] | None) -> str | None:
    if allowed is None or at >= len(op.inputs) or op.inputs[at] < 0 or graph.type(op.inputs[at]) in allowed:
        return None
    type_ = graph.type(op.inputs[at])
    return f"TFLM's kernel takes {_named(allowed)}, not {type_.name}; {_advice(type_)}"


def _named(types: frozenset[TensorType]) -> str:
    names = sorted(t.name for t in types)
    return ", ".join(names[:-1]) + " or " + names[-1] if len(names) > 1 else names[0]


def _advice(type_: TensorType) -> str:
    if type_ == _T.FLOAT16:
        return "store the weights as float32 (`litefuse convert --widen-fp16`), or quantise to int8"
    if type_ in (_T.UINT8, _T.INT8, _T.INT16):
        return "quantise the model to int8 again"
    if type_ == _T.FLOAT32:
        return "quantise inputs too (dynamic-range models have no kernels here), or store the weights as float32"
    return "cast to a supported type before it"


# -- sizes and scratch -------------------------------------------------------------------------------------------


def _width(type_: TensorType) -> int | None:
    """Bytes that TFLM counts for an element; None for types it refuses. Packed int4 counts a whole byte."""
    if type_ == _T.INT4:
        return 1
    if type_ == _T.RESOURCE:
        return 4
    if type_ == _T.BFLOAT16:
        return 2
    return NUMPY[type_].itemsize if type_ in NUMPY else None


def tensor_bytes(tensor: Tensor) -> int | None:
    """Bytes that TFLM gives a tensor, from the shape that the file states (a missing one is a scalar).

    None where the shape has unknown dimensions or TFLM cannot hold the type.
    """
    width = _width(tensor.type)
    count = _count(tensor)
    return None if width is None or count is None else width * count


def unsized(graph: Graph, tensor: int) -> str | None:
    """Why TFLM does not know how large a tensor in its head gets, so that kernels write past it; None when it knows.

    It takes the shape in the file for the whole truth. SLICE and STRIDED_SLICE go by the values of their inputs.
    """
    table = graph.tensors[tensor]
    if not in_head(graph.model, graph.index, tensor):
        return None
    if _count(table) is None:
        return f"its shape {_shape(table)} is not fixed, as TFLM needs"
    maker = graph.producer(tensor)
    places = _EXTENTS.get(graph.kind(maker), ()) if maker is not None else ()
    if maker is None or not places or not any(d < 0 for d in graph.shape(tensor) or (-1,)):
        return None
    if all(p >= len(maker.inputs) or graph.is_constant(maker.inputs[p]) for p in places):
        return None
    return f"its size depends on data that {graph.where(maker)} reads, and may be more than its shape {_shape(table)}"


# Where the operators whose TFLM kernels go by data read how much to write.
_EXTENTS: dict[Op, tuple[int, ...]] = {Op.SLICE: (1, 2), Op.STRIDED_SLICE: (1, 2, 3)}


def _shape(tensor: Tensor) -> list[int]:
    return [] if tensor.shape is None else [int(d) for d in tensor.shape]


def _count(tensor: Tensor) -> int | None:
    shape = _shape(tensor)
    return None if any(d < 0 for d in shape) else int(np.prod(shape, dtype=np.int64))


class _Site(NamedTuple):
    """An operator with its input and output tensors, for the scratch formulas."""

    model: Model
    subgraph: SubGraph
    op: Operator

    def input(self, i: int) -> Tensor | None:
        given = i < len(self.op.inputs) and self.op.inputs[i] >= 0
        return self.subgraph.tensors[self.op.inputs[i]] if given else None

    def type(self, i: int) -> TensorType | None:
        tensor = self.input(i)
        return None if tensor is None else tensor.type

    def count(self, i: int) -> int:
        tensor = self.input(i)
        return 0 if tensor is None else _count(tensor) or 0

    def shape(self, i: int) -> list[int]:
        tensor = self.input(i)
        return [] if tensor is None else _shape(tensor)

    @property
    def out(self) -> Tensor:
        return self.subgraph.tensors[self.op.outputs[0]]

    def options(self) -> dict[str, Any]:
        data = self.op.custom_options
        return {} if data is None or not len(data) else dict(flexbuffers.Loads(bytearray(as_bytes(data))))


def _int4_weights(site: _Site) -> list[int]:
    # The packed weights, one element a byte.
    return [site.count(1)] if site.type(1) == _T.INT4 else []


def _transpose_conv(site: _Site) -> list[int]:
    # A sum for each output element; int16 biases of int16 models are widened to 64 bits.
    wide = {_T.INT8: 4, _T.INT16: 8}.get(site.type(2) or _T.FLOAT32)
    sums = [] if wide is None else [wide * (_count(site.out) or 0)]
    return sums + ([8 * site.count(3)] if site.type(2) == _T.INT16 and site.type(3) == _T.INT16 else [])


def _pointers(site: _Site) -> list[int]:
    return [_POINTER * len(site.op.inputs)]


def _extremum(site: _Site) -> list[int]:
    # Counters over the input's dimensions, and the axes.
    return [4 * len(site.shape(0)), 4 * site.count(1)]


def _sum(site: _Site) -> list[int]:
    # Quantised kinds add up in 32 bits first.
    sums = [4 * (_count(site.out) or 0)] if site.type(0) in (_T.INT8, _T.INT16) else []
    return sums + _extremum(site)


def _mirror_pad(site: _Site) -> list[int]:
    return [4 * len(site.shape(0))] * 2


def _svdf(site: _Site) -> list[int]:
    batch, filters = site.shape(0)[0], site.shape(1)[0]
    rank = int(getattr(site.op.builtin_options, "rank", 1)) or 1
    sums = [4 * batch * filters]
    return [*sums, 4 * batch * (filters // rank)] if site.type(0) == _T.INT8 else sums


def _lstm(site: _Site) -> list[int]:
    # One buffer for each of the four gates, batch x state, in the type of the cell state (input 19).
    shape = site.shape(0)
    time_major = bool(getattr(site.op.builtin_options, "time_major", False))
    batch = (shape[1] if time_major else shape[0]) if len(shape) == 3 else shape[0]
    state = site.shape(18)
    width = _width(site.type(19) or _T.FLOAT32) or 4
    return [batch * state[-1] * width] * 4


def _detections(site: _Site) -> list[int]:
    options = site.options()
    boxes, most, classes = site.shape(0)[1], int(options["max_detections"]), int(options["num_classes"])
    scores = site.shape(1)
    per_box = [4 * most * boxes]
    return [
        boxes,
        16 * boxes,
        4 * scores[1] * scores[2],
        4 * boxes,
        4 * boxes,
        *per_box,
        *per_box,
        4 * boxes,
        *per_box,
        4 * max(classes, most) * boxes,
        4 * min(boxes, most) * boxes,
    ]


def _rfft(site: _Site) -> list[int]:
    return [int(site.options()["fft_length"]) * (_width(site.type(0) or _T.INT16) or 2)]


SCRATCH: dict[Op | str, Callable[[_Site], list[int]]] = {
    Op.ADD_N: _pointers,
    Op.CONV_2D: _int4_weights,
    Op.DEPTHWISE_CONV_2D: _int4_weights,
    Op.FULLY_CONNECTED: _int4_weights,
    Op.MEAN: _sum,
    Op.MIRROR_PAD: _mirror_pad,
    Op.REDUCE_ALL: _extremum,
    Op.REDUCE_MAX: _extremum,
    Op.REDUCE_MIN: _extremum,
    Op.SUM: _sum,
    Op.SVDF: _svdf,
    Op.TRANSPOSE_CONV: _transpose_conv,
    Op.UNIDIRECTIONAL_SEQUENCE_LSTM: _lstm,
    "TFLite_Detection_PostProcess": _detections,
    "SignalRfft": _rfft,
}
"""The operators whose portable kernels ask for scratch; the functions give the sizes in bytes in the order asked."""


def scratch(model: Model, subgraph: int, operator: int) -> list[int]:
    """Bytes of each scratch buffer that the portable kernel of one operator asks for; empty for most.

    Raises LitefuseError if that cannot be told because the operator's options or shapes are damaged.
    """
    graph = model.subgraphs[subgraph]
    op = graph.operators[operator]
    code = model.operator_codes[op.opcode_index]
    kind = builtin_code(code)
    ask = (
        SCRATCH.get(code.custom_code or "")
        if kind == Op.CUSTOM
        else SCRATCH.get(Op(kind))
        if kind in OPERATORS
        else None
    )
    if ask is None:
        return []
    try:
        return ask(_Site(model, graph, op))
    except (LookupError, TypeError, ValueError, ArithmeticError, struct.error) as error:
        raise LitefuseError(
            f"{Graph(model, subgraph).where(op)}: how much memory its kernel needs cannot be told, since its options "
            f"or the shapes of its inputs are not what that operator has ({type(error).__name__}: {error}); "
            "convert the model again"
        ) from error


# -- planning ----------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """Memory that TFLM's planner has to place in the head.

    Attributes:
        subgraph: which subgraph it belongs to.
        tensor: index of the tensor, or -1 for scratch.
        operator: for scratch, index of the operator that asked for it, else -1.
        bytes: size, rounded up to ALIGNMENT.
        first: the first moment of use.
        last: the last moment of use, included. Tensors that nothing uses have -1 for both.
    """

    subgraph: int
    tensor: int
    operator: int
    bytes: int
    first: int
    last: int


def blocks(model: Model) -> list[Block]:
    """What TFLM's planner places, in the order in which it is told.

    Moments count through the operators in file order; a control-flow operator counts through its subgraphs in between,
    so that the blocks of all subgraphs are planned together. Constants, variables and resource handles are not in the
    head. A tensor whose size is unknown counts as nothing.
    """
    times = _Times(model)
    found: list[Block] = []
    for s, subgraph in enumerate(model.subgraphs):
        for t, tensor in enumerate(subgraph.tensors):
            size = tensor_bytes(tensor) or 0
            if size and in_head(model, s, t):
                found.append(Block(s, t, -1, aligned(size, ALIGNMENT), *times.tensors[s][t]))
    for s, subgraph in enumerate(model.subgraphs):
        for o in range(len(subgraph.operators)):
            if (s, o) in times.operators:
                for size in scratch(model, s, o):
                    found.append(Block(s, -1, o, aligned(size, ALIGNMENT), *times.operators[s, o]))
    return found


def in_head(model: tables.Model, subgraph: int, tensor: int) -> bool:
    """Whether a tensor lives in the head: not a constant, a variable or a handle of a resource."""
    t = model.subgraphs[subgraph].tensors[tensor]
    if t.is_variable or t.type == _T.RESOURCE:
        return False
    data = model.buffers[t.buffer].data if 0 <= t.buffer < len(model.buffers) else None
    return data is None or not len(data)


class _Times:
    """First and last moment of use of every tensor, and of every operator for its scratch."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.now = 0
        self.tensors = [[(-1, -1)] * len(s.tensors) for s in model.subgraphs]
        self.operators: dict[tuple[int, int], tuple[int, int]] = {}
        self.visit(0, ())

    def create(self, subgraph: int, tensors: Sequence[int] | None) -> None:
        times = self.tensors[subgraph]
        for t in () if tensors is None else tensors:
            if t >= 0 and times[t][0] == -1:
                times[t] = (self.now, times[t][1])

    def use(self, subgraph: int, tensors: Sequence[int] | None) -> None:
        times = self.tensors[subgraph]
        for t in () if tensors is None else tensors:
            if t >= 0:
                times[t] = (times[t][0], self.now)

    def visit(self, subgraph: int, callers: tuple[int, ...]) -> None:
        graph = self.model.subgraphs[subgraph]
        self.create(subgraph, graph.inputs)
        self.use(subgraph, graph.inputs)
        for o, op in enumerate(graph.operators):
            self.now += 1
            self.create(subgraph, op.outputs)
            start = self.now
            for called in _called(self.model, op):
                # TFLM does not run recursive models; stop rather than loop.
                if 0 <= called < len(self.model.subgraphs) and called not in (*callers, subgraph):
                    self.now += 1
                    self.visit(called, (*callers, subgraph))
            self.use(subgraph, op.inputs)
            self.use(subgraph, op.outputs)
            first = self.operators.get((subgraph, o), (start, 0))[0]
            self.operators[subgraph, o] = (first, self.now)
        self.create(subgraph, graph.outputs)
        self.use(subgraph, graph.outputs)


def _called(model: Model, op: Operator) -> Iterator[int]:
    fields = {
        Op.IF: ("then_subgraph_index", "else_subgraph_index"),
        Op.CALL_ONCE: ("init_subgraph_index",),
        Op.WHILE: ("cond_subgraph_index", "body_subgraph_index"),
    }
    kind = builtin_code(model.operator_codes[op.opcode_index])
    for name in fields.get(kind, ()):  # type: ignore[call-overload]
        yield int(getattr(op.builtin_options, name))


def place(wanted: Sequence[Block], offsets: Mapping[tuple[int, int], int] | None = None) -> list[int]:
    """The offset that TFLM gives each block, in the order of `wanted`.

    Args:
        wanted: what to place, as from :func:`blocks`.
        offsets: offsets in bytes given by an offline plan, by (subgraph, tensor). They are taken as they are.
    """
    given = offsets or {}
    fixed = [given.get((b.subgraph, b.tensor)) if b.tensor >= 0 else None for b in wanted]
    # Of equally large blocks, the one that was told last comes first.
    order = [i for i, offset in enumerate(fixed) if offset is not None]
    order += sorted((i for i, offset in enumerate(fixed) if offset is None), key=lambda i: (-wanted[i].bytes, -i))
    result = [0] * len(wanted)
    starts: list[int] = []
    placed: list[Block] = []  # in the order of their offsets
    for i in order:
        block = wanted[i]
        offset = fixed[i]
        if offset is None:
            offset = 0
            for start, other in zip(starts, placed, strict=True):
                if other.first <= block.last and block.first <= other.last:
                    if start - offset >= block.bytes:
                        break
                    offset = max(offset, start + other.bytes)
        result[i] = offset
        at = bisect_right(starts, offset)
        starts.insert(at, offset)
        placed.insert(at, block)
    return result


def head_bytes(model: Model, offsets: Mapping[tuple[int, int], int] | None = None) -> int:
    """Bytes of TFLM's head for a model: what its allocation record calls `Arena allocation head`.

    Args:
        model: the model; a plan in its metadata is not looked at.
        offsets: offsets in bytes of an offline plan, by (subgraph, tensor); None for TFLM's own planning.
    """
    wanted = blocks(model)
    return max((o + b.bytes for o, b in zip(place(wanted, offsets), wanted, strict=True)), default=0)
