"""Output: for people on a terminal, for programs in a pipe."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime

import pytest
from rich.console import Console

from cli.terminal.errors import BadArgument
from cli.terminal.output import (
    FILE,
    Form,
    _cell,
    complain,
    printable,
    show_json,
    show_rows,
    topic_name,
    topic_rows,
    write_rows,
)
from spool.read.selection import TopicCount

ROWS = [("clicks", 12), ("[red]views[/red]", 3456)]


def shown(*, terminal: bool) -> str:
    """The output of show_rows to a terminal or elsewhere."""
    file = io.StringIO()
    show_rows(["topic", "messages"], ROWS, console=Console(file=file, force_terminal=terminal, width=60))
    return file.getvalue()


def test_piped_rows_are_plain() -> None:
    """In a pipe: one row per line, tabs between, no heads, no colour, and no markup read into the data."""
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
    """On a narrow terminal each row is a paragraph, a line for each head, uncut; rows that fit are tables."""

    def lines(width: int) -> list[list[str]]:
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, width=width)
        show_rows(("topic", "messages", "bytes"), [("clicks", 12, 34567), ("b", 3, 4)], console=console)
        return [line.split() for line in file.getvalue().splitlines()]

    first = [["topic", "clicks"], ["messages", "12"], ["bytes", "34567"]]
    assert lines(22) == [*first, [], ["topic", "b"], ["messages", "3"], ["bytes", "4"]]
    assert [line[-2:] for line in lines(23)][1:] == [["12", "34567"], ["3", "4"]]


def table(width: int, *, row: tuple[object, ...], **how: tuple[str, ...]) -> list[str]:
    """The lines of a table with a file, a topic, a number and a sentence."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None)
    show_rows((FILE, "topic", "messages", "what"), [row], console=console, **how)
    return [line.rstrip() for line in file.getvalue().splitlines()]


ROW = (f"{450560:020d}.sent", "t" * 32_767, 1_234_567, "bytes that hold no good frame; 11 messages are gone")
HOW = {"clip": (FILE, "topic"), "fold": ("what",)}


def test_columns_stay_columns() -> None:
    """On a narrow terminal names are cut, files at their beginning, and sentences go on below themselves."""
    lines = table(70, row=ROW, **HOW)
    assert all(len(line) <= 70 for line in lines)
    assert lines[0].split() == [FILE, "topic", "messages", "what"]
    assert "0560.sent " in lines[1]
    assert "ttt… " in lines[1]
    assert " 1234567 " in lines[1]
    assert (
        " ".join(" ".join(line.split()[at:]) for line, at in zip(lines[1:], [3, 0, 0, 0], strict=False))
        == ROW[3]
    )
    assert "…" not in "".join(table(200, row=(*ROW[:1], "clicks", *ROW[2:]), **HOW))


def test_columns_that_are_left_out() -> None:
    """If cutting is not enough, spare columns go, the first one first; then rows are paragraphs."""
    lines = table(40, row=ROW, spare=("messages", "topic"), **HOW)
    assert lines[0].split() == [FILE, "topic", "what"]
    assert table(26, row=ROW, spare=("messages", "topic"), **HOW)[0].split() == [FILE, "what"]
    paragraph = table(26, row=(*ROW[:1], "t", *ROW[2:]), **HOW)
    assert ["topic", "t"] in [line.split() for line in paragraph]


def test_a_pipe_has_all_columns() -> None:
    """Nothing is cut or left out where there is no terminal."""
    file = io.StringIO()
    show_rows((FILE, "topic"), [ROW[:2]], clip=(FILE, "topic"), spare=("topic",), console=Console(file=file))
    assert file.getvalue() == f"{ROW[0]}\t{ROW[1]}\n"


def test_a_topic_is_no_longer_than_one_of_kafka() -> None:
    """A topic of 32,767 bytes is cut, with control characters shown as text."""
    assert topic_name(b"clicks\x1b") == "clicks\\x1b"
    assert topic_name(b"t" * 32_767) == "t" * 248 + "…"


def test_topics_that_are_shown_alike_are_one_row() -> None:
    """Of names that are cut to the same, the sum, and the first and the last time; text stays on its line."""
    counts = [
        TopicCount("t" * 300, 2, 10**9, 2 * 10**9),
        TopicCount("a\x1b\tb\n", 1, 0, 0),
        TopicCount("t" * 301, 3, 0, 10**9),
    ]
    began = "1970-01-01T00:00:00Z"
    assert list(topic_rows(counts)) == [
        ("t" * 248 + "…", 5, began, "1970-01-01T00:00:02Z"),
        (r"a\x1b\tb\n", 1, began, began),
    ]


def test_a_cell_of_a_query() -> None:
    """In a table text stays on its line and commands no terminal; in CSV, which quotes it, it is as it is."""
    odd = "a\x1b[31m\tb\nc"
    assert _cell(odd, Form.table) == r"a\x1b[31m\tb\nc"
    assert _cell([odd], Form.table) == r'["a\u001b[31m\tb\nc"]'
    assert _cell(odd, Form.csv) == odd
    assert [_cell(None, form) for form in (Form.table, Form.csv)] == ["-", ""]
    assert _cell(b"\x1b", Form.csv) == r"\x1b"
    assert _cell(3, Form.table) == 3


def test_a_query_cuts_topics_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal a long topic is cut to its width, beside other columns; without such a column none is."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    write_rows(["topic", "n"], [("t" * 32_767, 12)], Form.table)
    write_rows(["name", "n"], [("t" * 60, 12)], Form.table)
    wide, paragraph = capsys.readouterr().out.split("name", 1)
    assert "t… " in wide
    assert len(wide) < 200
    assert "…" not in paragraph


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON goes to standard output and to nothing else."""
    show_json({"received": 3})
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"received": 3}, "")


def test_complaints_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """A complaint never mixes with results."""
    complain("the disk is full")
    assert capsys.readouterr() == ("", "the disk is full\n")


def test_printable() -> None:
    """Text stays text; terminal commands are shown as escapes."""
    assert printable("Grüße, 世界".encode()) == "Grüße, 世界"
    assert printable(b"\x00\x7f\xc2\x9b\x1b") == r"\x00\x7f\x9b\x1b"
    assert printable(b"\x80abc") == r"\x80abc"


OF_TYPES = [("a", b"text", datetime(2026, 1, 1).astimezone(), None), ("b", b"\xff\n", None, {"k": b"v"})]


def test_json_says_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """An object a row; bytes that are not UTF-8 are in base64, under a name that says so."""
    write_rows(["name", "data", "at", "more"], OF_TYPES, Form.json)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["name"], first["data"], first["more"]) == ("a", "text", None)
    assert first["at"].endswith("Z")
    assert second == {"name": "b", "data_base64": "/wo=", "at": None, "more": {"k": "v"}}


def test_csv_has_a_head_and_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    """A reader of CSV gets the values back; no byte of a message reaches the terminal as a command."""
    write_rows(["name", "data"], [("a,b", b"\x1b[1m"), ("c", None)], Form.csv)
    text = capsys.readouterr().out
    assert list(csv.reader(io.StringIO(text))) == [["name", "data"], ["a,b", "\\x1b[1m"], ["c", ""]]


def test_two_columns_of_a_name_are_no_object() -> None:
    """They are refused before a row is written; CSV has both."""
    with pytest.raises(BadArgument, match="two columns are called a"):
        write_rows(["a", "b", "a"], [(1, 2, 3)], Form.json)
    write_rows(["a", "b", "a"], [(1, 2, 3)], Form.csv)


def test_numbers_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    """They are null: a reader of JSON takes neither NaN nor Infinity."""
    write_rows(("a", "b", "c"), [(float("nan"), float("inf"), 0.5)], Form.json)
    assert capsys.readouterr().out == '{"a": null, "b": null, "c": 0.5}\n'
