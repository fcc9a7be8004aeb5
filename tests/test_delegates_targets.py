"""Hardware profiles, and which operators the delegate's executor can run."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from litefuse.delegates.kinds import OpClass, class_of, fed_by_constants, operators, supported
from litefuse.delegates.targets import DEFAULT, target, targets
from litefuse.errors import UsageError
from litefuse.graph.graph import SIDE_EFFECTS, Graph
from litefuse.graph.text import from_text
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import SparsityParameters

TABLE = Path(__file__).parent.parent / "delegate_src" / "kernels" / "kernels.inc"


def reason(text: str, at: int = -1) -> str | None:
    graph = Graph(from_text(text), 0)
    return supported(graph, list(graph.operators())[at])


# -- targets -------------------------------------------------------------------------------------------------------


def test_targets() -> None:
    names = [t.name for t in targets()]
    assert names[0] == DEFAULT == target().name == "generic-arm64"
    assert {"cortex-a53", "cortex-a76", "cortex-x", "x86-64-v3", "hexagon-v68", "cortex-m"} <= set(names)
    assert len(set(names)) == len(names)
    with pytest.raises(UsageError, match=r"no target `cortex`.*generic-arm64.*cortex-m"):
        target("cortex")


@pytest.mark.parametrize("profile", targets(), ids=lambda t: t.name)
def test_profiles_are_plausible(profile) -> None:  # type: ignore[no-untyped-def]
    assert profile.description
    assert list(profile.bandwidth) == sorted(profile.bandwidth, reverse=True)
    assert profile.peak_int8 >= profile.peak_f32 > 0
    assert set(profile.types) <= {t.name for t in TensorType}
    if profile.delegate:
        assert 0 < profile.l1 <= profile.l2
        assert profile.region_us > profile.stock_us > 0
        assert profile.level(1) == 0
        assert profile.level(profile.l1 + 1) == 1
        assert profile.level(profile.l2 + 1) == (2 if profile.l3 else 3)
        assert profile.level(1e12) == 3
        assert profile.seconds_per_byte(1) < profile.seconds_per_byte(1e12)
    with pytest.raises(FrozenInstanceError):
        profile.cores = 3


def test_only_microcontrollers_have_no_delegate() -> None:
    assert [t.name for t in targets() if not t.delegate] == ["cortex-m"]
    assert target("hexagon-v68").types == ("INT8", "UINT8", "INT32")


# -- operators -----------------------------------------------------------------------------------------------------


def test_operators_are_those_of_the_executor() -> None:
    table = re.findall(r"^LITEFUSE_KERNEL\(\w+, (\w+), \w+\)", TABLE.read_text(), re.MULTILINE)
    assert sorted(table) == sorted(kind.name for kind in operators())


def test_classes() -> None:
    assert class_of(Op.CONV_2D) is OpClass.ROOT
    assert class_of(Op.TANH) is OpClass.ELEMENTWISE
    assert class_of(Op.ADD) is OpClass.BROADCAST
    assert class_of(Op.TRANSPOSE) is OpClass.INJECTIVE
    assert class_of(Op.MEAN) is OpClass.REDUCTION
    assert class_of(Op.MAX_POOL_2D) is OpClass.WINDOW
    assert all(class_of(kind) is OpClass.OPAQUE for kind in SIDE_EFFECTS)


Q = "{scale=0.1, zero=1}"
GOOD = [
    "graph g(%x: f32[1,8,8,4]) { %y = CONV_2D(%x, w[6,3,3,4], b[6]) return %y }",
    "graph g(%x: f32[1,8,8,4]) { %y = CONV_2D(%x, w:i8[6,3,3,4]{scale=0.1}, b[6]) return %y }",
    "graph g(%x: f32[?,8,8,4]) { %y = CONV_2D(%x, w[6,3,3,4], _) return %y }",
    f"graph g(%x: i8[1,8,8,4]{Q}) {{ %y: i8[1,6,6,6]{Q} = "
    "CONV_2D(%x, w:i8[6,3,3,4]{scale=0.1}, b:i32[6]) return %y }",
    f"graph g(%x: u8[1,8]{Q}) {{ %y: u8[1,3]{Q} = FULLY_CONNECTED(%x, w:u8[3,8]{Q}, b:i32[3]) return %y }}",
    "graph g(%x: i16[1,8]{scale=0.1}) { %y: i16[1,3]{scale=0.1} = "
    "FULLY_CONNECTED(%x, w:i8[3,8]{scale=0.1}, b:i64[3]) return %y }",
    "graph g(%x: f32[1,4,4,2]) { %y = TRANSPOSE_CONV@3(i32[4]=(1, 8, 8, 3), w[3,2,2,2], %x) {stride=2} return %y }",
    "graph g(%x: f32[2,3,4], %z: f32[2,4,5]) { %y = BATCH_MATMUL(%x, %z) return %y }",
    f"graph g(%x: i8[4,4]{Q}) {{ %y = DEQUANTIZE(%x) return %y }}",
    f"graph g(%x: f32[4,4]) {{ %y: i8[4,4]{Q} = QUANTIZE(%x) return %y }}",
    f"graph g(%x: i8[4,4]{Q}) {{ %y: i8[4,4]{{scale=0.2}} = QUANTIZE(%x) return %y }}",
    "graph g(%x: f32[4,4]) { %y = LESS(%x, c[]=0.5) return %y }",
    "graph g(%x: f32[4,4], %p: bool[4,4]) { %y = SELECT_V2(%p, %x, c[]=0.5) return %y }",
    "graph g(%x: i32[4,4]) { %y = FLOOR_DIV(%x, c:i32[]=3) return %y }",
    "graph g(%x: i64[4,4]) { %y = ADD(%x, %x) return %y }",
    "graph g(%x: f32[4,4]) { %y = MEAN(%x, i32[1]=(1)) return %y }",
    "graph g(%x: bool[4,4]) { %y = RESHAPE(%x, i32[1]=(16)) return %y }",
    "graph g(%x: f32[4,4]) { %y = CAST(%x) {to=INT32} return %y }",
    f"graph g(%x: u8[4,2]{Q}, %z: u8[4,2]{{scale=0.3}}) {{ %y: u8[4,4]{Q} = "
    "CONCATENATION(%x, %z) {axis=1} return %y }",
]


@pytest.mark.parametrize("text", GOOD)
def test_supported(text: str) -> None:
    assert reason(text) is None


BAD = {
    "has effects": 'graph g(%x: f32[4]) { %y: f32[4] = "mine"(%x) {custom=0x00} return %y }',
    "not among the delegate's operators": "graph g(%x: f32[4,4]) { %y: i32[4,2] = WHERE(%x) return %y }",
    "not among the delegate's kernels": f"graph g(%x: i8[4,4]{Q}) {{ %y = SQUARE(%x) return %y }}",
    "holds FLOAT16": "graph g(%x: f16[4,4]) { %y = ADD(%x, %x) return %y }",
    "holds FLOAT16 and is not constant": "graph g(%x: f16[4,4]) { %y: f32[4,4] = DEQUANTIZE(%x) return %y }",
    "holds STRING": "graph g(%x: str[4]) { %y: str[2,2] = RESHAPE(%x, i32[2]=(2, 2)) return %y }",
    "holds COMPLEX64": "graph g(%x: c64[4]) { %y: c64[4] = MUL(%x, %x) return %y }",
    "`s` is a variable": "graph g(%x: f32[4]) { var %s: f32[4] %y = ADD(%x, %s) return %y }",
    "only known at run time": "graph g(%x: f32[*]) { %y: f32[*] = TANH(%x) return %y }",
    "more than 8": "graph g(%x: f32[1,1,1,1,1,1,1,1,2]) { %y = TANH(%x) return %y }",
    "operand 1 of MEAN, `a`, is not constant": "graph g(%x: f32[4,4], %a: i32[1]) { "
    "%y: f32[4] = MEAN(%x, %a) return %y }",
    "operand 1 of PAD": "graph g(%x: f32[4,4], %p: i32[2,2]) { %y: f32[?,?] = PAD(%x, %p) return %y }",
    "the weights of FULLY_CONNECTED, `w`, are not": ""
    "graph g(%x: f32[1,4], %w: f32[2,4]) { %y = FULLY_CONNECTED(%x, %w, _) return %y }",
    "no quantisation": "graph g(%x: i8[4,4]) { %y: i8[4,4] = TANH(%x) return %y }",
    "more than one scale": "graph g(%x: i8[2,4]{scale=(0.1, 0.2), axis=0}) { "
    "%y: i8[2,4]{scale=0.1} = TANH(%x) return %y }",
    "divide by zero": "graph g(%x: i32[4], %z: i32[4]) { %y = FLOOR_DIV(%x, %z) return %y }",
    "may divide": "graph g(%x: i32[4]) { %y = DIV(%x, c:i32[2,1]=(1, 0)) return %y }",
    "mixes": "graph g(%x: f32[4], %z: i32[4]) { %y: f32[4] = ADD(%x, %z) return %y }",
    "fused activation TANH": "graph g(%x: f32[4]) { %y = ADD(%x, %x) {activation=TANH} return %y }",
    "with INT8 weights is not": "graph g(%x: i16[2,4]{scale=0.1}) { %y: i16[2,3]{scale=0.1} = "
    "BATCH_MATMUL(%x, w:i8[4,3]{scale=0.1}) return %y }",
    "the bias of CONV_2D": f"graph g(%x: i8[1,8,8,4]{Q}) {{ %y: i8[1,8,8,4]{Q} = "
    "CONV_2D(%x, w:i8[4,1,1,4]{scale=0.1}, b[4]) return %y }",
    "CONCATENATION has a fused": "graph g(%x: f32[1,4]) { "
    "%y = CONCATENATION(%x, %x) {axis=1, activation=RELU} return %y }",
    "something else afterwards": f"graph g(%x: i8[2,4]{Q}) {{ %y: i8[2]{{scale=0.2}} = "
    "REDUCE_MAX(%x, i32[1]=(1)) return %y }",
    "lacks inputs": "graph g(%x: f32[4]) { %y: f32[4] = ADD(%x) return %y }",
    "condition of SELECT_V2": "graph g(%x: f32[4], %p: i32[4]) { %y: f32[4] = SELECT_V2(%p, %x, %x) return %y }",
}


@pytest.mark.parametrize("words", BAD)
def test_refused_with_a_reason(words: str) -> None:
    found = reason(BAD[words])
    assert found is not None
    assert words in found


def test_sparse_and_packed_constants() -> None:
    model = from_text("graph g(%x: f32[1,4]) { %y = FULLY_CONNECTED(%x, w[2,4], _) return %y }")
    graph = Graph(model, 0)
    (op,) = graph.operators()
    assert supported(graph, op) is None
    graph.tensor(op.inputs[1]).sparsity = SparsityParameters()
    assert "sparse, packed" in (supported(graph, op) or "")
    packed = reason("graph g(%x: f32[1,4]) { %y = FULLY_CONNECTED(%x, w:i4[2,4]{scale=0.1}=0x00000000, _) return %y }")
    assert packed is not None


def test_quantisation_in_blocks_and_shuffled_weights() -> None:
    model = from_text("graph g(%x: f32[1,4]) { %y = FULLY_CONNECTED(%x, w:i8[2,4]{scale=0.1}, _) return %y }")
    graph = Graph(model, 0)
    (op,) = graph.operators()
    assert supported(graph, op) is None
    op.builtin_options = op.builtin_options.replace(weights_format=1)  # type: ignore[union-attr]
    assert "shuffled" in (supported(graph, op) or "")


def test_declared_ranks_that_cannot_be() -> None:
    for text in (
        "graph g(%x: f32[1,8,8,4]) { %y: f32[] = CONV_2D(%x, w[6,3,3,4], b[6]) return %y }",
        "graph g(%x: f32[1,8,4]) { %y: f32[1,8,4] = CONV_2D(%x, w[6,3,3,4], b[6]) return %y }",
        "graph g(%x: f32[1,8,8,4]) { %y: f32[8,4] = MAX_POOL_2D(%x) {filter=2} return %y }",
        "graph g(%x: f32[4]) { %y: f32[4] = FULLY_CONNECTED(%x, w[4], _) return %y }",
        "graph g(%x: f32[4]) { %y: f32[4] = BATCH_MATMUL(%x, w[4]) return %y }",
        "graph g(%x: f32[]) { %y: f32[] = SOFTMAX(%x) return %y }",
    ):
        assert "dimensions" in (reason(text) or "")


def test_half_precision_weights() -> None:
    text = """graph g(%x: f32[1,8,8,4]) {
        %w = DEQUANTIZE(h:f16[6,1,1,4])
        %y = CONV_2D(%x, %w, b[6])
        return %y }"""
    graph = Graph(from_text(text), 0)
    dequantize, conv = graph.operators()
    assert supported(graph, dequantize) is None
    assert supported(graph, conv) is None
    assert fed_by_constants(graph, dequantize)
    assert not fed_by_constants(graph, conv)


def test_shapes_that_the_file_leaves_out() -> None:
    model = from_text("graph g(%x: f32[4]) { %y = TANH(%x) return %y }")
    graph = Graph(model, 0)
    (op,) = graph.operators()
    table = graph.tensor(op.outputs[0])
    table.shape, table.has_rank = None, False
    assert "only known at run time" in (supported(graph, op) or "")
    assert supported(graph, op, {op.outputs[0]: (4,)}) is None
