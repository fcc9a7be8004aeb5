"""Where the operators of a graph stand in a picture of it: in layers, each below what it reads.

Layers are by the longest way from an input; crossings are lessened by a few sweeps that sort each layer by the mean
place of its neighbours; places across are then fitted to those of the neighbours, as closely as the room between them
allows. An edge over several layers gets a bend in each of them, so that it goes around what stands between; those over
more than :data:`LONGEST` go along the right border, and so do the longest where there would be more bends than
:data:`BENDS` for each node. All steps take time linear in nodes and edges, but for the sorting of layers.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LONGEST = 12
"""Layers that an edge with bends may cross."""

BENDS = 4
"""Bends that there may be, for each node of the graph."""

_SWEEPS = 8
_FITS = 6


class Point(NamedTuple):
    """A place in the picture; y grows downwards."""

    x: float
    y: float


@dataclass
class Layout:
    """The picture of a graph.

    Attributes:
        places: the centre of each node.
        bends: for each edge, in the order given, the points between its ends.
        width: of the whole picture, whose left border is 0.
        height: of the whole picture, whose upper border is 0.
        layers: number of layers.
    """

    places: list[Point]
    bends: list[list[Point]]
    width: float
    height: float
    layers: int


@dataclass
class _Layered:
    """Nodes and bends by layer. Bends are numbered behind the nodes."""

    layer: list[int]
    above: list[list[int]] = field(default_factory=list)
    below: list[list[int]] = field(default_factory=list)

    def add(self, layer: int) -> int:
        self.layer.append(layer)
        self.above.append([])
        self.below.append([])
        return len(self.layer) - 1

    def join(self, a: int, b: int) -> None:
        self.below[a].append(b)
        self.above[b].append(a)


def layout(
    count: int,
    edges: Sequence[tuple[int, int]],
    *,
    width: float = 164.0,
    height: float = 40.0,
    gap: float = 24.0,
    rise: float = 34.0,
) -> Layout:
    """Lays out a graph without cycles whose nodes are numbered in an order in which they could run.

    Args:
        count: number of nodes.
        edges: pairs of nodes, the first of which comes before the second; others are left out of account.
        width: of a node.
        height: of a node.
        gap: between neighbours in a layer.
        rise: between layers.
    """
    if not count:
        return Layout([], [[] for _ in edges], 0.0, 0.0, 0)
    usable = [(a, b) if 0 <= a < b < count else None for a, b in edges]
    layer = _layers(count, [e for e in usable if e is not None])
    graph = _Layered([])
    for i in range(count):
        graph.add(layer[i])
    chains = _bend(graph, usable, count)
    rows = _rows(graph)
    _uncross(graph, rows)
    sizes = [width] * count + [gap / 2] * (len(graph.layer) - count)
    across = _fit(graph, rows, sizes, gap, count)
    left = min(x - size / 2 for x, size in zip(across, sizes, strict=True))
    right = max(x + size / 2 for x, size in zip(across, sizes, strict=True))
    lanes = _lanes(graph, usable, chains)
    points = [
        Point(round(x - left, 1), round(row * (height + rise) + height / 2, 1))
        for x, row in zip(across, graph.layer, strict=True)
    ]
    bends = [[points[i] for i in chain] for chain in chains]
    for n, lane in lanes.items():
        a, b = usable[n] or (0, 0)
        x = round(right - left + gap * (1 + lane / 2), 1)
        bends[n] = [Point(x, points[a].y + height + rise), Point(x, points[b].y - height - rise)]
    right += gap * (1 + max(lanes.values()) / 2) if lanes else 0.0
    total = len(rows) * (height + rise) - rise
    return Layout(points[:count], bends, round(right - left, 1), round(total, 1), len(rows))


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """One more than the lowest node above; what reads nothing stands right above what reads it."""
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        above[b].append(a)
        below[a].append(b)
    layer = [0] * count
    for i in range(count):
        layer[i] = max((layer[j] + 1 for j in above[i]), default=0)
    for i in range(count):
        if not above[i] and below[i]:
            layer[i] = min(layer[j] for j in below[i]) - 1
    return layer


def _bend(graph: _Layered, edges: Sequence[tuple[int, int] | None], count: int) -> list[list[int]]:
    """Puts a bend into each layer that an edge crosses; returns the bends of each edge."""
    chains: list[list[int]] = [[] for _ in edges]
    spans = [0 if e is None else graph.layer[e[1]] - graph.layer[e[0]] - 1 for e in edges]
    room = BENDS * count + 64
    joined: set[tuple[int, int]] = set()
    for n in sorted(range(len(edges)), key=lambda n: spans[n]):
        edge = edges[n]
        if edge is None or edge in joined:
            continue
        joined.add(edge)
        if spans[n] > min(room, LONGEST):
            continue
        room -= spans[n]
        last = edge[0]
        for row in range(graph.layer[edge[0]] + 1, graph.layer[edge[1]]):
            bend = graph.add(row)
            graph.join(last, bend)
            chains[n].append(bend)
            last = bend
        graph.join(last, edge[1])
    return chains


def _lanes(graph: _Layered, edges: Sequence[tuple[int, int] | None], chains: Sequence[list[int]]) -> dict[int, int]:
    """The lane at the border of each long edge without bends; those that share one do not meet."""
    long = [n for n, e in enumerate(edges) if e and not chains[n] and graph.layer[e[1]] - graph.layer[e[0]] > 2]
    lanes: dict[int, int] = {}
    open_: list[tuple[int, int]] = []  # where a lane ends, and its number
    free: list[int] = []
    for n in sorted(long, key=lambda n: graph.layer[(edges[n] or (0, 0))[0]]):
        a, b = edges[n] or (0, 0)
        while open_ and open_[0][0] < graph.layer[a]:
            heapq.heappush(free, heapq.heappop(open_)[1])
        lane = heapq.heappop(free) if free else len(open_)
        heapq.heappush(open_, (graph.layer[b], lane))
        lanes[n] = lane
    return lanes


def _rows(graph: _Layered) -> list[list[int]]:
    """The nodes and bends of each layer, at first in the order in which a walk from the top comes to them."""
    rows: list[list[int]] = [[] for _ in range(max(graph.layer) + 1)]
    seen = [False] * len(graph.layer)
    for start in range(len(graph.layer)):
        todo = [] if seen[start] or graph.above[start] else [start]
        while todo:
            i = todo.pop()
            if seen[i]:
                continue
            seen[i] = True
            rows[graph.layer[i]].append(i)
            todo.extend(reversed(graph.below[i]))
    return rows


def _uncross(graph: _Layered, rows: list[list[int]]) -> None:
    """Sorts layers by the mean place of their neighbours, downwards and upwards by turns; keeps the best order."""
    place = [0.0] * len(graph.layer)

    def number(row: list[int]) -> None:
        for n, i in enumerate(row):
            place[i] = n

    for row in rows:
        number(row)
    best, fewest = [list(row) for row in rows], _crossings(graph, rows, place)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            near = graph.above if down else graph.below
            keys = {i: sum(place[j] for j in near[i]) / len(near[i]) if near[i] else place[i] for i in row}
            row.sort(key=keys.__getitem__)
            number(row)
        crossings = _crossings(graph, rows, place)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    rows[:] = best


def _crossings(graph: _Layered, rows: list[list[int]], place: list[float]) -> int:
    """Number of pairs of edges that cross, with a Fenwick tree for each pair of layers."""
    total = 0
    for upper in rows:
        ends = [int(e) for i in upper for e in sorted(place[j] for j in graph.below[i])]
        if len(ends) < 2:
            continue
        size = max(ends) + 1
        tree = [0] * (size + 1)
        for seen, end in enumerate(ends):
            behind, at = 0, end + 1
            while at:
                behind += tree[at]
                at &= at - 1
            total += seen - behind
            at = end + 1
            while at <= size:
                tree[at] += 1
                at += at & -at
    return total


def _fit(graph: _Layered, rows: list[list[int]], sizes: list[float], gap: float, count: int) -> list[float]:
    """Places across: each layer as near as it can be to the mean of its neighbours, in its order and with its gaps."""
    across = [0.0] * len(graph.layer)
    for row in rows:
        at = 0.0
        for i in row:
            across[i] = at + sizes[i] / 2
            at += sizes[i] + gap
        for i in row:
            across[i] -= (at - gap) / 2

    def wish(i: int, near: list[int]) -> tuple[float, float]:
        """Where something would like to be, and how much; long edges are to be straight more than anything."""
        if not near:
            return across[i], 0.05
        weights = [8.0 if i >= count and j >= count else 2.0 if i >= count or j >= count else 1.0 for j in near]
        total = sum(weights)
        return sum(w * across[j] for w, j in zip(weights, near, strict=True)) / total, total

    for turn in range(2 * _FITS):
        down = turn % 2 == 0
        for row in rows if down else rows[::-1]:
            near = graph.above if down else graph.below
            if turn >= 2 * _FITS - 2:  # at last, both sides have their say
                wishes = [wish(i, graph.above[i] + graph.below[i]) for i in row]
            else:
                wishes = [wish(i, near[i]) for i in row]
            for i, x in zip(row, _spread([sizes[i] for i in row], wishes, gap), strict=True):
                across[i] = x
    return across


def _spread(sizes: list[float], wishes: list[tuple[float, float]], gap: float) -> list[float]:
    """The places nearest to the wished ones by weighted squares that keep the order and the gaps.

    With what stands to the left taken off, places must only not fall: neighbours that would are pooled at their mean.
    """
    offsets: list[float] = []
    at = 0.0
    for n, size in enumerate(sizes):
        if n:
            at += (sizes[n - 1] + size) / 2 + gap
        offsets.append(at)
    pools: list[tuple[float, float, int]] = []  # mean, weight, number of members
    for offset, (x, weight) in zip(offsets, wishes, strict=True):
        mean, heft, members = x - offset, weight, 1
        while pools and pools[-1][0] > mean:
            before, more, others = pools.pop()
            mean = (mean * heft + before * more) / (heft + more)
            heft, members = heft + more, members + others
        pools.append((mean, heft, members))
    means = [mean for mean, _, members in pools for _ in range(members)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
