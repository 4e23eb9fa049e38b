"""`brucectl discards`: messages that will never be delivered, by topic, reason and time, with samples.

These are the tests of `cli.commands.discards`, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spool.format.wire import Reason, encode
from tests.cli.program import run
from tests.spool.fixture import SpoolFixture

SECOND = 10**9
START = 1_800_000_000 * SECOND
"""2027-01-15T08:00:00Z"""


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Short datagrams at the beginning and ten seconds later; later, two topics over their quota."""
    spool = SpoolFixture(tmp_path)
    quota = [encode(topic, b"value") for topic in (b"t", b"u")]
    for second, refused in (
        (0, {Reason.SHORT: (2, b"first")}),
        (10, {Reason.SHORT: (3, b"second")}),
        (60, {Reason.OVER_QUOTA: (4, quota[0])}),
        (70, {Reason.OVER_QUOTA: (5, quota[1])}),
    ):
        spool.append([encode(b"t", b"v")], refused=refused, received_ns=START + second * SECOND)
    spool.step()
    spool.crash()
    return spool.layout.directory


def listed(spool: Path, *arguments: str) -> dict[str, Any]:
    """The JSON that is printed."""
    done = run("discards", "--json", "--spool", spool, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


def test_by_topic_reason_and_time(spool: Path) -> None:
    """One row each, with its first and last time; malformed data has no topic; samples are the newest."""
    found = listed(spool)
    rows = [
        (row["topic"], row["reason"], row["messages"], row["first"][:19], row["last"][:19])
        for row in found["discards"]
    ]
    assert rows == [
        (None, "short", 5, "2027-01-15T08:00:00", "2027-01-15T08:00:10"),
        ("t", "over_quota", 4, "2027-01-15T08:01:00", "2027-01-15T08:01:00"),
        ("u", "over_quota", 5, "2027-01-15T08:01:10", "2027-01-15T08:01:10"),
    ]
    assert [(one["topic"], one["data"][-5:]) for one in found["samples"]] == [
        (None, "econd"),
        ("t", "value"),
        ("u", "value"),
    ]
    assert [one["data"] for one in listed(spool, "--samples", "2")["samples"]][:2] == ["first", "second"]


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (("--topic", "u"), [("u", 5)]),
        (("--reason", "short"), [(None, 5)]),
        (("--from", "2027-01-15T08:00:10+00:00"), [(None, 5), ("t", 4), ("u", 5)]),
        (("--from", "2027-01-15T08:00:11+00:00"), [("t", 4), ("u", 5)]),
        (("--from", "2027-01-15T08:01:01+00:00", "--topic", "t"), []),
    ],
)
def test_some_of_them(spool: Path, arguments: tuple[str, ...], rows: list[tuple[str | None, int]]) -> None:
    """Chosen by topic, by reason, by last time; samples likewise."""
    found = listed(spool, *arguments)
    assert [(row["topic"], row["messages"]) for row in found["discards"]] == rows
    assert [one["topic"] for one in found["samples"]] == [topic for topic, _ in rows]


def test_a_table(spool: Path) -> None:
    """In a pipe one line per row, then those of each sender, and the samples."""
    lines = [line.split("\t") for line in run("discards", "--spool", spool).stdout.splitlines()]
    assert [line[:4] for line in lines[:3]] == [
        ["-", "short", "5", "0"],
        ["t", "over_quota", "4", "0"],
        ["u", "over_quota", "5", "0"],
    ]
    assert [line[0] for line in lines[-3:]] == ["-", "t", "u"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--from", "4711"), "--from 4711: expected a time, such as 2026-03-01T12:00:00 or -2h\n"),
        (("--reason", "rain"), "there is no reason 'rain'; bruce-spool(5) has them all\n"),
    ],
)
def test_what_cannot_be_meant(spool: Path, arguments: tuple[str, ...], sentence: str) -> None:
    """One sentence, exit code 2."""
    done = run("discards", "--spool", spool, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", sentence)
