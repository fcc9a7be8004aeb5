"""ELU, SELU and CELU by exponentials, and rectifiers by SELECT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rules import fuse, kinds, looped, operators, refusals, results
from spell import T, absolute, exp, greater, maximum, minimum, model, relu, select

from litefuse.fusions.elu import RULES, Elu, SelectToRectifier
from litefuse.schema.operators import Op

ELU, SELECT = Elu(), SelectToRectifier()
SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772
Spelling = Callable[[T, float], Any]


def elu(x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def less(x: T, y: Any) -> T:
    return x.op(Op.LESS, x, y)


def of_elu(x: T) -> T:
    return x.of(Op.ELU)


SPELLINGS: dict[str, Spelling] = {
    "where(x > 0, x, a (exp(x) - 1))": lambda x, a: select(greater(x, 0), x, (exp(x) - 1) * a),
    "SELECT": lambda x, a: select(greater(x, 0), x, (exp(x) - 1) * a, Op.SELECT),
    "where(x < 0, ...)": lambda x, a: select(less(x, 0), a * (exp(x) - 1), x),
    "where(x > 0, x, a exp(x) - a)": lambda x, a: select(greater(x, 0), x, exp(x) * a - a),
    "relu + exp(min)": lambda x, a: relu(x) + (exp(minimum(x, 0)) - 1) * a,
    "max + min": lambda x, a: maximum(x, 0) + minimum((exp(x) - 1) * a, 0),
    "relu + exp(-relu(-x))": lambda x, a: relu(x) + (exp(-relu(-x)) - 1) * a,
    "relu - a (1 - exp)": lambda x, a: relu(x) - a * (1 - exp(minimum(x, 0))),
    "of ELU": lambda x, a: select(greater(x, 0), of_elu(x), of_elu(x) * a),
}


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("alpha", [1.0, 0.7, ALPHA])
def test_spellings(name: str, alpha: float) -> None:
    if name == "of ELU" and alpha == 1:
        return
    before = model(lambda x: SPELLINGS[name](x, alpha))
    # exp(x) - 1 rounds to multiples of 6e-8 near 0.
    after, _ = fuse(before, ELU, reference=lambda x: elu(x, alpha), cases=["normal", "wide", "zeros"], bound=3e-7)
    assert kinds(after) == (["ELU"] if alpha == 1 else ["ELU", "LEAKY_RELU"])
    if alpha != 1:
        assert operators(after, "LEAKY_RELU")[0].builtin_options.alpha == pytest.approx(alpha, rel=1e-6)


@pytest.mark.parametrize("name", SPELLINGS)
def test_selu(name: str) -> None:
    for spelling in (
        lambda x: SPELLINGS[name](x, ALPHA) * SCALE,
        lambda x: SCALE * SPELLINGS[name](x, ALPHA),
    ):
        after, _ = fuse(model(spelling), ELU, reference=lambda x: SCALE * elu(x, ALPHA), cases=["normal"], bound=3e-7)
        assert kinds(after) == ["ELU", "LEAKY_RELU", "MUL"]


def test_selu_multiplied_out() -> None:
    """As Keras converts it."""
    m = model(lambda x: select(greater(x, 0), x * SCALE, (exp(x) - 1) * (SCALE * ALPHA), Op.SELECT))
    after, _ = fuse(m, ELU, reference=lambda x: SCALE * elu(x, ALPHA), bound=3e-7)
    assert kinds(after) == ["ELU", "LEAKY_RELU", "MUL"]


def test_large_numbers() -> None:
    x = np.array([[89, 1e4, 1e30, -89, -1e4, -1e30]], np.float32)
    after, _ = fuse(model(lambda x: select(greater(x, 0), x, exp(x) - 1), (1, 6)), ELU, cases=["normal"])
    for xnnpack in (False, True):
        assert results(after, x, xnnpack=xnnpack)[0][0].tolist() == [89, 1e4, np.float32(1e30), -1, -1, -1]


def test_dynamic_batch_and_while_body() -> None:
    def spelling(x: T) -> T:
        return relu(x) + (exp(minimum(x, 0)) - 1)

    after, _ = fuse(model(spelling, (-1, 7)), ELU, reference=elu, cases=["normal", "wide"])
    assert kinds(after) == ["ELU"]
    after, _ = fuse(looped(model(spelling, (1, 7))), ELU, cases=["normal", "wide"])
    assert kinds(after, 2) == ["ELU", "ADD"]


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: relu(x) + (exp(minimum(x, 0)) - 1.01),
        lambda x: relu(x) + (exp(minimum(x * 0.9, 0)) - 1),
        lambda x: relu(x) + (exp(minimum(x, 0.1)) - 1),
        lambda x: select(greater(x, 0.1), x, exp(x) - 1),
        lambda x: exp(minimum(x, 0)) - 1,
        lambda x: select(greater(x, 0), x * x, exp(x) - 1),
        lambda x: of_elu(x) * 0.5,
    ],
    ids=range(7),
)
def test_leaves_other_functions(spelling: Callable[[T], T]) -> None:
    assert refusals(model(spelling), *RULES) == []


def test_refuses_other_readers() -> None:
    def shared(x: T) -> tuple[T, T]:
        e = exp(x)
        return select(greater(x, 0), x, e - 1), absolute(e)

    assert refusals(model(shared), ELU) == ["output of EXP #0 `exp_0` is also read by ABS #4 `abs_4`"]


# -- SELECT --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Op.SELECT, Op.SELECT_V2])
@pytest.mark.parametrize(
    ("slope", "expected"), [(0.0, "RELU"), (-1.0, "ABS"), (0.1, "LEAKY_RELU"), (2.0, "LEAKY_RELU")]
)
def test_select(kind: Op, slope: float, expected: str) -> None:
    def greater_than_zero(x: T) -> T:
        negative = x * slope if slope not in (0.0, -1.0) else -x if slope else x * 0
        return select(greater(x, 0), x, negative, kind)

    def less_than_zero(x: T) -> T:
        negative = x * slope if slope not in (0.0, -1.0) else -x if slope else x.of(Op.ZEROS_LIKE)
        return select(less(x, 0), negative, x, kind)

    for spelling in (greater_than_zero, less_than_zero):
        after, _ = fuse(model(spelling), SELECT, reference=lambda x: np.where(x > 0, x, slope * x), bound=1e-7)
        assert kinds(after) == [expected]


def test_select_of_a_number() -> None:
    after, _ = fuse(model(lambda x: select(greater(x, 0), x, 0)), SELECT, reference=lambda x: np.maximum(x, 0))
    assert kinds(after) == ["RELU"]


def test_select_of_what_is_finite() -> None:
    """reduce_logsumexp guards its maximum against infinities so."""
    after, _ = fuse(model(lambda x: select(x.op(Op.EQUAL, x - x, 0), x, 0)), SELECT, cases=["normal", "wide", "zeros"])
    assert kinds(after) == ["MUL"]


def test_select_of_a_mask() -> None:
    def masked(x: T) -> T:
        mask = greater(x, 0)
        return x * T(x.builder, x.builder.op(Op.CAST, [mask.tensor], type=x.builder._subgraph.tensors[x.tensor].type))

    m = model(lambda x: select(greater(x, 0), masked(x), 0))
    after, _ = fuse(m, SELECT, reference=lambda x: np.maximum(x, 0))
    assert kinds(after) == ["RELU"]


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: select(greater(x, 0.5), x, 0),
        lambda x: select(greater(x, 0), x, -0.1),
        lambda x: select(greater(absolute(x), 0.5), x, 0),
        lambda x: select(greater(x, 0), x, x * x),
    ],
    ids=range(4),
)
def test_select_leaves_other_functions(spelling: Callable[[T], T]) -> None:
    assert refusals(model(spelling), SELECT) == []


def test_select_between_two_tensors() -> None:
    assert refusals(model(lambda x, y: select(greater(x, 0), x, y), (1, 4), (1, 4)), SELECT) == []
