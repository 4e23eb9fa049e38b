"""`brucectl discards`: messages that will never be delivered, by topic, reason and time, with samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import run


def listed(spool: Path, *arguments: str) -> dict[str, Any]:
    """The JSON that is printed."""
    done = run("discards", "--json", "--spool", spool, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


def test_by_topic_reason_and_time(discards: Path) -> None:
    """One row each, with its first and last time; malformed data has no topic; samples are the newest."""
    found = listed(discards)
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
    assert [one["data"] for one in listed(discards, "--samples", "2")["samples"]][:2] == ["first", "second"]


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
def test_some_of_them(discards: Path, arguments: tuple[str, ...], rows: list[tuple[str | None, int]]) -> None:
    """Chosen by topic, by reason, by last time; samples likewise."""
    found = listed(discards, *arguments)
    assert [(row["topic"], row["messages"]) for row in found["discards"]] == rows
    assert [one["topic"] for one in found["samples"]] == [topic for topic, _ in rows]
