"""1x1 convolutions over images that are one pixel, enlarged: the image pooling of DeepLab's ASPP heads, for one.

A convolution of single pixels multiplies each of them by the same matrix and sums over channels, so that what is the
same everywhere need be computed once only::

    conv_1x1(enlarged(v), W)             = enlarged(conv_1x1(v, W))
    conv_1x1([x, enlarged(v)], [W1, W2]) = conv_1x1(x, W1) + conv_1x1(v, W2)

v has one pixel for each image; RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR, TILE, BROADCAST_TO or MUL by ones enlarge it,
and functions of single elements may follow. The sum in the second line is an ADD that broadcasts, with the activation
of the convolution.

Bilinear interpolation between equal numbers a is a (1 - t) + a t, which rounds, and makes NaN of infinities. Where it
goes, the sums take v's own numbers.

A channel of v is then no longer enlarged, joined to others and multiplied for each pixel of the result, while the ADD
or the enlarging of the result takes time for each of its channels. Measured with ai-edge-litert 2.3.0 and XNNPACK on
x86 (AVX2), one thread, medians of paired runs, 8 to 256 output channels of 4x4 to 80x80 pixels, v alone or beside 32
channels: where v has 64 channels, it takes 0.1 to 0.7 of the time, where it has 16, 0.4 to 1.0, and where it has 4, up
to 1.2 in a sum and up to 1.8 alone. The limit below is set accordingly. The builtin kernels gain at least as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from litefuse.fusions.activation import CLAMPS, FUSED
from litefuse.fusions.constant_folding import MAX_GROWTH
from litefuse.fusions.operands import input_of, integers
from litefuse.fusions.padding import windows
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.fusions.stored import Stored, store, stored
from litefuse.graph import Graph, OperatorKind
from litefuse.graph.pattern import NONE
from litefuse.schema.enums import ActivationFunctionType, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

_RESIZES = frozenset({Op.RESIZE_BILINEAR, Op.RESIZE_NEAREST_NEIGHBOR})
# Continuous functions of single elements: what bilinear interpolation rounds makes little difference to them.
_FUNCTIONS: frozenset[OperatorKind] = frozenset(
    {*CLAMPS, Op.ABS, Op.ELU, Op.GELU, Op.HARD_SWISH, Op.LEAKY_RELU, Op.LOGISTIC, Op.NEG, Op.TANH}
)
# Channels of pixels from which on it pays to convolve them apart, whatever the number of output channels.
_LEAST = 16
_WEIGHTS = frozenset({TensorType.FLOAT32, TensorType.FLOAT16})


class _Pixel(NamedTuple):
    """An image whose pixels are all the same."""

    tensor: int
    """One such pixel for each image of the batch."""
    functions: list[Operator]
    """What is computed from it on the way, the first one first."""
    resize: Operator | None
    """The last operator that enlarges it, if that is a resize."""


class _Part(NamedTuple):
    """One of the tensors that a convolution reads side by side."""

    tensor: int
    channels: slice
    pixel: _Pixel | None


class ConvolutionAboveEnlargedPixel(Rule):
    """conv_1x1(enlarged(v)) = enlarged(conv_1x1(v)), where v has one pixel for each image.

    For CONV_2D of FLOAT32, with float16 weights too, behind RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR, TILE,
    BROADCAST_TO and MUL by ones, with functions of single elements in between, or behind a CONCATENATION of nothing
    but such images. What enlarges the result is a resize.
    """

    name = "convolution-above-enlarged-pixel"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.CONV_2D})
    example = """
        graph main(%x: f32[1,1,1,16]) {
          %r = RESIZE_BILINEAR(%x, i32[2]=(8, 8))
          %y = CONV_2D(%r, w[32,1,1,16], b[32]) {activation=RELU}
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Convolves the pixel and enlarges the result."""
        parts = _parts(graph, op)
        if not parts or any(part.pixel is None for part in parts):
            return None
        weights = _weights(graph, op, parts)
        if not isinstance(weights, Stored):
            return weights
        small = _convolved(graph, op, _pixels(graph, op, parts), op.inputs[1], op.inputs[2], graph.activation(op))
        resize = next((part.pixel.resize for part in parts if part.pixel and part.pixel.resize), None)
        _, *size, _ = graph.shape(op.outputs[0]) or ()
        inputs = [small, graph.add_constant(f"{graph.name(op.outputs[0])}/size", np.array(size, np.int32))]
        if resize is None:
            graph.replace(op, Op.RESIZE_NEAREST_NEIGHBOR, inputs)
        else:
            version, options = graph.version(resize), resize.builtin_options
            graph.replace(op, graph.kind(resize), inputs, version=version, options=options)
        return Applied(f"one pixel instead of {size[0]}x{size[1]}")


class EnlargedPixelApart(Rule):
    """conv_1x1(concat(x, enlarged(v))) = conv_1x1(x) + conv_1x1(v), where v has one pixel for each image.

    For CONV_2D of FLOAT32, with float16 weights too, that alone reads the CONCATENATION, whose parts may be several of
    either sort in any order. RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR, TILE, BROADCAST_TO or MUL by ones enlarge v,
    with functions of single elements in between.
    """

    name = "enlarged-pixel-apart"
    numerics = Numerics.REASSOCIATED
    kinds = frozenset({Op.CONV_2D})
    example = """
        graph main(%x: f32[1,8,8,16], %v: f32[1,1,1,16]) {
          %r = RESIZE_BILINEAR(%v, i32[2]=(8, 8))
          %c = CONCATENATION(%r, %x) {axis=3}
          %y = CONV_2D(%c, w[32,1,1,32], b[32]) {activation=RELU}
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Splits the weights between pixels and the rest."""
        parts = _parts(graph, op)
        alike = [part for part in parts if part.pixel is not None]
        rest = [part for part in parts if part.pixel is None]
        if not alike or not rest:
            return None
        weights = _weights(graph, op, parts)
        if not isinstance(weights, Stored):
            return weights
        if reason := _why_not_apart(graph, op, weights):
            return Refused(reason)
        activation, bias = graph.activation(op), op.inputs[2]
        zeros = graph.add_constant(f"{graph.name(bias)}/zeros", np.zeros(weights.value.shape[0], np.float32))
        pixel, x = _pixels(graph, op, alike), _joined(graph, op, [part.tensor for part in rest])
        small = _convolved(graph, op, pixel, _share(graph, op, weights, alike), bias, NONE)
        large = _convolved(graph, op, x, _share(graph, op, weights, rest), zeros, NONE)
        graph.replace(op, Op.ADD, [large, small], fused_activation_function=activation)
        return Applied(f"{_count(alike)} of {weights.value.shape[3]} channels for one pixel only")


# -- what is there -------------------------------------------------------------------------------------------------


def _parts(graph: Graph, op: Operator) -> list[_Part]:
    """What a 1x1 convolution reads; nothing where the rules have nothing to say."""
    sliding = windows(graph, op)
    if sliding is None or any(window.kernel != 1 for window in sliding):
        return []
    if input_of(op, 2) < 0 or graph.tensor(op.inputs[0]).is_variable:
        return []  # the kernels want a bias
    join = _join(graph, op)
    parts: list[_Part] = []
    start = 0
    for tensor in [op.inputs[0]] if join is None else join.inputs:
        shape = graph.shape(tensor)
        if shape is None or len(shape) != 4 or shape[3] <= 0 or graph.tensor(tensor).is_variable:
            return []
        parts.append(_Part(tensor, slice(start, start + shape[3]), _pixel(graph, tensor)))
        start += shape[3]
    return parts


def _count(parts: Iterable[_Part]) -> int:
    return sum(part.channels.stop - part.channels.start for part in parts)


def _join(graph: Graph, op: Operator) -> Operator | None:
    """The CONCATENATION of channels that an operator reads."""
    maker = graph.producer(op.inputs[0])
    if maker is None or graph.kind(maker) is not Op.CONCATENATION or graph.activation(maker) != NONE:
        return None
    return maker if getattr(maker.builtin_options, "axis", 0) in (-1, 3) else None


def _pixel(graph: Graph, tensor: int) -> _Pixel | None:
    """The pixel of which an image consists; None where they differ, or may."""
    shape, type = graph.shape(tensor), graph.type(tensor)
    functions: list[Operator] = []
    last: Operator | None = None
    while shape is not None:
        maker = graph.producer(tensor)
        if maker is None or len(maker.outputs) != 1:
            return None
        is_function = graph.kind(maker) in _FUNCTIONS
        source = maker.inputs[0] if is_function else _enlarged(graph, maker)
        if source is None or graph.tensor(source).is_variable:
            return None
        if is_function:
            functions.insert(0, maker)
        else:
            last = last or maker
        tensor = source
        found = graph.shape(tensor)
        if found is None or len(found) != 4 or (found[0], found[3]) != (shape[0], shape[3]):
            return None
        if graph.type(tensor) != type or graph.is_constant(tensor):
            return None
        if last is not None and found[1:3] == (1, 1):
            return _Pixel(tensor, functions, last if graph.kind(last) in _RESIZES else None)
    return None


def _enlarged(graph: Graph, op: Operator) -> int | None:
    """The tensor whose images an operator enlarges, if nothing else, should they have one pixel only."""
    kind = graph.kind(op)
    if kind in _RESIZES:
        return op.inputs[0]
    if kind is Op.TILE:
        counts = integers(graph, input_of(op, 1))
        return op.inputs[0] if counts is not None and len(counts) == 4 and counts[0] == counts[3] == 1 else None
    (batch, *_) = graph.shape(op.outputs[0]) or (-1,)
    if batch < 0:
        return None  # what is broadcast may have fewer images
    if kind is Op.BROADCAST_TO:
        return op.inputs[0]
    if kind is Op.MUL and graph.activation(op) == NONE:
        return next((x for x, ones in (op.inputs, reversed(op.inputs)) if graph.splat(ones) == 1), None)
    return None


def _weights(graph: Graph, op: Operator, parts: Sequence[_Part]) -> Stored | Refused | None:
    """The weights of a convolution whose sums may be taken apart, or why they may not."""
    x, here = op.inputs[0], graph.where(op)
    if not (graph.is_float(x) and graph.is_float(op.outputs[0])):
        return Refused(f"{here} computes {graph.type(x).name}, so that parts of its sums would be rounded apart")
    weights = stored(graph, op.inputs[1])
    if weights is None:
        return Refused(f"the weights of {here} are not a dense constant")
    if graph.type(weights.tensor) not in _WEIGHTS:
        return Refused(f"the weights of {here} are {graph.type(weights.tensor).name}, for which it quantises its input")
    if weights.value.shape[3] != parts[-1].channels.stop:
        return Refused(f"{here} has groups of channels")
    size = (graph.shape(op.outputs[0]) or ())[1:3]
    if len(size) != 2 or min(size) < 0:
        return Refused(f"height and width of `{graph.name(op.outputs[0])}` are only known at run time")
    if size == (1, 1):
        return Refused(f"`{graph.name(op.outputs[0])}` has one pixel only")
    few = _count(part for part in parts if part.pixel is not None)
    if few < _LEAST:
        return Refused(
            f"only {few} of the channels that {here} reads are the same everywhere; it pays from {_LEAST} on"
        )
    join = _join(graph, op)
    shared = graph.why_shared(x, op) if join is not None else None
    return Refused(shared) if shared else weights


def _why_not_apart(graph: Graph, op: Operator, weights: Stored) -> str | None:
    activation = graph.activation(op)
    if activation not in FUSED:
        return f"ADD has no fused {activation.name}"
    users = [*graph.readers(weights.tensor), *graph.readers(op.inputs[1])]
    if weights.value.nbytes > MAX_GROWTH and any(user is not op and user is not weights.widening for user in users):
        return f"`{graph.name(weights.tensor)}` is also used elsewhere, so that the file would hold it twice"
    return None


# -- what becomes of it --------------------------------------------------------------------------------------------


def _pixels(graph: Graph, op: Operator, parts: Sequence[_Part]) -> int:
    """The pixels side by side, after what is computed from them."""
    tensors = []
    for pixel in (part.pixel for part in parts if part.pixel is not None):
        tensor = pixel.tensor
        for function in pixel.functions:
            name = f"{graph.name(function.outputs[0])}/pixel"
            out = graph.add_tensor(name, (), TensorType.FLOAT32, like=pixel.tensor)
            version, options = graph.version(function), function.builtin_options
            graph.add_operator(graph.kind(function), [tensor], [out], before=op, version=version, options=options)
            tensor = out
        tensors.append(tensor)
    return _joined(graph, op, tensors)


def _joined(graph: Graph, op: Operator, tensors: Sequence[int]) -> int:
    """Some of what an operator's CONCATENATION joins."""
    join = _join(graph, op)
    if len(tensors) == 1 or join is None:
        return tensors[0]
    shapes = [graph.shape(tensor) or () for tensor in tensors]
    name = f"{graph.name(join.outputs[0])}/part"
    out = graph.add_tensor(name, (*shapes[0][:3], sum(shape[3] for shape in shapes)), TensorType.FLOAT32)
    version, options = graph.version(join), join.builtin_options
    graph.add_operator(Op.CONCATENATION, tensors, [out], before=op, version=version, options=options)
    return out


def _share(graph: Graph, op: Operator, weights: Stored, parts: Sequence[_Part]) -> int:
    """The weights for some of the parts."""
    value = np.concatenate([weights.value[..., part.channels] for part in parts], -1)
    return store(graph, weights, value, op)


def _convolved(graph: Graph, op: Operator, x: int, weights: int, bias: int, activation: ActivationFunctionType) -> int:
    """Adds a convolution like ``op`` of another tensor."""
    shape, out = graph.shape(x) or (), graph.shape(op.outputs[0]) or ()
    size = (1, 1) if shape[1:3] == (1, 1) else out[1:3]
    made = graph.add_tensor(f"{graph.name(op.outputs[0])}/part", (out[0], *size, out[3]), TensorType.FLOAT32)
    assert op.builtin_options is not None
    options = op.builtin_options.replace(fused_activation_function=activation)
    inputs = [x, weights, bias]
    graph.add_operator(Op.CONV_2D, inputs, [made], before=op, version=graph.version(op), options=options)
    return made


RULES: tuple[Rule, ...] = (ConvolutionAboveEnlargedPixel(), EnlargedPixelApart())
