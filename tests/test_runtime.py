"""The installed runtime, and interpreters from it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litefuse.errors import RuntimeMissingError
from litefuse.graph.build import Builder
from litefuse.runtime import interpreter, quiet, runtime
from litefuse.schema import to_bytes, write
from litefuse.schema.model import Model
from litefuse.schema.operators import Op


def model() -> Model:
    b = Builder()
    x = b.input("x", [1, 4])
    return b.model([b.op(Op.NEG, [b.op(Op.ABS, [x], name="inner", shape=[1, 4])], name="y", shape=[1, 4])])


class TestRuntime:
    @pytest.fixture(autouse=True)
    def uncached(self) -> Iterator[None]:
        runtime.cache_clear()
        yield
        runtime.cache_clear()

    def refuse(self, monkeypatch: pytest.MonkeyPatch, **errors: Exception) -> None:
        """Makes packages raise when imported; those that are not named are missing."""

        def import_module(name: str) -> Any:
            package = name.split(".")[0]
            raise errors.get(package) or ModuleNotFoundError(f"No module named {package!r}", name=package)

        monkeypatch.setattr(importlib, "import_module", import_module)

    def test_what_is_installed(self) -> None:
        found = runtime()
        assert found.name in ("ai-edge-litert", "tflite-runtime", "tensorflow")
        assert found.version
        assert found.resolver_type.AUTO is not None

    def test_nothing_is_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refuse(monkeypatch)
        with pytest.raises(RuntimeMissingError, match=r"`pip install ai-edge-litert` brings one$") as caught:
            runtime()
        assert caught.value.exit_code == 5

    def test_what_is_installed_is_broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refuse(monkeypatch, tflite_runtime=AttributeError("_ARRAY_API not found"))
        with pytest.raises(RuntimeMissingError, match="tflite_runtime is there but cannot be imported: _ARRAY_API"):
            runtime()
        self.refuse(monkeypatch, ai_edge_litert=ModuleNotFoundError("No module named 'flat'", name="flat"))
        with pytest.raises(RuntimeMissingError, match="ai_edge_litert is there but lacks the module flat"):
            runtime()


class TestQuiet:
    def test_native_output_is_dropped(self, capfd: pytest.CaptureFixture[str]) -> None:
        with quiet():
            os.write(2, b"noise")
        os.write(2, b"signal")
        assert capfd.readouterr().err == "signal"

    def test_after_an_error_output_is_back(self, capfd: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(KeyError), quiet():
            raise KeyError
        os.write(2, b"signal")
        assert capfd.readouterr().err == "signal"


class TestInterpreter:
    @pytest.mark.parametrize("xnnpack", [True, False])
    @pytest.mark.parametrize("kind", ["path", "string", "bytes", "bytearray"])
    def test_sources(self, kind: str, xnnpack: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "m.tflite"
        write(model(), path)
        source = {
            "path": path,
            "string": str(path),
            "bytes": to_bytes(model()),
            "bytearray": bytearray(to_bytes(model())),
        }
        runner = interpreter(source[kind], xnnpack=xnnpack, threads=2)  # type: ignore[arg-type]
        with quiet():
            runner.allocate_tensors()
        runner.set_tensor(runner.get_input_details()[0]["index"], np.array([[1, -2, 3, -4]], np.float32))
        runner.invoke()
        assert runner.get_tensor(runner.get_output_details()[0]["index"]).tolist() == [[-1, -2, -3, -4]]
        assert capfd.readouterr().err == ""

    @pytest.mark.filterwarnings("error")
    def test_intermediate_values(self) -> None:
        runner = interpreter(to_bytes(model()), xnnpack=False, keep_all=True)
        with quiet():
            runner.allocate_tensors()
        runner.set_tensor(0, np.array([[1, -2, 3, -4]], np.float32))
        runner.invoke()
        inner = next(d["index"] for d in runner.get_tensor_details() if d["name"] == "inner")
        assert runner.get_tensor(inner).tolist() == [[1, 2, 3, 4]]

    def test_what_is_not_a_model(self) -> None:
        with pytest.raises((ValueError, RuntimeError)):
            interpreter(b"\0" * 64)
