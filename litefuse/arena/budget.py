"""Makes a finished model keep to a memory budget, and writes its plan where a runtime follows it.

In this order, each only as far as the budget asks for it: another order of operators and shared bytes, which cost
nothing, then the first stages computed in tiles, which cost multiply-accumulates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from litefuse.arena.lifetimes import TFLM
from litefuse.arena.offline import Written, write_plan
from litefuse.arena.plan import Plan, plan, reordered
from litefuse.arena.tflm import unsupported
from litefuse.arena.tiling import Tiled, fit
from litefuse.errors import BudgetError
from litefuse.schema.model import Model


@dataclass
class Settled:
    """What :func:`settle` did.

    Attributes:
        model: the model to write.
        peak_before: bytes that the arena would have taken in the order that the model came in, as TFLM plans it.
        peak: bytes that it takes now.
        budget: bytes that it may take; None without a budget.
        tiled: what was cut into tiles, one after the other.
        reordered: whether operators changed places.
        written: what became of the plan in the file; None when the file is not for TFLM.
    """

    model: Model
    peak_before: int
    peak: int
    budget: int | None
    tiled: tuple[Tiled, ...]
    reordered: bool
    written: Written | None


def settle(
    model: Model,
    *,
    target: str | None,
    budget: int | None,
    seconds: float = 10.0,
    progress: Callable[[str], None] | None = None,
) -> Settled:
    """Fits a model into a budget by the rules of TFLM, and for TFLM attaches the plan.

    Args:
        model: the model; it is not changed.
        target: ``tflm``, or None for a file that any runtime may run: all that is left of the plan is then the order.
        budget: bytes of the arena's head, which is all but persistent data; None takes what is least.
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
        return written.planned_bytes if written.kept == "plan" else written.base_bytes

    tiled: tuple[Tiled, ...] = ()
    if budget is None:
        peak(model)
        chosen = model
    else:
        fitted = fit(model, budget, peak=peak, progress=progress)
        if not fitted.fits:
            raise BudgetError(fitted.reason)
        chosen, tiled = fitted.model, fitted.tiled or ()
    _, found, written = planned[id(chosen)]
    before = planned[id(model)][2].base_bytes
    if target is not None:
        return Settled(written.model, before, _head(written), budget, tiled, _moved(found, written), written)
    result = reordered(chosen, found) if written.kept == "plan" else chosen
    return Settled(result, before, _head(written), budget, tiled, _moved(found, written), None)


def _head(written: Written) -> int:
    return written.planned_bytes if written.kept == "plan" else written.base_bytes


def _moved(found: Plan, written: Written) -> bool:
    parts = [part for arena in found.arenas for part in arena.subgraphs]
    return written.kept == "plan" and any(part.reordered for part in parts)


def lacking(model: Model, target: str | None) -> list[str]:
    """What a target cannot run of a model, one line each; nothing without a target."""
    return [] if target is None else unsupported(model)
