"""Lanes: what is written to one, what its run becomes, and the memory that it takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ingest.kafka.lanes import SMALL_BYTES, Frame, Lane
from ingest.kafka.record_batch import HEAD_BYTES, Head, Source
from spool.format.wire import Reason
from spool.native.memory import Address, address_of
from spool.shared.state import Field
from tests.ingest.kafka.batches import Record, record_batch
from tests.ingest.kafka.door import Door, numbered, values


class Writing:
    """The records of a batch, and a lane that is open."""

    def __init__(self, door: Door, batch: bytes, topic: bytes = b"orders") -> None:
        self.lane = Lane(door.lanes, 5)
        assert self.lane.reserve()
        self._records, self._topic = (
            np.frombuffer(batch, np.uint8)[HEAD_BYTES:],
            np.frombuffer(topic, np.uint8),
        )
        head, begin = Head.read(memoryview(batch)), address_of(self._records)
        self._source = Source(
            begin,
            Address(begin + len(self._records)),
            head.timestamp,
            0,
            0,
            address_of(self._topic),
            len(self._topic),
        )
        self.left, self._at = head.records, 0

    def write(self, *, large: bool = False) -> int:
        """Write and offer a run; how many records."""
        self.lane.begin(large=large)
        written, self._at = self.lane.write(self._source, self._at, self.left)
        self.left -= written
        self.lane.offer()
        return written


def test_run(door: Door) -> None:
    """A run is stored in its order; each of its Batches says from which sequence on."""
    writing = Writing(door, numbered(0, 600))
    assert writing.write() == 600
    assert writing.lane.waits
    door.store()
    assert not writing.lane.waits
    assert [writing.lane.outcome(number) for number in range(3)] == [(0, 0), (0, 256), (0, 512)]
    assert list(writing.lane.frames()) == [
        Frame(256, follows=False, reason=0, sequence=0),
        Frame(256, follows=True, reason=0, sequence=256),
        Frame(88, follows=True, reason=0, sequence=512),
    ]
    assert door.values() == values(0, 600)


def test_without_room(door: Door) -> None:
    """The outcome of a run that is discarded as the spool is full says so."""
    writing = Writing(door, numbered(0, 3))
    writing.write()
    words = door.shared.words
    words[Field.SPARE], words[Field.FULL] = 0, 1
    door.store()
    assert writing.lane.outcome(0)[0] == Reason.SPOOL_FULL
    assert not door.values()


def test_what_follows_is_refused(door: Door) -> None:
    """Of a batch nothing is stored behind what is refused, so that it can be sent again from there."""
    # No topic: the intake's own check refuses it.
    writing = Writing(door, numbered(0, 300), topic=b"")
    writing.write()
    door.store()
    assert [writing.lane.outcome(number)[0] for number in range(2)] == [int(Reason.TOPIC)] * 2
    assert not door.values()


def test_memory(memory: Path) -> None:
    """A lane takes little memory for small requests, and gives back what a large one took."""
    door = Door(memory, limit=500_000)
    batch = record_batch([Record(bytes(30_000)) for _ in range(30)])
    writing = Writing(door, batch)
    assert 0 < writing.write() < 10
    door.store()
    assert writing.write(large=True) > SMALL_BYTES // 30_000
    door.store()
    writing.lane.close()
    blocks = door.lanes.path.stat().st_blocks
    assert blocks * 512 < (1 << 20) + 2 * SMALL_BYTES
    door.close()
