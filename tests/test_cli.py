"""The command line: what it prints, what it writes, how it fails; and that its documentation is true."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from litefuse import __version__
from litefuse.cli import EXIT_CODES, invoke
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model, read, write
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def model(scale: float = 1.0) -> Model:
    """PAD, CONV_2D, RELU, RELU: a custom pair of operators that rules like to see."""
    b = Builder()
    x = b.input("image", [1, 8, 8, 3])
    weights = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    w, bias = b.constant("w", scale * weights), b.constant("b", np.ones(4, np.float32))
    y = b.op(Op.CONV_2D, [x, w, bias], name="conv", shape=[1, 8, 8, 4])
    y = b.op(Op.RELU, [y], name="relu", shape=[1, 8, 8, 4])
    return b.model([b.op(Op.RELU, [y], name="out", shape=[1, 8, 8, 4])], signature="serving_default")


def stranger() -> Model:
    """A model that no runtime can run."""
    b = Builder()
    x = b.op(Op.RELU, [b.input("x", [4])], shape=[4])
    made = b.model([b.op(Op.CUSTOM, [x], name="y", shape=[4])])
    made.operator_codes[-1].custom_code = "NobodyKnowsThis"
    return made


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    made = {
        "good": model(),
        "again": model(),
        "other": model(1.5),
        "stranger": stranger(),
    }
    paths = {name: tmp_path / f"{name}.tflite" for name in made}
    for name, m in made.items():
        write(m, paths[name])
    paths["bad"] = tmp_path / "bad.tflite"
    paths["bad"].write_bytes(b"this is not a model")
    return paths


class Ran:
    """The outcome of a command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: object) -> None:
        self.code = invoke([str(a) for a in arguments])
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> dict:
        return json.loads(self.out)

    def error(self) -> str:
        """The only line on standard error."""
        assert re.fullmatch(r"litefuse: error: .+\n", self.err)
        return self.err


def launch(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own."""
    command = [sys.executable, "-m", "litefuse.cli", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {})
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, **options)


# -- inspect -------------------------------------------------------------------------------------------------------


def test_inspect(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "inspect", files["good"])
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"{files['good']}\n")
    for line in (
        "Signature serving_default",
        r"  input +FLOAT32 \[1, 8, 8, 3\] +image",
        r"  CONV_2D +1 +6.91 k +1.02 kB",
        r"  total +3 +6.91 k +3.07 kB",
        r"  arithmetic +float32 \(1\)",
    ):
        assert re.search(line, ran.out), line


def test_inspect_json(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "inspect", "--json", files["good"], files["stranger"])
    assert ran.code == 0
    document = ran.json
    assert (document["format"], document["litefuse"], document["command"]) == (1, __version__, "inspect")
    good, strange = document["models"]
    assert good["file"] == str(files["good"])
    assert good["totals"]["macs"] == 8 * 8 * 4 * 27
    assert good["problems"] == []
    assert strange["custom_operators"] == {"NobodyKnowsThis": 1}


def test_inspect_shows_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = model()
    broken.subgraphs[0].operators[1].inputs = [99]
    write(broken, tmp_path / "broken.tflite")
    ran = Ran(capsys, "inspect", tmp_path / "broken.tflite")
    assert ran.code == 0
    assert re.search(r"Problems\n  error +\S", ran.out)
    document = Ran(capsys, "inspect", "--json", tmp_path / "broken.tflite").json
    assert any(p["severity"] == "error" and "99" in p["message"] for p in document["models"][0]["problems"])


def test_inspect_goes_on_after_a_bad_file(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "inspect", "--json", files["bad"], files["good"])
    assert ran.code == 3
    assert "not a TFLite file" in ran.error()
    bad, good = ran.json["models"]
    assert bad["error"]["exit_code"] == 3
    assert str(files["bad"]) in bad["error"]["message"]
    assert good["totals"]["operators"] == 3


def test_inspect_needs_no_runtime(files: dict[str, Path]) -> None:
    """Start-up time is a matter of what is imported."""
    code = (
        "import sys; from litefuse.cli import invoke; assert invoke(sys.argv[1:]) == 0;"
        "print('MODULES', *(name.split('.')[0] for name in sys.modules), *sys.modules)"
    )
    command = [sys.executable, "-c", code, "inspect", str(files["good"])]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    modules = set(out.split("MODULES")[1].split())
    assert "litefuse.report.terminal" in modules
    unwanted = {
        "ai_edge_litert",
        "tflite_runtime",
        "tensorflow",
        "hypothesis",
        "subprocess",
        "litefuse.fusions",
        "json",
    }
    assert modules & unwanted == set()


# -- convert -------------------------------------------------------------------------------------------------------


def test_convert(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "convert", files["good"])
    assert (ran.code, ran.err) == (0, "")
    written = files["good"].with_name("good.litefuse.tflite")
    assert len(read(written).subgraphs[0].operators) == 1
    for line in (
        "                      before    after",
        r"operators +3 +1 +-66.7 %",
        r"  RELU +2 +0 +-2",
        r"MACs +6.91 k +6.91 k\n",
        r"activations written +3.07 kB +1.02 kB +-66.7 %",
        r"same on \d+ runs",
        f"written to {re.escape(str(written))}",
    ):
        assert re.search(line, ran.out), line


def test_convert_json(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    target = files["good"].with_name("out.tflite")
    ran = Ran(capsys, "convert", "--json", files["good"], "-o", target, "--seed", 7)
    assert ran.code == 0
    (entry,) = ran.json["models"]
    assert entry["output"] == str(target)
    assert entry["before"]["kinds"] == {"RELU": 2, "CONV_2D": 1}
    assert entry["after"]["kinds"] == {"CONV_2D": 1}
    assert entry["after"]["file_bytes"] == target.stat().st_size
    assert sum(entry["applied_counts"].values()) == len(entry["applied"]) == 2
    assert entry["check"]["ok"]


def test_convert_without_check(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "convert", "--no-check", files["good"])
    assert "Check\n  not done\n" in ran.out
    assert Ran(capsys, "convert", "--no-check", "--json", files["good"]).json["models"][0]["check"] is None


def test_convert_with_rules_disabled(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    names = [r["name"] for r in Ran(capsys, "rules", "--json").json["rules"]]
    ran = Ran(capsys, "convert", files["good"], *(f"--disable={name}" for name in names))
    assert ran.code == 0
    assert "no rule applies" in ran.out
    assert Ran(capsys, "convert", files["good"], "--disable", "nonsense").code == 2


def test_explain(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "explain", files["good"])
    assert ran.code == 0
    assert "Would apply: fuse-activation (1, exact)" in ran.out
    assert re.search(r"RELU #1 +`relu`: RELU into CONV_2D", ran.out)
    ran = Ran(capsys, "explain", "--keep", "conv", "--only", "fuse-activation", files["good"])
    assert "Declined: fuse-activation (1, exact)" in ran.out
    assert "output of CONV_2D #0 `conv` is kept as it is by request" in ran.out
    assert "Would apply\n  nothing" in ran.out
    assert not list(files["good"].parent.glob("*.litefuse.tflite"))


def test_choice_of_rules(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = Ran(capsys, "convert", "--json", "--only", "merge-clamps", files["good"]).json["models"]
    assert entry["applied_counts"] == {"merge-clamps": 1}
    (entry,) = Ran(capsys, "convert", "--json", "--level", "exact", files["good"]).json["models"]
    assert entry["numerics"] == "exact"
    assert Ran(capsys, "convert", "--only", "nonsense", files["good"]).code == 2
    ran = Ran(capsys, "convert", "--keep", "nonsense", files["good"])
    assert ran.code == 2
    assert "no tensor is called `nonsense`" in ran.err


def dynamic(path: Path) -> Path:
    """A model with unknown batch whose reshape computes its target."""
    b = Builder()
    x = b.input("image", [-1, 4, 4, 2])
    shape = b.op(Op.SHAPE, [x], type=TensorType.INT32, shape=[4], out_type=TensorType.INT32)
    slice_of = [b.constant("begin", [0]), b.constant("end", [1]), b.constant("strides", [1])]
    count = b.op(Op.STRIDED_SLICE, [shape, *slice_of], shape=[], shrink_axis_mask=1)
    target = b.op(Op.PACK, [count, b.constant("rest", np.int32(32))], shape=[2], values_count=2)
    y = b.op(Op.RESHAPE, [x, target], name="flat", shape=[-1, 32])
    write(b.model([b.op(Op.TANH, [y], shape=[-1, 32])], signature="serving_default"), path)
    return path


def test_shapes_are_fixed_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dynamic(tmp_path / "dynamic.tflite")
    ran = Ran(capsys, "convert", "--batch", "2", path)
    assert ran.code == 0, ran.err
    assert re.search(r"Fixed shapes\n  image +\[-1, 4, 4, 2\] -> \[2, 4, 4, 2\]", ran.out)
    result = read(tmp_path / "dynamic.litefuse.tflite").subgraphs[0]
    assert [t.shape for t in result.tensors if t.name == "image"] == [[2, 4, 4, 2]]
    assert len(result.operators) == 2, "RESHAPE and TANH"
    (entry,) = Ran(capsys, "explain", "--json", "--input-shape", "image=3,4,4,2", path).json["models"]
    assert entry["frozen"]["inputs"] == [
        {"subgraph": 0, "tensor": "image", "before": [-1, 4, 4, 2], "after": [3, 4, 4, 2]}
    ]
    assert set(entry["frozen"]) == documented()["frozen"]
    for wrong, code in (("image", 2), ("image=1,x", 2), ("nobody=1,4,4,2", 1), ("image=1,5,4,2", 1)):
        assert Ran(capsys, "convert", "--input-shape", wrong, path).code == code


def test_convert_says_when_a_model_was_not_run(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "convert", files["stranger"])
    assert ran.code == 0
    assert re.search(
        r"Notes\n  the original cannot be run here, so only exact rules may be used: .*NobodyKnowsThis", ran.out
    )
    assert "not run, so nothing was compared" in ran.out
    assert ran.out.rstrip().endswith("(not compared)")


def test_convert_to_a_directory(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    assert Ran(capsys, "convert", "--no-check", files["good"], "-o", tmp_path / "out").code == 0
    assert (tmp_path / "out" / "good.litefuse.tflite").exists()


def test_directories_are_made(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Ran(capsys, "convert", files["good"], "-o", f"{tmp_path}/one/").code == 0
    assert (tmp_path / "one" / "good.litefuse.tflite").exists()
    again = tmp_path / "one" / "good.litefuse.tflite"
    assert Ran(capsys, "convert", files["good"], files["other"], again, "-o", tmp_path / "two").code == 0
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == ["good.litefuse.tflite", "other.litefuse.tflite"]
    ran = Ran(capsys, "convert", files["good"], files["other"], "-o", files["bad"])
    assert ran.code == 6
    assert "cannot be made a directory" in ran.err


def test_convert_never_overwrites_its_input(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    before = files["good"].read_bytes()
    ran = Ran(capsys, "convert", files["good"], "-o", files["good"])
    assert ran.code == 6
    assert "is the input itself" in ran.error()
    assert files["good"].read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{good}", "{good}", "-o", "{dir}"], "would both become"),
        (["{good}", "{good}"], "would both become"),
        ([], "Missing argument"),
        (["{good}", "--jobs", "0"], "--jobs"),
    ],
)
def test_convert_usage(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    places = {name: str(path) for name, path in files.items()} | {"dir": str(files["good"].parent)}
    ran = Ran(capsys, "convert", *(a.format(**places) for a in arguments))
    assert ran.code == 2
    assert message in ran.error()


def test_several_models_at_a_time(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "convert", "--json", "--jobs", 2, *(files[n] for n in ("good", "bad", "stranger")))
    assert ran.code == 3
    assert "bad.tflite: not a TFLite file" in ran.error()
    entries = ran.json["models"]
    assert [Path(e["file"]).stem for e in entries] == ["good", "bad", "stranger"]
    assert ["error" in e for e in entries] == [False, True, False]
    written = sorted(p.name for p in files["good"].parent.glob("*.litefuse.tflite"))
    assert written == ["good.litefuse.tflite", "stranger.litefuse.tflite"]


# -- check ---------------------------------------------------------------------------------------------------------


def test_check(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    same = Ran(capsys, "check", files["good"], files["again"])
    assert (same.code, same.err) == (0, "")
    assert re.search(r"same on \d+ runs", same.out)
    different = Ran(capsys, "check", files["good"], files["other"])
    assert different.code == 4
    assert re.search(r"out .*EXCEEDED\n(.*\n)*  different on \d+ runs", different.out)


def test_check_json(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "check", "--json", files["good"], files["other"])
    assert ran.code == 4
    assert ran.json["files"] == [str(files["good"]), str(files["other"])]
    assert ran.json["ok"] is False
    assert ran.json["outputs"][0]["output"] == "out"


def test_check_of_what_cannot_be_compared(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert Ran(capsys, "check", files["good"], files["stranger"]).code == 4
    assert Ran(capsys, "check", files["bad"], files["good"]).code == 3
    ran = Ran(capsys, "check", files["stranger"], files["stranger"])
    assert ran.code == 5
    assert "not run: " in ran.out


# -- rules ---------------------------------------------------------------------------------------------------------


def test_rules(capsys: pytest.CaptureFixture[str]) -> None:
    entries = Ran(capsys, "rules", "--json").json["rules"]
    listed = Ran(capsys, "rules").out
    assert [line.split()[0] for line in listed.splitlines()] == [e["name"] for e in entries]
    for entry in entries:
        assert entry["summary"], entry["name"]
        one = Ran(capsys, "rules", entry["name"])
        assert one.code == 0
        assert entry["description"].splitlines()[-1].strip() in one.out
        before, *after = one.out.split("\nExample\n")[1].split("\nbecomes\n")
        if not after:  # share-constants, of which the text shows nothing
            before, left_out, _ = before.partition("changes in what the text leaves out")
            assert left_out
        assert before.split() == entry["example"]["before"].split()
        assert [text.split() for text in after or [before]] == [entry["example"]["after"].split()]
    unknown = Ran(capsys, "rules", "nonsense")
    assert unknown.code == 2
    assert "no rule `nonsense`" in unknown.error()


# -- failing -------------------------------------------------------------------------------------------------------


def test_version_help_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert Ran(capsys, "--version").out == f"litefuse {__version__}\n"
    for command in ([], ["inspect"], ["convert"], ["check"], ["rules"]):
        ran = Ran(capsys, *command, "--help")
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith("Usage: litefuse")
    for code in EXIT_CODES:
        assert re.search(rf"^ +{code}  ", Ran(capsys, "--help").out, re.MULTILINE)
    assert Ran(capsys).code == 2
    assert "`litefuse --help`" in Ran(capsys, "nonsense").error()
    assert "`litefuse inspect --help`" in Ran(capsys, "inspect", "--nonsense").error()


@pytest.mark.parametrize("kind", ["missing", "empty", "directory", "text"])
def test_unreadable_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    path = tmp_path / "x.tflite"
    if kind == "directory":
        path.mkdir()
    elif kind != "missing":
        path.write_text("" if kind == "empty" else "hello, this is text\n" * 9)
    for command in ("inspect", "convert"):
        ran = Ran(capsys, command, path)
        assert ran.code == 3
        assert ran.error().startswith(f"litefuse: error: {path}: ")
    assert Ran(capsys, "check", path, path).code == 3


def test_no_traceback_unless_asked_for(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a defect\nof two lines")

    monkeypatch.setattr("litefuse.report.stats.measure", fail)
    ran = Ran(capsys, "inspect", files["good"])
    assert ran.code == 1
    assert "internal error, please report it: ZeroDivisionError: a defect of two lines" in ran.error()
    monkeypatch.setenv("LITEFUSE_DEBUG", "1")
    assert "Traceback" in Ran(capsys, "inspect", files["good"]).err


def test_errors_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "inspect", tmp_path / "evil\x1b[2J\nname.tflite")
    assert ran.code == 3
    assert "\x1b" not in ran.error()


def test_interruption(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("litefuse.schema.model.read", interrupt)
    ran = Ran(capsys, "inspect", files["good"])
    assert ran.code == 130
    assert ran.err == "\nlitefuse: error: interrupted\n"  # in the line after the terminal's ^C


def test_without_a_runtime(files: dict[str, Path], tmp_path: Path) -> None:
    for name in ("ai_edge_litert", "tflite_runtime", "tensorflow"):
        (tmp_path / "blocked" / name).mkdir(parents=True)
        (tmp_path / "blocked" / name / "__init__.py").write_text("raise ImportError\n")
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "blocked"), str(ROOT)])}
    for command in (["convert", files["good"]], ["check", files["good"], files["again"]]):
        ran = launch(*command, env=environment)
        assert ran.returncode == 5, ran.stderr
        assert re.fullmatch(r"litefuse: error: .*no TFLite runtime is installed.*\n", ran.stderr)
    assert launch("convert", "--no-check", files["good"], env=environment).returncode == 0


def test_a_reader_that_goes_away(files: dict[str, Path]) -> None:
    many = [str(files["good"])] * 200  # more than a pipe holds
    process = subprocess.Popen(
        [sys.executable, "-m", "litefuse.cli", "inspect", *many],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait() == 141


# -- terminals -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")
def test_progress_is_for_terminals_only(files: dict[str, Path]) -> None:
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "litefuse.cli", "convert", str(files["good"])]
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=True, cwd=ROOT).stdout
    os.close(theirs)
    said = b""
    while chunk := _read(ours):
        said += chunk
    assert b"\r\x1b[Kcomparing" in said
    assert said.endswith(b"\r\x1b[K")
    assert b"\x1b" not in out
    assert launch("convert", files["good"]).stderr == ""


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other side is closed
        return b""


def test_output_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    b = Builder()
    x = b.input("größe→名", [1], TensorType.FLOAT32)
    write(b.model([b.op(Op.RELU, [x], shape=[1])]), tmp_path / "m.tflite")
    ran = launch("inspect", tmp_path / "m.tflite", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "gr??e??" in ran.stdout


# -- memory plans --------------------------------------------------------------------------------------------------


@pytest.fixture
def convs(tmp_path: Path) -> Path:
    write(convolutions(), tmp_path / "convs.tflite")
    return tmp_path / "convs.tflite"


def test_plans_say_what_they_need_and_why(convs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = Ran(capsys, "plan", convs).out
    assert "optimal: no order takes less" in out
    assert "At the peak: CONV_2D #1" in out


def test_plans_are_written_for_tflm(convs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "plan", convs, "--write", "--csv", tmp_path / "p.csv")
    assert ran.code == 0
    assert (tmp_path / "convs.planned.tflite").exists()
    assert "model written to" in ran.out
    solved = Ran(capsys, "plan", tmp_path / "p.csv", "--capacity", "64K")
    assert "it fits" in solved.out
    small = Ran(capsys, "plan", tmp_path / "p.csv", "--capacity", "1K")
    assert small.code == 7
    assert "no packing does" in small.err


def test_budgets_and_memories_that_do_not_suffice(convs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "plan", convs, "--arena-budget", "1K")
    assert ran.code == 7
    assert "the budget is 1,024 bytes; the smallest that is found to suffice is" in ran.err
    assert "most is live at CONV_2D #" in ran.err
    ran = Ran(capsys, "plan", convs, "--memory", "a=1K,b=1K:2")
    assert ran.code == 7
    assert "live at one time, and a and b have 2,048 in all" in ran.err
    ran = Ran(capsys, "convert", convs, "--arena-budget", "100")
    assert ran.code == 7
    assert "no tiling fits into 100 bytes; the nearest takes" in ran.err
    assert not convs.with_suffix(".litefuse.tflite").exists()


def test_budgets_are_kept_by_tiling(convs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.tflite"
    ran = Ran(capsys, "convert", convs, "-o", out, "--target", "tflm", "--arena-budget", "6K", "--json")
    memory = ran.json["models"][0]["memory"]
    assert memory["peak_bytes"] <= 6144 < memory["peak_before"]
    assert memory["tiled"]
    assert ran.json["models"][0]["check"]["ok"]
    assert [m.name for m in read(out).metadata if m.name == "OfflineMemoryAllocation"]


def test_targets_refuse_what_they_lack(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "convert", files["stranger"], "--target", "tflm", "--no-check")
    assert ran.code == 1
    assert "tflm cannot run this model: " in ran.err
    assert "NobodyKnowsThis" in ran.err


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "txt"])
def test_plans_are_drawn(convs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"p.{ending}"
    ran = Ran(capsys, "plan", convs, "--plot", picture)
    if ending == "txt":
        assert ran.code == 2
        assert "pictures are written as .png, .svg, .pdf" in ran.err
        return
    first = picture.read_bytes()
    assert len(first) > 1000
    Ran(capsys, "plan", convs, "--plot", picture)
    assert picture.read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "x"], "-o needs --write"),
        (["--memory", "sram"], "a memory is NAME=SIZE"),
        (["--arena-budget", "many"], "such as 256K"),
        (["--capacity", "1K"], "models have --arena-budget"),
        (["--runtime", "tflite", "--write"], "only TFLM reads memory plans"),
    ],
)
def test_wrong_usage_of_plan(convs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    ran = Ran(capsys, "plan", convs, *arguments)
    assert ran.code in (1, 2)
    assert words in ran.err


# -- documentation -------------------------------------------------------------------------------------------------


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date() -> None:
    for name, page in generator().PAGES.items():
        text = generator().rendered(page)
        assert (DOCS / name).read_text(encoding="utf-8") == text, "run `python docs/generate.py`"


def documented() -> dict[str, set[str]]:
    """The keys that docs/json.md describes, by the title of the table."""
    tables: dict[str, set[str]] = {}
    section = title = ""
    for line in (DOCS / "json.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif found := re.match(r"\| keys? of ([^|]+?) *\|", line):
            title = re.sub("`", "", f"{section}: {found[1]}" if found[1] in ("a model", "the document") else found[1])
            tables[title] = set()
        elif line.startswith("| `"):
            tables[title] |= set(re.findall(r"`(\w+)`", line.split("|")[1]))
    return tables


def convolutions() -> Model:
    """Two int8 convolutions, 12 KB between them, and a mean."""
    b = Builder()
    rng = np.random.default_rng(1)
    x = b.input("x", [1, 32, 32, 1], TensorType.INT8, quantized(0.05, 2))
    for channels, inner in ((8, 1), (4, 8)):
        weights = rng.integers(-99, 99, (channels, 3, 3, inner), np.int8)
        w = b.constant(f"w{channels}", weights, quantized([0.01] * channels, [0] * channels))
        bias = b.constant(f"b{channels}", np.zeros(channels, np.int32), quantized([0.0005] * channels, [0] * channels))
        x = b.op(Op.CONV_2D, [x, w, bias], stride_h=12 // channels, stride_w=1, quantization=quantized(0.05, -3))
    return b.model([b.op(Op.MEAN, [x, b.constant("axes", [1, 2])], keep_dims=True)])


def separable() -> Model:
    """A depthwise and a pointwise convolution that are worth to be one region."""
    rng = np.random.default_rng(0)
    b = Builder()
    x = b.input("x", [1, 64, 64, 32])
    weights = b.constant("w", rng.standard_normal((1, 3, 3, 32)).astype(np.float32))
    bias = b.constant("b", np.zeros(32, np.float32))
    y = b.op(
        Op.DEPTHWISE_CONV_2D,
        [x, weights, bias],
        name="dw",
        shape=[1, 64, 64, 32],
        stride_h=1,
        stride_w=1,
        depth_multiplier=1,
    )
    weights = b.constant("v", rng.standard_normal((64, 1, 1, 32)).astype(np.float32))
    bias = b.constant("c", np.zeros(64, np.float32))
    return b.model([b.op(Op.CONV_2D, [y, weights, bias], name="pw", shape=[1, 64, 64, 64], stride_h=1, stride_w=1)])


def test_regions_are_formed_shown_and_taken_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, out = tmp_path / "separable.tflite", tmp_path / "packaged.tflite"
    write(separable(), path)
    ran = Ran(capsys, "convert", path, "--target", "x86-64-v3", "-o", out)
    assert ran.code == 0
    assert "Regions for x86-64-v3, packaged as plan" in ran.out
    assert re.search(r"1 +depthwise_pointwise +2 operators", ran.out)
    assert "1 region by the delegate" in ran.out
    assert Ran(capsys, "check", path, out, "--delegate").code == 0
    # Composites may cost 2 % without the delegate, and this one is all there is of the model.
    composites = ["--package", "composite", "-o", tmp_path / "composite.tflite"]
    ran = Ran(capsys, "convert", path, "--target", "x86-64-v3", *composites)
    assert "none for x86-64-v3: 1 region would pay" in ran.out
    assert re.search(r"as a composite it\s+would\s+cost", ran.out)
    ran = Ran(capsys, "explain", path, "--package", "plan")
    assert re.search(r"Region: depthwise_pointwise \(1, generic-arm64\)", ran.out)
    assert (
        "No region"
        in Ran(capsys, "explain", path, "--package", "plan", "--no-region", "litefuse.depthwise_pointwise").out
    )
    assert (
        "holds regions already" in Ran(capsys, "convert", out, "--package", "plan", "-o", tmp_path / "x.tflite").error()
    )
    assert re.search(r"regions +1 for x86-64-v3, packaged as plan", Ran(capsys, "inspect", out).out)
    ran = Ran(capsys, "unfuse", out)
    assert "1 region taken apart" in ran.out
    assert Ran(capsys, "check", path, tmp_path / "packaged.unfused.tflite").code == 0
    assert Ran(capsys, "unfuse", out, "-o", out).code == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "toaster"], "there is no target `toaster`; the targets are tflm, generic-arm64"),
        (["--target", "tflm", "--package", "plan"], "tflm runs no delegate"),
        (["--target", "cortex-a53", "--arena-budget", "8K"], "a memory budget is for TensorFlow Lite Micro"),
        (["--package", "plan", "--no-region", "poem"], "there is no kind of region `poem`"),
    ],
)
def test_wrong_region_options(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], options: list[str], message: str, tmp_path: Path
) -> None:
    ran = Ran(capsys, "convert", files["good"], *options, "-o", tmp_path / "x.tflite")
    assert ran.code == 2
    assert message in ran.error()
    assert not (tmp_path / "x.tflite").exists()


def test_targets(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "targets")
    assert ran.code == 0
    assert "generic-arm64 (default)" in ran.out
    assert "cortex-m" in ran.out


def test_documented_keys_are_the_real_ones(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    keys = documented()
    seen: set[str] = set()

    def same(title: str, *entries: dict, beside: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        assert entries, title
        for entry in entries:
            assert set(entry) - beside == keys[title], title
        seen.add(title)

    broken = model()
    broken.subgraphs[0].operators[1].inputs = [99]
    write(broken, tmp_path / "broken.tflite")
    inspected = Ran(capsys, "inspect", "--json", files["good"], tmp_path / "broken.tflite", files["bad"]).json
    same("every document", inspected, beside={"models"})
    first, second, failed = inspected["models"]
    assert set(failed) == {"file", "error"}
    same("error", failed["error"])
    same("inspect: a model", first, second)
    same("producer", first["producer"])
    same("a signature", *first["signatures"])
    same("an input or output tensor", *first["signatures"][0]["inputs"], *first["subgraphs"][0]["outputs"])
    same("totals", first["totals"])
    same("a problem", *second["problems"])
    numbers = keys["totals"] - {"file_bytes", "operators", "kinds"}
    same("a subgraph", *first["subgraphs"], beside=numbers)
    same("an operator", *first["subgraphs"][0]["operators"])

    shared = Builder()
    x = shared.op(
        Op.CONV_2D,
        [
            shared.input("x", [1, 4, 4, 1]),
            shared.constant("w", np.ones((1, 1, 1, 1), np.float32)),
            shared.constant("b", np.ones(1, np.float32)),
        ],
        shape=[1, 4, 4, 1],
    )
    write(shared.model([x, shared.op(Op.RELU, [x], shape=[1, 4, 4, 1])]), tmp_path / "shared.tflite")
    converted = Ran(capsys, "convert", "--json", files["good"], tmp_path / "shared.tflite").json
    done, declined = converted["models"]
    same("every document", converted, beside={"models"})
    same("convert: a model", done, declined)
    same("totals", done["before"], done["after"])
    place = keys.pop("an application or refusal")
    for entry, own in ((done["applied"], {"detail", "numerics"}), (declined["refused"], {"reason"})):
        assert entry
        assert set(entry[0]) == place - {"detail", "numerics", "reason"} | own
    same("refused_counts", *declined["refused_counts"])
    assert set(done["seconds"]) == {"reading", "validating", "rewriting", "comparing", "writing"}

    explained = Ran(capsys, "explain", "--json", files["good"], tmp_path / "shared.tflite").json
    same("every document", explained, beside={"models"})
    same("explain: a model", *explained["models"])
    assert set(explained["models"][0]["applicable"][0]) == place - {"reason"}
    assert set(explained["models"][1]["refused"][0]) == place - {"detail"}

    compared = Ran(capsys, "check", "--json", files["good"], files["again"]).json
    same("a comparison", done["check"])
    assert set(compared) == keys["every document"] | keys["check: the document"] | keys["a comparison"]
    seen.add("check: the document")
    same("an output of a comparison", *compared["outputs"], *done["check"]["outputs"])
    same("a distribution", compared["outputs"][0]["distribution"])
    differing = Ran(capsys, "diff", "--json", files["good"], files["again"]).json
    assert set(differing) == keys["every document"] | keys["diff: the document"]
    seen.add("diff: the document")
    same("an estimate", *differing["estimates"])
    same("the figures of an estimate", *(e["before"] for e in differing["estimates"]))

    small = tmp_path / "convs.tflite"
    write(convolutions(), small)
    (fitted,) = Ran(
        capsys, "convert", "--json", small, "-o", tmp_path / "out.tflite", "--target", "tflm", "--arena-budget", "6K"
    ).json["models"]
    same("memory", fitted["memory"])
    write(separable(), tmp_path / "separable.tflite")
    out = ["-o", tmp_path / "packaged.tflite"]
    (packaged,) = Ran(capsys, "convert", "--json", tmp_path / "separable.tflite", "--package", "plan", *out).json[
        "models"
    ]
    same("regions", packaged["regions"])
    same("a region", *packaged["regions"]["regions"])
    same("a comparison", packaged["delegate_check"])
    unfused = Ran(capsys, "unfuse", "--json", tmp_path / "packaged.tflite").json
    assert set(unfused) == keys["every document"] | keys["unfuse: the document"]
    seen.add("unfuse: the document")
    listed = Ran(capsys, "targets", "--json").json
    assert set(listed) == keys["every document"] | keys["targets: the document"]
    seen.add("targets: the document")
    same("a target", *listed["targets"])
    full = Ran(capsys, "targets", "--json", "cortex-a53").json
    same("a target", *full["targets"])
    same("a full profile", full["profile"])
    same("a figure of a profile", *full["profile"]["figures"])
    same("a tiled part", *fitted["memory"]["tiled"])
    options = ["--memory", "sram=4K,psram=8M:slow", "--write", "-o", tmp_path / "planned.tflite"]
    document = Ran(capsys, "plan", "--json", small, *options, "--csv", tmp_path / "p.csv").json
    (planned,) = document["models"]
    same("every document", document, beside={"models"})
    same("plan: a model", planned)
    same("an arena", *planned["arenas"])
    same("an operator at the peak", *planned["arenas"][0]["peak_operators"])
    same("a planned subgraph", *planned["arenas"][0]["subgraphs"])
    same("a planned tensor", *planned["arenas"][0]["subgraphs"][0]["tensors"])
    same("memories", planned["memories"])
    same("tflm", planned["tflm"])
    same("a problem to pack", *Ran(capsys, "plan", "--json", tmp_path / "p.csv").json["models"])

    rules = Ran(capsys, "rules", "--json").json
    assert set(rules) == keys["every document"] | keys["rules: the document"]
    seen.add("rules: the document")
    same("a rule", *rules["rules"])
    same("an example", *(r["example"] for r in rules["rules"]))
    seen.add("frozen")  # see test_shapes_are_fixed_on_request
    seen |= {"bench: the document", "a contender", "latency", "ratio", "profile", "a region of a profile"}  # test_bench
    assert seen == set(keys)


def test_documented_exit_codes() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert [int(c) for c in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)] == list(EXIT_CODES)
    errors = importlib.import_module("litefuse.errors")
    codes = {e.exit_code for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.LitefuseError)}
    assert codes <= set(EXIT_CODES)
