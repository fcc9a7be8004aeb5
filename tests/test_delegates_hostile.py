"""Packaged models that were broken: the delegate refuses them, or runs them within bounds, in the real runtime."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from delegate import outputs_of, start
from flatbuffers import flexbuffers
from test_delegates_package import Group
from test_delegates_runtime import network

from litefuse.delegates.package import FORMAT, PLAN, package
from litefuse.delegates.runtime import load, report
from litefuse.errors import OutputError
from litefuse.isolation import in_child
from litefuse.schema import Model, deepcopy, to_bytes
from litefuse.schema.enums import TensorType
from litefuse.schema.tables import QuantizationParameters, StableHLOCompositeOptions

_TYPES = (TensorType.FLOAT32, TensorType.INT8, TensorType.INT32, TensorType.INT64, TensorType.BOOL, TensorType.INT4)


def packaged(mode: str = "composite") -> Model:
    model = network()
    package(
        model, {0: [Group(model, [0, 1, 2], "conv_epilogue"), Group(model, [4, 5], "fully_connected_epilogue")]}, mode
    )
    return model


def options(model: Model) -> StableHLOCompositeOptions:
    found = model.subgraphs[0].operators[0].builtin_options_2
    assert isinstance(found, StableHLOCompositeOptions)
    return found


def edited(model: Model, change: Callable[[dict[str, Any]], None]) -> None:
    found = flexbuffers.Loads(bytearray(options(model).composite_attributes))
    change(found)
    options(model).composite_attributes = flexbuffers.Dumps(found)


def refused(model: Model) -> str:
    """Why the first region is left to the runtime."""
    delegate = load()
    runner = start(model, delegates=[delegate])
    told = report(delegate)
    del runner
    assert "litefuse.conv_epilogue" not in [r["name"] for r in told["regions"]], "it was claimed"
    return next(str(r["reason"]) for r in told["refused"] if "conv_epilogue" in r["what"] or r["what"] == PLAN)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: a.clear(), "of format 0"),
        (lambda a: a.update(litefuse=FORMAT + 1), "of format 2, and this delegate reads format 1"),
        (lambda a: a.update(inputs=[]), "computed by nothing|0 and 1"),
        (lambda a: a.update(inputs=[99]), "tensor 99 does not exist"),
        (lambda a: a.update(inputs=[-1]), "name tensor or operator -1"),
        (lambda a: a.update(inputs=[2**40]), "name tensor or operator"),
        (lambda a: a.update(inputs="x"), "computed by nothing"),
        (lambda a: a.update(inputs=[a["inputs"][0]] * 2), "listed twice"),
        (lambda a: a.update(outputs=[]), "no outputs"),
        (lambda a: a.update(outputs=a["inputs"]), "computed by nothing"),
        (lambda a: a.update(outputs=[a["outputs"][0], a["outputs"][0]]), "listed twice"),
    ],
)
def test_wrong_attributes(change: Callable[[dict[str, Any]], None], reason: str) -> None:
    model = packaged()
    edited(model, change)
    assert re.search(reason, refused(model))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 8, 13])
def test_truncated_attributes(size: int) -> None:
    model = packaged()
    options(model).composite_attributes = bytes(options(model).composite_attributes)[:size]
    assert "of format" in refused(model)


@pytest.mark.parametrize(
    "change",
    [
        {"places": [0, 0, 0, 1, 0, 0], "scratch_bytes": 64},  # two that live together at one place
        {"places": [0, 0, 1, 1, 0, 4096], "scratch_bytes": 8192},  # not aligned
        {"places": [0, 0, 2**62, 1, 0, 0], "scratch_bytes": 2**62},
        {"places": [9, 9, 0], "scratch_bytes": 64},
        {"places": [0], "scratch_bytes": 64},
        {"places": "here", "scratch_bytes": -5},
    ],
)
def test_a_wrong_plan_of_the_memory_is_not_followed(change: dict[str, Any]) -> None:
    model = packaged()
    edited(model, lambda a: a.update(change))
    delegate = load(backend="reference")  # the other needs no memory for intermediates, and so follows any plan
    runner = start(model, delegates=[delegate])
    first = report(delegate)["regions"][0]
    assert first["name"] == "litefuse.conv_epilogue"
    assert not first["follows_plan"]
    values = [np.ones((1, 9, 8, 3), np.float32)]
    np.testing.assert_allclose(outputs_of(runner, values)[0], outputs_of(start(network()), values)[0], atol=1e-6)


def test_a_composite_that_contains_itself_or_another() -> None:
    model = packaged()
    inner = options(model).decomposition_subgraph_index
    nested = deepcopy(model)
    # The second region's decomposition holds the first composite.
    other = nested.subgraphs[0].operators[2].builtin_options_2
    assert isinstance(other, StableHLOCompositeOptions)
    place = nested.subgraphs[other.decomposition_subgraph_index]
    code = nested.subgraphs[0].operators[0].opcode_index
    place.operators[0].opcode_index = code
    place.operators[0].builtin_options = None
    place.operators[0].builtin_options_2 = options(nested).replace(decomposition_subgraph_index=inner)
    delegate = load()
    runner = start(nested, delegates=[delegate])
    told = report(delegate)
    del runner
    assert [r["name"] for r in told["regions"]] == ["litefuse.conv_epilogue"]
    assert "none that regions may contain" in told["refused"][0]["reason"]
    options(model).decomposition_subgraph_index = 0
    assert "contains itself" in refused(model)


def test_a_decomposition_that_does_not_exist() -> None:
    # The runtime itself refuses such a file when it prepares it; the delegate comes first.
    model = packaged()
    options(model).decomposition_subgraph_index = 77
    assert "does not exist" in refused(model)


def test_a_constant_that_is_missing() -> None:
    model = packaged()
    place = model.subgraphs[options(model).decomposition_subgraph_index]
    place.tensors[place.operators[0].inputs[1]].buffer = 0
    assert "computed by nothing" in refused(model)


def test_types_that_differ_inside() -> None:
    model = packaged()
    place = model.subgraphs[options(model).decomposition_subgraph_index]
    place.tensors[place.inputs[0]].type = TensorType.INT32
    assert refused(model)


def _mutate(model: Model, rng: random.Random) -> None:
    """Breaks one thing of a packaged model, in its decompositions, attributes or plan."""
    subgraph = model.subgraphs[rng.randrange(len(model.subgraphs))]
    what = rng.randrange(9)
    tensor = rng.choice(subgraph.tensors)
    op = rng.choice(subgraph.operators)
    if what == 0 and tensor.shape:
        shape = list(tensor.shape)
        shape[rng.randrange(len(shape))] = rng.choice([0, 1, 2, 3, 7, 100, 2**20, 2**31 - 1])
        tensor.shape = shape
    elif what == 1:
        tensor.shape = [rng.choice([1, 2, 3]) for _ in range(rng.randrange(10))]
    elif what == 2:
        tensor.type = rng.choice(_TYPES)
    elif what == 3:
        scales = [rng.choice([0.0, -1.0, 1e-30, 0.5, 1e30, float("nan")]) for _ in range(rng.choice([1, 1, 8]))]
        points = [rng.choice([0, 5, -200]) for _ in scales]
        tensor.quantization = QuantizationParameters(scale=scales, zero_point=points)
    elif what == 4 and op.inputs:
        inputs = list(op.inputs)
        inputs[rng.randrange(len(inputs))] = rng.randrange(len(subgraph.tensors))
        op.inputs = inputs
    elif what == 5 and op.builtin_options is not None:
        field = rng.choice(type(op.builtin_options).fields).name
        if isinstance(getattr(op.builtin_options, field), int):
            setattr(op.builtin_options, field, rng.choice([0, 1, 2, 5, 1000]))
    elif what == 6:
        data = bytearray(bytes(options(model).composite_attributes))
        data[rng.randrange(len(data))] = rng.randrange(256)
        options(model).composite_attributes = bytes(data)
    elif what == 7:
        buffer = model.buffers[rng.randrange(1, len(model.buffers))]
        if buffer.data is not None and len(buffer.data) > 4:
            buffer.data = bytes(buffer.data)[: rng.randrange(1, len(buffer.data)) // 4 * 4]
    else:
        op.opcode_index = rng.randrange(len(model.operator_codes))


def attack(seeds: range, say: Callable[[Any], None]) -> dict[str, int]:
    """Breaks models, loads them with the delegate, and runs what it claims; returns how each ended."""
    ends = {"not loaded": 0, "refused": 0, "ran": 0, "failed": 0}
    for seed in seeds:
        rng = random.Random(seed)
        model = packaged()
        _mutate(model, rng)
        if rng.random() < 0.3:
            _mutate(model, rng)
        say(seed)
        try:
            delegate = load()
            runner = start(to_bytes(model), delegates=[delegate])
        except (ValueError, RuntimeError, OutputError):  # by the runtime; or no field can hold it
            ends["not loaded"] += 1
            continue
        told = report(delegate)
        if len(told["regions"]) < 2:
            # What is left to the runtime runs in its own kernels, which do not survive everything.
            ends["refused"] += 1
            continue
        try:
            runner.allocate_tensors()
            for detail in runner.get_input_details():
                runner.set_tensor(detail["index"], np.ones(detail["shape"], detail["dtype"]))
            runner.invoke()
            ends["ran"] += 1
        except (ValueError, RuntimeError):
            ends["failed"] += 1
    return ends


def test_broken_models_never_crash() -> None:
    ends = in_child("test_delegates_hostile:attack", range(600), hear=lambda _: None, timeout=60)
    assert sum(ends.values()) == 600
    # It is no test if next to nothing gets through.
    assert ends["refused"] > 50
    assert ends["ran"] > 50
