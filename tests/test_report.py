"""The numbers of models, the JSON documents and the terminal tables."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from types import SimpleNamespace

import flatbuffers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from litefuse.graph.build import Builder, quantized
from litefuse.report import documents, terminal
from litefuse.report.stats import ModelStats, measure
from litefuse.schema import Model, parse, to_bytes
from litefuse.schema.attachment import Attachment
from litefuse.schema.enums import BuiltinOperator, TensorType
from litefuse.schema.operators import Op, operator_code
from litefuse.schema.tables import (
    Buffer,
    Metadata,
    Operator,
    OperatorCode,
    StableHLOCompositeOptions,
    SubGraph,
    Tensor,
)

F32 = np.float32


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, F32)


# -- arithmetic ----------------------------------------------------------------------------------------------------


def one_op(kind: Op, inputs: list, shape: list[int], **options) -> ModelStats:
    """The numbers of a model of one operator. Arrays are constants, lists are shapes of inputs, None is left out."""
    b = Builder()
    ids = []
    for i, value in enumerate(inputs):
        if value is None:
            ids.append(-1)
        else:
            make = b.input if isinstance(value, list) else b.constant
            ids.append(make(f"t{i}", value))
    return measure(b.model([b.op(kind, ids, shape=shape, **options)]))


LSTM_WEIGHTS = [zeros(7, 5)] * 4 + [zeros(7, 3)] * 4 + [zeros(7)] * 3 + [zeros(7)] * 4 + [zeros(3, 7), None]


@pytest.mark.parametrize(
    ("kind", "inputs", "shape", "macs"),
    [
        (Op.CONV_2D, [[1, 8, 8, 3], zeros(16, 3, 5, 3), zeros(16)], [1, 4, 4, 16], 4 * 4 * 16 * 3 * 5 * 3),
        # Grouped: the weights hold the channels of one group.
        (Op.CONV_2D, [[2, 8, 8, 8], zeros(16, 3, 3, 4), zeros(16)], [2, 8, 8, 16], 2 * 8 * 8 * 16 * 3 * 3 * 4),
        (Op.DEPTHWISE_CONV_2D, [[1, 8, 8, 4], zeros(1, 3, 3, 8), zeros(8)], [1, 8, 8, 8], 8 * 8 * 8 * 3 * 3),
        (Op.FULLY_CONNECTED, [[6, 10], zeros(4, 10), None], [6, 4], 6 * 10 * 4),
        (Op.FULLY_CONNECTED, [[2, 3, 10], zeros(4, 10), None], [2, 3, 4], 6 * 10 * 4),
        (
            Op.TRANSPOSE_CONV,
            [np.array([1, 8, 8, 6], np.int32), zeros(6, 3, 3, 5), [1, 4, 4, 5]],
            [1, 8, 8, 6],
            4 * 4 * 5 * 6 * 3 * 3,
        ),
        (Op.CONV_3D, [[1, 4, 5, 6, 2], zeros(3, 2, 1, 2, 7), zeros(7)], [1, 2, 4, 6, 7], 2 * 4 * 6 * 7 * 3 * 2 * 2),
        (
            Op.CONV_3D_TRANSPOSE,
            [np.array([1, 2, 4, 4, 3], np.int32), zeros(2, 2, 2, 3, 5), [1, 1, 2, 2, 5]],
            [1, 2, 4, 4, 3],
            4 * 5 * 8 * 3,
        ),
        (Op.BATCH_MATMUL, [[2, 3, 4, 5], [2, 3, 5, 6]], [2, 3, 4, 6], 2 * 3 * 4 * 6 * 5),
        (Op.UNIDIRECTIONAL_SEQUENCE_LSTM, [[2, 9, 5], *LSTM_WEIGHTS], [2, 9, 3], 18 * (4 * 35 + 4 * 21 + 3 * 7 + 21)),
        (Op.LSTM, [[2, 5], *LSTM_WEIGHTS], [2, 3], 2 * (4 * 35 + 4 * 21 + 3 * 7 + 21)),
        (Op.LSTM, [[1, 4], [1, 6], zeros(24, 10), zeros(24), [1, 6]], [1, 6], 24 * 10),
        (
            Op.BIDIRECTIONAL_SEQUENCE_LSTM,
            [[2, 9, 5], *LSTM_WEIGHTS, *LSTM_WEIGHTS, [2, 3], [2, 7], [2, 3], [2, 7], *[None] * 9],
            [2, 9, 3],
            2 * 18 * (4 * 35 + 4 * 21 + 3 * 7 + 21),
        ),
        (Op.RNN, [[2, 5], zeros(7, 5), zeros(7, 7), zeros(7), [2, 7]], [2, 7], 2 * (35 + 49)),
        (Op.UNIDIRECTIONAL_SEQUENCE_RNN, [[2, 3, 5], zeros(7, 5), zeros(7, 7), zeros(7), [2, 7]], [2, 3, 7], 6 * 84),
        (Op.SVDF, [[2, 5], zeros(8, 5), zeros(8, 10), zeros(4), [2, 80]], [2, 4], 2 * (40 + 80)),
        (Op.RELU, [[4, 4]], [4, 4], 0),
    ],
)
def test_macs(kind: Op, inputs: list, shape: list[int], macs: int) -> None:
    stats = one_op(kind, inputs, shape)
    assert stats.subgraphs[0].operators[0].macs == macs == stats.macs
    assert stats.unknown_macs == 0


def test_macs_of_options() -> None:
    assert one_op(Op.BATCH_MATMUL, [[7, 4], [7, 6]], [4, 6], adj_x=True).macs == 4 * 6 * 7
    stats = one_op(
        Op.STABLEHLO_DOT_GENERAL,
        [[2, 3, 4, 5], [2, 4, 5, 6]],
        [2, 3, 6],
        lhs_contracting_dimensions=np.array([2, 3]),
    )
    assert stats.macs == 2 * 3 * 6 * 20
    stats = one_op(
        Op.STABLEHLO_CONVOLUTION, [[1, 8, 8, 3], zeros(3, 3, 3, 16)], [1, 8, 8, 16], kernel_output_feature_dimension=3
    )
    assert stats.macs == 8 * 8 * 16 * 27


def test_macs_are_unknown_without_shapes_or_knowledge() -> None:
    b = Builder()
    x = b.op(Op.CUSTOM, [b.input("x", [1, 8])], name="mystery", shape=[])
    y = b.op(Op.FULLY_CONNECTED, [x, b.constant("w", zeros(4, 8)), -1], shape=[1, 4])
    model = b.model([b.op(Op.BATCH_MATMUL, [x, y], shape=[1, 4])])
    model.subgraphs[0].tensors[x].has_rank = False
    model.operator_codes[0].custom_code = "Mystery"
    stats = measure(model)
    assert [op.macs for op in stats.subgraphs[0].operators] == [None, 32, None]
    assert (stats.macs, stats.unknown_macs) == (32, 2)
    assert stats.subgraphs[0].unsized == ["mystery"]
    assert stats.activation_bytes == 32


def test_shapes_that_the_file_does_not_give_are_worked_out() -> None:
    b = Builder()
    x = b.op(Op.RELU, [b.input("x", [-1, 8])], shape=[])
    model = b.model([b.op(Op.FULLY_CONNECTED, [x, b.constant("w", zeros(4, 8)), -1], shape=[1, 4])])
    model.subgraphs[0].tensors[x].has_rank = False
    stats = measure(model)
    assert stats.subgraphs[0].unsized == []
    assert stats.activation_bytes == 32 + 16


# -- memory --------------------------------------------------------------------------------------------------------


def test_memory_by_hand() -> None:
    """x(100 bytes) -> a(40) -> b(200); c = b + a; out = c. Sizes are rounded up to 16 in the peak only."""
    b = Builder()
    x = b.input("x", [25])
    shape = {"type": TensorType.FLOAT32}
    first = b.op(Op.CUSTOM, [x], shape=[10], **shape)
    second = b.op(Op.CUSTOM, [first], shape=[50], **shape)
    third = b.op(Op.ADD, [second, first], shape=[50])
    stats = measure(b.model([third]))
    assert stats.activation_bytes == 40 + 200 + 200
    # The input is free after the first operator.
    assert stats.peak_bytes == 48 + 208 + 208
    assert [op.written for op in stats.subgraphs[0].operators] == [40, 200, 200]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_peak_is_the_most_that_is_live(data: st.DataObject) -> None:
    """Against the definition: for each operator, the sum over all tensors that are needed there."""
    b = Builder()
    tensors = [b.input(f"x{i}", [data.draw(st.integers(1, 40))]) for i in range(data.draw(st.integers(1, 3)))]
    sizes = {t: b._subgraph.tensors[t].shape[0] for t in tensors}
    made: list[tuple[list[int], int]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        inputs = data.draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3))
        size = data.draw(st.integers(1, 40))
        tensor = b.op(Op.CUSTOM, inputs, shape=[size])
        sizes[tensor] = size
        made.append((inputs, tensor))
        tensors.append(tensor)
    outputs = data.draw(st.lists(st.sampled_from([t for _, t in made]), min_size=1, max_size=2, unique=True))
    peak = 0
    for i in range(len(made)):
        before = [t for t in tensors if all(t != out for _, out in made[i + 1 :])]  # exists by now
        live = {
            t
            for t in before
            if t in outputs
            or any(t in inputs for inputs, _ in made[i:])
            or t == made[i][1]
            or (i == 0 and t not in [out for _, out in made])
        }
        peak = max(peak, sum(-(-4 * sizes[t] // 16) * 16 for t in live))
    assert measure(b.model(outputs)).peak_bytes == peak


def test_constants_that_are_widened_are_not_activations() -> None:
    b = Builder()
    x = b.input("x", [1, 8])
    half = b.constant("half", np.zeros((4, 8), np.float16))
    w = b.op(Op.DEQUANTIZE, [half], shape=[4, 8], type=TensorType.FLOAT32)
    y = b.op(Op.FULLY_CONNECTED, [x, w, -1], shape=[1, 4], type=TensorType.FLOAT32)
    stats = measure(b.model([y]))
    assert (stats.widened_bytes, stats.weight_bytes, stats.activation_bytes) == (128, 64, 16)
    assert stats.peak_bytes == 32 + 16
    assert stats.quantization == {"float32 with float16 weights": 1}


def test_variables_are_state() -> None:
    b = Builder()
    x = b.input("x", [1, 5])
    weights = [b.constant("w", zeros(8, 5)), b.constant("t", zeros(8, 10)), -1]
    state = b.constant("state", zeros(1, 80))
    model = b.model([b.op(Op.SVDF, [x, *weights, state], shape=[1, 8], rank=1)])
    tensor = model.subgraphs[0].tensors[state]
    tensor.is_variable, tensor.buffer = True, 0
    stats = measure(model)
    assert (stats.variable_bytes, stats.peak_bytes) == (320, 32 + 32)


def test_shared_buffers_count_once() -> None:
    b = Builder()
    x = b.input("x", [1, 8])
    w = b.constant("w", zeros(8, 8))
    again = b.constant("again", zeros(8, 8))
    b._subgraph.tensors[again].buffer = b._subgraph.tensors[w].buffer
    y = b.op(Op.FULLY_CONNECTED, [x, w, -1], shape=[1, 8])
    assert measure(b.model([b.op(Op.FULLY_CONNECTED, [y, again, -1], shape=[1, 8])])).weight_bytes == 256


# -- types ---------------------------------------------------------------------------------------------------------

PER_CHANNEL = quantized([0.1] * 4)


@pytest.mark.parametrize(
    ("data", "weights", "quantization", "words"),
    [
        (TensorType.FLOAT32, zeros(4, 8), None, "float32"),
        (TensorType.INT8, np.zeros((4, 8), np.int8), PER_CHANNEL, "int8 per channel"),
        (TensorType.UINT8, np.zeros((4, 8), np.uint8), quantized(0.1, 3), "uint8 per tensor"),
        (TensorType.INT16, np.zeros((4, 8), np.int8), PER_CHANNEL, "int16 with int8 weights per channel"),
        (TensorType.FLOAT32, np.zeros((4, 8), np.int8), quantized(0.1), "dynamic range with int8 weights per tensor"),
    ],
)
def test_quantization_in_words(data: TensorType, weights: np.ndarray, quantization: object, words: str) -> None:
    b = Builder()
    x = b.input("x", [1, 8], data)
    w = b.constant("w", weights, quantization)  # type: ignore[arg-type]
    stats = measure(b.model([b.op(Op.FULLY_CONNECTED, [x, w, -1], shape=[1, 4])]))
    assert stats.quantization == {words: 1}


def test_dynamic_tensors_are_named() -> None:
    b = Builder()
    x = b.input("batch", [-1, 8])
    y = b.op(Op.RELU, [x], name="fixed", shape=[1, 8])
    stats = measure(b.model([y]))
    assert stats.subgraphs[0].dynamic == ["batch"]
    assert stats.subgraphs[0].inputs[0].shape == [-1, 8]


# -- whole models --------------------------------------------------------------------------------------------------


def composite_model() -> Model:
    """A composite whose decomposition is a FULLY_CONNECTED and a RELU."""
    b = Builder()
    x = b.input("x", [2, 8])
    w = b.constant("w", zeros(4, 8))
    y = b.op(Op.RELU, [b.op(Op.FULLY_CONNECTED, [x, w, -1], shape=[2, 4])], shape=[2, 4])
    model = b.model([y], signature="serve")
    tensors = [Tensor(name=n, shape=s, has_rank=True) for n, s in (("in", [2, 8]), ("out", [2, 4]))]
    options = StableHLOCompositeOptions(name="litefuse.dense", decomposition_subgraph_index=1)
    op = Operator(inputs=[0], outputs=[1], opcode_index=len(model.operator_codes), builtin_options_2=options)
    model.operator_codes.append(operator_code(Op.STABLEHLO_COMPOSITE))
    main = SubGraph(name="main", tensors=tensors, inputs=[0], outputs=[1], operators=[op])
    model.subgraphs.insert(0, main)
    model.signature_defs[0].outputs[0].tensor_index = 1
    return model


def test_a_composite_stands_for_its_decomposition() -> None:
    stats = measure(composite_model())
    assert [s.role for s in stats.subgraphs] == ["main", "decomposition"]
    assert dict(stats.kinds) == {"composite:litefuse.dense": 1}
    assert stats.macs == 2 * 4 * 8
    assert stats.weight_bytes == 128
    assert stats.signatures[0].key == "serve"
    assert [t.tensor for t in stats.signatures[0].outputs] == ["out"]


def test_unknown_custom_and_flex_operators_are_named() -> None:
    b = Builder()
    x = b.input("x", [4])
    for _ in range(3):
        x = b.op(Op.CUSTOM, [x], shape=[4])
    model = b.model([x])
    model.operator_codes = [
        OperatorCode(builtin_code=BuiltinOperator.CUSTOM, deprecated_builtin_code=32, custom_code="Own"),
        OperatorCode(builtin_code=BuiltinOperator.CUSTOM, deprecated_builtin_code=32, custom_code="FlexErf"),
        OperatorCode(builtin_code=9999, deprecated_builtin_code=127),  # type: ignore[arg-type]
    ]
    for i, op in enumerate(model.subgraphs[0].operators):
        op.opcode_index = i
    stats = measure(parse(to_bytes(model)))
    assert stats.kinds == {"custom:Own": 1, "custom:FlexErf": 1, "builtin:9999": 1}
    assert (stats.custom, stats.flex) == ({"Own": 1}, {"FlexErf": 1})
    assert stats.unknown_macs == 3


def test_damaged_models_are_measured_as_far_as_they_go() -> None:
    b = Builder()
    x = b.input("x", [4])
    y = b.op(Op.RELU, [b.op(Op.RELU, [x], shape=[4])], shape=[4])
    model = b.model([y], signature="s")
    subgraph = model.subgraphs[0]
    subgraph.operators[0].inputs = [99]
    subgraph.operators[1].outputs = [-7, 99]
    subgraph.operators[1].opcode_index = 50
    subgraph.outputs = [1234]
    subgraph.tensors[1].buffer = 77
    model.signature_defs[0].subgraph_index = 9
    stats = measure(model)
    assert dict(stats.kinds) == {"RELU": 1, "invalid": 1}
    assert documents.to_json(documents.envelope("inspect", models=[documents.inspection("m", stats, [])]))


def test_a_model_without_anything() -> None:
    stats = measure(Model(version=3))
    assert (stats.operators, stats.macs, stats.peak_bytes, stats.file_bytes) == (0, 0, 0, None)
    empty = measure(Model(version=3, subgraphs=[SubGraph()]))
    assert (empty.operators, empty.peak_bytes) == (0, 0)


def test_many_operators() -> None:
    """Anything that is not linear does not come to an end here."""
    b = Builder()
    x = b.input("x", [4])
    for _ in range(100_000):
        x = b.op(Op.RELU, [x], shape=[4])
    stats = measure(b.model([x]))
    assert stats.activation_bytes == 1_600_000
    assert stats.peak_bytes == 32


def conversion_metadata(version: str, source: int) -> bytes:
    builder = flatbuffers.Builder()
    text = builder.CreateString(version)
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(0, text, 0)
    builder.PrependUint32Slot(1, 2, 0)
    builder.PrependInt32Slot(2, source, 0)
    environment = builder.EndObject()
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(0, environment, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def with_metadata(name: str, data: bytes) -> Model:
    return Model(version=3, metadata=[Metadata(name=name, buffer=1)], buffers=[Buffer(), Buffer(data=data)])


def test_producer() -> None:
    producer = measure(with_metadata("CONVERSION_METADATA", conversion_metadata("2.15.0", 2))).producer
    assert (producer.tensorflow_version, producer.source) == ("2.15.0", "Keras")
    stats = measure(with_metadata("min_runtime_version", b"1.14.0" + bytes(10)))
    assert stats.producer.min_runtime_version == "1.14.0"
    assert stats.metadata == {"min_runtime_version": 16}


@given(st.binary(max_size=80), st.integers(0, 79), st.integers(0, 255))
@settings(deadline=None)
def test_producer_of_damaged_metadata(noise: bytes, place: int, value: int) -> None:
    good = bytearray(conversion_metadata("2.15.0", 2))
    good[place % len(good)] = value
    for data in (noise, bytes(good)):
        version = measure(with_metadata("CONVERSION_METADATA", data)).producer.tensorflow_version
        assert version is None or isinstance(version, str)


def test_appended_files() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("labels.txt", "cat\ndog\n")
    model = Model(version=3)
    model.attachment = Attachment(memoryview(file.getvalue()), 0)
    assert measure(model).appended == {"labels.txt": 8}
    model.attachment = Attachment(memoryview(b"not a zip"), 0)
    assert measure(model).appended == {"": 9}


def test_known_numbers_of_real_models(corpus: list[Path]) -> None:
    """Against numbers taken by other means: activation traffic by an earlier study, peaks by memory planners."""
    from litefuse.schema import read

    found = {path.stem: measure(read(path)) for path in corpus}
    assert found["coral_mbv2_tf2_ptq"].activation_bytes == 7_050_308
    assert round(found["coral_mbv2_tf2_ptq"].macs / 1e6) == 301  # MobileNetV2 1.0 224
    assert found["mlperf_resnet8_int8"].peak_bytes == 49_152
    assert found["mlperf_vww_int8"].peak_bytes == 55_296
    assert found["mp_selfie"].custom == {"Convolution2DTransposeBias": 1}
    assert set(found["tfls_wiki40b_lm"].flex) == {
        "FlexSentencepieceOp",
        "FlexSentencepieceTokenizeOp",
        "FlexRaggedTensorToTensor",
    }
    assert found["mlperf_strww_int8"].producer.tensorflow_version == "2.14.0"
    assert list(found["tfls_mbv1_025_u8_meta"].appended) == ["labels.txt"]


# -- documents -----------------------------------------------------------------------------------------------------


def test_json_has_no_infinities() -> None:
    assert [documents.number(x) for x in (1.5, None, float("inf"), -float("inf"), float("nan"))] == [
        1.5,
        None,
        "inf",
        "-inf",
        "nan",
    ]
    with pytest.raises(ValueError, match="not JSON compliant"):
        documents.to_json({"x": float("nan")})


def test_text_that_is_not_unicode() -> None:
    b = Builder()
    x = b.input("bad\udcff", [1])
    stats = measure(parse(to_bytes(b.model([b.op(Op.RELU, [x], shape=[1])]))))
    text = documents.to_json(documents.inspection("file\udc80", stats, []))
    entry = json.loads(text)
    assert entry["subgraphs"][0]["inputs"][0]["name"] == "bad\ufffd"
    assert entry["file"] == "file\ufffd"


def candidate(rule: str, reason: str, operator: int = 0) -> SimpleNamespace:
    from litefuse.graph import Location

    return SimpleNamespace(rule=rule, reason=reason, location=Location(0, operator, "RELU", f"t{operator}"))


def test_refusals_are_grouped_by_reason() -> None:
    reason = "output of CONV_2D #{} `a/b` is also read by ADD #{} `c;d` of subgraph 2"
    found = documents.refusals(
        [
            candidate("one", "takes 1,000 bytes"),
            candidate("two", reason.format(3, 4), 3),
            candidate("two", reason.format(5, 6), 5),
            candidate("two", reason.format(7, 8), 7),
            candidate("one", "takes 20 bytes"),
        ]  # type: ignore[arg-type]
    )
    assert [(r["rule"], r["count"]) for r in found] == [("two", 3), ("one", 2)]
    assert found[0]["reason"] == "output of CONV_2D is also read by ADD"
    assert found[0]["example"] == "RELU #3 `t3`"
    assert found[1]["reason"] == "takes 1,000 bytes"


# -- terminal ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9994, "9.99 kB"),
        (9996, "10.0 kB"),
        (99_960, "100 kB"),
        (999_400, "999 kB"),
        (999_500, "1.00 MB"),
        (1_630_000, "1.63 MB"),
        (2 * 10**9, "2.00 GB"),
    ],
)
def test_amounts(value: int, text: str) -> None:
    assert terminal.amount(value, "B") == text


def test_changes() -> None:
    assert [terminal.change(*pair) for pair in ((5, 5), (8, 7), (100, 150), (0, 3), (10**6, 10**6 - 1))] == [
        "",
        "-12.5 %",
        "+50.0 %",
        "new",
        "-0.0 %",
    ]


def shown(document: dict, width: int | None = None) -> str:
    out = io.StringIO()
    console = terminal.console(out)
    if width is not None:
        console = Console(file=out, width=width, force_terminal=True, color_system=None, markup=False, highlight=False)
    terminal.inspection(console, document)
    return out.getvalue()


def long_names() -> dict:
    b = Builder()
    x = b.input("a_rather_long_name/" * 12, [1, 224, 224, 3])
    y = b.op(Op.CUSTOM, [x], name="[bold]out[/bold]", shape=[1, 5])
    model = b.model([y], signature="serving_default")
    model.operator_codes[0].custom_code = "An_operator_with_a_name_of_its_own" * 3
    return documents.inspection("model.tflite", measure(model), [])


def test_nothing_is_wider_than_the_terminal() -> None:
    lines = shown(long_names(), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "[bold]out[/bold]" in "\n".join(lines)


def test_names_stay_whole_in_a_pipe() -> None:
    text = shown(long_names())
    assert "a_rather_long_name/" * 12 in text
    assert "\x1b" not in text
    assert not re.search(r"[ \t]+$", text, re.MULTILINE)


def test_names_cannot_steer_the_terminal() -> None:
    b = Builder()
    x = b.input("evil\x1b]0;title\x07\r\nname\u202e", [1])
    document = documents.inspection("m", measure(b.model([b.op(Op.RELU, [x], shape=[1])])), [])
    text = shown(document, width=80)
    assert "evil\ufffd]0;title\ufffd\ufffd" in text
    assert not set(text) & {"\x1b", "\x07", "\r", "\u202e"}
