"""Moves transpositions through other operators to where they cancel, merge, or reach constants.

::

    f(transpose(x)) = transpose(f(x))                          f computes element by element
    f(transpose(x, p), transpose(y, p)) = transpose(f(x, y), p)    likewise with two operands; constants are transposed
    concat(transpose(x, p), ..., axis=a) = transpose(concat(x, ..., axis=p[a]), p)    and split, pad, slice, tile, pack
    sum(transpose(x, p), axes=a) = transpose(sum(x, axes=p[a]), p')                   p' orders the axes that are left
    softmax(transpose(x, p)) = transpose(softmax(x), p)                               where the last axis stays last

Models converted from channels-first frameworks are full of them: every convolution stands between two. What is moved
where is decided for a whole region of operators at once, see :mod:`litefuse.fusions.relayout`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from litefuse.fusions.layout import Layout, Order
from litefuse.fusions.operands import permutation
from litefuse.fusions.relay import Relaid
from litefuse.fusions.relayout import MoveViews
from litefuse.fusions.rule import Numerics, Rule
from litefuse.graph import Graph
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator
from litefuse.schema.types import nbytes

# Prices in bytes that a TRANSPOSE moves in that time, 15 to 20 in a nanosecond, as measured under XNNPACK on x86.
_PER_VIEW = 4096
_PER_COPY = 256
_LEAST_WIDTH = 2
_PER_RUN = 64
_PER_PADDED_RUN = 400
_CONVOLUTIONS = frozenset({Op.CONV_2D, Op.DEPTHWISE_CONV_2D})
_VERSIONS = {TensorType.INT8: 2, TensorType.BOOL: 3, TensorType.INT16: 5}


class MoveTransposes(MoveViews):
    """f(transpose(x)) = transpose(f(x)), for f that give the same bits wherever in memory an element lies.

    Arithmetic, comparisons, clamps, selection, conversion, CONCATENATION, SPLIT, PAD, SLICE, STRIDED_SLICE, TILE,
    PACK, UNPACK, GATHER, RESHAPE that keeps the axes apart, REDUCE_MAX and the like; anything on quantised numbers.
    Only where fewer bytes are moved afterwards.
    """

    name = "move-transposes"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.TRANSPOSE})
    example = """
        graph main(%x: f32[1,4,4,8]) {
          %a = TRANSPOSE(%x, i32[4]=(0, 3, 1, 2))
          %r = RELU(%a)
          %y = TRANSPOSE(%r, i32[4]=(0, 2, 3, 1))
          return %y
        }
    """
    allowed = frozenset({Numerics.EXACT})
    called = "{} transpositions"

    def layout(self, graph: Graph, view: Operator) -> Layout | None:
        """The order of a TRANSPOSE whose permutation is constant."""
        x = view.inputs[0]
        shape, order = graph.shape(x), permutation(graph, view)
        if shape is None or order is None or len(order) != len(shape):
            return None
        if graph.tensor(x).is_variable or graph.is_constant(x):
            return None
        return Order(shape, tuple(order))

    def seeds(self, graph: Graph, view: Operator) -> Iterator[tuple[int, Layout]]:
        """Its output in the order of its input, and the other way round."""
        layout = self.layout(graph, view)
        if layout is not None and not layout.is_identity:
            yield view.outputs[0], layout.inverse()
            yield view.inputs[0], layout

    def price(self, graph: Graph, tensor: int, layout: Layout) -> int:
        """The bytes that it moves, and something for being there; little when nothing moves in memory."""
        assert isinstance(layout, Order)
        moved = [axis for axis in layout.order if layout.old[axis] != 1]
        if moved == sorted(moved):
            return _PER_COPY
        elements = math.prod(max(d, 1) for d in graph.shape(tensor) or ())
        return _PER_VIEW + elements * max(nbytes(graph.type(tensor), 1) or 0, _LEAST_WIDTH)

    def effort(self, graph: Graph, op: Operator, relaid: Relaid) -> int:
        """The price of the runs that it computes in, beyond those that it had before.

        XNNPACK takes its time for each row that it pads, but nothing when the padding goes into a convolution.
        """
        before, after = relaid.rows
        if graph.kind(op) is not Op.PAD:
            return max(after - before, 0) * _PER_RUN
        out = op.outputs[0]
        readers, layout = graph.readers(out), relaid.layouts.get(out)
        found = [self.layout(graph, r) if graph.kind(r) is Op.TRANSPOSE else None for r in readers]
        cancels = all(f is not None and layout is not None and layout.inverse().then(f).is_identity for f in found)
        beyond = [r for reader in readers for r in graph.readers(reader.outputs[0])]
        goes_in = bool(beyond) and cancels and all(graph.kind(r) in _CONVOLUTIONS for r in beyond)
        was_in = bool(readers) and all(graph.kind(r) in _CONVOLUTIONS for r in readers)
        return 0 if goes_in else max(after - (0 if was_in else before), 0) * _PER_PADDED_RUN

    def insert(self, graph: Graph, layout: Layout, x: int, out: int, before: Operator) -> Operator:
        """Adds a TRANSPOSE."""
        assert isinstance(layout, Order)
        order = graph.add_constant(f"{graph.name(out)}/order", np.array(layout.order, np.int32))
        version = max(_VERSIONS.get(graph.type(x), 1), {5: 4, 6: 6}.get(len(layout.order), 1))
        return graph.add_operator(Op.TRANSPOSE, [x, order], [out], before=before, version=version)


class MoveTransposesThroughMath(MoveTransposes):
    """f(transpose(x)) = transpose(f(x)), for f whose last bits depend on where in memory an element lies.

    LOGISTIC, TANH, EXP, GELU, HARD_SWISH, SOFTMAX and the like, of which kernels compute the last elements by other
    code than the rest, and sums, which run in another order.
    """

    name = "move-transposes-through-math"
    numerics = Numerics.REASSOCIATED
    example = """
        graph main(%x: f32[1,4,4,8]) {
          %a = TRANSPOSE(%x, i32[4]=(0, 3, 1, 2))
          %s = LOGISTIC(%a)
          %y = TRANSPOSE(%s, i32[4]=(0, 2, 3, 1))
          return %y
        }
    """
    allowed = frozenset({Numerics.EXACT, Numerics.REASSOCIATED})
    floats = True
    explains = True


class MoveTransposesQuantized(MoveTransposes):
    """f(transpose(x)) = transpose(f(x)), for f that may then round otherwise: QUANTIZE, MEAN of 8 bits over H and W."""

    name = "move-transposes-quantized"
    numerics = Numerics.QUANTIZED
    example = """
        graph main(%x: f32[1,4,4,8]) {
          %a = TRANSPOSE(%x, i32[4]=(0, 3, 1, 2))
          %q: i8[1,8,4,4]{scale=0.05} = QUANTIZE(%a)
          %y = TRANSPOSE(%q, i32[4]=(0, 2, 3, 1))
          return %y
        }
    """
    allowed = frozenset({Numerics.EXACT, Numerics.QUANTIZED})
    floats = False
    explains = True


RULES: tuple[Rule, ...] = (MoveTransposes(), MoveTransposesThroughMath(), MoveTransposesQuantized())
