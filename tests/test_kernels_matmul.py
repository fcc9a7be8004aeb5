"""The reference kernels of FULLY_CONNECTED and BATCH_MATMUL against the runtime's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delegate import both, refusal
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
    values,
    zero_point,
)

from litefuse.graph.build import Builder, quantized
from litefuse.schema.enums import ActivationFunctionType, FullyConnectedOptionsWeightsFormat, TensorType
from litefuse.schema.operators import Op

CASES = 24  # operators in one model


def _add_fully_connected(group: Group, arithmetic: Arithmetic, asymmetric: bool = False) -> None:
    rng = group.rng
    depth, units = int(rng.integers(1, 40)), int(rng.integers(1, 9))
    rank = int(rng.integers(1, 5))
    x_shape = (*(int(rng.integers(1, 4)) for _ in range(rank - 1)), depth)
    keep = bool(rng.integers(2))
    if not keep and rank > 2 and rng.random() < 0.5:
        # Rows need not end where the input's do.
        depth *= x_shape[-2]
    activation = ACTIVATIONS[int(rng.integers(4))]
    o = group.operands(arithmetic, x_shape, (units, depth), 0, bias=rng.random() < 0.7)
    inputs = list(o.inputs)
    if o.bias is None and rng.random() < 0.5:
        inputs.append(-1)
    narrow = {"quantized_bias_type": TensorType.INT32} if arithmetic == INT16_NARROW else {}
    group.op(
        Op.FULLY_CONNECTED,
        inputs,
        o,
        f"{x_shape} * {(units, depth)} keep_num_dims {keep} {activation.name} bias {o.bias is not None}",
        keep_num_dims=keep,
        asymmetric_quantize_inputs=asymmetric,
        fused_activation_function=activation,
        **narrow,
    )


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("arithmetic", [*INTEGERS, INT16_NARROW], ids=named)
def test_fully_connected_integers(arithmetic: Arithmetic, seed: int) -> None:
    group = Group(seed)
    for _ in range(CASES):
        _add_fully_connected(group, arithmetic)
    expected, found = both(group.model(), group.feeds)
    check_equal(group.labels, expected, found)
    check_spread(expected)


@pytest.mark.parametrize("seed", [1, 2])
def test_fully_connected_floats(seed: int) -> None:
    group = Group(seed)
    for _ in range(CASES):
        _add_fully_connected(group, FLOAT)
    check_equal(group.labels, *both(group.model(), group.feeds))


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("arithmetic", [HYBRID, HYBRID_CHANNEL], ids=named)
def test_fully_connected_hybrid(arithmetic: Arithmetic, asymmetric: bool) -> None:
    group = Group(3)
    for _ in range(CASES):
        _add_fully_connected(group, arithmetic, asymmetric)
    check_equal(group.labels, *both(group.model(), group.feeds))


class Layout:
    """Shapes of a product with batches that broadcast."""

    def __init__(self, rng: np.random.Generator, batches: int = 3) -> None:
        self.rows, self.depth, self.columns = int(rng.integers(1, 6)), int(rng.integers(1, 12)), int(rng.integers(1, 7))
        self.adj_x, self.adj_y = bool(rng.integers(2)), bool(rng.integers(2))
        x_rank, y_rank = int(rng.integers(batches + 1)), int(rng.integers(batches + 1))
        common = [int(rng.integers(1, 4)) for _ in range(max(x_rank, y_rank))]
        self.x_batches = self._broadcast(rng, common, x_rank)
        self.y_batches = self._broadcast(rng, common, y_rank)

    @staticmethod
    def _broadcast(rng: np.random.Generator, common: list[int], rank: int) -> list[int]:
        return [1 if rng.random() < 0.3 else d for d in common[len(common) - rank :]]

    @property
    def x(self) -> tuple[int, ...]:
        return (*self.x_batches, *((self.depth, self.rows) if self.adj_x else (self.rows, self.depth)))

    @property
    def y(self) -> tuple[int, ...]:
        return (*self.y_batches, *((self.columns, self.depth) if self.adj_y else (self.depth, self.columns)))

    @property
    def options(self) -> dict[str, bool]:
        return {"adj_x": self.adj_x, "adj_y": self.adj_y}

    def __str__(self) -> str:
        return f"{self.x}{'^T' * self.adj_x} * {self.y}{'^T' * self.adj_y}"


MATMUL_TYPES = [
    (TensorType.FLOAT32, TensorType.FLOAT32, TensorType.FLOAT32),
    (TensorType.INT8, TensorType.INT8, TensorType.INT8),
    (TensorType.INT8, TensorType.INT8, TensorType.INT32),
    (TensorType.INT16, TensorType.INT8, TensorType.INT16),
    (TensorType.INT16, TensorType.INT16, TensorType.INT16),
]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("types", MATMUL_TYPES, ids=lambda t: "-".join(part.name.lower() for part in t))
def test_batch_matmul(types: tuple[TensorType, TensorType, TensorType], seed: int) -> None:
    group = Group(seed)
    rng, b = group.rng, group.builder
    for _ in range(CASES):
        layout = Layout(rng)

        def points(type: TensorType, scale: float) -> Any:
            if type == TensorType.FLOAT32:
                return None
            return quantized(scale, zero_point(rng, type) if types[0] == TensorType.INT8 else 0)

        x = group.feed(values(rng, layout.x, types[0]), types[0], points(types[0], 0.02))
        y_points = points(types[1], 0.01)
        if rng.random() < 0.5:
            y = b.constant(f"w{len(group.outputs)}", values(rng, layout.y, types[1]), y_points)
        else:
            y = group.feed(values(rng, layout.y, types[1]), types[1], y_points)
        bits = {TensorType.INT8: 7, TensorType.INT16: 15, TensorType.INT32: 0, TensorType.FLOAT32: 0}
        scale = 0.02 * 0.01 * 2.0 ** (bits[types[0]] + bits[types[1]] - bits[types[2]]) * np.sqrt(layout.depth)
        result = None if types[2] == TensorType.INT32 else points(types[2], float(scale))
        tensor = b.op(Op.BATCH_MATMUL, [x, y], type=types[2], quantization=result, **layout.options)
        group.outputs.append(tensor)
        group.labels.append(str(layout))
    expected, found = both(group.model(), group.feeds)
    check_equal(group.labels, expected, found)
    if types[2] != TensorType.FLOAT32:
        check_spread(expected)


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
def test_batch_matmul_hybrid(per_channel: bool, asymmetric: bool) -> None:
    group = Group(4)
    rng, b = group.rng, group.builder
    for i in range(CASES):
        layout = Layout(rng, batches=1)
        if rng.random() < 0.3:
            layout.x_batches = [2, *layout.x_batches[:1]]
            layout.x_batches[1:] = [1] * len(layout.x_batches[1:])
            layout.y_batches = []
        x = group.feed(values(rng, layout.x, TensorType.FLOAT32), TensorType.FLOAT32)
        scales = rng.uniform(0.01, 0.1, layout.columns) if per_channel else 0.05
        axis = len(layout.y) - (2 if layout.adj_y else 1)
        weights = np.maximum(values(rng, layout.y, TensorType.INT8), -127)
        y = b.constant(f"w{i}", weights, quantized(scales, 0, axis))
        options = layout.options | {"asymmetric_quantize_inputs": asymmetric}
        group.outputs.append(b.op(Op.BATCH_MATMUL, [x, y], **options))
        group.labels.append(str(layout))
    check_equal(group.labels, *both(group.model(), group.feeds))


def test_hybrid_batches_that_the_runtime_sees_as_one() -> None:
    b = Builder()
    rng = np.random.default_rng(5)
    x = b.input("x", [2, 3, 4, 6])
    y = b.constant("w", rng.integers(-127, 128, (2, 1, 6, 5)).astype(np.int8), quantized(0.1))
    check_equal(["y"], *both(b.model([b.op(Op.BATCH_MATMUL, [x, y])])))


def test_float_edge_values() -> None:
    group = Group(6)
    special = np.array([np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-42, 0.0, -0.0], np.float32)
    for activation in ACTIVATIONS:
        o = group.operands(FLOAT, (5, 3), (4, 3), 0, x=group.rng.choice(special, (5, 3)))
        group.op(Op.FULLY_CONNECTED, o.inputs, o, activation.name, fused_activation_function=activation)
    o = group.operands(FLOAT, (5, 3), (3, 4), 1, x=group.rng.choice(special, (5, 3)))
    group.op(Op.BATCH_MATMUL, o.inputs[:2], o, "matmul")
    expected, found = both(group.model(), group.feeds)
    check_equal(group.labels, expected, found)
    numbers = np.concatenate([e.ravel() for e in expected])
    assert np.isnan(numbers).any()
    assert np.isinf(numbers).any()


@pytest.mark.parametrize("arithmetic", [UINT8, INT8, INT8_CHANNEL, INT16, INT16_CHANNEL, INT16_NARROW], ids=named)
def test_accumulators_at_their_limits(arithmetic: Arithmetic) -> None:
    group = Group(7)
    info = np.iinfo({TensorType.UINT8: np.uint8, TensorType.INT8: np.int8}.get(arithmetic.input, np.int16))
    narrow = {"quantized_bias_type": TensorType.INT32} if arithmetic == INT16_NARROW else {}
    for value in (info.min, info.max):
        x = np.full((2, 700), value, info.dtype)
        o = group.operands(arithmetic, x.shape, (3, 700), 0, x=x)
        group.op(Op.FULLY_CONNECTED, o.inputs, o, str(value), **narrow)
    check_equal(group.labels, *both(group.model(), group.feeds))


def test_hybrid_edge_values() -> None:
    group = Group(8)
    for x in (np.zeros((2, 6)), np.full((2, 6), 7.5), np.full((2, 6), -1e-20), np.eye(6), -np.eye(6)):
        x = x.astype(np.float32)
        for asymmetric in (False, True):
            options = {"asymmetric_quantize_inputs": asymmetric}
            o = group.operands(HYBRID, x.shape, (5, 6), 0, x=x)
            group.op(Op.FULLY_CONNECTED, o.inputs, o, f"{x.ravel()[0]} {asymmetric}", **options)
            o = group.operands(HYBRID_CHANNEL, x.shape, (6, 5), 1, x=x)
            group.op(Op.BATCH_MATMUL, o.inputs[:2], o, f"matmul {x.ravel()[0]} {asymmetric}", **options)
    check_equal(group.labels, *both(group.model(), group.feeds))


def test_empty_and_changing_shapes() -> None:
    group = Group(9)
    o = group.operands(FLOAT, (2, 6), (5, 6), 0)
    group.op(Op.FULLY_CONNECTED, o.inputs, o, "fully connected")
    model = group.model()
    for rows in (1, 7, 0):
        expected, found = both(model, [group.rng.normal(size=(rows, 6)).astype(np.float32)])
        check_equal([str(rows)], expected, found)
        assert found[0].shape == (rows, 5)


def _fully_connected(
    x_shape: tuple[int, ...] = (2, 6),
    weights: tuple[int, ...] = (5, 6),
    *,
    x: TensorType = TensorType.FLOAT32,
    x_points: Any = None,
    w: type[np.generic] = np.float32,
    w_points: Any = None,
    computed: bool = False,
    bias: Any = None,
    bias_points: Any = None,
    output: TensorType | None = None,
    output_points: Any = None,
    **options: Any,
) -> Any:
    """One operator, possibly a wrong one: nothing is run to find its shapes."""
    b = Builder()
    inputs = [b.input("x", x_shape, x, x_points)]
    if computed:
        inputs.append(b.input("w", weights, TensorType.INT8, w_points))
    else:
        inputs.append(b.constant("w", np.ones(weights, w), w_points))
    if bias is not None:
        inputs.append(b.constant("b", bias, bias_points))
    y = b.op(Op.FULLY_CONNECTED, inputs, shape=(2, 5), type=output or x, quantization=output_points, **options)
    return b.model([y])


Q = quantized(0.5)
U8 = {"x": TensorType.UINT8, "x_points": Q, "w": np.uint8, "w_points": Q, "output_points": Q}
I8 = {"x": TensorType.INT8, "x_points": Q, "w": np.int8, "w_points": Q, "output_points": Q}
I16 = {"x": TensorType.INT16, "x_points": Q, "w": np.int8, "w_points": Q, "output_points": Q}

FULLY_CONNECTED_REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("its weights have 3 dimensions where they need 2", {"weights": (5, 2, 3)}),
    ("its input of 12 elements does not divide into rows of 7", {"weights": (5, 7)}),
    ("its input [4,3] does not end in the weights' 6 columns", {"x_shape": (4, 3), "keep_num_dims": True}),
    ("its weights are shuffled", {"weights_format": FullyConnectedOptionsWeightsFormat.SHUFFLED4x16INT8}),
    ("fused activation 4 is not supported", {"fused_activation_function": ActivationFunctionType.TANH}),
    ("its bias has 4 values for 5 output channels", {"bias": np.zeros(4, np.float32)}),
    ("its bias is int32 where float32 is needed", {"bias": np.zeros(5, np.int32)}),
    ("its bias is int64 where int32 is needed", I8 | {"bias": np.zeros(5, np.int64)}),
    ("its input is int32", {"x": TensorType.INT32, "w": np.int32}),
    ("its weights are float32 where the input is int8", I8 | {"w": np.float32}),
    ("its weights are int16 where the input is int16", I16 | {"w": np.int16}),
    ("its output is int16 where the input is uint8", U8 | {"output": TensorType.INT16}),
    ("its input has no quantisation", I8 | {"x_points": None}),
    ("its filter has no quantisation", I8 | {"w_points": None}),
    ("its weights have no quantisation", {"w": np.int8}),
    ("its output has no quantisation", I8 | {"output_points": None}),
    ("its uint8 weights are quantised per channel", U8 | {"w_points": quantized([0.5] * 5)}),
    ("its weights are quantised along axis 1, not 0", I8 | {"w_points": quantized([0.5] * 6, 0, 1)}),
    ("its int8 weights have the zero point 1, not 0", I8 | {"w_points": quantized([0.5] * 5, 1)}),
    ("its int8 weights have the zero point 1, not 0", {"w": np.int8, "w_points": quantized(0.5, 1)}),
    (
        "its bias has the scale 0.5 where input and weights make 0.25",
        I8 | {"bias": np.zeros(5, np.int32), "bias_points": Q},
    ),
    ("its input is int16 with the zero point 4, not 0", I16 | {"x_points": quantized(0.5, 4)}),
    ("its weights are computed at run time", {"computed": True, "w_points": Q, "asymmetric_quantize_inputs": True}),
]


@pytest.mark.parametrize(("reason", "case"), FULLY_CONNECTED_REFUSALS, ids=[r for r, _ in FULLY_CONNECTED_REFUSALS])
def test_fully_connected_refusals(reason: str, case: dict[str, Any]) -> None:
    assert reason in refusal(_fully_connected(**case))


def _batch_matmul(
    x_shape: tuple[int, ...] = (2, 3, 4),
    y_shape: tuple[int, ...] = (2, 4, 5),
    x: TensorType = TensorType.FLOAT32,
    y: TensorType = TensorType.FLOAT32,
    output: TensorType = TensorType.FLOAT32,
    x_points: Any = None,
    y_points: Any = None,
    output_points: Any = None,
    constant: bool = False,
    **options: Any,
) -> Any:
    b = Builder()
    inputs = [b.input("x", x_shape, x, x_points)]
    inputs.append(
        b.constant("y", np.ones(y_shape, np.int8), y_points) if constant else b.input("y", y_shape, y, y_points)
    )
    tensor = b.op(Op.BATCH_MATMUL, inputs, shape=(2, 3, 5), type=output, quantization=output_points, **options)
    return b.model([tensor])


MI8: dict[str, Any] = dict.fromkeys(("x", "y", "output"), TensorType.INT8) | dict.fromkeys(
    ("x_points", "y_points", "output_points"), Q
)
MIXED: dict[str, Any] = {"y": TensorType.INT8, "y_points": Q}
ASYMMETRIC: dict[str, Any] = MIXED | {"asymmetric_quantize_inputs": True, "constant": True}

BATCH_MATMUL_REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("an input has 1 dimensions, not 2 to 5", {"x_shape": (4,)}),
    ("an input has 6 dimensions, not 2 to 5", {"y_shape": (1, 1, 1, 2, 4, 5)}),
    ("its inputs [2,3,4] and [2,4,5] do not fit together", {"adj_y": True}),
    ("the batches of its inputs [3,3,4] and [2,4,5] do not fit", {"x_shape": (3, 3, 4)}),
    ("its inputs are int8 and float32", MI8 | {"y": TensorType.FLOAT32}),
    ("its inputs are int32 and int32", {"x": TensorType.INT32, "y": TensorType.INT32}),
    ("its output is int16 where its inputs are int8 and int8", MI8 | {"output": TensorType.INT16}),
    ("its first input has no quantisation", MI8 | {"x_points": None}),
    ("its second input is quantised per channel", MI8 | {"y_points": quantized([0.5] * 5, 0, 2)}),
    ("its scales multiply accumulators by", MI8 | {"output_points": quantized(1e-30)}),
    (
        "its second input has the zero point 2, not 0",
        MI8 | {"x": TensorType.INT16, "output": TensorType.INT16, "y_points": quantized(0.5, 2)},
    ),
    (
        "is not that of the output's columns",
        MIXED | {"y_shape": (2, 5, 5), "x_shape": (2, 3, 5), "y_points": quantized([0.5] * 5, 0, 1)},
    ),
    ("its weights have 4 scales for 5 output channels", MIXED | {"y_points": quantized([0.5] * 4, 0, 1)}),
    ("[2,2,3,4] has several batches", MIXED | {"x_shape": (2, 2, 3, 4), "y_shape": (4, 5)}),
    ("its weights are computed at run time", ASYMMETRIC | {"constant": False}),
    ("and [2,2,4,5] has several batches", ASYMMETRIC | {"y_shape": (2, 2, 4, 5), "x_shape": (3, 4)}),
]


@pytest.mark.parametrize(("reason", "case"), BATCH_MATMUL_REFUSALS, ids=[r for r, _ in BATCH_MATMUL_REFUSALS])
def test_batch_matmul_refusals(reason: str, case: dict[str, Any]) -> None:
    assert reason in refusal(_batch_matmul(**case))
