"""How much memory a better order of operators and sharing save, over a directory of models, and how much is proved.

    python benchmarks/arena_order.py DIRECTORY [--seconds 10] [--only WORD] [--csv out.csv]

Each model is planned for TFLM without sharing, for TFLM with sharing, and for litefuse's delegate with sharing
(residuals included). Ratios are of the peak to the lower bound of the file's own order without sharing, at the
runtime's alignment; means are geometric. Every plan is checked by `litefuse.arena.replay`; a fault ends the run.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from pathlib import Path

from litefuse.arena.lifetimes import DELEGATE, TFLITE, TFLM
from litefuse.arena.plan import plan
from litefuse.errors import LitefuseError
from litefuse.schema.model import read

# Column: options of `plan`.
VARIANTS = {
    "order": {"runtime": TFLM, "in_place": False},
    "given, in place": {"runtime": TFLM, "reorder": False},
    "order, in place": {"runtime": TFLM},
    "and over inputs": {"runtime": TFLM, "overwrite_inputs": True},
    "delegate": {"runtime": DELEGATE},
    "delegate, inputs": {"runtime": DELEGATE, "overwrite_inputs": True},
    "tflite": {"runtime": TFLITE},
}


def mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--only", default="", help="only models whose name has this in it")
    parser.add_argument("--least", type=int, default=1, help="least number of operators")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    for path in sorted(arguments.directory.glob("*.tflite")):
        if arguments.only not in path.name:
            continue
        try:
            model = read(path)
        except LitefuseError as error:
            print(f"{path.name}: skipped, {error}")
            continue
        if len(model.subgraphs[0].operators) < arguments.least:
            continue
        row: dict[str, object] = {"model": path.stem, "operators": len(model.subgraphs[0].operators)}
        for name, options in VARIANTS.items():
            began = time.perf_counter()
            result = plan(model, seconds=arguments.seconds, **options)
            taken = time.perf_counter() - began
            if faults := result.faults(model):
                sys.exit(f"{path.name}, {name}: {faults[:3]}")
            if not result.arenas or not result.arenas[0].plain_bound:
                continue
            arena = result.arenas[0]
            ordering = arena.subgraphs[0].ordering
            row |= {
                f"{name}: bound before": arena.plain_bound,
                f"{name}: peak": arena.peak,
                f"{name}: ratio": arena.peak / arena.plain_bound,
                f"{name}: packed": arena.packed,
                f"{name}: order proved": ordering.proved if ordering else "",
                f"{name}: optimal": arena.optimal,
                f"{name}: bound of orders": arena.order_bound,
                f"{name}: states": ordering.states if ordering else 0,
                f"{name}: seconds": round(taken, 2),
            }
        rows.append(row)
        shown = [f"{row.get(f'{n}: ratio', math.nan):6.3f}" for n in VARIANTS]
        unproved = [n for n in VARIANTS if row.get(f"{n}: order proved") is False]
        unpacked = [n for n in VARIANTS if row.get(f"{n}: packed") is False]
        notes = [f"unproved: {', '.join(unproved)}"] if unproved else []
        notes += [f"not at its bound: {', '.join(unpacked)}"] if unpacked else []
        print(f"{path.stem[:44]:44s} {row['operators']:4d} {' '.join(shown)} {'; '.join(notes)}", flush=True)
    print()
    for name in VARIANTS:
        having = [r for r in rows if f"{name}: ratio" in r]
        if not having:
            continue
        ratios = [float(str(r[f"{name}: ratio"])) for r in having]
        proved = [r[f"{name}: order proved"] for r in having]
        print(
            f"{name:16s} {len(having):4d} models, mean {mean(ratios):.4f}, best {min(ratios):.3f}, "
            f"{sum(r < 0.99 for r in ratios)} below 0.99, order proved {sum(p is True for p in proved)}, "
            f"optimal {sum(bool(r[f'{name}: optimal']) for r in having)}, "
            f"packed at the bound {sum(bool(r[f'{name}: packed']) for r in having)}, "
            f"slowest {max(float(str(r[f'{name}: seconds'])) for r in having):.1f} s"
        )
    if arguments.csv and rows:
        fields = list(dict.fromkeys(key for row in rows for key in row))
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, fields)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
