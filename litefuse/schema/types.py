"""Tensor element types: their size in a file and their numpy equivalent."""

from __future__ import annotations

import numpy as np

from litefuse.schema.enums import TensorType

NUMPY: dict[TensorType, np.dtype[np.generic]] = {
    TensorType.FLOAT32: np.dtype(np.float32),
    TensorType.FLOAT16: np.dtype(np.float16),
    TensorType.FLOAT64: np.dtype(np.float64),
    TensorType.INT8: np.dtype(np.int8),
    TensorType.UINT8: np.dtype(np.uint8),
    TensorType.INT16: np.dtype(np.int16),
    TensorType.UINT16: np.dtype(np.uint16),
    TensorType.INT32: np.dtype(np.int32),
    TensorType.UINT32: np.dtype(np.uint32),
    TensorType.INT64: np.dtype(np.int64),
    TensorType.UINT64: np.dtype(np.uint64),
    TensorType.BOOL: np.dtype(np.bool_),
    TensorType.COMPLEX64: np.dtype(np.complex64),
    TensorType.COMPLEX128: np.dtype(np.complex128),
}

_BITS: dict[TensorType, int] = {t: d.itemsize * 8 for t, d in NUMPY.items()} | {
    TensorType.BFLOAT16: 16,
    TensorType.FLOAT8_E4M3FN: 8,
    TensorType.FLOAT8_E5M2: 8,
    TensorType.INT4: 4,
    TensorType.UINT4: 4,
    TensorType.INT2: 2,
}

FLOATS = frozenset({TensorType.FLOAT32, TensorType.FLOAT16, TensorType.FLOAT64, TensorType.BFLOAT16})
# Range of the stored integers of quantised types; INT4 and INT2 are signed.
RANGES: dict[TensorType, tuple[int, int]] = {
    TensorType.INT8: (-128, 127),
    TensorType.UINT8: (0, 255),
    TensorType.INT16: (-32768, 32767),
    TensorType.INT32: (-(2**31), 2**31 - 1),
    TensorType.INT4: (-8, 7),
    TensorType.UINT4: (0, 15),
    TensorType.INT2: (-2, 1),
}


def bits(type: TensorType) -> int | None:
    """Bits per element in a file, or None for types without a fixed size (STRING, RESOURCE, VARIANT, unknown)."""
    return _BITS.get(type)


def nbytes(type: TensorType, count: int) -> int | None:
    """Bytes that ``count`` elements take in a file; packed types are rounded up to whole bytes."""
    width = bits(type)
    return None if width is None else (width * count + 7) // 8


def tensor_type(dtype: np.dtype[np.generic]) -> TensorType:
    """The tensor type of a numpy dtype. Raises KeyError when TFLite has none."""
    return next(t for t, d in NUMPY.items() if d == dtype)
