"""A model as pictures need it: its operators with their places, regions, sizes and costs, and its memory over time."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from litefuse.arena.lifetimes import TFLITE, TFLM, lifetimes, sizes
from litefuse.arena.packing import pack
from litefuse.arena.problem import Buffer as Piece
from litefuse.arena.problem import Problem
from litefuse.bench import merged
from litefuse.delegates.cost import Roofline
from litefuse.delegates.network import Network
from litefuse.delegates.package import Held, held
from litefuse.delegates.targets import Target
from litefuse.errors import LitefuseError
from litefuse.fusions.pipeline import decompositions
from litefuse.graph import Graph
from litefuse.graph.text import options_text
from litefuse.report.documents import Document, number, text
from litefuse.report.estimate import Part
from litefuse.report.layout import layout
from litefuse.report.stats import ModelStats, tensor_shape, type_name
from litefuse.schema.model import Model
from litefuse.schema.tables import Operator, Tensor
from litefuse.schema.writer import as_bytes

NAME = 300
"""Characters of a tensor's name that are shown; longer ones lose their middle."""

_SECONDS = 0.5  # for the packing of one arena
_APART = 90.0  # between subgraphs in the picture


@dataclass
class Node:
    """An operator in the picture."""

    kind: str
    subgraph: int
    """The subgraph that holds it; that of a region's decomposition for what is packaged."""
    index: int
    """Its position there."""
    ins: list[int]
    """Numbers of the tensors it reads, by those in the picture."""
    outs: list[int]
    options: str
    macs: int | None
    written: int
    print_: int
    """A checksum of what it is, for comparison: its kind, options, constants, and what its tensors look like."""
    region: int = -1
    stock_us: float | None = None
    fed: bool = False
    """Whether constants alone feed it, so that it runs once."""
    ms: float | None = None
    host: int = -1
    """For a node that is not drawn: the one that reads it."""
    place: tuple[float, float] | None = None
    other: int = -1
    """What corresponds to it in the other model."""
    state: str = "same"
    """`same`, `changed`, `gone` or `new`."""
    rules: list[int] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)


@dataclass
class Picture:
    """One model."""

    model: Model
    stats: ModelStats
    nodes: list[Node] = field(default_factory=list)
    tensors: list[Document] = field(default_factory=list)
    regions: list[Document] = field(default_factory=list)
    edges: list[Document] = field(default_factory=list)
    groups: list[Document] = field(default_factory=list)
    """The subgraphs that are drawn, with their borders."""
    parts: list[Part] = field(default_factory=list)
    arena: Document | None = None
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    """The tensors of the picture by subgraph and number there."""

    def document(self) -> Document:
        """What the page gets."""
        return {
            "tensors": self.tensors,
            "nodes": [_node(node) for node in self.nodes],
            "edges": self.edges,
            "groups": self.groups,
            "regions": self.regions,
            "arena": self.arena,
        }


def _node(node: Node) -> Document:
    """A node with short keys, since there may be thousands; what is usual is left out."""
    full: Document = {
        "k": node.kind,
        "s": node.subgraph,
        "n": node.index,
        "i": node.ins,
        "o": node.outs,
        "m": node.macs,
        "w": node.written,
        "st": node.state,
    }
    rest: Document = {
        "op": node.options or None,
        "r": node.region if node.region >= 0 else None,
        "us": None if node.stock_us is None else round(node.stock_us, 3),
        "f": 1 if node.fed else None,
        "ms": node.ms,
        "h": node.host if node.host >= 0 else None,
        "p": node.place,
        "c": node.other if node.other >= 0 else None,
        "ru": node.rules or None,
        "re": node.refusals or None,
    }
    return full | {key: value for key, value in rest.items() if value is not None}


def picture(model: Model, stats: ModelStats, target: Target, *, tflm: bool = False) -> Picture:
    """Draws a model.

    Args:
        model: any model; what of a damaged one cannot be worked out is left out.
        stats: its numbers.
        target: whose cost model gives the times.
        tflm: whether memory is planned as TensorFlow Lite Micro does, or as TFLite does.
    """
    found = Picture(model, stats)
    _Painter(found, target).paint()
    found.arena = _arena(found, tflm)
    return found


class _Painter:
    def __init__(self, result: Picture, target: Target) -> None:
        self.result, self.model, self.target = result, result.model, target
        self.numbers = result.numbers
        self.prints: dict[int, int] = {}
        self.held = held(self.model)
        self.networks: dict[int, Network | None] = {}
        self.cost = Roofline(target)
        self.graphs: dict[int, Graph] = {}
        self.printers: dict[int, Callable[[Operator], str]] = {}

    def graph(self, index: int) -> Graph:
        if index not in self.graphs:
            self.graphs[index] = Graph(self.model, index)
        return self.graphs[index]

    def options(self, index: int) -> Callable[[Operator], str]:
        """What says the options of a subgraph's operators."""
        if index not in self.printers:
            self.printers[index] = options_text(self.graph(index))
        return self.printers[index]

    def network(self, index: int) -> Network | None:
        """The operators of a subgraph as the cost model sees them; None where it cannot."""
        if index not in self.networks:
            try:
                self.networks[index] = Network(self.graph(index))
            except (LitefuseError, LookupError, TypeError, ValueError, AttributeError):
                self.networks[index] = None
        return self.networks[index]

    def paint(self) -> None:
        inner = decompositions(self.model) | {h.inside for h in self.held if h.node is not None}
        across = 0.0
        for index in range(len(self.model.subgraphs)):
            if index in inner:
                continue
            first = len(self.result.nodes)
            self._subgraph(index)
            across = self._lay_out(index, first, across)

    # -- operators ---------------------------------------------------------------------------------------------

    def _subgraph(self, index: int) -> None:
        nodes = {h.node: h for h in self.held if h.subgraph == index and h.node is not None}
        grouped = {i: h for h in self.held if h.subgraph == index and h.node is None for i in h.operators}
        numbers: dict[int, int] = {}
        for position in range(len(self.model.subgraphs[index].operators)):
            if position in nodes:
                self._packaged(nodes[position])
                continue
            region = -1
            if position in grouped:
                key = id(grouped[position])
                if key not in numbers:
                    numbers[key] = self._region(grouped[position])
                region = numbers[key]
            self._operator(index, position, region)

    def _packaged(self, region: Held) -> None:
        """The operators of a composite or custom operator, in its place."""
        assert region.node is not None
        op = self.model.subgraphs[region.subgraph].operators[region.node]
        inside = self.model.subgraphs[region.inside]
        for a, b in ((inside.inputs, op.inputs), (inside.outputs, op.outputs)):
            for inner, outer in zip(a, b, strict=True):
                if inner >= 0 and outer >= 0:
                    self.numbers[region.inside, inner] = self._tensor(region.subgraph, outer)
        number = self._region(region)
        for position in region.operators:
            self._operator(region.inside, position, number)

    def _region(self, region: Held) -> int:
        """Adds a region with the cost model's figures; returns its number."""
        network = self.network(region.inside)
        figures: Document = {}
        if network is not None:
            try:
                cost = self.cost.cost(network, region.operators)
                figures = {k: round(v, 3) if isinstance(v, float) else v for k, v in cost._asdict().items()}
                self.result.parts.append(Part(network, region.operators, True))
            except (LookupError, TypeError, ValueError, ZeroDivisionError, AttributeError):
                figures = {}
        self.result.regions.append(
            {
                "kind": text(region.kind),
                "subgraph": region.subgraph,
                "node": region.node,
                "position": min(region.operators) if region.node is None else region.node,
                "cost": figures or None,
                "ms": None,
                "scratch": figures.get("scratch"),
            }
        )
        return len(self.result.regions) - 1

    def _operator(self, index: int, position: int, region: int) -> None:
        graph = self.graph(index)
        op = graph.subgraph.operators[position]
        all_stats = self.result.stats.subgraphs[index].operators
        known = all_stats[position]
        network = self.network(index)
        count = len(graph.tensors)
        ins = [self._tensor(index, t) for t in op.inputs if 0 <= t < count]
        outs = [self._tensor(index, t) for t in op.outputs if 0 <= t < count]
        fed, stock = False, None
        if network is not None:
            fed = network.feeds[position]
            try:
                stock = self.cost.operator_us(network, position)
                if region < 0:
                    self.result.parts.append(Part(network, [position], False))
            except (LookupError, TypeError, ValueError, ZeroDivisionError, AttributeError):
                stock = None
        try:
            options = text(self.options(index)(op))
        except (LookupError, TypeError, ValueError, AttributeError):
            options = ""
        print_ = zlib.crc32(repr((known.kind, options)).encode("utf-8", "surrogateescape"))
        for t in (*op.inputs, *op.outputs):
            print_ = zlib.crc32(self._print(graph, t).to_bytes(4, "little"), print_)
        self.result.nodes.append(
            Node(text(known.kind), index, position, ins, outs, options, known.macs, known.written, print_, region)
        )
        self.result.nodes[-1].fed = fed
        self.result.nodes[-1].stock_us = stock

    def _print(self, graph: Graph, tensor: int) -> int:
        """A checksum of a tensor: its type, shape and quantisation, and its data where it is constant."""
        if not 0 <= tensor < len(graph.tensors):
            return 0
        t = graph.tensors[tensor]
        what: tuple[Any, ...] = (int(t.type), tuple(t.shape or ()), _quantization(t))
        if graph.is_constant(tensor):
            if t.buffer not in self.prints:
                data = self.model.buffers[t.buffer].data
                self.prints[t.buffer] = zlib.crc32(as_bytes(data)) if data is not None else 0
            what = (*what, self.prints[t.buffer])
        return zlib.crc32(repr(what).encode("utf-8", "surrogateescape"))

    def _tensor(self, index: int, tensor: int) -> int:
        """The number of a tensor in the picture."""
        key = index, tensor
        known = self.numbers.get(key)
        if known is None:
            known = self.numbers[key] = len(self.result.tensors)
            graph = self.graph(index)
            t = graph.tensors[tensor]
            network = self.network(index)
            entry: Document = {"n": short(text(t.name or f"#{tensor}")), "t": type_name(t.type), "d": tensor_shape(t)}
            if network is not None and min(t.shape or [0]) >= 0:
                entry["b"] = network.bytes(tensor)
            if q := _quantization(t):
                entry["q"] = q
            if graph.is_constant(tensor):
                entry["c"] = 1
            self.result.tensors.append(entry)
        return known

    # -- the picture -------------------------------------------------------------------------------------------

    def _lay_out(self, index: int, first: int, across: float) -> float:
        """Places the nodes of a subgraph beside what is there; returns where the next may begin."""
        result = self.result
        nodes = result.nodes[first:]
        makers = {t: n for n, node in enumerate(nodes) for t in node.outs}
        readers: dict[int, int] = {}
        for n in reversed(range(len(nodes))):
            if nodes[n].fed:
                found_at = [readers[t] for t in nodes[n].outs if t in readers]
                nodes[n].host = first + min(found_at) if found_at else -1
            readers.update(dict.fromkeys(nodes[n].ins, n))
        for node in reversed(nodes):
            while node.host >= 0 and result.nodes[node.host].host >= 0:
                node.host = result.nodes[node.host].host
        drawn = [n for n, node in enumerate(nodes) if node.host < 0]
        place = {n: i for i, n in enumerate(drawn)}
        edges: list[tuple[int, int]] = []
        carried: list[int] = []
        for n in drawn:
            for t in dict.fromkeys(nodes[n].ins):
                maker = makers.get(t)
                if maker in place and maker is not None and maker < n:
                    edges.append((place[maker], place[n]))
                    carried.append(t)
        found = layout(len(drawn), edges)
        for n, point in zip(drawn, found.places, strict=True):
            nodes[n].place = round(point.x + across, 1), point.y
        for (a, b), tensor, bends in zip(edges, carried, found.bends, strict=True):
            edge: Document = {"a": first + drawn[a], "b": first + drawn[b], "t": tensor}
            if bends:
                edge["p"] = [value for p in bends for value in (round(p.x + across, 1), p.y)]
            result.edges.append(edge)
        name = text(self.model.subgraphs[index].name or "")
        result.groups.append({"index": index, "name": short(name), "x": across, "w": found.width, "h": found.height})
        return across + found.width + _APART


def short(name: str) -> str:
    """A name as it is shown."""
    return name if len(name) <= NAME else f"{name[: NAME // 2]}\u2026{name[-NAME // 2 :]}"


def _quantization(tensor: Tensor) -> Document | None:
    """Scale and zero point, or how many there are along which axis."""
    q = tensor.quantization
    if q is None or q.scale is None or not len(q.scale):
        return None
    if len(q.scale) == 1:
        zero = int(q.zero_point[0]) if q.zero_point is not None and len(q.zero_point) else 0
        return {"scale": number(float(q.scale[0])), "zero": zero}
    low, high = float(min(q.scale)), float(max(q.scale))
    return {"count": len(q.scale), "axis": int(q.quantized_dimension), "low": number(low), "high": number(high)}


# -- memory over time ----------------------------------------------------------------------------------------------


def _arena(found: Picture, tflm: bool) -> Document | None:
    """The arena of the first subgraph: every tensor a rectangle over time and address; None where it is not known.

    What stays inside a region is not in it.
    """
    model = found.model
    if not model.subgraphs:
        return None
    try:
        return _planned_as_tflm(found) if tflm else _packed(found)
    except (LitefuseError, LookupError, TypeError, ValueError, AttributeError):
        return None


def _packed(found: Picture) -> Document:
    graph = Graph(found.model, 0)
    known = sizes(graph, TFLITE)
    groups = [h.operators for h in held(found.model) if h.subgraph == 0 and h.node is None]
    if groups:
        changed = found.model.replace(subgraphs=list(found.model.subgraphs))
        changed.subgraphs[0] = merged(graph, groups)
        graph = Graph(changed, 0)
    stays = lifetimes(graph, None, TFLITE, known)
    pieces = [Piece(str(n), s.first, s.last, s.bytes) for n, s in enumerate(stays)]
    packing = pack(Problem(pieces), alignment=TFLITE.alignment, seconds=_SECONDS)
    boxes = [(s.first, s.last, packing.offsets[str(n)], s.bytes, s.tensor) for n, s in enumerate(stays)]
    return _arena_document(
        found, boxes, packing.peak, packing.lower_bound, "TFLite", len(graph.subgraph.operators), known.unplanned
    )


def _planned_as_tflm(found: Picture) -> Document:
    from litefuse.arena.plan import plan  # not needed otherwise

    arena = plan(found.model, runtime=TFLM, reorder=False, seconds=_SECONDS).arenas[0]
    offsets = arena.offsets | arena.scratch
    main = [(m, offsets[m.key]) for block in arena.blocks for m in block.members if m.key[0] == 0]
    boxes = [(m.first, m.last, offset, m.bytes, m.key[1]) for m, offset in main]
    end = max((b[1] for b in boxes), default=1)
    unplanned = next((part.unplanned for part in arena.subgraphs if part.index == 0), {})
    return _arena_document(found, boxes, arena.peak, arena.lower_bound, "TFLM", end - 1, unplanned)


def _arena_document(
    found: Picture,
    boxes: list[tuple[int, int, int, int, int]],
    peak: int,
    bound: int,
    runtime: str,
    steps: int,
    unplanned: dict[int, str],
) -> Document:
    subgraph = found.model.subgraphs[0]
    makers = {t: n for n, node in enumerate(found.nodes) for t in node.outs}
    rows = []
    for first, last, offset, size, tensor in boxes:
        name = "scratch" if tensor < 0 else short(text(subgraph.tensors[tensor].name or f"#{tensor}"))
        maker = makers.get(found.numbers.get((0, tensor), -1), -1)
        role = "i" if tensor in subgraph.inputs else "o" if tensor in subgraph.outputs else "s" if tensor < 0 else "t"
        rows.append([first, last, offset, size, name, maker, role])
    return {
        "runtime": runtime,
        "peak_bytes": peak,
        "lower_bound": bound,
        "steps": steps,
        "unplanned": len(unplanned),
        "boxes": rows,
    }
