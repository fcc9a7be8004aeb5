"""The bounds on one output, given what the two models and the original's other opinions say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from litefuse.difference import Output, OutputDifference, Run, step_of
from litefuse.errors import CheckError
from litefuse.fusions import Numerics
from litefuse.graph import Graph
from litefuse.graph.build import Builder, quantized
from litefuse.inputs import Case
from litefuse.interface import Port
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op

EXACT, REASSOCIATED, QUANTIZED, REPAIR = Numerics.EXACT, Numerics.REASSOCIATED, Numerics.QUANTIZED, Numerics.REPAIR
ORDINARY, EDGE, EXTREME = Case("normal", ordinary=True), Case("zeros"), Case("nan", extreme=True)
INT8 = {"type": TensorType.INT8, "scale": (0.5,), "zero_point": (0,)}


def output(numerics: Numerics = REASSOCIATED, *, step: float = 0.0, state: bool = False, **port: Any) -> Output:
    fields: dict[str, Any] = {"type": TensorType.FLOAT32, "shape": (4,), "signature": (4,)}
    fields |= {"scale": (), "zero_point": (), "axis": 0} | port
    return Output(Port(name="y", tensor=0, **fields), "", numerics, step=step, state=state)


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


def judged(
    subject: Output,
    reference: Any,
    got: Any,
    second: Any = None,
    *,
    case: Case = ORDINARY,
    xnnpack: bool = False,
    opinions: Iterable[Any] = (),
    calm: Any = (),
) -> OutputDifference:
    subject.add(Run(case, xnnpack, reference, got, second, calm), opinions)
    return subject.judge()


class TestNoise:
    REFERENCE = floats(1, 0.5, -1, 0)

    def moved(self, by: float) -> Any:
        return self.REFERENCE + floats(0, by, 0, 0)

    @pytest.mark.parametrize(
        ("kernel_noise", "error", "ok"),
        [
            (0.0, 0.9e-5, True),
            (0.0, 1.1e-5, False),
            (1e-5, 0.9e-4, True),  # ten times as much
            (1e-5, 1.2e-4, False),
            (3e-4, 0.9e-3, True),  # up to a thousandth
            (3e-4, 1.1e-3, False),
        ],
    )
    @pytest.mark.parametrize("xnnpack", [True, False])
    def test_small_noise_counts_tenfold(self, kernel_noise: float, error: float, ok: bool, xnnpack: bool) -> None:
        result = judged(output(), self.REFERENCE, self.moved(error), self.moved(kernel_noise), xnnpack=xnnpack)
        assert result.ok is ok
        assert result.max_rel == pytest.approx(error, rel=0.02)

    @pytest.mark.parametrize(
        ("numerics", "state", "xnnpack", "ok"),
        [
            (REASSOCIATED, False, True, True),
            (REASSOCIATED, False, False, False),  # builtin kernels show whether a rounding fell the other way
            (REASSOCIATED, True, False, True),  # with state that cannot be known
            (REPAIR, False, False, False),
            (QUANTIZED, False, False, True),
            (EXACT, False, True, True),
            (EXACT, False, False, False),
        ],
    )
    def test_who_is_held_to_what_where_kernels_differ_much(
        self, numerics: Numerics, state: bool, xnnpack: bool, ok: bool
    ) -> None:
        subject = output(numerics, state=state)
        assert judged(subject, self.REFERENCE, self.moved(0.05), self.moved(0.03), xnnpack=xnnpack).ok is ok
        worse = output(numerics, state=state)
        assert not judged(worse, self.REFERENCE, self.moved(0.07), self.moved(0.03), xnnpack=xnnpack).ok

    def test_a_rounding_that_falls_the_other_way_is_excused(self) -> None:
        opinions = [self.moved(1e-7), self.moved(0.02)]
        assert judged(output(), self.REFERENCE, self.moved(0.03), self.moved(0.03), opinions=opinions).ok
        assert not judged(output(), self.REFERENCE, self.moved(0.05), self.moved(0.03), opinions=opinions).ok

    def test_an_excuse_of_that_kind_counts_for_other_runs(self) -> None:
        subject = output()
        judged(subject, self.REFERENCE, self.moved(0.03), opinions=[self.moved(0.02)])
        assert judged(subject, self.REFERENCE, self.moved(0.03), opinions=[self.moved(0)]).ok

    def test_opinions_are_asked_for_only_when_needed(self) -> None:
        def opinions() -> Iterator[Any]:
            for _ in range(8):
                asked.append(1)
                yield self.moved(2e-6)

        asked: list[int] = []
        subject = output()
        judged(subject, self.REFERENCE, self.moved(0.9e-5), opinions=opinions())
        assert len(asked) == 0
        judged(subject, self.REFERENCE, self.moved(1.5e-5), opinions=opinions())
        assert len(asked) == 1
        for _ in range(9):
            judged(subject, self.REFERENCE, self.moved(0.5), opinions=opinions())
        assert len(asked) == 1 + 3 * 8  # hopeless after three

    def test_an_edge_case_does_not_loosen_the_others(self) -> None:
        subject = output()
        assert judged(subject, self.REFERENCE, self.moved(0.9e-4), self.moved(1e-5), case=EDGE).ok
        assert not judged(subject, self.REFERENCE, self.moved(0.9e-4)).ok

    def test_what_cancels_is_measured_by_what_it_is_made_of(self) -> None:
        subject = output()
        judged(subject, floats(100, 0, 0, 0), floats(100, 0, 0, 0))
        assert judged(subject, floats(1e-6, 0, 0, 0), floats(2e-6, 0, 0, 0), case=EDGE).ok
        assert not judged(subject, floats(1e-6, 0, 0, 0), floats(1e-3, 0, 0, 0), case=EDGE).ok

    def test_steps(self) -> None:
        x = np.array([10, 20, 30, 40], np.int8)
        for numerics in (REASSOCIATED, QUANTIZED):
            assert judged(output(numerics, **INT8), x, x + np.int8(1)).ok
            assert not judged(output(numerics, **INT8), x, x + np.int8(2)).ok
            assert judged(output(numerics, **INT8), x, x + np.int8(6), x + np.int8(3), xnnpack=True).ok
            assert not judged(output(numerics, **INT8), x, x + np.int8(7), x + np.int8(3), xnnpack=True).ok
        assert judged(output(QUANTIZED, **INT8), x, x + np.int8(6), x + np.int8(3)).ok
        assert not judged(output(REASSOCIATED, **INT8), x, x + np.int8(6), x + np.int8(3)).ok
        assert judged(output(REASSOCIATED, **INT8), x, x + np.int8(6), opinions=[x + np.int8(3)]).ok

    def test_steps_per_channel_in_real_units(self) -> None:
        x = np.array([[10, 20], [30, 40]], np.int8)
        y = x + np.array([[1, 0], [0, 0]], np.int8)
        subject = output(type=TensorType.INT8, scale=(0.5, 8.0), zero_point=(0, 0), axis=1)
        result = judged(subject, x, y)
        assert (result.max_lsb, result.max_abs, result.max_rel) == (1, 0.5, pytest.approx(0.5 / 320))

    def test_loud_kernels_are_noted(self) -> None:
        for numerics, noted in ((QUANTIZED, True), (REASSOCIATED, False), (EXACT, False)):
            subject = output(numerics)
            judged(subject, self.REFERENCE, self.REFERENCE, self.moved(0.3))
            assert any("only gross differences would show" in note for note in subject.notes()) is noted


class TestNonFinite:
    GOOD, BAD = floats(1, 2, 3, 4), floats(1, 2, np.nan, 4)

    def test_it_counts_in_every_class(self) -> None:
        for numerics in (EXACT, REASSOCIATED, QUANTIZED):
            for reference, got in ((self.GOOD, self.BAD), (self.BAD, self.GOOD)):
                result = judged(output(numerics), reference, got)
                assert not result.ok
                assert result.nonfinite == 1

    def test_the_same_is_equal(self) -> None:
        assert judged(output(EXACT), self.BAD, self.BAD.copy()).ok
        other = self.BAD.copy()
        other.view(np.uint32)[2] ^= 1 << 31
        assert np.isnan(other[2])
        assert judged(output(EXACT), self.BAD, other).ok

    def test_infinities_have_a_sign(self) -> None:
        assert not judged(output(), floats(np.inf), floats(-np.inf)).ok
        assert not judged(output(), floats(np.inf), floats(np.nan)).ok
        # What builtin kernels make of an infinity.
        assert judged(output(), floats(np.inf), floats(np.finfo(np.float32).max)).ok

    def test_a_repair_may_only_mend(self) -> None:
        assert judged(output(REPAIR), self.BAD, self.GOOD).ok
        assert not judged(output(REPAIR), self.GOOD, self.BAD).ok
        assert not judged(output(REPAIR), self.BAD, floats(1, 2, 3, 5)).ok

    def test_extreme_inputs_count_where_they_make_no_difference(self) -> None:
        calm = floats(1, 2, 7, 4)
        for numerics in Numerics:
            subject = output(numerics)
            assert judged(subject, self.BAD, floats(1, 2, 9, 4), case=EXTREME, calm=[calm]).ok
            assert judged(subject, self.GOOD, self.BAD, case=EXTREME, calm=[calm]).ok
            assert any("2 elements are finite in one model only" in note for note in subject.notes())
            assert judged(output(numerics), self.GOOD, floats(1, 2, 1e30, 4), case=EXTREME, calm=[calm]).ok
            for got in (floats(1, np.nan, 3, 4), floats(1, 9, 3, 4)):
                assert not judged(output(numerics), self.GOOD, got, case=EXTREME, calm=[calm]).ok
            assert judged(output(numerics), self.GOOD, self.BAD, case=EXTREME).ok

    def test_extreme_inputs_that_make_a_difference_to_some_numbers_do_not_count(self) -> None:
        # As x * relu6(x + 3) gives 0 for minus infinity by way of a clamp, and for 0, but not for 1.
        calm = [floats(1, 0, 5, 4), floats(1, 0.5, 5, 4)]
        assert judged(output(), floats(1, 0, 3, 4), floats(1, np.nan, 3, 4), case=EXTREME, calm=calm).ok

    def test_extreme_inputs_of_integer_outputs(self) -> None:
        x, y, calm = (np.array(v, np.int8) for v in ([1, 2, 90], [1, 2, -90], [1, 2, 3]))
        for port in (INT8, {"type": TensorType.INT8}):
            assert judged(output(**port), x, y, case=EXTREME, calm=[calm]).ok
            assert not judged(output(**port), x, y + np.int8(5), case=EXTREME, calm=[calm]).ok

    def test_complex_numbers(self) -> None:
        x = np.array([1 + 2j, 3], np.complex64)
        subject = output(type=TensorType.COMPLEX64)
        assert judged(subject, x, x * np.complex64(1.000001)).ok
        assert not judged(subject, x, x + np.complex64(0.1j)).ok
        assert not judged(subject, x, np.array([1 + 2j, complex(3, np.nan)], np.complex64)).ok


class TestOtherOutputs:
    def test_undecided_elements(self) -> None:
        x, y = np.array([1, 1, 2, 3]), np.array([1, 0, 0, 3])
        port = {"type": TensorType.INT64}
        assert not judged(output(**port), x, y).ok
        assert judged(output(**port), x, y, np.array([9, 9, 2, 3])).ok
        one_by_one = [np.array([9, 1, 2, 3]), np.array([1, 9, 2, 3])]
        assert judged(output(**port), x, y, opinions=one_by_one).ok
        assert not judged(output(**port), x, y, opinions=one_by_one[:1]).ok
        assert not judged(output(EXACT, **port), x, y, np.array([9, 9, 2, 3]), opinions=one_by_one).ok

    def test_what_cannot_be_compared(self) -> None:
        x = floats(1, 2)
        with pytest.raises(CheckError, match=r"output `y`, case normal, the builtin kernels: float32 of shape \(3,\)"):
            judged(output(), x, floats(1, 2, 3), x)
        with pytest.raises(CheckError, match="gives out only the original's"):
            judged(output(), x, None)
        subject = output()
        assert judged(subject, None, None).ok
        assert judged(subject, x, floats(1, 2, 3), floats(1, 2, 3)).ok
        notes = list(subject.notes())
        assert any("does not hand it over in 1 runs" in note for note in notes)
        assert any("its size depends on the kernels in 1 runs" in note for note in notes)


def test_the_step_of_a_dequantised_output() -> None:
    b = Builder()
    x = b.input("x", [1, 4], TensorType.INT8, quantized(0.25))
    wide = b.input("wide", [1, 4], TensorType.INT8, quantized(2.0))
    parts = [b.op(Op.DEQUANTIZE, [t], type=TensorType.FLOAT32, version=2, shape=[1, 4]) for t in (x, wide)]
    joined = b.op(Op.CONCATENATION, parts, shape=[2, 4])
    flat = b.op(Op.RESHAPE, [joined, b.constant("shape", np.array([8], np.int32))], shape=[8])
    computed = b.op(Op.EXP, [flat], shape=[8])
    graph = Graph(b.model([flat, computed]))
    assert step_of(graph, parts[0]) == 0.25
    assert step_of(graph, flat) == 2.0
    assert step_of(graph, computed) == 0.0


def test_a_step_of_floats_that_were_rounded() -> None:
    scale = np.float32(0.05)
    numbers = (np.arange(256) * scale).astype(np.float32)
    place = int(np.argmax(np.diff(numbers.astype(np.float64))))
    x, y = numbers[place : place + 1], numbers[place + 1 : place + 2]
    assert float(y[0]) - float(x[0]) > float(scale)
    assert judged(output(QUANTIZED, step=float(scale)), x, y).ok
    assert not judged(output(QUANTIZED, step=float(scale)), x, y + scale).ok


class TestDistribution:
    def test_floats_go_by_powers_of_ten(self) -> None:
        subject = output()
        judged(subject, floats(2, 1, -1, 0), floats(2, 1 + 1e-3, -1, 4e-9))
        result = judged(subject, floats(4, 1, -1, 0), floats(4, 1, -1, 3))
        assert result.distribution is not None
        assert (result.distribution.measure, result.distribution.equal) == ("relative", 5)
        shown = [(pytest.approx(low), pytest.approx(high), n) for low, high, n in result.distribution.bins]
        assert shown == [(1e-9, 1e-8, 1), (1e-4, 1e-3, 1), (0.1, 1.0, 1)]

    def test_steps_go_by_powers_of_two(self) -> None:
        result = judged(output(**INT8), np.array([0, 5, 9, -128], np.int8), np.array([0, 6, 12, 127], np.int8))
        assert result.distribution == ("steps", 1, [(0.0, 1.0, 1), (2.0, 4.0, 1), (128.0, 256.0, 1)])

    def test_other_elements_differ_or_not(self) -> None:
        subject = output(type=TensorType.INT32)
        result = judged(subject, np.array([1, 2, 3, 4], np.int32), np.array([1, 2, 9, 4], np.int32))
        assert result.distribution == ("elements", 3, [(0.0, 1.0, 1)])

    def test_special_values_are_left_out(self) -> None:
        subject = output()
        assert judged(subject, floats(1, 2, 3, 4), floats(1, 2, 3, 5), case=EXTREME).distribution is None
        infinite = judged(subject, floats(np.inf, 1, np.nan, 1), floats(np.inf, 1, np.nan, 1))
        assert infinite.distribution == ("relative", 2, [])

    def test_what_is_taken_back_counts_no_more(self) -> None:
        subject = output()
        judged(subject, floats(1, 1, 1, 1), floats(1, 1, 1, 1))
        before = subject.snapshot()
        judged(subject, floats(1, 1, 1, 1), floats(1, 1, 1, 2))
        subject.restore(before)
        assert subject.distribution() == ("relative", 4, [])
