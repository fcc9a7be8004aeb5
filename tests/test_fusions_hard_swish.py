"""Hard-swish and hard-sigmoid in all their spellings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import fuse, kinds, looped, operators, refusals
from spell import T, absolute, clip, fused, maximum, minimum, model, relu, relu6, tanh

from litefuse.fusions.activation import RULES as ACTIVATION
from litefuse.fusions.hard_swish import HardSigmoid, HardSwish, ReluBeforeMinimum, RoundedHardSwish
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model, read
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op

SWISH, SIGMOID = HardSwish(), HardSigmoid()
Spelling = Callable[[T], Any]


def hard_sigmoid(x: np.ndarray) -> np.ndarray:
    return np.clip(x / 6 + 0.5, 0, 1)


def hard_swish(x: np.ndarray) -> np.ndarray:
    return x * hard_sigmoid(x)


def relu6_add(x: T) -> T:
    return fused(x + 3, ActivationFunctionType.RELU6)


SPELLINGS: dict[str, Spelling] = {
    "x * relu6(x+3) / 6": lambda x: x * relu6(x + 3) / 6,
    "x * relu6(3+x) * 1/6": lambda x: x * relu6(3 + x) * (1 / 6),
    "(x/6) * relu6(x+3)": lambda x: (x / 6) * relu6(x + 3),
    "1/6 * (relu6(x+3) * x)": lambda x: (1 / 6) * (relu6(x + 3) * x),
    "x * (relu6(x+3) * 0.1666667)": lambda x: x * (relu6(x + 3) * 0.1666667),
    "fused": lambda x: relu6_add(x) * (x * (1 / 6)),
    "x * clip(x/6+.5, 0, 1)": lambda x: x * clip(x / 6 + 0.5, 0, 1),
    "clip(.5+x/6, 0, 1) * x": lambda x: minimum(maximum(0.5 + (1 / 6) * x, 0), 1) * x,
    "x * relu_0_to_1(x/6+.5)": lambda x: x * (x * (1 / 6) + 0.5).of(Op.RELU_0_TO_1),
    "x * min(relu(x+3), 6) / 6": lambda x: x * minimum(relu(x + 3), 6) / 6,
    "x * min(relu(x/6+.5), 1)": lambda x: x * minimum(fused(x / 6 + 0.5, ActivationFunctionType.RELU), 1),
    "x * (1 - relu6(3-x)/6)": lambda x: x * (1 - relu6(3 - x) / 6),
    "x * relu6(2x+6 clipped)": lambda x: x * clip(x * 2 + 6, 0, 12) / 12,
    "x * (relu_n1_to_1(x/3)+1)/2": lambda x: x * ((x * (1 / 3)).of(Op.RELU_N1_TO_1) + 1) * 0.5,
    "factors on both sides": lambda x: (x * 2) * (relu6(x + 3) / 3) * 0.25,
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    after, report = fuse(model(SPELLINGS[name]), SWISH, reference=hard_swish, bound=1e-6)
    assert kinds(after) == ["HARD_SWISH"]
    assert report.counts() == {"hard-swish": 1}


@given(st.permutations(["x", "gate", 1 / 6]), st.booleans(), st.sampled_from([1.0, 2.0, -1.0, 0.5]))
@settings(max_examples=20, deadline=None)
def test_any_order_and_grouping(factors: list[Any], right: bool, split: float) -> None:
    def spelling(x: T) -> T:
        gate = relu6(x + 3)
        terms = [{"x": x, "gate": gate}.get(f, f) if isinstance(f, str) else f / split for f in factors]
        if split != 1.0:
            terms.append(split)
        if right:
            terms.reverse()
        product = terms[0]
        for term in terms[1:]:
            product = product * term
        return product if isinstance(product, T) else x * product

    after, _ = fuse(model(spelling), SWISH, reference=hard_swish, bound=1e-6)
    assert kinds(after) == ["HARD_SWISH"]


@pytest.mark.parametrize("sixth", [0.16667, 0.1667, 0.166666])
def test_a_rounded_factor_stays(sixth: float) -> None:
    for spelling in (lambda x: x * relu6(x + 3) * sixth, lambda x: x * (relu6(x + 3) * sixth)):
        after, _ = fuse(model(spelling), SWISH, reference=lambda x: hard_swish(x) * 6 * sixth, bound=1e-6)
        assert kinds(after) == ["HARD_SWISH", "MUL"]
        (op,) = operators(after, "MUL")
        constant = after.subgraphs[0].tensors[op.inputs[1]]
        assert np.frombuffer(after.buffers[constant.buffer].data, np.float32)[0] == np.float32(6 * sixth)


def test_the_rest_of_the_factor_folds_into_what_follows() -> None:
    after, _ = fuse(model(lambda x: tanh(x * relu6(x + 3) * 0.16667 * 2)), SWISH)
    assert kinds(after) == ["HARD_SWISH", "MUL", "TANH"]


def test_inner_operators_with_other_readers() -> None:
    def spelling(x: T) -> tuple[T, T]:
        gate = relu6(x + 3)
        return x * gate / 6, absolute(gate)

    assert refusals(model(spelling), SWISH) == ["output of RELU6 #1 `relu6_1` is also read by ABS #4 `abs_4`"]
    assert refusals(model(lambda x: (lambda g: (x * g / 6, g))(relu6(x + 3))), SWISH) == [
        "output of RELU6 #1 `relu6_1` is also an output of the model"
    ]


def test_shapes_changed_by_broadcasting() -> None:
    three = np.full((2, 1, 1, 1), 3)
    reason = "a constant may change the shape by broadcasting"
    assert refusals(model(lambda x: x * relu6(x + three) / 6), SWISH) == [reason]
    assert refusals(model(lambda x: x * relu6(x + three) / 6, (-1, 4, 5, 3)), SWISH) == [reason]
    after, _ = fuse(model(lambda x: x * relu6(x + np.full((1, 1, 1, 3), 3)) / 6), SWISH)
    assert kinds(after) == ["HARD_SWISH"]


def test_dynamic_batch() -> None:
    after, _ = fuse(model(lambda x: x * relu6(x + 3) / 6, (-1, 4, 5, 3)), SWISH, reference=hard_swish)
    assert kinds(after) == ["HARD_SWISH"]
    assert after.subgraphs[0].tensors[after.subgraphs[0].outputs[0]].shape_signature == [-1, 4, 5, 3]


def test_inside_a_while_body() -> None:
    after, _ = fuse(looped(model(lambda x: x * relu6(x + 3) / 6)), SWISH)
    assert kinds(after, 2) == ["HARD_SWISH", "ADD"]


def test_two_on_one_input() -> None:
    after, report = fuse(model(lambda x: (x * relu6(x + 3) / 6, x * clip(x / 6 + 0.5, 0, 1))), SWISH)
    assert kinds(after) == ["HARD_SWISH", "HARD_SWISH"]
    assert report.counts() == {"hard-swish": 2}


def test_variables() -> None:
    m = model(lambda x: x * relu6(x + 3) / 6)
    m.subgraphs[0].tensors[m.subgraphs[0].inputs[0]].is_variable = True
    assert refusals(m, SWISH) == ["tensor `x` is a variable"]


def quantized_swish(type: TensorType, zero: int) -> Model:
    b = Builder()
    q = quantized(0.05, zero)
    dtype = {TensorType.INT8: np.int8, TensorType.UINT8: np.uint8}[type]
    x = b.input("x", [1, 4], type, q)
    three = b.constant("three", np.array(60 + zero, dtype), q)
    gate = b.op(Op.ADD, [x, three], fused_activation_function=ActivationFunctionType.RELU6)
    sixth = b.constant("sixth", np.array(1, dtype), quantized(1 / 6, 0))
    return b.model([b.op(Op.MUL, [b.op(Op.MUL, [x, gate]), sixth])])


@pytest.mark.parametrize(("type", "zero"), [(TensorType.INT8, 0), (TensorType.UINT8, 100)], ids=["int8", "uint8"])
def test_quantized_values(type: TensorType, zero: int) -> None:
    (reason,) = refusals(quantized_swish(type, zero), SWISH)
    assert reason.startswith(f"{type.name} values: each operator of the spelling rounds to a step")


NOT_HARD_SWISH: dict[str, Spelling] = {
    "another slope": lambda x: x * clip(x / 5 + 0.5, 0, 1),
    "another offset": lambda x: x * relu6(x + 2.9) / 6,
    "a rounded slope inside": lambda x: x * clip(x * 0.16667 + 0.5, 0, 1),
    "relu for relu6": lambda x: x * relu(x + 3) / 6,
    "clipped far out": lambda x: minimum(x * relu6(x + 3) / 6, 1e6),
    "another tensor gated": lambda x: tanh(x) * relu6(x + 3) / 6,
    "per channel": lambda x: x * relu6(x + np.array([3, 3, 3.1])) / 6,
    "nothing to gain": lambda x: x * fused(x + 3, ActivationFunctionType.RELU6),
    "a term more": lambda x: x * relu6(x + 3) / 6 + 1e-3,
}


@pytest.mark.parametrize("name", NOT_HARD_SWISH)
def test_leaves_other_functions(name: str) -> None:
    before = model(NOT_HARD_SWISH[name])
    found = fuse(before, SWISH)[0]
    if name in ("clipped far out", "a term more"):  # there is a hard-swish inside
        assert kinds(found)[0] == "HARD_SWISH"
        assert len(kinds(found)) == 2
    else:
        assert kinds(found) == kinds(before)


def test_two_inputs() -> None:
    assert refusals(model(lambda x, y: x * relu6(y + 3) / 6, (1, 4), (1, 4)), SWISH) == []


# -- hard-sigmoid --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: clip(x / 6 + 0.5, 0, 1),
        lambda x: minimum(maximum(0.5 + x * (1 / 6), 0), 1),
        lambda x: (x * (1 / 6) + 0.5).of(Op.RELU_0_TO_1),
        lambda x: clip(x + 3, 0, 6) / 6,
        lambda x: minimum(relu(x + 3), 6) * (1 / 6),
    ],
    ids=range(5),
)
def test_hard_sigmoid(spelling: Spelling) -> None:
    after, _ = fuse(model(spelling), SIGMOID, reference=hard_sigmoid, bound=1e-6)
    assert kinds(after) == ["ADD+RELU6", "MUL"]


def test_hard_sigmoid_that_is_short_already() -> None:
    for spelling in (lambda x: relu6(x + 3) * (1 / 6), lambda x: relu6(x + 3) / 6):
        after, _ = fuse(model(spelling), SIGMOID)
        assert kinds(after)[0] in ("ADD", "ADD+RELU6")
    assert refusals(model(lambda x: clip(x * 0.2 + 0.5, 0, 1)), SIGMOID) == []


def test_hard_swish_through_hard_sigmoid() -> None:
    after, _ = fuse(model(lambda x: x * clip(x / 6 + 0.5, 0, 1)), SIGMOID, SWISH, reference=hard_swish)
    assert kinds(after) == ["HARD_SWISH"]


# -- the order of clamps -------------------------------------------------------------------------------------------


def gate(*, first: Op, other_reader: bool = False) -> Model:
    b = Builder()
    x, y = b.input("x", [1, 4]), b.input("y", [1, 4])
    total = b.op(Op.ADD, [x, y])
    zero, one = (b.constant("c", np.float32(v)) for v in (0, 1))
    if first is Op.MINIMUM:
        out = b.op(Op.RELU, [b.op(Op.MINIMUM, [total, one])])
    else:
        out = b.op(Op.MAXIMUM, [b.op(Op.MINIMUM, [one, total]), zero])
    return b.model([out, b.op(Op.ABS, [total])] if other_reader else [out])


@pytest.mark.parametrize("first", [Op.MINIMUM, Op.MAXIMUM])
def test_relu_before_minimum(first: Op) -> None:
    after, _ = fuse(gate(first=first), ReluBeforeMinimum(), *ACTIVATION, bound=0, signed_zeros=False)
    assert kinds(after) == ["ADD+RELU", "MINIMUM"]


def test_relu_stays_where_nothing_can_apply_it() -> None:
    rule = ReluBeforeMinimum()
    assert refusals(gate(first=Op.MINIMUM, other_reader=True), rule) == []
    assert refusals(model(lambda x: relu(minimum(tanh(x), 1))), rule) == []
    assert refusals(model(lambda x: relu(minimum(x + x, -1))), rule) == []
    assert refusals(model(lambda x: relu(minimum(relu6(x + x), 1))), rule) == []
    assert refusals(model(lambda x: relu(minimum(x + x, np.ones((2, 1, 1, 1))))), rule) == []


def test_keras_models_stay(corpus: list[Path]) -> None:
    for name, expected in (("conv_hswish", ["CONV_2D", "HARD_SWISH"]), ("conv_hsigmoid", ["CONV_2D+RELU6", "MUL"])):
        after, report = fuse(read(next(p for p in corpus if p.stem == name)), SWISH, SIGMOID, ReluBeforeMinimum())
        assert kinds(after) == expected
        assert report.counts() == {}


class TestRoundedFactor:
    """1/6 written as 0.16667."""

    @staticmethod
    def model(factor: float, tail: bool = False) -> Any:
        b = Builder()
        x = b.input("x", [1, 4, 4, 8])
        y = b.op(Op.MUL, [b.op(Op.HARD_SWISH, [x]), b.constant("c", factor)], name="y")
        if tail:
            weights = b.constant("w", np.ones((4, 1, 1, 8), np.float32))
            y = b.op(Op.CONV_2D, [y, weights, b.constant("b", np.zeros(4, np.float32))], shape=[1, 4, 4, 4])
        return b.model([y])

    def test_is_dropped_where_nothing_can_take_it(self) -> None:
        after, report = fuse(self.model(0.16667 * 6), RoundedHardSwish(), bound=2.5e-5)
        assert kinds(after) == ["HARD_SWISH"]
        assert report.counts() == {"repair-hard-swish": 1}
        assert after.subgraphs[0].tensors[after.subgraphs[0].outputs[0]].name == "y"

    def test_stays_exact_where_weights_follow(self) -> None:
        assert fuse(self.model(0.16667 * 6, tail=True), RoundedHardSwish())[1].counts() == {}

    @pytest.mark.parametrize("factor", [1.001, 0.9999, 1.0001, 2.0])
    def test_other_factors_stay(self, factor: float) -> None:
        assert fuse(self.model(factor), RoundedHardSwish())[1].counts() == {}
