"""Syncs that are asked for: soon or at once, never for less than before, with no ring that is not needed."""

from __future__ import annotations

import os
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
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)

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
    os.close(made.bell)


def test_soon(asked: Asked) -> None:
    """The keeper hears of the first message that an answer waits for, and of the next one after its sync."""
    requests = SyncRequests(asked.shared, asked.bell)
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
    requests = SyncRequests(asked.shared, asked.bell)
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
