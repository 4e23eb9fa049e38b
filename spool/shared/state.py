"""The shared state: words by which the processes of one daemon inform each other and `status`.

A small file on tmpfs, mapped by all. Each field has one writer. Nothing here is the truth: a process that
needs the truth scans the segments; the shared state says when to scan, and how far. SUSPECT is the exception:
it says not to believe the kernel's copy of a file, and that copy ends with the shared state.

Fields are int64; a log position is `place(number, position)`, one word, so that it is read whole.

`History`: samples of the last hour, which the keeper leaves here for rates. They end with the shared state:
at a restart of the host, or a clean end of the daemon. The deliverer counts outcomes here, since the marks
give totals only to a process that reads them all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spool.errors import NotAFile, NotOurs
from spool.format.segment_format import HEADER_BYTES
from spool.native.digest import digest
from spool.native.memory import Address
from spool.storage.disk import FILE_MODE, Mapping, write_at
from spool.storage.ownership import Owners, open_own, put_own, read_believed

WORDS = 12288
_BYTES = 8 * WORDS
FORMAT = b"brucepg7"
_FAMILY = b"brucepg"
"""The first bytes of the format of every release."""
MAGIC = int.from_bytes(FORMAT, "little")


class Field(IntEnum):
    """Word numbers. Each writer's words have a cache line of their own."""

    MAGIC = 0
    STARTED_NS = 1
    """When the supervisor started, ns since the epoch."""
    DIRECTORY = 2
    """supervisor: which directory the spool is (directory_word); 0: not known."""

    WRITTEN = 8
    """ingest: the log position behind the last frame."""
    WRITTEN_SEQUENCE = 9
    """ingest: the next sequence number to be written."""

    SYNCED = 16
    """keeper: the log position behind the last synced and indexed frame."""
    SYNCED_SEQUENCE = 17
    SPARE = 18
    """keeper: the highest number of a spare that is ready."""
    FULL = 19
    """keeper: why the spool has no room (spool.options.Full), so that no spare will come; 0 while it has."""
    KEEPER_WAITS = 20
    """keeper: 1 while it sleeps until its bell rings."""
    SYNC_ERROR = 21
    """keeper: errno of the last failed file operation, 0 after a good sync."""
    SUSPECT = 22
    """keeper: the number of the segment whose sync has failed, 0 for none: nothing more is stored into it."""
    RENEWED = 23
    """keeper: segments whose sync failed, and which were rewritten."""

    LOW_WATERMARK = 24
    """delivery: every message below this sequence is resolved."""
    READ_POSITION = 25
    """delivery: every message below this sequence was read, and is counted where its topic has a quota."""

    WORKERS = 32
    """supervisor: 8 rows of WORKER_WORDS: pid, restarts, from the worker itself its BEAT, FORKED."""
    DELIVERED = 64
    """delivery: messages delivered since the shared state was made."""
    DISCARDED = 65
    """delivery: accepted messages discarded since the shared state was made."""
    LAST_TROUBLE_NS = 66
    """delivery: when there was trouble last, ns since the epoch."""

    ACK = 872
    """acknowledger: messages taken, replies sent and dropped, messages waited for now, messages refused."""
    ACK_WANTS_MARKS_NS = 877
    """acknowledger: when a client last waited for marks of its messages, ns of CLOCK_MONOTONIC."""
    TROUBLE = 880
    """delivery: why nothing can be sent: bytes, their digest, then the UTF-8 text; no bytes: it can."""

    FULL_SINCE_NS = 1024
    """keeper: since when it is full, ns since the epoch."""
    WHEN_FULL = 1025
    """keeper: how new messages are treated without room (spool.options.WhenFull)."""
    EVICT = 1026
    """keeper: messages below this sequence are to be given up; there is no room for them any more."""
    QUOTAS = 1032
    """keeper: how many topics have more undelivered than their quota; see spool.log.quotas."""
    QUOTA_TOPICS = 1033
    """keeper: how many topics have a quota."""
    MAX_BYTES = 1034
    """keeper: [spool] max_bytes."""
    MIN_FREE_BYTES = 1035
    """keeper: [spool] min_free_bytes; -1: not given."""
    QUOTA_ROWS = 1040
    """keeper, delivery: rows of QUOTA_ROW words, one a topic."""

    PAUSE = 3936
    """holder of the flock on SPOOL/hold: until when to receive nothing, ns of CLOCK_MONOTONIC."""
    PAUSED = 3944
    """ingest: the PAUSE by which it receives nothing at the moment; 0 when it does."""
    STREAMS_PAUSED = 3952
    """stream worker: the same; 1 when it receives, 0 when there is none."""
    CONNECTIONS = 3960
    """stream worker, and the last row Kafka worker: how many connections came and went; see
    ingest.buffers.connection_buffer."""
    KAFKA = 4000
    """Kafka worker: what it was asked, and answered; see ingest.kafka.kafka_worker."""
    SYNC_WANTED = 4006
    """Kafka worker: messages below this sequence are to be synced at once, as many clients wait for it."""
    TOPICS_WANTED = 4007
    """Kafka worker: how often its clients asked for other topics than before; see spool.shared.topics."""
    KAFKA_PAUSED = 4008
    """Kafka worker: as STREAMS_PAUSED."""
    KAFKA_WANTS_MARKS_NS = 4009
    """Kafka worker: as ACK_WANTS_MARKS_NS."""
    SYNC_SOON = 4010
    """Kafka worker: the same as SYNC_WANTED, but soon: some client waits for it."""

    BROKERS = 4096
    """delivery: count, then rows of BROKER_WORDS: id, state, offset, messages in flight, acknowledged."""
    LAST_TROUBLE = 5200
    """delivery: the newest text that TROUBLE had."""
    HISTORY = 5376
    """keeper: how many samples there were, then rows of them; see spool.shared.state."""
    SIZES = 9216
    """ingest: how large messages are; see spool.shared.histogram."""
    LATENCY = 9280
    """delivery: how long messages took; see spool.shared.histogram."""
    HANDED_OVER = 9312
    """delivery: messages handed to the producer since the state was made, those sent again included."""
    METADATA_NS = 9313
    """delivery: when Kafka's metadata came last, ns since the epoch."""
    METADATA_CHANGED_NS = 9314
    """delivery: when the metadata last differed from before."""
    METADATA_ANSWERS = 9315
    """delivery: how often the metadata came since the shared state was made."""
    METADATA_FAILURES = 9316
    """delivery: how often the metadata was asked for and did not come."""
    METADATA_WANTED = 9320
    """status: how often a client has asked to fetch the metadata now."""
    BROKER_TIMES = 9344
    """delivery: rows of BROKER_TIME_WORDS, in the order of BROKERS; see dispatch.client."""
    UNREAD = 11776
    """delivery: the unreadable ranges that are skipped at present: a text, like TROUBLE."""
    AWAITED = 11912
    """delivery: the topics that are not there, and may come within their grace time: a text, like TROUBLE."""
    LOST_INPUTS = 12144
    """supervisor: the sockets that programs do not reach at present: a text, like TROUBLE."""


WORKER_WORDS = 4
BEAT = 2
"""In a row of WORKERS: when the worker's loop last turned, ns of CLOCK_MONOTONIC; 0 before it has."""
FORKED = 3
"""In a row of WORKERS: when the worker was started, ns of CLOCK_MONOTONIC; 0 if it is not watched."""
BROKER_WORDS = 5
BROKER_TIME_WORDS = 12
BROKER_ROWS = 200
QUOTA_ROW = 48
_WANTS_MARKS = Field.ACK_WANTS_MARKS_NS, Field.KAFKA_WANTS_MARKS_NS
WANTED_NS = 5_000_000_000
"""A client that has waited for marks may soon do so again."""
PAUSE_NS = 5_000_000_000
"""The holder renews a PAUSE again and again: one that reaches farther than this into the future is void."""
MOST_QUOTAS = 60
TEXT_BYTES = 1024
"""Most bytes of a text."""


def place(number: int, position: int) -> int:
    """A log position as one int64: segment number and offset (a multiple of 8)."""
    return (number << 32) | (position >> 3)


def split_place(word: int) -> tuple[int, int]:
    """(segment number, offset) of a log position."""
    return word >> 32, (word & 0xFFFFFFFF) << 3


def announced_in(word: int, number: int) -> int:
    """The offset up to which frames of a segment were announced, by the word of Field.WRITTEN; 0: not known.

    A segment is announced before its first frame.
    """
    last, position = split_place(word)
    if last == number:
        return position
    return HEADER_BYTES if 0 < last < number else 0


class SharedState:
    """The mapped shared state; `words` int64[WORDS]."""

    def __init__(self, path: Path, owners: Owners = ()) -> None:
        """Map the shared state at `path`; it is made unless one of ours and of this release is there.

        `owners`: other users that may have made it. Raises NotOurs if others may write to its directory,
        OSError.
        """
        if read_shared_state(path, owners) is None:
            head = np.zeros(WORDS, np.int64)
            head[Field.MAGIC] = MAGIC
            put_own(path, lambda fd: write_at(fd, head.tobytes(), 0), FILE_MODE)
        self._mapping = Mapping(open_own(path, owners=owners), length=_BYTES)
        self.words = self._mapping.bytes.view(np.int64)
        self.address = self._mapping.address

    def address_of(self, field: Field) -> Address:
        """The address of a field, for kernels."""
        return Address(self.address + 8 * int(field))

    def place(self, field: Field) -> tuple[int, int]:
        """(segment number, offset) that a field holds."""
        return split_place(int(self.words[field]))

    def beat(self, row: int) -> None:
        """Say that the loop of the worker with this row of WORKERS has turned."""
        self.words[Field.WORKERS + WORKER_WORDS * row + BEAT] = time.monotonic_ns()

    def want_marks(self, field: Field) -> None:
        """Say that a client waits until messages are marked as delivered, in the caller's own field."""
        self.words[field] = time.monotonic_ns()

    def wants_marks(self) -> bool:
        """Whether a client waits for that, or did so a moment ago."""
        wanted_ns = max(int(self.words[field]) for field in _WANTS_MARKS)
        return wanted_ns > 0 and 0 <= time.monotonic_ns() - wanted_ns < WANTED_NS

    def write_text(self, field: Field, text: str) -> None:
        """Put a text, cut to TEXT_BYTES, at a field; a half-written one reads as no text."""
        data = text.encode(errors="backslashreplace")[:TEXT_BYTES]
        at = int(field)
        self.words[at] = -1
        room = self.words[at + 2 :][: TEXT_BYTES // 8].view(np.uint8)
        room[: len(data)] = np.frombuffer(data, np.uint8)
        self.words[at + 1] = np.uint64(digest(data)).astype(np.int64)
        self.words[at] = len(data)


def no_beat() -> None:
    """The beat of a worker without a supervisor."""


def read_text(words: np.ndarray, field: Field) -> str | None:
    """The text at a field of a copied shared state; None when it was being written."""
    length, check = words[int(field) :][:2].tolist()
    if not 0 <= length <= TEXT_BYTES:
        return None
    data = words[int(field) + 2 :][: TEXT_BYTES // 8].tobytes()[:length]
    if length and digest(data) != check & 0xFFFFFFFFFFFFFFFF:
        return None
    return data.decode("utf-8", "ignore")


def read_shared_state(path: Path, owners: Owners = ()) -> np.ndarray | None:
    """A copy of the words, without mapping; None unless it is ours, root's or of one of `owners`."""
    data = _read(path, _BYTES + 1, owners)
    words = np.frombuffer(data, np.int64) if len(data) == _BYTES else np.zeros(1, np.int64)
    return words if words[Field.MAGIC] == MAGIC else None


def other_format(path: Path, owners: Owners = ()) -> str | None:
    """The name of a shared state's format, if another release has made it; else None."""
    name = _read(path, len(FORMAT), owners)
    return name.decode("ascii", "replace") if name.startswith(_FAMILY) and name != FORMAT else None


def _read(path: Path, length: int, owners: Owners) -> bytes:
    try:
        return read_believed(path, length, owners=owners)
    except (FileNotFoundError, NotADirectoryError, PermissionError, NotAFile, NotOurs):
        return b""


def bump(path: Path, field: Field) -> None:
    """Add one to a word of the file, for its one writer. Raises NotOurs, OSError without a file."""
    fd = open_own(path)
    try:
        count = int.from_bytes(os.pread(fd, 8, 8 * field), "little")
        os.pwrite(fd, (count + 1).to_bytes(8, "little"), 8 * field)
    finally:
        os.close(fd)


STEP_S = 5.0
"""Between two samples."""
SAMPLES = 724
"""An hour, and a little more: the keeper may be overwriting the oldest."""
_FRESH_S = 4 * STEP_S
_MINUTE_S = 60.0


class Sample(NamedTuple):
    """Totals at one moment; only their differences mean anything."""

    time_ns: int
    """On a clock that no one sets: CLOCK_MONOTONIC."""
    received: int
    """Datagrams, refused ones included."""
    delivered: int
    discarded: int
    """For any reason, at intake or later."""
    waiting_bytes: int
    """Bytes of disk that undelivered messages take."""


SAMPLE_WORDS = len(Sample._fields)


class Change(NamedTuple):
    """The change between two samples."""

    seconds: float
    received: int
    delivered: int
    discarded: int
    waiting_bytes: int


class History:
    """The samples as their one writer has them."""

    def __init__(self, words: np.ndarray, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """`words`: those of the mapped shared state."""
        self._words, self._clock = words, clock
        newest = samples(words)[-1:]
        self._due_ns = newest[0].time_ns + int(STEP_S * 1e9) if newest else 0

    def due(self) -> bool:
        """Whether it is time for another sample."""
        return self._clock() >= self._due_ns

    def note(self, received: int, delivered: int, discarded: int, waiting_bytes: int) -> None:
        """Leave a sample."""
        now, count = self._clock(), int(self._words[Field.HISTORY])
        self._due_ns = now + int(STEP_S * 1e9)
        self._words[_at(count) :][:SAMPLE_WORDS] = (now, received, delivered, discarded, waiting_bytes)
        self._words[Field.HISTORY] = count + 1


def change_over(words: np.ndarray, seconds: float, now_ns: int) -> Change | None:
    """The change in the last `seconds`, or in as much of them as samples cover; None when none do.

    `words`: of a copied shared state. Also None when the keeper has left no sample lately.
    """
    rows = samples(words)
    if not rows or now_ns - rows[-1].time_ns > _FRESH_S * 1e9:
        return None
    newest = rows[-1]
    within = [row for row in rows if newest.time_ns - row.time_ns <= (seconds + STEP_S / 2) * 1e9]
    first = within[0]
    if first is newest:
        return None
    differences = (int(b - a) for a, b in zip(first[1:], newest[1:], strict=True))
    return Change((newest.time_ns - first.time_ns) / 1e9, *differences)


def grows(words: np.ndarray) -> bool:
    """Whether the backlog, in messages, grew in each quarter of the last minute: a burst is no trend.

    `words`: of a copied shared state.
    """
    rows = samples(words)
    if not rows:
        return False
    # A sample may be some milliseconds late.
    times = [rows[-1].time_ns - int((quarter * _MINUTE_S / 4 + STEP_S / 2) * 1e9) for quarter in range(5)]
    found = [next((row for row in rows if row.time_ns >= time), None) for time in times]
    backlogs = [row.received - row.delivered - row.discarded for row in found if row is not None]
    return rows[0].time_ns <= times[-1] + int(STEP_S * 1e9) and all(b < a for a, b in pairwise(backlogs))


def samples(words: np.ndarray) -> list[Sample]:
    """The samples, in order, without the one that the keeper may be overwriting."""
    count = int(words[Field.HISTORY])
    return [
        Sample(*words[_at(n) :][:SAMPLE_WORDS].tolist()) for n in range(max(0, count - SAMPLES + 1), count)
    ]


def _at(number: int) -> int:
    return Field.HISTORY + 1 + SAMPLE_WORDS * (number % SAMPLES)
