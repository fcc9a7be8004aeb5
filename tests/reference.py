"""Float64 reference versions of the operators with weights, written plainly from their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[np.float64]


def activation(x: Array, name: str) -> Array:
    """NONE, RELU, RELU6 or RELU_N1_TO_1."""
    low, high = {"NONE": (-np.inf, np.inf), "RELU": (0, np.inf), "RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1)}[name]
    return np.clip(x, low, high)


def pad_same(x: Array, kernel: list[int], strides: list[int]) -> Array:
    """Zero padding of the middle axes as SAME has it: the extra element goes behind."""
    pads = [(0, 0)]
    for size, k, s in zip(x.shape[1:-1], kernel, strides, strict=True):
        total = max((-(-size // s) - 1) * s + k - size, 0)
        pads.append((total // 2, total - total // 2))
    return np.pad(x, [*pads, (0, 0)])


def convolution(
    x: Any, weights: Any, bias: Any, strides: list[int], same: bool, dilations: list[int] | None = None
) -> Array:
    """Convolution over the middle axes; weights are [*kernel, input channels, output channels]; groups are found
    from the number of input channels that the weights have.
    """
    x, w = np.asarray(x, np.float64), np.asarray(weights, np.float64)
    spatial = x.ndim - 2
    dilations = dilations or [1] * spatial
    spread = np.zeros([(k - 1) * d + 1 for k, d in zip(w.shape[:spatial], dilations, strict=True)] + list(w.shape[-2:]))
    spread[tuple(slice(None, None, d) for d in dilations)] = w
    kernel = list(spread.shape[:spatial])
    if same:
        x = pad_same(x, kernel, strides)
    windows = sliding_window_view(x, kernel, axis=tuple(range(1, spatial + 1)))
    windows = windows[(slice(None), *(slice(None, None, s) for s in strides))]
    axes = list(range(spatial))
    groups = x.shape[-1] // w.shape[-2]
    outputs = []
    for g in range(groups):
        part = windows.take(range(g * w.shape[-2], (g + 1) * w.shape[-2]), axis=spatial + 1)
        share = spread[..., g * w.shape[-1] // groups : (g + 1) * w.shape[-1] // groups]
        window_axes = [part.ndim - spatial + i for i in range(spatial)]
        outputs.append(np.tensordot(part, share, axes=([part.ndim - spatial - 1, *window_axes], [spatial, *axes])))
    result = np.concatenate(outputs, axis=-1)
    return result if bias is None else result + np.asarray(bias, np.float64)


def conv_2d(x: Any, weights: Any, bias: Any, **how: Any) -> Array:
    """CONV_2D: weights [output, height, width, input]."""
    return convolution(x, np.transpose(weights, (1, 2, 3, 0)), bias, **how)


def depthwise(x: Any, weights: Any, bias: Any, **how: Any) -> Array:
    """DEPTHWISE_CONV_2D: weights [1, height, width, output]."""
    return convolution(x, np.asarray(weights)[0][:, :, None, :], bias, **how)


def transpose_conv(x: Any, weights: Any, bias: Any, stride: int) -> Array:
    """TRANSPOSE_CONV with VALID padding: each input element adds its kernel to the output."""
    x, w = np.asarray(x, np.float64), np.asarray(weights, np.float64)  # weights [output, height, width, input]
    n, h, wd, _ = x.shape
    o, kh, kw, _ = w.shape
    out = np.zeros((n, (h - 1) * stride + kh, (wd - 1) * stride + kw, o))
    for i in range(h):
        for j in range(wd):
            block = np.einsum("nc,ohwc->nhwo", x[:, i, j], w)
            out[:, i * stride : i * stride + kh, j * stride : j * stride + kw] += block
    return out if bias is None else out + np.asarray(bias, np.float64)
