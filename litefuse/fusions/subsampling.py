"""Every n-th row and column, taken by an operator of its own in front of a convolution of single pixels.

A convolution with a 1x1 kernel reads one pixel for each that it writes, so that it can do the picking itself::

    conv_1x1(x[:, ::n, ::m], stride (s, t)) = conv_1x1(x, stride (n s, m t))

Both give ceil(ceil(size / n) / s) = ceil(size / (n s)) pixels, with SAME padding as with VALID, since a kernel of one
pixel needs none. The picking is spelled as pooling with a 1x1 window (NASNet), which XNNPACK does not take, or
as a STRIDED_SLICE.
"""

from __future__ import annotations

from litefuse.fusions.identity import same_quantization
from litefuse.fusions.operands import input_of, integers, option
from litefuse.fusions.padding import windows
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph
from litefuse.graph.pattern import NONE
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator

_POOLS = frozenset({Op.MAX_POOL_2D, Op.AVERAGE_POOL_2D})
_CONVOLUTIONS = frozenset({Op.CONV_2D, Op.DEPTHWISE_CONV_2D})


class SubsamplingIntoConvolution(Rule):
    """conv_1x1(x[:, ::n, ::m]) is conv_1x1(x) with strides n times and m times as long.

    For pooling with a 1x1 window and for STRIDED_SLICE, where all readers are CONV_2D or DEPTHWISE_CONV_2D with 1x1
    kernels. Pooling may turn an infinity into the largest float, which then no longer happens.
    """

    name = "subsampling-into-convolution"
    numerics = Numerics.REASSOCIATED
    kinds = _POOLS | {Op.STRIDED_SLICE}
    example = """
        graph main(%x: f32[1,8,8,16]) {
          %p = MAX_POOL_2D(%x) {filter=1, stride=2, padding=VALID}
          %y = CONV_2D(%p, w[32,1,1,16], b[32])
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Lengthens the strides of all readers, or changes nothing."""
        steps = _steps(graph, op)
        x, out = op.inputs[0], op.outputs[0]
        readers = list(dict.fromkeys(graph.readers(out)))
        taking = [reader for reader in readers if _is_of_single_pixels(graph, reader, out)]
        if steps is None or not taking or graph.tensor(x).is_variable or not same_quantization(graph, x, out):
            return None
        if shared := graph.why_shared(out, *taking):
            return Refused(shared)
        kept = next((reader for reader in taking if graph.is_kept(reader)), None)
        if kept is not None:
            return Refused(f"{graph.where(kept)} is kept as it is by request")
        for reader in taking:
            assert reader.builtin_options is not None
            strides = {name: option(reader, name) * n for name, n in zip(("stride_h", "stride_w"), steps, strict=True)}
            reader.builtin_options = reader.builtin_options.replace(**strides)
            graph.set_input(reader, 0, x)
        graph.prune([out])
        return Applied(
            f"every {steps[0]}x{steps[1]}" + ("" if len(taking) == 1 else f", in {len(taking)} convolutions")
        )


def _is_of_single_pixels(graph: Graph, reader: Operator, tensor: int) -> bool:
    sliding = windows(graph, reader)
    if graph.kind(reader) not in _CONVOLUTIONS or sliding is None or reader.inputs.count(tensor) != 1:
        return False
    return reader.inputs[0] == tensor and all(window.kernel == 1 for window in sliding)


def _steps(graph: Graph, op: Operator) -> tuple[int, int] | None:
    """The n and m of an operator that gives x[:, ::n, ::m] and no less; None for others, and for x itself."""
    if graph.kind(op) in _POOLS:
        sliding = windows(graph, op)
        if sliding is None or any(window.kernel != 1 for window in sliding) or graph.activation(op) != NONE:
            return None
        steps = sliding[0].stride, sliding[1].stride
    else:
        shape = graph.shape(op.inputs[0])
        begin, end, strides = (integers(graph, input_of(op, slot)) for slot in (1, 2, 3))
        if begin is None or end is None or strides is None or shape is None:
            return None
        if not len(begin) == len(end) == len(strides) == len(shape) == 4 or strides[0] != 1 or strides[3] != 1:
            return None
        if any(option(op, name) for name in ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask", "offset")):
            return None
        for axis in range(4):
            whole = option(op, "end_mask") >> axis & 1 or 0 <= shape[axis] <= end[axis]
            if strides[axis] < 1 or not whole or not (option(op, "begin_mask") >> axis & 1 or begin[axis] == 0):
                return None
        steps = strides[1], strides[2]
    return None if steps == (1, 1) else steps


RULES: tuple[Rule, ...] = (SubsamplingIntoConvolution(),)
