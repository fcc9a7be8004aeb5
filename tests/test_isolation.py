"""Calls in a child process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from litefuse.errors import CheckError
from litefuse.isolation import ChildFailure, in_child

MODULE = """
import os, sys, time
from litefuse.errors import CheckError

def double(x, say):
    say("began")
    say(x)
    return 2 * x

def fail(text, say):
    raise CheckError(text)

def print_much(say):
    print("x" * 100_000)
    print("y" * 100_000, file=sys.stderr)
    os.write(1, b"z" * 100_000)
    return os.getpid()

def crash(say):
    say("last words")
    os.abort()

def leave(say):
    sys.stderr.write("one line\\nanother line\\n")
    sys.stderr.flush()
    os._exit(7)

def hang(say):
    say("going to sleep")
    time.sleep(60)

def busy(say):
    for _ in range(5):
        time.sleep(0.3)
        say("still here")
    return "done"
"""


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "functions_of_children.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def call(name: str, *arguments: Any, **options: Any) -> Any:
    return in_child(f"functions_of_children:{name}", *arguments, **options)


def test_results_and_what_is_said() -> None:
    heard: list[Any] = []
    assert call("double", [1, 2], hear=heard.append) == [1, 2, 1, 2]
    assert heard == ["began", [1, 2]]
    assert call("double", b"x" * 1_000_000) == b"x" * 2_000_000


def test_errors_are_raised_here() -> None:
    with pytest.raises(CheckError, match="it is so") as caught:
        call("fail", "it is so")
    assert caught.value.exit_code == 4


def test_output_does_not_disturb() -> None:
    assert call("print_much") != os.getpid()


@pytest.mark.parametrize(
    ("name", "how", "last"),
    [("crash", r"crashed \(SIGABRT\)", "last words"), ("leave", r"ended with code 7 \(another line\)", None)],
)
def test_children_that_end(name: str, how: str, last: Any) -> None:
    with pytest.raises(ChildFailure, match=how) as caught:
        call(name)
    assert caught.value.last == last


def test_a_function_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="missing"):
        call("missing")


def test_children_that_hang() -> None:
    with pytest.raises(ChildFailure, match=r"gave no sign of life for 1 s") as caught:
        call("hang", timeout=1)
    assert caught.value.last in ("going to sleep", None)
    assert call("busy", timeout=2) == "done"
