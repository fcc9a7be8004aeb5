"""GELU in all its spellings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import fuse, kinds, looped, operators, refusals
from spell import T, absolute, exp, minimum, model, relu, select, sigmoid, square, tanh

from litefuse.fusions.gelu import Gelu
from litefuse.fusions.sigmoid import Sigmoid
from litefuse.graph.build import Builder, quantized
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op

RULE = Gelu()
C = math.sqrt(2 / math.pi)
A = 0.044715
Spelling = Callable[[T], Any]
_erf = np.frompyfunc(math.erf, 1, 1)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)).astype(np.float64))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(C * (x + A * x**3)))


def cube(x: T) -> T:
    return x * x * x


TANH: dict[str, Spelling] = {
    "x * x * x": lambda x: 0.5 * x * (1 + tanh(C * (x + A * cube(x)))),
    "pow": lambda x: 0.5 * x * (1 + tanh(C * (x + A * x**3))),
    "square": lambda x: x * 0.5 * (tanh((x + square(x) * x * A) * C) + 1),
    "factored": lambda x: (x * (1 + tanh(x * C * (1 + A * x * x)))) / 2,
    "multiplied out": lambda x: x * (0.5 + 0.5 * tanh(C * x + (C * A) * x**3)),
    "0.7978845608": lambda x: 0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * cube(x)))),
    "0.797885": lambda x: 0.5 * x * (1 + tanh(0.797885 * (x + 0.044715 * cube(x)))),
    "sigmoid": lambda x: x * sigmoid(2 * C * (x + A * cube(x))),
    "exp": lambda x: x / (1 + exp(-2 * C * (x + A * cube(x)))),
    "difference": lambda x: x - x * sigmoid(-2 * C * (x + A * cube(x))),
    "sum": lambda x: 0.5 * x + 0.5 * x * tanh(C * (x + A * cube(x))),
}


@pytest.mark.parametrize("name", TANH)
def test_tanh(name: str) -> None:
    after, report = fuse(model(TANH[name]), RULE, reference=gelu_tanh, bound=2e-6)
    assert kinds(after) == ["GELU"]
    assert report.counts() == {"gelu": 1}
    assert operators(after, "GELU")[0].builtin_options.approximate


def erf(z: T) -> T:
    """Abramowitz and Stegun, Handbook of Mathematical Functions, formula 7.1.26: |error| <= 1.5e-7."""
    t = 1 / (1 + 0.3275911 * absolute(z))
    polynomial = 1.061405429 * t - 1.453152027
    for c in (1.421413741, -0.284496736, 0.254829592):
        polynomial = polynomial * t + c
    positive = 1 - polynomial * t * exp(-(z * z))
    return z.of(Op.SIGN) * positive


def erf_by_select(z: T) -> T:
    t = 1 / (1 + 0.3275911 * absolute(z))
    polynomial = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    positive = 1 - polynomial * exp(-square(z))
    return select(z.op(Op.GREATER_EQUAL, z, 0), positive, -positive)


@pytest.mark.parametrize("by", [erf, erf_by_select], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "spelling",
    [
        lambda x, f: 0.5 * x * (1 + f(x * math.sqrt(0.5))),
        lambda x, f: x * (0.5 + f(x / math.sqrt(2)) * 0.5),
        lambda x, f: x * (1 + f(x * 0.70710678)) / 2,
    ],
    ids=range(3),
)
def test_erf(spelling: Callable[..., T], by: Callable[[T], T]) -> None:
    # The spelling itself is off by 1.5e-7 * x / 2.
    after, _ = fuse(model(lambda x: spelling(x, by)), RULE, reference=gelu, bound=1e-6)
    assert kinds(after) == ["GELU"]
    assert not operators(after, "GELU")[0].builtin_options.approximate


@given(st.permutations([0, 1, 2]), st.permutations([0, 1, 2]), st.booleans(), st.sampled_from([1.0, 2.0, 4.0]))
@settings(max_examples=20, deadline=None)
def test_any_order(outer: list[int], inner: list[int], swap: bool, split: float) -> None:
    def product(factors: list[Any], order: list[int]) -> T:
        result = factors[order[0]]
        for i in order[1:]:
            result = result * factors[i] if isinstance(result, T) else factors[i] * result
        return result

    def spelling(x: T) -> T:
        cubic = product([x * A, x, x], inner)
        argument = (cubic + x if swap else x + cubic) * (C / split) * split
        gate = tanh(argument) + 1 if swap else 1 + tanh(argument)
        return product([x, gate, T(x.builder, x.to(0.5))], outer)

    after, _ = fuse(model(spelling), RULE, reference=gelu_tanh, bound=2e-6)
    assert kinds(after) == ["GELU"]


def test_a_factor_stays() -> None:
    after, _ = fuse(model(lambda x: x * (1 + tanh(C * (x + A * cube(x))))), RULE, bound=2e-6)
    assert kinds(after) == ["GELU", "MUL"]


def test_through_sigmoid() -> None:
    after, _ = fuse(model(TANH["multiplied out"]), Sigmoid(), RULE, reference=gelu_tanh, bound=2e-6)
    assert kinds(after) == ["GELU"]


def test_dynamic_batch_and_while_body() -> None:
    after, _ = fuse(model(TANH["pow"], (-1, 7)), RULE, reference=gelu_tanh, cases=["normal", "wide"])
    assert kinds(after) == ["GELU"]
    after, _ = fuse(looped(model(TANH["pow"])), RULE, cases=["normal", "wide"])
    assert kinds(after, 2) == ["GELU", "ADD"]


def test_after_an_elementwise_chain() -> None:
    """The function starts from the right tensor, although what is before it is elementwise too."""
    after, _ = fuse(model(lambda x: TANH["x * x * x"](relu(x * 2 + 1))), RULE, bound=2e-6)
    assert kinds(after) == ["MUL", "ADD", "RELU", "GELU"]


NOT_GELU: dict[str, Spelling] = {
    "x * sigmoid(1.702 x)": lambda x: x * sigmoid(1.702 * x),
    "0.7979": lambda x: 0.5 * x * (1 + tanh(0.7979 * (x + A * cube(x)))),
    "another cubic term": lambda x: 0.5 * x * (1 + tanh(C * (x + 0.0447 * cube(x)))),
    "no cubic term": lambda x: 0.5 * x * (1 + tanh(C * x)),
    "square for cube": lambda x: 0.5 * x * (1 + tanh(C * (x + A * x * x))),
    "bounded argument": lambda x: 0.5 * x * (1 + tanh(minimum(C * (x + A * cube(x)), 2))),
    "another x outside": lambda x: 0.5 * minimum(x, 100) * (1 + tanh(C * (x + A * cube(x)))),
}


@pytest.mark.parametrize("name", NOT_GELU)
def test_leaves_other_functions(name: str) -> None:
    assert refusals(model(NOT_GELU[name]), RULE) == []


def test_refuses_other_readers_and_broadcasting() -> None:
    def shared(x: T) -> tuple[T, T]:
        gate = tanh(C * (x + A * cube(x)))
        return 0.5 * x * (1 + gate), absolute(gate)

    (reason,) = refusals(model(shared), RULE)
    assert reason == "output of TANH #5 `tanh_5` is also read by ABS #9 `abs_9`"
    wide = np.full((2, 1, 1, 1), 0.5)
    (reason,) = refusals(model(lambda x: wide_product(x, wide)), RULE)
    assert reason == "a constant may change the shape by broadcasting"


def wide_product(x: T, half: np.ndarray) -> T:
    return x * half * (1 + tanh(C * (x + A * cube(x))))


def test_refuses_quantized_values() -> None:
    b = Builder()
    q = quantized(0.05, 0)
    x = b.input("x", [1, 4], TensorType.INT8, q)

    def constant(value: float) -> int:
        return b.constant("c", np.array(1, np.int8), quantized(value))

    def op(kind: Op, *inputs: int) -> int:
        return b.op(kind, list(inputs), quantization=q, type=TensorType.INT8)

    argument = op(Op.MUL, op(Op.ADD, x, op(Op.MUL, op(Op.MUL, op(Op.MUL, x, x), x), constant(A))), constant(C))
    gate = b.op(Op.TANH, [argument], quantization=quantized(1 / 128), type=TensorType.INT8)
    m = b.model([op(Op.MUL, op(Op.MUL, x, constant(0.5)), op(Op.ADD, gate, constant(1.0)))])
    (reason,) = refusals(m, RULE)
    assert reason.startswith("INT8 values: each operator of the spelling rounds to a step")
