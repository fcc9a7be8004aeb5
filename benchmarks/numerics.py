"""How far float outputs are from float64: ours, XNNPACK's and the reference kernels', on real models.

    LITEFUSE_CORPUS=DIR python benchmarks/numerics.py [--whole] [--all] [--regions] [--only PATTERN] [FILE...]
        [--cases normal,unit,symmetric] [--threads 1,3] [--target T] [--markdown F] [--json F]

Each original is evaluated in float64 (`float64.py`, which says what that means for quantised parts), run with XNNPACK
and with the runtime's reference kernels, and converted and run with the delegate in three ways: the regions that pay;
every region that is possible (`eager`); and these at level `exact`, without Winograd's algorithm. Errors are the
largest difference from float64 of any float output, relative to the largest magnitude in that output.

The bound is that of class `reassociated` in docs/numerics.md: 1e-5, or ten times the noise up to 1e-3, or twice the
noise beyond; noise is the larger one of the errors of the two stock sets of kernels. Where we are outside, it is
also measured how far float64 itself moves when constants move by half a unit in the last place and inputs by 2**-22
(`rounding`), and what the rules alone do without regions. Outputs must be the same to the bit for every number of
threads. What cannot be evaluated or run is listed, with the reason. Ends with 1 when something is outside its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from float64 import Evaluator, Unknown
from numpy.typing import NDArray
from subjects import Subject, add_choice, chosen, corpus, whole

from litefuse.convert import convert
from litefuse.delegates.cost import Eager
from litefuse.delegates.formation import form
from litefuse.delegates.runtime import load, report
from litefuse.delegates.targets import target
from litefuse.difference import FLIP, FLOOR, JITTER
from litefuse.errors import LitefuseError
from litefuse.inputs import CASES, Feed, Graphs, jittered
from litefuse.interface import entries
from litefuse.isolation import ChildFailure, in_child
from litefuse.runtime import interpreter, quiet
from litefuse.schema import Model, deepcopy, parse, to_bytes, write
from litefuse.schema.enums import TensorType

Array = NDArray[Any]

_WAYS = {"regions": ("default", False), "eager": ("default", True), "exact": ("exact", True)}
"""Level, and whether every possible region is formed."""
_SUSPECT = 0.01
"""An error of float kernels beyond which the reference itself is to be looked at."""


class Options(NamedTuple):
    """What is common to all."""

    target: str
    cases: tuple[str, ...]
    threads: tuple[int, ...]


@dataclass
class Row:
    """What is known of one model."""

    name: str
    kind: str = ""
    """`float16`, `hybrid` or `quantised` where the model has such parts."""
    covered: dict[str, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    """By the way of `_WAYS`, and for `XNNPACK` and `reference`."""
    bound: float = FLOOR
    outside: list[str] = field(default_factory=list)
    """Ways that are not within the bound."""
    rounding: float | None = None
    notes: list[str] = field(default_factory=list)
    failure: str | None = None


# -- in a child process ----------------------------------------------------------------------------------------------


class Runner:
    """A model in an interpreter."""

    def __init__(self, data: bytes, shapes: Sequence[tuple[int, ...]], **how: Any) -> None:
        with quiet():
            self.runner = interpreter(data, **how)
            for detail, shape in zip(self.runner.get_input_details(), shapes, strict=True):
                if tuple(detail["shape"]) != shape:
                    self.runner.resize_tensor_input(detail["index"], shape)
            self.runner.allocate_tensors()

    def __call__(self, values: Sequence[Array]) -> list[Array]:
        """The outputs for these inputs."""
        self.runner.reset_all_variables()
        for detail, value in zip(self.runner.get_input_details(), values, strict=True):
            self.runner.set_tensor(detail["index"], value)
        self.runner.invoke()
        return [np.array(self.runner.get_tensor(d["index"])) for d in self.runner.get_output_details()]


def error(got: Sequence[Array], want: Sequence[Any]) -> float:
    """The largest difference of a float output relative to the largest number in it; infinite where NaN differ."""
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        if a.dtype.kind != "f":
            continue
        if a.shape != b.shape:
            return np.inf
        usual = np.isfinite(b) & (np.abs(b) < np.finfo(np.float32).max)
        scale = float(np.max(np.abs(b[usual]), initial=0.0))
        apart = np.abs(a[usual].astype(np.float64) - b[usual])
        if scale and apart.size:
            worst = max(worst, float(np.max(np.where(np.isnan(apart), np.inf, apart))) / scale)
        elif np.any(apart):
            return np.inf
    return worst


def kind_of(model: Model) -> str:
    """What is not float32 in a model."""
    types = {t.type for s in model.subgraphs for t in s.tensors}
    activations = {
        t.type for s in model.subgraphs for t in s.tensors if not t.buffer or not model.buffers[t.buffer].data
    }
    if TensorType.INT8 in types:
        return "quantised" if TensorType.INT8 in activations else "hybrid"
    return "float16" if TensorType.FLOAT16 in types else ""


def measure(subject: Subject, options: Options, where: str, say: Callable[[str], None]) -> Row:
    """Everything about one subject."""
    row = Row(subject.name)
    path = subject.path or os.path.join(where, "original.tflite")
    if subject.path is None:
        assert subject.build is not None
        write(subject.build(), path)
    data = Path(path).read_bytes()
    model = parse(data)
    row.kind = kind_of(model)
    found = [entry for entry in entries(model) if not entry.subgraph]
    if len(found) < len(entries(model)):
        row.notes.append("signatures of other subgraphs are not run")
    entry, subgraph = found[0], model.subgraphs[0]
    if not any(subgraph.tensors[t].type == TensorType.FLOAT32 for t in subgraph.outputs):
        row.failure = "no float outputs"
        return row
    ports = {port.tensor: port for port in entry.inputs}
    feeds = [Feed(ports[t], entry, Graphs(model)) for t in subgraph.inputs]
    shapes = [feed.shape(1, None) for feed in feeds]
    cases = [case for case in CASES if case.name in options.cases]
    sets = [[f.values(case, shape, 0) for f, shape in zip(feeds, shapes, strict=True)] for case in cases]

    say("in float64")
    evaluator = Evaluator(model)
    try:
        want = [evaluator(dict(zip(subgraph.inputs, values, strict=True))) for values in sets]
    except Unknown as unknown:
        row.failure = f"float64 does not know {unknown}"
        return row

    if not any(np.any(w) for outputs in want for w in outputs if getattr(w, "dtype", None) == np.float64):
        row.notes.append("all outputs are zero")

    def through(of: bytes, tell: Callable[[], None] = lambda: None, **how: Any) -> list[list[Array]]:
        runner = Runner(of, shapes, **how)
        tell()
        return [runner(values) for values in sets]

    def worst(got: Sequence[Sequence[Array]]) -> float:
        return max(error(g, w) for g, w in zip(got, want, strict=True))

    xnnpack = True
    for name, how in {"XNNPACK": {}, "reference": {"xnnpack": False, "reference": True}}.items():
        say(f"with {name}")
        try:
            row.errors[name] = worst(through(data, **how))
        except (ValueError, RuntimeError) as refusal:
            row.notes.append(f"{name} does not run it: {' '.join(str(refusal).split())[:100]}")
            xnnpack &= name != "XNNPACK"
    if not row.errors:
        row.failure = "; ".join(row.notes)
        return row
    noise = max(row.errors.values())
    if min(row.errors.values()) > (_SUSPECT if row.kind in ("", "float16") else 1.0):
        row.failure = f"float64 is wrong, or the model is beyond float32: {row.errors}"
        return row
    row.bound = max(FLOOR, min(10 * noise, FLIP), 2 * noise)
    profile = target(options.target)
    for way, (level, eager) in _WAYS.items():
        say(way)
        plain = convert(path, level=level, check=False).model
        fused = deepcopy(plain)
        formation = form(
            fused, profile, "plan", cost_model=Eager(profile) if eager else None, winograd=level != "exact"
        )
        row.covered[way] = f"{formation.covered} of {formation.operators}"
        if not formation.regions:
            continue
        first: list[list[Array]] | None = None
        for threads in options.threads:
            say(f"{way}, {threads} threads")
            delegate, claimed = load(threads=threads), []
            got = through(
                to_bytes(fused),
                lambda delegate=delegate, claimed=claimed: claimed.append(len(report(delegate)["regions"])),
                delegates=[delegate],
                threads=threads,
                xnnpack=xnnpack,
            )
            if claimed != [len(formation.regions)]:
                row.notes.append(f"{way}: {claimed[0]} of {len(formation.regions)} regions claimed")
            row.errors[way] = max(row.errors.get(way, 0.0), worst(got))
            if first is None:
                first = got
            elif any(
                x.tobytes() != y.tobytes() for a, b in zip(first, got, strict=True) for x, y in zip(a, b, strict=True)
            ):
                row.notes.append(f"{way}: {threads} threads give other bits" + _where(first, got))
        if not row.errors[way] <= row.bound:
            row.outside.append(way)
            for rules, how in {"XNNPACK": {}, "the reference kernels": {"xnnpack": False, "reference": True}}.items():
                try:
                    alone = worst(through(to_bytes(plain), **how))
                    row.notes.append(f"{way}: the rules alone, with {rules}: {alone:.1e}")
                except (ValueError, RuntimeError):
                    continue
    if row.outside:
        say("rounding noise")
        row.rounding = 0.0
        for seed in range(2):
            moved = Evaluator(model, jitter=seed)
            rng = np.random.default_rng(seed)
            for values, right in zip(sets, want, strict=True):
                inputs = [jittered(feed, value, JITTER, rng) for feed, value in zip(feeds, values, strict=True)]
                got = moved(dict(zip(subgraph.inputs, inputs, strict=True)))
                floats = [np.asarray(g, np.float64) if getattr(g, "dtype", None) == np.float64 else g for g in got]
                row.rounding = max(row.rounding, error(floats, right))
    return row


def _where(first: Sequence[Sequence[Array]], got: Sequence[Sequence[Array]]) -> str:
    """How far two sets of outputs are apart."""
    worst = max(error(b, a) for a, b in zip(first, got, strict=True))
    return f" (by {worst:.1e})"


# -- the table -------------------------------------------------------------------------------------------------------


def line(row: Row) -> str:
    """A row of the table."""
    cells = [row.name, row.kind, row.covered.get("regions", ""), row.covered.get("eager", "")]
    cells += [f"{row.errors[n]:.1e}" if n in row.errors else "" for n in (*_WAYS, "XNNPACK", "reference")]
    verdict = "within" if not row.outside else f"**outside: {', '.join(row.outside)}**"
    if not any(way in row.errors for way in _WAYS):
        verdict = "no region"
    if row.rounding is not None:
        verdict += f" (rounding {row.rounding:.1e})"
    return f"| {' | '.join(cells)} | {row.bound:.1e} | {verdict} | {'; '.join(row.notes)} |"


_HEAD = """| model | | covered | eager | regions | eager | exact | XNNPACK | reference | bound | verdict | |
|---|---|---|---|---:|---:|---:|---:|---:|---:|---|---|"""


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choice(parser)
    add = parser.add_argument
    add("--cases", default="normal,unit,symmetric", help="inputs, by the names of litefuse.inputs")
    add("--threads", default="1,3")
    add("--target", default="x86-64-v3")
    add("--timeout", type=float, default=900.0, help="seconds that one step of a model may take")
    add("--markdown", type=Path)
    add("--json", type=Path)
    given = parser.parse_args()
    cases, threads = tuple(given.cases.split(",")), tuple(int(n) for n in given.threads.split(","))
    odd = set(cases) - {case.name for case in CASES if not case.extreme}
    if odd:
        parser.error(f"there are no inputs called {', '.join(sorted(odd))}")
    options = Options(given.target, cases, threads)
    rows: list[Row] = []
    lines = [_HEAD]
    print(_HEAD, flush=True)
    left: dict[str, list[str]] = {}
    for subject in chosen(given, lambda: [*corpus(), *(s for s in whole(given.models) if s.group == "networks")]):
        with tempfile.TemporaryDirectory() as where:
            try:
                row: Row = in_child("numerics:measure", subject, options, where, timeout=given.timeout)
            except ChildFailure as failure:
                row = Row(subject.name, failure=f"{failure.how} while {failure.last}", outside=["failed"])
            except (LitefuseError, ValueError, RuntimeError, OSError) as failure:
                row = Row(subject.name, failure=f"{type(failure).__name__}: {failure}", outside=["failed"])
        rows.append(row)
        if row.failure is not None:
            left.setdefault(row.failure, []).append(row.name)
        else:
            lines.append(line(row))
            print(lines[-1], flush=True)
    for why, names in left.items():
        lines.append(f"\n{why} ({len(names)}): {', '.join(names)}")
        print(lines[-1])
    if given.markdown:
        given.markdown.write_text("\n".join(lines) + "\n")
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return int(any(row.outside for row in rows))


if __name__ == "__main__":
    # By its name, so that what goes to and from child processes can be pickled.
    import numerics

    sys.exit(numerics.main())
