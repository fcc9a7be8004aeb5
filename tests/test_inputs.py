"""The values that models are run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litefuse.graph.build import Builder, quantized
from litefuse.inputs import CASES, Case, Feed, Graphs, cases, jittered
from litefuse.interface import entries
from litefuse.schema.enums import TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op
from litefuse.schema.tables import QuantizationParameters, SubGraph, Tensor

SHAPE = (32, 32)


def feed_of(model: Model, number: int = 0) -> Feed:
    (entry,) = entries(model)
    return Feed(entry.inputs[number], entry, Graphs(model))


def feed(type: TensorType = TensorType.FLOAT32, quantization: Any = None, name: str = "x") -> Feed:
    b = Builder()
    x = b.input(name, SHAPE, type, quantization)
    return feed_of(b.model([b.op(Op.RESHAPE, [x, b.constant("shape", np.array([-1], np.int32))], shape=[1024])]))


def values(subject: Feed, case: str, seed: int = 0) -> Any:
    return subject.values(next(c for c in CASES if c.name == case), SHAPE, seed)


class TestValues:
    def test_they_depend_on_seed_name_and_case_only(self) -> None:
        assert np.array_equal(values(feed(), "normal"), values(feed(), "normal"))
        assert not np.array_equal(values(feed(), "normal"), values(feed(), "normal", seed=1))
        assert not np.array_equal(values(feed(), "normal"), values(feed(name="z"), "normal"))
        assert not np.array_equal(values(feed(), "unit"), np.abs(values(feed(), "symmetric")))

    @pytest.mark.parametrize("type", [TensorType.FLOAT32, TensorType.FLOAT16, TensorType.FLOAT64, TensorType.COMPLEX64])
    @pytest.mark.parametrize("case", CASES)
    def test_floats(self, type: TensorType, case: Case) -> None:
        value = feed(type).values(case, SHAPE, 0)
        assert value.shape == SHAPE
        assert value.dtype.kind == ("c" if type == TensorType.COMPLEX64 else "f")
        if type == TensorType.FLOAT32:
            assert np.isfinite(value).all() == (case.name not in ("nan", "infinite"))

    @pytest.mark.parametrize("case", [case for case in CASES if case.extreme])
    def test_extreme_values_can_be_left_out(self, case: Case) -> None:
        value, calm = (feed().values(case, SHAPE, 0, calm=calm) for calm in (None, 0.0))
        extreme = ~(np.abs(value) < 1e6)
        assert 0 < np.count_nonzero(extreme) < value.size / 20
        assert np.array_equal(calm, np.where(extreme, np.float32(0), value))

    def test_magnitudes(self) -> None:
        largest = {case.name: np.nanmax(np.abs(values(feed(), case.name))) for case in CASES}
        assert largest["zeros"] == 0
        assert largest["ones"] == largest["alternating"] == 1
        assert largest["denormal"] < np.finfo(np.float32).tiny < largest["tiny"] < 1e-20
        assert largest["unit"] < 1 < largest["normal"] < 10 < largest["pixels"] < largest["large"] < 1e6
        assert largest["huge"] > 1e38

    @pytest.mark.parametrize(
        ("type", "low", "high"),
        [
            (TensorType.INT8, -128, 127),
            (TensorType.UINT8, 0, 255),
            (TensorType.INT16, -32768, 32767),
            (TensorType.INT4, -8, 7),
        ],
    )
    def test_quantised_integers_use_their_whole_range(self, type: TensorType, low: int, high: int) -> None:
        subject = feed(type, quantized(0.5, 3))
        assert values(subject, "normal").min() < 0.9 * low + 1
        assert values(subject, "normal").max() > 0.9 * high - 1
        assert set(values(subject, "ones").flat) == {high}
        assert set(values(subject, "large").flat) == {low}
        assert set(values(subject, "alternating").flat) == {low, high}
        assert set(values(subject, "zeros").flat) == {3}

    def test_plain_integers_are_small(self) -> None:
        for type in (TensorType.INT32, TensorType.INT64, TensorType.UINT32):
            drawn = values(feed(type), "normal")
            assert set(drawn.flat) == set(range(8))
            assert set(values(feed(type), "zeros").flat) == {0}

    def test_booleans_and_strings(self) -> None:
        assert values(feed(TensorType.BOOL), "normal").dtype == bool
        assert set(values(feed(TensorType.BOOL), "normal").flat) == {False, True}
        text = values(feed(TensorType.STRING), "normal")
        assert text.shape == SHAPE
        assert len({len(t) for t in text.flat}) > 4
        assert set(values(feed(TensorType.STRING), "zeros").flat) == {b""}

    def test_types_without_values(self) -> None:
        assert [feed(t).possible for t in (TensorType.RESOURCE, TensorType.VARIANT, TensorType.BFLOAT16)] == [False] * 3
        assert feed(TensorType.INT4).possible

    def test_integers_need_fewer_cases(self) -> None:
        assert cases([feed(), feed(TensorType.INT8)]) == CASES
        assert 4 < len(cases([feed(TensorType.INT8)])) < len(CASES)
        assert len(cases([])) == 1

    def test_unknown_dimensions(self) -> None:
        b = Builder()
        x = b.input("x", [-1, -1, 4])
        subject = feed_of(b.model([b.op(Op.ABS, [x])]))
        assert subject.shape(3, None) == (3, 1, 4)
        assert subject.shape(2, 9) == (2, 9, 4)

    def test_jitter_moves_real_numbers_only(self) -> None:
        rng = np.random.default_rng(0)
        value = values(feed(), "large")
        moved = jittered(feed(), value, 1e-4, rng)
        assert moved.dtype == value.dtype
        assert 0 < np.abs(moved - value).max() <= 1.01e-4 * np.abs(value).max()
        assert 0 < np.abs(jittered(feed(), values(feed(), "zeros"), 1e-4, rng)).max() <= 1e-4
        integers = values(feed(TensorType.INT32), "normal")
        assert jittered(feed(TensorType.INT32), integers, 1e-4, rng) is integers


def lookup(kind: Op, b: Builder, x: int) -> int:
    table = b.constant("table", np.zeros((10, 3, 5), np.float32))
    if kind is Op.EMBEDDING_LOOKUP:
        return b.op(kind, [x, table], shape=[1], type=TensorType.FLOAT32)
    if kind is Op.ONE_HOT:
        on, off = b.constant("on", 1.0), b.constant("off", 0.0)
        return b.op(kind, [x, b.constant("depth", np.int32(10)), on, off], shape=[1], type=TensorType.FLOAT32)
    return b.op(kind, [table, x], shape=[1], type=TensorType.FLOAT32, **({} if kind is Op.GATHER_ND else {"axis": 0}))


class TestIndices:
    def limit(self, make: Callable[[Builder, int], int], type: TensorType = TensorType.INT32) -> int | None:
        b = Builder()
        x = b.input("x", [2, 2], type)
        subject = feed_of(b.model([make(b, x)]))
        if subject.limit is not None:
            drawn = values(subject, "normal")
            assert (drawn.min(), drawn.max()) == (0, subject.limit - 1)
            assert values(subject, "ones").max() == subject.limit - 1
        return subject.limit

    @pytest.mark.parametrize("kind", [Op.GATHER, Op.EMBEDDING_LOOKUP, Op.ONE_HOT])
    def test_they_stay_within_the_table(self, kind: Op) -> None:
        assert self.limit(lambda b, x: lookup(kind, b, x)) == 10

    def test_the_smallest_dimension_that_is_indexed(self) -> None:
        assert self.limit(lambda b, x: lookup(Op.GATHER_ND, b, x)) == 3

    def test_the_axis_matters(self) -> None:
        for axis, limit in ((1, 3), (2, 5), (-1, 5), (-3, 10)):

            def gather(b: Builder, x: int, axis: int = axis) -> int:
                return b.op(Op.GATHER, [b.constant("t", np.zeros((10, 3, 5), np.float32)), x], shape=[1], axis=axis)

            assert self.limit(gather) == limit

    def test_indices_that_pass_through_other_operators(self) -> None:
        def make(b: Builder, x: int) -> int:
            x = b.op(Op.CAST, [x], shape=[2, 2], type=TensorType.INT32)
            x = b.op(Op.RESHAPE, [x, b.constant("shape", np.array([4], np.int32))], shape=[4])
            negative = b.op(Op.LESS, [x, b.constant("zero", np.int32(0))], shape=[4], type=TensorType.BOOL)
            wrapped = b.op(Op.ADD, [x, b.constant("rows", np.int32(10))], shape=[4])
            return lookup(Op.GATHER, b, b.op(Op.SELECT, [negative, wrapped, x], shape=[4], type=TensorType.INT32))

        assert self.limit(make) == 10
        assert self.limit(make, TensorType.FLOAT32) == 10

    def test_the_table_is_not_an_index(self) -> None:
        def make(b: Builder, x: int) -> int:
            return b.op(Op.GATHER, [x, b.constant("index", np.array([0], np.int32))], shape=[1, 2])

        assert self.limit(make) is None

    def test_indices_within_the_branches_of_an_if(self) -> None:
        b = Builder()
        condition = b.input("condition", [1], TensorType.BOOL)
        x = b.input("x", [4], TensorType.INT32)
        model = b.model([b.op(Op.IF, [condition, x], shape=[4, 3, 5], then_subgraph_index=1, else_subgraph_index=1)])
        branch = Builder()
        inside = branch.input("x", [4], TensorType.INT32)
        model.subgraphs += branch.model([lookup(Op.GATHER, branch, inside)]).subgraphs
        model.operator_codes = [*model.operator_codes, *branch.model([]).operator_codes]
        for op in model.subgraphs[1].operators:
            op.opcode_index += 1
        assert feed_of(model, 1).limit == 10
        assert feed_of(model, 0).limit is None


class TestRanges:
    def test_of_the_input_itself(self) -> None:
        q = QuantizationParameters(min=np.array([-4], np.float32), max=np.array([12], np.float32))
        drawn = values(feed(quantization=q), "unit")
        assert -4 <= drawn.min() < -3.5
        assert 11.5 < drawn.max() <= 12

    def test_of_the_quantize_that_reads_it(self) -> None:
        b = Builder()
        x = b.input("x", SHAPE)
        model = b.model([b.op(Op.QUANTIZE, [x], shape=SHAPE, type=TensorType.INT8, quantization=quantized(0.5, -28))])
        drawn = values(feed_of(model), "unit")
        assert -50 <= drawn.min() < -49
        assert 77 < drawn.max() <= 77.5

    def test_otherwise_from_0_to_1(self) -> None:
        assert feed().range == (0.0, 1.0)
        useless = QuantizationParameters(min=np.array([0], np.float32), max=np.array([0], np.float32))
        assert feed(quantization=useless).range == (0.0, 1.0)


def test_an_input_that_nothing_reads() -> None:
    model = Model(version=3, subgraphs=[SubGraph(tensors=[Tensor(name="x", shape=[2])], inputs=[0], outputs=[0])])
    assert feed_of(model).limit is None
