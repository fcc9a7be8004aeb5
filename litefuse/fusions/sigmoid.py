"""Sigmoid, SiLU and tanh spelled with exponentials, or with each other.

sigmoid(x) = 1 / (1 + exp(-x)) = exp(x) / (1 + exp(x)) = (1 + tanh(x/2)) / 2,
silu(x) = x * sigmoid(x), tanh(x) = (exp(x) - exp(-x)) / (exp(x) + exp(-x)) = 2 * sigmoid(2x) - 1.

SiLU stays LOGISTIC and MUL: no builtin operator does both. See :mod:`litefuse.fusions.univariate` for what is
recognised and within which tolerance.

Time under XNNPACK: LOGISTIC against NEG, EXP, ADD, DIV 0.5 to 0.6; LOGISTIC and MUL against the same with x for 1, 0.7
to 0.85; TANH against MUL, LOGISTIC, MUL, SUB 0.35 to 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable

from litefuse.fusions.forms import Form, X
from litefuse.fusions.rule import Numerics, Rule
from litefuse.fusions.univariate import Cone, Spelled
from litefuse.schema.operators import Op

_LOGISTIC = Form(Op.LOGISTIC, (X,))


_TANH = Form(Op.TANH, (X,))
_SILU = Form(Op.MUL, (X, _LOGISTIC))


class Sigmoid(Spelled):
    """1 / (1 + exp(-x)) is LOGISTIC(x), and (1 + tanh(x)) / 2 is LOGISTIC(2 * x), in any order and grouping."""

    name = "sigmoid"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.MUL, Op.DIV, Op.ADD, Op.SUB, Op.POW})
    example = """
        graph main(%x: f32[1,64]) {
          %n = NEG(%x)
          %e = EXP(%n)
          %a = ADD(%e, one[]=1.0)
          %y = DIV(one, %a)
          return %y
        }
    """
    needs = frozenset({Op.TANH, Op.EXP})

    def forms(self, cone: Cone) -> Iterable[Form]:
        """LOGISTIC of x or of 2 x."""
        return _LOGISTIC, Form(Op.LOGISTIC, (Form(Op.MUL, (X, 2.0)),))


class Silu(Spelled):
    """x / (1 + exp(-x)) is x * LOGISTIC(x), in any order and grouping."""

    name = "silu"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.MUL, Op.DIV})
    example = """
        graph main(%x: f32[1,64]) {
          %n = NEG(%x)
          %e = EXP(%n)
          %a = ADD(%e, one[]=1.0)
          %y = DIV(%x, %a)
          return %y
        }
    """
    needs = frozenset({Op.TANH, Op.EXP})

    def forms(self, cone: Cone) -> Iterable[Form]:
        """LOGISTIC and MUL."""
        return (_SILU,)


class Tanh(Spelled):
    """2 * sigmoid(2x) - 1 is TANH(x), and 2 * sigmoid(x) - 1 is TANH(x / 2), in any order and grouping."""

    name = "tanh"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.MUL, Op.DIV, Op.ADD, Op.SUB})
    example = """
        graph main(%x: f32[1,64]) {
          %a = MUL(%x, two[]=2.0)
          %s = LOGISTIC(%a)
          %b = MUL(%s, two)
          %y = SUB(%b, one[]=1.0)
          return %y
        }
    """
    needs = frozenset({Op.LOGISTIC, Op.EXP})

    def forms(self, cone: Cone) -> Iterable[Form]:
        """TANH of x or of x / 2."""
        return _TANH, Form(Op.TANH, (Form(Op.MUL, (X, 0.5)),))


class RepairQuotient(Spelled):
    """exp(x) / (1 + exp(x)) is LOGISTIC(x), (exp(x) - exp(-x)) / (exp(x) + exp(-x)) is TANH(x).

    The same functions, and likewise SiLU, but exp(x) overflows for x above 88.7, so that the quotients are inf / inf.
    """

    name = "repair-quotient"
    numerics = Numerics.REPAIR
    kinds = frozenset({Op.MUL, Op.DIV, Op.SUB})
    example = """
        graph main(%x: f32[1,64]) {
          %e = EXP(%x)
          %a = ADD(%e, one[]=1.0)
          %y = DIV(%e, %a)
          return %y
        }
    """
    needs = frozenset({Op.EXP})

    def forms(self, cone: Cone) -> Iterable[Form]:
        """LOGISTIC, TANH, and LOGISTIC with MUL."""
        return _LOGISTIC, _TANH, _SILU


RULES: tuple[Rule, ...] = (Sigmoid(), Silu(), Tanh(), RepairQuotient())
