"""A memory plan for a model: the order of operators, an address for every tensor, and how good both are.

``plan`` works out the plan, ``reordered`` writes its order into the model, and ``Plan.faults`` has it proved by
:mod:`litefuse.arena.replay`, which shares no code with the planners.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from litefuse.arena.aliasing import IN_PLACE, Legal, Refused, Share, ShareKind, legal_shares
from litefuse.arena.blocks import Block, Joined, Key, Member, block_bound, join
from litefuse.arena.lifetimes import (
    TFLITE,
    TFLM,
    Lifetime,
    Runtime,
    Sizes,
    called_subgraphs,
    lifetimes,
    live_bytes,
    lower_bound,
    model_lifetimes,
    reachable,
    runtime_named,
    sizes,
)
from litefuse.arena.order import Ordering, search
from litefuse.arena.packing import pack
from litefuse.arena.problem import Buffer, Problem, aligned
from litefuse.arena.replay import check_plan
from litefuse.arena.tflm import scratch
from litefuse.errors import LitefuseError
from litefuse.graph.compact import (
    CONTROL_DEPENDENCIES,
    MEMORY_PLAN,
    parse_control_dependencies,
    serialize_control_dependencies,
)
from litefuse.graph.graph import Graph
from litefuse.schema.declare import deepcopy
from litefuse.schema.enums import TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op
from litefuse.schema.writer import as_bytes

_PLACE = "{operator}"


class PeakTensor(NamedTuple):
    """A tensor that is live at the peak: subgraph and tensor index, name, bytes (not rounded up)."""

    subgraph: int
    tensor: int
    name: str
    bytes: int


class PeakOperator(NamedTuple):
    """An operator that runs at the peak: subgraph, position in the file, its place in words, what is live then."""

    subgraph: int
    operator: int
    where: str
    tensors: tuple[PeakTensor, ...]


@dataclass
class SubgraphPlan:
    """The part of a plan that belongs to one subgraph.

    Attributes:
        index: which subgraph.
        order: the operators' positions in the file, in the order in which they are to run.
        reordered: whether that differs from the file's order.
        offsets: of each placed tensor, its address in bytes from the start of the arena.
        shares: the shares that the plan relies on, each with its reason.
        refused: pairs that could not share, with the reason.
        skipped: tensors that are never in memory because a fused kernel keeps them in registers.
        unplanned: tensors that were left out, with the reason.
        dynamic: tensors that are planned at their declared shape although the file lets it change.
        ordering: what the order search found; None where it was not asked.
    """

    index: int
    order: list[int]
    reordered: bool
    offsets: dict[int, int]
    shares: list[Share]
    refused: list[Refused]
    skipped: list[int]
    unplanned: dict[int, str]
    dynamic: list[int]
    ordering: Ordering | None


@dataclass
class ArenaPlan:
    """One arena: that of the whole model for TFLM, of one subgraph elsewhere.

    Attributes:
        subgraphs: the plans of the subgraphs in it; the first is the one that is invoked.
        peak: bytes of the arena.
        plain_bound: the most bytes live at one time in the file's order without any sharing.
        lower_bound: the least bytes that the plan's order with the plan's shares can take.
        order_bound: no order takes less, whichever of the legal shares it uses; where operators were not to move, the
            same as ``lower_bound``.
        method: how the addresses were found.
        peak_operators: the operators at which the most bytes are live.
        blocks: what was packed, for plots: tensors that share bytes are one block. A member with a negative number -n
            is scratch of the operator at place n - 1 of the file.
        times: when each (subgraph, operator) runs.
        scratch: the addresses of scratch, by the keys of these members.
    """

    subgraphs: list[SubgraphPlan]
    peak: int
    plain_bound: int
    lower_bound: int
    order_bound: int
    method: str
    peak_operators: list[PeakOperator]
    blocks: list[Block] = field(default_factory=list, repr=False)
    times: dict[Key, int] = field(default_factory=dict, repr=False)
    scratch: dict[Key, int] = field(default_factory=dict, repr=False)

    @property
    def offsets(self) -> dict[Key, int]:
        """The addresses of all tensors in it, by (subgraph, tensor); scratch is not among them."""
        return {(part.index, t): offset for part in self.subgraphs for t, offset in part.offsets.items()}

    @property
    def packed(self) -> bool:
        """Whether no placement of this order with these shares takes less."""
        return self.peak == self.lower_bound

    @property
    def optimal(self) -> bool:
        """Whether no order and no choice of the legal shares takes less."""
        return self.searched and self.peak <= self.order_bound

    @property
    def searched(self) -> bool:
        """Whether other orders were looked at; without that, ``order_bound`` is that of the order at hand."""
        return all(part.ordering is not None for part in self.subgraphs)


@dataclass
class Plan:
    """A memory plan. ``suggestions`` say in plain words what would lower the peak."""

    runtime: Runtime
    alignment: int
    arenas: list[ArenaPlan]
    suggestions: list[str] = field(default_factory=list)

    @property
    def peak(self) -> int:
        """Bytes of the arena of the model's main subgraph."""
        return self.arenas[0].peak if self.arenas else 0

    def subgraph(self, index: int) -> SubgraphPlan | None:
        """The plan of one subgraph; None when it has none (TFLM never runs it)."""
        return next((s for a in self.arenas for s in a.subgraphs if s.index == index), None)

    def faults(self, model: Model) -> list[str]:
        """What the independent check finds wrong with the plan; nothing when it is proved."""
        found = []
        for arena in self.arenas:
            parts = arena.subgraphs
            found += check_plan(
                model,
                self.runtime,
                [p.index for p in parts],
                {p.index: p.order for p in parts},
                arena.offsets,
                {p.index: p.shares for p in parts},
                peak=arena.peak,
                alignment=self.alignment,
            )
        return found


def plan(
    model: Model,
    *,
    runtime: Runtime | str = TFLM,
    alignment: int | None = None,
    reorder: bool = True,
    in_place: bool = True,
    overwrite_inputs: bool | None = None,
    seconds: float = 10.0,
) -> Plan:
    """Plans the memory of a model's intermediates.

    Args:
        model: the model; it is not changed.
        runtime: ``tflm``, ``tflite`` or ``delegate``, or one of the constants of
            :mod:`litefuse.arena.lifetimes`; says what lives in the arena, for how long, and what may share.
        alignment: bytes to which addresses and sizes are aligned; the runtime's own by default.
        reorder: whether operators may change places.
        in_place: whether tensors may share bytes.
        overwrite_inputs: whether an operator may write its output over an input of the model. By default it may under
            TFLM, where inputs lose their memory to other tensors after their last use in any case.
        seconds: time limit of each order search and each packing.

    Returns:
        The plan. An order other than the file's is taken only where the peak is lower for it.

    Raises:
        LitefuseError: unknown runtime, alignment that is not a power of two, or subgraphs that call each other in a
            circle.
    """
    rules = runtime_named(runtime) if isinstance(runtime, str) else runtime
    alignment = rules.alignment if alignment is None else alignment
    if alignment < 1 or alignment & (alignment - 1):
        raise LitefuseError(f"the alignment must be a power of two, not {alignment}")
    overwrite_inputs = rules is TFLM if overwrite_inputs is None else overwrite_inputs
    planner = _Planner(model, rules, alignment, reorder, in_place, overwrite_inputs, seconds)
    groups = [reachable(model)] if rules.one_arena else [[i] for i in range(len(model.subgraphs))]
    result = Plan(rules, alignment, [planner.arena(group) for group in groups if group])
    result.suggestions = planner.suggestions(result)
    return result


def reordered(model: Model, plan: Plan) -> Model:
    """A copy of a model with its operators in a plan's order; everything else stays.

    Control dependencies in the metadata are renumbered. A memory plan for TFLM that the file brought along was made
    for the old order, and is taken out if anything moved.
    """
    copy: Model = deepcopy(model)
    place: dict[int, dict[int, int]] = {}
    for arena in plan.arenas:
        for part in arena.subgraphs:
            if part.reordered:
                operators = copy.subgraphs[part.index].operators
                copy.subgraphs[part.index].operators = [operators[i] for i in part.order]
                place[part.index] = {old: new for new, old in enumerate(part.order)}
    if not place:
        return copy
    copy.metadata[:] = [entry for entry in copy.metadata if entry.name != MEMORY_PLAN]
    for entry in copy.metadata:
        if entry.name == CONTROL_DEPENDENCIES and 0 < entry.buffer < len(copy.buffers):
            buffer = copy.buffers[entry.buffer]
            pairs = None if buffer.data is None else parse_control_dependencies(bytes(as_bytes(buffer.data)))
            for index, edges in enumerate(pairs or ()):
                number = place.get(index, {})
                edges[:] = [(number.get(a, a), number.get(b, b)) for a, b in edges]
            if pairs is not None:
                buffer.data = serialize_control_dependencies(pairs)
    return copy


def scratch_name(number: int) -> str:
    """What to call a member of a block with a negative number (:attr:`ArenaPlan.blocks`)."""
    return f"scratch of operator {-1 - number}"


class _Planner:
    def __init__(
        self,
        model: Model,
        runtime: Runtime,
        alignment: int,
        reorder: bool,
        in_place: bool,
        overwrite_inputs: bool,
        seconds: float,
    ) -> None:
        self.model, self.runtime, self.alignment = model, runtime, alignment
        self.reorder, self.in_place, self.overwrite_inputs = reorder, in_place, overwrite_inputs
        self.seconds = seconds
        self.graphs = [Graph(model, i) for i in range(len(model.subgraphs))]
        self._sizes: dict[int, Sizes] = {}
        self._legal: dict[int, Legal] = {}
        self._orderings: dict[int, Ordering] = {}

    def sizes(self, index: int) -> Sizes:
        if index not in self._sizes:
            self._sizes[index] = sizes(self.graphs[index], self.runtime)
        return self._sizes[index]

    def scratch(self, index: int) -> dict[int, list[int]]:
        """Bytes of each scratch buffer that kernels are known to ask for, rounded up, by operator."""
        if self.runtime is not TFLM:
            return {}
        count = len(self.graphs[index].subgraph.operators)
        asked = {i: scratch(self.model, index, i) for i in range(count)}
        return {i: [aligned(n, self.alignment) for n in found] for i, found in asked.items() if found}

    def legal(self, index: int) -> Legal:
        if index not in self._legal:
            found = legal_shares(self.graphs[index], self.runtime, self.sizes(index)) if self.in_place else Legal()
            self._legal[index] = found
        return self._legal[index]

    def ordering(self, index: int, open_: tuple[int, ...] = ()) -> Ordering:
        """The best order of a subgraph; where subgraphs share an arena, those that it calls count as scratch."""
        if index in open_:
            raise LitefuseError(f"subgraph {index} calls itself; such a model cannot be planned")
        if index not in self._orderings:
            extra: dict[int, int] = {}
            if self.runtime.one_arena:
                for position, op in enumerate(self.graphs[index].subgraph.operators):
                    called = [c for c in called_subgraphs(op) if 0 <= c < len(self.graphs)]
                    if called:
                        extra[position] = max(self.ordering(c, (*open_, index)).peak for c in called)
                for position, sizes_ in self.scratch(index).items():
                    extra[position] = extra.get(position, 0) + sum(sizes_)
            self._orderings[index] = search(
                self.graphs[index],
                self.runtime,
                seconds=self.seconds,
                known=self.sizes(index),
                legal=self.legal(index),
                overwrite_inputs=self.overwrite_inputs,
                extra=extra,
                alignment=self.alignment,
            )
        return self._orderings[index]

    def arena(self, group: Sequence[int]) -> ArenaPlan:
        """The plan of the subgraphs that share an arena, the first of which is invoked."""
        given = {i: list(range(len(self.graphs[i].subgraph.operators))) for i in group}
        stays, times = self._stays(given)
        plain = lower_bound([*stays, *self._scratch_stays(given, times)], self.alignment)
        orderings = {i: self.ordering(i) for i in group} if self.reorder else {}
        floor = self._order_bound(group, orderings) if orderings else None
        best = self._place(given)
        found = {i: o.order for i, o in orderings.items()}
        if floor is not None and best.peak > floor and any(found[i] != given[i] for i in group):
            other = self._place(found)
            if other.peak < best.peak:
                best = other
        if not self.reorder:
            floor = best.bound
        assert floor is not None
        parts = [self._part(i, best, orderings.get(i)) for i in group]
        return ArenaPlan(
            parts,
            best.peak,
            plain,
            best.bound,
            min(floor, best.bound),
            best.method,
            self._peak_operators(best),
            best.joined.blocks,
            best.times,
            {key: offset for key, offset in best.offsets.items() if key[1] < 0},
        )

    def _scratch_stays(self, group: Iterable[int], times: Mapping[Key, int]) -> list[Lifetime]:
        """Scratch as stays; number -n - 1 is that of operator n."""
        return [
            Lifetime(index, -1 - position, times[index, position], times[index, position] + 1, size)
            for index in group
            for position, found in self.scratch(index).items()
            if (index, position) in times
            for size in found
        ]

    def _order_bound(self, group: Sequence[int], orderings: Mapping[int, Ordering]) -> int:
        """What no order can beat, whatever of the legal shares it uses."""
        return max(orderings[group[0]].floor, *(self._operator_bound(i) for i in group))

    def _operator_bound(self, index: int) -> int:
        """The largest need of any single operator, whatever may share bytes with whatever it is allowed to."""
        graph, known = self.graphs[index], self.sizes(index).bytes
        family = {t: t for t in known}

        def find(tensor: int) -> int:
            while family[tensor] != tensor:
                family[tensor] = family[family[tensor]]
                tensor = family[tensor]
            return tensor

        partners: dict[int, list[Share]] = {}
        for share in self.legal(index).shares:
            partners.setdefault(share.operator, []).append(share)
            if share.kind is ShareKind.VIEW:
                family[find(share.target)] = find(share.source)
            elif share.kind is ShareKind.RESIDUAL:
                family[find(share.skipped)] = find(share.target)

        def together(tensors: Iterable[int]) -> int:
            """Bytes of tensors that are needed at the same time: of those that may hold the same data, the largest."""
            largest: dict[int, int] = {}
            for tensor in tensors:
                head = find(tensor)
                largest[head] = max(largest.get(head, 0), aligned(known[tensor], self.alignment))
            return sum(largest.values())

        best = together(t for t in graph.subgraph.outputs if t in known)
        for position, op in enumerate(graph.subgraph.operators):
            shares = partners.get(position, ())
            skipped = {s.skipped for s in shares}
            inputs = {t for t in op.inputs if t in known and t not in skipped}
            outputs = {t for t in op.outputs if t in known}
            heads = {find(t) for t in inputs}
            joined = {s.target for s in shares} | {t for t in outputs if find(t) in heads}
            loose = inputs - {s.source for s in shares} - {t for t in inputs if find(t) in {find(o) for o in joined}}
            apart = together(outputs - joined)
            best = max(best, together(inputs) + apart, together(joined & outputs) + together(loose) + apart)
        return best

    def _stays(self, orders: Mapping[int, Sequence[int]]) -> tuple[list[Lifetime], dict[Key, int]]:
        if self.runtime.one_arena:
            return model_lifetimes(self.graphs, dict(orders), {i: self.sizes(i) for i in orders})
        (index,) = orders
        times = {(index, op): position + 1 for position, op in enumerate(orders[index])}
        return lifetimes(self.graphs[index], orders[index], self.runtime, self.sizes(index)), times

    def _place(self, orders: Mapping[int, Sequence[int]]) -> _Placed:
        stays, times = self._stays(orders)
        inputs = [
            (i, t) for i in orders for t in self.graphs[i].subgraph.inputs if not (self.overwrite_inputs and i == 0)
        ]
        kept = [(i, t) for i in orders for t in self.graphs[i].subgraph.outputs]
        if self.runtime.keeps_borders:
            kept += [(i, t) for i in orders for t in self.sizes(i).bytes if not self.graphs[i].readers(t)]
            kept += [(i, t) for i in orders for t in self.graphs[i].subgraph.inputs]
        joined = join(stays, {i: self.legal(i) for i in orders}, times, self.alignment, inputs, kept)
        for stay in self._scratch_stays(orders, times):
            member = Member((stay.subgraph, stay.tensor), 0, stay.first, stay.last, stay.bytes)
            joined.blocks.append(Block([member], stay.first, stay.last, stay.bytes))
        buffers = [Buffer(str(n), b.first, b.last, b.size) for n, b in enumerate(joined.blocks)]
        packing = pack(Problem(buffers), alignment=self.alignment, seconds=self.seconds)
        offsets: dict[Key, int] = {}
        for n, block in enumerate(joined.blocks):
            for member in block.members:
                offsets[member.key] = packing.offsets[str(n)] + member.offset
        bound = max(block_bound(joined.blocks), packing.lower_bound)
        return _Placed(
            {i: list(o) for i, o in orders.items()}, joined, offsets, packing.peak, bound, packing.method, times
        )

    def _part(self, index: int, placed: _Placed, ordering: Ordering | None) -> SubgraphPlan:
        known = self.sizes(index)
        order = placed.orders[index]
        reasons = [Refused(s.operator, s.source, s.target, why) for s, why in placed.joined.unused.get(index, ())]
        used = placed.joined.used.get(index, [])
        pairs = {(s.source, s.target) for s in used}
        reasons = [r for r in dict.fromkeys(reasons) if (r.source, r.target) not in pairs]
        return SubgraphPlan(
            index,
            order,
            order != sorted(order),
            {t: offset for (g, t), offset in sorted(placed.offsets.items()) if g == index and t >= 0},
            used,
            [*self.legal(index).refused, *reasons],
            [t for g, t in placed.joined.skipped if g == index],
            dict(known.unplanned),
            list(known.dynamic),
            ordering,
        )

    def _peak_operators(self, placed: _Placed) -> list[PeakOperator]:
        blocks = placed.joined.blocks
        levels = live_bytes([Lifetime(0, 0, b.first, b.last, b.size) for b in blocks], self.alignment)
        changes, amounts = list(levels), list(levels.values())
        live = {time: amounts[bisect_right(changes, time) - 1] for time in placed.times.values() if changes}
        most = max(live.values(), default=0)
        found = []
        for (subgraph, operator), time in sorted(placed.times.items(), key=lambda item: item[1]):
            if live.get(time) != most or not most:
                continue
            graph = self.graphs[subgraph]
            tensors = [
                PeakTensor(m.key[0], m.key[1], self._name(m.key), m.bytes)
                for b in blocks
                if b.first <= time < b.last
                for m in b.members
                if m.first <= time < m.last
            ]
            where = str(graph.where(graph.subgraph.operators[operator]))
            tensors.sort(key=lambda t: (-t.bytes, t.subgraph, t.tensor))
            found.append(PeakOperator(subgraph, operator, where, tuple(tensors)))
        return found

    def _name(self, key: Key) -> str:
        graph = self.graphs[key[0]]
        return graph.name(key[1]) if key[1] >= 0 else scratch_name(key[1])

    # -- advice --------------------------------------------------------------------------------------------------

    def suggestions(self, plan: Plan) -> list[str]:
        """What would lower the peak of the main arena, in plain words; the order is that of the operators."""
        if not plan.arenas:
            return []
        arena = plan.arenas[0]
        by_index = {p.index: p for p in arena.subgraphs}
        said: dict[str, list[str]] = {}
        for peak in arena.peak_operators:
            for words in self._at(peak, by_index[peak.subgraph]):
                said.setdefault(words, []).append(peak.where)
        found: dict[str, None] = {}
        for words, places in said.items():
            more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
            found[words.replace(_PLACE, places[0] + more)] = None
        if arena.peak_operators:
            found.update(dict.fromkeys(self._types(arena.peak_operators[0])))
        left = [self.graphs[p.index].name(t) for p in arena.subgraphs for t in p.unplanned]
        if left:
            names = ", ".join(f"`{n}`" for n in left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
            found[f"{names} could not be planned; give these tensors fixed shapes to have them counted"] = None
        return list(found)

    def _at(self, peak: PeakOperator, part: SubgraphPlan) -> list[str]:
        """What can be said of one operator at the peak, with a placeholder for where it stands."""
        graph = self.graphs[peak.subgraph]
        op = graph.subgraph.operators[peak.operator]
        words = []
        if not self.in_place and graph.kind(op) in IN_PLACE:
            words.append(f"{_PLACE} could write over an input if sharing were allowed")
        for refusal in part.refused:
            if refusal.operator == peak.operator:
                words.append(
                    f"{_PLACE} does not share `{graph.name(refusal.source)}` with `{graph.name(refusal.target)}`: "
                    f"{refusal.reason}"
                )
        if not self.reorder:
            words.append("operators kept their order by request; another order may need less")
        if self.runtime is TFLITE and any(t in graph.inputs for t in (x.tensor for x in peak.tensors)):
            words.append("TFLite keeps the inputs of the model to the end; other runtimes use their memory again")
        place = part.order.index(peak.operator)
        if place < max(len(part.order) // 3, 1) and self._spatial(peak):
            words.append(f"{_PLACE} is among the first stages: computing them in tiles would lower the peak")
        return words

    def _spatial(self, peak: PeakOperator) -> bool:
        graph = self.graphs[peak.subgraph]
        kinds = (Op.CONV_2D, Op.DEPTHWISE_CONV_2D, Op.MAX_POOL_2D, Op.AVERAGE_POOL_2D, Op.PAD)
        op = graph.subgraph.operators[peak.operator]
        around = [op, *(r for t in op.outputs for r in graph.readers(t))]
        around += [m for t in op.inputs if (m := graph.producer(t)) is not None]
        if not any(graph.kind(o) in kinds for o in around) or not op.outputs:
            return False
        shape = graph.tensor(op.outputs[0]).shape or []
        return len(shape) == 4 and min(shape[1:3]) > 1

    def _types(self, peak: PeakOperator) -> list[str]:
        total = sum(t.bytes for t in peak.tensors)
        tensors = [t for t in peak.tensors if t.tensor >= 0]
        floats = sum(t.bytes for t in tensors if self.graphs[t.subgraph].type(t.tensor) == TensorType.FLOAT32)
        if total and floats * 2 > total:
            return [f"{floats} of the {total} bytes at the peak are float32; as int8 they would be a quarter"]
        return []


class _Placed(NamedTuple):
    orders: dict[int, list[int]]
    joined: Joined
    offsets: dict[Key, int]
    peak: int
    bound: int
    method: str
    times: dict[Key, int]
