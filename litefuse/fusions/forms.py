"""Elementwise functions: what operators compute, what they cost, and functions written in them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from litefuse.fusions.activation import CLAMPS, FUSED
from litefuse.graph import Graph, OperatorKind
from litefuse.graph.pattern import NONE
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

Points: TypeAlias = NDArray[Any]

# Time of an operator under XNNPACK relative to that of an addition (ai-edge-litert 2.3.0, x86, one thread, tensors of
# 12544 and 200704 floats); XNNPACK does not take POW and SELECT. All others count as 1.
COSTS: dict[OperatorKind, float] = {
    Op.EXP: 2.7,
    Op.LOG: 3.9,
    Op.LOGISTIC: 3.2,
    Op.TANH: 2.3,
    Op.ELU: 2.4,
    Op.GELU: 3.5,
    Op.SQRT: 1.4,
    Op.RSQRT: 1.4,
    Op.DIV: 1.3,
    Op.POW: 45.0,
    Op.SELECT: 4.5,
    Op.SELECT_V2: 4.5,
}

_erf = np.frompyfunc(math.erf, 1, 1)


def _gelu(x: Points, approximate: bool = False) -> Points:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    gate = np.tanh(inner) if approximate else np.asarray(_erf(np.clip(x, -40, 40) / math.sqrt(2)), x.dtype)
    return np.asarray(0.5 * x * (1 + gate))


def _logistic(x: Points) -> Points:
    return np.asarray(np.exp(-np.logaddexp(x.dtype.type(0), -x)))


# What operators compute, on arrays of float64 or float32 and scalars; options as keywords.
FUNCTIONS: dict[OperatorKind, Callable[..., Any]] = {
    Op.ABS: np.abs,
    Op.ADD: np.add,
    Op.SUB: np.subtract,
    Op.MUL: np.multiply,
    Op.DIV: np.divide,
    Op.NEG: np.negative,
    Op.MAXIMUM: np.maximum,
    Op.MINIMUM: np.minimum,
    Op.SQUARED_DIFFERENCE: lambda a, b: np.square(a - b),
    Op.SQUARE: np.square,
    Op.POW: np.power,
    Op.SQRT: np.sqrt,
    Op.RSQRT: lambda x: 1 / np.sqrt(x),
    Op.EXP: np.exp,
    Op.LOG: np.log,
    Op.LOGISTIC: _logistic,
    Op.TANH: np.tanh,
    Op.HARD_SWISH: lambda x: x * (np.clip(x + 3, 0, 6) / 6),
    Op.ELU: lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    Op.GELU: _gelu,
    Op.LEAKY_RELU: lambda x, alpha=0.0: np.where(x > 0, x, x * x.dtype.type(alpha)),
    Op.PRELU: lambda x, alpha: np.where(x > 0, x, x * alpha),
    Op.SIGN: np.sign,
    Op.GREATER: np.greater,
    Op.GREATER_EQUAL: np.greater_equal,
    Op.LESS: np.less,
    Op.LESS_EQUAL: np.less_equal,
    Op.EQUAL: np.equal,
    Op.NOT_EQUAL: np.not_equal,
    Op.LOGICAL_AND: np.logical_and,
    Op.LOGICAL_OR: np.logical_or,
    Op.LOGICAL_NOT: np.logical_not,
    Op.SELECT: np.where,
    Op.SELECT_V2: np.where,
    Op.ZEROS_LIKE: np.zeros_like,
    Op.CAST: np.asarray,  # of booleans
    **{kind: functools.partial(np.clip, a_min=low, a_max=high) for kind, (low, high) in CLAMPS.items()},
}


def value_of(
    kind: OperatorKind, args: list[Any], activation: ActivationFunctionType, options: dict[str, Any]
) -> Points:
    """The values of an operator for those of its inputs."""
    with np.errstate(all="ignore"):
        value = np.asarray(FUNCTIONS[kind](*args, **options))
        low, high = FUSED[activation]
        return value if activation == NONE else np.clip(value, low, high)


X = "x"
"""The variable, in the arguments of a form."""


@dataclass(frozen=True)
class Form:
    """A function of x written in operators: ``Form(Op.MUL, (X, Form(Op.LOGISTIC, (X,))))``.

    Attributes:
        kind: the last operator.
        args: its inputs: :data:`X`, numbers, or forms; the same form twice is computed once.
        activation: its fused activation.
        options: fields of its options table.
        is_multiple: whether it is what :meth:`times` gave.
    """

    kind: OperatorKind
    args: tuple[Form | float | str, ...]
    activation: ActivationFunctionType = NONE
    options: tuple[tuple[str, Any], ...] = ()
    is_multiple: bool = False

    def __call__(self, x: Points) -> Points:
        """Its values at some points."""
        args = [a(x) if isinstance(a, Form) else x if a == X else x.dtype.type(a) for a in self.args]
        return value_of(self.kind, args, self.activation, dict(self.options))

    def times(self, factor: float) -> Form:
        """A multiple of it."""
        if factor == 1:
            return self
        if self.kind is Op.MUL and isinstance(self.args[1], float) and self.activation == NONE:
            return Form(Op.MUL, (self.args[0], self.args[1] * factor), is_multiple=True)
        return Form(Op.MUL, (self, factor), is_multiple=True)

    def nodes(self) -> frozenset[Form]:
        """All forms in it, itself included."""
        return frozenset({self}).union(*(a.nodes() for a in self.args if isinstance(a, Form)))

    @property
    def cost(self) -> float:
        """Time relative to an addition."""
        return sum(COSTS.get(form.kind, 1.0) for form in self.nodes())

    def __str__(self) -> str:
        kinds: list[str] = []
        _list_kinds(self, kinds, set())
        return ", ".join(kinds)


def _list_kinds(form: Form, kinds: list[str], seen: set[Form]) -> None:
    if form in seen:
        return
    seen.add(form)
    for arg in form.args:
        if isinstance(arg, Form):
            _list_kinds(arg, kinds, seen)
    kinds.append(form.kind.name + (f"+{form.activation.name}" if form.activation else ""))


def write(graph: Graph, op: Operator, x: int, form: Form) -> None:
    """Puts a form of x in the place of ``op``, whose output has the shape of x, and prunes what is no longer used."""
    name = graph.name(op.outputs[0])
    made: dict[Form, int] = {}

    def inputs(form: Form) -> list[int]:
        return [tensor(a) if isinstance(a, Form) else x if a == X else constant(a) for a in form.args]

    def constant(value: float | str) -> int:
        return graph.add_constant(f"{name}/constant", np.array(value, np.float32))

    def options(form: Form) -> dict[str, Any]:
        fused = {"fused_activation_function": form.activation} if form.activation else {}
        return dict(form.options) | fused

    def tensor(form: Form) -> int:
        if form not in made:
            sources = inputs(form)
            out = graph.add_tensor(f"{name}/{form.kind.name.lower()}", (), TensorType.FLOAT32, like=x)
            graph.add_operator(form.kind, sources, [out], before=op, **options(form))
            made[form] = out
        return made[form]

    graph.replace(op, form.kind, inputs(form), **options(form))
