"""Node data for Google's Model Explorer: regions, estimated time, bytes moved and measured time, over its graphs.

Model Explorer draws a `.tflite` file by itself and takes colours and values for its nodes from JSON files, one for each
overlay (https://github.com/google-ai-edge/model-explorer/wiki). It finds a node by its identifier, which is the
operator's position in its subgraph, or by the name of a tensor that it computes; names come first. See docs/reports.md.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from litefuse.report.documents import Document, text
from litefuse.report.html import Pictures
from litefuse.report.picture import Node, Picture
from litefuse.schema.model import Model, replacing

COLOURS = (
    ("#3b7dd8", "#7ba8e8"),
    ("#e08a1e", "#ecb46c"),
    ("#2f9e6e", "#74c3a1"),
    ("#b85bc4", "#d295da"),
    ("#d1495b", "#e28b97"),
    ("#1f9fb3", "#6ec3d0"),
    ("#8c7a2b", "#b8aa6e"),
    ("#6f6ad9", "#a29fe8"),
    ("#c2568f", "#da95b9"),
    ("#5d8a3a", "#98b982"),
)
"""Of kinds of regions, the most frequent first, as in the report; two by turns, to tell neighbours apart."""

_REWRITTEN = "#9aa3ad"
_GRADIENT = ({"stop": 0, "bgColor": "#fdf3dc"}, {"stop": 0.5, "bgColor": "#f0a04b"}, {"stop": 1, "bgColor": "#b3261e"})

SIDES = ("original", "result")


class Overlay(NamedTuple):
    """Values for the nodes of one model."""

    side: str
    """Of which: `original` or `result`."""
    what: str
    """`regions`, `cost`, `traffic` or `time`."""
    content: Document
    """By name of a graph, what Model Explorer calls node data."""

    def path(self, first: str) -> str:
        """Its file beside ``first``, which is that of the original's regions."""
        stem, extension = os.path.splitext(first)
        parts = [stem, *(["result"] if self.side == "result" else []), *([self.what] if self.what != "regions" else [])]
        return ".".join(parts) + extension


def overlays(pictures: Pictures, document: Document) -> list[Overlay]:
    """The overlays of a conversion, for the original and for the result.

    Those of measured time are there where regions were measured.

    Args:
        pictures: what :func:`litefuse.report.html.conversion_pictures` made of the conversion.
        document: its entry in the JSON document, see docs/json.md.
    """
    sides = pictures.before, pictures.after
    rules = [entry["rule"] for entry in document["applied"]]
    model = "cost model" if pictures.chosen is None else pictures.chosen.name
    found = []
    for side, of in zip(SIDES, sides, strict=True):
        for what, title, values in (
            ("regions", "Regions", _regions(of, pictures.after.regions, rules)),
            ("cost", f"Estimated time in us ({model})", _cost(of)),
            ("traffic", "Bytes moved", _traffic(of)),
            ("time", "Measured time in ms", _time(of, pictures.after)),
        ):
            content = _node_data(of.model, f"{title}, {side}", values)
            if content or what == "regions":
                found.append(Overlay(side, what, content))
    return found


def write(found: Iterable[Overlay], first: str, sides: Sequence[str] = SIDES) -> dict[str, list[str]]:
    """Writes overlays of some sides beside each other; returns the files of each side. Raises OutputError."""
    files: dict[str, list[str]] = {side: [] for side in sides}
    for overlay in found:
        if overlay.side in files:
            path = overlay.path(first)
            with replacing(path) as file:
                file.write(json.dumps(overlay.content, indent=1).encode("ascii"))
            files[overlay.side].append(path)
    return files


# -- values --------------------------------------------------------------------------------------------------------

_Place = tuple[int, int]
"""An operator: its subgraph, and its position there."""

_Value = float | str


class _Valued(NamedTuple):
    place: _Place
    value: _Value
    colour: str | None = None


def _colours(regions: Sequence[Document]) -> list[str]:
    """The colour of each region."""
    kinds = Counter(str(region["kind"]) for region in regions)
    ranks = {kind: i for i, (kind, _) in enumerate(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))}
    seen: Counter[str] = Counter()
    colours = []
    for region in regions:
        kind = str(region["kind"])
        colours.append(COLOURS[ranks[kind] % len(COLOURS)][seen[kind] % 2])
        seen[kind] += 1
    return colours


def _regions(of: Picture, regions: Sequence[Document], rules: Sequence[str]) -> Iterator[_Valued]:
    """Which region each operator is in, or goes into; of the others, the rules that were applied there."""
    colours = _colours(regions)
    for node in of.nodes:
        if node.region >= 0:
            yield _Valued((node.subgraph, node.index), _label(regions[node.region]), colours[node.region])
        elif node.rules or node.state == "gone":
            made = ", ".join(dict.fromkeys(rules[n] for n in node.rules))
            yield _Valued((node.subgraph, node.index), made or "left out", _REWRITTEN)
    for region, colour in zip(of.regions, colours, strict=False):
        if region["node"] is not None:
            yield _Valued((region["subgraph"], region["node"]), _label(region), colour)


def _label(region: Document) -> str:
    return f"{region['kind']} #{region['position']}"


def _members(of: Picture) -> dict[int, list[Node]]:
    members: dict[int, list[Node]] = {}
    for node in of.nodes:
        if node.region >= 0 and of.regions:
            members.setdefault(node.region, []).append(node)
    return members


def _cost(of: Picture) -> Iterator[_Valued]:
    """Microseconds by the cost model; those of a region are divided among its operators as their own times are."""
    shares: dict[int, float] = {}
    for n, members in _members(of).items():
        own = sum(node.stock_us or 0.0 for node in members if not node.fed)
        cost = of.regions[n]["cost"]
        if cost and own:
            shares[n] = cost["fused_us"] / own
    for node in of.nodes:
        if node.stock_us is not None and not node.fed:
            yield _Valued((node.subgraph, node.index), round(node.stock_us * shares.get(node.region, 1.0), 3))
    for region in of.regions:
        if region["node"] is not None and region["cost"]:
            yield _Valued((region["subgraph"], region["node"]), round(region["cost"]["fused_us"], 3))


def _traffic(of: Picture) -> Iterator[_Valued]:
    """Bytes that are read and written; of those in a region, what they read from outside and write to there."""
    leaving = {of.numbers.get((i, t)) for i, s in enumerate(of.model.subgraphs) for t in s.outputs}
    regions = _members(of)
    inside = {id(node): n for n, members in regions.items() for node in members}
    readers: dict[int, set[int | None]] = {}
    makers: dict[int, Node] = {}
    for node in of.nodes:
        for t in node.ins:
            readers.setdefault(t, set()).add(inside.get(id(node)))
        makers.update(dict.fromkeys(node.outs, node))
    sums: dict[int, int] = dict.fromkeys(regions, 0)
    taken: set[tuple[int, int]] = set()
    for node in of.nodes:
        if node.fed:
            continue
        region = inside.get(id(node))
        moved = 0
        for t in dict.fromkeys(node.ins):
            maker = makers.get(t)
            if region is not None:
                if (region, t) in taken or (maker is not None and not maker.fed and inside.get(id(maker)) == region):
                    continue
                taken.add((region, t))
            moved += of.tensors[t].get("b") or 0
        for t in node.outs:
            if region is None or t in leaving or readers.get(t, {None}) - {region}:
                moved += of.tensors[t].get("b") or 0
        if region is not None:
            sums[region] += moved
        yield _Valued((node.subgraph, node.index), moved)
    for n, about in enumerate(of.regions):
        if about["node"] is not None and n in sums:
            yield _Valued((about["subgraph"], about["node"]), sums[n])


def _time(of: Picture, after: Picture) -> Iterator[_Valued]:
    """Milliseconds that operators in regions took, and their regions; of the original, those of what it became."""
    for n, node in enumerate(of.nodes):
        measured = node
        if of is not after:
            if node.other < 0 or after.nodes[node.other].other != n or node.state not in ("same", "changed"):
                continue
            measured = after.nodes[node.other]
        if measured.ms is not None and not node.fed:
            yield _Valued((node.subgraph, node.index), measured.ms)
    for region in of.regions:
        if region["node"] is not None and region["ms"] is not None:
            yield _Valued((region["subgraph"], region["node"]), region["ms"])


# -- node data -----------------------------------------------------------------------------------------------------


def _node_data(model: Model, title: str, values: Iterable[_Valued]) -> Document:
    """Values in Model Explorer's format, by name of a graph."""
    graphs: dict[int, Document] = {}
    keys: dict[int, list[str | None]] = {}
    for place, value, colour in values:
        index, position = place
        if index not in keys:
            keys[index] = node_keys(model, index)
        key = keys[index][position]
        if key is None or (isinstance(value, float) and not math.isfinite(value)):
            continue
        graphs.setdefault(index, {})[key] = {"value": value} | ({"bgColor": colour} if colour else {})
    content: Document = {}
    names = graph_names(model)
    for index, results in sorted(graphs.items()):
        if names.index(names[index]) < index:
            continue  # Model Explorer cannot tell graphs of the same name apart
        content[names[index]] = {"name": title, "results": results}
        if any("bgColor" in r for r in results.values()):
            content[names[index]] |= {"hideInAggregatedStatsTable": True, "hideInChildrenStatsTable": True}
        else:
            content[names[index]]["gradient"] = list(_GRADIENT)
    return content


def graph_names(model: Model) -> list[str]:
    """What Model Explorer calls the subgraphs of a model: by their names, else by their signatures, else by number."""
    signed: dict[int, str] = {}
    for signature in model.signature_defs:
        signed.setdefault(signature.subgraph_index, signature.signature_key or "")
    names = (s.name or signed.get(i) or ("main" if i == 0 else f"subgraph_{i}") for i, s in enumerate(model.subgraphs))
    return [text(name) for name in names]


def node_keys(model: Model, index: int) -> list[str | None]:
    """By what Model Explorer finds the operators of a subgraph; None where it can only find another node."""
    subgraph = model.subgraphs[index]
    names = Counter(text(tensor.name or "") for tensor in subgraph.tensors)
    keys: list[str | None] = []
    for position, op in enumerate(subgraph.operators):
        # Names of tensors go before positions, and some models call their tensors 1, 2, 3.
        made = (text(subgraph.tensors[t].name or "") for t in op.outputs if 0 <= t < len(subgraph.tensors))
        own = str(position) if str(position) not in names else None
        keys.append(own or next((name for name in made if name and names[name] == 1), None))
    return keys
