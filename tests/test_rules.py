"""Each rule's own example: the rule applies to it, keeps its promise there, and is described."""

from __future__ import annotations

import inspect

import pytest

from litefuse.check import check
from litefuse.fusions import Rule, rules, run
from litefuse.fusions.examples import example
from litefuse.graph.text import from_text, to_text
from litefuse.schema import Model, deepcopy, diff, to_bytes
from litefuse.schema.validate import validate

BY_NAME = {rule.name: rule for rule in rules()}


def problems(model: Model) -> list[str]:
    return [str(problem) for problem in validate(model)]


@pytest.fixture(params=BY_NAME)
def rule(request: pytest.FixtureRequest) -> Rule:
    return BY_NAME[request.param]


def test_rules_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(rules())
    assert {r.name for r in rules(widen_fp16=True)} == set(BY_NAME)


def test_example(rule: Rule) -> None:
    model = from_text(rule.example)
    assert problems(model) == []
    after = deepcopy(model)
    report = run(after, [rule])
    assert report.counts().keys() == {rule.name}
    assert report.refused == []
    assert problems(after) == []
    assert list(diff(model, after)) != []
    compared = check(model, after, numerics=rule.numerics, deviation=rule.deviation, cases=4)
    assert compared.skipped is None
    assert compared.runs >= 4
    assert compared.ok, [output for output in compared.outputs if not output.ok]
    settled = to_bytes(after)
    assert run(after, [rule]).applied == []
    assert to_bytes(after) == settled


def test_examples_are_small(rule: Rule) -> None:
    """All operators take part but for one, which may keep a result from being an output."""
    model = from_text(rule.example)
    statements = to_text(model).splitlines()[1:-2]
    run(model, [rule])
    same = set(statements) & set(to_text(model).splitlines())
    assert len(same) <= 1 or same == set(statements)


def test_example_as_shown(rule: Rule) -> None:
    before, after = example(rule)
    assert to_text(from_text(before), limit=None) == to_text(from_text(rule.example), limit=None)
    assert after is not None
    # Only what changes in nothing but the buffers may look the same.
    assert (before == after) == (rule.name == "share-constants")


def test_description_begins_with_a_line_that_stands_alone(rule: Rule) -> None:
    # Neither is inherited from the rule that it may be a kind of.
    assert {"__doc__", "example"} <= vars(type(rule)).keys()
    first, *rest = inspect.cleandoc(type(rule).__doc__ or "").splitlines()
    assert first.endswith(".")
    assert not first.startswith(("The same", "Likewise", "Also"))
    assert rest[:1] in ([], [""])
