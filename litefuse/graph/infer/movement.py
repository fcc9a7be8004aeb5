"""Operators that move elements without computing: reshaping, slicing, joining, gathering, padding, tiling."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from litefuse.graph.infer.site import (
    Shape,
    Shapes,
    Site,
    Unknown,
    add,
    agree,
    always,
    chosen,
    declared,
    dim,
    each,
    narrowed,
    product,
    rule,
    same,
    show,
)
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.types import bits

# -- the same elements in another shape ----------------------------------------------------------------------------


@rule(Op.RESHAPE)
def _reshape(site: Site) -> Shape:
    source = site.shape(0)
    # Only an int32 vector counts as a target, otherwise the options do; a lone 0 there is TOCO's word for a scalar.
    if site.has(1) and site.type(1) == TensorType.INT32 and len(site.shape(1)) == 1:
        target = site.integers(1)
    else:
        target = list(site.option("new_shape") or ())
        target = [] if target == [0] else target
    return _resolved(site, source, target)


def _resolved(site: Site, source: Shape, target: list[int | None]) -> Shape:
    """The target shape with its -1 (fill up) replaced; elements that are not known (None) become dynamic."""
    total = product(source)
    fill = [i for i, d in enumerate(target) if d == -1]
    shape = [-1 if d is None else d for d in target]
    site.require(len(fill) <= 1 and all(d >= -1 for d in shape), f"target shape {target} is not valid")
    if None in target:
        unknown = [i for i, d in enumerate(target) if d is None]
        others = product(d for d in target if d is not None and d >= 0)
        # One missing dimension can be found from the others.
        if len(unknown) == 1 and not fill and total > 0 and others > 0 and total % others == 0:
            shape[unknown[0]] = total // others
        return tuple(shape)
    if not fill:
        site.require(agree(total, product(shape)), f"{show(source)} cannot be reshaped to {show(shape)}")
        return tuple(shape)
    others = product(d for i, d in enumerate(shape) if i != fill[0])
    if total >= 0:
        nonzero = product(d for i, d in enumerate(shape) if i != fill[0] and d != 0)
        # With nothing to place, the missing dimension is 0 if it has to be, else as without the zeros.
        shape[fill[0]] = 0 if total == 0 and others != 0 else product(d for d in source if d != 0) // nonzero
        site.require(product(shape) == total, f"{show(source)} cannot be reshaped to {show([dim(d) for d in target])}")
    return tuple(shape)


@rule(Op.SQUEEZE, type=declared)
def _squeeze(site: Site) -> Shape:
    shape = site.shape(0)
    axes = site.option("squeeze_dims") or ()
    if not axes:
        if any(d < 0 for d in shape):
            raise Unknown
        return tuple(d for d in shape if d != 1)
    gone = {site.axis(a, len(shape)) for a in axes}
    site.require(all(shape[a] in (1, -1) for a in gone), f"axes {sorted(gone)} of {show(shape)} are not all 1")
    return tuple(d for i, d in enumerate(shape) if i not in gone)


@rule(Op.EXPAND_DIMS)
def _expand_dims(site: Site) -> Shape:
    shape = site.shape(0)
    axis = site.integer(1)
    if axis is None:
        return (-1,) * (len(shape) + 1)
    axis = site.axis(axis, len(shape) + 1)
    return (*shape[:axis], 1, *shape[axis:])


@rule(Op.TRANSPOSE)
def _transpose(site: Site) -> Shape:
    shape, order = site.shape(0), site.integers(1)
    site.require(len(order) == len(shape), f"permutation {order} does not fit shape {show(shape)}")
    return tuple(-1 if p is None else shape[site.axis(p, len(shape))] for p in order)


@rule(Op.BITCAST, type=declared)
def _bitcast(site: Site) -> Shape:
    shape = site.shape(0)
    before, after = bits(site.type(0)), bits(declared(site, 0))
    if before is None or after is None:
        raise Unknown
    if before > after:
        return (*shape, before // after)
    if before < after:
        site.require(bool(shape) and agree(shape[-1], after // before), f"{show(shape)} does not fill whole elements")
        return shape[:-1]
    return shape


# -- slicing -------------------------------------------------------------------------------------------------------


@rule(Op.SLICE)
def _slice(site: Site) -> Shape:
    shape = site.shape(0)
    begin, size = site.integers(1), site.integers(2)
    site.require(len(begin) == len(size) == len(shape), f"begin and size do not fit shape {show(shape)}")
    result = []
    for d, b, n in zip(shape, begin, size, strict=True):
        if n == -1:
            n = None if b is None or d < 0 else d - b
            site.require(n is None or n >= 0, f"begin {begin} is outside {show(shape)}")
        elif n is not None:
            site.require(n >= 0 and (d < 0 or b is None or b + n <= d), f"slice {begin}, {size} outside {show(shape)}")
        result.append(dim(n))
    return tuple(result)


class Span(NamedTuple):
    """What STRIDED_SLICE takes of one dimension of the input, or a new axis."""

    places: slice | None
    """Begin, end and stride as numpy takes them; None for a new axis, and when they are not known."""
    length: int
    """How many elements are taken; -1 when it is not known."""
    shrink: bool = False
    """Whether the dimension is dropped."""
    fresh: bool = False
    """Whether this is a new axis."""


def spans(site: Site) -> list[Span]:
    """The parts that a STRIDED_SLICE takes, new axes included, in the order of the output.

    Indices beyond the input's dimensions are ignored and an ellipsis covers one dimension at least, as in the kernel.
    """
    shape = site.shape(0)
    begins, ends, strides = site.integers(1), site.integers(2), site.integers(3)
    count, rank = len(begins), len(shape)
    site.require(count == len(ends) == len(strides), "begin, end and strides differ in length")
    ellipsis, fresh, offset = site.option("ellipsis_mask"), site.option("new_axis_mask"), site.option("offset")
    added = sum(1 for i in range(count) if fresh >> i & ~(ellipsis >> i) & 1)
    if offset and (ellipsis or added or count != rank):
        raise Unknown  # the kernel mixes up its indices here
    result: list[Span] = []
    used = skipped = 0
    while len(result) < rank + added:
        place = len(result)
        index = place - skipped
        if index < count and fresh >> index & ~(ellipsis >> place) & 1:
            result.append(Span(None, 1, fresh=True))
            continue
        whole = index >= count
        covered = 1
        if ellipsis >> place & 1:
            whole, covered = True, max(1, min(1 + added + rank - count, rank + added - place))
            skipped, ellipsis = covered - 1, 0
        site.require(used + covered <= rank, f"{count} indices do not fit shape {show(shape)}")
        if whole:
            sizes = shape[used : used + covered]
            result += [Span(slice(0, size, 1) if size >= 0 else None, size) for size in sizes]
        else:
            result.append(_span(site, index, shape[used], begins[index], ends[index], strides[index]))
        used += covered
    return result


def _span(site: Site, i: int, size: int, begin: int | None, end: int | None, stride: int | None) -> Span:
    """One index of a STRIDED_SLICE, with negative positions and masks resolved and clamped to the dimension."""
    shrink = bool(site.option("shrink_axis_mask") >> i & 1)
    offset = bool(site.option("offset"))
    site.require(stride != 0, "stride must not be 0")
    # With `offset`, `end` counts from `begin`, and the kernel takes it for the length whatever the dimension holds.
    length = -1 if not offset or end is None or stride is None else len(range(0, end, stride))
    if stride is None or size < 0:
        return Span(None, length, shrink)
    low, high = (0, size) if stride > 0 else (-1, size - 1)

    def place(position: int) -> int:
        return min(max(position + size if position < 0 else position, low), high)

    masked = bool(site.option("begin_mask") >> i & 1)
    start = (0 if stride > 0 else size - 1) if masked else None if begin is None else place(begin)
    if shrink:
        stop = None if start is None else start if start >= size else start + 1
    elif site.option("end_mask") >> i & 1:
        stop = size if stride > 0 else -1
    elif offset:
        stop = None if start is None or end is None else place(end + start)
    else:
        stop = None if end is None else place(end)
    if start is None or stop is None:
        return Span(None, length, shrink)
    # numpy takes a negative stop as counted from the end; None says "to the very beginning".
    places = slice(start, None if stop < 0 else stop, stride) if start >= 0 else slice(0, 0, 1)
    return Span(places, length if offset else len(range(start, stop, stride)), shrink)


@rule(Op.STRIDED_SLICE)
def _strided_slice(site: Site) -> Shape:
    return tuple(s.length for s in spans(site) if not s.shrink)


@rule(Op.DYNAMIC_UPDATE_SLICE, Op.STABLEHLO_SCATTER, Op.MATRIX_SET_DIAG)
def _updated(site: Site) -> Shape:
    return site.shape(0)


# -- joining and splitting -----------------------------------------------------------------------------------------


@rule(Op.CONCATENATION)
def _concatenation(site: Site) -> Shape:
    first = site.shape(0)
    if not first:  # constants without dimensions are joined into a vector
        return (site.count,)
    axis = site.axis(site.option("axis"), len(first))
    result = first
    for i in range(1, site.count):
        shape = site.shape(i)
        fits = len(shape) == len(result) and all(
            agree(a, b) for i, (a, b) in enumerate(zip(shape, result, strict=True)) if i != axis
        )
        site.require(fits, f"shapes {show(result)} and {show(shape)} cannot be joined along axis {axis}")
        joined = list(narrowed(result, shape))
        joined[axis] = add(result[axis], shape[axis])
        result = tuple(joined)
    return result


@rule(Op.PACK)
def _pack(site: Site) -> Shape:
    shape = site.shape(0)
    for i in range(1, site.count):
        other = site.shape(i)
        fits = len(shape) == len(other) and all(agree(a, b) for a, b in zip(shape, other, strict=True))
        site.require(fits, f"shapes {show(shape)} and {show(other)} differ")
        shape = narrowed(shape, other)
    axis = site.axis(site.option("axis"), len(shape) + 1)
    return (*shape[:axis], site.count, *shape[axis:])


@rule(Op.UNPACK)
def _unpack(site: Site) -> Shape:
    shape = site.shape(0)
    axis = site.axis(site.option("axis"), len(shape))
    count = len(site.op.outputs)
    site.require(agree(shape[axis], count), f"axis {axis} of {show(shape)} does not have {count} slices")
    return (*shape[:axis], *shape[axis + 1 :])


@rule(Op.SPLIT, type=same(1))
def _split(site: Site) -> Shape:
    shape, count = site.shape(1), len(site.op.outputs)
    axis = site.integer(0)
    if axis is None:
        return (-1,) * len(shape)
    axis = site.axis(axis, len(shape))
    size = shape[axis]
    site.require(size < 0 or size % count == 0, f"axis {axis} of {show(shape)} cannot be split in {count}")
    return (*shape[:axis], -1 if size < 0 else size // count, *shape[axis + 1 :])


@rule(Op.SPLIT_V)
def _split_v(site: Site) -> Shapes:
    shape, sizes = site.shape(0), site.integers(1)
    axis = site.integer(2)
    if axis is None:
        return (-1,) * len(shape)
    axis = site.axis(axis, len(shape))
    size = shape[axis]
    if None not in sizes and size >= 0:
        fixed = sum(n for n in sizes if n is not None and n != -1)
        site.require(
            sizes.count(-1) <= 1 and (fixed == size or (-1 in sizes and fixed <= size)),
            f"axis {axis} of {show(shape)} cannot be split into {sizes}",
        )
        sizes = [size - fixed if n == -1 else n for n in sizes]
    return [(*shape[:axis], dim(n), *shape[axis + 1 :]) for n in sizes]


# -- indexing ------------------------------------------------------------------------------------------------------


@rule(Op.GATHER)
def _gather(site: Site) -> Shape:
    shape, places = site.shape(0), site.shape(1)
    axis = site.axis(site.option("axis"), len(shape))
    batch = site.option("batch_dims")
    batch = batch + len(places) if batch < 0 else batch
    site.require(0 <= batch <= min(axis, len(places)), f"batch_dims {batch} is out of range")
    fits = all(agree(a, b) for a, b in zip(shape[:batch], places[:batch], strict=True))
    site.require(fits, f"the batch dimensions of {show(shape)} and {show(places)} differ")
    return (*shape[:axis], *places[batch:], *shape[axis + 1 :])


@rule(Op.GATHER_ND)
def _gather_nd(site: Site) -> Shape:
    shape, places = site.shape(0), site.shape(1)
    site.require(bool(shape) and bool(places), "neither input may be a scalar")
    if places[-1] < 0:
        raise Unknown
    site.require(places[-1] <= len(shape), f"indices of {places[-1]} elements do not fit {show(shape)}")
    return (*places[:-1], *shape[places[-1] :])


@rule(Op.EMBEDDING_LOOKUP, type=declared)
def _embedding_lookup(site: Site) -> Shape:
    return (*site.ranked(0, 1), *site.shape(1)[1:])


@rule(Op.EMBEDDING_LOOKUP_SPARSE, type=always(TensorType.FLOAT32))
def _embedding_lookup_sparse(site: Site) -> Shape:
    rows, table = site.static(1), site.shape(4)
    # The ids' leading dimensions, as the dense shape (input 2) gives them, then what one table row holds.
    return (*(dim(d) for d in site.integers(2)[: rows[1] - 1]), *table[1:])


@rule(Op.HASHTABLE_LOOKUP, type=each(same(2), always(TensorType.UINT8)))
def _hashtable_lookup(site: Site) -> Shapes:
    count = site.ranked(0, 1)
    return [(*count, *site.shape(2)[1:]), count]


@rule(Op.SCATTER_ND, type=same(1))
def _scatter_nd(site: Site) -> Shape:
    return tuple(dim(d) for d in site.integers(2))


@rule(Op.SPARSE_TO_DENSE, type=same(2))
def _sparse_to_dense(site: Site) -> Shape:
    return tuple(dim(d) for d in site.integers(1))


@rule(Op.WHERE, type=always(TensorType.INT64))
def _where(site: Site) -> Shape:
    shape, value = site.shape(0), site.value(0)
    return (-1 if value is None else int(np.count_nonzero(value)), len(shape))


@rule(Op.UNIQUE, type=each(same(), chosen("idx_out_type")))
def _unique(site: Site) -> Shapes:
    shape, value = site.ranked(0, 1), site.value(0)
    return [(-1 if value is None else len(np.unique(value)),), shape]


@rule(Op.STABLEHLO_GATHER)
def _stablehlo_gather(site: Site) -> Shape:
    places, offsets = list(site.shape(1)), site.option("offset_dims") or ()
    collapsed, vector = site.option("collapsed_slice_dims") or (), site.option("index_vector_dim")
    window = [n for i, n in enumerate(site.option("slice_sizes")) if i not in collapsed]
    if vector < len(places):
        del places[vector]
    site.require(len(window) == len(offsets), "offset_dims does not fit slice_sizes")
    rest = iter(places)
    slices = iter(window)
    rank = len(places) + len(window)
    return tuple(next(slices) if i in offsets else next(rest) for i in range(rank))


# -- growing -------------------------------------------------------------------------------------------------------


@rule(Op.PAD, Op.PADV2, Op.MIRROR_PAD)
def _pad(site: Site) -> Shape:
    shape = site.shape(0)
    amounts = site.integers(1)
    site.require(len(amounts) == 2 * len(shape), f"the paddings do not fit shape {show(shape)}")
    grown = tuple(
        -1 if before is None or after is None else add(d, before, after)
        for d, before, after in zip(shape, amounts[::2], amounts[1::2], strict=True)
    )
    site.require(all(p is None or p >= 0 for p in amounts), f"paddings {amounts} must not be negative")
    return grown


@rule(Op.STABLEHLO_PAD)
def _stablehlo_pad(site: Site) -> Shape:
    amounts = zip(
        site.shape(0),
        site.option("edge_padding_low"),
        site.option("edge_padding_high"),
        site.option("interior_padding"),
        strict=True,
    )
    grown = tuple(-1 if d < 0 else d + max(d - 1, 0) * between + low + high for d, low, high, between in amounts)
    # Where nothing of one dimension is left, the kernel makes them all empty.
    return (0,) * len(grown) if any(d <= 0 for d in grown) and -1 not in site.shape(0) else grown


@rule(Op.DILATE)
def _dilate(site: Site) -> Shape:
    shape, factors = site.shape(0), site.integers(1)
    site.require(len(shape) == len(factors), f"the dilations do not fit shape {show(shape)}")
    return tuple(-1 if d < 0 or f is None else (d - 1) * f + 1 for d, f in zip(shape, factors, strict=True))


@rule(Op.TILE)
def _tile(site: Site) -> Shape:
    shape, counts = site.shape(0), site.integers(1)
    site.require(len(shape) == len(counts), f"the multiples do not fit shape {show(shape)}")
    site.require(all(n is None or n >= 0 for n in counts), f"multiples {counts} must not be negative")
    return tuple(product((d, dim(n))) for d, n in zip(shape, counts, strict=True))


@rule(Op.BROADCAST_TO)
def _broadcast_to(site: Site) -> Shape:
    shape, target = site.shape(0), site.integers(1)
    site.require(len(shape) <= len(target), f"{show(shape)} has more dimensions than {target}")
    for d, t in zip(reversed(shape), reversed(target), strict=False):
        site.require(d in (1, -1) or t is None or d == t, f"{show(shape)} cannot be broadcast to {target}")
    grown = [dim(t) for t in target]
    # A dimension that is not 1 stays as it is, whatever the target may turn out to be.
    for i, d in enumerate(reversed(shape)):
        if d not in (1, -1):
            grown[-1 - i] = d
    return tuple(grown)


@rule(Op.BROADCAST_ARGS)
def _broadcast_args(site: Site) -> Shape:
    (a,), (b,) = site.ranked(0, 1), site.ranked(1, 1)
    return (-1 if a < 0 or b < 0 else max(a, b),)


@rule(Op.MATRIX_DIAG)
def _matrix_diag(site: Site) -> Shape:
    shape = site.shape(0)
    return (*shape, *shape[-1:])


# -- making --------------------------------------------------------------------------------------------------------


@rule(Op.FILL, type=same(1))
def _fill(site: Site) -> Shape:
    return tuple(dim(d) for d in site.integers(0))


@rule(Op.SHAPE, type=chosen("out_type"))
def _shape(site: Site) -> Shape:
    return (len(site.shape(0)),)


@rule(Op.RANK, type=always(TensorType.INT32))
def _rank(site: Site) -> Shape:
    return ()


@rule(Op.RANGE)
def _range(site: Site) -> Shape:
    start, limit, delta = (site.value(i) for i in range(3))
    if start is None or limit is None or delta is None:
        return (-1,)
    valid = bool((delta > 0 and start <= limit) or (delta < 0 and start >= limit))
    site.require(valid, f"the range from {start} to {limit} by {delta} does not end")
    if start.dtype.kind == "i":
        return (len(range(int(start), int(limit), int(delta))),)
    with np.errstate(all="ignore"):
        return (int(np.ceil(np.abs((limit - start) / delta))),)


@rule(Op.ONE_HOT, type=same(2))
def _one_hot(site: Site) -> Shape:
    shape, depth = site.shape(0), site.integer(1)
    axis = site.option("axis")
    axis = len(shape) if axis == -1 else site.axis(axis, len(shape) + 1)
    return (*shape[:axis], dim(depth), *shape[axis:])


@rule(Op.RANDOM_STANDARD_NORMAL, Op.RANDOM_UNIFORM, type=declared)
def _random(site: Site) -> Shape:
    return tuple(dim(d) for d in site.integers(0))


@rule(Op.MULTINOMIAL, type=declared)
def _multinomial(site: Site) -> Shape:
    return (site.ranked(0, 2)[0], dim(site.integer(1)))


@rule(Op.STABLEHLO_RNG_BIT_GENERATOR, type=declared)
def _random_bits(site: Site) -> Shapes:
    return [site.shape(0), site.graph.shape(site.op.outputs[1])]
