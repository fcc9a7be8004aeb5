"""The page of a conversion and of `litefuse diff`: its figures, that it is inert, and how it works in a browser."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import browser
import numpy as np
import pytest

from litefuse.cli import invoke
from litefuse.convert import Conversion, convert
from litefuse.graph.build import Builder
from litefuse.graph.text import from_text
from litefuse.report import documents, html
from litefuse.report.estimate import PICOJOULES_PER_BYTE, PICOJOULES_PER_MAC, estimate
from litefuse.report.layout import BENDS, LONGEST, layout
from litefuse.report.picture import picture
from litefuse.report.stats import measure
from litefuse.schema import Model, read, write
from litefuse.schema.operators import Op
from litefuse.schema.tables import OperatorCode

HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "--><!-- <script>",
    '"; window.hacked = 1; "',
    "' onclick='window.hacked = 1",
    "@@PROGRAM@@ @@DATA@@",
    "\u2028\u2029\u0000\u202enonascii \u00fc \u6f22 \U0001f600",
    "x" * 10_000,
    "broken \udcff\udcfe",
]


def data_of(page: str) -> dict[str, Any]:
    """What the page's program reads."""
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert len(found) == 1
    return json.loads(found[0])


def _page(model: Model, done: Conversion, document: dict, target_name: str | None = None) -> str:
    pictures = html.conversion_pictures(model, done, document, target_name=target_name)
    return html.conversion_page(pictures, done, document)


def network(blocks: int, seed: int = 0, names: list[str] | None = None) -> Model:
    """Convolutions with clamps, gates and sums, some of which reach far; five operators a block."""
    b = Builder()
    rnd = random.Random(seed)
    names = list(names or [])

    def named(usual: str) -> str:
        return names.pop() if names else usual

    shape = [1, 16, 16, 16]
    x = b.input(named("x"), shape)
    seen = [x]
    rng = np.random.default_rng(seed)
    for n in range(blocks):
        weights = b.constant(f"w{n}", (rng.standard_normal((16, 1, 1, 16)) / 4).astype(np.float32))
        bias = b.constant(f"b{n}", np.zeros(16, np.float32))
        y = b.op(Op.CONV_2D, [x, weights, bias], name=named(f"conv{n}"), shape=shape, stride_h=1, stride_w=1)
        y = b.op(Op.RELU, [y], name=named(f"relu{n}"), shape=shape)
        gate = b.op(Op.LOGISTIC, [y], name=named(f"gate{n}"), shape=shape)
        y = b.op(Op.MUL, [y, gate], name=named(f"mul{n}"), shape=shape)
        x = b.op(Op.ADD, [y, rnd.choice(seen[-30:])], name=named(f"add{n}"), shape=shape)
        seen.append(x)
    return b.model([x])


def converted(tmp_path: Path, model: Model, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[dict, str]:
    """The entry of the JSON document, and the page."""
    source, page = tmp_path / "m.tflite", tmp_path / "m.html"
    write(model, source)
    arguments = ["convert", str(source), "-o", str(tmp_path / "o.tflite"), "--report", str(page), "--json", *more]
    code = invoke(arguments)
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)["models"][0], page.read_text(encoding="utf-8")


# -- the data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["plan", "custom", "none"])
def test_page_has_the_figures_of_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str], package: str) -> None:
    entry, page = converted(tmp_path, network(4), capsys, "--target", "x86-64-v3", "--package", package)
    data = data_of(page)
    assert data["document"] == entry
    original = read(tmp_path / "m.tflite")
    assert len(data["before"]["nodes"]) == entry["before"]["operators"] == len(original.subgraphs[0].operators)
    by_kind = {k["kind"]: k["after"]["count"] for k in data["kinds"] if k["after"]["count"]}
    assert by_kind == entry["after"]["kinds"]
    written = sum(k["before"]["written_bytes"] for k in data["kinds"])
    assert written == entry["before"]["activation_bytes"]
    regions = (entry["regions"] or {"regions": []})["regions"]
    assert sorted(r["kind"] for r in data["after"]["regions"]) == sorted(r["kind"] for r in regions)
    assert sorted(r["cost"]["stock_us"] for r in data["after"]["regions"]) == sorted(r["stock_us"] for r in regions)
    assert bool(regions) == (package != "none")
    if package == "none":
        assert len(data["after"]["nodes"]) == entry["after"]["operators"]
    # Each operator of a region is drawn, whether it is in a plan or in a decomposition.
    members = [n for n in data["after"]["nodes"] if "r" in n]
    assert len(members) == sum(r["operators"] for r in regions)
    # What was merged has the colour of the region in which it ended.
    if regions:
        assert any(n["st"] == "gone" and "r" in n for n in data["before"]["nodes"])


def test_operators_know_their_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry, page = converted(tmp_path, network(3), capsys)
    data = data_of(page)
    assert entry["applied"]
    for number, applied in enumerate(entry["applied"]):
        if applied["operator"] >= 0:
            at = [n for n in data["before"]["nodes"] if n["n"] == applied["operator"]]
            assert any(number in n.get("ru", []) for n in at)
    fused = [n for n, a in enumerate(entry["applied"]) if a["rule"] == "fuse-activation"]
    result = [n for n in data["after"]["nodes"] if set(n.get("ru", [])) & set(fused)]
    assert len(result) == len(fused) == 3
    assert all((n["k"], n["st"]) == ("CONV_2D", "changed") for n in result)
    gone = [n for n in data["before"]["nodes"] if n["st"] == "gone"]
    assert [data["after"]["nodes"][n["c"]]["k"] for n in gone] == ["CONV_2D"] * 3


def test_hostile_names_are_inert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, page = converted(tmp_path, network(2, names=HOSTILE), capsys)
    assert page.count("</script>") == 2
    assert page.count("<script") == 2
    assert "<img" not in page
    data = data_of(page)
    names = [t["n"] for t in data["before"]["tensors"]]
    assert HOSTILE[0] in names
    assert max(map(len, names)) < 400
    assert "broken \ufffd\ufffd" in names


def test_hostile_names_of_all_else_are_inert(tmp_path: Path) -> None:
    """Custom operators, subgraphs and signatures are named by models too."""
    for name in HOSTILE[:-1]:
        model = network(1)
        part = model.subgraphs[0]
        part.name = model.description = name
        model.operator_codes.append(OperatorCode(builtin_code=Op.CUSTOM, deprecated_builtin_code=32, custom_code=name))
        part.operators[1] = part.operators[1].replace(
            opcode_index=len(model.operator_codes) - 1, builtin_options=None, custom_options=name.encode("utf-8")
        )
        pictures = html.compare(model, network(1))
        page = html.difference_page(html.difference([name, "b"], pictures, notes=[name]), pictures)
        assert (page.count("<script"), page.count("</script>"), page.count("<img")) == (2, 2, 0)
        data = data_of(page)
        assert any(node["k"].startswith("custom:") for node in data["before"]["nodes"])
        assert len(page) < 200_000


def test_names_of_files_are_inert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "<b>&'\"@@DATA@@.tflite"
    write(network(1), tmp_path / name)
    assert invoke(["convert", str(tmp_path / name), "--report", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<b>" not in page
    assert data_of(page)["document"]["file"].endswith(name)


def test_page_loads_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, page = converted(tmp_path, network(1), capsys)
    without_data = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.S)
    # The namespace of SVG is a name, not an address.
    assert set(re.findall(r"https?:[^\s\"'`)]*", without_data)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|<link rel=\"stylesheet|src=", without_data)
    assert "default-src &#x27;none&#x27;" in page


def test_thousands_of_operators(tmp_path: Path) -> None:
    model = network(400)
    done = convert(model, target="x86-64-v3", check=False)
    document = documents.conversion("large.tflite", done)
    start = time.process_time()
    page = _page(model, done, document, target_name="x86-64-v3")
    assert time.process_time() - start < 15
    assert len(page) < 3_000_000
    assert len(data_of(page)["before"]["nodes"]) == 2000


def test_pages_are_the_same_every_time(tmp_path: Path) -> None:
    model = network(2)
    done = convert(model, check=False)
    document = documents.conversion("m.tflite", done)
    assert _page(model, done, document) == _page(model, done, document)


def test_control_flow_and_dynamic_shapes_are_drawn(tmp_path: Path) -> None:
    model = from_text("graph main(%x: f32[?,4]) {\n  %y = RELU(%x)\n  %z: f32[?,4] = ABS(%y)\n  return %z\n}\n")
    found = picture(model, measure(model), html.target())
    assert [node.kind for node in found.nodes] == ["RELU", "ABS"]
    assert found.tensors[0]["d"] == [-1, 4]


def test_every_model_of_the_corpus_has_a_page(corpus: list[Path]) -> None:
    for path in corpus:
        model = read(path)
        if sum(len(s.operators) for s in model.subgraphs) > 700:
            continue
        pictures = html.compare(model, model)
        content = html.difference([str(path)] * 2, pictures)
        assert content["operators"]["same"] == len(pictures[0].nodes), path
        assert data_of(html.difference_page(content, pictures))["document"]["files"] == [str(path)] * 2


# -- estimates -----------------------------------------------------------------------------------------------------


def test_estimate_by_hand() -> None:
    b = Builder()
    x = b.input("x", [1, 8, 8, 4])
    weights = b.constant("w", np.ones((2, 1, 1, 4), np.float32))
    bias = b.constant("b", np.ones(2, np.float32))
    y = b.op(Op.CONV_2D, [x, weights, bias], shape=[1, 8, 8, 2], stride_h=1, stride_w=1)
    model = b.model([y])
    stats = measure(model)
    chosen = html.target("x86-64-v3")
    found = estimate(picture(model, stats, chosen).parts, chosen, stats.weight_bytes)
    assert found.activations == [8 * 8 * 6 * 4, 0, 0, 0]
    assert found.constants == [(2 * 4 + 2) * 4, 0, 0, 0]
    assert found.compute_pj == pytest.approx(8 * 8 * 2 * 4 * PICOJOULES_PER_MAC["float32"])
    assert found.memory_pj[0] == pytest.approx((8 * 8 * 6 + 10) * 4 * PICOJOULES_PER_BYTE[0])
    # Constants beyond the last cache come from DRAM, whatever the operator that reads them.
    assert estimate(picture(model, stats, chosen).parts, chosen, 1 << 40).constants == [0, 0, 0, 40]


def test_microcontrollers_have_no_estimates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = data_of(converted(tmp_path, network(2), capsys, "--target", "tflm")[1])
    assert (data["target"], data["estimates"]) == ("cortex-m", [])
    assert data["after"]["arena"]["runtime"] == "TFLM"
    assert invoke(["diff", str(tmp_path / "m.tflite"), str(tmp_path / "o.tflite"), "--target", "tflm"]) == 2


def test_arena_is_a_proper_packing(tmp_path: Path) -> None:
    model = network(6)
    arena = picture(model, measure(model), html.target()).arena
    assert arena is not None
    boxes = arena["boxes"]
    assert max(offset + size for _, _, offset, size, *_ in boxes) <= arena["peak_bytes"]
    for n, (first, last, offset, size, *_) in enumerate(boxes):
        for others_first, others_last, others, others_size, *_ in boxes[:n]:
            apart = last <= others_first or others_last <= first
            assert apart or offset + size <= others or others + others_size <= offset


# -- layout --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_layouts_are_proper(seed: int) -> None:
    rnd = random.Random(seed)
    count = rnd.randrange(1, 60)
    edges = [(rnd.randrange(i), i) for i in range(1, count) for _ in range(rnd.randrange(3))]
    found = layout(count, edges, width=10, height=4, gap=2, rise=3)
    assert len(found.places) == count
    assert len(found.bends) == len(edges)
    for a, b in edges:
        assert found.places[a].y < found.places[b].y
    rows: dict[float, list[float]] = {}
    for x, y in found.places:
        assert 5 - 1e-6 <= x <= found.width - 5 + 1e-6
        assert 2 <= y <= found.height - 2
        rows.setdefault(y, []).append(x)
    for row in rows.values():
        row.sort()
        assert all(right - left >= 12 - 0.11 for left, right in pairwise(row))
    assert sum(map(len, found.bends)) <= BENDS * count + 64 + 2 * len(edges)
    for (a, b), bends in zip(edges, found.bends, strict=True):
        heights = [found.places[a].y, *(p.y for p in bends), found.places[b].y]
        assert heights == sorted(heights)
        assert len(bends) <= LONGEST


def test_chains_are_straight() -> None:
    found = layout(30, [(i, i + 1) for i in range(29)])
    assert len({x for x, _ in found.places}) == 1
    assert layout(0, []).layers == 0


# -- the commands --------------------------------------------------------------------------------------------------


def test_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, page = tmp_path / "a.tflite", tmp_path / "b.tflite", tmp_path / "d.html"
    write(network(2), a)
    convert(a, b)
    assert invoke(["diff", str(a), str(b), "--report", str(page)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"operators +10 +8 +-20.0 %", out)
    assert re.search(r"in A only +2", out)
    assert "x86-64-v3" in out
    assert "same on" in out
    assert invoke(["diff", str(a), str(b), "--no-check", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["operators"] == {"same": 6, "changed": 2, "gone": 2, "new": 0}
    assert document["check"] is None
    assert data_of(page.read_text(encoding="utf-8"))["document"]["kinds"] == document["kinds"]


def test_diff_of_strangers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Models with other interfaces are compared as far as that goes."""
    a, b = tmp_path / "a.tflite", tmp_path / "b.tflite"
    write(network(1), a)
    write(from_text("graph main(%i: f32[2]) {\n  %o = ABS(%i)\n  return %o\n}\n"), b)
    assert invoke(["diff", str(a), str(b), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["check"] is None
    assert "interfaces differ" in document["notes"][0]
    assert document["interface"]
    assert document["operators"] == {"same": 0, "changed": 0, "gone": 5, "new": 1}


def test_reports_take_no_model_s_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "m.tflite"
    write(network(1), source)
    before = source.read_bytes()
    for page in (source, tmp_path / "m.litefuse.tflite"):
        assert invoke(["convert", str(source), "--report", str(page)]) == 6
    assert invoke(["diff", str(source), str(source), "--report", str(source)]) == 6
    assert source.read_bytes() == before
    assert invoke(["convert", str(source), "--report", str(tmp_path / "none" / "r.html")]) == 6
    assert not list(tmp_path.glob("*.tmp"))


def test_several_models_have_a_page_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        write(network(1), tmp_path / f"{name}.tflite")
    models = [str(tmp_path / f"{name}.tflite") for name in "ab"]
    assert invoke(["convert", *models, "--no-check", "--report", str(tmp_path / "pages")]) == 0
    assert sorted(p.name for p in (tmp_path / "pages").iterdir()) == ["a.html", "b.html"]


def test_measured_latencies_are_in_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry, page = converted(tmp_path, network(1), capsys, "--bench")
    assert [c["name"] for c in entry["bench"]["contenders"]] == ["A stock", "B stock"]
    assert all(c["latency"]["p50_ms"] <= c["latency"]["p99_ms"] for c in entry["bench"]["contenders"])
    assert data_of(page)["document"]["bench"] == entry["bench"]


# -- in a browser --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab() -> Iterator[browser.Page]:
    if browser.find() is None:
        pytest.skip("there is no Chromium; `apt-get install chromium` brings one")
    with browser.page() as page:
        yield page


SELECTED = "document.querySelector('#details h3').textContent"


def opened(tab: browser.Page, path: Path, **how: Any) -> None:
    tab.problems.clear()
    tab.requests.clear()
    tab.open(path, **how)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("page")
    model = network(6, names=HOSTILE[:-1])
    done = convert(model, target="x86-64-v3")
    document = documents.conversion("m.tflite", done)
    html.write_page(_page(model, done, document, target_name="x86-64-v3"), where / "m.html")
    return where / "m.html"


@pytest.mark.parametrize("dark", [False, True])
def test_page_works_without_a_complaint(tab: browser.Page, page_file: Path, dark: bool) -> None:
    opened(tab, page_file, dark=dark)
    assert tab.problems == []
    assert tab.requests == [page_file.as_uri()]
    assert tab.run("typeof window.hacked") == "undefined"
    assert tab.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    shown = tab.run("[...document.querySelectorAll('main > section:not([hidden]) h2')].map(h => h.textContent)")
    assert {"Graph", "Operators by kind", "Memory over time", "Traffic and energy", "Numerics", "Regions"} <= set(shown)
    tab.run("document.getElementById('theme').click()")
    assert tab.run("document.documentElement.dataset.theme") == "light"


def test_everything_has_a_name(tab: browser.Page, page_file: Path) -> None:
    """As a screen reader would hear it."""
    opened(tab, page_file)
    tree = tab.send("Accessibility.getFullAXTree")["nodes"]
    named = {"button", "link", "searchbox", "radio", "image", "application", "radiogroup", "heading"}
    seen = {node["role"]["value"] for node in tree if not node.get("ignored")}
    assert {"button", "searchbox", "radio", "application", "heading"} <= seen
    for node in tree:
        if not node.get("ignored") and node["role"]["value"] in named:
            assert node.get("name", {}).get("value", "").strip(), node
    assert tab.run(
        "[...document.querySelectorAll('[id]')].length === new Set([...document.querySelectorAll('[id]')]"
        ".map(e => e.id)).size"
    )


def test_search_finds(tab: browser.Page, page_file: Path) -> None:
    opened(tab, page_file)
    tab.key("/", "/")
    assert tab.run("document.activeElement.id") == "search"
    tab.type("add4")
    assert tab.run("document.getElementById('found').textContent") != "nothing found"
    assert tab.run("document.querySelectorAll('#results button').length") >= 2
    assert tab.run("document.querySelector('#results .mono').textContent") == "add4"
    tab.key("Enter")
    assert tab.run("document.querySelector('#details code').textContent") == "add4"
    assert tab.run("document.activeElement.tagName") == "CANVAS"
    tab.key("/", "/")
    tab.run("document.getElementById('search').value = ''")
    tab.type("no such thing")
    assert tab.run("document.getElementById('found').textContent") == "nothing found"
    assert tab.problems == []


def test_a_click_shows_an_operator(tab: browser.Page, page_file: Path) -> None:
    opened(tab, page_file)
    assert tab.run(SELECTED) == "Nothing selected"
    tab.run("document.documentElement.style.scrollBehavior = 'auto'; document.getElementById('graph').scrollIntoView()")
    box = tab.run(
        "(() => { const r = document.querySelector('#view-before canvas').getBoundingClientRect();"
        "return [r.left, r.top, r.width, r.height]; })()"
    )
    for y in range(40, 160, 12):  # the first operator is near the top
        tab.click(box[0] + (box[2] - 64) / 2, box[1] + y)
        if tab.run(SELECTED) != "Nothing selected":
            break
    text = tab.run("document.getElementById('details').textContent")
    for words in ("CONV_2D", "Reads", "Writes", "FLOAT32 1\u00d716\u00d716\u00d716", "Region", "multiply-accumulates"):
        assert words in text
    assert tab.problems == []


def test_keyboard_walks_the_graph(tab: browser.Page, page_file: Path) -> None:
    opened(tab, page_file)
    tab.run("document.querySelector('#view-after canvas').focus()")
    seen = []
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowUp", "End"):
        tab.key(key)
        seen.append(tab.run("document.querySelector('#details .where').textContent"))
    assert len(set(seen)) >= 4
    assert seen[3] != seen[2]
    assert tab.run("document.getElementById('said').textContent").startswith("After: ")
    for key in ("+", "-", "0"):
        tab.key(key, key)
    tab.key("Enter")
    assert tab.run("document.activeElement.id") == "details"
    tab.run("document.querySelector('#view-after canvas').focus()")
    tab.key("Escape")
    assert tab.run(SELECTED) == "Nothing selected"
    assert tab.problems == []


def test_zoom_keeps_the_graph_in_sight(tab: browser.Page, tmp_path: Path) -> None:
    """Also a small one, and captions are above the picture and not in it."""
    model = from_text("graph main(%i: f32[2]) {\n  %j = ABS(%i)\n  return %j\n}\n")
    pictures = html.compare(model, model)
    html.write_page(html.difference_page(html.difference(["a", "b"], pictures), pictures), tmp_path / "small.html")
    opened(tab, tmp_path / "small.html")
    for button, times in (("closer", 5), ("farther", 12), ("fit", 1)):
        for _ in range(times):
            tab.run(f"document.getElementById('{button}').click()")
        tab.settle()
        colours = tab.run(
            "(() => { const c = document.querySelector('#view-before canvas');"
            "const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);"
            "return new Set(d).size; })()"
        )
        assert colours > 3, button
    above = tab.run("document.querySelector('#view-before figcaption').getBoundingClientRect().bottom")
    assert above <= tab.run("document.querySelector('#view-before canvas').getBoundingClientRect().top") + 0.5


def test_page_says_what_was_measured(tab: browser.Page, tmp_path: Path) -> None:
    model = network(2)
    done = convert(model, target="x86-64-v3")
    document = documents.conversion("m.tflite", done)
    position = html.conversion_pictures(model, done, document).after.regions[0]["position"]
    latency = {"p50_ms": 1.0, "p90_ms": 2.0, "p99_ms": 40.0, "min_ms": 0.5, "max_ms": 90.0}
    common = {"latency": latency, "failure": None, "start_ms": 3.0, "own_bytes": 4096, "arena_bytes": None}
    ratio = {"median": 0.9, "low": 0.2, "high": 4.0, "verdict": "unclear"}
    region = {"name": "litefuse.conv", "position": position, "ms": 0.4, "share": 0.4, "operators": []}
    document["bench"] = {
        "runtime": {"name": "runtime", "version": "1"},
        "machine": {"architecture": "x86_64"},
        "threads": 1,
        "rounds": 9,
        "delegate": "cpu",
        "contenders": [
            {**common, "name": "A stock", "delegate": False, "ratio": None, "regions": None},
            {**common, "name": "B litefuse", "delegate": True, "ratio": ratio, "regions": 1},
        ],
        "profile": {"run_ms": 1.0, "outside_ms": 0.6, "regions": [region]},
        "notes": [],
    }
    html.write_page(_page(model, done, document), tmp_path / "m.html")
    opened(tab, tmp_path / "m.html")
    said = tab.run("document.getElementById('latency').textContent")
    for words in ("operators in its regions only", "600 \u00b5s outside of regions", "40.0 ms", "unclear"):
        assert words in said
    # A change that may be chance is not praised.
    assert "runs vary too much to tell" in tab.run("document.getElementById('cards').textContent")
    tab.run("document.querySelector('#latency button.link').click()")
    assert tab.run(SELECTED) != "Nothing selected"
    assert "400 \u00b5s" in tab.run("document.getElementById('details').textContent")
    assert tab.problems == []


def test_page_prints(tab: browser.Page, page_file: Path) -> None:
    opened(tab, page_file, dark=True)
    sizes = "[...document.querySelectorAll('canvas')].map(c => [c.width, c.height])"
    before = tab.run(sizes)
    assert tab.paper().startswith(b"%PDF")
    tab.settle()
    assert tab.run("document.documentElement.dataset.theme") == "dark"
    assert tab.run(sizes) == before
    assert tab.problems == []


def test_paper_is_filled(tab: browser.Page, page_file: Path) -> None:
    """A tall graph is printed in columns, in light colours, and nothing is wider than the paper."""
    opened(tab, page_file, width=688, dark=True)
    tab.send("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    try:
        tab.run("dispatchEvent(new Event('beforeprint'))")
        assert tab.run("document.documentElement.dataset.theme") == "light"
        assert tab.run("document.documentElement.scrollWidth") <= 688
        drawn = tab.run(
            "(() => { const c = document.querySelector('#view-before canvas');"
            "const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "const columns = new Array(6).fill(0);"
            "for (let i = 0; i < p.length; i += 4) if (p[i] + p[i + 1] + p[i + 2] < 740)"
            "columns[Math.floor(i / 4 % c.width / c.width * 6)]++;"
            "return [c.width, c.height, columns]; })()"
        )
        assert drawn[0] == 1980
        assert 300 < drawn[1] <= 3 * 420
        assert sum(column > 0 for column in drawn[2]) >= 4
        tab.run("dispatchEvent(new Event('afterprint'))")
        assert tab.run("document.documentElement.dataset.theme") == "dark"
    finally:
        tab.send("Emulation.setEmulatedMedia", media="")


CONTRAST = """(() => {
  const numbers = (colour) => (colour.match(/[\\d.]+(e-?\\d+)?/g) || []).map(Number);
  const parts = (colour) => {
    const [r, g, b, a] = numbers(colour);
    const scale = colour.startsWith("color(") ? 1 : 255;
    return [[r / scale, g / scale, b / scale], a === undefined ? 1 : a];
  };
  const under = (e) => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) {
      const [colour, alpha] = parts(getComputedStyle(at).backgroundColor);
      if (alpha > 0) layers.push([colour, alpha]);
      if (alpha === 1) break;
    }
    return layers.reverse().reduce((below, [colour, a]) => colour.map((v, i) => v * a + below[i] * (1 - a)), [1, 1, 1]);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const poor = [];
  let seen = 0;
  for (const e of document.querySelectorAll("header *, main *, footer")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || e.closest("noscript, [hidden]") || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const ink = e.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(parts(ink)[0]), light(under(e))].sort((x, y) => y - x);
    seen++;
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.push([e.tagName, e.getAttribute("class"), e.textContent.slice(0, 40)]);
  }
  return [seen, poor];
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_legible(tab: browser.Page, page_file: Path, dark: bool) -> None:
    """The contrast that WCAG 2 asks for at level AA, 4.5 to 1."""
    opened(tab, page_file, dark=dark)
    tab.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    seen, poor = tab.run(CONTRAST)
    assert seen > 150
    assert poor == []


@pytest.mark.parametrize("width", [390, 768, 1400])
def test_nothing_is_wider_than_the_screen(tab: browser.Page, page_file: Path, width: int) -> None:
    opened(tab, page_file, width=width, height=850)
    assert tab.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert tab.run("getComputedStyle(document.querySelector('.panel')).overflowX") == "auto"


def test_focus_is_seen(tab: browser.Page, page_file: Path) -> None:
    """Whatever the tabulator reaches shows that it is there, and the first thing is the way past the menu."""
    opened(tab, page_file)
    reached = []
    for _ in range(30):
        tab.key("Tab")
        reached.append(
            tab.run(
                "(() => { const e = document.activeElement, s = getComputedStyle(e);"
                "return [e.id || e.textContent.slice(0, 30), s.outlineStyle, parseFloat(s.outlineWidth)]; })()"
            )
        )
    assert reached[0][0] == "Skip to the report"
    assert {"search", "theme"} <= {name for name, _, _ in reached}
    assert all(style != "none" and wide >= 1 for _, style, wide in reached), reached


def test_captions_stay_apart(tab: browser.Page, tmp_path: Path) -> None:
    """Neither the captions of the two sides nor the names of subgraphs lie over anything, however far one zooms."""
    text = "".join(f"graph part{n}_{'x' * 60}(%x: f32[2]) {{\n  %y = ABS(%x)\n  return %y\n}}\n" for n in range(3))
    model = from_text(text)
    path = tmp_path / "m.html"
    pictures = html.compare(model, model)
    html.write_page(html.difference_page(html.difference(["a", "b"], pictures), pictures), path)
    opened(tab, path)
    # Notes where captions are written.
    tab.run(
        "window.said = []; const write = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {"
        "if (/^(subgraph )?\\d/.test(text) && this.getTransform().a === devicePixelRatio)"
        "window.said.push([this.canvas.getAttribute('aria-label'), x, x + this.measureText(text).width, y]);"
        "write.call(this, text, x, y); }; 0"
    )
    tab.run("document.querySelector('#view-before canvas').focus()")
    for key in ["+"] * 6 + ["-"] * 14:
        tab.run("window.said = []; 0")
        tab.key(key, key)
        rows: dict[str, list[list[float]]] = {}
        for side, left, right, _ in tab.run("window.said"):
            rows.setdefault(side, []).append([left, right])
        for row in rows.values():
            assert all(a[1] <= b[0] for a, b in pairwise(sorted(row)))
        assert tab.run(
            "[...document.querySelectorAll('#views figure')].every(f => f.querySelector('figcaption')"
            ".getBoundingClientRect().bottom <= f.querySelector('canvas').getBoundingClientRect().top + 0.5)"
        )
    assert tab.problems == []


UNUSUAL = [
    "litert_fwd_while",
    "litert_multisig",
    "litert_dynshapes",
    "litert_string_sig",
    "litert_custom_lstm",
    "litert_call_once",
    "mlperf_kws_int8",
]


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_models_are_shown(
    tab: browser.Page, tmp_path: Path, corpus: list[Path], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Control flow, several signatures, open dimensions, strings, custom operators, integers; no regions in most."""
    source = next((path for path in corpus if path.stem == name), None)
    if source is None:
        pytest.skip(f"the corpus has no {name}")
    path = tmp_path / "m.html"
    code = invoke(["convert", str(source), "-o", str(tmp_path / "o.tflite"), "--report", str(path)])
    assert code == 0, capsys.readouterr().err
    opened(tab, path)
    assert tab.problems == []
    data = data_of(path.read_text(encoding="utf-8"))
    text = tab.run("document.querySelector('main').innerText")
    for nonsense in ("undefined", "NaN", "[object", "Infinity"):
        assert nonsense not in text, nonsense
    assert data["after"]["regions"] == []
    assert tab.run("[...document.querySelectorAll('#colour button')].map(b => b.textContent)") in (
        ["Changes", "Cost"],
        [],  # without operators there is no graph
    )
    drawn = [node["k"] for node in data["after"]["nodes"] if node.get("p")]
    if drawn:
        tab.run("document.querySelector('#view-after canvas').focus()")
        tab.key("Home")
        assert tab.run(SELECTED) == drawn[0]
    else:
        assert "There are no operators to draw" in text
    tab.paper()
    assert tab.problems == []


def test_what_was_not_measured_is_said(tab: browser.Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry, _ = converted(tmp_path, network(1), capsys, "--bench")
    assert entry["bench"]["profile"] is None
    opened(tab, tmp_path / "m.html")
    tab.run("document.querySelector('#view-after canvas').focus()")
    tab.key("Home")
    assert "Not measured" in tab.run("document.getElementById('details').textContent")
    assert tab.problems == []


def test_large_graphs_stay_usable(tab: browser.Page, tmp_path: Path) -> None:
    model = network(400)
    done = convert(model, target="x86-64-v3", check=False)
    path = tmp_path / "large.html"
    html.write_page(_page(model, done, documents.conversion("l.tflite", done)), path)
    start = time.monotonic()
    opened(tab, path)
    assert time.monotonic() - start < 30
    assert tab.run("document.querySelectorAll('*').length") < 5000
    tab.key("/", "/")
    start = time.monotonic()
    tab.type("mul321")
    tab.key("Enter")
    assert time.monotonic() - start < 10
    assert tab.run("document.querySelector('#details code').textContent") == "mul321"
    assert tab.problems == []
