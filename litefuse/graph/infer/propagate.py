"""Carries shapes, types and small known values through a subgraph, in execution order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from litefuse.graph.graph import Graph
from litefuse.graph.infer.site import Facts, Shape, ShapeError, Site, TensorSpec, infer
from litefuse.graph.infer.values import fold
from litefuse.schema.tables import Operator


def propagate(graph: Graph, input_shapes: Mapping[int, Sequence[int]] | None = None, *, strict: bool = False) -> Facts:
    """Works out the shape and type of every tensor that the subgraph computes, and the values of shape arithmetic.

    What the file declares of computed tensors is not used, except where an operator has no rule and its inputs are
    as declared.

    Args:
        graph: the subgraph; its operators must be in execution order.
        input_shapes: shapes of inputs, by tensor index, in place of the declared ones; -1 leaves a dimension open.
        strict: raise on contradictions instead of treating the operator's outputs as unknown.

    Returns:
        What is known: `specs` for inputs and operator outputs, and `values` (int64 with UNKNOWN elements where known
        in part) for computed tensors.

    Raises:
        ShapeError: a shape is given for a tensor that is no input, or (if ``strict``) shapes contradict each other.
    """
    facts = Facts(graph, strict)
    for tensor in graph.inputs:
        facts.specs[tensor] = facts.spec(tensor)
    for tensor, shape in (input_shapes or {}).items():
        if tensor not in graph.inputs:
            raise ShapeError(f"tensor {tensor} is not an input of subgraph {graph.index}")
        if any(d < -1 for d in shape):
            raise ShapeError(f"input `{graph.name(tensor)}` cannot have shape {list(shape)}")
        facts.specs[tensor] = TensorSpec(tuple(shape), graph.type(tensor))
    run(facts)
    return facts


def run(facts: Facts, operators: Iterable[Operator] | None = None) -> None:
    """Adds what can be known of the outputs of operators, by default of all of them, to ``facts``.

    ``operators`` are in execution order; what they read from others is as the file declares it.
    """
    for op in facts.graph.operators() if operators is None else operators:
        site = Site(facts, op)
        try:
            specs = infer(site)
        except ShapeError:
            if facts.strict:
                raise
            specs = _untold(facts, op)
        if specs is None:
            specs = _declared(facts, op)
        site.outputs = specs
        for tensor, spec, value in zip(op.outputs, specs, fold(site), strict=True):
            if tensor >= 0:
                facts.specs[tensor] = spec
                if value is not None:
                    facts.values[tensor] = value


def infer_operator(graph: Graph, op: Operator) -> list[TensorSpec] | None:
    """Shape and type of each output of an operator, from its inputs as the file declares them.

    Dimensions that only run time can tell are -1; a shape is None when even the rank is open.

    Returns:
        One entry per output, or None when the operator is not known or its inputs contradict each other.
    """
    try:
        return infer(Site(Facts(graph, strict=True), op))
    except ShapeError:
        return None


def infer_subgraph(
    graph: Graph, input_shapes: Mapping[int, Shape] | None = None, *, strict: bool = False
) -> dict[int, TensorSpec]:
    """Shape and type of the inputs and of every tensor that operators compute; see :func:`propagate`."""
    return propagate(graph, input_shapes, strict=strict).specs


def _declared(facts: Facts, op: Operator) -> list[TensorSpec]:
    """The outputs of an operator without a rule: as declared, as long as its inputs are."""
    graph = facts.graph
    changed = any(t >= 0 and facts.spec(t) != TensorSpec(graph.shape(t), graph.type(t)) for t in op.inputs)
    if changed:
        return _untold(facts, op)
    return [TensorSpec(graph.shape(t), graph.type(t)) for t in op.outputs]


def _untold(facts: Facts, op: Operator) -> list[TensorSpec]:
    return [TensorSpec(None, facts.graph.type(t)) for t in op.outputs]
