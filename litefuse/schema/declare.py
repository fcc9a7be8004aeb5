"""The small language in which the TFLite schema is declared.

A table of the file format is a Python class::

    class Conv2DOptions(Table):
        padding: Padding = enum(0, Padding)
        stride_w: int = int32(1)

The number is the field's id, which fixes its slot in the flatbuffer's vtable. The declaration is the only
description of the format: the codec, the classes of the IR, the comparison in :func:`diff` and
`docs/schema.md` all come from the :class:`Field` objects made here.

Three things decide how a field appears in the IR:

* numbers, flags and enums are plain Python values; an enum value that the tables do not know stays a plain
  ``int`` so that it survives a round trip;
* short integer lists that graph code edits (shapes, operator inputs) are ``list[int]``, everything that can be
  large is a numpy array or a ``memoryview`` onto the file, without a copy;
* ``None`` means that the field is absent, which for strings and vectors is not the same as empty. The lists that
  graph code always walks (declared ``always=True``) are lists even then: an :class:`Absent` one, which is empty and
  is left out again by the writer unless something was added to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Means something to type checkers only (and is in `typing` from Python 3.11 on)."""
        return lambda cls: cls


# Scalar kinds: name -> (struct format, size in bytes). Flatbuffers are little-endian.
SCALARS: dict[str, tuple[str, int]] = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "uint8": ("B", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "uint64": ("Q", 8),
    "float32": ("f", 4),
    "float64": ("d", 8),
}

SCALAR, STRING, TABLE, LIST, ARRAY, BLOB, STRINGS, TABLES, UNION = (
    "scalar",
    "string",
    "table",
    "list",
    "array",
    "blob",
    "strings",
    "tables",
    "union",
)


class Union:
    """A flatbuffer union: the value of its type field selects the table that follows.

    Types are numbered from 1 in the order given; 0 is "none".
    """

    def __init__(self, name: str, *types: str) -> None:
        self.name = name
        self.types = types
        self.number: dict[str, int] = {t: i + 1 for i, t in enumerate(types)}

    def table(self, number: int) -> type[Table] | None:
        """The table class of a union type, or None for 0 and for types that the schema does not know."""
        if 1 <= number <= len(self.types):
            return Table.registry[self.types[number - 1]]
        return None


class Absent(list[Any]):
    """An empty list that stands for a vector which the file does not have."""

    __slots__ = ()


class UnionTag:
    """A union whose type is named in the file but whose table is missing; written back as it was read."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnionTag) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)


class Field:
    """One field of a table: its name, id, kind and type."""

    __slots__ = ("align", "always", "default", "deprecated", "enum", "id", "kind", "name", "scalar", "target", "union")

    def __init__(
        self,
        id: int,
        kind: str,
        *,
        scalar: str | None = None,
        default: Any = None,
        enum: type[IntEnum] | None = None,
        target: str | None = None,
        union: Union | None = None,
        align: int = 1,
        deprecated: bool = False,
        always: bool = False,
    ) -> None:
        self.name = ""
        self.id = id
        self.kind = kind
        self.scalar = scalar
        self.default = default
        self.enum = enum
        self.target = target
        self.union = union
        self.align = align
        self.deprecated = deprecated
        self.always = always

    @property
    def type_name(self) -> str:
        """The type in the notation of flatbuffers, for documentation and messages."""
        if self.kind == SCALAR:
            return self.enum.__name__ if self.enum else str(self.scalar)
        if self.kind in (LIST, ARRAY, BLOB):
            return f"[{self.scalar}]"
        if self.kind == TABLE:
            return str(self.target)
        if self.kind == TABLES:
            return f"[{self.target}]"
        if self.kind == STRINGS:
            return "[string]"
        if self.kind == UNION:
            assert self.union is not None
            return self.union.name
        return "string"


# The field functions return Any: to a type checker the annotation of the attribute says what it holds, and the
# presence of a value on the right-hand side says that the constructor may leave it out.


def bool_(id: int, default: bool = False) -> Any:
    """A flag."""
    return Field(id, SCALAR, scalar="bool", default=default)


def int8(id: int, default: int = 0) -> Any:
    """A signed byte."""
    return Field(id, SCALAR, scalar="int8", default=default)


def int32(id: int, default: int = 0, *, deprecated: bool = False) -> Any:
    """A 32-bit integer."""
    return Field(id, SCALAR, scalar="int32", default=default, deprecated=deprecated)


def uint32(id: int, default: int = 0) -> Any:
    """An unsigned 32-bit integer, usually an index."""
    return Field(id, SCALAR, scalar="uint32", default=default)


def int64(id: int, default: int = 0) -> Any:
    """A 64-bit integer."""
    return Field(id, SCALAR, scalar="int64", default=default)


def uint64(id: int, default: int = 0) -> Any:
    """An unsigned 64-bit integer, usually a place in the file."""
    return Field(id, SCALAR, scalar="uint64", default=default)


def float32(id: int, default: float = 0.0) -> Any:
    """A single-precision number."""
    return Field(id, SCALAR, scalar="float32", default=default)


def enum(id: int, type: type[IntEnum], default: int = 0, *, scalar: str = "int8") -> Any:
    """A member of ``type``, stored as ``scalar``; unknown numbers are kept as plain integers."""
    return Field(id, SCALAR, scalar=scalar, enum=type, default=type(default))


def string(id: int, *, deprecated: bool = False) -> Any:
    """A UTF-8 string; bytes that are not UTF-8 survive as surrogate escapes."""
    return Field(id, STRING, deprecated=deprecated)


def strings(id: int) -> Any:
    """A vector of strings."""
    return Field(id, STRINGS)


def table(id: int, target: str) -> Any:
    """A nested table of class ``target``."""
    return Field(id, TABLE, target=target)


def tables(id: int, target: str, *, always: bool = False) -> Any:
    """A vector of tables of class ``target``."""
    return Field(id, TABLES, target=target, always=always)


def list_of(id: int, scalar: str, *, enum: type[IntEnum] | None = None, always: bool = False) -> Any:
    """A short vector of numbers, held as a Python list that graph code may edit."""
    return Field(id, LIST, scalar=scalar, enum=enum, always=always)


def array(id: int, scalar: str, *, align: int = 1) -> Any:
    """A vector of numbers that may be large, held as a numpy array; a view of the file after reading."""
    return Field(id, ARRAY, scalar=scalar, align=align)


def blob(id: int, *, align: int = 1) -> Any:
    """A vector of bytes, held as a ``memoryview`` (or any bytes-like object); a view of the file after reading."""
    return Field(id, BLOB, scalar="uint8", align=align)


def union(id: int, union: Union) -> Any:
    """The table of a union; its type number is the field before, ``id - 1``, and is not stored separately."""
    return Field(id, UNION, union=union)


class _TableMeta(type):
    """Turns the declared fields into slots and an ordered tuple ``fields``."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _TableMeta:
        own = [(key, value) for key, value in namespace.items() if isinstance(value, Field)]
        for key, field in own:
            field.name = key
            del namespace[key]
        inherited: tuple[Field, ...] = next((b.fields for b in bases if isinstance(b, _TableMeta)), ())
        fields = tuple(sorted([*inherited, *(f for _, f in own)], key=lambda f: f.id))
        namespace.setdefault("__slots__", ())
        namespace["__slots__"] = (*(key for key, _ in own), *namespace["__slots__"])
        namespace["fields"] = fields
        namespace["_defaults"] = tuple((f.name, list if f.always else f.default) for f in fields)
        cls = super().__new__(mcs, name, bases, namespace)
        if any(b.__name__ == "Table" for b in bases):
            Table.registry[name] = cls  # type: ignore[assignment]
        return cls

    fields: tuple[Field, ...]


@dataclass_transform(kw_only_default=True)
class Table(metaclass=_TableMeta):
    """Base of every table. Instances are compared by identity; use :func:`diff` to compare contents."""

    registry: ClassVar[dict[str, type[Table]]] = {}
    fields: ClassVar[tuple[Field, ...]] = ()
    _defaults: ClassVar[tuple[tuple[str, Any], ...]] = ()

    def __init__(self, **values: Any) -> None:
        for name, default in self._defaults:
            if values and name in values:
                default = values.pop(name)
            setattr(self, name, [] if default is list else default)
        if values:
            raise TypeError(f"{type(self).__name__} has no field {next(iter(values))!r}")

    def __repr__(self) -> str:
        shown = []
        for field in self.fields:
            value = getattr(self, field.name)
            if value is None or (field.kind == SCALAR and value == field.default):
                continue
            if field.kind in (TABLES, BLOB, ARRAY) and len(value) > 8:
                value = f"<{len(value)} x {field.type_name[1:-1]}>"
            shown.append(f"{field.name}={value!s}" if isinstance(value, IntEnum) else f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def replace(self, **values: Any) -> Any:
        """A shallow copy with some fields changed."""
        copy = type(self).__new__(type(self))
        for name in (*(n for n, _ in self._defaults), *_extra_slots(type(self))):
            setattr(copy, name, getattr(self, name))
        for name, value in values.items():
            if not any(name == n for n, _ in self._defaults):
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
            setattr(copy, name, value)
        return copy


def deepcopy(value: Any) -> Any:
    """A copy of a table that shares only the immutable parts and the large views with the original."""
    if isinstance(value, Table):
        copy = type(value).__new__(type(value))
        for name, _ in value._defaults:
            setattr(copy, name, deepcopy(getattr(value, name)))
        for name in _extra_slots(type(value)):
            setattr(copy, name, getattr(value, name))
        return copy
    if isinstance(value, list):
        return type(value)(deepcopy(v) for v in value)
    return value


def _extra_slots(cls: type[Table]) -> list[str]:
    declared = {f.name for f in cls.fields}
    return [s for c in cls.__mro__ for s in getattr(c, "__slots__", ()) if s not in declared]


def diff(a: Any, b: Any, path: str = "") -> Iterator[str]:
    """Yields a line for each place where two tables differ, deepest place named; nothing when they are equal."""
    if isinstance(a, Table) and isinstance(b, Table):
        if a.fields is not b.fields:
            yield f"{path}: {type(a).__name__} against {type(b).__name__}"
            return
        for field in a.fields:
            yield from diff(
                getattr(a, field.name), getattr(b, field.name), f"{path}.{field.name}" if path else field.name
            )
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b) or (isinstance(a, Absent) != isinstance(b, Absent) and not a):
            yield f"{path}: {len(a)} entries against {len(b)}"
            return
        if a and isinstance(a[0], Table):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                yield from diff(x, y, f"{path}[{i}]")
        elif a != b:
            yield f"{path}: {_short(a)} against {_short(b)}"
    elif (a is None) != (b is None):
        yield f"{path}: {_short(a)} against {_short(b)}"
    elif isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        x, y = np.asarray(a), np.asarray(b)
        # Compared as bytes, so that NaN equals itself and 0.0 differs from -0.0.
        if x.dtype != y.dtype or x.shape != y.shape or x.tobytes() != y.tobytes():
            yield f"{path}: arrays differ"
    elif isinstance(a, (bytes, bytearray, memoryview)):
        if memoryview(a) != memoryview(b):
            yield f"{path}: bytes differ"
    elif isinstance(a, float) and isinstance(b, float):
        if np.float64(a).tobytes() != np.float64(b).tobytes():
            yield f"{path}: {a!r} against {b!r}"
    elif a != b:
        yield f"{path}: {_short(a)} against {_short(b)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
