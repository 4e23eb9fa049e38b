"""The last batches of idempotent producers: so one that a client sends again is not stored again.

A client numbers its records by producer and partition, and sends a batch again when it has no answer. As a
broker does, we know the last five batches of each producer and partition; what comes next must begin where
the last one ended. The file is on tmpfs beside staging, so it outlives every process; the clients are on this
host, and do not outlive it:

    0     magic "brucepid" layout:u32=1 zero:u32 spool uuid:16
    64    row[MOST_ROWS]
    row   := producer:i64 topic:u64 partition:i32 epoch:i32 uid:u32 used:u32 batch[5]        272 bytes
    batch := count:i32 sequence:i32 begun:i32 stored:i32 first:i64 end:i64 order:i64 run:i64 48 bytes

`topic` is the digest of its name. `used`: when, in s, as the oldest gives way; a row of producer 0 is free.
`count` records of a batch begin at the producer's `sequence`; 0: there is none; the latest has the highest
`order`. The first `stored` of them are in the log, from message `first` on, and before message `end`.

`run` is not 0 while more of them are offered to the ingest worker: (the run's number << 16) | (lane << 10) |
how many OUTCOMEs (ingest.buffers.messages) of that run precede those of this batch. `begun` were stored
before. After a SIGKILL the lanes still say what became of that run, so nothing is forgotten. `count` is
stored last in a new batch, and `run` last in any, so no kill leaves one that says what is not so.
"""

from __future__ import annotations

import os
import struct
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ingest.errors import BadStaging
from spool.native.digest import digest
from spool.storage.disk import Mapping
from spool.storage.ownership import open_own, put_own

MAGIC = b"brucepid"
LAYOUT_VERSION = 1
MOST_ROWS = 16_384
BATCHES = 5
_HEAD = struct.Struct("=8sII16s")
_ROWS_AT = 64
_ROW = struct.Struct("=qQiiII")
_BATCH = struct.Struct("=iiiiqqqq")
_COUNT, _STATE, _RUN = struct.Struct("=i"), struct.Struct("=iiqq"), struct.Struct("=q")
_STATE_AT, _RUN_AT = 8, 40
_ROW_BYTES = _ROW.size + BATCHES * _BATCH.size
_SEQUENCES = 1 << 31
"""A producer's sequences begin again at 0 behind the highest of 31 bits."""


class Range(NamedTuple):
    """Messages of the log, one behind the other."""

    first: int
    messages: int


@dataclass(eq=False, slots=True)
class Batch:
    """One of the last five."""

    slot: int
    """Of its row."""
    sequence: int
    count: int
    begun: int = 0
    stored: int = 0
    first: int = -1
    end: int = 0
    run: int = 0
    parts: list[Range] = field(default_factory=list)
    """Its messages in the log, as far as they were stored by this process."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it is in the log."""
        return self.stored == self.count and not self.run

    @property
    def next(self) -> int:
        """The sequence behind it."""
        return (self.sequence + self.count) % _SEQUENCES


class Key(NamedTuple):
    """A producer numbers the records of each partition by themselves."""

    producer: int
    topic: int
    partition: int


class Producer:
    """A producer's last batches of one partition: a row of the file, and its copy here."""

    __slots__ = ("_at", "_awaited", "_order", "_view", "batches", "epoch", "holder", "key", "uid")

    def __init__(self, view: memoryview, at: int, key: Key, uid: int) -> None:
        self._view, self._at, self.key, self.uid = view, at, key, uid
        self.epoch = -1
        self._order = 0
        self._awaited: int | None = None
        """The first sequence of all, whose batch was refused: a later one may not come before it."""
        self.holder: object | None = None
        """The request that has a batch of it in hand; others wait."""
        self.batches: list[Batch] = []
        """The oldest first."""

    def find(self, sequence: int, count: int) -> Batch | None:
        """The batch that a client sends again."""
        return next((one for one in self.batches if (one.sequence, one.count) == (sequence, count)), None)

    def expects(self, sequence: int) -> bool:
        """Whether a batch that begins with this sequence comes next; any may come first.

        A client takes a batch for stored if a later one of the producer is.
        """
        if not self.batches:
            return self._awaited in (None, sequence)
        last = self.batches[-1]
        return last.is_whole and last.next == sequence

    def restart(self, epoch: int) -> None:
        """Its sequences begin again, in a later epoch."""
        for batch in self.batches:
            self._clear(batch.slot)
        self.epoch, self.batches, self._awaited = epoch, [], None
        self._write_row()

    @property
    def follows(self) -> int | None:
        """The sequence that comes next; None: any may."""
        return self.batches[-1].next if self.batches else self._awaited

    def begin(self, sequence: int, count: int) -> Batch:
        """A batch of `count` records, of which nothing is stored yet; the oldest gives way."""
        if len(self.batches) == BATCHES:
            del self.batches[0]
        taken = {one.slot for one in self.batches}
        slot = next(one for one in range(BATCHES) if one not in taken)
        batch = Batch(slot, sequence, count)
        self.batches.append(batch)
        self._write_row()
        self._clear(slot)
        self._order += 1
        self._put(self._place(slot), _BATCH.pack(0, sequence, 0, 0, -1, 0, self._order, 0))
        self._put(self._place(slot), _COUNT.pack(count))
        return batch

    def drop(self, batch: Batch) -> None:
        """Nothing of it is stored. No effect once the producer was given up."""
        if batch in self.batches:
            self.batches.remove(batch)
            self._clear(batch.slot)
            if not self.batches:
                self._awaited = batch.sequence

    def note(self, batch: Batch) -> None:
        """A batch has changed. No effect once the producer was given up."""
        if batch not in self.batches:
            return
        at = self._place(batch.slot)
        self._put(at + _STATE_AT, _STATE.pack(batch.begun, batch.stored, batch.first, batch.end))
        self._put(at + _RUN_AT, _RUN.pack(batch.run))

    def read(self) -> None:
        """Take over what a predecessor wrote."""
        *_, self.epoch, self.uid, _used = _ROW.unpack_from(self._view, self._at)
        found = []
        for slot in range(BATCHES):
            count, sequence, begun, stored, first, end, order, run = _BATCH.unpack_from(
                self._view, self._place(slot)
            )
            if count:
                found.append((order, Batch(slot, sequence, count, begun, stored, first, end, run)))
        found.sort(key=lambda entry: entry[0])
        self.batches = [batch for _order, batch in found]
        self._order = found[-1][0] if found else 0

    def _place(self, slot: int) -> int:
        return self._at + _ROW.size + slot * _BATCH.size

    def _clear(self, slot: int) -> None:
        self._put(self._place(slot), _COUNT.pack(0))

    def _write_row(self) -> None:
        used = int(time.monotonic()) & 0xFFFFFFFF
        self._put(self._at, _ROW.pack(*self.key, self.epoch, self.uid, used))

    def _put(self, at: int, data: bytes) -> None:
        """Store bytes in one copy: pack_into would clear them before."""
        self._view[at : at + len(data)] = data


class Producers:
    """All of them, of one spool."""

    def __init__(self, path: Path, spool: bytes, *, most: int = MOST_ROWS) -> None:
        """Map the file of spool uuid `spool`; make it if it is not there. Raises BadStaging, OSError."""
        if not os.path.lexists(path):
            _create(path, spool, most)
        file = open_own(path, secret=True)
        if os.pread(file, _HEAD.size, 0) != _HEAD.pack(MAGIC, LAYOUT_VERSION, 0, spool):
            os.close(file)
            raise BadStaging(f"{path} holds no producers of this spool; move it away and start again")
        self._mapping = Mapping(file)
        self._view: memoryview = self._mapping.bytes.data
        rows = (len(self._view) - _ROWS_AT) // _ROW_BYTES
        self._free = list(range(rows - 1, -1, -1))
        self._rows: dict[Key, tuple[int, Producer]] = {}
        self._of: dict[int, OrderedDict[Key, None]] = {}
        """By user, the one that was used longest ago first."""
        self._read(rows)

    def close(self) -> None:
        """Let go of the mapping; what is in there stays."""
        self._view.release()
        self._mapping.close()

    def __iter__(self) -> Iterator[Producer]:
        return iter([producer for _row, producer in self._rows.values()])

    def find(self, producer: int, topic: bytes, partition: int, uid: int) -> Producer:
        """The row of a producer and a partition; a new one if it is not known.

        Without a free row the user with most loses that which it used longest ago.
        """
        key = Key(producer, digest(topic), partition)
        found = self._rows.get(key)
        if found is None:
            return self._add(key, uid)
        self._of[found[1].uid].move_to_end(key)
        return found[1]

    def _add(self, key: Key, uid: int) -> Producer:
        if not self._free:
            self._give_up()
        row = self._free.pop()
        at = _ROWS_AT + row * _ROW_BYTES
        # A process may have been killed while it gave this row up.
        self._view[at : at + _ROW_BYTES] = bytes(_ROW_BYTES)
        made = Producer(self._view, at, key, uid)
        made.restart(-1)
        self._keep(row, made)
        return made

    def _keep(self, row: int, producer: Producer) -> None:
        self._rows[producer.key] = row, producer
        self._of.setdefault(producer.uid, OrderedDict())[producer.key] = None

    def _give_up(self) -> None:
        user = max(self._of, key=lambda uid: len(self._of[uid]))
        # One whose batch is on its way to the log would be answered as if it were not.
        key = next(
            (key for key in self._of[user] if not any(one.run for one in self._rows[key][1].batches)),
            next(iter(self._of[user])),
        )
        row, producer = self._rows.pop(key)
        del self._of[user][key]
        if not self._of[user]:
            del self._of[user]
        at = _ROWS_AT + row * _ROW_BYTES
        self._view[at : at + _ROW_BYTES] = bytes(_ROW_BYTES)
        producer.batches = []
        self._free.append(row)

    def _read(self, rows: int) -> None:
        found = []
        for row in range(rows):
            at = _ROWS_AT + row * _ROW_BYTES
            producer, topic, partition, _epoch, uid, used = _ROW.unpack_from(self._view, at)
            if producer:
                one = Producer(self._view, at, Key(producer, topic, partition), uid)
                one.read()
                found.append((used, row, one))
        for _used, row, one in sorted(found, key=lambda entry: entry[0]):
            self._keep(row, one)
        taken = {row for _used, row, _one in found}
        self._free = [row for row in self._free if row not in taken]


def producers_path(staging: Path) -> Path:
    """The file of a spool's producers, beside its staging."""
    return staging.with_suffix(".producers")


def _create(path: Path, spool: bytes, most: int) -> None:
    def fill(fd: int) -> None:
        os.posix_fallocate(fd, 0, _ROWS_AT + most * _ROW_BYTES)
        os.pwrite(fd, _HEAD.pack(MAGIC, LAYOUT_VERSION, 0, spool), 0)

    put_own(path, fill)
