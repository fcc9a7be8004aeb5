"""The cost model against figures that were measured, its invariants, and the budget for composites."""

from __future__ import annotations

import pytest

from litefuse.delegates.cost import MARGIN, Cost, CostModel, Eager, Roofline, macs, within_budget
from litefuse.delegates.network import Network
from litefuse.delegates.partition import partition
from litefuse.delegates.regions import Region
from litefuse.delegates.targets import Target, target, targets
from litefuse.graph.graph import Graph
from litefuse.graph.text import from_text
from litefuse.report.stats import measure
from litefuse.schema.tables import Operator

X86 = target("x86-64-v3")
DELEGATED = [t for t in targets() if t.delegate]

NORM = """%m = MEAN(%x, i32[1]=(3)) {keep_dims=true} %q = SQUARED_DIFFERENCE(%x, %m)
          %v = MEAN(%q, i32[1]=(3)) {keep_dims=true} %e = ADD(%v, eps[]=0.001) %r = RSQRT(%e) %d = SUB(%x, %m)
          %n = MUL(%d, %r)"""


def network(text: str) -> Network:
    return Network(Graph(from_text(text), 0))


def whole(text: str, where: Target = X86) -> Cost:
    made = network(text)
    return Roofline(where).cost(made, set(range(len(made.ops))))


def silu(size: int, k: int, n: int) -> str:
    return f"""graph g(%x: f32[1,{size},{size},{k}]) {{
        %y = CONV_2D(%x, w[{n},1,1,{k}], b[{n}]) %s = LOGISTIC(%y) %z = MUL(%y, %s) return %z }}"""


def separable(size: int, c: int) -> str:
    return f"""graph g(%x: f32[1,{size},{size},{c}]) {{
        %y = DEPTHWISE_CONV_2D(%x, w[1,3,3,{c}], b[{c}]) {{padding=SAME, activation=RELU6}}
        %z = CONV_2D(%y, v[{c},1,1,{c}], d[{c}]) {{activation=RELU6}} return %z }}"""


def inverted(size: int, c: int) -> str:
    e = 6 * c
    return f"""graph g(%x: f32[1,{size},{size},{c}]) {{
        %e = CONV_2D(%x, a[{e},1,1,{c}], d[{e}]) {{activation=RELU6}}
        %y = DEPTHWISE_CONV_2D(%e, w[1,3,3,{e}], b[{e}]) {{padding=SAME, activation=RELU6}}
        %p = CONV_2D(%y, v[{c},1,1,{e}], f[{c}]) %o = ADD(%p, %x) return %o }}"""


def convnext(size: int, c: int) -> str:
    return f"""graph g(%i: f32[1,{size},{size},{c}]) {{
        %x = DEPTHWISE_CONV_2D(%i, w[1,7,7,{c}], b[{c}]) {{padding=SAME}} {NORM}
        %f = CONV_2D(%n, a[{4 * c},1,1,{c}], k[{4 * c}]) %h = GELU(%f)
        %z = CONV_2D(%h, v[{c},1,1,{4 * c}], l[{c}]) %o = ADD(%z, %i) return %o }}"""


def conv(size: int, c: int, k: int, depthwise: bool = False) -> str:
    if depthwise:
        call = f"DEPTHWISE_CONV_2D(%x, w[1,{k},{k},{c}], b[{c}])"
    else:
        call = f"CONV_2D(%x, w[{c},{k},{k},{c}], b[{c}])"
    return f"graph g(%x: f32[1,{size},{size},{c}]) {{ %y = {call} {{padding=SAME}} return %y }}"


# Our kernels' time against XNNPACK's, measured on the processor that the profile x86-64-v3 describes.
MEASURED = {
    "layer norm 56x56x96": (
        f"""graph g(%x: f32[1,56,56,96]) {{ {NORM}
            %g = MUL(%n, gamma[96]) %y = ADD(%g, beta[96]) return %y }}""",
        0.30,
    ),
    "1x1 + SiLU 56": (silu(56, 24, 144), 0.69),
    "1x1 + SiLU 28": (silu(28, 32, 192), 0.78),
    "dw + 1x1 112": (separable(112, 32), 0.886),
    "dw + 1x1 56": (separable(56, 128), 0.886),
    "dw + 1x1 14": (separable(14, 512), 0.92),
    "inverted residual 56": (inverted(56, 24), 0.80),
    "inverted residual 28": (inverted(28, 32), 0.84),
    "inverted residual 7": (inverted(7, 160), 0.95),
    "ConvNeXt block 56": (convnext(56, 96), 0.42),
    "ConvNeXt block 28": (convnext(28, 192), 0.57),
    "ConvNeXt block 14": (convnext(14, 384), 0.72),
    "ConvNeXt block 7": (convnext(7, 768), 0.79),
    "Winograd 56": (conv(56, 64, 3), 0.38),
    "depthwise 7x7": (conv(56, 96, 7, depthwise=True), 0.10),
}


@pytest.mark.parametrize("name", MEASURED)
def test_model_agrees_with_measurements(name: str) -> None:
    text, ratio = MEASURED[name]
    cost = whole(text)
    assert cost.fused_us / cost.stock_us == pytest.approx(ratio, abs=0.17)
    # The model may not promise more than was measured, within a tenth.
    assert cost.fused_us / cost.stock_us > ratio - 0.1


def test_stock_times_are_of_the_measured_order() -> None:
    norm = whole(MEASURED["layer norm 56x56x96"][0])
    assert norm.stock_us == pytest.approx(265, rel=0.3)


@pytest.mark.parametrize("where", DELEGATED, ids=lambda t: t.name)
def test_single_operators_gain_nothing_unless_their_kernel_wins(where: Target) -> None:
    for text, wins in (
        (conv(28, 64, 1), False),
        (conv(28, 64, 3), True),
        (conv(28, 8, 3), False),
        (conv(14, 64, 3), True),
        (conv(7, 16, 3), False),
        (conv(28, 64, 3, depthwise=True), False),
        (conv(28, 64, 7, depthwise=True), True),
    ):
        made = network(text)
        assert Roofline(where).wins_alone(made, 0) is wins


def test_bytes_and_macs() -> None:
    made = network(inverted(56, 24))
    cost = Roofline(X86).cost(made, {0, 1, 2, 3})
    pixels = 56 * 56
    assert cost.macs == pixels * 24 * 144 * 2 + pixels * 144 * 9
    assert cost.bytes_in == cost.bytes_out == 4 * pixels * 24
    assert cost.bytes_internal == 4 * pixels * (144 + 144 + 24)
    assert cost.bytes_constants == 4 * (2 * 24 * 144 + 144 * 9 + 144 + 144 + 24)
    # Both wide tensors at the depthwise convolution, whatever follows.
    assert cost.scratch == 4 * pixels * 288
    assert cost.gain_us == cost.stock_us - cost.fused_us


def test_macs_are_those_of_the_report() -> None:
    text = """graph g(%x: f32[2,8,8,4], %k: f32[2,3,8,4]) {
        %a = CONV_2D(%x, w[6,3,3,2], b[6])
        %c = DEPTHWISE_CONV_2D(%x, v[1,3,3,8], d[8]) {depth_multiplier=2}
        %f = FULLY_CONNECTED(%x, t[5,4], _) {keep_num_dims=true}
        %s = TRANSPOSE_CONV@3(i32[4]=(2, 16, 16, 3), p[3,2,2,4], %x, q[3]) {stride=2}
        %m = BATCH_MATMUL(%k, %k) {adj_y=true}
        return %a, %c, %f, %s, %m }"""
    model = from_text(text)
    made = Network(Graph(model, 0))
    expected = [op.macs for op in measure(model).subgraphs[0].operators]
    assert [macs(made, i) for i in range(len(made.ops))] == expected


@pytest.mark.parametrize("where", DELEGATED, ids=lambda t: t.name)
def test_more_work_takes_longer(where: Target) -> None:
    model = Roofline(where)
    for make in (lambda c: silu(28, c, c), lambda c: separable(28, c), lambda c: conv(28, c, 1)):
        times = []
        for c in (16, 32, 64, 128):
            made = network(make(c))
            members = set(range(len(made.ops)))
            times.append((model.stock_us(made, members), model.fused_us(made, members)))
        assert times == sorted(times)
        assert [t[1] for t in times] == sorted(t[1] for t in times)
        assert min(min(t) for t in times) > 0


def test_inputs_are_read_again_for_reductions_that_do_not_fit() -> None:
    body = "%m = MEAN(%x, i32[2]=(1, 2)) {keep_dims=true} %d = SUB(%x, %m) return %d }"
    large = whole("graph g(%x: f32[1,512,512,32]) {" + body)
    once = whole("graph g(%x: f32[1,512,512,32], %m: f32[1,1,1,32]) { %d = SUB(%x, %m) return %d }")
    assert large.fused_us > 1.4 * once.fused_us


def test_clamps_and_padding_that_xnnpack_merges_cost_nothing() -> None:
    made = network(
        """graph g(%x: f32[1,32,32,16]) {
            %p = PAD(%x, i32[4,2]=(0, 0, 1, 1, 1, 1, 0, 0))
            %y = CONV_2D(%p, w[16,3,3,16], b[16])
            %r = RELU(%y)
            %z = TANH(%r) return %z }"""
    )
    times = [Roofline(X86).operator_us(made, i) for i in range(4)]
    assert times[0] == times[2] == 0
    assert min(times[1], times[3]) > 0


def test_refusal_has_both_figures() -> None:
    model = Roofline(X86)
    assert model.why_not(100.0, 90.0) is None
    reason = model.why_not(100.0, 100 * (1 - MARGIN / 2))
    assert reason is not None
    assert "98.5 us as one kernel" in reason
    assert "takes 100 us without" in reason
    # A share of almost nothing is too little to be measured.
    assert model.why_not(0.1, 0.05) is not None


class Measured(Roofline):
    """What a tuner does: it answers what it has measured, and leaves the rest to the model."""

    def __init__(self, where: Target, figures: dict[frozenset[int], float]) -> None:
        super().__init__(where)
        self.figures = figures

    def fused_us(self, network, members, copies=()):  # type: ignore[no-untyped-def]
        found = self.figures.get(frozenset(members))
        return super().fused_us(network, members, copies) if found is None else found


def test_measured_figures_replace_the_model() -> None:
    graph = Graph(from_text(silu(56, 24, 144)), 0)
    assert [r.kind for r in partition(graph, X86).regions] == ["conv_epilogue"]
    slow = Measured(X86, {frozenset({0, 1, 2}): 1e6})
    assert [r.kind for r in partition(graph, X86, model=slow).regions] != ["conv_epilogue"]
    assert isinstance(Eager(X86), CostModel)


def region(gain: float, fallback: float) -> Region:
    op = Operator()
    cost = Cost(0, 0.0, 0, 0, 0, 0, 10 + gain, 10.0, fallback, 0)
    return Region("elementwise", [op], op, [], [], [0], [1], cost)


def test_budget_drops_what_saves_least_for_its_cost() -> None:
    regions = [region(5, 1), region(1, 1), region(30, 2), region(0.5, 1)]
    kept, dropped = within_budget(regions, 160)
    assert kept == [regions[0], regions[2]]
    assert [r for r, _ in dropped] == [regions[3], regions[1]]
    assert all("2% of the model" in reason and "3.2 us" in reason for _, reason in dropped)


def test_budget_that_suffices_and_none_at_all() -> None:
    regions = [region(5, 1), region(1, 1)]
    assert within_budget(regions, 100) == (regions, [])
    kept, dropped = within_budget(regions, 100, share=0.0)
    assert kept == []
    assert len(dropped) == 2
    free = [region(1, 0)]
    assert within_budget(free, 0.0) == (free, [])
    assert within_budget([], 0.0) == ([], [])
