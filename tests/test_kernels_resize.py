"""The reference kernels of RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR against the runtime's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delegate import both, refusal
from kernel_cases import Cases, values

from litefuse.graph.build import Builder, quantized
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op

FLOAT, INT8, UINT8, INT16 = TensorType.FLOAT32, TensorType.INT8, TensorType.UINT8, TensorType.INT16
RESIZES = (Op.RESIZE_BILINEAR, Op.RESIZE_NEAREST_NEIGHBOR)
# (align_corners, half_pixel_centers); only the nearest neighbour can be asked for both.
MODES = ((False, False), (True, False), (False, True), (True, True))
CASES = 32  # operators in one model


@pytest.mark.parametrize("type", [FLOAT, INT8, UINT8, INT16], ids=lambda t: t.name)
@pytest.mark.parametrize("op", RESIZES, ids=lambda o: o.name)
def test_random_sizes(op: Op, type: TensorType) -> None:
    rng = np.random.default_rng([int(op), int(type)])
    cases = Cases()
    for i in range(CASES):
        corners, centres = MODES[i % (3 if op == Op.RESIZE_BILINEAR else 4)]
        shape = (int(rng.integers(1, 4)), *rng.integers(1, 14, 2).tolist(), int(rng.integers(1, 6)))
        size = rng.integers(1, 40, 2).astype(np.int32)
        x = cases.input(values(rng, shape, type), None if type == FLOAT else quantized(0.1, 3 if type != INT16 else 0))
        cases.op(
            f"{shape} to {size}, align_corners {corners}, half_pixel_centers {centres}",
            op,
            [x, cases.builder.constant("size", size)],
            align_corners=corners,
            half_pixel_centers=centres,
        )
    cases.check(distinct=20)


@pytest.mark.parametrize("op", RESIZES, ids=lambda o: o.name)
def test_usual_sizes(op: Op) -> None:
    rng = np.random.default_rng(7)
    cases = Cases()
    for (h, w), size in (
        ((7, 7), (14, 14)),
        ((32, 48), (16, 24)),
        ((1, 1), (9, 5)),
        ((5, 6), (5, 6)),
        ((9, 8), (1, 1)),
    ):
        for corners, centres in MODES[: 3 if op == Op.RESIZE_BILINEAR else 4]:
            for type in (FLOAT, INT8, UINT8):
                x = cases.input(values(rng, (1, h, w, 2), type), None if type == FLOAT else quantized(0.1, 0))
                cases.op(
                    f"{type.name} {h, w} to {size}, align_corners {corners}, half_pixel_centers {centres}",
                    op,
                    [x, cases.builder.constant("size", np.int32(size))],
                    align_corners=corners,
                    half_pixel_centers=centres,
                )
    cases.check(distinct=20)


def test_extremes() -> None:
    for data in (
        np.uint8([0, 255, 255, 0, 255, 255, 255, 255, 0]),
        np.int8([-128, 127, 127, -128, -128, -128, 127, 127, 127]),
        np.int16([-32768, 32767, 32767, -32768, -32768, -32768, 32767, 32767, 32767]),
        np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 3e38, -0.0, 0.0, 1e-40]),
    ):
        cases = Cases()
        x = cases.input(data.reshape(1, 3, 3, 1), None if data.dtype == np.float32 else quantized(0.1, 0))
        for op in RESIZES:
            for corners, centres in MODES[:3]:
                cases.op(
                    f"{op.name} {data.dtype}, align_corners {corners}, half_pixel_centers {centres}",
                    op,
                    [x, cases.builder.constant("size", [7, 8])],
                    align_corners=corners,
                    half_pixel_centers=centres,
                )
        # The fast kernel subtracts what it is between: of such numbers something else is left.
        cases.check(fast=data.dtype != np.float32)


def test_nearest_moves_any_numbers() -> None:
    rng = np.random.default_rng(2)
    cases = Cases()
    for type in (TensorType.INT32, TensorType.BOOL):
        x = cases.input(values(rng, (2, 3, 4, 3), type))
        cases.op(type.name, Op.RESIZE_NEAREST_NEIGHBOR, [x, cases.builder.constant("size", [5, 7])], type=type)
    cases.check()


@pytest.mark.parametrize("shape", [(0, 4, 4, 3), (1, 4, 4, 0)])
def test_empty_outputs(shape: tuple[int, ...]) -> None:
    b = Builder()
    x = b.input("x", shape)
    model = b.model([b.op(op, [x, b.constant("size", [3, 5])]) for op in RESIZES])
    expected, got = both(model, [np.ones(shape, np.float32)])
    assert [g.shape for g in got] == [e.shape for e in expected] == [(shape[0], 3, 5, shape[3])] * 2


def test_other_shapes_at_run_time() -> None:
    b = Builder()
    x = b.input("x", [-1, 6, 6, 2], INT8, quantized(0.05, 3))
    model = b.model([b.op(op, [x, b.constant("size", [9, 5])]) for op in RESIZES])
    rng = np.random.default_rng(1)
    for shape in ((3, 6, 6, 2), (1, 4, 11, 2)):
        expected, got = both(model, [values(rng, shape, INT8)])
        for a, c in zip(expected, got, strict=True):
            np.testing.assert_array_equal(c, a)
            assert c.shape == (shape[0], 9, 5, 2)


def model(
    op: Op = Op.RESIZE_BILINEAR,
    type: TensorType = FLOAT,
    size: Any = (3, 3),
    to: TensorType | None = None,
    shape: tuple[int, ...] = (1, 4, 4, 2),
    **options: Any,
) -> Any:
    b = Builder()
    x = b.input("x", shape, type, None if type in (FLOAT, TensorType.INT64) else quantized(0.1, 0))
    s = b.input("size", [2], TensorType.INT32) if size is None else b.constant("size", np.asarray(size, np.int32))
    return b.model([b.op(op, [x, s], shape=[1, 1, 1, 1], type=to or type, **options)])


def _wrong_size_type() -> Any:
    b = Builder()
    x = b.input("x", (1, 4, 4, 2))
    return b.model([b.op(Op.RESIZE_BILINEAR, [x, b.constant("size", np.int64([3, 3]))], shape=[1, 1, 1, 1])])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (model(size=None), "its size is computed at run time"),
        (model(size=(3, 3, 3)), "its size is not two int32 numbers"),
        (_wrong_size_type(), "its size is not two int32 numbers"),
        (model(size=(0, 3)), "its size is 0 x 3"),
        (model(Op.RESIZE_NEAREST_NEIGHBOR, size=(3, -1)), "its size is 3 x -1"),
        (model(size=(3, 1 << 30)), "its sides are too large"),
        (model(shape=(4, 4, 2)), "its input has rank 3, not 4"),
        (model(shape=(1, 0, 4, 2)), "its input is empty"),
        (model(to=INT8), "its input is float32 and its output int8"),
        (model(type=TensorType.INT32), "inputs of type int32 are not supported"),
        (model(Op.RESIZE_NEAREST_NEIGHBOR, TensorType.INT64), "inputs of type int64 are not supported"),
        (model(align_corners=True, half_pixel_centers=True), "it has both aligned corners and half-pixel centres"),
        # 1024 * 10 / 889 is rounded up from 11.52 to 12, and 888 steps of that lead to 10.4.
        (model(type=INT8, shape=(1, 10, 4, 2), size=(889, 4)), "rounding leads outside the input"),
    ],
)
def test_refusals(bad: Any, reason: str) -> None:
    assert reason in refusal(bad)
