"""What the times of probes say of a machine.

Each figure is chosen such that the cost model, asked for what a probe takes, answers with what was measured. So a
figure means the same when it is measured as when it is used. The order matters: overheads and peaks come first, then
bandwidths, then the shares and functions, for which the others are needed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from litefuse.delegates.calibrate.probes import BETWEEN, LONG, SHORT, UNITS, Probe
from litefuse.delegates.calibrate.profile import flat, with_figures
from litefuse.delegates.cost import Roofline, macs
from litefuse.delegates.network import Network
from litefuse.delegates.targets import Target, targets
from litefuse.graph.graph import Graph

Times = Mapping[str, float]
"""Microseconds of each probe, by name."""

_LEVELS = ("l1", "l2", "l3", "memory")
_STEPS = 24  # of bisections: far beyond what is measured
_RANGE = 300.0  # by how much a figure may differ from the one that it replaces
# Functions that are too dear to be left out and too awkward to be measured, with those that they resemble.
_LIKE = {"log": "exp", "pow": "exp", "sin": "exp", "cos": "exp", "log_softmax": "softmax"}
_FALLBACKS = ("fallback_us", "fallback_operator_us", "fallback_tap_us", "fallback_byte_us")


class Found(NamedTuple):
    """What follows from the times."""

    target: Target
    measured: list[str]
    """The figures that are measured."""
    notes: list[str]
    """What one should know of them."""


class Predictor:
    """Says what the cost model expects of probes."""

    def __init__(self) -> None:
        self._networks: dict[str, Network] = {}

    def network(self, probe: Probe) -> Network:
        """The graph of a probe."""
        if probe.name not in self._networks:
            self._networks[probe.name] = Network(Graph(probe.model, 0))
        return self._networks[probe.name]

    def us(self, target: Target, probe: Probe) -> float:
        """Microseconds of a probe, without the call of the interpreter."""
        model, network = Roofline(target), self.network(probe)
        inside = {i for group in probe.groups for i in group}
        stock = sum(model.operator_us(network, i) for i in range(len(network.ops)) if i not in inside)
        return stock + sum(model.fused_us(network, group) for group in probe.groups)

    def giga(self, probe: Probe, us: float) -> float:
        """Billions of operations a second in a probe of products that takes so long."""
        network = self.network(probe)
        return 2e-3 * sum(macs(network, i) for i in range(len(network.ops))) / us


def figures(start: Target, base: Target, probes: Sequence[Probe], times: Times) -> Found:
    """The target whose cost model agrees with the times.

    Args:
        start: what is known before, with the figures of the base for all that is not.
        base: the built-in profile that stands for what was not measured.
        probes: what was measured.
        times: of the probes.
    """
    return _Fit(start, base, probes, times).found()


class _Fit:
    def __init__(self, start: Target, base: Target, probes: Sequence[Probe], times: Times) -> None:
        self.target, self.base = start, base
        self.usual = flat(base)
        self.probes: dict[str, list[Probe]] = {}
        for probe in probes:
            if probe.name in times:
                self.probes.setdefault(probe.figure, []).append(probe)
        self.times = times
        self.predictor = Predictor()
        self.measured: list[str] = []
        self.notes: list[str] = []
        self.cases: dict[str, dict[str, float]] = {}
        """What each probe says of a figure."""
        self.call = 0.0
        """What it takes to call the interpreter."""

    def found(self) -> Found:
        self._overheads()
        self._peaks()
        self._bandwidths()
        # What the delegate's figures are derived from, where it is not there, comes before.
        for side in ("stock", "ours"):
            for figure in sorted(self.usual, key=_turn):
                if figure.endswith(f".{side}") or (side == "ours" and figure == "shares.winograd"):
                    self._fit(figure)
            if side == "ours":
                self._level()
        self._derive()
        return Found(self.target, self.measured, self.notes)

    # -- setting ---------------------------------------------------------------------------------------------------

    def _set(self, figure: str, value: float, measured: bool = True) -> None:
        value = float(f"{value:.4g}")
        self.target = with_figures(self.target, {figure: value})
        if measured:
            self.measured.append(figure)

    def _usual(self, figure: str) -> float:
        return float(self.usual[figure])

    def _now(self, figure: str) -> float:
        return float(flat(self.target)[figure])

    def _net(self, probe: Probe) -> float:
        """The time of a probe without the call."""
        return max(self.times[probe.name] - self.call, 0.0)

    # -- the parts -------------------------------------------------------------------------------------------------

    def _overheads(self) -> None:
        long, short = (self._time("stock_us", n) for n in (LONG, SHORT))
        if long is not None and short is not None and long > short:
            self._set("stock_us", (long - short) / (LONG - SHORT))
            self.call = max(short - SHORT * self.target.stock_us, 0.0)
        else:
            self.notes.append("stock_us could not be told from the call of the interpreter")
            self._set("stock_us", self._usual("stock_us"), measured=False)
            self.call = short or 0.0
        many, few = (self._time("region_us", n) for n in UNITS)
        each = 0.0 if many is None or few is None else (many - few) / (UNITS[0] - UNITS[1])
        each -= BETWEEN * self.target.stock_us
        if each > 0:
            self._set("region_us", each)
        else:
            if many is not None:
                self.notes.append("region_us could not be told from what surrounds the regions")
            share = self.target.stock_us / self._usual("stock_us")
            self._set("region_us", self._usual("region_us") * share, measured=False)

    def _time(self, figure: str, case: int) -> float | None:
        return self.times.get(f"{figure} {case}")

    def _peaks(self) -> None:
        for peak in ("peak_f32", "peak_int8"):
            reached = [
                self.predictor.giga(probe, net)
                for probe in self.probes.get(peak, ())
                if (net := self._net(probe) - self.target.stock_us) > 0
            ]
            if reached:
                self._set(peak, max(reached))
            else:
                self.notes.append(f"{peak} could not be measured")

    def _bandwidths(self) -> None:
        for level in _LEVELS:
            self._fit(f"bandwidth.{level}")
        if not self.target.l3:
            self._set("bandwidth.l3", self.target.bandwidth[3], measured=False)
        for lower, upper in (("l3", "memory"), ("l2", "l3"), ("l1", "l2")):
            slow = self._now(f"bandwidth.{upper}")
            if self._now(f"bandwidth.{lower}") < slow:
                self.notes.append(f"bandwidth.{lower} was measured below bandwidth.{upper} and raised to it")
                self.target = with_figures(self.target, {f"bandwidth.{lower}": slow})

    def _level(self) -> None:
        """Sets both sides to their mean where each is the faster one with some shapes: neither is, on the whole."""
        # Not those of pointwise convolutions: they stand for regions of several operators.
        shares = [f for f in self.measured if f.startswith("shares.") and f.endswith(".stock") and not _turn(f)]
        for stock in shares:
            ours = stock.replace(".stock", ".ours")
            both = self.cases[stock].keys() & self.cases.get(ours, {}).keys()
            ratios = [self.cases[ours][case] / self.cases[stock][case] for case in both]
            if ratios and min(ratios) < 1 < max(ratios):
                mean = float(f"{math.sqrt(self._now(stock) * self._now(ours)):.4g}")
                self.target = with_figures(self.target, {stock: mean, ours: mean})

    def _derive(self) -> None:
        """What was not measured, in proportion to what was."""
        slower = self.base.peak_f32 / self.target.peak_f32
        for figure in _FALLBACKS:
            self._derived(figure, slower)
        self._derived("peak_int8", 1 / slower)
        for name, like in _LIKE.items():
            for side in ("stock", "ours"):
                ratio = self._now(f"functions.{like}.{side}") / self._usual(f"functions.{like}.{side}")
                self._derived(f"functions.{name}.{side}", ratio)
        for figure in flat(self.base):
            name, _, side = figure.rpartition(".")
            if side != "ours" or figure in self.measured or f"{name}.stock" not in self.measured:
                continue
            self._derived(figure, self._now(f"{name}.stock") / self._usual(f"{name}.stock"))

    def _derived(self, figure: str, ratio: float) -> None:
        if figure not in self.measured:
            self._set(figure, self._usual(figure) * ratio, measured=False)

    # -- fitting ---------------------------------------------------------------------------------------------------

    def _fit(self, figure: str) -> None:
        """Chooses a figure such that the model's times are the measured ones: the median of what each probe says."""
        probes = self.probes.get(figure, ())
        values = {p.case: value for p in probes if (value := self._solve(figure, p)) is not None}
        if values:
            self.cases[figure] = values
            self._set(figure, statistics.median(values.values()))
        elif probes:
            self.notes.append(f"{figure} could not be told from the rest of what its probes take")

    def _solve(self, figure: str, probe: Probe) -> float | None:
        """The value of a figure for which the model agrees with one probe; None where it makes no difference to it."""
        wanted = self._net(probe)
        usual = self._usual(figure)

        def over(scale: float) -> float:
            return self.predictor.us(with_figures(self.target, {figure: usual * scale}), probe) - wanted

        return None if (scale := _root(over, 1 / _RANGE, _RANGE)) is None else usual * scale


def _turn(figure: str) -> bool:
    """Pointwise convolutions come last, since they are measured with depthwise ones around."""
    return figure.startswith("shares.pointwise.")


def _root(function: Callable[[float], float], low: float, high: float) -> float | None:
    """Where a monotonous function is zero, by bisection of the logarithm; None where it is not within these bounds."""
    at_low, at_high = function(low), function(high)
    if at_low * at_high >= 0:
        return None
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        value = function(middle)
        if value * at_low > 0:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def nearest(machine: str, peak: float | None = None) -> Target:
    """The built-in profile that is most like a machine: of its architecture, and of several with the nearest peak."""
    known = {t.name: t for t in targets()}
    if machine.lower() in ("x86_64", "amd64", "i686", "i386", "x86"):
        return known["x86-64-v3"]
    if peak is None or machine.lower() not in ("aarch64", "arm64"):
        return known["generic-arm64"]
    arms = [known[name] for name in ("generic-arm64", "cortex-a53", "cortex-a76", "cortex-x")]
    return min(arms, key=lambda t: abs(math.log(t.peak_f32 / peak)))
