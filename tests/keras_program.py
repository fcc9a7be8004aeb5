"""Trains and exports in an environment with Keras and TensorFlow, where there need be no pytest.

Started as `python keras_program.py PART DIRECTORY`; the answer is JSON on the last line of standard output.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import litefuse.keras
from litefuse.interface import entries
from litefuse.keras import LiteFuseExport, export
from litefuse.keras.sources import Port

_GLYPHS = (
    "111101101101111",
    "010110010010111",
    "111001111100111",
    "111001111001111",
    "101101111001001",
    "111100111001111",
    "111100111101111",
    "111001010010010",
    "111101111101111",
    "111101111001111",
)


def digits(count: int, seed: int) -> tuple[Any, Any]:
    """Noisy 16x16 images of digits at random places, with their classes."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 10, count)
    images = rng.normal(0, 0.25, (count, 8, 8, 1))
    for image, digit in zip(images, classes, strict=True):
        glyph = np.array([int(c) for c in _GLYPHS[digit]], float).reshape(5, 3)
        row, column = rng.integers(0, 4), rng.integers(0, 6)
        image[row : row + 5, column : column + 3, 0] += glyph * rng.uniform(0.7, 1.3)
    return images.repeat(2, 1).repeat(2, 2).astype(np.float32), classes


def network(filters: int = 24, depth: int = 2) -> Any:
    """A small network with what converters leave unfused: BatchNorm behind the activation, and swish."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((16, 16, 1), name="image")])
    for _ in range(depth):
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.BatchNormalization(momentum=0.8))
        model.add(layers.DepthwiseConv2D(3, padding="same"))
        model.add(layers.BatchNormalization(momentum=0.8))
        model.add(layers.Activation("swish"))
        model.add(layers.Conv2D(filters, 1))
        model.add(layers.BatchNormalization(momentum=0.8))
        model.add(layers.Activation("swish"))
    model.add(layers.GlobalMaxPooling2D())
    model.add(layers.Dense(10, activation="softmax"))
    model.compile(keras.optimizers.Adam(0.005), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def predictions(file: Path, images: Any) -> list[int]:
    """The classes that tf.lite.Interpreter finds."""
    runner = tf.lite.Interpreter(str(file))
    runner.allocate_tensors()
    into, out = runner.get_input_details()[0], runner.get_output_details()[0]
    found = []
    for image in images:
        value = image[None]
        if into["dtype"] != np.float32:
            scale, zero = into["quantization"]
            value = np.clip(np.round(value / scale) + zero, -128, 127).astype(into["dtype"])
        runner.set_tensor(into["index"], value)
        runner.invoke()
        found.append(int(runner.get_tensor(out["index"])[0].argmax()))
    return found


def train(directory: Path) -> dict[str, Any]:
    """Digits, with exports of every kind at the end, every two epochs, and of the best."""
    x, y = digits(1000, 0)
    test, classes = digits(200, 1)
    np.savez(directory / "test.npz", images=test, classes=classes)
    model = network()
    best = LiteFuseExport(
        directory / "best" / "{epoch:02d}-{val_accuracy:.2f}.tflite",
        save_best_only=True,
        monitor="val_accuracy",
        isolated=False,
    )
    sometimes = LiteFuseExport(directory / "some" / "{epoch}.tflite", every=2, verbose=0, isolated=False, check=False)
    plan = LiteFuseExport(directory / "plan.tflite", target="x86-64-v3", package="plan", latency=0.2)
    history = model.fit(x, y, 64, 5, 0, [best, sometimes, plan], validation_data=(test, classes))
    model.save(directory / "model.keras")
    model.save(directory / "model.h5")
    model.export(directory / "saved", verbose=False)
    wanted = model.predict(test, verbose=0)
    files = {"plan": directory / "plan.tflite"}
    figures = {}
    for name, options in {
        "float32": {},
        "float16": {"quantization": "float16"},
        "dynamic": {"quantization": "dynamic"},
        "int8": {"quantization": "int8", "representative_data": x[:100]},
        "int8_io": {
            "quantization": "int8",
            "representative_data": lambda: ([x[i : i + 1]] for i in range(100)),
            "integer_io": True,
        },
        "int16x8": {
            "quantization": "int16x8",
            "representative_data": tf.data.Dataset.from_tensor_slices((x, y)).batch(7),
        },
    }.items():
        files[name] = directory / f"{name}.tflite"
        figures[name] = export(model, files[name], **options).logs()
    for name in ("model.keras", "model.h5", "saved"):
        files[name] = directory / f"{name}.tflite"
        figures[name] = export(directory / name, files[name]).logs()
    for name in sorted((directory / "best").iterdir()):
        files["best"] = name
    return {
        "history": history.history,
        "epochs": history.epoch,
        "best": [one.epoch for one in best.exports],
        "best_files": sorted(p.name for p in (directory / "best").iterdir()),
        "some": [one.epoch for one in sometimes.exports],
        "some_files": sorted(p.name for p in (directory / "some").iterdir()),
        "keras": [int(i) for i in wanted.argmax(-1)],
        "classes": classes.tolist(),
        "tensorflow": {name: predictions(file, test) for name, file in files.items()},
        "files": {name: str(file) for name, file in files.items()},
        "figures": figures,
    }


# -- what goes wrong -----------------------------------------------------------------------------------------------


def failures(directory: Path) -> dict[str, Any]:
    """Exports that fail in training, and options that are refused before it."""
    x, y = digits(64, 0)
    found: dict[str, Any] = {}

    def fit(name: str, model: Any, *callbacks: Any) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.run_eagerly = True  # for so few steps, tracing takes longer
            try:
                history = model.fit(x, y, epochs=2, verbose=0, callbacks=list(callbacks))
                found[name] = {"losses": len(history.history["loss"]), "warnings": [str(w.message) for w in caught]}
            except Exception as error:
                found[name] = {"error": type(error).__name__, "message": str(error)}

    def refused() -> Any:
        model = keras.Sequential(
            [
                keras.Input((16, 16, 1)),
                layers.Lambda(lambda t: tf.linalg.svd(t[..., 0], compute_uv=False)),
                layers.Dense(10),
            ]
        )
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
        return model

    fit("no operator", refused(), LiteFuseExport(directory / "a.tflite", isolated=False))
    fit("no operator, in a process", refused(), LiteFuseExport(directory / "a.tflite"))
    fit("no operator, strict", refused(), LiteFuseExport(directory / "a.tflite", strict=True, isolated=False))
    fit("no such name", network(4, 1), LiteFuseExport(directory / "{nothing}.tflite", every=1))

    def best(name: str, monitor: str, **options: Any) -> Any:
        file = directory / "best" / name / "{epoch}.tflite"
        return LiteFuseExport(file, save_best_only=True, monitor=monitor, check=False, isolated=False, **options)

    rate = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01)  # logs a quantity that no metric stands for
    fit("no such quantity", network(4, 1), best("missing", "val_loss"))
    fit("no such quantity, strict", network(4, 1), best("strict", "val_loss", strict=True))
    fit("no direction", network(4, 1), rate, best("rate", "learning_rate"))
    fit("a direction", network(4, 1), rate, best("low", "learning_rate", mode="min"))
    vector = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(vector=np.zeros(2)))
    fit("several numbers", network(4, 1), vector, best("vector", "vector", mode="max"))
    found["best"] = sorted(str(p.relative_to(directory / "best")) for p in (directory / "best").glob("*/*"))
    (directory / "file").write_text("")
    fit("no directory", network(4, 1), LiteFuseExport(directory / "file" / "c.tflite"))
    fit(
        "bad data",
        network(4, 1),
        LiteFuseExport(directory / "d.tflite", quantization="int8", representative_data=x[:, 1:]),
    )
    for name, options in {
        "quantization": {"quantization": "int4"},
        "data missing": {"quantization": "int8"},
        "data for nothing": {"representative_data": x},
        "integer_io": {"integer_io": True},
        "level": {"level": "bold"},
        "target": {"target": "abacus"},
        "package": {"package": "box"},
        "package for tflm": {"package": "plan", "target": "tflm"},
        "rule": {"disable": ["no-such-rule"]},
        "batch": {"batch": 0},
        "latency": {"latency": -1},
        "unknown": {"quantisation": "int8"},
        "every": {"every": 0},
        "mode": {"mode": "up"},
    }.items():
        try:
            LiteFuseExport(directory / "e.tflite", **options)
            found[name] = {}
        except Exception as error:
            found[name] = {"error": type(error).__name__, "message": str(error)}
    try:
        LiteFuseExport("model.keras")
    except Exception as error:
        found["suffix"] = {"error": type(error).__name__, "message": str(error)}
    found["left"] = sorted(p.name for p in directory.iterdir())
    return found | {"monitored": monitored(directory)}


def monitored(directory: Path) -> dict[str, list[list[int]]]:
    """In which epochs Keras' own callback saves, and in which ours exports, when quantities go up and down."""
    from litefuse.keras import callback

    x, y = digits(64, 0)
    export, callback.export = callback.export, lambda *_, **__: SimpleNamespace(logs=dict)
    values = [0.5, 0.7, 0.7, 0.4, float("nan"), 0.9, 0.3, 0.8]
    found: dict[str, list[list[int]]] = {}
    try:
        model = network(4, 1)
        model.run_eagerly = True
        model.fit(x, y, verbose=0)  # so that it has metrics
        model.save = lambda *_, **__: None
        for monitor, mode, threshold in itertools.product(
            ("loss", "val_loss", "accuracy", "val_accuracy"), ("auto", "min", "max"), (None, 0.6)
        ):
            options = {"monitor": monitor, "mode": mode, "initial_value_threshold": threshold, "save_best_only": True}
            theirs = keras.callbacks.ModelCheckpoint(directory / "{epoch}.keras", verbose=0, **options)
            ours = LiteFuseExport(directory / "{epoch}.tflite", verbose=0, strict=True, **options)
            saved: list[int] = []
            for one in (theirs, ours):
                one.set_model(model)
                one.on_train_begin()
            for epoch, value in enumerate(values):
                before = theirs.best
                theirs.on_epoch_end(epoch, {monitor: value})
                saved += [epoch] if theirs.best != before else []
                ours.on_epoch_end(epoch, {monitor: value})
            found[f"{monitor} {mode} {threshold}"] = [saved, [one.epoch for one in ours.exports]]
    finally:
        callback.export = export
    return found


# -- sources -------------------------------------------------------------------------------------------------------


class TwoArguments(keras.Model):
    """Takes two arrays as arguments by name."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, left: Any, right: Any) -> Any:
        return self.dense(left) - self.dense(right)


class Nested(keras.Model):
    """Takes a dictionary, gives a list."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.drop = layers.Dense(3), layers.Dropout(0.5)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return [self.drop(self.dense(inputs["a"]), training=training), inputs["b"] * 2.0]


class Scaled(layers.Layer):
    """A custom layer with an option."""

    def __init__(self, by: float = 2.0, **options: Any) -> None:
        super().__init__(**options)
        self.by = by

    def call(self, inputs: Any) -> Any:
        return keras.ops.tanh(inputs) * self.by

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "by": self.by}


def _functional() -> Any:
    image, extra = keras.Input((6, 6, 2), name="image"), keras.Input((4,), name="extra")
    x = layers.Flatten()(layers.BatchNormalization()(layers.Conv2D(3, 3)(image)))
    x = layers.Concatenate()([x, extra])
    return keras.Model(
        {"image": image, "extra": extra},
        {"age": layers.Dense(1)(x), "kind": layers.Dense(3, activation="softmax")(x)},
    )


def _listed() -> Any:
    a, b = keras.Input((4,), name="left side"), keras.Input((4,))
    return keras.Model([a, b], [layers.Dense(2, name="first")(a), layers.Add(name="second")([a, b])])


def _of(policy: str) -> Any:
    keras.config.set_dtype_policy(policy)
    try:
        a = keras.Input((6, 6, 2), dtype="float32")
        x = layers.Activation("swish")(layers.BatchNormalization()(layers.Conv2D(4, 3)(a)))
        model = keras.Model(a, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))
    finally:
        keras.config.set_dtype_policy("float32")
    return model


def _called(model: Any, *inputs: Any) -> Any:
    model(*inputs)
    return model


_WEIGHTS = tf.Variable(np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32))


@tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="x")])
def declared(x: Any) -> Any:
    """A tf.function with a signature."""
    return tf.nn.relu(x @ _WEIGHTS)


@tf.function
def undeclared(x: Any) -> Any:
    """One without, which gives a dictionary."""
    return {"y": tf.nn.relu(x @ _WEIGHTS), "z": x + 1.0}


def _open() -> Any:
    model = keras.Sequential(
        [keras.Input((None, None, 3), name="image"), layers.Conv2D(4, 3), layers.BatchNormalization()]
    )
    model.add(layers.GlobalAveragePooling2D())
    return model


def sources(directory: Path) -> dict[str, Any]:
    """One export for each kind of source."""
    custom, function = keras.Sequential([keras.Input((4,)), Scaled(3.0), layers.Dense(2)]), keras.Sequential()
    function.add(keras.Input((4,)))
    function.add(layers.Lambda(lambda t: t * 2))
    custom.save(directory / "custom.keras")
    function.save(directory / "lambda.keras")
    custom.save_weights(directory / "only.weights.h5")
    (directory / "broken.keras").write_text("nothing")
    (directory / "empty").mkdir()
    _open().export(directory / "open", verbose=False)
    four, six = np.zeros((2, 4), np.float32), np.zeros((2, 6, 6, 2), np.float32)
    cases: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
        "functional, dictionaries": lambda: (_functional(), {}),
        "functional, lists": lambda: (_listed(), {}),
        "subclassed": lambda: (_called(Nested(), {"a": four, "b": four}), {}),
        "subclassed, batch open": lambda: (_called(Nested(), {"a": four, "b": four}), {"batch": None}),
        "subclassed, never called": lambda: (Nested(), {}),
        "subclassed, with shapes": lambda: (Nested(), {"input_shape": {"a": (4,), "b": (5,)}}),
        "two arguments": lambda: (_called(TwoArguments(), four, four), {}),
        "two arguments, with shapes": lambda: (TwoArguments(), {"input_shape": {"left": (4,), "right": (4,)}}),
        "mixed_float16": lambda: (_of("mixed_float16"), {}),
        "mixed_bfloat16": lambda: (_of("mixed_bfloat16"), {}),
        "float16": lambda: (_called(_of("float16"), six), {}),
        "lstm": lambda: (keras.Sequential([keras.Input((5, 3)), layers.LSTM(4), layers.Dense(2)]), {}),
        "embedding": lambda: (keras.Sequential([keras.Input((5,), dtype="int32"), layers.Embedding(9, 4)]), {}),
        "open sizes": lambda: (_open(), {}),
        "open sizes, with a shape": lambda: (_open(), {"input_shape": (12, 10, 3)}),
        "a shape that cannot be": lambda: (_open(), {"input_shape": (12, 10, 4)}),
        "a name that is not": lambda: (_open(), {"input_shape": {"picture": (12, 10, 3)}}),
        "static batch": lambda: (keras.Sequential([keras.Input(batch_shape=(3, 4)), layers.Dense(2)]), {}),
        "tf.function": lambda: (declared, {}),
        "concrete function": lambda: (declared.get_concrete_function(), {"batch": 2}),
        "tf.function, no signature": lambda: (undeclared, {}),
        "tf.function, with a shape": lambda: (undeclared, {"input_shape": (4,)}),
        "custom object": lambda: (directory / "custom.keras", {"custom_objects": {"Scaled": Scaled}}),
        "custom object, unknown": lambda: (directory / "custom.keras", {}),
        "lambda": lambda: (directory / "lambda.keras", {}),
        "lambda, trusted": lambda: (directory / "lambda.keras", {"safe_mode": False}),
        "weights alone": lambda: (directory / "only.weights.h5", {}),
        "broken": lambda: (directory / "broken.keras", {}),
        "missing": lambda: (directory / "missing.keras", {}),
        "no SavedModel": lambda: (directory / "empty", {}),
        "SavedModel, with a shape": lambda: (directory / "open", {"input_shape": (12, 10, 3), "batch": 2}),
        "something else": lambda: (3, {}),
        "onto itself": lambda: (directory / "custom.keras", {"path": directory / "custom.keras"}),
        "onto a part": lambda: (directory / "open", {"path": directory / "open" / "saved_model.pb"}),
        "into it": lambda: (directory / "open", {"path": directory / "open" / "x.tflite", "batch": 1}),
        "tflm": lambda: (network(4, 1), {"target": "tflm"}),
        "tflm, too small": lambda: (network(4, 1), {"arena_budget": 100}),
        "custom operators": lambda: (network(4, 1), {"package": "custom"}),
    }
    found: dict[str, Any] = {}
    for name, make in cases.items():
        try:
            model, options = make()
            path = options.pop("path", directory / "out.tflite")
            policies = [layer.dtype_policy.name for layer in getattr(model, "layers", ())]
            done = export(model, path, **options)
            entry = entries(done.conversion.model)[0]
            found[name] = {
                "inputs": {port.name: list(port.signature) for port in entry.inputs},
                "outputs": [port.name for port in entry.outputs],
                "types": sorted({port.type.name for port in (*entry.inputs, *entry.outputs)}),
                "max_error": done.max_error,
                "source_error": done.source_error,
                "not_run": done.conversion.not_run,
                "arena": done.arena_bytes,
                "restored": policies == [layer.dtype_policy.name for layer in getattr(model, "layers", ())],
            }
        except Exception as error:
            found[name] = {"error": type(error).__name__, "message": str(error)}
    # A model whose file loses its weights is refused: here the comparison sees another model.
    lost = _functional()
    from litefuse.keras import exporter

    convert = exporter.to_tflite

    def wrong(*wish: Any) -> None:
        for variable in lost.trainable_variables:
            variable.assign(variable + 1.0)
        convert(*wish)

    exporter.to_tflite = wrong
    try:
        export(lost, directory / "lost.tflite")
        found["another model"] = {}
    except Exception as error:
        found["another model"] = {"error": type(error).__name__, "message": str(error)}
    exporter.to_tflite = convert
    found["another model"]["left"] = (directory / "lost.tflite").exists()
    return found | other_backends(directory) | {"data": data()}


def other_backends(directory: Path) -> dict[str, Any]:
    """Exports of models whose backend says that it is not TensorFlow."""
    found: dict[str, Any] = {}
    backend, keras.backend.backend = keras.backend.backend, lambda: "jax"
    try:
        model = _listed()
        done = export(model, directory / "jax.tflite")
        found["jax"] = {"logs": done.logs(), "outputs": len(entries(done.conversion.model)[0].outputs)}

        def refuse(*_: Any, **__: Any) -> None:
            raise NotImplementedError("no way from here")

        model.export = refuse
        export(model, directory / "torch.tflite")
    except Exception as error:
        found["jax, refused"] = {"error": type(error).__name__, "message": str(error)}
    finally:
        keras.backend.backend = backend
    return found


def data() -> dict[str, Any]:
    """Representative data in every form, as the calibration gets them."""
    from litefuse.keras.exporter import samples

    one, two = Port("x", (1, 3), "float32"), Port("y", (1, 2), "int32")
    pair = Port("x", (2, 3), "float32")
    x, y = np.arange(30.0).reshape(10, 3), np.arange(20).reshape(10, 2)
    forms: dict[str, tuple[Any, list[Port]]] = {
        "array": (x, [one]),
        "list of one array": ([x], [one]),
        "list of two": ([x, y], [one, two]),
        "dictionary": ({"y": y, "x": x}, [one, two]),
        "dataset": (tf.data.Dataset.from_tensor_slices((x, y)).batch(4), [one]),
        "dataset of dictionaries": (tf.data.Dataset.from_tensor_slices({"x": x, "y": y}).batch(3), [one, two]),
        "generator": (lambda: ([x[i : i + 1]] for i in range(10)), [one]),
        "batches of two": (x, [pair]),
        "odd number": (x[:9], [pair]),
        "many": (np.zeros((500, 3)), [one]),
        "too few": (x[:1], [pair]),
        "wrong shape": (x[:, :2], [one]),
        "missing input": ({"x": x}, [one, two]),
        "nothing": (iter(()), [one]),
        "failing": (lambda: (1 / 0 for _ in range(2)), [one]),
        "a number": (3.0, [one]),
    }
    found: dict[str, Any] = {}
    for name, (value, ports) in forms.items():
        try:
            made = samples(value, ports)
            found[name] = [len(made), {k: [list(v.shape), str(v.dtype)] for k, v in made[0].items()}]
        except Exception as error:
            found[name] = {"error": type(error).__name__, "message": str(error)}
    return found


if __name__ == "__main__":
    part = {"train": train, "failures": failures, "sources": sources}[sys.argv[1]]
    assert litefuse.keras.__file__.startswith(str(Path(__file__).parent.parent)), (
        "another litefuse than that under test"
    )
    print(json.dumps(part(Path(sys.argv[2])), default=np.ndarray.tolist))
