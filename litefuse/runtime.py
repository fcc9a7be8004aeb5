"""The installed TFLite runtime: which one there is, and an interpreter from it.

The first of ai-edge-litert, tflite-runtime and tensorflow that can be imported is used. Importing is left to the
first use, so that commands which run no model start fast.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from litefuse.errors import RuntimeMissingError

_MODULES = ("ai_edge_litert.interpreter", "tflite_runtime.interpreter", "tensorflow.lite")


class Runtime(NamedTuple):
    """An importable runtime: its name, version, and the module with `Interpreter` and `OpResolverType`."""

    name: str
    version: str
    interpreter: Any
    resolver_type: Any


@functools.cache
def runtime() -> Runtime:
    """The installed runtime. Raises RuntimeMissingError when there is none."""
    for module in _MODULES:
        package = module.split(".")[0]
        try:
            with quiet():
                found = importlib.import_module(module)
                version = getattr(importlib.import_module(package), "__version__", "")
        except ImportError:
            continue
        resolver = getattr(found, "OpResolverType", None) or found.experimental.OpResolverType
        return Runtime(package.replace("_", "-"), version or "?", found.Interpreter, resolver)
    raise RuntimeMissingError(
        "no TFLite runtime is installed, so models cannot be run; `pip install ai-edge-litert` brings one"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps what native code writes to standard error from the user's terminal."""
    saved = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def interpreter(model: bytes | str | Path, *, xnnpack: bool = True, threads: int = 1, keep_all: bool = False) -> Any:
    """An interpreter for a model given as bytes or as a path; not yet allocated.

    Args:
        model: the bytes of a `.tflite` file, or where it is.
        xnnpack: whether the default delegate may take operators; without it the plain builtin kernels run.
        threads: number of threads.
        keep_all: preserve every intermediate tensor, so that it can be read after a run.

    Raises:
        RuntimeMissingError: no runtime is installed.
        ValueError, RuntimeError: the runtime refuses the model.
    """
    found = runtime()
    resolvers = found.resolver_type
    kind = resolvers.AUTO if xnnpack else resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    source: dict[str, Any] = (
        {"model_content": bytes(model)} if isinstance(model, (bytes, bytearray)) else {"model_path": os.fspath(model)}
    )
    with quiet():
        return found.interpreter(
            **source,
            num_threads=threads,
            experimental_op_resolver_type=kind,
            experimental_preserve_all_tensors=keep_all,
        )
