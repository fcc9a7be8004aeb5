"""Runs models in TensorFlow Lite Micro, each in a process of its own, since TFLM may abort."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from litefuse.arena import offline
from litefuse.arena import tflm as arena
from litefuse.graph.graph import Array, Graph
from litefuse.isolation import ChildFailure, in_child
from litefuse.schema import model as schema
from litefuse.schema.operators import Op
from litefuse.schema.types import NUMPY

INSTALLED = importlib.util.find_spec("tflite_micro") is not None
# The arena is reserved, not touched, so a generous one costs nothing; kernels' persistent data need room too.
_ROOM = 64 << 20
_FIGURE = re.compile(r"Arena allocation (total|head|tail) (\d+) bytes")


class Run(NamedTuple):
    """What became of a model in TFLM.

    Attributes:
        failure: why it did not run, in TFLM's words; empty when it ran.
        outputs: the outputs of each step.
        head: bytes of the arena that its tensors and the kernels' scratch took.
        tail: bytes of the arena that lived as long as the interpreter.
    """

    failure: str
    outputs: list[list[Array]]
    head: int
    tail: int

    def same_outputs(self, other: Run) -> bool:
        """Whether all outputs of all steps have the same type, shape and bits."""
        mine, theirs = ([o for step in run.outputs for o in step] for run in (self, other))
        return len(mine) == len(theirs) and all(
            a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
            for a, b in zip(mine, theirs, strict=True)
        )


def run(model: bytes, steps: Sequence[Sequence[Array]], *, timeout: float = 120.0) -> Run:
    """Runs a model once for each step in a fresh process.

    Args:
        model: the bytes of a `.tflite` file.
        steps: the inputs of subgraph 0 for each run, in the model's order; state is kept between the runs.
        timeout: seconds after which the process is ended.
    """
    try:
        return Run(*in_child(f"{__name__}:_run", model, [list(step) for step in steps], timeout=timeout))
    except ChildFailure as failure:
        return Run(failure.how, [], 0, 0)


def random_steps(model: schema.Model, count: int = 2, seed: int = 0) -> list[list[Array]]:
    """Seeded inputs for `count` runs, in the shapes that the file states (an unknown dimension is 1)."""
    random = np.random.default_rng(seed)
    graph = model.subgraphs[0]
    return [[_random(random, graph.tensors[i]) for i in graph.inputs] for _ in range(count)]


def _random(random: np.random.Generator, tensor: Any) -> NDArray[Any]:
    shape = [max(int(d), 1) for d in ([] if tensor.shape is None else tensor.shape)]
    dtype = NUMPY[tensor.type]
    if dtype.kind == "f":
        return np.asarray(random.uniform(-1, 1, shape), dtype)
    if dtype.kind == "b":
        return np.asarray(random.random(shape) < 0.5)
    if dtype.itemsize <= 2:
        limits = np.iinfo(dtype)  # type: ignore[type-var]
        return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return np.asarray(random.integers(0, 2, shape), dtype)  # an index, most often


def _run(model: bytes, steps: list[list[Array]], say: Any) -> tuple[str, list[list[Array]], int, int]:
    # TFLM and its allocation record speak on standard error only.
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        outputs: list[list[Array]] = []
        failure = ""
        try:
            from tflite_micro.python.tflite_micro import runtime

            tables = schema.parse(model)
            interpreter = runtime.Interpreter.from_bytes(model, arena_size=_arena(tables))
            for step in steps:
                for i, value in enumerate(step):
                    interpreter.set_input(value, i)
                interpreter.invoke()
                outputs.append([interpreter.get_output(i) for i in range(len(tables.subgraphs[0].outputs))])
            interpreter.print_allocations()
        except Exception as error:
            failure = str(error)
        sys.stderr.flush()
        log.seek(0)
        text = log.read().decode(errors="replace")
    figures = {kind: int(value) for kind, value in _FIGURE.findall(text)}
    if failure:
        lines = [line for line in text.splitlines() if line.strip() and "resource variables" not in line]
        return " | ".join([failure, *lines[-3:]]), [], 0, 0
    return "", outputs, figures["head"], figures["tail"]


def _arena(model: schema.Model) -> int:
    room = _ROOM
    for subgraph in model.subgraphs:
        for tensor in subgraph.tensors:
            shape = [] if tensor.shape is None else tensor.shape
            room += 8 * int(np.prod([max(int(d), 1) for d in shape], dtype=np.int64))
    return min(room, 2**31 - 1)


def simple_plan(model: schema.Model) -> dict[tuple[int, int], int]:
    """A plan to test with: results over inputs where that is plainly right, then first fit by size.

    Args:
        model: the model; its metadata are not looked at.

    Returns offsets in bytes by (subgraph, tensor), without those that TFLM must place itself.
    """
    online = {(o.subgraph, o.tensor) for o in offline.must_stay_online(model)}
    blocks = [b for b in arena.blocks(model) if b.tensor >= 0 and (b.subgraph, b.tensor) not in online]
    group = {(b.subgraph, b.tensor): [b] for b in blocks}
    for s in range(len(model.subgraphs)):
        graph = Graph(model, s)
        for op in graph.operators():
            if graph.kind(op) in (Op.RELU, Op.LOGISTIC, Op.TANH, Op.ADD, Op.MUL, Op.RESHAPE, Op.SOFTMAX):
                _join(group, s, op.inputs[0], op.outputs[0], graph)
    merged = {id(g): g for g in group.values()}.values()
    ordered = sorted(merged, key=lambda g: (-g[0].bytes, g[0].first))
    wide = [b[0]._replace(first=min(x.first for x in b), last=max(x.last for x in b)) for b in ordered]
    # Only the order of placing differs from TFLM's, which puts the latest of equals first.
    offsets = arena.place(wide[::-1])[::-1]
    return {(b.subgraph, b.tensor): o for g, o in zip(ordered, offsets, strict=True) for b in g}


def _join(group: dict[Any, list[arena.Block]], s: int, source: int, result: int, graph: Graph) -> None:
    a, b = group.get((s, source)), group.get((s, result))
    if a is None or b is None or a is b:
        return
    same = list(graph.tensor(source).shape or ()) == list(graph.tensor(result).shape or ())
    view = graph.kind(graph.producer(result)) is Op.RESHAPE  # type: ignore[arg-type]
    if a[-1].last == b[0].first and a[0].bytes == b[0].bytes and (same or view):
        a.extend(b)
        for block in b:
            group[block.subgraph, block.tensor] = a
