"""Values that are known before run time.

fold-shape: SHAPE(x), RANK(x) -> constant, where x has a static shape.

fold-constants, fold-quantized-constants, fold-constant-math: f(constants) -> constant, in three classes, because
kernels may round f in different ways.

Weights that a file keeps in fewer bytes than they are used in, such as float16 or int8 behind DEQUANTIZE, stay so: a
result may be only a little larger than what it makes superfluous. Sparse ones behind DENSIFY stay at any size, since
runtimes with sparse kernels look for just that.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from litefuse.fusions.identity import same_quantization
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph
from litefuse.graph.declared import contradiction
from litefuse.graph.evaluate import evaluate
from litefuse.graph.graph import NOT_PURE, Array
from litefuse.graph.infer import infer_operator
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator
from litefuse.schema.types import FLOATS, NUMPY, nbytes
from litefuse.schema.writer import as_bytes

# By how much folding one operator may enlarge the file: below this, an operator less is worth more.
MAX_GROWTH = 4096

# Operators that compute nothing: they move, repeat, select or compare.
_MOVES = frozenset(
    {
        Op.BATCH_TO_SPACE_ND,
        Op.BITCAST,
        Op.BROADCAST_ARGS,
        Op.BROADCAST_TO,
        Op.CAST,
        Op.CONCATENATION,
        Op.DEPTH_TO_SPACE,
        Op.DYNAMIC_UPDATE_SLICE,
        Op.EXPAND_DIMS,
        Op.FILL,
        Op.GATHER,
        Op.GATHER_ND,
        Op.MIRROR_PAD,
        Op.ONE_HOT,
        Op.PACK,
        Op.PAD,
        Op.PADV2,
        Op.RESHAPE,
        Op.RESIZE_NEAREST_NEIGHBOR,
        Op.REVERSE_SEQUENCE,
        Op.REVERSE_V2,
        Op.SCATTER_ND,
        Op.SELECT,
        Op.SELECT_V2,
        Op.SLICE,
        Op.SPACE_TO_BATCH_ND,
        Op.SPACE_TO_DEPTH,
        Op.SPLIT,
        Op.SPLIT_V,
        Op.SQUEEZE,
        Op.STRIDED_SLICE,
        Op.TILE,
        Op.TRANSPOSE,
        Op.UNPACK,
        Op.ZEROS_LIKE,
    }
)
# Operators that every kernel rounds as IEEE 754 says, when on floats.
_ROUNDED_ONCE = frozenset(
    {
        Op.ABS,
        Op.ADD,
        Op.CEIL,
        Op.DEQUANTIZE,
        Op.DIV,
        Op.EQUAL,
        Op.FLOOR,
        Op.GREATER,
        Op.GREATER_EQUAL,
        Op.LESS,
        Op.LESS_EQUAL,
        Op.MAXIMUM,
        Op.MINIMUM,
        Op.MUL,
        Op.NEG,
        Op.NOT_EQUAL,
        Op.SQUARE,
        Op.SUB,
    }
)


_IS_OUTPUT = "its result is an output of the graph, which an operator must write"


class FoldShape(Rule):
    """SHAPE(x) and RANK(x) are constants when x has a static shape (for RANK, a known rank)."""

    name = "fold-shape"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.SHAPE, Op.RANK})
    example = """
        graph main(%x: f32[64,16], %like: f32[1,8,8,16]) {
          %s = SHAPE(%like)
          %y = RESHAPE(%x, %s)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Puts a constant in the place of the result."""
        if not op.inputs or op.inputs[0] < 0 or not op.outputs:
            return None
        x, out = op.inputs[0], op.outputs[0]
        if graph.kind(op) is Op.RANK:
            shape = graph.shape(x)
            value = None if shape is None else np.asarray(len(shape))
        else:
            shape = graph.static_shape(x)
            value = None if shape is None else np.array(shape)
        dtype = NUMPY.get(graph.type(out))
        if value is None or dtype is None or dtype.kind != "i":
            return None
        if reason := contradiction(graph, x):
            return Refused(reason)
        return _to_constants(graph, op, [value.astype(dtype)])


class _Folding(Rule):
    """Base of the rules that evaluate operators on constants.

    Args:
        widen_fp16: also fold the DEQUANTIZE (or CAST) of float16 constants to float32, at any size.
    """

    kinds = frozenset(Op) - NOT_PURE - FoldShape.kinds - {Op.DENSIFY}
    numerics: ClassVar[Numerics]

    def __init__(self, widen_fp16: bool = False) -> None:
        self.widen_fp16 = widen_fp16

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Evaluates ``op`` if its inputs are constants, it is of this rule's class and its result is not too large."""
        if max(op.inputs, default=-1) < 0 or not all(t < 0 or _is_known(graph, t) for t in op.inputs):
            return None
        if _numerics(graph, op) is not self.numerics:
            return None
        widens = _widens_fp16(graph, op)
        if widens and not self.widen_fp16:
            return None
        size = _size(graph, op)
        if size is None:
            return None
        if any(t in graph.outputs for t in op.outputs):
            return Refused(_IS_OUTPUT)
        if size > MAX_GROWTH and not widens:
            freed = _freed(graph, op)
            if size > freed + MAX_GROWTH:
                return Refused(f"its value takes {size:,} bytes and would make only {freed:,} bytes superfluous")
        values = evaluate(graph, op, max_bytes=size)
        return None if values is None else _to_constants(graph, op, values)


class FoldConstants(_Folding):
    """f(constants) -> constant where f moves, selects, compares, counts, or rounds once as IEEE 754 says."""

    name = "fold-constants"
    numerics = Numerics.EXACT
    example = """
        graph main(%x: f32[1,16]) {
          %t = TRANSPOSE(w[16,8], i32[2]=(1, 0))
          %y = FULLY_CONNECTED(%x, %t, _)
          return %y
        }
    """


class FoldQuantizedConstants(_Folding):
    """f(constants) -> constant where f ends in a requantisation, which kernels may round either way at a tie."""

    name = "fold-quantized-constants"
    numerics = Numerics.QUANTIZED
    example = """
        graph main(%x: i8[1,16]{scale=0.5}) {
          %q: i8[16]{scale=0.1} = QUANTIZE(c[16])
          %y: i8[1,16]{scale=0.5} = ADD(%x, %q)
          return %y
        }
    """


class FoldConstantMath(_Folding):
    """f(constants) -> constant, as the builtin kernels compute it, for f on floats that kernels round differently.

    EXP, MEAN, CONV_2D and the like: another kernel may differ by as much as its own documentation allows.
    """

    name = "fold-constant-math"
    numerics = Numerics.REASSOCIATED
    example = """
        graph main(%x: f32[1,16]) {
          %e = EXP(c[16])
          %y = MUL(%x, %e)
          return %y
        }
    """


def _is_known(graph: Graph, tensor: int) -> bool:
    """Whether a tensor is a constant; one without elements looks like a computed one in a file."""
    if graph.is_constant(tensor):
        return True
    computed = graph.producer(tensor) is not None or tensor in graph.inputs or graph.tensor(tensor).is_variable
    return not computed and 0 in (graph.static_shape(tensor) or ())


def _numerics(graph: Graph, op: Operator) -> Numerics:
    """In which class the result of an operator belongs when it is computed beforehand."""
    kind = graph.kind(op)
    tensors = [t for t in (*op.inputs, *op.outputs) if t >= 0]
    quantized = any(graph.quantization(t) is not None and graph.type(t) not in FLOATS for t in op.outputs)
    if kind in _MOVES:
        rescales = kind is Op.CONCATENATION and not all(same_quantization(graph, t, op.outputs[0]) for t in op.inputs)
        return Numerics.QUANTIZED if rescales else Numerics.EXACT
    if quantized:
        return Numerics.QUANTIZED
    if kind in _ROUNDED_ONCE or not any(graph.type(t) in FLOATS for t in tensors):
        return Numerics.EXACT
    return Numerics.REASSOCIATED


def _widens_fp16(graph: Graph, op: Operator) -> bool:
    return (
        graph.kind(op) in (Op.DEQUANTIZE, Op.CAST)
        and graph.type(op.inputs[0]) in (TensorType.FLOAT16, TensorType.BFLOAT16)
        and graph.type(op.outputs[0]) == TensorType.FLOAT32
    )


def _freed(graph: Graph, op: Operator) -> int:
    """Bytes of the constants that nothing but ``op`` needs."""
    mine = {t for t in op.inputs if t >= 0 and graph.only_reader(t) is op}
    tables = {id(graph.tensor(t)) for t in mine}
    buffers = {graph.tensor(t).buffer for t in mine}
    elsewhere = {t.buffer for s in graph.model.subgraphs for t in s.tensors if id(t) not in tables}
    contents = [graph.model.buffers[b].data for b in buffers - elsewhere]
    return sum(as_bytes(data).nbytes for data in contents if data is not None)


def _size(graph: Graph, op: Operator) -> int | None:
    """Bytes of the results, or None when they cannot be told beforehand."""
    specs = infer_operator(graph, op)
    if specs is None:
        return None
    total = 0
    for shape, type in specs:
        size = None if shape is None or min(shape, default=0) < 0 else nbytes(type, math.prod(shape))
        if size is None:
            return None
        total += size
    return total


def _to_constants(graph: Graph, op: Operator, values: list[Array]) -> Outcome:
    """Removes ``op`` and gives its readers constants; None when a value is not of its tensor's type."""
    if any(t in graph.outputs for t in op.outputs):
        return Refused(_IS_OUTPUT)
    for tensor, value in zip(op.outputs, values, strict=True):
        if value.size == 0 or NUMPY.get(graph.type(tensor)) != value.dtype:
            return None
    for tensor, value in zip(op.outputs, values, strict=True):
        if graph.readers(tensor):
            table = graph.tensor(tensor)
            constant = graph.add_constant(graph.name(tensor), value, type=table.type, quantization=table.quantization)
            graph.replace_uses(tensor, constant)
    graph.remove(op)
    graph.prune(op.inputs)
    return Applied()


def rules(widen_fp16: bool = False) -> tuple[Rule, ...]:
    """The rules of this module.

    Args:
        widen_fp16: turn float16 constants that are only used as float32 into float32 ones, which makes files larger.
    """
    return FoldShape(), FoldConstants(widen_fp16), FoldQuantizedConstants(widen_fp16), FoldConstantMath(widen_fp16)
