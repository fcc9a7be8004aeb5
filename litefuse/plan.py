"""The way a memory plan goes: read, plan, prove, compare with the budget, place, write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from litefuse.arena.aliasing import ShareKind
from litefuse.arena.lifetimes import TFLM, runtime_named
from litefuse.arena.memories import Memory, Placement, place
from litefuse.arena.offline import Written, write_plan
from litefuse.arena.plan import ArenaPlan, Plan
from litefuse.arena.plan import plan as plan_model
from litefuse.arena.problem import Buffer, Problem, write_csv
from litefuse.arena.tflm import head_bytes, unsupported
from litefuse.errors import BudgetError, LitefuseError, OutputError, UsageError
from litefuse.schema import Model, read, write

Progress = Callable[[str], None]


@dataclass
class Planned:
    """What :func:`plan` did.

    Attributes:
        model: the model that was planned.
        plan: its plan.
        budget: bytes that it had to keep to, if any.
        placement: where its tensors lie in several memories, if there are several.
        written: what became of the plan in the file that was written, if one was.
        own_bytes: what TFLM takes when it plans for itself; None for other runtimes.
        unsupported: what TFLM cannot run of the model; nothing for other runtimes.
        outputs: the files that were written, by what they are: `model`, `csv`, `plot`.
        seconds: how long all of it took.
    """

    model: Model
    plan: Plan
    budget: int | None = None
    placement: Placement | None = None
    written: Written | None = None
    own_bytes: int | None = None
    unsupported: list[str] = field(default_factory=list)
    outputs: dict[str, Path] = field(default_factory=dict)
    seconds: float = 0.0


def plan(
    model: Model | str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    runtime: str = "tflm",
    alignment: int | None = None,
    reorder: bool = True,
    in_place: bool = True,
    overwrite_inputs: bool | None = None,
    budget: int | None = None,
    memories: Sequence[Memory] = (),
    csv: str | os.PathLike[str] | None = None,
    plot: str | os.PathLike[str] | None = None,
    seconds: float = 10.0,
    progress: Progress | None = None,
) -> Planned:
    """Plans the memory of a model's intermediates and proves the plan.

    Args:
        model: a model, or the path of one; it is not modified.
        output: where to write a copy of the model with its plan, for TFLM to follow; it may not be the input. The plan
            is written only if TFLM needs less memory with it than with its own.
        runtime: `tflm`, `tflite` or `delegate`.
        alignment: bytes; the runtime's own by default.
        reorder: whether operators may change places.
        in_place: whether tensors may share bytes.
        overwrite_inputs: whether an operator may write over an input of the model; by default under TFLM.
        budget: bytes that the arena may take.
        memories: to distribute the tensors over (:func:`litefuse.arena.memories.place`); without any, there is one
            without limit.
        csv: where to write the packing problem of the main arena in minimalloc's format, with the offsets. The name of
            a buffer gives subgraph and index of the tensors in it; scratch of operator n has the index -n - 1.
        plot: where to draw the main arena; `.png`, `.svg` or `.pdf`.
        seconds: time limit of each search.
        progress: called with a few words whenever something begins.

    Raises:
        BudgetError: the plan needs more than the budget or the memories have.
        LitefuseError: the model cannot be read or planned, or a plan is proved wrong, which is a defect of litefuse.
        OutputError: a file cannot be written.
    """
    start = time.monotonic()
    say = progress or (lambda text: None)
    rules = runtime_named(runtime)
    if not 0 < seconds < float("inf"):
        raise UsageError(f"the time limit is a number of seconds above zero, not {seconds}")
    original = model if isinstance(model, Model) else read(model)
    if output is not None and rules is not TFLM:
        raise LitefuseError(f"only TFLM reads memory plans from a file; the {runtime} runtime makes its own")
    if output is not None:
        from litefuse.convert import refuse_to_write  # brings all rules along, which planning needs not

        refuse_to_write(original, output)
    _refuse_the_same(original, [path for path in (output, csv, plot) if path is not None])
    say("planning")
    found = plan_model(
        original,
        runtime=rules,
        alignment=alignment,
        reorder=reorder,
        in_place=in_place,
        overwrite_inputs=overwrite_inputs,
        seconds=seconds,
    )
    say("proving")
    faults = found.faults(original)
    if faults:
        raise LitefuseError(f"the plan is wrong and was not used, please report this file: {'; '.join(faults[:3])}")
    done = Planned(original, found, budget)
    if rules is TFLM:
        done.own_bytes, done.unsupported = head_bytes(original), unsupported(original)
    if budget is not None and found.peak > budget:
        raise BudgetError(_over_budget(found.arenas[0], budget))
    if memories and found.arenas:
        say("placing")
        arena = found.arenas[0]
        try:
            done.placement = place(
                _problem(arena), traffic(original, arena), memories, alignment=found.alignment, seconds=seconds
            )
        except BudgetError as error:
            raise BudgetError(f"{error}: {_at_peak(arena)}") from None
    if output is not None:
        say("writing")
        done.written = write_plan(original, found)
        write(done.written.model, output)
        done.outputs["model"] = Path(output)
    if csv is not None and found.arenas:
        _write_problem(found.arenas[0], csv)
        done.outputs["csv"] = Path(csv)
    if plot is not None and found.arenas:
        from litefuse.report.plot import arena_picture

        arena_picture(original, found.arenas[0], plot)
        done.outputs["plot"] = Path(plot)
    done.seconds = time.monotonic() - start
    return done


def _refuse_the_same(original: Model, outputs: Sequence[str | os.PathLike[str]]) -> None:
    """Raises OutputError if a file would be written over the model, or over another one."""
    places = [os.path.realpath(path) for path in outputs]
    for n, path in enumerate(outputs):
        if original.path is not None and places[n] == os.path.realpath(original.path):
            raise OutputError(f"{os.fspath(path)}: is the input itself; choose another output")
        if places[n] in places[:n]:
            raise OutputError(f"{os.fspath(path)}: two outputs would be written to this file; choose another name")


def _problem(arena: ArenaPlan) -> Problem:
    """The blocks of an arena as a packing problem; block n is buffer "n"."""
    return Problem([Buffer(str(n), b.first, b.last, b.size) for n, b in enumerate(arena.blocks)])


def _write_problem(arena: ArenaPlan, path: str | os.PathLike[str]) -> None:
    """The same as a file, with names that say which tensors a block holds, and the offsets."""
    addresses = arena.offsets | arena.scratch
    keys = ["+".join(f"{s}.{t}" for s, t in sorted(m.key for m in b.members)) for b in arena.blocks]
    # An operator may have several scratch buffers.
    names = [key if keys.index(key) == n else f"{key}#{n}" for n, key in enumerate(keys)]
    buffers = [Buffer(name, b.first, b.last, b.size) for name, b in zip(names, arena.blocks, strict=True)]
    offsets = {
        name: min(addresses[m.key] - m.offset for m in b.members) for name, b in zip(names, arena.blocks, strict=True)
    }
    write_csv(Problem(buffers), path, offsets)


def traffic(model: Model, arena: ArenaPlan) -> dict[str, int]:
    """The bytes that operators read and write in each block of an arena in one run, by the block's number.

    Operators whose output is a view of their input move nothing. An operator reads each of its inputs once and writes
    each of its outputs once, though kernels may well do so more often; the application writes the inputs of the model
    and reads its outputs.
    """
    moved = {part.index: {s.operator for s in part.shares if s.kind is ShareKind.VIEW} for part in arena.subgraphs}
    uses: dict[tuple[int, int], int] = {}
    for part in arena.subgraphs:
        subgraph = model.subgraphs[part.index]
        for position, op in enumerate(subgraph.operators):
            if position not in moved[part.index]:
                for tensor in (*op.inputs, *op.outputs):
                    uses[part.index, tensor] = uses.get((part.index, tensor), 0) + 1
        for tensor in (*subgraph.inputs, *subgraph.outputs):
            uses[part.index, tensor] = uses.get((part.index, tensor), 0) + 1
    return {
        str(n): sum(member.bytes * uses.get(member.key, 0) for member in block.members)
        for n, block in enumerate(arena.blocks)
    }


def _at_peak(arena: ArenaPlan) -> str:
    if not arena.peak_operators:
        return "no operator is at the peak"
    peak = arena.peak_operators[0]
    tensors = ", ".join(f"`{_brief(t.name)}` {t.bytes:,}" for t in peak.tensors[:4])
    return f"most is live at {peak.where} ({tensors})"


def _brief(name: str) -> str:
    """A name for a line of text: of those that converters join, the first."""
    first, *more = name.split(";")
    return first + ("..." if more else "")


def _over_budget(arena: ArenaPlan, budget: int) -> str:
    known = "which is proved to be the least" if arena.optimal else f"and at least {arena.order_bound:,} are needed"
    return (
        f"the budget is {budget:,} bytes; the smallest that is found to suffice is {arena.peak:,}, {known}: "
        f"{_at_peak(arena)}. `litefuse convert --arena-budget` computes the first stages in tiles to get below that"
    )
