"""Shape and type inference: what is known of a graph's tensors before it runs.

One module per operator family holds the rules, written after what each stock kernel does when it prepares;
:mod:`litefuse.graph.infer.site` says what a rule is. Results are those of the kernels, not of the file's
declarations, which need not be right for intermediates.
"""

from litefuse.graph.infer import control, elementwise, movement, recurrent, reduction, window  # noqa: F401 (the rules)
from litefuse.graph.infer.propagate import infer_operator, infer_subgraph, propagate
from litefuse.graph.infer.site import RULES, UNKNOWN, Facts, ShapeError, Site, TensorSpec

__all__ = [
    "RULES",
    "UNKNOWN",
    "Facts",
    "ShapeError",
    "Site",
    "TensorSpec",
    "infer_operator",
    "infer_subgraph",
    "propagate",
]
