"""`brucectl discards`: a table for people, and options that cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import run


def test_a_table(discards: Path) -> None:
    """In a pipe one line per row, then those of each sender, and the samples."""
    lines = [line.split("\t") for line in run("discards", "--spool", discards).stdout.splitlines()]
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
def test_what_cannot_be_meant(discards: Path, arguments: tuple[str, ...], sentence: str) -> None:
    """One sentence, exit code 2."""
    done = run("discards", "--spool", discards, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", sentence)
