"""The shared page: what the processes of one daemon tell each other, and what `status` reads of it.

A small file on tmpfs, mapped by all. Each field has one writer. Nothing here is the truth: whoever wants
the truth scans the segments; the page says when to look, and where the look may end. Except for SUSPECT: the
page lives as long as the kernel's copy of the files, and so as long as that may not be believed.

Fields are int64; a place in the log is `place(number, position)`, one word, so that it is read whole.
"""

from __future__ import annotations

import os
import time
from enum import IntEnum
from pathlib import Path

import numpy as np

from spool.digest import digest
from spool.disk import FILE_MODE, write_at
from spool.errors import NotAFile, NotOurs
from spool.mapping import Mapping
from spool.own import Owners, open_own, put_own, read_believed

WORDS = 12288
_BYTES = 8 * WORDS
FORMAT = b"brucepg6"
_FAMILY = b"brucepg"
"""With which the format of every release begins."""
MAGIC = int.from_bytes(FORMAT, "little")


class Field(IntEnum):
    """Word numbers. Each writer's words have a cache line of their own."""

    MAGIC = 0
    STARTED_NS = 1
    """When the supervisor started, ns since the epoch."""
    DIRECTORY = 2
    """supervisor: which directory the spool is (directory_word); 0: not known."""

    WRITTEN = 8
    """ingest: the place behind the last frame."""
    WRITTEN_SEQUENCE = 9
    """ingest: the next sequence number to be written."""

    SYNCED = 16
    """keeper: the place behind the last synced and indexed frame."""
    SYNCED_SEQUENCE = 17
    SPARE = 18
    """keeper: the highest number of a spare that is ready."""
    FULL = 19
    """keeper: why the spool has no room (spool.fullness.Full), so that no spare will come; 0 while it has."""
    KEEPER_WAITS = 20
    """keeper: 1 while it sleeps until its bell rings."""
    SYNC_ERROR = 21
    """keeper: errno of the last failed file operation, 0 after a good sync."""
    SUSPECT = 22
    """keeper: the number of the segment whose sync has failed, 0 for none: nothing more is stored into it."""
    RENEWED = 23
    """keeper: segments whose sync failed, and which were written anew."""

    FLOOR = 24
    """delivery: every message below this sequence is resolved."""
    FRONTIER = 25
    """delivery: every message below this sequence was read, and is counted where its topic has a quota."""

    WORKERS = 32
    """supervisor: 8 rows of WORKER_WORDS: pid, restarts, and from the worker itself its BEAT."""
    DELIVERED = 64
    """delivery: messages delivered since the page was made."""
    DISCARDED = 65
    """delivery: accepted messages discarded since the page was made."""
    LAST_TROUBLE_NS = 66
    """delivery: when there was trouble last, ns since the epoch."""

    ACK = 872
    """acknowledger: messages taken, replies sent and dropped, messages waited for now, messages refused."""
    TROUBLE = 880
    """delivery: why nothing can be sent: bytes, their digest, then the UTF-8 text; no bytes: it can."""

    FULL_SINCE_NS = 1024
    """keeper: since when it is full, ns since the epoch."""
    WHEN_FULL = 1025
    """keeper: what becomes of new messages without room (spool.fullness.WhenFull)."""
    EVICT = 1026
    """keeper: messages below this sequence are to be given up; there is no room for them any more."""
    QUOTAS = 1032
    """keeper: how many topics have more undelivered than their quota; see spool.quotas."""
    QUOTA_TOPICS = 1033
    """keeper: how many topics have a quota."""
    MAX_BYTES = 1034
    """keeper: [spool] max_bytes."""
    MIN_FREE_BYTES = 1035
    """keeper: [spool] min_free_bytes; -1: not given."""
    QUOTA_ROWS = 1040
    """keeper, delivery: rows of QUOTA_ROW words, one a topic."""

    HOLD = 3936
    """who has the flock on SPOOL/hold: until when nothing is to be received, ns of CLOCK_MONOTONIC."""
    HELD = 3944
    """ingest: the HOLD by which it receives nothing at the moment; 0 when it does."""
    STREAMS_HELD = 3952
    """stream worker: the same; 1 when it receives, 0 when there is none."""
    CONNECTIONS = 3960
    """stream worker: how many connections came and went; see ingest.connections."""

    BROKERS = 4096
    """delivery: count, then rows of BROKER_WORDS: id, state, offset, messages in flight, acknowledged."""
    LAST_TROUBLE = 5200
    """delivery: the newest text that TROUBLE had."""
    HISTORY = 5376
    """keeper: how many samples there were, then rows of them; see spool.history."""
    SIZES = 9216
    """ingest: how large messages are; see spool.histogram."""
    LATENCY = 9280
    """delivery: how long messages took; see spool.histogram."""
    HANDED_OVER = 9312
    """delivery: messages handed to the producer since the page was made, those sent again included."""
    METADATA_NS = 9313
    """delivery: when Kafka's metadata came last, ns since the epoch."""
    METADATA_CHANGED_NS = 9314
    """delivery: when they were others than before."""
    METADATA_ANSWERS = 9315
    """delivery: how often they came since the page was made."""
    METADATA_FAILURES = 9316
    """delivery: how often they were asked for and did not come."""
    METADATA_WANTED = 9320
    """status: how often somebody has asked for them to be fetched now."""
    BROKER_TIMES = 9344
    """delivery: rows of BROKER_TIME_WORDS, in the order of BROKERS; see dispatch.timings."""
    UNREAD = 11776
    """delivery: what the disk does not give at present, and is passed by: a text, as TROUBLE."""


WORKER_WORDS = 4
BEAT = 2
"""In a row of WORKERS: when the worker's loop last turned, ns of CLOCK_MONOTONIC; 0 before it has."""
BROKER_WORDS = 5
BROKER_TIME_WORDS = 12
BROKER_ROWS = 200
QUOTA_ROW = 48
HOLD_NS = 5_000_000_000
"""A hold is renewed again and again: one that reaches farther than this into the future is none."""
MOST_QUOTAS = 60
TEXT_BYTES = 1024
"""Most bytes of a text."""


def place(number: int, position: int) -> int:
    """A place in the log as one int64: segment number and offset (a multiple of 8)."""
    return (number << 32) | (position >> 3)


def split_place(word: int) -> tuple[int, int]:
    """(segment number, offset) of a place."""
    return word >> 32, (word & 0xFFFFFFFF) << 3


class Page:
    """One mapped page; `words` int64[WORDS]."""

    def __init__(self, path: Path, owners: Owners = ()) -> None:
        """Map the page at `path`, which is made when none of ours, or of this release, is there.

        `owners`: who else may have made it. Raises NotOurs where others may write to its directory, OSError.
        """
        if read_page(path, owners) is None:
            head = np.zeros(WORDS, np.int64)
            head[Field.MAGIC] = MAGIC
            put_own(path, lambda fd: write_at(fd, head.tobytes(), 0), FILE_MODE)
        self._mapping = Mapping(open_own(path, owners=owners), length=_BYTES)
        self.words = self._mapping.bytes.view(np.int64)
        self.address = self._mapping.address

    def address_of(self, field: Field) -> int:
        """Where a field lies, for kernels."""
        return self.address + 8 * int(field)

    def place(self, field: Field) -> tuple[int, int]:
        """(segment number, offset) that a field holds."""
        return split_place(int(self.words[field]))

    def beat(self, row: int) -> None:
        """Say that the loop of the worker with this row of WORKERS has turned."""
        self.words[Field.WORKERS + WORKER_WORDS * row + BEAT] = time.monotonic_ns()

    def write_text(self, field: Field, text: str) -> None:
        """Put a text, cut to TEXT_BYTES, at a field; who reads it half-written finds no text."""
        data = text.encode(errors="backslashreplace")[:TEXT_BYTES]
        at = int(field)
        self.words[at] = -1
        room = self.words[at + 2 :][: TEXT_BYTES // 8].view(np.uint8)
        room[: len(data)] = np.frombuffer(data, np.uint8)
        self.words[at + 1] = np.uint64(digest(data)).astype(np.int64)
        self.words[at] = len(data)


def no_beat() -> None:
    """Of a worker that nobody watches."""


def read_text(words: np.ndarray, field: Field) -> str | None:
    """The text at a field of a copied page; None when it was being written."""
    length, check = words[int(field) :][:2].tolist()
    if not 0 <= length <= TEXT_BYTES:
        return None
    data = words[int(field) + 2 :][: TEXT_BYTES // 8].tobytes()[:length]
    if length and digest(data) != check & 0xFFFFFFFFFFFFFFFF:
        return None
    return data.decode("utf-8", "ignore")


def read_page(path: Path, owners: Owners = ()) -> np.ndarray | None:
    """A copy of the words, without mapping; None without a page of ours, of root's or of one of `owners`."""
    data = _read(path, _BYTES + 1, owners)
    words = np.frombuffer(data, np.int64) if len(data) == _BYTES else np.zeros(1, np.int64)
    return words if words[Field.MAGIC] == MAGIC else None


def other_format(path: Path, owners: Owners = ()) -> str | None:
    """The name of a page's format, when another release has made it; else None."""
    name = _read(path, len(FORMAT), owners)
    return name.decode("ascii", "replace") if name.startswith(_FAMILY) and name != FORMAT else None


def _read(path: Path, length: int, owners: Owners) -> bytes:
    try:
        return read_believed(path, length, owners=owners)
    except (FileNotFoundError, NotADirectoryError, PermissionError, NotAFile, NotOurs):
        return b""


def bump(path: Path, field: Field) -> None:
    """Add one to a word of the page at `path`, for its one writer. Raises NotOurs, OSError without a page."""
    fd = open_own(path)
    try:
        count = int.from_bytes(os.pread(fd, 8, 8 * field), "little")
        os.pwrite(fd, (count + 1).to_bytes(8, "little"), 8 * field)
    finally:
        os.close(fd)
