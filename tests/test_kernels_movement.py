"""The delegate's kernels that move elements, against the stock reference kernels: equal to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from delegate import both, outputs_of, packaged, refusal, start
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litefuse.delegates.runtime import load
from litefuse.graph.build import Builder, quantized
from litefuse.schema.enums import MirrorPadMode, TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op
from litefuse.schema.types import tensor_type

DTYPES = [np.dtype(t) for t in ("float32", "int8", "uint8", "int16", "int32", "int64", "bool", "float16")]
# What the stock kernels of PACK and SPLIT take.
FEWER = DTYPES[:-2]
QUANTIZED = [np.dtype(t) for t in ("int8", "uint8", "int16")]

many = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

Draw = st.DataObject


def values(shape: Sequence[int], dtype: np.dtype, seed: int) -> np.ndarray:
    """Elements of the whole range of a type, every bit pattern of floats among them."""
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    raw = rng.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


def zero_points(dtype: np.dtype) -> list[int]:
    return [0] if dtype == np.int16 else [int(np.iinfo(dtype).min), int(np.iinfo(dtype).max), 3]


def equal(model: Model, *inputs: np.ndarray) -> None:
    expected, got = both(model, list(inputs))
    assert len(expected) == len(got)
    for e, g in zip(expected, got, strict=True):
        assert (e.shape, e.dtype) == (g.shape, g.dtype)
        # As bytes, so that NaN with all its bits counts too.
        assert e.tobytes() == g.tobytes(), (e, g)


class Case:
    """A model of one operator on one input, drawn by hypothesis."""

    def __init__(
        self, data: Draw, rank: tuple[int, int] = (1, 6), dtypes: Sequence[np.dtype] = DTYPES, most: int = 4
    ) -> None:
        self.data = data
        self.builder = Builder()
        self.dtype = self.draw(st.sampled_from(list(dtypes)))
        self.shape = self.draw(st.lists(st.integers(1, most), min_size=rank[0], max_size=rank[1]))
        self.quantization: Any = None

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def one_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def axis(self, rank: int) -> int:
        return self.integer(-rank, rank - 1)

    def quantize(self) -> None:
        """Gives integers of 8 and 16 bits a scale and a zero point."""
        if self.dtype in QUANTIZED:
            self.quantization = quantized(0.5, self.one_of(*zero_points(self.dtype)))

    def input(self) -> int:
        return self.builder.input("x", self.shape, tensor_type(self.dtype), self.quantization)

    def integers(self, name: str, numbers: Any, *types: str) -> int:
        array = np.array(numbers, self.one_of(*types) if types else np.int32)
        return self.builder.constant(name, array)

    def check(self, *outputs: int) -> None:
        equal(self.builder.model(outputs), values(self.shape, self.dtype, self.integer(0, 99)))


# -- shapes ----------------------------------------------------------------------------------------------------------


@many
@given(st.data())
def test_reshape(data: Draw) -> None:
    case = Case(data, rank=(0, 5))
    left, wanted = math.prod(case.shape), []
    while left > 1 and len(wanted) < 4:
        wanted.append(case.one_of(*(d for d in range(1, left + 1) if left % d == 0)))
        left //= wanted[-1]
    if left > 1 or case.one_of(True, False):
        wanted.append(left)
    if wanted and case.one_of(True, False):
        wanted[case.integer(0, len(wanted) - 1)] = -1
    x = case.input()
    # The runtime takes a constant without elements for one that is computed.
    where = case.one_of(*["input"] * bool(wanted), "parameters", *["parameters, not the int64 input"] * bool(wanted))
    if where == "input":
        y = case.builder.op(Op.RESHAPE, [x, case.integers("shape", wanted)])
    else:
        ignored = [] if where == "parameters" else [case.integers("shape", wanted, "int64")]
        y = case.builder.op(Op.RESHAPE, [x, *ignored], new_shape=np.array(wanted, np.int32))
    case.check(y)


def test_reshape_to_a_scalar_as_old_files_say_it() -> None:
    b = Builder()
    x = b.input("x", [1, 1])
    equal(b.model([b.op(Op.RESHAPE, [x], new_shape=np.array([0], np.int32))]), np.ones((1, 1), np.float32))


@pytest.mark.parametrize(("shape", "wanted"), [([0, 3], [3, 0]), ([0, 3], [-1, 3]), ([2, 0], [0, -1])])
def test_reshape_of_nothing(shape: list[int], wanted: list[int]) -> None:
    b = Builder()
    x = b.input("x", shape)
    equal(b.model([b.op(Op.RESHAPE, [x, b.constant("s", wanted)])]), np.ones(shape, np.float32))


@many
@given(st.data())
def test_squeeze(data: Draw) -> None:
    case = Case(data, most=2)
    ones = [i for i, d in enumerate(case.shape) if d == 1]
    dropped = case.draw(st.lists(st.sampled_from(ones), max_size=3)) if ones else []
    dims = np.array([i - len(case.shape) if case.one_of(True, False) else i for i in dropped], np.int32)
    case.check(case.builder.op(Op.SQUEEZE, [case.input()], squeeze_dims=dims))


@many
@given(st.data())
def test_expand_dims(data: Draw) -> None:
    case = Case(data, rank=(0, 5))
    case.quantize()
    axis = case.integers("axis", case.axis(len(case.shape) + 1), "int32", "int64")
    case.check(case.builder.op(Op.EXPAND_DIMS, [case.input(), axis]))


# -- order -----------------------------------------------------------------------------------------------------------


@many
@given(st.data())
def test_transpose(data: Draw) -> None:
    case = Case(data)
    rank = len(case.shape)
    order = [i - rank if case.one_of(True, False) else i for i in case.draw(st.permutations(range(rank)))]
    case.check(case.builder.op(Op.TRANSPOSE, [case.input(), case.integers("order", order)]))


@many
@given(st.data())
def test_reverse(data: Draw) -> None:
    case = Case(data)
    rank = len(case.shape)
    first = case.integer(0, rank - 1)
    axes = case.draw(st.permutations(range(first, case.integer(first, rank - 1) + 1)))
    axes = [i - rank if case.one_of(True, False) else i for i in axes]
    case.check(case.builder.op(Op.REVERSE_V2, [case.input(), case.integers("axes", axes)]))


# -- padding ---------------------------------------------------------------------------------------------------------


@many
@given(st.data())
def test_pad(data: Draw) -> None:
    case = Case(data, rank=(1, 5), most=3)
    if case.dtype == np.uint8 or case.one_of(True, False):
        case.quantize()
    x = case.input()
    # Nothing is added to some dimensions, the inner ones among them.
    paddings = [[case.integer(0, 2), case.integer(0, 2)] if case.one_of(True, False) else [0, 0] for _ in case.shape]
    case.check(case.builder.op(Op.PAD, [x, case.integers("paddings", paddings, "int32", "int64")]))


@many
@given(st.data())
def test_pad_with_a_value(data: Draw) -> None:
    case = Case(data, rank=(1, 5), most=3)
    if case.one_of(True, False):
        case.quantize()
    x = case.input()
    paddings = [[case.integer(0, 2), case.integer(0, 2)] for _ in case.shape]
    p = case.integers("paddings", paddings, "int32", "int64")
    shape = case.one_of([], [1])
    value = values(shape, case.dtype, case.integer(0, 99))
    seed = case.integer(0, 99)
    if case.one_of(True, False):
        v = case.builder.constant("value", value, case.quantization, type=tensor_type(case.dtype))
        model = case.builder.model([case.builder.op(Op.PADV2, [x, p, v])])
        equal(model, values(case.shape, case.dtype, seed))
    else:
        v = case.builder.input("value", shape, tensor_type(case.dtype), case.quantization)
        model = case.builder.model([case.builder.op(Op.PADV2, [x, p, v])])
        equal(model, values(case.shape, case.dtype, seed), value)


@many
@given(st.data())
def test_mirror_pad(data: Draw) -> None:
    case = Case(data, rank=(1, 5))
    case.quantize()
    mode = case.one_of(*MirrorPadMode)
    most = [d - (mode == MirrorPadMode.REFLECT) for d in case.shape]
    paddings = [[case.integer(0, m), case.integer(0, m)] for m in most]
    p = case.integers("paddings", paddings, "int32", "int64")
    case.check(case.builder.op(Op.MIRROR_PAD, [case.input(), p], mode=mode))


# -- together and apart ----------------------------------------------------------------------------------------------


@many
@given(st.data())
def test_concatenation(data: Draw) -> None:
    case = Case(data, rank=(1, 5))
    case.quantize()
    axis = case.axis(len(case.shape))
    parts, inputs = [], []
    for i in range(case.integer(1, 7)):
        shape = list(case.shape)
        shape[axis] = case.integer(1, 3)
        value = values(shape, case.dtype, i)
        if i and case.one_of(True, False, False):
            parts.append(case.builder.constant(f"c{i}", value, case.quantization, type=tensor_type(case.dtype)))
        else:
            parts.append(case.builder.input(f"x{i}", shape, tensor_type(case.dtype), case.quantization))
            inputs.append(value)
    equal(case.builder.model([case.builder.op(Op.CONCATENATION, parts, axis=axis)]), *inputs)


@many
@given(st.data())
def test_concatenation_of_uint8_with_other_scales(data: Draw) -> None:
    case = Case(data, rank=(2, 4), dtypes=[np.dtype(np.uint8)])
    every = np.arange(256, dtype=np.uint8)

    def some() -> Any:
        scale = case.one_of(0.5, 0.25, 1.0, 1 / 3, 0.0078125, 0.1, math.exp(case.integer(-60, 60) / 10))
        return quantized(scale, case.one_of(0, 255, 128, 7))

    parts = [case.builder.input(f"x{i}", [1, 256], TensorType.UINT8, some()) for i in range(case.integer(1, 3))]
    y = case.builder.op(Op.CONCATENATION, parts, axis=case.one_of(0, 1, -1), quantization=some())
    equal(case.builder.model([y]), *[every[None]] * len(parts))


@many
@given(st.data())
def test_pack(data: Draw) -> None:
    case = Case(data, rank=(0, 4), dtypes=FEWER)
    case.quantize()
    count = case.integer(1, 5)
    parts = [case.builder.input(f"x{i}", case.shape, tensor_type(case.dtype), case.quantization) for i in range(count)]
    y = case.builder.op(Op.PACK, parts, axis=case.axis(len(case.shape) + 1), values_count=count)
    equal(case.builder.model([y]), *(values(case.shape, case.dtype, i) for i in range(count)))


@many
@given(st.data())
def test_unpack(data: Draw) -> None:
    case = Case(data, rank=(1, 5), dtypes=[d for d in DTYPES if d != np.int64])
    case.quantize()
    axis = case.axis(len(case.shape))
    count = case.shape[axis]
    y = case.builder.op(Op.UNPACK, [case.input()], axis=axis, num=count, outputs=count)
    case.check(*range(y, y + count))


@many
@given(st.data())
def test_split(data: Draw) -> None:
    case = Case(data, rank=(1, 5), dtypes=FEWER)
    axis, count = case.axis(len(case.shape)), case.integer(1, 4)
    case.shape[axis] *= count
    a = case.integers("axis", case.one_of(axis, [axis]))
    y = case.builder.op(Op.SPLIT, [a, case.input()], type=tensor_type(case.dtype), num_splits=count, outputs=count)
    case.check(*range(y, y + count))


@many
@given(st.data())
def test_split_v(data: Draw) -> None:
    case = Case(data, rank=(1, 5), dtypes=FEWER)
    axis = case.axis(len(case.shape))
    sizes = case.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any))
    case.shape[axis] = sum(sizes)
    if case.one_of(True, False):
        sizes[case.integer(0, len(sizes) - 1)] = -1
    s, a = case.integers("sizes", sizes, "int32", "int64"), case.integers("axis", axis)
    y = case.builder.op(Op.SPLIT_V, [case.input(), s, a], num_splits=len(sizes), outputs=len(sizes))
    case.check(*range(y, y + len(sizes)))


# -- parts -----------------------------------------------------------------------------------------------------------


@many
@given(st.data())
def test_slice(data: Draw) -> None:
    case = Case(data, rank=(1, 5))
    begins = [case.integer(0, d - 1) for d in case.shape]
    sizes = [case.one_of(-1, case.integer(1, d - b)) for d, b in zip(case.shape, begins, strict=True)]
    type = case.one_of("int32", "int64")
    b, s = case.integers("begins", begins, type), case.integers("sizes", sizes, type)
    case.check(case.builder.op(Op.SLICE, [case.input(), b, s]))


def mask(case: Case, count: int, odds: int) -> int:
    return sum((case.integer(1, odds) == 1) << i for i in range(count))


@many
@given(st.data())
def test_strided_slice(data: Draw) -> None:
    case = Case(data, rank=(1, 4), most=5)
    count = case.integer(1, len(case.shape))
    shrink = mask(case, count, 4)
    begins, ends, strides = [], [], []
    for i, size in enumerate(case.shape[:count]):
        single = shrink >> i & 1
        begins.append(case.integer(-size, size - 1) if single else case.integer(-7, 7))
        ends.append(case.integer(-7, 7))
        strides.append(1 if single else case.one_of(1, 1, 2, 3, -1, -2, -5))
    operands = [case.integers(n, v) for n, v in (("begin", begins), ("end", ends), ("strides", strides))]
    y = case.builder.op(
        Op.STRIDED_SLICE,
        [case.input(), *operands],
        begin_mask=mask(case, count, 3),
        end_mask=mask(case, count, 3),
        shrink_axis_mask=shrink,
    )
    case.check(y)


@many
@given(st.data())
def test_strided_slice_with_ellipsis_and_new_axes(data: Draw) -> None:
    case = Case(data, rank=(2, 4), most=4)
    # What each index is: a range, a single one, an ellipsis, or a new axis.
    kinds = case.draw(st.lists(st.sampled_from("rrsn"), min_size=1, max_size=3))
    taken = sum(k != "n" for k in kinds)
    if taken > len(case.shape) or len(case.shape) + kinds.count("n") > 5:
        return
    if taken < len(case.shape) and case.one_of(True, True, False):
        kinds.insert(case.integer(0, len(kinds)), "e")
    front = kinds[: kinds.index("e")] if "e" in kinds else kinds
    back = kinds[len(front) + 1 :]
    axes = iter([*range(sum(k != "n" for k in front)), *range(-sum(k != "n" for k in back), 0)])
    begins, ends = [], []
    for kind in kinds:
        size = case.shape[next(axes)] if kind in "rs" else 1
        begins.append(case.integer(0, size - 1))
        ends.append(case.integer(1, size))

    def bits(kind: str) -> int:
        return sum((k == kind) << i for i, k in enumerate(kinds))

    operands = [case.integers(n, v) for n, v in (("begin", begins), ("end", ends), ("strides", [1] * len(kinds)))]
    y = case.builder.op(
        Op.STRIDED_SLICE,
        [case.input(), *operands],
        begin_mask=mask(case, len(kinds), 3),
        end_mask=mask(case, len(kinds), 3),
        ellipsis_mask=bits("e"),
        new_axis_mask=bits("n"),
        shrink_axis_mask=bits("s"),
    )
    case.check(y)


@many
@given(st.data())
def test_strided_slice_with_offsets(data: Draw) -> None:
    case = Case(data, rank=(1, 4), most=5)
    begins = [case.integer(-d, d - 1) for d in case.shape]
    lengths = [case.integer(1, d - b % d) for d, b in zip(case.shape, begins, strict=True)]
    strides = [case.one_of(1, 2, 3) for _ in case.shape]
    operands = [case.integers(n, v) for n, v in (("begin", begins), ("end", lengths), ("strides", strides))]
    case.check(case.builder.op(Op.STRIDED_SLICE, [case.input(), *operands], offset=True, version=4))


# -- by index, and more than once --------------------------------------------------------------------------------------


@many
@given(st.data())
def test_gather(data: Draw) -> None:
    case = Case(data, rank=(1, 4))
    rank = len(case.shape)
    axis = case.integer(0, rank - 1)
    batch = case.integer(0, axis)
    shape = case.shape[:batch] + case.draw(st.lists(st.integers(1, 3), max_size=2))
    rng = np.random.default_rng(case.integer(0, 99))
    indices = rng.integers(0, case.shape[axis], shape).astype(case.one_of("int16", "int32", "int64"))
    x = case.input()
    options = {
        "axis": case.one_of(axis, axis - rank),
        "batch_dims": case.one_of(batch, batch - len(shape)) if len(shape) > batch else batch,
    }
    if case.one_of(True, False):
        case.check(case.builder.op(Op.GATHER, [x, case.builder.constant("i", indices)], **options))
    else:
        i = case.builder.input("i", shape, tensor_type(indices.dtype))
        model = case.builder.model([case.builder.op(Op.GATHER, [x, i], **options)])
        equal(model, values(case.shape, case.dtype, 1), indices)


@many
@given(st.data())
def test_tile(data: Draw) -> None:
    case = Case(data, rank=(1, 4), most=3)
    times = np.array([case.integer(1, 3) for _ in case.shape], case.one_of("int32", "int64"))
    case.check(case.builder.op(Op.TILE, [case.input(), case.builder.constant("times", times)]))


@many
@given(st.data())
def test_broadcast_to(data: Draw) -> None:
    case = Case(data, rank=(0, 4), most=3)
    front = case.draw(st.lists(st.integers(1, 3), max_size=3))
    wanted = front + list(case.shape)
    case.shape = [1 if case.one_of(True, False) else d for d in case.shape]
    if not wanted:
        return
    shape = case.integers("shape", wanted, "int32", "int64")
    case.check(case.builder.op(Op.BROADCAST_TO, [case.input(), shape], version=2))


# -- blocks ----------------------------------------------------------------------------------------------------------

BLOCK_TYPES = [np.dtype(t) for t in ("float32", "int8", "uint8", "int32", "int64")]


@many
@given(st.data())
def test_depth_to_space_and_back(data: Draw) -> None:
    case = Case(data, rank=(4, 4), dtypes=BLOCK_TYPES)
    block = case.integer(1, 3)
    if case.one_of(True, False):
        case.shape[3] *= block * block
        case.check(case.builder.op(Op.DEPTH_TO_SPACE, [case.input()], block_size=block))
    else:
        case.shape[1] *= block
        case.shape[2] *= block
        case.check(case.builder.op(Op.SPACE_TO_DEPTH, [case.input()], block_size=block))


@many
@given(st.data())
def test_space_to_batch(data: Draw) -> None:
    case = Case(data, rank=(3, 4), most=5)
    case.quantize()
    blocks, paddings = [], []
    for size in case.shape[1:-1]:
        block, before = case.integer(1, 4), case.integer(0, 5)
        blocks.append(block)
        paddings.append([before, -(size + before) % block + block * case.integer(0, 1)])
    operands = [case.integers("block", blocks), case.integers("paddings", paddings)]
    case.check(case.builder.op(Op.SPACE_TO_BATCH_ND, [case.input(), *operands]))


@many
@given(st.data())
def test_batch_to_space(data: Draw) -> None:
    case = Case(data, rank=(3, 4))
    case.quantize()
    blocks, crops = [], []
    for size in case.shape[1:-1]:
        block = case.integer(1, 3)
        blocks.append(block)
        before = case.integer(0, size * block - 1)
        crops.append([before, case.integer(0, size * block - before - 1)])
    case.shape[0] *= math.prod(blocks)
    operands = [case.integers("block", blocks), case.integers("crops", crops)]
    case.check(case.builder.op(Op.BATCH_TO_SPACE_ND, [case.input(), *operands]))


# -- many at once ----------------------------------------------------------------------------------------------------


def test_a_chain_of_movements() -> None:
    b = Builder()
    x = b.input("x", [2, 4, 6, 8])
    y = b.op(Op.TRANSPOSE, [x, b.constant("order", [0, 3, 1, 2])])
    y = b.op(Op.PAD, [y, b.constant("paddings", [[0, 0], [1, 0], [0, 2], [0, 0]])])
    y = b.op(Op.RESHAPE, [y, b.constant("shape", [2, -1])])
    y = b.op(Op.SPLIT, [b.constant("axis", 1), y], type=TensorType.FLOAT32, num_splits=3, outputs=3)
    z = b.op(Op.CONCATENATION, [y + 2, y, y + 1], axis=0)
    z = b.op(Op.STRIDED_SLICE, [z, b.constant("b", [0, 3]), b.constant("e", [6, -1]), b.constant("s", [2, 5])])
    equal(b.model([z, y]), np.random.default_rng(1).normal(size=(2, 4, 6, 8)).astype(np.float32))


def resizable() -> dict[str, Model]:
    """A model of each kind whose input, of shape [2, 4, 4, 8], can be resized in its first two dimensions."""
    models = {}

    def add(kind: Op, *operands: Any, outputs: int = 1, first: bool = True, **options: Any) -> None:
        b = Builder()
        x = b.input("x", [2, 4, 4, 8])
        constants = [b.constant(f"c{i}", c) for i, c in enumerate(operands)]
        y = b.op(
            kind, [x, *constants] if first else [*constants, x], type=TensorType.FLOAT32, outputs=outputs, **options
        )
        models[kind.name] = b.model(range(y, y + outputs))

    add(Op.RESHAPE, [-1, 4, 32])
    add(Op.SQUEEZE)
    add(Op.EXPAND_DIMS, 2)
    add(Op.TRANSPOSE, [3, 0, 2, 1])
    add(Op.REVERSE_V2, [0, 1])
    add(Op.PAD, [[1, 0], [0, 2], [0, 0], [0, 0]])
    add(Op.PADV2, [[1, 0], [0, 2], [0, 0], [3, 0]], np.float32(7))
    add(Op.MIRROR_PAD, [[0, 1], [1, 1], [0, 0], [2, 0]], mode=MirrorPadMode.SYMMETRIC)
    add(Op.SPLIT, 3, first=False, num_splits=2, outputs=2)
    add(Op.SPLIT_V, [3, -1], 3, num_splits=2, outputs=2)
    add(Op.UNPACK, axis=2, num=4, outputs=4)
    add(Op.STRIDED_SLICE, [-1, 1, 0, 0], [-9, 9, 4, 7], [-1, 2, 1, 3])
    add(Op.GATHER, [[3, 0], [1, 1]], axis=2)
    add(Op.TILE, [2, 1, 3, 1])
    add(Op.DEPTH_TO_SPACE, block_size=2)
    add(Op.SPACE_TO_DEPTH, block_size=2)
    add(Op.SPACE_TO_BATCH_ND, [2, 3], [[1, 1], [2, 0]])
    add(Op.BATCH_TO_SPACE_ND, [2, 1], [[0, 1], [1, 0]])
    b = Builder()
    x = b.input("x", [2, 4, 4, 8])
    models["CONCATENATION"] = b.model([b.op(Op.CONCATENATION, [x, x], axis=1)])
    b = Builder()
    x = b.input("x", [2, 4, 4, 8])
    models["PACK"] = b.model([b.op(Op.PACK, [x, x], axis=2, values_count=2)])
    return models


RESIZABLE = resizable()


@pytest.mark.parametrize("kind", RESIZABLE)
def test_resizing_and_back(kind: str) -> None:
    model = RESIZABLE[kind]
    stock, ours = start(model), start(packaged(model), delegates=[load()])
    for seed, shape in enumerate([(2, 4, 4, 8), (4, 2, 4, 8), (2, 6, 4, 8), (2, 4, 4, 8)]):
        x = values(shape, np.dtype(np.float32), seed)
        for e, g in zip(outputs_of(stock, [x]), outputs_of(ours, [x]), strict=True):
            assert (e.shape, e.tobytes()) == (g.shape, g.tobytes())


def test_a_shape_that_no_longer_fits_is_an_error() -> None:
    runner = start(packaged(RESIZABLE["DEPTH_TO_SPACE"]), delegates=[load()])
    with pytest.raises(RuntimeError, match="6 channels are no multiple of 2 squared"):
        outputs_of(runner, [np.zeros((2, 4, 4, 6), np.float32)])


def test_indices_out_of_range_take_the_nearest_element() -> None:
    """The stock kernel stops with an error; a region cannot, and reads nothing beyond its input."""
    b = Builder()
    x, i = b.input("x", [3]), b.input("i", [4], TensorType.INT32)
    model = b.model([b.op(Op.GATHER, [x, i])])
    inputs = [np.array([1, 2, 3], np.float32), np.array([-(2**31), 5, 1, 2**31 - 1], np.int32)]
    with pytest.raises(RuntimeError, match="gather index out of bounds"):
        outputs_of(start(model), inputs)
    (taken,) = outputs_of(start(packaged(model), delegates=[load()]), inputs)
    assert taken.tolist() == [1, 3, 2, 3]


# -- refusals --------------------------------------------------------------------------------------------------------

INT8, INT16, UINT8, INT32, INT64, BOOL = (
    TensorType.INT8,
    TensorType.INT16,
    TensorType.UINT8,
    TensorType.INT32,
    TensorType.INT64,
    TensorType.BOOL,
)


def refused(kind: Op, words: str, *operands: Any, shape: Sequence[int] = (1,), **options: Any) -> Any:
    """A case: operands are ``(shape,)``, ``(shape, type)`` and so on for inputs, and anything else for constants."""

    def build() -> Model:
        b = Builder()
        tensors = []
        for i, operand in enumerate(operands):
            if isinstance(operand, tuple):
                tensors.append(b.input(f"x{i}", *operand))
            else:
                tensors.append(b.constant(f"c{i}", operand))
        y = b.op(kind, tensors, shape=shape, **options)
        return b.model(range(y, y + options.get("outputs", 1)))

    return pytest.param(build, words, id=f"{kind.name}: {words}")


def quantized_input(type: TensorType, scale: float, point: int) -> tuple[Any, ...]:
    return [2, 2], type, quantized(scale, point)


X = ([2, 3],)
IMAGE = ([1, 4, 4, 4],)
HUGE = [2**30, 2**30]

REFUSED = [
    refused(Op.RESHAPE, "another number of elements", X, [4]),
    refused(Op.RESHAPE, "another number of elements", X, [4, -1]),
    refused(Op.RESHAPE, "leaves two dimensions open", X, [-1, -1]),
    refused(Op.RESHAPE, "negative dimension", X, [-2, -3]),
    refused(Op.RESHAPE, "too many elements", X, [*HUGE, -1]),
    refused(Op.RESHAPE, "would have 9 dimensions", X, [1] * 7 + [2, 3]),
    refused(Op.RESHAPE, "shape is computed at run time", X, ([2], INT32)),
    refused(Op.RESHAPE, "its input is float32 where its output is int32", X, [6], type=INT32),
    refused(Op.SQUEEZE, "drops dimension 1, which is 3", X, squeeze_dims=np.array([1], np.int32)),
    refused(Op.SQUEEZE, "its axis 2 is not among the 2", X, squeeze_dims=np.array([2], np.int32)),
    refused(Op.EXPAND_DIMS, "its axis 3 is not among the 3", X, 3),
    refused(Op.EXPAND_DIMS, "axis is computed at run time", X, ([1], INT32)),
    refused(Op.EXPAND_DIMS, "axis is given by 2 numbers", X, [0, 1]),
    refused(Op.EXPAND_DIMS, "not quantised as its input", quantized_input(INT8, 1, 0), 0, quantization=quantized(2)),
    refused(Op.EXPAND_DIMS, "int16 input has the zero point 5", quantized_input(INT16, 1, 5), 0),
    refused(Op.TRANSPOSE, "permutation is computed at run time", X, ([2], INT32)),
    refused(Op.TRANSPOSE, "names axis 1 twice", X, [1, -1]),
    refused(Op.TRANSPOSE, "its axis 2 is not", X, [2, 0]),
    refused(Op.TRANSPOSE, "given by 1 numbers instead of 2", X, [0]),
    refused(Op.TRANSPOSE, "permutation is int64", X, np.array([1, 0])),
    refused(Op.REVERSE_V2, "not neighbours", ([2, 2, 2],), [0, 2]),
    refused(Op.REVERSE_V2, "reverses axis 1 twice", X, [1, -1]),
    refused(Op.REVERSE_V2, "axes are computed at run time", X, ([1], INT32)),
    refused(Op.REVERSE_V2, "reverses 3 axes", X, [0, 1, 0]),
    refused(Op.PAD, "paddings are computed at run time", X, ([2, 2], INT32)),
    refused(Op.PAD, "padded by a negative number", X, [[0, 0], [-1, 0]]),
    refused(Op.PAD, "given by 6 numbers instead of 4", X, [[0, 0]] * 3),
    refused(Op.PAD, "tensor of shape [1,4]", X, [[0, 0, 0, 0]]),
    refused(Op.PAD, "too large", X, [[2**30, 0], [2**30, 0]]),
    refused(Op.PAD, "dimension 0 of its output", X, [[2**31 - 1, 0], [0, 0]]),
    refused(Op.PAD, "padded by too large a number", X, np.array([[2**62, 2**62], [0, 0]])),
    refused(Op.PAD, "zero point of 200", quantized_input(INT8, 1, 200), [[1, 1], [0, 0]]),
    refused(Op.PADV2, "its value has the shape [2]", X, [[0, 1], [0, 0]], np.float32([1, 2])),
    refused(Op.PADV2, "its input is int32 where its output is float32", X, [[0, 1], [0, 0]], 1),
    refused(Op.PADV2, "value is not quantised", quantized_input(UINT8, 1, 3), [[0, 1], [0, 0]], np.uint8(1)),
    refused(Op.MIRROR_PAD, "more than its 3 elements can mirror", X, [[0, 0], [3, 0]], mode=MirrorPadMode.REFLECT),
    refused(Op.MIRROR_PAD, "more than its 2 elements can mirror", X, [[0, 3], [0, 0]], mode=MirrorPadMode.SYMMETRIC),
    refused(Op.MIRROR_PAD, "not quantised", quantized_input(INT8, 1, 0), [[0, 0]] * 2, quantization=quantized(2)),
    refused(Op.CONCATENATION, "its axis 2 is not", X, X, axis=2),
    refused(Op.CONCATENATION, "differ in dimension 0", X, ([3, 3],), axis=1),
    refused(Op.CONCATENATION, "have 2 and 3 dimensions", X, ([2, 3, 1],), axis=1),
    refused(Op.CONCATENATION, "fused activation", X, X, axis=1, fused_activation_function=1),
    refused(Op.CONCATENATION, "its input is int32", X, ([2, 3], INT32), axis=1),
    refused(Op.CONCATENATION, "scalars", ([],), ([],), axis=0),
    refused(
        Op.CONCATENATION,
        "int8 tensors with different",
        quantized_input(INT8, 1, 0),
        quantized_input(INT8, 2, 0),
        axis=0,
    ),
    refused(
        Op.CONCATENATION, "int16 tensors with a zero point", quantized_input(INT16, 1, 0), quantized_input(INT16, 1, 4)
    ),
    refused(Op.CONCATENATION, "none that is usable", quantized_input(UINT8, 1, 0), ([2, 2], UINT8), axis=0),
    refused(
        Op.CONCATENATION, "times that of its output", quantized_input(UINT8, 1e-5, 0), quantized_input(UINT8, 1e5, 0)
    ),
    refused(Op.PACK, "different shapes, [2,3] and [3,2]", X, ([3, 2],), values_count=2),
    refused(Op.PACK, "its axis 3 is not", X, X, axis=3, values_count=2),
    refused(Op.PACK, "not quantised as its output", quantized_input(INT8, 1, 0), quantized_input(INT8, 2, 0)),
    refused(Op.UNPACK, "it has 2 outputs where dimension 1 of its input is 3", X, axis=1, num=2, outputs=2),
    refused(Op.UNPACK, "its axis -3 is not", X, axis=-3, num=2, outputs=2),
    refused(Op.SPLIT, "3 into 2 equal parts", 1, X, num_splits=2, outputs=2, type=TensorType.FLOAT32),
    refused(Op.SPLIT, "axis is computed at run time", ([1], INT32), X, num_splits=1, type=TensorType.FLOAT32),
    refused(Op.SPLIT, "its axis 2 is not", 2, X, num_splits=1, type=TensorType.FLOAT32),
    refused(Op.SPLIT, "1 outputs where its parameters say 2", 0, X, num_splits=2, type=TensorType.FLOAT32),
    refused(Op.SPLIT_V, "leave two parts open", X, [-1, -1], 1, num_splits=2, outputs=2),
    refused(Op.SPLIT_V, "do not fit a dimension of 3", X, [2, 2], 1, num_splits=2, outputs=2),
    refused(Op.SPLIT_V, "do not fit a dimension of 3", X, [-2, 5], 1, num_splits=2, outputs=2),
    refused(Op.SPLIT_V, "leave out the last 1", X, [1, 1], 1, num_splits=2, outputs=2),
    refused(Op.SPLIT_V, "given by 3 numbers instead of 2", X, [1, 1, 1], 1, num_splits=2, outputs=2),
    refused(Op.SLICE, "begins at 4 in dimension 1, which is 3", X, [0, 4], [1, -1]),
    refused(Op.SLICE, "begins at -1", X, [-1, 0], [1, 1]),
    refused(Op.SLICE, "takes 3 elements from 1 on", X, [0, 1], [1, 3]),
    refused(Op.SLICE, "takes -2 elements", X, [0, 1], [1, -2]),
    refused(Op.SLICE, "first indices are int32 and its sizes int64", X, [0, 1], np.array([1, 1])),
    refused(Op.SLICE, "sizes are computed at run time", X, [0, 1], ([2], INT32)),
    refused(Op.STRIDED_SLICE, "stride 0", X, [0], [1], [0]),
    refused(Op.STRIDED_SLICE, "index 2, with stride 1, of a dimension of 2", X, [2], [3], [1], shrink_axis_mask=1),
    refused(Op.STRIDED_SLICE, "index 1, with stride -1", X, [1], [0], [-1], shrink_axis_mask=1),
    refused(Op.STRIDED_SLICE, "3 indices for 2 dimensions", X, [0] * 3, [1] * 3, [1] * 3),
    refused(Op.STRIDED_SLICE, "3 indices for 2 dimensions", X, [0] * 3, [1] * 3, [1] * 3, ellipsis_mask=2),
    refused(Op.STRIDED_SLICE, "2 ellipses", X, [0] * 2, [1] * 2, [1] * 2, ellipsis_mask=3),
    refused(Op.STRIDED_SLICE, "masks speak of more", X, [0], [1], [1], new_axis_mask=2),
    refused(Op.STRIDED_SLICE, "masks speak of more", X, [0], [1], [1], ellipsis_mask=-(2**31)),
    refused(Op.STRIDED_SLICE, "given by 1 numbers instead of 2", X, [0, 0], [1], [1, 1]),
    refused(Op.STRIDED_SLICE, "computed at run time", X, ([1], INT32), [1], [1]),
    refused(Op.STRIDED_SLICE, "has 40 indices", X, [0] * 40, [1] * 40, [1] * 40, new_axis_mask=2**31 - 1),
    refused(Op.STRIDED_SLICE, "would have 9 dimensions", X, [0] * 7, [1] * 7, [1] * 7, new_axis_mask=127),
    refused(Op.STRIDED_SLICE, "takes 3 elements from 1 on", X, [0, 1], [2, 3], [1, 1], offset=True),
    refused(Op.STRIDED_SLICE, "ends are offsets", X, [0], [1], [1], offset=True),
    refused(Op.GATHER, "its index 2 is not within a dimension of 2", X, [0, 2]),
    refused(Op.GATHER, "its index -1 is not", X, [-1]),
    refused(Op.GATHER, "its axis 2 is not", X, [0], axis=2),
    refused(Op.GATHER, "batch dimensions", X, [0], axis=0, batch_dims=1),
    refused(Op.GATHER, "differ in batch", X, [[0], [0], [0]], axis=1, batch_dims=1),
    refused(Op.GATHER, "its indices are float32", X, [0.0]),
    refused(Op.GATHER, "would have 9 dimensions", ([1] * 6,), [[[[0]]]]),
    refused(Op.GATHER, "gathers from a dimension of 0", ([0, 3],), ([2], INT32)),
    refused(Op.TILE, "multiples are computed at run time", X, ([2], INT32)),
    refused(Op.TILE, "repeats dimension 1 -1 times", X, [1, -1]),
    refused(Op.TILE, "given by 1 numbers instead of 2", X, [1]),
    refused(Op.TILE, "too large", X, [2**29, 2**29]),
    refused(Op.TILE, "repeats dimension 0", X, np.array([2**62, 1])),
    refused(Op.BROADCAST_TO, "[2,3] cannot be broadcast to [2,4]", X, [2, 4], version=2),
    refused(Op.BROADCAST_TO, "would have 1 dimensions, its input 2", X, [3], version=2),
    refused(Op.BROADCAST_TO, "shape is computed at run time", X, ([2], INT32), version=2),
    refused(Op.BROADCAST_TO, "dimension 0 of its output would be -1", X, [-1, 3], version=2),
    refused(Op.DEPTH_TO_SPACE, "4 channels are no multiple of 3 squared", IMAGE, block_size=3),
    refused(Op.DEPTH_TO_SPACE, "block size is 0", IMAGE, block_size=0),
    refused(Op.DEPTH_TO_SPACE, "2 dimensions instead of 4", X, block_size=1),
    refused(Op.SPACE_TO_DEPTH, "4 x 4 pixels are no multiple of 3", IMAGE, block_size=3),
    refused(Op.SPACE_TO_DEPTH, "block size is -2", IMAGE, block_size=-2),
    refused(Op.SPACE_TO_BATCH_ND, "no multiple of 3", IMAGE, [3, 2], [[0, 0], [0, 0]]),
    refused(Op.SPACE_TO_BATCH_ND, "its block is 0", IMAGE, [0, 2], [[0, 0], [0, 0]]),
    refused(Op.SPACE_TO_BATCH_ND, "paddings are negative", IMAGE, [2, 2], [[-2, 0], [0, 0]]),
    refused(Op.SPACE_TO_BATCH_ND, "block is computed at run time", IMAGE, ([2], INT32), [[0, 0], [0, 0]]),
    refused(Op.SPACE_TO_BATCH_ND, "2 dimensions instead of 3 or 4", X, [1], [[0, 0]]),
    refused(Op.BATCH_TO_SPACE_ND, "batch of 1 is no multiple", IMAGE, [2, 2], [[0, 0], [0, 0]]),
    refused(Op.BATCH_TO_SPACE_ND, "crops are negative", IMAGE, [1, 1], [[-1, 0], [0, 0]]),
    refused(Op.BATCH_TO_SPACE_ND, "dimension 1 of its output would be -1", IMAGE, [1, 1], [[3, 2], [0, 0]]),
]


@pytest.mark.parametrize(("build", "words"), REFUSED)
def test_refusals_say_why(build: Callable[[], Model], words: str) -> None:
    assert words in refusal(build())
