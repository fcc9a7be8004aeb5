"""Matrix products with constants: one FULLY_CONNECTED each, with its bias inside and no RESHAPE around it.

    BATCH_MATMUL(x, W)                          = FULLY_CONNECTED(x, transpose(W))
    BATCH_MATMUL(x, W, adj_y)                   = FULLY_CONNECTED(x, W)
    reshape(FULLY_CONNECTED(reshape(x), W, b))  = FULLY_CONNECTED(x, W, b), rows being rows in whatever shape
    W2 (W1 x + b1) + b2                         = (W2 W1) x + (W2 b1 + b2)

An addition behind is folded into the bias by :mod:`litefuse.fusions.batch_norm` once the product is a FULLY_CONNECTED,
as is ConvNeXt's LayerScale, a multiplication behind FULLY_CONNECTED and RESHAPE.

Measured with ai-edge-litert 2.3.0 on x86, one thread, 1 to 196 rows: under XNNPACK FULLY_CONNECTED takes as long as
BATCH_MATMUL with a constant, with an addition folded 1.0 to 1.17 times less; with the builtin kernels it is 2.4 to 8.7
times as fast. XNNPACK copies at each RESHAPE, which is 1 to 10 % of such a product.

A constant on the left stays: W x = transpose(FULLY_CONNECTED(transpose(x), W)) ran at 0.7 to 1.1 times the speed under
XNNPACK, and even where a TRANSPOSE already follows at 0.9 to 1.5 times.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from litefuse.fusions.constant_folding import MAX_GROWTH
from litefuse.fusions.operands import RESHAPES, input_of, option
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.fusions.stored import Stored, store, stored
from litefuse.graph import Graph
from litefuse.graph.pattern import NONE
from litefuse.schema.enums import FullyConnectedOptionsWeightsFormat, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import FullyConnectedOptions, Operator

# The versions of FULLY_CONNECTED from which it knows keep_num_dims, and asymmetric_quantize_inputs.
_KEEPS_DIMENSIONS = 5
_ASYMMETRIC = 9

FLOAT, INT8, INT16 = TensorType.FLOAT32, TensorType.INT8, TensorType.INT16


class BatchMatMul(Rule):
    """x W = FULLY_CONNECTED(x, transpose(W)), for a constant matrix W of FLOAT32, or of INT8 beside FLOAT32 values.

    W may have leading dimensions of size one. float16 constants stay float16. The sums are the same, in another order.
    """

    name = "batch-matmul-to-fully-connected"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.BATCH_MATMUL})
    example = """
        graph main(%x: f32[1,16,8]) {
          %y = BATCH_MATMUL(%x, w[8,32])
          return %y
        }
    """
    types: ClassVar[frozenset[tuple[TensorType, TensorType]]] = frozenset({(FLOAT, FLOAT), (FLOAT, INT8)})

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Puts a FULLY_CONNECTED in the place of the product, and a RESHAPE behind it where W has more dimensions."""
        if len(op.inputs) != 2 or min(op.inputs) < 0:
            return None
        x, matrix = op.inputs
        weights = stored(graph, matrix)
        if weights is None or (graph.type(x), graph.type(matrix)) not in self.types:
            is_left = stored(graph, x) is not None and (graph.type(matrix), graph.type(x)) in self.types
            return (
                Refused("the constant is on the left, so that operands and result would be transposed")
                if is_left
                else None
            )
        before, after = graph.shape(x), graph.shape(op.outputs[0])
        reason = self._why_not(graph, op, weights)
        if reason or before is None or after is None:
            return Refused(reason) if reason else None
        if option(op, "adj_x"):
            return Refused("the operand is transposed, which FULLY_CONNECTED cannot do")
        rows, columns = weights.value.shape[-2:] if option(op, "adj_y") else weights.value.shape[:-3:-1]
        if before[-1] != columns or (len(after) > len(before) and after.count(-1) > 1):
            return None
        self._apply(graph, op, weights, rows)
        return Applied("")

    @staticmethod
    def _why_not(graph: Graph, op: Operator, weights: Stored) -> str | None:
        shape, matrix = weights.value.shape, op.inputs[1]
        if weights.value.ndim < 2 or math.prod(shape[:-2]) != 1:
            return f"the constant has shape {list(shape)}, which is more than one matrix"
        q = graph.quantization(matrix)
        if graph.type(matrix) == INT8:
            if q is None or q.scale is None or q.details is not None:
                return f"`{graph.name(matrix)}` has no scale"
            if len(q.scale) != 1:
                return (
                    f"`{graph.name(matrix)}` has a scale for each channel, which stock kernels of BATCH_MATMUL ignore"
                )
            if q.zero_point is not None and np.any(np.asarray(q.zero_point) != 0):
                return f"`{graph.name(matrix)}` has a zero point, which XNNPACK does not take"
        if option(op, "adj_y") or weights.value.nbytes <= MAX_GROWTH:
            return None
        likewise = (graph.kind(r) is Op.BATCH_MATMUL and not option(r, "adj_y") for r in graph.readers(matrix))
        if not all(likewise):
            return f"`{graph.name(matrix)}` is also used as it is, so that the file would hold it twice"
        return None

    @staticmethod
    def _apply(graph: Graph, op: Operator, weights: Stored, rows: int) -> None:
        x, matrix, out = *op.inputs, op.outputs[0]
        before, after = graph.shape(x), graph.shape(out)
        assert before is not None
        assert after is not None
        if not option(op, "adj_y") or weights.value.ndim > 2:
            value = weights.value.reshape(weights.value.shape[-2:])
            value = value if option(op, "adj_y") else np.ascontiguousarray(value.T)
            matrix = store(graph, weights, value, op, graph.tensor(weights.tensor).quantization)
        asymmetric = bool(option(op, "asymmetric_quantize_inputs"))
        version = _ASYMMETRIC if asymmetric else _KEEPS_DIMENSIONS
        options = FullyConnectedOptions(keep_num_dims=True, asymmetric_quantize_inputs=asymmetric)
        inputs = [x, matrix, -1]
        if len(after) <= len(before):
            graph.replace(op, Op.FULLY_CONNECTED, inputs, version=version, options=options)
            return
        shape = (*before[:-1], rows)
        quantization = graph.tensor(out).quantization
        product = graph.add_tensor(f"{graph.name(out)}/product", shape, graph.type(out), quantization=quantization)
        graph.add_operator(Op.FULLY_CONNECTED, inputs, [product], before=op, version=version, options=options)
        target = graph.add_constant(f"{graph.name(out)}/shape", np.array(after, np.int32))
        graph.replace(op, Op.RESHAPE, [product, target], new_shape=list(after))


class QuantizedBatchMatMul(BatchMatMul):
    """x W = FULLY_CONNECTED(x, transpose(W)), for INT8 or INT16 values and a constant W of INT8 with one scale.

    The sums of products are the same integers; the stock kernels round them to the output's scale in different ways.
    """

    name = "quantized-batch-matmul-to-fully-connected"
    numerics = Numerics.QUANTIZED
    example = """
        graph main(%x: i8[1,16,8]{scale=0.05}) {
          %y: i8[1,16,32]{scale=0.1} = BATCH_MATMUL(%x, w:i8[8,32]{scale=0.01})
          return %y
        }
    """
    types = frozenset({(INT8, INT8), (INT16, INT8)})


class ReshapesAround(Rule):
    """reshape(FULLY_CONNECTED(reshape(x))) = FULLY_CONNECTED(x) with keep_num_dims.

    The operator takes x as rows of as many elements as the weights have columns, so that it does not matter how its
    input is shaped when x itself ends in such rows; the result is shaped like x, but for the length of the rows. Other
    RESHAPEs of the result take it in that shape.
    """

    name = "reshapes-around-fully-connected"
    numerics = Numerics.EXACT
    kinds = RESHAPES
    example = """
        graph main(%x: f32[1,4,8]) {
          %a = RESHAPE(%x, i32[2]=(4, 8))
          %b = FULLY_CONNECTED(%a, w[16,8], b[16])
          %y = RESHAPE(%b, i32[3]=(1, 4, 16))
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Puts a FULLY_CONNECTED from x to the output of the RESHAPE behind in the place of the old one."""
        middle, after = input_of(op, 0), graph.shape(op.outputs[0])
        dense = graph.producer(middle)
        if dense is None or graph.kind(dense) is not Op.FULLY_CONNECTED or not after or graph.kind(op) not in RESHAPES:
            return None
        x = dense.inputs[0]
        while (maker := graph.producer(x)) is not None and graph.kind(maker) in RESHAPES:
            x = maker.inputs[0]
        before, weights = graph.shape(x), graph.static_shape(dense.inputs[1])
        options = dense.builtin_options
        if (
            not before
            or len(before) < 2
            or weights is None
            or len(weights) != 2
            or not isinstance(options, FullyConnectedOptions)
        ):
            return None
        if before.count(-1) > 1 or (*before[:-1], weights[0]) != after or before[-1] != weights[1]:
            return None
        if graph.tensor(x).is_variable:
            return None
        if options.weights_format != FullyConnectedOptionsWeightsFormat.DEFAULT:
            return Refused(f"the weights of {graph.where(dense)} are in a shuffled format")
        others = [reader for reader in graph.readers(middle) if reader is not op]
        if shared := graph.why_shared(middle, op, *(o for o in others if graph.kind(o) is Op.RESHAPE)):
            return Refused(shared)
        version = max(graph.version(dense), _KEEPS_DIMENSIONS)
        options, inputs = options.replace(keep_num_dims=True), [x, *dense.inputs[1:]]
        graph.add_operator(Op.FULLY_CONNECTED, inputs, op.outputs, before=dense, version=version, options=options)
        graph.remove(op)
        for other in others:
            graph.set_input(other, 0, op.outputs[0])
        graph.prune([middle, *op.inputs[1:]])
        return Applied("")


class MergeDense(Rule):
    """W2 (W1 x + b1) + b2 = (W2 W1) x + (W2 b1 + b2), where that is fewer multiplications.

    For two FULLY_CONNECTEDs of FLOAT32 without an activation between them. The new weights are computed in float64 and
    rounded once; the result is as far from the true value as the original's, which rounds between the two.
    """

    name = "merge-fully-connected"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.FULLY_CONNECTED})
    example = """
        graph main(%x: f32[1,24]) {
          %a = FULLY_CONNECTED(%x, w1[32,24], b1[32])
          %y = FULLY_CONNECTED(%a, w2[16,32], b2[16])
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Replaces the second by one that does both."""
        middle = input_of(op, 0)
        first = graph.producer(middle) if middle >= 0 else None
        if first is None or graph.kind(first) is not Op.FULLY_CONNECTED or not graph.is_float(middle):
            return None
        options, inner = op.builtin_options, first.builtin_options
        if not isinstance(options, FullyConnectedOptions) or not isinstance(inner, FullyConnectedOptions):
            return None
        if graph.activation(first) != NONE:
            return None
        shapes = [graph.static_shape(o.inputs[1]) for o in (first, op)]
        if any(shape is None or len(shape) != 2 for shape in shapes):
            return None
        (between, columns), (rows, depth) = (shape for shape in shapes if shape is not None)
        if between != depth:
            return None  # the second takes rows of another length than the first gives
        if rows * columns >= between * (rows + columns):
            return Refused(
                f"{graph.where(first)} and it take {between * (rows + columns)} multiplications for each row, "
                f"and one in their place {rows * columns}"
            )
        if shared := graph.why_shared(middle, op):
            return Refused(shared)
        operands = [self._value(graph, o, slot) for o in (first, op) for slot in (1, 2)]
        weights, bias, outer, offset = operands
        if weights is None or outer is None or bias is None or offset is None:
            return Refused("their weights or biases are not all dense FLOAT32 constants")
        with np.errstate(over="ignore"):
            product = (outer @ weights).astype(np.float32)
            constant = (outer @ np.broadcast_to(bias, between) + offset).astype(np.float32)
        if not (np.all(np.isfinite(product)) and np.all(np.isfinite(constant))):
            return Refused("the product of their weights would overflow float32")
        self._apply(graph, first, op, product, constant)
        return Applied(str(graph.where(first)))

    @staticmethod
    def _value(graph: Graph, op: Operator, slot: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None:
        tensor = input_of(op, slot)
        if tensor < 0:
            return np.zeros(1)
        value = graph.constant(tensor)
        options = op.builtin_options
        shuffled = isinstance(options, FullyConnectedOptions) and options.weights_format != 0
        if value is None or value.dtype != np.float32 or shuffled:
            return None
        return value.astype(np.float64) if slot == 1 else value.astype(np.float64).reshape(-1)

    @staticmethod
    def _apply(
        graph: Graph,
        first: Operator,
        op: Operator,
        product: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
        constant: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    ) -> None:
        matrix = graph.add_constant(graph.name(op.inputs[1]), product)
        bias = -1
        if any(input_of(o, 2) >= 0 for o in (first, op)):
            bias = graph.add_constant(f"{graph.name(op.outputs[0])}/bias", constant)
        keeps = bool(option(op, "keep_num_dims") and option(first, "keep_num_dims"))
        options = op.builtin_options
        assert options is not None
        version = max(graph.version(op), graph.version(first))
        inputs = [first.inputs[0], matrix, bias]
        graph.replace(op, Op.FULLY_CONNECTED, inputs, version=version, options=options.replace(keep_num_dims=keeps))


RULES: tuple[Rule, ...] = (BatchMatMul(), QuantizedBatchMatMul(), ReshapesAround(), MergeDense())
