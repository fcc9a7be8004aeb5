"""Real models in regions: as many and as large as is legal, run by the delegate and without it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delegate import start

from litefuse.convert import convert
from litefuse.delegates.cost import Eager
from litefuse.delegates.fast import why_slow
from litefuse.delegates.formation import form
from litefuse.delegates.network import Network
from litefuse.delegates.package import unfuse
from litefuse.delegates.partition import partition
from litefuse.delegates.runtime import load, report
from litefuse.delegates.targets import target
from litefuse.fusions.pipeline import decompositions
from litefuse.graph import Graph
from litefuse.inputs import Case, Feed, Graphs
from litefuse.interface import entries
from litefuse.runtime import interpreter
from litefuse.schema import Model, deepcopy, to_bytes

CORPUS = os.environ.get("LITEFUSE_CORPUS")
_LARGE = 700_000
"""Files above this size are run with `-m slow`."""


def _paths() -> list[Any]:
    found = sorted(Path(CORPUS).glob("**/*.tflite")) if CORPUS else []
    return [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stat().st_size > _LARGE else []) for p in found]


def _values(model: Model, seed: int) -> list[Any]:
    entry, graphs = entries(model)[0], Graphs(model)
    feeds = [Feed(port, entry, graphs) for port in entry.inputs]
    return [feed.values(Case("normal"), feed.shape(1, None), seed) for feed in feeds]


def _outputs(runner: Any, values: list[Any]) -> list[Any]:
    runner.allocate_tensors()
    for detail, value in zip(runner.get_input_details(), values, strict=True):
        runner.set_tensor(detail["index"], value)
    runner.invoke()
    return [np.array(runner.get_tensor(d["index"])) for d in runner.get_output_details()]


def _close(got: list[Any], want: list[Any], *, steps: int = 0, relative: float = 0.0) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        if a.dtype.kind == "f":
            usual = np.isfinite(b)
            np.testing.assert_array_equal(np.isfinite(a), usual)
            scale = float(np.max(np.abs(b[usual]), initial=0.0))
            np.testing.assert_allclose(a[usual], b[usual], rtol=0, atol=relative * scale)
        else:
            np.testing.assert_allclose(a.astype(np.int64), b.astype(np.int64), rtol=0, atol=steps)


def _noise(want: list[Any], others: list[Any]) -> float:
    """How far two sets of the runtime's own kernels are apart, relative to the largest float of each output."""
    found = 0.0
    for a, b in zip(want, others, strict=True):
        usual = np.isfinite(a) & np.isfinite(b) if a.dtype.kind == "f" else np.zeros(a.shape, bool)
        if usual.any():
            found = max(found, float(np.max(np.abs(a[usual] - b[usual])) / max(np.max(np.abs(a[usual])), 1e-30)))
    return found


def _slow(model: Model) -> list[int]:
    """For each region, how many operators have no fast kernel, sorted."""
    profile, found = target("x86-64-v3"), []
    for index in sorted(set(range(len(model.subgraphs))) - decompositions(model)):
        network = Network(Graph(model, index))
        for region in partition(network.graph, profile, model=Eager(profile)).regions:
            places = [network.position[op] for op in region.operators]
            found.append(sum(not network.feeds[i] and why_slow(network, i) is not None for i in places))
    return sorted(found)


@pytest.mark.skipif(not CORPUS, reason="LITEFUSE_CORPUS names no directory with real models")
@pytest.mark.parametrize("path", _paths())
def test_regions_of_real_models(path: Path) -> None:
    plain = convert(path, check=False).model
    profile = target("x86-64-v3")
    formed = {}
    for mode in ("composite", "plan"):
        model = deepcopy(plain)
        formed[mode] = model, form(model, profile, mode, cost_model=Eager(profile))
    if not any(formation.regions for _, formation in formed.values()):
        pytest.skip("no region is possible")
    data, values = to_bytes(plain), _values(plain, 0)
    try:
        want = _outputs(start(data), values)
        reference = True
    except (ValueError, RuntimeError):
        try:  # some models run with XNNPACK only
            want = _outputs(interpreter(data), values)
            reference = False
        except (ValueError, RuntimeError) as error:
            pytest.skip(f"the runtime does not run it: {str(error).splitlines()[0]}")

    def claimed(mode: str, backend: str) -> tuple[list[Any], list[dict[str, Any]]]:
        """What the delegate makes of it, and its regions."""
        model, formation = formed[mode]
        packaged = to_bytes(model)
        delegate = load(backend=backend)
        runner = start(packaged, delegates=[delegate]) if reference else interpreter(packaged, delegates=[delegate])
        told = report(delegate)
        assert len(told["regions"]) == len(formation.regions), told["refused"]
        return _outputs(runner, values), told["regions"]

    for mode in formed:
        # Integers are those of the reference kernels; where XNNPACK ran the original, it may round otherwise.
        got, _ = claimed(mode, "reference")
        _close(got, want, steps=0 if reference else 1, relative=1e-5 if reference else 1e-3)
        if mode == "composite" and reference:
            alone = _outputs(start(to_bytes(formed[mode][0]), reference=False), values)
            _close(alone, _outputs(start(data, reference=False), values))
    got, regions = claimed("plan", "cpu")
    assert sorted(r["slow_operators"] for r in regions) == _slow(deepcopy(plain))
    noise = 0.0
    if reference:
        with suppress(ValueError, RuntimeError):  # some run without XNNPACK only
            noise = _noise(want, _outputs(interpreter(data), values))
    _close(got, want, steps=1, relative=max(1e-4, 2 * noise))
    model, formation = formed["composite"]
    assert unfuse(model) == len(formation.regions)
    if reference:
        _close(_outputs(start(to_bytes(model)), values), want)
