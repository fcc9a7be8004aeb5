"""Which tensors a runtime keeps in its arena, how many bytes each takes, and from when to when.

Time is counted as TFLM counts it: 0 is the moment at which a subgraph is entered, when only its inputs are there, and
the operator at position ``p`` of the order runs at time ``p + 1``. A tensor is live at the times
``first <= t < last``. Where subgraphs share one arena (TFLM), the operators of a subgraph that IF, WHILE or CALL_ONCE
runs have times of their own between those of the caller (tflite-micro's micro_allocation_info.cc).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from litefuse.arena.problem import aligned
from litefuse.errors import LitefuseError
from litefuse.graph.graph import Graph
from litefuse.graph.infer import infer_subgraph
from litefuse.schema.enums import TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op
from litefuse.schema.tables import (
    CallOnceOptions,
    IfOptions,
    Operator,
    WhileOptions,
)
from litefuse.schema.types import nbytes


@dataclass(frozen=True)
class Runtime:
    """The memory rules of a runtime.

    Attributes:
        name: ``tflm``, ``tflite`` or ``delegate``.
        alignment: bytes; every tensor starts at a multiple, and sizes are rounded up to it.
        keeps_borders: whether inputs, and tensors that no operator reads, stay to the end of the invocation.
        one_arena: whether all subgraphs share one arena and one clock.
        widens_outside: whether constants that DEQUANTIZE or DENSIFY expands are kept outside of the arena.
    """

    name: str
    alignment: int
    keeps_borders: bool
    one_arena: bool
    widens_outside: bool


TFLM = Runtime("tflm", 16, keeps_borders=False, one_arena=True, widens_outside=False)
TFLITE = Runtime("tflite", 64, keeps_borders=True, one_arena=False, widens_outside=True)
DELEGATE = Runtime("delegate", 64, keeps_borders=False, one_arena=False, widens_outside=True)
RUNTIMES = {r.name: r for r in (TFLM, TFLITE, DELEGATE)}


def runtime_named(name: str) -> Runtime:
    """The runtime with a name. Raises LitefuseError for any other name."""
    try:
        return RUNTIMES[name]
    except KeyError:
        raise LitefuseError(f"there is no runtime {name!r}; known are {', '.join(RUNTIMES)}") from None


class Lifetime(NamedTuple):
    """A tensor's stay in the arena: live at ``first <= t < last``; ``bytes`` are not rounded up."""

    subgraph: int
    tensor: int
    first: int
    last: int
    bytes: int


@dataclass
class Sizes:
    """What the tensors of one subgraph take in the arena.

    Attributes:
        bytes: of each tensor that the arena holds, its size (not rounded up).
        unplanned: tensors that the arena would hold but whose size is not known before run time, with the reason.
        dynamic: tensors that are planned at the declared shape although the file lets it change.
    """

    bytes: dict[int, int] = field(default_factory=dict)
    unplanned: dict[int, str] = field(default_factory=dict)
    dynamic: list[int] = field(default_factory=list)


def sizes(graph: Graph, runtime: Runtime) -> Sizes:
    """The bytes of every tensor of a subgraph that lives in the runtime's arena.

    Those are the subgraph's inputs and what operators compute; constants and variables have memory elsewhere. TFLM
    takes shapes as they stand in the file; the others take what the kernels work out from the inputs' declared shapes.
    A tensor whose shape is not known, or of which TFLM's declaration contradicts the kernels, is left out with the
    reason.
    """
    found = Sizes()
    given = {t: tuple(graph.tensor(t).shape or ()) for t in graph.subgraph.inputs if t >= 0}
    try:
        specs = infer_subgraph(graph, given)
    except (LookupError, TypeError, ValueError, LitefuseError):
        specs = {}
    for tensor in _in_arena(graph, runtime):
        table = graph.tensor(tensor)
        declared = None if table.shape is None or (not table.shape and not table.has_rank) else tuple(table.shape)
        inferred = specs[tensor].shape if tensor in specs else None
        if inferred is not None and min(inferred, default=0) < 0:
            inferred = None
        if runtime is TFLM or tensor in graph.inputs:
            shape = inferred if declared is None and inferred == () else declared
            if shape is not None and inferred is not None and prod(inferred) != prod(shape):
                found.unplanned[tensor] = f"declared as {list(shape)}, but its kernel computes {list(inferred)}"
                continue
        else:
            shape = inferred
        if shape is None or min(shape, default=0) < 0:
            found.unplanned[tensor] = "its shape is not known before run time"
            continue
        size = _nbytes(table.type, prod(shape), runtime)
        if size is None:
            found.unplanned[tensor] = f"the size of {TensorType(table.type).name} elements is not known"
        elif size > 0:
            found.bytes[tensor] = size
            if table.shape_signature and min(table.shape_signature) < 0:
                found.dynamic.append(tensor)
    return found


def _in_arena(graph: Graph, runtime: Runtime) -> Iterator[int]:
    seen: set[int] = set()
    widened: set[int] = set()
    for tensor in graph.subgraph.inputs:
        if tensor >= 0 and tensor not in seen and not _is_elsewhere(graph, tensor, runtime):
            seen.add(tensor)
            yield tensor
    for op in graph.subgraph.operators:
        widens = runtime.widens_outside and graph.kind(op) in (Op.DEQUANTIZE, Op.DENSIFY) and op.inputs
        if widens and (graph.is_constant(op.inputs[0]) or op.inputs[0] in widened):
            widened.update(op.outputs)
            continue
        for tensor in op.outputs:
            if tensor >= 0 and tensor not in seen and not _is_elsewhere(graph, tensor, runtime):
                seen.add(tensor)
                yield tensor


def _is_elsewhere(graph: Graph, tensor: int, runtime: Runtime) -> bool:
    """Variables have memory of their own, under TFLM handles of resources too."""
    table = graph.tensor(tensor)
    return bool(table.is_variable) or (runtime is TFLM and table.type == TensorType.RESOURCE)


def _nbytes(type: TensorType, count: int, runtime: Runtime) -> int | None:
    if runtime is TFLM and type == TensorType.INT4:
        return count  # memory_helpers.cc: packed types take a byte per element
    return nbytes(type, count)


def called_subgraphs(op: Operator) -> list[int]:
    """The subgraphs that TFLM plans as part of an operator, in its order; IF, WHILE and CALL_ONCE have some."""
    options = op.builtin_options
    if isinstance(options, IfOptions):
        return [options.then_subgraph_index, options.else_subgraph_index]
    if isinstance(options, WhileOptions):
        return [options.cond_subgraph_index, options.body_subgraph_index]
    if isinstance(options, CallOnceOptions):
        return [options.init_subgraph_index]
    return []


def reachable(model: Model) -> list[int]:
    """The subgraphs that TFLM runs: the first, and what it calls directly or indirectly, in the order of the file."""
    seen: set[int] = set()
    todo = [0] if model.subgraphs else []
    while todo:
        index = todo.pop()
        if index in seen or not 0 <= index < len(model.subgraphs):
            continue
        seen.add(index)
        for op in model.subgraphs[index].operators:
            todo.extend(called_subgraphs(op))
    return sorted(seen)


def lifetimes(
    graph: Graph, order: Sequence[int] | None, runtime: Runtime, known: Sizes | None = None
) -> list[Lifetime]:
    """The stay of each tensor of one subgraph, with a clock of its own.

    Args:
        graph: the subgraph.
        order: the operators' positions in the file, in the order in which they run; None for that of the file.
        runtime: whose rules apply.
        known: the result of :func:`sizes`, if at hand.
    """
    known = sizes(graph, runtime) if known is None else known
    clock = _Clock([graph], {graph.index: order}, {graph.index: known}, runtime, nested=False)
    clock.run(0)
    return clock.result()


def model_lifetimes(
    graphs: Sequence[Graph],
    orders: dict[int, Sequence[int]],
    known: dict[int, Sizes],
) -> tuple[list[Lifetime], dict[tuple[int, int], int]]:
    """The stays of all tensors that TFLM plans together, on one clock, and the time of each (subgraph, operator).

    ``graphs`` are those of all subgraphs of the model, ``orders`` and ``known`` go by subgraph index. A subgraph that
    is called more than once is live from its first to its last call; its operators' times are those of the last.
    Raises LitefuseError when subgraphs call each other in a circle.
    """
    clock = _Clock(graphs, dict(orders), known, TFLM, nested=True)
    clock.run(0)
    return clock.result(), clock.times


class _Clock:
    """Runs through the operators of subgraphs and notes when each tensor is first and last used."""

    def __init__(
        self,
        graphs: Sequence[Graph],
        orders: dict[int, Sequence[int] | None],
        known: dict[int, Sizes],
        runtime: Runtime,
        nested: bool,
    ) -> None:
        self.graphs, self.orders, self.known, self.runtime, self.nested = graphs, orders, known, runtime, nested
        self.now = 0
        self.first: dict[tuple[int, int], int] = {}
        self.last: dict[tuple[int, int], int] = {}
        self.times: dict[tuple[int, int], int] = {}
        self._open: list[int] = []

    def _use(self, graph: Graph, tensors: Sequence[int], *, creates: bool) -> None:
        for tensor in tensors:
            key = graph.index, tensor
            if creates:
                self.first.setdefault(key, self.now)
            if key in self.first:
                self.last[key] = self.now

    def run(self, position: int) -> None:
        graph = self.graphs[position]
        if position in self._open:
            raise LitefuseError(f"subgraph {position} calls itself; such a model cannot be planned")
        self._open.append(position)
        operators = graph.subgraph.operators
        order = self.orders.get(graph.index)
        self._use(graph, graph.subgraph.inputs, creates=True)
        for index in range(len(operators)) if order is None else order:
            op = operators[index]
            self.now += 1
            self.times[graph.index, index] = self.now
            self._use(graph, op.outputs, creates=True)
            for called in called_subgraphs(op) if self.nested else ():
                if 0 <= called < len(self.graphs):
                    self.now += 1
                    self.run(called)
            self._use(graph, op.inputs, creates=False)
            self._use(graph, op.outputs, creates=True)
        self._use(graph, graph.subgraph.outputs, creates=False)
        if self.runtime.keeps_borders:
            read = {t for op in operators for t in op.inputs}
            idle = [t for op in operators for t in op.outputs if t not in read]
            self._use(graph, [*graph.subgraph.inputs, *idle], creates=False)
        self._open.pop()

    def result(self) -> list[Lifetime]:
        found = [
            Lifetime(subgraph, tensor, first, self.last[subgraph, tensor] + 1, self.known[subgraph].bytes[tensor])
            for (subgraph, tensor), first in self.first.items()
            if tensor in self.known[subgraph].bytes
        ]
        return sorted(found)


def live_bytes(stays: Sequence[Lifetime], alignment: int) -> dict[int, int]:
    """The bytes that are live at each time at which something begins, sizes rounded up to the alignment."""
    change: dict[int, int] = {}
    for stay in stays:
        size = aligned(stay.bytes, alignment)
        change[stay.first] = change.get(stay.first, 0) + size
        change[stay.last] = change.get(stay.last, 0) - size
    total, result = 0, {}
    for time in sorted(change):
        total += change[time]
        result[time] = total
    return result


def lower_bound(stays: Sequence[Lifetime], alignment: int) -> int:
    """The most bytes that are live at one time: no plan in this order, without sharing, takes less."""
    return max(live_bytes(stays, alignment).values(), default=0)
