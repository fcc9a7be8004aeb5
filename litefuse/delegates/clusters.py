"""Regions without a convolution or matrix product: clusters of elementwise operators with what lies between them."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from litefuse.delegates.growth import ELEMENTWISE, Draft, Plan, absorb_gainful
from litefuse.delegates.kinds import VIEWS, OpClass
from litefuse.schema.operators import Op

_ROWS = 4
_GATHERED = frozenset({Op.CONCATENATION, Op.PACK})
_JOINED = ELEMENTWISE | {OpClass.REDUCTION, OpClass.INJECTIVE, OpClass.WINDOW}


def add_clusters(plan: Plan) -> None:
    """Makes drafts of what is free and connected, each as large as is legal."""
    network = plan.network
    for i in range(len(network.ops)):
        # A cluster begins at what computes something; copies join it, or make one of their own afterwards.
        if network.is_free(i) and network.roles[i] in _JOINED - {OpClass.INJECTIVE}:
            _cluster(plan, i)
    for i in range(len(network.ops)):
        if network.is_free(i) and network.roles[i] is OpClass.INJECTIVE and network.kinds[i] not in VIEWS:
            _cluster(plan, i)


def _cluster(plan: Plan, seed: int) -> None:
    network = plan.network
    members = {seed}
    if not plan.fits(members):
        return
    grown = True
    while grown and len(members) < plan.target.max_operators:
        grown = False
        # One that was not legal may be so when others have joined.
        for i in dict.fromkeys(_neighbours(plan, members)):
            if i not in members and _joins(plan, members, i) and plan.is_legal(members | {i}):
                members.add(i)
                grown = True
    members = _trim(plan, members)
    if len(members) > 1:
        weights = [(network.roles[i] is OpClass.REDUCTION, network.roles[i] is OpClass.WINDOW, -i) for i in members]
        root = -max(weights)[2]
        plan.add(Draft(root, members, {i for i in members if i < root}))


def _joins(plan: Plan, members: set[int], i: int) -> bool:
    """Whether an operator next to a cluster is of use to it."""
    network = plan.network
    if network.roles[i] is OpClass.WINDOW:
        return not any(network.roles[m] is OpClass.WINDOW for m in members)
    if network.kinds[i] in _GATHERED and any(network.producer(t) in members for t in network.ins[i]):
        # Writing parts of the result where they belong is worth it when they are most of it.
        sizes = [(network.bytes(t), network.producer(t) in members) for t in network.ins[i]]
        return 2 * sum(size for size, inside in sizes if inside) >= sum(size for size, _ in sizes)
    return True


def add_cells(plan: Plan) -> None:
    """Gives clusters the matrix products of a few rows that only they read: the cells of recurrent networks."""
    network = plan.network
    for number, draft in list(plan.drafts.items()):
        if all(network.roles[i] in ELEMENTWISE | {OpClass.INJECTIVE} for i in draft.members):
            grown = _with_products(plan, draft)
            if grown.members != draft.members:
                plan.change(number, grown)


def _with_products(plan: Plan, draft: Draft) -> Draft:
    network = plan.network
    grown = Draft(draft.root, set(draft.members), set(draft.prologue))

    def allowed(i: int, t: int) -> bool:
        rows = prod(network.shape(t)[:-1])
        inside = all(r in grown.members for r in network.readers(t)) and t not in network.leaving
        return inside and rows <= _ROWS and (network.kinds[i] is Op.FULLY_CONNECTED or network.is_pointwise(i))

    absorb_gainful(plan, grown, allowed, lambda: network.inputs_of(grown.members))
    return grown


def _neighbours(plan: Plan, members: set[int]) -> Iterator[int]:
    """Free operators that read a cluster, or are read by it."""
    network = plan.network
    for i in sorted(members):
        for t in network.outs[i]:
            for reader in network.readers(t):
                if reader not in members and network.is_free(reader) and network.roles[reader] in _JOINED:
                    yield reader
        for t in network.ins[i]:
            maker = network.producer(t)
            if maker is None or maker in members or not network.is_free(maker):
                continue
            if network.roles[maker] in _JOINED:
                yield maker


def _trim(plan: Plan, members: set[int]) -> set[int]:
    """Takes single operators off the border again as long as what is left saves more, and stays in one piece."""
    network = plan.network
    changed = True
    while changed and len(members) > 2:
        changed = False
        for i in sorted(members):
            inside_before = any(network.producer(t) in members for t in network.ins[i])
            inside_behind = any(r in members for t in network.outs[i] for r in network.readers(t))
            if inside_before and inside_behind:
                continue
            rest = members - {i}
            if plan.gain(rest) > plan.gain(members) and network.is_connected(rest) and plan.is_legal(rest):
                members, changed = rest, True
                break
    return members
