"""Latency of a model before and after its decomposed PReLUs became PRELU or LEAKY_RELU.

    taskset -c 1 python benchmarks/prelu.py MODEL.tflite [--runs 9] [--builtin]

Both models are run in turns, the order swapped each time, on one thread; the pairs of one turn are compared, so that
what else the machine does falls on both. Shows the medians, the minima and the median of the paired ratios with its
quartiles.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from litefuse.fusions import run
from litefuse.fusions.leaky_relu import RULES as LEAKY_RELU
from litefuse.fusions.prelu import RULES as PRELU
from litefuse.runtime import interpreter, quiet, runtime
from litefuse.schema import deepcopy, read, to_bytes


def prepared(data: bytes, xnnpack: bool) -> Any:
    """An interpreter with random inputs that has run twice."""
    runner = interpreter(data, xnnpack=xnnpack)
    rng = np.random.default_rng(0)
    with quiet():
        runner.allocate_tensors()
        for detail in runner.get_input_details():
            runner.set_tensor(detail["index"], rng.uniform(-1, 1, detail["shape"]).astype(detail["dtype"]))
        runner.invoke()
        runner.invoke()
    return runner


def seconds(runner: Any, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        runner.invoke()
    return (time.perf_counter() - start) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--runs", type=int, default=9, help="pairs of measurements")
    parser.add_argument("--builtin", action="store_true", help="the plain kernels instead of XNNPACK")
    options = parser.parse_args()

    before = read(options.model)
    after = deepcopy(before)
    counts = run(after, [*PRELU, *LEAKY_RELU]).counts()
    runners = [prepared(to_bytes(model), not options.builtin) for model in (before, after)]
    outputs = [[r.get_tensor(d["index"]) for d in r.get_output_details()] for r in runners]
    equal = all(np.array_equal(x, y, equal_nan=True) for x, y in zip(*outputs, strict=True))
    # A measurement takes 0.2 s or one invocation, whichever is longer.
    repeats = max(1, round(0.2 / seconds(runners[0], 1)))
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(options.runs):
        for side in (0, 1) if turn % 2 else (1, 0):
            times[side].append(seconds(runners[side], repeats))
    ratios = sorted(x / y for x, y in zip(*times, strict=True))
    quarter = len(ratios) // 4

    found = runtime()
    kernels = "builtin kernels" if options.builtin else "XNNPACK"
    print(f"{options.model.name}: {counts}; {found.name} {found.version}, {kernels}, 1 thread")
    print(f"pinned to CPUs {sorted(os.sched_getaffinity(0))}, {options.runs} pairs of {repeats} invocations")
    for name, values in zip(("before", "after"), times, strict=True):
        print(f"{name:>7}: median {statistics.median(values) * 1e3:9.3f} ms, minimum {min(values) * 1e3:9.3f} ms")
    print(f"speed-up {statistics.median(ratios):.2f} ({ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f}); ", end="")
    print("outputs equal" if equal else "OUTPUTS DIFFER")


if __name__ == "__main__":
    main()
