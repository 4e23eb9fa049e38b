"""Sections of our Markdown in the form of manual pages: paragraphs, tables, lists."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.roff import inline, items, paragraph


def section_of(text: str, heading: str) -> str:
    """The text under a heading of the second level. Raises ValueError when there is no such heading."""
    _, found, rest = text.partition(f"\n## {heading}\n")
    if not found:
        raise ValueError(f"there is no section {heading!r}")
    return rest.partition("\n## ")[0].strip()


def as_roff(text: str) -> str:
    """Paragraphs, tables (a term and its sentence for each row) and lists."""
    return "".join(_block(block) for block in re.split(r"\n{2,}", text))


def _block(block: str) -> str:
    if block.startswith("|"):
        return items(_rows(block))
    if block.startswith("- "):
        points = re.split(r"^- ", block, flags=re.MULTILINE)[1:]
        return "".join(f".IP \\(bu 2\n{inline(_plain(point))}\n" for point in points)
    return paragraph(_plain(block))


def _rows(block: str) -> Iterator[tuple[str, str]]:
    """(first cell, the others behind their heads) of each row."""
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines())
    for first, *rest in rows:
        told = ", ".join(f"{head} {cell}" for head, cell in zip(heads[1:], rest, strict=True))
        yield first, _plain(f"{told[0].upper()}{told[1:]}.")


def _plain(text: str) -> str:
    """The text without Markdown's syntax: links become their words, emphasis becomes code's bold."""
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    return re.sub(r"\*\*([^*]+)\*\*", r"`\1`", text)
