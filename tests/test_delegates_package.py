from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delegate import outputs_of, packaged, start, whole
from flatbuffers import flexbuffers

from litefuse.convert import convert
from litefuse.delegates.cost import Eager
from litefuse.delegates.formation import form
from litefuse.delegates.package import FORMAT, PACKAGE, PLAN, entangled, is_packaged, package, unfuse
from litefuse.delegates.targets import target
from litefuse.errors import UsageError
from litefuse.graph import Graph
from litefuse.graph.build import Builder
from litefuse.graph.compact import CONTROL_DEPENDENCIES, parse_control_dependencies, serialize_control_dependencies
from litefuse.graph.text import to_text
from litefuse.schema import Model, deepcopy, parse, to_bytes
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op, builtin_code
from litefuse.schema.tables import Buffer, Metadata, QuantizationParameters, StableHLOCompositeOptions
from litefuse.schema.validate import validate


class Group:
    def __init__(self, model: Model, numbers: list[int], kind: str = "elementwise", index: int = 0) -> None:
        graph = Graph(model, index)
        self.kind = kind
        self.operators = [model.subgraphs[index].operators[i] for i in numbers]
        made = {t for op in self.operators for t in op.outputs}
        read = [t for op in self.operators for t in op.inputs]
        self.inputs = list(dict.fromkeys(t for t in read if t >= 0 and t not in made and not graph.is_constant(t)))
        self.outputs = [
            t
            for t in made
            if t in graph.outputs or any(not any(r is o for o in self.operators) for r in graph.readers(t))
        ]


def chain() -> Model:
    """x -> RELU -> ADD c -> TANH -> MUL(relu) -> out, with a second output."""
    b = Builder()
    x = b.input("x", [1, 4, 4, 3])
    relu = b.op(Op.RELU, [x], name="relu", shape=[1, 4, 4, 3])
    add = b.op(Op.ADD, [relu, b.constant("c", np.float32([1, 2, 3]))], name="add", shape=[1, 4, 4, 3])
    tanh = b.op(Op.TANH, [add], name="tanh", shape=[1, 4, 4, 3])
    mul = b.op(Op.MUL, [tanh, relu], name="mul", shape=[1, 4, 4, 3])
    neg = b.op(Op.NEG, [mul], name="neg", shape=[1, 4, 4, 3])
    return b.model([neg, add], signature="serve")


def kinds(model: Model, index: int = 0) -> list[str]:
    return [Op(builtin_code(model.operator_codes[op.opcode_index])).name for op in model.subgraphs[index].operators]


def attributes(model: Model, index: int = 0) -> list[dict[str, Any]]:
    found = []
    for op in model.subgraphs[index].operators:
        if isinstance(op.builtin_options_2, StableHLOCompositeOptions):
            found.append(flexbuffers.Loads(bytearray(op.builtin_options_2.composite_attributes)))
    return found


def metadata(model: Model, name: str) -> Any:
    entry = next(m for m in model.metadata if m.name == name)
    return flexbuffers.Loads(bytearray(model.buffers[entry.buffer].data))


def test_composite_holds_the_operators_and_shares_the_buffers() -> None:
    model = chain()
    before = sum(len(b.data) for b in model.buffers if b.data is not None)
    done = package(model, {0: [Group(model, [1, 2])]}, "composite")
    assert done.regions == 1
    assert kinds(model) == ["RELU", "STABLEHLO_COMPOSITE", "MUL", "NEG"]
    assert kinds(model, 1) == ["ADD", "TANH"]
    options = model.subgraphs[0].operators[1].builtin_options_2
    assert options.name == "litefuse.elementwise"
    assert options.decomposition_subgraph_index == 1
    weights = [len(b.data) for b in model.buffers if b.data is not None]
    about = len(model.buffers[next(m for m in model.metadata if m.name == PACKAGE).buffer].data)
    assert sum(weights) == before + about
    assert not [p for p in validate(model) if p.severity == "error"]
    assert model.signature_defs[0].outputs[1].tensor_index == model.subgraphs[0].outputs[1]


def test_attributes_name_inputs_outputs_and_places() -> None:
    model = chain()
    package(model, {0: [Group(model, [1, 2, 3])]}, "composite")
    (found,) = attributes(model)
    inner = model.subgraphs[1]
    assert found["litefuse"] == FORMAT
    assert found["inputs"] == inner.inputs
    assert found["outputs"] == inner.outputs
    # `add` leaves, so only `tanh` is intermediate: operator 1, output 0, offset 0.
    assert found["places"] == [1, 0, 0]
    assert found["scratch_bytes"] == 192


def test_an_unknown_dimension_counts_as_one_and_an_unknown_rank_leaves_no_plan() -> None:
    b = Builder()
    x = b.input("x", [-1, 3])
    y = b.op(Op.NEG, [b.op(Op.RELU, [x], name="relu", shape=[-1, 3])], shape=[-1, 3])
    model = b.model([y])
    ranked, free = deepcopy(model), deepcopy(model)
    assert package(ranked, {0: [whole(ranked)]}).scratch_bytes == 64
    assert attributes(ranked)[0]["places"] == [0, 0, 0]
    hidden = free.subgraphs[0].tensors[free.subgraphs[0].operators[0].outputs[0]]
    hidden.shape, hidden.shape_signature, hidden.has_rank = [], None, False
    assert package(free, {0: [whole(free)]}).scratch_bytes == 0
    assert attributes(free)[0]["places"] == []


@pytest.mark.parametrize("mode", ["composite", "plan", "custom"])
def test_unfuse_gives_the_operators_back(mode: str) -> None:
    model = chain()
    original = deepcopy(model)
    package(model, {0: [Group(model, [1, 2]), Group(model, [3, 4], "other")]}, mode)
    assert is_packaged(model)
    again = parse(to_bytes(model))
    assert unfuse(again) == 2
    assert not is_packaged(again)
    assert len(again.subgraphs) == 1
    assert kinds(again) == kinds(original)
    x = np.random.default_rng(0).standard_normal((1, 4, 4, 3)).astype(np.float32)
    for got, want in zip(outputs_of(start(again), [x]), outputs_of(start(original), [x]), strict=True):
        np.testing.assert_array_equal(got, want)


def test_unfuse_of_composites_is_the_same_text() -> None:
    model = chain()
    before = to_text(model)
    package(model, {0: [Group(model, [1, 2])]})
    unfuse(model)
    # Tensors may be numbered otherwise; the text goes by names.
    assert sorted(to_text(model).splitlines()) == sorted(before.splitlines())


def test_stock_runs_composites_the_same() -> None:
    model = chain()
    x = np.random.default_rng(1).standard_normal((1, 4, 4, 3)).astype(np.float32)
    want = outputs_of(start(model), [x])
    package(model, {0: [Group(model, [1, 2]), Group(model, [3, 4])]})
    for got, expected in zip(outputs_of(start(model), [x]), want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_operators_are_put_in_an_order_that_runs() -> None:
    # The region {0, 2} reads what operator 1 makes, so it must come after it.
    b = Builder()
    x = b.input("x", [4])
    first = b.op(Op.RELU, [x], name="first", shape=[4])
    other = b.op(Op.NEG, [x], name="other", shape=[4])
    last = b.op(Op.ADD, [first, other], name="last", shape=[4])
    model = b.model([last])
    package(model, {0: [Group(model, [0, 2])]})
    assert kinds(model) == ["NEG", "STABLEHLO_COMPOSITE"]
    (got,) = outputs_of(start(model), [np.float32([1, -2, 3, -4])])
    np.testing.assert_array_equal(got, np.float32([0, 2, 0, 4]))


def half_weights() -> Model:
    """A float16 constant that three operators read."""
    b = Builder()
    x = b.input("x", [2, 3])
    half = b.constant("half", np.float16([[1, 2, 3]]))
    wide = b.op(Op.DEQUANTIZE, [half], name="wide", shape=[1, 3], type=TensorType.FLOAT32)
    a = b.op(Op.ADD, [x, wide], name="a", shape=[2, 3])
    m = b.op(Op.MUL, [a, wide], name="m", shape=[2, 3])
    s = b.op(Op.SUB, [m, wide], name="s", shape=[2, 3])
    return b.model([s])


@pytest.mark.parametrize("mode", ["composite", "plan", "custom"])
def test_what_is_in_two_groups_is_copied(mode: str) -> None:
    model = half_weights()
    original = deepcopy(model)
    package(model, {0: [Group(model, [0, 1]), Group(model, [0, 2])]}, mode)
    assert not [p for p in validate(model) if p.severity == "error"]
    # The third reader keeps the original where it was.
    outer = kinds(model)
    assert outer.count("DEQUANTIZE") == (3 if mode == "plan" else 1)
    if mode != "custom":
        x = np.float32([[1, 2, 3], [4, 5, 6]])
        np.testing.assert_array_equal(outputs_of(start(model), [x])[0], outputs_of(start(original), [x])[0])


def test_a_copied_operator_that_nobody_reads_any_more_is_gone() -> None:
    model = half_weights()
    package(model, {0: [Group(model, [0, 1]), Group(model, [0, 2]), Group(model, [0, 3])]})
    assert kinds(model) == ["STABLEHLO_COMPOSITE"] * 3


def test_plan_names_operators_and_fingerprint() -> None:
    model = chain()
    package(model, {0: [Group(model, [1, 2])]}, "plan", "generic-arm64")
    assert kinds(model) == ["RELU", "ADD", "TANH", "MUL", "NEG"]
    (region,) = metadata(model, PLAN)["regions"]
    assert region["kind"] == "elementwise"
    assert region["operators"] == [1, 2]
    assert 0 <= region["fingerprint"] < 2**63
    assert metadata(model, PACKAGE) == {
        "litefuse": FORMAT,
        "mode": "plan",
        "target": "generic-arm64",
        "regions": 1,
        "scratch_bytes": metadata(model, PACKAGE)["scratch_bytes"],
    }


def test_none_and_no_groups_change_nothing() -> None:
    model = chain()
    before = to_bytes(model)
    assert package(model, {0: [Group(model, [1, 2])]}, "none").regions == 0
    assert package(model, {0: []}).regions == 0
    assert to_bytes(model) == before
    assert unfuse(model) == 0


def test_unknown_mode() -> None:
    with pytest.raises(UsageError, match="no packaging `zip`; there are composite, plan, custom, none"):
        package(chain(), {}, "zip")


def test_packaging_is_deterministic() -> None:
    assert to_bytes(packaged(chain())) == to_bytes(packaged(chain()))
    assert to_bytes(packaged(chain(), "plan")) == to_bytes(packaged(chain(), "plan"))


def test_a_composite_whose_decomposition_does_not_fit_is_left() -> None:
    model = chain()
    package(model, {0: [Group(model, [1, 2])]})
    model.subgraphs[1].inputs = []
    assert unfuse(model) == 0
    assert "STABLEHLO_COMPOSITE" in kinds(model)


def test_regions_that_state_holds_apart() -> None:
    """x -> RELU -> ASSIGN v; READ v -> NEG; ADD of both: as one region it would wait for itself."""
    b = Builder()
    x = b.input("x", [2])
    v = b.op(Op.VAR_HANDLE, [], name="v", shape=[], type=TensorType.RESOURCE, container="", shared_name="v")
    relu = b.op(Op.RELU, [x], name="relu", shape=[2])
    b.op(Op.ASSIGN_VARIABLE, [v, relu], name="nothing", shape=[])
    read = b.op(Op.READ_VARIABLE, [v], name="read", shape=[2], type=TensorType.FLOAT32)
    neg = b.op(Op.NEG, [read], name="neg", shape=[2])
    model = b.model([b.op(Op.ADD, [relu, neg], name="sum", shape=[2])])
    model.subgraphs[0].operators[2].outputs = []
    fine, tied = Group(model, [4, 5]), Group(model, [1, 4, 5])
    assert entangled(model, 0, [fine]) == []
    assert entangled(model, 0, [tied]) == [tied]
    formation = form(deepcopy(model), target("x86-64-v3"), "plan", cost_model=Eager(target("x86-64-v3")))
    assert all(r.region.operators for r in formation.regions)


def test_rules_drop_a_plan_that_no_longer_fits() -> None:
    # RELU goes into the ADD before it, of which the plan knows nothing.
    b = Builder()
    x = b.input("x", [4])
    add = b.op(Op.ADD, [x, b.constant("c", np.float32([1, 2, 3, 4]))], name="add", shape=[4])
    relu = b.op(Op.RELU, [add], name="relu", shape=[4])
    model = b.model([b.op(Op.NEG, [relu], name="neg", shape=[4])])
    package(model, {0: [whole(model)]}, "plan")
    kept = convert(model, disable=["fuse-activation"], check=False)
    assert is_packaged(kept.model)
    done = convert(model, check=False)
    assert not is_packaged(done.model)
    assert any("the plan of regions was dropped" in note for note in done.fusions.notes)


@pytest.mark.parametrize("mode", ["composite", "plan", "custom"])
def test_what_feeds_a_copied_operator_is_copied_too(mode: str) -> None:
    """half -> DEQUANTIZE -> TRANSPOSE, of which the second is read by the region and leaves the graph as well."""
    b = Builder()
    x = b.input("x", [3, 2])
    half = b.constant("half", np.float16([[1, 2, 3], [4, 5, 6]]))
    wide = b.op(Op.DEQUANTIZE, [half], name="wide", shape=[2, 3], type=TensorType.FLOAT32)
    turned = b.op(Op.TRANSPOSE, [wide, b.constant("p", np.int32([1, 0]))], name="turned", shape=[3, 2])
    relu = b.op(Op.RELU, [b.op(Op.ADD, [x, turned], name="sum", shape=[3, 2])], name="relu", shape=[3, 2])
    model = b.model([relu, turned])
    original = deepcopy(model)
    group = Group(model, [0, 1, 2, 3])
    group.outputs = [relu]
    package(model, {0: [group]}, mode)
    assert not [p for p in validate(model) if p.severity == "error"]
    value = [np.ones((3, 2), np.float32)]
    want = outputs_of(start(original), value)
    unfuse(model)
    for got, expected in zip(outputs_of(start(model), value), want, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("mode", ["composite", "custom"])
def test_unfuse_keeps_constants_of_other_scales_apart(mode: str) -> None:
    b = Builder()
    x = b.input("x", [4])
    sums = []
    for i, scale in enumerate((0.1, 0.02)):
        q = QuantizationParameters(scale=[scale], zero_point=[0])
        c = b.constant("c", np.int8([1, 2, 3, 4]), quantization=q)
        wide = b.op(Op.DEQUANTIZE, [c], name=f"wide{i}", shape=[4], type=TensorType.FLOAT32)
        sums.append(b.op(Op.ADD, [x, wide], name=f"sum{i}", shape=[4]))
    model = b.model(sums)
    buffers = [model.subgraphs[0].tensors[model.subgraphs[0].operators[i].inputs[0]] for i in (0, 2)]
    buffers[1].buffer = buffers[0].buffer
    want = outputs_of(start(model), [np.ones(4, np.float32)])
    package(model, {0: [Group(model, [0, 1]), Group(model, [2, 3])]}, mode)
    assert unfuse(model) == 2
    for got, expected in zip(outputs_of(start(model), [np.ones(4, np.float32)]), want, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("mode", ["composite", "plan"])
def test_control_dependencies_go_along(mode: str) -> None:
    b = Builder()
    x = b.input("x", [4])
    first = b.op(Op.RELU, [x], name="first", shape=[4])
    second = b.op(Op.NEG, [x], name="second", shape=[4])
    third = b.op(Op.ABS, [first], name="third", shape=[4])
    model = b.model([second, third])
    model.buffers.append(Buffer(data=serialize_control_dependencies([[(0, 1), (1, 2)]])))
    model.metadata.append(Metadata(name=CONTROL_DEPENDENCIES, buffer=len(model.buffers) - 1))
    # `second` comes after `first` and before `third`: together they would wait for it, and it for them.
    assert entangled(model, 0, [Group(model, [0, 2])]) != []
    notes = package(model, {0: [Group(model, [1])]}, mode).notes
    assert notes == []
    entry = next(m for m in model.metadata if m.name == CONTROL_DEPENDENCIES)
    pairs = parse_control_dependencies(bytes(model.buffers[entry.buffer].data))
    assert pairs is not None
    assert pairs[0] == ([(0, 1), (1, 2)] if mode == "plan" else [(0, 2)])
    assert len(pairs) == len(model.subgraphs)
