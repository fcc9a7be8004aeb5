"""The JSON documents of the command line, as plain dictionaries; `docs/json.md` describes every key.

Format 1 is stable: keys may be added, but are neither removed nor given another meaning. The terminal tables are drawn
from the same dictionaries, so both always say the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from litefuse import __version__
from litefuse.report.stats import ModelStats, OperatorStats, SubgraphStats, TensorInfo

if TYPE_CHECKING:
    from litefuse.arena.budget import Settled
    from litefuse.arena.memories import Placement
    from litefuse.arena.packing import Packing
    from litefuse.arena.plan import ArenaPlan, SubgraphPlan
    from litefuse.bench import BenchResult, Contender, Profile
    from litefuse.check import CheckResult
    from litefuse.convert import Conversion, Explanation
    from litefuse.delegates.formation import Formation, Formed
    from litefuse.delegates.targets import Target
    from litefuse.difference import Distribution
    from litefuse.fusions import Candidate, Rule
    from litefuse.graph.freeze import FreezeReport
    from litefuse.plan import Planned
    from litefuse.schema.model import Model
    from litefuse.schema.validate import Problem

FORMAT = 1

Document = dict[str, Any]


def envelope(command: str, **content: Any) -> Document:
    """What every document has in common, around what the command has to say."""
    return {"format": FORMAT, "litefuse": __version__, "command": command, **content}


def to_json(document: Document) -> str:
    """The text of a document: ASCII, valid for strict parsers."""
    import json

    return json.dumps(document, indent=2, allow_nan=False)


def text(value: str) -> str:
    """A string of a file as text: bytes that are not UTF-8 become U+FFFD."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def number(value: float | None) -> float | str | None:
    """A float for JSON, which has no infinities: these, and NaN, become strings."""
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def failure(file: str, message: str, exit_code: int) -> Document:
    """The entry of a file with which the command failed."""
    return {"file": text(file), "error": {"message": text(message), "exit_code": exit_code}}


# -- inspect -------------------------------------------------------------------------------------------------------


def inspection(file: str, stats: ModelStats, problems: Iterable[Problem], packaged: Document | None = None) -> Document:
    """The entry of a model in the document of `litefuse inspect`; ``packaged`` says which regions it holds."""
    return {
        "file": text(file),
        "schema_version": stats.version,
        "producer": {k: None if v is None else text(v) for k, v in stats.producer._asdict().items()},
        "signatures": [
            {
                "key": text(s.key),
                "subgraph": s.subgraph,
                "inputs": [_tensor(t) for t in s.inputs],
                "outputs": [_tensor(t) for t in s.outputs],
            }
            for s in stats.signatures
        ],
        "totals": totals(stats),
        "quantization": stats.quantization,
        "weight_types": stats.weight_types,
        "computed_types": stats.computed_types,
        "custom_operators": _names(stats.custom),
        "flex_operators": _names(stats.flex),
        "metadata": _names(stats.metadata),
        "appended_files": _names(stats.appended),
        "packaged": packaged,
        "unknown_field": stats.unknown,
        "problems": _problems(problems),
        "subgraphs": [_subgraph(s) for s in stats.subgraphs],
    }


def totals(stats: ModelStats) -> Document:
    """The numbers of a whole model."""
    return {
        "file_bytes": stats.file_bytes,
        "operators": stats.operators,
        "kinds": _names(stats.kinds),
        "macs": stats.macs,
        "unknown_macs": stats.unknown_macs,
        "activation_bytes": stats.activation_bytes,
        "peak_bytes": stats.peak_bytes,
        "weight_bytes": stats.weight_bytes,
        "widened_bytes": stats.widened_bytes,
        "variable_bytes": stats.variable_bytes,
    }


def _names(counts: dict[str, int]) -> dict[str, int]:
    """Numbers by name, the largest first."""
    return {text(name): n for name, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))}


def _tensor(tensor: TensorInfo) -> Document:
    return {
        "name": text(tensor.name),
        "tensor": text(tensor.tensor),
        "type": tensor.type,
        "shape": tensor.shape,
        "scale": number(tensor.scale),
        "zero_point": tensor.zero_point,
    }


def _problems(problems: Iterable[Problem]) -> list[Document]:
    return [{"severity": str(p.severity), "place": text(str(p.place)), "message": text(p.message)} for p in problems]


def _subgraph(stats: SubgraphStats) -> Document:
    return {
        "index": stats.index,
        "name": text(stats.name),
        "role": stats.role,
        "inputs": [_tensor(t) for t in stats.inputs],
        "outputs": [_tensor(t) for t in stats.outputs],
        "macs": stats.macs,
        "unknown_macs": stats.unknown_macs,
        "activation_bytes": stats.activation_bytes,
        "peak_bytes": stats.peak_bytes,
        "weight_bytes": stats.weight_bytes,
        "widened_bytes": stats.widened_bytes,
        "variable_bytes": stats.variable_bytes,
        "dynamic_tensors": [text(name) for name in stats.dynamic],
        "unsized_tensors": [text(name) for name in stats.unsized],
        "operators": [_operator(i, op) for i, op in enumerate(stats.operators)],
    }


def _operator(index: int, op: OperatorStats) -> Document:
    return {
        "index": index,
        "kind": text(op.kind),
        "tensor": text(op.tensor),
        "macs": op.macs,
        "written_bytes": op.written,
    }


# -- convert and check ---------------------------------------------------------------------------------------------


def conversion(file: str, done: Conversion, bench: Document | None = None) -> Document:
    """The entry of a model in the document of `litefuse convert`; ``bench`` is what was measured, if anything."""
    fusions = done.fusions
    numerics = {r.name: r.numerics for r in done.rules}
    return {
        "file": text(file),
        "output": None if done.output is None else text(str(done.output)),
        "before": totals(done.before),
        "after": totals(done.after),
        "numerics": done.numerics.value,
        "not_run": done.not_run,
        "applied": [_candidate(c, "detail", numerics=numerics[c.rule].value) for c in fusions.applied],
        "applied_counts": fusions.counts(),
        "refused": [_candidate(c, "reason") for c in fusions.refused],
        "refused_counts": refusals(fusions.refused),
        "frozen": frozen(done.frozen),
        "memory": memory(done.memory),
        "regions": regions(done.regions),
        "notes": [text(n) for n in fusions.notes],
        "problems": _problems(done.problems),
        "check": None if done.check is None else comparison(done.check),
        "delegate_check": None if done.delegate_check is None else comparison(done.delegate_check),
        "bench": bench,
        "model_explorer": None,
        "seconds": {stage: round(t, 6) for stage, t in done.seconds.items()},
    }


def explanation(file: str, found: Explanation) -> Document:
    """The entry of a model in the document of `litefuse explain`."""
    fusions = found.fusions
    numerics = {r.name: r.numerics.value for r in found.rules}
    return {
        "file": text(file),
        "applicable": [_candidate(c, "detail", numerics=numerics[c.rule]) for c in fusions.applied],
        "refused": [_candidate(c, "reason", numerics=numerics[c.rule]) for c in fusions.refused],
        "frozen": frozen(found.frozen),
        "regions": regions(found.regions),
        "notes": [text(n) for n in fusions.notes],
    }


def regions(formation: Formation | None) -> Document | None:
    """The regions that were formed, with the cost model's figures; None when none were to be."""
    if formation is None:
        return None
    return {
        "target": formation.target.name,
        "package": formation.mode,
        "operators": formation.operators,
        "covered": formation.covered,
        "stock_us": round(formation.stock_us, 3),
        "gain_us": round(formation.gain_us, 3),
        "scratch_bytes": formation.packaged.scratch_bytes,
        "kinds": formation.kinds(),
        "regions": [_region(formed) for formed in formation.regions],
        "refused": [_candidate(c, "reason") for c in formation.refused],
        "refused_counts": refusals(formation.refused),
    }


def _region(formed: Formed) -> Document:
    place, region = formed.location, formed.region
    cost = region.cost
    return {
        "kind": region.kind,
        "subgraph": place.subgraph,
        "operator": place.operator,
        "root": text(place.kind),
        "tensor": text(place.tensor),
        "operators": len(region.operators),
        "prologue": len(region.prologue),
        "epilogue": len(region.epilogue),
        "inputs": len(region.inputs),
        "outputs": len(region.outputs),
        "macs": cost.macs,
        "bytes_in": cost.bytes_in,
        "bytes_out": cost.bytes_out,
        "bytes_constants": cost.bytes_constants,
        "bytes_internal": cost.bytes_internal,
        "scratch_bytes": cost.scratch,
        "stock_us": round(cost.stock_us, 3),
        "fused_us": round(cost.fused_us, 3),
        "fallback_us": round(cost.fallback_us, 3),
    }


def target(profile: Target, default: str) -> Document:
    """A hardware profile in the document of `litefuse targets`."""
    names = ("l1", "l2", "l3", "memory")
    return {
        "name": profile.name,
        "description": text(profile.description),
        "default": profile.name == default,
        "regions": profile.delegate,
        "cores": profile.cores,
        "simd_bits": profile.simd_bits,
        "cache_bytes": {name: getattr(profile, name) for name in names[:3]},
        "bandwidth_gb_per_s": dict(zip(names, profile.bandwidth, strict=True)),
        "peak_f32_gflop_per_s": profile.peak_f32,
        "peak_int8_gop_per_s": profile.peak_int8,
        "stock_operator_us": profile.stock_us,
        "region_us": profile.region_us,
        "fallback_us": profile.fallback_us,
        "dot_products": profile.has_dotprod,
        "types": list(profile.types),
    }


def memory(settled: Settled | None) -> Document | None:
    """How a model keeps to its memory budget."""
    if settled is None:
        return None
    return {
        "peak_before": settled.peak_before,
        "peak_bytes": settled.peak,
        "record_bytes": settled.records,
        "budget": settled.budget,
        "reordered": settled.reordered,
        "tiled": [
            {
                "description": text(tiled.description),
                "rows": tiled.rows,
                "columns": tiled.columns,
                "extra_macs": tiled.extra_macs,
                "macs_before": tiled.macs_before,
            }
            for tiled in settled.tiled
        ],
        "plan": settled.written.kept == "plan",
    }


def frozen(report: FreezeReport | None) -> Document | None:
    """Which shapes were fixed, and which could not be; None when none were to be."""
    if report is None:
        return None
    return {
        "inputs": [
            {
                "subgraph": i.subgraph,
                "tensor": text(i.tensor),
                "before": None if i.before is None else list(i.before),
                "after": list(i.after),
            }
            for i in report.inputs
        ],
        "fixed": report.fixed,
        "folded": report.folded,
        "dynamic": [
            {
                "subgraph": d.subgraph,
                "tensor": text(d.tensor),
                "shape": None if d.shape is None else list(d.shape),
                "reason": text(d.reason),
            }
            for d in report.dynamic
        ],
        "notes": [text(n) for n in report.notes],
    }


def _candidate(candidate: Candidate, reason: str, **more: str) -> Document:
    place = candidate.location
    return {
        "rule": candidate.rule,
        "subgraph": place.subgraph,
        "operator": place.operator,
        "kind": text(place.kind),
        "tensor": text(place.tensor),
        reason: text(candidate.reason),
        **more,
    }


# How operators are named in reasons (see litefuse.graph.graph.Location), and numbers in them.
_PLACE = re.compile(r" #-?\d+ `[^`]*`( of subgraph \d+)?")
_NUMBER = re.compile(r"\d[\d,.]*")


def refusals(refused: Sequence[Candidate]) -> list[Document]:
    """Refusals by rule and reason, the most frequent first; reasons that differ only in places and numbers are one."""
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in refused:
        groups.setdefault((candidate.rule, _NUMBER.sub("0", _PLACE.sub("", candidate.reason))), []).append(candidate)
    return [
        {
            "rule": group[0].rule,
            "reason": text(_PLACE.sub("", group[0].reason)),
            "count": len(group),
            "example": text(str(group[0].location)),
        }
        for group in sorted(groups.values(), key=lambda group: -len(group))
    ]


def comparison(result: CheckResult) -> Document:
    """The outcome of comparing two models."""
    return {
        "ok": result.ok,
        "runs": result.runs,
        "regions": result.regions,
        "skipped": result.skipped,
        "notes": [text(n) for n in result.notes],
        "outputs": [
            {
                "signature": text(o.signature),
                "output": text(o.output),
                "type": o.type,
                "max_abs": number(o.max_abs),
                "max_rel": number(o.max_rel),
                "max_ulp": number(o.max_ulp),
                "max_lsb": number(o.max_lsb),
                "nonfinite": o.nonfinite,
                "bound": o.bound,
                "ok": o.ok,
                "distribution": _distribution(o.distribution),
            }
            for o in result.outputs
        ],
    }


def _distribution(found: Distribution | None) -> Document | None:
    if found is None:
        return None
    bins = [{"above": low, "to": high, "count": count} for low, high, count in found.bins]
    return {"measure": found.measure, "equal": found.equal, "bins": bins}


# -- plan ----------------------------------------------------------------------------------------------------------


def memory_plan(file: str, outcome: Planned) -> Document:
    """The entry of a model in the document of `litefuse plan`."""
    plan, model = outcome.plan, outcome.model
    return {
        "file": text(file),
        "runtime": plan.runtime.name,
        "alignment": plan.alignment,
        "peak_bytes": plan.peak,
        "own_bytes": outcome.own_bytes,
        "unsupported": [text(line) for line in outcome.unsupported],
        "arenas": [_arena(arena, model) for arena in plan.arenas],
        "suggestions": [text(s) for s in plan.suggestions],
        "budget": outcome.budget,
        "memories": None if outcome.placement is None else _placement(outcome.placement, plan.arenas[0], model),
        "tflm": None
        if outcome.written is None
        else {
            "kept": outcome.written.kept,
            "planned_bytes": outcome.written.planned_bytes,
            "own_bytes": outcome.written.base_bytes,
            "online": [{"tensor": text(o.name), "reason": text(o.reason)} for o in outcome.written.online],
        },
        "outputs": {kind: text(str(path)) for kind, path in outcome.outputs.items()},
        "seconds": round(outcome.seconds, 3),
    }


def _arena(arena: ArenaPlan, model: Model) -> Document:
    return {
        "peak_bytes": arena.peak,
        "lower_bound": arena.lower_bound,
        "order_bound": arena.order_bound if arena.searched else None,
        "plain_bound": arena.plain_bound,
        "packed": arena.packed,
        "optimal": arena.optimal,
        "method": arena.method,
        "peak_operators": [
            {
                "subgraph": peak.subgraph,
                "operator": peak.operator,
                "where": text(peak.where),
                "tensors": [{"name": text(t.name), "subgraph": t.subgraph, "bytes": t.bytes} for t in peak.tensors],
            }
            for peak in arena.peak_operators
        ],
        "subgraphs": [_subgraph_plan(part, arena, model) for part in arena.subgraphs],
    }


def _subgraph_plan(part: SubgraphPlan, arena: ArenaPlan, model: Model) -> Document:
    names = [text(t.name or "") for t in model.subgraphs[part.index].tensors]
    stays = {m.key[1]: m for block in arena.blocks for m in block.members if m.key[0] == part.index}
    return {
        "subgraph": part.index,
        "order": part.order if part.reordered else None,
        "tensors": [
            {
                "tensor": t,
                "name": names[t],
                "offset": offset,
                "bytes": stays[t].bytes if t in stays else None,
                "first": stays[t].first if t in stays else None,
                "last": stays[t].last if t in stays else None,
            }
            for t, offset in part.offsets.items()
        ],
        "shares": [
            {
                "operator": s.operator,
                "kind": s.kind.value,
                "source": names[s.source],
                "target": names[s.target],
                "reason": text(s.reason),
            }
            for s in part.shares
        ],
        "unplanned": [{"tensor": names[t], "reason": text(reason)} for t, reason in part.unplanned.items()],
        "dynamic": [names[t] for t in part.dynamic],
    }


def _placement(placement: Placement, arena: ArenaPlan, model: Model) -> Document:
    return {
        "cost": placement.cost,
        "lower_bound": placement.lower_bound,
        "proved": placement.proved,
        "memories": [
            {
                "name": use.memory.name,
                "size": use.memory.size,
                "cost": use.memory.cost,
                "peak_bytes": use.peak,
                "traffic_bytes": use.traffic,
            }
            for use in placement.uses
        ],
        "tensors": [
            {
                "subgraph": member.key[0],
                "tensor": member.key[1],
                "name": text(_tensor_name(model, member.key)),
                "memory": text(placement.memory[str(n)]),
                "offset": placement.offsets[str(n)] + member.offset,
                "bytes": member.bytes,
            }
            for n, block in enumerate(arena.blocks)
            for member in block.members
        ],
    }


def _tensor_name(model: Model, key: tuple[int, int]) -> str:
    from litefuse.arena.plan import scratch_name  # there already when there is a plan to describe

    subgraph, tensor = key
    return (model.subgraphs[subgraph].tensors[tensor].name or "") if tensor >= 0 else scratch_name(tensor)


def packing(file: str, buffers: int, found: Packing, capacity: int | None, outputs: dict[str, str]) -> Document:
    """The entry of a packing problem in the document of `litefuse plan`."""
    return {
        "file": text(file),
        "buffers": buffers,
        "peak_bytes": found.peak,
        "lower_bound": found.lower_bound,
        "proved": found.proved,
        "capacity": capacity,
        "fits": None if capacity is None else found.fits(capacity),
        "method": found.method,
        "offsets": {text(name): offset for name, offset in found.offsets.items()},
        "outputs": {kind: text(path) for kind, path in outputs.items()},
        "seconds": round(found.seconds, 3),
    }


# -- bench ---------------------------------------------------------------------------------------------------------


def benchmark(result: BenchResult) -> Document:
    """What `litefuse bench` measured."""
    return {
        "files": [text(f) for f in result.files],
        "runtime": {"name": result.runtime, "version": result.runtime_version},
        "delegate": None if result.delegate is None else text(result.delegate),
        "machine": {"architecture": result.machine, "processors": result.processors},
        "pinned": result.pinned,
        "threads": result.threads,
        "rounds": result.rounds,
        "warmup": result.warmup,
        "contenders": [_contender(c) for c in result.contenders],
        "profile": None if result.profile is None else _profile(result.profile),
        "notes": [text(n) for n in result.notes],
    }


def _contender(one: Contender) -> Document:
    latency, ratio = one.latency, one.ratio
    return {
        "name": one.name,
        "file": text(one.file),
        "file_bytes": one.file_bytes,
        "kernels": "xnnpack" if one.xnnpack else "builtin",
        "delegate": one.delegate,
        "failure": None if one.failure is None else text(one.failure),
        "latency": None
        if latency is None
        else {
            "runs": latency.runs,
            "p50_ms": _time(latency.p50),
            "p90_ms": _time(latency.p90),
            "p99_ms": _time(latency.p99),
            "min_ms": _time(latency.least),
            "max_ms": _time(latency.most),
            "jitter": round(latency.jitter, 4),
        },
        "ratio": None
        if ratio is None
        else {
            "median": round(ratio.median, 4),
            "low": round(ratio.low, 4),
            "high": round(ratio.high, 4),
            "verdict": ratio.verdict,
        },
        "first_start_ms": _time(one.first_start_ms),
        "start_ms": _time(one.start_ms),
        "peak_bytes": one.peak_bytes,
        "own_bytes": one.own_bytes,
        "arena_bytes": one.arena_bytes,
        "scratch_bytes": one.scratch_bytes,
        "regions": one.regions,
        "refused": [{"what": text(r.what), "reason": text(r.reason)} for r in one.refused],
    }


def _profile(profile: Profile) -> Document:
    return {
        "file": text(profile.file),
        "runs": profile.runs,
        "run_ms": _time(profile.ms),
        "outside_ms": _time(profile.outside_ms),
        "regions": [
            {
                "name": text(region.name),
                "position": region.position,
                "ms": _time(region.ms),
                "share": round(region.share, 6),
                "operators": [
                    {"operator": text(t.operator), "ms": _time(t.ms), "share": round(t.share, 6)}
                    for t in region.operators
                ],
            }
            for region in profile.regions
        ],
    }


def _time(milliseconds: float | None) -> float | None:
    """To the nanosecond."""
    return None if milliseconds is None else round(milliseconds, 6)


# -- rules ---------------------------------------------------------------------------------------------------------


_ROLE = re.compile(r":\w+:`~?([^`]+)`")  # Sphinx's, such as :mod:`litefuse.check`


def rule(one: Rule) -> Document:
    """The entry of a rule in the document of `litefuse rules`."""
    import inspect

    from litefuse.fusions.examples import example

    description = _ROLE.sub(r"`\1`", inspect.getdoc(type(one)) or "")
    return {
        "name": one.name,
        "numerics": one.numerics.value,
        "summary": description.split("\n\n")[0].replace("\n", " "),
        "description": description,
        "kinds": sorted(kind.name for kind in one.kinds),
        "example": example(one)._asdict(),
    }
