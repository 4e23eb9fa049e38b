"""Plain English: no sentence begins with a clause without a head, and no docstring has a refused word."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING

import pytest

from tools.gen_man import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = [
    *("bruce_client", "cli", "dispatch", "ingest", "pipeline", "router", "spool", "status", "tools"),
    *sorted(f"tests/{path.parent.name}" for path in (ROOT / "tests").glob("*/__init__.py")),
    *sorted(f"tests/{path.name}" for path in (ROOT / "tests").glob("*.py")),
]
HEADLESS = re.compile(
    r"(?:\A|\n\s*\n|[.:;!?]\s)\s*((?:Who|Whoever|Whom|Whose|What|Whatever|Where)\b(?![^.?!]*\?)[^.?!]*)"
)
"""A clause without a head at the beginning of a text, a paragraph or a sentence; a question is none."""
REFUSED = re.compile(r"(?i)\b(nobody|anew|stands|lies|is\s+told|has\s+its\s+home|as\s+long\s+as)\b")


def offences(source: str) -> list[str]:
    """Line and words of each offence in a module.

    Headless clauses are refused in docstrings, comments, and other strings of several words, such as help
    texts and log messages; refused words in docstrings and comments alone.
    """
    tree = ast.parse(source)
    found = [(line, match[1]) for line, text in _strings(tree) for match in HEADLESS.finditer(text)]
    found += [(line, match[1]) for line, text in _docstrings(tree) for match in REFUSED.finditer(text)]
    for line, text in _comments(source):
        found += [(line, match[1]) for one in (HEADLESS, REFUSED) for match in one.finditer(text)]
    return [f"{line}: {' '.join(words.split())}" for line, words in sorted(found)]


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, those of fields and constants among them."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each string of several words; a docstring is one."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if " " in text:
                yield node.lineno, text


def _comments(source: str) -> list[tuple[int, str]]:
    """First line and text of each comment; consecutive lines of the same column are one."""
    found, above = list[tuple[int, str]](), (-1, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            first, before = found.pop() if above == (row - 1, column) else (row, "")
            found.append((first, f"{before}\n{token.string.lstrip('#').strip()}".lstrip()))
            above = row, column
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_it_is_plain(package: str) -> None:
    """No module has an offence; each one that is found names its file and line."""
    path = ROOT / package
    modules = [path] if path.is_file() else sorted(path.rglob("*.py"))
    found = {module: offences(module.read_text(encoding="utf-8")) for module in modules}
    assert [f"{module.relative_to(ROOT)}:{one}" for module, ones in found.items() for one in ones] == []


@pytest.mark.parametrize("head", ["Who", "Whoever", "Whom", "Whose", "What", "Whatever", "Where"])
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
    assert offences(source) == clauses


def test_a_refused_word_is_found() -> None:
    """The check sees one in a docstring and a comment, over the end of a line too; strings may have it."""
    source = '"""It is\ntold."""\nx = "nobody is"  # Nobody waits, as long\n'
    assert offences(source) == ["1: is told", "3: Nobody"]
