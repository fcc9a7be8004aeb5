"""Checks of sparse tensors' parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litefuse.schema.enums import DimensionType
from litefuse.schema.facts import TOO_MANY, Numbers
from litefuse.schema.tables import DimensionMetadata, SparsityParameters
from litefuse.schema.writer import as_bytes


def stored_elements(
    sparsity: SparsityParameters, shape: Sequence[int], numbers: Numbers
) -> tuple[str | None, int | None]:
    """What is wrong with the parameters of a sparse tensor, and how many elements it stores.

    The format is described at SparsityParameters in TFLite's schema.fbs, after Chou et al., "Format abstraction
    for sparse tensor algebra compilers", 2018. Both results are None when too much has been looked at already.
    """
    order, levels = sparsity.traversal_order, sparsity.dim_metadata
    if order is None or levels is None:
        return "traversal order or dimensions are missing", None
    rank = len(shape)
    if not len(order) == len(levels) >= rank:
        return f"{len(levels)} dimensions and a traversal order of {len(order)} for rank {rank}", None
    if not numbers.spend(2 * len(order)):
        return None, None
    dense, blocks = np.sort(order[:rank]), np.sort(order[rank:])
    if not np.array_equal(np.concatenate([dense, blocks]), np.arange(len(order))):
        return "the traversal order is not a permutation of the dimensions followed by one of the blocks", None
    sizes = [*shape, *[0] * len(blocks)]
    if len(blocks):
        block_map = sparsity.block_map
        if block_map is None or len(block_map) != len(blocks):
            return f"the block map does not have the {len(blocks)} entries that the traversal order asks for", None
        for i, dimension in enumerate(block_map.tolist()):
            block = levels[rank + i].dense_size
            if not 0 <= dimension < rank:
                return f"the block map names dimension {dimension}", None
            if block <= 0 or sizes[dimension] % block:
                return f"blocks of {block} do not divide dimension {dimension} of size {sizes[dimension]}", None
            sizes[int(order[rank + i])] = block
            sizes[dimension] //= block
    stored = 1
    for level, dimension in zip(levels, order.tolist(), strict=True):
        if level.format == DimensionType.DENSE:
            if level.dense_size != sizes[dimension]:
                return f"dimension {dimension} has size {level.dense_size} instead of {sizes[dimension]}", None
            stored *= level.dense_size
            if stored >= TOO_MANY:
                return "it stores absurdly many elements", None
        elif level.format == DimensionType.SPARSE_CSR:
            fault, stored = _level(level, stored, sizes[dimension], numbers)
            if fault:
                return f"dimension {dimension}: {fault}", None
        else:
            return f"dimension {dimension} has the unknown format {level.format}", None
    return None, stored


def _level(level: DimensionMetadata, rows: int, size: int, numbers: Numbers) -> tuple[str | None, int]:
    """Checks a compressed dimension: segments of each row, indices within it."""
    segments, indices = _index_vector(level.array_segments), _index_vector(level.array_indices)
    if segments is None or indices is None:
        return "segments or indices are missing", 0
    if len(segments) != rows + 1:
        return f"{len(segments)} segments for {rows} rows", 0
    if not numbers.spend(len(segments)):
        return None, len(indices)
    if segments[0] != 0 or segments[-1] != len(indices) or (segments[1:] < segments[:-1]).any():
        return f"the segments do not rise from 0 to {len(indices)}", 0
    span = numbers.range(indices)
    if span is not None and not (span.low >= 0 and span.high < size):
        return f"an index lies outside the size {size}", 0
    return None, len(indices)


def _index_vector(vector: Any) -> NDArray[Any] | None:
    values = getattr(vector, "values", None)
    if values is None:
        return None
    return values if isinstance(values, np.ndarray) else np.frombuffer(as_bytes(values), np.uint8)
