"""Runs rules over a model to a fixed point and keeps the outcome of every candidate.

Rules are offered operators in execution order, and each operator to the rules in the order of
:func:`litefuse.fusions.rules`. When a rule applies, the operators around the change are offered again. Once nothing
around a change applies any more, the whole subgraph is walked again, until such a walk changes nothing: the refusals
of that last walk are what is reported. Every rule makes the graph smaller, or moves work strictly upstream or into
constants, so this ends; a limit guards against a pair of rules that undo each other, and says so.

Decompositions of composites are left alone: they are the composite's definition, not part of the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from litefuse.errors import LitefuseError, UsageError
from litefuse.fusions.rule import Applied, ModelRule, Numerics, Refused, Rule
from litefuse.graph.compact import compact
from litefuse.graph.graph import Graph, Location
from litefuse.schema.model import Model
from litefuse.schema.tables import Operator, StableHLOCompositeOptions

# How far around a change operators are offered again at once; what lies further waits for the next walk.
_NEIGHBOURHOOD = 4
_NEIGHBOURS = 256


@dataclass(frozen=True)
class Candidate:
    """One place where a rule applied or declined."""

    rule: str
    location: Location
    applied: bool
    reason: str


@dataclass
class FusionReport:
    """The outcome of every candidate, applied ones in the order of application."""

    applied: list[Candidate] = field(default_factory=list)
    refused: list[Candidate] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What else the user should know, such as metadata that had to be dropped."""

    def counts(self) -> dict[str, int]:
        """How often each rule was applied."""
        counts: dict[str, int] = {}
        for candidate in self.applied:
            counts[candidate.rule] = counts.get(candidate.rule, 0) + 1
        return counts


def run(
    model: Model,
    rules: Sequence[Rule],
    progress: Callable[[str], None] | None = None,
    *,
    keep: Iterable[str] = (),
) -> FusionReport:
    """Rewrites ``model`` in place with ``rules`` and returns what happened.

    Args:
        model: any model; unknown operators, custom operators and control flow are left as they are.
        rules: the rules to use, in order.
        progress: called with a line of text now and then.
        keep: names of tensors that must stay as they are, with the operators that compute them.

    Raises:
        UsageError: a name in ``keep`` is not that of a tensor.
        LitefuseError: the rules do not come to an end, which is a defect of litefuse.
    """
    report = FusionReport()
    keep = frozenset(keep)
    missing = keep - {tensor.name for subgraph in model.subgraphs for tensor in subgraph.tensors}
    if missing:
        raise UsageError(
            f"no tensor is called `{min(missing)}`, which was to be kept; `litefuse inspect --json` lists them"
        )
    left_alone = decompositions(model)
    before = [list(subgraph.operators) for subgraph in model.subgraphs]
    for index in range(len(model.subgraphs)):
        if index in left_alone:
            continue
        graph = Graph(model, index, keep)
        _Settler(graph, rules, report).settle(progress)
        graph.commit()
    for rule in rules:
        done = rule.finish(model) if isinstance(rule, ModelRule) else None
        if done is not None:
            report.applied.append(Candidate(rule.name, Location(0, -1, "MODEL", "-"), True, str(done)))
    report.notes.extend(compact(model, before))
    return report


class _Settler:
    """Applies rules to one subgraph until none applies."""

    def __init__(self, graph: Graph, rules: Sequence[Rule], report: FusionReport) -> None:
        self.graph = graph
        self.report = report
        self.refused: dict[tuple[str, Location], Candidate] = {}
        self.by_kind: dict[int, list[Rule]] = {}
        for rule in rules:
            for kind in rule.kinds:
                self.by_kind.setdefault(kind, []).append(rule)
        self.limit = 16 * sum(1 for _ in graph.operators()) + 1000

    def settle(self, progress: Callable[[str], None] | None) -> None:
        walk = 0
        while True:
            walk += 1
            if progress:
                progress(f"subgraph {self.graph.index}, walk {walk}")
            self.refused.clear()
            if not self._walk():
                break
        self.report.refused.extend(self.refused.values())

    def _walk(self) -> bool:
        """Offers every operator once, and those around changes again; returns whether anything changed."""
        graph = self.graph
        changed = False
        for op in graph.operators():
            if not self._offer(op):
                continue
            changed = True
            queue = deque(self._around(graph.take_touched()))
            waiting = set(queue)
            while queue:
                near = queue.popleft()
                waiting.discard(near)
                if near in graph and self._offer(near):
                    for more in self._around(graph.take_touched()):
                        if more not in waiting:
                            waiting.add(more)
                            queue.append(more)
        return changed

    def _offer(self, op: Operator) -> bool:
        graph, changed = self.graph, False
        if graph.is_kept(op):
            return False
        for rule in self.by_kind.get(graph.kind(op), ()):
            where = graph.where(op)
            outcome = rule.apply(graph, op)
            if isinstance(outcome, Applied):
                self.report.applied.append(Candidate(rule.name, where, True, str(outcome)))
                if len(self.report.applied) > self.limit:
                    raise LitefuseError(
                        f"rule `{rule.name}` does not come to an end at {where}; please report this file"
                    )
                changed = True
                if op not in graph:
                    break
            elif isinstance(outcome, Refused):
                self.refused[rule.name, where] = Candidate(rule.name, where, False, str(outcome))
        return changed

    def _around(self, operators: list[Operator]) -> list[Operator]:
        """The operators within a few steps of the given ones, nearest first."""
        graph = self.graph
        found = dict.fromkeys(operators)
        edge = operators
        for _ in range(_NEIGHBOURHOOD):
            following: dict[Operator, None] = {}
            for op in edge:
                for tensor in op.inputs:
                    maker = graph.producer(tensor)
                    if maker is not None:
                        following[maker] = None
                for tensor in op.outputs:
                    following.update(dict.fromkeys(graph.readers(tensor)))
            edge = [op for op in following if op not in found]
            found.update(dict.fromkeys(edge))
            if not edge or len(found) > _NEIGHBOURS:
                break
        return list(found)


def decompositions(model: Model) -> frozenset[int]:
    """Indices of the subgraphs that are decompositions of composites."""
    return frozenset(
        op.builtin_options_2.decomposition_subgraph_index
        for subgraph in model.subgraphs
        for op in subgraph.operators
        if isinstance(op.builtin_options_2, StableHLOCompositeOptions)
    )


# What each level of `--level` allows. By default, integers that a model computes stay as they are.
LEVELS: dict[str, frozenset[Numerics]] = {
    "exact": frozenset({Numerics.EXACT}),
    "default": frozenset({Numerics.EXACT, Numerics.REASSOCIATED, Numerics.REPAIR}),
    "aggressive": frozenset(Numerics),
}


def select(
    rules: Iterable[Rule],
    disabled: Iterable[str] = (),
    classes: Iterable[Numerics] = Numerics,
    *,
    only: Iterable[str] = (),
) -> list[Rule]:
    """The rules of the given classes, without those disabled by name and, if any are named, ``only`` those.

    Raises UsageError for an unknown name.
    """
    rules = list(rules)
    disabled, only, classes = set(disabled), set(only), set(classes)
    unknown = (disabled | only) - {rule.name for rule in rules}
    if unknown:
        raise UsageError(f"there is no rule `{min(unknown)}`; `litefuse rules` lists them all")
    return [r for r in rules if r.name not in disabled and (not only or r.name in only) and r.numerics in classes]
