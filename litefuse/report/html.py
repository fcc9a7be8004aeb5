"""One page that shows what a conversion did, or how two files differ: data for :mod:`litefuse.report.page`.

The page is one file that loads nothing: its style, program and data are in it, and a content security policy lets
neither anything else run nor anything be fetched. What comes from models is in the data only, which the program puts
on the page as text. See docs/reports.md.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from litefuse.delegates.targets import DEFAULT, Target, target, targets
from litefuse.errors import LitefuseError, OutputError
from litefuse.interface import differences
from litefuse.report import documents, estimate
from litefuse.report.documents import Document, text
from litefuse.report.picture import Node, Picture, picture, short
from litefuse.report.stats import ModelStats, measure
from litefuse.schema.model import Model, replacing

if TYPE_CHECKING:
    from litefuse.convert import Conversion

_BYTES = ("bytes_in", "bytes_out", "bytes_constants", "bytes_internal")
_MICROCONTROLLER = "cortex-m"
_PROFILED = re.compile(r"#(\d+) `")


# -- comparing two models ------------------------------------------------------------------------------------------


def compare(
    a: Model,
    b: Model,
    *,
    stats: tuple[ModelStats, ModelStats] | None = None,
    profile: Target | None = None,
    tflm: bool = False,
) -> tuple[Picture, Picture]:
    """The pictures of two models, with what corresponds to what in them.

    Args:
        a: the original.
        b: what became of it, or any other model.
        stats: their numbers, if at hand.
        profile: the target whose cost model gives the times.
        tflm: whether memory is planned as TensorFlow Lite Micro does.
    """
    profile = profile or target(DEFAULT)
    of_a, of_b = stats or (measure(a), measure(b))
    pictures = picture(a, of_a, profile, tflm=tflm), picture(b, of_b, profile, tflm=tflm)
    _match(*pictures)
    return pictures


def _match(a: Picture, b: Picture) -> None:
    """Pairs the operators that compute a tensor of the same name; says of the others what is next to them."""
    theirs: dict[tuple[int, str], list[int]] = {}
    for n, node in enumerate(b.nodes):
        theirs.setdefault(_name(b, node), []).append(n)
    for n, node in enumerate(a.nodes):
        found = theirs.get(_name(a, node))
        if found:
            node.other = found.pop(0)
            b.nodes[node.other].other = n
    lone = [[n for n, node in enumerate(p.nodes) if node.other < 0] for p in (a, b)]
    makers = [{t: n for n, node in enumerate(p.nodes) for t in node.outs} for p in (a, b)]
    for node in a.nodes:
        if node.other >= 0:
            other = b.nodes[node.other]
            same = node.print_ == other.print_ and _reads_alike(a, b, node, other, makers)
            node.state = other.state = "same" if same else "changed"
    for p, q, missing, made, state in ((a, b, lone[0], makers[0], "gone"), (b, a, lone[1], makers[1], "new")):
        _place_lone(p, q, missing, made, state)
    # An operator that became part of a region is shown in its colour, be it rewritten on the way or not.
    if not a.regions:
        for node in a.nodes:
            if node.other >= 0:
                node.region = b.nodes[node.other].region


def _reads_alike(a: Picture, b: Picture, x: Node, y: Node, makers: list[dict[int, int]]) -> bool:
    """Whether two operators read the same; where one reads what only its model has, that is where the change is."""
    for t, u in zip(x.ins, y.ins, strict=False):
        m, n = makers[0].get(t), makers[1].get(u)
        if m is None and n is None:
            if a.tensors[t]["n"] != b.tensors[u]["n"] and not (a.tensors[t].get("c") and b.tensors[u].get("c")):
                return False
        elif m is not None and n is not None and a.nodes[m].other >= 0 <= b.nodes[n].other and a.nodes[m].other != n:
            return False
    return True


def _place_lone(p: Picture, q: Picture, missing: list[int], makers: dict[int, int], state: str) -> None:
    """Says what became of operators without a counterpart: what they read if that has changed, or what reads them."""
    above: dict[int, int] = {}
    below: dict[int, int] = {}
    followers: dict[int, list[int]] = {}
    for n, node in enumerate(p.nodes):
        for t in node.ins:
            followers.setdefault(t, []).append(n)
    for n in missing:
        p.nodes[n].state = state
        before = (makers[t] for t in p.nodes[n].ins if t in makers)
        near = [above.get(m, -1) if p.nodes[m].state == state else p.nodes[m].other for m in before]
        above[n] = next((m for m in near if m >= 0), -1)
    for n in reversed(missing):
        after = (m for t in p.nodes[n].outs for m in followers.get(t, ()))
        near = [below.get(m, -1) if p.nodes[m].state == state else p.nodes[m].other for m in after]
        below[n] = next((m for m in near if m >= 0), -1)
    for n in missing:
        changed = above[n] >= 0 and q.nodes[above[n]].state == "changed"
        p.nodes[n].other = above[n] if changed or below[n] < 0 else below[n]


def _name(of: Picture, node: Node) -> tuple[int, str]:
    """By what an operator is recognised; regions stand in subgraphs of their own, so that these do not count."""
    return (0, of.tensors[node.outs[0]]["n"]) if node.outs else (1, f"{node.subgraph}:{node.index}:{node.kind}")


def _attribute(a: Picture, b: Picture, document: Document) -> list[Document]:
    """Tells operators which rules were applied and declined at them; returns the refusals, to which numbers refer."""
    refused = list(document["refused"])
    refused += (document.get("regions") or {}).get("refused", [])
    by_place = {(node.subgraph, node.index): node for node in a.nodes}
    by_name: dict[str, Node] = {}
    for node in b.nodes:
        if node.outs:
            by_name.setdefault(b.tensors[node.outs[0]]["n"], node)
    for entries, attribute in ((document["applied"], "rules"), (refused, "refusals")):
        for number, entry in enumerate(entries):
            here = by_place.get((entry["subgraph"], entry["operator"]))
            there = by_name.get(short(entry["tensor"]))
            if there is None and here is not None and here.other >= 0 and attribute == "rules":
                there = b.nodes[here.other]
            for found in (here, there):
                if found is not None and entry["operator"] >= 0:
                    getattr(found, attribute).append(number)
    for entry in (document.get("regions") or {}).get("regions", []):
        root = by_name.get(short(entry["tensor"]))
        if root is not None and root.region >= 0 and b.regions[root.region]["kind"] == entry["kind"]:
            # As they were when regions were chosen: operators that several share are counted in one of them only.
            b.regions[root.region]["cost"] = {
                key: entry[key] for key in ("macs", "stock_us", "fused_us", "fallback_us", *_BYTES)
            } | {"scratch": entry["scratch_bytes"]}
    return refused


def _measured(b: Picture, bench: Document | None) -> None:
    """Tells regions and their operators how long they took."""
    profile = bench["profile"] if bench else None
    if not profile:
        return
    regions = {region["position"]: n for n, region in enumerate(b.regions) if region["subgraph"] == 0}
    members: dict[int, dict[int, Node]] = {}
    for node in b.nodes:
        if node.region >= 0:
            members.setdefault(node.region, {})[node.index] = node
    for entry in profile["regions"]:
        number = regions.get(entry["position"])
        if number is None:
            continue
        b.regions[number]["ms"] = entry["ms"]
        for one in entry["operators"]:
            found = _PROFILED.search(one["operator"])
            member = members.get(number, {}).get(int(found.group(1))) if found else None
            if member is not None:
                member.ms = one["ms"]


def _estimates(a: Picture, b: Picture, chosen: Target | None) -> list[Document]:
    """What a run moves and what energy it takes on each target, the chosen one first."""
    everything = [*([chosen] if chosen is not None else []), *targets()]
    result: list[Document] = []
    for one in {t.name: t for t in everything}.values():
        if one.name == _MICROCONTROLLER or not all(estimate.suits(p.parts, one) for p in (a, b)):
            continue
        try:
            sides = [estimate.estimate(p.parts, one, p.stats.weight_bytes) for p in (a, b)]
        except (LookupError, TypeError, ValueError, AttributeError, ZeroDivisionError):
            continue  # shapes of a damaged model
        result.append(
            {
                "target": one.name,
                "description": text(one.description),
                "chosen": chosen is not None and one.name == chosen.name,
                **{name: _estimate(side) for name, side in zip(("before", "after"), sides, strict=True)},
            }
        )
    return result


def _estimate(side: estimate.Estimate) -> Document:
    return {
        "activation_bytes": dict(zip(estimate.MEMORIES, side.activations, strict=True)),
        "constant_bytes": dict(zip(estimate.MEMORIES, side.constants, strict=True)),
        "dram_bytes": side.dram_bytes,
        "compute_uj": round(side.compute_pj * 1e-6, 6),
        "memory_uj": {n: round(e * 1e-6, 6) for n, e in zip(estimate.MEMORIES, side.memory_pj, strict=True)},
        "energy_uj": round(side.energy_pj * 1e-6, 6),
        "time_us": round(side.time_us, 3),
    }


def constants() -> Document:
    """The figures of the energy estimate, and where they are from."""
    return {
        "source": estimate.SOURCE,
        "pj_per_byte": dict(zip(estimate.MEMORIES, estimate.PICOJOULES_PER_BYTE, strict=True)),
        "pj_per_mac": {name: round(value, 3) for name, value in estimate.PICOJOULES_PER_MAC.items()},
        "pj_per_operation": estimate.PICOJOULES_PER_OPERATION,
    }


def by_kind(a: ModelStats, b: ModelStats) -> list[Document]:
    """Number, MACs and written bytes of operators by kind, before and after; what changed most comes first."""
    sums: dict[str, list[list[int]]] = {}
    for side, stats in enumerate((a, b)):
        for op in (op for subgraph in stats.counted for op in subgraph.operators):
            row = sums.setdefault(text(op.kind), [[0, 0, 0], [0, 0, 0]])[side]
            row[0] += 1
            row[1] += op.macs or 0
            row[2] += op.written
    keys = "count", "macs", "written_bytes"
    rows = sorted(sums.items(), key=lambda item: (-abs(item[1][1][0] - item[1][0][0]), -item[1][0][0], item[0]))
    return [
        {"kind": kind, "before": dict(zip(keys, x, strict=True)), "after": dict(zip(keys, y, strict=True))}
        for kind, (x, y) in rows
    ]


def changes(a: Picture, b: Picture) -> Document:
    """How many operators are the same, differ, and are in one of the models only."""
    states = [node.state for node in (*a.nodes, *b.nodes)]
    return {
        "same": states.count("same") // 2,
        "changed": states.count("changed") // 2,
        "gone": states.count("gone"),
        "new": states.count("new"),
    }


def difference(
    files: Sequence[str],
    pictures: tuple[Picture, Picture],
    *,
    chosen: Target | None = None,
    check: Document | None = None,
    bench: Document | None = None,
    notes: Sequence[str] = (),
) -> Document:
    """The content of the document of `litefuse diff`."""
    a, b = pictures
    return {
        "files": [text(f) for f in files],
        "before": documents.totals(a.stats),
        "after": documents.totals(b.stats),
        "kinds": by_kind(a.stats, b.stats),
        "operators": changes(a, b),
        "interface": [text(line) for line in differences(a.model, b.model)],
        "regions": [_regions(p) for p in pictures],
        "arena_bytes": [None if p.arena is None else p.arena["peak_bytes"] for p in pictures],
        "estimates": _estimates(a, b, chosen),
        "check": check,
        "bench": bench,
        "notes": [text(n) for n in notes],
    }


def _regions(of: Picture) -> dict[str, int]:
    counts: dict[str, int] = {}
    for region in of.regions:
        counts[region["kind"]] = counts.get(region["kind"], 0) + 1
    return counts


# -- pages ---------------------------------------------------------------------------------------------------------


class Pictures(NamedTuple):
    """What a conversion did, as pictures."""

    before: Picture
    after: Picture
    chosen: Target | None
    """The target that was chosen, if any."""
    refused: list[Document]
    """The refusals, to which the operators' numbers refer."""


def conversion_pictures(
    original: Model, done: Conversion, document: Document, *, target_name: str | None = None
) -> Pictures:
    """The pictures of a conversion, in which operators know their rules, refusals, regions and measured times.

    Args:
        original: the model that was converted.
        done: what :func:`litefuse.convert` gave.
        document: its entry in the JSON document, see docs/json.md.
        target_name: the target that was named, if any.
    """
    tflm = done.memory is not None
    chosen = done.regions.target if done.regions is not None else None
    if tflm:
        chosen = target(_MICROCONTROLLER)
    elif chosen is None and target_name is not None:
        chosen = target(target_name)
    a, b = compare(original, done.model, stats=(done.before, done.after), profile=chosen, tflm=tflm)
    refused = _attribute(a, b, document)
    _measured(b, document.get("bench"))
    return Pictures(a, b, chosen, refused)


def conversion_page(pictures: Pictures, done: Conversion, document: Document) -> str:
    """The page of a conversion, of which :func:`conversion_pictures` made the pictures from the same document."""
    a, b, chosen, refused = pictures
    return _page(
        {
            "command": "convert",
            "files": [document["file"], document["output"]],
            "document": document,
            "refused": refused,
            **_common(a, b, chosen, [] if done.memory is not None else None),
        }
    )


def difference_page(document: Document, pictures: tuple[Picture, Picture], chosen: Target | None = None) -> str:
    """The page of `litefuse diff`: ``document`` is what :func:`difference` gave."""
    a, b = pictures
    _measured(b, document["bench"])
    return _page(
        {
            "command": "diff",
            "files": document["files"],
            "document": document,
            "refused": [],
            **_common(a, b, chosen, document["estimates"]),
        }
    )


def _common(a: Picture, b: Picture, chosen: Target | None, estimates: list[Document] | None = None) -> Document:
    return {
        "target": (chosen or target(DEFAULT)).name,
        "chosen": chosen is not None,
        "kinds": by_kind(a.stats, b.stats),
        "changes": changes(a, b),
        "before": a.document(),
        "after": b.document(),
        "estimates": _estimates(a, b, chosen) if estimates is None else estimates,
        "constants": constants(),
    }


def write_page(page: str, path: str | os.PathLike[str]) -> None:
    """Writes a page: to a temporary file first, which then takes its place. Raises OutputError."""
    with replacing(path) as file:
        file.write(page.encode("utf-8"))


def refuse_page(path: str | os.PathLike[str], *others: str | os.PathLike[str] | None) -> None:
    """Raises OutputError where a page would take the place of one of the models."""
    for other in others:
        if other is not None and os.path.realpath(path) == os.path.realpath(other):
            raise OutputError(f"{os.fspath(path)}: is a model already; choose another file for the report")


def _page(data: Document) -> str:
    """The template with style, program and data in it."""
    from litefuse import __version__

    style, program = _part("style.css"), _part("app.js")
    names = " \u2192 ".join(os.path.basename(f) for f in data["files"] if f)
    filled = {
        "TITLE": html.escape(f"{names} \u2013 litefuse"),
        "POLICY": html.escape(
            f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(program)}'; img-src data:; "
            "base-uri 'none'; form-action 'none'"
        ),
        "STYLE": style,
        "PROGRAM": program,
        "DATA": _inert({"litefuse": __version__, **data}),
    }
    return re.sub(r"@@([A-Z]+)@@", lambda match: filled[match.group(1)], _part("template.html"))


def _part(name: str) -> str:
    return (resources.files("litefuse.report") / "page" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")


def _inert(data: Any) -> str:
    """JSON that can end no element and begin no comment, whatever its strings say; ASCII, since nothing is lost."""
    written = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """The same with the strings that the JSON documents have in place of what is not finite."""
    if isinstance(value, float):
        return documents.number(value)
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def page_files(models: Sequence[Any], where: str, extension: str = ".html") -> Iterator[str]:
    """The file of each model's page: the one that is named or, for several models, one in a directory of that name."""
    if len(models) == 1 and not where.endswith(("/", os.sep)) and not os.path.isdir(where):
        yield where
        return
    try:
        os.makedirs(where, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{where}: cannot be made a directory: {error.strerror or error}") from None
    seen: set[str] = set()
    for model in models:
        path = os.path.join(where, os.path.splitext(os.path.basename(os.fspath(model)))[0] + extension)
        if path in seen:
            raise LitefuseError(f"two of the models would both have their report in {path}")
        seen.add(path)
        yield path
