"""Evaluates whole models in float64, for `numerics.py`: what a model computes in real numbers, or nearly so.

Every float tensor holds float64. So do quantised integers, as the real numbers that they stand for, rounded to the
grid of their tensor where an operator writes them: a hybrid (dynamic range) model is its dequantised weights applied to
activations that are *not* quantised, a float16 weight is that number, an int8 operator is exact but for the rounding
of its result. Operators that only move elements, and those on integers, are run by the runtime's reference kernels
alone (on the numbers of the elements, for the former), which is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litefuse.fusions.forms import FUNCTIONS, value_of
from litefuse.graph import Graph
from litefuse.graph.evaluate import evaluate
from litefuse.graph.sparse import densify
from litefuse.runtime import interpreter, quiet
from litefuse.schema import Model, to_bytes
from litefuse.schema.enums import ActivationFunctionType, Padding, TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Buffer, Operator, SubGraph
from litefuse.schema.types import NUMPY, RANGES, tensor_type
from litefuse.schema.writer import as_bytes

Array = NDArray[Any]

_FLOATS = frozenset({TensorType.FLOAT32, TensorType.FLOAT16, TensorType.FLOAT64})
_NONE = ActivationFunctionType.NONE
# Operators that copy elements, and which of their inputs these are; None for all.
_MOVES: dict[Any, tuple[int, ...] | None] = {
    Op.RESHAPE: (0,),
    Op.SQUEEZE: (0,),
    Op.EXPAND_DIMS: (0,),
    Op.TRANSPOSE: (0,),
    Op.SLICE: (0,),
    Op.STRIDED_SLICE: (0,),
    Op.CONCATENATION: None,
    Op.PACK: None,
    Op.UNPACK: (0,),
    Op.SPLIT: (1,),
    Op.SPLIT_V: (0,),
    Op.GATHER: (0,),
    Op.GATHER_ND: (0,),
    Op.EMBEDDING_LOOKUP: (1,),
    Op.TILE: (0,),
    Op.BROADCAST_TO: (0,),
    Op.PAD: (0,),
    Op.PADV2: (0, 2),
    Op.MIRROR_PAD: (0,),
    Op.SPACE_TO_BATCH_ND: (0,),
    Op.BATCH_TO_SPACE_ND: (0,),
    Op.SPACE_TO_DEPTH: (0,),
    Op.DEPTH_TO_SPACE: (0,),
    Op.REVERSE_V2: (0,),
    Op.RESIZE_NEAREST_NEIGHBOR: (0,),
}
_UNARY: dict[Any, Callable[[Array], Array]] = {
    Op.SIN: np.sin,
    Op.COS: np.cos,
    Op.FLOOR: np.floor,
    Op.CEIL: np.ceil,
    Op.ROUND: np.rint,
    Op.COMPLEX_ABS: np.abs,
}
_BINARY: dict[Any, Callable[[Array, Array], Array]] = {
    Op.FLOOR_DIV: lambda a, b: np.floor(a / b),
    Op.FLOOR_MOD: np.mod,
}
_REDUCTIONS: dict[Any, Callable[..., Any]] = {
    Op.SUM: np.sum,
    Op.MEAN: np.mean,
    Op.REDUCE_MAX: np.max,
    Op.REDUCE_MIN: np.min,
    Op.REDUCE_PROD: np.prod,
}
# Numbers up to here are floats of 32 bits, so that elements can be told apart by them.
_MOST = 1 << 24


class Unknown(Exception):
    """An operator that cannot be evaluated."""


class Evaluator:
    """A model in float64; keeps the state of resource variables from run to run."""

    def __init__(self, model: Model, jitter: int | None = None) -> None:
        """With ``jitter``, moves each float32 constant by up to half a unit in its last place; it is the seed."""
        self.model = model
        self.variables: dict[str, Array] = {}
        self.graphs: dict[int, Graph] = {}
        self.rng = None if jitter is None else np.random.default_rng(jitter)
        self.constants: dict[tuple[int, int], Any] = {}
        self.once: set[int] = set()

    def __call__(self, values: dict[int, Array], subgraph: int = 0) -> list[Any]:
        """The outputs of a subgraph for the values of its inputs, as the runtime takes them.

        Raises Unknown, naming the operator, where it cannot be evaluated.
        """
        graph = self._graph(subgraph)
        with np.errstate(all="ignore"):
            known = {t: self._real(graph, t, value) for t, value in values.items()}
            return self._run(graph, known)

    def _graph(self, subgraph: int) -> Graph:
        if subgraph not in self.graphs:
            self.graphs[subgraph] = Graph(self.model, subgraph)
        return self.graphs[subgraph]

    def _run(self, graph: Graph, known: dict[int, Any]) -> list[Any]:
        operators = list(graph.operators())
        last = {t: i for i, op in enumerate(operators) for t in op.inputs}
        for i, op in enumerate(operators):
            try:
                results = self._operator(graph, op, known)
            except Unknown as error:
                raise Unknown(f"{graph.where(op)}: {error}" if str(error) else str(graph.where(op))) from None
            for t, value in zip(op.outputs, results, strict=True):
                if t >= 0:
                    known[t] = self._rounded(graph, t, value)
            for t in op.inputs:  # what is not needed any more makes room
                if last[t] == i and t not in graph.outputs:
                    known.pop(t, None)
        outputs = self.model.subgraphs[graph.index].outputs
        return [known[t] if t in known else self._constant(graph, t) for t in outputs]

    # -- values ------------------------------------------------------------------------------------------------------

    def _scale(self, graph: Graph, t: int, ndim: int) -> tuple[Array, Array] | None:
        """Scale and zero point of a quantised tensor, ready to be broadcast; None for other tensors."""
        tensor, q = graph.tensors[t], graph.tensors[t].quantization
        if tensor.type not in RANGES or q is None or q.scale is None or not len(q.scale):
            return None
        if q.details is not None:
            raise Unknown("blockwise quantisation")
        scale = np.asarray(q.scale, np.float64)
        points = np.zeros(len(scale)) if q.zero_point is None or not len(q.zero_point) else np.asarray(q.zero_point)
        if len(scale) == 1:
            return scale[0], np.asarray(points, np.float64)[0]
        shape = [1] * ndim
        shape[q.quantized_dimension] = -1
        return scale.reshape(shape), np.broadcast_to(np.asarray(points, np.float64), scale.shape).reshape(shape)

    def _real(self, graph: Graph, t: int, value: Any) -> Any:
        """A stored value as what it stands for."""
        value = np.asarray(value)
        if value.dtype.kind == "f":
            return value.astype(np.float64)
        if value.dtype.kind == "c":
            return value.astype(np.complex128)
        scale = self._scale(graph, t, value.ndim)
        return value if scale is None else (value.astype(np.float64) - scale[1]) * scale[0]

    def _rounded(self, graph: Graph, t: int, value: Any) -> Any:
        """A computed value on the grid of its tensor, if that has one."""
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            return value
        scale = self._scale(graph, t, value.ndim)
        if scale is None:
            return value
        low, high = RANGES[graph.type(t)]
        steps = value / scale[0]
        steps = np.where(steps < 0, np.ceil(steps - 0.5), np.floor(steps + 0.5)) + scale[1]
        return (np.clip(steps, low, high) - scale[1]) * scale[0]

    def _constant(self, graph: Graph, t: int) -> Any:
        key = graph.index, t
        if key not in self.constants:
            value = graph.constant(t)
            if value is None and graph.tensors[t].is_variable:
                return np.zeros(graph.tensors[t].shape or ())
            if value is None:
                raise Unknown(f"the {graph.tensors[t].type.name} {graph.name(t)} is not known")
            value = self._real(graph, t, value)
            if self.rng is not None and graph.type(t) == TensorType.FLOAT32:
                value = value * (1 + 2.0**-24 * self.rng.integers(-1, 2, value.shape))
            self.constants[key] = value
        return self.constants[key]

    # -- operators ---------------------------------------------------------------------------------------------------

    def _operator(self, graph: Graph, op: Operator, known: dict[int, Any]) -> list[Any]:
        kind = graph.kind(op)
        if kind is Op.DENSIFY:
            return [self._densified(graph, op)]
        args: list[Any] = []
        for t in op.inputs:
            if t < 0:
                args.append(None)
            else:
                args.append(known[t] if t in known else self._constant(graph, t))
        if kind in (Op.CALL_ONCE, Op.VAR_HANDLE, Op.READ_VARIABLE, Op.ASSIGN_VARIABLE):
            return self._state(kind, op, args)
        if kind is Op.STABLEHLO_COMPOSITE:
            index = op.builtin_options_2.decomposition_subgraph_index  # type: ignore[union-attr]
            return self._run(self._graph(index), dict(zip(self.model.subgraphs[index].inputs, args, strict=True)))
        if kind is Op.SHAPE:
            return [np.array(args[0].shape, NUMPY[graph.type(op.outputs[0])])]
        if kind in _MOVES:
            return _moved(graph, op, args)
        if not any(isinstance(a, np.ndarray) and a.dtype.kind in "fc" for a in args):
            if kind is Op.CAST and graph.type(op.outputs[0]) in _FLOATS:
                return [args[0].astype(np.float64)]
            return _by_runtime(graph, op, args)
        function = _KERNELS.get(kind)
        if function is not None:
            return [function(op.builtin_options, *args)]
        if kind is Op.CUSTOM:
            name = graph.model.operator_codes[op.opcode_index].custom_code
            if name not in _CUSTOM:
                raise Unknown
            return _CUSTOM[name](op, *args)
        if kind in (Op.QUANTIZE, Op.DEQUANTIZE):
            return [args[0]]
        if kind is Op.CAST:
            dtype = NUMPY[graph.type(op.outputs[0])]
            return [args[0] if dtype.kind == "f" else args[0].astype(dtype)]
        if kind is Op.UNIDIRECTIONAL_SEQUENCE_LSTM:
            return [_lstm(op.builtin_options, *args)]
        if kind in _UNARY or kind in _BINARY:
            return [(_UNARY.get(kind) or _BINARY[kind])(*args)]
        if kind in FUNCTIONS:
            options = {
                name: getattr(op.builtin_options, name)
                for name in ("alpha", "approximate")
                if hasattr(op.builtin_options, name)
            }
            return [np.asarray(value_of(kind, args, graph.activation(op), options))]
        raise Unknown

    def _densified(self, graph: Graph, op: Operator) -> Any:
        tensor = graph.tensors[op.inputs[0]]
        dtype = NUMPY.get(tensor.type)
        if dtype is None or tensor.sparsity is None:
            raise Unknown
        data = np.frombuffer(as_bytes(graph.model.buffers[tensor.buffer].data), dtype)
        value = densify(data, tensor.shape or [], tensor.sparsity)
        if value is None:
            raise Unknown
        return self._real(graph, op.inputs[0], value)

    def _state(self, kind: Any, op: Operator, args: list[Any]) -> list[Any]:
        options: Any = op.builtin_options
        if kind is Op.CALL_ONCE:
            if options.init_subgraph_index not in self.once:
                self.once.add(options.init_subgraph_index)
                self._run(self._graph(options.init_subgraph_index), {})
            return []
        if kind is Op.VAR_HANDLE:
            return [f"{options.container}/{options.shared_name}"]
        if kind is Op.ASSIGN_VARIABLE:
            self.variables[args[0]] = args[1]
            return []
        return [self.variables[args[0]]]


# -- by the runtime ------------------------------------------------------------------------------------------------


def _alone(graph: Graph, op: Operator, operands: Sequence[Array | None], outs: Sequence[TensorType]) -> list[Array]:
    """The results of an operator for these operands, by the runtime's reference kernels."""
    model = Model(version=3, operator_codes=[graph.model.operator_codes[op.opcode_index]], buffers=[Buffer()])
    tensors: list[Any] = []

    def tensor(like: int, value: Array | None, type: TensorType) -> int:
        fields: dict[str, Any] = {"buffer": 0, "external_buffer": 0, "variant_tensors": None, "type": type}
        fields |= {"quantization": None, "sparsity": None, "shape_signature": None, "is_variable": False}
        if value is not None:
            model.buffers.append(Buffer(data=as_bytes(np.ascontiguousarray(value))))
            fields |= {"buffer": len(model.buffers) - 1, "shape": list(value.shape)}
        tensors.append(graph.tensors[like].replace(**fields))
        return len(tensors) - 1

    inputs = [
        -1 if value is None else tensor(t, value, tensor_type(value.dtype))
        for t, value in zip(op.inputs, operands, strict=True)
    ]
    outputs = [tensor(t, None, type) for t, type in zip(op.outputs, outs, strict=True)]
    alone = op.replace(opcode_index=0, inputs=inputs, outputs=outputs, intermediates=None, debug_metadata_index=-1)
    model.subgraphs = [SubGraph(tensors=tensors, inputs=[], outputs=outputs, operators=[alone], name="main")]
    try:
        with quiet():
            runner = interpreter(to_bytes(model), xnnpack=False, reference=True)
            runner.allocate_tensors()
            runner.invoke()
            return [np.array(runner.get_tensor(d["index"])) for d in runner.get_output_details()]
    except (ValueError, RuntimeError) as error:
        raise Unknown(f"the runtime says {str(error).splitlines()[0]}") from None


def _by_runtime(graph: Graph, op: Operator, args: Sequence[Any]) -> list[Array]:
    if any(graph.type(t) in _FLOATS for t in op.outputs):
        found = evaluate(graph, op)  # of constants: a table of the model
        if found is None:
            raise Unknown
        return [f.astype(np.float64) if f.dtype.kind == "f" else f for f in found]
    return _alone(graph, op, args, [graph.type(t) for t in op.outputs])


def _moved(graph: Graph, op: Operator, args: Sequence[Any]) -> list[Any]:
    """The results of an operator that copies elements: the runtime moves their numbers, and these say which to take."""
    which = _MOVES[graph.kind(op)]
    slots = range(len(args)) if which is None else [i for i in which if i < len(args)]
    pool = [np.zeros(1, args[slots[0]].dtype)]  # what is padded with
    operands = list(args)
    size = 1
    for i in slots:
        operands[i] = np.arange(size, size + args[i].size, dtype=np.float32).reshape(args[i].shape)
        pool.append(args[i].reshape(-1))
        size += args[i].size
    if size >= _MOST:
        raise Unknown(f"{size} elements are more than can be told apart")
    results = _alone(graph, op, operands, [TensorType.FLOAT32] * len(op.outputs))
    elements = np.concatenate(pool)
    moved = [elements[r.astype(np.int64)] for r in results]
    return [_clamped(m, op.builtin_options) for m in moved]


# -- in float64 ----------------------------------------------------------------------------------------------------


def _clamped(x: Array, options: Any) -> Array:
    activation = getattr(options, "fused_activation_function", _NONE)
    return x if activation == _NONE else np.asarray(value_of(Op.ADD, [x, 0.0], activation, {}))


def _before(size: int, window: int, stride: int, padding: Padding) -> tuple[int, int, int]:
    """How many places an output has, and by how much SAME pads before and behind."""
    if padding == Padding.VALID:
        return max((size - window) // stride + 1, 0), 0, 0
    count = -(-size // stride)
    total = max((count - 1) * stride + window - size, 0)
    return count, total // 2, total - total // 2


def _taps(x: Array, kernel: tuple[int, int], o: Any, dilations: tuple[int, int], fill: float) -> Any:
    """For each place of a window, its row and column and what the outputs see there."""
    (kh, kw), (dh, dw) = kernel, dilations
    oh, *rows = _before(x.shape[1], (kh - 1) * dh + 1, o.stride_h, o.padding)
    ow, *columns = _before(x.shape[2], (kw - 1) * dw + 1, o.stride_w, o.padding)
    padded = np.pad(x, [(0, 0), tuple(rows), tuple(columns), (0, 0)], constant_values=fill)
    for i in range(kh):
        for j in range(kw):
            top, left = i * dh, j * dw
            bottom, right = top + (oh - 1) * o.stride_h + 1, left + (ow - 1) * o.stride_w + 1
            yield i, j, padded[:, top : bottom : o.stride_h, left : right : o.stride_w]


def _conv(o: Any, x: Array, w: Array, bias: Array | None = None) -> Array:
    groups = x.shape[-1] // w.shape[-1]
    share, total = w.shape[0] // groups, None
    for i, j, seen in _taps(x, w.shape[1:3], o, (o.dilation_h_factor, o.dilation_w_factor), 0.0):
        parts = [
            seen[..., g * w.shape[-1] : (g + 1) * w.shape[-1]].reshape(-1, w.shape[-1])
            @ w[g * share : (g + 1) * share, i, j].T
            for g in range(groups)
        ]
        found = (parts[0] if groups == 1 else np.concatenate(parts, 1)).reshape(*seen.shape[:-1], -1)
        total = found if total is None else np.add(total, found, out=total)
    assert total is not None
    return _clamped(total if bias is None else total + bias, o)


def _depthwise(o: Any, x: Array, w: Array, bias: Array | None = None) -> Array:
    multiplier, total = w.shape[-1] // x.shape[-1], None
    for i, j, seen in _taps(x, w.shape[1:3], o, (o.dilation_h_factor, o.dilation_w_factor), 0.0):
        found = (seen if multiplier == 1 else np.repeat(seen, multiplier, -1)) * w[0, i, j]
        total = found if total is None else np.add(total, found, out=total)
    assert total is not None
    return _clamped(total if bias is None else total + bias, o)


def _transpose_conv(o: Any, shape: Array, w: Array, x: Array, bias: Array | None = None) -> Array:
    _, height, width, _ = (int(d) for d in shape)
    n, h, wd, _ = x.shape
    count, kh, kw, _ = w.shape
    _, top, _ = _before(height, kh, o.stride_h, o.padding)
    _, left, _ = _before(width, kw, o.stride_w, o.padding)
    size = max((h - 1) * o.stride_h + kh, top + height), max((wd - 1) * o.stride_w + kw, left + width)
    out = np.zeros((n, *size, count))
    for i in range(kh):
        for j in range(kw):
            to = out[:, i : i + (h - 1) * o.stride_h + 1 : o.stride_h, j : j + (wd - 1) * o.stride_w + 1 : o.stride_w]
            to += x @ w[:, i, j].T
    out = out[:, top : top + height, left : left + width]
    return _clamped(out if bias is None else out + bias, o)


def _dense(o: Any, x: Array, w: Array, bias: Array | None = None) -> Array:
    y = x.reshape(-1, w.shape[-1]) @ w.T
    y = y.reshape(*x.shape[:-1], -1) if o.keep_num_dims else y
    return _clamped(y if bias is None else y + bias, o)


def _matmul(o: Any, a: Array, b: Array) -> Array:
    return np.matmul(np.swapaxes(a, -1, -2) if o.adj_x else a, np.swapaxes(b, -1, -2) if o.adj_y else b)


def _pool(o: Any, x: Array, kind: Any) -> Array:
    window = o.filter_height, o.filter_width
    if kind is Op.MAX_POOL_2D:
        found = [seen for _, _, seen in _taps(x, window, o, (1, 1), -math.inf)]
        return _clamped(np.max(found, axis=0), o)
    x = x if kind is Op.AVERAGE_POOL_2D else np.square(x)
    total = sum(seen for _, _, seen in _taps(x, window, o, (1, 1), 0.0))
    ones = np.ones((1, *x.shape[1:3], 1))
    mean = total / sum(seen for _, _, seen in _taps(ones, window, o, (1, 1), 0.0))
    return _clamped(mean if kind is Op.AVERAGE_POOL_2D else np.sqrt(mean), o)


def _bilinear(o: Any, x: Array, size: Array) -> Array:
    for axis, count in ((1, int(size[0])), (2, int(size[1]))):
        had = x.shape[axis]
        scale = (had - 1) / (count - 1) if o.align_corners and count > 1 else had / count
        at = (np.arange(count) + 0.5) * scale - 0.5 if o.half_pixel_centers else np.arange(count) * scale
        low = np.floor(at)
        share = (at - low).reshape([-1 if i == axis else 1 for i in range(4)])
        before = np.clip(low, 0, had - 1).astype(int)
        behind = np.clip(low + 1, 0, had - 1).astype(int)
        x = x.take(before, axis) * (1 - share) + x.take(behind, axis) * share
    return x


def _softmax(o: Any, x: Array) -> Array:
    e = np.exp(o.beta * (x - np.max(x, axis=-1, keepdims=True)))
    return np.asarray(e / np.sum(e, axis=-1, keepdims=True))


def _log_softmax(_: Any, x: Array) -> Array:
    shifted = x - np.max(x, axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True)))


def _l2(o: Any, x: Array) -> Array:
    length = np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True))
    return _clamped(x / np.maximum(length, 1e-6), o)


def _reduced(o: Any, x: Array, axes: Array, kind: Any) -> Array:
    along = tuple({int(a) % max(x.ndim, 1) for a in np.ravel(axes)})
    return np.asarray(_REDUCTIONS[kind](x, axis=along, keepdims=o is not None and o.keep_dims))


def _rfft(_: Any, x: Array, size: Array) -> Array:
    return np.fft.rfft2(x, [int(n) for n in size])


def _sigmoid(x: Array) -> Array:
    return np.asarray(value_of(Op.LOGISTIC, [x], _NONE, {}))


def _lstm(o: Any, x: Array, *args: Any) -> Array:
    """The plain kind: no peepholes, projection, normalisation nor clipping of projections."""
    weights, recurrent, peep, bias = args[0:4], args[4:8], args[8:11], args[11:15]
    extra = [*peep, *args[15:17], *args[19:]]
    if any(e is not None for e in extra) or any(w is None for w in (*weights, *recurrent)):
        raise Unknown("a form of LSTM that is not known here")
    if o.fused_activation_function != ActivationFunctionType.TANH:
        raise Unknown("an activation of an LSTM that is not known here")
    x = x if o.time_major else np.swapaxes(x, 0, 1)
    state, cell = np.array(args[17], np.float64), np.array(args[18], np.float64)
    found = []
    for step in x:
        i, f, g, out = (step @ w.T + state @ r.T + b for w, r, b in zip(weights, recurrent, bias, strict=True))
        cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
        cell = np.clip(cell, -o.cell_clip, o.cell_clip) if o.cell_clip else cell
        state = _sigmoid(out) * np.tanh(cell)
        found.append(state)
    return np.stack(found, 0 if o.time_major else 1)


_KERNELS: dict[Any, Callable[..., Array]] = {
    Op.CONV_2D: _conv,
    Op.DEPTHWISE_CONV_2D: _depthwise,
    Op.TRANSPOSE_CONV: _transpose_conv,
    Op.FULLY_CONNECTED: _dense,
    Op.BATCH_MATMUL: _matmul,
    Op.RESIZE_BILINEAR: _bilinear,
    Op.SOFTMAX: _softmax,
    Op.LOG_SOFTMAX: _log_softmax,
    Op.L2_NORMALIZATION: _l2,
    Op.RFFT2D: _rfft,
    Op.MAX_POOL_2D: lambda o, x: _pool(o, x, Op.MAX_POOL_2D),
    Op.AVERAGE_POOL_2D: lambda o, x: _pool(o, x, Op.AVERAGE_POOL_2D),
    Op.L2_POOL_2D: lambda o, x: _pool(o, x, Op.L2_POOL_2D),
    **{kind: (lambda o, x, axes, kind=kind: _reduced(o, x, axes, kind)) for kind in _REDUCTIONS},
}


# -- MediaPipe's operators, whose options are the structures of TFLite's C interface -----------------------------------


class _Window:
    """TfLitePoolParams, or TfLiteTransposeConvParams as far as that has the same fields."""

    def __init__(self, op: Operator) -> None:
        assert op.custom_options is not None
        fields = np.frombuffer(bytes(op.custom_options)[:20], np.int32)
        self.padding = Padding.SAME if fields[0] == 1 else Padding.VALID
        self.stride_w, self.stride_h, self.filter_width, self.filter_height = (int(f) for f in fields[1:])


def _bias_transposed(op: Operator, x: Array, w: Array, bias: Array) -> list[Array]:
    assert op.custom_options is not None
    padding, stride_w, stride_h = np.frombuffer(bytes(op.custom_options)[:12], np.int32)
    window = _Window.__new__(_Window)
    window.padding, window.stride_w, window.stride_h = Padding(0 if padding == 1 else 1), int(stride_w), int(stride_h)
    size = [
        n * s if window.padding == Padding.SAME else (n - 1) * s + k
        for n, s, k in zip(x.shape[1:3], (window.stride_h, window.stride_w), w.shape[1:3], strict=True)
    ]
    return [_transpose_conv(window, np.array([x.shape[0], *size, w.shape[0]]), w, x, bias)]


def _max_with_places(op: Operator, x: Array) -> list[Array]:
    o = _Window(op)
    found = np.stack([seen for _, _, seen in _taps(x, (o.filter_height, o.filter_width), o, (1, 1), -math.inf)])
    return [found.max(0), found.argmax(0).astype(np.float64)]


def _unpooled(op: Operator, x: Array, places: Array) -> list[Array]:
    o = _Window(op)
    n, h, w, c = x.shape
    out = np.zeros((n, h * o.stride_h, w * o.stride_w, c))
    for place in range(o.filter_height * o.filter_width):
        i, j = divmod(place, o.filter_width)
        to = out[:, i :: o.stride_h, j :: o.stride_w]
        to[places == place] = x[places == place]
    return [out]


_CUSTOM: dict[str | None, Callable[..., list[Array]]] = {
    "Convolution2DTransposeBias": _bias_transposed,
    "MaxPoolingWithArgmax2D": _max_with_places,
    "MaxUnpooling2D": _unpooled,
}
