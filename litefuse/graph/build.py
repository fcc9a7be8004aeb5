"""Builds small models by hand, for examples and tests.

::

    b = Builder()
    x = b.input("x", [1, 8, 8, 3])
    y = b.op(Op.CONV_2D, [x, b.constant("w", w), b.constant("bias", bias)], stride_w=2, stride_h=2)
    model = b.model([b.op(Op.RELU, [y])])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from litefuse.runtime import interpreter, quiet
from litefuse.schema.enums import TensorType
from litefuse.schema.model import Model, to_bytes
from litefuse.schema.operators import Op, builtin_code, in_second_union, operator_code, options_class
from litefuse.schema.tables import Buffer, Operator, QuantizationParameters, SignatureDef, SubGraph, Tensor, TensorMap
from litefuse.schema.types import tensor_type
from litefuse.schema.writer import as_bytes

# Options that are wrong when left at the schema's default of 0.
_USUAL: dict[str, Any] = {
    "stride_w": 1,
    "stride_h": 1,
    "stride_d": 1,
    "filter_width": 1,
    "filter_height": 1,
    "depth_multiplier": 1,
    "beta": 1.0,
}


def quantized(scale: float | Sequence[float], zero_point: int | Sequence[int] = 0, axis: int = 0) -> Any:
    """Quantisation parameters, per tensor for a number and per slice of ``axis`` for a sequence."""
    scales = np.atleast_1d(np.asarray(scale, np.float32))
    points = np.broadcast_to(np.asarray(zero_point, np.int64), scales.shape).copy()
    return QuantizationParameters(scale=scales, zero_point=points, quantized_dimension=axis)


class Builder:
    """Collects tensors and operators of a single-subgraph model."""

    def __init__(self) -> None:
        self._subgraph = SubGraph(name="main")
        self._model = Model(version=3, subgraphs=[self._subgraph], buffers=[Buffer()])
        self._model.description = "litefuse"

    def _tensor(self, **fields: Any) -> int:
        self._subgraph.tensors.append(Tensor(has_rank=True, **fields))
        return len(self._subgraph.tensors) - 1

    def input(
        self,
        name: str,
        shape: Sequence[int],
        type: TensorType = TensorType.FLOAT32,
        quantization: QuantizationParameters | None = None,
    ) -> int:
        """A model input; dimensions of -1 are dynamic. Returns its tensor index."""
        signature = list(shape) if any(d < 0 for d in shape) else None
        fixed = [1 if d < 0 else d for d in shape]
        tensor = self._tensor(name=name, shape=fixed, shape_signature=signature, type=type, quantization=quantization)
        self._subgraph.inputs.append(tensor)
        return tensor

    def constant(
        self,
        name: str,
        value: Any,
        quantization: QuantizationParameters | None = None,
        type: TensorType | None = None,
    ) -> int:
        """A constant with its own buffer; Python floats become float32, Python ints int32. Returns its index."""
        array = np.asarray(value)
        if not isinstance(value, (np.ndarray, np.generic)):
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
        self._model.buffers.append(Buffer(data=as_bytes(array)))
        return self._tensor(
            name=name,
            shape=list(array.shape),
            type=tensor_type(array.dtype) if type is None else type,
            buffer=len(self._model.buffers) - 1,
            quantization=quantization,
        )

    def op(
        self,
        kind: Op,
        inputs: Sequence[int],
        *,
        name: str = "",
        shape: Sequence[int] | None = None,
        type: TensorType | None = None,
        quantization: QuantizationParameters | None = None,
        outputs: int = 1,
        version: int = 1,
        **options: Any,
    ) -> int:
        """Appends an operator and returns its first output (the others follow it).

        Dimensions of -1 are dynamic. Without ``shape``, the runtime finds it when the model is finished. Type and
        quantisation default to those of the first input. ``options`` are fields of the kind's options table.
        """
        first = self._subgraph.tensors[inputs[0]] if inputs else Tensor()
        made = [
            self._tensor(
                name=(name or f"{kind.name.lower()}_{len(self._subgraph.operators)}") + (f":{i}" if i else ""),
                shape=None if shape is None else [1 if d < 0 else int(d) for d in shape],
                shape_signature=list(shape) if shape is not None and any(d < 0 for d in shape) else None,
                type=first.type if type is None else type,
                quantization=first.quantization if quantization is None and type is None else quantization,
            )
            for i in range(outputs)
        ]
        op = Operator(inputs=list(inputs), outputs=made, opcode_index=self._code(kind, version))
        cls = options_class(kind)
        if cls is not None:
            usual = {f.name: _USUAL[f.name] for f in cls.fields if f.name in _USUAL}
            usual.update({f.name: 1 for f in cls.fields if f.name.startswith("dilation_")})
            table = cls(**(usual | options))
            setattr(op, "builtin_options_2" if in_second_union(table) else "builtin_options", table)
        self._subgraph.operators.append(op)
        return made[0]

    def _code(self, kind: Op, version: int) -> int:
        codes = self._model.operator_codes
        for i, code in enumerate(codes):
            if builtin_code(code) == kind and code.version == version:
                return i
        codes.append(operator_code(kind, version))
        return len(codes) - 1

    def model(self, outputs: Sequence[int], signature: str | None = None) -> Model:
        """Finishes the model; with ``signature``, names its inputs and outputs by their tensors' names.

        Raises ValueError or RuntimeError when a shape had to be found and the runtime refuses the model.
        """
        subgraph = self._subgraph
        subgraph.outputs = list(outputs)
        if signature is not None:

            def maps(tensors: Sequence[int]) -> list[TensorMap]:
                return [TensorMap(name=subgraph.tensors[t].name, tensor_index=t) for t in tensors]

            self._model.signature_defs = [
                SignatureDef(signature_key=signature, inputs=maps(subgraph.inputs), outputs=maps(outputs))
            ]
        if any(t.shape is None for t in subgraph.tensors):
            self._find_shapes()
        return self._model

    def _find_shapes(self) -> None:
        tensors = self._subgraph.tensors
        unknown = [i for i, t in enumerate(tensors) if t.shape is None]
        for i in unknown:
            tensors[i].shape = []
        runner = interpreter(to_bytes(self._model), xnnpack=False, keep_all=True)
        with quiet():
            runner.allocate_tensors()
        details = {d["index"]: d for d in runner.get_tensor_details()}
        dynamic = any(t.shape_signature for t in tensors)
        for i in unknown:
            tensors[i].shape = [int(d) for d in details[i]["shape"]]
            if dynamic and tensors[i].shape:
                # Batch is the only dimension that the builder's users leave open.
                tensors[i].shape_signature = [-1, *tensors[i].shape[1:]]  # type: ignore[index]
