"""The names of what litefuse makes, as viewers such as Netron show them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import litefuse
from litefuse.delegates.naming import KINDS
from litefuse.delegates.package import PREFIX, held
from litefuse.graph.build import Builder
from litefuse.schema import Model, deepcopy, read
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op, builtin_code
from litefuse.schema.tables import StableHLOCompositeOptions

MODELS = (
    "mp_face_short",
    "mp_hand_lite",
    "expo_mtcnn_pnet",
    "gles_style_transfer_f16",
    "mp_face_blendshapes",
    "litert_dynshapes",
    "lyra_lyragan",
)


def assert_named_well(original: Model, result: Model) -> None:
    """Every name is of the original or derived from one, and none was given twice."""
    of_original = {t.name for s in original.subgraphs for t in s.tensors if t.name}
    inner = {h.inside for h in held(result) if h.node is not None}
    for index, subgraph in enumerate(result.subgraphs):
        before = Counter(t.name for t in original.subgraphs[index].tensors) if index < len(original.subgraphs) else None
        names = Counter(t.name for t in subgraph.tensors)
        for name, count in names.items():
            if name not in of_original:
                assert count == 1, name
                assert name, "a tensor without a name"
                # It says what it belongs to, and what of it it is.
                assert any(name.startswith(known) for known in of_original), name
            elif before is not None:
                assert count <= before[name], name
            else:
                assert count <= max(Counter(t.name for t in s.tensors)[name] for s in original.subgraphs), name
        if index in inner:
            kind = (subgraph.name or "").removeprefix(PREFIX).rpartition(".")[0]
            assert kind in KINDS, subgraph.name


def names_of_regions(model: Model) -> list[str]:
    """What the nodes that stand for regions are called."""
    found = []
    for subgraph in model.subgraphs:
        for op in subgraph.operators:
            code = model.operator_codes[op.opcode_index]
            if builtin_code(code) == Op.CUSTOM:
                found.append(code.custom_code or "")
            elif isinstance(op.builtin_options_2, StableHLOCompositeOptions):
                found.append(op.builtin_options_2.name or "")
    return [name for name in found if name.startswith(PREFIX)]


@pytest.mark.parametrize("package", ["plan", "composite", "custom"])
@pytest.mark.parametrize("name", MODELS)
def test_real_models(name: str, package: str, corpus: list[Path], tmp_path: Path) -> None:
    path = next((p for p in corpus if p.stem == name), None)
    if path is None:
        pytest.skip(f"{name} is not in the corpus")
    done = litefuse.convert(path, tmp_path / "o.tflite", target="x86-64-v3", package=package, check=False)
    result = read(tmp_path / "o.tflite")
    assert_named_well(read(path), result)
    regions = done.regions.regions if done.regions is not None else []
    if package != "plan":
        assert Counter(names_of_regions(result)) == Counter(f"{PREFIX}{formed.region.kind}" for formed in regions)


def shared_weights(named: bool = True) -> Model:
    """Two convolutions that read the same weights, which are stored as float16."""
    b = Builder()
    shape = [1, 24, 24, 32]
    x = b.input("x", shape)
    half = b.constant("weights", np.random.default_rng(0).standard_normal((32, 3, 3, 32)).astype(np.float16))
    weights = b.op(Op.DEQUANTIZE, [half], shape=[32, 3, 3, 32], type=TensorType.FLOAT32, name="weights_dequantize")
    bias = b.constant("bias", np.zeros(32, np.float32))
    for i in range(2):
        x = b.op(Op.CONV_2D, [x, weights, bias], shape=shape, name=f"conv{i}", stride_h=1, stride_w=1)
        x = b.op(Op.LOGISTIC, [x], shape=shape, name=f"gate{i}")
        x = b.op(Op.SOFTMAX, [x], shape=shape, name=f"softmax{i}") if i == 0 else x
    model = b.model([x])
    if not named:
        for tensor in model.subgraphs[0].tensors:
            tensor.name = None
    return model


@pytest.mark.parametrize("package", ["plan", "custom"])
def test_what_two_regions_need_has_a_name_in_each(package: str) -> None:
    original = shared_weights()
    done = litefuse.convert(deepcopy(original), None, target="generic-arm64", package=package, check=False)
    assert done.regions is not None
    assert len(done.regions.regions) >= 2
    assert_named_well(original, done.model)
    widened = [t.name for s in done.model.subgraphs for t in s.tensors if (t.name or "").startswith("weights_deq")]
    assert len(widened) >= 2
    assert len(set(widened)) == len(widened)


def test_what_has_no_name_gets_none_by_copying() -> None:
    done = litefuse.convert(shared_weights(named=False), None, target="generic-arm64", package="custom", check=False)
    assert all(t.name is None for s in done.model.subgraphs for t in s.tensors)
