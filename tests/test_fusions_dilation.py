"""Dilated convolutions out of SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND: geometry, what stands between, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litefuse.fusions import constant_folding, dead_code, dilation
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model
from litefuse.schema.enums import ActivationFunctionType, Padding, TensorType
from litefuse.schema.operators import Op
from tests import reference
from tests.rules import fuse, kinds, looped, operators, refusals

FLOAT, QUANTIZED = dilation.RULES
I8, I16, I32 = TensorType.INT8, TensorType.INT16, TensorType.INT32
RELU = ActivationFunctionType.RELU
rng = np.random.default_rng(3)
Pairs = list[tuple[int, int]]


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def pairs(*values: tuple[int, int]) -> np.ndarray:
    return np.array(values, np.int32)


def chain(
    b: Builder,
    x: int,
    *,
    blocks: list[int],
    paddings: Pairs,
    crops: Pairs,
    kernel: tuple[int, int] = (3, 3),
    depthwise: bool = False,
    channels: int = 3,
    between: Any = None,
    **options: Any,
) -> int:
    """SPACE_TO_BATCH_ND, a convolution, perhaps something between, BATCH_TO_SPACE_ND."""
    y = b.op(Op.SPACE_TO_BATCH_ND, [x, b.constant("blocks", blocks), b.constant("paddings", pairs(*paddings))])
    options = {"padding": Padding.VALID} | options
    if depthwise:
        w, c = normal(1, *kernel, channels), normal(channels)
        y = b.op(Op.DEPTHWISE_CONV_2D, [y, b.constant("w", w), b.constant("c", c)], **options)
    else:
        w, c = normal(4, *kernel, channels), normal(4)
        y = b.op(Op.CONV_2D, [y, b.constant("w", w), b.constant("c", c)], **options)
    if between is not None:
        y = between(b, y)
    blocks_behind = b.constant("blocks_behind", blocks)
    return b.op(Op.BATCH_TO_SPACE_ND, [y, blocks_behind, b.constant("crops", pairs(*crops))])


def same_paddings(size: int, kernel: int, block: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """What TensorFlow pads and crops along a side for SAME."""
    total = (kernel - 1) * block
    rounding = -(size + total) % block
    return (total // 2, total - total // 2 + rounding), (0, rounding)


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("size", [8, 9, 11])
def test_same(depthwise: bool, size: int) -> None:
    b = Builder()
    (p, c), (q, d) = same_paddings(size, 3, 2), same_paddings(7, 3, 3)
    y = chain(b, b.input("x", [2, size, 7, 3]), blocks=[2, 3], paddings=[p, q], crops=[c, d], depthwise=depthwise)
    after, _ = fuse(b.model([y]), FLOAT)
    (op,) = operators(after, "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D")
    assert len(kinds(after)) == 1
    options = op.builtin_options
    assert (options.dilation_h_factor, options.dilation_w_factor, options.padding) == (2, 3, Padding.SAME)


def test_same_is_right_in_float64() -> None:
    b = Builder()
    (p, c), (q, d) = same_paddings(9, 3, 2), same_paddings(8, 3, 2)
    y = chain(b, b.input("x", [1, 9, 8, 3]), blocks=[2, 2], paddings=[p, q], crops=[c, d])
    model = b.model([y])
    w, bias = (np.frombuffer(bytes(model.buffers[i].data), np.float32) for i in (3, 4))
    weights = w.reshape(4, 3, 3, 3)
    fuse(
        model,
        FLOAT,
        reference=lambda x: reference.conv_2d(x, weights, bias, strides=[1, 1], same=True, dilations=[2, 2]),
        bound=1e-6,
    )


def test_valid_with_padding_to_whole_blocks() -> None:
    b = Builder()
    y = chain(b, b.input("x", [1, 9, 8, 3]), blocks=[2, 2], paddings=[(0, 1), (0, 0)], crops=[(0, 1), (0, 0)])
    after, _ = fuse(b.model([y]), FLOAT)
    assert operators(after, "CONV_2D")[0].builtin_options.padding == Padding.VALID
    assert kinds(after) == ["CONV_2D"]


def test_other_padding_stays_in_front() -> None:
    b = Builder()
    y = chain(b, b.input("x", [1, 9, 8, 3]), blocks=[2, 2], paddings=[(4, 1), (0, 0)], crops=[(1, 0), (0, 0)])
    after, _ = fuse(b.model([y]), FLOAT)
    assert kinds(after) == ["PAD", "CONV_2D"]


@pytest.mark.parametrize("crop", [0, 1])
def test_a_convolution_that_pads_its_phases(crop: int) -> None:
    b = Builder()
    x = b.input("x", [1, 8, 8, 3])
    crops = [(crop, crop), (0, 0)]
    y = chain(b, x, blocks=[2, 2], paddings=[(0, 0), (0, 0)], crops=crops, padding=Padding.SAME)
    after, _ = fuse(b.model([y]), FLOAT)
    assert kinds(after) == (["PAD", "CONV_2D"] if crop else ["CONV_2D"])


def test_a_convolution_that_is_dilated_already() -> None:
    b = Builder()
    x = b.input("x", [1, 12, 12, 3])
    nothing: Pairs = [(0, 0), (0, 0)]
    y = chain(b, x, blocks=[2, 2], paddings=nothing, crops=nothing, dilation_h_factor=2, dilation_w_factor=1)
    after, _ = fuse(b.model([y]), FLOAT)
    options = operators(after, "CONV_2D")[0].builtin_options
    assert (options.dilation_h_factor, options.dilation_w_factor) == (4, 2)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_geometry(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    sizes, blocks, kernel, paddings, crops = [], [], [], [], []
    for _ in range(2):
        block, k, before = draw(1, 3), draw(1, 3), draw(0, 3)
        size = draw((k - 1) * block + 1, 9)
        after = draw(0, 2) * block + -(size + before) % block
        room = size + before + after - (k - 1) * block
        front = draw(0, min(before, room - 1))
        sizes.append(size)
        blocks.append(block)
        kernel.append(k)
        paddings.append((before, after))
        crops.append((front, draw(0, min(after, room - 1 - front))))
    b = Builder()
    x = b.input("x", [1, *sizes, 2])
    y = chain(b, x, blocks=blocks, paddings=paddings, crops=crops, kernel=(kernel[0], kernel[1]), channels=2)
    _, report = fuse(b.model([y]), FLOAT, cases=["normal"], xnnpack=[False])
    assert report.counts() == {"dilated-convolution": 1}


# -- between -------------------------------------------------------------------------------------------------------


def bias_and_relu(b: Builder, y: int) -> int:
    return b.op(Op.ADD, [y, b.constant("bias", normal(4))], fused_activation_function=RELU)


def scale_and_leaky(b: Builder, y: int) -> int:
    y = b.op(Op.MUL, [b.constant("scale", normal(1, 1, 1, 4)), y])
    return b.op(Op.LEAKY_RELU, [b.op(Op.MAXIMUM, [y, b.constant("low", -1.0)])], alpha=0.1)


@pytest.mark.parametrize("between", [bias_and_relu, scale_and_leaky])
def test_what_is_done_to_each_element_in_between(between: Any) -> None:
    b = Builder()
    (p, c), (q, d) = same_paddings(9, 3, 2), same_paddings(8, 3, 2)
    y = chain(b, b.input("x", [1, 9, 8, 3]), blocks=[2, 2], paddings=[p, q], crops=[c, d], between=between)
    model = b.model([b.op(Op.NEG, [y])])
    after, _ = fuse(model, FLOAT)
    gone = {"SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"}
    assert kinds(after) == [k for k in kinds(model) if k not in gone]
    main = after.subgraphs[0]
    assert all(list(main.tensors[op.outputs[0]].shape) == [1, 9, 8, 4] for op in main.operators)


@pytest.mark.parametrize("gap", [1, 2])
@pytest.mark.parametrize("batch", [2, -1])
@pytest.mark.parametrize("widen", [Op.EXPAND_DIMS, Op.RESHAPE])
def test_one_dimension(gap: int, batch: int, widen: Op) -> None:
    b = Builder()
    (p, c) = same_paddings(9, 3, 2)
    # TensorFlow pads a causal convolution itself, so that nothing is left for SPACE_TO_BATCH_ND.
    y = b.op(Op.SPACE_TO_BATCH_ND, [b.input("x", [batch, 9, 3]), b.constant("b", [2]), b.constant("p", pairs(p))])
    length = (9 + sum(p)) // 2
    wide = [-1, length, 3]
    wide.insert(gap, 1)
    if widen is Op.EXPAND_DIMS:
        y = b.op(Op.EXPAND_DIMS, [y, b.constant("axis", np.int32(gap))])
    else:
        y = b.op(Op.RESHAPE, [y, b.constant("wide", wide)])
    kernel = (1, 3) if gap == 1 else (3, 1)
    y = b.op(Op.CONV_2D, [y, b.constant("w", normal(4, *kernel, 3)), b.constant("c", normal(4))], padding=Padding.VALID)
    y = b.op(Op.RESHAPE, [y, b.constant("narrow", [-1, length - 2, 4])])
    y = b.op(Op.ADD, [y, b.constant("bias", normal(4))])
    y = b.op(Op.BATCH_TO_SPACE_ND, [y, b.constant("b2", [2]), b.constant("c2", pairs(c))])
    after, _ = fuse(b.model([y]), FLOAT)
    assert kinds(after) == ["RESHAPE", "CONV_2D", "ADD", "RESHAPE"]


# -- shapes that only run time knows ---------------------------------------------------------------------------------


def computed(fixed: int = 0, swap: bool = False) -> Model:
    """Height and width are open: the file computes what to pad to whole blocks (tensorflow#29509)."""
    b = Builder()
    x = b.input("x", [-1, -1, -1, 3])

    def ints(name: str, kind: Op, inputs: list[int], size: int, **options: Any) -> int:
        shape = [] if size == 0 else [2, 2] if size == 4 else [size]
        return b.op(kind, inputs, name=name, shape=shape, type=I32, **options)

    block = b.constant("block", [2, 2])
    shape = ints("shape", Op.SHAPE, [x], 4, out_type=I32)
    b._subgraph.tensors[shape].shape = [4]
    one, two, three = (b.constant(f"n{i}", [i]) for i in (1, 2, 3))
    height = ints("h", Op.STRIDED_SLICE, [shape, one, two, one], 0, shrink_axis_mask=1)
    width = ints("w_", Op.STRIDED_SLICE, [shape, two, three, one], 0, shrink_axis_mask=1)
    size = ints("hw", Op.PACK, [height, width], 2, values_count=2)
    padded = ints("padded", Op.ADD, [size, b.constant("total", [4, 4])], 2)
    rest = ints("rest", Op.FLOOR_MOD, [padded, block], 2)
    rounding = ints("round", Op.FLOOR_MOD, [ints("to", Op.SUB, [block, rest], 2), block], 2)
    behind = ints("behind", Op.ADD, [rounding, b.constant("half", [2, 2])], 2)

    def both(name: str, first: int, second: int) -> int:
        rows = []
        starts = (one, two) if swap and name == "crops" else (b.constant(f"{name}0", [0]), one)
        for i, (start, end) in enumerate(zip(starts, (starts[1], b.constant(f"{name}e", [9])), strict=True)):
            element = ints(f"{name}{i}e", Op.STRIDED_SLICE, [second, start, end, one], 0, shrink_axis_mask=1)
            rows.append(ints(f"{name}{i}r", Op.PACK, [first, element], 2, values_count=2))
        return ints(name, Op.PACK, rows, 4, values_count=2)

    paddings = both("paddings", b.constant("two", np.int32(2)), behind)
    crops = both("crops", b.constant("fixed", np.int32(fixed)), rounding)
    y = b.op(Op.SPACE_TO_BATCH_ND, [x, block, paddings], shape=[-1, -1, -1, 3])
    w, c = b.constant("w", normal(4, 3, 3, 3)), b.constant("c", normal(4))
    y = b.op(Op.CONV_2D, [y, w, c], padding=Padding.VALID, shape=[-1, -1, -1, 4])
    return b.model([b.op(Op.BATCH_TO_SPACE_ND, [y, block, crops], shape=[-1, -1, -1, 4])])


def test_paddings_that_only_run_time_knows() -> None:
    after, _ = fuse(computed(), FLOAT, *dead_code.RULES, batches=(3, 4, 7))
    assert kinds(after) == ["CONV_2D"]
    assert operators(after, "CONV_2D")[0].builtin_options.padding == Padding.SAME
    after, _ = fuse(computed(fixed=1), FLOAT, *dead_code.RULES, batches=(4, 7))
    assert kinds(after) == ["PAD", "CONV_2D"]


def test_paddings_that_are_not_known_to_differ_by_a_number() -> None:
    b = Builder()
    x = b.input("x", [1, 8, 8, 3])
    amounts = b.input("amounts", [2, 2], I32)
    y = b.op(Op.SPACE_TO_BATCH_ND, [x, b.constant("block", [2, 2]), amounts], shape=[4, -1, -1, 3])
    w, c = b.constant("w", normal(4, 3, 3, 3)), b.constant("c", normal(4))
    y = b.op(Op.CONV_2D, [y, w, c], padding=Padding.VALID, shape=[4, -1, -1, 4])
    crops = b.constant("crops", pairs((0, 0), (0, 0)))
    y = b.op(Op.BATCH_TO_SPACE_ND, [y, b.constant("block2", [2, 2]), crops], shape=[1, -1, -1, 4])
    (reason,) = refusals(b.model([y]), *dilation.RULES)
    assert "not known to differ by fixed numbers" in reason


# -- quantised -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("type", [I8, I16])
@pytest.mark.parametrize("extra", [0, 2])
def test_quantised_is_exact(depthwise: bool, type: TensorType, extra: int) -> None:
    b = Builder()
    point, version = (-3, 2) if type is I8 else (0, 4)
    q = quantized(0.05, point)
    (p, c), (r, d) = same_paddings(9, 3, 2), same_paddings(7, 3, 2)
    p = (p[0] + extra, p[1])
    x = b.input("x", [1, 9, 7, 4], type, q)
    inputs = [x, b.constant("block", [2, 2]), b.constant("p", pairs(p, r))]
    y = b.op(Op.SPACE_TO_BATCH_ND, inputs, version=version)
    shape, axis, count = ((1, 3, 3, 4), 3, 4) if depthwise else ((5, 3, 3, 4), 0, 5)
    w = b.constant("w", rng.integers(-127, 128, shape).astype(np.int8), quantized([0.01] * count, axis=axis))
    bias = np.arange(count, dtype=np.int32 if type is I8 else np.int64) * 30
    kind = Op.DEPTHWISE_CONV_2D if depthwise else Op.CONV_2D
    out = quantized(0.2, 5 if type is I8 else 0)
    y = b.op(
        kind,
        [y, w, b.constant("bias", bias, quantized([0.05 * 0.01] * count))],
        padding=Padding.VALID,
        type=type,
        quantization=out,
        version=3 if type is I8 else 5 if depthwise else 4,
        fused_activation_function=RELU,
    )
    inputs = [y, b.constant("block2", [2, 2]), b.constant("c", pairs(c, d))]
    model = b.model([b.op(Op.BATCH_TO_SPACE_ND, inputs, version=version)])
    assert refusals(model, FLOAT) == []
    after, _ = fuse(model, QUANTIZED)
    assert kinds(after) == (["PAD"] if extra else []) + [f"{kind.name}+RELU"]


# -- what must stay ------------------------------------------------------------------------------------------------

NOTHING: Pairs = [(0, 0), (0, 0)]


def refused(outputs: Any = lambda b, y: [y], x_shape: tuple[int, ...] = (1, 8, 8, 3), **options: Any) -> str:
    """The reason why a chain is not fused, or an empty string when it is no candidate."""
    b = Builder()
    x = b.input("x", x_shape)
    options = {"blocks": [2, 2], "paddings": NOTHING, "crops": NOTHING} | options
    reasons = refusals(b.model(outputs(b, chain(b, x, **options))), *dilation.RULES)
    assert len(reasons) <= 1
    return reasons[0] if reasons else ""


def test_refusals() -> None:
    assert "has a stride" in refused(stride_h=2, x_shape=(1, 10, 10, 3))
    assert "crops more than" in refused(crops=[(1, 0), (0, 0)])
    assert "also read by NEG" in refused(lambda b, y: [y, b.op(Op.NEG, [b._subgraph.operators[0].outputs[0]])])
    assert "also an output" in refused(lambda b, y: [y, b._subgraph.operators[1].outputs[0]])


def test_other_blocks() -> None:
    b = Builder()
    zeros = b.constant("zeros", pairs((0, 0), (0, 0)))
    y = b.op(Op.SPACE_TO_BATCH_ND, [b.input("x", [1, 8, 8, 3]), b.constant("b", [2, 2]), zeros])
    y = b.op(Op.CONV_2D, [y, b.constant("w", normal(4, 3, 3, 3)), b.constant("c", normal(4))], padding=Padding.VALID)
    (reason,) = refusals(b.model([b.op(Op.BATCH_TO_SPACE_ND, [y, b.constant("b2", [4, 1]), zeros])]), FLOAT)
    assert "has other blocks" in reason


def test_hybrid_convolutions_scale_each_phase_by_itself() -> None:
    b = Builder()
    zeros = b.constant("zeros", pairs((0, 0), (0, 0)))
    y = b.op(Op.SPACE_TO_BATCH_ND, [b.input("x", [1, 8, 8, 3]), b.constant("b", [2, 2]), zeros])
    w = b.constant("w", rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8), quantized([0.01] * 4))
    y = b.op(Op.CONV_2D, [y, w, b.constant("c", normal(4))], padding=Padding.VALID, version=5)
    (reason,) = refusals(b.model([b.op(Op.BATCH_TO_SPACE_ND, [y, b.constant("b2", [2, 2]), zeros])]), FLOAT)
    assert "with a scale for each phase" in reason


def test_silence_where_elements_see_each_other_or_their_place() -> None:
    pool = {"filter_height": 2, "filter_width": 2}
    assert refused(between=lambda b, y: b.op(Op.MAX_POOL_2D, [y], padding=Padding.VALID, **pool)) == ""
    assert refused(between=lambda b, y: b.op(Op.ADD, [y, b.constant("rows", normal(2, 1))])) == ""
    assert refused(between=lambda b, y: b.op(Op.ADD, [y, y])) == ""
    assert refused(between=lambda b, y: b.op(Op.ADD, [y, b.input("other", [4, 2, 2, 4])])) == ""


def test_inside_a_loop() -> None:
    b = Builder()
    (p, c), (q, d) = same_paddings(5, 3, 2), same_paddings(6, 3, 2)
    x = b.input("x", [1, 5, 6, 3])
    y = chain(b, x, blocks=[2, 2], paddings=[p, q], crops=[c, d], depthwise=True)
    model = looped(b.model([b.op(Op.TANH, [y])]))
    assert kinds(fuse(model, FLOAT)[0], 2) == ["DEPTHWISE_CONV_2D", "TANH", "ADD"]


def test_constant_shapes_are_folded_first_when_they_are() -> None:
    # With known shapes the paddings fold to constants: the same result by another way.
    model = computed()
    main = model.subgraphs[0]
    main.tensors[main.inputs[0]].shape_signature = None
    main.tensors[main.inputs[0]].shape = [1, 7, 6, 3]
    after, _ = fuse(model, *constant_folding.rules(), FLOAT, *dead_code.RULES)
    assert kinds(after) == ["CONV_2D"]
