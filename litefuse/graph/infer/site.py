"""What a shape rule sees of an operator, and the table of rules.

A rule is a function from a :class:`Site` to the shape of the outputs: one tuple for all of them, or a list with one
entry each. It may use what is known of the inputs' values, and it need not care what is unknown: the accessors
raise :class:`Unknown`, which makes the shape None. A contradiction, which the runtime would refuse, is raised by
:meth:`Site.require`. The element type is declared beside the function, see :func:`rule`.

Dimensions are -1 where only run time can tell. Known integers may be known in part: such arrays are int64 and hold
:data:`UNKNOWN` where an element is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from litefuse.errors import LitefuseError
from litefuse.graph.graph import Array, Graph, OperatorKind
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import options_class
from litefuse.schema.tables import Operator
from litefuse.schema.types import NUMPY

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = "Shape | list[Shape | None]"

# Marks an unknown element of an integer array that is known in part. No dimension or index can have this value.
UNKNOWN = int(np.iinfo(np.int64).min)
# Integer tensors larger than this are no part of shape arithmetic.
MAX_KNOWN = 65536


class TensorSpec(NamedTuple):
    """What is known of a tensor: its shape, -1 for dynamic dimensions or None for unknown rank, and its type."""

    shape: Shape | None
    type: TensorType


class ShapeError(LitefuseError):
    """The shapes of a graph contradict each other; the runtime would refuse it."""


class Unknown(Exception):
    """Something that a rule needs is not known before run time."""


class Facts:
    """What is known about the tensors of a graph: what the file declares, unless overridden.

    Attributes:
        specs: shape and type of tensors for which the file's declaration does not count.
        values: values of computed tensors; int64 with UNKNOWN elements when known in part.
        strict: whether contradictions are errors, here and in the subgraphs that operators run.
        active: indices of the subgraphs that are being inferred, outermost first.
    """

    def __init__(self, graph: Graph, strict: bool = False, active: tuple[int, ...] = ()) -> None:
        self.graph = graph
        self.strict = strict
        self.specs: dict[int, TensorSpec] = {}
        self.values: dict[int, Array] = {}
        self.active = (*active, graph.index)

    def spec(self, tensor: int) -> TensorSpec:
        """Shape and type of a tensor."""
        return self.specs.get(tensor) or TensorSpec(self.graph.shape(tensor), self.graph.type(tensor))

    def value(self, tensor: int) -> Array | None:
        """The value of a tensor, perhaps with UNKNOWN elements; None when nothing is known."""
        known = self.values.get(tensor)
        if known is not None:
            return known
        constant = self.graph.constant(tensor)
        if constant is not None:
            return constant
        shape, type = self.spec(tensor)
        # A tensor without elements holds no surprise. Files store such constants like computed tensors.
        if shape is not None and 0 in shape and min(shape) >= 0 and type in NUMPY:
            return np.zeros(shape, NUMPY[type])
        return None

    def whole(self, tensor: int) -> Array | None:
        """The value of a tensor in its own type, or None when it is not wholly known."""
        value = self.value(tensor)
        if value is None or (value.dtype == np.int64 and bool(np.any(value == UNKNOWN))):
            return None
        return value


class Site:
    """An operator with what is known about its inputs.

    Inputs are named by position. Accessors raise :class:`Unknown` where the docstring does not say None.
    """

    def __init__(self, facts: Facts, op: Operator) -> None:
        self.facts = facts
        self.graph = facts.graph
        self.op = op
        self.kind: OperatorKind = facts.graph.kind(op)
        self.outputs: list[TensorSpec] = []
        """What has been inferred of the outputs; filled before values are computed."""
        cls = options_class(self.kind)
        given = (op.builtin_options, op.builtin_options_2)
        # The runtime takes missing options, and those of another kind, as the defaults.
        self.options = None if cls is None else next((o for o in given if isinstance(o, cls)), cls())

    # -- inputs ------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many inputs the operator lists."""
        return len(self.op.inputs)

    def has(self, index: int) -> bool:
        """Whether input ``index`` is present."""
        return index < len(self.op.inputs) and self.op.inputs[index] >= 0

    def tensor(self, index: int) -> int:
        """The tensor of input ``index``."""
        self.require(self.has(index), f"input {index} is missing")
        return self.op.inputs[index]

    def spec(self, index: int) -> TensorSpec:
        """Shape and type of input ``index``."""
        return self.facts.spec(self.tensor(index))

    def shape(self, index: int) -> Shape:
        """The shape of input ``index``, whose rank is known."""
        shape = self.spec(index).shape
        if shape is None:
            raise Unknown
        return shape

    def ranked(self, index: int, rank: int) -> Shape:
        """The shape of input ``index``, which must have ``rank`` dimensions."""
        shape = self.shape(index)
        self.require(len(shape) == rank, f"input {index} has shape {show(shape)}, not {rank} dimensions")
        return shape

    def type(self, index: int) -> TensorType:
        """The element type of input ``index``."""
        return self.spec(index).type

    def value(self, index: int) -> Array | None:
        """The value of input ``index`` in its own type, or None when it is not wholly known."""
        return self.facts.whole(self.tensor(index))

    def partial(self, index: int) -> Array:
        """The elements of an integer tensor of static shape, as int64 with UNKNOWN elements (perhaps all)."""
        value = self.facts.value(self.tensor(index))
        shape = self.static(index) if value is None else value.shape
        if product(shape) > MAX_KNOWN or (value is not None and value.dtype.kind not in "iub"):
            raise Unknown
        if value is None:
            return np.full(shape, UNKNOWN)
        return value.astype(np.int64)

    def integers(self, index: int) -> list[int | None]:
        """The elements of an integer vector or scalar, None for those that are not known."""
        return [None if v == UNKNOWN else v for v in self.partial(index).reshape(-1).tolist()]

    def integer(self, index: int) -> int | None:
        """The single element of input ``index``, or None when it is not known."""
        values = self.integers(index)
        self.require(len(values) == 1, f"input {index} must have one element")
        return values[0]

    def static(self, index: int) -> Shape:
        """The shape of input ``index`` when no dimension is dynamic."""
        shape = self.shape(index)
        if any(d < 0 for d in shape):
            raise Unknown
        return shape

    # -- options -----------------------------------------------------------------------------------------------

    def option(self, name: str) -> Any:
        """A field of the operator's options."""
        if self.options is None:
            raise Unknown
        return getattr(self.options, name)

    def axis(self, axis: int, rank: int) -> int:
        """An axis as a number from 0 to ``rank`` - 1; negative ones count from the end."""
        self.require(-rank <= axis < rank, f"axis {axis} is outside a tensor of {rank} dimensions")
        return axis % rank

    # -- outcome -----------------------------------------------------------------------------------------------

    def out(self, index: int = 0) -> Shape:
        """The inferred shape of an output when it is static."""
        shape = self.outputs[index].shape
        if shape is None or any(d < 0 for d in shape):
            raise Unknown
        return shape

    def require(self, condition: bool, message: str) -> None:
        """Raises ShapeError, with the operator's place in front of ``message``, unless ``condition`` holds."""
        if not condition:
            raise ShapeError(f"{self.graph.where(self.op)}: {message}")


Rule: TypeAlias = Callable[[Site], Shapes]
TypeOf: TypeAlias = Callable[[Site, int], TensorType]


class _Entry(NamedTuple):
    shapes: Rule
    type: TypeOf


RULES: dict[OperatorKind, _Entry] = {}


def declared(site: Site, output: int) -> TensorType:
    """The output's type is the file's choice (or the kernel leaves it alone)."""
    return site.graph.type(site.op.outputs[output])


def same(input: int = 0) -> TypeOf:
    """The output has the type of input ``input``."""
    return lambda site, output: site.type(input)


def always(type: TensorType) -> TypeOf:
    """The output has a fixed type."""
    return lambda site, output: type


def chosen(option: str) -> TypeOf:
    """The output's type is an option of the operator."""
    return lambda site, output: site.option(option)


def each(*types: TypeOf) -> TypeOf:
    """One choice for each output."""
    return lambda site, output: types[output](site, output)


def rule(*kinds: OperatorKind, type: TypeOf | None = None) -> Callable[[Rule], Rule]:
    """Registers a shape rule for operators; ``type`` says where the element type comes from, input 0 by default."""

    def register(function: Rule) -> Rule:
        for kind in kinds:
            RULES[kind] = _Entry(function, type or same())
        return function

    return register


def infer(site: Site) -> list[TensorSpec] | None:
    """Applies the operator's rule; None when there is none. Raises ShapeError."""
    entry = RULES.get(site.kind)
    if entry is None:
        return None
    count = len(site.op.outputs)
    try:
        found = entry.shapes(site)
    except Unknown:
        found = [None] * count
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        # Rules take operators apart as they should be; in a damaged file there may be less than that.
        raise ShapeError(f"{site.graph.where(site.op)}: inputs or options are not as they should be: {error}") from None
    shapes = found if isinstance(found, list) else [found] * count
    site.require(len(shapes) == count, f"it has {count} outputs but computes {len(shapes)}")
    fits = all(-1 <= d < 2**31 for shape in shapes for d in shape or ())
    site.require(fits, f"outputs of shape {' and '.join(show(s) for s in shapes)} are too large")
    types = [entry.type(site, i) if t >= 0 else TensorType.FLOAT32 for i, t in enumerate(site.op.outputs)]
    return [
        TensorSpec(None if shape is None else tuple(int(d) for d in shape), type)
        for shape, type in zip(shapes, types, strict=True)
    ]


# -- arithmetic on dimensions --------------------------------------------------------------------------------------


def dim(value: int | None) -> int:
    """A known value as a dimension, -1 when it is not known."""
    return -1 if value is None else value


def product(dims: Iterable[int]) -> int:
    """The product of dimensions; -1 when it is not known."""
    total, open_ = 1, False
    for d in dims:
        if d == 0:
            return 0
        open_ |= d < 0
        total *= d
    return -1 if open_ else total


def add(*dims: int) -> int:
    """The sum of dimensions; -1 when one is not known."""
    return -1 if any(d < 0 for d in dims) else sum(dims)


def agree(a: int, b: int) -> bool:
    """Whether two dimensions can be the same."""
    return a == b or a < 0 or b < 0


def narrowed(a: Shape, b: Shape) -> Shape:
    """The dimensions of two shapes that are known to be the same."""
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))


def broadcast(site: Site, shapes: Sequence[Shape]) -> Shape:
    """The common shape of operands that are stretched along dimensions of 1, aligned at the last dimension."""
    rank = max(len(s) for s in shapes)
    result = []
    for dims in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        known = {d for d in dims if d >= 0 and d != 1}
        site.require(len(known) <= 1, f"shapes {' and '.join(show(s) for s in shapes)} cannot be broadcast")
        result.append(known.pop() if known else -1 if -1 in dims else 1)
    return tuple(result)


def show(shape: Sequence[int] | None) -> str:
    """A shape for messages: `[1, ?, 8]`."""
    return "[?]" if shape is None else f"[{', '.join('?' if d < 0 else str(d) for d in shape)}]"
