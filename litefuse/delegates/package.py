"""Packages regions so that a delegate finds them, and takes them apart again.

Three ways, which say the same:

- **composite**: each region is a STABLEHLO_COMPOSITE called `litefuse.<kind>`. Its decomposition holds the operators
  and owns their constants: its tensors name the same buffers, so the file does not grow. A runtime without the delegate
  runs the decomposition.
- **plan**: the operators stay where they are, and the metadata `litefuse.plan` says which belong together, with a
  fingerprint by which the delegate recognises them.
- **custom**: each region is a custom operator called `litefuse.<kind>`, which only the delegate can run. Its
  decomposition is a subgraph that nothing else uses.

Attributes, custom options and plans are flexbuffers. They say only what the operators do not: `litefuse` (the number
of this layout), `inputs` and `outputs` (tensors of the decomposition), `subgraph` (of custom operators), `places` and
`scratch_bytes` (where the intermediates lie: operator, output and offset by turns; offsets are multiples of 64),
`winograd` (there and false where Winograd's algorithm may not be used), and for plans `kind`, `operators` and
`fingerprint`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from flatbuffers import flexbuffers

from litefuse.arena import greedy
from litefuse.arena.problem import Buffer as Piece
from litefuse.arena.problem import Problem
from litefuse.errors import UsageError
from litefuse.graph import Graph
from litefuse.graph.compact import (
    compact,
    control_dependencies,
    drop_metadata,
    metadata_buffer,
    serialize_control_dependencies,
)
from litefuse.graph.graph import NOT_PURE
from litefuse.schema.enums import CustomOptionsFormat
from litefuse.schema.model import Model
from litefuse.schema.operators import Op, builtin_code, operator_code
from litefuse.schema.tables import (
    Buffer,
    Metadata,
    Operator,
    OperatorCode,
    StableHLOCompositeOptions,
    SubGraph,
    Tensor,
    VarHandleOptions,
)
from litefuse.schema.types import nbytes
from litefuse.schema.writer import as_bytes

MODES = ("composite", "plan", "custom", "none")
"""The ways to package regions; `none` leaves them as plain operators."""

PREFIX = "litefuse."
"""What the names of composites and custom operators begin with."""

PLAN = "litefuse.plan"
"""The metadata that holds a plan."""

PACKAGE = "litefuse.package"
"""The metadata that says how a file was packaged: a flexbuffer with `litefuse`, `mode`, `target`, `regions` and
`scratch_bytes`, the memory that all regions share."""

FORMAT = 1
"""The layout of attributes and plans."""

ALIGNMENT = 64
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


class Group(Protocol):
    """Operators that are to become one node: a convex set, in execution order."""

    @property
    def kind(self) -> str:
        """The kind of region, such as `conv_epilogue`."""

    @property
    def operators(self) -> Sequence[Operator]:
        """What it computes. An operator fed by constants alone may be in several groups."""

    @property
    def inputs(self) -> Sequence[int]:
        """Tensors it reads that are neither constants nor its own."""

    @property
    def outputs(self) -> Sequence[int]:
        """Tensors of its own that others read, or that are outputs of the graph."""


class NotConvexError(Exception):
    """There is no order of operators in which a region could run as one: something between needs a part of it."""


def entangled(model: Model, index: int, groups: Sequence[Group]) -> list[Group]:
    """Groups that cannot be single nodes, although no tensor leads out of them and back, because of state.

    That is where one writes what another part of it reads: a variable, say. Those that are named have neighbours with
    state; without them, the others can.
    """
    subgraph = model.subgraphs[index]
    edges = _control_dependencies(model)[index]

    def convex(some: Sequence[Group]) -> bool:
        try:
            _side_by_side(model, subgraph, [_Part.whole(group) for group in some], edges)
        except NotConvexError:
            return False
        return True

    if not convex(groups):
        makers = {t: op for op in subgraph.operators for t in op.outputs}
        near = {op for op in subgraph.operators if _state(model, subgraph, op, makers) is not None}
        touched = {t for op in near for t in (*op.inputs, *op.outputs)}
        tied = [group for group in groups if not touched.isdisjoint((*group.inputs, *group.outputs))]
        rest = [group for group in groups if not any(group is t for t in tied)]
        return tied if convex(rest) else list(groups)
    return []


_Edge = tuple[Operator, Operator]


def _control_dependencies(model: Model) -> list[list[_Edge]]:
    """By subgraph, pairs of operators of which the file says that the second comes after the first."""
    found = control_dependencies(model)
    pairs = found[1] if found is not None else None
    if pairs is None or len(pairs) != len(model.subgraphs):
        return [[] for _ in model.subgraphs]
    return [
        [(s.operators[a], s.operators[b]) for a, b in some if 0 <= a < len(s.operators) and 0 <= b < len(s.operators)]
        for s, some in zip(model.subgraphs, pairs, strict=True)
    ]


def _extend_control_dependencies(model: Model, known: int) -> None:
    """Says that the subgraphs past the known ones have no control dependencies."""
    buffer, pairs = control_dependencies(model) or (None, None)
    if buffer is not None and pairs is not None and len(pairs) == known:
        buffer.data = serialize_control_dependencies([*pairs, *([] for _ in model.subgraphs[known:])])


class Packaged(NamedTuple):
    """What :func:`package` did."""

    regions: int
    scratch_bytes: int
    """Memory that the delegate needs for the intermediates of all regions, which share it, at the file's shapes."""
    notes: list[str]


def package(
    model: Model,
    groups: Mapping[int, Sequence[Group]],
    mode: str = "composite",
    target: str = "",
    *,
    winograd: bool = True,
) -> Packaged:
    """Packages groups of operators, in place.

    Args:
        model: the model; decompositions of composites must not be among the subgraphs of ``groups``.
        groups: by subgraph, the groups that become regions. No operator is in two of them, unless only constants feed
            it.
        mode: one of :data:`MODES`.
        target: the name of the target that the groups were chosen for; it is recorded.
        winograd: whether the delegate may use Winograd's algorithm, whose error is larger.

    Raises UsageError for an unknown mode.
    """
    if mode not in MODES:
        raise UsageError(f"there is no packaging `{mode}`; there are {', '.join(MODES)}")
    count = sum(len(g) for g in groups.values())
    if mode == "none" or not count:
        return Packaged(0, 0, [])
    before = [list(s.operators) for s in model.subgraphs]
    edges = _control_dependencies(model)
    parts = {index: _parts(model, index, found) for index, found in groups.items() if found}
    total = 0
    wrapped: list[tuple[Operator, SubGraph, int, dict[str, Any]]] = []
    plans: list[dict[str, Any]] = []
    for index, found in parts.items():
        graph = Graph(model, index)
        layouts = [_scratch(graph, part) for part in found]
        total = max([total, *(layout["scratch_bytes"] for layout in layouts)])
        if not winograd:
            layouts = [{**layout, "winograd": False} for layout in layouts]
        if mode == "plan":
            subgraph = model.subgraphs[index]
            subgraph.operators = _side_by_side(model, subgraph, found, edges[index])
            number = {op: i for i, op in enumerate(subgraph.operators)}
            for part, layout in zip(found, layouts, strict=True):
                plans.append(
                    {
                        "kind": part.kind,
                        "subgraph": index,
                        "operators": [number[op] for op in part.operators],
                        "fingerprint": fingerprint(model, subgraph, part.operators),
                        **layout,
                    }
                )
        else:
            wrapped += _wrap(model, index, found, layouts, mode, edges[index])
    _extend_control_dependencies(model, len(before))
    before += [list(s.operators) for s in model.subgraphs[len(before) :]]
    notes = compact(model, before)
    for op, inner, place, layout in wrapped:
        attributes = {"litefuse": FORMAT, "inputs": list(inner.inputs), "outputs": list(inner.outputs), **layout}
        if mode == "custom":
            op.custom_options = flexbuffers.Dumps({**attributes, "subgraph": place})
        else:
            assert isinstance(op.builtin_options_2, StableHLOCompositeOptions)
            op.builtin_options_2.composite_attributes = flexbuffers.Dumps(attributes)
    if plans:
        _attach(model, PLAN, flexbuffers.Dumps({"litefuse": FORMAT, "regions": plans}))
    about = {"litefuse": FORMAT, "mode": mode, "target": target, "regions": count, "scratch_bytes": total}
    _attach(model, PACKAGE, flexbuffers.Dumps(about))
    return Packaged(count, total, notes)


class _Part(NamedTuple):
    """A group whose operators are in no other."""

    kind: str
    operators: list[Operator]
    inputs: list[int]
    outputs: list[int]
    fresh: list[Operator]
    """Those that were copied, and are not yet in the graph."""

    @staticmethod
    def whole(group: Group) -> _Part:
        """The group as it is."""
        return _Part(group.kind, list(group.operators), list(group.inputs), list(group.outputs), [])

    @staticmethod
    def own(graph: Graph, group: Group, shared: set[Operator]) -> _Part:
        """The group with copies of the operators that others need too."""
        subgraph = graph.subgraph
        operators: list[Operator] = []
        fresh: list[Operator] = []
        renamed: dict[int, int] = {}
        for op in group.operators:
            if op in shared:
                made = []
                for tensor in op.outputs:
                    copied = subgraph.tensors[tensor]
                    name = graph.unique_name(copied.name) if copied.name else copied.name
                    subgraph.tensors.append(copied.replace(name=name))
                    made.append(len(subgraph.tensors) - 1)
                renamed.update(zip(op.outputs, made, strict=True))
                op = op.replace(inputs=[renamed.get(t, t) for t in op.inputs], outputs=made)
                fresh.append(op)
            elif renamed:
                op.inputs = [renamed.get(t, t) for t in op.inputs]
            operators.append(op)
        # What others read of a copied operator, they read of the original.
        return _Part(group.kind, operators, list(group.inputs), [t for t in group.outputs if t not in renamed], fresh)


def _parts(model: Model, index: int, groups: Sequence[Group]) -> list[_Part]:
    """The groups of a graph, made disjoint: operators that others need too are copied."""
    graph = Graph(model, index)
    times: dict[Operator, int] = {}
    for group in groups:
        for op in group.operators:
            times[op] = times.get(op, 0) + 1
    shared: set[Operator] = {op for op, n in times.items() if n > 1}
    for group in groups:
        inside, leaving = set(group.operators), set(group.outputs)
        for op in reversed(group.operators):
            # What is copied stays where it is as well, and so must what it reads.
            if any(
                t not in leaving
                and (t in graph.outputs or any(r not in inside or r in shared for r in graph.readers(t)))
                for t in op.outputs
            ):
                shared.add(op)
    parts = [_Part.own(graph, group, shared) for group in groups]
    _drop_unread(model.subgraphs[index], shared, parts)
    return parts


def _drop_unread(subgraph: SubGraph, candidates: set[Operator], parts: Sequence[_Part]) -> None:
    """Removes those operators whose copies have taken all their readers."""
    read = set(subgraph.outputs)
    for op in (*subgraph.operators, *(op for part in parts for op in part.fresh)):
        read.update(op.inputs if op not in candidates else ())
    kept: list[Operator] = []
    for op in reversed(subgraph.operators):
        if op not in candidates or not read.isdisjoint(op.outputs):
            kept.append(op)
            read.update(op.inputs)
    subgraph.operators = kept[::-1]


# -- wrapping ------------------------------------------------------------------------------------------------------


def _wrap(
    model: Model,
    index: int,
    parts: Sequence[_Part],
    layouts: Sequence[dict[str, Any]],
    mode: str,
    edges: Sequence[_Edge],
) -> list[tuple[Operator, SubGraph, int, dict[str, Any]]]:
    """Moves the operators of each part into a subgraph of its own, and puts one operator in their place."""
    subgraph = model.subgraphs[index]
    result = []
    inside: list[list[Operator]] = []
    for part, layout in zip(parts, layouts, strict=True):
        inner = _decomposition(subgraph, part, f"{PREFIX}{part.kind}.{len(model.subgraphs)}")
        place = len(model.subgraphs)
        model.subgraphs.append(inner)
        op = Operator(inputs=list(part.inputs), outputs=list(part.outputs))
        name = PREFIX + part.kind
        if mode == "composite":
            op.opcode_index = _code(model, Op.STABLEHLO_COMPOSITE, None)
            op.builtin_options_2 = StableHLOCompositeOptions(
                name=name,
                decomposition_subgraph_index=place,
                composite_attributes_format=CustomOptionsFormat.FLEXBUFFERS,
                version=FORMAT,
            )
        else:
            op.opcode_index = _code(model, Op.CUSTOM, name)
            op.custom_options_format = CustomOptionsFormat.FLEXBUFFERS
        inside.append(part.operators)
        result.append((op, inner, place, layout))
    moved = {op for operators in inside for op in operators}
    position = {op: i for i, op in enumerate(subgraph.operators)}
    subgraph.operators = [op for op in subgraph.operators if op not in moved]
    last = [max(position[op] for op in operators if op in position) for operators in inside]
    keys = {op: position[op] for op in subgraph.operators}
    keys.update({op: at for (op, *_), at in zip(result, last, strict=True)})
    unit = {op: made for (made, *_), operators in zip(result, inside, strict=True) for op in operators}
    subgraph.operators = _sorted(
        model,
        subgraph,
        [*subgraph.operators, *(op for op, *_ in result)],
        keys,
        {op for op, *_ in result},
        [(unit.get(a, a), unit.get(b, b)) for a, b in edges],
    )
    return result


def _decomposition(subgraph: SubGraph, part: _Part, name: str) -> SubGraph:
    """A subgraph with the operators of a part. Its tensors name the same buffers."""
    number: dict[int, int] = {-1: -1}
    tensors: list[Tensor] = []

    def place(tensor: int) -> int:
        if tensor not in number:
            number[tensor] = len(tensors)
            tensors.append(subgraph.tensors[tensor].replace())
        return number[tensor]

    inputs = [place(t) for t in part.inputs]
    operators = [
        op.replace(inputs=[place(t) for t in op.inputs], outputs=[place(t) for t in op.outputs])
        for op in part.operators
    ]
    return SubGraph(
        name=name, tensors=tensors, inputs=inputs, outputs=[place(t) for t in part.outputs], operators=operators
    )


def _code(model: Model, kind: Op, custom: str | None) -> int:
    for i, code in enumerate(model.operator_codes):
        if builtin_code(code) == kind and code.custom_code == custom and code.version == 1:
            return i
    made: OperatorCode = operator_code(kind, 1, custom)
    model.operator_codes.append(made)
    return len(model.operator_codes) - 1


def _side_by_side(model: Model, subgraph: SubGraph, parts: Sequence[_Part], edges: Sequence[_Edge]) -> list[Operator]:
    """The operators of a graph in an order in which those of each part follow each other.

    Runtimes divide what a delegate claims as they come: where something that a region needs comes after its first
    operator, they make two nodes of it.
    """
    position = {op: i for i, op in enumerate(subgraph.operators)}
    inside = {op for part in parts for op in part.operators}
    whole = {Operator(inputs=list(part.inputs), outputs=list(part.outputs)): part for part in parts}
    keys = {op: position[op] for op in subgraph.operators if op not in inside}
    keys.update({op: max(position[o] for o in part.operators if o in position) for op, part in whole.items()})
    unit = {op: made for made, part in whole.items() for op in part.operators}
    waits = [(unit.get(a, a), unit.get(b, b)) for a, b in edges]
    order = _sorted(model, subgraph, list(keys), keys, set(whole), waits)
    return [op for unit in order for op in (whole[unit].operators if unit in whole else [unit])]


def _sorted(
    model: Model,
    subgraph: SubGraph,
    operators: Sequence[Operator],
    keys: Mapping[Operator, int],
    regions: set[Operator],
    edges: Sequence[_Edge],
) -> list[Operator]:
    """An order in which each operator comes after those it reads from, otherwise by key; state stays in its order.

    ``regions`` are those of the operators that stand for regions, which have no state; the second operator of each of
    ``edges`` comes after the first.
    """
    makers = {t: op for op in operators for t in op.outputs}
    needs: dict[Operator, set[Operator]] = {op: set() for op in operators}
    for op in operators:
        needs[op].update(makers[t] for t in op.inputs if t in makers and makers[t] is not op)
    for first, second in edges:
        if first is not second and first in needs and second in needs:
            needs[second].add(first)
    last: dict[object, Operator] = {}  # that used a piece of state
    barrier: Operator | None = None
    since: list[Operator] = []
    for op in sorted((o for o in operators if o not in regions), key=keys.__getitem__):
        state = _state(model, subgraph, op, makers)
        if state is None:
            continue
        if state == _ALL:
            needs[op].update(since)
            barrier, since, last = op, [], {}
        elif state in last:
            needs[op].add(last[state])
        if barrier is not None and barrier is not op:
            needs[op].add(barrier)
        last[state] = op
        since.append(op)
    readers: dict[Operator, list[Operator]] = {op: [] for op in operators}
    for op, before in needs.items():
        for other in before:
            readers[other].append(op)
    waiting = {op: len(before) for op, before in needs.items()}
    number = {op: i for i, op in enumerate(operators)}
    ready = [(keys[op], number[op]) for op in operators if not waiting[op]]
    heapq.heapify(ready)
    result: list[Operator] = []
    while ready:
        op = operators[heapq.heappop(ready)[1]]
        result.append(op)
        for reader in readers[op]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (keys[reader], number[reader]))
    if len(result) < len(operators):
        raise NotConvexError("a region waits for itself")
    return result


_ALL = "all state"


def _state(model: Model, subgraph: SubGraph, op: Operator, makers: Mapping[int, Operator]) -> object:
    """What an operator reads or changes besides its tensors; None for most, `_ALL` where that is not known."""
    variables = [t for t in op.inputs if t >= 0 and subgraph.tensors[t].is_variable]
    if variables:
        return ("tensor", variables[0]) if len(variables) == 1 else _ALL
    kind = builtin_code(model.operator_codes[op.opcode_index])
    if kind == Op.VAR_HANDLE or kind not in NOT_PURE:
        return None
    if kind in (Op.READ_VARIABLE, Op.ASSIGN_VARIABLE) and op.inputs:
        options = makers[op.inputs[0]].builtin_options if op.inputs[0] in makers else None
        if isinstance(options, VarHandleOptions):
            return "variable", options.container, options.shared_name
    return _ALL


# -- scratch memory ------------------------------------------------------------------------------------------------


def _scratch(graph: Graph, part: _Part) -> dict[str, Any]:
    """Where the intermediates of a part lie, as attributes say it; nothing where the rank of one is not known.

    Unknown dimensions count as in the file, which is 1: the delegate makes its own plan when they are larger.
    """
    nothing = {"places": [], "scratch_bytes": 0}
    outputs = set(part.outputs)
    constant: set[int] = set()
    made: dict[int, tuple[int, int]] = {}  # tensor -> operator, output
    lives: dict[int, list[int]] = {}
    size: dict[int, int] = {}
    for i, op in enumerate(part.operators):
        for tensor in op.inputs:
            if tensor in lives:
                lives[tensor][1] = i
        if op.inputs and all(t < 0 or t in constant or graph.is_constant(t) for t in op.inputs):
            # The delegate computes these once.
            constant.update(t for t in op.outputs if t not in outputs)
        for j, tensor in enumerate(op.outputs):
            if tensor in outputs or tensor in constant:
                continue
            shape = graph.shape(tensor)
            bytes_ = None if shape is None else nbytes(graph.type(tensor), math.prod(max(d, 1) for d in shape))
            if bytes_ is None:
                return nothing
            made[tensor], lives[tensor], size[tensor] = (i, j), [i, i], bytes_
    if not made:
        return nothing
    problem = Problem([Piece(str(t), first, last + 1, size[t]) for t, (first, last) in lives.items()])
    rounded = [p._replace(size=-(-p.size // ALIGNMENT)) for p in problem.buffers]
    found = greedy.best(rounded, bound=problem.lower_bound(ALIGNMENT) // ALIGNMENT, deadline=math.inf)
    places: list[int] = []
    for tensor, offset in zip(lives, found.offsets, strict=True):
        places += [*made[tensor], offset * ALIGNMENT]
    return {"places": places, "scratch_bytes": found.peak * ALIGNMENT}


# -- plans ---------------------------------------------------------------------------------------------------------


def fingerprint(model: Model, subgraph: SubGraph, operators: Iterable[Operator]) -> int:
    """The number by which the delegate recognises operators: FNV-1a (64 bits) over their codes and tensors' names.

    The sign bit is left out. Source of the constants: the FNV draft, https://www.ietf.org/archive/id/draft-eastlake-fnv.
    """
    value = _FNV_OFFSET
    for op in operators:
        data = int(builtin_code(model.operator_codes[op.opcode_index])).to_bytes(4, "little")
        for tensor in (*op.inputs, *op.outputs):
            name = subgraph.tensors[tensor].name if tensor >= 0 else None
            data += (name or "").encode("utf-8", "surrogateescape") + b"\0"
        for byte in data:
            value = ((value ^ byte) * _FNV_PRIME) % 2**64
    return value % 2**63


def _attach(model: Model, name: str, data: bytes) -> None:
    drop_metadata(model, name)
    model.buffers.append(Buffer(data=data))
    model.metadata.append(Metadata(name=name, buffer=len(model.buffers) - 1))


# -- taking apart --------------------------------------------------------------------------------------------------


def _is_ours(op: Operator) -> bool:
    options = op.builtin_options_2
    return isinstance(options, StableHLOCompositeOptions) and (options.name or "").startswith(PREFIX)


def _decomposition_of(model: Model, op: Operator) -> int | None:
    """The subgraph that holds the operators of a packaged region; None for any other operator."""
    if _is_ours(op):
        assert isinstance(op.builtin_options_2, StableHLOCompositeOptions)
        return op.builtin_options_2.decomposition_subgraph_index
    code = model.operator_codes[op.opcode_index]
    if builtin_code(code) == Op.CUSTOM and (code.custom_code or "").startswith(PREFIX) and op.custom_options:
        options = _loads(as_bytes(op.custom_options))
        place = options.get("subgraph")
        return place if isinstance(place, int) else None
    return None


def _loads(data: memoryview) -> dict[str, Any]:
    """The map in a flexbuffer; empty when it holds none."""
    try:
        found = flexbuffers.Loads(bytearray(data))
    except Exception:  # whatever a damaged buffer makes of the reader
        return {}
    return found if isinstance(found, dict) else {}


def about(model: Model) -> dict[str, Any] | None:
    """How a file was packaged: `mode`, `target`, `regions` and `scratch_bytes`; None when it says nothing of it."""
    buffer = metadata_buffer(model, PACKAGE)
    found = _loads(as_bytes(buffer.data)) if buffer is not None and buffer.data is not None else {}
    numbers = {key: found.get(key) for key in ("regions", "scratch_bytes")}
    names = {key: found.get(key) for key in ("mode", "target")}
    if not all(isinstance(n, int) for n in numbers.values()) or not all(isinstance(n, str) for n in names.values()):
        return None
    return {**names, **numbers}


class Held(NamedTuple):
    """A region that a model holds: its kind, where its node stands, and where its operators are."""

    kind: str
    subgraph: int
    node: int | None
    """The position of the composite or custom operator; None for a region of a plan."""
    inside: int
    """The subgraph that holds the operators: the same as `subgraph` for a plan, else the decomposition."""
    operators: list[int]
    """Their positions in it."""


def held(model: Model) -> list[Held]:
    """The regions that a model holds, however they are packaged; damaged entries of a plan are left out."""
    found: list[Held] = []
    count = len(model.subgraphs)
    for index, subgraph in enumerate(model.subgraphs):
        for position, op in enumerate(subgraph.operators):
            place = _decomposition_of(model, op)
            if place is not None and 0 <= place < count and place != index and _fits(model.subgraphs[place], op):
                name = getattr(op.builtin_options_2, "name", None) or model.operator_codes[op.opcode_index].custom_code
                inner = list(range(len(model.subgraphs[place].operators)))
                found.append(Held((name or "").removeprefix(PREFIX), index, position, place, inner))
    buffer = metadata_buffer(model, PLAN)
    regions = _loads(as_bytes(buffer.data)).get("regions") if buffer is not None and buffer.data is not None else None
    for region in regions if isinstance(regions, list) else ():
        place, members = region.get("subgraph"), region.get("operators")
        if isinstance(place, int) and 0 <= place < count and isinstance(members, list):
            last = len(model.subgraphs[place].operators)
            if members and all(isinstance(i, int) and 0 <= i < last for i in members):
                found.append(Held(str(region.get("kind")), place, None, place, list(members)))
    return found


def is_packaged(model: Model) -> bool:
    """Whether a model holds regions that :func:`package` made."""
    if any(m.name in (PLAN, PACKAGE) for m in model.metadata):
        return True
    return any(_decomposition_of(model, op) is not None for s in model.subgraphs for op in s.operators)


def unfuse(model: Model) -> int:
    """Puts the operators of packaged regions back in their place, and drops plans; returns how many regions there were.

    A composite or custom operator whose decomposition does not fit it is left as it is.
    """
    regions = 0
    before = [list(s.operators) for s in model.subgraphs]
    for name in (PLAN, PACKAGE):
        for entry in [m for m in model.metadata if m.name == name]:
            if name == PLAN and 0 <= entry.buffer < len(model.buffers):
                data = model.buffers[entry.buffer].data
                found = _loads(as_bytes(data)).get("regions", []) if data is not None else []
                regions += len(found) if isinstance(found, list) else 0
            model.metadata.remove(entry)
    used: set[int] = set()
    left: set[int] = set()
    for subgraph in model.subgraphs:
        operators: list[Operator] = []
        shared = _constants(model, subgraph)
        for op in subgraph.operators:
            place = _decomposition_of(model, op)
            if place is None:
                operators.append(op)
                continue
            inner = model.subgraphs[place] if 0 <= place < len(model.subgraphs) else None
            if inner is None or inner is subgraph or not _fits(inner, op):
                operators.append(op)
                left.add(place)
                continue
            operators += _inlined(model, subgraph, inner, op, shared)
            used.add(place)
            regions += 1
        subgraph.operators = operators
    _drop_subgraphs(model, used - left, before)
    compact(model, before)
    return regions


def _fits(inner: SubGraph, op: Operator) -> bool:
    return len(inner.inputs) == len(op.inputs) and len(inner.outputs) == len(op.outputs)


_Key = tuple[Any, ...]


def _key(tensor: Tensor) -> _Key:
    """What makes two constants the same; those in forms of their own are like no other."""
    q = tensor.quantization
    if tensor.sparsity is not None or tensor.external_buffer or (q is not None and q.details is not None):
        return (id(tensor),)
    numbers = () if q is None else tuple(tuple(v) if v is not None else () for v in (q.scale, q.zero_point))
    axis = 0 if q is None else q.quantized_dimension
    return tensor.buffer, tensor.name, tensor.type, tuple(tensor.shape or ()), numbers, axis


def _constants(model: Model, subgraph: SubGraph) -> dict[_Key, int]:
    """Constants of a graph by what they are."""
    return {_key(t): i for i, t in enumerate(subgraph.tensors) if _is_constant(model, t)}


def _is_constant(model: Model, tensor: Tensor) -> bool:
    if not 0 < tensor.buffer < len(model.buffers) or tensor.is_variable:
        return False
    data = model.buffers[tensor.buffer].data
    return data is not None and len(data) > 0


def _inlined(
    model: Model, subgraph: SubGraph, inner: SubGraph, op: Operator, shared: dict[_Key, int]
) -> list[Operator]:
    """The operators of a decomposition as operators of the graph that uses it."""
    number: dict[int, int] = {-1: -1}
    number.update(zip(inner.inputs, op.inputs, strict=True))
    number.update(zip(inner.outputs, op.outputs, strict=True))

    def place(index: int) -> int:
        if index not in number:
            tensor = inner.tensors[index]
            known = shared.get(_key(tensor)) if _is_constant(model, tensor) else None
            if known is None:
                known = len(subgraph.tensors)
                subgraph.tensors.append(tensor.replace())
                if _is_constant(model, tensor):
                    shared[_key(tensor)] = known
            number[index] = known
        return number[index]

    return [
        o.replace(inputs=[place(t) for t in o.inputs], outputs=[place(t) for t in o.outputs]) for o in inner.operators
    ]


def _drop_subgraphs(model: Model, places: set[int], before: list[list[Operator]]) -> None:
    """Removes subgraphs that nothing uses any more, if they are the last: renumbering others is not worth its risk."""
    while places and max(places) == len(model.subgraphs) - 1:
        places.discard(len(model.subgraphs) - 1)
        model.subgraphs.pop()
        before.pop()
