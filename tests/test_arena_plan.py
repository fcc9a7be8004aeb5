"""Whole plans: their peaks, what they say about themselves, and the order written back into the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rules import assert_same, kinds, looped
from test_arena_replay import net

from litefuse.arena.aliasing import ShareKind
from litefuse.arena.order import predecessors
from litefuse.arena.plan import Plan, plan, reordered
from litefuse.arena.tflm import head_bytes
from litefuse.errors import LitefuseError
from litefuse.graph.build import Builder, quantized
from litefuse.graph.compact import (
    CONTROL_DEPENDENCIES,
    MEMORY_PLAN,
    parse_control_dependencies,
    serialize_control_dependencies,
)
from litefuse.graph.graph import Graph
from litefuse.schema import Model, read, to_bytes
from litefuse.schema.declare import deepcopy, diff
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Buffer, Metadata

ALL = ("tflm", "tflite", "delegate")


def checked(model: Model, **options: object) -> Plan:
    result = plan(model, **options)  # type: ignore[arg-type]
    assert result.faults(model) == []
    for arena in result.arenas:
        assert arena.order_bound <= arena.lower_bound <= arena.peak
        assert arena.peak % result.alignment == 0
    return result


def wide() -> Model:
    b = Builder()
    x = b.input("x", [1, 16])
    ones = np.ones
    out = [b.constant(f"w{i}", ones((256, 16), np.float32)) for i in range(2)]
    back = [b.constant(f"v{i}", ones((16, 256), np.float32)) for i in range(2)]
    large = [b.op(Op.FULLY_CONNECTED, [x, w, -1], name=f"large{i}", shape=[1, 256]) for i, w in enumerate(out)]
    small = [
        b.op(Op.FULLY_CONNECTED, [t, v, -1], name=f"small{i}", shape=[1, 16])
        for i, (t, v) in enumerate(zip(large, back, strict=True))
    ]
    return b.model([b.op(Op.ADD, small, name="y", shape=[1, 16])])


def test_a_better_order_is_taken_only_where_it_is_allowed() -> None:
    model = wide()
    free = checked(model)
    part = free.arenas[0].subgraphs[0]
    assert (free.peak, part.reordered, free.arenas[0].optimal) == (64 + 64 + 1024, True, True)
    fixed = checked(model, reorder=False)
    assert (fixed.peak, fixed.arenas[0].subgraphs[0].order) == (64 + 2 * 1024, [0, 1, 2, 3, 4])
    assert any("another order" in s for s in fixed.suggestions)


def test_an_order_that_gains_nothing_is_not_taken() -> None:
    b = Builder()
    x = b.input("x", [1, 16])
    y = b.op(Op.ADD, [b.op(Op.EXP, [x], shape=[1, 16]), b.op(Op.ABS, [x], shape=[1, 16])], shape=[1, 16])
    for runtime in ALL:
        part = checked(b.model([y]), runtime=runtime).arenas[0].subgraphs[0]
        assert not part.reordered


def in_place_chain() -> Model:
    b = Builder()
    x = b.input("x", [1, 64])
    w = b.constant("w", np.ones((64, 64), np.float32))
    a = b.op(Op.FULLY_CONNECTED, [x, w, -1], name="a", shape=[1, 64])
    r = b.op(Op.RESHAPE, [a, b.constant("s", np.array([8, 8], np.int32))], name="r", shape=[8, 8])
    t = b.op(Op.TANH, [r], name="t", shape=[8, 8])
    u = b.op(Op.MUL, [t, t], name="u", shape=[8, 8])
    return b.model([b.op(Op.SOFTMAX, [u], name="y", shape=[8, 8])])


def test_chains_of_shares_are_one_block() -> None:
    model = in_place_chain()
    found = checked(model)
    assert found.peak == 2 * 256
    offsets = found.arenas[0].subgraphs[0].offsets
    assert len({offsets[t] for t in (2, 4, 5, 6, 7)}) == 1
    assert [s.kind.value for s in found.arenas[0].subgraphs[0].shares] == ["view", "in place", "in place", "in place"]
    assert len(found.arenas[0].blocks) == 2
    # Without sharing, three of 256 bytes are never there at once, either; but nothing is joined.
    alone = checked(model, in_place=False)
    assert alone.arenas[0].subgraphs[0].shares == []
    assert alone.peak == 2 * 256


def test_inputs_of_the_model_are_written_over_where_they_lose_their_memory_anyway() -> None:
    b = Builder()
    x = b.input("x", [1, 64])
    r = b.op(Op.RESHAPE, [x, b.constant("s", np.array([8, 8], np.int32))], name="r", shape=[8, 8])
    model = b.model([b.op(Op.TANH, [r], name="y", shape=[8, 8])])
    # The view of the input is free in both.
    kept = checked(model, overwrite_inputs=False)
    assert kept.peak == 2 * 256
    assert checked(model).peak == checked(model, runtime="delegate", overwrite_inputs=True).peak == 256
    assert checked(model, runtime="delegate").peak == 2 * 256
    assert any("input of the model" in s for s in kept.suggestions)
    assert checked(model, runtime="tflite", overwrite_inputs=True).peak == 3 * 256


def test_outputs_are_never_written_over() -> None:
    b = Builder()
    x = b.input("x", [1, 64])
    w = b.constant("w", np.ones((64, 64), np.float32))
    a = b.op(Op.FULLY_CONNECTED, [x, w, -1], name="a", shape=[1, 64])
    model = b.model([b.op(Op.TANH, [a], name="y", shape=[1, 64]), a])
    found = checked(model)
    assert [s for s in found.arenas[0].subgraphs[0].shares if s.kind is ShareKind.IN_PLACE] == []
    assert found.peak == 2 * 256


def test_a_tensor_needed_later_is_not_written_over() -> None:
    b = Builder()
    x = b.input("x", [1, 64])
    w = b.constant("w", np.ones((64, 64), np.float32))
    a = b.op(Op.FULLY_CONNECTED, [x, w, -1], name="a", shape=[1, 64])
    t = b.op(Op.TANH, [a], name="t", shape=[1, 64])
    y = b.op(Op.MUL, [t, a], name="y", shape=[1, 64])
    found = checked(b.model([y]))
    part = found.arenas[0].subgraphs[0]
    assert found.peak == 2 * 256
    assert part.offsets[a] != part.offsets[t]
    assert part.offsets[y] in (part.offsets[t], part.offsets[a])


def concatenated(rows: int = 1) -> Model:
    b = Builder()
    x = b.input("x", [rows, 16])
    parts = []
    for i in range(4):
        w = b.constant(f"w{i}", np.ones((64, 16), np.float32))
        parts.append(b.op(Op.FULLY_CONNECTED, [x, w, -1], name=f"p{i}", shape=[rows, 64]))
    return b.model([b.op(Op.CONCATENATION, parts, name="y", shape=[rows, 256], axis=1)])


def test_inputs_of_a_concatenation_are_made_in_place() -> None:
    found = checked(concatenated())
    offsets = found.arenas[0].subgraphs[0].offsets
    assert found.peak == 1024 + 64
    assert [offsets[t] - offsets[9] for t in (2, 4, 6, 8)] == [0, 256, 512, 768]
    assert checked(concatenated(), in_place=False).peak == 2048
    assert checked(concatenated(rows=2)).peak == 4096
    assert any("interleaves" in s for s in checked(concatenated(rows=2)).suggestions)


def test_a_part_does_not_keep_the_whole_alive_if_that_costs_more() -> None:
    b = Builder()
    x = b.input("x", [1, 1024])
    e = b.op(Op.FULLY_CONNECTED, [x, b.constant("w", np.ones((1024, 1024), np.float32)), -1], shape=[1, 1024])
    begin, size = b.constant("b", [0, 0]), b.constant("n", [1, 16])
    part = b.op(Op.SLICE, [e, begin, size], name="part", shape=[1, 16])
    w = b.constant("w2", np.ones((1024, 16), np.float32))
    for i in range(3):
        large = b.op(Op.FULLY_CONNECTED, [part, w, -1], name=f"large{i}", shape=[1, 1024])
        w2 = b.constant(f"back{i}", np.ones((16, 1024), np.float32))
        small = b.op(Op.FULLY_CONNECTED, [large, w2, -1], name=f"small{i}", shape=[1, 16])
        part = b.op(Op.ADD, [small, part], name=f"sum{i}", shape=[1, 16])
    found = checked(b.model([part]))
    assert found.peak == 2 * 4096
    used = [(s.source, s.target) for s in found.arenas[0].subgraphs[0].shares if s.kind is ShareKind.VIEW]
    assert used == []


def residual_block() -> Model:
    b = Builder()
    x = b.input("x", [1, 8, 8, 16], TensorType.FLOAT32)
    w = b.constant("w", np.ones((16, 3, 3, 16), np.float32))
    a = b.op(Op.CONV_2D, [x, w, -1], name="a", shape=[1, 8, 8, 16])
    c = b.op(Op.CONV_2D, [a, w, -1], name="c", shape=[1, 8, 8, 16])
    d = b.op(Op.CONV_2D, [c, w, -1], name="d", shape=[1, 8, 8, 16])
    return b.model([b.op(Op.ADD, [a, d], name="y", shape=[1, 8, 8, 16])])


def test_a_residual_is_written_over_by_the_delegate() -> None:
    one = 8 * 8 * 16 * 4
    found = checked(residual_block(), runtime="delegate")
    assert (found.peak, found.arenas[0].optimal) == (2 * one, True)
    part = found.arenas[0].subgraphs[0]
    assert [residual_block().subgraphs[0].tensors[t].name for t in part.skipped] == ["d"]
    tflm = checked(residual_block())
    assert tflm.peak == 3 * one
    assert not any("delegate" in s for s in tflm.suggestions)  # of no use to who runs TFLM
    assert any("float32" in s for s in tflm.suggestions)


def test_what_dominates_the_peak() -> None:
    (peak,) = (p for p in checked(residual_block()).arenas[0].peak_operators if p.operator == 2)
    assert "CONV_2D #2" in peak.where
    assert {t.name: t.bytes for t in peak.tensors} == {"a": 4096, "c": 4096, "d": 4096}


def test_first_stages_are_worth_tiling() -> None:
    b = Builder()
    x = b.input("x", [1, 16, 16, 8])
    w = b.constant("w", np.ones((16, 1, 1, 8), np.float32))
    a = b.op(Op.CONV_2D, [x, w, -1], name="a", shape=[1, 16, 16, 16])
    for i in range(5):
        pool = {"stride_w": 2, "stride_h": 2, "filter_width": 2, "filter_height": 2}
        side = max(16 >> (i + 1), 1)
        a = b.op(Op.MAX_POOL_2D, [a], name=f"p{i}", shape=[1, side, side, 16], **(pool if i < 4 else {}))
    assert any("tiles" in s for s in checked(b.model([a])).suggestions)


def test_subgraphs_of_a_while_are_planned_with_their_caller() -> None:
    b = Builder()
    x = b.input("x", [1, 64])
    w = b.constant("w", np.ones((64, 64), np.float32))
    y = b.op(Op.FULLY_CONNECTED, [x, w, -1], shape=[1, 64])
    model = looped(b.model([b.op(Op.TANH, [y], shape=[1, 64])]))
    tflm = checked(model)
    assert [p.index for p in tflm.arenas[0].subgraphs] == [0, 1, 2]
    assert len(tflm.arenas) == 1
    separate = checked(model, runtime="tflite")
    assert [[p.index for p in a.subgraphs] for a in separate.arenas] == [[0], [1], [2]]


def test_tensors_of_unknown_shape_are_left_out() -> None:
    b = Builder()
    x = b.input("x", [2, 8])
    where = b.op(Op.WHERE, [b.op(Op.GREATER, [x, x], shape=[2, 8], type=TensorType.BOOL)], type=TensorType.INT64)
    model = b.model([where])
    model.subgraphs[0].tensors[where].shape = []
    model.subgraphs[0].tensors[where].has_rank = False
    for runtime in ALL:
        found = checked(model, runtime=runtime)
        part = found.arenas[0].subgraphs[0]
        assert list(part.unplanned) == [where]
        assert where not in part.offsets
        assert any("could not be planned" in s for s in found.suggestions)


def test_arguments_are_checked() -> None:
    with pytest.raises(LitefuseError, match="power of two"):
        plan(wide(), alignment=24)
    with pytest.raises(LitefuseError, match="no runtime"):
        plan(wide(), runtime="onnx")
    assert checked(wide(), alignment=1).alignment == 1
    assert checked(wide(), alignment=4096).peak == 3 * 4096


def test_the_order_written_back() -> None:
    model = wide()
    model.buffers += [Buffer(data=serialize_control_dependencies([[(0, 4), (1, 3)]])), Buffer(data=bytes(24))]
    model.metadata += [
        Metadata(name=CONTROL_DEPENDENCIES, buffer=len(model.buffers) - 2),
        Metadata(name=MEMORY_PLAN, buffer=len(model.buffers) - 1),
        Metadata(name="other", buffer=0),
    ]
    before = to_bytes(model)
    found = checked(model)
    after = reordered(model, found)
    assert to_bytes(model) == before
    order = found.arenas[0].subgraphs[0].order
    names = [op.outputs for op in model.subgraphs[0].operators]
    assert [op.outputs for op in after.subgraphs[0].operators] == [names[i] for i in order]
    assert [m.name for m in after.metadata] == [CONTROL_DEPENDENCIES, "other"]
    data = after.buffers[after.metadata[0].buffer].data
    assert parse_control_dependencies(bytes(data)) == [[(order.index(0), 4), (order.index(1), order.index(3))]]
    assert_same(wide(), reordered(wide(), checked(wide())))
    # The new order is the order in the file now.
    again = checked(after, reorder=False)
    assert again.peak == found.peak


def test_a_model_that_stays_is_copied_as_it_is() -> None:
    model = in_place_chain()
    after = reordered(model, checked(model))
    assert list(diff(model, after)) == []
    assert kinds(after) == kinds(model)


@pytest.mark.parametrize("seed", range(12))
def test_no_order_beats_the_bound_of_orders(seed: int) -> None:
    """Every order of small graphs with views, parts and in-place operators, each planned by itself."""
    model = net(seed, most=7)
    for overwrite in (False, True):
        arena = checked(model, overwrite_inputs=overwrite).arenas[0]
        before = predecessors(Graph(model))
        peaks = []
        for order in topological(before):
            copy = deepcopy(model)
            copy.subgraphs[0].operators = [copy.subgraphs[0].operators[i] for i in order]
            peaks.append(plan(copy, reorder=False, overwrite_inputs=overwrite).peak)
        assert arena.order_bound <= min(peaks)
        assert arena.peak <= peaks[0]
        if arena.optimal and len(peaks) < 60:
            assert arena.peak == min(peaks)


def topological(before: list[int]) -> list[list[int]]:
    found: list[list[int]] = []

    def extend(order: list[int], done: int) -> None:
        if len(order) == len(before):
            found.append(order)
        for node, needs in enumerate(before):
            if len(found) < 60 and not done >> node & 1 and not needs & ~done:
                extend([*order, node], done | 1 << node)

    extend([], 0)
    return found


def test_heads_that_are_concatenated_do_not_spoil_the_proof() -> None:
    """As in detectors: the outputs of several stages are parts of one output, far from the peak."""
    b = Builder()
    x = b.input("x", [1, 256])
    heads = []
    for i in range(3):
        x = b.op(Op.FULLY_CONNECTED, [x, b.constant(f"w{i}", np.ones((256, 256), np.float32)), -1], shape=[1, 256])
        heads.append(
            b.op(Op.FULLY_CONNECTED, [x, b.constant(f"h{i}", np.ones((16, 256), np.float32)), -1], shape=[1, 16])
        )
    found = checked(b.model([b.op(Op.CONCATENATION, heads, shape=[1, 48], axis=1)])).arenas[0]
    assert found.optimal
    assert found.peak == 2 * 1024 + 2 * 64


def test_plans_are_the_same_every_time() -> None:
    for model in (wide(), concatenated(), residual_block()):
        one, two = (checked(model) for _ in range(2))
        assert [a.subgraphs[0].offsets for a in one.arenas] == [a.subgraphs[0].offsets for a in two.arenas]


@pytest.mark.parametrize(
    ("name", "runtime", "peak"),
    [
        ("mlperf_resnet8_int8", "tflm", 49152),
        ("mlperf_resnet8_int8", "delegate", 32768),
        ("mlperf_vww_int8", "tflm", 55296),
    ],
)
def test_known_peaks(corpus: list[Path], name: str, runtime: str, peak: int) -> None:
    path = next((p for p in corpus if p.stem == name), None)
    if path is None:
        pytest.skip(f"{name} is not in the corpus")
    assert checked(read(path), runtime=runtime).peak == peak


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ALL)
def test_every_plan_of_the_corpus_is_proved(corpus_file: Path, runtime: str) -> None:
    model = read(corpus_file)
    found = checked(model, runtime=runtime, seconds=2)
    for arena in found.arenas:
        assert arena.peak <= arena.plain_bound


def test_parts_of_views_are_not_taken_for_the_whole() -> None:
    """The first element of a vector is put in front of others: vector and result agree in that element only."""
    b = Builder()
    x = b.input("x", [4], TensorType.INT32)
    part = b.op(Op.SLICE, [x, b.constant("begin", [0]), b.constant("size", [1])], name="part", shape=[1])
    rest = b.op(Op.SLICE, [x, b.constant("begin1", [1]), b.constant("size3", [3])], name="rest", shape=[3])
    turned = b.op(Op.NEG, [rest], name="turned", shape=[3])
    whole = b.op(Op.CONCATENATION, [part, turned], name="whole", shape=[4], axis=0)
    model = b.model([b.op(Op.ADD, [whole, x], name="y", shape=[4])])
    found = checked(model)
    part_ = found.subgraph(0)
    assert part_ is not None
    assert part_.offsets[x] != part_.offsets[whole]


def test_scratch_of_kernels_has_its_place() -> None:
    b = Builder()
    x = b.input("x", [1, 8, 8, 4], TensorType.INT8, quantized(0.5))
    axes = b.constant("axes", [1, 2])
    model = b.model([b.op(Op.MEAN, [x, axes], name="y", shape=[1, 4], quantization=quantized(0.25))])
    found = checked(model)
    assert found.arenas[0].scratch
    assert found.peak == head_bytes(model)
