"""Operators in numpy, where that is simple and gives the very bits of the stock kernels.

A kernel gets the operator's site, whose outputs have been inferred, and its operands, and returns the results or
None when it does not vouch for the bits: NaN and infinities (the stock kernels clamp them in ways that depend on
the code path), overflowing integers, quantised arithmetic. Operands may be int64 in place of narrower integers; then
so are the results (see :mod:`litefuse.graph.infer.values`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from litefuse.graph.graph import Array, OperatorKind
from litefuse.graph.infer.movement import spans
from litefuse.graph.infer.site import ShapeError, Site, Unknown
from litefuse.schema.enums import ActivationFunctionType, MirrorPadMode, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.types import NUMPY, RANGES

Result: TypeAlias = "Array | list[Array] | None"
Function: TypeAlias = "Callable[..., Result]"


class Style(Enum):
    """What a kernel does with its payload; it decides how partly known values pass through."""

    MOVES = "moves elements without looking at them"
    ELEMENTWISE = "computes each element from those in the same place, broadcast"
    REDUCES = "combines elements along the axes in input 1"
    SEGMENTS = "combines slices that have the same number in input 1"


ALL = -1


class Kernel(NamedTuple):
    """A numpy implementation of an operator."""

    function: Function
    style: Style
    inputs: tuple[int, ...]

    def payload(self, site: Site) -> list[int]:
        """Inputs whose elements end up in the result, as opposed to axes, sizes and indices."""
        return list(range(site.count)) if self.inputs == (ALL,) else [i for i in self.inputs if site.has(i)]

    def run(self, site: Site, operands: Sequence[Array | None]) -> list[Array] | None:
        """The results, contiguous, or None when the kernel does not apply."""
        try:
            with np.errstate(all="ignore"):
                found = self.function(site, *operands)
        except (ArithmeticError, AttributeError, IndexError, KeyError, ShapeError, TypeError, ValueError):
            return None  # a damaged operator: operands are missing or do not fit it
        if found is None:
            return None
        return [np.ascontiguousarray(f).reshape(f.shape) for f in (found if isinstance(found, list) else [found])]


KERNELS: dict[OperatorKind, Kernel] = {}


def _kernel(
    *kinds: OperatorKind, style: Style = Style.MOVES, payload: tuple[int, ...] = (0,)
) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        for kind in kinds:
            KERNELS[kind] = Kernel(function, style, payload)
        return function

    return register


# -- shapes --------------------------------------------------------------------------------------------------------


@_kernel(Op.SHAPE)
def _shape(site: Site, x: Array | None) -> Result:
    return np.array(site.static(0), NUMPY[site.outputs[0].type])


@_kernel(Op.RANK)
def _rank(site: Site, x: Array | None) -> Result:
    return np.array(len(site.shape(0)), np.int32)


@_kernel(Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS)
def _reshape(site: Site, x: Array, *_: Array) -> Result:
    return x.reshape(site.out())


@_kernel(Op.TRANSPOSE)
def _transpose(site: Site, x: Array, order: Array) -> Result:
    axes = [site.axis(int(a), x.ndim) for a in order]
    return x.transpose(axes) if sorted(axes) == list(range(x.ndim)) else None


# -- slicing, joining, gathering -----------------------------------------------------------------------------------


@_kernel(Op.SLICE)
def _slice(site: Site, x: Array, begin: Array, size: Array) -> Result:
    if np.any(begin < 0) or np.any(begin + np.array(site.out()) > x.shape):
        return None
    return x[tuple(slice(b, b + n) for b, n in zip(begin.tolist(), site.out(), strict=True))]


@_kernel(Op.STRIDED_SLICE)
def _strided_slice(site: Site, x: Array, *_: Array) -> Result:
    index: list[slice | None] = []
    for span in spans(site):
        if not span.fresh and span.places is None:
            raise Unknown
        index.append(span.places)  # None makes a new axis
    taken = x[tuple(index)]
    # Dimensions that shrink have one element, unless they were indexed beyond their end.
    return taken.reshape(site.out()) if taken.size == int(np.prod(site.out(), dtype=np.int64)) else None


@_kernel(Op.CONCATENATION, payload=(ALL,))
def _concatenation(site: Site, *parts: Array) -> Result:
    if not _same_quantization(site):
        return None
    if not parts[0].ndim:
        return np.stack(parts)
    return np.concatenate(parts, site.axis(site.option("axis"), parts[0].ndim))


@_kernel(Op.PACK, payload=(ALL,))
def _pack(site: Site, *parts: Array) -> Result:
    return np.stack(parts, site.axis(site.option("axis"), parts[0].ndim + 1))


@_kernel(Op.UNPACK)
def _unpack(site: Site, x: Array) -> Result:
    return list(np.moveaxis(x, site.axis(site.option("axis"), x.ndim), 0))


@_kernel(Op.SPLIT, payload=(1,))
def _split(site: Site, axis: Array, x: Array) -> Result:
    return list(np.split(x, len(site.outputs), site.axis(int(axis.reshape(())), x.ndim)))


@_kernel(Op.SPLIT_V)
def _split_v(site: Site, x: Array, sizes: Array, axis: Array) -> Result:
    along = site.axis(int(axis.reshape(())), x.ndim)
    ends = np.cumsum([site.out(i)[along] for i in range(len(site.outputs))])
    return list(np.split(x, ends[:-1], along))


@_kernel(Op.GATHER)
def _gather(site: Site, x: Array, places: Array) -> Result:
    axis = site.axis(site.option("axis"), x.ndim)
    batch = site.option("batch_dims")
    batch = batch + places.ndim if batch < 0 else batch
    if np.any(places < 0) or np.any(places >= x.shape[axis]):
        return None
    if not batch:
        return np.take(x, places, axis)
    parts = [np.take(x[i], places[i], axis - batch) for i in np.ndindex(*x.shape[:batch])]
    return np.array(parts, x.dtype).reshape(site.out())


@_kernel(Op.GATHER_ND)
def _gather_nd(site: Site, x: Array, places: Array) -> Result:
    depth = places.shape[-1]
    if not depth or np.any(places < 0) or np.any(places >= x.shape[:depth]):
        return None
    taken: Array = x[tuple(np.moveaxis(places, -1, 0))]
    return taken


@_kernel(Op.REVERSE_V2)
def _reverse(site: Site, x: Array, axes: Array) -> Result:
    return np.flip(x, tuple(site.axis(int(a), x.ndim) for a in axes))


# -- growing and making --------------------------------------------------------------------------------------------


@_kernel(Op.TILE)
def _tile(site: Site, x: Array, counts: Array) -> Result:
    return np.tile(x, counts)


@_kernel(Op.BROADCAST_TO)
def _broadcast_to(site: Site, x: Array, shape: Array) -> Result:
    return np.broadcast_to(x, site.out())


@_kernel(Op.FILL, payload=(1,))
def _fill(site: Site, shape: Array, value: Array) -> Result:
    return np.broadcast_to(value, site.out())


@_kernel(Op.ZEROS_LIKE, style=Style.ELEMENTWISE)
def _zeros_like(site: Site, x: Array) -> Result:
    return np.zeros_like(x)


@_kernel(Op.RANGE)
def _range(site: Site, start: Array, limit: Array, delta: Array) -> Result:
    steps = np.full(site.out(), delta, start.dtype)
    steps[:1] = start
    return np.add.accumulate(steps, dtype=steps.dtype)  # one addition after the other, as the kernel does


@_kernel(Op.PAD)
def _pad(site: Site, x: Array, amounts: Array) -> Result:
    q = site.graph.quantization(site.op.outputs[0])
    points = None if q is None else q.zero_point
    narrow = site.outputs[0].type in (TensorType.INT8, TensorType.UINT8, TensorType.INT16)
    value = int(points[0]) if narrow and points is not None and len(points) else 0
    return np.pad(x, amounts.tolist(), constant_values=np.array(value, x.dtype))


@_kernel(Op.PADV2)
def _padv2(site: Site, x: Array, amounts: Array, value: Array) -> Result:
    return np.pad(x, amounts.tolist(), constant_values=value.reshape(()))


@_kernel(Op.MIRROR_PAD)
def _mirror_pad(site: Site, x: Array, amounts: Array) -> Result:
    reflect = site.option("mode") == MirrorPadMode.REFLECT
    if np.any(amounts > np.array(x.shape)[:, None] - reflect):
        return None
    return np.pad(x, amounts.tolist(), mode="reflect" if reflect else "symmetric")


# -- selection and logic -------------------------------------------------------------------------------------------


@_kernel(Op.SELECT, payload=(1, 2))
def _select(site: Site, condition: Array, x: Array, y: Array) -> Result:
    if condition.shape != x.shape and condition.ndim == 1:  # one flag for each slice of the first dimension
        condition = condition.reshape((-1,) + (1,) * (x.ndim - 1))
    return np.where(condition, x, y).reshape(site.out())


@_kernel(Op.SELECT_V2, payload=(1, 2))
def _select_v2(site: Site, condition: Array, x: Array, y: Array) -> Result:
    return np.where(condition, x, y).reshape(site.out())


_LOGIC: dict[OperatorKind, Any] = {Op.LOGICAL_AND: np.logical_and, Op.LOGICAL_OR: np.logical_or}


@_kernel(*_LOGIC, style=Style.ELEMENTWISE, payload=(ALL,))
def _logical(site: Site, a: Array, b: Array) -> Result:
    return _LOGIC[site.kind](a, b)  # type: ignore[no-any-return]


@_kernel(Op.LOGICAL_NOT, style=Style.ELEMENTWISE)
def _logical_not(site: Site, x: Array) -> Result:
    return np.logical_not(x)


_COMPARISONS: dict[OperatorKind, Any] = {
    Op.EQUAL: np.equal,
    Op.NOT_EQUAL: np.not_equal,
    Op.LESS: np.less,
    Op.LESS_EQUAL: np.less_equal,
    Op.GREATER: np.greater,
    Op.GREATER_EQUAL: np.greater_equal,
}


@_kernel(*_COMPARISONS, style=Style.ELEMENTWISE, payload=(ALL,))
def _compare(site: Site, a: Array, b: Array) -> Result:
    return _COMPARISONS[site.kind](a, b) if site.type(0) in _PLAIN or a.dtype == np.bool_ else None


# -- arithmetic ----------------------------------------------------------------------------------------------------

_PLAIN = frozenset({TensorType.FLOAT32, TensorType.INT32, TensorType.INT64})
_CLAMPS: dict[ActivationFunctionType, tuple[float, float]] = {
    ActivationFunctionType.NONE: (-np.inf, np.inf),
    ActivationFunctionType.RELU: (0.0, np.inf),
    ActivationFunctionType.RELU_N1_TO_1: (-1.0, 1.0),
    ActivationFunctionType.RELU6: (0.0, 6.0),
}


def _arithmetic(site: Site, compute: Any, *operands: Array) -> Result:
    """Applies a numpy function to float32 or integer operands, then the fused activation."""
    clamp = _CLAMPS.get(getattr(site.options, "fused_activation_function", ActivationFunctionType.NONE))
    if site.type(0) not in _PLAIN or clamp is None or _quantized(site):
        return None
    if operands[0].dtype.kind == "f":
        result = compute(*operands)
        if not all(np.isfinite(a).all() for a in (*operands, result)):
            return None
        if clamp[0] > -np.inf:
            result = np.minimum(np.maximum(result, np.float32(clamp[0])), np.float32(clamp[1]))
        return result  # type: ignore[no-any-return]
    if clamp[0] > -np.inf or any(np.abs(a.astype(np.float64)).max(initial=0) >= 2**31 for a in operands):
        return None  # so small that int64 cannot overflow
    result = compute(*(a.astype(np.int64) for a in operands))
    low, high = RANGES.get(site.type(0), (-(2**63), 2**63 - 1))
    if result.size and (result.min() < low or result.max() > high):
        return None
    return result.astype(operands[0].dtype)  # type: ignore[no-any-return]


_BINARY: dict[OperatorKind, Any] = {
    Op.ADD: np.add,
    Op.SUB: np.subtract,
    Op.MUL: np.multiply,
    Op.SQUARED_DIFFERENCE: lambda a, b: (a - b) * (a - b),
}


@_kernel(*_BINARY, style=Style.ELEMENTWISE, payload=(ALL,))
def _binary(site: Site, a: Array, b: Array) -> Result:
    return _arithmetic(site, _BINARY[site.kind], a, b)


@_kernel(Op.DIV, style=Style.ELEMENTWISE, payload=(ALL,))
def _div(site: Site, a: Array, b: Array) -> Result:
    if not np.all(b):
        return None
    if a.dtype.kind == "f":
        return _arithmetic(site, np.divide, a, b)
    return _arithmetic(site, lambda x, y: np.abs(x) // np.abs(y) * np.sign(x) * np.sign(y), a, b)


_FLOORED: dict[OperatorKind, Any] = {Op.FLOOR_DIV: np.floor_divide, Op.FLOOR_MOD: np.mod}


@_kernel(*_FLOORED, style=Style.ELEMENTWISE, payload=(ALL,))
def _floored(site: Site, a: Array, b: Array) -> Result:
    return _arithmetic(site, _FLOORED[site.kind], a, b) if a.dtype.kind == "i" and np.all(b) else None


_EXTREMES: dict[OperatorKind, Any] = {Op.MAXIMUM: np.maximum, Op.MINIMUM: np.minimum}


@_kernel(*_EXTREMES, style=Style.ELEMENTWISE, payload=(ALL,))
def _extreme(site: Site, a: Array, b: Array) -> Result:
    if a.dtype.kind == "f" and (np.isnan(a).any() or np.isnan(b).any() or _signed_zeros(a, b)):
        return None
    return _EXTREMES[site.kind](a, b)  # type: ignore[no-any-return]


_UNARY: dict[OperatorKind, Any] = {
    Op.ABS: np.abs,
    Op.NEG: np.negative,
    Op.SQUARE: np.square,
    Op.SQRT: np.sqrt,
    Op.FLOOR: np.floor,
    Op.CEIL: np.ceil,
}


@_kernel(*_UNARY, style=Style.ELEMENTWISE)
def _unary(site: Site, x: Array) -> Result:
    if x.dtype.kind == "i" and site.kind not in (Op.ABS, Op.NEG):
        return None
    return _arithmetic(site, _UNARY[site.kind], x)


_RELUS: dict[OperatorKind, tuple[float, float]] = {
    Op.RELU: (0.0, np.inf),
    Op.RELU6: (0.0, 6.0),
    Op.RELU_0_TO_1: (0.0, 1.0),
    Op.RELU_N1_TO_1: (-1.0, 1.0),
}


@_kernel(*_RELUS, style=Style.ELEMENTWISE)
def _relu(site: Site, x: Array) -> Result:
    if x.dtype != np.float32 or not np.isfinite(x).all() or _signed_zeros(x):
        return None
    low, high = _RELUS[site.kind]
    return np.asarray(np.minimum(np.maximum(x, np.float32(low)), np.float32(high)))


# -- reductions ----------------------------------------------------------------------------------------------------

_REDUCTIONS: dict[OperatorKind, Any] = {
    Op.SUM: np.sum,
    Op.REDUCE_PROD: np.prod,
    Op.REDUCE_MAX: np.max,
    Op.REDUCE_MIN: np.min,
    Op.REDUCE_ALL: np.all,
    Op.REDUCE_ANY: np.any,
}


@_kernel(*_REDUCTIONS, style=Style.REDUCES)
def _reduce(site: Site, x: Array, axes: Array) -> Result:
    along = tuple(sorted({site.axis(int(a), x.ndim) for a in axes.reshape(-1)})) if x.ndim else ()
    extreme = site.kind in (Op.REDUCE_MAX, Op.REDUCE_MIN)
    if (x.dtype.kind == "f" and (not extreme or np.isnan(x).any() or _signed_zeros(x))) or (extreme and not x.size):
        return None
    if extreme or x.dtype == np.bool_ or site.type(0) == TensorType.BOOL:
        return np.asarray(_REDUCTIONS[site.kind](x, axis=along)).reshape(site.out())
    # Sums and products of integers, bounded so that no partial result can overflow.
    if site.type(0) not in (TensorType.INT32, TensorType.INT64) or _quantized(site):
        return None
    whole = np.abs(x.astype(np.float64))
    bound = whole.sum() if site.kind is Op.SUM else np.prod(np.maximum(whole, 1))
    if bound >= (2**31 if site.type(0) == TensorType.INT32 else 2**62):
        return None
    return np.asarray(_REDUCTIONS[site.kind](x, axis=along, dtype=x.dtype)).reshape(site.out())


@_kernel(Op.UNSORTED_SEGMENT_PROD, style=Style.SEGMENTS)
def _segment_product(site: Site, x: Array, segments: Array, count: Array) -> Result:
    bound = np.prod(np.maximum(np.abs(x.astype(np.float64)), 1))
    if site.type(0) != TensorType.INT32 or bound >= 2**31:
        return None
    result = np.ones(site.out(), x.dtype)
    used = segments >= 0  # negative numbers are no segment
    np.multiply.at(result, segments[used], x[used])
    return result


# -- conversions ---------------------------------------------------------------------------------------------------


@_kernel(Op.CAST, style=Style.ELEMENTWISE)
def _cast(site: Site, x: Array) -> Result:
    dtype = NUMPY.get(site.outputs[0].type)
    if dtype is None or dtype.kind == "c" or x.dtype.kind == "c":
        return None
    if x.dtype.kind == "f":
        if not np.isfinite(x).all():
            return None
        if dtype.kind in "iu":
            limits: Any = np.iinfo(cast(Any, dtype))
            whole = np.trunc(x.astype(np.float64))
            if whole.size and (whole.min() < limits.min or whole.max() >= limits.max):
                return None
    return x.astype(dtype)


@_kernel(Op.DEQUANTIZE, style=Style.ELEMENTWISE)
def _dequantize(site: Site, x: Array) -> Result:
    if x.dtype == np.float16:
        return None if np.isnan(x).any() else x.astype(np.float32)
    q = site.graph.quantization(site.tensor(0))
    if q is None or q.details is not None or q.scale is None or x.dtype.kind not in "iu" or x.dtype.itemsize > 2:
        return None
    scale = np.asarray(q.scale, np.float32)
    points = np.zeros(len(scale), np.int64) if q.zero_point is None else np.asarray(q.zero_point, np.int64)
    if len(scale) > 1:
        axis = q.quantized_dimension
        if not 0 <= axis < x.ndim or len(scale) != x.shape[axis] or len(points) != len(scale):
            return None
        spread = tuple(-1 if i == axis else 1 for i in range(x.ndim))
        scale, points = scale.reshape(spread), points.reshape(spread)
    elif points.any():
        return None  # the kernel subtracts scaled zero points where it uses SIMD
    # Differences of 16 bits are exact in float32, so there is one rounding, as in the kernel.
    return scale * (x.astype(np.int64) - points).astype(np.float32)


def _quantized(site: Site) -> bool:
    tensors = (*site.op.inputs, *site.op.outputs)
    return any(t >= 0 and site.graph.quantization(t) is not None for t in tensors)


def _same_quantization(site: Site) -> bool:
    """Whether joined uint8 tensors need no requantisation (other types must agree anyway)."""
    if site.type(0) != TensorType.UINT8:
        return True

    def parameters(tensor: int) -> tuple[float, int] | None:
        q = site.graph.quantization(tensor)
        if q is None or q.scale is None:
            return None
        return float(q.scale[0]), int(q.zero_point[0]) if q.zero_point is not None and len(q.zero_point) else 0

    return len({parameters(t) for t in (*site.op.inputs, site.op.outputs[0])}) == 1


def _signed_zeros(*arrays: Array) -> bool:
    """Whether there is a -0.0, whose order to 0.0 depends on the code path."""
    return any(bool((np.signbit(a) & (a == 0)).any()) for a in arrays)
