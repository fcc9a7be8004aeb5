"""Operators over windows and matrices: convolutions, pools, products, resizing, blocks of space, transforms."""

from __future__ import annotations

from litefuse.graph.infer.site import (
    Shape,
    Site,
    Unknown,
    add,
    agree,
    always,
    broadcast,
    declared,
    dim,
    product,
    rule,
    same,
    show,
)
from litefuse.schema.enums import Padding, TensorType
from litefuse.schema.operators import Op


def window(site: Site, size: int, kernel: int, stride: int, dilation: int = 1) -> int:
    """How many places a window has along one dimension, as TFLite's padding.h computes it."""
    site.require(stride > 0 and dilation > 0, "strides and dilations must be positive")
    if size < 0 or kernel < 0:
        return -1
    if site.option("padding") == Padding.SAME:
        return -(-size // stride)
    room = size + stride - ((kernel - 1) * dilation + 1)
    site.require(room > -stride, f"a window of {kernel} with dilation {dilation} does not fit {size} elements")
    return max(room, 0) // stride


# -- convolutions --------------------------------------------------------------------------------------------------


@rule(Op.CONV_2D)
def _conv_2d(site: Site) -> Shape:
    batch, height, width, channels = site.ranked(0, 4)
    count, kernel_h, kernel_w, depth = site.ranked(1, 4)
    fits = channels < 0 or depth < 0 or (depth > 0 and channels % depth == 0)
    site.require(fits, f"{channels} channels do not fit filters over {depth}")
    return (
        batch,
        window(site, height, kernel_h, site.option("stride_h"), site.option("dilation_h_factor")),
        window(site, width, kernel_w, site.option("stride_w"), site.option("dilation_w_factor")),
        count,
    )


@rule(Op.DEPTHWISE_CONV_2D)
def _depthwise_conv_2d(site: Site) -> Shape:
    batch, height, width, channels = site.ranked(0, 4)
    _, kernel_h, kernel_w, count = site.ranked(1, 4)
    fits = channels < 0 or count < 0 or (channels > 0 and count % channels == 0)
    site.require(fits, f"{channels} channels do not fit {count} filters")
    return (
        batch,
        window(site, height, kernel_h, site.option("stride_h"), site.option("dilation_h_factor")),
        window(site, width, kernel_w, site.option("stride_w"), site.option("dilation_w_factor")),
        count,
    )


@rule(Op.CONV_3D)
def _conv_3d(site: Site) -> Shape:
    batch, depth, height, width, channels = site.ranked(0, 5)
    kernel_d, kernel_h, kernel_w, inputs, count = site.ranked(1, 5)
    site.require(agree(channels, inputs), f"{channels} channels do not fit filters over {inputs}")
    return (
        batch,
        window(site, depth, kernel_d, site.option("stride_d"), site.option("dilation_d_factor")),
        window(site, height, kernel_h, site.option("stride_h"), site.option("dilation_h_factor")),
        window(site, width, kernel_w, site.option("stride_w"), site.option("dilation_w_factor")),
        count,
    )


@rule(Op.TRANSPOSE_CONV, type=same(2))
def _transpose_conv(site: Site) -> Shape:
    return _given_shape(site, 4)


@rule(Op.CONV_3D_TRANSPOSE, type=same(2))
def _conv_3d_transpose(site: Site) -> Shape:
    return _given_shape(site, 5)


def _given_shape(site: Site, rank: int) -> Shape:
    """The output shape that input 0 gives."""
    shape = tuple(dim(d) for d in site.integers(0))
    site.require(len(shape) == rank, f"the output shape {show(shape)} does not have {rank} dimensions")
    return shape


@rule(Op.AVERAGE_POOL_2D, Op.L2_POOL_2D, Op.MAX_POOL_2D)
def _pool(site: Site) -> Shape:
    batch, height, width, channels = site.ranked(0, 4)
    return (
        batch,
        window(site, height, site.option("filter_height"), site.option("stride_h")),
        window(site, width, site.option("filter_width"), site.option("stride_w")),
        channels,
    )


@rule(Op.REDUCE_WINDOW)
def _reduce_window(site: Site) -> Shape:
    shape = site.shape(0)
    sizes, strides, dilations = (site.integers(i) for i in (2, 3, 4))
    return tuple(_windows(*place) for place in zip(shape, sizes, strides, dilations, strict=True))


@rule(Op.STABLEHLO_REDUCE_WINDOW)
def _stablehlo_reduce_window(site: Site) -> Shape:
    shape = site.shape(0)
    rank = len(shape)
    base = site.option("base_dilations") or [1] * rank
    padding = site.option("padding") or [0] * 2 * rank
    sizes = site.option("window_dimensions")
    strides = site.option("window_strides") or [1] * rank
    dilations = site.option("window_dilations") or [1] * rank
    padded = [
        -1 if d < 0 else (d - 1) * b + 1 + low + high
        for d, b, low, high in zip(shape, base, padding[::2], padding[1::2], strict=True)
    ]
    return tuple(_windows(*place) for place in zip(padded, sizes, strides, dilations, strict=True))


def _windows(size: int, kernel: int | None, stride: int | None, dilation: int | None) -> int:
    """How many whole windows there are, without padding."""
    if size < 0 or kernel is None or stride is None or dilation is None:
        return -1
    reach = (kernel - 1) * dilation + 1
    return 0 if size < reach else (size - reach) // stride + 1


# -- products ------------------------------------------------------------------------------------------------------


@rule(Op.FULLY_CONNECTED, type=declared)
def _fully_connected(site: Site) -> Shape:
    shape = site.shape(0)
    units, depth = site.ranked(1, 2)
    if site.option("keep_num_dims"):
        site.require(bool(shape) and agree(shape[-1], depth), f"{show(shape)} does not fit {depth} weights per unit")
        return (*shape[:-1], units)
    if depth == 0:
        return (product(shape[:-1]), units)
    total = product(shape)
    if total < 0 and shape and shape[-1] == depth:
        return (product(shape[:-1]), units)
    return (-1 if total < 0 or depth < 0 else total // depth, units)


@rule(Op.BATCH_MATMUL, type=declared)
def _batch_matmul(site: Site) -> Shape:
    a, b = site.shape(0), site.shape(1)
    site.require(len(a) >= 2 and len(b) >= 2, f"{show(a)} and {show(b)} are not matrices")
    rows, inner_a = (a[-1], a[-2]) if site.option("adj_x") else (a[-2], a[-1])
    inner_b, columns = (b[-1], b[-2]) if site.option("adj_y") else (b[-2], b[-1])
    site.require(agree(inner_a, inner_b), f"matrices {show(a)} and {show(b)} cannot be multiplied")
    return (*broadcast(site, (a[:-2], b[:-2])), rows, columns)


# -- space ---------------------------------------------------------------------------------------------------------


@rule(Op.RESIZE_BILINEAR, Op.RESIZE_NEAREST_NEIGHBOR)
def _resize(site: Site) -> Shape:
    batch, _, _, channels = site.ranked(0, 4)
    height, width = site.integers(1)
    return (batch, dim(height), dim(width), channels)


@rule(Op.SPACE_TO_DEPTH)
def _space_to_depth(site: Site) -> Shape:
    batch, height, width, channels = site.ranked(0, 4)
    block = site.option("block_size")
    fits = block > 0 and (height < 0 or height % block == 0) and (width < 0 or width % block == 0)
    site.require(fits, f"{height} x {width} does not fit blocks of {block}")
    return (batch, *(-1 if d < 0 else d // block for d in (height, width)), product((channels, block, block)))


@rule(Op.DEPTH_TO_SPACE)
def _depth_to_space(site: Site) -> Shape:
    batch, height, width, channels = site.ranked(0, 4)
    block = site.option("block_size")
    fits = block > 0 and (channels < 0 or channels % (block * block) == 0)
    site.require(fits, f"{channels} channels do not fit blocks of {block}")
    return (batch, product((height, block)), product((width, block)), -1 if channels < 0 else channels // block**2)


@rule(Op.SPACE_TO_BATCH_ND)
def _space_to_batch(site: Site) -> Shape:
    shape, blocks, paddings = _blocks(site)
    space = []
    for size, block, before, after in zip(shape[1:-1], blocks, paddings[::2], paddings[1::2], strict=True):
        padded = -1 if before is None or after is None else add(size, before, after)
        fits = padded < 0 or block is None or (block > 0 and padded % block == 0)
        site.require(fits, f"{padded} elements do not fit blocks of {block}")
        space.append(-1 if padded < 0 or block is None else padded // block)
    return (product((shape[0], *(dim(b) for b in blocks))), *space, shape[-1])


@rule(Op.BATCH_TO_SPACE_ND)
def _batch_to_space(site: Site) -> Shape:
    shape, blocks, crops = _blocks(site)
    space = []
    for size, block, before, after in zip(shape[1:-1], blocks, crops[::2], crops[1::2], strict=True):
        known = size >= 0 and block is not None and before is not None and after is not None
        space.append(size * block - before - after if known else -1)  # type: ignore[operator]
    folded = product(dim(b) for b in blocks)
    fits = folded != 0 and (shape[0] < 0 or folded < 0 or shape[0] % folded == 0)
    site.require(fits, f"a batch of {shape[0]} does not fit blocks of {blocks}")
    return (-1 if shape[0] < 0 or folded < 0 else shape[0] // folded, *space, shape[-1])


def _blocks(site: Site) -> tuple[Shape, list[int | None], list[int | None]]:
    shape, blocks, amounts = site.shape(0), site.integers(1), site.integers(2)
    fits = len(shape) >= 3 and len(blocks) == len(shape) - 2 and len(amounts) == 2 * len(blocks)
    site.require(fits, f"blocks {blocks} and amounts {amounts} do not fit {show(shape)}")
    return shape, blocks, amounts


# -- transforms ----------------------------------------------------------------------------------------------------


@rule(Op.RFFT2D, type=always(TensorType.COMPLEX64))
def _rfft2d(site: Site) -> Shape:
    shape = site.shape(0)
    if len(shape) < 2:
        raise Unknown
    height, width = site.integers(1)
    return (*shape[:-2], dim(height), -1 if width is None else width // 2 + 1)
