"""Fixes unknown dimensions of a model's inputs and carries the shapes through every subgraph that then runs.

What computes shapes from shapes (SHAPE, STRIDED_SLICE, GATHER, REDUCE_PROD, PACK, ...) has a known result then, and a
constant takes its place. The shapes are those that the kernels compute (see :mod:`litefuse.graph.infer`), for the
bodies of IF and WHILE what holds at every call and in every round. Decompositions of composites get shapes but keep
their operators, which are the composite's definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from litefuse.errors import LitefuseError
from litefuse.graph.compact import compact
from litefuse.graph.declared import declare
from litefuse.graph.graph import NOT_PURE, Array, Graph, Location
from litefuse.graph.infer.control import calls
from litefuse.graph.infer.propagate import run
from litefuse.graph.infer.site import RULES, Facts, Shape, ShapeError, Site, TensorSpec, show
from litefuse.schema.enums import TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator
from litefuse.schema.types import NUMPY

# A tensor: the index of its subgraph, and its own.
Place: TypeAlias = tuple[int, int]

# Results of shape arithmetic that take more bytes stay computed.
_MAX_BYTES = 4096
_MAX_DIMENSION = 2**31 - 1
_INDICES = frozenset({TensorType.INT32, TensorType.INT64})


@dataclass(frozen=True)
class FrozenInput:
    """An input whose dimensions were fixed, -1 where they still are unknown."""

    subgraph: int
    tensor: str
    before: Shape | None
    after: Shape


@dataclass(frozen=True)
class DynamicTensor:
    """A tensor whose shape can still be told at run time only."""

    subgraph: int
    tensor: str
    shape: Shape | None
    """-1 for unknown dimensions; None when even their number is unknown."""
    location: Location | None
    """The operator that computes it; None for inputs."""
    reason: str


@dataclass
class FreezeReport:
    """What :func:`freeze` did."""

    inputs: list[FrozenInput]
    fixed: int = 0
    """How many tensors, inputs included, had unknown dimensions and have none now."""
    folded: int = 0
    """How many operators were replaced by the constants that they compute."""
    dynamic: list[DynamicTensor] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def freeze(
    model: Model, input_shapes: Mapping[str, Sequence[int]] | None = None, batch: int | None = None
) -> FreezeReport:
    """Fixes unknown dimensions of inputs, in place, and everything that follows from them.

    Args:
        model: the model. When an error is raised, it is as it was.
        input_shapes: shapes by the name of an input's tensor or its name in a signature; -1 leaves a dimension as it
            is. A name that several signatures have counts for all of them.
        batch: size for the first dimension of every input whose first dimension is unknown otherwise.

    Raises:
        LitefuseError: there is no such input, a shape contradicts the file, or the model cannot run with these shapes.
    """
    wanted = _wanted(model, input_shapes or {}, batch)
    reached = _infer(model, wanted)
    inputs = [
        FrozenInput(index, _name(model, (index, tensor)), Graph(model, index).shape(tensor), shape)
        for (index, tensor), shape in wanted.items()
    ]
    report = FreezeReport(inputs)
    if batch is not None and not inputs:
        report.notes.append(f"no input has an unknown first dimension, so that batch {batch} changes nothing")
    before = [list(subgraph.operators) for subgraph in model.subgraphs]
    for part in reached:
        for tensor, spec in part.facts.specs.items():
            report.fixed += spec.shape is not None and declare(part.graph, tensor, spec.shape)
        if not part.definition:
            report.folded += _fold(part)
        report.dynamic.extend(_dynamic(part))
        part.graph.commit()
    if report.folded:
        report.notes.extend(compact(model, before))
    return report


# -- what is asked for -----------------------------------------------------------------------------------------------


def _wanted(model: Model, input_shapes: Mapping[str, Sequence[int]], batch: int | None) -> dict[Place, Shape]:
    """The inputs whose shapes change, with their new shapes."""
    if batch is not None and batch < 1:
        raise LitefuseError(f"the batch must be 1 at least, not {batch}")
    names = _input_names(model)
    declared = {place: _declared(model, place) for place in names}
    shapes = dict(declared)
    for name, shape in input_shapes.items():
        places = [place for place, known in names.items() if name in known]
        if not places:
            listed = "; ".join(_described(model, place, known) for place, known in names.items())
            raise LitefuseError(f"there is no input `{name}`; the inputs are: {listed or 'none'}")
        if len({subgraph for subgraph, _ in places}) < len(places):
            several = ", ".join(f"`{_name(model, place)}`" for place in places)
            raise LitefuseError(f"`{name}` names several inputs, {several}; use the name of the tensor")
        for place in places:
            shapes[place] = _combined(_described(model, place, names[place]), shapes[place], shape)
    for place, current in shapes.items():
        if batch is not None and current and current[0] < 0:
            shapes[place] = (batch, *current[1:])
    changed = {place: shape for place, shape in shapes.items() if shape is not None and shape != declared[place]}
    for place, shape in changed.items():
        if any(d > _MAX_DIMENSION for d in shape):
            raise LitefuseError(f"{_described(model, place, names[place])}: {list(shape)} is too large")
    return changed


def _entries(model: Model) -> list[int]:
    """The subgraphs that callers can run."""
    found = dict.fromkeys([0, *(s.subgraph_index for s in model.signature_defs)])
    return [index for index in found if 0 <= index < len(model.subgraphs)]


def _input_names(model: Model) -> dict[Place, list[str]]:
    """The inputs that callers can set, with their names: those in signatures first, then the tensor's."""
    names: dict[Place, list[str]] = {}
    for index in _entries(model):
        for tensor in model.subgraphs[index].inputs:
            maps = [m for s in model.signature_defs if s.subgraph_index == index for m in s.inputs]
            known = [m.name or "" for m in maps if m.tensor_index == tensor]
            names[index, tensor] = list(dict.fromkeys([*known, _name(model, (index, tensor))]))
    return names


def _declared(model: Model, place: Place) -> Shape | None:
    """The declared shape of an input, on which the file must not contradict itself."""
    tensor = model.subgraphs[place[0]].tensors[place[1]]
    shape, signature = list(tensor.shape or ()), list(tensor.shape_signature or ())
    fits = len(shape) == len(signature) and all(b in (a, -1) for a, b in zip(shape, signature, strict=True))
    if signature and not fits:
        raise LitefuseError(
            f"the file contradicts itself on input `{_name(model, place)}`: its shape is {shape}, its shape_signature "
            f"{signature}; its shapes cannot be fixed"
        )
    return Graph(model, place[0]).shape(place[1])


def _combined(what: str, current: Shape | None, given: Sequence[int]) -> Shape:
    """What is known of a shape and what the user says of it."""
    if any(d == 0 or d < -1 for d in given):
        raise LitefuseError(f"{what}: {list(given)} is not a shape; dimensions are positive, or -1 to stay as they are")
    if current is None:
        return tuple(given)
    if len(given) != len(current):
        raise LitefuseError(f"{what}: {list(given)} has {len(given)} dimensions instead of {len(current)}")
    for i, (d, known) in enumerate(zip(given, current, strict=True)):
        if d >= 0 and known >= 0 and d != known:
            raise LitefuseError(f"{what}: dimension {i} is {known} and cannot be {d}; only unknown ones can be fixed")
    return tuple(max(d, known) for d, known in zip(given, current, strict=True))


def _described(model: Model, place: Place, names: Sequence[str]) -> str:
    """An input for messages, with all its names: `` `image` (tensor `serving_default_image:0`) [?, 224, 224, 3] ``."""
    shape = show(Graph(model, place[0]).shape(place[1]))
    *called, tensor = names
    if not called:
        return f"`{tensor}` {shape}"
    return f"{', '.join(f'`{name}`' for name in called)} (tensor `{tensor}`) {shape}"


def _name(model: Model, place: Place) -> str:
    return model.subgraphs[place[0]].tensors[place[1]].name or f"#{place[1]}"


# -- what follows ----------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """A subgraph that runs, with what is known of its tensors."""

    graph: Graph
    facts: Facts
    callers: list[Location]
    definition: bool
    """Whether it is the decomposition of a composite."""


class _Arguments:
    """What is known of a subgraph's inputs, whoever runs it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.specs: list[TensorSpec] | None = None
        self.values: list[Array | None] = []
        self.callers: list[Location] = []
        self.definition = False

    def add(self, specs: list[TensorSpec], values: list[Array | None]) -> None:
        """Adds one way to run the subgraph; keeps what all ways have in common."""
        inputs = self.graph.subgraph.inputs
        if len(specs) != len(inputs):
            raise LitefuseError(f"subgraph {self.graph.index} takes {len(inputs)} inputs, but is given {len(specs)}")
        if self.specs is None:
            self.specs, self.values = specs, values
            return
        pairs = zip(self.specs, specs, strict=True)
        self.specs = [TensorSpec(_common(a.shape, b.shape), a.type) for a, b in pairs]
        self.values = [a if _equal(a, b) else None for a, b in zip(self.values, values, strict=True)]


def _common(a: Shape | None, b: Shape | None) -> Shape | None:
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else -1 for x, y in zip(a, b, strict=True))


def _equal(a: Array | None, b: Array | None) -> bool:
    return a is not None and b is not None and a.dtype == b.dtype and np.array_equal(a, b)


def _infer(model: Model, wanted: Mapping[Place, Shape]) -> list[_Part]:
    """What is known of every subgraph that runs, callers first. Raises LitefuseError where shapes do not fit."""
    arguments = {index: _Arguments(Graph(model, index)) for index in range(len(model.subgraphs))}
    entries = _entries(model)
    for index in entries:
        graph = arguments[index].graph
        specs = [TensorSpec(wanted.get((index, t), graph.shape(t)), graph.type(t)) for t in graph.subgraph.inputs]
        arguments[index].add(specs, [None] * len(specs))
    parts = []
    for index in _callers_first([argument.graph for argument in arguments.values()], entries):
        part = _infer_part(arguments[index])
        parts.append(part)
        for op in part.graph.operators():
            for call in calls(Site(part.facts, op)):
                missing = TensorSpec(None, TensorType.FLOAT32)
                specs = [part.facts.spec(t) if t >= 0 else missing for t in call.tensors]
                values = [part.facts.whole(t) if call.values and t >= 0 else None for t in call.tensors]
                arguments[call.subgraph].add(specs, values)
                arguments[call.subgraph].callers.append(part.graph.where(op))
                arguments[call.subgraph].definition |= call.definition
    return parts


def _infer_part(arguments: _Arguments) -> _Part:
    graph = arguments.graph
    facts = Facts(graph, strict=True)
    # Kernels do not resize variables: whatever their signatures say, they have the size that the file gives.
    for i, table in enumerate(graph.tensors):
        if table.is_variable:
            facts.specs[i] = TensorSpec(tuple(table.shape or ()), table.type)
    for tensor, spec, value in zip(graph.subgraph.inputs, arguments.specs or (), arguments.values, strict=True):
        facts.specs[tensor] = spec
        if value is not None:
            facts.values[tensor] = value
    try:
        run(facts)
    except ShapeError as error:
        raise LitefuseError(f"the model cannot run with these input shapes: {error}") from None
    return _Part(graph, facts, arguments.callers, arguments.definition)


def _callers_first(graphs: Sequence[Graph], entries: Iterable[int]) -> list[int]:
    """The subgraphs that run, each behind all that call it."""
    finished: list[int] = []
    active: set[int] = set()

    def visit(index: int) -> None:
        if index in active:
            raise LitefuseError(f"subgraph {index} calls itself; the shapes cannot be fixed")
        if index in finished:
            return
        active.add(index)
        for op in graphs[index].operators():
            for call in calls(Site(Facts(graphs[index]), op)):
                if not 0 <= call.subgraph < len(graphs):
                    raise LitefuseError(f"{graphs[index].where(op)}: subgraph {call.subgraph} does not exist")
                visit(call.subgraph)
        active.discard(index)
        finished.append(index)

    for index in entries:
        visit(index)
    return finished[::-1]


# -- writing it down -------------------------------------------------------------------------------------------------


def _fold(part: _Part) -> int:
    """Puts constants in the place of what follows from shapes; returns how many operators that removes."""
    graph, facts = part.graph, part.facts
    count = sum(1 for _ in graph.operators())
    # What does not follow from shapes, such as weights behind DEQUANTIZE, is left to the rules.
    following = {t for t in graph.subgraph.inputs if t in facts.values}
    for op in graph.operators():
        if graph.kind(op) in (Op.SHAPE, Op.RANK) or not following.isdisjoint(op.inputs):
            following.update(op.outputs)
    known = {t for t in following if _constant(facts, t) is not None}
    constants: dict[int, int] = {}
    for op in graph.operators():
        if graph.kind(op) not in NOT_PURE and known.issuperset(op.outputs) and graph.outputs.isdisjoint(op.outputs):
            continue  # goes away
        for slot, tensor in enumerate(op.inputs):
            value = _constant(facts, tensor) if tensor in known else None
            if value is None or tensor in graph.inputs:
                continue
            if tensor not in constants:
                constants[tensor] = graph.add_constant(graph.name(tensor), value, type=graph.type(tensor))
            graph.set_input(op, slot, constants[tensor])
    graph.prune(known)
    return count - sum(1 for _ in graph.operators())


def _constant(facts: Facts, tensor: int) -> Array | None:
    """The value of a tensor that may become a constant."""
    value = facts.whole(tensor) if tensor >= 0 else None
    fits = value is not None and 0 < value.nbytes <= _MAX_BYTES and value.dtype == NUMPY.get(facts.graph.type(tensor))
    return value if fits else None


# -- what stays dynamic ----------------------------------------------------------------------------------------------


def _dynamic(part: _Part) -> Iterator[DynamicTensor]:
    """The tensors of a subgraph with unknown dimensions, and why they have them."""
    graph = part.graph
    roots: dict[int, str] = {}
    for tensor in graph.subgraph.inputs:
        if graph.static_shape(tensor) is None:
            roots[tensor] = graph.name(tensor)
            yield DynamicTensor(graph.index, graph.name(tensor), graph.shape(tensor), None, _why_input(part, tensor))
    for op in graph.operators():
        for tensor in op.outputs:
            if tensor < 0 or graph.static_shape(tensor) is not None:
                continue
            root = next((roots[t] for t in op.inputs if t in roots), None)
            reason = _why_output(part, op) if root is None else f"follows from `{root}`"
            roots[tensor] = root or graph.name(tensor)
            yield DynamicTensor(graph.index, graph.name(tensor), graph.shape(tensor), graph.where(op), reason)


def _why_input(part: _Part, tensor: int) -> str:
    shape = part.graph.shape(tensor)
    if part.callers:
        return f"{' and '.join(map(str, dict.fromkeys(part.callers)))} may pass it in different shapes"
    if shape is None:
        return "the file does not say how many dimensions this input has"
    open_ = [str(i) for i, d in enumerate(shape) if d < 0]
    return f"dimension{'s' if len(open_) > 1 else ''} {' and '.join(open_)} of this input may be anything"


def _why_output(part: _Part, op: Operator) -> str:
    """Why the outputs of an operator have unknown dimensions although none of its inputs has."""
    graph, facts = part.graph, part.facts
    kind = graph.kind(op)
    if kind is Op.WHILE:
        return "its shape changes from round to round, or the loop's body does not tell it"
    if kind in (Op.IF, Op.STABLEHLO_CASE):
        return "the branches return different shapes, or do not tell them"
    if kind in (Op.READ_VARIABLE, Op.VAR_HANDLE):
        return "a variable may hold any shape"
    if kind not in RULES:
        return "only this operator itself can tell the shape of its result"
    values = [t for t in op.inputs if t >= 0 and facts.whole(t) is None]
    integers = [t for t in values if facts.spec(t).type in _INDICES]
    names = [f"`{graph.name(t)}`" for t in integers or values]
    return f"depends on the value of {' and '.join(names)}" if names else "cannot be told before run time"
