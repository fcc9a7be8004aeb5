"""Spatial tiling: the part of a vision network where memory peaks, computed patch by patch.

A :class:`Stage` is a part of a graph between two images (tensors ``[batch, height, width, channels]``) in which every
element of the result depends on a neighbourhood in the first image only: convolutions, pools, element by element
operators, residual sums. The result is cut into rows x columns patches. For each, a SLICE takes what it needs of the
first image, the stage's operators follow with VALID padding, and CONCATENATIONs put the patches together: along the
width first, then along the height, where the parts lie one after another in memory. Weights are shared.

A window of k elements with stride s and dilation d, before the first of which p elements are padded, gives element o of
its output from elements ``o s - p`` to ``o s - p + (k - 1) d``. Applied backwards from a patch of the result, that says
which rows and columns of every tensor the patch needs; neighbours both compute what both need (the extra MACs). What
lies outside of the image is put there explicitly: by PAD, which writes the zero point into quantised tensors just as
the kernels of convolutions take elements outside for zero, and for MAX_POOL_2D by PADV2 with the lowest number. Where
SAME pads the patch as it pads the image, it stays; where a padded copy would be large, only the windows at the border
are padded, apart from the others. So integers come out the same to the bit, and floats too, unless a kernel's order of
summation depends on the size of the image.

The patches of a stage are computed one after another, so that only one is in memory beside the first image and the
result. A stage that ends behind strides has a small result: there tiling gains most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from litefuse.arena.lifetimes import TFLM
from litefuse.arena.problem import aligned
from litefuse.errors import LitefuseError
from litefuse.fusions.identity import same_quantization
from litefuse.fusions.operands import paddings
from litefuse.fusions.padding import Window, equals_same, windows
from litefuse.fusions.relay import BINARY, UNARY
from litefuse.graph.compact import compact
from litefuse.graph.declared import contradiction
from litefuse.graph.graph import Array, Graph, OperatorKind
from litefuse.schema.declare import deepcopy
from litefuse.schema.enums import Padding, TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op
from litefuse.schema.tables import ConcatenationOptions, Operator
from litefuse.schema.types import NUMPY, RANGES, nbytes

MOST_PARTS = 10
"""Most rows and columns that :func:`fit` tries: TFLM's CONCATENATION takes ten inputs."""
# Operators in a stage, at most: halos grow with every window, so that longer ones compute nearly everything twice.
_MOST_OPERATORS = 64
# How many stages `fit` tiles, and for each how many candidates it builds, at most.
_MOST_STAGES = 4
_MOST_BUILT = 24
# Candidates may take this much less than estimated, and plans this much less than what is live.
_SLACK = 1.15

_CONVOLUTIONS = frozenset({Op.CONV_2D, Op.DEPTHWISE_CONV_2D})
_POOLS = frozenset({Op.MAX_POOL_2D, Op.AVERAGE_POOL_2D})
_PADS = frozenset({Op.PAD, Op.PADV2})
# Element by element of the image; SOFTMAX is along the channels.
_ELEMENTWISE = UNARY | BINARY | {Op.SOFTMAX}
_VIEWS = frozenset({Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS})
# What SLICE, PAD, CONCATENATION and PADV2 take in the runtimes that matter, and the versions that say so.
_TYPES = frozenset({TensorType.FLOAT32, TensorType.INT8, TensorType.UINT8, TensorType.INT16})
_VERSIONS: dict[OperatorKind, dict[TensorType, int]] = {
    Op.SLICE: {TensorType.INT8: 2, TensorType.INT16: 4},
    Op.PAD: {TensorType.INT8: 2, TensorType.INT16: 3},
    Op.PADV2: {TensorType.INT8: 2, TensorType.INT16: 3},
    Op.CONCATENATION: {TensorType.INT8: 2, TensorType.INT16: 3},
}
_POINT = Window(1, 1, 1)

T = TypeVar("T", int, Array)
# From the first element to before the last one, along rows or columns.
Span: TypeAlias = tuple[int, int]


class TilingError(LitefuseError):
    """A part of the graph, or a way to cut it, that cannot be computed patch by patch; says why and where."""


@dataclass(frozen=True)
class Stage:
    """A part of a graph that can be computed patch by patch.

    Attributes:
        subgraph: which subgraph it is in.
        start: the tensor it reads; anything else may read it too.
        end: the tensor it computes; what it computes on the way is needed nowhere else.
        operators: positions in the subgraph's list of operators, ascending.
    """

    subgraph: int
    start: int
    end: int
    operators: tuple[int, ...]


@dataclass(frozen=True)
class Tiled:
    """A model with one stage cut into patches.

    Attributes:
        model: the new model; the original is as it was.
        description: stage and grid, for people.
        rows, columns: the grid.
        extra_macs: multiply-accumulates more than before.
        macs_before: those of the whole model before, as far as they are known.
        notes: what had to be dropped from the file's metadata.
    """

    model: Model
    description: str
    rows: int
    columns: int
    extra_macs: int
    macs_before: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Fitted:
    """What :func:`fit` found.

    Attributes:
        model: the model that fits, or the one that came nearest; the original where tiling gains nothing.
        peak: its peak in bytes.
        peak_before: the peak of the original in bytes.
        budget: the budget in bytes.
        tiled: the stages that were tiled, in that order; none when it is the original.
        reason: why nothing fits, with the place; empty when it fits.
        obstacle: the part of the reason that says what stands in the way; empty when it is not known, or fits.
    """

    model: Model
    peak: int
    peak_before: int
    budget: int
    tiled: tuple[Tiled, ...]
    reason: str
    obstacle: str = ""

    @property
    def fits(self) -> bool:
        """Whether the peak is within the budget."""
        return self.peak <= self.budget

    @property
    def extra_macs(self) -> int:
        """Multiply-accumulates that the model has more than the original; less than 0 where it had needless ones."""
        return sum(tiled.extra_macs for tiled in self.tiled)


# -- what can be tiled ---------------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """An operator of a stage.

    Along rows and columns: how it slides, and how many elements of its first window lie before the image.
    """

    position: int
    op: Operator
    kind: OperatorKind
    data: tuple[int, ...]
    slides: tuple[Window, Window]
    before: tuple[int, int]

    @property
    def out(self) -> int:
        """The tensor that it computes."""
        return self.op.outputs[0]

    def reads(self, axis: int, span: tuple[T, T]) -> tuple[T, T]:
        """What it reads for spans of its output, beyond the image too. Axis 0 are rows, 1 columns."""
        window, before = self.slides[axis], self.before[axis]
        return span[0] * window.stride - before, (span[1] - 1) * window.stride - before + window.reach


def obstacle(graph: Graph, op: Operator) -> str | None:
    """Why an operator cannot be in a stage, in words; None when it can."""
    try:
        _step(graph, op, 0)
    except TilingError as error:
        return str(error)
    return None


def _step(graph: Graph, op: Operator, position: int) -> _Step:
    kind, where = graph.kind(op), graph.where(op)
    if len(op.outputs) != 1 or graph.has_state(op):
        raise TilingError(f"{where} cannot be computed patch by patch")
    out = op.outputs[0]
    size = _image(graph, out, where)
    data: tuple[int, ...] = (op.inputs[0],)
    slides, before = (_POINT, _POINT), (0, 0)
    expected: tuple[int, ...] = size
    if kind in _CONVOLUTIONS or kind in _POOLS:
        if graph.is_float(out) and kind in _CONVOLUTIONS and not graph.is_float(op.inputs[1]):
            raise TilingError(f"{where} quantises its input by the range of all of its elements")
        found = windows(graph, op)
        if found is None:
            raise TilingError(f"{where}: kernel, strides or dilation are not known")
        slides = found[0], found[1]
        source = _image(graph, data[0], where)
        padding = getattr(op.builtin_options, "padding", Padding.SAME)
        missing = [_missing(n, w) if padding == Padding.SAME else 0 for n, w in zip(source, slides, strict=True)]
        before = missing[0] // 2, missing[1] // 2
        if any(missing) and kind is Op.AVERAGE_POOL_2D:
            raise TilingError(f"{where} has windows beyond the border, whose averages are of what is inside only")
        expected = tuple((n + m - w.reach) // w.stride + 1 for n, m, w in zip(source, missing, slides, strict=True))
    elif kind in _PADS:
        amounts = paddings(graph, op)
        source = _image(graph, data[0], where)
        if amounts is None or amounts.shape[0] != 4 or np.any(amounts[0]):
            raise TilingError(f"{where}: its amounts are not constant, or it adds to the batch")
        if not same_quantization(graph, data[0], out):
            raise TilingError(f"{where} pads into another quantisation")
        before = int(amounts[1, 0]), int(amounts[2, 0])
        expected = tuple(n + int(a.sum()) for n, a in zip(source, amounts[1:3], strict=True))
    elif kind is Op.CONCATENATION and getattr(op.builtin_options, "axis", 0) in (3, -1):
        data = tuple(op.inputs)
    elif kind in _ELEMENTWISE:
        data = tuple(t for t in op.inputs if not _spread(graph, t))
    else:
        raise TilingError(f"{where} cannot be computed patch by patch")
    if expected != size or (slides[0] is _POINT and kind not in _PADS and any(_size(graph, t) != size for t in data)):
        raise TilingError(f"{where}: the shapes of its inputs and output do not go together")
    if not data:
        raise TilingError(f"{where} reads no image")
    return _Step(position, op, kind, data, slides, before)


def _size(graph: Graph, tensor: int) -> tuple[int, int] | None:
    """Height and width of an image that is cut up; None for other tensors."""
    shape = graph.shape(tensor) if tensor >= 0 else None
    if shape is None or len(shape) != 4 or min(shape[1:]) < 1 or graph.type(tensor) not in _TYPES:
        return None
    return shape[1], shape[2]


def _image(graph: Graph, tensor: int, where: object) -> tuple[int, int]:
    found = _size(graph, tensor)
    if found is None or graph.is_constant(tensor) or graph.tensor(tensor).is_variable:
        raise TilingError(
            f"{where}: `{graph.name(tensor)}` is not an image [batch, height, width, channels] of known size "
            "in float32, int8, uint8 or int16"
        )
    return found


def _spread(graph: Graph, tensor: int) -> bool:
    """Whether a tensor has one number, or one for each channel, for all places of an image."""
    shape = graph.shape(tensor) if tensor >= 0 else ()
    return shape is not None and all(d == 1 for d in shape[-3:-1]) and (graph.is_constant(tensor) or len(shape) < 4)


def _missing(size: int, window: Window) -> int:
    """How many elements SAME adds to ``size``."""
    return max((-(-size // window.stride) - 1) * window.stride + window.reach - size, 0)


def between(graph: Graph, start: int, end: int) -> Stage:
    """The stage that computes the tensor ``end`` from the tensor ``start``.

    Raises:
        TilingError: the operators between the two cannot be computed patch by patch; says why.
    """
    return _stage(_Finder(graph), start, end)


class _Finder:
    """The operators of a graph as steps, each looked at once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position = {op: i for i, op in enumerate(graph.operators())}
        self._known: dict[Operator, _Step | TilingError] = {}

    def step(self, op: Operator) -> _Step:
        """The operator as a step; raises TilingError."""
        found = self._known.get(op)
        if found is None:
            try:
                found = _step(self.graph, op, self.position[op])
            except TilingError as error:
                found = error
            self._known[op] = found
        if isinstance(found, TilingError):
            raise found
        return found


def _stage(finder: _Finder, start: int, end: int) -> Stage:
    graph = finder.graph
    steps: dict[int, _Step] = {}
    todo = [end]
    while todo:
        tensor = todo.pop()
        op = graph.producer(tensor)
        if tensor == start or (op is not None and finder.position[op] in steps):
            continue
        if op is None:
            what = f"`{graph.name(end)}` also depends on `{graph.name(tensor)}`"
            raise TilingError(f"{what}, which does not come from `{graph.name(start)}`")
        if len(steps) == _MOST_OPERATORS:
            raise TilingError(f"there are more than {_MOST_OPERATORS} operators before `{graph.name(end)}`")
        step = steps[finder.position[op]] = finder.step(op)
        todo += step.data
    if not steps:
        raise TilingError(f"`{graph.name(start)}` and `{graph.name(end)}` are the same tensor")
    inside = [step.op for step in steps.values()]
    for step in steps.values():
        if step.out != end and (why := graph.why_shared(step.out, *inside)):
            raise TilingError(why)
    for tensor in (start, end):
        if why := contradiction(graph, tensor):
            raise TilingError(why)
    return Stage(graph.index, start, end, tuple(sorted(steps)))


def stages(graph: Graph) -> list[Stage]:
    """All stages of a graph, by where they start and end; long ones are left out."""
    return [stage for stage, _ in _all_stages(graph)]


def _all_stages(graph: Graph, holding: int = -1) -> Iterator[tuple[Stage, list[_Step]]]:
    """The stages, or only those that hold the operator at one position."""
    finder = _Finder(graph)
    made = [t for op in graph.operators() for t in op.outputs]
    for start in (*graph.subgraph.inputs, *made):
        if _size(graph, start) is None or graph.is_constant(start) or graph.tensor(start).is_variable:
            continue
        # Everything that can be reached with steps alone, in order of execution.
        reached, count = {start}, 0
        first = finder.position[maker] if (maker := graph.producer(start)) is not None else -1
        if first >= holding >= 0:
            continue
        for position, op in enumerate(list(finder.position)[first + 1 :], first + 1):
            if not reached.intersection(op.inputs) or count == _MOST_OPERATORS:
                continue
            try:
                step = finder.step(op)
                if reached.issuperset(step.data):
                    reached.add(step.out)
                    count += 1
                    if position < holding:
                        continue
                    stage = _stage(finder, start, step.out)
                    if holding < 0 or holding in stage.operators:
                        yield stage, _steps(finder, stage)
            except TilingError:
                continue


def _steps(finder: _Finder, stage: Stage) -> list[_Step]:
    operators = list(finder.position)
    return [finder.step(operators[i]) for i in stage.operators]


# -- how it is cut -------------------------------------------------------------------------------------------------


class _Cuts:
    """What the patches of a stage need of every tensor.

    Rows and columns are cut independently of each other; axis 0 are rows, 1 columns.

    Args:
        graph: the graph of the stage.
        stage: the stage.
        steps: its operators.
    """

    def __init__(self, graph: Graph, stage: Stage, steps: list[_Step]) -> None:
        self.graph, self.stage, self.steps = graph, stage, steps
        self.tensors = [stage.start, *(step.out for step in steps)]
        self.sizes = {t: size for t in self.tensors if (size := _size(graph, t)) is not None}
        weights = [sum(_bytes(graph, t) for t in (*step.data, step.out)) for step in steps]
        self.heaviest = steps[weights.index(max(weights))].out

    def along(self, axis: int, parts: int) -> list[dict[int, Span]]:
        """For each part along an axis, the span of every tensor. Raises TilingError."""
        size = self.sizes[self.stage.end][axis]
        if not 1 <= parts <= size:
            what = ("rows", "columns")[axis]
            raise TilingError(f"`{self.graph.name(self.stage.end)}` has {size} {what}, which make no {parts} parts")
        edges = self._edges(axis, [parts])[0]
        spans = self._spans(axis, edges[:-1], edges[1:])
        return [{t: (int(low[i]), int(high[i])) for t, (low, high) in spans.items()} for i in range(parts)]

    def order(self, along: list[dict[int, Span]]) -> list[int]:
        """The parts, those first which need most: while they are computed, least of the result is in memory."""
        return sorted(range(len(along)), key=lambda i: along[i][self.heaviest][0] - along[i][self.heaviest][1])

    def _spans(self, axis: int, lows: Sequence[int], highs: Sequence[int]) -> dict[int, tuple[Array, Array]]:
        """What parts of the result, from ``lows`` to ``highs``, need of every tensor; ends before starts if nothing."""
        found = {self.stage.end: (np.asarray(lows), np.asarray(highs))}
        for step in reversed(self.steps):
            first, last = step.reads(axis, found[step.out])
            for tensor in step.data:
                low, high = np.maximum(first, 0), np.minimum(last, self.sizes[tensor][axis])
                if tensor in found:
                    low, high = np.minimum(low, found[tensor][0]), np.maximum(high, found[tensor][1])
                found[tensor] = low, high
        return found

    def _edges(self, axis: int, counts: Sequence[int]) -> list[list[int]]:
        """For several numbers of parts, where the parts begin, and the end of the last one.

        Parts at the border have no halo on one side, and get more rows or columns of the result for it: of the output
        of the heaviest operator all parts then need about the same, which is ``slope * length + halo``.
        """
        size = self.sizes[self.stage.end][axis]
        probes = []
        for parts in counts:
            length = size // parts
            middle = (size - length) // 2
            probes += [(0, length), (middle, middle + length), (size - length, size), (middle, middle + 1)]
        lows, highs = zip(*probes, strict=True)
        low, high = self._spans(axis, lows, highs)[self.heaviest]
        extents = (high - low).reshape(-1, 4).tolist()
        return [self._even(size, n, *extent) for n, extent in zip(counts, extents, strict=True)]

    @staticmethod
    def _even(size: int, parts: int, first: int, middle: int, last: int, single: int) -> list[int]:
        """Edges of parts that need about the same, from what parts of equal length and one of length 1 need."""
        length = size // parts
        even = [i * size // parts for i in range(parts + 1)]
        if parts == 1 or length == 1 or middle <= single:  # or the halo is as large as the image
            return even
        slope = (middle - single) / (length - 1)
        halos = [need - slope * length for need in (first, *[middle] * (parts - 2), last)]
        level = (sum(halos) + slope * size) / parts
        edges = [0, *(round(sum((level - h) / slope for h in halos[:i])) for i in range(1, parts)), size]
        return edges if all(a < b for a, b in pairwise(edges)) else even

    def extra_macs(self, rows: int, columns: int) -> int:
        """Multiply-accumulates that the patches have more than the stage as a whole."""
        totals = [
            np.array([sum(spans[t][1] - spans[t][0] for spans in self.along(axis, parts)) for t in self.tensors])
            for axis, parts in enumerate((rows, columns))
        ]
        return int(self._macs() @ (totals[0] * totals[1] - self._areas()))

    def _areas(self) -> Array:
        return np.array([prod(self.sizes[t]) for t in self.tensors])

    def _macs(self) -> Array:
        """Multiply-accumulates for each place of each tensor's image."""
        weights = [s.op.inputs[1] if s.kind in _CONVOLUTIONS else -1 for s in self.steps]
        each = [prod(self.graph.tensor(w).shape or ()) if w >= 0 else 0 for w in weights]
        return np.array([0, *each]) * ((self.graph.tensor(self.stage.start).shape or [1])[0])

    def survey(self, most: int) -> tuple[Array, Array]:
        """Extra MACs of all grids of up to ``most`` rows and columns, and about how many bytes they need.

        Element [i, j] of both, int64 and float64, is that of i + 1 rows and j + 1 columns; grids that are not possible
        need infinitely many bytes. The estimate is as if all patches were as large as the largest, operators that
        compute element by element did so in place, and slices of whole rows took no memory.
        """
        totals, longest = [], []
        for axis in (0, 1):
            counts = range(1, min(self.sizes[self.stage.end][axis], most) + 1)
            edges = self._edges(axis, counts)
            spans = self._spans(axis, [a for e in edges for a in e[:-1]], [b for e in edges for b in e[1:]])
            lengths = np.array([spans[t][1] - spans[t][0] for t in self.tensors], np.float64)
            lengths[:, np.any(lengths < 1, axis=0)] = np.inf
            begins = np.cumsum([0, *counts[:-1]])
            totals.append(np.add.reduceat(lengths, begins, axis=1))
            longest.append(np.maximum.reduceat(lengths, begins, axis=1))
        with np.errstate(invalid="ignore"):
            computed = np.einsum("ti,tj->ijt", *totals) - self._areas()
            area = np.einsum("ti,tj->ijt", *longest)
            most_held = np.max(area @ self._held(bands=False).T, axis=2)
            most_held[:, 0] = np.max(area[:, 0] @ self._held(bands=True).T, axis=1)
        finite = np.isfinite(most_held)
        extra = (np.where(finite[..., None], computed, 0).astype(np.int64) @ self._macs()).astype(np.int64)
        result = _bytes(self.graph, self.stage.end)
        held = np.where(finite, most_held, np.inf) + _bytes(self.graph, self.stage.start)
        # The parts are copied into the result at the end, or are where it will be from the start.
        return extra, np.minimum(np.maximum(held + result // 2, 2 * result), held + result)

    def _held(self, *, bands: bool) -> Array:
        """Bytes that each tensor has in memory for each place of its image, while each operator runs."""
        start, end = self.stage.start, self.stage.end
        each = {t: _bytes(self.graph, t) / prod(self.sizes[t]) for t in self.tensors}
        each[start] = 0.0 if bands else each[start]
        each[end] = 0.0 if bands else each[end]
        last = {t: i for i, step in enumerate(self.steps) for t in step.data}
        held = np.zeros((len(self.steps), len(self.tensors)))
        live = {start}
        for i, step in enumerate(self.steps):
            dying = {t for t in step.data if last[t] == i}
            in_place = step.kind in _ELEMENTWISE and any(each[t] >= each[step.out] for t in dying)
            held[i] = [each[t] * (t in live or (t == step.out and not in_place)) for t in self.tensors]
            live = (live - dying) | {step.out}
        return held


def _bytes(graph: Graph, tensor: int) -> int:
    """The bytes of a computed tensor, unknown dimensions as the file gives them; 0 for constants and unpacked ones."""
    if tensor < 0 or graph.is_constant(tensor) or graph.tensor(tensor).is_variable:
        return 0
    maker = graph.producer(tensor)
    if maker is not None and graph.kind(maker) in (Op.DEQUANTIZE, Op.DENSIFY) and graph.is_constant(maker.inputs[0]):
        return 0
    t = graph.tensor(tensor)
    return nbytes(t.type, prod(t.shape or ())) or 0


# -- the rewrite ---------------------------------------------------------------------------------------------------


class _Patch(NamedTuple):
    """A tensor, and which rows and columns of an image it holds."""

    tensor: int
    spans: tuple[Span, Span]


class _Writer:
    """Writes a stage patch by patch into a graph, in front of the operator that computed its end."""

    def __init__(self, graph: Graph, cuts: _Cuts) -> None:
        self.graph, self.cuts, self.stage = graph, cuts, cuts.stage
        self.anchor = cuts.steps[-1].op
        self.label = ""
        self.need = 0  # bytes of what the patch's heaviest operator reads and writes
        self.constants: dict[tuple[object, ...], int] = {}
        self.slices: dict[_Patch, int] = {}

    def write(self, rows: int, columns: int) -> None:
        """Replaces the stage."""
        graph, end = self.graph, self.stage.end
        across, down = self.cuts.along(0, rows), self.cuts.along(1, columns)
        bands: dict[int, list[int]] = {}
        for i in self.cuts.order(across):
            band = {}
            for j in self.cuts.order(down):
                self.label = f"r{i}c{j}"
                self.slices = {}  # other patches must not keep them in memory
                band[j] = self._patch(across[i], down[j])
            self.label = f"r{i}"
            parts = [band[j] for j in range(columns)]
            bands[i] = [self._join(end, parts, 2)] if rows > 1 else parts
        parts = [t for i in range(rows) for t in bands[i]]
        self._operator(Op.CONCATENATION, parts, [end], axis=1 if rows > 1 else 2)
        for step in self.cuts.steps:
            graph.remove(step.op)

    def _patch(self, rows: dict[int, Span], columns: dict[int, Span]) -> int:
        """Writes the operators of one patch; returns its tensor."""
        height, width = self.cuts.sizes[self.stage.start]
        have = {self.stage.start: _Patch(self.stage.start, ((0, height), (0, width)))}

        def size(tensor: int) -> int:
            return self._bytes(tensor, [high - low for low, high in (rows[tensor], columns[tensor])])

        self.need = max(sum(map(size, {*step.data, step.out})) for step in self.cuts.steps)
        for step in self.cuts.steps:
            spans = rows[step.out], columns[step.out]
            if step.kind in _PADS:
                inner, pads = self._inside(step, spans)
                tensor = self._slice(have[step.data[0]], inner)
                if any(map(any, (*pads, self._channels(step)))):
                    tensor = self._pad(step, tensor, pads)
            elif step.slides == (_POINT, _POINT):
                tensor = self._copy(step, {t: self._slice(have[t], spans) for t in step.data}, spans)
            else:
                tensor = self._slide(step, have[step.data[0]], spans)
            have[step.out] = _Patch(tensor, spans)
        return have[self.stage.end].tensor

    def _inside(self, step: _Step, spans: tuple[Span, Span]) -> tuple[tuple[Span, Span], tuple[Span, Span]]:
        """What a step reads of the image, and how much lies before and behind that, along rows and columns."""
        inner, outer = [], []
        for axis, size in enumerate(self.cuts.sizes[step.data[0]]):
            low, high = step.reads(axis, spans[axis])
            if low >= size or high <= 0:
                raise TilingError(f"{self.graph.where(step.op)} would compute a patch from padding alone")
            inner.append((max(low, 0), min(high, size)))
            outer.append((max(-low, 0), max(high - size, 0)))
        return (inner[0], inner[1]), (outer[0], outer[1])

    def _slide(self, step: _Step, source: _Patch, spans: tuple[Span, Span]) -> int:
        """A convolution or a pool that gives the rows and columns ``spans``."""
        inner, pads = self._inside(step, spans)
        if not any(map(any, pads)):
            enough = all(
                have[0] == wanted[0] and (have[1] - have[0] - window.reach) // window.stride + 1 == high - low
                for have, wanted, window, (low, high) in zip(source.spans, inner, step.slides, spans, strict=True)
            )
            tensor = source.tensor if enough else self._slice(source, inner)
            return self._copy(step, {step.data[0]: tensor}, spans, Padding.VALID)
        if all(equals_same(b - a, *pad, w) for (a, b), pad, w in zip(inner, pads, step.slides, strict=True)):
            return self._copy(step, {step.data[0]: self._slice(source, inner)}, spans, Padding.SAME)
        if self._pays(step, inner, pads, spans):
            axis = 0 if any(pads[0]) else 1
            parts = [self._slide(step, source, _with(spans, axis, s)) for s in self._around(step, axis, spans[axis])]
            return self._join(step.out, parts, 1 + axis)
        tensor = self._pad(step, self._slice(source, inner), pads)
        return self._copy(step, {step.data[0]: tensor}, spans, Padding.VALID)

    def _around(self, step: _Step, axis: int, span: Span) -> list[Span]:
        """A span of the output in up to three parts: windows that begin before, lie inside and end behind the image."""
        window, before, size = step.slides[axis], step.before[axis], self.cuts.sizes[step.data[0]][axis]
        first = max(span[0], -(-before // window.stride))
        last = min(span[1], (size - window.reach + before) // window.stride + 1)
        if first >= last:
            return [span]
        return [(a, b) for a, b in ((span[0], first), (first, last), (last, span[1])) if a < b]

    def _pays(self, step: _Step, inner: tuple[Span, Span], pads: tuple[Span, Span], spans: tuple[Span, Span]) -> bool:
        """Whether windows at the border should be computed apart, and put beside those inside.

        Padding makes a copy of what is read. Apart, only what the windows at the border read is copied, and the result
        once more, which is smaller where the operator has strides. That takes more operators, and is done only where
        the copy would be what decides how much memory the patch takes.
        """
        axis = 0 if any(pads[0]) else 1
        if len(self._around(step, axis, spans[axis])) == 1:
            return False
        reads, padded, makes = (
            self._bytes(tensor, [b - a + sum(more) for (a, b), more in zip(where, pad, strict=True)])
            for tensor, where, pad in (
                (step.data[0], inner, ((0, 0), (0, 0))),
                (step.data[0], inner, pads),
                (step.out, spans, ((0, 0), (0, 0))),
            )
        )
        border = 2 * reads * step.slides[axis].reach // (inner[axis][1] - inner[axis][0])
        whole, apart = max(reads, makes) + padded, max(reads + border, makes) + makes
        return whole > self.need and apart < 0.9 * whole

    def _bytes(self, like: int, size: Sequence[int]) -> int:
        shape = self.graph.tensor(like).shape
        assert shape
        return nbytes(self.graph.type(like), shape[0] * size[0] * size[1] * shape[3]) or 0

    def _tensor(self, like: int, rows: int, columns: int, label: str = "") -> int:
        """A new tensor as ``like`` with other numbers of rows and columns.

        There can be hundreds, so that their names are short: patch, and position of what computed ``like``.
        """
        shape, source = self.graph.shape(like), self.graph.tensor(like)
        assert shape is not None
        place = [f"/{step.position}" for step in self.cuts.steps if step.out == like]
        name = f"{self.label}{''.join(place)}{label}"
        shape = (shape[0], rows, columns, shape[3])
        return self.graph.add_tensor(name, shape, source.type, quantization=source.quantization)

    def _operator(self, kind: OperatorKind, inputs: list[int], outputs: list[int], axis: int | None = None) -> None:
        version = _VERSIONS[kind].get(self.graph.type(inputs[0]), 1)
        options = None if axis is None else ConcatenationOptions(axis=axis)
        self.graph.add_operator(kind, inputs, outputs, before=self.anchor, version=version, options=options)

    def _constant(self, name: str, value: object, type: TensorType, like: int | None = None) -> int:
        """A constant, which all patches share; quantised as ``like``."""
        array = np.asarray(value, NUMPY[type])
        key = (array.tobytes(), array.shape, type, like)
        if key not in self.constants:
            quantization = None if like is None else self.graph.tensor(like).quantization
            self.constants[key] = self.graph.add_constant(f"tiling/{name}", array, quantization=quantization)
        return self.constants[key]

    def _slice(self, patch: _Patch, spans: tuple[Span, Span]) -> int:
        """The given rows and columns of a patch."""
        key = _Patch(patch.tensor, spans)
        if patch == key:
            return patch.tensor
        if key not in self.slices:
            shape = self.graph.shape(patch.tensor)
            assert shape is not None
            rows, columns = (high - low for low, high in spans)
            begin = [0, *(span[0] - have[0] for span, have in zip(spans, patch.spans, strict=True)), 0]
            # A size of -1, of an unknown batch, means all that there is.
            size = [shape[0], rows, columns, shape[3]]
            out = self.slices[key] = self._tensor(patch.tensor, rows, columns, "/slice")
            inputs = [self._constant("begin", begin, TensorType.INT32), self._constant("size", size, TensorType.INT32)]
            self._operator(Op.SLICE, [patch.tensor, *inputs], [out])
        return self.slices[key]

    def _channels(self, step: _Step) -> Span:
        """How many channels a step's operator puts before and behind those of its input."""
        amounts = paddings(self.graph, step.op) if step.kind in _PADS else None
        return (0, 0) if amounts is None else (int(amounts[3, 0]), int(amounts[3, 1]))

    def _pad(self, step: _Step, tensor: int, pads: tuple[Span, Span]) -> int:
        """The tensor with what the step's operator puts around it."""
        graph, source = self.graph, step.data[0]
        amounts = [(0, 0), *pads, self._channels(step)]
        inputs = [tensor, self._constant("paddings", amounts, TensorType.INT32)]
        if step.kind is Op.PADV2:
            inputs.append(step.op.inputs[2])
        elif step.kind is Op.MAX_POOL_2D:
            type = graph.type(source)
            lowest = RANGES[type][0] if type in RANGES else np.finfo(np.float32).min
            inputs.append(self._constant("lowest", [lowest], type, like=source))
        shape = graph.shape(tensor)
        assert shape is not None
        like = step.out if step.kind in _PADS else source
        out = self._tensor(like, shape[1] + sum(pads[0]), shape[2] + sum(pads[1]), "/padded")
        self._operator(Op.PAD if len(inputs) == 2 else Op.PADV2, inputs, [out])
        return out

    def _copy(
        self, step: _Step, reading: dict[int, int], spans: tuple[Span, Span], padding: Padding | None = None
    ) -> int:
        """The step's operator on a patch."""
        graph, op = self.graph, step.op
        rows, columns = (high - low for low, high in spans)
        out = self._tensor(step.out, rows, columns)
        options = deepcopy(op.builtin_options or op.builtin_options_2)
        if padding is not None:
            options = options.replace(padding=padding)
        inputs = [reading.get(t, t) for t in op.inputs]
        graph.add_operator(step.kind, inputs, [out], before=self.anchor, version=graph.version(op), options=options)
        return out

    def _join(self, like: int, parts: list[int], axis: int) -> int:
        """Parts of ``like`` side by side; of one part, that."""
        if len(parts) == 1:
            return parts[0]
        shapes = [shape for t in parts if (shape := self.graph.shape(t)) is not None]
        size = [sum(s[a] for s in shapes) if a == axis else shapes[0][a] for a in (1, 2)]
        out = self._tensor(like, size[0], size[1], "/joined")
        self._operator(Op.CONCATENATION, parts, [out], axis=axis)
        return out


def _with(spans: tuple[Span, Span], axis: int, span: Span) -> tuple[Span, Span]:
    return (span, spans[1]) if axis == 0 else (spans[0], span)


def tile(model: Model, stage: Stage, rows: int, columns: int = 1) -> Tiled:
    """A copy of the model in which a stage is computed in ``rows`` x ``columns`` patches.

    Raises:
        TilingError: the stage has not that many rows or columns, or a patch would have nothing to be computed from.
    """
    from litefuse.report.stats import measure

    if rows * columns < 2:
        raise TilingError(f"{rows} x {columns} patches: there must be two at least")
    result = deepcopy(model)
    before = [list(subgraph.operators) for subgraph in result.subgraphs]
    graph = Graph(result, stage.subgraph)
    cuts = _Cuts(graph, stage, _steps(_Finder(graph), stage))
    extra = cuts.extra_macs(rows, columns)
    first, last = (graph.where(step.op) for step in (cuts.steps[0], cuts.steps[-1]))
    _Writer(graph, cuts).write(rows, columns)
    graph.commit()
    notes = compact(result, before)
    description = f"{first} to {last} in {rows} x {columns} patches"
    return Tiled(result, description, rows, columns, extra, measure(model).macs, tuple(notes))


# -- the search ----------------------------------------------------------------------------------------------------


def live_bytes(model: Model) -> int:
    """The most bytes that are live at one operator, in the order of the file, sizes rounded up to 16.

    The parts of CONCATENATIONs along the outermost dimension lie where the results will be if that takes less. It is
    what an ideal plan without any other sharing of memory needs; of the subgraphs the largest counts.
    """
    graphs = [Graph(model, i) for i in range(len(model.subgraphs))]
    return max((min(_live(graph, {}), _live(graph, _homes(graph))) for graph in graphs), default=0)


def _live(graph: Graph, home: Mapping[int, int]) -> int:
    """The most live bytes at one operator; tensors in ``home`` lie inside of another."""
    operators = list(graph.operators())
    first: dict[int, int] = dict.fromkeys(graph.subgraph.inputs, 0)
    last: dict[int, int] = {}
    for i, op in enumerate(operators):
        for tensor in op.outputs:
            first.setdefault(home.get(tensor, tensor), i)
        for tensor in (*op.inputs, *op.outputs):
            last[home.get(tensor, tensor)] = i
    last.update(dict.fromkeys(graph.subgraph.outputs, len(operators) - 1))
    change = [0] * (len(operators) + 1)
    for tensor, start in first.items():
        size = aligned(_bytes(graph, tensor), TFLM.alignment)
        change[start] += size
        change[last.get(tensor, start) + 1] -= size
    return max(accumulate(change))


def _homes(graph: Graph) -> dict[int, int]:
    """The tensors that can lie inside of another one, which CONCATENATION makes of them, with that other one."""
    home: dict[int, int] = {}
    for op in graph.operators():
        if graph.kind(op) is Op.CONCATENATION:
            shape = graph.tensor(op.outputs[0]).shape or ()
            axis = getattr(op.builtin_options, "axis", 0) % max(len(shape), 1)
            whole = prod(shape[:axis]) == 1 and len(set(op.inputs)) == len(op.inputs)
            if whole and all(graph.producer(t) is not None and graph.only_reader(t) is op for t in op.inputs):
                home.update(dict.fromkeys(op.inputs, op.outputs[0]))

    def outermost(tensor: int) -> int:
        while tensor in home:
            tensor = home[tensor]
        return tensor

    return {tensor: outermost(tensor) for tensor in home}


def _need(graph: Graph, op: Operator) -> int:
    """The bytes that must be live while an operator runs, however memory is shared."""
    if graph.kind(op) is Op.CONCATENATION or graph.kind(op) in _VIEWS:
        return max((_bytes(graph, t) for t in (*op.inputs, *op.outputs)), default=0)
    reads, writes = (sum(_bytes(graph, t) for t in dict.fromkeys(ts)) for ts in (op.inputs, op.outputs))
    if graph.kind(op) in _ELEMENTWISE:
        return max(reads, writes)
    return reads + writes


class _Candidate(NamedTuple):
    """A stage and a grid; the first three say which is better."""

    extra_macs: int
    patches: int
    estimate: float
    rows: int
    columns: int
    stage: Stage


def fit(
    model: Model,
    budget: int,
    *,
    peak: Callable[[Model], int] = live_bytes,
    operator_bytes: int = 0,
    grids: Collection[tuple[int, int]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Fitted:
    """Tiles stages of the main subgraph so that the peak is within a budget, with few extra MACs.

    Args:
        model: the model; it is not changed.
        budget: bytes.
        peak: plans the memory of a model and says how many bytes it takes.
        operator_bytes: about what ``peak`` counts for each operator beside its tensors, such as TFLM's records of it.
        grids: the numbers of rows and columns that are tried; by default all of up to ten each.
        progress: called with a line of text for each candidate that is planned.

    One stage is tiled if that suffices. Where it cannot, since what lies apart needs too much, it is tiled as far as is
    of use, and then another one. When nothing fits, the result is the nearest, with the reason.
    """
    before = peak(model)
    best = Fitted(model, before, before, budget, (), "")
    reason = ""
    for _ in range(_MOST_STAGES):
        if best.fits:
            return best
        nearer, obstacles = _next_stage(best, peak, operator_bytes, grids, progress)
        reason = reason or obstacles  # later ones are about patches
        if nearer is best:
            break
        best = nearer
        if not obstacles:  # the stage held all that needs too much
            break
    if best.fits:
        return best
    how = "; ".join(t.description for t in best.tiled) or "as it is"
    text = f"no tiling fits into {budget} bytes; the nearest takes {best.peak} ({how}, {before} before)"
    return replace(best, reason=f"{text}: {reason}" if reason else text, obstacle=reason)


def _next_stage(
    given: Fitted,
    peak: Callable[[Model], int],
    operator_bytes: int,
    grids: Collection[tuple[int, int]] | None,
    progress: Callable[[str], None] | None,
) -> tuple[Fitted, str]:
    """Tiles one stage more; returns the result, or what was given if none is better, and what stood in the way."""
    model, best = given.model, given
    found = _candidates(Graph(model), given.budget, grids, operator_bytes)
    candidates, goal = found.candidates, found.reachable
    built: set[_Candidate] = set()

    def attempt(candidate: _Candidate) -> None:
        """Builds a candidate, has it planned unless that is hopeless, and keeps the result if it is better."""
        nonlocal best
        built.add(candidate)
        try:
            tiled = tile(model, candidate.stage, candidate.rows, candidate.columns)
        except TilingError:  # one of several readers of a tensor reads padding alone
            return
        records = operator_bytes * len(tiled.model.subgraphs[0].operators)
        if best is not given and live_bytes(tiled.model) + records > _SLACK * max(goal, best.peak):
            return
        bytes_planned = peak(tiled.model)
        if progress:
            progress(f"{tiled.description}: {bytes_planned} bytes, {tiled.extra_macs} extra MACs")
        if bytes_planned <= goal if best.peak <= goal else bytes_planned < best.peak:
            best = replace(given, model=tiled.model, peak=bytes_planned, tiled=(*given.tiled, tiled))

    # First down the estimates, from the one with the fewest extra MACs to the first that fits or to the smallest.
    lowest = np.inf
    for candidate in sorted(candidates, key=lambda c: c[:3]):
        if candidate.estimate < lowest and len(built) < _MOST_BUILT:
            lowest = candidate.estimate
            attempt(candidate)
        if best.peak <= goal:
            break
    # Estimates are not exact: then those with fewer extra MACs that may fit too, or the smallest ones.
    for _ in range(_MOST_BUILT // 2):
        rest = [c for c in candidates if c not in built]
        if best is not given and best.peak <= goal:
            most = best.tiled[-1].extra_macs
            rest = [c for c in rest if c.extra_macs < most and c.estimate <= _SLACK * goal]
        if not rest:
            break
        attempt(min(rest, key=lambda c: c.estimate))
    return best, found.reason


class _Found(NamedTuple):
    """The ways to tile one stage, down to how many bytes that can lead, and what stands in the way of the budget."""

    candidates: list[_Candidate]
    reachable: int
    reason: str


def _candidates(graph: Graph, budget: int, grids: Collection[tuple[int, int]] | None, operator_bytes: int) -> _Found:
    """The ways to tile one stage that holds the operator which needs most."""
    operators = list(graph.operators())
    if not operators:
        return _Found([], budget, "there are no operators")
    needs = [_need(graph, op) for op in operators]
    worst = max(range(len(needs)), key=needs.__getitem__)
    found = list(_all_stages(graph, worst))
    reason = ""
    if not found:
        why = obstacle(graph, operators[worst]) or "no stage holds it whose inner tensors are needed nowhere else"
        return _Found([], budget, f"{graph.where(operators[worst])} needs {needs[worst]} bytes, and {why}")
    outside = {s: max((n for i, n in enumerate(needs) if i not in s.operators), default=0) for s, _ in found}
    low = min(outside.values())
    if low > budget:
        best = min(found, key=lambda pair: outside[pair[0]])[0]
        other = next(i for i, n in enumerate(needs) if n == low and i not in best.operators)
        reason = f"{graph.where(operators[other])} needs {low} bytes, and no stage holds it and what needs more"
    goal = max(budget, low)
    made: list[_Candidate] = []
    others: list[_Candidate] = []
    for stage, steps in found:
        extra, held = _Cuts(graph, stage, steps).survey(max(map(max, grids)) if grids else MOST_PARTS)
        if grids is not None:
            asked = np.array([[(r + 1, c + 1) in grids for c in range(held.shape[1])] for r in range(held.shape[0])])
            held = np.where(asked, held, np.inf)
        patches = np.outer(np.arange(1, extra.shape[0] + 1), np.arange(1, extra.shape[1] + 1))
        # If more stages must follow, what is outside of this one does not count, but this one must fit for good.
        estimate = np.maximum(held, outside[stage] if low <= budget else 0)
        estimate += operator_bytes * (len(operators) + (patches - 1) * len(steps))
        estimate[0, 0] = np.inf
        limit = (_SLACK if low <= budget else 1) * budget if outside[stage] <= goal else 0
        places = np.argwhere(estimate <= limit).tolist()
        smallest = [int(i) for i in np.unravel_index(np.argmin(estimate), estimate.shape)]
        for to, where in ((made, places), (others, [smallest] if np.isfinite(estimate.min()) else [])):
            for i, j in where:
                numbers = int(extra[i, j]), int(patches[i, j]), float(estimate[i, j])
                to.append(_Candidate(*numbers, i + 1, j + 1, stage))
    if low <= budget or not made:  # one of the others may be the nearest
        made += [c for c in others if c not in made]
    if not made:
        reason = reason or f"{graph.where(operators[worst])} needs {needs[worst]} bytes and cannot be cut"
    return _Found(made, goal, reason)
