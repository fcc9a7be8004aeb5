"""The use-def index stays true under edits, and edits keep the model's interface."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import kinds, results

from litefuse.graph import Graph
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model, deepcopy
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator


def chain(*ops: Op, outputs: tuple[int, ...] = (-1,)) -> tuple[Model, Graph, list[Operator]]:
    """x through a chain of unary operators."""
    b = Builder()
    tensors = [b.input("x", [2, 3])]
    for op in ops:
        tensors.append(b.op(op, [tensors[-1]]))
    model = b.model([tensors[i] for i in outputs])
    graph = Graph(model)
    return model, graph, list(graph.operators())


def check_index(graph: Graph) -> None:
    """Compares the index with one built from scratch."""
    graph.commit()
    fresh = Graph(graph.model, graph.index)
    for tensor in range(len(graph.tensors)):
        assert graph.producer(tensor) is fresh.producer(tensor)
        assert sorted(map(id, graph.readers(tensor))) == sorted(map(id, fresh.readers(tensor)))
    assert list(graph.operators()) == list(fresh.operators())


def test_index() -> None:
    b = Builder()
    x = b.input("x", [1, 2])
    y = b.op(Op.MUL, [x, x])
    z = b.op(Op.ADD, [y, b.constant("c", [1.0, 2.0])])
    model = b.model([z, y])
    graph = Graph(model)
    mul, add = graph.operators()
    assert graph.producer(x) is None
    assert graph.producer(y) is mul
    assert graph.readers(x) == [mul, mul]
    assert graph.only_reader(x) is mul
    assert graph.only_reader(y) is None, "it is an output too"
    assert graph.why_shared(y, add) == "output of MUL #0 `mul_0` is also an output of the model"
    assert graph.kind(add) is Op.ADD
    assert graph.shape(z) == (1, 2)
    assert np.array_equal(graph.constant(add.inputs[1]), np.float32([1, 2]))
    assert graph.constant(y) is None
    assert graph.splat(add.inputs[1]) is None
    assert str(graph.where(add)) == "ADD #1 `add_1`"


def test_shapes_with_open_dimensions() -> None:
    b = Builder()
    x = b.input("x", [-1, 4])
    graph = Graph(b.model([b.op(Op.RELU, [x])]))
    assert graph.shape(x) == (-1, 4)
    assert graph.static_shape(x) is None
    tensor = graph.add_tensor("t", [-1, 2], TensorType.INT8)
    assert (graph.tensors[tensor].shape, graph.tensors[tensor].shape_signature) == ([1, 2], [-1, 2])
    scalar = graph.add_constant("s", np.float32(3))
    assert graph.shape(scalar) == ()
    graph.tensors[scalar].has_rank = False
    assert graph.shape(scalar) == (), "the data says that it is a scalar"
    unknown = graph.add_tensor("u", [], TensorType.FLOAT32)
    graph.tensors[unknown].has_rank = False
    assert graph.shape(unknown) is None


def test_constants_that_are_none() -> None:
    b = Builder()
    x = b.input("x", [2])
    c = b.constant("c", np.float32([3, 3]))
    graph = Graph(b.model([b.op(Op.ADD, [x, c])]))
    assert graph.splat(c) == 3.0
    tensor = graph.tensors[c]
    tensor.is_variable = True
    assert not graph.is_constant(c)
    tensor.is_variable = False
    tensor.shape = [3]
    assert graph.constant(c) is None, "the data does not fit the shape"
    assert graph.constant(-1) is None


def test_replace_prunes_what_fed_only_the_replaced() -> None:
    model, graph, (a, _b, c) = chain(Op.ABS, Op.NEG, Op.EXP)
    graph.replace(c, Op.COS, [a.inputs[0]])
    check_index(graph)
    assert kinds(model) == ["COS"]
    assert model.subgraphs[0].outputs == [c.outputs[0]]


def test_prune_stops_at_outputs_and_other_readers() -> None:
    model, graph, (a, _b, c) = chain(Op.ABS, Op.NEG, Op.EXP, outputs=(-1, 1))
    graph.replace(c, Op.COS, [a.inputs[0]])
    check_index(graph)
    assert kinds(model) == ["ABS", "COS"]


def test_bypass_in_the_middle() -> None:
    model, graph, (a, b, c) = chain(Op.ABS, Op.NEG, Op.EXP)
    assert graph.bypass(b, a.outputs[0])
    check_index(graph)
    assert kinds(model) == ["ABS", "EXP"]
    assert c.inputs == [a.outputs[0]]


def test_bypass_at_the_end_keeps_the_output_tensor() -> None:
    model, graph, (_a, b, c) = chain(Op.ABS, Op.NEG, Op.EXP)
    before = list(model.subgraphs[0].outputs)
    assert graph.bypass(c, b.outputs[0])
    check_index(graph)
    assert kinds(model) == ["ABS", "NEG"]
    assert model.subgraphs[0].outputs == before == [b.outputs[0]]


@pytest.mark.parametrize("outputs", [(-1,), (-1, 1)])
def test_bypass_that_would_join_input_or_output_to_an_output_changes_nothing(outputs: tuple[int, ...]) -> None:
    model, graph, ops = chain(Op.ABS) if outputs == (-1,) else chain(Op.ABS, Op.NEG, outputs=outputs)
    assert not graph.bypass(ops[-1], ops[-1].inputs[0])
    check_index(graph)
    assert len(kinds(model)) == len(ops)


def test_replace_uses_refuses_outputs() -> None:
    _, graph, (a,) = chain(Op.ABS)
    with pytest.raises(ValueError, match="is an output"):
        graph.replace_uses(a.outputs[0], a.inputs[0])


def test_set_output_refuses_a_second_producer() -> None:
    _, graph, (a, b) = chain(Op.ABS, Op.NEG)
    with pytest.raises(ValueError, match="already has a producer"):
        graph.set_output(b, 0, a.outputs[0])


def test_missing_optional_inputs_are_filled() -> None:
    b = Builder()
    w = b.constant("w", np.ones((2, 3), np.float32))
    graph = Graph(b.model([b.op(Op.FULLY_CONNECTED, [b.input("x", [1, 3]), w])]))
    (op,) = graph.operators()
    bias = graph.add_constant("b", np.float32([5, 6]))
    graph.set_input(op, 2, bias)
    check_index(graph)
    assert op.inputs[2] == bias
    assert results(graph.model, np.zeros((1, 3), np.float32))[0].tolist() == [[5, 6]]


def test_activation_and_version() -> None:
    b = Builder()
    x = b.input("x", [1, 3])
    graph = Graph(b.model([b.op(Op.RELU, [b.op(Op.ADD, [x, x])])]))
    add, relu = graph.operators()
    shared = add.builtin_options
    graph.set_activation(add, ActivationFunctionType.RELU6)
    assert graph.activation(add) == ActivationFunctionType.RELU6
    assert shared is not add.builtin_options, "another operator may hold the same table"
    with pytest.raises(ValueError, match="no fused activation"):
        graph.set_activation(relu, ActivationFunctionType.RELU6)
    graph.set_version(add, 4)
    graph.set_version(add, 2)
    assert graph.version(add) == 4
    assert graph.version(relu) == 1


def test_editing_while_iterating() -> None:
    model, graph, ops = chain(Op.ABS, Op.NEG, Op.EXP, Op.COS, Op.SIN)
    seen = []
    for op in graph.operators():
        seen.append(graph.kind(op).name)
        if op is ops[1]:
            # Removes itself and the next two; the walk goes on behind them.
            graph.replace(ops[3], Op.SQRT, [ops[0].inputs[0]])
    assert seen == ["ABS", "NEG", "SQRT", "SIN"]
    check_index(graph)
    assert kinds(model) == ["SQRT", "SIN"]


def test_state_is_never_dead() -> None:
    b = Builder()
    x = b.input("x", [1, 3])
    y = b.op(Op.ADD, [x, x])
    model = b.model([b.op(Op.NEG, [x])])
    graph = Graph(model)
    add = graph.producer(y)
    assert add is not None
    assert graph.is_dead(add)
    state = graph.add_tensor("state", [1, 3], TensorType.FLOAT32)
    graph.tensors[state].is_variable = True
    graph.set_input(add, 1, state)
    assert not graph.is_dead(add)


def test_names_stay_unique() -> None:
    _, graph, (_a,) = chain(Op.ABS)
    first = graph.add_tensor("x", [1], TensorType.INT8, quantization=quantized(0.5))
    second = graph.add_tensor("x", [1], TensorType.INT8)
    assert [graph.name(first), graph.name(second)] == ["x_1", "x_2"]
    assert graph.name(-1) == "-"


@given(st.lists(st.tuples(st.sampled_from(["replace", "bypass", "remove", "add"]), st.integers(0, 30)), max_size=12))
@settings(max_examples=60, deadline=None)
def test_random_edits_keep_the_index(edits: list[tuple[str, int]]) -> None:
    _model, graph, _ = MODEL()
    for what, number in edits:
        ops = list(graph.operators())
        if not ops:
            break
        op = ops[number % len(ops)]
        if what == "replace":
            graph.replace(op, Op.COS, op.inputs[:1])
        elif what == "bypass":
            graph.bypass(op, op.inputs[0])
        elif what == "add":
            tensor = graph.add_tensor("new", [2, 3], TensorType.FLOAT32)
            graph.add_operator(Op.SIN, op.inputs[:1], [tensor], before=op)
        elif graph.is_dead(op):
            graph.remove(op)
        check_index(graph)


def MODEL() -> tuple[Model, Graph, list[Operator]]:
    """A fresh copy of a small graph with a diamond."""
    if not hasattr(MODEL, "made"):
        b = Builder()
        x = b.input("x", [2, 3])
        y = b.op(Op.ABS, [x])
        z = b.op(Op.ADD, [b.op(Op.NEG, [y]), b.op(Op.EXP, [y])])
        MODEL.made = b.model([b.op(Op.MUL, [z, x]), z])  # type: ignore[attr-defined]
    model = deepcopy(MODEL.made)  # type: ignore[attr-defined]
    graph = Graph(model)
    return model, graph, list(graph.operators())
