"""1x1 convolutions over images of equal pixels: alone, beside others, and what must stay."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from rules import fuse, kinds, operators, refusals

from litefuse.check import check
from litefuse.fusions import LEVELS, dead_code, image_pooling, rules, run, select
from litefuse.graph.build import Builder, quantized
from litefuse.graph.text import from_text
from litefuse.schema import Model, deepcopy
from litefuse.schema.enums import ActivationFunctionType, Padding, TensorType
from litefuse.schema.operators import Op

ABOVE, APART = image_pooling.RULES
RNG = np.random.default_rng(11)
H, W = 5, 7
PIXEL = 16  # channels of a pixel for which the rules pay

RESIZES = [
    (Op.RESIZE_BILINEAR, {}),
    (Op.RESIZE_BILINEAR, {"align_corners": True}),
    (Op.RESIZE_BILINEAR, {"half_pixel_centers": True}),
    (Op.RESIZE_NEAREST_NEIGHBOR, {}),
    (Op.RESIZE_NEAREST_NEIGHBOR, {"half_pixel_centers": True}),
]
# Where limits cut off large sums, rounding is large beside what is left.
TAME = ("normal", "zeros", "negative zeros", "subnormals")
FUSED = [ActivationFunctionType[n] for n in ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")]


def resize(b: Builder, v: int, h: int = H, w: int = W, kind: Op = Op.RESIZE_BILINEAR, **options: Any) -> int:
    version = 3 if options.get("half_pixel_centers") else 1
    return b.op(kind, [v, b.constant("size", [h, w])], version=version, **options)


def conv(b: Builder, x: int, channels: int, out: int = 6, half: bool = False, **options: Any) -> int:
    def weights(name: str, *shape: int) -> int:
        value = RNG.standard_normal(shape).astype(np.float32)
        if not half:
            return b.constant(name, value)
        stored = b.constant(name, value.astype(np.float16))
        return b.op(Op.DEQUANTIZE, [stored], type=TensorType.FLOAT32, shape=shape)

    return b.op(Op.CONV_2D, [x, weights("w", out, 1, 1, channels), weights("b", out)], **options)


def above(n: int = 1, c: int = PIXEL, kind: Op = Op.RESIZE_BILINEAR, **options: Any) -> Model:
    b = Builder()
    return b.model([conv(b, resize(b, b.input("v", [n, 1, 1, c]), kind=kind, **options), c)])


def heads(order: str, n: int = 1, size: tuple[int, int] = (H, W), axis: int = 3, **options: Any) -> Model:
    """A convolution of images x and enlarged pixels v, side by side in the order of those letters."""
    b = Builder()
    tensors, channels = [], 0
    for i, letter in enumerate(order):
        c = PIXEL + i
        x = b.input(f"{letter}{i}", [n, *(size if letter == "x" else (1, 1)), c])
        tensors.append(x if letter == "x" else resize(b, x, *size))
        channels += c
    return b.model([conv(b, b.op(Op.CONCATENATION, tensors, axis=axis), channels, **options)])


# -- nothing but enlarged pixels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "options"), RESIZES)
@pytest.mark.parametrize("n", [1, 3])
def test_convolution_before_resize(kind: Op, options: dict[str, Any], n: int) -> None:
    after, report = fuse(above(n, kind=kind, **options), ABOVE, APART)
    assert kinds(after) == ["CONV_2D", kind.name]
    assert report.counts() == {ABOVE.name: 1}
    assert report.applied[0].reason == f"one pixel instead of {H}x{W}"
    (made,) = operators(after, kind.name)
    assert all(getattr(made.builtin_options, name) == value for name, value in options.items())


@pytest.mark.parametrize("activation", FUSED)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("padding", Padding)
def test_convolution_keeps_what_it_does(
    activation: ActivationFunctionType, half: bool, stride: tuple[int, int], padding: Padding
) -> None:
    b = Builder()
    x = resize(b, b.input("v", [2, 1, 1, PIXEL]))
    options = {"stride_h": stride[0], "stride_w": stride[1], "padding": padding}
    model = b.model([conv(b, x, PIXEL, half=half, fused_activation_function=activation, **options)])
    after, _ = fuse(model, ABOVE, cases=TAME)
    last = f"CONV_2D+{activation.name}" if activation else "CONV_2D"
    assert kinds(after) == ["DEQUANTIZE"] * (2 * half) + [last, "RESIZE_BILINEAR"]


def test_nothing_but_pixels_side_by_side() -> None:
    after, report = fuse(heads("vvv", n=2), ABOVE, APART)
    assert kinds(after) == ["CONCATENATION", "CONV_2D", "RESIZE_BILINEAR"]
    assert report.counts() == {ABOVE.name: 1}


def test_one_convolution_behind_another() -> None:
    b = Builder()
    y = conv(b, resize(b, b.input("v", [1, 1, 1, PIXEL])), PIXEL, 32)
    after, report = fuse(b.model([conv(b, b.op(Op.TANH, [y]), 32)]), ABOVE)
    assert kinds(after) == ["CONV_2D", "TANH", "CONV_2D", "RESIZE_BILINEAR"]
    assert report.counts() == {ABOVE.name: 2}


def test_the_resize_may_have_other_readers() -> None:
    b = Builder()
    x = resize(b, b.input("v", [1, 1, 1, PIXEL]))
    after, _ = fuse(b.model([conv(b, x, PIXEL), b.op(Op.ABS, [x])]), ABOVE)
    assert sorted(kinds(after)) == ["ABS", "CONV_2D", "RESIZE_BILINEAR", "RESIZE_BILINEAR"]


# -- other ways to enlarge ---------------------------------------------------------------------------------------------


def tiled(b: Builder, v: int) -> int:
    return b.op(Op.TILE, [v, b.constant("counts", [1, H, W, 1])])


def broadcast(b: Builder, v: int) -> int:
    return b.op(Op.BROADCAST_TO, [v, b.constant("to", [2, H, W, PIXEL])], version=2)


def multiplied(b: Builder, v: int) -> int:
    return b.op(Op.MUL, [v, b.constant("ones", np.ones((1, H, W, 1), np.float32))], shape=[2, H, W, PIXEL])


def multiplied_from_left(b: Builder, v: int) -> int:
    return b.op(Op.MUL, [b.constant("ones", np.ones((H, W, 1), np.float32)), v], shape=[2, H, W, PIXEL])


def twice(b: Builder, v: int) -> int:
    return resize(b, resize(b, v, 2, 3))


SPELLINGS = [tiled, broadcast, multiplied, multiplied_from_left, twice]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings(spelling: Any) -> None:
    b = Builder()
    model = b.model([conv(b, spelling(b, b.input("v", [2, 1, 1, PIXEL])), PIXEL)])
    after, _ = fuse(model, ABOVE)
    assert kinds(after)[0] == "CONV_2D"
    assert kinds(after)[1] == ("RESIZE_BILINEAR" if spelling is twice else "RESIZE_NEAREST_NEIGHBOR")
    b = Builder()
    parts = [b.input("x", [2, H, W, 4]), spelling(b, b.input("v", [2, 1, 1, PIXEL]))]
    after, _ = fuse(b.model([conv(b, b.op(Op.CONCATENATION, parts, axis=-1), PIXEL + 4)]), APART)
    assert kinds(after) == ["CONV_2D", "CONV_2D", "ADD"]


@pytest.mark.parametrize("kind", sorted(image_pooling._FUNCTIONS))
def test_functions_in_between(kind: Op) -> None:
    b = Builder()
    options: dict[str, Any] = {"alpha": 0.25} if kind is Op.LEAKY_RELU else {}
    v = b.op(kind, [resize(b, b.input("v", [2, 1, 1, PIXEL]))], **options)
    x = b.op(Op.CONCATENATION, [v, b.input("x", [2, H, W, 4])], axis=3)
    after, _ = fuse(b.model([conv(b, x, PIXEL + 4)]), APART)
    assert kinds(after) == [kind.name, "CONV_2D", "CONV_2D", "ADD"]


# -- beside others -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["vx", "xv", "vxx", "xvx", "xxv", "vxv", "vvx", "xvxv", "vxxvx"])
@pytest.mark.parametrize("n", [1, 3])
def test_parts_in_any_order(order: str, n: int) -> None:
    after, report = fuse(heads(order, n), ABOVE, APART)
    joins = (order.count("v") > 1) + (order.count("x") > 1)
    assert sorted(kinds(after)) == ["ADD"] + ["CONCATENATION"] * joins + ["CONV_2D"] * 2
    assert report.counts() == {APART.name: 1}


@pytest.mark.parametrize("activation", FUSED)
@pytest.mark.parametrize("half", [False, True])
def test_the_sum_has_the_activation(activation: ActivationFunctionType, half: bool) -> None:
    model = heads("xv", half=half, fused_activation_function=activation)
    after, _ = fuse(model, APART, cases=TAME)
    last = f"ADD+{activation.name}" if activation else "ADD"
    assert [k for k in kinds(after) if k != "DEQUANTIZE"] == ["CONV_2D", "CONV_2D", last]
    assert kinds(after).count("DEQUANTIZE") == 3 * half


@pytest.mark.parametrize("size", [(1, 4), (3, 1), (33, 33), (8, 13)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
def test_sizes_and_strides(size: tuple[int, int], stride: tuple[int, int]) -> None:
    model = heads("xv", 2, size, stride_h=stride[0], stride_w=stride[1], axis=-1)
    after, _ = fuse(model, APART)
    assert kinds(after) == ["CONV_2D", "CONV_2D", "ADD"]


def test_the_same_tensors_twice() -> None:
    b = Builder()
    x, v = b.input("x", [1, H, W, 4]), resize(b, b.input("v", [1, 1, 1, PIXEL]))
    joined = b.op(Op.CONCATENATION, [v, x, v, x], axis=3)
    after, _ = fuse(b.model([conv(b, joined, 2 * PIXEL + 8)]), APART)
    assert sorted(kinds(after)) == ["ADD", "CONCATENATION", "CONCATENATION", "CONV_2D", "CONV_2D"]


def test_unknown_batch() -> None:
    b = Builder()
    x, v = b.input("x", [-1, H, W, 4]), b.input("v", [-1, 1, 1, PIXEL])
    parts = [b.op(Op.RESIZE_BILINEAR, [v, b.constant("size", [H, W])], shape=[-1, H, W, PIXEL]), x]
    joined = b.op(Op.CONCATENATION, parts, axis=3, shape=[-1, H, W, PIXEL + 4])
    after, _ = fuse(b.model([conv(b, joined, PIXEL + 4, shape=[-1, H, W, 6])]), APART)
    assert kinds(after) == ["CONV_2D", "CONV_2D", "ADD"]


def test_results_that_the_enlarged_pixel_is_needed_for() -> None:
    b = Builder()
    x, v = b.input("x", [1, H, W, 4]), resize(b, b.input("v", [1, 1, 1, PIXEL]))
    y = conv(b, b.op(Op.CONCATENATION, [v, x], axis=3), PIXEL + 4)
    after, _ = fuse(b.model([y, v]), APART)
    assert sorted(kinds(after)) == ["ADD", "CONV_2D", "CONV_2D", "RESIZE_BILINEAR"]
    kept = deepcopy(after)
    assert not run(kept, [APART]).applied


@pytest.mark.parametrize("seed", range(24))
def test_random_heads(seed: int) -> None:
    rnd = random.Random(seed)
    n, h, w = rnd.randint(1, 3), rnd.randint(2, 9), rnd.randint(1, 9)
    b = Builder()
    tensors, channels = [], 0
    for i in range(rnd.randint(1, 4)):
        c = rnd.choice([1, 3, 16, 33])
        if rnd.random() < 0.5:
            x = b.input(f"x{i}", [n, h, w, c])
        else:
            kind, options = rnd.choice(RESIZES)
            x = resize(b, b.input(f"v{i}", [n, 1, 1, c]), h, w, kind=kind, **options)
            if rnd.random() < 0.3:
                x = b.op(rnd.choice([Op.RELU, Op.LOGISTIC, Op.HARD_SWISH]), [x])
        tensors.append(x)
        channels += c
    v = resize(b, b.op(Op.TANH, [b.input("v", [n, 1, 1, 16])]), h, w)
    tensors.insert(rnd.randint(0, len(tensors)), v)
    joined = b.op(Op.CONCATENATION, tensors, axis=3)
    y = conv(b, joined, channels + 16, rnd.randint(1, 40), rnd.random() < 0.5)
    after, report = fuse(b.model([b.op(rnd.choice([Op.ABS, Op.RELU]), [y])]), *image_pooling.RULES)
    assert sum(report.counts().values()) == 1
    assert not report.refused
    assert kinds(after).count("RESIZE_BILINEAR") + kinds(after).count("RESIZE_NEAREST_NEIGHBOR") <= 1


POOLED = """
graph main(%x: f32[2,9,9,24]) {
  %m = AVERAGE_POOL_2D(%x) {filter=9, stride=9, padding=VALID}
  %p = CONV_2D(%m, wp[32,1,1,24], bp[32]) {activation=RELU}
  %r = RESIZE_BILINEAR(%p, i32[2]=(9, 9)) {align_corners=true}
  %a = CONV_2D(%x, wa[32,1,1,24], ba[32]) {activation=RELU}
  %b = CONV_2D(%x, wb[32,3,3,24], bb[32]) {activation=RELU, dilation=2}
  %c = CONCATENATION(%r, %a, %b) {axis=3}
  %y = CONV_2D(%c, wc[40,1,1,96], bc[40]) {activation=RELU6}
  return %y
}
"""


def test_head_of_deeplab_with_all_rules() -> None:
    model = from_text(POOLED)
    after = deepcopy(model)
    report = run(after, select(rules(), classes=LEVELS["default"]))
    assert report.counts()[APART.name] == 1
    assert sorted(kinds(after)) == sorted(
        ["AVERAGE_POOL_2D", *["CONV_2D+RELU"] * 3, "CONCATENATION", *["CONV_2D"] * 2, "ADD+RELU6"]
    )
    assert check(model, after, numerics=APART.numerics).ok


def test_not_at_level_exact() -> None:
    assert not {ABOVE, APART} & set(select(rules(), classes=LEVELS["exact"]))
    after = from_text(POOLED)
    assert kinds(from_text(POOLED)).count("RESIZE_BILINEAR") == 1
    run(after, select(rules(), classes=LEVELS["exact"]))
    assert kinds(after) == kinds(from_text(POOLED))


# -- what must stay ----------------------------------------------------------------------------------------------------


def changed(text: str, old: str, new: str) -> Model:
    assert old in text
    return from_text(text.replace(old, new))


HEAD = """
graph main(%x: f32[1,4,4,8], %v: f32[1,1,1,32]) {
  %r = RESIZE_BILINEAR(%v, i32[2]=(4, 4))
  %c = CONCATENATION(%r, %x) {axis=3}
  %y = CONV_2D(%c, w[64,1,1,40], b[64]) {activation=RELU}
  return %y
}
"""
ALONE = """
graph main(%v: f32[1,1,1,32]) {
  %r = RESIZE_BILINEAR(%v, i32[2]=(4, 4))
  %y = CONV_2D(%r, w[64,1,1,32], b[64])
  return %y
}
"""


@pytest.mark.parametrize(("text", "rule"), [(HEAD, APART), (ALONE, ABOVE)])
def test_what_the_refusals_are_made_from_is_rewritten(text: str, rule: Any) -> None:
    assert fuse(from_text(text), rule)[1].counts() == {rule.name: 1}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("return %y", "%z = ABS(%c) return %y, %z", "output of CONCATENATION #1 `c` is also read by ABS #3 `z`"),
        ("return %y", "return %y, %c", "output of CONCATENATION #1 `c` is also an output of the model"),
        (
            "return %y",
            "%z = CONV_2D(%c, u[8,1,1,40], d[8]) return %y, %z",
            "output of CONCATENATION #1 `c` is also read by CONV_2D #3 `z`",
        ),
        ("return %y", "%z = CONV_2D(%q, w, b) return %y, %z", "`w` is also used elsewhere, so that the file"),
        ("w[64,1,1,40]", "w[64,1,1,20]", "CONV_2D #2 `y` has groups of channels"),
        ("w[64,1,1,40]", "w:i8[64,1,1,40]{scale=0.01}", "are INT8, for which it quantises its input"),
        ("w[64,1,1,40]", "%w", "the weights of CONV_2D #2 `y` are not a dense constant"),
        ("activation=RELU", "activation=TANH", "ADD has no fused TANH"),
    ],
)
def test_reasons_beside_others(old: str, new: str, reason: str) -> None:
    text = HEAD.replace("%v: f32[1,1,1,32]", "%v: f32[1,1,1,32], %q: f32[1,4,4,40], %w: f32[64,1,1,40]")
    found = refusals(changed(text, old, new), APART)
    assert any(reason in r for r in found), found


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("w[64,1,1,32]", "w[64,1,1,16]", "CONV_2D #1 `y` has groups of channels"),
        ("w[64,1,1,32]", "w:i8[64,1,1,32]{scale=0.01}", "are INT8, for which it quantises its input"),
        ("(4, 4)", "(1, 1)", "`y` has one pixel only"),
        ("w[64,1,1,32]", "w[64,1,1,12]", "only 12 of the channels that CONV_2D #1 `y` reads are the same everywhere"),
    ],
)
def test_reasons_alone(old: str, new: str, reason: str) -> None:
    text = ALONE.replace("[1,1,1,32]", "[1,1,1,12]") if "12" in new else ALONE
    (found,) = refusals(changed(text, old, new), ABOVE)
    assert reason in found


def test_where_size_is_unknown() -> None:
    b = Builder()
    size = b.input("size", [2], TensorType.INT32)
    x = b.op(Op.RESIZE_BILINEAR, [b.input("v", [1, 1, 1, 32]), size], shape=[1, -1, -1, 32])
    (reason,) = refusals(b.model([conv(b, x, 32, shape=[1, -1, -1, 6])]), ABOVE)
    assert "height and width of" in reason
    assert "are only known at run time" in reason


@pytest.mark.parametrize("beside", [False, True])
def test_integers_are_rounded(beside: bool) -> None:
    b = Builder()
    q = quantized(0.05, 3)
    x = resize(b, b.input("v", [1, 1, 1, 32], TensorType.INT8, q))
    if beside:
        x = b.op(Op.CONCATENATION, [x, b.input("x", [1, H, W, 32], TensorType.INT8, q)], axis=3)
    shape = (4, 1, 1, 64 if beside else 32)
    weights = b.constant("w", RNG.integers(-127, 128, shape, np.int8), quantized(0.01))
    bias = b.constant("b", RNG.integers(-500, 500, 4, np.int32), quantized(0.0005))
    model = b.model([b.op(Op.CONV_2D, [x, weights, bias], quantization=quantized(0.1, -4))])
    (reason,) = refusals(model, ABOVE, APART)
    assert "computes INT8" in reason


@pytest.mark.parametrize("kept", ["c", "y"])
def test_kept_tensors(kept: str) -> None:
    model = from_text(HEAD)
    report = run(model, [ABOVE, APART], keep=[kept])
    assert not report.applied
    assert kinds(model) == kinds(from_text(HEAD))
    assert [c.reason for c in report.refused] == (
        ["output of CONCATENATION #1 `c` is kept as it is by request"] if kept == "c" else []
    )


def test_a_kept_pixel_stays_beside() -> None:
    model = from_text(HEAD)
    assert run(model, [APART], keep=["r"]).counts() == {APART.name: 1}
    assert sorted(kinds(model)) == ["ADD+RELU", "CONV_2D", "CONV_2D", "RESIZE_BILINEAR"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("w[64,1,1,40]", "w[64,3,3,40]"),  # pixels at the edge differ from others
        ("%v: f32[1,1,1,32]", "%v: f32[1,2,1,32]"),
        ("RESIZE_BILINEAR(%v, i32[2]=(4, 4))", "PAD(%v, i32[4,2]=(0, 0, 1, 2, 1, 2, 0, 0))"),
        ("RESIZE_BILINEAR(%v, i32[2]=(4, 4))", "TILE(%v, i32[4]=(1, 4, 4, 2))"),
        ("RESIZE_BILINEAR(%v, i32[2]=(4, 4))", "MUL(%v, k[1,4,4,1]=2.0)"),
        ("RESIZE_BILINEAR(%v, i32[2]=(4, 4))", "MUL(%v, k[1,4,4,1]=1.0) {activation=RELU}"),
        ("RESIZE_BILINEAR(%v, i32[2]=(4, 4))", "MUL(%v, k[1,4,4,1])"),
        ("%v: f32[1,1,1,32]", "var %v: f32[1,1,1,32]"),
        ("%r = RESIZE_BILINEAR(%v", "%r = RESIZE_BILINEAR(v[1,1,1,32]"),
    ],
)
def test_others_are_no_candidates(old: str, new: str) -> None:
    text = HEAD
    if new.startswith("var"):
        text, old, new = HEAD.replace(f", {old})", ")"), "%r =", f"{new}\n  %r ="
    if "(1, 4, 4, 2)" in new:
        text = HEAD.replace("40]", "72]")
    assert refusals(changed(text, old, new), ABOVE, APART) == []


def test_more_images_than_pixels() -> None:
    b = Builder()
    v = b.op(Op.BROADCAST_TO, [b.input("v", [1, 1, 1, 32]), b.constant("to", [3, H, W, 32])], version=2)
    assert refusals(b.model([conv(b, v, 32)]), ABOVE, *dead_code.RULES) == []


def test_images_side_by_side_along_other_axes() -> None:
    b = Builder()
    x, v = b.input("x", [1, H, W, 32]), resize(b, b.input("v", [1, 1, 1, 32]))
    assert refusals(b.model([conv(b, b.op(Op.CONCATENATION, [v, x], axis=2), 32)]), ABOVE, APART) == []
