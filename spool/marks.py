"""Marks: which messages are resolved. Written by whoever delivers, always synced.

    floor     "floor" -> sequence, segment number, check
                         every message below this sequence is resolved
              "partitions" topic -> (from sequence, partitions)..., check
                         how many partitions the topic had, for messages from a sequence on; in order
    mark      segment number:u64be chunk:u32be -> bitmap of 2,008 bytes, check
                         bit i: message 16,064 * chunk + i of the segment is resolved
    offset    broker id:i32be -> sequence, segment number, check
                         the lowest sequence routed to the broker and not resolved; of broker -1: not
                         routed to any, and not resolved
    discard   see spool.discarded
    gone      see spool.lost
    sample    see spool.discarded

`check` is an xxh3 over key and value, seeded with the identity of the segment that the row speaks of
(spool.catalogue); of discard, sample and partitions rows, with that of the spool. A row that does not match,
from a restored snapshot, a copied spool or rot, means "not delivered": losing marks costs duplicates, never a
message. So the offsets stand in for a lost floor only when all of them match: the lowest could be the damaged
one.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spool import discarded, lost
from spool.catalogue import Catalogue, SegmentInfo
from spool.changes import CHUNK_BYTES, CHUNK_MESSAGES, Changes, Discard
from spool.crash_point import reach
from spool.discarded import Sample
from spool.environment import LMDB_REFUSES, look_at, open_surely
from spool.errors import MarksFailed
from spool.ledger import Discards
from spool.row import CHECK_BYTES, UNTOLD, check, matches
from spool.wire import Reason

log = logging.getLogger("bruce.spool")

_PLACE = struct.Struct("<QQ")
_BROKER_BYTES = 4
_CHECK_READERS = 64
"""Commits between two looks for readers that died: their snapshots would keep old pages for ever."""
MARK_KEY = struct.Struct(">QI")
_PAIR = struct.Struct("<QQ")
_GENERATION, _PROGRESS, _PARTITIONS = b"generation", b"progress", b"partitions "
"""Rows of the table `floor` that speak of no segment."""


Bitmaps = dict[int, dict[int, npt.NDArray[np.uint8]]]
"""By segment number and chunk."""


class Outcomes(NamedTuple):
    """What became of the messages of a spool, at one instant."""

    floor: int
    resolved: int
    """Messages, since the spool began."""
    discarded: list[Discards]


class Marks:
    """The marks of one spool."""

    def __init__(self, directory: Path, catalogue: Catalogue, *, readonly: bool = False) -> None:
        """Open them, made when they are not there; `readonly` changes nothing.

        A file that lmdb cannot read is set aside, and delivery begins without marks. Raises LMDB_REFUSES when
        they cannot be made, and for `readonly` when there are none.
        """
        self.catalogue = catalogue
        self._commits = 0
        self._env, self._db = look_at(directory) if readonly else open_surely(directory)
        if not readonly:
            with self._env.begin(write=True) as txn:
                discarded.fold(txn, self._db[b"discard"], catalogue.spool)

    def floor(self) -> tuple[int, int]:
        """(sequence, messages below it): everything below is resolved.

        The highest of what the marks say, what the names of sent segments say, and, should the marks be
        lost, the lowest of the brokers' offsets.
        """
        with self._env.begin() as txn:
            sequence = self._floor(txn)
        return sequence, self.catalogue.stored_below(sequence)

    def _floor(self, txn: Any) -> int:
        known = self._sequence(b"floor", txn.get(b"floor", db=self._db[b"floor"]))
        if known is None:
            offsets = [sequence for _, sequence in self._offsets(txn)]
            known = min((s for s in offsets if s is not None), default=0) if None not in offsets else 0
        return max(self.catalogue.sent_below(), known)

    def _sequence(self, key: bytes, row: bytes | None) -> int | None:
        """The sequence in a row that names a place; None when it does not match its segment."""
        if row is None or len(row) != _PLACE.size + CHECK_BYTES:
            return None
        sequence, number = _PLACE.unpack(row[:-CHECK_BYTES])
        info = self.catalogue.by_number(number)
        return sequence if info and matches(key, row, info.identity) else None

    def vanished(self) -> tuple[int, int] | None:
        """(first sequence, messages) that are gone with their segments, not being known as delivered."""
        with self._env.begin() as txn:
            return self._vanished(txn)

    def _vanished(self, txn: Any) -> tuple[int, int] | None:
        # A segment is removed when the floor is behind it. So what lies between a floor in one that is gone
        # and the first that is there was taken by somebody else; what of it was resolved nobody knows.
        row = txn.get(b"floor", db=self._db[b"floor"])
        if row is None or len(row) != _PLACE.size + CHECK_BYTES or not self.catalogue.segments:
            return None
        (sequence, number), first = _PLACE.unpack(row[:-CHECK_BYTES]), self.catalogue.segments[0]
        if number >= first.number or sequence >= first.first_sequence:
            return None
        return sequence, min(first.first_sequence - sequence, first.stored)

    def _count_vanished(self, txn: Any) -> None:
        """Count them as damaged, in the transaction that moves the floor behind them."""
        if gone := self._vanished(txn):
            (first, count), now = gone, time.time_ns()
            counts = Discards(b"", int(Reason.DAMAGED), count, now, now)
            discarded.count(txn, self._db[b"discard"], counts, self.catalogue.spool)
            log.error("%d messages from %d on are gone with their segments; counted as damaged", count, first)

    def generation(self) -> int:
        """How many commits there were; 0 when that is not known."""
        pair = self._pair(_GENERATION)
        return pair[0] if pair else 0

    def progress(self) -> tuple[int, int] | None:
        """Partition and offset of the last progress record; None when that is not known."""
        return self._pair(_PROGRESS)

    def _pair(self, key: bytes) -> tuple[int, int] | None:
        with self._env.begin() as txn:
            row = txn.get(key, db=self._db[b"floor"])
        if row is None or len(row) != _PAIR.size + CHECK_BYTES or not matches(key, row, self.catalogue.spool):
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
                info = self.catalogue.by_number(number)
                if info and matches(key, value, info.identity):
                    yield info, chunk, np.frombuffer(value, np.uint8, CHUNK_BYTES).copy()

    def offsets(self) -> dict[int, int]:
        """Broker id -> lowest sequence routed to it and not resolved, where the row matches."""
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
                if key.startswith(_PARTITIONS) and matches(key, row, self.catalogue.spool):
                    found[key[len(_PARTITIONS) :]] = list(_PLACE.iter_unpack(row[:-CHECK_BYTES]))
        return found

    def discards(self) -> list[Discards]:
        """What was discarded after acceptance, by reason and topic."""
        with self._env.begin() as txn:
            return list(self._read_discards(txn))

    def _read_discards(self, txn: Any) -> Iterator[Discards]:
        return discarded.read_counts(txn, self._db[b"discard"], self.catalogue.spool)

    @property
    def tells_discards(self) -> bool:
        """Whether there is the table for single discards, which marks of earlier releases lack."""
        return b"gone" in self._db

    def lost(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(sequences in order, reasons) of the discarded messages whose segments are kept."""
        if not self.tells_discards:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        with self._env.begin() as txn:
            return lost.read(txn, self._db[b"gone"], self.catalogue)

    def samples(self) -> list[Sample]:
        """Some of the discarded messages, by reason and topic."""
        if b"sample" not in self._db:
            return []
        with self._env.begin() as txn:
            return list(discarded.read_samples(txn, self._db[b"sample"], self.catalogue.spool))

    def _info(self, sequence: int) -> SegmentInfo:
        """The segment in which `sequence` lies, or would."""
        segments = self.catalogue.segments
        return segments[self.catalogue.at(sequence)] if segments else SegmentInfo(0, 0, 0, 0)

    def mismatches(self) -> list[tuple[str, bytes]]:
        """(table, key) of rows that do not match their checksum or their segment, and so count for nothing.

        What speaks of segments that are gone, or whose header cannot be read at present, is passed over.
        """
        found = []
        newest = self.catalogue.segments[-1].number if self.catalogue.segments else 0
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
        """(number, identity) of what a row speaks of: a segment, or as a whole the spool."""
        if table == b"discard" or key in (_GENERATION, _PROGRESS) or key.startswith(_PARTITIONS):
            return 0, self.catalogue.spool
        number = int.from_bytes(key[:8], "big") if table == b"mark" else int.from_bytes(row[8:16], "little")
        info = self.catalogue.by_number(number)
        return number, info.identity if info and info.identity != UNTOLD else None

    def outcomes(self) -> Outcomes:
        """Everything that was resolved and discarded, as of one commit."""
        with self._env.begin() as txn:
            # The snapshot first, the look second: each segment that a row speaks of then has its name.
            self.catalogue.refresh()
            floor = self._floor(txn)
            above = 0
            for info, chunk, bitmap in self._chunks(txn):
                first = info.first_sequence + chunk * CHUNK_MESSAGES
                # Marks that are ahead of a log which a disk has lost the end of speak of nothing.
                end = max(0, self.catalogue.most(info) - chunk * CHUNK_MESSAGES)
                bits = np.unpackbits(bitmap, bitorder="little")
                above += int(bits[max(0, floor - first) : end].sum())
            discards = list(self._read_discards(txn))
            if gone := self._vanished(txn):
                discards.append(Discards(b"", int(Reason.DAMAGED), gone[1], 0, 0))
            return Outcomes(floor, self.catalogue.stored_below(floor) + above, discards)

    def settled(self) -> tuple[int, Bitmaps]:
        """(floor, what is resolved above it), as of one commit."""
        found: Bitmaps = {}
        with self._env.begin() as txn:
            self.catalogue.refresh()
            for info, chunk, bitmap in self._chunks(txn):
                found.setdefault(info.number, {})[chunk] = bitmap
            return self._floor(txn), found

    def resolved(self) -> int:
        """Messages resolved since the spool began."""
        return self.outcomes().resolved

    def commit(self, changes: Changes) -> int:
        """Write all of it, or nothing, durably; the generation. Raises MarksFailed."""
        self.catalogue.refresh()
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
                    self._put(txn, b"floor", key, _PAIR.pack(*pair), self.catalogue.spool)
            for (number, chunk), bitmap in changes.chunks.items():
                info = self.catalogue.by_number(number)
                if info:
                    self._put(txn, b"mark", MARK_KEY.pack(number, chunk), bitmap.tobytes(), info.identity)
            if changes.offsets is not None:
                self._replace_offsets(txn, changes.offsets)
            self._put_discards(txn, changes)
            self._put_partitions(txn, changes.partitions)
            if changes.floor is not None:
                self._count_vanished(txn)
                self._put_place(txn, b"floor", b"floor", changes.floor)
                self._drop_below(txn, changes.floor)
            reach("mark.written")

    def _put(self, txn: Any, table: bytes, key: bytes, value: bytes, identity: int) -> None:
        txn.put(key, value + check(key, value, identity), db=self._db[table])

    def _put_place(self, txn: Any, table: bytes, key: bytes, sequence: int) -> None:
        info = self._info(sequence)
        place, row = _PLACE.pack(sequence, info.number), txn.get(key, db=self._db[table])
        if info.identity == UNTOLD and row and row.startswith(place):
            # With the check that it has it holds when the header can be read again.
            return
        if info.identity == UNTOLD:
            # Else it would hold only until the header can be read: one before it says which log this is.
            info = self._told_before(info.number) or info
        self._put(txn, table, key, _PLACE.pack(sequence, info.number), info.identity)

    def _told_before(self, number: int) -> SegmentInfo | None:
        """The last segment before this one whose header can be read."""
        told = (s for s in self.catalogue.segments if s.number < number and s.identity != UNTOLD)
        return max(told, key=lambda info: info.number, default=None)

    def _put_partitions(self, txn: Any, partitions: dict[bytes, list[tuple[int, int]]]) -> None:
        for topic, history in partitions.items():
            row = b"".join(_PLACE.pack(*entry) for entry in history)
            self._put(txn, b"floor", _PARTITIONS + topic, row, self.catalogue.spool)

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
            discarded.count(txn, self._db[b"discard"], counts, self.catalogue.spool)
        lost.put(txn, self._db[b"gone"], self.catalogue, changes.discarded)
        for sample in changes.samples:
            discarded.keep_sample(txn, self._db[b"sample"], sample, self.catalogue.spool)

    def _drop_below(self, txn: Any, floor: int) -> None:
        """Drop the chunks that lie below the floor, and what is known of segments that are gone."""
        segments = self.catalogue.segments
        info = self._info(floor)
        keep = MARK_KEY.pack(info.number, max(0, floor - info.first_sequence) // CHUNK_MESSAGES)
        with txn.cursor(self._db[b"mark"]) as cursor:
            while cursor.first() and cursor.key() < keep:
                cursor.delete()
        if segments:
            lost.drop_before(txn, self._db[b"gone"], segments[0].number)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _summed(discards: list[Discard]) -> list[Discards]:
    """By reason and topic."""
    sums: dict[tuple[int, bytes], Discards] = {}
    for sequences, reason, topics, now in discards:
        counts = {topics: len(sequences)} if isinstance(topics, bytes) else topics
        for topic, more in counts.items():
            before = sums.get((reason, topic)) or Discards(topic, reason, 0, now, now)
            sums[reason, topic] = Discards(topic, reason, before.count + more, before.first_ns, now)
    return list(sums.values())
