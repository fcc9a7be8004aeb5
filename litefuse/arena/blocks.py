"""Joins tensors that share bytes into blocks, for one order: which of the legal shares are used.

A block is a group of tensors at fixed distances from each other; the packer places it as one buffer that lives from
the first to the last use of its members. Two members may overlap only if they never live at the same time, or hold
the same data at the same addresses, or meet at one operator that may write the one over the other.

Whole views, residuals and in-place pairs of one size never cost anything and are always joined. Other shares (parts
of larger tensors, in-place over a part) can make a small tensor keep a large block alive, so each is joined only if
that lowers the bytes live at the peak, or, at the same peak, the bytes live over all time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from litefuse.arena.aliasing import Legal, Share, ShareKind
from litefuse.arena.lifetimes import Lifetime
from litefuse.arena.problem import aligned

Key = tuple[int, int]  # subgraph, tensor
# Members of blocks that are looked at in all; real models need less than a hundredth.
_MOST_WORK = 1_000_000


class Member(NamedTuple):
    """A tensor in a block: its distance in bytes from the block's start, its stay and its size."""

    key: Key
    offset: int
    first: int
    last: int
    bytes: int


@dataclass
class Block:
    """Tensors at fixed distances: live at ``first <= t < last``; ``size`` in bytes, rounded up to the alignment."""

    members: list[Member]
    first: int
    last: int
    size: int


@dataclass
class Joined:
    """The blocks of an arena, the shares that they use, and why others of the legal shares are not used."""

    blocks: list[Block]
    used: dict[int, list[Share]] = field(default_factory=dict)
    unused: dict[int, list[tuple[Share, str]]] = field(default_factory=dict)
    skipped: dict[Key, Key] = field(default_factory=dict)  # tensors without memory, with the one they became part of


class Piece(NamedTuple):
    """The addresses ``start <= a < end`` of a block hold data of the tensor ``owner``."""

    start: int
    end: int
    owner: Key


def _cut(pieces: Sequence[Piece], start: int, end: int) -> list[Piece]:
    """The pieces between two addresses; neighbours of one owner are one."""
    found: list[Piece] = []
    for piece in pieces:
        low, high = max(piece.start, start), min(piece.end, end)
        if low < high and found and found[-1].end == low and found[-1].owner == piece.owner:
            found[-1] = found[-1]._replace(end=high)
        elif low < high:
            found.append(Piece(low, high, piece.owner))
    return found


def _overlaid(below: Piece, above: Iterable[Piece]) -> list[Piece]:
    """One piece, with others in its place where they reach; of those that overlap, the later one wins."""
    inside = [
        Piece(max(p.start, below.start), min(p.end, below.end), p.owner)
        for p in above
        if p.start < below.end and below.start < p.end
    ]
    ordered = sorted(inside)
    if any(a.end > b.start for a, b in pairwise(ordered)):
        ordered = []
        for piece in inside:
            ordered = sorted([*_cut(ordered, below.start, piece.start), piece, *_cut(ordered, piece.end, below.end)])
    found: list[Piece] = []
    place = below.start
    for piece in [*ordered, Piece(below.end, below.end, below.owner)]:
        if place < piece.start:
            found.append(Piece(place, piece.start, below.owner))
        found.append(piece)
        place = piece.end
    return _cut(found, below.start, below.end)


def join(
    stays: Sequence[Lifetime],
    legal: Mapping[int, Legal],
    times: Mapping[Key, int],
    alignment: int,
    inputs: Iterable[Key] = (),
    kept: Iterable[Key] = (),
) -> Joined:
    """Chooses among the legal shares.

    Args:
        stays: the tensors' lifetimes, on one clock.
        legal: the legal shares by subgraph.
        times: the time of each (subgraph, operator).
        alignment: bytes.
        inputs: tensors that must not be written over while they share a block: (subgraph, tensor).
        kept: tensors that are needed after the last operator, such as outputs.
    """
    return _Joiner(stays, legal, times, alignment, frozenset(inputs), frozenset(kept)).run()


def block_bound(blocks: Iterable[Block]) -> int:
    """The most bytes that are live at one time: no placement of the blocks takes less."""
    change: dict[int, int] = {}
    for block in blocks:
        change[block.first] = change.get(block.first, 0) + block.size
        change[block.last] = change.get(block.last, 0) - block.size
    return max(accumulate(change[time] for time in sorted(change)), default=0)


class _Joiner:
    def __init__(
        self,
        stays: Sequence[Lifetime],
        legal: Mapping[int, Legal],
        times: Mapping[Key, int],
        alignment: int,
        inputs: frozenset[Key],
        kept: frozenset[Key],
    ) -> None:
        self.legal, self.times, self.alignment, self.inputs, self.kept = legal, times, alignment, inputs, kept
        self.stay = {(s.subgraph, s.tensor): s for s in stays}
        self.block: dict[Key, Block] = {}
        for key, stay in self.stay.items():
            member = Member(key, 0, stay.first, stay.last, stay.bytes)
            self.block[key] = Block([member], stay.first, stay.last, aligned(stay.bytes, alignment))
        self.over = {
            ((g, s.source), (g, s.target)): s
            for g, shares in legal.items()
            for s in shares.shares
            if s.kind is ShareKind.IN_PLACE
        }
        self.residual: set[tuple[Key, Key]] = set()
        self.work = 0
        self.result = Joined([])
        self.views: dict[Key, list[tuple[Key, int]]] = {}
        for g, shares in legal.items():
            for s in shares.shares:
                if s.kind is ShareKind.VIEW:
                    self.views.setdefault((g, s.target), []).append(((g, s.source), s.offset))

    def _contents(self, members: Sequence[Member], wanted: Iterable[Key]) -> dict[Key, list[Piece]]:
        """Whose data lies at which addresses of a block, by member: its own, or that of a tensor it is a view of.

        Only the members that are wanted are looked at, and those that they are views of.
        """
        self.work += len(members)
        found: dict[Key, list[Piece]] = {}
        at = {m.key: m.offset for m in members}
        needed: set[Key] = set()
        waiting = list(wanted)
        while waiting:
            key = waiting.pop()
            if key in at and key not in needed:
                needed.add(key)
                waiting += [source for source, _ in self.views.get(key, ())]
        for member in sorted((m for m in members if m.key in needed), key=lambda m: (m.first, m.last)):
            own = Piece(member.offset, member.offset + member.bytes, member.key)
            views = self.views.get(member.key, ())
            sources = [s for s, distance in views if s in found and member.offset - at[s] == distance]
            found[member.key] = _overlaid(own, (piece for source in sources for piece in found[source]))
            self.work += len(found[member.key])
        return found

    def run(self) -> Joined:
        cheap: list[tuple[int, Share]] = []
        dear: list[tuple[int, Share]] = []
        for subgraph, legal in sorted(self.legal.items()):
            for share in legal.shares:
                source, target = (self.stay.get((subgraph, t)) for t in (share.source, share.target))
                if source is None or target is None:
                    continue
                same = not share.offset and source.bytes == target.bytes
                (cheap if same else dear).append((subgraph, share))
        rank = {ShareKind.VIEW: 0, ShareKind.RESIDUAL: 1, ShareKind.IN_PLACE: 2}
        cheap.sort(key=lambda item: rank[item[1].kind])
        put_off: list[tuple[int, Share]] = []
        for subgraph, share in cheap:
            if share.kind is ShareKind.RESIDUAL:
                self._join_residual(subgraph, share)
            elif share.kind is ShareKind.IN_PLACE and self._larger_block(subgraph, share):
                put_off.append((subgraph, share))
            else:
                self._join(subgraph, share)
        self._weigh(put_off, dear)
        self._claim()
        unique = {id(block): block for block in self.block.values()}
        self.result.blocks = sorted(unique.values(), key=lambda b: (b.first, b.members[0].key))
        return self.result

    def _claim(self) -> None:
        """Notes the shares that hold although another path through the graph joined the two tensors."""
        for subgraph, legal in self.legal.items():
            used = self.result.used.setdefault(subgraph, [])
            fused = {(s.source, s.target) for s in used if s.kind is ShareKind.RESIDUAL}
            for share in legal.shares:
                block = self.block.get((subgraph, share.source))
                if share.kind is ShareKind.RESIDUAL or (share.source, share.target) in fused:
                    continue
                if share in used or block is None:
                    continue
                if block is self.block.get((subgraph, share.target)):
                    at = {m.key[1]: m.offset for m in block.members if m.key[0] == subgraph}
                    if at[share.target] - at[share.source] == share.offset:
                        used.append(share)

    def _larger_block(self, subgraph: int, share: Share) -> bool:
        target = self.block.get((subgraph, share.target))
        source = self.block.get((subgraph, share.source))
        return source is not None and target is not None and source.size != target.size

    def _weigh(self, singles: list[tuple[int, Share]], dear: list[tuple[int, Share]]) -> None:
        """Tries the shares that may cost something: those of one operator together first, then one by one."""
        groups: dict[tuple[int, int], list[Share]] = {}
        for subgraph, share in dear:
            groups.setdefault((subgraph, share.operator), []).append(share)
        tries = [(subgraph, shares) for (subgraph, _), shares in groups.items()]
        tries += [(s, [share]) for (s, _), shares in groups.items() if len(shares) > 1 for share in shares]
        tries += [(subgraph, [share]) for subgraph, share in singles]
        live = np.zeros(max((b.last for b in self.block.values()), default=0), np.int64)
        for block in {id(block): block for block in self.block.values()}.values():
            live[block.first : block.last] += block.size
        now = int(live.max(initial=0)), int(live.sum())
        again = True
        while again and tries:
            again = False
            for subgraph, shares in list(tries):
                before = dict(self.block)
                used = len(self.result.used.get(subgraph, []))
                if not all(self._join(subgraph, share) for share in shares):
                    self._undo(before, subgraph, used)
                    continue
                tensors = [(subgraph, t) for share in shares for t in (share.source, share.target)]
                trial = live.copy()
                for blocks, sign in ((before, -1), (self.block, 1)):
                    for block in {id(blocks[key]): blocks[key] for key in tensors}.values():
                        trial[block.first : block.last] += sign * block.size
                then = int(trial.max()), int(trial.sum())
                if then < now:
                    now, live, again = then, trial, True
                    tries.remove((subgraph, shares))
                else:
                    self._undo(before, subgraph, used)
                    for share in shares:
                        self._reject(subgraph, share, "it would keep the larger block in memory for longer")

    def _undo(self, before: dict[Key, Block], subgraph: int, used: int) -> None:
        self.block = before
        del self.result.used.get(subgraph, [])[used:]

    def _reject(self, subgraph: int, share: Share, why: str) -> None:
        self.result.unused.setdefault(subgraph, []).append((share, why))

    def _join_residual(self, subgraph: int, share: Share) -> None:
        source, target, product = ((subgraph, t) for t in (share.source, share.target, share.skipped))
        made, added = (self.times[subgraph, op] for op in (share.producer, share.operator))
        if added != made + 1 or product not in self.block or len(self.block[product].members) > 1:
            self._reject(subgraph, share, "its convolution does not run directly before it")
            return
        if self.stay[source].last - 1 != added or source in self.kept:
            self._reject(subgraph, share, "the residual is needed later")
            return
        # One kernel runs from the convolution's time to the ADD's: the output is there from its start.
        before = dict(self.block)
        stay, block = self.stay[target], self.block[target]
        self.stay[target] = stay._replace(first=made)
        members = [m._replace(first=made) if m.key == target else m for m in block.members]
        longer = Block(members, min(block.first, made), block.last, block.size)
        for member in members:
            self.block[member.key] = longer
        del self.block[product]
        self.residual.add((source, target))
        if not self._join(subgraph, share):
            self.residual.discard((source, target))
            self.stay[target], self.block = stay, before
            return
        self.result.skipped[product] = target

    def _join(self, subgraph: int, share: Share) -> bool:
        source, target = (subgraph, share.source), (subgraph, share.target)
        a, b = self.block.get(source), self.block.get(target)
        if a is None or b is None:
            self._reject(subgraph, share, "one of the two takes no memory")
            return False
        at = next(m.offset for m in a.members if m.key == source)
        there = next(m.offset for m in b.members if m.key == target)
        move = at + share.offset - there
        if a is b:
            if move == 0:
                return True
            self._reject(subgraph, share, "the two already are at another distance")
            return False
        moved = [m._replace(offset=m.offset + move) for m in b.members] if move else b.members
        # Those that live at other times and are no inputs cannot clash, which in long chains is nearly all of them.
        kept = any(m.key in self.inputs for m in moved)
        self.work += len(a.members) + len(moved)
        if self.work > _MOST_WORK:
            self._reject(subgraph, share, "the graph shares so much already that more was not tried")
            return False
        near = [m for m in a.members if kept or (m.first < b.last and b.first < m.last) or m.key in self.inputs]
        for one in near:
            for other in moved:
                why = self._clash(one, other)
                if why is None:
                    continue
                contents = self._contents([*a.members, *moved], (one.key, other.key))
                start = max(one.offset, other.offset)
                end = min(one.offset + one.bytes, other.offset + other.bytes)
                if _cut(contents[one.key], start, end) != _cut(contents[other.key], start, end):
                    self._reject(subgraph, share, why)
                    return False
        members = [*a.members, *moved]
        low = min(m.offset for m in members)
        if low:
            members = [m._replace(offset=m.offset - low) for m in members]
        end = max(m.offset + m.bytes for m in members)
        block = Block(members, min(a.first, b.first), max(a.last, b.last), aligned(end, self.alignment))
        for member in members:
            self.block[member.key] = block
        self.result.used.setdefault(subgraph, []).append(share)
        return True

    def _clash(self, one: Member, other: Member) -> str | None:
        """Why two members with different data must not be at these offsets; None when they may."""
        if one.offset + one.bytes <= other.offset or other.offset + other.bytes <= one.offset:
            return None
        if one.key in self.inputs or other.key in self.inputs:
            return "it is an input of the model, which the application may want to keep"
        if one.last <= other.first or other.last <= one.first:
            return None
        early, late = (one, other) if (one.first, one.last) <= (other.first, other.last) else (other, one)
        if early.key in self.kept:
            return "it is needed to the end"
        if (early.key, late.key) in self.residual and early.offset == late.offset:
            return None
        share = self.over.get((early.key, late.key))
        if share is not None and early.offset == late.offset:
            if early.last - 1 == late.first == self.times[early.key[0], share.operator]:
                return None
            return "the input is needed later"
        return "other bytes that it would write over are needed later"
