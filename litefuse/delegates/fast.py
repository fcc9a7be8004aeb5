"""Which operators the delegate has fast kernels for.

This is what `cover` in `delegate_src/region/units.cc`, and what it calls, decides for operators by themselves; the
functions below have the names of those there, and must say the same (`tests/test_delegates_fast.py` compares them with
the delegate's own report). What is not covered runs in the reference kernels, which are right and slow.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from enum import Enum, auto
from math import isfinite, prod
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from litefuse.delegates.kinds import PADS, POOLS, VIEWS
from litefuse.delegates.network import Network
from litefuse.graph.graph import OperatorKind
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op

SMALL = 4096
"""The time of an operator that computes so many elements, or sums so many products, does not matter."""

_UNARY = frozenset(
    {
        Op.LEAKY_RELU, Op.ELU, Op.LOGISTIC, Op.TANH, Op.GELU, Op.HARD_SWISH, Op.EXP, Op.LOG, Op.SQRT, Op.RSQRT,
        Op.SQUARE, Op.ABS, Op.NEG, Op.SIGN, Op.FLOOR, Op.CEIL, Op.ROUND, Op.SIN, Op.COS, Op.RELU, Op.RELU6,
        Op.RELU_N1_TO_1, Op.RELU_0_TO_1,
    }
)  # fmt: skip
_BINARY = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MAXIMUM, Op.MINIMUM, Op.SQUARED_DIFFERENCE, Op.POW, Op.PRELU})
# What only moves elements, for which the reference kernels are as fast as any.
_MOVES = VIEWS | PADS | frozenset(
    {
        Op.TRANSPOSE, Op.MIRROR_PAD, Op.CONCATENATION, Op.SPLIT, Op.SPLIT_V, Op.SLICE, Op.STRIDED_SLICE, Op.PACK,
        Op.UNPACK, Op.GATHER, Op.TILE, Op.BROADCAST_TO, Op.DEPTH_TO_SPACE, Op.SPACE_TO_DEPTH, Op.SPACE_TO_BATCH_ND,
        Op.BATCH_TO_SPACE_ND, Op.REVERSE_V2,
    }
)  # fmt: skip
_QUANTIZED = frozenset({TensorType.INT8, TensorType.UINT8, TensorType.INT16})
# What is counted in 32 bits.
_MOST_ELEMENTS = 2**30
_MOST_PACKED = 2**27
# Reductions of single images that have fewer elements are not worth a stage.
_FEW_REDUCED = 512

Shape = tuple[int, ...]


def why_slow(network: Network, i: int) -> str | None:
    """Why the delegate has no fast kernel for an operator that it supports; None when it has.

    Unknown dimensions count as in the file, which is 1: with others there may be none, or there may be one. Operators
    that are a part of a normalisation have the kernel of the whole of it, which has to be in the region then.
    """
    what = _Operator(network, i).why_slow()
    if what is not None and i in _norms(network):
        return None
    return None if what is None else f"the delegate has no fast kernel for {network.kinds[i].name}{what}"


def is_small(network: Network, i: int) -> bool:
    """Whether an operator's time does not matter, so that a slow kernel will do.

    That is for what stands between operators on floats. None of those on quantised numbers counts as small: regions of
    them would hold nothing else.
    """
    from litefuse.delegates.cost import macs  # which needs more of this package

    op = network.ops[i]
    tensors = [t for t in (*op.inputs, *op.outputs) if t >= 0]
    if any(network.graph.type(t) in _QUANTIZED for t in tensors):
        return False
    return max(macs(network, i), *map(network.elements, tensors)) <= SMALL


def kinds() -> frozenset[OperatorKind]:
    """The operators for which there are fast kernels, if not for all their shapes and attributes."""
    return _UNARY | _BINARY | _MOVES | _COVERS.keys()


class _Operator:
    """One operator with the shapes of its tensors."""

    def __init__(self, network: Network, i: int) -> None:
        self.graph = network.graph
        self.op, self.kind = network.ops[i], network.kinds[i]
        self.options = self.op.builtin_options
        self.shape, self.elements = network.shape, network.elements
        self.flowing = frozenset(network.ins[i])

    def is_constant(self, tensor: int) -> bool:
        return tensor not in self.flowing

    def why_slow(self) -> str | None:
        """What to say behind the operator's name; None when there is a kernel."""
        if not any(self.elements(t) for t in self.op.outputs if t >= 0):
            return None  # there is nothing to compute
        if self.kind in _MOVES and self.graph.is_float(self.op.outputs[0]):
            return None
        wrong = self.not_float()
        if wrong is not None:
            name = getattr(wrong, "name", str(wrong))
            return f" of {name}" if self.graph.type(self.op.outputs[0]) == wrong else f" with {name} operands"
        if not self.is_usable():
            return " of so many elements, or none"
        cover = _COVERS.get(self.kind)
        if cover is not None:
            return cover(self)
        return self.elementwise()

    def not_float(self) -> TensorType | None:
        """The type of a tensor that is not of floats; constants that say where or what shape may be INT32."""
        for t in (*self.op.outputs, *self.op.inputs):
            if t < 0:
                continue
            type = self.graph.type(t)
            if t in self.op.inputs and self.is_constant(t) and type == TensorType.INT32:
                continue
            if type != TensorType.FLOAT32:
                return type
        return None

    def is_usable(self) -> bool:
        """Whether the tensors of floats have elements, and few enough to be counted."""
        tensors = [t for t in (*self.op.outputs, *self.op.inputs) if t >= 0 and self.graph.is_float(t)]
        return all(0 < self.elements(t) <= _MOST_ELEMENTS for t in tensors)

    # -- by kind, as in units.cc and those beside it ----------------------------------------------------------------

    def always(self) -> None:
        """Whatever the shapes."""

    def linear(self) -> str | None:
        slots = (1, 3) if self.kind is Op.TRANSPOSE_CONV else (1, 2)
        fixed = all(self.is_constant(self.op.inputs[s]) for s in slots if s < len(self.op.inputs))
        return None if fixed else " with weights that are not constant"

    def matmul(self) -> str | None:
        """Whether every matrix is multiplied by one of its own, or all by the same one."""
        first, second = (self.shape(t) for t in self.op.inputs[:2])
        if self.elements(self.op.inputs[1]) > _MOST_PACKED:
            return " by a matrix of so many elements"
        if prod(second[:-2]) == 1:
            fits = prod(first[:-2]) == prod(self.shape(self.op.outputs[0])[:-2])
        else:
            rank = max(len(first), len(second))
            fits = ((1,) * (rank - len(first)) + first)[:-2] == ((1,) * (rank - len(second)) + second)[:-2]
        return None if fits else f" of {list(first)} by {list(second)}"

    def reduce(self) -> str | None:
        shape, axes = self.shape(self.op.inputs[0]), self.graph.constant(self.op.inputs[1])
        rank = len(shape)
        if axes is None or self.is_constant(self.op.inputs[0]):
            return " of a constant"
        gone = {int(a) % rank for a in np.asarray(axes).reshape(-1)} if rank else set()
        if gone == {rank - 1} or (rank == 4 and gone == {1, 2}) or self.is_block(shape, gone):
            return None
        return f" over dimensions {sorted(gone)} of {rank}"

    @staticmethod
    def is_block(shape: Shape, gone: set[int]) -> bool:
        """Whether dimensions are neighbours, but for those of one, and worth a stage."""
        long = [i for i, size in enumerate(shape) if size != 1]
        taken = [k for k, i in enumerate(long) if i in gone]
        if not taken:
            return len(shape) > 0
        if taken[-1] - taken[0] + 1 != len(taken):
            return False
        before, behind = (prod(shape[i] for i in part) for part in (long[: taken[0]], long[taken[-1] + 1 :]))
        return before == 1 or behind == 1 or prod(shape) // before >= _FEW_REDUCED

    def elementwise(self) -> str | None:
        if self.kind in _UNARY:
            return self.operands(self.op.inputs[:1])
        if self.kind is Op.POW and not self.is_plain_power():
            return " by an exponent that is not one constant, or so close to an integer that it counts as that"
        if self.kind in _BINARY:
            return self.operands(self.op.inputs[:2])
        return ""

    def is_plain_power(self) -> bool:
        value = self.graph.constant(self.op.inputs[1])
        if value is None or value.size != 1:
            return False
        exponent = float(value.reshape(-1)[0])
        off = abs(exponent - round(exponent)) if isfinite(exponent) else 1.0
        return isfinite(exponent) and (off == 0.0 or off > 1e-4)

    def operands(self, tensors: Sequence[int]) -> str | None:
        whole = self.shape(self.op.outputs[0])
        stretched = [self.is_stretched(self.shape(t), whole) for t in tensors]
        if None not in stretched and not all(stretched):
            return None
        return " with operands that are stretched like " + " and ".join(str(list(self.shape(t))) for t in tensors)

    @staticmethod
    def is_stretched(small: Shape, large: Shape) -> bool | None:
        """Whether an operand is stretched to the shape of the output; None when in a way that no kernel knows."""
        count = prod(small)
        if count == prod(large):
            rank = max(len(small), len(large))
            same = (1,) * (rank - len(small)) + small == (1,) * (rank - len(large)) + large
            return False if same or count == 1 else None
        scalar = count == 1
        channels = small[-1:] == large[-1:] and count == large[-1]
        pixels = len(small) == len(large) and small[-1] == 1 and small[:-1] == large[:-1]
        images = len(small) == len(large) == 4 and small == (large[0], 1, 1, large[3])
        wide = (1,) * (len(large) - len(small)) + small
        axis = len(large)
        while axis and wide[axis - 1 : axis] == large[axis - 1 : axis]:
            axis -= 1
        repeated = len(wide) == len(large) and axis + 1 < len(large) and set(wide[:axis]) <= {1}
        return True if scalar or channels or pixels or images or repeated else None


_COVERS: dict[OperatorKind, Callable[[_Operator], str | None]] = {
    Op.CONV_2D: _Operator.linear,
    Op.DEPTHWISE_CONV_2D: _Operator.linear,
    Op.FULLY_CONNECTED: _Operator.linear,
    Op.TRANSPOSE_CONV: _Operator.linear,
    Op.BATCH_MATMUL: _Operator.matmul,
    **dict.fromkeys(POOLS, _Operator.always),
    Op.RESIZE_BILINEAR: _Operator.always,
    Op.RESIZE_NEAREST_NEIGHBOR: _Operator.always,
    Op.MEAN: _Operator.reduce,
    Op.SUM: _Operator.reduce,
    Op.REDUCE_MAX: _Operator.reduce,
    Op.REDUCE_MIN: _Operator.reduce,
    Op.SOFTMAX: _Operator.always,
    Op.LOG_SOFTMAX: _Operator.always,
    Op.L2_NORMALIZATION: _Operator.always,
}


# -- normalisations over the channels, as in delegate_src/region/norms.cc ----------------------------------------------


class _Part(Enum):
    """What a tensor is in the formula of a normalisation."""

    NONE = auto()
    INPUT = auto()
    MEAN = auto()
    CENTRED = auto()
    SQUARES = auto()
    VARIANCE = auto()
    SHIFTED = auto()
    """The variance plus epsilon."""
    DEVIATION = auto()
    """Its root."""
    RECIPROCAL = auto()
    """One over that, perhaps times gamma."""
    SCALED_INPUT = auto()
    SCALED_MEAN = auto()
    OFFSET = auto()
    """Beta minus the scaled mean."""
    RESULT = auto()
    """All of it, perhaps without beta."""


class _Form(NamedTuple):
    part: _Part = _Part.NONE
    gamma: int = -1
    beta: int = -1


_known_norms: WeakKeyDictionary[Network, frozenset[int]] = WeakKeyDictionary()


def _norms(network: Network) -> frozenset[int]:
    """The operators that are parts of layer and RMS normalisations."""
    known = _known_norms.get(network)
    if known is None:
        found: set[int] = set()
        for i in range(len(network.ops)):
            begins = network.kinds[i] in (Op.MEAN, Op.SQUARE, Op.MUL) and network.reasons[i] is None
            if begins and i not in found:
                found.update(_Norm(network, i).members)
        known = _known_norms[network] = frozenset(found)
    return known


class _Norm:
    """A normalisation over the channels that begins with an operator; without members when there is none."""

    MOST = 16
    """Operators that one is made of, at most."""

    def __init__(self, network: Network, first: int) -> None:
        self.network = network
        self.members: list[int] = []
        inputs = network.ops[first].inputs
        self.input = inputs[0] if inputs else -1
        if self.input < 0 or self.is_constant(self.input) or not network.shape(self.input):
            return
        kind = network.kinds[first]
        self.centred = kind is Op.MEAN
        if kind is Op.MUL and inputs[1] != self.input:
            return
        self.forms = {self.input: _Form(_Part.INPUT)}
        self.find(first)

    def find(self, first: int) -> None:
        network = self.network
        taken: list[int] = []
        todo, seen = [first], {first}
        for reader in network.readers(self.input):
            if reader > first:
                todo.append(reader)
                seen.add(reader)
        heapq.heapify(todo)
        while todo and len(taken) < self.MOST:
            i = heapq.heappop(todo)
            if len(network.outs[i]) != 1 or network.feeds[i] or network.reasons[i] is not None:
                continue
            form = self.form_of(i)
            if form.part is _Part.NONE:
                if i == first:
                    return
                continue
            out = network.outs[i][0]
            self.forms[out] = form
            taken.append(i)
            for reader in network.readers(out):
                if reader not in seen:
                    seen.add(reader)
                    heapq.heappush(todo, reader)
            whole = form.part is _Part.RESULT and network.shape(out) == network.shape(self.input)
            if whole and self.is_closed(taken, out):
                self.members = list(taken)

    def is_closed(self, members: Sequence[int], output: int) -> bool:
        """Whether nothing but the output is read by others."""
        network = self.network
        inner = [t for i in members for t in network.outs[i] if t != output]
        return not any(t in network.leaving or any(r not in members for r in network.readers(t)) for t in inner)

    def is_constant(self, tensor: int) -> bool:
        graph = self.network.graph
        maker = graph.producer(tensor)
        return graph.is_constant(tensor) or (maker is not None and self.network.feeds[self.network.position[maker]])

    def is_float(self, tensor: int) -> bool:
        return tensor >= 0 and self.is_constant(tensor) and self.network.graph.is_float(tensor)

    def is_channels(self, tensor: int) -> bool:
        channels = self.network.shape(self.input)[-1]
        shape = self.network.shape(tensor)
        return self.is_float(tensor) and shape[-1:] == (channels,) and prod(shape) == channels > 1

    def is_number(self, tensor: int) -> bool:
        return self.is_float(tensor) and self.network.elements(tensor) == 1

    def is_mean(self, i: int) -> bool:
        """Whether it is over the last dimension, which stays as one."""
        network, op = self.network, self.network.ops[i]
        axes = network.graph.constant(op.inputs[1]) if len(op.inputs) == 2 else None
        before, after = network.shape(op.inputs[0]), network.shape(op.outputs[0])
        if axes is None or axes.size != 1 or axes.dtype != np.int32:
            return False
        return int(axes.reshape(-1)[0]) in (len(before) - 1, -1) and len(before) == len(after) and after[-1] == 1

    def form_of(self, i: int) -> _Form:
        network, op, kind = self.network, self.network.ops[i], self.network.kinds[i]
        if network.graph.activation(op) != ActivationFunctionType.NONE or not network.graph.is_float(op.outputs[0]):
            return _Form()
        x, z = op.inputs[0], op.inputs[1] if len(op.inputs) > 1 else -1
        a, b = self.forms.get(x, _Form()), self.forms.get(z, _Form())
        p = _Part
        pair = (a.part, b.part)
        plain = not self.centred
        if kind is Op.MEAN and self.is_mean(i):
            if a.part is p.INPUT and self.centred:
                return _Form(p.MEAN)
            return _Form(p.VARIANCE) if a.part is p.SQUARES else _Form()
        if kind is Op.SQUARED_DIFFERENCE:
            return _Form(p.SQUARES) if set(pair) == {p.INPUT, p.MEAN} else _Form()
        if kind is Op.SQUARE:
            return _Form(p.SQUARES) if a.part is p.CENTRED or (a.part is p.INPUT and plain) else _Form()
        if kind is Op.SUB:
            if pair == (p.INPUT, p.MEAN):
                return _Form(p.CENTRED)
            if pair == (p.SCALED_INPUT, p.SCALED_MEAN) and a.gamma == b.gamma:
                return _Form(p.RESULT, a.gamma)
            if b.part is p.SCALED_MEAN and self.is_channels(x):
                return _Form(p.OFFSET, b.gamma, x)
        if kind is Op.ADD:
            return self.sum_of(x, z, a, b)
        if kind is Op.SQRT and a.part is p.SHIFTED:
            return _Form(p.DEVIATION)
        if kind is Op.RSQRT and a.part is p.SHIFTED:
            return _Form(p.RECIPROCAL)
        if kind is Op.DIV and b.part is p.DEVIATION:
            if a.part is p.CENTRED or (a.part is p.INPUT and plain):
                return _Form(p.RESULT)
            return _Form(p.RECIPROCAL) if self.is_number(x) and network.graph.splat(x) == 1 else _Form()
        if kind is Op.MUL:
            return self.product_of(x, z, a, b)
        return _Form()

    def sum_of(self, x: int, z: int, a: _Form, b: _Form) -> _Form:
        p = _Part
        if (a.part is p.VARIANCE and self.is_number(z)) or (b.part is p.VARIANCE and self.is_number(x)):
            return _Form(p.SHIFTED)
        turned = b.part in (p.SCALED_INPUT, p.RESULT)
        main, other, constant = (b, a, x) if turned else (a, b, z)
        if main.part is p.SCALED_INPUT and other.part is p.OFFSET and main.gamma == other.gamma:
            return _Form(p.RESULT, main.gamma, other.beta)
        if main.part is p.RESULT and main.beta < 0 and self.centred and self.is_channels(constant):
            return _Form(p.RESULT, main.gamma, constant)
        return _Form()

    def product_of(self, x: int, z: int, a: _Form, b: _Form) -> _Form:
        p = _Part
        if a.part is not p.NONE and b.part is not p.NONE:
            gamma, parts = max(a.gamma, b.gamma), {a.part, b.part}
            if parts == {p.CENTRED} or (parts == {p.INPUT} and not self.centred):
                return _Form(p.SQUARES)
            if parts == {p.CENTRED, p.RECIPROCAL}:
                return _Form(p.RESULT, gamma)
            if parts == {p.INPUT, p.RECIPROCAL}:
                return _Form(p.SCALED_INPUT if self.centred else p.RESULT, gamma)
            return _Form(p.SCALED_MEAN, gamma) if parts == {p.MEAN, p.RECIPROCAL} else _Form()
        main, constant = (b, x) if b.part is not p.NONE else (a, z)
        if main.gamma >= 0 or main.beta >= 0 or not self.is_channels(constant):
            return _Form()
        return _Form(main.part, constant) if main.part in (p.RECIPROCAL, p.RESULT) else _Form()
