"""What lies behind the flatbuffer in a file.

Usually it is the zip that TFLite Metadata appends. A zip names places by their distance from the start of the file.
When the model before it changes size, these numbers must move with it, or strict readers (the Task Library's) no longer
find the entries.

Files compiled for a neural processor carry its bytecode there, and custom operators named DISPATCH_OP whose options,
a flexbuffer, say where in the file it begins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from litefuse.errors import OutputError

_END = b"PK\x05\x06"
_END_64 = b"PK\x06\x06"
_LOCATOR_64 = b"PK\x06\x07"
_ENTRY = b"PK\x01\x02"
_LOCAL = b"PK\x03\x04"
_UNSET = 0xFFFFFFFF

# Stretches of the file that was read and where they begin in the file to be written: start, end, new start.
Moves = list[tuple[int, int, int]]


class Attachment(NamedTuple):
    """Bytes behind the flatbuffer and the place at which they were."""

    data: memoryview
    offset: int


class _Place(NamedTuple):
    """Where a zip stores an offset, and how."""

    at: int
    format: str

    def value(self, data: memoryview | bytearray) -> int:
        return int(struct.unpack_from(self.format, data, self.at)[0])


class _Directory(NamedTuple):
    start: int
    end: int
    entries: int
    places: list[_Place]  # of the directory's own offset (first), and of the 64-bit end record
    base: int  # what must be added to the offsets in the zip to get positions in the data


def _directory(data: memoryview) -> _Directory | None:
    """The central directory of a zip at the end of ``data``, or None when it does not end in one."""
    window = bytes(data[-(1 << 16) - 22 :])
    at = window.rfind(_END)
    if at < 0 or len(window) - at < 22:
        return None
    end = len(data) - len(window) + at
    count, size = struct.unpack_from("<HI", data, end + 10)
    places = [_Place(end + 16, "<I")]
    if end >= 76 and data[end - 20 : end - 16] == _LOCATOR_64 and data[end - 76 : end - 72] == _END_64:
        places = [_Place(end - 76 + 48, "<Q"), _Place(end - 20 + 8, "<Q")]
        count, size = struct.unpack_from("<QQ", data, end - 76 + 32)
        end -= 76
    start = places[0].value(data)
    if size > end or count > size:
        return None
    # The directory ends where the end record begins, which tells from where its offsets count.
    return _Directory(end - size, end, count, places, end - size - start)


def _entries(data: memoryview, directory: _Directory) -> Iterator[_Place]:
    """For each file in the zip, where the directory stores the offset of its header. Stops where it is damaged."""
    at = directory.start
    for _ in range(directory.entries):
        if at + 46 > directory.end or data[at : at + 4] != _ENTRY:
            return
        packed, unpacked, name, extra, comment = struct.unpack_from("<IIHHH", data, at + 20)
        place = _Place(at + 42, "<I")
        stop = at + 46 + name + extra
        field = at + 46 + name
        if place.value(data) == _UNSET:
            # The 64-bit field holds, in this order, only those values that did not fit their places.
            while field + 4 <= min(stop, directory.end):
                kind, length = struct.unpack_from("<HH", data, field)
                skip = 8 * ((packed == _UNSET) + (unpacked == _UNSET))
                if kind == 1 and skip + 8 <= length and field + 12 + skip <= directory.end:
                    place = _Place(field + 4 + skip, "<Q")
                    break
                field += 4 + length
        yield place
        at = stop + comment


def zip_start(data: memoryview) -> int | None:
    """Where the zip at the end of a file begins, or None when the file does not end in one."""
    directory = _directory(data)
    if directory is None:
        return None
    starts = [place.value(data) + directory.base for place in _entries(data, directory)]
    if len(starts) < directory.entries:
        return None
    if any(not 0 <= at < directory.start or data[at : at + 4] != _LOCAL for at in starts):
        return None
    return min([directory.start, *starts])


def moved(attachment: Attachment, offset: int) -> bytearray | memoryview:
    """The attachment's bytes for a file in which it begins at ``offset``.

    Offsets that count from the start of the file are adjusted; a zip whose offsets count from its own start, and
    anything that is not a zip, is returned as it is. Raises OutputError when an offset no longer fits its field.
    """
    delta = offset - attachment.offset
    directory = _directory(attachment.data)
    if directory is None or delta == 0 or directory.base != -attachment.offset:
        return attachment.data
    data = bytearray(attachment.data)
    for place in (*directory.places, *_entries(attachment.data, directory)):
        value = place.value(data) + delta
        if value < 0 or (place.format == "<I" and value >= _UNSET):
            raise OutputError(
                "the zip appended to the model would begin beyond 4 GB, where its offsets do not reach; "
                "remove the appended metadata first"
            )
        struct.pack_into(place.format, data, place.at, value)
    return data


class Bytecode(NamedTuple):
    """Where the bytecode of a DISPATCH_OP lies, and where and how wide the options store that offset."""

    offset: int
    size: int
    stored_at: int
    width: int


def bytecode_place(options: memoryview) -> Bytecode | None:
    """What the options of a DISPATCH_OP say about its bytecode, or None when they do not name a place."""
    try:
        values = _flexbuffer_numbers(options)
        offset, size = values[b"bytecode_offset"], values[b"bytecode_size"]
    except (KeyError, IndexError, struct.error):
        return None
    return Bytecode(offset[0], size[0], offset[1], offset[2])


def with_moved_bytecode(options: memoryview, moves: Moves) -> bytes:
    """The options of a DISPATCH_OP for a file in which stretches have moved. Raises OutputError."""
    code = bytecode_place(options)
    data = bytearray(options)
    if code is not None and code.size:
        for start, end, to in moves:
            if start <= code.offset < end:
                place = code.offset - start + to
                if place >= 1 << (8 * code.width):
                    raise OutputError(f"a DISPATCH_OP cannot store the new place of its bytecode, {place}")
                data[code.stored_at : code.stored_at + code.width] = place.to_bytes(code.width, "little")
    return bytes(data)


def _flexbuffer_numbers(data: memoryview) -> dict[bytes, tuple[int, int, int]]:
    """The integers of a flexbuffer's map: name -> value, place, width. Raises IndexError or struct.error.

    Format: https://flatbuffers.dev/internals/#flexbuffers. The last two bytes are the root's type and its width. A map
    is a vector of values followed by their types; before it stand the offset of its keys, their width, and its size.
    """

    def number(at: int, width: int) -> int:
        if width not in (1, 2, 4, 8) or at < 0 or at + width > len(data):
            raise IndexError
        return int.from_bytes(data[at : at + width], "little")

    root = len(data) - 2 - data[-1]
    type, width = data[-2] >> 2, 1 << (data[-2] & 3)
    if type != 9:
        raise IndexError
    start = root - number(root, data[-1])
    size = number(start - width, width)
    keys = start - 3 * width - number(start - 3 * width, width)
    key_width = number(start - 2 * width, width)
    if size > len(data):
        raise IndexError
    found = {}
    for i in range(size):
        at = keys + i * key_width
        name = bytes(data[max(at - number(at, key_width), 0) :][:32]).split(b"\0")[0]
        if data[start + size * width + i] >> 2 in (1, 2):
            found[name] = (number(start + i * width, width), start + i * width, width)
    return found
