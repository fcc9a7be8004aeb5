"""`litefuse convert` of Keras files and SavedModels, and litefuse without Keras."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from keras_environment import environment
from runtimes import python_of

from litefuse.check import run_model
from litefuse.interface import entries
from litefuse.schema import read

ROOT = Path(__file__).parent.parent
_MAKE = """
    import os, sys
    os.chdir(sys.argv[1])
    import keras
    from keras import layers
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6, 6, 2), name="image"), layers.Conv2D(4, 3), layers.BatchNormalization()])
    model.add(layers.Activation("swish"))
    model.add(layers.Flatten())
    model.add(layers.Dense(3))
    model.save("net.keras")
    model.save("old.h5")
    model.export("saved", verbose=False)
    open("broken.keras", "w").close()
    import importlib.util
    print(importlib.util.find_spec("click") is not None)
"""


def launch(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [python_of("tensorflow"), "-m", "litefuse", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=cwd, timeout=600, check=False)


def block(directory: Path, *names: str) -> None:
    """Puts packages that cannot be imported into a directory for the path."""
    for name in names:
        (directory / name).mkdir(parents=True)
        (directory / name / "__init__.py").write_text(
            f'raise ModuleNotFoundError("No module named {name}", name="{name}")\n'
        )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model in every form."""
    directory = tmp_path_factory.mktemp("models")
    command = [python_of("tensorflow"), "-c", textwrap.dedent(_MAKE), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    if done.stdout.splitlines()[-1] != "True":
        pytest.skip("the environment with TensorFlow lacks click, which the command line needs: `make runtimes`")
    return directory


def test_every_kind_of_source_becomes_the_same_model(models: Path) -> None:
    done = launch(
        "convert", "net.keras", "old.h5", "saved", "broken.keras", "-o", "out/", "--batch", 1, "--json", cwd=models
    )
    assert done.returncode == 3, done.stderr  # for the broken one
    errors = [line for line in done.stderr.splitlines() if line.startswith("litefuse: error: ")]
    assert len(errors) == 1
    assert errors[0].startswith("litefuse: error: broken.keras: Keras cannot load it: ")
    documents = json.loads(done.stdout)["models"]
    assert [entry["file"] for entry in documents] == ["net.keras", "old.h5", "saved", "broken.keras"]
    files = [models / "out" / f"{name}.litefuse.tflite" for name in ("net", "old", "saved")]
    assert sorted((models / "out").iterdir()) == files
    image = {"image": np.random.default_rng(3).standard_normal((1, 6, 6, 2)).astype(np.float32)}
    wanted = run_model(files[0], image)["output_0"]
    assert wanted.any()
    for file in files:
        entry = entries(read(file))[0]
        assert [port.signature for port in entry.inputs] == [(1, 6, 6, 2)]
        assert [port.name for port in entry.outputs] == ["output_0"]
        assert np.abs(run_model(file, image)["output_0"] - wanted).max() < 1e-5


def test_the_batch_stays_open_unless_it_is_fixed(models: Path) -> None:
    done = launch("convert", "net.keras", "-o", "open.tflite", cwd=models)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("net.keras\n")
    assert entries(read(models / "open.tflite"))[0].inputs[0].signature == (-1, 6, 6, 2)


def test_the_source_is_never_overwritten(models: Path) -> None:
    before = (models / "net.keras").read_bytes()
    done = launch("convert", "net.keras", "-o", "net.keras", cwd=models)
    assert done.returncode == 6, done.stderr
    assert "is the input itself" in done.stderr
    assert (models / "net.keras").read_bytes() == before


def test_reports_and_measurements(models: Path) -> None:
    options = ("--batch", 1, "--report", "page.html", "--bench", "--model-explorer", "nodes.json", "--json")
    done = launch("convert", "net.keras", "-o", "told.tflite", *options, cwd=models)
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads(done.stdout)["models"]
    assert entry["file"] == "net.keras"
    assert entry["bench"]["contenders"][0]["latency"]["p50_ms"] > 0
    assert "net.keras" in (models / "page.html").read_text()
    written = sorted(path.name for path in models.glob("nodes*"))
    assert written == ["nodes.result.cost.json", "nodes.result.json", "nodes.result.traffic.json"]


def test_keras_on_a_backend_that_is_not_installed(models: Path, tmp_path: Path) -> None:
    block(tmp_path, "torch")
    given = environment() | {"KERAS_BACKEND": "torch"}
    given["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{given['PYTHONPATH']}"
    command = [python_of("tensorflow"), "-m", "litefuse", "convert", "net.keras"]
    done = subprocess.run(command, capture_output=True, text=True, env=given, cwd=models, timeout=600, check=False)
    assert done.returncode == 5, done.stderr
    wanted = "Keras is to run on torch, which is not installed; install it, or set KERAS_BACKEND=tensorflow"
    assert done.stderr == f"litefuse: error: net.keras: {wanted}\n"


# -- without Keras -------------------------------------------------------------------------------------------------


@pytest.fixture
def without_keras(tmp_path: Path) -> dict[str, str]:
    """Variables with which neither Keras nor TensorFlow can be imported."""
    block(tmp_path / "blocked", "keras", "tensorflow")
    path = [str(tmp_path / "blocked"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def test_the_command_says_what_to_install(without_keras: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "net.keras").write_bytes(b"")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"")
    for name, missing in (("net.keras", "keras"), ("saved", "tensorflow")):
        done = subprocess.run(
            [sys.executable, "-m", "litefuse", "convert", str(tmp_path / name)],
            capture_output=True,
            text=True,
            env=without_keras,
            check=False,
        )
        assert done.returncode == 5, done.stderr
        assert done.stderr == (
            f"litefuse: error: {tmp_path / name}: {missing} is not installed, and this needs it; install what is "
            'missing with `pip install "litefuse[keras]"`\n'
        )


def test_planning_without_the_library_for_it(tmp_path: Path) -> None:
    code = f"""
        import pathlib
        import litefuse.native
        from litefuse.errors import RuntimeMissingError
        litefuse.native.find = lambda folder, name: pathlib.Path({str(tmp_path / "lost.so")!r})
        from litefuse.keras.exporter import check_options
        try:
            check_options(target="tflm")
        except RuntimeMissingError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("litefuse's library for planning memory cannot be loaded: ")
    assert "lost.so" in done.stdout
    assert done.stdout.endswith("install litefuse again, which builds it\n")


def test_importing_needs_no_keras(without_keras: dict[str, str]) -> None:
    code = """
        import sys
        import litefuse
        assert "litefuse.keras" not in sys.modules
        assert litefuse.keras.export
        for use in (lambda: litefuse.keras.LiteFuseExport, lambda: litefuse.keras.export(object(), "x.tflite")):
            try:
                use()
            except litefuse.LitefuseError as error:
                assert "litefuse[keras]" in str(error)
            else:
                raise AssertionError
        try:
            litefuse.keras.nothing
        except AttributeError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=without_keras, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "module 'litefuse.keras' has no attribute 'nothing'\n"
