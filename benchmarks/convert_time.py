"""How long `litefuse convert` takes for every model below a directory, against loading it with tensorflow.

`python benchmarks/convert_time.py DIRECTORY` starts each of these in a process of its own for every `.tflite` file and
adds up the wall time: `litefuse convert MODEL --no-check`, `litefuse convert MODEL`, which also runs original and
result on all inputs, and `import tensorflow` with an interpreter for the model (`--python`). It also makes a
model of 25 MB and 700 operators and converts that. The slowest files are listed.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from litefuse.graph.build import Builder
from litefuse.schema import write
from litefuse.schema.enums import Padding
from litefuse.schema.operators import Op

LITEFUSE = [sys.executable, "-c", "from litefuse.cli import main; main()"]
LOAD = "import sys, tensorflow as tf; tf.lite.Interpreter(model_path=sys.argv[1])"


def seconds_of(command: list[str]) -> tuple[float, int]:
    """Wall time of a command and its exit code."""
    start = time.perf_counter()
    code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode
    return time.perf_counter() - start, code


def large(path: Path) -> None:
    """Writes a network of 700 operators and about 25 MB: convolutions with a MUL, an ADD and a RELU each, and skips."""
    rng = np.random.default_rng(0)
    b = Builder()
    channels, blocks = 71, 140
    shape = [1, 14, 14, channels]
    x = b.input("x", shape)
    for i in range(blocks):
        weights = b.constant(f"w{i}", (rng.standard_normal((channels, 3, 3, channels)) / 30).astype(np.float32))
        bias = b.constant(f"b{i}", np.zeros(channels, np.float32))
        y = b.op(Op.CONV_2D, [x, weights, bias], shape=shape, padding=Padding.SAME)
        y = b.op(Op.MUL, [y, b.constant(f"g{i}", rng.uniform(0.5, 1, channels).astype(np.float32))], shape=shape)
        y = b.op(Op.ADD, [y, b.constant(f"h{i}", rng.standard_normal(channels).astype(np.float32))], shape=shape)
        y = b.op(Op.RELU, [y], shape=shape)
        x = b.op(Op.ADD, [x, y], shape=shape)
    write(b.model([x]), path)


def main() -> None:
    """Prints the totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--python", default=sys.executable, help="a Python that has tensorflow")
    arguments = parser.parse_args()
    files = [f for f in sorted(arguments.directory.rglob("*.tflite")) if "litefuse" not in f.name]
    same = arguments.python == sys.executable
    has_tensorflow = not same or importlib.util.find_spec("tensorflow") is not None
    totals: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out.tflite"

        def commands(path: Path) -> dict[str, list[str]]:
            found = {
                "convert --no-check": [*LITEFUSE, "convert", str(path), "-o", str(out), "--no-check"],
                "convert": [*LITEFUSE, "convert", str(path), "-o", str(out)],
            }
            return found | ({"load tensorflow": [arguments.python, "-c", LOAD, str(path)]} if has_tensorflow else {})

        for path in files:
            for name, command in commands(path).items():
                totals.setdefault(name, []).append(seconds_of(command)[0])
        print(f"{len(files)} files, a process for each\n\n| | seconds in all | median | slowest |\n|---|---|---|---|")
        for name, found in totals.items():
            slowest = max(zip(found, files, strict=True))
            print(f"| {name} | {sum(found):.0f} | {np.median(found):.2f} | {slowest[0]:.1f} ({slowest[1].stem}) |")
        path = Path(directory) / "large.tflite"
        large(path)
        print(f"\n{path.stat().st_size / 1e6:.1f} MB, 700 operators:")
        for name, command in commands(path).items():
            seconds, code = seconds_of(command)
            print(f"  {name}: {seconds:.2f} s{f' (exit code {code})' if code else ''}")


if __name__ == "__main__":
    main()
