"""GELU, however it is spelled.

gelu(x) = x/2 * (1 + erf(x / sqrt 2)), and its approximation x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))
(Hendrycks and Gimpel, arXiv:1606.08415, section 2). The approximation is off by up to 5e-4, so that each becomes a
GELU of its own kind. See :mod:`litefuse.fusions.univariate` for what is recognised and within which tolerance.

Time under XNNPACK against nine operators with a TANH: 0.28 to 0.5; against those with a POW, 0.15. Both GELUs take the
same. The other approximation of the paper, x * sigmoid(1.702 x), is another function (off by 0.02) and left alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from litefuse.fusions.forms import Form, X
from litefuse.fusions.rule import Numerics, Rule
from litefuse.fusions.univariate import Cone, Spelled
from litefuse.schema.operators import Op


class Gelu(Spelled):
    """x/2 * (1 + erf(x / sqrt 2)) is GELU(x); with tanh(sqrt(2/pi) * (x + 0.044715 x^3)) for erf, GELU(x, approximate).

    In any order and grouping, with MUL, SQUARE or POW for the cube, with TANH, LOGISTIC, or EXP and DIV for the gate,
    and erf by any approximation that holds to 1e-6, as no builtin operator computes it. Results differ in the last
    bits, except for x < -3, where 1 + tanh cancels in the spellings.
    """

    name = "gelu"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.MUL, Op.DIV, Op.ADD, Op.SUB})
    example = """
        graph main(%x: f32[1,64]) {
          %a = POW(%x, three[]=3.0)
          %b = MUL(%a, c1[]=0.044715)
          %c = ADD(%x, %b)
          %d = MUL(%c, c2[]=0.7978846)
          %t = TANH(%d)
          %e = ADD(%t, one[]=1.0)
          %h = MUL(%x, half[]=0.5)
          %y = MUL(%h, %e)
          return %y
        }
    """
    needs = frozenset({Op.TANH, Op.LOGISTIC, Op.EXP})

    def forms(self, cone: Cone) -> Iterable[Form]:
        """Both kinds of GELU."""
        return tuple(Form(Op.GELU, (X,), options=(("approximate", kind),)) for kind in (True, False))


RULES: tuple[Rule, ...] = (Gelu(),)
