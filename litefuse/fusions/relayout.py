"""Moves views - TRANSPOSE, RESHAPE - through the operators around them, to where fewer or smaller ones do.

What a view separates are two layouts of the same values. All operators that could compute in either layout form a
region, around which views stand and may have to stand. Which of its operators change layout is a minimum cut: every
view that then is needed, on a tensor whose maker and readers differ in layout or at the region's edge, has its price,
operators that are slower in the new layout have one too, and the cheapest assignment wins, if it is cheaper than the
views that are there. So the price of all views falls with every change, and none is ever undone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Hashable, Iterator
from typing import ClassVar

from litefuse.fusions.layout import Layout
from litefuse.fusions.relay import Relaid, relay, transposable
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph
from litefuse.graph.graph import Array
from litefuse.schema.operators import options_class
from litefuse.schema.tables import Operator
from litefuse.schema.types import FLOATS, NUMPY

_MOST_OPERATORS = 2000
_NEVER = 1 << 60


class MoveViews(Rule):
    """Base of the rules that move one kind of view.

    Attributes:
        allowed: how exact the operators must compute that change layout.
    """

    allowed: ClassVar[frozenset[Numerics]]
    called: ClassVar[str]
    """What the views are called in messages, with {} for how many."""
    explains: ClassVar[bool] = False
    """Whether this rule is the one, of those for the same views, that reports refusals."""
    floats: ClassVar[bool | None] = None
    """Whether the views are of floats, or of anything else; None for all."""

    @abstractmethod
    def layout(self, graph: Graph, view: Operator) -> Layout | None:
        """What a view makes of its input; None when that is not known."""

    @abstractmethod
    def seeds(self, graph: Graph, view: Operator) -> Iterator[tuple[int, Layout]]:
        """Tensors next to a view and layouts in which the view would not be needed."""

    @abstractmethod
    def insert(self, graph: Graph, layout: Layout, x: int, out: int, before: Operator) -> Operator:
        """Adds a view of ``x`` that writes ``out``."""

    @abstractmethod
    def price(self, graph: Graph, tensor: int, layout: Layout) -> int:
        """What a view costs that makes ``layout`` of, or for, a tensor of this type and size."""

    def effort(self, graph: Graph, op: Operator, relaid: Relaid) -> int:
        """How much slower an operator is in the new layout, in the same unit; 0 when it is not."""
        return 0

    # -- the rule --------------------------------------------------------------------------------------------------

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Plans around ``op`` and changes the graph when that makes the views cheaper."""
        if self.floats not in (None, graph.type(op.outputs[0]) in FLOATS) or self.layout(graph, op) is None:
            return None
        refusal: Refused | None = None
        for tensor, layout in self.seeds(graph, op):
            region = _Region(self, graph, tensor, layout)
            saved = region.plan()
            if saved > 0:
                before, after = region.change()
                return Applied(f"{self.called.format(before)} became {after}")
            if self.explains:
                refusal = refusal or region.why()
        return refusal


class _Region:
    """Operators that could compute in another layout, and the views around them."""

    def __init__(self, rule: MoveViews, graph: Graph, seed: int, layout: Layout) -> None:
        self.rule, self.graph = rule, graph
        self.layouts: dict[int, Layout] = {seed: layout}
        self.relaid: dict[Operator, Relaid] = {}
        self.fixed: dict[Operator, None] = {}
        self.chosen: set[Operator] = set()
        self.views: set[Operator] = set()
        self.tensors: dict[int, int] = {}
        self._layout_of: dict[Operator, Layout | None] = {}
        self._flood(seed)
        # Views from one tensor of the region to another stay as they are, like operators that cannot change.
        for view, found in self._layout_of.items():
            if found is not None and view.inputs[0] in self.layouts and view.outputs[0] in self.layouts:
                self._layout_of[view] = None
        self._readers = {tensor: self._read_by(tensor) for tensor in self.layouts}

    def _view(self, op: Operator | None) -> Layout | None:
        """What a view makes of its input; None for other operators."""
        if op is None or self.graph.kind(op) not in self.rule.kinds or self.graph.is_kept(op):
            return None
        if op not in self._layout_of:
            self._layout_of[op] = self.rule.layout(self.graph, op)
        return self._layout_of[op]

    def _flood(self, seed: int) -> None:
        graph = self.graph
        queue = deque([seed])
        while queue:
            tensor = queue.popleft()
            maker = graph.producer(tensor)
            for op in dict.fromkeys([*([maker] if maker else []), *graph.readers(tensor)]):
                if op in self.relaid or op in self.fixed or self._view(op) is not None:
                    continue
                found = relay(graph, op, tensor, self.layouts[tensor])
                if found is None or not self._agrees(found) or len(self.relaid) >= _MOST_OPERATORS:
                    self.fixed[op] = None
                    continue
                self.relaid[op] = found
                for other, layout in found.layouts.items():
                    if other not in self.layouts:
                        self.layouts[other] = layout
                        queue.append(other)

    def _agrees(self, found: Relaid) -> bool:
        return found.numerics in self.rule.allowed and all(
            self.layouts.get(tensor, layout) == layout for tensor, layout in found.layouts.items()
        )

    def _read_by(self, tensor: int) -> tuple[list[Operator], list[Operator], bool]:
        """The operators of the region that read a tensor in its layout, the views, and whether others need it."""
        inside: list[Operator] = []
        views: list[Operator] = []
        outside = tensor in self.graph.outputs
        merges = self._view(self.graph.producer(tensor)) is not None  # two views in a row are another rule's affair
        for op in dict.fromkeys(self.graph.readers(tensor)):
            if op in self.relaid and tensor in self.relaid[op].layouts:
                inside.append(op)
            elif self.layouts[tensor].is_view and not merges and self._view(op) is not None and op.inputs[0] == tensor:
                views.append(op)
            else:
                outside = True
        return inside, views, outside

    def plan(self) -> int:
        """Chooses the operators that change layout; returns what that saves."""
        if not self.relaid:
            return 0
        graph = self.graph
        cut = _Cut()
        now = 0
        for op, relaid in self.relaid.items():
            cut.add(op, "old", self.rule.effort(graph, op, relaid))
        for tensor, layout in self.layouts.items():
            inside, views, outside = self._readers[tensor]
            maker = graph.producer(tensor)
            for view in views:
                cut.add("new", view, price := self._price(tensor, self._view(view)))
                cut.add(view, "old", self._price(tensor, self._from(view)))
                now += price
            readers: list[Hashable] = [*inside, *views]
            new, old = ("new", tensor), ("old", tensor)  # whether the tensor is needed in that layout
            for reader in readers:
                cut.add(reader, new, _NEVER)
                cut.add(old, reader, _NEVER)
            if outside:
                cut.add(old, "old", _NEVER)
            made = self._view(maker) if layout.is_view else None
            if made is not None:
                if readers or outside:
                    cut.add("new", old, price := self._price(tensor, made))
                    now += price
                cut.add(new, "old", self._price(tensor, made.then(layout)))
            elif maker in self.relaid:
                cut.add(maker, old, self._to_insert(tensor))
                cut.add(new, maker, self._to_insert(tensor))
            else:
                cut.add(new, "old", self._to_insert(tensor))
        cost, side = cut.solve("new", "old")
        changed = {op for op in side if isinstance(op, Operator)}
        self.chosen = {op for op in changed if op in self.relaid}
        self.views = changed - self.chosen
        return now - cost if self.chosen else 0

    def _price(self, tensor: int, layout: Layout | None) -> int:
        return 0 if layout is None or layout.is_identity else self.rule.price(self.graph, tensor, layout)

    def _to_insert(self, tensor: int) -> int:
        """The price of a view where there is none."""
        layout = self.layouts[tensor]
        possible = layout.is_view and transposable(self.graph.type(tensor), layout.old)
        return self._price(tensor, layout) if possible else _NEVER

    def _from(self, view: Operator) -> Layout:
        """What makes the output of a view from its input in the new layout."""
        found = self._view(view)
        assert found is not None
        return self.layouts[view.inputs[0]].inverse().then(found)

    def _around(self) -> list[Operator]:
        """The views that read or make tensors of the region."""
        makers = [self.graph.producer(tensor) for tensor in self.layouts]
        found = [op for op in makers if op is not None and self._view(op) is not None]
        return list(dict.fromkeys([*found, *(view for _, views, _ in self._readers.values() for view in views)]))

    def why(self) -> Refused | None:
        """The reason when there are several views within reach that cannot be cancelled."""
        count = len(self._around())
        if not self.relaid or count < 2 or not self.fixed:
            return None
        return Refused(
            f"{self.rule.called.format(count)} around the same operators do not cancel, as "
            f"{self.graph.where(next(iter(self.fixed)))} keeps its layout"
        )

    # -- the change ------------------------------------------------------------------------------------------------

    def change(self) -> tuple[int, int]:
        """Carries out the plan; returns the number of views before and after."""
        graph = self.graph
        before = self._around()
        made: set[Operator] = set()
        for op in [op for op in graph.operators() if op in self.chosen or op in self.views]:
            if op in self.chosen:
                self._rebuild(op, made)
            else:
                self._replace_view(op, made)
        graph.prune(self.layouts)
        return len(before), len([v for v in {*before, *made} if v in graph])

    def _replace_view(self, view: Operator, made: set[Operator]) -> None:
        """Makes a view read its input in the new layout, and removes it where nothing is left to do."""
        graph = self.graph
        layout, source, out = self._from(view), self._in_layout(view.inputs[0], view, made), view.outputs[0]
        if layout.is_identity and graph.bypass(view, source):
            if out in graph.outputs:  # what computed the source writes the output now
                self.tensors = {t: out if new == source else new for t, new in self.tensors.items()}
            return
        # When several outputs of the model turn out to be one tensor, it has to be copied.
        graph.set_output(view, 0, graph.add_tensor(graph.name(out), (), graph.type(out), like=out))
        made.add(self.rule.insert(graph, layout, source, out, view))
        graph.remove(view)

    def _rebuild(self, op: Operator, made: set[Operator]) -> None:
        """Puts an operator in the other layout in the place of ``op``."""
        graph, relaid = self.graph, self.relaid[op]
        inputs = list(op.inputs)
        for slot, tensor in enumerate(inputs):
            if tensor in relaid.layouts:
                inputs[slot] = self._in_layout(tensor, op, made)
        for slot, value in relaid.constants.items():
            inputs += [-1] * (slot + 1 - len(inputs))
            inputs[slot] = self._constant(op, slot, value)
        outputs = list(op.outputs)
        for slot, tensor in enumerate(op.outputs):
            if tensor in relaid.layouts:
                outputs[slot] = self.tensors[tensor] = self._tensor(tensor)
        needed = [t for t in op.outputs if t in relaid.layouts and self._is_needed_as_it_was(t)]
        for slot, tensor in enumerate(list(op.outputs)):
            graph.set_output(op, slot, graph.add_tensor(graph.name(tensor), (), graph.type(tensor), like=tensor))
        kind = relaid.kind or graph.kind(op)
        cls = options_class(kind)
        options = op.builtin_options if kind is graph.kind(op) else None
        if cls is not None and relaid.options:
            options = (options or cls()).replace(**relaid.options)
        version = graph.version(op) if kind is graph.kind(op) else 1
        graph.add_operator(kind, inputs, outputs, before=op, version=version, options=options)
        for tensor in needed:
            made.add(self.rule.insert(graph, self.layouts[tensor].inverse(), self.tensors[tensor], tensor, op))
        graph.remove(op)

    def _is_needed_as_it_was(self, tensor: int) -> bool:
        graph = self.graph
        changed = self.chosen | self.views
        return tensor in graph.outputs or any(
            r not in changed or (r in self.relaid and tensor not in self.relaid[r].layouts)
            for r in graph.readers(tensor)
        )

    def _in_layout(self, tensor: int, reader: Operator, made: set[Operator]) -> int:
        """A tensor in its new layout; where none computes it, a view is put in front of ``reader``."""
        graph, layout = self.graph, self.layouts[tensor]
        if tensor in self.tensors:
            return self.tensors[tensor]
        maker = graph.producer(tensor)
        made_by = self._view(maker)
        if maker is not None and made_by is not None:
            source, layout = maker.inputs[0], made_by.then(layout)
        else:
            source = tensor
        if not layout.is_identity:
            out = self._tensor(tensor)
            made.add(self.rule.insert(graph, layout, source, out, reader))
            source = out
        self.tensors[tensor] = source
        return source

    def _tensor(self, tensor: int) -> int:
        graph = self.graph
        return graph.add_tensor(
            graph.name(tensor),
            self.layouts[tensor].new,
            graph.type(tensor),
            quantization=graph.tensor(tensor).quantization,
        )

    def _constant(self, op: Operator, slot: int, value: Array) -> int:
        graph = self.graph
        old = op.inputs[slot] if slot < len(op.inputs) else -1
        if old < 0:
            return graph.add_constant(f"{graph.name(op.outputs[0])}/operand", value)
        table = graph.tensor(old)
        same = NUMPY.get(table.type) == value.dtype
        return graph.add_constant(
            graph.name(old), value, type=table.type if same else None, quantization=table.quantization
        )


class _Cut:
    """A directed graph with capacities, and its minimum cut (Dinic's algorithm)."""

    def __init__(self) -> None:
        self._nodes: dict[Hashable, int] = {}
        self._edges: list[list[int]] = []  # of each node, numbers of edges; e ^ 1 is the way back of e
        self._head: list[int] = []
        self._room: list[int] = []

    def _node(self, name: Hashable) -> int:
        if name not in self._nodes:
            self._nodes[name] = len(self._nodes)
            self._edges.append([])
        return self._nodes[name]

    def add(self, source: Hashable, target: Hashable, capacity: int) -> None:
        """An edge that costs ``capacity`` when ``source`` ends on the first side and ``target`` on the other."""
        if capacity <= 0:
            return
        a, b = self._node(source), self._node(target)
        for start, end, room in ((a, b, capacity), (b, a, 0)):
            self._edges[start].append(len(self._head))
            self._head.append(end)
            self._room.append(room)

    def solve(self, source: Hashable, target: Hashable) -> tuple[int, set[Hashable]]:
        """The cost of the cheapest cut and the smallest first side that has it."""
        s, t = self._node(source), self._node(target)
        flow = 0
        while True:
            level = self._levels(s)
            if level[t] < 0:
                return flow, {name for name, node in self._nodes.items() if level[node] >= 0}
            following = [0] * len(self._edges)
            while pushed := self._push(s, t, level, following):
                flow += pushed

    def _levels(self, s: int) -> list[int]:
        level = [-1] * len(self._edges)
        level[s] = 0
        queue = deque([s])
        while queue:
            node = queue.popleft()
            for e in self._edges[node]:
                if self._room[e] > 0 and level[self._head[e]] < 0:
                    level[self._head[e]] = level[node] + 1
                    queue.append(self._head[e])
        return level

    def _push(self, s: int, t: int, level: list[int], following: list[int]) -> int:
        """Sends as much as fits along one path of rising levels; 0 when there is none."""
        path: list[int] = []
        node = s
        while node != t:
            edges = self._edges[node]
            while following[node] < len(edges):
                e = edges[following[node]]
                if self._room[e] > 0 and level[self._head[e]] == level[node] + 1:
                    break
                following[node] += 1
            else:
                if not path:
                    return 0
                node = self._head[path.pop() ^ 1]
                following[node] += 1
                continue
            path.append(e)
            node = self._head[e]
        amount = min(self._room[e] for e in path)
        for e in path:
            self._room[e] -= amount
            self._room[e ^ 1] += amount
        return amount
