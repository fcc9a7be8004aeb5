"""What operators and regions cost: a model of arithmetic and traffic, with a seam for measured figures.

The stock runtime takes for each operator its arithmetic (at the share of the peak that XNNPACK was measured to reach
with that kind on data at hand) and its memory traffic (inputs, outputs and constants at the bandwidth of the cache
that holds them together), and a fixed time besides. The two add up: where the longer of them alone was counted, whole
models came out at two thirds of what they were measured to take, and what fusion saves of the traffic at nothing. The
same goes for each operator of a region, with our own kernels' shares of the peak, what stays inside at the bandwidth of
the cache that a block or strip of it fits in, and the fixed time once. Where a reduction has to be complete before its
input is used again and that does not fit in the cache, the inputs are read once more.

Figures are microseconds for one run on one core, with the file's shapes (unknown dimensions as they start).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import fields
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from litefuse.delegates.kinds import PADS, POOLS, VIEWS, OpClass
from litefuse.delegates.network import Network
from litefuse.delegates.targets import Factors, Functions, Sides, Target
from litefuse.fusions.xnnpack import takes
from litefuse.graph.graph import OperatorKind
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op

if TYPE_CHECKING:
    from litefuse.delegates.regions import Region

MARGIN = 0.03
"""By how much of the stock time a region must be faster at least, so that it is so in spite of the model's errors."""


class Cost(NamedTuple):
    """The figures of one region. Bytes are those of whole tensors."""

    macs: int
    flops: float
    """Arithmetic besides the MACs, in operations as cheap as an addition."""
    bytes_in: int
    bytes_out: int
    bytes_constants: int
    bytes_internal: int
    """Tensors that are computed and read inside only, each once."""
    stock_us: float
    fused_us: float
    fallback_us: float
    """What the region's composite costs where no delegate runs it."""
    scratch: int
    """Most bytes of internal tensors that are live at a time when they are computed whole, in order."""

    @property
    def gain_us(self) -> float:
        """What the region saves in a run."""
        return self.stock_us - self.fused_us


class CostModel(ABC):
    """The questions that partitioning asks, each of which measured figures may answer instead of a model.

    Figures measured on a target (by operator and shapes, or by region) come in as a subclass of :class:`Roofline` that
    answers from them and falls back to the model for what was not measured.
    """

    least_us: float = 0.0
    """What a region has to save at least, in microseconds, since less could not be measured."""

    @abstractmethod
    def operator_us(self, network: Network, i: int) -> float:
        """What the operator at a position takes in the stock runtime."""

    @abstractmethod
    def fused_us(self, network: Network, members: Collection[int], copies: Collection[int] = ()) -> float:
        """What a region of these operators takes in the delegate."""

    @abstractmethod
    def fallback_us(self, network: Network, members: Collection[int], copies: Collection[int] = ()) -> float:
        """What a composite of these operators costs where no delegate runs it, besides what they cost anyway."""

    @abstractmethod
    def wins_alone(self, network: Network, i: int) -> bool:
        """Whether our kernel for a single operator is known to be faster than the stock one."""

    @abstractmethod
    def keeps_up(self, network: Network, members: Collection[int]) -> bool:
        """Whether a region of these operators, beside another one, is no slower than the stock runtime."""

    def stock_us(self, network: Network, members: Collection[int], copies: Collection[int] = ()) -> float:
        """What the operators that a region replaces take in the stock runtime."""
        return sum(self.operator_us(network, i) for i in members if i not in copies)

    def gain_us(self, network: Network, members: Collection[int], copies: Collection[int] = ()) -> float:
        """What a region of these operators saves."""
        return self.stock_us(network, members, copies) - self.fused_us(network, members, copies)

    def cost(self, network: Network, members: Collection[int], copies: Collection[int] = ()) -> Cost:
        """All figures of a region of these operators."""
        inputs, outputs = network.inputs_of(members), network.outputs_of(members, copies)
        leaving = set(outputs)
        inside = [t for i in members for t in network.outs[i] if t not in leaving]
        constants = {t for i in members for t in network.constants(i)}
        return Cost(
            macs=sum(macs(network, i) for i in members),
            flops=sum(flops(network, i) for i in members),
            bytes_in=sum(map(network.bytes, inputs)),
            bytes_out=sum(map(network.bytes, outputs)),
            bytes_constants=sum(map(network.bytes, constants)),
            bytes_internal=sum(map(network.bytes, inside)),
            stock_us=self.stock_us(network, members, copies),
            fused_us=self.fused_us(network, members, copies),
            fallback_us=self.fallback_us(network, members, copies),
            scratch=_scratch(network, members, leaving),
        )

    def why_not(self, stock_us: float, fused_us: float) -> str | None:
        """Why a region with these figures does not pay; None when it does."""
        if stock_us - fused_us > max(stock_us * MARGIN, self.least_us):
            return None
        return (
            f"it would take {_us(fused_us)} as one kernel and takes {_us(stock_us)} without; worth while is "
            f"what saves {MARGIN:.0%} and {_us(self.least_us)} at least"
        )


def _us(time: float) -> str:
    return f"{time:.3g} us"


def within_budget(
    regions: Sequence[Region], stock_us_of_model: float, share: float = 0.02
) -> tuple[list[Region], list[tuple[Region, str]]]:
    """The regions whose composites together cost no more than a share of the model where there is no delegate.

    Those that save least for what they cost go first.

    Returns:
        The regions that stay, in their order, and the others with the reason.
    """
    allowed = share * stock_us_of_model
    spent = sum(r.cost.fallback_us for r in regions)
    dropped: list[tuple[Region, str]] = []
    gone: set[int] = set()

    def worth(i: int) -> tuple[float, int]:
        cost = regions[i].cost
        return (cost.gain_us / cost.fallback_us if cost.fallback_us > 0 else float("inf")), i

    for i in sorted(range(len(regions)), key=worth):
        if spent <= allowed:
            break
        region = regions[i]
        if region.cost.fallback_us <= 0:
            continue
        spent -= region.cost.fallback_us
        gone.add(i)
        dropped.append(
            (
                region,
                f"as a composite it would cost {_us(region.cost.fallback_us)} where there is no delegate and saves "
                f"{_us(region.cost.gain_us)} where there is one; all composites together may cost "
                f"{_us(allowed)}, {share:.0%} of the model",
            )
        )
    return [region for i, region in enumerate(regions) if i not in gone], dropped


def _scratch(network: Network, members: Collection[int], leaving: Collection[int]) -> int:
    order = sorted(members)
    last: dict[int, int] = {}
    for i in order:
        last.update((t, i) for t in network.ins[i])
    live = peak = 0
    held: dict[int, int] = {}
    for i in order:
        for t in network.outs[i]:
            if t not in leaving:
                held[t] = network.bytes(t)
                live += held[t]
        peak = max(peak, live)
        for t in [*network.ins[i], *network.outs[i]]:
            if t in held and last.get(t, i) <= i:
                live -= held.pop(t)
    return peak


# -- arithmetic ------------------------------------------------------------------------------------------------------

# The functions whose work a target states; that of others is 1.
_FUNCTIONS: dict[OperatorKind, str] = {getattr(Op, field.name.upper()): field.name for field in fields(Functions)}
_USUAL_FUNCTIONS, _USUAL_FACTORS = Functions(), Factors()
# What computes results that a following operator finds in registers, for the most part.
_REGISTERS = frozenset({OpClass.ELEMENTWISE, OpClass.BROADCAST, OpClass.REDUCTION})
_LARGE_WINDOW, _MIDDLE_WINDOW = 49, 25


def macs(network: Network, i: int) -> int:
    """Multiply-accumulates of an operator."""
    kind = network.kinds[i]
    op = network.ops[i]
    if network.roles[i] is not OpClass.ROOT or network.data(i) < 0 or not network.outs[i]:
        return 0
    out = network.shape(op.outputs[0])
    if kind is Op.BATCH_MATMUL:
        left = network.shape(op.inputs[0])
        if len(left) < 2:
            return 0
        return prod(out) * left[-2 if getattr(op.builtin_options, "adj_x", False) else -1]
    weights = network.weights(i)
    if kind is Op.TRANSPOSE_CONV:
        return prod(network.shape(op.inputs[2])[:-1]) * prod(weights)
    if kind is Op.DEPTHWISE_CONV_2D and len(weights) == 4:
        return prod(out) * weights[1] * weights[2]
    return prod(out) // max(weights[0], 1) * prod(weights) if weights else 0


def flops(
    network: Network,
    i: int,
    functions: Functions = _USUAL_FUNCTIONS,
    factors: Factors = _USUAL_FACTORS,
    *,
    ours: bool = False,
) -> float:
    """Operations of an operator besides its MACs, in additions, with the work that functions are to some side."""
    kind, role = network.kinds[i], network.roles[i]
    if role in (OpClass.INJECTIVE, OpClass.ROOT, OpClass.OPAQUE) or kind is Op.RESIZE_NEAREST_NEIGHBOR:
        return 0.0
    if not network.outs[i]:
        return 0.0
    out = network.elements(network.outs[i][0])
    if kind in POOLS:
        return float(out * prod(network.window(i)))
    if role is OpClass.REDUCTION and kind not in _FUNCTIONS:
        return float(network.elements(network.data(i)))
    each = _side(getattr(functions, _FUNCTIONS[kind]), ours) if kind in _FUNCTIONS else 1.0
    if network.graph.type(network.data(i)) in (TensorType.INT8, TensorType.UINT8) and role is OpClass.ELEMENTWISE:
        each = factors.tables
    return out * each


def _side(figure: Sides, ours: bool) -> float:
    return figure.ours if ours else figure.stock


def is_winograd(network: Network, i: int) -> bool:
    """Whether the delegate does a convolution by Winograd's algorithm: float, 3x3, stride 1, enough of it."""
    return winograd_ratio(network, i) < _WINOGRAD_PAYS


_WINOGRAD_PAYS = 0.62


def winograd_ratio(network: Network, i: int) -> float:
    """The time of a convolution by Winograd's algorithm over that of plain sums, as `winograd_pays` in
    `delegate_src/kernels/simd/winograd.cc` estimates it; 1 where it does not apply.
    """
    if network.kinds[i] is not Op.CONV_2D or not network.graph.is_float(network.outs[i][0]):
        return 1.0
    options, weights = network.ops[i].builtin_options, network.weights(i)
    kept = network.graph.type(network.ops[i].inputs[1])
    if kept not in (TensorType.FLOAT32, TensorType.FLOAT16) or weights[1:3] != (3, 3):
        return 1.0
    dilation = getattr(options, "dilation_h_factor", 1), getattr(options, "dilation_w_factor", 1)
    channels, outputs = weights[3], weights[0]
    grouped = channels != network.shape(network.data(i))[-1]
    if network.strides(i) != (1, 1) or dilation != (1, 1) or grouped or min(channels, outputs) < 16:
        return 1.0
    height, width = network.shape(network.outs[i][0])[1:3]
    products = channels * outputs
    tiles = -(-height // 4) * -(-width // 4)
    winograd = max(5000 + tiles * (36 * products / 11 + 14 * (channels + outputs)), 36 * products * 4 / 6)
    return winograd / max(9 * products * height * width / 14.5, 9 * products * 4 / 6)


def is_merged(network: Network, i: int) -> bool:
    """Whether XNNPACK does an operator at no cost with its neighbour: clamps behind, zero padding before."""
    kind, graph = network.kinds[i], network.graph
    if kind in (Op.RELU, Op.RELU6, Op.RELU_N1_TO_1):
        before = network.producer(network.data(i))
        return (
            before is not None
            and network.only_reader(network.data(i)) == i
            and takes(graph, network.ops[before])
            and (network.roles[before] is OpClass.ROOT or hasattr(_options(network, before), _ACTIVATION))
        )
    if kind is Op.PAD:
        after = network.only_reader(network.outs[i][0])
        return after is not None and network.kinds[after] in (Op.CONV_2D, Op.DEPTHWISE_CONV_2D)
    return False


_ACTIVATION = "fused_activation_function"


def _options(network: Network, i: int) -> object:
    return network.ops[i].builtin_options


class Roofline(CostModel):
    """The model described above. Answers for one target; what it computed of a network it remembers."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.least_us = target.region_us / 4
        self._network: Network | None = None
        self._operators: dict[int, float] = {}
        self._arithmetic: dict[int, float] = {}
        self._constants: dict[int, int] = {}
        self._stages: dict[int, bool] = {}

    def _at(self, network: Network) -> None:
        if self._network is not network:
            self._network = network
            for memory in (self._operators, self._arithmetic, self._constants, self._stages):
                memory.clear()

    def operator_us(self, network: Network, i: int) -> float:
        """Arithmetic, traffic and the overhead; nothing for what the runtime does once or merges."""
        self._at(network)
        known = self._operators.get(i)
        if known is None:
            known = self._operators[i] = self._operator_us(network, i)
        return known

    def _operator_us(self, network: Network, i: int) -> float:
        if network.feeds[i] or is_merged(network, i):
            return 0.0
        moved = sum(map(network.bytes, network.ins[i])) + sum(map(network.bytes, network.outs[i]))
        moved += self._constant_bytes(network, i)
        if network.kinds[i] is Op.TRANSPOSE:
            moved *= 2  # lines of the cache are used in part
        traffic = moved * self.target.seconds_per_byte(moved) * 1e6
        # XNNPACK stops before what it does not take, and goes on behind it.
        overhead = self.target.stock_us * (1 if takes(network.graph, network.ops[i]) else 3)
        return self._stock_arithmetic(network, i) + traffic + overhead

    def _constant_bytes(self, network: Network, i: int) -> int:
        known = self._constants.get(i)
        if known is None:
            known = self._constants[i] = sum(map(network.bytes, network.constants(i)))
        return known

    def fused_us(self, network: Network, members: Collection[int], copies: Collection[int] = ()) -> float:
        """See the module's docstring."""
        self._at(network)
        near = [1e-3 / bandwidth for bandwidth in self.target.bandwidth]
        passes = self._passes(network, members)
        read: set[tuple[int, int]] = set()  # tensors that are at hand, with the pass in which they are
        time = self.target.region_us
        for i in sorted(members):
            outside = self._constant_bytes(network, i)
            inside = 0.0
            for t in network.ins[i]:
                if (t, passes[i]) in read:
                    continue
                read.add((t, passes[i]))
                maker = network.producer(t)
                if maker is None or maker not in members:
                    outside += network.bytes(t)
                elif self._is_nothing(network, maker, members):
                    pass  # it stands for its input, which has been counted
                elif passes[maker] < passes[i]:
                    size = network.bytes(t)
                    inside += size * near[self.target.level(size)]
                else:
                    inside += network.bytes(t) * near[self._nearness(network, maker)]
            if i not in copies:
                for t in network.outs[i]:
                    if t in network.leaving or any(r not in members for r in network.readers(t)):
                        outside += network.bytes(t)
                    elif network.roles[i] not in _REGISTERS:
                        inside += network.bytes(t) * near[self._nearness(network, i)]
            if self._is_nothing(network, i, members):
                inside = 0.0
            traffic = outside * self.target.seconds_per_byte(outside) * 1e6 + inside
            time += self._our_arithmetic(network, i) + traffic
        return time

    @staticmethod
    def _nearness(network: Network, maker: int) -> int:
        """The memory that holds a tensor between two operators of a region.

        Results of roots, windows and copies go through a strip in L2, others stay in registers or a block in L1.
        """
        return 1 if network.roles[maker] in (OpClass.ROOT, OpClass.WINDOW, OpClass.INJECTIVE) else 0

    def fallback_us(self, network: Network, members: Collection[int], copies: Collection[int] = ()) -> float:
        """What it takes to enter the composite and to prepare its operators, which the runtime does in each run.

        XNNPACK then fills again the pointers to what the taps of a window read, for each output pixel. What passes the
        border of the composite goes through the runtime's arena instead of memory that XNNPACK keeps using, and is not
        in the cache when it is read.
        """
        target = self.target
        time = target.fallback_us
        for i in members:
            time += target.fallback_operator_us
            window = network.window(i) if network.roles[i] is OpClass.ROOT and len(network.ins[i]) > 1 else ()
            if prod(window) > 1:
                time += target.fallback_tap_us * prod(window) * prod(network.shape(network.outs[i][0])[1:3])
        moved = sum(map(network.bytes, (*network.inputs_of(members), *network.outputs_of(members, copies))))
        return time + moved * target.fallback_byte_us

    def wins_alone(self, network: Network, i: int) -> bool:
        """Depthwise convolutions of 5x5 and larger, transposed ones, and those that Winograd's algorithm suits."""
        if network.is_depthwise(i):
            return network.graph.is_float(network.outs[i][0]) and prod(network.window(i)) >= _MIDDLE_WINDOW
        if network.kinds[i] is Op.TRANSPOSE_CONV:
            return network.graph.is_float(network.outs[i][0])
        return is_winograd(network, i)

    def keeps_up(self, network: Network, members: Collection[int]) -> bool:
        """By the model's figures, where the stock runtime pays for stopping and going on more than a region costs."""
        fused = self.fused_us(network, members) - 1.5 * self.target.region_us
        return fused <= self.stock_us(network, members) * (1 + MARGIN)

    @staticmethod
    def _is_nothing(network: Network, i: int, members: Collection[int]) -> bool:
        """Whether an operator is a view, or padding that a convolution inside writes around the rows it reads."""
        if network.kinds[i] not in PADS:
            return network.kinds[i] in VIEWS
        readers = network.readers(network.outs[i][0])
        return all(r in members and network.roles[r] is OpClass.ROOT for r in readers)

    def _passes(self, network: Network, members: Collection[int]) -> dict[int, int]:
        """In which pass over the inputs each operator is computed: one later than a reduction that it waits for."""
        passes: dict[int, int] = {}
        for i in sorted(members):
            first = 0
            for t in network.ins[i]:
                maker = network.producer(t)
                if maker is not None and maker in passes:
                    first = max(first, passes[maker] + self._is_stage(network, maker))
            passes[i] = first
        return passes

    def _is_stage(self, network: Network, i: int) -> bool:
        """Whether an operator reduces more than stays in L1, so that what follows is another pass."""
        known = self._stages.get(i)
        if known is None:
            known = False
            if network.roles[i] is OpClass.REDUCTION or network.kinds[i] in POOLS:
                source = network.data(i)
                groups = max(network.elements(network.outs[i][0]), 1)
                pooled = network.kinds[i] in POOLS
                reduced = network.elements(source) // groups if not pooled else 0
                shape, out = network.shape(source), network.shape(network.outs[i][0])
                innermost = not (shape and len(shape) == len(out) and shape[-1] == out[-1] and shape[-1] > 1)
                block = network.bytes(source) if not innermost else 4 * reduced
                known = reduced > 1 and block > self.target.l1 // 2
            self._stages[i] = known
        return known

    # -- shares of the peak --------------------------------------------------------------------------------------

    def _our_arithmetic(self, network: Network, i: int) -> float:
        known = self._arithmetic.get(i)
        if known is None:
            known = self._microseconds(network, i, ours=True)
            if self._adds(network, i):
                known *= self.target.factors.adding.ours
            self._arithmetic[i] = known
        return known

    def _stock_arithmetic(self, network: Network, i: int) -> float:
        time = self._microseconds(network, i, ours=False)
        if network.roles[i] is not OpClass.ROOT and not takes(network.graph, network.ops[i]):
            time *= self.target.factors.builtin
        elif self._adds(network, i):
            time *= self.target.factors.adding.stock
        return time

    @staticmethod
    def _adds(network: Network, i: int) -> bool:
        """Whether an operator adds up rows."""
        return network.roles[i] is OpClass.REDUCTION and network.kinds[i] not in _FUNCTIONS

    def _microseconds(self, network: Network, i: int, ours: bool) -> float:
        """Arithmetic of one operator, in XNNPACK's kernels or in ours."""
        target = self.target
        other = flops(network, i, target.functions, target.factors, ours=ours) / (target.peak_f32 * 1e3)
        work = macs(network, i)
        if not work:
            return other
        peak, share = self._share(network, i, ours)
        return 2 * work / (peak * share * 1e3) + other

    def _share(self, network: Network, i: int, ours: bool) -> tuple[float, float]:
        """The peak that counts for a root, and the share of it that is reached (beyond 1 where work is saved)."""
        shares = self.target.shares
        if ours and is_winograd(network, i):
            return self.target.peak_f32, shares.convolution.ours / (shares.winograd * winograd_ratio(network, i))
        of_int8, found = self._reached(network, i)
        return self.target.peak_int8 if of_int8 else self.target.peak_f32, _side(found, ours)

    def _reached(self, network: Network, i: int) -> tuple[bool, Sides]:
        """The shares of a root that is summed up plainly, and whether they are of the peak of int8."""
        shares, kind = self.target.shares, network.kinds[i]
        type = network.graph.type(network.data(i))
        if type == TensorType.INT16:
            return False, shares.int16
        if type in (TensorType.INT8, TensorType.UINT8):
            return (False, shares.int8_depthwise) if network.is_depthwise(i) else (True, shares.int8)
        if network.roles[i] is OpClass.ROOT and type == TensorType.FLOAT32 and len(network.ops[i].inputs) > 1:
            weights = network.ops[i].inputs[1]
            if network.graph.type(weights) == TensorType.INT8:
                return True, shares.hybrid
        area = prod(network.window(i))
        if network.is_depthwise(i):
            if area >= _LARGE_WINDOW:
                return False, shares.depthwise_7x7
            if area >= _MIDDLE_WINDOW:
                return False, shares.depthwise_5x5
            return False, shares.depthwise if network.strides(i) == (1, 1) else shares.depthwise_strided
        if kind is Op.CONV_2D:
            return False, shares.pointwise if area == 1 else shares.convolution
        return False, shares.transposed if kind is Op.TRANSPOSE_CONV else shares.matmul


class Eager(Roofline):
    """Finds that everything pays, so that regions are as many and as large as is legal: for tests of the delegate."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.least_us = 0.0

    def fused_us(self, network: Network, members: Collection[int], copies: Collection[int] = ()) -> float:
        """Next to nothing, but less for one region than for two."""
        return 1e-4

    def operator_us(self, network: Network, i: int) -> float:
        """At least something."""
        return max(super().operator_us(network, i), 1e-3)

    def fallback_us(self, network: Network, members: Collection[int], copies: Collection[int] = ()) -> float:
        """Nothing."""
        return 0.0

    def wins_alone(self, network: Network, i: int) -> bool:
        """Always."""
        return True
