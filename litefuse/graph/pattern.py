"""A small language for the shapes that rules look for.

A pattern is a tree that grows upwards from one operator, the root, through the tensors it reads::

    x = Value("x")
    pattern = Node(Op.MUL, Node(Op.LOGISTIC, x, name="gate"), x, name="mul")

:class:`Value` is any tensor; a name that appears twice must be the same tensor twice. :class:`Const` is a constant.
:class:`Splat` is a constant all of whose elements are one number. :class:`Node` is the result of an operator.
Operators that commute are matched in both orders.

A tensor inside the pattern is about to disappear, so nothing outside may read it. When everything else fits and only
that is in the way, :func:`match` reports it as the match's ``refusal`` rather than as no match, so that the user
learns what would unblock the fusion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from litefuse.graph.graph import Array, Graph, OperatorKind
from litefuse.schema.enums import ActivationFunctionType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

NONE = ActivationFunctionType.NONE
COMMUTATIVE = frozenset({Op.ADD, Op.MUL, Op.MAXIMUM, Op.MINIMUM, Op.SQUARED_DIFFERENCE, Op.LOGICAL_AND, Op.LOGICAL_OR})


@dataclass(frozen=True)
class Value:
    """Any tensor."""

    name: str
    where: Callable[[Graph, int], bool] | None = None


@dataclass(frozen=True)
class Const:
    """A dense constant tensor."""

    name: str
    where: Callable[[Array], bool] | None = None


@dataclass(frozen=True)
class Splat:
    """A constant whose elements are all ``number``, within a relative tolerance (0 means exactly)."""

    number: float
    tolerance: float = 0.0


@dataclass(frozen=True, init=False)
class Node:
    """The first output of an operator of one of ``kinds`` whose inputs match.

    Inputs beyond those listed must be absent (-1). ``activation`` is the fused activation that the operator may have;
    None means any, which only makes sense for the root.
    """

    kinds: tuple[OperatorKind, ...]
    inputs: tuple[Pattern, ...]
    name: str
    activation: ActivationFunctionType | None
    shared: bool

    def __init__(
        self,
        kinds: OperatorKind | Iterable[OperatorKind],
        *inputs: Pattern,
        name: str = "",
        activation: ActivationFunctionType | None = NONE,
        shared: bool = False,
    ) -> None:
        set_ = object.__setattr__
        set_(self, "kinds", (kinds,) if isinstance(kinds, Op) else tuple(kinds))
        set_(self, "inputs", inputs)
        set_(self, "name", name)
        set_(self, "activation", activation)
        set_(self, "shared", shared)


Pattern: TypeAlias = Value | Const | Splat | Node


@dataclass
class Match:
    """What a pattern's names stand for.

    Attributes:
        root: the operator from which the pattern was matched.
        operators: named operators.
        tensors: named tensors.
        inner: all matched operators whose results must not be needed elsewhere, the root excluded.
        refusal: why the match cannot be used although the shape fits, or None.
    """

    graph: Graph
    root: Operator
    operators: dict[str, Operator] = field(default_factory=dict)
    tensors: dict[str, int] = field(default_factory=dict)
    inner: list[Operator] = field(default_factory=list)
    refusal: str | None = None

    def __getitem__(self, name: str) -> int:
        """The tensor bound to a name."""
        return self.tensors[name]

    def operator(self, name: str) -> Operator:
        """The operator bound to a name."""
        return self.operators[name]

    def constant(self, name: str) -> Array:
        """The value of the constant bound to a name."""
        value = self.graph.constant(self.tensors[name])
        assert value is not None
        return value


def match(graph: Graph, root: Operator, pattern: Node) -> Match | None:
    """Matches ``pattern`` with ``root`` as its outermost operator; None when the shape does not fit."""
    found = Match(graph, root)
    for _ in _node(graph, root, pattern, found):
        # Readers inside the pattern are welcome: relu(x) + a * (x - abs(x)) reads x three times.
        reasons = (graph.why_shared(op.outputs[0], root, *found.inner) for op in found.inner)
        found.refusal = next((reason for reason in reasons if reason), None)
        return found
    return None


def _node(graph: Graph, op: Operator, pattern: Node, found: Match) -> Iterator[None]:
    kind = graph.kind(op)
    if kind not in pattern.kinds or len(op.outputs) != 1:
        return
    if pattern.activation is not None and graph.activation(op) != pattern.activation:
        return
    count = len(pattern.inputs)
    if len(op.inputs) < count or any(t >= 0 for t in op.inputs[count:]):
        return
    orders = [op.inputs[:count]]
    if count == 2 and kind in COMMUTATIVE and op.inputs[0] != op.inputs[1]:
        orders.append([op.inputs[1], op.inputs[0]])
    if pattern.name:
        if found.operators.get(pattern.name, op) is not op:
            return
        found.operators[pattern.name] = op
    for tensors in orders:
        yield from _inputs(graph, tensors, pattern.inputs, found)
    if pattern.name:
        found.operators.pop(pattern.name, None)


def _inputs(graph: Graph, tensors: list[int], patterns: tuple[Pattern, ...], found: Match) -> Iterator[None]:
    if not patterns:
        yield
        return
    for _ in _tensor(graph, tensors[0], patterns[0], found):
        yield from _inputs(graph, tensors[1:], patterns[1:], found)


def _tensor(graph: Graph, tensor: int, pattern: Pattern, found: Match) -> Iterator[None]:
    if isinstance(pattern, Splat):
        number = graph.splat(tensor)
        if number is not None and math.isclose(number, pattern.number, rel_tol=pattern.tolerance, abs_tol=0.0):
            yield
        return
    if isinstance(pattern, Node):
        op = graph.producer(tensor)
        if op is None:
            return
        new = not pattern.shared and not any(op is o for o in found.inner)
        if new:
            found.inner.append(op)
        yield from _node(graph, op, pattern, found)
        if new:
            found.inner.remove(op)
        return
    if tensor < 0:
        return
    bound = found.tensors.get(pattern.name)
    if bound is not None:
        if bound == tensor or (isinstance(pattern, Const) and _same_constant(graph, bound, tensor)):
            yield
        return
    if isinstance(pattern, Const):
        value = graph.constant(tensor)
        if value is None or (pattern.where is not None and not pattern.where(value)):
            return
    elif pattern.where is not None and not pattern.where(graph, tensor):
        return
    found.tensors[pattern.name] = tensor
    yield
    found.tensors.pop(pattern.name, None)


def _same_constant(graph: Graph, a: int, b: int) -> bool:
    x, y = graph.constant(a), graph.constant(b)
    return x is not None and y is not None and x.dtype == y.dtype and x.shape == y.shape and bool(np.all(x == y))
