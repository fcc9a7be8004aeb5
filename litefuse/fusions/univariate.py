"""Functions of one variable that are spelled in elementary operators, recognised by what they compute.

Producers spell one function in dozens of ways: operands in either order, constants split up or multiplied out, POW for
products, MINIMUM and MAXIMUM for clamps, SELECT for cases. There is no pattern for each here. Instead the operators
between two tensors of which the later depends on the earlier alone, but for scalar constants, are read as a function f
of one real number, called a *cone*. It is evaluated in float64 and compared with a known function g at some 5000
points: every 0.01 from -12 to 12, in geometric steps to 1e-30 and to 1e30 on both sides, and at the cone's own
constants and their negatives. The cone computes s * g, for a number s, when at each of them

    |f(x) - s g(x)|  <=  1e-6 |s| max(|g(x)|, min(|x|, 1))

and f(x) = 0 where g(x) = 0 beyond |x| = 12. This allows constants that are rounded to float32 or to seven digits, such
as 0.1666667 for 1/6, but not approximations of another kind: x * sigmoid(1.702 x) is no GELU. A factor s that is within
5e-7 of one is left out. Otherwise it stays as a MUL, which may fold into what follows; so x * relu6(x + 3) * 0.16667
becomes HARD_SWISH times 1.00002.

Where f overflows (beyond |x| = 40) the points say nothing, and float32 overflows far sooner. Cones that then give
something else than g are numerically wrong there; to replace them is a rule of class REPAIR.

A cone is replaced where that costs less by :data:`litefuse.fusions.forms.COSTS`, or where it repairs.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from litefuse.fusions.activation import FUSED, QUANTIZED, TAKES, Interval, keeps_shape, known_limits
from litefuse.fusions.forms import COSTS, FUNCTIONS, Form, Points, value_of, write
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph, OperatorKind
from litefuse.graph.pattern import NONE
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op, builtin_code
from litefuse.schema.tables import Operator

TOLERANCE = 1e-6
_ONE = 5e-7
# What float64 may lose where a spelling cancels, as exp(x) - 1 does near 0.
_ROUNDING = 1e-14
_MOST_OPERATORS = 32
# From here on functions are what they are at infinity; where that is 0, they must be 0 themselves.
_FAR = 12.0
# Up to here a cone must be finite in float64; beyond, it may overflow.
_FINITE = 40.0

_TYPES = QUANTIZED | {TensorType.FLOAT32, TensorType.BOOL}
_FUSED = {
    ActivationFunctionType.RELU: Op.RELU,
    ActivationFunctionType.RELU6: Op.RELU6,
    ActivationFunctionType.RELU_N1_TO_1: Op.RELU_N1_TO_1,
}
_RANGES: dict[OperatorKind, Interval] = {
    Op.SQUARE: (0.0, math.inf),
    Op.SQUARED_DIFFERENCE: (0.0, math.inf),
    Op.SQRT: (0.0, math.inf),
    Op.EXP: (0.0, math.inf),
    Op.LOGISTIC: (0.0, 1.0),
    Op.SOFTMAX: (0.0, 1.0),
    Op.TANH: (-1.0, 1.0),
}
_SELECTS = frozenset({Op.SELECT, Op.SELECT_V2})
_BINARY = frozenset(
    {
        *(Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MAXIMUM, Op.MINIMUM, Op.SQUARED_DIFFERENCE, Op.POW, Op.PRELU),
        *(Op.GREATER, Op.GREATER_EQUAL, Op.LESS, Op.LESS_EQUAL, Op.EQUAL, Op.NOT_EQUAL),
        *(Op.LOGICAL_AND, Op.LOGICAL_OR),
    }
)
_OF_RANGES = frozenset({Op.ABS, Op.NEG, Op.SUM, Op.MEAN, Op.REDUCE_MAX, Op.REDUCE_MIN, Op.RESHAPE})
_RELUS = frozenset(_FUSED.values())
_OPTIONS: dict[OperatorKind, tuple[str, ...]] = {Op.GELU: ("approximate",), Op.LEAKY_RELU: ("alpha",)}


# -- cones ------------------------------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """An elementwise operator in a cone, read once."""

    operator: Operator
    kind: OperatorKind
    activation: ActivationFunctionType
    constants: dict[int, float]
    makers: list[Operator]

    @property
    def out(self) -> int:
        """The tensor that it computes."""
        return self.operator.outputs[0]


class Cone:
    """The operators that compute one tensor from another alone, elementwise and with scalar constants.

    Attributes:
        source: the tensor they start from.
        operators: in an order of execution; the last one is the root.
        constants: the constant tensors among their inputs and their numbers.
        kinds: their kinds, fused activations included.
    """

    def __init__(self, graph: Graph, source: int, steps: list[_Step]) -> None:
        self.graph = graph
        self.source = source
        self.operators = [step.operator for step in steps]
        self.constants = {t: c for step in steps for t, c in step.constants.items()}
        self.kinds = frozenset(kind for step in steps for kind in (step.kind, _FUSED.get(step.activation, step.kind)))
        self._steps = steps

    def __call__(self, x: Points) -> Points:
        """Its values at some points, computed in the type of the points."""
        values: dict[int, Any] = {t: x.dtype.type(c) for t, c in self.constants.items()}
        values[self.source] = x
        for step in self._steps:
            options = {name: getattr(step.operator.builtin_options, name, 0) for name in _OPTIONS.get(step.kind, ())}
            value = value_of(step.kind, [values[t] for t in step.operator.inputs], step.activation, options)
            values[step.out] = value if self.graph.type(step.out) == TensorType.BOOL else value.astype(x.dtype)
        return np.asarray(np.broadcast_to(values[self._steps[-1].out], x.shape))

    @property
    def cost(self) -> float:
        """Time relative to an addition. A RELU behind an operator that can fuse it costs nothing."""
        takes = {step.out for step in self._steps if step.kind in TAKES and step.activation == NONE}
        return sum(
            COSTS.get(step.kind, 1.0)
            for step in self._steps
            if step.kind not in _RELUS or step.operator.inputs[0] not in takes
        )

    def why_not(self) -> str | None:
        """Why the cone cannot be replaced by operators that do the same, or None when it can."""
        graph, out = self.graph, self._steps[-1].out
        if graph.type(out) in QUANTIZED:
            return (
                f"{graph.type(out).name} values: each operator of the spelling rounds to a step, which one operator "
                f"would not reproduce"
            )
        for tensor in (self.source, *(step.out for step in self._steps)):
            if graph.tensor(tensor).is_variable:
                return f"tensor `{graph.name(tensor)}` is a variable"
        shape = graph.shape(self.source)
        if (
            shape is None
            or any(graph.shape(step.out) != shape for step in self._steps)
            or not keeps_shape(graph, self.source, tuple(self.constants), out)
        ):
            return "a constant may change the shape by broadcasting"
        reasons = (graph.why_shared(step.out, *self.operators) for step in self._steps[:-1])
        return next((reason for reason in reasons if reason), None)


def cones(graph: Graph, root: Operator) -> Iterator[Cone]:
    """The cones that end in ``root``, the smallest first."""
    region = _region(graph, root)
    out = root.outputs[0] if root.outputs else -1
    taken: list[_Step] = []
    frontier = {out}
    for step in reversed(_sorted(root, region)):
        frontier.discard(step.out)
        frontier.update(t for t in step.operator.inputs if t not in step.constants)
        taken.append(step)
        if len(frontier) == 1:
            (source,) = frontier
            if graph.type(source) == graph.type(out):
                yield Cone(graph, source, taken[::-1])


def _region(graph: Graph, root: Operator) -> dict[Operator, _Step]:
    """``root`` and the elementwise operators above it, nearest first, up to a number that no spelling exceeds."""
    first = _step(graph, root)
    region = {root: first} if first is not None else {}
    queue = list(region)
    for op in queue:
        for maker in region[op].makers:
            if maker not in region and len(region) < _MOST_OPERATORS:
                step = _step(graph, maker)
                if step is not None:
                    region[maker] = step
                    queue.append(maker)
    return region


def _sorted(root: Operator, region: dict[Operator, _Step]) -> list[_Step]:
    """The operators of a region, each behind those it depends on; the root is the last."""
    order: dict[Operator, _Step] = {}

    def visit(op: Operator) -> None:
        for maker in region[op].makers:
            if maker in region and maker not in order:
                visit(maker)
        order[op] = region[op]

    if root in region:
        visit(root)
    return list(order.values())


def _step(graph: Graph, op: Operator) -> _Step | None:
    """An operator whose result depends on nothing but elements in the same place and scalar constants, or None."""
    kind = graph.kind(op)
    if kind not in FUNCTIONS or len(op.outputs) != 1 or min(op.inputs, default=-1) < 0:
        return None
    if len(op.inputs) != (2 if kind in _BINARY else 3 if kind in _SELECTS else 1) or graph.activation(op) not in FUSED:
        return None
    if graph.type(op.outputs[0]) not in _TYPES or (kind is Op.CAST and graph.type(op.inputs[0]) != TensorType.BOOL):
        return None
    constants: dict[int, float] = {}
    makers: list[Operator] = []
    for tensor in op.inputs:
        maker = graph.producer(tensor)
        if maker is not None:
            makers.append(maker)
        elif graph.is_constant(tensor):
            number = scalar(graph, tensor)
            if number is None:
                return None
            constants[tensor] = number
    return _Step(op, kind, graph.activation(op), constants, makers)


def scalar(graph: Graph, tensor: int) -> float | None:
    """The real number that all elements of a constant have in common, or None."""
    value = graph.constant(tensor)
    if value is None or value.size == 0 or value.flat[0] != value.flat[-1]:
        return None
    number = graph.splat(tensor)
    q = graph.quantization(tensor) if tensor >= 0 else None
    if number is None or q is None or graph.type(tensor) not in QUANTIZED:
        return number
    if q.scale is None or len(q.scale) != 1:
        return None
    point = int(q.zero_point[0]) if q.zero_point is not None and len(q.zero_point) else 0
    return (number - point) * float(q.scale[0])


# -- comparing --------------------------------------------------------------------------------------------------------


def _points() -> Points:
    fine = np.linspace(-12, 12, 2401)
    large, small = np.geomspace(12, 1e30, 600), np.geomspace(1e-30, 0.01, 300)
    return np.concatenate([fine, large, -large, small, -small, np.linspace(12, 100, 300), -np.linspace(12, 100, 300)])


POINTS = _points()
_FEW = POINTS[::97]
# Where the factor s is taken: any function of interest is far from zero at one of these.
_LEVEL = np.array([-6.0, 1.0, 6.0])


@functools.lru_cache(maxsize=64)
def _at_points(form: Form) -> Points:
    return form(POINTS)


def factor(cone: Cone, form: Form) -> float | None:
    """The number s for which a cone computes s times a form; None when there is none."""
    level = form(_LEVEL)
    place = int(np.nanargmax(np.abs(level)))
    with np.errstate(all="ignore"):
        s = float(cone(_LEVEL)[place] / level[place])
    if not math.isfinite(s) or s == 0 or not _agree(cone(_FEW), s * form(_FEW), _FEW, s):
        return None
    own = np.array([c for c in cone.constants.values() if math.isfinite(c)], np.float64)
    own = np.concatenate([own, -own])
    if not _agree(cone(POINTS), s * _at_points(form), POINTS, s) or not _agree(cone(own), s * form(own), own, s):
        return None
    return 1.0 if abs(s - 1) <= _ONE else s


def _agree(f: Points, g: Points, x: Points, s: float) -> bool:
    with np.errstate(all="ignore"):
        scale = np.maximum(np.abs(g), abs(s) * np.minimum(np.abs(x), 1))
        scale[(g == 0) & (np.abs(x) >= _FAR)] = 0
        close = np.abs(f - g) <= np.maximum(TOLERANCE * scale, abs(s) * _ROUNDING)
        same = (f == g) | (np.isnan(f) & np.isnan(g))  # where g itself is not defined, or infinite
    return bool(np.all(close | same | (~np.isfinite(f) & (np.abs(x) > _FINITE))))


def is_stable(cone: Cone, form: Form, s: float) -> bool:
    """Whether a cone that computes s times a form also does so in float32 for large numbers, up to 1 % at least.

    As far as its source can be so large.
    """
    low, high = range_of(cone.graph, cone.source)
    x = POINTS[(np.abs(POINTS) >= _FAR) & (np.clip(POINTS, low, high) == POINTS)]
    with np.errstate(all="ignore"):
        f, g = cone(x.astype(np.float32)).astype(np.float64), s * form(x)
        wrong = ~(np.abs(f - g) <= 0.01 * np.maximum(np.abs(g), abs(s)))
        return not np.any(wrong & (np.abs(g) < np.finfo(np.float32).max))


def range_of(graph: Graph, tensor: int, look_back: int = 8) -> Interval:
    """An interval in which all values of a float tensor lie for certain, NaN aside."""
    op = graph.producer(tensor)
    if op is None or look_back == 0 or not graph.is_float(tensor) or min(op.inputs, default=-1) < 0:
        return known_limits(graph, tensor)
    kind = graph.kind(op)
    low, high = -math.inf, math.inf
    if kind in _RANGES:
        low, high = _RANGES[kind]
    elif kind is Op.MUL and op.inputs[0] == op.inputs[1]:
        low = 0.0
    elif kind in _OF_RANGES:
        low, high = range_of(graph, op.inputs[0], look_back - 1)
        if kind is Op.NEG:
            low, high = -high, -low
        elif kind is Op.ABS:
            low, high = max(low, -high, 0.0), max(-low, high)
        elif kind is Op.SUM:
            low, high = (0.0 if low >= 0 else -math.inf), math.inf
    elif kind is Op.ADD:
        for x, other in (op.inputs, op.inputs[::-1]):
            number = scalar(graph, other)
            if number is not None:
                low, high = range_of(graph, x, look_back - 1)
                low, high = low + number, high + number
    known = known_limits(graph, tensor)
    return max(low, known[0]), min(high, known[1])


# -- rules ------------------------------------------------------------------------------------------------------------


class Spelled(Rule):
    """Base of the rules that recognise a function by its values.

    A rule of class REPAIR takes the cones that overflow in float32, any other those that do not.
    """

    needs: ClassVar[frozenset[OperatorKind]]
    """A cone without any of these is not looked at."""

    @abstractmethod
    def forms(self, cone: Cone) -> Iterable[Form]:
        """The functions to look for; they may depend on parameters that are read off the cone's values."""

    def declines(self, graph: Graph, op: Operator) -> bool:
        """Whether ``op`` is no candidate for a reason of its own."""
        return False

    def why_not(self, cone: Cone) -> str | None:
        """Why a cone cannot be replaced, or None when it can."""
        return cone.why_not()

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Replaces the cone above ``op`` where that saves most."""
        if not any(builtin_code(code) in self.needs for code in graph.model.operator_codes) and not self.needs & _RELUS:
            return None  # the model has nothing of the kind
        found: list[tuple[float, Cone, Form]] = []
        for cone in cones(graph, op):
            if cone.kinds & self.needs and (len(cone.operators) > 1 or Op.POW in cone.kinds):
                form = self._match(cone)
                if form is not None:
                    found.append((cone.cost - form.cost, cone, form))
        if not found or self.declines(graph, op):
            return None
        refusal: Refused | None = None
        for saved, cone, form in sorted(found, key=lambda candidate: -candidate[0]):
            if saved <= 0 and self.numerics is not Numerics.REPAIR:
                break
            if form.is_multiple and _is_scaled(graph, op):
                continue  # the factor that follows may be the rest of the spelling
            reason = self.why_not(cone)
            if not reason:
                count = len(cone.operators)
                write(graph, op, cone.source, form)
                return Applied(f"{form} for {count} operators" if count > 1 else str(form))
            refusal = refusal or Refused(reason)
        return refusal

    def _match(self, cone: Cone) -> Form | None:
        """The first of the functions of which the cone is a multiple: that multiple, if this rule is to write it."""
        for form in self.forms(cone):
            s = factor(cone, form)
            if s is not None:
                return form.times(s) if is_stable(cone, form, s) is (self.numerics is not Numerics.REPAIR) else None
        return None


def _is_scaled(graph: Graph, op: Operator) -> bool:
    """Whether the only reader of a result multiplies it by a number or divides it by one."""
    reader = graph.only_reader(op.outputs[0])
    if reader is None or graph.kind(reader) not in (Op.MUL, Op.DIV):
        return False
    operands = reader.inputs if graph.kind(reader) is Op.MUL else reader.inputs[1:]
    return any(scalar(graph, t) is not None for t in operands)
