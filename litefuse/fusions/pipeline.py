"""Runs rules over a model to a fixed point and keeps the outcome of every candidate.

Rules run in the order of :data:`litefuse.fusions.RULES`. Each pass walks every subgraph once, in execution order,
and offers each operator to each rule; passes go on until one changes nothing. Every rule makes the graph smaller or
moves work strictly upstream or into constants, so passes end; a limit guards against a pair of rules that undo each
other, and says so.

Decompositions of composites are left alone: they are the composite's definition, not part of the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from litefuse.errors import LitefuseError
from litefuse.fusions.rule import Applied, Numerics, Refused, Rule
from litefuse.graph.compact import compact
from litefuse.graph.graph import Graph, Location
from litefuse.schema.model import Model
from litefuse.schema.tables import StableHLOCompositeOptions

MAX_PASSES = 64


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


def run(model: Model, rules: Sequence[Rule], progress: Callable[[str], None] | None = None) -> FusionReport:
    """Rewrites ``model`` in place with ``rules`` and returns what happened.

    Args:
        model: any model; unknown operators, custom operators and control flow are left as they are.
        rules: the rules to use, in order.
        progress: called with a line of text now and then.

    Raises:
        LitefuseError: the rules do not come to an end, which is a defect of litefuse.
    """
    report = FusionReport()
    left_alone = decompositions(model)
    before = [list(subgraph.operators) for subgraph in model.subgraphs]
    by_kind: dict[int, list[Rule]] = {}
    for rule in rules:
        for kind in rule.kinds:
            by_kind.setdefault(kind, []).append(rule)
    for index in range(len(model.subgraphs)):
        if index in left_alone:
            continue
        graph = Graph(model, index)
        for number in range(MAX_PASSES):
            if progress:
                progress(f"subgraph {index}, pass {number + 1}")
            refused: dict[tuple[str, Location], Candidate] = {}
            changed = False
            for op in graph.operators():
                for rule in by_kind.get(graph.kind(op), ()):
                    where = graph.where(op)
                    outcome = rule.apply(graph, op)
                    if isinstance(outcome, Applied):
                        report.applied.append(Candidate(rule.name, where, True, str(outcome)))
                        changed = True
                        if op not in graph:
                            break
                    elif isinstance(outcome, Refused):
                        refused[rule.name, where] = Candidate(rule.name, where, False, str(outcome))
            if not changed:
                report.refused.extend(refused.values())
                break
        else:
            raise LitefuseError(
                f"subgraph {index} was still changing after {MAX_PASSES} passes; please report this file"
            )
        graph.commit()
    report.notes.extend(compact(model, before))
    return report


def decompositions(model: Model) -> frozenset[int]:
    """Indices of the subgraphs that are decompositions of composites."""
    return frozenset(
        op.builtin_options_2.decomposition_subgraph_index
        for subgraph in model.subgraphs
        for op in subgraph.operators
        if isinstance(op.builtin_options_2, StableHLOCompositeOptions)
    )


def select(rules: Iterable[Rule], disabled: Iterable[str] = (), classes: Iterable[Numerics] = Numerics) -> list[Rule]:
    """The rules of the given classes without those disabled by name. Raises LitefuseError for an unknown name."""
    rules = list(rules)
    names = {rule.name for rule in rules}
    for name in disabled:
        if name not in names:
            raise LitefuseError(f"there is no rule `{name}`; `litefuse rules` lists them all")
    return [r for r in rules if r.name not in set(disabled) and r.numerics in set(classes)]
