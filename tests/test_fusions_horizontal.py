"""Operators side by side on one input: what merges before a CONCATENATION, what before a SPLIT, and what stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rules import assert_same, fuse, kinds, looped, operators, refusals

from litefuse.fusions import horizontal, run
from litefuse.fusions.duplicates import ShareConstants
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model, deepcopy, read, to_bytes
from litefuse.schema.enums import ActivationFunctionType, FullyConnectedOptionsWeightsFormat, Padding, TensorType
from litefuse.schema.operators import Op

RULES = horizontal.RULES
RELU = ActivationFunctionType.RELU
rng = np.random.default_rng(3)

FLOAT, INT8, UINT8 = TensorType.FLOAT32, TensorType.INT8, TensorType.UINT8
INPUT = {INT8: quantized(0.05, 3), UINT8: quantized(0.05, 120)}
OUTPUT = {INT8: quantized(0.7, -9), UINT8: quantized(0.7, 100)}


def start(b: Builder, type: TensorType = FLOAT, channels: int = 16, size: int = 5, name: str = "x") -> int:
    return b.input(name, [1, size, size, channels], type, INPUT.get(type))


def integers(*shape: int, type: TensorType) -> Any:
    return rng.integers(1, 255, shape).astype(np.uint8) if type == UINT8 else rng.integers(-127, 128, shape, np.int8)


def conv(
    b: Builder,
    x: int,
    channels: int,
    type: TensorType = FLOAT,
    *,
    per_channel: bool = True,
    scale: float = 0.01,
    inputs: int = 16,
    kernel: int = 3,
    quantization: Any = None,
    dense: bool = False,
    **options: Any,
) -> int:
    """A CONV_2D (or FULLY_CONNECTED) with random weights."""
    shape = (channels, inputs) if dense else (channels, kernel, kernel, inputs)
    kind = Op.FULLY_CONNECTED if dense else Op.CONV_2D
    if type == FLOAT:
        w = b.constant("w", rng.standard_normal(shape).astype(np.float32))
        c = b.constant("b", rng.standard_normal(channels).astype(np.float32))
        return b.op(kind, [x, w, c], **options)
    scales: Any = (scale * rng.uniform(0.5, 2, channels)).tolist() if per_channel else scale
    w = b.constant("w", integers(*shape, type=type), quantized(scales, 0 if type == INT8 else 128))
    c = b.constant("b", rng.integers(-999, 999, channels, np.int32), quantized(np.float32(0.05) * np.float32(scales)))
    version = {INT8: 4 if dense else 3, UINT8: 1}[type]
    return b.op(kind, [x, w, c], version=version, quantization=quantization or OUTPUT[type], **options)


def outputs_of(model: Model) -> list[list[int] | None]:
    main = model.subgraphs[0]
    return [main.tensors[t].shape for t in main.outputs]


# -- before a CONCATENATION ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", [FLOAT, INT8, UINT8])
@pytest.mark.parametrize("dense", [False, True])
def test_whole_concatenation(type: TensorType, dense: bool) -> None:
    b = Builder()
    x = b.input("x", [3, 16], type, INPUT.get(type)) if dense else start(b, type)
    per_channel = type == INT8 and not dense
    parts = [conv(b, x, n, type, per_channel=per_channel, dense=dense) for n in (3, 5, 1)]
    y = b.op(Op.CONCATENATION, parts, axis=-1, version=1 if type != INT8 else 2)
    after, report = fuse(b.model([y]), *RULES)
    assert kinds(after) == ["FULLY_CONNECTED" if dense else "CONV_2D"]
    expected = RULES[1].name if type == FLOAT else RULES[0].name
    assert report.counts() == {expected: 1}
    assert outputs_of(after) == [[3, 9] if dense else [1, 5, 5, 9]]
    assert after.subgraphs[0].tensors[after.subgraphs[0].outputs[0]].name == "concatenation_3"


def test_options_are_kept() -> None:
    b = Builder()
    x = start(b, size=9)
    options = {
        "stride_h": 2,
        "padding": Padding.VALID,
        "dilation_w_factor": 2,
        "fused_activation_function": RELU,
    }
    parts = [conv(b, x, n, **options) for n in (2, 3)]
    after, _ = fuse(b.model([b.op(Op.TANH, [b.op(Op.CONCATENATION, parts, axis=3)])]), *RULES)
    assert kinds(after) == ["CONV_2D+RELU", "TANH"]


def test_part_of_a_concatenation() -> None:
    b = Builder()
    x = start(b)
    z = b.input("z", [1, 5, 5, 2])
    parts = [z, conv(b, x, 3), conv(b, x, 2), z, conv(b, x, 4)]
    after, _ = fuse(b.model([b.op(Op.CONCATENATION, parts, axis=3)]), *RULES)
    assert kinds(after) == ["CONV_2D", "CONV_2D", "CONCATENATION"]
    (joined,) = operators(after, "CONCATENATION")
    assert len(joined.inputs) == 4


def test_two_inputs_make_two_groups() -> None:
    b = Builder()
    x, z = start(b), start(b, name="z")
    parts = [conv(b, x, 3), conv(b, x, 2), conv(b, z, 3), conv(b, z, 2)]
    after, report = fuse(b.model([b.op(Op.CONCATENATION, parts, axis=3)]), *RULES)
    assert kinds(after) == ["CONV_2D", "CONV_2D", "CONCATENATION"]
    assert report.counts() == {RULES[1].name: 2}


def test_scales_per_tensor_become_scales_per_channel() -> None:
    b = Builder()
    x = start(b, INT8)
    parts = [conv(b, x, 3, INT8, per_channel=False), conv(b, x, 2, INT8, per_channel=False, scale=0.004)]
    after, _ = fuse(b.model([b.op(Op.CONCATENATION, parts, axis=3, version=2)]), *RULES)
    (op,) = operators(after, "CONV_2D")
    weights = after.subgraphs[0].tensors[op.inputs[1]].quantization
    assert weights is not None
    assert weights.scale is not None
    assert len(weights.scale) == 5


def test_float16_weights_stay_float16() -> None:
    b = Builder()
    x = start(b)

    def half(name: str, *shape: int) -> int:
        value = b.constant(name, rng.standard_normal(shape).astype(np.float16))
        return b.op(Op.DEQUANTIZE, [value], type=FLOAT, version=3)

    parts = [b.op(Op.CONV_2D, [x, half("w", n, 1, 1, 16), half("b", n)]) for n in (3, 4)]
    after, _ = fuse(b.model([b.op(Op.CONCATENATION, parts, axis=3)]), *RULES)
    assert kinds(after) == ["DEQUANTIZE", "DEQUANTIZE", "CONV_2D"]
    assert {after.subgraphs[0].tensors[op.inputs[0]].type for op in operators(after, "DEQUANTIZE")} == {
        TensorType.FLOAT16
    }


def test_dynamic_batch() -> None:
    b = Builder()
    x = b.input("x", [-1, 5, 5, 16])
    parts = [conv(b, x, n) for n in (3, 4)]
    after, _ = fuse(b.model([b.op(Op.CONCATENATION, parts, axis=3)]), *RULES)
    assert kinds(after) == ["CONV_2D"]
    assert after.subgraphs[0].tensors[after.subgraphs[0].outputs[0]].shape_signature == [-1, 5, 5, 7]


def test_body_of_a_loop() -> None:
    b = Builder()
    x = b.input("x", [1, 5, 5, 16])
    y = b.op(Op.CONCATENATION, [conv(b, x, 6), conv(b, x, 10)], axis=3)
    model = looped(b.model([b.op(Op.TANH, [y])]))
    after, _ = fuse(model, *RULES, bound=1e-4)
    assert kinds(after, 2) == ["CONV_2D", "TANH", "ADD"]


# -- before a SPLIT ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("type", "channels"), [(FLOAT, 4), (FLOAT, 36), (INT8, 2), (UINT8, 2)])
def test_split_where_panels_are_saved(type: TensorType, channels: int) -> None:
    b = Builder()
    x = start(b, type, 64)
    parts = [conv(b, x, channels, type, inputs=64, per_channel=type == INT8) for _ in range(2)]
    model = b.model([*parts, b.op(Op.RESHAPE, [parts[0], b.constant("s", [25, channels])])])
    after, report = fuse(model, *RULES)
    assert kinds(after) == ["CONV_2D", "SPLIT", "RESHAPE"]
    assert report.counts() == {(RULES[3] if type == FLOAT else RULES[2]).name: 1}
    assert outputs_of(after) == outputs_of(model)


def test_at_most_four_pieces() -> None:
    b = Builder()
    x = start(b, channels=64)
    after, _ = fuse(b.model([conv(b, x, 1, inputs=64) for _ in range(6)]), *RULES)
    assert kinds(after) == ["CONV_2D", "SPLIT", "CONV_2D", "SPLIT"]
    assert [len(op.outputs) for op in operators(after, "SPLIT")] == [4, 2]


def test_readers_between_the_operators_come_behind_the_split() -> None:
    b = Builder()
    x = start(b, channels=64)
    first = conv(b, x, 2, inputs=64)
    y = b.op(Op.TANH, [first])
    after, _ = fuse(b.model([y, conv(b, x, 2, inputs=64)]), *RULES)
    assert kinds(after) == ["CONV_2D", "SPLIT", "TANH"]


@pytest.mark.parametrize(
    ("channels", "inputs", "dense", "expected"),
    [
        (64, 64, False, "would be no less work, and a SPLIT behind it more"),
        (64, 64, True, "would be no less work"),  # Q, K and V: as many panels together as apart
        (8, 128, False, "would be no less work"),
        (4, 8, True, "would save about 8 cycles for each pixel or row, and the SPLIT behind it would cost 192"),
    ],
)
def test_split_that_does_not_pay_is_refused(channels: int, inputs: int, dense: bool, expected: str) -> None:
    b = Builder()
    x = b.input("x", [7, inputs]) if dense else start(b, channels=inputs)
    model = b.model([conv(b, x, channels, inputs=inputs, kernel=1, dense=dense) for _ in range(3)])
    (reason,) = set(refusals(model, *RULES))
    assert expected in reason
    assert "CONV_2D #1" in reason or dense


def test_large_results_cost_more() -> None:
    for size, expected in ((8, ["CONV_2D", "SPLIT"]), (112, ["CONV_2D", "CONV_2D"])):
        b = Builder()
        x = start(b, channels=256, size=size)
        model = b.model([conv(b, x, 36, inputs=256, kernel=1) for _ in range(2)])
        after = deepcopy(model)
        run(after, RULES)
        assert kinds(after) == expected


def test_pieces_of_different_sizes_are_left_alone() -> None:
    b = Builder()
    x = start(b, channels=64)
    assert refusals(b.model([conv(b, x, n, inputs=64) for n in (2, 4)]), *RULES) == []


def test_split_is_not_made_only_to_be_joined_again() -> None:
    b = Builder()
    x = start(b, channels=64)
    parts = [conv(b, x, 4, inputs=64) for _ in range(2)]
    after, _ = fuse(b.model([b.op(Op.CONCATENATION, parts, axis=3)]), *RULES)
    assert kinds(after) == ["CONV_2D"]


# -- what must be refused, or left alone ---------------------------------------------------------------------------


def joined(b: Builder, *parts: int, **options: Any) -> Model:
    return b.model([b.op(Op.CONCATENATION, list(parts), **({"axis": 3} | options))])


@pytest.mark.parametrize(
    "second",
    [
        {"kernel": 1},
        {"padding": Padding.VALID, "kernel": 1},
        {"fused_activation_function": RELU},
        {"dilation_h_factor": 2},
    ],
)
def test_another_geometry_or_activation_is_left_alone(second: dict[str, Any]) -> None:
    b = Builder()
    x = start(b)
    assert refusals(joined(b, conv(b, x, 3), conv(b, x, 3, **second)), *RULES[:2]) == []


def test_another_axis_or_activation_of_the_concatenation_is_left_alone() -> None:
    b = Builder()
    x = start(b)
    assert refusals(joined(b, conv(b, x, 3), conv(b, x, 3), axis=1), *RULES[:2]) == []
    b = Builder()
    x, z = start(b), start(b, name="z")
    assert refusals(joined(b, conv(b, x, 3), conv(b, z, 3)), *RULES[:2]) == []


def test_other_readers_and_outputs_are_named() -> None:
    b = Builder()
    x = start(b)
    first, second = conv(b, x, 3), conv(b, x, 3)
    y = b.op(Op.CONCATENATION, [first, second], axis=3)
    (reason,) = refusals(b.model([y, b.op(Op.TANH, [second])]), *RULES[:2])
    assert reason == "output of CONV_2D #1 `conv_2d_1` is also read by TANH #3 `tanh_3`"
    b = Builder()
    x = start(b)
    first, second = conv(b, x, 3), conv(b, x, 3)
    y = b.op(Op.CONCATENATION, [first, second], axis=3)
    (reason,) = refusals(b.model([y, first]), *RULES[:2])
    assert "is also an output of the model" in reason


def test_the_same_result_twice_is_left_alone() -> None:
    b = Builder()
    first = conv(b, start(b), 3)
    assert refusals(joined(b, first, first), *RULES) == []


def test_shared_weights_are_refused() -> None:
    b = Builder()
    x, z = start(b), start(b, name="z")
    w, c = (b.constant(n, rng.standard_normal(s).astype(np.float32)) for n, s in (("w", (16, 3, 3, 16)), ("b", (16,))))
    y = joined(b, b.op(Op.CONV_2D, [x, w, c]), conv(b, x, 3), b.op(Op.CONV_2D, [z, w, c]))
    (reason,) = set(refusals(y, *RULES))
    assert reason == "`w` is also used elsewhere, so that the file would hold it twice"
    b = Builder()
    x = start(b)
    w, c = (b.constant(n, rng.standard_normal(s).astype(np.float32)) for n, s in (("w", (16, 3, 3, 16)), ("b", (16,))))
    parts = [b.op(Op.CONV_2D, [x, w, t]) for t in (c, b.constant("d", np.zeros(16, np.float32)))]
    (reason,) = set(refusals(joined(b, *parts), *RULES))
    assert "would hold it twice" in reason


def test_weights_shared_by_pairs_merge_and_are_shared_again() -> None:
    b = Builder()
    shapes = {"w": (16, 3, 3, 16), "v": (8, 3, 3, 16), "b": (16,), "c": (8,)}
    t = {name: b.constant(name, rng.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}
    results = []
    for x in (start(b), start(b, name="z")):
        parts = [b.op(Op.CONV_2D, [x, t["w"], t["b"]]), b.op(Op.CONV_2D, [x, t["v"], t["c"]])]
        results.append(b.op(Op.CONCATENATION, parts, axis=3))
    model = b.model(results)
    after, _ = fuse(model, *RULES, ShareConstants())
    assert kinds(after) == ["CONV_2D", "CONV_2D"]
    assert len(to_bytes(after)) <= len(to_bytes(model))


def test_groups_are_refused() -> None:
    b = Builder()
    x = start(b)
    (reason,) = refusals(joined(b, conv(b, x, 4, inputs=8), conv(b, x, 4, inputs=8)), *RULES[:2])
    assert "has groups of channels" in reason


def test_weights_that_are_computed_are_refused() -> None:
    b = Builder()
    x = b.input("x", [3, 16])
    bias = [b.constant("b", np.ones(4, np.float32)) for _ in range(2)]
    parts = [b.op(Op.FULLY_CONNECTED, [x, b.input(f"w{i}", [4, 16]), bias[i]]) for i in range(2)]
    (reason,) = refusals(joined(b, *parts, axis=1), *RULES[:2])
    assert "not all dense constants" in reason


def test_another_output_scale_is_refused() -> None:
    b = Builder()
    x = start(b, INT8, 64)
    parts = [conv(b, x, 2, INT8, inputs=64), conv(b, x, 2, INT8, inputs=64, quantization=quantized(0.6, -9))]
    (reason,) = refusals(b.model(parts), *RULES)
    assert reason == "CONV_2D #1 `conv_2d_1` has another output scale or zero point than CONV_2D #0 `conv_2d_0`"


def test_uint8_weights_of_another_scale_are_refused() -> None:
    b = Builder()
    x = start(b, UINT8)
    parts = [conv(b, x, 3, UINT8, per_channel=False, scale=s) for s in (0.01, 0.02)]
    (reason,) = refusals(joined(b, *parts), *RULES[:2])
    assert "have zero points, and so must all have the same scale" in reason


def test_dense_int8_weights_of_another_scale_are_refused() -> None:
    b = Builder()
    x = b.input("x", [3, 16], INT8, INPUT[INT8])
    parts = [conv(b, x, 3, INT8, per_channel=False, scale=s, dense=True) for s in (0.01, 0.02)]
    (reason,) = refusals(joined(b, *parts, axis=1, version=2), *RULES[:2])
    assert "one for each channel is not supported" in reason


def test_variables_are_left_alone() -> None:
    b = Builder()
    x = start(b)
    model = joined(b, conv(b, x, 3), conv(b, x, 3))
    model.subgraphs[0].tensors[x].is_variable = True
    model.subgraphs[0].inputs.clear()
    assert refusals(model, *RULES) == []


def test_shuffled_weights_are_refused() -> None:
    b = Builder()
    x = b.input("x", [3, 16])
    model = joined(b, conv(b, x, 4, dense=True), conv(b, x, 4, dense=True), axis=1)
    for op in operators(model, "FULLY_CONNECTED"):
        op.builtin_options = op.builtin_options.replace(
            weights_format=FullyConnectedOptionsWeightsFormat.SHUFFLED4x16INT8
        )
    (reason,) = refusals(model, *RULES[:2])
    assert "in a shuffled format" in reason


def test_missing_bias_is_refused() -> None:
    b = Builder()
    x = b.input("x", [3, 16])
    w = b.constant("w", rng.standard_normal((4, 16)).astype(np.float32))
    model = joined(b, conv(b, x, 4, dense=True), b.op(Op.FULLY_CONNECTED, [x, w, -1]), axis=1)
    (reason,) = refusals(model, *RULES[:2])
    assert reason.endswith("have a bias")


EXPECTED = {
    "basic_pitch_nmp": {"merge-before-split": 9},
    "coral_bodypix_decoder": {"merge-quantized-before-concatenation": 1},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_corpus(corpus: list[Path], name: str) -> None:
    model = read(next(path for path in corpus if path.stem == name))
    after = deepcopy(model)
    assert run(after, RULES).counts() == EXPECTED[name]
    if name == "basic_pitch_nmp":  # the other needs a custom operator
        assert_same(model, after, RULES[3].numerics, cases=("normal", "zeros"), batches=(1,))
