"""Transpositions moved through every operator that they pass, to where they cancel, and left alone elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litefuse.fusions import Numerics, dead_code, identity, run, transposes
from litefuse.graph import Graph
from litefuse.graph.build import Builder, quantized
from litefuse.graph.text import from_text
from litefuse.schema import Model
from litefuse.schema.enums import ActivationFunctionType, MirrorPadMode, Padding, TensorType
from litefuse.schema.operators import Op
from tests.rules import apply, fuse, kinds, looped, operators, refusals

EXACT, MATH, QUANTIZED = transposes.RULES
RULES = transposes.RULES
F32, F16, I8, U8, I16, I32 = (TensorType[n] for n in ("FLOAT32", "FLOAT16", "INT8", "UINT8", "INT16", "INT32"))
RELU = ActivationFunctionType.RELU
TO_NCHW, TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
# Neither square nor tiny, so that no axis can be taken for another.
NHWC = (2, 5, 7, 48)
NCHW = (2, 48, 5, 7)
rng = np.random.default_rng(17)
Make = Callable[[Builder, int], int]


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def transpose(b: Builder, x: int, order: Sequence[int], **options: Any) -> int:
    return b.op(Op.TRANSPOSE, [x, b.constant("order", list(order))], **options)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def between(make: Make, shape: Sequence[int] = NHWC) -> Model:
    """Channels first for what ``make`` builds, channels last around it."""
    b = Builder()
    return b.model([transpose(b, make(b, transpose(b, b.input("x", shape), TO_NCHW)), TO_NHWC)])


def on(kind: Op, *constants: Any, **options: Any) -> Make:
    return lambda b, x: b.op(kind, [x, *(b.constant(f"c{i}", c) for i, c in enumerate(constants))], **options)


def count(model: Model) -> int:
    return sum(k == "TRANSPOSE" for k in kinds(model))


def select(b: Builder, x: int) -> int:
    return b.op(
        Op.SELECT_V2,
        [b.op(Op.GREATER, [x, b.constant("l", normal(48, 1, 1))], type=TensorType.BOOL), x, b.constant("z", 0.5)],
        type=F32,
    )


def with_itself(b: Builder, x: int) -> int:
    return b.op(Op.SUB, [b.op(Op.MUL, [x, x]), b.op(Op.ABS, [x])], fused_activation_function=RELU)


def split(b: Builder, x: int) -> int:
    first = b.op(Op.SPLIT, [b.constant("axis", np.int32(1)), x], num_splits=3, outputs=3, type=F32)
    return b.op(Op.CONCATENATION, [first + 2, first, first + 1], axis=1)


def split_v(b: Builder, x: int) -> int:
    first = b.op(
        Op.SPLIT_V, [x, b.constant("sizes", [1, 4, 2]), b.constant("axis", np.int32(3))], num_splits=3, outputs=3
    )
    return b.op(Op.CONCATENATION, [first + 2, first, first + 1], axis=-1)


def strided(**options: Any) -> Make:
    bounds = [0, 2, 0, -5], [2, 11, 5, 7], [1, 3, 1, 2]
    return on(Op.STRIDED_SLICE, *bounds, **({"begin_mask": 1, "end_mask": 8} | options))


def packed(b: Builder, x: int) -> int:
    y = b.op(Op.PACK, [x, b.op(Op.NEG, [x])], axis=-1, values_count=2)
    first = b.op(Op.UNPACK, [y], axis=4, num=2, outputs=2)
    return b.op(Op.ADD, [first, b.op(Op.ABS, [first + 1])])


def merged_and_split_again(b: Builder, x: int) -> int:
    y = b.op(Op.RELU, [b.op(Op.RESHAPE, [x, b.constant("flat", [2, 48, 35])])])
    return b.op(Op.RESHAPE, [y, b.constant("square", [2, 48, 5, 7])])


def halves(b: Builder, x: int) -> int:
    full = b.constant("full", normal(2, 48, 5, 7).astype(np.float16))
    return b.op(Op.ADD, [b.op(Op.DEQUANTIZE, [full], type=F32), x])


EXACT_CASES: dict[str, Make] = {
    "unary": on(Op.NEG),
    "a chain": lambda b, x: on(Op.LEAKY_RELU, alpha=0.2)(b, on(Op.RELU6)(b, on(Op.SQUARE)(b, x))),
    "a scalar": on(Op.MUL, 0.5),
    "a vector along the channels": on(Op.ADD, normal(1, 48, 1, 1)),
    "a vector of lower rank": on(Op.SUB, normal(48, 1, 1)),
    "along the width": on(Op.MUL, normal(7)),
    "a whole constant": on(Op.MAXIMUM, normal(2, 48, 5, 7)),
    "a fused activation": on(Op.ADD, normal(48, 1, 1), fused_activation_function=RELU),
    "prelu": on(Op.PRELU, normal(48, 1, 1)),
    "itself": with_itself,
    "selection": select,
    "half-precision constants": halves,
    "concatenation": lambda b, x: b.op(Op.CONCATENATION, [x, b.op(Op.NEG, [x])], axis=1),
    "concatenation with a constant": lambda b, x: b.op(
        Op.CONCATENATION, [x, b.constant("c", normal(2, 3, 5, 7))], axis=-3
    ),
    "split": split,
    "split into given sizes": split_v,
    "pad": on(Op.PAD, ints(0, 0, 2, 1, 1, 1, 0, 3).reshape(4, 2)),
    "padv2": on(Op.PADV2, ints(0, 0, 0, 0, 1, 0, 0, 3).reshape(4, 2), np.float32(1.5)),
    "mirror pad": on(Op.MIRROR_PAD, ints(0, 0, 0, 0, 2, 1, 0, 3).reshape(4, 2), mode=MirrorPadMode.REFLECT),
    "slice": on(Op.SLICE, [0, 3, 0, 1], [2, 4, -1, 5]),
    "strided slice": strided(),
    "strided slice that drops an axis": lambda b, x: on(Op.RESHAPE, [2, 3, 5, 1])(b, strided(shrink_axis_mask=8)(b, x)),
    "tile": on(Op.TILE, [1, 2, 1, 3]),
    "reverse": on(Op.REVERSE_V2, ints(3)),
    "gather": on(Op.GATHER, ints(3, 1, 1, 0), axis=1),
    "pack and unpack": packed,
    "maximum over an axis": on(Op.REDUCE_MAX, ints(1), keep_dims=True),
    "reshapes": merged_and_split_again,
    "cast": lambda b, x: b.op(Op.CAST, [b.op(Op.CAST, [x], type=I32)], type=F32),
}


@pytest.mark.parametrize("case", EXACT_CASES)
def test_passes_to_the_bit(case: str) -> None:
    model = between(EXACT_CASES[case])
    after, _ = fuse(model, EXACT, *dead_code.RULES, cases=["normal", "specials", "subnormals"])
    assert count(after) == 0
    assert len(kinds(after)) == len(kinds(model)) - 2


MATH_CASES: dict[str, Make] = {
    "logistic": on(Op.LOGISTIC),
    "tanh": on(Op.TANH),
    "gelu": on(Op.GELU),
    "hard swish": on(Op.HARD_SWISH),
    "swish": lambda b, x: b.op(Op.MUL, [x, b.op(Op.LOGISTIC, [x])]),
    "mean": on(Op.MEAN, ints(2, 3), keep_dims=True),
    "sum": on(Op.SUM, ints(-3), keep_dims=True),
}


@pytest.mark.parametrize("case", MATH_CASES)
def test_passes_where_the_last_bits_may_differ(case: str) -> None:
    model = between(MATH_CASES[case])
    assert apply(between(MATH_CASES[case]), EXACT).counts() == {}
    after, _ = fuse(model, MATH, cases=["normal"], bound=1e-6)
    assert count(after) == 0


def test_reductions_that_drop_axes_need_no_order_afterwards() -> None:
    b = Builder()
    y = b.op(Op.MEAN, [transpose(b, b.input("x", NHWC), TO_NCHW), b.constant("axes", [2, 3])])
    model = b.model([b.op(Op.NEG, [y])])
    after, _ = fuse(model, MATH, cases=["normal"], bound=1e-6)
    assert kinds(after) == ["MEAN", "NEG"]
    (mean,) = operators(after, "MEAN")
    assert list(
        np.frombuffer(bytes(after.buffers[after.subgraphs[0].tensors[mean.inputs[1]].buffer].data), np.int32)
    ) == [1, 2]


def test_the_place_of_the_largest() -> None:
    b = Builder()
    y = transpose(b, b.input("x", NHWC), TO_NCHW)
    model = b.model([b.op(Op.ARG_MAX, [y, b.constant("axis", np.int32(1))], type=I32, output_type=I32)])
    after, _ = fuse(model, EXACT)
    assert kinds(after) == ["ARG_MAX"]


@pytest.mark.parametrize("kind", [Op.SOFTMAX, Op.LOG_SOFTMAX])
def test_softmax_as_long_as_its_axis_stays_the_last(kind: Op) -> None:
    b = Builder()
    x = b.input("x", (2, 5, 7, 9))
    y = b.op(kind, [transpose(b, x, [0, 2, 1, 3])])
    model = b.model([transpose(b, y, [0, 2, 1, 3])])
    after, _ = fuse(model, *RULES, cases=["normal"], bound=1e-6)
    assert kinds(after) == [kind.name]
    b = Builder()
    y = b.op(kind, [transpose(b, b.input("x", NHWC), TO_NCHW)])
    assert refusals(b.model([transpose(b, y, TO_NHWC)]), *RULES) == []


def convolution(b: Builder, x: int, channels: int, kernel: int = 3, **options: Any) -> int:
    w = b.constant("w", normal(channels, kernel, kernel, options.pop("inputs")) * 0.2)
    return b.op(Op.CONV_2D, [x, w, b.constant("bias", normal(channels))], padding=Padding.SAME, **options)


def test_a_channels_first_network_is_transposed_at_its_ends_only() -> None:
    b = Builder()

    def conv(x: int, inputs: int, outputs: int) -> int:
        return transpose(b, convolution(b, transpose(b, x, TO_NHWC), outputs, inputs=inputs), TO_NCHW)

    x = b.input("x", (1, 3, 16, 16))
    y = b.op(Op.LEAKY_RELU, [conv(x, 3, 24)], alpha=0.1)
    z = b.op(Op.RELU, [conv(y, 24, 24)])
    y = b.op(Op.ADD, [y, b.op(Op.MUL, [z, b.constant("scale", normal(1, 24, 1, 1))])])
    z = b.op(Op.CONCATENATION, [y, conv(y, 24, 12)], axis=1)
    z = b.op(Op.PAD, [z, b.constant("p", ints(0, 0, 0, 0, 1, 1, 1, 1).reshape(4, 2))])
    pool = transpose(b, z, TO_NHWC)
    pool = b.op(Op.MAX_POOL_2D, [pool], filter_height=2, filter_width=2, stride_h=2, stride_w=2)
    y = conv(transpose(b, pool, TO_NCHW), 36, 16)
    model = b.model([y])
    assert count(model) == 10
    after, _ = fuse(model, *identity.RULES, *RULES, cases=["normal"], numerics=Numerics.EXACT)
    assert count(after) == 2
    assert kinds(after)[0] == kinds(after)[-1] == "TRANSPOSE"


def squeeze_and_excite(b: Builder) -> Model:
    """The channel gate of a channels-first network, with the reshapes that converters make of small transpositions."""
    x = b.input("x", (1, 24, 24, 32))
    t = transpose(b, x, TO_NCHW)
    mean = b.op(Op.MEAN, [t, b.constant("axes", [2, 3])], keep_dims=True)
    gate = b.op(Op.RESHAPE, [mean, b.constant("s1", [1, 1, 1, 32])])
    gate = b.op(Op.LOGISTIC, [convolution(b, gate, 32, 1, inputs=32)])
    gate = b.op(Op.RESHAPE, [gate, b.constant("s2", [1, 32, 1, 1])])
    return b.model([transpose(b, b.op(Op.MUL, [t, gate]), TO_NHWC)])


def test_reshapes_that_stand_for_transpositions() -> None:
    after, _ = fuse(squeeze_and_excite(Builder()), *RULES, *identity.RULES, cases=["normal"], bound=1e-6)
    assert kinds(after) == ["MEAN", "CONV_2D", "LOGISTIC", "MUL"]


# -- flattening ----------------------------------------------------------------------------------------------------


def flattened(b: Builder, weights: int, bias: int, **options: Any) -> Model:
    y = transpose(b, b.input("x", NHWC, **options), TO_NCHW, version=2 if options else 1)
    y = b.op(Op.RELU, [b.op(Op.RESHAPE, [y, b.constant("flat", [2, 1680])])], version=2 if options else 1)
    out = {"type": I8, "quantization": quantized(0.5, 3), "version": 4} if options else {}
    return b.model([b.op(Op.FULLY_CONNECTED, [y, weights, bias], **out)])


def test_weights_behind_flattening_are_put_in_order() -> None:
    b = Builder()
    w, c = normal(6, 1680), normal(6)
    model = flattened(b, b.constant("w", w), b.constant("c", c))

    def reference(x: Any) -> Any:
        return np.maximum(x.transpose(TO_NCHW).reshape(2, 1680), 0) @ w.T.astype(np.float64) + c

    after, report = fuse(model, *RULES, cases=["normal"], reference=reference, bound=1e-6)
    assert kinds(after) == ["RESHAPE", "RELU", "FULLY_CONNECTED"]
    assert report.counts() == {"move-transposes-through-math": 1}


def test_half_precision_weights_are_put_in_order_before_they_are_widened() -> None:
    b = Builder()
    half = b.constant("half", normal(6, 1680).astype(np.float16))
    w = b.op(Op.DEQUANTIZE, [half], type=F32, shape=[6, 1680])
    after, _ = fuse(flattened(b, w, b.constant("c", normal(6))), *RULES, cases=["normal"], bound=1e-6)
    assert count(after) == 0
    (dequantize,) = operators(after, "DEQUANTIZE")
    assert after.subgraphs[0].tensors[dequantize.inputs[0]].type == F16


@pytest.mark.parametrize("channels", [1, 6])
def test_quantised_weights_are_put_in_order(channels: int) -> None:
    b = Builder()
    scales = quantized([0.01] * channels if channels > 1 else 0.01)
    w = b.constant("w", rng.integers(-127, 128, (6, 1680)).astype(np.int8), scales)
    c = b.constant("c", np.arange(6, dtype=np.int32), quantized([0.001] * channels if channels > 1 else 0.001))
    after, report = fuse(flattened(b, w, c, type=I8, quantization=quantized(0.1, 4)), *RULES)
    assert count(after) == 0
    assert report.counts() == {"move-transposes": 1}


def test_weights_that_others_use_too_stay() -> None:
    b = Builder()
    w = b.op(Op.DEQUANTIZE, [b.constant("half", normal(6, 1680).astype(np.float16))], type=F32, shape=[6, 1680])
    model = flattened(b, w, b.constant("c", normal(6)))
    b._subgraph.outputs.append(w)
    assert apply(model, *RULES).counts() == {}


# -- quantised -----------------------------------------------------------------------------------------------------


def quantised_between(make: Make, type: TensorType = I8) -> Model:
    b = Builder()
    q = quantized(0.05, 0 if type is I16 else 3)
    version = {I8: 2, U8: 1, I16: 5}[type]
    y = make(b, transpose(b, b.input("x", NHWC, type, q), TO_NCHW, version=version))
    return b.model([transpose(b, y, TO_NHWC, version=version)])


def out(scale: float, point: int = 1, type: TensorType = I8) -> dict[str, Any]:
    return {"type": type, "quantization": quantized(scale, point), "version": 2}


QUANTISED: dict[str, tuple[Make, TensorType]] = {
    "relu": (lambda b, x: b.op(Op.RELU, [x], version=2), I8),
    "logistic": (lambda b, x: b.op(Op.LOGISTIC, [x], **out(1 / 256, -128)), I8),
    "add": (
        lambda b, x: b.op(
            Op.ADD,
            [x, b.constant("c", rng.integers(-128, 128, (48, 1, 1)).astype(np.int8), quantized(0.1, -4))],
            **out(0.2),
        ),
        I8,
    ),
    "mul": (lambda b, x: b.op(Op.MUL, [x, x], **out(0.3, 1, U8)), U8),
    "requantise": (lambda b, x: b.op(Op.QUANTIZE, [x], **out(0.1, 9)), I8),
    "pad": (lambda b, x: b.op(Op.PAD, [x, b.constant("p", ints(0, 0, 2, 1, 1, 1, 0, 3).reshape(4, 2))], version=2), I8),
    "concatenation": (lambda b, x: b.op(Op.CONCATENATION, [x, b.op(Op.RELU, [x], version=2)], axis=1, version=2), I8),
    "mean over one axis": (lambda b, x: b.op(Op.MEAN, [x, b.constant("a", ints(1))], keep_dims=True, **out(0.02)), I8),
    "maximum": (lambda b, x: b.op(Op.REDUCE_MAX, [x, b.constant("a", ints(2, 3))], keep_dims=True, version=2), I8),
    "leaky relu, 16 bits": (lambda b, x: b.op(Op.LEAKY_RELU, [x], alpha=0.1, **out(0.05, 0, I16)), I16),
}


@pytest.mark.parametrize("case", QUANTISED)
def test_quantised_operators_are_exact(case: str) -> None:
    make, type = QUANTISED[case]
    after, report = fuse(quantised_between(make, type), EXACT)
    assert count(after) == 0
    assert report.counts() == {"move-transposes": 1}


@pytest.mark.parametrize("zero", [0, 7])
def test_the_place_of_an_element_matters_where_a_zero_point_is_taken_away(zero: int) -> None:
    model = from_text(
        f"""graph main(%x: i8[1,6,6,3]{{scale=0.03, zero={zero}}}) {{
          %a = TRANSPOSE(%x, i32[4]=(0, 3, 1, 2))
          %b = DEQUANTIZE(%a)
          %y = TRANSPOSE(%b, i32[4]=(0, 2, 3, 1))
          return %y
        }}"""
    )
    after, _ = fuse(model, EXACT)
    assert (count(after) == 0) == (zero == 0)
    after, _ = fuse(model, MATH)
    assert count(after) == 0


def test_a_mean_over_height_and_width_may_round_elsewhere() -> None:
    def make(b: Builder, x: int) -> int:
        return b.op(Op.MEAN, [x, b.constant("a", ints(2, 3))], keep_dims=True, **out(0.02))

    assert apply(quantised_between(make), EXACT, MATH).counts() == {}
    after, _ = fuse(quantised_between(make), QUANTIZED)
    assert count(after) == 0


def test_products_of_quantised_numbers_round_on_the_way() -> None:
    def make(b: Builder, x: int) -> int:
        return b.op(Op.REDUCE_PROD, [x, b.constant("a", ints(1))], keep_dims=True, **out(0.02))

    assert apply(quantised_between(make), *RULES).counts() == {}


# -- where nothing is to be gained -----------------------------------------------------------------------------------


def test_one_transposition_moves_only_to_where_it_is_smaller() -> None:
    b = Builder()
    y = b.op(Op.NEG, [transpose(b, b.input("x", NHWC), TO_NCHW)])
    assert refusals(b.model([b.op(Op.ABS, [y])]), *RULES) == []
    b = Builder()
    x = b.op(Op.NEG, [b.input("x", (1, 64, 64, 16))])
    y = b.op(Op.SLICE, [transpose(b, x, TO_NCHW), b.constant("b", [0, 0, 0, 0]), b.constant("s", [1, 16, 8, 8])])
    after, report = fuse(b.model([b.op(Op.ABS, [y])]), EXACT)
    assert report.counts() == {"move-transposes": 1}
    assert kinds(after)[0] == "NEG"
    assert kinds(after)[1] == "SLICE"
    assert count(after) == 1


def test_a_result_that_leaves_the_model_in_the_old_layout() -> None:
    b = Builder()
    y = b.op(Op.NEG, [transpose(b, b.input("x", NHWC), TO_NCHW)])
    model = b.model([transpose(b, y, TO_NHWC), y])
    after, _ = fuse(model, *RULES)  # one of the two goes
    assert count(after) == 1
    assert [list(t.shape) for t in (after.subgraphs[0].tensors[i] for i in after.subgraphs[0].outputs)] == [
        list(NHWC),
        list(NCHW),
    ]


def test_rows_of_three_channels_are_slower_than_transpositions() -> None:
    def make(b: Builder, x: int) -> int:
        return b.op(Op.MUL, [x, b.constant("c", normal(1, 3, 1, 1))])

    assert apply(between(make, (1, 224, 224, 3)), *RULES).counts() == {}
    wide = between(lambda b, x: b.op(Op.MUL, [x, b.constant("c", normal(1, 48, 1, 1))]), (1, 56, 56, 48))
    assert apply(wide, *RULES).counts() == {"move-transposes": 1}


def test_padding_that_goes_into_a_convolution_costs_nothing() -> None:
    b = Builder()
    y = b.op(Op.PAD, [b.input("x", (1, 3, 64, 64)), b.constant("p", ints(0, 0, 0, 0, 1, 1, 1, 1).reshape(4, 2))])
    model = b.model([convolution(b, transpose(b, y, TO_NHWC), 8, inputs=3)])
    after, _ = fuse(model, EXACT, cases=["normal"])
    assert kinds(after) == ["TRANSPOSE", "PAD", "CONV_2D"]
    b = Builder()
    y = b.op(Op.PAD, [b.input("x", (1, 3, 64, 64)), b.constant("p", ints(0, 0, 0, 0, 1, 1, 1, 1).reshape(4, 2))])
    assert apply(b.model([b.op(Op.NEG, [transpose(b, y, TO_NHWC)])]), *RULES).counts() == {}


def test_refusal_names_what_is_in_the_way() -> None:
    b = Builder()
    t = transpose(b, b.input("x", NHWC), TO_NCHW)
    s = b.op(Op.SOFTMAX, [b.op(Op.NEG, [t])])
    u = transpose(b, b.op(Op.ADD, [s, b.op(Op.ABS, [t])]), TO_NHWC)
    (first, *_) = refusals(b.model([u]), *RULES)
    assert "2 transpositions around the same operators do not cancel, as SOFTMAX #2" in first


def test_silence() -> None:
    b = Builder()
    order = b.input("order", [4], I32)
    y = b.op(Op.TRANSPOSE, [b.input("x", NHWC), order], shape=[-1, -1, -1, -1])
    assert refusals(b.model([b.op(Op.NEG, [y], shape=[-1, -1, -1, -1])]), *RULES) == []
    b = Builder()
    model = b.model([b.op(Op.NEG, [transpose(b, b.input("x", NHWC), TO_NCHW)])])
    model.subgraphs[0].tensors[0].is_variable = True
    assert apply(model, *RULES).counts() == {}


@pytest.mark.parametrize("kept", ["neg_1", "transpose_0", "transpose_2"])
def test_what_is_kept_by_request(kept: str) -> None:
    model = between(on(Op.NEG))
    names = [model.subgraphs[0].tensors[op.outputs[0]].name for op in model.subgraphs[0].operators]
    assert kept in names
    report = run(model, RULES, keep=[kept])
    assert kept in [model.subgraphs[0].tensors[op.outputs[0]].name for op in model.subgraphs[0].operators]
    assert report.counts() == {}  # nothing is gained by moving the rest
    assert count(model) == 2


def test_two_outputs_that_turn_out_to_be_one_tensor() -> None:
    b = Builder()
    y = b.op(Op.NEG, [transpose(b, b.input("x", NHWC), TO_NCHW)])
    model = b.model([transpose(b, y, TO_NHWC), transpose(b, y, TO_NHWC)])
    after, _ = fuse(model, EXACT)
    assert kinds(after) == ["NEG", "TRANSPOSE"]  # a copy


def test_unknown_batch() -> None:
    def make(b: Builder, x: int) -> int:
        y = b.op(Op.ADD, [x, b.constant("c", normal(48, 1, 1))])
        return b.op(Op.CONCATENATION, [y, x], axis=1)

    after, _ = fuse(between(make, (-1, 5, 7, 48)), EXACT)
    assert count(after) == 0
    assert all(
        after.subgraphs[0].tensors[op.outputs[0]].shape_signature[0] == -1 for op in after.subgraphs[0].operators
    )


def test_inside_a_loop() -> None:
    model = looped(between(on(Op.MUL, normal(48, 1, 1) * 0.1)))
    after, _ = fuse(model, EXACT)
    assert kinds(after, 2) == ["MUL", "ADD"]


# -- anything ------------------------------------------------------------------------------------------------------


@st.composite
def networks(draw: Any) -> Model:
    """Random graphs of operators that transpositions pass, with transpositions strewn in and several outputs."""
    b = Builder()
    shapes: dict[int, tuple[int, ...]] = {}
    first = (2, 3, 4, 5)
    x = b.input("x", first)
    shapes[x] = first
    for _ in range(draw(st.integers(3, 9))):
        y = draw(st.sampled_from(sorted(shapes)))
        shape = shapes[y]
        rank = len(shape)
        choice = draw(st.sampled_from("tttuucapmsrk"))
        same = [z for z in shapes if shapes[z] == shape]
        if choice == "t":
            order = draw(st.permutations(range(rank)))
            z, new = transpose(b, y, order), tuple(shape[a] for a in order)
        elif choice == "u":
            z, new = b.op(draw(st.sampled_from([Op.NEG, Op.RELU, Op.ABS])), [y]), shape
        elif choice == "c":
            kept = draw(st.integers(0, rank))
            value = normal(*(d if draw(st.booleans()) else 1 for d in shape[rank - kept :]))
            z, new = b.op(Op.MAXIMUM, [y, b.constant("c", value)]), shape
        elif choice == "a":
            z, new = b.op(Op.MINIMUM, [y, draw(st.sampled_from(same))]), shape
        elif choice == "p":
            amounts = [[draw(st.integers(0, 1)), 0] for _ in shape]
            z = b.op(Op.PAD, [y, b.constant("p", np.array(amounts, np.int32))])
            new = tuple(d + p for d, (p, _) in zip(shape, amounts, strict=True))
        elif choice == "m":
            axis = draw(st.integers(0, rank - 1))
            keep = draw(st.booleans()) or rank == 1
            z = b.op(Op.REDUCE_MAX, [y, b.constant("a", ints(axis))], keep_dims=keep)
            new = (*shape[:axis], *((1,) if keep else ()), *shape[axis + 1 :])
        elif choice == "s":
            begin = [draw(st.integers(0, d - 1)) for d in shape]
            new = tuple(draw(st.integers(1, d - f)) for d, f in zip(shape, begin, strict=True))
            z = b.op(Op.SLICE, [y, b.constant("b", begin), b.constant("n", list(new))])
        elif choice == "r" and rank > 1:
            at = draw(st.integers(0, rank - 2))
            new = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
            z = b.op(Op.RESHAPE, [y, b.constant("r", list(new))])
        else:
            axis = draw(st.integers(0, rank - 1))
            other = draw(st.sampled_from(same))
            z = b.op(Op.CONCATENATION, [y, other], axis=axis)
            new = (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])
        shapes[z] = new
    made = [z for z in shapes if z != x]
    outputs = {made[-1], *draw(st.lists(st.sampled_from(made), max_size=2))}
    return b.model(sorted(outputs))


def price(model: Model) -> int:
    """What all transpositions cost together, which must never rise."""
    graph, total = Graph(model), 0
    for op in graph.operators():
        layout = EXACT.layout(graph, op) if graph.kind(op) is Op.TRANSPOSE else None
        if layout is not None and not layout.is_identity:
            total += EXACT.price(graph, op.outputs[0], layout)
    return total


@settings(max_examples=100, deadline=None)
@given(networks())
def test_any_network(model: Model) -> None:
    after, _ = fuse(model, *RULES, *dead_code.RULES, cases=["normal"], xnnpack=[False], numerics=Numerics.EXACT)
    assert price(after) <= price(model)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(networks())
def test_any_network_at_length(model: Model) -> None:
    rules = (*RULES, *identity.RULES, *dead_code.RULES)
    after, _ = fuse(model, *rules, cases=["normal"], signed_zeros=False, numerics=Numerics.EXACT)
    assert price(after) <= price(model)
