"""Softplus and mish spelled so that they overflow, and repaired.

softplus(x) = log(1 + exp(x)), and mish(x) = x * tanh(softplus(x)) (Misra, arXiv:1908.08681). exp(x) is beyond float32
for x above 88.7: log(1 + exp(x)) is then infinite or, in runtimes whose EXP stops at the largest float, 88.4 or 88.7
for all of them. From 16 on, softplus(x) - x is below the rounding of x, so that

    softplus(x) = max(log(1 + exp(min(x, 16))), x)

holds to 1e-7 everywhere. Written with n = exp(x) * (exp(x) + 2), tanh(softplus(x)) = n / (n + 2), which overflows for x
above 44 and is 1 to float32 from 9 on. See :mod:`litefuse.fusions.univariate` for what is recognised and within which
tolerance.

Time under XNNPACK: the two operators more make 1.3 to 1.4 times that of EXP, ADD, LOG, and the form
max(x, 0) + log(1 + exp(-abs(x))) takes 1.4 to 1.8 times that.
"""

from __future__ import annotations

from collections.abc import Iterable

from litefuse.fusions.forms import Form, X
from litefuse.fusions.rule import Numerics, Rule
from litefuse.fusions.univariate import Cone, Spelled
from litefuse.graph import Graph
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

_EXP = Form(Op.EXP, (Form(Op.MINIMUM, (X, 16.0)),))
_SOFTPLUS = Form(Op.MAXIMUM, (Form(Op.LOG, (Form(Op.ADD, (_EXP, 1.0)),)), X))
_N = Form(Op.MUL, (_EXP, Form(Op.ADD, (_EXP, 2.0))))
_MISH = Form(Op.MUL, (X, Form(Op.DIV, (_N, Form(Op.ADD, (_N, 2.0))))))


class RepairSoftplus(Spelled):
    """log(1 + exp(x)) is max(log(1 + exp(min(x, 16))), x), which is right for x above 88 too.

    Up to 16 the result is what it was. Left alone in front of a TANH, as mish has it: that is 1 in either case.
    """

    name = "repair-softplus"
    numerics = Numerics.REPAIR
    kinds = frozenset({Op.LOG, Op.MUL, Op.ADD, Op.SUB})
    example = """
        graph main(%x: f32[1,64]) {
          %e = EXP(%x)
          %a = ADD(%e, one[]=1.0)
          %y = LOG(%a)
          return %y
        }
    """
    needs = frozenset({Op.LOG})

    def forms(self, cone: Cone) -> Iterable[Form]:
        """The stable softplus."""
        return (_SOFTPLUS,)

    def declines(self, graph: Graph, op: Operator) -> bool:
        """Whether TANH hides the overflow."""
        readers = graph.readers(op.outputs[0])
        return op.outputs[0] not in graph.outputs and all(graph.kind(reader) is Op.TANH for reader in readers)


class Softplus(RepairSoftplus):
    """max(x, 0) + log(1 + exp(-abs(x))) is max(log(1 + exp(min(x, 16))), x): as stable, in five operators for seven."""

    name = "softplus"
    numerics = Numerics.REASSOCIATED
    example = """
        graph main(%x: f32[1,64]) {
          %p = RELU(%x)
          %a = ABS(%x)
          %n = NEG(%a)
          %e = EXP(%n)
          %s = ADD(%e, one[]=1.0)
          %l = LOG(%s)
          %y = ADD(%p, %l)
          return %y
        }
    """


class RepairMish(Spelled):
    """x * n / (n + 2) with n = exp(x) * (exp(x) + 2) is the same with exp(min(x, 16)), and right for x above 44 too."""

    name = "repair-mish"
    numerics = Numerics.REPAIR
    kinds = frozenset({Op.MUL, Op.DIV, Op.SUB})
    example = """
        graph main(%x: f32[1,64]) {
          %e = EXP(%x)
          %a = ADD(%e, two[]=2.0)
          %n = MUL(%e, %a)
          %d = ADD(%n, two)
          %q = DIV(%n, %d)
          %y = MUL(%x, %q)
          return %y
        }
    """
    needs = frozenset({Op.EXP})

    def forms(self, cone: Cone) -> Iterable[Form]:
        """The stable mish."""
        return (_MISH,)


RULES: tuple[Rule, ...] = (RepairSoftplus(), Softplus(), RepairMish())
