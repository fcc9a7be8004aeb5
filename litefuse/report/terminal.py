"""Terminal tables, drawn from the documents of :mod:`litefuse.report.documents`.

Names come from files that nobody vouches for, so everything is shown with control characters replaced. Colours are
few and from the terminal's own palette; nothing is said by colour alone. In a terminal, everything fits its width, and
long names lose their middle, for which there are three dots; elsewhere, lines are as long as they need to be.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from litefuse.report.documents import Document

_UNBOUNDED = 1 << 14
_TOP = 5  # refusals and names that are shown; the rest is counted
_LONG = 48  # characters of a name in a text
_NARROW = 12  # columns that a column of names keeps
_TEXT = 24  # and one of texts
_WIDE = 120  # columns of a terminal in which a description stands beside other things
_BAR = 24  # columns
_NAMES = re.compile(rf"`([^`\s]{{{_LONG + 1},}})`")


def console(file: IO[str] | None = None) -> Console:
    """A console on ``file`` (standard output by default): plain text, and unwrapped unless it is a terminal.

    A terminal gets plain text too where the variable NO_COLOR says so.
    """
    colors = None if os.environ.get("NO_COLOR") else "auto"
    made = Console(file=file, markup=False, highlight=False, emoji=False, color_system=colors)  # type: ignore[arg-type]
    if not made.is_terminal:
        made.width = _UNBOUNDED
    return made


def clean(value: Any) -> Any:
    """A document or string with every unprintable character replaced, so that names cannot steer the terminal."""
    if isinstance(value, str):
        return value if value.isprintable() else "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in value)
    if isinstance(value, dict):
        return {clean(k): clean(v) for k, v in value.items()}
    if isinstance(value, list):
        return [clean(v) for v in value]
    return value


# -- numbers -------------------------------------------------------------------------------------------------------


def amount(value: int, unit: str = "") -> str:
    """A count or size to three figures with a decimal prefix, such as `1.63 MB` and `12.5 M`."""
    scaled, prefix = float(value), ""
    for prefix in ("", "k", "M", "G", "T", "P", "E"):  # noqa: B007, the last one stays
        if abs(scaled) < 999.5:
            break
        scaled /= 1000
    digits = 0 if not prefix or abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    return f"{scaled:.{digits}f} {prefix}{unit}".rstrip()


def change(before: float, after: float) -> str:
    """A relative change, such as `-12.5 %`; empty when there is none."""
    if before == after:
        return ""
    if before == 0:
        return "new"
    return f"{(after - before) / before * 100:+.1f} %"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _some(names: Sequence[str], limit: int = _TOP) -> str:
    """The first few of many names."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _brief(name: str, out: Console) -> str:
    """A name that is too long for a list in a terminal, without its middle."""
    return _middle(name, _LONG) if out.is_terminal else name


def _middle(name: str, columns: int) -> str:
    """A name without so much of its middle that the rest takes no more than so many columns."""
    if cell_len(name) <= columns:
        return name
    head, tail = "", ""
    for a, b in zip(name, reversed(name), strict=True):
        if cell_len(tail) <= cell_len(head):
            if cell_len(head + tail + b) > columns - 3:
                break
            tail = b + tail
        if cell_len(head + tail + a) > columns - 3:
            break
        head += a
    return f"{head}...{tail}"


def _texts(text: str, out: Console) -> str:
    """A text in which the names that stand in backticks are no longer than suits a terminal."""
    return _NAMES.sub(lambda name: f"`{_middle(name[1], _LONG)}`", text) if out.is_terminal else text


# -- building blocks -----------------------------------------------------------------------------------------------


def _grid(*justify: str) -> Table:
    grid = Table.grid(padding=(0, 2))
    for i, side in enumerate(justify):
        # The last column takes the long texts and may wrap; the others keep their width.
        last = i == len(justify) - 1 and side == "left"
        grid.add_column(justify=side, no_wrap=not last, overflow="fold")  # type: ignore[arg-type]
    return grid


def _section(out: Console, content: Table | Text, title: str = "") -> None:
    """Prints a block after an empty line, indented, under a bold title if it has one."""
    out.print()
    if title:
        indented(out, Text(title, "bold"), 0)
    indented(out, content)


def indented(out: Console, content: Table | Text, columns: int = 2) -> None:
    """Prints something some columns in, without the blanks that rich leaves at the ends of lines."""
    if out.is_terminal:
        if isinstance(content, Table):
            content = _fitted(out, content, out.width - columns)
        elif len(content) and not content.spans:
            content = Text(_texts(content.plain, out), content.style)
    for line in out.render_lines(Padding.indent(content, columns), pad=False):
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
        out.print(Segments([*line, Segment.line()]), end="")


def _fitted(out: Console, table: Table, room: int) -> Table:
    """The table with names shortened so that it takes no more than so many columns.

    rich would cut off what is too long without a word.
    """
    rows = [[c if isinstance(c, Text) else Text(str(c)) for c in row] for row in _rows(table)]
    last = len(table.columns) - 1
    for row in rows:
        for i, cell in enumerate(row):
            if not table.columns[i].no_wrap and not cell.spans:
                row[i] = Text(_texts(cell.plain, out), cell.style)
    widths = [max((cell_len(row[i].plain) for row in rows), default=0) for i in range(last + 1)]
    if last >= 0 and not table.columns[last].no_wrap:
        widths[last] = min(widths[last], _TEXT)
    excess = sum(widths) + 2 * last - room
    for justify in ("left", "right"):
        for i in sorted(range(last + 1), key=lambda i: -widths[i]):
            column = table.columns[i]
            if excess > 0 and column.no_wrap and column.justify == justify and widths[i] > _NARROW:
                width = max(widths[i] - excess, _NARROW)
                excess -= widths[i] - width
                for row in rows:
                    if cell_len(row[i].plain) > width:
                        row[i] = Text(_middle(row[i].plain, width), row[i].style)
    made = Table.grid(padding=(0, 2))
    for column in table.columns:
        made.add_column(
            justify=column.justify, no_wrap=column.no_wrap, overflow="ellipsis" if column.no_wrap else "fold"
        )
    for row, about in zip(rows, table.rows, strict=True):
        made.add_row(*row, style=about.style)
    return made


def _rows(table: Table) -> list[tuple[Any, ...]]:
    """The cells of a table, row by row."""
    return list(zip(*(column.cells for column in table.columns), strict=True))


def step_line(text: str, share: float | None, columns: int) -> str:
    """A line that says what is being done, with a bar where it is known how much is.

    Args:
        text: what is being done.
        share: how much of it, from 0 to 1, or None.
        columns: how long the line may be.
    """
    out = console(sys.stderr)
    out.width = columns
    text = clean(text).replace("\n", " ")
    if share is None or columns < 2 * _BAR:
        return _shortened(text, columns)
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=columns - _BAR - 7, no_wrap=True)
    grid.add_column(width=_BAR)
    grid.add_column(width=5, justify="right")
    bar = ProgressBar(total=1.0, completed=share, width=_BAR)
    grid.add_row(_shortened(text, columns - _BAR - 7), bar, f"{share * 100:.0f} %")
    with out.capture() as captured:
        out.print(grid, end="")
    return captured.get().rstrip("\n")


def _shortened(text: str, columns: int) -> str:
    """A text without so much of its end that the rest takes no more than so many columns."""
    shown = Text(text)
    shown.truncate(columns, overflow="ellipsis")
    return shown.plain


def _files(out: Console, files: Sequence[str]) -> None:
    """The title of a comparison: what A and B are, or the one file."""
    if len(files) == 1:
        out.print(Text(files[0], "bold"))
    else:
        grid = _grid("left", "left")
        for letter, file in zip("AB", files, strict=False):
            grid.add_row(letter, Text(file, "bold"))
        indented(out, grid, 0)


def _lines(out: Console, lines: Sequence[str], title: str) -> None:
    """A section of lines; none where there are no lines."""
    if lines:
        grid = _grid("left")
        for line in lines:
            grid.add_row(line)
        _section(out, grid, title)


def _items(rows: Sequence[tuple[str, str]]) -> Table:
    grid = _grid("left", "left")
    for name, value in rows:
        grid.add_row(name, value)
    return grid


def _problems(out: Console, problems: Sequence[Document], title: str) -> None:
    if not problems:
        return
    grid = _grid("left", "left")
    for p in problems[: 4 * _TOP]:
        style = "bold red" if p["severity"] == "error" else "bold"
        grid.add_row(Text(p["severity"], style), f"{p['place']}: {p['message']}" if p["place"] else p["message"])
    if len(problems) > 4 * _TOP:
        grid.add_row("", f"and {len(problems) - 4 * _TOP} more")
    _section(out, grid, title)


# -- inspect -------------------------------------------------------------------------------------------------------


def inspection(out: Console, document: Document) -> None:
    """Shows one model."""
    d = clean(document)
    t = d["totals"]
    out.print(Text(d["file"], "bold"))
    _borders(out, d)
    _section(out, _operators(d), "Operators")
    unknown = f", unknown for {_plural(t['unknown_macs'], 'operator')}" if t["unknown_macs"] else ""
    sizes = [
        ("MACs", amount(t["macs"]) + unknown),
        ("activations written", amount(t["activation_bytes"], "B")),
        ("peak memory", amount(t["peak_bytes"], "B") + " (lower bound)"),
        ("weights", amount(t["weight_bytes"], "B") + _parts(d["weight_types"], "B")),
        ("weights widened at start", amount(t["widened_bytes"], "B")),
        ("state", amount(t["variable_bytes"], "B")),
        ("file", amount(t["file_bytes"] or 0, "B")),
        ("arithmetic", ", ".join(f"{s} ({n})" for s, n in d["quantization"].items())),
        ("custom operators", _some([f"{n} ({c})" for n, c in d["custom_operators"].items()])),
        ("TensorFlow operators", _some([f"{n} ({c})" for n, c in d["flex_operators"].items()])),
    ]
    if d["packaged"]:
        p = d["packaged"]
        sizes.append(("regions", f"{p['regions']} for {p['target'] or 'some target'}, packaged as {p['mode']}"))
    optional = ("weights widened at start", "state", "file")
    rows = [(k, v) for k, v in sizes if v and not (k in optional and v == "0 B")]
    for title, key in (("dynamic tensors", "dynamic_tensors"), ("tensors of unknown size", "unsized_tensors")):
        names = [name for s in d["subgraphs"] for name in s[key]]
        if names:
            rows.append((title, f"{len(names)}: {_some([_brief(name, out) for name in names], 3)}"))
    _section(out, _items(rows), "Numbers")
    _origin(out, d)
    problems = d["problems"]
    if d["unknown_field"]:
        note = {"severity": "note", "place": "", "message": f"{d['unknown_field']}; the file can be shown, not written"}
        problems = [note, *problems]
    _problems(out, problems, "Problems")


def _borders(out: Console, d: Document) -> None:
    """Inputs and outputs, by the names of the signatures where there are any, and the other subgraphs."""
    signed = {s["subgraph"] for s in d["signatures"]}
    groups = [(f"Signature {s['key']}", s) for s in d["signatures"]]
    groups += [("", s) for s in d["subgraphs"] if s["role"] == "main" and s["index"] not in signed]
    for title, group in groups:
        grid = _grid("left", "left", "left")
        for what in ("inputs", "outputs"):
            for tensor in group[what]:
                grid.add_row(what[:-1], _type(tensor), tensor["name"])
        _section(out, grid, title)
    others = [s for s in d["subgraphs"] if s["role"] in ("called", "decomposition")]
    if others:
        grid = _grid("right", "left", "right", "left")
        for s in others[: 2 * _TOP]:
            grid.add_row(str(s["index"]), s["role"], _plural(len(s["operators"]), "operator"), s["name"])
        if len(others) > 2 * _TOP:
            grid.add_row("", f"and {len(others) - 2 * _TOP} more", "", "")
        _section(out, grid, "Other subgraphs")


def _type(tensor: Document) -> str:
    shape = (
        "[...]" if tensor["shape"] is None else "[" + ", ".join("?" if n < 0 else str(n) for n in tensor["shape"]) + "]"
    )
    scale = (
        "" if tensor["scale"] is None else f" scale {tensor['scale']:.4g}" if isinstance(tensor["scale"], float) else ""
    )
    point = f" zero {tensor['zero_point']}" if scale and tensor["zero_point"] else ""
    return f"{tensor['type']} {shape}{scale}{point}"


def _operators(d: Document) -> Table:
    counts: Counter[str] = Counter()
    macs: Counter[str] = Counter()
    written: Counter[str] = Counter()
    for s in d["subgraphs"]:
        if s["role"] != "decomposition":
            for op in s["operators"]:
                counts[op["kind"]] += 1
                macs[op["kind"]] += op["macs"] or 0
                written[op["kind"]] += op["written_bytes"]
    grid = _grid("left", "right", "right", "right")
    grid.add_row("", "count", "MACs", "written")
    for kind, count in counts.most_common():
        grid.add_row(kind, str(count), amount(macs[kind]) if macs[kind] else "", amount(written[kind], "B"))
    grid.add_row("total", str(counts.total()), amount(macs.total()), amount(written.total(), "B"), style="bold")
    return grid


def _parts(parts: dict[str, int], unit: str) -> str:
    return " (" + ", ".join(f"{name} {amount(n, unit)}" for name, n in parts.items()) + ")" if parts else ""


def _origin(out: Console, d: Document) -> None:
    producer = d["producer"]
    rows = [
        ("description", producer["description"]),
        ("converted by", producer["tensorflow_version"] and f"TensorFlow {producer['tensorflow_version']}"),
        ("converted from", producer["source"]),
        ("needs runtime", producer["min_runtime_version"]),
        ("metadata", ", ".join(f"{name} {amount(n, 'B')}" for name, n in d["metadata"].items())),
        ("appended", ", ".join(f"{name or 'data'} {amount(n, 'B')}" for name, n in d["appended_files"].items())),
    ]
    rows = [(name, value) for name, value in rows if value]
    if rows:
        _section(out, _items(rows), "Origin")


# -- convert and check ---------------------------------------------------------------------------------------------


def conversion(out: Console, document: Document) -> None:
    """Shows what a conversion did: before and after, applied rules, refusals, notes and the comparison."""
    d = clean(document)
    before, after = d["before"], d["after"]
    out.print(Text(d["file"], "bold"))
    _section(out, _before_after(before, after, sized=d["frozen"] is None))
    if d["applied_counts"]:
        grid = _grid("right", "left", "left")
        numerics = {c["rule"]: c["numerics"] for c in d["applied"]}
        for name, count in sorted(d["applied_counts"].items(), key=lambda item: -item[1]):
            grid.add_row(str(count), name, numerics[name])
        _section(out, grid, "Applied")
    else:
        tiled = d["memory"] is not None and d["memory"]["tiled"]
        rest = "" if tiled else "; the file is at most encoded more compactly"
        _section(out, Text(f"no rule applies{rest}"), "Applied")
    _frozen(out, d["frozen"])
    _budgeted(out, d["memory"])
    _regions(out, d["regions"])
    _refusals(out, d["refused_counts"])
    notes = list(d["notes"])
    if d["not_run"]:
        notes.insert(0, f"the original cannot be run here, so only exact rules may be used: {d['not_run']}")
    _lines(out, notes, "Notes")
    _problems(out, d["problems"], "Problems of the original")
    if d["check"] is None:
        _section(out, Text("not done"), "Check")
    elif d["check"]["skipped"]:
        _section(out, Text("not run, so nothing was compared", "bold yellow"), "Check")
    else:
        comparison(out, d["check"])
    if d["delegate_check"] is not None and not d["delegate_check"]["skipped"]:
        comparison(out, d["delegate_check"])
    _measured(out, d["bench"])
    if d["output"]:
        compared = d["check"] is not None and not d["check"]["skipped"]
        out.print()
        indented(out, Text.assemble("written to ", (d["output"], "bold"), "" if compared else " (not compared)"), 0)
    if d["model_explorer"]:
        rows = [(side, ", ".join(files)) for side, files in d["model_explorer"].items()]
        _section(out, _items(rows), "Node data for Model Explorer (docs/reports.md)")


def difference(out: Console, document: Document) -> None:
    """Shows how two models differ."""
    d = clean(document)
    _files(out, d["files"])
    _section(out, _before_after(d["before"], d["after"], sized=True, names=("A", "B")))
    states = d["operators"]
    rows = [
        ("the same", str(states["same"])),
        ("changed", str(states["changed"])),
        ("in A only", str(states["gone"])),
        ("in B only", str(states["new"])),
    ]
    for name, regions in zip("AB", d["regions"], strict=True):
        if regions:
            rows.append((f"regions of {name}", ", ".join(f"{n} {kind}" for kind, n in regions.items())))
    _section(out, _items(rows), "Operators")
    if d["estimates"]:
        grid = _grid("left", "right", "right", "right", "right", "right")
        grid.add_row("", "DRAM A", "B", "energy A", "B", "", style="dim")
        for e in d["estimates"]:
            a, b = e["before"], e["after"]
            grid.add_row(
                e["target"],
                amount(a["dram_bytes"], "B"),
                amount(b["dram_bytes"], "B"),
                _energy(a["energy_uj"]),
                _energy(b["energy_uj"]),
                change(a["energy_uj"], b["energy_uj"]),
            )
        _section(out, grid, "Traffic and energy of a run, estimated from sizes (docs/reports.md)")
    _lines(out, d["interface"][: 4 * _TOP], "Interfaces differ")
    _lines(out, d["notes"], "Notes")
    if d["check"] is not None:
        comparison(out, d["check"])
    _measured(out, d["bench"])


def _energy(microjoules: float) -> str:
    return f"{microjoules:.3g} uJ" if microjoules < 999.5 else f"{microjoules / 1000:.3g} mJ"


def explanation(out: Console, document: Document) -> None:
    """Shows every candidate of a model: what would be applied where, and what would not and why."""
    d = clean(document)
    out.print(Text(d["file"], "bold"))
    for title, key, why in (("Would apply", "applicable", "detail"), ("Declined", "refused", "reason")):
        groups: dict[str, list[Document]] = {}
        for candidate in d[key]:
            groups.setdefault(candidate["rule"], []).append(candidate)
        if not groups:
            _section(out, Text("nothing"), title)
        for rule, candidates in groups.items():
            grid = _grid("left", "left")
            for c in sorted(candidates, key=lambda c: (c["subgraph"], c["operator"])):
                where = f"{c['kind']} #{c['operator']}" + (f" of subgraph {c['subgraph']}" if c["subgraph"] else "")
                if c["operator"] >= 0:
                    grid.add_row(where, f"`{c['tensor']}`" + (f": {c[why]}" if c[why] else ""))
                else:
                    grid.add_row("the model", c[why])
            _section(out, grid, f"{title}: {rule} ({len(candidates)}, {candidates[0]['numerics']})")
    _frozen(out, d["frozen"])
    _regions_explained(out, d["regions"])
    _lines(out, d["notes"], "Notes")


def _regions(out: Console, document: Document | None) -> None:
    """The regions by kind."""
    if document is None:
        return
    d = document
    if not d["regions"]:
        dear = sum("as a composite it would cost" in c["reason"] for c in d["refused"])
        more = f": {_plural(dear, 'region')} would pay, but not within 2 % as composites; `--package plan` takes all"
        _section(out, Text(f"none for {d['target']}{more if dear else ''}"), "Regions")
    else:
        grid = _grid("right", "left", "left")
        for kind, count in sorted(d["kinds"].items(), key=lambda item: -item[1]):
            members = sum(r["operators"] for r in d["regions"] if r["kind"] == kind)
            grid.add_row(str(count), kind, _plural(members, "operator"))
        _section(out, grid, f"Regions for {d['target']}, packaged as {d['package']}")
        rows = [
            ("covered", f"{d['covered']} of {_plural(d['operators'], 'operator')}"),
            ("scratch memory", f"{d['scratch_bytes']:,} bytes for all regions"),
            ("estimate", f"{_us(d['stock_us'])} in the stock runtime, {_us(d['gain_us'])} less with fast kernels"),
        ]
        indented(out, _items(rows))
    _refusals(out, d["refused_counts"], "No regions")


def _regions_explained(out: Console, document: Document | None) -> None:
    """Every region with the figures that decided about it, and every place without one."""
    if document is None:
        return
    groups: dict[str, list[Document]] = {}
    for region in document["regions"]:
        groups.setdefault(region["kind"], []).append(region)
    for kind, found in groups.items():
        grid = _grid("left", "right", "right", "right", "right", "left")
        grid.add_row("root", "operators", "stock", "fused", "alone", "bytes in + out, inside")
        for r in found:
            where = f"{r['root']} #{r['operator']}" + (f" of subgraph {r['subgraph']}" if r["subgraph"] else "")
            moved = f"{amount(r['bytes_in'] + r['bytes_out'], 'B')}, {amount(r['bytes_internal'], 'B')}"
            grid.add_row(
                where, str(r["operators"]), _us(r["stock_us"]), _us(r["fused_us"]), f"+{_us(r['fallback_us'])}", moved
            )
        _section(out, grid, f"Region: {kind} ({len(found)}, {document['target']})")
    refused: dict[str, list[Document]] = {}
    for candidate in document["refused"]:
        refused.setdefault(candidate["rule"], []).append(candidate)
    for kind, candidates in refused.items():
        grid = _grid("left", "left")
        for c in candidates:
            where = f"{c['kind']} #{c['operator']}" + (f" of subgraph {c['subgraph']}" if c["subgraph"] else "")
            grid.add_row(where, f"`{c['tensor']}`: {c['reason']}")
        _section(out, grid, f"No region: {kind} ({len(candidates)})")


def _us(value: float) -> str:
    """A time in microseconds, in a unit that suits it."""
    return f"{value / 1000:,.2f} ms" if value >= 1000 else f"{value:.1f} us"


def targets(out: Console, documents: Sequence[Document]) -> None:
    """Lists hardware profiles."""
    beside = not out.is_terminal or out.width >= _WIDE
    grid = _grid("left", "right", "right", "right", "right", "left")
    titles = "target", "L1/L2/L3 KiB", "GB/s memory", "f32 GFLOP/s", "int8 GOP/s"
    grid.add_row(*titles, "what it is" if beside else "")
    for d in documents:
        caches = "/".join(str(size // 1024) if size else "-" for size in d["cache_bytes"].values())
        name = Text(d["name"], "bold") + Text(" (default)" if d["default"] else "")
        grid.add_row(
            name,
            caches,
            f"{d['bandwidth_gb_per_s']['memory']:g}",
            f"{d['peak_f32_gflop_per_s']:g}",
            f"{d['peak_int8_gop_per_s']:g}",
            d["description"] if beside else "",
        )
    indented(out, grid, 0)
    if not beside:
        out.print()
        indented(out, _items([(d["name"], d["description"]) for d in documents]), 0)


def _frozen(out: Console, document: Document | None) -> None:
    if document is None:
        return
    grid = _grid("left", "left")
    for entry in document["inputs"]:
        grid.add_row(entry["tensor"], f"{entry['before']} -> {entry['after']}")
    _section(out, grid, "Fixed shapes")
    fixed = f"{_plural(document['fixed'], 'tensor')} fixed, {_plural(document['folded'], 'shape operator')} folded"
    indented(out, Text(fixed))
    for entry in document["dynamic"][:_TOP]:
        indented(out, Text(f"{entry['tensor']} stays {entry['shape'] or 'unknown'}: {entry['reason']}"))
    hidden = len(document["dynamic"]) - _TOP
    if hidden > 0:
        indented(out, Text(f"and {_plural(hidden, 'more tensor')}; --json lists them all"))
    for note in document["notes"]:
        indented(out, Text(note))


def _budgeted(out: Console, document: Document | None) -> None:
    if document is None:
        return
    d, before, peak = document, document["peak_before"], document["peak_bytes"]
    rows = [("intermediates", f"{before:,} -> {peak:,} bytes of TFLM's arena  {change(before, peak)}".rstrip())]
    if d["record_bytes"] > 0:
        more = f"about {d['record_bytes']:,} bytes more for operators on a 64-bit host, half on 32 bits"
        rows.append(("records of TFLM", more))
    if d["budget"] is not None:
        rows.append(("budget", f"{d['budget']:,} bytes"))
    for tiled in d["tiled"]:
        share = _percent(tiled["macs_before"] + tiled["extra_macs"], tiled["macs_before"])
        rows.append(("tiled", f"{tiled['description']}: {amount(tiled['extra_macs'])} MACs more, {share} of all"))
    rows.append(("order", "changed" if d["reordered"] else "as it was"))
    rows.append(("plan", "written" if d["plan"] else "not written: TFLM's own is as good"))
    _section(out, _items(rows), "Memory")


def _before_after(
    before: Document, after: Document, *, sized: bool, names: tuple[str, str] = ("before", "after")
) -> Table:
    grid = _grid("left", "right", "right", "right")
    grid.add_row("", *names, "")
    operators = before["operators"], after["operators"]
    grid.add_row("operators", *map(str, operators), change(*operators), style="bold")
    kinds: Counter[str] = Counter(before["kinds"])
    kinds.subtract(after["kinds"])
    for kind in sorted((k for k, n in kinds.items() if n), key=lambda k: (-kinds[k], k)):
        grid.add_row(
            f"  {kind}", str(before["kinds"].get(kind, 0)), str(after["kinds"].get(kind, 0)), f"{-kinds[kind]:+d}"
        )
    for title, key, unit in (
        ("MACs", "macs", ""),
        ("activations written", "activation_bytes", "B"),
        ("peak memory", "peak_bytes", "B"),
        ("weights", "weight_bytes", "B"),
        ("file", "file_bytes", "B"),
    ):
        if before[key] is not None and after[key] is not None:
            # With open dimensions, what an operator does before is known in part only and compares with nothing.
            comparable = sized or key in ("weight_bytes", "file_bytes")
            moved = change(before[key], after[key]) if comparable else "(open dimensions before)"
            grid.add_row(title, amount(before[key], unit), amount(after[key], unit), moved)
    return grid


def _refusals(out: Console, refusals: Sequence[Document], title: str = "Declined") -> None:
    if not refusals:
        return
    grid = _grid("right", "left")
    for r in refusals[:_TOP]:
        grid.add_row(
            str(r["count"]), f"{r['rule']}: {r['reason']} ({'at' if r['count'] == 1 else 'first at'} {r['example']})"
        )
    rest = sum(r["count"] for r in refusals[_TOP:])
    if rest:
        grid.add_row(str(rest), "for other reasons; --json lists them all")
    _section(out, grid, title)


def comparison(out: Console, document: Document) -> None:
    """Shows how far two models are apart."""
    d = clean(document)
    if d["skipped"]:
        _section(out, Text(f"not run: {d['skipped']}"), "Check")
        return
    grid = _grid("left", "right", "right", "right", "left")
    grid.add_row("", "max abs", "max rel", "ulp/lsb", "bound")
    # The worst first, so that what is wrong is in sight.
    for o in sorted(d["outputs"], key=lambda o: (o["ok"], -_size(o["max_abs"])))[: 4 * _TOP]:
        steps = o["max_lsb"] if o["max_lsb"] is not None else o["max_ulp"]
        unit = " lsb" if o["max_lsb"] is not None else " ulp" if o["max_ulp"] is not None else ""
        grid.add_row(
            Text(f"{o['output']}", "" if o["ok"] else "bold red"),
            _short(o["max_abs"]),
            _short(o["max_rel"]),
            _short(steps) + unit,
            f"{o['bound']}" + ("" if o["ok"] else " EXCEEDED"),
        )
    hidden = len(d["outputs"]) - 4 * _TOP
    if hidden > 0:
        grid.add_row(f"and {hidden} more outputs", "", "", "", "")
    delegate = d["regions"] is not None
    _section(out, grid, "Check with the delegate" if delegate else "Check")
    verdict = Text("  same", "bold green") if d["ok"] else Text("  different", "bold red")
    by = f", {_plural(d['regions'], 'region')} by the delegate" if delegate else ""
    out.print(verdict + Text(f" on {_plural(d['runs'], 'run')}{by}"))
    for note in d["notes"]:
        indented(out, Text(note))


def _size(value: float | str | None) -> float:
    return float(value or 0)


def _short(value: float | str | None) -> str:
    return "" if value is None else f"{float(value):.3g}"


def taken_apart(out: Console, document: Document) -> None:
    """Says how many regions were taken apart."""
    d = clean(document)
    apart = f"{_plural(d['regions'], 'region')} taken apart, written to "
    indented(out, Text.assemble(apart, (d["output"], "bold")), 0)


# -- plan ----------------------------------------------------------------------------------------------------------

_MOST_TENSORS = 6


def memory_plan(out: Console, document: Document) -> None:
    """Shows the plan of a model, or the packing of a problem."""
    d = clean(document)
    out.print(Text(d["file"], "bold"))
    if "buffers" in d:
        _packing(out, d)
        return
    if d["unsupported"]:
        grid = _grid("left")
        for line in d["unsupported"][:_TOP]:
            grid.add_row(line)
        if len(d["unsupported"]) > _TOP:
            grid.add_row(f"and {len(d['unsupported']) - _TOP} more")
        _section(out, grid, "TFLM cannot run this model")
    for number, arena in enumerate(d["arenas"]):
        title = "" if number == 0 else f"Arena of subgraph {arena['subgraphs'][0]['subgraph']}"
        _section(out, _items(_bounds(arena, d if number == 0 else None)), title)
        _at_peak(out, arena)
        _shared(out, arena)
    _memories(out, d["memories"])
    if d["suggestions"]:
        grid = _grid("left")
        for words in d["suggestions"]:
            grid.add_row(words)
        _section(out, grid, "What would lower it")
    _outputs(out, d["outputs"], _written(d["tflm"]))


def _bounds(arena: Document, whole: Document | None) -> list[tuple[str, str]]:
    peak = arena["peak_bytes"]
    bound = arena["order_bound"]
    gap = "" if bound is None else f"at most {_percent(peak, bound)} above the least for any order"
    rows = [
        ("peak", f"{peak:,} bytes"),
        ("proof", "optimal: no order takes less" if arena["optimal"] else gap or "for this order alone"),
        ("for this order", f"{arena['lower_bound']:,} bytes at least" + (", reached" if arena["packed"] else "")),
        ("plainly", f"{arena['plain_bound']:,} bytes live at one time in the file's order, without sharing"),
    ]
    moved = [s["order"] for s in arena["subgraphs"] if s["order"]]
    rows.append(("order", "changed" if moved else "as in the file"))
    left = sum(len(s["unplanned"]) for s in arena["subgraphs"])
    if left:
        rows[1] = ("proof", f"{rows[1][1]}, without {_plural(left, 'tensor')} that could not be planned")
    if any(s["dynamic"] for s in arena["subgraphs"]):
        rows.append(("open dimensions", "count as in the file, mostly 1; `litefuse convert --batch N` fixes them"))
    if whole is not None and whole["own_bytes"] is not None:
        own = whole["own_bytes"]
        rows.insert(1, ("TFLM's own plan", f"{own:,} bytes  {change(own, peak)}".rstrip()))
    if whole is not None:
        rows.insert(0, ("runtime", f"{whole['runtime']}, aligned to {whole['alignment']} bytes"))
        if whole["budget"] is not None:
            rows.append(("budget", f"{whole['budget']:,} bytes, {whole['budget'] - peak:,} of them free"))
    return rows


def _percent(value: int, base: int) -> str:
    return f"{(value - base) / base * 100:.1f} %" if base else "-"


def _at_peak(out: Console, arena: Document) -> None:
    peaks = arena["peak_operators"]
    if not peaks:
        return
    grid = _grid("right", "left")
    for tensor in peaks[0]["tensors"][:_MOST_TENSORS]:
        grid.add_row(f"{tensor['bytes']:,}", f"`{_brief(tensor['name'], out)}`")
    more = len(peaks[0]["tensors"]) - _MOST_TENSORS
    if more > 0:
        grid.add_row("", f"and {more} more")
    others = f", and at {_plural(len(peaks) - 1, 'more operator')}" if len(peaks) > 1 else ""
    _section(out, grid, f"At the peak: {peaks[0]['where']}{others}")


def _shared(out: Console, arena: Document) -> None:
    kinds: dict[str, int] = {}
    for part in arena["subgraphs"]:
        for share in part["shares"]:
            kinds[share["kind"]] = kinds.get(share["kind"], 0) + 1
    unplanned = [t for part in arena["subgraphs"] for t in part["unplanned"]]
    rows = [("tensors that share bytes", ", ".join(f"{n} {kind}" for kind, n in kinds.items()))] if kinds else []
    if unplanned:
        shown = [f"`{_brief(t['tensor'], out)}`: {t['reason']}" for t in unplanned]
        rows.append((f"not planned ({len(unplanned)})", _some(shown, 3)))
    if rows:
        _section(out, _items(rows))


def _memories(out: Console, placement: Document | None) -> None:
    if placement is None:
        return
    grid = _grid("left", "right", "right", "right", "right")
    grid.add_row("", "size", "used", "bytes moved in a run", "cost of a byte", style="dim")
    for m in placement["memories"]:
        cells = f"{m['size']:,}", f"{m['peak_bytes']:,}", f"{m['traffic_bytes']:,}", f"{m['cost']:g}"
        grid.add_row(m["name"], *cells)
    gap = _percent(placement["cost"], placement["lower_bound"])
    proof = "proved to be the least" if placement["proved"] else f"at most {gap} above the least"
    _section(out, grid, f"Memories: all bytes moved cost {placement['cost']:,.0f}, {proof}")
    for m in placement["memories"][1:]:
        there = sorted((t for t in placement["tensors"] if t["memory"] == m["name"]), key=lambda t: -t["bytes"])
        if not there:
            continue
        grid = _grid("right", "right", "left")
        for tensor in there[:_MOST_TENSORS]:
            grid.add_row(f"{tensor['bytes']:,}", f"at {tensor['offset']:,}", f"`{_brief(tensor['name'], out)}`")
        if len(there) > _MOST_TENSORS:
            grid.add_row("", "", f"and {len(there) - _MOST_TENSORS} more; --json lists them all")
        _section(out, grid, f"In {m['name']}")


def _written(tflm: Document | None) -> str:
    if tflm is None:
        return ""
    own, planned = f"{tflm['own_bytes']:,}", f"{tflm['planned_bytes']:,}"
    if tflm["kept"] == "base":
        return f" without a plan: TFLM's own takes {own} bytes, this one {planned}"
    online = f"; {_plural(len(tflm['online']), 'tensor')} left to TFLM" if tflm["online"] else ""
    return f" with the plan: {planned} bytes where TFLM's own takes {own}{online}"


def _outputs(out: Console, outputs: dict[str, str], model: str) -> None:
    if outputs:
        out.print()
    for kind, path in outputs.items():
        indented(out, Text.assemble(f"{kind} written to ", (path, "bold"), model if kind == "model" else ""), 0)


def _packing(out: Console, d: Document) -> None:
    gap = f"a gap of {_percent(d['peak_bytes'], d['lower_bound'])} is left"
    rows = [
        ("buffers", f"{d['buffers']:,}"),
        ("peak", f"{d['peak_bytes']:,} bytes"),
        ("lower bound", f"{d['lower_bound']:,} bytes"),
        ("proof", "optimal" if d["proved"] else gap),
        ("found by", f"{d['method']} in {d['seconds']:.2f} s"),
    ]
    if d["capacity"] is not None:
        impossible = d["lower_bound"] > d["capacity"]
        verdict = "it fits" if d["fits"] else "nothing fits, which is proved" if impossible else "no packing found"
        rows.insert(1, ("capacity", f"{d['capacity']:,} bytes: {verdict}"))
    _section(out, _items(rows))
    _outputs(out, d["outputs"], "")


# -- bench ---------------------------------------------------------------------------------------------------------

_MOST_OPERATORS = 8  # of a region in a profile


def benchmark(out: Console, document: Document) -> None:
    """Shows latencies, start and memory of the contenders, and where the time goes if that was measured."""
    d = clean(document)
    _files(out, d["files"])
    _section(out, _items(_conditions(d)))
    _latencies(out, d["contenders"])
    rows: list[tuple[str, list[str]]] = [("first start", []), ("start", [])]
    for c in d["contenders"]:
        rows[0][1].append(_milliseconds(c["first_start_ms"]))
        rows[1][1].append(_milliseconds(c["start_ms"]))
    for title, key in (
        ("peak memory", "peak_bytes"),
        ("the model's", "own_bytes"),
        ("arena", "arena_bytes"),
        ("scratch", "scratch_bytes"),
        ("file", "file_bytes"),
    ):
        rows.append((title, ["-" if c[key] is None else amount(c[key], "B") for c in d["contenders"]]))
    grid = _grid("left", *["right"] * len(d["contenders"]))
    grid.add_row("", *(c["name"] for c in d["contenders"]), style="dim")
    for title, cells in rows:
        grid.add_row(title, *cells)
    _section(out, grid, "Start and memory")
    _profiled(out, d["profile"])
    _lines(out, d["notes"], "Notes")


def _measured(out: Console, bench: Document | None) -> None:
    """The latencies in a document that is of something else, if there are any."""
    if bench:
        _section(out, _items(_conditions(bench)), "Measured")
        _latencies(out, bench["contenders"])


def _conditions(d: Document) -> list[tuple[str, str]]:
    """What was run on what, and how."""
    runtime, machine = d["runtime"], d["machine"]
    pinned = ", ".join(map(str, d["pinned"]))
    bound = f", all bound to {'processor' if len(d['pinned']) == 1 else 'processors'} {pinned}" if pinned else ""
    ran = sum(c["latency"] is not None for c in d["contenders"])
    made = {1: "round", 2: "interleaved pair"}.get(ran, "interleaved round")
    xnnpack = " with XNNPACK" if all(c["kernels"] == "xnnpack" for c in d["contenders"]) else ""
    regions = [c["regions"] for c in d["contenders"] if c["regions"] is not None]
    claimed = f"; runs {_plural(regions[-1], 'region')}" if regions else "; not used"
    return [
        ("runtime", f"{runtime['name']} {runtime['version']}{xnnpack}, {_plural(d['threads'], 'thread')}"),
        ("machine", f"{machine['architecture']}, {_plural(machine['processors'], 'processor')}{bound}"),
        ("delegate", d["delegate"] + claimed if d["delegate"] else "none"),
        ("measured", f"{_plural(d['rounds'], made)} after {_plural(d['warmup'], 'round')} to warm up"),
    ]


def _latencies(out: Console, contenders: Sequence[Document]) -> None:
    base = contenders[0]["name"]
    grid = _grid("left", "right", "right", "right", "right", "right", "left")
    grid.add_row("", "runs", "p50", "p90", "p99", "jitter", f"time relative to {base}", style="dim")
    for c in contenders:
        latency = c["latency"]
        if latency is None:
            continue
        times = (_milliseconds(latency[key]) for key in ("p50_ms", "p90_ms", "p99_ms"))
        jitter = f"{latency['jitter'] * 100:.0f} %"
        grid.add_row(c["name"], str(latency["runs"]), *times, jitter, _ratio(c["ratio"]))
    _section(out, grid, "Latency")
    for c in contenders:
        if c["failure"]:
            indented(out, Text(f"{c['name']}: not run: {c['failure']}", "bold red"))


def _ratio(ratio: Document | None) -> Text:
    """A ratio in words and numbers; losses are said as plainly as gains."""
    if ratio is None:
        return Text()
    words = "SLOWER" if ratio["verdict"] == "slower" else ratio["verdict"]
    style = {"faster": "bold green", "slower": "bold red"}.get(ratio["verdict"], "")
    median, low, high = (f"{ratio[key]:.3f}" for key in ("median", "low", "high"))
    return Text.assemble(f"{median} (quartiles {low} to {high}): ", (words, style))


def _milliseconds(value: float | None) -> str:
    """Milliseconds to three figures, microseconds below one."""
    if value is None:
        return "-"
    return f"{value * 1e3:.1f} us" if value < 1 else f"{value:.3g} ms" if value < 999.5 else f"{value:,.0f} ms"


def _profiled(out: Console, profile: Document | None) -> None:
    if profile is None:
        return
    grid = _grid("right", "right", "left")
    grid.add_row("of a run", "share", "", style="dim")

    def row(name: str, ms: float, share: float, style: str = "") -> None:
        grid.add_row(_milliseconds(ms), f"{share * 100:.1f} %", Text(name, style))

    rest = {"name": "outside of regions", "position": None, "ms": profile["outside_ms"], "operators": []}
    rest["share"] = profile["outside_ms"] / profile["run_ms"] if profile["run_ms"] else 0.0
    for region in sorted([*profile["regions"], rest], key=lambda r: -r["ms"]):
        name = region["name"] + ("" if region["position"] is None else f" #{region['position']}")
        row(name, region["ms"], region["share"], "bold")
        # What constants alone feed was done once, at the start.
        shown = [t for t in region["operators"][:_MOST_OPERATORS] if t["ms"] > 0]
        for t in shown:
            row(f"  {_texts(t['operator'], out)}", t["ms"], t["share"])
        rest_of = region["operators"][len(shown) :]
        if rest_of:
            ms, share = sum(t["ms"] for t in rest_of), sum(t["share"] for t in rest_of)
            row(f"  and {_plural(len(rest_of), 'operator')} more", ms, share)
    _section(out, grid, f"Profile: {_milliseconds(profile['run_ms'])} a run, of {_plural(profile['runs'], 'run')}")


# -- rules ---------------------------------------------------------------------------------------------------------


def rules(out: Console, documents: Sequence[Document]) -> None:
    """Lists rules in one line each."""
    if out.is_terminal and out.width < _WIDE:
        for d in documents:
            out.print(Text.assemble((d["name"], "bold"), f"  {d['numerics']}"))
            indented(out, Text(d["summary"]), 4)
        return
    grid = _grid("left", "left", "left")
    for d in documents:
        grid.add_row(Text(d["name"], "bold"), d["numerics"], d["summary"])
    indented(out, grid, 0)


def rule(out: Console, document: Document) -> None:
    """Shows one rule with its whole description and its example."""
    out.print(Text(document["name"], "bold"))
    _section(
        out,
        _items(
            [("numerics", document["numerics"]), ("looked for at", ", ".join(document["kinds"]) or "the whole model")]
        ),
    )
    _section(out, Text(document["description"]))
    before, after = document["example"]["before"], document["example"]["after"]
    _section(out, Text(before), "Example")
    if after == before:
        _section(out, Text("changes in what the text leaves out"))
    elif after is not None:
        _section(out, Text(after), "becomes")
