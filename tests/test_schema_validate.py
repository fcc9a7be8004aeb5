"""What the validator finds, that it is right about the runtime, and that it finds nothing wrong with real models."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litefuse import runtime, schema
from litefuse.graph.build import Builder, quantized
from litefuse.schema import tables
from litefuse.schema.enums import DimensionType, TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op
from litefuse.schema.validate import MOST_PROBLEMS, Problem, validate

INT8, UINT8, INT16 = TensorType.INT8, TensorType.UINT8, TensorType.INT16


def found(model: Model) -> list[str]:
    return [str(p) for p in validate(model)]


def only(model: Model) -> Problem:
    problems = validate(model)
    assert len(problems) == 1, "\n".join(map(str, problems)) or "nothing found"
    return problems[0]


# -- models to break ---------------------------------------------------------------------------------------------------


def plain() -> Model:
    """x -> ADD with a constant -> RELU."""
    b = Builder()
    x = b.input("x", [1, 4])
    y = b.op(Op.ADD, [x, b.constant("c", np.ones(4, np.float32))], shape=[1, 4], name="sum")
    return b.model([b.op(Op.RELU, [y], shape=[1, 4], name="positive")], signature="serving_default")


def matrix(
    type: TensorType = INT8,
    *,
    kind: Op = Op.FULLY_CONNECTED,
    weight_scale: Any = 0.25,
    weight_zero: Any = 0,
    bias_scale: Any = 0.125,
    bias_zero: int = 0,
    bias_values: int = 40,
    bias_size: int = 4,
    out: float = 0.5,
    zero: int = 0,
    axis: int | None = None,
) -> Model:
    """A quantised matrix product or convolution with four channels."""
    b = Builder()
    shapes = {
        Op.FULLY_CONNECTED: ([1, 3], (4, 3), [1, 4]),
        Op.CONV_2D: ([1, 2, 2, 3], (4, 1, 1, 3), [1, 2, 2, 4]),
        Op.DEPTHWISE_CONV_2D: ([1, 2, 2, 4], (1, 1, 1, 4), [1, 2, 2, 4]),
        Op.TRANSPOSE_CONV: ([1, 2, 2, 3], (4, 1, 1, 3), [1, 2, 2, 4]),
    }
    in_shape, w_shape, out_shape = shapes[kind]
    usual_axis = 3 if kind == Op.DEPTHWISE_CONV_2D else 0
    weight_type = UINT8 if type == UINT8 else INT8
    parameters = None
    if weight_scale is not None:
        parameters = quantized(weight_scale, weight_zero, usual_axis if axis is None else axis)
    x = b.input("x", in_shape, type, quantized(0.5, zero))
    w = b.constant("w", np.ones(w_shape, np.uint8 if type == UINT8 else np.int8), parameters, weight_type)
    wide = np.int64 if type == INT16 else np.int32
    c = b.constant("c", np.full(bias_size, bias_values, wide), quantized(bias_scale, bias_zero))
    size = b.constant("shape", np.array(out_shape, np.int32)) if kind == Op.TRANSPOSE_CONV else -1
    inputs = [size, w, x, c] if kind == Op.TRANSPOSE_CONV else [x, w, c]
    version = 4 if kind == Op.FULLY_CONNECTED else 3
    y = b.op(kind, inputs, shape=out_shape, type=type, quantization=quantized(out), name="y", version=version)
    return b.model([y])


def one(
    kind: Op,
    type: TensorType,
    inputs: list[tuple[float, int]],
    output: tuple[float, int],
    *,
    shape: list[int] | None = None,
    out_shape: list[int] | None = None,
    constants: tuple[Any, ...] = (),
    outputs: int = 1,
    version: int = 1,
    **options: Any,
) -> Model:
    """An operator on quantised tensors of given parameters."""
    b = Builder()
    shape = shape or [1, 4, 4, 1]
    ids = [b.input(f"x{i}", shape, type, quantized(*q)) for i, q in enumerate(inputs)]
    ids += [b.constant(f"c{i}", np.array(c, np.int32)) for i, c in enumerate(constants)]
    y = b.op(
        kind,
        ids,
        shape=out_shape or shape,
        type=type,
        quantization=quantized(*output),
        outputs=outputs,
        version=version,
        name="y",
        **options,
    )
    return b.model([y + i for i in range(outputs)])


def loop(**changes: Any) -> Model:
    """A WHILE: subgraph 1 compares, subgraph 2 adds."""
    model = plain()
    main = model.subgraphs[0]
    options = tables.WhileOptions(cond_subgraph_index=1, body_subgraph_index=2)
    main.operators = [tables.Operator(inputs=[0], outputs=[2], builtin_options=options, opcode_index=2)]
    main.outputs = [2]
    assert model.signature_defs
    model.signature_defs[0].outputs = [tables.TensorMap(name="y", tensor_index=2)]
    model.operator_codes += [tables.OperatorCode(builtin_code=Op.WHILE), tables.OperatorCode(builtin_code=Op.LESS)]
    x, c, flag = (
        tables.Tensor(name="i", shape=[1, 4]),
        tables.Tensor(name="limit", shape=[4], buffer=1),
        tables.Tensor(name="more", shape=[1, 4], type=TensorType.BOOL),
    )
    less = tables.Operator(inputs=[0, 1], outputs=[2], opcode_index=3)
    model.subgraphs.append(
        tables.SubGraph(tensors=[x, c, flag], inputs=[0], outputs=[2], operators=[less], name="cond")
    )
    add = tables.Operator(inputs=[0, 1], outputs=[2], builtin_options=tables.AddOptions())
    out = tables.Tensor(name="next", shape=[1, 4])
    model.subgraphs.append(
        tables.SubGraph(
            tensors=[schema.deepcopy(x), schema.deepcopy(c), out], inputs=[0], outputs=[2], operators=[add], name="body"
        )
    )
    for name, value in changes.items():
        setattr(options, name, value)
    return model


def sparse(**changes: Any) -> Model:
    """A 2 x 4 matrix with values at (0, 1), (0, 3) and (1, 2)."""
    levels = [
        tables.DimensionMetadata(format=DimensionType.DENSE, dense_size=2),
        tables.DimensionMetadata(
            format=DimensionType.SPARSE_CSR,
            array_segments=tables.Int32Vector(values=np.array(changes.pop("segments", [0, 2, 3]), np.int32)),
            array_indices=tables.Uint8Vector(values=bytes(changes.pop("indices", [1, 3, 2]))),
        ),
    ]
    fields: dict[str, Any] = {"traversal_order": np.array([0, 1], np.int32), "dim_metadata": levels}
    for name, value in changes.pop("level", {}).items():
        setattr(levels[0], name, value)
    data = changes.pop("data", np.ones(3, np.float32))
    fields.update(changes)
    b = Builder()
    x = b.input("x", [2, 4])
    w = b.constant("w", data)
    tensor = b._subgraph.tensors[w]
    tensor.shape, tensor.sparsity = [2, 4], tables.SparsityParameters(**fields)
    d = b.op(Op.DENSIFY, [w], shape=[2, 4])
    return b.model([b.op(Op.ADD, [x, d], shape=[2, 4])])


def change(model: Model, edit: Callable[[Model], object]) -> Model:
    edit(model)
    return model


# -- good models -------------------------------------------------------------------------------------------------------

GOOD: dict[str, Callable[[], Model]] = {
    "plain": plain,
    "matrix": matrix,
    "per channel": lambda: matrix(weight_scale=[0.25] * 4, bias_scale=[0.125] * 4),
    "conv": lambda: matrix(kind=Op.CONV_2D, weight_scale=[0.25] * 4, bias_scale=[0.125] * 4),
    "depthwise": lambda: matrix(kind=Op.DEPTHWISE_CONV_2D, weight_scale=[0.25] * 4, bias_scale=[0.125] * 4),
    "transposed": lambda: matrix(kind=Op.TRANSPOSE_CONV, weight_scale=[0.25] * 4, bias_scale=[0.125] * 4),
    "unsigned": lambda: matrix(UINT8, kind=Op.CONV_2D, weight_zero=128, zero=3),
    "16 bits": lambda: matrix(INT16, kind=Op.CONV_2D, weight_scale=[0.25] * 4, bias_scale=[0.125] * 4),
    "loop": loop,
    "sparse": sparse,
}


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_wrong_with_good_models(name: str) -> None:
    model = GOOD[name]()
    assert found(model) == []
    assert found(schema.parse(schema.to_bytes(model))) == []


def test_real_models_that_run_have_no_errors(corpus: list[Path], corpus_index: dict[str, dict[str, str]]) -> None:
    warnings = 0
    for path in corpus:
        runs = "ok" in corpus_index.get(path.stem, {"runs_litert_2.3.0": "ok"})["runs_litert_2.3.0"]
        problems = validate(schema.read(path))
        assert not runs or [str(p) for p in problems if p.severity == "error"] == [], path.name
        warnings += len(problems) if runs else 0
    assert warnings <= 5, "the warnings cry wolf"


def test_the_real_model_with_broken_scales(corpus: list[Path]) -> None:
    path = next(p for p in corpus if p.stem == "mm_catdog2")
    errors = [p for p in validate(schema.read(path)) if p.severity == "error"]
    assert any("scale is inf" in p.message for p in errors)
    assert "tensor 3 'sequential_2/dense_5/BiasAdd/ReadVariableOp/resource'" in errors[0].place


# -- what is found -----------------------------------------------------------------------------------------------------


def test_a_problem_says_where_it_is() -> None:
    model = plain()
    model.subgraphs[0].operators[1].inputs = [7]
    assert str(validate(model)[0]) == (
        "error: subgraph 0 'main', operator 1 RELU: input 0 is tensor 7, which does not exist"
    )


def sub(model: Model) -> tables.SubGraph:
    return model.subgraphs[0]


STRUCTURE: dict[str, tuple[Callable[[Model], object], str, str]] = {
    "schema version": (lambda m: setattr(m, "version", 2), "error", "schema version is 2"),
    "no subgraph": (lambda m: (m.subgraphs.clear(), m.signature_defs.clear()), "error", "no subgraph"),
    "buffer 0": (lambda m: setattr(m.buffers[0], "data", b"x"), "warning", "not empty"),
    "op version": (
        lambda m: setattr(m.operator_codes[0], "version", 0),
        "error",
        "operator code 0 (ADD): its version is 0",
    ),
    "newer operator": (lambda m: m.operator_codes.append(tables.OperatorCode(builtin_code=999)), "warning", "newer"),
    "nameless custom": (
        lambda m: m.operator_codes.append(tables.OperatorCode(builtin_code=Op.CUSTOM)),
        "error",
        "custom operator has no name",
    ),
    "metadata buffer": (
        lambda m: setattr(m, "metadata", [tables.Metadata(name="notes", buffer=9)]),
        "error",
        "metadata 0 'notes': buffer 9",
    ),
    "metadata_buffer": (lambda m: setattr(m, "metadata_buffer", [1, -1]), "warning", "metadata_buffer"),
    "opcode": (lambda m: setattr(sub(m).operators[1], "opcode_index", 5), "error", "operator 1: operator code 5"),
    "buffer": (lambda m: setattr(sub(m).tensors[1], "buffer", 9), "error", "tensor 1 'c': buffer 9 does not exist"),
    "input index": (lambda m: sub(m).operators[1].inputs.append(-2), "error", "input 1 is tensor -2"),
    "output index": (lambda m: sub(m).operators[1].outputs.append(-1), "error", "output 1 is tensor -1"),
    "intermediate": (
        lambda m: setattr(sub(m).operators[1], "intermediates", [4]),
        "error",
        "intermediate 0 is tensor 4",
    ),
    "left out": (lambda m: setattr(sub(m).operators[0], "inputs", [0, -1]), "error", "input 1 is left out"),
    "too few inputs": (lambda m: setattr(sub(m).operators[0], "inputs", [0]), "error", "1 inputs and 1 outputs"),
    "graph input": (lambda m: sub(m).inputs.append(99), "error", "its input 99 is not a tensor"),
    "graph output": (lambda m: sub(m).outputs.append(-1), "error", "its output -1 is not a tensor"),
    "same input twice": (lambda m: sub(m).inputs.append(0), "warning", "the same tensor"),
    "constant input": (lambda m: sub(m).inputs.append(1), "warning", "tensor 1 'c': an input holds constant data"),
    "never computed": (
        lambda m: sub(m).operators.pop(0),
        "error",
        "operator 0 RELU, tensor 2 'sum': nothing computes its input",
    ),
    "output never computed": (lambda m: sub(m).operators.pop(), "error", "'positive': nothing computes this output"),
    "early": (
        lambda m: sub(m).operators.reverse(),
        "error",
        "RELU, tensor 2 'sum': its input is computed only by operator 1",
    ),
    "own output": (lambda m: setattr(sub(m).operators[1], "inputs", [3]), "error", "it reads its own output"),
    "cycle": (lambda m: setattr(sub(m).operators[0], "inputs", [3, 1]), "error", "form a cycle"),
    "two producers": (
        lambda m: setattr(sub(m).operators[1], "outputs", [2, 3]),
        "error",
        "operator 0 computes the same",
    ),
    "writes constant": (lambda m: setattr(sub(m).operators[1], "outputs", [3, 1]), "error", "writes to a constant"),
    "writes input": (lambda m: setattr(sub(m).operators[1], "outputs", [3, 0]), "error", "writes to an input"),
    "negative shape": (lambda m: setattr(sub(m).tensors[2], "shape", [1, -4]), "error", "negative dimension"),
    "overflow": (lambda m: setattr(sub(m).tensors[2], "shape", [2**31 - 1] * 3), "error", "64 bits"),
    "absurd": (lambda m: setattr(sub(m).tensors[2], "shape", [2**20, 2**20]), "warning", "absurdly large"),
    "signature rank": (lambda m: setattr(sub(m).tensors[2], "shape_signature", [-1]), "warning", "differ in rank"),
    "signature value": (lambda m: setattr(sub(m).tensors[2], "shape_signature", [-1, 5]), "warning", "does not allow"),
    "newer type": (lambda m: setattr(sub(m).tensors[2], "type", 99), "warning", "its type, 99"),
    "short buffer": (
        lambda m: setattr(sub(m).tensors[1], "shape", [5]),
        "error",
        "has 16 bytes, but shape [5] of FLOAT32 take 20",
    ),
    "long buffer": (lambda m: setattr(sub(m).tensors[1], "shape", [3]), "warning", "take 12"),
    "empty buffer": (lambda m: setattr(m.buffers[1], "data", b""), "error", "has 0 bytes"),
    "variable with data": (
        lambda m: setattr(sub(m).tensors[1], "is_variable", True),
        "error",
        "a variable cannot have a buffer",
    ),
    "options": (
        lambda m: setattr(sub(m).operators[0], "builtin_options", tables.MulOptions()),
        "warning",
        "options are MulOptions",
    ),
    "custom options": (lambda m: setattr(sub(m).operators[0], "custom_options", b"x"), "warning", "custom options"),
    "signature key": (lambda m: setattr(m.signature_defs[0], "signature_key", None), "error", "it has no key"),
    "signature twice": (lambda m: m.signature_defs.append(m.signature_defs[0]), "error", "same key"),
    "signature subgraph": (
        lambda m: setattr(m.signature_defs[0], "subgraph_index", 1),
        "error",
        "subgraph 1 does not exist",
    ),
    "signature tensor": (
        lambda m: m.signature_defs[0].inputs.append(tables.TensorMap(name="y", tensor_index=2)),
        "error",
        "signature 0 'serving_default': input 'y', tensor 2, is not an input",
    ),
    "signature name": (
        lambda m: m.signature_defs[0].outputs.append(tables.TensorMap(name="positive", tensor_index=3)),
        "error",
        "two outputs are called 'positive'",
    ),
    "signature misses": (lambda m: m.signature_defs[0].outputs.clear(), "warning", "does not name"),
    "nameless entry": (
        lambda m: setattr(m.signature_defs[0].inputs[0], "name", None),
        "warning",
        "an input has no name",
    ),
    "external buffer": (lambda m: setattr(sub(m).tensors[2], "external_buffer", 3), "error", "external buffer 3"),
    "external group": (
        lambda m: setattr(m, "external_buffers", [tables.ExternalBuffer(id=1, group=0)]),
        "error",
        "group 0 does not exist",
    ),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_structure(name: str) -> None:
    edit, severity, text = STRUCTURE[name]
    problems = validate(change(plain(), edit))
    matching = [p for p in problems if text in f"{p.place}: {p.message}"]
    assert [p.severity for p in matching] == [severity], "\n".join(map(str, problems))


def test_external_buffers_with_the_same_id() -> None:
    model = plain()
    model.external_buffer_groups = [tables.ExternalBufferGroup(name="weights.bin")]
    model.external_buffers = [tables.ExternalBuffer(id=1), tables.ExternalBuffer(id=1)]
    assert "same id, 1" in only(model).message
    model.external_buffers.pop()
    sub(model).tensors[1].external_buffer = 1
    assert "both a buffer and an external buffer" in only(model).message
    sub(model).tensors[1].buffer = 0
    assert found(model) == []


def test_tensors_without_elements_need_no_producer() -> None:
    model = plain()
    sub(model).tensors.append(tables.Tensor(name="nothing", shape=[0], type=TensorType.INT32))
    sub(model).operators[1].inputs.append(4)
    assert found(model) == []


def test_optional_inputs_may_be_left_out() -> None:
    model = matrix()
    sub(model).operators[0].inputs[2] = -1
    assert found(model) == []
    sub(model).operators[0].inputs[1] = -1
    assert only(model).message == "input 1 is left out, but it is not optional"


@pytest.mark.parametrize(
    ("type", "elements", "size"),
    [(TensorType.INT4, 5, 3), (TensorType.UINT4, 4, 2), (TensorType.INT2, 5, 2), (TensorType.BFLOAT16, 3, 6)],
)
def test_packed_constants(type: TensorType, elements: int, size: int) -> None:
    model = plain()
    sub(model).tensors.append(tables.Tensor(name="packed", shape=[elements], type=type, buffer=2))
    model.buffers.append(tables.Buffer(data=bytes(size)))
    assert found(model) == []
    model.buffers[2].data = bytes(size - 1)
    assert only(model).severity == "error"
    model.buffers[2].data = bytes(size + 1)
    assert only(model).severity == "warning"


def test_strings() -> None:
    model = plain()
    sub(model).tensors.append(tables.Tensor(name="words", shape=[2], type=TensorType.STRING, buffer=2))
    model.buffers.append(tables.Buffer(data=struct.pack("<iiii", 2, 16, 18, 20) + b"abcd"))
    assert found(model) == []
    sub(model).tensors[-1].shape = [3]
    assert "another number of strings" in only(model).message
    for broken in (b"", b"\2\0\0\0", struct.pack("<ii", 1 << 30, 8), struct.pack("<iiii", 2, 16, 15, 20) + b"abcd"):
        model.buffers[2].data = broken
        assert only(model).severity == "error"


QUANTIZATION: dict[str, tuple[dict[str, Any], str, str]] = {
    "count": (
        {"scale": np.ones(3, np.float32), "zero_point": np.zeros(3, np.int64)},
        "error",
        "3 scales, but dimension 0 has size 4",
    ),
    "no zero points": ({"zero_point": None}, "error", "no zero points"),
    "zero point count": ({"zero_point": np.zeros(3, np.int64)}, "error", "4 scales but 3 zero points"),
    "axis": ({"quantized_dimension": 2}, "error", "quantized_dimension 2 is out of range for rank 2"),
    "negative axis": ({"quantized_dimension": -1}, "error", "quantized_dimension -1"),
    "zero": ({"scale": np.array([1, 0, 1, 1], np.float32)}, "error", "a scale is 0"),
    "negative": ({"scale": np.array([1, -2, 1, 1], np.float32)}, "error", "a scale is -2"),
    "nan": ({"scale": np.array([1, np.nan, 1, 1], np.float32)}, "error", "a scale is nan"),
    "infinite": ({"scale": np.array([1, np.inf, 1, 1], np.float32)}, "error", "a scale is inf"),
    "tiny": ({"scale": np.array([1, 1e-41, 1, 1], np.float32)}, "warning", "too small"),
    "zero point range": (
        {"zero_point": np.array([0, 0, 200, 0])},
        "error",
        "zero point 200 is outside the range of INT8",
    ),
}


@pytest.mark.parametrize("name", QUANTIZATION)
def test_quantization_parameters(name: str) -> None:
    fields, severity, text = QUANTIZATION[name]
    model = plain()
    q = quantized([1.0] * 4)
    for field, value in fields.items():
        setattr(q, field, value)
    sub(model).tensors.append(tables.Tensor(name="w", shape=[4, 2], type=INT8, quantization=q))
    problem = only(model)
    assert (problem.severity, text in problem.message) == (severity, True), problem
    assert problem.place == "subgraph 0 'main', tensor 4 'w'"
    sub(model).tensors[
        -1
    ].type = TensorType.FLOAT32  # only a left-over then, unless the runtime looks at it all the same
    assert [p for p in validate(model) if p.message.startswith(("a scale", "zero point"))] == []


@pytest.mark.parametrize(
    ("details", "text"),
    [
        (tables.BlockwiseQuantization(scales=1, zero_points=-1, block_size=2), None),
        (tables.BlockwiseQuantization(scales=9, zero_points=-1, block_size=2), "its scales are in tensor 9"),
        (tables.BlockwiseQuantization(scales=1, zero_points=-2, block_size=2), "its zero points are in tensor -2"),
        (tables.BlockwiseQuantization(scales=1, zero_points=0, block_size=0), "block size is 0"),
        (tables.MultiAxisQuantization(scales=1, zero_points=-1, quantized_dimensions=[0, 1]), None),
        (tables.MultiAxisQuantization(scales=1, zero_points=-1, quantized_dimensions=[2]), "[2] do not fit rank 2"),
        (tables.MultiAxisQuantization(scales=1, zero_points=-1), "do not fit"),
    ],
)
def test_scales_in_other_tensors(details: tables.Table, text: str | None) -> None:
    model = plain()
    q = tables.QuantizationParameters(details=details)
    sub(model).tensors.append(tables.Tensor(name="w", shape=[4, 2], type=TensorType.INT4, quantization=q))
    if text is None:
        assert found(model) == []
    else:
        assert text in only(model).message


SPARSITY: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"traversal_order": None}, "missing"),
    "order": ({"traversal_order": np.array([0, 0], np.int32)}, "not a permutation"),
    "short order": ({"traversal_order": np.array([0], np.int32)}, "traversal order of 1"),
    "dense size": ({"level": {"dense_size": 3}}, "size 3 instead of 2"),
    "format": ({"level": {"format": 7}}, "unknown format 7"),
    "segments fall": ({"segments": [0, 4, 3]}, "do not rise"),
    "segments start": ({"segments": [1, 2, 3]}, "do not rise from 0 to 3"),
    "segments end": ({"segments": [0, 2, 4]}, "do not rise from 0 to 3"),
    "segment count": ({"segments": [0, 3]}, "2 segments for 2 rows"),
    "index": ({"indices": [1, 4, 2]}, "an index lies outside the size 4"),
    "values": ({"data": np.ones(2, np.float32)}, "8 bytes, but 3 stored elements of FLOAT32 take 12"),
}


@pytest.mark.parametrize("name", SPARSITY)
def test_sparsity(name: str) -> None:
    changes, text = SPARSITY[name]
    problem = only(sparse(**changes))
    assert problem.severity == "error"
    assert text in problem.message
    assert "'w'" in problem.place


def test_blocks_of_sparse_tensors() -> None:
    def blocked(block_map: list[int], size: int) -> Model:
        dense = tables.DimensionMetadata(format=DimensionType.DENSE, dense_size=2)
        csr = tables.DimensionMetadata(
            format=DimensionType.SPARSE_CSR,
            array_segments=tables.Uint16Vector(values=np.array([0, 1, 2], np.uint16)),
            array_indices=tables.Int32Vector(values=np.array([0, 1], np.int32)),
        )
        block = tables.DimensionMetadata(format=DimensionType.DENSE, dense_size=size)
        return sparse(
            traversal_order=np.array([0, 1, 2], np.int32),
            block_map=np.array(block_map, np.int32),
            dim_metadata=[dense, csr, block],
            data=np.ones(4, np.float32),
        )

    assert found(blocked([1], 2)) == []
    assert "names dimension 2" in only(blocked([2], 2)).message
    assert "do not divide dimension 1" in only(blocked([1], 3)).message
    assert "do not divide dimension 1" in only(blocked([1], 0)).message
    assert "does not have the 1 entries" in only(blocked([1, 1], 2)).message


def test_subgraphs_that_do_not_exist() -> None:
    for bad in (3, -1):
        problem = only(loop(body_subgraph_index=bad))
        assert problem.message == f"subgraph {bad} does not exist"
        assert problem.place == "subgraph 0 'main', operator 0 WHILE"


def test_subgraphs_that_call_themselves() -> None:
    problems = found(loop(body_subgraph_index=0))
    assert any("subgraph 0 ends up calling itself" in p for p in problems)
    model = loop()
    back = tables.Operator(
        inputs=[0], outputs=[2], builtin_options=tables.WhileOptions(cond_subgraph_index=1, body_subgraph_index=0)
    )
    back.opcode_index = 2
    model.subgraphs[2].operators = [back]
    assert any("calling itself" in p for p in found(model))


def test_arguments_of_subgraphs() -> None:
    model = loop()
    model.subgraphs[2].outputs.append(0)
    assert only(model).message == "subgraph 2 has 1 inputs and 2 outputs; 1 and 1 are wanted"
    model = loop()
    sub(model).operators[0].inputs.append(1)
    assert len(validate(model)) == 3  # the loop itself, and both subgraphs
    branches: list[tuple[Op, tables.Table]] = [
        (Op.IF, tables.IfOptions(then_subgraph_index=1, else_subgraph_index=2)),
        (Op.CALL_ONCE, tables.CallOnceOptions(init_subgraph_index=1)),
        (Op.STABLEHLO_COMPOSITE, tables.StableHLOCompositeOptions(decomposition_subgraph_index=1, name="x")),
        (Op.STABLEHLO_CASE, tables.StablehloCaseOptions(branch_subgraph_indices=[1, 2])),
    ]
    for kind, options in branches:
        model = loop()
        model.operator_codes[2].builtin_code = kind
        op = sub(model).operators[0]
        second = isinstance(options, (tables.StableHLOCompositeOptions, tables.StablehloCaseOptions))
        op.builtin_options, op.builtin_options_2 = (None, options) if second else (options, None)
        op.inputs = [0, 0, 0]
        messages = [p.message for p in validate(model)]
        assert any("are wanted" in m for m in messages), kind


def test_memory_plans() -> None:
    model = plain()
    model.metadata = [tables.Metadata(name="OfflineMemoryAllocation", buffer=2)]
    model.buffers.append(tables.Buffer(data=np.array([1, 1, 4, -1, -1, 0, 16], np.int32)))
    assert found(model) == []
    model.buffers[2].data = np.array([1, 1, 3, -1, -1, 0], np.int32)
    assert "plans 3 tensors and holds 3 offsets; the model has 4" in only(model).message
    model.buffers[2].data = np.array([1, 1, 4, -1, -1, 0, -5], np.int32)
    assert "negative offset" in only(model).message
    model.buffers[2].data = b"short"
    assert "not a memory plan" in only(model).message


# -- what kernels demand, and what the runtime says --------------------------------------------------------------------


def accepted(model: Model) -> bool:
    """Whether the plain kernels of the installed runtime prepare and run the model."""
    try:
        runner = runtime.interpreter(schema.to_bytes(model), xnnpack=False)
        with runtime.quiet():
            runner.allocate_tensors()
            runner.invoke()
    except (RuntimeError, ValueError):
        return False
    return True


SAME = (0.5, 3)
OTHER = (0.25, 3)
SHIFTED = (0.5, 4)


def refused(model: Model, text: str) -> bool:
    """Whether validator and runtime agree that the model is wrong."""
    errors = [p.message for p in validate(model) if p.severity == "error"]
    return any(text in e for e in errors) and not accepted(model)


COPYING: dict[Op, dict[str, Any]] = {
    Op.CONCATENATION: {"count": 2, "axis": 3, "out_shape": [1, 4, 4, 2]},
    Op.PACK: {"count": 2, "values_count": 2, "out_shape": [2, 1, 4, 4, 1]},
    Op.UNPACK: {"num": 1, "axis": 0, "out_shape": [4, 4, 1]},
    Op.EXPAND_DIMS: {"constants": ([0],), "out_shape": [1, 1, 4, 4, 1]},
    Op.MIRROR_PAD: {"constants": ([[0, 0]] * 4,)},
    Op.SPACE_TO_BATCH_ND: {"constants": ([1, 1], [[0, 0]] * 2)},
    Op.BATCH_TO_SPACE_ND: {"constants": ([1, 1], [[0, 0]] * 2)},
    Op.REDUCE_MAX: {"constants": ([3],), "out_shape": [1, 4, 4]},
    Op.REDUCE_MIN: {"constants": ([3],), "out_shape": [1, 4, 4]},
}


@pytest.mark.parametrize("kind", COPYING)
def test_kernels_that_copy_want_equal_parameters(kind: Op) -> None:
    options = dict(COPYING[kind])
    inputs = [SAME] * options.pop("count", 1)
    good = one(kind, INT8, inputs, SAME, **options)
    assert found(good) == []
    assert accepted(good)
    for other in (OTHER, SHIFTED):
        assert refused(one(kind, INT8, inputs, other, **options), "scales differ")


FIXED = [
    (Op.LOGISTIC, INT8, (1 / 256, -128), (1 / 128, -128), "scale 0.00390625"),
    (Op.LOGISTIC, UINT8, (1 / 256, 0), (1 / 128, 0), "scale 0.00390625"),
    (Op.LOGISTIC, INT16, (1 / 32768, 0), (1 / 256, 0), "scale 3.05176e-05 and zero point 0"),
    (Op.TANH, INT16, (1 / 32768, 0), (1 / 256, 0), "scale 3.05176e-05"),
    (Op.SOFTMAX, INT8, (1 / 256, -128), (1 / 256, 0), "zero point -128"),
    (Op.SOFTMAX, INT8, (1 / 256, -128), (1 / 200, -128), "scale 0.00390625"),
    (Op.SOFTMAX, INT16, (1 / 32768, 0), (1 / 200, 0), "scale 3.05176e-05"),
    (Op.LOG_SOFTMAX, INT8, (1 / 16, 127), (1 / 16, 0), "zero point 127"),
    (Op.L2_NORMALIZATION, INT8, (1 / 128, 0), (1 / 256, 0), "scale 0.0078125"),
    (Op.L2_NORMALIZATION, UINT8, (1 / 128, 128), (1 / 128, 0), "zero point 128"),
]


@pytest.mark.parametrize(("kind", "type", "good", "bad", "text"), FIXED)
def test_kernels_that_want_certain_outputs(
    kind: Op, type: TensorType, good: tuple[float, int], bad: tuple[float, int], text: str
) -> None:
    inputs = [(0.5, 0)]
    assert found(one(kind, type, inputs, good)) == []
    assert accepted(one(kind, type, inputs, good))
    assert refused(one(kind, type, inputs, bad), text)


SYMMETRIC: dict[Op, dict[str, Any]] = {
    Op.ADD: {"count": 2},
    Op.SUB: {"count": 2},
    Op.CONCATENATION: {"count": 2, "axis": 3, "out_shape": [1, 4, 4, 2]},
    Op.RELU: {},
    Op.LEAKY_RELU: {"alpha": 0.5},
    Op.ABS: {},
    Op.EXP: {},
    Op.MEAN: {"constants": ([3],), "out_shape": [1, 4, 4]},
    Op.REDUCE_MAX: {"constants": ([3],), "out_shape": [1, 4, 4]},
}


@pytest.mark.parametrize("kind", SYMMETRIC)
def test_kernels_that_want_symmetric_16_bit_values(kind: Op) -> None:
    options = dict(SYMMETRIC[kind])
    count = options.pop("count", 1)
    good = one(kind, INT16, [(0.5, 0)] * count, (0.5, 0), **options)
    assert found(good) == []
    assert accepted(good)
    assert refused(one(kind, INT16, [(0.5, 1)] * count, (0.5, 1), **options), "zero point of 0 for 16-bit values")


PER_CHANNEL: dict[str, Any] = {"weight_scale": [0.25] * 4, "bias_scale": [0.125] * 4}
UNSIGNED_CONV: dict[str, Any] = {"type": UINT8, "kind": Op.CONV_2D}

PRODUCTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "bias": ({}, {"bias_scale": 0.5}, "its bias has scale 0.5; scales of input and weights make 0.125"),
    "unsigned bias": (UNSIGNED_CONV, {"bias_scale": 0.5}, "its bias has scale 0.5"),
    "unsigned per channel": (UNSIGNED_CONV, {"weight_scale": [0.25] * 4}, "cannot have weights with a scale for each"),
    "weight zero point": ({"kind": Op.CONV_2D}, {"weight_zero": 1}, "zero point other than 0"),
    "bias zero point": ({"kind": Op.CONV_2D}, {"bias_zero": 1}, "zero point of its bias"),
    "depthwise bias zero point": ({"kind": Op.DEPTHWISE_CONV_2D}, {"bias_zero": 1}, "zero point of its bias"),
    "transposed bias zero point": ({"kind": Op.TRANSPOSE_CONV}, {"bias_zero": 1}, "zero point of its bias"),
    "bias size": ({"kind": Op.CONV_2D}, {"bias_size": 5}, "5 elements for 4 channels"),
    "matrix bias size": ({}, {"bias_size": 3}, "3 elements for 4 channels"),
    "axis": (PER_CHANNEL, {"weight_scale": [0.25] * 3, "axis": 1}, "FULLY_CONNECTED wants 0"),
    "no scales": ({}, {"weight_scale": None}, "integers without scales"),
    "no scales for a convolution": ({"kind": Op.CONV_2D}, {"weight_scale": None}, "integers without scales"),
    "16 bits": ({"type": INT16, "kind": Op.CONV_2D, **PER_CHANNEL}, {"zero": 2}, "zero point of 0"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_what_convolutions_and_matrix_products_want(name: str) -> None:
    fields, bad, text = PRODUCTS[name]
    assert found(matrix(**fields)) == []
    assert accepted(matrix(**fields))
    assert refused(matrix(**(fields | bad)), text)


@pytest.mark.parametrize(
    "name",
    ["schema version", "short buffer", "variable with data", "negative shape", "signature key", "input index"],
)
def test_the_runtime_refuses_broken_structure(name: str) -> None:
    edit, severity, _ = STRUCTURE[name]
    assert severity == "error"
    assert accepted(plain())
    assert not accepted(change(plain(), edit))


@pytest.mark.parametrize("name", ["count", "no zero points", "zero point count", "axis", "negative axis"])
def test_the_runtime_refuses_broken_parameters(name: str) -> None:
    model = plain()
    q = quantized([1.0] * 4)
    sub(model).tensors.append(tables.Tensor(name="w", shape=[4, 2], type=INT8, quantization=q))
    assert accepted(model)
    for field, value in QUANTIZATION[name][0].items():
        setattr(q, field, value)
    assert not accepted(model)


def test_the_runtime_refuses_loops_that_do_not_fit() -> None:
    assert not accepted(change(loop(), lambda m: m.subgraphs[2].outputs.append(0)))


ACCEPTED: dict[str, tuple[Callable[[], Model], str | None]] = {
    "long buffer": (lambda: change(plain(), lambda m: setattr(m.buffers[1], "data", bytes(32))), "take 16"),
    "unsigned": (lambda: one(Op.CONCATENATION, UINT8, [SAME, OTHER], SAME, **CONCATENATED), None),
    "reshape": (lambda: one(Op.RESHAPE, INT8, [SAME], OTHER, constants=([16],), out_shape=[16]), "scales differ"),
    "pool": (lambda: one(Op.MAX_POOL_2D, INT8, [SAME], OTHER), "scales differ"),
    "bias": (lambda: matrix(kind=Op.CONV_2D, bias_scale=0.5), "changes the output by 30 steps"),
    "bias of zeros": (lambda: matrix(kind=Op.CONV_2D, bias_scale=0.5, bias_values=0), None),
    "sparse": (sparse, None),
}
CONCATENATED = {"axis": 3, "out_shape": [1, 4, 4, 2]}


@pytest.mark.parametrize("name", ACCEPTED)
def test_warnings_are_what_the_runtime_takes(name: str) -> None:
    make, text = ACCEPTED[name]
    model = make()
    if text is None:
        assert found(model) == []
    else:
        problem = only(model)
        assert problem.severity == "warning"
        assert text in problem.message
    assert accepted(model)


# -- size --------------------------------------------------------------------------------------------------------------


def test_many_problems_are_counted() -> None:
    model = plain()
    sub(model).operators += [tables.Operator(opcode_index=9) for _ in range(MOST_PROBLEMS + 50)]
    problems = validate(model)
    assert len(problems) == MOST_PROBLEMS + 1
    assert problems[-1].message == "50 more problems are not listed"


def test_long_and_odd_names_are_shortened() -> None:
    model = plain()
    sub(model).tensors[1].name = "\udcff" + "x" * 10_000
    sub(model).tensors[1].shape = [5]
    text = str(only(model))
    assert len(text) < 300
    text.encode()


def test_the_time_is_linear() -> None:
    def model(operators: int) -> Model:
        b = Builder()
        x = b.input("x", [1, 8], INT8, quantized(0.5))
        weights, bias = (
            b.constant("w", np.ones((8, 8), np.int8), quantized([0.25] * 8)),
            b.constant("b", np.zeros(8, np.int32), quantized([0.125] * 8)),
        )
        for _ in range(operators):
            x = b.op(Op.FULLY_CONNECTED, [x, weights, bias], shape=[1, 8], type=INT8, quantization=quantized(0.5))
        return b.model([x])

    def seconds(model: Model) -> float:
        times = []
        for _ in range(3):
            start = time.process_time()
            assert found(model) == []
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(model(8000)) < 40 * seconds(model(400)) + 0.5
