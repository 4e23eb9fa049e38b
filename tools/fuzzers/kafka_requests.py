"""Requests of Kafka clients: answered or refused, their records in the log as a whole or not at all."""

from __future__ import annotations

import struct

import numpy as np
from crc32c import crc32c
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest

from ingest.buffers.connection_buffers import OUTCOMES_BYTES
from ingest.kafka.compression import Decompressor
from ingest.kafka.errors import BadRequest
from ingest.kafka.produce import Answer, read_request, write_answer
from ingest.kafka.protocol import PRODUCE, Responder, Where, read_header
from ingest.kafka.record_batch import (
    HEAD_BYTES,
    BadBatch,
    Head,
    Source,
    check_records,
    skip_records,
    write_records,
)
from spool.format.wire import check
from spool.native.memory import Address, address_of
from tests.ingest.kafka.batches import Record, read_batches, record_batch
from tests.ingest.kafka.door import request_of
from tools.fuzzers.wall import Wall

_LIMIT, _MOST, _ROOM = 32 << 10, 64 << 10, 16 << 10
_CRC_AT, _CRC_FROM, _LENGTH_AT, _LENGTH_FROM = 17, 21, 8, 12
_RECORDS = [
    Record(b"value", b"key", 1_700_000_000_000, [("name", b"1"), ("name", None)]),
    Record(None, b"k"),
    Record(b"x" * 300),
]
_REQUESTS = [
    ApiVersionsRequest(version=3, client_software_name="c", client_software_version="1"),
    MetadataRequest(version=9, topics=None),
    FindCoordinatorRequest(version=4, key_type=0, coordinator_keys=["g"]),
    InitProducerIdRequest(version=4, transactional_id=None, transaction_timeout_ms=1),
]


class Requests:
    """The readers of requests, over memory that ends where no byte may be read."""

    def __init__(self) -> None:
        self._responder = Responder("c", lambda _name: 3, lambda: ["orders"], lambda _sentence: None)
        self._decompressor = Decompressor(_MOST)
        self._wall, self._target = Wall(_MOST), np.zeros(_ROOM + OUTCOMES_BYTES, np.uint8)
        self._outcomes = np.zeros(OUTCOMES_BYTES // 8, np.int64)

    def take(self, data: bytes) -> int:
        """Read a request as the worker does; how many messages it becomes."""
        frame = memoryview(data)
        try:
            header = read_header(frame)
            if header.api != PRODUCE:
                assert self._responder.answer(header, frame, Where("h", 1))
                return 0
            request = read_request(header.version, frame, header.body)
        except BadRequest:
            return 0
        assert write_answer(header.version, [(part, Answer()) for part in request.parts])
        return sum(self._store(part.topic[:200] or b"t", bytes(part.records)) for part in request.parts)

    def _store(self, topic: bytes, batch: bytes) -> int:
        try:
            head = Head.read(memoryview(_repaired(batch)))
            records = self._decompressor.records(head.codec, memoryview(batch)[HEAD_BYTES:])
        except BadBatch:
            return 0
        memory, name = self._wall.place(bytes(records)), np.frombuffer(topic, np.uint8)
        begin = address_of(memory)
        end = Address(begin + len(records))
        wrong, at = check_records(begin, end, head.records, len(topic), _LIMIT)
        assert 0 <= at <= head.records
        if wrong:
            return 0
        source = Source(begin, end, head.timestamp, 1, 0, address_of(name), len(name))
        left, offset = head.records, 0
        while left:
            before = left
            left, offset = self._write(source, left, offset)
            if left == before:
                # One that a run of this size has no room for.
                return 0
            assert offset == skip_records(begin, end, head.records - left)
        assert offset == len(records)
        return head.records

    def _write(self, source: Source, left: int, offset: int) -> tuple[int, int]:
        at = address_of(self._target)
        behind, offset, used, frames, _room = write_records(
            source, offset, left, at, _ROOM, address_of(self._outcomes), 0
        )
        assert 0 <= used <= _ROOM
        found = read_batches(self._target[:used].tobytes())
        assert (len(found), sum(map(len, found))) == (frames, left - behind)
        for batch in found:
            size = int.from_bytes(self._target[at - address_of(self._target) :][:4].tobytes(), "big")
            assert check(at, size) == 0, "the intake would refuse it"
            assert len(batch) <= 256  # noqa: PLR2004  (MAX_BATCH, as the specification has it)
            at = Address(at + size)
        return behind, offset


def _repaired(batch: bytes) -> bytes:
    """The batch with the length and checksum that it should have: the rest is what is to be found wrong."""
    if len(batch) < HEAD_BYTES:
        return batch
    changed = bytearray(batch)
    struct.pack_into(">i", changed, _LENGTH_AT, len(batch) - _LENGTH_FROM)
    struct.pack_into(">I", changed, _CRC_AT, crc32c(bytes(changed[_CRC_FROM:])))
    return bytes(changed)


def seeds() -> list[bytes]:
    """Requests as a library writes them, each without its size."""
    batches = [record_batch(_RECORDS, codec=codec) for codec in (0, 1, 4)]
    batches.append(record_batch(_RECORDS * 100, producer=7, epoch=0, sequence=0))
    requests = [request_of([("orders", number, batch)]) for number, batch in enumerate(batches)]
    found = []
    for one in (*_REQUESTS, *requests):
        one.with_header(1, "fuzz")
        found.append(bytes(one.encode(header=True, framed=True))[4:])
    return found
