"""Reductions brought to one form."""

from __future__ import annotations

import numpy as np
import pytest
from rules import fuse, kinds, looped, operators, refusals
from spell import T, absolute, fused, model

from litefuse.fusions.reductions import MergeReductions, SumToMean, reduced_axes, reduction
from litefuse.graph import Graph
from litefuse.schema.enums import ActivationFunctionType
from litefuse.schema.operators import Op

MEAN, MERGE = SumToMean(), MergeReductions()


@pytest.mark.parametrize("keep_dims", [False, True])
@pytest.mark.parametrize(
    "spelling",
    [lambda t: t * 0.05, lambda t: 0.05 * t, lambda t: t / 20, lambda t: t * np.full((1, 1), 0.05)],
    ids=range(4),
)
def test_sum_to_mean(keep_dims: bool, spelling: object) -> None:
    m = model(lambda x: spelling(x.reduce(Op.SUM, [1, 2], keep_dims=keep_dims)))  # type: ignore[operator]
    after, _ = fuse(m, MEAN, reference=lambda x: x.mean((1, 2), keepdims=keep_dims), bound=1e-6)
    assert kinds(after) == ["MEAN"]


def test_sum_to_mean_with_unknown_batch_and_in_a_while_body() -> None:
    after, _ = fuse(model(lambda x: x.reduce(Op.SUM, [1, 2]) / 20, (-1, 4, 5, 3)), MEAN)
    assert kinds(after) == ["MEAN"]
    m = model(lambda x: x + x.reduce(Op.SUM, [1, 2]) * 0.05)
    assert kinds(fuse(looped(m), MEAN)[0], 2) == ["MEAN", "ADD", "ADD"]


def test_sum_to_mean_leaves_other_factors() -> None:
    for spelling in (
        lambda x: x.reduce(Op.SUM, [1, 2]) * 0.0501,
        lambda x: 20 / x.reduce(Op.SUM, [1, 2]),
        lambda x: x.reduce(Op.SUM, [1, 2]) / 21,
        lambda x: x.reduce(Op.SUM, [1, 2]) * np.full((1, 4, 1, 1), 0.05),
        lambda x: x.reduce(Op.REDUCE_MAX, [1, 2]) * 0.05,
        lambda x: fused(x.reduce(Op.SUM, [1, 2]) * 0.05, ActivationFunctionType.RELU),
    ):
        assert refusals(model(spelling), MEAN) == []
    assert refusals(model(lambda x: x.reduce(Op.SUM, [0, 1, 2]) * 0.05, (-1, 4, 5, 3)), MEAN) == []


def test_sum_to_mean_refuses_other_readers() -> None:
    m = model(lambda x: (lambda t: (t / 20, absolute(t)))(x.reduce(Op.SUM, [1, 2])))
    assert refusals(m, MEAN) == ["output of SUM #0 `sum_0` is also read by ABS #2 `abs_2`"]


@pytest.mark.parametrize("kind", [Op.MEAN, Op.SUM, Op.REDUCE_MAX, Op.REDUCE_MIN])
@pytest.mark.parametrize("keep_dims", [False, True])
@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1), (-1, 0), ([1, 2], -1), (3, [0, 1])], ids=str)
def test_merge_reductions(kind: Op, keep_dims: bool, first: object, second: object) -> None:
    def spelling(x: T) -> T:
        inner = x.reduce(kind, first, keep_dims)  # type: ignore[arg-type]
        return inner.reduce(kind, second, keep_dims)  # type: ignore[arg-type]

    shape = (2, 4, 5, 3)
    if first == [1, 2] and not keep_dims:
        second = 1
    after, _ = fuse(model(spelling, shape), MERGE, bound=1e-5)
    assert kinds(after) == [kind.name]


def test_merge_reductions_over_axes() -> None:
    after, _ = fuse(model(lambda x: x.reduce(Op.MEAN, 1, False).reduce(Op.MEAN, 1, False)), MERGE)
    graph = Graph(after)
    (op,) = operators(after, "MEAN")
    assert reduced_axes(graph, op) == (1, 2)


def test_merge_reductions_refusals() -> None:
    m = model(lambda x: (lambda t: (t.reduce(Op.MEAN, 2), absolute(t)))(x.reduce(Op.MEAN, 1)))
    assert refusals(m, MERGE) == ["output of MEAN #0 `mean_0` is also read by ABS #2 `abs_2`"]
    assert refusals(model(lambda x: x.reduce(Op.MEAN, 1).reduce(Op.SUM, 2)), MERGE) == []
    assert refusals(model(lambda x: x.reduce(Op.MEAN, 1, False).reduce(Op.MEAN, 1, True)), MERGE) == []


def test_reading_reductions() -> None:
    def spelling(x: T) -> list[T]:
        return [
            x.reduce(Op.SUM, [-1, 1]),
            x.reduce(Op.SUM, [1], False),
            x.reduce(Op.SUM, [1, 3], False).reshape(1, 1, 5, 1),
            x.reduce(Op.SUM, [1, 2, 3], False).reshape(1, 1, 1, 1),
            x.reduce(Op.SUM, [1], False).reshape(1, 5, 1, 3),
        ]

    m = model(spelling)
    graph = Graph(m)
    found = [reduction(graph, t, {Op.SUM}) for t in m.subgraphs[0].outputs]
    assert [f and f.axes for f in found] == [(1, 3), None, (1, 3), (1, 2, 3), None]
    assert all(f is None or f.source == m.subgraphs[0].inputs[0] for f in found)
    assert reduction(graph, m.subgraphs[0].outputs[0], {Op.MEAN}) is None
    assert reduction(graph, m.subgraphs[0].inputs[0], {Op.SUM}) is None
