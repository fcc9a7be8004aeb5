"""Which tensors may share bytes, and the reasons where they must not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litefuse.arena.aliasing import Legal, Share, ShareKind, legal_shares
from litefuse.arena.lifetimes import DELEGATE, TFLITE, TFLM, Runtime, sizes
from litefuse.graph.build import Builder, quantized
from litefuse.graph.graph import Graph
from litefuse.schema import Model
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op

F32, I8, I16, I32 = (TensorType[n] for n in ("FLOAT32", "INT8", "INT16", "INT32"))


def legal(model: Model, runtime: Runtime = TFLM) -> Legal:
    graph = Graph(model)
    return legal_shares(graph, runtime, sizes(graph, runtime))


def pairs(model: Model, runtime: Runtime = TFLM) -> list[tuple[str, str, int, str]]:
    graph = Graph(model)
    return [(graph.name(s.source), graph.name(s.target), s.offset, s.kind.value) for s in legal(model, runtime).shares]


def one(kind: Op, *shapes: tuple[int, ...], out: tuple[int, ...], type: TensorType = F32, **options: Any) -> Model:
    """An operator on inputs ``x0, x1, ...``; its output is ``y``."""
    b = Builder()
    inputs = [b.input(f"x{i}", shape, type) for i, shape in enumerate(shapes)]
    return b.model([b.op(kind, inputs, name="y", shape=out, **options)])


@pytest.mark.parametrize("kind", [Op.RELU, Op.LOGISTIC, Op.HARD_SWISH, Op.TANH, Op.SOFTMAX, Op.LOG_SOFTMAX])
def test_one_operand_in_place(kind: Op) -> None:
    model = one(kind, (1, 4, 8), out=(1, 4, 8))
    assert pairs(model) == [("x0", "y", 0, "in place")]
    assert legal(model).shares[0].reason


@pytest.mark.parametrize("kind", [Op.ADD, Op.MUL, Op.SUB, Op.MAXIMUM, Op.SQUARED_DIFFERENCE])
def test_either_operand_of_the_full_size(kind: Op) -> None:
    assert pairs(one(kind, (4, 8), (4, 8), out=(4, 8))) == [("x0", "y", 0, "in place"), ("x1", "y", 0, "in place")]
    broadcast = one(kind, (4, 1), (4, 8), out=(4, 8))
    assert pairs(broadcast) == [("x1", "y", 0, "in place")]
    assert "broadcasts it" in legal(broadcast).refused[0].reason
    both = one(kind, (4, 1), (1, 8), out=(4, 8))
    assert pairs(both) == []
    assert len(legal(both).refused) == 2


@pytest.mark.parametrize("kind", [Op.AVERAGE_POOL_2D, Op.MAX_POOL_2D, Op.CUMSUM, Op.TRANSPOSE, Op.MEAN, Op.REVERSE_V2])
def test_operators_that_read_elements_again_never_share(kind: Op) -> None:
    b = Builder()
    inputs = [b.input("x", [1, 4, 4, 2])]
    if kind not in (Op.AVERAGE_POOL_2D, Op.MAX_POOL_2D):
        inputs.append(b.constant("axis", np.array([1], np.int32)))
    model = b.model([b.op(kind, inputs, shape=[1, 4, 4, 2])])
    for runtime in (TFLM, TFLITE, DELEGATE):
        assert pairs(model, runtime) == []


def test_alpha_of_prelu_is_not_written_over() -> None:
    assert pairs(one(Op.PRELU, (4, 8), (4, 8), out=(4, 8))) == [("x0", "y", 0, "in place")]


def test_element_widths_must_agree() -> None:
    b = Builder()
    x = b.input("x", [64], I8, quantized(0.1))
    same = b.op(Op.QUANTIZE, [x], name="same", shape=[64], type=I8, quantization=quantized(0.2))
    wide = b.op(Op.QUANTIZE, [same], name="wide", shape=[64], type=I16, quantization=quantized(0.2))
    y = b.op(Op.DEQUANTIZE, [wide], name="y", shape=[64], type=F32)
    model = b.model([y])
    assert pairs(model) == [("x", "same", 0, "in place")]
    assert [r.reason for r in legal(model).refused] == [
        "its elements have 8 bits, those of the output 16",
        "its elements have 16 bits, those of the output 32",
    ]


@pytest.mark.parametrize("kind", [Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS])
def test_whole_views(kind: Op) -> None:
    b = Builder()
    x = b.input("x", [1, 8, 4])
    if kind is Op.RESHAPE:
        y = b.op(kind, [x, b.constant("shape", np.array([8, 4], np.int32))], name="y", shape=[8, 4])
    elif kind is Op.SQUEEZE:
        y = b.op(kind, [x], name="y", shape=[8, 4], squeeze_dims=np.array([0], np.int32))
    else:
        y = b.op(kind, [x, b.constant("axis", np.int32(0))], name="y", shape=[1, 1, 8, 4])
    model = b.model([y])
    assert pairs(model) == [("x", "y", 0, "view")]
    assert pairs(model, TFLITE) == []
    assert "input of the subgraph" in legal(model, TFLITE).refused[0].reason


def concatenation(
    shapes: list[tuple[int, ...]], axis: int, out: tuple[int, ...], scales: tuple[float, ...] = (), **options: Any
) -> Model:
    b = Builder()
    type = I8 if scales else F32
    inputs = [b.input(f"x{i}", shape, type, quantized(scales[i]) if scales else None) for i, shape in enumerate(shapes)]
    quantization = quantized(scales[-1]) if scales else None
    y = b.op(Op.CONCATENATION, inputs, name="y", shape=out, axis=axis, type=type, quantization=quantization, **options)
    return b.model([y])


def test_inputs_of_a_concatenation_are_parts_of_it() -> None:
    model = concatenation([(1, 2, 8), (1, 4, 8)], 1, (1, 6, 8))
    assert pairs(model) == [("x0", "y", 0, "view"), ("x1", "y", -64, "view")]
    assert pairs(concatenation([(1, 2, 8), (1, 4, 8)], -2, (1, 6, 8))) == pairs(model)
    assert pairs(model, TFLITE) == []


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (concatenation([(2, 2, 8), (2, 4, 8)], 1, (2, 6, 8)), "interleaves"),
        (concatenation([(1, 64), (1, 64)], 1, (1, 128), (0.5, 0.25, 0.5)), "quantisation differs"),
        (concatenation([(1, 3), (1, 4)], 1, (1, 7)), "not a multiple of 16"),
        (
            concatenation([(1, 16), (1, 16)], 1, (1, 32), fused_activation_function=ActivationFunctionType.RELU),
            "fused activation",
        ),
    ],
)
def test_concatenations_that_are_refused(model: Model, reason: str) -> None:
    assert any(reason in r.reason for r in legal(model).refused)


def test_the_same_tensor_twice_in_a_concatenation() -> None:
    b = Builder()
    x = b.input("x", [1, 16])
    model = b.model([b.op(Op.CONCATENATION, [x, x], name="y", shape=[1, 32], axis=1)])
    assert pairs(model) == [("x", "y", 0, "view")]
    assert "twice" in legal(model).refused[0].reason


def test_a_constant_in_a_concatenation_takes_its_place() -> None:
    b = Builder()
    x = b.input("x", [1, 16])
    c = b.constant("c", np.ones((1, 16), np.float32))
    model = b.model([b.op(Op.CONCATENATION, [c, x], name="y", shape=[1, 32], axis=1)])
    assert pairs(model) == [("x", "y", -64, "view")]


def test_parts_of_split_unpack_and_pack() -> None:
    b = Builder()
    x = b.input("x", [1, 4, 16])
    first = b.op(Op.SPLIT, [b.constant("axis", np.int32(1)), x], name="s", shape=[1, 2, 16], outputs=2, num_splits=2)
    model = b.model([first, first + 1])
    for t in (first, first + 1):
        model.subgraphs[0].tensors[t].type = F32
    assert pairs(model) == [("x", "s", 0, "view"), ("x", "s:1", 128, "view")]

    b = Builder()
    x = b.input("x", [2, 16])
    first = b.op(Op.UNPACK, [x], name="u", shape=[16], outputs=2, num=2, axis=0)
    packed = b.op(Op.PACK, [first + 1, first], name="p", shape=[2, 16], values_count=2, axis=0)
    model = b.model([packed])
    assert pairs(model) == [
        ("x", "u", 0, "view"),
        ("x", "u:1", 64, "view"),
        ("u:1", "p", 0, "view"),
        ("u", "p", -64, "view"),
    ]


def test_split_of_inner_dimensions_is_refused() -> None:
    b = Builder()
    x = b.input("x", [2, 4, 16])
    first = b.op(Op.SPLIT, [b.constant("axis", np.int32(1)), x], shape=[2, 2, 16], type=F32, outputs=2, num_splits=2)
    assert "picks from every row" in legal(b.model([first, first + 1])).refused[0].reason


@pytest.mark.parametrize(
    ("begin", "size", "out", "offset"),
    [
        ([0, 2, 0], [1, 2, 16], (1, 2, 16), 128),
        ([0, 1, 4], [1, 1, 8], (1, 1, 8), 80),
        ([0, 1, 0], [1, -1, -1], (1, 3, 16), 64),
        ([0, 0, 4], [1, 4, 8], (1, 4, 8), None),
        ([0, 0, 1], [1, 1, 8], (1, 1, 8), None),
    ],
)
def test_slices(begin: list[int], size: list[int], out: tuple[int, ...], offset: int | None) -> None:
    b = Builder()
    x = b.input("x", [1, 4, 16])
    y = b.op(Op.SLICE, [x, b.constant("begin", begin), b.constant("size", size)], name="y", shape=out)
    model = b.model([y])
    assert pairs(model) == ([] if offset is None else [("x", "y", offset, "view")])
    assert len(legal(model).refused) == (offset is None)


@pytest.mark.parametrize(
    ("begin", "end", "strides", "options", "out", "offset"),
    [
        ([0, 1, 0], [1, 3, 16], [1, 1, 1], {}, (1, 2, 16), 64),
        ([0, -2, 0], [1, 0, 0], [1, 1, 1], {"end_mask": 6}, (1, 2, 16), 128),
        ([0, 3, 0], [0, 0, 0], [1, 1, 1], {"begin_mask": 5, "end_mask": 5, "shrink_axis_mask": 2}, (1, 16), 192),
        ([0, 0, 0], [1, 4, 16], [1, 2, 1], {}, (1, 2, 16), None),
        ([0, 0, 0], [1, 4, 16], [1, 1, 1], {"new_axis_mask": 1}, (1, 1, 4, 16), None),
    ],
)
def test_strided_slices(
    begin: list[int],
    end: list[int],
    strides: list[int],
    options: dict[str, int],
    out: tuple[int, ...],
    offset: int | None,
) -> None:
    b = Builder()
    x = b.input("x", [1, 4, 16])
    bounds = [b.constant(n, v) for n, v in (("begin", begin), ("end", end), ("strides", strides))]
    model = b.model([b.op(Op.STRIDED_SLICE, [x, *bounds], name="y", shape=out, **options)])
    assert pairs(model) == ([] if offset is None else [("x", "y", offset, "view")])


def residual(kind: Op = Op.CONV_2D, *, broadcast: bool = False, twice: bool = False) -> Model:
    b = Builder()
    x = b.input("x", [1, 4, 4, 8])
    r = b.input("r", [1, 4, 4, 1 if broadcast else 8])
    c = b.op(kind, [x, b.constant("w", np.ones((8, 1, 1, 8), np.float32))], name="c", shape=[1, 4, 4, 8])
    y = b.op(Op.ADD, [r, c], name="y", shape=[1, 4, 4, 8])
    return b.model([y, c] if twice else [y])


def test_residuals_are_for_the_delegate() -> None:
    model = residual()
    assert [s for s in legal(model).shares if s.kind is ShareKind.RESIDUAL] == []
    (share,) = (s for s in legal(model, DELEGATE).shares if s.kind is ShareKind.RESIDUAL)
    graph = Graph(model)
    assert (graph.name(share.source), graph.name(share.target), graph.name(share.skipped)) == ("r", "y", "c")
    assert (share.producer, share.operator) == (0, 1)


@pytest.mark.parametrize(
    "model",
    [residual(broadcast=True), residual(twice=True), residual(Op.DEPTHWISE_CONV_2D)],
    ids=["broadcast", "product is an output", "depthwise"],
)
def test_residuals_that_are_none(model: Model) -> None:
    assert not any(s.kind is ShareKind.RESIDUAL for s in legal(model, DELEGATE).shares)


def test_tflite_shares_only_what_its_registrations_allow() -> None:
    b = Builder()
    x = b.input("x", [4, 8])
    a = b.op(Op.EXP, [x], name="a", shape=[4, 8])
    relu = b.op(Op.RELU, [a], name="relu", shape=[4, 8])
    once = b.op(Op.MUL, [relu, x], name="once", shape=[4, 8])
    softmax = b.op(Op.SOFTMAX, [once], name="softmax", shape=[4, 8])
    more = b.op(Op.ADD, [softmax, softmax], name="more", shape=[4, 8])
    y = b.op(Op.EXP, [more], name="y", shape=[4, 8])
    model = b.model([y])
    assert pairs(model, TFLITE) == [("relu", "once", 0, "in place"), ("once", "softmax", 0, "in place")]
    reasons = [r.reason for r in legal(model, TFLITE).refused]
    assert reasons == [
        "TFLite never shares an input of the subgraph",
        "TFLite shares only with an input that is read once",
    ]


def test_every_share_has_a_reason() -> None:
    for runtime in (TFLM, TFLITE, DELEGATE):
        found: list[Share] = legal(residual(), runtime).shares
        assert all(share.reason for share in found)
