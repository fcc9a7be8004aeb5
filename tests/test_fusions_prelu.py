"""PReLU in all its spellings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rules import FLOAT_CASES, apply, assert_same, fuse, kinds, looped, operators, refusals, results

from litefuse.fusions import Numerics
from litefuse.fusions.activation import FuseActivation, MergeClamps
from litefuse.fusions.leaky_relu import LeakyReLU
from litefuse.fusions.prelu import PReLU
from litefuse.graph.build import Builder, quantized
from litefuse.graph.graph import Graph
from litefuse.schema import deepcopy, read
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op

RULE = PReLU()
ALPHA = np.array([0.25, -0.1, 0.7, 1.5], np.float32)
Spelling = Callable[[Builder, int, Any], int]


def const(b: Builder, value: Any) -> int:
    return b.constant("c", np.asarray(value, np.float32))


def relu(b: Builder, x: int) -> int:
    return b.op(Op.RELU, [x])


def relu_of_negative(b: Builder, x: int) -> int:
    return relu(b, b.op(Op.NEG, [x]))


def depthwise(b: Builder, x: int, alpha: Any, bias: float = 0.0) -> int:
    weights, biases = np.reshape(alpha, (1, 1, 1, -1)), np.full(np.size(alpha), bias)
    return b.op(Op.DEPTHWISE_CONV_2D, [x, const(b, weights), const(b, biases)])


def by(b: Builder, x: int, *factors: Any) -> int:
    """x times constants, one MUL for each."""
    for factor in factors:
        x = b.op(Op.MUL, [x, const(b, factor)])
    return x


def minus_abs(b: Builder, x: int) -> int:
    return b.op(Op.SUB, [x, b.op(Op.ABS, [x])])


def minimum(b: Builder, x: int) -> int:
    return b.op(Op.MINIMUM, [x, const(b, 0)])


def plus(b: Builder, x: int, negative: int) -> int:
    return b.op(Op.ADD, [relu(b, x), negative])


SPELLINGS: dict[str, Spelling] = {
    "relu(x) - a*relu(-x)": lambda b, x, a: b.op(Op.SUB, [relu(b, x), by(b, relu_of_negative(b, x), a)]),
    "relu(x) + a*-relu(-x)": lambda b, x, a: plus(b, x, by(b, b.op(Op.NEG, [relu_of_negative(b, x)]), a)),
    "relu(x) + -(a*relu(-x))": lambda b, x, a: plus(b, x, b.op(Op.NEG, [by(b, relu_of_negative(b, x), a)])),
    "relu(x) + (-a)*relu(-x)": lambda b, x, a: plus(b, x, by(b, relu_of_negative(b, x), -a)),
    "a*-relu(-x) + relu(x)": lambda b, x, a: b.op(
        Op.ADD, [by(b, b.op(Op.NEG, [relu_of_negative(b, x)]), a), relu(b, x)]
    ),
    "relu(x) - a*relu(-1*x)": lambda b, x, a: b.op(Op.SUB, [relu(b, x), by(b, relu(b, by(b, x, -1)), a)]),
    "relu(x) - a*mul_relu(-1, x)": lambda b, x, a: b.op(
        Op.SUB,
        [
            relu(b, x),
            by(b, b.op(Op.MUL, [const(b, -1), x], fused_activation_function=ActivationFunctionType.RELU), a),
        ],
    ),
    "relu(x) - a*max(-x, 0)": lambda b, x, a: b.op(
        Op.SUB, [relu(b, x), by(b, b.op(Op.MAXIMUM, [b.op(Op.NEG, [x]), const(b, 0)]), a)]
    ),
    "relu(x) + a/2*(x-abs(x))": lambda b, x, a: plus(b, x, by(b, minus_abs(b, x), a / 2)),
    "relu(x) + 0.5*a*(x-abs(x))": lambda b, x, a: plus(b, x, by(b, minus_abs(b, x), a, 0.5)),
    "relu(x) + a*0.5*(x-abs(x))": lambda b, x, a: plus(b, x, by(b, minus_abs(b, x), 0.5, a)),
    "relu(x) + a*(x-abs(x))/2": lambda b, x, a: plus(b, x, b.op(Op.DIV, [by(b, minus_abs(b, x), a), const(b, 2)])),
    "relu(x) + a*(x-relu(x))": lambda b, x, a: plus(b, x, by(b, b.op(Op.SUB, [x, relu(b, x)]), a)),
    "relu(x) + a*min(x, 0)": lambda b, x, a: plus(b, x, by(b, minimum(b, x), a)),
    "max(0, x) + a*min(x, 0)": lambda b, x, a: b.op(
        Op.ADD, [b.op(Op.MAXIMUM, [const(b, [0]), x]), by(b, minimum(b, x), a)]
    ),
    "relu(x) - depthwise(relu(-x))": lambda b, x, a: b.op(
        Op.SUB, [relu(b, x), depthwise(b, relu_of_negative(b, x), a)]
    ),
    "relu(x) + depthwise(-relu(-x))": lambda b, x, a: plus(
        b, x, depthwise(b, b.op(Op.NEG, [relu_of_negative(b, x)]), a)
    ),
}


def spelled(spelling: Spelling, alpha: Any = ALPHA, shape: tuple[int, ...] = (1, 4, 5, 4)) -> Model:
    b = Builder()
    return b.model([spelling(b, b.input("x", list(shape)), np.asarray(alpha, np.float32))])


def alpha_of(model: Model) -> np.ndarray:
    (op,) = operators(model, "PRELU")
    value = Graph(model).constant(op.inputs[1])
    assert value is not None
    return value


# More than the rule's class promises: the same bits, but for the sign of zero and subnormal numbers.
# XNNPACK's arithmetic takes subnormal numbers for zero, its PRELU passes them on.
EXACT: dict[str, Any] = {
    "numerics": Numerics.EXACT,
    "signed_zeros": False,
    "cases": [case for case in FLOAT_CASES if case != "subnormals"],
}


def rewrites(model: Model, *rules: Any, **options: Any) -> Model:
    """The model after the rule, which must have been applied once."""
    after, report = fuse(model, *(rules or (RULE,)), **EXACT | options)
    assert report.counts()["prelu"] == 1
    return after


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    after = rewrites(spelled(SPELLINGS[name]))
    assert kinds(after) == ["PRELU"]
    assert alpha_of(after).tolist() == [[ALPHA.tolist()]]


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_behind_a_convolution_with_all_rules(name: str) -> None:
    """The activation rules come across the halves first, and must not spoil them."""
    b = Builder()
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((4, 3, 3, 2)).astype(np.float32)
    y = b.op(Op.CONV_2D, [b.input("x", [1, 6, 7, 2]), const(b, weights), const(b, rng.standard_normal(4))])
    model = b.model([SPELLINGS[name](b, y, ALPHA)])
    for rules in ([RULE, MergeClamps(), FuseActivation()], [MergeClamps(), FuseActivation(), RULE]):
        assert kinds(rewrites(model, *rules)) == ["CONV_2D", "PRELU"]


@pytest.mark.parametrize("kind", [Op.MAXIMUM, Op.MINIMUM])
def test_maximum_and_minimum(kind: Op) -> None:
    alpha = np.array([0.25, -0.5, 1.0, 0.0] if kind is Op.MAXIMUM else [1.0, 1.5, 2.0, 30.0], np.float32)
    for x_first in (True, False):
        b = Builder()
        x = b.input("x", [1, 4, 5, 4])
        pair = [x, by(b, x, alpha)]
        after = rewrites(b.model([b.op(kind, pair if x_first else pair[::-1])]))
        assert kinds(after) == ["PRELU"]
        assert alpha_of(after).tolist() == [[alpha.tolist()]]


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (2, 3, 3, 4), (2, 1, 3, 3, 4)], ids=len)
@pytest.mark.parametrize("alpha_shape", [(4,), (1, 4), (1, 1, 4)], ids=str)
def test_ranks(shape: tuple[int, ...], alpha_shape: tuple[int, ...]) -> None:
    model = spelled(SPELLINGS["relu(x) + a*min(x, 0)"], ALPHA.reshape(alpha_shape), shape)
    if len(alpha_shape) > len(shape):
        assert refusals(model, RULE) == ["a constant may change the shape by broadcasting"]
        return
    after = rewrites(model)
    assert kinds(after) == ["PRELU"]
    assert alpha_of(after).shape == (1,) * (len(shape) - 2) + (4,)


def test_a_half_behind_fp16_or_computed_factors_is_left_alone() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    alpha = b.op(Op.DEQUANTIZE, [b.constant("a", ALPHA.astype(np.float16))], type=TensorType.FLOAT32)
    m = b.model([plus(b, x, b.op(Op.MUL, [minimum(b, x), alpha]))])
    assert refusals(m, RULE) == []


def test_both_halves_may_share_an_operator() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    y = relu(b, x)
    after = rewrites(b.model([b.op(Op.ADD, [y, by(b, b.op(Op.SUB, [x, y]), ALPHA)])]))
    assert kinds(after) == ["PRELU"]


def test_dynamic_batch() -> None:
    after = rewrites(spelled(SPELLINGS["relu(x) - a*relu(-x)"], ALPHA, (-1, 3, 3, 4)))
    assert kinds(after) == ["PRELU"]


def test_inside_a_while_body() -> None:
    after = rewrites(looped(spelled(SPELLINGS["relu(x) - a*relu(-x)"])))
    assert kinds(after) == ["WHILE"]
    assert kinds(after, 2) == ["PRELU", "ADD"]


def test_several_on_one_input() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    first, second = (SPELLINGS["relu(x) - a*relu(-x)"](b, x, a) for a in (ALPHA, ALPHA + 1))
    after, report = fuse(b.model([first, second]), RULE, **EXACT)
    assert kinds(after) == ["PRELU", "PRELU"]
    assert report.counts() == {"prelu": 2}


def test_the_documented_exceptions() -> None:
    """Infinite x, and products beyond the largest float, where the rewritten model is the better one."""
    before = spelled(SPELLINGS["relu(x) + 0.5*a*(x-abs(x))"], [0.25, -0.1, 0.7, 1.5], (1, 4))
    after = rewrites(before)
    x = np.array([[np.inf, np.inf, -np.inf, -3e38]], np.float32)
    (was,), (now,) = (results(m, x, xnnpack=True) for m in (before, after))
    assert was[0, :2].tolist() == pytest.approx([np.nan, np.nan], nan_ok=True)
    assert now[0].tolist() == [np.inf, np.inf, -np.inf, -np.inf]


# -- refusals ------------------------------------------------------------------------------------------------------


def refuses(model: Model) -> str:
    (reason,) = refusals(model, RULE)
    return reason


def test_refuses_other_readers() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    half = relu_of_negative(b, x)
    m = b.model([b.op(Op.SUB, [relu(b, x), by(b, half, ALPHA)]), b.op(Op.ABS, [half])])
    assert refuses(m) == "output of RELU #1 `relu_1` is also read by ABS #5 `abs_5`"


def test_refuses_an_inner_model_output() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    y = relu(b, x)
    m = b.model([b.op(Op.SUB, [y, by(b, relu_of_negative(b, x), ALPHA)]), y])
    assert refuses(m) == "output of RELU #0 `relu_0` is also an output of the model"


def test_refuses_the_wrong_axis() -> None:
    reason = "the slope differs along another axis than the last; PRELU wants one per channel"
    for shape in ((4, 1), (4, 4, 1), (1, 4, 1, 1), (1, 4, 4, 3)):
        alpha = np.broadcast_to(ALPHA.reshape(-1, *[1] * (len(shape) > 2), 1), shape)
        assert refuses(spelled(SPELLINGS["relu(x) - a*relu(-x)"], alpha, (1, 4, 4, 3))) == reason


def test_a_full_alpha_that_only_differs_per_channel() -> None:
    alpha = np.broadcast_to(ALPHA, (1, 3, 3, 4))
    after = rewrites(spelled(SPELLINGS["relu(x) - a*relu(-x)"], alpha, (1, 3, 3, 4)))
    assert alpha_of(after).tolist() == [[ALPHA.tolist()]]


def test_refuses_a_shape_changed_by_broadcasting() -> None:
    m = spelled(SPELLINGS["relu(x) - a*relu(-x)"], ALPHA, (1, 4, 5, 1))
    assert refuses(m) == "a constant may change the shape by broadcasting"
    m = spelled(SPELLINGS["relu(x) - a*relu(-x)"], np.full((3, 1, 1, 4), ALPHA), (-1, 3, 3, 4))
    assert refuses(m) == "a constant may change the shape by broadcasting"
    b = Builder()
    x = b.input("x", [1, 4])
    zeros = const(b, np.zeros((2, 1)))
    m = b.model([b.op(Op.ADD, [b.op(Op.MAXIMUM, [x, zeros]), by(b, minimum(b, x), ALPHA)])])
    assert refuses(m) == "a constant may change the shape by broadcasting"


def test_refuses_products_that_round() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    reason = "the product of the constants is not a float32, so that rounding would change"
    assert refuses(b.model([plus(b, x, by(b, minimum(b, x), ALPHA, 0.3))])) == reason
    b = Builder()
    x = b.input("x", [1, 4])
    # 3 * 5 is a float32, but 3 * (5 * x) rounds twice.
    assert refuses(b.model([plus(b, x, by(b, minimum(b, x), [3, 3, 3, 1], 5))])) == reason
    assert refuses(spelled(SPELLINGS["relu(x) + a*min(x, 0)"], [1, 2, np.inf, 1])) == "a slope is not a finite number"


def test_refuses_slopes_for_which_maximum_is_no_prelu() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    m = b.model([b.op(Op.MAXIMUM, [x, by(b, x, ALPHA)])])
    assert refuses(m) == "MAXIMUM(x, a * x) is no PReLU where a is above 1"
    b = Builder()
    x = b.input("x", [1, 4])
    m = b.model([b.op(Op.MINIMUM, [x, by(b, x, ALPHA)])])
    assert refuses(m) == "MINIMUM(x, a * x) is no PReLU where a is below 1"


def test_refuses_a_fused_activation() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    halves = [relu(b, x), by(b, minimum(b, x), ALPHA)]
    m = b.model([b.op(Op.ADD, halves, fused_activation_function=ActivationFunctionType.RELU6)])
    assert refuses(m) == "ADD has a fused RELU6, which PRELU cannot have"


def test_refuses_other_types() -> None:
    b = Builder()
    q = quantized(0.05, 0)
    x = b.input("x", [1, 4], TensorType.INT8, q)
    alpha = b.constant("a", np.array([10, 20, 30, 40], np.int8), quantized(0.01))
    m = b.model([b.op(Op.MAXIMUM, [b.op(Op.MUL, [x, alpha]), x])])
    assert refuses(m).startswith("INT8 values: one operator would round differently")
    b = Builder()
    x = b.input("x", [1, 2], TensorType.INT32)
    m = b.model([b.op(Op.MAXIMUM, [b.op(Op.MUL, [x, b.constant("a", [-1, 0])]), x])])
    assert refuses(m) == "PRELU has no kernel for INT32 values"


def test_refuses_variables() -> None:
    m = spelled(SPELLINGS["relu(x) - a*relu(-x)"])
    m.subgraphs[0].tensors[m.subgraphs[0].inputs[0]].is_variable = True
    assert refuses(m) == "tensor `x` is a variable"


NOT_PRELU: dict[str, Spelling] = {
    "two inputs": lambda b, x, a: plus(b, x, by(b, minimum(b, b.op(Op.TANH, [x])), a)),
    "relu(x) + a*max(x, 0)": lambda b, x, a: plus(b, x, by(b, relu(b, x), a)),
    "relu(x) + a*min(x, 1)": lambda b, x, a: plus(b, x, by(b, b.op(Op.MINIMUM, [x, const(b, 1)]), a)),
    "relu(x) + a*(abs(x)-x)": lambda b, x, a: plus(b, x, by(b, b.op(Op.SUB, [b.op(Op.ABS, [x]), x]), a)),
    "relu6(x) + a*min(x, 0)": lambda b, x, a: b.op(Op.ADD, [b.op(Op.RELU6, [x]), by(b, minimum(b, x), a)]),
    "a*min(x, 0) - relu(x)": lambda b, x, a: b.op(Op.SUB, [by(b, minimum(b, x), a), relu(b, x)]),
    "relu(x) + a*relu(-2x)": lambda b, x, a: plus(b, x, by(b, relu(b, by(b, x, -2)), a)),
    "relu(x) + depthwise with bias": lambda b, x, a: plus(b, x, depthwise(b, minimum(b, x), a, 0.5)),
    "many factors": lambda b, x, a: plus(b, x, by(b, minimum(b, x), a, 2, 2, 2, 2)),
    "max(x, a*y)": lambda b, x, a: b.op(Op.MAXIMUM, [x, by(b, b.op(Op.TANH, [x]), a)]),
    "max(x, y)": lambda b, x, a: b.op(Op.MAXIMUM, [x, b.op(Op.TANH, [x])]),
}


@pytest.mark.parametrize("name", NOT_PRELU)
def test_leaves_what_is_no_prelu(name: str) -> None:
    assert refusals(spelled(NOT_PRELU[name]), RULE, LeakyReLU()) == []


# -- real models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "sites"), [("expo_mtcnn_pnet", 3), ("expo_mtcnn_rnet", 4)])
def test_mtcnn(corpus: list[Path], name: str, sites: int) -> None:
    before = read(next(path for path in corpus if path.stem == name))
    after = deepcopy(before)
    report = apply(after, RULE)
    assert report.counts() == {"prelu": sites}
    assert report.refused == []
    assert kinds(after).count("PRELU") == sites
    assert not {"NEG", "RELU", "MUL", "ADD"} & set(kinds(after))
    rng = np.random.default_rng(0)
    shape = before.subgraphs[0].tensors[before.subgraphs[0].inputs[0]].shape
    image = rng.uniform(-1, 1, shape or ()).astype(np.float32)
    assert_same(before, after, Numerics.EXACT, inputs=[[image]])
