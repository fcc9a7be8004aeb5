"""Upsampling by whole factors that a file spells with repetitions.

::

    y[n, h, w, c] = x[n, h // f, w // g, c]

is RESIZE_NEAREST_NEIGHBOR, in whatever way elements of x are moved to get there: RESHAPE, TILE, RESHAPE, TILE, RESHAPE
as Keras 3 has it, BROADCAST_TO between two RESHAPEs, CONCATENATION or PACK of a tensor with itself, GATHER of each row
twice, or a resize after another. So no spelling is looked for: the operators between x and y, if all they do is move
elements, are carried out on the numbers of the elements, and the result compared. What depends on an unknown batch is
compared for several.

The resizing kernel spends time on each pixel, however few bytes it has: about 15 ns, where TILE spends 10 and GATHER
and XNNPACK's CONCATENATION 4, while these write everything twice. So it depends on the bytes per pixel which is faster;
the limits below are where RESIZE_NEAREST_NEIGHBOR was measured to win on x86, with XNNPACK around it.
"""

from __future__ import annotations

import math

import numpy as np

from litefuse.fusions.identity import same_quantization
from litefuse.fusions.operands import RESHAPES, integers, option
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph
from litefuse.graph.graph import SIDE_EFFECTS, Array
from litefuse.graph.infer.kernels import KERNELS, Style
from litefuse.graph.infer.site import Facts, ShapeError, Site, TensorSpec, Unknown, infer
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator
from litefuse.schema.types import nbytes

_VERSIONS = {TensorType.FLOAT32: 1, TensorType.UINT8: 1, TensorType.INT8: 2, TensorType.INT16: 4}
_EIGHT_BITS = frozenset({TensorType.INT8, TensorType.UINT8})
# Operators that repeat elements, and from how many bytes per pixel on a resize is faster, along both sides or one.
_REPEATS = {
    Op.BROADCAST_TO: (0, 0),
    Op.RESIZE_NEAREST_NEIGHBOR: (0, 0),
    Op.TILE: (96, 256),
    Op.CONCATENATION: (512, 512),
    Op.PACK: (512, 512),
    Op.GATHER: (512, 512),
}
_MOVES = frozenset({*RESHAPES, *_REPEATS, Op.TRANSPOSE})
_LONGEST = 12
_MOST_ELEMENTS = 1 << 22
_BATCHES = (1, 2, 5)


class Upsample(Rule):
    """RESHAPE(TILE(RESHAPE(TILE(RESHAPE(x))))) = RESIZE_NEAREST_NEIGHBOR(x), and every other way to repeat pixels.

    For whole factors, for operators that do nothing else and whose results nothing else needs, and only from so many
    bytes per pixel on that the one resize is faster than what it replaces.
    """

    name = "upsample"
    numerics = Numerics.EXACT
    kinds = _MOVES
    example = """
        graph main(%x: f32[1,4,4,64]) {
          %a = RESHAPE(%x, i32[6]=(1, 4, 1, 4, 1, 64))
          %t = TILE(%a, i32[6]=(1, 1, 2, 1, 2, 1))
          %y = RESHAPE(%t, i32[4]=(1, 8, 8, 64))
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Looks for the nearest tensor above ``op`` of which its result is an enlarged copy."""
        out = op.outputs[0]
        if graph.type(out) not in _VERSIONS or len(op.outputs) != 1:
            return None
        chain: list[Operator] = []
        refusal: Outcome = None
        tensor = out
        while len(chain) < _LONGEST:
            maker = graph.producer(tensor)
            source = None if maker is None else _source(graph, maker)
            if maker is None or source is None:
                break
            chain.append(maker)
            tensor = source
            if (
                len(chain) > 1
                and any(graph.kind(o) in _REPEATS for o in chain)
                and _may_be_enlarged(graph, tensor, out)
            ):
                factors = _factors(graph, tensor, out)
                if factors is not None:
                    outcome = self._replace(graph, op, tensor, chain, factors)
                    if isinstance(outcome, Applied):
                        return outcome
                    refusal = outcome  # perhaps it pays from further above
        return refusal

    @staticmethod
    def _replace(graph: Graph, op: Operator, x: int, chain: list[Operator], factors: tuple[int, int]) -> Outcome:
        out, type, shape = op.outputs[0], graph.type(x), graph.shape(x) or ()
        limit = max(_REPEATS.get(graph.kind(o), (0, 0))[1 in factors] for o in chain)
        size = nbytes(type, shape[3]) or 0
        if size < limit and type not in _EIGHT_BITS:
            return Refused(
                f"a pixel has {size} bytes only: up to {limit}, RESIZE_NEAREST_NEIGHBOR is slower than "
                f"these {len(chain)} operators"
            )
        gone = _vanishing(graph, op)
        for inner in chain[1:]:
            if inner not in gone:
                return Refused(graph.why_shared(inner.outputs[0], *gone))
        half_pixel = _kernel_agrees(shape, factors, type)
        if half_pixel is None:
            return Refused("RESIZE_NEAREST_NEIGHBOR would round some positions to their neighbours")
        target = [d * f for d, f in zip(shape[1:3], factors, strict=True)]
        size_tensor = graph.add_constant(f"{graph.name(out)}/size", np.array(target, np.int32))
        version = max(_VERSIONS[type], 3 if half_pixel else 1)
        graph.replace(op, Op.RESIZE_NEAREST_NEIGHBOR, [x, size_tensor], version=version, half_pixel_centers=half_pixel)
        declared = graph.tensor(out)
        if declared.shape_signature is not None and out not in graph.outputs:
            declared.shape_signature = [shape[0], *target, shape[3]]  # the file may have known less
        return Applied(f"{len(chain)} operators became one")


def _vanishing(graph: Graph, op: Operator) -> list[Operator]:
    """The operators that are needed for ``op`` only, itself included."""
    gone = [op]
    for reader in gone:
        for tensor in reader.inputs:
            maker = graph.producer(tensor)
            if maker is None or maker in gone or graph.kind(maker) in SIDE_EFFECTS or graph.has_state(maker):
                continue
            if not any(t in graph.outputs or any(r not in gone for r in graph.readers(t)) for t in maker.outputs):
                gone.append(maker)
    return gone


def _source(graph: Graph, op: Operator) -> int | None:
    """The tensor whose elements an operator moves, or None."""
    kind = graph.kind(op)
    if kind not in _MOVES or not op.inputs:
        return None
    sources = op.inputs if kind in (Op.CONCATENATION, Op.PACK) else op.inputs[:1]
    x = sources[0]
    if len(set(sources)) != 1 or x < 0 or option(op, "fused_activation_function"):
        return None
    if graph.tensor(x).is_variable or graph.is_constant(x) or not same_quantization(graph, x, op.outputs[0]):
        return None
    return x


def _may_be_enlarged(graph: Graph, x: int, out: int) -> bool:
    """Whether the shapes allow ``out`` to be ``x`` with repeated pixels. The file may not know them all."""
    small, large = graph.shape(x), graph.shape(out)
    if small is None or large is None or len(small) != 4 or len(large) != 4 or min(small[1:]) <= 0:
        return False
    if graph.type(x) != graph.type(out) or large[3] not in (-1, small[3]) or large[0] not in (-1, small[0]):
        return False
    return large[1:3] != small[1:3] and not any(b >= 0 and b % a for a, b in zip(small[1:3], large[1:3], strict=True))


def _factors(graph: Graph, x: int, out: int) -> tuple[int, int] | None:
    """How often ``out`` repeats each pixel of ``x`` along height and width, or None when that is not what it is."""
    shape = graph.shape(x) or ()
    factors = (0, 0)
    for batch in _BATCHES if shape[0] < 0 else (shape[0],):
        size = (batch, *shape[1:])
        if math.prod(size) > _MOST_ELEMENTS:
            return None
        numbers = np.arange(math.prod(size), dtype=np.int64).reshape(size)
        found = _Moves(graph, x, numbers).value(out)
        if found is None or found.ndim != 4:
            return None
        factors = (found.shape[1] // shape[1], found.shape[2] // shape[2])
        if not np.array_equal(found, numbers.repeat(factors[0], 1).repeat(factors[1], 2)):
            return None
    return factors


class _Moves:
    """Carries out operators that move elements, on the numbers of a tensor's elements."""

    def __init__(self, graph: Graph, x: int, numbers: Array) -> None:
        self.graph = graph
        self._facts = Facts(graph)
        self._facts.specs[x] = TensorSpec(numbers.shape, graph.type(x))
        self._found: dict[int, Array | None] = {x: numbers}

    def value(self, tensor: int) -> Array | None:
        """The value of a tensor; None when it does not follow from constants and the given tensor alone."""
        if tensor not in self._found:
            op = self.graph.producer(tensor)
            self._found[tensor] = self.graph.constant(tensor) if op is None else self._computed(op)
        return self._found[tensor]

    def _computed(self, op: Operator) -> Array | None:
        kind = self.graph.kind(op)
        kernel = KERNELS.get(kind)
        moves = kernel is not None and kernel.style is Style.MOVES
        if len(op.outputs) != 1 or not (moves or kind is Op.RESIZE_NEAREST_NEIGHBOR):
            return None
        operands = [self.value(t) if t >= 0 else None for t in op.inputs]
        if any(value is None for value in operands):
            return None
        try:
            site = Site(self._facts, op)
            site.outputs = infer(site) or []
            self._facts.specs[op.outputs[0]] = site.outputs[0]
            if kind is Op.RESIZE_NEAREST_NEIGHBOR:
                return _resized(self.graph, op, operands[0])
            assert kernel is not None
            found = kernel.run(site, operands)
        except (ShapeError, Unknown, IndexError):
            return None
        if not found:
            return None
        if self.graph.type(op.outputs[0]) in (TensorType.INT32, TensorType.INT64):
            self._facts.values[op.outputs[0]] = found[0]  # a shape, which others need to infer theirs
        return found[0]


def _resized(graph: Graph, op: Operator, x: Array | None) -> Array | None:
    size = integers(graph, op.inputs[1])
    if x is None or x.ndim != 4 or size is None or option(op, "align_corners"):
        return None
    half, is_small = bool(option(op, "half_pixel_centers")), graph.type(op.inputs[0]) in _EIGHT_BITS
    rows, columns = (_positions(n, m, half, is_small) for n, m in zip(x.shape[1:3], size, strict=True))
    enlarged: Array = x[:, rows][:, :, columns]
    return enlarged


def _kernel_agrees(shape: tuple[int, ...], factors: tuple[int, int], type: TensorType) -> bool | None:
    """Whether the kernel, which computes positions in float32 or fixed point, needs half_pixel_centers to find them.

    None when it errs in either way.
    """
    for half_pixel in (False, True):
        sides = zip(shape[1:3], factors, strict=True)
        if all(
            np.array_equal(_positions(n, n * f, half_pixel, type in _EIGHT_BITS), np.arange(n * f) // f)
            for n, f in sides
        ):
            return half_pixel
    return None


def _positions(size: int, target: int, half_pixel: bool, is_small: bool) -> Array:
    """Which element the stock kernels take for each position along one side.

    After kernels/internal/reference/resize_nearest_neighbor.h, and optimized_ops.h for 8 bits.
    """
    places = np.arange(target)
    if is_small and not half_pixel:
        found: Array = (places * ((size << 16) // max(target, 1) + 1)) >> 16
    else:
        scale = np.float32(size) / np.float32(target)
        offset = np.float32(0.5 if half_pixel else 0.0)
        found = np.floor((places.astype(np.float32) + offset) * scale).astype(np.int64)
    clipped: Array = np.clip(found, 0, size - 1)
    return clipped


RULES: tuple[Rule, ...] = (Upsample(),)
