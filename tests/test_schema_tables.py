"""The declaration of the format against the classes that flatc generated and ai-edge-litert ships."""

from __future__ import annotations

import inspect
import re
from enum import IntEnum
from typing import Any

import pytest

from litefuse.schema import enums, tables
from litefuse.schema.declare import ARRAY, BLOB, LIST, SCALAR, STRING, STRINGS, TABLE, TABLES, UNION, Table, Union

generated = pytest.importorskip("ai_edge_litert.schema_py_generated")

SOURCE = inspect.getsource(generated)
CLASSES = dict(re.findall(r"^class (\w+)\(object\):\n(.*?)(?=^\S|\Z)", SOURCE, re.M | re.S))
TABLES_THERE = sorted(name for name in CLASSES if f"{name}T" in CLASSES)
# Generated code has no enum and no union as such: both are plain classes of numbers.
NUMBERS_THERE = sorted(name for name, body in CLASSES.items() if re.match(r"    \w+ = -?\d+\n", body))

ENUMS_HERE = {n: c for n, c in vars(enums).items() if isinstance(c, type) and issubclass(c, IntEnum) and c != IntEnum}
UNIONS_HERE = {n: u for n, u in vars(tables).items() if isinstance(u, Union)}

# Generated code leaves deprecated fields out, but counts their slots.
DEPRECATED = {("ResizeBilinearOptions", 0), ("ResizeBilinearOptions", 1), ("SignatureDef", 3)}

SCALAR_NAMES = {"float32": "Float32", "bool": "Bool"} | {
    f"{kind}{bits}": f"{kind.title()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
}


def squashed(name: str) -> str:
    return name.replace("_", "").lower()


def fields_there(table: str) -> dict[int, tuple[str, str, str]]:
    """Slot -> name, type and default as the generated code has them."""
    pattern = rf"^def {table}Add(\w+)\(builder, \w+\):\n    builder\.Prepend(\w+)Slot\((\d+), .*, ([^,\n]+)\)$"
    found = {}
    for name, kind, slot, default in re.findall(pattern, SOURCE, re.M):
        accessor = re.search(rf"\n    def {name}\(self(, j)?\):\n(.*?)(?=\n    (def|#)|\Z)", CLASSES[table], re.S)
        assert accessor, f"{table}.{name}"
        vector, body = bool(accessor[1]), accessor[2]
        if kind == "UOffsetTRelative":
            target = re.search(r"obj = (\w+)\(\)", body)
            item = re.search(r"number_types\.(\w+)Flags, a \+", body)
            if target:
                kind = target[1]
            elif item:
                kind = item[1]
            else:
                kind = "union" if "_tab.Union" in body else "string"
            if vector:
                kind = f"[{kind}]"
        found[int(slot)] = (squashed(name), kind, default)
    return found


def fields_here(table: type[Table]) -> dict[int, tuple[str, str, str]]:
    found = {}
    for field in table.fields:
        name, default = squashed(field.name), "0"
        if field.kind == UNION:
            found[field.id - 1] = (name + "type", "Uint8", "0")
            kind = "union"
        elif field.kind == SCALAR:
            kind = SCALAR_NAMES[str(field.scalar)]
            default = str(float(field.default) if kind == "Float32" else int(field.default))
        elif field.kind in (LIST, ARRAY, BLOB):
            kind = f"[{SCALAR_NAMES[str(field.scalar)]}]"
        elif field.kind in (TABLE, TABLES):
            kind = str(field.target) if field.kind == TABLE else f"[{field.target}]"
        else:
            kind = {STRING: "string", STRINGS: "[string]"}[field.kind]
        found[field.id] = (name, kind, default)
    return found


def test_every_table_is_declared_and_no_other() -> None:
    assert len(TABLES_THERE) > 150
    assert sorted(Table.registry) == TABLES_THERE


@pytest.mark.parametrize("name", TABLES_THERE)
def test_fields_are_the_same(name: str) -> None:
    here, there = fields_here(Table.registry[name]), fields_there(name)
    slots = re.search(rf"^def {name}Start\(builder\):\n    builder\.StartObject\((\d+)\)", SOURCE, re.M)
    assert slots
    assert sorted(here) == list(range(int(slots[1]))), "a slot is missing or too many are declared"
    hidden = {slot for slot in here if slot not in there}
    assert hidden == {slot for table, slot in DEPRECATED if table == name}
    assert {slot: field for slot, field in here.items() if slot not in hidden} == {
        slot: (field, kind, str(float(default)) if kind == "Float32" else default)
        for slot, (field, kind, default) in there.items()
    }


def test_deprecated_fields_say_so() -> None:
    declared = {(name, f.id) for name, table in Table.registry.items() for f in table.fields if f.deprecated}
    assert declared == DEPRECATED


def test_every_enum_and_union_is_declared_and_no_other() -> None:
    assert sorted([*ENUMS_HERE, *UNIONS_HERE]) == NUMBERS_THERE


def members_there(name: str) -> dict[str, int]:
    return {n: int(v) for n, v in re.findall(r"^    (\w+) = (-?\d+)$", CLASSES[name], re.M)}


@pytest.mark.parametrize("name", sorted(ENUMS_HERE))
def test_enum_members_are_the_same(name: str) -> None:
    assert {m.name: m.value for m in ENUMS_HERE[name]} == members_there(name)


@pytest.mark.parametrize("name", sorted(UNIONS_HERE))
def test_union_members_are_the_same(name: str) -> None:
    union = UNIONS_HERE[name]
    assert {"NONE": 0, **union.number} == members_there(name)
    assert all(union.table(number) is Table.registry[member] for member, number in union.number.items())
    assert union.table(0) is None
    assert union.table(len(union.types) + 1) is None


@pytest.mark.parametrize("name", sorted(UNIONS_HERE))
def test_union_is_the_one_that_the_field_refers_to(name: str) -> None:
    fields: list[Any] = [f for t in Table.registry.values() for f in t.fields if f.union is UNIONS_HERE[name]]
    creators = {squashed(c) for c in re.findall(rf"self\.(\w+) = {name}Creator\(", SOURCE)}
    assert {squashed(f.name) for f in fields} == creators


def test_the_enum_of_a_field_has_its_default() -> None:
    fields = [f for t in Table.registry.values() for f in t.fields if f.kind == SCALAR and f.enum]
    assert len(fields) > 40
    assert all(isinstance(f.default, f.enum) for f in fields)
