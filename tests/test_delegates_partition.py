"""Regions: what is fused in known graphs, and an independent check of every partition of real and random graphs."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from graphs import random_graph

from litefuse.delegates.cost import Eager
from litefuse.delegates.kinds import supported
from litefuse.delegates.naming import KINDS
from litefuse.delegates.network import Network
from litefuse.delegates.partition import partition
from litefuse.delegates.regions import Partition, Region
from litefuse.delegates.targets import Target, target
from litefuse.errors import UsageError
from litefuse.fusions import rules, run
from litefuse.fusions.pipeline import decompositions
from litefuse.graph.graph import NOT_PURE, Graph
from litefuse.graph.text import from_text
from litefuse.schema import Model, read
from litefuse.schema.enums import TensorType
from litefuse.schema.tables import Operator

ARM = target("generic-arm64")
X86 = target("x86-64-v3")


def regions_of(text: str, where: Target = ARM, **options: object) -> Partition:
    model = from_text(text)
    graph = Graph(model, 0)
    found = partition(graph, where, **options)  # type: ignore[arg-type]
    check(graph, found)
    return found


def kinds(found: Partition) -> list[str]:
    return [region.kind for region in found.regions]


def names(graph: Graph, operators: Iterable[Operator]) -> list[str]:
    return [graph.kind(op).name for op in operators]


# -- the independent check -----------------------------------------------------------------------------------------


def check(graph: Graph, found: Partition) -> None:
    """Asserts all that the docstrings promise, from the operators' own tables alone."""
    order = list(graph.subgraph.operators)
    position = {op: i for i, op in enumerate(order)}
    home: dict[Operator, int] = {}
    for number, region in enumerate(found.regions):
        assert region.kind in KINDS
        assert len(region.operators) <= found.target.max_operators + len(region.copies)
        assert [position[op] for op in region.operators] == sorted({position[op] for op in region.operators})
        own = [op for op in region.operators if op not in region.copies]
        parts = [region.root, *region.prologue, *region.epilogue]
        assert sorted(position[op] for op in parts) == [position[op] for op in own]
        for op in own:
            assert op not in home, "in two regions"
            home[op] = number
            assert graph.kind(op) not in NOT_PURE
            assert not any(graph.tensor(t).is_variable for t in (*op.inputs, *op.outputs) if t >= 0)
        for op in region.copies:
            assert op in region.operators
            assert is_fixed(graph, op)
        check_borders(graph, region)
        check_connected(graph, region, own)
        # What is beside another region need not gain anything by itself.
        assert region.cost.fused_us - found.target.region_us <= region.cost.stock_us * 1.02
        assert region.cost.scratch >= 0
    check_acyclic(graph, order, home, found)


def is_fixed(graph: Graph, op: Operator) -> bool:
    """Whether an operator computes the same in every run."""
    if graph.kind(op) in NOT_PURE or not op.inputs:
        return False
    return all(
        graph.is_constant(t) or ((maker := graph.producer(t)) is not None and is_fixed(graph, maker))
        for t in op.inputs
        if t >= 0
    )


def flows(graph: Graph, tensor: int) -> bool:
    maker = graph.producer(tensor)
    if maker is not None:
        return not is_fixed(graph, maker)
    return tensor in graph.inputs


def check_borders(graph: Graph, region: Region) -> None:
    inside = set(region.operators)
    made = {t for op in region.operators for t in op.outputs}
    read = [t for op in region.operators for t in op.inputs if t >= 0]
    expected = list(dict.fromkeys(t for t in read if t not in made and flows(graph, t)))
    assert region.inputs == expected
    # Whatever else it reads, the region holds: constants, and what it computes of them.
    for t in read:
        assert t in made or t in region.inputs or graph.producer(t) is None
    copied = {t for op in region.copies for t in op.outputs}
    needed = {
        t for t in made - copied if t in graph.outputs or any(reader not in inside for reader in graph.readers(t))
    }
    assert set(region.outputs) == needed
    assert len(region.outputs) == len(needed)
    assert region.outputs


def check_connected(graph: Graph, region: Region, own: list[Operator]) -> None:
    reached, todo = {own[0]}, [own[0]]
    while todo:
        op = todo.pop()
        near = [graph.producer(t) for t in op.inputs if t >= 0]
        near += [reader for t in op.outputs for reader in graph.readers(t)]
        for other in near:
            if other in own and other not in reached:
                reached.add(other)  # type: ignore[arg-type]
                todo.append(other)  # type: ignore[arg-type]
    assert len(reached) == len(own), f"{region.kind} is in pieces"


def check_acyclic(graph: Graph, order: list[Operator], home: dict[Operator, int], found: Partition) -> None:
    """Collapses all regions at once and looks for an order in which the nodes can run."""
    nodes: dict[Operator, object] = {op: home.get(op, op) for op in order}
    copies = {op for region in found.regions for op in region.copies}
    after: dict[object, set[object]] = {node: set() for node in nodes.values()}
    for op in order:
        for t in op.inputs:
            maker = graph.producer(t) if t >= 0 else None
            if maker is not None and maker not in copies and nodes[maker] != nodes[op]:
                after[nodes[maker]].add(nodes[op])
    waits = dict.fromkeys(after, 0)
    for followers in after.values():
        for follower in followers:
            waits[follower] += 1
    ready = [node for node, count in waits.items() if not count]
    done = 0
    while ready:
        done += 1
        for follower in after[ready.pop()]:
            waits[follower] -= 1
            if not waits[follower]:
                ready.append(follower)
    assert done == len(after), "the regions wait for each other"


def optimised(path: Path) -> Model:
    model = read(path)
    run(model, rules())
    return model


def test_real_models(corpus_file: Path) -> None:
    model = optimised(corpus_file)
    left_alone = decompositions(model)
    for index in range(len(model.subgraphs)):
        if index in left_alone:
            continue
        graph = Graph(model, index)
        inferred = Network(graph).inferred
        for found in (
            partition(graph, ARM),
            partition(graph, X86),
            partition(graph, target("hexagon-v68")),
            partition(graph, ARM, model=Eager(ARM)),
        ):
            check(graph, found)
            covered = {op for region in found.regions for op in region.operators}
            for op in covered:
                assert is_fixed(graph, op) or supported(graph, op, inferred) is None


@pytest.mark.parametrize("seed", range(200))
def test_random_graphs(seed: int) -> None:
    model = from_text(random_graph(random.Random(seed), most=24))
    graph = Graph(model, 0)
    check(graph, partition(graph, ARM))
    check(graph, partition(graph, ARM, model=Eager(ARM)))


@pytest.mark.parametrize("seed", range(60))
def test_damaged_graphs(seed: int) -> None:
    """Whatever is wrong with the tables, partitioning comes to an end and raises nothing."""
    rnd = random.Random(seed)
    model = from_text(random_graph(rnd, most=16))
    main = model.subgraphs[0]
    for _ in range(3):
        tensor, op = rnd.choice(main.tensors), rnd.choice(main.operators)
        damage = rnd.randrange(6)
        if damage == 0:
            tensor.shape = [rnd.choice((0, 1, 3, -1, 2**31 - 1)) for _ in range(rnd.randrange(6))]
        elif damage == 1:
            tensor.type = rnd.choice(list(TensorType))
        elif damage == 2:
            op.inputs[rnd.randrange(len(op.inputs))] = rnd.randrange(-1, len(main.tensors))
        elif damage == 3:
            op.inputs = op.inputs[: rnd.randrange(len(op.inputs))] or [-1]
        elif damage == 4:
            op.builtin_options = None
        else:
            tensor.shape, tensor.quantization = None, None
    for costs in (None, Eager(ARM)):
        found = partition(Graph(model, 0), ARM, model=costs)
        assert all(region.outputs for region in found.regions)


@pytest.mark.parametrize("seed", range(60))
def test_tangled_graphs(seed: int) -> None:
    """Many short branches that meet again: what is convex by itself may still wait for another region."""
    rnd = random.Random(seed)
    lines, values = ["graph main(%v0: f32[1,32,32,16]) {"], ["%v0"]
    for i in range(1, 60):
        name, recent = f"%v{i}", values[-8:]
        kind = rnd.choice(("ADD", "MUL", "TANH", "CONV_2D", "CONV_2D", "DEPTHWISE_CONV_2D", "LOGISTIC"))
        if kind in ("ADD", "MUL"):
            call = f"{kind}({rnd.choice(recent)}, {rnd.choice(recent)})"
        elif kind == "CONV_2D":
            call = f"CONV_2D({rnd.choice(recent)}, w{i}[16,1,1,16], b{i}[16])"
        elif kind == "DEPTHWISE_CONV_2D":
            call = f"DEPTHWISE_CONV_2D({rnd.choice(recent)}, w{i}[1,3,3,16], b{i}[16]) {{padding=SAME}}"
        else:
            call = f"{kind}({rnd.choice(recent)})"
        lines.append(f"  {name} = {call}")
        values.append(name)
    lines += [f"  return {', '.join(rnd.sample(values[1:], 3))}", "}"]
    graph = Graph(from_text("\n".join(lines)), 0)
    for model in (None, Eager(ARM)):
        found = partition(graph, ARM, model=model)
        check(graph, found)
        assert found.regions or model is None


def test_time_is_linear() -> None:
    def graph(blocks: int) -> Graph:
        lines, x = ["graph main(%x: f32[1,28,28,24]) {"], "%x"
        for i in range(blocks):
            lines += [
                f"  %a{i} = CONV_2D({x}, w_{i}[96,1,1,24], b_{i}[96])",
                f"  %s{i} = LOGISTIC(%a{i})",
                f"  %m{i} = MUL(%a{i}, %s{i})",
                f"  %d{i} = DEPTHWISE_CONV_2D(%m{i}, v_{i}[1,3,3,96], c_{i}[96]) {{padding=SAME, activation=RELU6}}",
                f"  %p{i} = CONV_2D(%d{i}, z_{i}[24,1,1,96], e_{i}[24])",
                f"  %r{i} = ADD(%p{i}, {x})",
                f"  %t{i} = TANH(%r{i})",
                f"  %u{i} = EXP(%r{i})",
                f"  %v{i} = MUL(%t{i}, %u{i})",
                f"  %y{i} = RELU(%v{i})",
            ]
            x = f"%y{i}"
        return Graph(from_text("\n".join([*lines, f"  return {x}", "}"])), 0)

    def seconds(blocks: int) -> float:
        made = graph(blocks)
        times = []
        for _ in range(3):
            start = time.process_time()
            found = partition(made, ARM)
            times.append(time.process_time() - start)
        assert len(found.regions) >= blocks
        return min(times)

    short, long = seconds(25), seconds(100)
    assert long < 1.5
    assert long < 8 * short


# -- what is fused -------------------------------------------------------------------------------------------------


def test_silu_diamond_is_taken_whole() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,56,56,32]) {
          %y = CONV_2D(%x, w[64,1,1,32], b[64])
          %s = LOGISTIC(%y)
          %z = MUL(%y, %s)
          return %z
        }
        """
    )
    assert kinds(found) == ["conv_epilogue"]
    assert len(found.regions[0].operators) == 3
    assert len(found.regions[0].outputs) == 1


def test_residual_belongs_to_the_last_convolution() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,56,56,32]) {
          %a = CONV_2D(%x, w[64,3,3,32], b[64]) {padding=SAME, stride=2}
          %c = CONV_2D(%x, u[64,3,3,32], d[64]) {padding=SAME, stride=2}
          %r = ADD(%a, %c)
          %z = PRELU(%r, alpha[1,1,64])
          return %z
        }
        """,
        model=Eager(ARM),
    )
    wide = max(found.regions, key=lambda region: len(region.operators))
    assert len(wide.operators) == 3
    assert len(wide.inputs) == 2


@pytest.mark.parametrize(
    ("activation", "steps"),
    [
        ("hard sigmoid gate", ["%a = ADD(%y, 0)", "%b = RELU6(%a)", "%c = MUL(%b, 1)", "%z = MUL(%c, %y)"]),
        ("decomposed prelu", ["%a = RELU(%y)", "%n = NEG(%y)", "%b = RELU(%n)", "%c = MUL(%b, 1)", "%z = SUB(%a, %c)"]),
        ("leaky by maximum", ["%a = MUL(%y, 1)", "%z = MAXIMUM(%y, %a)"]),
        ("mish", ["%e = EXP(%y)", "%a = ADD(%e, 0)", "%l = LOG(%a)", "%t = TANH(%l)", "%z = MUL(%t, %y)"]),
    ],
)
def test_gates_are_taken_whole(activation: str, steps: list[str]) -> None:
    body = "\n".join(steps).replace(", 0)", ", three[]=3.0)").replace(", 1)", ", sixth[64]=0.1666)")
    found = regions_of(
        f"""
        graph main(%x: f32[1,56,56,32]) {{
          %y = CONV_2D(%x, w[64,1,1,32], b[64])
          {body}
          return %z
        }}
        """
    )
    assert kinds(found) == ["conv_epilogue"], activation
    assert len(found.regions[0].operators) == len(steps) + 1


def test_gated_linear_unit() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,56,56,32]) {
          %y = CONV_2D(%x, w[128,1,1,32], b[128])
          %a, %g = SPLIT(i32[]=3, %y)
          %s = LOGISTIC(%g)
          %m = MUL(%a, %s)
          %z = ADD(%m, c[64])
          return %z
        }
        """
    )
    (region,) = found.regions
    assert region.kind == "conv_epilogue"
    assert len(region.operators) == 5


def test_intermediate_that_leaves_the_graph_ends_the_epilogue() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,56,56,32]) {
          %y = CONV_2D(%x, w[64,1,1,32], b[64])
          %p = PRELU(%y, alpha[1,1,64])
          %z = TANH(%p)
          return %p, %z
        }
        """
    )
    assert all(set(region.outputs) for region in found.regions)
    assert "conv_epilogue" in kinds(found)
    assert len(found.regions[0].operators) == 2


def test_inverted_residual() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,56,56,24]) {
          %e = CONV_2D(%x, w[96,1,1,24], b[96]) {activation=RELU6}
          %d = DEPTHWISE_CONV_2D(%e, v[1,3,3,96], c[96]) {padding=SAME, activation=RELU6}
          %p = CONV_2D(%d, u[24,1,1,96], f[24])
          %y = ADD(%p, %x)
          return %y
        }
        """
    )
    (region,) = found.regions
    assert region.kind == "inverted_residual"
    assert region.inputs == [0]
    assert region.cost.bytes_internal == 4 * 56 * 56 * (96 + 96 + 24)


def test_depthwise_pointwise_and_prologue_of_both() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,56,56,64]) {
          %s = MUL(%x, scale[64])
          %t = ADD(%s, shift[64]) {activation=RELU}
          %d = DEPTHWISE_CONV_2D(%t, v[1,3,3,64], c[64]) {padding=SAME, activation=RELU6}
          %p = CONV_2D(%d, u[64,1,1,64], f[64]) {activation=RELU6}
          return %p
        }
        """
    )
    (region,) = found.regions
    assert region.kind == "depthwise_pointwise"
    assert len(region.prologue) == 2


def test_pre_activation_is_a_prologue() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,28,28,64], %y: f32[1,28,28,64]) {
          %c = CONCATENATION(%x, %y) {axis=3}
          %s = MUL(%c, scale[128])
          %t = ADD(%s, shift[128]) {activation=RELU}
          %d = CONV_2D(%t, v[32,1,1,128], b[32])
          return %d, %c
        }
        """
    )
    assert kinds(found) == ["movement", "conv_prologue"]  # the first because it is next to the second
    assert len(found.regions[1].operators) == 3


def test_pre_activation_that_others_read_is_an_output_besides() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,56,56,64]) {
          %s = MUL(%x, scale[64])
          %t = ADD(%s, shift[64]) {activation=RELU}
          %d = CONV_2D(%t, v[32,1,1,64], b[32])
          return %d, %t
        }
        """
    )
    assert kinds(found) == ["conv_prologue"]
    assert len(found.regions[0].outputs) == 2


LAYER_NORMS = {
    "squared difference": """
          %m = MEAN(%x, i32[1]=(2)) {keep_dims=true}
          %q = SQUARED_DIFFERENCE(%x, %m)
          %v = MEAN(%q, i32[1]=(2)) {keep_dims=true}
          %e = ADD(%v, eps[]=0.001)
          %r = RSQRT(%e)
          %d = SUB(%x, %m)
          %n = MUL(%d, %r)
          %g = MUL(%n, gamma[96])
          %y = ADD(%g, beta[96])
    """,
    "square of the difference": """
          %m = MEAN(%x, i32[1]=(2)) {keep_dims=true}
          %d = SUB(%x, %m)
          %q = MUL(%d, %d)
          %v = MEAN(%q, i32[1]=(2)) {keep_dims=true}
          %e = ADD(%v, eps[]=0.001)
          %r = SQRT(%e)
          %n = DIV(%d, %r)
          %y = ADD(%n, beta[96])
    """,
    "mean of squares": """
          %m = MEAN(%x, i32[1]=(2)) {keep_dims=true}
          %s = SQUARE(%x)
          %a = MEAN(%s, i32[1]=(2)) {keep_dims=true}
          %b = SQUARE(%m)
          %v = SUB(%a, %b)
          %e = ADD(%v, eps[]=0.001)
          %r = RSQRT(%e)
          %d = SUB(%x, %m)
          %y = MUL(%d, %r)
    """,
    "multiplied out": """
          %m = MEAN(%x, i32[1]=(2)) {keep_dims=true}
          %q = SQUARED_DIFFERENCE(%x, %m)
          %v = MEAN(%q, i32[1]=(2)) {keep_dims=true}
          %e = ADD(%v, eps[]=0.001)
          %r = RSQRT(%e)
          %g = MUL(%r, gamma[96])
          %a = MUL(%x, %g)
          %b = MUL(%m, %g)
          %c = SUB(beta[96], %b)
          %y = ADD(%a, %c)
    """,
}


@pytest.mark.parametrize("spelling", LAYER_NORMS)
def test_layer_norm(spelling: str) -> None:
    found = regions_of(f"graph main(%x: f32[1,64,96]) {{ {LAYER_NORMS[spelling]} return %y, %x }}")
    (region,) = found.regions
    assert region.kind == "layer_norm"
    assert len(region.operators) == LAYER_NORMS[spelling].count("=") - LAYER_NORMS[spelling].count("keep_dims") - (
        LAYER_NORMS[spelling].count("]=")
    )
    assert region.inputs == [0]


def test_norm_in_integers_takes_its_conversions_inside() -> None:
    q = "{scale=0.02, zero=3}"
    found = regions_of(
        f"""
        graph main(%i: i8[1,64,96]{q}) {{
          %x = DEQUANTIZE(%i)
          {LAYER_NORMS["squared difference"]}
          %o: i8[1,64,96]{{scale=0.03, zero=0}} = QUANTIZE(%y)
          return %o
        }}
        """,
        slow=True,
    )
    (region,) = found.regions
    assert region.kind == "layer_norm"
    assert len(region.operators) == 11
    assert region.cost.bytes_in == region.cost.bytes_out == 64 * 96


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (
            "rms_norm",
            """%s = SQUARE(%x) %m = MEAN(%s, i32[1]=(3)) {keep_dims=true} %e = ADD(%m, eps[]=0.001) %r = RSQRT(%e)
               %n = MUL(%x, %r) %y = MUL(%n, gamma[64])""",
        ),
        (
            "l2_norm",
            """%s = MUL(%x, %x) %m = SUM(%s, i32[1]=(3)) {keep_dims=true} %e = MAXIMUM(%m, eps[]=0.001)
               %r = RSQRT(%e) %y = MUL(%x, %r)""",
        ),
        (
            "instance_norm",
            """%m = MEAN(%x, i32[2]=(1, 2)) {keep_dims=true} %q = SQUARED_DIFFERENCE(%x, %m)
               %v = MEAN(%q, i32[2]=(1, 2)) {keep_dims=true} %e = ADD(%v, eps[]=0.001) %r = RSQRT(%e)
               %d = SUB(%x, %m) %y = MUL(%d, %r)""",
        ),
        (
            "group_norm",
            """%z = RESHAPE(%x, i32[4]=(1, 1024, 8, 8)) %m = MEAN(%z, i32[2]=(1, 3)) {keep_dims=true}
               %q = SQUARED_DIFFERENCE(%z, %m) %v = MEAN(%q, i32[2]=(1, 3)) {keep_dims=true}
               %e = ADD(%v, eps[]=0.001) %r = RSQRT(%e) %d = SUB(%z, %m) %n = MUL(%d, %r)
               %w = RESHAPE(%n, i32[4]=(1, 32, 32, 64)) %g = MUL(%w, gamma[64]) %y = ADD(%g, beta[64])""",
        ),
        (
            "softmax",
            """%m = REDUCE_MAX(%x, i32[1]=(1)) {keep_dims=true} %d = SUB(%x, %m) %e = EXP(%d)
               %s = SUM(%e, i32[1]=(1)) {keep_dims=true} %y = DIV(%e, %s)""",
        ),
        (
            "squeeze_excite",
            """%m = MEAN(%x, i32[2]=(1, 2)) {keep_dims=true} %a = CONV_2D(%m, w[8,1,1,64], b[8]) {activation=RELU}
               %c = CONV_2D(%a, u[64,1,1,8], d[64]) %s = LOGISTIC(%c) %y = MUL(%x, %s)""",
        ),
    ],
)
def test_reductions_that_meet_their_input(kind: str, body: str) -> None:
    # The gate by itself saves little, since all pixels have to be read twice.
    options: dict[str, object] = {"model": Eager(ARM)} if kind == "squeeze_excite" else {}
    options["slow"] = kind in ("group_norm", "softmax")
    found = regions_of(f"graph main(%x: f32[1,32,32,64]) {{ {body} return %y, %x }}", **options)
    (region,) = found.regions
    assert region.kind == kind
    assert region.inputs == [0]
    assert len(found.regions[0].operators) == body.count("%") - sum(body.count(c) for c in ("(%", ", %"))


def test_squeeze_excite_goes_into_the_projection() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,56,56,96]) {
          %m = MEAN(%x, i32[2]=(1, 2)) {keep_dims=true}
          %a = CONV_2D(%m, w[8,1,1,96], b[8]) {activation=RELU}
          %c = CONV_2D(%a, u[96,1,1,8], d[96])
          %s = LOGISTIC(%c)
          %g = MUL(%x, %s)
          %y = CONV_2D(%g, p[24,1,1,96], o[24])
          return %y
        }
        """
    )
    assert kinds(found) == ["squeeze_excite_project"]


def test_attention() -> None:
    found = regions_of(
        """
        graph main(%q: f32[1,4,64,32], %k: f32[1,4,64,32], %v: f32[1,4,64,32], %mask: f32[1,1,64,64]) {
          %s = BATCH_MATMUL(%q, %k) {adj_y=true}
          %t = MUL(%s, scale[]=0.17)
          %u = ADD(%t, %mask)
          %p = SOFTMAX(%u)
          %o = BATCH_MATMUL(%p, %v)
          %y = TRANSPOSE(%o, i32[4]=(0, 2, 1, 3))
          return %y
        }
        """,
        slow=True,
    )
    (region,) = found.regions
    assert region.kind == "attention"
    assert len(region.operators) == 6
    assert len(region.inputs) == 4


def test_convnext_block() -> None:
    found = regions_of(
        """
        graph main(%i: f32[1,28,28,96]) {
          %x = DEPTHWISE_CONV_2D(%i, v[1,7,7,96], c[96]) {padding=SAME}
          %m = MEAN(%x, i32[1]=(3)) {keep_dims=true}
          %q = SQUARED_DIFFERENCE(%x, %m)
          %v = MEAN(%q, i32[1]=(3)) {keep_dims=true}
          %e = ADD(%v, eps[]=0.001)
          %r = RSQRT(%e)
          %d = SUB(%x, %m)
          %n = MUL(%d, %r)
          %a = CONV_2D(%n, w[384,1,1,96], b[384])
          %g = GELU(%a)
          %p = CONV_2D(%g, u[96,1,1,384], f[96])
          %y = ADD(%p, %i)
          return %y
        }
        """
    )
    assert kinds(found) == ["convnext_block"]
    assert len(found.regions[0].operators) == 12


def test_elementwise_cluster_and_its_conversions() -> None:
    found = regions_of(
        """
        graph main(%i: i8[1,64,64,16]{scale=0.1, zero=0}, %k: f32[1,64,64,16]) {
          %x = DEQUANTIZE(%i)
          %a = TANH(%x)
          %b = MUL(%a, %k)
          %c = ADD(%b, %k)
          %o: i8[1,64,64,16]{scale=0.1, zero=0} = QUANTIZE(%c)
          return %o
        }
        """,
        slow=True,
    )
    assert kinds(found) == ["elementwise"]
    assert len(found.regions[0].operators) == 5


def test_padding_resizing_and_concatenation_precede() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,32,32,32], %z: f32[1,64,64,32]) {
          %p = MIRROR_PAD(%x, i32[4,2]=(0, 0, 1, 1, 1, 1, 0, 0))
          %a = CONV_2D(%p, w[32,3,3,32], b[32]) {stride=2}
          %u = RESIZE_NEAREST_NEIGHBOR(%x, i32[2]=(64, 64))
          %c = CONCATENATION(%u, %z) {axis=3}
          %d = CONV_2D(%c, v[16,1,1,64], e[16])
          return %a, %d
        }
        """,
        model=Eager(ARM),
    )
    assert "pad_conv" in kinds(found)
    region = next(r for r in found.regions if r.kind in ("upsample_conv", "concat_conv"))
    assert len(region.operators) == 3


def test_pool_ends_a_region() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,96,96,3]) {
          %a = CONV_2D(%x, w[16,3,3,3], b[16])
          %p = PRELU(%a, alpha[1,1,16])
          %y = MAX_POOL_2D(%p) {filter=2, stride=2}
          return %y
        }
        """
    )
    assert kinds(found) == ["conv_pool"]


def test_recurrent_cell_takes_both_products() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,64], %h: f32[1,64], %c: f32[1,64]) {
          %a = FULLY_CONNECTED(%x, w[256,64], b[256])
          %d = FULLY_CONNECTED(%h, u[256,64], _)
          %s = ADD(%a, %d)
          %i, %f, %g, %o = SPLIT(i32[]=1, %s)
          %si = LOGISTIC(%i)
          %sf = LOGISTIC(%f)
          %tg = TANH(%g)
          %so = LOGISTIC(%o)
          %m = MUL(%sf, %c)
          %n = MUL(%si, %tg)
          %c2 = ADD(%m, %n)
          %tc = TANH(%c2)
          %h2 = MUL(%so, %tc)
          return %h2, %c2
        }
        """
    )
    assert kinds(found) == ["gated_cell"]
    assert len(found.regions[0].operators) == 13


def test_weights_in_half_precision_go_with_every_reader() -> None:
    model = from_text(
        """
        graph main(%x: f32[1,56,56,32]) {
          %w = DEQUANTIZE(h:f16[64,1,1,32])
          %v = DEQUANTIZE(g:f16[32,1,1,64])
          %y = CONV_2D(%x, %w, b[64])
          %s = LOGISTIC(%y)
          %z = MUL(%y, %s)
          %k = CONV_2D(%z, %v, c[32])
          %m = CONV_2D(%x, %w, b)
          %p = PRELU(%m, alpha[1,1,64])
          %t = ADD(%p, %z)
          return %k, %t
        }
        """
    )
    graph = Graph(model, 0)
    found = partition(graph, ARM)
    check(graph, found)
    assert kinds(found) == ["conv_epilogue", "conv", "conv_epilogue"]
    for region in (found.regions[0], found.regions[2]):
        assert names(graph, region.copies) == ["DEQUANTIZE"]
        assert region.operators[0] is region.copies[0] is graph.subgraph.operators[0]
    assert found.regions[0].inputs == [0]


# -- what is not ---------------------------------------------------------------------------------------------------


def test_single_operators_stay() -> None:
    found = regions_of("graph main(%x: f32[1,56,56,32]) { %y = CONV_2D(%x, w[64,1,1,32], b[64]) return %y }")
    assert not found.regions
    (refusal,) = found.refused
    assert refusal.rule == "conv"
    assert "nothing around it" in refusal.reason


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("DEPTHWISE_CONV_2D(%x, w[1,7,7,32], b[32]) {padding=SAME}", "depthwise"),
        ("CONV_2D(%x, w[32,7,7,1], b[32]) {padding=SAME}", "depthwise"),
        ("CONV_2D(%x, w[64,3,3,32], b[64]) {padding=SAME}", "conv"),
    ],
)
def test_single_operators_that_win(call: str, kind: str) -> None:
    assert kinds(regions_of(f"graph main(%x: f32[1,56,56,32]) {{ %y = {call} return %y }}")) == [kind]


def test_clamps_that_xnnpack_merges_are_no_gain() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,56,56,32]) {
          %y = CONV_2D(%x, w[64,1,1,32], b[64])
          %z = RELU6(%y)
          return %z
        }
        """
    )
    assert not found.regions


def test_what_does_not_pay_is_refused_with_both_figures() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,14,14,512]) {
          %y = CONV_2D(%x, w[512,3,3,512], b[512]) {stride=2}
          %z = TANH(%y)
          return %z
        }
        """
    )
    assert not found.regions
    reason = next(c.reason for c in found.refused if c.rule == "conv_epilogue")
    assert "as one kernel" in reason
    assert reason.count(" us") == 3


def test_kinds_and_tensors_can_be_switched_off() -> None:
    text = """
        graph main(%x: f32[1,56,56,32]) {
          %y = CONV_2D(%x, w[64,1,1,32], b[64])
          %s = LOGISTIC(%y)
          %z = MUL(%y, %s)
          return %z
        }
    """
    found = regions_of(text, disable=["conv_epilogue"])
    assert "conv_epilogue" not in kinds(found)
    assert any("switched off" in c.reason for c in found.refused)
    kept = regions_of(text, keep=["s"])
    assert not kept.regions
    assert any("by request" in c.reason for c in kept.refused)
    with pytest.raises(UsageError, match="no kind of region"):
        regions_of(text, disable="conv_epilog")
    with pytest.raises(UsageError, match="no tensor"):
        regions_of(text, keep="nothing")


def test_targets_without_a_delegate_and_with_few_types() -> None:
    text = """
        graph main(%x: f32[1,56,56,32]) {
          %y = CONV_2D(%x, w[64,1,1,32], b[64])
          %z = TANH(%y)
          return %z
        }
    """
    assert not regions_of(text, target("cortex-m")).regions
    found = regions_of(text, target("hexagon-v68"))
    assert not found.regions
    assert all("FLOAT32" in c.reason for c in found.refused)


def test_what_runs_only_once_or_has_effects_stays_outside() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,56,56,32]) {
          %y = CONV_2D(%x, w[64,1,1,32], b[64])
          %c: f32[1,56,56,64] = "mystery"(%y) {custom=0x00}
          %t = TANH(%c)
          %z = MUL(%t, %y)
          return %z
        }
        """,
        model=Eager(ARM),
    )
    # The convolution and the product may not be one region: the way between them leads through the custom operator.
    assert [len(region.operators) for region in found.regions] == [1, 2]
    assert any(c.rule == "custom" and "effects" in c.reason for c in found.refused)


def test_limits_of_the_target() -> None:
    """Many results that are needed to the end: there are not registers for all of them in one region."""
    many = 40
    lines = [f"%a{i} = TANH(%x)\n%b{i} = MUL(%a{i}, factor[])" for i in range(many)]
    sums, last = [], "%b0"
    for i in range(1, many):
        sums.append(f"%s{i} = ADD({last}, %b{i})")
        last = f"%s{i}"
    body = "\n".join([*lines, *sums])
    model = from_text(f"graph main(%x: f32[1,64,64,16]) {{ {body} return {last} }}")
    graph = Graph(model, 0)
    found = partition(graph, X86, model=Eager(X86))
    check(graph, found)
    assert len(found.regions) > 1
    network = Network(graph)
    for region in found.regions:
        members = {network.position[op] for op in region.operators}
        assert len(members) <= X86.max_operators
        assert network.most_live(members) <= X86.max_live
        assert len(region.inputs) + len(region.outputs) <= X86.max_operands


def test_dilated_depthwise_convolutions_need_more_rows() -> None:
    def chain(dilation: int, channels: int) -> list[str]:
        return kinds(
            regions_of(
                f"""
                graph main(%x: f32[1,33,33,32]) {{
                  %e = CONV_2D(%x, w[{channels},1,1,32], b[{channels}]) {{activation=RELU6}}
                  %d = DEPTHWISE_CONV_2D(%e, v[1,3,3,{channels}], c[{channels}])
                       {{padding=SAME, dilation={dilation}, activation=RELU6}}
                  %p = CONV_2D(%d, u[32,1,1,{channels}], f[32])
                  return %p
                }}
                """
            )
        )

    assert chain(2, 192) == ["inverted_residual"]
    # Seventeen rows of these channels are more than twice what the second cache holds.
    assert "inverted_residual" not in chain(8, 512)


def test_sizes_that_only_run_time_tells() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,?,?,32]) {
          %y = CONV_2D(%x, w[64,1,1,32], b[64])
          %s = LOGISTIC(%y)
          %z = MUL(%y, %s)
          return %z
        }
        """,
        model=Eager(ARM),
    )
    assert not found.regions
    assert all("only known at run time" in c.reason for c in found.refused)


def test_weights_behind_densify_of_dense_ones_stay_outside() -> None:
    found = regions_of(
        """
        graph main(%x: f32[1,56,56,32]) {
          %h: f16[64,1,1,32] = DENSIFY(d:f16[64,1,1,32])
          %w = DEQUANTIZE(%h)
          %y = CONV_2D(%x, %w, b[64])
          %s = LOGISTIC(%y)
          %z = MUL(%y, %s)
          return %z
        }
        """,
        model=Eager(ARM),
    )
    assert kinds(found) == ["elementwise"]
    assert any("is no sparse constant" in c.reason for c in found.refused)


def test_open_batch_is_no_hindrance() -> None:
    found = regions_of(
        """
        graph main(%x: f32[?,56,56,32]) {
          %y = CONV_2D(%x, w[64,1,1,32], b[64])
          %s = LOGISTIC(%y)
          %z = MUL(%y, %s)
          return %z
        }
        """
    )
    assert kinds(found) == ["conv_epilogue"]


def test_damaged_shapes_are_no_crash() -> None:
    model = from_text("graph main(%x: f32[1,8,8,4]) { %y = CONV_2D(%x, w[4,1,1,4], b[4]) %z = TANH(%y) return %z }")
    for tensor in model.subgraphs[0].tensors[1:]:
        tensor.shape = None
        tensor.has_rank = False
    found = partition(Graph(model, 0), ARM)
    assert isinstance(found, Partition)
    assert isinstance(found.stock_us, float)
