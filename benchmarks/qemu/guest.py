"""What runs in the emulated machine: a model in the stock runtime and with the delegate, with marks for counts.c.

    python guest.py JOB.json

The job names the two files, the library, its options, a file of inputs for each (`.npz`: `index`, `resize`, and one
array for each, `a0`, ...), where to put the outputs, and how many runs are counted. Needs the runtime and numpy only.
Prints JSON: how many regions were claimed, and what was left to the runtime.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, load_delegate

_MARK = 99999
_libc = ctypes.CDLL(None)


def mark(tag: int) -> None:
    """Ends a measurement, and begins one where the tag is above zero."""
    _libc.getpriority(_MARK, tag)


def start(model: str, inputs: str, delegates: list[Any]) -> Any:
    """An interpreter with its inputs, which has run once."""
    runner = Interpreter(model_path=model, num_threads=1, experimental_delegates=delegates or None)
    with np.load(inputs, allow_pickle=True) as stored:
        values = [stored[f"a{i}"] for i in range(len(stored["index"]))]
        for index, resize, value in zip(stored["index"], stored["resize"], values, strict=True):
            if resize:
                runner.resize_tensor_input(int(index), value.shape)
        runner.allocate_tensors()
        for index, value in zip(stored["index"], values, strict=True):
            runner.set_tensor(int(index), value)
    runner.invoke()
    return runner


def told(library: str, delegate: Any) -> Any:
    """The delegate's report."""
    dll = ctypes.CDLL(library)
    dll.litefuse_delegate_report.restype = ctypes.c_size_t
    dll.litefuse_delegate_report.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    text = ctypes.create_string_buffer(1 << 22)
    length = dll.litefuse_delegate_report(int(delegate._get_native_delegate_pointer()), text, len(text))
    return json.loads(text.raw[:length])


def store(path: str, runner: Any) -> None:
    """Writes the outputs of the last run."""
    outputs = [runner.get_tensor(detail["index"]) for detail in runner.get_output_details()]
    np.savez(path, **{f"a{i}": value for i, value in enumerate(outputs)})


def main() -> None:
    """Runs the job. Odd tags are runs that fill the caches, even ones those that count."""
    with open(sys.argv[1]) as file:
        job = json.load(file)
    delegate = load_delegate(job["library"], job["options"])
    stock = start(job["original"], job["original_inputs"], [])
    fused = start(job["converted"], job["converted_inputs"], [delegate])
    report = told(job["library"], delegate)
    for path, runner in zip(job["outputs"], (stock, fused), strict=True):
        store(path, runner)
    gc.collect()
    gc.disable()
    for number, runner in enumerate((stock, fused)):
        invoke = runner.invoke
        mark(2 * number + 1)
        invoke()
        mark(2 * number + 2)
        for _ in range(job["runs"]):
            invoke()
        mark(0)
    left = [f"{r['what']}: {r['reason']}" for r in report["refused"]]
    print(json.dumps({"claimed": len(report["regions"]), "refused": left}))


if __name__ == "__main__":
    main()
