"""Syncs that are asked for: soon or at once, never for less than before, with no ring that is not needed."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ingest.kafka.sync_requests import IN_FLIGHT, SYNC_BYTES, SyncRequests
from spool.shared.state import Field, SharedState


class Asked:
    """The words, and the keeper's bell."""

    def __init__(self, directory: Path) -> None:
        self.shared = SharedState(directory / "page")
        self.words = self.shared.words
        self.bell, self.committed = (os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2))
        self.poll = select.epoll()
        self.requests = SyncRequests(self.shared, self.bell, self.committed, self.poll)

    def hear(self) -> int:
        """How often it rang since the last call."""
        with suppress(BlockingIOError):
            return os.eventfd_read(self.bell)
        return 0

    @property
    def wanted(self) -> tuple[int, int]:
        """Sequences: soon, at once."""
        return int(self.words[Field.SYNC_SOON]), int(self.words[Field.SYNC_WANTED])


@pytest.fixture
def asked(memory: Path) -> Iterator[Asked]:
    """Of an empty log."""
    made = Asked(memory)
    yield made
    made.poll.close()
    os.close(made.bell)
    os.close(made.committed)


def test_soon(asked: Asked) -> None:
    """The keeper hears of the first message that an answer waits for, and of the next one after its sync."""
    requests = asked.requests
    for end, rings in ((5, 1), (7, 0), (6, 0), (0, 0)):
        requests.ask(end, 1)
        assert (asked.wanted, asked.hear()) == ((max(end, asked.wanted[0]), 0), rings)
    assert asked.wanted == (7, 0)
    asked.words[Field.SYNCED_SEQUENCE] = 7
    requests.ask(7, 1)
    assert asked.hear() == 0
    requests.ask(8, 1)
    assert (asked.wanted, asked.hear()) == ((8, 0), 1)


def test_at_once(asked: Asked) -> None:
    """For a client that waits, and for many bytes, which count once; a lower end takes nothing back."""
    requests = asked.requests
    requests.ask(5, IN_FLIGHT)
    assert (asked.wanted, asked.hear()) == ((0, 5), 1)
    requests.count(SYNC_BYTES)
    requests.ask(4, 1)
    assert (asked.wanted, asked.hear()) == ((0, 5), 0)
    requests.ask(9, 1)
    assert (asked.wanted, asked.hear()) == ((0, 9), 0)
    requests.count(SYNC_BYTES - 1)
    requests.ask(10, 1)
    requests.count(1)
    requests.ask(11, 1)
    assert asked.wanted == (10, 11)


def test_woken_while_an_answer_waits(asked: Asked) -> None:
    """By each commit, also by one between the look for it and the wait; and not while none waits."""

    def is_woken() -> bool:
        return bool(asked.poll.poll(0))

    requests = asked.requests
    os.eventfd_write(asked.committed, 1)
    assert is_woken()
    requests.hear(waits=False)
    for _ in range(2):
        os.eventfd_write(asked.committed, 1)
        assert not is_woken()
    requests.wait()
    assert is_woken()
    requests.hear(waits=True)
    assert not is_woken()
    os.eventfd_write(asked.committed, 1)
    assert is_woken()
