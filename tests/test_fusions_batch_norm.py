"""Folding of per-channel affine maps: every operator, every spelling, both directions, and what must be refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rules import fuse, kinds, operators, refusals

from litefuse.fusions import batch_norm, sink_activation
from litefuse.fusions.affine import Affine, along_one_axis, through_reshape
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model
from litefuse.schema.enums import ActivationFunctionType, Padding, TensorType
from litefuse.schema.operators import Op

BACKWARD, FORWARD = batch_norm.RULES
RULES = batch_norm.RULES
RELU = ActivationFunctionType.RELU
RELU6 = ActivationFunctionType.RELU6
rng = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return rng.uniform(0.2, 3, shape).astype(np.float32)


def spelled(vector: np.ndarray, how: str, rank: int, size: tuple[int, ...]) -> np.ndarray:
    """A per-channel constant in one of the spellings that converters produce."""
    if how == "vector":
        return vector
    if how == "full rank":
        return vector.reshape((1,) * (rank - 1) + vector.shape)
    if how == "whole tensor":
        return np.broadcast_to(vector, size).copy()
    assert how == "scalar"
    return vector[:1].reshape(())


# -- the operators with weights ------------------------------------------------------------------------------------


def build_weighted(b: Builder, kind: str, bias: bool, same: bool = False, **options: Any) -> tuple[int, Any]:
    """An operator with weights on an input of four channels and six output channels, and its float64 reference."""
    c = normal(6)
    padding = Padding.SAME if same else Padding.VALID

    def inputs(*tensors: int) -> list[int]:
        return [*tensors, b.constant("bias", c)] if bias else list(tensors)

    offset = c if bias else None
    if kind == "conv":
        w = normal(6, 3, 2, 4)
        y = b.op(
            Op.CONV_2D, inputs(b.input("x", [2, 7, 6, 4]), b.constant("w", w)), padding=padding, stride_h=2, **options
        )
        return y, lambda x: reference.conv_2d(x, w, offset, strides=[2, 1], same=same)
    if kind == "dilated":
        w = normal(6, 3, 3, 4)
        x = b.input("x", [2, 7, 7, 4])
        y = b.op(
            Op.CONV_2D,
            inputs(x, b.constant("w", w)),
            padding=padding,
            dilation_h_factor=2,
            dilation_w_factor=2,
            **options,
        )
        return y, lambda x: reference.conv_2d(x, w, offset, strides=[1, 1], same=same, dilations=[2, 2])
    if kind == "grouped":
        w = normal(6, 3, 3, 2)
        y = b.op(Op.CONV_2D, inputs(b.input("x", [1, 5, 5, 4]), b.constant("w", w)), padding=padding, **options)
        return y, lambda x: reference.conv_2d(x, w, offset, strides=[1, 1], same=same)
    if kind in ("depthwise", "multiplier"):
        channels = 6 if kind == "depthwise" else 3
        w = normal(1, 3, 3, 6)
        x = b.input("x", [2, 6, 5, channels])
        y = b.op(
            Op.DEPTHWISE_CONV_2D,
            inputs(x, b.constant("w", w)),
            padding=padding,
            depth_multiplier=6 // channels,
            **options,
        )
        return y, lambda x: reference.depthwise(x, w, offset, strides=[1, 1], same=same)
    if kind == "fully connected":
        w = normal(6, 4)
        y = b.op(Op.FULLY_CONNECTED, inputs(b.input("x", [3, 4]), b.constant("w", w)), **options)
        return y, lambda x: x @ w.T.astype(np.float64) + (0 if offset is None else offset)
    if kind == "transposed":
        w = normal(6, 3, 3, 4)
        x = b.input("x", [1, 4, 5, 4])
        shape = b.constant("shape", [1, 9, 11, 6])
        y = b.op(
            Op.TRANSPOSE_CONV,
            inputs(shape, b.constant("w", w), x),
            stride_h=2,
            stride_w=2,
            padding=Padding.VALID,
            type=TensorType.FLOAT32,
            version=3 if bias else 1,
            **options,
        )
        return y, lambda x: reference.transpose_conv(x, w, offset, 2)
    assert kind == "3d"
    w = normal(2, 3, 2, 4, 6)
    y = b.op(Op.CONV_3D, inputs(b.input("x", [1, 5, 5, 4, 4]), b.constant("w", w)), padding=padding, **options)
    return y, lambda x: reference.convolution(x, w, offset, [1, 1, 1], same)


# The stock kernels of CONV_2D and DEPTHWISE_CONV_2D need a bias: the first refuses to run, the second crashes.
NEED_BIAS = {"conv", "dilated", "grouped", "depthwise", "multiplier"}
WEIGHTED = ["conv", "dilated", "grouped", "depthwise", "multiplier", "fully connected", "transposed", "3d"]
ROOT = {
    "depthwise": "DEPTHWISE_CONV_2D",
    "multiplier": "DEPTHWISE_CONV_2D",
    "fully connected": "FULLY_CONNECTED",
    "transposed": "TRANSPOSE_CONV",
    "3d": "CONV_3D",
}
SPELLINGS = ["vector", "full rank", "whole tensor", "scalar"]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    ("kind", "bias"), [(k, bias) for k in WEIGHTED for bias in (True, False) if bias or k not in NEED_BIAS]
)
def test_multiply_then_add(kind: str, bias: bool, spelling: str) -> None:
    b = Builder()
    y, true = build_weighted(b, kind, bias)
    rank = 2 if kind == "fully connected" else 5 if kind == "3d" else 4
    size = shape_of(b, y)
    s, c = spelled(normal(6), spelling, rank, size), spelled(normal(6), spelling, rank, size)
    y = b.op(Op.MUL, [y, b.constant("s", s)])
    model = b.model([b.op(Op.ADD, [b.constant("c", c), y])])
    after, report = fuse(model, BACKWARD, reference=lambda x: true(x) * s.astype(float) + c.astype(float))
    assert kinds(after) == [ROOT.get(kind, "CONV_2D")]
    assert report.counts() == {BACKWARD.name: 2}
    assert after.subgraphs[0].tensors[after.subgraphs[0].outputs[0]].name == model.subgraphs[0].tensors[-1].name


def shape_of(b: Builder, tensor: int) -> tuple[int, ...]:
    model = b.model([tensor])
    return tuple(model.subgraphs[0].tensors[tensor].shape or ())


@pytest.mark.parametrize("kind", WEIGHTED)
def test_add_subtract_divide_and_reversed_subtraction(kind: str) -> None:
    b = Builder()
    y, true = build_weighted(b, kind, bias=True)
    a, d, e = normal(6), positive(6), normal(6)
    y = b.op(Op.SUB, [y, b.constant("a", a)])
    y = b.op(Op.DIV, [y, b.constant("d", d)])
    y = b.op(Op.SUB, [b.constant("e", e), y])
    after, _ = fuse(b.model([y]), BACKWARD, reference=lambda x: e - (true(x) - a) / d.astype(float))
    assert kinds(after) == [ROOT.get(kind, "CONV_2D")]


@pytest.mark.parametrize("kind", WEIGHTED)
def test_activation_behind_batch_norm_stays(kind: str) -> None:
    b = Builder()
    y, true = build_weighted(b, kind, bias=kind in NEED_BIAS)
    s, c = normal(6), normal(6)
    y = b.op(Op.MUL, [y, b.constant("s", s)])
    y = b.op(Op.ADD, [y, b.constant("c", c)], fused_activation_function=RELU6)
    after, _ = fuse(
        b.model([y]), BACKWARD, reference=lambda x: np.clip(true(x) * s.astype(float) + c.astype(float), 0, 6)
    )
    assert kinds(after) == [ROOT.get(kind, "CONV_2D"), "RELU6"]


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("kind", ["conv", "dilated", "grouped", "depthwise", "multiplier", "3d"])
def test_forward_scale_passes_padding(kind: str, same: bool) -> None:
    check_forward(kind, same, scale=True, shift=False, expected=1)


@pytest.mark.parametrize("kind", [k for k in WEIGHTED if k != "transposed"])
def test_forward_scale_and_shift_without_padding(kind: str) -> None:
    check_forward(kind, False, scale=True, shift=True, expected=1)


def check_forward(kind: str, same: bool, scale: bool, shift: bool, expected: int) -> Model:
    """Builds the operator on x * s + c: first the operator alone, whose input is then replaced."""
    b = Builder()
    y, true = build_weighted(b, kind, bias=True, same=same)
    model = b.model([y])
    main = model.subgraphs[0]
    root = main.operators[0]
    slot = 2 if kind == "transposed" else 0
    x = root.inputs[slot]
    channels = (main.tensors[x].shape or [0])[-1]
    s, c = normal(channels), normal(channels)
    value = x
    operator = main.operators.pop()
    if scale:
        value = b.op(Op.MUL, [value, b.constant("s", s)], shape=main.tensors[x].shape)
    if shift:
        value = b.op(Op.ADD, [value, b.constant("c", c)], shape=main.tensors[x].shape)
    operator.inputs[slot] = value
    main.operators.append(operator)

    def whole(x: Any) -> Any:
        return true(x * (s.astype(float) if scale else 1) + (c.astype(float) if shift else 0))

    after, _ = fuse(model, FORWARD, reference=whole)
    assert len(kinds(after)) == expected
    return after


@pytest.mark.parametrize("kind", ["conv", "depthwise", "3d"])
def test_shift_stops_before_zero_padding(kind: str) -> None:
    b = Builder()
    x = b.input("x", [1, 5, 5, 5, 4] if kind == "3d" else [1, 5, 5, 4])
    y = b.op(Op.ADD, [x, b.constant("c", normal(4))])
    if kind == "conv":
        y = b.op(Op.CONV_2D, [y, b.constant("w", normal(2, 3, 3, 4)), b.constant("b", normal(2))])
    elif kind == "depthwise":
        y = b.op(Op.DEPTHWISE_CONV_2D, [y, b.constant("w", normal(1, 3, 3, 4)), b.constant("b", normal(4))])
    else:
        y = b.op(Op.CONV_3D, [y, b.constant("w", normal(3, 3, 3, 4, 2))])
    (reason,) = refusals(b.model([y]), *RULES)
    assert "pads with zeros" in reason


def test_same_padding_that_pads_nothing_is_no_obstacle() -> None:
    b = Builder()
    c, w = normal(4), normal(2, 1, 1, 4)
    y = b.op(Op.ADD, [b.input("x", [1, 5, 5, 4]), b.constant("c", c)])
    y = b.op(Op.CONV_2D, [y, b.constant("w", w), b.constant("b", normal(2))], stride_h=2, stride_w=2)
    after, _ = fuse(b.model([y]), *RULES)
    assert kinds(after) == ["CONV_2D"]


# -- what may stand in between -------------------------------------------------------------------------------------


def conv(b: Builder, name: str = "x", size: int = 6, channels: int = 6, **options: Any) -> int:
    x = b.input(name, [2, size, size, 4])
    weights = [b.constant("w", normal(channels, 3, 3, 4)), b.constant("b", normal(channels))]
    return b.op(Op.CONV_2D, [x, *weights], padding=Padding.VALID, **options)


def batch_norm_of(b: Builder, y: int, s: np.ndarray, c: np.ndarray, **options: Any) -> int:
    y = b.op(Op.MUL, [y, b.constant("s", s)])
    return b.op(Op.ADD, [y, b.constant("c", c)], **options)


BETWEEN: dict[str, Any] = {
    "reshape": lambda b, y: b.op(Op.RESHAPE, [y, b.constant("shape", [2, 16, 6])]),
    "reshape to more dimensions": lambda b, y: b.op(Op.RESHAPE, [y, b.constant("shape", [2, 2, 2, 4, 6])]),
    "expand": lambda b, y: b.op(Op.EXPAND_DIMS, [y, b.constant("axis", 1)]),
    "average pool": lambda b, y: b.op(
        Op.AVERAGE_POOL_2D, [y], filter_height=3, filter_width=2, stride_h=2, padding=Padding.SAME
    ),
    "max pool": lambda b, y: b.op(Op.MAX_POOL_2D, [y], filter_height=2, filter_width=2, padding=Padding.SAME),
    "mean": lambda b, y: b.op(Op.MEAN, [y, b.constant("axes", [1, 2])]),
    "mean with dimensions": lambda b, y: b.op(Op.MEAN, [y, b.constant("axes", [-2])], keep_dims=True),
    "nearest": lambda b, y: b.op(Op.RESIZE_NEAREST_NEIGHBOR, [y, b.constant("size", [8, 9])]),
    "bilinear": lambda b, y: b.op(Op.RESIZE_BILINEAR, [y, b.constant("size", [7, 5])], half_pixel_centers=True),
    "two views": lambda b, y: b.op(
        Op.RESHAPE, [b.op(Op.RESHAPE, [y, b.constant("s1", [2, 16, 6])]), b.constant("s2", [32, 6])]
    ),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_backward_through(what: str) -> None:
    b = Builder()
    y = BETWEEN[what](b, conv(b))
    y = batch_norm_of(b, y, positive(6), normal(6))
    after, _ = fuse(b.model([y]), BACKWARD)
    assert not {"MUL", "ADD"} & set(kinds(after))


def test_backward_through_transpose() -> None:
    b = Builder()
    y = b.op(Op.TRANSPOSE, [conv(b), b.constant("order", [0, 3, 1, 2])])
    y = batch_norm_of(b, y, normal(6, 1, 1), normal(1, 6, 1, 1))
    after, _ = fuse(b.model([y]), BACKWARD)
    assert kinds(after) == ["CONV_2D", "TRANSPOSE"]


def test_backward_along_another_axis_is_refused() -> None:
    b = Builder()
    y = b.op(Op.TRANSPOSE, [conv(b), b.constant("order", [0, 3, 1, 2])])
    (reason,) = refusals(b.model([b.op(Op.MUL, [y, b.constant("s", normal(4))])]), BACKWARD)
    assert "axis 2, which is not the channel axis" in reason


def test_backward_through_concatenation_splits_the_constant() -> None:
    b = Builder()
    parts = [conv(b, "x", channels=2), conv(b, "y", channels=3), conv(b, "z", channels=1)]
    y = b.op(Op.CONCATENATION, parts, axis=-1)
    y = batch_norm_of(b, y, normal(6), normal(6), fused_activation_function=RELU)
    after, _ = fuse(b.model([y]), BACKWARD, *sink_activation.RULES)
    assert kinds(after) == ["CONV_2D+RELU"] * 3 + ["CONCATENATION"]


def test_concatenation_with_an_input_that_cannot_take_its_part_changes_nothing() -> None:
    b = Builder()
    y = b.op(Op.CONCATENATION, [conv(b, channels=2), b.input("z", [2, 4, 4, 4])], axis=-1)
    assert refusals(b.model([b.op(Op.MUL, [y, b.constant("s", normal(6))])]), BACKWARD) == []


def test_scale_passes_relu_and_pad_but_addition_does_not() -> None:
    b = Builder()
    y = conv(b, fused_activation_function=RELU)
    y = b.op(Op.PAD, [y, b.constant("pads", [[0, 0], [1, 1], [0, 2], [0, 0]])])
    after, _ = fuse(b.model([b.op(Op.MUL, [y, b.constant("s", positive(6))])]), BACKWARD)
    assert kinds(after) == ["CONV_2D+RELU", "PAD"]
    b = Builder()
    y = b.op(Op.ADD, [conv(b, fused_activation_function=RELU), b.constant("c", normal(6))])
    (reason,) = refusals(b.model([y]), BACKWARD)
    assert "applies RELU first" in reason
    b = Builder()
    y = b.op(Op.PAD, [conv(b), b.constant("pads", [[0, 0], [1, 1], [0, 2], [0, 0]])])
    (reason,) = refusals(b.model([b.op(Op.ADD, [y, b.constant("c", normal(6))])]), BACKWARD)
    assert "pads with zeros in between" in reason


def test_negative_scale_stops_at_relu_and_max_pool() -> None:
    b = Builder()
    y = b.op(Op.MUL, [conv(b, fused_activation_function=RELU), b.constant("s", -positive(6))])
    (reason,) = refusals(b.model([y]), BACKWARD)
    assert "not all scales are positive" in reason
    b = Builder()
    y = b.op(Op.MAX_POOL_2D, [conv(b)], filter_height=2, filter_width=2)
    (reason,) = refusals(b.model([b.op(Op.MUL, [y, b.constant("s", -positive(6))])]), BACKWARD)
    assert "positive scales only" in reason


@pytest.mark.parametrize("activation", [RELU6, ActivationFunctionType.RELU_N1_TO_1])
def test_other_activations_stop_everything(activation: ActivationFunctionType) -> None:
    b = Builder()
    y = b.op(Op.MUL, [conv(b, fused_activation_function=activation), b.constant("s", positive(6))])
    (reason,) = refusals(b.model([y]), BACKWARD)
    assert f"applies {activation.name} first" in reason


def test_addition_passes_a_residual_addition() -> None:
    b = Builder()
    y = b.op(Op.ADD, [conv(b), b.input("z", [2, 4, 4, 6])])
    after, _ = fuse(b.model([b.op(Op.ADD, [y, b.constant("c", normal(6))])]), BACKWARD)
    assert kinds(after) == ["CONV_2D", "ADD"]


def two_convs(b: Builder, **options: Any) -> tuple[int, int]:
    """Two convolutions of one input, with results [2, 4, 4, 6]."""
    x = b.input("x", [2, 4, 4, 3])

    def one(name: str) -> int:
        weights = b.constant(f"w{name}", normal(6, 1, 1, 3))
        return b.op(Op.CONV_2D, [x, weights, b.constant(f"b{name}", normal(6))], padding=Padding.SAME, **options)

    return one("1"), one("2")


@pytest.mark.parametrize("kind", [Op.ADD, Op.SUB])
def test_batch_norm_goes_into_both_sides_of_a_residual(kind: Op) -> None:
    b = Builder()
    y = b.op(kind, two_convs(b))
    after, _ = fuse(b.model([batch_norm_of(b, y, normal(6), normal(6))]), BACKWARD)
    assert kinds(after) == ["CONV_2D", "CONV_2D", kind.name]


@pytest.mark.parametrize("kind", [Op.ADD, Op.SUB])
@pytest.mark.parametrize("swapped", [False, True])
def test_an_addition_goes_into_the_side_that_takes_it(kind: Op, swapped: bool) -> None:
    """The other side applies RELU, which only the scale passes."""
    b = Builder()
    x, y = two_convs(b)
    sides = [b.op(Op.RELU, [x]), y]
    z = b.op(kind, sides[::-1] if swapped else sides)
    after, _ = fuse(b.model([batch_norm_of(b, z, positive(6), normal(6))]), BACKWARD)
    assert kinds(after) == ["CONV_2D", "CONV_2D", "RELU", kind.name]


def test_a_scale_stops_where_one_side_of_a_residual_does_not_take_it() -> None:
    b = Builder()
    x, y = two_convs(b)
    z = b.op(Op.ADD, [b.op(Op.TANH, [x]), y])
    assert refusals(b.model([b.op(Op.MUL, [z, b.constant("s", normal(6))])]), BACKWARD) == []
    b = Builder()
    x, y = two_convs(b)
    z = b.op(Op.MUL, [b.op(Op.ADD, [x, y]), b.constant("s", normal(6))])
    (reason,) = refusals(b.model([z, y]), BACKWARD)
    assert "also" in reason
    b = Builder()
    x, _ = two_convs(b)
    assert refusals(b.model([b.op(Op.MUL, [b.op(Op.ADD, [x, x]), b.constant("s", normal(6))])]), BACKWARD) == []


@pytest.mark.parametrize("kind", [Op.MUL, Op.DIV])
def test_a_scale_goes_into_one_factor(kind: Op) -> None:
    b = Builder()
    x, y = two_convs(b)
    z = b.op(kind, [x, b.op(Op.ABS, [y])] if kind is Op.DIV else [b.op(Op.TANH, [x]), y])
    after, _ = fuse(b.model([b.op(Op.MUL, [z, b.constant("s", normal(6))])]), BACKWARD)
    assert "MUL" not in kinds(after)[3:] or kind is Op.MUL
    assert len(kinds(after)) == 4
    b = Builder()
    x, y = two_convs(b)
    assert refusals(b.model([b.op(Op.ADD, [b.op(kind, [x, y]), b.constant("c", normal(6))])]), BACKWARD) == []


def test_one_number_passes_a_product_of_matrices() -> None:
    for scale, expected in ((np.float32(0.35), 3), (normal(5), 4)):
        b = Builder()
        x = b.input("x", [5, 8])
        fc = [b.op(Op.FULLY_CONNECTED, [x, b.constant("w", normal(8, 8)), -1], shape=[5, 8]) for _ in range(2)]
        y = b.op(Op.MUL, [b.op(Op.BATCH_MATMUL, fc, adj_y=True), b.constant("s", scale)])
        assert len(kinds(fuse(b.model([y]), BACKWARD)[0])) == expected


def test_chains_of_constants_merge() -> None:
    b = Builder()
    x = b.input("x", [2, 3, 4])
    y = b.op(Op.MUL, [b.op(Op.MUL, [x, b.constant("a", normal(4))]), b.constant("b", 0.5)])
    y = b.op(Op.ADD, [b.op(Op.ADD, [y, b.constant("c", 1.5)]), b.constant("d", normal(4))])
    after, _ = fuse(b.model([y]), BACKWARD)
    assert kinds(after) == ["MUL", "ADD"]


def test_constants_along_different_axes_do_not_merge() -> None:
    b = Builder()
    x = b.input("x", [2, 3, 4])
    y = b.op(Op.MUL, [b.op(Op.MUL, [x, b.constant("a", normal(4))]), b.constant("b", normal(3, 1))])
    assert refusals(b.model([y]), BACKWARD) == []


def test_relu_batch_norm_conv_valid_comes_out_as_two_convolutions() -> None:
    b = Builder()
    y = batch_norm_of(b, conv(b, size=8, fused_activation_function=RELU), normal(6), normal(6))
    y = b.op(Op.CONV_2D, [y, b.constant("v", normal(3, 3, 3, 6)), b.constant("d", normal(3))], padding=Padding.VALID)
    after, _ = fuse(b.model([y]), *RULES)
    assert kinds(after) == ["CONV_2D+RELU", "CONV_2D"]


def test_batch_norm_flatten_dense() -> None:
    b = Builder()
    y = batch_norm_of(b, conv(b, fused_activation_function=RELU6), normal(6), normal(6))
    y = b.op(Op.RESHAPE, [y, b.constant("shape", [2, 96])])
    after, _ = fuse(
        b.model([b.op(Op.FULLY_CONNECTED, [y, b.constant("v", normal(5, 96)), b.constant("d", normal(5))])]), *RULES
    )
    assert kinds(after) == ["CONV_2D+RELU6", "RESHAPE", "FULLY_CONNECTED"]


def test_dense_that_flattens_itself() -> None:
    b = Builder()
    y = batch_norm_of(b, conv(b, fused_activation_function=RELU6), normal(6), normal(6))
    after, _ = fuse(
        b.model([b.op(Op.FULLY_CONNECTED, [y, b.constant("v", normal(5, 96)), b.constant("d", normal(5))])]), *RULES
    )
    assert kinds(after) == ["CONV_2D+RELU6", "FULLY_CONNECTED"]


def test_forward_into_all_readers_or_none() -> None:
    b = Builder()
    x = b.input("x", [1, 5, 5, 4])
    y = batch_norm_of(b, x, normal(4), normal(4))
    first = b.op(
        Op.CONV_2D, [y, b.constant("v", normal(3, 3, 3, 4)), b.constant("d", normal(3))], padding=Padding.VALID
    )
    second = b.op(Op.DEPTHWISE_CONV_2D, [y, b.constant("w", normal(1, 1, 1, 4)), b.constant("e", normal(4))])
    after, _ = fuse(b.model([first, second]), *RULES)
    assert sorted(kinds(after)) == ["CONV_2D", "DEPTHWISE_CONV_2D"]
    b = Builder()
    y = b.op(Op.MUL, [b.input("x", [1, 5, 5, 4]), b.constant("s", normal(4))])
    first = b.op(Op.CONV_2D, [y, b.constant("v", normal(3, 3, 3, 4)), b.constant("d", normal(3))])
    (reason,) = refusals(b.model([first, b.op(Op.TANH, [y])]), *RULES)
    assert "also read by TANH #2" in reason


def test_dilation_by_space_to_batch() -> None:
    b = Builder()
    x = b.input("x", [1, 8, 8, 4])
    y = b.op(Op.SPACE_TO_BATCH_ND, [x, b.constant("block", [2, 2]), b.constant("pads", [[2, 2], [2, 2]])])
    y = b.op(
        Op.CONV_2D,
        [y, b.constant("w", normal(6, 3, 3, 4)), b.constant("b", np.zeros(6, np.float32))],
        padding=Padding.VALID,
    )
    y = b.op(Op.BATCH_TO_SPACE_ND, [y, b.constant("block2", [2, 2]), b.constant("crops", [[0, 0], [0, 0]])])
    after, _ = fuse(b.model([batch_norm_of(b, y, normal(6), normal(6))]), *RULES)
    assert kinds(after) == ["SPACE_TO_BATCH_ND", "CONV_2D", "BATCH_TO_SPACE_ND"]


# -- what must be refused, or left alone ---------------------------------------------------------------------------


def test_other_readers_are_named() -> None:
    b = Builder()
    y = conv(b)
    z = b.op(Op.MUL, [y, b.constant("s", normal(6))])
    (reason,) = refusals(b.model([z, b.op(Op.TANH, [y])]), BACKWARD)
    assert reason == "output of CONV_2D #0 `conv_2d_0` is also read by TANH #2 `tanh_2`"


def test_graph_output_is_named() -> None:
    b = Builder()
    y = conv(b)
    (reason,) = refusals(b.model([b.op(Op.MUL, [y, b.constant("s", normal(6))]), y]), BACKWARD)
    assert "is also an output of the model" in reason


def test_forward_from_a_graph_output_is_refused() -> None:
    b = Builder()
    y = b.op(Op.MUL, [b.input("x", [1, 5, 5, 4]), b.constant("s", normal(4))])
    z = b.op(Op.CONV_2D, [y, b.constant("v", normal(3, 1, 1, 4)), b.constant("d", normal(3))])
    (reason,) = refusals(b.model([z, y]), *RULES)
    assert "is also an output of the model" in reason


def test_broadcasting_that_enlarges_is_left_alone() -> None:
    # tensorflow#39572: the product is larger than the convolution's result.
    b = Builder()
    x = b.input("x", [1, 1, 1, 4])
    y = b.op(Op.CONV_2D, [x, b.constant("w", normal(6, 1, 1, 4)), b.constant("b", normal(6))])
    assert refusals(b.model([b.op(Op.MUL, [y, b.constant("s", normal(1, 5, 5, 6))])]), *RULES) == []
    b = Builder()
    y = b.op(Op.FULLY_CONNECTED, [b.input("x", [3, 4]), b.constant("w", normal(6, 4)), b.constant("b", normal(6))])
    assert refusals(b.model([b.op(Op.MUL, [y, b.constant("s", normal(2, 1, 6))])]), *RULES) == []


def test_constants_that_vary_along_rows_are_left_alone() -> None:
    # tensorflow#61967: a factor per row is not a factor per output channel, even where the counts agree.
    b = Builder()
    y = b.op(Op.FULLY_CONNECTED, [b.input("x", [6, 4]), b.constant("w", normal(6, 4)), b.constant("b", normal(6))])
    (reason,) = refusals(b.model([b.op(Op.MUL, [y, b.constant("s", normal(6, 1))])]), *RULES)
    assert "axis 0, which is not the channel axis" in reason


@pytest.mark.parametrize(("value", "reason"), [(0.0, "contains zero"), (np.nan, "is not finite")])
def test_divisors_that_are_zero_or_not_finite(value: float, reason: str) -> None:
    b = Builder()
    d = positive(6)
    d[3] = value
    (refusal,) = refusals(b.model([b.op(Op.DIV, [conv(b), b.constant("d", d)])]), BACKWARD)
    assert reason in refusal


def test_overflow_is_refused() -> None:
    b = Builder()
    x = b.input("x", [1, 3])
    y = b.op(Op.FULLY_CONNECTED, [x, b.constant("w", np.full((2, 3), 1e30, np.float32)), b.constant("b", normal(2))])
    (reason,) = refusals(b.model([b.op(Op.MUL, [y, b.constant("s", 1e20)])]), BACKWARD)
    assert "would overflow float32" in reason


def test_weights_that_are_computed_are_refused() -> None:
    b = Builder()
    y = b.op(Op.FULLY_CONNECTED, [b.input("x", [1, 4]), b.input("w", [6, 4]), b.constant("b", normal(6))])
    (reason,) = refusals(b.model([b.op(Op.MUL, [y, b.constant("s", normal(6))])]), BACKWARD)
    assert "weights of FULLY_CONNECTED #0 `fully_connected_0` are not constant" in reason


def half_precision(b: Builder) -> int:
    x = b.input("x", [1, 5, 5, 4])
    half = b.constant("w16", normal(6, 3, 3, 4).astype(np.float16))
    w = b.op(Op.DEQUANTIZE, [half], type=TensorType.FLOAT32, shape=[6, 3, 3, 4])
    bias = b.op(Op.DEQUANTIZE, [b.constant("b16", normal(6).astype(np.float16))], type=TensorType.FLOAT32, shape=[6])
    return b.op(Op.CONV_2D, [x, w, bias])


def test_float16_weights_take_an_addition_but_no_scale() -> None:
    b = Builder()
    after, _ = fuse(b.model([b.op(Op.ADD, [half_precision(b), b.constant("c", normal(6))])]), BACKWARD)
    assert kinds(after) == ["DEQUANTIZE", "CONV_2D"]
    b = Builder()
    (reason,) = refusals(b.model([b.op(Op.MUL, [half_precision(b), b.constant("s", normal(6))])]), BACKWARD)
    assert "--widen-fp16" in reason


def hybrid(b: Builder, scales: np.ndarray) -> int:
    w = rng.integers(-127, 128, (6, 4)).astype(np.int8)
    weights = b.constant("w", w, quantized(scales.tolist(), axis=0))
    return b.op(Op.FULLY_CONNECTED, [b.input("x", [3, 4]), weights, b.constant("b", normal(6))], version=3)


def test_hybrid_weights_take_a_factor_in_their_scale() -> None:
    b = Builder()
    y = batch_norm_of(b, hybrid(b, np.array([0.01], np.float32)), np.float32(2.5), normal(6))
    after, _ = fuse(b.model([y]), BACKWARD, cases=("normal", "zeros"), xnnpack=(False,))
    assert kinds(after) == ["FULLY_CONNECTED"]
    b = Builder()
    y = b.op(Op.MUL, [hybrid(b, np.array([0.01], np.float32)), b.constant("s", positive(6))])
    (reason,) = refusals(b.model([y]), BACKWARD)
    assert "have one scale for all channels" in reason


def test_quantized_arithmetic_is_left_alone() -> None:
    b = Builder()
    q = quantized(0.1)
    x = b.input("x", [1, 5, 5, 4], TensorType.INT8, q)
    w = b.constant("w", rng.integers(-127, 128, (6, 1, 1, 4)).astype(np.int8), quantized([0.01] * 6))
    bias = b.constant("b", np.zeros(6, np.int32), quantized([0.001] * 6))
    y = b.op(Op.CONV_2D, [x, w, bias], version=3)
    s = b.constant("s", rng.integers(1, 100, 6).astype(np.int8), quantized(0.02))
    assert refusals(b.model([b.op(Op.MUL, [y, s])]), *RULES) == []


def test_shared_weights_are_copied_for_one_user_only() -> None:
    b = Builder()
    x = b.input("x", [1, 5, 5, 4])
    w, c = b.constant("w", normal(4, 1, 1, 4)), b.constant("b", normal(4))
    first = b.op(Op.CONV_2D, [x, w, c])
    second = b.op(Op.CONV_2D, [b.op(Op.MUL, [first, b.constant("s", normal(4))]), w, c])
    after, _ = fuse(b.model([second]), BACKWARD)
    one, two = operators(after, "CONV_2D")
    buffers = [after.subgraphs[0].tensors[op.inputs[1]].buffer for op in (one, two)]
    assert kinds(after) == ["CONV_2D", "CONV_2D"]
    assert buffers[0] != buffers[1]


def test_dynamic_batch() -> None:
    b = Builder()
    x = b.input("x", [-1, 5, 5, 4])
    y = b.op(Op.CONV_2D, [x, b.constant("w", normal(6, 3, 3, 4)), b.constant("b", normal(6))])
    y = batch_norm_of(b, y, normal(6), normal(6))
    after, _ = fuse(b.model([y]), *RULES)
    assert kinds(after) == ["CONV_2D"]


def test_transpose_conv_gets_a_bias_and_its_version() -> None:
    b = Builder()
    y, _ = build_weighted(b, "transposed", bias=False)
    after, _ = fuse(b.model([b.op(Op.ADD, [y, b.constant("c", normal(6))])]), BACKWARD)
    (op,) = operators(after, "TRANSPOSE_CONV")
    assert len(op.inputs) == 4
    assert after.operator_codes[op.opcode_index].version == 3


# -- the algebra ---------------------------------------------------------------------------------------------------


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """A shape, an axis of it, and another shape with as many elements."""
    factors = draw(st.lists(st.sampled_from([1, 2, 3, 2]), min_size=1, max_size=6))

    def grouping() -> tuple[int, ...]:
        shape, current = [], 1
        for f in factors:
            current *= f
            if draw(st.booleans()):
                shape.append(current)
                current = 1
        return (*shape, current)

    source = grouping()
    return source, draw(st.integers(0, len(source) - 1)), grouping()


@given(reshapes(), st.integers(0, 2**32 - 1))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_reshaping_keeps_the_map(case: tuple[tuple[int, ...], int, tuple[int, ...]], seed: int) -> None:
    source, axis, target = case
    random = np.random.default_rng(seed)
    vector, shift = random.standard_normal(source[axis]), random.standard_normal(source[axis])
    x = random.standard_normal(source)
    frame = [1] * len(source)
    frame[axis] = source[axis]
    mapped = through_reshape(Affine(axis, vector, shift), source, target)
    whole = x * vector.reshape(frame) + shift.reshape(frame)
    spread = np.broadcast_to(vector.reshape(frame), source).reshape(target)
    if mapped is None:
        assert along_one_axis(spread, target) is None
        return
    frame = [1] * len(target)
    if mapped.axis is not None:
        frame[mapped.axis] = target[mapped.axis]
    got = x.reshape(target) * mapped.scale.reshape(frame) + mapped.shift.reshape(frame)
    assert np.array_equal(got, whole.reshape(target))


@pytest.mark.parametrize(
    ("source", "axis", "target", "expected"),
    [
        ((-1, 4, 4, 8), 3, (-1, 16, 8), 2),
        ((-1, 4, 4, 8), 3, (-1, 128), 1),
        ((1, 1, 64, 8), 3, (1, 64, 8), 2),
        ((-1, 1, 64, 8), 3, (-1, 64, 8), 2),
        ((2, -1, 8), 2, (-1, 8), 1),
        ((2, -1, 8), 0, (-1, 8), None),
        ((2, 8), 1, (4, 4), None),
    ],
)
def test_reshaping_with_open_dimensions(source: Any, axis: int, target: Any, expected: int | None) -> None:
    vector = np.arange(1.0, 9.0 if axis else 3.0)
    mapped = through_reshape(Affine(axis, vector, vector), source, target)
    assert (None if mapped is None else mapped.axis) == expected
