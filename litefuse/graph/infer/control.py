"""Operators that run other subgraphs, and those that keep values between runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from litefuse.graph.graph import Graph
from litefuse.graph.infer.propagate import run
from litefuse.graph.infer.site import (
    Facts,
    Shape,
    Shapes,
    Site,
    TensorSpec,
    Unknown,
    declared,
    rule,
)
from litefuse.schema.operators import Op


class Call(NamedTuple):
    """One subgraph that an operator runs."""

    subgraph: int
    tensors: Sequence[int]
    """The caller's tensors that have the shapes of the callee's inputs."""
    values: bool = True
    """Whether they have the values too."""
    definition: bool = False
    """Whether the subgraph is the decomposition of a composite."""


def calls(site: Site) -> Iterator[Call]:
    """The subgraphs that an operator runs, some of them perhaps not in every run."""
    op = site.op
    if site.kind is Op.IF:
        yield Call(site.option("then_subgraph_index"), op.inputs[1:])
        yield Call(site.option("else_subgraph_index"), op.inputs[1:])
    elif site.kind is Op.STABLEHLO_CASE:
        yield from (Call(index, op.inputs[1:]) for index in site.option("branch_subgraph_indices") or ())
    elif site.kind is Op.WHILE:
        # The outputs' shapes are those that hold in every round.
        yield Call(site.option("cond_subgraph_index"), op.outputs, values=False)
        yield Call(site.option("body_subgraph_index"), op.outputs, values=False)
    elif site.kind is Op.STABLEHLO_COMPOSITE:
        yield Call(site.option("decomposition_subgraph_index"), op.inputs, definition=True)
    elif site.kind is Op.CALL_ONCE:
        yield Call(site.option("init_subgraph_index"), ())


def _call(site: Site, index: int, arguments: Sequence[TensorSpec], values: Sequence[int] = ()) -> list[TensorSpec]:
    """What a subgraph returns for given arguments; ``values`` are the tensors of the caller that it is passed."""
    subgraphs = site.graph.model.subgraphs
    site.require(0 <= index < len(subgraphs), f"subgraph {index} does not exist")
    if index in site.facts.active:
        raise Unknown
    graph = Graph(site.graph.model, index)
    inputs, outputs = graph.subgraph.inputs, graph.subgraph.outputs
    site.require(len(inputs) == len(arguments), f"subgraph {index} takes {len(inputs)} inputs, not {len(arguments)}")
    site.require(len(outputs) == len(site.op.outputs), f"subgraph {index} returns {len(outputs)} values")
    facts = Facts(graph, site.facts.strict, site.facts.active)
    facts.specs.update((t, a) for t, a in zip(inputs, arguments, strict=True) if t >= 0)
    for tensor, source in zip(inputs, values, strict=False):
        value = site.facts.value(source) if source >= 0 else None
        if value is not None and tensor >= 0:
            facts.values[tensor] = value
    run(facts)
    return [facts.spec(t) for t in outputs]


def _arguments(site: Site, skipped: int) -> tuple[list[TensorSpec], list[int]]:
    """What is passed on: every input but the first ``skipped``."""
    tensors = site.op.inputs[skipped:]
    return [site.facts.spec(t) if t >= 0 else TensorSpec(None, declared(site, 0)) for t in tensors], tensors


def _either(a: Shape | None, b: Shape | None) -> Shape | None:
    """What is certain of a shape that is one of two."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else -1 for x, y in zip(a, b, strict=True))


def _branches(site: Site, indices: Sequence[int]) -> Shapes:
    arguments, tensors = _arguments(site, 1)
    shapes: list[Shape | None] | None = None
    for index in indices:
        found = [spec.shape for spec in _call(site, index, arguments, tensors)]
        shapes = found if shapes is None else [_either(a, b) for a, b in zip(shapes, found, strict=True)]
    if shapes is None:
        raise Unknown
    return shapes


@rule(Op.IF, type=declared)
def _if(site: Site) -> Shapes:
    return _branches(site, (site.option("then_subgraph_index"), site.option("else_subgraph_index")))


@rule(Op.STABLEHLO_CASE, type=declared)
def _case(site: Site) -> Shapes:
    return _branches(site, site.option("branch_subgraph_indices") or ())


@rule(Op.STABLEHLO_COMPOSITE, type=declared)
def _composite(site: Site) -> Shapes:
    arguments, tensors = _arguments(site, 0)
    return [spec.shape for spec in _call(site, site.option("decomposition_subgraph_index"), arguments, tensors)]


@rule(Op.WHILE, type=declared)
def _while(site: Site) -> Shapes:
    # What holds before the loop and after every round. Each round can only make it weaker, so this ends.
    state, _ = _arguments(site, 0)
    body = site.option("body_subgraph_index")
    while True:
        after = _call(site, body, state)
        joined = [TensorSpec(_either(a.shape, b.shape), a.type) for a, b in zip(state, after, strict=True)]
        if joined == state:
            return [spec.shape for spec in state]
        state = joined


@rule(Op.CALL_ONCE, Op.ASSIGN_VARIABLE, Op.HASHTABLE_IMPORT)
def _nothing(site: Site) -> Shapes:
    return []


@rule(Op.VAR_HANDLE, type=declared)
def _var_handle(site: Site) -> Shape:
    return tuple(site.graph.tensor(site.op.outputs[0]).shape or ())


@rule(Op.READ_VARIABLE, type=declared)
def _read_variable(site: Site) -> Shapes:
    return [site.graph.shape(site.op.outputs[0])]  # only the file says what a variable holds


@rule(Op.HASHTABLE, Op.HASHTABLE_SIZE, type=declared)
def _hashtable(site: Site) -> Shape:
    return (1,)


@rule(Op.HASHTABLE_FIND, type=declared)
def _hashtable_find(site: Site) -> Shape:
    return site.shape(1)
