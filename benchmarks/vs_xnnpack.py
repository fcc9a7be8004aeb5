"""Our time over that of LiteRT with XNNPACK on the same original file: whole models, and every kind of region.

    python benchmarks/vs_xnnpack.py [--whole] [--regions] [--all] [--only PATTERN] [FILE...]
        [--threads N] [--cpu N,...] [--repeat 3] [--seconds 3] [--markdown FILE] [--json FILE] ...

The one side is the original file in the stock runtime. The other is what `litefuse convert --target T` makes of it,
with regions packaged as a plan, in the same runtime with litefuse's delegate (LITEFUSE_DELEGATE_LIBRARY names another
one). `--whole` are the Keras networks that `keras_models.py` makes and the real models for which there are goals,
`--regions` small models of one region each, `--all` every file of the corpus; without any of these and without files it
is the first two. Real models are found through LITEFUSE_CORPUS.

Both run in one process, pinned, by turns. The whole comparison is repeated, each time in a new process. `ratio` is the
median of the paired ratios of all repetitions with its quartiles, `repeats` are the medians of each, `minima` is the
ratio of the shortest times. What is above 1 is marked as a loss. `unsteady` marks a baseline whose repetitions differ
by more than a tenth: a neighbour was at work, so measure again. Where no region is formed nothing is claimed, and what
is measured is the converted file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from subjects import Subject, add_choice, chosen, regions, whole

from litefuse.bench import Latency, Ratio, Samples, Value, latency, race, ratio, values, with_inputs
from litefuse.convert import convert
from litefuse.delegates.cost import Eager
from litefuse.delegates.formation import Formation, form
from litefuse.delegates.runtime import library, load, report
from litefuse.delegates.targets import target
from litefuse.errors import LitefuseError
from litefuse.interface import differences
from litefuse.isolation import ChildFailure, in_child
from litefuse.runtime import interpreter, runtime
from litefuse.schema import read, write

_UNSTEADY = 1.1
# How far outputs may differ, relative to the largest magnitude; integers are rounded in other places by other kernels.
# Beyond it, twice what XNNPACK and the builtin kernels are apart on the original.
_AGREE, _AGREE_INTEGERS = 1e-4, 0.02


class Options(NamedTuple):
    """How everything is converted and measured."""

    target: str
    level: str
    without: tuple[str, ...]
    """Kinds of regions that are not wanted."""
    eager: bool
    check: bool
    threads: int
    cpus: tuple[int, ...]
    seconds: float
    delegate_options: dict[str, str]
    """What the delegate gets as it is."""


class Prepared(NamedTuple):
    """The two files, and what the conversion says."""

    original: str
    converted: str
    kinds: dict[str, int]
    """Regions that were formed."""
    covered: int
    """Operators that are in regions."""
    operators: int


class Repetition(NamedTuple):
    """One comparison. Rounds are the paired times, in seconds."""

    stock: Latency
    ours: Latency
    stock_rounds: list[float]
    our_rounds: list[float]
    claimed: int
    """Regions that the delegate runs."""
    refused: list[str]
    difference: float
    """The largest of any output, relative to the largest magnitude in it; NaN where one side only is not finite."""
    noise: float
    """The same between XNNPACK and the builtin kernels on the original; measured only where a difference is large."""
    agrees: bool
    """Whether the outputs are as near as that explains."""


class Row(NamedTuple):
    """What is known of one subject."""

    subject: Subject
    prepared: Prepared | None
    repetitions: list[Repetition]
    failure: str | None = None

    @property
    def ratio(self) -> Ratio:
        """Of all repetitions together."""
        pairs = [(r.stock_rounds, r.our_rounds) for r in self.repetitions]
        return ratio(*(Samples([t for pair in pairs for t in pair[side]], []) for side in (0, 1)))

    @property
    def medians(self) -> list[float]:
        """The ratio of each repetition."""
        return [ratio(Samples(r.stock_rounds, []), Samples(r.our_rounds, [])).median for r in self.repetitions]

    @property
    def minima(self) -> float:
        """The ratio of the shortest times."""
        return min(r.ours.least for r in self.repetitions) / min(r.stock.least for r in self.repetitions)

    @property
    def stock_ms(self) -> float:
        """The baseline: the median of its repetitions."""
        return statistics.median(r.stock.p50 for r in self.repetitions)

    @property
    def worst(self) -> Repetition:
        """The repetition whose outputs differ most."""
        return max(self.repetitions, key=lambda r: math.inf if math.isnan(r.difference) else r.difference)

    @property
    def agrees(self) -> bool:
        """Whether all outputs are as near as rounding explains."""
        return all(r.agrees for r in self.repetitions)

    def marks(self) -> list[str]:
        """What one should see of it at once."""
        found = []
        if self.ratio.median > 1:
            found.append("**loss**")
        if self.ratio.verdict == "unclear":
            found.append("unclear")
        if self.subject.goal is not None and self.ratio.median > self.subject.goal:
            found.append("misses the goal")
        if not self.agrees:
            found.append("**outputs differ**")
        assert self.prepared is not None
        formed, claimed = sum(self.prepared.kinds.values()), self.repetitions[0].claimed
        if claimed < formed:
            found.append(f"{formed - claimed} regions not claimed")
        times = [r.stock.p50 for r in self.repetitions]
        if max(times) > _UNSTEADY * min(times):
            found.append("unsteady")
        return found


# -- in child processes ----------------------------------------------------------------------------------------------


def prepare(subject: Subject, options: Options, where: str, say: Callable[[str], None]) -> Prepared:
    """Converts a subject, and writes what there is no file of yet."""
    say("converting")
    original, converted = subject.path or os.path.join(where, "original.tflite"), os.path.join(where, "ours.tflite")
    if subject.path is None:
        assert subject.build is not None
        write(subject.build(), original)
    done = convert(
        original,
        level=options.level,
        target=options.target,
        package="none" if options.eager else "plan",
        disable_regions=() if options.eager else options.without,
        check=options.check,
    )
    formation: Formation | None = done.regions
    if options.eager:
        profile = target(options.target)
        formation = form(done.model, profile, "plan", disable=options.without, cost_model=Eager(profile))
    write(done.model, converted)
    assert formation is not None
    return Prepared(original, converted, formation.kinds(), formation.covered, formation.operators)


def compare(prepared: Prepared, options: Options, say: Callable[[str], None]) -> Repetition:
    """Runs both by turns."""
    os.sched_setaffinity(0, options.cpus)
    say("loading")
    models = [read(prepared.original), read(prepared.converted)]
    odd = next(iter(differences(*models, frozen=True)), None)
    if odd is not None:
        raise LitefuseError(f"the interfaces differ: {odd}")
    ours = values(models[1])
    inputs = [values(models[0], [v.value.shape for v in ours]), ours]
    delegate = _delegate(options)
    stock = with_inputs(interpreter(prepared.original, threads=options.threads), inputs[0])
    fused = with_inputs(interpreter(prepared.converted, threads=options.threads, delegates=[delegate]), inputs[1])
    told = report(delegate)
    say("comparing the outputs")
    stock.invoke()
    fused.invoke()
    want = _outputs(stock)
    gap, good = difference(_outputs(fused), want)
    noise = 0.0
    if not good:
        noise = _noise(prepared.original, inputs[0], want)
        good = gap <= 2 * noise
    say("running by turns")
    samples = race(
        [stock.invoke, fused.invoke],
        seconds=options.seconds,
        tell=lambda done: say(f"running by turns, round {done}"),
    )
    refused = [f"{r['what']}: {r['reason']}" for r in told["refused"]]
    base, other = samples
    return Repetition(
        stock=latency(base),
        ours=latency(other),
        stock_rounds=base.rounds,
        our_rounds=other.rounds,
        claimed=len(told["regions"]),
        refused=refused,
        difference=gap,
        noise=noise,
        agrees=good,
    )


def _delegate(options: Options) -> Any:
    """The delegate; options that :func:`litefuse.delegates.runtime.load` does not know go to the library itself."""
    if not options.delegate_options:
        return load(threads=options.threads)
    given = {"threads": str(options.threads), **options.delegate_options}
    return runtime().module.load_delegate(str(library()), given)


def _outputs(runner: Any) -> list[Any]:
    return [np.array(runner.get_tensor(detail["index"])) for detail in runner.get_output_details()]


def difference(got: Sequence[Any], want: Sequence[Any]) -> tuple[float, bool]:
    """The largest difference of any output, and whether each is as small as rounding usually makes it."""
    worst, good = 0.0, True
    for a, b in zip(got, want, strict=True):
        gap = _difference(a, b)
        good &= gap <= (_AGREE if b.dtype.kind == "f" else _AGREE_INTEGERS)
        worst = gap if math.isnan(gap) else max(worst, gap)
    return worst, good


def _difference(got: Any, want: Any) -> float:
    """Relative to the largest magnitude; NaN where one side only is not finite."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return math.inf
    if got.dtype.kind not in "fiu":
        return float(np.any(got != want))
    a, b = got.astype(np.float64), want.astype(np.float64)
    usual = np.isfinite(b)
    if not np.array_equal(a[~usual], b[~usual], equal_nan=True) or not np.all(np.isfinite(a[usual])):
        return math.nan
    worst = float(np.max(np.abs(a[usual] - b[usual]), initial=0.0))
    return worst / float(np.max(np.abs(b[usual]))) if worst and np.any(b[usual]) else worst


def _noise(path: str, inputs: Sequence[Value], want: Sequence[Any]) -> float:
    """How far the builtin kernels are from XNNPACK; 0 where they do not run the model."""
    try:
        plain = with_inputs(interpreter(path, xnnpack=False), inputs)
        plain.invoke()
    except (ValueError, RuntimeError):
        return 0.0
    return difference(_outputs(plain), want)[0]


# -- the whole -------------------------------------------------------------------------------------------------------


def measure(subject: Subject, options: Options, repeat: int, timeout: float) -> Row:
    """Everything about one subject."""
    prepared, repetitions = None, []
    if subject.path is not None and not os.path.exists(subject.path):
        hint = "; `python benchmarks/keras_models.py` makes it" if subject.group == "networks" else ""
        return Row(subject, None, [], f"there is no {subject.path}{hint}")
    hear = lambda what: None  # noqa: E731
    with tempfile.TemporaryDirectory() as where:
        try:
            prepared = in_child("vs_xnnpack:prepare", subject, options, where, hear=hear, timeout=timeout)
            for _ in range(repeat):
                repetitions.append(in_child("vs_xnnpack:compare", prepared, options, hear=hear, timeout=timeout))
        except ChildFailure as failure:
            return Row(subject, prepared, repetitions, f"{failure.how} while {failure.last or 'it was started'}")
        except Exception as error:  # whatever it is, the others go on
            return Row(subject, prepared, repetitions, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    return Row(subject, prepared, repetitions)


_HEAD = (
    "| model | regions | covered | XNNPACK ms | ratio (quartiles) | repeats | minima | difference | goal | |\n"
    "|---|---|---|---:|---|---|---:|---:|---:|---|"
)


def line(row: Row) -> str:
    """A row of the table."""
    kinds = covered = ""
    if row.prepared is not None:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(row.prepared.kinds.items(), key=lambda k: -k[1]))
        covered = f"{row.prepared.covered} of {row.prepared.operators}"
        kinds = kinds or "no region"
    if row.failure is not None:
        return f"| {row.subject.name} | {kinds} | {covered} | | | | | | | **failed**: {row.failure} |"
    found = row.ratio
    cells = [
        row.subject.name,
        kinds,
        covered,
        f"{row.stock_ms:.3g}" if row.stock_ms < 100 else f"{row.stock_ms:.0f}",
        f"{found.median:.3f} ({found.low:.3f}–{found.high:.3f})",
        " ".join(f"{median:.3f}" for median in row.medians),
        f"{row.minima:.3f}",
        _gap(row.worst),
        "" if row.subject.goal is None else f"{row.subject.goal:.2f}",
        ", ".join(row.marks()),
    ]
    return f"| {' | '.join(cells)} |"


def _gap(found: Repetition) -> str:
    """The difference of the outputs, with the model's own noise where that was measured."""
    noise = f" (own noise {found.noise:.1e})" if found.noise else ""
    return f"{found.difference:.1e}{noise}" if found.difference else "0"


def summary(rows: Sequence[Row]) -> list[str]:
    """Geometric means, and how many are lost."""
    measured = [row for row in rows if row.failure is None]
    by_group: dict[str, list[Row]] = {}
    for row in measured:
        by_group.setdefault(row.subject.group, []).append(row)
    lines = ["| group | models | geometric mean | best | worst |", "|---|---:|---:|---:|---:|"]
    everything = {"all": measured} if len(by_group) > 1 else {}
    for group, members in (by_group | everything).items():
        ratios = [row.ratio.median for row in members]
        mean = statistics.geometric_mean(ratios)
        lines.append(f"| {group} | {len(members)} | {mean:.3f} | {min(ratios):.3f} | {max(ratios):.3f} |")
    losses = [row for row in measured if row.ratio.median > 1]
    goals = [row for row in measured if row.subject.goal is not None]
    missed = [row for row in goals if row.ratio.median > (row.subject.goal or 0)]
    lines += [
        "",
        f"{len(measured)} measured, {len(rows) - len(measured)} failed, {len(losses)} above 1, {len(missed)} of "
        f"{len(goals)} goals missed, {sum(not row.agrees for row in measured)} with other outputs.",
    ]
    return lines


def machine() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((text.split(":", 1)[1].strip() for text in lines if text.startswith("model name")), platform.machine())


def about(options: Options, repeat: int) -> dict[str, Any]:
    """What the figures were measured with."""
    found = runtime()
    told = report(_delegate(options))
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "runtime": f"{found.name} {found.version}",
        "delegate": f"{told['backend']}: {told['description']}",
        "repeat": repeat,
        **options._asdict(),
    }


def as_json(row: Row) -> dict[str, Any]:
    """A row for a program. Times are in milliseconds."""
    made: dict[str, Any] = {"name": row.subject.name, "group": row.subject.group, "goal": row.subject.goal}
    if row.prepared is not None:
        made |= {k: getattr(row.prepared, k) for k in ("kinds", "covered", "operators")}
    if row.failure is not None:
        return made | {"failure": row.failure}
    gap = row.worst.difference
    return made | {
        "ratio": row.ratio._asdict() | {"minima": row.minima, "verdict": row.ratio.verdict},
        "repetitions": [
            {"ratio": median, "stock": r.stock._asdict(), "ours": r.ours._asdict(), "rounds": len(r.our_rounds)}
            for median, r in zip(row.medians, row.repetitions, strict=True)
        ],
        "claimed": row.worst.claimed,
        "refused": sorted(set(row.worst.refused)),
        "difference": gap if math.isfinite(gap) else str(gap),
        "noise": row.worst.noise,
        "agrees": row.agrees,
        "marks": [mark.strip("*") for mark in row.marks()],
    }


def add_conversion(parser: argparse.ArgumentParser, target: str) -> None:
    """The arguments that say how subjects are converted and run, and where the results go."""
    add = parser.add_argument
    add("--target", default=target, help="what to convert for")
    add("--level", default="default", help="of the conversion")
    add("--no-region", action="append", default=[], metavar="KIND", help="a kind of region that is not formed")
    add("--eager", action="store_true", help="form every region that is possible, whether it is said to pay or not")
    add("--delegate-option", action="append", default=[], type=_pair, metavar="KEY=VALUE", help="for the delegate")
    add("--markdown", type=Path, metavar="FILE", help="where to write the tables")
    add("--json", type=Path, metavar="FILE", help="where to write all figures")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(text)
    return key, value


def options_of(given: argparse.Namespace) -> Options:
    """What the arguments of :func:`add_conversion` say, for one thread."""
    options = dict(given.delegate_option)
    return Options(given.target, given.level, tuple(given.no_region), given.eager, False, 1, (), 0.0, options)


class Output:
    """Prints Markdown, and writes it and the figures to files: each time, since a long run may be ended early."""

    def __init__(self, given: argparse.Namespace, about: dict[str, Any]) -> None:
        self.markdown, self.json, self.about = given.markdown, given.json, about
        self.lines: list[str] = []
        self.models: list[dict[str, Any]] = []

    def show(self, text: str, model: dict[str, Any] | None = None) -> None:
        """Adds lines, and a model's figures."""
        print(text, flush=True)
        self.lines.append(text)
        self.models += [] if model is None else [model]
        if self.markdown:
            self.markdown.write_text("\n".join(self.lines) + "\n")
        if self.json:
            self.json.write_text(json.dumps({"about": self.about, "models": self.models}, indent=1) + "\n")


def main() -> int:
    """Prints the table; returns 1 where something failed or computes something else."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choice(parser)
    add_conversion(parser, "x86-64-v3" if platform.machine() == "x86_64" else "generic-arm64")
    add = parser.add_argument
    add("--check", action="store_true", help="convert with the check, which takes longer and changes little")
    add("--threads", type=int, default=1)
    add("--cpu", help="processors to pin to, such as 1 or 0,1; by default the last ones, as many as threads")
    add("--repeat", type=int, default=3, help="how often the comparison is made, in a process of its own each time")
    add("--seconds", type=float, default=3.0, help="how long each repetition runs")
    add("--timeout", type=float, default=600.0, help="seconds for which a process may be silent")
    given = parser.parse_args()
    if given.threads < 1 or given.repeat < 1 or given.seconds <= 0:
        parser.error("threads, repetitions and seconds are above zero")
    usable = sorted(os.sched_getaffinity(0))
    cpus = [int(text) for text in given.cpu.split(",")] if given.cpu else usable[-given.threads :]
    if not set(cpus) <= set(usable):
        parser.error(f"of the processors {usable}, {given.cpu} are not all")
    options = options_of(given)._replace(
        check=given.check, threads=given.threads, cpus=tuple(cpus), seconds=given.seconds
    )
    try:
        subjects = chosen(given, lambda: whole(given.models) + regions())
        told = {} if given.list else about(options, given.repeat)
    except (LitefuseError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if given.list:
        print("\n".join(f"{subject.group}: {subject.name}" for subject in subjects))
        return 0
    output = Output(given, told)
    output.show(
        f"{told['machine']}, {told['runtime']}, {told['delegate']}; {options.threads} thread(s) on processor "
        f"{','.join(map(str, cpus))}, target {options.target}, {given.repeat} x {options.seconds:g} s, {told['date']}\n"
    )
    output.show(_HEAD)
    rows = []
    for subject in subjects:
        rows.append(measure(subject, options, given.repeat, given.timeout))
        output.show(line(rows[-1]), as_json(rows[-1]))
    output.show("\n" + "\n".join(summary(rows)))
    refused = {text for row in rows for r in row.repetitions for text in r.refused}
    if refused:
        output.show("\nThe delegate left to the runtime:\n" + "\n".join(f"- {text}" for text in sorted(refused)))
    return int(any(row.failure is not None or not row.agrees for row in rows))


if __name__ == "__main__":
    # By its name, so that what goes to and from child processes can be pickled.
    import vs_xnnpack

    sys.exit(vs_xnnpack.main())
