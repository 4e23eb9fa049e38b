"""`brucectl inspect frames`, `timeline` and `export`, and `send --datagrams`, which reads their output."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.commands.inspect.segments import bars
from spool.format.wire import encode
from spool.layout import Layout
from tests.cli.inspecting import PROGRAM, inspect
from tests.daemon import ROOT
from tests.spool.fixture import SpoolFixture


def without(one: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """The remaining fields."""
    return {name: value for name, value in one.items() if name not in names}


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


def test_a_step_that_is_too_fine(tmp_path: Path) -> None:
    """Seconds of a clock that jumped by ten years: one sentence, code 2, and no empty chart."""
    spool = SpoolFixture(tmp_path)
    for year in (2026, 2036):
        spool.writer.append(
            [encode(b"t", b"v")], received_ns=int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 10**9
        )
        spool.step()
    done = inspect("timeline", "--step", "1s", "--spool", spool.layout.directory, code=2)
    assert done.stderr == (
        "--step 1s cuts what is kept into 315,532,801 intervals, and 100,000 is the most: "
        "give a longer one, or --from and --to\n"
    )
