"""Instructions and modelled cache traffic of a run on aarch64, ours against XNNPACK's: repeatable, on any machine.

    python benchmarks/arm_counts.py [--whole] [--regions] [--all] [--only PATTERN] [FILE...]
        [--root DIRECTORY] [--build DIRECTORY] [--delegate LIBRARY] [--caches 64:4,256:8,2048:16] ...

The runtime's aarch64 build runs each original file and what `litefuse convert --target T` makes of it, with the
delegate, in one process under qemu-user, where a plugin (`qemu/counts.c`) counts instructions and simulates three
levels of cache. One thread. Figures are for one run, after another one that fills the caches. Bytes between two levels
are lines fetched and lines written back. What is to be measured is chosen as with `vs_xnnpack.py`; without a choice it
is the inverted residuals.

The plugin and the delegate are built (gcc, g++-aarch64-linux-gnu, cmake, ninja) below --build. --root is an aarch64
system as `tests/aarch64.sh` makes it (build/aarch64/root); without one it is made (debootstrap). The emulated system
says that it has the caches that are simulated.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from subjects import Subject, add_choice, chosen, regions
from vs_xnnpack import Options, Output, Prepared, add_conversion, difference, options_of

from litefuse.bench import Value, values
from litefuse.delegates.targets import target
from litefuse.errors import LitefuseError
from litefuse.isolation import ChildFailure, in_child
from litefuse.schema import read

_HERE = Path(__file__).resolve().parent
_SOURCES = _HERE.parent / "delegate_src"
_WAYS = (4, 8, 16)
# Coarse, since the stock kernels themselves are this far apart on some models; `vs_xnnpack.py` is stricter.
_AGREE = 1e-2
# What the runtime reads of the processor, which must match what qemu is told to be: part number and features.
_V8 = "fp asimd evtstrm aes pmull sha1 sha2 crc32"
_DOT = f"{_V8} atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
_PROCESSORS = {
    "cortex-a53": ("0xd03", f"{_V8} cpuid"),
    "cortex-a76": ("0xd0b", _DOT),
    "neoverse-n1": ("0xd0c", _DOT),
}


class Machine(NamedTuple):
    """The emulated machine."""

    processor: str
    prefix: Path
    """Its root directory."""
    plugin: Path
    delegate: Path
    caches: tuple[tuple[int, int], ...]
    """KiB and ways of each level."""
    simulates: bool


class Counts(NamedTuple):
    """What a run takes. All but instructions in bytes."""

    instructions: float
    accessed: float
    """Read and written by the program."""
    l1_l2: float
    l2_l3: float
    l3_dram: float
    zeroed: float
    """By instructions that the simulation leaves out."""


class Row(NamedTuple):
    """What is known of one subject."""

    subject: Subject
    prepared: Prepared | None
    stock: Counts | None = None
    ours: Counts | None = None
    told: dict[str, Any] | None = None
    failure: str | None = None

    def ratio(self, what: str) -> float:
        """Ours over XNNPACK's; NaN where XNNPACK's is none."""
        base, other = getattr(self.stock, what), getattr(self.ours, what)
        return other / base if base else math.nan


# -- the machine -----------------------------------------------------------------------------------------------------


def run(*command: str | os.PathLike[str]) -> None:
    """Runs a tool; raises LitefuseError with the end of what it says when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise LitefuseError(f"{command[0]} failed: {done.stdout.decode(errors='replace')[-2000:]}")


def build_plugin(build: Path) -> Path:
    """The plugin. Put in its place when it is whole, since others may be using it."""
    made, unfinished = build / "counts.so", build / f"counts.{os.getpid()}.so"
    run("gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", unfinished, _HERE / "qemu/counts.c")
    unfinished.replace(made)
    return made


def build_delegate(build: Path, root: Path) -> Path:
    """The delegate for aarch64."""
    where = build / "delegate"
    beside = Path(sys.executable).parent  # where cmake and ninja are when pip has installed them
    cmake, ninja = (shutil.which(tool, path=f"{beside}:{os.environ['PATH']}") for tool in ("cmake", "ninja"))
    if cmake is None or ninja is None:
        raise LitefuseError("cmake and ninja are needed to build the delegate (pip install cmake ninja)")
    toolchain = _SOURCES / "cmake/aarch64-linux-gnu.cmake"
    settings = [f"-DCMAKE_MAKE_PROGRAM={ninja}", f"-DCMAKE_TOOLCHAIN_FILE={toolchain}"]
    settings += [f"-DLITEFUSE_AARCH64_ROOT={root}", "-DCMAKE_BUILD_TYPE=Release"]
    run(cmake, "-G", "Ninja", "-S", _SOURCES, "-B", where, *settings)
    run(cmake, "--build", where, "--target", "litefuse_delegate")
    return where / "liblitefuse_delegate.so"


def make_prefix(prefix: Path, root: Path, processor: str, caches: Sequence[tuple[int, int]]) -> None:
    """A root directory like ``root``, of which it shares everything, but with this processor and these caches."""
    for entry in root.iterdir():
        if entry.name not in ("proc", "sys", "dev"):
            (prefix / entry.name).symlink_to(entry)
    part, features = _PROCESSORS[processor]
    lines = ["processor\t: 0", "BogoMIPS\t: 100.00", f"Features\t: {features}", "CPU implementer\t: 0x41"]
    lines += ["CPU architecture: 8", "CPU variant\t: 0x3", f"CPU part\t: {part}", "CPU revision\t: 1"]
    (prefix / "proc").mkdir()
    (prefix / "proc/cpuinfo").write_text("\n".join(lines) + "\n")
    kinds = [
        (1, "Data", caches[0]),
        (1, "Instruction", caches[0]),
        (2, "Unified", caches[1]),
        (3, "Unified", caches[2]),
    ]
    for cpu in range(os.cpu_count() or 1):
        for index, (level, kind, (kilobytes, ways)) in enumerate(kinds):
            where = prefix / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            where.mkdir(parents=True)
            facts = {"level": level, "type": kind, "size": f"{kilobytes}K", "coherency_line_size": 64}
            facts |= {"ways_of_associativity": ways, "number_of_sets": kilobytes * 16 // ways}
            for name, fact in facts.items():
                (where / name).write_text(f"{fact}\n")


def make_machine(given: argparse.Namespace, prefix: Path, caches: tuple[tuple[int, int], ...]) -> Machine:
    """Builds whatever is missing, and makes the machine's root in the empty directory ``prefix``."""
    for tool in ("qemu-aarch64", "gcc", *(() if given.delegate else ("aarch64-linux-gnu-g++",))):
        if shutil.which(tool) is None:
            raise LitefuseError(f"{tool} is missing (apt install qemu-user gcc g++-aarch64-linux-gnu)")
    build = given.build.resolve()
    build.mkdir(parents=True, exist_ok=True)
    root = given.root.resolve() if given.root else build / "root"
    if not (root / "opt/site/.done").exists():
        print(f"making {root}", file=sys.stderr)
        run(_HERE / "qemu/root.sh", root, sys.executable)
    delegate = given.delegate.resolve() if given.delegate else build_delegate(build, root)
    make_prefix(prefix, root, given.processor, caches)
    return Machine(given.processor, prefix, build_plugin(build), delegate, caches, not given.no_caches)


def emulate(machine: Machine, job: dict[str, Any], where: Path, timeout: float) -> tuple[list[Counts], dict[str, Any]]:
    """Runs a job; returns what the two sides take and what the guest says."""
    (where / "job.json").write_text(json.dumps(job))
    counted = where / "counts.txt"
    plugin = f"{machine.plugin},out={counted},cache={'on' if machine.simulates else 'off'}"
    plugin += "".join(f",l{i}={kilobytes}:{ways}" for i, (kilobytes, ways) in enumerate(machine.caches, 1))
    # With the same environment and no randomness the program does the same at the same addresses each time.
    environment = {
        "PYTHONHOME": str(machine.prefix / "usr"),
        "PYTHONPATH": str(machine.prefix / "opt/site"),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    # Not even the stack of the emulator moves.
    command = [shutil.which("setarch") or "", "-R"] if shutil.which("setarch") else []
    command += [shutil.which("qemu-aarch64") or "", "-cpu", machine.processor, "-seed", "1"]
    command += ["-L", str(machine.prefix), "-plugin", plugin, str(machine.prefix / "usr/bin/python3.11")]
    command += [str(_HERE / "qemu/guest.py"), str(where / "job.json")]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise LitefuseError(f"it took more than {timeout:g} s") from None
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()[-300:]
        raise LitefuseError(f"the emulated program ended with {done.returncode}: {' '.join(text.split())}")
    found = [dict(pair.split("=") for pair in line.split()) for line in counted.read_text().splitlines()]
    by_tag = {int(line["tag"]): {name: int(value) for name, value in line.items()} for line in found}
    return [_counts(by_tag[tag], job["runs"]) for tag in (2, 4)], json.loads(done.stdout.splitlines()[-1])


def _counts(found: dict[str, int], runs: int) -> Counts:
    moved = [found[f"fills{i}"] + found[f"writebacks{i}"] for i in (1, 2, 3)]
    return Counts(
        *(n / runs for n in (found["instructions"], found["read"] + found["written"], *moved, found["zeroed"]))
    )


# -- one subject -----------------------------------------------------------------------------------------------------


def measure(subject: Subject, machine: Machine, options: Options, runs: int, timeout: float) -> Row:
    """Everything about one subject."""
    if subject.path is not None and not os.path.exists(subject.path):
        return Row(subject, None, failure=f"there is no {subject.path}")
    prepared = None
    with tempfile.TemporaryDirectory() as directory:
        where = Path(directory)
        try:
            prepared = in_child("vs_xnnpack:prepare", subject, options, directory, timeout=timeout)
            ours = values(read(prepared.converted))
            stock = values(read(prepared.original), [v.value.shape for v in ours])
            job: dict[str, Any] = {
                "original": prepared.original,
                "converted": prepared.converted,
                "original_inputs": _store(where / "original.npz", stock),
                "converted_inputs": _store(where / "converted.npz", ours),
                "library": str(machine.delegate),
                "options": {"threads": "1", **options.delegate_options},
                "runs": runs,
                "outputs": [str(where / f"{side}-outputs.npz") for side in ("original", "converted")],
            }
            (stock_counts, our_counts), told = emulate(machine, job, where, timeout)
            want, got = map(_load, job["outputs"])
            told["difference"] = difference(got, want)[0]
        except ChildFailure as failure:
            return Row(subject, prepared, failure=f"the conversion {failure.how}")
        except Exception as error:  # whatever it is, the others go on
            return Row(subject, prepared, failure=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return Row(subject, prepared, stock_counts, our_counts, told)


def _store(path: Path, inputs: Sequence[Value]) -> str:
    arrays: dict[str, Any] = {f"a{i}": value.value for i, value in enumerate(inputs)}
    np.savez(path, index=[v.tensor for v in inputs], resize=[v.resize for v in inputs], **arrays)
    return str(path)


def _load(path: str) -> list[Any]:
    with np.load(path, allow_pickle=True) as stored:
        return [stored[f"a{i}"] for i in range(len(stored))]


_SHOWN = {"instructions": "instructions", "l1_l2": "L1-L2", "l2_l3": "L2-L3", "l3_dram": "L3-DRAM"}


def head(simulates: bool) -> str:
    """The head of the table."""
    names = list(_SHOWN.values()) if simulates else ["instructions"]
    pairs = [f"{name} | ratio" for name in names]
    return f"| model | regions | {' | '.join(pairs)} | difference | |\n|---|---|{'---|---:|' * len(pairs)}---:|---|"


def line(row: Row, simulates: bool) -> str:
    """A row of the table: XNNPACK's figure → ours, and the ratio."""
    kinds = {} if row.prepared is None else row.prepared.kinds
    regions = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items(), key=lambda k: -k[1])) or "no region"
    shown = list(_SHOWN) if simulates else ["instructions"]
    if row.failure is not None or row.told is None:
        return f"| {row.subject.name} | {regions} |{' | |' * len(shown)} | **failed**: {row.failure} |"
    cells = [row.subject.name, regions]
    for what in shown:
        base, other = (_short(getattr(side, what), what != "instructions") for side in (row.stock, row.ours))
        cells += [f"{base} → {other}", _ratio(row.ratio(what))]
    marks = []
    if row.told["claimed"] < sum(kinds.values()):
        marks.append(f"{sum(kinds.values()) - row.told['claimed']} regions not claimed")
    if not row.told["difference"] <= _AGREE:
        marks.append("outputs differ")
    for side, counts in (("XNNPACK", row.stock), ("ours", row.ours)):
        if counts is not None and counts.zeroed > 0.02 * counts.accessed:
            marks.append(f"{side} zeroes {_short(counts.zeroed, True)} unseen")
    return f"| {' | '.join(cells)} | {row.told['difference']:.1e} | {', '.join(marks)} |"


def _ratio(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _short(number: float, bytes_: bool) -> str:
    """`1.23 M`, `4.5 MB`."""
    for limit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g} {prefix}{'B' if bytes_ else ''}"
    return f"{number:.3g}{' B' if bytes_ else ''}"


def as_json(row: Row) -> dict[str, Any]:
    """A row for a program."""
    made: dict[str, Any] = {"name": row.subject.name, "group": row.subject.group}
    if row.prepared is not None:
        made["kinds"] = row.prepared.kinds
    if row.stock is None or row.ours is None or row.told is None:
        return made | {"failure": row.failure}
    ratios = {what: row.ratio(what) for what in Counts._fields}
    made["ratios"] = {what: None if math.isnan(value) else value for what, value in ratios.items()}
    return made | {"stock": row.stock._asdict(), "ours": row.ours._asdict(), **row.told}


def main() -> int:
    """Prints the table; returns 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choice(parser)
    add_conversion(parser, "generic-arm64")
    add = parser.add_argument
    add("--root", type=Path, help="an aarch64 system; by default below --build, and made where it is missing")
    add("--build", type=Path, default=Path("build/aarch64"), help="where to build")
    add("--delegate", type=Path, help="the delegate's library for aarch64; by default it is built")
    add("--processor", choices=sorted(_PROCESSORS), default="cortex-a76")
    add("--caches", help="KiB:ways of three levels, such as 64:4,256:8,2048:16, instead of the target's")
    add("--no-caches", action="store_true", help="count instructions only, which is faster")
    add("--runs", type=int, default=1, help="runs that are counted; the figures are for one")
    add("--timeout", type=float, default=1200.0, help="seconds for one model")
    given = parser.parse_args()
    if given.runs < 1:
        parser.error("runs are above zero")
    try:
        caches = _caches(given)
        subjects = chosen(given, lambda: [s for s in regions() if s.group.startswith("inverted")])
        if given.list:
            print("\n".join(f"{subject.group}: {subject.name}" for subject in subjects))
            return 0
        with tempfile.TemporaryDirectory() as prefix:
            return _measure_all(subjects, make_machine(given, Path(prefix), caches), given)
    except (LitefuseError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


def _measure_all(subjects: Sequence[Subject], machine: Machine, given: argparse.Namespace) -> int:
    options = options_of(given)
    about = {"processor": given.processor, "caches": machine.caches, "runs": given.runs, **options._asdict()}
    output = Output(given, about)
    sizes = ", ".join(f"L{i} {kilobytes} KiB {ways} ways" for i, (kilobytes, ways) in enumerate(machine.caches, 1))
    output.show(f"{given.processor} under qemu, {sizes}, target {given.target}; XNNPACK → ours, for one run\n")
    output.show(head(machine.simulates))
    rows = []
    for subject in subjects:
        rows.append(measure(subject, machine, options, given.runs, given.timeout))
        output.show(line(rows[-1], machine.simulates), as_json(rows[-1]))
    good = [row for row in rows if row.failure is None]
    means = []
    for what in list(_SHOWN) if machine.simulates else ["instructions"]:
        ratios = [r for r in (row.ratio(what) for row in good) if r > 0]
        means.append(f"{_SHOWN[what]} {statistics.geometric_mean(ratios):.3f}" if ratios else f"{_SHOWN[what]} none")
    output.show(f"\ngeometric means: {', '.join(means)}")
    return int(len(good) < len(rows))


def _caches(given: argparse.Namespace) -> tuple[tuple[int, int], ...]:
    if given.caches:
        found = tuple((int(a), int(b)) for a, b in (level.split(":") for level in given.caches.split(",")))
        if len(found) != 3:
            raise ValueError("there are three levels of cache")
        return found
    profile = target(given.target)
    sizes = (profile.l1, profile.l2, profile.l3)
    if not all(sizes):
        raise ValueError(f"{profile.name} has not three levels of cache; say with --caches which to simulate")
    return tuple((size >> 10, ways) for size, ways in zip(sizes, _WAYS, strict=True))


if __name__ == "__main__":
    sys.exit(main())
