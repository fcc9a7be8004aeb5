"""Zero padding that the operator behind it can do itself.

pad-into-window, pad-into-max-pool::

    conv(PAD(x, b, a), VALID) = conv(x, SAME)       CONV_2D, DEPTHWISE_CONV_2D, CONV_3D
    max_pool(PAD(x, b, a), VALID) = max_pool(x, SAME)    where no element of x is below what is padded with

SAME has ceil(n / s) windows over n elements, for which t = max((ceil(n / s) - 1) s + (k - 1) d + 1 - n, 0) elements are
missing; t // 2 of them go in front (tflite/kernels/padding.h). The two agree when PAD puts as many in front and VALID
finds as many windows; padding behind the last window does not matter. With stride 1 that does not depend on n.

merge-pads: PAD(PAD(x, p), q) = PAD(x, p + q).  plain-pad: PADV2(x, p, 0) = PAD(x, p), which XNNPACK takes.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from litefuse.fusions.identity import same_quantization
from litefuse.fusions.operands import input_of, paddings
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph, OperatorKind
from litefuse.graph.graph import Array
from litefuse.schema.enums import ActivationFunctionType, Padding, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator
from litefuse.schema.types import FLOATS, RANGES

_PADS = frozenset({Op.PAD, Op.PADV2})
_LOWEST = float(np.finfo(np.float32).min)
# No float result of these is below the number.
_BOUNDS: dict[OperatorKind, float] = {
    Op.RELU: 0.0,
    Op.RELU6: 0.0,
    Op.RELU_N1_TO_1: -1.0,
    Op.RELU_0_TO_1: 0.0,
    Op.ABS: 0.0,
    Op.SQUARE: 0.0,
    Op.SQUARED_DIFFERENCE: 0.0,
    Op.LOGISTIC: 0.0,
    Op.SOFTMAX: 0.0,
    Op.EXP: 0.0,
    Op.TANH: -1.0,
}
_ACTIVATION_BOUNDS = {
    ActivationFunctionType.RELU: 0.0,
    ActivationFunctionType.RELU6: 0.0,
    ActivationFunctionType.RELU_N1_TO_1: -1.0,
}
# They keep the lower bound of what they read.
_KEEPS_BOUND = frozenset({Op.RESHAPE, Op.TRANSPOSE, Op.MAX_POOL_2D, Op.SLICE, Op.STRIDED_SLICE, Op.SQUEEZE})


class Window(NamedTuple):
    """How an operator slides along one dimension."""

    kernel: int
    stride: int
    dilation: int

    @property
    def reach(self) -> int:
        """How many elements a window spans."""
        return (self.kernel - 1) * self.dilation + 1


def windows(graph: Graph, op: Operator) -> list[Window] | None:
    """The windows of a convolution or pooling operator along its middle dimensions; None for other operators."""
    kind, options = graph.kind(op), op.builtin_options
    if kind in (Op.MAX_POOL_2D, Op.AVERAGE_POOL_2D, Op.L2_POOL_2D):
        names = ("filter_height", "stride_h"), ("filter_width", "stride_w")
        found = [Window(getattr(options, size, 0), getattr(options, stride, 0), 1) for size, stride in names]
    elif kind in (Op.CONV_2D, Op.DEPTHWISE_CONV_2D, Op.CONV_3D):
        three = kind is Op.CONV_3D
        weights = graph.shape(input_of(op, 1)) if input_of(op, 1) >= 0 else None
        if weights is None or len(weights) != 4 + three:
            return None
        kernel = weights[:3] if three else weights[1:3]
        found = [
            Window(k, getattr(options, f"stride_{n}", 0), getattr(options, f"dilation_{n}_factor", 0))
            for k, n in zip(kernel, "dhw" if three else "hw", strict=True)
        ]
    else:
        return None
    return found if all(min(window) > 0 for window in found) else None


def equals_same(size: int, before: int, after: int, window: Window) -> bool:
    """Whether padding by ``before`` and ``after`` elements and VALID is what SAME does.

    Args:
        size: number of elements, -1 when it is not known.
        before: zeros in front, 0 or more.
        after: zeros behind, 0 or more.
        window: how the operator slides along this dimension.
    """
    if window.stride == 1:  # whatever the size: as many windows as elements
        return before + after == window.reach - 1 and before == (window.reach - 1) // 2
    if size < 0:
        return False
    count = -(-size // window.stride)
    missing = max((count - 1) * window.stride + window.reach - size, 0)
    room = size + before + after - window.reach
    return before == missing // 2 and room >= 0 and room // window.stride + 1 == count


class _No(Exception):
    pass


class _IntoWindow(Rule):
    """Base of the rules that make the readers of a padded tensor pad themselves."""

    kinds = _PADS
    float_maximum: ClassVar[bool]
    """Whether the rule is for tensors of which MAX_POOL_2D takes the maximum, in floats."""

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Changes all readers of the padded tensor, or none."""
        amounts, value = paddings(graph, op), _padded_with(graph, op)
        if amounts is None or value is None or not np.any(amounts):
            return None
        x, out = op.inputs[0], op.outputs[0]
        sliding = [r for r in dict.fromkeys(graph.readers(out)) if windows(graph, r) is not None]
        maximum = graph.type(out) in FLOATS and any(graph.kind(r) is Op.MAX_POOL_2D for r in sliding)
        if not sliding or maximum is not self.float_maximum or graph.tensor(x).is_variable:
            return None
        try:
            for reader in sliding:
                self._check(graph, op, reader, amounts, value)
        except _No as no:
            return Refused(str(no)) if str(no) else None
        if shared := graph.why_shared(out, *sliding):
            return Refused(shared)
        for reader in sliding:
            assert reader.builtin_options is not None
            reader.builtin_options = reader.builtin_options.replace(padding=Padding.SAME)
            graph.set_input(reader, 0, x)
        graph.prune([out])
        return Applied()

    @staticmethod
    def _check(graph: Graph, op: Operator, reader: Operator, amounts: Array, value: float) -> None:
        x, out = op.inputs[0], op.outputs[0]
        kind, here, shape = graph.kind(reader), graph.where(reader), graph.shape(x)
        slides = windows(graph, reader)
        if slides is None or shape is None or len(shape) != len(slides) + 2:
            raise _No
        if reader.inputs[0] != out or reader.inputs.count(out) != 1 or not same_quantization(graph, x, out):
            raise _No
        if graph.is_kept(reader):
            raise _No(f"{here} is kept as it is by request")
        if getattr(reader.builtin_options, "padding", None) != Padding.VALID:
            raise _No(f"{here} pads by itself already, which adds to this padding")
        if kind in (Op.AVERAGE_POOL_2D, Op.L2_POOL_2D):
            raise _No(f"{here} would no longer count the padding as elements of its mean")
        if np.any(amounts[[0, -1]]):
            raise _No(f"it also pads the batch or the channels, which {here} cannot")
        if kind is Op.MAX_POOL_2D:
            if not _never_below(graph, x, value):
                raise _No(f"`{graph.name(x)}` may hold numbers below the padding, of which {here} takes the maximum")
        elif value != _zero(graph, out):
            raise _No(f"it pads with {value:g}, not with zeros as {here} does")
        for size, (before, after), window in zip(shape[1:-1], amounts[1:-1].tolist(), slides, strict=True):
            if not equals_same(size, before, after, window):
                raise _No(
                    f"SAME of {here} would not pad a side of {'unknown length' if size < 0 else size} "
                    f"with {before} in front and {after} behind"
                )


class PadIntoWindow(_IntoWindow):
    """conv(PAD(x), VALID) = conv(x, SAME), where PAD adds what SAME would, for that size, stride and dilation.

    CONV_2D, DEPTHWISE_CONV_2D and CONV_3D behind a PAD or PADV2 of zeros (the zero point in quantised models), and
    quantised MAX_POOL_2D, where it reads nothing below the padding: behind RELU, or when the padding is the lowest
    number. AVERAGE_POOL_2D divides by the number of elements that are not padding, so it is not of this kind.
    """

    name = "pad-into-window"
    numerics = Numerics.EXACT
    example = """
        graph main(%x: f32[1,8,8,3]) {
          %p = PAD(%x, i32[4,2]=(0, 0, 1, 1, 1, 1, 0, 0))
          %y = CONV_2D(%p, w[16,3,3,3], b[16]) {padding=VALID}
          return %y
        }
    """
    float_maximum = False


class PadIntoMaxPool(_IntoWindow):
    """max_pool(PAD(x), VALID) = max_pool(x, SAME) for floats, where nothing that it reads is below the padding.

    Behind RELU and the like, or when the padding is the lowest number. Equal numbers; which of 0.0 and -0.0 is larger
    is up to the kernel and the place in the window.
    """

    name = "pad-into-max-pool"
    numerics = Numerics.REASSOCIATED
    example = """
        graph main(%x: f32[1,8,8,4]) {
          %r = RELU(%x)
          %p = PAD(%r, i32[4,2]=(0, 0, 1, 1, 1, 1, 0, 0))
          %y = MAX_POOL_2D(%p) {filter=3, padding=VALID}
          return %y
        }
    """
    float_maximum = True


class MergePads(Rule):
    """PAD(PAD(x, p), q) = PAD(x, p + q) when both fill with the same number."""

    name = "merge-pads"
    numerics = Numerics.EXACT
    kinds = _PADS
    example = """
        graph main(%x: f32[1,8]) {
          %a = PAD(%x, i32[2,2]=(0, 0, 1, 1))
          %y = PAD(%a, i32[2,2]=(0, 0, 2, 0))
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Makes the outer one pad by both amounts."""
        middle = op.inputs[0]
        inner = graph.producer(middle)
        if inner is None or graph.kind(inner) not in _PADS:
            return None
        p, q = paddings(graph, inner), paddings(graph, op)
        value = _padded_with(graph, op)
        x = inner.inputs[0]
        if p is None or q is None or value is None or graph.tensor(x).is_variable:
            return None
        if not _same_number(value, _padded_with(graph, inner)) or not same_quantization(graph, x, middle):
            return None
        if not same_quantization(graph, middle, op.outputs[0]):
            return None
        if shared := graph.why_shared(middle, op):
            return Refused(shared)
        amounts = graph.add_constant(f"{graph.name(op.outputs[0])}/paddings", (p + q).astype(np.int32))
        graph.set_input(op, 1, amounts)
        graph.set_input(op, 0, x)
        graph.prune([middle])
        return Applied()


class PlainPad(Rule):
    """PADV2(x, p, 0) = PAD(x, p), and the zero point for 0 in quantised models: XNNPACK takes PAD only."""

    name = "plain-pad"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.PADV2})
    example = """
        graph main(%x: f32[1,8,8,3]) {
          %y = PADV2(%x, i32[4,2]=(0, 0, 1, 1, 1, 1, 0, 0), zero[]=0.0)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Drops the number to pad with."""
        out = op.outputs[0]
        value = _padded_with(graph, op)
        if value is None or not _same_number(value, _zero(graph, out)):
            return None
        graph.replace(op, Op.PAD, op.inputs[:2], version=graph.version(op))
        return Applied()


# -- what is padded with -------------------------------------------------------------------------------------------


def _padded_with(graph: Graph, op: Operator) -> float | None:
    """The stored number that a PAD or PADV2 fills with; None when it is not known."""
    if graph.kind(op) is Op.PAD or input_of(op, 2) < 0:
        return _zero(graph, op.outputs[0])
    return graph.splat(op.inputs[2])


def _zero(graph: Graph, tensor: int) -> float:
    """What zero is stored as."""
    q = graph.quantization(tensor)
    if graph.type(tensor) in FLOATS or q is None or q.zero_point is None or not len(q.zero_point):
        return 0.0
    return float(q.zero_point[0])


def _same_number(a: float, b: float | None) -> bool:
    """Equality to the bit: 0.0 is not -0.0."""
    return b is not None and a == b and bool(np.signbit(a) == np.signbit(b))


def _never_below(graph: Graph, tensor: int, value: float) -> bool:
    """Whether it is certain that no element of a tensor is below ``value``."""
    type = graph.type(tensor)
    is_float = type == TensorType.FLOAT32
    if value <= (_LOWEST if is_float else RANGES.get(type, (-np.inf, 0))[0]):
        return True
    op = graph.producer(tensor)
    while op is not None:
        kind = graph.kind(op)
        bounds = [_ACTIVATION_BOUNDS.get(graph.activation(op), -np.inf), _BOUNDS.get(kind, -np.inf)]
        # Of quantised results only clamps are certain, and where zero is, not how far -1 is from it.
        found = max(bounds) if is_float else (_zero(graph, tensor) if _clamps_at_zero(graph, op) else -np.inf)
        if value <= found:
            return True
        if kind not in _KEEPS_BOUND or not same_quantization(graph, op.inputs[0], tensor):
            return False
        tensor = op.inputs[0]
        op = graph.producer(tensor)
    return False


def _clamps_at_zero(graph: Graph, op: Operator) -> bool:
    clamps = (ActivationFunctionType.RELU, ActivationFunctionType.RELU6)
    return graph.activation(op) in clamps or graph.kind(op) in (Op.RELU, Op.RELU6)


RULES: tuple[Rule, ...] = (PlainPad(), MergePads(), PadIntoWindow(), PadIntoMaxPool())
