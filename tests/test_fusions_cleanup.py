"""Dead operators, duplicates, shared buffers, and constants computed beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litefuse.fusions import Numerics, constant_folding, dead_code, duplicates, identity, run
from litefuse.fusions.duplicates import share_buffers
from litefuse.graph import Graph
from litefuse.graph.build import Builder, quantized
from litefuse.graph.compact import CONTROL_DEPENDENCIES
from litefuse.schema import Model, deepcopy, read, to_bytes
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Buffer, Metadata
from tests.rules import apply, assert_same, fuse, kinds, operators, refusals, results

[DEAD] = dead_code.RULES
TWINS, SHARED = duplicates.RULES
FOLDS = constant_folding.rules()
SHAPES, FOLD, FOLD_QUANTIZED, FOLD_MATH = FOLDS

F32, F16, I8, I32, I64 = (TensorType[n] for n in ("FLOAT32", "FLOAT16", "INT8", "INT32", "INT64"))
SHAPE = (1, 4, 4, 3)
NOISE = np.random.default_rng(7)


def floats(*shape: int) -> Any:
    return NOISE.standard_normal(shape).astype(np.float32)


# -- dead code ---------------------------------------------------------------------------------------------------------


def test_dead_chain_vanishes_in_one_go() -> None:
    b = Builder()
    x = b.input("x", SHAPE)
    dead = b.op(Op.ABS, [x])
    for _ in range(5):
        dead = b.op(Op.NEG, [dead])
    b.op(Op.ADD, [dead, x])
    result, report = fuse(b.model([b.op(Op.EXP, [x])]), DEAD)
    assert kinds(result) == ["EXP"]
    assert report.counts() == {"remove-dead": 1}
    assert len(result.subgraphs[0].tensors) == 2


def test_operator_with_one_live_result_stays() -> None:
    b = Builder()
    first = b.op(Op.SPLIT, [b.constant("axis", np.int32(1)), b.input("x", (1, 4))], outputs=2, num_splits=2, type=F32)
    assert refusals(b.model([b.op(Op.NEG, [first + 1])]), DEAD) == []


def svdf_model() -> Model:
    """Two equal SVDF operators, each of which updates a state, the second's result unused."""
    b = Builder()
    x = b.input("x", (1, 2))
    w = [b.constant(n, floats(*s)) for n, s in (("w", (4, 2)), ("t", (4, 3)), ("b", (4,)))]
    state = b.constant("state", np.zeros((1, 12), np.float32))
    made = [b.op(Op.SVDF, [x, *w, state], rank=1, shape=[1, 4]) for _ in range(2)]
    model = b.model([made[0]])
    table = model.subgraphs[0].tensors[state]
    table.is_variable, table.buffer = True, 0
    return model


def test_state_and_side_effects_stay() -> None:
    assert refusals(svdf_model(), DEAD, TWINS, *FOLDS) == []
    b = Builder()
    x = b.input("x", SHAPE)
    b.op(Op.CUSTOM, [x], shape=SHAPE)
    b.op(Op.RANDOM_UNIFORM, [b.constant("shape", [2, 2])], shape=[2, 2], type=F32)
    model = b.model([b.op(Op.NEG, [x], shape=SHAPE)])
    model.operator_codes[0].custom_code = "Unknown"
    copy = deepcopy(model)
    apply(copy, DEAD)
    # A random number that nobody reads has no effect; what a custom operator does, nobody knows.
    assert kinds(copy) == ["CUSTOM", "NEG"]


# -- duplicates --------------------------------------------------------------------------------------------------------


def test_equal_operators_merge_down_the_graph() -> None:
    b = Builder()
    x = b.input("x", SHAPE)
    branches = []
    for i in range(3):
        y = b.op(Op.TRANSPOSE, [x, b.constant(f"p{i}", [0, 2, 1, 3])])
        branches.append(b.op(Op.EXP, [b.op(Op.MUL, [y, b.constant(f"c{i}", [1.5, 2.5, -3.0])])]))
    model = b.model([b.op(Op.NEG, [b.op(Op.ADD, [b.op(Op.ADD, branches[:2]), branches[2]])])])
    result, report = fuse(model, TWINS)
    assert kinds(result) == ["TRANSPOSE", "MUL", "EXP", "ADD", "ADD", "NEG"]
    assert report.counts() == {"merge-duplicates": 6}
    assert report.applied[0].reason.startswith("same as ")


def pair(first: dict[str, Any], second: dict[str, Any], kind: Op = Op.MUL, constants: Any = (1.5, 1.5)) -> Model:
    """Two operators on the same input that differ as given."""
    b = Builder()
    x = b.input("x", SHAPE)
    made = [b.op(kind, [x, b.constant(f"c{i}", constants[i])], **options) for i, options in enumerate((first, second))]
    return b.model([b.op(Op.NEG, [made[0]]), b.op(Op.NEG, [made[1]])])


def test_pair_is_one() -> None:
    assert kinds(fuse(pair({}, {}), TWINS)[0])[0] == "MUL"
    # The NEGs that read it are twins then, but both results leave the model.
    model = pair({}, {})
    copy = deepcopy(model)
    report = apply(copy, TWINS)
    [refusal] = report.refused
    assert "the results of both are outputs of the graph" in refusal.reason
    assert kinds(copy) == ["MUL", "NEG", "NEG"]


def with_middle(number: float) -> Any:
    """A constant whose ends, where the rule looks first, are the same for every ``number``."""
    value = np.ones((4, 4, 3), np.float32)
    value[2, 0, 0] = number
    return value


DIFFERENT = {
    "constants": pair({}, {}, constants=(1.5, 1.25)),
    "sign of zero": pair({}, {}, constants=(0.0, -0.0)),
    "constants' shapes": pair({}, {}, constants=(np.float32(1.5), np.full(1, 1.5, np.float32))),
    "constants' middles": pair({}, {}, constants=(with_middle(1.0), with_middle(2.0))),
    "options": pair({}, {"fused_activation_function": ActivationFunctionType.RELU}),
    "versions": pair({}, {"version": 2}),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_operators_that_differ_stay(what: str) -> None:
    assert refusals(DIFFERENT[what], TWINS) == []


def test_operands_in_another_order_are_others() -> None:
    b = Builder()
    x, y = b.input("x", SHAPE), b.input("y", SHAPE)
    model = b.model([b.op(Op.ADD, [b.op(Op.SUB, [x, y]), b.op(Op.SUB, [y, x])])])
    assert refusals(model, TWINS) == []


def test_quantised_results_with_other_parameters_stay() -> None:
    def model(scale: float) -> Model:
        b = Builder()
        x = b.input("x", SHAPE)
        made = [b.op(Op.QUANTIZE, [x], type=I8, quantization=quantized(s, 3)) for s in (0.1, scale)]
        return b.model([b.op(Op.ADD, made, version=2, pot_scale_int16=False)])

    assert refusals(model(0.2), TWINS) == []
    assert kinds(fuse(model(0.1), TWINS)[0]) == ["QUANTIZE", "ADD"]


def test_quantised_constants_are_compared_with_their_parameters() -> None:
    def model(scale: float) -> Model:
        b = Builder()
        x = b.input("x", SHAPE, I8, quantized(0.1, 3))
        stored = np.array([1, 2, 3], np.int8)
        made = [
            b.op(Op.MUL, [x, b.constant(f"c{i}", stored, quantized(s, 0))], version=2)
            for i, s in enumerate((0.1, scale))
        ]
        return b.model([b.op(Op.ADD, made, version=2, pot_scale_int16=False)])

    assert refusals(model(0.2), TWINS) == []
    assert kinds(fuse(model(0.1), TWINS)[0]) == ["MUL", "ADD"]


def test_operators_with_several_results() -> None:
    def model(outputs: str) -> Model:
        b = Builder()
        axis, x = b.constant("axis", np.int32(1)), b.input("x", (1, 4))
        one, two = (b.op(Op.SPLIT, [axis, x], outputs=2, num_splits=2, type=F32) for _ in range(2))
        total = b.op(Op.ADD, [b.op(Op.SUB, [one, one + 1]), b.op(Op.MUL, [two, two + 1])])
        return b.model({"none": [total], "second": [total, two + 1], "both": [total, one + 1, two + 1]}[outputs])

    assert kinds(fuse(model("none"), TWINS)[0]) == ["SPLIT", "SUB", "MUL", "ADD"]
    assert kinds(fuse(model("second"), TWINS)[0]) == ["SPLIT", "SUB", "MUL", "ADD"]
    [reason] = refusals(model("both"), TWINS)
    assert "outputs of the graph" in reason


def test_later_twin_is_the_models_output() -> None:
    b = Builder()
    x = b.input("x", SHAPE)
    first, second = b.op(Op.EXP, [x]), b.op(Op.EXP, [x], name="answer")
    model = b.model([b.op(Op.NEG, [first]), second])
    result, _ = fuse(model, TWINS)
    assert kinds(result) == ["EXP", "NEG"]
    assert result.subgraphs[0].tensors[result.subgraphs[0].outputs[1]].name == "answer"


def test_float16_weights_are_widened_once() -> None:
    b = Builder()
    x = b.input("x", (1, 8))
    weights = floats(8, 8).astype(np.float16)
    tensors = [b.constant("w", weights)] * 2 + [b.constant("copy", weights)]
    wide = [b.op(Op.DEQUANTIZE, [t], type=F32, version=3) for t in tensors]
    for w in wide:
        x = b.op(Op.FULLY_CONNECTED, [x, w], shape=[1, 8])
    result, report = fuse(b.model([x]), TWINS)
    assert kinds(result) == ["DEQUANTIZE", *["FULLY_CONNECTED"] * 3]
    assert report.counts() == {"merge-duplicates": 2}


def test_random_numbers_are_drawn_twice() -> None:
    b = Builder()
    shape = b.constant("shape", [2, 2])
    made = [b.op(Op.RANDOM_UNIFORM, [shape], shape=[2, 2], type=F32, seed=1, seed2=2) for _ in range(2)]
    b.input("unused", [1])
    assert refusals(b.model([b.op(Op.SUB, made)]), TWINS, *FOLDS) == []


def test_operators_repeated_on_purpose_stay() -> None:
    model = pair({}, {})
    model.buffers.append(Buffer(data=bytes([1, 1, 0])))
    model.metadata.append(Metadata(name=CONTROL_DEPENDENCIES, buffer=len(model.buffers) - 1))
    assert refusals(model, TWINS) == []


def test_order_of_execution_is_kept_when_twins_appear_late() -> None:
    # The later NEG has been seen when the earlier one comes to read the same tensor.
    b = Builder()
    x = b.input("x", SHAPE)
    copy = b.op(Op.RESHAPE, [x, b.constant("s", list(SHAPE))])
    early = b.op(Op.ABS, [b.op(Op.NEG, [copy])])
    late = b.op(Op.EXP, [b.op(Op.NEG, [x])])
    model = b.model([b.op(Op.ADD, [early, late])])
    graph = Graph(model)
    reshape, negated, _, other, *_ = graph.operators()
    assert TWINS.apply(graph, other) is None
    assert graph.bypass(reshape, x)
    assert TWINS.apply(graph, negated) is not None
    assert other not in graph
    graph.commit()
    assert kinds(model) == ["NEG", "ABS", "EXP", "ADD"]
    results(model, floats(*SHAPE))


def test_many_alike_operators_are_fast() -> None:
    b = Builder()
    x = b.input("x", [1, 2000])
    parts = []
    for i in range(2000):
        begin, size = b.constant(f"b{i}", [0, i]), b.constant(f"s{i}", [1, 1])
        parts.append(b.op(Op.SLICE, [x, begin, size], shape=[1, 1]))
    model = b.model([b.op(Op.CONCATENATION, parts, axis=1, shape=[1, 2000])])
    compared = 0
    same = duplicates._same

    def counted(*arguments: Any) -> bool:
        nonlocal compared
        compared += 1
        return same(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_same", counted)
        apply(model, TWINS)
    assert compared == 0


# -- buffers -----------------------------------------------------------------------------------------------------------


def test_equal_constants_share_a_buffer() -> None:
    weights = floats(8, 8)
    b = Builder()
    x = b.input("x", (1, 8))
    for i in range(3):
        x = b.op(Op.FULLY_CONNECTED, [x, b.constant(f"w{i}", weights.copy())])
    model = b.model([x])
    before = deepcopy(model)
    assert share_buffers(model) == 2 * weights.nbytes
    assert share_buffers(model) == 0
    run(model, [])
    assert len(model.buffers) == 2
    assert len(to_bytes(model)) < len(to_bytes(before)) - 400
    assert_same(before, model)


def shared(*constants: tuple[Any, Any]) -> list[int]:
    """The buffers of constants, given as value and quantisation, after sharing."""
    b = Builder()
    b.input("x", [1])
    tensors = [b.constant(f"c{i}", value, quantization) for i, (value, quantization) in enumerate(constants)]
    model = b.model([])
    share_buffers(model)
    return [model.subgraphs[0].tensors[t].buffer for t in tensors]


def test_only_constants_that_are_equal_in_everything_share() -> None:
    w, q = floats(4, 4), np.arange(8, dtype=np.int8)
    assert len(set(shared((w, None), (w, None)))) == 1
    assert len(set(shared((w, None), (w.reshape(2, 8), None)))) == 2
    assert len(set(shared((w, None), (w.view(np.int32), None)))) == 2
    assert len(set(shared((w, None), (w + 1, None)))) == 2
    assert len(set(shared((q, quantized(0.1)), (q, quantized(0.1))))) == 1
    assert len(set(shared((q, quantized(0.1)), (q, quantized(0.2))))) == 2
    middle = np.zeros(1000, np.float32)
    middle[500] = 1
    assert len(set(shared((middle, None), (np.zeros(1000, np.float32), None)))) == 2


def test_buffers_with_other_uses_are_left_alone() -> None:
    weights = floats(4, 4)

    def model() -> tuple[Model, list[int]]:
        b = Builder()
        b.input("x", [1])
        return b.model([]), [b.constant(f"c{i}", weights) for i in range(2)]

    m, (first, second) = model()
    assert share_buffers(m) == weights.nbytes
    m, (first, second) = model()
    m.subgraphs[0].tensors[second].is_variable = True
    assert share_buffers(m) == 0
    m, (first, second) = model()
    m.subgraphs[0].inputs.append(first)
    assert share_buffers(m) == 0
    m, (first, second) = model()
    m.subgraphs[0].outputs.append(second)
    assert share_buffers(m) == 0
    m, (first, second) = model()
    m.metadata.append(Metadata(name="weights", buffer=m.subgraphs[0].tensors[first].buffer))
    assert share_buffers(m) == 0


def test_sharing_reaches_across_subgraphs() -> None:
    b = Builder()
    b.input("x", [1])
    b.constant("c", floats(4, 4))
    model = b.model([])
    copy = deepcopy(model.subgraphs[0])
    model.buffers.append(Buffer(data=bytes(model.buffers[1].data or b"")))
    copy.tensors[1].buffer = 2
    model.subgraphs.append(copy)
    assert share_buffers(model) == 64
    assert copy.tensors[1].buffer == 1


# -- folding -----------------------------------------------------------------------------------------------------------


def test_chain_of_constants_becomes_one() -> None:
    b = Builder()
    x = b.input("x", SHAPE)
    w = b.op(Op.RESHAPE, [b.constant("w", floats(3)), b.constant("s", [1, 1, 1, 3])])
    w = b.op(Op.MUL, [w, b.constant("two", 2.0)], shape=[1, 1, 1, 3])
    w = b.op(Op.NEG, [b.op(Op.ADD, [w, b.constant("one", [1.0, 2.0, 3.0])], shape=[1, 1, 1, 3])], shape=[1, 1, 1, 3])
    result, report = fuse(b.model([b.op(Op.MUL, [x, w])]), FOLD)
    assert kinds(result) == ["MUL"]
    assert report.counts() == {"fold-constants": 4}


def test_only_the_class_that_is_asked_for_is_folded() -> None:
    b = Builder()
    x = b.input("x", SHAPE)
    w = b.op(Op.EXP, [b.constant("w", floats(3))])
    model = b.model([b.op(Op.MUL, [x, w])])
    assert refusals(model, SHAPES, FOLD, FOLD_QUANTIZED) == []
    result, report = fuse(model, FOLD_MATH)
    assert kinds(result) == ["MUL"]
    assert report.counts() == {"fold-constant-math": 1}
    # Exactly what the builtin kernels compute.
    assert_same(model, result, Numerics.EXACT, xnnpack=[False])


def test_quantised_values_keep_their_parameters() -> None:
    b = Builder()
    x = b.input("x", SHAPE, I8, quantized(0.1, 3))
    c = [b.constant(f"c{i}", np.arange(3, dtype=np.int8), quantized(0.05, 1)) for i in range(2)]
    w = b.op(Op.ADD, c, version=2, quantization=quantized(0.07, -2), pot_scale_int16=False)
    w = b.op(Op.RESHAPE, [w, b.constant("s", [1, 1, 1, 3])])
    model = b.model([b.op(Op.MUL, [x, w], version=2)])
    result, report = fuse(model, FOLD, FOLD_QUANTIZED)
    assert kinds(result) == ["MUL"]
    assert report.counts() == {"fold-quantized-constants": 1, "fold-constants": 1}
    graph = Graph(result)
    q = graph.quantization(operators(result, "MUL")[0].inputs[1])
    assert q is not None
    assert (q.scale, q.zero_point) == (np.float32(0.07), -2)


def test_float16_weights_stay_unless_asked() -> None:
    b = Builder()
    x = b.input("x", (1, 64))
    w = b.op(Op.DEQUANTIZE, [b.constant("w", floats(8, 64).astype(np.float16))], type=F32, version=3)
    model = b.model([b.op(Op.FULLY_CONNECTED, [x, w], shape=[1, 8])])
    assert refusals(model, *FOLDS) == []
    result, report = fuse(model, *constant_folding.rules(widen_fp16=True))
    assert kinds(result) == ["FULLY_CONNECTED"]
    assert report.counts() == {"fold-constants": 1}
    assert Graph(result).type(operators(result, "FULLY_CONNECTED")[0].inputs[1]) == F32


def test_large_float16_weights_are_widened_when_asked() -> None:
    b = Builder()
    x = b.input("x", (1, 1024))
    w = b.op(Op.DEQUANTIZE, [b.constant("w", np.ones((1024, 1024), np.float16))], type=F32, version=3)
    model = b.model([b.op(Op.FULLY_CONNECTED, [x, w], shape=[1, 1024])])
    apply(model, *constant_folding.rules(widen_fp16=True))
    assert kinds(model) == ["FULLY_CONNECTED"]


def test_results_that_would_enlarge_the_file() -> None:
    def dequantized(rows: int) -> Model:
        b = Builder()
        x = b.input("x", (1, 64))
        w = b.constant("w", np.ones((rows, 64), np.int8), quantized(0.1, 3))
        wide = b.op(Op.DEQUANTIZE, [w], type=F32, version=2)
        return b.model([b.op(Op.FULLY_CONNECTED, [x, wide], shape=[1, rows])])

    assert kinds(fuse(dequantized(8), *FOLDS)[0]) == ["FULLY_CONNECTED"]
    [reason] = refusals(dequantized(100), *FOLDS)
    assert reason == "its value takes 25,600 bytes and would make only 6,400 bytes superfluous"
    b = Builder()
    x = b.input("x", (1, 1000, 1000))
    many = b.op(Op.FILL, [b.constant("dims", [1, 1000, 1000]), b.constant("zero", 0.0)], type=F32)
    [reason] = refusals(b.model([b.op(Op.ADD, [x, many])]), *FOLDS)
    assert reason == "its value takes 4,000,000 bytes and would make only 16 bytes superfluous"


def test_constants_that_others_need_do_not_count_as_superfluous() -> None:
    def model(shared_by: str) -> Model:
        b = Builder()
        x = b.input("x", (64, 64))
        w = b.constant("w", floats(64, 64))
        turned = b.op(Op.TRANSPOSE, [w, b.constant("p", [1, 0])])
        y = b.op(Op.ADD, [x, turned])
        made = b.model([b.op(Op.ADD, [y, w]) if shared_by == "operator" else y])
        if shared_by == "buffer":
            made.subgraphs.append(deepcopy(made.subgraphs[0]))
            made.subgraphs[1].operators.clear()
        return made

    assert kinds(fuse(model("nothing"), *FOLDS)[0]) == ["ADD"]
    for user, freed in (("operator", 8), ("buffer", 0)):
        [reason] = refusals(model(user), *FOLDS)
        assert reason == f"its value takes 16,384 bytes and would make only {freed} bytes superfluous"


def test_results_of_the_model_are_computed() -> None:
    b = Builder()
    b.input("x", [1])
    one = b.op(Op.NEG, [b.constant("c", floats(3))])
    shape = b.op(Op.SHAPE, [0], type=I32, out_type=I32)
    reasons = refusals(b.model([one, shape]), *FOLDS)
    assert len(reasons) == 2
    assert all("an output of the graph" in reason for reason in reasons)


def test_operators_with_several_results_fold() -> None:
    b = Builder()
    x = b.input("x", (1, 2))
    w = b.op(
        Op.SPLIT, [b.constant("axis", np.int32(0)), b.constant("w", floats(4, 2))], outputs=2, num_splits=2, type=F32
    )
    model = b.model([b.op(Op.ADD, [b.op(Op.MUL, [x, w]), w + 1])])
    result, report = fuse(model, *FOLDS)
    assert kinds(result) == ["MUL", "ADD"]
    assert report.counts() == {"fold-constants": 1}


def test_empty_constants_count_as_constants() -> None:
    b = Builder()
    x = b.input("x", (1, 3))
    one = b.op(Op.RESHAPE, [b.constant("c", [2.0]), b.constant("s", np.zeros(0, np.int32))])
    assert kinds(fuse(b.model([b.op(Op.MUL, [x, one])]), *FOLDS)[0]) == ["MUL"]


def test_values_that_are_not_constant() -> None:
    b = Builder()
    x, s = b.input("x", (1, 3)), b.input("s", [2], I32)
    model = b.model([b.op(Op.NEG, [b.op(Op.RESHAPE, [x, s], shape=[-1, -1])], shape=[-1, -1])])
    assert refusals(model, *FOLDS) == []


def shape_model(shape: tuple[int, ...], kind: Op = Op.SHAPE, type: TensorType = I32) -> Model:
    """Reads the shape of a computed tensor, and computes with it."""
    b = Builder()
    y = b.op(Op.ABS, [b.input("x", shape)], shape=shape)
    options = {"out_type": type} if kind is Op.SHAPE else {}
    found = b.op(kind, [y], type=type, shape=[len(shape)] if kind is Op.SHAPE else [], **options)
    return b.model(
        [b.op(Op.NEG, [found], shape=[len(shape)] if kind is Op.SHAPE else []), b.op(Op.EXP, [y], shape=shape)]
    )


@pytest.mark.parametrize("type", [I32, I64])
def test_static_shapes_are_constants(type: TensorType) -> None:
    result, report = fuse(shape_model((2, 3, 4), type=type), SHAPES)
    assert kinds(result) == ["ABS", "NEG", "EXP"]
    assert report.counts() == {"fold-shape": 1}
    assert kinds(fuse(shape_model((2, 3, 4), Op.RANK), SHAPES)[0]) == ["ABS", "NEG", "EXP"]


def test_dynamic_shapes_are_not() -> None:
    assert refusals(shape_model((-1, 3, 4)), *FOLDS) == []
    # Its rank is known all the same.
    assert kinds(fuse(shape_model((-1, 3, 4), Op.RANK), SHAPES)[0]) == ["ABS", "NEG", "EXP"]
    unknown = shape_model((-1, 3, 4), Op.RANK)
    for tensor in unknown.subgraphs[0].tensors[:2]:
        tensor.shape, tensor.shape_signature, tensor.has_rank = [], None, False
    assert refusals(unknown, *FOLDS) == []


def test_size_computed_from_a_static_shape_folds_away() -> None:
    b = Builder()
    x = b.op(Op.ABS, [b.input("x", SHAPE)])
    shape = b.op(Op.SHAPE, [x], type=I32, out_type=I32, shape=[4])
    picked = [b.constant(f"k{i}", np.array(v, np.int32)) for i, v in enumerate(([1], [3], [1]))]
    size = b.op(Op.STRIDED_SLICE, [shape, *picked], shape=[2])
    double = b.op(Op.MUL, [size, b.constant("two", np.array([2, 2], np.int32))], shape=[2])
    model = b.model([b.op(Op.RESIZE_NEAREST_NEIGHBOR, [x, double], shape=[1, 8, 8, 3])])
    after = deepcopy(model)
    apply(after, *FOLDS)
    assert kinds(after) == ["ABS", "RESIZE_NEAREST_NEIGHBOR"]
    values = floats(*SHAPE)
    assert np.array_equal(results(after, values)[0], results(model, values)[0])


def test_malformed_operators_are_left_alone() -> None:
    b = Builder()
    model = b.model([b.op(Op.NEG, [b.input("x", SHAPE)])])
    rules = [DEAD, TWINS, *FOLDS]
    for kind in Op:
        for inputs in ([], [0], [-1], [-1, 0]):
            copy = deepcopy(model)
            graph = Graph(copy)
            made = [graph.add_tensor("t", SHAPE, F32)]
            graph.add_operator(kind, inputs, made, before=next(graph.operators()))
            graph.commit()
            apply(copy, *rules)
            assert kinds(copy)[-1] == "NEG"


@pytest.mark.slow
def test_real_models_compute_the_same_bits(corpus_file: Path) -> None:
    before = read(corpus_file)
    after = deepcopy(before)
    apply(after, *identity.RULES, TWINS, *FOLDS, DEAD)
    share_buffers(after)
    run(after, [])
    assert len(to_bytes(after)) < len(to_bytes(before)) + 4096
    try:
        assert_same(before, before, cases=["normal"], xnnpack=[False])
    except (ValueError, RuntimeError):
        return  # the runtime refuses the original, which was rewritten and written all the same
    assert_same(before, after, Numerics.EXACT, cases=["normal"], xnnpack=[False])
