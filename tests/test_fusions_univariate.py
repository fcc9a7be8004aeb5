"""Reading operators as functions of one variable."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import fuse, kinds, refusals, results
from spell import (
    COMPARISONS,
    T,
    absolute,
    clip,
    exp,
    fused,
    greater,
    maximum,
    minimum,
    model,
    relu,
    relu6,
    select,
    sigmoid,
    square,
    tanh,
)

from litefuse.fusions import Numerics, elu, gelu, hard_swish, softplus
from litefuse.fusions import sigmoid as sigmoids
from litefuse.fusions.forms import FUNCTIONS, Form, X
from litefuse.fusions.univariate import Cone, Spelled, cones, factor, is_stable, range_of, scalar
from litefuse.graph import Graph
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op

Spelling = Callable[[T], T]
TANH = Form(Op.TANH, (X,))
SQUARE = Form(Op.MUL, (X, X))


def all_cones(m: Model) -> list[Cone]:
    """Those that end in the last operator."""
    graph = Graph(m)
    return list(cones(graph, list(graph.operators())[-1]))


def largest(m: Model) -> Cone:
    return all_cones(m)[-1]


def names(m: Model, cone: Cone) -> list[str]:
    return [cone.graph.kind(op).name for op in cone.operators]


# -- cones ---------------------------------------------------------------------------------------------------------


def test_cones_of_a_chain() -> None:
    m = model(lambda x: tanh(relu(x * 2) + 1))
    found = [names(m, cone) for cone in all_cones(m)]
    assert found == [["TANH"], ["ADD", "TANH"], ["RELU", "ADD", "TANH"], ["MUL", "RELU", "ADD", "TANH"]]


def test_cones_of_a_diamond() -> None:
    """Only tensors through which everything passes are sources."""
    m = model(lambda x: (lambda y: sigmoid(y) * tanh(y + 1))(relu(x)))
    found = [(names(m, cone), cone.graph.name(cone.source)) for cone in all_cones(m)]
    assert [kinds for kinds, _ in found] == [
        ["LOGISTIC", "ADD", "TANH", "MUL"],
        ["RELU", "LOGISTIC", "ADD", "TANH", "MUL"],
    ]
    assert [source for _, source in found] == ["relu_0", "x"]


def test_no_cone_of_two_tensors() -> None:
    assert all_cones(model(lambda x, y: x * y, (1, 4), (1, 4))) == []
    assert all_cones(model(lambda x: x * np.array([1, 2, 3]))) == []
    assert [len(c.operators) for c in all_cones(model(lambda x: tanh(x * np.array([1, 2, 3]))))] == [1]


def test_cones_stop_at_what_is_not_elementwise() -> None:
    m = model(lambda x: tanh(x.reduce(Op.SUM, -1)) * 2)
    assert [names(m, cone) for cone in all_cones(m)] == [["MUL"], ["TANH", "MUL"]]


def test_cones_are_bounded() -> None:
    def long(x: T) -> T:
        for _ in range(100):
            x = x + 1
        return x

    assert max(len(cone.operators) for cone in all_cones(model(long))) == 32


def cast(x: T) -> T:
    return T(x.builder, x.builder.op(Op.CAST, [x.tensor], type=TensorType.FLOAT32))


def compared(kind: Op) -> Spelling:
    return lambda x: cast(x.op(kind, x, 0.5)) * 2


def combined(kind: Op) -> Spelling:
    return lambda x: select(x.op(kind, greater(x, -1), greater(2, x), type=TensorType.BOOL), x, x * x)


VALUES: dict[str, Spelling] = {
    **{
        kind.name: (lambda x, k=kind: x.of(k) * 2) for kind in (Op.ABS, Op.NEG, Op.SQUARE, Op.EXP, Op.LOGISTIC, Op.TANH)
    },
    **{kind.name: (lambda x, k=kind: x.of(k) * 2) for kind in (Op.RELU, Op.RELU6, Op.RELU_N1_TO_1, Op.RELU_0_TO_1)},
    **{kind.name: (lambda x, k=kind: x.of(k) * 2) for kind in (Op.HARD_SWISH, Op.ELU, Op.SIGN, Op.ZEROS_LIKE, Op.GELU)},
    **{kind.name: (lambda x, k=kind: (absolute(x) + 1).of(k)) for kind in (Op.SQRT, Op.RSQRT, Op.LOG)},
    **{kind.name: compared(kind) for kind in COMPARISONS},
    **{kind.name: combined(kind) for kind in (Op.LOGICAL_AND, Op.LOGICAL_OR)},
    "LOGICAL_NOT": lambda x: select(greater(x, 1).of(Op.LOGICAL_NOT), x, 3),
    "GELU approximate": lambda x: x.of(Op.GELU, approximate=True) * 2,
    "LEAKY_RELU": lambda x: x.of(Op.LEAKY_RELU, alpha=0.25) * 2,
    "PRELU": lambda x: x.op(Op.PRELU, x, np.full((1, 1, 3), 0.25)) * 2,
    "SELECT": lambda x: select(greater(x, 1), x, x * x, Op.SELECT),
    "DIV": lambda x: 2 / (absolute(x) + 3) - x / 3,
    "MAXIMUM": lambda x: maximum(x, -1) - minimum(x, 2),
    "SQUARED_DIFFERENCE": lambda x: x.op(Op.SQUARED_DIFFERENCE, x, 3) * 2,
    "POW": lambda x: absolute(x) ** 1.7 + x**3,
    "fused": lambda x: fused(fused(x * 2, ActivationFunctionType.RELU6) - 3, ActivationFunctionType.RELU_N1_TO_1),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name: str) -> None:
    """Cones give what the builtin kernels give."""
    m = model(VALUES[name], (1, 14, 1, 3))
    cone = next(c for c in all_cones(m) if c.graph.name(c.source) == "x")
    x = np.concatenate([np.linspace(-5, 5, 41), [0.5]])
    expected = results(m, x.astype(np.float32).reshape(1, 14, 1, 3))[0].reshape(-1)
    assert np.allclose(cone(x), expected, rtol=1e-5, atol=1e-6)
    found = cone(x.astype(np.float32))
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert found.dtype == np.float32


def test_values_cover_all_operators() -> None:
    used = {graph.kind(op) for f in VALUES.values() for graph in [Graph(model(f))] for op in graph.operators()}
    assert set(FUNCTIONS) <= used


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu(approximate: bool) -> None:
    x = np.linspace(-6, 6, 25)
    erf = np.array([math.erf(v / math.sqrt(2)) for v in x])
    inner = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    expected = 0.5 * x * (1 + (inner if approximate else erf))
    assert np.allclose(FUNCTIONS[Op.GELU](x, approximate=approximate), expected, rtol=1e-12, atol=1e-15)


def test_costs() -> None:
    assert largest(model(lambda x: relu6(x + 3) * 0.5)).cost == 2  # the RELU6 will be fused
    assert largest(model(lambda x: relu(tanh(x)))).cost == pytest.approx(3.3)
    assert Form(Op.MUL, (Form(Op.ADD, (SQUARE, SQUARE)), X)).cost == 3  # the square is computed once


def test_scalars() -> None:
    b = Builder()
    q = b.constant("q", np.array([10, 10], np.int8), quantized(0.5, 2))
    r = b.constant("r", np.array([10, 11], np.int8), quantized(0.5, 2))
    c = b.constant("c", np.array([[1.5, 1.5]], np.float32))
    per_channel = b.constant("p", np.array([3, 3], np.int8), quantized([0.5, 0.25]))
    empty = b.constant("e", np.zeros(0, np.float32))
    graph = Graph(b.model([b.op(Op.RELU, [b.input("x", [1])])]))
    assert [scalar(graph, t) for t in (q, r, c, per_channel, empty, 0, -1)] == [4.0, None, 1.5, None, None, 4.0, None]


# -- comparing -----------------------------------------------------------------------------------------------------


def test_factor() -> None:
    assert factor(largest(model(lambda x: (exp(x) - exp(-x)) / (exp(x) + exp(-x)))), TANH) == 1.0
    assert factor(largest(model(lambda x: tanh(x) * 3)), TANH) == pytest.approx(3)
    assert factor(largest(model(lambda x: tanh(x) * -0.5)), TANH) == pytest.approx(-0.5)
    assert factor(largest(model(lambda x: tanh(x) * 1.0000002)), TANH) == 1.0
    assert factor(largest(model(lambda x: tanh(x) + 0)), TANH) == 1.0
    assert factor(largest(model(lambda x: x**2)), SQUARE) == 1.0


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x: tanh(x) + 1e-5,
        lambda x: tanh(x * 1.00001),
        lambda x: minimum(tanh(x), 0.9999),
        lambda x: maximum(tanh(x), x - 1e6),
        lambda x: tanh(x) * tanh(x),
        lambda x: tanh(x) * 0,
        # Off in a narrow place only: around a constant, or far out.
        lambda x: tanh(x) + relu(0.0005 - absolute(x - 0.3333)),
        lambda x: tanh(x) + relu(absolute(x) - 1e9),
        lambda x: select(x.op(Op.EQUAL, x, 0.123), x * 2, tanh(x)),
    ],
    ids=range(9),
)
def test_functions_that_are_another(spelling: Spelling) -> None:
    assert factor(largest(model(spelling)), TANH) is None


def test_stability() -> None:
    def quotient(x: T) -> T:
        return (exp(x) - exp(-x)) / (exp(x) + exp(-x))

    assert not is_stable(largest(model(quotient)), TANH, 1.0)
    m = model(lambda x: quotient(minimum(maximum(x, -30), 30)))
    cone = next(c for c in all_cones(m) if c.graph.name(c.source) != "x" and factor(c, TANH))
    assert is_stable(cone, TANH, 1.0)
    assert is_stable(largest(model(lambda x: sigmoid(x * 2) * 2 - 1)), TANH, 1.0)
    # Both overflow, at the same place.
    assert is_stable(largest(model(lambda x: x**2)), SQUARE, 1.0)


def test_ranges() -> None:
    def ranges(*spellings: Spelling) -> list[tuple[float, float]]:
        found = []
        for spelling in spellings:
            m = model(spelling)
            found.append(range_of(Graph(m), m.subgraphs[0].outputs[0]))
        return found

    assert ranges(relu, relu6, absolute, square, exp, sigmoid, tanh) == [
        (0, math.inf),
        (0, 6),
        (0, math.inf),
        (0, math.inf),
        (0, math.inf),
        (0, 1),
        (-1, 1),
    ]
    assert ranges(lambda x: -relu6(x), lambda x: absolute(clip(x, -3, 2)), lambda x: x * x, lambda x: x * 2) == [
        (-6, 0),
        (0, 3),
        (0, math.inf),
        (-math.inf, math.inf),
    ]
    assert ranges(
        lambda x: relu6(x).reduce(Op.MEAN, -1) + 1,
        lambda x: 1 + relu6(x).reduce(Op.SUM, -1),
        lambda x: tanh(x).reduce(Op.SUM, -1),
        lambda x: relu6(x).reduce(Op.REDUCE_MAX, -1, keep_dims=False),
        lambda x: relu6(x) + tanh(x),
    ) == [(1, 7), (1, math.inf), (-math.inf, math.inf), (0, 6), (-math.inf, math.inf)]


# -- rules ---------------------------------------------------------------------------------------------------------


class Double(Spelled):
    """tanh(x) + tanh(x), for the tests."""

    name = "double"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.ADD, Op.MUL})
    needs = frozenset({Op.TANH})

    def forms(self, cone: Cone) -> tuple[Form, ...]:
        return (TANH,)


def test_saves_most() -> None:
    """Of several sources that would do, the one that leaves least behind is taken."""
    after, _ = fuse(model(lambda x: (lambda y: tanh(y) + tanh(y))(maximum(x, -1e3))), Double(), cases=["normal"])
    assert kinds(after) == ["TANH", "MUL"]


def test_waits_for_a_factor() -> None:
    after, report = fuse(model(lambda x: (tanh(x) + tanh(x)) * 0.5), Double(), cases=["normal"])
    assert kinds(after) == ["TANH"]
    assert report.counts() == {"double": 1}


def test_costs_decide() -> None:
    assert refusals(model(lambda x: tanh(x) * 2), Double()) == []


def test_damaged_operators() -> None:
    m = model(lambda x: (tanh(x) + tanh(x)) * 0.5)
    for op in m.subgraphs[0].operators:
        op.inputs = op.inputs[:1]
    assert refusals(m, Double()) == []
    for op in m.subgraphs[0].operators:
        op.inputs = []
    assert refusals(m, Double()) == []


def test_forms_are_written_once() -> None:
    form = Form(Op.ADD, (SQUARE, Form(Op.MUL, (SQUARE, 2.0))), activation=ActivationFunctionType.RELU)
    assert str(form) == "MUL, MUL, ADD+RELU"
    assert form(np.array([1.0, -2.0])).tolist() == [3.0, 12.0]
    assert form.times(1) is form
    assert Form(Op.MUL, (X, 2.0)).times(3) == Form(Op.MUL, (X, 6.0), is_multiple=True)
    assert TANH.times(3) == Form(Op.MUL, (TANH, 3.0), is_multiple=True)


def test_integers_are_left_alone() -> None:
    b = Builder()
    x = b.input("x", [1, 4], TensorType.INT32)
    graph = Graph(b.model([b.op(Op.ADD, [b.op(Op.MUL, [x, b.constant("c", 2)]), b.constant("d", 3)])]))
    assert all(not list(cones(graph, op)) for op in graph.operators())


# -- whatever is accepted is the same ------------------------------------------------------------------------------

MODULES = (hard_swish, gelu, sigmoids, elu, softplus)
# Those that repair change results on purpose.
RULES = [rule for module in MODULES for rule in module.RULES if rule.numerics is not Numerics.REPAIR]
SPELLINGS: list[Spelling] = [
    lambda x: x * relu6(x + 3) * 0.16667,
    lambda x: x * clip(x / 6 + 0.5, 0, 1),
    lambda x: clip(x * 0.1666667 + 0.5, 0, 1) * 2,
    lambda x: 0.5 * x * (1 + tanh(0.7978846 * (x + 0.044715 * (x * x * x)))),
    lambda x: x / (1 + exp(x * -1)),
    lambda x: 0.5 * tanh(x * 0.5) + 0.5,
    lambda x: 2 * sigmoid(x * 2) - 1,
    lambda x: select(greater(x, 0), x, (exp(x) - 1) * 0.7),
    lambda x: relu(x) + (exp(minimum(x, 0)) - 1) * 1.0,
    lambda x: maximum(x, 0) + (exp(absolute(x) * -1) + 1).of(Op.LOG),
]


@given(st.sampled_from(SPELLINGS), st.integers(0, 9), st.sampled_from([1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-2, 0.5, -2.0]))
@settings(max_examples=60, deadline=None)
def test_wrong_constants(spelling: Spelling, place: int, change: float) -> None:
    """With a constant moved by a little or a lot, a rule either declines or what it writes is still the same."""
    m = model(spelling)
    constants = [t for t in m.subgraphs[0].tensors if t.name is not None and t.name == "c"]
    tensor = constants[place % len(constants)]
    value = np.frombuffer(m.buffers[tensor.buffer].data, np.float32)
    m.buffers[tensor.buffer].data = (value * (1 + change) + change * 1e-3).astype(np.float32).tobytes()
    fuse(m, *RULES, numerics=Numerics.REASSOCIATED, cases=["normal", "wide", "specials", "zeros"], bound=1e-5)
