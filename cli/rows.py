"""Rows of a query as text: a table, JSON lines, or CSV. Bytes are text where they are UTF-8."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from rich.console import Console

from cli.output import Form, show_lines, show_rows
from cli.records import as_text, printable

MOST = 1000
"""Rows of a table on a terminal, which must be known before the first is shown."""


def write_rows(heads: Sequence[str], rows: Iterable[Sequence[Any]], form: Form) -> None:
    """Write rows to standard output, as they come where the form allows it."""
    if form is Form.json:
        show_lines((_object(heads, row) for row in rows), cut=False)
    elif form is Form.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows([_cell(value, "") for value in row] for row in rows)
    else:
        _table(heads, rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    console = Console()
    texts: Iterator[list[object]] = ([_cell(value, "-") for value in row] for row in rows)
    if not console.is_terminal:
        show_rows(heads, texts)
        return
    first = list(islice(texts, MOST))
    show_rows(heads, first, console=console)
    if next(texts, None) is not None:
        console.out(f"and more: these are the first {MOST:,} rows; --form json or csv gives all")


def _cell(value: Any, nothing: str) -> object:
    if value is None:
        return nothing
    if isinstance(value, bytes | bytearray):
        return printable(bytes(value))
    if isinstance(value, datetime):
        return _time(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return value if isinstance(value, str) else json.dumps(_plain(value))


def _object(heads: Sequence[str], row: Sequence[Any]) -> str:
    found: dict[str, Any] = {}
    for name, value in zip(heads, row, strict=True):
        if isinstance(value, bytes | bytearray):
            found |= as_text(name, bytes(value))
        else:
            found[name] = _plain(value)
    return json.dumps(found, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """What JSON can say of a value: structures of structures, bytes and times as text."""
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
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _time(value: datetime) -> str:
    """UTC; Spark hands out local time without saying so."""
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
