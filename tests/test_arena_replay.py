"""The proof of plans, tried on plans that are wrong, and against operators run on real bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rules import looped

from litefuse.arena.aliasing import Share, ShareKind, legal_shares
from litefuse.arena.lifetimes import DELEGATE, TFLITE, TFLM, Runtime, sizes
from litefuse.arena.plan import Plan, plan
from litefuse.arena.replay import check_plan
from litefuse.graph.build import Builder
from litefuse.graph.graph import Graph
from litefuse.schema import Model, read
from litefuse.schema.operators import Op

Key = tuple[int, int]


def rich() -> Model:
    """Views, in-place operators, a concatenation, a residual and a tensor that is read late."""
    b = Builder()
    x = b.input("x", [1, 4, 4, 16])
    w = b.constant("w", np.ones((16, 1, 1, 16), np.float32))
    a = b.op(Op.CONV_2D, [x, w, -1], name="a", shape=[1, 4, 4, 16])
    r = b.op(Op.RELU, [a], name="r", shape=[1, 4, 4, 16])
    c = b.op(Op.CONV_2D, [r, w, -1], name="c", shape=[1, 4, 4, 16])
    d = b.op(Op.CONV_2D, [c, w, -1], name="d", shape=[1, 4, 4, 16])
    s = b.op(Op.ADD, [r, d], name="s", shape=[1, 4, 4, 16])
    v = b.op(Op.RESHAPE, [s, b.constant("shape", np.array([1, 256], np.int32))], name="v", shape=[1, 256])
    t = b.op(Op.TANH, [v], name="t", shape=[1, 256])
    f = b.constant("f", np.ones((256, 256), np.float32))
    u = b.op(Op.FULLY_CONNECTED, [t, f, -1], name="u", shape=[1, 256])
    y = b.op(Op.CONCATENATION, [u, t], name="y", shape=[1, 512], axis=1)
    return b.model([y])


def faults(model: Model, found: Plan, **changes: Any) -> list[str]:
    """What the proof says to a plan of one arena with something changed: order, offsets, shares, peak, alignment."""
    parts = found.arenas[0].subgraphs
    arguments: dict[str, Any] = {
        "orders": {p.index: p.order for p in parts},
        "offsets": {(p.index, t): o for p in parts for t, o in p.offsets.items()},
        "shares": {p.index: p.shares for p in parts},
        "peak": found.peak,
        "alignment": found.alignment,
    } | changes
    indices = [p.index for p in parts]
    return check_plan(model, found.runtime, indices, **arguments)


def offsets_of(found: Plan) -> dict[Key, int]:
    return {(p.index, t): o for p in found.arenas[0].subgraphs for t, o in p.offsets.items()}


@pytest.mark.parametrize("runtime", [TFLM, TFLITE, DELEGATE], ids=lambda r: r.name)
def test_plans_are_proved(runtime: Runtime) -> None:
    model = rich()
    assert faults(model, plan(model, runtime=runtime)) == []


def test_addresses_are_looked_at_one_by_one() -> None:
    model = rich()
    found = plan(model)
    offsets = offsets_of(found)
    key = 0, 2
    without = {k: v for k, v in offsets.items() if k != key}
    cases = {
        "no address": without,
        "negative": offsets | {key: -16},
        "not a multiple of 16": offsets | {key: offsets[key] + 8},
        "beyond": offsets | {key: found.peak},
        "not a tensor of the arena": offsets | {(0, 1): 0},
    }
    for words, changed in cases.items():
        assert any(words in f for f in faults(model, found, offsets=changed)), words


def test_orders_that_cannot_be_run() -> None:
    model = rich()
    found = plan(model)
    order = found.arenas[0].subgraphs[0].order
    swapped = [order[1], order[0], *order[2:]]
    assert any("runs before" in f for f in faults(model, found, orders={0: swapped}))
    assert any("each of its operators once" in f for f in faults(model, found, orders={0: order[:-1]}))
    assert any("each of its operators once" in f for f in faults(model, found, orders={0: [*order[:-1], order[0]]}))


@pytest.mark.parametrize("runtime", [TFLM, DELEGATE], ids=lambda r: r.name)
def test_every_share_has_to_be_claimed(runtime: Runtime) -> None:
    model = rich()
    found = plan(model, runtime=runtime)
    shares = found.arenas[0].subgraphs[0].shares
    kinds = {s.kind for s in shares}
    assert kinds == {ShareKind.VIEW, ShareKind.IN_PLACE} | ({ShareKind.RESIDUAL} if runtime is DELEGATE else set())
    for share in shares:
        assert faults(model, found, shares={0: [s for s in shares if s is not share]}), share


def test_shares_that_are_not_legal_do_not_help() -> None:
    model = rich()
    found = plan(model)
    shares = found.arenas[0].subgraphs[0].shares
    invented = Share(0, 0, 2, 0, ShareKind.IN_PLACE, "wishful")
    assert any("not legal" in f for f in faults(model, found, shares={0: [*shares, invented]}))
    moved = [s._replace(offset=s.offset + 16) if s.kind is ShareKind.VIEW else s for s in shares]
    assert any("not legal" in f for f in faults(model, found, shares={0: moved}))


def test_a_residual_needs_its_convolution_directly_before_it() -> None:
    b = Builder()
    x = b.input("x", [1, 4, 4, 16])
    w = b.constant("w", np.ones((16, 1, 1, 16), np.float32))
    a = b.op(Op.RELU, [x], name="a", shape=[1, 4, 4, 16])
    c = b.op(Op.CONV_2D, [x, w, -1], name="c", shape=[1, 4, 4, 16])
    e = b.op(Op.TANH, [x], name="e", shape=[1, 4, 4, 16])
    s = b.op(Op.ADD, [a, c], name="s", shape=[1, 4, 4, 16])
    model = b.model([s, e])
    (share,) = (
        s
        for s in legal_shares(Graph(model), DELEGATE, sizes(Graph(model), DELEGATE)).shares
        if s.kind is ShareKind.RESIDUAL
    )
    offsets = {(0, x): 0, (0, a): 1024, (0, s): 1024, (0, e): 2048}
    arguments: dict[str, Any] = {"shares": {0: [share]}, "peak": 4096, "alignment": 64}
    apart = check_plan(model, DELEGATE, [0], {0: [0, 1, 2, 3]}, offsets, **arguments)
    assert any("directly after" in f for f in apart)
    assert check_plan(model, DELEGATE, [0], {0: [0, 2, 1, 3]}, offsets, **arguments) == []
    # One kernel: its output must not lie over the input of the convolution either.
    onto = {**offsets, (0, s): 0, (0, a): 1024}
    arguments["shares"] = {0: [share]}
    assert check_plan(model, DELEGATE, [0], {0: [0, 2, 1, 3]}, onto, **arguments) != []


def test_inputs_that_overlap_are_a_fault_even_if_nothing_reads_them() -> None:
    b = Builder()
    x, z = b.input("x", [4]), b.input("z", [4])
    model = b.model([b.op(Op.RELU, [x], shape=[4])])
    offsets = {(0, x): 0, (0, z): 0, (0, 2): 16}
    found = check_plan(model, TFLM, [0], {}, offsets, {}, peak=32, alignment=16)
    assert any("inputs are written by the application" in f for f in found)


def test_tflite_must_find_its_inputs_whole_at_the_end() -> None:
    b = Builder()
    x = b.input("x", [64])
    a = b.op(Op.EXP, [x], shape=[64])
    c = b.op(Op.EXP, [a], shape=[64])
    model = b.model([b.op(Op.EXP, [c], shape=[64])])
    offsets = {(0, x): 0, (0, a): 256, (0, c): 0, (0, 3): 256}
    assert check_plan(model, TFLM, [0], {}, offsets, {}, peak=512, alignment=16) == []
    assert any("`x` is damaged" in f for f in check_plan(model, TFLITE, [0], {}, offsets, {}, peak=512, alignment=16))


def test_subgraphs_that_are_run_must_leave_their_caller_alone() -> None:
    b = Builder()
    x = b.input("x", [1, 64])
    model = looped(b.model([b.op(Op.TANH, [x], shape=[1, 64])]))
    found = plan(model)
    offsets = offsets_of(found)
    assert faults(model, found) == []
    for inner in (k for k in offsets if k[0] == 2):
        for outer in (k for k in offsets if k[0] == 0):
            assert faults(model, found, offsets=offsets | {inner: offsets[outer]}), (inner, outer)


def overlapping_pairs(model: Model, order: list[int]) -> list[tuple[int, int]]:
    """Pairs of tensors that are needed at the same time and are no candidates for sharing, by a count of uses."""
    graph = Graph(model)
    known = sizes(graph, TFLM)
    first = dict.fromkeys(graph.subgraph.inputs, -1)
    last: dict[int, int] = {}
    for time, index in enumerate(order):
        op = graph.subgraph.operators[index]
        for t in (*op.inputs, *op.outputs):
            first.setdefault(t, time)
            last[t] = time
    last.update(dict.fromkeys(graph.subgraph.outputs, len(order)))
    shares = legal_shares(graph, TFLM, known).shares
    group = {t: {t} for t in known.bytes}
    for share in shares:
        if share.kind is ShareKind.VIEW:
            both = group[share.source] | group[share.target]
            group.update(dict.fromkeys(both, both))
    related = {(a, b) for s in shares for a in group[s.source] for b in group[s.target]}
    return [
        (a, b)
        for a in known.bytes
        for b in known.bytes
        if a < b
        and b not in group[a]
        and not {(a, b), (b, a)} & related
        and first[a] <= last[b]
        and first[b] <= last[a]
    ]


def test_mutations_of_plans_are_caught() -> None:
    """Every pair of tensors that are live together, moved onto each other, is a fault."""
    tried = 0
    for model in (rich(), *(net(seed) for seed in range(6))):
        found = plan(model)
        offsets = offsets_of(found)
        assert faults(model, found) == []
        pairs = overlapping_pairs(model, found.arenas[0].subgraphs[0].order)
        tried += len(pairs)
        for a, b in pairs:
            for one, other in ((a, b), (b, a)):
                changed = offsets | {(0, one): offsets[0, other]}
                assert faults(model, found, offsets=changed, peak=1 << 20), (one, other)
    assert tried > 20


# -- against real bytes --------------------------------------------------------------------------------------------


def net(seed: int, most: int = 9) -> Model:
    """A random graph of at most ``most`` operators that can be run on bytes below; 4 to 64 float32 elements each."""
    rng = np.random.default_rng(seed)
    b = Builder()
    tensors = [b.input("x", [1, 16])]
    width = {tensors[0]: 16}
    for _ in range(int(rng.integers(5, most + 1))):
        source = tensors[int(rng.integers(max(0, len(tensors) - 4), len(tensors)))]
        n = width[source]
        kind = str(rng.choice(["neg", "abs", "add", "reshape", "reverse", "concat", "slice", "mul"]))
        if kind in ("neg", "abs"):
            made = b.op(Op.NEG if kind == "neg" else Op.ABS, [source], shape=[1, n])
        elif kind in ("add", "mul"):
            same = [t for t in tensors if width[t] == n]
            other = same[int(rng.integers(len(same)))]
            made = b.op(Op.ADD if kind == "add" else Op.SUB, [source, other], shape=[1, n])
        elif kind == "reshape":
            made = b.op(Op.RESHAPE, [source, b.constant("s", np.array([1, n], np.int32))], shape=[1, n])
        elif kind == "reverse":
            made = b.op(Op.REVERSE_V2, [source, b.constant("axis", np.array([1], np.int32))], shape=[1, n])
        elif kind == "concat" and n <= 32:
            other = tensors[int(rng.integers(len(tensors)))]
            made = b.op(Op.CONCATENATION, [source, other], shape=[1, n + width[other]], axis=1)
            n += width[other]
        else:
            begin = int(rng.choice([0, 4, n - 12])) if n > 16 else 0
            size = n - begin - (4 if n - begin > 8 else 0)
            bounds = [b.constant("b", np.array([0, begin], np.int32)), b.constant("n", np.array([1, size], np.int32))]
            made = b.op(Op.SLICE, [source, *bounds], shape=[1, size])
            n = size
        tensors.append(made)
        width[made] = n
    graph = b.model([tensors[-1], tensors[-3]])
    return graph


def run(model: Model, offsets: dict[Key, int] | None, order: list[int]) -> list[np.ndarray]:
    """Runs a model of :func:`net` in an arena of bytes, or with memory for every tensor when there are no offsets.

    Kernels that may not run in place spoil their output before they read, as the worst one would.
    """
    graph = Graph(model)
    count = {t: int(np.prod(graph.tensor(t).shape)) for t in range(len(graph.tensors)) if not graph.is_constant(t)}
    arena = np.zeros(1 << 12, np.float32)
    own = {t: np.zeros(n, np.float32) for t, n in count.items()}

    def place(t: int) -> np.ndarray:
        if offsets is None:
            return own[t]
        start = offsets[0, t] // 4
        return arena[start : start + count[t]]

    for i, t in enumerate(graph.subgraph.inputs):
        place(t)[:] = np.arange(1, count[t] + 1, dtype=np.float32) * (0.5 + i)
    for index in order:
        op = graph.subgraph.operators[index]
        kind, out = graph.kind(op), place(op.outputs[0])
        inputs = [place(t) for t in op.inputs if not graph.is_constant(t)]
        if kind in (Op.NEG, Op.ABS):
            function: Callable[..., Any] = np.negative if kind is Op.NEG else np.abs
            for i in range(len(out)):
                out[i] = function(inputs[0][i])
        elif kind in (Op.ADD, Op.SUB):
            for i in range(len(out)):
                out[i] = inputs[0][i] + inputs[1][i] if kind is Op.ADD else inputs[0][i] - inputs[1][i]
        elif kind is Op.REVERSE_V2:
            for i in range(len(out)):
                out[i] = inputs[0][len(out) - 1 - i]
        else:
            begin = int(graph.constant(op.inputs[1])[1]) if kind is Op.SLICE else 0
            at = 0
            for source in inputs:
                for i in range(len(source) if kind is not Op.SLICE else len(out)):
                    out[at] = source[begin + i]
                    at += 1
    return [place(t).copy() for t in graph.subgraph.outputs]


@pytest.mark.parametrize("seed", range(25))
def test_what_is_proved_computes_the_right_numbers(seed: int) -> None:
    model = net(seed)
    graph = Graph(model)
    known = sizes(graph, TFLM)
    legal = legal_shares(graph, TFLM, known).shares
    given = list(range(len(graph.subgraph.operators)))
    right = run(model, None, given)
    for overwrite in (False, True):
        found = plan(model, overwrite_inputs=overwrite)
        order = found.arenas[0].subgraphs[0].order
        assert faults(model, found) == []
        for a, b in zip(right, run(model, offsets_of(found), order), strict=True):
            np.testing.assert_array_equal(a, b)
    # Plans by dice: whatever spoils a number must be found.
    rng = np.random.default_rng(seed)
    base = offsets_of(found)
    caught = passed = 0
    for _ in range(60):
        offsets = dict(base)
        for _ in range(int(rng.integers(1, 4))):
            key = list(base)[int(rng.integers(len(base)))]
            offsets[key] = int(rng.integers(0, 24)) * 16
        claims = [s for s in legal if offsets[0, s.target] - offsets[0, s.source] == s.offset]
        said = check_plan(model, TFLM, [0], {0: order}, offsets, {0: claims}, peak=1 << 14, alignment=16)
        wrong = any(not np.array_equal(a, b) for a, b in zip(right, run(model, offsets, order), strict=True))
        assert said or not wrong
        caught += bool(said)
        passed += not said
    assert caught


@pytest.mark.slow
def test_mutations_of_plans_of_real_models_are_caught(corpus: list[Path]) -> None:
    rng = np.random.default_rng(0)
    for path in corpus[::10]:
        model = read(path)
        found = plan(model, seconds=2)
        if len(found.arenas[0].subgraphs) > 1 or not offsets_of(found):
            continue
        offsets = offsets_of(found)
        pairs = overlapping_pairs(model, found.arenas[0].subgraphs[0].order)
        for index in rng.permutation(len(pairs))[:10]:
            a, b = pairs[index]
            assert faults(model, found, offsets=offsets | {(0, a): offsets[0, b]}, peak=1 << 40), (path, a, b)
