"""Marks: which messages are resolved. The other home of lmdb, written by whoever delivers, always synced.

    floor     "floor" -> sequence, segment number, check
                         every message below this sequence is resolved
    mark      segment number:u64be chunk:u32be -> check, bitmap of 2,008 bytes
                         bit i: message 16,064 * chunk + i of the segment is resolved
    offset    broker id:i32be -> sequence, segment number, check
                         the lowest sequence routed to the broker and not resolved; of broker -1: not
                         routed to any, and not resolved
    discard   reason:u16be topic -> messages, first and last time (ns), check
                         discarded after acceptance, since the spool began
    lost      sequence:u64be -> reason:u16         each message discarded, while its segment is kept

`check` is an xxh3 over key and value, seeded with the identity of the segment that the row speaks of
(spool.catalogue). A row that does not match, from a restored snapshot, a copied spool or rot, means "not
delivered": losing marks costs duplicates, never a message.

A chunk is a little less than half a page, so that LMDB keeps two in one and copies no more than it must.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt

from spool.catalogue import Catalogue, SegmentInfo
from spool.digest import digest
from spool.disk import make_directory
from spool.ledger import Discards

CHUNK_BYTES = 2008
CHUNK_MESSAGES = 8 * CHUNK_BYTES
MAP_BYTES = 4 << 30
"""Address space, not disk: one bit a message between the floor and the last one handed over."""
_TABLES = (b"floor", b"mark", b"offset", b"discard", b"lost")
_PLACE = struct.Struct("<QQ")
_COUNT = struct.Struct("<QQQ")
_MARK_KEY = struct.Struct(">QI")


@dataclass(slots=True)
class Changes:
    """What one transaction writes. Sequences are int64; bitmaps uint8[CHUNK_BYTES]."""

    floor: int | None = None
    chunks: dict[tuple[int, int], npt.NDArray[np.uint8]] = field(default_factory=dict)
    """By (segment number, chunk)."""
    offsets: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> sequence."""
    discarded: list[tuple[int, int, bytes, int]] = field(default_factory=list)
    """(sequence, reason, topic, time in ns)."""


class Marks:
    """The marks of one spool."""

    def __init__(self, directory: Path, catalogue: Catalogue, *, readonly: bool = False) -> None:
        """Open them, made when they are not there; `readonly` writes nothing, the lock file included.

        Raises lmdb.Error when they cannot be read.
        """
        self.catalogue = catalogue
        if not readonly:
            make_directory(directory)
        self._env = lmdb.open(
            str(directory),
            map_size=MAP_BYTES,
            max_dbs=len(_TABLES),
            readonly=readonly,
            lock=not readonly,
            create=not readonly,
            mode=0o660,
        )
        self._db: dict[bytes, Any] = {t: self._env.open_db(t, create=not readonly) for t in _TABLES}

    def floor(self) -> tuple[int, int]:
        """(sequence, messages below it): everything below is resolved.

        The highest of what the marks say, what the names of sent segments say, and, should the marks be
        lost, the lowest of the brokers' offsets.
        """
        sequence = self.catalogue.sent_below()
        with self._env.begin() as txn:
            row = txn.get(b"floor", db=self._db[b"floor"])
        known = self._sequence(b"floor", row)
        if known is None:
            known = min(self.offsets().values(), default=0)
        sequence = max(sequence, known)
        return sequence, self.catalogue.stored_below(sequence)

    def _sequence(self, key: bytes, row: bytes | None) -> int | None:
        """The sequence in a row that names a place; None when it does not match its segment."""
        if row is None or len(row) != _PLACE.size + 8:
            return None
        sequence, number = _PLACE.unpack(row[:-8])
        info = self.catalogue.by_number(number)
        return sequence if info and row[-8:] == _check(key + row[:-8], info.identity) else None

    def chunks(self) -> Iterator[tuple[SegmentInfo, int, npt.NDArray[np.uint8]]]:
        """(segment, chunk, bitmap) of the rows that match their segment."""
        with self._env.begin() as txn, txn.cursor(self._db[b"mark"]) as cursor:
            for key, value in cursor:
                number, chunk = _MARK_KEY.unpack(key)
                info = self.catalogue.by_number(number)
                if (
                    info
                    and len(value) == 8 + CHUNK_BYTES
                    and value[:8] == _check(key + value[8:], info.identity)
                ):
                    yield info, chunk, np.frombuffer(value, np.uint8, offset=8).copy()

    def offsets(self) -> dict[int, int]:
        """Broker id -> lowest sequence routed to it and not resolved, where the row matches."""
        found = {}
        with self._env.begin() as txn, txn.cursor(self._db[b"offset"]) as cursor:
            for key, value in cursor:
                sequence = self._sequence(key, value)
                if sequence is not None:
                    found[int.from_bytes(key, "big", signed=True)] = sequence
        return found

    def discards(self) -> list[Discards]:
        """What was discarded after acceptance, by reason and topic."""
        with self._env.begin() as txn, txn.cursor(self._db[b"discard"]) as cursor:
            return [
                Discards(key[2:], int.from_bytes(key[:2], "big"), *_COUNT.unpack(value[:-8]))
                for key, value in cursor
                if value[-8:] == _check(key + value[:-8], 0)
            ]

    def lost(self) -> dict[int, int]:
        """Sequence -> reason of each discarded message whose segment is kept."""
        with self._env.begin() as txn, txn.cursor(self._db[b"lost"]) as cursor:
            return {int.from_bytes(key, "big"): int.from_bytes(value, "little") for key, value in cursor}

    def resolved(self) -> int:
        """Messages resolved since the spool began."""
        floor, below = self.floor()
        above = 0
        for info, chunk, bitmap in self.chunks():
            first = info.first_sequence + chunk * CHUNK_MESSAGES
            bits = np.unpackbits(bitmap, bitorder="little")
            above += int(bits[max(0, floor - first) :].sum())
        return below + above

    def commit(self, changes: Changes) -> None:
        """Write all of it, or nothing, durably. Raises lmdb.Error."""
        with self._env.begin(write=True) as txn:
            for (number, chunk), bitmap in changes.chunks.items():
                info = self.catalogue.by_number(number)
                if info:
                    key, value = _MARK_KEY.pack(number, chunk), bitmap.tobytes()
                    txn.put(key, _check(key + value, info.identity) + value, db=self._db[b"mark"])
            for broker, sequence in changes.offsets.items():
                key = broker.to_bytes(4, "big", signed=True)
                txn.put(key, self._place(key, sequence), db=self._db[b"offset"])
            for sequence, reason, topic, now in changes.discarded:
                self._discard(txn, sequence, reason, topic, now)
            if changes.floor is not None:
                txn.put(b"floor", self._place(b"floor", changes.floor), db=self._db[b"floor"])
                self._drop_below(txn, changes.floor)

    def _place(self, key: bytes, sequence: int) -> bytes:
        at = self.catalogue.at(sequence)
        info = self.catalogue.segments[at] if self.catalogue.segments else SegmentInfo(0, 0, 0, 0)
        row = _PLACE.pack(sequence, info.number)
        return row + _check(key + row, info.identity)

    def _discard(self, txn: Any, sequence: int, reason: int, topic: bytes, now: int) -> None:
        key = reason.to_bytes(2, "big") + topic[:400]
        old = txn.get(key, db=self._db[b"discard"])
        count, first, _ = _COUNT.unpack(old[:-8]) if old else (0, now, now)
        row = _COUNT.pack(count + 1, first, now)
        txn.put(key, row + _check(key + row, 0), db=self._db[b"discard"])
        txn.put(sequence.to_bytes(8, "big"), reason.to_bytes(2, "little"), db=self._db[b"lost"])

    def _drop_below(self, txn: Any, floor: int) -> None:
        """Drop the chunks that lie below the floor, and what is known of segments that are gone."""
        segments = self.catalogue.segments
        info = segments[self.catalogue.at(floor)] if segments else SegmentInfo(0, 0, 0, 0)
        keep = _MARK_KEY.pack(info.number, max(0, floor - info.first_sequence) // CHUNK_MESSAGES)
        oldest = segments[0].first_sequence.to_bytes(8, "big") if segments else b""
        for table, limit in ((b"mark", keep), (b"lost", oldest)):
            with txn.cursor(self._db[table]) as cursor:
                while cursor.first() and cursor.key() < limit:
                    cursor.delete()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _check(data: bytes, identity: int) -> bytes:
    return digest(data, identity).to_bytes(8, "little")
