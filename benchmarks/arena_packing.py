"""How near the packings come to the lower bound, and how quickly: known hard problems, and the tensors of real models.

    python benchmarks/arena_packing.py DIRECTORY... [--seconds 60] [--perturb] [--only WORD]

Takes every `.csv` file (a problem in minimalloc's format; a capacity as the second part of its name, as in
`A.1048576.csv`, is asked for first) and every `.tflite` file (the tensors of each subgraph, in the file's own order,
at TFLM's alignment, without sharing) below the directories, and prints a Markdown table. `proved`: no lower peak is
possible. `processor`: seconds of processor time, which do not depend on what else runs. `quick`: the best peak of the
quick packings, over the bound. With `--perturb` each CSV problem is also tried with its buffers shuffled, with time
reversed, and both with its sizes made up to 0.2 % smaller at random in a 64 times finer unit (the capacity stays).
Every packing is checked by the independent checker; a fault ends the run. The last lines say what is worst.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from litefuse.arena import greedy
from litefuse.arena.checker import check_packing
from litefuse.arena.lifetimes import TFLM, lifetimes
from litefuse.arena.packing import pack
from litefuse.arena.problem import Buffer, Problem, aligned, read_csv
from litefuse.errors import LitefuseError
from litefuse.graph.graph import Graph
from litefuse.schema.model import read


class Case(NamedTuple):
    """A problem to be packed."""

    name: str
    problem: Problem
    alignment: int
    capacity: int | None


def of_csv(path: Path, perturb: bool) -> Iterator[Case]:
    problem = read_csv(path)
    part = path.stem.rpartition(".")[2]
    capacity = int(part) if part.isdigit() else None
    yield Case(path.stem, problem, 1, capacity)
    if not perturb:
        return
    shuffled = list(problem.buffers)
    random.Random(1).shuffle(shuffled)
    yield Case(f"{path.stem} shuffled", Problem(shuffled), 1, capacity)
    turned = [b._replace(lower=-b.upper, upper=-b.lower) for b in problem.buffers]
    yield Case(f"{path.stem} reversed", Problem(turned), 1, capacity)
    for name, buffers, seed in [
        ("resized 1", shuffled, 1),
        ("resized 2", shuffled, 2),
        ("reversed, resized", turned, 3),
    ]:
        generator = random.Random(seed)
        resized = [b._replace(size=64 * b.size - generator.randrange(max(1, 64 * b.size // 500))) for b in buffers]
        yield Case(f"{path.stem} {name}", Problem(resized), 1, capacity and capacity * 64)


def of_model(path: Path) -> Iterator[Case]:
    model = read(path)
    for index in range(len(model.subgraphs)):
        stays = lifetimes(Graph(model, index), None, TFLM)
        buffers = [Buffer(str(stay.tensor), stay.first, stay.last, stay.bytes) for stay in stays]
        if buffers:
            yield Case(f"{path.stem}, subgraph {index}" if index else path.stem, Problem(buffers), 16, None)


def cases(directories: list[Path], perturb: bool, only: str) -> Iterator[Case]:
    for directory in directories:
        for path in sorted(p for p in directory.rglob("*") if p.suffix in (".csv", ".tflite") and only in p.name):
            try:
                yield from of_csv(path, perturb) if path.suffix == ".csv" else of_model(path)
            except LitefuseError as error:
                print(f"{path}: skipped, {error}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--perturb", action="store_true")
    parser.add_argument("--only", default="", help="only files whose name has this in it")
    arguments = parser.parse_args()
    print("| problem | buffers | bound | capacity | peak | fits | proved | seconds | processor | quick | method |")
    print("|---|--:|--:|--:|--:|---|---|--:|--:|--:|---|")
    number = proved = unfit = 0
    slowest: tuple[float, float, str] = (0.0, 0.0, "-")
    loosest: tuple[float, str] = (0.0, "-")
    for case in cases(arguments.directory, arguments.perturb, arguments.only):
        buffers = case.problem.buffers
        began = time.process_time()
        packing = pack(case.problem, alignment=case.alignment, capacity=case.capacity, seconds=arguments.seconds)
        processor = time.process_time() - began
        faults = check_packing(buffers, packing.offsets, case.alignment)
        if faults:
            sys.exit(f"{case.name}: {faults}")
        rounded = [b._replace(size=aligned(b.size, case.alignment)) for b in buffers]
        bound = case.problem.lower_bound(case.alignment)
        quick = greedy.best(rounded, bound=bound, deadline=time.monotonic() + 60).peak
        fits = case.capacity is None or packing.fits(case.capacity)
        print(
            f"| {case.name} | {len(buffers)} | {bound} | {case.capacity or ''} | {packing.peak} |"
            f" {'yes' if fits else 'NO'} | {'yes' if packing.proved else 'no'} | {packing.seconds:.2f} |"
            f" {processor:.2f} | {quick / max(bound, 1):.3f} | {packing.method} |",
            flush=True,
        )
        number += 1
        proved += packing.proved
        unfit += not fits
        slowest = max(slowest, (processor, packing.seconds, case.name))
        loosest = max(loosest, (packing.peak / max(bound, 1), case.name))
    print(f"\n{number} problems, {proved} proved optimal, {unfit} past their capacity.")
    print(f"Slowest: {slowest[2]}, {slowest[0]:.2f} s of processor time ({slowest[1]:.2f} s in all).")
    print(f"Highest peak over bound: {loosest[0]:.4f}, {loosest[1]}.")


if __name__ == "__main__":
    main()
