"""Marks: which messages are resolved. Written by the process that delivers, always synced.

    floor     "floor" -> sequence, segment number, check
                         every message below this sequence is resolved
              "partitions" topic -> (from sequence, partitions)..., check
                         how many partitions the topic had, for messages from a sequence on; in order
    mark      segment number:u64be chunk:u32be -> bitmap of 2,008 bytes, check
                         bit i: message 16,064 * chunk + i of the segment is resolved
    offset    broker id:i32be -> sequence, segment number, check
                         the lowest sequence routed to the broker and not resolved; of broker -1: not
                         routed to any, and not resolved
    discard   see spool.marks.discarded
    gone      see spool.marks.discarded
    sample    see spool.marks.discarded

`check` is an xxh3 over key and value. Its seed is the identity of the segment that the row is about
(spool.index.segment_list); for discard, sample and partitions rows, that of the spool. A row that does not
match, from a restored snapshot, a copied spool or bit rot, means "not delivered": losing marks costs
duplicates, never a message. So the offsets replace a lost low watermark (the row `floor`) only when all of
them match: the lowest could be the damaged one.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spool.errors import MarksFailed
from spool.format.wire import Reason
from spool.index.environment import LMDB_REFUSES, look_at, open_surely
from spool.index.segment_list import SegmentInfo, SegmentList
from spool.marks import discarded
from spool.marks.discarded import Changes, Discard, Sample
from spool.native.digest import CHECK_BYTES, CHUNK_BYTES, CHUNK_MESSAGES, UNTOLD, check, matches
from spool.shared.ledger import Discards
from spool.storage.failpoint import reach
from spool.words import counted

log = logging.getLogger("bruce.spool")

_PLACE = struct.Struct("<QQ")
_BROKER_BYTES = 4
_CHECK_READERS = 64
"""Commits between two checks for dead readers: their snapshots would keep old pages for ever."""
MARK_KEY = struct.Struct(">QI")
_PAIR = struct.Struct("<QQ")
_GENERATION, _PROGRESS, _PARTITIONS = b"generation", b"progress", b"partitions "
"""Rows of the table `floor` that belong to no segment."""


Bitmaps = dict[int, dict[int, npt.NDArray[np.uint8]]]
"""By segment number and chunk."""


class Outcomes(NamedTuple):
    """The outcomes of a spool's messages, at one instant."""

    low_watermark: int
    resolved: int
    """Resolved messages, since the spool began."""
    discarded: list[Discards]


class Marks:
    """The marks of one spool."""

    def __init__(self, directory: Path, segment_list: SegmentList, *, readonly: bool = False) -> None:
        """Open the marks, and create them when there are none; `readonly` changes nothing.

        A file that lmdb cannot read is set aside, and delivery begins without marks. Raises MarksFailed or
        SpoolFull when they cannot be created, and LMDB_REFUSES for `readonly` when there are none.
        """
        self.segment_list = segment_list
        self._commits = 0
        self._opened = ExitStack()
        if readonly:
            self._env, self._db = self._opened.enter_context(look_at(directory))
        else:
            try:
                self._open_to_write(directory)
            except LMDB_REFUSES as error:
                self._opened.close()
                raise MarksFailed(f"the marks cannot be opened: {error}") from error

    def _open_to_write(self, directory: Path) -> None:
        self._env, self._db = open_surely(directory)
        self._opened.callback(self._env.close)
        with self._env.begin(write=True) as txn:
            discarded.fold(txn, self._db[b"discard"], self.segment_list.spool)

    def low_watermark(self) -> tuple[int, int]:
        """(sequence, messages below it): every message below is resolved.

        The highest of three: the marks' low watermark, the end of the segments called sent, and, if that row
        of the marks is lost, the lowest of the brokers' offsets.
        """
        with self._env.begin() as txn:
            sequence = self._low_watermark(txn)
        return sequence, self.segment_list.stored_below(sequence)

    def _low_watermark(self, txn: Any) -> int:
        known = self._sequence(b"floor", txn.get(b"floor", db=self._db[b"floor"]))
        if known is None:
            offsets = [sequence for _, sequence in self._offsets(txn)]
            known = min((s for s in offsets if s is not None), default=0) if None not in offsets else 0
        return max(self.segment_list.sent_below(), known)

    def _sequence(self, key: bytes, row: bytes | None) -> int | None:
        """The sequence in a row that has one with a segment; None when it does not match its segment."""
        if row is None or len(row) != _PLACE.size + CHECK_BYTES:
            return None
        sequence, number = _PLACE.unpack(row[:-CHECK_BYTES])
        info = self.segment_list.by_number(number)
        return sequence if info and matches(key, row, info.identity) else None

    def vanished(self) -> tuple[int, int] | None:
        """(first sequence, messages) that are gone with their segments, and not known to be delivered."""
        with self._env.begin() as txn:
            return self._vanished(txn)

    def _vanished(self, txn: Any) -> tuple[int, int] | None:
        # A segment is removed when the low watermark is behind it. So the messages between a low watermark in
        # a removed segment and the first segment that exists were removed by something else; which of them
        # were resolved is not known.
        row = txn.get(b"floor", db=self._db[b"floor"])
        if row is None or len(row) != _PLACE.size + CHECK_BYTES or not self.segment_list.segments:
            return None
        (sequence, number), first = _PLACE.unpack(row[:-CHECK_BYTES]), self.segment_list.segments[0]
        if number >= first.number or sequence >= first.first_sequence:
            return None
        return sequence, min(first.first_sequence - sequence, first.stored)

    def _count_vanished(self, txn: Any) -> None:
        """Count these messages as damaged, in the transaction that moves the low watermark behind them."""
        if gone := self._vanished(txn):
            (first, count), now = gone, time.time_ns()
            counts = Discards(b"", int(Reason.DAMAGED), count, now, now)
            discarded.count(txn, self._db[b"discard"], counts, self.segment_list.spool)
            words = counted(count, "message")
            log.error("segments are gone, and with them %s from %d on: counted as damaged", words, first)

    def generation(self) -> int:
        """How many commits there were; 0 when not known."""
        pair = self._pair(_GENERATION)
        return pair[0] if pair else 0

    def progress(self) -> tuple[int, int] | None:
        """Partition and offset of the last progress record; None when not known."""
        return self._pair(_PROGRESS)

    def _pair(self, key: bytes) -> tuple[int, int] | None:
        with self._env.begin() as txn:
            row = txn.get(key, db=self._db[b"floor"])
        if (
            row is None
            or len(row) != _PAIR.size + CHECK_BYTES
            or not matches(key, row, self.segment_list.spool)
        ):
            return None
        one, other = _PAIR.unpack(row[:-CHECK_BYTES])
        return one, other

    def chunks(self) -> Iterator[tuple[SegmentInfo, int, npt.NDArray[np.uint8]]]:
        """(segment, chunk, bitmap) of the rows that match their segment."""
        with self._env.begin() as txn:
            yield from self._chunks(txn)

    def _chunks(self, txn: Any) -> Iterator[tuple[SegmentInfo, int, npt.NDArray[np.uint8]]]:
        with txn.cursor(self._db[b"mark"]) as cursor:
            for key, value in cursor:
                if len(key) != MARK_KEY.size or len(value) != CHUNK_BYTES + CHECK_BYTES:
                    continue
                number, chunk = MARK_KEY.unpack(key)
                info = self.segment_list.by_number(number)
                if info and matches(key, value, info.identity):
                    yield info, chunk, np.frombuffer(value, np.uint8, CHUNK_BYTES).copy()

    def offsets(self) -> dict[int, int]:
        """Broker id -> lowest sequence routed to it and not resolved, from rows that match."""
        with self._env.begin() as txn:
            found = [(key, sequence) for key, sequence in self._offsets(txn) if len(key) == _BROKER_BYTES]
        return {int.from_bytes(k, "big", signed=True): s for k, s in found if s is not None}

    def _offsets(self, txn: Any) -> Iterator[tuple[bytes, int | None]]:
        with txn.cursor(self._db[b"offset"]) as cursor:
            for key, value in cursor:
                yield key, self._sequence(key, value)

    def partitions(self) -> dict[bytes, list[tuple[int, int]]]:
        """Topic -> (from sequence, partitions), in order, as last written."""
        found = {}
        with self._env.begin() as txn, txn.cursor(self._db[b"floor"]) as cursor:
            for key, row in cursor:
                if key.startswith(_PARTITIONS) and matches(key, row, self.segment_list.spool):
                    found[key[len(_PARTITIONS) :]] = list(_PLACE.iter_unpack(row[:-CHECK_BYTES]))
        return found

    def discards(self) -> list[Discards]:
        """Messages discarded after acceptance, by reason and topic."""
        with self._env.begin() as txn:
            return list(self._read_discards(txn))

    def _read_discards(self, txn: Any) -> Iterator[Discards]:
        return discarded.read_counts(txn, self._db[b"discard"], self.segment_list.spool)

    @property
    def tells_discards(self) -> bool:
        """Whether the table of single discards exists; marks of earlier releases lack it."""
        return b"gone" in self._db

    def lost(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(sequences in order, reasons) of the discarded messages whose segments are kept."""
        if not self.tells_discards:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        with self._env.begin() as txn:
            return discarded.read_bits(txn, self._db[b"gone"], self.segment_list)

    def samples(self) -> list[Sample]:
        """Some of the discarded messages, by reason and topic."""
        if b"sample" not in self._db:
            return []
        with self._env.begin() as txn:
            return list(discarded.read_samples(txn, self._db[b"sample"], self.segment_list.spool))

    def _info(self, sequence: int) -> SegmentInfo:
        """The segment that holds `sequence`, or would hold it."""
        segments = self.segment_list.segments
        return segments[self.segment_list.at(sequence)] if segments else SegmentInfo(0, 0, 0, 0)

    def mismatches(self) -> list[tuple[str, bytes]]:
        """(table, key) of rows that do not match their checksum or their segment, and so count for nothing.

        Skips rows about segments that are gone, or whose header cannot be read at present.
        """
        found = []
        newest = self.segment_list.segments[-1].number if self.segment_list.segments else 0
        for table in (b"floor", b"mark", b"offset", b"discard"):
            with self._env.begin() as txn, txn.cursor(self._db[table]) as cursor:
                for key, row in cursor:
                    number, identity = self._speaks_of(table, key, row)
                    if identity is None and number <= newest:
                        continue
                    if identity is None or not matches(key, row, identity):
                        found.append((table.decode(), key))
        return found

    def _speaks_of(self, table: bytes, key: bytes, row: bytes) -> tuple[int, int | None]:
        """(number, identity) of the segment that a row is about, or of the spool as a whole."""
        if table == b"discard" or key in (_GENERATION, _PROGRESS) or key.startswith(_PARTITIONS):
            return 0, self.segment_list.spool
        number = int.from_bytes(key[:8], "big") if table == b"mark" else int.from_bytes(row[8:16], "little")
        info = self.segment_list.by_number(number)
        return number, info.identity if info and info.identity != UNTOLD else None

    def outcomes(self) -> Outcomes:
        """All resolved and discarded messages, as of one commit."""
        with self._env.begin() as txn:
            # The snapshot first, the segment list second: then each segment that a row is about has its name.
            self.segment_list.refresh()
            low_watermark = self._low_watermark(txn)
            above = 0
            for info, chunk, bitmap in self._chunks(txn):
                first = info.first_sequence + chunk * CHUNK_MESSAGES
                # When a disk has lost the end of the log, marks beyond that end count for nothing.
                end = max(0, self.segment_list.most(info) - chunk * CHUNK_MESSAGES)
                bits = np.unpackbits(bitmap, bitorder="little")
                above += int(bits[max(0, low_watermark - first) : end].sum())
            discards = list(self._read_discards(txn))
            if gone := self._vanished(txn):
                discards.append(Discards(b"", int(Reason.DAMAGED), gone[1], 0, 0))
            return Outcomes(low_watermark, self.segment_list.stored_below(low_watermark) + above, discards)

    def settled(self) -> tuple[int, Bitmaps]:
        """(low watermark, bitmaps of resolved messages above it), as of one commit."""
        found: Bitmaps = {}
        with self._env.begin() as txn:
            self.segment_list.refresh()
            for info, chunk, bitmap in self._chunks(txn):
                found.setdefault(info.number, {})[chunk] = bitmap
            return self._low_watermark(txn), found

    def resolved(self) -> int:
        """Messages resolved since the spool began."""
        return self.outcomes().resolved

    def commit(self, changes: Changes) -> int:
        """Write all changes, or none, durably; the generation. Raises MarksFailed."""
        self.segment_list.refresh()
        try:
            generation = self.generation() + 1
            self._commit(changes, generation)
            reach("mark.committed")
        except LMDB_REFUSES as error:
            raise MarksFailed(f"the marks cannot be written: {error}") from error
        self._commits += 1
        if self._commits % _CHECK_READERS == 0:
            self._env.reader_check()
        return generation

    def _commit(self, changes: Changes, generation: int) -> None:
        with self._env.begin(write=True) as txn:
            pairs = {_GENERATION: (generation, 0), _PROGRESS: changes.progress}
            for key, pair in pairs.items():
                if pair:
                    self._put(txn, b"floor", key, _PAIR.pack(*pair), self.segment_list.spool)
            for (number, chunk), bitmap in changes.chunks.items():
                info = self.segment_list.by_number(number)
                if info:
                    self._put(txn, b"mark", MARK_KEY.pack(number, chunk), bitmap.tobytes(), info.identity)
            if changes.offsets is not None:
                self._replace_offsets(txn, changes.offsets)
            self._put_discards(txn, changes)
            self._put_partitions(txn, changes.partitions)
            if changes.low_watermark is not None:
                self._count_vanished(txn)
                self._put_place(txn, b"floor", b"floor", changes.low_watermark)
                self._drop_below(txn, changes.low_watermark)
            reach("mark.written")

    def _put(self, txn: Any, table: bytes, key: bytes, value: bytes, identity: int) -> None:
        txn.put(key, value + check(key, value, identity), db=self._db[table])

    def _put_place(self, txn: Any, table: bytes, key: bytes, sequence: int) -> None:
        info = self._info(sequence)
        place, row = _PLACE.pack(sequence, info.number), txn.get(key, db=self._db[table])
        if info.identity == UNTOLD and row and row.startswith(place):
            # Keep the row: its check will match when the header can be read again.
            return
        if info.identity == UNTOLD:
            # A check made now would match only until the header can be read: use that of a segment before it.
            info = self._told_before(info.number) or info
        self._put(txn, table, key, _PLACE.pack(sequence, info.number), info.identity)

    def _told_before(self, number: int) -> SegmentInfo | None:
        """The last segment before this one whose header can be read."""
        told = (s for s in self.segment_list.segments if s.number < number and s.identity != UNTOLD)
        return max(told, key=lambda info: info.number, default=None)

    def _put_partitions(self, txn: Any, partitions: dict[bytes, list[tuple[int, int]]]) -> None:
        for topic, history in partitions.items():
            row = b"".join(_PLACE.pack(*entry) for entry in history)
            self._put(txn, b"floor", _PARTITIONS + topic, row, self.segment_list.spool)

    def _replace_offsets(self, txn: Any, offsets: Mapping[int, int]) -> None:
        rows = {
            broker.to_bytes(_BROKER_BYTES, "big", signed=True): sequence
            for broker, sequence in offsets.items()
        }
        with txn.cursor(self._db[b"offset"]) as cursor:
            gone = [key for key, _ in cursor if key not in rows]
        for key in gone:
            txn.delete(key, db=self._db[b"offset"])
        for key, sequence in rows.items():
            self._put_place(txn, b"offset", key, sequence)

    def _put_discards(self, txn: Any, changes: Changes) -> None:
        for counts in _summed(changes.discarded):
            discarded.count(txn, self._db[b"discard"], counts, self.segment_list.spool)
        discarded.put_bits(txn, self._db[b"gone"], self.segment_list, changes.discarded)
        for sample in changes.samples:
            discarded.keep_sample(txn, self._db[b"sample"], sample, self.segment_list.spool)

    def _drop_below(self, txn: Any, low_watermark: int) -> None:
        """Drop the chunks below the low watermark, and the rows of segments that are gone."""
        segments = self.segment_list.segments
        info = self._info(low_watermark)
        keep = MARK_KEY.pack(info.number, max(0, low_watermark - info.first_sequence) // CHUNK_MESSAGES)
        with txn.cursor(self._db[b"mark"]) as cursor:
            while cursor.first() and cursor.key() < keep:
                cursor.delete()
        if segments:
            discarded.drop_bits_before(txn, self._db[b"gone"], segments[0].number)

    def close(self) -> None:
        """Close the environment."""
        self._opened.close()


def _summed(discards: list[Discard]) -> list[Discards]:
    """Sums by reason and topic."""
    sums: dict[tuple[int, bytes], Discards] = {}
    for sequences, reason, topics, now in discards:
        counts = {topics: len(sequences)} if isinstance(topics, bytes) else topics
        for topic, more in counts.items():
            before = sums.get((reason, topic)) or Discards(topic, reason, 0, now, now)
            sums[reason, topic] = Discards(topic, reason, before.count + more, before.first_ns, now)
    return list(sums.values())
