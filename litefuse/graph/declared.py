"""The shapes that a file declares for computed tensors: writing better ones, and finding wrong ones.

Runtimes ignore these declarations, so that nobody may have noticed that they are wrong. Rewrites read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from weakref import WeakKeyDictionary

from litefuse.graph.graph import Graph
from litefuse.graph.infer.control import calls
from litefuse.graph.infer.propagate import propagate
from litefuse.graph.infer.site import Facts, Shape, Site, agree, show

# A size for unknown first dimensions that no declaration names by accident: those that are wrong usually say 1.
_PROBE = 2


def declare(graph: Graph, tensor: int, shape: Shape) -> bool:
    """Gives a tensor a shape; where that says -1, a dimension that the file declares stays.

    Returns whether the shape was not fixed before and is now.
    """
    table, declared = graph.tensor(tensor), graph.shape(tensor)
    if declared is not None and len(declared) == len(shape):
        shape = tuple(d if d >= 0 else known for d, known in zip(shape, declared, strict=True))
    if shape == declared:
        return False
    # For unknown dimensions the stored shape says what they start as.
    start = table.shape if table.shape and len(table.shape) == len(shape) else [1] * len(shape)
    table.shape = [s if d < 0 else d for d, s in zip(shape, start, strict=True)]
    table.shape_signature = list(shape) if -1 in shape else None
    table.has_rank = True
    return -1 not in shape and (declared is None or -1 in declared)


def contradiction(graph: Graph, tensor: int) -> str | None:
    """How the declared shape of a tensor contradicts what is computed or passed in, in words; None if it agrees.

    It is also wrong to declare a fixed size for what changes with the inputs' first dimension. What is found when a
    graph is first asked about is remembered: rewrites change no tensor's shape.
    """
    found = _FOUND.get(graph)
    if found is None:
        found = _FOUND[graph] = _contradictions(graph)
    return found.get(tensor)


_FOUND: WeakKeyDictionary[Graph, Mapping[int, str]] = WeakKeyDictionary()


def _contradictions(graph: Graph) -> dict[int, str]:
    found: dict[int, str] = {}
    declared = {t: graph.shape(t) for t in graph.inputs}
    opened = {t: (_PROBE, *shape[1:]) for t, shape in declared.items() if shape and shape[0] < 0}
    for given in ({}, *([opened] if opened else []), *_passed_in(graph)):
        inputs = " and ".join(f"`{graph.name(t)}` {show(shape)}" for t, shape in given.items())
        for tensor, spec in propagate(graph, given).specs.items():
            shape = graph.shape(tensor)
            if given is opened and tensor in graph.inputs:
                continue
            if tensor in found or shape is None or spec.shape is None or _allows(shape, spec.shape):
                continue
            found[tensor] = (
                f"the file declares shape {show(shape)} for `{graph.name(tensor)}`, whose shape is {show(spec.shape)}"
                + (f" for {inputs}" if inputs else "")
            )
    return found


def _allows(declared: Shape, shape: Shape) -> bool:
    return len(declared) == len(shape) and all(map(agree, declared, shape))


def _passed_in(graph: Graph) -> Iterator[dict[int, Shape]]:
    """The shapes of the inputs as those declare them who run this subgraph, with a number for unknown batches."""
    for index in range(len(graph.model.subgraphs)):
        caller = Graph(graph.model, index)
        facts = Facts(caller)
        for op in caller.operators():
            for call in calls(Site(facts, op)):
                if call.subgraph == graph.index:
                    shapes = (caller.shape(t) if t >= 0 else None for t in call.tensors)
                    pairs = zip(graph.subgraph.inputs, shapes, strict=False)
                    yield {t: (_PROBE if s[0] < 0 else s[0], *s[1:]) if s else s for t, s in pairs if s is not None}
