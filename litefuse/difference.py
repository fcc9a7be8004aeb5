"""How far an output may lie from the original's, and how far it does.

Bounds depend on what a rewrite promised and on the *own noise* of an output: the difference that another legitimate way
to compute the same real numbers makes. Two measures of it are taken, both as the largest difference relative to the
largest magnitude of the output in that run.

* *Kernel noise* is how far the original's results with XNNPACK and with the builtin kernels are apart on the same
  input: the largest over the ordinary cases, or that of the case at hand where that is larger. It costs nothing, both
  are run anyway. But it is large where the model rounds to integers on the way, as quantised and dynamic-range models
  do, because there the two sets of kernels round differently throughout.
* *Rounding noise* is what the original gives, with the same kernels, when its float constants are moved by up to half a
  unit in the last place, which is what folding them does, and its inputs by 2**-22 of their magnitude. It is measured
  only for a run that needs it, and is that run's; but what exceeds 1e-3 is the mark of a rounding to an integer that
  fell the other way, which may happen in any run, so that it counts for all. Models with state are left out, since
  there each run changes the next.

For REASSOCIATED and REPAIR rewrites then,

* a float output may differ by 1e-5 of its largest magnitude, by ten times the noise up to 1e-3, or by twice the noise
  beyond, where with the builtin kernels only rounding noise counts; a rule that changes constants by more than rounding
  states that deviation, of which then twice takes the place of 1e-5, and with which rounding noise is measured;
* a quantised output may differ by one step or by twice the noise in steps, and a float output that is merely the
  dequantised form of one may also differ by one step;
* any other integer, boolean or string output may differ in no more elements than those that noise of either kind
  changes. This is for indices such as those of ARG_MAX, where a tie can fall either way.

With XNNPACK kernel noise counts beyond 1e-3 too, for every rewrite, because another set of nodes may be delegated. For
QUANTIZED rewrites it counts with all kernels: a step more or less on the way is of that kind. EXACT rewrites must give
the same bits with the builtin kernels.

The factors come from 107 real models, whose float constants were moved as above. The largest difference was 7.3 times
the kernel noise where that was below 1e-4, and 1.2 times where roundings to integers had made it large, one flip being
as bad as many.

Inputs that are not finite, or so large that sums overflow, are compared only where they make no difference to the
original: where it gives the same when they are replaced by zeros and when they are replaced by ones. So they must not
reach farther than they did. Where they do, stock kernels contradict each other (builtin convolutions turn an infinity
into a finite number where XNNPACK gives NaN; a quantised NaN is anything), and folding moves the point at which sums
overflow. What becomes finite there, or ceases to be, is counted and noted.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from litefuse.errors import CheckError
from litefuse.fusions.rule import Numerics
from litefuse.graph import Graph
from litefuse.inputs import Case
from litefuse.interface import Port
from litefuse.schema.enums import TensorType
from litefuse.schema.operators import Op

Array: TypeAlias = NDArray[Any]

KERNELS = {True: "XNNPACK", False: "the builtin kernels"}
FLOOR = 1e-5
# Relative noise beyond which it comes from roundings to integers.
FLIP = 1e-3
JITTER = 2.0**-22
# Below this, floats lose digits.
_TINY = float(np.finfo(np.float32).tiny)
# From here on a number is the remains of an infinity rather than a result.
_HUGE = 1e30
# Relative differences below this power of ten count as of this one.
_LEAST_POWER = -12
# Own noise from which on the comparison is called weak.
_LOUD = 0.01
# Runs of an output that may be found wrong before no more effort is made to excuse it.
_STRIKES = 3


class Distribution(NamedTuple):
    """How large the differences of an output's elements are, in all ordinary runs with both sets of kernels together.

    Inputs that are not finite or overflow are left out.
    """

    measure: str
    """`relative` to the largest magnitude of the output in the same run, `steps` of an integer, or `elements` that are
    not equal."""
    equal: int
    """Elements that are equal."""
    bins: list[tuple[float, float, int]]
    """For the others: the differences above the first number, up to and with the second, and how many there are."""


@dataclass(frozen=True)
class OutputDifference:
    """How far an output of the result lies from the original's, at worst over all runs and both sets of kernels."""

    signature: str
    """The signature's key; "" for the first subgraph of a model without signatures."""
    output: str
    type: str
    """The numpy dtype's name, or "string"."""
    max_abs: float
    """In real units: quantised outputs are dequantised."""
    max_rel: float
    """The difference relative to the largest magnitude of the output in the same run."""
    max_ulp: float | None
    """For float outputs: how many representable numbers apart."""
    max_lsb: int | None
    """For integer outputs: how many steps apart."""
    nonfinite: int
    """Elements of which one is NaN or infinite and the other is not, or differently so."""
    bound: str
    """What was allowed in the run that came closest to it, or went farthest beyond."""
    ok: bool
    distribution: Distribution | None = None
    """How the differences are spread; None where none were measured."""


class Run(NamedTuple):
    """An output in one run."""

    case: Case
    xnnpack: bool
    reference: Array | None
    """What the original gave; None when the runtime does not hand it out."""
    got: Array | None
    """What the result gave."""
    second: Array | None
    """What the original gave with the other kernels, if they run it."""
    calm: Sequence[Array | None] = ()
    """In an extreme case, what the original gives with each of some usual numbers in place of the extreme values."""
    fails: bool = False
    """Whether the original itself fails in it, so that only usual numbers are compared."""


@dataclass
class _Finding:
    """What was measured in one run. For other outputs than floats, errors and noises count steps or elements."""

    xnnpack: bool = True
    error: float = 0.0
    noise: float = 0.0
    """Kernel noise, relative to `scale`."""
    rounding: float = 0.0
    """Rounding noise, relative to `scale`."""
    scale: float = 0.0
    same_bits: bool = True
    nonfinite: int = 0


class Output:
    """Everything that is known of one output; judged when all runs are done."""

    def __init__(
        self, port: Port, signature: str, numerics: Numerics, *, step: float, state: bool, deviation: float = 0.0
    ) -> None:
        self.port = port
        self.floor = max(FLOOR, 2 * deviation)
        self.signature = signature
        self.numerics = numerics
        self.step = step
        # Whether kernel noise counts in full with the builtin kernels.
        self.lax = state or numerics in (Numerics.EXACT, Numerics.QUANTIZED)
        self.findings: list[_Finding] = []
        self.noise = 0.0
        self.scale = 0.0
        self.eps = 0.0
        self.max_abs = 0.0
        self.max_rel = 0.0
        self.max_ulp: float | None = None
        self.max_lsb: int | None = None
        self.nonfinite = 0
        self.forgiven = 0
        self.repaired = 0
        self.unreadable = 0
        self.unsettled = 0
        self.flip = 0.0
        self.strikes = 0
        self.measure = "elements"
        # Elements by the power (of ten for relative differences, of two for steps) that they differ by at most.
        self.counts: Mapping[int | None, int] = {}
        self.type = "string" if port.type == TensorType.STRING else ""
        self.seen: set[int] = set()

    def __str__(self) -> str:
        return (f"signature `{self.signature}`, " if self.signature else "") + f"output `{self.port.name}`"

    def snapshot(self) -> dict[str, Any]:
        """What is known now, to go back to."""
        return vars(self) | {"findings": list(self.findings), "seen": set(self.seen)}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Forgets what was added since a snapshot."""
        vars(self).update(snapshot)

    def add(self, run: Run, opinions: Iterable[Array | None]) -> bool:
        """Measures one run. ``opinions`` are what the original gives when moved a little; each costs a run.

        Returns whether it is within the bound, as far as that is known by now.
        """
        x, y = run.reference, run.got
        place = f"{self}, case {run.case.name}, {KERNELS[run.xnnpack]}"
        if x is None or y is None:
            if x is not None or y is not None:
                raise CheckError(f"{place}: the runtime gives out only the {'original' if y is None else 'result'}'s")
            self.unreadable += 1
            return True
        if run.second is not None and run.second.shape != x.shape:
            self.unsettled += 1
            return True
        if x.shape != y.shape or x.dtype.kind != y.dtype.kind:
            raise CheckError(f"{place}: {y.dtype} of shape {y.shape} instead of {x.dtype} of shape {x.shape}")
        self.type = self.type or x.dtype.name
        if len(self.seen) < 2:
            self.seen.add(zlib.crc32(x.tobytes()) if x.dtype != object else hash(tuple(x.reshape(-1).tolist())))
        second = run.second
        if run.case.extreme or run.fails:
            settled = self._settled(x, y, run.calm) if run.case.extreme else np.ones(x.shape, bool)
            if run.fails:
                settled &= _is_usual(x) & _is_usual(y)
            x, y = _only(settled, x), _only(settled, y)
            second = None if second is None else _only(settled, second)
            opinions = (_only(settled, opinion) for opinion in opinions if opinion is not None)
        if x.dtype.kind in "fc":
            finding = self._real(x, y)
        elif self._is_discrete(x):
            finding = self._discrete(x, y)
        else:
            finding = self._steps(x, y)
        if not run.case.extreme and not run.fails:
            self._count(x, y, finding.scale)
        finding.xnnpack = run.xnnpack
        finding.noise = self._noise(x, second, finding.scale)
        if run.case.ordinary:
            self.noise = max(self.noise, finding.noise)
            self.scale = max(self.scale, finding.scale)
        self.findings.append(finding)
        if not finding.nonfinite and self._judge(finding)[0] <= 1:
            return True
        if self.strikes == _STRIKES or finding.nonfinite:
            return False
        changed = np.zeros(x.shape, bool)
        for opinion in opinions:
            finding.rounding = max(finding.rounding, self._noise(x, opinion, finding.scale))
            if self._is_discrete(x) and opinion is not None and opinion.shape == x.shape:
                changed |= x != opinion  # which way a tie falls is chance: every way seen counts
                finding.rounding = float(np.count_nonzero(changed))
            if self.port.quantized or finding.rounding > FLIP:
                self.flip = max(self.flip, finding.rounding)
            if self._judge(finding)[0] <= 1:
                return True
        self.strikes += 1
        return False

    def _settled(self, x: Array, y: Array, calm: Sequence[Array | None]) -> NDArray[np.bool_]:
        """Where extreme values make no difference to the original; counts elsewhere what the result has otherwise."""
        settled = np.full(x.shape, bool(calm))
        for value in calm:
            settled &= x == value if value is not None and value.shape == x.shape else False
        if x.dtype.kind in "fc":
            settled &= np.isfinite(x)
            if settled.any():
                # A clamp can turn a NaN into its bound, which is what the calm value may happen to be too.
                settled &= (x != x[settled].min()) & (x != x[settled].max())
            self.forgiven += int(np.count_nonzero((np.isfinite(x) != np.isfinite(y)) & ~settled))
        return settled

    def _is_discrete(self, x: Array) -> bool:
        return x.dtype.kind not in "fc" and not self.port.quantized

    def _noise(self, x: Array, second: Array | None, scale: float) -> float:
        """How far two opinions of the original are apart, in the unit of this kind of output."""
        if second is None or second.shape != x.shape:
            return 0.0
        if x.dtype.kind in "fc":
            x, second = _as_real(x), _as_real(second)
            settled = _is_finite(x) & _is_finite(second)
            apart = np.abs(x[settled].astype(np.float64) - second[settled].astype(np.float64))
            return float(np.max(apart, initial=0.0)) / scale if scale else 0.0
        if self._is_discrete(x):
            return float(np.count_nonzero(x != second))
        return float(np.max(np.abs(x.astype(np.int64) - second.astype(np.int64)), initial=0))

    def _real(self, x: Array, y: Array) -> _Finding:
        x, y = _as_real(x), _as_real(y)
        bits = np.dtype(f"u{x.dtype.itemsize}")
        self.eps = float(np.finfo(x.dtype).eps)
        finding = _Finding()
        wide, defined = x.astype(np.float64), _is_finite(x)
        finding.scale = float(np.max(np.abs(wide[defined]), initial=0.0))
        self.max_ulp = self.max_ulp or 0.0
        differs = (x.view(bits) != y.view(bits)) & ~(np.isnan(x) & np.isnan(y))
        if not differs.any():
            return finding
        finding.same_bits = False
        both = defined & _is_finite(y)
        overflown = ~defined & ~_is_finite(y) & (np.sign(x) == np.sign(y))
        broken = differs & ~both & ~overflown
        held = defined if self.numerics is Numerics.REPAIR else np.ones_like(defined)
        finding.nonfinite = int(np.count_nonzero(broken & held))
        self.nonfinite += finding.nonfinite
        self.repaired += int(np.count_nonzero(broken & ~held))
        finding.error = float(np.max(np.abs(wide[both] - y.astype(np.float64)[both]), initial=0.0))
        self._worse(finding.error, max(finding.scale, _TINY))
        self.max_ulp = max(self.max_ulp, _ulps(x[both], y[both]))
        return finding

    def _steps(self, x: Array, y: Array) -> _Finding:
        wide = x.astype(np.int64)
        apart = np.abs(wide - y.astype(np.int64))
        finding = _Finding(error=float(np.max(apart, initial=0)), same_bits=not apart.any())
        self.max_lsb = max(self.max_lsb or 0, int(finding.error))
        if finding.error:
            scale, zero = (_along(self.port, p, x.ndim) for p in (self.port.scale, self.port.zero_point))
            largest = np.maximum(np.abs((wide - zero) * scale), scale)
            self._worse(float(np.max(apart * scale)), float(np.max(largest)))
        return finding

    def _discrete(self, x: Array, y: Array) -> _Finding:
        differs = x != y
        finding = _Finding(error=float(np.count_nonzero(differs)), same_bits=not differs.any())
        if x.dtype.kind in "iub":
            numbers = x.astype(np.float64)
            apart = float(np.max(np.abs(numbers - y.astype(np.float64)), initial=0.0))
            self.max_lsb = max(self.max_lsb or 0, int(apart))
            self._worse(apart, float(np.max(np.abs(numbers), initial=1.0)))
        return finding

    def _count(self, x: Array, y: Array, scale: float) -> None:
        """Adds the differences of one run to the distribution."""
        found: Counter[int | None] = Counter(self.counts)  # a new one, since snapshots keep the old
        if x.dtype.kind in "fc":
            self.measure = "relative"
            x, y = _as_real(x), _as_real(y)
            both = _is_finite(x) & _is_finite(y)
            apart = np.abs(x[both].astype(np.float64) - y[both].astype(np.float64)) / max(scale, _TINY)
            powers = np.ceil(np.log10(apart[apart > 0]) - 1e-9)
        elif x.dtype.kind in "iu" and not self._is_discrete(x):
            self.measure = "steps"
            apart = np.abs(x.astype(np.int64) - y.astype(np.int64)).reshape(-1)
            powers = np.ceil(np.log2(apart[apart > 0]))
        else:
            apart = np.asarray(x != y, bool).reshape(-1)
            powers = np.zeros(int(np.count_nonzero(apart)))
        found[None] += int(apart.size - powers.size)
        values, numbers = np.unique(powers.astype(np.int64), return_counts=True)
        for value, n in zip(values.tolist(), numbers.tolist(), strict=True):
            found[max(value, _LEAST_POWER)] += n
        self.counts = found

    def distribution(self) -> Distribution | None:
        """How the differences are spread; None where no ordinary run was measured."""
        if not self.counts:
            return None
        powers = sorted(power for power in self.counts if power is not None)
        bins: list[tuple[float, float, int]] = []
        for power in powers:
            if self.measure == "relative":
                low, high = 10.0 ** (power - 1) if power > _LEAST_POWER else 0.0, 10.0**power
            else:
                low, high = (0.0, 1.0) if power == 0 else (2.0 ** (power - 1), 2.0**power)
            bins.append((low, high, self.counts[power]))
        return Distribution(self.measure, self.counts.get(None, 0), bins)

    def _worse(self, error: float, scale: float) -> None:
        self.max_abs = max(self.max_abs, error)
        self.max_rel = max(self.max_rel, error / scale)

    def judge(self) -> OutputDifference:
        """Holds every run to its bound."""
        worst: dict[bool, tuple[float, str]] = {}
        for finding in self.findings:
            judged = self._judge(finding)
            if finding.xnnpack not in worst or judged[0] > worst[finding.xnnpack][0]:
                worst[finding.xnnpack] = judged
        texts = [text for _, text in worst.values()]
        if len(set(texts)) > 1:
            texts = [f"{text} with {KERNELS[xnnpack]}" for xnnpack, (_, text) in worst.items()]
        return OutputDifference(
            signature=self.signature,
            output=self.port.name,
            type=self.type,
            max_abs=self.max_abs,
            max_rel=self.max_rel,
            max_ulp=self.max_ulp,
            max_lsb=self.max_lsb,
            nonfinite=self.nonfinite,
            bound=", ".join(dict.fromkeys(texts)),
            ok=all(ratio <= 1 for ratio, _ in worst.values()),
            distribution=self.distribution(),
        )

    def _judge(self, finding: _Finding) -> tuple[float, str]:
        """How much of its bound a run used up (1 is all of it), and the bound in words."""
        if self.numerics is Numerics.EXACT and not finding.xnnpack:
            return (0.0 if finding.same_bits else math.inf), "the same bits"
        if self.max_ulp is not None:
            allowed, text = self._allowed(finding)
            if finding.nonfinite:
                return math.inf, text
            return (finding.error / allowed if finding.error else 0.0), text
        if self.port.quantized:
            steps = max(1.0, 2 * self._full(finding))
            return finding.error / steps, "1 step" if steps == 1 else f"{steps:.0f} steps (twice its own noise)"
        undecided = max(finding.noise, finding.rounding)
        if not undecided:
            return (math.inf if finding.error else 0.0), "equal"
        return finding.error / undecided, f"{undecided:.0f} elements in which the original is undecided"

    def _full(self, finding: _Finding) -> float:
        """The noise that counts at any size."""
        kernel = max(finding.noise, self.noise) if self.lax or finding.xnnpack else 0.0
        return max(kernel, finding.rounding, self.flip)

    def _allowed(self, finding: _Finding) -> tuple[float, str]:
        """The largest error allowed in a run of a float output, and that in words."""
        # An output of a type with few bits cannot be within FLOOR of anything.
        floor = max(self.floor, 2 * self.eps)
        small, full = max(finding.noise, self.noise, finding.rounding), self._full(finding)
        relative = max(floor, min(10 * small, FLIP), 2 * full)
        why = "" if relative == floor else f" (its own noise is {full if relative == 2 * full else small:.1e})"
        # Sums that cancel to something small are as inexact as what they are made of.
        cancelled = max(4 * self.eps * self.scale, _TINY)
        allowed = max(relative * finding.scale, cancelled)
        if self.step > allowed:
            # Both ends of the step were rounded when they became floats.
            return self.step + 2 * self.eps * finding.scale, f"one quantisation step of {self.step:.3g}"
        if allowed == cancelled:
            return allowed, f"{allowed:.1e}, a few roundings at the usual magnitude"
        return allowed, f"{relative:.1e} of the largest value{why}"

    def notes(self) -> Iterator[str]:
        """What weakens the comparison of this output."""
        if len(self.seen) == 1 and len({f.xnnpack for f in self.findings}) * 3 <= len(self.findings):
            yield f"{self}: the original gave the same values whatever the inputs, so that comparing it says little"
        if self.unreadable:
            yield f"{self}: the runtime does not hand it over in {self.unreadable} runs, in which it was not compared"
        if self.unsettled:
            yield f"{self}: its size depends on the kernels in {self.unsettled} runs, in which it was not compared"
        if self.repaired:
            yield f"{self}: {self.repaired} elements were not finite in the original and differ"
        if self.forgiven:
            yield (
                f"{self}: for inputs that are not finite or overflow, {self.forgiven} elements are finite in one model "
                f"only, which does not count"
            )
        strict = not all(f.xnnpack for f in self.findings) and (not self.lax or self.numerics is Numerics.EXACT)
        if self.max_ulp is not None and self.noise > _LOUD and not strict:
            yield (
                f"{self}: the original's own kernels differ by {self.noise:.0%} of the largest value, so that only "
                f"gross differences would show"
            )


def _only(settled: NDArray[np.bool_], value: Array) -> Array:
    """``value`` with zeros where it is not to be compared."""
    same_shape = value.shape == settled.shape
    return np.where(settled, value, np.zeros((), value.dtype)) if same_shape else value


def _is_finite(value: Array) -> NDArray[np.bool_]:
    """Builtin kernels make the largest float of what overflows, so that this one counts as infinite too."""
    finite: NDArray[np.bool_] = np.abs(value) < np.finfo(value.dtype).max
    return finite


def _is_usual(value: Array) -> NDArray[np.bool_]:
    """Where a value cannot come from an infinity or NaN for all that one can see; nowhere in a value of integers."""
    if value.dtype.kind not in "fc":
        return np.zeros(value.shape, bool)
    with np.errstate(invalid="ignore", over="ignore"):
        usual: NDArray[np.bool_] = np.abs(value.astype(np.complex128)) < _HUGE
    return usual


def _as_real(value: Array) -> Array:
    value = np.ascontiguousarray(value)
    return value.view(np.dtype(f"f{value.dtype.itemsize // 2}")) if value.dtype.kind == "c" else value


def _ulps(x: Array, y: Array) -> float:
    """The largest number of steps between neighbouring floats that lie between elements of two arrays."""
    if not x.size:
        return 0.0
    kind = np.dtype(f"i{x.dtype.itemsize}")
    lowest = np.iinfo(kind).min
    ordered = [np.where(v.view(kind) < 0, lowest - v.view(kind), v.view(kind)).astype(np.float64) for v in (x, y)]
    return float(np.max(np.abs(ordered[0] - ordered[1])))


def _along(port: Port, parameters: Sequence[float], rank: int) -> Array:
    """Quantisation parameters in a shape that broadcasts against the tensor's value."""
    array = np.asarray(parameters if parameters else (0,))
    if array.size == 1 or rank == 0:
        return array.reshape(-1)[:1]
    return array.reshape([-1 if i == port.axis else 1 for i in range(rank)])


# Operators that only move what a DEQUANTIZE before them made.
_MOVERS = frozenset({Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS, Op.TRANSPOSE, Op.CONCATENATION})


def step_of(graph: Graph, tensor: int) -> float:
    """One quantisation step of a float output that is the dequantised form of an integer tensor, else 0."""
    largest, todo, seen = 0.0, [tensor], set()
    while todo:
        tensor = todo.pop()
        op = graph.producer(tensor)
        if op is None or tensor in seen:
            continue
        seen.add(tensor)
        if graph.kind(op) in _MOVERS:
            todo.extend(t for t in op.inputs if t >= 0)
        elif graph.kind(op) is Op.DEQUANTIZE and not graph.is_constant(op.inputs[0]):
            q = graph.quantization(op.inputs[0])
            if q is not None and q.scale is not None and len(q.scale):
                largest = max(largest, float(np.max(q.scale)))
    return largest
