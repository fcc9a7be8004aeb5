"""Real models in regions: as many and as large as is legal, run by the delegate and without it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delegate import start

from litefuse.convert import convert
from litefuse.delegates.cost import Eager
from litefuse.delegates.formation import form
from litefuse.delegates.package import unfuse
from litefuse.delegates.runtime import load, report
from litefuse.delegates.targets import target
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
    for mode, (model, formation) in formed.items():
        packaged = to_bytes(model)
        delegate = load()
        runner = start(packaged, delegates=[delegate]) if reference else interpreter(packaged, delegates=[delegate])
        told = report(delegate)
        assert len(told["regions"]) == len(formation.regions), told["refused"]
        # Integers are those of the reference kernels; where XNNPACK ran the original, it may round otherwise.
        _close(_outputs(runner, values), want, steps=0 if reference else 1, relative=1e-5 if reference else 1e-3)
        if mode == "composite" and reference:
            alone = _outputs(start(packaged, reference=False), values)
            _close(alone, _outputs(start(data, reference=False), values))
    model, formation = formed["composite"]
    assert unfuse(model) == len(formation.regions)
    if reference:
        _close(_outputs(start(to_bytes(model)), values), want)
