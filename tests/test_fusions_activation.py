"""Clamps merged with each other and into the operators that feed them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import assert_same, fuse, kinds, looped, operators, refusals, results

from litefuse.fusions import Numerics
from litefuse.fusions.activation import RULES, FuseActivation, MergeClamps, compose, limits_of
from litefuse.graph.build import Builder, quantized
from litefuse.graph.graph import Graph
from litefuse.schema.enums import ActivationFunctionType, FullyConnectedOptionsWeightsFormat, Padding, TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op, builtin_code
from litefuse.schema.tables import SoftmaxOptions

FUSE, MERGE = FuseActivation(), MergeClamps()
# More than the classes of the rules for MAXIMUM and MINIMUM promise: the same bits, but for NaN and the sign of zero.
SPELLED: dict[str, Any] = {"numerics": Numerics.EXACT, "signed_zeros": False}
F32, INT8, UINT8, INT16 = TensorType.FLOAT32, TensorType.INT8, TensorType.UINT8, TensorType.INT16
POINTS = {INT8: -8, UINT8: 120, INT16: 0}
SCALES = {INT8: 0.05, UINT8: 0.05, INT16: 0.0005}
FLOAT_KINDS = [
    "CONV_2D",
    "DEPTHWISE_CONV_2D",
    "FULLY_CONNECTED",
    "TRANSPOSE_CONV",
    "CONV_3D",
    "ADD",
    "SUB",
    "MUL",
    "DIV",
    "AVERAGE_POOL_2D",
    "MAX_POOL_2D",
    "L2_POOL_2D",
]
QUANTIZED_KINDS = [k for k in FLOAT_KINDS if k not in ("CONV_3D", "L2_POOL_2D")]
ACTIVATIONS = ["RELU", "RELU6", "RELU_N1_TO_1"]


def produce(b: Builder, kind: str, type: TensorType = F32, out: Any = None, batch: int = 1, **options: Any) -> int:
    """An operator of a kind with random constants, on an input [batch, 6, 6, 4] (one more axis for CONV_3D)."""
    rng = np.random.default_rng(7)
    scale, point = SCALES.get(type, 1.0), POINTS.get(type, 0)
    per_tensor = None if type is F32 else quantized(scale, point)
    out = per_tensor if out is None else out
    shape = [batch, 2, 6, 6, 4] if kind == "CONV_3D" else [batch, 6, 6, 4]

    def weights(*dims: int) -> int:
        if type is F32:
            return b.constant("w", rng.standard_normal(dims).astype(np.float32) * 2)
        if type is UINT8:
            return b.constant("w", rng.integers(0, 256, dims).astype(np.uint8), quantized(0.02, 128))
        return b.constant("w", rng.integers(-127, 128, dims).astype(np.int8), quantized(0.02))

    def bias(count: int) -> int:
        if type is F32:
            return b.constant("b", rng.standard_normal(count).astype(np.float32))
        wide = np.int64 if type is INT16 else np.int32
        return b.constant("b", rng.integers(-500, 500, count).astype(wide), quantized(scale * 0.02))

    if kind == "TRANSPOSE_CONV":
        x = b.input("x", shape, type, per_tensor)
        size = b.constant("size", np.array([batch, 12, 12, 3], np.int32))
        w = weights(3, 2, 2, 4)
        return b.op(
            Op.TRANSPOSE_CONV,
            [size, w, x],
            shape=[batch, 12, 12, 3],
            type=type,
            quantization=out,
            stride_w=2,
            stride_h=2,
            **options,
        )
    x = b.input("x", shape, type, per_tensor)
    if kind == "CONV_2D":
        return b.op(Op.CONV_2D, [x, weights(4, 3, 3, 4), bias(4)], quantization=out, **options)
    if kind == "DEPTHWISE_CONV_2D":
        return b.op(Op.DEPTHWISE_CONV_2D, [x, weights(1, 3, 3, 4), bias(4)], quantization=out, **options)
    if kind == "FULLY_CONNECTED":
        flat = b.op(Op.RESHAPE, [x, b.constant("flat", [-1, 144])])
        return b.op(Op.FULLY_CONNECTED, [flat, weights(5, 144), bias(5)], quantization=out, **options)
    if kind == "CONV_3D":
        return b.op(Op.CONV_3D, [x, weights(2, 3, 3, 4, 5), bias(5)], **options)
    if kind.endswith("POOL_2D"):
        return b.op(Op[kind], [x], filter_width=2, filter_height=2, padding=Padding.SAME, quantization=out, **options)
    if type is F32:
        other = b.constant("c", rng.standard_normal((1, 6, 6, 4)).astype(np.float32))
    else:
        # Far from the zero point, so that DIV does not divide by zero.
        low, high = (130, 256) if type is UINT8 else (20, 128)
        dtype = {INT8: np.int8, UINT8: np.uint8, INT16: np.int16}[type]
        other = b.constant("c", rng.integers(low, high, (1, 6, 6, 4)).astype(dtype), per_tensor)
    return b.op(Op[kind], [x, other], quantization=out, **options)


def clamped(b: Builder, x: int, *chain: str | tuple[str, Any]) -> int:
    """Appends clamps: names of operators, or (MAXIMUM or MINIMUM, constant)."""
    for link in chain:
        if isinstance(link, str):
            x = b.op(Op[link], [x])
        else:
            x = b.op(Op[link[0]], [x, b.constant("k", np.asarray(link[1], np.float32))])
    return x


def model(kind: str, *chain: str | tuple[str, Any], **options: Any) -> Model:
    b = Builder()
    return b.model([clamped(b, produce(b, kind, **options), *chain)])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", FLOAT_KINDS)
def test_fuses_into_float_operators(kind: str, activation: str) -> None:
    # CONV_3D's fused RELU gives 0.0 where RELU alone keeps -0.0; all others agree on every bit, NaN included.
    after, report = fuse(model(kind, activation), FUSE, nonfinite=True, signed_zeros=kind != "CONV_3D")
    assert kinds(after)[-1] == f"{kind}+{activation}"
    assert report.counts() == {"fuse-activation": 1}


# RELU_N1_TO_1 alone has no INT16 kernel.
@pytest.mark.parametrize(
    ("type", "activation"),
    [(t, a) for t in (INT8, UINT8, INT16) for a in ACTIVATIONS if (t, a) != (INT16, "RELU_N1_TO_1")],
    ids=lambda v: getattr(v, "name", v),
)
@pytest.mark.parametrize("kind", QUANTIZED_KINDS)
def test_fuses_into_quantized_operators(kind: str, type: TensorType, activation: str) -> None:
    after, report = fuse(model(kind, activation, type=type), FUSE)
    assert kinds(after)[-1] == f"{kind}+{activation}"
    assert report.counts() == {"fuse-activation": 1}


def test_int16_add_and_sub_with_power_of_two_scales() -> None:
    for kind in (Op.ADD, Op.SUB):
        b = Builder()
        q = quantized(2.0**-10)
        x, y = b.input("x", [1, 64, 64, 4], INT16, q), b.input("y", [1, 64, 64, 4], INT16, q)
        m = b.model([b.op(Op.RELU6, [b.op(kind, [x, y], pot_scale_int16=True)])])
        after, _ = fuse(m, FUSE)
        assert kinds(after) == [f"{kind.name}+RELU6"]


def test_hybrid_convolution() -> None:
    rng = np.random.default_rng(1)
    b = Builder()
    w = b.constant("w", rng.integers(-127, 128, (4, 3, 3, 4)).astype(np.int8), quantized(0.02 * np.ones(4), [0] * 4))
    y = b.op(Op.CONV_2D, [b.input("x", [1, 6, 6, 4]), w, b.constant("b", np.ones(4, np.float32))])
    after, _ = fuse(b.model([b.op(Op.RELU6, [y])]), FUSE, cases=["normal", "zeros"])
    assert kinds(after) == ["CONV_2D+RELU6"]


SPELLINGS: list[tuple[tuple[Any, ...], str]] = [
    ((("MAXIMUM", 0),), "RELU"),
    ((("MAXIMUM", [0]), ("MINIMUM", [6])), "RELU6"),
    ((("MINIMUM", 6), ("MAXIMUM", 0)), "RELU6"),
    ((("MINIMUM", 6), "RELU"), "RELU6"),
    (("RELU", ("MINIMUM", 6)), "RELU6"),
    ((("MINIMUM", [[6.0] * 4]), "RELU", "RELU6"), "RELU6"),
    ((("MAXIMUM", -1), ("MINIMUM", 1)), "RELU_N1_TO_1"),
    ((("MINIMUM", 1), ("MAXIMUM", -1)), "RELU_N1_TO_1"),
    (("RELU", "RELU"), "RELU"),
    (("RELU", "RELU6"), "RELU6"),
    (("RELU6", "RELU"), "RELU6"),
    (("RELU6", "RELU6"), "RELU6"),
    (("RELU6", ("MAXIMUM", -3)), "RELU6"),
    ((("MAXIMUM", -3), "RELU"), "RELU"),
    (("RELU_N1_TO_1", ("MINIMUM", 2)), "RELU_N1_TO_1"),
]


@pytest.mark.parametrize(("chain", "activation"), SPELLINGS, ids=str)
@pytest.mark.parametrize("fused", [True, False], ids=["behind CONV_2D", "alone"])
def test_spellings(chain: tuple[Any, ...], activation: str, fused: bool) -> None:
    b = Builder()
    x = produce(b, "CONV_2D") if fused else b.input("x", [1, 6, 6, 4])
    after, report = fuse(b.model([clamped(b, x, *chain)]), *RULES, **SPELLED)
    assert kinds(after) == ([f"CONV_2D+{activation}"] if fused else [activation])
    assert report.refused == []


def test_the_order_of_rules_does_not_matter() -> None:
    m = model("ADD", ("MINIMUM", 6), "RELU", "RELU6")
    assert kinds(fuse(m, *reversed(RULES), **SPELLED)[0]) == ["ADD+RELU6"]


@pytest.mark.parametrize(
    ("own", "chain", "after"),
    [
        ("RELU", ["RELU6"], "RELU6"),
        ("RELU6", ["RELU"], "RELU6"),
        ("RELU_N1_TO_1", ["RELU_N1_TO_1"], "RELU_N1_TO_1"),
        ("RELU6", [("MINIMUM", 8)], "RELU6"),
        ("RELU", [("MINIMUM", 6)], "RELU6"),
    ],
    ids=str,
)
def test_composes_with_the_activation_that_is_there(own: str, chain: list[Any], after: str) -> None:
    m = model("DEPTHWISE_CONV_2D", *chain, fused_activation_function=ActivationFunctionType[own])
    assert kinds(fuse(m, *RULES, **SPELLED)[0]) == [f"DEPTHWISE_CONV_2D+{after}"]


def test_a_redundant_clamp_goes_even_when_its_input_is_shared() -> None:
    b = Builder()
    y = produce(b, "CONV_2D", fused_activation_function=ActivationFunctionType.RELU6)
    after, report = fuse(b.model([b.op(Op.RELU, [y]), b.op(Op.ABS, [y]), y]), MERGE)
    # The model's first output needs a tensor of its own, since the second one is the convolution's.
    assert kinds(after) == ["CONV_2D+RELU6", "RELU", "ABS"]
    assert [c.reason for c in report.refused] == [
        "it changes nothing, but the output of the model needs a tensor of its own"
    ]
    b = Builder()
    y = produce(b, "CONV_2D", fused_activation_function=ActivationFunctionType.RELU6)
    after, _ = fuse(b.model([b.op(Op.NEG, [b.op(Op.RELU, [y])]), b.op(Op.ABS, [y]), y]), MERGE)
    assert kinds(after) == ["CONV_2D+RELU6", "NEG", "ABS"]


def test_a_redundant_clamp_is_seen_across_operators_that_move_values() -> None:
    b = Builder()
    y = b.op(Op.RELU6, [b.input("x", [1, 6, 6, 4])])
    y = b.op(Op.MAX_POOL_2D, [y], filter_width=2, filter_height=2, stride_w=2, stride_h=2)
    y = b.op(Op.TRANSPOSE, [b.op(Op.RESHAPE, [y, b.constant("s", [9, 4])]), b.constant("p", [1, 0])])
    after, _ = fuse(b.model([b.op(Op.RELU, [y])]), MERGE)
    assert kinds(after) == ["RELU6", "MAX_POOL_2D", "RESHAPE", "TRANSPOSE"]


def test_padding_and_sums_are_not_known() -> None:
    b = Builder()
    y = b.op(Op.MAXIMUM, [b.input("x", [1, 6]), b.constant("one", 1.0)])
    y = b.op(Op.PAD, [y, b.constant("p", np.array([[0, 0], [1, 1]], np.int32))])
    assert refusals(b.model([b.op(Op.MAXIMUM, [y, b.constant("half", 0.5)])]), *RULES) == []


def test_a_clamp_that_others_read_is_not_taken_apart() -> None:
    """It would stay, and could not become part of its producer any more."""
    b = Builder()
    y = b.op(Op.RELU, [produce(b, "ADD")])
    m = b.model([b.op(Op.RELU6, [y]), b.op(Op.ABS, [y])])
    assert refusals(m, MERGE) == ["output of RELU #1 `relu_1` is also read by ABS #3 `abs_3`"]
    after, report = fuse(m, MERGE, FUSE)
    assert kinds(after) == ["ADD+RELU", "RELU6", "ABS"]
    assert [c.reason for c in report.refused] == ["output of ADD #0 `add_0` is also read by ABS #3 `abs_3`"]


def test_rules_for_maximum_and_minimum_are_apart() -> None:
    """Whoever wants every bit kept, NaN and the sign of zero included, leaves these out."""
    exact = [rule for rule in RULES if rule.numerics is Numerics.EXACT]
    spelled = {"merge-min-max", "fuse-activation"}
    relu = ActivationFunctionType.RELU
    for m, names in (
        (model("ADD", "RELU"), {"fuse-activation"}),
        (model("ADD", ("MAXIMUM", 0)), spelled),
        (model("ADD", ("MAXIMUM", -1), ("MINIMUM", 1)), spelled),
        (model("ADD", ("MINIMUM", 6), fused_activation_function=relu), {"fuse-min-max"}),
    ):
        assert set(fuse(m, *RULES, **SPELLED)[1].counts()) == names
        kept = fuse(m, *exact, nonfinite=True)[1].counts()
        assert kept == ({"fuse-activation": 1} if names == {"fuse-activation"} else {})
    # One comparison that stays where it is is not replaced: RELU after MAXIMUM with 1 changes nothing at all.
    after, report = fuse(model("ADD", ("MAXIMUM", 1), "RELU"), *exact, nonfinite=True)
    assert kinds(after) == ["ADD", "MAXIMUM"]
    assert report.counts() == {"merge-clamps": 1}


def test_nan_and_the_sign_of_zero_in_builtin_maximum() -> None:
    """What the module says about MAXIMUM and MINIMUM of the builtin kernels."""
    b = Builder()
    before = b.model([b.op(Op.MAXIMUM, [b.input("x", [4]), b.constant("zero", 0.0)])])
    after, _ = fuse(before, *RULES, **SPELLED)
    x = np.array([np.nan, -0.0, np.inf, -np.inf], np.float32)
    (was,), (now,) = results(before, x), results(after, x)
    assert was.tolist() == [0.0, 0.0, np.inf, 0.0]
    assert np.signbit(was).tolist() == [False] * 4
    assert np.isnan(now[0])
    assert now[1:].tolist() == [0.0, np.inf, 0.0]
    (was,), (now,) = results(before, x, xnnpack=True), results(after, x, xnnpack=True)
    assert was.tobytes() == now.tobytes()


@given(
    st.lists(
        st.one_of(
            st.sampled_from(["RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"]),
            st.tuples(
                st.sampled_from(["MAXIMUM", "MINIMUM"]), st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 5.5, 6.0, 7.0])
            ),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(list(ActivationFunctionType)[:4]),
)
@settings(max_examples=60, deadline=None)
def test_any_chain_of_clamps(chain: list[Any], own: ActivationFunctionType) -> None:
    m = model("ADD", *chain, fused_activation_function=own)
    after, _ = fuse(m, *RULES, **SPELLED, cases=["specials", "normal"])
    assert len(kinds(after)) <= len(kinds(m))


@pytest.mark.parametrize("activation", ["RELU", "RELU6"])
@pytest.mark.parametrize("type", [INT8, UINT8], ids=lambda t: t.name)
def test_a_clamp_that_spans_the_quantized_range_goes(type: TensorType, activation: str) -> None:
    lowest = -128 if type is INT8 else 0
    q = quantized(6 / 255, lowest)
    b = Builder()
    y = b.op(Op[activation], [produce(b, "CONV_2D", type, q)])
    y = b.op(Op[activation], [y], quantization=q)
    # Every one of the 256 values goes through the clamp: the input is a ramp with an identity before it.
    after, _ = fuse(b.model([y]), MERGE)
    assert kinds(after) == ["CONV_2D"]
    b = Builder()
    x = b.input("x", [1, 8, 8, 4], type, q)
    y = b.op(Op[activation], [b.op(Op.RESHAPE, [x, b.constant("s", [1, 256])])])
    after, _ = fuse(b.model([y]), MERGE)
    assert kinds(after) == ["RESHAPE"]


@pytest.mark.parametrize("point", [-128, -100, 0, 77])
@pytest.mark.parametrize("scale", [0.003, 0.02, 0.05, 1.0])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_all_int8_values(activation: str, scale: float, point: int) -> None:
    """MAX_POOL of 1x1 hands all 256 values to its clamp unchanged."""
    b = Builder()
    q = quantized(scale, point)
    y = b.op(Op.MAX_POOL_2D, [b.input("x", [1, 16, 16, 1], INT8, q)])
    m = b.model([b.op(Op[activation], [y])])
    after, report = fuse(m, MERGE, FUSE, cases=["ramp"])
    assert len(kinds(after)) == 1
    assert report.refused == []


def test_int16_ramp_over_all_values() -> None:
    b = Builder()
    x = b.input("x", [1, 256, 256, 1], INT16, quantized(0.0005))
    after, _ = fuse(b.model([b.op(Op.RELU6, [b.op(Op.MAX_POOL_2D, [x])])]), FUSE, cases=["ramp"])
    assert kinds(after) == ["MAX_POOL_2D+RELU6"]


def test_quantized_maximum_compares_stored_integers() -> None:
    b = Builder()
    y = produce(b, "CONV_2D", INT8)
    zero = b.constant("zero", np.array(POINTS[INT8], np.int8), quantized(SCALES[INT8], POINTS[INT8]))
    after, _ = fuse(b.model([b.op(Op.MAXIMUM, [y, zero])]), FUSE)
    assert kinds(after) == ["CONV_2D+RELU"]


def test_transpose_conv_gets_the_version_that_knows_activations() -> None:
    after, _ = fuse(model("TRANSPOSE_CONV", "RELU"), FUSE)
    (op,) = operators(after, "TRANSPOSE_CONV")
    assert after.operator_codes[op.opcode_index].version == 4
    assert [builtin_code(c) for c in after.operator_codes] == [Op.TRANSPOSE_CONV]
    after, _ = fuse(model("TRANSPOSE_CONV", "RELU", version=5), FUSE)
    assert [c.version for c in after.operator_codes] == [5]


def test_names_and_shapes_of_outputs_stay() -> None:
    m = model("CONV_2D", "RELU")
    main = m.subgraphs[0]
    main.tensors[main.outputs[0]].name = "probabilities"
    after, _ = fuse(m, FUSE)
    assert after.subgraphs[0].tensors[after.subgraphs[0].outputs[0]].name == "probabilities"


def test_dynamic_batch() -> None:
    after, _ = fuse(model("CONV_2D", ("MAXIMUM", [[[0.0]]]), "RELU6", batch=-1), *RULES, **SPELLED)
    assert kinds(after) == ["CONV_2D+RELU6"]


def test_inside_a_while_body() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    body = b.model(
        [b.op(Op.RELU, [b.op(Op.MAXIMUM, [b.op(Op.SUB, [x, b.constant("c", 0.25)]), b.constant("z", -1.0)])])]
    )
    after, _ = fuse(looped(body), *RULES, **SPELLED)
    assert kinds(after) == ["WHILE"]
    assert "SUB+RELU" in kinds(after, 2)
    assert "RELU" not in kinds(after, 2)


# -- refusals ------------------------------------------------------------------------------------------------------


def refuses(m: Model) -> str:
    (reason,) = refusals(m, *RULES)
    return reason


@pytest.mark.parametrize(("q", "what"), [(quantized(0.06, -8), "scale 0.05"), (quantized(0.05, -9), "zero point -8")])
def test_refuses_another_scale_or_zero_point(q: Any, what: str) -> None:
    b = Builder()
    m = b.model([b.op(Op.RELU, [produce(b, "CONV_2D", INT8)], quantization=q)])
    assert f"output {what} of CONV_2D #0 `conv_2d_0` differs from" in refuses(m)
    assert "would change rounding" in refuses(m)


def test_refuses_another_reader() -> None:
    b = Builder()
    y = produce(b, "CONV_2D")
    m = b.model([b.op(Op.RELU, [y]), b.op(Op.ABS, [y])])
    assert refuses(m) == "output of CONV_2D #0 `conv_2d_0` is also read by ABS #2 `abs_2`"


def test_refuses_a_model_output() -> None:
    b = Builder()
    y = produce(b, "CONV_2D")
    assert (
        refuses(b.model([b.op(Op.RELU, [y]), y])) == "output of CONV_2D #0 `conv_2d_0` is also an output of the model"
    )


def test_refuses_broadcasting() -> None:
    m = model("ADD", ("MAXIMUM", np.zeros((2, 1, 1, 1))))
    assert refuses(m) == "MAXIMUM may change the shape [1, 6, 6, 4] by broadcasting"
    m = model("ADD", ("MAXIMUM", np.zeros((2, 1, 1, 1))), batch=-1)
    assert refuses(m) == "MAXIMUM may change the shape [-1, 6, 6, 4] by broadcasting"
    m = model("ADD", ("MAXIMUM", np.zeros((1, 1, 1, 1, 1))))
    assert refuses(m) == "MAXIMUM may change the shape [1, 6, 6, 4] by broadcasting"


def test_refuses_integers() -> None:
    b = Builder()
    y = b.op(Op.ADD, [b.input("x", [4], TensorType.INT32), b.constant("c", [1])])
    m = b.model([b.op(Op.MAXIMUM, [y, b.constant("zero", [0])])])
    assert refuses(m) == "clamps of INT32 values are not fused into ADD"


def test_refuses_intervals_that_no_activation_says() -> None:
    m = model("CONV_2D", ("MINIMUM", 4))
    assert refuses(m) == "values would be limited to (-inf, 4], which no fused activation says"
    m = model("CONV_2D", "RELU", fused_activation_function=ActivationFunctionType.RELU_N1_TO_1)
    assert refuses(m) == "values would be limited to [0, 1], which no fused activation says"


def test_refuses_bounds_that_runtimes_round_differently() -> None:
    b = Builder()
    m = b.model([b.op(Op.RELU6, [produce(b, "CONV_2D", INT8, quantized(0.48, -8))])])  # 6 / 0.48 = 12.5
    assert refuses(m) == "a bound lies halfway between two quantised values; runtimes round it differently"


def test_refuses_a_range_of_one_value() -> None:
    b = Builder()
    m = b.model([b.op(Op.RELU, [produce(b, "CONV_2D", INT8, quantized(0.05, 127))])])
    assert refuses(m) == "only one value would remain, which XNNPACK does not accept as a range"


def test_refuses_operators_whose_kernels_reject_the_field() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    m = b.model([b.op(Op.RELU, [b.op(Op.CONCATENATION, [x, x], axis=1)])])
    assert refuses(m) == "CONCATENATION has no kernel with a fused activation"
    b = Builder()
    m = b.model([b.op(Op.RELU, [b.op(Op.L2_NORMALIZATION, [b.input("x", [1, 4])])])])
    assert refuses(m) == "L2_NORMALIZATION has no kernel with a fused activation"


def test_refuses_other_activations_and_shuffled_weights() -> None:
    m = model("ADD", "RELU")
    m.subgraphs[0].operators[0].builtin_options.fused_activation_function = ActivationFunctionType.TANH
    assert refuses(m) == "ADD already has the fused activation TANH"
    m = model("FULLY_CONNECTED", "RELU", type=UINT8)
    m.subgraphs[0].operators[1].builtin_options.weights_format = FullyConnectedOptionsWeightsFormat.SHUFFLED4x16INT8
    assert refuses(m) == "FULLY_CONNECTED #1 `fully_connected_1` has shuffled weights, whose kernel is left alone"


def test_refuses_the_options_of_another_operator() -> None:
    m = model("ADD", "RELU")
    m.subgraphs[0].operators[0].builtin_options = SoftmaxOptions(beta=1.0)
    assert refuses(m) == "ADD #0 `add_0` has the options of another operator"


def test_refuses_variables_and_unquantized_integers() -> None:
    m = model("ADD", "RELU")
    m.subgraphs[0].tensors[m.subgraphs[0].operators[0].outputs[0]].is_variable = True
    assert refuses(m) == "tensor `add_0` is a variable"
    b = Builder()
    x = b.input("x", [4], INT16)
    y = b.op(Op.ADD, [x, x], shape=[4])
    m = b.model([b.op(Op.MAXIMUM, [y, b.constant("zero", np.zeros(1, np.int16))], shape=[4])])
    assert refuses(m) == "the INT16 values have no single scale"
    m = model("ADD", "RELU", type=INT16)
    m.subgraphs[0].operators[0].builtin_options = None
    assert refuses(m) == "ADD #0 `add_0` has no options, and adding them would choose another INT16 kernel"


def test_leaves_other_operators_alone() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    m = b.model([b.op(Op.RELU, [b.op(Op.TANH, [x])]), b.op(Op.MAXIMUM, [x, x]), b.op(Op.RELU, [x])])
    assert refusals(m, *RULES) == []


def test_compose_and_limits() -> None:
    assert compose((-1, 1), (0, 6)) == (0, 1)
    assert compose((0, 1), (2, 3)) == (2, 2)
    b = Builder()
    m = b.model([b.input("x", [1], INT8, quantized(0.05, -8))])
    graph = Graph(m)
    assert limits_of(graph, 0, (0, 6)) == (-8, 112)
    assert limits_of(graph, 0, (-1, float("inf"))) == (-28, 127)


def test_assert_same_would_notice() -> None:
    """The comparison that the tests above rely on fails when it should."""
    with pytest.raises(AssertionError, match="instead of"):
        assert_same(model("ADD"), model("ADD", fused_activation_function=ActivationFunctionType.RELU))
