"""Memory plans in a model's metadata, where TensorFlow Lite Micro honours them.

The metadata entry `OfflineMemoryAllocation` holds little-endian int32: a version and the number of subgraphs, which
TFLM does not look at, then n, then n offsets. There is one offset for each tensor of each subgraph in the order of the
file, constants included: bytes from the low end of the arena, or -1 for a tensor that TFLM is to place itself.

TFLM checks n and that offsets lie in the arena, and nothing else: a plan whose live tensors overlap gives wrong answers
without an error. Only write plans that were checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from litefuse.arena.lifetimes import TFLM, sizes
from litefuse.arena.plan import Plan, reordered
from litefuse.arena.tflm import ALIGNMENT, head_bytes, in_head, tensor_bytes, unsized
from litefuse.errors import LitefuseError
from litefuse.graph.compact import MEMORY_PLAN as NAME
from litefuse.graph.graph import Graph
from litefuse.schema.declare import deepcopy
from litefuse.schema.enums import TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op
from litefuse.schema.tables import Buffer, Metadata, Operator
from litefuse.schema.writer import as_bytes

_VERSION = 1
_LARGEST = 2**31 - 1


class OfflinePlanError(LitefuseError):
    """A memory plan that cannot be written, or one in a file that no runtime could follow; exit code 1."""


class Online(NamedTuple):
    """A tensor that TFLM places itself, whatever a plan says.

    Attributes:
        subgraph: which subgraph it belongs to.
        tensor: its index there.
        name: its name.
        reason: why no offset is written for it.
    """

    subgraph: int
    tensor: int
    name: str
    reason: str

    def __str__(self) -> str:
        return f"tensor `{self.name}` of subgraph {self.subgraph}: {self.reason}"


class Written(NamedTuple):
    """What :func:`write_plan` did.

    Attributes:
        model: a copy of the model, with the plan and its order of operators, or with neither.
        planned_bytes: TFLM's head with the plan.
        base_bytes: TFLM's head when it plans for itself, with the operators in the file's order.
        kept: which of the two the copy has; the plan only where it is smaller and TFLM knows all sizes.
        online: the tensors that TFLM places itself in either case.
    """

    model: Model
    planned_bytes: int
    base_bytes: int
    kept: Literal["plan", "base"]
    online: list[Online]


def write_plan(model: Model, plan: Plan) -> Written:
    """Writes a plan for TFLM into a copy of a model, if TFLM needs less memory with it than with its own plan.

    Args:
        model: the model that was planned; it is not changed. A plan that it brought along is replaced, or removed.
        plan: from :func:`litefuse.arena.plan.plan` with the rules of TFLM.

    Raises:
        OfflinePlanError: the independent check found that results would be wrong (:meth:`Plan.faults`).
    """
    moved = reordered(model, plan)
    online = must_stay_online(moved)
    left = {(o.subgraph, o.tensor) for o in online}
    offsets = {key: offset for key, offset in plan_offsets(plan).items() if key not in left}
    found = plan.faults(model)
    if found:
        more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
        raise OfflinePlanError(f"the plan is wrong and was not written: {'; '.join(found[:3])}{more}")
    base, planned = head_bytes(model), head_bytes(moved, offsets)
    # TFLM writes past tensors whose size it does not know. What that hits must not depend on us.
    graphs = [Graph(moved, s) for s in range(len(moved.subgraphs))]
    blind = any(unsized(graph, t) for graph in graphs for t in range(len(graph.tensors)))
    if planned >= base or blind:
        copy: Model = deepcopy(model)
        detach(copy)
        return Written(copy, planned, base, "base", online)
    attach(moved, offsets)
    return Written(moved, planned, base, "plan", online)


def plan_offsets(plan: Plan) -> dict[tuple[int, int], int]:
    """The offsets in bytes that a plan gives, by (subgraph, tensor)."""
    return {key: offset for arena in plan.arenas for key, offset in arena.offsets.items()}


def attach(model: Model, offsets: Mapping[tuple[int, int], int]) -> list[Online]:
    """Writes a plan into a model's metadata, in place of an older one.

    Args:
        model: the model, which is changed.
        offsets: bytes from the start of the arena by (subgraph, tensor). Tensors without one, and those that
            :func:`must_stay_online` names, are left to TFLM.

    Returns the tensors that must stay online.

    Raises:
        OfflinePlanError: there is no such tensor, or an offset is negative, past the arena that 32 bits can describe,
            or not a multiple of 16.
    """
    online = must_stay_online(model)
    kept = {(o.subgraph, o.tensor) for o in online}
    starts = _starts(model)
    values = np.full(starts[-1], -1, "<i4")
    for (s, t), offset in offsets.items():
        if not (0 <= s < len(model.subgraphs) and 0 <= t < len(model.subgraphs[s].tensors)):
            raise OfflinePlanError(f"the plan has an offset for tensor {t} of subgraph {s}, which the model lacks")
        if (s, t) in kept or not in_head(model, s, t):
            continue
        what = _what(model, s, t)
        size = tensor_bytes(model.subgraphs[s].tensors[t]) or 0
        if offset < 0:
            raise OfflinePlanError(f"{what}: offset {offset} is negative; leave tensors that are not planned out")
        if offset + size > _LARGEST:
            raise OfflinePlanError(f"{what}: offset {offset} + {size} bytes lies beyond 2 GB, which int32 cannot say")
        if offset % ALIGNMENT:
            raise OfflinePlanError(
                f"{what}: offset {offset} is not a multiple of {ALIGNMENT}, as TFLM's kernels expect"
            )
        values[starts[s] + t] = offset
    header = np.array([_VERSION, len(model.subgraphs), len(values)], "<i4")
    _store(model, header.tobytes() + values.tobytes())
    return online


def read(model: Model) -> dict[tuple[int, int], int] | None:
    """The plan in a model's metadata: offsets in bytes by (subgraph, tensor); None when there is none.

    Tensors that TFLM places itself are left out.

    Raises:
        OfflinePlanError: the entry is too short, has the wrong number of offsets, or a negative offset other than -1.
    """
    # Of several entries, TFLM obeys the last.
    entry = next((m for m in reversed(model.metadata) if m.name == NAME), None)
    if entry is None:
        return None
    if not 0 <= entry.buffer < len(model.buffers):
        raise OfflinePlanError(f"{NAME} refers to buffer {entry.buffer} of {len(model.buffers)}; plan the model again")
    data = model.buffers[entry.buffer].data
    raw = b"" if data is None else bytes(as_bytes(data))
    starts = _starts(model)
    if len(raw) < 12:
        raise OfflinePlanError(f"{NAME} has {len(raw)} bytes instead of 12 or more; plan the model again")
    count = int(np.frombuffer(raw, "<u4", 1, 8)[0])
    if count != starts[-1]:
        raise OfflinePlanError(
            f"{NAME} has {count} offsets, but the model has {starts[-1]} tensors, constants included; "
            "the model was changed after it was planned: plan it again"
        )
    if len(raw) != 12 + 4 * count:
        raise OfflinePlanError(
            f"{NAME} has {len(raw)} bytes instead of {12 + 4 * count} for {count} offsets; plan the model again"
        )
    values = np.frombuffer(raw, "<i4", count, 12)
    plan = {}
    for s, subgraph in enumerate(model.subgraphs):
        for t in range(len(subgraph.tensors)):
            offset = int(values[starts[s] + t])
            if offset < -1:
                raise OfflinePlanError(f"{_what(model, s, t)}: {NAME} says offset {offset}; plan the model again")
            if offset >= 0:
                plan[s, t] = offset
    return plan


def detach(model: Model) -> bool:
    """Removes a plan from a model's metadata, so that TFLM plans for itself; whether there was one."""
    entries = [m for m in model.metadata if m.name == NAME]
    model.metadata = [m for m in model.metadata if m.name != NAME]
    for entry in entries:
        if 0 < entry.buffer < len(model.buffers) and not _shared(model, entry.buffer):
            model.buffers[entry.buffer] = Buffer()  # the numbers of those behind it must not move
    return bool(entries)


def must_stay_online(model: Model) -> list[Online]:
    """The tensors for which no offset may be written, with the reason.

    These are variables, tensors whose size the file does not tell (unknown rank or dimensions, a shape that depends on
    data), results of custom operators (which may be larger than the file says), and, because TFLM looks up the offsets
    of variables of any subgraph as if they were in the first, tensors that stand where a variable's number points.
    Constants are not listed; they are not in the arena.
    """
    flat = [(s, t) for s, subgraph in enumerate(model.subgraphs) for t in range(len(subgraph.tensors))]
    confused = {flat[t] for s, t in flat if model.subgraphs[s].tensors[t].is_variable}
    found: list[Online] = []
    for s in range(len(model.subgraphs)):
        graph = Graph(model, s)
        unplanned = sizes(graph, TFLM).unplanned
        for t in range(len(graph.tensors)):
            reason = _why_online(graph, t, unplanned, (s, t) in confused)
            if reason:
                found.append(Online(s, t, graph.name(t), reason))
    return found


# Operators whose result's shape depends on the value of an input: where that input is.
_SHAPE_FROM = {
    Op.RESHAPE: (1,),
    Op.FILL: (0,),
    Op.BROADCAST_TO: (1,),
    Op.TILE: (1,),
    Op.SLICE: (1, 2),
    Op.STRIDED_SLICE: (1, 2, 3),
    Op.PAD: (1,),
    Op.PADV2: (1,),
    Op.MIRROR_PAD: (1,),
    Op.RESIZE_BILINEAR: (1,),
    Op.RESIZE_NEAREST_NEIGHBOR: (1,),
    Op.TRANSPOSE: (1,),
    Op.TRANSPOSE_CONV: (0,),
    Op.EXPAND_DIMS: (1,),
    Op.SPACE_TO_BATCH_ND: (1, 2),
    Op.BATCH_TO_SPACE_ND: (1, 2),
    Op.MEAN: (1,),
    Op.SUM: (1,),
    Op.REDUCE_MAX: (1,),
    Op.REDUCE_MIN: (1,),
    Op.REDUCE_ALL: (1,),
    Op.ARG_MAX: (1,),
    Op.ARG_MIN: (1,),
}


def _why_online(graph: Graph, tensor: int, unplanned: Mapping[int, str], confused: bool) -> str | None:
    t = graph.tensors[tensor]
    if t.is_variable:
        return "it is a variable, which lives in the persistent part of the arena"
    if t.type == TensorType.RESOURCE:
        return "it is the handle of a resource"
    if not in_head(graph.model, graph.index, tensor):
        return None
    reason = unsized(graph, tensor) or unplanned.get(tensor)
    if reason:
        return reason
    if confused:
        return "TFLM takes its offset for that of a variable with the same number"
    maker = graph.producer(tensor)
    if maker is None:
        return None
    if graph.kind(maker) is Op.CUSTOM:
        return f"it comes from the custom operator {graph.where(maker)}, which may write more than the file says"
    if _depends_on_data(graph, maker):
        return f"its shape depends on data that {graph.where(maker)} reads"
    return None


def _depends_on_data(graph: Graph, op: Operator) -> bool:
    places = _SHAPE_FROM.get(graph.kind(op), ())
    return any(p < len(op.inputs) and op.inputs[p] >= 0 and not graph.is_constant(op.inputs[p]) for p in places)


def _starts(model: Model) -> list[int]:
    """Where each subgraph's tensors begin in the list of offsets, and the length of the list."""
    starts = [0]
    for subgraph in model.subgraphs:
        starts.append(starts[-1] + len(subgraph.tensors))
    return starts


def _what(model: Model, subgraph: int, tensor: int) -> str:
    name = model.subgraphs[subgraph].tensors[tensor].name or f"#{tensor}"
    return f"tensor `{name}` of subgraph {subgraph}"


def _store(model: Model, data: bytes) -> None:
    entry = next((m for m in model.metadata if m.name == NAME), None)
    if entry is None:
        entry = Metadata(name=NAME)
        model.metadata = [*model.metadata, entry]
    model.metadata = [m for m in model.metadata if m.name != NAME or m is entry]
    if 0 < entry.buffer < len(model.buffers) and not _shared(model, entry.buffer):
        model.buffers[entry.buffer] = Buffer(data=data)
    else:
        model.buffers.append(Buffer(data=data))
        entry.buffer = len(model.buffers) - 1


def _shared(model: Model, buffer: int) -> bool:
    """Whether something else than the plan uses a buffer; detached plans count as nothing."""
    others = [m.buffer for m in model.metadata if m.name != NAME]
    return buffer in others or any(t.buffer == buffer for s in model.subgraphs for t in s.tensors)
