"""The order in which rules meet operators, the end of it, and what is reported."""

from __future__ import annotations

import numpy as np
import pytest
from rules import apply, kinds

from litefuse.errors import LitefuseError
from litefuse.fusions import Numerics, PatternRule, Rule, batch_norm, run, select
from litefuse.fusions.pipeline import decompositions
from litefuse.fusions.rule import Applied, Outcome
from litefuse.graph import Graph, Match, Node, Value
from litefuse.graph.build import Builder
from litefuse.schema import Model
from litefuse.schema.operators import Op, operator_code
from litefuse.schema.tables import Operator, StableHLOCompositeOptions

x = Value("x")


class AbsOfNeg(PatternRule):
    """|-x| = |x|."""

    name = "abs-of-neg"
    numerics = Numerics.EXACT
    patterns = (Node(Op.ABS, Node(Op.NEG, x)),)

    def check(self, found: Match) -> str | None:
        return None

    def rewrite(self, found: Match) -> str | None:
        found.graph.replace(found.root, Op.ABS, [found["x"]])
        return "sign dropped"


class Restless(Rule):
    """Swaps SIN and COS for ever."""

    name = "restless"
    numerics = Numerics.REPAIR
    kinds = frozenset({Op.SIN, Op.COS})

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        graph.replace(op, Op.COS if graph.kind(op) is Op.SIN else Op.SIN, op.inputs)
        return Applied("")


def chain(*ops: Op, extra: int | None = None) -> Model:
    b = Builder()
    tensors = [b.input("x", [2, 3])]
    for op in ops:
        tensors.append(b.op(op, [tensors[-1]], shape=[2, 3]))
    return b.model([tensors[-1]] + ([tensors[extra]] if extra is not None else []))


def test_report() -> None:
    model = chain(Op.NEG, Op.NEG, Op.NEG, Op.ABS, Op.EXP)
    report = apply(model, AbsOfNeg())
    assert kinds(model) == ["ABS", "EXP"]
    assert report.counts() == {"abs-of-neg": 3}
    assert str(report.applied[0].location) == "ABS #3 `abs_3`"
    assert report.applied[0].reason == "sign dropped"
    assert report.refused == []


def test_refusals_name_what_is_in_the_way() -> None:
    model = chain(Op.NEG, Op.ABS, extra=1)
    report = apply(model, AbsOfNeg())
    (refused,) = report.refused
    assert not refused.applied
    assert refused.reason == "output of NEG #0 `neg_0` is also an output of the model"


def test_rules_that_undo_each_other_are_stopped() -> None:
    with pytest.raises(LitefuseError, match="`restless` does not come to an end at"):
        apply(chain(Op.SIN), Restless())


def test_long_chains_settle() -> None:
    b = Builder()
    c, w, bias = b.constant("c", [1.01] * 4), b.constant("w", np.eye(4, dtype=np.float32).reshape(4, 1, 1, 4)), None
    bias = b.constant("b", [0.0] * 4)
    y = b.input("x", [1, 2, 2, 4])
    for i in range(500):
        y = b.op(Op.MUL if i % 2 else Op.ADD, [y, c], shape=[1, 2, 2, 4])
    model = b.model([b.op(Op.CONV_2D, [y, w, bias], shape=[1, 2, 2, 4])])
    report = apply(model, *batch_norm.RULES)
    assert kinds(model) == ["CONV_2D"]
    assert sum(report.counts().values()) == 500


def test_all_subgraphs_but_decompositions() -> None:
    model, other, decomposition = (chain(Op.NEG, Op.ABS) for _ in range(3))
    model.subgraphs += [other.subgraphs[0], decomposition.subgraphs[0]]
    main = model.subgraphs[0]
    main.operators.append(
        Operator(
            opcode_index=len(model.operator_codes),
            inputs=main.inputs,
            outputs=[len(main.tensors)],
            builtin_options_2=StableHLOCompositeOptions(name="test.composite", decomposition_subgraph_index=2),
        )
    )
    main.tensors.append(main.tensors[0].replace(name="composite"))
    model.operator_codes.append(operator_code(Op.STABLEHLO_COMPOSITE))
    assert decompositions(model) == {2}
    report = run(model, [AbsOfNeg()])
    assert [c.location.subgraph for c in report.applied] == [0, 1]
    assert str(report.applied[1].location) == "ABS #1 `abs_1` of subgraph 1"
    assert kinds(model) == ["ABS", "STABLEHLO_COMPOSITE"]
    assert kinds(model, 1) == ["ABS"]
    assert kinds(model, 2) == ["NEG", "ABS"]


def test_selection() -> None:
    rules = [AbsOfNeg(), Restless()]
    assert select(rules) == rules
    assert select(rules, disabled=["restless"]) == rules[:1]
    assert select(rules, classes=[Numerics.REPAIR]) == rules[1:]
    with pytest.raises(LitefuseError, match="no rule `nonsense`"):
        select(rules, disabled=["nonsense"])


def test_only_some_rules() -> None:
    rules = [AbsOfNeg(), Restless()]
    assert select(rules, only=["restless"]) == rules[1:]
    assert select(rules, only=["restless"], disabled=["restless"]) == []
    with pytest.raises(LitefuseError, match="no rule `nonsense`"):
        select(rules, only=["nonsense"])


def test_kept_tensors_stay() -> None:
    for name, reason in (("neg_0", ["output of NEG #0 `neg_0` is kept as it is by request"]), ("abs_1", [])):
        model = chain(Op.NEG, Op.ABS, Op.EXP)
        report = run(model, [AbsOfNeg()], keep=[name])
        assert kinds(model) == ["NEG", "ABS", "EXP"]
        assert [c.reason for c in report.refused] == reason
    with pytest.raises(LitefuseError, match="no tensor is called `nonsense`"):
        run(chain(Op.NEG), [], keep=["nonsense"])


def test_weights_of_a_kept_operator_stay() -> None:
    b = Builder()
    y = b.op(Op.MUL, [b.input("x", [1, 2, 2, 4]), b.constant("s", [1.0, 2.0, 3.0, 4.0])])
    w, bias = b.constant("w", np.eye(4, dtype=np.float32).reshape(4, 1, 1, 4)), b.constant("b", [0.0] * 4)
    model = b.model([b.op(Op.CONV_2D, [y, w, bias], name="conv", shape=[1, 2, 2, 4])])
    report = run(model, batch_norm.RULES, keep=["conv"])
    assert kinds(model) == ["MUL", "CONV_2D"]
    assert [c.reason for c in report.refused] == ["CONV_2D #1 `conv` is kept as it is by request"]


def test_progress_is_told() -> None:
    lines: list[str] = []
    run(chain(Op.NEG, Op.ABS), [AbsOfNeg()], lines.append)
    assert lines == ["subgraph 0, walk 1", "subgraph 0, walk 2"]
