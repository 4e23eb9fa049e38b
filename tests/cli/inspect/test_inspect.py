"""`brucectl inspect`: on a spool, beside a daemon, on separate files; nothing is ever written.

These are the tests of `cli.commands.inspect.options`, `cli.commands.inspect.segments` and `cli.start`, too.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.start import POLITE
from cli.terminal.output import printable
from dispatch.embedded import EmbeddedKafka
from spool.format.segment import list_files
from spool.format.wire import encode
from spool.layout import SEGMENT, SENT, Layout
from spool.log.recovery import open_spool
from spool.log.retention import Stock
from spool.log.writer import Writer
from spool.options import SpoolOptions
from spool.read.overview import segment_paths
from spool.shared.state import SharedState
from tests.cli.program import Ended, run
from tests.daemon import ROOT, RunningBruce
from tests.spool.fixture import SpoolFixture
from tools.waiting import wait_until

PROGRAM = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]
ODD = b"\xff\x00tab\tline\nescape\x1b[31m"


def inspect(*arguments: object, code: int = 0) -> Ended:
    """Run `brucectl inspect` to its end."""
    done = run("inspect", *arguments)
    assert done.returncode == code, done.stderr
    return done


def lines(*arguments: object, code: int = 0) -> list[dict[str, Any]]:
    """The output of `brucectl inspect records --json`."""
    return [
        json.loads(line) for line in inspect("records", "--json", *arguments, code=code).stdout.splitlines()
    ]


def state_of(directory: Path) -> dict[str, tuple[str, int]]:
    """Content and modification time of every file."""
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A spool that no process has open: 20 messages in two frames, the second with everything odd."""
    options = SpoolOptions(tmp_path / "spool", segment_bytes=256 << 10)
    own = open_spool(options)
    shared = SharedState(tmp_path / "page")
    Stock(own.layout, own.identity, options).make_spare(1)
    shared.words[18] = 1
    writer = Writer(own.layout, own.identity, shared)
    writer.append(
        [encode(b"t", b"%d" % n, timestamp=n) for n in range(17)], received_ns=1_000_000_000_000_000_001
    )
    writer.append(
        [
            encode(b"u", "välue".encode(), key=b"key", timestamp=-5, partition_key=-7),
            encode(b"u", ODD, key=ODD),
            encode(b"odd\xff", b""),
        ],
        received_ns=1_000_000_060_000_000_000,
        sender=(1000, 4711),
    )
    writer.close()
    own.lock.release()
    return own.layout


def test_records_as_json(layout: Layout) -> None:
    """One object per line, of the documented shape, without loss."""
    found = lines("--spool", layout.directory)
    assert found[0] == {
        "sequence": 0,
        "received": "2001-09-09T01:46:40.000000001Z",
        "topic": "t",
        "partition_key": None,
        "timestamp": 0,
        "key": None,
        "value": "0",
        "uid": 0,
        "pid": 0,
        "committed": None,
    }
    assert found[17] == {
        "sequence": 17,
        "received": "2001-09-09T01:47:40.000000000Z",
        "topic": "u",
        "partition_key": -7,
        "timestamp": -5,
        "key": "key",
        "value": "välue",
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


def test_what_is_written_and_not_committed(tmp_path: Path) -> None:
    """Each command that shows messages or frames shows uncommitted ones too, and marks only these."""
    spool = SpoolFixture(tmp_path)
    spool.append([encode(b"t", b"early")] * 2)
    spool.step()
    spool.append([encode(b"t", b"late")])
    spool.crash()
    options = ["--spool", spool.layout.directory]
    for command in (["records"], ["find", "a"], ["frames"]):
        found = [json.loads(line) for line in inspect(*command, "--json", *options).stdout.splitlines()]
        assert [one["committed"] for one in found][-1] is False, command
        assert all(one["committed"] for one in found[:-1])
        *before, last = inspect(*command, *options).stdout.splitlines()
        assert "not committed" in last
        assert not [line for line in before if "not committed" in line]
    assert json.loads(inspect("show", 2, "--json", *options).stdout)["committed"] is False
    assert json.loads(inspect("show", 1, "--json", *options).stdout)["committed"] is True


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


def test_files_by_themselves(layout: Layout, tmp_path: Path) -> None:
    """A segment without its spool, under any name."""
    bare = tmp_path / "anything"
    bare.write_bytes(layout.segment(1, ".spare").read_bytes())
    assert [one["sequence"] for one in lines(bare)] == list(range(20))
    report = json.loads(inspect("verify", "--json", bare).stdout)
    size = bare.stat().st_size
    assert {report.pop(key) for key in ("tool", "host", "boot_id", "made")}
    assert report == {
        "version": 1,
        "spool": None,
        "segments": 1,
        "frames": 2,
        "messages": 20,
        "bytes": size,
        "damaged": False,
        "findings": [],
    }


def test_damage_on_the_way(layout: Layout) -> None:
    """Readable messages are printed; the others are reported on standard error and by exit code 1."""
    path = layout.segment(1, ".spare")
    with path.open("r+b") as file:
        file.seek(384 + 100)
        file.write(b"rot")
    done = inspect("records", "--json", "--spool", layout.directory, code=1)
    assert [json.loads(line)["sequence"] for line in done.stdout.splitlines()] == [17, 18, 19]
    assert done.stderr == f"{path}: 17 messages cannot be read at byte 384\n"
    report = json.loads(inspect("verify", "--json", "--spool", layout.directory, code=1).stdout)
    (found,) = report["findings"]
    assert (report["damaged"], report["spool"]) == (True, str(layout.directory))
    assert {**found, "sentence": ""} == {
        "path": str(path),
        "offset": 384,
        "severity": "damage",
        "kind": "frame",
        "sentence": "",
    }
    plain = inspect("verify", "--spool", layout.directory, code=1).stdout.splitlines()
    assert plain[0].startswith(f"damage\tframe\t{path}\t384\t")
    assert re.match(r"1 damaged place: 1 segment, 3 messages, [0-9.]+ [KM]iB verified in ", plain[1])


def test_what_no_command_can_read(layout: Layout, tmp_path: Path) -> None:
    """Missing, wrong and contradictory things: one sentence each, and a documented exit code."""
    other = tmp_path / "letter.txt"
    other.write_text("dear reader")
    missing = tmp_path / "missing.seg"
    cases: list[tuple[list[object], int, str]] = [
        (["records", missing], 2, f"{missing} cannot be read: No such file or directory"),
        (["verify", missing], 2, f"{missing} cannot be read: No such file or directory"),
        (["records", other], 1, f"{other} is no segment: it does not begin with a segment header"),
        (["records", "--spool", tmp_path / "none"], 3, f"{tmp_path / 'none'} holds no spool"),
        (["verify", "--spool", tmp_path / "none"], 3, f"{tmp_path / 'none'} holds no spool"),
        (["verify", "--spool", other], 2, f"{other}"),
        (["records", layout.directory], 2, f"{layout.directory} is a directory; if it is a spool"),
        (["records", "--spool", layout.directory, other], 2, "give either segment files or --spool"),
        (["records", "--spool", layout.directory, "--from", 9, "--to", 8], 2, "--from 9 is behind --to 8"),
    ]
    for arguments, code, sentence in cases:
        done = inspect(*arguments, code=code)
        assert done.stderr.startswith(sentence), arguments
        assert (done.stderr.count("\n"), done.stdout) == (1, ""), arguments
    found = json.loads(inspect("verify", "--json", other, code=1).stdout)["findings"]
    assert [one["kind"] for one in found] == ["header"]


def test_nothing_is_written(layout: Layout) -> None:
    """Every file stays unchanged, also if it could not be written."""
    before = state_of(layout.directory)
    inspect("records", "--spool", layout.directory)
    inspect("verify", "--spool", layout.directory)
    assert state_of(layout.directory) == before


@pytest.mark.parametrize(
    "command", ["records", "frames", "timeline", "segments", "show 5", "find 1", "export"]
)
def test_a_name_that_changes(layout: Layout, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """A segment with only resolved messages is renamed between its listing and its reading: it is read."""
    (spare,) = list_files(layout)
    spare.rename(layout.segment(0, SEGMENT))
    arguments = (*command.split(), "--spool", layout.directory)
    before = inspect(*arguments).stdout

    def renaming(listing: Callable[[Layout], list[Path]]) -> Callable[[Layout], list[Path]]:
        def listed(of: Layout) -> list[Path]:
            found = listing(of)
            for path in found:
                path.rename(path.with_suffix(SENT))
            return found

        return listed

    monkeypatch.setattr("spool.format.segment.list_files", renaming(list_files))
    monkeypatch.setattr("spool.read.overview.segment_paths", renaming(segment_paths))
    after = inspect(*arguments).stdout
    if command == "show 5":
        # The new name of the segment says that its messages are delivered.
        before = before.replace(
            "not yet: it waits for its turn, or for Kafka", "yes: Kafka has acknowledged it"
        )
    assert after.replace(".sent", ".seg") == before


@pytest.mark.parametrize(
    "command", ["records", "frames", "timeline", "segments", "show 5", "find 1", "export"]
)
def test_a_file_that_is_not_there(tmp_path: Path, command: str) -> None:
    """A named file that does not exist is an error: one sentence, code 2."""
    done = inspect(*command.split(), tmp_path / "1.seg", code=2)
    assert done.stderr == f"{tmp_path / '1.seg'} cannot be read: No such file or directory\n"


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


def test_a_closed_pipe_is_no_error(layout: Layout) -> None:
    """`records | head` ends quietly when head closes the pipe: by SIGPIPE, like cat."""
    shell = f"{' '.join(map(repr, PROGRAM))} inspect records --spool {layout.directory} | head -1"
    many = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, check=False, timeout=60)
    assert many.stdout.startswith(b"0\t")
    assert many.stderr == b""
    # With buffers, the error comes at the end; otherwise at the first line.
    for environ in (os.environ, {**os.environ, "PYTHONUNBUFFERED": "1"}):
        reader, closed = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [*PROGRAM, "inspect", "records", "--spool", layout.directory],
            stdout=closed,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=environ,
            check=False,
            timeout=60,
        )
        os.close(closed)
        assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_beside_a_daemon_at_work(bruce: RunningBruce) -> None:
    """While messages come in and go out, inspect finds exactly those there are, and no damage."""
    stop = threading.Event()
    sent: list[int] = []

    def numbered() -> Iterator[bytes]:
        while not stop.is_set():
            sent.append(1)
            # Slow enough that nothing is removed while it is read, on a fast machine too.
            time.sleep(0.001)
            yield encode(b"t", b"%d" % len(sent) + b" " * 300)

    thread = threading.Thread(target=lambda: bruce.send(numbered()))
    thread.start()
    try:
        bruce.await_status(lambda s: s.spool.segments >= 2)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            done = run("inspect", "verify", "--json", environ=bruce.environ)
            assert done.returncode == 0, done.stdout
            assert run("inspect", "records", "--limit", 100, environ=bruce.environ).stdout.count("\n") == 100
    finally:
        stop.set()
        thread.join(60)
    bruce.await_status(lambda s: s.backlog == 0 and s.received == len(sent))
    assert bruce.stop() == 0
    report = json.loads(run("inspect", "verify", "--json", environ=bruce.environ).stdout)
    assert report["findings"] == []
    # Delivered segments go at max_bytes: a fast machine sends more than is kept.
    assert 0 < report["messages"] <= len(sent)


def test_after_a_kill(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """After a kill of everything at work, a spool is sound, and so is a read-only copy."""
    kafka.down()
    bruce.send(encode(b"t", b"%d" % n + b" " * 300) for n in range(3000))
    bruce.kill9()
    before = state_of(bruce.spool)
    report = json.loads(run("inspect", "verify", "--json", environ=bruce.environ).stdout)
    assert not report["damaged"]
    # A SIGKILL may leave a frame that was never finished.
    assert {finding["kind"] for finding in report["findings"]} <= {"torn"}
    assert len(run("inspect", "records", environ=bruce.environ).stdout.splitlines()) == report["messages"]
    assert state_of(bruce.spool) == before
    for path in [bruce.spool, *bruce.spool.rglob("*")]:
        os.chmod(path, 0o555 if path.is_dir() else 0o444)
    again = json.loads(run("inspect", "verify", "--json", environ=bruce.environ).stdout)
    assert {**again, "made": report["made"]} == report
    assert state_of(bruce.spool) == before


def test_printable() -> None:
    """Text stays text; terminal commands are shown as escapes."""
    assert printable("Grüße, 世界".encode()) == "Grüße, 世界"
    assert printable(b"\x00\x7f\xc2\x9b\x1b") == r"\x00\x7f\x9b\x1b"
    assert printable(b"\x80abc") == r"\x80abc"


def test_it_steps_aside(layout: Layout) -> None:
    """A command that looks leaves most of the cores to senders and the daemon, from the first moment on."""
    program = [sys.executable, "-c", "from cli.start import brucectl; brucectl()"]
    with subprocess.Popen(
        [*program, "inspect", "records", "--follow", "--spool", layout.directory]
    ) as looking:
        try:
            polite = os.getpriority(os.PRIO_PROCESS, 0) + POLITE
            wait_until(lambda: os.getpriority(os.PRIO_PROCESS, looking.pid) == polite, 60, "it to step aside")
        finally:
            looking.kill()
