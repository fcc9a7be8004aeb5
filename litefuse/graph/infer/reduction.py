"""Operators that take one axis or more away, or order elements along one."""

from __future__ import annotations

from litefuse.graph.infer.site import (
    Shape,
    Shapes,
    Site,
    Unknown,
    agree,
    always,
    chosen,
    declared,
    dim,
    each,
    rule,
    same,
    show,
)
from litefuse.schema.enums import LSHProjectionType, TensorType
from litefuse.schema.operators import Op


@rule(
    Op.MEAN,
    Op.REDUCE_ALL,
    Op.REDUCE_ANY,
    Op.REDUCE_MAX,
    Op.REDUCE_MIN,
    Op.REDUCE_PROD,
    Op.SUM,
    type=declared,
)
def _reduce(site: Site) -> Shape:
    shape, axes = site.shape(0), site.integers(1)
    keep = site.option("keep_dims")
    if None in axes:
        if keep:
            return (-1,) * len(shape)
        raise Unknown
    if not shape:
        return ()
    gone = {site.axis(a, len(shape)) for a in axes if a is not None}
    if keep:
        return tuple(1 if i in gone else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in gone)


@rule(Op.ARG_MAX, Op.ARG_MIN, type=chosen("output_type"))
def _arg(site: Site) -> Shape:
    shape = site.shape(0)
    axis = site.integer(1)
    if axis is None:
        return (-1,) * (len(shape) - 1)
    axis = site.axis(axis, len(shape))
    return (*shape[:axis], *shape[axis + 1 :])


@rule(Op.TOPK_V2, type=each(same(), declared))
def _top_k(site: Site) -> Shape:
    shape, k = site.shape(0), site.integer(1)
    site.require(bool(shape), "the input may not be a scalar")
    fits = k is None or shape[-1] < 0 or k <= shape[-1]
    site.require(fits, f"{k} elements cannot be taken from the last axis of {show(shape)}")
    return (*shape[:-1], -1 if k is None else max(k, 0))


@rule(Op.SEGMENT_SUM)
def _segment_sum(site: Site) -> Shape:
    shape, ids = site.shape(0), site.value(1)
    return (-1 if ids is None else int(ids.max(initial=-1)) + 1, *shape[1:])


@rule(Op.UNSORTED_SEGMENT_MAX, Op.UNSORTED_SEGMENT_MIN, Op.UNSORTED_SEGMENT_PROD, Op.UNSORTED_SEGMENT_SUM)
def _unsorted_segment(site: Site) -> Shape:
    shape, ids = site.shape(0), site.shape(1)
    fits = len(ids) <= len(shape) and all(agree(a, b) for a, b in zip(ids, shape, strict=False))
    site.require(fits, f"segment ids of shape {show(ids)} do not fit {show(shape)}")
    return (dim(site.integer(2)), *shape[len(ids) :])


@rule(Op.NON_MAX_SUPPRESSION_V4, type=always(TensorType.INT32))
def _non_max_suppression(site: Site) -> Shapes:
    return [(dim(site.integer(2)),), ()]


@rule(
    Op.NON_MAX_SUPPRESSION_V5,
    type=each(always(TensorType.INT32), always(TensorType.FLOAT32), always(TensorType.INT32)),
)
def _soft_non_max_suppression(site: Site) -> Shapes:
    count = dim(site.integer(2))
    return [(count,), (count,), ()]


@rule(Op.LSH_PROJECTION, type=declared)
def _lsh_projection(site: Site) -> Shape:
    functions, width = site.ranked(0, 2)
    dense = site.option("type") == LSHProjectionType.DENSE
    if dense and (functions < 0 or width < 0):
        return (-1,)
    return (functions * width if dense else functions,)
