"""Normalisation by mean and variance and by length, and inverse square roots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rules import assert_same, fuse, kinds, looped, refusals
from spell import T, absolute, exp, fused, maximum, model, rsqrt, sqrt, square, tanh

from litefuse.fusions import Numerics
from litefuse.fusions.batch_norm import FoldForward
from litefuse.fusions.identity import RULES as IDENTITY
from litefuse.fusions.normalization import (
    DivideByRoot,
    L2Norm,
    LayerNorm,
    MultiplyByReciprocal,
    Roots,
    ShareDifference,
)
from litefuse.schema import Model, read
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op

NORM, SHARE = LayerNorm(), ShareDifference()
GAIN = np.array([0.5, -1.5, 2.0], np.float32).reshape(1, 1, 1, 3)
SHIFT = np.array([1.0, 0.25, -3.0], np.float32).reshape(1, 1, 1, 3)
ORDINARY = ("normal", "zeros")
Spelling = Callable[[T], T]


def layer_norm(x: np.ndarray, gain: np.ndarray = GAIN, shift: np.ndarray = SHIFT, axis: int = -1) -> np.ndarray:
    mean, variance = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
    return (x - mean) / np.sqrt(variance + np.float32(1e-3)) * gain.astype(np.float64) + shift


def moments(x: T, axis: int = -1) -> tuple[T, T]:
    """The mean, and the inverse of the standard deviation."""
    m = x.reduce(Op.MEAN, axis)
    variance = x.op(Op.SQUARED_DIFFERENCE, x, m).reduce(Op.MEAN, axis)
    return m, rsqrt(variance + 1e-3)


def keras(x: T) -> T:
    m, r = moments(x)
    factor = r * GAIN
    return x * factor + (-m * factor + SHIFT)


def with_sub(x: T) -> T:
    m, r = moments(x)
    factor = GAIN * r
    return (SHIFT - factor * m) + factor * x


def without_shift(x: T) -> T:
    m, r = moments(x)
    factor = r * GAIN
    return x * factor - m * factor


def without_shift_by_neg(x: T) -> T:
    m, r = moments(x)
    factor = r * GAIN
    return x * factor + factor * -m


BODY = ["MEAN", "SUB", "MUL", "MEAN", "ADD", "RSQRT", "MUL"]


@pytest.mark.parametrize("spelling", [keras, with_sub], ids=lambda f: f.__name__)
def test_layer_norm(spelling: Spelling) -> None:
    after, report = fuse(model(spelling), NORM, SHARE, reference=layer_norm, cases=ORDINARY, bound=2e-6)
    assert kinds(after) == [*BODY, "MUL", "ADD"]
    assert report.counts() == {"layer-norm": 1, "share-difference": 1}


@pytest.mark.parametrize("spelling", [without_shift, without_shift_by_neg], ids=lambda f: f.__name__)
def test_layer_norm_without_shift(spelling: Spelling) -> None:
    def reference(x: np.ndarray) -> np.ndarray:
        return layer_norm(x, GAIN, np.zeros(3))

    after, _ = fuse(model(spelling), NORM, SHARE, reference=reference, cases=ORDINARY, bound=2e-6)
    assert kinds(after) == [*BODY, "MUL"]


def test_nothing_cancels() -> None:
    """With a mean far from 0, the result is nearer to the truth than the original's."""
    x = (np.random.default_rng(0).standard_normal((1, 4, 5, 3)) + 1000).astype(np.float32)
    before = model(keras)
    after, _ = fuse(before, NORM, SHARE, cases=ORDINARY, bound=2e-6)
    assert_same(before, after, Numerics.REASSOCIATED, inputs=[[x]], reference=layer_norm, bound=1e-5)


def test_gain_of_one_is_taken_away() -> None:
    def spelling(x: T) -> T:
        m, r = moments(x)
        factor = r * np.ones((1, 1, 1, 3))
        return x * factor + -m * factor

    def reference(x: np.ndarray) -> np.ndarray:
        return layer_norm(x, np.ones(3), np.zeros(3))

    after, _ = fuse(model(spelling), NORM, SHARE, *IDENTITY, reference=reference, cases=ORDINARY, bound=2e-6)
    assert kinds(after) == BODY


def test_gain_and_shift_fold_into_a_fully_connected() -> None:
    def spelling(x: T) -> T:
        weights = np.linspace(-1, 1, 12).reshape(4, 3)
        return x.op(Op.FULLY_CONNECTED, keras(x), weights, np.zeros(4), keep_num_dims=True)

    after, _ = fuse(model(spelling), NORM, SHARE, FoldForward(), cases=ORDINARY)
    assert kinds(after) == [*BODY, "FULLY_CONNECTED"]


def test_fused_activation_stays() -> None:
    after, _ = fuse(
        model(lambda x: fused(keras(x), ActivationFunctionType.RELU)),
        NORM,
        SHARE,
        reference=lambda x: np.maximum(layer_norm(x), 0),
        cases=ORDINARY,
        bound=2e-6,
    )
    assert kinds(after) == [*BODY, "MUL", "ADD+RELU"]


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3), (1, 2, 2, 4, 3), (-1, 4, 5, 3)], ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    def spelling(x: T) -> T:
        m, r = moments(x)
        factor = r * GAIN.reshape(-1)
        return x * factor + (-m * factor + SHIFT.reshape(-1))

    def reference(x: np.ndarray) -> np.ndarray:
        return layer_norm(x, GAIN.reshape(-1), SHIFT.reshape(-1))

    after, _ = fuse(model(spelling, shape), NORM, SHARE, reference=reference, cases=ORDINARY, bound=2e-6)
    assert kinds(after) == [*BODY, "MUL", "ADD"]


def test_inside_a_while_body() -> None:
    after, _ = fuse(looped(model(keras)), NORM, SHARE, cases=ORDINARY)
    assert kinds(after, 2) == [*BODY, "MUL", "ADD", "ADD"]


def test_leaves_what_would_not_pay() -> None:
    def per_channel(x: T) -> T:
        m = x.reduce(Op.MEAN, [1, 2])
        r = rsqrt(x.op(Op.SQUARED_DIFFERENCE, x, m).reduce(Op.MEAN, [1, 2]) + 1e-3)
        factor = r * GAIN
        return x * factor + (-m * factor + SHIFT)

    def one_channel(x: T) -> T:
        m, r = moments(x)
        factor = r * np.full(1, 2)
        return x * factor + (-m * factor + np.full(1, 3))

    def without_gain(x: T) -> T:
        m, r = moments(x)
        return x * r + (-m * r + SHIFT)

    assert refusals(model(per_channel), NORM) == []
    assert refusals(model(one_channel, (1, 4, 5, 1)), NORM) == []
    assert refusals(model(without_gain), NORM) == []


def test_leaves_other_sums() -> None:
    def two_factors(x: T) -> T:
        m, r = moments(x)
        return x * (r * GAIN) + (-m * (r * SHIFT) + SHIFT)

    def plus(x: T) -> T:
        m, r = moments(x)
        factor = r * GAIN
        return x * factor + (m * factor + SHIFT)

    def reversed_difference(x: T) -> T:
        m, r = moments(x)
        factor = r * GAIN
        return m * factor - x * factor

    for spelling in (two_factors, plus):
        assert refusals(model(spelling), NORM) == []
    assert refusals(model(reversed_difference), NORM) == []


def test_refuses_other_readers() -> None:
    def shared(x: T) -> tuple[T, T]:
        m, r = moments(x)
        factor = r * GAIN
        return x * factor + (-m * factor + SHIFT), absolute(factor)

    assert refusals(model(shared), NORM) == ["output of MUL #5 `mul_5` is also read by ABS #11 `abs_11`"]


def test_refuses_variables() -> None:
    m = model(keras)
    m.subgraphs[0].tensors[m.subgraphs[0].inputs[0]].is_variable = True
    assert refusals(m, NORM) == ["tensor `x` is a variable"]


# -- differences ---------------------------------------------------------------------------------------------------


def test_share_difference() -> None:
    def first(x: T) -> tuple[T, T]:
        m = x.reduce(Op.MEAN, -1)
        return absolute(x - m), x.op(Op.SQUARED_DIFFERENCE, x, m)

    def later(x: T) -> tuple[T, T]:
        m = x.reduce(Op.MEAN, -1)
        squared = x.op(Op.SQUARED_DIFFERENCE, x, m)
        return absolute(m - x), squared

    for spelling in (first, later):
        after, report = fuse(model(spelling), SHARE)
        assert sorted(kinds(after)) == ["ABS", "MEAN", "MUL", "SUB"]
        assert report.counts() == {"share-difference": 1}


def test_share_difference_that_is_an_output() -> None:
    def spelling(x: T) -> tuple[T, T]:
        m = x.reduce(Op.MEAN, -1)
        squared = x.op(Op.SQUARED_DIFFERENCE, x, m)
        return squared, x - m

    before = model(spelling)
    after, _ = fuse(before, SHARE)
    assert kinds(after) == ["MEAN", "SUB", "MUL"]
    names = [[m.subgraphs[0].tensors[t].name for t in m.subgraphs[0].outputs] for m in (before, after)]
    assert names[0] == names[1]


def test_leaves_other_differences() -> None:
    def clipped(x: T, y: T) -> tuple[T, T]:
        return x.op(Op.SQUARED_DIFFERENCE, x, y), fused(x - y, ActivationFunctionType.RELU)

    assert refusals(model(clipped, (1, 4), (1, 4)), SHARE) == []
    assert refusals(model(lambda x, y: (x.op(Op.SQUARED_DIFFERENCE, x, y), x - 1), (1, 4), (1, 4)), SHARE) == []


# -- roots ---------------------------------------------------------------------------------------------------------


def positive(x: T) -> T:
    return absolute(x) + 0.5


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: 1 / sqrt(positive(x)),
        lambda x: sqrt(1 / positive(x)),
        lambda x: positive(x) ** -0.5,
        lambda x: 1 / positive(x) ** 0.5,
        lambda x: sqrt(positive(x)) ** -1,
    ],
    ids=range(5),
)
def test_rsqrt(spelling: Spelling) -> None:
    after, _ = fuse(model(spelling), Roots(), reference=lambda x: (np.abs(x) + 0.5) ** -0.5, bound=1e-6)
    assert kinds(after) == ["ABS", "ADD", "RSQRT"]


def test_rsqrt_of_what_may_be_zero() -> None:
    assert refusals(model(lambda x: 1 / sqrt(x)), Roots()) == ["tensor `x` may be zero, where runtimes differ"]
    for spelling in (absolute, square, lambda x: square(x).reduce(Op.MEAN, -1)):
        (reason,) = refusals(model(lambda x, f=spelling: 1 / sqrt(f(x))), Roots())
        assert reason.endswith("may be zero, where runtimes differ")


@pytest.mark.parametrize(
    "variance",
    [
        lambda x: square(x).reduce(Op.MEAN, -1) + 1e-3,
        lambda x: maximum((x * x).reduce(Op.SUM, -1), 1e-6),
        lambda x: 1e-3 + x.op(Op.SQUARED_DIFFERENCE, x, 1.0).reduce(Op.MEAN, [1, 2]).reshape(1, 1, 1, 3),
        lambda x: 2 + tanh(x),
    ],
    ids=range(4),
)
def test_rsqrt_of_what_is_positive(variance: Spelling) -> None:
    after, _ = fuse(model(lambda x: 1 / sqrt(variance(x))), Roots(), bound=1e-6)
    assert kinds(after)[-1] == "RSQRT"


def test_roots_with_factors() -> None:
    after, _ = fuse(model(lambda x: 3 / sqrt(positive(x))), Roots(), bound=1e-6)
    assert kinds(after) == ["ABS", "ADD", "RSQRT", "MUL"]
    after, _ = fuse(model(lambda x: 1 / rsqrt(positive(x))), Roots(), bound=1e-6)
    assert kinds(after) == ["ABS", "ADD", "SQRT"]


def test_other_roots_stay() -> None:
    for spelling in (lambda x: 1 / (sqrt(x) + 1), lambda x: sqrt(x) * 2, lambda x: 1 / x, lambda x: x / 2):
        assert refusals(model(spelling), Roots()) == []


@pytest.mark.parametrize("small", [False, True])
def test_divide_by_root(small: bool) -> None:
    def spelling(x: T) -> T:
        v = positive(x)
        return x / sqrt(v.reduce(Op.SUM, -1) if small else v)

    after, _ = fuse(model(spelling), DivideByRoot(), cases=ORDINARY, bound=1e-6)
    assert kinds(after)[-2:] == ["RSQRT", "MUL"]
    assert "DIV" not in kinds(after)


def test_divide_by_root_of_zero() -> None:
    after, _ = fuse(model(lambda x, y: x / sqrt(y), (2, 2), (2, 2)), DivideByRoot(), cases=["zeros"])
    assert kinds(after) == ["RSQRT", "MUL"]


def test_divide_by_root_refuses_other_readers() -> None:
    m = model(lambda x: (lambda s: (x / s, tanh(s)))(sqrt(positive(x))))
    assert refusals(m, DivideByRoot()) == ["output of SQRT #2 `sqrt_2` is also read by TANH #4 `tanh_4`"]


def test_multiply_by_reciprocal() -> None:
    rule = MultiplyByReciprocal()
    for spelling in (lambda x, y: x * (1 / (absolute(y) + 1)), lambda x, y: (1 / (absolute(y) + 1)) * x):
        after, _ = fuse(model(spelling, (3, 4), (3, 4)), rule, bound=1e-6)
        assert kinds(after) == ["ABS", "ADD", "DIV"]
    assert refusals(model(lambda x, y: x * (1 / (absolute(y) + 1)), (3, 4), (3, 1)), rule) == []
    assert refusals(model(lambda x, y: x * (1 / (absolute(y) + 1)), (-1, 4), (-1, 4)), rule) == []
    assert refusals(model(lambda x, y: x * (2 / (absolute(y) + 1)), (3, 4), (3, 4)), rule) == []
    m = model(lambda x, y: (lambda r: (x * r, tanh(r)))(1 / (absolute(y) + 1)), (3, 4), (3, 4))
    assert refusals(m, rule) == ["output of DIV #2 `div_2` is also read by TANH #4 `tanh_4`"]


# -- length --------------------------------------------------------------------------------------------------------


def l2(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), 1e-6)


L2: dict[str, Spelling] = {
    "rsqrt": lambda x: x * rsqrt(maximum((x * x).reduce(Op.SUM, -1), 1e-12)),
    "sqrt": lambda x: x / sqrt(maximum(square(x).reduce(Op.SUM, [1]), 1e-12)),
    "maximum of the norm": lambda x: x / maximum(sqrt((x * x).reduce(Op.SUM, -1)), 1e-6),
    "in front": lambda x: rsqrt(maximum((x * x).reduce(Op.SUM, -1), 1e-12)) * x,
    "without keep_dims": lambda x: (
        x * rsqrt(maximum((x * x).reduce(Op.SUM, [1], keep_dims=False).reshape(2, 1), 1e-12))
    ),
}


@pytest.mark.parametrize("name", L2)
def test_l2_norm(name: str) -> None:
    cases = ("normal", "zeros", "specials")
    after, _ = fuse(model(L2[name], (2, 64)), L2Norm(), reference=l2, cases=cases, bound=1e-6)
    assert kinds(after) == ["L2_NORMALIZATION"]


def test_l2_norm_that_does_not_pay() -> None:
    assert refusals(model(L2["rsqrt"], (2, 65)), L2Norm()) == []
    assert refusals(model(L2["rsqrt"], (-1, 64)), L2Norm()) == []


def test_l2_norm_with_another_epsilon() -> None:
    m = model(lambda x: x * rsqrt(maximum((x * x).reduce(Op.SUM, -1), 1e-6)), (2, 8))
    assert refusals(m, L2Norm()) == ["the squared norm is 1e-06 at least, where L2_NORMALIZATION has 1e-12"]
    for spelling in (
        lambda x: x * rsqrt((x * x).reduce(Op.SUM, -1) + 1e-12),
        lambda x: x * rsqrt((x * x).reduce(Op.SUM, -1)),
        lambda x: x * rsqrt(maximum((x * x).reduce(Op.MEAN, -1), 1e-12)),
        lambda x: x * rsqrt(maximum((x * x).reduce(Op.SUM, 0), 1e-12)),
        lambda x: x * rsqrt(maximum((x * absolute(x)).reduce(Op.SUM, -1), 1e-12)),
        lambda x: sqrt(maximum((x * x).reduce(Op.SUM, -1), 1e-12)) / x,
        lambda x: x * sqrt(maximum((x * x).reduce(Op.SUM, -1), 1e-12)),
    ):
        assert refusals(model(spelling, (2, 8)), L2Norm()) == []


def test_l2_norm_refuses_other_readers() -> None:
    m = model(lambda x: (lambda n: (x / n, exp(n)))(sqrt(maximum((x * x).reduce(Op.SUM, -1), 1e-12))), (2, 8))
    assert refusals(m, L2Norm()) == ["output of SQRT #3 `sqrt_3` is also read by EXP #5 `exp_5`"]


# -- real models ---------------------------------------------------------------------------------------------------


def test_keras_layer_norm(corpus: list[Path]) -> None:
    before: Model = read(next(path for path in corpus if path.stem == "layernorm_ch"))
    after, report = fuse(before, NORM, SHARE, cases=ORDINARY)
    assert kinds(after) == [*BODY, "MUL", "ADD"]
    assert report.counts() == {"layer-norm": 1, "share-difference": 1}


def test_types() -> None:
    def integers(x: T) -> T:
        return x * x - x * x

    m = model(integers, (1, 4))
    for tensor in m.subgraphs[0].tensors:
        tensor.type = TensorType.INT32
    assert refusals(m, NORM, SHARE, Roots(), DivideByRoot(), MultiplyByReciprocal(), L2Norm()) == []
