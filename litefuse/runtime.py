"""The installed TFLite runtime: which one there is, and an interpreter from it.

The first of ai-edge-litert, tflite-runtime and tensorflow that can be imported is used. Importing is left to the
first use, so that commands which run no model start fast.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from litefuse.errors import RuntimeMissingError, UsageError

_MODULES = ("ai_edge_litert.interpreter", "tflite_runtime.interpreter", "tensorflow.lite.python.interpreter")


class Runtime(NamedTuple):
    """An importable runtime: its name, version, its module, and what that calls `Interpreter` and
    `OpResolverType`.
    """

    name: str
    version: str
    module: Any
    interpreter: Any
    resolver_type: Any


@functools.cache
def runtime(name: str | None = None) -> Runtime:
    """The installed runtime, or the one of that name: `ai-edge-litert`, `tflite-runtime` or `tensorflow`.

    Raises RuntimeMissingError when there is none that can be imported, UsageError for another name.
    """
    broken = ""
    known = [module.split(".")[0].replace("_", "-") for module in _MODULES]
    if name is not None and name not in known:
        raise UsageError(f"there is no runtime `{name}`; there are {', '.join(known)}")
    for module in _MODULES:
        package = module.split(".")[0]
        if name is not None and package.replace("_", "-") != name:
            continue
        try:
            with quiet():
                found = importlib.import_module(module)
                version = getattr(importlib.import_module(package), "__version__", "")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != package:
                broken = broken or f"; {package} is there but lacks the module {error.name}"
            continue
        except Exception as error:  # built for another numpy or another system: importing fails in many ways
            broken = broken or f"; {package} is there but cannot be imported: {error}"
            continue
        return Runtime(package.replace("_", "-"), version or "?", found, found.Interpreter, found.OpResolverType)
    if name is not None:
        raise RuntimeMissingError(f"{name} is not installed{broken}; `pip install {name}` brings it")
    raise RuntimeMissingError(
        f"no TFLite runtime is installed, so models cannot be run; `pip install ai-edge-litert` brings one{broken}"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps what native code writes to standard error from the user's terminal."""
    try:
        saved = os.dup(2)
    except OSError:  # closed, as in some services
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def interpreter(
    model: bytes | str | Path,
    *,
    xnnpack: bool = True,
    reference: bool = False,
    threads: int = 1,
    keep_all: bool = False,
    delegates: Sequence[Any] = (),
) -> Any:
    """An interpreter for a model given as bytes or as a path; not yet allocated.

    Args:
        model: the bytes of a `.tflite` file, or where it is.
        xnnpack: whether the default delegate may take operators; without it the plain builtin kernels run.
        reference: run the reference kernels, slow and portable, instead of the optimised ones; without XNNPACK only.
        threads: number of threads.
        keep_all: preserve every intermediate tensor, so that it can be read after a run.
        delegates: what may take operators before the default delegate does.

    Raises:
        RuntimeMissingError: no runtime is installed.
        ValueError, RuntimeError: the runtime refuses the model.
    """
    found = runtime()
    resolvers = found.resolver_type
    plain = resolvers.BUILTIN_REF if reference else resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    kind = resolvers.AUTO if xnnpack else plain
    source: dict[str, Any] = (
        {"model_content": bytes(model)} if isinstance(model, (bytes, bytearray)) else {"model_path": os.fspath(model)}
    )
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return found.interpreter(
            **source,
            num_threads=threads,
            experimental_op_resolver_type=kind,
            experimental_preserve_all_tensors=keep_all,
            **({"experimental_delegates": list(delegates)} if delegates else {}),
        )
