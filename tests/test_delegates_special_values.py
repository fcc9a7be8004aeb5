"""NaN, infinities, zeros with signs, denormal and huge numbers in regions of every kind: where they come out.

Small models, each a whole region, get such numbers at random places. Where outputs are NaN or infinite, the signs of
infinities and zeros, and numbers but for rounding must be as some stock kernel gives them: the reference kernels, the
optimised ones or XNNPACK. (These differ: the builtin kernels make the largest float of an infinity wherever there is
no activation.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from delegate import BOUND, Array, feeds, outputs_of, start, through

from litefuse.runtime import interpreter
from litefuse.schema import Model, to_bytes
from litefuse.schema.operators import Op

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import subjects

_MOST = float(np.finfo(np.float32).max)
_HUGE = 1e30
_NEAREST, _BILINEAR = Op.RESIZE_NEAREST_NEIGHBOR, Op.RESIZE_BILINEAR
ACTIVATIONS = ("silu", "prelu", "gelu", "gelu_tanh", "hard_swish", "leaky_relu", "residual")
MODELS: dict[str, Callable[[], Model]] = {
    "inverted residual": lambda: subjects._inverted(13, 8, 24, 8),
    "inverted residual, stride": lambda: subjects._inverted(14, 8, 24, 16, 2),
    "separable": lambda: subjects._separable(13, 16, 24),
    "separable, residual": lambda: subjects._separable(13, 16, 16, 5, 1, True),
    "layer norm": lambda: subjects._norm((6, 6, 24), 3),
    "layer norm of tokens": lambda: subjects._norm((9, 33), 2),
    "instance norm": lambda: subjects._norm((9, 9, 20), 1, 2),
    "RMS norm": lambda: subjects._rms_norm(9, 33),
    "depthwise 7x7": lambda: subjects._depthwise(13, 12, 7),
    "depthwise 5x5": lambda: subjects._depthwise(13, 12, 5, "RELU"),
    "depthwise 3x3": lambda: subjects._depthwise(13, 12, 3, "RELU6", 2),
    **{f"pointwise, {a}": lambda a=a: subjects._activated(7, 12, 20, 1, a) for a in ACTIVATIONS},
    **{f"convolution, {a}": lambda a=a: subjects._activated(9, 12, 20, 3, a) for a in ACTIVATIONS},
    "convolution 3x3": lambda: subjects._conv3(14, 32, 32),
    "convolutions in a chain": lambda: subjects._convs(14, 3, 10, 16),
    "BN, ReLU, pointwise": lambda: subjects._pre_activated(9, 16, 24, 1),
    "BN, ReLU, convolution": lambda: subjects._pre_activated(9, 16, 24, 3),
    "ConvNeXt block": lambda: subjects._convnext(9, 16),
    "squeeze-and-excite": lambda: subjects._squeezed(9, 16, 8, 24),
    "softmax": lambda: subjects._softmax(9, 37),
    "MLP": lambda: subjects._mlp(9, 16, 64),
    "scale, shift": lambda: subjects._elementwise(9, 16, "scale", "shift", "relu"),
    "gates": lambda: subjects._elementwise(9, 16, "scale", "shift", "other", "relu", "gate", "shift"),
    "SiLU": lambda: subjects._elementwise(9, 16, "scale", "silu", "gate"),
    "GELU": lambda: subjects._elementwise(9, 16, "scale", "shift", "gelu", "other"),
    "hard-swish": lambda: subjects._elementwise(9, 16, "shift", "hard_swish", "gate", "other"),
    **{
        f"elementwise, {name}": lambda name=name: subjects._elementwise(7, 13, name, "neg")
        for name in ("tanh", "abs", "sqrt", "exp", "rsqrt", "log", "elu", "logistic", "neg", "square", "relu6")
    },
    "nearest, convolution": lambda: subjects._upsampled(7, 16, 16, _NEAREST),
    "bilinear, convolution": lambda: subjects._upsampled(7, 16, 16, _BILINEAR),
    "bilinear, pointwise": lambda: subjects._upsampled(7, 16, 16, _BILINEAR, 1),
    "bilinear": lambda: subjects._upsampled(7, 16, 0, _BILINEAR),
    "convolution, pooling": lambda: subjects._pooled(12, 3, 16),
    "transposed convolution": lambda: subjects._transposed(7, 16, 8, "prelu"),
    "concatenation, pointwise": lambda: subjects._concatenated(9, 8, 16, 1),
    "concatenation, convolution": lambda: subjects._concatenated(9, 8, 16, 3),
    "dense": lambda: subjects._dense(5, 32, 40, "silu"),
}
SPECIAL: dict[str, tuple[float, ...]] = {
    "nan": (np.nan,),
    "infinite": (np.inf, -np.inf),
    "zeros": (0.0, -0.0),
    "denormal": (1e-40, -1e-40, 1.4e-45, -1.1e-38),
    "largest": (_MOST, -_MOST),
    "mixed": (np.nan, np.inf, -np.inf, -0.0, 1e-40, -1e-40, 1e38, -1e38),
}


OVERFLOWS = {
    *("layer norm", "layer norm of tokens", "instance norm", "RMS norm", "ConvNeXt block"),
    *("bilinear", "bilinear, convolution", "bilinear, pointwise"),
}
"""Normalisations square, and interpolation subtracts: where that overflows, stock kernels contradict each other, and
ours is no wiser."""
RECIPROCALS = {"elementwise, rsqrt"}
"""Denormal numbers, also those below zero, count as zero, whose reciprocal is infinite."""
ZEROS = {"bilinear"}
"""Interpolation adds in another order, so that sums of zeros may have another sign."""


def special(values: list[Array], numbers: tuple[float, ...], share: float, seed: int) -> list[Array]:
    """The same with some of these numbers at random places, at least one."""
    rng = np.random.default_rng(seed)
    made = []
    for value in values:
        chosen = rng.random(value.shape) < share
        chosen.flat[rng.integers(chosen.size)] = True
        made.append(np.where(chosen, rng.choice(np.array(numbers, np.float32), value.shape), value))
    return made


def same(want: Array, got: Array, bound: float = BOUND) -> Array:
    """Where two results are the same: NaN, infinite with one sign, zero with one sign, or near.

    Kernels of TFLite clamp to the largest float where there is no activation, so that numbers from here on may be the
    remains of an infinity; they, and those next to them, only have to have the same sign.
    """
    a, b = want.astype(np.float64), got.astype(np.float64)
    with np.errstate(all="ignore"):
        usual = np.abs(a[np.abs(a) < _HUGE])
        near = np.abs(a - b) <= bound * (np.abs(a) + np.max(usual, initial=0.0) / 10) + np.finfo(np.float32).tiny
        near &= np.isfinite(a) & np.isfinite(b)
        huge = (np.abs(a) >= _HUGE) & (np.abs(b) >= _HUGE)
        # What is left of huge numbers that cancel each other is anything.
        remains = np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= bound * _MOST) & (huge | (np.abs(a) >= _HUGE))
        zero = (a == 0) & (b == 0)
        signed = np.signbit(a) == np.signbit(b)
    return (np.isnan(a) & np.isnan(b)) | np.where(zero | huge, signed, near & ~huge) | remains


def told(wanted: list[Array], got: Array, wrong: Array) -> str:
    """Some of the differences."""
    places = [tuple(int(i) for i in place) for place in np.argwhere(wrong)[:6]]
    return f"{np.count_nonzero(wrong)} of {wrong.size} differ: {[(p, [w[p] for w in wanted], got[p]) for p in places]}"


def has_reference(name: str) -> bool:
    """The reference kernels of the runtime have no ELU."""
    return not name.endswith(" elu")


def stock(model: Model, values: list[Array], name: str) -> list[list[Array]]:
    """For each output what the stock kernels give: the reference kernels, the optimised ones, XNNPACK."""
    runners = [start(model, reference=True)] if has_reference(name) else []
    runners += [start(model, reference=False), interpreter(to_bytes(model))]
    return [list(outputs) for outputs in zip(*(outputs_of(runner, values) for runner in runners), strict=True)]


def test_what_counts_as_the_same() -> None:
    pairs = [
        (np.nan, np.nan),
        (np.inf, _MOST),
        (-np.inf, -1e37),
        (1.0, 1.000001),
        (-0.0, -0.0),
        (1e-40, 0.0),
        (1e33, -1e33),
    ]
    others = [
        (np.nan, 1),
        (1, np.nan),
        (np.inf, 1),
        (1, np.inf),
        (np.inf, -np.inf),
        (_MOST, -_MOST),
        (0.0, -0.0),
        (1.0, 1.1),
    ]
    for cases, expected in ((pairs, True), (others, False)):
        for want, got in cases:
            found = same(np.array([1, want], np.float32), np.array([1, got], np.float32))
            assert found.tolist() == [True, expected], (want, got)


@pytest.mark.parametrize("numbers", SPECIAL)
@pytest.mark.parametrize("name", MODELS)
def test_special_numbers_come_out_where_they_do_in_stock_kernels(name: str, numbers: str) -> None:
    model, reference = MODELS[name](), has_reference(name)
    usual = feeds(start(model, reference=reference))
    for seed, share in enumerate((0.0, 0.01, 0.1)):
        values = special(usual, SPECIAL[numbers], share, seed)
        got = through(model, values, winograd=False, reference=reference)
        for i, wanted in enumerate(stock(model, values, name)):
            # Stock kernels contradict each other; there is nothing that none of them gives.
            wrong = ~np.any([same(want, got[i]) for want in wanted], axis=0)
            if name in ZEROS:
                wrong &= (got[i] != 0) | np.any([want != 0 for want in wanted], axis=0)
            if name in RECIPROCALS:
                wrong &= ~np.isinf(got[i]) | ~np.any([~(np.abs(want) < 1e18) for want in wanted], axis=0)
            if name in OVERFLOWS and numbers in ("largest", "mixed"):
                wrong &= ~reached(model, values)[i]
                assert share or wrong.size > np.count_nonzero(reached(model, values)[i]), "nothing is compared"
            assert not wrong.any(), f"share {share}, seed {seed}: {told(wanted, got[i], wrong)}"


def reached(model: Model, values: list[Array]) -> list[Array]:
    """Which elements of the outputs depend on huge inputs: those that NaN in their place reaches."""
    marked = [np.where(np.abs(np.nan_to_num(v, nan=0.0)) >= _HUGE, np.nan, v).astype(np.float32) for v in values]
    return [np.isnan(out) for out in outputs_of(start(model), marked)]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, _MOST])
def test_winograd_spreads_them_no_farther_than_to_a_tile(number: float) -> None:
    """Its 4x4 tiles of outputs see 6x6 inputs; all of a tile is lost where one of these is not finite."""
    model = subjects._conv3(28, 32, 32)
    (x,) = feeds(start(model))
    x[0, 13, 14, 5] = number
    (want,) = outputs_of(start(model), [x])
    (direct,), (got,) = through(model, [x], winograd=False), through(model, [x])
    # As many rows and columns of tiles as see it: those that begin at 12, since 11 is the last that 8 sees the end of.
    tile = np.zeros(want.shape, bool)
    tile[:, 12:16, 12:16] = True
    assert not np.isfinite(got[tile]).any(), "Winograd's algorithm was not used"
    assert same(want, got)[~tile].all()
    assert same(want, direct)[~tile].all()


@pytest.mark.parametrize("name", ["neg", "abs", "relu6", "leaky_relu"])
def test_denormal_numbers_stay_or_become_zero(name: str) -> None:
    """The builtin kernels keep them, XNNPACK takes them for zeros."""
    model = subjects._elementwise(7, 13, name, "neg")
    values = special(feeds(start(model)), SPECIAL["denormal"], 0.5, 0)
    (got,) = through(model, values)
    kept, flushed = (outputs_of(runner, values)[0] for runner in (start(model), interpreter(to_bytes(model))))
    small = (kept != 0) & (np.abs(kept) < np.finfo(np.float32).tiny)
    assert small.any()
    assert np.all((got == kept) | (small & (got == flushed)))
