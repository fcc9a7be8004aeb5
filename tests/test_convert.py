"""The way of a model through `litefuse.convert`, with rules made for the purpose and with the real ones."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import litefuse
from litefuse.errors import CheckError, LitefuseError, OutputError, SchemaError, UnknownFieldError
from litefuse.fusions import Applied, Numerics, Refused, Rule
from litefuse.graph import Graph
from litefuse.graph.build import Builder
from litefuse.schema import Model, deepcopy, diff, read, to_bytes, write
from litefuse.schema.operators import Op, builtin_code
from litefuse.schema.tables import Operator

convert_module = importlib.import_module("litefuse.convert")


class DropSecondRelu(Rule):
    """relu(relu(x)) = relu(x)."""

    name = "drop-second-relu"
    numerics = Numerics.EXACT
    kinds: ClassVar = frozenset({Op.RELU})

    def apply(self, graph: Graph, op: Operator) -> Applied | Refused | None:
        maker = graph.producer(op.inputs[0])
        if maker is None or graph.kind(maker) != Op.RELU:
            return None
        if reason := graph.why_shared(op.inputs[0], op):
            return Refused(reason)
        return Applied("") if graph.bypass(op, op.inputs[0]) else None


class Wrong(DropSecondRelu):
    """relu(x) = min(max(x, 0), 6), which it is not."""

    name = "wrong"

    def apply(self, graph: Graph, op: Operator) -> Applied | Refused | None:
        graph.replace(op, Op.RELU6, [op.inputs[0]])
        return Applied("")


class Breaks(DropSecondRelu):
    """Makes an operator read a tensor that does not exist."""

    name = "breaks"

    def apply(self, graph: Graph, op: Operator) -> Applied | Refused | None:
        if op.inputs[0] == 4711:
            return None
        op.inputs[0] = 4711
        return Applied("")


class Stumbles(DropSecondRelu):
    """Fails on a damaged operator, as rules may."""

    name = "stumbles"

    def apply(self, graph: Graph, op: Operator) -> Applied | Refused | None:
        graph.type(4711)
        return None


class Reassociates(DropSecondRelu):
    """The same as its base, promised less."""

    name = "reassociates"
    numerics = Numerics.REASSOCIATED


def use(monkeypatch: pytest.MonkeyPatch, *rules: Rule) -> None:
    monkeypatch.setattr(convert_module, "all_rules", lambda **_: rules)


def relus(count: int = 2) -> Model:
    b = Builder()
    x = b.input("x", [1, 16])
    for i in range(count):
        x = b.op(Op.RELU, [x], name=f"relu_{i}", shape=[1, 16])
    return b.model([x], signature="serving_default")


def kinds(model: Model) -> list[str]:
    codes = [builtin_code(code) for code in model.operator_codes]
    return [Op(codes[op.opcode_index]).name for op in model.subgraphs[0].operators]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.tflite"
    write(relus(), path)
    return path


# -- the way through -----------------------------------------------------------------------------------------------


def test_a_model_becomes_smaller_and_is_written(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DropSecondRelu())
    said: list[str] = []
    target = source.with_name("out.tflite")
    done = litefuse.convert(source, target, progress=said.append)
    assert done.output == target
    assert kinds(read(target)) == ["RELU"]
    assert done.fusions.counts() == {"drop-second-relu": 1}
    assert (done.before.operators, done.after.operators) == (2, 1)
    assert done.before.file_bytes == source.stat().st_size
    assert done.after.file_bytes == target.stat().st_size
    assert done.numerics is Numerics.EXACT
    assert done.check is not None
    assert done.check.ok
    assert done.check.runs > 0
    assert done.not_run is None
    assert list(done.seconds) == ["reading", "validating", "rewriting", "comparing", "writing"]
    assert [s for s in said if s in done.seconds] == list(done.seconds)
    assert [p.name for p in sorted(source.parent.iterdir())] == ["model.tflite", "out.tflite"]


def test_a_model_in_memory_is_not_modified(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DropSecondRelu())
    model = relus()
    before, bytes_before = deepcopy(model), to_bytes(model)
    done = litefuse.convert(model)
    assert list(diff(model, before)) == []
    assert to_bytes(model) == bytes_before
    assert done.output is None
    assert done.after.file_bytes is None
    assert kinds(done.model) == ["RELU"]


def test_nothing_to_do_still_writes_the_same_model(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    target = source.with_name("out.tflite")
    done = litefuse.convert(source, target)
    assert done.fusions.applied == []
    assert list(diff(read(source), read(target))) == []


def test_the_same_input_gives_the_same_bytes(source: Path) -> None:
    targets = [source.with_name(f"{i}.tflite") for i in range(2)]
    for target in targets:
        litefuse.convert(source, target, check=False)
    assert targets[0].read_bytes() == targets[1].read_bytes()


def test_rules_can_be_disabled(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DropSecondRelu(), Wrong())
    done = litefuse.convert(source, disable=["wrong"])
    assert done.fusions.counts() == {"drop-second-relu": 1}
    assert [r.name for r in done.rules] == ["drop-second-relu"]
    for disable in (["nonsense"], "nonsense"):
        with pytest.raises(LitefuseError, match="no rule `nonsense`"):
            litefuse.convert(source, disable=disable)


def test_the_weakest_promise_decides(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Reassociates(), DropSecondRelu())
    assert litefuse.convert(source, check=False).numerics is Numerics.REASSOCIATED
    use(monkeypatch, DropSecondRelu(), Reassociates())
    assert litefuse.convert(source, check=False).numerics is Numerics.EXACT


def test_widening_is_up_to_the_rules(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict] = []
    monkeypatch.setattr(convert_module, "all_rules", lambda **options: asked.append(options) or ())
    litefuse.convert(source, check=False)
    litefuse.convert(source, check=False, keep_fp16=False)
    assert asked == [{"widen_fp16": False}, {"widen_fp16": True}]


# -- what goes wrong -----------------------------------------------------------------------------------------------


def test_a_wrong_result_is_not_written(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Wrong())
    target = source.with_name("out.tflite")
    with pytest.raises(CheckError, match=r"output `relu_1` .*differs by up to .* Applied were wrong;"):
        litefuse.convert(source, target)
    assert [p.name for p in source.parent.iterdir()] == ["model.tflite"]


def test_the_check_can_be_left_out(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Wrong())
    done = litefuse.convert(source, check=False)
    assert done.check is None
    assert kinds(done.model) == ["RELU6", "RELU6"]


def test_an_invalid_result_is_not_written(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Breaks())
    with pytest.raises(LitefuseError, match="the rules breaks made an invalid model"):
        litefuse.convert(source, source.with_name("out.tflite"))
    assert [p.name for p in source.parent.iterdir()] == ["model.tflite"]


def test_a_model_that_cannot_run_gets_exact_rules_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    x = b.input("x", [1, 16])
    y = b.op(Op.RELU, [b.op(Op.RELU, [x], shape=[1, 16])], shape=[1, 16])
    model = b.model([b.op(Op.CUSTOM, [y], name="out", shape=[1, 16])])
    model.operator_codes[-1].custom_code = "NobodyKnowsThis"
    use(monkeypatch, Reassociates(), DropSecondRelu())
    done = litefuse.convert(model, tmp_path / "out.tflite")
    assert done.not_run is not None
    assert "NobodyKnowsThis" in done.not_run
    assert done.fusions.counts() == {"drop-second-relu": 1}
    assert [r.name for r in done.rules] == ["drop-second-relu"]
    assert [op.kind for op in done.after.subgraphs[0].operators] == ["RELU", "custom:NobodyKnowsThis"]
    # Nobody asked whether it runs: all rules are used.
    assert litefuse.convert(model, check=False).fusions.counts() == {"reassociates": 1}


def test_faults_of_the_input_are_reported_and_do_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, DropSecondRelu())
    b = Builder()
    x = b.input("x", [1, 16])
    y = b.op(Op.RELU, [b.op(Op.RELU, [x], shape=[1, 16])], shape=[1, 16])
    w = b.constant("w", np.zeros((4, 16), np.float32))
    model = b.model([b.op(Op.FULLY_CONNECTED, [y, w, -1], shape=[1, 4])])
    model.subgraphs[0].tensors[w].shape = [4, 17]
    done = litefuse.convert(model)
    assert any(p.severity == "error" and "w" in f"{p.place} {p.message}" for p in done.problems)
    assert kinds(done.model) == ["RELU", "FULLY_CONNECTED"]


def test_too_damaged_to_be_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    model = relus()
    model.subgraphs[0].operators[0].inputs = [4711]
    use(monkeypatch, Stumbles())
    with pytest.raises(LitefuseError, match="too damaged to be rewritten"):
        litefuse.convert(model)
    with pytest.raises(IndexError):
        litefuse.convert(relus())  # a defect of the rule, which is not to be hidden


def test_unknown_fields_are_refused(source: Path) -> None:
    model = read(source)
    model.unknown = "subgraphs[0].tensors[1]: Tensor has field number 99"
    with pytest.raises(UnknownFieldError, match=r"subgraphs\[0\].tensors\[1\]"):
        litefuse.convert(model)


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_the_input_is_never_overwritten(source: Path, link: object) -> None:
    target = source
    if callable(link):
        target = source.with_name("link.tflite")
        link(source, target)
    before = source.read_bytes()
    for model in (source, read(source)):
        with pytest.raises(OutputError, match="is the input itself"):
            litefuse.convert(model, target)
    assert source.read_bytes() == before


def test_an_output_that_cannot_be_written(source: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        litefuse.convert(source, source.with_name("missing") / "out.tflite", check=False)


def test_an_input_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="cannot be read"):
        litefuse.convert(tmp_path / "missing.tflite")


# -- the package ---------------------------------------------------------------------------------------------------


def test_the_package_gives_functions_whatever_was_imported(source: Path) -> None:
    assert callable(litefuse.convert)
    assert callable(litefuse.check)
    assert litefuse.load(source).path == source
    assert litefuse.Model is Model
    assert set(litefuse.__all__) <= set(dir(litefuse))
    with pytest.raises(AttributeError, match="nonsense"):
        litefuse.nonsense  # noqa: B018
    code = "import litefuse.convert, litefuse.check, litefuse; assert litefuse.convert.__name__ == 'convert'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_package_is_cheap() -> None:
    code = (
        "import sys, litefuse; print([m for m in sys.modules if m.startswith(('numpy', 'rich', 'click', 'litefuse.'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_load_and_save(source: Path) -> None:
    model = litefuse.load(source)
    model.description = "renamed"
    model.save(source.with_name("renamed.tflite"))
    assert litefuse.load(source.with_name("renamed.tflite")).description == "renamed"


# -- real models ---------------------------------------------------------------------------------------------------


def test_decomposed_prelu_of_a_real_model(corpus: list[Path], tmp_path: Path) -> None:
    path = next(p for p in corpus if p.stem == "expo_mtcnn_rnet")
    done = litefuse.convert(path, tmp_path / "out.tflite")
    assert done.check is not None
    assert done.check.ok
    assert done.after.operators < done.before.operators
    assert done.after.kinds["PRELU"] > done.before.kinds["PRELU"]


def test_a_real_model_that_does_not_run(corpus: list[Path], tmp_path: Path) -> None:
    path = next(p for p in corpus if p.stem == "mm_catdog2")
    done = litefuse.convert(path, tmp_path / "out.tflite")
    assert done.not_run is not None
    assert done.problems
    assert {r.numerics for r in done.rules} <= {Numerics.EXACT}
    assert (tmp_path / "out.tflite").exists()
