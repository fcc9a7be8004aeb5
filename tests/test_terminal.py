"""The command line as people see it: in terminals of 80 columns, in pipes, without colours, and with --quiet."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from litefuse.graph.build import Builder
from litefuse.progress import Step, shown
from litefuse.report import terminal
from litefuse.schema import write
from litefuse.schema.operators import Op

if sys.platform == "win32":
    pytest.skip("needs pseudo-terminals", allow_module_level=True)

from screen import ROOT, in_pipes, in_terminal, plain

MODELS = ("mp_face_short", "litert_dynshapes", "mlperf_kws_int8")
LONG = "functional_1/a_block_with_a_long_name/batch_normalization_17/FusedBatchNormV3;" * 4 + "\uff4e\uff41\uff4d\uff45"
BOXES = set("─│┌┐└┘├┤┬┴┼━┃╸╺╭╮╰╯═║")


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with names of hundreds of characters everywhere, some of two columns, on which a few rules apply."""
    b = Builder()
    rng = np.random.default_rng(1)
    x = b.input(f"in/{LONG}", [1, 8, 8, 4])
    for i in range(2):
        weights = b.constant(f"weights{i}/{LONG}", rng.standard_normal((4, 3, 3, 4)).astype(np.float32))
        bias = b.constant(f"bias{i}/{LONG}", rng.standard_normal(4).astype(np.float32))
        x = b.op(Op.CONV_2D, [x, weights, bias], shape=[1, 8, 8, 4], name=f"conv{i}/{LONG}", stride_h=1, stride_w=1)
        scale = b.constant(f"scale{i}/{LONG}", rng.random(4).astype(np.float32))
        x = b.op(Op.MUL, [x, scale], shape=[1, 8, 8, 4], name=f"mul{i}/{LONG}")
        x = b.op(Op.RELU, [x], shape=[1, 8, 8, 4], name=f"relu{i}/{LONG}")
    directory = tmp_path_factory.mktemp("a_directory_with_a_name_that_is_long_" * 2)
    write(b.model([x]), directory / "long.tflite")
    return directory / "long.tflite"


def commands(model: Path, directory: Path) -> list[list[object]]:
    """Every command on a model; the second one writes the file that the others read."""
    result = directory / "result.tflite"
    return [
        ["inspect", model],
        ["convert", model, "--target", "x86-64-v3", "-o", result, "--model-explorer", directory / "me.json"],
        ["explain", model, "--target", "x86-64-v3"],
        ["check", model, result],
        ["diff", model, result],
        ["plan", model, "--memory", "sram=32K,psram=64M:slow", "--seconds", "0.5"],
        ["bench", model, "--against", result, "--runs", "2", "--warmup", "1", "--no-delegate"],
        ["unfuse", result, "-o", directory / "unfused.tflite"],
    ]  # fmt: skip


def sized(text: str) -> str:
    """What a text says without what changes from run to run, and without how it is broken into lines."""
    return " ".join(word for word in plain(text).split() if not any(c.isdigit() for c in word))


# -- 80 columns ----------------------------------------------------------------------------------------------------


def fits(model: Path, directory: Path) -> None:
    for command in commands(model, directory):
        ran = in_terminal(*command)
        assert ran.code == 0 or (command[0], ran.code) == ("bench", 5), (command, ran)  # some run in some shapes only
        assert ran.too_wide() == [], command
        assert not any(line.endswith(" ") for line in ran.lines if "`" not in line), command


def test_names_of_any_length_fit(long: Path, tmp_path: Path) -> None:
    fits(long, tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_real_models_fit(name: str, corpus: list[Path], tmp_path: Path) -> None:
    path = next((p for p in corpus if p.stem == name), None)
    if path is None:
        pytest.skip(f"{name} is not in the corpus")
    fits(path, tmp_path)


@pytest.mark.parametrize(
    "command",
    [["rules"], ["rules", "fold-shape"], ["targets"], ["targets", "x86-64-v3"], ["--help"], ["convert", "-h"]],
)
@pytest.mark.parametrize("columns", [80, 140])
def test_lists_and_help_fit(command: list[str], columns: int) -> None:
    ran = in_terminal(*command, columns=columns)
    assert ran.code == 0
    assert ran.too_wide(columns) == []


def test_what_a_target_is_stays_readable() -> None:
    lines = in_terminal("targets").lines
    assert "cortex-a76     out-of-order core of phones and boards (Raspberry Pi 5)" in lines
    assert any(line.startswith("cortex-a76 ") and "38.4" in line for line in lines)
    assert any("38.4" in line and "Raspberry Pi 5" in line for line in in_pipes("targets").lines)


def table(rows: list[tuple[str, str, str]], width: int, *, tty: bool = True) -> list[str]:
    out = Console(width=width, force_terminal=tty, color_system=None, file=open(os.devnull, "w"))  # noqa: SIM115
    grid = terminal._grid("left", "right", "left")
    for row in rows:
        grid.add_row(*row)
    with out.capture() as captured:
        terminal.indented(out, grid)
    return captured.get().splitlines()


def test_names_lose_their_middle_and_figures_nothing() -> None:
    rows = [("short", "12.5 MB", "a text"), ("a" * 50 + "b" * 50, "3 B", "a text of several words that is broken")]
    lines = table(rows, 60)
    assert lines[0].split() == ["short", "12.5", "MB", "a", "text"]
    assert lines[1].startswith("  aaaa")
    name = lines[1].split()[0]
    assert len(name) == 60 - 2 - 7 - 24 - 4
    assert name.strip("ab") == "..."
    assert name.startswith("aaa") and name.endswith("bbb")  # noqa: PT018
    assert "3 B" in lines[1]
    assert " ".join(" ".join(line.split()) for line in lines[1:]).endswith("a text of several words that is broken")
    assert table(rows, 1 << 14, tty=False)[1].split()[0] == "a" * 50 + "b" * 50


@pytest.mark.parametrize("columns", range(3, 40))
def test_middles_by_columns(columns: int) -> None:
    for name in ("abcdefghijklmnopqrstuvwxyz0123456789", "\uff4e\uff41\uff4d\uff45" * 9, "a\uff4eb" * 12):
        shortened = terminal._middle(name, columns)
        assert cell_len(shortened) <= columns
        assert shortened == name if cell_len(name) <= columns else "..." in shortened


# -- pipes and colours ---------------------------------------------------------------------------------------------


def test_pipes_get_plain_text_of_one_line_each(long: Path, tmp_path: Path) -> None:
    for command in commands(long, tmp_path):
        ran = in_pipes(*command)
        assert (ran.code, ran.err) == (0, ""), command
        assert "\x1b" not in ran.out
        assert "\r" not in ran.out
        assert not BOXES & set(ran.out)
        assert "..." not in ran.out.replace("docs/...", ""), command  # nothing is shortened
    explained = in_pipes("explain", long)
    assert f"RELU #2  `relu0/{LONG}`: RELU into" in explained.out
    assert in_pipes("explain", long, env={"COLUMNS": "40"}).out == explained.out


def test_no_color(long: Path, tmp_path: Path) -> None:
    assert "\x1b[1m" in in_terminal("inspect", long).out
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        for command in (["inspect", long], ["explain", long], ["targets"], ["rules", "fold-shape"]):
            ran = in_terminal(*command, env=env)
            assert ran.code == 0
            assert "\x1b" not in ran.out
            assert ran.too_wide() == []
    assert "\x1b[1m" in in_terminal("inspect", long, env={"NO_COLOR": ""}).out


# -- progress ------------------------------------------------------------------------------------------------------


def test_progress_is_on_standard_error_and_for_terminals(long: Path, tmp_path: Path) -> None:
    command = "convert", long, "-o", tmp_path / "out.tflite"
    ran = in_terminal(*command)
    assert "\r\x1b[Kreading" in ran.err
    assert "running the result" in ran.err
    assert " % " not in plain(ran.out).split("Applied")[1]
    assert "\r\x1b[K" not in ran.out
    assert ran.err.endswith("\r\x1b[K")
    assert "━" in ran.err
    assert all(cell_len(plain(part)) < 80 for part in ran.err.split("\r\x1b[K"))
    assert in_terminal(*command, err=False).err == ""
    only = in_terminal(*command, out=False)
    assert "running the result" in only.err
    assert "\x1b" not in only.out
    assert in_terminal(*command, env={"TERM": "dumb"}).err == ""


def test_bars_say_how_much_is_done(long: Path, tmp_path: Path) -> None:
    ran = in_terminal("bench", long, "--seconds", "2.5", "--no-delegate")
    shares = [int(part.split()[-2]) for part in plain(ran.err).split("\r") if part.endswith("%")]
    assert shares == sorted(shares)
    assert 20 < max(shares) <= 100
    second = tmp_path / "second.tflite"
    shutil.copy(long, second)
    swept = in_terminal("convert", long, second, "-o", tmp_path / "out")
    assert "1 of 2 models done" in swept.err
    assert "50 %" in plain(swept.err)


def test_steps_are_strings(capsys: pytest.CaptureFixture[str]) -> None:
    import pickle

    step = pickle.loads(pickle.dumps(Step("measuring", 0.25)))
    assert step == "measuring"
    assert (step.share, Step("x").share, Step("x", 7).share, Step("x", -1).share) == (0.25, None, 1.0, 0.0)
    with shown() as say:
        say(step)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("share", [None, 0.0, 0.5, 1.0])
def test_lines_of_progress_fit(share: float | None) -> None:
    for columns in (10, 40, 79, 200):
        line = plain(terminal.step_line("Übersicht\n\x1b[2J" + "x" * 300, share, columns))
        assert cell_len(line) <= columns
        assert "\x1b" not in line
        assert line.startswith("Übersicht"[: columns - 1])
        assert "…" in line
    assert terminal.step_line("reading", None, 79) == "reading"
    assert plain(terminal.step_line("measuring", 0.5, 79)).split()[::3] == ["measuring", "%"] or share is not None


# -- quiet ---------------------------------------------------------------------------------------------------------


def test_quiet_prints_nothing(long: Path, tmp_path: Path) -> None:
    for command in [*commands(long, tmp_path), ["targets"]]:
        ran = in_terminal(*command, "-q")
        assert (ran.code, ran.out, ran.err) == (0, "", ""), command
    assert in_terminal("inspect", "--quiet", long).out == ""
    assert (tmp_path / "me.json").exists()


def test_quiet_leaves_documents_errors_and_exit_codes(long: Path, tmp_path: Path) -> None:
    loud, quiet = (in_pipes("inspect", long, "--json", *more) for more in ([], ["-q"]))
    assert json.loads(quiet.out) == json.loads(loud.out)
    assert in_pipes("inspect", long, "--text", "-q").out == in_pipes("inspect", long, "--text").out
    bad = tmp_path / "bad.tflite"
    bad.write_bytes(b"nothing")
    for command, code in (
        (["inspect", bad], 3),
        (["inspect", long, bad], 3),
        (["convert", bad], 3),
        (["check", long, bad], 3),
        (["plan", long, "--arena-budget", "16"], 7),
        (["convert", long, "-o", tmp_path / "none" / "x.tflite"], 6),
    ):
        loud, quiet = in_pipes(*command), in_pipes(*command, "-q")
        assert (loud.code, quiet.code) == (code, code), command
        assert quiet.err == loud.err != ""
        assert quiet.out == ""


# -- completion ----------------------------------------------------------------------------------------------------


@pytest.fixture
def bin_(tmp_path: Path) -> dict[str, str]:
    """An environment in which `litefuse` is this one."""
    place = tmp_path / "bin"
    place.mkdir()
    program = place / "litefuse"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}:$PYTHONPATH exec {sys.executable} -m litefuse.cli "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}"}


def offered(words: list[str], env: dict[str, str], where: Path) -> list[str]:
    """What bash would complete the last word to."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    lines = 'eval "$(litefuse completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));'
    # `complete -p` fails where nothing was registered; compopt works in a completion only.
    lines += ' complete -p litefuse >/dev/null || exit 9; compopt() { echo "<$1 $2>"; };'
    lines += ' _litefuse_completion litefuse; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        [bash, "--norc", "-c", lines, "bash", *words],
        env={**os.environ, **env},
        cwd=where,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [word for word in done.stdout.splitlines() if word]


def test_bash_completes(tmp_path: Path, bin_: dict[str, str]) -> None:
    (tmp_path / "models" / "inner").mkdir(parents=True)
    for name in ("a.tflite", "b.TFLITE", "notes.txt", "net.keras", ".hidden.tflite"):
        (tmp_path / "models" / name).touch()
    found = offered(["litefuse", "con"], bin_, tmp_path)
    assert found == ["convert"]
    assert "--model-explorer" in offered(["litefuse", "convert", "--mod"], bin_, tmp_path)
    assert offered(["litefuse", "inspect", "models/"], bin_, tmp_path) == [
        "models/a.tflite",
        "models/b.TFLITE",
        "models/inner/",
    ]
    assert "models/net.keras" in offered(["litefuse", "convert", "models/n"], bin_, tmp_path)
    assert offered(["litefuse", "inspect", "mod"], bin_, tmp_path) == ["<-o dirnames>"]
    assert offered(["litefuse", "inspect", "models/n"], bin_, tmp_path) == ["<-o default>"]
    assert offered(["litefuse", "convert", "--target", "cortex-a5"], bin_, tmp_path) == ["cortex-a53"]
    assert "tflm" in offered(["litefuse", "convert", "--target", "t"], bin_, tmp_path)
    assert offered(["litefuse", "convert", "--disable", "fold-sh"], bin_, tmp_path) == ["fold-shape"]
    assert "inverted_residual" in offered(["litefuse", "convert", "--no-region", "inv"], bin_, tmp_path)
    assert offered(["litefuse", "rules", "fold-sh"], bin_, tmp_path) == ["fold-shape"]
    assert offered(["litefuse", "completion", "f"], bin_, tmp_path) == ["fish"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(shell: str, tmp_path: Path, bin_: dict[str, str]) -> None:
    script = in_pipes("completion", shell)
    assert (script.code, script.err) == (0, "")
    assert f"_LITEFUSE_COMPLETE={shell}_complete" in script.out
    env = {"_LITEFUSE_COMPLETE": f"{shell}_complete", "COMP_WORDS": "litefuse conv", "COMP_CWORD": "1"}
    if shell == "fish":
        env["COMP_CWORD"] = "conv"
    answer = in_pipes(env=env)
    assert (answer.code, answer.err) == (0, "")
    assert "convert" in answer.out
    if shutil.which(shell):
        parsed = subprocess.run([shell, "-n"], input=script.out, capture_output=True, text=True)
        assert (parsed.returncode, parsed.stderr) == (0, "")
