"""The documentation: links lead somewhere, the site has every page, and what is shown as Python is Python that runs.

That generated pages are up to date is tested in test_cli.py.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from litefuse.cli import litefuse

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def by_name(path: Path) -> str:
    return path.name


def prose(text: str) -> str:
    """A page without its blocks of code and its code within lines, in which brackets are no links."""
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "``", FENCED.sub("", text))


def links(text: str) -> list[str]:
    """Where the links of a page lead, but for those to other hosts."""
    # Link texts may be code, which `prose` leaves as a pair of quotes.
    found = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(text))
    return [target for target in found if not re.match(r"https?://", target)]


@cache
def anchors(text: str) -> set[str]:
    """The names that GitHub gives the headings of a page: repeated ones are numbered."""
    seen: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", FENCED.sub("", text), re.M):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def broken(page: Path, text: str) -> list[str]:
    """The links of a page to files or headings that are not there."""
    bad = []
    for target in links(text):
        file, _, anchor = target.partition("#")
        other = page.parent / file if file else page
        if not other.exists() or (anchor and anchor not in anchors(other.read_text(encoding="utf-8"))):
            bad.append(target)
    return bad


def python(page: Path) -> list[str]:
    return [code for language, code in FENCED.findall(page.read_text(encoding="utf-8")) if language == "python"]


def test_what_the_checks_of_links_see() -> None:
    text = "# A `b`, c-d!\n\n## Twice\n\n## Twice\n\n```\n# no heading\n[no](link)\n```\n\n"
    assert anchors(text) == {"a-b-c-d", "twice", "twice-1"}
    page = DOCS / "none.md"
    assert broken(page, f"{text}[`x`](nowhere.md), `[y](no.md)`, [z](https://x.y/z.md), [up](../README.md)") == [
        "nowhere.md"
    ]
    assert broken(DOCS / "cli.md", "[a](#exit-codes) [b](#exit) [c](rules.md#no-such-rule) [d](rules.md#gelu)") == [
        "#exit",
        "rules.md#no-such-rule",
    ]


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES[1:], ids=by_name)
def test_pages_link_to_pages_only(page: Path) -> None:
    """The site consists of docs/ alone, so that a link to elsewhere in the repository would be broken there."""
    assert [link for link in links(page.read_text(encoding="utf-8")) if link.startswith(("..", "/"))] == []


def test_every_page_is_on_the_site_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    assert sorted(re.findall(r": ([\w-]+\.md)$", navigation, re.M)) == [page.name for page in PAGES[1:]]


def test_every_page_is_one_page_about_one_thing() -> None:
    titles = [re.findall(r"^# (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.M) for page in PAGES[1:]]
    assert [len(found) for found in titles] == [1] * len(titles)
    assert len({found[0] for found in titles}) == len(titles)


def test_lists_and_tables_begin_behind_a_blank_line() -> None:
    """GitHub needs none before a list, but the site's Markdown does."""
    for page in PAGES[1:]:
        before = ""
        for line in FENCED.sub("", page.read_text(encoding="utf-8")).splitlines():
            first = re.match(r"[-*] |\d+\. |\|", line)
            if first and before and not before.startswith((first[0][0], " ")):
                assert re.match(r"\d+\. ", before), f"{page.name}: {line}"
            before = line


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_python_compiles(page: Path) -> None:
    for code in python(page):
        # The reference shows signatures, which are no statements.
        signature = page.stem == "api" and re.match(r"\w+\(", code)
        source = f"def {code.strip()}: ..." if signature else code
        compile(source, str(page), "exec")


def test_the_quick_start_prints_what_it_shows(tmp_path: Path) -> None:
    """All but the errors of the comparison, which depend on the machine."""
    spec = importlib.util.spec_from_file_location("make_model", ROOT / "examples" / "make_model.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.make().save(tmp_path / "unfused.tflite")
    ran = CliRunner().invoke(litefuse, ["convert", str(tmp_path / "unfused.tflite"), "--no-check"])
    assert ran.exit_code == 0, ran.output
    blocks = [code for _, code in FENCED.findall((DOCS / "index.md").read_text(encoding="utf-8"))]
    shown = next(code for code in blocks if "\nApplied\n" in code).partition("\nCheck\n")[0]
    printed = [line.split() for line in ran.output.splitlines()]
    lines = [line.split() for line in shown.splitlines() if line.strip() not in ("", "...")]
    assert len(lines) >= 8
    assert [line for line in lines if line not in printed] == []


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Puts the rule of writing-a-rule.md where the page's second block imports it from; returns that block."""
    rule, trial = python(DOCS / "writing-a-rule.md")
    (tmp_path / "negated_relu.py").write_text(rule, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "negated_relu", raising=False)
    return trial


def test_the_rule_that_is_written_works(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What the page says in comments and in the block without a language is what is printed."""
    exec(compile(written, "writing-a-rule.md", "exec"), {})
    counts, ok, refusal = [line.partition("  # ")[2] for line in written.splitlines() if "  # " in line]
    text = (DOCS / "writing-a-rule.md").read_text(encoding="utf-8")
    shown = next(code for language, code in FENCED.findall(text) if not language)
    assert capsys.readouterr().out.splitlines() == [counts, *shown.splitlines(), "", ok, refusal]


def test_the_rule_that_is_written_keeps_its_promise_and_is_new(written: str) -> None:
    from litefuse import check
    from litefuse.fusions import rules, run
    from litefuse.graph.text import from_text

    rule = importlib.import_module("negated_relu").NegatedRelu()
    before, after = from_text(rule.example), from_text(rule.example)
    assert run(before, rules()).applied == []
    assert run(after, [rule]).counts() == {rule.name: 1}
    assert run(after, [rule]).applied == []
    assert check(before, after, numerics=rule.numerics).ok
    integers = from_text(rule.example.replace("f32[2,8]", "i32[2,8]").replace("= RELU", ": i32[2,8] = RELU"))
    assert [refused.reason for refused in run(integers, [rule]).refused] == [
        "NEG and RELU of integers were not looked at"
    ]
