"""Reads a `.tflite` flatbuffer into the tables of :mod:`litefuse.schema.tables`.

The input is untrusted. Every offset is checked before it is followed, and what one file may decode to is bounded by
its size, so that tables or vectors which many places share cannot blow up memory. Weights are views of the input.

Tables are decoded by vtable: all tables with equal ones are decoded by the same precomputed list of steps.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from litefuse.errors import SchemaError, UnknownFieldError
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

T = TypeVar("T", bound=Table)
Decoder = Callable[[int], Any]

_U32 = struct.Struct("<I").unpack_from
_I32 = struct.Struct("<i").unpack_from
_2U16 = struct.Struct("<HH").unpack_from
_STRUCTS = {name: struct.Struct("<" + fmt) for name, (fmt, _) in SCALARS.items()}
_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in SCALARS}

# A file may decode to this many bytes of Python objects per byte of its own, and to a fixed amount however small it
# is. The costs are rounded up from what CPython takes. Whatever shares nothing stays below the bound by construction:
# a table takes at least 8 bytes of the file (with the reference to it) and costs less than 8 * 64, a view takes 8 and
# costs 256, and so on; strings and views that many places share are decoded once. Lists are decoded once for each
# place, because graph code edits them; our own writer shares only those of at most SHARED_ITEMS items, for which the
# 4 bytes of the reference pay.
_EXPANSION = 64
_EXPANSION_FLOOR = 1 << 20
_OBJECT = 64
_ITEM = 24
_VIEW = 256
SHARED_ITEMS = (4 * _EXPANSION - _OBJECT) // _ITEM


class _Bad(Exception):
    """A fault at a place that is completed on the way up: each table adds its own step to ``path``."""

    def __init__(self, message: str, unknown: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.unknown = unknown
        self.path: list[str] = []

    def at(self, step: str) -> _Bad:
        self.path.append(step)
        return self

    def __str__(self) -> str:
        place = ""
        for step in reversed(self.path):
            place += step if step.startswith("[") or not place else "." + step
        return f"{place}: {self.message}" if place else self.message


class Reader:
    """Decodes tables from one buffer.

    Args:
        data: the whole file.
        strict: raise at the first field that the tables do not know; otherwise remember that there was one.
    """

    def __init__(self, data: memoryview, *, strict: bool) -> None:
        self.data = data
        self.size = len(data)
        self.strict = strict
        self.found_unknown = False
        self.end = 8
        self._budget = self.size * _EXPANSION + _EXPANSION_FLOOR
        self._plans: dict[tuple[type[Table], int | bytes], tuple[int, int, Any, Any]] = {}
        self._decoders: dict[Field, Decoder] = {}
        self._shared: dict[tuple[int, Any], Any] = {}

    def root(self, cls: type[T]) -> T:
        """Decodes the root table as ``cls``, once. Raises SchemaError, with the path to the faulty place.

        Tables of the schema do not nest in themselves, so that recursion ends soon whatever the file says.
        """
        try:
            return self._table(cls, self._follow(0))
        except _Bad as bad:
            raise (UnknownFieldError if bad.unknown else SchemaError)(str(bad)) from None
        finally:
            # They refer back to the reader and would keep the file open until the garbage collector comes by.
            for cache in (self._plans, self._decoders, self._shared):
                cache.clear()

    def _spend(self, count: int) -> None:
        self._budget -= count
        if self._budget < 0:
            raise _Bad("the file decodes to far more than its own size; it is broken or hostile")

    def _follow(self, place: int) -> int:
        target: int = place + _U32(self.data, place)[0]
        if target > self.size - 4 or target == place:
            raise _Bad(f"offset at byte {place} points outside the file")
        return target

    def _vector(self, place: int, item_size: int) -> tuple[int, int]:
        """The number of items and the position of the first one of the vector referred to at ``place``."""
        at = self._follow(place)
        count: int = _U32(self.data, at)[0]
        end = at + 4 + count * item_size
        if end > self.size:
            raise _Bad(f"a vector of {count} items at byte {at} reaches past the end of the file")
        if end > self.end:
            self.end = end
        return count, at + 4

    def _table(self, cls: type[T], pos: int) -> T:
        data = self.data
        vtable = pos - _I32(data, pos)[0]
        plan = self._plans.get((cls, vtable))
        if plan is None:
            plan = self._plans[cls, vtable] = self._plan(cls, vtable)
        length, cost, absent, present = plan
        end = pos + length
        if end > self.size:
            raise _Bad(f"a table at byte {pos} reaches past the end of the file")
        if end > self.end:
            self.end = end
        self._budget -= cost
        if self._budget < 0:
            self._spend(0)
        table = cls.__new__(cls)
        for name, default in absent:
            setattr(table, name, Absent() if default is list else default)
        name = ""
        try:
            for name, offset, decode in present:
                setattr(table, name, decode(pos + offset))
        except _Bad as bad:
            raise bad.at(name) from None
        return table

    def _plan(self, cls: type[Table], vtable: int) -> tuple[int, int, Any, Any]:
        """How to decode a table of this class: its size, its cost, the fields it lacks and those it has."""
        if not 0 <= vtable <= self.size - 4:
            raise _Bad("a table's description lies outside the file")
        vtable_size, table_size = _2U16(self.data, vtable)
        if vtable_size < 4 or vtable_size % 2 or vtable + vtable_size > self.size or table_size < 4:
            raise _Bad(f"a table's description at byte {vtable} is not valid")
        self.end = max(self.end, vtable + vtable_size)
        self._spend(vtable_size)
        # Not every writer stores equal vtables once.
        content = bytes(self.data[vtable : vtable + vtable_size])
        plan = self._plans.get((cls, content))
        if plan is None:
            slots = struct.unpack_from(f"<{vtable_size // 2 - 2}H", content, 4)
            self._spend(_ITEM * len(slots) + _VIEW * len(cls.fields))
            plan = self._plans[cls, content] = self._steps(cls, slots, table_size)
        return plan

    def _steps(self, cls: type[Table], slots: tuple[int, ...], table_size: int) -> tuple[int, int, Any, Any]:
        known = max((f.id for f in cls.fields), default=-1)
        for slot, offset in enumerate(slots[known + 1 :], known + 1):
            if offset:
                self._unknown(f"{cls.__name__} has field number {slot}, which is newer than this version of litefuse")
        absent: list[tuple[str, Any]] = []
        present: list[tuple[str, int, Decoder]] = []
        cost = _OBJECT + 8 * len(cls.fields)
        for field in cls.fields:
            offset = slots[field.id] if field.id < len(slots) else 0
            if field.kind == UNION:
                tag = slots[field.id - 1] if field.id - 1 < len(slots) else 0
                if offset:
                    self._inside(offset, 4, table_size)
                if tag:
                    self._inside(tag, 1, table_size)
                    present.append((field.name, tag, self._union(field, offset - tag if offset else None)))
                    continue
                if offset:
                    self._unknown(f"{cls.__name__}.{field.name} has a value but no type")
                absent.append((field.name, None))
            elif not offset:
                absent.append((field.name, list if field.always else field.default))
                cost += _OBJECT * field.always
            else:
                size = SCALARS[field.scalar][1] if field.kind == SCALAR and field.scalar else 4
                self._inside(offset, size, table_size)
                decoder = self._decoders.get(field)
                if decoder is None:
                    decoder = self._decoders[field] = self._decoder(field)
                present.append((field.name, offset, decoder))
        return table_size, cost, tuple(absent), tuple(present)

    @staticmethod
    def _inside(offset: int, size: int, table_size: int) -> None:
        if offset < 4 or offset + size > table_size:
            raise _Bad("a field lies outside its table")

    def _unknown(self, message: str) -> None:
        if self.strict:
            raise _Bad(message, unknown=True)
        self.found_unknown = True

    def _decoder(self, field: Field) -> Decoder:
        kind, data = field.kind, self.data
        if kind == SCALAR:
            assert field.scalar is not None
            unpack = _STRUCTS[field.scalar].unpack_from
            if field.enum is None:
                return lambda place: unpack(data, place)[0]
            members: dict[int, Any] = dict(field.enum._value2member_map_)

            def read_enum(place: int) -> Any:
                value = unpack(data, place)[0]
                return members.get(value, value)

            return read_enum
        if kind == STRING:
            return self._string
        if kind == TABLE:
            cls = Table.registry[str(field.target)]
            return lambda place: self._table(cls, self._follow(place))
        if kind == STRINGS:
            return self._strings
        if kind == TABLES:
            return self._tables(Table.registry[str(field.target)])
        assert field.scalar is not None
        if kind == BLOB:
            return self._blob
        dtype = _DTYPES[field.scalar]
        if kind == ARRAY:
            return lambda place: self._array(place, dtype)
        assert kind == LIST
        return self._list(field.scalar, dict(field.enum._value2member_map_) if field.enum else None)

    def _string(self, place: int) -> str:
        count, at = self._vector(place, 1)
        text: str | None = self._shared.get((at, str))
        if text is None:
            self._spend(_OBJECT + count)
            text = self._shared[at, str] = str(self.data[at : at + count], "utf-8", "surrogateescape")
            end = at + count
            if end == self.end and end < self.size and self.data[end] == 0:
                self.end += 1  # the zero byte behind a string belongs to it
        return text

    def _strings(self, place: int) -> list[str]:
        count, at = self._vector(place, 4)
        self._spend(_OBJECT + 8 * count)
        return [self._string(at + 4 * i) for i in range(count)]

    def _blob(self, place: int) -> memoryview:
        count, at = self._vector(place, 1)
        view: memoryview | None = self._shared.get((at, memoryview))
        if view is None:
            self._spend(_VIEW)
            view = self._shared[at, memoryview] = self.data[at : at + count]
        return view

    def _array(self, place: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        count, at = self._vector(place, dtype.itemsize)
        view: np.ndarray[Any, Any] | None = self._shared.get((at, dtype))
        if view is None:
            self._spend(_VIEW)
            view = self._shared[at, dtype] = np.frombuffer(self.data, dtype, count, at)
        return view

    def _list(self, scalar: str, members: dict[int, Any] | None) -> Decoder:
        fmt, size = SCALARS[scalar]

        def read_list(place: int) -> list[Any]:
            count, at = self._vector(place, size)
            self._spend(_OBJECT + _ITEM * count)
            values = struct.unpack_from(f"<{count}{fmt}", self.data, at)
            return [members.get(v, v) for v in values] if members else list(values)

        return read_list

    def _tables(self, cls: type[Table]) -> Decoder:
        def read_tables(place: int) -> list[Table]:
            count, at = self._vector(place, 4)
            self._spend(_OBJECT + 8 * count)
            tables = []
            i = 0
            try:
                for i in range(count):
                    tables.append(self._table(cls, self._follow(at + 4 * i)))
            except _Bad as bad:
                raise bad.at(f"[{i}]") from None
            return tables

        return read_tables

    def _union(self, field: Field, distance: int | None) -> Decoder:
        """``distance`` is from the type's place to the value's, or None when the value is absent."""
        union = field.union
        assert union is not None

        def read_union(place: int) -> Table | UnionTag | None:
            number = self.data[place]
            if number == 0:
                if distance is not None:
                    self._unknown("there is a value but its type is none")
                return None
            cls = union.table(number)
            if cls is None:
                self._unknown(f"{union.name} has member number {number}, which is newer than this version of litefuse")
                return UnionTag(number)
            if distance is None:
                return UnionTag(number)
            return self._table(cls, self._follow(place + distance))

        return read_union
