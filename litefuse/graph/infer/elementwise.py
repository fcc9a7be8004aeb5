"""Operators that compute each element from the elements in the same place: unary, binary, comparisons, selection."""

from __future__ import annotations

from litefuse.graph.infer.site import (
    Shape,
    Site,
    agree,
    always,
    broadcast,
    declared,
    narrowed,
    product,
    rule,
    same,
    show,
)
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op


@rule(
    Op.ABS,
    Op.CEIL,
    Op.COS,
    Op.CUMSUM,
    Op.ELU,
    Op.EXP,
    Op.FAKE_QUANT,
    Op.FLOOR,
    Op.GELU,
    Op.HARD_SWISH,
    Op.L2_NORMALIZATION,
    Op.LEAKY_RELU,
    Op.LOCAL_RESPONSE_NORMALIZATION,
    Op.LOG,
    Op.LOGICAL_NOT,
    Op.LOGISTIC,
    Op.LOG_SOFTMAX,
    Op.NEG,
    Op.RELU,
    Op.RELU6,
    Op.RELU_0_TO_1,
    Op.RELU_N1_TO_1,
    Op.REVERSE_SEQUENCE,
    Op.REVERSE_V2,
    Op.ROUND,
    Op.RSQRT,
    Op.SIGN,
    Op.SIN,
    Op.SQRT,
    Op.SQUARE,
    Op.TANH,
    Op.ZEROS_LIKE,
    Op.DENSIFY,
)
def _unary(site: Site) -> Shape:
    return site.shape(0)


@rule(Op.CAST, Op.QUANTIZE, Op.SOFTMAX, type=declared)
def _converted(site: Site) -> Shape:
    return site.shape(0)


@rule(Op.DEQUANTIZE, type=always(TensorType.FLOAT32))
def _dequantized(site: Site) -> Shape:
    return site.shape(0)


@rule(Op.BUCKETIZE, type=always(TensorType.INT32))
def _bucketized(site: Site) -> Shape:
    return site.shape(0)


@rule(
    Op.COMPLEX_ABS,
    Op.IMAG,
    Op.REAL,
    type=lambda site, _: TensorType.FLOAT64 if site.type(0) == TensorType.COMPLEX128 else TensorType.FLOAT32,
)
def _part(site: Site) -> Shape:
    return site.shape(0)


@rule(
    Op.ADD,
    Op.ATAN2,
    Op.BITWISE_XOR,
    Op.DIV,
    Op.FLOOR_DIV,
    Op.FLOOR_MOD,
    Op.LOGICAL_AND,
    Op.LOGICAL_OR,
    Op.MAXIMUM,
    Op.MINIMUM,
    Op.POW,
    Op.PRELU,
    Op.RIGHT_SHIFT,
    Op.SQUARED_DIFFERENCE,
    Op.SUB,
)
def _binary(site: Site) -> Shape:
    return broadcast(site, (site.shape(0), site.shape(1)))


@rule(Op.MUL, type=declared)
def _mul(site: Site) -> Shape:
    return broadcast(site, (site.shape(0), site.shape(1)))


@rule(
    Op.EQUAL,
    Op.GREATER,
    Op.GREATER_EQUAL,
    Op.LESS,
    Op.LESS_EQUAL,
    Op.NOT_EQUAL,
    type=always(TensorType.BOOL),
)
def _comparison(site: Site) -> Shape:
    return broadcast(site, (site.shape(0), site.shape(1)))


@rule(
    Op.ADD_N,
    Op.STABLEHLO_ADD,
    Op.STABLEHLO_AND,
    Op.STABLEHLO_MAXIMUM,
    Op.STABLEHLO_MINIMUM,
    Op.STABLEHLO_MULTIPLY,
    Op.STABLEHLO_SHIFT_LEFT,
)
def _equal_shapes(site: Site) -> Shape:
    shape = site.shape(0)
    for i in range(1, site.count):
        shape = _same_shape(site, shape, site.shape(i))
    return shape


@rule(Op.SELECT, Op.SELECT_V2, type=same(1))
def _select(site: Site) -> Shape:
    condition, x, y = (site.shape(i) for i in range(3))
    stored = tuple(site.graph.tensor(site.op.outputs[0]).shape or ())
    if all(product(s) == 1 for s in (condition, x, y, stored)):
        return stored  # the kernel leaves single elements in whatever shape the file gives them
    if site.kind is Op.SELECT:
        return _same_shape(site, x, y)
    return broadcast(site, (condition, x, y))


def _same_shape(site: Site, a: Shape, b: Shape) -> Shape:
    fits = len(a) == len(b) and all(agree(x, y) for x, y in zip(a, b, strict=True))
    site.require(fits, f"shapes {show(a)} and {show(b)} differ")
    return narrowed(a, b)
