"""ELU, SELU and CELU spelled with exponentials, and rectifiers spelled with SELECT.

elu(x, a) = x for x > 0, a * (exp(x) - 1) else (Clevert et al., arXiv:1511.07289); selu(x) = 1.0507 * elu(x, 1.6733)
(Klambauer et al., arXiv:1706.02515). ELU the operator has a = 1, and

    elu(x, a) = leaky_relu(elu(x, 1), a)

because elu(x, 1) has the sign of x and is x itself where that is positive. See :mod:`litefuse.fusions.univariate` for
what is recognised and within which tolerance.

Time under XNNPACK: ELU against GREATER, EXP, SUB, SELECT 0.2 to 0.3, against RELU, MINIMUM, EXP, SUB, ADD 0.5; ELU,
LEAKY_RELU, MUL against SELU by arithmetic 0.5. The builtin kernel of ELU is slow: there it takes 1.7 times as long as
those spellings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from litefuse.fusions.forms import Form, X
from litefuse.fusions.rule import Numerics, Rule
from litefuse.fusions.univariate import TOLERANCE, Cone, Spelled
from litefuse.schema.operators import Op

_ELU = Form(Op.ELU, (X,))
_FLOAT = np.finfo(np.float32)
_BRANCHES = frozenset({Op.SELECT, Op.SELECT_V2})


def _leaky(form: Form | str, slope: float) -> Form:
    return Form(Op.LEAKY_RELU, (form,), options=(("alpha", slope),))


def _is_ordinary(slope: float) -> bool:
    """Whether XNNPACK takes a slope: it must be a finite and normal float32."""
    return float(_FLOAT.tiny) <= abs(slope) <= float(_FLOAT.max)


class Elu(Spelled):
    """x for x > 0, a * (exp(x) - 1) else, is ELU(x) for a = 1, and LEAKY_RELU(ELU(x), a) for others.

    By SELECT, by RELU and MINIMUM, by MAXIMUM, in any order and grouping; a factor around it all, as SELU has, becomes
    a MUL. exp(x) - 1 cancels near 0, which ELU does not; otherwise results differ in the last bits.
    """

    name = "elu"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.MAXIMUM, Op.MINIMUM}) | _BRANCHES
    example = """
        graph main(%x: f32[1,64]) {
          %p = RELU(%x)
          %n = MINIMUM(%x, zero[]=0.0)
          %e = EXP(%n)
          %m = SUB(%e, one[]=1.0)
          %y = ADD(%p, %m)
          return %y
        }
    """
    needs = frozenset({Op.EXP, Op.ELU})

    def forms(self, cone: Cone) -> Iterable[Form]:
        """ELU, with the slope that far negative numbers have relative to positive ones."""
        positive, negative = cone(np.array([1.0, -60.0]))
        slope = float(-negative / positive) if positive else math.nan
        if not _is_ordinary(slope):
            return ()
        if abs(slope - 1) <= TOLERANCE:
            return (_ELU,)
        return (_leaky(_ELU, slope),)


class SelectToRectifier(Spelled):
    """x for x > 0, a * x else, by SELECT, is RELU(x) for a = 0, ABS(x) for a = -1, and LEAKY_RELU(x, a) for others.

    For a = 1 it is x, as in SELECT(x - x == 0, x, 0), which only sorts out infinities. XNNPACK does not take SELECT and
    comparisons. NaN fails every comparison, so that SELECT may turn it into a number, where the others keep it.
    """

    name = "select-to-rectifier"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.MAXIMUM, Op.MINIMUM}) | _BRANCHES
    example = """
        graph main(%x: f32[1,64]) {
          %p = GREATER(%x, zero[]=0.0)
          %a = MUL(%x, slope[]=0.1)
          %y = SELECT_V2(%p, %x, %a)
          return %y
        }
    """
    needs = _BRANCHES

    def forms(self, cone: Cone) -> Iterable[Form]:
        """The rectifier with the slope of negative numbers relative to positive ones."""
        positive, negative = cone(np.array([1.0, -1.0]))
        slope = float(-negative / positive) if positive else math.nan
        if slope == 0:
            return (Form(Op.RELU, (X,)),)
        if slope == -1:
            return (Form(Op.ABS, (X,)),)
        if slope == 1:
            return (Form(Op.MUL, (X, 1.0)),)  # taken away as neutral then
        return (_leaky(X, slope),) if _is_ordinary(slope) else ()


RULES: tuple[Rule, ...] = (Elu(), SelectToRectifier())
