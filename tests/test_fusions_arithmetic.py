"""Signs, powers, squares and chains of constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import FLOAT_CASES, assert_same, fuse, kinds, looped, operators, refusals, results
from spell import T, absolute, fused, greater, model, select, sigmoid, square, tanh

from litefuse.fusions import Numerics
from litefuse.fusions.arithmetic import (
    RULES,
    AffineChain,
    DivideByConstant,
    EvenOfNegated,
    NegatedOperand,
    Negation,
    Power,
    SquaredDifference,
)
from litefuse.fusions.identity import RULES as IDENTITY
from litefuse.graph.build import Builder, quantized
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op

SIGN, CHAIN, POWER, DIFFERENCE = NegatedOperand(), AffineChain(), Power(), SquaredDifference()
Spelling = Callable[..., Any]
PAIR = ((2, 5), (2, 5))


# -- signs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        (lambda x, y: x + -y, ["SUB"]),
        (lambda x, y: -x + y, ["SUB"]),
        (lambda x, y: x - -y, ["ADD"]),
        (lambda x, y: x + y * -1, ["SUB"]),
        (lambda x, y: x - y / -1, ["ADD"]),
        (lambda x, y: x + -1 * y, ["SUB"]),
        (lambda x, y: -x * -y, ["MUL"]),
        (lambda x, y: (-x * 3) + y, ["MUL", "ADD"]),
        (lambda x, y: fused(x + -y, ActivationFunctionType.RELU), ["SUB+RELU"]),
    ],
    ids=range(9),
)
def test_signs(spelling: Spelling, expected: list[str]) -> None:
    before = model(spelling, *PAIR)
    after, _ = fuse(before, SIGN)
    assert kinds(after) == expected
    assert_same(before, after, Numerics.EXACT, nonfinite=True, xnnpack=[False])
    exact = [case for case in FLOAT_CASES if case != "subnormals"]
    assert_same(before, after, Numerics.EXACT, cases=exact, xnnpack=[True], signed_zeros=False)


def test_negation_of_a_constant_factor() -> None:
    after, _ = fuse(model(lambda x: -x * np.array([1, 2, -3])), SIGN)
    assert kinds(after) == ["MUL"]
    (op,) = operators(after, "MUL")
    constant = after.subgraphs[0].tensors[op.inputs[1]]
    assert np.frombuffer(after.buffers[constant.buffer].data, np.float32).tolist() == [-1, -2, 3]


def test_a_negation_with_other_readers_stays() -> None:
    after, _ = fuse(model(lambda x, y: (lambda n: (x + n, tanh(n)))(-y), *PAIR), SIGN)
    assert kinds(after) == ["NEG", "SUB", "TANH"]


def test_signs_with_broadcasting_of_five_dimensions() -> None:
    after, _ = fuse(model(lambda x, y: x + -y, (2, 1, 2, 2, 3), (1, 2, 1, 1, 3)), SIGN)
    assert kinds(after) == ["SUB"]
    code = after.operator_codes[operators(after, "SUB")[0].opcode_index]
    assert code.version == 3


def test_signs_leave_the_rest() -> None:
    for spelling in (
        lambda x, y: -x - y,
        lambda x, y: -x * y,
        lambda x, y: -x / -y,  # where y is 0, its sign decides that of the quotient
        lambda x, y: x + y * -1.5,
        lambda x, y: x + fused(y * -1, ActivationFunctionType.RELU),
        lambda x, y: x + y * np.full((3, 1, 1), -1),
        lambda x, y: x + -1 / (absolute(y) + 1),
    ):
        assert refusals(model(spelling, *PAIR), SIGN) == []
    b = Builder()
    x, y = b.input("x", [1, 4], TensorType.INT32), b.input("y", [1, 4], TensorType.INT32)
    assert refusals(b.model([b.op(Op.ADD, [x, b.op(Op.NEG, [y])])]), SIGN) == []
    b = Builder()
    q = quantized(0.1, 0)
    x, y = b.input("x", [1, 4], TensorType.INT8, q), b.input("y", [1, 4], TensorType.INT8, q)
    minus = b.op(Op.MUL, [y, b.constant("c", np.array(-1, np.int8), quantized(1.0))])
    assert refusals(b.model([b.op(Op.ADD, [x, minus])]), *RULES) == []


@pytest.mark.parametrize("kind", [Op.ABS, Op.SQUARE, Op.COS])
def test_even_functions(kind: Op) -> None:
    before = model(lambda x: (-x).of(kind))
    after, _ = fuse(before, EvenOfNegated(), cases=["normal", "wide", "specials"])
    assert kinds(after) == [kind.name]
    assert_same(before, after, Numerics.EXACT, nonfinite=True, xnnpack=[False])
    assert refusals(model(lambda x: (-x).of(Op.SIN)), EvenOfNegated()) == []


def test_negation() -> None:
    rule = Negation()
    after, _ = fuse(model(lambda x: 0 - x), rule)
    assert kinds(after) == ["NEG"]
    after, _ = fuse(model(lambda x, y: -(x - y), *PAIR), rule)
    assert kinds(after) == ["SUB"]
    assert refusals(model(lambda x, y: (lambda d: (-d, tanh(d)))(x - y), *PAIR), rule) == [
        "output of SUB #0 `sub_0` is also read by TANH #2 `tanh_2`"
    ]
    for spelling in (
        lambda x: 1 - x,
        lambda x: np.zeros((2, 1, 1, 1)) - x,
        lambda x: fused(0 - x, ActivationFunctionType.RELU),
        lambda x: -fused(x - 1, ActivationFunctionType.RELU),
    ):
        assert refusals(model(spelling), rule) == []


# -- powers --------------------------------------------------------------------------------------------------------

POWERS = {
    2: ["MUL"],
    3: ["MUL"] * 2,
    4: ["MUL"] * 2,
    5: ["MUL"] * 3,
    6: ["MUL"] * 3,
    0.5: ["SQRT"],
    1.5: ["SQRT", "MUL"],
    0.25: ["SQRT"] * 2,
    -0.5: ["RSQRT"],
    -1: ["DIV"],
    -2: ["MUL", "DIV"],
    1: ["MUL"],
}


@pytest.mark.parametrize("exponent", POWERS)
def test_powers(exponent: float) -> None:
    m = model(lambda x: (absolute(x) + 0.01) ** exponent)
    cases = ("normal", "zeros") if exponent < 0 else ("normal", "zeros", "wide")
    after, _ = fuse(m, POWER, reference=lambda x: (np.abs(x) + np.float32(0.01)) ** exponent, cases=cases, bound=1e-6)
    assert kinds(after) == ["ABS", "ADD", *POWERS[exponent]]


@pytest.mark.parametrize("exponent", [2, 3, 4, 5, 6])
def test_powers_of_negative_numbers(exponent: float) -> None:
    after, _ = fuse(model(lambda x: x**exponent), POWER, reference=lambda x: x**exponent, cases=["normal"], bound=1e-6)
    assert kinds(after) == POWERS[exponent]


def test_powers_that_stay() -> None:
    for spelling in (
        lambda x: absolute(x) ** 2.5,
        lambda x: x**7,
        lambda x: x ** np.array([2, 2, 3]),
        lambda x: T(x.builder, x.to(2.0)) ** x,
        lambda x: x**x,
    ):
        assert refusals(model(spelling), POWER) == []
    assert refusals(model(lambda x: x ** np.full((2, 1, 1, 1), 2)), POWER) == [
        "a constant may change the shape by broadcasting"
    ]


@pytest.mark.parametrize("exponent", [-0.5, -1, -2])
def test_negative_powers_of_what_may_be_zero_stay(exponent: float) -> None:
    reason = "`x` may be 0, for which POW gives infinity and other operators do not"
    assert refusals(model(lambda x: x**exponent), POWER) == [reason]
    after, _ = fuse(model(lambda x: (x.of(Op.LOGISTIC) + 1) ** exponent), POWER, cases=["normal", "zeros"])
    assert "POW" not in kinds(after)


def test_power_of_one_goes_away() -> None:
    after, _ = fuse(model(lambda x: tanh(tanh(x) ** 1)), POWER, *IDENTITY, cases=["normal"])
    assert kinds(after) == ["TANH", "TANH"]


@pytest.mark.parametrize(
    "spelling",
    [lambda x, y: square(x - y), lambda x, y: (lambda d: d * d)(x - y)],
    ids=range(2),
)
@pytest.mark.parametrize("other", [(2, 5), (2, 1), (1, 5), (5,)], ids=str)
def test_squared_difference(spelling: Spelling, other: tuple[int, ...]) -> None:
    after, _ = fuse(model(spelling, (2, 5), other), DIFFERENCE)
    assert kinds(after) == ["SQUARED_DIFFERENCE"]


def test_squared_difference_beyond_the_largest_float() -> None:
    """As documented: the builtin kernels' arithmetic stops there."""
    x = np.array([[1e30, np.inf, np.nan]], np.float32)
    after, _ = fuse(model(lambda x: (lambda d: d * d)(x - 1), (1, 3)), DIFFERENCE, cases=["normal"])
    for xnnpack in (False, True):
        assert results(after, x, xnnpack=xnnpack)[0][0].tolist() == pytest.approx([np.inf, np.inf, np.nan], nan_ok=True)


def test_squared_difference_of_unknown_batch() -> None:
    after, _ = fuse(model(lambda x: square(x - 1), (2, 5)), DIFFERENCE)
    assert kinds(after) == ["SQUARED_DIFFERENCE"]
    assert refusals(model(lambda x: square(x - 1), (-1, 5)), DIFFERENCE) == []


def test_squared_difference_that_stays() -> None:
    assert refusals(model(lambda x, y: (lambda d: (square(d), tanh(d)))(x - y), *PAIR), DIFFERENCE) == []
    assert refusals(model(lambda x, y: (x - y) * (x - y), *PAIR), DIFFERENCE) == []
    assert refusals(model(lambda x, y: square(x + y), *PAIR), DIFFERENCE) == []
    assert refusals(model(lambda x, y: square(fused(x - y, ActivationFunctionType.RELU)), *PAIR), DIFFERENCE) == []
    assert refusals(model(lambda x, y: square(x - y), (1, 2, 1, 2, 2), (1, 1, 1, 2, 1)), DIFFERENCE) == []


# -- chains --------------------------------------------------------------------------------------------------------

CHANNELS = np.array([1.5, -2, 0.25])


@pytest.mark.parametrize(
    ("spelling", "expected", "function"),
    [
        (lambda x: x * 2 * 3, ["MUL"], lambda x: x * 6),
        (lambda x: x + 2 + 3, ["ADD"], lambda x: x + 5),
        (lambda x: x / 2 * 3, ["MUL"], lambda x: x * 1.5),
        (lambda x: x + 2 - 3, ["ADD"], lambda x: x - 1),
        (lambda x: (x * 2 + 1) * 3, ["MUL", "ADD"], lambda x: x * 6 + 3),
        (lambda x: (x + 1) * 3 - 2, ["MUL", "ADD"], lambda x: x * 3 + 1),
        (lambda x: 1 - (1 - x), ["MUL"], lambda x: x),
        (lambda x: (x / 127.5 - 1) * 2 + 3, ["MUL", "ADD"], lambda x: x / 63.75 + 1),
        (lambda x: (x * CHANNELS + 1) * 2, ["MUL", "ADD"], lambda x: x * CHANNELS * 2 + 2),
        (lambda x: (x * 2 + CHANNELS) * CHANNELS, ["MUL", "ADD"], lambda x: (x * 2 + CHANNELS) * CHANNELS),
        (lambda x: (x * 2 + 1) / 2 - 0.5, ["MUL"], lambda x: x),
    ],
    ids=range(11),
)
def test_chains(spelling: Spelling, expected: list[str], function: Callable[..., Any]) -> None:
    after, _ = fuse(model(spelling), CHAIN, reference=function, cases=("normal", "zeros", "specials"), bound=1e-6)
    assert kinds(after) == expected
    assert refusals(after, CHAIN) == []


@given(
    st.lists(st.tuples(st.sampled_from("+-*/"), st.sampled_from([0.5, 2.0, 3.0, -1.25, 0.1])), min_size=3, max_size=6)
)
@settings(max_examples=15, deadline=None)
def test_any_chain(links: list[tuple[str, float]]) -> None:
    def apply(x: Any) -> Any:
        for sign, number in links:
            number = float(np.float32(number))
            x = {"+": lambda v, n: v + n, "-": lambda v, n: v - n, "*": lambda v, n: v * n, "/": lambda v, n: v / n}[
                sign
            ](x, number)
        return x

    after, _ = fuse(model(apply), CHAIN, reference=apply, cases=("normal", "zeros"), bound=1e-5)
    assert len(kinds(after)) <= 2


def test_chain_keeps_the_last_activation() -> None:
    after, _ = fuse(model(lambda x: fused((x + 1) * 2 - 3, ActivationFunctionType.RELU6)), CHAIN, cases=["normal"])
    assert kinds(after) == ["MUL", "ADD+RELU6"]
    assert refusals(model(lambda x: fused(x * 2, ActivationFunctionType.RELU) * 3), CHAIN) == []


def test_chain_with_unknown_batch_and_in_a_while_body() -> None:
    after, _ = fuse(model(lambda x: (x + 1) * CHANNELS - 2, (-1, 4, 5, 3)), CHAIN, cases=["normal"])
    assert kinds(after) == ["MUL", "ADD"]
    after, _ = fuse(looped(model(lambda x: (x + 1) * 0.5 - 0.5)), CHAIN, cases=["normal"])
    assert kinds(after, 2) == ["MUL", "ADD"]


def test_chains_that_stay() -> None:
    for spelling in (
        lambda x: x * 2 + 1,
        lambda x: (x + 1) * 2,
        lambda x: (lambda y: (y + 3, tanh(y)))(x + 2),
        lambda x: 1 / (x + 2) + 3,
        lambda x: x * CHANNELS * np.linspace(1, 2, 5).reshape(1, 1, 5, 1),
        lambda x: x * np.full((2, 1, 1, 1), 2) * 3,
    ):
        assert refusals(model(spelling), CHAIN) == []


def test_rounding_on_purpose_stays() -> None:
    m = model(lambda x: x * 4 + 12582912 - 12582912)
    assert refusals(m, CHAIN) == ["a large number is added and taken away again, which rounds on purpose"]


def test_divide_by_constant() -> None:
    rule = DivideByConstant()
    for divisor in (6.0, CHANNELS):
        after, _ = fuse(model(lambda x, d=divisor: x / d), rule, reference=lambda x, d=divisor: x / d, bound=2e-7)
        assert kinds(after) == ["MUL"]
    before = model(lambda x: x / 8)
    after, _ = fuse(before, rule)
    assert_same(before, after, Numerics.EXACT, nonfinite=True, cases=["normal", "wide", "specials"])
    after, _ = fuse(model(lambda x: fused(x / 3, ActivationFunctionType.RELU)), rule)
    assert kinds(after) == ["MUL+RELU"]
    for divisor in (0.0, 1e-39, np.inf):
        (reason,) = refusals(model(lambda x, d=divisor: x / d), rule)
        assert reason.endswith("is not an ordinary float32")
    assert refusals(model(lambda x, y: x / y, *PAIR), rule) == []
    assert refusals(model(lambda x: 2 / x), rule) == []
    m = model(lambda x: x / 7)
    for tensor in m.subgraphs[0].tensors:
        tensor.type = TensorType.INT32
    assert refusals(m, rule) == []


def test_whole_numbers_and_steps() -> None:
    """49 * (1/49) is below 1."""
    chain = "of which it may matter that the result is one too"
    for spelling in (lambda x: x.of(Op.FLOOR) / 49, lambda x: x.of(Op.ROUND).reshape(60) / 49):
        assert [r.split("numbers, ")[1] for r in refusals(model(spelling), *RULES)] == [chain]
    for spelling in (
        lambda x: (x / 49).of(Op.FLOOR),
        lambda x: ((x + 1) * 3 - 2).of(Op.FLOOR),
        lambda x: select(greater(x / 49, 1), x, -x),
    ):
        (reason,) = refusals(model(spelling), *RULES)
        assert reason.endswith("has steps, on whose sides results could come to lie")
    after, _ = fuse(model(lambda x: x.of(Op.FLOOR) / 4), DivideByConstant())
    assert kinds(after) == ["FLOOR", "MUL"]


def test_all_together() -> None:
    """Rules of this family do not undo each other."""

    def spelling(x: T, y: T) -> T:
        return square((x / 2 - -y) * 3) ** 0.5 + -sigmoid(0 - y) * -1

    after, _ = fuse(model(spelling, *PAIR), *RULES, *IDENTITY, cases=["normal"])
    assert refusals(after, *RULES) == []
