"""A profile in full, as a document and in the terminal: every figure, where it is from, and the base's beside it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from litefuse.delegates.calibrate.profile import Profile, flat
from litefuse.delegates.targets import Target, targets
from litefuse.report.documents import Document, text
from litefuse.report.terminal import indented


def document(target: Target, profile: Profile | None = None) -> Document:
    """A target in full; without a profile it is a built-in one."""
    usual: dict[str, Any] = {}
    if profile is not None:
        usual = next((flat(t) for t in targets() if t.name == profile.base), {})
    return {
        "name": target.name,
        "description": text(target.description),
        "path": None if profile is None or profile.path is None else text(str(profile.path)),
        "cpu": None if profile is None else text(profile.cpu),
        "architecture": None if profile is None else text(profile.architecture),
        "date": None if profile is None else text(profile.date),
        "litefuse": None if profile is None else text(profile.litefuse),
        "runtime": None if profile is None else text(profile.runtime),
        "delegate": None if profile is None else text(profile.delegate),
        "base": None if profile is None else text(profile.base),
        "notes": [] if profile is None else [text(note) for note in profile.notes],
        "figures": [
            {
                "figure": figure,
                "value": _plain(value),
                "base": _plain(usual.get(figure)),
                "source": "built-in" if profile is None else profile.source(figure),
            }
            for figure, value in flat(target).items()
        ],
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def show(out: Console, document: Document) -> None:
    """Prints the document of a target in full."""
    out.print(Text(document["name"], "bold") + Text(f"  {document['description']}", "not bold"))
    measured = document["base"] is not None
    if measured:
        delegate = document["delegate"] or "no delegate"
        out.print(Text(f"{document['date']}, litefuse {document['litefuse']}, {document['runtime']}, {delegate}"))
        if document["path"]:
            out.print(Text(document["path"]))
    for note in document["notes"]:
        out.print(Text(f"note: {note}", "yellow"))
    out.print()
    grid = Table.grid(padding=(0, 2))
    for column in range(5):
        grid.add_column(justify="right" if column in (1, 2, 3) else "left", no_wrap=True)
    if measured:
        grid.add_row("figure", "value", document["base"], "ratio", "source")
    for row in document["figures"]:
        value, usual = row["value"], row["base"]
        cells = [row["figure"], _cell(value)]
        if measured:
            ratio = "" if not _is_number(value) or not _is_number(usual) or not usual else f"{value / usual:.2f}"
            cells += [_cell(usual), ratio, row["source"]]
        grid.add_row(*cells, style="dim" if row["source"] == "derived" else "")
    indented(out, grid, 0)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} types" if value else ""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    return str(value) if isinstance(value, int) else f"{value:.4g}"
