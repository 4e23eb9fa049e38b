"""The daemon's log: one object per line, the journal's fields, few lines of each cause, and no payload."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.daemon.logs import (
    MOST,
    WINDOW_S,
    JournalHandler,
    JsonLines,
    Lines,
    LogThrottle,
    StreamHandler,
    encode,
    is_journal,
)
from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode as datagram
from tests.daemon import RunningBruce
from tests.full_pipe import BLOCK_BYTES, full_pipe

SECRET = b"payload-4711"
KEYS = ["version", "time", "level", "logger", "pid", "message"]


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    """A cluster for all tests of this file."""
    with EmbeddedKafka(topics=[("t", 1)]) as running:
        yield running


def record(message: str, *values: object, level: int = logging.WARNING, **more: Any) -> logging.LogRecord:
    """A record of one place in the code."""
    return logging.LogRecord("bruce.test", level, __file__, 1, message, values, more.get("exc_info"))


class Written:
    """The data that was written, and the time."""

    def __init__(self) -> None:
        self.now, self.lines = 0.0, list[str]()
        self.throttle = LogThrottle(self.write, lambda: self.now)

    def write(self, found: logging.LogRecord) -> None:
        """Write like a handler."""
        if self.throttle.filter(found):
            self.lines.append(found.getMessage())


def test_few_of_each_cause() -> None:
    """MOST in a window; other causes are written meanwhile; a line then gives the number left out."""
    written = Written()
    for number in range(MOST + 30):
        written.write(record("disk %d refuses", number))
    written.write(record("something else"))
    assert written.lines == [*(f"disk {n} refuses" for n in range(MOST)), "something else"]
    written.now = WINDOW_S
    written.write(record("disk %d refuses", 99))
    told = f"30 more lines like this were left out; the last: disk {MOST + 29} refuses"
    assert written.lines[-2:] == [told, "disk 99 refuses"]


def test_a_line_is_a_line() -> None:
    """Line breaks and terminal commands in a topic are shown as escapes; a traceback keeps its lines."""
    try:
        int("no number")
    except ValueError:
        defect = sys.exc_info()
    shown = Lines("%(levelname)s: %(message)s").format(
        record("unknown_topic %s", "evil\x1b[31m\nERROR: forged", exc_info=defect)
    )
    first, *below = shown.splitlines()
    assert first == "WARNING: unknown_topic evil\\x1b[31m\\nERROR: forged"
    assert below[-1].startswith("ValueError: ")


def test_a_line_has_its_time_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the ms and with the zone, wherever the host is."""
    found = record("late")
    found.created, found.msecs = 1_795_280_400.123, 123.0
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        shown = Lines("%(asctime)s %(message)s").format(found)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert shown == "2026-11-21T17:00:00.123Z late"


def test_what_was_left_out_is_said_at_the_end() -> None:
    """Also when nothing more is logged; a text that is only a value counts as a cause by its value."""
    written = Written()
    for number in range(MOST + 1):
        written.write(record("%s", "the same sentence"))
        written.write(record("%s", f"sentence {number}"))
    assert len(written.lines) == 2 * MOST + 1
    written.throttle.flush()
    assert written.lines[-1] == "1 more line like this was left out; the last: the same sentence"
    written.throttle.flush()
    assert len(written.lines) == 2 * MOST + 2


def test_an_object_a_line() -> None:
    """With the documented keys, in order; a traceback has its own key, and no line break splits the line."""
    error = ValueError("two\nlines")
    found = record("it %s", "failed\nbadly", exc_info=(type(error), error, None))
    line = JsonLines().format(found)
    assert "\n" not in line
    document = json.loads(line)
    assert list(document) == [*KEYS, "traceback"]
    assert (document["version"], document["level"]) == (1, "warning")
    assert (document["logger"], document["message"]) == ("bruce.test", "it failed\nbadly")
    assert "ValueError: two\nlines" in document["traceback"]


def parsed(data: bytes) -> dict[str, str]:
    """The fields that the journal reads."""
    found = {}
    while data:
        name, _, rest = data.partition(b"\n")
        if b"=" in name:
            name, _, value = name.partition(b"=")
        else:
            length = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + length], rest[8 + length + 1 :]
        found[name.decode()] = value.decode()
        data = rest
    return found


def test_the_journal_gets_fields(tmp_path: Path) -> None:
    """Values with line breaks go whole; a record that the journal does not take is a line on the stream."""
    stream = tmp_path / "stream"
    fd = os.open(stream, os.O_WRONLY | os.O_CREAT)
    handler = JournalHandler(fd, tmp_path / "socket")
    handler.emit(record("no listener"))
    assert stream.read_text() == "no listener\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "socket"))
        handler.emit(record("first\nsecond = %d", 2, level=logging.ERROR))
        found = parsed(journal.recv(1 << 16))
        assert found == {
            "MESSAGE": "first\nsecond = 2",
            "PRIORITY": "3",
            "SYSLOG_IDENTIFIER": "bruce",
            "BRUCE_LOGGER": "bruce.test",
        }
        # A journal that does not read blocks no writer.
        for _ in range(2000):
            handler.emit(record("again"))
    handler.close()
    os.close(fd)
    assert stream.read_text().endswith("again\n")
    assert len(encode(record("%s", "x" * 10**6))) < 1 << 16


def test_what_is_not_taken_is_counted(tmp_path: Path) -> None:
    """A full disk: the next line is preceded by one with the number of lines left out, and the reason."""
    found = tmp_path / "log"
    fd = os.open("/dev/full", os.O_WRONLY)
    handler = StreamHandler(fd)
    handler.setFormatter(JsonLines())
    for number in range(3):
        handler.emit(record("lost %d", number))
    file = os.open(found, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, fd)
    handler.emit(record("there"))
    handler.emit(record("and there"))
    os.close(file)
    os.close(fd)
    told, *others = [json.loads(line) for line in found.read_text().splitlines()]
    assert (told["left_out"], told["level"]) == (3, "warning")
    assert told["message"] == "3 lines of this log could not be written: No space left on device"
    assert [document["message"] for document in others] == ["there", "and there"]


def test_a_line_that_was_cut_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the disk had room for a part of a line, the next record begins on a new line."""
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    handler, write = StreamHandler(fd), os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda to, data: write(to, data[:3]))
        handler.emit(record("cut off"))
    handler.emit(record("whole"))
    os.close(fd)
    assert (tmp_path / "log").read_text().splitlines() == [
        "cut",
        "1 line of this log could not be written: there was room for a part of one",
        "whole",
    ]


def test_who_reads_nothing_is_not_waited_for() -> None:
    """The log does not wait for a full pipe or a closed one; a new reader gets the number of lost lines."""
    reader, writer = full_pipe()
    handler = StreamHandler(writer)
    handler.emit(record("no reader"))
    os.close(reader)
    handler.emit(record("no reader either"))
    reader, again = os.pipe()
    os.dup2(again, writer)
    handler.emit(record("somebody reads"))
    told, line = os.read(reader, BLOCK_BYTES).decode().splitlines()
    assert told == "2 lines of this log could not be written: Broken pipe"
    assert line == "somebody reads"
    for fd in (reader, again, writer):
        os.close(fd)


def test_whose_stream_it_is(tmp_path: Path) -> None:
    """$JOURNAL_STREAM must name the very stream that standard error is."""
    with (tmp_path / "file").open("w") as file:
        found = os.fstat(file.fileno())
        right = f"{found.st_dev}:{found.st_ino}"
        assert is_journal(file.fileno(), {"JOURNAL_STREAM": right})
        for wrong in ({}, {"JOURNAL_STREAM": ""}, {"JOURNAL_STREAM": right + "0"}, {"JOURNAL_STREAM": "x"}):
            assert not is_journal(file.fileno(), wrong)
    assert not is_journal(-1, {"JOURNAL_STREAM": right})


def test_a_daemon_logs_objects(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Every line of a daemon and its workers, when messages fail at each stage; none has a payload."""
    settings = {"log": {"format": "json"}, "dispatch": {"unknown_topic_seconds": 0}}
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings, prefix=["env"]) as bruce:
        bruce.send(
            [
                datagram(b"t", SECRET, key=SECRET),
                datagram(b"no topic", SECRET),
                SECRET,
                datagram(b"t", SECRET * 5000)[:-1],
            ]
        )
        bruce.await_status(lambda s: s.delivered == 1 and sum(s.discarded.values()) == 3)
        assert bruce.stop() == 0
        lines = bruce.log.read_text().splitlines()
    documents = [json.loads(line) for line in lines]
    assert all(list(document)[: len(KEYS)] == KEYS for document in documents)
    assert {"bruce", "bruce.router"} <= {document["logger"] for document in documents}
    assert any("no topic" in document["message"] for document in documents)
    assert SECRET.decode() not in "".join(lines)


def test_a_daemon_under_a_journal(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """If standard error is the journal's stream, records go to its socket, in a mount of our own."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("a socket at the journal's place needs root")
    run = tmp_path / "run"
    (run / "systemd/journal").mkdir(parents=True)
    place = ["unshare", "-m", "sh", "-c", f'mount --bind {run} /run && exec "$0" "$@"']
    if subprocess.run([*place, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mounts can be made here")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(run / "systemd/journal/socket"))
        journal.settimeout(60)
        bruce = RunningBruce(tmp_path, kafka.bootstrap_servers, prefix=place)
        bruce.log.touch()
        stream = bruce.log.stat()
        bruce.environ["JOURNAL_STREAM"] = f"{stream.st_dev}:{stream.st_ino}"
        with bruce:
            messages = []
            while not any(m.get("MESSAGE", "").startswith("listening on") for m in messages):
                messages.append(parsed(journal.recv(1 << 17)))
        assert all(message["SYSLOG_IDENTIFIER"] == "bruce" for message in messages)
        assert messages[-1]["PRIORITY"] == "6"
        assert bruce.logged("listening on") == 0
