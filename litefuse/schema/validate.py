"""Says what is wrong with a model.

An error means that a TFLite runtime cannot or must not run the model; a warning, that runtimes take it although it
looks like a mistake. What the interpreter demands was read from `tflite/core/interpreter_builder.cc`, `subgraph.cc` and
`tools/verifier.cc`; what the kernels demand is in :mod:`litefuse.schema.demands`.

Any model that can be read can be validated: the time is linear in its size, and nothing in it raises an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from litefuse.schema import tables as t
from litefuse.schema.declare import Absent, Table
from litefuse.schema.demands import Demands, least_counts, may_be_left_out
from litefuse.schema.enums import TensorType
from litefuse.schema.facts import TOO_MANY, Numbers, elements
from litefuse.schema.model import Model
from litefuse.schema.operators import Op, builtin_code, options_class
from litefuse.schema.sparsity import stored_elements
from litefuse.schema.types import RANGES, bits
from litefuse.schema.writer import as_bytes

# Beyond this many of one severity, further ones are only counted.
MOST_PROBLEMS = 1000
_LONGEST_NAME = 80
_ABSURD = 1 << 40
# XNNPACK takes normal numbers only.
_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)


class Problem(NamedTuple):
    """Something wrong with a model.

    Attributes:
        severity: "error" (a runtime cannot or must not run the model) or "warning" (runtimes take it).
        place: where, naming subgraph, operator and tensor as far as they apply.
        message: what, without the place.
    """

    severity: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.place}: {self.message}"


def validate(model: Model) -> list[Problem]:
    """What is wrong with a model: at most some thousand problems, in the order of the model."""
    with np.errstate(all="ignore"):
        return _Validator(model).run()


# The subgraphs that an operator's options refer to.
_SUBGRAPHS: dict[type[Any], Callable[[Any], Sequence[int]]] = {
    t.IfOptions: lambda o: [o.then_subgraph_index, o.else_subgraph_index],
    t.WhileOptions: lambda o: [o.cond_subgraph_index, o.body_subgraph_index],
    t.CallOptions: lambda o: [o.subgraph],
    t.CallOnceOptions: lambda o: [o.init_subgraph_index],
    t.StableHLOCompositeOptions: lambda o: [o.decomposition_subgraph_index],
    t.StablehloWhileOptions: lambda o: [o.cond_subgraph_index, o.body_subgraph_index],
    t.StablehloCaseOptions: lambda o: o.branch_subgraph_indices or [],
    t.StablehloReduceOptions: lambda o: [o.body_subgraph_index],
    t.StablehloReduceWindowOptions: lambda o: [o.body_subgraph_index],
    t.StablehloSortOptions: lambda o: [o.comparator_subgraph_index],
    t.StablehloScatterOptions: lambda o: [o.update_computation_subgraph_index],
    t.StablehloCustomCallOptions: lambda o: o.called_computations or [],
}


class _Validator:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.problems: list[Problem] = []
        self.counts = {"error": 0, "warning": 0}
        self.kinds = [builtin_code(code) for code in model.operator_codes]
        self.data = [None if b.data is None else as_bytes(b.data) for b in model.buffers]
        self.calls: list[list[tuple[int, int]]] = [[] for _ in model.subgraphs]  # callee, operator
        self.external: set[int] = set()
        self.numbers = Numbers()
        self._strings: dict[int, str | None] = {}

    def run(self) -> list[Problem]:
        self.root()
        for s, subgraph in enumerate(self.model.subgraphs):
            _SubgraphValidator(self, s, subgraph).run()
        self.recursion()
        self.signatures()
        self.memory_plan()
        for severity, count in self.counts.items():
            if count > MOST_PROBLEMS:
                self.problems.append(
                    Problem(severity, "model", f"{count - MOST_PROBLEMS} more problems are not listed")
                )
        return self.problems

    def add(self, severity: str, place: str, message: str) -> None:
        self.counts[severity] += 1
        if self.counts[severity] <= MOST_PROBLEMS:
            self.problems.append(Problem(severity, place, message))

    # -- the model -------------------------------------------------------------------------------------------------

    def root(self) -> None:
        model = self.model
        if model.version != 3:
            self.add("error", "model", f"its schema version is {model.version}; runtimes take 3 only")
        if not model.subgraphs:
            self.add("error", "model", "it has no subgraph")
        if isinstance(model.buffers, Absent) and not model.buffers:
            self.add("error", "model", "it has no buffers")
        if self.data and self.data[0]:
            self.add("warning", "buffer 0", "it is not empty, though it stands for 'no buffer'")
        for i, code in enumerate(model.operator_codes):
            kind = self.kinds[i]
            place = f"operator code {i} ({_kind_name(kind, code)})"
            if code.version < 1:
                self.add("error", place, f"its version is {code.version}; versions begin at 1")
            if not isinstance(kind, Op):
                self.add("warning", place, "the operator is newer than this version of litefuse knows")
            elif kind == Op.CUSTOM and not code.custom_code:
                self.add("error", place, "a custom operator has no name")
        for i, entry in enumerate(model.metadata):
            place = f"metadata {i} {_quoted(entry.name)}"
            if not 0 <= entry.buffer < len(model.buffers):
                self.add("error", place, f"buffer {entry.buffer} does not exist")
            if entry.name is None:
                self.add("warning", place, "it has no name")
        if any(not 0 <= i < len(model.buffers) for i in model.metadata_buffer or ()):
            self.add("warning", "metadata_buffer", "it names a buffer that does not exist")
        groups = len(model.external_buffer_groups or ())
        for i, buffer in enumerate(model.external_buffers or ()):
            place = f"external buffer {i}"
            if buffer.id in self.external:
                self.add("error", place, f"another one has the same id, {buffer.id}")
            self.external.add(buffer.id)
            if not 0 <= buffer.group < groups:
                self.add("error", place, f"group {buffer.group} does not exist")

    def recursion(self) -> None:
        """Subgraphs that call themselves, directly or through others."""
        state = [0] * len(self.calls)  # 0 not seen, 1 on the path, 2 done
        for start in range(len(self.calls)):
            if state[start]:
                continue
            state[start] = 1
            path = [(start, iter(self.calls[start]))]
            while path:
                caller, callees = path[-1]
                callee, operator = next(callees, (-1, -1))
                if callee < 0:
                    state[caller] = 2
                    path.pop()
                elif state[callee] == 1:
                    place = f"subgraph {caller}, operator {operator}"
                    self.add("error", place, f"subgraph {callee} ends up calling itself")
                elif state[callee] == 0:
                    state[callee] = 1
                    path.append((callee, iter(self.calls[callee])))

    def signatures(self) -> None:
        keys: set[str | None] = set()
        for i, signature in enumerate(self.model.signature_defs):
            place = f"signature {i} {_quoted(signature.signature_key)}"
            if signature.signature_key is None:
                self.add("error", place, "it has no key")
            elif signature.signature_key in keys:
                self.add("error", place, "another signature has the same key")
            keys.add(signature.signature_key)
            if not 0 <= signature.subgraph_index < len(self.model.subgraphs):
                self.add("error", place, f"subgraph {signature.subgraph_index} does not exist")
                continue
            subgraph = self.model.subgraphs[signature.subgraph_index]
            self._signature_side(place, "input", signature.inputs, subgraph.inputs)
            self._signature_side(place, "output", signature.outputs, subgraph.outputs)

    def _signature_side(self, place: str, side: str, entries: list[t.TensorMap], tensors: list[int]) -> None:
        names: set[str | None] = set()
        known = set(tensors)
        for entry in entries:
            if entry.name is None:
                self.add("warning", place, f"an {side} has no name")
            elif entry.name in names:
                self.add("error", place, f"two {side}s are called {_quoted(entry.name)}")
            names.add(entry.name)
            if entry.tensor_index not in known:
                what = f"{side} {_quoted(entry.name)}, tensor {entry.tensor_index},"
                self.add("error", place, f"{what} is not an {side} of the subgraph")
        if not known <= {e.tensor_index for e in entries}:
            self.add("warning", place, f"the subgraph has {side}s that the signature does not name")

    def memory_plan(self) -> None:
        """TFLM's plan: version, subgraphs, n, then an offset for each of the n tensors of all subgraphs, or -1."""
        for i, entry in enumerate(self.model.metadata):
            if entry.name != "OfflineMemoryAllocation" or not 0 <= entry.buffer < len(self.data):
                continue
            place = f"metadata {i} {_quoted(entry.name)}"
            data = self.data[entry.buffer] or memoryview(b"")
            tensors = sum(len(s.tensors) for s in self.model.subgraphs)
            if len(data) < 12 or len(data) % 4:
                self.add("error", place, f"its {len(data)} bytes are not a memory plan")
                continue
            numbers = np.frombuffer(data, "<i4")
            if numbers[2] != tensors or len(numbers) != 3 + tensors:
                message = f"it plans {numbers[2]} tensors and holds {len(numbers) - 3} offsets; the model has {tensors}"
                self.add("error", place, message)
            elif tensors and numbers[3:].min() < -1:
                self.add("error", place, "it holds a negative offset other than -1")

    # -- numbers ---------------------------------------------------------------------------------------------------

    def string_fault(self, buffer: int) -> str | None:
        """What is wrong with the buffer of a string tensor: a count, count + 1 offsets, then the characters."""
        if buffer not in self._strings:
            data = self.data[buffer] or memoryview(b"")
            self._strings[buffer] = _string_fault(data) if self.numbers.spend(len(data) // 4) else None
        return self._strings[buffer]


class _SubgraphValidator:
    def __init__(self, whole: _Validator, index: int, subgraph: t.SubGraph) -> None:
        self.whole = whole
        self.model = whole.model
        self.index = index
        self.subgraph = subgraph
        self.tensors = subgraph.tensors
        self.count = len(self.tensors)
        self.place = f"subgraph {index}" + (f" {_quoted(subgraph.name)}" if subgraph.name else "")
        self.operator: tuple[int, str] | None = None

    def run(self) -> None:
        self.constant = [self.tensor(i, tensor) for i, tensor in enumerate(self.tensors)]
        for side, tensors in (("input", self.subgraph.inputs), ("output", self.subgraph.outputs)):
            for i in tensors:
                if not 0 <= i < self.count:
                    self.add("error", f"its {side} {i} is not a tensor")
        inputs = [i for i in self.subgraph.inputs if 0 <= i < self.count]
        if len(set(inputs)) < len(inputs):
            self.add("warning", "two of its inputs are the same tensor")
        for i in inputs:
            if self.constant[i]:
                self.add("warning", "an input holds constant data", i)
        self.ready = [c or tensor.is_variable for c, tensor in zip(self.constant, self.tensors, strict=True)]
        for i in inputs:
            self.ready[i] = True
        sound = [self.indices(i, op) for i, op in enumerate(self.subgraph.operators)]
        self.operator = None
        self.order()
        demands = Demands(self.tensors, self.whole.data, self.whole.numbers, self.add)
        for i, op in enumerate(self.subgraph.operators):
            if sound[i]:
                kind = self.whole.kinds[op.opcode_index]
                self.operator = (i, _kind_name(kind, self.model.operator_codes[op.opcode_index]))
                self.options(kind, op)
                if isinstance(kind, Op):
                    demands.check(kind, op)
        self.operator = None

    def add(self, severity: str, message: str, tensor: int | None = None) -> None:
        place = self.place
        if self.operator is not None:
            place += f", operator {self.operator[0]} {self.operator[1]}".rstrip()
        if tensor is not None and 0 <= tensor < self.count:
            place += f", tensor {tensor} {_quoted(self.tensors[tensor].name)}"
        self.whole.add(severity, place, message)

    # -- tensors ---------------------------------------------------------------------------------------------------

    def tensor(self, i: int, tensor: t.Tensor) -> bool:
        """Checks a tensor; returns whether it is a constant."""
        shape = tensor.shape or []
        count = elements(shape)
        if count is None:
            self.add("error", f"its shape {_list(shape)} has a negative dimension", i)
        elif count * (bits(tensor.type) or 8) // 8 >= TOO_MANY:
            self.add("error", f"its shape {_list(shape)} is beyond what 64 bits can count", i)
        elif count >= _ABSURD:
            self.add("warning", f"its shape {_list(shape)} is absurdly large", i)
        signature = tensor.shape_signature
        if signature:
            if len(signature) != len(shape):
                self.add("warning", f"shape_signature {_list(signature)} and shape {_list(shape)} differ in rank", i)
            elif any(a not in (b, -1) for a, b in zip(signature, shape, strict=True)):
                self.add("warning", f"shape_signature {_list(signature)} does not allow the shape {_list(shape)}", i)
        if not isinstance(tensor.type, TensorType):
            self.add("warning", f"its type, {tensor.type}, is newer than this version of litefuse knows", i)
        if tensor.quantization is not None:
            self.quantization(i, tensor, tensor.quantization, shape)
        if tensor.is_variable and tensor.type in (TensorType.STRING, TensorType.RESOURCE, TensorType.VARIANT):
            self.add("error", f"a variable cannot be of type {tensor.type.name}", i)
        data = None
        if not 0 <= tensor.buffer < len(self.model.buffers):
            if tensor.buffer or self.model.buffers:
                self.add("error", f"buffer {tensor.buffer} does not exist", i)
        elif tensor.buffer:  # buffer 0 stands for none, whatever it holds
            data = self.whole.data[tensor.buffer]
        if tensor.external_buffer:
            if tensor.external_buffer not in self.whole.external:
                self.add("error", f"external buffer {tensor.external_buffer} does not exist", i)
            if data is not None:
                self.add("error", "it has both a buffer and an external buffer", i)
            return True
        if data is None:
            return False
        if tensor.is_variable:
            self.add("error", "a variable cannot have a buffer with data", i)
        self.buffer(i, tensor, shape, count, data)
        return True

    def buffer(self, i: int, tensor: t.Tensor, shape: list[int], count: int | None, data: memoryview) -> None:
        """Checks the bytes of a constant of ``count`` elements."""
        if tensor.type == TensorType.STRING:
            fault = self.whole.string_fault(tensor.buffer)
            if fault:
                self.add("error", fault, i)
            elif count is not None and int.from_bytes(data[:4], "little") != count:
                self.add("error", f"its buffer holds another number of strings than its shape {_list(shape)}", i)
            return
        stored, what = count, f"shape {_list(shape)}"
        if tensor.sparsity is not None:
            fault, stored = stored_elements(tensor.sparsity, shape, self.whole.numbers)
            if fault:
                self.add("error", f"its sparsity is broken: {fault}", i)
            what = f"{stored} stored elements"
        if stored is None:
            return
        width = bits(tensor.type)
        if width is None:
            return
        required = (stored * width + 7) // 8
        if len(data) != required:
            name = tensor.type.name
            message = f"its buffer has {len(data)} bytes, but {what} of {name} take {required}"
            self.add("error" if len(data) < required else "warning", message, i)

    def quantization(self, i: int, tensor: t.Tensor, q: t.QuantizationParameters, shape: list[int]) -> None:
        details = q.details
        if isinstance(details, (t.BlockwiseQuantization, t.MultiAxisQuantization)):
            self.blocks(i, q, details, shape)
            return
        scale, zero = q.scale, q.zero_point
        if scale is None or not len(scale):
            return
        if zero is None:
            self.add("error", "it has scales but no zero points", i)
            return
        if len(scale) != len(zero):
            self.add("error", f"it has {len(scale)} scales but {len(zero)} zero points", i)
        axis = q.quantized_dimension
        if axis < 0 or (shape and axis >= len(shape)):
            self.add("error", f"quantized_dimension {axis} is out of range for rank {len(shape)}", i)
        elif len(scale) != 1 and shape and len(scale) != shape[axis]:
            self.add("error", f"it has {len(scale)} scales, but dimension {axis} has size {shape[axis]}", i)
        limits = RANGES.get(tensor.type)
        if limits is None:
            return  # left-overs of a conversion, which nobody reads
        span = self.whole.numbers.range(scale)
        if span is not None and not (span.finite and span.low > 0):
            worst = span.high if span.low > 0 else span.low
            self.add("error", f"a scale is {worst:g}; scales are positive and finite", i)
        elif span is not None and span.low < _SMALLEST_SCALE:
            self.add("warning", f"a scale, {span.low:g}, is too small for some runtimes", i)
        span = self.whole.numbers.range(zero)
        if span is not None and not limits[0] <= span.low <= span.high <= limits[1]:
            worst = span.low if span.low < limits[0] else span.high
            self.add("error", f"zero point {worst:g} is outside the range of {tensor.type.name}", i)

    def blocks(self, i: int, q: t.QuantizationParameters, details: Any, shape: list[int]) -> None:
        """Checks scales that are tensors of their own."""
        many = isinstance(details, t.MultiAxisQuantization)
        axes = (details.quantized_dimensions or []) if many else [q.quantized_dimension]
        for what, tensor, optional in (("scales", details.scales, False), ("zero points", details.zero_points, True)):
            if not 0 <= tensor < self.count and not (optional and tensor == -1):
                self.add("error", f"its {what} are in tensor {tensor}, which does not exist", i)
        if not axes or any(a < 0 or (shape and a >= len(shape)) for a in axes):
            self.add("error", f"its quantized dimensions {_list(axes)} do not fit rank {len(shape)}", i)
        if details.block_size < 0 or (not many and details.block_size == 0):
            self.add("error", f"its block size is {details.block_size}", i)

    # -- operators -------------------------------------------------------------------------------------------------

    def indices(self, i: int, op: t.Operator) -> bool:
        """Checks what an operator refers to; returns whether the other checks can be made."""
        self.operator = (i, "")
        if not 0 <= op.opcode_index < len(self.whole.kinds):
            self.add("error", f"operator code {op.opcode_index} does not exist")
            return False
        kind = self.whole.kinds[op.opcode_index]
        self.operator = (i, _kind_name(kind, self.model.operator_codes[op.opcode_index]))
        sound = True
        for what, tensors in (("input", op.inputs), ("output", op.outputs), ("intermediate", op.intermediates or ())):
            for j, tensor in enumerate(tensors):
                if not 0 <= tensor < self.count and not (tensor == -1 and what == "input"):
                    self.add("error", f"{what} {j} is tensor {tensor}, which does not exist")
                    sound = False
        for j, tensor in enumerate(op.inputs):
            if tensor == -1 and isinstance(kind, Op) and not may_be_left_out(kind, j):
                self.add("error", f"input {j} is left out, but it is not optional")
                sound = False
        if isinstance(kind, Op):
            inputs, outputs = least_counts(kind)
            if len(op.inputs) < inputs or len(op.outputs) < outputs:
                has = f"it has {len(op.inputs)} inputs and {len(op.outputs)} outputs"
                self.add("error", f"{has}; it needs {inputs} and {outputs} at least")
                sound = False
        return sound

    def order(self) -> None:
        """Checks that each tensor is computed once, before its use."""
        producer: dict[int, int] = {}
        operators = self.subgraph.operators
        for i, op in enumerate(operators):
            for tensor in op.outputs:
                if not 0 <= tensor < self.count:
                    continue
                if tensor in producer:
                    self._at(i, op, f"operator {producer[tensor]} computes the same tensor", tensor)
                elif self.constant[tensor]:
                    self._at(i, op, "it writes to a constant", tensor)
                elif self.ready[tensor] and not self.tensors[tensor].is_variable:
                    self._at(i, op, "it writes to an input of the subgraph", tensor)
                producer.setdefault(tensor, i)
        early = False
        for i, op in enumerate(operators):
            for tensor in op.inputs:
                if not 0 <= tensor < self.count or self.ready[tensor]:
                    continue
                at = producer.get(tensor)
                if at is None:
                    if not self._empty(tensor):
                        self._at(i, op, "nothing computes its input", tensor)
                elif at >= i:
                    early = True
                    self._at(
                        i,
                        op,
                        f"its input is computed only by operator {at}" if at > i else "it reads its own output",
                        tensor,
                    )
        for tensor in self.subgraph.outputs:
            if 0 <= tensor < self.count and not (self.ready[tensor] or tensor in producer or self._empty(tensor)):
                self.add("error", "nothing computes this output of the subgraph", tensor)
        if early and self._cyclic(producer):
            self.add("error", "operators form a cycle: no order can run them")

    def _empty(self, tensor: int) -> bool:
        return 0 in (self.tensors[tensor].shape or ())

    def _at(self, i: int, op: t.Operator, message: str, tensor: int) -> None:
        kinds = self.whole.kinds
        name = "?"
        if 0 <= op.opcode_index < len(kinds):
            name = _kind_name(kinds[op.opcode_index], self.model.operator_codes[op.opcode_index])
        self.operator = (i, name)
        self.add("error", message, tensor)
        self.operator = None

    def _cyclic(self, producer: dict[int, int]) -> bool:
        operators = self.subgraph.operators
        waiting = [0] * len(operators)
        readers: list[list[int]] = [[] for _ in operators]
        for i, op in enumerate(operators):
            for tensor in op.inputs:
                at = producer.get(tensor)
                if at is not None and not self.ready[tensor]:
                    waiting[i] += 1
                    readers[at].append(i)
        free = [i for i, n in enumerate(waiting) if not n]
        done = 0
        while free:
            done += 1
            for reader in readers[free.pop()]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    free.append(reader)
        return done < len(operators)

    def options(self, kind: int, op: t.Operator) -> None:
        """Checks the options of an operator, and the subgraphs that they refer to."""
        given = [o for o in (op.builtin_options, op.builtin_options_2) if isinstance(o, Table)]
        if isinstance(kind, Op):
            expected = options_class(kind)
            for options in given:
                if kind != Op.CUSTOM and type(options) is not expected:
                    self.add("warning", f"its options are {type(options).__name__}, which belong to another operator")
            if kind != Op.CUSTOM and op.custom_options is not None:
                self.add("warning", "it is builtin but has custom options")
        for options in given:
            find = _SUBGRAPHS.get(type(options))
            if find is None:
                continue
            callees = find(options)
            missing = [c for c in callees if not 0 <= c < len(self.model.subgraphs)]
            if missing:
                self.add("error", f"subgraph {missing[0]} does not exist")
                continue
            i = self.operator[0] if self.operator else 0
            self.whole.calls[self.index].extend((c, i) for c in callees)
            self.arguments(op, options, callees)

    def arguments(self, op: t.Operator, options: Table, callees: Sequence[int]) -> None:
        """Checks that subgraphs take and return what the operator passes and expects."""
        given, wanted = len(op.inputs), len(op.outputs)
        expected: list[tuple[int, int]]
        if isinstance(options, (t.IfOptions, t.StablehloCaseOptions)):
            expected = [(given - 1, wanted)] * len(callees)
        elif isinstance(options, (t.WhileOptions, t.StablehloWhileOptions)):
            expected = [(given, 1), (given, given)]
            if wanted != given:
                self.add("error", f"it has {given} inputs but {wanted} outputs; a loop has as many of both")
        elif isinstance(options, t.CallOnceOptions):
            expected = [(0, 0)]
        elif isinstance(options, t.StableHLOCompositeOptions):
            expected = [(given, wanted)]
        else:
            return
        for callee, (inputs, outputs) in zip(callees, expected, strict=True):
            subgraph = self.model.subgraphs[callee]
            has = (len(subgraph.inputs), len(subgraph.outputs))
            if has != (inputs, outputs):
                message = (
                    f"subgraph {callee} has {has[0]} inputs and {has[1]} outputs; {inputs} and {outputs} are wanted"
                )
                self.add("error", message)


def _kind_name(kind: int, code: t.OperatorCode) -> str:
    if kind == Op.CUSTOM and code.custom_code:
        return f"CUSTOM {_quoted(code.custom_code)}"
    return kind.name if isinstance(kind, Op) else f"operator number {kind}"


def _quoted(name: str | None) -> str:
    if name is None:
        return "without a name"
    printable = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."
    return "'" + printable.encode("utf-8", "backslashreplace").decode() + "'"


def _list(numbers: Sequence[int]) -> str:
    return str(list(numbers)) if len(numbers) <= 12 else f"{list(numbers[:12])[:-1]}... of {len(numbers)}"


def _string_fault(data: memoryview) -> str | None:
    if len(data) < 8:
        return "its buffer is too short for strings"
    count = int.from_bytes(data[:4], "little")
    start = 4 * (count + 2)
    if start > len(data):
        return f"its buffer is too short for {count} strings"
    offsets = np.frombuffer(data, "<u4", count + 1, 4)
    if offsets[0] != start or offsets[-1] != len(data) or (offsets[1:] < offsets[:-1]).any():
        return "the offsets of its strings are not in order"
    return None
