"""The records that `brucectl inspect records` shows: which, and how."""

from __future__ import annotations

import base64
import time

import pytest

from cli.inspect.records import parse_span
from cli.terminal.errors import BadArgument
from spool.layout import Layout
from spool.read.files import FOR_EVER
from tests.cli.inspecting import ODD, inspect, lines


def test_records_as_json(layout: Layout) -> None:
    """One object per line, of the documented shape, without loss."""
    found = lines("--spool", layout.directory)
    assert found[0] == {
        "sequence": 0,
        "received": "2001-09-09T01:46:40.000000001Z",
        "topic": "t",
        "partition_key": None,
        "to_partition": None,
        "timestamp": 0,
        "key": None,
        "value": "0",
        "headers": [],
        "uid": 0,
        "pid": 0,
        "committed": None,
    }
    assert found[17] == {
        "sequence": 17,
        "received": "2001-09-09T01:47:40.000000000Z",
        "topic": "u",
        "partition_key": -7,
        "to_partition": None,
        "timestamp": -5,
        "key": "key",
        "value": "välue",
        "headers": [],
        "uid": 1000,
        "pid": 4711,
        "committed": None,
    }
    assert base64.b64decode(found[18]["value_base64"]) == base64.b64decode(found[18]["key_base64"]) == ODD
    assert base64.b64decode(found[19]["topic_base64"]) == b"odd\xff"
    assert (found[19]["value"], found[19]["key"]) == ("", None)
    assert "value" not in found[18]
    assert [one["sequence"] for one in found] == list(range(20))


def test_records_as_lines(layout: Layout) -> None:
    """One line of columns for each message; its content cannot command a terminal or break the line."""
    found = inspect("records", "--spool", layout.directory).stdout.splitlines()
    assert len(found) == 20
    received = "2001-09-09T01:47:40.000Z"
    assert found[17] == f"17\t{received}\tu\t-7\t-5\tkey\tvälue"
    odd = r"\xff\x00tab\tline\nescape\x1b[31m"
    assert found[18] == f"18\t{received}\tu\t-\t0\t{odd}\t{odd}"
    assert found[19].split("\t")[2] == r"odd\xff"


def test_without_values(layout: Layout) -> None:
    """`--no-values` shows the lengths of key and value."""
    (found,) = lines("--spool", layout.directory, "--no-values", "--from", 17, "--limit", 1)
    assert (found["key_bytes"], found["value_bytes"]) == (3, 6)
    assert not {"key", "value"} & found.keys()
    plain = inspect("records", "--spool", layout.directory, "--no-values", "--from", 17, "--limit", 1)
    assert plain.stdout.endswith("\tu\t-7\t-5\t3\t6\n")


@pytest.mark.parametrize(
    ("arguments", "sequences"),
    [
        (["--from", 5, "--to", 8], [5, 6, 7]),
        (["--topic", "u"], [17, 18]),
        (["--topic", "u", "--topic", "t", "--from", 16], [16, 17, 18]),
        (["--topic", "nobody"], []),
        (["--limit", 2], [0, 1]),
        (["--limit", 0], []),
        (["--from", "2001-09-09T01:47:00Z"], [17, 18, 19]),
        (["--to", "2001-09-09T01:46:41Z", "--from", 15], [15, 16]),
        (["--from", "-1h"], []),
        (["--from", 20], []),
        (["--from", 3, "--to", 3], []),
    ],
)
def test_which_records(layout: Layout, arguments: list[object], sequences: list[int]) -> None:
    """By sequence number, by time of reception, by topic, and up to a number."""
    assert [one["sequence"] for one in lines("--spool", layout.directory, *arguments)] == sequences


def test_places() -> None:
    """Sequence numbers, ISO 8601 with and without an offset, and ages."""
    now = 1_000_000 * 10**9
    span = parse_span("17", "1970-01-02T00:00:00Z", ["a", "b"], now_ns=now)
    assert (span.first, span.end, span.from_ns, span.to_ns) == (17, FOR_EVER, 0, 86400 * 10**9)
    assert span.topics == {b"a", b"b"}
    assert parse_span("-30m", "-10s", now_ns=now).from_ns == now - 1800 * 10**9
    assert parse_span("1970-01-02T01:00+01:00", None).from_ns == 86400 * 10**9
    local = time.mktime((2026, 3, 1, 12, 0, 0, 0, 0, -1))
    assert parse_span("2026-03-01 12:00", None).from_ns == int(local) * 10**9
    assert parse_span("5", "5").end == 5
    for wrong in ("", "x", "-2", "2h", "2026-13-01", "1" * 19):
        with pytest.raises(BadArgument):
            parse_span(wrong, None)
