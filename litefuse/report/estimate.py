"""What a run of a model moves and how much energy that takes: an estimate, from sizes alone.

Bytes move between operators: each reads its inputs and constants and writes its outputs, in the memory that holds all
of these together on the target, which is the rule of the cost model (:mod:`litefuse.delegates.cost`). A region does so
once for all of its operators; what stays inside it is written once and read once by each reader, in L2 where a
convolution, product, window or copy makes it and in L1 otherwise. Constants come from DRAM in every run where those of
the whole model are larger than the last cache. Operators that constants alone feed run once, at the start, and count
for nothing. Each subgraph counts once, and decompositions as what they stand for.

Energy is that of arithmetic and of moving bytes, with the figures of :data:`SOURCE`. They are for 45 nm and 0.9 V:
absolute numbers of a recent chip are lower by a factor that is about the same for arithmetic and on-chip memory, so
that what is worth something here is the comparison of two models. Decoding instructions, leakage, and whatever else
is on the board are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from litefuse.delegates.cost import Roofline, flops, macs
from litefuse.delegates.kinds import OpClass
from litefuse.delegates.network import Network
from litefuse.delegates.targets import Target
from litefuse.schema.enums import TensorType

SOURCE = (
    "M. Horowitz, Computing's Energy Problem (and what we can do about it), ISSCC 2014, figure 1.1.9 "
    "(45 nm, 0.9 V; doi:10.1109/ISSCC.2014.6757323)"
)

MEMORIES = ("L1", "L2", "L3", "DRAM")

PICOJOULES_PER_BYTE = (20 / 8, 100 / 8, 100 / 8, 1300 / 8)
"""Of L1, L2, L3 and DRAM: the source has 20 pJ for 64 bits of a 32 KB cache, 100 pJ for those of a 1 MB one (L3 is
larger, so that its figure is low), and 1.3 to 2.6 nJ for those of DRAM, of which the lower figure is taken."""

PICOJOULES_PER_MAC = {"float32": 3.7 + 0.9, "float16": 1.1 + 0.4, "int8": 0.2 + 0.1, "int32": 3.1 + 0.1}
"""A multiplication and an addition. Integers of 8 bits and less are added up in 32; those of 16 bits, which the source
does not have, count like those of 32."""

PICOJOULES_PER_OPERATION = {"float": 0.9, "int": 0.1}
"""An addition in 32 bits, in which other arithmetic is counted."""

_ARITHMETIC = {
    TensorType.FLOAT32: "float32",
    TensorType.FLOAT16: "float16",
    TensorType.BFLOAT16: "float16",
    TensorType.INT8: "int8",
    TensorType.UINT8: "int8",
    TensorType.INT4: "int8",
}
_NEAR = frozenset({OpClass.ROOT, OpClass.WINDOW, OpClass.INJECTIVE})


class Part(NamedTuple):
    """What runs in one piece: an operator, or the operators of a region."""

    network: Network
    members: Sequence[int]
    region: bool


@dataclass
class Estimate:
    """The figures of one run of a model on a target.

    Attributes:
        target: its name.
        activations: bytes of activations by memory: L1, L2, L3, DRAM.
        constants: bytes of constants likewise.
        compute_pj: picojoules of arithmetic.
        memory_pj: picojoules of moving bytes, by memory.
        time_us: microseconds by the cost model.
    """

    target: str
    activations: list[int] = field(default_factory=lambda: [0] * 4)
    constants: list[int] = field(default_factory=lambda: [0] * 4)
    compute_pj: float = 0.0
    memory_pj: list[float] = field(default_factory=lambda: [0.0] * 4)
    time_us: float = 0.0

    @property
    def energy_pj(self) -> float:
        """All of it."""
        return self.compute_pj + sum(self.memory_pj)

    @property
    def dram_bytes(self) -> int:
        """What comes from DRAM or goes there."""
        return self.activations[3] + self.constants[3]


def estimate(parts: Iterable[Part], target: Target, constant_bytes: int) -> Estimate:
    """The figures of a run.

    Args:
        parts: everything that runs.
        target: where.
        constant_bytes: the constants of the whole model.
    """
    found = Estimate(target.name)
    model = Roofline(target)
    streamed = constant_bytes > max(target.l2, target.l3)
    for part in parts:
        network, members = part.network, [i for i in part.members if not part.network.feeds[i]]
        if not members:
            continue
        for i in members:
            found.compute_pj += _arithmetic(network, i)
        inputs, outputs = network.inputs_of(members), network.outputs_of(members)
        passing = sum(map(network.bytes, inputs)) + sum(map(network.bytes, outputs))
        constants = sum(map(network.bytes, {t for i in members for t in network.constants(i)}))
        level = target.level(passing + constants)
        found.activations[level] += passing
        found.constants[3 if streamed else level] += constants
        leaving = set(outputs)
        for i in members:
            for t in network.outs[i]:
                if t not in leaving:
                    readers = sum(r in members for r in network.readers(t))
                    found.activations[1 if network.roles[i] in _NEAR else 0] += network.bytes(t) * (1 + readers)
        if part.region:
            found.time_us += model.fused_us(network, part.members)
        else:
            found.time_us += sum(model.operator_us(network, i) for i in members)
    for level, energy in enumerate(PICOJOULES_PER_BYTE):
        found.memory_pj[level] = (found.activations[level] + found.constants[level]) * energy
    return found


def _arithmetic(network: Network, i: int) -> float:
    """Picojoules of an operator's arithmetic."""
    types = [network.graph.type(t) for t in network.ops[i].inputs if t >= 0]
    number = macs(network, i)
    energy = 0.0
    if number:
        of = [_ARITHMETIC.get(t, "int32") for t in types[:3] if t not in (TensorType.INT32, TensorType.INT64)]
        # With weights of few bits, sums are formed in integers whatever the data are.
        kind = "int8" if "int8" in of else max(of, key=PICOJOULES_PER_MAC.__getitem__, default="int32")
        energy += number * PICOJOULES_PER_MAC[kind]
    floats = any(t in (TensorType.FLOAT32, TensorType.FLOAT16) for t in types)
    return energy + flops(network, i) * PICOJOULES_PER_OPERATION["float" if floats else "int"]


def suits(parts: Iterable[Part], target: Target) -> bool:
    """Whether a target has arithmetic for what a model computes with: a DSP for 8 bits has none for floats."""
    for part in parts:
        for i in part.members:
            if part.network.roles[i] is OpClass.ROOT and part.network.data(i) >= 0:
                type = part.network.graph.type(part.network.data(i))
                if TensorType(type).name not in target.types:
                    return False
    return True
