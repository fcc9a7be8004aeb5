"""What partitioning asks of a graph again and again, by position of the operators, and which regions there are.

Operators that are fed by constants alone (DEQUANTIZE of float16 weights above all, DENSIFY of sparse ones) are no part
of the network: they go with whoever reads them, and their results count as constants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from math import prod

from litefuse.delegates.kinds import class_of, data_slot, fed_by_constants, supported
from litefuse.errors import LitefuseError
from litefuse.graph.graph import SIDE_EFFECTS, Graph, OperatorKind
from litefuse.graph.infer import infer_subgraph
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator
from litefuse.schema.types import nbytes

FREE = -1
"""The owner of operators that are in no region."""


class Network:
    """The operators of a graph by position, with sizes, support and ownership.

    Attributes:
        ops: the operators in execution order; all other lists go by their positions.
        kinds, roles: what each is.
        reasons: why the delegate cannot run it, None when it can.
        ins: the tensors it reads that are computed or given in each run, each once.
        outs: the tensors it writes.
        feeds: whether it is fed by constants alone.
        inferred: the shapes of scalars that the file does not declare as such.
        owner: the number of the region it is in, FREE when in none.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops = list(graph.operators())
        self.position = {op: i for i, op in enumerate(self.ops)}
        self.kinds: list[OperatorKind] = [graph.kind(op) for op in self.ops]
        self.roles = [class_of(kind) for kind in self.kinds]
        self.feeds = [fed_by_constants(graph, op) for op in self.ops]
        self.inferred = _undeclared(graph, self.ops)
        self.reasons: list[str | None] = [
            "it computes the same in every run" if feeds else supported(graph, op, self.inferred)
            for op, feeds in zip(self.ops, self.feeds, strict=True)
        ]
        for i, reason in self._open():
            self.reasons[i] = self.reasons[i] or reason
        for i in self._dead():
            if self.reasons[i] is None:
                self.reasons[i] = "nothing needs its results"
        self.outs = [[t for t in op.outputs if t >= 0] for op in self.ops]
        self._producer: dict[int, int] = {}
        for i, outs in enumerate(self.outs):
            if not self.feeds[i]:
                self._producer.update(dict.fromkeys(outs, i))
        self._fixed = {t for i, outs in enumerate(self.outs) if self.feeds[i] for t in outs}
        self.ins = [[t for t in dict.fromkeys(op.inputs) if t >= 0 and self._flows(t)] for op in self.ops]
        self._readers: dict[int, list[int]] = {}
        for i, ins in enumerate(self.ins):
            if not self.feeds[i]:
                for t in ins:
                    self._readers.setdefault(t, []).append(i)
        self.leaving = graph.outputs
        self.owner = [FREE] * len(self.ops)
        # How far the regions reach that begin at or before a position and end behind it; at least the position itself.
        self._cover = list(range(len(self.ops)))
        self._members: dict[int, Collection[int]] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._bytes: dict[int, int] = {}
        self._constants: dict[int, list[int]] = {}

    def _open(self) -> Iterator[tuple[int, str]]:
        """Operators on tensors with sizes that only run time tells, unless these follow from an open batch."""
        shapes = [self.graph.shape(t) or () for t in self.graph.inputs]
        if any(shape[0] < 0 for shape in shapes if shape) and not any(
            min(shape[1:], default=0) < 0 for shape in shapes
        ):
            return
        for i, op in enumerate(self.ops):
            for t in (*op.inputs, *op.outputs):
                shape = (self.graph.shape(t) or ()) if t >= 0 else ()
                if min(shape, default=0) < 0:
                    place = next(d for d, size in enumerate(shape) if size < 0)
                    yield i, f"the size of dimension {place} of `{self.graph.name(t)}` is only known at run time"
                    break

    def _dead(self) -> Iterator[int]:
        """Operators whose results do not lead to an output of the graph or an effect; last ones first."""
        needed = set(self.graph.outputs)
        for i in reversed(range(len(self.ops))):
            op = self.ops[i]
            has_effect = self.kinds[i] in SIDE_EFFECTS or self.graph.has_state(op)
            if has_effect or not needed.isdisjoint(op.outputs):
                needed.update(op.inputs)
            else:
                yield i

    def _flows(self, tensor: int) -> bool:
        return tensor not in self._fixed and not self.graph.is_constant(tensor) and not self._is_empty(tensor)

    def _is_empty(self, tensor: int) -> bool:
        """Whether nothing computes a tensor because it has no elements: files store such constants like that."""
        graph = self.graph
        return (
            graph.producer(tensor) is None and tensor not in graph.inputs and 0 in (graph.tensor(tensor).shape or (1,))
        )

    # -- structure -----------------------------------------------------------------------------------------------

    def producer(self, tensor: int) -> int | None:
        """The position of the operator that computes a tensor; None for inputs and what is constant."""
        return self._producer.get(tensor)

    def readers(self, tensor: int) -> list[int]:
        """The positions of the operators that read a tensor, ascending, each once."""
        return self._readers.get(tensor, [])

    def only_reader(self, tensor: int) -> int | None:
        """The one operator that needs a tensor; None when there are others, or it leaves the graph."""
        readers = self.readers(tensor)
        return readers[0] if len(readers) == 1 and tensor not in self.leaving else None

    def feeders(self, i: int) -> list[Operator]:
        """The operators that compute constants for an operator, in execution order."""
        if not any(t in self._fixed for t in self.ops[i].inputs):
            return []
        found: dict[int, None] = {}
        todo = [self.ops[i]]
        while todo:
            for tensor in todo.pop().inputs:
                maker = self.graph.producer(tensor) if tensor >= 0 else None
                at = None if maker is None else self.position[maker]
                if at is not None and self.feeds[at] and at not in found:
                    found[at] = None
                    todo.append(self.ops[at])
        return [self.ops[at] for at in sorted(found)]

    def is_free(self, i: int) -> bool:
        """Whether an operator may still be taken into a region."""
        return self.owner[i] == FREE and self.reasons[i] is None

    def data(self, i: int) -> int:
        """The tensor that an operator works on; -1 when it lacks its inputs, as in damaged files."""
        inputs, slot = self.ops[i].inputs, data_slot(self.kinds[i])
        return inputs[slot] if slot < len(inputs) else -1

    def inputs_of(self, members: Collection[int]) -> list[int]:
        """What a set of operators reads from outside, in order of first use."""
        found: dict[int, None] = {}
        for i in sorted(members):
            for t in self.ins[i]:
                if self._producer.get(t) not in members:
                    found[t] = None
        return list(found)

    def outputs_of(self, members: Collection[int], copies: Collection[int] = ()) -> list[int]:
        """What others read of a set of operators, or leaves the graph. Results of `copies` are not for others."""
        return [
            t
            for i in sorted(members)
            if i not in copies
            for t in self.outs[i]
            if t in self.leaving or any(r not in members for r in self.readers(t))
        ]

    def most_live(self, members: Collection[int]) -> int:
        """How many results of a set of operators are needed at a time inside, when they are computed in order."""
        last: dict[int, int] = {}
        for i in members:
            for t in self.ins[i]:
                last[t] = max(last.get(t, i), i)
        live: list[int] = []
        most = 0
        for i in sorted(members):
            live = [until for until in live if until >= i]
            live += [last[t] for t in self.outs[i] if t in last]
            most = max(most, len(live))
        return most

    # -- sizes ---------------------------------------------------------------------------------------------------

    def shape(self, tensor: int) -> tuple[int, ...]:
        """The shape, with a 1 where only run time tells the dimension and the file does not say what it starts as."""
        found = self._shapes.get(tensor) if tensor >= 0 else ()
        if found is None:
            declared = self.graph.tensor(tensor).shape or self.inferred.get(tensor, ())
            found = tuple(1 if d < 0 else d for d in declared)
            self._shapes[tensor] = found
        return found

    def elements(self, tensor: int) -> int:
        """Number of elements."""
        return prod(self.shape(tensor))

    def bytes(self, tensor: int) -> int:
        """Size of a tensor; 0 for types without a size."""
        size = self._bytes.get(tensor) if tensor >= 0 else 0
        if size is None:
            size = self._bytes[tensor] = nbytes(self.graph.type(tensor), self.elements(tensor)) or 0
        return size

    def constants(self, i: int) -> list[int]:
        """The constant tensors that an operator and its feeders read, as they are in the file."""
        known = self._constants.get(i)
        if known is None:
            found: dict[int, None] = {}
            for op in (*self.feeders(i), self.ops[i]):
                found.update((t, None) for t in op.inputs if t >= 0 and self.graph.is_constant(t))
            known = self._constants[i] = list(found)
        return known

    def weights(self, i: int) -> tuple[int, ...]:
        """The shape of a convolution's or matrix product's second operand."""
        inputs = self.ops[i].inputs
        return self.shape(inputs[1]) if len(inputs) > 1 else ()

    def window(self, i: int) -> tuple[int, int]:
        """Height and width of a convolution's filter, of a pool's window; (1, 1) for others."""
        kind = self.kinds[i]
        if kind in (Op.CONV_2D, Op.DEPTHWISE_CONV_2D, Op.TRANSPOSE_CONV):
            shape = self.weights(i)
            return (shape[1], shape[2]) if len(shape) == 4 else (1, 1)
        options = self.ops[i].builtin_options
        return getattr(options, "filter_height", 1), getattr(options, "filter_width", 1)

    def strides(self, i: int) -> tuple[int, int]:
        """Vertical and horizontal stride of a convolution or pool; (1, 1) for others."""
        options = self.ops[i].builtin_options
        return getattr(options, "stride_h", 1), getattr(options, "stride_w", 1)

    def is_depthwise(self, i: int) -> bool:
        """Whether a convolution keeps channels apart; those with as many groups as channels do too."""
        if self.kinds[i] is Op.DEPTHWISE_CONV_2D:
            return True
        if self.kinds[i] is not Op.CONV_2D:
            return False
        weights, channels = self.weights(i), self.shape(self.data(i))[-1:]
        return len(weights) == 4 and weights[3] == 1 and channels == (weights[0],) and weights[0] > 1

    def is_pointwise(self, i: int) -> bool:
        """Whether each pixel (or row) of the output depends on that of the input alone, over all channels."""
        if self.kinds[i] is Op.FULLY_CONNECTED:
            a, b = self.shape(self.data(i)), self.shape(self.outs[i][0])
            return len(a) > 0 and len(b) > 0 and prod(a[:-1]) == prod(b[:-1])
        if self.kinds[i] is not Op.CONV_2D or self.window(i) != (1, 1) or self.strides(i) != (1, 1):
            return False
        return self.weights(i)[-1] == self.shape(self.data(i))[-1]

    # -- regions -------------------------------------------------------------------------------------------------

    def take(self, region: int, members: Collection[int]) -> None:
        """Makes operators the members of a region of that number."""
        for i in members:
            self.owner[i] = region
        self._members[region] = members
        last = max(members)
        for at in range(min(members), last):
            self._cover[at] = max(self._cover[at], last)

    def release(self, region: int) -> None:
        """Makes the members of a region free again."""
        for i in self._members.pop(region):
            self.owner[i] = FREE

    def is_convex(self, members: Collection[int]) -> bool:
        """Whether operators can be one node beside the regions there are.

        They can when no path leaves them and comes back, where a path that enters a region may leave it by any of its
        outputs, since that runs as a whole.
        """
        last = max(members)
        # Nothing behind the furthest reach of the regions that begin before it leads back.
        while self._cover[last] > last:
            last = self._cover[last]
        seen: set[int] = set()
        todo = list(self._followers(members, members))
        while todo:
            i = todo.pop()
            if i in seen or i > last:
                continue
            region = self.owner[i]
            # A region of which a part is among the members is about to be merged with them.
            together = (i,) if region == FREE else [m for m in self._members[region] if m not in members]
            seen.update(together)
            for follower in self._followers(together, ()):
                if follower in members:
                    return False
                if follower not in seen:
                    todo.append(follower)
        return True

    def is_connected(self, members: Collection[int]) -> bool:
        """Whether operators hang together by tensors that one of them computes and another reads."""
        first = next(iter(members))
        seen, todo = {first}, [first]
        while todo:
            i = todo.pop()
            near = [p for t in self.ins[i] if (p := self.producer(t)) is not None]
            near += [r for t in self.outs[i] for r in self.readers(t)]
            for other in near:
                if other in members and other not in seen:
                    seen.add(other)
                    todo.append(other)
        return len(seen) == len(members)

    def _followers(self, members: Iterable[int], without: Collection[int]) -> Iterator[int]:
        for i in members:
            for t in self.outs[i]:
                for reader in self.readers(t):
                    if reader not in without:
                        yield reader


def _undeclared(graph: Graph, operators: Iterable[Operator]) -> dict[int, tuple[int, ...]]:
    """The shapes of tensors for which the file declares none, but which are scalars, as far as that follows.

    That of others would have to be declared, since the delegate goes by the file when it decides what to take.
    """
    lacking = [t for op in operators for t in op.outputs if t >= 0 and graph.shape(t) is None]
    if not lacking:
        return {}
    try:
        specs = infer_subgraph(graph)
    except (LookupError, TypeError, ValueError, LitefuseError):
        return {}  # of a damaged model
    return {t: () for t in lacking if (spec := specs.get(t)) is not None and spec.shape == ()}
