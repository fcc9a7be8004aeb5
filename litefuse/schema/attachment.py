"""What lies behind the flatbuffer in a file: usually the zip that TFLite Metadata appends.

A zip names places by their distance from the start of the file. When the model before it changes size, these numbers
must move with it, or `zipfile` and the Task Library's reader no longer find the entries.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from litefuse.errors import OutputError

_END = b"PK\x05\x06"
_ENTRY = b"PK\x01\x02"
_LOCAL = b"PK\x03\x04"
_UNSET = 0xFFFFFFFF


class Attachment(NamedTuple):
    """Bytes behind the flatbuffer and the place at which they were."""

    data: memoryview
    offset: int


class _Directory(NamedTuple):
    end_record: int
    start: int
    size: int
    entries: int
    base: int  # what must be added to the offsets in the directory to get positions in the data


def _directory(data: memoryview) -> _Directory | None:
    """The central directory of a zip at the end of ``data``, or None when it does not end in one."""
    window = bytes(data[-(1 << 16) - 22 :])
    at = window.rfind(_END)
    if at < 0 or len(window) - at < 22:
        return None
    end_record = len(data) - len(window) + at
    count, size, start = struct.unpack_from("<HII", data, end_record + 10)
    if _UNSET in (size, start) or size > end_record:
        return None
    # The directory ends where the end record begins, which tells from where its offsets count.
    return _Directory(end_record, end_record - size, size, count, end_record - size - start)


def zip_start(data: memoryview) -> int | None:
    """Where the zip at the end of a file begins, or None when the file does not end in one."""
    directory = _directory(data)
    if directory is None:
        return None
    starts = [directory.start]
    at = directory.start
    for _ in range(directory.entries):
        if bytes(data[at : at + 4]) != _ENTRY or at + 46 > directory.end_record:
            return None
        name, extra, comment = struct.unpack_from("<HHH", data, at + 28)
        local = struct.unpack_from("<I", data, at + 42)[0] + directory.base
        if not 0 <= local < directory.start or bytes(data[local : local + 4]) != _LOCAL:
            return None
        starts.append(local)
        at += 46 + name + extra + comment
    return min(starts)


def moved(attachment: Attachment, offset: int) -> bytearray | memoryview:
    """The attachment's bytes for a file in which it begins at ``offset``.

    Offsets that count from the start of the file are adjusted; a zip whose offsets count from its own start, and
    anything that is not a zip, is returned as it is. Raises OutputError when an offset no longer fits 32 bits.
    """
    delta = offset - attachment.offset
    directory = _directory(attachment.data)
    if directory is None or delta == 0 or directory.base != -attachment.offset:
        return attachment.data
    data = bytearray(attachment.data)
    places = [directory.end_record + 16]
    at = directory.start
    for _ in range(directory.entries):
        places.append(at + 42)
        name, extra, comment = struct.unpack_from("<HHH", data, at + 28)
        at += 46 + name + extra + comment
    for place in places:
        value = struct.unpack_from("<I", data, place)[0] + delta
        if not 0 <= value < _UNSET:
            raise OutputError(
                "the zip appended to the model would begin beyond 4 GB, where its offsets do not reach; "
                "remove the appended metadata first"
            )
        struct.pack_into("<I", data, place, value)
    return data
