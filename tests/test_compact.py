"""Removal of what nothing refers to: every index in the file follows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rules import kinds, results

from litefuse.graph import Graph
from litefuse.graph.build import Builder, quantized
from litefuse.graph.compact import (
    CONTROL_DEPENDENCIES,
    MEMORY_PLAN,
    compact,
    parse_control_dependencies,
    serialize_control_dependencies,
)
from litefuse.schema import Model, deepcopy, diff, parse, to_bytes
from litefuse.schema.operators import Op
from litefuse.schema.tables import BlockwiseQuantization, Buffer, Metadata, Operator


def before(model: Model) -> list[list[Operator]]:
    return [list(s.operators) for s in model.subgraphs]


def with_metadata(model: Model, name: str, data: bytes) -> Model:
    model.buffers.append(Buffer(data=data))
    model.metadata = [*model.metadata, Metadata(name=name, buffer=len(model.buffers) - 1)]
    return model


def metadata(model: Model, name: str) -> bytes | None:
    return next((bytes(model.buffers[m.buffer].data) for m in model.metadata if m.name == name), None)  # type: ignore[arg-type]


def example() -> tuple[Model, int]:
    """x -> ABS -> NEG -> EXP, with an unused constant in front."""
    b = Builder()
    b.constant("unused", [1.0])
    x = b.input("x", [2])
    y = b.op(Op.NEG, [b.op(Op.ABS, [x])])
    c = b.constant("c", [1.0, 2.0])
    return b.model([b.op(Op.MUL, [b.op(Op.EXP, [y]), c])], signature="run"), y


def test_nothing_to_do_changes_nothing() -> None:
    model, _ = example()
    compact(model, before(model))
    copy = deepcopy(model)
    assert compact(copy, before(copy)) == []
    assert list(diff(model, copy)) == []


def test_indices_follow() -> None:
    model, y = example()
    model = with_metadata(model, "keep", b"abc")
    old = before(model)
    x = np.float32([-1, 2])
    expected = results(model, x)
    graph = Graph(model)
    op = graph.producer(y)
    assert op is not None
    graph.replace(op, Op.COS, [model.subgraphs[0].inputs[0]])
    graph.commit()
    assert compact(model, old) == []
    assert kinds(model) == ["COS", "EXP", "MUL"]
    main = model.subgraphs[0]
    assert [t.name for t in main.tensors] == ["x", "neg_1", "c", "exp_2", "mul_3"]
    assert len(model.buffers) == 3, "the empty one, the constant and the metadata"
    assert len(model.operator_codes) == 3
    assert metadata(model, "keep") == b"abc"
    signature = model.signature_defs[0]
    assert [main.tensors[m.tensor_index].name for m in (*signature.inputs, *signature.outputs)] == ["x", "mul_3"]
    again = parse(to_bytes(model))
    assert np.allclose(results(again, x)[0], np.exp(np.cos(x)) * [1, 2])
    assert expected[0].shape == (2,)


def test_scales_of_blockwise_quantisation_are_kept() -> None:
    b = Builder()
    b.constant("unused", [1.0])
    scales = b.constant("scales", np.ones(4, np.float16))
    x = b.input("x", [1, 2])
    q = quantized(1.0)
    q.details = BlockwiseQuantization(scales=scales, zero_points=-1, block_size=32)
    w = b.constant("w", np.ones((2, 2), np.float32), q)
    model = b.model([b.op(Op.FULLY_CONNECTED, [x, w], shape=[1, 2])])
    compact(model, before(model))
    main = model.subgraphs[0]
    kept = next(t for t in main.tensors if t.name == "w")
    assert kept.quantization is not None
    details = kept.quantization.details
    assert isinstance(details, BlockwiseQuantization)
    assert main.tensors[details.scales].name == "scales"
    assert details.zero_points == -1


def test_memory_plan_goes_when_the_graph_changed() -> None:
    model, _y = example()
    compact(model, before(model))
    model = with_metadata(model, MEMORY_PLAN, b"1234")
    assert compact(model, before(model)) == []
    assert metadata(model, MEMORY_PLAN) == b"1234"
    old = before(model)
    model.subgraphs[0].operators.pop(0)
    (note,) = compact(model, old)
    assert "has been removed" in note
    assert metadata(model, MEMORY_PLAN) is None


def test_control_dependencies_follow_and_pass_through_removed_operators() -> None:
    model, _ = example()
    data = serialize_control_dependencies([[(0, 1), (1, 2), (2, 3), (0, 3)]])
    model = with_metadata(model, CONTROL_DEPENDENCIES, data)
    old = before(model)
    del model.subgraphs[0].operators[1]
    assert compact(model, old) == []
    found = metadata(model, CONTROL_DEPENDENCIES)
    assert found is not None
    pairs = parse_control_dependencies(found)
    assert pairs is not None
    assert sorted(pairs[0]) == [(0, 1), (0, 2), (1, 2)]


def test_unreadable_control_dependencies_are_dropped_with_a_note() -> None:
    for data in (b"", b"\x02\x00", b"\x01\x01\xff", b"\x01\x02\x00\x00", b"\x01\x01\x7f\x00"):
        model, _ = example()
        model = with_metadata(model, CONTROL_DEPENDENCIES, data)
        old = before(model)
        del model.subgraphs[0].operators[1]
        notes = compact(model, old)
        if data:
            assert any("control dependencies" in n for n in notes), data


@given(st.lists(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-300, 300)))))
def test_control_dependencies_round_trip(pairs: list[list[tuple[int, int]]]) -> None:
    assert parse_control_dependencies(serialize_control_dependencies(pairs)) == pairs


@given(st.binary(max_size=40))
def test_any_bytes_parse_or_not(data: bytes) -> None:
    pairs = parse_control_dependencies(data)
    assert pairs is None or parse_control_dependencies(serialize_control_dependencies(pairs)) == pairs
