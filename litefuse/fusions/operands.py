"""Small questions that many rules ask about an operator's constant operands and options."""

from __future__ import annotations

import numpy as np

from litefuse.graph import Graph
from litefuse.graph.graph import Array
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

RESHAPES = frozenset({Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS})
"""Operators that give the same elements another shape."""


def input_of(op: Operator, slot: int) -> int:
    """The tensor of an input, or -1 when the operator has no such input."""
    return op.inputs[slot] if slot < len(op.inputs) else -1


def option(op: Operator, name: str) -> int:
    """An integer option, or 0 when the operator has no such option."""
    return int(getattr(op.builtin_options, name, 0))


def integers(graph: Graph, tensor: int) -> list[int] | None:
    """The elements of a constant vector or scalar of integers, or None."""
    value = graph.constant(tensor)
    if value is None or value.ndim > 1 or value.dtype.kind not in "iu":
        return None
    return [int(v) for v in value.reshape(-1)]


def integer(graph: Graph, tensor: int) -> int | None:
    """The only element of a constant of integers, or None."""
    found = integers(graph, tensor)
    return found[0] if found is not None and len(found) == 1 else None


def permutation(graph: Graph, op: Operator) -> list[int] | None:
    """The axes of a TRANSPOSE, counted from 0; None when they are not constant or not a permutation."""
    order = integers(graph, input_of(op, 1))
    if order is None:
        return None
    order = [axis + len(order) if axis < 0 else axis for axis in order]
    return order if sorted(order) == list(range(len(order))) else None


def paddings(graph: Graph, op: Operator) -> Array | None:
    """The amounts of a PAD, PADV2 or MIRROR_PAD as an int64 array [rank, 2]; None when not constant or negative."""
    value, shape = graph.constant(input_of(op, 1)), graph.shape(op.inputs[0])
    if value is None or shape is None or value.dtype.kind not in "iub" or value.shape != (len(shape), 2):
        return None
    amounts = value.astype(np.int64)
    return amounts if bool(np.all(amounts >= 0)) else None
