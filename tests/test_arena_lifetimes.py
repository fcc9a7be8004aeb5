"""What is in the arena, how large and for how long, by each runtime's rules."""

from __future__ import annotations

import numpy as np
import pytest
from rules import looped

from litefuse.arena.lifetimes import (
    DELEGATE,
    TFLITE,
    TFLM,
    Runtime,
    lifetimes,
    live_bytes,
    lower_bound,
    model_lifetimes,
    reachable,
    runtime_named,
    sizes,
)
from litefuse.arena.problem import aligned
from litefuse.errors import LitefuseError
from litefuse.graph.build import Builder
from litefuse.graph.graph import Graph
from litefuse.schema import Model
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op


def branches() -> tuple[Model, dict[str, int]]:
    """x -> a -> b, x -> c, y = b + c; ``idle`` is read by nothing."""
    b = Builder()
    x = b.input("x", [1, 100])
    a = b.op(Op.RELU, [x], name="a", shape=[1, 100])
    idle = b.op(Op.TANH, [a], name="idle", shape=[1, 100])
    second = b.op(Op.EXP, [a], name="b", shape=[1, 100])
    c = b.op(Op.ABS, [x], name="c", shape=[1, 100])
    y = b.op(Op.ADD, [second, c], name="y", shape=[1, 100])
    names = {"x": x, "a": a, "idle": idle, "b": second, "c": c, "y": y}
    return b.model([y]), names


def stays(model: Model, runtime: Runtime, order: list[int] | None = None) -> dict[str, tuple[int, int]]:
    graph = Graph(model)
    return {graph.name(s.tensor): (s.first, s.last) for s in lifetimes(graph, order, runtime)}


def test_tflm_frees_everything_after_its_last_use() -> None:
    model, _ = branches()
    expected = {"x": (0, 5), "a": (1, 4), "idle": (2, 3), "b": (3, 6), "c": (4, 6), "y": (5, 6)}
    assert stays(model, TFLM) == expected
    assert stays(model, DELEGATE) == expected


def test_tflite_never_frees_inputs_and_what_nothing_reads() -> None:
    model, _ = branches()
    expected = {"x": (0, 6), "a": (1, 4), "idle": (2, 6), "b": (3, 6), "c": (4, 6), "y": (5, 6)}
    assert stays(model, TFLITE) == expected


def test_the_order_decides() -> None:
    model, _ = branches()
    assert stays(model, TFLM, [3, 0, 1, 2, 4]) == {
        "x": (0, 3),
        "c": (1, 6),
        "a": (2, 5),
        "idle": (3, 4),
        "b": (4, 6),
        "y": (5, 6),
    }


def test_bounds_round_sizes_up() -> None:
    model, _ = branches()
    found = lifetimes(Graph(model), None, TFLM)
    # At the TANH: x, a and the idle output; 400 bytes each, which is a multiple of 16 but not of 64.
    assert lower_bound(found, 16) == 3 * 400
    assert lower_bound(found, 64) == 3 * 448
    assert live_bytes(found, 16)[0] == 400
    assert [aligned(n, 16) for n in (0, 1, 16, 17)] == [0, 16, 16, 32]
    assert lower_bound([], 16) == 0


def test_constants_and_variables_are_elsewhere() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    state = b.input("state", [1, 4])
    weight = b.constant("w", np.ones((1, 4), np.float32))
    y = b.op(Op.ADD, [x, weight], shape=[1, 4])
    z = b.op(Op.MUL, [y, state], shape=[1, 4])
    model = b.model([z])
    model.subgraphs[0].inputs = [x]
    model.subgraphs[0].tensors[state].is_variable = True
    assert set(sizes(Graph(model), TFLM).bytes) == {x, y, z}


def test_widened_weights_are_in_tflms_arena_only() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    half = b.constant("w", np.ones((1, 4), np.float16))
    wide = b.op(Op.DEQUANTIZE, [half], shape=[1, 4], type=TensorType.FLOAT32)
    y = b.op(Op.ADD, [x, wide], shape=[1, 4])
    graph = Graph(b.model([y]))
    assert wide in sizes(graph, TFLM).bytes
    assert wide not in sizes(graph, TFLITE).bytes
    assert wide not in sizes(graph, DELEGATE).bytes


def test_sizes_of_packed_and_resource_tensors() -> None:
    b = Builder()
    x = b.input("x", [3, 3], TensorType.INT4)
    handle = b.op(Op.VAR_HANDLE, [], shape=[1], type=TensorType.RESOURCE)
    graph = Graph(b.model([x, handle]))
    assert sizes(graph, TFLM).bytes == {x: 9}  # the handle is no part of the head
    assert sizes(graph, TFLITE).bytes == {x: 5}
    assert "RESOURCE" in sizes(graph, TFLITE).unplanned[handle]


def test_unknown_shapes_are_left_out_with_the_reason() -> None:
    b = Builder()
    x = b.input("x", [2, 8])
    where = b.op(Op.WHERE, [b.op(Op.GREATER, [x, x], shape=[2, 8], type=TensorType.BOOL)], type=TensorType.INT64)
    model = b.model([where])
    model.subgraphs[0].tensors[where].shape = []
    model.subgraphs[0].tensors[where].has_rank = False
    for runtime in (TFLM, TFLITE, DELEGATE):
        found = sizes(Graph(model), runtime)
        assert "not known before run time" in found.unplanned[where]
        assert where not in found.bytes


def test_a_declaration_that_contradicts_the_kernel_is_not_believed() -> None:
    b = Builder()
    x = b.input("x", [1, 8])
    y = b.op(Op.RELU, [x], shape=[1, 8])
    model = b.model([y])
    model.subgraphs[0].tensors[y].shape = [1, 1]
    assert "[1, 1]" in sizes(Graph(model), TFLM).unplanned[y]
    assert sizes(Graph(model), TFLITE).bytes[y] == 32


def test_dynamic_batch_is_planned_at_the_declared_shape_and_named() -> None:
    b = Builder()
    x = b.input("x", [-1, 8])
    y = b.op(Op.RELU, [x], shape=[-1, 8])
    found = sizes(Graph(b.model([y])), TFLM)
    assert found.bytes == {x: 32, y: 32}
    assert found.dynamic == [x, y]


def test_subgraphs_of_a_while_live_inside_it() -> None:
    b = Builder()
    x = b.input("x", [1, 100])
    model = looped(b.model([b.op(Op.RELU, [x], shape=[1, 100])]))
    assert reachable(model) == [0, 1, 2]
    graphs = [Graph(model, i) for i in range(3)]
    known = {i: sizes(graphs[i], TFLM) for i in range(3)}
    found, times = model_lifetimes(graphs, {}, known)
    # Entry 0, WHILE 1, condition entered at 2, its LESS at 3, the body entered at 4, RELU and ADD at 5 and 6.
    assert times == {(0, 0): 1, (1, 0): 3, (2, 0): 5, (2, 1): 6}
    span = {(s.subgraph, graphs[s.subgraph].name(s.tensor)): (s.first, s.last) for s in found}
    assert span[0, "x"] == (0, 7)
    assert span[0, "y"] == (1, 7)
    assert span[1, "i"] == (2, 4)
    assert span[2, "i"] == (4, 7)
    assert span[2, "x"] == (4, 6)


def test_a_subgraph_that_calls_itself_is_refused() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    model = looped(b.model([b.op(Op.RELU, [x], shape=[1, 4])]))
    model.subgraphs[0].operators[0].builtin_options.body_subgraph_index = 0
    graphs = [Graph(model, i) for i in range(3)]
    known = {i: sizes(graphs[i], TFLM) for i in range(3)}
    with pytest.raises(LitefuseError, match="calls itself"):
        model_lifetimes(graphs, {}, known)


def test_names_of_runtimes() -> None:
    assert runtime_named("tflm") is TFLM
    with pytest.raises(LitefuseError, match="delegate"):
        runtime_named("tensorrt")
