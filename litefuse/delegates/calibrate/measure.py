"""Runs the probes of a calibration on this machine, and makes a profile of their times.

All interpreters live in one process, bound to one processor, and run in turn, so that slow spells of the machine hit
all of them. What counts of a probe is the fifth percentile of its rounds: neighbours make runs slower, never faster.
This is done in several processes, one after the other, and the median taken: what nearly fills a cache may take half as
long again in one as in another, since the system gives them other pages, which get into each other's way or not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from litefuse import __version__
from litefuse.bench import race
from litefuse.delegates.calibrate.figures import figures, nearest
from litefuse.delegates.calibrate.probes import Probe, probes
from litefuse.delegates.calibrate.profile import USUAL, Profile, flat, processor
from litefuse.delegates.runtime import load, report
from litefuse.delegates.targets import KIB, MIB, Target
from litefuse.errors import LitefuseError, RuntimeMissingError, UsageError
from litefuse.isolation import ChildFailure, in_child
from litefuse.progress import Step
from litefuse.runtime import interpreter, quiet, runtime
from litefuse.schema import to_bytes

Progress = Callable[[str], None]

SECONDS = 60.0
"""How long is measured when nothing is said."""

_SILENCE = 120.0  # seconds without a sign of life after which the measuring process is given up
_PROCESSES, _LEAST_SECONDS = 5, 8.0  # how many processes there are, as long as each has so many seconds
_WARMUP = 2
_COUNTS = 5  # percentile of the rounds of a probe that is taken for its time
_BUSY = 0.25  # how far the median may be above that before it is worth a note
_UNITS = {"K": KIB, "M": MIB, "G": MIB * KIB}


class Facts(NamedTuple):
    """What the system says of a processor; figures that it does not tell are left out."""

    cpu: str
    machine: str
    figures: dict[str, Any]


class Timings(NamedTuple):
    """What running the probes gave."""

    us: dict[str, float]
    """Microseconds of each probe."""
    spread: dict[str, float]
    """How far the median of its rounds is above that, relative to it."""
    rounds: int
    failed: dict[str, str]
    """The probes that could not be run, and why."""


def calibrate(
    name: str = USUAL, *, seconds: float = SECONDS, cpu: int | None = None, progress: Progress | None = None
) -> Profile:
    """Measures this machine.

    Args:
        name: what the profile is to be called.
        seconds: how long the probes run; what they take to be made comes on top.
        cpu: the processor to bind to; by default the last one of those that may be used, which is a large core where
            there are two kinds.
        progress: called with a few words from time to time.

    Where the delegate's library is missing, the figures of the stock runtime are measured alone, and the notes say so.

    Raises:
        RuntimeMissingError: no runtime is installed.
        UsageError: there is no such processor.
        LitefuseError: the measurement crashed.
    """
    runtime()  # so that a missing one is said at once
    if cpu is not None and cpu not in _processors():
        raise UsageError(f"there is no processor {cpu} that may be used; there are {_processors()}")
    count = max(1, min(_PROCESSES, int(seconds / _LEAST_SECONDS)))
    memory = _memory()
    runs: list[Run] = []
    for i in range(count):

        def hear(text: str, turn: int = i) -> None:
            if progress is not None:
                share = (turn + (getattr(text, "share", None) or 0.0)) / count
                progress(Step(f"process {turn + 1} of {count}: {text}", share))

        try:
            function = "litefuse.delegates.calibrate.measure:measured"
            runs.append(in_child(function, seconds / count, cpu, memory, hear=hear, timeout=_SILENCE))
        except ChildFailure as failure:
            where = f" while it was {failure.last}" if failure.last else ""
            raise LitefuseError(f"the calibration {failure.how}{where}") from None
    first, found = runs[0], runtime()
    notes = []
    if not first.delegate:
        notes.append(f"the delegate was not measured, its figures follow from those of the stock runtime: {first.why}")
    return profile(
        name,
        first.facts,
        list(probes(_start(name, nearest(first.facts.machine), first.facts), memory, bool(first.delegate))),
        together([run.timings for run in runs]),
        runtime=f"{found.name} {found.version}",
        delegate=first.delegate,
        notes=notes,
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    )


class Run(NamedTuple):
    """What one process measured."""

    timings: Timings
    facts: Facts
    delegate: str
    """What the delegate says of itself; empty where there is none."""
    why: str
    """Why there is none."""


def measured(seconds: float, cpu: int | None, memory: int, *, say: Progress) -> Run:
    """What each process of :func:`calibrate` does; it binds itself to one processor."""
    allowed = _processors()
    core = cpu if cpu is not None else allowed[-1] if allowed else 0
    if allowed:
        os.sched_setaffinity(0, [core])
    delegate: Any = None
    told = why = ""
    try:
        delegate = load(threads=1)
        told = str(report(delegate)["description"]) or "litefuse"
    except (RuntimeMissingError, UsageError) as error:
        why = str(error)
    facts = system(core)
    start = _start("", nearest(facts.machine), facts)
    return Run(run(list(probes(start, memory, bool(told))), delegate, seconds, say), facts, told, why)


def together(timings: Sequence[Timings]) -> Timings:
    """The medians of what several processes measured, of the probes that ran in all of them."""
    names = [name for name in timings[0].us if all(name in t.us for t in timings)]
    return Timings(
        {name: statistics.median(t.us[name] for t in timings) for name in names},
        {name: statistics.median(t.spread[name] for t in timings) for name in names},
        sum(t.rounds for t in timings),
        {name: why for t in timings for name, why in t.failed.items()},
    )


def _start(name: str, base: Target, facts: Facts) -> Target:
    """What is known before anything is measured."""
    return dataclasses.replace(base, name=name, description=f"measured on {facts.cpu}", **facts.figures)


def profile(
    name: str,
    facts: Facts,
    chosen: Sequence[Probe],
    timings: Timings,
    *,
    runtime: str,
    delegate: str,
    date: str,
    notes: Sequence[str] = (),
) -> Profile:
    """The profile that follows from the times of probes."""
    base = nearest(facts.machine)
    found = figures(_start(name, base, facts), base, chosen, timings.us)
    closer = nearest(facts.machine, found.target.peak_f32)
    if closer is not base:
        base = closer
        found = figures(_start(name, base, facts), base, chosen, timings.us)
    notes = [*notes, *found.notes]
    notes += [f"{probe} could not be run: {why}" for probe, why in timings.failed.items()]
    busy = sum(spread > _BUSY for spread in timings.spread.values())
    if busy * 4 > len(timings.spread):
        notes.append(
            f"the machine was busy: the medians of {busy} of {len(timings.spread)} probes are more than {_BUSY:.0%} "
            f"above their shortest times; measure again when it is not"
        )
    measured, read = set(found.measured), set(facts.figures)
    known = list(flat(found.target))
    sources = {
        "measured": tuple(f for f in known if f in measured),
        "read": tuple(f for f in known if f in read),
        "derived": tuple(f for f in known if f not in measured | read),
    }
    return Profile(
        found.target,
        cpu=facts.cpu,
        architecture=facts.machine,
        date=date,
        litefuse=__version__,
        runtime=runtime,
        delegate=delegate,
        base=base.name,
        sources=sources,
        notes=tuple(notes),
    )


# -- running -----------------------------------------------------------------------------------------------------------


def run(chosen: Sequence[Probe], delegate: Any, seconds: float, say: Progress) -> Timings:
    """Runs probes in turn for so many seconds, five rounds at least."""
    ready: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for i, probe in enumerate(chosen):
        say(f"making probe {i + 1} of {len(chosen)}")
        try:
            ready[probe.name] = _ready(probe, delegate)
        except (ValueError, RuntimeError) as error:
            failed[probe.name] = " ".join(str(error).split())[:200]
    if not ready:
        raise LitefuseError(f"no probe could be run: {next(iter(failed.values()), 'there is none')}")
    begin = time.perf_counter()

    def tell(rounds: int) -> None:
        spent = time.perf_counter() - begin
        say(Step(f"measuring for {spent:.0f} of {seconds:g} s, {rounds} rounds", spent / seconds))

    samples = race([runner.invoke for runner in ready.values()], seconds=seconds, warmup=_WARMUP, tell=tell)
    us, spread = {}, {}
    for name, sample in zip(ready, samples, strict=True):
        low, middle = (float(p) for p in np.percentile(sample.rounds, (_COUNTS, 50)))
        us[name] = low * 1e6
        spread[name] = middle / low - 1
    return Timings(us, spread, len(samples[0].rounds), failed)


def _ready(probe: Probe, delegate: Any) -> Any:
    """An interpreter with the probe and its inputs, which ran once."""
    runner = interpreter(to_bytes(probe.packaged()), delegates=[delegate] if probe.ours else ())
    with quiet():
        runner.allocate_tensors()
    rng = np.random.default_rng(0)
    for port in runner.get_input_details():
        # Positive, so that roots are finite.
        value = rng.uniform(0.5, 1.0, port["shape"]) if port["dtype"] is np.float32 else np.ones(port["shape"])
        runner.set_tensor(port["index"], value.astype(port["dtype"]))
    runner.invoke()
    return runner


# -- the system --------------------------------------------------------------------------------------------------------


def system(cpu: int = 0, root: Path = Path("/")) -> Facts:
    """What the system says of a processor."""
    found: dict[str, Any] = {"cores": os.cpu_count() or 1}
    sizes = caches(cpu, root)
    if {1, 2} <= sizes.keys() and sizes[1] <= sizes[2] <= sizes.get(3, sizes[2]):
        found |= {"l1": sizes[1], "l2": sizes[2], "l3": sizes.get(3, 0)}
    flags = _flags(root)
    if flags:
        wide = next((bits for bits, flag in ((512, "avx512f"), (256, "avx2")) if flag in flags), 128)
        found["simd_bits"] = wide
        found["has_dotprod"] = bool(flags & {"asimddp", "avx_vnni", "avx512_vnni"})
    return Facts(processor(), platform.machine(), found)


def caches(cpu: int = 0, root: Path = Path("/")) -> dict[int, int]:
    """The sizes of the caches for data by level, where Linux tells them."""
    found: dict[int, int] = {}
    for entry in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        with contextlib.suppress(OSError, ValueError):
            if (entry / "type").read_text().strip() == "Instruction":
                continue
            number = re.fullmatch(r"(\d+)([KMG]?)", (entry / "size").read_text().strip())
            if number is not None and int(number[1]):
                found[int((entry / "level").read_text())] = int(number[1]) * _UNITS.get(number[2], 1)
    return found


def _flags(root: Path) -> frozenset[str]:
    """The instructions that the first processor has, in Linux's words."""
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def _memory() -> int:
    """Bytes that the largest probe may take: an eighth of what is free."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return 128 * MIB
    found = re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * KIB // 8 if found else 128 * MIB


def _processors() -> list[int]:
    """The processors that this process may use; none where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
