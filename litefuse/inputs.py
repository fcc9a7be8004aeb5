"""Inputs to run a model on: seeded random ones and the edges where kernels differ.

The values of an input depend only on the seed, its name, its signature, the case and its shape, so that any two models
with the same interface get the same values.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from litefuse.graph import Graph
from litefuse.interface import Entry, Port
from litefuse.schema.enums import TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator
from litefuse.schema.types import NUMPY, RANGES

Array = NDArray[Any]


class Case(NamedTuple):
    """A way to fill all inputs."""

    name: str
    ordinary: bool = False
    """Random values of usual size, from which a model's own rounding noise is measured."""
    extreme: bool = False
    """Values that are not finite, or so large that sums of them are not."""


CASES = (
    Case("normal", ordinary=True),
    Case("zeros"),
    Case("unit", ordinary=True),
    Case("symmetric", ordinary=True),
    Case("ones"),
    Case("alternating"),
    Case("wide"),
    Case("pixels"),
    Case("large"),
    Case("tiny"),
    Case("denormal"),
    Case("huge", extreme=True),
    Case("infinite", extreme=True),
    Case("nan", extreme=True),
)
# Of these, what integers can tell apart.
_INTEGER_CASES = frozenset({"normal", "zeros", "unit", "symmetric", "ones", "alternating", "wide", "large"})

_FLOATS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "zeros": lambda rng, shape: np.zeros(shape),
    "symmetric": lambda rng, shape: rng.uniform(-1, 1, shape),
    "ones": lambda rng, shape: np.ones(shape),
    "alternating": lambda rng, shape: 1.0 - 2.0 * (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2),
    "wide": lambda rng, shape: rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 3, shape),
    "pixels": lambda rng, shape: rng.uniform(0, 255, shape),
    "large": lambda rng, shape: rng.standard_normal(shape) * 1e4,
    "tiny": lambda rng, shape: rng.standard_normal(shape) * 1e-30,
    "denormal": lambda rng, shape: rng.standard_normal(shape) * 1e-40,
}
# What takes the place of some values in the extreme cases.
_EXTREMES = {"huge": (3e38, -3e38), "infinite": (np.inf, -np.inf), "nan": (np.nan,)}
_STRINGS = (b"", b"a", b"hello", b"two words", "naïve Zoë".encode(), b"0", b"-12.5", b"x" * 300)


class Feed:
    """Makes the values of one input.

    What consumes the input decides which integers are valid indices, and which range of floats is worth using.
    """

    def __init__(self, port: Port, entry: Entry, graphs: Graphs) -> None:
        self.port = port
        self.key = [zlib.crc32(name.encode("utf-8", "surrogateescape")) for name in (entry.key, port.name)]
        self.limit = min(_index_limits(graphs, entry.subgraph, port.tensor), default=None)
        self.range = _float_range(graphs[entry.subgraph], port.tensor)

    @property
    def possible(self) -> bool:
        """Whether values of this type can be made (not of RESOURCE, VARIANT and the formats numpy does not know)."""
        return self.port.type in NUMPY or self.port.type in RANGES or self.port.type == TensorType.STRING

    @property
    def real(self) -> bool:
        """Whether the input takes real or complex numbers, for which every case means something."""
        return self.port.type in NUMPY and NUMPY[self.port.type].kind in "fc"

    def shape(self, batch: int, other: int | None) -> tuple[int, ...]:
        """The shape with ``batch`` for an unknown first dimension and ``other`` (None: as stored) for other ones."""
        stored = self.port.shape
        return tuple(
            d if d >= 0 else batch if i == 0 else stored[i] if other is None else other
            for i, d in enumerate(self.port.signature)
        )

    def values(self, case: Case, shape: tuple[int, ...], seed: int, *, calm: float | None = None) -> Array:
        """The values of a case: float32 and so on as the type says, 4-bit integers as bytes, strings as objects.

        With ``calm``, that number takes the place of the extreme values of an extreme case.
        """
        rng = np.random.default_rng([seed, *self.key, zlib.crc32(case.name.encode())])
        kind = self.port.type
        if kind == TensorType.STRING:
            count = int(np.prod(shape, dtype=int))
            text = (
                [b""] * count
                if case.name == "zeros"
                else [_STRINGS[i] for i in rng.integers(len(_STRINGS), size=count)]
            )
            value = np.empty(count, object)
            value[:] = text
            return value.reshape(shape)
        dtype = NUMPY.get(kind) or np.dtype(np.int8 if RANGES[kind][0] < 0 else np.uint8)
        if dtype.kind == "b":
            return self._integers(case.name, rng, shape, 0, 1).astype(dtype)
        if dtype.kind in "iu":
            return self._integers(case.name, rng, shape, *self._integer_range()).astype(dtype)
        if self.limit is not None:
            return self._integers(case.name, rng, shape, 0, self.limit - 1).astype(dtype)
        with np.errstate(all="ignore"):
            value = self._real(case.name, rng, shape, calm)
            if dtype.kind == "c":
                value = value + 1j * self._real(case.name, rng, shape, calm)
            return value.astype(dtype)

    def _real(self, case: str, rng: np.random.Generator, shape: tuple[int, ...], calm: float | None) -> Array:
        if case in _EXTREMES:
            extreme = rng.choice(_EXTREMES[case], shape)
            return np.where(rng.random(shape) < 0.02, extreme if calm is None else calm, rng.standard_normal(shape))
        return rng.uniform(*self.range, shape) if case == "unit" else _FLOATS[case](rng, shape)

    def _integer_range(self) -> tuple[int, int]:
        if self.limit is not None:
            return 0, self.limit - 1
        if self.port.quantized or (self.port.type in RANGES and self.port.type != TensorType.INT32):
            return RANGES[self.port.type]
        # A count, a position or an index of unknown use.
        return 0, 7

    def _integers(self, case: str, rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> Array:
        if case == "zeros":
            zero = self.port.zero_point[0] if self.port.quantized and self.port.zero_point else 0
            return np.full(shape, min(max(zero, low), high))
        if case == "ones":
            return np.full(shape, high)
        if case == "large":
            return np.full(shape, low)
        if case == "alternating":
            return np.where(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2, high, low)
        return rng.integers(low, high, shape, endpoint=True)


class Graphs(dict[int, Graph]):
    """The graphs of a model's subgraphs, each made when first asked for."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def __missing__(self, subgraph: int) -> Graph:
        self[subgraph] = graph = Graph(self.model, subgraph)
        return graph


def cases(feeds: list[Feed]) -> tuple[Case, ...]:
    """The cases that differ from each other for these inputs, most telling first."""
    if any(feed.real and feed.limit is None for feed in feeds):
        return CASES
    return tuple(c for c in CASES if c.name in _INTEGER_CASES) if feeds else CASES[:1]


def jittered(feed: Feed, value: Array, size: float, rng: np.random.Generator) -> Array:
    """``value`` with each real number moved by up to ``size`` times the largest magnitude, which counts as 1 at least.

    Integers, indices and other values stay as they are.
    """
    if not feed.real or feed.limit is not None:
        return value
    with np.errstate(all="ignore"):
        largest = float(np.max(np.abs(value[np.isfinite(value)]), initial=1.0))
        moved: Array = (value + size * largest * rng.uniform(-1, 1, value.shape)).astype(value.dtype)
    return moved


# Operators that hand on the integers they get, so that a limit on their output is one on their input.
_CARRIERS = frozenset(
    {
        Op.BROADCAST_TO,
        Op.CAST,
        Op.CONCATENATION,
        Op.EXPAND_DIMS,
        Op.GATHER,
        Op.MAXIMUM,
        Op.MINIMUM,
        Op.PACK,
        Op.RESHAPE,
        Op.REVERSE_V2,
        Op.SLICE,
        Op.SPLIT,
        Op.SPLIT_V,
        Op.SQUEEZE,
        Op.STRIDED_SLICE,
        Op.TILE,
        Op.TRANSPOSE,
        Op.UNPACK,
    }
)


def _index_limits(graphs: Graphs, subgraph: int, tensor: int) -> Iterator[int]:
    """For each place where a tensor's values are used as indices, how many there are to choose from."""
    seen: set[tuple[int, int]] = set()
    todo = [(subgraph, tensor)]
    while todo:
        place = todo.pop()
        if place in seen:
            continue
        seen.add(place)
        index, tensor = place
        graph = graphs[index]
        for op in dict.fromkeys(graph.readers(tensor)):
            yield from _limits_of(graph, op, tensor)
            if _carries(graph, op, tensor):
                todo.extend((index, output) for output in op.outputs)
            todo.extend(_inside(graph, op, tensor))


def _carries(graph: Graph, op: Operator, tensor: int) -> bool:
    kind = graph.kind(op)
    if kind in (Op.SELECT, Op.SELECT_V2):
        return tensor in op.inputs[1:]
    return kind in _CARRIERS and (kind is not Op.GATHER or tensor == op.inputs[0])


def _limits_of(graph: Graph, op: Operator, tensor: int) -> Iterator[int]:
    kind, inputs = graph.kind(op), op.inputs
    if kind is Op.EMBEDDING_LOOKUP and tensor == inputs[0]:
        yield from _dimensions(graph, inputs[1], slice(0, 1))
    elif kind is Op.GATHER and tensor == inputs[1]:
        axis = getattr(op.builtin_options, "axis", 0)
        yield from _dimensions(graph, inputs[0], slice(axis, axis + 1 or None))
    elif kind is Op.GATHER_ND and tensor == inputs[1]:
        depth = (graph.shape(tensor) or (1,))[-1]
        yield from _dimensions(graph, inputs[0], slice(0, depth))
    elif kind is Op.ONE_HOT and tensor == inputs[0]:
        depth_value = graph.splat(inputs[1])
        if depth_value is not None and depth_value >= 1:
            yield int(depth_value)


def _dimensions(graph: Graph, tensor: int, which: slice) -> Iterator[int]:
    return (d for d in (graph.shape(tensor) or ())[which] if d > 0)


def _inside(graph: Graph, op: Operator, tensor: int) -> Iterator[tuple[int, int]]:
    """The inputs of called subgraphs that a tensor becomes."""
    options = op.builtin_options or op.builtin_options_2
    skipped = 1 if graph.kind(op) is Op.IF else 0
    for field in _CALLS:
        target = getattr(options, field, None)
        if isinstance(target, int) and 0 <= target < len(graph.model.subgraphs):
            inner = graph.model.subgraphs[target].inputs
            for outer, inside in zip(op.inputs[skipped:], inner, strict=False):
                if outer == tensor:
                    yield target, inside


_CALLS = (
    "cond_subgraph_index",
    "body_subgraph_index",
    "then_subgraph_index",
    "else_subgraph_index",
    "decomposition_subgraph_index",
)


def _float_range(graph: Graph, tensor: int) -> tuple[float, float]:
    """The range that a float input's own record or the QUANTIZE that reads it gives, else [0, 1]."""
    own = graph.tensors[tensor].quantization
    for op in graph.readers(tensor):
        if graph.kind(op) is Op.QUANTIZE:
            output = graph.tensors[op.outputs[0]]
            q, (low, high) = output.quantization, RANGES.get(output.type, (0, 0))
            if q is not None and q.scale is not None and len(q.scale) == 1 and low < high:
                zero = int(q.zero_point[0]) if q.zero_point is not None and len(q.zero_point) else 0
                return float(q.scale[0]) * (low - zero), float(q.scale[0]) * (high - zero)
    if own is not None and own.min is not None and own.max is not None and len(own.min) == len(own.max) == 1:
        least, most = float(own.min[0]), float(own.max[0])
        if np.isfinite(least) and np.isfinite(most) and least < most:
            return least, most
    return 0.0, 1.0
