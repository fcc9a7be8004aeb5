"""The model as litefuse holds it: the root table, where it came from, and what was appended to its file."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from litefuse.errors import OutputError, SchemaError
from litefuse.schema import tables
from litefuse.schema.attachment import Attachment, moved, zip_start
from litefuse.schema.reader import Reader
from litefuse.schema.tables import Buffer, Operator
from litefuse.schema.writer import MAX_FLATBUFFER, Placed, Writer, as_bytes, emit_placed

IDENTIFIER = b"TFL3"
_CHUNK = 16 << 20


class Model(tables.Model):
    """A TFLite model.

    Besides the fields of the format (subgraphs, buffers, signatures, ...), whose indices are those of the file:

    Attributes:
        path: the file that was read, or None.
        attachment: bytes behind the flatbuffer, such as a zip of associated files, or None.
        unknown: where the file uses a field that this version does not know, or None. Such a model can be inspected
            but not written.
    """

    __slots__ = ("attachment", "path", "unknown")

    path: Path | None
    attachment: Attachment | None
    unknown: str | None

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.path = None
        self.attachment = None
        self.unknown = None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model to ``path``; see :func:`write`."""
        write(self, path)


def read(path: str | os.PathLike[str]) -> Model:
    """Reads a `.tflite` file.

    The file is mapped, not copied: weights are views of it and cost no memory until used. The file must not be
    changed in place while the model lives; replacing it by renaming is safe.

    Raises:
        SchemaError: the file is missing, is a directory, is not a TFLite file or is damaged.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise SchemaError(f"{path}: not a regular file")
            if info.st_size < 8:
                raise SchemaError(f"{path}: not a TFLite file: it has only {info.st_size} bytes")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise SchemaError(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        model = parse(data)
    except SchemaError as error:
        raise type(error)(f"{path}: {error}") from None
    model.path = path
    return model


def parse(data: bytes | bytearray | memoryview) -> Model:
    """Reads a model from memory; its weights are views of ``data``. Raises SchemaError."""
    data = memoryview(data).cast("B").toreadonly()
    if len(data) < 8:
        raise SchemaError(f"not a TFLite file: it has only {len(data)} bytes")
    if data[4:8] != IDENTIFIER:
        raise SchemaError(f"not a TFLite file: bytes 4 to 8 are {bytes(data[4:8])!r} instead of {IDENTIFIER!r}")
    reader = Reader(data, strict=False)
    model = reader.root(Model)
    model.path = model.unknown = None
    if reader.found_unknown:
        try:
            Reader(data, strict=True).root(Model)
        except SchemaError as error:
            model.unknown = str(error)
    end = _attach_outside(model, data, reader.end)
    model.attachment = _attachment(data, end)
    return model


def _attach_outside(model: Model, data: memoryview, end: int) -> int:
    """Gives buffers and options that lie outside the flatbuffer their bytes; returns where the used part ends."""

    def view(offset: int, size: int, what: str) -> memoryview:
        nonlocal end
        if offset + size > len(data):
            raise SchemaError(f"{what} lies at byte {offset} with {size} bytes, past the end of the file")
        end = max(end, offset + size)
        return data[offset : offset + size]

    for i, buffer in enumerate(model.buffers):
        if buffer.offset > 1:
            buffer.data = view(buffer.offset, buffer.size, f"buffers[{i}]")
    for s, subgraph in enumerate(model.subgraphs):
        for o, op in enumerate(subgraph.operators):
            if op.large_custom_options_offset > 1:
                what = f"custom options of subgraphs[{s}].operators[{o}]"
                op.custom_options = view(op.large_custom_options_offset, op.large_custom_options_size, what)
    return end


def _attachment(data: memoryview, end: int) -> Attachment | None:
    start = zip_start(data) if len(data) - end >= 22 else None
    if start is None or start < end:
        start = end
    elif any(data[end:start]):
        start = end  # something of unknown meaning lies before the zip: keep both
    rest = data[start:]
    if len(rest) < 64 and not any(rest):
        return None  # padding
    return Attachment(rest, start) if len(rest) else None


def write(model: Model, path: str | os.PathLike[str]) -> None:
    """Writes a `.tflite` file: to a temporary file beside ``path`` first, which then replaces it.

    Buffers move outside the flatbuffer where the file would otherwise exceed 2 GB, and stay there where they were
    read from there.

    Raises:
        SchemaError: the model holds a field newer than this version knows, which would be lost.
        OutputError: the file cannot be written; ``path`` is then as it was before.
    """
    emit = _layout(model)
    with replacing(path) as file:
        emit(lambda data: _write_in_chunks(file, data))


def to_bytes(model: Model) -> bytes:
    """The bytes that :func:`write` would write. Raises as it does."""
    out = bytearray()
    _layout(model)(out.extend)
    return bytes(out)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Opens a temporary file beside ``path`` that takes its place when the block ends without an error.

    Raises OutputError, and leaves ``path`` as it was, when anything goes wrong.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _write_in_chunks(file: Any, data: Any) -> None:
    view = memoryview(data)
    for start in range(0, view.nbytes, _CHUNK):
        file.write(view[start : start + _CHUNK])


def _layout(model: Model) -> Callable[[Callable[[Any], Any]], None]:
    """Places everything; returns a function that sends the file's bytes, in order, to a given ``write``."""
    if model.unknown:
        raise SchemaError(f"cannot be written without loss: {model.unknown}; upgrade litefuse")
    bulk = sum(as_bytes(b.data).nbytes + 32 for b in model.buffers if b.data is not None)
    root, outside = model, _outside(model, everything=False)
    # The tables themselves are small beside 256 MB of slack; if they are not, Writer refuses.
    if bulk > MAX_FLATBUFFER - (256 << 20):
        outside = _outside(model, everything=True)
    if outside:
        root = _with_outside(model, outside)
    watch = [table for table, _, _ in outside]
    writer = Writer(root, IDENTIFIER, watch)
    placed: list[Placed] = []
    position = writer.size
    for table, prefix, data in outside:
        position += -position % 16
        # 0 and 1 mean "not outside", and an empty stretch needs a place too.
        writer.patch(table, prefix + "offset", position)
        placed.append((position, data))
        position += data.nbytes
    if model.attachment is not None:
        position += (model.attachment.offset - position) % 16
        placed.append((position, moved(model.attachment, position)))

    def emit(write: Callable[[Any], Any]) -> None:
        writer.emit(write)
        emit_placed(write, placed, writer.size)

    return emit


Outside = list[tuple[Buffer | Operator, str, memoryview]]


def _outside(model: Model, *, everything: bool) -> Outside:
    """The buffers and operators whose bytes go outside the flatbuffer, each with the prefix of its place's fields."""
    found: Outside = []
    for buffer in model.buffers:
        if buffer.data is not None and len(as_bytes(buffer.data)) and (buffer.offset > 1 or everything):
            found.append((buffer, "", as_bytes(buffer.data)))
    for subgraph in model.subgraphs:
        for op in subgraph.operators:
            if op.custom_options is not None and op.large_custom_options_offset > 1:
                found.append((op, "large_custom_options_", as_bytes(op.custom_options)))
    return found


def _with_outside(model: Model, outside: Outside) -> Model:
    """A shallow copy of the model in which the tables of ``outside`` hold a place instead of bytes.

    ``outside`` is updated to name the copied tables.
    """
    copies: dict[int, Any] = {}
    for i, (table, prefix, data) in enumerate(outside):
        changes: dict[str, Any] = {prefix + "offset": 2, prefix + "size": data.nbytes}
        changes["data" if isinstance(table, Buffer) else "custom_options"] = None
        copy = table.replace(**changes)
        copies[id(table)] = copy
        outside[i] = (copy, prefix, data)
    subgraphs = [s.replace(operators=[copies.get(id(o), o) for o in s.operators]) for s in model.subgraphs]
    copy = model.replace(buffers=[copies.get(id(b), b) for b in model.buffers], subgraphs=subgraphs)
    copy.path, copy.attachment, copy.unknown = model.path, model.attachment, model.unknown
    return copy  # type: ignore[no-any-return]
