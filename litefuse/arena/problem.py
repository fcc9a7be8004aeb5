"""The packing problem: buffers with known lifetimes and sizes, and minimalloc's CSV format for it."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from typing import NamedTuple

from litefuse.errors import LitefuseError
from litefuse.schema.model import replacing


class ProblemError(LitefuseError):
    """A packing problem that cannot be read, or that makes no sense; exit code 3."""

    exit_code = 3


class Buffer(NamedTuple):
    """A piece of memory that is needed for some time.

    Attributes:
        id: its name, unique in the problem.
        lower: the first time at which it lives.
        upper: the first time at which it no longer lives; above ``lower``.
        size: bytes; 0 is allowed.
    """

    id: str
    lower: int
    upper: int
    size: int


@dataclass(frozen=True)
class Problem:
    """Buffers that are to share one arena; those which live at the same time must not overlap.

    Raises ProblemError for a lifetime that is empty, a negative size, or two buffers with one id.
    """

    buffers: list[Buffer]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for buffer in self.buffers:
            if buffer.lower >= buffer.upper:
                raise ProblemError(
                    f"buffer {buffer.id}: it lives from {buffer.lower} until before {buffer.upper}, which is never"
                )
            if buffer.size < 0:
                raise ProblemError(f"buffer {buffer.id}: its size is {buffer.size}")
            if buffer.id in seen:
                raise ProblemError(f"buffer {buffer.id} is there twice")
            seen.add(buffer.id)

    def lower_bound(self, alignment: int = 1) -> int:
        """The most bytes that are live at one time, sizes rounded up to ``alignment``: no arena can be smaller."""
        return max(self.loads(alignment), default=0)

    def loads(self, alignment: int = 1) -> list[int]:
        """The live bytes after each moment at which a buffer starts or ends to live, in the order of time."""
        changes: dict[int, int] = {}
        for buffer in self.buffers:
            size = aligned(buffer.size, alignment)
            changes[buffer.lower] = changes.get(buffer.lower, 0) + size
            changes[buffer.upper] = changes.get(buffer.upper, 0) - size
        loads, live = [], 0
        for time in sorted(changes):
            live += changes[time]
            loads.append(live)
        return loads


def aligned(size: int, alignment: int) -> int:
    """The size rounded up to a multiple of the alignment, both in bytes."""
    return -(-size // alignment) * alignment


_DIGITS = 1000  # Python prints no numbers of more than 4300
_REQUIRED = ("id", "lower", "upper", "size")
# What other tools write beside it. Gaps are times at which others may use a buffer's memory: not to use them is safe.
_IGNORED = ("hint", "offset", "gaps")


def read_csv(path: str | os.PathLike[str]) -> Problem:
    """Reads a problem in minimalloc's format: a header with id, lower, upper and size, and a line for each buffer.

    The columns ``hint``, ``offset`` and ``gaps`` are ignored; ``alignment`` may be there if it is 1 (or empty)
    everywhere, as the alignment is a matter of the whole arena here. Raises ProblemError with file and line.
    """
    buffers: list[Buffer] = []
    lines: dict[str, int] = {}
    line = 0
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            column = _columns(header, path)
            for row in reader:
                line = reader.line_num
                if not row:
                    continue
                if len(row) != len(header):
                    raise ProblemError(f"{path}, line {line}: {len(row)} fields, but the header names {len(header)}")
                if "alignment" in column and row[column["alignment"]].strip() not in ("", "1"):
                    raise ProblemError(
                        f"{path}, line {line}: an alignment of its own; give the alignment of the whole arena instead"
                    )
                buffer = Buffer(row[column["id"]].strip(), *(_integer(row[column[c]], c) for c in _REQUIRED[1:]))
                if buffer.id in lines:
                    raise ProblemError(f"{path}, line {line}: buffer {buffer.id} is in line {lines[buffer.id]} already")
                lines[buffer.id] = line
                buffers.append(buffer)
                Problem([buffer])  # so that the error names the line
    except OSError as error:
        raise ProblemError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path}: this is no text file in UTF-8") from error
    except csv.Error as error:
        raise ProblemError(f"{path}, line {line + 1}: {error}") from error
    except ValueError as error:
        raise ProblemError(f"{path}, line {line}: {error}") from error
    except ProblemError as error:
        if str(error).startswith(str(path)):
            raise
        raise ProblemError(f"{path}, line {line}: {error}") from error
    return Problem(buffers)


def _columns(header: list[str], path: str | os.PathLike[str]) -> dict[str, int]:
    column = {name: i for i, name in enumerate(header)}
    missing = [name for name in _REQUIRED if name not in column]
    unknown = [name for name in header if name not in (*_REQUIRED, *_IGNORED, "alignment")]
    if missing or unknown or len(column) != len(header):
        raise ProblemError(
            f"{path}, line 1: the header must be {','.join(_REQUIRED)} "
            f"(and may have {', '.join(_IGNORED)}, alignment), not {','.join(header)[:80]!r}"
        )
    return column


def _integer(text: str, name: str) -> int:
    try:
        value = int(text) if len(text) <= _DIGITS else None
    except ValueError:
        raise ValueError(f"{name} is {text[:40]!r}, which is no integer") from None
    if value is None:
        raise ValueError(f"{name} is {text[:40]!r}... of {len(text)} characters, which is too long for a number")
    return value


def write_csv(problem: Problem, path: str | os.PathLike[str], offsets: dict[str, int] | None = None) -> None:
    """Writes a problem in minimalloc's format, with a column of offsets in bytes if they are given.

    A file that is there already, the problem itself perhaps, is replaced only once all is written. Raises OutputError
    if the file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_REQUIRED, "offset"] if offsets is not None else _REQUIRED)
    for buffer in problem.buffers:
        writer.writerow([*buffer, offsets[buffer.id]] if offsets is not None else buffer)
    with replacing(path) as file:
        file.write(text.getvalue().encode())
