"""Products with constant matrices: BATCH_MATMUL, reshapes around FULLY_CONNECTED, and two in a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rules import fuse, kinds, looped, operators, refusals

from litefuse.fusions import batch_norm, duplicates, matmul
from litefuse.graph.build import Builder, quantized
from litefuse.schema import to_bytes
from litefuse.schema.enums import ActivationFunctionType, FullyConnectedOptionsWeightsFormat, TensorType
from litefuse.schema.operators import Op

RULES = matmul.RULES
PRODUCT, QUANTIZED, RESHAPES, DENSE = RULES
BIAS = batch_norm.RULES[0]
RELU = ActivationFunctionType.RELU
rng = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def test_order_of_rules() -> None:
    assert [rule.name for rule in RULES] == [
        "batch-matmul-to-fully-connected",
        "quantized-batch-matmul-to-fully-connected",
        "reshapes-around-fully-connected",
        "merge-fully-connected",
    ]


# -- BATCH_MATMUL --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize(
    ("x", "matrix", "expected"),
    [
        ([7, 5], (5, 3), ["FULLY_CONNECTED"]),
        ([2, 7, 5], (5, 3), ["FULLY_CONNECTED"]),
        ([2, 7, 5], (1, 5, 3), ["FULLY_CONNECTED"]),
        ([2, 3, 7, 5], (1, 5, 3), ["FULLY_CONNECTED"]),
        ([7, 5], (1, 5, 3), ["FULLY_CONNECTED", "RESHAPE"]),
        ([1, 7, 5], (1, 1, 5, 3), ["FULLY_CONNECTED", "RESHAPE"]),
    ],
)
def test_batch_matmul(x: list[int], matrix: tuple[int, ...], expected: list[str], adjoint: bool) -> None:
    b = Builder()
    w = normal(*matrix)
    stored = np.swapaxes(w, -1, -2).copy() if adjoint else w
    model = b.model([b.op(Op.BATCH_MATMUL, [b.input("x", x), b.constant("w", stored)], adj_y=adjoint)])
    after, report = fuse(model, *RULES, reference=lambda v: np.matmul(v, w.astype(np.float64)))
    assert kinds(after) == expected
    assert report.counts() == {PRODUCT.name: 1}
    main = after.subgraphs[0]
    assert main.tensors[main.outputs[0]].shape == model.subgraphs[0].tensors[model.subgraphs[0].outputs[0]].shape


def test_addition_becomes_the_bias() -> None:
    b = Builder()
    w, c = normal(6, 4), normal(1, 1, 4)
    y = b.op(Op.BATCH_MATMUL, [b.input("x", [2, 5, 6]), b.constant("w", w)])
    y = b.op(Op.ADD, [y, b.constant("c", c)])
    after, _ = fuse(b.model([y]), PRODUCT, BIAS, reference=lambda x: x @ w.astype(np.float64) + c)
    assert kinds(after) == ["FULLY_CONNECTED"]
    assert len(operators(after, "FULLY_CONNECTED")[0].inputs) == 3


def test_layer_scale_behind_a_reshape() -> None:
    b = Builder()
    y = b.op(Op.FULLY_CONNECTED, [b.input("x", [6, 8]), b.constant("w", normal(4, 8)), b.constant("b", normal(4))])
    y = b.op(Op.RESHAPE, [y, b.constant("shape", [1, 2, 3, 4])])
    after, _ = fuse(b.model([b.op(Op.MUL, [y, b.constant("gamma", normal(4))])]), *RULES, BIAS)
    assert kinds(after) == ["FULLY_CONNECTED", "RESHAPE"]


def test_float16_matrix_stays_float16() -> None:
    b = Builder()
    half = b.constant("w", normal(6, 4).astype(np.float16))
    w = b.op(Op.DEQUANTIZE, [half], type=TensorType.FLOAT32, version=3)
    after, _ = fuse(b.model([b.op(Op.BATCH_MATMUL, [b.input("x", [5, 6]), w])]), *RULES)
    assert kinds(after) == ["DEQUANTIZE", "FULLY_CONNECTED"]
    source = after.subgraphs[0].tensors[operators(after, "DEQUANTIZE")[0].inputs[0]]
    assert (source.type, source.shape) == (TensorType.FLOAT16, [4, 6])


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("adjoint", [False, True])
def test_float_values_and_int8_matrix(asymmetric: bool, adjoint: bool) -> None:
    # These quantise each row as they go, which is the same bits in both kernels.
    b = Builder()
    w = b.constant("w", rng.integers(-127, 128, (4, 32) if adjoint else (32, 4), np.int8), quantized(0.01))
    options = {"adj_y": adjoint, "asymmetric_quantize_inputs": asymmetric}
    y = b.op(Op.BATCH_MATMUL, [b.input("x", [5, 32]), w], version=4 if asymmetric else 1, **options)
    after, _ = fuse(b.model([y]), *RULES, cases=("normal", "zeros"), bound=1e-6)
    assert kinds(after) == ["FULLY_CONNECTED"]
    (op,) = operators(after, "FULLY_CONNECTED")
    assert op.builtin_options.asymmetric_quantize_inputs == asymmetric


@pytest.mark.parametrize("type", [TensorType.INT8, TensorType.INT16])
@pytest.mark.parametrize("adjoint", [False, True])
def test_integers(type: TensorType, adjoint: bool) -> None:
    small = type == TensorType.INT8
    b = Builder()
    x = b.input("x", [40, 96], type, quantized(0.05, 5) if small else quantized(0.0005))
    w = b.constant("w", rng.integers(-127, 128, (24, 96) if adjoint else (96, 24), np.int8), quantized(0.01))
    q = quantized(0.9, -3) if small else quantized(0.004)
    y = b.op(Op.BATCH_MATMUL, [x, w], version=2 if small else 3, quantization=q, adj_y=adjoint)
    after, report = fuse(b.model([y]), *RULES)
    assert kinds(after) == ["FULLY_CONNECTED"]
    assert report.counts() == {QUANTIZED.name: 1}


def test_shared_matrices_are_transposed_once() -> None:
    b = Builder()
    w = b.constant("w", normal(64, 48))
    ys = [b.op(Op.BATCH_MATMUL, [b.input(f"x{i}", [5, 64]), w]) for i in (0, 1)]
    model = b.model(ys)
    after, _ = fuse(model, *RULES, duplicates.ShareConstants())
    assert kinds(after) == ["FULLY_CONNECTED", "FULLY_CONNECTED"]
    assert len(to_bytes(after)) < len(to_bytes(model)) + 1000


def test_dynamic_batch() -> None:
    b = Builder()
    y = b.op(Op.BATCH_MATMUL, [b.input("x", [-1, 7, 6]), b.constant("w", normal(6, 4))])
    after, _ = fuse(b.model([y]), *RULES)
    assert kinds(after) == ["FULLY_CONNECTED"]
    assert after.subgraphs[0].tensors[after.subgraphs[0].outputs[0]].shape_signature == [-1, 7, 4]


def test_body_of_a_loop() -> None:
    b = Builder()
    y = b.op(Op.BATCH_MATMUL, [b.input("x", [3, 4]), b.constant("w", normal(4, 4))])
    after, _ = fuse(looped(b.model([b.op(Op.TANH, [y])])), *RULES, cases=("normal", "zeros"), bound=1e-4)
    assert kinds(after, 2) == ["FULLY_CONNECTED", "TANH", "ADD"]


def test_several_matrices_are_refused() -> None:
    b = Builder()
    y = b.op(Op.BATCH_MATMUL, [b.input("x", [2, 5, 6]), b.constant("w", normal(2, 6, 4))])
    (reason,) = refusals(b.model([y]), *RULES)
    assert reason == "the constant has shape [2, 6, 4], which is more than one matrix"


def test_constant_on_the_left_is_refused() -> None:
    b = Builder()
    y = b.op(Op.BATCH_MATMUL, [b.constant("w", normal(4, 6)), b.input("x", [6, 5])])
    (reason,) = refusals(b.model([y]), *RULES)
    assert "the constant is on the left" in reason


def test_transposed_operand_is_refused() -> None:
    b = Builder()
    y = b.op(Op.BATCH_MATMUL, [b.input("x", [2, 6, 5]), b.constant("w", normal(6, 4))], adj_x=True)
    (reason,) = refusals(b.model([y]), *RULES)
    assert "the operand is transposed" in reason


def test_two_variables_are_left_alone() -> None:
    b = Builder()
    assert refusals(b.model([b.op(Op.BATCH_MATMUL, [b.input("x", [5, 6]), b.input("y", [6, 4])])]), *RULES) == []


def test_matrix_that_is_used_as_it_is_too_is_refused() -> None:
    b = Builder()
    w = b.constant("w", normal(64, 64))
    y = b.op(Op.BATCH_MATMUL, [b.input("x", [64, 64]), w])
    (reason,) = refusals(b.model([y, b.op(Op.ADD, [y, w])]), *RULES)
    assert reason == "`w` is also used as it is, so that the file would hold it twice"


@pytest.mark.parametrize(("quantization", "reason"), [(quantized(0.01, 3), "zero point"), (None, "has no scale")])
def test_int8_matrices_of_other_kinds_are_refused(quantization: Any, reason: str) -> None:
    b = Builder()
    w = b.constant("w", rng.integers(-127, 128, (6, 4), np.int8), quantization)
    y = b.op(Op.BATCH_MATMUL, [b.input("x", [5, 6]), w], shape=[5, 4])
    (refusal,) = refusals(b.model([y]), *RULES)
    assert reason in refusal


def test_scales_per_channel_are_refused() -> None:
    b = Builder()
    w = b.constant("w", rng.integers(-127, 128, (6, 4), np.int8), quantized([0.1, 0.2, 0.3, 0.4], axis=1))
    x = b.input("x", [5, 6], TensorType.INT8, quantized(0.1))
    y = b.op(Op.BATCH_MATMUL, [x, w], shape=[5, 4], quantization=quantized(0.2), version=2)
    (refusal,) = refusals(b.model([y]), *RULES)
    assert "a scale for each channel" in refusal


# -- reshapes around FULLY_CONNECTED -------------------------------------------------------------------------------


def dense(b: Builder, x: int, outputs: int, inputs: int, bias: bool = True, **options: Any) -> int:
    operands = [x, b.constant("w", normal(outputs, inputs))]
    operands.append(b.constant("b", normal(outputs)) if bias else -1)
    return b.op(Op.FULLY_CONNECTED, operands, **options)


def test_reshapes_on_both_sides() -> None:
    b = Builder()
    x = b.op(Op.RESHAPE, [b.input("x", [2, 3, 5, 8]), b.constant("rows", [30, 8])])
    y = dense(b, x, 4, 8, fused_activation_function=RELU)
    y = b.op(Op.RESHAPE, [y, b.constant("shape", [2, 3, 5, 4])])
    after, report = fuse(b.model([y]), RESHAPES)
    assert kinds(after) == ["FULLY_CONNECTED+RELU"]
    assert report.counts() == {RESHAPES.name: 1}
    assert operators(after, "FULLY_CONNECTED")[0].builtin_options.keep_num_dims


def test_reshape_behind_an_operator_that_flattens() -> None:
    b = Builder()
    y = dense(b, b.input("x", [2, 3, 8]), 4, 8)
    y = b.op(Op.RESHAPE, [y, b.constant("shape", [2, 3, 4])])
    after, _ = fuse(b.model([y]), RESHAPES)
    assert kinds(after) == ["FULLY_CONNECTED"]


def test_expand_dims_and_squeeze() -> None:
    b = Builder()
    x = b.op(Op.SQUEEZE, [b.input("x", [1, 3, 8])], squeeze_dims=[0])
    y = b.op(Op.EXPAND_DIMS, [dense(b, x, 4, 8), b.constant("axis", 0)])
    after, _ = fuse(b.model([y]), RESHAPES)
    assert kinds(after) == ["FULLY_CONNECTED"]


def test_reshapes_computed_from_the_shape_disappear() -> None:
    # The form in which Keras's Dense on three dimensions reaches a file when the batch is not fixed.
    b = Builder()
    x = b.input("x", [-1, 3, 8])
    shape = b.op(Op.SHAPE, [x], shape=[3], type=TensorType.INT32, out_type=TensorType.INT32)
    lead = b.op(Op.GATHER, [shape, b.constant("first", [0, 1])], shape=[2])
    count = b.op(Op.REDUCE_PROD, [lead, b.constant("zero", [0])], keep_dims=True, shape=[1])
    rows = b.op(Op.CONCATENATION, [count, b.constant("eight", [8])], axis=0, shape=[2])
    target = b.op(Op.CONCATENATION, [lead, b.constant("four", [4])], axis=0, shape=[3])
    y = dense(b, b.op(Op.RESHAPE, [x, rows], shape=[-1, -1]), 4, 8)
    main = b._subgraph.tensors
    main[y].shape, main[y].shape_signature = [1, 4], [-1, 4]
    y = b.op(Op.RESHAPE, [y, target], shape=[-1, 3, 4])
    after, _ = fuse(b.model([y]), RESHAPES)
    assert kinds(after) == ["FULLY_CONNECTED"]


def test_other_reshapes_read_the_new_shape() -> None:
    b = Builder()
    y = dense(b, b.input("x", [2, 3, 8]), 4, 8)
    flat = b.op(Op.TANH, [b.op(Op.RESHAPE, [y, b.constant("flat", [24])])])
    y = b.op(Op.RESHAPE, [y, b.constant("shape", [2, 3, 4])])
    after, _ = fuse(b.model([flat, y]), RESHAPES)
    assert kinds(after) == ["FULLY_CONNECTED", "RESHAPE", "TANH"]


def test_rows_of_another_length_are_left_alone() -> None:
    b = Builder()
    x = b.op(Op.RESHAPE, [b.input("x", [2, 4, 4]), b.constant("rows", [2, 16])])
    y = b.op(Op.RESHAPE, [dense(b, x, 4, 16), b.constant("shape", [2, 4, 1])])
    assert refusals(b.model([y]), RESHAPES) == []


def test_other_shapes_behind_are_left_alone() -> None:
    b = Builder()
    x = b.op(Op.RESHAPE, [b.input("x", [2, 3, 8]), b.constant("rows", [6, 8])])
    y = b.op(Op.RESHAPE, [dense(b, x, 4, 8), b.constant("shape", [3, 2, 4])])
    assert refusals(b.model([y]), RESHAPES) == []


def test_other_readers_are_named() -> None:
    b = Builder()
    x = b.op(Op.RESHAPE, [b.input("x", [2, 3, 8]), b.constant("rows", [6, 8])])
    y = dense(b, x, 4, 8)
    z = b.op(Op.RESHAPE, [y, b.constant("shape", [2, 3, 4])])
    (reason,) = refusals(b.model([z, b.op(Op.TANH, [y])]), RESHAPES)
    assert reason == "output of FULLY_CONNECTED #1 `fully_connected_1` is also read by TANH #3 `tanh_3`"


# -- two in a row --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True), (False, False)])
def test_two_dense_layers(first: bool, second: bool) -> None:
    b = Builder()
    y = dense(b, b.input("x", [5, 8]), 32, 8, bias=first)
    y = dense(b, y, 6, 32, bias=second, fused_activation_function=RELU)
    model = b.model([y])
    constants = [t.shape and _value(model, t) for t in model.subgraphs[0].tensors]
    one, two = model.subgraphs[0].operators

    def true(x: Any) -> Any:
        for op in (one, two):
            x = x @ constants[op.inputs[1]].T + (constants[op.inputs[2]] if op.inputs[2] >= 0 else 0)
        return np.maximum(x, 0)

    after, report = fuse(model, DENSE, reference=true)
    assert kinds(after) == ["FULLY_CONNECTED+RELU"]
    assert report.counts() == {DENSE.name: 1}
    assert (operators(after, "FULLY_CONNECTED")[0].inputs[2] >= 0) == (first or second)


def _value(model: Any, tensor: Any) -> Any:
    data = model.buffers[tensor.buffer].data
    return None if data is None else np.frombuffer(data, np.float32).reshape(tensor.shape).astype(np.float64)


@pytest.mark.parametrize("keeps", [(False, False), (True, False), (True, True)])
def test_dimensions_are_kept_as_before(keeps: tuple[bool, bool]) -> None:
    b = Builder()
    y = dense(b, b.input("x", [2, 3, 8]), 32, 8, keep_num_dims=keeps[0], version=5)
    model = b.model([dense(b, y, 6, 32, keep_num_dims=keeps[1], version=5)])
    after, _ = fuse(model, DENSE)
    assert kinds(after) == ["FULLY_CONNECTED"]
    assert after.subgraphs[0].tensors[after.subgraphs[0].outputs[0]].shape == ([2, 3, 6] if all(keeps) else [6, 6])


def test_a_bottleneck_is_refused() -> None:
    b = Builder()
    y = dense(b, dense(b, b.input("x", [5, 32]), 4, 32), 32, 4)
    (reason,) = refusals(b.model([y]), DENSE)
    assert "take 256 multiplications for each row, and one in their place 1024" in reason


def test_activation_between_is_left_alone() -> None:
    b = Builder()
    y = dense(b, b.input("x", [5, 8]), 32, 8, fused_activation_function=RELU)
    assert refusals(b.model([dense(b, y, 6, 32)]), DENSE) == []


def test_second_reader_between_is_refused() -> None:
    b = Builder()
    y = dense(b, b.input("x", [5, 8]), 32, 8)
    (reason,) = refusals(b.model([dense(b, y, 6, 32), y]), DENSE)
    assert "is also an output of the model" in reason


def test_rows_that_are_regrouped_are_left_alone() -> None:
    b = Builder()
    y = dense(b, b.input("x", [4, 8]), 32, 8)
    assert refusals(b.model([dense(b, y, 6, 64)]), DENSE) == []


def test_overflow_is_refused() -> None:
    b = Builder()
    x = b.input("x", [4, 2])
    y = b.op(Op.FULLY_CONNECTED, [x, b.constant("w", np.full((8, 2), 1e30, np.float32)), -1])
    y = b.op(Op.FULLY_CONNECTED, [y, b.constant("v", np.full((2, 8), 1e30, np.float32)), -1])
    (reason,) = refusals(b.model([y]), DENSE)
    assert "would overflow float32" in reason


def test_computed_and_shuffled_weights_are_refused() -> None:
    b = Builder()
    y = b.op(Op.FULLY_CONNECTED, [b.input("x", [4, 8]), b.input("w", [32, 8]), -1])
    (reason,) = refusals(b.model([dense(b, y, 6, 32)]), DENSE)
    assert "not all dense FLOAT32 constants" in reason
    b = Builder()
    y = dense(b, dense(b, b.input("x", [5, 8]), 32, 8), 6, 32)
    model = b.model([b.op(Op.RESHAPE, [y, b.constant("shape", [5, 6])])])
    for op in operators(model, "FULLY_CONNECTED"):
        op.builtin_options = op.builtin_options.replace(
            weights_format=FullyConnectedOptionsWeightsFormat.SHUFFLED4x16INT8
        )
    (first,) = refusals(model, DENSE)
    (second,) = refusals(model, RESHAPES)
    assert first == reason
    assert "in a shuffled format" in second
