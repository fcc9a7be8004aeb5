"""The packing problem and its CSV format."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litefuse.arena.problem import Buffer, Problem, ProblemError, aligned, read_csv, write_csv
from litefuse.errors import OutputError

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=5)
BUFFERS = st.lists(
    st.builds(
        lambda name, lower, duration, size: Buffer(name, lower, lower + duration, size),
        TEXT,
        st.integers(-(2**70), 2**70),
        st.integers(1, 2**70),
        st.integers(0, 2**70),
    ),
    max_size=8,
    unique_by=lambda buffer: buffer.id,
)


@settings(deadline=None)
@given(BUFFERS)
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, buffers: list[Buffer]) -> None:
    path = tmp_path_factory.getbasetemp() / "problem.csv"
    write_csv(Problem(buffers), path)
    assert read_csv(path) == Problem(buffers)
    write_csv(Problem(buffers), path, {buffer.id: 64 for buffer in buffers})
    assert read_csv(path) == Problem(buffers)


def test_the_format(tmp_path: Path) -> None:
    path = tmp_path / "problem.csv"
    write_csv(Problem([Buffer("a", 0, 3, 4), Buffer("b", 3, 9, 8)]), path, {"a": 0, "b": 16})
    assert path.read_text() == "id,lower,upper,size,offset\na,0,3,4,0\nb,3,9,8,16\n"


def test_optional_columns_any_order_blank_lines_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "problem.csv"
    path.write_bytes(b"\xef\xbb\xbfsize, upper,lower,id,alignment,hint\r\n4,3,0,a,1,-1\r\n\r\n8,9,3,b,,\r\n")
    assert read_csv(path).buffers == [Buffer("a", 0, 3, 4), Buffer("b", 3, 9, 8)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: the header must be"),
        ("id,lower,upper\na,0,1\n", "line 1: the header must be"),
        ("id,lower,upper,size,colour\n", "line 1: the header must be"),
        ("id,lower,upper,size,size\n", "line 1: the header must be"),
        ("id,lower,upper,size\na,0,1,4\nb,0,1\n", "line 3: 3 fields, but the header names 4"),
        ("id,lower,upper,size\na,0,1,4\nb,0,1,x\n", "line 3: size is 'x', which is no integer"),
        ("id,lower,upper,size\na,0,1," + "9" * 5000 + "\n", "line 2: size is '9999"),
        ("id,lower,upper,size\na,0,1,1.5\n", "line 2: size is '1.5'"),
        ("id,lower,upper,size\na,5,5,4\n", "line 2: buffer a: it lives from 5 until before 5"),
        ("id,lower,upper,size\na,0,1,-4\n", "line 2: buffer a: its size is -4"),
        ("id,lower,upper,size\na,0,1,4\nb,0,1,4\na,2,3,4\n", "line 4: buffer a is in line 2 already"),
        ("id,lower,upper,size,alignment\na,0,1,4,1\nb,0,1,4,8\n", "line 3: an alignment of its own"),
        ('id,lower,upper,size\n"a,0,1,4\n', "unexpected end of data"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "problem.csv"
    path.write_text(content)
    with pytest.raises(ProblemError) as caught:
        read_csv(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert caught.value.exit_code == 3


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="No such file"):
        read_csv(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"id,lower,upper,size\n\xff\xfe\x00")
    with pytest.raises(ProblemError, match="no text file in UTF-8"):
        read_csv(tmp_path / "binary.csv")
    with pytest.raises(OutputError):
        write_csv(Problem([]), tmp_path / "absent" / "problem.csv")


def test_impossible_problems_are_refused() -> None:
    with pytest.raises(ProblemError, match="lives from 3 until before 2"):
        Problem([Buffer("a", 3, 2, 1)])
    with pytest.raises(ProblemError, match="its size is -1"):
        Problem([Buffer("a", 0, 1, -1)])
    with pytest.raises(ProblemError, match="there twice"):
        Problem([Buffer("a", 0, 1, 1), Buffer("a", 0, 1, 1)])


@settings(deadline=None)
@given(BUFFERS, st.sampled_from([1, 3, 16, 64]))
def test_lower_bound_is_the_most_live_bytes(buffers: list[Buffer], alignment: int) -> None:
    expected = max(
        (
            sum(aligned(b.size, alignment) for b in buffers if b.lower <= time < b.upper)
            for time in (buffer.lower for buffer in buffers)
        ),
        default=0,
    )
    assert Problem(buffers).lower_bound(alignment) == expected


def test_aligned() -> None:
    assert [aligned(size, 16) for size in (0, 1, 16, 17)] == [0, 16, 16, 32]


def test_numbers_that_are_too_long_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text(f"id,lower,upper,size\na,0,1,{'9' * 4300}\n")
    with pytest.raises(ProblemError, match=r"line 2: size is '9{40}'... of 4300 characters, which is too long"):
        read_csv(path)


def test_a_file_is_replaced_only_when_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    problem = Problem([Buffer("a", 0, 1, 4), Buffer("b", 0, 1, 4)])
    write_csv(problem, path)
    before = path.read_bytes()
    with pytest.raises(KeyError):
        write_csv(problem, path, {"a": 0})
    assert path.read_bytes() == before
    write_csv(problem, path, {"a": 0, "b": 4})
    assert path.read_text().endswith("a,0,1,4,0\nb,0,1,4,4\n")
    assert list(tmp_path.iterdir()) == [path]
