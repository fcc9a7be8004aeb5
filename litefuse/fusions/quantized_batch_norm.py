"""Folds multiplications, additions and requantisation behind quantised operators into them, where the bound allows it.

An operator with weights gives integers q1 = clamp(round(X / s1) + z1) of its true result X, and constants follow::

    q2 = clamp(round(a (q1 - z1) s1 / s2) + z2),  q3 = clamp(round(((q2 - z2) s2 + d) / s3) + z3),  ...

Without the roundings and limits in between that is A X + D, with a factor and an addend for each output channel, which
the operator can give itself: with the scales of its weights times abs(A), the weights' integers as they are (negated
where A < 0), and D in the bias. Weights with one scale get one for each channel, so that no weight is rounded again. A
QUANTIZE that follows is A = 1 and D = 0: the operator writes the new scale at once.

How far the two may be apart, in steps of the last scale sN:

* each tensor in between was rounded, to half a step of its own, which what follows turned into g s_i / (2 sN), where g
  is the product of the factors behind it;
* the last of the old operators and the new one each round to half a step;
* fixed point adds a little to each (see :mod:`litefuse.fusions.fixed_point`): up to half a step in a QUANTIZE, which is
  looked up, at most a quarter in a MUL, hardly anything in the others;
* a tensor in between may have been limited to what its integers can say. That leaves less of A X + D than the new
  operator gives, by as much as X can reach: the sum of the products of weights and values that have one sign.

Both results are integers, so that they differ by one at most where the sum of all this is below two. Where it is not,
the rule declines and says how large it is. Calibrated models usually fail on the last point: their ranges were seen,
not computed. They pass where RELU or few products for each output keep X in bounds.

Measured with ai-edge-litert 2.3.0 on x86, one thread: without a MUL behind, convolutions of 28x28 to 56x56 take 1.01 to
1.3 times less under XNNPACK and 1.03 to 1.5 times less in the builtin kernels, with one scale or one for each channel.

(Folding: Jacob et al., arXiv:1712.05877, section 3.2; what goes wrong without a bound: tensorflow#43882.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from litefuse.fusions.activation import FUSED, compose, known_limits
from litefuse.fusions.affine import Vector, along_one_axis, operand
from litefuse.fusions.fixed_point import BYTES, Encoding, dequantized, encoding, multiplier, requantizations
from litefuse.fusions.operands import RESHAPES, input_of
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph, OperatorKind
from litefuse.schema.enums import ActivationFunctionType, FullyConnectedOptionsWeightsFormat, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import FullyConnectedOptions, Operator, QuantizationParameters

# The inputs that hold x, weights and bias, and the axis of the weights that belongs to output channels.
_WEIGHTED: dict[OperatorKind, tuple[int, int, int, int]] = {
    Op.CONV_2D: (0, 1, 2, 0),
    Op.DEPTHWISE_CONV_2D: (0, 1, 2, 3),
    Op.FULLY_CONNECTED: (0, 1, 2, 0),
}
_ARITHMETIC = frozenset({Op.MUL, Op.ADD, Op.SUB})
_PRODUCERS = _ARITHMETIC | frozenset(_WEIGHTED)
NONE, RELU = ActivationFunctionType.NONE, ActivationFunctionType.RELU

# The sum must stay this far below two, for what float32 scales and their products lose.
_MARGIN = 1 / 32
_FIXED_POINT = 1 / 32
# Sums in 32 bits must not overflow with a larger bias.
_MOST_BIAS = 2.0**30
# Ratios of scales that both the builtin kernels and XNNPACK take: of products of weights, of sums and of products.
_RATIOS = (2.0**-24, 128.0)
_SUMS = (2.0**-10, 256.0)
_PRODUCTS = (2.0**-16, 256.0)


class _No(Exception):
    """The operators cannot be folded. The reason is empty where they are not of the kind at all."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class _Step:
    """One of the operators that follow: y = scale * x + shift for each channel, stored in an encoding."""

    op: Operator
    scale: Vector
    shift: Vector
    encoding: Encoding
    noise: float
    """By how much fixed point may add to its rounding, in its own steps."""


@dataclass
class _Chain:
    """A producer with all that follows it, in the order of execution."""

    producer: Operator
    encoding: Encoding
    steps: list[_Step] = field(default_factory=list)
    views: list[Operator] = field(default_factory=list)

    @property
    def last(self) -> _Step:
        return self.steps[-1]

    @property
    def uniform(self) -> bool:
        """Whether all channels are treated alike."""
        return all(len(step.scale) == 1 for step in self.steps)


def _constant(graph: Graph, tensor: int, shape: tuple[int, ...]) -> Vector | None:
    """The real values of a constant that varies along the last axis of ``shape`` at most: one, or one per channel."""
    value, how = graph.constant(tensor), encoding(graph, tensor)
    if value is None or how is None:
        return None
    found = along_one_axis(dequantized(value.astype(np.int64), how), shape)
    if found is None or found[0] not in (None, len(shape) - 1):
        return None
    return np.asarray(found[1], np.float64)


def _step(graph: Graph, op: Operator) -> tuple[int, _Step] | None:
    """What an operator does to the tensor that it reads, and which that is; None when it is none of these."""
    kind = graph.kind(op)
    if kind not in _ARITHMETIC | {Op.QUANTIZE} or len(op.outputs) != 1 or min(op.inputs, default=-1) < 0:
        return None
    after = encoding(graph, op.outputs[0])
    slots = (0, 0) if kind is Op.QUANTIZE else operand(graph, op)
    if slots is None or after is None or after.type not in BYTES:
        return None
    x = op.inputs[slots[0]]
    before, shape = encoding(graph, x), graph.shape(x)
    if before is None or before.type != after.type or not shape or shape != graph.shape(op.outputs[0]):
        return None
    one, zero = np.ones(1), np.zeros(1)
    if kind is Op.QUANTIZE:
        return x, _Step(op, one, zero, after, _excess(before, after))
    constant = op.inputs[slots[1]]
    value, how = _constant(graph, constant, shape), encoding(graph, constant)
    if value is None or how is None:
        return None
    if kind is Op.MUL:
        noise = _two_steps(before.scale * how.scale / after.scale) + _FIXED_POINT
        return x, _Step(op, value, np.zeros_like(value), after, noise)
    noise = _FIXED_POINT + 6 * 2.0**-20 * max(before.scale, how.scale) / after.scale
    if kind is Op.ADD:
        return x, _Step(op, np.ones_like(value), value, after, noise)
    sign = 1.0 if slots == (0, 1) else -1.0
    return x, _Step(op, np.full_like(value, sign), -sign * value, after, noise)


def _excess(a: Encoding, b: Encoding) -> float:
    """By how much more than half a step any kernel is off that converts from ``a`` to ``b``."""
    q = a.all()
    true = dequantized(q, a) / b.scale + b.point
    inside = (true >= b.range[0]) & (true <= b.range[1])
    worst = max(float(np.max(np.abs(kind - true)[inside], initial=0.0)) for kind in requantizations(q, a, b))
    return max(worst - 0.5, 0.0)


def _read(graph: Graph, op: Operator) -> _Chain | None:
    """The chain that ends in ``op``; None where there is no producer that could take it over, or where it goes on."""
    following = graph.only_reader(op.outputs[0])
    while following is not None and graph.kind(following) in RESHAPES:
        following = graph.only_reader(following.outputs[0])
    if following is not None and graph.activation(op) == NONE and _step(graph, following) is not None:
        return None
    steps: list[_Step] = []
    views: list[Operator] = []
    maker: Operator | None = op
    source = -1
    while maker is not None:
        found = _step(graph, maker)
        if found is not None and (not steps or graph.activation(maker) == NONE):
            source = found[0]
            steps.insert(0, found[1])
        elif graph.kind(maker) in RESHAPES and steps:
            source = maker.inputs[0]
            views.insert(0, maker)
        else:
            break
        maker = graph.producer(source)
    if maker is None or not steps or graph.kind(maker) not in _PRODUCERS or len(maker.outputs) != 1:
        return None
    how = encoding(graph, maker.outputs[0])
    return None if how is None or how.type not in BYTES else _Chain(maker, how, steps, views)


class _Fold:
    """A producer and what becomes of it when it takes over what follows. Raises _No where it cannot.

    The base is for operators of which nothing changes but the encoding of the result.
    """

    outputs = 1

    def __init__(self, graph: Graph, chain: _Chain) -> None:
        self.graph, self.chain = graph, chain
        self.op, self.kind = chain.producer, graph.kind(chain.producer)
        self.here = graph.where(self.op)
        self.read()
        self.scale, self.shift = np.ones(self.outputs), np.zeros(self.outputs)
        for step in chain.steps:
            if len(step.scale) not in (1, self.outputs):
                raise _No
            self.scale, self.shift = self.scale * step.scale, self.shift * step.scale + step.shift
        self.plain = all(np.all(step.scale == 1.0) and np.all(step.shift == 0.0) for step in chain.steps)

    def read(self) -> None:
        """Finds what the other methods need."""
        found = [encoding(self.graph, tensor) for tensor in self.op.inputs]
        self.inputs = [how for how in found if how is not None and how.type == self.chain.encoding.type]
        if len(self.inputs) != 2 or len(found) != 2 or not all(step.op.inputs[1:] == [] for step in self.chain.steps):
            raise _No

    def reach(self) -> Vector:
        """The smallest and the largest X of each channel that any input can lead to: [2, outputs]."""
        (a, b), (x, y) = self.op.inputs, self.inputs
        first, second = (
            (np.array(known_limits(self.graph, tensor)) - how.point) * how.scale for tensor, how in ((a, x), (b, y))
        )
        if self.kind is Op.MUL:
            corners = np.multiply.outer(first, second)
        else:
            corners = np.add.outer(first, second if self.kind is Op.ADD else -second)
        return np.array([[np.min(corners)], [np.max(corners)]])

    def noise(self, into: Encoding, factor: Vector) -> float:
        """By how much fixed point may add to its rounding, in steps of an encoding, with the factor taken over."""
        x, y = self.inputs
        if self.kind is Op.MUL:
            return _two_steps(x.scale * y.scale / into.scale) + _FIXED_POINT
        return _FIXED_POINT + 6 * 2.0**-20 * max(x.scale, y.scale) / into.scale

    def residue(self) -> Vector | float:
        """By how much the new operator is off because its constants are rounded, in real numbers."""
        return 0.0

    def why_not(self) -> str | None:
        """Why the kernels would not take the result."""
        x, y = self.inputs
        low, high = _PRODUCTS if self.kind is Op.MUL else _SUMS
        scales = [x.scale * y.scale] if self.kind is Op.MUL else [x.scale, y.scale]
        if all(low <= scale / self.chain.last.encoding.scale < high for scale in scales):
            return None
        return f"the scales of {self.here} would leave what its kernels take"

    def change(self) -> None:
        """Changes the constants of the producer."""

    def activation(self) -> ActivationFunctionType:
        """The activation of the new operator."""
        first, last = self.graph.activation(self.op), self.graph.activation(self.chain.last.op)
        if first == NONE or (self.plain and first in FUSED):
            return last if first == NONE else first
        if first != RELU:
            raise _No(f"{self.here} applies {first.name} first")
        moved = any(np.any(step.shift != 0.0) for step in self.chain.steps)
        if moved or not np.all(self.scale > 0.0):
            raise _No(f"{self.here} applies RELU first, which only positive factors pass")
        if last not in (NONE, RELU, ActivationFunctionType.RELU6):
            raise _No(f"{self.here} applies RELU first, and {last.name} follows")
        return RELU if last == NONE else last

    def bound(self) -> tuple[float, str]:
        """How many steps the results may be apart, in the worst channel, and what that is made of."""
        chain, last = self.chain, self.chain.last.encoding
        encodings = [chain.encoding, *(step.encoding for step in chain.steps)]
        noises = [self.noise(chain.encoding, np.ones(1)), *(step.noise for step in chain.steps)]
        rounding = np.full(self.outputs, 1.0 + noises[-1] + self.noise(last, self.scale))
        factor = np.ones(self.outputs)
        for step, before, noise in reversed(list(zip(chain.steps, encodings, noises, strict=False))):
            factor = factor * np.abs(step.scale)
            rounding += (0.5 + noise) * factor * before.scale / last.scale
        rounding += self.residue() / last.scale
        limited = self._limited()
        total = rounding + limited
        worst = int(np.argmax(total))
        text = f"by up to {total[worst]:.1f} steps of {last.scale:.3g}, {rounding[worst]:.1f} of it by rounding"
        if limited[worst] > 0:
            text += f" and {limited[worst]:.1f} by the ranges in between"
        return float(total[worst]), text

    def _limited(self) -> Vector:
        """What the ranges of the tensors in between cut off that the last one's does not, in steps."""
        graph, chain, last = self.graph, self.chain, self.chain.last
        own = graph.activation(self.op)
        true = np.clip(self.reach(), *FUSED[own])
        old = np.clip(true, *_limits(chain.encoding, own))
        for step in chain.steps:
            old, true = (ends * step.scale + step.shift for ends in (old, true))
            if step is not last:
                old = np.clip(old, *step.encoding.reach)
        old, true = (np.clip(ends, *_limits(last.encoding, graph.activation(last.op))) for ends in (old, true))
        cut: Vector = np.max(np.abs(true - old), axis=0) / last.encoding.scale
        return cut

    def apply(self, activation: ActivationFunctionType) -> None:
        """Changes the producer and takes the operators behind it away."""
        graph, chain = self.graph, self.chain
        if not self.plain:
            self.change()
        if graph.activation(self.op) != activation:
            graph.set_activation(self.op, activation)
        final = chain.last.op.outputs[0]
        for step in chain.steps:
            graph.remove(step.op)
        like = graph.tensor(final)
        for maker, view in zip([self.op, *chain.views], chain.views, strict=False):
            old = maker.outputs[0]
            out = graph.add_tensor(graph.name(old), (), like.type, quantization=like.quantization, like=old)
            graph.set_output(maker, 0, out)
            graph.set_input(view, 0, out)
        graph.set_output((chain.views or [self.op])[-1], 0, final)


class _Weighted(_Fold):
    """The same for an operator with weights and bias, which take the factors and addends."""

    def read(self) -> None:
        """Reads weights and bias."""
        graph, op = self.graph, self.op
        self.x, self.weights_slot, self.bias_slot, self.axis = _WEIGHTED[self.kind]
        self.weights = op.inputs[self.weights_slot]
        options, value, q = op.builtin_options, graph.constant(self.weights), graph.quantization(self.weights)
        how = encoding(graph, op.inputs[self.x])
        if how is None or how.type != self.chain.encoding.type or graph.type(self.weights) != how.type:
            raise _No
        usual = FullyConnectedOptionsWeightsFormat.DEFAULT
        if isinstance(options, FullyConnectedOptions) and options.weights_format != usual:
            raise _No(f"the weights of {self.here} are in a shuffled format")
        if value is None or q is None or q.scale is None or q.details is not None or value.ndim <= self.axis:
            raise _No(f"the weights of {self.here} are not a dense constant with scales")
        self.outputs = value.shape[self.axis]
        if len(q.scale) not in (1, self.outputs) or (len(q.scale) > 1 and q.quantized_dimension != self.axis):
            raise _No(f"the weights of {self.here} have scales along another axis")
        self.value = np.moveaxis(value, self.axis, 0).reshape(self.outputs, -1).astype(np.int64)
        self.points = np.zeros(1, np.int64)
        if q.zero_point is not None and len(q.zero_point):
            self.points = np.asarray(q.zero_point, np.int64)
        self.per_channel = len(q.scale) > 1
        self.input = how
        self.products = how.scale * np.broadcast_to(np.asarray(q.scale, np.float64), self.outputs)
        self.bias = self._bias()

    def _bias(self) -> Vector:
        tensor = input_of(self.op, self.bias_slot)
        if tensor < 0:
            return np.zeros(self.outputs)
        value = self.graph.constant(tensor)
        if value is None or value.dtype != np.int32 or value.size != self.outputs:
            raise _No(f"the bias of {self.here} is not an INT32 constant")
        return value.reshape(-1).astype(np.float64)

    def reach(self) -> Vector:
        """By the products of one sign; what SAME pads with is zero."""
        low, high = known_limits(self.graph, self.op.inputs[self.x])
        below, above = min(low - self.input.point, 0.0), max(high - self.input.point, 0.0)
        centred = self.value - np.broadcast_to(self.points, self.outputs)[:, None]
        plus = np.maximum(centred, 0).sum(axis=1).astype(np.float64)
        minus = np.minimum(centred, 0).sum(axis=1).astype(np.float64)
        least, most = plus * below + minus * above, plus * above + minus * below
        return (np.stack([least, most]) + self.bias) * self.products

    def noise(self, into: Encoding, factor: Vector) -> float:
        """That of the channel with the largest multiplier."""
        return _two_steps(float(np.max(self.products * np.abs(factor))) / into.scale) + _FIXED_POINT

    def residue(self) -> Vector | float:
        """The new bias is an integer."""
        return 0.0 if self.plain else 0.5 * self.products * np.abs(self.scale)

    def why_not(self) -> str | None:
        """Scales, weights and bias must be what the kernels take."""
        if np.any(self.scale == 0.0):
            return f"a factor is zero, and the weights of {self.here} cannot have scale zero"
        ratios = self.products * np.abs(self.scale) / self.chain.last.encoding.scale
        if np.min(ratios) < _RATIOS[0] or np.max(ratios) > _RATIOS[1]:
            return f"the scales of {self.here} would leave what its kernels take"
        if len(np.unique(np.abs(self.scale))) > 1 and not self.per_channel:
            if self.chain.encoding.type == TensorType.UINT8 or np.any(self.points != 0):
                return f"the weights of {self.here} have a zero point, and so one scale for all channels"
            if self.kind is Op.FULLY_CONNECTED:
                return f"{self.here} has one scale for all channels, and one for each is not supported everywhere"
        if np.any(self.scale < 0.0):
            signed = self.chain.encoding.type == TensorType.INT8 and not np.any(self.points != 0)
            if not signed or np.any(self.value < -127):
                return f"a factor is negative, and the weights of {self.here} cannot be negated"
        if np.any(np.abs(self._new_bias()) > _MOST_BIAS):
            return f"the bias of {self.here} would overflow"
        return None

    def _new_bias(self) -> Vector:
        bias: Vector = np.round(self.bias * np.sign(self.scale) + self.shift / (self.products * np.abs(self.scale)))
        return bias

    def change(self) -> None:
        """Puts new weights and a new bias in."""
        graph, op = self.graph, self.op
        weights, bias = self._new_weights(), self._new_bias().astype(np.int32)
        scales = np.asarray(graph.quantization(weights).scale, np.float64)  # type: ignore[union-attr]
        products = (scales * self.input.scale).astype(np.float32)
        quantization = QuantizationParameters(scale=products, zero_point=np.zeros(len(products), np.int64))
        old_bias = input_of(op, self.bias_slot)
        name = graph.name(old_bias) if old_bias >= 0 else f"{graph.name(op.outputs[0])}/bias"
        graph.set_input(op, self.weights_slot, weights)
        graph.set_input(op, self.bias_slot, graph.add_constant(name, bias, quantization=quantization))

    def _new_weights(self) -> int:
        """The weights with their new scales: the same bytes unless a factor is negative."""
        graph, old = self.graph, self.graph.tensor(self.weights)
        factors, products = np.abs(self.scale), self.products
        if not self.per_channel and len(np.unique(factors)) == 1:
            factors, products = factors[:1], products[:1]
        scales = (products / self.input.scale * factors).astype(np.float32)
        points = np.broadcast_to(self.points, len(scales)).copy()
        q = QuantizationParameters(scale=scales, zero_point=points, quantized_dimension=self.axis)
        if np.all(self.scale > 0.0):
            tensor = graph.add_tensor(graph.name(self.weights), (), old.type, quantization=q, like=self.weights)
            graph.tensor(tensor).buffer = old.buffer
            return tensor
        value = graph.constant(self.weights)
        assert value is not None
        frame = [1] * value.ndim
        frame[self.axis] = self.outputs
        signs = np.sign(self.scale).astype(value.dtype).reshape(frame)
        return graph.add_constant(graph.name(self.weights), value * signs, quantization=q)


def _two_steps(factor: float) -> float:
    """By how much rounding in two steps may be off more than half a step, for a product with a factor."""
    shift = multiplier(factor)[1]
    return 0.5 * 2.0**shift if shift < 0 else 0.0


def _limits(how: Encoding, activation: ActivationFunctionType) -> tuple[float, float]:
    """The real numbers to which an encoding and a fused activation limit."""
    return compose(how.reach, FUSED.get(activation, (-math.inf, math.inf)))


class FoldQuantized(Rule):
    """conv(x) * s + c = conv'(x) for INT8 and UINT8: s in the scales of the weights, c in the bias.

    MUL, ADD and SUB by quantised constants that vary along the channels at most, behind CONV_2D, DEPTHWISE_CONV_2D and
    FULLY_CONNECTED, with any QUANTIZE among them; RESHAPE between them when all channels are treated alike. Where
    rounding and limits in between, which disappear, can make no more than one step of difference.
    """

    name = "quantized-batch-norm-into-producer"
    numerics = Numerics.QUANTIZED
    kinds = _ARITHMETIC
    example = """
        graph main(%x: i8[1,8,8,3]{scale=0.02}) {
          %a: i8[1,8,8,16]{scale=0.15} = CONV_2D(%x, w:i8[16,3,3,3]{scale=0.002}, b:i32[16]{scale=0.00004})
          %y: i8[1,8,8,16]{scale=0.075} = MUL(%a, half:i8[]{scale=0.005}=100)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Folds the whole chain that ends in ``op``, or nothing."""
        if _step(graph, op) is None:
            return None
        chain = _read(graph, op)
        if chain is None:
            return None
        try:
            self._fold(graph, chain)
        except _No as no:
            return Refused(no.reason) if no.reason else None
        return Applied(f"{len(chain.steps)} operators")

    @staticmethod
    def _fold(graph: Graph, chain: _Chain) -> None:
        fold = (_Weighted if graph.kind(chain.producer) in _WEIGHTED else _Fold)(graph, chain)
        if chain.views and not chain.uniform:
            raise _No
        activation = fold.activation()
        inside = [chain.producer, *chain.views, *(step.op for step in chain.steps)]
        for maker in inside:
            shared = graph.why_shared(maker.outputs[0], *inside)
            if shared and maker is not chain.last.op:
                raise _No(shared)
        if reason := fold.why_not():
            raise _No(reason)
        steps, text = fold.bound()
        if steps >= 2 - _MARGIN:
            raise _No(f"results could differ {text}")
        fold.apply(activation)


class Requantize(FoldQuantized):
    """QUANTIZE(conv(x)) = conv(x) written in the other scale at once, for INT8 to INT8 and UINT8 to UINT8.

    For CONV_2D, DEPTHWISE_CONV_2D, FULLY_CONNECTED, and ADD, SUB and MUL of two tensors, with RESHAPE in between. Where
    the rounding that disappears, and the range of the first scale, can make no more than one step of difference.
    """

    name = "requantize-in-producer"
    kinds = frozenset({Op.QUANTIZE})
    example = """
        graph main(%x: i8[1,8,8,3]{scale=0.02}) {
          %a: i8[1,8,8,16]{scale=0.15} = CONV_2D(%x, w:i8[16,3,3,3]{scale=0.002}, b:i32[16]{scale=0.00004})
          %y: i8[1,8,8,16]{scale=0.2} = QUANTIZE(%a)
          return %y
        }
    """


RULES: tuple[Rule, ...] = (FoldQuantized(), Requantize())
