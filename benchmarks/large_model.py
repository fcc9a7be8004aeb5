"""Time and memory of reading and writing a large model, against copying its file.

    python benchmarks/large_model.py              # 1 GB, inside the flatbuffer
    python benchmarks/large_model.py --size 3G    # weights outside the flatbuffer, by offset and size

The model is a chain of FULLY_CONNECTED layers without meaning. Each repetition copies the file with shutil.copyfile
and then reads and writes it, each in a process of its own whose peak memory is taken; the table shows the medians.
Ends with status 1 when a bound of the project is broken: 2x the time of a copy, 1.3x the file's size of memory.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from litefuse import schema
from litefuse.graph.build import Builder
from litefuse.schema.operators import Op

_WIDTH = 4096
_LAYER_BYTES = 64 << 20  # a layer of 4096 x 4096 float32


def make(path: Path, size: int) -> None:
    """Writes a model of about ``size`` bytes whose weights are all different."""
    rng = np.random.default_rng(0)
    b = Builder()
    x = b.input("x", [1, _WIDTH])
    for i in range(max(1, size // _LAYER_BYTES)):
        # Cheap to make and still different everywhere: a random row, turned by one for each row.
        row = rng.standard_normal(2 * _WIDTH, np.float32)
        weights = np.lib.stride_tricks.sliding_window_view(row, _WIDTH)[:_WIDTH]
        x = b.op(Op.FULLY_CONNECTED, [x, b.constant(f"w{i}", weights), -1], shape=[1, _WIDTH], name=f"fc{i}")
    schema.write(b.model([x]), path)


class Run(NamedTuple):
    """What one action took: seconds, seconds of the processor, peak resident bytes."""

    seconds: float
    processor: float
    memory: int


def measured(action: str, *arguments: object) -> Run:
    """Does an action in a process of its own."""
    command = [sys.executable, __file__, "--action", action, *map(str, arguments)]
    seconds, processor, memory = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return Run(float(seconds), float(processor), int(memory))


def act(action: str, *arguments: str) -> None:
    start, processor = time.perf_counter(), time.process_time()
    if action == "make":
        make(Path(arguments[0]), int(arguments[1]))
    elif action == "copy":
        shutil.copyfile(*arguments)
    else:
        schema.write(schema.read(arguments[0]), arguments[1])
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    print(seconds, processor, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def digests(path: Path) -> list[str]:
    """A digest of each buffer of a model."""
    return [hashlib.blake2b(b"" if b.data is None else b.data).hexdigest() for b in schema.read(path).buffers]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1G", help="size of the model, such as 1G or 500M")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dir", help="where to put the files; a temporary directory by default")
    parser.add_argument("--action", choices=["make", "copy", "rewrite"], help=argparse.SUPPRESS)
    parser.add_argument("paths", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.action:
        act(args.action, *args.paths)
        return 0
    size = int(float(args.size[:-1]) * {"M": 1 << 20, "G": 1 << 30}[args.size[-1].upper()])
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        source, copied, written = (Path(folder) / name for name in ("model.tflite", "copy.tflite", "out.tflite"))
        # A child's peak counts from its parent's memory, so that the parent must stay small until the end.
        measured("make", source, size)
        bytes_in = source.stat().st_size
        outside = sum(b.offset > 1 for b in schema.read(source).buffers)
        runs: dict[str, list[Run]] = {"copy": [], "rewrite": []}
        measured("copy", source, copied)  # so that the first measured run does not alone wait for the disk
        for _ in range(args.repeat):
            for action, target in (("copy", copied), ("rewrite", written)):
                os.sync()
                target.unlink(missing_ok=True)
                runs[action].append(measured(action, source, target))
        bytes_out = written.stat().st_size
        same = digests(source) == digests(written)
    seconds, processor, memory = (
        {action: statistics.median(run[i] for run in of) for action, of in runs.items()} for i in range(3)
    )
    print(f"file {bytes_in / 1e9:.3f} GB, {outside} buffers outside; written {bytes_out / 1e9:.3f} GB; same: {same}")
    print(f"{'':10}{'median s':>10}{'GB/s':>8}{'CPU s':>8}{'peak MB':>10}{'of file':>9}   all s")
    for action, of in runs.items():
        print(
            f"{action:10}{seconds[action]:10.2f}{bytes_in / 1e9 / seconds[action]:8.2f}{processor[action]:8.2f}"
            f"{memory[action] / 1e6:10.0f}{memory[action] / bytes_in:9.2f}   "
            + " ".join(f"{run.seconds:.2f}" for run in of)
        )
    ratio = seconds["rewrite"] / seconds["copy"]
    print(f"rewrite / copy: {ratio:.2f} (bound 2), peak memory / file: {memory['rewrite'] / bytes_in:.2f} (bound 1.3)")
    return 0 if same and ratio <= 2 and memory["rewrite"] <= 1.3 * bytes_in else 1


if __name__ == "__main__":
    sys.exit(main())
