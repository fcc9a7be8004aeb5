"""Makes a finished model keep to a memory budget, and writes its plan where a runtime follows it.

In this order, each only as far as the budget asks for it: another order of operators and shared bytes, which cost
nothing, then the first stages computed in tiles, which cost multiply-accumulates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from litefuse.arena.lifetimes import TFLM
from litefuse.arena.offline import Written, write_plan
from litefuse.arena.plan import Plan, plan
from litefuse.arena.tiling import Fitted, Tiled, fit
from litefuse.errors import BudgetError
from litefuse.schema.model import Model

RECORD_BYTES = 270
"""What TFLM keeps for an operator for good, beside the arena's head: measured on a 64-bit host with tiled convolutions
(nodes, tensors and parameters); about half of it on 32 bits."""


@dataclass
class Settled:
    """What :func:`settle` did.

    Attributes:
        model: the model to write.
        peak_before: bytes of TFLM's head in the order that the model came in, as TFLM plans it.
        peak: bytes of TFLM's head now.
        records: bytes that TFLM keeps for the operators that tiling added, about (:data:`RECORD_BYTES`).
        budget: bytes that the head may take; None without a budget.
        tiled: what was cut into tiles, one after the other.
        reordered: whether operators changed places.
        written: what became of the plan in the file.
    """

    model: Model
    peak_before: int
    peak: int
    records: int
    budget: int | None
    tiled: tuple[Tiled, ...]
    reordered: bool
    written: Written


def settle(
    model: Model,
    *,
    budget: int | None,
    seconds: float = 10.0,
    progress: Callable[[str], None] | None = None,
) -> Settled:
    """Fits a model into a budget by the rules of TFLM, and attaches the plan.

    Args:
        model: the model; it is not changed.
        budget: bytes of the arena's head, where the intermediates are; None takes what is least without tiles.
        seconds: time limit of each search.
        progress: called with a few words for each way that is tried.

    Raises:
        BudgetError: nothing fits. It says how near the nearest comes, and what stands in the way.
    """
    planned: dict[int, tuple[Model, Plan, Written]] = {}

    def peak(candidate: Model) -> int:
        found = plan(candidate, runtime=TFLM, seconds=min(seconds, 0.5) if planned else seconds)
        written = write_plan(candidate, found)
        planned[id(candidate)] = candidate, found, written  # the model is kept, so that its id stays its own
        return _head(written)

    tiled: tuple[Tiled, ...] = ()
    chosen = model
    if budget is None:
        peak(model)
    else:
        fitted = fit(model, budget, peak=peak, progress=progress)
        if not fitted.fits:
            raise BudgetError(_misfit(fitted))
        chosen, tiled = fitted.model, fitted.tiled
    _, found, written = planned[id(chosen)]
    more = RECORD_BYTES * (len(chosen.subgraphs[0].operators) - len(model.subgraphs[0].operators))
    before = planned[id(model)][2].base_bytes
    parts = [part for arena in found.arenas for part in arena.subgraphs]
    moved = written.kept == "plan" and any(part.reordered for part in parts)
    return Settled(written.model, before, _head(written), more, budget, tiled, moved, written)


def _misfit(fitted: Fitted) -> str:
    how = "as it is"
    if fitted.tiled:
        share = fitted.extra_macs / max(fitted.tiled[0].macs_before, 1)
        how = f"{'; '.join(t.description for t in fitted.tiled)}, {share:+.1%} multiply-accumulates"
    return (
        f"no tiling fits into {fitted.budget:,} bytes; the nearest takes {fitted.peak:,} ({how}; "
        f"{fitted.peak_before:,} before): "
        f"{fitted.obstacle or 'of the stages and grids that were tried, none takes less'}"
    )


def _head(written: Written) -> int:
    return written.planned_bytes if written.kept == "plan" else written.base_bytes
