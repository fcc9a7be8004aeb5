"""Reading and writing lose nothing: on real files, on generated tables, and in everything around the flatbuffer."""

from __future__ import annotations

import errno
import io
import os
import resource
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litefuse import runtime, schema
from litefuse.errors import OutputError, SchemaError
from litefuse.graph.build import Builder, quantized
from litefuse.schema import model as model_module
from litefuse.schema import tables
from litefuse.schema.attachment import bytecode_place
from litefuse.schema.declare import (
    ARRAY,
    BLOB,
    LIST,
    SCALAR,
    SCALARS,
    STRING,
    TABLE,
    UNION,
    Absent,
    Field,
    Table,
    UnionTag,
)
from litefuse.schema.model import Model
from litefuse.schema.operators import Op
from litefuse.schema.reader import SHARED_ITEMS, Reader
from litefuse.schema.validate import validate
from litefuse.schema.writer import Writer, address, as_bytes

generated = pytest.importorskip("ai_edge_litert.schema_py_generated")


# -- helpers -----------------------------------------------------------------------------------------------------------


def encode(table: Table) -> bytes:
    """The bytes of a flatbuffer with any table as its root."""
    return b"".join(Writer(table, b"TFL3").pieces())


def decode(data: bytes, cls: type[Table]) -> Table:
    return Reader(memoryview(data), strict=True).root(cls)


def differences(a: Any, b: Any, path: str = "") -> Iterator[str]:
    """Where two objects of the generated classes differ."""
    if type(a) is not type(b):
        yield f"{path}: {type(a).__name__} against {type(b).__name__}"
    elif isinstance(a, np.ndarray):
        if a.dtype != b.dtype or a.tobytes() != b.tobytes():
            yield f"{path}: arrays differ"
    elif isinstance(a, list):
        if len(a) != len(b):
            yield f"{path}: {len(a)} against {len(b)} entries"
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from differences(x, y, f"{path}[{i}]")
    elif hasattr(a, "__dict__"):
        for name in a.__dict__:
            yield from differences(getattr(a, name), getattr(b, name), f"{path}.{name}")
    elif a != b and not (a != a and b != b):
        yield f"{path}: {a!r} against {b!r}"


def object_tree(data: bytes) -> Any:
    """The file as the generated classes see it, with what places in the file refer to instead of the places."""
    root = generated.ModelT.InitFromPackedBuf(data, 0)
    for buffer in root.buffers or []:
        if buffer.offset > 1:
            buffer.data = np.frombuffer(data, np.uint8, buffer.size, buffer.offset)
            buffer.offset = 0
    for subgraph in root.subgraphs or []:
        for op in subgraph.operators or []:
            if op.largeCustomOptionsOffset > 1:
                place = op.largeCustomOptionsOffset
                op.customOptions = np.frombuffer(data, np.uint8, op.largeCustomOptionsSize, place)
                op.largeCustomOptionsOffset = 0
            if root.operatorCodes[op.opcodeIndex].customCode == b"DISPATCH_OP":
                code = bytecode_place(memoryview(op.customOptions.tobytes()))
                assert code is not None
                options = bytearray(op.customOptions)
                options[code.stored_at : code.stored_at + code.width] = bytes(code.width)
                op.customOptions = (bytes(options), data[code.offset : code.offset + code.size])
    return root


def assert_same_objects(a: bytes, b: bytes) -> None:
    assert list(differences(object_tree(a), object_tree(b))) == []


def small_model(weights: int = 64) -> Model:
    rng = np.random.default_rng(weights)
    b = Builder()
    x = b.input("x", [1, 16])
    w = b.constant("w", rng.standard_normal((weights, 16), np.float32))
    y = b.op(Op.FULLY_CONNECTED, [x, w, b.constant("bias", np.ones(weights, np.float32))], shape=[1, weights])
    return b.model([b.op(Op.RELU, [y], shape=[1, weights])], signature="serving_default")


def inputs_for(details: list[dict[str, Any]], rng: np.random.Generator) -> list[Any]:
    values: list[Any] = []
    for detail in details:
        shape, dtype = tuple(detail["shape"]), np.dtype(detail["dtype"])
        if dtype.kind == "f":
            values.append(rng.uniform(-1, 1, shape).astype(dtype))
        elif dtype.kind in "SO":
            values.append(np.full(shape or (1,), b"some words", dtype=object))
        elif dtype in (np.int8, np.uint8):
            values.append(rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True))
        else:  # often indices
            values.append(rng.integers(0, 2, shape).astype(dtype))
    return values


def outputs(model: bytes | Path, *, xnnpack: bool = True, steps: int = 2) -> list[bytes]:
    """The bytes of all outputs for a few steps on seeded random inputs."""
    runner = runtime.interpreter(model, xnnpack=xnnpack)
    with runtime.quiet():
        runner.allocate_tensors()
    rng = np.random.default_rng(7)
    found = []
    for _ in range(steps):
        for detail, value in zip(runner.get_input_details(), inputs_for(runner.get_input_details(), rng), strict=True):
            runner.set_tensor(detail["index"], value)
        runner.invoke()
        for detail in runner.get_output_details():
            value = np.asarray(runner.get_tensor(detail["index"]))
            found.append(repr(value.tolist()).encode() if value.dtype == object else value.tobytes())
    return found


# -- real files --------------------------------------------------------------------------------------------------------


def test_real_file_comes_back_the_same(corpus_file: Path, tmp_path: Path) -> None:
    raw = corpus_file.read_bytes()
    model = schema.read(corpus_file)
    assert model.unknown is None
    schema.write(model, tmp_path / "out.tflite")
    out = (tmp_path / "out.tflite").read_bytes()
    assert out == schema.to_bytes(model), "writing is not deterministic"
    assert len(out) <= 1.01 * len(raw)
    assert_same_objects(raw, out)
    again = schema.parse(out)
    places = (".offset", ".large_custom_options_offset")
    dispatch = any(c.custom_code == "DISPATCH_OP" for c in model.operator_codes)
    assert [
        d
        for d in schema.diff(model, again)
        if not d.split(":")[0].endswith(places) and not (dispatch and "custom_options" in d)
    ] == []
    assert schema.to_bytes(again) == out, "the second writing changes something"
    base = address(memoryview(out))
    for buffer in again.buffers:
        if buffer.data is not None and len(buffer.data):
            assert (address(as_bytes(buffer.data)) - base) % 16 == 0


def test_weights_of_a_real_file_are_views_of_it(corpus: list[Path]) -> None:
    for path in corpus:
        data = memoryview(path.read_bytes())
        start = address(data)
        for buffer in schema.parse(data).buffers:
            if buffer.data is not None and len(buffer.data):
                view = as_bytes(buffer.data)
                assert start <= address(view)
                assert address(view) + len(view) <= start + len(data)


def test_appended_zip_of_a_real_file_moves_with_the_model(corpus_file: Path, tmp_path: Path) -> None:
    model = schema.read(corpus_file)
    if model.attachment is None or not zipfile.is_zipfile(corpus_file):
        return  # most files have none; test_some_real_files_have_a_zip sees to it that not all are like that
    metadata = {m.name: bytes(model.buffers[m.buffer].data or b"") for m in model.metadata}
    for change in (grow, shrink):
        changed = schema.deepcopy(model)
        change(changed)
        schema.write(changed, tmp_path / "out.tflite")
        assert_zip_equal(corpus_file, tmp_path / "out.tflite")
        written = schema.read(tmp_path / "out.tflite")
        assert {m.name: bytes(written.buffers[m.buffer].data or b"") for m in written.metadata} == metadata


def test_some_real_files_have_a_zip(corpus: list[Path]) -> None:
    assert sum(zipfile.is_zipfile(path) for path in corpus) >= 10


def refused(path: Path, index: dict[str, dict[str, str]]) -> bool:
    return not index.get(path.stem, {"runs_litert_2.3.0": "ok"})["runs_litert_2.3.0"].startswith("ok")


def test_small_real_files_compute_the_same_after_writing(
    corpus: list[Path], corpus_index: dict[str, dict[str, str]]
) -> None:
    chosen = [p for p in corpus if p.stat().st_size < 60_000 and not refused(p, corpus_index)][::6]
    assert len(chosen) >= 8
    for path in chosen:
        assert outputs(schema.to_bytes(schema.read(path))) == outputs(path.read_bytes()), path.name


@pytest.mark.slow
def test_real_file_computes_the_same_after_writing(
    corpus_file: Path, corpus_index: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    schema.write(schema.read(corpus_file), tmp_path / "out.tflite")
    xnnpack = "xnnpack fails" not in corpus_index.get(corpus_file.stem, {}).get("runs_litert_2.3.0", "")
    try:
        before = outputs(corpus_file, xnnpack=xnnpack)
    except (RuntimeError, ValueError):
        # The runtime refuses it, as the index says, and refuses what was written just the same.
        assert refused(corpus_file, corpus_index)
        with pytest.raises((RuntimeError, ValueError)):
            outputs(tmp_path / "out.tflite", xnnpack=xnnpack)
        return
    assert outputs(tmp_path / "out.tflite", xnnpack=xnnpack) == before


# -- generated tables --------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=8) | st.binary(max_size=8).map(lambda b: b.decode("utf-8", "surrogateescape"))
FLOATS = st.floats(width=32, allow_nan=False) | st.just(float("nan"))


def numbers(scalar: str) -> st.SearchStrategy[Any]:
    if scalar == "bool":
        return st.booleans()
    if scalar == "float32":
        return FLOATS
    bits = 8 * SCALARS[scalar][1]
    low = 0 if scalar.startswith("u") else -(1 << (bits - 1))
    return st.integers(low, low + (1 << bits) - 1)


def values(field: Field, depth: int) -> st.SearchStrategy[Any]:
    """Anything that a field may hold, None (or Absent) included."""
    none = st.builds(Absent) if field.always else st.none()
    if field.kind == SCALAR:
        members = st.sampled_from(list(field.enum)) if field.enum else st.nothing()
        return st.just(field.default) | members | numbers(str(field.scalar))
    if field.kind == STRING:
        return none | TEXT
    if field.kind == LIST:
        return none | st.lists(numbers(str(field.scalar)), max_size=SHARED_ITEMS + 4)
    if field.kind == ARRAY:
        lists = st.lists(numbers(str(field.scalar)), max_size=SHARED_ITEMS + 4)
        long = lists.map(lambda v: v * 700)  # beyond what is pooled
        return none | (lists | long).map(lambda v: np.array(v, np.dtype(str(field.scalar)).newbyteorder("<")))
    if field.kind == BLOB:
        return none | st.binary(max_size=40) | st.binary(min_size=1, max_size=3).map(lambda b: b * 3000)
    if field.kind == UNION:
        assert field.union is not None
        tags = st.integers(1, len(field.union.types)).map(UnionTag)
        members = st.sampled_from(field.union.types).flatmap(lambda name: instances(Table.registry[name], depth - 1))
        return none | tags | members if depth else none | tags
    if not depth:
        return none
    child = instances(Table.registry[str(field.target)], depth - 1)
    return none | child if field.kind == TABLE else none | st.lists(child, max_size=2)


def instances(cls: type[Table], depth: int = 2, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = {f.name: values(f, depth) for f in cls.fields} | fixed
    return st.fixed_dictionaries(fields).map(lambda v: cls(**v))


# Places outside the flatbuffer would have to exist; 0 and 1 mean "inside".
INSIDE = {"offset": st.sampled_from([0, 1]), "size": st.integers(0, 9)}
INSIDE_OPTIONS = {
    "large_custom_options_offset": st.sampled_from([0, 1]),
    "large_custom_options_size": st.integers(0, 9),
}


@st.composite
def models(draw: st.DrawFn) -> Model:
    operators = st.lists(instances(tables.Operator, 2, **INSIDE_OPTIONS), max_size=3)
    tensors = st.lists(instances(tables.Tensor, 3), max_size=3)
    subgraphs = st.lists(instances(tables.SubGraph, 0, operators=operators, tensors=tensors), max_size=2)
    buffers = st.lists(instances(tables.Buffer, 0, **INSIDE), max_size=3)
    codes = st.lists(instances(tables.OperatorCode), max_size=3)
    fixed = {"subgraphs": subgraphs, "buffers": buffers, "operator_codes": codes}
    fields = {f.name: draw(fixed.get(f.name, values(f, 2))) for f in tables.Model.fields}
    return Model(**fields)


def without_what_generated_code_cannot_hold(table: Table) -> Table:
    """Drops deprecated fields, types of unions without values, and the sign of zeros that are defaults."""
    copy = schema.deepcopy(table)

    def visit(table: Table) -> None:
        for field in table.fields:
            value = getattr(table, field.name)
            if field.deprecated:
                setattr(table, field.name, field.default)
            elif isinstance(value, UnionTag):
                setattr(table, field.name, None)
            elif field.kind == SCALAR and value == field.default:
                setattr(table, field.name, field.default)
            elif isinstance(value, Table):
                visit(value)
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, Table):
                        visit(item)

    visit(copy)
    return copy  # type: ignore[no-any-return]


def through_generated_code(data: bytes, name: str) -> bytes:
    """Decoded and encoded again by the generated classes."""
    builder = flatbuffers.Builder()
    builder.Finish(getattr(generated, f"{name}T").InitFromPackedBuf(data, 0).Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def assert_round_trip(table: Table, cls: type[Table]) -> None:
    data = encode(table)
    assert list(schema.diff(table, decode(data, cls))) == []
    assert encode(decode(data, cls)) == data
    kept = without_what_generated_code_cannot_hold(table)
    name = "Model" if issubclass(cls, tables.Model) else cls.__name__
    assert list(schema.diff(kept, decode(through_generated_code(encode(kept), name), cls))) == []


@pytest.mark.parametrize("name", sorted(set(Table.registry) - {"Model"}))
def test_every_table_round_trips(name: str) -> None:
    cls = Table.registry[name]

    @settings(max_examples=6 if cls.fields else 1, deadline=None, suppress_health_check=list(HealthCheck))
    @given(instances(cls))
    def check(table: Table) -> None:
        assert_round_trip(table, cls)

    check()


@pytest.mark.parametrize(
    ("parent", "field"),
    [(c, f) for c in Table.registry.values() for f in c.fields if f.kind == UNION],
    ids=lambda value: value.__name__ if isinstance(value, type) else value.name,
)
def test_every_member_of_every_union_round_trips(parent: type[Table], field: Field) -> None:
    assert field.union is not None
    for number, member in enumerate(field.union.types, 1):
        table = parent(**{field.name: Table.registry[member]()})
        data = encode(table)
        assert list(schema.diff(table, decode(data, parent))) == []
        there = getattr(generated, f"{parent.__name__}T").InitFromPackedBuf(data, 0)
        attribute = next(a for a in vars(there) if a.lower() == field.name.replace("_", "").lower())
        assert type(getattr(there, attribute)).__name__ == f"{member}T"
        assert getattr(there, f"{attribute}Type") == number


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(models())
def test_generated_models_round_trip(model: Model) -> None:
    data = schema.to_bytes(model)
    again = schema.parse(data)
    assert again.unknown is None
    assert again.attachment is None
    assert list(schema.diff(model, again)) == []
    assert schema.to_bytes(again) == data
    assert_round_trip(model, Model)
    assert all(str(problem) for problem in validate(again))  # nonsense as they are, it must cope


def test_absent_and_empty_are_not_the_same() -> None:
    model = Model(
        description="",
        metadata_buffer=[],
        subgraphs=[tables.SubGraph(tensors=[tables.Tensor(shape=[], name=""), tables.Tensor()])],
        buffers=[tables.Buffer(data=b""), tables.Buffer()],
        operator_codes=Absent(),
    )
    again = schema.parse(schema.to_bytes(model))
    assert (again.description, again.metadata_buffer) == ("", [])
    assert type(again.operator_codes) is Absent
    assert type(again.signature_defs) is list
    assert [t.shape for t in again.subgraphs[0].tensors] == [[], None]
    assert [t.name for t in again.subgraphs[0].tensors] == ["", None]
    assert [b.data if b.data is None else bytes(b.data) for b in again.buffers] == [b"", None]


def test_an_absent_list_that_was_filled_is_written() -> None:
    model = schema.parse(schema.to_bytes(Model(operator_codes=Absent())))
    model.operator_codes.append(tables.OperatorCode(version=3))
    assert schema.parse(schema.to_bytes(model)).operator_codes[0].version == 3


def test_names_that_are_not_utf8_are_kept() -> None:
    raw = b"caf\xe9 \xed\xa0\x80 \xff\x00."
    model = Model(subgraphs=[tables.SubGraph(name=raw.decode("utf-8", "surrogateescape"))])
    data = schema.to_bytes(model)
    assert generated.ModelT.InitFromPackedBuf(data, 0).subgraphs[0].name == raw
    assert schema.to_bytes(schema.parse(data)) == data


def test_unknown_enum_values_and_operators_are_kept() -> None:
    model = Model(
        operator_codes=[tables.OperatorCode(builtin_code=9999, deprecated_builtin_code=-5)],
        subgraphs=[tables.SubGraph(tensors=[tables.Tensor(type=99)])],
    )
    again = schema.parse(schema.to_bytes(model))
    assert again.unknown is None
    assert (again.operator_codes[0].builtin_code, again.operator_codes[0].deprecated_builtin_code) == (9999, -5)
    assert again.subgraphs[0].tensors[0].type == 99


def test_the_type_of_a_union_without_a_value_is_kept() -> None:
    model = Model(subgraphs=[tables.SubGraph(operators=[tables.Operator(builtin_options=UnionTag(3))])])
    again = schema.parse(schema.to_bytes(model))
    assert again.subgraphs[0].operators[0].builtin_options == UnionTag(3)
    assert again.unknown is None


def test_values_that_do_not_fit_their_fields_are_refused() -> None:
    def refusal(model: Model) -> str:
        with pytest.raises(OutputError) as caught:
            schema.to_bytes(model)
        return str(caught.value)

    def tensor(**fields: Any) -> Model:
        return Model(subgraphs=[tables.SubGraph(tensors=[tables.Tensor(**fields)])])

    assert "Tensor" in refusal(tensor(buffer=-1))
    assert "Tensor.shape" in refusal(tensor(shape=[1 << 40]))
    assert "Tensor.name" in refusal(tensor(name="\ud800"))
    quantization = tables.QuantizationParameters(zero_point=np.array([0.5]))
    assert "QuantizationParameters.zero_point" in refusal(tensor(quantization=quantization))
    options = tables.Operator(builtin_options=tables.DilateOptions())
    assert "DilateOptions" in refusal(Model(subgraphs=[tables.SubGraph(operators=[options])]))


def test_arrays_of_another_type_or_layout_are_stored_by_value() -> None:
    model = Model(buffers=[tables.Buffer(data=np.arange(12, dtype=">i4").reshape(3, 4).T)])
    quantization = tables.QuantizationParameters(scale=np.array([0.5, 2.0]), zero_point=np.array([1, 2], np.int8))
    model.subgraphs = [tables.SubGraph(tensors=[tables.Tensor(quantization=quantization)])]
    again = schema.parse(schema.to_bytes(model))
    expected = np.arange(12, dtype="<i4").reshape(3, 4).T
    assert bytes(again.buffers[0].data or b"") == expected.tobytes()
    read = again.subgraphs[0].tensors[0].quantization
    assert read is not None
    assert read.scale is not None
    assert read.zero_point is not None
    assert read.scale.tolist() == [0.5, 2.0]
    assert (read.zero_point.dtype, read.zero_point.tolist()) == (np.dtype(np.int64), [1, 2])


# -- what is newer than this version -----------------------------------------------------------------------------------


def build(root: Callable[[flatbuffers.Builder], int]) -> bytes:
    builder = flatbuffers.Builder()
    builder.Finish(root(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def table(builder: flatbuffers.Builder, slots: dict[int, tuple[str, int]], count: int) -> int:
    """A table of `count` slots; each given one is a kind ("Int8", "Int32", ...) and a value."""
    builder.StartObject(count)
    for slot, (kind, value) in slots.items():
        if kind == "offset":
            builder.PrependUOffsetTRelativeSlot(slot, value, 0)
        else:
            getattr(builder, f"Prepend{kind}Slot")(slot, value, None)
    return int(builder.EndObject())


def vector(builder: flatbuffers.Builder, items: list[int]) -> int:
    builder.StartVector(4, len(items), 4)
    for item in reversed(items):
        builder.PrependUOffsetTRelative(item)
    return int(builder.EndVector())


def with_tensor(slots: dict[int, tuple[str, int]], count: int) -> bytes:
    def root(b: flatbuffers.Builder) -> int:
        tensors = vector(b, [table(b, slots, count)])
        subgraphs = vector(b, [table(b, {0: ("offset", tensors)}, 6)])
        return table(b, {0: ("Uint32", 3), 2: ("offset", subgraphs)}, 10)

    return build(root)


def with_operator(make: Callable[[flatbuffers.Builder], dict[int, tuple[str, int]]]) -> bytes:
    def root(b: flatbuffers.Builder) -> int:
        operators = vector(b, [table(b, make(b), 14)])
        subgraphs = vector(b, [table(b, {3: ("offset", operators)}, 6)])
        return table(b, {0: ("Uint32", 3), 2: ("offset", subgraphs)}, 10)

    return build(root)


NEWER = {
    "a field of the model": (lambda: build(lambda b: table(b, {10: ("Int32", 5)}, 11)), "Model has field number 10"),
    "a field of a tensor": (
        lambda: with_tensor({11: ("Int32", 5)}, 12),
        "subgraphs[0].tensors[0]: Tensor has field number 11",
    ),
    "a field of an options table": (
        lambda: with_operator(lambda b: {3: ("Uint8", 1), 4: ("offset", table(b, {9: ("Int8", 1)}, 10))}),
        "subgraphs[0].operators[0].builtin_options: Conv2DOptions has field number",
    ),
    "a field of a table without fields": (
        lambda: with_operator(lambda b: {11: ("Uint8", 18), 12: ("offset", table(b, {0: ("Int8", 1)}, 1))}),
        "subgraphs[0].operators[0]",
    ),
    "a member of builtin_options": (
        lambda: with_operator(lambda b: {3: ("Uint8", 127), 4: ("offset", table(b, {}, 0))}),
        "subgraphs[0].operators[0].builtin_options: BuiltinOptions has member number 127",
    ),
    "a member of a union without a value": (
        lambda: with_operator(lambda b: {3: ("Uint8", 200)}),
        "BuiltinOptions has member number 200",
    ),
    "a value of a union without a type": (
        lambda: with_operator(lambda b: {4: ("offset", table(b, {0: ("Int8", 1)}, 1))}),
        "Operator.builtin_options has a value but no type",
    ),
    "a value of a union of type none": (
        lambda: with_operator(lambda b: {3: ("Uint8", 0), 4: ("offset", table(b, {0: ("Int8", 1)}, 1))}),
        "subgraphs[0].operators[0].builtin_options: there is a value but its type is none",
    ),
}


@pytest.mark.parametrize("what", sorted(NEWER))
def test_what_is_newer_is_named_and_not_written(what: str, tmp_path: Path) -> None:
    make, message = NEWER[what]
    data = make()
    model = schema.parse(data)
    assert model.unknown is not None
    assert message in model.unknown
    with pytest.raises(SchemaError, match="cannot be written without loss"):
        schema.to_bytes(model)
    with pytest.raises(SchemaError, match="upgrade litefuse"):
        model.save(tmp_path / "out.tflite")
    assert list(tmp_path.iterdir()) == []


def test_a_longer_vtable_without_a_newer_value_is_fine() -> None:
    model = schema.parse(with_tensor({2: ("Uint32", 7)}, 20))
    assert model.unknown is None
    assert model.subgraphs[0].tensors[0].buffer == 7


def test_a_copy_of_a_model_with_something_newer_is_not_written_either() -> None:
    model = schema.parse(NEWER["a field of a tensor"][0]())
    for copy in (schema.deepcopy(model), model.replace(description="changed")):
        with pytest.raises(SchemaError, match="without loss"):
            schema.to_bytes(copy)


# -- views and sharing -------------------------------------------------------------------------------------------------


def test_reading_copies_no_weights() -> None:
    data = schema.to_bytes(small_model())
    base = np.frombuffer(data, np.uint8)
    model = schema.parse(data)
    sizes = [np.frombuffer(b.data, np.uint8) for b in model.buffers if b.data is not None]
    assert len(sizes) == 2
    assert all(np.shares_memory(view, base) for view in sizes)


def test_the_file_is_released_with_the_model(tmp_path: Path) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("there is no /proc/self/maps to look at")
    schema.write(small_model(), tmp_path / "m.tflite")
    model = schema.read(tmp_path / "m.tflite")
    assert str(tmp_path) in maps.read_text()
    del model
    assert str(tmp_path) not in maps.read_text()


def test_the_schema_does_not_nest_in_itself() -> None:
    # The reader relies on it: recursion must end whatever a file says.
    def targets(cls: type[Table]) -> set[str]:
        return {str(f.target) for f in cls.fields if f.target} | {
            m for f in cls.fields if f.union for m in f.union.types
        }

    depth: dict[str, int] = {}
    for _ in range(12):
        for name, cls in Table.registry.items():
            if all(target in depth for target in targets(cls)):
                depth[name] = 1 + max((depth[target] for target in targets(cls)), default=0)
    assert sorted(depth) == sorted(Table.registry)
    assert depth["Model"] <= 8


def test_bytes_that_several_tables_hold_are_written_once() -> None:
    weights = np.random.default_rng(0).bytes(50_000)
    model = Model(buffers=[tables.Buffer(), *(tables.Buffer(data=weights) for _ in range(20))])
    data = schema.to_bytes(model)
    assert len(data) < 60_000
    again = schema.parse(data)
    assert [bytes(b.data or b"") for b in again.buffers] == [b"", *[weights] * 20]
    assert schema.to_bytes(again) == data


def test_what_one_writes_with_many_shared_parts_is_read() -> None:
    # The reader bounds what a file may decode to; equal names, shapes and parameters are stored once.
    def tensor() -> tables.Tensor:
        q = quantized([0.5] * SHARED_ITEMS, 3)
        shape = [1, 320, 320, 1000, 1, 1, 1, 1][:SHARED_ITEMS]
        return tables.Tensor(name="a" * 500, shape=shape, shape_signature=shape, quantization=q)

    def operator() -> tables.Operator:
        many = list(range(1000, 1000 + SHARED_ITEMS))
        options = tables.StablehloGatherOptions(offset_dims=many, collapsed_slice_dims=many, start_index_map=many)
        flags = [True] * SHARED_ITEMS
        return tables.Operator(
            inputs=many, outputs=many, intermediates=many, mutating_variable_inputs=flags, builtin_options_2=options
        )

    long = list(range(5000))
    subgraph = tables.SubGraph(
        tensors=[tensor() for _ in range(5_000)],
        operators=[operator() for _ in range(3_000)] + [tables.Operator(inputs=list(long)) for _ in range(20)],
    )
    model = Model(subgraphs=[subgraph], buffers=[tables.Buffer() for _ in range(10_000)])
    again = schema.parse(schema.to_bytes(model))
    assert len(again.subgraphs[0].tensors) == 5_000
    assert again.subgraphs[0].operators[-1].inputs == long
    assert again.subgraphs[0].tensors[0].shape is not again.subgraphs[0].tensors[1].shape


# -- outside the flatbuffer --------------------------------------------------------------------------------------------


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a flatbuffer could not hold the weights of a test's model."""
    monkeypatch.setattr(model_module, "MAX_FLATBUFFER", 1000)
    monkeypatch.setattr(model_module, "_SLACK", 0)


def without_location(model: Model) -> Model:
    """Without the note that buffers lie outside, and with the places forgotten."""
    copy: Model = schema.deepcopy(model)
    assert copy.metadata.pop().name == "buffer_location"
    assert bytes(copy.buffers.pop().data or b"") == b"outside flatbuffers"
    for buffer in copy.buffers:
        buffer.offset = buffer.size = 0
    for op in (o for s in copy.subgraphs for o in s.operators):
        op.large_custom_options_offset = op.large_custom_options_size = 0
    return copy


@pytest.mark.usefixtures("small_limit")
def test_weights_move_outside_where_the_flatbuffer_would_be_too_large(tmp_path: Path) -> None:
    model = small_model()
    model.metadata = [tables.Metadata(name="notes", buffer=len(model.buffers))]
    model.buffers.append(tables.Buffer(data=b"for people" * 100))
    model.subgraphs[0].operators[1].custom_options = bytes(range(256)) * 40
    model.subgraphs[0].operators[0].custom_options = b"small"
    path = tmp_path / "out.tflite"
    schema.write(model, path)
    again = schema.read(path)
    assert [b.offset > 1 for b in again.buffers] == [False, True, True, False, False]
    assert [o.large_custom_options_offset > 1 for o in again.subgraphs[0].operators] == [False, True]
    assert all(b.offset % 16 == 0 for b in again.buffers)
    assert list(schema.diff(without_location(again), model)) == []
    # The generated classes see the same.
    there = object_tree(path.read_bytes())
    assert there.buffers[1].data.tobytes() == as_bytes(model.buffers[1].data).tobytes()
    assert there.subgraphs[0].operators[1].customOptions.tobytes() == bytes(range(256)) * 40


@pytest.mark.usefixtures("small_limit")
def test_what_was_outside_stays_outside(tmp_path: Path) -> None:
    model = small_model()
    model.subgraphs[0].operators[1].custom_options = b"x" * 5000
    first = schema.to_bytes(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_module, "MAX_FLATBUFFER", 1 << 31)
        again = schema.parse(first)
        assert schema.to_bytes(again) == first
        again.description = "a longer description than before " * 10
        second = schema.to_bytes(again)
    moved = schema.parse(second)
    assert moved.buffers[1].offset > again.buffers[1].offset > 1
    assert moved.subgraphs[0].operators[1].large_custom_options_offset > 1
    assert [bytes(b.data or b"") for b in moved.buffers] == [bytes(b.data or b"") for b in again.buffers]


@pytest.mark.usefixtures("small_limit")
def test_outside_weights_run_in_the_interpreter(tmp_path: Path) -> None:
    model = small_model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_module, "MAX_FLATBUFFER", 1 << 31)
        inside = schema.to_bytes(model)
    schema.write(model, tmp_path / "first.tflite")
    again = schema.read(tmp_path / "first.tflite")
    assert again.buffers[1].offset > 1
    again.description = "made longer so that everything moves " * 20
    schema.write(again, tmp_path / "second.tflite")
    expected = outputs(inside)
    assert outputs(tmp_path / "first.tflite") == expected
    assert outputs(tmp_path / "second.tflite") == expected


@pytest.mark.usefixtures("small_limit")
def test_outside_buffers_can_be_emptied_shared_and_replaced() -> None:
    model = schema.parse(schema.to_bytes(small_model()))
    assert model.buffers[1].offset > 1
    model.buffers[1].data = None
    model.buffers[2].data = b""
    again = schema.parse(schema.to_bytes(model))
    assert (again.buffers[1].data, again.buffers[1].offset, again.buffers[1].size) == (None, 0, 0)
    assert bytes(again.buffers[2].data or b"?") in (b"", b"?")
    assert again.buffers[2].size == 0
    weights = bytes(range(256)) * 100
    model = Model(buffers=[tables.Buffer(), *(tables.Buffer(data=weights) for _ in range(10))])
    data = schema.to_bytes(model)
    assert len(data) < 2 * len(weights)
    assert {b.offset for b in schema.parse(data).buffers[1:11]} == {schema.parse(data).buffers[1].offset}


def test_bytes_both_inside_and_outside_are_not_dropped() -> None:
    model = Model(buffers=[tables.Buffer(data=b"inside", offset=8, size=4)])
    read = schema.parse(encode(model))
    assert read.unknown is not None
    assert "buffers[0]" in read.unknown


def test_bytes_between_outside_buffers_are_not_dropped() -> None:
    def data(between: bytes) -> bytes:
        start = len(encode(Model(buffers=[tables.Buffer(offset=2, size=4)])))
        model = Model(buffers=[tables.Buffer(offset=start + len(between), size=4)])
        return encode(model) + between + b"kept"

    for harmless in (b"", bytes(12)):
        model = schema.parse(data(harmless))
        assert model.unknown is None
        assert bytes(model.buffers[0].data or b"") == b"kept"
        assert model.attachment is None
    lost = schema.parse(data(b"whose?")).unknown
    assert lost is not None
    assert "belong to nothing" in lost


# -- behind the flatbuffer ---------------------------------------------------------------------------------------------

FILES = {"labels.txt": b"cat\ndog\n" * 50, "vocab/words.txt": bytes(range(256)) * 9}


def grow(model: Model) -> None:
    model.buffers.append(tables.Buffer(data=b"more" * 5000))


def shrink(model: Model) -> None:
    largest = max(model.buffers, key=lambda b: 0 if b.data is None else len(b.data))
    largest.data = b""
    model.description = None


def strictly_absolute(path: Path) -> bool:
    """Whether every offset in the zip counts from the start of the file, as readers without tolerance want it."""
    data = path.read_bytes()
    end = data.rfind(b"PK\x05\x06")
    size, start = struct.unpack_from("<II", data, end + 12)
    if start == 0xFFFFFFFF:
        record = struct.unpack_from("<Q", data, end - 20 + 8)[0]
        if data[record : record + 4] != b"PK\x06\x06":
            return False
        size, start = struct.unpack_from("<QQ", data, record + 40)
        end = record
    with zipfile.ZipFile(path) as archive:
        headers = all(data[i.header_offset :][:4] == b"PK\x03\x04" for i in archive.infolist())
    return bool(start + size == end and headers)


def assert_zip_equal(a: Path, b: Path) -> None:
    with zipfile.ZipFile(a) as x, zipfile.ZipFile(b) as y:
        assert y.namelist() == x.namelist()
        assert y.testzip() is None
        assert [y.read(n) for n in y.namelist()] == [x.read(n) for n in x.namelist()]
    assert strictly_absolute(a) == strictly_absolute(b)


def appended(path: Path) -> None:
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = b"with a comment"
        for name, data in FILES.items():
            archive.writestr(name, data)


def concatenated(path: Path) -> None:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for name, data in FILES.items():
            archive.writestr(name, data)
    with open(path, "ab") as file:
        file.write(memory.getvalue())


def appended_64(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zipfile, "ZIP64_LIMIT", 100)
        appended(path)
    assert b"PK\x06\x07" in path.read_bytes()


def empty(path: Path) -> None:
    with zipfile.ZipFile(path, "a"):
        pass


@pytest.mark.parametrize("change", [grow, shrink])
@pytest.mark.parametrize("attach", [appended, concatenated, appended_64, empty])
def test_an_appended_zip_stays_readable(
    attach: Callable[[Path], None], change: Callable[[Model], None], tmp_path: Path
) -> None:
    source, target = tmp_path / "in.tflite", tmp_path / "out.tflite"
    schema.write(small_model(), source)
    attach(source)
    model = schema.read(source)
    assert model.attachment is not None
    schema.write(model, target)
    assert target.read_bytes() == source.read_bytes()
    change(model)
    schema.write(model, target)
    assert_zip_equal(source, target)
    if attach is not empty:
        with zipfile.ZipFile(target) as archive:
            assert {n: archive.read(n) for n in archive.namelist()} == FILES
    # And back again: nothing has been lost on the way.
    back = schema.read(target)
    assert list(schema.diff(back, model)) == []
    schema.write(back, tmp_path / "again.tflite")
    assert (tmp_path / "again.tflite").read_bytes() == target.read_bytes()


def test_a_zip_that_offsets_no_longer_reach_is_refused() -> None:
    from litefuse.schema.attachment import Attachment, moved

    memory = io.BytesIO(b"model")
    with zipfile.ZipFile(memory, "a") as archive:
        archive.writestr("a", b"b")
    attachment = Attachment(memoryview(memory.getvalue())[5:], 5)
    assert moved(attachment, 5) is attachment.data
    with pytest.raises(OutputError, match="4 GB"):
        moved(attachment, (1 << 32) - 8)


@pytest.mark.parametrize(
    "rest", [b"unknown bytes of somebody's tool", b"\0\0\0\0 after zeros", b"x" * 5000, bytes(100)]
)
def test_unknown_bytes_behind_the_flatbuffer_are_kept(rest: bytes) -> None:
    original = schema.to_bytes(small_model()) + rest
    model = schema.parse(original)
    assert schema.to_bytes(model) == original
    grow(model)
    grown = schema.to_bytes(model)
    assert grown.endswith(rest)
    assert schema.to_bytes(schema.parse(grown)) == grown


def test_unknown_bytes_before_an_appended_zip_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "in.tflite"
    path.write_bytes(schema.to_bytes(small_model()) + b"somebody's bytes")
    appended(path)
    model = schema.read(path)
    grow(model)
    schema.write(model, tmp_path / "out.tflite")
    assert b"somebody's bytes" in (tmp_path / "out.tflite").read_bytes()
    assert_zip_equal(path, tmp_path / "out.tflite")


def dispatch_model(bytecode: bytes) -> bytes:
    """A model whose only operator runs bytecode that lies behind the flatbuffer, as LiteRT's compiler leaves it."""
    fbb = pytest.importorskip("flatbuffers.flexbuffers").Builder()

    def options(offset: int) -> bytes:
        builder = type(fbb)()
        with builder.Map():
            builder.Key("bytecode_size")
            builder.UInt(len(bytecode), 8)
            builder.Key("bytecode_offset")
            builder.UInt(offset, 8)
            builder.Key("name")
            builder.String("partition")
        return bytes(builder.Finish())

    def model(offset: int) -> Model:
        op = tables.Operator(inputs=[0], outputs=[1], custom_options=options(offset))
        tensors = [tables.Tensor(name="x", shape=[4]), tables.Tensor(name="y", shape=[4])]
        return Model(
            version=3,
            operator_codes=[tables.OperatorCode(builtin_code=Op.CUSTOM, custom_code="DISPATCH_OP")],
            subgraphs=[tables.SubGraph(tensors=tensors, inputs=[0], outputs=[1], operators=[op])],
            buffers=[tables.Buffer(), tables.Buffer(data=b"weights" * 100)],
        )

    size = len(encode(model(0)))
    start = size + -size % 16
    return encode(model(start)) + bytes(start - size) + bytecode


def pointed_at(data: bytes) -> bytes:
    options = schema.parse(data).subgraphs[0].operators[0].custom_options
    from flatbuffers import flexbuffers

    values = flexbuffers.Loads(bytes(options))
    return data[values["bytecode_offset"] :][: values["bytecode_size"]]


@pytest.mark.parametrize("change", [grow, shrink])
def test_the_place_of_a_processors_bytecode_moves_with_it(change: Callable[[Model], None]) -> None:
    bytecode = np.random.default_rng(1).bytes(777)
    data = dispatch_model(bytecode)
    model = schema.parse(data)
    assert model.unknown is None
    assert schema.to_bytes(model) == data
    change(model)
    changed = schema.to_bytes(model)
    assert pointed_at(changed) == bytecode
    assert schema.to_bytes(schema.parse(changed)) == changed


def test_bytecode_in_an_unexpected_place_is_not_lost() -> None:
    data = dispatch_model(b"code" * 50)
    model = schema.parse(data[:-200])
    assert model.unknown is not None
    assert "bytecode" in model.unknown


# -- files -------------------------------------------------------------------------------------------------------------


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_writing_over_the_file_that_was_read(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    schema.write(small_model(), path)
    before = path.read_bytes()
    path.chmod(0o640)
    model = schema.read(path)
    grow(model)
    model.save(path)
    assert len(path.read_bytes()) > len(before)
    assert bytes(model.buffers[1].data or b"") == bytes(schema.read(path).buffers[1].data or b"")
    assert path.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["m.tflite"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.tflite").write_bytes(b"old")
    (tmp_path / "link.tflite").symlink_to("real.tflite")
    schema.write(small_model(), tmp_path / "link.tflite")
    assert (tmp_path / "link.tflite").is_symlink()
    assert (tmp_path / "real.tflite").read_bytes() == schema.to_bytes(small_model())
    assert names(tmp_path) == ["link.tflite", "real.tflite"]


def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, file: Any) -> None:
            self.file, self.left = file, 2 << 20

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: Any) -> int:
            self.left -= len(data)
            if self.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return int(self.file.write(data))

    path = tmp_path / "m.tflite"
    path.write_bytes(b"precious")
    model = small_model(100_000)
    monkeypatch.setattr(model_module, "open", lambda *args: Full(open(*args)), raising=False)  # noqa: SIM115
    with pytest.raises(OutputError, match="No space left"):
        schema.write(model, path)
    assert path.read_bytes() == b"precious"
    assert names(tmp_path) == ["m.tflite"]


def test_a_limit_of_the_file_size_leaves_everything_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    model = small_model(100_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, hard))
    try:
        with pytest.raises(OutputError, match="cannot be written"):
            schema.write(model, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == []


def test_an_interrupted_writer_leaves_no_file(tmp_path: Path) -> None:
    def interrupted() -> None:
        with model_module.replacing(tmp_path / "m.tflite") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == []


@pytest.mark.parametrize("target", ["folder", "missing/m.tflite", "file/m.tflite", "pipe", "nul\0byte", "n" * 300])
def test_places_that_cannot_be_written(target: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"a file")
    os.mkfifo(tmp_path / "pipe")
    before = names(tmp_path)
    with pytest.raises(OutputError, match="cannot be written"):
        schema.write(small_model(), tmp_path / target)
    assert names(tmp_path) == before
    assert names(tmp_path / "folder") == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into read-only directories")
def test_a_read_only_directory(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(b"precious")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="cannot be written"):
            schema.write(small_model(), path)
    finally:
        tmp_path.chmod(0o700)
    assert path.read_bytes() == b"precious"
    assert names(tmp_path) == ["m.tflite"]


def test_long_names_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 240 + ".tflite")
    schema.write(small_model(), path)
    assert path.read_bytes() == schema.to_bytes(small_model())
