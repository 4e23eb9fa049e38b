"""The sentences of a file: docstrings, strings and comments of sources, paragraphs and cells of papers."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_CODE = "CODE"
"""In the place of what is no sentence: inline code, a value in a string."""
_COMMENT = re.compile(r"#+(?!!)|//|/?\*+ ?")
"""Its beginning, in a line without leading blanks: of shell, units and Python; of C and JavaScript."""
_DESCRIBES = ("title", "description", "$comment")


class Prose(NamedTuple):
    """One text, and the line of the file where it begins."""

    line: int
    text: str
    small: bool = False
    """Whether it may begin a sentence with a small letter: a log line, a help text, the head of a column."""


def prose_of(text: str, name: str) -> Iterator[Prose]:
    """The prose in the text of a file of this name; a program without a suffix shows its language."""
    if name.endswith(".py") or re.match(r"#!.*\bpython", text):
        return _of_python(text)
    if name.endswith(".md"):
        return _of_markdown(text)
    if name.endswith(".json"):
        return _of_json(text)
    return _of_manual(text) if re.search(r"\.[1-8]\Z", name) else _of_script(text)


def _of_python(source: str) -> Iterator[Prose]:
    tree = ast.parse(source)
    docstrings = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    inner = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if node in docstrings:
                yield Prose(node.lineno, text)
            case ast.Constant(value=str(text)) if " " in text and node not in inner:
                yield Prose(node.lineno, text, small=True)
            case ast.JoinedStr():
                yield Prose(node.lineno, "".join(map(_part, node.values)), small=True)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    yield from _comments((*one.start, one.string) for one in tokens if one.type == tokenize.COMMENT)


def _part(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else _CODE


def _comments(comments: Iterable[tuple[int, int, str]]) -> Iterator[Prose]:
    """From (line, column, comment); comments of one column in consecutive lines are one text."""
    begun, above, texts = 0, (-1, 0), list[str]()
    for line, column, comment in comments:
        if above != (line - 1, column):
            yield Prose(begun, "\n".join(texts))
            begun, texts = line, []
        texts.append(_COMMENT.sub("", comment).strip())
        above = line, column
    yield Prose(begun, "\n".join(texts))


def _of_script(text: str) -> Iterator[Prose]:
    """Comments of a shell script, a unit, a configuration file, a C source; strings of other lines."""
    numbered = list(enumerate(text.splitlines(), 1))
    marked = [(line, len(one) - len(one.lstrip(" /")), one.strip()) for line, one in numbered]
    yield from _comments(one for one in marked if _COMMENT.match(one[2]))
    for line, one in numbered:
        if not _COMMENT.match(one.strip()):
            yield from (
                Prose(line, found[2], small=True) for found in re.finditer(r"(['\"])([^'\"]* .*?)\1", one)
            )
            yield from (Prose(line, found[1]) for found in re.finditer(r"^Description=(.*)", one))


def _of_json(text: str) -> Iterator[Prose]:
    """Of a schema, the strings that describe."""
    described = list[str]()

    def note(pairs: list[tuple[str, Any]]) -> None:
        described.extend(value for key, value in pairs if key in _DESCRIBES and isinstance(value, str))

    json.loads(text, object_pairs_hook=note)
    for one in described:
        at = text.index(json.dumps(one, ensure_ascii=False))
        yield Prose(text.count("\n", 0, at) + 1, one, small=True)


def _of_manual(text: str) -> Iterator[Prose]:
    """Of a page in roff: each line of text is a paragraph, or a cell; literal blocks are left out."""
    literal = False
    for line, one in enumerate(text.splitlines(), 1):
        literal = one == ".nf" or (literal and one != ".fi")
        if one.startswith(".") or literal:
            continue
        plain = re.sub(r"\\fB.*?\\fR", _CODE, one)
        yield Prose(line, re.sub(r"\\(f[BIR]|&)|\\(?=-)", "", plain), small=True)


def _of_markdown(text: str) -> Iterator[Prose]:
    """Paragraphs, items, headings and cells; blocks of code are left out."""
    begun, texts, fenced, blank = 0, list[str](), False, True
    lines = text.splitlines()
    for line, one in enumerate(lines, 1):
        fence = one.lstrip().startswith("```")
        fenced ^= fence
        code = fence or fenced or (one.startswith("    ") and blank and not texts)
        begins = not one.strip() or code or re.match(r"\s*([-*|#>]|\d+\.) ?", one)
        if begins and texts:
            yield Prose(begun, "\n".join(texts))
            texts = []
        blank = not one.strip() or (blank and code)
        if blank or code:
            continue
        plain = re.sub(r"`[^`]*`", _CODE, one)
        if plain.startswith("|"):
            head = line < len(lines) and lines[line].startswith("|-")
            yield from (Prose(line, cell.strip(), small=head) for cell in plain.strip("|").split("|"))
        else:
            begun = begun if texts else line
            texts.append(re.sub(r"^\s*([-*#>]+|\d+\.) +", "", plain))
    if texts:
        yield Prose(begun, "\n".join(texts))
