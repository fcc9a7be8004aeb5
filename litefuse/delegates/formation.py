"""The last stage of a conversion: forms the regions of a model and packages them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from litefuse.delegates.cost import CostModel, within_budget
from litefuse.delegates.package import Packaged, entangled, is_packaged, package
from litefuse.delegates.partition import partition
from litefuse.delegates.regions import Region
from litefuse.delegates.targets import Target
from litefuse.errors import LitefuseError
from litefuse.fusions.pipeline import Candidate, decompositions
from litefuse.graph import Graph
from litefuse.graph.graph import Location
from litefuse.schema.model import Model


@dataclass(frozen=True)
class Formed:
    """A region with where its root stood in the file."""

    region: Region
    location: Location


@dataclass
class Formation:
    """The regions of a model, in the order of subgraphs and operators."""

    target: Target
    mode: str
    regions: list[Formed] = field(default_factory=list)
    refused: list[Candidate] = field(default_factory=list)
    """Where there could be a region and is none, with the reason."""
    operators: int = 0
    """Operators of the subgraphs in which regions were looked for."""
    stock_us: float = 0.0
    """What the model takes in the stock runtime, by the cost model, in microseconds; each subgraph counted once."""
    packaged: Packaged = field(default_factory=lambda: Packaged(0, 0, []))

    @property
    def covered(self) -> int:
        """Operators that are in regions."""
        return len({id(op) for formed in self.regions for op in formed.region.operators})

    @property
    def gain_us(self) -> float:
        """What the regions save, by the cost model."""
        return sum(formed.region.cost.gain_us for formed in self.regions)

    def kinds(self) -> dict[str, int]:
        """How many regions there are of each kind."""
        counts: dict[str, int] = {}
        for formed in self.regions:
            counts[formed.region.kind] = counts.get(formed.region.kind, 0) + 1
        return counts


def form(
    model: Model,
    target: Target,
    mode: str = "composite",
    *,
    disable: Iterable[str] = (),
    keep: Iterable[str] = (),
    cost_model: CostModel | None = None,
    winograd: bool = True,
) -> Formation:
    """Forms regions where the cost model of the target says that they pay, and packages them, in place.

    Args:
        model: a model that the rules are done with. Decompositions of composites are left alone.
        target: the hardware profile.
        mode: how to package, see :mod:`litefuse.delegates.package`.
        disable: kinds of regions that are not wanted.
        keep: names of tensors that must stay as they are, with the operators that compute them.
        cost_model: where the figures come from; the model of the target when None.
        winograd: whether the delegate may use Winograd's algorithm in them, whose error is larger.

    Raises:
        UsageError: there is no such mode or kind of region.
        LitefuseError: the model is packaged already.
    """
    if is_packaged(model):
        raise LitefuseError(
            "the model holds regions already; `litefuse unfuse` gives the operators back, which can be packaged anew"
        )
    result = Formation(target, mode)
    left_alone = decompositions(model)
    found: dict[int, list[Region]] = {}
    places: dict[int, Location] = {}
    keep = frozenset(keep)
    for index, subgraph in enumerate(model.subgraphs):
        if index in left_alone:
            continue
        graph = Graph(model, index, keep)
        here = keep & {tensor.name for tensor in graph.tensors if tensor.name is not None}
        parts = partition(graph, target, disable=disable, keep=here, model=cost_model)
        result.operators += len(subgraph.operators)
        result.stock_us += parts.stock_us
        result.refused += parts.refused
        places.update({id(region): graph.where(region.root) for region in parts.regions})
        tied = entangled(model, index, parts.regions)
        found[index] = [region for region in parts.regions if not any(region is t for t in tied)]
        why = "state is written and read again between its operators, or those of its neighbours"
        result.refused += [Candidate(r.kind, places[id(r)], False, why) for r in parts.regions if r not in found[index]]
    everything = [region for regions in found.values() for region in regions]
    if mode == "composite":
        kept, dropped = within_budget(everything, result.stock_us)
        result.refused += [Candidate(region.kind, places[id(region)], False, why) for region, why in dropped]
        stays = {id(region) for region in kept}
        found = {index: [r for r in regions if id(r) in stays] for index, regions in found.items()}
    result.regions = [Formed(r, places[id(r)]) for regions in found.values() for r in regions]
    result.packaged = package(model, found, mode, target.name, winograd=winograd)
    return result
