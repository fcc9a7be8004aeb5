"""The proof that two models compute the same: both are run on the same inputs and their outputs compared.

Both models run in the installed runtime twice, with the default delegate (XNNPACK) and with the plain builtin kernels,
as far as the original runs there: some models need the one and some the other. The inputs are those of
:mod:`litefuse.inputs`; how far outputs may differ is said in :mod:`litefuse.difference`.

Each signature is run; the first subgraph too when no signature leads there. Steps follow each other without a reset, so
that models with state are compared along the way, and signatures take turns, so that state they share is. Models with
unknown dimensions are run at three sizes, as far as the original takes them.

A case in which the outputs differ too much is excused, and that is noted, where the original itself fails
(:mod:`litefuse.wide`). If an operator makes something that is not finite, or nearly so, of numbers that are, then
elements that are such are not compared; after rules of class REPAIR the case is left out. It is also left out if the
inputs are such, and if after such rules float64 shows that the original's numbers are wrong and the result's are not.
Rewrites of class EXACT are never excused, and at least one case with usual inputs must be left to compare.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from litefuse import wide
from litefuse.difference import JITTER, KERNELS, Output, OutputDifference, Run, step_of
from litefuse.errors import CheckError
from litefuse.fusions.rule import Numerics
from litefuse.inputs import Case, Feed, Graphs, jittered
from litefuse.inputs import cases as cases_for
from litefuse.interface import Entry, differences, entries
from litefuse.isolation import ChildFailure, in_child
from litefuse.progress import Step
from litefuse.runtime import interpreter, quiet, runtime
from litefuse.schema import Model, deepcopy, parse, read, to_bytes, write
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op, builtin_code
from litefuse.schema.writer import as_bytes

Array: TypeAlias = NDArray[Any]
Source: TypeAlias = "Model | str | os.PathLike[str] | bytes"
Progress: TypeAlias = Callable[[str], None]
Shape: TypeAlias = tuple[int, ...]
_T = TypeVar("_T")

BUDGET = 5.0
"""Seconds after which no more cases are begun, once the two most telling ones are done."""
_MOVED = 4
# What takes the place of extreme values to see whether they make a difference.
_CALM = (0.0, 1.0)
# Bytes above which a model is not copied.
_LARGE = 256 << 20
_FEWEST = 2
_MOST_CRASHES = 3
_SIZES: Sequence[tuple[int, int | None]] = ((1, None), (2, 17), (3, 64))
_STATE = frozenset({Op.VAR_HANDLE, Op.READ_VARIABLE, Op.ASSIGN_VARIABLE, Op.CALL_ONCE})
_REFUSALS = (ValueError, RuntimeError, TypeError)


@dataclass
class CheckResult:
    """The outcome of :func:`check`."""

    outputs: list[OutputDifference]
    runs: int = 0
    """Input sets that both models were run on."""
    regions: int | None = None
    """Regions of the result that the delegate ran; None when it was run without."""
    skipped: str | None = None
    """Why the original could not be run at all, so that nothing was compared; None when it was."""
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every output is within its bound; true too when nothing was compared, see ``skipped``."""
        return all(output.ok for output in self.outputs)


def check(
    a: Source,
    b: Source,
    *,
    numerics: Numerics = Numerics.REASSOCIATED,
    seed: int = 0,
    cases: int | None = None,
    threads: int = 1,
    frozen: bool = False,
    deviation: float = 0.0,
    delegate: bool = False,
    progress: Progress | None = None,
    isolated: bool = False,
    timeout: float = 300.0,
) -> CheckResult:
    """Runs two models on the same inputs and compares what they compute.

    Args:
        a: the original: a file, its bytes or a model.
        b: the result.
        numerics: what the rewrite promised; :mod:`litefuse.difference` says what that allows.
        seed: of the random inputs.
        cases: how many cases to run for each signature, at most; by default as many as :data:`BUDGET` lets.
        threads: number of threads to run with.
        frozen: whether ``b`` may fix dimensions that ``a`` leaves open; both run at the sizes of ``b``.
        deviation: relative change of a constant that the rewrite allows itself; the own noise is measured with it.
        delegate: run ``b`` with litefuse's delegate, which takes its packaged regions first. Both models run in the
            reference kernels then, in XNNPACK only if those cannot run ``a``; its own noise is measured with both. The
            delegate adds floats in another order than they do, so that ``numerics`` has to allow that.
        progress: called with a few words before each case.
        isolated: run in a child process, so that a crash of the runtime is an error and not the end of the caller.
        timeout: seconds that a single step may take in a child process.

    Raises:
        CheckError: the interfaces differ, or the result cannot be run where the original can, or gives outputs of
            another shape. Outputs that differ in value are reported in the result, not raised.
        SchemaError: a file cannot be read.
        RuntimeMissingError: there is no runtime.
    """
    options: dict[str, Any] = {
        "numerics": numerics,
        "seed": seed,
        "cases": cases,
        "threads": threads,
        "frozen": frozen,
        "deviation": deviation,
        "delegate": delegate,
    }
    if isolated:
        return _check_in_child(a, b, options, progress, timeout)
    return _Check(_Side.load(a), _Side.load(b), _teller(progress), **options).run()


def _teller(progress: Progress | None) -> Callable[[_Place], None]:
    return lambda place: progress(Step(str(place), place.share)) if progress else None


def _check_in_child(
    a: Source, b: Source, options: dict[str, Any], progress: Progress | None, timeout: float
) -> CheckResult:
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        files = [_as_file(source, Path(directory) / name) for source, name in ((a, "a.tflite"), (b, "b.tflite"))]
        while True:
            try:
                result: CheckResult = in_child(
                    "litefuse.check:_check_files",
                    *files,
                    options | {"without": frozenset(left_out)},
                    hear=_teller(progress),
                    timeout=timeout,
                )
            except ChildFailure as failure:
                place = failure.last
                if not isinstance(place, _Place) or not place.original:
                    raise CheckError(f"the runtime {failure.how} while {place or 'it was loaded'}") from None
                reason = f"the runtime {failure.how} while {place}"
                if not place.case or len(left_out) >= _MOST_CRASHES:
                    return CheckResult([], skipped=reason)
                left_out[place.case] = f"{reason}: that case was left out"
            else:
                result.notes.extend(left_out.values())
                if result.skipped and left_out:
                    result.skipped = next(iter(left_out.values()))
                return result


def _check_files(a: str, b: str, options: dict[str, Any], say: Callable[[_Place], None]) -> CheckResult:
    return _Check(_Side.load(a), _Side.load(b), say, **options).run()


def _as_file(source: Source, path: Path) -> str:
    if isinstance(source, Model):
        write(source, path)
    elif isinstance(source, (bytes, bytearray, memoryview)):
        path.write_bytes(source)
    else:
        return os.fspath(source)
    return str(path)


def run_model(
    model: Source, inputs: dict[str, Array] | None = None, *, xnnpack: bool = True, seed: int = 0
) -> dict[str, Array]:
    """Runs the first signature (or, without signatures, the first subgraph) once; returns outputs by name.

    Inputs that are not given get seeded normal values, and 1 for unknown first dimensions. Given inputs may have any
    shape that the model takes.

    Raises ValueError or RuntimeError when the runtime refuses the model or an input, RuntimeMissingError without one.
    """
    side = _Side.load(model)
    entry = side.entries[0]
    values = []
    for port in entry.inputs:
        if inputs is not None and port.name in inputs:
            values.append(np.asarray(inputs[port.name]))
        else:
            feed = Feed(port, entry, Graphs(side.model))
            values.append(feed.values(Case("normal"), feed.shape(1, None), seed))
    runner = _Runner(side, xnnpack, 1, {entry: [value.shape for value in values]})
    outputs = zip((port.name for port in entry.outputs), runner(entry, values), strict=True)
    return {name: value for name, value in outputs if value is not None}


@dataclass
class _Side:
    """One of the two models: its tables, what the runtime reads it from, and its entries."""

    model: Model
    source: bytes | str
    entries: list[Entry]
    delegate: Any = None
    """What takes operators before the default delegate does."""
    reference: bool = False
    """Whether the plain kernels are to be the reference ones."""

    @classmethod
    def load(cls, source: Source) -> _Side:
        if isinstance(source, Model):
            model, runnable = source, to_bytes(source)
        elif isinstance(source, (bytes, bytearray, memoryview)):
            runnable = bytes(source)
            model = parse(runnable)
        else:
            model = read(source)
            return cls(model, os.fspath(source), entries(model))
        return cls(model, runnable, entries(model))

    @property
    def size(self) -> int:
        """Bytes of the model, external ones included."""
        return sum(as_bytes(buffer.data).nbytes for buffer in self.model.buffers if buffer.data is not None)

    @property
    def has_state(self) -> bool:
        return any(builtin_code(code) in _STATE for code in self.model.operator_codes) or any(
            tensor.is_variable for subgraph in self.model.subgraphs for tensor in subgraph.tensors
        )


class _Runner:
    """A model in an interpreter with fixed input shapes. State that the model keeps goes from call to call."""

    def __init__(
        self, side: _Side, xnnpack: bool, threads: int, shapes: dict[Entry, list[Shape]], *, keep_all: bool = False
    ) -> None:
        delegates = () if side.delegate is None else (side.delegate,)
        self._interpreter = interpreter(
            side.source,
            xnnpack=xnnpack,
            reference=side.reference and not xnnpack,
            threads=threads,
            keep_all=keep_all,
            delegates=delegates,
        )
        for entry, wanted in shapes.items():
            if entry.subgraph == 0:
                for port, shape in zip(entry.inputs, wanted, strict=True):
                    if shape != port.shape:
                        self._interpreter.resize_tensor_input(port.tensor, shape)
        with quiet():
            self._interpreter.allocate_tensors()

    def __call__(self, entry: Entry, values: Sequence[Array]) -> list[Array | None]:
        """The outputs; None for those that the runtime cannot hand over."""
        if entry.subgraph:
            # Made anew each time: while one exists, the interpreter refuses to be called in any other way.
            signature = self._interpreter.get_signature_runner(entry.key)
            with quiet():
                named = signature(**{port.name: value for port, value in zip(entry.inputs, values, strict=True)})
            return [np.asarray(named[port.name]) for port in entry.outputs]
        for port, value in zip(entry.inputs, values, strict=True):
            self._interpreter.set_tensor(port.tensor, value)
        with quiet():
            self._interpreter.invoke()
        return [self.value(port.tensor) for port in entry.outputs]

    def value(self, tensor: int) -> Array | None:
        """A tensor of the first subgraph; None when the runtime does not hand it over."""
        try:
            return np.asarray(self._interpreter.get_tensor(tensor))
        except ValueError:
            return None


class _Place(NamedTuple):
    """What is being done, for progress and for saying where the runtime crashed."""

    original: bool
    xnnpack: bool
    entry: str
    case: str
    """Empty while the model is being loaded."""
    share: float | None = None
    """How much of the comparison is done."""

    def __str__(self) -> str:
        model = "original" if self.original else "result"
        what = f"case {self.case}" if self.case else "loading"
        return f"{self.entry}{what}: running the {model} with {KERNELS[self.xnnpack]}"


@dataclass
class _Setup:
    """Both models, loaded for one set of input shapes."""

    shapes: dict[Entry, list[Shape]]
    runners: dict[bool, tuple[_Runner, _Runner]]
    """The original and the result, for each set of kernels in which the original can be run."""
    moved: dict[tuple[bool, int], _Runner] = field(default_factory=dict)
    """The original with its float constants moved a little, by kernels and number."""
    open: tuple[_Runner, _Runner] | None = None
    """The original and the result with all their tensors kept, once that was asked for."""
    other: _Runner | None = None
    """The original in kernels in which the result is not run, where it can be run in them."""


class _Lazy(Iterable[_T]):
    """What an iterator gives, made when first asked for and kept, so that it can be gone through again."""

    def __init__(self, source: Iterator[_T]) -> None:
        self._source = source
        self._made: list[_T] = []

    def __iter__(self) -> Iterator[_T]:
        for i in itertools.count():
            if i == len(self._made):
                try:
                    self._made.append(next(self._source))
                except StopIteration:
                    return
            yield self._made[i]


class _Each(Iterable[Array | None]):
    """The results of one output in each of many runs, which are made when asked for."""

    def __init__(self, runs: Iterable[list[Array | None]], output: int) -> None:
        self._runs, self._output = runs, output

    def __iter__(self) -> Iterator[Array | None]:
        return (run[self._output] for run in self._runs)


class _Excuse(NamedTuple):
    """Why a case says little against the result, and whether that is because the result mends it."""

    reason: str
    mended: bool
    """Or because nothing in it says anything."""


class _Check:
    """One comparison of two models. ``tell`` is called with what is about to be done."""

    def __init__(
        self,
        a: _Side,
        b: _Side,
        tell: Callable[[_Place], None],
        *,
        numerics: Numerics,
        seed: int,
        cases: int | None,
        threads: int,
        frozen: bool,
        deviation: float = 0.0,
        delegate: bool = False,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self.a, self.b = a, b
        if delegate:
            from litefuse.delegates.runtime import load  # not needed otherwise

            b.delegate = load()
            a.reference = b.reference = True
        self.tell = tell
        self.share = 0.0
        self.numerics = numerics
        self.deviation = deviation
        self.seed = seed
        self.threads = threads
        self.frozen = frozen
        self.most = cases
        changes = list(differences(a.model, b.model, frozen=frozen))
        if changes:
            raise CheckError(f"the interfaces differ: {'; '.join(changes)}")
        graphs = Graphs(a.model)
        self.feeds = {
            entry: [
                Feed(replace(port, shape=sized.shape, signature=sized.signature), entry, graphs)
                for port, sized in zip(entry.inputs, theirs.inputs, strict=True)
            ]
            for entry, theirs in zip(a.entries, b.entries, strict=True)
        }
        feeds = [feed for of_entry in self.feeds.values() for feed in of_entry]
        # Extreme values would stay in a state for good.
        usable = [case for case in cases_for(feeds) if not (case.extreme and a.has_state)]
        self.cases = [case for case in usable if case.name not in without]
        self.outputs = {
            entry: [
                Output(
                    port,
                    entry.key,
                    numerics,
                    step=step_of(graphs[entry.subgraph], port.tensor),
                    state=a.has_state,
                    deviation=deviation,
                )
                for port in entry.outputs
            ]
            for entry in a.entries
        }
        self.graphs = graphs, Graphs(b.model)
        self.excused: dict[str, _Excuse] = {}
        self.confirmed = False
        self.notes: list[str] = []
        self.refused: dict[str, list[str]] = {}
        self.claimed: set[tuple[str, int]] = set()
        self.left: dict[str, str] = {}
        self.runs = 0
        self.why_not = ""

    def at(self, place: _Place) -> None:
        """Says what is about to be done."""
        self.tell(place._replace(share=self.share))

    def run(self) -> CheckResult:
        runtime()
        for port in (feed.port for feeds in self.feeds.values() for feed in feeds if not feed.possible):
            kind = getattr(port.type, "name", port.type)
            return CheckResult([], skipped=f"no values can be made for the {kind} input `{port.name}`")
        start = time.perf_counter()
        sizes = self._sizes()
        for number, (batch, other) in enumerate(sizes):
            self._run_at(batch, other, start, (number / len(sizes), (number + 1) / len(sizes)))
        for reason, names in self.refused.items():
            self.notes.append(f"both models refuse the inputs of {_listed(names)}: {reason}")
        if not self.runs:
            return CheckResult([], skipped=self.why_not or next(iter(self.refused), "every case was left out"))
        for mended, what in ((True, "not compared"), (False, "compared only where both models gave usual numbers")):
            names = [name for name, excuse in self.excused.items() if excuse.mended is mended]
            if names:
                example = self.excused[names[0]].reason
                self.notes.append(f"{_listed(names)}: {what}, since the original itself fails there: {example}")
        outputs = [output for entry in self.a.entries for output in self.outputs[entry]]
        if self.excused and not self.confirmed:
            raise CheckError(f"the original itself fails in every case: {next(iter(self.excused.values())).reason}")
        judged = [output.judge() for output in outputs]
        notes = [*self.notes, *(n for output in outputs for n in output.notes())]
        result = CheckResult(judged, self.runs, notes=notes)
        if self.b.delegate is not None:
            result.regions = len(self.claimed)
            result.notes += [f"the delegate leaves {what} to the runtime: {why}" for what, why in self.left.items()]
        return result

    def _sizes(self) -> Sequence[tuple[int, int | None]]:
        """Values to use for an unknown first dimension and for other unknown ones (None: as stored)."""
        signatures = [port.signature for entry in self.b.entries for port in entry.inputs]
        if any(d < 0 for signature in signatures for d in signature[1:]):
            return _SIZES
        if any(d < 0 for signature in signatures for d in signature[:1]):
            return [(batch, None) for batch, _ in _SIZES]
        return _SIZES[:1]

    def _run_at(self, batch: int, other: int | None, start: float, part: tuple[float, float]) -> None:
        """Runs all cases with fresh interpreters; only a few when other sizes came before.

        That is a part of the whole: from which share of it to which.
        """
        self.share = part[0]
        main = self.runs == 0
        budget = BUDGET / 2 if len(self._sizes()) > 1 else BUDGET
        plan = (self.cases if main else self.cases[:3])[: self.most]
        size = "" if main else f" at batch {batch}" + ("" if other is None else f" and size {other}")
        setup = self._load({e: [f.shape(batch, other) for f in feeds] for e, feeds in self.feeds.items()}, size)
        if not setup.runners:
            return
        for done, case in enumerate(plan):
            spent = time.perf_counter() - start
            self.share = part[0] + (part[1] - part[0]) * done / len(plan)
            if self.most is None and done >= (_FEWEST if main else 1) and spent > budget:
                self.notes.append(f"{done} of {len(plan)} cases were run{size}: they are slow")
                break
            for entry, theirs in zip(self.a.entries, self.b.entries, strict=True):
                self._step(case, entry, theirs, setup)

    def _load(self, shapes: dict[Entry, list[Shape]], size: str) -> _Setup:
        setup = _Setup(shapes, {})
        theirs = dict(zip(self.b.entries, shapes.values(), strict=True))
        reasons: dict[bool, str] = {}
        for xnnpack in sorted(KERNELS) if self.b.reference else KERNELS:
            if xnnpack and self.b.reference and setup.runners:
                break
            self.at(_Place(True, xnnpack, "", ""))
            try:
                original = _Runner(self.a, xnnpack, self.threads, shapes)
            except _REFUSALS as error:
                reasons[xnnpack] = _reason(error)
                continue
            self.at(_Place(False, xnnpack, "", ""))
            try:
                setup.runners[xnnpack] = original, _Runner(self.b, xnnpack, self.threads, theirs)
            except _REFUSALS as error:
                raise CheckError(
                    f"the result cannot be loaded with {KERNELS[xnnpack]}{size}, though the original can: "
                    f"{_reason(error)}"
                ) from None
        if self.b.delegate is not None:
            from litefuse.delegates.runtime import report

            if setup.runners and True not in setup.runners:
                self.at(_Place(True, True, "", ""))
                with contextlib.suppress(*_REFUSALS):
                    setup.other = _Runner(self.a, True, self.threads, shapes)
            told = report(self.b.delegate)
            self.claimed.update((region["name"], region["position"]) for region in told["regions"])
            self.left.update((refusal["what"], refusal["reason"]) for refusal in told["refused"])
        if not setup.runners:
            text = "; ".join(dict.fromkeys(reasons.values()))
            self.why_not = self.why_not or text
            if size:
                self.notes.append(f"not compared{size}, where the original cannot be run: {text}")
        elif not self.b.reference:
            self._leave_out(reasons, setup, size)
        return setup

    def _leave_out(self, reasons: dict[bool, str], setup: _Setup, size: str = "") -> None:
        """Goes on without the kernels that cannot run the original."""
        for xnnpack, reason in reasons.items():
            setup.runners.pop(xnnpack, None)
            if not size:
                self.notes.append(f"{KERNELS[xnnpack]} cannot run the original: {reason}")

    def _step(self, case: Case, entry: Entry, theirs: Entry, setup: _Setup) -> None:
        """Runs one case with all kernels and compares."""
        feeds = zip(self.feeds[entry], setup.shapes[entry], strict=True)
        values = [feed.values(case, shape, self.seed) for feed, shape in feeds]
        ours: dict[bool, list[Array | None]] = {}
        results: dict[bool, list[Array | None]] = {}
        refusals: dict[bool, str] = {}
        refused: dict[bool, str] = {}
        elsewhere: list[Array | None] | None = None
        for xnnpack, runners in setup.runners.items():
            if xnnpack and self.frozen and case.extreme and False in setup.runners:
                continue  # with fixed shapes XNNPACK takes more operators, and they answer to infinities in another way
            for original, runner, outcome, failures in (
                (True, runners[0], ours, refusals),
                (False, runners[1], results, refused),
            ):
                self.at(_Place(original, xnnpack, str(entry), case.name))
                try:
                    outcome[xnnpack] = runner(entry if original else theirs, values)
                except _REFUSALS as error:
                    failures[xnnpack] = _reason(error)
        where = f"{entry}case {case.name}"
        if not ours:
            reason = next(iter(refusals.values()))
            if results:
                raise CheckError(f"{where}: the result takes inputs that the original refuses ({reason})")
            self.refused.setdefault(reason, []).append(case.name)
            return
        for xnnpack in ours:
            if xnnpack in refused:
                raise CheckError(
                    f"{where}: the result cannot be run with {KERNELS[xnnpack]}, though the original can: "
                    f"{refused[xnnpack]}"
                )
        if refusals and not self.runs:
            self._leave_out(refusals, setup)
        if setup.other is not None:
            self.at(_Place(True, True, str(entry), case.name))
            with contextlib.suppress(*_REFUSALS):
                elsewhere = setup.other(entry, values)
        self.runs += 1
        runs: list[tuple[Output, Run, Iterable[Array | None]]] = []
        for xnnpack, references in ours.items():
            second = ours.get(not xnnpack, elsewhere)
            shapes, (unmoved, _) = setup.shapes[entry], setup.runners[xnnpack]
            calm = [self._calm(case, entry, shapes, unmoved, number) for number in _CALM if case.extreme]
            opinions = _Lazy(self._opinions(xnnpack, setup, entry, values))
            for i, output in enumerate(self.outputs[entry]):
                run = Run(
                    case,
                    xnnpack,
                    references[i],
                    results[xnnpack][i],
                    None if second is None else second[i],
                    [None if outputs is None else outputs[i] for outputs in calm],
                )
                runs.append((output, run, _Each(opinions, i)))
        before = [output.snapshot() for output in self.outputs[entry]]
        within = [output.add(run, opinions) for output, run, opinions in runs]  # every one is to be added
        if all(within):
            self.confirmed |= not case.extreme
            return
        excuse = self._excuse(case, entry, theirs, setup, values)
        if excuse is None:
            self.confirmed |= not case.extreme
            return
        for output, snapshot in zip(self.outputs[entry], before, strict=True):
            output.restore(snapshot)
        if not excuse.mended:
            within = [output.add(run._replace(fails=True), opinions) for output, run, opinions in runs]
            self.confirmed |= not case.extreme and all(within)
        self.excused.setdefault(case.name, excuse)

    def _excuse(self, case: Case, entry: Entry, theirs: Entry, setup: _Setup, values: list[Array]) -> _Excuse | None:
        """Why a case in which the outputs differ too much says nothing against the result; None if it does."""
        if self.numerics is Numerics.EXACT or entry.subgraph or self.a.has_state:
            return None
        try:
            if setup.open is None:
                sides = (self.a, setup.shapes), (self.b, dict(zip(self.b.entries, setup.shapes.values(), strict=True)))
                ours, result = (_Runner(side, False, self.threads, shapes, keep_all=True) for side, shapes in sides)
                setup.open = ours, result
            for runner, of in zip(setup.open, (entry, theirs), strict=True):
                runner(of, values)
        except _REFUSALS:
            return None
        (graph, mended), (ours, result) = self.graphs, setup.open
        repairs = self.numerics is Numerics.REPAIR
        fault = next(wide.faults(graph[0], ours.value), None) if repairs else None
        if fault is not None and next(wide.faults(mended[0], result.value), None) is None:
            return _Excuse(str(fault), mended=True)
        failure = next(wide.failures(graph[0], ours.value), None)
        if failure is None and case.extreme:
            return _Excuse("inputs are not finite, or next to it, and reach other numbers than before", mended=True)
        if failure is None and any(_is_subnormal(value) for value in values):
            failure = "inputs are subnormal, which some kernels take for zero"
        # What a repair makes of an overflow is another number, and float64 overflows too.
        return None if failure is None else _Excuse(failure, mended=repairs)

    def _calm(
        self, case: Case, entry: Entry, shapes: list[Shape], original: _Runner, number: float
    ) -> list[Array | None] | None:
        """What the original gives in an extreme case with ``number`` in place of the extreme values, if it takes it."""
        feeds = zip(self.feeds[entry], shapes, strict=True)
        try:
            return original(entry, [feed.values(case, shape, self.seed, calm=number) for feed, shape in feeds])
        except _REFUSALS:
            return None

    def _opinions(
        self, xnnpack: bool, setup: _Setup, entry: Entry, values: list[Array]
    ) -> Iterator[list[Array | None]]:
        """What the original gives when its constants and inputs are moved a little; nothing if it has state."""
        for number in range(0 if self.a.has_state else 2 * _MOVED):
            key = xnnpack, number % _MOVED
            if key not in setup.moved:
                setup.moved[key] = _Runner(self._moved(number), xnnpack, self.threads, setup.shapes)
            rng = np.random.default_rng([self.seed, number])
            feeds = zip(self.feeds[entry], values, strict=True)
            inputs = [jittered(feed, value, JITTER, rng) for feed, value in feeds]
            yield setup.moved[key](entry, inputs)

    def _moved(self, number: int) -> _Side:
        """The original with each float32 constant moved by up to half a unit in the last place, or the deviation."""
        if self.a.model.unknown or self.a.size > _LARGE:
            return self.a
        model = deepcopy(self.a.model)
        rng = np.random.default_rng([self.seed, number])
        floats = {t.buffer for s in model.subgraphs for t in s.tensors if t.type == TensorType.FLOAT32}
        for buffer in (model.buffers[i] for i in sorted(floats) if 0 < i < len(model.buffers)):
            if buffer.data is not None and len(buffer.data) % 4 == 0:
                value = np.frombuffer(as_bytes(buffer.data), np.float32)
                half = max(2.0**-24, self.deviation) * rng.integers(-1, 2, value.shape, np.int8)
                buffer.data = as_bytes((value * (1 + half)).astype(np.float32))
        return _Side(model, to_bytes(model), self.a.entries)


def _is_subnormal(value: Array) -> bool:
    return value.dtype.kind == "f" and bool(np.any((value != 0) & (np.abs(value) < np.finfo(value.dtype).tiny)))


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."


def _listed(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    return f"case {names[0]}" if len(names) == 1 else f"cases {', '.join(names[:-1])} and {names[-1]}"
