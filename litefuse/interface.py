"""How a model is called: its entry points with the names, types, shapes and quantisation of what goes in and out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from litefuse.errors import SchemaError
from litefuse.schema.enums import TensorType
from litefuse.schema.model import Model
from litefuse.schema.tables import SignatureDef, TensorMap
from litefuse.schema.types import RANGES


@dataclass(frozen=True)
class Port:
    """An input or output: a tensor and the name by which callers know it."""

    name: str
    tensor: int
    type: TensorType
    shape: tuple[int, ...]
    """As stored; what an unknown dimension starts as."""
    signature: tuple[int, ...]
    """The shape with -1 for dimensions that are only known at run time."""
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int

    @property
    def quantized(self) -> bool:
        """Whether the stored integers stand for real numbers."""
        return bool(self.scale) and self.type in RANGES


@dataclass(frozen=True)
class Entry:
    """One way into a model: a signature, or the first subgraph of a model that has no signature for it."""

    key: str
    """The signature's key, or "" without one."""
    subgraph: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def __str__(self) -> str:
        return f"signature `{self.key}`, " if self.key else ""


def entries(model: Model) -> list[Entry]:
    """All ways into a model. Raises SchemaError when one refers to something that does not exist."""
    if not model.subgraphs:
        raise SchemaError("the model has no subgraph, so that there is nothing to run")
    try:
        plain = Entry("", 0, *(_plain(model, kind) for kind in ("inputs", "outputs")))
        found = [_entry(model, signature) for signature in model.signature_defs]
    except IndexError:
        raise SchemaError("an input or output refers to a tensor that does not exist") from None
    return found if any(entry.subgraph == 0 for entry in found) else [plain, *found]


def differences(a: Model, b: Model, *, frozen: bool = False) -> Iterator[str]:
    """What a caller of ``a`` would notice when given ``b``: signatures, names, order, types, shapes, quantisation.

    With ``frozen``, ``b`` may fix dimensions that ``a`` leaves open.
    """
    keys = [[s.signature_key for s in m.signature_defs] for m in (a, b)]
    if keys[0] != keys[1]:
        yield f"the signatures are {keys[1]} instead of {keys[0]}"
        return
    for kind in ("inputs", "outputs"):
        yield from _port_differences(kind, _plain(a, kind), _plain(b, kind), frozen)
        for x, y in zip(a.signature_defs, b.signature_defs, strict=True):
            what = f"{kind} of signature `{x.signature_key}`"
            ports = _named(a, x, getattr(x, kind)), _named(b, y, getattr(y, kind))
            yield from _port_differences(what, *ports, frozen)


def _plain(model: Model, kind: str) -> tuple[Port, ...]:
    return tuple(_port(model, 0, tensor) for tensor in getattr(model.subgraphs[0], kind))


def _named(model: Model, signature: SignatureDef, maps: Iterable[TensorMap]) -> tuple[Port, ...]:
    return tuple(_port(model, signature.subgraph_index, m.tensor_index, m.name) for m in maps)


def _entry(model: Model, signature: SignatureDef) -> Entry:
    inputs = _named(model, signature, signature.inputs)
    if signature.subgraph_index == 0:  # is run by tensor indices, so that what the signature leaves out can be set too
        named = {port.tensor for port in inputs}
        inputs += tuple(port for port in _plain(model, "inputs") if port.tensor not in named)
    outputs = _named(model, signature, signature.outputs)
    return Entry(signature.signature_key or "", signature.subgraph_index, inputs, outputs)


def _port(model: Model, subgraph: int, tensor: int, name: str | None = None) -> Port:
    t = model.subgraphs[subgraph].tensors[tensor]
    q = t.quantization
    shape = tuple(t.shape or ())
    signature = tuple(t.shape_signature or ())
    return Port(
        name=name or t.name or f"#{tensor}",
        tensor=tensor,
        type=t.type,
        shape=shape,
        signature=signature if len(signature) == len(shape) else shape,
        scale=() if q is None or q.scale is None else tuple(float(s) for s in q.scale),
        zero_point=() if q is None or q.zero_point is None else tuple(int(z) for z in q.zero_point),
        axis=0 if q is None else q.quantized_dimension,
    )


def _port_differences(what: str, a: tuple[Port, ...], b: tuple[Port, ...], frozen: bool) -> Iterator[str]:
    names = [[port.name for port in ports] for ports in (a, b)]
    if names[0] != names[1]:
        yield f"the {what} are {names[1]} instead of {names[0]}"
        return
    for x, y in zip(a, b, strict=True):
        for aspect, was, now in (
            ("type", *(getattr(port.type, "name", port.type) for port in (x, y))),
            ("shape", *(_shape(port) for port in (x, y))),
            ("quantisation", *(_quantisation(port) for port in (x, y))),
        ):
            if was != now and not (aspect == "shape" and frozen and _narrows(x, y)):
                yield f"`{x.name}` of the {what} has {aspect} {now} instead of {was}"
                break


def _narrows(a: Port, b: Port) -> bool:
    """Whether every shape that ``b`` may have is one that ``a`` may have; without dimensions, that may be any."""
    pairs = zip(a.signature, b.signature, strict=False)
    return not a.signature or (len(a.signature) == len(b.signature) and all(x in (-1, y) for x, y in pairs))


def _shape(port: Port) -> str:
    return f"{list(port.shape)}" + (f" ({list(port.signature)})" if port.signature != port.shape else "")


def _quantisation(port: Port) -> Any:
    return {"scale": list(port.scale), "zero_point": list(port.zero_point), "axis": port.axis} if port.scale else "none"
