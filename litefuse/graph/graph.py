"""The use-def index of one subgraph and the edits that keep it true.

A :class:`Graph` works on the schema's own tables. Tensors are named by their index in the subgraph, operators by the
:class:`~litefuse.schema.tables.Operator` object. Edits touch the tables at once except for the operator list, which
:meth:`Graph.commit` writes back; tensors that lost their last use stay until :func:`litefuse.graph.compact.compact`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from litefuse.schema.declare import Table
from litefuse.schema.enums import ActivationFunctionType, BuiltinOperator, TensorType
from litefuse.schema.operators import Op, builtin_code, in_second_union, operator_code, options_class
from litefuse.schema.tables import Buffer, Model, Operator, QuantizationParameters, Tensor
from litefuse.schema.types import NUMPY, nbytes, tensor_type
from litefuse.schema.writer import as_bytes

OperatorKind: TypeAlias = BuiltinOperator
Array: TypeAlias = NDArray[Any]

# Operators that do more than compute their outputs: removing, duplicating or merging them changes behaviour.
SIDE_EFFECTS = frozenset(
    {
        Op.ASSIGN_VARIABLE,
        Op.CALL_ONCE,
        Op.CALL,
        Op.CUSTOM,
        Op.DELEGATE,
        Op.HASHTABLE_IMPORT,
        Op.IF,
        Op.WHILE,
        Op.STABLEHLO_WHILE,
        Op.STABLEHLO_CASE,
        Op.STABLEHLO_CUSTOM_CALL,
        Op.STABLEHLO_COMPOSITE,
    }
)
# Operators whose result is not a function of their inputs alone.
NOT_PURE = SIDE_EFFECTS | {
    Op.READ_VARIABLE,
    Op.VAR_HANDLE,
    Op.HASHTABLE,
    Op.HASHTABLE_FIND,
    Op.HASHTABLE_SIZE,
    Op.RANDOM_STANDARD_NORMAL,
    Op.RANDOM_UNIFORM,
    Op.MULTINOMIAL,
    Op.STABLEHLO_RNG_BIT_GENERATOR,
}


class Location(NamedTuple):
    """Where an operator stands in the input file, for messages."""

    subgraph: int
    operator: int
    kind: str
    tensor: str

    def __str__(self) -> str:
        place = f"{self.kind} #{self.operator} `{self.tensor}`"
        return place if self.subgraph == 0 else f"{place} of subgraph {self.subgraph}"


class Graph:
    """One subgraph of a model, with its use-def index.

    Args:
        model: the model; it is changed by the editing methods.
        index: which of its subgraphs.
        keep: names of tensors that must stay as they are, with the operators that compute them.
    """

    def __init__(self, model: Model, index: int = 0, keep: Container[str] = ()) -> None:
        self.model = model
        self.index = index
        self.subgraph = model.subgraphs[index]
        self.tensors: list[Tensor] = self.subgraph.tensors
        self._next: dict[Operator | None, Operator | None] = {}
        self._previous: dict[Operator | None, Operator | None] = {}
        # Operators next to an edit since the last call of take_touched; a dict for its order.
        self._touched: dict[Operator, None] = {}
        # Where iteration goes on from an operator that was removed.
        self._tombstones: dict[Operator, Operator | None] = {}
        self._origin: dict[Operator, int] = {}
        self._producer: dict[int, Operator] = {}
        self._readers: dict[int, list[Operator]] = {}
        self._names: dict[str, int] | None = None
        self.inputs = frozenset(self.subgraph.inputs)
        self.kept = frozenset(i for i, t in enumerate(self.tensors) if t.name is not None and t.name in keep)
        # A kept tensor is as untouchable as one that leaves the graph.
        self.outputs = frozenset(self.subgraph.outputs) | self.kept
        last: Operator | None = None
        for i, op in enumerate(self.subgraph.operators):
            self._origin[op] = i
            self._link(op, last)
            last = op

    # -- reading -----------------------------------------------------------------------------------------------

    def operators(self) -> Iterator[Operator]:
        """The operators in execution order. The graph may be edited while iterating; removed ones are skipped."""
        op = self._next.get(None)
        while op is not None:
            following = self._next[op]
            yield op
            # If the edit removed ``op`` (and perhaps its neighbours), go on from what was next and still is there.
            op = self._next[op] if op in self._next else self._alive(following)

    def _alive(self, op: Operator | None) -> Operator | None:
        while op is not None and op not in self._next:
            op = self._tombstones[op]
        return op

    def __contains__(self, op: Operator) -> bool:
        return op in self._next

    def kind(self, op: Operator) -> OperatorKind:
        """The builtin operator; operators newer than the tables appear as CUSTOM, which no rule touches."""
        code = builtin_code(self.model.operator_codes[op.opcode_index])
        return code if isinstance(code, BuiltinOperator) else Op.CUSTOM

    def version(self, op: Operator) -> int:
        """The operator's version, 1 at least."""
        return self.model.operator_codes[op.opcode_index].version

    def activation(self, op: Operator) -> ActivationFunctionType:
        """The fused activation; NONE for operators without one."""
        value = getattr(op.builtin_options, "fused_activation_function", ActivationFunctionType.NONE)
        return ActivationFunctionType(value)

    def producer(self, tensor: int) -> Operator | None:
        """The operator that computes a tensor; None for inputs, constants, variables and -1."""
        return self._producer.get(tensor)

    def readers(self, tensor: int) -> list[Operator]:
        """The operators that read a tensor, in no particular order, each once per use."""
        return self._readers.get(tensor, [])

    def only_reader(self, tensor: int) -> Operator | None:
        """The single operator that reads a tensor (perhaps twice); None when others do or it is a graph output."""
        readers = self.readers(tensor)
        if not readers or tensor in self.outputs or any(r is not readers[0] for r in readers):
            return None
        return readers[0]

    def why_shared(self, tensor: int, *insiders: Operator) -> str | None:
        """Why a tensor is needed by more than ``insiders``, in words for a refusal; None when nothing else needs it."""
        others = [r for r in self.readers(tensor) if not any(r is i for i in insiders)]
        maker = self.producer(tensor)
        what = f"output of {self.where(maker)}" if maker else f"tensor `{self.name(tensor)}`"
        if tensor in self.kept:
            return f"{what} is kept as it is by request"
        if tensor in self.outputs:
            return f"{what} is also an output of the model"
        return f"{what} is also read by {self.where(others[0])}" if others else None

    def tensor(self, tensor: int) -> Tensor:
        """The tensor's table."""
        return self.tensors[tensor]

    def name(self, tensor: int) -> str:
        """The tensor's name, or its number when it has none."""
        return (self.tensors[tensor].name if tensor >= 0 else "-") or f"#{tensor}"

    def type(self, tensor: int) -> TensorType:
        """The element type."""
        return self.tensors[tensor].type

    def shape(self, tensor: int) -> tuple[int, ...] | None:
        """The shape with -1 for dimensions that are only known at run time; None when even the rank is unknown."""
        t = self.tensors[tensor]
        if t.shape_signature and len(t.shape_signature) == len(t.shape or ()):
            return tuple(t.shape_signature)
        if not t.shape:
            # An empty shape means a scalar, or nothing at all: only has_rank or data can tell (see Tensor.has_rank).
            # Constants may leave the shape out, and are scalars then.
            return () if self._bytes(tensor) is not None or (t.shape is not None and t.has_rank) else None
        return tuple(t.shape)

    def static_shape(self, tensor: int) -> tuple[int, ...] | None:
        """The shape when every dimension is known before run time, else None."""
        shape = self.shape(tensor)
        return None if shape is None or any(d < 0 for d in shape) else shape

    def quantization(self, tensor: int) -> QuantizationParameters | None:
        """The quantisation when the tensor has a scale, else None."""
        q = self.tensors[tensor].quantization
        if q is None or q.details is not None or (q.scale is not None and len(q.scale)):
            return q
        return None

    def is_float(self, tensor: int) -> bool:
        """Whether a tensor holds float32."""
        return tensor >= 0 and self.tensors[tensor].type == TensorType.FLOAT32

    def is_constant(self, tensor: int) -> bool:
        """Whether the file holds the tensor's value (dense or sparse)."""
        return self._bytes(tensor) is not None

    def constant(self, tensor: int) -> Array | None:
        """The value of a dense constant in its own shape, a view of the file; None when there is none.

        Packed (INT4, INT2), sparse, STRING and external constants give None.
        """
        data = self._bytes(tensor)
        if data is None or tensor < 0:
            return None
        t = self.tensors[tensor]
        dtype = NUMPY.get(t.type)
        if dtype is None or t.sparsity is not None:
            return None
        shape = tuple(t.shape or ())
        if data.nbytes != nbytes(t.type, int(np.prod(shape, dtype=np.int64))):
            return None
        return np.frombuffer(data, dtype).reshape(shape)

    def splat(self, tensor: int) -> float | None:
        """The number that all elements of a float or integer constant have in common, or None."""
        value = self.constant(tensor)
        if value is None or value.size == 0 or value.dtype.kind not in "fiu":
            return None
        first = value.reshape(-1)[0]
        return float(first) if bool(np.all(value == first)) else None

    def _bytes(self, tensor: int) -> memoryview | None:
        if tensor < 0 or tensor in self._producer or tensor in self.inputs:
            return None
        t = self.tensors[tensor]
        if t.is_variable or t.external_buffer or not 0 < t.buffer < len(self.model.buffers):
            return None
        data = self.model.buffers[t.buffer].data
        return as_bytes(data) if data is not None and len(data) else None

    def is_kept(self, op: Operator) -> bool:
        """Whether an operator was named as one that must stay as it is."""
        return not self.kept.isdisjoint(op.outputs)

    def where(self, op: Operator) -> Location:
        """Where an operator stood in the input file; for operators made by rewrites, where what they replace stood."""
        kind = self.kind(op)
        code = self.model.operator_codes[op.opcode_index]
        name = code.custom_code or kind.name if kind is Op.CUSTOM else kind.name
        return Location(self.index, self._origin.get(op, -1), name, self.name(op.outputs[0]) if op.outputs else "-")

    # -- editing -----------------------------------------------------------------------------------------------

    def add_tensor(
        self,
        name: str,
        shape: Sequence[int],
        type: TensorType,
        *,
        quantization: QuantizationParameters | None = None,
        like: int | None = None,
    ) -> int:
        """A new tensor for a computed value; dimensions of -1 are recorded as dynamic. Returns its index.

        With ``like``, shape and dynamic dimensions are those of that tensor.
        """
        tensor = Tensor(name=self.unique_name(name), type=type, quantization=quantization, has_rank=True)
        if like is not None:
            source = self.tensors[like]
            tensor.shape = None if source.shape is None else list(source.shape)
            tensor.shape_signature = None if source.shape_signature is None else list(source.shape_signature)
            tensor.has_rank = source.has_rank
        else:
            tensor.shape = [1 if d < 0 else int(d) for d in shape]
            tensor.shape_signature = [int(d) for d in shape] if any(d < 0 for d in shape) else None
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def add_constant(
        self,
        name: str,
        value: Array,
        *,
        type: TensorType | None = None,
        quantization: QuantizationParameters | None = None,
    ) -> int:
        """A new constant tensor with its own buffer; returns its index. ``type`` defaults to the array's dtype."""
        value = np.asarray(value)
        self.model.buffers.append(Buffer(data=as_bytes(value)))
        self.tensors.append(
            Tensor(
                name=self.unique_name(name),
                shape=list(value.shape),
                type=tensor_type(value.dtype) if type is None else type,
                buffer=len(self.model.buffers) - 1,
                quantization=quantization,
                has_rank=True,
            )
        )
        return len(self.tensors) - 1

    def unique_name(self, name: str) -> str:
        """``name``, with a number behind it when a tensor of this subgraph already has that name."""
        if self._names is None:
            self._names = {t.name: 0 for t in self.tensors if t.name is not None}
        if name not in self._names:
            self._names[name] = 0
            return name
        while True:
            self._names[name] += 1
            candidate = f"{name}_{self._names[name]}"
            if candidate not in self._names:
                self._names[candidate] = 0
                return candidate

    def add_operator(
        self,
        kind: OperatorKind,
        inputs: Sequence[int],
        outputs: Sequence[int],
        *,
        before: Operator,
        version: int = 1,
        options: Table | None = None,
        **option_fields: Any,
    ) -> Operator:
        """Inserts an operator before another one and returns it.

        Options are given as a table, or as fields of the kind's own options table. For messages, the new operator
        stands where ``before`` stood.
        """
        op = Operator(inputs=list(inputs), outputs=list(outputs))
        self._set_kind(op, kind, version)
        cls = options_class(kind)
        if options is None and cls is not None:
            options = cls(**option_fields)
        if options is not None:
            if in_second_union(options):
                op.builtin_options_2 = options
            else:
                op.builtin_options = options
        self._origin[op] = self._origin.get(before, -1)
        self._link(op, self._previous[before])
        self._touched[op] = None
        return op

    def _set_kind(self, op: Operator, kind: OperatorKind, version: int) -> None:
        codes = self.model.operator_codes
        for i, code in enumerate(codes):
            if builtin_code(code) == kind and code.version == version and code.custom_code is None:
                op.opcode_index = i
                return
        codes.append(operator_code(kind, version))
        op.opcode_index = len(codes) - 1

    def set_version(self, op: Operator, version: int) -> None:
        """Raises the operator's version to ``version`` at least."""
        if self.version(op) < version:
            self._set_kind(op, self.kind(op), version)

    def set_input(self, op: Operator, slot: int, tensor: int) -> None:
        """Makes input ``slot`` of an operator read another tensor; missing optional inputs before it become -1."""
        inputs = op.inputs
        while len(inputs) <= slot:
            inputs.append(-1)
        old = inputs[slot]
        inputs[slot] = tensor
        self._touched[op] = None
        if op in self:
            self._drop_reader(old, op)
            if tensor >= 0:
                self._readers.setdefault(tensor, []).append(op)

    def set_output(self, op: Operator, slot: int, tensor: int) -> None:
        """Makes an operator write another tensor, which must have no producer."""
        if tensor in self._producer:
            raise ValueError(f"tensor `{self.name(tensor)}` already has a producer")
        self._producer.pop(op.outputs[slot], None)
        op.outputs[slot] = tensor
        self._producer[tensor] = op
        self._touched[op] = None

    def set_activation(self, op: Operator, activation: ActivationFunctionType) -> None:
        """Sets the fused activation; the operator must have the field."""
        options = op.builtin_options
        cls = options_class(self.kind(op))
        if options is None and cls is not None:
            options = op.builtin_options = cls()
        if not hasattr(options, "fused_activation_function"):
            raise ValueError(f"{self.kind(op).name} has no fused activation")
        self._touched[op] = None
        op.builtin_options = options.replace(fused_activation_function=activation)  # type: ignore[union-attr]

    def replace_uses(self, old: int, new: int) -> None:
        """Makes every operator that reads ``old`` read ``new``.

        ``old`` must not be a graph output: those keep their tensor, so that names, signatures and types stay.
        """
        if old in self.outputs:
            raise ValueError(f"tensor `{self.name(old)}` is an output of the model")
        for op in list(dict.fromkeys(self.readers(old))):
            for slot, tensor in enumerate(op.inputs):
                if tensor == old:
                    self.set_input(op, slot, new)

    def remove(self, op: Operator) -> None:
        """Takes an operator out. Its output tensors stay and have no producer any more."""
        before, after = self._previous.pop(op), self._next.pop(op)
        self._next[before] = after
        self._previous[after] = before
        self._tombstones[op] = after
        for tensor in op.inputs:
            self._drop_reader(tensor, op)
            maker = self._producer.get(tensor)
            if maker is not None:
                self._touched[maker] = None
        for tensor in op.outputs:
            if self._producer.get(tensor) is op:
                del self._producer[tensor]

    def replace(
        self,
        op: Operator,
        kind: OperatorKind,
        inputs: Sequence[int],
        *,
        version: int = 1,
        options: Table | None = None,
        **option_fields: Any,
    ) -> Operator:
        """Puts a new operator in the place of ``op``, writing the same output tensors.

        Operators that fed only ``op`` and are of no more use are removed too.
        """
        new = self.add_operator(kind, inputs, [], before=op, version=version, options=options, **option_fields)
        outputs = list(op.outputs)
        self.remove(op)
        new.outputs = outputs
        for tensor in outputs:
            self._producer[tensor] = new
        self._touched[new] = None
        self.prune(op.inputs)
        return new

    def bypass(self, op: Operator, tensor: int) -> bool:
        """Removes ``op`` so that everything which read its (first) output gets ``tensor`` instead.

        Where the output is an output of the model, whatever computes ``tensor`` writes the output tensor instead,
        so that the model's interface stays. Returns False, with nothing changed, when that cannot be: when
        ``tensor`` is an input, a constant or itself an output.
        """
        out = op.outputs[0]
        maker = self.producer(tensor)
        if out in self.outputs:
            if maker is None or tensor in self.outputs or maker is op:
                return False
            self.remove(op)
            self.set_output(maker, maker.outputs.index(tensor), out)
            self.replace_uses(tensor, out)
        else:
            self.replace_uses(out, tensor)
            self.remove(op)
        self.prune(t for t in op.inputs if t != tensor)
        return True

    def take_touched(self) -> list[Operator]:
        """The operators that edits since the last call changed or deprived of a reader, without removed ones."""
        touched = [op for op in self._touched if op in self._next]
        self._touched.clear()
        return touched

    def prune(self, tensors: Iterable[int]) -> None:
        """Removes the pure operators that compute ``tensors`` when nothing reads any of their outputs any more."""
        todo = list(tensors)
        while todo:
            op = self._producer.get(todo.pop())
            if op is None or not self.is_dead(op):
                continue
            self.remove(op)
            todo.extend(op.inputs)

    def is_dead(self, op: Operator) -> bool:
        """Whether nothing needs an operator: no output is read or leaves the graph, and it has no side effect."""
        return (
            self.kind(op) not in SIDE_EFFECTS
            and not self.has_state(op)
            and not any(t in self.outputs or self._readers.get(t) for t in op.outputs)
        )

    def has_state(self, op: Operator) -> bool:
        """Whether an operator updates variable tensors among its inputs, as LSTM, RNN and SVDF do."""
        return any(t >= 0 and self.tensors[t].is_variable for t in op.inputs)

    def _link(self, op: Operator, after: Operator | None) -> None:
        following = self._next.get(after)
        self._next[after], self._next[op] = op, following
        self._previous[op], self._previous[following] = after, op
        for tensor in op.inputs:
            if tensor >= 0:
                self._readers.setdefault(tensor, []).append(op)
        for tensor in op.outputs:
            if tensor >= 0:
                self._producer[tensor] = op

    def _drop_reader(self, tensor: int, op: Operator) -> None:
        readers = self._readers.get(tensor)
        if readers is not None:
            for i, reader in enumerate(readers):
                if reader is op:
                    del readers[i]
                    return

    def commit(self) -> None:
        """Writes the operator list back into the subgraph."""
        self.subgraph.operators = list(self.operators())
