"""Regions around convolutions and matrix products: epilogues, prologues, and what is on the way of other operands."""

from __future__ import annotations

from math import prod

from litefuse.delegates.growth import ELEMENTWISE, Draft, Plan, absorb_gainful, grow_down, post_dominator
from litefuse.delegates.kinds import CONVERSIONS, PADS, POOLS, RESIZES, VIEWS, OpClass
from litefuse.schema.operators import Op

_REARRANGED = frozenset({Op.DEPTH_TO_SPACE, Op.TRANSPOSE, Op.BATCH_TO_SPACE_ND})
_ROWWISE = frozenset({Op.SOFTMAX, Op.LOG_SOFTMAX, Op.L2_NORMALIZATION})
_SMALL_WINDOW = 25
_ROW = 4096


def add_roots(plan: Plan) -> None:
    """Makes a draft of every free convolution and matrix product, with what follows it.

    The last ones come first: where several meet in an addition, that belongs to the one which is computed last.
    """
    network = plan.network
    for i in reversed(range(len(network.ops))):
        if network.roles[i] is OpClass.ROOT and network.is_free(i) and plan.fits({i}):
            plan.add(_with_epilogue(plan, i))


def _with_epilogue(plan: Plan, root: int) -> Draft:
    network = plan.network
    draft = Draft(root, {root}, stages=stage(plan, root))
    tensor = network.outs[root][0]
    elements = network.elements(tensor)

    def same_size(t: int) -> bool:
        return network.elements(t) == elements

    def allowed(i: int) -> bool:
        return plan.is_elementwise(i) and same_size(network.outs[i][0])

    while True:
        tensor = grow_down(plan, draft, tensor, allowed, same_size)
        follower = network.only_reader(tensor)
        if follower is None or not network.is_free(follower):
            break
        if network.kinds[follower] is Op.SPLIT:
            gated = _gated(plan, draft, tensor, follower)
            if gated is None:
                break
            tensor, elements = gated, network.elements(gated)
            continue
        if not _may_end(plan, root, follower):
            break
        more = draft.members | {follower}
        if not plan.is_legal(more) or plan.gain(more) <= plan.gain(draft.members):
            break
        draft.members = more
        draft.stages = draft.stages and draft.stages.rstrip(".") + "."  # what is behind does not come row by row
        tensor = network.outs[follower][0]
        elements = network.elements(tensor)
    return draft


def _gated(plan: Plan, draft: Draft, tensor: int, split: int) -> int | None:
    """Takes a gated linear unit: one part of the channels goes through a function and is multiplied with the other."""
    network = plan.network
    found = post_dominator(network, tensor, lambda i: i == split or plan.is_elementwise(i), lambda t: True)
    if found is None:
        return None
    taken, out = found
    more = draft.members | taken
    if not plan.is_legal(more) or plan.gain(more) <= plan.gain(draft.members):
        return None
    draft.members = more
    return out


def _may_end(plan: Plan, root: int, i: int) -> bool:
    """Whether an operator that is not elementwise can be computed from the strip that the root has just written."""
    network = plan.network
    kind = network.kinds[i]
    if kind in POOLS:
        return prod(network.window(i)) <= _SMALL_WINDOW or network.shape(network.outs[i][0])[1:3] == (1, 1)
    if kind is Op.MEAN:
        axes = network.graph.constant(network.ops[i].inputs[1])
        return axes is not None and sorted(axes.reshape(-1).tolist()) == [1, 2] and _has_pixels(plan, i)
    if kind in _ROWWISE:
        return network.shape(network.data(i))[-1:] == network.shape(network.outs[root][0])[-1:] <= (_ROW,)
    return kind in _REARRANGED


def _has_pixels(plan: Plan, i: int) -> bool:
    return len(plan.network.shape(plan.network.data(i))) == 4


def add_prologues(plan: Plan) -> None:
    """Gives each draft with a root what is computed on the way into it and nowhere else, in execution order."""
    for number, draft in sorted(plan.drafts.items(), key=lambda item: min(item[1].members)):
        if plan.network.roles[draft.root] is not OpClass.ROOT:
            continue
        grown = _with_prologue(plan, draft)
        if grown.members != draft.members:
            plan.change(number, grown)


def _with_prologue(plan: Plan, draft: Draft) -> Draft:
    grown = Draft(draft.root, set(draft.members), set(draft.prologue), draft.stages)
    absorb_gainful(
        plan,
        grown,
        lambda i, t: may_precede(plan, grown, i, t),
        lambda: plan.network.inputs_of(grown.members),
    )
    return grown


def may_precede(plan: Plan, draft: Draft, i: int, tensor: int) -> bool:
    """Whether an operator can be computed on the way of one of the region's operands."""
    network = plan.network
    kind, role = network.kinds[i], network.roles[i]
    if len(network.outs[i]) != 1:
        return False
    inside = all(r in draft.members for r in network.readers(tensor)) and tensor not in network.leaving
    if role in ELEMENTWISE:
        if not inside and kind in CONVERSIONS:
            return False
        # What others need too is written besides, which costs no more than that others compute it.
        return _is_of_one(plan, i) or (inside and tensor not in network.ins[draft.root])
    if not inside:
        return False
    if kind in VIEWS or kind in PADS or kind in RESIZES:
        return True
    reader = network.readers(tensor)[0]
    if network.roles[reader] is OpClass.ROOT:
        if kind is Op.CONCATENATION:
            return network.is_pointwise(reader) and _is_of_channels(plan, i)
        return kind is Op.TRANSPOSE and (network.kinds[reader] is Op.BATCH_MATMUL or network.is_pointwise(reader))
    return kind in POOLS and prod(network.window(i)) <= _SMALL_WINDOW


def _is_of_one(plan: Plan, i: int) -> bool:
    """Whether an elementwise operator works on one tensor: others are constant, small, or computed from that."""
    network = plan.network
    whole = network.elements(network.outs[i][0])
    large = [t for t in network.ins[i] if 4 * network.elements(t) > whole]
    if len(large) < 2:
        return True
    return any(
        (maker := network.producer(a)) is not None and set(network.ins[maker]) <= {b}
        for a, b in zip((large[0], large[-1]), (large[-1], large[0]), strict=True)
    )


def _is_of_channels(plan: Plan, i: int) -> bool:
    rank = len(plan.network.shape(plan.network.outs[i][0]))
    axis = getattr(plan.network.ops[i].builtin_options, "axis", 0)
    return axis in (rank - 1, -1)


def stage(plan: Plan, root: int) -> str:
    """The letter of a root in chains: D depthwise, P pointwise, empty for what does not come strip by strip."""
    network = plan.network
    if network.is_depthwise(root):
        return "D"
    if network.is_pointwise(root):
        return "P"
    # A strided pointwise convolution takes every other pixel only, which is no less strip by strip.
    if network.kinds[root] is Op.CONV_2D and network.window(root) == (1, 1):
        return "P" if network.weights(root)[-1] == network.shape(network.data(root))[-1] else ""
    return ""
