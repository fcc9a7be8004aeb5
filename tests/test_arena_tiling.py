"""Spatial tiling: random stages cut into random grids compute the same, and what cannot be cut says why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rules import assert_same, kinds, operators

from litefuse.arena.tiling import Stage, TilingError, between, fit, live_bytes, obstacle, stages, tile
from litefuse.errors import LitefuseError
from litefuse.fusions import Numerics
from litefuse.graph import Graph
from litefuse.graph.build import Builder, quantized
from litefuse.isolation import in_child
from litefuse.report.stats import measure
from litefuse.schema import Model, read, to_bytes
from litefuse.schema.enums import ActivationFunctionType, Padding, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.validate import validate

F32, I8, U8, I16 = TensorType.FLOAT32, TensorType.INT8, TensorType.UINT8, TensorType.INT16
SAME, VALID = Padding.SAME, Padding.VALID
VERSIONS = {
    Op.CONV_2D: {I8: 3, I16: 4},
    Op.DEPTHWISE_CONV_2D: {I8: 3, I16: 5},
    Op.MAX_POOL_2D: {I8: 2, I16: 3},
    Op.AVERAGE_POOL_2D: {I8: 2, I16: 3},
    Op.ADD: {I8: 2, I16: 3},
    Op.MUL: {I8: 2, I16: 4},
    Op.PAD: {I8: 2, I16: 3},
    Op.PADV2: {I8: 2, I16: 3},
    Op.CONCATENATION: {I8: 2, I16: 3},
    Op.RELU: {I8: 2, I16: 3},
    Op.LOGISTIC: {I8: 2, I16: 3},
}


class Net:
    """A network of one type that is built operator by operator; `made` are its tensors in order."""

    def __init__(self, type: TensorType, shape: tuple[int, ...], seed: int = 0) -> None:
        self.b, self.type = Builder(), type
        self.rng = np.random.default_rng(seed)
        self.start = self.b.input("x", shape, type, self.scale())
        self.shapes = {self.start: tuple(shape)}
        self.made = [self.start]

    def scale(self) -> Any:
        """Quantisation of a computed tensor."""
        points = {I8: int(self.rng.integers(-100, 100)), U8: int(self.rng.integers(20, 230)), I16: 0}
        return None if self.type == F32 else quantized(float(self.rng.uniform(0.02, 0.1)), points[self.type])

    def op(self, kind: Op, inputs: list[int], shape: tuple[int, ...], q: Any = None, **options: Any) -> int:
        version = VERSIONS[kind].get(self.type, 1)
        out = self.b.op(kind, inputs, shape=shape, quantization=q, version=version, **options)
        self.shapes[out] = shape
        self.made.append(out)
        return out

    def slid(self, x: int, kernel: tuple[int, int], strides: Any, dilations: Any, padding: Padding) -> tuple[int, int]:
        """Height and width behind a window."""
        sizes = []
        for n, k, s, d in zip(self.shapes[x][1:3], kernel, strides, dilations, strict=True):
            sizes.append(-(-n // s) if padding == SAME else (n - (k - 1) * d - 1) // s + 1)
        return sizes[0], sizes[1]

    def conv(
        self,
        x: int,
        channels: int = 4,
        kernel: tuple[int, int] = (3, 3),
        strides: tuple[int, int] = (1, 1),
        dilations: tuple[int, int] = (1, 1),
        padding: Padding = SAME,
        depthwise: bool = False,
        **options: Any,
    ) -> int:
        """CONV_2D, or DEPTHWISE_CONV_2D with one output channel for each input channel."""
        batch, *_, depth = self.shapes[x]
        kind, axis = (Op.DEPTHWISE_CONV_2D, 3) if depthwise else (Op.CONV_2D, 0)
        channels = depth if depthwise else channels
        shape = (1, *kernel, channels) if depthwise else (channels, *kernel, depth)
        if self.type == F32:
            operands = [self.b.constant("w", self.rng.standard_normal(shape).astype(np.float32))]
            operands.append(self.b.constant("b", self.rng.standard_normal(channels).astype(np.float32)))
        else:
            per_channel = 1 if self.type == U8 else channels
            scales = self.rng.uniform(0.002, 0.01, per_channel)
            low, dtype, point = (0, np.uint8, 128) if self.type == U8 else (-127, np.int8, 0)
            w = self.rng.integers(low, 256 if low == 0 else 128, shape).astype(dtype)
            source = self.b._subgraph.tensors[x].quantization
            assert source is not None
            assert source.scale is not None
            products = [float(np.float32(source.scale[0]) * np.float32(s)) for s in scales]
            bias = self.rng.integers(-500, 500, channels).astype(np.int64 if self.type == I16 else np.int32)
            w_q = quantized([float(s) for s in scales], point, axis if per_channel > 1 else 0)
            operands = [self.b.constant("w", w, w_q), self.b.constant("b", bias, quantized(products))]
        size = self.slid(x, kernel, strides, dilations, padding)
        return self.op(
            kind,
            [x, *operands],
            (batch, *size, channels),
            self.scale(),
            padding=padding,
            stride_h=strides[0],
            stride_w=strides[1],
            dilation_h_factor=dilations[0],
            dilation_w_factor=dilations[1],
            **options,
        )

    def pool(self, x: int, kind: Op, kernel: tuple[int, int], strides: tuple[int, int], padding: Padding) -> int:
        """MAX_POOL_2D or AVERAGE_POOL_2D."""
        size = self.slid(x, kernel, strides, (1, 1), padding)
        names = {"filter_height": kernel[0], "filter_width": kernel[1], "stride_h": strides[0], "stride_w": strides[1]}
        batch, *_, depth = self.shapes[x]
        return self.op(kind, [x], (batch, *size, depth), padding=padding, **names)

    def pad(self, x: int, rows: tuple[int, int], columns: tuple[int, int], value: int | None = None) -> int:
        """PAD, or PADV2 with a number."""
        amounts = self.b.constant("amounts", np.array([(0, 0), rows, columns, (0, 0)], np.int32))
        batch, height, width, depth = self.shapes[x]
        shape = (batch, height + sum(rows), width + sum(columns), depth)
        if value is None:
            return self.op(Op.PAD, [x, amounts], shape)
        dtype = {F32: np.float32, I8: np.int8, U8: np.uint8, I16: np.int16}[self.type]
        number = self.b.constant("value", np.array([value], dtype), self.b._subgraph.tensors[x].quantization)
        return self.op(Op.PADV2, [x, amounts, number], shape)

    def add(self, x: int, y: int, kind: Op = Op.ADD) -> int:
        """The sum of two tensors of one shape."""
        return self.op(kind, [x, y], self.shapes[x], self.scale())

    def model(self, *outputs: int) -> Model:
        """The model; by default its output is the last tensor."""
        return self.b.model(list(outputs) or [self.made[-1]])


def whole(model: Model) -> Stage:
    """The stage from the model's input to its output."""
    graph = Graph(model)
    return between(graph, graph.subgraph.inputs[0], graph.subgraph.outputs[0])


def check(model: Model, stage: Stage, rows: int, columns: int) -> Model:
    """Tiles, and asserts that the result is valid and computes the same; returns it."""
    before = to_bytes(model)
    tiled = tile(model, stage, rows, columns)
    assert to_bytes(model) == before, "the original was changed"
    assert not validate(tiled.model)
    type = model.subgraphs[0].tensors[stage.end].type
    numerics = Numerics.REASSOCIATED if type == F32 else Numerics.EXACT
    assert_same(model, tiled.model, numerics, bound=2e-6, cases=None if type != F32 else ("normal", "wide", "zeros"))
    assert measure(tiled.model).macs == tiled.macs_before + tiled.extra_macs
    return tiled.model


def refusal(model: Model, start: int, end: int) -> str:
    """Why there is no stage between two tensors."""
    with pytest.raises(TilingError) as raised:
        between(Graph(model), start, end)
    assert not any(s.start == start and s.end == end for s in stages(Graph(model)))
    return str(raised.value)


# -- the same results ----------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A network, whose stage goes from its input to its output, and a grid."""

    model: Model
    rows: int
    columns: int


@st.composite
def cases(draw: st.DrawFn, type: TensorType) -> Case:
    """Chains of up to five layers with residuals."""
    size = draw(st.integers(7, 19)), draw(st.integers(7, 19))
    batch = draw(st.sampled_from([1, 1, 2]))
    net = Net(type, (batch, *size, draw(st.sampled_from([1, 3]))), draw(st.integers(0, 1000)))
    x = net.start
    small = st.integers(1, 2)
    for _ in range(draw(st.integers(1, 5))):
        height, width = net.shapes[x][1:3]
        layers = ["conv", "depthwise", "max", "average", "residual", "pad", "point", "channels"]
        layer = draw(st.sampled_from(layers if min(height, width) > 3 else ["point", "residual"]))
        kernel = draw(st.integers(1, 5)), draw(st.integers(1, 5))
        strides = draw(small), draw(small)
        # Kernels refuse dilation with strides.
        dilations = (draw(small), draw(small)) if strides == (1, 1) else (1, 1)
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        padding = draw(st.sampled_from([SAME, VALID])) if reach[0] < height and reach[1] < width else SAME
        activation = draw(st.sampled_from([ActivationFunctionType.NONE, ActivationFunctionType.RELU]))
        if layer in ("conv", "depthwise"):
            channels = draw(st.integers(2, 5))
            options = {"depthwise": layer == "depthwise", "fused_activation_function": activation}
            x = net.conv(x, channels, kernel, strides, dilations, padding, **options)
        elif layer == "max":
            x = net.pool(x, Op.MAX_POOL_2D, kernel, strides, padding if max(kernel) < min(height, width) else SAME)
        elif layer == "average":
            # SAME does not add anything where strides and kernel are one.
            x = net.pool(x, Op.AVERAGE_POOL_2D, (2, 2), strides, VALID)
        elif layer == "residual":
            y = net.conv(x, net.shapes[x][3], (3, 3))
            x = net.add(x, net.conv(y, net.shapes[x][3], (1, 1)))
        elif layer == "pad":
            value = draw(st.sampled_from([None, 7]))
            x = net.pad(x, (draw(st.integers(0, 2)), draw(small)), (draw(small), draw(st.integers(0, 2))), value)
        elif layer == "point":
            # Float LOGISTIC gives the last elements of a tensor other bits.
            x = net.op(Op.RELU, [x], net.shapes[x])
        elif layer == "channels":
            y = net.pool(x, Op.MAX_POOL_2D, (3, 3), (1, 1), SAME)
            x = net.op(Op.CONCATENATION, [x, y], (*net.shapes[x][:3], 2 * net.shapes[x][3]), axis=3)
    height, width = net.shapes[x][1:3]
    rows, columns = draw(st.integers(1, min(height, 4))), draw(st.integers(1, min(width, 4)))
    return Case(net.model(), rows, columns if rows * columns > 1 else min(width, 2))


@pytest.mark.parametrize("type", [F32, I8, U8, I16], ids=["float", "int8", "uint8", "int16x8"])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_random_stages_compute_the_same(type: TensorType, data: st.DataObject) -> None:
    model, rows, columns = data.draw(cases(type))
    if rows * columns < 2:
        return
    stage = whole(model)
    if any(op == "PAD" or op == "PADV2" for op in kinds(model)) and tiled(model, stage, rows, columns) is None:
        with pytest.raises(TilingError, match="from padding alone"):
            tile(model, stage, rows, columns)
        return
    check(model, stage, rows, columns)


def test_border_windows_are_padded_where_they_touch_the_border_only() -> None:
    net = Net(I8, (1, 12, 12, 2))
    net.conv(net.start, 8, strides=(2, 2))
    model = net.model()
    # SAME adds a row and a column behind the image only, as it does to the patch at that corner.
    after = check(model, whole(model), 2, 2)
    convs = operators(after, "CONV_2D")
    paddings = [op.builtin_options.padding for op in convs]  # type: ignore[union-attr]
    assert kinds(after).count("SLICE") == 4
    assert kinds(after).count("CONCATENATION") == 3
    assert paddings.count(SAME) == 1
    # Weights are shared.
    assert len({op.inputs[1] for op in convs}) == 1


def test_border_windows_apart_from_the_others() -> None:
    net = Net(I8, (1, 24, 24, 16))
    net.conv(net.start, strides=(2, 2), depthwise=True)
    model = net.model()
    after = check(model, whole(model), 2, 2)
    graph = Graph(after)
    pads = [graph.shape(op.outputs[0]) for op in operators(after, "PAD")]
    # Two of four patches are at one border where SAME differs: three rows or columns are padded, not the patch.
    assert len(pads) == 2
    assert all(shape is not None and 3 in shape[1:3] for shape in pads)


def test_max_pool_pads_with_the_lowest_number() -> None:
    net = Net(I8, (1, 9, 9, 3))
    net.pool(net.start, Op.MAX_POOL_2D, (3, 3), (1, 1), SAME)
    model = net.model()
    after = check(model, whole(model), 3, 3)
    assert kinds(after).count("PADV2") == 8
    assert kinds(after).count("PAD") == 0


def test_rows_alone_are_joined_once() -> None:
    net = Net(I8, (1, 16, 8, 3))
    net.conv(net.start, 4, padding=VALID)
    model = net.model()
    after = check(model, whole(model), 4, 1)
    assert kinds(after) == ["SLICE", "CONV_2D"] * 4 + ["CONCATENATION"]


def test_residual_over_the_image_and_inside() -> None:
    net = Net(I8, (1, 11, 13, 4))
    y = net.add(net.start, net.conv(net.start))
    z = net.add(y, net.conv(net.conv(y, kernel=(5, 3)), kernel=(1, 1)))
    model = net.model(z)
    for rows, columns in ((2, 1), (1, 3), (3, 2), (11, 13)):
        check(model, whole(model), rows, columns)


def test_batch_of_any_size() -> None:
    net = Net(F32, (-1, 10, 10, 3))
    net.pool(net.conv(net.start, strides=(2, 2)), Op.MAX_POOL_2D, (3, 3), (1, 1), SAME)
    model = net.model()
    after = check(model, whole(model), 2, 2)
    assert Graph(after).shape(after.subgraphs[0].outputs[0]) == (-1, 5, 5, 4)


def test_stage_in_the_middle_leaves_the_rest() -> None:
    net = Net(I8, (1, 16, 16, 3))
    x = net.conv(net.start, strides=(2, 2))
    y = net.conv(net.conv(x), strides=(2, 2), depthwise=True)
    z = net.add(y, net.conv(y))
    model = net.model(x, z)  # the stage's input is an output of the model
    after = check(model, between(Graph(model), x, y), 2, 2)
    assert kinds(after)[0] == "CONV_2D"
    assert kinds(after)[-2:] == ["CONV_2D", "ADD"]
    assert [after.subgraphs[0].tensors[t].name for t in after.subgraphs[0].outputs] == [
        model.subgraphs[0].tensors[t].name for t in model.subgraphs[0].outputs
    ]


def test_per_channel_constants_and_prelu() -> None:
    net = Net(F32, (1, 9, 10, 4))
    alpha = net.b.constant("alpha", np.array([[[0.1, 0.2, -0.3, 2.0]]], np.float32))
    x = net.conv(net.start)
    y = net.b.op(Op.PRELU, [x, alpha], shape=net.shapes[x])
    z = net.b.op(Op.MUL, [y, net.b.constant("scale", np.arange(4, dtype=np.float32))], shape=net.shapes[x])
    model = net.model(z)
    check(model, whole(model), 3, 2)


def test_channels_that_are_padded() -> None:
    """As in the residuals of BlazeFace."""
    net = Net(I8, (1, 12, 12, 4))
    pooled = net.pool(net.start, Op.MAX_POOL_2D, (2, 2), (2, 2), VALID)
    amounts = net.b.constant("amounts", np.array([(0, 0), (0, 0), (0, 0), (0, 3)], np.int32))
    wide = net.op(Op.PAD, [pooled, amounts], (1, 6, 6, 7))
    y = net.conv(net.conv(net.start, strides=(2, 2), depthwise=True), 7, kernel=(1, 1))
    net.add(wide, y)
    model = net.model()
    check(model, whole(model), 2, 3)


def test_quantised_at_the_start() -> None:
    b = Builder()
    x = b.input("x", [1, 9, 9, 2])
    y = b.op(Op.QUANTIZE, [x], type=I8, quantization=quantized(0.02, 3), shape=[1, 9, 9, 2])
    pool = {"filter_width": 3, "filter_height": 3, "stride_w": 2, "stride_h": 2, "padding": SAME}
    z = b.op(Op.MAX_POOL_2D, [y], shape=[1, 5, 5, 2], version=2, **pool)
    model = b.model([z])
    assert_same(model, tile(model, whole(model), 2, 3).model)


# -- refusals ------------------------------------------------------------------------------------------------------


def test_what_is_needed_elsewhere_is_named() -> None:
    net = Net(I8, (1, 8, 8, 3))
    x = net.conv(net.start)
    y = net.conv(x)
    other = net.pool(x, Op.MAX_POOL_2D, (2, 2), (2, 2), VALID)
    model = net.model(y, other)
    assert "is also read by MAX_POOL_2D" in refusal(model, net.start, y)
    assert between(Graph(model), x, y).operators == (1,)

    net = Net(I8, (1, 8, 8, 3))
    x = net.conv(net.start)
    y = net.conv(x)
    assert "is also an output of the model" in refusal(net.model(x, y), net.start, y)


def test_operators_that_look_at_the_whole_image_are_refused() -> None:
    net = Net(F32, (1, 8, 8, 3))
    x = net.conv(net.start, 3)
    mean = net.b.op(Op.MEAN, [x, net.b.constant("axes", [1, 2])], shape=[1, 1, 1, 3], keep_dims=True)
    y = net.b.op(Op.MUL, [x, mean], shape=[1, 8, 8, 3])
    model = net.model(y)
    assert "do not go together" in refusal(model, net.start, y)
    assert "MEAN #1" in refusal(model, net.start, mean)
    why = obstacle(Graph(model), model.subgraphs[0].operators[1])
    assert why is not None
    assert "cannot be computed patch by patch" in why


def test_averages_over_the_border_are_refused() -> None:
    net = Net(I8, (1, 8, 8, 3))
    y = net.pool(net.start, Op.AVERAGE_POOL_2D, (3, 3), (1, 1), SAME)
    assert "averages are of what is inside only" in refusal(net.model(), net.start, y)


def test_floats_with_integer_weights_are_refused() -> None:
    b = Builder()
    x = b.input("x", [1, 8, 8, 3])
    w = b.constant("w", np.ones((4, 3, 3, 3), np.int8), quantized(0.01))
    y = b.op(Op.CONV_2D, [x, w, b.constant("b", np.zeros(4, np.float32))], shape=[1, 8, 8, 4], type=F32)
    assert "by the range of all of its elements" in refusal(b.model([y]), x, y)


def test_unknown_height_is_refused() -> None:
    b = Builder()
    x = b.input("x", [1, -1, 8, 3])
    y = b.op(Op.RELU, [x], shape=[1, -1, 8, 3])
    assert "of known size" in refusal(b.model([y]), x, y)


def test_other_sources_are_named() -> None:
    net = Net(F32, (1, 8, 8, 3))
    other = net.b.input("other", [1, 8, 8, 3])
    y = net.b.op(Op.ADD, [net.conv(net.start, 3), other], shape=[1, 8, 8, 3])
    assert "also depends on `other`" in refusal(net.model(y), net.start, y)

    net = Net(F32, (1, 8, 8, 3))
    image = net.b.constant("image", np.ones((1, 8, 8, 3), np.float32))
    y = net.b.op(Op.ADD, [net.conv(net.start, 3), image], shape=[1, 8, 8, 3])
    assert "also depends on `image`" in refusal(net.model(y), net.start, y)


def test_wrong_declarations_are_refused() -> None:
    net = Net(F32, (1, 8, 8, 3))
    y = net.conv(net.start, 3)
    model = net.model()
    model.subgraphs[0].tensors[y].shape = [1, 7, 8, 3]
    assert "do not go together" in refusal(model, net.start, y)


def test_padding_of_the_batch_is_refused() -> None:
    net = Net(I8, (1, 8, 8, 3))
    amounts = net.b.constant("amounts", np.array([(1, 0), (1, 1), (1, 1), (0, 0)], np.int32))
    y = net.op(Op.PAD, [net.start, amounts], (2, 10, 10, 3))
    assert "adds to the batch" in refusal(net.model(), net.start, y)


def test_grids_that_do_not_fit() -> None:
    net = Net(I8, (1, 8, 6, 3))
    net.conv(net.start)
    model = net.model()
    for rows, columns, reason in ((9, 1, "has 8 rows"), (1, 7, "has 6 columns"), (1, 1, "two at least"), (0, 4, "two")):
        with pytest.raises(TilingError, match=reason):
            tile(model, whole(model), rows, columns)
    net = Net(I8, (1, 8, 8, 3))
    net.pad(net.start, (4, 0), (0, 0))
    model = net.model()
    with pytest.raises(TilingError, match="from padding alone"):
        tile(model, whole(model), 4, 1)
    assert issubclass(TilingError, LitefuseError)


def test_padding_alone_beside_an_image() -> None:
    net = Net(I8, (1, 8, 8, 3))
    net.add(net.pad(net.start, (4, 0), (0, 0)), net.pad(net.start, (0, 4), (0, 0)))
    model = net.model()
    with pytest.raises(TilingError, match="from padding alone"):
        tile(model, whole(model), 4, 1)
    check(model, whole(model), 2, 2)
    assert not fit(model, 100).fits


# -- the search ----------------------------------------------------------------------------------------------------


def mobile(type: TensorType = I8) -> Model:
    """The first layers of a MobileNet: memory peaks behind the second convolution."""
    net = Net(type, (1, 32, 32, 1))
    x = net.conv(net.start, 8, strides=(2, 2))
    for channels, stride in ((16, 1), (16, 2), (32, 1), (32, 2)):
        x = net.conv(x, strides=(stride, stride), depthwise=True)
        x = net.conv(x, channels, kernel=(1, 1))
    return net.model()


def test_live_bytes() -> None:
    net = Net(I8, (1, 8, 8, 3))
    x = net.conv(net.start, 8)
    net.conv(x, 2)
    model = net.model()
    assert live_bytes(model) == 8 * 8 * (3 + 8)
    # Two parts of 256 bytes, before which there are slices of 48 of an input of 96. They are copied into the result; or
    # lie where that will be, and the input is there too.
    net = Net(I8, (1, 8, 4, 3))
    net.conv(net.start, 16, kernel=(1, 1))
    model = net.model()
    assert live_bytes(tile(model, whole(model), 2).model) == 96 + 48 + 512
    # With a small result, copying takes less.
    net = Net(I8, (1, 8, 8, 3))
    net.conv(net.start, 2, kernel=(1, 1))
    model = net.model()
    assert live_bytes(tile(model, whole(model), 2).model) == 192 + 96 + 64


def test_several_stages() -> None:
    """Two peaks, with operators between them that cannot be in a stage."""
    net = Net(I8, (1, 32, 32, 2))
    x = net.conv(net.conv(net.start, 16), 2, strides=(2, 2))
    up = net.b.constant("size", [32, 32])
    y = net.b.op(Op.RESIZE_NEAREST_NEIGHBOR, [x, up], shape=[1, 32, 32, 2], version=2)
    net.shapes[y] = (1, 32, 32, 2)
    z = net.conv(net.conv(y, 12), 2, strides=(2, 2))
    model = net.model(z)
    assert live_bytes(model) == 32 * 32 * 18
    found = fit(model, 32 * 32 * 9)
    assert found.fits
    assert len(found.tiled) == 2
    assert found.extra_macs == measure(found.model).macs - measure(model).macs
    assert_same(model, found.model)


@pytest.mark.parametrize("ratio", [0.8, 0.55])
def test_fits_with_few_extra_macs(ratio: float) -> None:
    model = mobile()
    budget = int(live_bytes(model) * ratio)
    found = fit(model, budget)
    assert found.fits
    assert found.reason == ""
    assert found.tiled
    assert found.peak == live_bytes(found.model) <= budget
    assert_same(model, found.model)
    best = min(
        done.extra_macs
        for stage in stages(Graph(model))
        if stage.start == model.subgraphs[0].inputs[0]
        if stage.end > model.subgraphs[0].operators[3].outputs[0]
        for rows, columns in ((1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1), (4, 2))
        if (done := tiled(model, stage, rows, columns)) is not None and live_bytes(done.model) <= budget
    )
    assert found.extra_macs <= 1.1 * best


def tiled(model: Model, stage: Stage, rows: int, columns: int) -> Any:
    """Like tile, with None where it refuses."""
    try:
        return tile(model, stage, rows, columns)
    except TilingError:
        return None


def test_what_fits_is_left_alone() -> None:
    model = mobile()
    found = fit(model, live_bytes(model))
    assert found.model is model
    assert found.fits
    assert found.tiled == ()


def test_nearest_when_nothing_fits() -> None:
    model = mobile()
    found = fit(model, 100)
    assert not found.fits
    assert found.tiled
    assert found.peak < 0.6 * live_bytes(model)
    nearest = rf"no tiling fits into 100 bytes; the nearest takes {found.peak} \(CONV_2D #0 .* patches, 6144 before\)"
    assert re.fullmatch(nearest, found.reason)


def test_reason_when_nothing_can_be_tiled() -> None:
    net = Net(F32, (1, 8, 8, 4))
    y = net.b.op(Op.DEPTH_TO_SPACE, [net.start], shape=[1, 16, 16, 1], block_size=2)
    model = net.model(y)
    found = fit(model, 1000)
    assert found.model is model
    assert "DEPTH_TO_SPACE #0" in found.reason
    assert "cannot be computed patch by patch" in found.reason


def test_planner_decides() -> None:
    """What the given planner counts is what must fit, and operators can have a price."""
    model = mobile()
    operators_before = len(model.subgraphs[0].operators)
    records = 20

    def peak(m: Model) -> int:
        return live_bytes(m) + records * len(m.subgraphs[0].operators)

    budget = int(0.75 * peak(model))
    found = fit(model, budget, peak=peak, operator_bytes=records)
    free = fit(model, budget - records * operators_before)
    assert found.fits
    assert free.fits
    assert found.peak == peak(found.model)
    assert found.peak_before == peak(model)
    assert found.tiled
    assert free.tiled
    assert peak(free.model) > budget
    assert found.extra_macs >= free.extra_macs


def test_corpus_models_compute_the_same(corpus: list[Path]) -> None:
    """Integers to the bit, in models where memory peaks in a stage."""
    wanted = {"mlperf_vww_int8": 0.75, "ex_mbv2_035_embed": 0.6, "efx_mp_face_landmark": 0.7}
    paths = [path for path in corpus if path.stem in wanted]
    assert len(paths) == len(wanted)
    for path in paths:
        model = read(path)
        before = live_bytes(model)
        found = fit(model, int(wanted[path.stem] * before))
        assert found.fits, f"{path.stem}: {found.reason}"
        floats = model.subgraphs[0].tensors[model.subgraphs[0].inputs[0]].type == F32
        cases = ("normal", "zeros") if floats else ("random", "lowest")
        assert_same(model, found.model, cases=cases, batches=(1,), xnnpack=(False,))


def run_in_tflm(models: list[bytes], values: list[Any], say: Any) -> list[list[Any]]:
    """The outputs of TFLM for each model and input; runs in a process of its own, since TFLM can abort."""
    from tflite_micro.python.tflite_micro import runtime

    found = []
    for model in models:
        runner = runtime.Interpreter.from_bytes(model)
        found.append([])
        for value in values:
            runner.set_input(value, 0)
            runner.invoke()
            found[-1].append(runner.get_output(0).copy())
        say(len(found))
    return found


@pytest.mark.parametrize("type", [I8, I16], ids=["int8", "int16x8"])
def test_tflm_computes_the_same(type: TensorType) -> None:
    pytest.importorskip("tflite_micro", reason="TFLM's Python package is not installed")
    net = Net(type, (1, 18, 15, 2), seed=3)
    x = net.conv(net.start, 6, strides=(2, 2))
    x = net.add(x, net.conv(net.conv(x, depthwise=True), 6, kernel=(1, 1)))
    x = net.pool(x, Op.MAX_POOL_2D, (3, 3), (1, 1), SAME)
    net.conv(net.pad(x, (0, 1), (1, 1)), strides=(2, 2), depthwise=True, padding=VALID)
    model = net.model()
    dtype = np.int8 if type == I8 else np.int16
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    rng = np.random.default_rng(0)
    values = [rng.integers(low, high + 1, (1, 18, 15, 2)).astype(dtype) for _ in range(3)]
    values += [np.full((1, 18, 15, 2), value, dtype) for value in (low, high)]
    models = [model, *(tile(model, whole(model), *grid).model for grid in ((2, 2), (3, 1), (1, 4)))]
    before, *after = in_child("test_arena_tiling:run_in_tflm", list(map(to_bytes, models)), values)
    for found in after:
        assert all(map(np.array_equal, before, found))
