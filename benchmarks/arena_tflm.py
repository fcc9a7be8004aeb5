"""Plans real models for TensorFlow Lite Micro and runs them there: bytes of the arena's head with and without the plan.

`python benchmarks/arena_tflm.py DIRECTORY [PATTERN...] [--jobs N] [--seconds S]` prints a Markdown table of every
`.tflite` file below the directory (or only those whose name contains one of the patterns) that TFLM loads: the head
that TFLM's own planner takes, measured and predicted; the head with litefuse's plan, measured and predicted; their
ratio; and whether the outputs of two runs with random inputs are the same bits. Below it stand the geometric mean of
the ratios, the losses, and the models that TFLM does not run, with its reason. The plan is written only where it is
smaller.

Needs `pip install --pre tflite-micro`. Every run of a model has a process of its own.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))


import tflm

from litefuse import schema
from litefuse.arena import offline
from litefuse.arena.lifetimes import TFLM
from litefuse.arena.plan import plan
from litefuse.errors import LitefuseError
from litefuse.isolation import ChildFailure, in_child


class Row(NamedTuple):
    """What is shown of one model; bytes of the head, measured and (predicted)."""

    base: tuple[int, int]
    planned: tuple[int, int]
    kept: str
    same: bool
    online: int
    seconds: float

    @property
    def ratio(self) -> float:
        """The head with the plan over the head without."""
        return self.planned[0] / self.base[0] if self.base[0] else 1.0


def measure(path: str, seconds: float, timeout: float, say: Any) -> Row | str:
    """Plans one model and runs both forms of it; the reason when TFLM does not run it as it is."""
    model = schema.read(path)
    offline.detach(model)
    try:
        steps = tflm.random_steps(model)
    except KeyError as error:
        return f"no inputs of type {error} can be made"
    base = tflm.run(schema.to_bytes(model), steps, timeout=timeout)
    if base.failure:
        return base.failure
    say("planning")
    start = time.perf_counter()
    made = plan(model, runtime=TFLM, seconds=seconds)
    written = offline.write_plan(model, made)
    duration = time.perf_counter() - start
    say("running with the plan")
    result = tflm.run(schema.to_bytes(written.model), steps, timeout=timeout)
    if result.failure:
        raise LitefuseError(f"fails with the plan: {result.failure}")
    predicted = written.planned_bytes if written.kept == "plan" else written.base_bytes
    return Row(
        (base.head, written.base_bytes),
        (result.head, predicted),
        written.kept,
        result.same_outputs(base),
        len(written.online),
        duration,
    )


def measured(path: Path, seconds: float, timeout: float) -> Row | str | Exception:
    """What :func:`measure` finds, in a process of its own."""
    try:
        found: Row | str = in_child(
            "arena_tflm:measure", str(path), seconds, timeout, timeout=2 * timeout + 10 * seconds
        )
        return Row(*found) if isinstance(found, tuple) else found
    except (ChildFailure, Exception) as error:
        return error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("pattern", nargs="*")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument("--seconds", type=float, default=10.0, help="planning time for each model")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each run")
    options = parser.parse_args()
    files = [
        path
        for path in sorted(options.directory.rglob("*.tflite"))
        if not options.pattern or any(p in path.stem for p in options.pattern)
    ]
    print("| model | base | (predicted) | plan | (predicted) | ratio | kept | outputs | online | planning |")
    print("|---|---:|---:|---:|---:|---:|---|---|---:|---:|")
    rows: dict[str, Row] = {}
    refused: list[str] = []
    errors: list[str] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for path, row in zip(
            files, pool.map(lambda p: measured(p, options.seconds, options.timeout), files), strict=True
        ):
            if isinstance(row, str):
                refused.append(f"{path.stem}: {row}")
            elif isinstance(row, Exception):
                errors.append(f"{path.stem}: {type(row).__name__}: {row}")
            else:
                rows[path.stem] = row
                print(
                    f"| {path.stem} | {row.base[0]} | {row.base[1]} | {row.planned[0]} | {row.planned[1]} "
                    f"| {row.ratio:.3f} | {row.kept} | {'same' if row.same else '**DIFFERENT**'} | {row.online} "
                    f"| {row.seconds:.2f} s |",
                    flush=True,
                )
    if rows:
        ratios = [row.ratio for row in rows.values()]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"\n{len(rows)} models. Geometric mean {mean:.4f}, best {min(ratios):.3f}, worst {max(ratios):.3f}.")
    summary = {
        "Losses": [name for name, row in rows.items() if row.planned[0] > row.base[0]],
        "Outputs differ": [name for name, row in rows.items() if not row.same],
        "Predicted wrongly": [
            name for name, r in rows.items() if r.base[0] != r.base[1] or r.planned[0] != r.planned[1]
        ],
        "No gain": [name for name, row in rows.items() if row.planned[0] == row.base[0]],
    }
    for title, names in summary.items():
        print(f"{title}: {', '.join(names) or 'none'}.")
    for title, lines in (("Errors", errors), ("Not run by TFLM", refused)):
        if lines:
            print(f"\n{title}:")
            print("\n".join(f"- {line}" for line in lines))
    if errors or summary["Losses"] or summary["Outputs differ"] or summary["Predicted wrongly"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
