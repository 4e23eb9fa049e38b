"""Synced means synced: power losses made from recordings of lives. tools/powerloss runs the long form."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spool.powerloss.record import NEVER, Named, Recorder, Stored
from tests.spool.powerloss.states import ALL, NOTHING, disk_after
from tests.spool.powerloss.trial import try_states


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Recoveries log a lot."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.long
def test_every_state_comes_back(memory: Path) -> None:
    """300 reorderings of 3 lives, and 100 prefixes: no reported message is missing, and none is new."""
    descriptors = len(os.listdir("/proc/self/fd"))
    tally = try_states(1, states=300, lives=3, steps=120, prefixes=100)
    assert tally.violations == []
    assert (tally.states, tally.lives, tally.prefixes) == (300, 3, 100)
    assert tally.messages > 300
    assert len(os.listdir("/proc/self/fd")) < descriptors + 50


def record(root: Path) -> Recorder:
    """A file that is stored into, renamed, and synced with or without its directory."""
    recorder = Recorder(root)
    with recorder.at_work():
        fd = os.open(root / "a", os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, b"one", 0)
        os.fsync(fd)
        os.pwrite(fd, b"two", 5000)
        os.rename(root / "a", root / "b")
        os.close(fd)
    return recorder


def files(recorder: Recorder, *, everything: bool) -> dict[str, bytes]:
    """The files on the disk at the end, when all or none of the unsynced data has reached it."""
    loss = ALL if everything else NOTHING
    disk = disk_after(recorder.events, len(recorder.events), loss, random.Random(0))
    return {name: bytes(disk.files[inode]) for name, inode in disk.names.get(recorder.top, {}).items()}


def test_a_name_is_durable_with_its_directory_alone(memory: Path) -> None:
    """The sync of a file does not cover its name."""
    recorder = record(memory)
    assert files(recorder, everything=False) == {}
    assert list(files(recorder, everything=True)) == ["b"]
    with recorder.at_work():
        fd = os.open(memory, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    assert files(recorder, everything=False) == {"b": b"one"}
    assert files(recorder, everything=True) == {"b": b"one".ljust(5000, b"\0") + b"two"}


def test_after_a_failed_sync_nothing_before_it_is_ever_durable(memory: Path) -> None:
    """The next sync succeeds, and covers only data stored in between."""
    recorder = Recorder(memory)
    with recorder.at_work():
        fd = os.open(memory / "a", os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, b"x" * 512, 0)
        recorder.failing = lambda path: path.endswith("/a")
        with pytest.raises(OSError, match="Input/output"):
            os.fsync(fd)
        recorder.failing = lambda _: False
        os.pwrite(fd, b"y" * 512, 512)
        os.fsync(fd)
        os.close(fd)
    stored = [e for e in recorder.events if isinstance(e, Stored)]
    assert {e.durable for e in stored if 0 in e.sectors} == {NEVER}
    assert all(e.durable < NEVER for e in stored if 1 in e.sectors)
    assert {n for e in stored for n in e.sectors} == {0, 1}
    assert next(e.names for e in recorder.events if isinstance(e, Named)).keys() == {"a"}
