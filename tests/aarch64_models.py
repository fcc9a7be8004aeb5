"""Runs models with the delegate in the runtime's aarch64 build under qemu, and compares with this machine.

    python aarch64_models.py ROOT LIBRARY DIRECTORY

Started by aarch64.sh, which makes ROOT and LIBRARY.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from delegate import feeds, outputs_of, start
from runtimes import results, task
from test_delegates_runtime import network, split

from litefuse.delegates.cost import Eager
from litefuse.delegates.formation import form
from litefuse.delegates.targets import target
from litefuse.schema import Model, read

_CORPUS = ("gles_blazeface_int8", "mlperf_kws_fp32", "mm_rnnoise_int8")


def models() -> dict[str, tuple[Model, Model]]:
    """By name, an original and the same packaged: a small network, and real models where there are any."""
    found = {"network": (network(), split(network()))}
    corpus = os.environ.get("LITEFUSE_CORPUS")
    for name in _CORPUS if corpus else ():
        path = Path(corpus) / "models" / f"{name}.tflite"
        packaged = read(path)
        form(packaged, target("cortex-a76"), cost_model=Eager(target("cortex-a76")))
        found[name] = read(path), packaged
    return found


def main(root: Path, library: Path, directory: Path) -> int:
    """Runs everything; returns how many differ."""
    directory.mkdir(parents=True, exist_ok=True)
    given = models()
    tasks, want = {}, {}
    for name, (original, packaged) in given.items():
        plain = start(original)
        plain.allocate_tensors()
        values = feeds(plain)
        want[name] = outputs_of(plain, values)
        tasks[name] = task(packaged, [values], directory, name, delegate=False, resolver="BUILTIN_REF")
        tasks[name]["library"] = str(library)
    listed = directory / "tasks.json"
    listed.write_text(json.dumps(list(tasks.values())))
    probe = Path(__file__).with_name("probe.py")
    done = subprocess.run(
        ["qemu-aarch64", "-cpu", "cortex-a76", "-L", root, root / "usr/bin/python3.11", probe, listed],
        env={"PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(root / "opt/site"), "PATH": os.environ["PATH"]},
        capture_output=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        print(done.stderr.decode(errors="replace")[-3000:])
        return 1
    wrong = 0
    for (name, made), answer in zip(tasks.items(), json.loads(done.stdout.decode().splitlines()[-1]), strict=True):
        regions = len(answer.get("report", {}).get("regions", []))
        if "error" in answer or not regions:
            print(f"{name}: {answer.get('error', answer.get('report'))}")
            wrong += 1
            continue
        worst = 0.0
        for got, expected in zip(results(made)[0], want[name], strict=True):
            gap = np.max(np.abs(got.astype(np.float64) - expected.astype(np.float64)), initial=0.0)
            worst = max(worst, gap if got.dtype.kind in "iu" else gap / max(float(np.max(np.abs(expected))), 1e-30))
        # Integers are the same to the bit; libm differs in the last place.
        fine = worst <= (0 if want[name][0].dtype.kind in "iu" else 1e-5)
        wrong += not fine
        verdict = "as here" if fine else "DIFFERENT"
        print(f"{name} on aarch64: {regions} regions, {verdict} (largest difference {worst:.2g})")
    print(f"{len(tasks) - wrong} passed, {wrong} failed")
    return wrong


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])))
