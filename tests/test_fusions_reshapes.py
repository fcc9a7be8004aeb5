"""Reshapes moved to where they cancel, as between one-dimensional convolutions, and left alone elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litefuse.fusions import Numerics, dead_code, identity, reshapes
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model
from litefuse.schema.enums import ActivationFunctionType, Padding, TensorType
from litefuse.schema.operators import Op
from tests.rules import apply, fuse, kinds, looped, refusals

PLAIN, EXACT, SUMS, QUANTIZED = reshapes.RULES
MOVES = (EXACT, SUMS, QUANTIZED)
F32, I8, I32 = TensorType.FLOAT32, TensorType.INT8, TensorType.INT32
RELU = ActivationFunctionType.RELU
# A signal [batch, length, channels], as models have it, and as CONV_2D takes it.
NARROW, WIDE = (2, 9, 6), (2, 1, 9, 6)
rng = np.random.default_rng(23)
Make = Callable[[Builder, int], int]


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def reshape(b: Builder, x: int, shape: Sequence[int]) -> int:
    return b.op(Op.RESHAPE, [x, b.constant("shape", list(shape))])


def on(kind: Op, *constants: Any, **options: Any) -> Make:
    return lambda b, x: b.op(kind, [x, *(b.constant(f"c{i}", c) for i, c in enumerate(constants))], **options)


def between(make: Make, inside: Sequence[int] = NARROW, outside: Sequence[int] = WIDE, back: Any = None) -> Model:
    """A reshape, what ``make`` builds, and a reshape back."""
    b = Builder()
    y = make(b, reshape(b, b.input("x", outside), inside))
    return b.model([reshape(b, y, outside if back is None else back)])


def halves(b: Builder, x: int) -> int:
    first = b.op(Op.SPLIT, [b.constant("axis", np.int32(2)), x], num_splits=2, outputs=2, type=F32)
    return b.op(Op.CONCATENATION, [first + 1, first], axis=-1)


def dense(b: Builder, x: int) -> int:
    return b.op(Op.FULLY_CONNECTED, [x, b.constant("w", normal(6, 6)), b.constant("c", normal(6))], keep_num_dims=True)


def packed(b: Builder, x: int) -> int:
    y = b.op(Op.SLICE, [x, b.constant("b", [0, 0, 0]), b.constant("n", [2, 9, 1])])
    y = b.op(Op.RESHAPE, [y, b.constant("flat", [2, 9])])
    return b.op(Op.PACK, [y] * 6, axis=2, values_count=6)


CASES: dict[str, Make] = {
    "unary": on(Op.NEG),
    "activations": lambda b, x: on(Op.GELU)(b, on(Op.LOGISTIC)(b, on(Op.LEAKY_RELU, alpha=0.3)(b, x))),
    "a scalar": on(Op.MUL, 0.5),
    "a vector along the channels": on(Op.ADD, normal(6)),
    "a vector along the signal": on(Op.SUB, normal(9, 1)),
    "a whole constant": on(Op.MAXIMUM, normal(2, 9, 6)),
    "a fused activation": on(Op.ADD, normal(6), fused_activation_function=RELU),
    "prelu": on(Op.PRELU, normal(1, 6)),
    "itself": lambda b, x: b.op(Op.MUL, [x, b.op(Op.SIGN, [x])]),
    "concatenation": lambda b, x: on(Op.SLICE, [0, 0, 3], [2, 9, 6])(b, b.op(Op.CONCATENATION, [x, x], axis=2)),
    "split": halves,
    "pad and slice": lambda b, x: on(Op.SLICE, [0, 1, 0], [2, 9, 6])(
        b, on(Op.PAD, ints(0, 0, 2, 1, 0, 0).reshape(3, 2))(b, x)
    ),
    "strided slice": on(Op.STRIDED_SLICE, [0, 8, 0], [0, -10, 0], [1, -1, 1], begin_mask=5, end_mask=5),
    "softmax": on(Op.SOFTMAX),
    "dense": dense,
    "reverse": on(Op.REVERSE_V2, ints(1)),
    "gather": on(Op.GATHER, ints(8, 0, 1, 2, 3, 3, 3, 4, 5), axis=1),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("outside", [WIDE, (2, 9, 1, 6), (18, 6)])
def test_passes_to_the_bit(case: str, outside: tuple[int, ...]) -> None:
    model = between(CASES[case], NARROW, outside)
    after, report = fuse(model, EXACT, nonfinite=case not in ("softmax", "dense"))
    along_the_signal = {"a vector along the signal", "pad and slice", "strided slice", "reverse", "gather"}
    if len(outside) == 2 and case in along_the_signal:
        assert report.counts() == {}  # the signal is not an axis any more
    else:
        assert "RESHAPE" not in kinds(after)


def test_merged_axes_need_no_place_of_their_own() -> None:
    model = between(on(Op.ADD, normal(6)), (2, 3, 3, 6), (2, 9, 6))
    after, _ = fuse(model, EXACT)
    assert kinds(after) == ["ADD"]
    assert apply(between(on(Op.ADD, normal(3, 6)), (2, 3, 3, 6), (2, 9, 6)), *MOVES).counts() == {}


def conv(b: Builder, x: int, inputs: int, outputs: int, length: int, **options: Any) -> int:
    """Conv1D as TensorFlow writes it."""
    y = reshape(b, x, (-1, 1, length, inputs))
    w = b.constant("w", normal(outputs, 1, 3, inputs) * 0.3)
    y = b.op(Op.CONV_2D, [y, w, b.constant("c", normal(outputs))], padding=Padding.SAME, **options)
    return reshape(b, y, (-1, length, outputs))


@pytest.mark.parametrize("batch", [1, 2, -1])
def test_one_dimensional_convolutions_stay_in_two(batch: int) -> None:
    b = Builder()
    x = b.input("x", (batch, 9, 4))
    y = b.op(Op.LEAKY_RELU, [conv(b, x, 4, 6, 9)], alpha=0.2)
    z = b.op(Op.GELU, [conv(b, y, 6, 6, 9)])
    y = b.op(Op.ADD, [y, z])
    y = b.op(Op.PAD, [y, b.constant("p", ints(0, 0, 2, 0, 0, 0).reshape(3, 2))])
    y = b.op(Op.CONCATENATION, [y, conv(b, y, 6, 3, 11)], axis=2)
    model = b.model([conv(b, y, 9, 2, 11)])
    after, _ = fuse(model, EXACT, *identity.RULES, cases=["normal"])
    assert kinds(after).count("RESHAPE") == 2
    assert kinds(after)[0] == kinds(after)[-1] == "RESHAPE"


@pytest.mark.parametrize("keep", [False, True])
def test_the_mean_of_a_signal(keep: bool) -> None:
    b = Builder()
    x = b.input("x", (2, 1, 9, 6))
    y = b.op(Op.MEAN, [b.op(Op.RELU, [reshape(b, x, NARROW)]), b.constant("axis", ints(1))], keep_dims=keep)
    if keep:
        y = reshape(b, y, (2, 1, 1, 6))
    model = b.model([b.op(Op.NEG, [y])])
    assert apply(between(on(Op.SUM, ints(1), keep_dims=True), back=(2, 1, 1, 6)), EXACT).counts() == {}
    after, _ = fuse(model, SUMS, cases=["normal"], bound=1e-6)
    assert kinds(after) == ["RELU", "MEAN", "NEG"]


def test_what_the_reshape_brings_is_reduced_as_well() -> None:
    b = Builder()
    y = reshape(b, b.input("x", WIDE), NARROW)
    model = b.model([b.op(Op.REDUCE_MAX, [y, b.constant("axis", ints(1))])])
    after, _ = fuse(model, EXACT)
    (op,) = after.subgraphs[0].operators
    axes = np.frombuffer(bytes(after.buffers[after.subgraphs[0].tensors[op.inputs[1]].buffer].data), np.int32)
    assert kinds(after) == ["REDUCE_MAX"]
    assert list(axes) == [1, 2]


def test_quantised() -> None:
    b = Builder()
    q = quantized(0.05, 3)
    y = reshape(b, b.input("x", WIDE, I8, q), NARROW)
    y = b.op(
        Op.ADD,
        [y, b.constant("c", rng.integers(-99, 99, 6).astype(np.int8), quantized(0.1, 2))],
        version=2,
        type=I8,
        quantization=quantized(0.1, 5),
    )
    y = b.op(Op.LOGISTIC, [y], version=2, type=I8, quantization=quantized(1 / 256, -128))
    y = b.op(Op.MEAN, [y, b.constant("axis", ints(1))], keep_dims=True, version=2)
    model = b.model([reshape(b, y, (2, 1, 1, 6))])
    after, report = fuse(model, EXACT)
    assert kinds(after) == ["ADD", "LOGISTIC", "MEAN"]
    assert report.counts() == {"move-reshapes": 1}


def test_a_quantised_mean_that_would_run_over_height_and_width() -> None:
    b = Builder()
    y = reshape(b, b.input("x", (2, 3, 5, 6), I8, quantized(0.05, 3)), (2, 15, 6))
    y = b.op(
        Op.MEAN, [y, b.constant("axis", ints(1))], keep_dims=True, version=2, type=I8, quantization=quantized(0.02, 1)
    )
    # 15 is no axis of the other shape.
    assert apply(b.model([reshape(b, y, (2, 1, 1, 6))]), *MOVES).counts() == {}


# -- where nothing is to be gained -----------------------------------------------------------------------------------


def test_as_many_reshapes_are_no_reason() -> None:
    b = Builder()
    model = b.model([b.op(Op.NEG, [reshape(b, b.input("x", WIDE), NARROW)])])
    assert refusals(model, *MOVES) == []


def test_two_reshapes_become_one() -> None:
    after, _ = fuse(between(on(Op.NEG), back=(2, 54)), EXACT)
    assert kinds(after).count("RESHAPE") == 1


def test_an_inner_result_is_an_output() -> None:
    b = Builder()
    y = b.op(Op.NEG, [reshape(b, b.input("x", WIDE), NARROW)])
    after, _ = fuse(b.model([reshape(b, y, WIDE), y]), EXACT)
    assert kinds(after).count("RESHAPE") == 1


def test_refusal_names_what_is_in_the_way() -> None:
    b = Builder()
    x = reshape(b, b.input("x", WIDE), NARROW)
    y = b.op(Op.ABS, [x])
    z = b.op(Op.CUMSUM, [y, b.constant("axis", np.int32(1))])
    model = b.model([reshape(b, b.op(Op.ADD, [b.op(Op.NEG, [z]), x]), WIDE)])
    reasons = refusals(model, *MOVES)
    assert reasons
    assert all("2 reshapes around the same operators do not cancel, as CUMSUM #2" in r for r in reasons)


def test_silence() -> None:
    b = Builder()
    shape = b.input("shape", [3], I32)
    y = b.op(Op.RESHAPE, [b.input("x", WIDE), shape], shape=[-1, -1, -1])
    y = b.op(Op.NEG, [y], shape=[-1, -1, -1])
    assert refusals(b.model([b.op(Op.RESHAPE, [y, b.constant("s", list(WIDE))], shape=WIDE)]), *MOVES) == []
    model = between(on(Op.NEG))
    model.subgraphs[0].tensors[0].is_variable = True
    assert apply(model, *MOVES).counts() == {}


def test_shapes_of_five_dimensions_are_not_made() -> None:
    # Many kernels take four at most.
    assert apply(between(on(Op.ADD, normal(6)), (2, 9, 6), (2, 1, 3, 3, 6)), *MOVES).counts() == {}


def test_inside_a_loop() -> None:
    after, _ = fuse(looped(between(on(Op.TANH), (2, 9, 6), (2, 9, 1, 6))), EXACT)
    assert kinds(after, 2) == ["TANH", "ADD"]


# -- SQUEEZE and EXPAND_DIMS -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [2, -1])
def test_squeezing_and_expanding_next_to_xnnpack(batch: int) -> None:
    b = Builder()
    x = b.op(Op.EXPAND_DIMS, [b.input("x", (batch, 9, 4)), b.constant("axis", np.int32(1))])
    w, c = b.constant("w", normal(5, 1, 3, 4)), b.constant("c", normal(5))
    y = b.op(Op.CONV_2D, [x, w, c], padding=Padding.SAME)
    model = b.model([b.op(Op.SQUEEZE, [y], squeeze_dims=[1])])
    assert kinds(fuse(model, PLAIN)[0]) == ["RESHAPE", "CONV_2D", "RESHAPE"]


def test_squeezing_between_other_operators_stays() -> None:
    b = Builder()
    y = b.op(Op.CUMSUM, [b.input("x", WIDE), b.constant("axis", np.int32(2))])
    y = b.op(Op.SQUEEZE, [y], squeeze_dims=[1])
    assert refusals(b.model([b.op(Op.CUMSUM, [y, b.constant("axis2", np.int32(1))])]), PLAIN) == []
    b = Builder()
    y = b.op(Op.NEG, [b.input("x", (-1, -1, 6))], shape=[-1, -1, 6])
    y = b.op(Op.EXPAND_DIMS, [y, b.constant("axis", np.int32(1))], shape=[-1, 1, -1, 6])
    assert refusals(b.model([b.op(Op.NEG, [y], shape=[-1, 1, -1, 6])]), PLAIN) == []


# -- anything ------------------------------------------------------------------------------------------------------


@st.composite
def networks(draw: Any) -> Model:
    """Random graphs of operators that reshapes pass, with reshapes strewn in and several outputs."""
    b = Builder()
    first = (2, 1, 3, 4)
    x = b.input("x", first)
    shapes = {x: first}
    for _ in range(draw(st.integers(3, 9))):
        y = draw(st.sampled_from(sorted(shapes)))
        shape = shapes[y]
        rank = len(shape)
        same = [z for z in shapes if shapes[z] == shape]
        choice = draw(st.sampled_from("vvvvucapms"))
        if choice == "v":
            dims = [d for d in shape if d != 1] or [1]
            if len(dims) > 1 and draw(st.booleans()):
                at = draw(st.integers(0, len(dims) - 2))
                dims[at : at + 2] = [dims[at] * dims[at + 1]]
            for _ in range(draw(st.integers(0, 4 - len(dims))) if len(dims) < 4 else 0):
                dims.insert(draw(st.integers(0, len(dims))), 1)
            z, new = reshape(b, y, dims), tuple(dims)
        elif choice == "u":
            z, new = b.op(draw(st.sampled_from([Op.NEG, Op.TANH, Op.ABS])), [y]), shape
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
            axis, keep = draw(st.integers(0, rank - 1)), draw(st.booleans()) or rank == 1
            z = b.op(Op.REDUCE_MAX, [y, b.constant("a", ints(axis))], keep_dims=keep)
            new = (*shape[:axis], *((1,) if keep else ()), *shape[axis + 1 :])
        else:
            axis = draw(st.integers(0, rank - 1))
            z = b.op(Op.CONCATENATION, [y, draw(st.sampled_from(same))], axis=axis)
            new = (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])
        shapes[z] = new
    made = [z for z in shapes if z != x]
    return b.model(sorted({made[-1], *draw(st.lists(st.sampled_from(made), max_size=2))}))


@settings(max_examples=80, deadline=None)
@given(networks())
def test_any_network(model: Model) -> None:
    after, _ = fuse(model, *MOVES, *dead_code.RULES, cases=["normal"], xnnpack=[False], numerics=Numerics.EXACT)
    assert kinds(after).count("RESHAPE") <= kinds(model).count("RESHAPE")


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(networks())
def test_any_network_at_length(model: Model) -> None:
    rules = (*MOVES, *identity.RULES, *dead_code.RULES)
    after, _ = fuse(model, *rules, cases=["normal"], signed_zeros=False, numerics=Numerics.EXACT)
    assert kinds(after).count("RESHAPE") <= kinds(model).count("RESHAPE")
