"""Computes what an operator yields when all its inputs are constants.

By numpy where that gives the stock kernels' bits (see :mod:`litefuse.graph.infer.kernels`), else by running a model
of that single operator in the installed runtime, without its default delegate.
"""

from __future__ import annotations

import numpy as np

from litefuse.errors import RuntimeMissingError
from litefuse.graph.graph import NOT_PURE, Array, Graph
from litefuse.graph.infer.kernels import KERNELS
from litefuse.graph.infer.propagate import infer_operator
from litefuse.graph.infer.site import Facts, Site, TensorSpec, Unknown, product
from litefuse.graph.sparse import densify
from litefuse.runtime import interpreter, quiet
from litefuse.schema.model import Model, to_bytes
from litefuse.schema.operators import Op
from litefuse.schema.tables import Buffer, Operator, SubGraph, Tensor
from litefuse.schema.types import NUMPY, nbytes
from litefuse.schema.writer import as_bytes

DEFAULT_MAX_BYTES = 1 << 20


def evaluate(graph: Graph, op: Operator, max_bytes: int = DEFAULT_MAX_BYTES) -> list[Array] | None:
    """The values of an operator's outputs, each in its tensor's own type and shape.

    Float results are those of the plain kernels of the installed runtime, which may differ from a delegate's in the
    last bits.

    Args:
        graph: the subgraph.
        op: an operator of it.
        max_bytes: results that are larger than this and larger than all inputs together are not computed, so that
            folding does not inflate the file (FILL, TILE, BROADCAST_TO, ...).

    Returns:
        One array per output, or None when the value is not fixed (state, side effects, random numbers, inputs that
        are not dense constants), the runtime refuses, or the result would be too large.
    """
    if graph.kind(op) in NOT_PURE or graph.has_state(op) or _runs_subgraphs(op) or any(t < 0 for t in op.outputs):
        return None
    specs = infer_operator(graph, op)
    limit = max(max_bytes, sum(_stored(graph, t) for t in op.inputs if t >= 0))
    if specs is None or not _fits(specs, limit):
        return None
    found = _densified(graph, op) if graph.kind(op) is Op.DENSIFY else _computed(graph, op, specs)
    if found is None or sum(a.nbytes for a in found) > limit:
        return None
    return found if all(a.dtype == NUMPY.get(s.type) for a, s in zip(found, specs, strict=True)) else None


def _computed(graph: Graph, op: Operator, specs: list[TensorSpec]) -> list[Array] | None:
    facts = Facts(graph)
    operands: list[Array | None] = [
        facts.value(t) if t >= 0 and not _is_computed(graph, t) else None for t in op.inputs
    ]
    if any(t >= 0 and a is None for t, a in zip(op.inputs, operands, strict=True)):
        return None
    site = Site(facts, op)
    site.outputs = specs
    return by_numpy(site, operands) or by_runtime(graph, op, operands)


def by_numpy(site: Site, operands: list[Array | None]) -> list[Array] | None:
    """The results by numpy, or None when there is no kernel or it does not vouch for the bits."""
    kernel = KERNELS.get(site.kind)
    if kernel is None:
        return None
    try:
        found = kernel.run(site, operands)
        return found if found and [a.shape for a in found] == [site.out(i) for i in range(len(found))] else None
    except Unknown:
        return None


def by_runtime(graph: Graph, op: Operator, operands: list[Array | None]) -> list[Array] | None:
    """The results of running the operator alone in the installed runtime, or None when it refuses."""
    model = _single(graph, op, operands)
    if model is None:
        return None
    try:
        runner = interpreter(to_bytes(model), xnnpack=False)
        with quiet():
            runner.allocate_tensors()
            runner.invoke()
            # The runtime has no data to show for empty results.
            return [
                np.zeros(d["shape"], d["dtype"]) if 0 in d["shape"] else np.array(runner.get_tensor(d["index"]))
                for d in runner.get_output_details()
            ]
    except (ValueError, RuntimeError, RuntimeMissingError):
        return None


def _single(graph: Graph, op: Operator, operands: list[Array | None]) -> Model | None:
    """A model of one operator whose inputs are all constants."""
    code = graph.model.operator_codes[op.opcode_index]
    model = Model(version=3, operator_codes=[code], buffers=[Buffer()])
    tensors: list[Tensor] = []

    def copied(tensor: int, value: Array | None) -> int:
        source = graph.tensor(tensor)
        copy: Tensor = source.replace(buffer=0, external_buffer=0, variant_tensors=None)
        if value is not None:
            model.buffers.append(Buffer(data=as_bytes(value)))
            copy.buffer = len(model.buffers) - 1
        tensors.append(copy)
        return len(tensors) - 1

    if any(_has_details(graph, t) for t in (*op.inputs, *op.outputs)):
        return None  # refers to further tensors
    inputs = [-1 if t < 0 else copied(t, a) for t, a in zip(op.inputs, operands, strict=True)]
    outputs = [copied(t, None) for t in op.outputs]
    alone = op.replace(opcode_index=0, inputs=inputs, outputs=outputs, intermediates=None, debug_metadata_index=-1)
    model.subgraphs = [SubGraph(tensors=tensors, inputs=[], outputs=outputs, operators=[alone], name="main")]
    return model


def _has_details(graph: Graph, tensor: int) -> bool:
    q = graph.quantization(tensor) if tensor >= 0 else None
    return q is not None and q.details is not None


def _is_computed(graph: Graph, tensor: int) -> bool:
    """Whether a tensor's value comes from elsewhere: an operator, the caller, or an earlier run."""
    return graph.producer(tensor) is not None or tensor in graph.inputs or graph.tensor(tensor).is_variable


def _runs_subgraphs(op: Operator) -> bool:
    tables = (op.builtin_options, op.builtin_options_2)
    return any(f.name.endswith("subgraph_index") for table in tables if table is not None for f in table.fields)


def _stored(graph: Graph, tensor: int) -> int:
    """Bytes that a constant takes in the file."""
    table = graph.tensor(tensor)
    data = graph.model.buffers[table.buffer].data if 0 < table.buffer < len(graph.model.buffers) else None
    return 0 if data is None else as_bytes(data).nbytes


def _fits(specs: list[TensorSpec], limit: int) -> bool:
    """Whether results of these shapes stay within ``limit`` bytes, as far as can be told before computing them."""
    total = 0
    for spec in specs:
        count = 0 if spec.shape is None else max(product(spec.shape), 0)
        total += nbytes(spec.type, count) or 0
    return total <= limit


def _densified(graph: Graph, op: Operator) -> list[Array] | None:
    """The dense form of a sparse constant."""
    table = graph.tensor(op.inputs[0])
    dtype = NUMPY.get(table.type)
    if dtype is None or table.sparsity is None or not graph.is_constant(op.inputs[0]):
        return None
    data = as_bytes(graph.model.buffers[table.buffer].data)
    if data.nbytes % dtype.itemsize:
        return None
    dense = densify(np.frombuffer(data, dtype), table.shape or [], table.sparsity)
    return None if dense is None else [dense]
