"""What TFLite's kernels demand of an operator's inputs and quantisation parameters.

Read from the Prepare functions in `tflite/kernels/` and from `kernel_util.cc`. A kernel knows parameters of a whole
tensor only; for tensors with a scale for each channel it sees scale 0 and zero point 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litefuse.schema.declare import Table
from litefuse.schema.enums import BuiltinOperator, TensorType
from litefuse.schema.facts import Numbers, elements
from litefuse.schema.operators import Op
from litefuse.schema.tables import (
    BlockwiseQuantization,
    CustomQuantization,
    MultiAxisQuantization,
    Operator,
    Tensor,
)
from litefuse.schema.types import NUMPY, RANGES


def _named(names: str) -> frozenset[Op]:
    return frozenset(BuiltinOperator[name] for name in names.split())


# The least number of inputs where it is not 1.
_INPUTS: dict[Op, int] = {
    **dict.fromkeys(_named("VAR_HANDLE HASHTABLE CALL_ONCE CALL CUSTOM DELEGATE WHILE"), 0),
    **dict.fromkeys(_named("STABLEHLO_CUSTOM_CALL STABLEHLO_IOTA STABLEHLO_WHILE"), 0),
    **dict.fromkeys(
        _named(
            "ADD SUB MUL DIV MAXIMUM MINIMUM POW FLOOR_DIV FLOOR_MOD SQUARED_DIFFERENCE ATAN2 LESS LESS_EQUAL GREATER "
            "GREATER_EQUAL EQUAL NOT_EQUAL LOGICAL_AND LOGICAL_OR BITWISE_XOR RIGHT_SHIFT PRELU CONV_2D "
            "DEPTHWISE_CONV_2D CONV_3D FULLY_CONNECTED BATCH_MATMUL ARG_MAX ARG_MIN ASSIGN_VARIABLE BROADCAST_ARGS "
            "BROADCAST_TO CUMSUM EMBEDDING_LOOKUP EXPAND_DIMS FILL GATHER GATHER_ND LSH_PROJECTION MATRIX_SET_DIAG "
            "MULTINOMIAL PAD MIRROR_PAD MEAN SUM REDUCE_PROD REDUCE_MAX REDUCE_MIN REDUCE_ANY REDUCE_ALL "
            "RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR REVERSE_V2 REVERSE_SEQUENCE RFFT2D SEGMENT_SUM SPLIT TILE "
            "TOPK_V2 TRANSPOSE"
        ),
        2,
    ),
    **dict.fromkeys(
        _named(
            "BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND DYNAMIC_UPDATE_SLICE HASHTABLE_FIND HASHTABLE_IMPORT "
            "HASHTABLE_LOOKUP RANGE SCATTER_ND SELECT SELECT_V2 SLICE SPLIT_V TRANSPOSE_CONV CONV_3D_TRANSPOSE "
            "UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_MIN UNSORTED_SEGMENT_SUM"
        ),
        3,
    ),
    **dict.fromkeys(_named("ONE_HOT SPARSE_TO_DENSE STRIDED_SLICE"), 4),
    **dict.fromkeys(
        _named("SVDF RNN UNIDIRECTIONAL_SEQUENCE_RNN LSTM EMBEDDING_LOOKUP_SPARSE NON_MAX_SUPPRESSION_V4"), 5
    ),
    Op.NON_MAX_SUPPRESSION_V5: 6,
    Op.BIDIRECTIONAL_SEQUENCE_RNN: 12,
    Op.UNIDIRECTIONAL_SEQUENCE_LSTM: 20,
    Op.BIDIRECTIONAL_SEQUENCE_LSTM: 48,
}
# Operators that may have no output.
_NO_OUTPUT = _named(
    "ASSIGN_VARIABLE HASHTABLE_IMPORT CALL_ONCE CALL CUSTOM DELEGATE IF WHILE STABLEHLO_CUSTOM_CALL STABLEHLO_WHILE "
    "STABLEHLO_CASE STABLEHLO_COMPOSITE"
)

# The input that may be left out (-1); of the operators in _ANY_OPTIONAL, any may be.
_OPTIONAL: dict[Op, int] = {
    **dict.fromkeys(_named("CONV_2D DEPTHWISE_CONV_2D CONV_3D FULLY_CONNECTED PAD PADV2"), 2),
    **dict.fromkeys(_named("TRANSPOSE_CONV CONV_3D_TRANSPOSE SVDF"), 3),
}
_ANY_OPTIONAL = _NO_OUTPUT | _named(
    "LSTM UNIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_LSTM UNIDIRECTIONAL_SEQUENCE_RNN "
    "BIDIRECTIONAL_SEQUENCE_RNN NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5"
)

# The axis of a filter's output channels.
_OUTPUT_CHANNELS: dict[Op, int] = {
    Op.CONV_2D: 0,
    Op.DEPTHWISE_CONV_2D: 3,
    Op.FULLY_CONNECTED: 0,
    Op.TRANSPOSE_CONV: 0,
}

_QUANTIZED = frozenset({TensorType.INT8, TensorType.UINT8, TensorType.INT16})

# Kernels that copy values and insist that input and output have the same parameters: for which types.
_SAME: dict[Op, frozenset[TensorType]] = {
    Op.CONCATENATION: frozenset({TensorType.INT8}),
    Op.PACK: _QUANTIZED,
    Op.UNPACK: _QUANTIZED,
    Op.EXPAND_DIMS: _QUANTIZED,
    Op.FILL: _QUANTIZED,
    Op.MIRROR_PAD: _QUANTIZED,
    Op.BATCH_TO_SPACE_ND: _QUANTIZED,
    Op.SPACE_TO_BATCH_ND: _QUANTIZED,
    Op.REDUCE_MAX: _QUANTIZED,
    Op.REDUCE_MIN: _QUANTIZED,
}
# Kernels that copy values without looking at the parameters, so that other ones silently change what they mean.
_COPIES = _named(
    "MAX_POOL_2D AVERAGE_POOL_2D RESHAPE SQUEEZE TRANSPOSE SLICE STRIDED_SLICE SPLIT SPLIT_V GATHER GATHER_ND TILE "
    "REVERSE_V2 REVERSE_SEQUENCE SPACE_TO_DEPTH DEPTH_TO_SPACE BROADCAST_TO PAD PADV2 RESIZE_NEAREST_NEIGHBOR "
    "RESIZE_BILINEAR"
)
# Which inputs hold the values that are copied, where it is not the first alone.
_COPIED: dict[Op, slice] = {
    Op.CONCATENATION: slice(None),
    Op.PACK: slice(None),
    Op.FILL: slice(1, 2),
    Op.SPLIT: slice(1, 2),
}

# Kernels that insist on a zero point of 0 for 16-bit values.
_ZERO_16 = _named(
    "ADD SUB CONCATENATION CONV_2D DEPTHWISE_CONV_2D TRANSPOSE_CONV FULLY_CONNECTED BATCH_MATMUL MEAN SUM REDUCE_PROD "
    "REDUCE_MAX REDUCE_MIN RELU RELU6 RELU_N1_TO_1 LEAKY_RELU TANH LOGISTIC SOFTMAX EXP ABS RSQRT EXPAND_DIMS FILL "
    "MIRROR_PAD BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND DEQUANTIZE"
)

# The output parameters that a kernel insists on: scale, its relative tolerance, zero point (None: any).
_FIXED: dict[tuple[Op, TensorType], tuple[float, float, int | None]] = {
    (Op.LOGISTIC, TensorType.UINT8): (1 / 256, 0, None),
    (Op.LOGISTIC, TensorType.INT8): (1 / 256, 0, None),
    (Op.LOGISTIC, TensorType.INT16): (1 / 32768, 0, 0),
    (Op.TANH, TensorType.INT16): (1 / 32768, 1e-3, 0),
    (Op.SOFTMAX, TensorType.INT8): (1 / 256, 1e-3, -128),
    (Op.SOFTMAX, TensorType.INT16): (1 / 32768, 1e-3, 0),
    (Op.LOG_SOFTMAX, TensorType.UINT8): (16 / 256, 0, 255),
    (Op.LOG_SOFTMAX, TensorType.INT8): (16 / 256, 0, 127),
    (Op.L2_NORMALIZATION, TensorType.UINT8): (1 / 128, 0, 128),
    (Op.L2_NORMALIZATION, TensorType.INT8): (1 / 128, 0, 0),
}


def least_counts(kind: Op) -> tuple[int, int]:
    """The least number of inputs and of outputs of an operator."""
    return _INPUTS.get(kind, 1), 0 if kind in _NO_OUTPUT else 1


def may_be_left_out(kind: Op, i: int) -> bool:
    """Whether an operator can do without its input number ``i``."""
    return kind in _ANY_OPTIONAL or _OPTIONAL.get(kind) == i


class Demands:
    """Checks the quantisation parameters of the operators of one subgraph.

    Args:
        tensors: the subgraph's tensors.
        data: the bytes of the model's buffers.
        numbers: what looks at arrays.
        report: takes what is wrong: severity, message, tensor.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        data: Sequence[memoryview | None],
        numbers: Numbers,
        report: Callable[[str, str, int], None],
    ) -> None:
        self._tensors = tensors
        self._data = data
        self._numbers = numbers
        self._report = report

    def check(self, kind: Op, op: Operator) -> None:
        """Reports what the kernel of an operator, whose indices are sound, would refuse or get wrong."""
        if not op.outputs or not op.inputs:
            return
        type = self._tensors[op.outputs[0]].type
        types = {type, *(self._tensors[i].type for i in op.inputs if i >= 0)}
        if not types & _QUANTIZED:
            return
        if TensorType.INT16 in types and kind in _ZERO_16:
            for tensor in (*op.inputs, *op.outputs):
                if tensor >= 0 and self._tensors[tensor].type == TensorType.INT16 and self._parameters(tensor)[1]:
                    self._report("error", f"{kind.name} wants a zero point of 0 for 16-bit values", tensor)
        if type not in _QUANTIZED:
            return
        if type in _SAME.get(kind, ()):
            self._same_parameters(kind, op, op.inputs[_COPIED.get(kind, slice(0, 1))], "error")
        elif kind in _COPIES:
            self._same_parameters(kind, op, op.inputs[_COPIED.get(kind, slice(0, 1))], "warning")
            if kind == Op.PADV2:
                self._same_parameters(kind, op, op.inputs[2:3], "error")
        fixed = _FIXED.get((kind, type))
        if fixed is not None and self._tensors[op.inputs[0]].type == type:
            wanted, tolerance, wanted_zero = fixed
            scale, zero = self._parameters(op.outputs[0])
            if abs(scale - wanted) > tolerance * wanted or wanted_zero not in (None, zero):
                also = "" if wanted_zero is None else f" and zero point {wanted_zero}"
                self._report("error", f"{kind.name} wants an output of scale {wanted:g}{also}", op.outputs[0])
        if kind in _OUTPUT_CHANNELS:
            self._filter(kind, op)

    def _parameters(self, tensor: int) -> tuple[float, int]:
        """Scale and zero point of a tensor quantised as a whole; 0 and 0 for others, as the runtime has it."""
        q = self._tensors[tensor].quantization
        if q is None or q.scale is None or q.zero_point is None or len(q.scale) != 1 or not len(q.zero_point):
            return 0.0, 0
        if isinstance(q.details, Table) and not isinstance(q.details, CustomQuantization):
            return 0.0, 0
        return float(q.scale[0]), int(q.zero_point[0])

    def _same_parameters(self, kind: Op, op: Operator, inputs: list[int], severity: str) -> None:
        outputs = op.outputs if kind in (Op.UNPACK, Op.SPLIT, Op.SPLIT_V) else op.outputs[:1]
        wanted = self._parameters(outputs[0])
        for tensor in (*inputs, *outputs[1:]):
            if tensor >= 0 and self._tensors[tensor].type == self._tensors[outputs[0]].type:
                has = self._parameters(tensor)
                if has != wanted:
                    what = f"{has[0]:g} (zero point {has[1]}) against {wanted[0]:g} ({wanted[1]})"
                    message = f"{kind.name} copies values as they are, but the scales differ: {what}"
                    self._report(severity, message, tensor)

    def _filter(self, kind: Op, op: Operator) -> None:
        """Checks the filter and the bias of a convolution or matrix product of quantised values."""
        first, second, third = (2, 1, 3) if kind == Op.TRANSPOSE_CONV else (0, 1, 2)
        data, weights = op.inputs[first], op.inputs[second]
        bias = op.inputs[third] if len(op.inputs) > third else -1
        type = self._tensors[data].type
        if type not in _QUANTIZED or self._tensors[weights].type not in RANGES:
            return
        axis = _OUTPUT_CHANNELS[kind]
        shape = self._tensors[weights].shape or []
        q = self._tensors[weights].quantization
        if q is not None and isinstance(q.details, (BlockwiseQuantization, MultiAxisQuantization)):
            return
        if q is None or q.scale is None or not len(q.scale) or q.zero_point is None:
            self._report("error", "its weights are integers without scales", weights)
            return
        channels = shape[axis] if len(shape) > axis else None
        scales = q.scale
        if len(scales) > 1:
            if type == TensorType.UINT8:
                self._report("error", "unsigned values cannot have weights with a scale for each channel", weights)
            if q.quantized_dimension != axis:
                message = f"its weights have scales along dimension {q.quantized_dimension}; {kind.name} wants {axis}"
                self._report("error" if kind == Op.FULLY_CONNECTED else "warning", message, weights)
        if type != TensorType.UINT8 and len(q.zero_point):
            span = self._numbers.range(q.zero_point)
            if span is not None and (span.low, span.high) != (0, 0):
                severity = "error" if kind == Op.CONV_2D else "warning"
                self._report(severity, "its weights are signed but have a zero point other than 0", weights)
        if bias >= 0:
            self._bias(kind, op, type, scales, channels, bias)

    def _bias(
        self, kind: Op, op: Operator, type: TensorType, scales: NDArray[Any], channels: int | None, bias: int
    ) -> None:
        tensor = self._tensors[bias]
        count = elements(tensor.shape or [])
        if channels is not None and count is not None and count != channels:
            self._report("error", f"its bias has {count} elements for {channels} channels", bias)
            return
        if kind != Op.FULLY_CONNECTED and self._parameters(bias)[1]:
            self._report("error", "the zero point of its bias is not 0", bias)
        data = op.inputs[2 if kind == Op.TRANSPOSE_CONV else 0]
        in_scale, out_scale = self._parameters(data)[0], self._parameters(op.outputs[0])[0]
        if len(scales) == 1 and (kind == Op.FULLY_CONNECTED or type == TensorType.UINT8):
            # The kernel computes with the product of the scales, and checks that this is about the bias's scale.
            product, has = in_scale * float(scales[0]), self._parameters(bias)[0]
            if not (out_scale and abs(product - has) / out_scale <= 0.02):
                self._report("error", f"its bias has scale {has:g}; scales of input and weights make {product:g}", bias)
            return
        # Elsewhere the kernel only assumes it. What is wrong is then the bias, by so many steps of the output.
        q, values = tensor.quantization, self._bias_values(tensor)
        if q is None or q.scale is None or len(q.scale) not in (1, len(scales)) or not out_scale or values is None:
            return
        if len(scales) not in (1, len(values)) or not self._numbers.spend(8 * len(values)):
            return
        products = in_scale * scales.astype(np.float64)
        off = np.abs(values * (q.scale - products))
        if not off.max() > out_scale:
            return
        steps = off / out_scale
        i = int(np.argmax(steps))
        has, product = q.scale[min(i, len(q.scale) - 1)], products[min(i, len(products) - 1)]
        message = f"its bias has scale {has:g} in channel {i}; scales of input and weights make {product:g}"
        self._report("warning", f"{message}, which changes the output by {steps[i]:.3g} steps", bias)

    def _bias_values(self, tensor: Tensor) -> NDArray[Any] | None:
        """The integers of a constant bias."""
        dtype = NUMPY.get(tensor.type)
        data = self._data[tensor.buffer] if 0 < tensor.buffer < len(self._data) else None
        if not data or dtype is None or dtype.kind != "i" or len(data) % dtype.itemsize:
            return None
        return np.frombuffer(data, dtype)
