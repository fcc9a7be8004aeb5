"""Folding behind quantised operators: at most one step of difference over all pairs of inputs, or a refusal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rules import apply, assert_same, fuse, kinds, looped, operators, refusals

from litefuse.fusions import Numerics, quantized_batch_norm, run
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model, deepcopy, read
from litefuse.schema.enums import ActivationFunctionType, FullyConnectedOptionsWeightsFormat, TensorType
from litefuse.schema.operators import Op

RULES = quantized_batch_norm.RULES
FOLD, REQUANTIZE = RULES
INT8, UINT8 = TensorType.INT8, TensorType.UINT8
RELU, RELU6 = ActivationFunctionType.RELU, ActivationFunctionType.RELU6
X = quantized(0.05, -3)

# Every pair of INT8 values.
PAIRS = np.stack(np.meshgrid(np.arange(-128, 128), np.arange(-128, 128)), -1).reshape(-1, 2).astype(np.int8)


def weights(
    b: Builder, kind: Op, value: Any, scales: Any, bias: Any, type: TensorType = INT8, point: int = 0
) -> list[int]:
    """Weights and bias of an operator from a matrix [outputs, inputs]."""
    w = np.asarray(value, np.int8 if type == INT8 else np.uint8)
    axis = 0
    if kind is Op.CONV_2D:
        w = w.reshape(len(w), 1, 1, -1)
    elif kind is Op.DEPTHWISE_CONV_2D:
        w, axis = np.ascontiguousarray(w.T).reshape(1, 1, w.shape[1], len(w)), 3
    products = np.float32(0.05) * np.float32(scales)
    return [
        b.constant("w", w, quantized(scales, point, axis)),
        b.constant("b", np.asarray(bias, np.int32), quantized(products)),
    ]


def conv(
    b: Builder,
    value: Any,
    scales: Any = 0.01,
    *,
    kind: Op = Op.CONV_2D,
    bias: Any = None,
    q: Any = None,
    shape: Any = None,
    **options: Any,
) -> int:
    """A quantised operator on two input channels whose outputs reach about 255 steps of 0.05."""
    outputs, inputs = np.shape(value)
    shape = shape or ([256, inputs] if kind is Op.FULLY_CONNECTED else [1, 256, 1, inputs])
    x = b.input("x", shape, INT8, X)
    operands = weights(b, kind, value, scales, np.zeros(outputs) if bias is None else bias)
    version = 4 if kind is Op.FULLY_CONNECTED else 3
    return b.op(kind, [x, *operands], version=version, quantization=q or quantized(0.05, 0), **options)


def constant(b: Builder, real: Any, name: str = "c") -> int:
    """An INT8 constant near the given real numbers."""
    real = np.asarray(real, np.float64)
    scale = float(np.float32(np.max(np.abs(real)) / 127 or 1.0))
    return b.constant(name, np.round(real / scale).astype(np.int8), quantized(scale))


def times(b: Builder, y: int, factor: Any, scale: float, point: int = 0, **options: Any) -> int:
    return b.op(Op.MUL, [y, constant(b, factor)], version=2, quantization=quantized(scale, point), **options)


def plus(b: Builder, y: int, addend: Any, scale: float, point: int = 0, kind: Op = Op.ADD, **options: Any) -> int:
    return b.op(kind, [y, constant(b, addend, "d")], version=2, quantization=quantized(scale, point), **options)


def requantize(b: Builder, y: int, scale: float, point: int = 0, type: TensorType = INT8) -> int:
    return b.op(Op.QUANTIZE, [y], type=type, quantization=quantized(scale, point), version=2)


def all_pairs(model: Model) -> list[list[np.ndarray]]:
    """All pairs of values of two input channels, as input sets of the model."""
    main = model.subgraphs[0]
    shape = main.tensors[main.inputs[0]].shape or []
    assert shape[-1] == 2
    return [[part.reshape(shape)] for part in PAIRS.reshape(-1, int(np.prod(shape)) // 2, 2)]


def fold(model: Model, *rules: Any) -> Model:
    """Applies the rules and compares for every pair of inputs, with builtin kernels and XNNPACK."""
    after, _ = fuse(model, *(rules or RULES), inputs=all_pairs(model), numerics=Numerics.QUANTIZED)
    return after


# 127 of 0.01 times half the range: |x| is at most 6.55, so that a result reaches at most 8.3 in each channel.
W = [[90, -20], [-100, 27], [20, 100]]


# -- requantisation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.08, 0.1, 0.123])
@pytest.mark.parametrize("kind", [Op.CONV_2D, Op.FULLY_CONNECTED])
def test_wider_scale_is_written_at_once(scale: float, kind: Op) -> None:
    # 0.08 reaches 10.2 and the result 8.3, so that the first range never limits.
    b = Builder()
    y = conv(b, W, q=quantized(0.07, 0), kind=kind, shape=[256, 2] if kind is Op.FULLY_CONNECTED else [1, 256, 1, 2])
    after = fold(b.model([requantize(b, y, scale)]))
    assert kinds(after) == [kind.name]


def test_relu_keeps_the_lower_end() -> None:
    # The range of the first ends at zero, where RELU stops anyway.
    b = Builder()
    y = conv(b, W, q=quantized(0.035, -128), fused_activation_function=RELU)
    after = fold(b.model([requantize(b, y, 0.045, -128)]))
    assert kinds(after) == ["CONV_2D+RELU"]


def test_narrower_range_limits_first() -> None:
    # What the first range cuts off, the second would have cut off too.
    b = Builder()
    y = conv(b, [[100, 100]], q=quantized(0.05, 0))
    after = fold(b.model([requantize(b, y, 0.0451, 0)]))
    assert kinds(after) == ["CONV_2D"]


def test_through_reshapes() -> None:
    b = Builder()
    y = conv(b, W, q=quantized(0.07, 0))
    y = b.op(Op.RESHAPE, [y, b.constant("s", [256, 3])])
    after = fold(b.model([b.op(Op.SQUEEZE, [requantize(b, y, 0.1)])]))
    assert kinds(after) == ["CONV_2D", "RESHAPE", "SQUEEZE"]


def test_range_that_limits_is_refused() -> None:
    b = Builder()
    y = conv(b, W, q=quantized(0.05, 0))
    (reason,) = refusals(b.model([requantize(b, y, 0.1)]), *RULES)
    assert re.fullmatch(
        r"results could differ by up to 19.\d steps of 0.1, 1.\d of it by rounding and 17.9 by .*", reason
    )


def test_finer_scale_is_refused() -> None:
    b = Builder()
    y = conv(b, [[20, 10]], q=quantized(0.05, 0))
    (reason,) = refusals(b.model([requantize(b, y, 0.02)]), *RULES)
    assert re.fullmatch(r"results could differ by up to 2.\d steps of 0.02, 2.\d of it by rounding", reason)


def pair(b: Builder, kind: Op, scale: float, point: int = 0, **options: Any) -> int:
    """An operator on two inputs, the values of which are given as all pairs."""
    x, y = b.input("x", [65536], INT8, X), b.input("y", [65536], INT8, quantized(0.03, 10))
    return b.op(kind, [x, y], version=2, quantization=quantized(scale, point), **options)


@pytest.mark.parametrize(
    ("kind", "scale", "activation"),
    [(Op.ADD, 0.09, 0), (Op.SUB, 0.09, 0), (Op.MUL, 0.25, 0), (Op.ADD, 0.09, RELU), (Op.MUL, 0.05, RELU6)],
)
@pytest.mark.parametrize("ratio", [1.05, 1.3, 1.7])
def test_sums_and_products_of_all_pairs(kind: Op, scale: float, activation: Any, ratio: float) -> None:
    b = Builder()
    y = pair(b, kind, scale, fused_activation_function=ActivationFunctionType(activation))
    model = b.model([requantize(b, y, scale * ratio, 3)])
    after, _ = fuse(model, *RULES, inputs=[[PAIRS[:, 0].copy(), PAIRS[:, 1].copy()]], numerics=Numerics.QUANTIZED)
    assert len(kinds(after)) == 1


def test_sums_that_the_first_range_limits_are_refused() -> None:
    b = Builder()
    (reason,) = refusals(b.model([requantize(b, pair(b, Op.ADD, 0.05), 0.1)]), *RULES)
    assert "by the ranges in between" in reason


def test_products_of_scales_beyond_the_kernels_are_refused() -> None:
    b = Builder()
    (reason,) = refusals(b.model([requantize(b, pair(b, Op.ADD, 50.0), 60.0)]), *RULES)
    assert "would leave what its kernels take" in reason


def test_another_type_is_left_alone() -> None:
    b = Builder()
    y = conv(b, W, q=quantized(0.07, 0))
    assert refusals(b.model([requantize(b, y, 0.07, 128, UINT8)]), *RULES) == []


# -- multiplication and addition -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Op.CONV_2D, Op.FULLY_CONNECTED])
@pytest.mark.parametrize("per_channel", [False, True])
def test_factor_and_addend(kind: Op, per_channel: bool) -> None:
    b = Builder()
    y = conv(b, W, [0.01, 0.008, 0.009] if per_channel else 0.01, kind=kind, q=quantized(0.07, 0), bias=[50, -70, 9])
    varies = per_channel or kind is Op.CONV_2D
    y = times(b, y, [0.5, 0.9, 0.3] if varies else 0.7, 0.08)
    y = plus(b, y, [0.3, -1.0, 2.0], 0.16, 3)
    after = fold(b.model([y]))
    assert kinds(after) == [kind.name]
    (op,) = operators(after, kind.name)
    scale = after.subgraphs[0].tensors[op.inputs[1]].quantization.scale
    assert len(scale) == (3 if varies else 1)


def test_depthwise_with_a_multiplier() -> None:
    b = Builder()
    x = b.input("x", [1, 256, 1, 2], INT8, X)
    w = b.constant("w", np.array([90, -100, 60, 127], np.int8).reshape(1, 1, 1, 4), quantized([0.01] * 4, axis=3))
    c = b.constant("b", np.zeros(4, np.int32), quantized(np.float32([0.05 * 0.01] * 4)))
    y = b.op(Op.DEPTHWISE_CONV_2D, [x, w, c], depth_multiplier=2, version=3, quantization=quantized(0.07, 0))
    after = fold(b.model([times(b, y, [0.5, 0.4, 0.3, 0.25], 0.05)]))
    assert kinds(after) == ["DEPTHWISE_CONV_2D"]


def test_weights_keep_their_bytes() -> None:
    b = Builder()
    model = b.model([times(b, conv(b, W, q=quantized(0.07, 0)), [0.5, 0.9, 0.3], 0.08)])
    after = fold(model)
    (old,), (new,) = operators(model, "CONV_2D"), operators(after, "CONV_2D")
    data = [m.buffers[m.subgraphs[0].tensors[o.inputs[1]].buffer].data for m, o in ((model, old), (after, new))]
    assert bytes(data[0]) == bytes(data[1])


def test_negative_factors_negate_weights() -> None:
    b = Builder()
    y = conv(b, W, q=quantized(0.07, 0), bias=[50, -70, 9])
    after = fold(b.model([times(b, y, [0.5, -0.9, 0.3], 0.08)]))
    assert kinds(after) == ["CONV_2D"]


@pytest.mark.parametrize("reversed_", [False, True])
def test_subtractions(reversed_: bool) -> None:
    b = Builder()
    y = conv(b, W, q=quantized(0.07, 0))
    operands = [y, constant(b, [0.5, 1.0, 2.0])]
    y = b.op(Op.SUB, operands[::-1] if reversed_ else operands, version=2, quantization=quantized(0.1, 4))
    after = fold(b.model([y]))
    assert kinds(after) == ["CONV_2D"]


def test_activation_behind() -> None:
    b = Builder()
    y = times(b, conv(b, W, q=quantized(0.07, 0)), [0.5, 0.9, 0.3], 0.08)
    y = plus(b, y, [0.3, -1.0, 2.0], 0.16, -100, fused_activation_function=RELU6)
    after = fold(b.model([y]))
    assert kinds(after) == ["CONV_2D+RELU6"]


def test_requantisation_at_the_end_of_a_chain() -> None:
    b = Builder()
    y = times(b, conv(b, W, q=quantized(0.07, 0)), [0.5, 0.4, 0.3], 0.04)
    after = fold(b.model([requantize(b, y, 0.15)]))
    assert kinds(after) == ["CONV_2D"]


def test_uint8_with_one_factor() -> None:
    b = Builder()
    x = b.input("x", [1, 256, 1, 2], UINT8, quantized(0.05, 125))
    operands = weights(b, Op.CONV_2D, np.array(W) + 128, 0.01, [0, 0, 0], UINT8, 128)
    y = b.op(Op.CONV_2D, [x, *operands], quantization=quantized(0.07, 128))
    c = b.constant("c", np.uint8(200), quantized(0.005, 20))
    model = b.model([b.op(Op.MUL, [y, c], quantization=quantized(0.08, 120))])
    inputs = [
        [(part.astype(np.int16) + 128).astype(np.uint8).reshape(1, 256, 1, 2)] for part in PAIRS.reshape(-1, 256, 2)
    ]
    after, _ = fuse(model, *RULES, inputs=inputs, numerics=Numerics.QUANTIZED)
    assert kinds(after) == ["CONV_2D"]


def test_body_of_a_loop() -> None:
    b = Builder()
    y = times(b, conv(b, [[90, -20], [20, 60]], q=quantized(0.07, 0)), [0.5, 0.9], 0.05, -3)
    model = looped(b.model([y]), times=1)
    after = deepcopy(model)
    apply(after, *RULES)
    assert kinds(after, 2) == ["CONV_2D", "ADD"]
    assert_same(model, after, Numerics.QUANTIZED, inputs=[[PAIRS[:256].reshape(1, 256, 1, 2)]])


def test_dynamic_batch() -> None:
    b = Builder()
    y = times(b, conv(b, W, q=quantized(0.07, 0), shape=[-1, 4, 4, 2]), [0.5, 0.9, 0.3], 0.08)
    after, _ = fuse(b.model([y]), *RULES)
    assert kinds(after) == ["CONV_2D"]


@st.composite
def chains(draw: st.DrawFn) -> Model:
    """A convolution of two channels with one to three operators behind it, with parameters of all sorts."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    outputs = draw(st.integers(1, 3))
    b = Builder()
    scales = random.uniform(0.002, 0.01, outputs) if draw(st.booleans()) else float(random.uniform(0.002, 0.01))
    w = random.integers(-127, 128, (outputs, 2))
    activation = draw(st.sampled_from([ActivationFunctionType.NONE, RELU]))
    scale = draw(st.floats(0.03, 0.15))
    y = conv(
        b,
        w,
        np.asarray(scales).tolist(),
        bias=random.integers(-2000, 2000, outputs),
        q=quantized(scale, draw(st.integers(-128, 60))),
        fused_activation_function=activation,
    )
    for _ in range(draw(st.integers(1, 3))):
        size = outputs if draw(st.booleans()) else 1
        scale *= draw(st.floats(0.6, 2.5))
        point = draw(st.integers(-128, 60))
        how = draw(st.sampled_from(["times", "plus", "requantize", "minus"]))
        values = random.uniform(-0.2 if draw(st.booleans()) else 0.1, 1.2, size)
        if how == "times":
            y = times(b, y, values, scale, point)
        elif how == "requantize":
            y = requantize(b, y, scale, point)
        else:
            y = plus(b, y, values, scale, point, Op.ADD if how == "plus" else Op.SUB)
    return b.model([y])


@given(chains())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_folded_is_within_one_step(model: Model) -> None:
    after = deepcopy(model)
    if apply(after, *RULES).applied:
        assert_same(model, after, Numerics.QUANTIZED, inputs=all_pairs(model)[::5])


# -- what must be refused ------------------------------------------------------------------------------------------


def test_calibrated_ranges_are_refused_with_the_bound() -> None:
    b = Builder()
    y = times(b, conv(b, W, q=quantized(0.03, 0)), [0.5, 0.9, 0.3], 0.05)
    (reason,) = refusals(b.model([y]), *RULES)
    assert reason.startswith("results could differ by up to 60.3 steps of 0.05, 1.4 of it by rounding and 58.9 by the ")


def test_zero_factor_is_refused() -> None:
    b = Builder()
    y = times(b, conv(b, W, q=quantized(0.07, 0)), [0.5, 0.0, 0.3], 0.08)
    (reason,) = refusals(b.model([y]), *RULES)
    assert reason.startswith("a factor is zero")


def test_weights_that_cannot_be_negated_are_refused() -> None:
    b = Builder()
    y = times(b, conv(b, [[90, -20], [-128, 0]], q=quantized(0.07, 0)), [0.5, -0.3], 0.08)
    (reason,) = refusals(b.model([y]), *RULES)
    assert "cannot be negated" in reason


def test_dense_weights_with_one_scale_and_different_factors_are_refused() -> None:
    b = Builder()
    y = times(b, conv(b, W, q=quantized(0.07, 0), kind=Op.FULLY_CONNECTED), [0.5, 0.9, 0.3], 0.08)
    (reason,) = refusals(b.model([y]), *RULES)
    assert "has one scale for all channels" in reason


def test_other_readers_and_outputs_are_named() -> None:
    b = Builder()
    y = conv(b, W, q=quantized(0.07, 0))
    z = requantize(b, y, 0.1)
    (reason,) = refusals(b.model([z, b.op(Op.LOGISTIC, [y], version=2, quantization=quantized(1 / 256, -128))]), *RULES)
    assert reason == "output of CONV_2D #0 `conv_2d_0` is also read by LOGISTIC #2 `logistic_2`"
    b = Builder()
    y = conv(b, W, q=quantized(0.07, 0))
    (reason,) = refusals(b.model([requantize(b, y, 0.1), y]), *RULES)
    assert "is also an output of the model" in reason


@pytest.mark.parametrize(
    ("activation", "factor", "reason"),
    [(RELU6, 0.5, "applies RELU6 first"), (RELU, -0.5, "applies RELU first, which only positive factors pass")],
)
def test_activations_between(activation: ActivationFunctionType, factor: float, reason: str) -> None:
    b = Builder()
    y = conv(b, W, q=quantized(0.07, 0), fused_activation_function=activation)
    (refusal,) = refusals(b.model([times(b, y, factor, 0.08)]), *RULES)
    assert reason in refusal


def test_addition_behind_relu_is_refused() -> None:
    b = Builder()
    y = conv(b, W, q=quantized(0.07, 0), fused_activation_function=RELU)
    (refusal,) = refusals(b.model([plus(b, y, 0.5, 0.1)]), *RULES)
    assert "which only positive factors pass" in refusal


def test_constants_along_rows_are_left_alone() -> None:
    b = Builder()
    y = conv(b, W, q=quantized(0.07, 0), shape=[1, 4, 4, 2])
    assert (
        refusals(b.model([times(b, y, np.full((4, 1, 1), 0.5) * np.arange(1, 5).reshape(4, 1, 1), 0.3)]), *RULES) == []
    )


def test_broadcasting_that_enlarges_is_left_alone() -> None:
    b = Builder()
    y = conv(b, W, q=quantized(0.07, 0), shape=[1, 1, 1, 2])
    assert refusals(b.model([times(b, y, np.full((1, 4, 4, 3), 0.5), 0.08)]), *RULES) == []


def test_uint8_weights_with_different_factors_are_refused() -> None:
    b = Builder()
    x = b.input("x", [1, 4, 4, 2], UINT8, quantized(0.05, 125))
    operands = weights(b, Op.CONV_2D, np.array(W) + 128, 0.01, [0, 0, 0], UINT8, 128)
    y = b.op(Op.CONV_2D, [x, *operands], quantization=quantized(0.07, 128))
    c = b.constant("c", np.array([100, 200, 50], np.uint8), quantized(0.005, 20))
    (reason,) = refusals(b.model([b.op(Op.MUL, [y, c], quantization=quantized(0.08, 120))]), *RULES)
    assert "have a zero point, and so one scale for all channels" in reason


def test_computed_weights_and_shuffled_ones_are_refused() -> None:
    b = Builder()
    x = b.input("x", [4, 2], INT8, X)
    w = b.input("w", [3, 2], INT8, quantized(0.01))
    y = b.op(Op.FULLY_CONNECTED, [x, w, -1], version=4, quantization=quantized(0.07))
    (reason,) = refusals(b.model([requantize(b, y, 0.1)]), *RULES)
    assert "not a dense constant with scales" in reason
    b = Builder()
    y = conv(b, W, q=quantized(0.07, 0), kind=Op.FULLY_CONNECTED)
    model = b.model([requantize(b, y, 0.1)])
    (op,) = operators(model, "FULLY_CONNECTED")
    op.builtin_options = op.builtin_options.replace(weights_format=FullyConnectedOptionsWeightsFormat.SHUFFLED4x16INT8)
    (reason,) = refusals(model, *RULES)
    assert "in a shuffled format" in reason


def test_bias_that_overflows_is_refused() -> None:
    b = Builder()
    y = conv(b, [[1, 0]], 3e-7, q=quantized(0.05, 0))
    (reason,) = refusals(b.model([plus(b, y, 25.0, 0.2)]), *RULES)
    assert "the bias of CONV_2D #0 `conv_2d_0` would overflow" in reason


def test_scales_beyond_the_kernels_are_refused() -> None:
    b = Builder()
    y = conv(b, [[1, 0]], 1e-9, q=quantized(0.07, 0))
    (reason,) = refusals(b.model([requantize(b, y, 0.1)]), *RULES)
    assert "would leave what its kernels take" in reason


def test_corpus_gives_reasons(corpus: list[Path]) -> None:
    model = read(next(path for path in corpus if path.stem == "gles_blazeface_int8"))
    report = run(deepcopy(model), RULES)
    assert not report.applied
    assert len(report.refused) == 2
    assert all("by the ranges in between" in candidate.reason for candidate in report.refused)
