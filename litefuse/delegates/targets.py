"""Hardware profiles: what the cost model needs to know of a processor and of the runtimes on it.

Figures are for one core at its usual sustained clock. Where they are from:

* Caches, SIMD width and the number of FMA and dot-product pipes: Arm's technical reference manuals and software
  optimisation guides of the cores named, AMD's guide for family 19h, Qualcomm's HVX programmer's reference for V68.
* Peak arithmetic: pipes x lanes x 2 x clock. An FMA counts as two operations. int8 is 8 x 8 bits into 32: by dot
  product where there is one (four products a lane), else by widening multiplication (about twice float32).
* Bandwidths of x86-64-v3: measured (EPYC, Zen 3, 3.2 GHz), like its overheads. Those of Arm cores: half to two thirds
  of the load width of each level for L1 and L2, and what published STREAM-like measurements of phones and boards give
  for L3 and memory.
* Overheads of composites where no delegate runs them: fitted on x86-64-v3 to 28 models with all operators in composites
  (4 to 40 % of their time) and to 6 with a few, on the careful side; elsewhere in
  proportion to the peak of arithmetic.
* Other overheads: measured on x86-64-v3 (models of 10 to 60 tiny operators take 0.1 us for each, one Invoke 0.7 us);
  others in proportion to clock and issue width.
* Shares of the peak and the work of functions: measured on x86-64-v3. Those of Arm cores are taken over from there:
  the instructions that both sides take under qemu (cortex-a76) are in like proportion, times were not measured.

:mod:`litefuse.delegates.calibrate` measures a machine and writes a profile to a file, which stands for it wherever a
target is named.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class Sides:
    """A figure of the kernels of either side."""

    stock: float
    """XNNPACK's; where it takes an operator of that kind not at all, TFLite's builtin kernels'."""
    ours: float
    """The delegate's."""


@dataclass(frozen=True)
class Shares:
    """Shares of the peak of arithmetic that kernels reach; beyond 1 where work is saved.

    Those of float32 count from the peak of float32, and so do those of 8-bit depthwise convolutions and 16-bit ones.
    """

    pointwise: Sides = Sides(0.86, 0.88)
    """1x1 convolutions."""
    convolution: Sides = Sides(0.93, 0.93)
    """Larger ones, summed up plainly."""
    winograd: float = 1.45
    """The time of whole convolutions by Winograd's algorithm, over what the formula for their products says."""
    depthwise: Sides = Sides(0.36, 0.55)
    """Depthwise convolutions up to 4x4, stride 1."""
    depthwise_strided: Sides = Sides(0.33, 0.4)
    """The same with another stride."""
    depthwise_5x5: Sides = Sides(0.29, 0.57)
    """Depthwise convolutions from 25 taps on."""
    depthwise_7x7: Sides = Sides(0.035, 0.55)
    """Depthwise convolutions from 49 taps on."""
    transposed: Sides = Sides(0.32, 0.85)
    """Transposed convolutions."""
    matmul: Sides = Sides(0.7, 0.75)
    """Fully connected layers and products of two tensors."""
    int8: Sides = Sides(0.4, 0.6)
    """Convolutions and products of 8-bit integers; of the peak of int8."""
    int8_depthwise: Sides = Sides(0.3, 0.3)
    """Depthwise convolutions of 8-bit integers."""
    hybrid: Sides = Sides(0.4, 0.4)
    """Floats with int8 weights; of the peak of int8."""
    int16: Sides = Sides(0.05, 0.05)
    """Convolutions and products of 16-bit integers, which reference kernels do on either side."""


@dataclass(frozen=True)
class Functions:
    """Work of an element of the result, in operations as cheap as an addition; it is 1 of what is not said here.

    By cycles on AVX2 with XNNPACK: LOGISTIC 9.5 for 8 floats, TANH 6.5, GELU 10. Where only TFLite's builtin kernels
    know a function, `builtin` multiplies it.
    """

    logistic: Sides = Sides(37.0, 29.0)
    tanh: Sides = Sides(26.0, 26.0)
    gelu: Sides = Sides(40.0, 33.0)
    exp: Sides = Sides(31.0, 27.0)
    elu: Sides = Sides(28.0, 28.0)
    log: Sides = Sides(32.0, 32.0)
    pow: Sides = Sides(80.0, 80.0)
    sin: Sides = Sides(32.0, 32.0)
    cos: Sides = Sides(32.0, 32.0)
    sqrt: Sides = Sides(18.0, 20.0)
    rsqrt: Sides = Sides(5.0, 14.0)
    div: Sides = Sides(13.0, 14.0)
    hard_swish: Sides = Sides(4.0, 4.0)
    leaky_relu: Sides = Sides(2.0, 2.0)
    prelu: Sides = Sides(3.0, 3.0)
    squared_difference: Sides = Sides(2.0, 2.0)
    floor_div: Sides = Sides(10.0, 10.0)
    floor_mod: Sides = Sides(10.0, 10.0)
    softmax: Sides = Sides(45.0, 45.0)
    log_softmax: Sides = Sides(30.0, 30.0)
    l2_normalization: Sides = Sides(4.0, 4.0)
    resize_bilinear: Sides = Sides(8.0, 8.0)
    quantize: Sides = Sides(2.0, 2.0)


@dataclass(frozen=True)
class Factors:
    """What makes other arithmetic dearer than its operations are."""

    tables: float = 3.0
    """Operations that a function of one int8 number takes, which is looked up."""
    builtin: float = 6.0
    """How much longer arithmetic takes in TFLite's builtin kernels, most of which are scalar, than in XNNPACK's."""
    adding: Sides = Sides(4.0, 3.0)
    """How much longer rows are added up than the additions alone would take."""


# Dot products of bytes bring both sides near the same limit; XNNPACK's depthwise convolutions make no use of them.
_DOT_PRODUCTS = Shares(int8=Sides(0.7, 0.7), int8_depthwise=Sides(0.3, 0.4))


@dataclass(frozen=True)
class Target:
    """A hardware profile with what its runtimes can load.

    Sizes are bytes per core for l1 and l2, and of the whole cluster for l3 (0: there is none). Bandwidths are GB/s for
    one core: of L1, L2, L3 and memory. Peaks are GFLOP/s and GOP/s of one core.
    """

    name: str
    description: str
    cores: int
    simd_bits: int
    l1: int
    l2: int
    l3: int
    bandwidth: tuple[float, float, float, float]
    peak_f32: float
    peak_int8: float
    stock_us: float
    """Microseconds that the stock runtime spends on an operator besides its arithmetic."""
    region_us: float
    """Microseconds for one region, with what it costs the stock runtime to stop before it and go on behind it."""
    fallback_us: float
    """Microseconds that a composite costs where no delegate runs it, besides its operators."""
    fallback_operator_us: float = 0.0
    """The same for each operator in it: the runtime prepares them anew in each run."""
    fallback_tap_us: float = 0.0
    """The same for each output pixel of a convolution in it, and each tap of its window."""
    fallback_byte_us: float = 0.0
    """The same for each byte that it reads or writes."""
    has_dotprod: bool = False
    delegate: bool = True
    """Whether regions run there at all."""
    types: tuple[str, ...] = ("FLOAT32", "INT8", "UINT8", "INT16", "INT32", "INT64", "BOOL")
    """Element types of tensors in regions."""
    max_operators: int = 48
    """Operators that one region may have."""
    max_operands: int = 16
    """Tensors that a region may read and write."""
    max_live: int = 16
    """Results that an elementwise region may hold at a time: about as many as there are vector registers."""
    shares: Shares = field(default_factory=Shares)
    functions: Functions = field(default_factory=Functions)
    factors: Factors = field(default_factory=Factors)

    def level(self, bytes: float) -> int:
        """The memory that holds a working set: 0 for L1, 1 for L2, 2 for L3, 3 beyond."""
        if bytes <= self.l1:
            return 0
        if bytes <= self.l2:
            return 1
        return 2 if bytes <= self.l3 else 3

    def seconds_per_byte(self, working_set: float) -> float:
        """What moving a byte takes while so many bytes are in use."""
        return 1e-9 / self.bandwidth[self.level(working_set)]


_TARGETS = (
    # A middling phone: the cost of being wrong is smallest in the middle.
    Target(
        "generic-arm64",
        "any 64-bit Arm core of the last years, with NEON and dot products",
        cores=4,
        simd_bits=128,
        l1=64 * KIB,
        l2=256 * KIB,
        l3=2 * MIB,
        bandwidth=(60.0, 30.0, 18.0, 8.0),
        peak_f32=32.0,  # 2 pipes x 4 lanes x 2 x 2.0 GHz
        peak_int8=128.0,
        stock_us=0.2,
        region_us=2.0,
        fallback_us=4.5,
        fallback_operator_us=9.0,
        fallback_tap_us=0.0018,
        fallback_byte_us=0.00045,
        has_dotprod=True,
        shares=_DOT_PRODUCTS,
    ),
    Target(
        "cortex-a53",
        "in-order core of small boards (Raspberry Pi 3), no dot product",
        cores=4,
        simd_bits=128,
        l1=32 * KIB,
        l2=512 * KIB,
        l3=0,
        bandwidth=(11.0, 5.5, 2.2, 2.2),
        peak_f32=9.6,  # 64-bit wide pipe: 4 FLOP x 2 a cycle at 1.2 GHz
        peak_int8=16.0,
        stock_us=0.8,
        region_us=8.0,
        fallback_us=15.0,
        fallback_operator_us=30.0,
        fallback_tap_us=0.006,
        fallback_byte_us=0.0015,
    ),
    Target(
        "cortex-a76",
        "out-of-order core of phones and boards (Raspberry Pi 5)",
        cores=4,
        simd_bits=128,
        l1=64 * KIB,
        l2=512 * KIB,
        l3=2 * MIB,
        bandwidth=(70.0, 35.0, 20.0, 10.0),
        peak_f32=38.4,  # 2 pipes x 4 lanes x 2 x 2.4 GHz
        peak_int8=153.0,
        stock_us=0.15,
        region_us=1.5,
        fallback_us=4.0,
        fallback_operator_us=8.0,
        fallback_tap_us=0.0016,
        fallback_byte_us=0.0004,
        has_dotprod=True,
        shares=_DOT_PRODUCTS,
    ),
    Target(
        "cortex-x",
        "large core of recent phones (Cortex-X2 and later)",
        cores=2,
        simd_bits=128,
        l1=64 * KIB,
        l2=1 * MIB,
        l3=8 * MIB,
        bandwidth=(140.0, 70.0, 40.0, 22.0),
        peak_f32=96.0,  # 4 pipes x 4 lanes x 2 x 3.0 GHz
        peak_int8=384.0,
        stock_us=0.1,
        region_us=1.0,
        fallback_us=1.5,
        fallback_operator_us=3.0,
        fallback_tap_us=0.0006,
        fallback_byte_us=0.00014,
        has_dotprod=True,
        shares=_DOT_PRODUCTS,
    ),
    Target(
        "x86-64-v3",
        "x86 with AVX2 and FMA, measured on an EPYC (Zen 3) core",
        cores=4,
        simd_bits=256,
        l1=32 * KIB,
        l2=512 * KIB,
        l3=32 * MIB,
        bandwidth=(150.0, 80.0, 65.0, 20.0),
        peak_f32=101.0,
        peak_int8=200.0,  # by pmaddwd on widened operands
        stock_us=0.08,
        max_live=12,
        region_us=0.8,
        fallback_us=1.5,
        fallback_operator_us=3.0,
        fallback_tap_us=0.0006,
        fallback_byte_us=0.00015,
    ),
    Target(
        "hexagon-v68",
        "Qualcomm's DSP with HVX, 8-bit models only",
        cores=4,
        simd_bits=1024,
        l1=32 * KIB,  # of the scalar unit; HVX works from L2
        l2=1 * MIB,
        l3=0,
        bandwidth=(100.0, 100.0, 20.0, 20.0),
        peak_f32=2.0,
        peak_int8=512.0,  # 2 vrmpy x 128 lanes of bytes x 2 x 1.0 GHz
        stock_us=2.0,
        region_us=30.0,  # a call from the host
        fallback_us=3.0,
        fallback_operator_us=6.0,
        fallback_tap_us=0.0012,
        fallback_byte_us=0.00015,
        types=("INT8", "UINT8", "INT32"),
        max_operators=512,
        max_operands=32,
    ),
    Target(
        "cortex-m",
        "microcontrollers under TensorFlow Lite Micro: memory plans only",
        cores=1,
        simd_bits=32,
        l1=0,
        l2=0,
        l3=0,
        bandwidth=(0.6, 0.6, 0.6, 0.6),
        peak_f32=0.2,
        peak_int8=0.4,
        stock_us=5.0,
        region_us=5.0,
        fallback_us=5.0,
        delegate=False,
    ),
)

DEFAULT = "generic-arm64"
"""The target that is meant when none is named."""


def targets() -> list[Target]:
    """The built-in profiles, the default one first."""
    return list(_TARGETS)


def target(name: str | os.PathLike[str] = DEFAULT) -> Target:
    """The profile of that name: a built-in one, one that was saved, or the file that a path names.

    Raises UsageError when there is none, or when its file is damaged.
    """
    for found in _TARGETS:
        if found.name == name:
            return found
    from litefuse.delegates.calibrate import profile

    return profile.named(name).target
