"""The model as litefuse holds it: the root table, where it came from, and what was appended to its file."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from litefuse.errors import OutputError, SchemaError
from litefuse.schema import tables
from litefuse.schema.attachment import Attachment, Moves, bytecode_place, moved, with_moved_bytecode, zip_start
from litefuse.schema.reader import Reader
from litefuse.schema.tables import Buffer, Metadata, Operator
from litefuse.schema.writer import MAX_FLATBUFFER, Placed, Writer, address, as_bytes, fill

IDENTIFIER = b"TFL3"
_BLOCK = 1 << 20
_CHUNK = 16 * _BLOCK
# What the tables and strings of a model may take beside its weights before all weights move outside the flatbuffer.
_SLACK = 256 << 20
# Custom options below this size stay in the flatbuffer even then.
_LARGE_OPTIONS = 4096
_LOCATION = "buffer_location"


class Model(tables.Model):
    """A TFLite model.

    Besides the fields of the format (subgraphs, buffers, signatures, ...), whose indices are those of the file:

    Attributes:
        path: the file that was read, or None.
        attachment: bytes behind the flatbuffer, such as a zip of associated files, or None.
        unknown: what the file holds that this version does not know, and where, or None. Such a model can be
            inspected but not written.
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
        # Opening a pipe must not wait for its other end.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode):
                what = "is a directory" if stat.S_ISDIR(info.st_mode) else "is not a regular file"
                raise SchemaError(f"{path}: {what}, not a TFLite file")
            if info.st_size < 8:
                raise SchemaError(f"{path}: not a TFLite file: it has only {info.st_size} bytes")
            data = memoryview(mmap.mmap(handle, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:  # ValueError: the path holds a zero byte
        raise SchemaError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
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
    model.path = model.unknown = model.attachment = None
    if reader.found_unknown:
        try:
            Reader(data, strict=True).root(Model)
        except SchemaError as error:
            model.unknown = str(error)
    end = _attach_outside(model, data, reader.end)
    model.attachment = _attachment(data, end)
    if model.unknown is None:
        model.unknown = _lost_bytecode(model)
    return model


def _attach_outside(model: Model, data: memoryview, end: int) -> int:
    """Gives buffers and options that lie outside the flatbuffer their bytes; returns where the used part ends."""
    pieces: list[tuple[int, int]] = []

    def view(table: Any, prefix: str, inside: Any, what: str) -> memoryview:
        offset, size = getattr(table, prefix + "offset"), getattr(table, prefix + "size")
        if offset + size > len(data):
            raise SchemaError(f"{what}: it lies at byte {offset} with {size} bytes, past the end of the file")
        if inside is not None and model.unknown is None:
            model.unknown = f"{what} has bytes inside the flatbuffer and a place outside"
        pieces.append((offset, offset + size))
        return data[offset : offset + size]

    for i, buffer in enumerate(model.buffers):
        if buffer.offset > 1:
            buffer.data = view(buffer, "", buffer.data, f"buffers[{i}]")
    for s, subgraph in enumerate(model.subgraphs):
        for o, op in enumerate(subgraph.operators):
            if op.large_custom_options_offset > 1:
                what = f"subgraphs[{s}].operators[{o}].custom_options"
                op.custom_options = view(op, "large_custom_options_", op.custom_options, what)
    for start, stop in sorted(pieces):
        # Beyond alignment there is nothing between the pieces, as far as we know.
        if start > end and model.unknown is None and _holds_something(data[end:start]):
            model.unknown = f"bytes {end} to {start} of the file belong to nothing"
        end = max(end, stop)
    return end


def _attachment(data: memoryview, end: int) -> Attachment | None:
    start = zip_start(data) if len(data) - end >= 22 else None
    if start is None or start < end or _holds_something(data[end:start]):
        start = end  # not a zip, or something of unknown meaning lies before it: keep all
    rest = data[start:]
    if len(rest) < 64 and not _holds_something(rest):
        return None  # padding
    return Attachment(rest, start)


def _holds_something(data: memoryview) -> bool:
    return len(data) > 0 and bool(np.frombuffer(data, np.uint8).any())


def _bytecode_users(model: Model) -> Iterator[tuple[Operator, str]]:
    """The operators whose options say where in the file a processor's bytecode lies, with their places."""
    codes = {i for i, code in enumerate(model.operator_codes) if code.custom_code == "DISPATCH_OP"}
    for s, subgraph in enumerate(model.subgraphs if codes else ()):
        for o, op in enumerate(subgraph.operators):
            if op.opcode_index in codes and op.custom_options is not None:
                yield op, f"subgraphs[{s}].operators[{o}]"


def _lost_bytecode(model: Model) -> str | None:
    moves = list(_moves(model))
    for op, place in _bytecode_users(model):
        at = bytecode_place(as_bytes(op.custom_options))
        if at is not None and at.size and not any(start <= at.offset < stop for start, stop in moves):
            return f"{place} refers to bytecode at byte {at.offset}, which is not behind the flatbuffer"
    return None


def _moves(model: Model) -> Iterator[tuple[int, int]]:
    """The stretches of the file that was read, start and end, which move as a whole when it is written."""
    if model.attachment is not None:
        yield model.attachment.offset, model.attachment.offset + len(model.attachment.data)
    for buffer in model.buffers:
        if buffer.offset > 1:
            yield buffer.offset, buffer.offset + buffer.size


def write(model: Model, path: str | os.PathLike[str]) -> None:
    """Writes a `.tflite` file: to a temporary file beside ``path`` first, which then replaces it.

    Buffers move outside the flatbuffer where the file would otherwise exceed 2 GB, and stay there where they were
    read from there.

    Raises:
        SchemaError: the model holds something newer than this version knows, which would be lost.
        OutputError: the model holds something that the format cannot store, or the file cannot be written; ``path``
            is then as it was before.
    """
    pieces = _layout(model)
    with replacing(path) as file:
        _send(pieces, file)


def to_bytes(model: Model) -> bytes:
    """The bytes that :func:`write` would write. Raises as it does."""
    return b"".join(_layout(model))


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Opens a temporary file beside ``path`` that takes its place when the block ends without an error.

    Raises OutputError, and leaves ``path`` as it was, when anything goes wrong.
    """
    try:
        target = Path(os.path.realpath(path))  # a link is kept, what it points to is replaced
        exists = target.exists()
        if exists and not target.is_file():
            raise OutputError(f"{path}: cannot be written: it exists and is not a regular file")
        temporary = target.with_name(f".litefuse-{os.urandom(8).hex()}.tmp")
        try:
            with open(temporary, "xb") as file:
                yield file
            if exists:
                shutil.copymode(target, temporary)
            os.replace(temporary, target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _send(pieces: list[Any], file: Any) -> None:
    """Writes in whole blocks. Starting in the middle of a page can take three times as long, and small pieces too."""
    pending = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        if pending:
            room = _BLOCK - len(pending)
            pending += view[:room]
            view = view[room:]
            if len(pending) < _BLOCK:
                continue
            file.write(pending)
            pending = bytearray()
        whole = len(view) - len(view) % _BLOCK
        for start in range(0, whole, _CHUNK):
            file.write(view[start : min(start + _CHUNK, whole)])
        pending += view[whole:]
    file.write(pending)


class _Outside(NamedTuple):
    """What goes outside the flatbuffer: the table that holds the place and the prefix of the place's fields."""

    table: Buffer | Operator
    prefix: str
    data: memoryview


def _layout(model: Model) -> list[Any]:
    """The bytes of the file, as pieces in order."""
    if model.unknown:
        raise SchemaError(f"cannot be written without loss: {model.unknown}; upgrade litefuse")
    users = [op for op, _ in _bytecode_users(model)]
    options: dict[int, bytes] = {}
    known: Moves | None = None
    while True:
        pieces, moves = _place(model, options)
        if not users or moves == known:
            return pieces
        # The new options are as long as the old, so that with them everything finds the same place.
        options = {id(op): with_moved_bytecode(as_bytes(op.custom_options), moves) for op in users}
        known = moves


def _place(model: Model, options: dict[int, bytes]) -> tuple[list[Any], Moves]:
    """Places everything; returns the file's pieces and how stretches of the file that was read have moved.

    Args:
        model: what to write.
        options: custom options that stand in for those of an operator, by the operator's identity.
    """
    outside = [o._replace(data=memoryview(options.get(id(o.table), o.data))) for o in _choose_outside(model)]
    root, copies = _with_outside(model, outside, options)
    writer = Writer(root, IDENTIFIER, list(copies.values()))
    placed: list[Placed] = []
    places: dict[tuple[int, int], int] = {}
    moves: Moves = []
    position = writer.size
    for table, prefix, data in outside:
        key = (address(data) if len(data) else -1, len(data))
        at = places.get(key)
        if at is None:
            # The place of an empty stretch does not matter, but it has one, and 0 and 1 mean "not outside".
            position += -position % 16
            at = places[key] = position
            placed.append((position, data))
            position += len(data)
        writer.patch(copies[id(table)], prefix + "offset", at)
        if isinstance(table, Buffer) and table.offset > 1:
            moves.append((table.offset, table.offset + table.size, at))
    if model.attachment is not None:
        position += (model.attachment.offset - position) % 16
        placed.append((position, moved(model.attachment, position)))
        start = model.attachment.offset
        moves.append((start, start + len(model.attachment.data), position))
    return [*writer.pieces(), *fill(placed, writer.size)], moves


def _choose_outside(model: Model) -> list[_Outside]:
    """The buffers and custom options whose bytes go outside the flatbuffer."""
    sizes: dict[Any, int] = {}
    buffers = [(b, as_bytes(b.data)) for b in model.buffers if b.data is not None]
    options = [
        (o, as_bytes(o.custom_options)) for s in model.subgraphs for o in s.operators if o.custom_options is not None
    ]
    for _, data in (*buffers, *options):
        if len(data):
            sizes[address(data), len(data)] = len(data) + 32
    everything = sum(sizes.values()) > MAX_FLATBUFFER - _SLACK
    # Runtimes read metadata in the flatbuffer only.
    inside = {id(model.buffers[m.buffer]) for m in model.metadata if 0 <= m.buffer < len(model.buffers)}
    found = [_Outside(b, "", d) for b, d in buffers if b.offset > 1 or (everything and len(d) and id(b) not in inside)]
    found += [
        _Outside(o, "large_custom_options_", d)
        for o, d in options
        if o.large_custom_options_offset > 1 or (everything and len(d) > _LARGE_OPTIONS)
    ]
    return found


def _with_outside(
    model: Model, outside: list[_Outside], options: dict[int, bytes]
) -> tuple[Model, dict[int, Buffer | Operator]]:
    """A shallow copy of the model in which the tables of ``outside`` hold a place instead of bytes.

    Returns it with the copied tables of ``outside``, by the identity of the originals.
    """
    copies: dict[int, Any] = {}
    for table, prefix, data in outside:
        changes: dict[str, Any] = {prefix + "offset": 2, prefix + "size": len(data)}
        changes["data" if isinstance(table, Buffer) else "custom_options"] = None
        copies[id(table)] = table.replace(**changes)
    replaced = dict(copies)
    for buffer in model.buffers:
        if buffer.offset > 1 and id(buffer) not in copies:  # it was emptied
            replaced[id(buffer)] = buffer.replace(offset=0, size=0)
    for subgraph in model.subgraphs:
        for op in subgraph.operators:
            if op.large_custom_options_offset > 1 and id(op) not in copies:
                replaced[id(op)] = op.replace(large_custom_options_offset=0, large_custom_options_size=0)
            if id(op) in options and id(op) not in copies:
                replaced[id(op)] = replaced.get(id(op), op).replace(custom_options=options[id(op)])
    if not replaced:
        return model, copies
    subgraphs = [s.replace(operators=[replaced.get(id(o), o) for o in s.operators]) for s in model.subgraphs]
    root = model.replace(buffers=[replaced.get(id(b), b) for b in model.buffers], subgraphs=subgraphs)
    if any(isinstance(t, Buffer) for t in copies.values()) and all(m.name != _LOCATION for m in model.metadata):
        # The converter's way to tell runtimes that the flatbuffer alone is not the whole model.
        root.metadata = [*model.metadata, Metadata(name=_LOCATION, buffer=len(root.buffers))]
        root.buffers.append(Buffer(data=b"outside flatbuffers"))
    return root, copies
