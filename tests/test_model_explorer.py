"""Node data for Model Explorer: what it says, and that Model Explorer finds every node of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import browser
import pytest
from runtimes import python_of
from test_report_html import network

from litefuse.cli import invoke
from litefuse.delegates.naming import KINDS
from litefuse.report import model_explorer
from litefuse.schema import Model, read, write
from litefuse.schema.operators import builtin_code
from litefuse.schema.tables import SignatureDef

PROGRAM = Path(__file__).with_name("explorer.py")
MODELS = (
    "mp_face_short",
    "mp_face_landmark",
    "expo_mtcnn_pnet",
    "litert_mtk_precompiled",
    "litert_multisig",
    "mlperf_kws_int8",
)


def explored(model: Model | Path, directory: Path, *more: str, package: str = "plan") -> dict[str, Any]:
    """The entry of the JSON document of a conversion with node data, which is in ``directory``."""
    source = directory / "m.tflite"
    if isinstance(model, Model):
        write(model, source)
    else:
        source.write_bytes(model.read_bytes())
    arguments = [
        "convert",
        str(source),
        "-o",
        str(directory / "o.tflite"),
        "--model-explorer",
        str(directory / "x.json"),
    ]
    arguments += ["--target", "x86-64-v3", "--package", package, "--no-check", *more]
    code = invoke([*arguments, "-q"])
    assert code == 0
    return json.loads(Path(directory / "x.json").read_text())


def values(path: Path, graph: str = "main") -> dict[str, Any]:
    """The values of an overlay by key."""
    return {key: result["value"] for key, result in json.loads(path.read_text())[graph]["results"].items()}


# -- what it says --------------------------------------------------------------------------------------------------


def test_regions_of_the_original_and_of_the_result(tmp_path: Path) -> None:
    content = explored(network(3), tmp_path)
    assert sorted(p.name for p in tmp_path.glob("x*")) == [
        "x.cost.json",
        "x.json",
        "x.result.cost.json",
        "x.result.json",
        "x.result.traffic.json",
        "x.traffic.json",
    ]
    before, after = values(tmp_path / "x.json"), values(tmp_path / "x.result.json")
    assert set(before) == {str(i) for i in range(15)}
    assert set(before.values()) == set(after.values())
    assert all(label.split(" #")[0] in KINDS for label in before.values())
    # RELU became part of the convolution before it, which is in a region.
    assert before["0"] == before["1"] == before["2"]
    colours = {r["value"]: r["bgColor"] for r in content["main"]["results"].values()}
    assert len(set(colours.values())) == min(2, len(colours))
    assert content["main"]["name"] == "Regions, original"


def test_without_regions_it_says_what_rules_did(tmp_path: Path) -> None:
    source = tmp_path / "m.tflite"
    write(network(2), source)
    assert invoke(["convert", str(source), "--no-check", "-q", "--model-explorer", str(tmp_path / "x.json")]) == 0
    assert {key: v for key, v in values(tmp_path / "x.json").items() if v != "fuse-activation"} == {}
    assert "1" in values(tmp_path / "x.json")


@pytest.mark.parametrize("package", ["plan", "custom"])
def test_sums_are_those_of_the_regions(package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explored(network(6), tmp_path, package=package)
    capsys.readouterr()
    source = str(tmp_path / "m.tflite")
    more = "--target", "x86-64-v3", "--package", package, "--no-check", "--json"
    assert invoke(["convert", source, "-o", str(tmp_path / "o.tflite"), *more]) == 0
    entry = json.loads(capsys.readouterr().out)["models"][0]
    regions = entry["regions"]["regions"]
    cost = values(tmp_path / "x.result.cost.json")
    moved = values(tmp_path / "x.result.traffic.json")
    stock = sum(values(tmp_path / "x.cost.json").values())
    assert entry["regions"]["covered"] == entry["regions"]["operators"]
    assert sum(cost.values()) == pytest.approx(sum(r["fused_us"] for r in regions), rel=1e-3)
    assert sum(moved.values()) == sum(r["bytes_in"] + r["bytes_out"] + r["bytes_constants"] for r in regions)
    assert sum(cost.values()) < stock
    for name, graph in json.loads((tmp_path / "x.result.cost.json").read_text()).items():
        if name != "main":  # a decomposition costs what its node in the main graph does
            place = int(name.rsplit(".", 1)[1])
            assert place > 0
            assert sum(r["value"] for r in graph["results"].values()) in [
                pytest.approx(v, abs=0.01) for v in cost.values()
            ]


def test_traffic_by_hand(tmp_path: Path) -> None:
    """One block: a convolution of 16 to 16 channels on 16 x 16 pixels, RELU, LOGISTIC, MUL and ADD of the input."""
    explored(network(1), tmp_path)
    pixels = 4 * 16 * 16 * 16
    weights = 4 * (16 * 16 + 16)
    assert values(tmp_path / "x.traffic.json") == {
        "0": 2 * pixels + weights,
        "1": 2 * pixels,
        "2": 2 * pixels,
        "3": 3 * pixels,
        "4": 3 * pixels,
    }
    after = values(tmp_path / "x.result.traffic.json")
    assert after["0"] == pixels + weights
    # The region reads its input once, though two of its operators do, and writes its result.
    assert sum(after.values()) == 2 * pixels + weights


def test_measured_time(tmp_path: Path, corpus: list[Path]) -> None:
    pytest.importorskip("ai_edge_litert")
    from litefuse.delegates.runtime import library
    from litefuse.errors import RuntimeMissingError

    try:
        library()
    except RuntimeMissingError as error:
        pytest.skip(str(error))
    path = next((p for p in corpus if p.stem == "expo_mtcnn_rnet"), None)
    if path is None:
        pytest.skip("expo_mtcnn_rnet is not in the corpus")
    explored(path, tmp_path, "--bench", package="custom")
    after, before = values(tmp_path / "x.result.time.json"), values(tmp_path / "x.time.json")
    assert all(ms >= 0 for ms in (*after.values(), *before.values()))
    assert sum(after.values()) > 0
    assert 0 < sum(before.values()) <= 1.01 * sum(after.values())


def test_graphs_and_nodes_that_are_not_found_by_their_place() -> None:
    """Model Explorer takes a key for the name of a tensor first, and gives graphs without names a number."""
    model = network(1, names=["9", "", "same", "same", "4", "2"])
    main = model.subgraphs[0]
    names = [main.tensors[op.outputs[0]].name for op in main.operators]
    keys = model_explorer.node_keys(model, 0)
    taken = {t.name for t in main.tensors}
    assert len({k for k in keys if k}) == len([k for k in keys if k])
    for position, key in enumerate(keys):
        if str(position) in taken:
            assert key in (names[position], None)
        else:
            assert key == str(position)
    model.subgraphs = [main.replace(name=name) for name in ("", "", "main", "a")]
    assert model_explorer.graph_names(model) == ["main", "subgraph_1", "main", "a"]
    signed = [(1, "first"), (1, "second"), (3, "third"), (0, "")]
    model.signature_defs = [SignatureDef(subgraph_index=i, signature_key=key) for i, key in signed]
    assert model_explorer.graph_names(model) == ["main", "first", "main", "a"]


def test_several_models_and_what_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        write(network(1), tmp_path / f"{name}.tflite")
    models = [str(tmp_path / f"{name}.tflite") for name in ("a", "b")]
    out = str(tmp_path / "out")
    assert invoke(["convert", *models, "-o", out, "--no-check", "--model-explorer", out, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    listed = [m["model_explorer"] for m in document["models"]]
    assert listed[1] == {
        "original": [f"{out}/b.json", f"{out}/b.cost.json", f"{out}/b.traffic.json"],
        "result": [f"{out}/b.result.json", f"{out}/b.result.cost.json", f"{out}/b.result.traffic.json"],
    }
    assert all(Path(file).exists() for entry in listed for files in entry.values() for file in files)
    before = Path(models[0]).read_bytes()
    assert invoke(["convert", models[0], "--no-check", "--model-explorer", models[0]]) == 6
    assert "is a model already" in capsys.readouterr().err
    assert invoke(["convert", models[0], "--no-check", "--model-explorer", str(tmp_path / "no" / "x.json")]) == 6
    assert Path(models[0]).read_bytes() == before


# -- in Model Explorer ---------------------------------------------------------------------------------------------


def explorer(*arguments: object) -> Any:
    """What explorer.py prints, as JSON."""
    python = python_of("model-explorer")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [python, PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def found(model: Path, files: Sequence[Path]) -> None:
    """Asserts that each key of the files leads Model Explorer to the node of the operator that was meant."""
    graphs: dict[str, Any] = {}
    for graph in explorer("graphs", model):
        graphs.setdefault(graph["id"], graph["nodes"])
    content = read(model)
    subgraphs: dict[str, int] = {}
    for index, name in enumerate(model_explorer.graph_names(content)):
        subgraphs.setdefault(name, index)
    assert set(subgraphs) == set(graphs)
    count = 0
    for file in files:
        for name, data in json.loads(file.read_text()).items():
            nodes = {node["id"]: node for node in graphs[name]}
            by_name = {tensor: node["id"] for node in graphs[name] for tensor in node["names"]}
            keys = model_explorer.node_keys(content, subgraphs[name])
            operators = content.subgraphs[subgraphs[name]].operators
            for key in data["results"]:
                position = keys.index(key)
                code = content.operator_codes[operators[position].opcode_index]
                node = nodes[by_name.get(key, key)]
                assert node["id"] == str(position)
                kind = code.custom_code or builtin_code(code).name
                assert node["label"].split(".")[-1].lower() in (kind.lower(), kind.split(".")[-1].lower()) or (
                    kind == "STABLEHLO_COMPOSITE"
                ), (file, node, kind)
                count += 1
    assert count


@pytest.mark.parametrize("package", ["plan", "composite", "custom"])
@pytest.mark.parametrize("name", MODELS)
def test_every_node_is_found(name: str, package: str, corpus: list[Path], tmp_path: Path) -> None:
    python_of("model-explorer")
    path = next((p for p in corpus if p.stem == name), None)
    if path is None:
        pytest.skip(f"{name} is not in the corpus")
    explored(path, tmp_path, package=package)
    files = sorted(tmp_path.glob("x*.json"))
    found(tmp_path / "m.tflite", [f for f in files if ".result" not in f.name])
    found(tmp_path / "o.tflite", [f for f in files if ".result" in f.name])
    for file, theirs in zip(files, explorer("data", *files), strict=True):
        for name, data in json.loads(file.read_text()).items():
            assert data.items() <= theirs[name].items()  # the rest is what it takes where nothing is said


def test_numbers_as_names_mislead_nobody(tmp_path: Path) -> None:
    python_of("model-explorer")
    explored(network(3, names=[str(n) for n in (3, 1, 4, 9, 2, 6, 5, 0)]), tmp_path)
    files = sorted(tmp_path.glob("x*.json"))
    found(tmp_path / "m.tflite", [f for f in files if ".result" not in f.name])
    found(tmp_path / "o.tflite", [f for f in files if ".result" in f.name])


@contextmanager
def served(model: Path, files: Sequence[Path]) -> Iterator[str]:
    """The address of a page of Model Explorer with the model and the node data."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [python_of("model-explorer"), "-u", PROGRAM, "serve", str(port), model, *files]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as server:
        try:
            assert server.stdout is not None
            query = next(line for line in server.stdout if line.startswith("data=")).strip()
            for _ in range(100):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}/?{query}"
        finally:
            server.terminate()


def test_it_is_shown(tmp_path: Path) -> None:
    python_of("model-explorer")
    if browser.find() is None:
        pytest.skip("no Chromium is installed; LITEFUSE_CHROMIUM names one")
    explored(network(2), tmp_path)
    files = [tmp_path / name for name in ("x.json", "x.cost.json")]
    label = values(files[0])["0"]
    cost = values(files[1])["0"]
    with served(tmp_path / "m.tflite", files) as address, browser.page() as page:
        page.send("Emulation.setDeviceMetricsOverride", width=1500, height=1000, deviceScaleFactor=1, mobile=False)
        page.send("Page.navigate", url=address)
        end = time.monotonic() + browser.PATIENCE
        shown = ""
        while time.monotonic() < end and not (label in shown and str(cost) in shown):
            time.sleep(0.5)
            shown = page.run("document.body ? document.body.innerText : ''")
        assert "Regions, original" in shown
        assert "Estimated time in us (x86-64-v3), original" in shown
        assert label in shown
        assert str(cost) in shown
