"""Help and manual pages: complete, and current."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from cli import app
from cli.config.settings import TABLES
from tools.command_pages import commands
from tools.gen_man import PAGES, ROOT, stale
from tools.markdown import as_roff, section_of
from tools.roff import document, escape

COMMANDS = [
    pytest.param(called, command, id=called)
    for name, application in (("bruce", app.daemon), ("brucectl", app.control))
    for called, command in commands(typer.main.get_command(application), name)
]


def test_manual_pages_are_current() -> None:
    """man/ and completions/ hold what the sources say; `python -m tools.gen_man` writes them."""
    assert stale(ROOT) == []


@pytest.mark.parametrize("page", sorted((ROOT / "man").iterdir()), ids=lambda page: page.name)
def test_a_page_is_what_man_reads(page: Path) -> None:
    """No request that is not known, nothing that does not fit."""
    if not shutil.which("groff"):
        pytest.skip("there is no groff")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-z", "-Tutf8", "-Kutf8", page], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_the_page_of_the_guarantees_is_the_readme() -> None:
    """Every promise, and every limitation, that README.md names is in bruce(7)."""
    page = " ".join(PAGES["bruce.7"]().replace("\\-", "-").split())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for heading in ("Promises", "Limitations"):
        words = re.findall(r"[A-Za-z]{3,}", section_of(readme, heading))
        assert len(words) > 100
        assert [word for word in words if word not in page and word.capitalize() not in page] == []


@pytest.mark.parametrize(("called", "command"), COMMANDS)
def test_every_command_has_help_and_an_example(called: str, command: Any) -> None:
    """The help of each command ends in an example that calls it; each of its options is explained."""
    assert command.help
    heading, *lines = command.epilog.removeprefix("\b\n").splitlines()
    assert heading == "Examples:"
    assert any(called in line for line in lines)
    assert all(parameter.help for parameter in command.params)


def test_every_key_is_documented() -> None:
    """Each key that bruce.toml may have is in its manual page, with more than its name."""
    page = PAGES["bruce.toml.5"]()
    for keys in TABLES.values():
        for key in keys:
            _, _, text = page.partition(f".TP\n\\fB{key}\\fR\n")
            assert not text.startswith(" Accepts"), key
            assert "Default: " in text.partition("\n")[0], key


def test_the_traps_name_tests_that_exist() -> None:
    """Each of T1 to T48 has its row in docs/traps.md, and each test named there is one."""
    text = (ROOT / "docs/traps.md").read_text(encoding="utf-8")
    assert [int(n) for n in re.findall(r"^\| T(\d+) \|", text, re.MULTILINE)] == list(range(1, 49))
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        source = (ROOT / path).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in source, f"{path}::{name}"


def test_the_attacks_name_tests_that_exist() -> None:
    """Each attack has a test beside it that tried, and each of them is there."""
    text = (ROOT / "docs/attacks.md").read_text(encoding="utf-8")
    _, _, attacks = text.partition("| attacker | attempt | defence | tests |\n|---|---|---|---|\n")
    rows = [row for row in attacks.splitlines() if row.startswith("|")]
    assert len(rows) > 25
    for row in rows:
        tests = re.findall(r"`(tests/[\w/]+\.py)`", row.split("|")[4])
        assert tests, row
        assert [test for test in tests if not (ROOT / test).exists()] == [], row


PAPERS = [ROOT / name for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAPERS += sorted((ROOT / "docs").rglob("*.md"))
MOST_BYTES = {"README.md": 8 << 10, "DESIGN.md": 12 << 10, "CHANGELOG.md": 16 << 10}
OTHERS_MOST_BYTES = 10 << 10


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.relative_to(ROOT).as_posix())
def test_a_paper_is_short(paper: Path) -> None:
    """README at most 8 KB, DESIGN 12 KB, each page of docs/ 10 KB."""
    assert paper.stat().st_size <= MOST_BYTES.get(paper.name, OTHERS_MOST_BYTES)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(paper: Path) -> None:
    """Each relative link names a file, and where it has a fragment, a heading of that file."""
    for link in re.findall(r"\]\(([^)\s]+)\)", paper.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, fragment = link.partition("#")
        target = (paper.parent / name).resolve() if name else paper
        assert target.exists(), link
        assert not fragment or fragment in _anchors(target), link


def _anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as they are made of their words."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("paper", PAPERS[:3] + sorted((ROOT / "docs/design").iterdir()), ids=lambda p: p.name)
def test_files_that_papers_name_exist(paper: Path) -> None:
    """Each file and each module of ours that README, DESIGN, CONTRIBUTING or docs/design names is there."""
    text = paper.read_text(encoding="utf-8")
    packages = "bruce_client|cli|dispatch|ingest|pipeline|router|spool|status|tests|tools"
    for name in re.findall(rf"`((?:{packages})/[\w/]+\.py)", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(rf"`((?:{packages})(?:\.[a-z]\w*)+)`", text):
        path = ROOT.joinpath(*name.split("."))
        assert path.with_suffix(".py").exists() or path.is_dir() or _defines(path), name


def _defines(path: Path) -> bool:
    """Whether path's parent is a module with a name like path's."""
    module = path.parent.with_suffix(".py")
    return module.exists() and re.search(rf"\b{path.name}\b", module.read_text(encoding="utf-8")) is not None


def test_every_decision_is_listed() -> None:
    """docs/decisions/README.md names each page of its folder, and a page of docs/design leads to it."""
    folder = ROOT / "docs/decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    design = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/design").iterdir())
    for page in folder.glob("0*.md"):
        assert f"]({page.name})" in index
        assert f"](../decisions/{page.name})" in design, page.name


def test_help_starts_without_the_heavy_libraries() -> None:
    """`brucectl --help` imports none of the libraries that take long to load."""
    code = (
        "import sys, cli.app; cli.app.control(['--help'], standalone_mode=False);"
        "print(sorted({'numba', 'numpy', 'lmdb', 'confluent_kafka', 'pyspark'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_roff_keeps_text_as_it_is() -> None:
    """A line that begins with a dot is no request, a backslash no escape, a hyphen one that can be copied."""
    assert escape(".x \\ -y\n'z") == "\\&.x \\e \\-y\n\\&'z"


def test_indented_text_keeps_its_indentation() -> None:
    """A literal block loses its common indentation only, over blank lines too."""
    page = document("Prose of\ntwo lines.\n\n    a\n      b\n\n    c\n\nEnd.")
    assert page == ".PP\nProse of two lines.\n.PP\n.RS 4\n.nf\na\n  b\n\nc\n.fi\n.RE\n.PP\nEnd.\n"


def test_markdown_as_a_page() -> None:
    """Emphasis and code are bold, links their words, a table's row an item, a list's point one of its own."""
    page = as_roff("A **b** [c](d.md)\n`e`.\n\n| f | g | h |\n|---|---|---|\n| i | j | k |\n\n- l\n  m\n- .n")
    assert page == (
        ".PP\nA \\fBb\\fR c \\fBe\\fR.\n.TP\n\\fBi\\fR\nG j, h k.\n.IP \\(bu 2\nl m\n.IP \\(bu 2\n\\&.n\n"
    )
