"""Shapes that are computed from shapes, where some dimensions are only known at run time.

fold-dimensions: what STRIDED_SLICE, GATHER, REDUCE_PROD, PACK, ... make of SHAPE(x) is a constant where it does not
depend on the unknown dimensions of x.

constant-reshape: RESHAPE(x, [n, 7, 7, 3]) = RESHAPE(x, [-1, 7, 7, 3]), where n is computed and the rest is known: the
elements of x can be arranged in one way only. Models keep taking any batch, and runtimes know the target before they
run.

Both are exact for every kernel. A delegate may take operators that it did not take before, and round in its own way.
"""

from __future__ import annotations

import numpy as np

from litefuse.fusions.constant_folding import MAX_GROWTH
from litefuse.fusions.rule import Applied, Numerics, Outcome, Refused, Rule
from litefuse.graph import Graph
from litefuse.graph.declared import contradiction, declare
from litefuse.graph.graph import Array
from litefuse.graph.infer.kernels import KERNELS, Style
from litefuse.graph.infer.propagate import run
from litefuse.graph.infer.site import Facts, Shape, ShapeError, Site, Unknown, agree, narrowed, product, show
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Operator
from litefuse.schema.types import NUMPY, nbytes

_SOURCES = frozenset({Op.SHAPE, Op.RANK})
# What XNNPACK takes, of the types that it takes. Between two of these, and at the model's inputs and outputs, it saves
# what computes the target and joins what the RESHAPE parts. Beside other operators it copies what the runtime itself
# reshapes in place, which the saving is only worth below some size: ABS, RESHAPE, ABS 2.4 instead of 3.3 us with 16 KB
# and 18 instead of 20 with 256 KB; TILE, RESHAPE, ABS 2.7 instead of 3.1 us, and 25 instead of 19.
_XNNPACK = frozenset(
    {
        Op.ABS,
        Op.ADD,
        Op.AVERAGE_POOL_2D,
        Op.BATCH_MATMUL,
        Op.CEIL,
        Op.CONCATENATION,
        Op.CONV_2D,
        Op.COS,
        Op.DEPTH_TO_SPACE,
        Op.DEPTHWISE_CONV_2D,
        Op.DEQUANTIZE,
        Op.DIV,
        Op.ELU,
        Op.EXP,
        Op.FLOOR,
        Op.FULLY_CONNECTED,
        Op.GELU,
        Op.HARD_SWISH,
        Op.LEAKY_RELU,
        Op.LOG,
        Op.LOGISTIC,
        Op.MAX_POOL_2D,
        Op.MAXIMUM,
        Op.MEAN,
        Op.MINIMUM,
        Op.MUL,
        Op.NEG,
        Op.PAD,
        Op.PRELU,
        Op.QUANTIZE,
        Op.REDUCE_MAX,
        Op.REDUCE_MIN,
        Op.RELU,
        Op.RELU6,
        Op.RELU_N1_TO_1,
        Op.RESIZE_BILINEAR,
        Op.ROUND,
        Op.RSQRT,
        Op.SIN,
        Op.SLICE,
        Op.SOFTMAX,
        Op.SPACE_TO_DEPTH,
        Op.SPLIT,
        Op.SQRT,
        Op.SQUARE,
        Op.SQUARED_DIFFERENCE,
        Op.STRIDED_SLICE,
        Op.SUB,
        Op.SUM,
        Op.TANH,
        Op.TRANSPOSE,
        Op.TRANSPOSE_CONV,
    }
)
_XNNPACK_TYPES = frozenset({TensorType.FLOAT32, TensorType.INT8, TensorType.UINT8})
_SMALL = 16384
_INTEGERS = frozenset({TensorType.INT32, TensorType.INT64, TensorType.BOOL})
# Shape arithmetic takes a few operators; what takes more than this is something else.
_LONGEST = 64


class FoldDimensions(Rule):
    """f(SHAPE(x)) -> constant, for integer f that does not depend on the unknown dimensions of x."""

    name = "fold-dimensions"
    numerics = Numerics.EXACT
    kinds = frozenset(KERNELS) - _SOURCES
    example = """
        graph main(%x: f32[?,16]) {
          %s = SHAPE(%x)
          %n = STRIDED_SLICE(%s, i32[1]=1, i32[1]=2, i32[1]=1) {shrink_axis_mask=1}
          %f = CAST(%n) {to=f32}
          %y = DIV(%x, %f)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Puts constants in the place of the results that are known."""
        if any(t < 0 or graph.type(t) not in _INTEGERS for t in op.outputs):
            return None
        facts = _arithmetic(graph, op)
        if facts is None:
            return None
        wanted = {t: graph.readers(t) for t in op.outputs if graph.readers(t) and _constant(facts, t) is not None}
        if not wanted:
            return None
        if reason := _contradiction(facts):
            return Refused(reason)
        for tensor, readers in wanted.items():
            value = _constant(facts, tensor)
            assert value is not None
            constant = graph.add_constant(graph.name(tensor), value, type=graph.type(tensor))
            for reader in list(dict.fromkeys(readers)):
                for slot in [i for i, read in enumerate(reader.inputs) if read == tensor]:
                    graph.set_input(reader, slot, constant)
        graph.prune(op.outputs)
        return Applied()


class ConstantReshape(Rule):
    """RESHAPE(x, t) -> RESHAPE(x, [-1, 7, 7, 3]), where all but one element of t can be told beforehand.

    The same whenever the original runs: it refuses a t that does not hold as many elements as x.
    """

    name = "constant-reshape"
    numerics = Numerics.EXACT
    kinds = frozenset({Op.RESHAPE})
    example = """
        graph main(%x: f32[?,4,4,8]) {
          %s = SHAPE(%x)
          %n = STRIDED_SLICE(%s, i32[1]=0, i32[1]=1, i32[1]=1) {shrink_axis_mask=1}
          %t = PACK(%n, size:i32[]=128)
          %y = RESHAPE(%x, %t)
          return %y
        }
    """

    def apply(self, graph: Graph, op: Operator) -> Outcome:
        """Gives the operator a constant target."""
        if len(op.inputs) != 2 or min(op.inputs) < 0 or not op.outputs:
            return None
        x, given = op.inputs
        maker, out = graph.producer(given), op.outputs[0]
        if maker is None or graph.type(given) != TensorType.INT32 or graph.tensor(out).is_variable:
            return None  # a constant, an input, or no target at all
        facts = _arithmetic(graph, maker)
        elements = None if facts is None else _elements(facts, op)
        if facts is None or elements is None:
            return Refused(f"the elements of its target shape, from {graph.where(maker)}, cannot be told beforehand")
        if None not in elements:
            return None  # fold-dimensions gives the constant
        target = tuple(-1 if d is None else d for d in elements)
        declared = graph.shape(out)
        if reason := _contradiction(facts, out) or _misfit(graph.shape(x), target, declared):
            return Refused(reason)
        shape = target
        if target.count(-1) > 1 and declared is not None:
            # The file may know more, but leaving the first one open is always right.
            first = target.index(-1)
            shape = (*target[:first], -1, *narrowed(target, declared)[first + 1 :])
        if shape.count(-1) > 1:
            return Refused(f"more than one dimension of its target shape {show(shape)} is unknown")
        if 0 in shape:
            return Refused(f"its target shape {show(shape)} has no elements from which to tell the unknown dimension")
        if (copied := _copied(graph, op)) is not None:
            return Refused(
                f"XNNPACK does not take the operators on both sides of it, and would copy {copied:,} bytes for each "
                f"batch that the runtime reshapes in place"
            )
        constant = graph.add_constant(graph.name(given), np.array(shape, np.int32))
        if out not in graph.outputs:
            declare(graph, out, shape)
        graph.replace(op, Op.RESHAPE, [x, constant], version=graph.version(op), new_shape=list(shape))
        return Applied(f"to {show(shape)}")


def _copied(graph: Graph, op: Operator) -> int | None:
    """Bytes that XNNPACK would copy for this RESHAPE, when that is too much; None when it is worth it."""
    x, out = op.inputs[0], op.outputs[0]
    maker = graph.producer(x)
    before = maker is None or graph.kind(maker) in _XNNPACK
    behind = out in graph.outputs or any(graph.kind(reader) in _XNNPACK for reader in graph.readers(out))
    size = nbytes(graph.type(x), product(abs(d) for d in graph.shape(x) or ()))
    worth = (before and behind) or graph.type(x) not in _XNNPACK_TYPES or size is None or size <= _SMALL
    return None if worth else size


def _arithmetic(graph: Graph, op: Operator) -> Facts | None:
    """What can be told of the results of an operator that computes with shapes; None when it does not."""
    order: dict[Operator, None] = {}
    seen: set[Operator] = set()
    todo = [(op, False)]
    while todo:
        current, done = todo.pop()
        if done:
            order[current] = None
            continue
        if current in seen or not _is_arithmetic(graph, current):
            continue
        seen.add(current)
        if len(seen) > _LONGEST:
            return None
        todo.append((current, True))
        if graph.kind(current) not in _SOURCES:
            makers = (graph.producer(t) for t in current.inputs)
            todo.extend((maker, False) for maker in makers if maker is not None)
    if op not in order or not any(graph.kind(source) in _SOURCES for source in order):
        return None
    facts = Facts(graph)
    run(facts, order)
    return facts


def _is_arithmetic(graph: Graph, op: Operator) -> bool:
    return graph.kind(op) in KERNELS and all(t >= 0 and graph.type(t) in _INTEGERS for t in op.outputs)


def _constant(facts: Facts, tensor: int) -> Array | None:
    """The value of a tensor that can be a constant."""
    value = facts.whole(tensor)
    if value is None or not 0 < value.nbytes <= MAX_GROWTH or value.dtype != NUMPY.get(facts.graph.type(tensor)):
        return None
    return value


def _elements(facts: Facts, op: Operator) -> list[int | None] | None:
    """The target of a RESHAPE, with None for unknown elements; None when it is no vector of known length."""
    try:
        site = Site(facts, op)
        site.ranked(1, 1)
        elements = site.integers(1)
    except (ShapeError, Unknown):
        return None
    if elements.count(None) == elements.count(-1) == 1 and (size := _left_over(facts, op, elements)) is not None:
        elements[elements.index(-1)] = size
    return elements


def _left_over(facts: Facts, op: Operator, target: list[int | None]) -> int | None:
    """What the -1 in a target comes to when the unknown element is the unknown dimension of the input itself."""
    graph, x = facts.graph, op.inputs[0]
    shape = graph.shape(x)
    for maker in _makers(facts):
        kind = graph.kind(maker)
        from_x = maker.inputs[:1] == [x] if kind in _SOURCES else all(_is_told(facts, t) for t in maker.inputs)
        if KERNELS[kind].style is not Style.MOVES or not from_x:
            return None
    if shape is None or shape.count(-1) != 1:
        return None
    size, known = product(d for d in shape if d >= 0), product(d for d in target if d is not None and d >= 0)
    return size // known if known and size % known == 0 else None


def _is_told(facts: Facts, tensor: int) -> bool:
    return tensor in facts.specs or facts.graph.is_constant(tensor)


def _makers(facts: Facts) -> list[Operator]:
    """The operators of the arithmetic."""
    return list(dict.fromkeys(op for op in map(facts.graph.producer, facts.specs) if op is not None))


def _contradiction(facts: Facts, *tensors: int) -> str | None:
    """What the file declares wrongly of ``tensors``, or of those whose shapes the arithmetic uses."""
    graph = facts.graph
    sources = [t for op in _makers(facts) if graph.kind(op) in _SOURCES for t in op.inputs[:1]]
    return next(filter(None, (contradiction(graph, t) for t in (*sources, *tensors))), None)


def _misfit(source: Shape | None, target: Shape, declared: Shape | None) -> str | None:
    """What does not go together of a RESHAPE's input, target and output, as far as they are known."""
    if declared is not None and not (len(declared) == len(target) and all(map(agree, declared, target))):
        return f"its target shape is {show(target)}, but the file declares {show(declared)} for its output"
    known = product(d for d in target if d >= 0)
    if source is not None and (total := product(source)) >= 0 and (total % known if known else total):
        return f"{show(source)} cannot be reshaped to {show(target)}"
    return None


RULES: tuple[Rule, ...] = (FoldDimensions(), ConstantReshape())
