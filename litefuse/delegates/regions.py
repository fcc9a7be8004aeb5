"""What partitioning gives: regions, and the candidates that are none with the reasons."""

from __future__ import annotations

from dataclasses import dataclass, field

from litefuse.delegates.cost import Cost
from litefuse.delegates.targets import Target
from litefuse.fusions.pipeline import Candidate
from litefuse.schema.tables import Operator


@dataclass
class Region:
    """A convex set of operators that becomes one node.

    Collapsing all regions of a partition at once leaves a graph without cycles.
    """

    kind: str
    """One of :data:`litefuse.delegates.naming.KINDS`."""
    operators: list[Operator]
    """In execution order, with those fed by constants alone that the others need."""
    root: Operator
    prologue: list[Operator]
    """What is computed on the way into the root, and on the way of other operands into the epilogue."""
    epilogue: list[Operator]
    """What is computed on the way out of the root; in merged regions also the roots behind the first one."""
    inputs: list[int]
    """Tensors that are not constant and come from outside, in order of first use."""
    outputs: list[int]
    """Tensors that others read, or that leave the graph."""
    cost: Cost
    copies: list[Operator] = field(default_factory=list)
    """Those of `operators` that others need too, so that they stay where they are or are in other regions as well:
    what is fed by constants alone, and what is recomputed because that is cheaper than to store it."""


@dataclass
class Partition:
    """The regions of one subgraph, in execution order of their first operators."""

    target: Target
    regions: list[Region] = field(default_factory=list)
    refused: list[Candidate] = field(default_factory=list)
    """Where there is no region although there could be one: its kind, or the operator's name in lower case, and why."""
    stock_us: float = 0.0
    """What the whole subgraph takes in the stock runtime, by the cost model."""

    @property
    def gain_us(self) -> float:
        """What all regions save."""
        return sum(region.cost.gain_us for region in self.regions)
