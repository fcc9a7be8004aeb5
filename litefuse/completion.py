"""Completion of words on the command line, for the shells that click knows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

SHELLS = ("bash", "zsh", "fish")

_Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def script(command: click.Command, shell: str) -> str:
    """What makes a shell complete the words of a command, to be read by that shell.

    Args:
        command: the command, which is called by its own name.
        shell: one of :data:`SHELLS`.
    """
    name = command.name or ""
    made = get_completion_class(shell)
    assert made is not None, shell
    return made(command, {}, name, f"_{name.upper()}_COMPLETE").source()


class ModelFile(click.Path):
    """The path of an input. Those are offered whose names end in one of ``suffixes``, and directories."""

    def __init__(self, *suffixes: str) -> None:
        super().__init__(path_type=Path)
        self.suffixes = suffixes or (".tflite",)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """What the word that was begun can become."""
        head, begun = os.path.split(incomplete)
        typed = incomplete[: len(incomplete) - len(begun)]
        files, directories = [], []
        try:
            for entry in os.scandir(os.path.expanduser(head) or "."):
                if not entry.name.startswith(begun) or (entry.name.startswith(".") and not begun):
                    continue
                if entry.is_dir():
                    directories.append(f"{typed}{entry.name}/")
                elif entry.name.lower().endswith(self.suffixes):
                    files.append(typed + entry.name)
        except OSError:
            return []
        if files:
            return [CompletionItem(name) for name in sorted([*files, *directories])]
        # The shell itself goes on into directories, and does not take one for the end of a word.
        return [CompletionItem(incomplete, type="dir" if directories else "file")]


def rule_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The rules."""
    from litefuse.fusions import rules

    return _begin(incomplete, (rule.name for rule in rules()))


def region_kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The kinds of regions."""
    from litefuse.delegates.naming import KINDS

    return _begin(incomplete, KINDS)


def target_names(*more: str) -> _Complete:
    """What completes the name of a target, or the file of one: the built-in and the saved ones, and ``more``."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from litefuse.delegates.calibrate import profile
        from litefuse.delegates.targets import targets

        names = [*(t.name for t in targets()), *(p.target.name for p in profile.saved()[0]), *more]
        return _begin(incomplete, names) or ModelFile(".json").shell_complete(ctx, param, incomplete)

    return complete


def _begin(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]
