"""The packer: what waits for Kafka gets smaller, and at no instant is a segment missing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spool.disk import allocated_bytes
from spool.layout import SENT
from spool.packed import is_packed
from spool.packer import AFTER_S, LOOK_S, Packer
from spool.wire import encode
from tests.spool.rig import Rig
from tests.spool.stored import messages


class Clock:
    """Time that passes when told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Plant:
    """A spool with three sealed segments and one in use, and its packer."""

    def __init__(self, directory: Path) -> None:
        self.rig = Rig(directory, segment_bytes=65536, max_bytes=16 * 65536)
        self.sent = self.rig.fill(260)
        self.rig.step()
        self.clock = Clock()
        self.packer = Packer(self.rig.layout, clock=self.clock)

    def pass_time(self, seconds: float = AFTER_S + LOOK_S) -> None:
        """Look twice, so that what waits has been seen for so long; and let the thread finish."""
        self.packer.step()
        self.clock.now += seconds
        self.packer.step()
        self.finish()

    def finish(self) -> None:
        while self.packer._task:
            task = self.packer._task[1]
            while not task.done():
                time.sleep(0.001)
            self.clock.now += LOOK_S
            self.packer.step()

    def packed(self) -> list[bool]:
        """Of each named segment, in order, whether it is packed."""
        found = []
        for pair in self.rig.layout.list_segments():
            with self.rig.layout.segment(*pair).open("rb") as file:
                found.append(is_packed(file.fileno()))
        return found


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    """Made."""
    made = Plant(tmp_path)
    yield made
    made.packer.close()
    made.rig.crash()


def test_what_waits_is_packed(plant: Plant) -> None:
    """All but the last; the disk has the difference; every message is read as before."""
    paths = [plant.rig.layout.segment(*pair) for pair in plant.rig.layout.list_segments()[:-1]]
    before = sum(map(allocated_bytes, paths))
    plant.pass_time()
    assert plant.packed() == [True] * len(paths) + [False]
    assert sum(map(allocated_bytes, paths)) < before / 2
    assert messages(plant.rig.layout) == plant.sent


def test_it_is_left_alone_for_a_while(plant: Plant) -> None:
    """What Kafka takes within a minute is not worth it."""
    plant.pass_time(AFTER_S - 1)
    assert not any(plant.packed())


def test_delivered_while_it_is_packed(plant: Plant) -> None:
    """The segment has got its other name: that one is replaced, and the first does not come back."""
    plant.packer.step()
    plant.clock.now += AFTER_S + LOOK_S
    plant.packer.step()
    first = plant.rig.layout.list_segments()[0][0]
    os.rename(plant.rig.layout.segment(first), plant.rig.layout.segment(first, SENT))
    plant.finish()
    assert plant.rig.layout.list_segments()[0] == (first, SENT)
    assert not plant.rig.layout.segment(first).exists()
    assert messages(plant.rig.layout) == plant.sent


def test_removed_while_it_is_packed(plant: Plant) -> None:
    """It does not come back, and leaves nothing."""
    plant.packer.step()
    plant.clock.now += AFTER_S + LOOK_S
    plant.packer.step()
    first = plant.rig.layout.list_segments()[0][0]
    plant.rig.layout.segment(first).unlink()
    plant.finish()
    assert plant.rig.layout.list_segments()[0][0] != first
    assert not list(plant.rig.layout.segments.glob("*.tmp"))


def test_a_half_packed_file_is_removed_by_the_next_start(plant: Plant) -> None:
    """Killed in the middle: the segment is what it was."""
    path = plant.rig.layout.segment(*plant.rig.layout.list_segments()[0])
    packed = plant.packer._pack(path)
    assert packed
    os.truncate(packed, 500)
    plant.rig.reopen()
    assert not packed.exists()
    assert messages(plant.rig.layout) == plant.sent


def test_what_does_not_get_smaller_is_kept(tmp_path: Path) -> None:
    """Packing it would only make reading dearer."""
    rig = Rig(tmp_path, segment_bytes=65536, max_bytes=16 * 65536)
    while len(rig.layout.list_segments()) < 2:
        rig.append([encode(b"t", os.urandom(900)) for _ in range(4)])
        rig.step()
    packer = Packer(rig.layout)
    assert packer._pack(rig.layout.segment(*rig.layout.list_segments()[0])) is None
    assert not list(rig.layout.segments.glob("*.tmp"))
    packer.close()
    rig.crash()


def test_a_full_disk_leaves_the_segment(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again later; nothing is left behind."""

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        plant.packer.step()
        plant.clock.now += AFTER_S + LOOK_S
        plant.packer.step()
        assert plant.packer._task
        while not plant.packer._task[1].done():
            time.sleep(0.001)
        plant.packer.step()
    assert not any(plant.packed())
    assert not list(plant.rig.layout.segments.glob("*.tmp"))
    plant.pass_time()
    assert any(plant.packed())
