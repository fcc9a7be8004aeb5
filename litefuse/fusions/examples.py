"""The examples of the rules, before and after, as `litefuse rules` and `docs/rules.md` show them."""

from __future__ import annotations

import re
from typing import NamedTuple

from litefuse.fusions.pipeline import run
from litefuse.fusions.rule import Rule
from litefuse.graph.text import from_text, to_text

# Paddings and other constants that say what an operator does are printed up to this size; weights are larger.
_LIMIT = 8
_ABBREVIATED = re.compile(r"([^\s(]+)=\.\.\.[0-9a-f]{8}")


class Example(NamedTuple):
    """A rule's example as text; the two are equal where the rule changes only what the text leaves out.

    Attributes:
        before: reads back as the example itself; constants without a value are seeded random numbers.
        after: what the rule makes of it, without help from any other. Constants without a value are those of
            ``before``; of others with more than a few elements the value is ``...``. None where the rule needs the
            runtime to compute constants, and there is none.
    """

    before: str
    after: str | None


def example(rule: Rule) -> Example:
    """The example of a rule, which is run on it here and now."""
    model = from_text(rule.example)
    before = to_text(model, limit=_LIMIT)
    if not run(model, [rule]).applied:
        return Example(_ABBREVIATED.sub(r"\1", before).rstrip(), None)
    known = {found[0] for found in _ABBREVIATED.finditer(before)}
    after = _ABBREVIATED.sub(
        lambda found: found[1] + ("" if found[0] in known else "=..."), to_text(model, limit=_LIMIT)
    )
    return Example(_ABBREVIATED.sub(r"\1", before).rstrip(), after.rstrip())
