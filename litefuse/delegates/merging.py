"""Joins small regions that lie next to one another.

Each region costs the runtime a call, which is long for a network of tiny operators. Where everything that two regions
use stays in the second cache, how they are cut into strips does not matter, and one region is as good as two. Large
regions stay apart: the delegate would choose one height of strips for both.
"""

from __future__ import annotations

from litefuse.delegates.growth import Draft, Plan

MERGED = "*"
"""Stands for the stages of a draft that was joined from several."""
_SHARE = 0.5  # of the second cache: what the runtime and the regions around use wants room, too


def merge_small(plan: Plan) -> None:
    """Joins drafts of which one reads what the other computes, as long as all that they use is small."""
    network = plan.network
    waiting = sorted(plan.drafts, key=lambda number: min(plan.drafts[number].members))
    for number in waiting:
        while number in plan.drafts:
            draft = plan.drafts[number]
            readers = (r for t in network.outputs_of(draft.members) for r in network.readers(t))
            others = dict.fromkeys(network.owner[r] for r in readers)
            other = next((n for n in others if n in plan.drafts and n != number and _fit(plan, draft, n)), None)
            if other is None:
                break
            behind = plan.drop(other)
            members, prologue = draft.members | behind.members, draft.prologue | behind.prologue
            parts = (*(draft.parts or (draft,)), *(behind.parts or (behind,)))
            plan.change(number, Draft(draft.root, members, prologue, MERGED, parts))


def _fit(plan: Plan, draft: Draft, other: int) -> bool:
    members = draft.members | plan.drafts[other].members
    cost = plan.model.cost(plan.network, members)
    used = cost.bytes_in + cost.bytes_out + cost.bytes_constants + cost.bytes_internal
    return used <= _SHARE * plan.target.l2 and plan.is_legal(members)
