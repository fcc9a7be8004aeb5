"""Values of shape arithmetic: small results that can be computed without running the model, perhaps only in part.

A model with a dynamic batch computes its reshape targets like [batch, 7, 7, 3]. Knowing the last three elements is
worth as much as knowing all, so integers may be UNKNOWN one by one: operators that move elements carry the mark
along, arithmetic spreads it to the elements that depend on it.
"""

from __future__ import annotations

import numpy as np

from litefuse.graph.graph import Array
from litefuse.graph.infer.kernels import KERNELS, Kernel, Style
from litefuse.graph.infer.site import MAX_KNOWN, UNKNOWN, ShapeError, Site, Unknown, product
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.types import NUMPY

MAX_RESULT = 4096
_INTEGERS = frozenset({TensorType.INT32, TensorType.INT64, TensorType.BOOL})


def fold(site: Site) -> list[Array | None]:
    """The values of the outputs, None for those that are not known."""
    nothing: list[Array | None] = [None] * len(site.op.outputs)
    kernel = KERNELS.get(site.kind)
    if kernel is None or not nothing:
        return nothing
    try:
        if product(site.out()) > MAX_RESULT:
            return nothing
        if site.kind is Op.SHAPE:
            found: list[Array] | None = [np.array([UNKNOWN if d < 0 else d for d in site.shape(0)], np.int64)]
        elif site.kind is Op.RANK:
            found = [np.array(len(site.shape(0)), np.int32)]
        else:
            found = _computed(site, kernel)
    except (ShapeError, Unknown):
        return nothing
    if found is None or len(found) != len(site.outputs):
        return nothing
    return [_settled(value, spec.type) for value, spec in zip(found, site.outputs, strict=True)]


def _computed(site: Site, kernel: Kernel) -> list[Array] | None:
    indices = [i for i in range(site.count) if site.has(i)]
    sizes = [product(site.static(i)) for i in indices]
    if max(sizes, default=0) > MAX_KNOWN:
        return None
    whole = {i: site.value(i) for i in indices}
    if all(v is not None for v in whole.values()):
        return kernel.run(site, [whole.get(i) for i in range(site.count)])
    spread = kernel.payload(site)
    if any(whole[i] is None and i not in spread for i in indices):
        return None
    if any(site.type(i) not in _INTEGERS for i in spread) or any(s.type not in _INTEGERS for s in site.outputs):
        return None
    if all(site.facts.value(site.tensor(i)) is None for i in spread):
        return None
    operands = [whole.get(i) for i in range(site.count)]
    marks = []
    for i in spread:
        partial = site.partial(i)
        marks.append(partial == UNKNOWN)
        # Movement carries the marks themselves; arithmetic is done with 1 in the open places and marked afterwards.
        operands[i] = partial if kernel.style is Style.MOVES else np.where(marks[-1], 1, partial)
    found = kernel.run(site, operands)
    if found is None or kernel.style is Style.MOVES:
        return found
    if kernel.style is Style.REDUCES:
        axes, keep = reduced_axes(site), bool(site.option("keep_dims"))
        mark = np.any(marks[0], axis=axes, keepdims=keep)
    elif kernel.style is Style.SEGMENTS:
        segments = operands[1]
        assert segments is not None
        mark = np.zeros(found[0].shape, np.bool_)
        np.logical_or.at(mark, segments[segments >= 0], marks[0][segments >= 0])
    else:
        mark = np.broadcast_to(np.logical_or.reduce(np.broadcast_arrays(*marks)), found[0].shape)
    return [np.where(mark, UNKNOWN, found[0].astype(np.int64))]


def reduced_axes(site: Site) -> tuple[int, ...]:
    """The axes that a reduction takes away, all of them known."""
    rank = len(site.shape(0))
    axes = site.integers(1)
    if None in axes:
        raise Unknown
    return tuple(sorted({site.axis(a, rank) for a in axes if a is not None})) if rank else ()


def _settled(value: Array, type: TensorType) -> Array | None:
    """A result in the type of its tensor, or as int64 as long as elements are open; None when it does not fit."""
    dtype = NUMPY.get(type)
    if dtype is None:
        return None
    if value.dtype == dtype:
        return value if dtype != np.int64 or not np.all(value == UNKNOWN) or value.size == 0 else None
    if value.dtype != np.int64 or dtype.kind not in "iub":
        return None
    open_ = value == UNKNOWN
    if bool(np.any(open_)):
        return None if bool(np.all(open_)) else value
    converted = value.astype(dtype)
    return converted if np.array_equal(converted, value) else None
