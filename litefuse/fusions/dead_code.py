"""Operators whose results nobody reads.

remove-dead: f(x) -> nothing, and what only fed it. Operators with side effects or state stay; so do subgraphs that
nothing calls, because a tool may.
"""

from __future__ import annotations

from litefuse.fusions.rule import Applied, Numerics, Outcome, Rule
from litefuse.graph import Graph
from litefuse.graph.graph import SIDE_EFFECTS
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator


class RemoveDead(Rule):
    """An operator none of whose results is read or leaves the graph is removed, and so on upwards."""

    name = "remove-dead"
    numerics = Numerics.EXACT
    kinds = frozenset(Op) - SIDE_EFFECTS
    example = """
        graph main(%x: f32[1,8]) {
          %unused = EXP(%x)
          %y = TANH(%x)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Removes ``op`` when it is dead, with the operators above it that are dead then."""
        if not graph.is_dead(op):
            return None
        graph.remove(op)
        graph.prune(op.inputs)
        return Applied()


RULES: tuple[Rule, ...] = (RemoveDead(),)
