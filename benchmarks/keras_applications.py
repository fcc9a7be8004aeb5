"""Exports a small network of every family in keras.applications, converts and checks it, and prints a table.

    python benchmarks/keras_applications.py [--json] [NAME...]

Wants the `keras` extra installed. Weights come from a seed, inputs are as small as the family permits. Statistics of
BatchNorm are near those of what passes, but none is the identity: so activations neither vanish nor overflow, and the
outputs depend on the input. `litefuse.keras.export` compares each file with TensorFlow's and with the Keras model.
Regions are packaged as a plan for the default target. Exits with 1 when a network failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from inspect import signature
from pathlib import Path
from typing import Any

SIZES = {
    "VGG16": 64,
    "ResNet50": 64,
    "ResNet50V2": 64,
    "InceptionV3": 75,
    "InceptionResNetV2": 75,
    "Xception": 75,
    "MobileNet": 64,
    "MobileNetV2": 64,
    "MobileNetV3Small": 64,
    "MobileNetV3Large": 64,
    "DenseNet121": 64,
    "NASNetMobile": 64,
    "EfficientNetB0": 64,
    "EfficientNetV2B0": 64,
    "ConvNeXtTiny": 64,
}
"""Height and width of the input, by network."""


def network(name: str, size: int) -> Any:
    """A network with random weights that tells images of this height and width apart.

    Random networks may be chaotic, so that rounding alone changes their outputs. What residual blocks add is then made
    smaller, as it is in trained networks.

    Raises ValueError when there is none: comparing its outputs would prove nothing.
    """
    import numpy as np

    for share in (1.0, 0.3, 0.1):
        model = _random(name, size, share)
        rng = np.random.default_rng(4)
        image = rng.uniform(-1, 1, (1, size, size, 3)).astype(np.float32)
        noise = 1e-6 * rng.standard_normal(image.shape).astype(np.float32)
        one, other = (model.predict(x, verbose=0) for x in (image, image + noise))
        if np.abs(one - other).max() < 1e-3 * one.max():
            return model
    raise ValueError("the network multiplies rounding by more than a thousand")


def _random(name: str, size: int, share: float) -> Any:
    """A network of random weights; what residual blocks add is multiplied by ``share``."""
    import keras
    import numpy as np
    from gap_table import randomise
    from keras_models import scaled

    keras.utils.set_random_seed(0)
    make = getattr(keras.applications, name)
    # Layers that bring 0..255 to 0..1 would leave of the inputs of the comparison, which are near 0..1, mere rounding.
    options = {"include_preprocessing": False} if "include_preprocessing" in signature(make).parameters else {}
    model = scaled(randomise(make(weights=None, input_shape=(size, size, 3), **options)))
    for layer in model.layers:
        if isinstance(layer, keras.layers.Add):
            added = layer.input[0]._keras_history.operation
            while isinstance(added, keras.layers.Dropout):
                added = added.input._keras_history.operation
            if isinstance(added, keras.layers.BatchNormalization) and added.scale:
                added.gamma.assign(added.gamma * share)
    rng = np.random.default_rng(3)
    images = rng.uniform(0, 1, (8, size, size, 3)) * np.linspace(0.2, 1, 8)[:, None, None, None]
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    for layer in norms:
        layer.momentum = 0.0
    model(images, training=True)  # leaves the statistics of these images in the layers
    for layer in norms:
        *affine, mean, variance = layer.get_weights()
        mean = mean + rng.normal(0, 0.2, mean.shape) * np.sqrt(variance)
        layer.set_weights([*affine, mean, variance * rng.uniform(0.5, 1.5, variance.shape)])

    last = [layer for layer in model.layers if hasattr(layer, "kernel")][-1]
    kernel, _ = last.get_weights()
    features = keras.Model(model.input, last.input).predict(images, verbose=0).reshape(len(images), -1)
    logits = features @ kernel.reshape(-1, kernel.shape[-1])
    spread = np.std(logits, axis=0).mean()
    last.set_weights([kernel / spread, -logits.mean(0) / spread])
    one, *others = model.predict(images, verbose=0)
    if not all(np.abs(other - one).max() > 0.1 * one.max() for other in others):  # nor where one is not finite
        raise ValueError("the network does not tell images apart")
    return model


def measure(name: str) -> dict[str, Any]:
    """What came of the export of a network. Raises what `litefuse.keras.export` raises."""
    import keras

    import litefuse.keras

    size = SIZES[name]
    model = network(name, size)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        done = litefuse.keras.export(model, Path(directory) / "model.tflite", package="plan")
    seconds = time.perf_counter() - start
    keras.backend.clear_session()
    return {
        "network": name,
        "input": size,
        "stock_operators": done.stock_operators,
        "operators": done.operators,
        "regions": done.regions,
        "max_error": done.max_error,
        "source_error": done.source_error,
        "seconds": seconds,
        "stages": done.seconds,
    }


def main() -> int:
    """Prints the table; returns 1 when a network failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a JSON object by line instead of the table")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the networks; by default all")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in SIZES]
    if unknown:
        parser.error(f"there is no {unknown[0]} among {', '.join(SIZES)}")
    if not given.json:
        print("| network | input | operators | with litefuse | regions | error | error to Keras | s | of it litefuse |")
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
    failed = 0
    for name in given.names or SIZES:
        try:
            found = measure(name)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed = 1
            continue
        if given.json:
            print(json.dumps(found), flush=True)
            continue
        own = found["seconds"] - found["stages"]["tracing"] - found["stages"]["TensorFlow's converter"]
        print(
            f"| {name} | {found['input']} | {found['stock_operators']} | {found['operators']} | {found['regions']} "
            f"| {found['max_error']:.1e} | {found['source_error']:.1e} | {found['seconds']:.0f} | {own:.0f} |",
            flush=True,
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
