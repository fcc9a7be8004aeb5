"""The models whose times a calibration measures, made in memory.

Each is a few operators of one kind, on sizes whose time is mostly what is asked for: arithmetic in the cache, traffic
at one level of it, or overhead. Those for the delegate are packaged as a plan, with the groups given here, so that
nothing depends on what the cost model finds worth while.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from litefuse.delegates.network import Network
from litefuse.delegates.package import package
from litefuse.delegates.targets import MIB, Target
from litefuse.graph.build import Builder, quantized
from litefuse.graph.graph import Graph
from litefuse.schema import Model, deepcopy
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

LONG, SHORT = 34, 2
"""Operators in the chains of tiny ones, whose difference is what an operator costs."""
UNITS = (10, 2)
"""Regions in the chains of tiny ones."""
BETWEEN = 2
"""Operators of the stock runtime before each of these."""


class Probe(NamedTuple):
    """A model to measure."""

    figure: str
    """What its time says most of, as :func:`litefuse.delegates.calibrate.profile.flat` names it."""
    case: str
    """Which of several."""
    model: Model
    groups: tuple[tuple[int, ...], ...] = ()
    """Positions of the operators that the delegate runs, by region; none for the stock runtime alone."""

    @property
    def name(self) -> str:
        """What tells it from the others."""
        return f"{self.figure} {self.case}"

    @property
    def ours(self) -> bool:
        """Whether the delegate runs a part of it."""
        return bool(self.groups)

    def packaged(self) -> Model:
        """The model with its groups as a plan."""
        if not self.groups:
            return self.model
        model: Model = deepcopy(self.model)
        network = Network(Graph(model, 0))
        groups = [
            _Group([network.ops[i] for i in g], list(network.inputs_of(g)), list(network.outputs_of(g)))
            for g in self.groups
        ]
        package(model, {0: groups}, "plan")
        return model


class _Group(NamedTuple):
    """A region as packaging wants it."""

    operators: Sequence[Operator]
    inputs: Sequence[int]
    outputs: Sequence[int]
    kind: str = "elementwise"  # nothing depends on it


class _Net(Builder):
    """A builder of float layers whose values stay within reason."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)
        self.shape = shape
        self.x = self.input("x", shape)

    def weights(self, *shape: int, fan: int = 1) -> int:
        value = self.rng.standard_normal(shape) / math.sqrt(fan)
        return self.constant(f"w{len(self._subgraph.tensors)}", value.astype(np.float32))

    def chain(self, count: int, *kinds: Op) -> Model:
        """Operators of one input one after the other, these kinds in turn; convolutions keep the channels."""
        y, c = self.x, self.shape[-1]
        for i in range(count):
            kind = kinds[i % len(kinds)]
            more = [self.weights(c, 1, 1, c, fan=c), self.weights(c, fan=100)] if kind is Op.CONV_2D else []
            y = self.op(kind, [y, *more], shape=self.shape)
        return self.model([y])

    def quotients(self, count: int) -> Model:
        """Divisions by the same tensor one after the other."""
        y, by = self.x, self.input("by", self.shape)
        for _ in range(count):
            y = self.op(Op.DIV, [y, by], shape=self.shape)
        return self.model([y])

    def means(self, count: int) -> Model:
        """Means over the last axis, side by side."""
        axes = [self.constant(f"axes{i}", [len(self.shape) - 1]) for i in range(count)]
        return self.model([self.mean(self.x, a) for a in axes])

    def mean(self, x: int, axes: int) -> int:
        return self.op(Op.MEAN, [x, axes], shape=[*self.shape[:-1], 1], keep_dims=True)

    def norm(self) -> Model:
        """Normalisation by mean and variance over the last axis, as Keras writes it."""
        c, small = self.shape[-1], [*self.shape[:-1], 1]
        axes = self.constant("axes", [len(self.shape) - 1])
        mean = self.mean(self.x, axes)
        variance = self.mean(self.op(Op.SQUARED_DIFFERENCE, [self.x, mean], shape=self.shape), axes)
        inverse = self.op(
            Op.RSQRT, [self.op(Op.ADD, [variance, self.constant("epsilon", 1e-3)], shape=small)], shape=small
        )
        scale = self.op(Op.MUL, [inverse, self.weights(c)], shape=self.shape)
        shift = self.op(Op.SUB, [self.weights(c), self.op(Op.MUL, [mean, scale], shape=self.shape)], shape=self.shape)
        y = self.op(Op.MUL, [self.x, scale], shape=self.shape)
        return self.model([self.op(Op.ADD, [y, shift], shape=self.shape)])


def _conv(size: int, c: int, n: int, k: int = 1, stride: int = 1) -> Model:
    net = _Net(1, size, size, c)
    inputs = [net.x, net.weights(n, k, k, c, fan=k * k * c), net.weights(n, fan=100)]
    shape = [1, -(-size // stride), -(-size // stride), n]
    return net.model([net.op(Op.CONV_2D, inputs, shape=shape, stride_w=stride, stride_h=stride)])


def _depthwise(size: int, c: int, k: int, stride: int = 1) -> Model:
    net = _Net(1, size, size, c)
    inputs = [net.x, net.weights(1, k, k, c, fan=k * k), net.weights(c, fan=100)]
    shape = [1, -(-size // stride), -(-size // stride), c]
    return net.model([net.op(Op.DEPTHWISE_CONV_2D, inputs, shape=shape, stride_w=stride, stride_h=stride)])


def _inverted(size: int, c: int, wide: int) -> Model:
    """An inverted residual: expansion, depthwise convolution, projection, and the addition of the input."""
    net = _Net(1, size, size, c)
    inside = [1, size, size, wide]
    y = net.op(Op.CONV_2D, [net.x, net.weights(wide, 1, 1, c, fan=c), net.weights(wide, fan=100)], shape=inside)
    y = net.op(Op.DEPTHWISE_CONV_2D, [y, net.weights(1, 3, 3, wide, fan=9), net.weights(wide, fan=100)], shape=inside)
    y = net.op(Op.CONV_2D, [y, net.weights(c, 1, 1, wide, fan=wide), net.weights(c, fan=100)], shape=net.shape)
    return net.model([net.op(Op.ADD, [net.x, y], shape=net.shape)])


def _transposed(size: int, c: int, n: int, k: int) -> Model:
    net = _Net(1, size, size, c)
    shape = [1, 2 * size, 2 * size, n]
    inputs = [net.constant("shape", shape), net.weights(n, k, k, c, fan=c), net.x, net.weights(n, fan=100)]
    options: dict[str, Any] = {"stride_w": 2, "stride_h": 2}
    return net.model([net.op(Op.TRANSPOSE_CONV, inputs, shape=shape, type=TensorType.FLOAT32, version=3, **options)])


def _dense(rows: int, c: int, n: int) -> Model:
    net = _Net(rows, c)
    inputs = [net.x, net.weights(n, c, fan=c), net.weights(n, fan=100)]
    return net.model([net.op(Op.FULLY_CONNECTED, inputs, shape=[rows, n])])


def _batched(heads: int, rows: int, c: int) -> Model:
    net = _Net(1, heads, rows, c)
    other = net.input("other", net.shape)
    return net.model([net.op(Op.BATCH_MATMUL, [net.x, other], shape=[1, heads, rows, rows], adj_y=True)])


def _int8_conv(size: int, c: int, n: int) -> Model:
    b, rng = Builder(), np.random.default_rng(0)
    x = b.input("x", [1, size, size, c], TensorType.INT8, quantized(0.05))
    w = b.constant("w", rng.integers(-99, 99, (n, 1, 1, c), np.int8), quantized([0.01] * n, [0] * n))
    bias = b.constant("b", np.zeros(n, np.int32), quantized([0.0005] * n, [0] * n))
    return b.model([b.op(Op.CONV_2D, [x, w, bias], shape=[1, size, size, n], quantization=quantized(0.5))])


def _int8_depthwise(size: int, c: int) -> Model:
    b, rng = Builder(), np.random.default_rng(0)
    x = b.input("x", [1, size, size, c], TensorType.INT8, quantized(0.05))
    w = b.constant("w", rng.integers(-99, 99, (1, 3, 3, c), np.int8), quantized([0.01] * c, [0] * c, 3))
    bias = b.constant("b", np.zeros(c, np.int32), quantized([0.0005] * c, [0] * c))
    return b.model([b.op(Op.DEPTHWISE_CONV_2D, [x, w, bias], shape=[1, size, size, c], quantization=quantized(0.5))])


def _hybrid(rows: int, c: int, n: int) -> Model:
    net = _Net(rows, c)
    w = net.constant("w", net.rng.integers(-99, 99, (n, c), np.int8), quantized(0.001))
    options: dict[str, Any] = {"asymmetric_quantize_inputs": True, "version": 9}
    return net.model([net.op(Op.FULLY_CONNECTED, [net.x, w, net.weights(n)], shape=[rows, n], **options)])


Cases = list[tuple[int, ...]]

# Pointwise convolutions are rarely alone, and alone they hardly differ: what counts is how they do in inverted
# residuals, strip by strip or one after the other. Size, channels, and channels inside.
_BLOCKS: Cases = [(56, 24, 144), (28, 32, 192), (14, 64, 384), (14, 96, 576)]
# The shapes of networks; arithmetic takes longer with all of them than memory.
_WINOGRAD: Cases = [(28, 64, 64, 3), (14, 128, 128, 3), (56, 32, 32, 3)]
_ROOTS: list[tuple[str, Callable[..., Model], Cases]] = [
    # None that the delegate does by Winograd's algorithm.
    ("shares.convolution", _conv, [(56, 32, 64, 3, 2), (56, 8, 8, 5), (28, 32, 32, 5)]),
    ("shares.depthwise", _depthwise, [(56, 96, 3), (28, 192, 3), (14, 384, 3)]),
    ("shares.depthwise_strided", _depthwise, [(56, 96, 3, 2), (28, 192, 3, 2), (14, 576, 3, 2)]),
    ("shares.depthwise_5x5", _depthwise, [(28, 96, 5), (14, 240, 5)]),
    ("shares.depthwise_7x7", _depthwise, [(28, 64, 7), (14, 192, 7)]),
    ("shares.transposed", _transposed, [(28, 64, 32, 2), (14, 64, 32, 4)]),
    ("shares.matmul", _dense, [(64, 256, 256), (196, 192, 384)]),
]
# The delegate has no kernels that could be measured against these: products of two tensors are in regions with what
# surrounds them only, and integers are left to the runtime.
_STOCK_ONLY: list[tuple[str, Callable[..., Model], Cases]] = [
    ("shares.matmul", _batched, [(4, 128, 64)]),
    ("shares.int8", _int8_conv, [(28, 64, 128), (14, 256, 256), (14, 96, 576), (28, 192, 32)]),
    ("shares.int8_depthwise", _int8_depthwise, [(28, 192), (14, 384)]),
    ("shares.hybrid", _hybrid, [(64, 256, 256), (196, 192, 384)]),
]
# Convolutions that are near the peak, if their pages do not get into each other's way: size, channels, outputs.
_LARGE: Cases = [(28, 128, 128), (20, 128, 128), (14, 192, 192), (10, 256, 256), (8, 384, 384)]

_COUNT = 16  # functions in a chain: a single one would take no longer than to call the interpreter
# What they are applied to. In and out fit in any L1 for the stock runtime; the delegate works block by block, and
# begins with each at a cost that is not the functions'.
_STOCK_SHAPE, _OUR_SHAPE = (1, 8, 256), (1, 64, 256)
_FUNCTIONS: dict[str, tuple[Op, ...]] = {
    "logistic": (Op.LOGISTIC,),
    "tanh": (Op.TANH,),
    "gelu": (Op.GELU,),
    "exp": (Op.EXP, Op.NEG),  # otherwise it grows beyond all bounds
    "elu": (Op.ELU,),
    "sqrt": (Op.SQRT,),
    "rsqrt": (Op.RSQRT,),
    "softmax": (Op.SOFTMAX,),
}


def probes(target: Target, memory: int, delegate: bool) -> Iterator[Probe]:
    """All that is measured on a machine.

    Args:
        target: what is known of its caches.
        memory: bytes that the models may take.
        delegate: whether the delegate is there.
    """
    # Overheads.
    for n in (LONG, SHORT):
        yield Probe("stock_us", str(n), _Net(1, 1, 1, 8).chain(n, Op.CONV_2D, Op.NEG))
    if delegate:
        for n in UNITS:
            chain = _Net(1, 1, 1, 8).chain(4 * n, Op.CONV_2D, Op.NEG, Op.ABS, Op.NEG)
            yield Probe("region_us", str(n), chain, tuple((i, i + 1) for i in range(BETWEEN, 4 * n, 4)))
    # Traffic.
    for level, (bytes, n) in levels(target, memory).items():
        yield Probe(f"bandwidth.{level}", "", _Net(1, bytes // 8).chain(n, Op.NEG))
    # Arithmetic.
    for case in _LARGE:
        yield Probe("peak_f32", _words(case), _conv(*case))
        yield Probe("peak_int8", _words(case), _int8_conv(*case))
    for figure, build, cases in (*_ROOTS, *_STOCK_ONLY):
        for case in cases:
            yield Probe(f"{figure}.stock", _words(case), build(*case))
    for case in _BLOCKS:
        yield Probe("shares.pointwise.stock", _words(case), _inverted(*case))
    for name, model in _functions(_STOCK_SHAPE):
        yield Probe(f"functions.{name}.stock", "", model)
    yield Probe("factors.adding.stock", "", _Net(*_STOCK_SHAPE).means(_COUNT))
    if not delegate:
        return
    for figure, build, cases in _ROOTS:
        for case in cases:
            yield Probe(f"{figure}.ours", _words(case), build(*case), ((0,),))
    for case in _BLOCKS:
        yield Probe("shares.pointwise.ours", _words(case), _inverted(*case), ((0, 1, 2, 3),))
    for case in _WINOGRAD:
        yield Probe("shares.winograd", _words(case), _conv(*case), ((0,),))
    for name, model in _functions(_OUR_SHAPE):
        yield Probe(f"functions.{name}.ours", "", model, (tuple(range(_COUNT)),))
    for case in ((1, 28, 28, 96), (1, 128, 512)):
        model = _Net(*case).norm()
        yield Probe("factors.adding.ours", _words(case), model, (tuple(range(len(model.subgraphs[0].operators))),))


def _functions(shape: tuple[int, ...]) -> Iterator[tuple[str, Model]]:
    for name, kinds in _FUNCTIONS.items():
        yield name, _Net(*shape).chain(_COUNT, *kinds)
    yield "div", _Net(*shape).quotients(_COUNT)


def _words(case: Sequence[int]) -> str:
    return " ".join(map(str, case))


def levels(target: Target, memory: int) -> dict[str, tuple[int, int]]:
    """For each level of memory the bytes that an operator moves, and how many operators there are.

    A single one reads one tensor and writes another; in a chain, which it takes where one is too short to be measured,
    XNNPACK may work in place.
    """
    found = {"l1": (target.l1 * 3 // 4, 32), "l2": (max(target.l2 * 5 // 8, target.l1 * 5 // 4), 1)}
    if target.l3:
        # What models have there is not much larger than L2, and others use it too.
        found["l3"] = (min(4 * target.l2, max(target.l3 // 2, target.l2 * 5 // 4)), 1)
    beyond = min(max(4 * max(target.l3, target.l2), 32 * MIB), 256 * MIB, memory)
    if beyond > max(target.l3, target.l2):
        found["memory"] = (beyond, 1)
    return {level: (bytes // 64 * 64, n) for level, (bytes, n) in found.items()}
