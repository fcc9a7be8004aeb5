"""What float32 got wrong, found by computing the elementwise parts of a graph in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litefuse.check import check
from litefuse.convert import convert
from litefuse.errors import CheckError
from litefuse.fusions import Numerics
from litefuse.graph import Graph
from litefuse.graph.build import Builder
from litefuse.graph.text import from_text
from litefuse.runtime import interpreter, quiet
from litefuse.schema import Model, to_bytes
from litefuse.schema.operators import Op
from litefuse.wide import failures, faults

SHAPE = (2, 8)


def model(body: Callable[[Builder, int], int]) -> Model:
    b = Builder()
    result = b.model([body(b, b.input("x", SHAPE))])
    result.subgraphs[0].tensors[result.subgraphs[0].outputs[0]].name = "y"
    return result


def softplus(b: Builder, x: int) -> int:
    return b.op(Op.LOG, [b.op(Op.ADD, [b.op(Op.EXP, [x]), b.constant("one", 1.0)])])


def softmax(b: Builder, x: int) -> int:
    exp = b.op(Op.EXP, [x])
    return b.op(Op.DIV, [exp, b.op(Op.SUM, [exp, b.constant("axis", [-1])], keep_dims=True)])


def scaled_softplus(b: Builder, x: int) -> int:
    """With a matrix behind it, so that what is wrong is not the output itself."""
    weights = b.constant("w", np.eye(8, dtype=np.float32)[::-1].copy())
    return b.op(Op.FULLY_CONNECTED, [softplus(b, x), weights, -1], shape=SHAPE)


def run(of: Model, x: Any) -> tuple[Graph, Callable[[int], Any]]:
    runner = interpreter(to_bytes(of), xnnpack=False, keep_all=True)
    with quiet():
        runner.allocate_tensors()
        runner.set_tensor(of.subgraphs[0].inputs[0], np.broadcast_to(np.float32(x), SHAPE))
        runner.invoke()
    return Graph(of), runner.get_tensor


@pytest.mark.parametrize(
    ("body", "x"), [(softplus, 300.0), (scaled_softplus, 300.0), (softmax, 300.0), (softmax, -300.0)]
)
def test_faults_are_found_where_they_leave_the_part(body: Callable[[Builder, int], int], x: float) -> None:
    graph, read = run(model(body), x)
    (fault,) = faults(graph, read)
    assert fault.location.kind == ("DIV" if body is softmax else "LOG")
    assert fault.right == pytest.approx(0.125 if body is softmax else x)
    assert list(failures(graph, read))[:1] == [
        f"{'EXP #0 `exp_0`' if x > 0 else 'DIV #2 `y`'} makes something that is not finite of finite numbers"
    ]


@pytest.mark.parametrize("body", [softplus, scaled_softplus, softmax])
@pytest.mark.parametrize("x", [0.0, 1.0, -5.0, 50.0, -60.0])
def test_what_is_right_is_no_fault(body: Callable[[Builder, int], int], x: float) -> None:
    graph, read = run(model(body), x)
    assert not list(faults(graph, read))
    assert not list(failures(graph, read))


@pytest.mark.parametrize("body", [softplus, scaled_softplus, softmax])
def test_repairs_are_confirmed_where_the_original_is_right(body: Callable[[Builder, int], int]) -> None:
    done = convert(model(body))
    assert done.numerics is Numerics.REPAIR
    assert done.check is not None
    assert done.check.ok
    assert any(
        "the original itself fails there" in n or "were not finite in the original" in n for n in done.check.notes
    )
    assert any("repaired 1 places" in note for note in done.fusions.notes)


def test_a_wrong_result_is_not_excused() -> None:
    """Neither a function that is wrong everywhere, nor one that goes wrong in the same cases."""
    original = model(softplus)

    def other(b: Builder, x: int) -> int:
        return b.op(Op.MAXIMUM, [x, b.constant("zero", 0.0)])

    assert not check(original, model(other), numerics=Numerics.REPAIR).ok

    def scaled(b: Builder, x: int) -> int:
        return b.op(Op.MUL, [softplus(b, x), b.constant("c", 1.01)])

    assert not check(original, model(scaled), numerics=Numerics.REPAIR).ok


def test_nothing_left_to_compare_is_an_error() -> None:
    def shifted(b: Builder, x: int) -> int:
        return softplus(b, b.op(Op.ADD, [b.op(Op.ABS, [x]), b.constant("far", 200.0)]))

    def right(b: Builder, x: int) -> int:
        return b.op(Op.ADD, [b.op(Op.ABS, [x]), b.constant("far", 200.0)])

    with pytest.raises(CheckError, match="itself fails in every case"):
        check(model(shifted), model(right), numerics=Numerics.REPAIR)
    done = convert(model(shifted))
    assert done.numerics is not Numerics.REPAIR
    assert any("repairs were left out" in note for note in done.fusions.notes)


# Graphs whose own infinities or NaNs are no reason to refuse a rewrite.
BORN = {
    "shared spelling": """graph main(%x: f32[1,6]) {
        %v1 = EXP(%x)  %v2 = ADD(%v1, c1[]=1.0)  %v3 = LOG(%v2)
        %v4 = EXP(%v2)  %v5 = ADD(%v4, c1)  %v6 = LOG(%v5)
        return %v3, %v6
    }""",
    "logarithms of negative numbers": """graph main(%x: f32[1,4,4,2]) {
        %v3 = LOG(%x)  %v4 = MAXIMUM(%v3, c4[]=0.0)
        return %v4
    }""",
    "quotients of zeros": """graph main(%v0: f32[3,8], %v1: f32[3,1]) {
        %v2 = DIV(%v0, %v1)  %v3 = NEG(%v2)  %v4 = EXP(%v3)  %v5 = ADD(%v4, c1[]=1.0)  %v6 = DIV(c2[]=1.0, %v5)
        return %v6
    }""",
    "sums of infinities": """graph main(%x: f32[1,4,4,2]) {
        %v0 = EXP(%x)  %v1 = ADD(%v0, c1[]=0.1)  %v3 = CONCATENATION(%v1, %v1, c3[1,4,4,2]) {axis=1}
        %v4 = CONV_2D(%v3, c4[4,3,1,2], c5[4]) {stride=2, padding=VALID}  %v5 = MUL(%v4, c6[4])
        return %v5
    }""",
    "inverses of roots": """graph main(%v1: f32[1,4,1,6], %v5: f32[1,4,1,1], %v9: f32[1,4,1,1]) {
        %v4 = RSQRT(%v1)  %v10 = RSQRT(%v9)  %v11 = SUB(%v4, %v5)  %v12 = MUL(%v11, %v10)  %v13 = MUL(%v12, c4[6])
        %v14 = ADD(%v13, c5[6]=0.166666)  %v15 = EXP(%v14)  %v16 = ADD(%v15, c6[]=1.0)  %v17 = LOG(%v16)
        return %v17
    }""",
}


@pytest.mark.parametrize("name", BORN)
def test_infinities_of_the_models_own(name: str) -> None:
    original = from_text(BORN[name])
    done = convert(original)
    assert done.fusions.applied
    assert done.check is not None
    assert done.check.ok


def test_exact_rewrites_are_not_excused() -> None:
    text = "graph main(%x: f32[4]) {{ %y = LOG(%x)  %z = {}(%y)  return %z }}"
    a, b = from_text(text.format("RELU")), from_text(text.format("RELU6"))
    assert not check(a, b, numerics=Numerics.EXACT).ok
    assert not check(a, b).ok  # where the logarithm is a number beyond 6
