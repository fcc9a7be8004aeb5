"""Constants as a file stores them: dense in their own type, or float16 behind a DEQUANTIZE to float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from litefuse.graph import Graph
from litefuse.graph.graph import Array
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator, QuantizationParameters


class Stored(NamedTuple):
    """A constant operand."""

    tensor: int
    """The constant itself."""
    value: Array
    widening: Operator | None = None
    """The DEQUANTIZE between the constant and its use, if it is float16."""

    @property
    def is_half(self) -> bool:
        """Whether the value is kept as float16 and used as float32."""
        return self.widening is not None


def stored(graph: Graph, tensor: int) -> Stored | None:
    """What is stored for a constant operand, or None when it is nothing of the kind."""
    value = graph.constant(tensor)
    if value is not None:
        return Stored(tensor, value)
    maker = graph.producer(tensor) if tensor >= 0 else None
    if maker is None or graph.kind(maker) is not Op.DEQUANTIZE:
        return None
    half = graph.constant(maker.inputs[0])
    if half is None or graph.type(maker.inputs[0]) != TensorType.FLOAT16:
        return None
    return Stored(maker.inputs[0], half, maker)


def store(
    graph: Graph,
    like: Stored,
    value: Array,
    before: Operator,
    quantization: QuantizationParameters | None = None,
) -> int:
    """Adds a constant, stored like another one, and returns the operand to use.

    Args:
        graph: the subgraph.
        like: the constant whose name and type the new one gets.
        value: of the same numpy type as that of ``like``.
        before: the operator before which a DEQUANTIZE is put where ``like`` has one.
        quantization: that of the new constant.
    """
    made = graph.add_constant(graph.name(like.tensor), value, type=graph.type(like.tensor), quantization=quantization)
    if like.widening is None:
        return made
    shape: Sequence[int] = value.shape
    out = graph.add_tensor(graph.name(like.widening.outputs[0]), shape, TensorType.FLOAT32)
    version = graph.version(like.widening)
    graph.add_operator(Op.DEQUANTIZE, [made], [out], before=before, version=version)
    return out
