"""Plans of whole models: budgets, memories, what is moved, files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import litefuse
from litefuse.arena.memories import Memory
from litefuse.arena.problem import read_csv
from litefuse.errors import BudgetError, LitefuseError, OutputError
from litefuse.graph.build import Builder
from litefuse.plan import traffic
from litefuse.schema import Model, read, write
from litefuse.schema.operators import Op


def chain() -> Model:
    """RESHAPE, ABS, RESHAPE, and an ADD that reads the result of ABS twice: 256 bytes each."""
    b = Builder()
    x = b.input("x", [64])
    y = b.op(Op.RESHAPE, [x, b.constant("shape", [8, 8])], name="view", shape=[8, 8])
    y = b.op(Op.FULLY_CONNECTED, [y, b.constant("w", np.eye(8, dtype=np.float32)), -1], name="fc", shape=[8, 8])
    z = b.op(Op.ABS, [y], name="abs", shape=[8, 8])
    return b.model([b.op(Op.ADD, [z, y], name="sum", shape=[8, 8])])


def test_views_move_nothing_and_every_use_counts() -> None:
    model = chain()
    done = litefuse.plan(model)
    arena = done.plan.arenas[0]
    moved = traffic(model, arena)
    by_tensor = {
        model.subgraphs[0].tensors[m.key[1]].name: moved[str(n)] for n, b in enumerate(arena.blocks) for m in b.members
    }
    # x and view share bytes: the application writes, FULLY_CONNECTED reads.
    assert by_tensor["x"] == by_tensor["view"] == 256 * 2
    # fc is written and read twice; abs or fc shares with the sum, which is written and read by the application.
    assert sum(moved.values()) == 256 * (2 + 3 + 2 + 2)


def test_budget() -> None:
    done = litefuse.plan(chain(), budget=4096)
    assert done.plan.peak <= 4096
    with pytest.raises(BudgetError, match=r"the budget is 100 bytes; the smallest that is found to suffice is 512"):
        litefuse.plan(chain(), budget=100)


def test_memories() -> None:
    done = litefuse.plan(chain(), memories=[Memory("sram", 256), Memory("psram", 4096, 4.0)])
    assert done.placement is not None
    assert done.placement.proved
    assert {use.memory.name for use in done.placement.uses} == {"sram", "psram"}
    with pytest.raises(BudgetError, match="most is live at"):
        litefuse.plan(chain(), memories=[Memory("sram", 256)])


def test_the_problem_is_written_with_its_solution(tmp_path: Path) -> None:
    done = litefuse.plan(chain(), csv=tmp_path / "p.csv")
    problem = read_csv(tmp_path / "p.csv")
    assert len(problem.buffers) == len(done.plan.arenas[0].blocks)
    assert "0.0+0.2" in [b.id for b in problem.buffers]
    assert (tmp_path / "p.csv").read_text().startswith("id,lower,upper,size,offset\n")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    write(chain(), path)
    done = litefuse.plan(path, tmp_path / "out.tflite")
    assert done.written is not None
    assert read(tmp_path / "out.tflite").subgraphs[0].outputs
    with pytest.raises(OutputError, match="is the input itself"):
        litefuse.plan(path, path)
    before = path.read_bytes()
    for outputs in ({"csv": path}, {"plot": path}, {"csv": tmp_path / "new.tflite", "plot": path}):
        with pytest.raises(OutputError, match="is the input itself"):
            litefuse.plan(path, **outputs)
    with pytest.raises(OutputError, match="two outputs would be written to this file"):
        litefuse.plan(path, tmp_path / "a", csv=tmp_path / "a")
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.tflite", "out.tflite"]
    with pytest.raises(LitefuseError, match="only TFLM reads memory plans"):
        litefuse.plan(path, tmp_path / "out.tflite", runtime="tflite")


def test_what_a_conversion_for_tflm_leaves_out(tmp_path: Path) -> None:
    """GELU is an operator that TFLM lacks: its spelling stays."""
    b = Builder()
    x = b.input("x", [1, 16])
    inner = b.op(
        Op.MUL, [x, b.op(Op.ADD, [b.constant("one", 1.0), b.op(Op.TANH, [b.op(Op.MUL, [x, b.constant("c", 0.8)])])])]
    )
    cube = b.op(Op.MUL, [b.op(Op.MUL, [x, x]), x])
    argument = b.op(
        Op.MUL, [b.op(Op.ADD, [x, b.op(Op.MUL, [cube, b.constant("k", 0.044715)])]), b.constant("s", 0.7978845608)]
    )
    gate = b.op(Op.ADD, [b.op(Op.TANH, [argument]), b.constant("one2", 1.0)])
    gelu = b.op(Op.MUL, [b.op(Op.MUL, [x, b.constant("half", 0.5)]), gate])
    model = b.model([gelu, inner])
    assert "gelu" in litefuse.convert(model, check=False).fusions.counts()
    done = litefuse.convert(model, target="tflm")
    assert "gelu" not in done.fusions.counts()
    assert any("gelu was not used" in note for note in done.fusions.notes)


def test_unknown_target() -> None:
    with pytest.raises(LitefuseError, match="there is no target `hexagon`"):
        litefuse.convert(chain(), target="hexagon")
