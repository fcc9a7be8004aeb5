"""Identities, inverse pairs, and merged reshapes and transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litefuse.fusions import Numerics, Rule, constant_folding, dead_code, duplicates, identity
from litefuse.graph import Graph
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model, deepcopy
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Buffer, IfOptions, Operator, SubGraph
from tests.rules import apply, assert_same, fuse, kinds, operators, refusals, results

RULES = {rule.name: rule for rule in identity.RULES}
MOVES, ARITHMETIC, PAIRS = (RULES[n] for n in ("remove-identity", "remove-neutral-arithmetic", "cancel-pairs"))
RESHAPES, TRANSPOSES = RULES["merge-reshapes"], RULES["merge-transposes"]

F32, F16, I8, U8, I16, I32, I64, BOOL = (
    TensorType.FLOAT32,
    TensorType.FLOAT16,
    TensorType.INT8,
    TensorType.UINT8,
    TensorType.INT16,
    TensorType.INT32,
    TensorType.INT64,
    TensorType.BOOL,
)
RELU, RELU6, N1, TANH = (ActivationFunctionType[n] for n in ("RELU", "RELU6", "RELU_N1_TO_1", "TANH"))
DTYPES: dict[TensorType, Any] = {I8: np.int8, U8: np.uint8, I16: np.int16}
SHAPE = (1, 4, 2, 3)
Make = Callable[[Builder, int], int]


def reader(b: Builder, x: int, type: TensorType) -> int:
    """An operator behind the one that is tested, so that its result is not the model's."""
    if type == BOOL:
        return b.op(Op.LOGICAL_NOT, [x])
    if type in DTYPES:
        return b.op(Op.RELU, [x], version=3 if type == I16 else 2)
    return b.op(Op.NEG, [x])


def between(make: Make, shape: tuple[int, ...] = SHAPE, type: TensorType = F32, quantization: Any = None) -> Model:
    """A model of what ``make`` builds on its input, and an operator that reads it."""
    b = Builder()
    x = b.input("x", shape, type, quantization)
    return b.model([reader(b, make(b, x), type)])


def on(kind: Op, *constants: Any, **options: Any) -> Make:
    """An operator of the input and constants."""
    return lambda b, x: b.op(kind, [x, *(b.constant(f"c{i}", c) for i, c in enumerate(constants))], **options)


def after(kind: Op, *constants: Any, **options: Any) -> Make:
    """An operator of constants and the input."""
    return lambda b, x: b.op(kind, [*(b.constant(f"c{i}", c) for i, c in enumerate(constants)), x], **options)


def int32s(*values: int) -> Any:
    return np.array(values, np.int32)


IDENTITIES: dict[str, tuple[Make, tuple[int, ...]]] = {
    "reshape": (on(Op.RESHAPE, [1, 4, 2, 3]), SHAPE),
    "reshape with -1": (on(Op.RESHAPE, [1, -1, 2, 3]), SHAPE),
    "reshape by its options": (lambda b, x: b.op(Op.RESHAPE, [x], new_shape=[1, 4, 2, 3]), SHAPE),
    "reshape of a dynamic batch": (on(Op.RESHAPE, [-1, 4, 2, 3], shape=[-1, 4, 2, 3]), (-1, 4, 2, 3)),
    "squeeze of nothing": (lambda b, x: b.op(Op.SQUEEZE, [x]), (2, 4, 2, 3)),
    "transpose": (on(Op.TRANSPOSE, [0, 1, 2, 3]), SHAPE),
    "transpose, negative axes": (on(Op.TRANSPOSE, [-4, -3, 2, 3]), SHAPE),
    "transpose of axes of size one": (on(Op.TRANSPOSE, [1, 0, 2]), (1, 1, 5)),
    "transpose of a dynamic batch": (on(Op.TRANSPOSE, [0, 1, 2, 3]), (-1, 4, 2, 3)),
    "cast": (lambda b, x: b.op(Op.CAST, [x], in_data_type=F32, out_data_type=F32), SHAPE),
    "bitcast": (lambda b, x: b.op(Op.BITCAST, [x]), SHAPE),
    "pad": (on(Op.PAD, np.zeros((4, 2), np.int32)), SHAPE),
    "pad of a dynamic batch": (on(Op.PAD, np.zeros((4, 2), np.int32)), (-1, 4, 2, 3)),
    "padv2": (on(Op.PADV2, np.zeros((4, 2), np.int32), np.float32(7)), SHAPE),
    "mirror pad": (on(Op.MIRROR_PAD, np.zeros((4, 2), np.int32)), SHAPE),
    "slice": (on(Op.SLICE, [0, 0, 0, 0], [1, -1, 2, 3]), SHAPE),
    "strided slice": (on(Op.STRIDED_SLICE, [0, 0, 0, 0], [1, 4, 2, 3], [1, 1, 1, 1]), SHAPE),
    "strided slice past the ends": (on(Op.STRIDED_SLICE, [0, -9, 0, 0], [1, 9, 9, 3], [1, 1, 1, 1]), SHAPE),
    "strided slice, masks": (on(Op.STRIDED_SLICE, [0, 3], [0, 1], [1, 1], begin_mask=2, end_mask=3), SHAPE),
    "strided slice of a dynamic batch": (
        on(Op.STRIDED_SLICE, [0, 0], [2**31 - 1, 4], [1, 1], shape=[-1, 4, 2, 3]),
        (-1, 4, 2, 3),
    ),
    "concatenation of one": (lambda b, x: b.op(Op.CONCATENATION, [x], axis=1), SHAPE),
    "split into one": (after(Op.SPLIT, np.int32(1), num_splits=1, type=F32), SHAPE),
    "split_v into one": (on(Op.SPLIT_V, int32s(4), np.int32(1), num_splits=1), SHAPE),
    "tile once": (on(Op.TILE, [1, 1, 1, 1]), SHAPE),
    "broadcast": (on(Op.BROADCAST_TO, [1, 4, 2, 3], version=2), SHAPE),
    "gather": (on(Op.GATHER, [0, 1, 2, 3], axis=1), SHAPE),
    "gather, last axis": (on(Op.GATHER, [0, 1, 2], axis=-1), SHAPE),
    "reverse": (on(Op.REVERSE_V2, int32s(0)), SHAPE),
    "space to batch": (on(Op.SPACE_TO_BATCH_ND, [1, 1], np.zeros((2, 2), np.int32)), SHAPE),
    "batch to space": (on(Op.BATCH_TO_SPACE_ND, [1, 1], np.zeros((2, 2), np.int32)), SHAPE),
    "space to depth": (lambda b, x: b.op(Op.SPACE_TO_DEPTH, [x], block_size=1), SHAPE),
    "depth to space": (lambda b, x: b.op(Op.DEPTH_TO_SPACE, [x], block_size=1), SHAPE),
    "nearest neighbour": (on(Op.RESIZE_NEAREST_NEIGHBOR, [4, 2]), SHAPE),
    "nearest neighbour, corners": (on(Op.RESIZE_NEAREST_NEIGHBOR, [4, 2], align_corners=True), SHAPE),
    "nearest neighbour, centres": (on(Op.RESIZE_NEAREST_NEIGHBOR, [4, 2], half_pixel_centers=True), SHAPE),
}


@pytest.mark.parametrize("case", IDENTITIES)
def test_identity_is_removed_bit_for_bit(case: str) -> None:
    make, shape = IDENTITIES[case]
    result, report = fuse(between(make, shape), MOVES, nonfinite=True)
    assert kinds(result) == ["NEG"]
    assert report.counts() == {"remove-identity": 1}


def reshape_to_own_shape(b: Builder, x: int) -> int:
    return b.op(Op.RESHAPE, [x, b.op(Op.SHAPE, [x], type=I32, shape=[2], out_type=I32)], shape=[-1, -1])


def broadcast_to_own_shape(b: Builder, x: int) -> int:
    target = b.op(Op.SHAPE, [x], type=I32, shape=[2], out_type=I32)
    return b.op(Op.BROADCAST_TO, [x, target], shape=[-1, -1], version=2)


@pytest.mark.parametrize("make", [reshape_to_own_shape, broadcast_to_own_shape])
def test_own_shape(make: Make) -> None:
    # Without a recorded shape at all.
    model = between(make, (-1, -1))
    assert kinds(fuse(model, MOVES)[0]) == ["NEG"]


def test_slice_of_a_dynamic_batch() -> None:
    # The runtime learns the shape behind such a SLICE only when it runs; without the SLICE it knows before.
    model = between(on(Op.SLICE, [0, 0], [-1, 4], shape=[-1, 4]), (-1, 4))
    after = deepcopy(model)
    apply(after, MOVES)
    assert kinds(after) == ["NEG"]
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    for xnnpack in (False, True):
        assert results(after, x, xnnpack=xnnpack)[0].tobytes() == results(model, x, xnnpack=xnnpack)[0].tobytes()


NOT_IDENTITIES: dict[str, tuple[Make, tuple[int, ...]]] = {
    "reshape": (on(Op.RESHAPE, [4, 1, 2, 3]), SHAPE),
    "dynamic reshape that moves the unknown": (on(Op.RESHAPE, [4, -1], shape=[4, -1]), (-1, 4)),
    "reshape with two unknown": (on(Op.RESHAPE, [-1, 4, 2, 3], shape=[-1, 4, 2, 3]), (-1, 4, -1, 3)),
    "squeeze": (lambda b, x: b.op(Op.SQUEEZE, [x], squeeze_dims=[0]), SHAPE),
    "transpose": (on(Op.TRANSPOSE, [0, 2, 1, 3]), (1, 2, 2, 3)),
    "transpose that moves an unknown axis": (on(Op.TRANSPOSE, [1, 0], shape=[1, -1]), (-1, 1)),
    "pad": (on(Op.PAD, [[0, 0], [0, 0], [0, 1], [0, 0]]), SHAPE),
    "slice begins later": (on(Op.SLICE, [0, 1, 0, 0], [-1, -1, -1, -1]), SHAPE),
    "slice ends earlier": (on(Op.SLICE, [0, 0, 0, 0], [1, 3, 2, 3]), SHAPE),
    "slice of a dynamic batch": (on(Op.SLICE, [0, 0], [1, 3], shape=[1, 3]), (-1, 3)),
    "strided slice ends earlier": (on(Op.STRIDED_SLICE, [0, 0], [1, 3], [1, 1]), SHAPE),
    "strided slice counts from the end": (on(Op.STRIDED_SLICE, [0, 0], [1, -1], [1, 1]), SHAPE),
    "strided slice backwards": (on(Op.STRIDED_SLICE, [0, 0], [0, 0], [1, -1], begin_mask=3, end_mask=3), SHAPE),
    "strided slice shrinks": (on(Op.STRIDED_SLICE, [0], [1], [1], shrink_axis_mask=1), SHAPE),
    "strided slice of a dynamic batch": (on(Op.STRIDED_SLICE, [0], [1], [1], shape=[1, 4]), (-1, 4)),
    "concatenation of two": (lambda b, x: b.op(Op.CONCATENATION, [x, x], axis=1), SHAPE),
    "split in two": (after(Op.SPLIT, np.int32(1), num_splits=2, outputs=2, type=F32), SHAPE),
    "tile": (on(Op.TILE, [1, 1, 2, 1]), SHAPE),
    "gather in another order": (on(Op.GATHER, [0, 1, 3, 2], axis=1), SHAPE),
    "gather of some": (on(Op.GATHER, [0, 1, 2], axis=1), SHAPE),
    "gather by a table": (on(Op.GATHER, [[0, 1], [2, 3]], axis=1), SHAPE),
    "reverse": (on(Op.REVERSE_V2, int32s(1)), SHAPE),
    "space to depth": (lambda b, x: b.op(Op.SPACE_TO_DEPTH, [x], block_size=2), SHAPE),
    "resize": (on(Op.RESIZE_NEAREST_NEIGHBOR, [4, 4]), SHAPE),
    "max pool": (on(Op.MAX_POOL_2D, stride_w=2), SHAPE),
    "average pool": (on(Op.AVERAGE_POOL_2D, filter_width=2), SHAPE),
    "l2 pool": (on(Op.L2_POOL_2D), SHAPE),
    "mean that drops an axis": (on(Op.MEAN, int32s(0)), SHAPE),
    "mean over more than one": (on(Op.MEAN, int32s(1), keep_dims=True), SHAPE),
    "mean over an unknown axis": (on(Op.MEAN, int32s(0), keep_dims=True, shape=[1, 4]), (-1, 4)),
    "mul by two": (on(Op.MUL, 2.0), SHAPE),
    "mul by a vector": (on(Op.MUL, [1.0, 1.0, 0.5]), SHAPE),
    "mul that broadcasts": (on(Op.MUL, np.ones((2, 1, 1, 1, 1), np.float32)), SHAPE),
    "mul that broadcasts an axis": (on(Op.MUL, np.ones((3, 4, 2, 3), np.float32)), SHAPE),
    "one minus": (after(Op.SUB, 0.0), SHAPE),
    "one over": (after(Op.DIV, 1.0), SHAPE),
    "one to the": (after(Op.POW, 1.0), SHAPE),
    "negation": (lambda b, x: b.op(Op.NEG, [x]), SHAPE),
}


@pytest.mark.parametrize("case", NOT_IDENTITIES)
def test_no_identity_is_left_alone(case: str) -> None:
    make, shape = NOT_IDENTITIES[case]
    b = Builder()
    made = make(b, b.input("x", shape))
    model = b.model([b.op(Op.ABS, [made], shape=SHAPE)])
    assert refusals(model, MOVES, ARITHMETIC, PAIRS) == []


NEUTRAL: dict[str, Make] = {
    "x * 1": on(Op.MUL, 1.0),
    "1 * x": after(Op.MUL, 1.0),
    "x * ones": on(Op.MUL, np.ones((1, 4, 1, 3), np.float32)),
    "x / 1": on(Op.DIV, 1.0),
    "x + 0": on(Op.ADD, 0.0),
    "x + -0": on(Op.ADD, -0.0),
    "zeros + x": after(Op.ADD, np.zeros(3, np.float32)),
    "x - 0": on(Op.SUB, 0.0),
    "x ** 1": on(Op.POW, 1.0),
    "max pool": on(Op.MAX_POOL_2D),
    "max pool, VALID": on(Op.MAX_POOL_2D, padding=1),
    "average pool": on(Op.AVERAGE_POOL_2D),
    "mean": on(Op.MEAN, int32s(0), keep_dims=True),
    "mean, negative axis": on(Op.MEAN, int32s(-4), keep_dims=True),
    "mean over nothing": on(Op.MEAN, np.zeros(0, np.int32), shape=SHAPE),
    "sum": on(Op.SUM, int32s(0), keep_dims=True),
    "product": on(Op.REDUCE_PROD, int32s(0), keep_dims=True),
    "maximum": on(Op.REDUCE_MAX, int32s(0), keep_dims=True),
    "minimum": on(Op.REDUCE_MIN, int32s(0), keep_dims=True),
    "bilinear": on(Op.RESIZE_BILINEAR, [4, 2]),
    "bilinear, corners": on(Op.RESIZE_BILINEAR, [4, 2], align_corners=True),
    "bilinear, centres": on(Op.RESIZE_BILINEAR, [4, 2], half_pixel_centers=True),
    "minus minus x": lambda b, x: b.op(Op.NEG, [b.op(Op.NEG, [x])]),
}


@pytest.mark.parametrize("case", NEUTRAL)
def test_neutral_float_arithmetic_gives_equal_numbers(case: str) -> None:
    model = between(NEUTRAL[case])
    assert refusals(model, MOVES, PAIRS) == []
    # A bound of 0: only the sign of zero and subnormals may differ, which the last case holds.
    normal = ("normal", "wide", "zeros", "negative zeros")
    result, report = fuse(model, ARITHMETIC, bound=0.0, cases=normal)
    assert_same(model, result, Numerics.REASSOCIATED, bound=1e-30, cases=["specials"])
    assert kinds(result) == ["NEG"]
    assert report.counts() == {"remove-neutral-arithmetic": 1}


@pytest.mark.parametrize("case", ["x * 1", "x / 1", "x - 0", "x + -0", "x ** 1", "max pool", "product", "maximum"])
def test_neutral_arithmetic_that_keeps_every_normal_bit(case: str) -> None:
    # What the docstring says of zero's sign does not concern these.
    cases = ("normal", "wide", "zeros", "negative zeros")
    fuse(between(NEUTRAL[case]), ARITHMETIC, numerics=Numerics.EXACT, cases=cases)


def test_scalar_of_unknown_or_dynamic_shape() -> None:
    assert kinds(fuse(between(on(Op.MUL, 1.0), (-1, 3)), ARITHMETIC)[0]) == ["NEG"]
    model = between(on(Op.MUL, [1.0], shape=[1]), ())
    model.subgraphs[0].tensors[0].has_rank = False  # then nobody knows that it is a scalar
    assert refusals(model, ARITHMETIC) == []


INTEGERS = [
    *((Op.MUL, 1, type) for type in (I32, I64)),
    *((Op.ADD, 0, type) for type in (I32, I64)),
    *((Op.SUB, 0, type) for type in (I32, I64)),
    (Op.FLOOR_DIV, 1, I32),
    (Op.POW, 1, I32),
]


@pytest.mark.parametrize(("kind", "number", "type"), INTEGERS)
def test_neutral_integers_are_exact(kind: Op, number: int, type: TensorType) -> None:
    number_type = np.int32 if type == I32 else np.int64
    version = 6 if kind is Op.MUL else 4 if kind is Op.ADD else 1
    make = on(kind, number_type(number), version=version)
    result, report = fuse(between(make, SHAPE, type), MOVES)
    assert kinds(result) == ["NEG"]
    assert report.counts() == {"remove-identity": 1}
    assert refusals(between(on(kind, number_type(number + 1), version=version), SHAPE, type), MOVES, ARITHMETIC) == []


def test_reductions_of_booleans() -> None:
    for kind in (Op.REDUCE_ANY, Op.REDUCE_ALL):
        result, _ = fuse(between(on(kind, int32s(0), keep_dims=True), SHAPE, BOOL), MOVES)
        assert kinds(result) == ["LOGICAL_NOT"]


# -- quantised ---------------------------------------------------------------------------------------------------------


def every_value(type: TensorType) -> Any:
    info = np.iinfo(DTYPES[type])
    return np.arange(info.min, info.max + 1).astype(DTYPES[type]).reshape(1, 16, -1, 1)


def every(make: Make, type: TensorType, scale: float, zero_point: int) -> Model:
    """A model of ``make`` on a quantised input that has room for every value of its type."""
    return between(make, every_value(type).shape, type, quantized(scale, zero_point))


def quantised_constant(type: TensorType, number: int, scale: float, zero_point: int, kind: Op) -> Make:
    version = {I8: 2, U8: 1, I16: 4}[type]
    stored = np.array(zero_point + number, DTYPES[type])

    def make(b: Builder, x: int) -> int:
        options = {"pot_scale_int16": False} if kind is not Op.MUL else {}
        return b.op(kind, [x, b.constant("c", stored, quantized(scale, zero_point))], version=version, **options)

    return make


@pytest.mark.parametrize("type", [I8, U8, I16])
@pytest.mark.parametrize("seed", range(3))
def test_quantised_arithmetic_is_exact_over_all_values(type: TensorType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    info = np.iinfo(DTYPES[type])
    scale = float(10 ** rng.uniform(-4, 0))
    zero_point = 0 if type == I16 else int(rng.integers(info.min, info.max + 1))
    other_point = 0 if type == I16 else int(rng.integers(info.min + 50, info.max - 50))
    steps = int(rng.integers(1, 40))
    size = [16, every_value(type).shape[2]]
    makes = {
        "x * 1": quantised_constant(type, steps, 1 / steps, other_point, Op.MUL),
        "x + 0": quantised_constant(type, 0, scale * 10 ** rng.uniform(-3, 3), other_point, Op.ADD),
        "x - 0": quantised_constant(type, 0, scale * 10 ** rng.uniform(-3, 3), other_point, Op.SUB),
        "mean": on(Op.MEAN, int32s(0), keep_dims=True, version=2),
        "maximum": on(Op.REDUCE_MAX, int32s(3), keep_dims=True, version=2),
        "max pool": on(Op.MAX_POOL_2D, version={I8: 2, U8: 1, I16: 3}[type]),
        "average pool": on(Op.AVERAGE_POOL_2D, version={I8: 2, U8: 1, I16: 3}[type]),
        "bilinear": on(Op.RESIZE_BILINEAR, size, half_pixel_centers=True, version=4),
        "nearest": on(Op.RESIZE_NEAREST_NEIGHBOR, size, half_pixel_centers=True, version=3),
        "quantize": lambda b, x: b.op(Op.QUANTIZE, [x], version=2),
        "reshape": on(Op.RESHAPE, [1, *size, 1]),
    }
    for name, make in makes.items():
        result, report = fuse(every(make, type, scale, zero_point), MOVES, inputs=[[every_value(type)]])
        assert kinds(result) == ["RELU"], name
        assert report.counts() == {"remove-identity": 1}, name


def test_quantised_constant_that_is_not_quite_neutral() -> None:
    almost_one = quantised_constant(I8, 100, 0.01001, 0, Op.MUL)
    assert refusals(every(almost_one, I8, 0.1, 3), MOVES, ARITHMETIC) == []
    not_zero = quantised_constant(I8, 1, 1e-6, 0, Op.ADD)
    assert refusals(every(not_zero, I8, 0.1, 3), MOVES, ARITHMETIC) == []
    coarse_zero = quantised_constant(I8, 0, 0.1 * 2000, 0, Op.ADD)
    assert refusals(every(coarse_zero, I8, 0.1, 3), MOVES, ARITHMETIC) == []


def test_other_parameters_of_the_result() -> None:
    def make(kind: Op, *constants: Any, **options: Any) -> Make:
        return on(kind, *constants, quantization=quantized(0.2, 3), **options)

    def reason(what: Make) -> list[str]:
        b = Builder()
        x = b.input("x", SHAPE, I8, quantized(0.1, 3))
        return refusals(b.model([b.op(Op.RELU, [what(b, x)], version=2)]), *identity.RULES)

    # A requantisation is no identity; a RESHAPE that claims one is suspicious.
    assert reason(make(Op.QUANTIZE, version=2)) == []
    assert reason(make(Op.AVERAGE_POOL_2D, version=2)) == []
    [text] = reason(make(Op.RESHAPE, [1, 4, 2, 3]))
    assert "another scale or zero point" in text


def test_per_channel_parameters_are_compared() -> None:
    model = between(on(Op.RESHAPE, [1, 4, 2, 3]), SHAPE, I8, quantized(0.1, 3))
    for tensor, axis in ((0, 3), (2, 1)):
        model.subgraphs[0].tensors[tensor].quantization = quantized([0.1, 0.2, 0.3], [0, 0, 0], axis)
    graph = Graph(model)
    assert not identity.same_quantization(graph, 0, 2)
    model.subgraphs[0].tensors[2].quantization.quantized_dimension = 3
    assert identity.same_quantization(graph, 0, 2)
    model.subgraphs[0].tensors[2].quantization.zero_point = None  # absent means zero
    assert identity.same_quantization(graph, 0, 2)


# -- activations and interfaces ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("activation", "left"), [(RELU, "RELU"), (RELU6, "RELU6"), (N1, "RELU_N1_TO_1")])
@pytest.mark.parametrize("make", [Op.MUL, Op.ADD, Op.MAX_POOL_2D])
def test_fused_activation_stays(activation: ActivationFunctionType, left: str, make: Op) -> None:
    constants = {Op.MUL: [1.0], Op.ADD: [0.0], Op.MAX_POOL_2D: []}[make]
    result, report = fuse(between(on(make, *constants, fused_activation_function=activation)), ARITHMETIC)
    assert kinds(result) == [left, "NEG"]
    assert report.applied[0].reason == f"only its {left} is left"


@pytest.mark.parametrize("type", [I8, U8, I16])
@pytest.mark.parametrize("activation", [RELU, RELU6, N1])
def test_quantised_activation_stays(type: TensorType, activation: ActivationFunctionType) -> None:
    # Without an operator behind it, so that the result is visible in all of its values; zero_point 0 is int16's only.
    b = Builder()
    point = 0 if type == I16 else 40
    x = b.input("x", every_value(type).shape, type, quantized(0.07 if type != I16 else 0.0003, point))
    one = b.constant(
        "one", np.array(5 + (0 if type == I16 else 3), DTYPES[type]), quantized(0.2, 0 if type == I16 else 3)
    )
    version = {I8: 2, U8: 1, I16: 4}[type]
    model = b.model([b.op(Op.MUL, [x, one], version=version, fused_activation_function=activation)])
    if type == I16 and activation is not RELU:
        assert refusals(model, MOVES) == []
        return
    result, _ = fuse(model, MOVES, inputs=[[every_value(type)]])
    assert kinds(result) == [activation.name]


def test_activation_without_an_operator_is_left_alone() -> None:
    # No kernel takes a MUL with TANH, but a file may hold one.
    model = between(on(Op.MUL, 1.0))
    operators(model, "MUL")[0].builtin_options.fused_activation_function = TANH  # type: ignore[union-attr]
    assert refusals(model, ARITHMETIC) == []


def test_result_of_the_model_keeps_its_tensor() -> None:
    b = Builder()
    a = b.op(Op.ABS, [b.input("x", SHAPE)], name="inner")
    model = b.model([b.op(Op.RESHAPE, [a, b.constant("s", [1, 4, 2, 3])], name="answer"), b.op(Op.NEG, [a])])
    result, _ = fuse(model, MOVES)
    assert kinds(result) == ["ABS", "NEG"]
    graph = result.subgraphs[0]
    assert graph.tensors[graph.outputs[0]].name == "answer"


def test_copies_between_interface_tensors_stay() -> None:
    def model(x: str) -> Model:
        b = Builder()
        source = {"input": lambda: b.input("x", SHAPE), "constant": lambda: b.constant("c", np.ones(SHAPE, np.float32))}
        b.input("other", SHAPE) if x == "constant" else None
        tensor = b.op(Op.ABS, [b.input("x", SHAPE)]) if x == "output" else source[x]()
        copy = b.op(Op.TRANSPOSE, [tensor, b.constant("p", [0, 1, 2, 3])])
        return b.model([copy, tensor] if x == "output" else [copy])

    for x, words in (("input", "is an input"), ("constant", "is constant"), ("output", "is an output")):
        [reason] = refusals(model(x), MOVES)
        assert words in reason
        assert "an output of the graph" in reason


def test_variables_are_not_read_later() -> None:
    b = Builder()
    x, state = b.input("x", (1, 2)), b.constant("state", np.zeros((1, 4), np.float32))
    before = b.op(Op.RESHAPE, [state, b.constant("s", [1, 4])], shape=[1, 4])
    w = [b.constant(n, np.ones(s, np.float32)) for n, s in (("w", (4, 2)), ("t", (4, 1)), ("b", (4,)))]
    y = b.op(Op.SVDF, [x, *w, state], rank=1, shape=[1, 4])
    model = b.model([b.op(Op.ADD, [before, y], shape=[1, 4])])
    table = model.subgraphs[0].tensors[state]
    table.is_variable, table.buffer = True, 0
    [reason] = refusals(model, *identity.RULES)
    assert "is a variable" in reason


def test_bodies_of_control_flow() -> None:
    b = Builder()
    x, flag = b.input("x", [1, 4]), b.input("flag", [], BOOL)
    y = b.op(Op.IF, [flag, x], shape=[1, 4], type=F32)
    model = b.model([y])
    for kind, name in ((Op.ABS, "then"), (Op.NEG, "else")):
        body = Builder()
        inside = body.input("v", [1, 4])
        shaped = body.op(Op.RESHAPE, [inside, body.constant("s", [1, 4])])
        add_subgraph(model, body.model([body.op(kind, [shaped])]), name)
    operators(model, "IF")[0].builtin_options = IfOptions(then_subgraph_index=1, else_subgraph_index=2)
    result, report = fuse(model, MOVES)
    assert [kinds(result, i) for i in range(3)] == [["IF"], ["ABS"], ["NEG"]]
    assert [c.location.subgraph for c in report.applied] == [1, 2]


def add_subgraph(model: Model, other: Model, name: str) -> None:
    """Appends the only subgraph of one model to another."""
    subgraph: SubGraph = other.subgraphs[0]
    for tensor in subgraph.tensors:
        if tensor.buffer:
            model.buffers.append(Buffer(data=other.buffers[tensor.buffer].data))
            tensor.buffer = len(model.buffers) - 1
    for op in subgraph.operators:
        model.operator_codes.append(other.operator_codes[op.opcode_index])
        op.opcode_index = len(model.operator_codes) - 1
    subgraph.name = name
    model.subgraphs.append(subgraph)


def test_concatenation_with_empty_tensors() -> None:
    b = Builder()
    x = b.op(Op.ABS, [b.input("x", (1, 4))])
    empty = b.constant("empty", np.zeros((1, 0), np.float32))
    model = b.model([b.op(Op.NEG, [b.op(Op.CONCATENATION, [empty, x, empty], axis=1)])])
    assert kinds(fuse(model, MOVES)[0]) == ["ABS", "NEG"]


# -- pairs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", [I8, U8, I16])
@pytest.mark.parametrize("seed", range(4))
def test_quantize_of_dequantize_is_exact_over_all_values(type: TensorType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    info = np.iinfo(DTYPES[type])
    scale, point = float(10 ** rng.uniform(-6, 2)), 0 if type == I16 else int(rng.integers(info.min, info.max + 1))

    def make(b: Builder, x: int) -> int:
        floats = b.op(Op.DEQUANTIZE, [x], type=F32, version=3 if type == I16 else 2)
        return b.op(Op.QUANTIZE, [floats], type=type, quantization=quantized(scale, point), version=2)

    result, report = fuse(every(make, type, scale, point), PAIRS, inputs=[[every_value(type)]])
    assert kinds(result) == ["RELU"]
    assert report.counts() == {"cancel-pairs": 1}


def test_quantize_pairs_that_are_none() -> None:
    def model(scale: float, point: int, to: TensorType = I8) -> Model:
        b = Builder()
        x = b.input("x", SHAPE, I8, quantized(0.1, 3))
        floats = b.op(Op.DEQUANTIZE, [x], type=F32, version=2)
        y = b.op(Op.QUANTIZE, [floats], type=to, quantization=quantized(scale, point))
        return b.model([b.op(Op.RELU, [y], version=2)])

    for other in (model(0.1001, 3), model(0.1, 4), model(0.1, 3, U8)):
        assert refusals(other, *identity.RULES) == []
    b = Builder()
    x = b.input("x", SHAPE)
    stored = b.op(Op.QUANTIZE, [x], type=I8, quantization=quantized(0.1, 3))
    rounded = b.model([b.op(Op.NEG, [b.op(Op.DEQUANTIZE, [stored], type=F32, version=2)])])
    assert refusals(rounded, *identity.RULES) == []


def test_first_of_a_pair_stays_where_it_is_needed() -> None:
    b = Builder()
    x = b.input("x", SHAPE, I8, quantized(0.1, 3))
    floats = b.op(Op.DEQUANTIZE, [x], type=F32, version=2)
    y = b.op(Op.QUANTIZE, [floats], type=I8, quantization=quantized(0.1, 3))
    model = b.model([b.op(Op.RELU, [y], version=2), floats])
    assert kinds(fuse(model, PAIRS)[0]) == ["DEQUANTIZE", "RELU"]


CASTS = [
    (I32, I64, True),
    (BOOL, F32, True),
    (BOOL, I32, True),
    (I32, F32, False),
    (F32, I32, False),
    (I64, I32, False),
]


@pytest.mark.parametrize(("type", "through", "lossless"), CASTS)
def test_cast_there_and_back(type: TensorType, through: TensorType, lossless: bool) -> None:
    def make(b: Builder, x: int) -> int:
        there = b.op(Op.CAST, [x], type=through, in_data_type=type, out_data_type=through)
        return b.op(Op.CAST, [there], type=type, in_data_type=through, out_data_type=type)

    model = between(make, SHAPE, type)
    if lossless:
        assert len(kinds(fuse(model, PAIRS)[0])) == 1
    else:
        assert refusals(model, PAIRS) == []


def test_double_negation() -> None:
    def twice(kind: Op) -> Make:
        return lambda b, x: b.op(kind, [b.op(kind, [x])])

    assert kinds(fuse(between(twice(Op.NEG), SHAPE, I32), PAIRS)[0]) == ["NEG"]
    # Three of them in all here: one is left.
    assert kinds(fuse(between(twice(Op.LOGICAL_NOT), SHAPE, BOOL), PAIRS)[0]) == ["LOGICAL_NOT"]
    # Floats are the other rule's, which is not exact about -0.0.
    assert refusals(between(twice(Op.NEG)), PAIRS) == []


# -- merging -----------------------------------------------------------------------------------------------------------


def chain(*steps: tuple[Any, ...]) -> Make:
    """Reshapes one after the other: each is a kind and its constants and options."""

    def make(b: Builder, x: int) -> int:
        for kind, *arguments, options in steps:
            x = on(kind, *arguments, **options)(b, x)
        return x

    return make


MERGES = {
    "two reshapes": (chain((Op.RESHAPE, [4, 6], {}), (Op.RESHAPE, [2, 12], {})), ["RESHAPE", "NEG"]),
    "many": (chain(*((Op.RESHAPE, [n, -1], {}) for n in (2, 3, 4, 6))), ["RESHAPE", "NEG"]),
    "there and back": (chain((Op.RESHAPE, [24], {}), (Op.RESHAPE, [1, 4, 2, 3], {})), ["NEG"]),
    "squeeze, expand": (chain((Op.SQUEEZE, {}), (Op.EXPAND_DIMS, np.int32(0), {})), ["NEG"]),
    "squeeze, expand elsewhere": (chain((Op.SQUEEZE, {}), (Op.EXPAND_DIMS, np.int32(1), {})), ["RESHAPE", "NEG"]),
    "reshape, squeeze": (chain((Op.RESHAPE, [1, 24], {}), (Op.SQUEEZE, {})), ["RESHAPE", "NEG"]),
}


@pytest.mark.parametrize("case", MERGES)
def test_reshapes_merge(case: str) -> None:
    make, expected = MERGES[case]
    result, _ = fuse(between(make), MOVES, RESHAPES)
    assert kinds(result) == expected


def test_reshapes_merge_with_a_dynamic_batch() -> None:
    make = chain((Op.RESHAPE, [-1, 24], {"shape": [-1, 24]}), (Op.EXPAND_DIMS, np.int32(1), {"shape": [-1, 1, 24]}))
    result, report = fuse(between(make, (-1, 4, 2, 3)), RESHAPES)
    assert kinds(result) == ["RESHAPE", "NEG"]
    assert report.counts() == {"merge-reshapes": 1}
    # Two unknown dimensions cannot be written as one -1.
    b = Builder()
    make = chain((Op.SQUEEZE, {"shape": [-1, -1]}), (Op.EXPAND_DIMS, np.int32(1), {"shape": [-1, 1, -1]}))
    made = make(b, b.input("x", (-1, 1, 1, -1)))
    assert refusals(b.model([b.op(Op.NEG, [made], shape=[-1, 1, -1])]), RESHAPES) == []


def test_shared_reshape_is_named() -> None:
    b = Builder()
    first = b.op(Op.RESHAPE, [b.input("x", SHAPE), b.constant("a", [24])], name="first")
    second = b.op(Op.RESHAPE, [first, b.constant("b", [2, 12])])
    model = b.model([b.op(Op.NEG, [first]), b.op(Op.NEG, [second])])
    [reason] = refusals(model, MOVES, RESHAPES)
    assert reason.startswith("output of RESHAPE #0 `first` is also read by NEG")


def test_shared_reshape_that_is_undone() -> None:
    b = Builder()
    x = b.input("x", SHAPE)
    first = b.op(Op.RESHAPE, [x, b.constant("a", [24])])
    back = b.op(Op.RESHAPE, [first, b.constant("b", [1, 4, 2, 3])])
    model = b.model([b.op(Op.NEG, [first]), b.op(Op.NEG, [back])])
    assert kinds(fuse(model, MOVES, RESHAPES)[0]) == ["RESHAPE", "NEG", "NEG"]


def transposes(*orders: list[int]) -> Make:
    return chain(*((Op.TRANSPOSE, order, {}) for order in orders))


def test_transposes_merge() -> None:
    result, report = fuse(between(transposes([0, 2, 3, 1], [0, 1, 3, 2])), MOVES, TRANSPOSES)
    assert kinds(result) == ["TRANSPOSE", "NEG"]
    assert report.counts() == {"merge-transposes": 1}
    result, report = fuse(between(transposes([0, 2, 3, 1], [0, 3, 1, 2])), MOVES, TRANSPOSES)
    assert kinds(result) == ["NEG"]
    assert report.counts() == {"remove-identity": 1}


def test_shared_transpose_is_named_or_undone() -> None:
    def model(second: list[int]) -> Model:
        b = Builder()
        first = b.op(Op.TRANSPOSE, [b.input("x", SHAPE), b.constant("p", [0, 2, 3, 1])])
        last = b.op(Op.TRANSPOSE, [first, b.constant("q", second)])
        return b.model([b.op(Op.NEG, [first]), b.op(Op.NEG, [last])])

    assert kinds(fuse(model([0, 3, 1, 2]), MOVES, TRANSPOSES)[0]) == ["TRANSPOSE", "NEG", "NEG"]
    [reason] = refusals(model([0, 2, 1, 3]), MOVES, TRANSPOSES)
    assert "is also read by NEG" in reason


@given(st.permutations(range(4)), st.permutations(range(4)))
@settings(max_examples=15, deadline=None)
def test_any_two_transposes(p: list[int], q: list[int]) -> None:
    result, _ = fuse(between(transposes(p, q), (2, 3, 1, 2)), MOVES, TRANSPOSES, cases=["normal"], xnnpack=[False])
    assert len(kinds(result)) <= 2


def test_computed_permutations_are_left_alone() -> None:
    b = Builder()
    x, order = b.input("x", SHAPE), b.input("order", [4], I32)
    model = b.model([b.op(Op.TRANSPOSE, [b.op(Op.TRANSPOSE, [x, order], shape=[-1] * 4), order], shape=[-1] * 4)])
    assert refusals(model, *identity.RULES) == []


def test_malformed_operators_are_left_alone() -> None:
    model = between(on(Op.ABS))
    for kind in sorted({kind for rule in identity.RULES for kind in rule.kinds}):
        for inputs in ([], [0], [0, -1], [-1, 0]):
            copy = deepcopy(model)
            graph = Graph(copy)
            graph.add_operator(kind, inputs, [graph.add_tensor("t", SHAPE, F32)], before=next(graph.operators()))
            graph.commit()
            apply(copy, *identity.RULES)
            assert kinds(copy)[-2:] == ["ABS", "NEG"]


# -- everything at once ------------------------------------------------------------------------------------------------

STEPS = (
    "neg",
    "abs",
    "mul 1",
    "mul 2",
    "add 0",
    "reshape",
    "expand",
    "transpose",
    "swap",
    "cast",
    "pad",
    "slice",
    "tile",
)


def step(b: Builder, name: str, x: int, shape: tuple[int, ...], number: int) -> tuple[int, tuple[int, ...]]:
    """Appends one operator; returns its result and that one's shape."""
    rank = len(shape)
    orders = [list(range(rank)), [*range(1, rank), 0], list(range(rank))[::-1]]
    order = orders[1 + number % 2] if name == "swap" else orders[0]
    shapes = [(24,), (4, 6), (1, 24), (2, 3, 4), shape]
    target = shapes[number % len(shapes)]
    if name in ("neg", "abs"):
        return b.op(Op[name.upper()], [x], shape=shape), shape
    if name.startswith("mul"):
        return b.op(Op.MUL, [x, b.constant("c", float(name[-1]))], shape=shape), shape
    if name == "add 0":
        return b.op(Op.ADD, [x, b.constant("c", np.zeros(shape, np.float32))], shape=shape), shape
    if name == "reshape":
        return b.op(Op.RESHAPE, [x, b.constant("s", int32s(*target))], shape=target), target
    if name == "expand" and rank < 4:
        axis = number % (rank + 1)
        new = (*shape[:axis], 1, *shape[axis:])
        return b.op(Op.EXPAND_DIMS, [x, b.constant("a", np.int32(axis))], shape=new), new
    if name in ("transpose", "swap"):
        new = tuple(shape[axis] for axis in order)
        return b.op(Op.TRANSPOSE, [x, b.constant("p", int32s(*order))], shape=new), new
    if name == "pad":
        return b.op(Op.PAD, [x, b.constant("p", np.zeros((rank, 2), np.int32))], shape=shape), shape
    if name == "slice":
        begin = b.constant("begin", np.zeros(rank, np.int32))
        return b.op(Op.SLICE, [x, begin, b.constant("size", np.full(rank, -1, np.int32))], shape=shape), shape
    if name == "tile":
        return b.op(Op.TILE, [x, b.constant("m", np.ones(rank, np.int32))], shape=shape), shape
    return b.op(Op.CAST, [x], in_data_type=F32, out_data_type=F32, shape=shape), shape


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_graphs_compute_the_same(data: st.DataObject) -> None:
    b = Builder()
    values: list[tuple[int, tuple[int, ...]]] = [
        (b.input("x", (2, 3, 4)), (2, 3, 4)),
        (b.constant("k", np.arange(1, 25, dtype=np.float32)), (24,)),
    ]
    for _ in range(data.draw(st.integers(1, 9))):
        source = values[data.draw(st.integers(0, len(values) - 1))]
        name, number = data.draw(st.sampled_from(STEPS)), data.draw(st.integers(0, 9))
        values.append(step(b, name, *source, number))
    results = data.draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3, unique=True))
    model = b.model([tensor for tensor, _ in results])
    rules: list[Rule] = [*identity.RULES, *duplicates.RULES, *constant_folding.rules(), *dead_code.RULES]
    copy = deepcopy(model)
    apply(copy, *rules)
    assert len(kinds(copy)) <= len(kinds(model))
    # MUL, ADD and NEG are bit-exact here but for the sign of zero and subnormals.
    xnnpack = [data.draw(st.booleans())]
    assert_same(model, copy, Numerics.EXACT, cases=["normal", "wide"], xnnpack=xnnpack)
    again = deepcopy(copy)
    assert not apply(again, *rules).applied
    assert all(isinstance(op, Operator) for op in again.subgraphs[0].operators)
