"""The numbers of a model: operators, arithmetic, memory traffic, memory, types, and where it came from.

Everything is read from the tables of the file in one walk over its operators; nothing is run. Damaged models are
measured as far as they go, since :mod:`litefuse.schema.validate` is what names their faults.

Dimensions that are only known at run time count with the size that the file gives them, which converters set to 1.
Shapes that the file does not give are worked out where possible; what remains counts as zero bytes and is named in
`unsized`.

Multiply-accumulates (MACs), with the shapes of the file:

=========================================  =========================================================================
CONV_2D, DEPTHWISE_CONV_2D, CONV_3D,       elements of the weights, for each output position (all output dimensions
FULLY_CONNECTED                            but the last)
TRANSPOSE_CONV, CONV_3D_TRANSPOSE          elements of the weights, for each input position; what falls outside the
                                           output because of padding is counted
BATCH_MATMUL                               output elements times the contracted dimension
LSTM, RNN and their sequence forms         elements of all weight matrices and peepholes, for each step and batch entry
SVDF                                       elements of both weight matrices, for each batch entry
STABLEHLO_DOT_GENERAL,                     output elements times the contracted dimensions; for the convolution times
STABLEHLO_CONVOLUTION                      the kernel elements of one output channel
STABLEHLO_COMPOSITE                        what its decomposition has
custom operators, unknown operators        unknown; their number is reported
everything else                            none
=========================================  =========================================================================

The first line is half of what TFLite's converter counts as arithmetic operations, bias excluded
(`tflite/converter/utils/arithmetic_count_util.h`); weight slots are those of `tflite/kernels/*.cc`.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from math import prod
from typing import Any, NamedTuple

from litefuse.errors import LitefuseError
from litefuse.schema.enums import BuiltinOperator, TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op, builtin_code
from litefuse.schema.tables import Operator, StableHLOCompositeOptions, SubGraph, Tensor
from litefuse.schema.types import bits, nbytes
from litefuse.schema.writer import as_bytes

ALIGNMENT = 16
"""Sizes of tensors are rounded up to this many bytes in `peak_bytes`, as TFLM's planner does."""

Shape = Sequence[int]


class OperatorStats(NamedTuple):
    """One operator: what it is, what it computes, how many MACs (None: unknown) and how many bytes it writes."""

    kind: str
    tensor: str
    macs: int | None
    written: int


class TensorInfo(NamedTuple):
    """A tensor at the border of a model. Dynamic dimensions are -1; `shape` is None when the rank is unknown."""

    name: str
    tensor: str
    type: str
    shape: list[int] | None
    scale: float | None
    zero_point: int | None


@dataclass
class SubgraphStats:
    """The numbers of one subgraph. Sizes are in bytes."""

    index: int
    name: str
    role: str
    """`main`, `signature`, `decomposition` (of a composite) or `called` (by IF, WHILE and the like)."""
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    operators: list[OperatorStats] = field(default_factory=list)
    weight_bytes: int = 0
    """Constants, each buffer once."""
    peak_bytes: int = 0
    """Most bytes of inputs and computed tensors that are live at one operator, in the order of the file, sizes
    rounded up to 16: no memory plan can do with less unless tensors share memory."""
    variable_bytes: int = 0
    """State that is kept between runs, in variable tensors; not in `peak_bytes`."""
    widened_bytes: int = 0
    """Constants that DEQUANTIZE or DENSIFY expands at start; in neither `written` nor `peak_bytes`."""
    dynamic: list[str] = field(default_factory=list)
    """Inputs and computed tensors with dimensions that are only known at run time."""
    unsized: list[str] = field(default_factory=list)
    """Inputs and computed tensors whose size cannot be known without running the model."""

    @property
    def kinds(self) -> Counter[str]:
        """How many operators of each kind there are."""
        return Counter(op.kind for op in self.operators)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the operators for which they are known."""
        return sum(op.macs or 0 for op in self.operators)

    @property
    def unknown_macs(self) -> int:
        """How many operators there are for which they are not."""
        return sum(op.macs is None for op in self.operators)

    @property
    def activation_bytes(self) -> int:
        """Bytes that the operators write; views such as RESHAPE are counted as copies."""
        return sum(op.written for op in self.operators)


class SignatureStats(NamedTuple):
    """A named entry point."""

    key: str
    subgraph: int
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]


class Producer(NamedTuple):
    """Where the model comes from, as far as the file says. Each may be None."""

    description: str | None
    tensorflow_version: str | None
    source: str | None
    min_runtime_version: str | None


@dataclass
class ModelStats:
    """The numbers of a model. Totals leave out decompositions, which stand for the composites that refer to them."""

    version: int
    file_bytes: int | None
    subgraphs: list[SubgraphStats]
    signatures: list[SignatureStats]
    producer: Producer
    weight_bytes: int
    """Constants of all subgraphs, each buffer once."""
    weight_types: dict[str, int]
    """Bytes of constants by element type."""
    computed_types: dict[str, int]
    """Number of inputs and computed tensors by element type."""
    quantization: dict[str, int]
    """Number of operators with MACs by the types of their data and weights, such as `int8 per channel`."""
    metadata: dict[str, int]
    """Bytes by name of metadata entry."""
    appended: dict[str, int]
    """Bytes by name of the files in an appended zip; one nameless entry when something else is appended."""
    unknown: str | None
    """Where the file uses a field that this version does not know."""

    @property
    def counted(self) -> list[SubgraphStats]:
        """The subgraphs that count in the totals."""
        return [s for s in self.subgraphs if s.role != "decomposition"]

    @property
    def operators(self) -> int:
        """Number of operators."""
        return sum(len(s.operators) for s in self.counted)

    @property
    def kinds(self) -> Counter[str]:
        """How many operators of each kind there are."""
        return Counter(op.kind for s in self.counted for op in s.operators)

    @property
    def macs(self) -> int:
        """Multiply-accumulates where known; bodies of loops count once."""
        return sum(s.macs for s in self.counted)

    @property
    def unknown_macs(self) -> int:
        """How many operators there are whose MACs are not known."""
        return sum(s.unknown_macs for s in self.counted)

    @property
    def activation_bytes(self) -> int:
        """Bytes that the operators write; bodies of loops count once."""
        return sum(s.activation_bytes for s in self.counted)

    @property
    def peak_bytes(self) -> int:
        """The largest `peak_bytes` of a subgraph."""
        return max((s.peak_bytes for s in self.counted), default=0)

    @property
    def variable_bytes(self) -> int:
        """State that is kept between runs."""
        return sum(s.variable_bytes for s in self.counted)

    @property
    def widened_bytes(self) -> int:
        """Constants that are expanded once at start."""
        return sum(s.widened_bytes for s in self.counted)

    @property
    def custom(self) -> dict[str, int]:
        """Number of operators by custom code, TensorFlow's own (Flex) aside."""
        return self._custom(flex=False)

    @property
    def flex(self) -> dict[str, int]:
        """Number of TensorFlow operators (Flex) by name; they need TensorFlow in the runtime."""
        return self._custom(flex=True)

    def _custom(self, flex: bool) -> dict[str, int]:
        names = ((k.removeprefix(_CUSTOM), n) for k, n in self.kinds.items() if k.startswith(_CUSTOM))
        return {name: n for name, n in names if name.startswith("Flex") == flex}


_CUSTOM = "custom:"


def measure(model: Model, file_bytes: int | None = None) -> ModelStats:
    """Takes the numbers of a model, in time linear in its size, without running it.

    Args:
        model: any model, also one that is not valid.
        file_bytes: the size of its file; by default that of the file it was read from, if any.
    """
    if file_bytes is None and model.path is not None:
        file_bytes = model.path.stat().st_size
    roles = _roles(model)
    walks = [_Walk(model, index) for index in range(len(model.subgraphs))]
    subgraphs = [walk.stats(roles[i]) for i, walk in enumerate(walks)]
    for walk, stats in zip(walks, subgraphs, strict=True):
        for position, target in walk.composites:
            if target < len(subgraphs) and not subgraphs[target].unknown_macs:
                stats.operators[position] = stats.operators[position]._replace(macs=subgraphs[target].macs)
    weights = {buffer: size for walk in walks for buffer, size in walk.weights.items()}
    return ModelStats(
        version=model.version,
        file_bytes=file_bytes,
        subgraphs=subgraphs,
        signatures=_signatures(model),
        producer=_producer(model),
        weight_bytes=sum(size for _, size in weights.values()),
        weight_types=_sums((type, size) for type, size in weights.values()),
        computed_types=_sums((type, 1) for walk in walks for type in walk.computed_types),
        quantization=_sums((scheme, 1) for walk in walks for scheme in walk.schemes),
        metadata=_sums((m.name or "", _metadata(model, m.buffer).nbytes) for m in model.metadata),
        appended=_appended(model),
        unknown=model.unknown,
    )


def _kind_name(op: Operator, kind: int | None, model: Model) -> str:
    """What an operator is called: a builtin's name, `custom:NAME`, `composite:NAME` or `builtin:NUMBER`."""
    if kind is None:
        return "invalid"
    if not isinstance(kind, BuiltinOperator):
        return f"builtin:{kind}"
    if kind is Op.CUSTOM:
        return _CUSTOM + (model.operator_codes[op.opcode_index].custom_code or "")
    if isinstance(op.builtin_options_2, StableHLOCompositeOptions):
        return f"composite:{op.builtin_options_2.name or ''}"
    return kind._name_


_TYPE_NAMES = {int(t): t.name for t in TensorType}


def type_name(type: int) -> str:
    """The name of an element type, or its number when it is newer than the tables."""
    return _TYPE_NAMES.get(type) or f"type {type}"


def _nbytes(type: TensorType, shape: Shape | None) -> int | None:
    if bits(type) is None:
        return 0 if type == TensorType.RESOURCE else None  # a handle; strings and variants are of any size
    return None if shape is None else nbytes(type, prod(shape))


def tensor_shape(tensor: Tensor) -> list[int] | None:
    """The shape with -1 for dynamic dimensions, None when the rank is unknown."""
    shape = tensor.shape or []
    if tensor.shape_signature and len(tensor.shape_signature) == len(shape):
        return list(tensor.shape_signature)
    return list(shape) if shape or tensor.has_rank else None


def _sums(items: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Adds up numbers by name; the largest comes first."""
    sums: Counter[str] = Counter()
    for name, number in items:
        sums[name] += number
    return dict(sums.most_common())


def _roles(model: Model) -> list[str]:
    roles = ["called"] * len(model.subgraphs)
    for op in chain.from_iterable(s.operators for s in model.subgraphs):
        if isinstance(op.builtin_options_2, StableHLOCompositeOptions):
            target = op.builtin_options_2.decomposition_subgraph_index
            if 0 < target < len(roles):
                roles[target] = "decomposition"
    for signature in model.signature_defs:
        if signature.subgraph_index < len(roles):
            roles[signature.subgraph_index] = "signature"
    if roles:
        roles[0] = "main"
    return roles


# -- arithmetic ----------------------------------------------------------------------------------------------------


class _Shapes:
    """The shapes of an operator's inputs or outputs by slot; asking for one that is not known raises LookupError."""

    def __init__(self, shapes: Sequence[Shape | None]) -> None:
        self.shapes = shapes

    def __getitem__(self, slot: int) -> Shape:
        shape = self.shapes[slot]
        if shape is None:
            raise LookupError
        return shape

    def __len__(self) -> int:
        return len(self.shapes)

    def sum_of(self, slots: Iterable[int]) -> int:
        """Elements of those of some optional inputs that are there."""
        present = (self.shapes[s] for s in slots if s < len(self.shapes))
        return sum(prod(shape) for shape in present if shape is not None)


class _Arithmetic(NamedTuple):
    """How an operator's MACs follow from its shapes; which inputs are the data and the (or a typical) weights."""

    macs: Callable[[Any, _Shapes, _Shapes], int]
    data: int = 0
    weights: int = 1


def _per_output(options: Any, ins: _Shapes, outs: _Shapes) -> int:
    return prod(outs[0][:-1]) * prod(ins[1])


def _per_input(options: Any, ins: _Shapes, outs: _Shapes) -> int:
    return prod(ins[2][:-1]) * prod(ins[1])


def _per_step(*slots: int) -> Callable[[Any, _Shapes, _Shapes], int]:
    """Recurrent operators: the weights are used for each batch entry, and each step where the input has steps."""
    return lambda options, ins, outs: prod(ins[0][:-1]) * ins.sum_of(slots)


def _lstm(options: Any, ins: _Shapes, outs: _Shapes) -> int:
    # The basic kernel has five inputs: data, previous output, weights, bias, previous state.
    return prod(ins[0][:-1]) * ins.sum_of((2,) if len(ins) == 5 else (*range(1, 12), 16))


def _batch_matmul(options: Any, ins: _Shapes, outs: _Shapes) -> int:
    depth: int = ins[0][-2 if options is not None and options.adj_x else -1]
    return prod(outs[0]) * depth


def _dot_general(options: Any, ins: _Shapes, outs: _Shapes) -> int:
    depth: int = prod(ins[0][d] for d in options.lhs_contracting_dimensions)
    return prod(outs[0]) * depth


def _convolution(options: Any, ins: _Shapes, outs: _Shapes) -> int:
    channels: int = ins[1][options.kernel_output_feature_dimension]
    return prod(outs[0]) * prod(ins[1]) // channels


_ARITHMETIC: dict[BuiltinOperator, _Arithmetic] = {
    Op.CONV_2D: _Arithmetic(_per_output),
    Op.DEPTHWISE_CONV_2D: _Arithmetic(_per_output),
    Op.CONV_3D: _Arithmetic(_per_output),
    Op.FULLY_CONNECTED: _Arithmetic(_per_output),
    Op.TRANSPOSE_CONV: _Arithmetic(_per_input, data=2),
    Op.CONV_3D_TRANSPOSE: _Arithmetic(_per_input, data=2),
    Op.BATCH_MATMUL: _Arithmetic(_batch_matmul),
    Op.LSTM: _Arithmetic(_lstm, weights=2),
    Op.UNIDIRECTIONAL_SEQUENCE_LSTM: _Arithmetic(_per_step(*range(1, 12), 16), weights=2),
    Op.BIDIRECTIONAL_SEQUENCE_LSTM: _Arithmetic(
        _per_step(*range(1, 12), 16, *range(18, 29), 33, *range(40, 48)), weights=2
    ),
    Op.RNN: _Arithmetic(_per_step(1, 2)),
    Op.UNIDIRECTIONAL_SEQUENCE_RNN: _Arithmetic(_per_step(1, 2)),
    Op.BIDIRECTIONAL_SEQUENCE_RNN: _Arithmetic(_per_step(1, 2, 5, 6, 10, 11)),
    Op.SVDF: _Arithmetic(_per_step(1, 2)),
    Op.STABLEHLO_DOT_GENERAL: _Arithmetic(_dot_general),
    Op.STABLEHLO_CONVOLUTION: _Arithmetic(_convolution),
}
_UNKNOWN = frozenset({Op.CUSTOM, Op.DELEGATE, Op.STABLEHLO_CUSTOM_CALL, Op.STABLEHLO_COMPOSITE, Op.CONCAT_EMBEDDINGS})


# -- one subgraph --------------------------------------------------------------------------------------------------


class _Walk:
    """One walk over the operators of a subgraph."""

    def __init__(self, model: Model, index: int) -> None:
        self.model = model
        self.index = index
        self.subgraph: SubGraph = model.subgraphs[index]
        self.tensors = self.subgraph.tensors
        self.weights: dict[int, tuple[str, int]] = {}  # buffer (external ones negative): type, bytes
        self.composites: list[tuple[int, int]] = []
        self.schemes: list[str] = []
        self.computed_types: list[str] = []
        # Of each tensor: the first operator at which it is live. Inputs are there from the start.
        self.first: dict[int, int] = dict.fromkeys(self._valid(self.subgraph.inputs), 0)
        self.widened: dict[int, int] = {}  # tensors that are expanded constants, with the constant
        external = {b.id: b.length for b in model.external_buffers or ()}
        self.constant = [self._weight(tensor, external) for tensor in self.tensors]
        # With the sizes of the file; None where it gives none.
        self.shapes = [self._shape(t, constant) for t, constant in zip(self.tensors, self.constant, strict=True)]
        if any(self.shapes[t] is None for op in self.subgraph.operators for t in self._valid(op.outputs)):
            self._infer()
        self.sizes = [_nbytes(t.type, shape) for t, shape in zip(self.tensors, self.shapes, strict=True)]

    def _valid(self, tensors: Iterable[int]) -> list[int]:
        count = len(self.tensors)
        return [t for t in tensors if 0 <= t < count]

    def _weight(self, tensor: Tensor, external: dict[int, int]) -> bool:
        """Whether a tensor is a constant; notes its buffer."""
        if tensor.external_buffer:
            self.weights[-tensor.external_buffer] = type_name(tensor.type), external.get(tensor.external_buffer, 0)
            return True
        if not 0 < tensor.buffer < len(self.model.buffers) or tensor.is_variable:
            return False
        data = self.model.buffers[tensor.buffer].data
        if data is None or not len(data):
            return False
        self.weights[tensor.buffer] = type_name(tensor.type), as_bytes(data).nbytes
        return True

    def _infer(self) -> None:
        """Works out the shapes that the file does not give, from those of the inputs; not for damaged models."""
        from litefuse.graph.graph import Graph
        from litefuse.graph.infer import infer_subgraph

        given = {t: tuple(shape) for t in self.first if (shape := self.shapes[t]) is not None}
        try:
            specs = infer_subgraph(Graph(self.model, self.index), given)
        except (LookupError, TypeError, ValueError, LitefuseError):
            return
        for tensor, spec in specs.items():
            if self.shapes[tensor] is None and spec.shape is not None and min(spec.shape, default=0) >= 0:
                self.shapes[tensor] = spec.shape

    @staticmethod
    def _shape(tensor: Tensor, constant: bool) -> Shape | None:
        if tensor.shape:
            return tensor.shape if min(tensor.shape) >= 0 else None
        # An empty shape is a scalar's, or says nothing: only has_rank or data can tell.
        return () if tensor.has_rank or constant else None

    def stats(self, role: str) -> SubgraphStats:
        """The numbers; to be called once."""
        subgraph = self.subgraph
        codes: list[int] = [builtin_code(code) for code in self.model.operator_codes]
        operators = [self._operator(i, op, codes) for i, op in enumerate(subgraph.operators)]
        stats = SubgraphStats(
            self.index,
            subgraph.name or "",
            role,
            [tensor_info(self.tensors[t]) for t in self._valid(subgraph.inputs)],
            [tensor_info(self.tensors[t]) for t in self._valid(subgraph.outputs)],
            operators,
            weight_bytes=sum(size for _, size in self.weights.values()),
        )
        self._memory(stats)
        return stats

    def _operator(self, position: int, op: Operator, codes: list[int]) -> OperatorStats:
        kind = codes[op.opcode_index] if 0 <= op.opcode_index < len(codes) else None
        inputs, outputs = self._valid(op.inputs), self._valid(op.outputs)
        if kind in (Op.DEQUANTIZE, Op.DENSIFY) and inputs:
            source = self.widened.get(inputs[0], inputs[0])
            if self.constant[source]:
                self.widened.update((t, source) for t in outputs)
        for tensor in outputs:
            self.first.setdefault(tensor, position)
        written = sum(self.sizes[t] or 0 for t in outputs if t not in self.widened)
        name = self.tensors[outputs[0]].name if outputs else None
        return OperatorStats(_kind_name(op, kind, self.model), name or "", self._macs(position, op, kind), written)

    def _macs(self, position: int, op: Operator, kind: int | None) -> int | None:
        if not isinstance(kind, BuiltinOperator) or kind in _UNKNOWN:
            if isinstance(op.builtin_options_2, StableHLOCompositeOptions):
                self.composites.append((position, op.builtin_options_2.decomposition_subgraph_index))
            return None
        arithmetic = _ARITHMETIC.get(kind)
        if arithmetic is None:
            return 0
        self.schemes.append(self._scheme(op, arithmetic))
        options = op.builtin_options if op.builtin_options is not None else op.builtin_options_2
        try:
            return arithmetic.macs(options, self._shapes(op.inputs), self._shapes(op.outputs))
        except (LookupError, AttributeError, TypeError, ZeroDivisionError):
            return None  # shapes or options are missing

    def _shapes(self, tensors: Sequence[int]) -> _Shapes:
        return _Shapes([self.shapes[t] if 0 <= t < len(self.shapes) else None for t in tensors])

    def _memory(self, stats: SubgraphStats) -> None:
        """Fills in what depends on lifetimes."""
        end = max(len(self.subgraph.operators) - 1, 0)
        last = dict(self.first)
        for position, op in enumerate(self.subgraph.operators):
            for tensor in op.inputs:
                if tensor in last:
                    last[tensor] = position
        for tensor in self.subgraph.outputs:
            if tensor in last:
                last[tensor] = end
        change = [0] * (end + 2)
        for tensor, start in self.first.items():
            t = self.tensors[tensor]
            size = self.sizes[tensor]
            if size is None:
                stats.unsized.append(t.name or f"#{tensor}")
                size = 0
            if t.shape_signature and min(t.shape_signature) < 0:
                stats.dynamic.append(t.name or f"#{tensor}")
            self.computed_types.append(type_name(t.type))
            if tensor in self.widened:
                stats.widened_bytes += size
            elif not t.is_variable:
                aligned = size + -size % ALIGNMENT
                change[start] += aligned
                change[last[tensor] + 1] -= aligned
        stats.peak_bytes = max(accumulate(change))
        stats.variable_bytes = sum(n or 0 for n, t in zip(self.sizes, self.tensors, strict=True) if t.is_variable)

    def _scheme(self, op: Operator, arithmetic: _Arithmetic) -> str:
        """The types of an operator's data and weights in words."""
        data, weights = (
            op.inputs[slot] if slot < len(op.inputs) and 0 <= op.inputs[slot] < len(self.tensors) else None
            for slot in (arithmetic.data, arithmetic.weights)
        )
        if data is None or weights is None:
            return "unknown"
        kind = type_name(self.tensors[data].type).lower()
        stored = self.widened.get(weights, weights)
        tensor = self.tensors[stored]
        weight = type_name(tensor.type).lower()
        words = kind
        if weight != kind or tensor.sparsity is not None:
            dynamic = kind == "float32" and stored == weights and weight.startswith(("int", "uint"))
            sparse = "" if tensor.sparsity is None else "sparse "
            words = f"{'dynamic range' if dynamic else kind} with {sparse}{weight} weights"
        quantization = tensor.quantization
        if weight.startswith(("int", "uint")) and quantization is not None:
            if quantization.details is not None:
                words += " in blocks"
            elif quantization.scale is not None and len(quantization.scale):
                words += " per channel" if len(quantization.scale) > 1 else " per tensor"
        return words


def tensor_info(tensor: Tensor, name: str | None = None) -> TensorInfo:
    """A tensor as it is listed at the border of a model, under its own name or that of a signature."""
    q = tensor.quantization
    scale = zero_point = None
    if q is not None and q.scale is not None and len(q.scale) == 1:
        scale = float(q.scale[0])
        zero_point = int(q.zero_point[0]) if q.zero_point is not None and len(q.zero_point) else 0
    own = tensor.name or ""
    return TensorInfo(
        own if name is None else name, own, type_name(tensor.type), tensor_shape(tensor), scale, zero_point
    )


def _signatures(model: Model) -> list[SignatureStats]:
    found = []
    for signature in model.signature_defs:
        index = signature.subgraph_index
        tensors = model.subgraphs[index].tensors if index < len(model.subgraphs) else []
        inputs, outputs = (
            [tensor_info(tensors[m.tensor_index], m.name or "") for m in maps if m.tensor_index < len(tensors)]
            for maps in (signature.inputs, signature.outputs)
        )
        found.append(SignatureStats(signature.signature_key or "", index, inputs, outputs))
    return found


# -- where it comes from -------------------------------------------------------------------------------------------

_SOURCES = (None, "SavedModel", "Keras", "concrete functions", "GraphDef", "session", "JAX", "PyTorch")


def _metadata(model: Model, buffer: int) -> memoryview:
    data = model.buffers[buffer].data if 0 < buffer < len(model.buffers) else None
    return memoryview(b"") if data is None else as_bytes(data)


def _producer(model: Model) -> Producer:
    entries = {m.name: m.buffer for m in model.metadata}
    conversion = bytes(_metadata(model, entries.get("CONVERSION_METADATA", 0))[:4096])
    minimum = (
        bytes(_metadata(model, entries.get("min_runtime_version", 0))[:64]).split(b"\0")[0].decode("utf-8", "replace")
    )
    version, source = _conversion(conversion)
    return Producer(model.description, version, source, minimum or None)


def _conversion(data: bytes) -> tuple[str | None, str | None]:
    """TensorFlow's version and the kind of source model in TFLite's conversion metadata.

    A flatbuffer of its own (`tflite/converter/schema/conversion_metadata.fbs`): the root's field 0 is the environment,
    whose field 0 is the version and field 2 the source.
    """

    def follow(at: int) -> int:
        return at + int(struct.unpack_from("<I", data, at)[0])

    def place(table: int, slot: int) -> int | None:
        vtable = table - struct.unpack_from("<i", data, table)[0]
        if struct.unpack_from("<H", data, vtable)[0] < 6 + 2 * slot:
            return None
        return table + struct.unpack_from("<H", data, vtable + 4 + 2 * slot)[0] or None

    version = source = None
    try:
        root = follow(0)
        at = place(root, 0)
        environment = None if at is None else follow(at)
        if environment is not None and (at := place(environment, 0)) is not None:
            text = follow(at)
            size = struct.unpack_from("<I", data, text)[0]
            version = data[text + 4 : text + 4 + min(size, 64)].decode("utf-8", "replace") or None
        if environment is not None and (at := place(environment, 2)) is not None:
            source = _SOURCES[struct.unpack_from("<i", data, at)[0]]
    except (struct.error, IndexError):
        pass  # it is for information only
    return version, source


def _appended(model: Model) -> dict[str, int]:
    if model.attachment is None:
        return {}
    import io
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(model.attachment.data)) as archive:
            return {info.filename: info.file_size for info in archive.infolist()}
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        # No archive, or a damaged one: its bytes are kept all the same, and are listed as one piece without a name.
        return {"": model.attachment.data.nbytes}
