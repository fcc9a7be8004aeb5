"""Other layouts of a tensor: its axes in another order, or its elements in another shape.

A :class:`Layout` is a one-to-one map from a tensor of shape ``old`` to one of shape ``new`` with the same elements. It
says where each axis goes, and which layouts the tensors beside it then have that are broadcast to it, joined to it, or
left of it when axes are dropped. What operators make of that is in :mod:`litefuse.fusions.relay`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from litefuse.graph.graph import Array

Shape: TypeAlias = tuple[int, ...]
Group: TypeAlias = tuple[range, range]


class Impossible(Exception):
    """Something has no place in a layout."""


@dataclass(frozen=True)
class Layout(ABC):
    """A tensor of shape ``old`` with its elements arranged as ``new``; -1 stands for unknown dimensions."""

    old: Shape

    is_view: ClassVar[bool] = True
    """Whether there is a single operator, TRANSPOSE or RESHAPE, that arranges a tensor like this."""
    keeps_places: ClassVar[bool] = False
    """Whether each element stays where it is in memory."""

    @property
    @abstractmethod
    def new(self) -> Shape:
        """The shape in this layout."""

    @property
    @abstractmethod
    def is_identity(self) -> bool:
        """Whether nothing changes."""

    @abstractmethod
    def inverse(self) -> Layout:
        """The way back."""

    @abstractmethod
    def then(self, following: Layout) -> Layout:
        """Both, one after the other."""

    @abstractmethod
    def axis(self, axis: int) -> int:
        """Where an axis of the old shape is in the new one; raises Impossible when it is not kept apart."""

    @abstractmethod
    def sibling(self, shape: Shape) -> Layout:
        """The layout of a tensor that is longer or shorter along some axes, as the parts of a CONCATENATION are."""

    @abstractmethod
    def operand(self, shape: Shape) -> Layout | None:
        """The layout of an operand that is broadcast to the old shape; None when it can stay as it is."""

    @abstractmethod
    def without(self, axes: Iterable[int]) -> Layout:
        """The layout of what is left when axes (of the old shape) are dropped."""

    @abstractmethod
    def with_axis(self, axis: int, size: int) -> tuple[Layout, int]:
        """The layout with one more axis, which is ``axis`` of the old shape, and where that is in the new shape."""

    @abstractmethod
    def moved(self, value: Array) -> Array:
        """A constant of the old shape in this layout."""


@dataclass(frozen=True)
class Order(Layout):
    """The axes in another order: axis j of the new shape is axis ``order[j]`` of the old one."""

    order: tuple[int, ...]

    @property
    def new(self) -> Shape:
        """The old dimensions in their new order."""
        return tuple(self.old[a] for a in self.order)

    @property
    def is_identity(self) -> bool:
        """Whether every axis stays at its place."""
        return self.order == tuple(sorted(self.order))

    def inverse(self) -> Layout:
        """The order that undoes this one."""
        return Order(self.new, tuple(self.order.index(a) for a in range(len(self.order))))

    def then(self, following: Layout) -> Layout:
        """The order of both."""
        assert isinstance(following, Order)
        return Order(self.old, tuple(self.order[a] for a in following.order))

    def axis(self, axis: int) -> int:
        """Every axis is kept apart."""
        return self.order.index(axis)

    def sibling(self, shape: Shape) -> Layout:
        """The same order."""
        return Order(shape, self.order)

    def operand(self, shape: Shape) -> Layout | None:
        """The same order; operands that lack the moved axes stay."""
        missing = len(self.old) - len(shape)
        if missing == 0:
            return Order(shape, self.order)
        moves = [a for a in self.order if a >= missing and shape[a - missing] != 1]
        if missing > 0 and all(self.order[a] == a for a in moves):
            return None
        raise Impossible

    def without(self, axes: Iterable[int]) -> Layout:
        """The order of the axes that are left."""
        gone = set(axes)
        kept = [a for a in range(len(self.old)) if a not in gone]
        return Order(tuple(self.old[a] for a in kept), tuple(kept.index(a) for a in self.order if a not in gone))

    def with_axis(self, axis: int, size: int) -> tuple[Layout, int]:
        """The new axis keeps its number."""
        order = [a + (a >= axis) for a in self.order]
        order.insert(axis, axis)
        return Order((*self.old[:axis], size, *self.old[axis:]), tuple(order)), axis

    def moved(self, value: Array) -> Array:
        """Transposes."""
        moved: Array = value.transpose(self.order).copy()
        return moved

    def through_reshape(self, shape: Shape) -> Order:
        """The order of the reshaped tensor, for a RESHAPE of the old shape to ``shape`` that keeps moved axes apart."""
        groups = regroup(self.old, shape)
        if groups is None:
            raise Impossible
        start = {before.start: (before, after) for before, after in groups if before}
        order: list[int] = []
        for place, axis in enumerate(self.order):
            if axis in start:
                before, after = start[axis]
                if self.order[place : place + len(before)] != tuple(before):
                    raise Impossible
                order.extend(after)
        for before, after in groups:
            if not before:  # axes of size one that appear stay at their place
                for axis in after:
                    order.insert(axis, axis)
        return Order(shape, tuple(order))


@dataclass(frozen=True)
class Reshaped(Layout):
    """The same elements in the same order in memory, in another shape."""

    target: Shape

    keeps_places = True

    @property
    def new(self) -> Shape:
        """The target."""
        return self.target

    @property
    def is_identity(self) -> bool:
        """Whether the shapes are equal."""
        return self.old == self.target

    def inverse(self) -> Layout:
        """Back to the old shape."""
        return Reshaped(self.target, self.old)

    def then(self, following: Layout) -> Layout:
        """Only the last shape matters."""
        return Reshaped(self.old, following.new)

    def axis(self, axis: int) -> int:
        """Axes of the same size with as many elements in front of them are the same axis."""
        size = self.old[axis]
        for place, d in enumerate(self.target):
            rest = self.old[axis + 1 :], self.target[place + 1 :]
            if d != size or not _as_many(self.old, axis, self.target, place):
                continue
            if size >= 0 or math.prod(rest[0]) == math.prod(rest[1]):  # else it is another unknown
                return place
        raise Impossible

    def sibling(self, shape: Shape) -> Layout:
        """The same, with the other sizes along the axes that differ."""
        target = list(self.target)
        for axis, size in enumerate(shape):
            if size != self.old[axis]:
                target[self.axis(axis)] = size
        return Reshaped(shape, tuple(target))

    def operand(self, shape: Shape) -> Layout | None:
        """Runs of axes along which the operand is whole, or of size one, stay so."""
        if shape == self.old:
            return self
        if math.prod(shape) == 1 and len(shape) <= len(self.target):
            return None
        groups = regroup(self.old, self.target)
        if groups is None or len(shape) > len(self.old):
            raise Impossible
        full = (1,) * (len(self.old) - len(shape)) + shape
        target: list[int] = []
        for before, after in groups:
            part = [full[a] for a in before]
            if all(d == 1 for d in part):
                target += [1] * len(after)
            elif part == [self.old[a] for a in before]:
                target += [self.target[a] for a in after]
            else:
                raise Impossible
        if shape == tuple(target)[-len(shape) :] and all(d == 1 for d in target[: len(target) - len(shape)]):
            return None
        return Reshaped(shape, tuple(target))

    def without(self, axes: Iterable[int]) -> Layout:
        """Both shapes without the axes."""
        gone = set(axes)
        places = {self.axis(a) for a in gone}
        if len(places) != len(gone):
            raise Impossible
        left = tuple(d for a, d in enumerate(self.old) if a not in gone)
        return Reshaped(left, tuple(d for a, d in enumerate(self.target) if a not in places))

    def with_axis(self, axis: int, size: int) -> tuple[Layout, int]:
        """The new axis goes behind axes of size one."""
        for place in reversed(range(len(self.target) + 1)):
            if _as_many(self.old, axis, self.target, place):
                old = (*self.old[:axis], size, *self.old[axis:])
                return Reshaped(old, (*self.target[:place], size, *self.target[place:])), place
        raise Impossible

    def moved(self, value: Array) -> Array:
        """Reshapes."""
        return value.reshape(self.target)


@dataclass(frozen=True)
class Shuffled(Layout):
    """The last axis, which holds several in a row, with these in another order: what flattening an Order leads to."""

    inner: Shape
    order: tuple[int, ...]

    is_view = False

    @property
    def new(self) -> Shape:
        """The old shape."""
        return self.old

    @property
    def is_identity(self) -> bool:
        """Whether the axes in the last one stay in place."""
        return self.order == tuple(sorted(self.order))

    def inverse(self) -> Layout:
        """The order that undoes this one."""
        back = tuple(self.order.index(a) for a in range(len(self.order)))
        return Shuffled(self.old, tuple(self.inner[a] for a in self.order), back)

    def then(self, following: Layout) -> Layout:
        """The order of both."""
        assert isinstance(following, Shuffled)
        return Shuffled(self.old, self.inner, tuple(self.order[a] for a in following.order))

    def axis(self, axis: int) -> int:
        """All but the last axis stay."""
        if axis == len(self.old) - 1:
            raise Impossible
        return axis

    def sibling(self, shape: Shape) -> Layout:
        """The same order of a last axis of the same length."""
        if shape[-1:] != self.old[-1:]:
            raise Impossible
        return Shuffled(shape, self.inner, self.order)

    def operand(self, shape: Shape) -> Layout | None:
        """Operands with one element along the last axis stay."""
        return None if not shape or shape[-1] == 1 else self.sibling(shape)

    def without(self, axes: Iterable[int]) -> Layout:
        """Other axes may go."""
        gone = {self.axis(a) for a in axes}
        return Shuffled(tuple(d for a, d in enumerate(self.old) if a not in gone), self.inner, self.order)

    def with_axis(self, axis: int, size: int) -> tuple[Layout, int]:
        """Another axis may come before the last one."""
        if axis == len(self.old):
            raise Impossible
        return Shuffled((*self.old[:axis], size, *self.old[axis:]), self.inner, self.order), axis

    def moved(self, value: Array) -> Array:
        """Transposes what is in the last axis."""
        leading = value.ndim - 1
        spread = value.reshape(*value.shape[:-1], *self.inner)
        axes = (*range(leading), *(leading + a for a in self.order))
        moved: Array = spread.transpose(axes).reshape(value.shape)
        return moved


def _as_many(a: Shape, i: int, b: Shape, j: int) -> bool:
    """Whether as many elements lie in front of axis i of ``a`` as in front of axis j of ``b``, shapes of one size."""
    for x, y in ((a[:i], b[:j]), (a[i:], b[j:])):
        if min(x, default=0) >= 0 and min(y, default=0) >= 0:
            return math.prod(x) == math.prod(y)
    return False


def regroup(a: Shape, b: Shape) -> list[Group] | None:
    """Splits two shapes of one size into the shortest runs of axes that hold the same elements.

    Axes of size one may stand alone, facing no axis. At most one dimension of each may be unknown, and they are taken
    to be the same. Returns None when the sizes differ or are not known to be the same.
    """
    if 0 in a or 0 in b or a.count(-1) != b.count(-1) or a.count(-1) > 1:
        return None
    if -1 not in a:
        return _regroup(a, b, 0, 0) if math.prod(a) == math.prod(b) else None
    i, j = a.index(-1), b.index(-1)
    front, back = (a[:i], b[:j]), (a[i + 1 :], b[j + 1 :])
    if math.prod(front[0]) == math.prod(front[1]) and math.prod(back[0]) == math.prod(back[1]):
        return [
            *_regroup(*front, 0, 0),
            (range(i, i + 1), range(j, j + 1)),
            *_regroup(*back, i + 1, j + 1),
        ]
    return [(range(len(a)), range(len(b)))]


def _regroup(a: Shape, b: Shape, first: int, second: int) -> list[Group]:
    groups: list[Group] = []
    i = j = 0
    while i < len(a) or j < len(b):
        m, n = i, j
        both = i < len(a) and j < len(b)
        if both and a[i] == b[j]:
            m, n = i + 1, j + 1
        elif i < len(a) and a[i] == 1:
            m = i + 1
        elif j < len(b) and b[j] == 1:
            n = j + 1
        else:
            m, n = i + 1, j + 1
            while math.prod(a[i:m]) != math.prod(b[j:n]):
                if math.prod(a[i:m]) < math.prod(b[j:n]):
                    m += 1
                else:
                    n += 1
        groups.append((range(first + i, first + m), range(second + j, second + n)))
        i, j = m, n
    return groups
