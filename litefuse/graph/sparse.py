"""Sparse constants.

The format is that of the TACO compiler (Kjolstad et al., "The tensor algebra compiler", 2017): the dimensions, then
the dimensions inside dense blocks, are levels of a tree in traversal order. A dense level has every coordinate; a
compressed one (CSR) lists, between `segments[p]` and `segments[p + 1]`, the coordinates below element `p` of the
level above. The values are the leaves, in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from litefuse.graph.graph import Array
from litefuse.schema.declare import Table
from litefuse.schema.enums import DimensionType
from litefuse.schema.tables import DimensionMetadata, SparsityParameters, Uint8Vector
from litefuse.schema.writer import as_bytes


def densify(values: Array, shape: Sequence[int], sparsity: SparsityParameters) -> Array | None:
    """A sparse tensor as a dense array of the same type, zero where nothing is stored.

    Args:
        values: the stored elements, in one dimension.
        shape: the dense shape.
        sparsity: how they are stored.

    Returns:
        The dense array, or None when the description contradicts itself, the shape or the number of values.
    """
    rank = len(shape)
    levels = sparsity.dim_metadata or []
    order = [] if sparsity.traversal_order is None else [int(d) for d in sparsity.traversal_order]
    blocked = [] if sparsity.block_map is None else [int(d) for d in sparsity.block_map]
    if len(order) != len(levels) or sorted(order) != list(range(rank + len(blocked))):
        return None
    if any(d >= rank for d in order[:rank]) or any(not 0 <= d < rank for d in blocked):
        return None
    limit = max(math.prod(shape), 1)
    # For each element of the level at hand: its place in the level, and its coordinate in every level so far.
    place = np.zeros(1, np.int64)
    coordinates: list[Array] = []
    for level in levels:
        below = _below(level, place, limit)
        if below is None:
            return None
        above, place, coordinate = below
        coordinates = [c[above] for c in coordinates] + [coordinate]
    if len(place) != len(values):
        return None
    index = [np.zeros(len(place), np.int64)] * rank
    for dimension, level, coordinate in zip(order, levels, coordinates, strict=True):
        if dimension < rank:
            index[dimension] = coordinate
        else:
            whole = blocked[dimension - rank]
            index[whole] = index[whole] * level.dense_size + coordinate
    if any(len(i) and (i.min() < 0 or i.max() >= d) for i, d in zip(index, shape, strict=True)):
        return None
    dense = np.zeros(shape, values.dtype)
    dense[tuple(index)] = values
    return dense


def _below(level: DimensionMetadata, place: Array, limit: int) -> tuple[Array, Array, Array] | None:
    """The elements of a level: which of the level above each belongs to, its place, and its coordinate.

    None when that is not consistent, or when there are more than ``limit``, the elements of the dense tensor.
    """
    if level.format == DimensionType.DENSE:
        size = level.dense_size
        if size < 0 or len(place) * size > limit:
            return None
        above = np.repeat(np.arange(len(place)), size)
        coordinate = np.tile(np.arange(size), len(place))
        return above, place[above] * size + coordinate, coordinate
    segments, indices = _numbers(level.array_segments), _numbers(level.array_indices)
    if segments is None or indices is None or (len(place) and place.max() + 1 >= len(segments)):
        return None
    first, end = segments[place], segments[place + 1]
    counts = end - first
    if len(place) and (first.min() < 0 or counts.min() < 0 or end.max() > len(indices) or counts.sum() > limit):
        return None
    above = np.repeat(np.arange(len(place)), counts)
    offset = np.arange(len(above)) - (np.cumsum(counts) - counts)[above]
    here = first[above] + offset
    return above, here, indices[here]


def _numbers(vector: Table | None) -> Array | None:
    """A sparse index vector of any width as int64."""
    values = getattr(vector, "values", None)
    if values is None:
        return None
    if isinstance(vector, Uint8Vector):
        values = np.frombuffer(as_bytes(values), np.uint8)
    return np.asarray(values).astype(np.int64)
