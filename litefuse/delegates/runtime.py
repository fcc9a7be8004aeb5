"""Finds the delegate's library and loads it into the installed TFLite runtime.

::

    from litefuse.delegates import load
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter("model.litefuse.tflite", experimental_delegates=[load(threads=2)])
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
from pathlib import Path
from typing import Any

from litefuse.errors import RuntimeMissingError, UsageError
from litefuse.native import find
from litefuse.runtime import runtime

LIBRARY = "LITEFUSE_DELEGATE_LIBRARY"
"""The environment variable that names another library than the one that came with the package."""


def library() -> Path:
    """Where the delegate's library is.

    Raises RuntimeMissingError when it is not there.
    """
    chosen = os.environ.get(LIBRARY)
    if chosen:
        path = Path(chosen)
        if not path.is_file():
            raise RuntimeMissingError(f"{LIBRARY} names {chosen}, which is no file")
        return path
    path = find("delegates", "litefuse_delegate")
    if not path.is_file():
        raise RuntimeMissingError(f"the delegate was not built with this installation: {path} is missing")
    return path


def load(
    *,
    threads: int = 0,
    backend: str = "cpu",
    winograd: bool = True,
    verbose: bool = False,
    profile: bool = False,
    runtime_name: str | None = None,
) -> Any:
    """A delegate for the `experimental_delegates` of an interpreter. It must outlive the interpreter.

    Args:
        threads: threads that a region may use; 0 for as many as the interpreter has.
        backend: what runs the regions: `cpu`, with vector kernels where there are such, or `reference`, with kernels
            that are slow and equal to TFLite's reference kernels to the bit.
        winograd: whether 3x3 convolutions may be computed by Winograd's algorithm, where the file lets it be used too;
            its error is at most 1e-5 of the largest output of a convolution.
        verbose: say on standard error what is claimed and what is left to the runtime, with the reason.
        profile: measure the time of every operator inside the regions; :func:`report` tells it.
        runtime_name: `ai-edge-litert`, `tflite-runtime` or `tensorflow`; by default the first that is installed.

    Raises:
        RuntimeMissingError: there is no runtime, or no library.
        UsageError: the delegate does not take an option.
    """
    found = runtime(runtime_name)
    flags = {"winograd": winograd, "verbose": verbose, "profile": profile}
    options = {"threads": threads, "backend": backend, **{key: int(bool(on)) for key, on in flags.items()}}
    path = library()
    try:
        return found.module.load_delegate(str(path), {key: str(value) for key, value in options.items()})
    except ValueError as error:
        text = str(error).strip()
        raise UsageError(text.split("litefuse: ")[-1] if "litefuse: " in text else f"{path}: {text}") from None
    except OSError as error:
        raise RuntimeMissingError(f"{path} cannot be loaded: {error}") from None


def report(delegate: Any) -> dict[str, Any]:
    """What a delegate has claimed and what not, with times if it profiles.

    Returns a dictionary with `backend`, `description`, `packing` (of the whole process: `bytes` of packed weights that
    are held, `milliseconds` that packing took, `packed` matrices, and how many were `shared`), `regions` (each with
    `name`, `position`, `operators`, `slow_operators` among them, which only reference kernels run, `scratch_bytes`,
    `follows_plan`, and with `profile` also `runs` and `times`) and `refused` (`what`, `reason`).
    """
    handle = _pointer(delegate)
    dll = _functions(library())
    size = 1 << 16
    while True:
        text = ctypes.create_string_buffer(size)
        length = dll.litefuse_delegate_report(handle, text, size)
        if length < size:
            found: dict[str, Any] = json.loads(text.raw[:length].decode("utf-8", "replace"))
            found["regions"].sort(key=lambda region: region["position"])
            return found
        size = length + 1


def clear_profile(delegate: Any) -> None:
    """Sets the times that a delegate has measured to zero."""
    _functions(library()).litefuse_delegate_clear_profile(_pointer(delegate))


def _pointer(delegate: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(int(delegate._get_native_delegate_pointer()))


@functools.cache
def _functions(path: Path) -> Any:
    dll = ctypes.CDLL(str(path))
    dll.litefuse_delegate_report.restype = ctypes.c_size_t
    dll.litefuse_delegate_report.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    dll.litefuse_delegate_clear_profile.argtypes = [ctypes.c_void_p]
    return dll
