"""Runs parts of keras_program.py, and the command line, in the environment with TensorFlow (`make runtimes`)."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from runtimes import python_of

from litefuse.delegates.runtime import LIBRARY
from litefuse.delegates.runtime import library as delegate_library
from litefuse.errors import RuntimeMissingError
from litefuse.native import find

_ROOT = Path(__file__).parent.parent


@functools.cache
def _installed() -> Path:
    """A directory that looks as if litefuse were installed there, with the library that was built for this one."""
    directory = Path(tempfile.mkdtemp(prefix="litefuse-test-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    (directory / "litefuse-0.dist-info").mkdir()
    (directory / "litefuse-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: litefuse\nVersion: 0\n")
    built = find("arena", "litefuse_arena")
    (directory / "litefuse" / "arena").mkdir(parents=True)
    (directory / "litefuse" / "arena" / built.name).symlink_to(built)
    return directory


def environment() -> dict[str, str]:
    """Variables with which that environment finds this litefuse, and the libraries that were built for this one."""
    path = [str(_ROOT), str(_installed()), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    with contextlib.suppress(RuntimeMissingError):
        found[LIBRARY] = str(delegate_library())
    return found


def run_part(name: str, factory: pytest.TempPathFactory, timeout: float = 900) -> dict[str, Any]:
    """What a part of the program found, with what it printed as `stdout`; skips without TensorFlow.

    Of several processes of pytest-xdist, one runs it, and the others wait for what it finds.
    """
    python = python_of("tensorflow")
    base = factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"keras-{name}"
    answer, failed = directory.with_suffix(".json"), directory.with_suffix(".failed")
    try:
        directory.mkdir()
    except FileExistsError:
        end = time.monotonic() + timeout
        while not answer.exists() and not failed.exists() and time.monotonic() < end:
            time.sleep(0.2)
    else:
        _run(python, name, directory, answer, failed, timeout)
    assert not failed.exists(), failed.read_text()
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def _run(python: Path, name: str, directory: Path, answer: Path, failed: Path, timeout: float) -> None:
    try:
        done = subprocess.run(
            [python, Path(__file__).with_name("keras_program.py"), name, directory],
            capture_output=True,
            timeout=timeout,
            env=environment(),
            check=True,
        )
        *said, last = done.stdout.decode().splitlines()
        made = directory.with_suffix(".part")
        made.write_text(json.dumps(json.loads(last) | {"stdout": "\n".join(said)}))
        made.rename(answer)  # in one step, since others look for it
    except subprocess.CalledProcessError as error:
        failed.write_text(error.stderr.decode(errors="replace")[-4000:])
    except Exception as error:
        failed.write_text(repr(error))
