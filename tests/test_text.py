"""The textual form of graphs: what is printed is read back, and mistakes are pointed out."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import random_graph
from hypothesis import given, note, settings
from hypothesis import strategies as st

from litefuse.check import run_model
from litefuse.cli import invoke
from litefuse.errors import LitefuseError
from litefuse.graph import Graph
from litefuse.graph.text import TextError, from_text, to_text
from litefuse.schema import Model, diff, read, write
from litefuse.schema.enums import ActivationFunctionType, BuiltinOperator, Padding, TensorType
from litefuse.schema.operators import Op, options_class
from litefuse.schema.tables import Operator
from litefuse.schema.validate import validate

# Files up to this size are read back, constants and all; larger ones are only printed.
_SMALL = 40_000


def options(graph: Graph, op: Operator) -> Any:
    """The options that the runtime sees: the defaults where there are none."""
    cls = options_class(graph.kind(op))
    return op.builtin_options or op.builtin_options_2 or (cls() if cls else None)


def same_tensor(a: Graph, x: int, b: Graph, y: int) -> None:
    assert (x < 0) == (y < 0)
    if x < 0:
        return
    s, t = a.tensor(x), b.tensor(y)
    assert (s.type, s.is_variable, s.external_buffer) == (t.type, t.is_variable, t.external_buffer)
    assert a.is_constant(x) == b.is_constant(y)
    assert a.is_constant(x) or s.name == t.name
    if a.is_constant(x):
        assert list(s.shape or ()) == list(t.shape or ())
        assert bytes(a.model.buffers[s.buffer].data) == bytes(b.model.buffers[t.buffer].data)  # type: ignore[arg-type]
    else:
        assert a.shape(x) == b.shape(y)
    p, q = a.quantization(x), b.quantization(y)
    assert (p is None) == (q is None)
    if p is not None and q is not None:
        assert list(diff(p, q)) == [] or p.zero_point is None
    assert list(diff(s.sparsity, t.sparsity)) == []


def assert_equal(a: Model, b: Model) -> None:
    """Two models are the same program."""
    assert len(a.subgraphs) == len(b.subgraphs)
    for i in range(len(a.subgraphs)):
        first, second = Graph(a, i), Graph(b, i)
        for x, y in zip(first.subgraph.inputs, second.subgraph.inputs, strict=True):
            same_tensor(first, x, second, y)
        for x, y in zip(first.subgraph.outputs, second.subgraph.outputs, strict=True):
            same_tensor(first, x, second, y)
        for p, q in zip(first.operators(), second.operators(), strict=True):
            assert (first.kind(p), first.version(p)) == (second.kind(q), second.version(q))
            codes = [a.operator_codes[p.opcode_index], b.operator_codes[q.opcode_index]]
            assert codes[0].custom_code == codes[1].custom_code
            changes = list(diff(options(first, p), options(second, q)))
            assert changes == [], first.where(p)
            assert bytes(p.custom_options or b"") == bytes(q.custom_options or b"")
            for x, y in zip([*p.inputs, *p.outputs], [*q.inputs, *q.outputs], strict=True):
                same_tensor(first, x, second, y)


def round_trip(model: Model) -> str:
    text = to_text(model, limit=None)
    again = from_text(text)
    assert_equal(model, again)
    assert to_text(again, limit=None) == text
    return text


EXAMPLE = """
graph main(%x: f32[?,8,8,3]) {            # a comment
  %y = CONV_2D(%x, w[8,3,3,3], b[8]) {stride=2, padding=SAME, activation=RELU}
  %z = ADD(%y, c[]=0.5)
  %a, %b = SPLIT(i32[]=3, %z)
  %q: i8[?,4,4,4]{scale=0.5, zero=3} = QUANTIZE(%a)
  %r = RESHAPE(%q, s:i32[3]=(-1, 16, 4))
  return %r, %b
}
"""


def test_example() -> None:
    model = from_text(EXAMPLE)
    assert [p for p in validate(model) if p.severity == "error"] == []
    graph = Graph(model)
    conv, *_, reshape = graph.operators()
    assert graph.kind(conv) is Op.CONV_2D
    o = conv.builtin_options
    assert (o.stride_w, o.stride_h, o.padding) == (2, 2, Padding.SAME)  # type: ignore[union-attr]
    assert graph.activation(conv) is ActivationFunctionType.RELU
    assert graph.shape(conv.outputs[0]) == (-1, 4, 4, 8)
    assert graph.shape(reshape.outputs[0]) == (-1, 16, 4)
    assert graph.type(reshape.outputs[0]) is TensorType.INT8
    assert graph.quantization(reshape.outputs[0]).scale.tolist() == [0.5]  # type: ignore[union-attr]
    results = run_model(model, {"x": np.zeros((2, 8, 8, 3), np.float32)})
    assert {name: value.shape for name, value in results.items()} == {"r": (2, 16, 4), "b": (2, 4, 4, 4)}
    round_trip(model)


def test_random_constants_depend_on_name_type_and_shape() -> None:
    def constants(statement: str) -> list[Any]:
        model = from_text(f"graph g(%x: f32[1,4]) {{ {statement} return %x }}")
        graph = Graph(model)
        return [graph.constant(t) for op in graph.operators() for t in op.inputs if graph.is_constant(t)]

    (a,), (b,), (c,) = constants("%y = ADD(%x, w[4])"), constants("%z = MUL(%x, w[4])"), constants("%y = ADD(%x, v[4])")
    assert a.tolist() == b.tolist() != c.tolist()
    first, second = constants("%y = ADD(w[4], w[4])")
    assert first.tolist() != second.tolist()
    first, second = constants("%y = ADD(w[4], w)")
    assert first.tolist() == second.tolist()


@pytest.mark.parametrize(
    ("constant", "values"),
    [
        ("w[2,2]=(1, -2.5, nan, -inf)", [[1, -2.5, np.nan, -np.inf][:2], [np.nan, -np.inf]]),
        ("w[3]=0.1", np.full(3, np.float32(0.1))),
        ("w[1]=(-0.0)", [-0.0]),
        ("w[1]=0x0100c07f", np.frombuffer(bytes.fromhex("0100c07f"), np.float32)),
        ("i32[2]=(-2147483648, 7)", [-2147483648, 7]),
        ("w:i64[]=9223372036854775807", 9223372036854775807),
        ("w:bool[2]=(true, false)", [True, False]),
        ("w:f16[1]=0.333", [np.float16(0.333)]),
        ("f32[0]=()", []),
        ('"a b"[1]=1e-40', [np.float32(1e-40)]),
    ],
)
def test_constants(constant: str, values: Any) -> None:
    model = from_text(f'graph g(%x: f32[1]) {{ %y: f32[1] = "op"(%x, {constant}) return %y }}')
    graph = Graph(model)
    (op,) = graph.operators()
    found = graph.constant(op.inputs[1])
    if isinstance(values, list) and not values:
        assert graph.shape(op.inputs[1]) == (0,)
        return
    assert found is not None
    assert found.tobytes() == np.asarray(values, found.dtype).tobytes()
    round_trip(model)


def test_everything_else() -> None:
    text = """
graph main(%x: f32[1,4], %p: bool[], %t: str[*]) {
  var %"a state": f32[1,4]
  tensor %scratch: f32[*]
  %y: f32[1,4] = IF(%p, %x) {then=@yes, else=@"not yes"}
  %~0: f32[1,4] = "my op"@2(%y, _, %"a state", w:i4[3]{scale=(0.5, 0.25, 1.0)}=0x2103) {custom=0x0102}
  %z: i8[1,?]{scale=0.1, zero=-3} = SVDF(%~0, %y, %y, _, %"a state") {rank=1, intermediates=(%scratch)}
  %y~1: f32[1,4] = BUILTIN_250(%z)
  return %y, %y~1
}
graph yes(%x: f32[1,4]) {
  %y: f32[1,4] = FULLY_CONNECTED(%x, w[4,4]=1.0, _) {activation=RELU6, weights_format=SHUFFLED4x16INT8}
  return %y
}
graph "not yes"(%x: f32[1,4]) {
  return %x
}
"""
    model = from_text(text)
    assert round_trip(model).replace("\n\n", "\n").strip() == text.strip()
    main = model.subgraphs[0]
    assert [t.name for t in main.tensors].count("y") == 2
    assert main.operators[0].builtin_options.else_subgraph_index == 2  # type: ignore[union-attr]
    assert main.operators[2].intermediates == [next(i for i, t in enumerate(main.tensors) if t.name == "scratch")]


def test_graphs_are_inferred_through_each_other() -> None:
    text = """
graph main(%p: bool[], %x: f32[1,4]) {
  %y: f32[*] = IF(%p, %x) {then=@a, else=@a}
  return %y
}
graph a(%x: f32[1,4]) {
  %n, %y = WHILE(i32[1]=0, %x) {cond=@c, body=@b}
  return %y
}
graph c(%n: i32[1], %x: f32[1,4]) {
  %go = LESS(%n, i32[1]=3)
  return %go
}
graph b(%n: i32[1], %x: f32[1,4]) {
  %m = ADD(%n, i32[1]=1)
  %y = ADD(%x, one[]=1.0)
  return %m, %y
}
"""
    with pytest.raises(TextError, match="line 7, column 3: the type of `%n` cannot be inferred") as error:
        from_text(text)
    assert (error.value.line, error.value.column) == (7, 3)
    model = from_text(text.replace("%n, %y =", "%n: i32[1], %y: f32[1,4] ="))
    assert Graph(model, 2).type(model.subgraphs[2].outputs[0]) is TensorType.BOOL
    x = np.zeros((1, 4), np.float32)
    assert run_model(model, {"p": np.array(True), "x": x})["y"].tolist() == [[3.0] * 4]
    round_trip(model)


def test_abbreviated_constants_do_not_read_back() -> None:
    text = to_text(from_text(EXAMPLE))
    assert "w[8,3,3,3]=...28be3beb" in text
    with pytest.raises(TextError, match=r"line 2.*left out of the text; print it with `limit=None`"):
        from_text(text)


def test_a_graph_is_printed_as_it_is_edited() -> None:
    model = from_text("graph g(%x: f32[4]) { %y = NEG(%x) %z = ABS(%y) return %z }")
    graph = Graph(model)
    *_, last = graph.operators()
    graph.replace(last, Op.ABS, [model.subgraphs[0].inputs[0]])
    assert "  %z: f32[4] = ABS(%x)\n  return" in to_text(graph)
    assert "NEG" not in to_text(graph)
    assert "NEG" in to_text(model)


ERRORS = {
    "": r"line 1, column 1: expected `graph`, found the end",
    "graph g(%x) { return %x }": r"line 1, column 11: expected `:`, found `\)`",
    "graph g(%x: f33[1]) { return %x }": r"column 13: expected a type, one of f32, f16.*found `f33`",
    "graph g(%x: f32[1.5]) { return %x }": r"expected a dimension, found `1.5`",
    "graph g(%x: f32[1]) { %y = ADD(%x, %z) return %y }": r"column 36: `%z` is not defined",
    "graph g(%x: f32[1]) { %y = ADD(%x, w) return %y }": r"`w` is not defined; the first mention of a constant has",
    "graph g(%x: f32[1]) { %y = AD(%x) return %y }": r"column 28: there is no operator `AD`; custom ones are quoted",
    "graph g(%x: f32[1]) { %x = NEG(%x) return %x }": r"`%x` is defined already",
    "graph g(%x: f32[1]) { %y = NEG(%x) {a=1} return %y }": r"NEG has no option `a`; it has none",
    "graph g(%x: f32[1]) {\n %y = ADD(%x, %x) {activation=SILU}\n return %y }": r"line 2, column 20: expected one of",
    "graph g(%x: f32[1]) { %y = ADD(%x, w[2]=(1)) return %y }": r"expected 2 values, found 1",
    "graph g(%x: f32[1]) { %y = ADD(%x, w[2]=0x00) return %y }": r"expected 8 bytes for 2 elements, found 1",
    "graph g(%x: f32[1]) { %y = ADD(%x, i32[]=1.5) return %y }": r"expected an integer, found `1.5`",
    "graph g(%x: f32[1]) { %y = ADD(%x, w:i8[]=128) return %y }": r"`128` does not fit into int8",
    "graph g(%x: f32[1]) { %y = ADD(%x, w[?]) return %y }": r"a constant has a fixed shape",
    "graph g(%x: f32[2]) { %y = ADD(%x, w[3]) return %y }": r"ADD #0 `y`: shapes \[2\] and \[3\] cannot be broadcast",
    "graph g(%x: f32[2]) { %y = QUANTIZE(%x) return %y }": r"the type of `%y` cannot be inferred; write it",
    'graph g(%x: f32[2]) { %y = "f"(%x) return %y }': r"the type of `%y` cannot be inferred; write it",
    "graph g(%x: f32[2]) { CALL_ONCE() {init=@h} return %x }": r"column 41: there is no graph `@h`",
    "graph g(%x: f32[2]) { %y = NEG(%x)": r"expected `return`, found the end",
    "graph g(%x: f32[2]) { %y = NEG(%x ! ) }": r"column 35: unexpected '!'",
    "graph g(%x: f32[2]{scales=1.0}) { return %x }": r"a tensor has no `scales`; it has scale, zero, axis",
}


@pytest.mark.parametrize("text", ERRORS)
def test_errors(text: str) -> None:
    with pytest.raises(TextError, match=ERRORS[text]) as error:
        from_text(text)
    assert isinstance(error.value, LitefuseError)


REFERENCES = ("branch_subgraph_indices", "called_computations")


def test_every_builtin_operator_keeps_its_options() -> None:
    """Each field of each options table, with another value than its default."""
    for kind in BuiltinOperator:
        cls = options_class(kind)
        if cls is None:
            continue
        table = cls()
        for field in cls.fields:
            if field.kind == "scalar" and not field.name.endswith(("_index", "subgraph")):
                value: Any = 3
                last = list(field.enum)[-1] if field.enum else value
                setattr(table, field.name, True if field.scalar == "bool" else last)
            elif field.kind == "string":
                setattr(table, field.name, 'a "b"\\\n')
            elif field.kind == "blob":
                setattr(table, field.name, b"\x01\xff")
            elif field.kind == "list" and field.scalar != "bool" and field.name not in REFERENCES:
                setattr(table, field.name, [1, 2] if field.enum else [1, -2])
        line = to_text(from_text(f"graph g(%x: f32[1]) {{ %y: f32[1] = {kind.name}(%x) return %y }}"))
        copy = from_text(line)
        op = copy.subgraphs[0].operators[0]
        second = op.builtin_options_2 is not None
        setattr(op, "builtin_options_2" if second else "builtin_options", table)
        again = from_text(to_text(copy, limit=None)).subgraphs[0].operators[0]
        assert list(diff(table, again.builtin_options_2 if second else again.builtin_options)) == [], kind


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(st.randoms(use_true_random=False))
def test_random_graphs(rnd: random.Random) -> None:
    text = random_graph(rnd)
    note(text)
    round_trip(from_text(text))


def test_prints_every_model(corpus_file: Path) -> None:
    model = read(corpus_file)
    text = to_text(model)
    assert text.count("\ngraph ") + 1 == len(model.subgraphs)
    if corpus_file.stat().st_size < _SMALL:
        round_trip(model)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = from_text(EXAMPLE)
    path = tmp_path / "m.tflite"
    write(model, path)
    assert invoke(["inspect", "--text", str(path)]) == 0
    assert capsys.readouterr().out == to_text(model)
    assert invoke(["inspect", "--text", str(path), str(tmp_path / "none.tflite"), str(path)]) == 3
    out, err = capsys.readouterr()
    assert out.count("graph main(") == 2
    assert "none.tflite: cannot be read" in err
    assert invoke(["inspect", "--text", "--json", str(path)]) == 2
