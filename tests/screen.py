"""Runs the command line as a person would: in a terminal of a given size, or with its output in pipes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.cells import cell_len

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 300.0
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")


class Shown(NamedTuple):
    """What a command wrote, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Standard output as a person sees it, line by line."""
        return plain(self.out).split("\n")

    def too_wide(self, columns: int = 80) -> list[str]:
        return [line for line in self.lines if cell_len(line) > columns]


def plain(text: str) -> str:
    """The text without what steers the terminal."""
    return _SEQUENCE.sub("", text).replace("\r\n", "\n")


def in_terminal(
    *arguments: object, columns: int = 80, out: bool = True, err: bool = True, env: Mapping[str, str] | None = None
) -> Shown:
    """Runs `litefuse` where standard output, standard error or both are terminals of their own."""
    return _run([str(a) for a in arguments], columns, out, err, env)


def in_pipes(*arguments: object, env: Mapping[str, str] | None = None) -> Shown:
    """Runs `litefuse` where neither is."""
    return _run([str(a) for a in arguments], 80, False, False, env)


def _run(arguments: Sequence[str], columns: int, out: bool, err: bool, env: Mapping[str, str] | None) -> Shown:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")}
    environment = kept | {"TERM": "xterm-256color", "PYTHONUTF8": "1"} | dict(env or {})
    ends = [_terminal(columns) if wanted else os.pipe() for wanted in (out, err)]
    process = subprocess.Popen(
        [sys.executable, "-m", "litefuse.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=ends[0][1],
        stderr=ends[1][1],
        cwd=ROOT,
        env=environment,
    )
    for _, theirs in ends:
        os.close(theirs)
    said = _read_all([ours for ours, _ in ends])
    return Shown(process.wait(PATIENCE), *(data.decode("utf-8", "replace") for data in said))


def _terminal(columns: int) -> tuple[int, int]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return ours, theirs


def _read_all(files: Sequence[int]) -> list[bytes]:
    """What comes from each of the files until their other ends are closed."""
    found = dict.fromkeys(files, b"")
    end = time.monotonic() + PATIENCE
    open_ = list(files)
    while open_:
        ready, _, _ = select.select(open_, [], [], max(0, end - time.monotonic()))
        assert ready, "the command does not end"
        for f in ready:
            try:
                data = os.read(f, 1 << 16)
            except OSError:  # a terminal whose other side is closed
                data = b""
            found[f] += data
            if not data:
                open_.remove(f)
                os.close(f)
    return [found[f] for f in files]
