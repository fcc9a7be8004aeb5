"""What stock TensorFlow and Keras leave unfused, and what of it is left after litefuse.

`python benchmarks/gap_table.py` (with the `keras` extra installed) builds small Keras models, converts each with the
stock converter and then with litefuse, which compares the results, and prints one Markdown row for each: the
operators before and after, and what they should be. Rows whose wanted form is not reached are marked.
`--nets` adds the application networks with random weights and any batch size, as Keras exports them, converted with
`--batch 1`: operators, those that compute shapes, XNNPACK partitions, and the paired time of original and result.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from corpus import paired, partitions, prepare
from keras import layers

import litefuse
from litefuse.errors import LitefuseError
from litefuse.schema import Model
from litefuse.schema.operators import builtin_code

Layers = Callable[[Any], Any]


def sequence(*steps: Layers) -> Layers:
    """Layers applied one after the other."""

    def run(x: Any) -> Any:
        for step in steps:
            x = step(x)
        return x

    return run


def conv(filters: int = 8, size: int = 3, **options: Any) -> Layers:
    return lambda x: layers.Conv2D(filters, size, **options)(x)


def bn() -> Layers:
    return lambda x: layers.BatchNormalization()(x)


def act(name: str) -> Layers:
    return lambda x: layers.Activation(name)(x)


def fn(function: Callable[[Any], Any]) -> Layers:
    return lambda x: layers.Lambda(function)(x)


def nasnet_like(x: Any) -> Any:
    """Two convolutions, concatenated, then BatchNorm."""
    parts = [layers.Conv2D(8, 1)(x), layers.Conv2D(8, 3, padding="same")(x)]
    return layers.ReLU()(layers.BatchNormalization()(layers.Concatenate()(parts)))


def nchw(x: Any) -> Any:
    """Convolutions of an NCHW model as importers write them, with a transposition on both sides."""
    for _ in range(2):
        x = layers.Permute((2, 3, 1))(x)
        x = layers.Conv2D(8, 3, padding="same")(x)
        x = layers.Permute((3, 1, 2))(x)
        x = layers.LeakyReLU(negative_slope=0.1)(x)
    return x


def normalization(x: Any) -> Any:
    """Normalization with known statistics in front of a convolution."""
    layer = layers.Normalization(mean=np.linspace(0.1, 0.5, 8), variance=np.linspace(0.5, 2, 8))
    return layers.Conv2D(8, 3)(layer(x))


def mish(x: Any) -> Any:
    return x * keras.ops.tanh(keras.ops.softplus(x))


IMAGE, ROW, VOLUME = (16, 16, 8), (32,), (8, 8, 8, 2)

# Name, input shape without batch, layers, the operators wanted (a regular expression over their names joined by
# spaces); None where only a delegate can hold the form.
ROWS: list[tuple[str, tuple[int, ...], Layers, str | None]] = [
    ("conv+BN+relu", IMAGE, sequence(conv(), bn(), act("relu")), r"CONV_2D"),
    ("dw+BN+relu6", IMAGE, sequence(lambda x: layers.DepthwiseConv2D(3)(x), bn(), act("relu6")), r"DEPTHWISE_CONV_2D"),
    ("dense+BN+relu", ROW, sequence(lambda x: layers.Dense(16)(x), bn(), act("relu")), r"FULLY_CONNECTED"),
    ("conv+relu -> BN -> conv VALID", IMAGE, sequence(conv(), act("relu"), bn(), conv()), r"CONV_2D CONV_2D"),
    (
        "conv+relu -> BN -> dense",
        IMAGE,
        sequence(conv(), act("relu"), bn(), lambda x: layers.Flatten()(x), lambda x: layers.Dense(4)(x)),
        r"CONV_2D RESHAPE FULLY_CONNECTED",
    ),
    ("conv+relu -> BN -> conv SAME", IMAGE, sequence(conv(), act("relu"), bn(), conv(padding="same")), None),
    ("BN -> relu -> conv", IMAGE, sequence(bn(), act("relu"), conv()), None),
    ("convs -> CONCAT -> BN -> relu", IMAGE, nasnet_like, r"CONV_2D CONV_2D CONCATENATION"),
    (
        "conv -> AVERAGE_POOL -> BN",
        IMAGE,
        sequence(conv(), lambda x: layers.AveragePooling2D(2)(x), bn()),
        r"CONV_2D AVERAGE_POOL_2D",
    ),
    (
        "conv -> MAX_POOL -> BN -> relu",
        IMAGE,
        sequence(conv(), lambda x: layers.MaxPooling2D(2)(x), bn(), act("relu")),
        r"CONV_2D MAX_POOL_2D",
    ),
    ("CONV_3D -> BN -> relu", VOLUME, sequence(lambda x: layers.Conv3D(4, 3)(x), bn(), act("relu")), r"CONV_3D"),
    (
        "TRANSPOSE_CONV + bias + BN + relu",
        IMAGE,
        sequence(lambda x: layers.Conv2DTranspose(8, 2, strides=2)(x), bn(), act("relu")),
        r"TRANSPOSE_CONV",
    ),
    ("Normalization -> conv", IMAGE, normalization, r"CONV_2D"),
    ("Rescaling -> conv", IMAGE, sequence(lambda x: layers.Rescaling(1 / 127.5, -1)(x), conv()), r"CONV_2D"),
    ("UpSampling2D(2)", (16, 16, 32), lambda x: layers.UpSampling2D(2)(x), r"RESIZE_NEAREST_NEIGHBOR"),
    (
        "0.16667*x*relu6(x+3)",
        IMAGE,
        sequence(conv(), fn(lambda x: 0.16667 * x * tf.nn.relu6(x + 3))),
        r"CONV_2D HARD_SWISH",
    ),
    (
        "x*clip(x/6+.5,0,1)",
        IMAGE,
        sequence(conv(), fn(lambda x: x * tf.clip_by_value(x / 6 + 0.5, 0, 1))),
        r"CONV_2D HARD_SWISH",
    ),
    ("conv+hard_swish", IMAGE, sequence(conv(), act("hard_swish")), r"CONV_2D HARD_SWISH"),
    ("conv+BN+swish", IMAGE, sequence(conv(), bn(), act("swish")), r"CONV_2D LOGISTIC MUL"),
    (
        "gelu (tanh)",
        IMAGE,
        sequence(conv(), fn(lambda x: keras.activations.gelu(x, approximate=True))),
        r"CONV_2D GELU",
    ),
    (
        "softplus (inf from 89 on)",
        ROW,
        sequence(lambda x: layers.Dense(8)(x), act("softplus")),
        r"FULLY_CONNECTED MINIMUM EXP ADD LOG MAXIMUM",
    ),
    ("mish", ROW, sequence(lambda x: layers.Dense(8)(x), fn(mish)), None),
    (
        "NCHW conv, leaky, conv, leaky",
        (8, 16, 16),
        nchw,
        r"TRANSPOSE CONV_2D LEAKY_RELU CONV_2D (LEAKY_RELU TRANSPOSE|TRANSPOSE LEAKY_RELU)",
    ),
    ("LayerNorm", (16, 8), lambda x: layers.LayerNormalization()(x), None),
    ("RMSNorm", (16, 8), lambda x: layers.RMSNormalization()(x), None),
    ("softmax over axis 1", (16, 8), lambda x: layers.Softmax(axis=1)(x), None),
    ("MultiHeadAttention", (16, 8), lambda x: layers.MultiHeadAttention(2, 4)(x, x), None),
    ("PReLU", IMAGE, sequence(conv(), lambda x: layers.PReLU(shared_axes=[1, 2])(x)), r"CONV_2D PRELU"),
]

NETS = [
    "MobileNetV2",
    "MobileNetV3Small",
    "EfficientNetB0",
    "EfficientNetV2B0",
    "ResNet50V2",
    "DenseNet121",
    "NASNetMobile",
    "ConvNeXtTiny",
]


def convert_with_keras(model: Any, batch: int | None) -> bytes:
    """A SavedModel of the model, converted by the stock converter with a fixed batch where one is given."""
    shapes = [tf.TensorSpec((batch, *x.shape[1:]), tf.float32, name="input") for x in model.inputs]
    with tempfile.TemporaryDirectory() as directory:
        model.export(directory, format="tf_saved_model", verbose=False, input_signature=shapes)
        converter = tf.lite.TFLiteConverter.from_saved_model(directory)
        return bytes(converter.convert())


def randomise(model: Any) -> Any:
    """Gives BatchNorm statistics that are not the identity."""
    rng = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            # Without gamma or beta where the layer has no scale or no shift.
            layer.set_weights(
                [
                    rng.normal(0, 0.2, w.shape) if w.name in ("beta", "moving_mean") else rng.uniform(0.5, 1.5, w.shape)
                    for w in layer.weights
                ]
            )
    return model


def names(model: Model) -> list[str]:
    """The operators of the main subgraph, in order."""
    codes = [builtin_code(c) for c in model.operator_codes]
    return [getattr(codes[op.opcode_index], "name", "?") for op in model.subgraphs[0].operators]


def rows() -> Iterator[tuple[str, bytes, str | None]]:
    """Name, file and wanted operators of each small model."""
    for name, shape, build, wanted in ROWS:
        keras.utils.set_random_seed(0)
        x = keras.Input(shape)
        yield name, convert_with_keras(randomise(keras.Model(x, build(x))), 1), wanted


# Operators that are there to compute shapes, or to apply those that were computed.
SHAPES = frozenset({"SHAPE", "PACK", "STRIDED_SLICE", "GATHER", "REDUCE_PROD", "CONCATENATION", "BROADCAST_TO", "FILL"})


def shape_operators(model: Model) -> int:
    """How many operators a shape is computed with: those that lead from a SHAPE."""
    codes = [getattr(builtin_code(c), "name", "?") for c in model.operator_codes]
    reached: set[int] = set()
    count = 0
    for op in model.subgraphs[0].operators:
        kind = codes[op.opcode_index]
        if kind == "SHAPE" or (kind in SHAPES and reached.intersection(op.inputs)):
            reached.update(op.outputs)
            count += 1
    return count


def net(name: str) -> str:
    """A row of the table of networks."""
    keras.utils.set_random_seed(0)
    model = randomise(getattr(keras.applications, name)(weights=None, input_shape=(224, 224, 3)))
    with tempfile.TemporaryDirectory() as directory:
        path, out = Path(directory) / "model.tflite", Path(directory) / "result.tflite"
        path.write_bytes(convert_with_keras(model, None))
        start = time.perf_counter()
        done = litefuse.convert(path, out, batch=1)
        seconds = time.perf_counter() - start
        before = litefuse.load(path)
        runners = prepare(path.read_bytes()), prepare(out.read_bytes())
        times = paired(runners, 10.0)
        counts = [f"{len(names(m))}" for m in (before, done.model)]
        shapes = [str(shape_operators(m)) for m in (before, done.model)]
        parts = [str(partitions(runner)) for runner in runners]
        sizes = [f"{p.stat().st_size / 1e6:.1f}" for p in (path, out)]
        cells = [" → ".join(pair) for pair in (counts, shapes, parts, sizes)]
        rewriting = done.seconds["rewriting"]
        return f"| {name} | {' | '.join(cells)} | {times} | {rewriting:.2f} of {seconds:.1f} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", action="store_true", help="also the application networks")
    arguments = parser.parse_args()
    print("| source | operators | after litefuse | |\n|---|---|---|---|")
    missed = 0
    for name, data, wanted in rows():
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "model.tflite"
            path.write_bytes(data)
            before = names(litefuse.load(path))
            try:
                after = names(litefuse.convert(path).model)
            except LitefuseError as error:
                print(f"| {name} | {len(before)} | **failed**: {error} | |")
                missed += 1
                continue
        verdict = "reached" if wanted is not None else "for a delegate's region"
        if wanted is not None and not re.fullmatch(wanted, " ".join(after)):
            verdict = f"**wanted {wanted}**"
            missed += 1
        short = [f"{len(ops)}: {' '.join(ops)}" if len(ops) <= 14 else str(len(ops)) for ops in (before, after)]
        print(f"| {name} | {short[0]} | {short[1]} | {verdict} |", flush=True)
    print(f"\n{missed} rows are not what they should be")
    if arguments.nets:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print("\n| network | operators | computing shapes | partitions | MB | ms | ratio (quartiles) | s to rewrite |")
        print("|---|---|---|---|---|---|---|---|")
        for name in NETS:
            print(net(name), flush=True)


if __name__ == "__main__":
    main()
