"""Many operators in one model, so that testing a kernel takes few interpreters."""

from __future__ import annotations

from typing import Any

import numpy as np
from delegate import both

from litefuse.graph.build import Builder
from litefuse.schema import Model
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.types import tensor_type

DTYPES = {
    TensorType.INT8: np.int8,
    TensorType.UINT8: np.uint8,
    TensorType.INT16: np.int16,
    TensorType.INT32: np.int32,
    TensorType.INT64: np.int64,
    TensorType.FLOAT32: np.float32,
    TensorType.BOOL: np.bool_,
}


def values(rng: np.random.Generator, shape: Any, type: TensorType) -> Any:
    """Normal floats; integers over their whole range, wider ones up to 1000."""
    dtype = np.dtype(DTYPES[type])
    if dtype.kind == "f":
        return (rng.standard_normal(shape) * 2).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    info = np.iinfo(dtype)
    low, high = (info.min, info.max) if info.bits <= 16 else (-1000, 1000)
    return rng.integers(low, high, shape, dtype=dtype, endpoint=True)


class Cases:
    """Collects operators, each with its own inputs and a label, and compares all of their outputs."""

    def __init__(self) -> None:
        self.builder = Builder()
        self._feeds: list[Any] = []
        self._outputs: list[int] = []
        self._labels: list[str] = []

    def input(self, value: Any, quantization: Any = None) -> int:
        """A model input that is given this array."""
        self._feeds.append(value)
        name = f"input_{len(self._feeds)}"
        return self.builder.input(name, value.shape, tensor_type(value.dtype), quantization)

    def op(self, label: str, kind: Op, inputs: list[int], **fields: Any) -> None:
        self._outputs.append(self.builder.op(kind, inputs, **fields))
        self._labels.append(label)

    def run(self, **how: Any) -> tuple[list[Any], list[Any]]:
        """The outputs of the runtime's kernels and of the delegate, in the order of the operators."""
        return both(self.model(), self._feeds, **how)

    def model(self) -> Model:
        return self.builder.model(self._outputs)

    @property
    def feeds(self) -> list[Any]:
        """The values of the model's inputs."""
        return self._feeds

    def check(self, *, rtol: float = 0.0, atol: float = 0.0, distinct: int = 2, fast: bool = True) -> None:
        """Asserts that the outputs are equal, floats to a bound if there is one, and that they say something."""
        expected, got = self.run(fast=fast)
        assert len(expected) == len(got) == len(self._labels)
        for label, a, b in zip(self._labels, expected, got, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape), label
            if a.dtype == np.float32:
                np.testing.assert_allclose(b, a, rtol=rtol, atol=atol, equal_nan=True, err_msg=label)
            else:
                np.testing.assert_array_equal(b, a, err_msg=label)
        assert np.unique(np.concatenate([a.ravel() for a in expected])).size >= distinct
