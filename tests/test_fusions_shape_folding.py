"""Shape arithmetic with unknown dimensions: what is constant all the same, and reshapes that leave one open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litefuse.fusions import constant_folding, shape_folding
from litefuse.graph import Graph
from litefuse.graph.build import Builder, quantized
from litefuse.graph.declared import contradiction
from litefuse.schema import Model, deepcopy, read, to_bytes
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import IfOptions, Tensor
from tests.chains import I32, dense_model, element, gated_model, packed, shape_of, target
from tests.rules import apply, assert_same, fuse, kinds, looped, operators, refusals, results
from tests.test_infer import attach

DIMENSIONS, RESHAPE = shape_folding.RULES
ALL = (*constant_folding.rules(), DIMENSIONS, RESHAPE)
F32, BOOL, I8, I64 = TensorType.FLOAT32, TensorType.BOOL, TensorType.INT8, TensorType.INT64


def targets(model: Model, subgraph: int = 0) -> list[list[int]]:
    """The constant targets of a model's reshapes."""
    graph = Graph(model, subgraph)
    values = [graph.constant(op.inputs[1]) for op in operators(model, "RESHAPE", subgraph)]
    return [v.tolist() for v in values if v is not None]


def named(model: Model, name: str) -> Tensor:
    [tensor] = [t for t in model.subgraphs[0].tensors if t.name == name]
    return tensor


def reshaping(
    make: Callable[[Builder, int], int],
    given: list[int],
    result: list[int],
    type: TensorType = F32,
    quantization: Any = None,
) -> Model:
    """RELU, RESHAPE to what ``make`` computes, and RELU again."""
    b = Builder()
    x = b.input("x", given, type, quantization)
    version = 2 if type == I8 else 1
    before = b.op(Op.RELU, [x], name="before", shape=given, version=version)
    y = b.op(Op.RESHAPE, [before, make(b, before)], name="reshaped", shape=result)
    return b.model([b.op(Op.RELU, [y], shape=result, version=version)])


# -- reshapes that leave one dimension open --------------------------------------------------------------------------


def test_gate() -> None:
    after, report = fuse(gated_model(), RESHAPE)
    assert kinds(after) == ["MEAN", "RESHAPE", "CONV_2D", "LOGISTIC", "MUL"]
    assert targets(after) == [[-1, 1, 1, 4]]
    assert [c.reason for c in report.applied] == ["to [?, 1, 1, 4]"]
    assert named(after, "x").shape_signature == [-1, 6, 6, 4]
    assert_same(gated_model(), after, batches=(1, 2, 7))


def test_dense_layer() -> None:
    after, _ = fuse(dense_model(), RESHAPE)
    assert kinds(after) == ["RESHAPE", "FULLY_CONNECTED", "RESHAPE", "RELU"]
    assert targets(after) == [[-1, 4], [-1, 3, 5, 6]]
    assert named(after, "flat").shape_signature == [-1, 4]  # the file said [-1, -1]


def test_gate_of_several_batches_at_once() -> None:
    after, _ = fuse(gated_model(), RESHAPE)
    x = np.random.default_rng(0).standard_normal((4, 6, 6, 4)).astype(np.float32)
    whole = results(after, x)[0]
    for part, row in zip(whole, x, strict=True):
        np.testing.assert_array_equal(part, results(after, row[None])[0][0])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_open_dimension_anywhere(place: int) -> None:
    def make(b: Builder, x: int) -> int:
        batch = element(b, shape_of(b, x, 2), 0)
        rest = [b.constant(f"d{d}", d) for d in (2, 3)]
        return packed(b, *rest[:place], batch, *rest[place:])

    shape = [2, 3]
    shape.insert(place, -1)
    after, _ = fuse(reshaping(make, [-1, 6], shape), RESHAPE)
    assert targets(after) == [shape]


def test_everything_in_one_dimension() -> None:
    def make(b: Builder, x: int) -> int:
        return b.op(Op.REDUCE_PROD, [shape_of(b, x, 2), b.constant("axis", [0])], shape=[1], type=I32, keep_dims=True)

    after, _ = fuse(reshaping(make, [-1, 6], [-1]), RESHAPE)
    assert (kinds(after), targets(after)) == (["RELU", "RESHAPE", "RELU"], [[-1]])


def test_shape_of_another_tensor() -> None:
    b = Builder()
    x, y = b.input("x", [-1, 6]), b.input("y", [-1, 5])
    shaped = b.op(Op.RESHAPE, [b.op(Op.ABS, [x], shape=[-1, 6]), target(b, y, 2, 2, 3)], shape=[-1, 2, 3])
    after, _ = fuse(b.model([shaped, b.op(Op.NEG, [y], shape=[-1, 5])]), RESHAPE)
    assert targets(after) == [[-1, 2, 3]]


def test_placeholder_beside_the_batch() -> None:
    """[batch, -1, 3]: what -1 comes to is known, since batch is the only unknown dimension of the tensor itself."""
    after, _ = fuse(reshaping(lambda b, x: target(b, x, 3, -1, 3), [-1, 4, 6], [-1, -1, 3]), RESHAPE)
    assert targets(after) == [[-1, 8, 3]]
    assert named(after, "reshaped").shape_signature == [-1, 8, 3]


def test_placeholder_that_the_file_declares() -> None:
    b = Builder()
    x = b.input("x", [-1, 4, 6])
    y = b.op(Op.ABS, [x], shape=[-1, 4, 6])
    shaped = b.op(Op.RESHAPE, [y, target(b, x, 3, -1, 3)], shape=[-1, 8, 3])
    after, _ = fuse(b.model([b.op(Op.NEG, [shaped], shape=[-1, 8, 3])]), RESHAPE)
    assert targets(after) == [[-1, 8, 3]]


def test_target_with_other_readers() -> None:
    b = Builder()
    x = b.input("x", [-1, 6])
    shape = target(b, x, 2, 2, 3)
    y = b.op(Op.RESHAPE, [b.op(Op.ABS, [x], shape=[-1, 6]), shape], shape=[-1, 2, 3])
    zeros = b.op(Op.FILL, [shape, b.constant("zero", 1.0)], shape=[-1, 2, 3], type=F32)
    model = b.model([b.op(Op.ADD, [y, zeros], shape=[-1, 2, 3]), shape])
    after, _ = fuse(model, RESHAPE)
    assert targets(after) == [[-1, 2, 3]]
    assert kinds(after) == kinds(model)


def test_result_that_is_an_output() -> None:
    b = Builder()
    x = b.input("x", [-1, 6])
    y = b.op(Op.RESHAPE, [b.op(Op.ABS, [x], shape=[-1, 6]), target(b, x, 2, 2, 3)], name="y", shape=[-1, -1, -1])
    after, _ = fuse(b.model([y]), RESHAPE)
    assert targets(after) == [[-1, 2, 3]]
    assert named(after, "y").shape_signature == [-1, -1, -1]  # callers may rely on it


def test_quantized() -> None:
    model = reshaping(lambda b, x: target(b, x, 2, 2, 3), [-1, 6], [-1, 2, 3], I8, quantized(0.1, 3))
    after, _ = fuse(model, RESHAPE)
    assert targets(after) == [[-1, 2, 3]]


def test_loop_bodies() -> None:
    b = Builder()
    x = b.input("x", [-1, 6])
    y = b.op(Op.ABS, [b.op(Op.RESHAPE, [x, target(b, x, 2, 2, 3)], shape=[-1, 2, 3])], shape=[-1, 2, 3])
    model = looped(b.model([b.op(Op.RESHAPE, [y, target(b, y, 3, 6)], shape=[-1, 6])]))
    after, report = fuse(model, RESHAPE)
    assert targets(after, 2) == [[-1, 2, 3], [-1, 6]]
    assert {c.location.subgraph for c in report.applied} == {2}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 3), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_any_target(rest: list[int], place: int, random: Any) -> None:
    order = sorted(rest, key=lambda _: random.random())
    place = min(place, len(rest))

    def make(b: Builder, x: int) -> int:
        batch = element(b, shape_of(b, x, len(rest) + 1), 0)
        known = [b.constant(f"d{i}", d) for i, d in enumerate(order)]
        return packed(b, *known[:place], batch, *known[place:])

    after, _ = fuse(
        reshaping(make, [-1, *rest], [*order[:place], -1, *order[place:]]), RESHAPE, cases=["normal"], xnnpack=[True]
    )
    assert targets(after) == [[*order[:place], -1, *order[place:]]]


# -- refused ---------------------------------------------------------------------------------------------------------


def assert_refused(model: Model, words: str) -> None:
    [reason] = refusals(model, DIMENSIONS, RESHAPE)
    assert words in reason, reason


def test_two_unknown_dimensions() -> None:
    def make(b: Builder, x: int) -> int:
        shape = shape_of(b, x, 3)
        return packed(b, element(b, shape, 0), element(b, shape, 1), b.constant("two", 2), b.constant("three", 3))

    model = reshaping(make, [-1, -1, 6], [-1, -1, 2, 3])
    assert_refused(model, "more than one dimension of its target shape [?, ?, 2, 3] is unknown")


def test_placeholder_that_cannot_be_told() -> None:
    def another(b: Builder, x: int) -> int:
        return target(b, b.input("y", [-1, 2]), 2, -1, 3)

    def computed(b: Builder, x: int) -> int:
        twice = b.op(Op.MUL, [element(b, shape_of(b, x, 2), 0), b.constant("two", 2)], shape=[], type=I32)
        return packed(b, twice, b.constant("any", -1), b.constant("three", 3))

    def given_at_run_time(b: Builder, x: int) -> int:
        return packed(b, b.input("n", [], I32), b.constant("any", -1), element(b, shape_of(b, x, 2), 1))

    for make in (another, computed, given_at_run_time):
        [reason] = refusals(reshaping(make, [-1, 6], [-1, -1, -1]), RESHAPE)
        assert "more than one dimension" in reason
    two = reshaping(lambda b, x: target(b, x, 3, -1, 3), [-1, -1, 6], [-1, -1, 3])
    assert_refused(two, "more than one dimension")


def test_shapes_without_elements() -> None:
    model = reshaping(lambda b, x: target(b, x, 2, 0, 3), [-1, 0], [-1, 0, 3])
    assert_refused(model, "[?, 0, 3] has no elements")


def test_targets_that_do_not_come_from_shapes() -> None:
    def places(b: Builder, x: int) -> int:
        flags = b.op(Op.GREATER, [x, b.constant("zero", 0.0)], shape=[-1, 6], type=BOOL)
        found = b.op(Op.WHERE, [flags], name="found", shape=[-1, 2], type=I64)
        return b.op(
            Op.CAST, [b.op(Op.REDUCE_MAX, [found, b.constant("a", [0])], shape=[2], type=I64)], shape=[2], type=I32
        )

    assert_refused(reshaping(places, [-1, 6], [-1, -1]), "its target shape, from CAST #4 `cast_4`, cannot be told")


def tiled(size: int, *, edge: bool = False, type: TensorType = F32) -> Model:
    """TILE, RESHAPE and TILE, or RELU in place of the second TILE; ``size`` numbers are reshaped."""
    b = Builder()
    before = b.input("x", [-1, size // 2], type)
    x = b.op(Op.TILE, [before, b.constant("counts", [1, 2])], shape=[-1, size])
    y = b.op(Op.RESHAPE, [x, target(b, x, 2, 2, size // 2)], shape=[-1, 2, size // 2])
    if edge:
        return b.model([b.op(Op.RELU, [y], shape=[-1, 2, size // 2])])
    return b.model([b.op(Op.TILE, [y, b.constant("counts", [1, 1, 2])], shape=[-1, 2, size])])


def test_reshapes_that_xnnpack_would_copy() -> None:
    for model in (tiled(5000), tiled(5000, edge=True)):
        assert_refused(model, "would copy 20,000 bytes")
    for model in (tiled(4000), tiled(4000, edge=True), tiled(5000, type=I32)):
        after, _ = fuse(model, RESHAPE)
        assert len(targets(after)) == 1


def test_declarations_that_contradict_the_target() -> None:
    model = reshaping(lambda b, x: target(b, x, 2, 2, 3), [-1, 6], [-1, 2, 3])
    named(model, "reshaped").shape_signature = [-1, 3, 2]
    assert_refused(model, "the file declares shape [?, 3, 2] for `reshaped`, whose shape is [?, 2, 3]")


def test_declarations_that_contradict_the_shapes() -> None:
    def make(b: Builder, x: int) -> int:
        shape = shape_of(b, x, 2)
        return packed(b, element(b, shape, 0), b.constant("two", 2), element(b, shape, 1))

    model = reshaping(make, [-1, 6], [-1, 2, -1])
    named(model, "before").shape_signature = [-1, 3]
    [reason, again] = refusals(model, DIMENSIONS, RESHAPE)
    assert reason == again == "the file declares shape [?, 3] for `before`, whose shape is [?, 6]"


def test_declarations_that_forget_the_batch() -> None:
    model = reshaping(lambda b, x: target(b, x, 2, 2, 3), [-1, 6], [-1, 2, 3])
    named(model, "before").shape_signature = None
    reason = "the file declares shape [1, 6] for `before`, whose shape is [2, 6] for `x` [2, 6]"
    assert contradiction(Graph(model), Graph(model).subgraph.operators[0].outputs[0]) == reason
    assert set(refusals(model, DIMENSIONS, RESHAPE)) == {reason}


def test_whole_shapes_that_forget_the_batch() -> None:
    b = Builder()
    x = b.op(Op.ABS, [b.input("x", [-1, 6])], name="x_abs", shape=[1, 6])
    model = b.model([b.op(Op.NEG, [shape_of(b, x, 2)], shape=[2], type=I32)])
    reason = "the file declares shape [1, 6] for `x_abs`, whose shape is [2, 6] for `x` [2, 6]"
    assert refusals(model, *constant_folding.rules()) == [reason]


@pytest.mark.parametrize("inside", [[1, 6], [-1, 3]])
def test_branches_that_declare_other_shapes_than_they_get(inside: list[int]) -> None:
    b = Builder()
    flag, x = b.input("flag", [], BOOL), b.input("x", [-1, 6])
    model = b.model([b.op(Op.IF, [flag, x], shape=[-1, 2, 3], type=F32)])
    for _ in range(2):
        inner = Builder()
        v = inner.input("v", inside)
        body = inner.model(
            [inner.op(Op.RESHAPE, [inner.op(Op.ABS, [v], shape=inside), target(inner, v, 2, 2, 3)], shape=[-1, 2, 3])]
        )
        attach(model, body)
    operators(model, "IF")[0].builtin_options = IfOptions(then_subgraph_index=1, else_subgraph_index=2)
    shown = "[1, 6]" if inside == [1, 6] else "[?, 3]"
    reason = f"the file declares shape {shown} for `v`, whose shape is [2, 6] for `v` [2, 6]"
    assert set(refusals(model, *ALL)) == {reason}


def test_the_batch_stays_open_whatever_the_file_declares() -> None:
    b = Builder()
    x = b.input("x", [-1, 24])
    unknown = b.op(Op.RELU, [x], name="unknown", shape=[-1, 4, 6])
    y = b.op(Op.RESHAPE, [b.op(Op.ABS, [unknown], shape=[-1, 4, 6]), target(b, unknown, 3, -1, 3)], shape=[1, 8, 3])
    model = b.model([b.op(Op.NEG, [y], shape=[1, 8, 3])])
    model.operator_codes[0].builtin_code = model.operator_codes[0].deprecated_builtin_code = Op.CUSTOM
    model.operator_codes[0].custom_code = "Mystery"
    apply(model, RESHAPE)
    assert targets(model) == [[-1, 8, 3]]


def test_reshapes_that_cannot_run() -> None:
    b = Builder()
    x, y = b.input("x", [1, 7]), b.input("y", [-1, 2])
    shaped = b.op(Op.RESHAPE, [b.op(Op.ABS, [x], shape=[1, 7]), target(b, y, 2, 2, 3)], shape=[-1, 2, 3])
    [reason] = refusals(b.model([shaped, y]), RESHAPE)
    assert reason == "[1, 7] cannot be reshaped to [?, 2, 3]"


def test_targets_that_the_kernel_ignores() -> None:
    b = Builder()
    x = b.input("x", [-1, 6])
    wide = b.op(Op.CAST, [target(b, x, 2, 2, 3)], shape=[3], type=I64)
    y = b.op(Op.RESHAPE, [b.op(Op.ABS, [x], shape=[-1, 6]), wide], shape=[-1, 3, 2], new_shape=[-1, 3, 2])
    assert refusals(b.model([y]), DIMENSIONS, RESHAPE) == []


def test_targets_that_are_given() -> None:
    b = Builder()
    x, shape = b.input("x", [-1, 6]), b.input("shape", [3], I32)
    assert refusals(b.model([b.op(Op.RESHAPE, [x, shape], shape=[-1, -1, -1])]), DIMENSIONS, RESHAPE) == []


# -- what does not depend on the unknown -----------------------------------------------------------------------------


def test_known_elements_of_a_shape() -> None:
    b = Builder()
    x = b.input("x", [-1, 2, 3])
    size = element(b, shape_of(b, x, 3), 1)
    zeros = b.op(Op.FILL, [packed(b, size, b.constant("three", 3)), b.constant("one", 1.0)], shape=[2, 3], type=F32)
    after, report = fuse(b.model([b.op(Op.ADD, [x, zeros], shape=[-1, 2, 3])]), *ALL)
    assert kinds(after) == ["ADD"]
    assert report.counts() == {"fold-dimensions": 1, "fold-constants": 2}


def test_arithmetic_on_known_elements() -> None:
    b = Builder()
    x = b.input("x", [-1, 4, 6])
    shape = b.op(Op.SLICE, [shape_of(b, x, 3), b.constant("at", [1]), b.constant("n", [2])], shape=[2], type=I32)
    half = b.op(Op.FLOOR_DIV, [shape, b.constant("two", [2, 2])], shape=[2], type=I32)
    resized = b.op(
        Op.RESIZE_NEAREST_NEIGHBOR,
        [b.op(Op.EXPAND_DIMS, [x, b.constant("axis", 3)], shape=[-1, 4, 6, 1]), half],
        shape=[-1, 2, 3, 1],
    )
    after, _ = fuse(b.model([resized]), DIMENSIONS, *constant_folding.rules())
    assert kinds(after) == ["EXPAND_DIMS", "RESIZE_NEAREST_NEIGHBOR"]


def test_operators_with_several_outputs() -> None:
    b = Builder()
    x = b.input("x", [-1, 4, 6])
    parts = b.op(Op.UNPACK, [shape_of(b, x, 3)], outputs=3, shape=[], type=I32, num=3, axis=0)
    flat = packed(b, parts, b.op(Op.MUL, [parts + 1, parts + 2], shape=[], type=I32))
    y = b.op(Op.RESHAPE, [b.op(Op.ABS, [x], shape=[-1, 4, 6]), flat], shape=[-1, 24])
    fill = b.op(Op.FILL, [packed(b, parts, b.constant("n", 24)), b.constant("one", 1.0)], shape=[-1, 24], type=F32)
    after, report = fuse(b.model([b.op(Op.ADD, [y, fill], shape=[-1, 24])]), *ALL)
    assert kinds(after) == ["SHAPE", "UNPACK", "ABS", "RESHAPE", "PACK", "FILL", "ADD"]
    assert targets(after) == [[-1, 24]]
    assert report.counts()["fold-dimensions"] == 1


def test_results_that_are_outputs() -> None:
    b = Builder()
    x = b.input("x", [-1, 4])
    size = element(b, shape_of(b, x, 2), 1, "size")
    other = b.op(Op.MUL, [b.op(Op.CAST, [size], shape=[], type=F32), x], shape=[-1, 4])
    after, _ = fuse(b.model([size, other]), *ALL)
    assert kinds(after) == ["SHAPE", "STRIDED_SLICE", "MUL"]


def test_products_of_segments() -> None:
    b = Builder()
    x = b.input("x", [-1, 4, 2, 3])
    operands = [b.constant("segments", [0, 1, 2, 2]), b.constant("count", 3)]
    shape = b.op(Op.UNSORTED_SEGMENT_PROD, [shape_of(b, x, 4), *operands], shape=[3], type=I32)
    y = b.op(Op.RESHAPE, [b.op(Op.ABS, [x], shape=[-1, 4, 2, 3]), shape], shape=[-1, 4, 6])
    after, _ = fuse(b.model([y]), RESHAPE)
    assert targets(after) == [[-1, 4, 6]]


def test_integers_that_are_no_shapes() -> None:
    b = Builder()
    x = b.input("x", [-1, 4], I32)
    y = b.op(Op.ADD, [b.op(Op.MUL, [x, x], shape=[-1, 4]), b.constant("one", 1)], shape=[-1, 4])
    shape = b.op(Op.MUL, [shape_of(b, x, 2), b.constant("two", 2)], shape=[2], type=I32)
    assert refusals(b.model([y, shape]), DIMENSIONS) == []


# -- real models -----------------------------------------------------------------------------------------------------


def test_real_models(corpus: list[Path], corpus_index: dict[str, dict[str, str]]) -> None:
    changed = {}
    for path in corpus:
        model = read(path)
        after = deepcopy(model)
        counts = apply(after, DIMENSIONS, RESHAPE).counts()
        if not counts:
            continue
        changed[path.stem] = counts
        if corpus_index.get(path.stem, {}).get("runs_litert_2.3.0", "yes") == "yes":
            assert_same(model, after, cases=["normal"], batches=(1, 2))
        else:
            to_bytes(after)
    assert changed["basic_pitch_nmp"] == {"constant-reshape": 5}
