"""Makes the application networks that `vs_xnnpack.py` and `arm_counts.py` measure: fresh from Keras, random weights.

    python benchmarks/keras_models.py [--models DIRECTORY] [--again] [NAME...]

Wants the `keras` extra installed. Inputs are 224x224 with a batch of one; weights come from a seed, and statistics of
BatchNorm, scales and shifts are such that none is the identity. Files go to --models, else to the directory that
LITEFUSE_BENCH_MODELS names, else to ~/.cache/litefuse/models; those that are there already stay.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

NAMES = ("MobileNetV2", "EfficientNetV2B0", "ConvNeXtTiny", "ResNet50V2", "DenseNet121", "MobileNetV3Small")
DIRECTORY = "LITEFUSE_BENCH_MODELS"
"""The environment variable that names the directory."""


def directory(chosen: Path | None = None) -> Path:
    """Where the files are."""
    return chosen or Path(os.environ.get(DIRECTORY) or Path.home() / ".cache/litefuse/models")


def make(name: str) -> bytes:
    """The file of a network."""
    import keras
    from gap_table import convert_with_keras, randomise

    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, name)(weights=None, input_shape=(224, 224, 3))
    return convert_with_keras(_calmed(scaled(randomise(model))), 1)


def scaled(model: Any) -> Any:
    """Random scales and shifts for the layers of ConvNeXt that begin near zero or as the identity."""
    import numpy as np

    rng = np.random.default_rng(1)
    for layer in model.layers:
        kind = type(layer).__name__
        if kind == "LayerScale":
            layer.set_weights([rng.uniform(0.1, 0.3, w.shape) for w in layer.weights])
        elif kind == "LayerNormalization":
            gamma, beta = (w.shape for w in layer.weights)
            layer.set_weights([rng.uniform(0.5, 1.5, gamma), rng.normal(0, 0.2, beta)])
    return model


def _calmed(model: Any) -> Any:
    """Classifier weights such that softmax does not answer with a single one, which would hide all differences."""
    import keras
    import numpy as np

    last = [layer for layer in model.layers if hasattr(layer, "kernel")][-1]
    x = np.random.default_rng(2).uniform(0, 1, (1, *model.input_shape[1:])).astype(np.float32)
    features = keras.Model(model.input, last.input).predict(x, verbose=0).reshape(-1)
    kernel, *others = last.get_weights()
    logits = features @ kernel.reshape(features.size, -1)
    last.set_weights([kernel / np.std(logits), *others])
    return model


def main() -> int:
    """Makes what is missing; returns how many failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="the directory")
    parser.add_argument("--again", action="store_true", help="make also what is there already")
    parser.add_argument("names", nargs="*", metavar="NAME", help="any of keras.applications; by default the usual six")
    given = parser.parse_args()
    where = directory(given.models)
    where.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in given.names or NAMES:
        path = where / f"{name}.tflite"
        if path.exists() and not given.again:
            print(f"{path} is there")
            continue
        try:
            data = make(name)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed += 1
            continue
        part = path.with_suffix(".part")
        part.write_bytes(data)
        part.replace(path)
        print(f"{path}: {len(data) / 1e6:.1f} MB", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
