"""Output: for people on a terminal, for programs in a pipe."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from cli.output import complain, show_json, show_rows

ROWS = [("clicks", 12), ("[red]views[/red]", 3456)]


def shown(*, terminal: bool) -> str:
    """What show_rows writes to a terminal, or elsewhere."""
    file = io.StringIO()
    show_rows(["topic", "messages"], ROWS, console=Console(file=file, force_terminal=terminal, width=60))
    return file.getvalue()


def test_piped_rows_are_plain() -> None:
    """In a pipe: one row a line, tabs between, no heads, no colour, and no markup read into the data."""
    assert shown(terminal=False) == "clicks\t12\n[red]views[/red]\t3456\n"


def test_terminal_rows_are_a_table() -> None:
    """On a terminal: heads, columns in line, numbers to the right, and no markup read into the data."""
    lines = shown(terminal=True).splitlines()
    assert "topic" in lines[0]
    assert "messages" in lines[0]
    assert lines[1].startswith("clicks ")
    assert lines[2].startswith("[red]views[/red]")
    assert lines[1].rstrip().endswith("  12")


def test_what_is_too_wide_is_paragraphs() -> None:
    """On a narrow terminal each row is one, a line a head, and nothing is cut; what just fits is a table."""

    def lines(width: int) -> list[list[str]]:
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, width=width)
        show_rows(("topic", "messages", "bytes"), [("clicks", 12, 34567), ("b", 3, 4)], console=console)
        return [line.split() for line in file.getvalue().splitlines()]

    first = [["topic", "clicks"], ["messages", "12"], ["bytes", "34567"]]
    assert lines(22) == [*first, [], ["topic", "b"], ["messages", "3"], ["bytes", "4"]]
    assert [line[-2:] for line in lines(23)][1:] == [["12", "34567"], ["3", "4"]]


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON goes to standard output and to nothing else."""
    show_json({"received": 3})
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"received": 3}, "")


def test_complaints_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """A complaint never mixes with results."""
    complain("the disk is full")
    assert capsys.readouterr() == ("", "the disk is full\n")
