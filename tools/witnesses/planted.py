"""A spool that is made by hand: all of it is delivered by its marks, and its records have faults."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bruce_client.message import encode_message
from dispatch.header_names import HEADER_BYTES
from spool.index.identity import read_identity
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from tests.spool.fixture import SpoolFixture
from tools.witnesses.faults import ALTERATIONS, ID, Fault, Faults, Header, Record
from tools.witnesses.mirror import make_producer, write

FRAME = 64
EVERY_DISCARDED = 997
"""One in so many messages is discarded."""
REASON = 15
STRANGERS = 50
"""Records of each kind that no witness should take for a message of these spools."""
FAR = 1 << 40
PAUSE_S = 0.1


class Planted:
    """The spool, and its records. `faults` are those of its way to Kafka."""

    def __init__(self, directory: Path, messages: int, topics: Sequence[str], seed: int) -> None:
        """Make the spool. Raises OSError, SpoolFull."""
        self.messages, self._topics = messages, list(topics)
        self._begun_ms = time.time_ns() // 1_000_000
        spool = SpoolFixture(directory, segment_bytes=1 << 20, max_bytes=1 << 32)
        self.layout: Layout = spool.layout
        self.uuid = read_identity(self.layout)
        for first in range(0, messages, FRAME):
            frame = [self._encode(one) for one in range(first, min(first + FRAME, messages))]
            spool.append(frame)
            spool.step()
        spool.stop()
        self.discarded = np.arange(EVERY_DISCARDED, messages, EVERY_DISCARDED)
        self._mark()
        self._faults = Faults(f"planted {seed}", topics)
        self.lost: set[int] = set()
        self.altered: dict[bytes, Fault] = {}
        self.made: Counter[str] = Counter()
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def _mark(self) -> None:
        marks = Marks(self.layout.delivery, SegmentList(self.layout))
        topic = self._topics[0].encode()
        gone = [Discard(self.discarded, REASON, topic, time.time_ns())]
        marks.commit(Changes(low_watermark=self.messages, discarded=gone))
        marks.close()

    def record(self, sequence: int) -> Record:
        """The record of a message, without a fault."""
        stamp: Header = (ID, self.uuid + sequence.to_bytes(8, "big"))
        own: list[Header] = [("n", b"%d" % sequence)] if sequence % 3 == 0 else []
        headers = [*own, stamp] if sequence % 2 else [stamp, *own]
        key = b"k%d" % (sequence % 50) if sequence % 4 else None
        value = b"planted %d " % sequence * (1 + sequence % 9) if sequence % 13 else None
        topic = self._topics[sequence % len(self._topics)]
        return Record(topic, key, value, headers, self._begun_ms + sequence)

    def _encode(self, sequence: int) -> bytes:
        record = self.record(sequence)
        own = [(name, value) for name, value in record.headers if name != ID]
        return encode_message(
            record.topic.encode(), record.value, key=record.key, timestamp=record.sent_ms, headers=own
        )

    def start(self, bootstrap: str, seconds: float) -> None:
        """Produce the records in a thread, over about so long; those of strangers first."""
        self._thread = threading.Thread(
            target=self._send, args=(bootstrap, seconds), name="planted", daemon=True
        )
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait until all are written. Raises what went wrong."""
        assert self._thread
        self._thread.join(timeout_s)
        if self._error:
            raise self._error
        if self._thread.is_alive():
            raise RuntimeError(f"the records of the planted spool are not written after {timeout_s:.0f} s")

    def _send(self, bootstrap: str, seconds: float) -> None:
        try:
            producer = make_producer(bootstrap)
            for one in self._strangers():
                write(producer, one)
            gone = set(self.discarded.tolist())
            share = max(1, int(self.messages * PAUSE_S / seconds))
            for sequence in range(self.messages):
                if sequence not in gone:
                    self._spread(sequence, producer)
                if sequence % share == 0:
                    time.sleep(PAUSE_S)
            while producer.flush(1.0):
                pass
        except Exception as error:  # noqa: BLE001  (the thread that waits raises it)
            self._error = error

    def _spread(self, sequence: int, producer: object) -> None:
        record = self.record(sequence)
        copies, fault = self._faults.spread(record)
        if fault is not None:
            self.made[fault.value] += 1
        if fault is Fault.LOSE:
            self.lost.add(sequence)
        if fault in ALTERATIONS:
            self.altered[record.stamp] = fault
        for one in copies:
            write(producer, one)  # type: ignore[arg-type]

    def _strangers(self) -> list[Record]:
        """Without an id, with a broken one, of another spool, with sequences that this one cannot have."""
        stranger = uuid.uuid4().bytes
        ids: list[list[Header]] = [
            [],
            [(ID, b"x" * (HEADER_BYTES - 1))],
            [(ID, None)],
            [(ID, stranger + (7).to_bytes(8, "big"))],
            [(ID, self.uuid + FAR.to_bytes(8, "big"))],
            [(ID, self.uuid + (1 << 63 | 5).to_bytes(8, "big"))],
        ]
        topic, sent_ms = self._topics[0], self._begun_ms
        return [Record(topic, None, b"strange", one, sent_ms) for one in ids for _ in range(STRANGERS)]
