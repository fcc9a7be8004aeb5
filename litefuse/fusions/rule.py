"""What a rule is: a shape to look for, a check that it is legal, and the rewrite.

A rule looks at one operator at a time (`kinds` says which are worth its while) and either applies, declines with a
reason, or has nothing to say. Its class docstring states the algebra; its `numerics` how exact that is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar

from litefuse.graph import Graph, Match, Node, OperatorKind, match
from litefuse.schema.model import Model
from litefuse.schema.tables import Operator


class Numerics(Enum):
    """How the results of a rewritten model relate to the original's (design: exactness classes)."""

    EXACT = "exact"
    """Bit-identical in the stock kernels."""
    REASSOCIATED = "reassociated"
    """The same in real numbers; float rounding differs."""
    QUANTIZED = "quantized"
    """At most one least significant bit of the quantised output."""
    REPAIR = "repair"
    """The original was numerically wrong for some inputs; this is not."""


class Refused(str):
    """A candidate that was not fused: the reason, in words that say what would unblock it."""

    __slots__ = ()


class Applied(str):
    """A candidate that was fused: what was done, in a few words (may be empty)."""

    __slots__ = ()


Outcome = Refused | Applied | None


class Rule(ABC):
    """Base of all rules. Subclass :class:`PatternRule` when a fixed pattern can say what to look for."""

    name: ClassVar[str]
    """The name by which the rule is listed, disabled and reported: lower case, words joined by hyphens."""
    numerics: ClassVar[Numerics]
    deviation: ClassVar[float] = 0.0
    """By how much the rule changes constants, relative to what they were, where that is more than rounding."""
    kinds: ClassVar[frozenset[OperatorKind]]
    """Operators at which the rule may apply; the pipeline does not call it for others."""
    example: ClassVar[str]
    """About the smallest graph to which the rule applies, as text (:mod:`litefuse.graph.text`)."""

    @abstractmethod
    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Rewrites the graph around ``op`` if the rule applies there.

        Returns Applied after a change, Refused when everything but one condition fits, None otherwise. A rule that
        does not return Applied must leave the graph as it was.
        """


class ModelRule(Rule):
    """A rule about the model as a whole, applied once after all others have come to an end."""

    kinds = frozenset()

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Has nothing to say about single operators."""
        return None

    @abstractmethod
    def finish(self, model: Model) -> Applied | None:
        """Changes the model and says what was done, or returns None when there was nothing to do."""


class PatternRule(Rule):
    """A rule whose candidates are the matches of a fixed pattern (or of any of several)."""

    patterns: ClassVar[tuple[Node, ...]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "patterns" in cls.__dict__ and "kinds" not in cls.__dict__:
            cls.kinds = frozenset(kind for pattern in cls.patterns for kind in pattern.kinds)

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Matches, checks, rewrites; a match that only its readers spoil is a refusal."""
        refusal: Refused | None = None
        for pattern in self.patterns:
            found = match(graph, op, pattern)
            if found is None:
                continue
            reason = self.check(found)
            if reason is not None and not reason:
                continue  # not a candidate after all
            if reason is None and found.refusal is None:
                return Applied(self.rewrite(found) or "")
            refusal = refusal or Refused(reason or found.refusal)
        return refusal

    @abstractmethod
    def check(self, found: Match) -> str | None:
        """None when the match may be rewritten; a reason when it is refused; "" when it is no candidate at all."""

    @abstractmethod
    def rewrite(self, found: Match) -> str | None:
        """Rewrites the match; may return a few words about what was done."""
