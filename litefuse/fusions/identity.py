"""Operators that return what they are given, and pairs of operators that undo each other.

remove-identity::

    RESHAPE, SQUEEZE to the same shape        TRANSPOSE in the same order       CAST, BITCAST to the same type
    PAD of nothing, SLICE of everything       TILE once, GATHER of 0, 1, 2...   SPLIT into one, CONCATENATION of one
    RESIZE_NEAREST_NEIGHBOR to the same size  QUANTIZE to the same parameters   blocks of one, axes of size one
    x * 1, x / 1, x + 0, 1x1 pooling, reductions over axes of size one: integers, booleans, quantised

remove-neutral-arithmetic: the last line for floats, -(-x), and RESIZE_BILINEAR to the same size.

cancel-pairs: -(-x), not(not x), CAST there and back through a wider type, QUANTIZE(DEQUANTIZE(q)).

merge-reshapes, merge-transposes: two in a row are one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, TypeAlias

import numpy as np

from litefuse.fusions.operands import RESHAPES, input_of, integers, option, permutation
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph, OperatorKind
from litefuse.graph.graph import Array
from litefuse.schema.declare import diff
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator
from litefuse.schema.types import FLOATS, NUMPY, RANGES

# Says which tensor an operator's result equals, or None when it is not known to equal any.
Finder: TypeAlias = Callable[[Graph, Operator], "int | None"]

COMPLEX = frozenset({TensorType.COMPLEX64, TensorType.COMPLEX128})
SMALL_INTEGERS = frozenset({TensorType.INT8, TensorType.UINT8, TensorType.INT16})

# What is left of an operator with a fused activation when the operator itself does nothing: kind and version by type.
_ACTIVATIONS: dict[ActivationFunctionType, tuple[OperatorKind, dict[TensorType, int]]] = {
    ActivationFunctionType.RELU: (
        Op.RELU,
        {TensorType.FLOAT32: 1, TensorType.INT8: 2, TensorType.UINT8: 2, TensorType.INT16: 3},
    ),
    ActivationFunctionType.RELU6: (Op.RELU6, {TensorType.FLOAT32: 1, TensorType.INT8: 2, TensorType.UINT8: 2}),
    ActivationFunctionType.RELU_N1_TO_1: (
        Op.RELU_N1_TO_1,
        {TensorType.FLOAT32: 1, TensorType.INT8: 1, TensorType.UINT8: 1},
    ),
}


def same_quantization(graph: Graph, a: int, b: int) -> bool:
    """Whether the stored numbers of two tensors mean the same; of floats they always do."""
    if graph.type(a) in FLOATS and graph.type(b) in FLOATS:
        return True
    p, q = graph.quantization(a), graph.quantization(b)
    if p is None or q is None:
        return p is q
    if p.details is not None or q.details is not None:
        return not any(diff(p, q))
    assert p.scale is not None
    assert q.scale is not None
    zeros = np.zeros(len(p.scale), np.int64)
    p_zero = zeros if p.zero_point is None else p.zero_point
    q_zero = zeros if q.zero_point is None else q.zero_point
    same = np.array_equal(p.scale, q.scale) and np.array_equal(p_zero, q_zero)
    return same and (len(p.scale) == 1 or p.quantized_dimension == q.quantized_dimension)


# -- what moves or converts ------------------------------------------------------------------------------------------


def _same_shape(graph: Graph, a: int, b: int) -> bool:
    shape = graph.static_shape(a)
    return shape is not None and shape == graph.static_shape(b)


def _all_one(shape: tuple[int, ...], axes: list[int]) -> bool:
    """Whether all these axes are of size one."""
    return all(-len(shape) <= axis < len(shape) and shape[axis] == 1 for axis in axes)


def _all(graph: Graph, tensor: int, number: int) -> bool:
    """Whether a constant holds nothing but ``number``."""
    value = graph.constant(tensor)
    return value is not None and bool(np.all(value == number))


def _is_shape_of(graph: Graph, tensor: int, x: int) -> bool:
    maker = graph.producer(tensor)
    return maker is not None and graph.kind(maker) is Op.SHAPE and input_of(maker, 0) == x


def _reshape(graph: Graph, op: Operator) -> int | None:
    # Whatever reshaping lies between a tensor and the same shape again does not matter.
    x, out = op.inputs[0], op.outputs[0]
    if graph.kind(op) is Op.RESHAPE and _keeps_dynamic_shape(graph, op):
        return x
    if graph.kind(op) is Op.SQUEEZE and _rank(graph, x) is not None and _rank(graph, x) == _rank(graph, out):
        return x
    while not _same_shape(graph, x, out):
        maker = graph.producer(x)
        if maker is None or graph.kind(maker) not in RESHAPES:
            return None
        x = maker.inputs[0]
    return x


def _rank(graph: Graph, tensor: int) -> int | None:
    shape = graph.shape(tensor)
    return None if shape is None else len(shape)


def _keeps_dynamic_shape(graph: Graph, op: Operator) -> bool:
    """Whether a RESHAPE with a known target, or to SHAPE(x), keeps a shape with one unknown dimension."""
    if _is_shape_of(graph, input_of(op, 1), op.inputs[0]):
        return True
    shape, target = graph.shape(op.inputs[0]), integers(graph, input_of(op, 1))
    # One unknown on both sides, in the same place: as many elements make it the same size.
    return shape is not None and shape.count(-1) == 1 and target == list(shape)


def _transpose(graph: Graph, op: Operator) -> int | None:
    x = op.inputs[0]
    order = permutation(graph, op)
    while order is not None:
        if order == sorted(order):
            return x
        shape = graph.static_shape(x)
        # Axes of size one may go anywhere.
        if shape is not None and len(shape) == len(order) and _same_shape(graph, x, op.outputs[0]):
            moved = [axis for axis in order if shape[axis] != 1]
            if moved == sorted(moved):
                return x
        maker = graph.producer(x)
        if maker is None or graph.kind(maker) is not Op.TRANSPOSE:
            return None
        inner = permutation(graph, maker)
        order = [inner[axis] for axis in order] if inner is not None and len(inner) == len(order) else None
        x = maker.inputs[0]
    return None


def _same_type(graph: Graph, op: Operator) -> int | None:
    return op.inputs[0] if graph.type(op.inputs[0]) == graph.type(op.outputs[0]) else None


def _quantize(graph: Graph, op: Operator) -> int | None:
    x, out = op.inputs[0], op.outputs[0]
    return x if graph.quantization(x) is not None and same_quantization(graph, x, out) else None


def _pad(graph: Graph, op: Operator) -> int | None:
    return op.inputs[0] if _all(graph, input_of(op, 1), 0) else None


def _blocks(graph: Graph, op: Operator) -> int | None:
    return op.inputs[0] if _all(graph, input_of(op, 1), 1) and _all(graph, input_of(op, 2), 0) else None


def _depth(graph: Graph, op: Operator) -> int | None:
    return op.inputs[0] if option(op, "block_size") == 1 else None


def _slice(graph: Graph, op: Operator) -> int | None:
    sizes, shape = integers(graph, input_of(op, 2)), graph.shape(op.inputs[0])
    if sizes is None or shape is None or len(sizes) != len(shape) or not _all(graph, input_of(op, 1), 0):
        return None
    return op.inputs[0] if all(n in (-1, d) for n, d in zip(sizes, shape, strict=True)) else None


def _strided_slice(graph: Graph, op: Operator) -> int | None:
    begin, end = integers(graph, input_of(op, 1)), integers(graph, input_of(op, 2))
    shape = graph.shape(op.inputs[0])
    if begin is None or end is None or shape is None or not len(begin) == len(end) <= len(shape):
        return None
    if any(option(op, name) for name in ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask", "offset")):
        return None
    begin_mask, end_mask = option(op, "begin_mask"), option(op, "end_mask")
    for axis, (first, last, size) in enumerate(zip(begin, end, shape, strict=False)):
        # Indices beyond the ends are clamped to them.
        from_start = begin_mask >> axis & 1 or first == 0 or 0 <= size <= -first
        to_end = end_mask >> axis & 1 or last == np.iinfo(np.int32).max or 0 <= size <= last
        if not (from_start and to_end):
            return None
    return op.inputs[0] if _all(graph, input_of(op, 3), 1) else None


def _concatenation(graph: Graph, op: Operator) -> int | None:
    if graph.activation(op) is not ActivationFunctionType.NONE:
        return None
    filled = [t for t in op.inputs if 0 not in (graph.static_shape(t) or ())]
    return filled[0] if len(filled) == 1 else None


def _split(graph: Graph, op: Operator) -> int | None:
    return input_of(op, 1 if graph.kind(op) is Op.SPLIT else 0) if len(op.outputs) == 1 else None


def _tile(graph: Graph, op: Operator) -> int | None:
    return op.inputs[0] if _all(graph, input_of(op, 1), 1) else None


def _to_same_shape(graph: Graph, op: Operator) -> int | None:
    return op.inputs[0] if _same_shape(graph, op.inputs[0], op.outputs[0]) else None


def _broadcast(graph: Graph, op: Operator) -> int | None:
    return op.inputs[0] if _is_shape_of(graph, input_of(op, 1), op.inputs[0]) else _to_same_shape(graph, op)


def _gather(graph: Graph, op: Operator) -> int | None:
    places, shape = graph.constant(input_of(op, 1)), graph.shape(op.inputs[0])
    axis = option(op, "axis")
    if places is None or places.ndim != 1 or shape is None or option(op, "batch_dims") != 0:
        return None
    if not -len(shape) <= axis < len(shape) or len(places) != shape[axis]:
        return None
    return op.inputs[0] if np.array_equal(places, np.arange(len(places))) else None


def _reverse(graph: Graph, op: Operator) -> int | None:
    axes, shape = integers(graph, input_of(op, 1)), graph.shape(op.inputs[0])
    return op.inputs[0] if axes is not None and shape is not None and _all_one(shape, axes) else None


_MOVES: dict[OperatorKind, Finder] = {
    Op.RESHAPE: _reshape,
    Op.SQUEEZE: _reshape,
    Op.EXPAND_DIMS: _reshape,
    Op.TRANSPOSE: _transpose,
    Op.CAST: _same_type,
    Op.BITCAST: _same_type,
    Op.QUANTIZE: _quantize,
    Op.PAD: _pad,
    Op.PADV2: _pad,
    Op.MIRROR_PAD: _pad,
    Op.SLICE: _slice,
    Op.STRIDED_SLICE: _strided_slice,
    Op.CONCATENATION: _concatenation,
    Op.SPLIT: _split,
    Op.SPLIT_V: _split,
    Op.TILE: _tile,
    Op.BROADCAST_TO: _broadcast,
    Op.GATHER: _gather,
    Op.REVERSE_V2: _reverse,
    Op.SPACE_TO_BATCH_ND: _blocks,
    Op.BATCH_TO_SPACE_ND: _blocks,
    Op.SPACE_TO_DEPTH: _depth,
    Op.DEPTH_TO_SPACE: _depth,
    Op.RESIZE_NEAREST_NEIGHBOR: _to_same_shape,
}


# -- what computes -----------------------------------------------------------------------------------------------------


def _neutral(number: int, *, commutes: bool = False, integers_only: bool = False) -> Finder:
    """Finds the other operand of a constant ``number`` (0 or 1), whose shape the result must have."""

    def find(graph: Graph, op: Operator) -> int | None:
        a, b = input_of(op, 0), input_of(op, 1)
        for x, constant in ((a, b), (b, a)) if commutes else ((a, b),):
            value = graph.constant(constant)
            if value is None or (integers_only and value.dtype.kind not in "iu"):
                continue
            if _fits_into(value.shape, graph.shape(x)) and _means(graph, constant, value, number, x):
                return x
        return None

    return find


def _fits_into(small: tuple[int, ...], large: tuple[int, ...] | None) -> bool:
    """Whether broadcasting a shape with a possibly dynamic one gives the latter, whatever it turns out to be."""
    if large is None:
        return not small
    tail = large[len(large) - len(small) :]
    return len(small) <= len(large) and all(s == 1 or s == d for s, d in zip(small, tail, strict=True))


def _means(graph: Graph, constant: int, value: Array, number: int, x: int) -> bool:
    """Whether all elements of a constant stand for ``number``, beside an operand x with the result's quantisation.

    A quantised 1 may be off by so little that over all of x's range the product stays within 1/64 of an integer,
    which every kernel rounds to that integer. A quantised 0 must be one; its scale may be up to 1024 times x's, so
    that the 15 bits and more by which the kernels shift x before they add keep it exact.
    """
    q, p = graph.quantization(constant), graph.quantization(x)
    if graph.type(x) not in SMALL_INTEGERS:
        return (graph.type(x) in FLOATS or (q is None and p is None)) and bool(np.all(value == number))
    if q is None or p is None or q.scale is None or p.scale is None or len(q.scale) != 1 or len(p.scale) != 1:
        return False
    scale = float(q.scale[0])
    zero_point = 0 if q.zero_point is None else int(q.zero_point[0])
    steps = value.astype(np.int64) - zero_point
    if number == 0:
        return bool(np.all(steps == 0)) and scale <= 1024 * float(p.scale[0])
    low, high = RANGES[graph.type(x)]
    return float(np.max(np.abs(steps * scale - 1.0), initial=0.0)) * (high - low) <= 1 / 64


def _pool(graph: Graph, op: Operator) -> int | None:
    ones = all(option(op, name) == 1 for name in ("filter_width", "filter_height", "stride_w", "stride_h"))
    return op.inputs[0] if ones else None


def _reduction(graph: Graph, op: Operator) -> int | None:
    if graph.static_shape(input_of(op, 1)) == (0,):
        return op.inputs[0]
    axes, shape = integers(graph, input_of(op, 1)), graph.shape(op.inputs[0])
    if axes is None or shape is None or not option(op, "keep_dims"):
        return None
    return op.inputs[0] if _all_one(shape, axes) else None


def _twice(graph: Graph, op: Operator) -> int | None:
    maker = graph.producer(op.inputs[0])
    return maker.inputs[0] if maker is not None and graph.kind(maker) is graph.kind(op) else None


_ARITHMETIC: dict[OperatorKind, Finder] = {
    Op.MUL: _neutral(1, commutes=True),
    Op.DIV: _neutral(1),
    Op.FLOOR_DIV: _neutral(1, integers_only=True),
    Op.POW: _neutral(1),
    Op.ADD: _neutral(0, commutes=True),
    Op.SUB: _neutral(0),
    Op.MAX_POOL_2D: _pool,
    Op.AVERAGE_POOL_2D: _pool,
    Op.RESIZE_BILINEAR: _to_same_shape,
    Op.MEAN: _reduction,
    Op.SUM: _reduction,
    Op.REDUCE_PROD: _reduction,
    Op.REDUCE_MAX: _reduction,
    Op.REDUCE_MIN: _reduction,
    Op.REDUCE_ANY: _reduction,
    Op.REDUCE_ALL: _reduction,
}


# -- pairs -------------------------------------------------------------------------------------------------------------


def _cast_back(graph: Graph, op: Operator) -> int | None:
    maker = graph.producer(op.inputs[0])
    if maker is None or graph.kind(maker) is not Op.CAST:
        return None
    x = maker.inputs[0]
    narrow, wide = NUMPY.get(graph.type(x)), NUMPY.get(graph.type(op.inputs[0]))
    if narrow is None or wide is None or graph.type(x) != graph.type(op.outputs[0]):
        return None
    # numpy calls int64 to float64 safe, which it is not.
    lossless = np.can_cast(narrow, wide, "safe") and not (
        narrow.kind in "iu" and wide.kind in "fc" and narrow.itemsize == 8
    )
    return x if lossless else None


def _quantize_back(graph: Graph, op: Operator) -> int | None:
    """The q of QUANTIZE(DEQUANTIZE(q)) with equal parameters.

    Both kernels round once or twice in float32: (q - z) * s / s is off by less than 4 * 2^-24 of |q - z| < 2^16,
    which is 1/64, so that rounding gives q - z back, for every scale that stays clear of float32's ends.
    """
    maker = graph.producer(op.inputs[0])
    if maker is None or graph.kind(maker) is not Op.DEQUANTIZE:
        return None
    x, out = maker.inputs[0], op.outputs[0]
    p = graph.quantization(x)
    if graph.type(x) not in SMALL_INTEGERS or graph.type(x) != graph.type(out) or p is None or p.scale is None:
        return None
    sane = bool(np.all((p.scale > 1e-30) & (p.scale < 1e30)))
    return x if sane and p.details is None and same_quantization(graph, x, out) else None


_PAIRS: dict[OperatorKind, Finder] = {
    Op.NEG: _twice,
    Op.LOGICAL_NOT: _twice,
    Op.CAST: _cast_back,
    Op.QUANTIZE: _quantize_back,
}


# -- the rules ---------------------------------------------------------------------------------------------------------


def _remove(graph: Graph, op: Operator, x: int) -> Outcome:
    """Removes an operator whose result, before its activation, is ``x``."""
    out = op.outputs[0]
    if graph.tensor(x).is_variable:
        return Refused(f"`{graph.name(x)}` is a variable, which may change before `{graph.name(out)}` is read")
    activation = graph.activation(op)
    if activation is not ActivationFunctionType.NONE:
        kind, versions = _ACTIVATIONS.get(activation, (Op.RELU, {}))
        if graph.type(x) not in versions:
            return None
        graph.replace(op, kind, [x], version=versions[graph.type(x)])
        return Applied(f"only its {kind.name} is left")
    if graph.bypass(op, x):
        return Applied()
    both = (
        f"`{graph.name(x)}` is {'an output' if x in graph.outputs else 'an input' if x in graph.inputs else 'constant'}"
    )
    return Refused(f"{both} and `{graph.name(out)}` an output of the graph, so one must be copied to the other")


class _Removal(Rule):
    """Base of the rules that remove an operator whose result equals a tensor that is there anyway."""

    finders: ClassVar[Mapping[OperatorKind, Finder]]

    @abstractmethod
    def accepts(self, graph: Graph, op: Operator, x: int) -> str | None:
        """As PatternRule.check: None to go on, "" for no candidate, or the reason of a refusal."""

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        if not op.inputs or op.inputs[0] < 0 or not op.outputs:
            return None
        x = self.finders[graph.kind(op)](graph, op)
        if x is None or x < 0 or graph.type(x) != graph.type(op.outputs[0]):
            return None
        reason = self.accepts(graph, op, x)
        if reason is None:
            return _remove(graph, op, x)
        return Refused(reason) if reason else None


class RemoveIdentity(_Removal):
    """f(x) = x, bit for bit: f moves data to where it is, converts to what it is, or is neutral on integers."""

    name = "remove-identity"
    numerics = Numerics.EXACT
    finders = _MOVES | _ARITHMETIC
    kinds = frozenset(finders)
    example = """
        graph main(%x: f32[1,8]) {
          %a = TRANSPOSE(%x, i32[2]=(0, 1))
          %y = TANH(%a)
          return %y
        }
    """

    def accepts(self, graph: Graph, op: Operator, x: int) -> str | None:
        """Moves keep the stored numbers whatever the quantisation says; arithmetic computes on what they mean."""
        same = same_quantization(graph, x, op.outputs[0])
        if graph.kind(op) in _ARITHMETIC:
            return None if same and graph.type(x) not in FLOATS | COMPLEX else ""
        if same:
            return None
        return f"it gives the numbers of `{graph.name(x)}` another meaning: the output has another scale or zero point"


class RemoveNeutralArithmetic(_Removal):
    """f(x) = x for floats: x * 1, x + 0, -(-x), mean over one element, resizing to the same size.

    Equal numbers. The result may differ in what the stock kernels treat in different ways themselves: the sign of zero
    (-0.0 + 0.0 = 0.0), subnormals (which XNNPACK takes for zero), infinities (which some builtin kernels clamp to the
    largest float) and NaN (which MAX_POOL_2D drops).
    """

    name = "remove-neutral-arithmetic"
    numerics = Numerics.REASSOCIATED
    finders = _ARITHMETIC | {Op.NEG: _twice}
    kinds = frozenset(finders)
    example = """
        graph main(%x: f32[1,8]) {
          %a = MUL(%x, one[]=1.0)
          %y = TANH(%a)
          return %y
        }
    """

    def accepts(self, graph: Graph, op: Operator, x: int) -> str | None:
        """Floats only."""
        return None if graph.type(x) in FLOATS | COMPLEX else ""


class CancelPairs(_Removal):
    """g(f(x)) = x: -(-x) of integers, not(not x), CAST to a type that holds every x and back, QUANTIZE(DEQUANTIZE(x)).

    DEQUANTIZE(QUANTIZE(x)) is not of this kind: it rounds x.
    """

    name = "cancel-pairs"
    numerics = Numerics.EXACT
    finders = _PAIRS
    kinds = frozenset(finders)
    example = """
        graph main(%x: i8[1,8]{scale=0.5}) {
          %f = DEQUANTIZE(%x)
          %q: i8[1,8]{scale=0.5} = QUANTIZE(%f)
          %y: i8[1,8]{scale=0.0078125} = TANH(%q)
          return %y
        }
    """

    def accepts(self, graph: Graph, op: Operator, x: int) -> str | None:
        """Whatever is not exact on floats is left to RemoveNeutralArithmetic."""
        exact = graph.kind(op) is not Op.NEG or graph.type(x) not in FLOATS | COMPLEX
        return None if exact and same_quantization(graph, x, op.outputs[0]) else ""


class MergeReshapes(Rule):
    """reshape(reshape(x)) = reshape(x), where either may also be SQUEEZE or EXPAND_DIMS."""

    name = "merge-reshapes"
    numerics = Numerics.EXACT
    kinds = frozenset(RESHAPES)
    example = """
        graph main(%x: f32[1,4,4,8]) {
          %a = RESHAPE(%x, i32[2]=(1, 128))
          %y = RESHAPE(%a, i32[3]=(1, 16, 8))
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Makes the second read the first's input; SQUEEZE and EXPAND_DIMS become RESHAPE for that."""
        middle = input_of(op, 0)
        inner = graph.producer(middle)
        if inner is None or graph.kind(inner) not in RESHAPES:
            return None
        shape = graph.shape(op.outputs[0])
        if graph.kind(op) is not Op.RESHAPE and (shape is None or shape.count(-1) > 1 or 0 in shape):
            return None
        if reason := graph.why_shared(middle, op):
            return Refused(reason)
        x = inner.inputs[0]
        if graph.tensor(x).is_variable:
            return None
        if graph.kind(op) is Op.RESHAPE:
            graph.set_input(op, 0, x)
            graph.prune([middle])
        else:
            assert shape is not None
            target = graph.add_constant(f"{graph.name(op.outputs[0])}/shape", np.array(shape, np.int32))
            graph.replace(op, Op.RESHAPE, [x, target], new_shape=list(shape))
        return Applied()


class MergeTransposes(Rule):
    """transpose(transpose(x, p), q) = transpose(x, p[q])."""

    name = "merge-transposes"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.TRANSPOSE})
    example = """
        graph main(%x: f32[1,4,6,8]) {
          %a = TRANSPOSE(%x, i32[4]=(0, 3, 1, 2))
          %y = TRANSPOSE(%a, i32[4]=(0, 1, 3, 2))
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Replaces the second by one that does both; pairs that cancel are remove-identity's."""
        middle = input_of(op, 0)
        inner = graph.producer(middle)
        if inner is None or graph.kind(inner) is not Op.TRANSPOSE:
            return None
        p, q = permutation(graph, inner), permutation(graph, op)
        if p is None or q is None or len(p) != len(q) or graph.tensor(inner.inputs[0]).is_variable:
            return None
        if reason := graph.why_shared(middle, op):
            return Refused(reason)
        order = graph.add_constant(f"{graph.name(op.outputs[0])}/order", np.array([p[axis] for axis in q], np.int32))
        graph.replace(op, Op.TRANSPOSE, [inner.inputs[0], order], version=graph.version(op))
        return Applied()


RULES: tuple[Rule, ...] = (
    RemoveIdentity(),
    RemoveNeutralArithmetic(),
    CancelPairs(),
    MergeReshapes(),
    MergeTransposes(),
)
