"""Other runtimes than the installed one, each in an environment of its own (`make runtimes` makes them)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from litefuse.delegates.runtime import library
from litefuse.schema import Model, write

NAMES = ("tflite-runtime", "tensorflow")
_ROOT = Path(__file__).parent.parent
_PROBE = Path(__file__).with_name("probe.py")


def python_of(name: str) -> Path:
    """The interpreter of the environment with this runtime; skips the test when there is none."""
    chosen = dict(entry.split("=", 1) for entry in os.environ.get("LITEFUSE_RUNTIMES", "").split(",") if "=" in entry)
    path = Path(chosen.get(name, _ROOT / f".venv-{name}" / "bin" / "python"))
    if not path.exists():
        pytest.skip(
            f"no environment with {name}: `make runtimes` makes it, or LITEFUSE_RUNTIMES={name}=PYTHON names one"
        )
    return path


def run_tasks(
    name: str, tasks: Sequence[dict[str, Any]], directory: Path, timeout: float = 300
) -> list[dict[str, Any]]:
    """Runs tasks of probe.py in another runtime; a crash is a failure that says which."""
    listed = directory / "tasks.json"
    listed.write_text(json.dumps(list(tasks)))
    done = subprocess.run(
        [python_of(name), _PROBE, listed],
        capture_output=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=False,
    )
    assert done.returncode == 0, f"{name} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}"
    found: list[dict[str, Any]] = json.loads(done.stdout.decode().splitlines()[-1])
    return found


def task(
    model: Model,
    inputs: Sequence[Sequence[NDArray[Any]]],
    directory: Path,
    name: str,
    *,
    delegate: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """A task that runs a model on several sets of inputs."""
    path = directory / f"{name}.tflite"
    write(model, path)
    files = []
    for i, arrays in enumerate(inputs):
        files.append(str(directory / f"{name}.{i}.in.npz"))
        np.savez(files[-1], **{f"a{j}": array for j, array in enumerate(arrays)})
    return {
        "model": str(path),
        "library": str(library()) if delegate else None,
        "inputs": files,
        "outputs": [file.replace(".in.npz", ".out.npz") for file in files],
        **options,
    }


def results(task: dict[str, Any]) -> list[list[NDArray[Any]]]:
    """What a task has computed, for each set of inputs."""
    found = []
    for path in task["outputs"]:
        with np.load(path) as arrays:
            found.append([arrays[f"a{i}"] for i in range(len(arrays.files))])
    return found
