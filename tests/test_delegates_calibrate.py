"""Measured hardware profiles: what follows from times, the files, and the commands that make and use them."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litefuse import cli
from litefuse.convert import convert, explain
from litefuse.delegates.calibrate import figures, measure, profile, show
from litefuse.delegates.calibrate.measure import Facts, Timings, caches, system
from litefuse.delegates.calibrate.probes import Probe, levels, probes
from litefuse.delegates.calibrate.profile import Profile, flat, with_figures
from litefuse.delegates.cost import Roofline
from litefuse.delegates.network import Network
from litefuse.delegates.package import about
from litefuse.delegates.runtime import library
from litefuse.delegates.targets import KIB, MIB, Target, target, targets
from litefuse.errors import OutputError, RuntimeMissingError, UsageError
from litefuse.graph.build import Builder
from litefuse.graph.graph import Graph
from litefuse.report.documents import target as listed
from litefuse.schema import Model, read, write
from litefuse.schema.operators import Op

X86 = target("x86-64-v3")
CALL = 1.5  # microseconds that calling an interpreter takes on the machines made up here


def has_delegate() -> bool:
    try:
        library()
    except RuntimeMissingError:
        return False
    return True


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration directory of this test's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "litefuse" / "targets"


@pytest.fixture(scope="module")
def chosen() -> list[Probe]:
    return list(probes(X86, 64 * MIB, True))


def made(name: str = "local", **figures: Any) -> Profile:
    """A profile of this machine that differs from the default by some figures."""
    where = dataclasses.replace(with_figures(target(), figures), name=name, description="made up")
    return Profile(
        where,
        cpu=profile.processor(),
        architecture=platform.machine(),
        date="2026-01-02",
        litefuse="0",
        runtime="none",
        delegate="",
        base="generic-arm64",
        sources={"measured": tuple(flat(where)), "read": (), "derived": ()},
        notes=("only a test",),
    )


def damaged(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A file that holds a profile with a change."""
    document = json.loads(profile.to_json(made()))
    change(document)
    path.write_text(json.dumps(document))
    return path


def separable(size: int = 64, c: int = 32) -> Model:
    """A depthwise and a pointwise convolution."""
    b, rng = Builder(), np.random.default_rng(0)
    x = b.input("x", [1, size, size, c])
    w = b.constant("w", rng.standard_normal((1, 3, 3, c)).astype(np.float32))
    v = b.constant("v", rng.standard_normal((64, 1, 1, c)).astype(np.float32))
    bias, other = (b.constant(n, np.zeros(k, np.float32)) for n, k in (("b", c), ("o", 64)))
    y = b.op(Op.DEPTHWISE_CONV_2D, [x, w, bias], shape=[1, size, size, c])
    return b.model([b.op(Op.CONV_2D, [y, v, other], shape=[1, size, size, 64])])


def ran(*arguments: object) -> int:
    return cli.invoke([str(a) for a in arguments])


# -- what follows from times -------------------------------------------------------------------------------------------


def timed(truth: Target, chosen: list[Probe]) -> dict[str, float]:
    """The times of probes on a machine of which the cost model is true."""
    predictor = figures.Predictor()
    return {probe.name: predictor.us(truth, probe) + CALL for probe in chosen}


TRUTHS = {
    "the same": X86,
    "another": with_figures(
        X86,
        {
            "bandwidth.l1": 90.0,
            "bandwidth.l2": 60.0,
            "bandwidth.l3": 35.0,
            "bandwidth.memory": 9.0,
            "stock_us": 0.12,
            "region_us": 1.4,
            "shares.depthwise.ours": 0.5,
            "shares.depthwise_7x7.stock": 0.1,
            "shares.winograd": 1.1,
            "shares.transposed.stock": 0.25,
            "functions.logistic.ours": 20.0,
            "functions.rsqrt.ours": 33.0,
            "functions.softmax.stock": 50.0,
            "factors.adding.stock": 7.0,
        },
    ),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_figures_are_found_again(name: str, chosen: list[Probe]) -> None:
    truth = TRUTHS[name]
    found = figures.figures(X86, X86, chosen, timed(truth, chosen))
    got, want = flat(found.target), flat(truth)
    for figure in ("stock_us", "region_us"):
        assert got[figure] == pytest.approx(want[figure], rel=0.05)
    # The peak is what 1x1 convolutions reach, traffic included, so that their share becomes 1 or a little more.
    assert got["peak_f32"] == pytest.approx(want["peak_f32"] * want["shares.pointwise.stock"], rel=0.05)
    assert got["shares.pointwise.stock"] == pytest.approx(1, rel=0.06)
    for figure in found.measured:
        if figure.startswith("bandwidth."):
            assert got[figure] == pytest.approx(want[figure], rel=0.06), figure
        elif figure.startswith("shares.") and figure != "shares.winograd":
            peak = "peak_int8" if figure.split(".")[1] in ("int8", "hybrid") else "peak_f32"
            assert got[figure] * got[peak] == pytest.approx(want[figure] * want[peak], rel=0.03), figure
        elif figure.startswith("functions."):
            ratio = got["peak_f32"] / want["peak_f32"]
            assert got[figure] == pytest.approx(want[figure] * ratio, rel=0.05), figure
    # What a Winograd convolution takes is found again, whatever plain ones reach.
    speed = [f["shares.convolution.ours"] * f["peak_f32"] / f["shares.winograd"] for f in (got, want)]
    assert speed[0] == pytest.approx(speed[1], rel=0.03)
    # Sums and quotients that take less than the traffic cannot be told from it.
    assert all(note.startswith(("functions.div.stock could", "factors.adding.ours could")) for note in found.notes)


def test_the_model_then_agrees_with_every_probe(chosen: list[Probe]) -> None:
    times = timed(TRUTHS["another"], chosen)
    found = figures.figures(X86, X86, chosen, times)
    predictor = figures.Predictor()
    for probe in chosen:
        assert predictor.us(found.target, probe) + CALL == pytest.approx(times[probe.name], rel=0.08), probe.name


def test_odd_times_count_as_one_of_several(chosen: list[Probe]) -> None:
    times = timed(X86, chosen)
    usual = figures.figures(X86, X86, chosen, times).target
    times["shares.depthwise.ours 28 192 3"] /= 2
    assert figures.figures(X86, X86, chosen, times).target.shares.depthwise.ours == pytest.approx(
        usual.shares.depthwise.ours, rel=0.1
    )


def test_sides_that_win_by_turns_are_level(chosen: list[Probe]) -> None:
    times = timed(X86, chosen)
    assert figures.figures(X86, X86, chosen, times).target.shares.depthwise.ours > 0.3
    for case, factor in (("56 96 3", 0.8), ("28 192 3", 1.0), ("14 384 3", 1.2)):
        times[f"shares.depthwise.ours {case}"] = factor * times[f"shares.depthwise.stock {case}"]
    level = figures.figures(X86, X86, chosen, times).target.shares.depthwise
    assert level.ours == level.stock
    for case in ("56 96 3", "28 192 3", "14 384 3"):
        times[f"shares.depthwise.ours {case}"] = 0.5 * times[f"shares.depthwise.stock {case}"]
    apart = figures.figures(X86, X86, chosen, times).target.shares.depthwise
    assert apart.ours > 1.9 * apart.stock


def test_without_the_delegate_its_figures_follow(chosen: list[Probe]) -> None:
    stock = list(probes(X86, 64 * MIB, False))
    assert {p.name for p in stock} == {p.name for p in chosen if not p.ours}
    truth = with_figures(X86, {"shares.depthwise.stock": 0.54, "functions.tanh.stock": 13.0, "stock_us": 0.16})
    found = figures.figures(X86, X86, stock, timed(truth, stock))
    assert not any("ours" in f or f in ("region_us", "shares.winograd") for f in found.measured)
    got = found.target
    assert got.region_us == pytest.approx(1.6, rel=0.05)
    for now, base in ((got.shares.depthwise, X86.shares.depthwise), (got.functions.tanh, X86.functions.tanh)):
        assert now.ours / now.stock == pytest.approx(base.ours / base.stock, rel=0.01)


def test_what_is_not_measured_goes_with_what_is(chosen: list[Probe]) -> None:
    slow = {name: CALL + 3 * (us - CALL) for name, us in timed(X86, chosen).items()}
    found = figures.figures(X86, X86, chosen, slow)
    assert found.target.fallback_us == pytest.approx(X86.fallback_us * X86.peak_f32 / found.target.peak_f32, rel=0.01)
    assert "fallback_us" not in found.measured
    now, base = found.target.functions, X86.functions
    assert now.log.stock / now.exp.stock == pytest.approx(base.log.stock / base.exp.stock, rel=0.01)
    assert found.target.max_live == X86.max_live


def test_nonsense_gives_no_nonsense(chosen: list[Probe]) -> None:
    """Times that cannot be, as on a machine that stands still now and then, leave what was known, and say so."""
    for us in (1e-3, 1e7):
        found = figures.figures(X86, X86, chosen, dict.fromkeys((p.name for p in chosen), us))
        assert any("stock_us" in note for note in found.notes)
        assert "region_us" not in found.measured
        assert all(v > 0 for v in flat(found.target).values() if isinstance(v, float))
    nothing = figures.figures(X86, X86, chosen, {})
    assert nothing.measured == []
    assert dataclasses.replace(nothing.target, name="x") == dataclasses.replace(X86, name="x")


def test_bandwidths_fall_from_level_to_level(chosen: list[Probe]) -> None:
    truth = with_figures(X86, {"bandwidth.l2": 50.0, "bandwidth.l3": 70.0})
    found = figures.figures(X86, X86, chosen, timed(truth, chosen))
    assert list(found.target.bandwidth) == sorted(found.target.bandwidth, reverse=True)
    assert any("bandwidth.l2" in note for note in found.notes)


@pytest.mark.parametrize("where", [t for t in targets() if t.delegate], ids=lambda t: t.name)
def test_probes_suit_every_machine(where: Target) -> None:
    found = levels(where, 256 * MIB)
    assert [where.level(bytes) for bytes, _ in found.values()] == [0, 1, *([2] if where.l3 else []), 3]
    chosen = list(probes(where, 16 * MIB, True))
    assert len({p.name for p in chosen}) == len(chosen)
    assert {p.figure for p in chosen} <= set(flat(where))
    for probe in chosen:
        assert probe.packaged() is not probe.model if probe.ours else probe.packaged() is probe.model


def test_the_nearest_profile() -> None:
    assert figures.nearest("x86_64").name == figures.nearest("AMD64", 9.0).name == "x86-64-v3"
    assert figures.nearest("aarch64").name == figures.nearest("riscv64", 9.0).name == "generic-arm64"
    assert figures.nearest("aarch64", 9.0).name == "cortex-a53"
    assert figures.nearest("arm64", 99.0).name == "cortex-x"


def test_profile_of_an_arm_core_has_the_nearest_as_its_base() -> None:
    small = target("cortex-a53")
    facts = Facts("a core", "aarch64", {"cores": 4, "l1": small.l1, "l2": small.l2, "l3": 0})
    chosen = list(probes(small, 64 * MIB, True))
    timings = Timings(timed(small, chosen), dict.fromkeys((p.name for p in chosen), 0.5), 9, {"a probe": "no kernel"})
    found = measure.profile("board", facts, chosen, timings, runtime="r 1", delegate="d", date="2026-01-02")
    assert found.base == "cortex-a53"
    assert found.target.name == "board"
    assert found.target.l3 == 0
    assert found.target.bandwidth[2] == found.target.bandwidth[3]
    assert found.source("l1") == "read"
    assert found.source("stock_us") == "measured"
    assert found.source("bandwidth.l3") == found.source("max_live") == "derived"
    assert any("the machine was busy" in note for note in found.notes)
    assert "a probe could not be run: no kernel" in found.notes


def test_processes_count_by_their_median() -> None:
    runs = [Timings({"a": us, "b": 1.0}, {"a": us / 100, "b": 0.0}, 5, {}) for us in (30.0, 10.0, 11.0)]
    runs[1] = Timings({"a": 10.0}, {"a": 0.1}, 6, {"b": "odd"})
    assert measure.together(runs) == Timings({"a": 11.0}, {"a": 0.11}, 16, {"b": "odd"})


# -- the system --------------------------------------------------------------------------------------------------------


def test_caches_that_linux_tells(tmp_path: Path) -> None:
    for i, (level, kind, size) in enumerate(
        [
            (1, "Data", "48K"),
            (1, "Instruction", "32K"),
            (2, "Unified", "2048K"),
            (3, "Unified", "36M"),
            (4, "Data", "?"),
        ]
    ):
        entry = tmp_path / f"sys/devices/system/cpu/cpu3/cache/index{i}"
        entry.mkdir(parents=True)
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (entry / name).write_text(f"{value}\n")
    assert caches(3, tmp_path) == {1: 48 * KIB, 2: 2 * MIB, 3: 36 * MIB}
    assert caches(0, tmp_path) == {}
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nflags\t\t: fpu avx2 fma avx512f avx512_vnni\n")
    told = system(3, tmp_path).figures
    assert (told["l1"], told["l3"], told["simd_bits"], told["has_dotprod"]) == (48 * KIB, 36 * MIB, 512, True)
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nFeatures\t: fp asimd aes\n")
    told = system(0, tmp_path).figures
    assert (told["simd_bits"], told["has_dotprod"]) == (128, False)
    assert "l1" not in told
    assert system(0, tmp_path / "nowhere").figures.keys() == {"cores"}


# -- files -------------------------------------------------------------------------------------------------------------


def test_profiles_come_back_from_files(tmp_path: Path) -> None:
    for one in targets():
        assert with_figures(target("cortex-m"), flat(one)) == dataclasses.replace(
            one, name="cortex-m", description=target("cortex-m").description
        )
    before = made(**{"bandwidth.l2": 33.25, "shares.winograd": 1.0625, "functions.tanh.ours": 5.5})
    profile.write(before, tmp_path / "a.json")
    after = profile.read(tmp_path / "a.json")
    assert after == before
    assert after.path == tmp_path / "a.json"
    assert after.target.bandwidth[1] == 33.25
    assert profile.to_json(after) == profile.to_json(before)


def figure(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets a field, or takes it away when the value is `...`."""

    def change(document: dict[str, Any]) -> None:
        *path, last = name.split(".")
        for key in path:
            document = document[key]
        if value is ...:
            del document[last]
        else:
            document[last] = value

    return change


DAMAGE = [
    (figure("litefuse_target", 2), "`litefuse_target` is 2, this version reads 1 only"),
    (figure("litefuse_target", True), "`litefuse_target` is true"),
    (figure("litefuse_target", ...), "is no target: `litefuse_target` is missing"),
    (figure("colour", "red"), "`colour` is no field of a target"),
    (figure("cpu", ...), "`cpu` is missing"),
    (figure("cpu", ""), "`cpu` is empty"),
    (figure("date", 5), "`date` is no text"),
    (figure("name", "../up"), "`name` may have letters"),
    (figure("name", "cortex-a53"), "`name` is `cortex-a53`, which is a built-in target"),
    (figure("notes", "none"), "`notes` is no list"),
    (figure("notes", [1]), r"`notes\[0\]` is no text"),
    (figure("figures", []), "`figures` is no object"),
    (figure("figures.l4", 1), "`figures.l4` is no field of a target"),
    (figure("figures.l1", ...), "`figures.l1` is missing"),
    (figure("figures.l1", 1.5), "`figures.l1` is no whole number"),
    (figure("figures.l1", 0), "`figures.l1` is 0, not a number from above zero"),
    (figure("figures.l1", 1 << 30), "`figures` has a cache that is larger than the next one"),
    (figure("figures.peak_f32", -1.0), "`figures.peak_f32` is -1.0"),
    (figure("figures.peak_f32", 1e30), "`figures.peak_f32` is 1e"),
    (figure("figures.peak_f32", "fast"), "`figures.peak_f32` is no number"),
    (figure("figures.peak_f32", True), "`figures.peak_f32` is no number"),
    (figure("figures.peak_f32", float("nan")), "NaN is no number of JSON"),
    (figure("figures.has_dotprod", 1), "`figures.has_dotprod` is neither true nor false"),
    (figure("figures.types", ["FLOAT31"]), "`figures.types` is no list of types"),
    (figure("figures.bandwidth.l2", ...), "`figures.bandwidth.l2` is missing"),
    (figure("figures.bandwidth.tape", 1), "`figures.bandwidth.tape` is no field"),
    (figure("figures.shares.pointwise", 0.9), "`figures.shares.pointwise` is no object"),
    (figure("figures.shares.pointwise.ours", 0), "`figures.shares.pointwise.ours` is 0"),
    (figure("figures.functions.sigmoid", {}), "`figures.functions.sigmoid` is no field"),
    (figure("figures.factors.builtin", None), "`figures.factors.builtin` is no number"),
    (figure("sources.measured", ["l1"]), "`sources` does not say where cores is from"),
    (figure("sources.read", ["l1"]), "`sources.read` has l1, which was named before"),
    (figure("sources.read", ["l9"]), '`sources.read` has "l9", which is no figure'),
    (figure("sources.read", 1), "`sources.read` is no list"),
    (figure("sources.guessed", []), "`sources.guessed` is no field"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGE, ids=[m for _, m in DAMAGE])
def test_damage_is_named_with_file_and_field(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    path = damaged(tmp_path / "odd.json", change)
    with pytest.raises(UsageError, match=rf"odd\.json: .*{message}"):
        target(str(path))


def test_files_that_are_no_profiles(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, message in (
        ("", "is no target: it is not valid JSON"),
        ("[1]", "is no target"),
        ("{}", "is no target"),
        ("[" * 100_000, "is no target"),
        ('{"litefuse_target": 1, "litefuse_target": 1}', "is there twice"),
        ("1" * (1 << 21), "is too large"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            profile.read(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is no target"):
        profile.read(path)
    for absent in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            target(absent)


# -- names -------------------------------------------------------------------------------------------------------------


def test_saved_profiles_have_names(config: Path) -> None:
    one = made("my-pi", l1=16 * KIB)
    assert profile.save(one) == config / "my-pi.json"
    assert target("my-pi") == one.target
    assert [p.target.name for p in profile.saved()[0]] == ["my-pi"]
    assert [t.name for t in targets()] == [t.name for t in targets() if t.name != "my-pi"]
    # Of another name inside, or damaged: the others are listed all the same.
    profile.write(one, config / "other.json")
    (config / "broken.json").write_text("{")
    found, problems = profile.saved()
    assert [p.target.name for p in found] == ["my-pi"]
    assert len(problems) == 2
    with pytest.raises(UsageError, match=r"other\.json: `name` is `my-pi`, not `other`"):
        target("other")
    with pytest.raises(UsageError, match=r"no target `pi`; the targets are tflm, generic-arm64, .*my-pi.*, and files"):
        target("pi")


@pytest.mark.parametrize("name", ["tflm", "cortex-m", "x86-64-v3", "", "a b", "-x", "x" * 65])
def test_names_that_cannot_be_saved(name: str) -> None:
    with pytest.raises(UsageError):
        profile.place(name)


def test_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # which the standard tells to ignore
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profile.directory() == tmp_path / ".config" / "litefuse" / "targets"
    (tmp_path / ".config").write_text("in the way")
    with pytest.raises(OutputError, match="cannot be made"):
        profile.save(made())


def test_another_processor_is_told() -> None:
    assert made().elsewhere is None
    assert "Z80" in (dataclasses.replace(made(), cpu="Z80").elsewhere or "")
    assert dataclasses.replace(made(), architecture="z80").elsewhere is not None
    assert profile.processor()


# -- use ---------------------------------------------------------------------------------------------------------------


def test_convert_and_explain_take_profiles(tmp_path: Path) -> None:
    cheap = made(**{"region_us": 0.01, "shares.depthwise.ours": 3.0})
    dear = made("dear", region_us=1e6)
    path = tmp_path / "dear.json"
    profile.save(cheap)
    profile.write(dear, path)
    done = convert(separable(), target="local", check=False)
    assert done.regions is not None
    assert [f.region.kind for f in done.regions.regions] == ["depthwise_pointwise"]
    assert (about(done.model) or {})["target"] == "local"
    assert explain(separable(), target=str(path)).regions.kinds() == {}  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="no target"):
        convert(separable(), target="toaster", check=False)


def test_every_share_has_an_effect() -> None:
    """Each figure that can be measured changes what the model says of its probes."""
    chosen = list(probes(X86, 64 * MIB, True))
    for probe in chosen:
        if probe.figure.startswith(("peak", "stock_us", "region_us")):
            continue
        other = with_figures(X86, {probe.figure: 10 * flat(X86)[probe.figure]})
        predictor = figures.Predictor()
        assert predictor.us(other, probe) != predictor.us(X86, probe), probe.name


def test_functions_and_factors_of_a_target_count() -> None:
    b = Builder()
    x = b.input("x", [1, 64, 256])
    network = Network(Graph(b.model([b.op(Op.TANH, [x], shape=[1, 64, 256])]), 0))
    slow = with_figures(X86, {"functions.tanh.stock": 260.0})
    assert Roofline(slow).operator_us(network, 0) > 6 * Roofline(X86).operator_us(network, 0)
    assert Roofline(slow).fused_us(network, {0}) == Roofline(X86).fused_us(network, {0})


# -- the command -------------------------------------------------------------------------------------------------------


def test_list_and_show(config: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    profile.save(made("my-pi", **{"bandwidth.l2": 33.25}))
    (config / "broken.json").write_text("{")
    assert ran("targets") == 0
    out, err = capsys.readouterr()
    assert "my-pi" in out
    assert "litefuse: warning: " in err
    assert "broken.json" in err
    assert ran("targets", "my-pi") == 0
    out, err = capsys.readouterr()
    assert "33.25" in out
    assert "note: only a test" in out
    assert err == ""
    assert ran("targets", "--json", "x86-64-v3") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["targets"] == [listed(X86, "generic-arm64")]
    assert {row["figure"]: row["value"] for row in document["profile"]["figures"]}["peak_f32"] == 101.0
    assert document["profile"]["base"] is None
    path = tmp_path / "far.json"
    profile.write(dataclasses.replace(made(), cpu="Z80"), path)
    assert ran("targets", path) == 0
    assert "measured on another processor, Z80" in capsys.readouterr().err
    assert ran("targets", "nothing") == 2
    assert "there is no target `nothing`" in capsys.readouterr().err


def test_commands_take_a_file_and_warn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model, path = tmp_path / "m.tflite", tmp_path / "far.json"
    write(separable(), model)
    profile.write(dataclasses.replace(made("far"), cpu="Z80"), path)
    assert ran("convert", model, "--no-check", "--target", path, "-o", tmp_path / "o.tflite") == 0
    assert "warning: the target `far` was measured on another processor" in capsys.readouterr().err
    assert (about(read(tmp_path / "o.tflite")) or {"target": "far"})["target"] == "far"
    assert ran("explain", model, "--target", damaged(path, figure("figures.l1", "big"))) == 2
    err = capsys.readouterr().err
    assert "far.json: `figures.l1` is no number" in err
    assert err.count("\n") == 1


def test_options_that_need_calibrate(capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--budget", "5"], ["--cpu", "0"], ["-o", "x.json"]):
        assert ran("targets", *option) == 2
        assert "needs --calibrate" in capsys.readouterr().err
    assert ran("targets", "--calibrate", "-o", "x") == 2
    assert "has to end in .json" in capsys.readouterr().err
    assert ran("targets", "--calibrate", "tflm") == 2
    assert ran("targets", "--calibrate", "--cpu", "100000") == 2


def test_interrupted_calibration_leaves_the_old_profile(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile.save(made())
    before = (config / "local.json").read_bytes()

    def interrupt(*arguments: Any, **options: Any) -> Profile:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "in_child", interrupt)
    assert ran("targets", "--calibrate") == 130
    assert [p.name for p in config.iterdir()] == ["local.json"]
    assert (config / "local.json").read_bytes() == before


def test_a_crash_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: Path) -> None:
    def crash(*arguments: Any, **options: Any) -> Profile:
        raise measure.ChildFailure("crashed (SIGILL)", "making probe 3 of 9")

    monkeypatch.setattr(measure, "in_child", crash)
    assert ran("targets", "--calibrate") == 1
    assert "the calibration crashed (SIGILL) while it was making probe 3 of 9" in capsys.readouterr().err
    assert not config.exists()


@pytest.mark.parametrize(
    "delegate", [False, pytest.param(True, marks=pytest.mark.skipif(not has_delegate(), reason="no delegate"))]
)
def test_this_machine_is_measured(
    delegate: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A real calibration, as short as can be: what it gives is plausible, and commands take it."""
    if not delegate:
        monkeypatch.setenv("LITEFUSE_DELEGATE_LIBRARY", str(tmp_path / "absent.so"))
    assert ran("targets", "--calibrate", "--budget", "0.1", "--json") == 0
    document = json.loads(capsys.readouterr().out)["profile"]
    assert document["name"] == "local"
    assert document["cpu"] == profile.processor()
    found = profile.named("local")
    assert found.source("peak_f32") == "measured"
    assert found.target.peak_f32 > 0.5
    assert found.source("shares.pointwise.ours") == ("measured" if delegate else "derived")
    assert any("the delegate was not measured" in note for note in found.notes) is not delegate
    assert bool(found.delegate) is delegate
    assert show.document(found.target, found)["figures"] == document["figures"]
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert convert(separable(), target="local", check=False).regions is not None
