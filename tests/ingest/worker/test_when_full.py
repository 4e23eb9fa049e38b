"""New messages while the spool is full: senders wait, or messages are counted and gone."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingest.buffers.staging import read_staging
from spool.layout import SENT
from spool.options import Full
from spool.read.overview import take_totals
from spool.shared.state import Field
from tests.ingest.intake import connect
from tests.ingest.processes import PATIENCE_S, Processes, await_end, message
from tests.ingest.worker.test_storm import by_sender

SIZE = 2000
OPTIONS = {"slots": 12, "segment_bytes": 256 << 10, "max_bytes": 1 << 20}


@pytest.fixture
def blocking(memory: Path) -> Iterator[Processes]:
    """An intake with room for four segments, which lets senders wait."""
    made = Processes(memory, when_full="block", **OPTIONS)
    yield made
    made.close()


def await_true(condition: Callable[[], object]) -> None:
    """Until it is so; it should take milliseconds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def received(processes: Processes) -> int:
    """Datagrams stored, counted, or waiting in staging."""
    staging = processes.directory / "staging"
    return take_totals(processes.layout, lambda: read_staging(staging)).received


def send_until_it_waits(sender: socket.socket, first: int = 0) -> int:
    """Send until a send waits for a second; the number that was not sent."""
    sender.settimeout(1)
    number = first
    with contextlib.suppress(TimeoutError):
        while number < first + 5000:
            sender.send(message(0, number, SIZE))
            number += 1
    assert number < first + 5000
    return number


def free_a_segment(processes: Processes, count: int) -> None:
    """Call the oldest segments sent, and remove them, as if they had been delivered."""
    for first, suffix in processes.layout.list_segments()[:count]:
        # The keeper removes at any moment those that are called sent already.
        if suffix != SENT:
            processes.layout.segment(first, suffix).rename(processes.layout.segment(first, SENT))
    os.eventfd_write(processes.bell, 1)


def make_room(processes: Processes) -> None:
    """Free segments until all that waits, in socket and staging, is stored, and there is room for more."""

    def is_done() -> bool:
        full = processes.shared.words[Field.FULL]
        if full:
            free_a_segment(processes, 2)
        queued = select.select([processes.receiver], [], [], 0)[0]
        stored = take_totals(processes.layout, list).received
        return not full and not queued and stored == received(processes)

    await_true(is_done)
    # The messages stored last may have taken the last segment.
    time.sleep(0.3)
    await_true(is_done)


def test_senders_wait_and_go_on(blocking: Processes) -> None:
    """Full: nothing is discarded, and nothing more received; with room again all is stored, in order."""
    words, number = blocking.shared.words, 0
    with connect(blocking.path) as sender:
        # No faster than the keeper, which a guard would bridge.
        while words[Field.FULL] != Full.MAX_BYTES:
            sender.send(message(0, number, SIZE))
            number += 1
            await_true(
                lambda sent=number: words[Field.WRITTEN_SEQUENCE] == words[Field.SYNCED_SEQUENCE] == sent
            )
        number = send_until_it_waits(sender, number)
        waiting = read_staging(blocking.directory / "staging")
        assert waiting
        time.sleep(0.3)
        assert read_staging(blocking.directory / "staging") == waiting
        before = number
        make_room(blocking)
        sender.settimeout(PATIENCE_S)
        for number in range(before, before + 50):
            sender.send(message(0, number, SIZE))
    make_room(blocking)
    assert blocking.stop() == [0, 0]
    assert not blocking.discarded()
    stored = by_sender(blocking)[0]
    assert stored == list(range(stored[0], before + 50))


@pytest.mark.sample(one_of=3)
@pytest.mark.crash
@pytest.mark.parametrize("ends", ["stopped", "killed", "stopped twice"])
def test_what_was_received_is_stored_after_a_restart(blocking: Processes, ends: str) -> None:
    """Stopped or killed while full: what was sent is in staging, or in the socket, and no message is lost."""
    with connect(blocking.path) as sender:
        number = send_until_it_waits(sender)
        await_true(lambda: blocking.shared.words[Field.FULL])
    if ends == "killed":
        os.kill(blocking.pids["ingest"], signal.SIGKILL)
        await_end(blocking.pids.pop("ingest"))
    else:
        assert await_end(blocking.pids.pop("ingest"), asking=True) == 0
        assert received(blocking) == number
    if ends == "stopped twice":
        blocking.open_socket()
        blocking.start("ingest")
        time.sleep(0.3)
        assert await_end(blocking.pids.pop("ingest"), asking=True) == 0
    if ends != "killed":
        blocking.open_socket()
    blocking.start("ingest")
    make_room(blocking)
    assert blocking.stop() == [0, 0]
    assert not blocking.discarded()
    stored = by_sender(blocking)[0]
    assert stored == list(range(stored[0], number))


def test_the_newest_are_counted_by_topic(memory: Path) -> None:
    """By default: senders never wait, each message is stored or counted, and accepting resumes by itself."""
    processes = Processes(memory, **OPTIONS)
    try:
        with connect(processes.path) as sender:
            sender.settimeout(PATIENCE_S)
            number = 0
            while processes.shared.words[Field.FULL] == Full.ROOM or not processes.discarded():
                sender.send(message(0, number, SIZE))
                number += 1
                assert number < 5000
            for _ in range(100):
                sender.send(message(0, number, SIZE))
                number += 1
            await_true(lambda: take_totals(processes.layout, list).received == number)
            counted = processes.ledger_by_topic()
            free_a_segment(processes, 3)
            await_true(lambda: processes.shared.words[Field.FULL] == Full.ROOM)
            for _ in range(20):
                sender.send(message(0, number, SIZE))
                number += 1
        assert processes.stop() == [0, 0]
        assert processes.ledger_by_topic() == counted
        assert by_sender(processes)[0][-20:] == list(range(number - 20, number))
        assert take_totals(processes.layout, list).received == number
    finally:
        processes.close()
