"""Fixed input shapes: what is asked for, what follows in every subgraph, what stays dynamic, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litefuse.errors import LitefuseError
from litefuse.fusions import FusionReport, constant_folding, run
from litefuse.graph import Graph
from litefuse.graph.build import Builder
from litefuse.graph.freeze import DynamicTensor, FrozenInput, freeze
from litefuse.schema import Model, deepcopy, read
from litefuse.schema.declare import diff
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import (
    Buffer,
    IfOptions,
    Metadata,
    SignatureDef,
    StableHLOCompositeOptions,
    TensorMap,
)
from litefuse.schema.types import NUMPY
from tests.chains import I32, dense_model, element, gated_model, packed, shape_of, target, weights
from tests.rules import kinds, looped, operators, results
from tests.test_infer import attach

F32, BOOL, I64 = TensorType.FLOAT32, TensorType.BOOL, TensorType.INT64
SHAPES = {"SHAPE", "STRIDED_SLICE", "GATHER", "REDUCE_PROD", "PACK"}


def assert_same(before: Model, after: Model, *inputs: Any) -> None:
    """Asserts that both give the same bits, the first resized to the inputs, the second of their size already."""
    for detail, value in zip(Graph(after).subgraph.inputs, inputs, strict=True):
        assert Graph(after).static_shape(detail) == value.shape
    for xnnpack in (False, True):
        expected, actual = results(before, *inputs, xnnpack=xnnpack), results(after, *inputs, xnnpack=xnnpack)
        for x, y in zip(expected, actual, strict=True):
            assert x.shape == y.shape
            np.testing.assert_array_equal(x, y)
    for tensor, value in zip(after.subgraphs[0].outputs, results(after, *inputs), strict=True):
        assert Graph(after).static_shape(tensor) in (value.shape, None)


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def shapes(model: Model, subgraph: int = 0) -> dict[str, Any]:
    graph = Graph(model, subgraph)
    return {graph.name(t): graph.shape(t) for t in range(len(graph.tensors)) if not graph.is_constant(t)}


# -- the whole way ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3])
def test_batch_of_a_gate(batch: int) -> None:
    before = gated_model()
    after = deepcopy(before)
    report = freeze(after, batch=batch)
    assert kinds(after) == ["MEAN", "RESHAPE", "CONV_2D", "LOGISTIC", "MUL"]
    assert report.inputs == [FrozenInput(0, "x", (-1, 6, 6, 4), (batch, 6, 6, 4))]
    assert (report.folded, report.fixed, report.dynamic, report.notes) == (3, 6, [], [])
    assert not any(t.shape_signature for t in after.subgraphs[0].tensors)
    assert shapes(after)["gated"] == (batch, 6, 6, 4)
    [reshape] = operators(after, "RESHAPE")
    assert Graph(after).constant(reshape.inputs[1]).tolist() == [batch, 1, 1, 4]  # type: ignore[union-attr]
    assert_same(before, after, normal(batch, 6, 6, 4))


@pytest.mark.parametrize("batch", [1, 2])
def test_batch_of_a_dense_layer(batch: int) -> None:
    before = dense_model()
    after = deepcopy(before)
    report = freeze(after, batch=batch)
    assert kinds(after) == ["RESHAPE", "FULLY_CONNECTED", "RESHAPE", "RELU"]
    assert report.folded == 7
    assert shapes(after)["flat"] == (15 * batch, 4)
    assert_same(before, after, normal(batch, 3, 5, 4))


def test_rules_find_nothing_left_to_fold() -> None:
    model = dense_model()
    freeze(model, batch=1)
    report: FusionReport = run(model, constant_folding.rules())
    assert not report.applied


def test_names_of_tensors_and_of_signatures() -> None:
    for name in ("x", "serving_default_x"):
        model = gated_model()
        model.subgraphs[0].tensors[model.subgraphs[0].inputs[0]].name = "serving_default_x"
        freeze(model, {name: [2, 6, 6, 4]})
        assert shapes(model)["gated"] == (2, 6, 6, 4)


def test_dimensions_that_are_not_given_stay() -> None:
    b = Builder()
    model = b.model([b.op(Op.RELU, [b.input("x", [-1, -1, 3])], name="y", shape=[-1, -1, 3])])
    before = deepcopy(model)
    report = freeze(model, {"x": [-1, 5, 3]})
    assert shapes(model) == {"x": (-1, 5, 3), "y": (-1, 5, 3)}
    assert [t.shape for t in model.subgraphs[0].tensors] == [[1, 5, 3], [1, 5, 3]]
    assert [d.reason for d in report.dynamic] == ["dimension 0 of this input may be anything", "follows from `x`"]
    freeze(model, {"x": [-1, 5, 3]}, batch=2)
    assert_same(before, model, normal(2, 5, 3))


def test_shapes_come_before_the_batch() -> None:
    b = Builder()
    x, y = b.input("x", [-1, 3]), b.input("y", [-1, 3])
    model = b.model([b.op(Op.CONCATENATION, [x, y], name="z", shape=[-1, 3], axis=0)])
    freeze(model, {"x": [2, 3]}, batch=4)
    assert shapes(model) == {"x": (2, 3), "y": (4, 3), "z": (6, 3)}


def test_inputs_of_unknown_rank_take_any_shape() -> None:
    b = Builder()
    model = b.model([b.op(Op.RELU, [b.input("x", [])], name="y", shape=[])])
    for tensor in model.subgraphs[0].tensors:
        tensor.has_rank = False
    report = freeze(model, batch=2)
    assert report.dynamic[0].reason == "the file does not say how many dimensions this input has"
    freeze(model, {"x": [2, 3]})
    assert shapes(model) == {"x": (2, 3), "y": (2, 3)}


def test_nothing_to_freeze() -> None:
    b = Builder()
    model = b.model([b.op(Op.RELU, [b.input("x", [1, 3])])])
    before = deepcopy(model)
    report = freeze(model, batch=4)
    assert report.inputs == []
    assert "batch 4 changes nothing" in report.notes[0]
    assert not list(diff(before, model))
    assert not freeze(model, {"x": [1, -1]}).notes
    assert not list(diff(before, model))


def test_metadata_is_left_alone() -> None:
    model = gated_model()
    model.buffers.append(Buffer(data=b"anything"))
    model.metadata = [Metadata(name="CONVERSION_METADATA", buffer=len(model.buffers) - 1)]
    freeze(model, batch=1)
    [entry] = model.metadata
    assert (entry.name, bytes(model.buffers[entry.buffer].data)) == ("CONVERSION_METADATA", b"anything")


def test_weights_are_not_widened() -> None:
    b = Builder()
    x = b.input("x", [-1, 4])
    half = b.constant("half", weights(4, 4).astype(np.float16))
    wide = b.op(Op.DEQUANTIZE, [half], shape=[4, 4], type=F32)
    model = b.model([b.op(Op.FULLY_CONNECTED, [x, wide, -1], shape=[-1, 4])])
    assert freeze(model, batch=1).folded == 0
    assert kinds(model) == ["DEQUANTIZE", "FULLY_CONNECTED"]


def test_shapes_that_are_outputs_are_computed() -> None:
    b = Builder()
    x = b.input("x", [-1, 6])
    shape = shape_of(b, x, 2, "shape")
    half = packed(b, element(b, shape, 0), b.constant("two", 2), b.constant("three", 3))
    model = b.model([shape, b.op(Op.RESHAPE, [x, half], name="y", shape=[-1, 2, 3])])
    before = deepcopy(model)
    freeze(model, batch=5)
    assert kinds(model) == ["SHAPE", "RESHAPE"]
    assert_same(before, model, normal(5, 6))


def test_dimensions_that_become_known_although_others_stay() -> None:
    b = Builder()
    x = b.input("x", [-1, -1, 2])
    height = element(b, shape_of(b, x, 3), 1)
    zeros = b.op(Op.FILL, [packed(b, height, b.constant("two", 2)), b.constant("zero", 0.0)], shape=[-1, 2], type=F32)
    model = b.model([b.op(Op.ADD, [x, zeros], shape=[-1, -1, 2])])
    freeze(model, {"x": [-1, 3, 2]})
    assert kinds(model) == ["ADD"]  # FILL yields few bytes
    assert shapes(model)["add_4"] == (-1, 3, 2)


# -- signatures and subgraphs ------------------------------------------------------------------------------------------


def signature(model: Model, key: str, subgraph: int) -> SignatureDef:
    table = model.subgraphs[subgraph]

    def maps(tensors: list[int]) -> list[TensorMap]:
        return [TensorMap(name=table.tensors[t].name, tensor_index=t) for t in tensors]

    return SignatureDef(
        signature_key=key, subgraph_index=subgraph, inputs=maps(table.inputs), outputs=maps(table.outputs)
    )


def test_a_name_counts_for_all_signatures() -> None:
    model = gated_model("one")
    attach(model, dense_model())
    model.signature_defs += [signature(model, "again", 0), signature(model, "two", 1)]
    report = freeze(model, batch=2)
    assert [(i.subgraph, i.after) for i in report.inputs] == [(0, (2, 6, 6, 4)), (1, (2, 3, 5, 4))]
    assert shapes(model, 0)["gated"] == (2, 6, 6, 4)
    assert shapes(model, 1)["y"] == (2, 3, 5, 6)
    assert kinds(model, 1) == ["RESHAPE", "FULLY_CONNECTED", "RESHAPE", "RELU"]
    assert [m.tensor_index for m in model.signature_defs[1].inputs] == model.subgraphs[0].inputs
    with pytest.raises(LitefuseError, match="dimension 1 is 3 and cannot be 6"):
        freeze(model, {"x": [2, 6, 6, 4]})


def body(kind: Op, rank: int = 2) -> Model:
    """[batch, 6] reshaped to [batch, 2, 3] and back, through an operator."""
    b = Builder()
    x = b.input("x", [-1, 6])
    split = b.op(Op.RESHAPE, [x, target(b, x, rank, 2, 3)], name="split", shape=[-1, 2, 3])
    y = b.op(kind, [split], shape=[-1, 2, 3])
    return b.model([b.op(Op.RESHAPE, [y, target(b, y, 3, 6)], name="joined", shape=[-1, 6])])


def branching(*bodies: Model) -> Model:
    b = Builder()
    flag, x = b.input("flag", [], BOOL), b.input("x", [-1, 6])
    model = b.model([b.op(Op.IF, [flag, x], name="y", shape=[-1, 6], type=F32)])
    then, other = (attach(model, each) for each in bodies)
    operators(model, "IF")[0].builtin_options = IfOptions(then_subgraph_index=then, else_subgraph_index=other)
    return model


@pytest.mark.parametrize("flag", [True, False])
def test_branches(flag: bool) -> None:
    model = branching(body(Op.ABS), body(Op.NEG))
    before = deepcopy(model)
    report = freeze(model, batch=3)
    assert report.dynamic == []
    assert kinds(model, 1) == ["RESHAPE", "ABS", "RESHAPE"]
    assert kinds(model, 2) == ["RESHAPE", "NEG", "RESHAPE"]
    assert shapes(model, 1)["split"] == (3, 2, 3)
    assert shapes(model)["y"] == (3, 6)
    assert_same(before, model, np.array(flag), normal(3, 6))


def test_loops() -> None:
    model = looped(body(Op.ABS))
    before = deepcopy(model)
    report = freeze(model, batch=3)
    assert report.dynamic == []
    assert not SHAPES & set(kinds(model, 2))
    assert shapes(model, 1)["x"] == shapes(model, 2)["x"] == (3, 6)
    assert_same(before, model, normal(3, 6))


def test_loops_whose_shapes_change() -> None:
    b = Builder()
    x = b.input("x", [-1, 2])
    model = looped(b.model([b.op(Op.TILE, [x, b.constant("counts", [2, 1])], name="twice", shape=[-1, 2])]))
    before = deepcopy(model)
    report = freeze(model, batch=1)
    assert shapes(model)["x"] == (1, 2)
    assert shapes(model)["y"] == shapes(model, 2)["x"] == (-1, 2)
    reasons = {(d.subgraph, d.tensor): d.reason for d in report.dynamic}
    assert "changes from round to round" in reasons[0, "y"]
    assert "WHILE #0 `count` may pass it in different shapes" in reasons[2, "x"]
    assert reasons[2, "twice"] == "follows from `x`"
    assert_same(before, model, normal(1, 2))


def test_subgraphs_with_several_callers() -> None:
    b = Builder()
    flag, x, y = b.input("flag", [], BOOL), b.input("x", [-1, 6]), b.input("y", [-1, 6])
    model = b.model([b.op(Op.IF, [flag, t], name=n, shape=[-1, 6], type=F32) for t, n in ((x, "p"), (y, "q"))])
    for kind in (Op.ABS, Op.NEG):
        attach(model, body(kind))
    for op in operators(model, "IF"):
        op.builtin_options = IfOptions(then_subgraph_index=1, else_subgraph_index=2)
    before = deepcopy(model)
    report = freeze(model, {"x": [2, 6], "y": [3, 6]})
    assert (shapes(model)["p"], shapes(model)["q"]) == ((2, 6), (3, 6))
    assert shapes(model, 1)["x"] == (-1, 6)
    assert "IF #0 `p` and IF #1 `q` may pass" in next(d.reason for d in report.dynamic if d.subgraph == 1)
    assert_same(before, model, np.array(True), normal(2, 6), normal(3, 6))


def test_values_that_branches_are_given() -> None:
    b = Builder()
    flag, x = b.input("flag", [], BOOL), b.input("x", [-1, 6])
    given = target(b, x, 2, 3, 2)
    model = b.model([b.op(Op.IF, [flag, x, given], name="y", shape=[-1, 3, 2], type=F32)])
    for kind in (Op.ABS, Op.NEG):
        inner = Builder()
        v, t = inner.input("v", [-1, 6]), inner.input("t", [3], I32)
        half = inner.op(Op.MAXIMUM, [t, inner.constant("one", [1, 1, 1])], shape=[3], type=I32)
        shaped = inner.op(Op.RESHAPE, [v, half], shape=[-1, 3, 2])
        attach(model, inner.model([inner.op(kind, [shaped], shape=[-1, 3, 2])]))
    operators(model, "IF")[0].builtin_options = IfOptions(then_subgraph_index=1, else_subgraph_index=2)
    before = deepcopy(model)
    report = freeze(model, batch=2)
    assert report.dynamic == []
    assert kinds(model, 1) == ["RESHAPE", "ABS"]
    assert shapes(model)["y"] == (2, 3, 2)
    assert_same(before, model, np.array(True), normal(2, 6))


def test_decompositions_keep_their_operators() -> None:
    b = Builder()
    x = b.input("x", [-1, 6])
    model = b.model([b.op(Op.STABLEHLO_COMPOSITE, [x], name="y", shape=[-1, 6])])
    attach(model, body(Op.ABS))
    model.subgraphs[0].operators[0].builtin_options_2 = StableHLOCompositeOptions(
        name="some.thing", decomposition_subgraph_index=1, composite_attributes=b"\0\x24\1"
    )
    before, names = deepcopy(model), kinds(model, 1)
    report = freeze(model, batch=2)
    assert (report.folded, report.dynamic) == (0, [])
    assert kinds(model, 1) == names
    assert shapes(model, 1)["split"] == (2, 2, 3)
    assert shapes(model)["y"] == (2, 6)
    assert_same(before, model, normal(2, 6))


def test_subgraphs_that_call_themselves() -> None:
    model = branching(body(Op.ABS), body(Op.NEG))
    operators(model, "IF")[0].builtin_options = IfOptions(then_subgraph_index=0, else_subgraph_index=2)
    with pytest.raises(LitefuseError, match="calls itself"):
        freeze(model, batch=1)
    operators(model, "IF")[0].builtin_options = IfOptions(then_subgraph_index=1, else_subgraph_index=7)
    with pytest.raises(LitefuseError, match="subgraph 7 does not exist"):
        freeze(model, batch=1)


# -- what stays dynamic ------------------------------------------------------------------------------------------------


def test_shapes_that_depend_on_values() -> None:
    b = Builder()
    x = b.input("x", [-1, 6])
    flags = b.op(Op.GREATER, [x, b.constant("zero", 0.0)], name="flags", shape=[-1, 6], type=BOOL)
    places = b.op(Op.WHERE, [flags], name="places", shape=[-1, 2], type=I64)
    found = b.op(Op.GATHER_ND, [x, places], name="found", shape=[-1])
    model = b.model([b.op(Op.NEG, [found], name="y", shape=[-1])])
    before = deepcopy(model)
    report = freeze(model, batch=2)
    assert [(d.tensor, d.shape, d.reason) for d in report.dynamic] == [
        ("places", (-1, 2), "depends on the value of `flags`"),
        ("found", (-1,), "follows from `places`"),
        ("y", (-1,), "follows from `places`"),
    ]
    assert str(report.dynamic[0].location) == "WHERE #1 `places`"
    assert_same(before, model, normal(2, 6))


def test_shapes_of_custom_operators() -> None:
    b = Builder()
    x = b.input("x", [-1, 6])
    y = b.op(Op.RELU, [x], name="y", shape=[-1, 4])
    model = b.model([b.op(Op.NEG, [y], name="z", shape=[-1, 4])])
    model.operator_codes[0].builtin_code = Op.CUSTOM
    model.operator_codes[0].deprecated_builtin_code = Op.CUSTOM
    model.operator_codes[0].custom_code = "Mystery"
    report = freeze(model, batch=2)
    location = Graph(model).where(model.subgraphs[0].operators[0])
    reason = "only this operator itself can tell the shape of its result"
    assert report.dynamic[0] == DynamicTensor(0, "y", (-1, 4), location, reason)
    assert report.dynamic[1].reason == "follows from `y`"
    assert shapes(model) == {"x": (2, 6), "y": (-1, 4), "z": (-1, 4)}


def test_branches_that_differ() -> None:
    b = Builder()
    x = b.input("x", [-1, 6])
    twice = b.model([b.op(Op.TILE, [x, b.constant("counts", [2, 1])], shape=[-1, 6])])
    model = branching(twice, body(Op.ABS))
    report = freeze(model, batch=2)
    assert [d.reason for d in report.dynamic] == ["the branches return different shapes, or do not tell them"]
    assert shapes(model, 1)["tile_0"] == (4, 6)


# -- refusals ----------------------------------------------------------------------------------------------------------


def assert_refused(model: Model, message: str, **given: Any) -> None:
    before = deepcopy(model)
    with pytest.raises(LitefuseError, match=message):
        freeze(model, **given)
    assert not list(diff(before, model))


def test_unknown_names() -> None:
    model = gated_model()
    message = r"there is no input `y`; the inputs are: `x` \[\?, 6, 6, 4\]$"
    assert_refused(model, message, input_shapes={"y": [1, 6, 6, 4]})
    model.subgraphs[0].tensors[model.subgraphs[0].inputs[0]].name = "serving_default_x"
    assert_refused(model, r"are: `x` \(tensor `serving_default_x`\) \[\?", input_shapes={"y": [1, 6, 6, 4]})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([1, 6, 6], r"`x` \[\?, 6, 6, 4\]: \[1, 6, 6\] has 3 dimensions instead of 4"),
        ([1, 6, 5, 4], "dimension 2 is 6 and cannot be 5"),
        ([0, 6, 6, 4], "is not a shape"),
        ([-2, 6, 6, 4], "is not a shape"),
        ([2**31, 6, 6, 4], "is too large"),
    ],
)
def test_shapes_that_do_not_fit(shape: list[int], message: str) -> None:
    assert_refused(gated_model(), message, input_shapes={"x": shape})


@pytest.mark.parametrize("batch", [0, -1])
def test_batches_that_are_none(batch: int) -> None:
    assert_refused(gated_model(), "the batch must be 1 at least", batch=batch)


def test_batches_that_are_too_large() -> None:
    assert_refused(gated_model(), "too large", batch=2**31)


def test_two_names_for_one_input() -> None:
    model = gated_model()
    model.subgraphs[0].tensors[model.subgraphs[0].inputs[0]].name = "serving_default_x"
    shapes = {"x": [1, 6, 6, 4], "serving_default_x": [2, 6, 6, 4]}
    assert_refused(model, "dimension 0 is 1 and cannot be 2", input_shapes=shapes)


def test_one_name_for_two_inputs() -> None:
    b = Builder()
    x, y = b.input("x", [-1, 3]), b.input("y", [-1, 3])
    model = b.model([b.op(Op.ADD, [x, y], shape=[-1, 3])], "main")
    model.signature_defs[0].inputs[1].name = "x"
    assert_refused(model, "`x` names several inputs, `x`, `y`", input_shapes={"x": [1, 3]})
    freeze(model, {"y": [1, 3]})


@pytest.mark.parametrize("signature", [[-1, 5, 6, 4], [-1, 6, 6]])
def test_inputs_on_which_the_file_contradicts_itself(signature: list[int]) -> None:
    model = gated_model()
    model.subgraphs[0].tensors[model.subgraphs[0].inputs[0]].shape_signature = signature
    assert_refused(model, "the file contradicts itself on input `x`", batch=1)


def test_shapes_with_which_the_model_cannot_run() -> None:
    b = Builder()
    x = b.input("x", [-1, 6])
    model = b.model([b.op(Op.RESHAPE, [x, b.constant("one", [1, 2, 3])], name="y", shape=[1, 2, 3])])
    message = r"cannot run with these input shapes: RESHAPE #0 `y`: \[2, 6\] cannot be reshaped to \[1, 2, 3\]"
    assert_refused(model, message, batch=2)
    freeze(model, batch=1)
    results(model, normal(1, 6))


def test_shapes_with_which_a_branch_cannot_run() -> None:
    b = Builder()
    x = b.input("x", [-1, 6])
    other = b.model([b.op(Op.RESHAPE, [x, b.constant("one", [1, 6])], shape=[1, 6])])
    assert_refused(branching(body(Op.ABS), other), "RESHAPE #0 .* of subgraph 2", batch=2)


def recurrent(state: list[int], signature: list[int] | None) -> Model:
    b = Builder()
    x = b.input("x", [-1, 3])
    operands = [b.constant(n, weights(*s)) for n, s in (("w", (4, 3)), ("r", (4, 4)), ("b", (4,)))]
    kept = b.constant("state", np.zeros(state, np.float32))
    model = b.model([b.op(Op.RNN, [x, *operands, kept], name="y", shape=[-1, 4])])
    table = model.subgraphs[0].tensors[kept]
    table.is_variable, table.buffer, table.shape_signature = True, 0, signature
    return model


def test_state_has_the_size_that_the_file_gives() -> None:
    model = recurrent([2, 4], [-1, 4])
    assert_refused(model, r"the state in input 4 has shape \[2, 4\], not \[1, 4\]", batch=1)
    before = deepcopy(model)
    report = freeze(model, batch=2)
    assert report.dynamic == []
    assert shapes(model) == {"x": (2, 3), "state": (2, 4), "y": (2, 4)}
    assert_same(before, model, normal(2, 3))


def test_declarations_of_computed_tensors_may_be_wrong() -> None:
    before = gated_model()
    for tensor in before.subgraphs[0].tensors:
        if tensor.name in ("gated", "target"):
            tensor.shape, tensor.shape_signature = [7], None
    after = deepcopy(before)
    freeze(after, batch=2)
    assert shapes(after)["gated"] == (2, 6, 6, 4)
    assert_same(before, after, normal(2, 6, 6, 4))


# -- real models -------------------------------------------------------------------------------------------------------


def test_real_models(corpus: list[Path], corpus_index: dict[str, dict[str, str]]) -> None:
    frozen: list[str] = []
    for path in corpus:
        model = read(path)
        graph = Graph(model)
        declared = {t: graph.shape(t) or () for t in graph.subgraph.inputs}
        if all(-1 not in shape for shape in declared.values()):
            continue
        runs = corpus_index.get(path.stem, {}).get("runs_litert_2.3.0", "yes") == "yes"
        if not freezes(model, declared, 2, runs):
            # There are models that keep a batch of 1 in a constant shape.
            assert freezes(model, declared, 1, runs), path.stem
        frozen.append(path.stem)
    assert len(frozen) > 30


def freezes(before: Model, declared: dict[int, tuple[int, ...]], batch: int, runs: bool) -> bool:
    """Whether a model can be frozen, to 5 beside the batch; asserts that it is right where it can be run."""
    model = deepcopy(before)
    graph = Graph(before)
    shapes = {t: [5 if d < 0 and i else batch if d < 0 else d for i, d in enumerate(s)] for t, s in declared.items()}
    inputs = [value(graph.type(t), s) for t, s in shapes.items()]
    try:
        report = freeze(model, {graph.name(t): [-1, *s[1:]] for t, s in shapes.items() if s}, batch)
    except LitefuseError:
        with pytest.raises((RuntimeError, ValueError)):
            results(before, *inputs)
        return False
    assert report.inputs
    assert report.dynamic or "SHAPE" not in kinds(model)
    if runs:
        assert_same(before, model, *inputs)
    return True


def value(type: TensorType, shape: list[int]) -> Any:
    rng = np.random.default_rng(0)
    if type == TensorType.STRING:
        return np.full(shape, "text", object)
    return rng.standard_normal(shape).astype(np.float32) if type == F32 else rng.integers(0, 5, shape, NUMPY[type])
