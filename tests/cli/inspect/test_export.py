"""`brucectl inspect frames`, `timeline` and `export`, and `send --datagrams`, which reads their output."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from cli.commands.inspect.segments import bars
from dispatch.embedded import EmbeddedKafka
from spool.layout import Layout
from tests.cli.inspect.test_inspect import PROGRAM, inspect, layout, lines
from tests.cli.program import Ended, run
from tests.daemon import ROOT, RunningBruce

__all__ = ["layout"]


@pytest.fixture
def other(tmp_path: Path) -> Iterator[RunningBruce]:
    """A daemon with its own spool."""
    with EmbeddedKafka(topics=[("t", 1)]) as kafka:
        directory = tmp_path / "other"
        directory.mkdir()
        with RunningBruce(directory, kafka.bootstrap_servers) as running:
            yield running


def exported(layout: Layout, *arguments: object) -> bytes:
    """The output of `export --datagrams`."""
    command = [
        *PROGRAM,
        "inspect",
        "export",
        "--datagrams",
        "--spool",
        layout.directory,
        *map(str, arguments),
    ]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=120).stdout


def send(data: bytes, *arguments: object, bruce: RunningBruce | None = None) -> Ended:
    """`send --datagrams` of these bytes."""
    with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data))):
        return run("send", "--datagrams", *arguments, environ=bruce.environ if bruce else None)


def without(one: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """The remaining fields."""
    return {name: value for name, value in one.items() if name not in names}


def test_there_and_back(layout: Layout, other: RunningBruce) -> None:
    """Exported messages are sent again unchanged: topics, keys, values, timestamps, without loss."""
    data = exported(layout)
    assert send(data, bruce=other).returncode == 0
    other.await_status(lambda s: s.watermarks.synced == 20)
    again = [json.loads(line) for line in run("inspect", "export", environ=other.environ).stdout.splitlines()]
    named = {
        "topic",
        "partition_key",
        "timestamp",
        "key",
        "value",
        "topic_base64",
        "key_base64",
        "value_base64",
    }
    before = lines("--spool", layout.directory)
    assert [{k: v for k, v in one.items() if k in named} for one in again] == [
        {k: v for k, v in one.items() if k in named} for one in before
    ]
    assert exported(layout, "--from", 3, "--limit", 2) in data


def test_a_stream_that_is_cut(layout: Layout, other: RunningBruce) -> None:
    """The whole messages before the cut are sent; the place of the error is named, and nothing is made up."""
    data = exported(layout, "--limit", 1)
    for sent, cut in enumerate((1, 3, 4, 20), 1):
        done = send(data + data[:cut], bruce=other)
        assert done.returncode == 2
        assert done.stderr == (
            f"at byte {len(data)} of standard input there is no whole datagram; all before it is sent\n"
        )
        other.await_status(lambda s: s.watermarks.synced == s.received == sent)  # noqa: B023


def test_what_does_not_go_together(layout: Layout) -> None:
    """One sentence each, and exit code 2."""
    cases = [
        (["send", "--datagrams", "--topic", "t"], "--datagrams takes none of --topic"),
        (["send", "--datagrams", "value"], "give either a VALUE, or"),
        (["send", "value"], "--topic is missing"),
        (["inspect", "timeline", "--step", "5x", "--spool", layout.directory], "--step 5x: expected"),
    ]
    for arguments, sentence in cases:
        done = run(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith(sentence)


def test_frames(layout: Layout, tmp_path: Path) -> None:
    """One line for each frame, with the fields of its head; damage is named, and is exit code 1."""
    found = [
        json.loads(line)
        for line in inspect("frames", "--json", "--spool", layout.directory).stdout.splitlines()
    ]
    assert [(one["first_sequence"], one["messages"], one["burst"]) for one in found] == [
        (0, 17, 1),
        (17, 3, 2),
    ]
    assert found[0]["offset"] == 384
    assert found[1]["received"] == "2001-09-09T01:47:40.000000000Z"
    assert {one["committed"] for one in found} == {None}
    plain = inspect("frames", "--limit", 1, "--spool", layout.directory).stdout.split("\t")
    assert plain[1:4] == ["384", "0", "17"]
    bare = tmp_path / "bare.seg"
    data = bytearray(layout.segment(1, ".spare").read_bytes())
    data[384 + 100] ^= 1
    bare.write_bytes(data)
    done = inspect("frames", "--json", bare, code=1)
    assert [json.loads(line)["messages"] for line in done.stdout.splitlines()] == [3]
    assert done.stderr == f"{bare}: 17 messages cannot be read at byte 384\n"


def test_timeline(layout: Layout) -> None:
    """Intervals in order, as a document and as a chart; the output says when a time is empty."""
    report = json.loads(inspect("timeline", "--json", "--step", "1m", "--spool", layout.directory).stdout)
    assert (report["version"], report["step_seconds"]) == (1, 60)
    assert [one["messages"] for one in report["intervals"]] == [17, 3]
    assert report["intervals"][0]["start"] == "2001-09-09T01:46:00.000000000Z"
    chart = inspect("timeline", "--step", "1m", "--spool", layout.directory).stdout.splitlines()
    assert [line.split("\t")[1] for line in chart] == ["17", "3"]
    nothing = inspect("timeline", "--from", "-1s", "--spool", layout.directory)
    assert (nothing.stdout, nothing.stderr) == (
        "",
        "nothing was received in that time, or nothing of it is kept\n",
    )


@pytest.mark.parametrize(("columns", "most"), [(70, 8), (80, 18), (200, 40)])
def test_a_timeline_fits_the_terminal(layout: Layout, columns: int, most: int) -> None:
    """An interval is a line with a bar at any width; the longest bar takes the remaining cells, or 40."""
    ours, theirs = pty.openpty()
    command = [*PROGRAM, "inspect", "timeline", "--step", "1m", "--spool", layout.directory]
    environ = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, env=environ, cwd=ROOT):
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal says that it has been closed
            while part := os.read(ours, 65536):
                shown += part
        os.close(ours)
    lines = [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in shown.decode().splitlines()]
    assert len(lines) == 3
    assert max(map(len, lines)) <= columns
    assert lines[1].count("█") == most


def test_bars() -> None:
    """Bars are proportional to the figures, the longest has the whole width; any non-zero figure shows."""
    assert bars(np.array([8, 4, 1, 0]), 4) == ["████", "██", "▌", ""]
    assert bars(np.array([10_000, 1]), 4) == ["████", "▏"]
    assert bars(np.array([0, 0]), 4) == ["", ""]
