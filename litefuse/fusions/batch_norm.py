"""Folds multiplications and additions by per-channel constants, frozen BatchNorm above all, into weights and biases.

Backwards, into the operator that computes x, for weights W with output channel o::

    (W x + b) * s + c  =  (s_o W_o) x + (s_o b_o + c_o)

Forwards, into the operator that reads the result, with input channel i::

    W (x * s + c) + b  =  (W_i s_i) x + (b + sum_i W_i c_i)

where the sum over c needs every output element to see the whole kernel, so no zero padding. Between the two may stand
operators through which an affine map passes: views, transpositions, concatenation, pooling, resizing, and for positive
scales RELU. (BatchNorm folding: Jacob et al., arXiv:1712.05877, section 3.2; the rest is linearity.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from litefuse.fusions.affine import Affine, Vector, operand, read_affine, through_reshape
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph, OperatorKind
from litefuse.graph.pattern import NONE
from litefuse.schema.enums import ActivationFunctionType, Padding, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import (
    ConcatenationOptions,
    Conv2DOptions,
    Conv3DOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    Operator,
    ReducerOptions,
)

RELU = ActivationFunctionType.RELU
RELU6 = ActivationFunctionType.RELU6
RELU_N1_TO_1 = ActivationFunctionType.RELU_N1_TO_1

# Where each operator with weights keeps x, weights and bias among its inputs, and the axes of its weights that
# belong to output and input channels. DEPTHWISE_CONV_2D has its input channels inside the output channels.
_WEIGHTED: dict[OperatorKind, tuple[int, int, int, int, int]] = {
    Op.CONV_2D: (0, 1, 2, 0, 3),
    Op.DEPTHWISE_CONV_2D: (0, 1, 2, 3, 3),
    Op.FULLY_CONNECTED: (0, 1, 2, 0, 1),
    Op.TRANSPOSE_CONV: (2, 1, 3, 0, 3),
    Op.CONV_3D: (0, 1, 2, 4, 3),
    Op.CONV_3D_TRANSPOSE: (2, 1, 3, 3, 4),
}
_BIAS_VERSION = {Op.TRANSPOSE_CONV: 3}
_AFFINE_KINDS = frozenset({Op.MUL, Op.ADD, Op.SUB, Op.DIV})
_VIEWS = frozenset({Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS})
_RESIZES = frozenset({Op.RESIZE_BILINEAR, Op.RESIZE_NEAREST_NEIGHBOR})
_STANDALONE = {RELU: Op.RELU, RELU6: Op.RELU6, RELU_N1_TO_1: Op.RELU_N1_TO_1}

Plan = list[Callable[[], None]]


class _No(Exception):
    """The map cannot be absorbed. The reason is empty where nothing in sight could have absorbed it."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class _FoldRule(Rule):
    """What both directions share: reading the affine operator and turning a walk's end into an outcome."""

    numerics = Numerics.REASSOCIATED
    kinds = _AFFINE_KINDS

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Walks first, collecting changes; makes them only when the walk succeeded everywhere."""
        affine = read_affine(graph, op)
        if affine is None:
            return None
        try:
            if isinstance(affine, str):
                raise _No(affine)
            return self.fold(graph, op, affine)
        except _No as no:
            return Refused(no.reason) if no.reason else None

    def fold(self, graph: Graph, op: Operator, affine: Affine) -> Outcome:
        """Folds or raises _No."""
        raise _No


class FoldBackward(_FoldRule):
    """conv(x) * s + c = conv'(x), with s in the weights and c in the bias of the operator before.

    MUL, ADD, SUB and DIV by a constant that varies along one axis, into CONV_2D, DEPTHWISE_CONV_2D, FULLY_CONNECTED,
    TRANSPOSE_CONV, CONV_3D and CONV_3D_TRANSPOSE, also through RESHAPE, TRANSPOSE, CONCATENATION (each of its inputs
    takes its part), pooling, MEAN, resizing and BATCH_TO_SPACE_ND; through RELU, PRELU and MAX_POOL_2D for positive
    scales; a scale through PAD; through a residual ADD or SUB, whose both sides take the scale and one the addition; a
    scale into one side of MUL or DIV, one number into one of BATCH_MATMUL. A bias input appears where there was none.
    """

    name = "batch-norm-into-producer"
    example = """
        graph main(%x: f32[1,8,8,3]) {
          %a = CONV_2D(%x, w[16,3,3,3], b[16])
          %m = MUL(%a, scale[16])
          %y = ADD(%m, shift[16])
          return %y
        }
    """

    def fold(self, graph: Graph, op: Operator, affine: Affine) -> Outcome:
        """Folds upwards."""
        slots = operand(graph, op)
        assert slots is not None
        x = op.inputs[slots[0]]
        activation = graph.activation(op)
        if activation not in (NONE, *_STANDALONE):
            raise _No(f"{activation.name} follows in the same operator")
        for step in _Backward(graph).into(x, affine, op):
            step()
        if activation == NONE:
            graph.bypass(op, x)
        else:
            graph.replace(op, _STANDALONE[activation], [x])  # for the activation rules to fuse
        return Applied("")


class FoldForward(_FoldRule):
    """conv(x * s + c) = conv'(x), with s in the weights and W c in the bias of the operator behind.

    For operators without zero padding (VALID, or SAME where nothing is padded); a pure scale also with padding. All
    readers must be able to absorb the map, also through RESHAPE, TRANSPOSE, pooling and MEAN.
    """

    name = "batch-norm-into-consumer"
    example = """
        graph main(%x: f32[1,8,8,16]) {
          %m = MUL(%x, scale[16])
          %a = ADD(%m, shift[16])
          %y = CONV_2D(%a, w[16,3,3,16], b[16]) {padding=VALID}
          return %y
        }
    """

    def fold(self, graph: Graph, op: Operator, affine: Affine) -> Outcome:
        """Folds downwards."""
        if graph.activation(op) != NONE:
            raise _No
        slots = operand(graph, op)
        assert slots is not None
        x = op.inputs[slots[0]]
        for step in _Forward(graph).into_readers(op.outputs[0], affine):
            step()
        graph.bypass(op, x)
        return Applied("")


# -- reading and changing weights ----------------------------------------------------------------------------------


class _Weights:
    """The weights and bias of one operator, read for folding."""

    def __init__(self, graph: Graph, op: Operator) -> None:
        self.graph, self.op = graph, op
        self.kind = graph.kind(op)
        self.x, self.weights_slot, self.bias_slot, self.out_axis, self.in_axis = _WEIGHTED[self.kind]
        self.tensor = op.inputs[self.weights_slot]
        self.here = graph.where(op)
        options = op.builtin_options
        if isinstance(options, FullyConnectedOptions) and options.weights_format != 0:
            raise _No(f"the weights of {self.here} are in a shuffled format")
        shape = graph.tensors[self.tensor].shape
        if not shape or len(shape) <= max(self.out_axis, self.in_axis):
            raise _No(f"the weights of {self.here} have an unexpected shape")
        self.shape = tuple(shape)
        self.outputs = self.shape[self.out_axis]

    def values(self) -> Vector:
        """The weights in float64; raises _No when they are not dense float32 constants."""
        value = self.graph.constant(self.tensor)
        if value is None or value.dtype != np.float32:
            raise _No(self._why_not_float())
        return np.asarray(value, np.float64)

    def _why_not_float(self) -> str:
        graph, maker = self.graph, self.graph.producer(self.tensor)
        source = maker.inputs[0] if maker is not None and maker.inputs else self.tensor
        if maker is not None and graph.kind(maker) is Op.DEQUANTIZE and graph.type(source) == TensorType.FLOAT16:
            return f"the weights of {self.here} are float16 and would be rounded again; --widen-fp16 makes them float32"
        if maker is not None and graph.kind(maker) is Op.DENSIFY:
            return f"the weights of {self.here} are sparse"
        if graph.constant(self.tensor) is None:
            return f"the weights of {self.here} are not constant"
        return f"the weights of {self.here} are {graph.type(self.tensor).name}"

    def bias(self) -> Vector:
        """The bias in float64, zeros when there is none; raises _No when it is not constant."""
        inputs = self.op.inputs
        tensor = inputs[self.bias_slot] if len(inputs) > self.bias_slot else -1
        if tensor < 0:
            return np.zeros(self.outputs)
        value = self.graph.constant(tensor)
        maker = self.graph.producer(tensor)
        if value is None and maker is not None and self.graph.kind(maker) is Op.DEQUANTIZE:
            half = self.graph.constant(maker.inputs[0])
            value = half if half is not None and half.dtype == np.float16 else None
        if value is None or value.dtype not in (np.float32, np.float16) or value.size not in (1, self.outputs):
            raise _No(f"the bias of {self.here} is not a float constant")
        return np.array(np.broadcast_to(value.reshape(-1), self.outputs), np.float64)

    def set_weights(self, value: Vector) -> Plan:
        """Plans new weights. Raises _No when they overflow float32."""
        rounded = self._round(value, "weights")

        def change() -> None:
            name = self.graph.name(self.tensor)
            self.graph.set_input(self.op, self.weights_slot, self.graph.add_constant(name, rounded))

        return [change]

    def set_scales(self, scale: Vector) -> Plan:
        """Plans another quantisation of int8 weights of a float (hybrid) operator: their integers stay."""
        graph = self.graph
        old = graph.tensors[self.tensor]
        q = old.quantization
        per_channel = q is not None and q.scale is not None and len(q.scale) == self.outputs > 1
        if q is None or q.scale is None or q.details is not None or np.any(scale <= 0.0):
            raise _No(self._why_not_float())
        if per_channel and q.quantized_dimension != self.out_axis:
            raise _No(self._why_not_float())
        if not per_channel and (len(q.scale) != 1 or np.any(scale != scale[0])):
            raise _No(f"the weights of {self.here} have one scale for all channels, whose factors differ")
        new = q.scale.astype(np.float64) * (scale if per_channel else scale[:1])
        scales = self._round(new, "weight scales")
        if np.any(scales < np.finfo(np.float32).tiny):
            raise _No(f"the weight scales of {self.here} would underflow")

        def change() -> None:
            tensor = graph.add_tensor(graph.name(self.tensor), (), old.type, like=self.tensor)
            graph.tensors[tensor].buffer = old.buffer
            graph.tensors[tensor].quantization = q.replace(scale=scales)
            graph.set_input(self.op, self.weights_slot, tensor)

        return [change]

    def set_bias(self, value: Vector) -> Plan:
        """Plans a new bias. Raises _No when it overflows float32."""
        rounded = self._round(value, "bias")

        def change() -> None:
            inputs = self.op.inputs
            old = inputs[self.bias_slot] if len(inputs) > self.bias_slot else -1
            name = self.graph.name(old) if old >= 0 else self.graph.name(self.op.outputs[0]) + "/bias"
            self.graph.set_input(self.op, self.bias_slot, self.graph.add_constant(name, rounded))
            self.graph.set_version(self.op, _BIAS_VERSION.get(self.kind, 1))
            self.graph.prune([old])

        return [change]

    def _round(self, value: Vector, what: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        with np.errstate(over="ignore"):
            rounded = value.astype(np.float32)
        if not np.all(np.isfinite(rounded[np.isfinite(value)])):
            raise _No(f"the {what} of {self.here} would overflow float32")
        return rounded

    @property
    def is_hybrid(self) -> bool:
        """Whether int8 weights meet float activations."""
        return self.graph.type(self.tensor) == TensorType.INT8 and self.graph.is_constant(self.tensor)


# -- the two walks -------------------------------------------------------------------------------------------------


class _Backward:
    """Pushes an affine map up from the tensor that it is applied to."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def into(self, tensor: int, affine: Affine, reader: Operator) -> Plan:
        """The changes that make ``tensor`` come out with ``affine`` applied, ``reader`` being its only use."""
        graph = self.graph
        op = graph.producer(tensor)
        shape = graph.shape(tensor)
        if op is None or shape is None or len(op.outputs) != 1 or not graph.is_float(tensor):
            raise _No
        plan = self._through(op, tensor, shape, affine)
        shared = graph.why_shared(tensor, reader)
        if shared:
            raise _No(shared)
        return plan

    def _through(self, op: Operator, tensor: int, shape: tuple[int, ...], affine: Affine) -> Plan:
        graph = self.graph
        kind = graph.kind(op)
        activation = graph.activation(op)
        if activation == RELU:
            self._only_positive_scale(op, affine, "RELU")
        elif activation != NONE:
            if kind in _WEIGHTED:
                raise _No(f"{graph.where(op)} applies {activation.name} first")
            raise _No
        if kind in _WEIGHTED:
            return self._into_weights(op, len(shape), affine)
        source = op.inputs[0] if op.inputs else -1
        before = graph.shape(source) if source >= 0 else None
        if before is None:
            raise _No
        if kind in _VIEWS:
            mapped = through_reshape(affine, shape, before)
            if mapped is None:
                raise _No
            return self.into(source, mapped, op)
        if kind is Op.TRANSPOSE:
            return self.into(source, _through_transpose(graph, op, affine, backwards=True), op)
        if kind is Op.CONCATENATION:
            return self._through_concatenation(op, affine, len(shape))
        if kind is Op.BATCH_TO_SPACE_ND:
            if affine.axis is not None and affine.axis != len(shape) - 1:
                raise _No
            return self.into(source, affine, op)
        if kind in _RESIZES or kind in (Op.AVERAGE_POOL_2D, Op.MAX_POOL_2D):
            if affine.axis not in (None, 3):
                raise _No
            if kind is Op.MAX_POOL_2D and not affine.positive:
                raise _No(_needs(self._candidate(source, affine, op), f"{graph.where(op)} passes positive scales only"))
            return self.into(source, affine, op)
        if kind is Op.MEAN:
            return self.into(source, _through_mean(graph, op, affine, backwards=True), op)
        if kind in (Op.RELU, Op.PRELU, Op.LEAKY_RELU):
            self._only_positive_scale(op, affine, kind.name)
            return self.into(source, affine, op)
        if kind is Op.PAD:
            if affine.shifts:
                raise _No(_needs(self._candidate(source, affine, op), f"{graph.where(op)} pads with zeros in between"))
            return self.into(source, affine, op)
        if kind in _AFFINE_KINDS and operand(graph, op) is not None:
            return self._into_constants(op, shape, affine)
        if kind in _AFFINE_KINDS or kind is Op.BATCH_MATMUL:
            return self._through_both(op, shape, affine)
        raise _No

    def _candidate(self, tensor: int, affine: Affine, reader: Operator) -> bool:
        """Whether only what stands in between prevents folding."""
        try:
            self.into(tensor, affine, reader)
        except _No:
            return False
        return True

    def _only_positive_scale(self, op: Operator, affine: Affine, what: str) -> None:
        """relu(x) * s = relu(x * s) for s > 0; nothing of the kind holds for an addition."""
        if affine.shifts or not affine.positive:
            near = self.graph.kind(op) in _WEIGHTED
            why = "" if affine.shifts else ", and not all scales are positive"
            raise _No(f"{self.graph.where(op)} applies {what} first{why}" if near else "")

    def _into_weights(self, op: Operator, rank: int, affine: Affine) -> Plan:
        found = _Weights(self.graph, op)
        if affine.axis not in (None, rank - 1):
            raise _No(f"the constant varies along axis {affine.axis}, which is not the channel axis of {found.here}")
        if affine.axis is not None and len(affine.scale) != found.outputs:
            raise _No
        scale, shift = affine.vectors(found.outputs)
        plan: Plan = []
        if affine.scales:
            if found.is_hybrid:
                plan += found.set_scales(scale)
            else:
                frame = [1] * len(found.shape)
                frame[found.out_axis] = found.outputs
                plan += found.set_weights(found.values() * scale.reshape(frame))
        bias = found.bias()
        if affine.shifts or np.any(bias != 0.0):
            plan += found.set_bias(bias * scale + shift)
        return plan

    def _through_concatenation(self, op: Operator, affine: Affine, rank: int) -> Plan:
        options = op.builtin_options
        axis = options.axis % rank if isinstance(options, ConcatenationOptions) else 0
        plan: Plan = []
        start = 0
        if len(set(op.inputs)) != len(op.inputs):
            raise _No  # one tensor would have to take two maps
        for tensor in op.inputs:
            shape = self.graph.shape(tensor)
            if shape is None:
                raise _No
            part = affine
            if affine.axis == axis:
                part = affine.take(start, shape[axis])
                start += shape[axis]
            plan += self.into(tensor, part, op)
        return plan

    def _into_constants(self, op: Operator, shape: tuple[int, ...], affine: Affine) -> Plan:
        """Merges with the constant of a MUL or ADD before it."""
        graph = self.graph
        slots = operand(graph, op)
        assert slots is not None
        kind = graph.kind(op)
        merges = (kind is Op.MUL and not affine.shifts) or (kind is Op.ADD and not affine.scales)
        constant = graph.constant(op.inputs[slots[1]])
        if not merges or constant is None or graph.shape(op.inputs[slots[0]]) != shape or constant.ndim > len(shape):
            raise _No
        vector = affine.scale if kind is Op.MUL else affine.shift
        frame = [1] * len(shape)
        if affine.axis is not None:
            frame[affine.axis] = len(vector)
        spread = vector.reshape(frame)
        old = constant.astype(np.float64)
        if math.prod(np.broadcast_shapes(old.shape, spread.shape)) > max(old.size, spread.size):
            raise _No  # they vary along different axes: the product would be larger than both
        with np.errstate(over="ignore"):
            merged = (old * spread if kind is Op.MUL else old + spread).astype(np.float32)
        if not np.all(np.isfinite(merged)):
            raise _No

        def change() -> None:
            graph.set_input(op, slots[1], graph.add_constant(graph.name(op.inputs[slots[1]]), merged))

        return [change]

    def _through_both(self, op: Operator, shape: tuple[int, ...], affine: Affine) -> Plan:
        """Through an operator of two computed operands: (a + b) s + t = (a s + t) + b s, and (a b) s = (a s) b.

        The latter also for a product of matrices and a single s.
        """
        kind = self.graph.kind(op)
        a, b = op.inputs
        if a == b:
            raise _No  # it would have to take two maps
        zero, one = np.zeros_like(affine.shift), np.ones_like(affine.scale)
        scale, shift = Affine(affine.axis, affine.scale, zero), Affine(affine.axis, one, affine.shift)
        identity = Affine(affine.axis, one, zero)
        if kind in (Op.ADD, Op.SUB):
            back = Affine(affine.axis, one, -affine.shift) if kind is Op.SUB else shift
            other = Affine(affine.axis, affine.scale, back.shift)
            choices = [(affine, scale), (scale, other)] if affine.scales else [(shift, identity), (identity, back)]
        elif affine.shifts or (kind is Op.BATCH_MATMUL and affine.axis is not None):
            raise _No
        else:
            choices = [(scale, identity)] if kind is Op.DIV else [(scale, identity), (identity, scale)]
        reason = ""
        for choice in choices:
            try:
                plan: Plan = []
                for tensor, part in zip(op.inputs, choice, strict=True):
                    if part is identity:
                        continue
                    if kind is not Op.BATCH_MATMUL and self.graph.shape(tensor) != shape:
                        raise _No
                    plan += self.into(tensor, part, op)
                return plan
            except _No as no:
                reason = reason or no.reason
        raise _No(reason)


class _Forward:
    """Pushes an affine map down into the operators that read its result."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def into_readers(self, tensor: int, affine: Affine) -> Plan:
        """The changes that make every reader of ``tensor`` apply ``affine`` itself."""
        graph = self.graph
        shape = graph.shape(tensor)
        readers = graph.readers(tensor)
        if shape is None or not readers:
            raise _No
        plan: Plan = []
        failures = []
        for reader in dict.fromkeys(readers):
            try:
                plan += self._into(reader, tensor, shape, affine)
            except _No as no:
                failures.append((reader, no.reason))
        if failures:
            reader, reason = failures[0]
            if not reason and plan:
                reason = f"it is also read by {graph.where(reader)}, which cannot take it over"
            raise _No(reason)
        if tensor in graph.outputs:
            raise _No(f"tensor `{graph.name(tensor)}` is also an output of the model")
        return plan

    def _into(self, op: Operator, tensor: int, shape: tuple[int, ...], affine: Affine) -> Plan:
        graph = self.graph
        kind = graph.kind(op)
        if graph.is_kept(op):
            raise _No(f"{graph.where(op)} is kept as it is by request")
        if kind in _WEIGHTED:
            if op.inputs.count(tensor) != 1 or op.inputs[_WEIGHTED[kind][0]] != tensor:
                raise _No
            return self._into_weights(op, shape, affine)
        if not op.inputs or op.inputs[0] != tensor or op.inputs.count(tensor) != 1 or len(op.outputs) != 1:
            raise _No
        out = op.outputs[0]
        after = graph.shape(out)
        if after is None or graph.activation(op) != NONE:
            raise _No
        if kind in _VIEWS:
            mapped = through_reshape(affine, shape, after)
        elif kind is Op.TRANSPOSE:
            mapped = _through_transpose(graph, op, affine, backwards=False)
        elif kind is Op.MEAN:
            mapped = _through_mean(graph, op, affine, backwards=False)
        elif kind is Op.AVERAGE_POOL_2D or kind in _RESIZES or (kind is Op.MAX_POOL_2D and affine.positive):
            mapped = affine if affine.axis in (None, 3) else None
        elif kind in (Op.PAD, Op.SPACE_TO_BATCH_ND) and not affine.shifts:
            mapped = affine if kind is Op.PAD or affine.axis in (None, len(shape) - 1) else None
        else:
            raise _No
        if mapped is None:
            raise _No
        return self.into_readers(out, mapped)

    def _into_weights(self, op: Operator, shape: tuple[int, ...], affine: Affine) -> Plan:
        found = _Weights(self.graph, op)
        channels = self._channels(found, shape)
        if found.kind is Op.FULLY_CONNECTED and affine.axis is not None:
            # The kernel flattens trailing dimensions until they make up the columns of the weights.
            first = next((i for i in range(len(shape)) if math.prod(shape[i:]) == channels), None)
            if first is None or any(d < 0 for d in shape[first:]):
                raise _No
            flat = through_reshape(affine, shape, (*shape[:first], channels))
            if flat is None or flat.axis != first:
                raise _No
            affine = flat.on_axis(len(shape) - 1)
        if affine.axis not in (None, len(shape) - 1):
            raise _No(f"the constant varies along axis {affine.axis}, which is not the channel axis of {found.here}")
        scale, shift = affine.vectors(channels)
        if affine.shifts:
            self._check_padding(found, shape)
        weights = found.values()
        spread_scale, spread_shift = (self._spread(found, v, channels) for v in (scale, shift))
        plan: Plan = []
        if affine.scales:
            plan += found.set_weights(weights * spread_scale)
        if affine.shifts:
            rest = tuple(i for i in range(weights.ndim) if i != found.out_axis)
            plan += found.set_bias(found.bias() + (weights * spread_shift).sum(axis=rest))
        return plan

    @staticmethod
    def _channels(found: _Weights, shape: tuple[int, ...]) -> int:
        channels = found.shape[found.in_axis] if found.kind is Op.FULLY_CONNECTED else shape[-1]
        if channels <= 0:
            raise _No
        return channels

    @staticmethod
    def _spread(found: _Weights, vector: Vector, channels: int) -> Vector:
        """A vector over input channels in the shape of the weights."""
        frame = [1] * len(found.shape)
        per_weight = found.shape[found.in_axis]
        if found.kind is Op.DEPTHWISE_CONV_2D:
            if per_weight % channels:
                raise _No
            frame[found.in_axis] = per_weight
            return np.repeat(vector, per_weight // channels).reshape(frame)
        if per_weight == channels:
            frame[found.in_axis] = channels
            return vector.reshape(frame)
        # Grouped CONV_2D: output channel o sees the input channels of its group only.
        groups = channels // per_weight if per_weight and channels % per_weight == 0 else 0
        if found.kind is not Op.CONV_2D or groups == 0 or found.outputs % groups:
            raise _No
        frame[found.out_axis], frame[found.in_axis] = found.outputs, per_weight
        spread: Vector = np.repeat(vector.reshape(groups, per_weight), found.outputs // groups, axis=0).reshape(frame)
        return spread

    def _check_padding(self, found: _Weights, shape: tuple[int, ...]) -> None:
        """Raises _No unless every output element sees the whole kernel."""
        options = found.op.builtin_options
        if found.kind is Op.FULLY_CONNECTED:
            return
        refusal = f"{found.here} pads with zeros, to which the added constant must not reach"
        transposed = found.kind in (Op.TRANSPOSE_CONV, Op.CONV_3D_TRANSPOSE)
        if transposed or not isinstance(options, (Conv2DOptions, DepthwiseConv2DOptions, Conv3DOptions)):
            raise _No(f"the outputs of {found.here} see different parts of the kernel")
        if options.padding == Padding.VALID:
            return
        kernel = found.shape[:3] if isinstance(options, Conv3DOptions) else found.shape[1:3]
        names = ("d", "h", "w") if isinstance(options, Conv3DOptions) else ("h", "w")
        for size, name, length in zip(kernel, names, shape[1:-1], strict=True):
            stride = getattr(options, f"stride_{name}")
            reach = (size - 1) * getattr(options, f"dilation_{name}_factor") + 1
            if length < 0 and reach > 1:
                raise _No(refusal)
            if length >= 0 and (-(-length // stride) - 1) * stride + reach > length:
                raise _No(refusal)


# -- maps through operators, both ways -----------------------------------------------------------------------------


def _needs(candidate: bool, reason: str) -> str:
    return reason if candidate else ""


def _through_transpose(graph: Graph, op: Operator, affine: Affine, *, backwards: bool) -> Affine:
    order = graph.constant(op.inputs[1]) if len(op.inputs) > 1 else None
    if order is None:
        raise _No
    permutation = [int(p) % max(len(order), 1) for p in order]
    if affine.axis is None:
        return affine
    return affine.on_axis(permutation[affine.axis] if backwards else permutation.index(affine.axis))


def _through_mean(graph: Graph, op: Operator, affine: Affine, *, backwards: bool) -> Affine:
    """A mean keeps an affine map that does not vary along the axes it runs over."""
    shape = graph.shape(op.inputs[0])
    axes = graph.constant(op.inputs[1]) if len(op.inputs) > 1 else None
    options = op.builtin_options
    if shape is None or axes is None or not isinstance(options, ReducerOptions):
        raise _No
    reduced = {int(a) % max(len(shape), 1) for a in axes.reshape(-1)}
    if affine.axis is None:
        return affine
    kept = [i for i in range(len(shape)) if i not in reduced or options.keep_dims]
    if backwards:
        axis = kept[affine.axis]
        if axis in reduced:
            raise _No
        return affine.on_axis(axis)
    if affine.axis in reduced:
        raise _No
    return affine.on_axis(kept.index(affine.axis))


RULES: tuple[Rule, ...] = (FoldBackward(), FoldForward())
