"""Sigmoid, SiLU and tanh by exponentials, and by each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rules import fuse, kinds, looped, refusals, results
from spell import T, absolute, exp, minimum, model, sigmoid, tanh

from litefuse.fusions import Numerics
from litefuse.fusions.sigmoid import RULES, RepairQuotient, Sigmoid, Silu, Tanh

Spelling = Callable[[T], Any]
FINITE = ("normal", "zeros", "negative zeros")


def logistic(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * logistic(x)


SIGMOIDS: dict[str, Spelling] = {
    "1 / (1 + exp(-x))": lambda x: 1 / (1 + exp(-x)),
    "1 / (exp(x * -1) + 1)": lambda x: 1 / (exp(x * -1) + 1),
    "(1 + exp(-x)) ^ -1": lambda x: (1 + exp(-x)) ** -1,
    "1 / (1 + exp(0 - x))": lambda x: 1 / (1 + exp(0 - x)),
    "1 - 1 / (1 + exp(x))": lambda x: 1 - 1 / (1 + exp(x)),
    "tanh": lambda x: 0.5 * (1 + tanh(0.5 * x)),
    "tanh, multiplied out": lambda x: tanh(x / 2) / 2 + 0.5,
}


@pytest.mark.parametrize("name", SIGMOIDS)
def test_sigmoid(name: str) -> None:
    after, _ = fuse(model(SIGMOIDS[name]), Sigmoid(), reference=logistic, bound=1e-6)
    assert kinds(after) == ["LOGISTIC"]


def test_sigmoid_of_twice_x() -> None:
    """What is left of (1 + tanh(x / 2)) / 2 when x / 2 was folded into a convolution."""
    after, _ = fuse(model(lambda x: (1 + tanh(x)) * 0.5), Sigmoid(), reference=lambda x: logistic(2 * x), bound=1e-6)
    assert kinds(after) == ["MUL", "LOGISTIC"]


@pytest.mark.parametrize(
    "spelling",
    [lambda x: x / (1 + exp(-x)), lambda x: x * (1 / (exp(-x) + 1)), lambda x: x * (0.5 * (1 + tanh(x * 0.5)))],
    ids=range(3),
)
def test_silu(spelling: Spelling) -> None:
    after, _ = fuse(model(spelling), Sigmoid(), Silu(), reference=silu, bound=1e-6)
    assert kinds(after) == ["LOGISTIC", "MUL"]
    after, report = fuse(model(spelling), Silu(), reference=silu, bound=1e-6)
    assert kinds(after) == ["LOGISTIC", "MUL"]
    assert report.counts() == {"silu": 1}


@pytest.mark.parametrize(
    "spelling",
    [lambda x: 2 * sigmoid(2 * x) - 1, lambda x: sigmoid(x + x) * 2 - 1, lambda x: 2 / (1 + exp(-2 * x)) - 1],
    ids=range(3),
)
def test_tanh(spelling: Spelling) -> None:
    after, _ = fuse(model(spelling), Tanh(), reference=np.tanh, bound=1e-6)
    assert kinds(after) == ["TANH"]


def test_tanh_of_half_x() -> None:
    after, _ = fuse(model(lambda x: sigmoid(x) * 2 - 1), Tanh(), reference=lambda x: np.tanh(x / 2), bound=1e-6)
    assert kinds(after) == ["MUL", "TANH"]


REPAIRED: dict[str, tuple[Spelling, Callable[..., Any], list[str]]] = {
    "exp(x) / (1 + exp(x))": (lambda x: (lambda e: e / (1 + e))(exp(x)), logistic, ["LOGISTIC"]),
    "x * exp(x) / (1 + exp(x))": (lambda x: (lambda e: x * e / (1 + e))(exp(x)), silu, ["LOGISTIC", "MUL"]),
    "tanh": (lambda x: (lambda a, b: (a - b) / (a + b))(exp(x), exp(-x)), np.tanh, ["TANH"]),
    "tanh by exp(2x)": (lambda x: (lambda e: (e - 1) / (e + 1))(exp(2 * x)), np.tanh, ["TANH"]),
}


@pytest.mark.parametrize("name", REPAIRED)
def test_repaired(name: str) -> None:
    spelling, function, expected = REPAIRED[name]
    before = model(spelling)
    after, report = fuse(before, *RULES, reference=function, bound=1e-6)
    assert kinds(after) == expected
    assert report.counts() == {"repair-quotient": 1}
    assert RepairQuotient.numerics is Numerics.REPAIR
    x = np.full((1, 4, 5, 3), 500, np.float32)
    if "tanh" not in name:  # there the kernels' habit of clamping results to the largest float helps
        assert not np.allclose(results(before, x)[0], function(x.astype(np.float64)))
    for xnnpack in (False, True):
        assert np.allclose(results(after, x, xnnpack=xnnpack)[0], function(x.astype(np.float64)))


def test_large_numbers() -> None:
    """Far out, infinite intermediate results are right, so that nothing is repaired."""
    for name in SIGMOIDS:
        assert refusals(model(SIGMOIDS[name]), RepairQuotient()) == []


def test_bounded_inputs_need_no_repair() -> None:
    after, report = fuse(model(bounded), *RULES, cases=FINITE)
    assert kinds(after) == ["MINIMUM", "LOGISTIC"]
    assert report.counts() == {"sigmoid": 1}


def bounded(x: T) -> T:
    e = exp(minimum(x, 5))
    return e / (1 + e)


def test_dynamic_batch_and_while_body() -> None:
    after, _ = fuse(model(SIGMOIDS["1 / (1 + exp(-x))"], (-1, 7)), Sigmoid(), reference=logistic, bound=1e-6)
    assert kinds(after) == ["LOGISTIC"]
    after, _ = fuse(looped(model(lambda x: x / (1 + exp(-x)), (1, 7))), Silu())
    assert kinds(after, 2) == ["LOGISTIC", "MUL", "ADD"]


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: 1 / (2 + exp(-x)),
        lambda x: 1 / (1 + exp(-1.001 * x)),
        lambda x: 0.5 * (1.01 + tanh(0.5 * x)),
        lambda x: sigmoid(x) * 2 - 0.99,
        lambda x: x * sigmoid(x),
        lambda x: x * sigmoid(1.702 * x),
        lambda x: sigmoid(x),
        lambda x: tanh(x) + 1,
    ],
    ids=range(8),
)
def test_leaves_other_functions(spelling: Spelling) -> None:
    assert refusals(model(spelling), *RULES) == []


def test_refuses_other_readers() -> None:
    def shared(x: T) -> tuple[T, T]:
        e = exp(-x)
        return 1 / (1 + e), absolute(e)

    assert refusals(model(shared), Sigmoid()) == ["output of EXP #1 `exp_1` is also read by ABS #4 `abs_4`"]


def test_refuses_a_shape_changed_by_broadcasting() -> None:
    ones = np.ones((2, 1, 1, 1))
    assert refusals(model(lambda x: 1 / (ones + exp(-x))), Sigmoid()) == [
        "a constant may change the shape by broadcasting"
    ]
