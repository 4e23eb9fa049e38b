"""A ProduceRequest on its way: what is refused before anything is stored, and what waits for another one."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest
from crc32c import crc32c

from ingest.kafka import storing
from ingest.kafka.errors import Code
from ingest.kafka.producers import Range
from ingest.kafka.storing import run_word
from tests.ingest.kafka.batches import Record, record_batch
from tests.ingest.kafka.door import Door, numbered, outcome_of, values


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (b"", Code.CORRUPT_MESSAGE),
        (bytes(61), Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (record_batch([Record()])[:-1] + b"\xff", Code.CORRUPT_MESSAGE),
        (record_batch([Record(bytes(70_000))]), Code.MESSAGE_TOO_LARGE),
        (record_batch([Record(headers=[("n" * 300, b"")])]), Code.INVALID_RECORD),
        (
            record_batch([Record()], producer=1, epoch=0, sequence=0, transactional=True),
            Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
    ],
)
def test_refused(door: Door, batch: bytes, code: Code) -> None:
    """A batch that is wrong is answered with Kafka's code; others of its request are stored."""
    caller = door.connect()
    caller.send([("orders", 0, batch), ("orders", 1, numbered(0, 1))])
    door.settle()
    answer = caller.receive()
    assert outcome_of(answer) == [(int(code), -1), (0, 0)]
    assert answer.responses[0].partition_responses[0].error_message
    assert door.values() == values(0, 1)


@pytest.mark.parametrize("codec", [1, 4])
def test_compressed(door: Door, codec: int) -> None:
    """Records come decompressed into the log, from any codec."""
    records = [Record(b"%d" % number * 10) for number in range(300)]
    assert door.connect().produce(record_batch(records, codec=codec)) == (0, 0)
    assert [one.record for one in door.stored()] == records


@pytest.mark.parametrize("acks", [2, -2])
def test_acks(door: Door, acks: int) -> None:
    """Other acks than 0, 1 and all are refused."""
    caller = door.connect()
    caller.send([("orders", 0, numbered(0, 1))], acks=acks)
    door.settle()
    assert outcome_of(caller.receive()) == [(int(Code.INVALID_REQUIRED_ACKS), -1)]


def test_twice_in_one_request(door: Door) -> None:
    """A request has one batch for a partition, or its second one is refused."""
    caller = door.connect()
    caller.send([("orders", 0, numbered(0, 1)), ("orders", 0, numbered(1, 1))])
    door.settle()
    assert outcome_of(caller.receive()) == [(0, 0), (int(Code.INVALID_REQUEST), -1)]


def test_on_its_way(door: Door) -> None:
    """A batch that is sent again while it is on its way waits for that, and has the same answer."""
    first, second = door.connect(), door.connect()
    first.send([("orders", 0, numbered(0, 5, producer=7))])
    for _ in range(2):
        door.worker.step(0)
    second.send([("orders", 0, numbered(0, 5, producer=7))])
    for _ in range(2):
        door.worker.step(0)
    door.settle()
    assert [outcome_of(one.receive()) for one in (first, second)] == [[(0, 0)]] * 2
    assert door.values() == values(0, 5)


def test_larger_than_guessed(memory: Path) -> None:
    """A record that is far larger than its compressed batch gets a lane of its size."""
    door = Door(memory, limit=600_000)
    assert door.connect().produce(record_batch([Record(bytes(500_000))], codec=1)) == (0, 0)
    assert [one.record.value for one in door.stored()] == [bytes(500_000)]
    door.close()


def test_many_damaged_batches(door: Door) -> None:
    """A request with many batches that are found to be damaged late is answered, by turns with others."""
    batch = bytearray(record_batch([Record(bytes(5000))], codec=1))
    batch[-10:] = bytes(10)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    caller, other = door.connect(), door.connect()
    caller.send([("orders", 0, bytes(batch)), ("orders", 1, bytes(batch)), ("orders", 2, numbered(0, 1))])
    assert other.produce(numbered(5, 1), topic="other")[0] == 0
    time.sleep(0.1)
    door.settle()
    wrong = int(Code.MESSAGE_TOO_LARGE), -1
    assert outcome_of(caller.receive()) == [wrong, wrong, (0, 0)]


def test_two_that_wait_for_each_other(door: Door) -> None:
    """Two requests of one producer with the same partitions in another order are both answered."""
    first, second = door.connect(), door.connect()
    batches = [("orders", number, numbered(0, 5, producer=7)) for number in (0, 1)]
    first.send(batches)
    second.send(batches[::-1])
    door.settle(8)
    for caller in (first, second):
        assert [error for error, _ in outcome_of(caller.receive())] == [0, 0]
    assert sorted(door.values(), key=str) == sorted(2 * values(0, 5), key=str)


def test_run_word() -> None:
    """A run's number, its lane and the Batches before fit one word, each for itself."""
    words = {
        run_word(run, lane, frames)
        for run in (1, 2, 1 << 40)
        for lane in (0, 1, 63)
        for frames in (0, 1, 511)
    }
    assert len(words) == 27
    assert max(words) < 1 << 63


def test_ranges_have_no_parts() -> None:
    """Messages behind one another are one range, in however many Batches they were stored."""
    ranges: list[Range] = []
    for first, messages in ((5, 2), (7, 3), (10, 1), (20, 1)):
        storing._add(ranges, first, messages)
    assert ranges == [Range(5, 6), Range(20, 1)]
