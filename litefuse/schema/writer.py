"""Writes the tables of :mod:`litefuse.schema.tables` as a `.tflite` flatbuffer.

The layout runs front to back, so that weights can be streamed: first all tables, each before the tables it refers
to; then a pool of strings and small vectors, where equal ones are stored once; then the large vectors, weights among
them each aligned to 16 bytes, in the order in which the tables refer to them. Only the first two parts are built in
memory; the third is pieces of whatever the tables hold, and one that several tables hold is written once.

The same model gives the same bytes.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from litefuse.errors import OutputError
from litefuse.schema.declare import (
    ARRAY,
    BLOB,
    LIST,
    SCALAR,
    SCALARS,
    STRING,
    STRINGS,
    TABLE,
    TABLES,
    UNION,
    Absent,
    Field,
    Table,
    UnionTag,
)
from litefuse.schema.reader import SHARED_ITEMS

# Offsets inside a flatbuffer may use 32 bits, but verifiers and the int32 offsets of vtables stop at 2 GB.
MAX_FLATBUFFER = (1 << 31) - 1

# Vectors of more bytes than this stay where they are until they are written.
_STREAMED = 4096

Placed = tuple[int, Any]  # absolute position in the file, bytes-like


def as_bytes(value: Any) -> memoryview:
    """A flat little-endian byte view of anything bytes-like, without a copy where it is contiguous."""
    if isinstance(value, np.ndarray):
        value = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        return memoryview(value.reshape(-1).view(np.uint8))
    view = memoryview(value)
    return view.cast("B") if view.nbytes else memoryview(b"")


def address(data: memoryview) -> int:
    """Where the bytes lie in memory: equal for views of the same place of a file."""
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


def _pad(position: int, align: int, residue: int = 0) -> int:
    """The padding before the next position that is congruent to ``residue`` modulo ``align``."""
    return (residue - position) % align


class _Entry(NamedTuple):
    """A field as it lies in a table; a union has two, for its type and its value."""

    field: Field
    size: int
    format: str
    slot: int


class _Shape(NamedTuple):
    """What tables have in common that have the same fields."""

    packer: struct.Struct
    vtable: bytes
    offsets: list[int]  # of each entry that is there, and of the table's end
    wide: bool


class Writer:
    """Lays out one root table.

    Args:
        root: the table to write.
        identifier: the four bytes that name the format.
        watch: tables whose scalars the caller wants to set after the layout is known, see :meth:`patch`.
    """

    def __init__(self, root: Table, identifier: bytes, watch: Sequence[Table] = ()) -> None:
        self.head = bytearray(8)
        self.head[4:8] = identifier
        self._vtables: dict[bytes, int] = {}
        self._plans: dict[type[Table], list[_Entry]] = {}
        self._shapes: dict[tuple[type[Table], int], _Shape] = {}
        # (place of the reference, key of the pooled object); pool: key -> (align, count and items)
        self._references: list[tuple[int, Any]] = []
        self._pool: dict[Any, tuple[int, bytes]] = {}
        # (address, bytes, items, align) -> (align, items, data)
        self._bulk: dict[Any, tuple[int, int, memoryview]] = {}
        self._watched: dict[int, list[int]] = {id(table): [] for table in watch}
        self.placed: list[Placed] = []
        self._refer(0, self._table(root))
        self._places: dict[Any, int] = {}
        self._fillers = self._take_fillers()
        self._place_pool()
        self.size = self._place_bulk()

    # -- tables ------------------------------------------------------------------------------------------------

    def _refer(self, place: int, target: int) -> None:
        struct.pack_into("<I", self.head, place, target - place)

    def _plan(self, cls: type[Table]) -> list[_Entry]:
        """Fields in the order in which they lie in the table: widest first, so that nothing needs padding."""
        plan = self._plans.get(cls)
        if plan is None:
            plan = []
            for field in cls.fields:
                if field.kind == SCALAR:
                    assert field.scalar is not None
                    fmt, size = SCALARS[field.scalar]
                    plan.append(_Entry(field, size, fmt, field.id))
                else:
                    plan.append(_Entry(field, 4, "I", field.id))
                    if field.kind == UNION:
                        plan.append(_Entry(field, 1, "B", field.id - 1))
            plan.sort(key=lambda entry: (-entry.size, entry.slot))
            self._plans[cls] = plan
        return plan

    def _shape(self, cls: type[Table], present: int) -> _Shape:
        """The layout of tables of a class in which the entries of the bits in ``present`` are there."""
        shape = self._shapes.get((cls, present))
        if shape is None:
            entries = [entry for i, entry in enumerate(self._plan(cls)) if present >> i & 1]
            offsets = [4]
            for entry in entries:
                offsets.append(offsets[-1] + entry.size)
            slots = {entry.slot: offset for entry, offset in zip(entries, offsets, strict=False)}
            count = max(slots) + 1 if slots else 0
            vtable = struct.pack(f"<{count + 2}H", 4 + 2 * count, offsets[-1], *(slots.get(i, 0) for i in range(count)))
            packer = struct.Struct("<i" + "".join(entry.format for entry in entries))
            wide = any(entry.size == 8 for entry in entries)
            shape = self._shapes[cls, present] = _Shape(packer, vtable, offsets, wide)
        return shape

    def _table(self, table: Table) -> int:
        """Appends a table and everything below it; returns its position."""
        cls = type(table)
        values: list[Any] = [0]
        children: list[tuple[int, Field, Any]] = []
        present, bit = 0, 1
        for field, size, fmt, _ in self._plan(cls):
            value = getattr(table, field.name)
            this, bit = bit, bit << 1
            if field.kind == SCALAR:
                if value == field.default and not (fmt in "fd" and str(value) != str(field.default)):
                    continue
            elif value is None or (type(value) is Absent and not value):
                continue
            elif field.kind == UNION and size == 1:
                value = self._union_number(table, field, value)
            elif type(value) is UnionTag:
                continue
            else:
                children.append((len(values) - 1, field, value))
                value = 0
            present |= this
            values.append(value)
        packer, vtable, offsets, wide = self._shape(cls, present)
        head = self.head
        at = self._vtables.get(vtable)
        if at is None:
            head += bytes(_pad(len(head), 2))
            at = self._vtables[vtable] = len(head)
            head += vtable
        head += bytes(_pad(len(head), 8, 4) if wide else _pad(len(head), 4))
        position = len(head)
        values[0] = position - at
        if id(table) in self._watched:
            self._watched[id(table)].append(position)
        try:
            head += packer.pack(*values)
        except struct.error as error:
            raise OutputError(f"{cls.__name__} holds a value that its field cannot store: {error}") from None
        for i, field, value in children:
            try:
                self._child(position + offsets[i], field, value)
            except (struct.error, TypeError, ValueError) as error:
                name = f"{cls.__name__}.{field.name}"
                raise OutputError(f"{name} holds a value that cannot be stored as {field.type_name}: {error}") from None
        return position

    @staticmethod
    def _union_number(table: Table, field: Field, value: Table | UnionTag) -> int:
        if isinstance(value, UnionTag):
            return value.number
        assert field.union is not None
        number = field.union.number.get(type(value).__name__)
        if number is None:
            raise OutputError(
                f"{type(table).__name__}.{field.name} holds a {type(value).__name__}, "
                f"which is not a member of {field.union.name}"
            )
        return number

    def _child(self, place: int, field: Field, value: Any) -> None:
        kind = field.kind
        if kind in (TABLE, UNION):
            self._refer(place, self._table(value))
        elif kind in (TABLES, STRINGS):
            head = self.head
            head += bytes(_pad(len(head), 4))
            at = len(head)
            self._refer(place, at)
            head += struct.pack("<I", len(value)) + bytes(4 * len(value))
            for i, item in enumerate(value):
                if kind == TABLES:
                    self._refer(at + 4 + 4 * i, self._table(item))
                else:
                    self._pooled_string(at + 4 + 4 * i, item)
        elif kind == STRING:
            self._pooled_string(place, value)
        elif kind == LIST:
            assert field.scalar is not None
            fmt, size = SCALARS[field.scalar]
            self._vector(place, memoryview(struct.pack(f"<{len(value)}{fmt}", *value)), len(value), size)
        elif kind == ARRAY:
            assert field.scalar is not None
            items = as_bytes(_converted(value, np.dtype(field.scalar)))
            size = SCALARS[field.scalar][1]
            self._vector(place, items, len(items) // size, max(size, field.align))
        else:
            assert kind == BLOB
            data = as_bytes(value)
            self._vector(place, data, len(data), field.align)

    # -- pool and bulk -----------------------------------------------------------------------------------------

    def _pooled_string(self, place: int, text: str) -> None:
        data = text.encode("utf-8", "surrogateescape")
        key = (str, data)
        self._pool.setdefault(key, (1, struct.pack("<I", len(data)) + data + b"\0"))
        self._references.append((place, key))

    def _vector(self, place: int, data: memoryview, count: int, align: int) -> None:
        key: Any
        if align >= 16 or len(data) > _STREAMED:
            key = (address(data) if len(data) else place, len(data), count, align)
            self._bulk.setdefault(key, (align, count, data))
        else:
            key = (count, align, bytes(data)) if count <= SHARED_ITEMS else place
            self._pool.setdefault(key, (align, struct.pack("<I", count) + data))
        self._references.append((place, key))

    def _take_fillers(self) -> list[Any]:
        """Takes from the pool what fits between the aligned vectors: for each of them, the key of what follows it.

        Small constants leave up to 15 bytes between them, which in a small model would add up to several percent.
        """
        small: dict[int, list[Any]] = {}
        for key, (align, encoded) in self._pool.items():
            if align <= 4 and len(encoded) <= 12:
                small.setdefault(len(encoded) + _pad(len(encoded), 4), []).append(key)
        fillers: list[Any] = []
        bulk = list(self._bulk.values())
        for (_, _, data), (align, _, _) in itertools.pairwise(bulk):
            end = len(data) + _pad(len(data), 4)
            gap = _pad(end, 16, 12) if align >= 16 else 0
            size = next((n for n in (12, 8, 4) if n <= gap and small.get(n)), None)
            fillers.append(small[size].pop() if size else None)
        return [*fillers, None] if bulk else []

    def _place_pool(self) -> None:
        head = self.head
        places = self._places
        fillers = set(self._fillers)
        for key, (align, encoded) in self._pool.items():
            if key in fillers:
                continue
            # The count takes four bytes; what must be aligned is the first item behind it.
            head += bytes(_pad(len(head), max(align, 4), -4))
            places[key] = len(head)
            head += encoded

    def _place_bulk(self) -> int:
        """Gives each 16-byte aligned vector its place behind the head; returns the size of the flatbuffer."""
        places = self._places
        position = len(self.head)
        for (key, (align, count, data)), filler in zip(self._bulk.items(), self._fillers, strict=True):
            position += _pad(position, max(align, 4), -4)
            places[key] = position
            self.placed.append((position, struct.pack("<I", count)))
            self.placed.append((position + 4, data))
            position += 4 + len(data)
            if filler is not None:
                position += _pad(position, 4)
                places[filler] = position
                self.placed.append((position, self._pool[filler][1]))
                position += len(self._pool[filler][1])
        if position > MAX_FLATBUFFER:
            # The caller moves data outside before it comes to this.
            raise OutputError("the flatbuffer would exceed 2 GB")
        for place, key in self._references:
            self._refer(place, places[key])
        return position

    def patch(self, table: Table, name: str, value: int) -> None:
        """Sets a scalar of a watched table. The field must have been written, so not with its default value."""
        field = next(f for f in table.fields if f.name == name)
        assert field.scalar is not None
        for position in self._watched[id(table)]:
            vtable = position - struct.unpack_from("<i", self.head, position)[0]
            offset = struct.unpack_from("<H", self.head, vtable + 4 + 2 * field.id)[0]
            struct.pack_into("<" + SCALARS[field.scalar][0], self.head, position + offset, value)

    def pieces(self) -> Iterator[Any]:
        """The bytes of the flatbuffer in order of position."""
        yield self.head
        yield from fill(self.placed, len(self.head))


def fill(placed: list[Placed], position: int) -> Iterator[Any]:
    """The pieces that start at or behind ``position``, with zeros where there is none."""
    for at, data in placed:
        if at > position:
            yield bytes(at - position)
        yield data
        position = at + len(data)


def _converted(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The array as ``dtype``. Raises ValueError where integers would change."""
    array = np.asarray(value)
    if array.dtype == dtype:
        return array
    converted = array.astype(dtype)
    if array.size and dtype.kind in "iu" and not np.array_equal(converted, array):
        raise ValueError("an integer is out of range")
    return converted
