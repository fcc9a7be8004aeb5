"""Constant evaluation: numpy against the installed runtime, bit for bit, and what must not be evaluated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from litefuse.graph import Graph
from litefuse.graph.build import Builder, quantized
from litefuse.graph.evaluate import by_numpy, by_runtime, evaluate
from litefuse.graph.infer import Facts, Site, infer_operator
from litefuse.graph.infer.kernels import KERNELS
from litefuse.graph.sparse import densify
from litefuse.runtime import interpreter, quiet
from litefuse.schema import read, to_bytes
from litefuse.schema.enums import ActivationFunctionType as Activation
from litefuse.schema.enums import DimensionType, MirrorPadMode, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import (
    BlockwiseQuantization,
    DimensionMetadata,
    Int32Vector,
    Operator,
    QuantizationParameters,
    SparsityParameters,
    Uint8Vector,
    Uint16Vector,
)
from litefuse.schema.types import tensor_type

Array = NDArray[Any]
RNG = np.random.default_rng(0)


@dataclass
class Case:
    """One operator on constants."""

    kind: Op
    inputs: list[Array]
    options: dict[str, Any] = field(default_factory=dict)
    out: TensorType | None = None
    outputs: int = 1
    version: int = 1
    quantization: list[QuantizationParameters | None] | None = None
    declines: bool = False
    """Whether numpy may leave the case to the runtime."""

    def graph(self) -> tuple[Graph, Operator]:
        """The case as a model without inputs."""
        b = Builder()
        scales = self.quantization or [None] * (len(self.inputs) + 1)
        tensors = [
            b.constant(f"x{i}", x, quantization=q) for i, (x, q) in enumerate(zip(self.inputs, scales, strict=False))
        ]
        first = b.op(
            self.kind,
            tensors,
            shape=[],
            type=self.out or tensor_type(self.inputs[0].dtype),
            quantization=scales[-1],
            outputs=self.outputs,
            version=self.version,
            **self.options,
        )
        graph = Graph(b.model([first + i for i in range(self.outputs)]))
        return graph, next(graph.operators())


def both(case: Case) -> tuple[list[Array] | None, list[Array] | None]:
    """The results by numpy and by the runtime."""
    graph, op = case.graph()
    specs = infer_operator(graph, op)
    assert specs is not None
    site = Site(Facts(graph), op)
    site.outputs = specs
    return by_numpy(site, list(case.inputs)), by_runtime(graph, op, list(case.inputs))


def check(case: Case) -> None:
    """Asserts that numpy gives the runtime's bits, or leaves the case to it where that is allowed."""
    ours, theirs = both(case)
    assert theirs is not None, "the runtime refuses the case"
    if ours is None:
        assert case.declines
        return
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes(), (a, b)


def ints(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def i32(*values: Any) -> Array:
    return np.array(values[0] if len(values) == 1 else values, np.int32)


SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 0.1, 2.5, -2.5, 1e30],
    np.float32,
)
# Every pair of the special values, and each of them among ordinary ones at every place of a SIMD register.
PAIRS = (np.repeat(SPECIAL, len(SPECIAL)), np.tile(SPECIAL, len(SPECIAL)))
FINITE = SPECIAL[np.isfinite(SPECIAL)]
FINITE_PAIRS = (np.repeat(FINITE, len(FINITE)), np.tile(FINITE, len(FINITE)))


def named(**cases: Case) -> list[Any]:
    return [pytest.param(case, id=name) for name, case in cases.items()]


def movement() -> list[Any]:
    """Operators that move elements, on several types, empty tensors and scalars."""
    x = floats(2, 3, 4)
    cases: dict[str, Case] = {}
    for dtype in (np.float32, np.int8, np.uint8, np.int16, np.int32, np.int64, np.bool_, np.float16):
        y = (RNG.integers(0, 2, (2, 3, 4)) if dtype == np.bool_ else RNG.integers(0, 100, (2, 3, 4))).astype(dtype)
        name = np.dtype(dtype).name
        cases[f"reshape-{name}"] = Case(Op.RESHAPE, [y, i32(4, -1)])
        cases[f"transpose-{name}"] = Case(Op.TRANSPOSE, [y, i32(2, 0, -2)])
        cases[f"concat-{name}"] = Case(Op.CONCATENATION, [y, y[:, :1]], {"axis": 1})
        cases[f"gather-{name}"] = Case(Op.GATHER, [y, i32([2, 0])], {"axis": 1})
        cases[f"tile-{name}"] = Case(Op.TILE, [y, i32(2, 1, 3)])
        cases[f"slice-{name}"] = Case(Op.SLICE, [y, i32(0, 1, 2), i32(-1, 2, 1)])
        if dtype != np.float16:
            cases[f"strided-slice-{name}"] = Case(Op.STRIDED_SLICE, [y, i32(0, 2, 3), i32(2, 0, 0), i32(1, -1, -2)])
            cases[f"broadcast-{name}"] = Case(Op.BROADCAST_TO, [y[:, :1], i32(5, 2, 3, 4)], version=2)
        if dtype not in (np.float16, np.int64):
            cases[f"unpack-{name}"] = Case(Op.UNPACK, [y], {"num": 3, "axis": -2}, outputs=3)
        if dtype not in (np.float16, np.bool_):
            cases[f"split-{name}"] = Case(
                Op.SPLIT, [i32(-1), y], {"num_splits": 2}, out=tensor_type(np.dtype(dtype)), outputs=2
            )
            cases[f"split-v-{name}"] = Case(Op.SPLIT_V, [y, i32(1, -1, 2), i32(2)], {"num_splits": 3}, outputs=3)
            cases[f"pack-{name}"] = Case(Op.PACK, [y, y], {"values_count": 2, "axis": -1})
    cases |= {
        "reshape-options": Case(Op.RESHAPE, [x], {"new_shape": [3, 8]}),
        "reshape-scalar": Case(Op.RESHAPE, [floats(1, 1), np.zeros(0, np.int32)]),
        "squeeze": Case(Op.SQUEEZE, [floats(1, 3, 1)], {"squeeze_dims": [-1]}),
        "squeeze-all": Case(Op.SQUEEZE, [floats(1, 3, 1)]),
        "expand-dims": Case(Op.EXPAND_DIMS, [x, i32(-1)]),
        "expand-dims-scalar": Case(Op.EXPAND_DIMS, [np.float32(3), i32(0)]),
        "concat-scalars": Case(Op.CONCATENATION, [i32(3), i32(4)], {"axis": 0}),
        "pack-scalars": Case(Op.PACK, [i32(3), i32(4)], {"values_count": 2}),
        "gather-batch": Case(Op.GATHER, [x, i32([[0, 3, 3], [1, 1, 0]])], {"axis": 2, "batch_dims": 1}),
        "gather-batch-2": Case(
            Op.GATHER, [x, RNG.integers(0, 4, (2, 3, 5)).astype(np.int32)], {"axis": -1, "batch_dims": -1}
        ),
        "gather-scalar": Case(Op.GATHER, [x, i32(1)], {"axis": 0}),
        "gather-int64": Case(Op.GATHER, [x, np.array([2], np.int64)], {"axis": 1}),
        "gather-nd": Case(Op.GATHER_ND, [x, i32([[0, 2], [1, 1]])]),
        "gather-nd-whole": Case(Op.GATHER_ND, [x, i32([[[0, 2, 3]], [[1, 1, 0]]])]),
        "reverse": Case(Op.REVERSE_V2, [x, i32([1])]),
        "reverse-two": Case(Op.REVERSE_V2, [x, i32(1, 2)]),
        "tile-int64": Case(Op.TILE, [x, np.array([1, 2, 1], np.int64)]),
        "tile-empty": Case(Op.TILE, [x, i32(1, 0, 2)]),
        "broadcast-scalar": Case(Op.BROADCAST_TO, [np.float32(2), i32(2, 3)], version=2),
        "broadcast-int64": Case(Op.BROADCAST_TO, [floats(3), np.array([2, 3], np.int64)], version=2),
        "fill": Case(Op.FILL, [i32(2, 3), np.float32(7)], out=TensorType.FLOAT32),
        "fill-bool": Case(Op.FILL, [i32([4]), np.array(True)], out=TensorType.BOOL),
        "fill-int64": Case(Op.FILL, [np.array([2], np.int64), np.int8(-3)], out=TensorType.INT8),
        "fill-empty": Case(Op.FILL, [i32(0, 3), np.int32(7)]),
        "zeros-like": Case(Op.ZEROS_LIKE, [x]),
        "zeros-like-int": Case(Op.ZEROS_LIKE, [ints(np.int32, 5)]),
        "range": Case(Op.RANGE, [i32(2), i32(17), i32(4)]),
        "range-down": Case(Op.RANGE, [i32(5), i32(-3), i32(-2)]),
        "range-empty": Case(Op.RANGE, [i32(5), i32(5), i32(2)]),
        "range-int64": Case(Op.RANGE, [np.int64(0), np.int64(9), np.int64(2)]),
        "range-float": Case(Op.RANGE, [np.float32(0.1), np.float32(7), np.float32(0.1)]),
        "shape": Case(Op.SHAPE, [x], {"out_type": TensorType.INT32}, out=TensorType.INT32),
        "shape-int64": Case(Op.SHAPE, [x], {"out_type": TensorType.INT64}, out=TensorType.INT64),
        "shape-scalar": Case(Op.SHAPE, [np.float32(1)], {"out_type": TensorType.INT32}, out=TensorType.INT32),
        "rank": Case(Op.RANK, [x], out=TensorType.INT32),
        "pad": Case(Op.PAD, [x, i32([[1, 0], [0, 2], [3, 1]])]),
        "pad-int64": Case(Op.PAD, [x, np.array([[1, 0], [0, 2], [3, 1]], np.int64)]),
        "pad-int8": Case(
            Op.PAD,
            [ints(np.int8, 2, 3), i32([[1, 0], [0, 2]])],
            quantization=[quantized(0.5, -7), None, quantized(0.5, -7)],
        ),
        "padv2": Case(Op.PADV2, [x, i32([[1, 0], [0, 2], [3, 1]]), np.float32(2.5)]),
        "padv2-int32": Case(Op.PADV2, [ints(np.int32, 3), i32([[1, 2]]), i32(-5)]),
        "mirror-pad-reflect": Case(Op.MIRROR_PAD, [x, i32([[1, 0], [2, 1], [3, 3]])], {"mode": MirrorPadMode.REFLECT}),
        "mirror-pad-symmetric": Case(
            Op.MIRROR_PAD, [x, i32([[2, 0], [3, 1], [0, 4]])], {"mode": MirrorPadMode.SYMMETRIC}
        ),
        "slice-int64": Case(Op.SLICE, [x, np.array([1, 0, 0], np.int64), np.array([1, -1, 3], np.int64)]),
        "slice-empty": Case(Op.SLICE, [x, i32(1, 0, 0), i32(1, 0, 3)]),
        "select": Case(Op.SELECT, [x > 0, x, -x], out=TensorType.FLOAT32),
        "select-rows": Case(Op.SELECT, [np.array([True, False]), x, -x], out=TensorType.FLOAT32),
        "select-scalar": Case(Op.SELECT, [np.array(False), x, -x], out=TensorType.FLOAT32),
        "select-int64": Case(
            Op.SELECT, [x > 0, ints(np.int64, 2, 3, 4), ints(np.int64, 2, 3, 4)], out=TensorType.INT64
        ),
        "select-v2": Case(Op.SELECT_V2, [x[:, :1] > 0, x[0], -x], out=TensorType.FLOAT32),
        "select-v2-specials": Case(Op.SELECT_V2, [PAIRS[0] > 0, *PAIRS], out=TensorType.FLOAT32),
        "concat-uint8-same": Case(
            Op.CONCATENATION, [ints(np.uint8, 3), ints(np.uint8, 2)], quantization=[quantized(0.5, 7)] * 3
        ),
        "concat-uint8-rescaled": Case(
            Op.CONCATENATION,
            [ints(np.uint8, 3), ints(np.uint8, 2)],
            quantization=[quantized(0.5, 7), quantized(0.25, 7), quantized(0.5, 7)],
            declines=True,
        ),
    }
    for name, y in {"specials": SPECIAL.reshape(2, 8), "empty": np.zeros((0, 8), np.float32)}.items():
        cases[f"reshape-{name}"] = Case(Op.RESHAPE, [y, i32(8, -1) if y.size else i32(0, 4)])
        cases[f"transpose-{name}"] = Case(Op.TRANSPOSE, [y, i32(1, 0)])
        cases[f"concat-{name}"] = Case(Op.CONCATENATION, [y, floats(3, 8)])
    return named(**cases)


SPECS = {
    "plain": (i32(0, 1, 2), i32(2, 3, 4), i32(1, 1, 1)),
    "backwards": (i32(-1, -2, 3), i32(-5, -4, 0), i32(-1, -1, -2)),
    "beyond": (i32(0, 5, -9), i32(9, -1, 9), i32(1, 2, 3)),
    "empty": (i32(1, 1, 1), i32(1, 1, 1), i32(1, 1, 1)),
}
MASKS: dict[str, dict[str, Any]] = {
    "begin": {"begin_mask": 3},
    "end": {"end_mask": 5},
    "both": {"begin_mask": 7, "end_mask": 7},
    "shrink": {"shrink_axis_mask": 2},
    "shrink-all": {"shrink_axis_mask": 7},
    "new-axis": {"new_axis_mask": 2},
    "new-axes": {"new_axis_mask": 5},
    "ellipsis-first": {"ellipsis_mask": 1},
    "ellipsis-middle": {"ellipsis_mask": 2},
    "ellipsis-last": {"ellipsis_mask": 4},
    "ellipsis-new-axis": {"ellipsis_mask": 2, "new_axis_mask": 4},
    "new-axis-ellipsis": {"ellipsis_mask": 4, "new_axis_mask": 1},
    "ellipsis-shrink": {"ellipsis_mask": 1, "shrink_axis_mask": 4},
    "shrink-new-axis": {"new_axis_mask": 1, "shrink_axis_mask": 2},
    "offset": {"offset": True},
}


def arithmetic() -> list[Any]:
    """Arithmetic on floats and integers, with activations, broadcasting, and the values where code paths part."""
    cases: dict[str, Case] = {}
    small = RNG.integers(-1000, 1000, (2, 3, 4))
    binary = (Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MAXIMUM, Op.MINIMUM, Op.SQUARED_DIFFERENCE, Op.FLOOR_DIV, Op.FLOOR_MOD)
    for kind in binary:
        name = kind.name.lower()
        floored = kind in (Op.FLOOR_DIV, Op.FLOOR_MOD)
        cases[f"{name}-float"] = Case(kind, [floats(2, 3, 4), floats(2, 3, 4)], declines=floored)
        cases[f"{name}-broadcast"] = Case(kind, [floats(2, 3, 1), floats(3, 4)], declines=floored)
        cases[f"{name}-scalar"] = Case(kind, [floats(2, 3, 4), np.float32(1.7)], declines=floored)
        cases[f"{name}-wide"] = Case(
            kind, [floats(64) * 10.0 ** RNG.integers(-18, 18, 64).astype(np.float32)] * 2, declines=True
        )
        if not floored:
            cases[f"{name}-specials"] = Case(kind, list(PAIRS), declines=True)
            cases[f"{name}-finite"] = Case(kind, list(FINITE_PAIRS), declines=True)
        cases[f"{name}-empty"] = Case(kind, [floats(0, 3), floats(0, 3)], declines=floored)
        for dtype in (np.int32, np.int64):
            if kind is Op.DIV and dtype == np.int64:
                continue
            if kind in (Op.SQUARED_DIFFERENCE, Op.FLOOR_DIV) and dtype == np.int64:
                continue
            x, y = small.astype(dtype), np.where(small[::-1] == 0, 1, small[::-1]).astype(dtype)
            cases[f"{name}-{dtype.__name__}"] = Case(kind, [x, y])
            cases[f"{name}-{dtype.__name__}-broadcast"] = Case(kind, [x, y[0, 0]])
        for one, x in enumerate(FINITE):
            if kind in (Op.ADD, Op.SUB, Op.MUL, Op.DIV) and x:
                cases[f"{name}-finite-{one}"] = Case(kind, [FINITE, np.full_like(FINITE, x)], declines=True)
        if kind in (Op.ADD, Op.SUB, Op.MUL, Op.DIV):
            for activation in (Activation.RELU, Activation.RELU6, Activation.RELU_N1_TO_1, Activation.TANH):
                fused = {"fused_activation_function": activation}
                label = f"{name}-{activation.name.lower()}"
                if activation is not Activation.TANH:
                    cases[label] = Case(kind, [4 * floats(2, 3, 4), floats(2, 3, 4)], fused)
                    cases[f"{label}-broadcast"] = Case(kind, [4 * floats(2, 3, 4), floats(3, 1)], fused)
                    cases[f"{label}-finite"] = Case(kind, list(FINITE_PAIRS), fused, declines=True)
                    cases[f"{label}-int32"] = Case(kind, [i32(5, -7), i32(2, 3)], fused, declines=True)
    limits = i32(2**31 - 1, -(2**31), 0, 1, -1)
    for kind in (Op.ADD, Op.SUB, Op.MUL, Op.MAXIMUM, Op.MINIMUM):
        cases[f"{kind.name.lower()}-limits"] = Case(
            kind, [np.repeat(limits, 5), np.tile(limits, 5)], declines=kind not in (Op.MAXIMUM, Op.MINIMUM)
        )
    for kind in (Op.MAXIMUM, Op.MINIMUM):
        cases[f"{kind.name.lower()}-int8"] = Case(
            kind, [ints(np.int8, 20), ints(np.int8, 20)], quantization=[quantized(0.5, 3)] * 3
        )
    return named(**cases)


def unary() -> list[Any]:
    """Unary operators, comparisons, logic."""
    cases: dict[str, Case] = {}
    positive = np.abs(floats(3, 37)) + np.float32(0.1)
    kinds = (Op.ABS, Op.NEG, Op.SQUARE, Op.SQRT, Op.FLOOR, Op.CEIL, Op.RELU, Op.RELU6, Op.RELU_N1_TO_1, Op.RELU_0_TO_1)
    for kind in kinds:
        name = kind.name.lower()
        cases[name] = Case(kind, [positive if kind is Op.SQRT else 4 * floats(3, 37)])
        cases[f"{name}-specials"] = Case(kind, [SPECIAL], declines=True)
        cases[f"{name}-finite"] = Case(kind, [FINITE], declines=True)
        cases[f"{name}-scalar"] = Case(kind, [np.float32(2.5)])
        cases[f"{name}-empty"] = Case(kind, [floats(0)])
    cases["neg-int32"] = Case(Op.NEG, [i32(5, -5, 0, 2**31 - 1)], declines=True)
    cases["neg-int64"] = Case(Op.NEG, [np.array([5, -(2**20)], np.int64)])
    cases["abs-int32"] = Case(Op.ABS, [i32(5, -5, 0)])
    for kind in (Op.EQUAL, Op.NOT_EQUAL, Op.LESS, Op.LESS_EQUAL, Op.GREATER, Op.GREATER_EQUAL):
        name = kind.name.lower()
        out = TensorType.BOOL
        cases[f"{name}-specials"] = Case(kind, list(PAIRS), out=out)
        cases[f"{name}-broadcast"] = Case(kind, [floats(2, 1, 4), floats(3, 1)], out=out)
        for dtype in (np.int32, np.int64):
            x = RNG.integers(-2, 2, 30).astype(dtype)
            cases[f"{name}-{dtype.__name__}"] = Case(kind, [x, x[::-1].copy()], out=out)
        cases[f"{name}-int8"] = Case(
            kind,
            [ints(np.int8, 30), ints(np.int8, 30)],
            out=out,
            quantization=[quantized(0.5, 3), quantized(0.25, -1), None],
            declines=True,
        )
    flags = np.array([True, True, False, False]), np.array([True, False, True, False])
    cases["equal-bool"] = Case(Op.EQUAL, list(flags), out=TensorType.BOOL)
    cases["logical-and"] = Case(Op.LOGICAL_AND, list(flags))
    cases["logical-or"] = Case(Op.LOGICAL_OR, [flags[0], flags[1].reshape(4, 1)])
    cases["logical-not"] = Case(Op.LOGICAL_NOT, [flags[0]])
    return named(**cases)


def reductions() -> list[Any]:
    """Reductions of integers, flags and extremes."""
    cases: dict[str, Case] = {}
    flags = RNG.integers(0, 2, (2, 3, 4)).astype(bool)
    small = RNG.integers(-5, 6, (2, 3, 4)).astype(np.int32)
    axes = {"last": i32([-1]), "two": i32(0, 2), "all": i32(0, 1, 2), "scalar": i32(1), "twice": i32(1, 1)}
    for label, axis in axes.items():
        for keep in (False, True):
            options = {"keep_dims": keep}
            suffix = f"{label}-{'keep' if keep else 'drop'}"
            cases[f"sum-{suffix}"] = Case(Op.SUM, [small, axis], options)
            cases[f"max-{suffix}"] = Case(Op.REDUCE_MAX, [floats(2, 3, 4), axis], options)
            cases[f"min-{suffix}"] = Case(Op.REDUCE_MIN, [small, axis], options)
            cases[f"any-{suffix}"] = Case(Op.REDUCE_ANY, [flags, axis], options)
            cases[f"all-{suffix}"] = Case(Op.REDUCE_ALL, [flags, axis], options)
            cases[f"prod-{suffix}"] = Case(Op.REDUCE_PROD, [small // 2, axis], options)
    cases["prod-shape"] = Case(Op.REDUCE_PROD, [i32(1, 7, 7, 1280), i32([0])])
    for name, x, segments, count in (
        ("shape", i32(2, 9, 4, 8), i32(0, 1, 2, 2), 3),
        ("gaps", i32(2, -3, 4, 8), i32(3, -1, 0, 3), 5),
        ("rows", np.clip(small, -1, 2), i32(1, 1), 3),
    ):
        cases[f"segments-{name}"] = Case(Op.UNSORTED_SEGMENT_PROD, [x, segments, i32(count).reshape(())])
    cases["prod-int64"] = Case(Op.REDUCE_PROD, [np.array([3, 2**20], np.int64), i32([0])])
    cases["sum-overflow"] = Case(Op.SUM, [i32(2**31 - 1, 1), i32([0])], declines=True)
    cases["sum-float"] = Case(Op.SUM, [floats(100), i32([0])], declines=True)
    cases["max-specials"] = Case(Op.REDUCE_MAX, [SPECIAL.reshape(2, 8), i32([1])], declines=True)
    cases["max-infinite"] = Case(Op.REDUCE_MAX, [np.array([[1, -np.inf], [np.inf, 3]], np.float32), i32([1])])
    cases["max-zeros"] = Case(Op.REDUCE_MAX, [np.array([0.0, -0.0], np.float32), i32([0])], declines=True)
    cases["max-int8"] = Case(
        Op.REDUCE_MAX, [ints(np.int8, 4, 5), i32([1])], quantization=[quantized(0.5, 3), None, quantized(0.5, 3)]
    )
    return named(**cases)


def conversions() -> list[Any]:
    """CAST between all types, and DEQUANTIZE."""
    cases: dict[str, Case] = {}
    integers = (np.int8, np.uint8, np.int16, np.int32, np.int64)
    for source in integers:
        limits = np.iinfo(source)
        x = np.concatenate([ints(source, 40), np.array([limits.min, limits.max, 0, 1], source)])
        for target in (*integers, np.float32, np.bool_):
            if target != source:
                out = tensor_type(np.dtype(target))
                cases[f"cast-{source.__name__}-{np.dtype(target).name}"] = Case(Op.CAST, [x], out=out)
    for target in (np.int8, np.uint8, np.int16, np.int32, np.int64):
        out = tensor_type(np.dtype(target))
        cases[f"cast-float32-{target.__name__}"] = Case(Op.CAST, [np.abs(20 * floats(50))], out=out)
        cases[f"cast-float32-{target.__name__}-specials"] = Case(Op.CAST, [SPECIAL], out=out, declines=True)
        edge = np.array([np.iinfo(target).max, np.iinfo(target).min, -0.9, 0.9, 126.99], np.float32)
        cases[f"cast-float32-{target.__name__}-edges"] = Case(Op.CAST, [edge], out=out, declines=True)
        cases[f"cast-bool-{target.__name__}"] = Case(Op.CAST, [np.array([True, False])], out=out)
    cases["cast-float32-bool"] = Case(Op.CAST, [FINITE], out=TensorType.BOOL)
    cases["cast-bool-float32"] = Case(Op.CAST, [np.array([True, False])], out=TensorType.FLOAT32)
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    number = ~np.isnan(halves)
    cases["dequantize-float16"] = Case(Op.DEQUANTIZE, [halves[number]], out=TensorType.FLOAT32)
    cases["dequantize-float16-nan"] = Case(Op.DEQUANTIZE, [halves], out=TensorType.FLOAT32, declines=True)
    for dtype in (np.int8, np.uint8, np.int16):
        every = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, dtype=np.int64).astype(dtype)
        for scale in (0.1, 3e-5, 1.0):
            cases[f"dequantize-{dtype.__name__}-{scale}"] = Case(
                Op.DEQUANTIZE, [every], out=TensorType.FLOAT32, quantization=[quantized(scale), None]
            )
    for dtype in (np.int8, np.uint8):
        cases[f"dequantize-{dtype.__name__}-offset"] = Case(
            Op.DEQUANTIZE,
            [ints(dtype, 37)],
            out=TensorType.FLOAT32,
            quantization=[quantized(0.1, 3), None],
            declines=True,
        )
    for axis in (0, 1):
        channels = quantized([0.1, 0.2, 1e-3][: 3 - axis] + [0.7] * axis, [3, -7, 0], axis)
        cases[f"dequantize-channels-{axis}"] = Case(
            Op.DEQUANTIZE, [ints(np.int8, 3, 3, 2)], out=TensorType.FLOAT32, quantization=[channels, None]
        )
    return named(**cases)


@pytest.mark.parametrize("case", [*movement(), *arithmetic(), *unary(), *reductions(), *conversions()])
def test_numpy_gives_the_bits_of_the_runtime(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("spec", SPECS)
def test_strided_slice_with_every_mask(rank: int, mask: str, spec: str) -> None:
    x = floats(*[2, 3, 4, 5][:rank])
    # An index beyond the end of a dropped dimension, and an offset past it, are left to the runtime.
    declines = "shrink" in mask or mask == "offset"
    check(Case(Op.STRIDED_SLICE, [x, *SPECS[spec]], MASKS[mask], declines=declines))


def test_every_kernel_is_tested() -> None:
    cases = [*movement(), *arithmetic(), *unary(), *reductions(), *conversions()]
    assert {case.values[0].kind for case in cases} == set(KERNELS)


# -- evaluate ------------------------------------------------------------------------------------------------------


def run(graph: Graph) -> list[Array]:
    """The outputs of a model without inputs."""
    runner = interpreter(to_bytes(graph.model), xnnpack=False)
    with quiet():
        runner.allocate_tensors()
        runner.invoke()
        return [runner.get_tensor(d["index"]) for d in runner.get_output_details()]


RUNTIME = {
    "exp": Case(Op.EXP, [floats(3, 5)]),
    "mean": Case(Op.MEAN, [floats(3, 5), i32([1])], {"keep_dims": True}),
    "softmax": Case(Op.SOFTMAX, [floats(3, 5)]),
    "specials": Case(Op.ADD, list(PAIRS)),
    "conv": Case(Op.CONV_2D, [floats(1, 4, 4, 2), floats(3, 2, 2, 2), floats(3)], {"stride_w": 2}),
    "matmul": Case(Op.BATCH_MATMUL, [floats(2, 3), floats(3, 4)]),
    "quantised": Case(
        Op.ADD,
        [ints(np.int8, 20), ints(np.int8, 20)],
        quantization=[quantized(0.5, 3), quantized(0.25, -1), quantized(0.7, 5)],
    ),
    "offset": Case(
        Op.DEQUANTIZE, [ints(np.uint8, 20)], out=TensorType.FLOAT32, quantization=[quantized(0.1, 128), None]
    ),
    "where": Case(Op.WHERE, [np.array([True, False, True])], out=TensorType.INT64),
    "optional": Case(Op.FULLY_CONNECTED, [floats(2, 3), floats(4, 3)]),
}


@pytest.mark.parametrize("name", RUNTIME)
def test_everything_else_is_run(name: str) -> None:
    case = RUNTIME[name]
    graph, op = case.graph()
    if name == "optional":
        op.inputs.append(-1)
    found = evaluate(graph, op)
    expected = run(graph)
    assert found is not None
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]
    assert [(a.shape, a.dtype) for a in found] == [(a.shape, a.dtype) for a in expected]


def test_several_outputs() -> None:
    b = Builder()
    out = b.op(Op.TOPK_V2, [b.constant("x", floats(3, 5)), b.constant("k", i32(2))], shape=[3, 2], outputs=2)
    graph = Graph(b.model([out, out + 1]))
    graph.tensor(out + 1).type = TensorType.INT32
    found = evaluate(graph, next(graph.operators()))
    assert found is not None
    assert [a.dtype for a in found] == [np.float32, np.int32]
    assert [a.tobytes() for a in found] == [a.tobytes() for a in run(graph)]


def test_an_empty_constant_counts_as_known() -> None:
    graph, op = Case(Op.RESHAPE, [floats(1, 1), np.zeros(0, np.int32)]).graph()
    found = evaluate(graph, op)
    assert found is not None
    assert found[0].shape == ()


def refuses(graph: Graph) -> bool:
    return evaluate(graph, next(graph.operators())) is None


def test_inputs_that_are_not_constant() -> None:
    b = Builder()
    y = b.op(Op.ADD, [b.input("x", [2]), b.constant("c", floats(2))], shape=[2])
    assert refuses(Graph(b.model([y])))
    b = Builder()
    shape = b.op(Op.SHAPE, [b.input("x", [2])], shape=[1], type=TensorType.INT32, out_type=TensorType.INT32)
    assert refuses(Graph(b.model([shape])))


def test_computed_inputs() -> None:
    b = Builder()
    y = b.op(Op.NEG, [b.constant("c", floats(2))], shape=[2])
    graph = Graph(b.model([b.op(Op.ABS, [y], shape=[2])]))
    negative, absolute = graph.operators()
    assert evaluate(graph, negative) is not None
    assert evaluate(graph, absolute) is None


def test_state_and_side_effects() -> None:
    b = Builder()
    graph = Graph(b.model([b.op(Op.RANDOM_UNIFORM, [b.constant("shape", i32(2, 3))], shape=[2, 3])]))
    assert refuses(graph)
    b = Builder()
    cells = floats(4, 3), floats(4, 4), floats(4)
    state = b.constant("state", floats(2, 4))
    y = b.op(
        Op.RNN,
        [b.constant("x", floats(2, 3)), *(b.constant(f"w{i}", w) for i, w in enumerate(cells)), state],
        shape=[2, 4],
    )
    graph = Graph(b.model([y]))
    graph.tensor(state).is_variable = True
    assert refuses(graph)


def test_control_flow() -> None:
    b = Builder()
    y = b.op(Op.IF, [b.constant("c", np.array(True)), b.constant("x", floats(2))], shape=[2], type=TensorType.FLOAT32)
    assert refuses(Graph(b.model([y])))
    b = Builder()
    operands = [b.constant("x", floats(4)), b.constant("i", i32([[1]])), b.constant("u", floats(1))]
    y = b.op(Op.STABLEHLO_SCATTER, operands, shape=[4], update_computation_subgraph_index=1)
    assert refuses(Graph(b.model([y])))


def test_what_the_runtime_refuses() -> None:
    graph, op = Case(Op.CONV_2D, [floats(1, 4, 4, 2), floats(3, 2, 2, 3), floats(3)]).graph()
    assert evaluate(graph, op) is None  # channels do not fit
    graph, op = Case(Op.GATHER, [floats(3), i32([7])]).graph()
    assert evaluate(graph, op) is None  # outside
    graph, op = Case(Op.DIV, [i32(1, 2), i32(1, 0)]).graph()
    assert evaluate(graph, op) is None  # division by zero


def test_types_without_a_numpy_equivalent() -> None:
    b = Builder()
    packed = b.constant("x", np.array([0x21, 0x43], np.uint8), quantized(0.5), TensorType.INT4)
    y = b.op(Op.DEQUANTIZE, [packed], shape=[4], type=TensorType.FLOAT32)
    graph = Graph(b.model([y]))
    graph.tensor(packed).shape = [4]
    assert refuses(graph)


def test_quantisation_in_further_tensors() -> None:
    graph, op = Case(Op.EXP, [floats(4)]).graph()
    details = BlockwiseQuantization(scales=0, zero_points=-1, block_size=4)
    graph.tensor(op.inputs[0]).quantization = QuantizationParameters(details=details)
    assert evaluate(graph, op) is None


BLOW_UPS = {
    "fill": Case(Op.FILL, [i32(600, 600), np.float32(1)], out=TensorType.FLOAT32),
    "tile": Case(Op.TILE, [floats(600), i32(600)]),
    "broadcast": Case(Op.BROADCAST_TO, [floats(600, 1), i32(600, 600)], version=2),
    "range": Case(Op.RANGE, [i32(0), i32(600 * 600), i32(1)]),
    "add": Case(Op.ADD, [floats(600, 1), floats(600)]),
    "pad": Case(Op.PAD, [floats(1), i32([[300 * 600, 300 * 600]])]),
    "one-hot": Case(Op.ONE_HOT, [i32([0] * 600), i32(600), np.float32(1), np.float32(0)], {"axis": -1}),
    "matmul": Case(Op.BATCH_MATMUL, [floats(600, 1), floats(1, 600)]),
}


@pytest.mark.parametrize("case", named(**BLOW_UPS))
def test_results_much_larger_than_their_inputs(case: Case) -> None:
    if case.kind is Op.ONE_HOT:
        case.out = TensorType.FLOAT32
    graph, op = case.graph()
    assert evaluate(graph, op) is None
    found = evaluate(graph, op, max_bytes=2 << 20)
    assert found is not None
    assert found[0].nbytes > 1 << 20


def test_large_results_of_large_inputs() -> None:
    graph, op = Case(Op.TRANSPOSE, [floats(600, 600), i32(1, 0)]).graph()
    assert evaluate(graph, op) is not None
    graph, op = Case(Op.DEQUANTIZE, [floats(600, 600).astype(np.float16)], out=TensorType.FLOAT32).graph()
    assert evaluate(graph, op) is None
    assert evaluate(graph, op, max_bytes=4 * 600 * 600) is not None


# -- sparse constants ----------------------------------------------------------------------------------------------


def dense(size: int) -> DimensionMetadata:
    return DimensionMetadata(format=DimensionType.DENSE, dense_size=size)


def compressed(segments: list[int], indices: list[int], kind: Any = Int32Vector) -> DimensionMetadata:
    dtype = {Int32Vector: np.int32, Uint16Vector: np.uint16, Uint8Vector: np.uint8}[kind]
    return DimensionMetadata(
        format=DimensionType.SPARSE_CSR,
        array_segments=kind(values=np.array(segments, dtype)),
        array_indices=kind(values=np.array(indices, dtype)),
    )


def sparse(order: list[int], levels: list[DimensionMetadata], blocks: list[int] | None = None) -> SparsityParameters:
    return SparsityParameters(
        traversal_order=np.array(order, np.int32),
        block_map=None if blocks is None else np.array(blocks, np.int32),
        dim_metadata=levels,
    )


# (shape, number of stored values, description)
SPARSE: dict[str, tuple[list[int], int, SparsityParameters]] = {
    "rows": ([3, 4], 4, sparse([0, 1], [dense(3), compressed([0, 2, 2, 4], [0, 3, 1, 2])])),
    "columns": ([3, 4], 3, sparse([1, 0], [dense(4), compressed([0, 1, 1, 2, 3], [2, 0, 1])])),
    "bytes": ([3, 4], 4, sparse([0, 1], [dense(3), compressed([0, 2, 2, 4], [0, 3, 1, 2], Uint8Vector)])),
    "words": ([3, 4], 4, sparse([0, 1], [dense(3), compressed([0, 2, 2, 4], [0, 3, 1, 2], Uint16Vector)])),
    "blocks": (
        [4, 6],
        12,
        sparse([0, 1, 2, 3], [dense(2), compressed([0, 1, 2], [1, 0]), dense(2), dense(3)], [0, 1]),
    ),
    "block-of-one-dimension": (
        [4, 6],
        9,
        sparse([0, 1, 2], [dense(4), compressed([0, 1, 1, 2, 3], [1, 0, 1]), dense(3)], [1]),
    ),
    "two-compressed": (
        [3, 4],
        3,
        sparse([0, 1], [compressed([0, 2], [0, 2]), compressed([0, 1, 3], [3, 0, 1])]),
    ),
    "dense-below": ([3, 4], 8, sparse([0, 1], [compressed([0, 2], [0, 2]), dense(4)])),
    "four-dimensions": (
        [2, 1, 2, 3],
        4,
        sparse([0, 1, 2, 3], [dense(2), dense(1), dense(2), compressed([0, 1, 1, 3, 4], [2, 0, 1, 2])]),
    ),
    "nothing": ([2, 2], 0, sparse([0, 1], [dense(2), compressed([0, 0, 0], [])])),
}


def sparse_model(shape: list[int], values: Array, sparsity: SparsityParameters) -> Graph:
    b = Builder()
    x = b.constant("x", values)
    graph = Graph(b.model([b.op(Op.DENSIFY, [x], shape=[])]))
    graph.tensor(x).shape, graph.tensor(x).sparsity = shape, sparsity
    return graph


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("name", [name for name in SPARSE if name != "nothing"])
def test_densify_gives_the_bits_of_the_runtime(name: str, dtype: Any) -> None:
    shape, count, sparsity = SPARSE[name]
    graph = sparse_model(shape, np.arange(1, count + 1).astype(dtype), sparsity)
    found = evaluate(graph, next(graph.operators()))
    assert found is not None
    (expected,) = run(graph)
    assert found[0].dtype == expected.dtype
    assert np.array_equal(found[0], expected)
    assert np.count_nonzero(found[0]) == count


def test_densify_of_nothing() -> None:
    shape, _, sparsity = SPARSE["nothing"]
    found = densify(np.zeros(0, np.float32), shape, sparsity)
    assert found is not None
    assert np.array_equal(found, np.zeros(shape))


BROKEN: dict[str, tuple[list[int], int, SparsityParameters]] = {
    "too-few-values": ([3, 4], 3, SPARSE["rows"][2]),
    "too-many-values": ([3, 4], 5, SPARSE["rows"][2]),
    "index-outside": ([3, 4], 2, sparse([0, 1], [dense(3), compressed([0, 1, 1, 2], [0, 4])])),
    "too-few-segments": ([3, 4], 2, sparse([0, 1], [dense(3), compressed([0, 2], [0, 1])])),
    "segments-backwards": ([3, 4], 2, sparse([0, 1], [dense(3), compressed([0, 2, 0, 2], [0, 1])])),
    "segments-outside": ([3, 4], 4, sparse([0, 1], [dense(3), compressed([0, 2, 2, 4], [0, 1])])),
    "not-an-order": ([3, 4], 12, sparse([0, 0], [dense(3), dense(4)])),
    "missing-level": ([3, 4], 3, sparse([0, 1], [dense(3)])),
    "block-outside": ([4, 6], 12, sparse([0, 1, 2], [dense(4), dense(2), dense(3)], [2])),
    "block-first": ([4, 6], 24, sparse([2, 0, 1], [dense(3), dense(4), dense(2)], [1])),
    "huge": ([3, 4], 12, sparse([0, 1], [dense(2**31 - 1), dense(2**31 - 1)])),
    "negative": ([3, 4], 12, sparse([0, 1], [dense(-3), dense(4)])),
    "no-vectors": ([3, 4], 4, sparse([0, 1], [dense(3), DimensionMetadata(format=DimensionType.SPARSE_CSR)])),
}


@pytest.mark.parametrize("name", BROKEN)
def test_densify_of_a_broken_description(name: str) -> None:
    shape, count, sparsity = BROKEN[name]
    assert densify(np.ones(count, np.float32), shape, sparsity) is None


# -- corpus --------------------------------------------------------------------------------------------------------


def test_constant_operators_of_the_corpus(corpus: list[Path], corpus_index: dict[str, dict[str, str]]) -> None:
    """Every operator on constants is evaluated, to what the interpreter computes for it in its model."""
    seen: Counter[str] = Counter()
    for path in corpus:
        if corpus_index.get(path.stem, {}).get("runs_litert_2.3.0", "ok") != "ok" or path.stat().st_size > 8 << 20:
            continue
        graph = Graph(read(path))
        found = {}
        for op in graph.operators():
            value = evaluate(graph, op, max_bytes=1 << 26)
            if value is not None:
                found.update(zip(op.outputs, value, strict=True))
                seen[graph.kind(op).name] += 1
        if not found:
            continue
        runner = interpreter(path, xnnpack=False, keep_all=True)
        with quiet():
            runner.allocate_tensors()
            runner.invoke()
        for tensor, value in found.items():
            expected = runner.get_tensor(tensor)
            assert value.dtype == expected.dtype, (path.stem, graph.name(tensor))
            assert value.tobytes() == expected.tobytes(), (path.stem, graph.name(tensor))
    assert seen["DEQUANTIZE"] > 100
    assert seen["DENSIFY"] > 10
