"""Graphs as text: a small form that is parsed and printed.

::

    graph main(%x: f32[?,8,8,3]) {              # dimensions that only run time can tell are ? or -1
      %y = CONV_2D(%x, w[8,3,3,3], b[8]) {stride=2, padding=SAME, activation=RELU}
      %z: f32[?,4,4,8] = ADD(%y, c[]=0.5)       # shapes and types are inferred; an annotation overrides that
      return %z
    }

Statements follow each other, one a line by custom; ``#`` begins a comment.

* ``%name`` is a value, a bare name in an operator's arguments a constant. The first mention of a constant has its
  shape: ``w[8,3]`` (seeded random numbers, the same for the same name, type and shape), ``w[2]=(1.0, nan)`` (row by
  row), ``w[8,3]=0.5`` (all elements), ``w[1]=0x0000803f`` (bytes of the file). ``w`` alone mentions it again.
  ``w:i8[8,3]{scale=0.5}`` has another type than f32 and a quantisation. A type in place of the name, ``i32[2]=(1, 2)``,
  makes a constant without a name. ``_`` is an optional input left out.
* Types are f32, i8, u8, i32, bool and so on, with a shape, ``[*]`` for an unknown rank, and perhaps
  ``{scale=0.5, zero=3}`` or ``{scale=(0.5, 0.25), axis=3}``. Results that copy their input's integers
  inherit its quantisation.
* Options are the fields of the operator's options table; ``stride``, ``dilation`` and ``filter`` stand for both
  directions. What can be told from the operands (``num_splits``, ``values_count``, ``in_data_type``) may be left out.
  ``CONV_2D@3`` is version 3. A quoted string instead of a builtin operator is a custom one, whose options are
  ``{custom=0x0102}``.
* ``var %s: f32[4]`` declares a variable, ``tensor %t: f32[4]`` any other tensor that nothing computes.
* Operators refer to other graphs of the text as ``@name`` (or ``@1`` by number): ``IF(%p, %x) {then=@yes, else=@no}``.
* Names with other characters than letters, digits and ``_./$;-`` are quoted: ``%"a b"``. ``%x~1`` is another tensor
  that is called ``x`` too, and ``%~1`` one without a name.

The text holds the program. Signatures, metadata, the description and the sharing of buffers are left out.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from litefuse.errors import LitefuseError
from litefuse.graph.graph import Array, Graph
from litefuse.graph.infer.propagate import run
from litefuse.graph.infer.site import Facts, ShapeError
from litefuse.schema import declare, tables
from litefuse.schema.declare import Field, Table
from litefuse.schema.enums import BuiltinOperator, TensorType
from litefuse.schema.model import Model
from litefuse.schema.operators import Op, builtin_code, in_second_union, operator_code, options_class
from litefuse.schema.tables import Buffer, Operator, OperatorCode, QuantizationParameters, SubGraph, Tensor
from litefuse.schema.types import NUMPY, RANGES, nbytes
from litefuse.schema.writer import as_bytes

LIMIT = 16
"""Elements above which :func:`to_text` abbreviates a constant, unless told otherwise."""

_TYPES: dict[str, TensorType] = {
    "f32": TensorType.FLOAT32,
    "f16": TensorType.FLOAT16,
    "f64": TensorType.FLOAT64,
    "bf16": TensorType.BFLOAT16,
    "f8e4m3": TensorType.FLOAT8_E4M3FN,
    "f8e5m2": TensorType.FLOAT8_E5M2,
    "i2": TensorType.INT2,
    "i4": TensorType.INT4,
    "i8": TensorType.INT8,
    "i16": TensorType.INT16,
    "i32": TensorType.INT32,
    "i64": TensorType.INT64,
    "u4": TensorType.UINT4,
    "u8": TensorType.UINT8,
    "u16": TensorType.UINT16,
    "u32": TensorType.UINT32,
    "u64": TensorType.UINT64,
    "bool": TensorType.BOOL,
    "c64": TensorType.COMPLEX64,
    "c128": TensorType.COMPLEX128,
    "str": TensorType.STRING,
    "resource": TensorType.RESOURCE,
    "variant": TensorType.VARIANT,
}
_TYPE_NAMES = {type: name for name, type in _TYPES.items()}
# Short names of options, and the fields that they stand for.
_ALIASES: dict[str, tuple[str, ...]] = {
    "stride": ("stride_h", "stride_w", "stride_d"),
    "dilation": ("dilation_h_factor", "dilation_w_factor", "dilation_d_factor"),
    "filter": ("filter_height", "filter_width"),
    "activation": ("fused_activation_function",),
    "to": ("out_data_type",),
    "then": ("then_subgraph_index",),
    "else": ("else_subgraph_index",),
    "cond": ("cond_subgraph_index",),
    "body": ("body_subgraph_index",),
    "init": ("init_subgraph_index",),
    "decomposition": ("decomposition_subgraph_index",),
}
# What options are when left out, where that is not the schema's default.
_USUAL: dict[str, Any] = {
    **dict.fromkeys(_ALIASES["stride"] + _ALIASES["filter"], 1),
    "depth_multiplier": 1,
    "beta": 1.0,
    "out_type": TensorType.INT32,
    "output_type": TensorType.INT32,
}
_REFERENCES = frozenset({"subgraph", "called_computations", "branch_subgraph_indices"})
# Operators whose integer results are those of their input (or of the operand named), so that they mean the same.
_INHERIT = frozenset(
    {
        Op.RESHAPE,
        Op.SQUEEZE,
        Op.EXPAND_DIMS,
        Op.TRANSPOSE,
        Op.SLICE,
        Op.STRIDED_SLICE,
        Op.SPLIT,
        Op.SPLIT_V,
        Op.GATHER,
        Op.GATHER_ND,
        Op.TILE,
        Op.REVERSE_V2,
        Op.REVERSE_SEQUENCE,
        Op.PACK,
        Op.UNPACK,
        Op.CONCATENATION,
        Op.SPACE_TO_DEPTH,
        Op.DEPTH_TO_SPACE,
        Op.SPACE_TO_BATCH_ND,
        Op.BATCH_TO_SPACE_ND,
        Op.BROADCAST_TO,
        Op.PAD,
        Op.PADV2,
        Op.MIRROR_PAD,
        Op.RESIZE_NEAREST_NEIGHBOR,
        Op.RESIZE_BILINEAR,
        Op.MAX_POOL_2D,
        Op.AVERAGE_POOL_2D,
        Op.MAXIMUM,
        Op.MINIMUM,
        Op.RELU,
        Op.RELU6,
        Op.RELU_N1_TO_1,
        Op.RELU_0_TO_1,
        Op.REDUCE_MAX,
        Op.REDUCE_MIN,
    }
)
# Types of outputs that no input has.
_SECOND_TYPES = {(Op.TOPK_V2, 1): TensorType.INT32, (Op.SVDF, 0): TensorType.FLOAT32}
_BARE = re.compile(r"[A-Za-z_0-9](?:[\w./$;-]|:(?=\d))*\Z", re.ASCII)
_WORD = re.compile(r"[A-Za-z_](?:[\w./$;-]|:(?=\d))*\Z", re.ASCII)


class TextError(LitefuseError):
    """A text is not a graph: ``line`` and ``column``, from 1, say where."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line, self.column = line, column


# -- printing ------------------------------------------------------------------------------------------------------


def to_text(source: Model | Graph, *, limit: int | None = LIMIT) -> str:
    """A model, or one of its subgraphs in its present state, as text that :func:`from_text` reads.

    Args:
        source: what to print; a Graph may have edits that are not yet committed.
        limit: constants of more elements than this are abbreviated to a checksum, and the text cannot be read back
            then. None prints everything.
    """
    if isinstance(source, Graph):
        return _Printer(source, limit).text()
    return "\n".join(_Printer(Graph(source, i), limit).text() for i in range(len(source.subgraphs)))


def options_text(graph: Graph) -> Callable[[Operator], str]:
    """A function that says which options of an operator differ from the defaults, such as `padding=SAME, stride=2`."""
    printer = _Printer(graph, LIMIT)
    codes = graph.model.operator_codes

    def say(op: Operator) -> str:
        found = printer.options(op, builtin_code(codes[op.opcode_index])).lstrip()
        return found[1:-1] if found.startswith("{") else found

    return say


# Values and constants are told apart by the `%`, so that they may be called the same.
_Name: TypeAlias = "str | tuple[bool, str | None] | None"


class _Printer:
    def __init__(self, graph: Graph, limit: int | None) -> None:
        self.graph = graph
        self.limit = limit
        self.constant = [self.is_constant(t) for t in range(len(graph.tensors))]
        self.keys: dict[int, str] = {}
        self.count: dict[_Name, int] = {}
        self.shown: set[int] = set()
        self.loose: list[int] = []
        self.subgraphs: list[str] = []
        count: dict[_Name, int] = {}
        for subgraph in graph.model.subgraphs:
            self.subgraphs.append(_key(subgraph.name, count))

    def text(self) -> str:
        graph = self.graph
        inputs = ", ".join(self.typed(t) for t in graph.subgraph.inputs)
        body = [self.operator(op) for op in graph.operators()]
        body.append(f"  return {', '.join(self.value(t) for t in graph.subgraph.outputs)}".rstrip())
        declared = [f"  {'var' if graph.tensors[t].is_variable else 'tensor'} {self.typed(t)}" for t in self.loose]
        return "\n".join([f"graph {self.subgraphs[graph.index]}({inputs}) {{", *declared, *body, "}", ""])

    def is_constant(self, tensor: int) -> bool:
        graph = self.graph
        outside = graph.tensors[tensor].external_buffer and graph.producer(tensor) is None
        return graph.is_constant(tensor) or bool(outside and tensor not in graph.inputs)

    def key(self, tensor: int) -> str:
        """What stands for a tensor, numbered by the order in which tensors of one name appear."""
        if tensor not in self.keys:
            self.keys[tensor] = _key((self.constant[tensor], self.graph.tensors[tensor].name), self.count)
        return self.keys[tensor]

    def typed(self, tensor: int) -> str:
        return f"%{self.key(tensor)}: {self.type(tensor)}"

    def type(self, tensor: int) -> str:
        t = self.graph.tensors[tensor]
        shape = self.graph.shape(tensor)
        if self.constant[tensor]:
            shape = tuple(t.shape or ())
        dims = "*" if shape is None else ",".join("?" if d < 0 else str(d) for d in shape)
        return f"{_TYPE_NAMES.get(t.type, f'type{int(t.type)}')}[{dims}]{self.attributes(t)}"

    def attributes(self, t: Tensor) -> str:
        found = []
        q = t.quantization
        if q is not None:
            scale = [] if q.scale is None else q.scale.tolist()
            zero = [] if q.zero_point is None else q.zero_point.tolist()
            if scale:
                found.append(f"scale={_several([_number(np.float32(s)) for s in scale])}")
            if zero != [0] * len(scale):
                found.append(f"zero={_several([str(z) for z in zero])}")
            if q.quantized_dimension:
                found.append(f"axis={q.quantized_dimension}")
            for name in ("min", "max"):
                limits = getattr(q, name)
                if limits is not None and len(limits):
                    found.append(f"{name}={_several([_number(v) for v in limits])}")
            if q.details is not None:
                found.append(f"details={self.table(q.details)}")
        if t.sparsity is not None:
            found.append(f"sparsity={self.table(t.sparsity)}")
        if t.variant_tensors:
            found.append(f"variant_tensors={_listed(self.table(v) for v in t.variant_tensors)}")
        return f"{{{', '.join(found)}}}" if found else ""

    def value(self, tensor: int) -> str:
        """A tensor as an argument."""
        if tensor < 0:
            return "_"
        t = self.graph.tensors[tensor]
        if not self.constant[tensor]:
            known = self.graph.producer(tensor) is not None or tensor in self.graph.inputs or tensor in self.shown
            if not known:
                self.shown.add(tensor)
                self.loose.append(tensor)
            return f"%{self.key(tensor)}"
        key = self.key(tensor)
        if key in _TYPES or key == "_" or not (_WORD.match(key.split("~")[0]) or key.startswith(("~", '"'))):
            key = json.dumps(key)
        if tensor in self.shown:
            return key
        self.shown.add(tensor)
        form = self.type(tensor)
        anonymous = t.name is None and len(self.graph.readers(tensor)) + (tensor in self.graph.outputs) < 2
        if not anonymous:
            form = key + (form[3:] if form.startswith("f32[") else f":{form}")
        return f"{form}={self.contents(tensor)}"

    def contents(self, tensor: int) -> str:
        """The value of a constant."""
        t = self.graph.tensors[tensor]
        if t.external_buffer and not self.graph.is_constant(tensor):
            return "..."
        data = as_bytes(self.graph.model.buffers[t.buffer].data)
        array = self.graph.constant(tensor)
        if array is None or array.dtype.kind == "c":
            large = self.limit is not None and data.nbytes > 8 * self.limit
            return f"...{zlib.crc32(data):08x}" if large else f"0x{data.hex()}"
        flat = array.reshape(-1)
        if flat.size > 1 and flat.tobytes() == flat[:1].tobytes() * flat.size:
            flat = flat[:1]
        elif self.limit is not None and flat.size > self.limit:
            return f"...{zlib.crc32(data):08x}"
        elif flat.size != 1 or array.ndim:
            return f"({', '.join(_number(v) for v in flat)})" if _plain(flat) else f"0x{data.hex()}"
        return _number(flat[0]) if _plain(flat) else f"0x{data.hex()}"

    def operator(self, op: Operator) -> str:
        graph = self.graph
        code = graph.model.operator_codes[op.opcode_index]
        kind = builtin_code(code)
        name = kind.name if isinstance(kind, Op) else f"BUILTIN_{kind}"
        if kind == Op.CUSTOM:
            name = json.dumps(code.custom_code or "")
        version = f"@{code.version}" if code.version != 1 else ""
        results = ", ".join(self.typed(t) if t >= 0 else "_" for t in op.outputs)
        arguments = ", ".join(self.value(t) for t in op.inputs)
        left = f"{results} = " if op.outputs else ""
        return f"  {left}{name}{version}({arguments}){self.options(op, kind)}"

    def options(self, op: Operator, kind: int) -> str:
        cls = options_class(kind) if isinstance(kind, Op) else None
        given = [o for o in (op.builtin_options, op.builtin_options_2) if isinstance(o, Table)]
        options = given[0] if given else cls() if cls is not None else None
        found = [] if options is None else self.fields(options, _defaults(self.graph, op, type(options)))
        if op.custom_options is not None and len(op.custom_options):
            found.append(f"custom={self.blob(op.custom_options)}")
        if op.intermediates:
            found.append(f"intermediates={_listed(self.value(t) for t in op.intermediates)}")
        if op.mutating_variable_inputs and any(op.mutating_variable_inputs):
            found.append(f"mutating={_listed('true' if m else 'false' for m in op.mutating_variable_inputs)}")
        strange = type(options).__name__ if options is not None and not isinstance(options, cls or ()) else ""
        if not found and not strange:
            return ""
        return f" {strange}{{{', '.join(found)}}}"

    def fields(self, table: Table, defaults: Mapping[str, Any]) -> list[str]:
        """The fields of a table that differ from the defaults."""
        found: list[str] = []
        done: set[str] = set()
        for field in table.fields:
            value = getattr(table, field.name)
            if field.name in done or _same_value(value, defaults.get(field.name, field.default)):
                continue
            alias = next((a for a, names in _ALIASES.items() if field.name in names), None)
            if alias is not None:
                group = [f.name for f in table.fields if f.name in _ALIASES[alias]]
                if all(_same_value(getattr(table, name), value) for name in group):
                    done.update(group)
                else:
                    alias = None
            found.append(f"{alias or field.name}={self.field(field, value)}")
        return found

    def table(self, table: Table) -> str:
        return f"{type(table).__name__}{{{', '.join(self.fields(table, {}))}}}"

    def field(self, field: Field, value: Any) -> str:
        if isinstance(value, Table):
            return self.table(value)
        if field.name.endswith("_subgraph_index") or field.name in _REFERENCES:
            return _listed(map(self.reference, value)) if isinstance(value, list) else self.reference(value)
        if field.kind == declare.BLOB:
            return self.blob(value)
        if field.kind == declare.TABLES:
            return _listed(self.table(v) for v in value)
        if field.kind in (declare.LIST, declare.ARRAY, declare.STRINGS):
            return _listed(_scalar(field, v) for v in value)
        return _scalar(field, value)

    def reference(self, index: int) -> str:
        known = 0 <= index < len(self.subgraphs)
        return f"@{self.subgraphs[index] if known else index}"

    def blob(self, value: Any) -> str:
        data = as_bytes(value)
        if self.limit is not None and data.nbytes > 8 * self.limit:
            return f"...{zlib.crc32(data):08x}"
        return f"0x{data.hex()}"


def _key(name: _Name, count: dict[_Name, int]) -> str:
    """What stands for a name in the text; different each time that the same name is asked for."""
    n = count[name] = count.get(name, -1) + 1
    called = name[1] if isinstance(name, tuple) else name
    if called is None:
        return f"~{n}"
    return (called if _BARE.match(called) else json.dumps(called)) + (f"~{n}" if n else "")


def _plain(flat: Array) -> bool:
    """Whether decimal numbers say everything: there is no NaN but the usual one."""
    if flat.dtype.kind != "f":
        return True
    usual = np.array(np.nan, flat.dtype).tobytes()
    return all(v.tobytes() == usual for v in flat[np.isnan(flat)])


def _number(value: Any) -> str:
    if isinstance(value, np.bool_):
        return "true" if value else "false"
    return str(value)


def _scalar(field: Field, value: Any) -> str:
    if field.enum is not None:
        if field.enum is TensorType:
            return _TYPE_NAMES.get(value, str(int(value)))
        return value.name if isinstance(value, field.enum) else str(int(value))
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    return _number(np.float32(value)) if field.scalar == "float32" else str(value)


def _several(values: list[str]) -> str:
    return values[0] if len(values) == 1 else _listed(values)


def _listed(values: Iterator[str] | Sequence[str]) -> str:
    return f"({', '.join(values)})"


def _same_value(a: Any, b: Any) -> bool:
    if isinstance(a, Table) or isinstance(b, Table):
        return a is b
    return next(declare.diff(a, b), None) is None


def _defaults(graph: Graph, op: Operator, cls: type[Table]) -> dict[str, Any]:
    """What the options of an operator are when the text says nothing about them."""
    found = {f.name: _USUAL[f.name] for f in cls.fields if f.name in _USUAL}
    if cls is tables.SplitOptions or cls is tables.SplitVOptions:
        found["num_splits"] = len(op.outputs)
    elif cls is tables.UnpackOptions:
        found["num"] = len(op.outputs)
    elif cls is tables.PackOptions:
        found["values_count"] = len(op.inputs)
    elif cls is tables.CastOptions:
        found["in_data_type"] = graph.type(op.inputs[0]) if op.inputs else TensorType.FLOAT32
        found["out_data_type"] = graph.type(op.outputs[0]) if op.outputs else TensorType.FLOAT32
    return found


# -- reading -------------------------------------------------------------------------------------------------------


class _Token(NamedTuple):
    kind: str
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"`{self.text}`"


_NAME = r'"(?:[^"\\\n]|\\.)*"(?:~\d+)?|[A-Za-z_0-9](?:[\w./$;-]|:(?=\d))*(?:~\d+)?|~\d+'
_TOKENS = re.compile(
    r"(?P<space>[ \t\r\n]+|\#[^\n]*)"
    rf"|(?P<value>%(?:{_NAME}))"
    rf"|(?P<reference>@(?:{_NAME}))"
    r"|(?P<short>\.\.\.[0-9a-f]*)"
    r"|(?P<hex>0x(?:[0-9a-fA-F]{2})*)(?![\w])"
    r"|(?P<number>-?(?:nan|inf)(?![\w])|-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w]))"
    rf"|(?P<name>{_NAME})"
    r"|(?P<mark>[][(){}=:,?*])",
    re.ASCII,
)


def from_text(text: str) -> Model:
    """The model that a text describes; see the module's description of the form.

    Raises:
        TextError: the text is not of the form, or its shapes contradict each other; says where and what was expected.
    """
    return _Parser(text).model()


class _Reference(NamedTuple):
    token: _Token


class _Given(NamedTuple):
    """A value in the text: what it is and where it stands."""

    value: Any
    token: _Token


class _Fields(NamedTuple):
    name: str
    fields: dict[str, _Given]


class _Line(NamedTuple):
    """An operator whose result types are still to be inferred."""

    op: Operator
    token: _Token
    results: list[tuple[_Token, bool]]
    options: dict[str, _Given]
    strange: str


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = list(_tokens(text))
        self.place = 0
        self.built = Model(version=3, buffers=[Buffer()], description="litefuse")
        self.codes: dict[tuple[int, int, str | None], int] = {}
        self.parsed: list[_Subgraph] = []
        self.names: dict[str, int] = {}

    # -- tokens ------------------------------------------------------------------------------------------------

    @property
    def token(self) -> _Token:
        return self.tokens[self.place]

    def take(self) -> _Token:
        token = self.token
        self.place = min(self.place + 1, len(self.tokens) - 1)
        return token

    def fail(self, message: str, token: _Token | None = None) -> NoReturn:
        token = token or self.token
        raise TextError(message, token.line, token.column)

    def expected(self, what: str) -> NoReturn:
        self.fail(f"expected {what}, found {self.token}")

    def at(self, text: str) -> bool:
        return self.token.kind in ("mark", "name") and self.token.text == text

    def accept(self, text: str) -> bool:
        if self.at(text):
            self.take()
            return True
        return False

    def expect(self, text: str, why: str = "") -> _Token:
        if not self.at(text):
            self.expected(f"`{text}`{why}")
        return self.take()

    def kind(self, kind: str, what: str) -> _Token:
        if self.token.kind != kind:
            self.expected(what)
        return self.take()

    def separated(self, close: str) -> Iterator[None]:
        """Yields before each of the entries that commas separate, up to ``close``."""
        while not self.accept(close):
            yield
            if not self.at(close) and not self.accept(","):
                self.expected(f"`,` or `{close}`")

    # -- statements --------------------------------------------------------------------------------------------

    def model(self) -> Model:
        while self.token.kind != "end":
            self.parsed.append(_Subgraph(self).parse())
        if not self.parsed:
            self.expected("`graph`")
        for subgraph in self.parsed:
            subgraph.infer()
        return self.built

    def resolve(self, token: _Token) -> int:
        """The index of the graph that `@name` or `@1` means."""
        name = token.text[1:]
        if name in self.names:
            return self.names[name]
        if not name.isdigit() or int(name) >= len(self.parsed):
            self.fail(f"there is no graph {token}", token)
        return int(name)

    def code(self, kind: int, version: int, custom: str | None) -> int:
        key = (kind, version, custom)
        if key not in self.codes:
            self.codes[key] = len(self.built.operator_codes)
            if isinstance(kind, Op):
                self.built.operator_codes.append(operator_code(kind, version, custom))
            else:
                code = OperatorCode(deprecated_builtin_code=127, builtin_code=kind, version=version)  # type: ignore[arg-type]
                self.built.operator_codes.append(code)
        return self.codes[key]


class _Subgraph:
    """One graph of the text."""

    def __init__(self, parser: _Parser) -> None:
        self.p = parser
        self.table = SubGraph()
        self.known: dict[str, int] = {}
        self.constants: dict[str, int] = {}
        self.lines: list[_Line] = []

    def parse(self) -> _Subgraph:
        p = self.p
        p.expect("graph")
        name = p.kind("name", "the name of the graph")
        index = len(p.built.subgraphs)
        if name.text in p.names:
            p.fail(f"there is a graph {name} already", name)
        p.names[name.text] = index
        self.table.name = _called(name.text)
        p.built.subgraphs.append(self.table)
        p.expect("(")
        for _ in p.separated(")"):
            token = p.kind("value", "an input such as `%x: f32[1,8]`")
            p.expect(":")
            self.table.inputs.append(self.define(token, self.type()))
        p.expect("{")
        while not p.at("return"):
            if p.at("}") or p.token.kind == "end":
                p.expected("`return`")
            self.statement()
        p.take()
        while not p.at("}"):
            self.table.outputs.append(self.argument())
            if not p.accept(",") and not p.at("}"):
                p.expected("`,` or `}`")
        p.expect("}")
        return self

    def statement(self) -> None:
        p = self.p
        if p.at("var") or p.at("tensor"):
            variable = p.take().text == "var"
            token = p.kind("value", "a name such as `%state`")
            p.expect(":")
            tensor = self.define(token, self.type())
            self.table.tensors[tensor].is_variable = variable
            return
        results: list[tuple[_Token, Tensor | None]] = []
        while p.token.kind == "value" or (p.at("_")):
            token = p.take()
            results.append((token, self.type() if token.text != "_" and p.accept(":") else None))
            if p.accept("="):
                break
            p.expect(",", " or `=`")
        if p.token.kind != "name":
            p.expected("an operator such as `ADD`")
        self.operator(results)

    def operator(self, results: list[tuple[_Token, Tensor | None]]) -> None:
        p = self.p
        token = p.take()
        kind: int = Op.CUSTOM
        custom = None
        if token.text.startswith('"'):
            custom = _called(token.text)
        elif token.text in BuiltinOperator.__members__:
            kind = BuiltinOperator[token.text]
        elif re.fullmatch(r"BUILTIN_\d+", token.text):
            kind = int(token.text[8:])
        else:
            p.fail(f"there is no operator {token}; custom ones are quoted", token)
        version = 1
        if p.token.kind == "reference":
            text = p.take().text[1:]
            if not text.isdigit():
                p.fail(f"expected a version such as `{token.text}@2`", token)
            version = int(text)
        op = Operator(opcode_index=p.code(kind, version, custom))
        p.expect("(")
        for _ in p.separated(")"):
            op.inputs.append(self.argument())
        strange = p.take().text if p.token.kind == "name" and p.tokens[p.place + 1].text == "{" else ""
        options = self.fields() if p.at("{") else {}
        op.outputs = [-1 if t.text == "_" else self.define(t, typed or Tensor()) for t, typed in results]
        self.table.operators.append(op)
        line = _Line(op, token, [(t, typed is not None) for t, typed in results], options, strange)
        self.lines.append(line)
        for name, given in options.items():
            self.special(line, name, given)

    def special(self, line: _Line, name: str, given: _Given) -> None:
        """Options that are not fields of the options table."""
        if name == "custom":
            line.op.custom_options = self.blob(given)
        elif name == "intermediates":
            line.op.intermediates = [self.tensor(v.token) for v in self.list(given)]
        elif name == "mutating":
            line.op.mutating_variable_inputs = [bool(v.value) for v in self.list(given)]

    def define(self, token: _Token, tensor: Tensor) -> int:
        key = token.text[1:]
        if key in self.known:
            self.p.fail(f"{token} is defined already", token)
        tensor.name = _called(key)
        self.table.tensors.append(tensor)
        self.known[key] = len(self.table.tensors) - 1
        return self.known[key]

    def tensor(self, token: _Token) -> int:
        if token.text == "_":
            return -1
        found = (self.known if token.kind == "value" else self.constants).get(token.text.removeprefix("%"))
        if found is None:
            hint = "" if token.kind == "value" else f"; the first mention of a constant has a shape: `{token.text}[2]`"
            self.p.fail(f"{token} is not defined{hint}", token)
        return found

    def argument(self) -> int:
        p = self.p
        if p.token.kind == "value":
            return self.tensor(p.take())
        token = p.kind("name", "a value such as `%x`, a constant such as `w[2]` or `_`")
        if token.text in _TYPES and p.at("["):
            p.place -= 1
            return self.constant(None, self.type())
        if p.accept(":"):
            return self.constant(token, self.type())
        if p.at("["):
            return self.constant(token, self.shape(TensorType.FLOAT32))
        return self.tensor(token)

    def constant(self, token: _Token | None, tensor: Tensor) -> int:
        p = self.p
        start = token or p.token
        key = "" if token is None else token.text
        for n in range(1, 1 << 20):
            if key not in self.constants:
                break
            key = f"{start.text}_{n}"
        if tensor.shape is None or tensor.shape_signature is not None:
            p.fail("a constant has a fixed shape", start)
        data = self.contents(tensor, start) if p.accept("=") else _random(key, tensor)
        if data is None:
            p.fail(f"the bytes of a {_TYPE_NAMES[tensor.type]} constant must be given: `=0x00`", start)
        if token is not None:
            tensor.name = _called(key)
            self.constants[key] = self.constants[token.text] = len(self.table.tensors)
        tensor.buffer = len(p.built.buffers)
        p.built.buffers.append(Buffer(data=data))
        self.table.tensors.append(tensor)
        return len(self.table.tensors) - 1

    def contents(self, tensor: Tensor, start: _Token) -> bytes | None:
        p = self.p
        count = int(np.prod(tensor.shape or [], dtype=np.int64))
        given = self.literal()
        if isinstance(given.value, bytes):
            wanted = None if tensor.sparsity is not None else nbytes(tensor.type, count)
            if wanted is not None and len(given.value) != wanted:
                p.fail(f"expected {wanted} bytes for {count} elements, found {len(given.value)}", given.token)
            return given.value
        dtype = NUMPY.get(tensor.type)
        if dtype is None:
            return None
        values = self.list(given) if isinstance(given.value, list) else [given]
        if len(values) != count and isinstance(given.value, list):
            p.fail(f"expected {count} values, found {len(values)}", given.token)
        return np.broadcast_to(self.array(values, dtype), (count,)).tobytes()

    def array(self, values: Sequence[_Given], dtype: np.dtype[Any]) -> Array:
        for given in values:
            wrong = (
                isinstance(given.value, bool) != (dtype.kind == "b")
                or not isinstance(given.value, (bool, int, float))
                or (isinstance(given.value, float) and dtype.kind in "iu")
            )
            if wrong:
                what = {"b": "true or false", "i": "an integer", "u": "an integer"}.get(dtype.kind, "a number")
                self.p.fail(f"expected {what}, found {given.token}", given.token)
            if dtype.kind in "iu" and not np.iinfo(dtype).min <= given.value <= np.iinfo(dtype).max:
                self.p.fail(f"{given.token} does not fit into {dtype}", given.token)
        with np.errstate(over="ignore"):
            return np.array([g.value for g in values], np.float64 if dtype.kind == "f" else dtype).astype(dtype)

    # -- types -------------------------------------------------------------------------------------------------

    def type(self) -> Tensor:
        token = self.p.kind("name", "a type such as `f32[1,8]`")
        if token.text not in _TYPES and not re.fullmatch(r"type\d+", token.text):
            self.p.fail(f"expected a type, one of {', '.join(_TYPES)}, found {token}", token)
        return self.shape(_TYPES.get(token.text) or TensorType.FLOAT32)

    def shape(self, type: TensorType) -> Tensor:
        p = self.p
        p.expect("[")
        tensor = Tensor(type=type, has_rank=True)
        if p.accept("*"):
            p.expect("]")
            tensor.has_rank = False
        else:
            dims = []
            for _ in p.separated("]"):
                if p.accept("?"):
                    dims.append(-1)
                    continue
                token = p.kind("number", "a dimension")
                if not re.fullmatch(r"\d{1,9}|-1", token.text):
                    p.fail(f"expected a dimension, found {token}", token)
                dims.append(int(token.text))
            _set_shape(tensor, dims)
        if p.at("{"):
            self.tensor_fields(tensor, self.fields())
        return tensor

    def tensor_fields(self, tensor: Tensor, fields: dict[str, _Given]) -> None:
        q = QuantizationParameters()
        names = {"scale": "scale", "zero": "zero_point", "axis": "quantized_dimension"}
        declared = {f.name: f for f in QuantizationParameters.fields}
        for name, given in fields.items():
            if name in ("sparsity", "variant_tensors"):
                field = next(f for f in Tensor.fields if f.name == name)
                self.assign(tensor, field, given)
                continue
            field = declared.get(names.get(name, name))  # type: ignore[assignment]
            if field is None:
                self.p.fail(f"a tensor has no `{name}`; it has scale, zero, axis, min, max, details", given.token)
            if field.kind == declare.ARRAY and not isinstance(given.value, list):
                given = _Given([given], given.token)
            self.assign(tensor, field, given, q)
            tensor.quantization = q
        if q.scale is not None and q.zero_point is None:
            q.zero_point = np.zeros(len(q.scale), np.int64)

    # -- values ------------------------------------------------------------------------------------------------

    def fields(self) -> dict[str, _Given]:
        p = self.p
        p.expect("{")
        found: dict[str, _Given] = {}
        for _ in p.separated("}"):
            name = p.kind("name", "an option such as `stride=2`")
            p.expect("=")
            if name.text in found:
                p.fail(f"{name} is given twice", name)
            found[name.text] = self.literal()._replace(token=name)
        return found

    def literal(self) -> _Given:
        p = self.p
        token = p.take()
        text = token.text
        if token.kind == "number":
            return _Given(int(text) if re.fullmatch(r"-?\d+", text) else float(text), token)
        if token.kind == "hex":
            return _Given(bytes.fromhex(text[2:]), token)
        if token.kind == "short":
            p.fail(f"{token} stands for a value that was left out of the text; print it with `limit=None`", token)
        if token.kind == "reference":
            return _Given(_Reference(token), token)
        if token.kind == "value":
            return _Given(token, token)
        if token.kind == "mark" and text == "(":
            return _Given([self.literal() for _ in p.separated(")")], token)
        if token.kind == "name":
            if text in ("true", "false"):
                return _Given(text == "true", token)
            if p.at("{"):
                return _Given(_Fields(text, self.fields()), token)
            return _Given(_quoted(p, token) if text.startswith('"') else token, token)
        p.fail(f"expected a value, found {token}", token)

    def list(self, given: _Given) -> list[_Given]:
        if not isinstance(given.value, list):
            self.p.fail("expected a list such as `(1, 2)`", given.token)
        return given.value

    def blob(self, given: _Given) -> bytes:
        if not isinstance(given.value, bytes):
            self.p.fail("expected bytes such as `0x00ff`", given.token)
        return given.value

    def assign(self, place: Any, field: Field, given: _Given, table: Table | None = None) -> None:
        """Sets a field of a table to what the text says."""
        table = place if table is None else table
        value: Any
        if field.kind == declare.BLOB:
            value = self.blob(given)
        elif field.kind == declare.TABLES:
            value = [self.nested(v) for v in self.list(given)]
        elif field.kind in (declare.TABLE, declare.UNION):
            value = self.nested(given)
        elif field.kind == declare.ARRAY:
            value = self.array(self.list(given), np.dtype(field.scalar))
        elif field.kind in (declare.LIST, declare.STRINGS):
            value = [self.scalar(field, v) for v in self.list(given)]
        else:
            value = self.scalar(field, given)
        setattr(table, field.name, value)

    def nested(self, given: _Given) -> Table:
        if not isinstance(given.value, _Fields) or given.value.name not in Table.registry:
            self.p.fail("expected a table such as `Int32Vector{values=(1, 2)}`", given.token)
        table = Table.registry[given.value.name]()
        for name, v in given.value.fields.items():
            field = next((f for f in table.fields if f.name == name), None)
            if field is None:
                self.p.fail(f"{given.value.name} has no field `{name}`", v.token)
            self.assign(table, field, v)
        return table

    def scalar(self, field: Field, given: _Given) -> Any:
        value, token = given.value, given.token
        if isinstance(value, _Reference):
            return self.p.resolve(value.token)
        if field.enum is not None:
            if isinstance(value, int):
                return field.enum._value2member_map_.get(value, value)
            text = value.text if isinstance(value, _Token) else ""
            if field.enum is TensorType and text in _TYPES:
                return _TYPES[text]
            if text in field.enum.__members__:
                return field.enum[text]
            names = _TYPES if field.enum is TensorType else field.enum.__members__
            self.p.fail(f"expected one of {', '.join(names)} for `{field.name}`", token)
        if field.kind in (declare.STRING, declare.STRINGS):
            if not isinstance(value, str):
                self.p.fail(f"expected a quoted text for `{field.name}`", token)
            return value
        if field.scalar == "bool":
            if not isinstance(value, bool):
                self.p.fail(f"expected true or false for `{field.name}`", token)
            return value
        dtype = np.dtype(field.scalar)
        return self.array([given], dtype)[0].item()

    # -- what follows from the operands ------------------------------------------------------------------------

    def infer(self) -> None:
        """Fills in the options and the types of results, operator by operator."""
        p = self.p
        lines, self.lines = self.lines, []
        for line in lines:
            # What a graph returns is known before those that run it, as long as they do not run each other.
            for token in _references(line.options.values()):
                p.parsed[p.resolve(token)].infer()
        graph = Graph(p.built, p.parsed.index(self))
        facts = Facts(graph, strict=True)
        for line in lines:
            self.prepare(graph, line)
            # Where everything is annotated, contradictions are none of our business.
            facts.strict = not all(annotated for _, annotated in line.results)
            try:
                run(facts, [line.op])
            except ShapeError as error:
                p.fail(str(error), line.token)
            for tensor, (token, annotated) in zip(line.op.outputs, line.results, strict=True):
                if tensor < 0:
                    continue
                table = graph.tensor(tensor)
                if annotated:
                    facts.specs.pop(tensor, None)
                    continue
                spec = facts.specs[tensor]
                if spec.shape is None:
                    p.fail(f"the shape of {token} cannot be inferred; write it: `{token.text}: f32[...] =`", token)
                table.type = spec.type
                _set_shape(table, spec.shape)

    def prepare(self, graph: Graph, line: _Line) -> None:
        """Makes the options of an operator and gives its results the type that the operands suggest."""
        p, op = self.p, line.op
        kind = graph.kind(op)
        sources = [t for t in op.inputs if t >= 0 and (kind is not Op.SPLIT or t != op.inputs[0])]
        for i, (tensor, (token, annotated)) in enumerate(zip(op.outputs, line.results, strict=True)):
            if annotated or tensor < 0:
                continue
            if kind in (Op.QUANTIZE, Op.VAR_HANDLE, Op.HASHTABLE, Op.CUSTOM, Op.IF, Op.WHILE, Op.READ_VARIABLE):
                p.fail(f"the type of {token} cannot be inferred; write it: `{token.text}: i8[...] =`", token)
            table = graph.tensor(tensor)
            to = line.options.get("to")
            if kind is Op.CAST and to is not None and isinstance(to.value, _Token):
                table.type = _TYPES.get(to.value.text, TensorType.FLOAT32)
            elif sources:
                table.type = _SECOND_TYPES.get((kind, i), graph.type(sources[0]))
            if kind in _INHERIT and sources:
                table.quantization = graph.quantization(sources[0])
        cls = Table.registry.get(line.strange) if line.strange else options_class(kind)
        if line.strange and cls is None:
            p.fail(f"there is no table `{line.strange}`", line.token)
        given = {n: v for n, v in line.options.items() if n not in ("custom", "intermediates", "mutating")}
        if cls is None:
            for name, value in given.items():
                p.fail(f"{kind.name} has no options, not `{name}` either", value.token)
            return
        table_options = cls(**_defaults(graph, op, cls))
        for name, value in given.items():
            targets = [f for f in cls.fields if f.name == name or f.name in _ALIASES.get(name, ())]
            if not targets:
                names = [f.name for f in cls.fields]
                short = [a for a, fields in _ALIASES.items() if set(fields) & set(names)]
                p.fail(
                    f"{kind.name} has no option `{name}`; it has {', '.join([*short, *names]) or 'none'}", value.token
                )
            for field in targets:
                self.assign(table_options, field, value)
        if in_second_union(table_options):
            op.builtin_options_2 = table_options
        else:
            op.builtin_options = table_options


def _tokens(text: str) -> Iterator[_Token]:
    line, start, at = 1, 0, 0
    while at < len(text):
        found = _TOKENS.match(text, at)
        if found is None:
            raise TextError(f"unexpected {text[at]!r}", line, at - start + 1)
        kind, value = str(found.lastgroup), found.group()
        if kind != "space":
            yield _Token(kind, value, line, at - start + 1)
        if "\n" in value:
            line += value.count("\n")
            start = at + value.rindex("\n") + 1
        at = found.end()
    yield _Token("end", "", line, at - start + 1)


def _quoted(parser: _Parser, token: _Token) -> str:
    """A quoted name; line ends and other control characters may stand in it as they are."""
    try:
        return str(json.loads(token.text, strict=False))
    except ValueError:
        parser.fail("a quoted name with an escape that JSON does not know", token)


def _references(values: Iterable[_Given]) -> Iterator[_Token]:
    """The graphs that options mention."""
    for given in values:
        if isinstance(given.value, _Reference):
            yield given.value.token
        elif isinstance(given.value, list):
            yield from _references(given.value)


def _called(key: str) -> str | None:
    """The name that a key in the text stands for."""
    name = re.sub(r"~\d+\Z", "", key)
    if name.startswith('"'):
        return str(json.loads(name, strict=False))
    return name or None


def _set_shape(tensor: Tensor, dims: Sequence[int]) -> None:
    tensor.shape = [1 if d < 0 else int(d) for d in dims]
    tensor.shape_signature = [int(d) for d in dims] if any(d < 0 for d in dims) else None
    tensor.has_rank = True


def _random(key: str, tensor: Tensor) -> bytes | None:
    """Numbers that depend on a constant's name, type and shape alone; None when its type has none."""
    dtype = NUMPY.get(tensor.type)
    if dtype is None or dtype.kind == "c":
        return None
    shape = tuple(tensor.shape or ())
    rng = np.random.default_rng(zlib.crc32(f"{key} {tensor.type} {shape}".encode()))
    if dtype.kind == "f":
        return as_bytes(rng.standard_normal(shape).astype(dtype)).tobytes()
    if dtype.kind == "b":
        return as_bytes(rng.integers(0, 2, shape).astype(dtype)).tobytes()
    low, high = RANGES[tensor.type] if dtype.itemsize == 1 else (-8 if dtype.kind == "i" else 0, 8)
    return as_bytes(rng.integers(low, high + 1, shape).astype(dtype)).tobytes()
