"""QUANTIZE and DEQUANTIZE that merge, move or go: exact for every number, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rules import fuse, kinds, looped, operators, refusals

from litefuse.fusions import duplicates, identity, quantization
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op

RULES = (*identity.RULES, *quantization.RULES)
PAIR, TWICE, MOVES, DIVISION, JOIN = quantization.RULES
INT8, UINT8, INT16, FLOAT = TensorType.INT8, TensorType.UINT8, TensorType.INT16, TensorType.FLOAT32
Q = quantized(0.05, -10)
rng = np.random.default_rng(2)


def every(b: Builder, type: TensorType = INT8, q: Any = Q, shape: tuple[int, ...] = (1, 256), name: str = "x") -> int:
    """An input that the case "ramp" fills with every value."""
    return b.input(name, list(shape), type, q)


def dequantize(b: Builder, x: int, **options: Any) -> int:
    return b.op(Op.DEQUANTIZE, [x], type=FLOAT, version=2, **options)


def quantize(b: Builder, x: int, type: TensorType = INT8, q: Any = Q, **options: Any) -> int:
    return b.op(Op.QUANTIZE, [x], type=type, quantization=q, version=2, **options)


def move(b: Builder, x: int) -> int:
    """An operator that keeps a result from being the input of the graph itself."""
    return b.op(Op.RESHAPE, [x, b.constant("flat", [-1])])


# -- DEQUANTIZE and QUANTIZE ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", [INT8, UINT8])
@pytest.mark.parametrize("shift", [-5, 1, 90])
def test_pair_of_one_scale_moves_the_zero_point(type: TensorType, shift: int) -> None:
    b = Builder()
    x = every(b, type, quantized(0.03, 20))
    model = b.model([quantize(b, dequantize(b, x), type, quantized(0.03, 20 + shift))])
    after, report = fuse(model, *RULES)
    assert kinds(after) == ["QUANTIZE"]
    assert report.counts() == {PAIR.name: 1}


def test_equal_encodings_are_the_clean_up_rules() -> None:
    b = Builder()
    y = move(b, quantize(b, dequantize(b, every(b))))
    after, report = fuse(b.model([y]), *RULES)
    assert kinds(after) == ["RESHAPE"]
    assert report.counts() == {"cancel-pairs": 1}


@pytest.mark.parametrize("ratio", [0.9, 1.1, 1.7, 0.37])
def test_pair_of_other_scales_is_refused_when_values_differ(ratio: float) -> None:
    b = Builder()
    model = b.model([quantize(b, dequantize(b, every(b)), q=quantized(0.05 * ratio, -10))])
    (reason,) = refusals(model, *RULES)
    assert "of 256 values would come out differently with some kernels" in reason or "halfway" in reason


def test_pair_of_other_scales_that_agrees_is_merged() -> None:
    # Ratios of 2 and more need no rounding at all.
    b = Builder()
    model = b.model([quantize(b, dequantize(b, every(b)), q=quantized(0.0125, 3))])
    after, _ = fuse(model, *RULES)
    assert kinds(after) == ["QUANTIZE"]


def test_pair_of_two_types_is_refused() -> None:
    b = Builder()
    model = b.model([quantize(b, dequantize(b, every(b)), UINT8, quantized(0.05, 118))])
    (reason,) = refusals(model, *RULES)
    assert reason.startswith("XNNPACK does not convert INT8 to UINT8")
    b = Builder()
    x = every(b, INT16, quantized(0.1))
    (reason,) = refusals(b.model([quantize(b, dequantize(b, x), INT16, quantized(0.025))]), *RULES)
    assert reason.startswith("XNNPACK does not convert INT16")


def test_float16_and_scales_per_channel_are_left_alone() -> None:
    b = Builder()
    half = b.input("x", [4], TensorType.FLOAT16)
    y = quantize(b, b.op(Op.DEQUANTIZE, [half], type=FLOAT, version=3))
    assert refusals(b.model([y]), *RULES) == []
    b = Builder()
    x = b.input("x", [2, 3], INT8, quantized([0.1, 0.2]))
    y = quantize(b, dequantize(b, x, shape=[2, 3]), shape=[2, 3])
    assert refusals(b.model([y]), *RULES) == []


def test_shared_dequantize_of_equal_tensors_is_one() -> None:
    b = Builder()
    x = every(b)
    y = b.op(Op.ADD, [b.op(Op.TANH, [dequantize(b, x)]), b.op(Op.EXP, [dequantize(b, x)])])
    after, _ = fuse(b.model([y]), *duplicates.RULES)
    assert kinds(after) == ["DEQUANTIZE", "TANH", "EXP", "ADD"]


# -- two in succession ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "third"),
    [
        ((INT8, 0.05, -10), (UINT8, 0.05, 118), (INT8, 0.05, 3)),
        ((UINT8, 0.05, 118), (INT8, 0.05, -10), (UINT8, 0.0125, 7)),
        ((INT8, 0.05, -10), (INT16, 0.0005, 0), (INT8, 0.05, 20)),
        ((INT16, 0.05, 0), (INT16, 0.05, 0), (INT8, 0.05, 5)),
    ],
)
def test_two_become_one(first: Any, second: Any, third: Any) -> None:
    b = Builder()
    size = 65536 if first[0] == INT16 else 256
    y = every(b, first[0], quantized(*first[1:]), (1, size))
    for type, scale, point in (second, third):
        y = quantize(b, y, type, quantized(scale, point))
    after, _ = fuse(b.model([y]), *RULES)
    assert kinds(after) == ["QUANTIZE"]


def test_two_that_undo_each_other_go() -> None:
    b = Builder()
    y = quantize(b, every(b), UINT8, quantized(0.05, 118))
    after, report = fuse(b.model([move(b, quantize(b, y))]), *RULES)
    assert kinds(after) == ["RESHAPE"]
    assert report.counts() == {TWICE.name: 1}


def test_finer_steps_between_lose_nothing() -> None:
    b = Builder()
    y = quantize(b, every(b), INT16, quantized(0.0005, 0))
    after, _ = fuse(b.model([move(b, quantize(b, y))]), *RULES)
    assert kinds(after) == ["RESHAPE"]


def test_two_that_undo_each_other_between_input_and_output_stay() -> None:
    b = Builder()
    y = quantize(b, every(b), UINT8, quantized(0.05, 118))
    (reason,) = refusals(b.model([quantize(b, y)]), TWICE)
    assert "both at the edge of the graph" in reason


@pytest.mark.parametrize("middle", [(INT8, 0.2, -10), (INT8, 0.05, 100), (UINT8, 0.04, 118)])
def test_two_that_round_or_limit_in_between_are_refused(middle: Any) -> None:
    b = Builder()
    y = quantize(b, every(b), middle[0], quantized(*middle[1:]))
    (reason,) = refusals(b.model([quantize(b, y, q=quantized(0.05, -9))]), *RULES)
    assert "of 256 values would come out differently" in reason


def test_floats_are_left_alone() -> None:
    b = Builder()
    y = quantize(b, quantize(b, b.input("x", [1, 64])), UINT8, quantized(0.05, 118))
    assert refusals(b.model([y]), *RULES) == []


# -- above operators that move elements ----------------------------------------------------------------------------

SHAPE = (1, 8, 8, 4)
MOVERS: dict[str, Callable[[Builder, int], int]] = {
    "reshape": lambda b, x: b.op(Op.RESHAPE, [x, b.constant("s", [16, 16])]),
    "squeeze": lambda b, x: b.op(Op.SQUEEZE, [x], squeeze_dims=[0]),
    "expand": lambda b, x: b.op(Op.EXPAND_DIMS, [x, b.constant("axis", 1)]),
    "transpose": lambda b, x: b.op(Op.TRANSPOSE, [x, b.constant("order", [0, 3, 1, 2])]),
    "concatenation": lambda b, x: b.op(Op.CONCATENATION, [x, x], axis=1),
    "pack": lambda b, x: b.op(Op.PACK, [x, x], axis=0, values_count=2),
    "pad": lambda b, x: b.op(Op.PAD, [x, b.constant("pads", [[0, 0], [1, 2], [0, 1], [0, 0]])]),
    "slice": lambda b, x: b.op(Op.SLICE, [x, b.constant("at", [0, 1, 2, 0]), b.constant("size", [1, 5, 3, 4])]),
    "strided": lambda b, x: b.op(
        Op.STRIDED_SLICE, [x, *(b.constant(n, v) for n, v in (("i", [0] * 4), ("j", [*SHAPE]), ("k", [1, 2, 2, 1])))]
    ),
    "gather": lambda b, x: b.op(Op.GATHER, [x, b.constant("at", [3, 0, 7])], axis=1),
    "tile": lambda b, x: b.op(Op.TILE, [x, b.constant("times", [1, 2, 1, 1])]),
    "reverse": lambda b, x: b.op(Op.REVERSE_V2, [x, b.constant("axes", [2])]),
    "nearest": lambda b, x: b.op(Op.RESIZE_NEAREST_NEIGHBOR, [x, b.constant("size", [16, 11])]),
    "depth to space": lambda b, x: b.op(Op.DEPTH_TO_SPACE, [x], block_size=2),
    "space to depth": lambda b, x: b.op(Op.SPACE_TO_DEPTH, [x], block_size=2),
    "batch to space": lambda b, x: b.op(
        Op.BATCH_TO_SPACE_ND,
        [
            b.op(Op.RESHAPE, [x, b.constant("blocks", [4, 4, 4, 4])]),
            b.constant("block", [2, 2]),
            b.constant("crops", [[0, 0], [0, 1]]),
        ],
    ),
    "max pool": lambda b, x: b.op(Op.MAX_POOL_2D, [x], filter_height=3, filter_width=2, stride_h=2),
}


@pytest.mark.parametrize("type", [INT8, UINT8])
@pytest.mark.parametrize("what", MOVERS)
def test_movers_between_pairs_of_one_encoding(what: str, type: TensorType) -> None:
    b = Builder()
    q = quantized(0.05, 20)
    y = quantize(b, MOVERS[what](b, dequantize(b, every(b, type, q, SHAPE))), type, q)
    after, report = fuse(b.model([y]), *RULES)
    assert not {"QUANTIZE", "DEQUANTIZE"} & set(kinds(after))
    assert MOVES.name in report.counts()


@pytest.mark.parametrize("what", ["concatenation", "max pool", "pad"])
def test_movers_between_pairs_of_one_scale(what: str) -> None:
    b = Builder()
    y = quantize(b, MOVERS[what](b, dequantize(b, every(b, INT8, Q, SHAPE))), q=quantized(0.05, 4))
    after, _ = fuse(b.model([y]), *RULES)
    assert sorted(kinds(after))[-1] == "QUANTIZE"
    assert "DEQUANTIZE" not in kinds(after)


def test_chain_of_movers_with_a_constant() -> None:
    b = Builder()
    y = MOVERS["transpose"](b, dequantize(b, every(b, INT8, Q, SHAPE)))
    ones = b.constant("c", np.array([0.0, 0.051, -0.3, 9.0] * 16, np.float32).reshape(1, 1, 8, 8))
    y = b.op(Op.CONCATENATION, [y, ones, y], axis=1)
    y = quantize(b, MOVERS["nearest"](b, y))
    after, _ = fuse(b.model([y]), *RULES)
    assert kinds(after) == ["TRANSPOSE", "CONCATENATION", "RESIZE_NEAREST_NEIGHBOR"]


def test_movers_between_two_conversions_of_integers() -> None:
    b = Builder()
    y = quantize(b, every(b, UINT8, quantized(0.05, 118), SHAPE), INT8, Q)
    c = b.constant("c", rng.integers(-128, 128, (1, 3, 8, 4), np.int8), Q)
    y = b.op(Op.CONCATENATION, [y, c], axis=1, version=2)
    after, _ = fuse(b.model([quantize(b, y, UINT8, quantized(0.05, 118))]), *RULES)
    assert kinds(after) == ["CONCATENATION"]


def test_body_of_a_loop() -> None:
    b = Builder()
    y = quantize(b, b.op(Op.REVERSE_V2, [dequantize(b, every(b)), b.constant("axis", [1])]))
    after, _ = fuse(looped(b.model([y])), *RULES, cases=("ramp",))
    assert kinds(after, 2) == ["REVERSE_V2", "ADD"]


def test_dynamic_batch() -> None:
    b = Builder()
    y = b.op(Op.SQUEEZE, [dequantize(b, b.input("x", [-1, 1, 8], INT8, Q))], squeeze_dims=[1])
    after, _ = fuse(b.model([quantize(b, y)]), *RULES)
    assert kinds(after) == ["SQUEEZE"]
    assert after.subgraphs[0].tensors[after.subgraphs[0].outputs[0]].shape_signature == [-1, 8]


def test_other_readers_of_the_integers_do_not_matter() -> None:
    b = Builder()
    x = every(b, INT8, Q, SHAPE)
    f = dequantize(b, x)
    after, _ = fuse(b.model([quantize(b, MOVERS["nearest"](b, f)), b.op(Op.TANH, [f])]), *RULES)
    assert kinds(after) == ["DEQUANTIZE", "RESIZE_NEAREST_NEIGHBOR", "TANH"]


def test_other_readers_of_moved_floats_are_named() -> None:
    b = Builder()
    y = MOVERS["nearest"](b, dequantize(b, every(b, INT8, Q, SHAPE)))
    (reason,) = refusals(b.model([quantize(b, y), b.op(Op.TANH, [y])]), MOVES)
    assert reason == "output of RESIZE_NEAREST_NEIGHBOR #1 `resize_nearest_neighbor_1` is also read by TANH #3 `tanh_3`"


def test_another_scale_below_is_refused() -> None:
    b = Builder()
    y = quantize(b, MOVERS["nearest"](b, dequantize(b, every(b, INT8, Q, SHAPE))), q=quantized(0.06, -10))
    (reason,) = refusals(b.model([y]), MOVES)
    assert reason.startswith("DEQUANTIZE #0 `dequantize_0` does not merge with it: ")


def test_constant_between_two_values_is_refused() -> None:
    b = Builder()
    y = dequantize(b, every(b, INT8, quantized(0.5, 0), (1, 4)))
    y = b.op(Op.CONCATENATION, [y, b.constant("c", np.array([[0.25]], np.float32))], axis=1)
    (reason,) = refusals(b.model([quantize(b, y, q=quantized(0.5, 0))]), MOVES)
    assert "`c` holds values halfway between two others" in reason


@pytest.mark.parametrize("what", ["mirror", "computed", "activation", "constants only", "not finite"])
def test_what_is_left_alone(what: str) -> None:
    b = Builder()
    x = dequantize(b, every(b, INT8, Q, SHAPE))
    if what == "mirror":
        y = b.op(Op.MIRROR_PAD, [x, b.constant("pads", [[0, 0], [1, 1], [1, 1], [0, 0]])])
    elif what == "computed":
        y = b.op(Op.CONCATENATION, [x, b.op(Op.TANH, [x])], axis=1)
    elif what == "activation":
        y = b.op(Op.MAX_POOL_2D, [x], fused_activation_function=ActivationFunctionType.RELU)
    elif what == "constants only":
        y = b.op(Op.CONCATENATION, [b.constant("c", np.ones((1, 4), np.float32))] * 2, axis=1)
    else:
        c = np.full((1, 8, 8, 4), np.nan, np.float32)
        y = b.op(Op.CONCATENATION, [x, b.constant("c", c)], axis=1)
    found = refusals(b.model([quantize(b, y), b.op(Op.TANH, [x])]), *quantization.RULES)
    assert found == [] or what == "not finite"


# -- before and behind ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [FLOAT, INT8])
@pytest.mark.parametrize("how", ["split", "split into sizes", "unpack"])
def test_all_parts_are_quantized_at_once(source: TensorType, how: str) -> None:
    b = Builder()
    x = b.input("x", [3, 64], source, None if source == FLOAT else Q)
    if how == "split":
        inputs, kind, options = [b.constant("axis", 1), x], Op.SPLIT, {"num_splits": 2}
    elif how == "split into sizes":
        inputs = [x, b.constant("sizes", [24, 40]), b.constant("axis", 1)]
        kind, options = Op.SPLIT_V, {"num_splits": 2}
    else:
        inputs, kind, options = [x], Op.UNPACK, {"num": 3}
    count = 3 if how == "unpack" else 2
    q = None if source == FLOAT else Q
    first = b.op(kind, inputs, outputs=count, type=source, quantization=q, version=2, **options)
    model = b.model([quantize(b, first + i, q=quantized(0.07, 5)) for i in range(count)])
    after, report = fuse(model, *RULES)
    assert kinds(after) == ["QUANTIZE", kind.name]
    assert report.counts() == {DIVISION.name: 1}


def split(b: Builder, x: int) -> int:
    return b.op(Op.SPLIT, [b.constant("axis", 1), x], outputs=2, num_splits=2, type=FLOAT)


def test_parts_of_different_scales_are_left_alone() -> None:
    b = Builder()
    first = split(b, b.input("x", [3, 64]))
    model = b.model([quantize(b, first + i, q=quantized(0.07 + i, 5)) for i in range(2)])
    assert refusals(model, *RULES) == []


def test_part_that_is_read_as_it_is_is_refused() -> None:
    b = Builder()
    first = split(b, b.input("x", [3, 64]))
    model = b.model([*(quantize(b, first + i) for i in range(2)), b.op(Op.TANH, [first + 1])])
    (reason,) = refusals(model, DIVISION)
    assert "is also read by TANH #3" in reason


@pytest.mark.parametrize("target", [(INT8, 0.07, 5), (UINT8, 0.05, 118)])
@pytest.mark.parametrize("kind", [Op.CONCATENATION, Op.PACK])
def test_joined_before_they_are_quantized(kind: Op, target: Any) -> None:
    b = Builder()
    parts = [quantize(b, every(b, name=name), target[0], quantized(*target[1:])) for name in "xyz"]
    options: dict[str, Any] = {"axis": 1} if kind == Op.CONCATENATION else {"axis": 0, "values_count": 3}
    y = b.op(kind, parts, version=2 if target[0] == INT8 else 1, **options)
    after, report = fuse(b.model([y]), *RULES)
    assert kinds(after) == [kind.name, "QUANTIZE"]
    assert report.counts() == {JOIN.name: 1}


def joined(b: Builder, second: Any, *, first: Any = Q) -> Model:
    parts = [
        quantize(b, every(b, INT8, q, name=name), q=quantized(0.07, 5)) for name, q in (("x", first), ("y", second))
    ]
    return b.model([b.op(Op.CONCATENATION, parts, axis=1, version=2)])


def test_joins_of_different_scales_are_left_alone() -> None:
    assert refusals(joined(Builder(), quantized(0.06, -10)), *RULES) == []


def test_floats_are_not_joined_first() -> None:
    b = Builder()
    parts = [quantize(b, b.input(name, [1, 8])) for name in "xy"]
    assert refusals(b.model([b.op(Op.CONCATENATION, parts, axis=1, version=2)]), *RULES) == []


def test_join_with_another_reader_is_refused() -> None:
    b = Builder()
    parts = [quantize(b, every(b, name=name), q=quantized(0.07, 5)) for name in "xy"]
    y = b.op(Op.CONCATENATION, parts, axis=1, version=2)
    (reason,) = refusals(b.model([y, move(b, parts[0])]), JOIN)
    assert "is also read by RESHAPE #3" in reason


def test_versions_know_int8() -> None:
    b = Builder()
    y = quantize(b, MOVERS["tile"](b, dequantize(b, every(b, INT8, Q, SHAPE))))
    after, _ = fuse(b.model([y]), *RULES)
    (op,) = operators(after, "TILE")
    assert after.operator_codes[op.opcode_index].version == 3
