"""Softmax and log-softmax by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rules import apply, fuse, kinds, looped, refusals, results
from spell import T, absolute, exp, log, minimum, model, tanh

from litefuse.fusions.elu import SelectToRectifier
from litefuse.fusions.identity import RULES as IDENTITY
from litefuse.fusions.softmax import (
    RULES,
    LogOfSoftmax,
    LogSoftmax,
    RepairLogSoftmax,
    RepairSoftmax,
    Softmax,
    SoftmaxWithoutTransposes,
)
from litefuse.graph.build import Builder, quantized
from litefuse.schema import deepcopy, read
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op

SHIFTED = ["REDUCE_MAX", "SUB", "EXP", "SUM", "DIV"]
# Rows whose numbers are far apart, and large ones; exp(x) overflows.
LARGE = np.array([[[100, 99, -50], [0, 1, 2], [1000, -1000, 0], [88.9, 88.9, 88.9]]], np.float32)
FINITE = ("normal", "zeros")
Spelling = Callable[[T], T]


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def log_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    y = x - x.max(axis, keepdims=True)
    return y - np.log(np.exp(y).sum(axis, keepdims=True))


def shifted(x: T, axis: int = -1) -> T:
    return x - x.reduce(Op.REDUCE_MAX, axis)


def over(e: T, axis: int = -1) -> T:
    return e / e.reduce(Op.SUM, axis)


def total_by_reshape(x: T) -> T:
    return x.reduce(Op.SUM, [-1], keep_dims=False).reshape(1, 4, 5, 1)


STABLE: dict[str, Spelling] = {
    "DIV": lambda x: over(exp(shifted(x))),
    "last axis by number": lambda x: over(exp(shifted(x, 3)), 3),
    "MUL by the reciprocal": lambda x: (lambda e: e * (1 / e.reduce(Op.SUM, -1)))(exp(shifted(x))),
    "reciprocal first": lambda x: (lambda e: (1 / e.reduce(Op.SUM, -1)) * e)(exp(shifted(x))),
    "RESHAPE behind SUM": lambda x: (lambda e: e / total_by_reshape(e))(exp(shifted(x))),
    "epsilon": lambda x: (lambda e: e / (e.reduce(Op.SUM, -1) + 1e-9))(exp(shifted(x))),
    "maximum of other readers": lambda x: over(exp(shifted(x))),
}


@pytest.mark.parametrize("name", STABLE)
def test_softmax(name: str) -> None:
    after, report = fuse(model(STABLE[name]), *RULES, reference=softmax, bound=1e-6)
    assert kinds(after) == ["SOFTMAX"]
    assert report.counts() == {"softmax": 1}


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (1, 2, 3, 2, 7)], ids=len)
def test_ranks(shape: tuple[int, ...]) -> None:
    after, _ = fuse(model(STABLE["DIV"], shape), *RULES, reference=softmax, bound=1e-6)
    assert kinds(after) == ["SOFTMAX"]


UNSTABLE: dict[str, Spelling] = {
    "no maximum": lambda x: over(exp(x)),
    "reciprocal": lambda x: (lambda e: e * (1 / e.reduce(Op.SUM, -1)))(exp(x)),
    "mean for maximum": lambda x: over(exp(x - x.reduce(Op.MEAN, -1))),
}


@pytest.mark.parametrize("name", UNSTABLE)
def test_repaired(name: str) -> None:
    after, report = fuse(model(UNSTABLE[name]), *RULES, reference=softmax, cases=FINITE, bound=1e-6)
    assert kinds(after) == ["SOFTMAX"]
    assert report.counts() == {"repair-softmax": 1}
    before = model(UNSTABLE[name], LARGE.shape)
    after, _ = fuse(before, *RULES, cases=FINITE)
    for xnnpack in (False, True):
        expected = softmax(LARGE.astype(np.float64))
        assert np.allclose(results(after, LARGE, xnnpack=xnnpack)[0], expected, atol=1e-6)
        assert not np.allclose(results(before, LARGE, xnnpack=xnnpack)[0], expected, atol=1e-6)


def test_bounded_numbers_need_no_repair() -> None:
    after, report = fuse(model(lambda x: over(exp(minimum(x, 10)))), *RULES, bound=1e-6)
    assert kinds(after) == ["MINIMUM", "SOFTMAX"]
    assert report.counts() == {"softmax": 1}


def test_other_axes_stay() -> None:
    for axis in (0, 1, 2):
        assert refusals(model(lambda x, axis=axis: over(exp(shifted(x, axis)), axis)), *RULES) == []
    assert refusals(model(lambda x: over(exp(shifted(x, [2, 3])), [2, 3])), *RULES) == []


def test_other_axes_are_repaired() -> None:
    after, report = fuse(
        model(lambda x: over(exp(x), 1)), *RULES, reference=lambda x: softmax(x, 1), cases=FINITE, bound=1e-6
    )
    assert kinds(after) == SHIFTED
    assert report.counts() == {"repair-softmax": 1}
    x = np.moveaxis(LARGE, 1, 2).copy()
    after, _ = fuse(model(lambda x: over(exp(x), 1), x.shape), *RULES, cases=FINITE)
    assert np.allclose(results(after, x, xnnpack=True)[0], softmax(x.astype(np.float64), 1), atol=1e-6)


def test_what_is_subtracted_may_have_other_readers() -> None:
    def spelling(x: T) -> tuple[T, T]:
        m = x.reduce(Op.REDUCE_MAX, -1)
        return over(exp(x - m)), tanh(m)

    after, _ = fuse(model(spelling), *RULES, bound=1e-6)
    assert kinds(after) == ["REDUCE_MAX", "SOFTMAX", "TANH"]

    def difference(x: T) -> tuple[T, T]:
        d = shifted(x)
        return over(exp(d)), tanh(d)

    after, _ = fuse(model(difference), *RULES, bound=1e-6)
    assert kinds(after) == ["REDUCE_MAX", "SUB", "SOFTMAX", "TANH"]


def test_refuses_other_readers() -> None:
    def spelling(x: T) -> tuple[T, T]:
        e = exp(shifted(x))
        return over(e), absolute(e)

    assert refusals(model(spelling), *RULES) == ["output of EXP #2 `exp_2` is also read by ABS #5 `abs_5`"]


def test_refuses_an_epsilon_that_counts() -> None:
    reason = "is added to the sum, which SOFTMAX does not do"
    m = model(lambda x: (lambda e: e / (e.reduce(Op.SUM, -1) + 1e-3))(exp(shifted(x))))
    assert refusals(m, *RULES) == [f"0.001 {reason}"]
    m = model(lambda x: (lambda e: e / (e.reduce(Op.SUM, -1) + 1e-9))(exp(x)))
    assert refusals(m, *RULES) == [f"1e-09 {reason}"]


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: exp(shifted(x)) / exp(x * 0.5).reduce(Op.SUM, -1),
        lambda x: (lambda e: e.reduce(Op.SUM, -1) / e)(exp(shifted(x))),
        lambda x: (lambda e: e / e.reduce(Op.MEAN, -1))(exp(shifted(x))),
        lambda x: (lambda e: e / e.reduce(Op.SUM, -1, keep_dims=False).reshape(1, 4, 1, 5))(exp(shifted(x, -1))),
    ],
    ids=range(4),
)
def test_leaves_what_is_no_softmax(spelling: Spelling) -> None:
    shape = (1, 4, 5, 5)
    assert refusals(model(spelling, shape), *RULES) == []


def test_dynamic_batch_and_while_body() -> None:
    after, _ = fuse(model(STABLE["DIV"], (-1, 4, 3)), *RULES, reference=softmax, bound=1e-6)
    assert kinds(after) == ["SOFTMAX"]
    after, _ = fuse(looped(model(STABLE["DIV"], (1, 7))), *RULES)
    assert kinds(after, 2) == ["SOFTMAX", "ADD"]


def test_quantized_values_are_left_alone() -> None:
    b = Builder()
    q = quantized(0.01)
    x = b.input("x", [1, 4], TensorType.INT8, q)
    e = b.op(Op.EXP, [x])
    axes = b.constant("axes", np.array([-1], np.int32))
    total = b.op(Op.SUM, [e, axes], keep_dims=True)
    inverse = b.op(Op.RSQRT, [total])
    assert refusals(b.model([b.op(Op.MUL, [e, inverse])]), *RULES) == []


# -- log-softmax ---------------------------------------------------------------------------------------------------


def log_sum(y: T, axis: int = -1) -> T:
    return log(exp(y).reduce(Op.SUM, axis))


def by_difference(x: T) -> T:
    y = shifted(x)
    return y - log_sum(y)


def by_logsumexp(x: T) -> T:
    m = x.reduce(Op.REDUCE_MAX, -1)
    return x - (log_sum(x - m) + m)


@pytest.mark.parametrize("spelling", [by_difference, by_logsumexp], ids=lambda f: f.__name__)
def test_log_softmax(spelling: Spelling) -> None:
    after, _ = fuse(model(spelling), *RULES, reference=log_softmax, bound=1e-6)
    assert kinds(after) == ["LOG_SOFTMAX"]
    assert refusals(model(spelling, (1, 300, 2)), *RULES) == []  # too large to pay
    assert refusals(model(spelling, (-1, 10)), *RULES) == []  # perhaps too large


def test_log_softmax_with_a_guard_against_infinities() -> None:
    """As TensorFlow's reduce_logsumexp is converted."""

    def spelling(x: T) -> T:
        m = x.reduce(Op.REDUCE_MAX, -1)
        safe = m.op(Op.SELECT_V2, m.op(Op.EQUAL, m - m, 0), m, 0, type=TensorType.FLOAT32)
        return x - (log_sum(x - safe) + safe)

    rules = (SelectToRectifier(), *IDENTITY, *RULES)
    after, _ = fuse(model(spelling), *rules, reference=log_softmax, bound=1e-6)
    assert kinds(after) == ["LOG_SOFTMAX"]
    after, _ = fuse(model(spelling, (1, 300, 2)), *rules, reference=log_softmax, bound=1e-6)
    assert kinds(after) == ["REDUCE_MAX", "SUB", "EXP", "SUM", "LOG", "ADD", "SUB"]


@pytest.mark.parametrize("shape", [(1, 4, 3), (1, 300, 2)])
def test_log_softmax_without_maximum(shape: tuple[int, ...]) -> None:
    def spelling(x: T) -> T:
        return x - log_sum(x)

    after, report = fuse(model(spelling, shape), *RULES, reference=log_softmax, cases=FINITE, bound=1e-6)
    large = shape == (1, 300, 2)
    assert kinds(after) == (["REDUCE_MAX", "SUB", "EXP", "SUM", "LOG", "SUB"] if large else ["LOG_SOFTMAX"])
    assert report.counts() == {"repair-log-softmax": 1}
    x = np.resize(LARGE, shape)
    for xnnpack in (False, True):
        assert np.allclose(results(after, x, xnnpack=xnnpack)[0], log_softmax(x.astype(np.float64)), rtol=1e-6)


def test_log_softmax_over_another_axis() -> None:
    def spelling(x: T) -> T:
        return x - log_sum(x, 1)

    after, _ = fuse(model(spelling), *RULES, reference=lambda x: log_softmax(x, 1), cases=FINITE, bound=1e-6)
    assert kinds(after) == ["REDUCE_MAX", "SUB", "EXP", "SUM", "LOG", "SUB"]


@pytest.mark.parametrize("shape", [(1, 4, 3), (1, 300, 2)])
def test_log_of_softmax(shape: tuple[int, ...]) -> None:
    before = model(lambda x: log(x.of(Op.SOFTMAX)), shape)
    after, report = fuse(before, *RULES, reference=log_softmax, cases=FINITE, bound=1e-6)
    large = shape == (1, 300, 2)
    assert kinds(after) == (["REDUCE_MAX", "SUB", "EXP", "SUM", "LOG", "SUB"] if large else ["LOG_SOFTMAX"])
    assert report.counts() == {"repair-log-of-softmax": 1}
    x = np.resize(LARGE, shape)
    for xnnpack in (False, True):
        assert np.allclose(results(after, x, xnnpack=xnnpack)[0], log_softmax(x.astype(np.float64)), rtol=1e-6)
    assert not np.allclose(results(before, x)[0], log_softmax(x.astype(np.float64)), rtol=1e-3)


def test_log_of_softmax_by_hand() -> None:
    after, report = fuse(model(lambda x: log(STABLE["DIV"](x))), *RULES, reference=log_softmax, cases=FINITE)
    assert kinds(after) == ["LOG_SOFTMAX"]
    assert report.counts() == {"softmax": 1, "repair-log-of-softmax": 1}


def test_log_softmax_refusals() -> None:
    def shared(x: T) -> tuple[T, T]:
        total = log_sum(x)
        return x - total, absolute(total)

    assert refusals(model(shared), RepairLogSoftmax()) == ["output of LOG #2 `log_2` is also read by ABS #4 `abs_4`"]
    m = model(lambda x: (lambda p: (log(p), absolute(p)))(x.of(Op.SOFTMAX)))
    assert refusals(m, LogOfSoftmax()) == ["output of SOFTMAX #0 `softmax_0` is also read by ABS #2 `abs_2`"]
    assert refusals(model(lambda x: log(x.of(Op.SOFTMAX, beta=2.0))), LogOfSoftmax()) == []
    assert refusals(model(lambda x: x * 2 - log_sum(x)), *RULES) == []
    assert refusals(model(lambda x: x - (log_sum(shifted(x)) + x.reduce(Op.REDUCE_MIN, -1))), LogSoftmax()) == []


# -- transposes ----------------------------------------------------------------------------------------------------


def between_transposes(order: tuple[int, ...], back: tuple[int, ...] | None = None) -> Spelling:
    inverse = back or tuple(int(i) for i in np.argsort(order))
    return lambda x: x.transpose(*order).of(Op.SOFTMAX).transpose(*inverse)


@pytest.mark.parametrize(
    ("order", "shape", "axis"),
    [
        ((0, 2, 3, 1), (1, 4, 7, 5), 1),
        ((0, 3, 2, 1), (1, 4, 7, 5), 1),
        ((0, 1, 3, 2), (1, 3, 4, 33), 2),
        ((1, 0), (5, 40), 0),
    ],
)
def test_softmax_without_transposes(order: tuple[int, ...], shape: tuple[int, ...], axis: int) -> None:
    after, _ = fuse(model(between_transposes(order), shape), *RULES, reference=lambda x: softmax(x, axis), bound=1e-6)
    assert kinds(after) == SHIFTED


def test_transposes_that_pay_stay() -> None:
    rule = SoftmaxWithoutTransposes()
    assert refusals(model(between_transposes((0, 2, 1)), (1, 1000, 4)), rule) == []
    assert refusals(model(between_transposes((0, 2, 3, 1)), (1, 4, -1, 5)), rule) == []
    assert refusals(model(between_transposes((0, 2, 3, 1), (0, 1, 2, 3)), (1, 4, 7, 5)), rule) == []
    m = model(
        lambda x: (lambda t: (t.of(Op.SOFTMAX).transpose(0, 3, 1, 2), absolute(t)))(x.transpose(0, 2, 3, 1)),
        (1, 4, 7, 5),
    )
    assert refusals(m, rule) == ["output of TRANSPOSE #0 `transpose_0` is also read by ABS #3 `abs_3`"]


def test_softmax_without_transposes_with_unknown_batch() -> None:
    m = model(between_transposes((0, 2, 3, 1)), (-1, 4, 7, 5))
    after, _ = fuse(m, *RULES, reference=lambda x: softmax(x, 1), bound=1e-6)
    assert kinds(after) == SHIFTED


# -- real models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["expo_mtcnn_pnet", "expo_mtcnn_rnet"])
def test_mtcnn(corpus: list[Path], name: str) -> None:
    before = read(next(path for path in corpus if path.stem == name))
    after = deepcopy(before)
    assert apply(after, Softmax(), RepairSoftmax()).counts() == {"softmax": 1}
    assert kinds(after).count("SOFTMAX") == 1
    assert "EXP" not in kinds(after)
