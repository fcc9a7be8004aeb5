"""Removes what nothing refers to any more and renumbers the rest.

Everything in a file that holds an index is renumbered with it: operators, subgraph inputs and outputs, signatures,
block-wise quantisation, metadata, and the control dependencies that some converters store as metadata. TFLite
Metadata refers to inputs and outputs by position, which never changes here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from litefuse.schema.model import Model
from litefuse.schema.tables import (
    BlockwiseQuantization,
    Buffer,
    MultiAxisQuantization,
    Operator,
    SubGraph,
    Tensor,
)
from litefuse.schema.writer import as_bytes

CONTROL_DEPENDENCIES = "model_control_dependencies"
MEMORY_PLAN = "OfflineMemoryAllocation"


def compact(model: Model, before: Sequence[Sequence[Operator]]) -> list[str]:
    """Drops unused tensors, buffers and operator codes of ``model``, in place.

    Args:
        model: a model whose subgraphs hold their final operators.
        before: the operators of each subgraph as they were when the model was read, which control dependencies
            refer to.

    Returns:
        Notes for the user about metadata that could not be kept.
    """
    notes = []
    changed = any(list(s.operators) != list(old) for s, old in zip(model.subgraphs, before, strict=True))
    for index, subgraph in enumerate(model.subgraphs):
        changed |= _compact_tensors(model, index, subgraph)
    if changed:
        notes.extend(_drop_memory_plan(model))
        notes.extend(_renumber_control_dependencies(model, before))
    _compact_buffers(model)
    _compact_codes(model)
    return notes


def _side_tensors(tensor: Tensor) -> Iterable[int]:
    """Tensors that a tensor's quantisation refers to."""
    details = tensor.quantization.details if tensor.quantization else None
    if isinstance(details, (BlockwiseQuantization, MultiAxisQuantization)):
        yield from (t for t in (details.scales, details.zero_points) if t >= 0)


def _compact_tensors(model: Model, index: int, subgraph: SubGraph) -> bool:
    count = len(subgraph.tensors)
    used = {*subgraph.inputs, *subgraph.outputs}
    for op in subgraph.operators:
        used.update(op.inputs, op.outputs, op.intermediates or ())
    signatures = [s for s in model.signature_defs if s.subgraph_index == index]
    maps = [m for s in signatures for m in (*s.inputs, *s.outputs)]
    used.update(m.tensor_index for m in maps)
    for index_used in [t for t in used if 0 <= t < count]:
        used.update(_side_tensors(subgraph.tensors[index_used]))
    kept = [t for t in range(count) if t in used]
    if len(kept) == count:
        return False
    number = {old: new for new, old in enumerate(kept)}
    subgraph.tensors = [subgraph.tensors[t] for t in kept]

    def renumber(tensors: list[int]) -> list[int]:
        return type(tensors)(number.get(t, t) for t in tensors)

    subgraph.inputs = renumber(subgraph.inputs)
    subgraph.outputs = renumber(subgraph.outputs)
    for op in subgraph.operators:
        op.inputs = renumber(op.inputs)
        op.outputs = renumber(op.outputs)
        if op.intermediates is not None:
            op.intermediates = renumber(op.intermediates)
    for entry in maps:
        entry.tensor_index = number.get(entry.tensor_index, entry.tensor_index)
    seen: set[int] = set()  # quantisation tables may be shared between tensors
    for tensor in subgraph.tensors:
        details = tensor.quantization.details if tensor.quantization else None
        if isinstance(details, (BlockwiseQuantization, MultiAxisQuantization)) and id(details) not in seen:
            seen.add(id(details))
            details.scales = number.get(details.scales, details.scales)
            details.zero_points = number.get(details.zero_points, details.zero_points)
    return True


def _compact_buffers(model: Model) -> None:
    used = {0}
    for subgraph in model.subgraphs:
        used.update(t.buffer for t in subgraph.tensors)
    used.update(m.buffer for m in model.metadata)
    used.update(model.metadata_buffer or ())
    kept = [b for b in range(len(model.buffers)) if b in used]
    if len(kept) == len(model.buffers):
        return
    number = {old: new for new, old in enumerate(kept)}
    model.buffers = [model.buffers[b] for b in kept]
    for subgraph in model.subgraphs:
        for tensor in subgraph.tensors:
            tensor.buffer = number.get(tensor.buffer, tensor.buffer)
    for entry in model.metadata:
        entry.buffer = number.get(entry.buffer, entry.buffer)
    if model.metadata_buffer is not None:
        model.metadata_buffer = [number.get(b, b) for b in model.metadata_buffer]


def _compact_codes(model: Model) -> None:
    used = {op.opcode_index for subgraph in model.subgraphs for op in subgraph.operators}
    kept = [c for c in range(len(model.operator_codes)) if c in used]
    if len(kept) == len(model.operator_codes):
        return
    number = {old: new for new, old in enumerate(kept)}
    model.operator_codes = [model.operator_codes[c] for c in kept]
    for subgraph in model.subgraphs:
        for op in subgraph.operators:
            op.opcode_index = number[op.opcode_index]


def metadata_buffer(model: Model, name: str) -> Buffer | None:
    """The buffer of a metadata entry; None when there is none."""
    for entry in model.metadata:
        if entry.name == name and 0 < entry.buffer < len(model.buffers):
            return model.buffers[entry.buffer]
    return None


def drop_metadata(model: Model, name: str) -> None:
    """Removes the metadata entries of that name; their buffers go with :func:`compact`."""
    model.metadata = [m for m in model.metadata if m.name != name]


def _drop_memory_plan(model: Model) -> list[str]:
    if not any(m.name == MEMORY_PLAN for m in model.metadata):
        return []
    drop_metadata(model, MEMORY_PLAN)
    return [f"the memory plan in the file ({MEMORY_PLAN}) was for the original operators and has been removed"]


# -- control dependencies ------------------------------------------------------------------------------------------
# Serialised as varints, signed ones zigzag: version 1, then per subgraph the number of pairs and (from, to) pairs
# of operator indices (tflite/converter/experimental/remat/metadata_util.cc).


def parse_control_dependencies(data: bytes) -> list[list[tuple[int, int]]] | None:
    """The (from, to) operator index pairs of each subgraph, or None when the data is not valid."""
    values = []
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            values.append(value)
            value = shift = 0
    if shift or len(values) < 2 or values[0] != 1:
        return None
    pairs = []
    rest = iter(values[2:])
    try:
        for _ in range(values[1]):
            count = next(rest)
            if count > len(values):
                return None
            pairs.append([(_unzigzag(next(rest)), _unzigzag(next(rest))) for _ in range(count)])
    except (StopIteration, RuntimeError):
        return None
    return pairs if next(rest, None) is None else None


def serialize_control_dependencies(pairs: Sequence[Sequence[tuple[int, int]]]) -> bytes:
    """The inverse of :func:`parse_control_dependencies`."""
    values = [1, len(pairs)]
    for subgraph in pairs:
        values.append(len(subgraph))
        values.extend(_zigzag(v) for pair in subgraph for v in pair)
    out = bytearray()
    for value in values:
        while value >= 128:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    return bytes(out)


def _zigzag(value: int) -> int:
    return -value * 2 - 1 if value < 0 else value * 2


def _unzigzag(value: int) -> int:
    return -(value // 2) - 1 if value % 2 else value // 2


def control_dependencies(model: Model) -> tuple[Buffer, list[list[tuple[int, int]]] | None] | None:
    """The buffer with the control dependencies and what it says (None when not valid); None when there is none."""
    buffer = metadata_buffer(model, CONTROL_DEPENDENCIES)
    if buffer is None or buffer.data is None:
        return None
    return buffer, parse_control_dependencies(bytes(as_bytes(buffer.data)))


def _renumber_control_dependencies(model: Model, before: Sequence[Sequence[Operator]]) -> list[str]:
    found = control_dependencies(model)
    if found is None:
        return []
    buffer, pairs = found
    if pairs is None or len(pairs) != len(model.subgraphs):
        drop_metadata(model, CONTROL_DEPENDENCIES)
        return ["the control dependencies in the file could not be read and have been removed"]
    result = []
    for subgraph, old, edges in zip(model.subgraphs, before, pairs, strict=True):
        place = {op: i for i, op in enumerate(subgraph.operators)}
        number = {i: place[op] for i, op in enumerate(old) if op in place}
        result.append(_without_removed(edges, number))
    buffer.data = serialize_control_dependencies(result)
    return []


def _without_removed(edges: list[tuple[int, int]], number: dict[int, int]) -> list[tuple[int, int]]:
    """Renumbers edges; a removed operator passes its predecessors on to its successors."""
    followers: dict[int, list[int]] = {}
    for a, b in edges:
        followers.setdefault(a, []).append(b)
    found: dict[tuple[int, int], None] = {}
    for start in followers:
        if start not in number:
            continue
        todo, seen = list(followers[start]), set()
        while todo:
            op = todo.pop(0)
            if op in seen:
                continue
            seen.add(op)
            if op in number:
                found[number[start], number[op]] = None
            else:
                todo.extend(followers.get(op, ()))
    return list(found)
