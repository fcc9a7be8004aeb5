"""The rewrites of the graph. One rule family per module; :data:`RULES` is the registry and the order of application."""

from litefuse.fusions.pipeline import Candidate, FusionReport, run, select
from litefuse.fusions.rule import Applied, Numerics, PatternRule, Refused, Rule

RULES: tuple[Rule, ...] = ()

__all__ = [
    "RULES",
    "Applied",
    "Candidate",
    "FusionReport",
    "Numerics",
    "PatternRule",
    "Refused",
    "Rule",
    "run",
    "select",
]
