"""Record batches become messages of the log: all fields, whole, and nothing that is wrong in any way."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.buffers.connection_buffers import OUTCOMES_BYTES
from ingest.kafka.record_batch import (
    HEAD_BYTES,
    BadBatch,
    Head,
    Source,
    Wrong,
    check_records,
    skip_records,
    write_records,
)
from spool.native.memory import Address, address_of
from tests.ingest.kafka.batches import Found, Record, read_batches, record_batch

TOPIC = b"orders"
LIMIT = 1 << 20
_NAMES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20)
_BYTES = st.none() | st.binary(max_size=40)
_RECORDS = st.lists(
    st.builds(
        Record,
        _BYTES,
        _BYTES,
        st.integers(0, 1 << 45),
        st.lists(st.tuples(_NAMES, _BYTES), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


class Written:
    """The runs that were written, one after the other."""

    def __init__(self, batch: bytes, *, room: int = 1 << 20, partition: int = 2, now: int = 7) -> None:
        self.head = Head.read(memoryview(batch))
        records = np.frombuffer(batch, np.uint8)[HEAD_BYTES:]
        topic = np.frombuffer(TOPIC, np.uint8)
        begin = address_of(records)
        end = Address(begin + len(records))
        source = Source(begin, end, self.head.timestamp, now, partition, address_of(topic), len(topic))
        self.runs: list[list[list[Found]]] = []
        self.follows: list[list[int]] = []
        at, left = 0, self.head.records
        while left:
            target, outcomes = np.zeros(1 << 21, np.uint8), np.zeros(OUTCOMES_BYTES // 8, np.int64)
            before = left
            left, at, used, frames, _ = write_records(
                source, at, left, address_of(target), room, address_of(outcomes), 0
            )
            assert left < before, "nothing was written"
            assert at == skip_records(begin, end, self.head.records - left)
            self.runs.append(read_batches(target[:used].tobytes()))
            self.follows.append(outcomes.reshape(-1, 3)[:frames, 0].tolist())

    @property
    def messages(self) -> list[Found]:
        """All of them, in order."""
        return [one for run in self.runs for batch in run for one in batch]


def check(batch: bytes, limit: int = LIMIT) -> tuple[Wrong, int]:
    """The fault of its records."""
    head = Head.read(memoryview(batch))
    records = np.frombuffer(batch, np.uint8)[HEAD_BYTES:]
    begin = address_of(records)
    wrong, at = check_records(begin, Address(begin + len(records)), head.records, len(TOPIC), limit)
    return Wrong(wrong), at


@settings(deadline=None)
@given(_RECORDS, st.integers(0, 9))
def test_every_field(records: list[Record], partition: int) -> None:
    """Keys, values, timestamps and headers are those that the client gave, nulls and order included."""
    batch = record_batch(records)
    assert check(batch) == (Wrong.NOTHING, len(records))
    assert Written(batch, partition=partition).messages == [
        Found(TOPIC, 8, partition, one) for one in records
    ]


def test_any_partition() -> None:
    """Without a partition the partitioner of the topic chooses."""
    assert Written(record_batch([Record()]), partition=-1).messages == [Found(TOPIC, 0, 0, Record())]


def test_many() -> None:
    """Of many records each Batch has 256; those behind the first follow it."""
    records = [Record(b"%d" % number) for number in range(600)]
    written = Written(record_batch(records))
    assert [len(batch) for batch in written.runs[0]] == [256, 256, 88]
    assert written.follows == [[0, 1, 1]]
    assert [one.record for one in written.messages] == records


def test_little_room() -> None:
    """Records that a run has no room for are in the next one, and none is twice."""
    records = [Record(bytes(500)) for _ in range(20)]
    written = Written(record_batch(records), room=4000)
    assert len(written.runs) > 2
    assert [one.record for one in written.messages] == records


def test_no_timestamp() -> None:
    """Records without a timestamp get that of now."""
    batch = bytearray(record_batch([Record()]))
    struct.pack_into(">q", batch, 27, -1)
    assert [one.record.timestamp for one in Written(_summed(batch), now=99).messages] == [99]


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda batch: batch[:60], Wrong.LENGTH),
        (lambda batch: batch[:-1], Wrong.LENGTH),
        (lambda batch: batch + b"x", Wrong.LENGTH),
        (lambda batch: batch[:16] + b"\x01" + batch[17:], Wrong.MAGIC),
        (lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]), Wrong.CRC),
        (lambda batch: _summed(_with(batch, 21, ">h", 16)), Wrong.TRANSACTION),
        (lambda batch: _summed(_with(batch, 21, ">h", 32)), Wrong.CONTROL),
        (lambda batch: _summed(_with(batch, 21, ">h", 8)), Wrong.CONTROL),
        (lambda batch: _summed(_with(batch, 57, ">i", 0)), Wrong.RECORDS),
        (lambda batch: _summed(_with(batch, 57, ">i", 3)), Wrong.RECORDS),
        (lambda batch: _summed(_with(batch, 43, ">q", 5)), Wrong.RECORDS),
    ],
)
def test_bad_head(change: object, wrong: Wrong) -> None:
    """A batch whose head does not fit it is refused with the reason."""
    with pytest.raises(BadBatch) as found:
        Head.read(memoryview(bytes(change(record_batch([Record(), Record()])))))  # type: ignore[operator]
    assert found.value.wrong == wrong


@settings(deadline=None)
@given(_RECORDS, st.data())
def test_damage(records: list[Record], data: st.DataObject) -> None:
    """Records with a byte changed are refused or read as others, within their bounds."""
    batch = bytearray(record_batch(records))
    at = data.draw(st.integers(HEAD_BYTES, len(batch) - 1))
    batch[at] ^= data.draw(st.integers(1, 255))
    changed = _summed(batch)
    if check(changed)[0] == Wrong.NOTHING:
        assert len(Written(changed).messages) == len(records)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=200), st.integers(1, 30))
def test_rubbish(rubbish: bytes, count: int) -> None:
    """Any bytes at all are refused, or are as many records as the head says."""
    batch = bytearray(record_batch([Record()])[:HEAD_BYTES] + rubbish)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    if check(_summed(batch))[0] == Wrong.NOTHING:
        assert len(Written(_summed(batch)).messages) == count


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        (Record(bytes(LIMIT)), Wrong.TOO_LARGE),
        (Record(headers=[("n", None)] * 257), Wrong.HEADERS),
        (Record(headers=[("n" * 256, None)]), Wrong.HEADERS),
        (Record(headers=[("a\0", None)]), Wrong.HEADERS),
    ],
)
def test_not_for_the_log(record: Record, wrong: Wrong) -> None:
    """A record that the log does not take is named."""
    assert check(record_batch([Record(), record])) == (wrong, 1)


def test_largest() -> None:
    """The limit is that of a message, its size field not counted."""
    message = 4 + 2 + 2 + 2 + 4 + 2 + len(TOPIC) + 8 + 4 + 4
    fits = LIMIT - (message - 4)
    assert check(record_batch([Record(bytes(fits))])) == (Wrong.NOTHING, 1)
    assert check(record_batch([Record(bytes(fits + 1))])) == (Wrong.TOO_LARGE, 0)


def _with(batch: bytes, at: int, kind: str, value: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(kind, changed, at, value)
    return bytes(changed)


def _summed(batch: bytes | bytearray) -> bytes:
    """The batch with the checksum that it should have."""
    return _with(bytes(batch), 17, ">I", crc32c(bytes(batch[21:])))
