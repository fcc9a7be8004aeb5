"""Runs models with the delegate and without, for the tests of kernels and of the delegate itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litefuse.delegates.fast import why_slow
from litefuse.delegates.network import Network
from litefuse.delegates.package import package
from litefuse.delegates.runtime import load, report
from litefuse.graph import Graph
from litefuse.runtime import interpreter
from litefuse.schema import Model, deepcopy, to_bytes
from litefuse.schema.tables import Operator

Array = NDArray[Any]

BOUND = 1e-5
"""How far results of the fast kernels may be from those of the reference kernels, see assert_near."""


@dataclass
class Whole:
    """A whole graph as one region."""

    kind: str
    operators: list[Operator]
    inputs: list[int]
    outputs: list[int]


def whole(model: Model, kind: str = "test", index: int = 0) -> Whole:
    """All operators of a subgraph as one group."""
    graph = Graph(model, index)
    operators = list(graph.operators())
    inputs: list[int] = []
    for op in operators:
        for t in op.inputs:
            if t >= 0 and graph.producer(t) is None and not graph.is_constant(t) and t not in inputs:
                inputs.append(t)
    made = {t for op in operators for t in op.outputs}
    outputs = [t for t in model.subgraphs[index].outputs if t in made]
    return Whole(kind, operators, inputs, list(dict.fromkeys(outputs)))


def packaged(model: Model, mode: str = "composite") -> Model:
    """A copy of the model whose first graph is one region."""
    model = deepcopy(model)
    package(model, {0: [whole(model)]}, mode)
    return model


def feeds(runner: Any, seed: int = 0) -> list[Array]:
    """Random inputs: normal floats, integers over their whole range."""
    rng = np.random.default_rng(seed)
    result = []
    for detail in runner.get_input_details():
        shape, dtype = tuple(detail["shape"]), np.dtype(detail["dtype"])
        if dtype == np.bool_:
            result.append(rng.integers(0, 2, shape).astype(bool))
        elif dtype.kind in "iu":
            info = np.iinfo(dtype)
            low, high = (info.min, info.max) if info.bits <= 16 else (-1000, 1000)
            result.append(rng.integers(low, high, shape, dtype=dtype, endpoint=True))
        else:
            result.append((rng.standard_normal(shape) * 2).astype(dtype))
    return result


def start(model: Model | bytes, *, delegates: Any = (), reference: bool = True) -> Any:
    """An interpreter with the reference kernels (or the optimised ones) and, before them, the delegates."""
    data = model if isinstance(model, bytes) else to_bytes(model)
    return interpreter(data, xnnpack=False, reference=reference, delegates=delegates)


def outputs_of(runner: Any, inputs: list[Array] | None = None, seed: int = 0) -> list[Array]:
    """What an interpreter computes of these inputs, or of random ones; it is resized to them."""
    details = runner.get_input_details()
    for detail, value in zip(details, inputs or (), strict=bool(inputs)):
        if tuple(detail["shape"]) != value.shape:
            runner.resize_tensor_input(detail["index"], value.shape)
    runner.allocate_tensors()
    values = inputs if inputs is not None else feeds(runner, seed)
    for detail, value in zip(details, values, strict=True):
        runner.set_tensor(detail["index"], value)
    runner.invoke()
    return [runner.get_tensor(d["index"]).copy() for d in runner.get_output_details()]


def through(
    model: Model,
    inputs: list[Array] | None = None,
    *,
    seed: int = 0,
    mode: str = "composite",
    reference: bool = True,
    **options: Any,
) -> list[Array]:
    """What the delegate computes with the whole graph as one region; `options` are those of the delegate.

    Operators for which it says to have no fast kernel are those of which litefuse.delegates.fast says so.
    """
    delegate = load(**options)
    runner = start(packaged(model, mode), delegates=[delegate], reference=reference)
    told = report(delegate)
    assert len(told["regions"]) == 1, f"not claimed: {told['refused']}"
    if told["backend"] == "cpu":
        assert told["regions"][0]["slow_operators"] == len(slow_operators(model)), slow_operators(model)
    return outputs_of(runner, inputs, seed)


def slow_operators(model: Model) -> list[str]:
    """Why operators of the first graph run in reference kernels, when it is one region.

    Those that constants feed are computed once, unless the results are those of the region.
    """
    network = Network(Graph(model))
    leaving = [not network.leaving.isdisjoint(outs) for outs in network.outs]
    found = (why_slow(network, i) for i, feeds in enumerate(network.feeds) if not feeds or leaving[i])
    return [reason for reason in found if reason is not None]


def both(
    model: Model,
    inputs: list[Array] | None = None,
    *,
    seed: int = 0,
    mode: str = "composite",
    reference: bool = True,
    bound: float = BOUND,
    fast: bool = True,
) -> tuple[list[Array], list[Array]]:
    """What TFLite's kernels compute, and what the delegate's reference kernels do with the whole graph as one region.

    The delegate's fast kernels are run too unless `fast` is False, and must give the same within the bound.
    """
    how: dict[str, Any] = {"seed": seed, "mode": mode, "reference": reference}
    expected = outputs_of(start(model, reference=reference), inputs, seed)
    got = through(model, inputs, backend="reference", **how)
    if fast:
        usual, wanted = inputs, got
        if inputs is not None and any(map(has_denormals, inputs)):
            usual = [flushed(x) for x in inputs]
            wanted = through(model, usual, backend="reference", **how)
        for i, (a, b) in enumerate(zip(wanted, through(model, usual, **how), strict=True)):
            assert_near(a, b, f"fast kernels, output {i}", bound)
    return expected, got


def has_denormals(x: Array) -> bool:
    """Whether some numbers count as zero for the fast kernels."""
    return bool(x.dtype == np.float32 and np.any((x != 0) & (np.abs(x) < np.finfo(np.float32).tiny)))


def flushed(x: Array) -> Array:
    """The same with zeros, of their signs, for denormal numbers."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(0, x), x) if has_denormals(x) else x


def assert_near(expected: Array, got: Array, what: str, bound: float = BOUND) -> None:
    """Floats are the same but for rounding, where they are finite; all else is the same.

    They may differ by `bound` of what is expected, and by a tenth of it of the largest number that is. What overflows
    becomes infinity or the largest number there is.
    """
    assert (expected.shape, expected.dtype) == (got.shape, got.dtype), what
    if expected.dtype != np.float32:
        np.testing.assert_array_equal(got, expected, what)
        return
    most = np.finfo(np.float32).max
    a, b = (np.where(np.abs(x) >= most, np.sign(x) * np.inf, x.astype(np.float64)) for x in (expected, got))
    usual = np.abs(a[np.abs(a) < 1e30])
    scale = float(usual.max(initial=0.0))
    with np.errstate(invalid="ignore"):
        wrong = ~((np.isnan(a) & np.isnan(b)) | (a == b) | (np.abs(a - b) <= bound * (np.abs(a) + scale / 10) + 1e-37))
    where = [tuple(int(k) for k in i) for i in np.argwhere(wrong)[:5]]
    told = [(i, expected[i], got[i]) for i in where]
    assert not wrong.any(), f"{what}: {np.count_nonzero(wrong)} of {a.size} differ (index, expected, got): {told}"


def refusal(model: Model, mode: str = "composite") -> str:
    """Why the delegate does not claim the whole graph."""
    delegate = load()
    runner = start(packaged(model, mode), delegates=[delegate])
    told = report(delegate)
    del runner
    assert not told["regions"], "it was claimed"
    return "; ".join(r["reason"] for r in told["refused"])
