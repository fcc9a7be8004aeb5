"""Regions whose weights are sparse constants behind DENSIFY."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delegate import assert_near, outputs_of, refusal, start

from litefuse.convert import convert
from litefuse.delegates.cost import Eager
from litefuse.delegates.formation import form
from litefuse.delegates.kinds import fed_by_constants, supported
from litefuse.delegates.network import Network
from litefuse.delegates.package import unfuse
from litefuse.delegates.runtime import load, report
from litefuse.delegates.targets import target
from litefuse.graph import Graph
from litefuse.graph.build import Builder
from litefuse.graph.sparse import densify
from litefuse.schema import Model, deepcopy, parse, to_bytes
from litefuse.schema.enums import DimensionType, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import DimensionMetadata, Int32Vector, QuantizationParameters, SparsityParameters
from litefuse.schema.validate import validate

TARGET = target("x86-64-v3")


def dense_level(size: int) -> DimensionMetadata:
    return DimensionMetadata(format=DimensionType.DENSE, dense_size=size)


def compressed(segments: Sequence[int], indices: Sequence[int]) -> DimensionMetadata:
    return DimensionMetadata(
        format=DimensionType.SPARSE_CSR,
        array_segments=Int32Vector(values=np.array(segments, np.int32)),
        array_indices=Int32Vector(values=np.array(indices, np.int32)),
    )


def rows(weights: Any) -> tuple[Any, SparsityParameters]:
    """Weights [out, 1, 1, in] with their rows compressed: values and description."""
    flat = weights.reshape(len(weights), -1)
    segments = np.concatenate([[0], np.cumsum(np.count_nonzero(flat, 1))]).tolist()
    out, columns = np.nonzero(flat)
    levels = [dense_level(len(flat)), dense_level(1), dense_level(1), compressed(segments, columns.tolist())]
    order = np.arange(4, dtype=np.int32)
    return flat[out, columns], SparsityParameters(traversal_order=order, dim_metadata=levels)


def blocks(weights: Any) -> tuple[Any, SparsityParameters]:
    """The same in blocks of 4 output channels, by input channels first."""
    out, _, _, inner = weights.shape
    tiles = weights.reshape(out // 4, 4, inner)
    kept = [np.flatnonzero(np.any(tiles[:, :, i], 1)) for i in range(inner)]
    segments = np.concatenate([[0], np.cumsum([len(k) for k in kept])]).tolist()
    levels = [
        dense_level(inner), dense_level(1), dense_level(1),
        compressed(segments, np.concatenate(kept).tolist()), dense_level(4),
    ]  # fmt: skip
    values = np.concatenate([tiles[k, :, i].reshape(-1) for i, k in enumerate(kept)])
    order, block_map = np.array([3, 1, 2, 0, 4], np.int32), np.array([0], np.int32)
    return values, SparsityParameters(traversal_order=order, block_map=block_map, dim_metadata=levels)


FORMS: dict[str, Any] = {"rows": rows, "blocks": blocks}


def weights(rng: Any, out: int, inner: int) -> Any:
    all_of_them = rng.standard_normal((out, 1, 1, inner)).astype(np.float16)
    all_of_them[rng.random(all_of_them.shape) < 0.7] = 0
    return all_of_them


def pruned(form_: str = "rows", dtype: Any = np.float16) -> Model:
    """x -> CONV -> LOGISTIC, MUL -> CONV, whose weights are sparse."""
    b = Builder()
    rng = np.random.default_rng(3)
    x = b.input("x", [1, 6, 5, 8])
    sparse: list[tuple[int, SparsityParameters, list[int]]] = []

    def conv(x: int, out: int, inner: int) -> int:
        full = weights(rng, out, inner).astype(dtype)
        values, sparsity = FORMS[form_](full)
        assert np.array_equal(densify(values, full.shape, sparsity), full)  # type: ignore[arg-type]
        stored = b.constant(f"stored{out}", values)
        sparse.append((stored, sparsity, list(full.shape)))
        type = TensorType.FLOAT16 if dtype == np.float16 else TensorType.FLOAT32
        w = b.op(Op.DENSIFY, [stored], name=f"dense{out}", shape=list(full.shape), type=type)
        if dtype == np.float16:
            w = b.op(Op.DEQUANTIZE, [w], name=f"wide{out}", shape=list(full.shape), type=TensorType.FLOAT32)
        bias = b.constant(f"bias{out}", rng.standard_normal(out).astype(np.float32))
        return b.op(Op.CONV_2D, [x, w, bias], name=f"conv{out}", shape=[1, 6, 5, out], stride_w=1, stride_h=1)

    y = conv(x, 16, 8)
    gate = b.op(Op.LOGISTIC, [y], name="gate", shape=[1, 6, 5, 16])
    y = conv(b.op(Op.MUL, [y, gate], name="swish", shape=[1, 6, 5, 16]), 4, 16)
    model = b.model([y])
    for tensor, sparsity, shape in sparse:
        table = model.subgraphs[0].tensors[tensor]
        table.shape, table.sparsity = shape, sparsity
    return model


def formed(model: Model, mode: str) -> tuple[Model, Any]:
    model = deepcopy(model)
    return model, form(model, TARGET, mode, cost_model=Eager(TARGET))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("form_", FORMS)
@pytest.mark.parametrize("mode", ["composite", "plan"])
def test_sparse_weights_are_in_regions(mode: str, form_: str, dtype: Any) -> None:
    model = pruned(form_, dtype)
    assert not [p for p in validate(model) if p.severity == "error"]
    want = outputs_of(start(model))
    made, formation = formed(model, mode)
    assert len(formation.regions) == 1
    made = parse(to_bytes(made))
    assert not [p for p in validate(made) if p.severity == "error"]
    for backend in ("reference", "cpu"):
        delegate = load(backend=backend)
        runner = start(made, delegates=[delegate])
        (region,) = report(delegate)["regions"]
        got = outputs_of(runner)
        if backend == "reference":
            np.testing.assert_array_equal(got[0], want[0])
        else:
            assert region["slow_operators"] == 0
            assert_near(want[0], got[0], "fast kernels")
        del runner
    # Without the delegate the file does the same.
    np.testing.assert_array_equal(outputs_of(start(made))[0], want[0])


def test_decompositions_keep_the_sparsity_and_the_buffers() -> None:
    model = pruned("blocks")
    made, _ = formed(model, "composite")
    inner = made.subgraphs[1]
    kept = [t for t in inner.tensors if t.sparsity is not None]
    given = [t for t in model.subgraphs[0].tensors if t.sparsity is not None]
    assert [t.name for t in kept] == [t.name for t in given]
    for a, b in zip(kept, given, strict=True):
        assert a.sparsity is not None
        assert b.sparsity is not None
        assert a.shape == b.shape
        assert np.array_equal(a.sparsity.traversal_order, b.sparsity.traversal_order)  # type: ignore[arg-type]
        assert np.array_equal(a.sparsity.block_map, b.sparsity.block_map)  # type: ignore[arg-type]
    want = outputs_of(start(model))
    assert unfuse(made) == 1
    np.testing.assert_array_equal(outputs_of(start(made))[0], want[0])


def test_densify_goes_with_its_readers() -> None:
    graph = Graph(pruned())
    network = Network(graph)
    for i, op in enumerate(network.ops):
        assert supported(graph, op) is None
        assert network.feeds[i] == fed_by_constants(graph, op) == (network.kinds[i] in (Op.DENSIFY, Op.DEQUANTIZE))
    names = [[graph.kind(op).name for op in network.feeders(i)] for i in range(len(network.ops))]
    assert [n for i, n in enumerate(names) if network.kinds[i] is Op.CONV_2D] == [["DENSIFY", "DEQUANTIZE"]] * 2


def test_int8_weights_have_the_scales_of_the_dense_tensor() -> None:
    full = np.random.default_rng(0).integers(-9, 9, (4, 1, 1, 8)).astype(np.int8)
    full[:, :, :, ::2] = 0
    values, sparsity = rows(full)
    b = Builder()
    scale = QuantizationParameters(scale=np.array([0.5], np.float32), zero_point=np.zeros(1, np.int64))
    channels = QuantizationParameters(
        scale=np.array([0.1, 0.2, 0.3, 0.4], np.float32), zero_point=np.zeros(4, np.int64), quantized_dimension=0
    )
    x = b.input("x", [1, 3, 3, 8], TensorType.INT8, scale)
    stored = b.constant("stored", values)
    w = b.op(Op.DENSIFY, [stored], name="w", shape=[4, 1, 1, 8], type=TensorType.INT8, quantization=channels)
    y = b.op(
        Op.CONV_2D, [x, w, b.constant("bias", np.array([1, 2, 3, 4], np.int32))], name="y", shape=[1, 3, 3, 4],
        type=TensorType.INT8, quantization=scale, stride_w=1, stride_h=1, version=3,
    )  # fmt: skip
    real = b.op(Op.DEQUANTIZE, [y], name="real", shape=[1, 3, 3, 4], type=TensorType.FLOAT32, version=2)
    model = b.model([real])
    table = model.subgraphs[0].tensors[stored]
    table.shape, table.sparsity = [4, 1, 1, 8], sparsity
    table.quantization = channels
    want = outputs_of(start(model))
    made, formation = formed(model, "plan")
    assert len(formation.regions) == 1
    for backend in ("reference", "cpu"):
        delegate = load(backend=backend)
        runner = start(made, delegates=[delegate])
        assert len(report(delegate)["regions"]) == 1
        np.testing.assert_array_equal(outputs_of(runner)[0], want[0])
        del runner


def _first(model: Model) -> tuple[Any, SparsityParameters]:
    table = next(t for t in model.subgraphs[0].tensors if t.sparsity is not None)
    assert table.sparsity is not None
    return table, table.sparsity


def _too_few(model: Model) -> None:
    table, _ = _first(model)
    model.buffers[table.buffer].data = bytes(4)


def _wrong_size(model: Model) -> None:
    _first(model)[1].dim_metadata[0].dense_size = 7  # type: ignore[index]


def _index_outside(model: Model) -> None:
    level = _first(model)[1].dim_metadata[3]  # type: ignore[index]
    level.array_indices.values[0] = 1000  # type: ignore[union-attr]


def _no_order(model: Model) -> None:
    _first(model)[1].traversal_order = None


def _dense(model: Model) -> None:
    table, _ = _first(model)
    table.sparsity = None
    model.buffers[table.buffer].data = bytes(16 * 8 * 2)


def _block_map(model: Model) -> None:
    _first(model)[1].block_map = np.array([9], np.int32)


BROKEN = {
    "too few values": (_too_few, "rows"),
    "has size 7 instead of": (_wrong_size, "rows"),
    "an index lies outside": (_index_outside, "rows"),
    "are missing": (_no_order, "rows"),
    "is no sparse constant": (_dense, "rows"),
    "block map": (_block_map, "blocks"),
}


@pytest.mark.parametrize("words", BROKEN)
def test_what_is_broken_stays_outside(words: str) -> None:
    change, form_ = BROKEN[words]
    model = pruned(form_)
    for table in model.subgraphs[0].tensors:
        if table.sparsity is not None and table.sparsity.dim_metadata is not None:
            for level in table.sparsity.dim_metadata:
                if isinstance(level.array_indices, Int32Vector):
                    assert level.array_indices.values is not None
                    level.array_indices.values = level.array_indices.values.copy()
    change(model)
    graph = Graph(model)
    densified = next(op for op in graph.operators() if graph.kind(op) is Op.DENSIFY)
    assert words in (supported(graph, densified) or "")
    conv = next(op for op in graph.operators() if graph.kind(op) is Op.CONV_2D)
    assert words in (supported(graph, conv) or "")


def test_only_densify_reads_sparse_constants() -> None:
    model = pruned("rows", np.float32)
    graph = Graph(model)
    conv = next(op for op in graph.operators() if graph.kind(op) is Op.CONV_2D)
    densified = graph.producer(conv.inputs[1])
    assert densified is not None
    conv.inputs[1] = densified.inputs[0]
    model.subgraphs[0].operators.remove(densified)
    graph = Graph(model)
    conv = next(op for op in graph.operators() if graph.kind(op) is Op.CONV_2D)
    assert "sparse, packed" in (supported(graph, conv) or "")
    assert "only DENSIFY reads" in refusal(model)


def test_pruned_pose_detector(corpus: list[Path]) -> None:
    """MediaPipe's detector of persons, whose pointwise convolutions are pruned."""
    path = next((p for p in corpus if p.name == "mp_pose_det.tflite"), None)
    if path is None:
        pytest.skip("the model is not there")
    plain = convert(path, check=False).model
    want = outputs_of(start(plain))
    made, formation = formed(plain, "composite")
    graph = Graph(plain)
    sparse = sum(graph.kind(op) is Op.DENSIFY for op in graph.operators())
    inside = sum(Graph(made, i).kind(op) is Op.DENSIFY for i, s in enumerate(made.subgraphs) if i for op in s.operators)
    assert sparse == inside > 0
    for backend in ("reference", "cpu"):
        delegate = load(backend=backend)
        runner = start(made, delegates=[delegate])
        told = report(delegate)
        assert len(told["regions"]) == len(formation.regions), told["refused"]
        for a, b in zip(want, outputs_of(runner), strict=True):
            if backend == "reference":
                np.testing.assert_array_equal(a, b)
            else:
                assert np.abs(a - b).max() <= 1e-4 * np.abs(a).max()
        del runner
