"""A picture of an arena: every tensor a rectangle over time and address. Needs matplotlib, the `report` extra."""

from __future__ import annotations

import os
from pathlib import Path

from litefuse.arena.plan import ArenaPlan
from litefuse.errors import LitefuseError, OutputError, UsageError
from litefuse.graph import Graph
from litefuse.schema.model import Model

_ENDINGS = (".png", ".svg", ".pdf")
# Colour by what a tensor is: none is so dark that black text on it could not be read.
_INPUT, _OUTPUT, _INNER, _SHARED, _SCRATCH = "#f2b134", "#78b26a", "#8fb8de", "#c9a6d8", "#cfcfcf"
# Characters of a label that fit across the whole picture, and up.
_WIDE, _HIGH = 160, 95
_LEGEND = {
    "input": _INPUT,
    "output": _OUTPUT,
    "intermediate": _INNER,
    "shares its bytes": _SHARED,
    "scratch of a kernel": _SCRATCH,
}


def arena_picture(model: Model, arena: ArenaPlan, path: str | os.PathLike[str]) -> None:
    """Draws an arena: time from left to right in operators, addresses upwards in bytes.

    Args:
        model: the model that was planned.
        arena: the arena.
        path: `.png`, `.svg` or `.pdf`.

    Raises:
        UsageError: the ending is another.
        LitefuseError: matplotlib is not installed.
        OutputError: the file cannot be written.
    """
    if Path(path).suffix.lower() not in _ENDINGS:
        raise UsageError(f"{os.fspath(path)}: pictures are written as {', '.join(_ENDINGS)}")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch, Rectangle
    except ImportError:
        raise LitefuseError("pictures need matplotlib: `pip install litefuse[report]`") from None
    figure = Figure(figsize=(12, 6.5), layout="constrained")
    axes = figure.add_subplot()
    graphs = {part.index: Graph(model, part.index) for part in arena.subgraphs}
    offsets = arena.offsets | arena.scratch
    end = max((block.last for block in arena.blocks), default=1)
    for block in arena.blocks:
        for member in sorted(block.members, key=lambda m: -m.bytes):
            subgraph = model.subgraphs[member.key[0]]
            colour = _INNER if len(block.members) == 1 else _SHARED
            if member.key[1] < 0:
                colour = _SCRATCH
            elif member.key[0] == arena.subgraphs[0].index:
                colour = _INPUT if member.key[1] in subgraph.inputs else colour
                colour = _OUTPUT if member.key[1] in subgraph.outputs else colour
            bottom, width = offsets[member.key], member.last - member.first
            corner = member.first, bottom
            axes.add_patch(Rectangle(corner, width, member.bytes, facecolor=colour, edgecolor="black", linewidth=0.6))
            across, up = width / end * _WIDE, member.bytes / max(arena.peak, 1) * _HIGH
            name = _label(graphs[member.key[0]], member.key[1])
            turned = len(name) > across and up > across
            if len(name) <= max(across, up) and min(across, up) > 2:
                centre = member.first + width / 2, bottom + member.bytes / 2
                angle = 90 if turned else 0
                axes.text(*centre, name, ha="center", va="center", fontsize=7, rotation=angle, clip_on=True)
    axes.axhline(arena.peak, color="black", linewidth=1)
    axes.axhline(arena.order_bound, color="crimson", linewidth=1, linestyle="--")
    words = f"peak {arena.peak:,} bytes" + (", proved to be the least" if arena.optimal else "")
    dashed = "no order takes less than" if arena.searched else "this order takes no less than"
    axes.set_title(f"{words}   (dashed: {dashed} {arena.order_bound:,})", fontsize=10)
    axes.set(
        xlim=(0, end), ylim=(0, max(arena.peak, 1) * 1.06), xlabel="operators in the order of the plan", ylabel="bytes"
    )
    axes.legend(
        handles=[Patch(facecolor=c, edgecolor="black", label=n) for n, c in _LEGEND.items()], fontsize=8, ncols=5
    )
    try:
        with rc_context({"svg.hashsalt": "litefuse"}):  # or else names in the file are random
            figure.savefig(path, dpi=120, metadata=_without_date(path))
    except OSError as error:
        raise OutputError(f"{os.fspath(path)}: {error.strerror or error}") from error


def _without_date(path: str | os.PathLike[str]) -> dict[str, None]:
    """So that the same plan gives the same file."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(Path(path).suffix.lower(), {})


def _label(graph: Graph, tensor: int) -> str:
    """The operator that computes a tensor, or the name of an input, without its path."""
    if tensor < 0:
        return "scratch"
    maker = graph.producer(tensor)
    if maker is None:
        return graph.name(tensor).split("/")[-1]
    where = graph.where(maker)
    return f"{where.kind} #{where.operator}"
