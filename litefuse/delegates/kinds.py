"""What operators are to a region, and whether the delegate's executor can run one.

The executor takes the operators of `delegate_src/kernels/kernels.inc`, with the element types that TFLite's own kernels
have for them as far as regions know these types. Whatever shapes depend on besides those of the inputs (axes, paddings,
target shapes) must be constant, so that the delegate can work out every shape before it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from litefuse.graph.graph import NOT_PURE, Graph, OperatorKind
from litefuse.schema.enums import ActivationFunctionType, DimensionType, TensorType
from litefuse.schema.facts import Numbers
from litefuse.schema.operators import Op
from litefuse.schema.sparsity import stored_elements
from litefuse.schema.tables import Operator, Tensor
from litefuse.schema.types import nbytes
from litefuse.schema.writer import as_bytes

MAX_RANK = 8
"""The highest rank that the executor's shapes have room for."""


class OpClass(Enum):
    """How the elements of an operator's output depend on those of its inputs."""

    ELEMENTWISE = "elementwise"
    """Each on the element in the same place."""
    BROADCAST = "broadcast"
    """Each on one element of several inputs, of which some may be stretched."""
    INJECTIVE = "injective"
    """Each is a copy of one element, perhaps from another place."""
    WINDOW = "window"
    """Each on a few elements around its place, without weights: pooling and resizing."""
    REDUCTION = "reduction"
    """Each on many along some axes."""
    ROOT = "root"
    """Convolutions and matrix products."""
    OPAQUE = "opaque"
    """None of these; never in a region."""


class _Entry(NamedTuple):
    """What the executor takes of an operator."""

    role: OpClass
    types: str
    """Letters of _LETTERS: types of the data input, which those of other data inputs and of outputs follow."""
    constants: tuple[int, ...] = ()
    """Input slots that have to hold constants in the file itself."""
    weights: tuple[int, ...] = ()
    """Input slots that have to be constants, or computed from constants alone."""
    data: int = 0
    """The input slot whose type counts."""


_LETTERS = {
    "f": TensorType.FLOAT32,
    "b": TensorType.INT8,
    "u": TensorType.UINT8,
    "s": TensorType.INT16,
    "i": TensorType.INT32,
    "l": TensorType.INT64,
    "o": TensorType.BOOL,
}
_QUANTIZED = frozenset({TensorType.INT8, TensorType.UINT8, TensorType.INT16})
_ANY = "fbusilo"

_E, _B, _I, _W, _R, _C = (
    OpClass.ELEMENTWISE,
    OpClass.BROADCAST,
    OpClass.INJECTIVE,
    OpClass.WINDOW,
    OpClass.REDUCTION,
    OpClass.ROOT,
)

_TABLE: dict[OperatorKind, _Entry] = {
    Op.CONV_2D: _Entry(_C, "fbus", weights=(1, 2)),
    Op.DEPTHWISE_CONV_2D: _Entry(_C, "fbus", weights=(1, 2)),
    Op.TRANSPOSE_CONV: _Entry(_C, "fbus", constants=(0,), weights=(1, 3), data=2),
    Op.FULLY_CONNECTED: _Entry(_C, "fbus", weights=(1, 2)),
    Op.BATCH_MATMUL: _Entry(_C, "fbs"),
    Op.ADD: _Entry(_B, "fbusil"),
    Op.SUB: _Entry(_B, "fbusil"),
    Op.MUL: _Entry(_B, "fbusil"),
    Op.DIV: _Entry(_B, "fui"),
    Op.MAXIMUM: _Entry(_B, "fbusil"),
    Op.MINIMUM: _Entry(_B, "fbusil"),
    Op.SQUARED_DIFFERENCE: _Entry(_B, "fbi"),
    Op.POW: _Entry(_B, "f"),
    Op.FLOOR_DIV: _Entry(_B, "fi"),
    Op.FLOOR_MOD: _Entry(_B, "fil"),
    Op.PRELU: _Entry(_B, "fbu"),
    Op.RELU: _Entry(_E, "fbus"),
    Op.RELU6: _Entry(_E, "fbus"),
    Op.RELU_N1_TO_1: _Entry(_E, "fbu"),
    Op.RELU_0_TO_1: _Entry(_E, "fbu"),
    Op.LEAKY_RELU: _Entry(_E, "fbus"),
    Op.ELU: _Entry(_E, "fb"),
    Op.GELU: _Entry(_E, "fbu"),
    Op.HARD_SWISH: _Entry(_E, "fbu"),
    Op.LOGISTIC: _Entry(_E, "fbus"),
    Op.TANH: _Entry(_E, "fbus"),
    Op.EXP: _Entry(_E, "fbs"),
    Op.LOG: _Entry(_E, "fb"),
    Op.SQRT: _Entry(_E, "f"),
    Op.RSQRT: _Entry(_E, "fb"),
    Op.SQUARE: _Entry(_E, "f"),
    Op.ABS: _Entry(_E, "fbsi"),
    Op.NEG: _Entry(_E, "fil"),
    Op.SIGN: _Entry(_E, "f"),
    Op.SIN: _Entry(_E, "f"),
    Op.COS: _Entry(_E, "f"),
    Op.FLOOR: _Entry(_E, "f"),
    Op.CEIL: _Entry(_E, "f"),
    Op.ROUND: _Entry(_E, "f"),
    Op.QUANTIZE: _Entry(_E, "fbus"),
    Op.DEQUANTIZE: _Entry(_E, "bus"),
    Op.CAST: _Entry(_E, _ANY),
    Op.DENSIFY: _Entry(_I, "fb"),
    Op.EQUAL: _Entry(_B, "fbuilo"),
    Op.NOT_EQUAL: _Entry(_B, "fbuilo"),
    Op.LESS: _Entry(_B, "fbuil"),
    Op.LESS_EQUAL: _Entry(_B, "fbuil"),
    Op.GREATER: _Entry(_B, "fbuil"),
    Op.GREATER_EQUAL: _Entry(_B, "fbuil"),
    Op.LOGICAL_AND: _Entry(_B, "o"),
    Op.LOGICAL_OR: _Entry(_B, "o"),
    Op.LOGICAL_NOT: _Entry(_E, "o"),
    Op.SELECT: _Entry(_B, _ANY, data=1),
    Op.SELECT_V2: _Entry(_B, _ANY, data=1),
    Op.MEAN: _Entry(_R, "fbusil", constants=(1,)),
    Op.SUM: _Entry(_R, "fbuil", constants=(1,)),
    Op.REDUCE_MAX: _Entry(_R, "fbusil", constants=(1,)),
    Op.REDUCE_MIN: _Entry(_R, "fbusil", constants=(1,)),
    Op.REDUCE_PROD: _Entry(_R, "fil", constants=(1,)),
    Op.SOFTMAX: _Entry(_R, "fbus"),
    Op.LOG_SOFTMAX: _Entry(_R, "fbu"),
    Op.L2_NORMALIZATION: _Entry(_R, "fbu"),
    Op.AVERAGE_POOL_2D: _Entry(_W, "fbus"),
    Op.MAX_POOL_2D: _Entry(_W, "fbus"),
    Op.RESIZE_BILINEAR: _Entry(_W, "fbus", constants=(1,)),
    Op.RESIZE_NEAREST_NEIGHBOR: _Entry(_W, "fbus", constants=(1,)),
    Op.RESHAPE: _Entry(_I, _ANY, constants=(1,)),
    Op.SQUEEZE: _Entry(_I, _ANY),
    Op.EXPAND_DIMS: _Entry(_I, _ANY, constants=(1,)),
    Op.TRANSPOSE: _Entry(_I, _ANY, constants=(1,)),
    Op.PAD: _Entry(_I, "fbusil", constants=(1,)),
    Op.PADV2: _Entry(_I, "fbusil", constants=(1, 2)),
    Op.MIRROR_PAD: _Entry(_I, "fbusil", constants=(1,)),
    Op.CONCATENATION: _Entry(_I, _ANY),
    Op.SPLIT: _Entry(_I, "fbusil", constants=(0,), data=1),
    Op.SPLIT_V: _Entry(_I, "fbusil", constants=(1, 2)),
    Op.SLICE: _Entry(_I, _ANY, constants=(1, 2)),
    Op.STRIDED_SLICE: _Entry(_I, _ANY, constants=(1, 2, 3)),
    Op.PACK: _Entry(_I, "fbusil"),
    Op.UNPACK: _Entry(_I, _ANY),
    Op.GATHER: _Entry(_I, _ANY, constants=(1,)),
    Op.TILE: _Entry(_I, _ANY, constants=(1,)),
    Op.BROADCAST_TO: _Entry(_I, _ANY, constants=(1,)),
    Op.DEPTH_TO_SPACE: _Entry(_I, "fbuil"),
    Op.SPACE_TO_DEPTH: _Entry(_I, "fbuil"),
    Op.SPACE_TO_BATCH_ND: _Entry(_I, "fbuil", constants=(1, 2)),
    Op.BATCH_TO_SPACE_ND: _Entry(_I, "fbuil", constants=(1, 2)),
    Op.REVERSE_V2: _Entry(_I, _ANY, constants=(1,)),
}

VIEWS = frozenset({Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS})
"""Operators that leave all elements where they are."""
CONVERSIONS = frozenset({Op.QUANTIZE, Op.DEQUANTIZE})
"""Operators that only change how numbers are stored."""
COMPARISONS = frozenset({Op.EQUAL, Op.NOT_EQUAL, Op.LESS, Op.LESS_EQUAL, Op.GREATER, Op.GREATER_EQUAL})
POOLS = frozenset({Op.AVERAGE_POOL_2D, Op.MAX_POOL_2D})
RESIZES = frozenset({Op.RESIZE_BILINEAR, Op.RESIZE_NEAREST_NEIGHBOR})
PADS = frozenset({Op.PAD, Op.PADV2, Op.MIRROR_PAD})

# Where integers stand for themselves: nothing is computed of them, or the result is not a number.
_PLAIN = COMPARISONS | {Op.CAST, Op.DENSIFY, Op.SELECT, Op.SELECT_V2}
_ACTIVATIONS = frozenset(
    {
        ActivationFunctionType.NONE,
        ActivationFunctionType.RELU,
        ActivationFunctionType.RELU_N1_TO_1,
        ActivationFunctionType.RELU6,
    }
)
_HALVES = frozenset({Op.DEQUANTIZE, Op.DENSIFY})  # operators that read constants of FLOAT16
_NO_DENSE_FORM = "in a form that the delegate does not read (sparse, packed or outside the file)"


def operators() -> list[OperatorKind]:
    """The operators that regions may contain."""
    return list(_TABLE)


def types_of(kind: OperatorKind) -> list[TensorType]:
    """The element types that the executor takes for an operator's data; none for one that regions cannot contain."""
    entry = _TABLE.get(kind)
    return [] if entry is None else [_LETTERS[letter] for letter in entry.types]


def class_of(kind: OperatorKind) -> OpClass:
    """What an operator is to a region."""
    entry = _TABLE.get(kind)
    return OpClass.OPAQUE if entry is None else entry.role


def data_slot(kind: OperatorKind) -> int:
    """The input slot that holds what the operator works on."""
    entry = _TABLE.get(kind)
    return 0 if entry is None else entry.data


def fed_by_constants(graph: Graph, op: Operator, depth: int = 6) -> bool:
    """Whether an operator computes the same in every run: its inputs are constants, or computed from such.

    Longer ways than `depth` operators are not followed; files that went through the rules have none.
    """
    if not depth or graph.kind(op) in NOT_PURE:
        return False
    inputs = {t for t in op.inputs if t >= 0}
    for tensor in inputs:
        if graph.is_constant(tensor):
            continue
        maker = graph.producer(tensor)
        if maker is None or not fed_by_constants(graph, maker, depth - 1):
            return False
    return bool(inputs)


def supported(graph: Graph, op: Operator, shapes: Mapping[int, Sequence[int]] | None = None) -> str | None:
    """Why the delegate's executor cannot run an operator as it stands; None when it can.

    `shapes` are those of tensors for which the file declares none, where they are known nevertheless.
    """
    kind = graph.kind(op)
    entry = _TABLE.get(kind)
    name = kind.name
    if entry is None:
        if kind in NOT_PURE:
            return f"{name} has effects besides its outputs, or runs other subgraphs"
        return f"{name} is not among the delegate's operators"
    needed = [op.inputs[slot] if slot < len(op.inputs) else -1 for slot in range(_required(kind, entry))]
    if not op.outputs or min((*needed, *op.outputs)) < 0:
        return f"{name} lacks inputs or outputs"
    for tensor in op.inputs:
        maker = graph.producer(tensor)
        reason = supported(graph, maker, shapes) if maker is not None and fed_by_constants(graph, maker) else None
        if reason:
            return reason
    for tensor in (*op.inputs, *op.outputs):
        reason = None if tensor < 0 else _tensor(graph, tensor, kind, shapes or {})
        if reason:
            return reason
    reason = _operands(graph, op, entry) or _types(graph, op, kind, entry)
    if reason:
        return reason
    if graph.activation(op) not in _ACTIVATIONS:
        return f"{name} has the fused activation {graph.activation(op).name}"
    return _particular(graph, op, kind)


def _required(kind: OperatorKind, entry: _Entry) -> int:
    """How many inputs there have to be at least; those behind are optional."""
    if kind is Op.RESHAPE:
        return 1
    if kind in (Op.SELECT, Op.SELECT_V2):
        return 3
    if entry.role in (OpClass.BROADCAST, OpClass.ROOT) and kind is not Op.LOGICAL_NOT:
        return max(2, entry.data + 1)
    return max((*entry.constants, entry.data)) + 1


def _tensor(graph: Graph, tensor: int, kind: OperatorKind, shapes: Mapping[int, Sequence[int]]) -> str | None:
    """What about a tensor is beyond the delegate."""
    table = graph.tensor(tensor)
    name = f"`{graph.name(tensor)}`"
    if table.is_variable:
        return f"{name} is a variable"
    if table.sparsity is not None and kind is Op.DENSIFY:
        reason = _sparsity(graph, table)
        if reason:
            return f"{name} is not stored as the delegate reads sparse constants: {reason}"
    elif graph.is_constant(tensor) and graph.constant(tensor) is None:
        return f"the constant {name} is {_NO_DENSE_FORM}"
    elif table.sparsity is not None or table.external_buffer:
        return f"{name} is {_NO_DENSE_FORM}"
    if table.type not in _LETTERS.values():
        if not (table.type == TensorType.FLOAT16 and kind in _HALVES):
            return f"{name} holds {_type_name(table.type)}"
        if not _is_fixed(graph, tensor):
            return f"{name} holds FLOAT16 and is not constant"
    shape: Sequence[int] | None = graph.shape(tensor)
    if shape is None:
        shape = shapes.get(tensor)
    if shape is None:
        return f"the rank of {name} is only known at run time"
    if len(shape) > MAX_RANK:
        return f"{name} has {len(shape)} dimensions, more than {MAX_RANK}"
    quantization = graph.quantization(tensor)
    if quantization is not None and quantization.details is not None:
        return f"{name} is quantised in blocks"
    return None


def _is_fixed(graph: Graph, tensor: int) -> bool:
    """Whether a tensor is constant, or computed from constants alone."""
    maker = graph.producer(tensor)
    return graph.is_constant(tensor) or (maker is not None and fed_by_constants(graph, maker))


def _sparsity(graph: Graph, table: Tensor) -> str | None:
    """What the delegate would refuse about how a sparse constant is stored."""
    sparsity = table.sparsity
    assert sparsity is not None
    shape = list(table.shape or [])
    if min(shape, default=0) < 0:
        return "its size is not known"
    fault, stored = stored_elements(sparsity, shape, Numbers())
    if fault or stored is None:
        return fault or "it is too large"
    order, levels = sparsity.traversal_order, sparsity.dim_metadata
    assert order is not None
    assert levels is not None
    blocks = [] if sparsity.block_map is None else sparsity.block_map.tolist()
    if len(shape) + len(blocks) != len(order) or blocks != sorted(blocks) or len(set(blocks)) < len(blocks):
        return "its block map is out of order"
    inside = range(len(shape), len(order))
    if [int(d) for d in order[len(shape) :]] != list(inside):
        return "its blocks are out of order"
    if any(levels[i].format != DimensionType.DENSE for i in inside):
        return "its blocks are sparse"
    data = graph.model.buffers[table.buffer].data if 0 < table.buffer < len(graph.model.buffers) else None
    if data is None or len(as_bytes(data)) < (nbytes(table.type, stored) or 0):
        return "it has too few values"
    return None


def _type_name(type: int) -> str:
    try:
        return TensorType(type).name
    except ValueError:
        return f"type {type}"


def _operands(graph: Graph, op: Operator, entry: _Entry) -> str | None:
    name = graph.kind(op).name
    for slot in entry.constants:
        if slot < len(op.inputs) and op.inputs[slot] >= 0 and not _has_value(graph, op.inputs[slot]):
            return f"operand {slot} of {name}, `{graph.name(op.inputs[slot])}`, is not constant"
    for slot in entry.weights:
        if slot >= len(op.inputs) or op.inputs[slot] < 0:
            continue
        tensor = op.inputs[slot]
        maker = graph.producer(tensor)
        if not graph.is_constant(tensor) and (maker is None or not fed_by_constants(graph, maker)):
            return f"the weights of {name}, `{graph.name(tensor)}`, are not constant"
    for tensor in op.inputs:
        if tensor < 0 or graph.is_constant(tensor) or graph.producer(tensor) is not None or tensor in graph.inputs:
            continue
        if 0 not in (graph.shape(tensor) or ()):
            return f"nothing computes `{graph.name(tensor)}`"
    return None


def _has_value(graph: Graph, tensor: int) -> bool:
    """Whether the file tells a tensor's value; one without elements has none to tell."""
    if graph.constant(tensor) is not None:
        return True
    shape = graph.shape(tensor)
    return graph.producer(tensor) is None and tensor not in graph.inputs and shape is not None and 0 in shape


def _types(graph: Graph, op: Operator, kind: OperatorKind, entry: _Entry) -> str | None:
    """Types and quantisation of data and results."""
    data = op.inputs[entry.data]
    type = graph.type(data)
    if type == TensorType.FLOAT16 and kind is Op.DEQUANTIZE:
        return None if graph.type(op.outputs[0]) == TensorType.FLOAT32 else "DEQUANTIZE does not give FLOAT32"
    if kind is Op.DENSIFY:
        if graph.tensor(data).sparsity is None or not graph.is_constant(data):
            return f"`{graph.name(data)}`, which DENSIFY reads, is no sparse constant"
        if graph.type(op.outputs[0]) != type:
            return f"DENSIFY of {_type_name(type)} gives {_type_name(graph.type(op.outputs[0]))}"
        if type == TensorType.FLOAT16:
            return None
    if type not in {_LETTERS[c] for c in entry.types}:
        return f"{kind.name} of {_type_name(type)} is not among the delegate's kernels"
    if entry.role is OpClass.ROOT:
        return _root_types(graph, op, kind, type)
    if kind in (Op.SELECT, Op.SELECT_V2) and graph.type(op.inputs[0]) != TensorType.BOOL:
        return f"the condition of {kind.name} is not BOOL"
    others = list(op.inputs) if entry.role is OpClass.BROADCAST else []
    if kind in (Op.CONCATENATION, Op.PACK):
        others = list(op.inputs)
    if kind in (Op.SELECT, Op.SELECT_V2):
        others = list(op.inputs[1:])
    wrong = next((t for t in others if t >= 0 and graph.type(t) != type), None)
    if wrong is not None:
        return f"{kind.name} mixes {_type_name(type)} and {_type_name(graph.type(wrong))}"
    results = {graph.type(t) for t in op.outputs}
    if kind is Op.DEQUANTIZE:
        fine = results == {TensorType.FLOAT32}
    elif kind is Op.QUANTIZE:
        fine = results <= (_QUANTIZED if type == TensorType.FLOAT32 else _QUANTIZED | {TensorType.INT32})
    elif kind is Op.CAST:
        fine = results <= set(_LETTERS.values())
    elif kind in COMPARISONS:
        fine = results == {TensorType.BOOL}
    else:
        fine = results == {type}
    if not fine:
        return f"{kind.name} of {_type_name(type)} gives {' and '.join(sorted(map(_type_name, results)))}"
    return _quantized(graph, op, kind, entry)


def _root_types(graph: Graph, op: Operator, kind: OperatorKind, type: TensorType) -> str | None:
    weights = op.inputs[0 if kind is Op.BATCH_MATMUL and graph.is_constant(op.inputs[0]) else 1]
    found = graph.type(weights)
    expected = TensorType.INT8 if type == TensorType.INT16 and kind is not Op.BATCH_MATMUL else type
    if type == TensorType.FLOAT32 and found == TensorType.INT8 and kind is not Op.TRANSPOSE_CONV:
        expected = found  # the input is quantised row by row on its way in
    if found != expected:
        return f"{kind.name} of {_type_name(type)} with {_type_name(found)} weights is not among the delegate's kernels"
    if graph.type(op.outputs[0]) != type:
        return f"{kind.name} of {_type_name(type)} gives {_type_name(graph.type(op.outputs[0]))}"
    slot = {Op.TRANSPOSE_CONV: 3, Op.BATCH_MATMUL: len(op.inputs)}.get(kind, 2)
    bias = op.inputs[slot] if slot < len(op.inputs) else -1
    if bias >= 0:
        wanted = {
            TensorType.FLOAT32: {TensorType.FLOAT32},
            TensorType.INT16: {TensorType.INT32, TensorType.INT64},
        }.get(type, {TensorType.INT32})
        if graph.type(bias) not in wanted:
            return f"the bias of {kind.name} holds {_type_name(graph.type(bias))}"
    data = 2 if kind is Op.TRANSPOSE_CONV else 0
    if type in _QUANTIZED:
        for tensor in (op.inputs[data], op.outputs[0]):
            if _scales(graph, tensor) != 1:
                return f"`{graph.name(tensor)}` has no quantisation, or more than one scale"
        if not _scales(graph, weights):
            return f"the weights `{graph.name(weights)}` have no quantisation"
    return None


def _quantized(graph: Graph, op: Operator, kind: OperatorKind, entry: _Entry) -> str | None:
    """What is lacking where stored integers stand for other numbers."""
    if kind in _PLAIN:
        return None
    for slot, tensor in enumerate((*op.inputs, *op.outputs)):
        if tensor < 0 or graph.type(tensor) not in _QUANTIZED or slot in entry.constants:
            continue
        if _scales(graph, tensor) > 1 and not (kind is Op.DEQUANTIZE and _is_fixed(graph, tensor)):
            return f"`{graph.name(tensor)}` has more than one scale"
        if entry.role is not OpClass.INJECTIVE and not _scales(graph, tensor):
            return f"`{graph.name(tensor)}` has no quantisation"
    return None


def _scales(graph: Graph, tensor: int) -> int:
    q = graph.quantization(tensor)
    return 0 if q is None or q.scale is None else len(q.scale)


# Operators that TFLite refuses when input and output differ in quantisation.
_SAME_NUMBERS = frozenset({Op.REDUCE_MAX, Op.REDUCE_MIN, Op.PACK, Op.UNPACK})


def _parameters(graph: Graph, tensor: int) -> tuple[float, int]:
    q = graph.quantization(tensor)
    if q is None or q.scale is None or not len(q.scale):
        return 0.0, 0
    return float(q.scale[0]), 0 if q.zero_point is None or not len(q.zero_point) else int(q.zero_point[0])


# Ranks of what is read and written, by slot, where only one will do; the output is the last one.
_PIXELS = frozenset({Op.DEPTH_TO_SPACE, Op.SPACE_TO_DEPTH}) | POOLS | RESIZES
_CONVOLUTIONS = frozenset({Op.CONV_2D, Op.DEPTHWISE_CONV_2D, Op.TRANSPOSE_CONV})


def _ranks(graph: Graph, op: Operator, kind: OperatorKind) -> str | None:
    """Whether shapes have as many dimensions as the operator is about."""
    data = op.inputs[_TABLE[kind].data]
    wanted: dict[int, int] = {}
    if kind in _PIXELS or kind in _CONVOLUTIONS:
        wanted = {data: 4, op.outputs[0]: 4}
    if kind in _CONVOLUTIONS:
        wanted[op.inputs[1]] = 4
    if kind is Op.FULLY_CONNECTED:
        wanted[op.inputs[1]] = 2
    for tensor, rank in wanted.items():
        shape = graph.shape(tensor)
        if shape is None or len(shape) != rank:
            return f"`{graph.name(tensor)}` has not the {rank} dimensions that {kind.name} needs"
    least = 2 if kind is Op.BATCH_MATMUL else 1
    if _TABLE[kind].role in (OpClass.ROOT, OpClass.REDUCTION):
        for tensor in (data, op.outputs[0]) if _TABLE[kind].role is OpClass.ROOT else (data,):
            if len(graph.shape(tensor) or ()) < least:
                return f"`{graph.name(tensor)}` has less than {least} dimensions"
    return None


def _particular(graph: Graph, op: Operator, kind: OperatorKind) -> str | None:
    """What only some operators ask for."""
    options = op.builtin_options if op.builtin_options is not None else op.builtin_options_2
    if kind is Op.FULLY_CONNECTED and getattr(options, "weights_format", None):
        return "the weights of FULLY_CONNECTED are shuffled"
    if kind in (Op.DIV, Op.FLOOR_DIV, Op.FLOOR_MOD) and not graph.is_float(op.outputs[0]):
        divisor = graph.constant(op.inputs[1])
        if graph.type(op.outputs[0]) in (TensorType.INT32, TensorType.INT64) and (
            divisor is None or not bool(np.all(divisor))
        ):
            return f"{kind.name} of integers may divide by zero, which is an error at run time"
    if kind in (Op.CONCATENATION, Op.L2_NORMALIZATION) and graph.activation(op):
        return f"{kind.name} has a fused activation"
    if kind in _SAME_NUMBERS and len({_parameters(graph, t) for t in (op.inputs[0], *op.outputs)}) > 1:
        return f"{kind.name} copies integers that mean something else afterwards"
    reason = _ranks(graph, op, kind)
    if reason:
        return reason
    if kind is Op.TRANSPOSE_CONV and (graph.shape(op.inputs[2]) or (1,))[0] < 0:
        return "TRANSPOSE_CONV of an open batch has an output of a fixed one"
    if kind is Op.RESHAPE:
        shape = op.inputs[1] if len(op.inputs) > 1 else -1
        if shape < 0 and getattr(options, "new_shape", None) is None:
            return "RESHAPE lacks its shape"
    return None
