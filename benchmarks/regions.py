"""Regions of real models: how many of which kind, what they cover, and whether they compute the same.

For each file: it is converted as `litefuse convert` does, regions are formed and packaged as composites, and the result
is run

* by the stock runtime without the delegate, with the builtin kernels and with XNNPACK: compared with the unpackaged
  result (must be equal with the builtin kernels), and its time over that of the unpackaged one;
* with the delegate, over the reference kernels of the runtime: the largest difference, in steps for integers and
  relative to the largest magnitude for floats;
* packaged as a plan, with the delegate, in the same way.

    python benchmarks/regions.py [--target NAME] [--eager] [--seconds S] [--cpu N] [--runtime NAME] [--plan-only] FILES

`--eager` forms every region that is possible, whether it pays or not: for finding faults. tflite-runtime 2.14 knows no
composites, so it wants `--plan-only`. Times of a whole run are compared, by turns, and the quartiles of the ratios are
given; what is beyond 1.02 is measured again, up to three times, since a neighbour may have been at work.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from litefuse.bench import Ratio, race, ratio
from litefuse.convert import convert
from litefuse.delegates.cost import Eager
from litefuse.delegates.formation import Formation, form
from litefuse.delegates.runtime import load, report
from litefuse.delegates.targets import Target, target
from litefuse.inputs import Case, Feed, Graphs
from litefuse.interface import entries
from litefuse.isolation import ChildFailure, in_child
from litefuse.runtime import quiet, runtime
from litefuse.schema import Model, deepcopy, to_bytes


def formed(model: Model, profile: Target, eager: bool, mode: str) -> tuple[Model, Formation]:
    """A packaged copy, and its regions."""
    model = deepcopy(model)
    return model, form(model, profile, mode, cost_model=Eager(profile) if eager else None)


class Runner:
    """A model in an interpreter."""

    name: str | None = None
    """The runtime's; the first that is installed when None."""

    def __init__(self, data: bytes, kind: str, delegates: Sequence[Any] = ()) -> None:
        found = runtime(self.name)
        with quiet():
            self.runner = found.interpreter(
                model_content=data,
                num_threads=1,
                experimental_op_resolver_type=getattr(found.resolver_type, kind),
                **({"experimental_delegates": list(delegates)} if delegates else {}),
            )
            self.runner.allocate_tensors()

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """The outputs for these inputs."""
        for detail, value in zip(self.runner.get_input_details(), values, strict=True):
            self.runner.set_tensor(detail["index"], value)
        self.runner.invoke()
        return [np.array(self.runner.get_tensor(d["index"])) for d in self.runner.get_output_details()]


def through(data: bytes, kind: str, sets: Sequence[Any]) -> list[list[Any]]:
    """The outputs for each set of inputs, one after the other, so that state goes along."""
    runner = Runner(data, kind)
    return [runner(values) for values in sets]


def difference(got: Sequence[Any], want: Sequence[Any]) -> str:
    """The largest difference: `0`, `1 lsb`, `3e-07`; `shape` or `nan` where they cannot be compared."""
    steps, relative = 0, 0.0
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape:
            return "shape"
        if a.dtype.kind not in "fiu" or not a.size:
            steps = max(steps, int(np.any(a != b)))
        elif a.dtype.kind in "iu":
            steps = max(steps, int(np.max(np.abs(a.astype(np.int64) - b.astype(np.int64)))))
        else:
            usual = np.isfinite(a) & np.isfinite(b)
            if not np.array_equal(np.isfinite(a), np.isfinite(b)):
                return "nan"
            scale = float(np.max(np.abs(b[usual]), initial=0.0))
            worst = float(np.max(np.abs(a[usual] - b[usual]), initial=0.0))
            relative = max(relative, worst / scale if scale else worst)
    parts = ([f"{steps} lsb"] if steps else []) + ([f"{relative:.0e}"] if relative else [])
    return ", ".join(parts) or "0"


def paired(a: Runner, b: Runner, seconds: float) -> Ratio:
    """time(b) / time(a), run by turns."""
    return ratio(*race([a.runner.invoke, b.runner.invoke], seconds=seconds))


def one(path: str, options: dict[str, Any], say: Any) -> dict[str, Any]:
    """One row."""
    if options["cpu"] is not None:
        os.sched_setaffinity(0, {options["cpu"]})
    Runner.name = options["runtime"]
    say("converting")
    plain = convert(path, check=False).model
    original = to_bytes(plain)
    profile = target(options["target"])
    start = time.perf_counter()
    mode = "none" if options["plan_only"] else "composite"
    model, formation = formed(plain, profile, options["eager"], mode)
    kinds = Counter() if options["plan_only"] else Counter(formation.kinds())
    row: dict[str, Any] = {
        "kinds": dict(kinds.most_common()),
        "covered": formation.covered,
        "operators": formation.operators,
        "seconds": time.perf_counter() - start,
    }
    say("running the original")
    entry = entries(plain)[0]
    graphs = Graphs(plain)
    feeds = [Feed(port, entry, graphs) for port in entry.inputs]
    sets = [[f.values(Case("normal"), f.shape(1, None), seed) for f in feeds] for seed in range(2)]
    row["kernels"] = kernels = ["BUILTIN_REF", "BUILTIN_WITHOUT_DEFAULT_DELEGATES"]
    try:
        try:
            want, by_builtin = (through(original, kind, sets) for kind in kernels)
        except (ValueError, RuntimeError):
            # Some custom operators are known to XNNPACK only.
            kernels[:] = ["AUTO", "AUTO"]
            want = by_builtin = through(original, "AUTO", sets)
    except (ValueError, RuntimeError) as error:
        row["not_run"] = str(error).splitlines()[0][:80]
        return row
    row["formed"] = [n for n in (sum(kinds.values()),) if n]
    if kinds:
        data = to_bytes(model)
        say("running the composites without the delegate")
        alone = Runner(data, kernels[1])
        row["alone"] = max((difference(alone(v), w) for v, w in zip(sets, by_builtin, strict=True)), key=len)
        if options["seconds"]:
            stock, wrapped = Runner(original, "AUTO"), Runner(data, "AUTO")
            for runner in (stock, wrapped):
                runner(sets[0])
            tries = [paired(stock, wrapped, options["seconds"])]
            while tries[-1].median > 1.02 and len(tries) < 3:
                tries.append(paired(stock, wrapped, options["seconds"]))
            row["ratio"] = min(tries, key=lambda found: found.median)[1:]
        say("running the composites with the delegate")
        row["delegate"] = by_delegate(data, sets, want, row)
    say("forming a plan")
    model, formation = formed(plain, profile, options["eager"], "plan")
    planned = Counter(formation.kinds())
    row["planned"] = dict(planned.most_common())
    row["formed"] += [n for n in (sum(planned.values()),) if n]
    if planned:
        say("running the plan with the delegate")
        row["plan"] = by_delegate(to_bytes(model), sets, want, row)
    return row


def by_delegate(data: bytes, sets: Sequence[Any], want: Sequence[Any], row: dict[str, Any]) -> str:
    delegate = load(runtime_name=Runner.name)
    runner = Runner(data, row["kernels"][0], [delegate])
    told = report(delegate)
    row.setdefault("claimed", []).append(len(told["regions"]))
    row.setdefault("left", []).extend(f"{r['what']}: {r['reason']}" for r in told["refused"])
    row.setdefault("unplanned", []).extend(r["name"] for r in told["regions"] if not r["follows_plan"])
    return max((difference(runner(v), w) for v, w in zip(sets, want, strict=True)), key=len)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--target", default="x86-64-v3")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--runtime")
    parser.add_argument("--plan-only", action="store_true")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    options = {k: getattr(given, k) for k in ("target", "eager", "seconds", "cpu", "runtime", "plan_only")}
    print("| file | operators | covered | regions (composite) | alone | time | delegate | regions (plan) | plan |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    total: Counter[str] = Counter()
    for path in given.files:
        try:
            row = in_child("regions:one", str(path), options, hear=lambda _: None, timeout=given.timeout)
        except ChildFailure as failure:
            print(f"| {path.stem} | | | **{failure.how}** while {failure.last} | | | | | |", flush=True)
            continue
        except Exception as error:
            print(f"| {path.stem} | | | **{type(error).__name__}: {error}** | | | | | |", flush=True)
            continue
        total.update(row["kinds"])
        kinds = ", ".join(f"{n} {k}" for k, n in row["kinds"].items())
        planned = row.get("planned", {})
        more = "the same" if planned == row["kinds"] else ", ".join(f"{n} {k}" for k, n in planned.items())
        ratio = "{:.3f} ({:.3f}-{:.3f})".format(*row["ratio"]) if "ratio" in row else ""
        print(
            f"| {path.stem} | {row['operators']} | {row['covered']} | {kinds} | {row.get('alone', '')} | {ratio} | "
            f"{row.get('delegate', row.get('not_run', ''))} | {more} | {row.get('plan', '')} |",
            flush=True,
        )
        if row.get("claimed", []) != row.get("formed", []) and "not_run" not in row:
            print(
                f"  {path.stem}: {row['formed']} regions formed, {row['claimed']} claimed", file=sys.stderr, flush=True
            )
        for text in sorted({*row.get("left", ())}):
            print(f"  left: {text}", file=sys.stderr, flush=True)
        for name in sorted({*row.get("unplanned", ())}):
            print(f"  {path.stem}: {name} does not follow its plan", file=sys.stderr, flush=True)
    print("\nregions: " + ", ".join(f"{n} {k}" for k, n in total.most_common()))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    os.environ["PYTHONPATH"] = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    main()
