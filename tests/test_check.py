"""The comparison of two models: what passes, what fails, and what it says when it cannot tell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litefuse.check import CheckResult, check, run_model
from litefuse.difference import OutputDifference
from litefuse.errors import CheckError, SchemaError
from litefuse.fusions import Numerics
from litefuse.graph.build import Builder, quantized
from litefuse.runtime import runtime
from litefuse.schema import deepcopy, read, to_bytes, write
from litefuse.schema.enums import TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op, operator_code
from litefuse.schema.tables import Operator, SignatureDef, TensorMap
from litefuse.schema.writer import as_bytes

EXACT, REASSOCIATED, QUANTIZED, REPAIR = Numerics.EXACT, Numerics.REASSOCIATED, Numerics.QUANTIZED, Numerics.REPAIR
CASES = 14


def only(result: CheckResult) -> OutputDifference:
    (output,) = result.outputs
    return output


def scaled_by(factor: Any, shape: tuple[int, ...] = (1, 16)) -> Model:
    """y = x * factor."""
    b = Builder()
    x = b.input("x", shape)
    return b.model([b.op(Op.MUL, [x, b.constant("factor", np.asarray(factor, np.float32))], name="y")])


def dense(seed: int = 0) -> Model:
    """Two fully connected layers."""
    rng = np.random.default_rng(seed)
    b = Builder()
    x = b.input("x", [1, 64])
    for n, (outputs, inputs) in enumerate(((32, 64), (8, 32))):
        weights = b.constant(f"weights{n}", rng.standard_normal((outputs, inputs)).astype(np.float32))
        bias = b.constant(f"bias{n}", rng.standard_normal(outputs).astype(np.float32))
        x = b.op(Op.FULLY_CONNECTED, [x, weights, bias], name=f"layer{n}", shape=[1, outputs])
    return b.model([x], signature="serve")


def changed(model: Model, tensor: str, change: Callable[[Any], Any]) -> Model:
    """A copy in which a float32 constant is another."""
    copy = deepcopy(model)
    table = next(t for s in copy.subgraphs for t in s.tensors if t.name == tensor)
    value = np.frombuffer(as_bytes(copy.buffers[table.buffer].data), np.float32)
    copy.buffers[table.buffer].data = as_bytes(np.asarray(change(value.copy()), np.float32))
    return copy


def with_custom(model: Model, name: str = "Unheard") -> Model:
    """A copy whose first operator is of a kind that no runtime has."""
    copy = deepcopy(model)
    copy.operator_codes.append(operator_code(Op.CUSTOM, custom_code=name))
    first = copy.subgraphs[0].operators[0]
    copy.subgraphs[0].operators[0] = Operator(
        inputs=first.inputs, outputs=first.outputs, opcode_index=len(copy.operator_codes) - 1
    )
    return copy


class TestFloats:
    @pytest.mark.parametrize("numerics", Numerics)
    def test_a_model_equals_itself(self, numerics: Numerics) -> None:
        result = check(dense(), dense(), numerics=numerics)
        assert result.ok
        assert result.skipped is None
        assert result.runs == CASES
        assert result.notes == []
        output = only(result)
        assert (output.signature, output.output, output.type) == ("serve", "layer1", "float32")
        assert (output.max_abs, output.max_rel, output.max_ulp, output.max_lsb, output.nonfinite) == (0, 0, 0, None, 0)

    @pytest.mark.parametrize(("difference", "ok"), [(0.9e-5, True), (1.2e-5, False)])
    def test_the_floor_is_a_hundred_thousandth_of_the_largest_value(self, difference: float, ok: bool) -> None:
        result = check(scaled_by(1.0), scaled_by(1.0 + difference))
        assert result.ok is ok
        assert only(result).max_rel == pytest.approx(difference, rel=0.02)
        assert only(result).bound == "1.0e-05 of the largest value"

    def test_exact_means_the_same_bits(self) -> None:
        one_ulp = np.nextafter(np.float32(3), np.float32(4))
        assert check(scaled_by(3.0), scaled_by(one_ulp)).ok
        result = check(scaled_by(3.0), scaled_by(one_ulp), numerics=EXACT)
        assert not result.ok
        assert only(result).max_ulp == 2
        assert "the same bits with the builtin kernels" in only(result).bound

    def test_exact_tells_the_zeros_apart(self) -> None:
        assert not check(scaled_by(0.0), scaled_by(-0.0), numerics=EXACT).ok
        assert check(scaled_by(0.0), scaled_by(-0.0)).ok

    def test_folding_errors_pass_and_wrong_weights_do_not(self) -> None:
        model = dense()
        rng = np.random.default_rng(1)
        folded = changed(model, "weights0", lambda w: w * (1 + 2.0**-24 * rng.integers(-1, 2, w.shape)))
        assert check(model, folded).ok
        wrong = changed(model, "weights0", lambda w: np.where(np.arange(w.size) == 77, w * 1.01, w))
        assert not check(model, wrong).ok

    def test_one_of_several_outputs_is_named(self) -> None:
        def model(second: float) -> Model:
            b = Builder()
            x = b.input("x", [1, 4])
            return b.model([b.op(Op.MUL, [x, b.constant(n, f)], name=n) for n, f in (("a", 2.0), ("b", second))])

        result = check(model(3.0), model(3.1))
        assert [(o.output, o.ok) for o in result.outputs] == [("a", True), ("b", False)]

    def test_what_is_finite_must_stay_so(self) -> None:
        good, bad = scaled_by([1.0] * 16), scaled_by([1.0] * 15 + [np.nan])
        for numerics in Numerics:
            result = check(good, bad, numerics=numerics)
            assert not result.ok
            assert only(result).nonfinite > 0

    def test_a_repair_may_make_finite_what_was_not(self) -> None:
        bad, good = scaled_by([1.0] * 15 + [np.inf]), scaled_by([1.0] * 16)
        assert not check(bad, good).ok
        result = check(bad, good, numerics=REPAIR)
        assert result.ok
        assert any("were not finite in the original" in note for note in result.notes)
        assert not check(good, bad, numerics=REPAIR).ok

    def test_the_same_values_everywhere_are_noted(self) -> None:
        b = Builder()
        x = b.input("x", [1, 4])
        model = b.model([b.op(Op.SHAPE, [x], name="y", type=TensorType.INT32, out_type=2)])
        result = check(model, model)
        assert result.ok
        assert any("the same values whatever the inputs" in note for note in result.notes)

    def test_float16(self) -> None:
        def model(factor: float) -> Model:
            b = Builder()
            x = b.input("x", [1, 8], TensorType.FLOAT16)
            y = b.op(Op.CAST, [x], type=TensorType.FLOAT32, in_data_type=10, out_data_type=0)
            y = b.op(Op.MUL, [y, b.constant("factor", factor)])
            return b.model([b.op(Op.CAST, [y], name="y", type=TensorType.FLOAT16, in_data_type=0, out_data_type=10)])

        assert only(check(model(1.0), model(1.0))).type == "float16"
        assert check(model(1.0), model(1.0005)).ok
        assert not check(model(1.0), model(1.01)).ok


class TestIntegers:
    @staticmethod
    def shifted(steps: int, *, dequantize: bool = False) -> Model:
        """q + steps, in int8 with a scale of one half."""
        q = quantized(0.5, 3)
        b = Builder()
        x = b.input("x", [1, 64], TensorType.INT8, q)
        offset = b.constant("offset", np.full((1, 64), 3 + steps, np.int8), q)
        y = b.op(Op.ADD, [x, offset], name="y", quantization=q, version=2)
        if dequantize:
            y = b.op(Op.DEQUANTIZE, [y], name="real", type=TensorType.FLOAT32, version=2)
        return b.model([y])

    @pytest.mark.parametrize("numerics", [QUANTIZED, REASSOCIATED])
    def test_one_step_is_allowed(self, numerics: Numerics) -> None:
        one = check(self.shifted(0), self.shifted(1), numerics=numerics)
        assert one.ok
        assert (only(one).max_lsb, only(one).max_abs, only(one).max_ulp) == (1, 0.5, None)
        assert only(one).bound == "1 step"
        two = check(self.shifted(0), self.shifted(2), numerics=numerics)
        assert not two.ok
        assert (only(two).max_lsb, only(two).max_abs) == (2, 1.0)

    def test_exact_allows_no_step(self) -> None:
        assert check(self.shifted(1), self.shifted(1), numerics=EXACT).ok
        assert not check(self.shifted(0), self.shifted(1), numerics=EXACT).ok

    def test_a_dequantized_output_may_be_one_step_off(self) -> None:
        original = self.shifted(0, dequantize=True)
        result = check(original, self.shifted(1, dequantize=True), numerics=QUANTIZED)
        assert result.ok
        assert only(result).type == "float32"
        assert only(result).bound == "one quantisation step of 0.5"
        assert not check(original, self.shifted(2, dequantize=True), numerics=QUANTIZED).ok

    @staticmethod
    def largest(kind: Op = Op.ARG_MAX, bias: float = 0.0) -> Model:
        """The index of the largest of ten, for 32 positions, after adding a bias to the third."""
        b = Builder()
        x = b.input("x", [1, 32, 10])
        x = b.op(Op.ADD, [x, b.constant("bias", np.array([0, 0, bias] + [0] * 7, np.float32))])
        axis = b.constant("axis", np.int32(2))
        return b.model([b.op(kind, [x, axis], name="index", type=TensorType.INT32, output_type=2)])

    def test_ties_may_fall_either_way(self) -> None:
        result = check(self.largest(), self.largest(bias=1e-9))
        assert result.ok
        assert only(result).max_abs > 0
        assert "undecided" in only(result).bound
        assert not check(self.largest(), self.largest(bias=1e-9), numerics=EXACT).ok

    def test_other_indices_may_not_differ(self) -> None:
        assert only(check(self.largest(), self.largest())).bound == "equal"
        assert not check(self.largest(), self.largest(bias=0.2)).ok
        assert not check(self.largest(), self.largest(Op.ARG_MIN)).ok

    def test_booleans(self) -> None:
        def model(kind: Op) -> Model:
            b = Builder()
            x = b.input("x", [1, 64])
            return b.model([b.op(kind, [x, b.constant("zero", 0.25)], name="y", type=TensorType.BOOL)])

        assert check(model(Op.GREATER), model(Op.GREATER), numerics=EXACT).ok
        assert only(check(model(Op.GREATER), model(Op.GREATER))).type == "bool"
        assert not check(model(Op.GREATER), model(Op.LESS)).ok

    def test_strings(self) -> None:
        def model(index: int) -> Model:
            b = Builder()
            x = b.input("x", [3], TensorType.STRING)
            return b.model(
                [b.op(Op.GATHER, [x, b.constant("index", np.array([index, 1], np.int32))], name="y", version=2)]
            )

        result = check(model(0), model(0), numerics=EXACT)
        assert result.ok
        assert only(result).type == "string"
        assert not check(model(0), model(2)).ok


class TestInterface:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda m: setattr(m.subgraphs[0].tensors[0], "name", "z"), r"the inputs are \['z'\] instead of \['x'\]"),
            (lambda m: setattr(m.subgraphs[0].tensors[0], "shape", [2, 64]), r"`x` of the inputs has shape \[2, 64\]"),
            (
                lambda m: setattr(m.subgraphs[0].tensors[0], "shape_signature", [-1, 64]),
                r"has shape \[1, 64\] \(\[-1, 64\]\) instead of \[1, 64\]",
            ),
            (
                lambda m: setattr(m.subgraphs[0].tensors[0], "type", TensorType.INT32),
                "has type INT32 instead of FLOAT32",
            ),
            (
                lambda m: setattr(m.subgraphs[0].tensors[-1], "quantization", quantized(0.25, 1)),
                r"`layer1` of the outputs has quantisation \{'scale': \[0.25\].* instead of none",
            ),
            (lambda m: setattr(m, "signature_defs", []), r"the signatures are \[\] instead of \['serve'\]"),
            (
                lambda m: setattr(m.signature_defs[0].outputs[0], "name", "other"),
                r"the outputs of signature `serve` are \['other'\] instead of \['layer1'\]",
            ),
            (lambda m: m.subgraphs[0].outputs.append(3), "the outputs are"),
        ],
    )
    def test_differences_are_named(self, change: Callable[[Model], None], message: str) -> None:
        other = deepcopy(dense())
        change(other)
        with pytest.raises(CheckError, match=message):
            check(dense(), other)

    def test_a_reference_to_nothing(self) -> None:
        broken = deepcopy(dense())
        broken.subgraphs[0].outputs = [99]
        with pytest.raises(SchemaError, match="does not exist"):
            check(broken, broken)
        with pytest.raises(SchemaError, match="no subgraph"):
            check(Model(version=3), Model(version=3))


class TestSeveralWaysIn:
    @staticmethod
    def two_signatures(second: float) -> Model:
        model = scaled_by(2.0)
        other = scaled_by(second)
        table = next(t for t in other.subgraphs[0].tensors if t.name == "factor")
        model.buffers.append(other.buffers[table.buffer])
        table.buffer = len(model.buffers) - 1
        model.subgraphs.append(other.subgraphs[0])
        for i, key in enumerate(("double", "scale")):
            ends = [
                [
                    TensorMap(name=n, tensor_index=model.subgraphs[i].tensors.index(t))
                    for t in model.subgraphs[i].tensors
                    if t.name == tensor
                ]
                for n, tensor in (("in", "x"), ("out", "y"))
            ]
            model.signature_defs.append(
                SignatureDef(signature_key=key, inputs=ends[0], outputs=ends[1], subgraph_index=i)
            )
        return model

    def test_every_signature_is_run(self) -> None:
        result = check(self.two_signatures(3.0), self.two_signatures(3.0), numerics=EXACT)
        assert result.ok
        assert result.runs == 2 * CASES
        assert [(o.signature, o.output) for o in result.outputs] == [("double", "out"), ("scale", "out")]

    def test_the_signature_that_differs_is_named(self) -> None:
        result = check(self.two_signatures(3.0), self.two_signatures(3.1))
        assert [(o.signature, o.ok) for o in result.outputs] == [("double", True), ("scale", False)]

    def test_the_first_subgraph_is_run_when_no_signature_leads_there(self) -> None:
        models = [self.two_signatures(3.0), self.two_signatures(3.0)]
        for model in models:
            del model.signature_defs[0]
        result = check(*models)
        assert [(o.signature, o.output) for o in result.outputs] == [("", "y"), ("scale", "out")]


class TestState:
    @staticmethod
    def svdf(oldest: float) -> Model:
        """A layer that remembers three steps; ``oldest`` weighs what came in two steps before."""
        b = Builder()
        x = b.input("x", [1, 4])
        feature = b.constant("feature", np.ones((2, 4), np.float32))
        time = b.constant("time", np.array([[oldest, 0.5, 1.0]] * 2, np.float32))
        state = b.input("state", [1, 6])
        model = b.model([b.op(Op.SVDF, [x, feature, time, -1, state], name="y", shape=[1, 2], rank=1)])
        model.subgraphs[0].inputs.remove(state)
        model.subgraphs[0].tensors[state].is_variable = True
        return model

    def test_steps_follow_each_other(self) -> None:
        assert check(self.svdf(0.25), self.svdf(0.25), numerics=EXACT).ok
        # The difference is in what is remembered for two steps: "normal", "zeros", "unit".
        assert check(self.svdf(0.25), self.svdf(0.3), cases=2).ok
        assert not check(self.svdf(0.25), self.svdf(0.3), cases=3).ok


class TestDynamicShapes:
    def test_several_batch_sizes(self) -> None:
        model = scaled_by(2.0, (-1, 4))
        result = check(model, model, numerics=EXACT)
        assert result.ok
        assert result.runs == CASES + 2 * 3

    def test_several_sizes(self) -> None:
        model = scaled_by(2.0, (-1, -1, 4))
        assert check(model, model).runs == CASES + 2 * 3

    @staticmethod
    def reshaped(rows: int) -> Model:
        """y = x in a shape that was fixed, which is right for one batch size only."""
        b = Builder()
        x = b.input("x", [-1, 4])
        shape = b.constant("shape", np.array([rows, 4], np.int32))
        y = b.op(Op.RESHAPE, [x, shape], name="y", shape=[1, 4], new_shape=[rows, 4])
        model = b.model([y])
        model.subgraphs[0].tensors[y].shape_signature = [-1, 4]
        return model

    def test_a_result_for_one_size_only_fails(self) -> None:
        assert check(self.reshaped(-1), self.reshaped(-1)).ok
        with pytest.raises(CheckError, match=r"cannot be loaded .* at batch 2, though the original can"):
            check(self.reshaped(-1), self.reshaped(1))

    def test_sizes_that_the_original_refuses_are_noted(self) -> None:
        result = check(self.reshaped(1), self.reshaped(1))
        assert result.ok
        assert result.runs == CASES
        assert any("not compared at batch 2, where the original cannot be run" in note for note in result.notes)

    def test_an_output_of_another_shape_fails(self) -> None:
        def model(keep: bool) -> Model:
            b = Builder()
            x = b.input("x", [-1, 4])
            y = b.op(Op.SUM, [x, b.constant("axis", np.array([1], np.int32))], name="y", shape=[1, 1], keep_dims=keep)
            return b.model([y])

        with pytest.raises(CheckError, match=r"output `y`, case normal, .* of shape \(1,\) instead of .* \(1, 1\)"):
            check(model(True), model(False))


class TestRefusals:
    def test_an_original_that_cannot_be_run_is_skipped(self) -> None:
        model = with_custom(dense())
        result = check(model, model)
        assert result.skipped is not None
        assert "Unheard" in result.skipped
        assert result.ok
        assert (result.outputs, result.runs) == ([], 0)

    def test_a_result_that_cannot_be_run_fails(self) -> None:
        with pytest.raises(CheckError, match=r"the result cannot be loaded with XNNPACK.*Unheard"):
            check(dense(), with_custom(dense()))

    def test_a_type_for_which_there_are_no_values(self) -> None:
        b = Builder()
        x = b.input("x", [1], TensorType.RESOURCE)
        model = b.model([b.op(Op.READ_VARIABLE, [x], name="y", shape=[1], type=TensorType.FLOAT32)])
        assert check(model, model).skipped == "no values can be made for the RESOURCE input `x`"

    @staticmethod
    def lookup(rows: int, offset: int) -> Model:
        b = Builder()
        x = b.input("x", [4], TensorType.INT32)
        index = b.op(Op.ADD, [x, b.constant("offset", np.int32(offset))])
        table = b.constant("table", np.arange(rows * 2, dtype=np.float32).reshape(rows, 2))
        return b.model([b.op(Op.GATHER, [table, index], name="y", shape=[4, 2], type=TensorType.FLOAT32)])

    def test_inputs_that_both_refuse_are_noted(self) -> None:
        result = check(self.lookup(6, 0), self.lookup(6, 0), numerics=EXACT)
        assert result.ok
        assert 0 < result.runs < 8
        assert any(note.startswith("both models refuse the inputs of case") for note in result.notes)

    def test_inputs_that_one_refuses_fail(self) -> None:
        with pytest.raises(CheckError, match=r"the result cannot be run with .* though the original can"):
            check(self.lookup(10, 0), self.lookup(4, 0))
        with pytest.raises(CheckError, match="the result takes inputs that the original refuses"):
            check(self.lookup(4, 0), self.lookup(10, 0))

    def test_inputs_that_are_refused_throughout(self) -> None:
        result = check(self.lookup(4, 20), self.lookup(4, 20))
        assert result.skipped is not None
        assert "index out of bounds" in result.skipped


class TestSources:
    def test_files_bytes_and_models(self, tmp_path: Path) -> None:
        model = dense()
        write(model, tmp_path / "a.tflite")
        for other in (model, to_bytes(model), str(tmp_path / "a.tflite"), tmp_path / "a.tflite"):
            assert check(tmp_path / "a.tflite", other, numerics=EXACT, cases=2).ok
        with pytest.raises(SchemaError, match=r"gone\.tflite"):
            check(model, tmp_path / "gone.tflite")

    def test_cases_limits_the_runs(self) -> None:
        assert check(dense(), dense(), cases=3).runs == 3

    def test_the_same_seed_gives_the_same_figures(self) -> None:
        other = changed(dense(), "weights0", lambda w: w * np.float32(1.00001))
        assert check(dense(), other, seed=4).outputs == check(dense(), other, seed=4).outputs
        assert check(dense(), other, seed=4).outputs != check(dense(), other, seed=5).outputs

    def test_progress_says_what_is_being_done(self) -> None:
        said: list[str] = []
        check(dense(), dense(), cases=1, progress=said.append)
        assert "loading: running the original with XNNPACK" in said
        assert "signature `serve`, case normal: running the result with the builtin kernels" in said

    def test_no_runtime_is_imported_before_it_is_needed(self) -> None:
        code = "import sys, litefuse.check; print([m for m in ('ai_edge_litert', 'tensorflow') if m in sys.modules])"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        shown = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert shown.stdout.strip() == "[]"


class TestRunModel:
    def test_outputs_by_name(self) -> None:
        x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16)
        for xnnpack in (True, False):
            assert np.array_equal(run_model(scaled_by(2.0), {"x": x}, xnnpack=xnnpack)["y"], 2 * x)

    def test_seeded_inputs(self) -> None:
        first, again, other = (run_model(dense(), seed=seed)["layer1"] for seed in (1, 1, 2))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)

    def test_inputs_decide_the_size(self) -> None:
        assert run_model(scaled_by(2.0, (-1, 4)))["y"].shape == (1, 4)
        assert run_model(scaled_by(2.0, (-1, 4)), {"x": np.ones((5, 4), np.float32)})["y"].shape == (5, 4)


FAKE_RUNTIME = """
import enum, os, sys, time
import numpy as np

class OpResolverType(enum.Enum):
    AUTO = 0
    BUILTIN_WITHOUT_DEFAULT_DELEGATES = 3

class Interpreter:
    '''Doubles its input. Misbehaves as the variable says: FILE:CALL:HOW, a call being "load", a number or "nan".'''
    def __init__(self, model_path, **options):
        self.file, self.calls = os.path.basename(model_path), 0
    def misbehave(self, call):
        file, when, how = os.environ['FAKE'].split(':')
        if (file, when) == (self.file, call):
            if how == 'hang':
                time.sleep(60)
            os.abort() if how == 'abort' else os._exit(3)
    def allocate_tensors(self):
        self.misbehave('load')
    def set_tensor(self, index, value):
        self.value = value
    def invoke(self):
        self.misbehave('nan' if np.isnan(self.value).any() else str(self.calls))
        self.calls += 1
    def get_tensor(self, index):
        return self.value * np.float32(2)
"""


class TestIsolated:
    def test_the_outcome_is_the_same(self) -> None:
        other = changed(dense(), "weights0", lambda w: w * np.float32(1.001))
        said: list[str] = []
        isolated = check(dense(), other, cases=4, isolated=True, progress=said.append)
        assert isolated == check(dense(), other, cases=4)
        assert not isolated.ok
        assert any("case normal" in text for text in said)

    def test_errors_come_through(self, tmp_path: Path) -> None:
        with pytest.raises(CheckError, match="Unheard"):
            check(dense(), with_custom(dense()), isolated=True)
        with pytest.raises(SchemaError, match=r"gone\.tflite"):
            check(dense(), tmp_path / "gone.tflite", isolated=True)

    @pytest.fixture
    def misbehave(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
        """Makes child processes use a runtime that misbehaves in a given way."""
        runtime()  # the real one, for this process, before the other can be found
        package = tmp_path / "ai_edge_litert"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "interpreter.py").write_text(FAKE_RUNTIME)
        monkeypatch.syspath_prepend(tmp_path)
        return lambda how: monkeypatch.setenv("FAKE", how)

    def run(self, **options: Any) -> CheckResult:
        return check(to_bytes(scaled_by(2.0)), to_bytes(scaled_by(2.0)), isolated=True, **options)

    def test_the_stand_in_works(self, misbehave: Callable[[str], None]) -> None:
        misbehave("none:0:abort")
        assert self.run(cases=2).runs == 2

    def test_a_crash_of_the_result_is_an_error(self, misbehave: Callable[[str], None]) -> None:
        misbehave("b.tflite:1:abort")
        with pytest.raises(CheckError, match=r"crashed \(SIGABRT\) while case zeros: running the result with XNNPACK"):
            self.run()

    def test_an_end_of_the_process_is_an_error(self, misbehave: Callable[[str], None]) -> None:
        misbehave("b.tflite:load:exit")
        with pytest.raises(CheckError, match="ended with code 3 while loading: running the result"):
            self.run()

    def test_a_hang_is_an_error(self, misbehave: Callable[[str], None]) -> None:
        misbehave("b.tflite:0:hang")
        with pytest.raises(CheckError, match=r"gave no sign of life for 5 s while case normal"):
            self.run(timeout=5.0)

    def test_an_original_that_crashes_at_once_is_skipped(self, misbehave: Callable[[str], None]) -> None:
        misbehave("a.tflite:load:abort")
        skipped = self.run().skipped
        assert skipped is not None
        assert "crashed" in skipped

    def test_a_case_that_crashes_the_original_is_left_out(self, misbehave: Callable[[str], None]) -> None:
        misbehave("a.tflite:nan:abort")
        result = self.run()
        assert result.ok
        assert result.runs == CASES - 1
        assert any("case nan" in note and note.endswith("left out") for note in result.notes)


class TestRealModels:
    def test_what_is_written_back_computes_the_same(
        self, corpus: list[Path], corpus_index: dict[str, dict[str, str]]
    ) -> None:
        quick = [p for p in corpus if float(corpus_index.get(p.stem, {}).get("ref_ms") or 0) < 5][::4]
        ran = 0
        for path in quick:
            result = check(path, to_bytes(read(path)), numerics=EXACT, cases=2)
            assert result.ok, f"{path.stem}: {[o for o in result.outputs if not o.ok]}"
            ran += result.skipped is None
        assert ran > 20

    @pytest.mark.slow
    def test_all_that_is_written_back_computes_the_same(
        self, corpus_file: Path, corpus_index: dict[str, dict[str, str]]
    ) -> None:
        result = check(corpus_file, to_bytes(read(corpus_file)), numerics=EXACT)
        assert result.ok, [o for o in result.outputs if not o.ok]
        fails = corpus_index.get(corpus_file.stem, {}).get("runs_litert_2.3.0", "ok").startswith("FAIL")
        assert bool(result.skipped) == fails

    @pytest.mark.slow
    def test_folding_errors_are_within_the_bounds(self, corpus_file: Path) -> None:
        model = read(corpus_file)
        rng = np.random.default_rng(7)
        buffers = {t.buffer for s in model.subgraphs for t in s.tensors if t.type == TensorType.FLOAT32 and t.buffer}
        for buffer in (model.buffers[i] for i in sorted(buffers)):
            if buffer.data is not None:
                value = np.frombuffer(as_bytes(buffer.data), np.float32).astype(np.float64)
                buffer.data = as_bytes((value * (1 + 2.0**-24 * rng.integers(-1, 2, value.shape))).astype(np.float32))
        result = check(corpus_file, model)
        assert result.ok, [o for o in result.outputs if not o.ok]
