"""Whether denormal numbers slow the kernels down: time of each kind of region on them over that on usual numbers.

    python benchmarks/denormals.py [--only PATTERN] [--seconds 0.5] [--cpu N] [--limit 1.5]

Each small model of `subjects.py`, and chains of elementwise functions, become one region and are run by turns, in one
process and interpreter, on

* **normal** numbers;
* **inputs**: all of them denormal (1e-40);
* **between**: inputs of 1e-37, of which products with weights, squares and differences are denormal;
* **mixed**: half of them denormal, half usual;
* **tails**: numbers down to -100, whose exponentials and sigmoids are denormal.

The figure is the ratio of the shortest times; the same for XNNPACK on the original stands beside it. Ends with 1 when
ours is above the limit. What it says holds for this processor: Intel's take an assist of some 150 cycles for many
denormal operands, AMD's since Zen few or none.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from subjects import Net, Subject, regions

from litefuse.delegates.package import package
from litefuse.delegates.runtime import load, report
from litefuse.graph import Graph
from litefuse.runtime import interpreter, quiet
from litefuse.schema import Model, deepcopy, to_bytes
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

_ROUND = 0.002
_WAYS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Any]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "inputs": lambda rng, shape: rng.uniform(-1e-40, 1e-40, shape),
    "between": lambda rng, shape: rng.uniform(-1e-37, 1e-37, shape),
    "mixed": lambda rng, shape: np.where(rng.random(shape) < 0.5, rng.standard_normal(shape), 1e-40),
    "tails": lambda rng, shape: rng.uniform(-100, -85, shape),
}


class Whole(NamedTuple):
    """All of a model as one region."""

    kind: str
    operators: list[Operator]
    inputs: list[int]
    outputs: list[int]


def _functions(*names: str) -> Model:
    net = Net(56, 56, 64)
    y = net.x
    for name in names:
        y = net.op(getattr(Op, name.upper()), [y])
    return net.model([y])


def chosen(patterns: list[str]) -> list[tuple[str, Model]]:
    """One or two shapes of each kind, and chains of elementwise functions."""
    groups: dict[str, list[Subject]] = {}
    for subject in regions():
        groups.setdefault(subject.group, []).append(subject)
    found = [(s.name, s.build()) for group in groups.values() for s in group[1:3] or group if s.build is not None]
    for names in (
        ("exp", "neg"),
        ("logistic", "abs"),
        ("tanh", "neg"),
        ("gelu", "neg"),
        ("sqrt", "neg"),
        ("log", "abs"),
    ):
        found.append((f"elementwise {' '.join(names)}", _functions(*names)))
    return [(name, model) for name, model in found if not patterns or any(p.lower() in name for p in patterns)]


def started(data: bytes, **how: Any) -> Any:
    """An interpreter, ready to be given inputs."""
    with quiet():
        runner = interpreter(data, **how)
        runner.allocate_tensors()
    return runner


def ratios(runner: Any, seconds: float) -> dict[str, float]:
    """Time on each kind of numbers over that on usual ones."""
    rng = np.random.default_rng(0)
    details = runner.get_input_details()
    inputs = {way: [make(rng, tuple(d["shape"])).astype(np.float32) for d in details] for way, make in _WAYS.items()}

    def least(way: str, count: int) -> float:
        for detail, value in zip(details, inputs[way], strict=True):
            runner.set_tensor(detail["index"], value)
        runner.invoke()
        times = []
        for _ in range(count):
            start = time.perf_counter()
            runner.invoke()
            times.append(time.perf_counter() - start)
        return min(times)

    count = max(3, min(200, int(_ROUND / least("normal", 3))))
    found: dict[str, list[float]] = {way: [] for way in _WAYS}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found["normal"]) < 5:
        for way in _WAYS:
            found[way].append(least(way, count))
    return {way: min(times) / min(found["normal"]) for way, times in found.items() if way != "normal"}


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", action="append", default=[], metavar="PATTERN", help="only what has this in its name")
    add("--seconds", type=float, default=0.5, help="for each model and side")
    add("--cpu", type=int, help="the processor to stay on")
    add("--limit", type=float, default=1.5)
    given = parser.parse_args()
    if given.cpu is not None:
        os.sched_setaffinity(0, {given.cpu})
    ways = [way for way in _WAYS if way != "normal"]
    print(f"| region | {' | '.join(ways)} | XNNPACK: {' | '.join(ways)} | |")
    print(f"|---|{'---:|' * 2 * len(ways)}---|", flush=True)
    slow = 0
    for name, model in chosen(given.only):
        fused = deepcopy(model)
        graph, main = Graph(fused), fused.subgraphs[0]
        region = Whole("test", list(graph.operators()), list(main.inputs), list(main.outputs))
        package(fused, {0: [region]}, "plan")
        delegate = load(threads=1)
        runner = started(to_bytes(fused), delegates=[delegate])
        told = report(delegate)["regions"]
        ours = ratios(runner, given.seconds)
        stock = ratios(started(to_bytes(model)), given.seconds)
        marks = [] if told else ["no region"]
        marks += [f"{n} operators in reference kernels" for n in [sum(r["slow_operators"] for r in told)] if n]
        if max(ours.values()) > given.limit:
            marks.append(f"**above {given.limit:g}**")
            slow += 1
        figures = [f"{side[way]:.2f}" for side in (ours, stock) for way in ways]
        print(f"| {name} | {' | '.join(figures)} | {', '.join(marks)} |", flush=True)
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main())
