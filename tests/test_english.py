"""Plain English in sources and papers: nothing begins with a clause without a head, or has a refused word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.prose import prose_of
from tools.gen_man import ROOT

FOLDERS = [
    *("bruce_client", "cli", "dispatch", "ingest", "pipeline", "router", "spool", "status", "tools"),
    *sorted(f"tests/{path.parent.name}" for path in (ROOT / "tests").glob("*/__init__.py")),
    # This module plants offences.
    *sorted(f"tests/{path.name}" for path in (ROOT / "tests").glob("*.py") if path.name != "test_english.py"),
    *("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "man", "install"),
]
LEFT_OUT = {"__pycache__", "fuzz_corpus"}
"""Folders of files that are not written by hand."""
PICTURES = {".png", ".svg"}
CLAUSE = r"\b(?![^.?!]*\?)[^.?!]*)"
HEADLESS = re.compile(r"(?:\A|\n\s*\n|[.:;!?]\s)\s*((?:Who|Whoever|Whom|Whose|What|Whatever|Where)" + CLAUSE)
"""A clause without a head at the beginning of a text, a paragraph or a sentence; a question is none."""
SMALL = re.compile(r"\A\s*((?:who|whoever|what|whatever)" + CLAUSE)
"""The same at the beginning of a text that may begin with a small letter."""
REFUSED = re.compile(r"(?i)\b(nobody|anew|stands|lies|is\s+told|has\s+its\s+home|as\s+long\s+as)\b")


def offences(text: str, name: str) -> list[str]:
    """Line and words of each offence in the text of a file of this name."""
    found = list[tuple[int, str]]()
    for prose in prose_of(text, name):
        for pattern in (HEADLESS, REFUSED, SMALL) if prose.small else (HEADLESS, REFUSED):
            found += [(prose.line, " ".join(match[1].split())) for match in pattern.finditer(prose.text)]
    return [f"{line}: {words}" for line, words in sorted(found)]


def files_in(path: Path) -> list[Path]:
    """The files in a folder, or the one that `path` is, that have sentences."""
    if path.is_file():
        return [path]
    files = [one for one in sorted(path.rglob("*")) if one.is_file() and not LEFT_OUT & {*one.parts}]
    return [one for one in files if one.suffix not in PICTURES]


@pytest.mark.parametrize("folder", FOLDERS)
def test_it_is_plain(folder: str) -> None:
    """No file has an offence; each one that is found names its file and line."""
    found = {path: offences(path.read_text(encoding="utf-8"), path.name) for path in files_in(ROOT / folder)}
    assert [f"{path.relative_to(ROOT)}:{one}" for path, ones in found.items() for one in ones] == []


HEADS = ["Who", "Whoever", "Whom", "Whose", "What", "Whatever", "Where"]


@pytest.mark.parametrize("head", HEADS)
def test_a_headless_clause_is_found(head: str) -> None:
    """The check sees one in a docstring, a comment, a help text and a log message; not in a question."""
    source = (
        f'"""A log.\n\n{head} it has stays. {head} is it?"""\n# It ends. {head}\n# asks waits.\n'
        f'x = Option(help="{head} it is: there.")\nlog.info(f"{{x}}: {head} it is")\n'
    )
    clauses = [
        f"1: {head} it has stays",
        f"4: {head} asks waits",
        f"6: {head} it is: there",
        f"7: {head} it is",
    ]
    assert offences(source, "module.py") == clauses
    assert offences(f"#!/usr/bin/env python3\n{source}", "program") != []


@pytest.mark.parametrize("head", ["who", "whoever", "what", "whatever"])
def test_a_small_letter_hides_no_clause(head: str) -> None:
    """Strings may begin so, and may not; in the middle of one, in a docstring or a comment it is none."""
    source = (
        f'"""{head} it is"""\n# {head} it is\nx = "{head} it is", f"{head} {{x}} is", f"{{x}} {head} it is"\n'
    )
    assert offences(source, "module.py") == [f"3: {head} CODE is", f"3: {head} it is"]
    assert offences('x = "what is it?"', "module.py") == []


def test_a_refused_word_is_found() -> None:
    """The check sees one in a docstring, a comment and a string, over the end of a line too."""
    source = '"""It is\ntold."""\nx = "sent; nobody is"  # Nobody waits, as long\ny = "nobody"\n'
    assert offences(source, "module.py") == ["1: is told", "3: Nobody", "3: nobody"]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("page.md", "# It\n\nIt is sent.\n{}\n", 3),
        ("page.md", "- It is sent. `Nobody`\n- {}\n", 2),
        ("page.md", "| part | use |\n|---|---|\n| it | {} |\n", 3),
        ("bruce.8", ".SH NAME\n\\fBbruce\\fR\n.PP\n{}\n", 4),
        ("schema.json", '{{\n "properties": {{\n  "x": {{"description": "{}"}}}}}}\n', 3),
        ("bruce.service", "[Unit]\n# Here.\n# {}\nUser=x\n", 2),
        ("bruce.service", "[Unit]\nDescription={}\n", 2),
        ("postinst", "#!/bin/sh\nset -e\n    # {}\n", 3),
        ("postinst", "#!/bin/sh\necho '{}'\n", 2),
        ("baseline.c", "/* It is.\n *\n * {}\n */\n", 1),
        ("bench", '#!/usr/bin/env python3\n"""A bench."""\nprint("{}")\n', 3),
    ],
)
@pytest.mark.parametrize("sentence", ["What is sent stays.", "It stands there.", "It waits as long as that."])
def test_each_kind_of_file_is_read(name: str, text: str, line: int, sentence: str) -> None:
    """A sentence planted in it is found, at the line where its text begins; without it there is none."""
    assert [one.split(":")[0] for one in offences(text.format(sentence), name)] == [str(line)]
    assert offences(text.format("It is sent."), name) == []


def test_code_is_no_sentence() -> None:
    """Blocks of code in a page and in a manual, inline code, and a single word are not read."""
    assert offences("A user:\n\n    nobody stands\n\n```\nWhat is sent\n```\n`nobody`\n", "page.md") == []
    assert offences(".nf\nwhat stands here\n.fi\n\\fBnobody\\fR\n", "bruce.8") == []


def test_the_heads_of_columns_are_read() -> None:
    """A column that is called by a clause is found, and a cell that begins so is none."""
    assert offences("| what it does | use |\n|---|---|\n| what it is | x |\n", "page.md") == [
        "1: what it does"
    ]
