"""Regions that are computed strip by strip one after the other: depthwise-pointwise, inverted residuals, MLPs.

A strip of rows goes through all roots of a chain before the next one is begun, so that what lies between them never
leaves the cache. Roots are letters: D depthwise, P pointwise, N a normalisation over channels, S a gate from all pixels
(squeeze-and-excite) that is applied on the way into what follows.
"""

from __future__ import annotations

from litefuse.delegates.growth import Draft, Plan
from litefuse.delegates.kinds import RESIZES, OpClass
from litefuse.schema.operators import Op

# What needs other rows than those that have just been computed.
_ELSEWHERE = RESIZES | {Op.TRANSPOSE}
# Which chains there are, in the order in which their parts are joined.
_JOINS = (("D", "P"), ("P", "DP"), ("P", "D"), ("P", "P"), ("N", "PP"), ("N", "P"), ("D", "NPP"), ("S", "P"))


def merge_chains(plan: Plan) -> None:
    """Joins drafts of which one reads nothing but what another has computed, where that saves more."""
    for before, behind in _JOINS:
        for number in sorted(plan.drafts, key=lambda n: min(plan.drafts[n].members)):
            draft = plan.drafts.get(number)
            if draft is not None and draft.stages == before:
                _join(plan, number, draft, behind)


def _join(plan: Plan, number: int, draft: Draft, behind: str) -> None:
    network = plan.network
    for tensor in network.outputs_of(draft.members):
        readers = network.readers(tensor)
        if tensor in network.leaving or not readers:
            continue
        other_number = network.owner[readers[0]]
        other = plan.drafts.get(other_number)
        if other is None or other_number == number or other.stages.rstrip(".") != behind:
            continue
        if not all(r in other.members for r in readers) or not _is_data(plan, other, tensor):
            continue
        members = draft.members | other.members
        stages = draft.stages + other.stages
        if _strip(plan, members, stages) > 2 * plan.target.l2 or not plan.is_legal(members):
            continue
        if plan.gain(members) <= _worth(plan, draft) + _worth(plan, other):
            continue
        plan.drop(other_number)
        parts = (*(draft.parts or (draft,)), *(other.parts or (other,)))
        plan.change(number, Draft(draft.root, members, draft.prologue | other.prologue, stages, parts))
        return


def _is_data(plan: Plan, draft: Draft, tensor: int) -> bool:
    """Whether a tensor is what a draft works on, rather than an operand of its epilogue."""
    network = plan.network
    if draft.stages[0] == "N":
        return any(network.roles[r] is OpClass.REDUCTION for r in network.readers(tensor)) or any(
            r in draft.prologue for r in network.readers(tensor)
        )
    readers = network.readers(tensor)
    return all(
        (network.data(r) == tensor and r == draft.root) or (r in draft.prologue and network.kinds[r] not in _ELSEWHERE)
        for r in readers
    )


def _worth(plan: Plan, draft: Draft) -> float:
    """What a draft saves if it stays by itself."""
    return 0.0 if plan.why_not(draft) else max(plan.gain(draft.members), 0.0)


def _strip(plan: Plan, members: set[int], stages: str) -> float:
    """Bytes that have to be near while one row of the output is computed: the rows under the window, and the row."""
    network = plan.network
    most = 0.0
    for i in members:
        if network.roles[i] is OpClass.ROOT and network.is_depthwise(i):
            shape = network.shape(network.data(i))
            out = network.shape(network.outs[i][0])
            dilation = getattr(network.ops[i].builtin_options, "dilation_h_factor", 1)
            rows = (network.window(i)[0] - 1) * dilation + 1 if "PD" in stages else 0
            most = max(
                most,
                rows * network.bytes(network.data(i)) / max(shape[0] * shape[1], 1)
                + network.bytes(network.outs[i][0]) / max(out[0] * out[1], 1),
            )
    return most
