"""The pattern language: what matches, what is bound, and what is refused for its readers."""

from __future__ import annotations

import numpy as np

from litefuse.graph import Graph, Node, Value, match
from litefuse.graph.build import Builder
from litefuse.graph.pattern import Const, Splat
from litefuse.schema.enums import ActivationFunctionType
from litefuse.schema.operators import Op

x = Value("x")


def test_same_name_is_same_tensor_in_either_order() -> None:
    for order in (0, 1):
        b = Builder()
        a = b.input("a", [2, 3])
        gate = b.op(Op.LOGISTIC, [a])
        root = b.op(Op.MUL, [gate, a][:: 1 if order else -1])
        graph = Graph(b.model([root]))
        found = match(graph, graph.producer(root), Node(Op.MUL, Node(Op.LOGISTIC, x, name="gate"), x))
        assert found is not None
        assert found["x"] == a
        assert found.operator("gate") is graph.producer(gate)
        assert found.inner == [graph.producer(gate)]
        assert found.refusal is None


def test_different_tensors_do_not_match() -> None:
    b = Builder()
    root = b.op(Op.MUL, [b.op(Op.LOGISTIC, [b.input("a", [2])]), b.input("b", [2])])
    graph = Graph(b.model([root]))
    assert match(graph, graph.producer(root), Node(Op.MUL, Node(Op.LOGISTIC, x), x)) is None


def test_readers_inside_the_pattern_are_welcome_and_others_are_named() -> None:
    # relu(x) + a * (x - abs(x)), where x itself is computed inside the pattern
    inner = Node(Op.TANH, x)
    pattern = Node(Op.ADD, Node(Op.RELU, inner), Node(Op.MUL, Node(Op.SUB, inner, Node(Op.ABS, inner)), Const("a")))
    for extra in (False, True):
        b = Builder()
        t = b.op(Op.TANH, [b.input("in", [2, 3])])
        root = b.op(
            Op.ADD,
            [
                b.op(Op.RELU, [t]),
                b.op(Op.MUL, [b.constant("a", [0.1, 0.2, 0.3]), b.op(Op.SUB, [t, b.op(Op.ABS, [t])])]),
            ],
        )
        outputs = [root, b.op(Op.EXP, [t])] if extra else [root]
        graph = Graph(b.model(outputs))
        found = match(graph, graph.producer(root), pattern)
        assert found is not None
        assert len(found.inner) == 5
        assert found.refusal == ("output of TANH #0 `tanh_0` is also read by EXP #6 `exp_6`" if extra else None)
        assert np.allclose(found.constant("a"), [0.1, 0.2, 0.3])


def test_a_graph_output_inside_is_refused() -> None:
    b = Builder()
    y = b.op(Op.NEG, [b.input("a", [2])])
    z = b.op(Op.NEG, [y])
    graph = Graph(b.model([z, y]))
    found = match(graph, graph.producer(z), Node(Op.NEG, Node(Op.NEG, x)))
    assert found is not None
    assert found.refusal is not None
    assert "also an output" in found.refusal


def test_activation_constants_and_missing_inputs() -> None:
    b = Builder()
    a = b.input("a", [2])
    y = b.op(Op.MUL, [a, b.constant("c", 0.16667)], fused_activation_function=ActivationFunctionType.RELU6)
    z = b.op(Op.FULLY_CONNECTED, [b.input("d", [1, 2]), b.constant("w", np.ones((2, 2), np.float32)), -1])
    graph = Graph(b.model([y, z]))
    mul, fc = graph.producer(y), graph.producer(z)
    assert match(graph, mul, Node(Op.MUL, x, Splat(1 / 6, 1e-3))) is None, "it has an activation"
    assert match(graph, mul, Node(Op.MUL, x, Splat(1 / 6, 1e-3), activation=None)) is not None
    assert match(graph, mul, Node(Op.MUL, x, Splat(1 / 6), activation=None)) is None
    assert match(graph, mul, Node(Op.MUL, x, Const("c", lambda v: v > 1), activation=None)) is None
    assert match(graph, fc, Node(Op.FULLY_CONNECTED, x, Const("w"))) is not None, "-1 is no input"
    assert match(graph, fc, Node(Op.FULLY_CONNECTED, x, Const("w"), Const("bias"))) is None
    assert match(graph, fc, Node((Op.MUL, Op.ADD), x, x)) is None


def test_backtracking_over_commutative_operators() -> None:
    b = Builder()
    a, c = b.input("a", [2]), b.input("c", [2])
    root = b.op(Op.ADD, [b.op(Op.MUL, [a, c]), b.op(Op.MUL, [c, c])])
    graph = Graph(b.model([root]))
    y = Value("y")
    # Only the second MUL can be y * y, and only then is the first one x * y.
    found = match(graph, graph.producer(root), Node(Op.ADD, Node(Op.MUL, y, y), Node(Op.MUL, x, y)))
    assert found is not None
    assert (found["x"], found["y"]) == (a, c)


def test_equal_constants_are_the_same_constant() -> None:
    b = Builder()
    a = b.input("a", [2])
    root = b.op(
        Op.SUB, [b.op(Op.MUL, [a, b.constant("c", [1.0, 2.0])]), b.op(Op.ADD, [a, b.constant("d", [1.0, 2.0])])]
    )
    graph = Graph(b.model([root]))
    c = Const("c")
    assert match(graph, graph.producer(root), Node(Op.SUB, Node(Op.MUL, x, c), Node(Op.ADD, x, c))) is not None
