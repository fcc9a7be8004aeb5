"""Dilated convolutions that a file spells with batches of phases.

A convolution that looks at every d-th element only is an ordinary one on each of the d phases of its input::

    BATCH_TO_SPACE(conv(SPACE_TO_BATCH(x, d, p), VALID), d, c) = conv_dilated_by_d(pad(x, p - c), VALID)

Phase r of the padded x holds its elements r, r + d, r + 2d ...; output i of that phase sees elements r + d (i + k), and
BATCH_TO_SPACE puts it at r + d i. Cropping the result by c in front takes away c of the zeros in front, and behind
likewise. Where p - c is what SAME pads, SAME it is, and PAD is put in front otherwise. A convolution that pads its
phases itself, by f in front, pads x by f d.

What was padded and cropped only to fill up the last block need not even be known: p - c is what counts. So files whose
height and width are open, and which compute p and c, get one convolution too (tensorflow#29509).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, TypeAlias

import numpy as np

from litefuse.fusions.identity import same_quantization
from litefuse.fusions.operands import RESHAPES, input_of, integers
from litefuse.fusions.padding import Window, equals_same, windows
from litefuse.fusions.relay import BINARY, UNARY
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph
from litefuse.graph.graph import Array
from litefuse.graph.infer.kernels import KERNELS, Style
from litefuse.graph.infer.site import Facts, ShapeError, Site, Unknown, infer
from litefuse.schema.enums import Padding, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator
from litefuse.schema.types import FLOATS

_CONVOLUTIONS = frozenset({Op.CONV_2D, Op.DEPTHWISE_CONV_2D})
_MOST_TERMS = 64
_PAD_VERSIONS = {TensorType.INT8: 2, TensorType.INT16: 3}
# An integer that is a number plus something unknown (None for nothing); equal names are the same unknown.
Term: TypeAlias = tuple[Hashable, int]


class _No(Exception):
    pass


class _Chain:
    """SPACE_TO_BATCH_ND, a convolution, what follows it element by element, and BATCH_TO_SPACE_ND.

    Attributes:
        start, conv, end: the three operators.
        pointwise: those between the convolution and the end, in order of execution.
        gap: of a one-dimensional convolution, done in two dimensions between two reshapes, which axis of its input and
            output is the other dimension; else None.
        links: what is computed along the way, with the operator of the chain that reads it.
    """

    def __init__(self, graph: Graph, end: Operator) -> None:
        self.graph, self.end = graph, end
        self.pointwise: list[Operator] = []
        self.gap: int | None = None
        self.links: list[tuple[int, Operator]] = []
        gap_behind: int | None = None
        op = self._maker(end.inputs[0], end)
        while graph.kind(op) not in _CONVOLUTIONS:
            if graph.kind(op) in RESHAPES and gap_behind is None:
                gap_behind = _gap(graph, op.outputs[0], op.inputs[0])
            elif self._is_pointwise(op):
                self.pointwise.insert(0, op)
            else:
                raise _No
            op = self._maker(op.inputs[_data(graph, op)], op)
        self.conv = op
        op = self._maker(op.inputs[0], op)
        if graph.kind(op) in RESHAPES:
            self.gap = _gap(graph, op.inputs[0], op.outputs[0])
            op = self._maker(op.inputs[0], op)
        if graph.kind(op) is not Op.SPACE_TO_BATCH_ND or self.gap != gap_behind:
            raise _No
        self.start = op

    def _maker(self, tensor: int, reader: Operator) -> Operator:
        op = self.graph.producer(tensor)
        if op is None or len(op.outputs) != 1:
            raise _No
        self.links.append((tensor, reader))
        return op

    def _is_pointwise(self, op: Operator) -> bool:
        """Whether an operator computes element by element, with a constant that varies along the channels at most."""
        graph = self.graph
        if graph.kind(op) in UNARY:
            return True
        shapes = [graph.shape(t) for slot, t in enumerate(op.inputs) if t >= 0 and slot != _data(graph, op)]
        return graph.kind(op) in BINARY and all(s is not None and all(d == 1 for d in s[:-1]) for s in shapes)

    def why_shared(self) -> str | None:
        """Why what is computed along the chain is needed elsewhere too."""
        return next((why for t, reader in self.links if (why := self.graph.why_shared(t, reader))), None)

    def widened(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape outside of the chain as the convolution sees it."""
        return shape if self.gap is None else (*shape[: self.gap], 1, *shape[self.gap :])


def _data(graph: Graph, op: Operator) -> int:
    """The slot of the only input that is not constant."""
    found = [slot for slot, t in enumerate(op.inputs) if t >= 0 and not graph.is_constant(t)]
    if len(found) != 1:
        raise _No
    return found[0]


def _gap(graph: Graph, narrow: int, wide: int) -> int:
    """Which of the middle axes of the wide tensor, of four dimensions, the narrow one of three does without."""
    few, many = graph.shape(narrow), graph.shape(wide)
    if few is None or many is None or len(few) != 3 or len(many) != 4:
        raise _No
    found = [axis for axis in (1, 2) if many[axis] == 1 and many[:axis] + many[axis + 1 :] == few]
    if not found:
        raise _No
    return found[0]


class _Dilate(Rule):
    """Base: one rule for floats, one for quantised numbers."""

    kinds = frozenset({Op.BATCH_TO_SPACE_ND})
    floats: ClassVar[bool]

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Finds the chain and how much is padded, and rebuilds it."""
        if (graph.type(op.outputs[0]) in FLOATS) is not self.floats:
            return None
        try:
            chain = _Chain(graph, op)
            pads, slides = _geometry(graph, chain)
            if shared := chain.why_shared():
                raise _No(shared)
            _rebuild(graph, chain, pads, slides)
        except _No as no:
            return Refused(str(no)) if str(no) else None
        return Applied()


class DilatedConvolution(_Dilate):
    """BATCH_TO_SPACE_ND(conv(SPACE_TO_BATCH_ND(x, d, p)), d, c) = conv(x, dilation d), behind a PAD where it takes one.

    CONV_2D and DEPTHWISE_CONV_2D of stride 1, also one-dimensional ones between reshapes, with or without a bias or
    activation before BATCH_TO_SPACE_ND. Sums may be added up in another order, which kernels choose by the number of
    rows.
    """

    name = "dilated-convolution"
    numerics = Numerics.REASSOCIATED
    example = """
        graph main(%x: f32[1,8,8,4]) {
          %s = SPACE_TO_BATCH_ND(%x, i32[2]=2, i32[2,2]=2)
          %c = CONV_2D(%s, w[16,3,3,4], b[16]) {padding=VALID}
          %y = BATCH_TO_SPACE_ND(%c, i32[2]=2, i32[2,2]=0)
          return %y
        }
    """
    floats = True


class QuantizedDilatedConvolution(_Dilate):
    """BATCH_TO_SPACE_ND(conv(SPACE_TO_BATCH_ND(x, d, p)), d, c) = conv(x, dilation d), for quantised numbers.

    As for floats, but the sums are exact.
    """

    name = "dilated-convolution-quantized"
    numerics = Numerics.EXACT
    example = """
        graph main(%x: i8[1,8,8,4]{scale=0.02}) {
          %s = SPACE_TO_BATCH_ND(%x, i32[2]=2, i32[2,2]=2)
          %c: i8[4,4,4,16]{scale=0.1} = CONV_2D(%s, w:i8[16,3,3,4]{scale=0.005}, b:i32[16]{scale=1e-4}) {padding=VALID}
          %y = BATCH_TO_SPACE_ND(%c, i32[2]=2, i32[2,2]=0)
          return %y
        }
    """
    floats = False


def _geometry(graph: Graph, chain: _Chain) -> tuple[list[tuple[int, int]], list[Window]]:
    """How much is padded along height and width in the end, and the windows of the dilated convolution."""
    conv, start, end = chain.conv, chain.start, chain.end
    x = start.inputs[0]
    here, shape = graph.where(conv), graph.shape(x)
    blocks = integers(graph, input_of(start, 1))
    slides = windows(graph, conv)
    if (
        shape is None
        or blocks is None
        or slides is None
        or len(chain.widened(shape)) != 4
        or graph.tensor(x).is_variable
    ):
        raise _No
    if blocks != integers(graph, input_of(end, 1)):
        raise _No("SPACE_TO_BATCH_ND before it has other blocks")
    if not same_quantization(graph, x, start.outputs[0]) or not same_quantization(graph, end.inputs[0], end.outputs[0]):
        raise _No
    if any(w.stride != 1 for w in slides):
        raise _No(f"{here} has a stride, with which it skips elements of each phase")
    if graph.type(x) in FLOATS and graph.type(input_of(conv, 1)) not in FLOATS:
        raise _No(f"{here} rounds its input to 8 bits with a scale for each phase, which would become one for all")
    terms = _Terms(graph)
    pads = _differences(terms.of(input_of(start, 2)), terms.of(input_of(end, 2)))
    if pads is None or len(pads) != len(blocks):
        raise _No("the paddings of SPACE_TO_BATCH_ND and its own crops are not known to differ by fixed numbers")
    if chain.gap is not None:
        if shape.count(-1) > 1:
            raise _No("several dimensions of the input are unknown, so that it cannot be reshaped")
        blocks.insert(chain.gap - 1, 1)
        pads.insert(chain.gap - 1, (0, 0))
    if getattr(conv.builtin_options, "padding", None) == Padding.SAME:
        own = [((w.reach - 1) // 2 * d, w.reach // 2 * d) for w, d in zip(slides, blocks, strict=True)]
        pads = [(p + f, q + b) for (p, q), (f, b) in zip(pads, own, strict=True)]
    if any(p < 0 for pair in pads for p in pair):
        raise _No("it crops more than SPACE_TO_BATCH_ND pads, and so leaves out part of the input")
    return pads, [Window(w.kernel, 1, w.dilation * d) for w, d in zip(slides, blocks, strict=True)]


def _rebuild(graph: Graph, chain: _Chain, pads: list[tuple[int, int]], slides: list[Window]) -> None:
    conv, end = chain.conv, chain.end
    x, out = chain.start.inputs[0], end.outputs[0]
    name, type, quantization = graph.name(out), graph.type(x), graph.tensor(x).quantization
    shape, result = (chain.widened(graph.shape(t) or ()) for t in (x, out))
    if chain.gap is not None:
        x = _reshape(graph, x, graph.add_tensor(f"{name}/input", shape, type, quantization=quantization), conv)
    sides = zip(shape[1:3], pads, slides, strict=True)
    same = all(equals_same(size, before, after, window) for size, (before, after), window in sides)
    if not same and any(p for pair in pads for p in pair):
        amounts = [(0, 0), *pads, (0, 0)]
        padded = [d if d < 0 else d + sum(p) for d, p in zip(shape, amounts, strict=True)]
        inputs = [x, graph.add_constant(f"{name}/paddings", np.array(amounts, np.int32))]
        x = graph.add_tensor(f"{name}/padded", padded, type, quantization=quantization)
        graph.add_operator(Op.PAD, inputs, [x], before=conv, version=_PAD_VERSIONS.get(type, 1))
    assert conv.builtin_options is not None
    conv.builtin_options = conv.builtin_options.replace(
        padding=Padding.SAME if same else Padding.VALID,
        dilation_h_factor=slides[0].dilation,
        dilation_w_factor=slides[1].dilation,
    )
    if graph.kind(conv) is Op.DEPTHWISE_CONV_2D:
        graph.set_version(conv, 2)
    slots = [0, *(_data(graph, op) for op in chain.pointwise)]
    for op, slot in zip([conv, *chain.pointwise], slots, strict=True):
        graph.set_input(op, slot, x)
        old = op.outputs[0]
        x = graph.add_tensor(
            graph.name(old),
            (*result[:-1], (graph.shape(old) or result)[-1]),
            graph.type(old),
            quantization=graph.tensor(old).quantization,
        )
        graph.set_output(op, 0, x)
    if chain.gap is None:
        graph.bypass(end, x)
    else:
        spare = graph.add_tensor(name, (), graph.type(out), like=out)
        graph.set_output(end, 0, spare)
        _reshape(graph, x, out, end)
        graph.remove(end)
    graph.prune([tensor for tensor, _ in chain.links])


def _reshape(graph: Graph, x: int, out: int, before: Operator) -> int:
    """Adds a RESHAPE of ``x`` to the shape of ``out``, which it returns."""
    shape = list(graph.shape(out) or ())
    target = graph.add_constant(f"{graph.name(out)}/shape", np.array(shape, np.int32))
    graph.add_operator(Op.RESHAPE, [x, target], [out], before=before, new_shape=shape)
    return out


# -- paddings that are computed ----------------------------------------------------------------------------------------


class _Terms:
    """Integers that shape arithmetic computes, as a number plus something unknown.

    Elements are numbered, equal ones alike, so that operators that move elements can be run on the numbers.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._facts = Facts(graph)
        self._terms: list[Term] = []
        self._numbers: dict[Term, int] = {}
        self._found: dict[int, Array | None] = {}

    def of(self, tensor: int) -> list[Term] | None:
        """The elements of a tensor in order; None when not even their count is known."""
        found = self._number(tensor)
        return None if found is None else [self._terms[n] for n in found.reshape(-1).tolist()]

    def _number(self, tensor: int) -> Array | None:
        if tensor >= 0 and tensor not in self._found:
            self._found[tensor] = self._computed(tensor)
        return self._found.get(tensor)

    def _computed(self, tensor: int) -> Array | None:
        op = self.graph.producer(tensor)
        found = self._of_constant(tensor) if op is None else self._of_operator(op)
        shape = self._facts.spec(tensor).shape
        if found is not None or shape is None or min(shape, default=0) < 0 or int(np.prod(shape)) > _MOST_TERMS:
            return found
        # Whatever it is, it is the same each time it is used.
        return self._numbered([((tensor, i), 0) for i in range(int(np.prod(shape)))], shape)

    def _of_constant(self, tensor: int) -> Array | None:
        value = self.graph.constant(tensor)
        if value is None or value.dtype.kind not in "iu" or value.size > _MOST_TERMS:
            return None
        return self._numbered([(None, v) for v in value.reshape(-1).tolist()], value.shape)

    def _of_operator(self, op: Operator) -> Array | None:
        operands = [self._number(t) for t in op.inputs]
        site = Site(self._facts, op)
        try:
            site.outputs = infer(site) or []
            for tensor, spec in zip(op.outputs, site.outputs, strict=False):
                self._facts.specs[tensor] = spec
            kernel, kind = KERNELS.get(site.kind), site.kind
            if kind in (Op.ADD, Op.SUB) and len(op.inputs) == 2:
                return self._sum(operands, -1 if kind is Op.SUB else 1)
            if kernel is None or kernel.style is not Style.MOVES or len(op.outputs) != 1:
                return None
            payload = kernel.payload(site)
            values = [operands[i] if i in payload else self.graph.constant(t) for i, t in enumerate(op.inputs)]
            if any(value is None for value in values):
                return None
            found = kernel.run(site, values)
        except (ShapeError, Unknown):
            return None
        return found[0] if found else None

    def _sum(self, operands: list[Array | None], sign: int) -> Array | None:
        a, b = operands
        if a is None or b is None:
            return None
        a, b = np.broadcast_arrays(a, b)
        sums: list[Term] = []
        for m, n in zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True):
            (p, i), (q, j) = self._terms[m], self._terms[n]
            if q is None:
                sums.append((p, i + sign * j))
            elif p is None and sign == 1:
                sums.append((q, i + j))
            elif p == q and sign == -1:
                sums.append((None, i - j))
            else:
                return None
        return self._numbered(sums, a.shape)

    def _numbered(self, terms: list[Term], shape: tuple[int, ...]) -> Array:
        for term in terms:
            if term not in self._numbers:
                self._numbers[term] = len(self._terms)
                self._terms.append(term)
        return np.array([self._numbers[term] for term in terms], np.int64).reshape(shape)


def _differences(a: list[Term] | None, b: list[Term] | None) -> list[tuple[int, int]] | None:
    """A - b in pairs, when all of the differences are numbers."""
    if a is None or b is None or len(a) != len(b) or any(p != q for (p, _), (q, _) in zip(a, b, strict=True)):
        return None
    found = [i - j for (_, i), (_, j) in zip(a, b, strict=True)]
    return list(zip(found[::2], found[1::2], strict=True))


RULES: tuple[Rule, ...] = (DilatedConvolution(), QuantizedDilatedConvolution())
