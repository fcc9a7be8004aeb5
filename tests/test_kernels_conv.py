"""The reference kernels of CONV_2D, DEPTHWISE_CONV_2D and TRANSPOSE_CONV against the runtime's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delegate import assert_near, both, outputs_of, refusal, start, through
from linear_cases import (
    ACTIVATIONS,
    FLOAT,
    HYBRID,
    HYBRID_CHANNEL,
    INT8,
    INT8_CHANNEL,
    INT16,
    INT16_CHANNEL,
    INT16_NARROW,
    INTEGERS,
    UINT8,
    Arithmetic,
    Group,
    check_equal,
    check_spread,
    named,
)

from litefuse.graph.build import Builder, quantized
from litefuse.schema.enums import ActivationFunctionType, Padding, TensorType
from litefuse.schema.operators import Op

CASES = 24  # operators in one model


def _axis(rng: np.random.Generator, padding: Padding, dilated: bool) -> tuple[int, int, int, int]:
    """Input, filter, stride and dilation of one spatial axis."""
    filter = int(rng.integers(1, 5))
    dilation = int(rng.integers(1, 4)) if dilated else 1
    span = (filter - 1) * dilation + 1
    size = int(rng.integers(1, 10)) + (span - 1 if padding == Padding.VALID else 0)
    return size, filter, int(rng.integers(1, 4)), dilation


def _bias_type(arithmetic: Arithmetic) -> dict[str, Any]:
    return {"quantized_bias_type": TensorType.INT32} if arithmetic == INT16_NARROW else {}


def _add_conv(group: Group, arithmetic: Arithmetic, grouped: bool = True) -> None:
    rng = group.rng
    padding = Padding(int(rng.integers(2)))
    h, kh, sh, dh = _axis(rng, padding, rng.random() < 0.4)
    w, kw, sw, dw = _axis(rng, padding, rng.random() < 0.4)
    groups = int(rng.integers(1, 4)) if grouped and rng.random() < 0.4 else 1
    depth, channels = int(rng.integers(1, 8)), int(rng.integers(1, 6)) * groups
    activation = ACTIVATIONS[int(rng.integers(4))]
    x_shape = (int(rng.integers(1, 4)), h, w, depth * groups)
    o = group.operands(arithmetic, x_shape, (channels, kh, kw, depth), 0)
    label = f"{x_shape} * {(channels, kh, kw, depth)} /{sh},{sw} dilated {dh},{dw} {padding.name} {activation.name}"
    group.op(
        Op.CONV_2D,
        o.inputs,
        o,
        label,
        padding=padding,
        stride_h=sh,
        stride_w=sw,
        dilation_h_factor=dh,
        dilation_w_factor=dw,
        fused_activation_function=activation,
        **_bias_type(arithmetic),
    )


def _add_depthwise(group: Group, arithmetic: Arithmetic) -> None:
    rng = group.rng
    padding = Padding(int(rng.integers(2)))
    h, kh, sh, dh = _axis(rng, padding, rng.random() < 0.4)
    w, kw, sw, dw = _axis(rng, padding, rng.random() < 0.4)
    depth, multiplier = int(rng.integers(1, 7)), int(rng.choice([1, 1, 2, 3]))
    activation = ACTIVATIONS[int(rng.integers(4))]
    x_shape, shape = (int(rng.integers(1, 4)), h, w, depth), (1, kh, kw, depth * multiplier)
    believed = arithmetic.input == TensorType.INT16 or arithmetic in (HYBRID, HYBRID_CHANNEL)
    o = group.operands(arithmetic, x_shape, shape, 3)
    group.op(
        Op.DEPTHWISE_CONV_2D,
        o.inputs,
        o,
        f"{x_shape} * {shape} /{sh},{sw} dilated {dh},{dw} {padding.name} {activation.name}",
        padding=padding,
        stride_h=sh,
        stride_w=sw,
        dilation_h_factor=dh,
        dilation_w_factor=dw,
        depth_multiplier=multiplier if believed or rng.random() < 0.5 else int(rng.integers(0, 5)),
        fused_activation_function=activation,
    )


def _add_transpose(group: Group, arithmetic: Arithmetic) -> None:
    rng = group.rng
    padding = Padding(int(rng.integers(2)))
    out_h, kh, sh, _ = _axis(rng, padding, False)
    out_w, kw, sw, _ = _axis(rng, padding, False)
    h, w = (
        -(-size // s) if padding == Padding.SAME else (size - k) // s + 1
        for size, k, s in ((out_h, kh, sh), (out_w, kw, sw))
    )
    batch, depth, channels = (int(rng.integers(1, 5)) for _ in range(3))
    activation = ACTIVATIONS[int(rng.integers(4))]
    o = group.operands(arithmetic, (batch, h, w, depth), (channels, kh, kw, depth), 0, bias=bool(rng.integers(2)))
    shape = [batch, out_h, out_w, channels]
    size = group.builder.constant(f"shape{len(group.outputs)}", np.array(shape, np.int32))
    group.op(
        Op.TRANSPOSE_CONV,
        [size, o.weights, o.x, *o.inputs[2:]],
        o,
        f"{(batch, h, w, depth)} to {shape}, filter {kh}x{kw} /{sh},{sw} {padding.name} {activation.name}",
        padding=padding,
        stride_h=sh,
        stride_w=sw,
        fused_activation_function=activation,
        **(_bias_type(arithmetic) if o.bias is not None else {}),
    )


ADD = {"conv": _add_conv, "depthwise": _add_depthwise, "transpose": _add_transpose}
# Depthwise convolutions know neither int32 bias with int16 input nor one scale with float input; see REFUSALS.
INTEGER_CASES = [(k, a) for k in ADD for a in (*INTEGERS, INT16_NARROW) if (k, a) != ("depthwise", INT16_NARROW)]
HYBRID_CASES = [(k, a) for k in ADD for a in (HYBRID, HYBRID_CHANNEL) if (k, a) != ("depthwise", HYBRID)]


def _run(
    add: Any, arithmetic: Arithmetic, seed: int, **options: Any
) -> tuple[Group, list[np.ndarray], list[np.ndarray]]:
    group = Group(seed)
    for _ in range(CASES):
        add(group, arithmetic, **options)
    return group, *both(group.model(), group.feeds)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("kind", "arithmetic"), INTEGER_CASES, ids=lambda v: v if isinstance(v, str) else named(v))
def test_integers_are_equal(kind: str, arithmetic: Arithmetic, seed: int) -> None:
    group, expected, found = _run(ADD[kind], arithmetic, seed)
    check_equal(group.labels, expected, found)
    check_spread(expected)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", ADD)
def test_floats_are_equal(kind: str, seed: int) -> None:
    group, expected, found = _run(ADD[kind], FLOAT, seed)
    check_equal(group.labels, expected, found)


@pytest.mark.parametrize(("kind", "arithmetic"), HYBRID_CASES, ids=lambda v: v if isinstance(v, str) else named(v))
def test_hybrid_is_equal(kind: str, arithmetic: Arithmetic) -> None:
    options = {"grouped": arithmetic == HYBRID_CHANNEL} if kind == "conv" else {}
    group, expected, found = _run(ADD[kind], arithmetic, 1, **options)
    check_equal(group.labels, expected, found)


def _conv(
    x_shape: tuple[int, ...] = (1, 5, 5, 4),
    weights: tuple[int, ...] = (6, 3, 3, 4),
    *,
    kind: Op = Op.CONV_2D,
    x: TensorType = TensorType.FLOAT32,
    x_points: Any = None,
    w: type[np.generic] = np.float32,
    w_points: Any = None,
    bias: Any = "zeros",
    bias_points: Any = None,
    output: TensorType | None = None,
    output_points: Any = None,
    output_shape: Any = None,
    **options: Any,
) -> Any:
    """One operator, possibly a wrong one: nothing is run to find its shapes."""
    b = Builder()
    channels = weights[3] if kind == Op.DEPTHWISE_CONV_2D else weights[0]
    inputs = [b.input("x", x_shape, x, x_points), b.constant("w", np.ones(weights, w), w_points)]
    if bias is not None:
        zeros = np.zeros(channels, {TensorType.FLOAT32: np.float32, TensorType.INT16: np.int64}.get(x, np.int32))
        inputs.append(b.constant("b", zeros if isinstance(bias, str) else bias, bias_points))
    if kind == Op.TRANSPOSE_CONV:
        size = output_shape
        if not isinstance(size, int):
            size = b.constant("shape", np.asarray((1, 5, 5, 6) if size is None else size, np.int32))
        else:
            size = b.input("shape", [4], TensorType.INT32)
        inputs = [size, inputs[1], inputs[0], *inputs[2:]]
    y = b.op(kind, inputs, shape=(1, 5, 5, channels), type=output or x, quantization=output_points, **options)
    return b.model([y])


Q = quantized(0.5)
U8 = {"x": TensorType.UINT8, "x_points": Q, "w": np.uint8, "w_points": Q, "output_points": Q}
I8 = {"x": TensorType.INT8, "x_points": Q, "w": np.int8, "w_points": Q, "output_points": Q}
I16 = {"x": TensorType.INT16, "x_points": Q, "w": np.int8, "w_points": Q, "output_points": Q}
DEPTHWISE: dict[str, Any] = {"kind": Op.DEPTHWISE_CONV_2D, "weights": (1, 3, 3, 8), "depth_multiplier": 2}
TRANSPOSE: dict[str, Any] = {"kind": Op.TRANSPOSE_CONV}

REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("3 dimensions where it needs 4", {"x_shape": (5, 5, 4)}),
    ("weights have 2 dimensions", {"weights": (6, 4)}),
    ("its filter has 3 channels where the input has 4", {"weights": (6, 3, 3, 3)}),
    ("it has 5 output channels for 2 groups", {"weights": (5, 3, 3, 2)}),
    ("its stride along the width is 0", {"stride_w": 0}),
    ("its stride along the height is -1", {"stride_h": -1}),
    ("its dilation along the height is 0", {"dilation_h_factor": 0}),
    (
        "its filter covers 9 positions of the width where the input has 5",
        {"dilation_w_factor": 4, "padding": Padding.VALID},
    ),
    ("its dilated filter is too large along the height", {"dilation_h_factor": (1 << 31) - 1}),
    ("fused activation 4 is not supported", {"fused_activation_function": ActivationFunctionType.TANH}),
    ("its bias has 5 values for 6 output channels", {"bias": np.zeros(5, np.float32)}),
    ("its bias is int32 where float32 is needed", {"bias": np.zeros(6, np.int32)}),
    ("its input is int32", {"x": TensorType.INT32, "w": np.int32}),
    ("its weights are uint8 where the input is float32", {"w": np.uint8, "w_points": Q}),
    ("its weights are int8 where the input is uint8", U8 | {"w": np.int8}),
    ("its output is int8 where the input is uint8", U8 | {"output": TensorType.INT8}),
    ("its input has no quantisation", I8 | {"x_points": None}),
    ("its output has no quantisation", I8 | {"output_points": None}),
    ("its weights have no quantisation", I8 | {"w_points": None}),
    ("its weights have no quantisation", {"w": np.int8}),
    ("its int8 weights have the zero point 3, not 0", I8 | {"w_points": quantized(0.5, 3)}),
    ("its weights have 3 scales for 6 output channels", I8 | {"w_points": quantized([0.5] * 3, 0, 1)}),
    ("its filter is quantised per channel", U8 | {"w_points": quantized([0.5] * 6)}),
    ("its bias has the zero point 2, not 0", I8 | {"bias_points": quantized(0.25, 2)}),
    ("its bias has the scale 0 where input and weights make 0.25", U8),
    ("its input is int16 with the zero point 1, not 0", I16 | {"x_points": quantized(0.5, 1)}),
    ("its bias is int64 where int32 is needed", I8 | {"bias": np.zeros(6, np.int64)}),
    ("its scales multiply accumulators by", I16 | {"w_points": quantized(40000.0), "bias": None}),
    ("its scales multiply accumulators by", I8 | {"w_points": quantized(3e9)}),
    ("its filter has 2 as its first dimension", DEPTHWISE | {"weights": (2, 3, 3, 8)}),
    ("its filter has 6 channels where the input has 4", DEPTHWISE | {"weights": (1, 3, 3, 6)}),
    ("its strides or dilations pass 32767", DEPTHWISE | {"stride_h": 40000}),
    ("its bias has 2 dimensions where it needs 1", DEPTHWISE | {"bias": np.zeros((1, 8), np.float32)}),
    ("its bias is int32 where int64 is needed", DEPTHWISE | I16 | {"bias": np.zeros(8, np.int32)}),
    ("its depth multiplier says 1 where the shapes say 2", DEPTHWISE | I16 | {"depth_multiplier": 1}),
    ("its int8 weights have one scale for all channels", DEPTHWISE | {"w": np.int8, "w_points": Q}),
    (
        "its depth multiplier says 0",
        DEPTHWISE | {"w": np.int8, "w_points": quantized([0.5] * 8, 0, 3), "depth_multiplier": 0},
    ),
    (
        "it is grouped, its input is float and its int8 weights have one scale",
        {"weights": (6, 3, 3, 2), "w": np.int8, "w_points": Q},
    ),
    ("its output shape is computed at run time", TRANSPOSE | {"output_shape": 0}),
    ("its output shape is not 4 int32 numbers", TRANSPOSE | {"output_shape": (1, 5, 5)}),
    ("its output has 2 batches where the input has 1", TRANSPOSE | {"output_shape": (2, 5, 5, 6)}),
    ("its output has 7 channels where the filter makes 6", TRANSPOSE | {"output_shape": (1, 5, 5, 7)}),
    ("its output is empty", TRANSPOSE | {"output_shape": (1, -5, 5, 6)}),
    ("its output of 7 x 5 does not come from an input of 5 x 5", TRANSPOSE | {"output_shape": (1, 7, 5, 6)}),
    ("its filter has 3 channels where the input has 4", TRANSPOSE | {"weights": (6, 3, 3, 3)}),
    ("its strides pass 32767", TRANSPOSE | {"stride_w": 40000}),
]


@pytest.mark.parametrize(("reason", "case"), REFUSALS, ids=[r for r, _ in REFUSALS])
def test_refusals(reason: str, case: dict[str, Any]) -> None:
    assert reason in refusal(_conv(**case))


def test_too_many_inputs_are_refused() -> None:
    b = Builder()
    x = b.input("x", [1, 5, 5, 4])
    w, bias = b.constant("w", np.ones((6, 3, 3, 4), np.float32)), b.constant("b", np.zeros(6, np.float32))
    y = b.op(Op.CONV_2D, [x, w, bias, bias], shape=(1, 5, 5, 6))
    assert "it has 4 inputs" in refusal(b.model([y]))


def test_float_edge_values() -> None:
    group = Group(3)
    shape = (1, 4, 4, 3)
    special = np.array([np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-42, 0.0, -0.0], np.float32)
    for activation in ACTIVATIONS:
        for kind, weights in ((Op.CONV_2D, (2, 2, 2, 3)), (Op.DEPTHWISE_CONV_2D, (1, 2, 2, 6))):
            o = group.operands(
                FLOAT, shape, weights, 0 if kind == Op.CONV_2D else 3, x=group.rng.choice(special, shape)
            )
            group.op(kind, o.inputs, o, f"{kind.name} {activation.name}", fused_activation_function=activation)
    expected, found = both(group.model(), group.feeds)
    check_equal(group.labels, expected, found)
    numbers = np.concatenate([e.ravel() for e in expected])
    assert np.isnan(numbers).any()
    assert (numbers == np.finfo(np.float32).max).any()


@pytest.mark.parametrize("arithmetic", [UINT8, INT8_CHANNEL, INT16, INT16_NARROW], ids=named)
def test_accumulators_at_their_limits(arithmetic: Arithmetic) -> None:
    group = Group(4)
    info = np.iinfo({TensorType.UINT8: np.uint8, TensorType.INT8: np.int8}.get(arithmetic.input, np.int16))
    for value in (info.min, info.max):
        x = np.full((1, 8, 8, 16), value, info.dtype)
        o = group.operands(arithmetic, x.shape, (3, 7, 7, 16), 0, x=x)
        group.op(Op.CONV_2D, o.inputs, o, str(value), padding=Padding.SAME, **_bias_type(arithmetic))
    check_equal(group.labels, *both(group.model(), group.feeds))


def test_hybrid_edge_values() -> None:
    group = Group(5)
    special = [
        np.zeros((2, 3, 3, 4)),
        np.full((2, 3, 3, 4), 7.5),
        np.full((2, 3, 3, 4), -1e-20),
        np.eye(12).reshape(4, 3, 3, 4),
    ]
    for x in (s.astype(np.float32) for s in special):
        for arithmetic in (HYBRID, HYBRID_CHANNEL):
            o = group.operands(arithmetic, x.shape, (5, 2, 2, 4), 0, x=x)
            group.op(Op.CONV_2D, o.inputs, o, f"{named(arithmetic)} of {x.ravel()[0]}")
        o = group.operands(HYBRID_CHANNEL, x.shape, (1, 2, 2, 8), 3, x=x)
        group.op(Op.DEPTHWISE_CONV_2D, o.inputs, o, f"depthwise of {x.ravel()[0]}", depth_multiplier=2)
    check_equal(group.labels, *both(group.model(), group.feeds))


def test_hybrid_with_equal_scales_is_the_one_of_a_single_scale() -> None:
    rng = np.random.default_rng(6)
    x, w = rng.normal(size=(2, 5, 5, 3)).astype(np.float32), rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)

    def model(points: Any) -> Any:
        b = Builder()
        inputs = [b.input("x", x.shape), b.constant("w", w, points), b.constant("b", np.ones(4, np.float32))]
        return b.model([b.op(Op.CONV_2D, inputs)])

    several = both(model(quantized([0.1] * 4)), [x])
    check_equal(["several scales"], *several)
    check_equal(["one scale"], several[1], both(model(quantized(0.1)), [x])[1])


def test_a_missing_bias_is_zero() -> None:
    # The runtime's own CONV_2D demands a bias; regions may do without.
    def model(with_bias: bool) -> Any:
        b = Builder()
        rng = np.random.default_rng(7)
        x = b.input("x", [1, 5, 5, 3])
        inputs = [x, b.constant("w", rng.normal(size=(4, 3, 3, 3)).astype(np.float32))]
        inputs += [b.constant("b", np.zeros(4, np.float32))] if with_bias else []
        return b.model([b.op(Op.CONV_2D, inputs, shape=(1, 3, 3, 4), padding=Padding.VALID)])

    expected = outputs_of(start(model(True)))
    check_equal(["no bias"], expected, through(model(False), backend="reference"))
    assert_near(expected[0], through(model(False))[0], "no bias")


def test_depthwise_without_bias() -> None:
    group = Group(8)
    for arithmetic in (FLOAT, UINT8, INT8, INT8_CHANNEL, INT16, INT16_CHANNEL, HYBRID_CHANNEL):
        o = group.operands(arithmetic, (2, 5, 4, 3), (1, 3, 2, 6), 3, bias=False)
        group.op(Op.DEPTHWISE_CONV_2D, o.inputs, o, named(arithmetic), depth_multiplier=2)
    check_equal(group.labels, *both(group.model(), group.feeds))


def test_weights_may_be_computed() -> None:
    b = Builder()
    x, w = b.input("x", [1, 5, 5, 3]), b.input("w", [4, 3, 3, 3])
    y = b.op(Op.CONV_2D, [x, w, b.constant("b", np.ones(4, np.float32))])
    check_equal(["y"], *both(b.model([y])))


def test_shapes_may_change() -> None:
    group = Group(9)
    o = group.operands(FLOAT, (1, 6, 6, 3), (4, 3, 3, 3), 0)
    group.op(Op.CONV_2D, o.inputs, o, "conv", stride_h=2, stride_w=2)
    model = group.model()
    for shape in ((3, 6, 6, 3), (1, 9, 5, 3), (2, 1, 1, 3), (0, 6, 6, 3)):
        check_equal([str(shape)], *both(model, [group.rng.normal(size=shape).astype(np.float32)]))
