"""Moves activations up through operators that only move elements, to where a producer can apply them itself.

relu(reshape(x)) = reshape(relu(x)), and likewise for every operator whose output elements are input elements.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from litefuse.fusions.activation import TAKES, VERSIONS
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph
from litefuse.graph.pattern import NONE
from litefuse.schema.enums import ActivationFunctionType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

_ACTIVATIONS = {
    Op.RELU: ActivationFunctionType.RELU,
    Op.RELU6: ActivationFunctionType.RELU6,
    Op.RELU_N1_TO_1: ActivationFunctionType.RELU_N1_TO_1,
}
# Operators that move elements, with the number of leading inputs that carry them (None: all).
_MOVERS: dict[Op, int | None] = {
    Op.RESHAPE: 1,
    Op.SQUEEZE: 1,
    Op.EXPAND_DIMS: 1,
    Op.TRANSPOSE: 1,
    Op.CONCATENATION: None,
    Op.PACK: None,
    Op.BATCH_TO_SPACE_ND: 1,
    Op.SPACE_TO_DEPTH: 1,
    Op.DEPTH_TO_SPACE: 1,
    Op.REVERSE_V2: 1,
    Op.RESIZE_NEAREST_NEIGHBOR: 1,
}


class _No(Exception):
    pass


class SinkActivation(Rule):
    """relu(move(x)) = move(relu(x)), for RELU, RELU6 and RELU_N1_TO_1 in float32.

    Through RESHAPE, SQUEEZE, EXPAND_DIMS, TRANSPOSE, CONCATENATION, PACK, BATCH_TO_SPACE_ND, SPACE_TO_DEPTH,
    DEPTH_TO_SPACE, REVERSE_V2 and RESIZE_NEAREST_NEIGHBOR, when everything that feeds them can apply the activation
    itself: an operator with a fused activation that is still free, which nothing else reads.
    """

    name = "activation-above-moves"
    numerics = Numerics.EXACT
    kinds = frozenset(_ACTIVATIONS)
    example = """
        graph main(%x: f32[1,8,8,3]) {
          %a = CONV_2D(%x, w[16,3,3,3], b[16])
          %r = RESHAPE(%a, i32[2]=(1, 1024))
          %y = RELU(%r)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Applies when every source takes the activation."""
        x = op.inputs[0]
        maker = graph.producer(x)
        if maker is None or graph.kind(maker) not in _MOVERS or not graph.is_float(x):
            return None
        try:
            plan = self._into(graph, x, _ACTIVATIONS[graph.kind(op)], op)
        except _No as no:
            return Refused(str(no)) if str(no) else None
        if not graph.bypass(op, x):
            return None
        for step in plan:
            step()
        return Applied("")

    def _into(
        self, graph: Graph, tensor: int, activation: ActivationFunctionType, reader: Operator
    ) -> list[Callable[[], None]]:
        value = graph.constant(tensor)
        if value is not None and value.dtype == np.float32:
            raise _No
        op = graph.producer(tensor)
        if op is None or graph.activation(op) != NONE:
            raise _No
        kind = graph.kind(op)
        plan: list[Callable[[], None]] = []
        if graph.type(tensor) in TAKES.get(kind, ()):
            plan.append(lambda: graph.set_activation(op, activation))
            if kind in VERSIONS:
                plan.append(lambda: graph.set_version(op, VERSIONS[kind]))
        elif kind in _MOVERS:
            sources = op.inputs[: _MOVERS[kind]]
            for source in dict.fromkeys(sources):
                plan += self._into(graph, source, activation, op)
        else:
            raise _No
        shared = graph.why_shared(tensor, reader)
        if shared:
            raise _No(shared)
        return plan


RULES: tuple[Rule, ...] = (SinkActivation(),)
