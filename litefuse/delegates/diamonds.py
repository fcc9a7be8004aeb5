"""Regions around reductions whose results meet their inputs again: norms, softmax, squeeze-and-excite, attention."""

from __future__ import annotations

from math import prod

from litefuse.delegates.growth import ELEMENTWISE, Draft, Plan, absorb_gainful, absorb_known, grow_down, post_dominator
from litefuse.delegates.kinds import PADS, POOLS, VIEWS, OpClass
from litefuse.schema.operators import Op

_CORE = 24
_STEPS = 8
_INSIDE = ELEMENTWISE | {OpClass.REDUCTION}
_MOVED = VIEWS | {Op.TRANSPOSE}


def add_reductions(plan: Plan) -> None:
    """Makes a draft of every reduction whose result is combined with what it was computed from."""
    network = plan.network
    for i in range(len(network.ops)):
        if network.is_free(i) and (network.roles[i] is OpClass.REDUCTION or _is_global(plan, i)):
            draft = _diamond(plan, i)
            if draft is not None:
                plan.add(draft)


def _is_global(plan: Plan, i: int) -> bool:
    """Whether a pool takes all pixels at once."""
    network = plan.network
    if network.kinds[i] not in POOLS:
        return False
    shape = network.shape(network.outs[i][0])
    return len(shape) == 4 and shape[1] * shape[2] == 1 and prod(network.window(i)) > 1


def _diamond(plan: Plan, start: int) -> Draft | None:
    network = plan.network
    domain = network.elements(network.data(start))
    # With a single pixel or number there is nothing to reduce, and nothing to meet again.
    if domain <= network.elements(network.outs[start][0]):
        return None

    def inside(i: int) -> bool:
        if not network.is_free(i):
            return False
        if network.roles[i] is OpClass.ROOT:
            # Small products of what is left of the pixels, as in squeeze-and-excite.
            return network.is_pointwise(i) and 4 * network.elements(network.data(i)) <= domain
        return network.roles[i] in _INSIDE or network.kinds[i] in _MOVED or _is_global(plan, i)

    def is_whole(t: int) -> bool:
        return network.elements(t) == domain

    found = post_dominator(network, network.outs[start][0], inside, is_whole, _CORE)
    if found is None:
        return None
    members, tensor = found
    members.add(start)
    draft = Draft(start, members)
    absorb_known(plan, draft, inside)
    if not plan.is_legal(draft.members):
        return None
    draft.prologue.clear()

    def behind(i: int) -> bool:
        return network.is_free(i) and (network.roles[i] in _INSIDE or network.kinds[i] in VIEWS)

    grow_down(plan, draft, tensor, behind, is_whole)
    before = set(draft.members)
    absorb_known(plan, draft, behind)
    draft.prologue = {i for i in draft.members - before if i < min(before)}
    if any(network.roles[i] is OpClass.ROOT for i in draft.members):
        draft.stages = "S"
    elif _by_rows(plan, draft):
        draft.stages = "N"
    return draft


def _by_rows(plan: Plan, draft: Draft) -> bool:
    """Whether a region reduces over channels alone, so that it can be computed pixel by pixel."""
    network = plan.network
    for i in draft.members:
        if network.roles[i] is OpClass.REDUCTION:
            shape, out = network.shape(network.data(i)), network.shape(network.outs[i][0])
            if not shape or network.elements(network.outs[i][0]) * shape[-1] != prod(shape) or out == shape:
                return False
    return len(network.outputs_of(draft.members)) == 1


def add_attention(plan: Plan) -> None:
    """Makes a draft of every product, softmax and product, with what lies between and around them."""
    network = plan.network
    for i in range(len(network.ops)):
        if network.kinds[i] is Op.SOFTMAX and network.is_free(i):
            draft = _attention(plan, i)
            if draft is not None:
                plan.add(draft)


def _attention(plan: Plan, softmax: int) -> Draft | None:
    network = plan.network
    above = _way_up(plan, network.data(softmax), _STEPS)
    below = _way_down(plan, network.outs[softmax][0])
    if above is None or below is None:
        return None
    members = {softmax, *above, *below}
    if not plan.is_legal(members):
        return None
    draft = Draft(min(members), members)
    last = network.outs[max(members)][0]
    elements = network.elements(last)

    def behind(i: int) -> bool:
        movable = network.is_free(i) and network.kinds[i] in _MOVED
        return (movable or plan.is_elementwise(i)) and network.elements(network.outs[i][0]) == elements

    grow_down(plan, draft, last, behind, lambda t: network.elements(t) == elements)

    def before(i: int, tensor: int) -> bool:
        inside = all(r in draft.members for r in network.readers(tensor)) and tensor not in network.leaving
        return inside and (network.roles[i] in ELEMENTWISE or network.kinds[i] in _MOVED | PADS)

    absorb_gainful(plan, draft, before, lambda: network.inputs_of(draft.members))
    return draft


def _way_up(plan: Plan, tensor: int, steps: int) -> list[int] | None:
    """The operators from a matrix product down to a tensor that nothing else reads; None when there is no such way."""
    network = plan.network
    i = network.producer(tensor)
    if i is None or not steps or not network.is_free(i) or network.only_reader(tensor) is None:
        return None
    if network.kinds[i] is Op.BATCH_MATMUL:
        return [i]
    if network.roles[i] not in ELEMENTWISE and network.kinds[i] not in _MOVED:
        return None
    for source in network.ins[i]:
        way = _way_up(plan, source, steps - 1)
        if way is not None:
            return [*way, i]
    return None


def _way_down(plan: Plan, tensor: int) -> list[int] | None:
    network = plan.network
    way: list[int] = []
    for _ in range(_STEPS):
        i = network.only_reader(tensor)
        if i is None or not network.is_free(i):
            return None
        way.append(i)
        if network.kinds[i] is Op.BATCH_MATMUL:
            return way
        if network.roles[i] is not OpClass.ELEMENTWISE and network.kinds[i] not in _MOVED:
            return None
        tensor = network.outs[i][0]
    return None
