from __future__ import annotations

import ctypes
import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delegate import feeds, outputs_of, packaged, start, whole
from runtimes import NAMES, results, run_tasks, task
from test_delegates_package import Group

from litefuse.delegates.package import package
from litefuse.delegates.runtime import LIBRARY, clear_profile, library, load, report
from litefuse.errors import RuntimeMissingError, UsageError
from litefuse.graph.build import Builder
from litefuse.runtime import interpreter, runtime
from litefuse.schema import Model, deepcopy, to_bytes
from litefuse.schema.enums import ActivationFunctionType, Padding, TensorType
from litefuse.schema.operators import Op


def network(batch: int = 1, seed: int = 0) -> Model:
    """Convolution, activation, pooling, fully connected, softmax; the batch may be -1."""
    rng = np.random.default_rng(seed)
    b = Builder()
    x = b.input("x", [batch, 9, 8, 3])
    w = b.constant("w", rng.standard_normal((8, 3, 3, 3)).astype(np.float32) / 5)
    conv = b.op(
        Op.CONV_2D,
        [x, w, b.constant("bias", rng.standard_normal(8).astype(np.float32))],
        name="conv",
        shape=[batch, 5, 4, 8],
        padding=Padding.SAME,
        stride_w=2,
        stride_h=2,
    )
    swish = b.op(
        Op.MUL,
        [conv, b.op(Op.LOGISTIC, [conv], name="gate", shape=[batch, 5, 4, 8])],
        name="swish",
        shape=[batch, 5, 4, 8],
    )
    mean = b.op(Op.MEAN, [swish, b.constant("axes", np.int32([1, 2]))], name="mean", shape=[batch, 8])
    fc = b.op(
        Op.FULLY_CONNECTED,
        [
            mean,
            b.constant("v", rng.standard_normal((5, 8)).astype(np.float32)),
            b.constant("b2", np.zeros(5, np.float32)),
        ],
        name="fc",
        shape=[batch, 5],
        fused_activation_function=ActivationFunctionType.RELU,
    )
    return b.model([b.op(Op.SOFTMAX, [fc], name="probabilities", shape=[batch, 5], beta=1.0)], signature="serve")


def split(model: Model, mode: str = "composite") -> Model:
    """Two regions with MEAN left between them."""
    model = deepcopy(model)
    package(
        model, {0: [Group(model, [0, 1, 2], "conv_epilogue"), Group(model, [4, 5], "fully_connected_epilogue")]}, mode
    )
    return model


def nodes(runner: Any) -> list[str]:
    return [d["op_name"] for d in runner._get_ops_details()]


@pytest.mark.parametrize("mode", ["composite", "plan", "custom"])
def test_each_region_is_one_node_named_by_its_kind(mode: str) -> None:
    delegate = load(backend="reference")  # which has a use for the plan of the memory
    runner = start(split(network(), mode), delegates=[delegate])
    found = report(delegate)
    assert [r["name"] for r in found["regions"]] == ["litefuse.conv_epilogue", "litefuse.fully_connected_epilogue"]
    assert [r["operators"] for r in found["regions"]] == [3, 2]
    assert all(r["follows_plan"] for r in found["regions"])
    assert found["refused"] == []
    assert nodes(runner).count("DELEGATE") == 2
    x = feeds(runner)
    np.testing.assert_allclose(outputs_of(runner, x)[0], outputs_of(start(network()), x)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["composite", "plan", "custom"])
def test_xnnpack_takes_what_is_left(mode: str) -> None:
    model = split(network(), mode)
    delegate = load()
    runner = interpreter(to_bytes(model), delegates=[delegate])
    x = [np.random.default_rng(3).standard_normal((1, 9, 8, 3)).astype(np.float32)]
    got = outputs_of(runner, x)
    np.testing.assert_allclose(got[0], outputs_of(start(network()), x)[0], rtol=1e-5, atol=1e-6)
    assert len(report(delegate)["regions"]) == 2


@pytest.mark.parametrize("mode", ["composite", "plan", "custom"])
def test_resizing_the_inputs(mode: str) -> None:
    model = network(batch=-1)
    delegate = load()
    runner = start(split(model, mode), delegates=[delegate])
    plain = start(model)
    rng = np.random.default_rng(0)
    for batch in (1, 4, 2, 2, 7, 1):
        x = [rng.standard_normal((batch, 9, 8, 3)).astype(np.float32)]
        np.testing.assert_allclose(outputs_of(runner, x)[0], outputs_of(plain, x)[0], rtol=1e-5, atol=1e-6)
    assert len(report(delegate)["regions"]) == 2


@pytest.mark.parametrize("mode", ["composite", "plan"])
def test_tensors_whose_shape_data_decide(mode: str) -> None:
    # What is reshaped depends on the values of a second input, so the shape is known only when the model runs.
    b = Builder()
    x = b.input("x", [2, 6])
    shape = b.input("shape", [2], type=TensorType.INT32)
    free = b.op(Op.RESHAPE, [x, shape], name="free", shape=[-1, -1])
    relu = b.op(Op.RELU, [free], name="relu", shape=[-1, -1])
    neg = b.op(Op.NEG, [relu], name="neg", shape=[-1, -1])
    model = b.model([neg])
    wrapped = deepcopy(model)
    package(wrapped, {0: [Group(wrapped, [1, 2])]}, mode)
    delegate = load()
    runner = start(wrapped, delegates=[delegate])
    assert len(report(delegate)["regions"]) == 1
    data = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    for wanted in ((3, 4), (12, 1), (2, 6), (3, 4)):
        (got,) = outputs_of(runner, [data, np.int32(wanted)])
        np.testing.assert_array_equal(got, -np.maximum(data, 0).reshape(wanted))


def test_all_tensors_kept() -> None:
    model = split(network(), "plan")
    delegate = load()
    runner = interpreter(to_bytes(model), delegates=[delegate], keep_all=True)
    plain = interpreter(to_bytes(network()), xnnpack=False, keep_all=True)
    x = [np.random.default_rng(3).standard_normal((1, 9, 8, 3)).astype(np.float32)]
    outputs_of(runner, x)
    outputs_of(plain, x)
    kept = {d["name"]: d["index"] for d in runner.get_tensor_details()}
    for detail in plain.get_tensor_details():
        if detail["name"] in ("conv", "gate", "swish", "mean", "fc"):
            want = plain.get_tensor(detail["index"])
            np.testing.assert_allclose(runner.get_tensor(kept[detail["name"]]), want, rtol=1e-5, atol=1e-6)


def test_several_interpreters_in_threads_with_one_delegate() -> None:
    model = to_bytes(split(network()))
    delegate = load()
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1, 9, 8, 3)).astype(np.float32) for _ in range(4)]
    plain = start(network())
    want = [outputs_of(plain, [x])[0] for x in inputs]
    wrong: list[str] = []

    def work(i: int) -> None:
        for _ in range(3):
            runner = start(model, delegates=[delegate])
            for _ in range(50):
                if not np.allclose(outputs_of(runner, [inputs[i]])[0], want[i], rtol=1e-5, atol=1e-6):
                    wrong.append(f"thread {i}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("own", [False, True], ids=["one delegate", "a delegate each"])
def test_a_thousand_interpreters_leave_nothing_behind(own: bool) -> None:
    model = to_bytes(split(network()))
    delegate = load()
    x = [np.ones((1, 9, 8, 3), np.float32)]

    def again(times: int) -> None:
        for _ in range(times):
            runner = start(model, delegates=[load() if own else delegate])
            outputs_of(runner, x)
        del runner
        gc.collect()

    again(200)
    before = _resident()
    again(1000)
    # A region leaked each time would be ten times that.
    assert _resident() - before < 1 << 20
    assert report(delegate)["regions"] == []


def test_profile() -> None:
    delegate = load(profile=True)
    runner = start(split(network()), delegates=[delegate])
    for _ in range(3):
        outputs_of(runner)
    first, second = report(delegate)["regions"]
    assert first["runs"] == second["runs"] == 3
    assert [t["operator"].split(" ")[0] for t in first["times"]] == ["CONV_2D", "LOGISTIC", "MUL"]
    assert sum(t["nanoseconds"] for t in first["times"]) > 0
    clear_profile(delegate)
    assert report(delegate)["regions"][0]["runs"] == 0
    assert "times" not in _region_without_profile()


def _region_without_profile() -> dict[str, Any]:
    delegate = load()
    runner = start(split(network()), delegates=[delegate])
    outputs_of(runner)
    region: dict[str, Any] = report(delegate)["regions"][0]
    return region


def test_wrong_options_say_so() -> None:
    with pytest.raises(UsageError, match="there is no backend `npu`; there are cpu and reference"):
        load(backend="npu")
    with pytest.raises(UsageError, match="option `threads` wants a number from 0"):
        load(threads=-1)
    with pytest.raises(ValueError, match="there is no option `speed`; the options are threads, backend"):
        runtime().module.load_delegate(str(library()), {"speed": "high"})
    with pytest.raises(UsageError, match="there is no runtime `torch`"):
        load(runtime_name="torch")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the runtime's own half-made object
def test_a_missing_library_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(LIBRARY, str(tmp_path / "none.so"))
    with pytest.raises(RuntimeMissingError, match="which is no file"):
        library()
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setenv(LIBRARY, str(broken))
    with pytest.raises(RuntimeMissingError, match="cannot be loaded"):
        load()


def test_what_a_region_cannot_hold_is_left_and_runs_all_the_same() -> None:
    b = Builder()
    x = b.input("x", [1, 8])
    top = b.op(Op.TOPK_V2, [x, b.constant("k", np.int32(3))], outputs=2, name="top", shape=[1, 3])
    model = b.model([b.op(Op.NEG, [top], name="neg", shape=[1, 3])])
    model.subgraphs[0].tensors[top + 1].type = TensorType.INT32
    wrapped = packaged(model)
    delegate = load()
    runner = start(wrapped, delegates=[delegate])
    told = report(delegate)
    assert told["regions"] == []
    assert "none that regions may contain" in told["refused"][0]["reason"]
    (got,) = outputs_of(runner, [np.float32([[1, 9, 3, 7, 5, 0, 2, 4]])])
    np.testing.assert_array_equal(got, np.float32([[-9, -7, -5]]))


def test_an_edited_plan_claims_nothing() -> None:
    model = split(network(), "plan")
    model.subgraphs[0].tensors[model.subgraphs[0].operators[1].outputs[0]].name = "renamed"
    delegate = load()
    runner = start(model, delegates=[delegate])
    told = report(delegate)
    assert told["regions"] == []
    assert "made for other operators" in told["refused"][0]["reason"]
    outputs_of(runner)


def test_a_region_in_the_body_of_a_loop() -> None:
    model = _loop()
    package(model, {2: [whole(model, "elementwise", 2)]})
    delegate = load()
    runner = start(model, delegates=[delegate])
    assert [r["name"] for r in report(delegate)["regions"]] == ["litefuse.elementwise"]
    values = outputs_of(runner, [np.int32(0), np.float32([1, 2])])
    np.testing.assert_array_equal(values[-1], np.float32([32, 64]))


def _loop() -> Model:
    """Doubles a vector five times."""
    b = Builder()
    i, x = b.input("i", [], type=TensorType.INT32), b.input("x", [2])
    first = b.op(Op.WHILE, [i, x], outputs=2, name="loop", shape=[], cond_subgraph_index=1, body_subgraph_index=2)
    model = b.model([first, first + 1])
    model.subgraphs[0].tensors[first + 1].type = TensorType.FLOAT32
    model.subgraphs[0].tensors[first + 1].shape = [2]
    c = Builder()
    j = c.input("i", [], type=TensorType.INT32)
    c.input("x", [2])
    cond = c.model([c.op(Op.LESS, [j, c.constant("n", np.int32(5))], name="more", shape=[], type=TensorType.BOOL)])
    d = Builder()
    k, y = d.input("i", [], type=TensorType.INT32), d.input("x", [2])
    step = d.op(Op.ADD, [k, d.constant("one", np.int32(1))], name="next", shape=[])
    body = d.model([step, d.op(Op.ADD, [y, y], name="twice", shape=[2])])
    for other in (cond, body):
        shift, codes = len(model.buffers), len(model.operator_codes)
        model.buffers += other.buffers
        model.operator_codes += other.operator_codes
        for subgraph in other.subgraphs:
            for tensor in subgraph.tensors:
                tensor.buffer += shift if tensor.buffer else 0
            for op in subgraph.operators:
                op.opcode_index += codes
            model.subgraphs.append(subgraph)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_other_runtimes(name: str, tmp_path: Path) -> None:
    """All that the runtime takes: packaging modes, resizing, and composites without the delegate."""
    modes = ["plan", "custom"] if name == "tflite-runtime" else ["composite", "plan", "custom"]
    rng = np.random.default_rng(0)
    inputs = [[rng.standard_normal((n, 9, 8, 3)).astype(np.float32)] for n in (1, 3, 3, 2)]
    model = network(batch=-1)
    plain = start(model)
    want = [outputs_of(plain, x)[0] for x in inputs]
    tasks = {mode: task(split(model, mode), inputs, tmp_path, mode) for mode in modes}
    for mode in modes:
        if mode != "custom":
            tasks[f"{mode} alone"] = task(split(model, mode), inputs, tmp_path, f"{mode}-alone", delegate=False)
    kept = task(split(model, modes[0]), inputs[:1], tmp_path, "kept", keep_all=True)
    answers = run_tasks(name, [*tasks.values(), kept], tmp_path)
    for (what, made), answer in zip([*tasks.items(), ("kept", kept)], answers, strict=True):
        assert "error" not in answer, (what, answer)
        for got, expected in zip(results(made), want, strict=False):
            np.testing.assert_allclose(got[0], expected, rtol=1e-5, atol=1e-6, err_msg=what)
        if "report" in answer:
            claimed = [r["name"] for r in sorted(answer["report"]["regions"], key=lambda r: r["position"])]
            assert claimed == ["litefuse.conv_epilogue", "litefuse.fully_connected_epilogue"], (what, answer)


def test_the_oldest_runtime_refuses_composites_itself(tmp_path: Path) -> None:
    (answer,) = run_tasks("tflite-runtime", [task(split(network()), [], tmp_path, "m")], tmp_path)
    assert "206" in answer["error"]


def test_a_delegate_destroyed_before_its_interpreter() -> None:
    # As a garbage collector may do that finds both in a cycle.
    delegate = load()
    runner = start(split(network()), delegates=[delegate])
    (before,) = outputs_of(runner)
    destroy = delegate._library.tflite_plugin_destroy_delegate
    destroy.argtypes = [ctypes.c_void_p]
    destroy(delegate._delegate_ptr)
    delegate._library = None  # so that it is not destroyed again
    np.testing.assert_array_equal(outputs_of(runner)[0], before)
    del runner
    gc.collect()
