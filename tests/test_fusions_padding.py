"""PAD into the padding of windows, merged and plain pads: when exactly, to the bit, and why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litefuse.fusions import Numerics, padding, run
from litefuse.fusions.padding import Window, equals_same
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model
from litefuse.schema.enums import ActivationFunctionType, Padding, TensorType
from litefuse.schema.operators import Op
from tests.rules import fuse, kinds, looped, operators, refusals

PLAIN, MERGE, WINDOW, MAXIMUM = padding.RULES
F32, I8, U8, I16 = TensorType.FLOAT32, TensorType.INT8, TensorType.UINT8, TensorType.INT16
RELU = ActivationFunctionType.RELU
rng = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def pads(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, np.int32)


def pad(b: Builder, x: int, *pairs: tuple[int, int], **options: Any) -> int:
    return b.op(Op.PAD, [x, b.constant("pads", pads(*pairs))], **options)


# -- when VALID on a padded side is SAME ---------------------------------------------------------------------------


def valid_windows(size: int, before: int, after: int, window: Window) -> list[list[int]]:
    """For each window of VALID over the padded side, which elements of the side its taps see (-1: padding)."""
    padded = [-1] * before + list(range(size)) + [-1] * after
    starts = range(0, len(padded) - window.reach + 1, window.stride)
    return [[padded[s + k * window.dilation] for k in range(window.kernel)] for s in starts]


def same_windows(size: int, window: Window) -> list[list[int]]:
    """The same for SAME, as TFLite's padding.h defines it."""
    count = (size + window.stride - 1) // window.stride
    missing = max((count - 1) * window.stride + window.reach - size, 0)
    seen = []
    for i in range(count):
        start = i * window.stride - missing // 2
        taps = [start + k * window.dilation for k in range(window.kernel)]
        seen.append([t if 0 <= t < size else -1 for t in taps])
    return seen


def test_equals_same_is_right_for_every_small_geometry() -> None:
    agreements = 0
    for size in range(1, 9):
        for kernel in range(1, 5):
            for stride in range(1, 4):
                for dilation in range(1, 3):
                    window = Window(kernel, stride, dilation)
                    same = same_windows(size, window)
                    for before in range(5):
                        for after in range(5):
                            found = equals_same(size, before, after, window)
                            if not any(set(taps) == {-1} for taps in same):  # windows that see nothing prove nothing
                                assert found == (valid_windows(size, before, after, window) == same), (size, window)
                            agreements += found
                            if stride == 1:
                                assert found == equals_same(-1, before, after, window)
    assert agreements > 300


def test_equals_same_needs_the_size_when_there_is_a_stride() -> None:
    assert not equals_same(-1, 1, 1, Window(3, 2, 1))
    assert equals_same(7, 1, 1, Window(3, 2, 1))
    assert not equals_same(8, 1, 1, Window(3, 2, 1))


# -- convolutions --------------------------------------------------------------------------------------------------


def convolution(kind: str, size: int, before: int, after: int, stride: int, dilation: int, kernel: int = 3) -> Model:
    """PAD and a VALID convolution over square input."""
    b = Builder()
    if kind == "3d":
        x = b.input("x", [1, size, size, size, 2])
        y = pad(b, x, (0, 0), *[(before, after)] * 3, (0, 0))
        strides = {f"stride_{n}": stride for n in "dhw"} | {f"dilation_{n}_factor": dilation for n in "dhw"}
        weights = [b.constant("w", normal(kernel, kernel, kernel, 2, 3)), b.constant("b", normal(3))]
        return b.model([b.op(Op.CONV_3D, [y, *weights], padding=Padding.VALID, **strides)])
    x = b.input("x", [2, size, size, 4])
    y = pad(b, x, (0, 0), (before, after), (before, after), (0, 0))
    where = {f"stride_{n}": stride for n in "hw"} | {f"dilation_{n}_factor": dilation for n in "hw"}
    if kind == "conv":
        weights = [b.constant("w", normal(5, kernel, kernel, 4)), b.constant("b", normal(5))]
        return b.model([b.op(Op.CONV_2D, [y, *weights], padding=Padding.VALID, **where)])
    multiplier = 2 if kind == "multiplier" else 1
    weights = [b.constant("w", normal(1, kernel, kernel, 4 * multiplier)), b.constant("b", normal(4 * multiplier))]
    where |= {"depth_multiplier": multiplier, "version": 2}
    return b.model([b.op(Op.DEPTHWISE_CONV_2D, [y, *weights], padding=Padding.VALID, **where)])


@pytest.mark.parametrize("kind", ["conv", "depthwise", "multiplier", "3d"])
@pytest.mark.parametrize(
    ("size", "before", "after", "stride", "dilation", "kernel"),
    [(7, 1, 1, 1, 1, 3), (7, 1, 1, 2, 1, 3), (8, 0, 1, 2, 1, 3), (8, 1, 2, 1, 1, 4), (8, 0, 1, 3, 1, 3)],
)
def test_pad_goes_into_convolutions(
    kind: str, size: int, before: int, after: int, stride: int, dilation: int, kernel: int
) -> None:
    model = convolution(kind, size, before, after, stride, dilation, kernel)
    after_, _ = fuse(model, WINDOW, nonfinite=True)
    (name,) = kinds(after_)
    assert operators(after_, name)[0].builtin_options.padding == Padding.SAME


@pytest.mark.parametrize("kind", ["conv", "depthwise"])
def test_pad_goes_into_dilated_convolutions(kind: str) -> None:
    after, _ = fuse(convolution(kind, 9, 2, 2, 1, 2), WINDOW)
    assert len(kinds(after)) == 1


def test_what_lies_behind_the_last_window_does_not_matter() -> None:
    # 9 elements with stride 3 and kernel 3 have three windows, whatever is padded behind by less than a stride.
    assert kinds(fuse(convolution("conv", 9, 0, 2, 3, 1), WINDOW)[0]) == ["CONV_2D"]


def test_unknown_height_and_width_with_stride_one() -> None:
    b = Builder()
    x = b.input("x", [-1, -1, -1, 3])
    y = pad(b, x, (0, 0), (1, 1), (2, 2), (0, 0), shape=[-1, -1, -1, 3])
    w, c = b.constant("w", normal(4, 3, 5, 3)), b.constant("c", normal(4))
    model = b.model([b.op(Op.CONV_2D, [y, w, c], padding=Padding.VALID, shape=[-1, -1, -1, 4])])
    assert kinds(fuse(model, WINDOW, batches=(2, 5))[0]) == ["CONV_2D"]


def test_unknown_batch() -> None:
    b = Builder()
    y = pad(b, b.input("x", [-1, 7, 7, 3]), (0, 0), (1, 1), (1, 1), (0, 0))
    w, c = b.constant("w", normal(4, 3, 3, 3)), b.constant("c", normal(4))
    model = b.model([b.op(Op.CONV_2D, [y, w, c], padding=Padding.VALID, stride_h=2, stride_w=2)])
    assert kinds(fuse(model, WINDOW)[0]) == ["CONV_2D"]


@pytest.mark.parametrize("type", [I8, U8, I16])
def test_quantised_padding_is_the_zero_point(type: TensorType) -> None:
    b = Builder()
    point = {I8: -7, U8: 130, I16: 0}[type]
    q = quantized(0.05, point)
    x = b.input("x", [1, 7, 7, 4], type, q)
    y = pad(b, x, (0, 0), (1, 1), (1, 1), (0, 0), version={I8: 2, U8: 1, I16: 3}[type])
    weight_type = U8 if type is U8 else I8
    bias = np.arange(5, dtype=np.int64 if type is I16 else np.int32) * 50
    low = 0 if type is U8 else -127
    w = b.constant(
        "w",
        rng.integers(low, low + 254, (5, 3, 3, 4)).astype(np.uint8 if type is U8 else np.int8),
        quantized(0.02, 120 if type is U8 else 0),
        weight_type,
    )
    c = b.constant("c", bias, quantized(0.05 * 0.02))
    out = quantized(0.1, 3 if type is not I16 else 0)
    version = {I8: 3, U8: 1, I16: 4}[type]
    conv = b.op(Op.CONV_2D, [y, w, c], padding=Padding.VALID, type=type, quantization=out, version=version)
    assert kinds(fuse(b.model([conv]), WINDOW)[0]) == ["CONV_2D"]


def test_hybrid_convolutions_quantise_their_input_all_the_same() -> None:
    b = Builder()
    y = pad(b, b.input("x", [1, 7, 7, 4]), (0, 0), (1, 1), (1, 1), (0, 0))
    w = b.constant("w", rng.integers(-127, 128, (5, 3, 3, 4)).astype(np.int8), quantized([0.01] * 5))
    model = b.model([b.op(Op.CONV_2D, [y, w, b.constant("c", normal(5))], padding=Padding.VALID, version=5)])
    assert kinds(fuse(model, WINDOW)[0]) == ["CONV_2D"]


def test_all_readers_or_none() -> None:
    b = Builder()
    x = b.input("x", [1, 7, 7, 4])
    y = pad(b, x, (0, 0), (1, 1), (1, 1), (0, 0))
    outs = []
    for i, stride in enumerate((1, 2)):
        w, c = b.constant(f"w{i}", normal(3, 3, 3, 4)), b.constant(f"c{i}", normal(3))
        outs.append(b.op(Op.CONV_2D, [y, w, c], padding=Padding.VALID, stride_h=stride, stride_w=stride))
    assert kinds(fuse(b.model(outs), WINDOW)[0]) == ["CONV_2D", "CONV_2D"]


def refused_convolution(b: Builder, y: int, **options: Any) -> Model:
    w, c = b.constant("w", normal(3, 3, 3, 4)), b.constant("c", normal(3))
    return b.model([b.op(Op.CONV_2D, [y, w, c], **({"padding": Padding.VALID} | options))])


def test_refusals_of_convolutions() -> None:
    b = Builder()
    same = refused_convolution(
        b, pad(b, b.input("x", [1, 8, 8, 4]), (0, 0), (1, 1), (1, 1), (0, 0)), padding=Padding.SAME
    )
    (reason,) = refusals(same, WINDOW)
    assert "pads by itself already" in reason

    b = Builder()
    y = pad(b, b.input("x", [1, 8, 8, 4]), (0, 0), (1, 1), (1, 1), (0, 0))
    (reason,) = refusals(refused_convolution(b, y, stride_h=2, stride_w=2), WINDOW)
    assert "would not pad a side of 8 with 1 in front and 1 behind" in reason

    b = Builder()
    y = pad(b, b.input("x", [1, 8, 8, 2]), (0, 0), (1, 1), (1, 1), (0, 2))
    (reason,) = refusals(refused_convolution(b, y), WINDOW)
    assert "also pads the batch or the channels" in reason

    b = Builder()
    x = b.input("x", [1, 8, 8, 4])
    y = b.op(Op.PADV2, [x, b.constant("p", pads((0, 0), (1, 1), (1, 1), (0, 0))), b.constant("v", 1.0)])
    (reason,) = refusals(refused_convolution(b, y), WINDOW)
    assert "pads with 1, not with zeros" in reason

    b = Builder()
    x = b.input("x", [-1, -1, 8, 4])
    y = pad(b, x, (0, 0), (1, 1), (1, 1), (0, 0), shape=[-1, -1, 10, 4])
    model = refused_convolution(b, y, stride_h=2, stride_w=1, shape=[-1, -1, 8, 3])
    (reason,) = refusals(model, WINDOW)
    assert "a side of unknown length" in reason


def test_the_padded_tensor_is_needed_elsewhere() -> None:
    b = Builder()
    y = pad(b, b.input("x", [1, 8, 8, 4]), (0, 0), (1, 1), (1, 1), (0, 0))
    w, c = b.constant("w", normal(3, 3, 3, 4)), b.constant("c", normal(3))
    conv = b.op(Op.CONV_2D, [y, w, c], padding=Padding.VALID)
    (reason,) = refusals(b.model([conv, b.op(Op.NEG, [y])]), WINDOW)
    assert "also read by NEG #2" in reason
    b = Builder()
    y = pad(b, b.input("x", [1, 8, 8, 4]), (0, 0), (1, 1), (1, 1), (0, 0))
    w, c = b.constant("w", normal(3, 3, 3, 4)), b.constant("c", normal(3))
    (reason,) = refusals(b.model([b.op(Op.CONV_2D, [y, w, c], padding=Padding.VALID), y]), WINDOW)
    assert "also an output of the model" in reason


def test_a_convolution_that_is_kept_by_request() -> None:
    model = convolution("conv", 7, 1, 1, 1, 1)
    (conv,) = operators(model, "CONV_2D")
    report = run(model, padding.RULES, keep=[model.subgraphs[0].tensors[conv.outputs[0]].name])
    assert [c.reason for c in report.refused] == ["CONV_2D #1 `conv_2d_1` is kept as it is by request"]
    assert kinds(model) == ["PAD", "CONV_2D"]


def test_silence_where_there_is_no_candidate() -> None:
    b = Builder()
    mirrored = b.op(Op.MIRROR_PAD, [b.input("x", [1, 8, 8, 4]), b.constant("p", pads((0, 0), (1, 1), (1, 1), (0, 0)))])
    assert refusals(refused_convolution(b, mirrored), *padding.RULES) == []
    b = Builder()
    amounts = b.input("amounts", [4, 2], TensorType.INT32)
    y = b.op(Op.PAD, [b.input("x", [1, 8, 8, 4]), amounts], shape=[1, -1, -1, 4])
    w, c = b.constant("w", normal(3, 3, 3, 4)), b.constant("c", normal(3))
    model = b.model([b.op(Op.CONV_2D, [y, w, c], padding=Padding.VALID, shape=[1, -1, -1, 3])])
    assert refusals(model, *padding.RULES) == []
    b = Builder()
    w = pad(b, b.input("w", [3, 3, 3, 4]), (0, 0), (1, 1), (1, 1), (0, 0))
    model = b.model([b.op(Op.CONV_2D, [b.constant("x", normal(1, 8, 8, 4)), w, b.constant("c", normal(3))])])
    assert refusals(model, WINDOW) == []


def test_inside_a_loop() -> None:
    b = Builder()
    x = b.input("x", [1, 5, 5, 2])
    y = pad(b, x, (0, 0), (1, 1), (1, 1), (0, 0))
    w, c = b.constant("w", normal(2, 3, 3, 2) * 0.1), b.constant("c", normal(2))
    model = looped(b.model([b.op(Op.CONV_2D, [y, w, c], padding=Padding.VALID)]))
    assert kinds(fuse(model, WINDOW)[0], 2) == ["CONV_2D", "ADD"]


# -- pooling -------------------------------------------------------------------------------------------------------


def pooled(b: Builder, kind: Op, y: int) -> Model:
    sizes = {"filter_height": 3, "filter_width": 3, "stride_h": 2, "stride_w": 2}
    return b.model([b.op(kind, [y], padding=Padding.VALID, **sizes)])


@pytest.mark.parametrize("before", ["relu", "fused relu", "logistic", "through a reshape"])
def test_maximum_over_numbers_that_are_not_below_the_padding(before: str) -> None:
    b = Builder()
    x = b.input("x", [1, 7, 7, 3])
    if before == "fused relu":
        y = b.op(Op.ADD, [x, b.constant("c", normal(3))], fused_activation_function=RELU)
    elif before == "through a reshape":
        y = b.op(Op.RESHAPE, [b.op(Op.RELU6, [x]), b.constant("s", [1, 7, 7, 3])])
    else:
        y = b.op(Op.RELU if before == "relu" else Op.LOGISTIC, [x])
    model = pooled(b, Op.MAX_POOL_2D, pad(b, y, (0, 0), (1, 1), (1, 1), (0, 0)))
    # Whether the largest of 0.0 and -0.0 has a sign is nobody's business: the kernels differ in it themselves.
    after, report = fuse(model, WINDOW, MAXIMUM, signed_zeros=False, numerics=Numerics.EXACT)
    assert report.counts() == {"pad-into-max-pool": 1}
    assert kinds(after)[-1] == "MAX_POOL_2D"
    assert "PAD" not in kinds(after)


@pytest.mark.parametrize("value", [-np.inf, np.finfo(np.float32).min])
def test_maximum_with_the_lowest_number_around(value: float) -> None:
    b = Builder()
    amounts = b.constant("p", pads((0, 0), (1, 1), (1, 1), (0, 0)))
    y = b.op(Op.PADV2, [b.input("x", [1, 7, 7, 3]), amounts, b.constant("v", np.float32(value))])
    after, _ = fuse(pooled(b, Op.MAX_POOL_2D, y), MAXIMUM, signed_zeros=False, numerics=Numerics.EXACT)
    assert kinds(after) == ["MAX_POOL_2D"]


@pytest.mark.parametrize("point", [-128, 5])
def test_quantised_maximum(point: int) -> None:
    b = Builder()
    x = b.input("x", [1, 7, 7, 3], I8, quantized(0.1, point))
    y = pad(b, x, (0, 0), (1, 1), (1, 1), (0, 0), version=2)
    sizes = {"filter_height": 3, "filter_width": 3, "stride_h": 2, "stride_w": 2}
    model = b.model([b.op(Op.MAX_POOL_2D, [y], padding=Padding.VALID, version=2, **sizes)])
    if point == -128:  # nothing is below
        assert kinds(fuse(model, WINDOW)[0]) == ["MAX_POOL_2D"]
    else:
        (reason,) = refusals(model, WINDOW)
        assert "may hold numbers below the padding" in reason


def test_quantised_maximum_after_a_clamp_at_the_zero_point() -> None:
    b = Builder()
    x = b.input("x", [1, 7, 7, 3], I8, quantized(0.1, 5))
    y = pad(b, b.op(Op.RELU, [x], version=2), (0, 0), (1, 1), (1, 1), (0, 0), version=2)
    sizes = {"filter_height": 3, "filter_width": 3, "stride_h": 2, "stride_w": 2}
    model = b.model([b.op(Op.MAX_POOL_2D, [y], padding=Padding.VALID, version=2, **sizes)])
    assert kinds(fuse(model, WINDOW)[0]) == ["RELU", "MAX_POOL_2D"]


def test_refusals_of_pooling() -> None:
    b = Builder()
    y = pad(b, b.input("x", [1, 7, 7, 3]), (0, 0), (1, 1), (1, 1), (0, 0))
    (reason,) = refusals(pooled(b, Op.MAX_POOL_2D, y), WINDOW, MAXIMUM)
    assert "may hold numbers below the padding" in reason
    b = Builder()
    y = pad(b, b.op(Op.TANH, [b.input("x", [1, 7, 7, 3])]), (0, 0), (1, 1), (1, 1), (0, 0))
    assert len(refusals(pooled(b, Op.MAX_POOL_2D, y), WINDOW, MAXIMUM)) == 1
    b = Builder()
    y = pad(b, b.op(Op.RELU, [b.input("x", [1, 7, 7, 3])]), (0, 0), (1, 1), (1, 1), (0, 0))
    (reason,) = refusals(pooled(b, Op.AVERAGE_POOL_2D, y), WINDOW)
    assert "no longer count the padding" in reason


# -- merging and plain pads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", [F32, I8, TensorType.INT32])
def test_two_pads_are_one(type: TensorType) -> None:
    b = Builder()
    q = quantized(0.1, 4) if type is I8 else None
    x = b.input("x", [1, 3, 4, 2], type, q)
    version = 2 if type is I8 else 1
    y = pad(b, x, (0, 0), (1, 0), (0, 2), (0, 0), version=version)
    model = b.model([pad(b, y, (0, 1), (1, 1), (3, 0), (0, 2), version=version)])
    after, _ = fuse(model, MERGE)
    assert kinds(after) == ["PAD"]


def test_two_pads_of_another_number_are_one() -> None:
    b = Builder()
    amounts = b.constant("p", pads((0, 0), (1, 2)))
    y = b.op(Op.PADV2, [b.input("x", [-1, 3]), amounts, b.constant("v", 2.5)])
    model = b.model([b.op(Op.PADV2, [y, amounts, b.constant("w", 2.5)])])
    assert kinds(fuse(model, MERGE)[0]) == ["PADV2"]


def test_pads_that_stay_two() -> None:
    b = Builder()
    amounts = b.constant("p", pads((0, 0), (1, 2)))
    y = b.op(Op.PADV2, [b.input("x", [2, 3]), amounts, b.constant("v", 2.5)])
    assert refusals(b.model([b.op(Op.PAD, [y, amounts])]), MERGE) == []
    b = Builder()
    amounts = b.constant("p", pads((0, 0), (1, 2)))
    y = b.op(Op.PADV2, [b.input("x", [2, 3]), amounts, b.constant("v", -0.0)])
    assert refusals(b.model([b.op(Op.PAD, [y, amounts])]), MERGE) == []
    b = Builder()
    y = pad(b, b.input("x", [2, 3]), (0, 0), (1, 2))
    (reason,) = refusals(b.model([pad(b, y, (0, 0), (1, 2)), b.op(Op.NEG, [y])]), MERGE)
    assert "also read by NEG" in reason


def test_padding_with_zero_is_plain() -> None:
    b = Builder()
    amounts = b.constant("p", pads((0, 0), (1, 2)))
    model = b.model([b.op(Op.PADV2, [b.input("x", [-1, 3]), amounts, b.constant("v", 0.0)])])
    assert kinds(fuse(model, PLAIN)[0]) == ["PAD"]
    b = Builder()
    q = quantized(0.1, 4)
    amounts, value = b.constant("p", pads((0, 0), (1, 2))), b.constant("v", np.int8(4), q)
    model = b.model([b.op(Op.PADV2, [b.input("x", [2, 3], I8, q), amounts, value], version=2)])
    assert kinds(fuse(model, PLAIN)[0]) == ["PAD"]


@pytest.mark.parametrize("value", [-0.0, 1.0, np.nan])
def test_padding_with_anything_else_is_not(value: float) -> None:
    b = Builder()
    amounts = b.constant("p", pads((0, 0), (1, 2)))
    model = b.model([b.op(Op.PADV2, [b.input("x", [2, 3]), amounts, b.constant("v", np.float32(value))])])
    assert refusals(model, PLAIN) == []
