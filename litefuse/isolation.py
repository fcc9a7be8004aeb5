"""Runs a function in a child process, so that native code which crashes or hangs cannot take the caller with it."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

_SERVE = "from litefuse.isolation import serve; serve()"


class ChildFailure(Exception):
    """A child process that ended, or had to be ended, before it answered.

    Attributes:
        how: what became of it: "crashed (SIGSEGV)" or "gave no sign of life for 300 s".
        last: the last thing that it said, or None.
    """

    def __init__(self, how: str, last: Any) -> None:
        super().__init__(how)
        self.how = how
        self.last = last


def in_child(function: str, *arguments: Any, hear: Callable[[Any], None] | None = None, timeout: float = 300.0) -> Any:
    """Calls ``function``, given as ``module:name``, with ``arguments`` and ``say=...`` in a child process.

    Args:
        function: takes the arguments and ``say``, a function with which it tells the caller something that can be
            pickled.
        arguments: anything that can be pickled.
        hear: called with what the child says.
        timeout: seconds that may pass between two things that the child says.

    Returns what the function returns and raises what it raises, or ChildFailure when the child dies or falls silent.
    What it writes to its standard output and error is dropped, except the last line of a Python traceback.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path)}
    last: Any = None
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
        ) as child,
    ):
        assert child.stdin is not None
        messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=_receive, args=(child.stdout, messages), daemon=True).start()
        try:
            with contextlib.suppress(BrokenPipeError):
                pickle.dump((function, arguments), child.stdin)
                child.stdin.close()
            while True:
                kind, value = messages.get(timeout=timeout)
                if kind == "said":
                    last = value
                    if hear:
                        hear(value)
                elif kind == "returned":
                    return value
                elif kind == "raised":
                    raise value
                else:
                    raise ChildFailure(_end(child, log), last)
        except queue.Empty:
            raise ChildFailure(f"gave no sign of life for {timeout:g} s", last) from None
        finally:
            child.kill()


def _receive(stream: Any, messages: queue.SimpleQueue[tuple[str, Any]]) -> None:
    with contextlib.suppress(EOFError, pickle.UnpicklingError, ValueError, OSError):
        while True:
            messages.put(pickle.load(stream))
    messages.put(("ended", None))


def _end(child: subprocess.Popen[bytes], log: Any) -> str:
    code = child.wait()
    if code < 0:
        return f"crashed ({signal.Signals(-code).name})"
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return f"ended with code {code}" + (f" ({lines[-1]})" if lines else "")


def serve() -> None:
    """What the child process runs: reads one call from standard input and answers on standard output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # native code may print to standard output

    def send(kind: str, value: Any) -> None:
        pickle.dump((kind, value), answers)
        answers.flush()

    name, arguments = pickle.load(sys.stdin.buffer)
    module, _, attribute = name.partition(":")
    try:
        result = getattr(importlib.import_module(module), attribute)(*arguments, say=lambda value: send("said", value))
    except Exception as error:
        send("raised", error)
    else:
        send("returned", result)
