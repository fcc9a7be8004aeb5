"""The exact search for packings, which is written in C++ (delegate_src/arena). Use litefuse.arena.packing."""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Sequence
from typing import Any, Literal

from litefuse.errors import RuntimeMissingError
from litefuse.native import find

_TEXT = 512
_ANSWERS: dict[int, Literal["found", "infeasible", "limit"]] = {0: "found", 1: "infeasible", 2: "limit", 3: "limit"}


def _load() -> Any:
    path = find("arena", "litefuse_arena")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise RuntimeMissingError(
            f"litefuse's library for planning memory cannot be loaded: {error}; install litefuse again, which builds it"
        ) from None
    handle, text = ctypes.c_void_p, ctypes.c_char_p
    rows = ctypes.POINTER(ctypes.c_int64)
    for name, result, arguments in (
        ("create", handle, [rows, ctypes.c_int64, ctypes.c_int64, text, ctypes.c_size_t]),
        ("destroy", None, [handle]),
        ("run", ctypes.c_int, [handle, ctypes.c_int64, ctypes.c_double, text, ctypes.c_size_t]),
        ("stop", None, [handle]),
        ("offsets", ctypes.c_int64, [handle, rows]),
        ("nodes", ctypes.c_int64, [handle]),
        ("max_buffers", ctypes.c_int64, []),
        ("max_total_size", ctypes.c_int64, []),
    ):
        function = getattr(library, f"litefuse_packer_{name}")
        function.restype, function.argtypes = result, arguments
    return library


_LIBRARY = _load()
MAX_BUFFERS: int = _LIBRARY.litefuse_packer_max_buffers()
"""The most buffers that the search takes."""
MAX_TOTAL_SIZE: int = _LIBRARY.litefuse_packer_max_total_size()
"""The largest sum of sizes that it takes."""


class Packer:
    """One search. Threads may share it, but only one runs it at a time.

    Args:
        buffers: (lower, upper, size) of each.
        capacity: in the unit of the sizes.

    Raises:
        ValueError: a lifetime is empty, a size negative, there are more than :data:`MAX_BUFFERS` buffers, or the sum of
            sizes is larger than :data:`MAX_TOTAL_SIZE`.
        TypeError: a number does not fit into 64 bits, or a buffer has not three of them.
    """

    def __init__(self, buffers: Sequence[tuple[int, int, int]], capacity: int) -> None:
        self._handle: int | None = None
        self._running = threading.Lock()
        self._count = len(buffers)
        try:
            flat = array("q", [number for lower, upper, size in buffers for number in (lower, upper, size)])
            limit = array("q", [capacity])[0]
        except (ValueError, OverflowError) as error:
            raise TypeError(f"buffers are three numbers of 64 bits each: {error}") from None
        text = ctypes.create_string_buffer(_TEXT)
        rows = (ctypes.c_int64 * len(flat)).from_buffer(flat) if flat else (ctypes.c_int64 * 1)()
        self._handle = _LIBRARY.litefuse_packer_create(rows, self._count, limit, text, _TEXT)
        if self._handle is None:
            raise ValueError(text.value.decode())

    def __del__(self) -> None:
        if self._handle is not None:
            _LIBRARY.litefuse_packer_destroy(self._handle)
            self._handle = None

    def run(self, nodes: int, seconds: float) -> Literal["found", "infeasible", "limit"]:
        """Searches for at most so many decisions and seconds; can be called again to go on.

        Returns "found", "infeasible" (proved) or "limit". An interrupt (KeyboardInterrupt) ends it.

        Raises RuntimeError while another thread runs it.
        """
        self._take()
        try:
            outcome: list[int] = []
            text = ctypes.create_string_buffer(_TEXT)

            def search() -> None:
                outcome.append(_LIBRARY.litefuse_packer_run(self._handle, nodes, seconds, text, _TEXT))

            # In a thread of its own, so that this one can hear of signals meanwhile.
            worker = threading.Thread(target=search)
            worker.start()
            try:
                worker.join()
            except BaseException:
                _LIBRARY.litefuse_packer_stop(self._handle)
                worker.join()
                raise
            if outcome[0] not in _ANSWERS:
                raise RuntimeError(text.value.decode())
            return _ANSWERS[outcome[0]]
        finally:
            self._running.release()

    @property
    def offsets(self) -> list[int]:
        """One offset for each buffer once :meth:`run` has returned "found"; empty before."""
        self._take()
        try:
            numbers = (ctypes.c_int64 * max(self._count, 1))()
            found = _LIBRARY.litefuse_packer_offsets(self._handle, numbers)
            return list(numbers[:found])
        finally:
            self._running.release()

    @property
    def nodes(self) -> int:
        """Decisions made so far."""
        self._take()
        try:
            return int(_LIBRARY.litefuse_packer_nodes(self._handle))
        finally:
            self._running.release()

    def _take(self) -> None:
        if not self._running.acquire(blocking=False):
            raise RuntimeError("the packer is running in another thread")
