"""`brucectl inspect find` and `segments`, and `records --follow`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from cli.terminal import errors
from spool.format.wire import encode
from spool.layout import Layout
from spool.storage.parallel import processors
from tests.cli.inspecting import PROGRAM, inspect, state_of
from tests.daemon import ROOT, RunningBruce
from tests.spool.fixture import SpoolFixture
from tools.benches.machine import compile_c
from tools.waiting import wait_until


def found(layout: Layout, *arguments: object, code: int = 0) -> list[int]:
    """The sequences that `find` prints."""
    done = inspect("find", "--json", "--spool", layout.directory, *arguments, code=code)
    return [json.loads(line)["sequence"] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "sequences"),
    [
        (["1"], [1, 10, 11, 12, 13, 14, 15, 16, 18]),
        (["1", "--limit", 2], [1, 10]),
        (["1", "--from", 11, "--to", 13], [11, 12]),
        (["välue"], [17]),
        (["key"], [17]),
        (["--hex", "ff0074"], [18]),
        (["--regex", "^[0-3]$"], [0, 1, 2, 3]),
        (["--regex", "^välue$", "--topic", "u"], [17]),
    ],
)
def test_what_is_found(layout: Layout, arguments: list[object], sequences: list[int]) -> None:
    """Text, bytes, regular expressions; in keys and values; together with all options that select records."""
    assert found(layout, *arguments) == sequences


def test_what_is_not_found(layout: Layout) -> None:
    """A match in a topic's name, or across two messages, does not count; no match is exit code 1."""
    assert found(layout, "odd", code=1) == []
    assert found(layout, "--hex", "3031", code=1) == []
    cases = [
        (["--hex", "0"], "--hex 0: it takes pairs"),
        (["--regex", "("], "--regex (: missing )"),
        ([""], "PATTERN is empty"),
        (["--hex", "--regex", "00"], "give either --hex or --regex"),
    ]
    for arguments, sentence in cases:
        done = inspect("find", "--spool", layout.directory, *arguments, code=2)
        assert done.stderr.startswith(sentence)
        assert done.stderr.count("\n") == 1


def test_control_c_ends_it_while_a_disk_gives_nothing(tmp_path: Path) -> None:
    """Threads that are blocked in a system call are not waited for: 130, and no traceback."""
    paths = [tmp_path / f"{number}.seg" for number in range(3)]
    for path in (*paths, flag := tmp_path / "flag"):
        path.write_bytes(b"bruceseg")
    preload = {"LD_PRELOAD": str(compile_c("slow_sync", tmp_path, shared=True)), "SLOW_READ_FLAG": str(flag)}
    with subprocess.Popen(
        [*PROGRAM, "inspect", "find", "x", *map(str, paths)],
        cwd=ROOT,
        env={**os.environ, **preload},
        stderr=subprocess.PIPE,
    ) as finding:
        try:
            threads = min(processors(), len(paths))
            wait_until(lambda: standing(finding.pid) == threads, 120, "threads to stand still")
            finding.send_signal(signal.SIGINT)
            assert finding.wait(60) == errors.INTERRUPTED
            assert finding.stderr is not None
            assert finding.stderr.read() == b""
        finally:
            finding.kill()


def standing(pid: int) -> int:
    """The number of threads of a process that wait for the disk of slow_sync.c."""
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            count += "poll" in (task / "wchan").read_text()
    return count


def test_segments(tmp_path: Path) -> None:
    """Every file with its state and the fields of its footer; the open one by the index. No file changes."""
    spool = SpoolFixture(tmp_path)
    for burst in range(58):
        spool.append([encode(b"t%d" % (burst % 5), b"%d" % n) for n in range(10)])
        spool.step()
    spool.crash()
    with spool.layout.segment(*spool.layout.list_segments()[1]).open("r+b") as file:
        file.write(b"rot")
    before = state_of(spool.options.directory)
    done = inspect("segments", "--json", "--spool", spool.options.directory, code=1)
    assert state_of(spool.options.directory) == before
    assert done.stderr.endswith("is no segment: it does not begin with a segment header\n")
    report = json.loads(done.stdout)
    assert (report["version"], report["spool"]) == (1, str(spool.options.directory))
    good = [one for one in report["segments"] if one["state"] in ("sealed", "open")]
    states = [one["state"] for one in report["segments"] if one["state"] != "spare"]
    assert (states[:2], states[-1]) == (["sealed", "damaged"], "open")
    assert all(one["next_sequence"] - one["first_sequence"] == one["messages"] for one in good)
    assert good[-1]["next_sequence"] == 580
    assert sum(topic["messages"] for topic in good[0]["topics"]) == good[0]["messages"]
    plain = inspect("segments", "--spool", spool.options.directory, code=1).stdout.splitlines()
    assert len(plain) == len(report["segments"])
    assert plain[0].endswith(" and 2 more")


def test_records_are_followed(bruce: RunningBruce, tmp_path: Path) -> None:
    """`records --follow` prints messages as they are committed; Control-C ends it quietly."""
    bruce.send([encode(b"t", b"before")])
    bruce.await_status(lambda s: s.watermarks.synced == 1)
    out = tmp_path / "out"
    with out.open("wb") as file:
        following = subprocess.Popen(
            [*PROGRAM, "inspect", "records", "--follow", "--json", "--topic", "t"],
            cwd=ROOT,
            env=bruce.environ,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            number = 0
            while not out.stat().st_size:  # it begins at the end of the log when it has started
                bruce.send([encode(b"t", b"%d" % number), encode(b"u", b"other")])
                number += 1
                bruce.await_status(lambda s: s.watermarks.synced == 1 + 2 * number)  # noqa: B023
            bruce.send([encode(b"t", b"last")])
            bruce.await_true(lambda: b'"last"' in out.read_bytes())
            following.send_signal(signal.SIGINT)
            assert following.wait(30) == 0
        finally:
            following.kill()
            following.wait()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    values = [one["value"] for one in lines]
    assert values == [*map(str, range(number - len(values) + 1, number)), "last"]
    assert all(one["committed"] for one in lines)
    done = inspect("records", "--follow", bruce.spool / "x.seg", code=2)
    assert done.stderr.startswith("--follow needs a spool")
