"""What commands write: tables for people, plain columns for pipes, JSON for programs. The only Console.

Results go to standard output, complaints to standard error. Colour and boxes are for terminals: what is
piped is plain text, one row a line, its columns separated by tabs.

A JSON document has a `version`, which changes when a key goes or means something else; keys may be added.
Objects that stand one on a line have none: of their keys none goes. Times are in UTC, numbers are whole
unless they are seconds or rates, and null is what is not known, or is not there.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from spool.finding import Finding, Severity

if TYPE_CHECKING:
    from rich.console import Console

    from spool.examination import Totals  # it brings NumPy along

# Rich takes as long to load as all that a pipe needs of this, so it is imported where a terminal is.

NOTHING = "-"
"""What stands in a table where there is no value."""
_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE)
_WORD = 8
"""Cells of the word before a sentence."""


class Form(StrEnum):
    """How rows are written."""

    table = "table"
    json = "json"
    csv = "csv"


def show_json(value: object) -> None:
    """One JSON document, indented for people."""
    print(json.dumps(value, indent=2))


def show_rows(
    heads: Sequence[str], rows: Iterable[Sequence[object]], *, console: Console | None = None
) -> None:
    """A table on a terminal, tab-separated columns without heads elsewhere. Numbers stand to the right.

    Where a row is wider than the terminal, each row is a paragraph with a line for each head: no number is
    cut.
    """
    if (console := terminal(console)) is None or not console.is_terminal:
        for row in rows:
            print(*row, sep="\t", file=console.file if console else None)
        return
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    listed = [list(row) for row in rows]
    if _width(heads, listed) > console.width:
        _show_paragraphs(heads, listed, console)
        return
    table = Table(box=None, pad_edge=False)
    for index, head in enumerate(heads):
        numbers = all(isinstance(row[index], int | float) or row[index] == NOTHING for row in listed)
        table.add_column(head, justify="right" if numbers else "left")
    for row in listed:
        # Text, not str: a topic's name is data and must not be read as markup.
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(table)


def room_beside(
    heads: Sequence[str], rows: Sequence[Sequence[object]], most: int, *, console: Console | None = None
) -> int:
    """Cells for one more column of a table, `most` at most; of no terminal it is not asked how wide it is."""
    console = terminal(console)
    left = console.width - _width(heads, rows) - 2 if console and console.is_terminal else most
    return max(1, min(left, most))


def _width(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
    """Of a table, two columns being two cells apart."""
    from rich.cells import cell_len  # noqa: PLC0415

    texts = [heads, *rows]
    widths = [max(cell_len(str(row[index])) for row in texts) for index in range(len(heads))]
    return sum(widths) + 2 * (len(widths) - 1)


def _show_paragraphs(heads: Sequence[str], rows: Sequence[Sequence[object]], console: Console) -> None:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    for at, row in enumerate(rows):
        if at:
            console.print()
        lines = Table(box=None, pad_edge=False, show_header=False)
        lines.add_column(no_wrap=True)
        lines.add_column(overflow="fold")
        for head, cell in zip(heads, row, strict=True):
            lines.add_row(Text(head), Text(str(cell)))
        console.print(lines)


def show_lines(lines: Iterable[str], *, cut: bool, console: Console | None = None) -> None:
    """Lines as they come; `cut` shortens them to the width of a terminal."""
    if (console := terminal(console)) is None or not cut or not console.is_terminal:
        for line in lines:
            print(line, file=console.file if console else None)
        return
    from rich.cells import set_cell_size  # noqa: PLC0415

    for line in lines:
        print(set_cell_size(line, console.width).rstrip(), file=console.file)


def show_sentences(rows: Iterable[tuple[str, str]], *, console: Console | None = None) -> None:
    """A word and a sentence a line; on a terminal the sentence goes on below itself."""
    if (console := terminal(console)) is None or not console.is_terminal:
        for row in rows:
            print(*row, sep="\t", file=console.file if console else None)
        return
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    for word, sentence in rows:
        line = Table(box=None, pad_edge=False, show_header=False)
        line.add_column(min_width=_WORD)
        line.add_column(overflow="fold")
        line.add_row(Text(word), Text(sentence))
        console.print(line)


def say(text: str) -> None:
    """Plain text on standard output, on lines of its own."""
    print(text.removesuffix("\n"))


def terminal(console: Console | None = None) -> Console | None:
    """This console, else that of standard output; None where that is no terminal."""
    if console is None and not sys.stdout.isatty():
        return None
    from rich.console import Console  # noqa: PLC0415

    return console or Console()


def error_console() -> Console:
    """Where progress is shown, so that it never mixes with results."""
    from rich.console import Console  # noqa: PLC0415

    return Console(stderr=True)


def show_findings(
    findings: Iterable[Finding], totals: Totals, seconds: float, *, console: Console | None = None
) -> None:
    """What a check found, and how much it looked at."""
    console = terminal(console)
    heads = ("severity", "kind", "file", "byte", "what")
    rows = [(f.severity.value, f.kind.value, str(f.path), f.offset, f.sentence) for f in findings]
    show_rows(heads, rows, console=console)
    if rows and console and console.is_terminal:
        console.print()
    damaged = sum(row[0] == Severity.DAMAGE.value for row in rows)
    looked = (
        f"{totals.segments:,} segments, {totals.messages:,} messages, {totals.bytes / (1 << 20):,.1f} MiB"
    )
    said = f"{damaged or 'no'} damage: {looked} verified in {seconds:.1f} s"
    print(said, file=console.file if console else None)


def is_of_output(error: OSError) -> bool:
    """Whether it is what was printed that could not be written: such an error names no file."""
    return error.filename is None and error.errno in _OUTPUT


def complain(sentence: str) -> None:
    """One sentence on standard error."""
    print(sentence, file=sys.stderr)
