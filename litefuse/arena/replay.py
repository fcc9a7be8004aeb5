"""An independent proof of a plan: the operators are run in thought, and every byte's contents are followed.

Memory is a map from addresses to values, where a value is "byte ``k`` of tensor ``t``". Each operator in turn must find
its inputs whole, and then writes its outputs. Nothing of the planners is used, neither lifetimes nor blocks nor
orders; only the sizes of tensors and the table of legal shares (:func:`litefuse.arena.aliasing.legal_shares`), of
which the plan must have claimed each one that it relies on.

A tensor that the plan does not place (its shape is not known, say) is outside of the arena and is not followed.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from litefuse.arena.aliasing import Share, ShareKind, legal_shares
from litefuse.arena.lifetimes import Runtime, Sizes, called_subgraphs, sizes
from litefuse.graph.graph import Graph
from litefuse.schema.model import Model
from litefuse.schema.tables import Operator

Key = tuple[int, int]  # subgraph, tensor
Range = tuple[int, int]


def check_plan(
    model: Model,
    runtime: Runtime,
    subgraphs: Sequence[int],
    orders: Mapping[int, Sequence[int]],
    offsets: Mapping[Key, int],
    shares: Mapping[int, Sequence[Share]],
    *,
    peak: int,
    alignment: int,
) -> list[str]:
    """The faults of a plan for one arena, in words; an empty list proves it.

    Args:
        model: the model as it is in the file, its operators in the order of the file.
        runtime: whose rules apply.
        subgraphs: those whose tensors are in this arena; the first is the one that is invoked.
        orders: by subgraph, the positions of its operators in the order in which they run.
        offsets: (subgraph, tensor) to address; tensors that are not in it are not in the arena, for which the
            tensors' sizes must be unknown or a claimed residual share must say that they are never in memory.
        shares: the claimed shares by subgraph.
        peak: bytes of the arena.
        alignment: bytes; every address must be a multiple.
    """
    return _Replay(model, runtime, orders, offsets, shares, peak, alignment).run(subgraphs)


class _Memory:
    """Disjoint segments (start, end, root, distance): bytes ``start..end`` hold bytes ``distance..`` of the root."""

    def __init__(self) -> None:
        self.segments: list[tuple[int, int, Key, int]] = []

    def write(self, start: int, end: int, root: Key, distance: int) -> None:
        kept = []
        index = max(bisect_right(self.segments, start, key=lambda s: s[0]) - 1, 0)
        while index < len(self.segments) and self.segments[index][0] < end:
            a, b, owner, at = self.segments[index]
            if b <= start:
                index += 1
                continue
            del self.segments[index]
            if a < start:
                kept.append((a, start, owner, at))
            if b > end:
                kept.append((end, b, owner, at + end - a))
        for segment in (*kept, (start, end, root, distance)):
            insort(self.segments, segment)

    def first_damage(self, start: int, end: int, root: Key, distance: int) -> int | None:
        """The first byte of the range that does not hold what it should; None when all do."""
        index = max(bisect_right(self.segments, start, key=lambda s: s[0]) - 1, 0)
        place = start
        while place < end:
            if index >= len(self.segments) or self.segments[index][0] > place:
                return place
            a, b, owner, at = self.segments[index]
            if b > place:
                if owner != root or at - a != distance - start:
                    return place
                place = b
            index += 1
        return None


class Piece(NamedTuple):
    """The bytes ``start <= k < end`` of a tensor are those of the tensor ``owner`` from its byte ``at`` on."""

    start: int
    end: int
    owner: Key
    at: int

    def moved(self, distance: int) -> Piece:
        """The same bytes some way further."""
        return self._replace(start=self.start + distance, end=self.end + distance)


def _cut(pieces: Sequence[Piece], start: int, end: int) -> list[Piece]:
    """The pieces of the bytes ``start <= k < end``; what belongs together is one piece."""
    found: list[Piece] = []
    for piece in pieces:
        low, high = max(piece.start, start), min(piece.end, end)
        if low >= high:
            continue
        at = piece.at + low - piece.start
        last = found[-1] if found else None
        if last is not None and (last.end, last.owner, last.at + last.end - last.start) == (low, piece.owner, at):
            found[-1] = last._replace(end=high)
        else:
            found.append(Piece(low, high, piece.owner, at))
    return found


class _Replay:
    def __init__(
        self,
        model: Model,
        runtime: Runtime,
        orders: Mapping[int, Sequence[int]],
        offsets: Mapping[Key, int],
        shares: Mapping[int, Sequence[Share]],
        peak: int,
        alignment: int,
    ) -> None:
        self.model, self.runtime, self.orders, self.offsets, self.shares = model, runtime, orders, offsets, shares
        self.peak, self.alignment = peak, alignment
        self.graphs: dict[int, Graph] = {}
        self.sizes: dict[int, Sizes] = {}
        self.contents: dict[Key, list[Piece]] = {}
        self.views: dict[tuple[int, int], list[Share]] = {}
        self.over: set[tuple[int, int, int, int]] = set()
        self.residual: dict[tuple[int, int], Share] = {}
        self.skipped: set[Key] = set()
        self.memory = _Memory()
        self.faults: list[str] = []
        self.written: list[Range] = []

    def run(self, subgraphs: Sequence[int]) -> list[str]:
        for index in subgraphs:
            self.graphs[index] = Graph(self.model, index)
            self.sizes[index] = sizes(self.graphs[index], self.runtime)
            self._claims(index)
        for index in subgraphs:
            self._addresses(index)
        if subgraphs and not self.faults:
            self._invoke(subgraphs[0], [])
        return list(dict.fromkeys(self.faults))

    def _name(self, key: Key) -> str:
        name = f"`{self.graphs[key[0]].name(key[1])}`"
        return name if key[0] == 0 else f"{name} of subgraph {key[0]}"

    # -- what the plan says --------------------------------------------------------------------------------------

    def _claims(self, index: int) -> None:
        graph = self.graphs[index]
        legal = {
            (s.operator, s.source, s.target, s.offset, s.kind, s.producer, s.skipped)
            for s in legal_shares(graph, self.runtime, self.sizes[index]).shares
        }
        for share in self.shares.get(index, ()):
            what = (share.operator, share.source, share.target, share.offset, share.kind, share.producer, share.skipped)
            source, target = (index, share.source), (index, share.target)
            if what not in legal:
                self.faults.append(
                    f"{self._name(source)} and {self._name(target)} are said to share bytes ({share.kind.value}), "
                    f"which is not legal at operator {share.operator}"
                )
            elif share.kind is ShareKind.IN_PLACE:
                self.over.add((index, share.operator, share.source, share.target))
            elif share.kind is ShareKind.RESIDUAL:
                self.residual[index, share.operator] = share
                self.skipped.add((index, share.skipped))
            else:
                self.views.setdefault((index, share.operator), []).append(share)

    def _what(self, key: Key) -> list[Piece]:
        """The contents of a tensor: its own data unless it was found to be a view."""
        return self.contents.get(key) or [Piece(0, self.sizes[key[0]].bytes[key[1]], key, 0)]

    def _view(self, index: int, share: Share) -> None:
        """Notes that bytes of the target are bytes of the source: byte k of the one is byte k + offset of the other."""
        target = index, share.target
        size = self.sizes[index].bytes[share.target]
        start = max(-share.offset, 0)
        end = min(self.sizes[index].bytes[share.source] - share.offset, size)
        own = self._what(target)
        taken = [
            p.moved(-share.offset)
            for p in _cut(self._what((index, share.source)), start + share.offset, end + share.offset)
        ]
        self.contents[target] = [*_cut(own, 0, start), *taken, *_cut(own, end, size)]

    def _addresses(self, index: int) -> None:
        for tensor, size in self.sizes[index].bytes.items():
            key = index, tensor
            offset = self.offsets.get(key)
            if offset is None:
                if key not in self.skipped:
                    self.faults.append(f"{self._name(key)} has no address")
            elif offset < 0:
                self.faults.append(f"{self._name(key)} is at the negative address {offset}")
            elif offset % self.alignment:
                self.faults.append(f"{self._name(key)} is at {offset}, which is not a multiple of {self.alignment}")
            elif offset + size > self.peak:
                self.faults.append(f"{self._name(key)} ends at {offset + size}, beyond the {self.peak} bytes there are")
        for key in self.offsets:
            if key[0] == index and key[1] not in self.sizes[index].bytes:
                self.faults.append(f"{self._name(key)} has an address, but is not a tensor of the arena")

    # -- the run -------------------------------------------------------------------------------------------------

    def _range(self, key: Key) -> Range | None:
        if key not in self.offsets or key in self.skipped:
            return None
        return self.offsets[key], self.offsets[key] + self.sizes[key[0]].bytes[key[1]]

    def _read(self, key: Key, reader: str) -> None:
        place = self._range(key)
        if place is None:
            return
        for piece in self._what(key):
            start, end = place[0] + piece.start, place[0] + piece.end
            damage = self.memory.first_damage(start, end, piece.owner, piece.at)
            if damage is not None:
                self.faults.append(f"{self._name(key)} is damaged at byte {damage} when {reader} needs it")
                return

    def _write(self, key: Key) -> None:
        place = self._range(key)
        if place is not None:
            for piece in self._what(key):
                self.memory.write(place[0] + piece.start, place[0] + piece.end, piece.owner, piece.at)
            self.written.append(place)

    def _invoke(self, index: int, open_: list[int]) -> None:
        if index in open_:
            self.faults.append(f"subgraph {index} calls itself")
            return
        graph = self.graphs[index]
        operators = graph.subgraph.operators
        order = list(self.orders.get(index, range(len(operators))))
        if sorted(order) != list(range(len(operators))):
            self.faults.append(f"the order of subgraph {index} does not have each of its operators once")
            return
        inputs = [(index, t) for t in dict.fromkeys(graph.subgraph.inputs) if t >= 0]
        self._apart(inputs, "inputs are written by the application")
        for key in inputs:
            self._write(key)
        known = {t for t in range(len(graph.tensors)) if graph.producer(t) is None}
        position = 0
        while position < len(order):
            number = order[position]
            fused = self.residual.get((index, order[position + 1])) if position + 1 < len(order) else None
            if fused is not None and fused.producer == number:
                steps = [number, order[position + 1]]
            else:
                steps, fused = [number], None
                late = self.residual.get((index, number))
                if late is not None:
                    self.faults.append(f"operator {number} does not run directly after operator {late.producer}")
            for step in steps:
                missing = [t for t in operators[step].inputs if t >= 0 and t not in known]
                if missing:
                    self.faults.append(f"operator {step} runs before {self._name((index, missing[0]))} is there")
                    return
                known.update(operators[step].outputs)
            self._run(index, [operators[s] for s in steps], steps, fused, [*open_, index])
            position += len(steps)
        kept = list(graph.subgraph.outputs)
        if self.runtime.keeps_borders:
            read = {t for op in operators for t in op.inputs}
            kept += [*graph.subgraph.inputs, *(t for op in operators for t in op.outputs if t not in read)]
        for tensor in dict.fromkeys(kept):
            self._read((index, tensor), "the application" if not open_ else "the caller")

    def _apart(self, keys: Sequence[Key], when: str) -> None:
        for i, one in enumerate(keys):
            for other in keys[:i]:
                if self._overlap(one, other) and not self._same_place(one, other):
                    self.faults.append(f"{self._name(other)} and {self._name(one)} overlap while {when}")

    def _overlap(self, one: Key, other: Key) -> bool:
        a, b = self._range(one), self._range(other)
        return a is not None and b is not None and a[0] < b[1] and b[0] < a[1]

    def _same_place(self, one: Key, other: Key) -> bool:
        """Whether two tensors hold the same data at the addresses that they have in common."""
        a, b = self._range(one), self._range(other)
        if a is None or b is None:
            return True
        start, end = max(a[0], b[0]), min(a[1], b[1])
        first, second = (
            [p.moved(place[0]) for p in _cut(self._what(key), start - place[0], end - place[0])]
            for key, place in ((one, a), (other, b))
        )
        return first == second

    def _run(self, index: int, ops: list[Operator], numbers: list[int], fused: Share | None, open_: list[int]) -> None:
        """One kernel: a single operator, or a convolution with its ADD."""
        what = f"operator {numbers[-1]} ({self.graphs[index].kind(ops[-1]).name})"
        inputs = [(index, t) for t in dict.fromkeys(t for op in ops for t in op.inputs) if t >= 0]
        if fused is not None:
            inputs = [key for key in inputs if key != (index, fused.skipped)]
        outputs = [(index, t) for t in dict.fromkeys(ops[-1].outputs) if t >= 0]
        for key in inputs:
            self._read(key, what)
        for share in self.views.get((index, numbers[-1]), ()):
            self._view(index, share)
        called = called_subgraphs(ops[-1]) if self.runtime.one_arena else []
        if called:
            self._call(index, inputs, outputs, called, what, open_)
        for target in outputs:
            for source in inputs:
                if not self._overlap(source, target) or self._same_place(source, target):
                    continue
                same = self.offsets[source] == self.offsets[target]
                if fused is not None:
                    allowed = (source[1], target[1]) == (fused.source, fused.target)
                else:
                    allowed = (index, numbers[-1], source[1], target[1]) in self.over
                if not (same and allowed):
                    self.faults.append(f"{what} writes {self._name(target)} over its input {self._name(source)}")
        self._apart(outputs, f"{what} writes them")
        for key in outputs:
            self._write(key)

    def _call(
        self, index: int, inputs: list[Key], outputs: list[Key], called: Iterable[int], what: str, open_: list[int]
    ) -> None:
        """Runs the subgraphs of a control flow operator, which must leave its inputs and outputs alone."""
        outer, self.written = self.written, []
        for subgraph in called:
            if subgraph in self.graphs:
                self._invoke(subgraph, open_)
        for key in (*inputs, *outputs):
            place = self._range(key)
            if place is not None and any(a < place[1] and place[0] < b for a, b in self.written):
                self.faults.append(f"{self._name(key)} of {what} overlaps what the subgraphs it runs write")
        self.written = outer + self.written
