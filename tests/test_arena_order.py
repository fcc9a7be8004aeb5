"""The order search: against all orders of small problems, and what must not move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rules import looped

from litefuse.arena.aliasing import Legal
from litefuse.arena.lifetimes import DELEGATE, TFLITE, TFLM, lifetimes, lower_bound
from litefuse.arena.order import Net, is_pure, predecessors, search, search_net
from litefuse.graph.build import Builder
from litefuse.graph.compact import CONTROL_DEPENDENCIES, serialize_control_dependencies
from litefuse.graph.graph import Graph
from litefuse.schema import Model, read
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op
from litefuse.schema.tables import Buffer, Metadata


def random_net(rng: np.random.Generator, nodes: int, *, over: bool, fused: bool, kept: bool) -> Net:
    """Operator ``i`` makes block ``i + 1``; block 0 is the input. Sizes are small, so that ties are common."""
    size = [int(s) for s in rng.integers(1, 5, nodes + 1)]
    reads: list[list[int]] = []
    for node in range(nodes):
        # Now and then an operator reads constants only, as the dequantisation of weights does.
        count = 0 if rng.random() < 0.15 else int(rng.integers(1, 3))
        reads.append(sorted({int(b) for b in rng.integers(max(0, node - 3), node + 1, count)}))
    readers = [sum(1 << n for n in range(nodes) if b in reads[n]) for b in range(nodes + 1)]
    stays = [not r or bool(kept and rng.random() < 0.1) for r in readers]
    before = [sum(1 << (b - 1) for b in blocks if b) for blocks in reads]
    pairs: list[list[tuple[int, int]]] = [[] for _ in range(nodes)]
    ways: dict[int, list[tuple[int, int, int]]] = {}
    for node in range(nodes):
        for block in reads[node]:
            if over and block and rng.random() < 0.6:
                size[node + 1] = size[block] if not pairs[node] else size[node + 1]
                if size[node + 1] == size[block]:
                    pairs[node].append((block, node + 1))
    for node in range(nodes):
        for block in reads[node]:
            other = [b for b in reads[node] if b != block]
            alone = block and readers[block] == 1 << node and not stays[block] and other
            if fused and alone and size[block] == size[node + 1] == size[other[0]] and rng.random() < 0.8:
                target = other[0] if other[0] not in reads[block - 1] else -1
                ways.setdefault(node, []).append((block - 1, block, target))
                pairs[node].append((block, node + 1))
    makes = [[n + 1] for n in range(nodes)]
    return Net(before, makes, reads, size, readers, stays, [0], pairs, ways)


def all_orders(net: Net) -> Iterator[list[int]]:
    def extend(order: list[int], done: int) -> Iterator[list[int]]:
        if len(order) == len(net.before):
            yield order
        for node, before in enumerate(net.before):
            if not done >> node & 1 and not before & ~done:
                yield from extend([*order, node], done | 1 << node)

    return extend([], 0)


def simulated_peak(net: Net, order: list[int]) -> int:
    """The peak by the words of the definition, without the net's own bookkeeping; no fused operators."""
    position = {node: i for i, node in enumerate(order)}
    first = dict.fromkeys(net.start, -1) | {b: position[n] for n, made in enumerate(net.makes) for b in made}
    last = {
        b: len(order) if net.kept[b] else max([position[n] for n, r in enumerate(net.reads) if b in r] or [first[b]])
        for b in first
    }
    peak = sum(net.size[b] for b in net.start)
    for time, node in enumerate(order):
        live = sum(net.size[b] for b in first if first[b] <= time <= last[b])
        peak = max(peak, live - max([net.size[y] for x, y in net.over[node] if last[x] == time] or [0]))
    return peak


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.parametrize(
    ("over", "fused", "kept"), [(False, False, False), (True, False, True), (True, True, False)], ids=str
)
def test_against_all_orders(seed: int, over: bool, fused: bool, kept: bool) -> None:
    rng = np.random.default_rng([seed, over, fused])
    net = random_net(rng, int(rng.integers(4, 8)), over=over, fused=fused, kept=kept)
    best = min(net.peak(order) for order in all_orders(net))
    assert net.bound() <= best
    found = search_net(net)
    assert (found.peak, found.lower_bound, found.proved) == (best, best, True)
    assert net.peak(found.order) == best
    if not fused:
        assert simulated_peak(net, found.order) == best
        assert found.given_peak == simulated_peak(net, list(range(len(net.before))))
    # Cut short, it still is no worse than the order given, and what it claims as bound is one.
    hurried = search_net(net, states=1)
    assert hurried.lower_bound <= best <= hurried.peak <= hurried.given_peak
    assert net.peak(hurried.order) == hurried.peak


def test_the_given_order_is_kept_where_nothing_is_better() -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        net = random_net(rng, 6, over=True, fused=False, kept=True)
        found = search_net(net)
        if found.peak == found.given_peak:
            assert found.order == list(range(6))
            assert found.method == "given"


def wide() -> Model:
    """Two branches, each with a large tensor in the middle; the order in the file computes both large ones first."""
    b = Builder()
    x = b.input("x", [1, 16])
    weights = [b.constant(f"w{i}", np.ones((256, 16), np.float32)) for i in range(2)]
    back = [b.constant(f"v{i}", np.ones((16, 256), np.float32)) for i in range(2)]
    large = [b.op(Op.FULLY_CONNECTED, [x, w, -1], name=f"large{i}", shape=[1, 256]) for i, w in enumerate(weights)]
    small = [
        b.op(Op.FULLY_CONNECTED, [t, v, -1], name=f"small{i}", shape=[1, 16])
        for i, (t, v) in enumerate(zip(large, back, strict=True))
    ]
    return b.model([b.op(Op.ADD, small, name="y", shape=[1, 16])])


def test_branches_are_run_one_after_the_other() -> None:
    model = wide()
    graph = Graph(model)
    found = search(graph, TFLM)
    assert found.order in ([0, 2, 1, 3, 4], [1, 3, 0, 2, 4])
    assert found.proved
    assert (found.given_peak, found.peak) == (64 + 2 * 1024 + 64 - 64, 64 + 64 + 1024)
    assert lower_bound(lifetimes(graph, found.order, TFLM), 16) == found.peak


def test_alignment_and_runtime_count() -> None:
    graph = Graph(wide())
    assert search(graph, TFLM, alignment=4096).peak == 3 * 4096
    # TFLite keeps x to the end.
    assert search(graph, TFLITE).peak == 64 + 64 + 1024 + 64


def test_operators_with_state_keep_their_order() -> None:
    b = Builder()
    x = b.input("x", [1, 16])
    ids = [b.op(Op.VAR_HANDLE, [], shape=[1], type=TensorType.RESOURCE, name=f"h{i}") for i in range(2)]
    model = b.model([x])
    graph = Graph(model)
    assert [is_pure(model, graph, op) for op in graph.subgraph.operators] == [False, False]
    assert predecessors(graph) == [0, 1]
    assert search(graph, TFLM).order == [0, 1]
    assert len(ids) == 2


def test_variables_make_an_operator_impure() -> None:
    model = wide()
    tensor = len(model.subgraphs[0].tensors)
    model.subgraphs[0].tensors.append(model.subgraphs[0].tensors[0].replace(name="state", is_variable=True))
    for position in (0, 1):
        model.subgraphs[0].operators[position].inputs.append(tensor)
    assert predecessors(Graph(model))[:2] == [0, 1]


def test_control_flow_is_as_pure_as_what_it_runs() -> None:
    b = Builder()
    x = b.input("x", [1, 4])
    model = looped(b.model([b.op(Op.RELU, [x], shape=[1, 4])]))
    graph = Graph(model)
    assert is_pure(model, graph, graph.subgraph.operators[0])
    # A body that draws random numbers is not.
    code = model.operator_codes[model.subgraphs[2].operators[0].opcode_index]
    code.builtin_code, code.deprecated_builtin_code = Op.RANDOM_UNIFORM, 127
    assert not is_pure(model, Graph(model), graph.subgraph.operators[0])


def with_control(model: Model, data: bytes) -> Model:
    model.buffers.append(Buffer(data=data))
    model.metadata.append(Metadata(name=CONTROL_DEPENDENCIES, buffer=len(model.buffers) - 1))
    return model


def test_control_dependencies_are_kept() -> None:
    model = with_control(wide(), serialize_control_dependencies([[(1, 0), (3, 0)]]))
    model.subgraphs[0].operators[0:2] = model.subgraphs[0].operators[1::-1]
    assert predecessors(Graph(model))[0] == 0b1010
    free = search(Graph(wide()), TFLM)
    bound = with_control(wide(), serialize_control_dependencies([[(1, 2)]]))
    found = search(Graph(bound), TFLM)
    assert found.order.index(1) < found.order.index(2)
    assert found.peak == free.peak
    both = with_control(wide(), serialize_control_dependencies([[(0, 3), (1, 2)]]))
    assert search(Graph(both), TFLM).peak == 64 + 2 * 1024 + 64 - 64 > free.peak


def test_unreadable_control_dependencies_freeze_the_order() -> None:
    found = search(Graph(with_control(wide(), b"\xff\xff")), TFLM)
    assert found.order == [0, 1, 2, 3, 4]
    assert found.proved


def test_a_residual_is_run_with_its_convolution() -> None:
    b = Builder()
    x = b.input("x", [1, 8, 8, 16])
    w = b.constant("w", np.ones((16, 3, 3, 16), np.float32))
    a = b.op(Op.CONV_2D, [x, w, -1], name="a", shape=[1, 8, 8, 16])
    c = b.op(Op.CONV_2D, [a, w, -1], name="c", shape=[1, 8, 8, 16])
    d = b.op(Op.CONV_2D, [c, w, -1], name="d", shape=[1, 8, 8, 16])
    model = b.model([b.op(Op.ADD, [d, a], name="y", shape=[1, 8, 8, 16])])
    one = 8 * 8 * 16 * 4
    assert search(Graph(model), TFLM).peak == 3 * one
    assert search(Graph(model), DELEGATE).peak == 2 * one


def test_results_do_not_depend_on_the_run() -> None:
    rng = np.random.default_rng(11)
    for _ in range(10):
        net = random_net(rng, 12, over=True, fused=True, kept=True)
        one, two = search_net(net), search_net(net)
        assert (one.order, one.peak, one.states) == (two.order, two.peak, two.states)


def test_an_empty_subgraph() -> None:
    b = Builder()
    x = b.input("x", [4])
    found = search(Graph(b.model([x])), TFLM, legal=Legal())
    assert (found.order, found.peak, found.proved) == ([], 16, True)


@pytest.mark.slow
def test_the_corpus_is_proved(corpus: list[Path]) -> None:
    proved = []
    for path in corpus:
        if path.parent.name != "models":
            continue
        found = search(Graph(read(path)), TFLM, seconds=10)
        assert found.lower_bound <= found.peak <= found.given_peak
        proved.append(found.proved)
    assert sum(proved) >= 0.95 * len(proved)
