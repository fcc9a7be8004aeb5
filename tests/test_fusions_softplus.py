"""Softplus and mish that overflow, repaired."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from rules import fuse, kinds, looped, refusals, results
from spell import T, absolute, exp, log, maximum, minimum, model, relu, tanh

from litefuse.fusions import Numerics
from litefuse.fusions.softplus import RULES, RepairMish, RepairSoftplus, Softplus

STABLE = ["MINIMUM", "EXP", "ADD", "LOG", "MAXIMUM"]
LARGE = np.array([[0.5, 17, 40, 88, 89, 95, 1e3, 1e6, 1e30, -17, -89, -1e30]], np.float32)
Spelling = Callable[[T], T]


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x)


def mish(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(softplus(x))


def spelled(x: T) -> T:
    return log(exp(x) + 1)


@pytest.mark.parametrize("spelling", [spelled, lambda x: log(1 + exp(x))], ids=range(2))
def test_softplus(spelling: Spelling) -> None:
    after, report = fuse(model(spelling), *RULES, reference=softplus, bound=1e-6)
    assert kinds(after) == STABLE
    assert report.counts() == {"repair-softplus": 1}
    assert RepairSoftplus.numerics is Numerics.REPAIR
    before, after = model(spelling, LARGE.shape), fuse(model(spelling, LARGE.shape), *RULES, cases=["normal"])[0]
    expected = softplus(LARGE.astype(np.float64))
    for xnnpack in (False, True):
        assert np.allclose(results(after, LARGE, xnnpack=xnnpack)[0], expected, rtol=1e-6, atol=1e-6)
        assert not np.allclose(results(before, LARGE, xnnpack=xnnpack)[0], expected)


def test_log_sigmoid() -> None:
    after, _ = fuse(model(lambda x: -log(exp(-x) + 1)), *RULES, reference=lambda x: -softplus(-x), bound=1e-6)
    assert kinds(after) == ["NEG", *STABLE, "NEG"]


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: relu(x) + log(exp(-absolute(x)) + 1),
        lambda x: maximum(x, 0) + log(1 + exp(-absolute(x))),
        lambda x: log(1 + exp(-absolute(x))) - minimum(-x, 0),
    ],
    ids=range(3),
)
def test_what_is_stable_gets_shorter(spelling: Spelling) -> None:
    after, report = fuse(model(spelling), *RULES, reference=softplus, bound=1e-6)
    assert kinds(after) == STABLE
    assert report.counts() == {"softplus": 1}


def test_comes_to_an_end() -> None:
    after, _ = fuse(model(spelled), *RULES, cases=["normal"])
    assert refusals(after, *RULES) == []


def test_bounded_numbers_need_no_repair() -> None:
    assert refusals(model(lambda x: spelled(minimum(x, 50))), *RULES) == []
    assert refusals(model(lambda x: spelled(-absolute(x))), *RULES) == []
    assert refusals(model(lambda x: spelled(-relu(x))), *RULES) == []
    after, _ = fuse(model(lambda x: spelled(minimum(x, 500))), *RULES, cases=["normal"])
    assert kinds(after) == ["MINIMUM", *STABLE]


def test_mish_by_tanh_is_right_as_it_is() -> None:
    m = model(lambda x: x * tanh(spelled(x)), LARGE.shape)
    assert refusals(m, *RULES) == []
    assert np.allclose(results(m, LARGE, xnnpack=True)[0], mish(LARGE.astype(np.float64)), rtol=1e-6, atol=1e-6)


def test_softplus_read_by_tanh_and_others() -> None:
    after, _ = fuse(model(lambda x: (lambda s: (tanh(s), absolute(s)))(spelled(x))), *RULES, cases=["normal"])
    assert kinds(after) == [*STABLE, "TANH", "ABS"]


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: (lambda n: x * n / (n + 2))((lambda e: e * (e + 2))(exp(x))),
        lambda x: (lambda n: x * (n / (n + 2)))((lambda e: e * e + 2 * e)(exp(x))),
        lambda x: (lambda s: x * (s - 1) / (s + 1))((lambda w: w * w)(exp(x) + 1)),
    ],
    ids=range(3),
)
def test_mish_by_quotients(spelling: Spelling) -> None:
    after, report = fuse(model(spelling), *RULES, reference=mish, cases=["normal", "zeros"], bound=1e-6)
    assert kinds(after) == ["MINIMUM", "EXP", "ADD", "MUL", "ADD", "DIV", "MUL"]
    assert report.counts() == {"repair-mish": 1}
    assert RepairMish.numerics is Numerics.REPAIR
    after, _ = fuse(model(spelling, LARGE.shape), *RULES, cases=["normal"])
    for xnnpack in (False, True):
        found = results(after, LARGE, xnnpack=xnnpack)[0]
        assert np.allclose(found, mish(LARGE.astype(np.float64)), rtol=1e-6, atol=1e-6)


def test_dynamic_batch_and_while_body() -> None:
    after, _ = fuse(model(spelled, (-1, 7)), *RULES, reference=softplus)
    assert kinds(after) == STABLE
    after, _ = fuse(looped(model(spelled, (1, 7))), *RULES)
    assert kinds(after, 2) == [*STABLE, "ADD"]


@pytest.mark.parametrize(
    "spelling",
    [lambda x: log(exp(x) + 2), lambda x: log(exp(x) + 0.99), lambda x: log(exp(x)), lambda x: log(exp(x) * 2 + 1)],
    ids=range(4),
)
def test_leaves_other_functions(spelling: Spelling) -> None:
    assert refusals(model(spelling), *RULES) == []


def test_refuses_other_readers_and_broadcasting() -> None:
    def shared(x: T) -> tuple[T, T]:
        e = exp(x)
        return log(e + 1), absolute(e)

    reason = "output of EXP #0 `exp_0` is also read by ABS #3 `abs_3`"
    assert refusals(model(shared), RepairSoftplus()) == [reason]
    wide = np.ones((2, 1, 1, 1))
    assert refusals(model(lambda x: log(exp(x) + wide)), RepairSoftplus()) == [
        "a constant may change the shape by broadcasting"
    ]
    assert refusals(model(shared), Softplus()) == []
