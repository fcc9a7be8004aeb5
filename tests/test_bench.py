"""Measuring models: what is run, how samples become figures, what is reported; not how fast anything is."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delegate import packaged
from rich.console import Console
from test_cli import Ran, documented

from litefuse.bench import (
    BenchResult,
    Contender,
    Latency,
    OperatorTime,
    Profile,
    Ratio,
    RegionTime,
    Samples,
    bench,
    latency,
    race,
    ratio,
    values,
)
from litefuse.errors import LitefuseError, RuntimeMissingError, SchemaError, UsageError
from litefuse.graph.build import Builder
from litefuse.isolation import ChildFailure
from litefuse.report import documents, terminal
from litefuse.schema import Model, to_bytes, write
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op

FAST: dict[str, Any] = {"rounds": 3, "warmup": 1}


def model(batch: int = 1, size: int = 8) -> Model:
    """CONV_2D, RELU and the input added to it."""
    b = Builder()
    x = b.input("x", [batch, size, size, 4])
    weights = np.random.default_rng(0).normal(size=(4, 3, 3, 4)).astype(np.float32)
    y = b.op(Op.CONV_2D, [x, b.constant("w", weights), b.constant("b", np.ones(4, np.float32))], name="conv")
    return b.model([b.op(Op.ADD, [b.op(Op.RELU, [y], name="relu"), x], name="sum")])


def stranger() -> Model:
    """A model that no runtime can run."""
    b = Builder()
    made = b.model([b.op(Op.CUSTOM, [b.input("x", [4])], name="y", shape=[4])])
    made.operator_codes[-1].custom_code = "NobodyKnowsThis"
    return made


def unsupported() -> Model:
    """A packaged model of an operator that no region may contain."""
    b = Builder()
    y = b.op(Op.BUCKETIZE, [b.input("x", [4])], shape=[4], type=TensorType.INT32, boundaries=[0.0, 0.5])
    return packaged(b.model([y]))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("bench")
    made = {
        "plain": model(),
        "open": model(-1),
        "stranger": stranger(),
        "unsupported": unsupported(),
        **{mode: packaged(model(), mode) for mode in ("composite", "plan", "custom")},
    }
    for name, m in made.items():
        write(m, directory / f"{name}.tflite")
    (directory / "bad.tflite").write_bytes(b"this is not a model")
    return {path.stem: path for path in directory.iterdir()}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Does in this process what child processes do, which is quicker; the names of their functions."""
    called: list[str] = []

    def direct(function: str, *arguments: Any, hear: Any, timeout: float) -> Any:
        called.append(function)
        return _functions[function.partition(":")[2]](*arguments, say=hear)

    monkeypatch.setitem(_functions, "in_child", direct)
    return called


_functions = bench.__globals__


def sane(one: Contender) -> None:
    """What holds of everything that was measured."""
    assert one.failure is None
    t = one.latency
    assert t is not None
    assert 0 < t.least <= t.p50 <= t.p90 <= t.p99 <= t.most
    assert t.jitter >= 0
    assert one.start_ms is not None
    assert one.first_start_ms is not None
    assert one.start_ms > 0
    assert one.first_start_ms > 0
    if one.ratio is not None:
        assert 0 < one.ratio.low <= one.ratio.median <= one.ratio.high
    if os.path.exists("/proc/self/status"):
        assert one.peak_bytes is not None
        assert one.own_bytes is not None
        assert one.peak_bytes > 1 << 20
        assert 0 <= one.own_bytes < one.peak_bytes
    assert (one.regions is not None) == (one.scratch_bytes is not None) == one.delegate


# -- figures -------------------------------------------------------------------------------------------------------


def test_percentiles_and_ratios_by_hand() -> None:
    calls = [i / 1000 for i in range(1, 102)]  # 1 to 101 ms
    found = latency(Samples([], calls[::-1]))
    assert found == pytest.approx((101, 51, 91, 100, 1, 101))
    assert found.jitter == pytest.approx(100 / 51 - 1)
    base = Samples([1.0, 2.0, 4.0, 1.0, 1.0], [])
    # Ratios 2, 1.5, 0.5, 3 and 1: pairs count, not the medians of each side.
    found_ratio = ratio(base, Samples([2.0, 3.0, 2.0, 3.0, 1.0], []))
    assert found_ratio == pytest.approx((5, 1.5, 1.0, 2.0))
    assert ratio(Samples([2.0], []), Samples([1.0], [])) == (1, 0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ((9, 0.5, 0.4, 0.99), "faster"),
        ((9, 1.2, 1.01, 1.3), "slower"),
        ((9, 1.2, 0.9, 1.3), "unclear"),
        ((9, 1.0, 1.0, 1.0), "unclear"),
        ((4, 0.5, 0.4, 0.6), "unclear"),
    ],
)
def test_verdicts(figures: tuple[int, float, float, float], verdict: str) -> None:
    assert Ratio(*figures).verdict == verdict


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only the functions under test move on."""
    now = [100.0]
    monkeypatch.setattr(_functions["time"], "perf_counter", lambda: now[0])
    return now


def taking(clock: list[float], name: str, seconds: float, log: list[str]) -> Any:
    def function() -> None:
        clock[0] += seconds
        log.append(name)

    return function


def test_contenders_take_turns_in_changing_order(clock: list[float]) -> None:
    log: list[str] = []
    samples = race([taking(clock, "a", 1, log), taking(clock, "b", 2, log)], rounds=4, warmup=2)
    assert "".join(log) == "abab" + "abbaabba"
    assert [s.rounds for s in samples] == [pytest.approx([1] * 4), pytest.approx([2] * 4)]
    assert [len(s.calls) for s in samples] == [4, 4]
    log.clear()
    race([taking(clock, name, 1, log) for name in "abc"], rounds=6, warmup=1)
    assert len({tuple(log[3 + i : 6 + i]) for i in range(0, 18, 3)}) == 6


def test_quick_contenders_run_often_in_a_round(clock: list[float]) -> None:
    log: list[str] = []
    quick, slow = race([taking(clock, "q", 0.0005, log), taking(clock, "s", 0.5, log)], rounds=5, warmup=1)
    assert (len(quick.calls), len(slow.calls)) in ((15, 5), (20, 5))  # 2 ms, but for rounding
    assert quick.rounds == pytest.approx([0.0005] * 5)
    assert ratio(quick, slow).median == pytest.approx(1000)


def test_time_limits(clock: list[float]) -> None:
    def rounds(**limits: Any) -> int:
        return len(race([taking(clock, "a", 1, []), taking(clock, "b", 1, [])], warmup=1, **limits)[0].rounds)

    assert rounds(seconds=30) == 16  # the last begins in time
    assert rounds(seconds=1) == 5
    assert rounds(seconds=30, rounds=3) == 3
    assert rounds(rounds=40) == 40


def test_signs_of_life(clock: list[float]) -> None:
    told: list[int] = []
    race([taking(clock, "a", 0.2, [])], rounds=6, warmup=3, tell=told.append)
    assert told == [0, 2, 5]  # each 0.6 s


def test_inputs_are_calm_and_of_the_shapes_asked_for() -> None:
    (found,) = values(model(-1))
    assert (found.value.shape, found.value.dtype, found.resize) == ((1, 8, 8, 4), np.float32, False)
    assert np.isfinite(found.value).all()
    (larger,) = values(model(-1), [(3, 8, 8, 4)])
    assert (larger.value.shape, larger.resize) == ((3, 8, 8, 4), True)
    assert np.array_equal(values(model())[0].value, found.value)
    assert not np.array_equal(values(model(), seed=1)[0].value, found.value)
    odd = model()
    odd.subgraphs[0].tensors[0].type = TensorType.VARIANT
    with pytest.raises(LitefuseError, match=r"no values can be made for the input `x` of type VARIANT"):
        values(odd)


# -- what is run ---------------------------------------------------------------------------------------------------


def test_a_packaged_model_is_run_in_stock_and_with_the_delegate(files: dict[str, Path]) -> None:
    said: list[str] = []
    result = bench(files["composite"], rounds=7, warmup=1, profile=True, progress=said.append)
    stock, ours = result.contenders
    assert (stock.name, stock.delegate, stock.xnnpack, stock.ratio) == ("stock", False, True, None)
    assert (ours.name, ours.delegate, ours.xnnpack, ours.regions) == ("litefuse", True, True, 1)
    for one in result.contenders:
        sane(one)
        assert one.file == str(files["composite"])
        assert one.file_bytes == files["composite"].stat().st_size
    assert ours.ratio is not None
    assert ours.ratio.rounds == result.rounds == 7
    # 1 KiB for each tensor: input and output of the composite, and three at a time inside of it.
    assert (stock.arena_bytes, stock.scratch_bytes) == (2048 + 3072, None)
    assert ours.arena_bytes == 2048
    # A strip of rows of each tensor inside, with what the kernels need beside them.
    assert ours.scratch_bytes is not None
    assert 0 < ours.scratch_bytes <= 8192
    assert result.delegate is not None
    assert result.delegate.startswith("cpu: ")
    assert (result.threads, result.warmup, result.pinned, result.notes) == (1, 1, [], [])
    assert result.runtime_version
    assert any("litefuse: it was loaded" in text for text in said)
    assert said[-1] == ""

    profile = result.profile
    assert profile is not None
    assert profile.runs == 7
    (region,) = profile.regions
    assert (region.name, region.position) == ("litefuse.test", 0)
    assert {t.operator.split("`")[1] for t in region.operators} == {"conv", "relu", "sum"}
    assert [t.ms for t in region.operators] == sorted((t.ms for t in region.operators), reverse=True)
    assert region.ms == pytest.approx(sum(t.ms for t in region.operators))
    assert 0 < region.ms <= profile.ms
    assert profile.outside_ms + region.ms == pytest.approx(profile.ms)
    assert sum(t.share for t in region.operators) == pytest.approx(region.share)


def test_plans_and_custom_operators(files: dict[str, Path], here: list[str]) -> None:
    stock, ours = bench(files["plan"], **FAST).contenders
    assert (stock.arena_bytes, ours.arena_bytes, ours.regions) == (3072, 2048, 1)
    result = bench(files["custom"], **FAST)
    (only,) = result.contenders
    assert (only.name, only.ratio, only.arena_bytes) == ("litefuse", None, 2048)
    assert result.notes == [f"{files['custom']} has custom operators, which the stock runtime cannot run"]
    for one in (stock, ours, only):
        sane(one)


def test_two_files(files: dict[str, Path], here: list[str]) -> None:
    result = bench(files["plain"], files["composite"], seconds=0.2, warmup=1)
    assert [(c.name, c.file, c.delegate) for c in result.contenders] == [
        ("A stock", str(files["plain"]), False),
        ("B stock", str(files["composite"]), False),
        ("B litefuse", str(files["composite"]), True),
    ]
    assert result.rounds >= 5
    assert result.files == [str(files["plain"]), str(files["composite"])]
    for one in result.contenders:
        sane(one)
    assert [c.ratio is None for c in result.contenders] == [True, False, False]
    assert result.contenders[0].arena_bytes == 3072
    without = bench(files["plain"], files["composite"], delegate=False, **FAST)
    assert [c.name for c in without.contenders] == ["A stock", "B stock"]
    assert without.notes == []


def test_models_and_bytes_are_taken_too(files: dict[str, Path], here: list[str]) -> None:
    result = bench(model(), to_bytes(model()), threads=2, **FAST)
    assert result.files == ["model A", "model B"]
    assert result.threads == 2
    assert [c.name for c in result.contenders] == ["A stock", "B stock"]
    assert result.contenders[1].file_bytes == len(to_bytes(model()))


def test_a_model_without_regions_says_what_to_do(files: dict[str, Path], here: list[str]) -> None:
    result = bench(files["plain"], **FAST)
    assert [(c.name, c.xnnpack, c.delegate) for c in result.contenders] == [
        ("builtin kernels", False, False),
        ("XNNPACK", True, False),
    ]
    for one in result.contenders:
        sane(one)
    (note,) = result.notes
    assert "no regions for litefuse's delegate" in note
    assert "`litefuse convert --package plan` makes a file that has" in note
    # Regions that are left alone are no reason to advise anything.
    result = bench(files["composite"], delegate=False, **FAST)
    assert [c.name for c in result.contenders] == ["builtin kernels", "XNNPACK"]
    assert result.notes == []


def test_open_dimensions_take_the_sizes_of_the_other_model(
    files: dict[str, Path], here: list[str], tmp_path: Path
) -> None:
    write(model(3), tmp_path / "three.tflite")
    result = bench(files["open"], tmp_path / "three.tflite", **FAST)
    assert result.notes == []
    for one in result.contenders:
        sane(one)
    write(model(1, size=12), tmp_path / "other.tflite")
    (note,) = bench(files["plain"], tmp_path / "other.tflite", **FAST).notes
    assert note.startswith("the interfaces differ, so the two may do different work: ")
    # An open batch counts as 1.
    assert bench(files["open"], **FAST).contenders[0].arena_bytes == 3072


def test_regions_that_the_delegate_refuses(files: dict[str, Path], here: list[str]) -> None:
    result = bench(files["unsupported"], **FAST)
    first, second = result.notes
    assert re.fullmatch(r"litefuse: left to the runtime: litefuse\.test #0: .*regions may contain", first)
    assert second == "litefuse: the delegate runs no region, so all is run by the stock runtime"
    stock, ours = result.contenders
    assert (ours.regions, ours.arena_bytes, ours.scratch_bytes) == (0, None, 0)
    assert stock.arena_bytes == 2 * (64 + 64)
    sane(ours)
    here.clear()
    with pytest.raises(RuntimeMissingError, match=r"the delegate runs no region .*regions may contain"):
        bench(files["unsupported"], delegate=True, **FAST)
    assert here == ["litefuse.bench:_alone"] * 2  # nothing is timed in vain


def test_a_delegate_that_is_not_there(
    files: dict[str, Path], here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LITEFUSE_DELEGATE_LIBRARY", str(tmp_path / "missing.so"))
    result = bench(files["composite"], **FAST)
    assert [c.name for c in result.contenders] == ["builtin kernels", "XNNPACK"]
    assert result.delegate is None
    (note,) = result.notes
    assert "regions are run by the stock runtime" in note
    assert "missing.so" in note
    for options in ({"delegate": True}, {"profile": True}):
        with pytest.raises(RuntimeMissingError, match=r"missing\.so"):
            bench(files["composite"], **options, **FAST)
    assert bench(files["plain"], delegate=False, **FAST).delegate is None


# -- what cannot be run --------------------------------------------------------------------------------------------


def test_refusals_of_the_runtime(files: dict[str, Path], here: list[str]) -> None:
    with pytest.raises(RuntimeMissingError, match=r"builtin kernels: the runtime refuses it: .*NobodyKnowsThis"):
        bench(files["stranger"], **FAST)
    result = bench(files["plain"], files["stranger"], **FAST)
    good, bad = result.contenders
    sane(good)
    assert bad.failure is not None
    assert "NobodyKnowsThis" in bad.failure
    assert (bad.latency, bad.ratio, bad.start_ms, bad.arena_bytes) == (None,) * 4
    # Without the base there are no ratios.
    bad, good = bench(files["stranger"], files["plain"], **FAST).contenders
    sane(good)
    assert bad.failure is not None
    assert good.ratio is None


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("_race", r"^the runtime crashed \(SIGSEGV\) while all ran in turn$"),
        ("_profile", r"^the runtime crashed \(SIGSEGV\) while all ran in turn$"),
        ("_alone", r"^stock: the runtime crashed .* in turn; litefuse: the runtime crashed \(SIGSEGV\) while"),
    ],
)
def test_crashes_are_errors(
    files: dict[str, Path], here: list[str], monkeypatch: pytest.MonkeyPatch, function: str, words: str
) -> None:
    def crash(*arguments: Any, say: Any) -> Any:
        raise ChildFailure("crashed (SIGSEGV)", "all ran in turn")

    monkeypatch.setitem(_functions, function, crash)
    with pytest.raises(RuntimeMissingError, match=words):
        bench(files["composite"], profile=True, **FAST)


def test_a_runtime_that_really_crashes(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # In the child processes alone, the first invocation takes the process down.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, os\n"
        "if sys.argv == ['-c']:\n"
        "    import ai_edge_litert.interpreter as module\n"
        "    module.Interpreter.invoke = lambda self: os.kill(os.getpid(), 11)\n"
    )
    pytest.importorskip("ai_edge_litert.interpreter")
    monkeypatch.syspath_prepend(tmp_path)
    ran = Ran(capsys, "bench", files["plain"], "--runs", 3)
    assert ran.code == 5
    assert "builtin kernels: the runtime crashed (SIGSEGV) while it ran for the first time" in ran.error()
    assert ran.out == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threads": 0}, "1 at least"),
        ({"rounds": 0}, "1 at least"),
        ({"warmup": 0}, "1 at least"),
        ({"seconds": 0.0}, "above zero"),
        ({"seconds": float("inf")}, "above zero"),
        ({"pinned": [4711]}, "processor 4711 cannot be used"),
        ({"delegate": True}, "has no regions for litefuse's delegate to run"),
        ({"profile": True}, "has no regions for litefuse's delegate to run"),
        ({"profile": True, "delegate": False}, "a profile needs the delegate"),
    ],
)
def test_wrong_usage(files: dict[str, Path], options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        bench(files["plain"], **options)


def test_unreadable_files(files: dict[str, Path]) -> None:
    with pytest.raises(SchemaError):
        bench(files["plain"], files["bad"])


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_command(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    processor = min(os.sched_getaffinity(0))
    ran = Ran(capsys, "bench", files["composite"], "--runs", 3, "--warmup", 1, "--profile", "--cpu", processor)
    assert (ran.code, ran.err) == (0, "")
    for line in (
        rf"^{re.escape(str(files['composite']))}$",
        r"^  runtime +[\w-]+ [\d.]+ with XNNPACK, 1 thread$",
        rf"^  machine +\w+, \d+ processors?, all bound to processor {processor}$",
        r"^  delegate +cpu: .+; runs 1 region$",
        r"^  measured +3 interleaved pairs after 1 round to warm up$",
        r"^ +runs +p50 +p90 +p99 +jitter +time relative to stock$",
        r"^  stock +\d+ +[\d.]+ [um]s +[\d.]+ [um]s +[\d.]+ [um]s +\d+ %$",
        r"^  litefuse .* %  [\d.]+ \(quartiles [\d.]+ to [\d.]+\): unclear$",
        r"^  start +[\d.]+ [um]s +[\d.]+ [um]s$",
        r"^  arena +[\d.]+ kB +2\.05 kB$",
        r"^  scratch +- +[\d.]+ k?B$",
        r"^Profile: [\d.]+ [um]s a run, of 3 runs$",
        r"^ +[\d.]+ [um]s +[\d.]+ %  litefuse\.test #0$",
        r"^ +[\d.]+ [um]s +[\d.]+ %    CONV_2D #0 `conv`$",
        r"^ +[\d.]+ [um]s +[\d.]+ %  outside of regions$",
    ):
        assert re.search(line, ran.out, re.MULTILINE), f"{line}\n{ran.out}"


def test_failures_of_the_command(files: dict[str, Path], here: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "bench", files["plain"], "--against", files["stranger"], "--runs", 3)
    assert ran.code == 5
    assert "B stock was not run: the runtime refuses it" in ran.error()
    assert "B stock: not run: the runtime refuses it" in ran.out
    for arguments, code in (
        ([files["bad"]], 3),
        ([files["plain"], "--delegate"], 2),
        ([files["plain"], "--seconds", "0"], 2),
        ([files["plain"], "--cpu", "4711"], 2),
    ):
        ran = Ran(capsys, "bench", *arguments)
        assert ran.code == code
        assert ran.error()


def test_documented_keys(files: dict[str, Path], here: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    keys = documented()
    document = Ran(capsys, "bench", "--json", files["composite"], "--runs", 3, "--profile").json
    assert set(document) == keys["every document"] | keys["bench: the document"]
    stock, ours = document["contenders"]
    profile = document["profile"]
    for title, *entries in (
        ("a contender", stock, ours),
        ("latency", stock["latency"]),
        ("ratio", ours["ratio"]),
        ("profile", profile),
        ("a region of a profile", *profile["regions"]),
    ):
        for entry in entries:
            assert set(entry) == keys[title], title
    assert set(profile["regions"][0]["operators"][0]) == {"operator", "ms", "share"}
    assert document["files"] == [str(files["composite"])]
    assert (stock["kernels"], stock["ratio"], ours["delegate"]) == ("xnnpack", None, True)


# -- how it looks --------------------------------------------------------------------------------------------------


def shown(result: BenchResult, **options: Any) -> str:
    out = Console(width=200, record=True, markup=False, highlight=False, emoji=False, file=open(os.devnull, "w"))  # noqa: SIM115
    document = documents.benchmark(result)
    assert json.loads(documents.to_json(document)) == document
    terminal.benchmark(out, document)
    return out.export_text(**options)


def made_up(verdict: tuple[float, float, float], operators: int = 2) -> BenchResult:
    base = Contender(
        "stock", "a.tflite", 1000, xnnpack=True, delegate=False, latency=Latency(9, 2.0, 3.0, 4.0, 1.0, 5.0)
    )
    other = Contender("litefuse", "a.tflite", 1000, xnnpack=True, delegate=True, regions=2, scratch_bytes=64)
    other.latency, other.ratio = Latency(9, 0.5, 0.6, 1234.4, 0.1, 5000.0), Ratio(9, *verdict)
    times = [OperatorTime(f"ADD #{i} `\x1b[31mt{i}`", 0.1, 0.1) for i in range(operators)]
    regions = [RegionTime("litefuse.cluster", 3, 0.1 * operators, 0.1 * operators, times)]
    return BenchResult(
        ["a.tflite"], "some-runtime", "1.2", "cpu: AVX2", "x86_64", 4, [1, 2], 2, 9, 3, [base, other],
        Profile("a.tflite", 9, 2.0, 2.0 - 0.1 * operators, regions), ["a note"],
    )  # fmt: skip


def test_losses_are_said_as_plainly_as_gains() -> None:
    assert "0.800 (quartiles 0.700 to 0.900): faster" in shown(made_up((0.8, 0.7, 0.9)))
    assert "1.800 (quartiles 1.700 to 1.900): SLOWER" in shown(made_up((1.8, 1.7, 1.9)))
    text = shown(made_up((1.0, 0.9, 1.1)))
    assert "1.000 (quartiles 0.900 to 1.100): unclear" in text
    assert "some-runtime 1.2 with XNNPACK, 2 threads" in text
    assert "x86_64, 4 processors, all bound to processors 1, 2" in text
    assert "cpu: AVX2; runs 2 regions" in text
    assert re.search(r"litefuse +9 +500.0 us +600.0 us +1,234 ms +246780 %", text)
    assert re.search(r"first start +- +-$", text, re.MULTILINE)
    assert re.search(r"scratch +- +64 B$", text, re.MULTILINE)
    assert re.search(r"file +1.00 kB +1.00 kB$", text, re.MULTILINE)
    assert "a note" in text


def test_profiles_are_sorted_and_long_ones_cut() -> None:
    text = shown(made_up((1, 1, 1), operators=12))
    assert text.index("litefuse.cluster #3") < text.index("outside of regions")
    assert "and 4 operators more" in text
    assert "\x1b" not in text
    text = shown(made_up((1, 1, 1)))
    assert text.index("outside of regions") < text.index("litefuse.cluster #3")


@pytest.mark.parametrize(
    ("name", "xnnpack_fails", "others"),
    [
        ("mlperf_kws_int8", False, []),
        ("litert_string_sig", False, []),
        ("litert_call_once", False, []),
        ("litert_multisig", False, ["only the first subgraph is run, not what these signatures call: `sub`"]),
        ("litert_dynshapes", True, []),
    ],
)
def test_real_models(corpus: list[Path], here: list[str], name: str, xnnpack_fails: bool, others: list[str]) -> None:
    path = next((p for p in corpus if p.stem == name), None)
    if path is None:
        pytest.skip(f"{name} is not in the corpus")
    result = bench(path, **FAST)
    builtin, xnnpack = result.contenders
    sane(builtin)
    if xnnpack_fails:
        assert xnnpack.failure is not None
        assert "the runtime refuses it: XNNPack delegate failed to reshape" in xnnpack.failure
    else:
        sane(xnnpack)
        assert xnnpack.ratio is not None
    assert result.notes[0].startswith(f"{path} has no regions")
    assert [note.partition(": ")[2] for note in result.notes[1:]] == others
