"""Where a run of a model fails by itself: numbers that overflow, and numbers that float32 got wrong.

What a rewrite promises ends where the original does. An operator that makes an infinity or NaN of finite numbers (a
logarithm of something negative, an exponential of 100) leaves to its kernel what follows, and kernels differ. And
rules of class REPAIR change answers which are wrong: that they are can be told without knowing what was repaired.
Elementwise operators and reductions are evaluated in float64, from the values that their sources had in the run. What
such a part hands on, to other operators or out of the graph, is then compared with what the run had in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from litefuse.fusions.forms import FUNCTIONS, Points, value_of
from litefuse.graph import Graph, Location, OperatorKind
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator, ReducerOptions, SoftmaxOptions

Read = Callable[[int], "NDArray[Any] | None"]

TOLERANCE = 1e-3
"""Of the largest magnitude in a tensor: less than this is rounding, which the comparison of outputs bounds."""
# From here on kernels differ: the exponential of some stops at exp(88.37), that of others at the largest float.
_BRINK = 2.0**126
_OPTIONS = ("alpha", "approximate")
_TYPES = frozenset({TensorType.FLOAT32, TensorType.BOOL})
_REDUCTIONS: dict[OperatorKind, Callable[..., Any]] = {
    Op.SUM: np.sum,
    Op.MEAN: np.mean,
    Op.REDUCE_MAX: np.max,
    Op.REDUCE_MIN: np.min,
}


class Fault(NamedTuple):
    """A value that float32 got wrong."""

    location: Location
    got: float
    right: float

    def __str__(self) -> str:
        return f"{self.location} gives {self.got:.4g} instead of {self.right:.4g}"


def faults(graph: Graph, read: Read) -> Iterator[Fault]:
    """The operators that hand on something wrong, each with its worst element, in execution order.

    Args:
        graph: the subgraph that was run.
        read: the value of a tensor in that run; None where it is not known, which ends the part there.
    """
    wide: dict[int, Points] = {}
    for op in graph.operators():
        value = _evaluate(graph, op, wide, read)
        if value is None:
            continue
        out = op.outputs[0]
        wide[out] = value
        if out not in graph.outputs and all(_is_evaluated(graph, reader) for reader in graph.readers(out)):
            continue
        narrow = read(out)
        if narrow is not None and narrow.shape == value.shape and narrow.dtype.kind == "f":
            fault = _compare(graph.where(op), narrow.astype(np.float64), value)
            if fault is not None:
                yield fault


def failures(graph: Graph, read: Read) -> Iterator[str]:
    """The operators that make something which is not finite, or nearly so, of numbers that are, in execution order."""
    sound: dict[int, bool] = {}

    def is_sound(tensor: int) -> bool:
        if tensor not in sound:
            value = graph.constant(tensor) if graph.is_constant(tensor) else read(tensor)
            with np.errstate(invalid="ignore"):
                floats = None if value is None or value.dtype.kind != "f" else value.astype(np.float64)
                sound[tensor] = floats is None or bool(np.all(np.abs(floats) < _BRINK))
        return sound[tensor]

    for op in graph.operators():
        if all(is_sound(t) for t in op.inputs if t >= 0) and not all(is_sound(t) for t in op.outputs):
            yield f"{graph.where(op)} makes something that is not finite of finite numbers"


def _compare(location: Location, narrow: Points, wide: Points) -> Fault | None:
    finite = np.isfinite(wide) & (np.abs(wide) < np.finfo(np.float32).max)
    if not finite.any():
        return None
    with np.errstate(all="ignore"):
        apart = np.where(finite, np.abs(narrow - wide), 0.0)
    apart[finite & ~np.isfinite(apart)] = np.inf
    place = int(np.argmax(apart))
    if apart.flat[place] <= TOLERANCE * np.max(np.abs(wide[finite])):
        return None
    return Fault(location, float(narrow.flat[place]), float(wide.flat[place]))


def _is_evaluated(graph: Graph, op: Operator) -> bool:
    kind = graph.kind(op)
    known = kind in FUNCTIONS or kind in _REDUCTIONS or kind in (Op.SOFTMAX, Op.LOG_SOFTMAX, Op.RESHAPE)
    return known and len(op.outputs) == 1 and graph.type(op.outputs[0]) in _TYPES


def _evaluate(graph: Graph, op: Operator, wide: dict[int, Points], read: Read) -> Points | None:
    """The value of an operator in float64, or None when it is not elementwise or a source is not known."""
    kind = graph.kind(op)
    if not _is_evaluated(graph, op) or min(op.inputs, default=-1) < 0:
        return None
    args: list[Any] = []
    for tensor in op.inputs:
        value = wide.get(tensor)
        if value is None:
            value = graph.constant(tensor) if graph.is_constant(tensor) else read(tensor)
        if value is None:
            return None
        args.append(value.astype(np.float64) if value.dtype.kind == "f" else value)
    options = {name: getattr(op.builtin_options, name) for name in _OPTIONS if hasattr(op.builtin_options, name)}
    with np.errstate(all="ignore"):
        if kind in FUNCTIONS:
            return value_of(kind, args, graph.activation(op), options)
        if kind is Op.RESHAPE:
            shape = read(op.outputs[0])
            return None if shape is None else args[0].reshape(shape.shape)
        if kind in _REDUCTIONS:
            axes = tuple(int(a) for a in np.ravel(args[1]))
            keep = isinstance(op.builtin_options, ReducerOptions) and op.builtin_options.keep_dims
            return np.asarray(_REDUCTIONS[kind](args[0], axis=axes, keepdims=keep))
        beta = op.builtin_options.beta if isinstance(op.builtin_options, SoftmaxOptions) else 1.0
        shifted = beta * (args[0] - np.max(args[0], axis=-1, keepdims=True))
        total = np.sum(np.exp(shifted), axis=-1, keepdims=True)
        return np.asarray(np.exp(shifted) / total if kind is Op.SOFTMAX else shifted - np.log(total))
