"""Makes `examples/unfused.tflite`: a small vision model as odd converters leave it, with much to fuse.

Random weights from a fixed seed; what matters is the structure: BatchNorm left as MUL and ADD behind a convolution and
behind a transposed one, after pooling and between a convolution and a dense layer; PReLU and LeakyReLU spelled out;
RELU6 as MINIMUM and MAXIMUM; a redundant RELU; the same constant stored twice; operators that do nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from litefuse.graph.build import Builder
from litefuse.schema import Model
from litefuse.schema.enums import ActivationFunctionType, Padding
from litefuse.schema.operators import Op


def make(seed: int = 0) -> Model:
    """The example model: input `image` [1, 64, 64, 3] float32, outputs `scores` [1, 10] and `mask` [1, 32, 32, 2]."""
    rng = np.random.default_rng(seed)
    b = Builder()

    def normal(name: str, *shape: int) -> int:
        fan_in = max(int(np.prod(shape[1:])), 1)
        return b.constant(name, (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32))

    def channelwise(name: str, channels: int, low: float, high: float) -> int:
        return b.constant(name, rng.uniform(low, high, channels).astype(np.float32))

    def conv(x: int, name: str, channels: int, inputs: int, kernel: int, stride: int, **options: object) -> int:
        weights = [normal(f"{name}/kernel", channels, kernel, kernel, inputs), normal(f"{name}/bias", channels)]
        return b.op(Op.CONV_2D, [x, *weights], name=name, stride_w=stride, stride_h=stride, **options)

    def depthwise(x: int, name: str, channels: int) -> int:
        weights = [normal(f"{name}/kernel", 1, 3, 3, channels), normal(f"{name}/bias", channels)]
        return b.op(Op.DEPTHWISE_CONV_2D, [x, *weights], name=name)

    def batch_norm(x: int, name: str, channels: int, **options: object) -> int:
        x = b.op(Op.MUL, [x, channelwise(f"{name}/scale", channels, 0.5, 1.5)], name=f"{name}/mul")
        return b.op(Op.ADD, [x, channelwise(f"{name}/offset", channels, -0.2, 0.2)], name=f"{name}/add", **options)

    def prelu(x: int, name: str, channels: int) -> int:
        # relu(x) + a (x - |x|), which is PReLU with twice that slope
        slope = b.constant(f"{name}/half_slope", rng.uniform(0.02, 0.2, (1, 1, channels)).astype(np.float32))
        negative = b.op(Op.SUB, [x, b.op(Op.ABS, [x], name=f"{name}/abs")], name=f"{name}/sub")
        negative = b.op(Op.MUL, [negative, slope], name=f"{name}/mul")
        return b.op(Op.ADD, [b.op(Op.RELU, [x], name=f"{name}/relu"), negative], name=f"{name}/add")

    def relu6_by_hand(x: int, name: str) -> int:
        low = b.op(Op.MAXIMUM, [x, b.constant(f"{name}/zero", 0.0)], name=f"{name}/maximum")
        return b.op(Op.MINIMUM, [low, b.constant(f"{name}/six", 6.0)], name=f"{name}/minimum")

    image = b.input("image", [1, 64, 64, 3])
    x = b.op(Op.MUL, [image, b.constant("rescale", 1 / 127.5)], name="rescale")
    x = prelu(batch_norm(conv(x, "stem", 16, 3, 3, 2), "stem/bn", 16), "stem/prelu", 16)
    skip = x
    x = relu6_by_hand(batch_norm(depthwise(x, "block/dw", 16), "block/dw_bn", 16), "block/relu6")
    x = batch_norm(conv(x, "block/project", 16, 16, 1, 1), "block/project_bn", 16)
    x = b.op(Op.RESHAPE, [x, b.constant("block/same_shape", [1, 32, 32, 16])], name="block/nothing")
    x = b.op(Op.ADD, [x, skip], name="block/residual")

    mask = b.op(
        Op.MAXIMUM, [x, b.op(Op.MUL, [x, b.constant("mask/slope", 0.1)], name="mask/leak")], name="mask/leaky_relu"
    )
    mask = conv(mask, "mask", 2, 16, 1, 1)
    mask = b.op(Op.LOGISTIC, [mask], name="mask/sigmoid")

    x = conv(x, "head", 32, 16, 3, 2, padding=Padding.SAME, fused_activation_function=ActivationFunctionType.RELU6)
    x = b.op(Op.RELU, [x], name="head/redundant_relu")
    x = b.op(
        Op.AVERAGE_POOL_2D,
        [batch_norm(x, "head/bn", 32)],
        name="head/pool",
        filter_width=16,
        filter_height=16,
        stride_w=16,
        stride_h=16,
        padding=Padding.VALID,
    )
    x = b.op(Op.RESHAPE, [x, b.constant("head/flat", [1, 32])], name="head/flatten")
    x = b.op(Op.FULLY_CONNECTED, [x, normal("scores/kernel", 10, 32), normal("scores/bias", 10)], name="logits")
    scores = b.op(Op.SOFTMAX, [x], name="scores")
    return b.model([scores, mask], signature="serving_default")


def main() -> None:
    """Writes the model beside this script, or where `-o` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_name("unfused.tflite"))
    output = parser.parse_args().output
    make().save(output)
    print(f"wrote {output} ({output.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
