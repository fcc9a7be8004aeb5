"""Activations that move up through operators which only move elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rules import fuse, kinds, operators, refusals

from litefuse.fusions.sink_activation import RULES
from litefuse.graph.build import Builder, quantized
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op

(RULE,) = RULES
rng = np.random.default_rng(3)


def conv(b: Builder, name: str = "x", channels: int = 4) -> int:
    w = rng.standard_normal((channels, 1, 1, 2)).astype(np.float32)
    return b.op(
        Op.CONV_2D, [b.input(name, [1, 4, 4, 2]), b.constant("w", w), b.constant("b", np.ones(channels, np.float32))]
    )


MOVES: dict[str, Any] = {
    "RESHAPE": lambda b, y: b.op(Op.RESHAPE, [y, b.constant("shape", [4, 16])]),
    "EXPAND_DIMS": lambda b, y: b.op(Op.EXPAND_DIMS, [y, b.constant("axis", 0)]),
    "SQUEEZE": lambda b, y: b.op(Op.SQUEEZE, [y], squeeze_dims=[0]),
    "TRANSPOSE": lambda b, y: b.op(Op.TRANSPOSE, [y, b.constant("order", [0, 3, 1, 2])]),
    "SPACE_TO_DEPTH": lambda b, y: b.op(Op.SPACE_TO_DEPTH, [y], block_size=2),
    "DEPTH_TO_SPACE": lambda b, y: b.op(Op.DEPTH_TO_SPACE, [y], block_size=2),
    "REVERSE_V2": lambda b, y: b.op(Op.REVERSE_V2, [y, b.constant("axis", [1])]),
    "RESIZE_NEAREST_NEIGHBOR": lambda b, y: b.op(Op.RESIZE_NEAREST_NEIGHBOR, [y, b.constant("size", [7, 3])]),
}


@pytest.mark.parametrize("activation", [Op.RELU, Op.RELU6, Op.RELU_N1_TO_1])
@pytest.mark.parametrize("move", MOVES)
def test_through(move: str, activation: Op) -> None:
    b = Builder()
    after, _ = fuse(b.model([b.op(activation, [MOVES[move](b, conv(b))])]), RULE)
    assert kinds(after) == [f"CONV_2D+{activation.name}", move]


def test_every_input_of_a_concatenation_takes_it() -> None:
    b = Builder()
    pooled = b.op(Op.MAX_POOL_2D, [b.input("p", [1, 4, 4, 3])])
    y = b.op(Op.CONCATENATION, [conv(b), b.op(Op.RESHAPE, [pooled, b.constant("s", [1, 4, 4, 3])])], axis=3)
    after, _ = fuse(b.model([b.op(Op.RELU, [y])]), RULE)
    assert kinds(after) == ["MAX_POOL_2D+RELU", "CONV_2D+RELU", "RESHAPE", "CONCATENATION"]


def test_one_input_that_cannot_take_it_stops_it() -> None:
    b = Builder()
    y = b.op(Op.CONCATENATION, [conv(b), b.input("z", [1, 4, 4, 2])], axis=3)
    assert refusals(b.model([b.op(Op.RELU, [y])]), RULE) == []
    b = Builder()
    y = b.op(Op.CONCATENATION, [conv(b), b.op(Op.EXP, [conv(b, "z")])], axis=3)
    assert refusals(b.model([b.op(Op.RELU, [y])]), RULE) == []


def test_other_readers_are_named() -> None:
    b = Builder()
    c = conv(b)
    y = b.op(Op.RESHAPE, [c, b.constant("s", [4, 16])])
    (reason,) = refusals(b.model([b.op(Op.RELU, [y]), b.op(Op.EXP, [c])]), RULE)
    assert reason == "output of CONV_2D #0 `conv_2d_0` is also read by EXP #3 `exp_3`"
    b = Builder()
    y = b.op(Op.RESHAPE, [conv(b), b.constant("s", [4, 16])])
    (reason,) = refusals(b.model([b.op(Op.RELU, [y]), y]), RULE)
    assert "also an output of the model" in reason


def test_quantized_tensors_are_left_alone() -> None:
    b = Builder()
    x = b.input("x", [1, 4], TensorType.INT8, quantized(0.1))
    y = b.op(Op.RESHAPE, [b.op(Op.ADD, [x, x], version=2), b.constant("s", [4, 1])])
    assert refusals(b.model([b.op(Op.RELU, [y], version=2)]), RULE) == []


def test_transpose_conv_gets_the_version_that_has_activations() -> None:
    b = Builder()
    x = b.input("x", [1, 2, 2, 3])
    w = b.constant("w", rng.standard_normal((4, 2, 2, 3)).astype(np.float32))
    y = b.op(
        Op.TRANSPOSE_CONV, [b.constant("shape", [1, 4, 4, 4]), w, x], stride_h=2, stride_w=2, type=TensorType.FLOAT32
    )
    after, _ = fuse(b.model([b.op(Op.RELU, [b.op(Op.RESHAPE, [y, b.constant("s", [64])])])]), RULE)
    (op,) = operators(after, "TRANSPOSE_CONV")
    assert after.operator_codes[op.opcode_index].version == 4
