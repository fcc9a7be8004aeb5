"""Shape and type inference against what the installed runtime reports: odd cases by family, and the whole corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rules import looped

from litefuse.graph import Graph
from litefuse.graph.build import Builder
from litefuse.graph.infer import (
    RULES,
    UNKNOWN,
    ShapeError,
    TensorSpec,
    infer_operator,
    infer_subgraph,
    propagate,
)
from litefuse.runtime import interpreter, quiet
from litefuse.schema import Model, read, to_bytes
from litefuse.schema.enums import (
    LSHProjectionType,
    LSTMKernelType,
    MirrorPadMode,
    Padding,
    ReduceWindowFunction,
    TensorType,
)
from litefuse.schema.operators import Op, operator_code
from litefuse.schema.tables import (
    IfOptions,
    Operator,
    StablehloCaseOptions,
    StableHLOCompositeOptions,
    Tensor,
)
from litefuse.schema.types import NUMPY, tensor_type

Array = NDArray[Any]
F32, I32, I64, U64, BOOL, U8, I8 = (
    TensorType.FLOAT32,
    TensorType.INT32,
    TensorType.INT64,
    TensorType.UINT64,
    TensorType.BOOL,
    TensorType.UINT8,
    TensorType.INT8,
)


@dataclass
class In:
    """An input of the model, with the value it is given to run."""

    shape: Sequence[int]
    type: TensorType = F32
    value: Any = 0


@dataclass
class Var:
    """A variable tensor."""

    shape: Sequence[int]
    type: TensorType = F32


Operand = In | Var | Array | None  # an array is a constant, None an input left out


@dataclass
class Case:
    """One operator, and which of its output dimensions may stay open."""

    kind: Op
    inputs: list[Operand]
    options: dict[str, Any] = field(default_factory=dict)
    types: list[TensorType] | None = None
    """Types of the outputs, by default that of the first input."""
    version: int = 1
    shape: Sequence[int] = ()
    """The output's shape in the file, which a few kernels look at."""
    open: bool = False
    """Whether dimensions depend on values that are known at run time only."""


def build(case: Case) -> tuple[Model, list[In]]:
    b = Builder()
    tensors: list[int] = []
    inputs: list[In] = []
    variables: list[int] = []
    for i, operand in enumerate(case.inputs):
        if operand is None:
            tensors.append(-1)
        elif isinstance(operand, In):
            tensors.append(b.input(f"x{i}", operand.shape, operand.type))
            inputs.append(operand)
        elif isinstance(operand, Var):
            tensors.append(b.input(f"x{i}", operand.shape, operand.type))
            variables.append(tensors[-1])
        else:
            tensors.append(b.constant(f"x{i}", operand))
    first = case.inputs[0]
    default = first.type if isinstance(first, (In, Var)) else F32 if first is None else tensor_type(first.dtype)
    types = case.types or [default]
    out = b.op(case.kind, tensors, shape=case.shape, type=types[0], outputs=len(types), version=case.version)
    model = b.model([out + i for i in range(len(types))])
    main = model.subgraphs[0]
    options = main.operators[0].builtin_options or main.operators[0].builtin_options_2
    for name, value in case.options.items():
        setattr(options, name, value)
    for i, t in enumerate(types):
        main.tensors[out + i].type = t
        main.tensors[out + i].has_rank = bool(case.shape)  # the shape there is none, rather than that of a scalar
    for t in variables:
        main.inputs.remove(t)
        main.tensors[t].is_variable = True
    return model, inputs


def reported(model: Model, inputs: Sequence[In] = ()) -> dict[int, tuple[tuple[int, ...], Any]]:
    """Shape and numpy type of each tensor of the main subgraph after a run."""
    runner = interpreter(to_bytes(model), xnnpack=False, keep_all=True)
    with quiet():
        runner.allocate_tensors()
        for detail, given in zip(runner.get_input_details(), inputs, strict=True):
            runner.set_tensor(detail["index"], np.full(detail["shape"], given.value, detail["dtype"]))
        runner.invoke()
    return {d["index"]: (tuple(d["shape"].tolist()), d["dtype"]) for d in runner.get_tensor_details()}


def fits(spec: TensorSpec, shape: tuple[int, ...], dtype: Any) -> bool:
    """Whether what is known of a tensor is true of the tensor that the runtime has."""
    if spec.type in NUMPY and NUMPY[spec.type] != dtype:
        return False
    return spec.shape is None or (
        len(spec.shape) == len(shape) and all(a in (b, -1) for a, b in zip(spec.shape, shape, strict=True))
    )


def closed(spec: TensorSpec) -> bool:
    return spec.shape is not None and -1 not in spec.shape


def check(case: Case) -> None:
    model, inputs = build(case)
    graph = Graph(model)
    op = next(graph.operators())
    specs = infer_operator(graph, op)
    assert specs is not None
    actual = reported(model, inputs)
    for tensor, spec in zip(op.outputs, specs, strict=True):
        assert fits(spec, *actual[tensor]), (spec, actual[tensor])
    assert all(map(closed, specs)) != case.open, specs
    assert [infer_subgraph(graph)[t] for t in op.outputs] == specs


def i32(*values: Any) -> Array:
    return np.array(values[0] if len(values) == 1 else values, np.int32)


def f32(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def named(cases: dict[str, Case]) -> list[Any]:
    return [pytest.param(case, id=name) for name, case in cases.items()]


def elementwise() -> dict[str, Case]:
    x = In([2, 3, 4])
    cases = {
        kind.name.lower(): Case(kind, [x])
        for kind in (
            *(Op.ABS, Op.CEIL, Op.COS, Op.ELU, Op.EXP, Op.FLOOR, Op.GELU, Op.HARD_SWISH, Op.LEAKY_RELU, Op.LOG),
            *(Op.LOGISTIC, Op.LOG_SOFTMAX, Op.NEG, Op.RELU, Op.RELU6, Op.RELU_0_TO_1, Op.RELU_N1_TO_1, Op.ROUND),
            *(Op.RSQRT, Op.SIGN, Op.SIN, Op.SOFTMAX, Op.SQRT, Op.SQUARE, Op.TANH, Op.ZEROS_LIKE, Op.L2_NORMALIZATION),
        )
    }
    for kind in (Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MAXIMUM, Op.MINIMUM, Op.POW, Op.FLOOR_DIV, Op.FLOOR_MOD):
        name = kind.name.lower()
        cases[f"{name}-left"] = Case(kind, [In([2, 1, 4], value=1), In([3, 1], value=1)])
        cases[f"{name}-scalar"] = Case(kind, [In([2, 3], value=1), f32()])
        cases[f"{name}-scalars"] = Case(kind, [In([], value=1), f32()])
        cases[f"{name}-empty"] = Case(kind, [In([0, 3]), f32(1, 3)])
    cases["squared-difference"] = Case(Op.SQUARED_DIFFERENCE, [In([1, 3]), In([2, 1])])
    cases["atan2"] = Case(Op.ATAN2, [In([2, 3]), In([2, 3])])
    cases["prelu"] = Case(Op.PRELU, [In([1, 4, 4, 3]), f32(1, 1, 3)])
    cases["bitwise-xor"] = Case(Op.BITWISE_XOR, [In([2, 3], I32), In([3], I32)])
    cases["right-shift"] = Case(Op.RIGHT_SHIFT, [In([2, 3], I32), In([3], I32)])
    for kind in (Op.EQUAL, Op.NOT_EQUAL, Op.LESS, Op.LESS_EQUAL, Op.GREATER, Op.GREATER_EQUAL):
        cases[kind.name.lower()] = Case(kind, [In([2, 1, 4]), In([3, 1])], types=[F32])
    for kind in (Op.LOGICAL_AND, Op.LOGICAL_OR):
        cases[kind.name.lower()] = Case(kind, [In([2, 1], BOOL), In([3], BOOL)])
    cases["logical-not"] = Case(Op.LOGICAL_NOT, [In([2], BOOL)])
    cases["add-n"] = Case(Op.ADD_N, [In([2, 3]), In([2, 3]), In([2, 3])])
    for kind in (Op.STABLEHLO_ADD, Op.STABLEHLO_MULTIPLY, Op.STABLEHLO_MAXIMUM, Op.STABLEHLO_MINIMUM):
        cases[kind.name.lower()] = Case(kind, [In([2, 3]), In([2, 3])])
    cases["stablehlo-and"] = Case(Op.STABLEHLO_AND, [In([2], BOOL), In([2], BOOL)])
    cases["stablehlo-shift-left"] = Case(Op.STABLEHLO_SHIFT_LEFT, [In([2], I32), In([2], I32)])
    cases["select"] = Case(Op.SELECT, [In([2, 3], BOOL), In([2, 3]), f32(2, 3)], types=[F32])
    cases["select-rows"] = Case(Op.SELECT, [In([2], BOOL), In([2, 3]), f32(2, 3)], types=[F32])
    cases["select-scalar"] = Case(Op.SELECT, [In([], BOOL), In([2, 3]), f32(2, 3)], types=[F32])
    cases["select-single"] = Case(Op.SELECT, [In([1], BOOL), In([1, 1]), f32(1, 1)], types=[F32])
    cases["select-v2"] = Case(Op.SELECT_V2, [In([2, 1], BOOL), In([3]), f32(4, 1, 1)], types=[F32])
    cases["select-v2-single"] = Case(Op.SELECT_V2, [In([1], BOOL), In([1, 1]), f32()], types=[F32])
    cases["select-v2-empty"] = Case(Op.SELECT_V2, [In([1], BOOL), In([0, 3]), f32(1, 3)], types=[F32])
    cases["cast"] = Case(Op.CAST, [In([2, 3])], types=[I64])
    cases["bucketize"] = Case(Op.BUCKETIZE, [In([2, 3])], {"boundaries": f32(2)}, types=[I32])
    cases["cumsum"] = Case(Op.CUMSUM, [In([2, 3]), i32(-1)])
    cases["local-response"] = Case(Op.LOCAL_RESPONSE_NORMALIZATION, [In([1, 2, 2, 8])], {"radius": 1})
    cases["fake-quant"] = Case(Op.FAKE_QUANT, [In([2, 3])], {"min": -1.0, "max": 1.0, "num_bits": 8})
    cases["reverse-sequence"] = Case(Op.REVERSE_SEQUENCE, [In([2, 3]), i32(1, 2)], {"seq_dim": 1})
    for kind in (Op.COMPLEX_ABS, Op.REAL, Op.IMAG):
        cases[kind.name.lower()] = Case(kind, [In([2, 3], TensorType.COMPLEX64)], types=[F32])
    return cases


def reshaping() -> dict[str, Case]:
    x = In([2, 3, 4])
    return {
        "reshape": Case(Op.RESHAPE, [x, i32(4, 6)]),
        "reshape-fill": Case(Op.RESHAPE, [x, i32(-1, 2)]),
        "reshape-options": Case(Op.RESHAPE, [x], {"new_shape": [8, -1]}),
        "reshape-both": Case(Op.RESHAPE, [x, i32(12, 2)], {"new_shape": [8, 3]}),
        "reshape-toco-scalar": Case(Op.RESHAPE, [In([1, 1])], {"new_shape": [0]}),
        "reshape-to-scalar": Case(Op.RESHAPE, [In([1]), np.zeros(0, np.int32)]),
        "reshape-from-scalar": Case(Op.RESHAPE, [In([]), i32(1, 1)]),
        "reshape-matrix-target": Case(Op.RESHAPE, [x, i32([[4, 6]])], {"new_shape": [3, 8]}),
        "reshape-empty": Case(Op.RESHAPE, [In([0, 3]), i32(-1, 0)]),
        "reshape-empty-fill": Case(Op.RESHAPE, [In([0, 3]), i32(-1, 3)]),
        "reshape-runtime": Case(Op.RESHAPE, [In([6]), In([2], I32, [2, 3])], open=True),
        "squeeze": Case(Op.SQUEEZE, [In([1, 2, 1, 3, 1])], {"squeeze_dims": [0, -1]}),
        "squeeze-all": Case(Op.SQUEEZE, [In([1, 2, 1, 3, 1])]),
        "squeeze-to-scalar": Case(Op.SQUEEZE, [In([1, 1])]),
        "expand-dims": Case(Op.EXPAND_DIMS, [x, i32(1)]),
        "expand-dims-last": Case(Op.EXPAND_DIMS, [x, i32([-1])]),
        "expand-dims-scalar": Case(Op.EXPAND_DIMS, [In([]), i32(0)]),
        "expand-dims-runtime": Case(Op.EXPAND_DIMS, [x, In([1], I32, 1)], open=True),
        "transpose": Case(Op.TRANSPOSE, [x, i32(2, 0, -2)]),
        "transpose-runtime": Case(Op.TRANSPOSE, [x, In([3], I32, [2, 0, 1])], open=True),
        "bitcast-same": Case(Op.BITCAST, [x], types=[I32]),
        "bitcast-narrower": Case(Op.BITCAST, [x], types=[U8]),
        "bitcast-wider": Case(Op.BITCAST, [In([2, 4], U8)], types=[F32]),
    }


def slicing() -> dict[str, Case]:
    x = In([2, 3, 4])
    return {
        "slice": Case(Op.SLICE, [x, i32(0, 1, 1), i32(2, -1, 2)]),
        "slice-int64": Case(Op.SLICE, [x, np.array([1, 0, 0]), np.array([-1, 3, 0])]),
        "slice-runtime": Case(Op.SLICE, [x, In([3], I32), In([3], I32, 1)], open=True),
        "slice-runtime-begin": Case(Op.SLICE, [x, In([3], I32), i32(1, 2, 3)]),
        "concatenation": Case(Op.CONCATENATION, [x, f32(2, 3, 1)], {"axis": -1}),
        "concatenation-one": Case(Op.CONCATENATION, [x], {"axis": 0}),
        "concatenation-empty": Case(Op.CONCATENATION, [x, f32(2, 0, 4)], {"axis": 1}),
        "concatenation-scalars": Case(Op.CONCATENATION, [i32(1), i32(2), i32(3)]),
        "pack": Case(Op.PACK, [x, f32(2, 3, 4)], {"values_count": 2, "axis": -1}),
        "pack-scalars": Case(Op.PACK, [In([]), f32()], {"values_count": 2}),
        "unpack": Case(Op.UNPACK, [x], {"num": 3, "axis": -2}, types=[F32] * 3),
        "unpack-to-scalars": Case(Op.UNPACK, [In([2])], {"num": 2}, types=[F32] * 2),
        "split": Case(Op.SPLIT, [i32(-1), x], {"num_splits": 2}, types=[F32] * 2),
        "split-runtime": Case(Op.SPLIT, [In([], I32, 0), x], {"num_splits": 2}, types=[F32] * 2, open=True),
        "split-v": Case(Op.SPLIT_V, [x, i32(1, -1), i32(2)], {"num_splits": 2}, types=[F32] * 2),
        "split-v-runtime": Case(
            Op.SPLIT_V, [x, In([2], I32, [1, 3]), i32(2)], {"num_splits": 2}, types=[F32] * 2, open=True
        ),
        "reverse": Case(Op.REVERSE_V2, [x, i32([1])]),
        "dynamic-update-slice": Case(Op.DYNAMIC_UPDATE_SLICE, [x, f32(1, 2, 4), In([3], I32)]),
    }


def indexing() -> dict[str, Case]:
    x = In([2, 3, 4])
    return {
        "gather": Case(Op.GATHER, [x, In([5, 2], I32)], {"axis": 1}),
        "gather-scalar": Case(Op.GATHER, [x, i32(1)], {"axis": -1}),
        "gather-batch": Case(Op.GATHER, [x, In([2, 5], I32)], {"axis": 2, "batch_dims": 1}),
        "gather-batch-negative": Case(Op.GATHER, [x, In([2, 3, 5], I32)], {"axis": 2, "batch_dims": -1}),
        "gather-nd": Case(Op.GATHER_ND, [x, In([5, 2], I32)]),
        "gather-nd-whole": Case(Op.GATHER_ND, [x, In([5, 1, 3], I32)]),
        "scatter-nd": Case(Op.SCATTER_ND, [In([2, 1], I32), In([2, 3]), i32(5, 3)], types=[F32]),
        "scatter-nd-runtime": Case(
            Op.SCATTER_ND, [In([2, 1], I32), In([2, 3]), In([2], I32, [5, 3])], types=[F32], open=True
        ),
        "sparse-to-dense": Case(Op.SPARSE_TO_DENSE, [In([2, 1], I32), i32([5]), In([2]), np.float32(0)], types=[F32]),
        "embedding-lookup": Case(Op.EMBEDDING_LOOKUP, [In([3], I32), f32(5, 2, 4)], types=[F32]),
        "embedding-lookup-sparse": Case(
            Op.EMBEDDING_LOOKUP_SPARSE,
            [i32(1, 3), i32([[0, 0], [1, 0]]), i32(2, 1), f32(2), f32(5, 4)],
            types=[F32],
        ),
        "hashtable-lookup": Case(Op.HASHTABLE_LOOKUP, [In([3], I32), i32(1, 2), f32(2, 4)], types=[F32, U8]),
        "where": Case(Op.WHERE, [In([2, 3], BOOL, True)], types=[I64], open=True),
        "where-constant": Case(Op.WHERE, [np.array([[True, False], [True, True]])], types=[I64]),
        "unique": Case(Op.UNIQUE, [In([4], value=[1, 2, 1, 1])], {"idx_out_type": I64}, types=[F32, I64], open=True),
        "one-hot": Case(Op.ONE_HOT, [In([2, 3], I32), i32(5), np.float32(1), np.float32(0)], {"axis": -1}, [F32]),
        "one-hot-axis": Case(Op.ONE_HOT, [In([2, 3], I32), i32(5), np.int8(1), np.int8(0)], {"axis": 1}, [I8]),
        "one-hot-runtime": Case(
            Op.ONE_HOT, [In([2, 3], I32), In([], I32, 5), np.float32(1), np.float32(0)], {"axis": 1}, [F32], open=True
        ),
        "stablehlo-gather": Case(
            Op.STABLEHLO_GATHER,
            [In([3, 4, 2]), In([2, 3, 2], I64)],
            {
                "offset_dims": [2, 3],
                "collapsed_slice_dims": [0],
                "start_index_map": [1, 0],
                "index_vector_dim": 2,
                "slice_sizes": [1, 2, 2],
            },
            shape=[1, 1, 1, 1],
        ),
    }


def growing() -> dict[str, Case]:
    x = In([2, 3])
    paddings = i32([[1, 0], [2, 3]])
    return {
        "pad": Case(Op.PAD, [x, paddings]),
        "pad-int64": Case(Op.PAD, [x, paddings.astype(np.int64)]),
        "pad-runtime": Case(Op.PAD, [x, In([2, 2], I32, 1)], open=True),
        "padv2": Case(Op.PADV2, [x, paddings, np.float32(1)]),
        "mirror-pad": Case(Op.MIRROR_PAD, [In([2, 4]), paddings], {"mode": MirrorPadMode.REFLECT}),
        "mirror-pad-runtime": Case(Op.MIRROR_PAD, [x, In([2, 2], I32, 1)], open=True),
        "stablehlo-pad": Case(
            Op.STABLEHLO_PAD,
            [x, np.float32(0)],
            {"edge_padding_low": [1, -1], "edge_padding_high": [0, 2], "interior_padding": [1, 0]},
        ),
        "stablehlo-pad-empty": Case(
            Op.STABLEHLO_PAD,
            [x, np.float32(0)],
            {"edge_padding_low": [0, -3], "edge_padding_high": [0, 0], "interior_padding": [0, 0]},
        ),
        "dilate": Case(Op.DILATE, [x, i32(2, 3), np.float32(0)]),
        "tile": Case(Op.TILE, [x, i32(2, 3)]),
        "tile-runtime": Case(Op.TILE, [x, In([2], I32, 2)], open=True),
        "broadcast-to": Case(Op.BROADCAST_TO, [In([3, 1]), i32(2, 3, 4)], version=2),
        "broadcast-to-runtime": Case(Op.BROADCAST_TO, [In([3, 1]), In([3], I32, [2, 3, 4])], version=2, open=True),
        "broadcast-args": Case(Op.BROADCAST_ARGS, [In([3], I32, 1), i32(2, 1)]),
        "fill": Case(Op.FILL, [i32(2, 3), np.float32(1)], types=[F32]),
        "fill-scalar": Case(Op.FILL, [np.zeros(0, np.int32), np.float32(1)], types=[F32]),
        "fill-runtime": Case(Op.FILL, [In([2], I64, 2), np.float32(1)], types=[F32], open=True),
        "range": Case(Op.RANGE, [i32(1), i32(8), i32(3)]),
        "range-down": Case(Op.RANGE, [i32(8), i32(1), i32(-3)]),
        "range-float": Case(Op.RANGE, [np.float32(0), np.float32(1), np.float32(0.1)]),
        "range-runtime": Case(Op.RANGE, [i32(1), In([], I32, 8), i32(3)], open=True),
        "shape": Case(Op.SHAPE, [x], {"out_type": I64}, types=[I32]),
        "shape-of-scalar": Case(Op.SHAPE, [In([])], {"out_type": I32}, types=[I32]),
        "rank": Case(Op.RANK, [x], types=[I32]),
        "matrix-diag": Case(Op.MATRIX_DIAG, [x]),
        "matrix-set-diag": Case(Op.MATRIX_SET_DIAG, [In([2, 3, 4]), f32(2, 3)]),
        "random-bits": Case(
            Op.STABLEHLO_RNG_BIT_GENERATOR, [In([2], U64)], {"algorithm": 1}, types=[U64, I32], shape=[2]
        ),
        "random-uniform": Case(Op.RANDOM_UNIFORM, [i32(2, 3)], types=[F32]),
        "random-normal": Case(Op.RANDOM_STANDARD_NORMAL, [In([2], I32, 2)], types=[F32], open=True),
        "multinomial": Case(Op.MULTINOMIAL, [In([2, 3]), i32(5)], types=[I64]),
    }


def reducing() -> dict[str, Case]:
    x = In([2, 3, 4])
    cases: dict[str, Case] = {}
    for kind in (Op.MEAN, Op.SUM, Op.REDUCE_MAX, Op.REDUCE_MIN, Op.REDUCE_PROD):
        for keep in (False, True):
            suffix = "keep" if keep else "drop"
            cases[f"{kind.name.lower()}-{suffix}"] = Case(kind, [x, i32(-1, 0)], {"keep_dims": keep})
    for kind in (Op.REDUCE_ALL, Op.REDUCE_ANY):
        cases[kind.name.lower()] = Case(kind, [In([2, 3], BOOL), i32([1])])
    cases |= {
        "mean-twice": Case(Op.MEAN, [x, i32(1, -2)]),
        "mean-scalar-axis": Case(Op.MEAN, [x, i32(1)]),
        "mean-all": Case(Op.MEAN, [x, i32(0, 1, 2)]),
        "mean-none": Case(Op.MEAN, [x, np.zeros(0, np.int32)]),
        "sum-runtime": Case(Op.SUM, [x, In([1], I32, 1)], open=True),
        "sum-runtime-keep": Case(Op.SUM, [x, In([1], I32, 1)], {"keep_dims": True}, open=True),
        "arg-max": Case(Op.ARG_MAX, [x, i32(-1)], {"output_type": I64}, types=[I32]),
        "arg-min": Case(Op.ARG_MIN, [x, i32([0])], {"output_type": I32}, types=[I64]),
        "arg-max-vector": Case(Op.ARG_MAX, [In([5]), i32(0)], {"output_type": I32}, types=[I32]),
        "arg-max-runtime": Case(Op.ARG_MAX, [x, In([], I32, 1)], {"output_type": I32}, types=[I32], open=True),
        "top-k": Case(Op.TOPK_V2, [x, i32(2)], types=[F32, I32]),
        "top-k-runtime": Case(Op.TOPK_V2, [x, In([], I32, 2)], types=[F32, I32], open=True),
        "segment-sum": Case(Op.SEGMENT_SUM, [f32(4, 3), i32(0, 0, 1, 2)]),
        "segment-sum-runtime": Case(Op.SEGMENT_SUM, [In([4, 3]), In([4], I32, [0, 0, 1, 1])], open=True),
        "non-max-suppression-v4": Case(
            Op.NON_MAX_SUPPRESSION_V4,
            [In([5, 4]), In([5]), i32(3), np.float32(0.5), np.float32(0.5)],
            types=[I32, I32],
        ),
        "non-max-suppression-v5": Case(
            Op.NON_MAX_SUPPRESSION_V5,
            [In([5, 4]), In([5]), In([], I32, 3), np.float32(0.5), np.float32(0.5), np.float32(0.5)],
            types=[I32, F32, I32],
            open=True,
        ),
        "lsh-dense": Case(
            Op.LSH_PROJECTION, [f32(3, 4), In([5], I32), f32(5)], {"type": LSHProjectionType.DENSE}, types=[I32]
        ),
        "lsh-sparse": Case(
            Op.LSH_PROJECTION, [f32(3, 4), In([5], I32), f32(5)], {"type": LSHProjectionType.SPARSE}, types=[I32]
        ),
    }
    for kind in (Op.UNSORTED_SEGMENT_MAX, Op.UNSORTED_SEGMENT_MIN, Op.UNSORTED_SEGMENT_PROD, Op.UNSORTED_SEGMENT_SUM):
        cases[kind.name.lower()] = Case(kind, [In([2, 3, 4]), i32([[0, 1, 0], [4, 1, 0]]), i32(6)])
    return cases


def windows() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for padding in Padding:
        for stride, dilation, size in ((1, 1, 7), (2, 1, 7), (3, 1, 8), (1, 2, 9), (2, 3, 12)):
            label = f"{padding.name.lower()}-{stride}-{dilation}-{size}"
            steps = {"stride_w": stride, "stride_h": 1, "padding": padding}
            dilated = steps | {"dilation_w_factor": dilation}
            x = In([2, 6, size, 4])
            cases[f"conv-2d-{label}"] = Case(Op.CONV_2D, [x, f32(5, 2, 3, 4), f32(5)], dilated)
            cases[f"depthwise-{label}"] = Case(Op.DEPTHWISE_CONV_2D, [x, f32(1, 2, 3, 8), f32(8)], dilated)
            cases[f"conv-3d-{label}"] = Case(
                Op.CONV_3D, [In([1, 3, 4, size, 2]), f32(2, 2, 3, 2, 5)], dilated | {"stride_d": 2}
            )
            if dilation == 1:
                for kind in (Op.AVERAGE_POOL_2D, Op.MAX_POOL_2D, Op.L2_POOL_2D):
                    cases[f"{kind.name.lower()}-{label}"] = Case(kind, [x], steps | {"filter_width": 3})
    valid = {"padding": Padding.VALID}
    cases |= {
        "conv-2d-grouped": Case(Op.CONV_2D, [In([1, 5, 5, 4]), f32(6, 3, 3, 2), f32(6)], valid),
        "pool-too-small": Case(Op.MAX_POOL_2D, [In([1, 2, 2, 1])], valid | {"filter_width": 3, "filter_height": 2}),
        "transpose-conv": Case(
            Op.TRANSPOSE_CONV,
            [i32(1, 8, 8, 3), f32(3, 2, 2, 4), In([1, 4, 4, 4])],
            {"stride_w": 2, "stride_h": 2},
            [F32],
        ),
        "transpose-conv-runtime": Case(
            Op.TRANSPOSE_CONV,
            [In([4], I32, [1, 8, 8, 3]), f32(3, 2, 2, 4), In([1, 4, 4, 4])],
            {"stride_w": 2, "stride_h": 2},
            [F32],
            open=True,
        ),
        "conv-3d-transpose": Case(
            Op.CONV_3D_TRANSPOSE,
            [i32(1, 2, 8, 8, 3), f32(1, 2, 2, 3, 4), In([1, 2, 4, 4, 4])],
            {"stride_w": 2, "stride_h": 2, "stride_d": 1},
            [F32],
        ),
        "fully-connected": Case(Op.FULLY_CONNECTED, [In([2, 3, 4]), f32(5, 4), f32(5)]),
        "fully-connected-keep": Case(Op.FULLY_CONNECTED, [In([2, 3, 4]), f32(5, 4), None], {"keep_num_dims": True}),
        "fully-connected-flat": Case(Op.FULLY_CONNECTED, [In([2, 3, 4]), f32(5, 12)]),
        "fully-connected-vector": Case(Op.FULLY_CONNECTED, [In([4]), f32(5, 4)]),
        "batch-matmul": Case(Op.BATCH_MATMUL, [In([2, 1, 3, 4]), In([5, 4, 6])]),
        "batch-matmul-adj": Case(Op.BATCH_MATMUL, [In([4, 3]), In([6, 4])], {"adj_x": True, "adj_y": True}),
        "resize-bilinear": Case(Op.RESIZE_BILINEAR, [In([2, 3, 4, 5]), i32(7, 8)]),
        "resize-nearest": Case(Op.RESIZE_NEAREST_NEIGHBOR, [In([2, 3, 4, 5]), i32(7, 8)]),
        "resize-runtime": Case(Op.RESIZE_NEAREST_NEIGHBOR, [In([2, 3, 4, 5]), In([2], I32, 2)], open=True),
        "space-to-depth": Case(Op.SPACE_TO_DEPTH, [In([1, 4, 6, 3])], {"block_size": 2}),
        "depth-to-space": Case(Op.DEPTH_TO_SPACE, [In([1, 4, 6, 8])], {"block_size": 2}),
        "space-to-batch": Case(Op.SPACE_TO_BATCH_ND, [In([1, 4, 5, 3]), i32(2, 3), i32([[0, 0], [1, 0]])]),
        "space-to-batch-3d": Case(Op.SPACE_TO_BATCH_ND, [In([1, 4, 3]), i32([2]), i32([[0, 2]])]),
        "batch-to-space": Case(Op.BATCH_TO_SPACE_ND, [In([6, 2, 2, 3]), i32(2, 3), i32([[0, 0], [1, 0]])]),
        "batch-to-space-runtime": Case(
            Op.BATCH_TO_SPACE_ND, [In([6, 2, 2, 3]), In([2], I32, [2, 3]), i32([[0, 0], [1, 0]])], open=True
        ),
        "rfft2d": Case(Op.RFFT2D, [In([3, 4, 8]), i32(4, 16)], types=[TensorType.COMPLEX64]),
        "reduce-window": Case(
            Op.REDUCE_WINDOW,
            [In([4, 9]), np.float32(0), *(np.array(v) for v in ([2, 2], [1, 3], [1, 2]))],
            {"reduce_function": ReduceWindowFunction.ADD},
        ),
        "reduce-window-too-small": Case(
            Op.REDUCE_WINDOW,
            [In([4, 2]), np.float32(0), *(np.array(v) for v in ([2, 3], [1, 1], [1, 1]))],
            {"reduce_function": ReduceWindowFunction.MAXIMUM},
        ),
    }
    return cases


def recurrent() -> dict[str, Case]:
    batch, steps, inputs, cells = 2, 5, 3, 4

    def lstm(outputs: int) -> list[Operand]:
        """Weights, biases and projection of one direction of an LSTM with `outputs` recurrent values."""
        gates: list[Operand] = [f32(cells, inputs)] * 4 + [f32(cells, outputs)] * 4 + [None] * 3 + [f32(cells)] * 4
        return [*gates, *([None] * 2 if outputs == cells else [f32(outputs, cells), None])]

    def state(outputs: int) -> list[Operand]:
        return [Var([batch, outputs]), Var([batch, cells])]

    cell = {"cell_clip": 0.0, "proj_clip": 0.0, "fused_activation_function": 4}
    three: list[Operand] = [f32(cells, inputs), f32(cells, cells), f32(cells)]
    x, sequence = In([batch, inputs]), In([batch, steps, inputs])
    both = [*three, Var([batch, cells]), *three, Var([batch, cells]), None, None, None]
    lstms = [sequence, *lstm(2), *lstm(2), *state(2), *state(2), *[None] * 9]
    return {
        "lstm": Case(Op.LSTM, [x, *lstm(cells), *state(cells)], cell),
        "lstm-projection": Case(Op.LSTM, [x, *lstm(2), *state(2)], cell),
        "lstm-basic": Case(
            Op.LSTM,
            [x, Var([batch, cells]), f32(4 * cells, inputs + cells), f32(4 * cells), Var([batch, cells])],
            {"kernel_type": LSTMKernelType.BASIC, "fused_activation_function": 4},
            types=[F32] * 4,
        ),
        "sequence-lstm": Case(Op.UNIDIRECTIONAL_SEQUENCE_LSTM, [sequence, *lstm(2), *state(2)], cell),
        "sequence-lstm-time-major": Case(
            Op.UNIDIRECTIONAL_SEQUENCE_LSTM,
            [In([steps, batch, inputs]), *lstm(cells), *state(cells)],
            cell | {"time_major": True},
        ),
        "bidirectional-lstm": Case(
            Op.BIDIRECTIONAL_SEQUENCE_LSTM, lstms, cell | {"time_major": False}, types=[F32, F32]
        ),
        "bidirectional-lstm-merged": Case(
            Op.BIDIRECTIONAL_SEQUENCE_LSTM, lstms, cell | {"time_major": False, "merge_outputs": True}
        ),
        "rnn": Case(Op.RNN, [x, *three, Var([batch, cells])]),
        "sequence-rnn": Case(Op.UNIDIRECTIONAL_SEQUENCE_RNN, [sequence, *three, Var([batch, cells])]),
        "sequence-rnn-time-major": Case(
            Op.UNIDIRECTIONAL_SEQUENCE_RNN,
            [In([steps, batch, inputs]), *three, Var([batch, cells])],
            {"time_major": True},
        ),
        "bidirectional-rnn": Case(Op.BIDIRECTIONAL_SEQUENCE_RNN, [sequence, *both], types=[F32, F32]),
        "bidirectional-rnn-merged": Case(Op.BIDIRECTIONAL_SEQUENCE_RNN, [sequence, *both], {"merge_outputs": True}),
        "svdf": Case(Op.SVDF, [x, f32(8, inputs), f32(8, 6), f32(4), Var([batch, 48])], {"rank": 2}),
    }


CASES = {
    **elementwise(),
    **reshaping(),
    **slicing(),
    **indexing(),
    **growing(),
    **reducing(),
    **windows(),
    **recurrent(),
}


@pytest.mark.parametrize("case", named(CASES))
def test_operator_matches_the_runtime(case: Case) -> None:
    check(case)


# Those that the runtime has no kernel for, and those whose outputs only their maker knows.
WITHOUT_RULE = """
    CALL CONCAT_EMBEDDINGS CUSTOM DELEGATE PLACEHOLDER_FOR_GREATER_OP_CODES SKIP_GRAM STABLEHLO_ABS
    STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CBRT STABLEHLO_CLAMP STABLEHLO_COMPARE STABLEHLO_CONCATENATE
    STABLEHLO_CONVERT STABLEHLO_CONVOLUTION STABLEHLO_COSINE STABLEHLO_CUSTOM_CALL STABLEHLO_DIVIDE
    STABLEHLO_DOT_GENERAL STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR
    STABLEHLO_IOTA STABLEHLO_LOG STABLEHLO_LOGISTIC STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REDUCE
    STABLEHLO_REMAINDER STABLEHLO_RESHAPE STABLEHLO_RSQRT STABLEHLO_SELECT STABLEHLO_SLICE STABLEHLO_SORT
    STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_TRANSPOSE STABLEHLO_WHILE
"""


def test_every_operator_of_the_runtime_has_a_rule() -> None:
    assert sorted(op.name for op in Op if op not in RULES) == WITHOUT_RULE.split()


def test_an_operator_without_a_rule_is_not_known() -> None:
    b = Builder()
    graph = Graph(b.model([b.op(Op.SKIP_GRAM, [b.input("x", [2])], shape=[2])]))
    assert infer_operator(graph, next(graph.operators())) is None


# -- slices --------------------------------------------------------------------------------------------------------

MASKS = {
    "none": {},
    "begin": {"begin_mask": 5},
    "end": {"end_mask": 6},
    "shrink": {"shrink_axis_mask": 5},
    "new-axis": {"new_axis_mask": 2},
    "new-axis-shrink": {"new_axis_mask": 1, "shrink_axis_mask": 3},
    "ellipsis-first": {"ellipsis_mask": 1},
    "ellipsis-middle": {"ellipsis_mask": 2},
    "ellipsis-last": {"ellipsis_mask": 4},
    "ellipsis-new-axes": {"ellipsis_mask": 2, "new_axis_mask": 5},
    "ellipsis-shrink": {"ellipsis_mask": 1, "shrink_axis_mask": 6},
}
SPECS = {
    "plain": (i32(0, 1, 2), i32(2, 3, 4), i32(1, 1, 1)),
    "backwards": (i32(-1, -2, 3), i32(-5, -4, 0), i32(-1, -1, -2)),
    "beyond": (i32(0, 5, -9), i32(9, -1, 9), i32(1, 2, 3)),
    "empty": (i32(1, 1, 1), i32(1, 0, 1), i32(1, 1, 1)),
}


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("spec", SPECS)
def test_strided_slice(rank: int, mask: str, spec: str) -> None:
    check(Case(Op.STRIDED_SLICE, [In([2, 3, 4, 5][:rank]), *SPECS[spec]], MASKS[mask]))


@pytest.mark.parametrize("end", [0, 1, 2, 3])
def test_strided_slice_by_offset(end: int) -> None:
    options = {"offset": True}
    check(Case(Op.STRIDED_SLICE, [In([4, 5]), i32(0, 1), i32(2, end), i32(1, 2)], options))
    check(Case(Op.STRIDED_SLICE, [In([4, 5]), In([2], I32), i32(2, end), i32(1, 2)], options))


def test_strided_slice_by_values_of_the_run() -> None:
    check(Case(Op.STRIDED_SLICE, [In([4, 5]), In([2], I32), i32(2, 3), i32(1, 2)], open=True))


# -- subgraphs -----------------------------------------------------------------------------------------------------


def attach(model: Model, other: Model) -> int:
    """Appends the subgraph of ``other`` to ``model`` and returns its index."""
    buffers, codes = len(model.buffers), len(model.operator_codes)
    model.buffers += other.buffers
    model.operator_codes += other.operator_codes
    for tensor in other.subgraphs[0].tensors:
        tensor.buffer += buffers
    for op in other.subgraphs[0].operators:
        op.opcode_index += codes
    model.subgraphs.append(other.subgraphs[0])
    return len(model.subgraphs) - 1


def unary(kind: Op, given: Sequence[int], *constants: Array, **options: Any) -> Model:
    """A model of one operator with one input of the given shape."""
    b = Builder()
    x = b.input("x", given)
    return b.model([b.op(kind, [x, *(b.constant(f"c{i}", c) for i, c in enumerate(constants))], **options)])


def caller(kind: Op, options: Any, branches: Sequence[Model], extra: Sequence[In], shape: Sequence[int]) -> Model:
    """A model that passes an input of the given shape to subgraphs."""
    b = Builder()
    leading = [b.input(f"flag{i}", e.shape, e.type) for i, e in enumerate(extra)]
    x = b.input("x", shape)
    model = b.model([b.op(kind, [*leading, x], shape=[], type=F32)])
    for branch in branches:
        attach(model, branch)
    op = model.subgraphs[0].operators[0]
    if kind is Op.STABLEHLO_COMPOSITE or kind is Op.STABLEHLO_CASE:
        op.builtin_options, op.builtin_options_2 = None, options
    else:
        op.builtin_options = options
    return model


def outputs(model: Model, shapes: dict[int, tuple[int, ...]] | None = None) -> list[TensorSpec]:
    specs = infer_subgraph(Graph(model), shapes)
    return [specs[t] for t in model.subgraphs[0].outputs]


def test_if_with_branches_that_agree() -> None:
    branches = [unary(Op.RELU, [1, 3]), unary(Op.ABS, [1, 3])]
    model = caller(Op.IF, IfOptions(then_subgraph_index=1, else_subgraph_index=2), branches, [In([], BOOL)], [2, 3])
    assert outputs(model) == [TensorSpec((2, 3), F32)]
    assert reported(model, [In([], BOOL), In([2, 3])])[model.subgraphs[0].outputs[0]][0] == (2, 3)


@pytest.mark.parametrize(("flag", "shape"), [(True, (4, 3)), (False, (2, 3))])
def test_if_with_branches_that_differ(flag: bool, shape: tuple[int, ...]) -> None:
    branches = [unary(Op.TILE, [2, 3], i32(2, 1)), unary(Op.ABS, [2, 3])]
    model = caller(Op.IF, IfOptions(then_subgraph_index=1, else_subgraph_index=2), branches, [In([], BOOL)], [2, 3])
    assert outputs(model) == [TensorSpec((-1, 3), F32)]
    assert reported(model, [In([], BOOL, flag), In([2, 3])])[model.subgraphs[0].outputs[0]][0] == shape


def test_if_with_branches_of_different_rank() -> None:
    branches = [unary(Op.RESHAPE, [2, 3], i32([6])), unary(Op.ABS, [2, 3])]
    model = caller(Op.IF, IfOptions(then_subgraph_index=1, else_subgraph_index=2), branches, [In([], BOOL)], [2, 3])
    assert outputs(model) == [TensorSpec(None, F32)]


def test_case() -> None:
    branches = [unary(Op.RELU, [2, 3]), unary(Op.ABS, [2, 3])]
    options = StablehloCaseOptions(branch_subgraph_indices=[1, 2])
    model = caller(Op.STABLEHLO_CASE, options, branches, [In([], I32)], [2, 3])
    assert outputs(model) == [TensorSpec((2, 3), F32)]


def test_composite() -> None:
    options = StableHLOCompositeOptions(name="twice", decomposition_subgraph_index=1, composite_attributes=b"\0\x24\1")
    model = caller(Op.STABLEHLO_COMPOSITE, options, [unary(Op.TILE, [1, 3], i32(2, 1))], [], [2, 3])
    assert outputs(model) == [TensorSpec((4, 3), F32)]
    assert reported(model, [In([2, 3])])[model.subgraphs[0].outputs[0]][0] == (4, 3)


def test_loop_with_shapes_that_stay() -> None:
    model = looped(unary(Op.RELU, [2, 3]))
    main = model.subgraphs[0]
    assert infer_subgraph(Graph(model))[main.outputs[0]] == TensorSpec((2, 3), F32)
    assert reported(model, [In([2, 3])])[main.outputs[0]][0] == (2, 3)


def test_loop_with_shapes_that_grow() -> None:
    model = looped(unary(Op.TILE, [2, 3], i32(2, 1)))
    main = model.subgraphs[0]
    assert infer_subgraph(Graph(model))[main.outputs[0]] == TensorSpec((-1, 3), F32)
    assert reported(model, [In([2, 3])])[main.outputs[0]][0] == (16, 3)


def test_subgraphs_that_call_each_other_without_end() -> None:
    model = caller(Op.IF, IfOptions(then_subgraph_index=0, else_subgraph_index=0), [], [In([], BOOL)], [2, 3])
    assert outputs(model) == [TensorSpec(None, F32)]


@pytest.mark.parametrize("kind", [Op.STABLEHLO_ADD, Op.STABLEHLO_MAXIMUM])
def test_operators_with_a_computation(kind: Op) -> None:
    def computation() -> Model:
        b = Builder()
        return b.model([b.op(kind, [b.input("a", []), b.input("b", [])], shape=[])])

    b = Builder()
    x, zero = b.input("x", [4, 9]), b.constant("zero", np.float32(0))
    window = {"window_dimensions": [2, 3], "window_strides": [1, 2], "base_dilations": [1, 2], "padding": [1, 0, 0, 2]}
    reduced = b.op(
        Op.STABLEHLO_REDUCE_WINDOW, [x, zero], shape=[1, 1], window_dilations=[2, 1], body_subgraph_index=1, **window
    )
    places, updates = b.constant("places", i32([[1], [3]])), b.constant("updates", f32(2, 9))
    scattered = b.op(
        Op.STABLEHLO_SCATTER,
        [x, places, updates],
        shape=[1, 1],
        update_window_dims=[1],
        inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0],
        index_vector_dim=1,
        update_computation_subgraph_index=1,
    )
    model = b.model([reduced, scattered])
    attach(model, computation())
    actual = reported(model, [In([4, 9])])
    assert [s.shape for s in outputs(model)] == [actual[reduced][0], actual[scattered][0]]
    assert all(map(closed, outputs(model)))


def test_tables_and_variables() -> None:
    b = Builder()
    resource = TensorType.RESOURCE
    table = b.op(Op.HASHTABLE, [], shape=[1], type=resource, table_id=1, key_dtype=I64, value_dtype=TensorType.STRING)
    size = b.op(Op.HASHTABLE_SIZE, [table], shape=[7], type=I64)
    variable = b.op(Op.VAR_HANDLE, [], shape=[], type=resource, shared_name="v")
    held = b.op(Op.READ_VARIABLE, [variable], shape=[2, 3], type=F32)
    keys, default = b.input("keys", [4], I64), b.input("default", [1], TensorType.STRING)
    found = b.op(Op.HASHTABLE_FIND, [table, keys, default], shape=[7], type=TensorType.STRING)
    specs = infer_subgraph(Graph(b.model([size, held, found])))
    assert [specs[t] for t in (table, size, variable, held, found)] == [
        TensorSpec((1,), resource),
        TensorSpec((1,), I64),
        TensorSpec((), resource),
        TensorSpec((2, 3), F32),
        TensorSpec((4,), TensorType.STRING),
    ]


# -- whole subgraphs -----------------------------------------------------------------------------------------------


def flattened(batch: int = -1) -> Model:
    """What converters make of Flatten with a dynamic batch: the target is computed from the input's shape."""
    b = Builder()
    x = b.input("x", [batch, 4, 6])
    shape = b.op(Op.SHAPE, [x], shape=[3], type=I32, out_type=I32)
    count = b.op(
        Op.STRIDED_SLICE,
        [shape, b.constant("0", i32([0])), b.constant("1", i32([1])), b.constant("s", i32([1]))],
        shape=[],
        shrink_axis_mask=1,
    )
    rest = b.op(Op.GATHER, [shape, b.constant("places", i32(1, 2))], shape=[2])
    width = b.op(Op.REDUCE_PROD, [rest, b.constant("axis", i32(0))], shape=[])
    target = b.op(Op.PACK, [count, width], shape=[2], values_count=2)
    flat = b.op(Op.RESHAPE, [x, target], shape=[-1, 24], type=F32)
    wide = b.op(Op.MUL, [target, b.constant("two", i32(1, 2))], shape=[2])
    doubled = b.op(Op.BROADCAST_TO, [b.constant("one", np.float32(1)), wide], shape=[-1, 48], type=F32, version=2)
    return b.model([flat, doubled])


def test_computed_targets_are_known_in_part() -> None:
    model = flattened()
    facts = propagate(Graph(model))
    flat, doubled = model.subgraphs[0].outputs
    assert facts.specs[flat] == TensorSpec((-1, 24), F32)
    assert facts.specs[doubled] == TensorSpec((-1, 48), F32)
    target = facts.values[model.subgraphs[0].operators[4].outputs[0]]
    assert target.tolist() == [UNKNOWN, 24]


def test_given_input_shapes_settle_everything() -> None:
    model = flattened()
    graph = Graph(model)
    x = model.subgraphs[0].inputs[0]
    facts = propagate(graph, {x: (5, 4, 6)}, strict=True)
    flat, doubled = model.subgraphs[0].outputs
    assert facts.specs[flat] == TensorSpec((5, 24), F32)
    assert facts.specs[doubled] == TensorSpec((5, 48), F32)
    target = facts.values[model.subgraphs[0].operators[4].outputs[0]]
    assert target.tolist() == [5, 24]
    assert target.dtype == np.int32
    runner = interpreter(to_bytes(model), xnnpack=False, keep_all=True)
    runner.resize_tensor_input(x, [5, 4, 6])
    runner.allocate_tensors()
    runner.invoke()
    for detail in runner.get_output_details():
        assert tuple(detail["shape"]) == facts.specs[detail["index"]].shape
    assert np.array_equal(runner.get_tensor(model.subgraphs[0].operators[4].outputs[0]), target)


def test_shapes_declared_for_intermediates_do_not_count() -> None:
    model = unary(Op.RELU, [2, 3], shape=[7, 7])
    assert outputs(model) == [TensorSpec((2, 3), F32)]


def custom(model: Model) -> Model:
    """Puts a custom operator behind the model's output."""
    main = model.subgraphs[0]
    model.operator_codes.append(operator_code(Op.CUSTOM, custom_code="Mystery"))
    main.tensors.append(Tensor(name="y", shape=[9], type=I8, has_rank=True))
    out = len(main.tensors) - 1
    main.operators.append(
        Operator(opcode_index=len(model.operator_codes) - 1, inputs=list(main.outputs), outputs=[out])
    )
    main.outputs = [out]
    return model


def test_unknown_operators_keep_their_declaration_while_their_inputs_do() -> None:
    model = custom(unary(Op.RELU, [2, 3]))
    x = model.subgraphs[0].inputs[0]
    assert outputs(model) == [TensorSpec((9,), I8)]
    assert outputs(model, {x: (4, 3)}) == [TensorSpec(None, I8)]


def test_contradictions() -> None:
    model = unary(Op.RESHAPE, [2, 3], i32(3, 2))
    graph = Graph(model)
    x = model.subgraphs[0].inputs[0]
    assert outputs(model, {x: (2, 4)}) == [TensorSpec(None, F32)]
    with pytest.raises(ShapeError, match=r"RESHAPE #0 `reshape_0`: \[2, 4\] cannot be reshaped to \[3, 2\]"):
        infer_subgraph(graph, {x: (2, 4)}, strict=True)
    model.subgraphs[0].tensors[x].shape = [2, 4]
    assert infer_operator(graph, next(graph.operators())) is None


def test_contradictions_in_a_called_subgraph_are_named() -> None:
    options = StableHLOCompositeOptions(name="c", decomposition_subgraph_index=1)
    model = caller(Op.STABLEHLO_COMPOSITE, options, [unary(Op.RESHAPE, [2, 3], i32(3, 2))], [], [2, 4])
    assert outputs(model) == [TensorSpec(None, F32)]
    with pytest.raises(ShapeError, match="RESHAPE #0 `reshape_0` of subgraph 1"):
        infer_subgraph(Graph(model), strict=True)


CONTRADICTIONS = {
    "broadcast": Case(Op.ADD, [In([2, 3]), In([4])]),
    "channels": Case(Op.CONV_2D, [In([1, 4, 4, 3]), f32(5, 1, 1, 2), f32(5)]),
    "depthwise-channels": Case(Op.DEPTHWISE_CONV_2D, [In([1, 4, 4, 3]), f32(1, 1, 1, 4), f32(4)]),
    "kernel-too-large": Case(Op.CONV_2D, [In([1, 2, 2, 1]), f32(1, 4, 4, 1), f32(1)], {"padding": Padding.VALID}),
    "rank": Case(Op.MAX_POOL_2D, [In([4, 4])], {"filter_width": 2, "filter_height": 2}),
    "joined": Case(Op.CONCATENATION, [In([2, 3]), In([3, 3])], {"axis": 1}),
    "packed": Case(Op.PACK, [In([2, 3]), In([3, 3])], {"values_count": 2}),
    "unpacked": Case(Op.UNPACK, [In([2, 3])], {"num": 3}, types=[F32] * 3),
    "split": Case(Op.SPLIT, [i32(0), In([3])], {"num_splits": 2}, types=[F32] * 2),
    "split-sizes": Case(Op.SPLIT_V, [In([3]), i32(1, 1), i32(0)], {"num_splits": 2}, types=[F32] * 2),
    "matrices": Case(Op.BATCH_MATMUL, [In([2, 3]), In([4, 2])]),
    "fully-connected": Case(Op.FULLY_CONNECTED, [In([2, 3]), f32(4, 4)], {"keep_num_dims": True}),
    "squeeze": Case(Op.SQUEEZE, [In([2, 3])], {"squeeze_dims": [0]}),
    "axis": Case(Op.CONCATENATION, [In([2, 3])], {"axis": 2}),
    "permutation": Case(Op.TRANSPOSE, [In([2, 3]), i32(0, 2)]),
    "reshape-two-fills": Case(Op.RESHAPE, [In([2, 3]), i32(-1, -1)]),
    "slice": Case(Op.SLICE, [In([2, 3]), i32(0, 2), i32(2, 2)]),
    "gather-axis": Case(Op.GATHER, [In([2, 3]), i32([0])], {"axis": 2}),
    "broadcast-to": Case(Op.BROADCAST_TO, [In([2, 3]), i32(2, 4)], version=2),
    "blocks": Case(Op.SPACE_TO_DEPTH, [In([1, 3, 4, 1])], {"block_size": 2}),
    "block-channels": Case(Op.DEPTH_TO_SPACE, [In([1, 3, 4, 6])], {"block_size": 2}),
    "batch": Case(Op.BATCH_TO_SPACE_ND, [In([3, 2, 2, 1]), i32(2, 2), i32([[0, 0], [0, 0]])]),
    "top-k": Case(Op.TOPK_V2, [In([3]), i32(4)], types=[F32, I32]),
    "range": Case(Op.RANGE, [i32(0), i32(5), i32(-1)]),
    "add-n": Case(Op.ADD_N, [In([2, 3]), In([3])]),
    "state": Case(Op.RNN, [In([2, 3]), f32(4, 3), f32(4, 4), f32(4), Var([1, 4])]),
}


@pytest.mark.parametrize("case", named(CONTRADICTIONS))
def test_what_the_runtime_refuses_is_not_inferred(case: Case) -> None:
    model, inputs = build(case)
    graph = Graph(model)
    assert infer_operator(graph, next(graph.operators())) is None
    with pytest.raises(RuntimeError):
        reported(model, inputs)


def test_shapes_are_given_for_inputs_only() -> None:
    model = unary(Op.RELU, [2, 3])
    graph = Graph(model)
    with pytest.raises(ShapeError, match="tensor 1 is not an input"):
        infer_subgraph(graph, {1: (2, 3)})
    with pytest.raises(ShapeError, match="input `x` cannot have shape"):
        infer_subgraph(graph, {0: (-2, 3)})


# -- dynamic dimensions --------------------------------------------------------------------------------------------

DYNAMIC: dict[str, tuple[Case, list[tuple[int, ...] | None]]] = {
    "add": (Case(Op.ADD, [In([-1, 3]), In([4, 1])]), [(4, 3)]),
    "add-open": (Case(Op.ADD, [In([-1, 3]), In([1, 1])]), [(-1, 3)]),
    "conv": (Case(Op.CONV_2D, [In([-1, -1, 8, 3]), f32(5, 3, 3, 3), f32(5)], {"stride_w": 2}), [(-1, -1, 4, 5)]),
    "fully-connected": (Case(Op.FULLY_CONNECTED, [In([-1, 4]), f32(5, 4)]), [(-1, 5)]),
    "fully-connected-rows": (Case(Op.FULLY_CONNECTED, [In([-1, 3, 4]), f32(5, 4)]), [(-1, 5)]),
    "reshape-fill": (Case(Op.RESHAPE, [In([-1, 3, 4]), i32(-1, 12)]), [(-1, 12)]),
    "reshape-fixed": (Case(Op.RESHAPE, [In([-1, 3, 4]), i32(2, 12)]), [(2, 12)]),
    "concatenation": (Case(Op.CONCATENATION, [In([-1, 3]), In([-1, 4])], {"axis": 1}), [(-1, 7)]),
    "concatenation-open": (Case(Op.CONCATENATION, [In([-1, 3]), In([2, 3])], {"axis": 0}), [(-1, 3)]),
    "slice": (Case(Op.SLICE, [In([-1, 3]), i32(0, 1), i32(-1, 2)]), [(-1, 2)]),
    "slice-size": (Case(Op.SLICE, [In([-1, 3]), i32(0, 1), i32(2, 2)]), [(2, 2)]),
    "strided-slice": (Case(Op.STRIDED_SLICE, [In([-1, 4]), i32(0, 1), i32(0, 3), i32(1, 1)]), [(-1, 2)]),
    "squeeze": (Case(Op.SQUEEZE, [In([-1, 1, 3])], {"squeeze_dims": [1]}), [(-1, 3)]),
    "squeeze-all": (Case(Op.SQUEEZE, [In([-1, 1, 3])]), [None]),
    "mean": (Case(Op.MEAN, [In([-1, 4, 3]), i32([1])]), [(-1, 3)]),
    "split": (Case(Op.SPLIT, [i32(0), In([-1, 3])], {"num_splits": 2}, types=[F32] * 2), [(-1, 3)] * 2),
    "pack": (Case(Op.PACK, [In([-1, 3]), In([2, -1])], {"values_count": 2}), [(2, 2, 3)]),
    "pad": (Case(Op.PAD, [In([-1, 3]), i32([[0, 0], [1, 1]])]), [(-1, 5)]),
    "matmul": (Case(Op.BATCH_MATMUL, [In([-1, 3, 4]), In([-1, 4, 5])]), [(-1, 3, 5)]),
    "space-to-batch": (
        Case(Op.SPACE_TO_BATCH_ND, [In([-1, 4, 4, 1]), i32(2, 2), i32([[0, 0], [0, 0]])]),
        [(-1, 2, 2, 1)],
    ),
    "tile-to-nothing": (Case(Op.TILE, [In([-1, 3]), i32(0, 2)]), [(0, 6)]),
    "gather": (Case(Op.GATHER, [In([10, 3]), In([-1, 2], I32)], {"axis": 0}, types=[F32]), [(-1, 2, 3)]),
    "shape": (Case(Op.SHAPE, [In([-1, 3])], {"out_type": I32}, types=[I32]), [(2,)]),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_dimensions(name: str) -> None:
    case, expected = DYNAMIC[name]
    graph = Graph(build(case)[0])
    specs = infer_operator(graph, next(graph.operators()))
    assert specs is not None
    assert [s.shape for s in specs] == expected


# -- corpus --------------------------------------------------------------------------------------------------------

# Only these may have outputs of unknown shape although all their inputs are known.
MAY_BE_UNKNOWN = {Op.CUSTOM, Op.READ_VARIABLE}


class Sweep:
    """A model of the corpus in the runtime, compared tensor by tensor with what is inferred."""

    def __init__(self, path: Path) -> None:
        self.model = read(path)
        self.graph = Graph(self.model)
        self.runner = interpreter(path, xnnpack=False, keep_all=True)
        self.compared = 0

    def resize(self, shapes: dict[int, tuple[int, ...]]) -> None:
        with quiet():
            for tensor, shape in shapes.items():
                self.runner.resize_tensor_input(tensor, shape)

    def compare(self, specs: dict[int, TensorSpec]) -> list[str]:
        """The places that differ. Shapes that the runtime only learns as it runs are looked at after a run."""
        with quiet():
            self.runner.allocate_tensors()
        if not self._differences(specs, exact=True):
            return []
        with quiet():
            self.runner.invoke()
        return self._differences(specs, exact=False)

    def _differences(self, specs: dict[int, TensorSpec], exact: bool) -> list[str]:
        details = {d["index"]: d for d in self.runner.get_tensor_details()}
        self.compared = 0
        found = []
        for op in self.graph.operators():
            for tensor in op.outputs:
                spec = specs[tensor]
                if tensor < 0 or spec.shape is None:
                    continue
                self.compared += 1
                shape, dtype = tuple(details[tensor]["shape"].tolist()), details[tensor]["dtype"]
                if not fits(spec, shape, dtype) or (exact and spec.shape != shape):
                    found.append(f"{self.graph.where(op)}: {spec} against {shape}, {dtype}")
        return found

    def unknown(self, specs: dict[int, TensorSpec]) -> list[str]:
        """Operators with outputs of unknown shape that have no excuse."""
        return [
            str(self.graph.where(op))
            for op in self.graph.operators()
            if any(specs[t].shape is None for t in op.outputs if t >= 0)
            and all(t not in specs or specs[t].shape is not None for t in op.inputs)
            and self.graph.kind(op) not in MAY_BE_UNKNOWN
        ]


def declared(graph: Graph) -> dict[int, tuple[int, ...]]:
    """The inputs' shapes as the runtime takes them, dynamic dimensions being 1."""
    return {t: tuple(graph.tensor(t).shape or ()) for t in graph.inputs}


def test_corpus_matches_the_runtime(corpus: list[Path], corpus_index: dict[str, dict[str, str]]) -> None:
    compared, models = 0, 0
    problems: list[str] = []
    for path in corpus:
        status = corpus_index.get(path.stem, {}).get("runs_litert_2.3.0", "ok")
        if status != "ok":
            continue
        sweep = Sweep(path)
        specs = infer_subgraph(sweep.graph, declared(sweep.graph), strict=True)
        problems += [f"{path.stem}: {p}" for p in (*sweep.compare(specs), *sweep.unknown(specs))]
        outputs = sum(1 for op in sweep.graph.operators() for t in op.outputs if t >= 0)
        assert sweep.compared >= outputs - 6, path.stem
        compared += sweep.compared
        models += 1
    assert problems == []
    assert models >= 0.8 * len(corpus)
    assert compared >= 30 * models


def test_dynamic_shapes_of_the_corpus_hold(corpus: list[Path]) -> None:
    """With dimensions left open, what is inferred is true of the declared shapes too."""
    seen = 0
    for path in corpus:
        graph = Graph(read(path))
        if not any(-1 in (graph.shape(t) or ()) for t in graph.inputs):
            continue
        open_, fixed = infer_subgraph(graph), infer_subgraph(graph, declared(graph))
        for tensor, spec in fixed.items():
            if spec.shape is not None and open_[tensor].shape is not None:
                assert fits(open_[tensor], spec.shape, NUMPY.get(spec.type)), (path.stem, graph.name(tensor))
                seen += 1
    assert seen > 100


def test_resized_corpus_matches_the_runtime(corpus: list[Path], corpus_index: dict[str, dict[str, str]]) -> None:
    """Models with a dynamic batch, at a batch of 3."""
    models = 0
    problems: list[str] = []
    for path in corpus:
        status = corpus_index.get(path.stem, {}).get("runs_litert_2.3.0", "ok")
        graph = Graph(read(path))
        if status != "ok" or path.stat().st_size > 2 << 20 or not _has_batch(graph):
            continue
        shapes = {t: (3, *(7 if d < 0 else d for d in (graph.shape(t) or ())[1:])) for t in graph.inputs}
        sweep = Sweep(path)
        sweep.resize(shapes)
        try:
            specs = infer_subgraph(sweep.graph, shapes, strict=True)
        except ShapeError:
            with pytest.raises(RuntimeError), quiet():
                sweep.runner.allocate_tensors()
            continue
        problems += [f"{path.stem}: {p}" for p in sweep.compare(specs)]
        models += 1
    assert problems == []
    assert models >= 20


def _has_batch(graph: Graph) -> bool:
    return bool(graph.inputs) and all((graph.shape(t) or (0,))[0] < 0 for t in graph.inputs)
