"""Writes the tables of :mod:`litefuse.schema.tables` as a `.tflite` flatbuffer.

The layout runs front to back, so that weights can be streamed: first all tables, each before the tables it refers
to; then a pool of strings and small vectors, where equal ones are stored once; then the weights, each aligned to 16
bytes, in the order of the buffers; then, for files over 2 GB, weights that lie outside the flatbuffer; then whatever
was appended to the file (TFLite Metadata appends a zip). Only the first two parts are built in memory.

The same model gives the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

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

# Offsets inside a flatbuffer may use 32 bits, but verifiers and the int32 offsets of vtables stop at 2 GB.
MAX_FLATBUFFER = (1 << 31) - 1

Placed = tuple[int, Any]  # absolute position in the file, bytes-like


def as_bytes(value: Any) -> memoryview:
    """A flat byte view of anything bytes-like, without a copy where it is contiguous."""
    if isinstance(value, np.ndarray):
        value = np.ascontiguousarray(value)
        return memoryview(value.reshape(-1).view(np.uint8))
    return memoryview(value).cast("B") if memoryview(value).nbytes else memoryview(b"")


def _pad(position: int, align: int, residue: int = 0) -> int:
    """The padding before the next position that is congruent to ``residue`` modulo ``align``."""
    return (residue - position) % align


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
        self._plans: dict[type[Table], list[Any]] = {}
        # (place of the reference, key of the pooled object); pool: key -> (align, header, payload)
        self._references: list[tuple[int, Any]] = []
        self._pool: dict[Any, tuple[int, bytes]] = {}
        self._bulk: list[tuple[int, Any]] = []
        self._watched: dict[int, int] = {id(table): 0 for table in watch}
        self.placed: list[Placed] = []
        self._refer(0, self._table(root))
        self._places: dict[Any, int] = {}
        self._fillers = self._take_fillers()
        self._place_pool()
        self.size = self._place_bulk()

    # -- tables ------------------------------------------------------------------------------------------------

    def _refer(self, place: int, target: int) -> None:
        struct.pack_into("<I", self.head, place, target - place)

    def _plan(self, cls: type[Table]) -> list[tuple[Field, int, str, int]]:
        """Fields in the order in which they lie in the table: widest first, so that nothing needs padding."""
        plan = self._plans.get(cls)
        if plan is None:
            plan = []
            for field in cls.fields:
                if field.kind == SCALAR:
                    assert field.scalar is not None
                    fmt, size = SCALARS[field.scalar]
                    plan.append((field, size, fmt, field.id))
                else:
                    plan.append((field, 4, "I", field.id))
                    if field.kind == UNION:
                        plan.append((field, 1, "B", field.id - 1))
            plan.sort(key=lambda entry: (-entry[1], entry[3]))
            self._plans[cls] = plan
        return plan

    def _table(self, table: Table) -> int:
        """Appends a table and everything below it; returns its position."""
        formats, values, slots, children = "<i", [0], {}, []
        offset, wide = 4, False
        for field, size, fmt, slot in self._plan(type(table)):
            value = getattr(table, field.name)
            if field.kind == SCALAR:
                if value == field.default and not (fmt in "fd" and str(value) != str(field.default)):
                    continue
            elif value is None or (type(value) is Absent and not value):
                continue
            elif field.kind == UNION:
                if size == 1:
                    assert field.union is not None
                    value = value.number if type(value) is UnionTag else field.union.number[type(value).__name__]
                elif type(value) is UnionTag:
                    continue
                else:
                    children.append((offset, field, value))
                    value = 0
            else:
                children.append((offset, field, value))
                value = 0
            wide = wide or size == 8
            formats += fmt
            values.append(value)
            slots[slot] = offset
            offset += size
        count = max(slots) + 1 if slots else 0
        vtable = struct.pack(f"<{count + 2}H", 4 + 2 * count, offset, *(slots.get(i, 0) for i in range(count)))
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
            self._watched[id(table)] = position
        try:
            head += struct.pack(formats, *values)
        except struct.error as error:
            raise OutputError(f"{type(table).__name__} holds a value that its field cannot store: {error}") from None
        for child_offset, field, value in children:
            self._child(position + child_offset, field, value)
        return position

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
            self._pooled(place, struct.pack(f"<{len(value)}{fmt}", *value), len(value), size)
        elif kind == ARRAY:
            assert field.scalar is not None
            array = np.ascontiguousarray(value, np.dtype(field.scalar).newbyteorder("<"))
            self._pooled(place, array.tobytes(), array.size, max(array.itemsize, field.align))
        else:
            assert kind == BLOB
            data = as_bytes(value)
            if field.align >= 16:
                self._bulk.append((place, data))
            else:
                self._pooled(place, bytes(data), len(data), field.align)

    # -- pool and bulk -----------------------------------------------------------------------------------------

    def _pooled_string(self, place: int, text: str) -> None:
        data = text.encode("utf-8", "surrogateescape")
        key = ("", 1, data)
        self._pool.setdefault(key, (1, struct.pack("<I", len(data)) + data + b"\0"))
        self._references.append((place, key))

    def _pooled(self, place: int, data: bytes, count: int, align: int) -> None:
        key = (count, align, data)
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
        for _, data in self._bulk[:-1]:
            end = len(data) + _pad(len(data), 4)
            gap = _pad(end, 16, 12)
            size = next((n for n in (12, 8, 4) if n <= gap and small.get(n)), None)
            fillers.append(small[size].pop() if size else None)
        return fillers

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
        for (place, data), filler in zip(self._bulk, [*self._fillers, None], strict=False):
            position += _pad(position, 16, 12)
            if position + 4 + len(data) > MAX_FLATBUFFER:
                # The caller moves data outside before it comes to this.
                raise OutputError("the flatbuffer would exceed 2 GB")
            self._refer(place, position)
            self.placed.append((position, struct.pack("<I", len(data))))
            self.placed.append((position + 4, data))
            position += 4 + len(data)
            if filler is not None:
                position += _pad(position, 4)
                places[filler] = position
                self.placed.append((position, self._pool[filler][1]))
                position += len(self._pool[filler][1])
        for place, key in self._references:
            self._refer(place, places[key])
        return position

    def patch(self, table: Table, name: str, value: int) -> None:
        """Sets a scalar of a watched table. The field must have been written, so not with its default value."""
        field = next(f for f in table.fields if f.name == name)
        position = self._watched[id(table)]
        vtable = position - struct.unpack_from("<i", self.head, position)[0]
        offset = struct.unpack_from("<H", self.head, vtable + 4 + 2 * field.id)[0]
        assert offset
        assert field.scalar
        struct.pack_into("<" + SCALARS[field.scalar][0], self.head, position + offset, value)

    def emit(self, write: Callable[[Any], Any]) -> None:
        """Sends the flatbuffer to ``write`` in order of position."""
        write(self.head)
        position = len(self.head)
        emit_placed(write, self.placed, position)


def emit_placed(write: Callable[[Any], Any], placed: list[Placed], position: int) -> int:
    """Writes each piece at its place, zeros between them; returns the end position."""
    for at, data in placed:
        if at > position:
            write(bytes(at - position))
        view = memoryview(data)
        write(view)
        position = at + view.nbytes
    return position
