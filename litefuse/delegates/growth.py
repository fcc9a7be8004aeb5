"""Regions in the making, and the ways in which they grow.

Downstream a region grows from a tensor to its post-dominator: everything that reads the tensor, and what reads that,
until all comes together in one tensor again, is taken whole or not at all. Upstream it takes single producers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeAlias

from litefuse.delegates.cost import CostModel
from litefuse.delegates.kinds import CONVERSIONS, PADS, VIEWS, OpClass
from litefuse.delegates.network import Network
from litefuse.delegates.targets import Target

Allowed: TypeAlias = Callable[[int], bool]

ELEMENTWISE = frozenset({OpClass.ELEMENTWISE, OpClass.BROADCAST})
_DIAMOND = 16
_CONE = 8
_NOTHING = 1e-9


@dataclass
class Draft:
    """A region in the making, by positions of operators."""

    root: int
    members: set[int]
    prologue: set[int] = field(default_factory=set)
    stages: str = ""
    """One letter for each root of a chain that can be computed strip by strip, a dot behind when nothing may follow;
    see :mod:`litefuse.delegates.chains`. An asterisk where several were joined; see
    :mod:`litefuse.delegates.merging`."""
    parts: tuple[Draft, ...] = ()
    """The drafts of which it is made, for when it does not pay after all."""


class Plan:
    """The drafts of one graph, and what new ones are measured by."""

    def __init__(self, network: Network, target: Target, model: CostModel, untouchable: Collection[int] = ()) -> None:
        self.network = network
        self.target = target
        self.model = model
        self.drafts: dict[int, Draft] = {}
        self._next = 0
        for i in untouchable:
            if network.reasons[i] is None:
                network.reasons[i] = "it is kept as it is by request"

    # -- what may be ---------------------------------------------------------------------------------------------

    def fits(self, members: Collection[int]) -> bool:
        """Whether the target can run so many operators with so many operands as one region."""
        if len(members) > self.target.max_operators:
            return False
        network = self.network
        operands = len(network.inputs_of(members)) + len(network.outputs_of(members))
        return operands <= self.target.max_operands and network.most_live(members) <= self.target.max_live

    def is_legal(self, members: Collection[int]) -> bool:
        """Whether operators may be one region beside those there are."""
        return self.fits(members) and self.network.is_convex(members)

    def gain(self, members: Collection[int]) -> float:
        """What a region of these operators saves, in microseconds; may be negative."""
        return self.model.gain_us(self.network, members)

    def is_elementwise(self, i: int) -> bool:
        """Whether a free operator computes its elements one by one, or leaves them as they are."""
        network = self.network
        return network.is_free(i) and (network.roles[i] in ELEMENTWISE or network.kinds[i] in VIEWS)

    # -- drafts --------------------------------------------------------------------------------------------------

    def add(self, draft: Draft) -> int:
        """Registers a draft, whose members must be free and legal; returns its number."""
        number = self._next
        self._next += 1
        self.drafts[number] = draft
        self.network.take(number, draft.members)
        return number

    def drop(self, number: int) -> Draft:
        """Takes a draft back; its members are free again."""
        self.network.release(number)
        return self.drafts.pop(number)

    def change(self, number: int, draft: Draft) -> None:
        """Puts another draft in the place of one."""
        self.network.release(number)
        self.drafts[number] = draft
        self.network.take(number, draft.members)

    def effective(self, members: Collection[int]) -> list[int]:
        """The operators that take time in the stock runtime."""
        return [i for i in sorted(members) if self.model.operator_us(self.network, i) > 0]

    def why_not(self, draft: Draft) -> str | None:
        """Why a draft is not worth being a region; None when it is."""
        effective = self.effective(draft.members)
        if not effective:
            return "the stock runtime does it at no cost"
        if len(effective) == 1 and not self.model.wins_alone(self.network, effective[0]):
            name = self.network.kinds[effective[0]].name
            return f"{name} has nothing around it to be fused with, and is as fast alone in the stock runtime"
        stock = self.model.stock_us(self.network, draft.members)
        return self.model.why_not(stock, self.model.fused_us(self.network, draft.members))


def post_dominator(
    network: Network, start: int, allowed: Allowed, done: Callable[[int], bool], most: int = _DIAMOND
) -> tuple[set[int], int] | None:
    """What is computed from a tensor until everything comes together again.

    Args:
        network: the graph.
        start: the tensor; all its readers are taken.
        allowed: whether an operator may be taken.
        done: whether a tensor may be the one in which all comes together.
        most: operators that may be taken.

    Returns:
        The operators and the tensor, or None when there is none within reach.
    """
    if start in network.leaving:
        return None
    taken: set[int] = set()
    waiting: list[int] = []
    queued: set[int] = set()
    open_readers: dict[int, int] = {}

    def opened(tensor: int) -> None:
        readers = network.readers(tensor)
        # A tensor that leaves the graph has one reader who never comes.
        open_readers[tensor] = len(readers) + (tensor in network.leaving)
        for reader in readers:
            if reader not in queued:
                queued.add(reader)
                heappush(waiting, reader)

    opened(start)
    while waiting and len(taken) < most:
        i = heappop(waiting)
        if not allowed(i):
            return None
        taken.add(i)
        for t in network.ins[i]:
            if t in open_readers:
                open_readers[t] -= 1
                if not open_readers[t]:
                    del open_readers[t]
        for t in network.outs[i]:
            opened(t)
        out = network.outs[i][0]
        if len(open_readers) == 1 and out in open_readers and done(out):
            return taken, out
    return None


def grow_down(plan: Plan, draft: Draft, tensor: int, allowed: Allowed, done: Callable[[int], bool]) -> int:
    """Takes post-dominators from a tensor on as long as that is legal; returns the tensor at which it ends."""
    network = plan.network
    while True:
        found = post_dominator(network, tensor, allowed, done)
        if found is None:
            return tensor
        taken, out = found
        if not plan.is_legal(draft.members | taken):
            return tensor
        draft.members |= taken
        tensor = out


def absorb_known(plan: Plan, draft: Draft, allowed: Allowed) -> None:
    """Takes producers that need nothing which the region does not read anyhow, with all readers inside.

    A producer is taken with those before it, up to a few. Conversions and views need not read the same: they replace
    one input by another.
    """
    network = plan.network
    changed = True
    while changed:
        changed = False
        inputs = network.inputs_of(draft.members)
        for t in inputs:
            cone = _cone(network, t, draft.members, set(inputs) - {t}, allowed)
            if cone and plan.is_legal(draft.members | cone):
                draft.members |= cone
                draft.prologue |= cone
                changed = True
                break


def _cone(
    network: Network, tensor: int, members: Collection[int], known: Collection[int], allowed: Allowed
) -> set[int]:
    """The operators that compute a tensor from known ones and are read inside only; empty when there are none such."""
    cone: set[int] = set()
    todo = [tensor]
    while todo:
        i = network.producer(todo.pop())
        if i is None or len(cone) >= _CONE or not allowed(i) or not _read_inside(network, i, members, cone):
            return set()
        cone.add(i)
        if len(cone) == 1 and (network.kinds[i] in CONVERSIONS or network.kinds[i] in VIEWS):
            return cone
        inside = (t for t in network.ins[i] if t not in known and t not in todo)
        todo += [t for t in inside if (p := network.producer(t)) is None or (p not in members and p not in cone)]
    return cone


def _read_inside(network: Network, i: int, members: Collection[int], more: Collection[int]) -> bool:
    return all(
        t not in network.leaving and all(r in members or r in more for r in network.readers(t)) for t in network.outs[i]
    )


def absorb_gainful(
    plan: Plan, draft: Draft, allowed: Callable[[int, int], bool], inputs: Callable[[], Iterable[int]], most: int = 10
) -> None:
    """Takes producers of inputs, one by one, as long as each makes the region save more.

    `allowed` gets a producer and the tensor for which it is asked; `inputs` gives the tensors to look behind.
    """
    network = plan.network
    tried: set[int] = set()
    budget = most
    while budget:
        for t in inputs():
            i = network.producer(t)
            if i is None or i in draft.members or i in tried or not network.is_free(i) or not allowed(i, t):
                continue
            tried.add(i)
            more = draft.members | {i}
            free = network.kinds[i] in VIEWS or network.kinds[i] in PADS
            least = plan.gain(draft.members) - (_NOTHING if free else 0.0)
            if plan.is_legal(more) and plan.gain(more) > least:
                draft.members.add(i)
                draft.prologue.add(i)
                budget -= 1
                break
        else:
            return
