"""The fast kernels: which operators have one, and what whole networks compute with them."""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
import pytest
from delegate import assert_near, both, outputs_of, packaged, slow_operators, start, through
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_delegates_partition import LAYER_NORMS

from litefuse.convert import convert
from litefuse.delegates.cost import Eager, Roofline
from litefuse.delegates.fast import SMALL, is_small, why_slow
from litefuse.delegates.formation import form
from litefuse.delegates.network import Network
from litefuse.delegates.partition import partition
from litefuse.delegates.runtime import load, report
from litefuse.delegates.targets import target
from litefuse.errors import UsageError
from litefuse.graph import Graph
from litefuse.graph.build import Builder, quantized
from litefuse.graph.text import from_text
from litefuse.schema import Model, deepcopy, to_bytes
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op

Shape = tuple[int, ...]
NONE, RELU6 = ActivationFunctionType.NONE, ActivationFunctionType.RELU6


def floats(shape: Any, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# -- which operators have one ----------------------------------------------------------------------------------------


def one(kind: Op, *shapes: Shape, constants: dict[int, Any] | None = None, **options: Any) -> Model:
    """A model of one operator on inputs of these shapes; `constants` come at their slots."""
    b = Builder()
    slots: list[int] = []
    given = list(shapes)
    for slot in range(len(shapes) + len(constants or {})):
        value = (constants or {}).get(slot)
        if value is None:
            slots.append(b.input(f"x{slot}", given.pop(0)))
        else:
            slots.append(b.constant(f"c{slot}", np.asarray(value)))
    return b.model([b.op(kind, slots, **options)])


def padding(*amounts: Any) -> dict[int, Any]:
    return {1: np.int32(amounts)}


_CONV = {1: floats((6, 3, 3, 4)), 2: floats(6)}
NO_POWER = " by an exponent that is not one constant, or so close to an integer that it counts as that"
CASES: list[tuple[str, Model, str | None]] = [
    ("conv", one(Op.CONV_2D, (1, 7, 5, 4), constants=_CONV), None),
    ("conv, batches", one(Op.CONV_2D, (3, 7, 5, 4), constants=_CONV), None),
    ("grouped", one(Op.CONV_2D, (1, 7, 5, 8), constants=_CONV), None),
    ("dilated", one(Op.CONV_2D, (1, 7, 9, 4), constants=_CONV, dilation_w_factor=3), None),
    ("depthwise", one(Op.DEPTHWISE_CONV_2D, (1, 7, 5, 6), constants={1: floats((1, 5, 3, 6)), 2: floats(6)}), None),
    (
        "multiplier",
        one(Op.DEPTHWISE_CONV_2D, (1, 7, 5, 3), constants={1: floats((1, 5, 3, 6)), 2: floats(6)}, depth_multiplier=2),
        None,
    ),
    ("dense", one(Op.FULLY_CONNECTED, (5, 8), constants={1: floats((3, 8)), 2: floats(3)}), None),
    ("dense, other rows", one(Op.FULLY_CONNECTED, (5, 4, 2), constants={1: floats((3, 8)), 2: floats(3)}), None),
    (
        "given weights",
        one(Op.FULLY_CONNECTED, (5, 8), (3, 8), (3,)),
        "FULLY_CONNECTED with weights that are not constant",
    ),
    ("matrices", one(Op.BATCH_MATMUL, (2, 3, 4), (2, 4, 5)), None),
    ("turned matrices", one(Op.BATCH_MATMUL, (2, 4, 3), (2, 5, 4), adj_x=True, adj_y=True), None),
    ("a matrix for all", one(Op.BATCH_MATMUL, (2, 6, 3, 4), (1, 4, 5)), None),
    ("a constant matrix", one(Op.BATCH_MATMUL, (2, 3, 4), constants={1: floats((4, 5))}), None),
    ("one matrix by many", one(Op.BATCH_MATMUL, (3, 4), (2, 4, 5)), "BATCH_MATMUL of [3, 4] by [2, 4, 5]"),
    (
        "groups of matrices",
        one(Op.BATCH_MATMUL, (2, 6, 3, 4), (2, 1, 4, 5)),
        "BATCH_MATMUL of [2, 6, 3, 4] by [2, 1, 4, 5]",
    ),
    ("the same image", one(Op.ADD, (2, 3, 5, 4), (1, 1, 5, 4)), None),
    ("the same rows", one(Op.MUL, (2, 3, 5, 4), (5, 4)), None),
    ("scalar", one(Op.ADD, (2, 3, 4), (1,)), None),
    ("channels", one(Op.MUL, (2, 3, 4), (4,)), None),
    ("channels of 4 dimensions", one(Op.MUL, (2, 3, 5, 4), (1, 1, 1, 4)), None),
    ("pixels", one(Op.SUB, (2, 3, 5, 4), (2, 3, 5, 1)), None),
    ("gate", one(Op.MUL, (2, 3, 5, 4), (2, 1, 1, 4)), None),
    (
        "rows",
        one(Op.ADD, (2, 3, 5, 4), (1, 3, 1, 1)),
        "ADD with operands that are stretched like [2, 3, 5, 4] and [1, 3, 1, 1]",
    ),
    ("outer", one(Op.ADD, (3, 1), (1, 4)), "ADD with operands that are stretched like [3, 1] and [1, 4]"),
    ("fewer dimensions", one(Op.ADD, (1, 1, 4), (4,)), None),
    ("pow", one(Op.POW, (2, 3), (2, 3)), f"POW{NO_POWER}"),
    ("cube", one(Op.POW, (2, 3), constants={1: np.float32(3)}), None),
    ("root", one(Op.POW, (2, 3), constants={1: np.float32(0.25)}), None),
    ("nearly a cube", one(Op.POW, (2, 3), constants={1: np.float32(3.00001)}), f"POW{NO_POWER}"),
    ("remainder", one(Op.FLOOR_MOD, (2, 3), (2, 3)), "FLOOR_MOD"),
    ("compared", one(Op.LESS, (2, 3), (2, 3), type=TensorType.BOOL), "LESS of BOOL"),
    ("pad", one(Op.PAD, (2, 3, 5, 4), constants=padding([0, 0], [1, 2], [0, 3], [0, 0])), None),
    ("pad channels", one(Op.PAD, (2, 3, 5, 4), constants=padding([0, 0], [0, 0], [0, 3], [1, 2])), None),
    ("pad batches", one(Op.PAD, (2, 3, 5, 4), constants=padding([1, 0], [0, 0], [0, 3], [1, 2])), None),
    ("pad vectors", one(Op.PAD, (5, 4), constants=padding([0, 3], [1, 2])), None),
    ("wide paddings", one(Op.PAD, (2, 3), constants={1: np.int64([[0, 0], [1, 2]])}), None),
    ("concat", one(Op.CONCATENATION, (2, 3, 4), (2, 3, 1), axis=2), None),
    ("concat from the end", one(Op.CONCATENATION, (2, 3, 4), (2, 3, 1), axis=-1), None),
    ("concat rows", one(Op.CONCATENATION, (2, 3, 4), (2, 1, 4), axis=1), None),
    ("17 parts", one(Op.CONCATENATION, *[(2, 3)] * 17, axis=1), None),
    ("view", one(Op.RESHAPE, (2, 3, 4), constants={1: np.int32([6, 4])}), None),
    ("reshape", one(Op.RESHAPE, (2, 3, 4), constants={1: np.int32([4, 6])}), None),
    ("mean of pixels", one(Op.MEAN, (2, 3, 5, 4), constants={1: np.int32([1, 2])}), None),
    ("mean of channels", one(Op.MEAN, (2, 3, 5, 4), constants={1: np.int32([-1])}, keep_dims=True), None),
    ("mean of rows", one(Op.MEAN, (1, 5, 4), constants={1: np.int32([1])}), None),
    ("mean of rows, batches", one(Op.MEAN, (2, 5, 4), constants={1: np.int32([1])}), "MEAN over dimensions [1] of 3"),
    ("mean of longer rows, batches", one(Op.MEAN, (2, 64, 8), constants={1: np.int32([1])}), None),
    ("mean of all", one(Op.MEAN, (2, 5, 4), constants={1: np.int32([0, 1, 2])}), None),
    ("mean of images", one(Op.MEAN, (2, 5, 4), constants={1: np.int32([2, 1])}), None),
    ("mean over batches", one(Op.MEAN, (1, 2, 5, 4), constants={1: np.int32([1])}), None),
    ("mean apart", one(Op.MEAN, (2, 5, 4), constants={1: np.int32([0, 2])}), "MEAN over dimensions [0, 2] of 3"),
    ("product", one(Op.REDUCE_PROD, (2, 5, 4), constants={1: np.int32([2])}), "REDUCE_PROD"),
    ("softmax", one(Op.SOFTMAX, (2, 5, 4), beta=1.0), None),
    ("average", one(Op.AVERAGE_POOL_2D, (2, 5, 4, 3), filter_height=3, filter_width=2), None),
    ("largest", one(Op.MAX_POOL_2D, (2, 5, 4, 3), filter_height=3, filter_width=2, stride_w=2), None),
    ("larger", one(Op.RESIZE_BILINEAR, (2, 5, 4, 3), constants={1: np.int32([7, 9])}), None),
    ("nearest", one(Op.RESIZE_NEAREST_NEIGHBOR, (2, 5, 4, 3), constants={1: np.int32([7, 9])}), None),
    ("turned", one(Op.TRANSPOSE, (2, 5, 4), constants={1: np.int32([0, 2, 1])}), None),
    ("cut", one(Op.SLICE, (2, 5, 4), constants={1: np.int32([0, 1, 0]), 2: np.int32([2, 2, 4])}), None),
    ("cast", one(Op.CAST, (2, 5), type=TensorType.INT32), "CAST of INT32"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "reason"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_delegate_says_the_same(model: Model, reason: str | None) -> None:
    found = slow_operators(model)
    assert found == ([] if reason is None else [f"the delegate has no fast kernel for {reason}"])
    both(model)  # compares that with the report, and what is computed with the reference kernels


@pytest.mark.parametrize("spelling", LAYER_NORMS)
@pytest.mark.parametrize("closed", [True, False])
def test_normalisations_have_a_kernel_as_a_whole(spelling: str, closed: bool) -> None:
    body = LAYER_NORMS[spelling]
    inner = re.findall(r"(%\w+) = ", body)[-2]
    model = from_text(f"graph main(%x: f32[1,64,96]) {{ {body} return %y{'' if closed else ', ' + inner} }}")
    assert closed is False or spelling == "mean of squares" or not slow_operators(model)
    both(model)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_split(axis: int) -> None:
    b = Builder()
    x = b.input("x", [4, 2, 6])
    first = b.op(Op.SPLIT, [b.constant("axis", np.int32(axis)), x], outputs=2, num_splits=2, type=TensorType.FLOAT32)
    model = b.model([first, first + 1])
    assert not slow_operators(model)
    both(model)


# -- regions without slow operators ----------------------------------------------------------------------------------


def block(type: TensorType = TensorType.FLOAT32, size: int = 32, batch: int = 1, channels: int = 16) -> Model:
    """Convolution, SiLU and depthwise convolution, on floats or 8-bit numbers."""
    b = Builder()
    real = type == TensorType.FLOAT32
    q = None if real else quantized(0.05, 0)
    w = np.float32 if real else np.int8
    bias = np.zeros(channels, np.float32 if real else np.int32)
    shape = [batch, size, size, channels]

    def weights(name: str, shape: Any) -> int:
        value = floats(shape) * (0.3 if real else 30)
        return b.constant(name, value.astype(w), None if real else quantized(0.02, 0))

    def fixed(name: str) -> int:
        return b.constant(name, bias, None if real else quantized(0.001, 0))

    x = b.input("x", shape, type, q)
    how: dict[str, Any] = {"shape": shape, "type": type, "quantization": q}
    y = b.op(Op.CONV_2D, [x, weights("w", (channels, 3, 3, channels)), fixed("b")], name="conv", **how)
    gate = b.op(
        Op.LOGISTIC, [y], name="gate", shape=shape, type=type, quantization=None if real else quantized(1 / 256, -128)
    )
    y = b.op(Op.MUL, [y, gate], name="silu", **how)
    y = b.op(
        Op.DEPTHWISE_CONV_2D, [y, weights("v", (1, 3, 3, channels)), fixed("c")], name="dw", depth_multiplier=1, **how
    )
    return b.model([y])


def regions(graph: Model, name: str = "x86-64-v3", **options: Any) -> tuple[list[str], list[str]]:
    """Kinds of the regions that are formed, and the reasons for which others are not."""
    found = partition(Graph(graph), target(name), **options)
    return [r.kind for r in found.regions], [r.reason for r in found.refused]


def test_integers_get_no_regions_until_there_are_kernels() -> None:
    made, reasons = regions(block(TensorType.INT8))
    assert made == []
    assert "the delegate has no fast kernel for CONV_2D of INT8" in reasons
    assert regions(block(TensorType.INT8), model=Eager(target("x86-64-v3")))[0]
    assert not any("fast kernel" in reason for reason in regions(block(TensorType.INT8), "hexagon-v68")[1])
    assert regions(block())[0]


def test_int8_weights_with_floats_get_no_regions() -> None:
    b = Builder()
    x = b.input("x", [64, 256])
    w = b.constant("w", np.ones((256, 256), np.int8), quantized(0.1))
    y = b.op(Op.FULLY_CONNECTED, [x, w, b.constant("b", np.zeros(256, np.float32))], shape=[64, 256])
    made, reasons = regions(b.model([b.op(Op.TANH, [y], shape=[64, 256])]))
    assert made == []
    assert "the delegate has no fast kernel for FULLY_CONNECTED with INT8 operands" in reasons


def remainder(rows: int) -> Model:
    """Two GELUs with a remainder between them."""
    b = Builder()
    shape = [1, 64, rows]
    y = b.op(Op.GELU, [b.input("x", shape)], name="before", shape=shape)
    y = b.op(Op.FLOOR_MOD, [y, b.constant("two", np.float32([2]))], name="rest", shape=shape)
    return b.model([b.op(Op.GELU, [y], name="after", shape=shape)])


def test_small_operators_may_be_slow() -> None:
    for rows, small in ((SMALL // 64, True), (SMALL // 64 + 1, False)):
        model = remainder(rows)
        network = Network(Graph(model))
        assert why_slow(network, 1) is not None
        assert is_small(network, 1) == small
        _, reasons = regions(model)
        assert ("the delegate has no fast kernel for FLOOR_MOD" in reasons) != small


class _Pays(Roofline):
    """Finds that regions pay, but is not meant for tests of the delegate alone."""

    def fused_us(self, network: Network, members: Any, copies: Any = ()) -> float:
        return 1e-4

    def operator_us(self, network: Network, i: int) -> float:
        return 10.0


def test_no_region_is_slow_throughout() -> None:
    b = Builder()
    x = b.input("x", [8, 4])
    y = b.op(Op.FLOOR_DIV, [x, b.constant("three", np.float32([3]))], name="third", shape=[8, 4])
    y = b.op(Op.FLOOR_MOD, [y, b.constant("two", np.float32([2]))], name="rest", shape=[8, 4])
    model = b.model([b.op(Op.FLOOR_DIV, [y, b.constant("half", np.float32([0.5]))], name="twice", shape=[8, 4])])
    assert regions(model, model=Eager(target("x86-64-v3")))[0]
    made, reasons = regions(model, model=_Pays(target("x86-64-v3")))
    assert made == []
    assert "the delegate has no fast kernel for any of its operators" in reasons


def test_formed_regions_report_no_slow_operators() -> None:
    model = block()
    formed = form(model, target("x86-64-v3"), "plan")
    assert formed.regions
    delegate = load()
    runner = start(model, delegates=[delegate])
    assert [r["slow_operators"] for r in report(delegate)["regions"]] == [0] * len(formed.regions)
    del runner


# -- what networks compute -------------------------------------------------------------------------------------------


def network(size: Shape, channels: Shape, seed: int, batch: int = 1) -> Model:
    """An inverted residual, squeeze-and-excite, upsampling, a normalisation and a head."""
    b = Builder()
    h, w = size
    c, wide = channels
    number = iter(range(100))

    def weights(*shape: int) -> int:
        i = next(number)
        return b.constant(f"w{i}", floats(shape, seed + i) / np.float32(np.sqrt(np.prod(shape[1:]))))

    def conv(
        x: int, inputs: int, outputs: int, kernel: int, shape: Any, activation: Any = NONE, stride: int = 1
    ) -> int:
        return b.op(
            Op.CONV_2D, [x, weights(outputs, kernel, kernel, inputs), weights(outputs)], shape=shape,
            stride_w=stride, stride_h=stride, fused_activation_function=activation,
        )  # fmt: skip

    x = b.input("x", [batch, h, w, 3])
    h, w = -(-h // 2), -(-w // 2)
    stem = conv(x, 3, c, 3, [batch, h, w, c], stride=2)
    stem = b.op(Op.HARD_SWISH, [stem], shape=[batch, h, w, c])
    y = conv(stem, c, wide, 1, [batch, h, w, wide], RELU6)
    y = b.op(
        Op.DEPTHWISE_CONV_2D, [y, weights(1, 5, 5, wide), weights(wide)], shape=[batch, h, w, wide], depth_multiplier=1
    )
    squeezed = b.op(Op.MEAN, [y, b.constant("pixels", np.int32([1, 2]))], shape=[batch, 1, 1, wide], keep_dims=True)
    gate = conv(squeezed, wide, c, 1, [batch, 1, 1, c], RELU6)
    gate = b.op(Op.LOGISTIC, [conv(gate, c, wide, 1, [batch, 1, 1, wide])], shape=[batch, 1, 1, wide])
    y = b.op(Op.MUL, [y, gate], shape=[batch, h, w, wide])
    y = b.op(Op.ADD, [conv(y, wide, c, 1, [batch, h, w, c]), stem], shape=[batch, h, w, c])
    y = b.op(Op.PRELU, [y, weights(1, 1, c)], shape=[batch, h, w, c])
    y = b.op(Op.CONCATENATION, [y, stem], shape=[batch, h, w, 2 * c], axis=3)
    mean = b.op(Op.MEAN, [y, b.constant("last", np.int32([3]))], shape=[batch, h, w, 1], keep_dims=True)
    centred = b.op(Op.SUB, [y, mean], shape=[batch, h, w, 2 * c])
    squares = b.op(Op.SQUARE, [centred], shape=[batch, h, w, 2 * c])
    variance = b.op(Op.MEAN, [squares, b.constant("last2", np.int32([3]))], shape=[batch, h, w, 1], keep_dims=True)
    variance = b.op(Op.ADD, [variance, b.constant("epsilon", np.float32(1e-3))], shape=[batch, h, w, 1])
    y = b.op(Op.MUL, [centred, b.op(Op.RSQRT, [variance], shape=[batch, h, w, 1])], shape=[batch, h, w, 2 * c])
    y = b.op(Op.MUL, [y, weights(2 * c)], shape=[batch, h, w, 2 * c])
    y = conv(y, 2 * c, c, 3, [batch, h, w, c])
    y = b.op(Op.GELU, [y], shape=[batch, h, w, c])
    pooled = b.op(Op.AVERAGE_POOL_2D, [y], shape=[batch, -(-h // 2), -(-w // 2), c], filter_height=2, filter_width=2,
                  stride_h=2, stride_w=2)  # fmt: skip
    up = b.op(Op.RESIZE_BILINEAR, [pooled, b.constant("size", np.int32([h, w]))], shape=[batch, h, w, c],
              half_pixel_centers=True)  # fmt: skip
    y = b.op(Op.MAXIMUM, [up, y], shape=[batch, h, w, c])
    head = b.op(Op.MEAN, [y, b.constant("pixels2", np.int32([1, 2]))], shape=[batch, c])
    head = b.op(Op.FULLY_CONNECTED, [head, weights(7, c), weights(7)], shape=[batch, 7])
    return b.model([b.op(Op.SOFTMAX, [head], shape=[batch, 7], beta=1.0), y])


def attention(
    tokens: int, heads: int, size: int, *, batch: int = 1, mask: Shape | None = None, turned: bool = False
) -> Model:
    """Queries, keys and values of one tensor, their heads, the softmax of scores, and what follows."""
    b = Builder()
    c = heads * size
    whole, split = [batch, tokens, c], [batch, tokens, heads, size]
    number = iter(range(100))

    def constant(value: Any) -> int:
        return b.constant(f"c{next(number)}", np.asarray(value))

    def dense(x: int) -> int:
        i = next(number)
        weights = [b.constant(f"w{i}", floats((c, c), i) / np.float32(np.sqrt(c))), b.constant(f"b{i}", floats(c, i))]
        return b.op(Op.FULLY_CONNECTED, [x, *weights], shape=whole, keep_num_dims=True)

    def head(x: int, *order: int) -> int:
        y = b.op(Op.RESHAPE, [dense(x), constant(np.int32(split))], shape=split)
        return b.op(Op.TRANSPOSE, [y, constant(np.int32(order))], shape=[split[i] for i in order])

    x = b.input("x", whole)
    scored = [batch, heads, tokens, tokens]
    keys = (0, 2, 3, 1) if turned else (0, 2, 1, 3)
    y = b.op(Op.BATCH_MATMUL, [head(x, 0, 2, 1, 3), head(x, *keys)], adj_y=not turned, shape=scored)
    y = b.op(Op.MUL, [y, constant(np.float32(size**-0.5))], shape=scored)
    if mask is not None:
        y = b.op(Op.ADD, [y, b.input("mask", mask)], shape=scored)
    y = b.op(Op.SOFTMAX, [y], shape=scored, beta=1.0)
    y = b.op(Op.BATCH_MATMUL, [y, head(x, 0, 2, 1, 3)], shape=[batch, heads, tokens, size])
    y = b.op(Op.TRANSPOSE, [y, constant(np.int32([0, 2, 1, 3]))], shape=split)
    y = dense(b.op(Op.RESHAPE, [y, constant(np.int32(whole))], shape=whole))
    return b.model([b.op(Op.ADD, [x, y], shape=whole)])


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("tokens", "heads", "size"), [(1, 1, 1), (5, 3, 7), (49, 2, 32), (64, 4, 16)])
def test_attention(tokens: int, heads: int, size: int, batch: int, turned: bool) -> None:
    model = attention(tokens, heads, size, batch=batch, turned=turned)
    assert not slow_operators(model)
    both(model, bound=3e-5)


@pytest.mark.parametrize("mask", [(1, 1, 19, 19), (1, 4, 19, 19), (1, 1, 1, 19), (19, 19), (19,)])
def test_masked_attention(mask: Shape) -> None:
    both(attention(19, 4, 8, mask=mask), bound=3e-5)


SIZES = [((1, 1), (1, 1)), ((2, 5), (3, 5)), ((17, 13), (7, 20)), ((32, 40), (16, 64)), ((41, 9), (33, 31))]


@pytest.mark.parametrize(("size", "channels"), SIZES)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_network_of_odd_sizes(size: Shape, channels: Shape, batch: int) -> None:
    both(network(size, channels, 1, batch), bound=3e-5)


EDGES = {
    "zeros": 0.0,
    "negative zeros": -0.0,
    "large": 1e18,
    "small": 1e-30,
    "subnormal": 1e-42,
}


@pytest.mark.parametrize("value", EDGES.values(), ids=EDGES)
def test_a_network_of_edge_inputs(value: float) -> None:
    model = network((17, 13), (7, 20), 1)
    both(model, [floats((1, 17, 13, 3)) * np.float32(value)], bound=3e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_bad_number_spoils_what_it_spoils_in_stock_kernels(value: float) -> None:
    b = Builder()
    x = b.input("x", [1, 16, 16, 8])
    w, v = b.constant("w", floats((24, 3, 3, 8))), b.constant("v", floats((1, 3, 3, 24)))
    bias = b.constant("b", floats(24))
    y = b.op(Op.CONV_2D, [x, w, bias], shape=[1, 16, 16, 24], fused_activation_function=RELU6)
    y = b.op(Op.DEPTHWISE_CONV_2D, [y, v, bias], shape=[1, 16, 16, 24], depth_multiplier=1)
    model = b.model([b.op(Op.LOGISTIC, [y], shape=[1, 16, 16, 24])])
    data = floats((1, 16, 16, 8))
    data[0, 5, 9, 2] = value
    (stock,) = outputs_of(start(model), [data])
    (fast,) = through(model, [data])
    far = np.ones(stock.shape, bool)
    far[:, 3:8, 7:12] = False
    assert_near(stock[far], fast[far], "where it does not reach")
    assert np.isfinite(fast[far]).all()
    np.testing.assert_array_equal(np.isnan(fast), np.isnan(stock))


@pytest.mark.parametrize(("size", "channels"), SIZES[2:])
def test_threads_do_not_change_a_bit(size: Shape, channels: Shape) -> None:
    model = network(size, channels, 2, batch=2)
    want = through(model, threads=1)
    for threads in (2, 3, 5):
        for a, b in zip(want, through(model, threads=threads), strict=True):
            np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32))


def test_sizes_that_change_at_run_time() -> None:
    model = network((17, 13), (7, 20), 3, batch=-1)
    delegate = load()
    runner, plain = start(packaged(model), delegates=[delegate]), start(model)
    for batch in (1, 4, 2, 2, 5, 1):
        x = [floats((batch, 17, 13, 3), batch)]
        for a, b in zip(outputs_of(plain, x), outputs_of(runner, x), strict=True):
            assert_near(a, b, f"batch {batch}", 3e-5)


def convolutions(channels: int) -> Model:
    """Without anything that depends on the size of the image."""
    b = Builder()
    shape = [1, 8, 8, channels]
    y = b.input("x", shape)
    for i in range(3):
        w, bias = b.constant(f"w{i}", floats((channels, 3, 3, channels), i) / 12), b.constant(f"b{i}", floats(channels))
        y = b.op(Op.CONV_2D, [y, w, bias], name=f"conv{i}", shape=shape, fused_activation_function=RELU6)
        y = b.op(Op.DEPTHWISE_CONV_2D, [y, b.constant(f"v{i}", floats((1, 3, 3, channels), i)), bias], name=f"dw{i}",
                 shape=shape, depth_multiplier=1)  # fmt: skip
    return b.model([y])


def test_images_that_change_at_run_time() -> None:
    model = convolutions(20)
    delegate = load(threads=2)
    runner, plain = start(packaged(model), delegates=[delegate]), start(model)
    for h, w in ((8, 8), (1, 1), (3, 70), (45, 2), (33, 31), (8, 8)):
        x = [floats((2, h, w, 20), h)]
        (a,), (b,) = outputs_of(plain, x), outputs_of(runner, x)
        assert_near(a, b, f"{h} x {w}", 3e-5)


@pytest.mark.parametrize("shared", [True, False], ids=["one delegate", "a delegate each"])
def test_two_interpreters_at_once(shared: bool) -> None:
    model = to_bytes(packaged(network((32, 40), (16, 64), 4)))
    delegate = load(threads=2)
    inputs = [floats((1, 32, 40, 3), i) for i in range(2)]
    runners = [start(model, delegates=[delegate if shared else load(threads=2)]) for _ in inputs]
    want = [outputs_of(runner, [x]) for runner, x in zip(runners, inputs, strict=True)]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(40):
            got = outputs_of(runners[i], [inputs[i]])
            if any(a.tobytes() != b.tobytes() for a, b in zip(want[i], got, strict=True)):
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


many = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
UNARY = [Op.RELU, Op.RELU6, Op.LOGISTIC, Op.TANH, Op.ABS, Op.NEG, Op.SQUARE, Op.GELU, Op.HARD_SWISH, Op.LEAKY_RELU]


@many
@given(st.data())
def test_random_chains(data: Any) -> None:
    """Whatever follows whatever, with branches that meet again and results that leave on the way."""
    b = Builder()
    draw = data.draw
    batch = draw(st.integers(1, 2))
    given = (batch, draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 20)))
    shapes = {b.input("x", given): given}
    outputs = []
    for i in range(draw(st.integers(2, 9))):
        source = draw(st.sampled_from(sorted(shapes)[-3:]))
        n, h, w, c = shapes[source]
        what = draw(
            st.sampled_from(["conv", "depthwise", "unary", "binary", "scale", "pool", "pad", "concat", "resize"])
        )
        same = [t for t in shapes if shapes[t] == shapes[source]]
        shape = (n, h, w, c)
        if what == "conv":
            k, stride, wide = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 20))
            shape = (n, -(-h // stride), -(-w // stride), wide)
            weights = [b.constant(f"w{i}", floats((wide, k, k, c), i) / np.float32(k * np.sqrt(c)))]
            weights.append(b.constant(f"b{i}", floats(wide, i)))
            y = b.op(Op.CONV_2D, [source, *weights], shape=shape, stride_h=stride, stride_w=stride,
                     fused_activation_function=draw(st.sampled_from([NONE, RELU6])))  # fmt: skip
        elif what == "depthwise":
            k = draw(st.sampled_from([1, 3, 5, 7]))
            weights = [b.constant(f"w{i}", floats((1, k, k, c), i) / np.float32(k)), b.constant(f"b{i}", floats(c, i))]
            y = b.op(Op.DEPTHWISE_CONV_2D, [source, *weights], shape=shape, depth_multiplier=1)
        elif what == "unary":
            kind = draw(st.sampled_from(UNARY))
            options = {"alpha": 0.2} if kind == Op.LEAKY_RELU else {}
            y = b.op(kind, [source], shape=shape, **options)
        elif what == "binary":
            y = b.op(draw(st.sampled_from([Op.ADD, Op.SUB, Op.MUL, Op.MAXIMUM])),
                     [source, draw(st.sampled_from(same))], shape=shape)  # fmt: skip
        elif what == "scale":
            stretched = draw(st.sampled_from([(c,), (1,), (1, 1, 1, c)]))
            factors = b.constant(f"s{i}", floats(stretched, i))
            y = b.op(draw(st.sampled_from([Op.ADD, Op.MUL, Op.PRELU])), [source, factors], shape=shape)
        elif what == "pool":
            shape = (n, -(-h // 2), -(-w // 2), c)
            y = b.op(draw(st.sampled_from([Op.AVERAGE_POOL_2D, Op.MAX_POOL_2D])), [source], shape=shape,
                     filter_height=3, filter_width=2, stride_h=2, stride_w=2)  # fmt: skip
        elif what == "pad":
            top, left = draw(st.integers(0, 2)), draw(st.integers(0, 2))
            shape = (n, h + top + 1, w + left, c)
            y = b.op(
                Op.PAD, [source, b.constant(f"p{i}", np.int32([[0, 0], [top, 1], [left, 0], [0, 0]]))], shape=shape
            )
        elif what == "concat":
            parts = [source, draw(st.sampled_from(same))]
            shape = (n, h, w, 2 * c)
            y = b.op(Op.CONCATENATION, parts, shape=shape, axis=3)
        else:
            shape = (n, 2 * h, w, c)
            kind = draw(st.sampled_from([Op.RESIZE_BILINEAR, Op.RESIZE_NEAREST_NEIGHBOR]))
            y = b.op(kind, [source, b.constant(f"r{i}", np.int32([2 * h, w]))], shape=shape)
        shapes[y] = shape
        if draw(st.integers(0, 3)) == 0:
            outputs.append(y)
    model = b.model(list(dict.fromkeys([*outputs, y])))
    expected, _ = both(model, bound=1e-4)
    threads = through(model, threads=3)
    for one_thread, several in zip(through(model), threads, strict=True):
        np.testing.assert_array_equal(one_thread.view(np.int32), several.view(np.int32))
    assert all(np.isfinite(e).all() for e in expected)


# -- options ---------------------------------------------------------------------------------------------------------


def wide(channels: int = 32) -> Model:
    """One for which Winograd's algorithm is used."""
    b = Builder()
    x = b.input("x", [1, 32, 32, channels])
    w = b.constant("w", floats((channels, 3, 3, channels)))
    y = b.op(Op.CONV_2D, [x, w, b.constant("b", floats(channels))], name="conv", shape=[1, 32, 32, channels])
    return b.model([b.op(Op.TANH, [y], name="tanh", shape=[1, 32, 32, channels])])


def test_winograd_can_be_switched_off_for_a_delegate_and_for_a_file() -> None:
    model = wide()
    profile = target("x86-64-v3")
    data: dict[Any, bytes] = {}
    for mode in ("plan", "composite", "custom"):
        for allowed in (True, False):
            made = deepcopy(model)
            form(made, profile, mode, cost_model=Eager(profile), winograd=allowed)
            data[mode, allowed] = to_bytes(made)
    x = [floats((1, 32, 32, 32), 9)]

    def results(file: bytes, **options: Any) -> bytes:
        delegate = load(**options)
        runner = start(file, delegates=[delegate])
        assert report(delegate)["regions"]
        found: bytes = outputs_of(runner, x)[0].tobytes()
        return found

    exact = results(data["plan", True], winograd=False)
    assert results(data["plan", True]) != exact
    for mode in ("plan", "composite", "custom"):
        assert results(data[mode, False]) == results(data[mode, False], winograd=False) == exact
        assert results(data[mode, True]) == results(data["plan", True])


def test_exact_conversions_keep_from_winograd() -> None:
    for level in ("exact", "default"):
        result = convert(wide(64), level=level, target="x86-64-v3", check=False)
        assert result.regions is not None
        x = [floats((1, 32, 32, 64), 9)]
        found = [outputs_of(start(to_bytes(result.model), delegates=[load(winograd=w)]), x)[0] for w in (True, False)]
        assert (found[0].tobytes() == found[1].tobytes()) == (level == "exact" or not result.regions.regions)
        assert result.regions.regions


def test_the_report_tells_of_packing_and_the_processor() -> None:
    delegate = load()
    assert "vector kernels for" in report(delegate)["description"]
    assert report(load(backend="reference"))["description"] == "reference kernels"
    before = report(delegate)["packing"]
    assert sorted(before) == ["bytes", "milliseconds", "packed", "shared"]
    model = to_bytes(packaged(wide(40)))
    runner = start(model, delegates=[delegate])
    runner.allocate_tensors()
    once = report(delegate)["packing"]
    assert once["packed"] == before["packed"] + 1
    assert once["bytes"] - before["bytes"] >= 4 * 9 * 40 * 40
    assert once["milliseconds"] > before["milliseconds"]
    again = start(model, delegates=[load()])
    again.allocate_tensors()
    twice = report(delegate)["packing"]
    assert (twice["packed"], twice["bytes"]) == (once["packed"], once["bytes"])
    assert twice["shared"] > once["shared"]
    del runner, again
    assert report(delegate)["packing"]["bytes"] <= before["bytes"]


def test_backends() -> None:
    model = network((17, 13), (7, 20), 5)
    expected = outputs_of(start(model))
    for a, b in zip(expected, through(model, backend="reference"), strict=True):
        assert_near(a, b, "reference", 1e-6)
    with pytest.raises(UsageError, match="there are cpu and reference"):
        load(backend="gpu")
