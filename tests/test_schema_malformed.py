"""Damaged and hostile files: each gives a model or one SchemaError, soon and in little memory."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import struct
import subprocess
import sys
import textwrap
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litefuse import schema
from litefuse.errors import OutputError, SchemaError
from litefuse.graph.build import Builder, quantized
from litefuse.schema import tables
from litefuse.schema.enums import TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op
from litefuse.schema.validate import validate


@functools.cache
def made() -> bytes:
    """A small model with a bit of everything, so that mutations have something to break."""
    b = Builder()
    q = quantized(0.5, 3)
    x = b.input("x", [-1, 8, 8, 3], TensorType.INT8, q)
    weights = np.random.default_rng(0).integers(-9, 9, (4, 3, 3, 3), np.int8)
    w = b.constant("w", weights, quantized([0.1, 0.2, 0.3, 0.4]))
    bias = b.constant("bias", np.arange(4, dtype=np.int32), quantized([0.05, 0.1, 0.15, 0.2]))
    y = b.op(Op.CONV_2D, [x, w, bias], shape=[1, 8, 8, 4], type=TensorType.INT8, quantization=q)
    z = b.op(Op.RESHAPE, [y, b.constant("shape", np.array([1, -1], np.int32))], shape=[1, 256], new_shape=[1, -1])
    model = b.model([z], signature="serving_default")
    model.subgraphs.append(schema.deepcopy(model.subgraphs[0]))
    model.subgraphs[1].name = "branch"
    branch = tables.WhileOptions(cond_subgraph_index=1, body_subgraph_index=1)
    operator = tables.Operator(inputs=[x], outputs=[y], builtin_options=branch, custom_options=b"custom" * 5)
    model.subgraphs[1].operators.append(operator)
    level = tables.DimensionMetadata(
        format=1,  # type: ignore[arg-type]
        array_segments=tables.Uint8Vector(values=b"\0\2"),
        array_indices=tables.Uint16Vector(values=np.array([0, 3], np.uint16)),
    )
    sparsity = tables.SparsityParameters(
        traversal_order=np.array([0], np.int32), block_map=np.zeros(0, np.int32), dim_metadata=[level]
    )
    model.buffers.append(tables.Buffer(data=b"ab"))
    model.subgraphs[0].tensors.append(
        tables.Tensor(name="sparse", shape=[4], type=TensorType.INT8, buffer=len(model.buffers) - 1, sparsity=sparsity)
    )
    strings = struct.pack("<iiii", 2, 16, 18, 20) + b"abcd"
    model.buffers.append(tables.Buffer(data=strings))
    model.subgraphs[0].tensors.append(
        tables.Tensor(name="words", shape=[2], type=TensorType.STRING, buffer=len(model.buffers) - 1)
    )
    model.metadata = [tables.Metadata(name="OfflineMemoryAllocation", buffer=1)]
    return schema.to_bytes(model)


def examine(data: bytes) -> Model | None:
    """Everything that is done with files of others: read, validate, write. The one allowed outcome, or a failure."""
    start = time.process_time()
    try:
        model = schema.parse(data)
    except SchemaError:
        assert time.process_time() - start < 1
        return None
    problems = validate(model)
    assert all(p.severity in ("error", "warning") and p.place and p.message and str(p) for p in problems)
    try:
        again = schema.parse(schema.to_bytes(model))
    except (SchemaError, OutputError):
        return model  # something newer; or, from the writer, a zip that no longer fits
    places = (".offset", ".large_custom_options_offset", ".custom_options")
    assert [d for d in schema.diff(model, again) if not d.split(":")[0].endswith(places)] == []
    assert time.process_time() - start < 2
    return model


# -- not a model at all ------------------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    start = time.process_time()
    with pytest.raises(SchemaError) as caught:
        schema.read(path)
    assert caught.value.exit_code == 3
    assert time.process_time() - start < 1
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_bytes(b"TFL3")
    (tmp_path / "text").write_text("a plain text file, longer than a header\n" * 10)
    (tmp_path / "identifier").write_bytes(b"\x08\0\0\0TFL3")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert "has only 0 bytes" in refusal(tmp_path / "empty")
    assert "has only 4 bytes" in refusal(tmp_path / "short")
    assert "not a TFLite file" in refusal(tmp_path / "text")
    assert "outside the file" in refusal(tmp_path / "identifier")
    assert "is a directory" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "missing")
    assert "No such file" in refusal(tmp_path / "dangling")
    assert "Not a directory" in refusal(tmp_path / "text" / "below")
    assert "not a regular file" in refusal(tmp_path / "pipe")
    assert "not a regular file" in refusal(Path("/dev/null"))
    assert "null" in refusal(Path("zero\0byte"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(made())
    (tmp_path / "m.tflite").chmod(0)
    assert "Permission denied" in refusal(tmp_path / "m.tflite")


# -- damage ------------------------------------------------------------------------------------------------------------


def test_the_model_that_is_damaged_is_good() -> None:
    model = examine(made())
    assert model is not None
    assert model.unknown is None


def test_truncation_at_every_length() -> None:
    data = made()
    assert all(examine(data[:length]) is None for length in range(0, len(data) - 64, 3))
    for length in range(len(data) - 64, len(data)):
        examine(data[:length])


def test_flipped_bits_all_over_the_file() -> None:
    data = bytearray(made())
    rng = random.Random(0)
    for i in range(0, len(data), 5):
        bit = 1 << rng.randrange(8)
        data[i] ^= bit
        examine(bytes(data))
        data[i] ^= bit


INTERESTING = [0, 1, 2, 4, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFC, 0x3FFFFFFF]


@st.composite
def mutations(draw: st.DrawFn, size: int) -> list[tuple[str, int, int, int]]:
    position = st.integers(0, size - 4)
    word = st.sampled_from(INTERESTING) | st.integers(0, 2 * size)
    change = (
        st.tuples(st.just("word"), position, word, st.just(4))
        | st.tuples(st.just("half"), position, word, st.just(2))
        | st.tuples(st.just("copy"), position, position, st.integers(1, 200))
        | st.tuples(st.just("delete"), position, st.just(0), st.integers(1, 40))
        | st.tuples(st.just("insert"), position, st.integers(0, 255), st.integers(1, 40))
    )
    return draw(st.lists(change, min_size=1, max_size=5))


def mutated(data: bytes, changes: list[tuple[str, int, int, int]]) -> bytes:
    out = bytearray(data)
    for kind, at, value, length in changes:
        if kind in ("word", "half"):
            out[at : at + length] = (value & ((1 << 8 * length) - 1)).to_bytes(length, "little")
        elif kind == "copy":
            piece = out[value : value + length]
            out[at : at + len(piece)] = piece
        elif kind == "delete":
            del out[at : at + length]
        else:
            out[at:at] = bytes([value]) * length
    return bytes(out)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutations(len(made())))
def test_mutated_model(changes: list[tuple[str, int, int, int]]) -> None:
    examine(mutated(made(), changes))


def test_mutated_real_files(corpus: list[Path]) -> None:
    small = [p.read_bytes() for p in corpus if p.stat().st_size < 12_000]
    assert len(small) > 20

    @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        raw = data.draw(st.sampled_from(small))
        examine(mutated(raw, data.draw(mutations(len(raw)))))

    check()


@pytest.mark.slow
def test_truncated_and_flipped_real_files(corpus: list[Path]) -> None:
    rng = random.Random(1)
    for path in corpus:
        data = path.read_bytes()
        for _ in range(8):
            examine(data[: rng.randrange(len(data))])
            flipped = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            examine(bytes(flipped))


# -- hostile files -----------------------------------------------------------------------------------------------------


class Raw:
    """Assembles flatbuffers by hand, with whatever offsets."""

    def __init__(self) -> None:
        self.data = bytearray(struct.pack("<I4s", 0, b"TFL3"))

    def put(self, data: bytes, align: int = 4) -> int:
        self.data += bytes(-len(self.data) % align)
        self.data += data
        return len(self.data) - len(data)

    def words(self, *numbers: int) -> int:
        return self.put(struct.pack(f"<{len(numbers)}I", *(n & 0xFFFFFFFF for n in numbers)))

    def vtable(self, slots: dict[int, int], size: int, count: int | None = None) -> int:
        count = max(slots, default=-1) + 1 if count is None else count
        return self.put(struct.pack(f"<{2 + count}H", 4 + 2 * count, size, *(slots.get(i, 0) for i in range(count))))

    def point(self, place: int, target: int) -> None:
        struct.pack_into("<I", self.data, place, (target - place) & 0xFFFFFFFF)

    def finish(self, root: int) -> bytes:
        self.point(0, root)
        return bytes(self.data)


# Flatbuffer offsets lead forwards only, so what is shared must come last: parts are written front to back, with room
# for the references, which are filled in when their target is known.


def chain(raw: Raw, slots: list[int], counts: list[int]) -> list[int]:
    """Tables with one vector field each, down to the last; each vector's entries all refer to the same next table.

    The first table is the root. Returns the places that are to refer to whatever comes next.
    """
    places: list[int] = [0]
    for slot, count in zip(slots, counts, strict=True):
        vtable = raw.vtable({slot: 4}, 8)
        at = raw.words(0, 8)  # the vector follows at once, 4 bytes behind the field
        struct.pack_into("<i", raw.data, at, at - vtable)
        struct.pack_into("<I", raw.data, at + 4, 4)
        for place in places:
            raw.point(place, at)
        vector = raw.words(count, *([0] * count))
        places = [vector + 4 + 4 * i for i in range(count)]
    return places


def bomb_of_tables(width: int) -> bytes:
    """width references to one subgraph, which has width references to one operator without anything."""
    raw = Raw()
    places = chain(raw, [2, 3], [width, width])
    vtable = raw.vtable({}, 4)
    at = raw.words(0)
    struct.pack_into("<i", raw.data, at, at - vtable)
    for place in places:
        raw.point(place, at)
    return bytes(raw.data)


def bomb_of_lists(width: int) -> bytes:
    """width references to one subgraph, which refers to a large list of inputs."""
    raw = Raw()
    places = chain(raw, [2], [width])
    vtable = raw.vtable({1: 4}, 8)
    at = raw.words(0, 4)
    struct.pack_into("<i", raw.data, at, at - vtable)
    raw.words(width, *range(width))
    for place in places:
        raw.point(place, at)
    return bytes(raw.data)


def bomb_of_views(width: int) -> bytes:
    """width references to one buffer with large data."""
    raw = Raw()
    places = chain(raw, [4], [width])
    vtable = raw.vtable({0: 4}, 8)
    at = raw.words(0, 4)
    struct.pack_into("<i", raw.data, at, at - vtable)
    raw.words(4 * width, *range(width))
    for place in places:
        raw.point(place, at)
    return bytes(raw.data)


def bomb_of_strings(width: int) -> bytes:
    """width metadata entries, each with a different name; the names overlap and reach over most of the file."""
    raw = Raw()
    places = chain(raw, [6], [width])
    vtable = raw.vtable({0: 4}, 8)
    tables_at = []
    for place in places:
        at = raw.words(0, 0)
        struct.pack_into("<i", raw.data, at, at - vtable)
        raw.point(place, at)
        tables_at.append(at)
    text = raw.words(*([2 * width] * 2 * width))
    for i, at in enumerate(tables_at):
        raw.point(at + 4, text + 4 * i)
    return bytes(raw.data)


def bomb_of_vtables(width: int) -> bytes:
    """width empty tensors, each with another description; the descriptions overlap and are as long as can be."""
    raw = Raw()
    places = chain(raw, [2, 0], [1, width])
    descriptions = raw.put(b"".join(struct.pack("<HH28x", 60000 - 2 * i, 4) for i in range(width)) + bytes(60000))
    for i, place in enumerate(places):
        at = raw.words(0)
        struct.pack_into("<i", raw.data, at, at - (descriptions + 32 * i))
        raw.point(place, at)
    return bytes(raw.data)


def bomb_of_zip(width: int) -> bytes:
    """A zip's directory that claims as many entries as fit, each the same as the last."""
    entry = struct.pack("<4s16xIIHHH8xI", b"PK\x01\x02", 0, 0, 0, 0, 0, 0)
    local = b"PK\x03\x04" + bytes(26)
    directory = entry * width
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, width & 0xFFFF, width & 0xFFFF, len(directory), len(local), 0)
    return made() + local + directory + end


def bomb_of_custom_options(width: int) -> bytes:
    """Operators whose options lie outside, all in the same large stretch of the file."""
    operator = tables.Operator(large_custom_options_offset=2, large_custom_options_size=4 * width)
    operators = [schema.deepcopy(operator) for _ in range(width)]
    from litefuse.schema.writer import Writer

    model = Model(subgraphs=[tables.SubGraph(operators=operators)])
    return b"".join(Writer(model, b"TFL3").pieces()) + bytes(4 * width)


def bomb_of_dimensions(width: int) -> bytes:
    """A shape whose product has as many digits as the file has bytes."""
    tensors = [tables.Tensor(shape=[2**31 - 1] * width) for _ in range(4)]
    return schema.to_bytes(Model(subgraphs=[tables.SubGraph(tensors=tensors)]))


def bomb_of_scales(width: int) -> bytes:
    """Tensors with different scales, which overlap and each reach over most of the file."""
    raw = Raw()
    places = chain(raw, [2, 0], [1, width])
    tensor, parameters = raw.vtable({4: 4, 1: 8}, 12), raw.vtable({2: 4, 3: 8}, 12)
    inner = []
    for place in places:
        at = raw.words(0, 0, 9)  # INT8
        struct.pack_into("<i", raw.data, at, at - tensor)
        raw.point(place, at)
        q = raw.words(0, 0, 0)
        struct.pack_into("<i", raw.data, q, q - parameters)
        raw.point(at + 4, q)
        inner.append(q)
    numbers = raw.words(*([width] * 4 * width))
    for i, q in enumerate(inner):
        raw.point(q + 4, numbers + 4 * i)
        raw.point(q + 8, numbers + 4 * i)
    return bytes(raw.data)


BOMBS: list[Callable[[int], bytes]] = [
    bomb_of_tables,
    bomb_of_lists,
    bomb_of_views,
    bomb_of_strings,
    bomb_of_vtables,
    bomb_of_zip,
    bomb_of_custom_options,
    bomb_of_dimensions,
    bomb_of_scales,
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_cost_little(bomb: Callable[[int], bytes]) -> None:
    data = bomb(5000)
    assert len(data) < 400_000
    start = time.process_time()
    with contextlib.suppress(SchemaError):
        validate(schema.parse(data))
    assert time.process_time() - start < 2, "reading and validating took too long"
    tracemalloc.start()
    with contextlib.suppress(SchemaError):
        schema.parse(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 128 * len(data) + (4 << 20)


@pytest.mark.parametrize("bomb", [bomb_of_tables, bomb_of_lists, bomb_of_strings, bomb_of_vtables])
def test_bombs_are_refused(bomb: Callable[[int], bytes]) -> None:
    with pytest.raises(SchemaError, match="more than its own size"):
        schema.parse(bomb(5000))


def test_memory_of_the_whole_process_stays_bounded(tmp_path: Path) -> None:
    for bomb in BOMBS:
        (tmp_path / bomb.__name__).write_bytes(bomb(5000))
    script = """
        import pathlib, resource, sys
        from litefuse import schema
        from litefuse.errors import SchemaError
        from litefuse.schema.validate import validate

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
            try:
                validate(schema.read(path))
            except SchemaError:
                pass
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)
    assert grown < 128 << 10, f"{grown} kB"


def bad(change: Callable[[Raw], int]) -> str:
    raw = Raw()
    root = change(raw)
    with pytest.raises(SchemaError) as caught:
        schema.parse(raw.finish(root))
    return str(caught.value)


def test_hostile_offsets() -> None:
    def table_with(vtable: bytes, body: bytes = bytes(16)) -> Callable[[Raw], int]:
        def change(raw: Raw) -> int:
            at = raw.put(vtable)
            table = raw.put(body)
            struct.pack_into("<i", raw.data, table, table - at)
            return table

        return change

    def description(raw: Raw, distance: int) -> int:
        table = raw.put(bytes(8))
        struct.pack_into("<i", raw.data, table, distance)
        return table

    assert "outside the file" in bad(lambda raw: 1 << 31)
    assert "outside the file" in bad(lambda raw: len(raw.data) - 2)
    assert "description" in bad(lambda raw: description(raw, 0x7FFFFFFF))
    assert "description" in bad(lambda raw: description(raw, -0x7FFFFFFF))
    assert "not valid" in bad(table_with(struct.pack("<HH", 3, 8)))
    assert "not valid" in bad(table_with(struct.pack("<HH", 5, 8)))
    assert "not valid" in bad(table_with(struct.pack("<HH", 0xFFFE, 8)))
    assert "not valid" in bad(table_with(struct.pack("<HH", 4, 0)))
    assert "past the end" in bad(table_with(struct.pack("<HH", 4, 0xFFFF)))
    assert "outside its table" in bad(table_with(struct.pack("<HHH", 6, 8, 6)))
    assert "outside its table" in bad(table_with(struct.pack("<HHH", 6, 8, 1)))
    vector = struct.pack("<HHHHH", 10, 8, 0, 0, 4)
    assert "past the end" in bad(table_with(vector, struct.pack("<iII", 0, 4, 0x7FFFFFFF)))
    assert "past the end" in bad(table_with(vector, struct.pack("<iII", 0, 4, 0xFFFFFFFF)))
    assert "subgraphs: offset" in bad(table_with(vector, struct.pack("<iI", 0, 0xFFFFFFFF)))
    assert "subgraphs: offset" in bad(table_with(vector, struct.pack("<iI", 0, 0)))
    assert "subgraphs[0]: offset" in bad(table_with(vector, struct.pack("<iIII", 0, 4, 1, 1 << 30)))


def test_outside_data_past_the_end() -> None:
    for offset, size in ((1 << 63, 4), (100, 1 << 63), ((1 << 64) - 1, (1 << 64) - 1), (2, 1 << 40)):
        from litefuse.schema.writer import Writer

        buffers = Model(buffers=[tables.Buffer(), tables.Buffer(offset=offset, size=size)])
        with pytest.raises(SchemaError, match=r"buffers\[1\].*past the end"):
            schema.parse(b"".join(Writer(buffers, b"TFL3").pieces()))
        operator = tables.Operator(large_custom_options_offset=offset, large_custom_options_size=size)
        options = Model(subgraphs=[tables.SubGraph(operators=[operator])])
        with pytest.raises(SchemaError, match=r"subgraphs\[0\]\.operators\[0\].*past the end"):
            schema.parse(b"".join(Writer(options, b"TFL3").pieces()))


def test_a_table_that_refers_to_itself() -> None:
    # Offsets lead forwards, but 32 bits can wrap around: they must not lead back.
    raw = Raw()
    vtable = raw.vtable({2: 4}, 8)
    at = raw.words(0, 4, 1, -12)
    struct.pack_into("<i", raw.data, at, at - vtable)
    with pytest.raises(SchemaError, match="outside the file"):
        schema.parse(raw.finish(at))
