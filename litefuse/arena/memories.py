"""Several memories: which tensors lie in the fast ones, so that the slow ones are read and written least.

A byte that an operator reads or writes costs what its memory costs. Memories are filled from the cheapest on: each
takes the buffers whose move to the next would cost most, as far as they can be packed into it, and the last takes what
is left. For two memories that is the optimum, where the search says so; for more it is one after the other.

Which buffers leave a memory is decided by branch and bound. At each time at which the live bytes exceed the memory,
buffers of that time must leave; what the cheapest of them cost, counted in fractions, is a lower bound, and times that
have no undecided buffer in common add up. A set that fits at every time is then packed, by the exact packer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from litefuse.arena.packing import pack
from litefuse.arena.problem import Buffer, Problem, aligned
from litefuse.errors import BudgetError

SLOW = 4.0
"""What `slow` means: the cost of a byte relative to the fast memory, about that of PSRAM over eight lines."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Memory(NamedTuple):
    """A memory: its name, its size in bytes and what a byte read or written costs, relative to others."""

    name: str
    size: int
    cost: float = 1.0


class Use(NamedTuple):
    """What became of a memory: bytes of its arena, bytes read and written in a run, and how many buffers it holds."""

    memory: Memory
    peak: int
    traffic: int
    buffers: int


@dataclass(frozen=True)
class Placement:
    """Buffers in memories.

    Attributes:
        memory: the name of the memory of each buffer, by id.
        offsets: the offset of each buffer in its memory, by id.
        uses: what became of each memory, the cheapest first.
        cost: the sum of bytes read and written, each times the cost of its memory.
        lower_bound: no placement costs less.
    """

    memory: dict[str, str]
    offsets: dict[str, int]
    uses: list[Use]
    cost: float
    lower_bound: float

    @property
    def proved(self) -> bool:
        """Whether it is proved that no placement costs less."""
        return self.cost <= self.lower_bound * (1 + 1e-9)


def parse_bytes(text: str) -> int:
    """A number of bytes as ``65536``, ``64K``, ``0.5M``: K is 1024. Raises ValueError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise ValueError(f"a size is a number with K, M or G behind it, such as 256K; not {text!r}")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def parse_memories(text: str) -> list[Memory]:
    """Memories as ``sram=320K,psram=8M:slow``; instead of ``slow`` may stand what a byte costs. Raises ValueError."""
    memories: list[Memory] = []
    for part in text.split(","):
        name, equals, rest = part.strip().partition("=")
        size, colon, cost = rest.partition(":")
        if not name or not equals:
            raise ValueError(f"a memory is NAME=SIZE or NAME=SIZE:COST, such as psram=8M:slow; not {part!r}")
        try:
            price = SLOW if cost == "slow" else float(cost) if colon else 1.0
        except ValueError:
            raise ValueError(f"the cost of {name} is `slow` or a number, not {cost!r}") from None
        if not 0 < price < float("inf"):
            raise ValueError(f"the cost of {name} must be above zero")
        memories.append(Memory(name, parse_bytes(size), price))
    if len({m.name for m in memories}) != len(memories):
        raise ValueError("two memories have the same name")
    return memories


def place(
    problem: Problem,
    traffic: Mapping[str, int],
    memories: Sequence[Memory],
    *,
    alignment: int = 1,
    seconds: float = 10.0,
) -> Placement:
    """Distributes buffers over memories so that the bytes moved cost least.

    Args:
        problem: the buffers.
        traffic: the bytes that are read and written in each buffer in one run, by id; 0 where not given.
        memories: in any order.
        alignment: bytes; offsets are multiples of it, and sizes are rounded up to it.
        seconds: time limit of the search.

    Raises:
        BudgetError: they do not fit. It says by how much, as far as that is known.
    """
    deadline = time.monotonic() + seconds
    ranked = sorted(memories, key=lambda m: m.cost)
    left = list(problem.buffers)
    names: dict[str, str] = {}
    offsets: dict[str, int] = {}
    uses: list[Use] = []
    bound = ranked[0].cost * sum(traffic.get(b.id, 0) for b in left)
    for memory, following in zip(ranked, [*ranked[1:], None], strict=True):
        chosen = left
        if following is not None:
            prices = {b.id: traffic.get(b.id, 0) * (following.cost - memory.cost) for b in left}
            search = _Search(left, prices, memory.size, alignment, deadline)
            chosen = search.kept()
            bound += search.bound if memory is ranked[0] else 0.0
        packing = pack(Problem(chosen), alignment=alignment, capacity=memory.size, seconds=_left(deadline))
        if not packing.fits(memory.size):
            raise BudgetError(_misfit(ranked, packing.peak, problem.lower_bound(alignment)))
        taken = {b.id for b in chosen}
        names.update(dict.fromkeys(sorted(taken), memory.name))
        offsets.update(packing.offsets)
        uses.append(Use(memory, packing.peak, sum(traffic.get(b.id, 0) for b in chosen), len(chosen)))
        left = [b for b in left if b.id not in taken]
    return Placement(names, offsets, uses, sum(u.memory.cost * u.traffic for u in uses), bound)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.1)


def _misfit(ranked: Sequence[Memory], needed: int, most: int) -> str:
    last = ranked[-1]
    if len(ranked) == 1:
        return f"the tensors take {needed:,} bytes, and {last.name} has {last.size:,}"
    total = sum(memory.size for memory in ranked)
    if most > total:
        return (
            f"up to {most:,} bytes live at one time, and {' and '.join(m.name for m in ranked)} have {total:,} in all"
        )
    return f"what the other memories cannot take needs {needed:,} bytes, and {last.name} has {last.size:,}"


@dataclass
class _Section:
    """A time: the buffers that live then, the cheapest bytes first, and the bytes of those that have not left."""

    members: list[int]
    load: int
    rank: dict[int, int] = field(default_factory=dict)


class _Search:
    """Which buffers stay in a memory of ``capacity`` bytes, so that the price of those that leave is least.

    Attributes:
        bound: no choice is cheaper; the price of the choice itself where the search came to its end.
    """

    _UNDECIDED, _STAYS, _LEAVES = range(3)

    def __init__(
        self, buffers: Sequence[Buffer], prices: Mapping[str, float], capacity: int, alignment: int, deadline: float
    ) -> None:
        self.buffers = list(buffers)
        self.capacity, self.alignment, self.deadline = capacity, alignment, deadline
        self.sizes = [aligned(b.size, alignment) for b in buffers]
        self.prices = [prices[b.id] for b in buffers]
        # Of equal prices, the smaller buffer is the one to leave.
        largest = max(self.sizes, default=1) or 1
        least = min((p for p in self.prices if p > 0), default=1.0)
        self.weights = [p + least * 1e-6 * s / largest for p, s in zip(self.prices, self.sizes, strict=True)]
        self.sections = self._sections()
        self.of = [[x for x, section in enumerate(self.sections) if i in section.rank] for i in range(len(buffers))]
        self.state = [self._UNDECIDED] * len(buffers)
        self.best: list[int] = []  # those that leave
        self.best_weight = float("inf")
        self.exact = True
        root = self._bound()[0]
        self._descend(0.0)
        cost = sum(self.prices[i] for i in self.best)
        self.bound = cost if self.exact else min(root, cost)

    def kept(self) -> list[Buffer]:
        """The buffers that stay, in the order in which they were given."""
        leaving = set(self.best)
        return [b for i, b in enumerate(self.buffers) if i not in leaving]

    def _sections(self) -> list[_Section]:
        """The times at which a buffer begins and more lives than fits, without those that another time covers."""
        found: list[_Section] = []
        for start in sorted({b.lower for b in self.buffers}):
            members = [i for i, b in enumerate(self.buffers) if b.lower <= start < b.upper and self.sizes[i]]
            load = sum(self.sizes[i] for i in members)
            if load > self.capacity:
                members.sort(key=lambda i: (self.weights[i] / self.sizes[i], i))
                found.append(_Section(members, load, {i: n for n, i in enumerate(members)}))
        covered = [any(a is not b and set(a.members) < set(b.members) for b in found) for a in found]
        return [section for section, is_covered in zip(found, covered, strict=True) if not is_covered]

    def _bound(self) -> tuple[float, int]:
        """What must still be paid at least (infinite where a time cannot be helped), and the section that says most."""
        needs: list[tuple[float, int, set[int]]] = []
        for x, section in enumerate(self.sections):
            excess = section.load - self.capacity
            if excess <= 0:
                continue
            price = 0.0
            open_: set[int] = set()
            for i in section.members:
                if self.state[i] == self._UNDECIDED:
                    open_.add(i)
                    if excess > 0:
                        price += self.weights[i] * min(1.0, excess / self.sizes[i])
                        excess -= self.sizes[i]
            if excess > 0:
                return float("inf"), x
            needs.append((price, x, open_))
        if not needs:
            return 0.0, -1
        needs.sort(key=lambda need: -need[0])
        total, used = 0.0, set[int]()
        for price, _, open_ in needs:
            if not used & open_:
                total += price
                used |= open_
        return total, needs[0][1]

    def _descend(self, paid: float) -> None:
        staying: list[int] = []  # one after the other, rather than each in a call of its own
        while True:
            bound, x = self._bound()
            if paid + bound >= self.best_weight:
                break
            if x < 0:
                self._try(paid)
                break
            if time.monotonic() > self.deadline and self.best_weight < float("inf"):
                self.exact = False
                break
            section = self.sections[x]
            excess = section.load - self.capacity
            undecided = [i for i in section.members if self.state[i] == self._UNDECIDED]
            # The cheapest that is enough alone, or else the cheapest for its bytes.
            enough = [i for i in undecided if self.sizes[i] >= excess]
            pick = min(enough, key=lambda i: self.weights[i]) if enough else undecided[0]
            self._decide(pick, self._LEAVES)
            self._descend(paid + self.weights[pick])
            self._decide(pick, self._UNDECIDED)
            self.state[pick] = self._STAYS
            staying.append(pick)
        for i in staying:
            self.state[i] = self._UNDECIDED

    def _decide(self, i: int, state: int) -> None:
        sign = -1 if state == self._LEAVES else 1
        for x in self.of[i]:
            self.sections[x].load += sign * self.sizes[i]
        self.state[i] = state

    def _try(self, paid: float) -> None:
        """Packs what stays. Where that does not fit though the live bytes do, more leaves, the cheapest first."""
        leaving = [i for i, state in enumerate(self.state) if state == self._LEAVES]
        while True:
            staying = [b for i, b in enumerate(self.buffers) if i not in set(leaving)]
            seconds = min(1.0, _left(self.deadline))
            packing = pack(Problem(staying), alignment=self.alignment, capacity=self.capacity, seconds=seconds)
            if packing.fits(self.capacity):
                break
            self.exact = False
            high = {b.id for b in staying if packing.offsets[b.id] + b.size > self.capacity}
            more = [i for i, b in enumerate(self.buffers) if b.id in high and self.sizes[i]]
            pick = min(more, key=lambda i: self.weights[i])
            leaving.append(pick)
            paid += self.weights[pick]
        if paid < self.best_weight:
            self.best, self.best_weight = leaving, paid
