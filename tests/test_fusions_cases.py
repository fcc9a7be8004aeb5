"""What must not be fused, or must be fused with care: graphs as text, with the reasons that are given.

Among them the models on which other converters went wrong. Cases of a single rule family are in that family's tests.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from rules import kinds

from litefuse.check import check, run_model
from litefuse.fusions import LEVELS, Numerics, rules, run, select
from litefuse.graph.text import from_text, to_text
from litefuse.schema import deepcopy
from litefuse.schema.validate import validate

# Storing equal constants once changes no operator.
RULES = select(rules(), ["share-constants"], LEVELS["default"])


class Case(NamedTuple):
    text: str
    reasons: tuple[str, ...] = ()
    """Each a rule and its reason."""
    result: list[str] | None = None
    """The operators of the first graph afterwards; None where it stays as it is."""


SOFTMAX = """
  %m = REDUCE_MAX(%x, i32[1]=1) {keep_dims=true}
  %d = SUB(%x, %m)
  %e = EXP(%d)
  %s = SUM(%e, i32[1]=1) {keep_dims=true}
  %y = DIV(%e, %s)
"""


def main(inputs: str, statements: str, *, rest: str = "") -> str:
    return f"graph main({inputs}) {{\n{statements}\n}}\n{rest}"


X = "%x: f32[1,4,4,4]"
CONV = "%a = CONV_2D(%x, w[4,1,1,4], b[4])"

CASES = {
    # -- of other converters ---------------------------------------------------------------------------------------
    # The factor went to the wrong axis of the square weights.
    "tensorflow#39572": Case(
        main("%x: f32[?,6]", "%a = FULLY_CONNECTED(%x, w[6,6], b[6]) %b = MUL(%a, s[6]) %y = ADD(%b, t[6]) return %y"),
        result=["FULLY_CONNECTED"],
    ),
    # A factor of one element before and behind two inputs and one output.
    "tensorflow#61967": Case(
        main(
            "%x: f32[1,2]",
            """
            %a = ADD(%x, m1[1]=-4.0)
            %b = MUL(%a, r[1]=-7.0)
            %c = FULLY_CONNECTED(%b, w[1,2]=(0.0, 0.5), b[1]=-4.0)
            %d = MUL(%c, r)
            %e = ADD(%d, m2[1]=1.0)
            %y = MUL(%e, r)
            return %y""",
        ),
        result=["FULLY_CONNECTED"],
    ),
    # The multiplication widens [4, 4, 1] to [4, 4, 2], which is what the weights expect.
    "tensorflow#124103": Case(
        main("%x: f32[4,4,1]", "%a = MUL(%x, s[2]) %y = FULLY_CONNECTED(%a, w[4,2], _) {keep_num_dims=true} return %y")
    ),
    "tensorflow#124103, by an addition": Case(
        main("%x: f32[4,1]", "%a = ADD(%x, s[2]) %y = FULLY_CONNECTED(%a, w[4,2], _) return %y")
    ),
    # The constant gives the result another dimension, or more rows.
    "tensorflow#124048": Case(
        main("%x: f32[3,2]", "%a = FULLY_CONNECTED(%x, w[2,2], _) %y = ADD(%a, t[1,1,2]) return %y")
    ),
    "tensorflow#124013": Case(
        main("%x: f32[1,2]", "%a = FULLY_CONNECTED(%x, w[2,2], _) %y = ADD(%a, t[5,2]) return %y")
    ),
    # One constant for each row, of which there are as many as there are columns.
    "tensorflow#61150": Case(
        main("%x: f32[2,2]", "%a = FULLY_CONNECTED(%x, w[2,2], _) %y = ADD(%a, t[2,1]) return %y"),
        (
            "batch-norm-into-producer: the constant varies along axis 0, which is not the channel axis of "
            "FULLY_CONNECTED #0 `a`",
        ),
    ),
    # -- shapes and axes -------------------------------------------------------------------------------------------
    "softmax over one axis, normalised over another": Case(
        main("%x: f32[2,4]", SOFTMAX.replace("SUM(%e, i32[1]=1)", "SUM(%e, i32[1]=0)") + "return %y"),
        result=["REDUCE_MAX", "SUB", "REDUCE_MAX", "SUB", "EXP", "SUM", "DIV"],
    ),
    "sums that are broadcast along the other axis of a square": Case(
        main("%x: f32[4,4]", SOFTMAX.replace("SUM(%e, i32[1]=1) {keep_dims=true}", "SUM(%e, i32[1]=1)") + "return %y")
    ),
    "split and joined along another axis": Case(
        main("%x: f32[4,4]", "%a, %b = SPLIT(i32[]=1, %x) %y = CONCATENATION(%a, %b) {axis=0} return %y")
    ),
    "split and joined in another order": Case(
        main("%x: f32[4,4]", "%a, %b = SPLIT(i32[]=1, %x) %y = CONCATENATION(%b, %a) {axis=1} return %y")
    ),
    "a factor for each pair of channels, seen through a reshaping": Case(
        main(
            "%x: f32[1,4,4,2]",
            """
            %a = DEPTHWISE_CONV_2D(%x, w[1,3,3,4], b[4]) {depth_multiplier=2, padding=VALID}
            %b = RESHAPE(%a, i32[5]=(1, 2, 2, 2, 2))
            %y = MUL(%b, s[2])
            return %y""",
        ),
        result=["DEPTHWISE_CONV_2D", "RESHAPE"],
    ),
    # -- other readers ---------------------------------------------------------------------------------------------
    "an output on each step": Case(
        main(X, f"{CONV} %b = MUL(%a, s[4]) %y = RELU(%b) return %a, %b, %y"),
        (
            "batch-norm-into-producer: output of CONV_2D #0 `a` is also an output of the model",
            "fuse-activation: output of MUL #1 `b` is also an output of the model",
        ),
    ),
    "softmax whose exponentials are an output": Case(
        main("%x: f32[2,4]", SOFTMAX + "return %y, %e"),
        ("softmax: output of EXP #2 `e` is also an output of the model",),
    ),
    "a reshaped output": Case(
        main("%x: f32[2,4]", "%a = RESHAPE(%x, i32[1]=8) %y = RESHAPE(%a, i32[2]=(4, 2)) return %y, %a"),
        ("merge-reshapes: output of RESHAPE #0 `a` is also an output of the model",),
    ),
    # -- numbers ---------------------------------------------------------------------------------------------------
    "a divisor of zero": Case(
        main(X, f"{CONV} %y = DIV(%a, s[4]=(1.0, 0.0, 2.0, 3.0)) return %y"),
        (
            "batch-norm-into-producer: the divisor `s` contains zero",
            "batch-norm-into-consumer: the divisor `s` contains zero",
            "divide-by-constant: the inverse of the divisor `s` is not an ordinary float32",
        ),
    ),
    "a factor that is not a number": Case(
        main(X, f"{CONV} %y = MUL(%a, s[4]=(1.0, nan, 2.0, 3.0)) return %y"),
        (
            "batch-norm-into-producer: the constant `s` is not finite",
            "batch-norm-into-consumer: the constant `s` is not finite",
        ),
    ),
    "a factor of zero": Case(main(X, f"{CONV} %y = MUL(%a, s[4]=(1.0, 0.0, 2.0, 3.0)) return %y"), result=["CONV_2D"]),
    "quantised with a scale of zero": Case(
        main("%x: i8[1,4]{scale=0.0}", "%a: i8[1,4]{scale=0.0} = RELU(%x) %y: i8[1,4]{scale=0.0} = RELU6(%a) return %y")
    ),
    "there and back between scales": Case(
        main(
            "%x: i8[1,4]{scale=0.1}",
            "%a: i8[1,4]{scale=0.2} = QUANTIZE(%x) %y: i8[1,4]{scale=0.1} = QUANTIZE(%a) return %y",
        ),
        ("quantize-quantize: 127 of 256 values would come out differently with some kernels",),
    ),
    # -- windows ---------------------------------------------------------------------------------------------------
    "an addition before zero padding": Case(
        main(X, "%a = ADD(%x, s[4]) %y = CONV_2D(%a, w[4,3,3,4], b[4]) {padding=SAME} return %y"),
        ("batch-norm-into-consumer: CONV_2D #1 `y` pads with zeros, to which the added constant must not reach",),
    ),
    "phases of which a stride skips elements": Case(
        main(
            "%x: f32[1,8,8,2]",
            """
            %a = SPACE_TO_BATCH_ND(%x, i32[2]=2, i32[2,2]=2)
            %b = CONV_2D(%a, w[4,3,3,2], b[4]) {padding=VALID, stride=2}
            %y = BATCH_TO_SPACE_ND(%b, i32[2]=2, i32[2,2]=0)
            return %y""",
        ),
        ("dilated-convolution: CONV_2D #1 `b` has a stride, with which it skips elements of each phase",),
    ),
    "padding before a dilated convolution": Case(
        main(
            "%x: f32[1,8,8,2]",
            """
            %a = PAD(%x, i32[4,2]=(0, 0, 2, 2, 2, 2, 0, 0))
            %y = CONV_2D(%a, w[4,3,3,2], b[4]) {dilation=2, padding=VALID}
            return %y""",
        ),
        result=["CONV_2D"],
    ),
    # -- state and control flow ------------------------------------------------------------------------------------
    "a variable": Case(
        main(
            "%x: f32[2,4]",
            "var %s: f32[2,4] %a = RELU(%s) %b = RELU6(%a) %y = ADD(%b, %x) return %y",
        )
    ),
    "operators that keep a state": Case(
        main(
            "%x: f32[1,4]",
            """
            var %s: f32[1,10]
            %a: f32[1,5] = SVDF(%x, w[5,4], t[5,2], _, %s) {rank=1}
            %b: f32[1,5] = SVDF(%x, w, t, _, %s) {rank=1}
            %y = ADD(%a, %b)
            return %y""",
        )
    ),
    "a variable read before and after it is assigned": Case(
        main(
            "%x: f32[1,4]",
            """
            CALL_ONCE() {init=@start}
            %h: resource[] = VAR_HANDLE() {shared_name="s"}
            %a: f32[1,4] = READ_VARIABLE(%h)
            %b = ADD(%a, %x)
            ASSIGN_VARIABLE(%h, %b)
            %c: f32[1,4] = READ_VARIABLE(%h)
            %y = SUB(%c, %a)
            return %y""",
            rest="""
            graph start() {
              %h: resource[] = VAR_HANDLE() {shared_name="s"}
              ASSIGN_VARIABLE(%h, f32[1,4]=1.0)
              return
            }""",
        )
    ),
    "random numbers": Case(
        main(
            "%x: f32[1,4]",
            """
            %a: f32[1,4] = RANDOM_UNIFORM(i32[2]=(1, 4)) {seed=1}
            %b: f32[1,4] = RANDOM_UNIFORM(i32[2]=(1, 4)) {seed=1}
            %c = SUB(%a, %b)
            %y = ADD(%c, %x)
            return %y""",
        )
    ),
    "across the boundary of a branch": Case(
        main(
            "%x: f32[1,4], %p: bool[]",
            """
            %a = FULLY_CONNECTED(%x, w[4,4], _)
            %b: f32[1,4] = IF(%p, %a) {then=@yes, else=@no}
            %y = MUL(%b, s[4])
            return %y""",
            rest="""
            graph yes(%x: f32[1,4]) { %y = MUL(%x, s[4]) return %y }
            graph no(%x: f32[1,4]) { %y = ADD(%x, s[4]) return %y }""",
        )
    ),
    "across the boundary of a loop": Case(
        main(
            "%x: f32[1,4]",
            """
            %r = RELU(%x)
            %n: i32[1], %a: f32[1,4] = WHILE(i32[1]=0, %r) {cond=@goes, body=@on}
            %y = RELU(%a)
            return %y""",
            rest="""
            graph goes(%n: i32[1], %x: f32[1,4]) { %y = LESS(%n, i32[1]=3) return %y }
            graph on(%n: i32[1], %x: f32[1,4]) { %m = ADD(%n, i32[1]=1) %y = RELU(%x) return %m, %y }""",
        )
    ),
    "a composite and its decomposition": Case(
        main(
            "%x: f32[1,4]",
            """
            %a: f32[1,4] = STABLEHLO_COMPOSITE(%x) {name="some.norm", decomposition=@definition}
            %y = MUL(%a, s[4])
            return %y""",
            rest="graph definition(%x: f32[1,4]) { %a = FULLY_CONNECTED(%x, w[4,4], _) %y = MUL(%a, s[4]) return %y }",
        )
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    before = from_text(case.text)
    after = deepcopy(before)
    report = run(after, RULES)
    assert tuple(f"{c.rule}: {c.reason}" for c in report.refused) == case.reasons
    if case.result is None:
        assert report.applied == []
        assert to_text(after, limit=None) == to_text(before, limit=None)
        return
    assert kinds(after) == case.result
    assert [p for p in validate(after) if p.severity == "error"] == []
    order = list(Numerics)
    used = [rule.numerics for rule in RULES if rule.name in report.counts()]
    compared = check(before, after, numerics=max(used, key=order.index), cases=4)
    assert not compared.skipped
    assert compared.ok, compared.outputs


def test_square_weights_are_scaled_along_their_rows() -> None:
    """tensorflow#39572, in numbers."""
    text = main(
        "%x: f32[1,2]",
        """
        %a = FULLY_CONNECTED(%x, w[2,2]=(1.0, 2.0, 3.0, 4.0), b[2]=(10.0, 20.0))
        %y = MUL(%a, s[2]=(2.0, 3.0))
        return %y""",
    )
    model = from_text(text)
    run(model, RULES)
    assert kinds(model) == ["FULLY_CONNECTED"]
    result = run_model(model, {"x": np.array([[1, 10]], np.float32)})
    assert result["y"].tolist() == [[2.0 * (1 + 20 + 10), 3.0 * (3 + 40 + 20)]]


def test_rules_apply_in_the_bodies_of_loops_and_branches() -> None:
    text = main(
        "%x: f32[1,4], %p: bool[]",
        "%y: f32[1,4] = IF(%p, %x) {then=@yes, else=@no} return %y",
        rest="""
        graph yes(%x: f32[1,4]) { %a = FULLY_CONNECTED(%x, w[4,4], _) %y = ADD(%a, s[4]) return %y }
        graph no(%x: f32[1,4]) {
          %n: i32[1], %y: f32[1,4] = WHILE(i32[1]=0, %x) {cond=@goes, body=@on}
          return %y
        }
        graph goes(%n: i32[1], %x: f32[1,4]) { %y = LESS(%n, i32[1]=3) return %y }
        graph on(%n: i32[1], %x: f32[1,4]) {
          %m = ADD(%n, i32[1]=1)
          %a = FULLY_CONNECTED(%x, w[4,4], b[4])
          %b = MUL(%a, s[4])
          %y = RELU6(%b)
          return %m, %y
        }""",
    )
    before = from_text(text)
    after = deepcopy(before)
    run(after, RULES)
    assert [kinds(after, i) for i in range(5)] == [
        ["IF"],
        ["FULLY_CONNECTED"],
        ["WHILE"],
        ["LESS"],
        ["ADD", "FULLY_CONNECTED+RELU6"],
    ]
    compared = check(before, after, numerics=Numerics.REASSOCIATED, cases=4)
    assert not compared.skipped
    assert compared.ok
