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

    Products that need no rounding make it bit-identical for finite x, but for the sign of zero: the exceptions are
    those of PRELU. XNNPACK does not take a slope of zero or below 1.2e-38, so that those are declined.
    """

    name = "leaky-relu"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.ADD, Op.SUB, Op.MAXIMUM, Op.MINIMUM, Op.PRELU})

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Puts LEAKY_RELU in the place of the PRELU or of the spelling's last operator."""
        if graph.kind(op) is Op.PRELU:
            number = graph.splat(op.inputs[1])
            found = None if number is None else Spelling(op.inputs[0], np.float64(number), constants=[op.inputs[1]])
        else:
            found = spelling(graph, op)
        if found is None or not found.is_splat:
            return None
        reason = why_not(graph, op, found)
        if reason:
            return Refused(reason)
        alpha = float(found.alpha.flat[0])
        if abs(alpha) < np.finfo(np.float32).tiny:
            return Refused(f"XNNPACK does not take LEAKY_RELU with a slope of {alpha:g}")
        graph.replace(op, Op.LEAKY_RELU, [found.source], alpha=alpha)
        return Applied(f"{len(found.inner) + 1} operators" if found.inner else "one slope")


RULES: tuple[Rule, ...] = (LeakyReLU(),)
