"""Head scan: messages by topic and by uid, from frames that were verified a moment ago.

For a command that looks at a spool in use while other processes need the processors. Frames that the keeper
or the command itself has verified are not verified again. NumPy counts some thousand messages at a time:
0.1 µs for each, and 3 µs for each frame. The compiled loops need a tenth of that, and half a second to load.
So a head scan is for a segment or two, and only while those loops are not loaded.

Each head names the digest of the frame before it. The scan compares the two, so it notices when it is astray.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool
from spool.format.segment_format import HEAD_BYTES, HEADER_BYTES, PIDS, UIDS, Record
from spool.format.topic_table import ILLEGAL, LEGAL_BYTES, counted_name
from spool.format.wire import KIND_AT, NUMBER_BYTES, TOPIC_AT, TOPIC_SIZE_BYTES
from spool.storage.disk import read_at

MOST_FRAMES = 1 << 17
"""Most frames of a head scan: for twice as many, the compiled loops take no longer, loading included."""
CHUNK_BYTES = 256 << 10
_HEAD = struct.Struct("<QIHHIIIIQQQQ")
"""spool.format.segment_format.HEAD."""

Bytes = npt.NDArray[np.uint8]


class Astray(BadSpool):
    """The next frame is not the one that should follow, or a head scan cannot count it."""


class Entrance(NamedTuple):
    """The position before a frame."""

    offset: int
    previous: int
    """The digest of the frame before it."""
    burst: int
    """Of the frame before it."""


class Head(NamedTuple):
    """The head of a frame, and its offset in the bytes that were read."""

    at: int
    digest: int
    mark: int
    head_bytes: int
    flags: int
    messages: int
    discarded: int
    body_bytes: int
    discard_bytes: int
    first_sequence: int
    burst: int
    received_ns: int
    previous: int

    @property
    def lengths_at(self) -> int:
        """Offset of the lengths of its datagrams, uint32[count]; uids and pids follow, if it has them."""
        return self.at + HEAD_BYTES

    @property
    def datagrams_at(self) -> int:
        """Offset of its datagrams."""
        columns = 1 + bool(self.flags & UIDS) + bool(self.flags & PIDS)
        return self.lengths_at + 4 * self.messages * columns


Run = tuple[Bytes, list[Head]]
"""Bytes of a segment, and the frames in them."""


def entrance_of(header: Record) -> Entrance:
    """The position before the first frame of a segment."""
    return Entrance(HEADER_BYTES, int(header["previous"]), int(header["burst"]))


def runs(fd: int, entrance: Entrance, last_burst: int) -> Iterator[Run]:
    """The frames from `entrance` on, up to the one of `last_burst`. Raises Astray, ReadFailed."""
    room = CHUNK_BYTES
    while entrance.burst < last_burst:
        data = read_at(fd, room, entrance.offset)
        found, behind = _frames_in(data, entrance, last_burst)
        if found:
            yield np.frombuffer(data, np.uint8), found
        elif len(data) < room:
            raise Astray(f"the log ends at byte {entrance.offset}, before burst {last_burst}")
        else:
            room *= 2
        entrance = behind


def _frames_in(data: bytes, entrance: Entrance, last_burst: int) -> tuple[list[Head], Entrance]:
    """(frames that are whole in these bytes, the position behind them). Raises Astray."""
    found: list[Head] = []
    at, previous, burst = 0, entrance.previous, entrance.burst
    while burst < last_burst and at + HEAD_BYTES <= len(data):
        head = Head(at, *_HEAD.unpack_from(data, at))
        if head.head_bytes != HEAD_BYTES or head.previous != previous or head.burst <= burst:
            raise Astray(f"the frame at byte {entrance.offset + at} is not the one behind burst {burst}")
        behind = at + HEAD_BYTES + (head.body_bytes + 7 & ~7)
        if behind > len(data):
            break
        found.append(head)
        at, previous, burst = behind, head.digest, head.burst
    return found, Entrance(entrance.offset + at, previous, burst)


def topics_of(run: Run, rows: npt.NDArray[np.bool_] | None = None) -> Counter[bytes]:
    """The messages of a run by topic, or those in `rows`, bool[messages]; raises Astray.

    Names are those that a table of `Topics.of_counter` has.
    """
    data, heads = run[0], [head for head in run[1] if head.messages]
    counts = Counter[bytes]()
    if not heads:
        return counts
    try:
        at = _datagrams(data, heads)
        at = at if rows is None else at[rows]
        at = at + TOPIC_AT + NUMBER_BYTES * (data[at + KIND_AT] != 0)
        sizes = data[at].astype(np.int64) << 8 | data[at + 1]
        order = np.argsort(sizes, kind="stable")
        at, sizes = at[order], sizes[order]
        for same in np.split(at, np.flatnonzero(np.diff(sizes)) + 1):
            size = int(data[same[0]]) << 8 | int(data[same[0] + 1])
            if not 0 < size <= LEGAL_BYTES:
                counts[ILLEGAL] += len(same)
                continue
            names = data[same[:, None] + np.arange(TOPIC_SIZE_BYTES, TOPIC_SIZE_BYTES + size)]
            for name, count in Counter(names.view(f"V{size}")[:, 0].tolist()).items():
                counts[counted_name(name)] += count
    except (IndexError, TypeError, ValueError) as error:
        raise Astray("frames hold what is no list of datagrams") from error
    return counts


def _datagrams(data: Bytes, heads: list[Head]) -> npt.NDArray[np.int64]:
    """The offset of each datagram."""
    rows = np.array([(head.datagrams_at, head.messages) for head in heads], np.int64)
    columns = [data[head.lengths_at :][: 4 * head.messages] for head in heads]
    lengths = np.concatenate(columns).view("<u4").astype(np.int64)
    at = np.cumsum(lengths) - lengths
    firsts = np.cumsum(rows[:, 1]) - rows[:, 1]
    found: npt.NDArray[np.int64] = at + np.repeat(rows[:, 0] - at[firsts], rows[:, 1])
    return found


def uids_of(run: Run, after: int) -> Counter[int]:
    """The messages of a run behind the burst `after`, by the sender's uid.

    Also raises Astray for refused datagrams and messages without a uid: those are read one by one.
    """
    data, heads = run[0], [head for head in run[1] if head.burst > after]
    if any(head.discarded or (head.messages and not head.flags & UIDS) for head in heads):
        raise Astray("not all frames are of stored messages with a uid")
    columns = [data[head.lengths_at + 4 * head.messages :][: 4 * head.messages] for head in heads]
    if not columns:
        return Counter()
    uids, counts = np.unique(np.concatenate(columns).view("<u4"), return_counts=True)
    return Counter(dict(zip(uids.tolist(), counts.tolist(), strict=True)))
