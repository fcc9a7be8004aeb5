"""Random graphs: what must hold whatever the rules meet.

A failure prints the graph as text, which can be put into a test as it is.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import pytest
from graphs import random_graph
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from litefuse.check import check
from litefuse.fusions import LEVELS, Applied, Numerics, Rule, rules, run, select
from litefuse.fusions.rule import Outcome
from litefuse.graph import Graph
from litefuse.graph.text import from_text, to_text
from litefuse.schema import Model, deepcopy, to_bytes
from litefuse.schema.operators import Op, builtin_code
from litefuse.schema.tables import Operator
from litefuse.schema.validate import validate

RULES = select(rules(), classes=LEVELS["aggressive"])
LONG = range(100_000, 103_000)


def errors(model: Model) -> list[str]:
    return [str(problem) for problem in validate(model) if problem.severity == "error"]


def holds(model: Model, used: Sequence[Rule]) -> None:
    """Asserts all that is promised of a rewrite by some rules."""
    after = deepcopy(model)
    report = run(after, used)
    if not report.applied:
        return
    assert errors(after) == []
    twin = deepcopy(model)
    run(twin, used)
    assert to_bytes(after) == to_bytes(twin), "two runs gave different files"
    again = run(twin, used)
    assert not again.applied, f"a second run goes on: {again.applied}"
    order = list(Numerics)
    numerics = max((rule.numerics for rule in used if rule.name in report.counts()), key=order.index)
    deviation = max((rule.deviation for rule in used if rule.name in report.counts()), default=0.0)
    compared = check(model, after, numerics=numerics, deviation=deviation)
    assert compared.ok, f"{numerics} by {report.counts()}: {[o for o in compared.outputs if not o.ok]}"


def each_holds(model: Model) -> None:
    """Asserts what is promised of each rule alone."""
    kinds = {builtin_code(code) for code in model.operator_codes}
    for rule in RULES:
        if rule.kinds & kinds:
            try:
                holds(model, [rule])
            except Exception as error:
                raise AssertionError(f"with `{rule.name}` alone: {error}") from error


def refusals_change_nothing(model: Model) -> None:
    """Asserts that rules which do not apply leave the graph as it was."""
    kinds = {builtin_code(code) for code in model.operator_codes}
    before = to_text(model, limit=None)
    for rule in RULES:
        if rule.kinds & kinds:
            after = deepcopy(model)
            if not run(after, [rule]).applied:
                assert to_text(after, limit=None) == before, rule.name


def swept(seeds: range, most: int) -> None:
    for seed in seeds:
        text = random_graph(random.Random(seed), most)
        model = from_text(text)
        assert errors(model) == [], text
        try:
            holds(model, RULES)
            each_holds(model)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}\n{text}") from error


@settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(st.randoms(use_true_random=False))
def test_all_rules_together(rnd: random.Random) -> None:
    text = random_graph(rnd)
    note(text)
    holds(from_text(text), RULES)


@pytest.mark.parametrize("start", range(0, 100, 25))
def test_each_rule_alone(start: int) -> None:
    swept(range(start, start + 25), 6)


def test_refusals_change_nothing() -> None:
    for seed in range(20):
        text = random_graph(random.Random(seed))
        try:
            refusals_change_nothing(from_text(text))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}\n{text}") from error


class Wrong(Rule):
    """Takes RELU6 for RELU."""

    name = "wrong"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.RELU6})

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        graph.replace(op, Op.RELU, op.inputs)
        return Applied("")


class Unsettled(Rule):
    """Adds one negation of a negation in each run."""

    name = "unsettled"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.NEG})

    def __init__(self) -> None:
        self.done = False

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        if self.done:
            self.done = False
            return None
        self.done = True
        return Applied("nothing, in truth")


@pytest.mark.parametrize(
    ("rule", "kind", "complaint"),
    [(Wrong(), "RELU6", "Numerics.REASSOCIATED by {'wrong': 1}"), (Unsettled(), "NEG", "a second run goes on")],
    ids=["wrong", "unsettled"],
)
def test_bad_rules_are_found(rule: Rule, kind: str, complaint: str) -> None:
    model = from_text(f"graph main(%x: f32[1,64]) {{ %y = {kind}(%x) %z = TANH(%y) return %y, %z }}")
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        holds(model, [rule])


@pytest.mark.slow
@pytest.mark.parametrize("start", LONG[::100])
def test_many(start: int) -> None:
    swept(range(start, start + 100), 12)
