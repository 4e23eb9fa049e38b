"""Text in the form of manual pages: the few requests of man(7) that ours need."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable


def escape(text: str) -> str:
    """`text` escaped so that roff prints it unchanged, with hyphens that can be copied from the page."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def inline(text: str) -> str:
    """Prose: text in backticks becomes bold, runs of white space one blank."""
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fR", escape(" ".join(text.split())))


def title(name: str, section: int, release: str) -> str:
    """The head of a page. It has no date: a page changes with its source and not with the day."""
    return f'.TH {escape(name.upper())} {section} "" "{escape(release)}"\n'


def section(name: str, *parts: str) -> str:
    """A section and its content."""
    return f".SH {name}\n" + "".join(parts)


def subsection(name: str, *parts: str) -> str:
    """A subsection and its content."""
    return f'.SS "{escape(name)}"\n' + "".join(parts)


def paragraph(text: str) -> str:
    """A paragraph of prose."""
    return f".PP\n{inline(text)}\n"


def literal(text: str) -> str:
    """Lines that keep their breaks and blanks."""
    return f".PP\n.RS 4\n.nf\n{escape(textwrap.dedent(text).strip())}\n.fi\n.RE\n"


def items(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of terms, each with its explanation."""
    return "".join(f".TP\n\\fB{escape(term)}\\fR\n{inline(text)}\n" for term, text in pairs)


def document(docstring: str) -> str:
    """A docstring: its paragraphs, and its indented lines unchanged."""
    blocks = re.split(r"\n{2,}", inspect.cleandoc(docstring))
    return "".join(literal(text) if is_literal else paragraph(text) for is_literal, text in _joined(blocks))


def _joined(blocks: Iterable[str]) -> list[tuple[bool, str]]:
    """(is it literal, text), with consecutive literal blocks joined."""
    joined: list[tuple[bool, str]] = []
    for block in blocks:
        is_literal = block.startswith("    ")
        if is_literal and joined and joined[-1][0]:
            joined[-1] = (True, f"{joined[-1][1]}\n\n{block}")
        else:
            joined.append((is_literal, block))
    return joined
