"""Exports of Keras models and other sources, made by a program in an environment with TensorFlow."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_environment import environment, run_part
from runtimes import python_of

from litefuse.delegates.runtime import load, report
from litefuse.errors import RuntimeMissingError
from litefuse.runtime import interpreter

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import keras_applications

Found = dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_part("train", tmp_path_factory)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_part("sources", tmp_path_factory)


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run_part("failures", tmp_path_factory)


@pytest.fixture(scope="module")
def data(sources: Found) -> Found:
    found: Found = sources["data"]
    return found


# -- training ------------------------------------------------------------------------------------------------------

FLOATS = ("plan", "float32", "float16", "dynamic", "model.keras", "model.h5", "saved")
INTEGERS = ("int8", "int8_io", "int16x8")


def hits(found: list[int], classes: list[int]) -> int:
    return sum(a == b for a, b in zip(found, classes, strict=True))


def predictions(file: str, *, delegate: bool = False) -> tuple[list[int], int]:
    """The classes that the installed runtime finds, and the number of regions that the delegate claimed."""
    taken = load() if delegate else None
    runner = interpreter(file, delegates=[] if taken is None else [taken])
    runner.allocate_tensors()
    into, out = runner.get_input_details()[0], runner.get_output_details()[0]
    with np.load(Path(file).parent / "test.npz") as arrays:
        images = arrays["images"]
    found = []
    for image in images:
        value = image[None]
        if into["dtype"] != np.float32:
            scale, zero = into["quantization"]
            value = np.clip(np.round(value / scale) + zero, -128, 127).astype(into["dtype"])
        runner.set_tensor(into["index"], value)
        runner.invoke()
        found.append(int(runner.get_tensor(out["index"])[0].argmax()))
    return found, 0 if taken is None else len(report(taken)["regions"])


def test_the_training_is_worth_comparing(trained: Found) -> None:
    assert hits(trained["keras"], trained["classes"]) > 0.8 * len(trained["classes"])
    assert len(set(trained["keras"])) == 10


@pytest.mark.parametrize("name", FLOATS)
def test_float_files_are_as_accurate_as_keras(trained: Found, name: str) -> None:
    own = hits(trained["keras"], trained["classes"])
    assert abs(hits(trained["tensorflow"][name], trained["classes"]) - own) <= 1
    assert abs(hits(predictions(trained["files"][name])[0], trained["classes"]) - own) <= 1


def test_with_the_delegate(trained: Found) -> None:
    try:
        found, regions = predictions(trained["files"]["plan"], delegate=True)
    except RuntimeMissingError as error:
        pytest.skip(str(error))
    assert regions > 0
    assert abs(hits(found, trained["classes"]) - hits(trained["keras"], trained["classes"])) <= 1


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_files_are_nearly_as_accurate(trained: Found, name: str) -> None:
    classes = trained["classes"]
    own, tensorflow = hits(trained["keras"], classes), hits(trained["tensorflow"][name], classes)
    installed = hits(predictions(trained["files"][name])[0], classes)
    print(f"{name}: {own} of {len(classes)} right in Keras, {tensorflow} in TensorFlow's runtime, {installed} here")
    assert min(tensorflow, installed) >= own - 0.03 * len(classes)


def test_figures(trained: Found) -> None:
    sizes = {name: figures["litefuse_size"] for name, figures in trained["figures"].items()}
    assert sizes["int8_io"] < sizes["int8"] < sizes["float16"] < sizes["float32"]
    assert sizes["dynamic"] < sizes["float16"]
    for name, figures in trained["figures"].items():
        assert figures["litefuse_size"] == Path(trained["files"][name]).stat().st_size
        assert 0 <= figures["litefuse_error"] < 1e-4 or "int" in name
        assert figures["litefuse_source_error"] < (1e-4 if name in ("float32", *FLOATS[4:]) else 0.2)
        assert figures["litefuse_arena"] > 0
        assert "litefuse_latency_ms" not in figures


# -- the callback --------------------------------------------------------------------------------------------------


def test_which_epochs_are_exported(trained: Found) -> None:
    values = trained["history"]["val_accuracy"]
    better = [i for i, value in enumerate(values) if value > max(values[:i], default=-1)]
    assert trained["best"] == better
    assert trained["best_files"] == [f"{i + 1:02d}-{values[i]:.2f}.tflite" for i in better]
    assert trained["some"] == [1, 3, 4]
    assert trained["some_files"] == ["2.tflite", "4.tflite", "5.tflite"]


def test_history_has_the_figures_of_every_epoch(trained: Found) -> None:
    history = trained["history"]
    names = ("size", "operators", "regions", "arena", "error", "source_error", "latency_ms")
    assert {f"litefuse_{name}" for name in names} <= set(history)
    assert {len(values) for values in history.values()} == {5}
    assert history["litefuse_latency_ms"][-1] > 0
    assert all(math.isnan(value) for value in history["litefuse_latency_ms"][:-1])
    assert history["litefuse_regions"][-1] > 0


def test_the_table(trained: Found) -> None:
    lines = [line for line in trained["stdout"].splitlines() if line.startswith(("litefuse", "epoch"))]
    assert lines[0].split() == ["litefuse", "size", "operators", "regions", "arena", "error", "latency", "file"]
    rows = [line for line in lines if line.startswith("epoch")]
    assert len(rows) == len(trained["best"]) + 1  # that of the plan; the third callback is silent
    assert rows[-1].endswith("plan.tflite")
    assert " ms " in rows[-1]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no operator", "TFLite has no operator for Svd"),
        ("no operator, in a process", "TFLite has no operator for Svd"),
        ("no such name", "cannot be filled in: 'nothing'; there are epoch, accuracy, loss"),
        ("no directory", "cannot be made a directory"),
        ("bad data", r"samples of shape (15, 16, 1) for image, which takes (16, 16, 1)"),
    ],
)
def test_a_failed_export_is_a_warning(failures: Found, name: str, reason: str) -> None:
    assert failures[name]["losses"] == 2
    said = [text for text in failures[name]["warnings"] if text.startswith("litefuse: nothing was exported in epoch ")]
    assert said, failures[name]
    assert reason in said[0]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no such quantity", "there is no `val_loss` to monitor, but accuracy, loss"),
        ("no direction", "whether `learning_rate` should be low or high is not known; say mode='min' or mode='max'"),
        ("several numbers", "`vector` is not one number"),
    ],
)
def test_a_quantity_that_cannot_be_monitored_is_a_warning(failures: Found, name: str, reason: str) -> None:
    said = [text for text in failures[name]["warnings"] if text.startswith("litefuse: ")]
    wanted = [f"litefuse: exporting in epoch {n} whether it is better or not: {reason}" for n in (1, 2)]
    assert [text[: len(start)] for text, start in zip(said, wanted, strict=True)] == wanted
    assert failures[name]["losses"] == 2


def test_what_cannot_be_monitored_is_exported(failures: Found) -> None:
    every = [f"{name}/{epoch}.tflite" for name in ("missing", "rate", "vector") for epoch in (1, 2)]
    assert failures["best"] == sorted([*every, "low/1.tflite"])
    assert (failures["no such quantity, strict"]["error"]) == "UsageError"
    assert not [text for text in failures["a direction"]["warnings"] if text.startswith("litefuse")]


def test_the_best_is_what_it_is_for_keras(failures: Found) -> None:
    assert len(failures["monitored"]) == 24
    for theirs, ours in failures["monitored"].values():
        assert theirs == ours
    assert failures["monitored"]["val_loss auto None"][1] == [0, 3, 6]
    assert failures["monitored"]["val_accuracy auto 0.6"][1] == [1, 5]


def test_a_failed_export_may_be_an_error(failures: Found) -> None:
    found = failures["no operator, strict"]
    assert (found["error"], "Svd" in found["message"]) == ("LitefuseError", True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quantization", "there is no quantization `int4`; there are None, dynamic, float16, int8, int16x8"),
        ("data missing", "quantization `int8` needs `representative_data`"),
        ("data for nothing", "`representative_data` is for the quantizations int8 and int16x8"),
        ("integer_io", "`integer_io` is for the quantizations int8 and int16x8"),
        ("level", "there is no level `bold`"),
        ("target", "abacus"),
        ("package", "there is no packaging `box`"),
        ("package for tflm", "tflm runs no delegate"),
        ("rule", "no-such-rule"),
        ("batch", "`batch` is a whole number from 1"),
        ("latency", "`latency` is True, or the seconds"),
        ("every", "`every` is a number of epochs from 1"),
        ("mode", "there is no mode `up`; there are auto, min, max"),
        ("suffix", "has to end in .tflite"),
    ],
)
def test_wrong_options_are_refused_before_training(failures: Found, name: str, message: str) -> None:
    assert failures[name].get("error") == "UsageError", failures[name]
    assert message in failures[name]["message"]


def test_an_option_that_there_is_not(failures: Found) -> None:
    assert failures["unknown"]["error"] == "TypeError"
    assert "there is no option `quantisation`; options of litefuse.convert are " in failures["unknown"]["message"]


def test_failures_leave_nothing(failures: Found) -> None:
    assert failures["left"] == ["best", "file"]


# -- sources -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("functional, dictionaries", {"extra": [1, 4], "image": [1, 6, 6, 2]}, ["age", "kind"]),
        ("functional, lists", {"input_1": [1, 4], "left_side": [1, 4]}, ["first", "second"]),
        ("subclassed", {"a": [1, 4], "b": [1, 4]}, ["output_0", "output_1"]),
        ("subclassed, batch open", {"a": [-1, 4], "b": [-1, 4]}, ["output_0", "output_1"]),
        ("subclassed, with shapes", {"a": [1, 4], "b": [1, 5]}, ["output_0", "output_1"]),
        ("two arguments, with shapes", {"left": [1, 4], "right": [1, 4]}, ["output_0"]),
        ("mixed_float16", {"input_0": [1, 6, 6, 2]}, ["output_0"]),
        ("mixed_bfloat16", {"input_0": [1, 6, 6, 2]}, ["output_0"]),
        ("float16", {"input_0": [1, 6, 6, 2]}, ["output_0"]),
        ("lstm", {"input_0": [1, 5, 3]}, ["output_0"]),
        ("embedding", {"input_0": [1, 5]}, ["output_0"]),
        ("open sizes", {"image": [1, -1, -1, 3]}, ["output_0"]),
        ("open sizes, with a shape", {"image": [1, 12, 10, 3]}, ["output_0"]),
        ("static batch", {"input_0": [3, 4]}, ["output_0"]),
        ("tf.function", {"x": [1, 4]}, ["output_0"]),
        ("concrete function", {"x": [2, 4]}, ["output_0"]),
        ("tf.function, with a shape", {"x": [1, 4]}, ["y", "z"]),
        ("custom object", None, ["output_0"]),
        ("lambda, trusted", None, ["output_0"]),
        ("SavedModel, with a shape", {"image": [2, 12, 10, 3]}, ["output_0"]),
        ("into it", {"image": [1, -1, -1, 3]}, ["output_0"]),
        ("tflm", {"image": [1, 16, 16, 1]}, ["output_0"]),
        ("custom operators", {"image": [1, 16, 16, 1]}, ["output_0"]),
    ],
)
def test_sources(sources: Found, name: str, inputs: dict[str, list[int]] | None, outputs: list[str]) -> None:
    found = sources[name]
    assert "error" not in found, found
    assert inputs in (None, found["inputs"])
    assert found["outputs"] == outputs
    assert found["types"] == (["FLOAT32", "INT32"] if name == "embedding" else ["FLOAT32"])
    assert found["restored"]
    if found["not_run"] and "crashed" in found["not_run"]:
        # TensorFlow 2.21's own interpreter does so on images smaller than a window, which LiteRT refuses.
        assert "original" in found["not_run"]
        assert found["source_error"] is found["max_error"] is None
        pytest.skip(f"nothing was compared: {found['not_run']}")
    assert found["source_error"] < 1e-4
    assert found["max_error"] < 1e-4


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("subclassed, never called", "UsageError", "the model does not know its inputs: call it once"),
        ("two arguments", "UsageError", "takes left, right: give `input_shape` as a dictionary with these names"),
        ("a shape that cannot be", "UsageError", "(12, 10, 4) for image, but that takes (None, None, 3)"),
        ("a name that is not", "UsageError", "`input_shape` names picture, but the inputs are image"),
        ("tf.function, no signature", "UsageError", "declares no `input_signature`: give `input_shape`"),
        (
            "custom object, unknown",
            "SchemaError",
            "'Scaled'; classes and functions of your own go into `custom_objects`",
        ),
        ("lambda", "SchemaError", "it holds Python code (a Lambda layer); `safe_mode=False` runs it"),
        ("weights alone", "SchemaError", "the file holds weights without a model"),
        ("broken", "SchemaError", "Keras cannot load it"),
        ("missing", "SchemaError", "there is no such file"),
        ("no SavedModel", "SchemaError", "is a directory without a saved_model.pb"),
        ("something else", "UsageError", "a builtins.int cannot be exported"),
        ("onto itself", "OutputError", "custom.keras: is the input itself"),
        ("onto a part", "OutputError", "saved_model.pb: is part of the input itself"),
        ("tflm, too small", "BudgetError", "100 bytes"),
        ("another model", "CheckError", "the file does not compute what the model does"),
    ],
)
def test_sources_that_are_refused(sources: Found, name: str, error: str, message: str) -> None:
    assert sources[name].get("error") == error, sources[name]
    assert message in sources[name]["message"]


def test_the_arena_is_that_of_the_target(sources: Found) -> None:
    assert sources["tflm"]["arena"] > 0
    assert sources["open sizes"]["arena"] is None


def test_other_backends_leave_it_to_keras(sources: Found) -> None:
    assert sources["jax"]["logs"]["litefuse_source_error"] < 1e-5
    assert sources["jax"]["outputs"] == 2
    refused = sources["jax, refused"]
    assert refused["error"] == "LitefuseError"
    assert refused["message"].startswith("Keras cannot export this model from the backend jax: no way from here.")
    assert "KERAS_BACKEND=tensorflow" in refused["message"]


def test_a_file_that_computes_something_else_is_not_written(sources: Found) -> None:
    assert sources["another model"]["left"] is False


# -- keras.applications --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("MobileNet", "MobileNetV3Small") else pytest.mark.slow)
        for name in keras_applications.SIZES
    ],
)
def test_a_network_of_every_family(name: str) -> None:
    command = [python_of("tensorflow"), keras_applications.__file__, "--json", name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    print(found)
    assert 0 < found["operators"] <= found["stock_operators"]
    assert found["regions"] > 0
    assert 0 < found["source_error"] < 5e-3  # a file without its weights is wrong by 1
    assert found["max_error"] < 5e-3


# -- representative data -------------------------------------------------------------------------------------------

ONE = {"x": [[1, 3], "float32"]}
BOTH = ONE | {"y": [[1, 2], "int32"]}


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("array", [10, ONE]),
        ("list of one array", [10, ONE]),
        ("list of two", [10, BOTH]),
        ("dictionary", [10, BOTH]),
        ("dataset", [10, ONE]),
        ("dataset of dictionaries", [10, BOTH]),
        ("generator", [10, ONE]),
        ("batches of two", [5, {"x": [[2, 3], "float32"]}]),
        ("odd number", [4, {"x": [[2, 3], "float32"]}]),
        ("many", [200, ONE]),
    ],
)
def test_representative_data(data: Found, form: str, wanted: list[Any]) -> None:
    assert data[form] == wanted


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("too few", "holds no sample, or fewer than a batch of the model"),
        ("wrong shape", "has samples of shape (2,) for x, which takes (3,)"),
        ("missing input", "lacks the input y; it has x"),
        ("nothing", "holds no sample"),
        ("failing", "cannot be read: division by zero"),
        ("a number", "is a float, which holds no batches"),
    ],
)
def test_representative_data_that_do_not_fit(data: Found, form: str, message: str) -> None:
    assert data[form]["error"] == "UsageError"
    assert message in data[form]["message"]
