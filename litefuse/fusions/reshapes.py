"""Moves reshapes through other operators to where two of them meet and cancel, and spells them in one way.

::

    reshape(f(reshape(x))) = f(x)      f computes element by element, or along axes that the reshapes leave alone

One-dimensional convolutions are two-dimensional ones between two reshapes in a `.tflite` file. Those between two of
them cancel across activations, additions, concatenation, padding and pooling, and the model stays four-dimensional
from the first to the last. What is moved where is decided for a whole region at once, see
:mod:`litefuse.fusions.relayout`.

plain-reshape: SQUEEZE and EXPAND_DIMS are RESHAPE, which XNNPACK takes, and the others not.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from litefuse.fusions import xnnpack
from litefuse.fusions.identity import same_quantization
from litefuse.fusions.layout import Layout, Reshaped
from litefuse.fusions.operands import RESHAPES
from litefuse.fusions.relayout import MoveViews
from litefuse.fusions.rule import Applied, Numerics, Outcome, Rule
from litefuse.graph import Graph
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator


class MoveReshapes(MoveViews):
    """reshape(f(reshape(x))) = f(x), for f that give the same bits in either shape.

    Operators that compute element by element, and CONCATENATION, SPLIT, PAD, SLICE, STRIDED_SLICE, SOFTMAX,
    REDUCE_MAX... along axes that the reshape leaves alone. Only where there are fewer reshapes afterwards.
    """

    name = "move-reshapes"
    numerics = Numerics.EXACT
    kinds = RESHAPES
    example = """
        graph main(%x: f32[1,4,4,8]) {
          %a = RESHAPE(%x, i32[2]=(1, 128))
          %r = RELU(%a)
          %y = RESHAPE(%r, i32[4]=(1, 4, 4, 8))
          return %y
        }
    """
    allowed = frozenset({Numerics.EXACT})
    called = "{} reshapes"

    def layout(self, graph: Graph, view: Operator) -> Layout | None:
        """The shapes of input and output, when each has one unknown dimension at most."""
        x, out = view.inputs[0], view.outputs[0]
        before, after = graph.shape(x), graph.shape(out)
        if before is None or after is None or before.count(-1) != after.count(-1) or before.count(-1) > 1:
            return None
        if 0 in before or graph.tensor(x).is_variable or graph.is_constant(x):
            return None
        return Reshaped(before, after)

    def seeds(self, graph: Graph, view: Operator) -> Iterator[tuple[int, Layout]]:
        """Its output in the shape of its input."""
        layout = self.layout(graph, view)
        if layout is not None and not layout.is_identity:
            yield view.outputs[0], layout.inverse()

    def price(self, graph: Graph, tensor: int, layout: Layout) -> int:
        """Only how many there are matters."""
        return 1

    def insert(self, graph: Graph, layout: Layout, x: int, out: int, before: Operator) -> Operator:
        """Adds a RESHAPE."""
        shape = graph.add_constant(f"{graph.name(out)}/shape", np.array(layout.new, np.int32))
        return graph.add_operator(Op.RESHAPE, [x, shape], [out], before=before, new_shape=list(layout.new))


class MoveReshapesThroughReductions(MoveReshapes):
    """reshape(f(reshape(x))) = f(x), for f with sums and means in it, which kernels then add up in another order."""

    name = "move-reshapes-through-reductions"
    numerics = Numerics.REASSOCIATED
    example = """
        graph main(%x: f32[1,8,16]) {
          %a = RESHAPE(%x, i32[4]=(1, 1, 8, 16))
          %m = MEAN(%a, axis:i32[1]=2)
          %y = RESHAPE(%m, i32[2]=(1, 16))
          return %y
        }
    """
    allowed = frozenset({Numerics.EXACT, Numerics.REASSOCIATED})
    floats = True
    explains = True


class MoveReshapesQuantized(MoveReshapes):
    """reshape(f(reshape(x))) = f(x), for f with MEAN of 8 bits over H and W in it, which then rounds otherwise."""

    name = "move-reshapes-quantized"
    numerics = Numerics.QUANTIZED
    example = """
        graph main(%x: i8[1,4,4,8]{scale=0.1}) {
          %a = RESHAPE(%x, i32[5]=(1, 1, 4, 4, 8))
          %m: i8[1,1,1,1,8]{scale=0.05} = MEAN(%a, axes:i32[2]=(2, 3)) {keep_dims=true}
          %y = RESHAPE(%m, i32[4]=(1, 1, 1, 8))
          return %y
        }
    """
    allowed = frozenset({Numerics.EXACT, Numerics.QUANTIZED})
    floats = False
    explains = True


class PlainReshape(Rule):
    """SQUEEZE(x) = RESHAPE(x) and EXPAND_DIMS(x) = RESHAPE(x), which XNNPACK takes, next to its own operators.

    For shapes with one unknown dimension at most.
    """

    name = "plain-reshape"
    numerics = Numerics.EXACT
    kinds = RESHAPES - {Op.RESHAPE}
    example = """
        graph main(%x: f32[1,1,1,16]) {
          %s = SQUEEZE(%x) {squeeze_dims=(1, 2)}
          %y = FULLY_CONNECTED(%s, w[10,16], b[10])
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Replaces the operator."""
        x, out = op.inputs[0], op.outputs[0]
        shape = graph.shape(out)
        if shape is None or shape.count(-1) > 1 or 0 in shape or not same_quantization(graph, x, out):
            return None
        if graph.type(x) not in xnnpack.TYPES or graph.is_constant(x) or not xnnpack.joins(graph, op):
            return None
        target = graph.add_constant(f"{graph.name(out)}/shape", np.array(shape, np.int32))
        graph.replace(op, Op.RESHAPE, [x, target], new_shape=list(shape))
        return Applied()


RULES: tuple[Rule, ...] = (
    PlainReshape(),
    MoveReshapes(),
    MoveReshapesThroughReductions(),
    MoveReshapesQuantized(),
)
