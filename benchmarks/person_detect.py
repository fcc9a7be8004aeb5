"""Spatial tiling of a model like TFLM's person_detect: MobileNetV1 0.25, 96x96x1, int8 throughout, random weights.

`python benchmarks/person_detect.py make OUT.tflite` needs tensorflow. What matters for memory is the shapes, which are
those of the original; weights and statistics are drawn so that all channels live and the classes differ.

`python benchmarks/person_detect.py measure MODEL.tflite [ROWSxCOLUMNS...]` tiles the stage in which memory peaks and
prints a Markdown table: the peak of litefuse's plan for TFLM, what TFLM takes for tensors (head) with that plan written
into the file and for its own records (tail), all in bytes, and whether the results are equal to the bit, in LiteRT's
builtin kernels and in TFLM, for random and extreme inputs. Any model with one integer input will do.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# Output channels (before the width multiplier) and stride of the depthwise separable blocks.
_BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)


def network(size: int, width: float) -> Any:
    """The Keras model, SAME padding everywhere as in TF-Slim's; batch 1."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(7)

    def normal(x: Any) -> Any:
        draw = keras.initializers.RandomUniform
        x = layers.BatchNormalization(
            gamma_initializer=draw(0.6, 1.4), beta_initializer=draw(-0.5, 1.0), moving_variance_initializer=draw(0.5, 2)
        )(x)
        return layers.ReLU(6.0)(x)

    image = keras.Input((size, size, 1), batch_size=1)
    x = normal(layers.Conv2D(round(32 * width), 3, 2, "same", use_bias=False, kernel_initializer="he_normal")(image))
    for channels, stride in _BLOCKS:
        x = normal(layers.DepthwiseConv2D(3, stride, "same", use_bias=False, depthwise_initializer="he_normal")(x))
        x = normal(layers.Conv2D(round(channels * width), 1, use_bias=False, kernel_initializer="he_normal")(x))
    x = layers.GlobalAveragePooling2D(keepdims=True)(x)
    x = layers.Flatten()(layers.Conv2D(2, 1)(x))
    return keras.Model(image, layers.Softmax()(x))


def make(size: int = 96, width: float = 0.25) -> bytes:
    """The `.tflite` file: int8 input, output and arithmetic."""
    import tensorflow as tf

    model = network(size, width)
    rng = np.random.default_rng(7)

    def samples() -> Iterator[list[Any]]:
        for _ in range(64):
            yield [rng.uniform(-1, 1, (1, size, size, 1)).astype(np.float32)]

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = samples
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    return bytes(converter.convert())


def inputs(shape: list[int], dtype: Any) -> Iterator[Any]:
    """Random ones, extreme ones, and ones of extremes only."""
    rng = np.random.default_rng(0)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    for _ in range(4):
        yield rng.integers(low, high + 1, shape).astype(dtype)
    for value in (low, (low + high) // 2, high):
        yield np.full(shape, value, dtype)
    for _ in range(3):
        yield rng.choice(np.array([low, high], dtype), shape)


def litert_results(model: bytes, values: list[Any]) -> list[Any]:
    """The first output for each input, from LiteRT's builtin kernels."""
    from litefuse.runtime import interpreter

    runner = interpreter(model, xnnpack=False)
    runner.allocate_tensors()
    found = []
    for value in values:
        runner.set_tensor(runner.get_input_details()[0]["index"], value)
        runner.invoke()
        found.append(runner.get_tensor(runner.get_output_details()[0]["index"]).copy())
    return found


def tflm_results(model: bytes, values: list[Any]) -> tuple[list[Any], int, int]:
    """The first output for each input from TFLM, and the bytes of its head and tail."""
    import tempfile

    from tflite_micro.python.tflite_micro import runtime

    runner = runtime.Interpreter.from_bytes(model)
    found = []
    for value in values:
        runner.set_input(value, 0)
        runner.invoke()
        found.append(runner.get_output(0).copy())
    # TFLM only prints what it allocated.
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            runner.print_allocations()
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        file.seek(0)
        text = file.read().decode()
    sizes = [int(re.findall(rf"allocation {part} (\d+) bytes", text)[0]) for part in ("head", "tail")]
    return found, sizes[0], sizes[1]


def measure(path: Path, grids: list[tuple[int, int]]) -> None:
    """Prints the table."""
    from litefuse.arena.offline import write_plan
    from litefuse.arena.plan import plan
    from litefuse.arena.tiling import fit
    from litefuse.schema import read, to_bytes

    model = read(path)
    main = model.subgraphs[0]
    tensor = main.tensors[main.inputs[0]]
    values = list(inputs(list(tensor.shape or ()), np.dtype(tensor.type.name.lower())))
    litert = litert_results(to_bytes(model), values)
    micro, head, tail = tflm_results(to_bytes(model), values)
    base = plan(model, runtime="tflm").peak
    print("| patches | operators | extra MACs | plan | ratio | TFLM head | tail | equal in LiteRT, TFLM |")
    print("|---|---|---|---|---|---|---|---|")
    print(f"| none | {len(main.operators)} | - | {base} | 1 | {head} | {tail} | - |")
    for rows, columns in grids:
        # A budget that nothing meets: of the stages, the one that gives the smallest peak.
        found = fit(model, 0, grids=[(rows, columns)]).tiled
        if not found:
            print(f"| {rows} x {columns} | - | | | | | | |")
            continue
        done = found[0]
        planned = plan(done.model, runtime="tflm")
        written = write_plan(done.model, planned).model
        same = all(map(np.array_equal, litert, litert_results(to_bytes(done.model), values)))
        results, head, tail = tflm_results(to_bytes(written), values)
        cells = (
            f"{rows} x {columns}",
            len(done.model.subgraphs[0].operators),
            f"{done.extra_macs / done.macs_before:+.1%}",
            planned.peak,
            f"{planned.peak / base:.3f}",
            head,
            tail,
            f"{same}, {all(map(np.array_equal, micro, results))}",
        )
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "measure"))
    parser.add_argument("model", type=Path)
    parser.add_argument("grids", nargs="*", default=["2x2", "3x3", "4x4"])
    arguments = parser.parse_args()
    if arguments.what == "make":
        arguments.model.write_bytes(make())
    else:
        measure(arguments.model, [tuple(map(int, grid.split("x"))) for grid in arguments.grids])
