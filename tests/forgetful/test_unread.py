"""A real daemon on a disk that gives EIO for a part of a sealed segment: passed by, named, and tried again.

The error is the kernel's own, from a filesystem that refuses the read (tests.forgetful.server).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.index.log_end import read_footer
from spool.layout import SEGMENT, Layout
from status.report import Snapshot
from tests.forgetful.disk import ForgetfulDisk
from tests.forgetful.test_daemon import PATIENCE_S, SEGMENT_BYTES, Host

COUNT = 1000
"""Messages: four segments and a little."""
PARTS = {"header": (0, 4096), "body": (SEGMENT_BYTES // 4, SEGMENT_BYTES // 2)}
"""Bytes of a segment that cannot be read."""


@pytest.fixture
def host(tmp_path: Path, disk: ForgetfulDisk, kafka: EmbeddedKafka) -> Iterator[Host]:
    """A daemon with a backlog of several sealed segments; Kafka is away."""
    kafka.down()
    made = Host(tmp_path, disk, kafka)
    try:
        made.send(COUNT)
        made.bruce.await_status(lambda s: s.watermarks.synced == COUNT, PATIENCE_S)
        made.bruce.await_true(lambda: len(sealed(made)) >= 3, PATIENCE_S)
        yield made
    finally:
        made.bruce.close()


def sealed(host: Host) -> list[tuple[Path, int]]:
    """(path, first sequence) of the segments with a footer, in order."""
    layout, found = Layout(host.bruce.spool), []
    for first, suffix in layout.list_segments():
        with layout.segment(first, suffix).open("rb") as file:
            if read_footer(file.fileno()):
                found.append((layout.segment(first, suffix), first))
    return found


def awaits_the_rest(host: Host, path: Path, first: int, end: int) -> int:
    """Wait until all but those that status names, of this segment, are delivered; how many these are."""

    def is_all_but_what_is_named(status: Snapshot) -> bool:
        named = re.search(r"does not give (\d+) messages of (\d+)\.seg", status.disk or "")
        return named is not None and named[2] == path.stem and status.backlog == int(named[1])

    status = host.bruce.await_status(is_all_but_what_is_named, PATIENCE_S)
    assert 0 < status.backlog <= end - first
    assert status.delivered + status.backlog == COUNT
    assert status.watermarks.delivered < end
    assert not status.discarded
    return status.backlog


def check_that_it_is_named(host: Host, path: Path) -> None:
    """Status and verify say what it is, with exit code 1; beside the daemon no repair is planned."""
    status = host.bruce.brucectl("status")
    said = status.stdout.decode()
    assert status.returncode == 1, said
    assert f"messages of {path.name}" in " ".join(said.split())
    found = host.bruce.brucectl("inspect", "verify", "--spool", host.bruce.spool)
    text = found.stdout.decode() + found.stderr.decode()
    assert found.returncode == 1, text
    assert path.name in text
    assert "Traceback" not in text
    assert "Input/output error" in text, text
    busy = host.bruce.brucectl("inspect", "repair", "--spool", host.bruce.spool)
    assert (busy.returncode, busy.stdout) == (1, b""), busy


def check_that_all_came(host: Host, path: Path) -> None:
    """Everything was delivered, once; the low watermark has moved on, and the segment is free to go."""
    done = host.bruce.await_status(lambda s: s.delivered == COUNT and s.disk is None, PATIENCE_S)
    assert done.backlog == 0
    assert not done.discarded
    assert sorted(host.delivered(COUNT)) == list(range(COUNT))
    host.bruce.await_true(lambda: not path.exists(), PATIENCE_S)
    assert "Traceback" not in host.bruce.log.read_text()
    assert not list((host.bruce.spool / "quarantine").iterdir())


@pytest.mark.sample(one_of=2)
@pytest.mark.crash
@pytest.mark.parametrize("part", PARTS)
def test_passed_by_and_delivered_when_it_heals(host: Host, part: str) -> None:
    """All else is delivered; what could not be read comes when the disk gives it, and is freed then."""
    path, first = sealed(host)[1]
    end = sealed(host)[2][1]
    host.disk.lose(path.name, *PARTS[part])
    host.kafka.up()
    left = awaits_the_rest(host, path, first, end)
    host.bruce.await_true(lambda: len(set(host.delivered(COUNT - left))) == COUNT - left, PATIENCE_S)
    check_that_it_is_named(host, path)
    assert path.exists()
    assert all(worker.restarts == 0 for worker in host.bruce.status().workers)
    host.disk.heal()
    check_that_all_came(host, path)


@pytest.mark.sample("body-kill9")
@pytest.mark.crash
@pytest.mark.parametrize("ending", ["stop", "kill9"])
@pytest.mark.parametrize("part", PARTS)
def test_a_daemon_that_begins_with_it(host: Host, part: str, ending: str) -> None:
    """Stopped or killed, and started again, twice: the segment is left alone, and waits for the disk."""
    path, first = sealed(host)[1]
    end = sealed(host)[2][1]
    host.bruce.kill9()
    host.disk.lose(path.name, *PARTS[part])
    host.kafka.up()
    for _ in range(2):
        host.bruce.start()
        left = awaits_the_rest(host, path, first, end)
        if ending == "stop":
            host.bruce.configure({"dispatch": {"drain_seconds": 0}})
            host.bruce.stop()
        else:
            host.bruce.kill9()
        assert path.exists()
        assert path.suffix == SEGMENT
    host.bruce.start()
    assert awaits_the_rest(host, path, first, end) == left
    check_that_it_is_named(host, path)
    host.disk.heal()
    check_that_all_came(host, path)
