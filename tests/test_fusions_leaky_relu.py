"""LeakyReLU spelled in other operators, and PRELU with one slope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import FLOAT_CASES, fuse, kinds, looped, operators, refusals

from litefuse.fusions import Numerics
from litefuse.fusions.leaky_relu import LeakyReLU
from litefuse.fusions.prelu import PReLU
from litefuse.graph.build import Builder, quantized
from litefuse.schema.enums import TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op

RULE = LeakyReLU()
# More than the rule's class promises: the same bits, but for the sign of zero and subnormal numbers.
# XNNPACK's arithmetic takes subnormal numbers for zero, its LEAKY_RELU and PRELU do not.
EXACT: dict[str, Any] = {
    "numerics": Numerics.EXACT,
    "signed_zeros": False,
    "cases": [case for case in FLOAT_CASES if case != "subnormals"],
}


def const(b: Builder, value: Any) -> int:
    return b.constant("c", np.asarray(value, np.float32))


def by(b: Builder, x: int, factor: Any) -> int:
    return b.op(Op.MUL, [x, const(b, factor)])


def relu(b: Builder, x: int) -> int:
    return b.op(Op.RELU, [x])


def difference(b: Builder, x: int, a: Any) -> int:
    return b.op(Op.SUB, [relu(b, x), by(b, relu(b, b.op(Op.NEG, [x])), a)])


def total(b: Builder, x: int, a: Any) -> int:
    return b.op(Op.ADD, [relu(b, x), by(b, b.op(Op.MINIMUM, [x, const(b, 0)]), a)])


def maximum(b: Builder, x: int, a: Any) -> int:
    return b.op(Op.MAXIMUM, [x, by(b, x, a)])


def minimum(b: Builder, x: int, a: Any) -> int:
    return b.op(Op.MINIMUM, [by(b, x, a), x])


def prelu(b: Builder, x: int, a: Any) -> int:
    return b.op(Op.PRELU, [x, const(b, a)])


def model(spelling: Callable[[Builder, int, Any], int], alpha: Any, shape: tuple[int, ...] = (1, 4, 5, 3)) -> Model:
    b = Builder()
    return b.model([spelling(b, b.input("x", list(shape)), alpha)])


def slope(before: Model, *rules: Any) -> float:
    """The slope of the LEAKY_RELU that the model becomes."""
    after, report = fuse(before, *(rules or (RULE,)), **EXACT)
    assert kinds(after) == ["LEAKY_RELU"]
    assert report.counts() == {"leaky-relu": 1}
    (op,) = operators(after, "LEAKY_RELU")
    return float(op.builtin_options.alpha)


@pytest.mark.parametrize("alpha", [0.2, [0.2], np.full((1, 1, 3), 0.2), np.full((1, 4, 5, 3), 0.2)], ids=np.shape)
@pytest.mark.parametrize("spelling", [difference, total, maximum], ids=lambda f: f.__name__)
def test_spellings(spelling: Callable[..., int], alpha: Any) -> None:
    assert slope(model(spelling, alpha), PReLU(), RULE) == np.float32(0.2)


@pytest.mark.parametrize("alpha", [np.full(3, 0.3), np.full((1, 1, 3), 0.3), np.full((1, 1, 1), 0.3)], ids=np.shape)
def test_prelu_with_one_slope(alpha: Any) -> None:
    assert slope(model(prelu, alpha)) == np.float32(0.3)


@pytest.mark.parametrize("alpha", [-2.0, -0.1, 1.0, 3.0])
def test_slopes_beyond_the_usual(alpha: float) -> None:
    assert slope(model(total, alpha)) == np.float32(alpha)
    assert slope(model(difference, alpha)) == np.float32(alpha)
    assert slope(model(maximum if alpha <= 1 else minimum, alpha)) == np.float32(alpha)


@given(st.floats(0.0009765625, 1.0, width=32))
@settings(max_examples=20, deadline=None)
def test_any_slope(alpha: float) -> None:
    assert slope(model(maximum, alpha)) == alpha


def test_halved_distance() -> None:
    def spelling(b: Builder, x: int, a: Any) -> int:
        distance = b.op(Op.SUB, [x, b.op(Op.ABS, [x])])
        return b.op(Op.ADD, [by(b, by(b, distance, 0.5), a), relu(b, x)])

    assert slope(model(spelling, 0.2)) == np.float32(0.2)


def test_dynamic_batch() -> None:
    assert slope(model(maximum, np.full((1, 1, 3), 0.2), (-1, 4, 5, 3))) == np.float32(0.2)


def test_inside_a_while_body() -> None:
    after, _ = fuse(looped(model(maximum, 0.2)), RULE, **EXACT)
    assert kinds(after, 2) == ["LEAKY_RELU", "ADD"]


def test_leaves_slopes_per_channel_to_prelu() -> None:
    for spelling in (difference, total, maximum, prelu):
        assert refusals(model(spelling, [0.1, 0.2, 0.3]), RULE) == []


# -- refusals ------------------------------------------------------------------------------------------------------


def refuses(before: Model) -> str:
    (reason,) = refusals(before, RULE)
    return reason


def test_refuses_maximum_with_a_slope_above_one() -> None:
    assert refuses(model(maximum, 1.5)) == "MAXIMUM(x, a * x) is no PReLU where a is above 1"
    assert refuses(model(minimum, 0.5)) == "MINIMUM(x, a * x) is no PReLU where a is below 1"


def test_refuses_slopes_that_xnnpack_does_not_take() -> None:
    for alpha in (0.0, 1e-40):
        assert refuses(model(prelu, [alpha] * 3)).startswith("XNNPACK does not take LEAKY_RELU with a slope of ")


def test_refuses_other_readers_and_outputs() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    y = by(b, x, 0.2)
    m = b.model([b.op(Op.MAXIMUM, [x, y]), b.op(Op.ABS, [y])])
    assert refuses(m) == "output of MUL #0 `mul_0` is also read by ABS #2 `abs_2`"
    b = Builder()
    x = b.input("x", [1, 4])
    y = by(b, x, 0.2)
    assert refuses(b.model([b.op(Op.MAXIMUM, [x, y]), y])) == "output of MUL #0 `mul_0` is also an output of the model"


def test_refuses_a_shape_changed_by_broadcasting() -> None:
    m = model(maximum, np.full((2, 1, 1, 1), 0.2))
    assert refuses(m) == "a constant may change the shape by broadcasting"
    m = model(maximum, np.full((2, 1, 1, 1), 0.2), (-1, 4, 5, 3))
    assert refuses(m) == "a constant may change the shape by broadcasting"


def test_refuses_quantized_values() -> None:
    b = Builder()
    x = b.input("x", [1, 4], TensorType.INT8, quantized(0.05, -3))
    alpha = b.constant("a", np.array(20, np.int8), quantized(0.01))
    m = b.model([b.op(Op.MAXIMUM, [b.op(Op.MUL, [x, alpha]), x])])
    assert refuses(m).startswith("INT8 values: one operator would round differently")


def test_refuses_variables() -> None:
    m = model(maximum, 0.2)
    m.subgraphs[0].tensors[m.subgraphs[0].inputs[0]].is_variable = True
    assert refuses(m) == "tensor `x` is a variable"
