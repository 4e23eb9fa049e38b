"""The output of commands: tables for people, columns for pipes, JSON for programs; bytes and times as text.

Results go to standard output, complaints to standard error. Colour and boxes are for terminals: what is
piped is plain text, one row a line, its columns separated by tabs.

A JSON document has a `version`, which changes when a key goes or means something else; keys may be added.
Objects that are printed one a line have no version: none of their keys goes. Times are in UTC, numbers are
whole unless they are seconds or rates, and null means not known, or not there.
"""

from __future__ import annotations

import base64
import csv
import errno
import json
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any

from spool.fsck.finding import Finding, Severity
from spool.words import CONTROLS, MOST_TOPIC, clipped, counted, size_in_words, utc

if TYPE_CHECKING:
    from rich.console import Console

    from spool.fsck.examination import Totals  # it brings NumPy along
    from spool.read.selection import TopicCount

# Rich takes as long to load as all that a pipe needs of this module, so only terminals import it.

NOTHING = "-"
"""The cell of a table that has no value."""
FILE = "file"
"""The head of a column of file names."""
_MORE = "…"
_LEAST_CELLS = 10
"""A column is not cut below this."""
MOST_ROWS = 1000
"""Rows of a query in a table on a terminal: all must be known before the first is shown."""
_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE)
_WORD = 8
"""Cells of the word before a sentence."""


class Amount(str):
    """Text that a table aligns as a number: a size with its unit."""

    __slots__ = ()


class Form(StrEnum):
    """How rows are written."""

    table = "table"
    json = "json"
    csv = "csv"


def show_json(value: object) -> None:
    """One JSON document, indented for people."""
    print(json.dumps(value, indent=2))


def show_rows(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    clip: Collection[str] = (),
    fold: Collection[str] = (),
    spare: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """A table on a terminal, tab-separated columns without heads elsewhere. Numbers are aligned to the right.

    On a terminal that is too narrow, the columns of `clip` are cut (FILE at its beginning), those of `fold`
    go on below themselves, and those of `spare` are left out, the first one first. If that is not enough,
    each row is a paragraph with a line for each head: no number is cut.
    """
    if (console := terminal(console)) is None or not console.is_terminal:
        for row in rows:
            print(*row, sep="\t", file=console.file if console else None)
        return
    listed = [list(row) for row in rows]
    widths = _widths(heads, listed)
    flexible = {index for index, head in enumerate(heads) if head in {*clip, *fold}}
    for left_out in (*spare, None):
        if _fit(widths, flexible, console.width):
            break
        if left_out is not None:
            widths.pop(heads.index(left_out), None)
    else:
        _show_paragraphs(heads, listed, console)
        return
    _show_table(heads, listed, widths, {heads.index(head) for head in clip}, console)


def _fit(widths: dict[int, int], flexible: Collection[int], most: int) -> bool:
    """Narrow the flexible columns until a table is as wide as the terminal; whether that is enough."""
    room = most - 2 * (len(widths) - 1)
    own = {index: min(width, room) if index in flexible else width for index, width in widths.items()}
    least = {index: min(width, _LEAST_CELLS) if index in flexible else width for index, width in own.items()}
    if sum(least.values()) > room:
        return False
    while sum(own.values()) > room:
        widest = max((index for index in own if own[index] > least[index]), key=own.__getitem__)
        own[widest] -= 1
    widths.update(own)
    return True


def _show_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    widths: dict[int, int],
    clip: Collection[int],
    console: Console,
) -> None:
    """The columns that have a width, of that width."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for index, width in widths.items():
        numbers = all(isinstance(row[index], int | float | Amount) or row[index] == NOTHING for row in rows)
        table.add_column(
            heads[index],
            justify="right" if numbers else "left",
            width=width,
            no_wrap=index in clip,
            overflow="fold",
        )
    for row in rows:
        cells = (
            _cut(heads[index], str(row[index]), width) if index in clip else str(row[index])
            for index, width in widths.items()
        )
        # Text, not str: a topic's name is data and must not be read as markup.
        table.add_row(*map(Text, cells))
    console.print(table)


def _cut(head: str, text: str, cells: int) -> str:
    """Of a file the end, of all else the beginning."""
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415

    if cell_len(text) <= cells:
        return text
    return _MORE + text[1 - cells :] if head == FILE else set_cell_size(text, cells - 1).rstrip() + _MORE


def room_beside(
    heads: Sequence[str], rows: Sequence[Sequence[object]], most: int, *, console: Console | None = None
) -> int:
    """Cells for one more column of a table, `most` at most; of no terminal it is not asked how wide it is."""
    console = terminal(console)
    if not (console and console.is_terminal):
        return most
    widths = _widths(heads, rows).values()
    return max(1, min(console.width - sum(widths) - 2 * len(widths), most))


def _widths(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> dict[int, int]:
    """By column, the cells of its widest text."""
    from rich.cells import cell_len  # noqa: PLC0415

    texts = [heads, *rows]
    return {index: max(cell_len(str(row[index])) for row in texts) for index in range(len(heads))}


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


def size_cell(size: float) -> object:
    """Bytes as a cell of a table: with the unit that fits on a terminal, in MiB in a pipe."""
    return Amount(size_in_words(size)) if terminal() else round(size / (1 << 20), 1)


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
    """The console of progress bars, on standard error: they never mix with results."""
    from rich.console import Console  # noqa: PLC0415

    return Console(stderr=True)


def show_findings(
    findings: Iterable[Finding], totals: Totals, seconds: float, *, console: Console | None = None
) -> None:
    """Show the findings of a check, and how much it looked at."""
    console = terminal(console)
    heads = ("severity", "kind", FILE, "byte", "what")
    rows = [(f.severity.value, f.kind.value, str(f.path), f.offset, f.sentence) for f in findings]
    if rows:
        show_rows(heads, rows, clip=(FILE,), fold=("what",), console=console)
        if console and console.is_terminal:
            console.print()
    damaged = sum(row[0] == Severity.DAMAGE.value for row in rows)
    looked = ", ".join(
        (
            counted(totals.segments, "segment"),
            counted(totals.messages, "message"),
            size_in_words(totals.bytes),
        )
    )
    verdict = counted(damaged, "damaged place") if damaged else "no damage"
    said = f"{verdict}: {looked} verified in {seconds:.1f} s"
    print(said, file=console.file if console else None)


def is_of_output(error: OSError) -> bool:
    """Whether it is what was printed that could not be written: such an error names no file."""
    return error.filename is None and error.errno in _OUTPUT


def complain(sentence: str) -> None:
    """One sentence on standard error."""
    print(sentence, file=sys.stderr)


def write_rows(heads: Sequence[str], rows: Iterable[Sequence[Any]], form: Form) -> None:
    """Write the rows of a query to standard output, as they come where the form allows it.

    Bytes are text where they are UTF-8. Raises BadArgument where objects cannot have all columns.
    """
    if form is Form.json:
        if twice := next((head for head in heads if heads.count(head) > 1), None):
            from cli.terminal.errors import BadArgument  # noqa: PLC0415  (it brings all packages along)

            raise BadArgument(f"two columns are called {twice}: name one with AS, or ask for --form csv")
        show_lines((_object(heads, row) for row in rows), cut=False)
    elif form is Form.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows([_cell(value, form) for value in row] for row in rows)
    else:
        _table(heads, rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    from rich.console import Console  # noqa: PLC0415

    console = Console()
    texts: Iterator[list[object]] = ([_cell(value, Form.table) for value in row] for row in rows)
    if not console.is_terminal:
        show_rows(heads, texts)
        return
    first = list(islice(texts, MOST_ROWS))
    show_rows(heads, first, clip={"topic"}.intersection(heads), console=console)
    if next(texts, None) is not None:
        console.out(f"and more: these are the first {MOST_ROWS:,} rows; --form json or csv gives all")


def _cell(value: Any, form: Form) -> object:
    """Text is quoted in CSV; a table has it on one line, where it commands no terminal."""
    if value is None:
        return NOTHING if form is Form.table else ""
    if isinstance(value, bytes | bytearray):
        return printable(bytes(value))
    if isinstance(value, datetime):
        return _time(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        return printable(value) if form is Form.table else value
    return json.dumps(_plain(value))


def _object(heads: Sequence[str], row: Sequence[Any]) -> str:
    found: dict[str, Any] = {}
    for name, value in zip(heads, row, strict=True):
        if isinstance(value, bytes | bytearray):
            found |= as_text(name, bytes(value))
        else:
            found[name] = _plain(value)
    return json.dumps(found, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value as JSON can express it: bytes and times as text, in nested structures, too."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if hasattr(value, "asDict"):  # a Row, which is a tuple, too
        return _plain(value.asDict())
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes | bytearray):
        return printable(bytes(value))
    if isinstance(value, datetime):
        return _time(value)
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no such number.
        value = None
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _time(value: datetime) -> str:
    """UTC; Spark hands out local time without saying so."""
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def printable(data: bytes | str) -> str:
    """Text, or bytes as text, that stays on its line and commands no terminal."""
    text = data if isinstance(data, str) else data.decode("utf-8", "backslashreplace")
    return text.translate(CONTROLS)


def topic_name(name: bytes | str) -> str:
    """A topic as people read it; what is longer than any of Kafka's is cut."""
    return clipped(printable(name), MOST_TOPIC)


def topic_rows(counts: Iterable[TopicCount]) -> Iterator[tuple[str, int, str, str]]:
    """(topic, messages, first received, last received): topics that are shown alike are one row."""
    alike: dict[str, list[TopicCount]] = {}
    for count in counts:
        alike.setdefault(topic_name(count.topic), []).append(count)
    for name, same in alike.items():
        times = utc(min(one.first_ns for one in same)), utc(max(one.last_ns for one in same))
        yield name, sum(one.messages for one in same), *times


def as_text(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes under a name, or in base64 under another."""
    try:
        return {name: None if data is None else data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode("ascii")}


def as_utc(ns: int) -> str:
    """A time in ISO 8601, to the ns."""
    seconds, rest = divmod(ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
