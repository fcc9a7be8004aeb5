"""Measures what a model costs to run: stock against litefuse, or one file against another.

Latencies are paired: all contenders live in one process and run in turn, in an order that changes from round to round,
so that slow spells of the machine hit all of them. In each round a contender runs once, or for about 2 ms if that is
longer. The ratio of two contenders is that of their median times in a round; of all rounds, its median and quartiles
are reported. Start and memory are measured for each contender in a process of its own.
"""

from __future__ import annotations

import gc
import itertools
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flatbuffers import flexbuffers
from numpy.typing import NDArray

from litefuse.arena.lifetimes import TFLITE, lifetimes, lower_bound, sizes
from litefuse.delegates.package import PLAN, PREFIX, is_packaged
from litefuse.delegates.runtime import clear_profile, load, report
from litefuse.errors import LitefuseError, RuntimeMissingError, UsageError
from litefuse.graph import Graph
from litefuse.inputs import Case, Feed, Graphs
from litefuse.interface import differences, entries
from litefuse.isolation import ChildFailure, in_child
from litefuse.progress import Step
from litefuse.runtime import interpreter, quiet, runtime
from litefuse.schema import Model, read, write
from litefuse.schema.operators import Op, builtin_code
from litefuse.schema.tables import CallOptions, Operator, StableHLOCompositeOptions, SubGraph
from litefuse.schema.writer import as_bytes

Source = Model | bytes | bytearray | memoryview | str | os.PathLike[str]
Progress = Callable[[str], None]

SECONDS = 5.0
"""How long contenders run when neither a time nor a number of rounds is given."""

_LEAST_ROUNDS = 5  # whatever the time limit: fewer have no quartiles
_ROUND = 2e-3  # seconds that a contender runs in a round at least
_STARTS, _STARTS_SECONDS = 5, 2.0
_PROFILE_RUNS, _PROFILE_SECONDS = 100, 2.0
_TELL = 0.5  # seconds between signs of life
_CASE = Case("unit", ordinary=True)  # finite values of the range that the model expects
_REFUSALS = (ValueError, RuntimeError, TypeError)


# -- results -------------------------------------------------------------------------------------------------------


class Latency(NamedTuple):
    """How long one invocation takes, in milliseconds, over all that were timed."""

    runs: int
    p50: float
    p90: float
    p99: float
    least: float
    most: float

    @property
    def jitter(self) -> float:
        """By how much the slowest hundredth exceeds the median, relative to the median."""
        return self.p99 / self.p50 - 1 if self.p50 > 0 else 0.0


class Ratio(NamedTuple):
    """A contender's time over that of the first one in the same round: median and quartiles; above 1 is slower."""

    rounds: int
    median: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`faster` or `slower` where both quartiles are on one side of 1, `unclear` else and of fewer than 5 rounds."""
        if self.rounds < _LEAST_ROUNDS or self.low <= 1 <= self.high:
            return "unclear"
        return "faster" if self.high < 1 else "slower"


class Refused(NamedTuple):
    """Something that the delegate left to the runtime, and why."""

    what: str
    reason: str


@dataclass
class Contender:
    """A file with the kernels that run it, and what was measured. Sizes are in bytes, times in milliseconds."""

    name: str
    """What it is called in tables, such as `stock`."""
    file: str
    file_bytes: int
    """Bytes of the file."""
    xnnpack: bool
    """Whether the runtime's XNNPACK takes what nothing else has taken; otherwise the builtin kernels run."""
    delegate: bool
    """Whether litefuse's delegate runs the regions."""
    failure: str | None = None
    """Why it could not be run; then nothing was measured."""
    latency: Latency | None = None
    ratio: Ratio | None = None
    """Compared with the first contender; None for that one itself, and where it could not be run."""
    first_start_ms: float | None = None
    """To construct and allocate the interpreter for the first time in a process, the runtime being loaded already."""
    start_ms: float | None = None
    """The same, the median of a few times."""
    peak_bytes: int | None = None
    """Most resident memory of a process that loads and runs it; None where the system does not tell."""
    own_bytes: int | None = None
    """What of it came on top of the process with the runtime loaded."""
    arena_bytes: int | None = None
    """Most bytes of inputs and computed tensors that are live at one time, in the file's order, without sharing, in all
    subgraphs together; what is inside the delegate's regions is not among them. None where a shape is not known."""
    scratch_bytes: int | None = None
    """What the delegate's regions need, which share it; None without the delegate."""
    regions: int | None = None
    """Number of regions that the delegate claimed; None without the delegate."""
    refused: list[Refused] = field(default_factory=list)
    """What the delegate left to the runtime."""


class OperatorTime(NamedTuple):
    """An operator inside a region: milliseconds per run of the model, and the share of the run."""

    operator: str
    ms: float
    share: float


class RegionTime(NamedTuple):
    """A region: its name, the position of its (first) operator, its time per run of the model, and its operators."""

    name: str
    position: int
    ms: float
    share: float
    operators: list[OperatorTime]


@dataclass
class Profile:
    """Where the time of a run goes; regions and their operators are sorted by time.

    Attributes:
        file: the file that was profiled.
        runs: number of runs.
        ms: milliseconds of one run, on average; measuring each operator makes it longer.
        outside_ms: what of it was spent outside of the operators in regions.
        regions: the regions that the delegate claimed.
    """

    file: str
    runs: int
    ms: float
    outside_ms: float
    regions: list[RegionTime]


@dataclass
class BenchResult:
    """The outcome of :func:`bench`.

    Attributes:
        files: the models: A, and B if there is one.
        runtime: name of the runtime, such as `ai-edge-litert`.
        runtime_version: its version.
        delegate: what the delegate says of itself and the processor; None where there is no delegate.
        machine: the processor's architecture.
        processors: number of processors of the machine.
        pinned: the processors to which everything was bound; empty for all.
        threads: number of threads of the interpreters.
        rounds: number of rounds, which is that of the pairs.
        warmup: number of rounds before these.
        contenders: what was run; ratios refer to the first.
        profile: where the time goes; None unless asked for.
        notes: what one should know of the figures.
    """

    files: list[str]
    runtime: str
    runtime_version: str
    delegate: str | None
    machine: str
    processors: int
    pinned: list[int]
    threads: int
    rounds: int
    warmup: int
    contenders: list[Contender]
    profile: Profile | None = None
    notes: list[str] = field(default_factory=list)


# -- running in turn -----------------------------------------------------------------------------------------------


class Samples(NamedTuple):
    """Seconds of one of several functions that ran in turn: the median of each round, and every single call."""

    rounds: list[float]
    calls: list[float]


def race(
    functions: Sequence[Callable[[], Any]],
    *,
    rounds: int | None = None,
    seconds: float | None = None,
    warmup: int = 3,
    tell: Callable[[int], None] = lambda done: None,
) -> list[Samples]:
    """Calls functions in turn, in an order that changes from round to round, and times them.

    Args:
        functions: what to call.
        rounds: number of rounds; None for as many as there is time for.
        seconds: no round begins after so many seconds, but five are made at least if ``rounds`` lets; None for no
            limit.
        warmup: rounds before, 1 at least: they also tell how often a fast function is called in a round.
        tell: called from time to time with the number of rounds that are done.
    """
    told = time.perf_counter()

    def sign(done: int) -> None:
        nonlocal told
        if time.perf_counter() - told > _TELL:
            tell(done)
            told = time.perf_counter()

    quickest = [float("inf")] * len(functions)
    for _ in range(max(1, warmup)):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            quickest[i] = min(quickest[i], time.perf_counter() - start)
            sign(0)
    counts = [max(1, int(_ROUND / max(least, 1e-7))) for least in quickest]
    orders = list(itertools.permutations(range(len(functions)))) if len(functions) <= 3 else [range(len(functions))]
    samples = [Samples([], []) for _ in functions]
    end = time.perf_counter() + (float("inf") if seconds is None else seconds)
    collects = gc.isenabled()
    gc.disable()
    try:
        for done in itertools.count():
            if done == rounds or (done >= _LEAST_ROUNDS and time.perf_counter() > end):
                break
            for i in orders[done % len(orders)]:
                function, (medians, calls) = functions[i], samples[i]
                for _ in range(counts[i]):
                    start = time.perf_counter()
                    function()
                    calls.append(time.perf_counter() - start)
                medians.append(statistics.median(calls[-counts[i] :]))
                sign(done)
    finally:
        if collects:
            gc.enable()
    return samples


def latency(samples: Samples) -> Latency:
    """What the calls of a function say of its latency."""
    p50, p90, p99 = (float(p) * 1e3 for p in np.percentile(samples.calls, (50, 90, 99)))
    return Latency(len(samples.calls), p50, p90, p99, min(samples.calls) * 1e3, max(samples.calls) * 1e3)


def ratio(base: Samples, other: Samples) -> Ratio:
    """How ``other`` compares with ``base``, round by round."""
    found = [b / a for a, b in zip(base.rounds, other.rounds, strict=True)]
    low, _, high = statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return Ratio(len(found), statistics.median(found), low, high)


class Value(NamedTuple):
    """What an input is set to, and whether it has to be resized for it."""

    tensor: int
    value: NDArray[Any]
    resize: bool


def values(model: Model, shapes: Sequence[tuple[int, ...]] | None = None, seed: int = 0) -> list[Value]:
    """Values for the inputs of the first subgraph: random and finite, of the range that the model expects.

    Args:
        model: the model.
        shapes: the shapes that open dimensions get; by default 1 for the first, others as they are stored.
        seed: of the random numbers.

    Raises LitefuseError when an input is of a type of which no values can be made.
    """
    entry = next(e for e in entries(model) if e.subgraph == 0)
    graphs = Graphs(model)
    found = []
    for i, port in enumerate(entry.inputs):
        feed = Feed(port, entry, graphs)
        if not feed.possible:
            raise LitefuseError(f"no values can be made for the input `{port.name}` of type {port.type.name}")
        shape = feed.shape(1, None) if shapes is None else shapes[i]
        found.append(Value(port.tensor, feed.values(_CASE, shape, seed), shape != port.shape))
    return found


def with_inputs(runner: Any, inputs: Sequence[Value]) -> Any:
    """Allocates an interpreter, gives it its inputs, and returns it."""
    allocate(runner, inputs)
    for tensor, value, _ in inputs:
        runner.set_tensor(tensor, value)
    return runner


def allocate(runner: Any, inputs: Sequence[Value]) -> None:
    """Allocates an interpreter for inputs of these shapes."""
    for tensor, value, resize in inputs:
        if resize:
            runner.resize_tensor_input(tensor, value.shape)
    with quiet():
        runner.allocate_tensors()


# -- what a child process does -------------------------------------------------------------------------------------


class _Job(NamedTuple):
    """What a child process needs to run a contender."""

    path: str
    xnnpack: bool
    delegate: bool
    threads: int
    pinned: tuple[int, ...]
    inputs: list[Value]

    def load(self, profile: bool = False) -> list[Any]:
        """The delegates that run it."""
        return [load(profile=profile)] if self.delegate else []

    def start(self, loaded: Sequence[Any]) -> Any:
        return interpreter(self.path, xnnpack=self.xnnpack, threads=self.threads, delegates=loaded)


class _Alone(NamedTuple):
    """What is measured of a contender in a process of its own; see Contender."""

    starts: list[float]
    peak_bytes: int | None
    own_bytes: int | None
    report: dict[str, Any] | None


def _alone(job: _Job, say: Progress) -> _Alone:
    """Loads and runs one contender; times its start and measures the memory of the process."""
    _pin(job.pinned)
    runtime()
    loaded = job.load()
    before = _resident(reset=True)
    say("it was loaded")
    begin = time.perf_counter()
    runner = job.start(loaded)
    allocate(runner, job.inputs)
    starts = [time.perf_counter() - begin]
    say("it ran for the first time")
    for tensor, value, _ in job.inputs:
        runner.set_tensor(tensor, value)
    runner.invoke()
    peak = _resident(peak=True)
    told = report(loaded[0]) if loaded else None
    say("it was loaded again")
    while len(starts) < _STARTS and sum(starts) < _STARTS_SECONDS:
        del runner
        begin = time.perf_counter()
        runner = job.start(loaded)
        allocate(runner, job.inputs)
        starts.append(time.perf_counter() - begin)
    own = None if before is None or peak is None else max(0, peak - before)
    return _Alone(starts, peak, own, told)


def _resident(*, peak: bool = False, reset: bool = False) -> int | None:
    """The resident memory of this process, or its peak; ``reset`` has the peak begin anew. None where it is unknown."""
    if reset:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return _most_resident()
    key = "VmHWM:" if peak else "VmRSS:"
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), None)


def _most_resident() -> int | None:
    """The peak of the resident memory where there is no /proc."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _race(
    jobs: list[_Job], rounds: int | None, seconds: float | None, warmup: int, say: Progress
) -> list[tuple[Latency, Ratio, int]]:
    """Runs contenders in turn; returns latencies, ratios and the number of rounds."""
    _pin(jobs[0].pinned)
    loaded, runners = [], []
    for number, job in enumerate(jobs):
        say(f"contender {number + 1} was loaded beside the others")
        loaded.append(job.load())  # must outlive the interpreter
        runners.append(with_inputs(job.start(loaded[-1]), job.inputs))
    say("all ran in turn")
    begin = time.perf_counter()

    def tell(done: int) -> None:
        spent = 0.0 if seconds is None else (time.perf_counter() - begin) / seconds
        say(Step(f"all ran in turn, round {done + 1}", spent if rounds is None else max(spent, done / rounds)))

    samples = race(
        [runner.invoke for runner in runners],
        rounds=rounds,
        seconds=seconds,
        warmup=warmup,
        tell=tell,
    )
    del runners
    return [(latency(s), ratio(samples[0], s), len(s.rounds)) for s in samples]


def _profile(job: _Job, rounds: int | None, warmup: int, say: Progress) -> tuple[int, float, dict[str, Any]]:
    """Runs a contender with a delegate that measures; returns the number of runs, their seconds, and its report."""
    _pin(job.pinned)
    say("it was loaded to be profiled")
    loaded = job.load(profile=True)
    runner = with_inputs(job.start(loaded), job.inputs)
    say("it was profiled")
    for _ in range(max(1, warmup)):
        runner.invoke()
    clear_profile(loaded[0])
    runs, begin = 0, time.perf_counter()
    while runs < (rounds or _PROFILE_RUNS):
        runner.invoke()
        runs += 1
        if rounds is None and time.perf_counter() - begin > _PROFILE_SECONDS:
            break
    return runs, time.perf_counter() - begin, report(loaded[0])


def _pin(processors: Sequence[int]) -> None:
    if processors:
        os.sched_setaffinity(0, processors)


# -- the whole -----------------------------------------------------------------------------------------------------


def bench(
    model: Source,
    against: Source | None = None,
    *,
    threads: int = 1,
    rounds: int | None = None,
    seconds: float | None = None,
    warmup: int = 3,
    delegate: bool | None = None,
    profile: bool = False,
    pinned: Sequence[int] = (),
    seed: int = 0,
    timeout: float = 600.0,
    progress: Progress | None = None,
) -> BenchResult:
    """Measures latency, start and memory of a model in the stock runtime and with litefuse's delegate.

    A model with litefuse's regions (see :mod:`litefuse.delegates.package`) is run by the stock runtime, which has
    XNNPACK, and with the delegate. With ``against``, the model in the stock runtime is the base, and the other one is
    run in the stock runtime and with the delegate. A single model without regions is run with the builtin kernels and
    with XNNPACK.

    Args:
        model: A: a file, its bytes or a model.
        against: B, if A is to be compared with it.
        threads: number of threads of each interpreter.
        rounds: number of rounds, in each of which every contender runs; without it and ``seconds``, what
            :data:`SECONDS` allow.
        seconds: how long the contenders run in turn; five rounds are made at least, if ``rounds`` lets.
        warmup: number of rounds before, 1 at least.
        delegate: whether to run regions with the delegate. None for where it is possible; True makes it an error where
            it is not.
        profile: also measure the time of each region and each operator in it.
        pinned: numbers of the processors to which all is bound; as the system likes without any.
        seed: of the random inputs.
        timeout: seconds for which a child process may be silent.
        progress: called with a few words on what goes on.

    Raises:
        SchemaError: a file cannot be read.
        UsageError: the options contradict each other or the model.
        RuntimeMissingError: there is no runtime, or no contender can be run, or the runtime crashes when they run side
            by side.
        LitefuseError: no values can be made for an input.
    """
    if rounds is None and seconds is None:
        seconds = SECONDS
    if threads < 1 or warmup < 1 or (rounds is not None and rounds < 1):
        raise UsageError("the numbers of threads, rounds and rounds to warm up are 1 at least")
    if seconds is not None and not 0 < seconds < float("inf"):
        raise UsageError(f"the time limit is a number of seconds above zero, not {seconds}")
    _check_pinned(pinned)
    found = runtime()
    say = progress or (lambda text: None)
    with _files([source for source in (model, against) if source is not None]) as sides:
        notes: list[str] = []
        about = _about_delegate(sides[-1], delegate, profile, notes)
        contenders = list(_contenders(sides, about is not None and delegate is not False, notes))
        if profile and not contenders[-1].delegate:
            raise UsageError("there is a profile of what the delegate runs only, and it runs nothing here")
        inputs = _inputs(sides, seed, notes)
        jobs = {
            c.name: _Job(side.path, c.xnnpack, c.delegate, threads, tuple(pinned), inputs[side.letter])
            for c in contenders
            for side in sides
            if side.letter == c.file
        }
        for contender in contenders:
            _measure_alone(contender, jobs[contender.name], timeout, say)
        if all(c.failure is not None for c in contenders):
            raise RuntimeMissingError("; ".join(f"{c.name}: {c.failure}" for c in contenders))
        _check_claims(contenders[-1], delegate, notes)
        made = _measure_together(contenders, jobs, rounds, seconds, warmup, timeout, say)
        for contender in contenders:
            side = next(s for s in sides if s.letter == contender.file)
            whole = not contender.refused and (contender.regions or 0) > 0
            if contender.failure is None and (whole or not contender.delegate):
                contender.arena_bytes = arena_bytes(side.model, contender.delegate)
        last = contenders[-1]
        profiled = None
        if profile and last.failure is None:
            profiled = _measure_profile(last, jobs[last.name], rounds, warmup, timeout, say)
        names = {side.letter: side.name for side in sides}
        for contender in contenders:
            contender.file = names[contender.file]
        if profiled is not None:
            profiled.file = last.file
        say("")
    return BenchResult(
        files=list(names.values()),
        runtime=found.name,
        runtime_version=found.version,
        delegate=about,
        machine=platform.machine(),
        processors=os.cpu_count() or 1,
        pinned=sorted(pinned),
        threads=threads,
        rounds=made,
        warmup=warmup,
        contenders=contenders,
        profile=profiled,
        notes=notes,
    )


class _Side(NamedTuple):
    """One of the two models."""

    letter: str
    name: str
    path: str
    model: Model
    bytes: int
    packaged: bool
    custom: bool
    """Whether regions are custom operators, which the stock runtime cannot run."""


@contextmanager
def _files(sources: Sequence[Source]) -> Iterator[list[_Side]]:
    """The models as files that child processes can read."""
    with tempfile.TemporaryDirectory() as directory:
        sides = []
        for letter, source in zip("AB", sources, strict=False):
            if isinstance(source, (str, os.PathLike)):
                name = path = os.fspath(source)
            else:
                name, path = f"model {letter}", os.path.join(directory, f"{letter}.tflite")
                if isinstance(source, Model):
                    write(source, path)
                else:
                    Path(path).write_bytes(source)
            model = read(path)
            custom = any(
                builtin_code(code) == Op.CUSTOM and (code.custom_code or "").startswith(PREFIX)
                for code in model.operator_codes
            )
            sides.append(_Side(letter, name, path, model, os.path.getsize(path), is_packaged(model), custom))
        yield sides


def _check_pinned(pinned: Sequence[int]) -> None:
    if not pinned:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise UsageError("this system does not let processes be bound to processors")
    allowed = os.sched_getaffinity(0)
    odd = sorted(set(pinned) - allowed)
    if odd:
        raise UsageError(f"processor {odd[0]} cannot be used; there are {', '.join(map(str, sorted(allowed)))}")


def _about_delegate(side: _Side, wanted: bool | None, profile: bool, notes: list[str]) -> str | None:
    """What the delegate says of itself; None where it cannot be loaded. Says in the notes why it is not used."""
    if wanted is False and profile:
        raise UsageError("a profile needs the delegate")
    if not side.packaged and (wanted or profile):
        raise UsageError(
            f"{side.name} has no regions for litefuse's delegate to run; `litefuse convert --package plan` makes "
            "a file that has"
        )
    try:
        told = report(load())
    except RuntimeMissingError as error:
        if wanted or profile:
            raise
        if side.packaged and wanted is None:
            notes.append(f"regions are run by the stock runtime: {error}")
        return None
    return f"{told['backend']}: {told['description']}"


def _contenders(sides: Sequence[_Side], usable: bool, notes: list[str]) -> Iterator[Contender]:
    """What is to be run, the base of the ratios first; what the delegate runs comes last."""
    a, b = sides[0], sides[-1]
    several = len(sides) > 1

    def stock(side: _Side, name: str, xnnpack: bool = True) -> Contender:
        return Contender(name, side.letter, side.bytes, xnnpack, delegate=False)

    if several:
        yield stock(a, "A stock")
    if not several and not b.packaged:
        notes.append(
            f"{b.name} has no regions for litefuse's delegate; `litefuse convert --package plan` makes a file "
            "that has, which `litefuse bench A --against B` compares with this one"
        )
    if b.custom and usable:
        notes.append(f"{b.name} has custom operators, which the stock runtime cannot run")
    elif several or (b.packaged and usable):
        yield stock(b, "B stock" if several else "stock")
    else:
        yield stock(b, "builtin kernels", xnnpack=False)
        yield stock(b, "XNNPACK")
    if b.packaged and usable:
        yield Contender("B litefuse" if several else "litefuse", b.letter, b.bytes, xnnpack=True, delegate=True)


def _inputs(sides: Sequence[_Side], seed: int, notes: list[str]) -> dict[str, list[Value]]:
    """The inputs of each model, by its letter: those of the same interface get the same."""
    a, b = sides[0], sides[-1]
    for side in sides:
        others = [f"`{e.key}`" for e in entries(side.model) if e.subgraph != 0]
        if others:
            notes.append(
                f"{side.name}: only the first subgraph is run, not what these signatures call: {', '.join(others)}"
            )
    found = {b.letter: values(b.model, seed=seed)}
    if a is not b:
        odd = next(iter(differences(a.model, b.model, frozen=True)), None)
        if odd is None:
            # B may have fixed what A leaves open; both run at B's sizes. They are in the same order by then.
            found[a.letter] = values(a.model, [v.value.shape for v in found[b.letter]], seed)
        else:
            notes.append(f"the interfaces differ, so the two may do different work: {odd}")
            found[a.letter] = values(a.model, seed=seed)
    return found


def _check_claims(contender: Contender, wanted: bool | None, notes: list[str]) -> None:
    """Says what the delegate has left to the runtime."""
    if contender.regions is None:
        return
    for what, reason in contender.refused:
        notes.append(f"{contender.name}: left to the runtime: {what}: {reason}")
    if not contender.regions:
        if wanted:
            why = f": {contender.refused[0].reason}" if contender.refused else ""
            raise RuntimeMissingError(f"the delegate runs no region of {contender.file}{why}")
        notes.append(f"{contender.name}: the delegate runs no region, so all is run by the stock runtime")


def _measure_alone(contender: Contender, job: _Job, timeout: float, say: Progress) -> None:
    try:
        hear = lambda what: say(f"{contender.name}: {what}")  # noqa: E731
        alone: _Alone = in_child("litefuse.bench:_alone", job, hear=hear, timeout=timeout)
    except ChildFailure as failure:
        contender.failure = f"the runtime {failure.how} while {failure.last or 'it was started'}"
        return
    except _REFUSALS as error:
        contender.failure = f"the runtime refuses it: {' '.join(str(error).split())}"
        return
    contender.first_start_ms = alone.starts[0] * 1e3
    contender.start_ms = statistics.median(alone.starts) * 1e3
    contender.peak_bytes, contender.own_bytes = alone.peak_bytes, alone.own_bytes
    if alone.report is not None:
        contender.regions = len(alone.report["regions"])
        contender.scratch_bytes = max((r["scratch_bytes"] for r in alone.report["regions"]), default=0)
        contender.refused = [Refused(r["what"], r["reason"]) for r in alone.report["refused"]]


def _measure_together(
    contenders: Sequence[Contender],
    jobs: dict[str, _Job],
    rounds: int | None,
    seconds: float | None,
    warmup: int,
    timeout: float,
    say: Progress,
) -> int:
    """Fills in latencies and ratios; returns the number of rounds."""
    running = [c for c in contenders if c.failure is None]
    options = [jobs[c.name] for c in running], rounds, seconds, warmup
    try:
        told = in_child("litefuse.bench:_race", *options, hear=say, timeout=timeout)
    except ChildFailure as failure:
        raise RuntimeMissingError(f"the runtime {failure.how} while {failure.last or 'it was started'}") from None
    except _REFUSALS as error:
        raise RuntimeMissingError(f"the runtime fails side by side: {' '.join(str(error).split())}") from None
    made = 0
    for contender, (measured, compared, made) in zip(running, told, strict=True):  # noqa: B007, all are the same
        contender.latency = measured
        if contender is not running[0] and running[0] is contenders[0]:
            contender.ratio = compared
    return int(made)


def _measure_profile(
    contender: Contender, job: _Job, rounds: int | None, warmup: int, timeout: float, say: Progress
) -> Profile:
    try:
        runs, seconds, told = in_child("litefuse.bench:_profile", job, rounds, warmup, hear=say, timeout=timeout)
    except ChildFailure as failure:
        raise RuntimeMissingError(f"the runtime {failure.how} while {failure.last or 'it was started'}") from None
    except _REFUSALS as error:
        raise RuntimeMissingError(f"it cannot be profiled: {' '.join(str(error).split())}") from None
    whole = seconds / runs * 1e3
    regions = []
    for region in told["regions"]:
        times = [(t["operator"], t["nanoseconds"] / runs / 1e6) for t in region["times"]]
        operators = [OperatorTime(name, ms, ms / whole) for name, ms in sorted(times, key=lambda t: -t[1])]
        ms = sum(t.ms for t in operators)
        regions.append(RegionTime(region["name"], region["position"], ms, ms / whole, operators))
    regions.sort(key=lambda region: -region.ms)
    return Profile(contender.file, runs, whole, max(0.0, whole - sum(r.ms for r in regions)), regions)


# -- memory of the runtime -----------------------------------------------------------------------------------------


def arena_bytes(model: Model, delegate: bool) -> int | None:
    """The most bytes that are live at one time, in all subgraphs that run; None where a shape is not known.

    With the delegate, what is inside of regions does not count.
    """
    total = 0
    plans = _plans(model) if delegate else {}
    for index in _running(model, delegate):
        graph = Graph(model, index)
        known = sizes(graph, TFLITE)
        if index in plans:
            changed = model.replace(subgraphs=list(model.subgraphs))
            changed.subgraphs[index] = merged(graph, plans[index])
            graph = Graph(changed, index)
        stays = lifetimes(graph, None, TFLITE, known)
        if any(t in known.unplanned for op in graph.subgraph.operators for t in (*op.inputs, *op.outputs)):
            return None
        total += lower_bound(stays, TFLITE.alignment)
    return total


def _running(model: Model, delegate: bool) -> list[int]:
    """The subgraphs that a run of the first one goes through; with the delegate, not the decompositions of regions."""
    seen: set[int] = set()
    todo = [0]
    while todo:
        index = todo.pop()
        if index in seen or not 0 <= index < len(model.subgraphs):
            continue
        seen.add(index)
        for op in model.subgraphs[index].operators:
            for options in (op.builtin_options, op.builtin_options_2):
                ours = isinstance(options, StableHLOCompositeOptions) and (options.name or "").startswith(PREFIX)
                if isinstance(options, CallOptions):
                    todo.append(options.subgraph)
                elif options is not None and not (ours and delegate):
                    todo += [getattr(options, f.name) for f in options.fields if f.name.endswith("subgraph_index")]
    return sorted(seen)


def _plans(model: Model) -> dict[int, list[list[int]]]:
    """The groups of operators of a plan, by subgraph."""
    found: dict[int, list[list[int]]] = {}
    for entry in model.metadata:
        if entry.name == PLAN:
            for region in flexbuffers.Loads(bytearray(as_bytes(model.buffers[entry.buffer].data)))["regions"]:
                found.setdefault(region["subgraph"], []).append(list(region["operators"]))
    return found


def merged(graph: Graph, groups: Sequence[Sequence[int]]) -> SubGraph:
    """A subgraph in which each group of operators is one, in the place of its last."""
    subgraph = graph.subgraph
    operators: list[Operator | None] = list(subgraph.operators)
    for group in groups:
        inside = [subgraph.operators[i] for i in group]
        made = {t for op in inside for t in op.outputs}
        inputs = dict.fromkeys(t for op in inside for t in op.inputs if t >= 0 and t not in made)
        outputs = [
            t for t in made if t in graph.outputs or any(all(r is not op for op in inside) for r in graph.readers(t))
        ]
        for i in group:
            operators[i] = None
        operators[max(group)] = inside[-1].replace(inputs=list(inputs), outputs=sorted(outputs))
    whole: SubGraph = subgraph.replace(operators=[op for op in operators if op is not None])
    return whole
