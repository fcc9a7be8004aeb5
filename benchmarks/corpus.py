"""Converts real models and compares them with the originals under XNNPACK: operators, partitions, size, latency.

`python benchmarks/corpus.py DIRECTORY [PATTERN...]` prints a Markdown table of every `.tflite` file below the
directory (or only those whose name contains one of the patterns). Original and result run in the same process, one
thread, pinned to one processor, in turn; the ratio is the median of the paired times, so that slow spells of the
machine hit both. Models that did not change are listed in one line at the end; losses are marked.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import litefuse
from litefuse.bench import latency, race, ratio, values, with_inputs
from litefuse.errors import LitefuseError
from litefuse.isolation import ChildFailure, in_child
from litefuse.runtime import interpreter
from litefuse.schema import parse, to_bytes


class Times(NamedTuple):
    """Milliseconds of the two, and how the second compares with the first."""

    milliseconds: tuple[float, float]
    ratio: float
    quartiles: tuple[float, float]

    def __str__(self) -> str:
        (before, after), (low, high) = self.milliseconds, self.quartiles
        loss = " **loss**" if low > 1.0 and self.ratio > 1.03 else ""
        return f"{before:.3f} → {after:.3f} | {self.ratio:.3f} ({low:.3f}–{high:.3f}){loss}"


class Row(NamedTuple):
    """What is shown of one model."""

    operators: tuple[int, int]
    partitions: tuple[int, int]
    kilobytes: tuple[float, float]
    times: Times
    rules: str


def prepare(model: bytes) -> Any:
    """An interpreter with random inputs, ready to be invoked."""
    return with_inputs(interpreter(model), values(parse(model)))


def partitions(runner: Any) -> int:
    """How many nodes the delegate made."""
    return sum(op["op_name"] == "DELEGATE" for op in runner._get_ops_details())


def paired(runners: tuple[Any, Any], seconds: float) -> Times:
    """Runs two interpreters in turn for that long."""
    before, after = race([runner.invoke for runner in runners], seconds=seconds)
    found = ratio(before, after)
    return Times((latency(before).p50, latency(after).p50), found.median, (found.low, found.high))


def measure(path: str, seconds: float, say: Callable[[str], None]) -> Row | str:
    """Converts one model and times both; returns why not when that cannot be. Runs in a process of its own."""
    say(path)
    try:
        done = litefuse.convert(path, check=True)
    except LitefuseError as error:
        return f"not converted: {error}"
    if done.not_run:
        return f"not run: {done.not_run.splitlines()[0][:90]}"
    if not done.fusions.applied:
        return "unchanged"
    before, after = Path(path).read_bytes(), to_bytes(done.model)
    try:
        runners = prepare(before), prepare(after)
        times = paired(runners, seconds)
    except LitefuseError as error:
        return f"not run: {error}"
    except (ValueError, RuntimeError) as error:
        return f"not run with XNNPACK: {' '.join(str(error).split())[:120]}"
    counts = sorted(done.fusions.counts().items(), key=lambda item: -item[1])
    return Row(
        (done.before.operators, done.after.operators),
        (partitions(runners[0]), partitions(runners[1])),
        (len(before) / 1000, len(after) / 1000),
        times,
        ", ".join(f"{name} {n}" for name, n in counts),
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to time each model")
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {arguments.cpu})
    files = [f for f in sorted(arguments.directory.rglob("*.tflite")) if "litefuse" not in f.name]
    wanted = [f for f in files if not arguments.patterns or any(p in f.name for p in arguments.patterns)]
    print("| model | operators | partitions | kB | ms | ratio (quartiles) | rules |\n|---|---|---|---|---|---|---|")
    rest: dict[str, list[str]] = {}
    for path in wanted:
        try:
            row = in_child("corpus:measure", str(path), arguments.seconds, timeout=600)
        except ChildFailure as failure:
            row = f"the runtime {failure.how}"
        if isinstance(row, str):
            rest.setdefault(row, []).append(path.stem)
            continue
        cells = [
            path.stem,
            *(f"{a} → {b}" for a, b in (row.operators, row.partitions)),
            f"{row.kilobytes[0]:.0f} → {row.kilobytes[1]:.0f}",
            str(row.times),
            row.rules,
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
    for reason, names in rest.items():
        print(f"\n{reason} ({len(names)}): {', '.join(names)}")


if __name__ == "__main__":
    main()
