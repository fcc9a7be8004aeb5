"""What XNNPACK, the runtime's default delegate, takes over: enough of it to tell whether a spelling keeps it going.

After tflite/delegates/xnnpack/xnnpack_delegate.cc. Operators that it does not take run in the builtin kernels, and each
change between the two costs as much as a small operator.
"""

from __future__ import annotations

from litefuse.fusions.operands import input_of, option
from litefuse.graph import Graph, OperatorKind
from litefuse.schema.enums import BuiltinOperator, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

_NAMES = (
    "ABS ADD AVERAGE_POOL_2D BATCH_MATMUL CEIL CONCATENATION CONV_2D COS DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE "
    "DIV ELU EXP FLOOR FULLY_CONNECTED GELU HARD_SWISH LEAKY_RELU LOG LOGISTIC MAXIMUM MAX_POOL_2D MEAN MINIMUM MUL "
    "NEG PAD PRELU QUANTIZE REDUCE_MAX REDUCE_MIN RELU RELU6 RELU_N1_TO_1 RESHAPE RESIZE_BILINEAR ROUND RSQRT SIN "
    "SLICE SOFTMAX SPACE_TO_DEPTH SPLIT SQRT SQUARE SQUARED_DIFFERENCE STRIDED_SLICE SUB SUM TANH TRANSPOSE "
    "TRANSPOSE_CONV"
)
KINDS: frozenset[OperatorKind] = frozenset(BuiltinOperator[name] for name in _NAMES.split())
TYPES = frozenset({TensorType.FLOAT32, TensorType.INT8, TensorType.UINT8})
MOST_CONCATENATED = 5
MOST_SPLIT = 4


def takes(graph: Graph, op: Operator) -> bool:
    """Whether XNNPACK can be expected to take an operator; there are more conditions than are looked at here."""
    kind = graph.kind(op)
    if kind not in KINDS or not all(graph.type(t) in TYPES for t in op.outputs):
        return False
    if kind is Op.CONCATENATION:
        return 2 <= len(op.inputs) <= MOST_CONCATENATED
    if kind is Op.SPLIT:
        return 2 <= len(op.outputs) <= MOST_SPLIT
    if kind is Op.STRIDED_SLICE:
        strides = graph.constant(input_of(op, 3))
        masks = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
        return strides is not None and bool((strides == 1).all()) and not any(option(op, name) for name in masks)
    return True


def joins(graph: Graph, op: Operator) -> bool:
    """Whether XNNPACK has something on both sides of an operator of one input and one output, or the model ends there.

    Then it pays that XNNPACK takes the operator too. Between others it would only cost a change there and back.
    """
    x, out = op.inputs[0], op.outputs[0]
    maker = graph.producer(x)
    before = maker is not None and takes(graph, maker)
    after = [takes(graph, reader) for reader in graph.readers(out)]
    return (before or x in graph.inputs) and (any(after) or out in graph.outputs) and (before or any(after))
