"""Runs a model in whatever runtime is installed beside it, with the delegate or without; needs no litefuse.

Started as a program in environments of their own, so that the delegate is tested in runtimes that cannot be installed
together: `python probe.py TASK.json`. The task names the library, the model, a list of input files (`.npz`, one array
per input, `a0`, `a1`, ...) and where to put the outputs; the answer is JSON on standard output.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
from typing import Any

import numpy as np

_MODULES = ("tflite_runtime.interpreter", "tensorflow.lite.python.interpreter", "ai_edge_litert.interpreter")


def _module() -> Any:
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise SystemExit("there is no runtime")


def _report(library: str, delegate: Any) -> Any:
    dll = ctypes.CDLL(library)
    dll.litefuse_delegate_report.restype = ctypes.c_size_t
    dll.litefuse_delegate_report.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    text = ctypes.create_string_buffer(1 << 22)
    length = dll.litefuse_delegate_report(int(delegate._get_native_delegate_pointer()), text, len(text))
    return json.loads(text.raw[:length])


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Runs one task."""
    module = _module()
    delegates = [module.load_delegate(task["library"], task.get("options", {}))] if task.get("library") else []
    try:
        runner = module.Interpreter(
            model_path=task["model"],
            experimental_op_resolver_type=getattr(module.OpResolverType, task.get("resolver", "AUTO")),
            experimental_preserve_all_tensors=bool(task.get("keep_all")),
            num_threads=task.get("threads", 1),
            **({"experimental_delegates": delegates} if delegates else {}),
        )
        for inputs, outputs in zip(task.get("inputs", ()), task.get("outputs", ()), strict=True):
            with np.load(inputs) as values:
                details = runner.get_input_details()
                arrays = [values[f"a{i}"] for i in range(len(details))]
            for detail, value in zip(details, arrays, strict=True):
                if tuple(detail["shape"]) != value.shape:
                    runner.resize_tensor_input(detail["index"], value.shape)
            runner.allocate_tensors()
            for detail, value in zip(details, arrays, strict=True):
                runner.set_tensor(detail["index"], value)
            runner.invoke()
            made = [runner.get_tensor(d["index"]) for d in runner.get_output_details()]
            np.savez(outputs, **{f"a{i}": value for i, value in enumerate(made)})
    except (ValueError, RuntimeError) as error:
        return {"error": str(error)}
    answer = {"nodes": [d["op_name"] for d in runner._get_ops_details()]}
    if delegates:
        answer["report"] = _report(task["library"], delegates[0])
    return answer


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        tasks = json.load(file)
    json.dump([run(task) for task in tasks], sys.stdout)
