"""LeakyReLU spelled in elementary operators, or as a PRELU with one slope, becomes LEAKY_RELU.

In both runtimes LEAKY_RELU gives x for x > 0 and alpha * x else, as PRELU does (see :mod:`litefuse.fusions.prelu`), but
reads no slopes: under XNNPACK it takes 0.1 to 0.9 times the time of a PRELU with equal slopes, most where the number
of channels does not fill vectors, and half or less of that of the spelled forms.
"""

from __future__ import annotations

import numpy as np

from litefuse.fusions.prelu import Spelling, spelling, why_not
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph.graph import Graph
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator


class LeakyReLU(Rule):
    """max(x, a * x) with a <= 1, max(x, 0) + a * min(x, 0), or PRELU(x, a), for one number a, is LEAKY_RELU(x, a).

    Only products that need no rounding are taken, so that the results differ in no bit, with the exceptions of PRELU:
    the sign of zero and numbers below 1.2e-38. XNNPACK does not take such slopes, so that those are declined.
    """

    name = "leaky-relu"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.ADD, Op.SUB, Op.MAXIMUM, Op.MINIMUM, Op.PRELU})
    example = """
        graph main(%x: f32[1,4,4,8]) {
          %a = MUL(%x, slope[]=0.1)
          %y = MAXIMUM(%x, %a)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Puts LEAKY_RELU in the place of the PRELU or of the spelling's last operator."""
        if graph.kind(op) is Op.PRELU and len(op.inputs) == 2:
            x, alpha = op.inputs
            number = graph.splat(alpha)
            found = None if number is None else Spelling(x, np.float64(number), constants=[alpha])
        else:
            found = spelling(graph, op)
        if found is None or not found.is_splat:
            return None
        reason = why_not(graph, op, found)
        if reason:
            return Refused(reason)
        slope = float(found.alpha.flat[0])
        if abs(slope) < np.finfo(np.float32).tiny:
            return Refused(f"XNNPACK does not take LEAKY_RELU with a slope of {slope:g}")
        graph.replace(op, Op.LEAKY_RELU, [found.source], alpha=slope)
        return Applied(f"{len(found.inner) + 1} operators" if found.inner else "one slope")


RULES: tuple[Rule, ...] = (LeakyReLU(),)
