"""The order of operators that needs the least memory, with a proof of how good it is.

A state is the set of operators that have run; the bytes live in it do not depend on how it was reached, so each state
needs to be looked at once. Orders are paths from the empty to the full set, and the peak of an order is the largest
need of its steps. The search is Dijkstra's with that maximum in the place of the sum. Three arguments keep it small:

* *Safe steps.* Live bytes, as a function of the set of executed operators, are submodular (a tensor counts 1 for its
  producer and -1 once all its readers are in the set, and the second is supermodular). If a step needs no more than
  the peak that must be accepted anyway, and leaves no more bytes live than before, then any order that takes the step
  later does no better than the same order with the step moved to the front; so it is taken at once and nothing else
  is tried. The same holds for a group of steps that ends at or below where it started, if every part of the group
  that could have run alone ends no lower.
* *Waiting.* An operator that frees nothing only adds bytes, so it can be moved behind the next operator, unless that
  needs its result or is the last but for it to read one of its operands. Only steps of that kind are tried.
* *Bounds.* The peak of any order is at least the need of each operator alone; states that exceed the peak of an order
  already known are dropped. Where the graph narrows to one tensor, all paths meet in one state by themselves.

In-place sharing is part of the need: an operator that may write over an operand takes no new bytes when it is the
last to read it. Views are free. Sharing of parts (CONCATENATION and the like) is not modelled.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from litefuse.arena.aliasing import Legal, ShareKind, legal_shares
from litefuse.arena.lifetimes import TFLITE, Runtime, Sizes, sizes
from litefuse.arena.problem import aligned
from litefuse.graph.compact import CONTROL_DEPENDENCIES, parse_control_dependencies
from litefuse.graph.graph import NOT_PURE, Graph
from litefuse.schema import tables
from litefuse.schema.operators import Op
from litefuse.schema.tables import (
    CallOptions,
    IfOptions,
    Operator,
    StableHLOCompositeOptions,
    StablehloWhileOptions,
    WhileOptions,
)
from litefuse.schema.writer import as_bytes

# States looked at before the search falls back on beams: more than any real model needed that could be solved, and few
# enough that this limit, which does not depend on the machine, usually comes before that of time.
STATES = 4_000
BEAMS = (4, 64)


@dataclass
class Net:
    """What an order search needs to know of a subgraph. Operators and blocks of memory are numbered from 0.

    Attributes:
        before: for each operator, the set (as bits) of operators that must run before it.
        makes: for each operator, the blocks that it creates.
        reads: for each operator, the blocks that it reads, each once.
        size: of each block, bytes.
        readers: of each block, the set of operators that read it.
        kept: whether a block stays to the end.
        start: the blocks that are there before the first operator.
        over: for each operator, the (read, made) blocks of which the second may be written over the first.
        fused: for an operator, the ways to run it as one with an operator directly before it:
            (that operator, the block between them, the block written over or -1). Such an operator must also be able
            to write over the block between when it runs alone.
        extra: for each operator, bytes that are needed only while it runs.
    """

    before: list[int]
    makes: list[list[int]]
    reads: list[list[int]]
    size: list[int]
    readers: list[int]
    kept: list[bool]
    start: list[int]
    over: list[list[tuple[int, int]]]
    fused: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    extra: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.extra:
            self.extra = [0] * len(self.before)
        self.all = (1 << len(self.before)) - 1
        self.after: list[list[int]] = [[] for _ in self.before]
        for node, before in enumerate(self.before):
            for earlier in _members(before):
                self.after[earlier].append(node)
        self._out = [sum(self.size[b] for b in made) for made in self.makes]
        self._idle = [
            sum(self.size[b] for b in made if not self.readers[b] and not self.kept[b]) for made in self.makes
        ]
        self._mortal = [[(self.readers[b], self.size[b]) for b in blocks if not self.kept[b]] for blocks in self.reads]
        self._over = [
            [(self.readers[read], self.size[made]) for read, made in pairs if not self.kept[read]]
            for pairs in self.over
        ]
        # Operators that need nothing and free nothing, such as the dequantisation of weights, are best run directly
        # before the first operator that needs them; they never are steps of their own.
        partners = {way[0] for ways in self.fused.values() for way in ways}
        self.lazy = sum(
            1 << node
            for node, before in enumerate(self.before)
            if not (before or self.reads[node] or self.extra[node] or node in partners) and self.after[node]
        )
        self.initial = sum(self.size[b] for b in self.start)
        self.initial_rest = self.initial - sum(
            self.size[b] for b in self.start if not self.readers[b] and not self.kept[b]
        )

    def step(self, done: int, live: int, node: int) -> tuple[int, int]:
        """Bytes needed while an operator runs in a state, and bytes live afterwards."""
        rest = ~(done | 1 << node)
        need = live + self._out[node] + self.extra[node]
        over = self._over[node]
        if over:
            need -= max((size for readers, size in over if not readers & rest), default=0)
        live += self._out[node] - self._idle[node]
        for readers, size in self._mortal[node]:
            if not readers & rest:
                live -= size
        return need, live

    def fused_step(self, done: int, live: int, node: int, way: tuple[int, int, int]) -> tuple[int, int]:
        """The same for an operator that runs as one with the operator before it."""
        producer, between, target = way
        rest = ~(done | 1 << node | 1 << producer)
        new = self._out[node]
        need = live + new + self.extra[node] + self.extra[producer]
        if target >= 0 and not self.kept[target] and not self.readers[target] & rest:
            need -= min(self.size[target], new)
        live += new - self._idle[node]
        for block in {*self.reads[producer], *self.reads[node]} - {between}:
            if not self.kept[block] and not self.readers[block] & rest:
                live -= self.size[block]
        return need, live

    def may_wait(self, done: int, node: int) -> bool:
        """Whether an operator that could run frees nothing in this state, so that it can wait until it is needed."""
        if self.extra[node] or not self.after[node]:
            return False
        rest = ~(done | 1 << node)
        return all(readers & rest for readers, _ in self._mortal[node])

    def missing(self, done: int, before: int) -> list[int]:
        """Operators of a set that have not run, behind the lazy ones that they need; none of them frees anything."""
        rest = before & ~done
        lazy = rest & self.lazy
        for node in _members(rest & ~lazy):
            lazy |= self.before[node] & ~done
        return [*_members(lazy), *_members(rest & ~lazy)]

    def move(self, done: int, live: int, node: int, earlier: int = 0) -> tuple[int, int, tuple[int, ...]]:
        """Runs an operator behind others and those it still needs: bytes needed, bytes live afterwards, operators."""
        missing = self.missing(done, self.before[node] | earlier)
        if not missing:
            return *self.step(done, live, node), (node,)
        peak = 0
        nodes = (*missing, node)
        for each in nodes:
            need, live = self.step(done, live, each)
            done |= 1 << each
            peak = max(peak, need)
        return peak, live, nodes

    def first_ready(self) -> int:
        """The operators that can run first, as bits; lazy ones are not counted as obstacles."""
        return sum(
            1 << node
            for node, before in enumerate(self.before)
            if not before & ~self.lazy and not self.lazy >> node & 1
        )

    def now_ready(self, ready: int, done: int, node: int) -> int:
        """The operators that can run next after ``node`` has; ``done`` includes it."""
        done |= self.lazy
        for later in self.after[node]:
            if not self.before[later] & ~done:
                ready |= 1 << later
        return ready & ~done

    def peak(self, order: Sequence[int]) -> int:
        """The most bytes needed at one time in an order. A fused operator and its partner must stand together."""
        done, live, peak = 0, self.initial_rest, self.initial
        position = 0
        while position < len(order):
            node = order[position]
            need, after = self.step(done, live, node)
            following = order[position + 1] if position + 1 < len(order) else -1
            ways = [way for way in self.fused.get(following, ()) if way[0] == node]
            if ways:
                apart = max(need, self.step(done | 1 << node, after, following)[0])
                options = [self.fused_step(done, live, following, way) for way in ways]
                best = min(options)
                if best[0] <= apart:
                    peak, live = max(peak, best[0]), best[1]
                    done |= 1 << node | 1 << following
                    position += 2
                    continue
            peak, live = max(peak, need), after
            done |= 1 << node
            position += 1
        return peak

    def bound(self) -> int:
        """A lower bound of the peak of any order: the start, the end, and what each operator needs by itself."""
        sizes, kept = self.size, self.kept
        always = sum(sizes[b] for b in self.start if kept[b])
        best = max(self.initial, sum(s for s, k in zip(sizes, kept, strict=True) if k))
        for node in range(len(self.before)):
            blocks = {*self.reads[node], *(b for b in self.start if kept[b])}
            need = sum(sizes[b] for b in blocks) + self._out[node] + self.extra[node]
            over = [made for read, made in self.over[node] if not kept[read]]
            need -= max((sizes[b] for b in over), default=0)
            if node in self.fused:
                # Fused, the block between is not in memory, but then the operator before it needs its own operands.
                need = min(
                    [need]
                    + [
                        sum(sizes[b] for b in {*self.reads[way[0]], *blocks} - {way[1]})
                        + self._out[node]
                        - (min(sizes[way[2]], self._out[node]) if way[2] >= 0 else 0)
                        for way in self.fused[node]
                    ]
                )
            best = max(best, need)
        return max(best, always)


def _members(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


@dataclass
class Ordering:
    """An order of a subgraph's operators.

    Attributes:
        order: positions in the file, in the order in which the operators are to run.
        peak: the most bytes live at one time (sizes rounded up to the alignment), views and in-place counted.
        given_peak: the same for the order in the file.
        lower_bound: no order needs less than this.
        proved: whether ``peak`` equals ``lower_bound``.
        floor: no order needs less than this even if tensors are made as parts of larger ones, which ``peak`` and
            ``lower_bound`` do not count with.
        method: how the order was found: ``given``, ``exact``, ``beam``.
        states: how many states were looked at.
        seconds: time taken.
    """

    order: list[int]
    peak: int
    given_peak: int
    lower_bound: int
    proved: bool
    method: str
    states: int = 0
    seconds: float = 0.0
    floor: int = 0


def search(
    graph: Graph,
    runtime: Runtime,
    *,
    seconds: float = 10.0,
    states: int = STATES,
    known: Sizes | None = None,
    legal: Legal | None = None,
    overwrite_inputs: bool = False,
    extra: Mapping[int, int] | None = None,
    alignment: int | None = None,
) -> Ordering:
    """The best order of a subgraph's operators that can be found within a budget; never worse than the given one.

    Operators with side effects or unknown purity, and those joined by the file's control dependencies, keep their
    relative order.

    Args:
        graph: the subgraph.
        runtime: whose rules of lifetimes apply.
        seconds: time limit; a search that it ends gives what was found by then, which depends on the machine.
        states: limit on the number of states of the exact search.
        known: the result of :func:`litefuse.arena.lifetimes.sizes`, if at hand.
        legal: the shares to count with; those legal in the runtime by default.
        overwrite_inputs: whether in-place operators may write over inputs of the model.
        extra: bytes that operators (by position) need only while they run, such as the subgraphs that they call.
        alignment: bytes to which sizes are rounded up; the runtime's by default.
    """
    known = sizes(graph, runtime) if known is None else known
    legal = legal_shares(graph, runtime, known) if legal is None else legal
    net, zeroes = net_of(graph, runtime, known, legal, overwrite_inputs, extra or {}, alignment or runtime.alignment)
    found = search_net(net, seconds=seconds, states=states)
    floor = 0
    for zero in zeroes:
        size = [0 if block in zero else n for block, n in enumerate(net.size)]
        loose = replace(net, size=size)
        # Where the search itself gave up, these would too.
        proved = found.proved and search_net(loose, seconds=seconds, states=states).lower_bound
        floor = max(floor, proved or loose.bound())
    found.floor = min(floor, found.lower_bound) if zeroes else found.lower_bound
    return found


def is_pure(model: tables.Model, graph: Graph, op: Operator, depth: int = 0) -> bool:
    """Whether an operator only computes its outputs, so that it may change places with other such operators.

    A composite and control flow are as pure as the subgraphs they run; custom operators count as impure.
    """
    if graph.has_state(op):
        return False
    kind = graph.kind(op)
    if kind not in NOT_PURE:
        return True
    options = op.builtin_options_2 if op.builtin_options_2 is not None else op.builtin_options
    if isinstance(options, StableHLOCompositeOptions):
        called = [options.decomposition_subgraph_index]
    elif isinstance(options, IfOptions):
        called = [options.then_subgraph_index, options.else_subgraph_index]
    elif isinstance(options, (WhileOptions, StablehloWhileOptions)):
        called = [options.cond_subgraph_index, options.body_subgraph_index]
    elif isinstance(options, CallOptions) and kind is Op.CALL:
        called = [options.subgraph]
    else:
        return False
    if depth > 8 or not all(0 <= index < len(model.subgraphs) for index in called):
        return False
    inner = [Graph(model, index) for index in called]
    return all(is_pure(model, g, o, depth + 1) for g in inner for o in g.subgraph.operators)


def predecessors(graph: Graph) -> list[int]:
    """For each operator by position, the operators that must run before it, as bits.

    Those are the producers of what it reads, the operator of unknown purity before it if it is one too, and what the
    file's control dependencies say.
    """
    operators = graph.subgraph.operators
    place = {op: i for i, op in enumerate(operators)}
    before = [0] * len(operators)
    last_impure = -1
    for position, op in enumerate(operators):
        for tensor in op.inputs:
            maker = graph.producer(tensor)
            if maker is not None and maker is not op:
                before[position] |= 1 << place[maker]
        if not is_pure(graph.model, graph, op):
            if last_impure >= 0:
                before[position] |= 1 << last_impure
            last_impure = position
    for a, b in _control_edges(graph):
        if a != b and 0 <= a < len(operators) and 0 <= b < len(operators):
            before[b] |= 1 << a
    return before


def _control_edges(graph: Graph) -> list[tuple[int, int]]:
    model = graph.model
    for entry in model.metadata or ():
        if entry.name == CONTROL_DEPENDENCIES and 0 < entry.buffer < len(model.buffers):
            data = model.buffers[entry.buffer].data
            pairs = None if data is None else parse_control_dependencies(bytes(as_bytes(data)))
            if pairs is None or len(pairs) != len(model.subgraphs):
                # Not readable, so what it demands is not known: keep every operator where it is.
                return [(i, i + 1) for i in range(len(graph.subgraph.operators) - 1)]
            return pairs[graph.index]
    return []


def net_of(
    graph: Graph,
    runtime: Runtime,
    known: Sizes,
    legal: Legal,
    overwrite_inputs: bool,
    extra: Mapping[int, int],
    alignment: int,
) -> tuple[Net, list[set[int]]]:
    """The order problem of a subgraph, where tensors joined by whole views are one block.

    Also returned are sets of blocks to leave out, so that what is left cannot overlap even where tensors are made as
    parts of larger ones; none if there are no such tensors.
    """
    operators = graph.subgraph.operators
    root = list(range(len(graph.tensors)))

    def find(tensor: int) -> int:
        while root[tensor] != tensor:
            root[tensor] = root[root[tensor]]
            tensor = root[tensor]
        return tensor

    for share in legal.shares:
        if share.kind is ShareKind.VIEW and not share.offset and _same_size(known, share.source, share.target):
            root[find(share.target)] = find(share.source)
    number: dict[int, int] = {}
    size: list[int] = []
    for tensor in known.bytes:
        head = find(tensor)
        if head not in number:
            number[head] = len(size)
            size.append(aligned(known.bytes[tensor], alignment))
    block = {tensor: number[find(tensor)] for tensor in known.bytes}
    count = len(size)
    readers, kept, start, made_by = [0] * count, [False] * count, [], [-1] * count
    entry = dict.fromkeys(block[t] for t in graph.subgraph.inputs if t in block)
    start = list(entry)
    makes: list[list[int]] = [[] for _ in operators]
    reads: list[list[int]] = [[] for _ in operators]
    for position, op in enumerate(operators):
        reads[position] = list(dict.fromkeys(block[t] for t in op.inputs if t in block))
        for b in reads[position]:
            readers[b] |= 1 << position
        for b in dict.fromkeys(block[t] for t in op.outputs if t in block):
            if b not in entry and made_by[b] < 0:
                made_by[b] = position
                makes[position].append(b)
    for tensor in graph.subgraph.outputs:
        if tensor in block:
            kept[block[tensor]] = True
    if runtime.keeps_borders:
        for b in (*start, *(b for b in range(count) if not readers[b])):
            kept[b] = True
    over: list[list[tuple[int, int]]] = [[] for _ in operators]
    fused: dict[int, list[tuple[int, int, int]]] = {}
    guarded = set() if overwrite_inputs and graph.index == 0 else set(start)
    for share in legal.shares:
        if share.kind is ShareKind.VIEW:
            continue
        a, b = block[share.source], block[share.target]
        usable = a not in guarded and a != b and size[a] == size[b] and b in makes[share.operator]
        if share.kind is ShareKind.IN_PLACE:
            if usable and not (runtime is TFLITE and readers[a].bit_count() > _view_reads(graph, share.source) + 1):
                over[share.operator].append((a, b))
        else:
            between = block[share.skipped]
            if readers[between] == 1 << share.operator and not kept[between] and b in makes[share.operator]:
                target = a if usable and a not in reads[share.producer] else -1
                fused.setdefault(share.operator, []).append((share.producer, between, target))
    net = Net(
        predecessors(graph),
        makes,
        reads,
        size,
        readers,
        kept,
        start,
        over,
        fused,
        [extra.get(i, 0) for i in range(len(operators))],
    )
    return net, _overlapping(legal, block, size)


def _overlapping(legal: Legal, block: dict[int, int], size: list[int]) -> list[set[int]]:
    """Sets of blocks without which no two blocks can hold the same data: the smaller ones, or those made of parts."""
    at = {b: (b, 0) for b in range(len(size))}  # of each block, the first of its group and the distance from there
    group = {b: {b} for b in range(len(size))}
    wholes = set()
    for share in legal.shares:
        if share.kind is not ShareKind.VIEW:
            continue
        a, b = block[share.source], block[share.target]
        if a == b:
            continue
        wholes.add(a if size[a] > size[b] else b)
        (root, start), (other, there) = at[a], at[b]
        if root != other:
            for member in group[other]:
                at[member] = root, at[member][1] + start + share.offset - there
            group[root] |= group.pop(other)
    small: set[int] = set()
    whole: set[int] = set()
    for members in group.values():
        rest = members - {max(members, key=lambda b: (size[b], -b))}
        small |= rest
        ranges = sorted((at[b][1], size[b]) for b in members - wholes)
        apart = all(x + n <= y for (x, n), (y, _) in pairwise(ranges))
        whole |= members & wholes if apart else rest
    return [small, whole] if small else []


def _view_reads(graph: Graph, tensor: int) -> int:
    """How many reshapes lead from the tensor that owns the memory to this one: each counts as a reader of the block."""
    count = 0
    maker = graph.producer(tensor)
    while maker is not None and graph.kind(maker) in (Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS, Op.BITCAST):
        count += 1
        maker = graph.producer(maker.inputs[0])
    return count


def _same_size(known: Sizes, a: int, b: int) -> bool:
    return a in known.bytes and known.bytes[a] == known.bytes.get(b)


# -- the search ----------------------------------------------------------------------------------------------------


def search_net(net: Net, *, seconds: float = 10.0, states: int = STATES) -> Ordering:
    """Solves an order problem; see :func:`search`."""
    began = time.perf_counter()
    given = list(range(len(net.before)))
    given_peak, bound = net.peak(given), net.bound()
    best = Ordering(given, given_peak, given_peak, bound, given_peak <= bound, "given")
    if not best.proved:
        _Search(net, bound, best, states, began + seconds).run()
        # Fused operators stand together only if the order says so; the peak is recomputed from the order alone.
        best.proved = best.peak <= best.lower_bound
    best.seconds = time.perf_counter() - began
    return best


class _Search:
    def __init__(self, net: Net, bound: int, best: Ordering, states: int, until: float) -> None:
        self.net, self.bound, self.best, self.states, self.until = net, bound, best, states, until
        self.fusible = {way[0]: node for node, ways in net.fused.items() for way in ways}

    def run(self) -> None:
        best = self.best
        for width in BEAMS[:1]:
            self._beam(width)
        if best.peak <= best.lower_bound:
            return
        exhausted = self._exact()
        if not exhausted:
            for width in BEAMS[1:]:
                self._beam(width)

    def _improve(self, order: list[int], method: str) -> None:
        peak = self.net.peak(order)
        if peak < self.best.peak:
            self.best.order, self.best.peak, self.best.method = order, peak, method

    def _moves(self, done: int, live: int, ready: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """The next steps worth trying: need, bytes live afterwards, operators."""
        net = self.net
        waiting, steps = 0, []
        for node in _members(ready):
            if net.may_wait(done, node):
                waiting |= 1 << node
            else:
                steps.append(node)
        able = waiting | net.lazy
        followers = dict.fromkeys(later for node in _members(waiting) for later in net.after[node])
        steps += [later for later in followers if not net.before[later] & ~(done | able)]
        seen: set[int] = set()
        free = 0  # operators that are tried by themselves because there are too many ways to have them wait
        for node in (*steps, *_members(waiting)):
            waits = waiting >> node & 1
            behind, loose = self._preludes(done, waiting, net.before[node] & ~done, (node,), net.reads[node])
            free |= loose
            for earlier in behind:
                # All orders of operators that wait end alike; only what is written in place can differ.
                if waits and (not earlier or (earlier | 1 << node in seen and not net.over[node])):
                    continue
                if waits:
                    seen.add(earlier | 1 << node)
                yield net.move(done, live, node, earlier)
        for later in dict.fromkeys(self.fusible[n] for n in (*steps, *_members(waiting)) if n in self.fusible):
            for way in net.fused[later]:
                missing = (net.before[way[0]] | net.before[later]) & ~(done | 1 << way[0])
                if done >> way[0] & 1 or missing & ~able:
                    continue
                blocks = [b for b in {*net.reads[way[0]], *net.reads[later]} if b != way[1]]
                behind, loose = self._preludes(done, waiting, missing, (way[0], later), blocks)
                free |= loose
                for earlier in behind:
                    yield self._fused_move(done, live, later, way, missing | earlier)
        for node in _members(free):
            yield net.move(done, live, node)

    def _preludes(
        self, done: int, waiting: int, missing: int, nodes: tuple[int, ...], blocks: Sequence[int]
    ) -> tuple[list[int], int]:
        """The sets of waiting operators that may be worth running directly before ``nodes``.

        Those are the ones that ``nodes`` need, and with them any choice of the blocks that ``nodes`` could then be the
        last to read. With too many choices, the operators concerned are returned as the second value instead.
        """
        net = self.net
        out = ~done
        for node in nodes:
            out &= ~(1 << node)
        rests = []
        for block in blocks:
            rest = net.readers[block] & out & ~missing
            if rest and not rest & ~waiting and not net.kept[block] and rest not in rests:
                rests.append(rest)
        if len(rests) > 5:
            free = 0
            for rest in rests:
                free |= rest
            return [missing], free
        choices = dict.fromkeys([missing])
        for rest in rests:
            choices |= dict.fromkeys([choice | rest for choice in choices])
        return list(choices), 0

    def _fused_move(
        self, done: int, live: int, later: int, way: tuple[int, int, int], earlier: int
    ) -> tuple[int, int, tuple[int, ...]]:
        net = self.net
        peak = 0
        first = net.missing(done, earlier)
        for each in first:
            need, live = net.step(done, live, each)
            done |= 1 << each
            peak = max(peak, need)
        need, live = net.fused_step(done, live, later, way)
        return max(peak, need), live, (*first, way[0], later)

    def _closure(self, done: int, live: int, ready: int, key: int) -> tuple[int, int, int, list[int]]:
        """Takes every safe step; returns the state reached and the steps."""
        net = self.net
        taken: list[int] = []
        again = True
        while again:
            again = False
            for need, after, nodes in self._moves(done, live, ready):
                if need > key:
                    continue
                if after > live:
                    group = self._group(done, live, ready, key, after, nodes)
                    if group is None:
                        continue
                    after, nodes = group
                for node in nodes:
                    done |= 1 << node
                    ready = net.now_ready(ready, done, node)
                live = after
                taken.extend(nodes)
                again = True
                break
        return done, live, ready, taken

    def _group(
        self, done: int, live: int, ready: int, key: int, after: int, nodes: tuple[int, ...]
    ) -> tuple[int, tuple[int, ...]] | None:
        """A chain of steps, each made possible by the one before, that ends at or below ``live``."""
        net = self.net
        for node in nodes:
            done |= 1 << node
            ready = net.now_ready(ready, done, node)
        stack = [(done, after, ready, nodes)]
        tries = 0
        while stack and tries < 40:
            at, bytes_, open_, path = stack.pop()
            for later in reversed(net.after[path[-1]]):
                if not open_ >> later & 1:
                    continue
                tries += 1
                need, rest, more = net.move(at, bytes_, later)
                if need > key:
                    continue
                if rest <= live:
                    return rest, path + more
                then = at
                for node in more:
                    then |= 1 << node
                stack.append((then, rest, net.now_ready(open_, then, later), path + more))
        return None

    def _exact(self) -> bool:
        """Best-first over states; True when the result is proved."""
        net, best = self.net, self.best
        key = max(self.bound, net.initial)
        parents: dict[int, tuple[int, tuple[int, ...]]] = {0: (-1, ())}
        reached: dict[int, int] = {0: key}
        heap: list[tuple[int, int, int, int, int]] = [(key, 0, 0, net.initial_rest, net.first_ready())]
        closed: set[int] = set()
        while heap:
            key, _, done, live, ready = heapq.heappop(heap)
            if done in closed:
                continue
            closed.add(done)
            best.states += 1
            best.lower_bound = max(best.lower_bound, min(key, best.peak))
            if key >= best.peak:
                return True
            if best.states > self.states or time.perf_counter() > self.until:
                return False
            state, live, ready, taken = self._closure(done, live, ready, key)
            if taken:
                if state in closed:
                    continue
                closed.add(state)
                parents[state] = done, tuple(taken)
                reached[state] = key
            if state == net.all:
                self._improve(self._path(parents, state), "exact")
                return True
            count = state.bit_count()
            for need, after, nodes in self._moves(state, live, ready):
                value = max(key, need)
                if value >= best.peak:
                    continue
                then, open_ = state, ready
                for node in nodes:
                    then |= 1 << node
                    open_ = net.now_ready(open_, then, node)
                if then in closed or reached.get(then, value + 1) <= value:
                    continue
                reached[then] = value
                parents[then] = state, nodes
                heapq.heappush(heap, (value, -count - len(nodes), then, after, open_))
        best.lower_bound = best.peak
        return True

    @staticmethod
    def _path(parents: dict[int, tuple[int, tuple[int, ...]]], state: int) -> list[int]:
        steps: list[int] = []
        while state > 0:
            state, nodes = parents[state]
            steps.extend(reversed(nodes))
        return steps[::-1]

    def _beam(self, width: int) -> None:
        """A bounded search that keeps the ``width`` best states of each number of executed operators."""
        net = self.net
        key = max(self.bound, net.initial)
        levels: dict[int, dict[int, tuple[int, int, int, tuple[int, ...]]]] = {}

        def add(done: int, entry: tuple[int, int, int, tuple[int, ...]]) -> None:
            level = levels.setdefault(done.bit_count(), {})
            if done not in level or entry[:2] < level[done][:2]:
                level[done] = entry

        add(0, (key, net.initial_rest, net.first_ready(), ()))
        for count in range(len(net.before) + 1):
            level = levels.pop(count, {})
            if time.perf_counter() > self.until + 1:
                return
            for done, (key, live, ready, path) in sorted(level.items(), key=lambda e: (e[1][0], e[1][1], e[0]))[:width]:
                if key >= self.best.peak:
                    continue
                state, live, ready, taken = self._closure(done, live, ready, key)
                path = path + tuple(taken)
                if state == net.all:
                    self._improve(list(path), "beam")
                    continue
                if taken:
                    add(state, (key, live, ready, path))
                    if state.bit_count() > count:
                        continue
                for need, after, nodes in self._moves(state, live, ready):
                    then, open_ = state, ready
                    for node in nodes:
                        then |= 1 << node
                        open_ = net.now_ready(open_, then, node)
                    add(then, (max(key, need), after, open_, path + nodes))
