"""Upsampling in every spelling, recognised by what it does; and left alone where the resize would be slower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litefuse.fusions import dead_code, upsampling
from litefuse.fusions.upsampling import _kernel_agrees, _positions
from litefuse.graph.build import Builder, quantized
from litefuse.schema import Model
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from tests.rules import apply, fuse, kinds, looped, operators, refusals, results

(UPSAMPLE,) = upsampling.RULES
F32, I8, U8, I16, I32 = (TensorType[n] for n in ("FLOAT32", "INT8", "UINT8", "INT16", "INT32"))
Spelling = Callable[[Builder, int, tuple[int, int, int], int, int], int]
# Enough channels for the resize to be faster than any other spelling.
CHANNELS = 128


def reshape(b: Builder, x: int, *shape: int) -> int:
    return b.op(Op.RESHAPE, [x, b.constant("shape", list(shape))])


def tile(b: Builder, x: int, *counts: int) -> int:
    return b.op(Op.TILE, [x, b.constant("counts", list(counts))])


def keras(b: Builder, x: int, size: tuple[int, int, int], f: int, g: int) -> int:
    """As TensorFlow 2.21 converts UpSampling2D of Keras 3."""
    h, w, c = size
    y = tile(b, reshape(b, x, -1, h, 1, w, c), 1, 1, f, 1, 1)
    y = tile(b, reshape(b, y, -1, h * f, w, 1, c), 1, 1, 1, g, 1)
    return reshape(b, y, -1, h * f, w * g, c)


def broadcast(b: Builder, x: int, size: tuple[int, int, int], f: int, g: int) -> int:
    h, w, c = size
    y = reshape(b, x, 1, h, 1, w, 1, c)
    y = b.op(Op.BROADCAST_TO, [y, b.constant("to", [1, h, f, w, g, c])], version=2)
    return reshape(b, y, 1, h * f, w * g, c)


def concatenated(b: Builder, x: int, size: tuple[int, int, int], f: int, g: int) -> int:
    h, w, c = size
    y = b.op(Op.CONCATENATION, [reshape(b, x, -1, h * w, 1, c)] * g, axis=2)
    y = b.op(Op.CONCATENATION, [reshape(b, y, -1, h, 1, w * g * c)] * f, axis=2)
    return reshape(b, y, -1, h * f, w * g, c)


def packed(b: Builder, x: int, size: tuple[int, int, int], f: int, g: int) -> int:
    h, w, c = size
    y = b.op(Op.PACK, [reshape(b, x, -1, h, w, c)] * g, axis=3, values_count=g)
    y = b.op(Op.PACK, [reshape(b, y, -1, h, w * g, c)] * f, axis=2, values_count=f)
    return reshape(b, y, -1, h * f, w * g, c)


def gathered(b: Builder, x: int, size: tuple[int, int, int], f: int, g: int) -> int:
    h, w, _ = size
    y = b.op(Op.GATHER, [x, b.constant("rows", np.repeat(np.arange(h, dtype=np.int32), f))], axis=1)
    return b.op(Op.GATHER, [y, b.constant("columns", np.repeat(np.arange(w, dtype=np.int32), g))], axis=-2)


def resized_twice(b: Builder, x: int, size: tuple[int, int, int], f: int, g: int) -> int:
    h, w, _ = size
    y = b.op(Op.RESIZE_NEAREST_NEIGHBOR, [x, b.constant("one", [h * f, w])])
    return b.op(
        Op.RESIZE_NEAREST_NEIGHBOR, [y, b.constant("other", [h * f, w * g])], half_pixel_centers=True, version=3
    )


def transposed(b: Builder, x: int, size: tuple[int, int, int], f: int, g: int) -> int:
    """Channels first in between."""
    h, w, c = size
    y = b.op(Op.TRANSPOSE, [x, b.constant("first", [0, 3, 1, 2])])
    y = tile(b, reshape(b, y, -1, c * h, 1, w, 1), 1, 1, f, 1, g)
    return b.op(Op.TRANSPOSE, [reshape(b, y, -1, c, h * f, w * g), b.constant("last", [0, 2, 3, 1])])


SPELLINGS = [keras, broadcast, concatenated, packed, gathered, resized_twice, transposed]


def upsampled(
    spelling: Spelling, batch: int = 1, channels: int = CHANNELS, f: int = 2, g: int = 3, **input: Any
) -> Model:
    b = Builder()
    size = 4, 5, channels
    y = spelling(b, b.op(Op.RELU, [b.input("x", (batch, *size), **input)], version=2 if input else 1), size, f, g)
    return b.model([b.op(Op.RELU, [y], version=2 if input else 1)])


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_becomes_a_resize(spelling: Spelling) -> None:
    after, report = fuse(upsampled(spelling), UPSAMPLE, nonfinite=True)
    assert kinds(after) == ["RELU", "RESIZE_NEAREST_NEIGHBOR", "RELU"]
    assert report.counts()["upsample"] >= 1


@pytest.mark.parametrize("factors", [(2, 1), (1, 2), (3, 2), (4, 4)])
def test_factors(factors: tuple[int, int]) -> None:
    f, g = factors
    after, _ = fuse(upsampled(keras, f=f, g=g), UPSAMPLE)
    assert kinds(after) == ["RELU", "RESIZE_NEAREST_NEIGHBOR", "RELU"]


@pytest.mark.parametrize("spelling", [keras, concatenated, packed])
def test_unknown_batch(spelling: Spelling) -> None:
    after, _ = fuse(upsampled(spelling, batch=-1), UPSAMPLE)
    assert kinds(after) == ["RELU", "RESIZE_NEAREST_NEIGHBOR", "RELU"]


@pytest.mark.parametrize("type", [I8, U8])
@pytest.mark.parametrize("channels", [1, 8])
def test_eight_bits_at_any_number_of_channels(type: TensorType, channels: int) -> None:
    model = upsampled(keras, channels=channels, type=type, quantization=quantized(0.1, 7))
    after, _ = fuse(model, UPSAMPLE)
    (op,) = operators(after, "RESIZE_NEAREST_NEIGHBOR")
    assert after.operator_codes[op.opcode_index].version == (2 if type is I8 else 1)


def test_one_dimension_between_convolutions() -> None:
    b = Builder()
    x = b.op(Op.RELU, [b.input("x", (1, 1, 6, 64))])
    y = reshape(b, tile(b, reshape(b, x, 1, 6, 1, 64), 1, 1, 2, 1), 1, 1, 12, 64)
    assert kinds(fuse(b.model([b.op(Op.NEG, [y])]), UPSAMPLE)[0]) == ["RELU", "RESIZE_NEAREST_NEIGHBOR", "NEG"]


def with_shapes_at_run_time(channels: int = 32) -> Model:
    """Keras 3 with an unknown batch: the targets of the reshapes are computed."""
    b = Builder()
    c = channels
    x = b.op(Op.NEG, [b.input("x", (-1, 4, 5, c))], shape=(-1, 4, 5, c))

    def target(of: int, kept: int, *rest: int) -> int:
        shape = b.op(Op.SHAPE, [of], shape=[4], type=I32, out_type=I32)
        bounds = [b.constant(n, [v]) for n, v in (("from", 0), ("to", kept), ("step", 1))]
        part = b.op(Op.STRIDED_SLICE, [shape, *bounds], shape=[kept], type=I32)
        return b.op(Op.CONCATENATION, [part, b.constant("rest", list(rest))], axis=0, shape=[4], type=I32)

    y = b.op(Op.EXPAND_DIMS, [x, b.constant("a", np.int32(2))], shape=(-1, 4, 1, 5, c))
    y = b.op(Op.TILE, [y, b.constant("t", [1, 1, 2, 1, 1])], shape=(-1, 4, 2, 5, c))
    y = b.op(Op.RESHAPE, [y, target(x, 1, 8, 5, c)], shape=(-1, 8, 5, c))
    z = b.op(Op.EXPAND_DIMS, [y, b.constant("b", np.int32(3))], shape=(-1, 8, 5, 1, c))
    z = b.op(Op.TILE, [z, b.constant("u", [1, 1, 1, 2, 1])], shape=(-1, 8, 5, 2, c))
    z = b.op(Op.RESHAPE, [z, target(y, 2, 10, c)], shape=(-1, -1, 10, c))  # the converter forgets the height
    return b.model([b.op(Op.NEG, [z], shape=(-1, -1, 10, c))])


def test_shapes_that_only_run_time_knows() -> None:
    after, _ = fuse(with_shapes_at_run_time(), UPSAMPLE, *dead_code.RULES)
    assert kinds(after) == ["NEG", "RESIZE_NEAREST_NEIGHBOR", "NEG"]
    main = after.subgraphs[0]
    assert list(main.tensors[main.operators[1].outputs[0]].shape_signature) == [-1, 8, 10, 32]


def test_inside_a_loop() -> None:
    b = Builder()
    x = b.input("x", (1, 2, 2, 128))
    y = keras(b, x, (2, 2, 128), 2, 2)
    y = b.op(Op.MAX_POOL_2D, [y], filter_height=2, filter_width=2, stride_h=2, stride_w=2)
    after, _ = fuse(looped(b.model([y])), UPSAMPLE)
    assert kinds(after, 2) == ["RESIZE_NEAREST_NEIGHBOR", "MAX_POOL_2D", "ADD"]


# -- positions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", [F32, I8])
@pytest.mark.parametrize("half_pixel", [False, True])
@pytest.mark.parametrize("size", [(3, 41), (7, 49), (5, 11), (1, 93)])
def test_positions_are_those_of_the_kernel(type: TensorType, half_pixel: bool, size: tuple[int, int]) -> None:
    n, factor = size
    b = Builder()
    q = quantized(1.0, 0) if type is I8 else None
    x = b.input("x", (1, 1, n, 1), type, q)
    to = b.constant("to", [1, n * factor])
    y = b.op(Op.RESIZE_NEAREST_NEIGHBOR, [x, to], half_pixel_centers=half_pixel, version=3)
    values = np.arange(n, dtype=np.int8 if type is I8 else np.float32).reshape(1, 1, n, 1)
    (found,) = results(b.model([y]), values)
    assert np.array_equal(found.reshape(-1), _positions(n, n * factor, half_pixel, type is I8))


def test_where_float_positions_fall_short() -> None:
    # 1 / 49 is rounded down in float32, and so is 49 times that.
    short = [f for f in range(2, 200) if not np.array_equal(_positions(9, 9 * f, False, False), np.arange(9 * f) // f)]
    assert short
    assert _kernel_agrees((1, 9, 9, 1), (short[0], short[0]), F32) is True


# -- what must stay ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelling", "channels", "f", "limit"),
    [(keras, 16, 2, 96), (keras, 32, 1, 256), (concatenated, 64, 2, 512), (gathered, 64, 2, 512), (packed, 64, 2, 512)],
)
def test_few_channels_are_slower_as_a_resize(spelling: Spelling, channels: int, f: int, limit: int) -> None:
    reasons = refusals(upsampled(spelling, channels=channels, f=f, g=2), UPSAMPLE)
    assert any(f"a pixel has {4 * channels} bytes only: up to {limit}" in r for r in reasons)
    enough = upsampled(spelling, channels=limit // 4, f=f, g=2)
    assert apply(enough, UPSAMPLE).counts()["upsample"] >= 1


def test_broadcasting_is_slower_at_any_number_of_channels() -> None:
    assert kinds(fuse(upsampled(broadcast, channels=1), UPSAMPLE)[0]) == ["RELU", "RESIZE_NEAREST_NEIGHBOR", "RELU"]


def test_an_inner_result_is_needed() -> None:
    b = Builder()
    x = b.op(Op.RELU, [b.input("x", (1, 4, 5, 128))])
    y = tile(b, reshape(b, x, 1, 4, 1, 5, 128), 1, 1, 2, 1, 1)
    (reason,) = refusals(b.model([reshape(b, y, 1, 8, 5, 128), b.op(Op.NEG, [y])]), UPSAMPLE)
    assert "also read by NEG" in reason


def repeated_otherwise(b: Builder, x: int, size: tuple[int, int, int], f: int, g: int) -> int:
    """The whole image again and again, not each pixel."""
    return reshape(b, tile(b, x, 1, f, g, 1), -1, size[0] * f, size[1] * g, size[2])


def channels_too(b: Builder, x: int, size: tuple[int, int, int], f: int, g: int) -> int:
    return reshape(b, tile(b, x, 1, 1, 1, f), -1, size[0], size[1], size[2] * f)


def nearly(b: Builder, x: int, size: tuple[int, int, int], f: int, g: int) -> int:
    """Each row twice, but for the last."""
    rows = np.repeat(np.arange(size[0], dtype=np.int32), 2)
    rows[-1] = 0
    y = b.op(Op.GATHER, [x, b.constant("rows", rows)], axis=1)
    return reshape(b, y, -1, 2 * size[0], size[1], size[2])


@pytest.mark.parametrize("spelling", [repeated_otherwise, channels_too, nearly])
def test_other_repetitions_are_no_candidates(spelling: Spelling) -> None:
    assert refusals(upsampled(spelling), UPSAMPLE) == []


def test_integers_that_the_kernel_does_not_take() -> None:
    b = Builder()
    x = b.input("x", (1, 4, 5, 128), I32)
    model = b.model([b.op(Op.NEG, [keras(b, x, (4, 5, 128), 2, 2)])])
    assert refusals(model, UPSAMPLE) == []


def test_variables_may_change_in_between() -> None:
    b = Builder()
    y = keras(b, b.input("x", (1, 4, 5, 128)), (4, 5, 128), 2, 2)
    model = b.model([y])
    model.subgraphs[0].tensors[0].is_variable = True
    assert apply(model, UPSAMPLE).counts() == {}
