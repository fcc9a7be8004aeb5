"""The same thing twice.

merge-duplicates: a = f(x); b = f(x) -> a, for operators that are functions of their inputs.

:func:`share_buffers` does the like for constants: tensors with the same contents share one buffer.
"""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b
from weakref import WeakKeyDictionary

import numpy as np

from litefuse.fusions.identity import same_quantization
from litefuse.fusions.rule import Applied, ModelRule, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph
from litefuse.graph.compact import CONTROL_DEPENDENCIES
from litefuse.graph.graph import NOT_PURE
from litefuse.schema.declare import diff
from litefuse.schema.model import Model
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator, Tensor
from litefuse.schema.writer import as_bytes

_SAMPLE = 64


class MergeDuplicates(Rule):
    """Of two operators with the same kind, version, options and inputs, one result serves all readers.

    Constants are the same when their contents are.
    """

    name = "merge-duplicates"
    numerics = Numerics.EXACT
    kinds = frozenset(Op) - NOT_PURE
    example = """
        graph main(%x: f32[1,8]) {
          %a = TANH(%x)
          %b = TANH(%x)
          %y = CONCATENATION(%a, %b) {axis=1}
          return %y
        }
    """

    def __init__(self) -> None:
        # Operators by a key that equal ones share. Entries may have gone out of date; they are checked when found.
        self._seen: WeakKeyDictionary[Graph, dict[Hashable, list[Operator]]] = WeakKeyDictionary()

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Removes the later of two equal operators, one of which is ``op``."""
        if graph.has_state(op) or op.custom_options is not None or op.intermediates or not op.outputs:
            return None
        if any(entry.name == CONTROL_DEPENDENCIES for entry in graph.model.metadata):
            return None  # the converter repeats operators on purpose there, so as not to keep their results
        bucket = self._seen.setdefault(graph, {}).setdefault(_key(graph, op), [])
        twin = next((other for other in bucket if other is not op and other in graph and _same(graph, op, other)), None)
        if twin is None:
            if not any(other is op for other in bucket):
                bucket.append(op)
            return None
        first, second = (op, twin) if _precedes(graph, op, twin) else (twin, op)
        if any(a in graph.outputs and b in graph.outputs for a, b in zip(first.outputs, second.outputs, strict=True)):
            return Refused(f"{graph.where(first)} computes the same, but the results of both are outputs of the graph")
        bucket[:] = [first, *(other for other in bucket if other is not twin and other is not op)]
        where = graph.where(first)
        graph.remove(second)
        for i, old in enumerate(second.outputs):
            kept = first.outputs[i]
            if old in graph.outputs:
                graph.set_output(first, i, old)
                graph.replace_uses(kept, old)
            else:
                graph.replace_uses(old, kept)
        graph.prune(second.inputs)
        return Applied(f"same as {where}")


def _key(graph: Graph, op: Operator) -> Hashable:
    return graph.kind(op), graph.version(op), tuple(_input_key(graph, t) for t in op.inputs)


def _input_key(graph: Graph, tensor: int) -> Hashable:
    value = graph.constant(tensor)
    if value is None:
        return tensor
    data = as_bytes(value)
    return value.dtype.str, value.shape, bytes(data[:_SAMPLE]), bytes(data[-_SAMPLE:])


def _same(graph: Graph, a: Operator, b: Operator) -> bool:
    """Whether two operators with the same key compute the same, and their results mean the same."""
    return (
        _key(graph, a) == _key(graph, b)
        and len(a.outputs) == len(b.outputs)
        and all(_same_input(graph, x, y) for x, y in zip(a.inputs, b.inputs, strict=True))
        and all(_same_output(graph, x, y) for x, y in zip(a.outputs, b.outputs, strict=True))
        and not any(diff(a.builtin_options, b.builtin_options))
        and not any(diff(a.builtin_options_2, b.builtin_options_2))
        and not b.intermediates
    )


def _same_input(graph: Graph, a: int, b: int) -> bool:
    if a == b:
        return True
    x, y = graph.constant(a), graph.constant(b)
    return (
        x is not None
        and y is not None
        and graph.type(a) == graph.type(b)
        and np.array_equal(np.asarray(as_bytes(x)), np.asarray(as_bytes(y)))
        and same_quantization(graph, a, b)
    )


def _same_output(graph: Graph, a: int, b: int) -> bool:
    s, t = graph.tensor(a), graph.tensor(b)
    same_place = (s.type, list(s.shape or ()), s.is_variable) == (t.type, list(t.shape or ()), t.is_variable)
    return same_place and graph.shape(a) == graph.shape(b) and same_quantization(graph, a, b)


def _precedes(graph: Graph, a: Operator, b: Operator) -> bool:
    """Whether ``a`` is executed before ``b``."""
    place_a, place_b = graph.where(a).operator, graph.where(b).operator
    if place_a != place_b:
        # Operators never change places, and new ones count as standing where they were put.
        return place_a < place_b
    return next(op for op in graph.operators() if op is a or op is b) is a


# -- buffers -----------------------------------------------------------------------------------------------------------


class ShareConstants(ModelRule):
    """Constants with equal contents, types, shapes and quantisation share one buffer, in the whole file.

    Converters often write the same zeros, shapes and axes many times. Only the file and the memory that holds it get
    smaller; the tensors stay.
    """

    name = "share-constants"
    numerics = Numerics.EXACT
    example = """
        graph main(%x: f32[1,16]) {
          %a = FULLY_CONNECTED(%x, w1[16,16], zeros1[16]=0.0)
          %y = FULLY_CONNECTED(%a, w2[16,16], zeros2[16]=0.0)
          return %y
        }
    """

    def finish(self, model: Model) -> Applied | None:
        """Shares what can be shared."""
        saved = share_buffers(model)
        return Applied(f"{saved} bytes are not stored twice") if saved else None


def share_buffers(model: Model) -> int:
    """Makes constants with equal contents share one buffer, across all subgraphs, and returns the bytes saved.

    Tensors share when data, type, shape, quantisation and sparsity are equal. Buffers that anything but constants
    refers to (variables, inputs, outputs, results, metadata) keep out of it. The buffers that nothing refers to
    afterwards stay in the model's list, for :func:`litefuse.graph.compact.compact` to remove.
    """
    locked = {0, *(entry.buffer for entry in model.metadata), *(model.metadata_buffer or ())}
    constants: list[Tensor] = []
    for subgraph in model.subgraphs:
        touched = {*subgraph.inputs, *subgraph.outputs, *(t for op in subgraph.operators for t in op.outputs)}
        for i, tensor in enumerate(subgraph.tensors):
            if i in touched or tensor.is_variable:
                locked.add(tensor.buffer)
            elif not tensor.external_buffer:
                constants.append(tensor)
    alike: dict[Hashable, list[Tensor]] = {}
    for tensor in constants:
        data = _contents(model, tensor.buffer) if tensor.buffer not in locked else b""
        if len(data):
            key = tensor.type, tuple(tensor.shape or ()), len(data), bytes(data[:_SAMPLE]), bytes(data[-_SAMPLE:])
            alike.setdefault(key, []).append(tensor)
    before = {t.buffer for tensors in alike.values() for t in tensors}
    for tensors in alike.values():
        _share(model, tensors)
    after = {t.buffer for tensors in alike.values() for t in tensors}
    return sum(len(_contents(model, b)) for b in before - after)


def _contents(model: Model, buffer: int) -> memoryview:
    data = model.buffers[buffer].data if buffer < len(model.buffers) else None
    return as_bytes(b"" if data is None else data)


def _share(model: Model, tensors: list[Tensor]) -> None:
    """Makes those tensors share that are equal; their types, shapes and sizes are."""
    buffers = dict.fromkeys(t.buffer for t in tensors)
    if len(buffers) < 2:
        return
    digests = {b: blake2b(_contents(model, b)).digest() for b in buffers}
    owners: dict[bytes, list[Tensor]] = {}
    for tensor in tensors:
        found = owners.setdefault(digests[tensor.buffer], [])
        owner = next((t for t in found if _means_the_same(t, tensor)), None)
        if owner is None:
            found.append(tensor)
        else:
            tensor.buffer = owner.buffer


def _means_the_same(a: Tensor, b: Tensor) -> bool:
    return not any(diff(a.quantization, b.quantization)) and not any(diff(a.sparsity, b.sparsity))


RULES: tuple[Rule, ...] = (MergeDuplicates(), ShareConstants())
