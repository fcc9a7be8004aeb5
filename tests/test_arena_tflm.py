"""Plans for TensorFlow Lite Micro, judged by TFLM itself: same outputs, and as many bytes as predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflm
import tflm_proof as proof
from rules import looped

from litefuse.arena import offline
from litefuse.arena import tflm as arena
from litefuse.arena.lifetimes import TFLM
from litefuse.arena.plan import plan, reordered
from litefuse.errors import LitefuseError
from litefuse.graph.build import Builder, quantized
from litefuse.graph.text import from_text
from litefuse.schema import Model, deepcopy, read, to_bytes
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op, operator_code
from litefuse.schema.tables import Buffer, Metadata

needs_tflm = pytest.mark.skipif(not tflm.INSTALLED, reason="tflite-micro is not installed")
F32, I8, I16, I32, I4 = TensorType.FLOAT32, TensorType.INT8, TensorType.INT16, TensorType.INT32, TensorType.INT4
Q = quantized(0.5)


def weights(*shape: int, dtype: Any = np.float32) -> Any:
    values = np.random.default_rng(1).integers(-3, 4, shape)
    return (values / 4).astype(dtype) if dtype == np.float32 else values.astype(dtype)


def branches() -> Model:
    """Convolutions, elementwise operators in a row, views, and a residual."""
    b = Builder()
    x = b.input("x", [1, 8, 8, 4])
    kernel, bias = b.constant("w", weights(4, 3, 3, 4)), b.constant("b", weights(4))
    y = b.op(Op.CONV_2D, [x, kernel, bias], name="conv")
    y = b.op(Op.TANH, [y], name="tanh")
    z = b.op(Op.CONV_2D, [y, kernel, bias], name="again")
    z = b.op(Op.ADD, [z, y], name="sum")
    flat = b.op(Op.RESHAPE, [z, b.constant("shape", [1, 256])], name="flat", shape=[1, 256])
    both = b.op(Op.CONCATENATION, [flat, flat], name="both", axis=1, shape=[1, 512])
    return b.model([b.op(Op.SOFTMAX, [both], name="soft")])


def index(model: Model, name: str) -> tuple[int, int]:
    return next((s, t) for s, g in enumerate(model.subgraphs) for t, x in enumerate(g.tensors) if x.name == name)


# -- metadata --------------------------------------------------------------------------------------------------------


def test_metadata_as_tflm_reads_them() -> None:
    model = branches()
    names = [t.name for t in model.subgraphs[0].tensors]
    assert offline.read(model) is None
    assert offline.attach(model, {index(model, "conv"): 1024, index(model, "tanh"): 0, index(model, "w"): 64}) == []
    (entry,) = [m for m in model.metadata if m.name == "OfflineMemoryAllocation"]
    data = model.buffers[entry.buffer].data
    assert data is not None
    values = np.frombuffer(data, "<i4").tolist()
    expected = [{"conv": 1024, "tanh": 0}.get(name or "", -1) for name in names]
    assert values == [1, 1, len(names), *expected]
    assert offline.read(read_again(model)) == {index(model, "conv"): 1024, index(model, "tanh"): 0}


def read_again(model: Model) -> Model:
    from litefuse.schema import parse

    return parse(to_bytes(model))


def test_an_older_plan_is_replaced_and_removed() -> None:
    model = branches()
    model.metadata = [Metadata(name="other", buffer=0)]
    offline.attach(model, {index(model, "conv"): 16})
    buffers = len(model.buffers)
    offline.attach(model, {index(model, "tanh"): 32})
    assert offline.read(model) == {index(model, "tanh"): 32}
    assert len(model.buffers) == buffers
    assert offline.detach(model)
    assert not offline.detach(model)
    assert [m.name for m in model.metadata] == ["other"]
    assert offline.read(model) is None


def test_a_buffer_with_other_users_is_left_alone() -> None:
    model = branches()
    offline.attach(model, {index(model, "conv"): 16})
    model.metadata.append(Metadata(name="other", buffer=model.metadata[0].buffer))
    before = model.buffers[model.metadata[0].buffer].data
    offline.attach(model, {index(model, "conv"): 32})
    assert model.buffers[model.metadata[1].buffer].data is before
    assert offline.read(model) == {index(model, "conv"): 32}


@pytest.mark.parametrize(
    ("offset", "message"),
    [(-16, "tensor `conv` of subgraph 0: offset -16 is negative"), (8, "not a multiple of 16"), (2**31 - 16, "2 GB")],
)
def test_offsets_that_cannot_be_written(offset: int, message: str) -> None:
    model = branches()
    with pytest.raises(offline.OfflinePlanError, match=message):
        offline.attach(model, {index(model, "conv"): offset})
    with pytest.raises(offline.OfflinePlanError, match="tensor 99 of subgraph 0, which the model lacks"):
        offline.attach(model, {(0, 99): 0})
    assert not model.metadata


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v[:2], "has 8 bytes instead of 12 or more"),
        (lambda v: [*v[:2], v[2] - 1, *v[3:-1]], "has 10 offsets, but the model has 11 tensors, constants included"),
        (lambda v: v[:-1], "has 52 bytes instead of 56 for 11 offsets"),
        (lambda v: [*v[:3], -2, *v[4:]], "tensor `x` of subgraph 0: OfflineMemoryAllocation says offset -2"),
    ],
)
def test_damaged_metadata(change: Callable[[list[int]], list[int]], message: str) -> None:
    model = branches()
    offline.attach(model, {index(model, "conv"): 16})
    buffer = model.buffers[model.metadata[0].buffer]
    assert buffer.data is not None
    buffer.data = np.array(change(np.frombuffer(buffer.data, "<i4").tolist()), "<i4").tobytes()
    with pytest.raises(offline.OfflinePlanError, match=message):
        offline.read(model)
    model.metadata[0].buffer = 999
    with pytest.raises(offline.OfflinePlanError, match="buffer 999 of"):
        offline.read(model)


def test_what_stays_online() -> None:
    b = Builder()
    x, n = b.input("x", [4]), b.input("n", [1], I32)
    y = b.op(Op.RESHAPE, [x, n], name="by data", shape=[4])
    z = b.op(Op.EXP, [y], name="unknown", shape=[4])
    c = b.op(Op.CUSTOM, [z], name="custom", shape=[4])
    v = b.op(Op.EXP, [c], name="plain", shape=[4])
    model = b.model([v])
    graph = model.subgraphs[0]
    graph.tensors[z].shape = [-1]
    reasons = {o.name: o.reason for o in offline.must_stay_online(model)}
    assert set(reasons) == {"by data", "unknown", "custom"}
    assert "depends on data that RESHAPE #0 `by data` reads" in reasons["by data"]
    assert "its shape [-1] is not fixed" in reasons["unknown"]
    assert any("`unknown`: its shape [-1] is not fixed" in line for line in arena.unsupported(model))
    # TFLM would write past that tensor, so it is given no plan at all.
    assert offline.write_plan(model, plan(model, runtime=TFLM)).kept == "base"
    assert "custom operator" in reasons["custom"]
    offline.attach(model, {(0, t): 0 for t in range(len(graph.tensors))})
    assert offline.read(model) == {(0, x): 0, (0, n): 0, (0, v): 0}


def test_sizes_that_depend_on_data() -> None:
    b = Builder()
    x, n = b.input("x", [8]), b.input("n", [1], I32)
    cut = b.op(Op.SLICE, [x, b.constant("begin", [0]), n], name="cut", shape=[-1])
    model = b.model([b.op(Op.EXP, [cut], name="y", shape=[-1])])
    (line,) = arena.unsupported(model)
    assert "tensor `cut`: its size depends on data that SLICE #0 `cut` reads" in line
    assert [o.name for o in offline.must_stay_online(model)] == ["cut"]
    assert offline.write_plan(model, plan(model, runtime=TFLM)).kept == "base"
    model.subgraphs[0].tensors[cut].shape_signature = None  # the size is fixed, only where it begins is not
    assert arena.unsupported(model) == []


def test_tensors_that_tflm_takes_for_variables() -> None:
    model = looped(branches_of_one_shape())
    body = model.subgraphs[2]
    variable = index(model, "u")[1]
    body.tensors[variable].is_variable = True
    reasons = {(o.subgraph, o.tensor): o.reason for o in offline.must_stay_online(model)}
    # TFLM looks for variable 2 of subgraph 2 at place 2 of the whole list, which is a tensor of subgraph 0.
    assert "variable" in reasons[2, variable]
    assert "for that of a variable with the same number" in reasons[0, variable]


def branches_of_one_shape() -> Model:
    b = Builder()
    x = b.input("t", [1, 16])
    w = b.constant("w", weights(16, 16))
    u = b.op(Op.FULLY_CONNECTED, [x, w], name="u", shape=[1, 16])
    return b.model([b.op(Op.TANH, [b.op(Op.ADD, [u, x], name="s", shape=[1, 16])], name="y", shape=[1, 16])])


# -- proof -----------------------------------------------------------------------------------------------------------


def test_a_right_plan_has_no_faults_and_is_followed() -> None:
    model = branches()
    offsets = tflm.simple_plan(model)
    assert proof.faults(model, offsets) == []
    assert offsets[index(model, "tanh")] == offsets[index(model, "conv")]
    assert offsets[index(model, "flat")] == offsets[index(model, "sum")]


@pytest.mark.parametrize(
    ("moved", "onto", "by"),
    [
        ("conv", "x", 0),  # a convolution over its input
        ("tanh", "conv", 16),  # in place, but not at the same byte
        ("again", "tanh", 0),  # read again by the ADD
        ("both", "flat", 16),  # a view at the wrong place
        ("soft", "both", 1024),
        ("sum", "again", 512),
    ],
)
def test_overlap_is_found(moved: str, onto: str, by: int) -> None:
    model = branches()
    spread = {key: i * 4096 for i, key in enumerate(tflm.simple_plan(model))}
    assert proof.faults(model, spread) == []
    spread[index(model, moved)] = spread[index(model, onto)] + by
    (fault,) = proof.faults(model, spread)
    assert f"`{moved}`" in fault
    assert f"`{onto}`" in fault
    assert "overlap while both are needed" in fault


def test_wrong_plans_are_not_written() -> None:
    model = branches()
    wrong = plan(model, runtime=TFLM)
    part = wrong.arenas[0].subgraphs[0]
    part.offsets = dict.fromkeys(part.offsets, 0)
    with pytest.raises(
        offline.OfflinePlanError, match=r"wrong and was not written: .*writes `conv` over its input `x`"
    ):
        offline.write_plan(model, wrong)


@pytest.mark.parametrize(
    ("moved", "onto", "by"),
    [("tanh", "conv", 0), ("sum", "again", 0), ("sum", "tanh", 0), ("flat", "sum", 0), ("soft", "both", 0)],
)
def test_sharing_that_is_right(moved: str, onto: str, by: int) -> None:
    model = branches()
    spread = {key: i * 4096 for i, key in enumerate(tflm.simple_plan(model))}
    spread[index(model, moved)] = spread[index(model, onto)] + by
    assert proof.faults(model, spread) == []


def pieces() -> Model:
    b = Builder()
    x = b.input("x", [1, 4, 8])
    first = b.op(Op.SPLIT, [b.constant("axis", 1), x], name="half", outputs=2, num_splits=2, type=F32)
    cut = b.op(Op.SLICE, [x, b.constant("begin", [0, 2, 0]), b.constant("size", [1, 1, -1])], name="cut")
    strided = b.op(
        Op.STRIDED_SLICE,
        [x, b.constant("from", [0, -2, 0]), b.constant("to", [1, 4, 8]), b.constant("by", [1, 1, 1])],
        name="strided",
    )
    narrow = b.op(Op.SLICE, [x, b.constant("b", [0, 0, 4]), b.constant("s", [1, 4, 4])], name="narrow")
    packed = b.op(Op.PACK, [b.op(Op.TANH, [x], name="t"), x], name="packed", axis=0, values_count=2)
    joined = b.op(Op.CONCATENATION, [first, first + 1, cut, strided], name="joined", axis=1)
    return b.model([joined, packed, narrow])


PLACES = {"half": 0, "half:1": 64, "cut": 64, "strided": 64}


@needs_tflm
def test_pieces_of_tensors() -> None:
    model = pieces()
    base = {key: i * 512 for i, key in enumerate(tflm.simple_plan(model))}
    offsets = base | {index(model, name): base[index(model, "x")] + at for name, at in PLACES.items()}
    offsets[index(model, "t")] = base[index(model, "packed")]
    assert proof.faults(model, offsets) == []
    for name, at in [*PLACES.items(), ("narrow", 16), ("joined", 0), ("t", 0)]:
        wrong = offsets | {index(model, name): base[index(model, "x")] + (at + 16) % 128}
        assert any(f"`{name}`" in fault for fault in proof.faults(model, wrong)), name
    steps = tflm.random_steps(model)
    expected = tflm.run(to_bytes(model), steps)
    offline.attach(model, offsets)
    found = tflm.run(to_bytes(model), steps)
    assert found.failure == expected.failure == ""
    assert found.same_outputs(expected)
    assert found.head == arena.head_bytes(model, offsets)


FLOAT = (
    "ABS CEIL COS EXP FLOOR LOG NEG ROUND RSQRT SIN SQRT SQUARE RELU RELU6 LEAKY_RELU ELU HARD_SWISH LOGISTIC TANH "
    "SOFTMAX LOG_SOFTMAX L2_NORMALIZATION ZEROS_LIKE CAST QUANTIZE ADD SUB MUL DIV MAXIMUM MINIMUM SQUARED_DIFFERENCE "
    "FLOOR_DIV FLOOR_MOD ADD_N PRELU SELECT_V2 EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL"
)
INT8 = (
    "ABS RELU RELU6 LEAKY_RELU HARD_SWISH ADD SUB MUL MAXIMUM MINIMUM SQUARED_DIFFERENCE QUANTIZE PRELU LOGISTIC TANH "
    "SOFTMAX LOG_SOFTMAX L2_NORMALIZATION"
)
INT16 = "LOGISTIC TANH SOFTMAX ADD SUB MUL MAXIMUM ABS"
COMPARISONS = frozenset({"EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"})
ARITHMETIC = frozenset({"ADD", "SUB", "MUL", "DIV", "SQUARED_DIFFERENCE", "FLOOR_DIV", "FLOOR_MOD", "ADD_N"})
BINARY = COMPARISONS | ARITHMETIC | {"MAXIMUM", "MINIMUM"}
FIXED = {"LOGISTIC": 1 / 256, "TANH": 1 / 128, "SOFTMAX": 1 / 256, "LOG_SOFTMAX": 16 / 256, "L2_NORMALIZATION": 1 / 128}


def one_of_each(type: TensorType, names: str) -> tuple[Model, list[tuple[int, int]]]:
    """A model that applies each operator to a tensor that nothing else needs, and the (input, output) pairs."""
    b = Builder()
    shape, integer = [1, 6, 9], type != F32
    q = quantized(1 / 64 if type == I8 else 1 / 4096) if integer else None
    x = b.input("x", shape, type, q)
    pairs = []
    for name in names.split():
        kind = Op[name]
        source = b.op(Op.MAXIMUM if integer else Op.EXP, [x, x] if integer else [x], name=f"for {name}", shape=shape)
        inputs, options, output, scale = [source], {}, type, q
        if name in BINARY:
            inputs.append(b.op(Op.RELU if integer else Op.LOGISTIC, [x], name=f"also {name}", shape=shape))
        if name == "PRELU":
            alpha = np.full((1, 1, 9), 3, np.int8) if integer else weights(1, 1, 9)
            inputs.append(b.constant(f"a {name}", alpha, quantized(0.1) if integer else None))
        if name == "SELECT_V2":
            inputs[:0] = [b.constant("which", np.arange(54).reshape(shape) % 3 == 0)]
            inputs.append(x)
        if name in COMPARISONS:
            output = TensorType.BOOL
        if not integer and name in ("CAST", "QUANTIZE"):
            output, scale = I8, quantized(0.1) if name == "QUANTIZE" else None
        if integer and name in FIXED:
            point = {"LOGISTIC": -128, "SOFTMAX": -128, "LOG_SOFTMAX": 127}.get(name, 0) if type == I8 else 0
            scale = quantized(FIXED[name] if type == I8 else 1 / 32768, point)
        if name == "LEAKY_RELU":
            options["alpha"] = 0.25
        pairs.append((source, b.op(kind, inputs, name=name, shape=shape, type=output, quantization=scale, **options)))
    return b.model([result for _, result in pairs]), pairs


@needs_tflm
@pytest.mark.parametrize(("type", "names"), [(F32, FLOAT), (I8, INT8), (I16, INT16)])
def test_every_operator_in_place(type: TensorType, names: str) -> None:
    model, pairs = one_of_each(type, names)
    steps = tflm.random_steps(model)
    expected = tflm.run(to_bytes(model), steps)
    assert expected.failure == ""
    offsets = {key: i * 1024 for i, key in enumerate(tflm.simple_plan(model))}
    offsets |= {(0, result): offsets[0, source] for source, result in pairs}
    assert proof.faults(model, offsets) == []
    offline.attach(model, offsets)
    found = tflm.run(to_bytes(model), steps)
    for step, (mine, theirs) in enumerate(zip(found.outputs, expected.outputs, strict=True)):
        for name, a, b in zip(names.split(), mine, theirs, strict=True):
            assert a.tobytes() == b.tobytes(), (step, name)


def test_operators_whose_results_are_wider() -> None:
    b = Builder()
    x = b.op(Op.RELU, [b.input("x", [1, 64], I8, Q)], name="narrow", shape=[1, 64])
    model = b.model([b.op(Op.DEQUANTIZE, [x], name="wide", shape=[1, 64], type=F32)])
    (fault,) = proof.faults(model, {index(model, "narrow"): 0, index(model, "wide"): 0})
    assert "`narrow`" in fault


@needs_tflm
def test_mutated_plans_are_caught_or_harmless() -> None:
    """Random moves: those that pass the proof give the same bits; those that change the outputs do not pass."""
    model = branches()
    steps = tflm.random_steps(model, 1)
    expected = tflm.run(to_bytes(model), steps)
    offsets = tflm.simple_plan(model)
    random = np.random.default_rng(5)
    accepted = changed = 0
    for _ in range(12):
        moved = list(offsets)[random.integers(len(offsets))]
        mutant = offsets | {moved: int(random.integers(0, 5)) * 512}
        right = not proof.faults(model, mutant)
        copy = deepcopy(model)
        offline.attach(copy, mutant)
        same = tflm.run(to_bytes(copy), steps).same_outputs(expected)
        assert same or not right, mutant
        accepted += right
        changed += not same
    assert accepted >= 2
    assert changed >= 2


# -- TFLM's planner --------------------------------------------------------------------------------------------------


def block(tensor: int, size: int, first: int, last: int) -> arena.Block:
    return arena.Block(0, tensor, -1, size, first, last)


def test_greedy_order_gaps_and_ties() -> None:
    a, b, c = block(0, 64, 0, 1), block(1, 128, 1, 2), block(2, 64, 2, 3)
    assert arena.place([a, b, c]) == [128, 0, 128]
    # Of equals, the last told is the first placed.
    assert arena.place([block(0, 16, 0, 1), block(1, 16, 0, 1)]) == [16, 0]
    # Around given offsets, in the first gap that is large enough.
    assert arena.place([a, b, c], {(0, 1): 64}) == [0, 64, 0]
    assert arena.place([a, b, c], {(0, 1): 32}) == [160, 32, 160]
    assert arena.place([]) == []


def dense(kind: Op = Op.FULLY_CONNECTED) -> Model:
    b = Builder()
    x = b.input("x", [1, 8], I8, Q)
    w = b.constant("w", np.full((4, 4), 0x12, np.int8), quantized(1.0), type=I4)
    model = b.model([b.op(kind, [x, w], shape=[1, 4], quantization=Q)])
    model.subgraphs[0].tensors[w].shape = [4, 8]
    return model


def convolution(weight: TensorType, depthwise: bool) -> Model:
    b = Builder()
    x = b.input("x", [1, 4, 4, 4], I8, Q)
    count = 4 * 9 * (1 if depthwise else 4) // 2
    w = b.constant("w", np.full(count, 0x12, np.int8), quantized([1.0] * 4, axis=3 * depthwise), type=weight)
    bias = b.constant("b", np.zeros(4, np.int32), quantized([0.5] * 4))
    kind = Op.DEPTHWISE_CONV_2D if depthwise else Op.CONV_2D
    model = b.model([b.op(kind, [x, w, bias], shape=[1, 4, 4, 4])])
    model.subgraphs[0].tensors[w].shape = [1, 3, 3, 4] if depthwise else [4, 3, 3, 4]
    return model


def transposed(activations: TensorType) -> Model:
    b = Builder()
    q = None if activations == F32 else Q
    x = b.input("x", [1, 4, 4, 2], activations, q)
    kernel = weights(3, 2, 2, 2, dtype=np.float32 if activations == F32 else np.int8)
    w = b.constant("w", kernel, None if q is None else quantized([1.0] * 3))
    shape = b.constant("shape", [1, 8, 8, 3])
    y = b.op(
        Op.TRANSPOSE_CONV, [shape, w, x], shape=[1, 8, 8, 3], type=activations, quantization=q, stride_w=2, stride_h=2
    )
    return b.model([y])


def reduction(kind: Op, activations: TensorType) -> Model:
    b = Builder()
    q = None if activations in (F32, TensorType.BOOL) else Q
    x = b.input("x", [1, 5, 6, 9], activations, q)
    axes = b.constant("axes", [1, 2])
    return b.model([b.op(kind, [x, axes], shape=[1, 1, 1, 9], type=activations, quantization=q, keep_dims=True)])


def mirrored() -> Model:
    b = Builder()
    x = b.input("x", [1, 4, 4, 2])
    pads = b.constant("pads", [[0, 0], [1, 1], [1, 1], [0, 0]])
    return b.model([b.op(Op.MIRROR_PAD, [x, pads], shape=[1, 6, 6, 2])])


def added() -> Model:
    b = Builder()
    return b.model([b.op(Op.ADD_N, [b.input(n, [1, 3]) for n in "abc"], shape=[1, 3])])


def svdf() -> Model:
    b = Builder()
    x = b.input("x", [1, 6])
    feature, time = b.constant("f", weights(8, 6)), b.constant("t", weights(8, 5))
    bias = b.constant("b", weights(4))
    state = b.input("state", [1, 40])
    y = b.op(Op.SVDF, [x, feature, time, bias, state], shape=[1, 4], rank=2)
    model = b.model([y])
    model.subgraphs[0].inputs.remove(state)
    model.subgraphs[0].tensors[state].is_variable = True
    return model


SCRATCH: dict[str, tuple[Callable[[], Model], list[int]]] = {
    "FULLY_CONNECTED int4": (dense, [32]),
    "CONV_2D int4": (lambda: convolution(I4, False), [144]),
    "DEPTHWISE_CONV_2D int4": (lambda: convolution(I4, True), [36]),
    "TRANSPOSE_CONV int8": (lambda: transposed(I8), [4 * 192]),
    "TRANSPOSE_CONV int16": (lambda: transposed(I16), [8 * 192]),
    "TRANSPOSE_CONV float32": (lambda: transposed(F32), []),
    "MEAN int8": (lambda: reduction(Op.MEAN, I8), [36, 16, 8]),
    "SUM int16": (lambda: reduction(Op.SUM, I16), [36, 16, 8]),
    "SUM float32": (lambda: reduction(Op.SUM, F32), [16, 8]),
    "REDUCE_MAX int8": (lambda: reduction(Op.REDUCE_MAX, I8), [16, 8]),
    "REDUCE_ALL bool": (lambda: reduction(Op.REDUCE_ALL, TensorType.BOOL), [16, 8]),
    "MIRROR_PAD": (mirrored, [16, 16]),
    "ADD_N": (added, [24]),
    "SVDF float32": (svdf, [32]),
}


@pytest.mark.parametrize("name", SCRATCH)
def test_scratch(name: str) -> None:
    make, expected = SCRATCH[name]
    model = make()
    assert arena.scratch(model, 0, 0) == expected
    assert [b.bytes for b in arena.blocks(model) if b.tensor < 0] == [-(-n // 16) * 16 for n in expected]
    assert arena.unsupported(model) == []


@needs_tflm
@pytest.mark.parametrize("name", SCRATCH)
def test_scratch_is_what_tflm_takes(name: str) -> None:
    model = SCRATCH[name][0]()
    run = tflm.run(to_bytes(model), tflm.random_steps(model))
    assert run.failure == ""
    assert run.head == arena.head_bytes(model)


@needs_tflm
def test_loops_and_their_subgraphs() -> None:
    model = looped(branches_of_one_shape())
    check_in_tflm(model)
    offsets = tflm.simple_plan(model)
    assert {s for s, _ in offsets} == {0, 1, 2}
    clash = offsets | {index(model, "u"): offsets[0, model.subgraphs[0].outputs[0]]}
    assert any("overlap" in fault for fault in proof.faults(model, clash))


# -- what TFLM has ---------------------------------------------------------------------------------------------------


def test_unsupported_names_place_and_remedy() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    w8 = b.constant("w", weights(4, 4, dtype=np.int8), Q)
    half = b.constant("half", np.ones((1, 4), np.float16))
    y = b.op(Op.FULLY_CONNECTED, [x, w8], name="hybrid", shape=[1, 4])
    y = b.op(Op.GELU, [y], name="gelu", shape=[1, 4])
    y = b.op(Op.ADD, [y, b.op(Op.DEQUANTIZE, [half], name="wide", shape=[1, 4], type=F32)], name="sum", shape=[1, 4])
    y = b.op(Op.CUSTOM, [y], name="custom", shape=[1, 4])
    model = b.model([y])
    code = next(c for c in model.operator_codes if c.builtin_code == Op.CUSTOM)
    code.custom_code = "Mine"
    lines = arena.unsupported(model)
    assert len(lines) == 4
    for line, parts in zip(
        lines,
        [
            ("FULLY_CONNECTED #0 `hybrid`", "FLOAT32 weights with FLOAT32 inputs, not INT8", "quantise inputs too"),
            ("GELU #1 `gelu`", "no such operator", "express it by operators it has"),
            ("DEQUANTIZE #2 `wide`", "not FLOAT16", "store the weights as float32 (`litefuse convert --widen-fp16`)"),
            ("Mine #4 `custom`", "no such custom operator", "register its kernel"),
        ],
        strict=True,
    ):
        assert all(part in line for part in parts), line
    code.custom_code = "SignalWindow"
    assert len(arena.unsupported(model)) == 3
    model.subgraphs[0].tensors[x].type = TensorType.STRING
    assert any("tensor `x`: TFLM has no STRING tensors" in line for line in arena.unsupported(model))
    model.buffers.append(Buffer(offset=64, size=4))
    assert "outside the flatbuffer" in arena.unsupported(model)[-1]


def test_versions_do_not_matter() -> None:
    model = branches()
    for code in model.operator_codes:
        code.version = 99
    assert arena.unsupported(model) == []
    model.operator_codes.append(operator_code(Op.CONV_3D))
    assert arena.unsupported(model) == []


# -- the real runtime ------------------------------------------------------------------------------------------------


def check_in_tflm(model: Model) -> offline.Written:
    """Runs a model with TFLM's plan and with one of ours: bytes as predicted, and the same outputs."""
    offline.detach(model)
    steps = tflm.random_steps(model)
    base = tflm.run(to_bytes(model), steps)
    assert base.failure == ""
    assert base.head == arena.head_bytes(model)
    made = plan(model, runtime=TFLM)
    written = offline.write_plan(model, made)
    # The plan is tried even where it is not the smaller one.
    planned = reordered(model, made)
    offline.attach(planned, offline.plan_offsets(made))
    run = tflm.run(to_bytes(planned), steps)
    assert run.failure == ""
    assert run.same_outputs(base)
    assert (written.base_bytes, written.planned_bytes) == (base.head, run.head)
    assert written.kept == ("plan" if run.head < base.head else "base")
    assert offline.read(model) is None
    assert offline.read(written.model) == (offline.read(planned) if written.kept == "plan" else None)
    return written


@needs_tflm
def test_planned_models_run_the_same() -> None:
    assert check_in_tflm(branches()).kept == "plan"


@needs_tflm
def test_every_real_model(corpus_file: Path) -> None:
    model = read(corpus_file)
    lines = arena.unsupported(model)
    if any("give the model fixed shapes" not in line for line in lines):
        assert tflm.run(corpus_file.read_bytes(), list(steps_or_none(model))).failure
        return
    if lines:
        # TFLM loads it and writes past its tensors: its outputs depend on what lies there.
        assert offline.write_plan(model, plan(model, runtime=TFLM)).kept == "base"
        return
    if corpus_file.stem == "mm_catdog2":
        pytest.skip("TFLM and TFLite refuse its quantisation")
    check_in_tflm(model)


def steps_or_none(model: Model) -> Iterator[list[Any]]:
    """Inputs for one run; none where an input is of a type that numpy lacks."""
    try:
        yield from tflm.random_steps(model, 1)
    except KeyError:
        yield []


@pytest.mark.parametrize("name", ["SignalRfft", "TFLite_Detection_PostProcess"])
@pytest.mark.parametrize("options", [None, b"\x01\x02"])
def test_damaged_options_of_custom_operators_are_named(name: str, options: bytes | None) -> None:
    text = f'graph g(%x: f32[16], %c: f32[16]) {{ %y: f32[16] = "{name}"(%x, %c)\n return %y }}'
    model = from_text(text)
    model.subgraphs[0].operators[0].custom_options = None if options is None else np.frombuffer(options, np.uint8)
    with pytest.raises(
        LitefuseError, match=r"(SignalRfft|PostProcess).*how much memory its kernel needs cannot be told"
    ):
        plan(model)
