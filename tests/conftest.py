"""Fixtures that give tests the real models in the directory that the variable LITEFUSE_CORPUS names.

The models are not part of the repository. Without the variable, the tests that need them are skipped and say so.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

pytest.register_assert_rewrite("rules")


def _corpus() -> list[Path]:
    root = Path(os.environ.get("LITEFUSE_CORPUS") or "/nonexistent")
    return sorted([*(root / "models").glob("*.tflite"), *(root / "cases").glob("**/*.tflite")])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test with the argument `corpus_file` once for each model of the corpus."""
    if "corpus_file" in metafunc.fixturenames:
        skipped = pytest.param(None, marks=pytest.mark.skip(reason="LITEFUSE_CORPUS is not set, or holds no models"))
        files = [pytest.param(path, id=path.stem) for path in _corpus()]
        metafunc.parametrize("corpus_file", files or [skipped])


@pytest.fixture(scope="session")
def corpus() -> list[Path]:
    """The paths of all models of the corpus, sorted; the test is skipped when there are none."""
    files = _corpus()
    if not files:
        pytest.skip("LITEFUSE_CORPUS is not set, or holds no models")
    return files


@pytest.fixture(scope="session")
def corpus_index(corpus: list[Path]) -> dict[str, dict[str, str]]:
    """The rows of the corpus's INDEX.tsv by model name; column `runs_litert_2.3.0` says whether it runs."""
    path = next(p.parent for p in corpus if p.parent.name == "models") / "INDEX.tsv"
    with open(path, newline="", encoding="utf-8") as file:
        return {row["name"]: row for row in csv.DictReader(file, delimiter="\t")}
