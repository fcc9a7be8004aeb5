"""Which operators of a graph become regions.

In this order, each step taking what the ones before it left:

1. attention, and reductions whose results meet their inputs again (norms, softmax, squeeze-and-excite);
2. convolutions and matrix products with what follows them up to a post-dominator, then what precedes them;
3. chains of these that can be computed strip by strip;
4. what does not pay is given up; the free rest forms clusters;
5. what lies between regions, or beside them, and takes the delegate no longer than the stock runtime becomes regions
   too, single operators among them: where the stock runtime has to stop and go on again it loses more than that;
6. small regions next to one another become one.

What pays is decided by a :class:`~litefuse.delegates.cost.CostModel`. Every set that was looked at and is not a region
is reported with its reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from litefuse.delegates.chains import merge_chains
from litefuse.delegates.clusters import add_cells, add_clusters
from litefuse.delegates.cost import CostModel, Eager, Roofline
from litefuse.delegates.diamonds import add_attention, add_reductions
from litefuse.delegates.fast import is_small, why_slow
from litefuse.delegates.growth import Draft, Plan
from litefuse.delegates.merging import MERGED, merge_small
from litefuse.delegates.naming import KINDS, kind_of
from litefuse.delegates.network import Network
from litefuse.delegates.regions import Partition, Region
from litefuse.delegates.roots import add_prologues, add_roots
from litefuse.delegates.targets import Target
from litefuse.errors import UsageError
from litefuse.fusions.pipeline import Candidate
from litefuse.graph.graph import Graph
from litefuse.schema.enums import TensorType


def partition(
    graph: Graph,
    target: Target,
    *,
    disable: Iterable[str] = (),
    keep: Iterable[str] = (),
    model: CostModel | None = None,
    slow: bool | None = None,
) -> Partition:
    """Forms the regions of one subgraph. The graph is not changed.

    Args:
        graph: the subgraph, its operators in execution order.
        target: what the regions are to run on.
        disable: kinds of regions that are not wanted.
        keep: names of tensors that must stay as they are, with the operators that compute them.
        model: where the figures come from; the model of the target when None.
        slow: whether there may be operators in regions that only the delegate's reference kernels run. When None, only
            with the model Eager, and for targets without floats, which have kernels of their own for integers.

    Raises:
        UsageError: there is no such kind, or no such tensor.
    """
    disable, keep = _names(disable, set(KINDS), "kind of region"), frozenset([keep] if isinstance(keep, str) else keep)
    missing = keep - {tensor.name for tensor in graph.tensors if tensor.name is not None}
    if missing:
        raise UsageError(f"no tensor is called `{min(missing)}`, which was to be kept")
    network = Network(graph)
    model = Roofline(target) if model is None else model
    result = Partition(target, stock_us=sum(model.operator_us(network, i) for i in range(len(network.ops))))
    if not target.delegate:
        return result
    kept = [
        i for i, op in enumerate(network.ops) if graph.is_kept(op) or any(graph.name(t) in keep for t in op.outputs)
    ]
    if slow is None:
        slow = isinstance(model, Eager) or TensorType.FLOAT32.name not in target.types
    without = set() if slow else _slow(network)
    _restrict(network, target, without)
    plan = Plan(network, target, model, kept)
    add_attention(plan)
    add_reductions(plan)
    add_roots(plan)
    add_prologues(plan)
    merge_chains(plan)
    refused: dict[int, Candidate] = {}
    spare = _give_up(plan, disable, without, refused)
    add_clusters(plan)
    add_cells(plan)
    spare += _give_up(plan, disable, without, refused)
    if not slow:
        _fill(plan, disable, without, refused, spare)
        if "small_network" not in disable:
            merge_small(plan)
    for draft in sorted(plan.drafts.values(), key=lambda d: min(d.members)):
        result.regions.append(_region(plan, draft))
    for i, reason in enumerate(network.reasons):
        if reason is not None and not network.feeds[i]:
            refused.setdefault(i, Candidate(network.kinds[i].name.lower(), graph.where(network.ops[i]), False, reason))
    result.refused = [refused[i] for i in sorted(refused)]
    return result


def _names(given: Iterable[str], known: set[str], what: str) -> frozenset[str]:
    names = frozenset([given] if isinstance(given, str) else given)
    unknown = names - known
    if unknown:
        raise UsageError(f"there is no {what} `{min(unknown)}`; there are {', '.join(sorted(known))}")
    return names


def _slow(network: Network) -> set[int]:
    """The operators that only the delegate's reference kernels could run."""
    return {i for i, reason in enumerate(network.reasons) if reason is None and why_slow(network, i) is not None}


def _restrict(network: Network, target: Target, slow: Collection[int]) -> None:
    """Leaves out what the target has no types or no fast kernels for."""
    for i, op in enumerate(network.ops):
        if network.reasons[i] is not None:
            continue
        types = [network.graph.type(t).name for t in (*network.ins[i], *network.outs[i])]
        wrong = next((t for t in types if t not in target.types), None)
        if wrong is not None:
            network.reasons[i] = f"{network.graph.kind(op).name} of {wrong} does not run in regions on {target.name}"
        elif i in slow and not is_small(network, i):
            network.reasons[i] = why_slow(network, i)


def _give_up(plan: Plan, disable: frozenset[str], slow: Collection[int], refused: dict[int, Candidate]) -> list[Draft]:
    """Takes back the drafts that do not pay or are not wanted, with the reason; returns those that do not pay."""
    network = plan.network
    given_up: list[Draft] = []
    todo = list(plan.drafts.items())
    while todo:
        number, draft = todo.pop()
        kind = kind_of(network, draft.members, draft.prologue)
        if kind in disable:
            reason: str | None = f"regions of kind {kind} are switched off"
        elif all(i in slow for i in draft.members):
            reason = "the delegate has no fast kernel for any of its operators"
        else:
            reason = plan.why_not(draft)
        if reason is None:
            continue
        plan.drop(number)
        todo += [(plan.add(part), part) for part in draft.parts]
        where = network.graph.where(network.ops[draft.root])
        refused.setdefault(draft.root, Candidate(kind, where, False, reason))
        if kind not in disable:
            given_up.append(draft)
    return given_up


def _fill(
    plan: Plan,
    disable: frozenset[str],
    slow: Collection[int],
    refused: dict[int, Candidate],
    spare: Sequence[Draft],
) -> None:
    """Makes regions of what is next to one and no slower in the delegate, until nothing more is."""
    network = plan.network
    singles = [Draft(i, {i}) for i in range(len(network.ops)) if network.is_free(i) and plan.effective({i})]
    # Larger ones first, since single operators would take their members.
    todo = [draft for draft in (*spare, *singles) if not any(i in slow for i in draft.members)]
    todo.sort(key=lambda draft: (-len(draft.members), min(draft.members)))
    changed = bool(plan.drafts)
    while changed:
        changed = False
        for draft in list(todo):
            if not all(network.is_free(i) for i in draft.members):
                todo.remove(draft)
            elif (
                _is_beside(plan, draft)
                and kind_of(network, draft.members, draft.prologue) not in disable
                and _keeps_up(plan, draft)
                and plan.is_legal(draft.members)
            ):
                plan.add(draft)
                if draft.root in refused and refused[draft.root].rule not in disable:
                    del refused[draft.root]
                todo.remove(draft)
                changed = True


def _keeps_up(plan: Plan, draft: Draft) -> bool:
    """Whether a draft, or each of those it is made of, is no slower in the delegate."""
    parts = [part.members for part in draft.parts] or [draft.members]
    return any(
        all(plan.model.keeps_up(plan.network, members) for members in candidates)
        for candidates in ([draft.members], parts)
    )


def _is_beside(plan: Plan, draft: Draft) -> bool:
    """Whether a draft reads what a region computes, or computes what a region reads."""
    network = plan.network
    makers = (network.producer(t) for t in network.inputs_of(draft.members))
    readers = (r for t in network.outputs_of(draft.members) for r in network.readers(t))
    return any(i is not None and network.owner[i] in plan.drafts for i in (*makers, *readers))


def _region(plan: Plan, draft: Draft) -> Region:
    network = plan.network
    order = sorted(draft.members)
    feeders = {network.position[op]: None for i in order for op in network.feeders(i)}
    operators = [network.ops[i] for i in sorted({*order, *feeders})]
    return Region(
        kind="small_network" if draft.stages == MERGED else kind_of(network, draft.members, draft.prologue),
        operators=operators,
        root=network.ops[draft.root],
        prologue=[network.ops[i] for i in order if i in draft.prologue],
        epilogue=[network.ops[i] for i in order if i not in draft.prologue and i != draft.root],
        inputs=network.inputs_of(draft.members),
        outputs=network.outputs_of(draft.members),
        cost=plan.model.cost(network, draft.members),
        copies=[network.ops[i] for i in sorted(feeders)],
    )
