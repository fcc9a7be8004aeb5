"""A subgraph as a graph: who makes a tensor, who reads it, what it must look like, and how to change it safely."""

from litefuse.graph.graph import Graph, Location, OperatorKind
from litefuse.graph.pattern import Match, Node, Value, match

__all__ = ["Graph", "Location", "Match", "Node", "OperatorKind", "Value", "match"]
