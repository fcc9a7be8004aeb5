"""Every real model goes through everything: converted with all rules, compared, written, and read again."""

from __future__ import annotations

from pathlib import Path

import pytest

import litefuse
from litefuse.schema import read
from litefuse.schema.operators import builtin_code
from litefuse.schema.validate import validate

# Models that the runtime refuses: they are rewritten by exact rules only, and the report says that they were not run.
NOT_RUN = {
    "coral_bodypix_decoder",
    "litert_mtk_precompiled",
    "litert_sparse",
    "mm_catdog2",
    "tflm_audio_preproc_fp32",
    "tfls_wiki40b_lm",
}


def test_converts_within_its_class(corpus_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "result.tflite"
    done = litefuse.convert(corpus_file, output)
    assert done.check is not None
    assert done.check.ok
    assert (done.not_run is not None) == (corpus_file.stem in NOT_RUN)
    assert done.after.operators <= done.before.operators
    assert output.stat().st_size <= 1.01 * corpus_file.stat().st_size
    before = {p.message for p in validate(read(corpus_file)) if p.severity == "error"}
    after = {p.message for p in validate(read(output)) if p.severity == "error"}
    assert after <= before


WANTED = {
    "conv_relu_bn_conv_valid": {"CONV_2D": 2},
    "conv3d_bn": {"CONV_3D": 1},
    "conv_pool_bn": {"CONV_2D": 1, "AVERAGE_POOL_2D": 1},
    "conv_maxpool_bn_relu": {"CONV_2D": 1, "MAX_POOL_2D": 1},
    "concat_bn_relu": {"CONV_2D": 2, "CONCATENATION": 1},
    "convT_bn_relu": {"TRANSPOSE_CONV": 1},
    "normalization_conv": {"CONV_2D": 1},
    "expo_mtcnn_pnet": {"CONV_2D": 5, "PRELU": 3, "MAX_POOL_2D": 1, "SOFTMAX": 1},
}


@pytest.mark.parametrize("name", WANTED)
def test_ends_as_it_should(name: str, corpus: list[Path]) -> None:
    path = next((p for p in corpus if p.stem == name), None)
    if path is None:
        pytest.skip(f"{name} is not in the corpus")
    model = litefuse.explain(path).model
    codes = [builtin_code(code).name for code in model.operator_codes]
    found: dict[str, int] = {}
    for op in model.subgraphs[0].operators:
        found[codes[op.opcode_index]] = found.get(codes[op.opcode_index], 0) + 1
    assert {k: n for k, n in found.items() if k in WANTED[name]} == WANTED[name]
    assert not {"MUL", "ADD", "SUB", "DIV"} & set(found)
