"""How far long work is: what functions tell their `progress` argument, and how a terminal shows it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Step(str):
    """A few words on what is being done and, where that is known, how much of the whole is done.

    It is a string, for those who only want to print or keep the words.

    Attributes:
        share: from 0 to 1, or None.
    """

    share: float | None

    def __new__(cls, text: str, share: float | None = None) -> Step:
        """Takes the words, and the share that is done."""
        made = super().__new__(cls, text)
        made.share = None if share is None else min(max(share, 0.0), 1.0)
        return made


@contextmanager
def shown(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A function that shows steps in one line of the terminal at standard error; no words clear the line.

    It shows nothing where there is no terminal, where the terminal cannot clear a line, or when ``quiet``.
    """
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda text: None
        return
    from litefuse.report.terminal import step_line  # only now, since it takes a while to import

    def say(text: str) -> None:
        sys.stderr.write("\r\x1b[K" + (step_line(text, getattr(text, "share", None), _columns()) if text else ""))
        sys.stderr.flush()

    try:
        yield say
    finally:
        say("")


def _columns() -> int:
    """The columns that a line may have without the terminal going on to the next one."""
    try:
        return (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
    except (OSError, ValueError):
        return 79
