"""The file of a witness, DIR/witness.db, in SQLite: all that it has seen, by tier and spool.

A checkpoint writes the positions in Kafka and all that changed since the last one in one transaction. After a
SIGKILL or a power loss, reading goes on at the positions of the last checkpoint, and each record counts once.
It writes only parts that changed: of a bitmap 2^24 numbers at a time, and the sums of single blocks.

    witness_tiers      tier, name, counters, facts (JSON)
    witness_positions  tier, topic, partition: the next offset
    witness_spools     spool, tier, uuid: the block from which on there are no sums
    witness_bitmaps    spool, name, part: 2^24 numbers of a bitmap (`pipeline.witness.seen`), in the portable
                       format of Roaring (64 bits), and the XXH3 of these bytes
    witness_blocks     spool, block: sums and counts of blocks that are not settled

Numbers of 64 bits are signed here, as SQLite has no others. `PRAGMA user_version` is the version of this
format: a later one is refused.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyroaring import BitMap64

from pipeline.errors import NoWitness, PipelineError
from pipeline.witness.seen import SpoolSeen
from pipeline.witness.tier import Position, TierState
from spool.format.segment_format import BLOCK
from spool.native.digest import digest
from spool.storage.lock import Lock

VERSION = 1
NAME = "witness.db"
_PLACE = "place"
"""A fact of a tier that is watched: its place in the order."""
BUSY_MS = 10_000
"""A reader that opens the file after a SIGKILL recovers it, and a writer waits so long for that."""
_TABLES = (
    "CREATE TABLE witness_tiers (tier INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,"
    " records INTEGER NOT NULL, skipped INTEGER NOT NULL, foreign_records INTEGER NOT NULL,"
    " negative INTEGER NOT NULL, facts TEXT NOT NULL)",
    "CREATE TABLE witness_positions (tier INTEGER, topic TEXT, partition INTEGER, next INTEGER NOT NULL,"
    " PRIMARY KEY (tier, topic, partition)) WITHOUT ROWID",
    "CREATE TABLE witness_spools (spool INTEGER PRIMARY KEY, tier INTEGER NOT NULL, uuid BLOB NOT NULL,"
    " summed_end INTEGER NOT NULL, UNIQUE (tier, uuid))",
    "CREATE TABLE witness_bitmaps (spool INTEGER, name TEXT, part INTEGER, data BLOB NOT NULL,"
    " xxh3 INTEGER NOT NULL, PRIMARY KEY (spool, name, part))",
    "CREATE TABLE witness_blocks (spool INTEGER, block INTEGER, content INTEGER NOT NULL,"
    " times INTEGER NOT NULL, count INTEGER NOT NULL, untimed INTEGER NOT NULL,"
    " PRIMARY KEY (spool, block)) WITHOUT ROWID",
)
_DAMAGED = (sqlite3.Error, ValueError, IndexError, KeyError, TypeError, OverflowError)
"""The errors that a damaged file makes."""


class BadWitness(PipelineError):
    """The file of a witness is damaged, is a newer release's, or cannot be written."""


class _Tier:
    """A tier, and what of it is written."""

    def __init__(self, tier: TierState) -> None:
        self.tier = tier
        self.row: tuple[Any, ...] = ()
        self.positions = dict[Position, int]()

    def written(self) -> None:
        self.row, self.positions = _row_of(self.tier), dict(self.tier.positions)
        self.tier.written()


class WitnessState:
    """All tiers of a witness. One process writes to it; others may read it meanwhile."""

    def __init__(self, directory: Path, *, readonly: bool = False) -> None:
        """Open the file in a directory, or make both. `readonly`: as the last checkpoint left it.

        Raises BadWitness, OSError, and SpoolBusy if another process writes to it.
        """
        self.path = directory / NAME
        self._tiers = dict[str, _Tier]()
        self._numbers = itertools.count(1)
        self._lock: Lock | None = None
        if not readonly:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(directory / "lock", "the directory of a witness")
        try:
            self._db = self._open_to_read() if readonly else self._open()
        except BaseException:
            self._release()
            raise

    def tier(self, name: str) -> TierState:
        """The tier of this name; it is made if it is not there."""
        if name not in self._tiers:
            self._tiers[name] = _Tier(TierState(next(self._numbers), name, self._numbers))
        return self._tiers[name].tier

    def order(self, names: Sequence[str]) -> None:
        """Watch these tiers, which messages reach in this order. Others keep what they have, and rest."""
        for one in self._tiers.values():
            one.tier.facts.pop(_PLACE, None)
        for place, name in enumerate(names):
            self.tier(name).facts[_PLACE] = place

    def tiers(self) -> list[str]:
        """The names of the tiers that are watched, in order."""
        places = {
            name: int(one.tier.facts[_PLACE]) for name, one in self._tiers.items() if _PLACE in one.tier.facts
        }
        return sorted(places, key=places.__getitem__) or list(self._tiers)

    def checkpoint(self) -> None:
        """Write all that changed: after a crash all of it is there, or none.

        Raises BadWitness; then the next one writes it.
        """
        for one in self._tiers.values():
            # The positions are behind them.
            one.tier.take_news()
        try:
            with _transaction(self._db, "BEGIN IMMEDIATE"):
                for one in self._tiers.values():
                    _write(self._db, one)
        except sqlite3.Error as error:
            raise BadWitness(f"{self.path} cannot be written: {error}") from error
        for one in self._tiers.values():
            one.written()

    def close(self) -> None:
        """Close the file. Changes since the last checkpoint are forgotten."""
        self._db.close()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _open(self) -> sqlite3.Connection:
        try:
            return self._load(self.path.absolute().as_uri(), readonly=False)
        except _DAMAGED as error:
            raise self._bad(error) from error

    def _open_to_read(self) -> sqlite3.Connection:
        if not self.path.exists():
            raise NoWitness(f"{self.path} is not there: no witness has run in this directory")
        address = f"{self.path.absolute().as_uri()}?mode=ro"
        try:
            return self._load(address, readonly=True)
        except _DAMAGED as error:
            # SQLite makes files beside it, but for a user who may not: then no process has it open.
            with contextlib.suppress(*_DAMAGED):
                return self._load(f"{address}&immutable=1", readonly=True)
            raise self._bad(error) from error

    def _bad(self, error: Exception) -> BadWitness:
        return BadWitness(
            f"{self.path} cannot be read ({error}): move it away, and the witness reads all of Kafka again"
        )

    def _load(self, address: str, *, readonly: bool) -> sqlite3.Connection:
        db = sqlite3.connect(address, uri=True, isolation_level=None)
        try:
            db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            if not readonly:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")
            with _transaction(db, "BEGIN" if readonly else "BEGIN IMMEDIATE"):
                if self._is_made(db, readonly=readonly):
                    self._read(db)
        except BaseException:
            db.close()
            raise
        return db

    def _is_made(self, db: sqlite3.Connection, *, readonly: bool) -> bool:
        """Whether there is anything to read; makes the tables in an empty file."""
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if version > VERSION:
            raise BadWitness(
                f"{self.path} has format version {version}, and this release knows {VERSION}: use a newer one"
            )
        if version > 0:
            return True
        if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise ValueError("it is another program's")
        if not readonly:
            for table in _TABLES:
                db.execute(table)
            db.execute(f"PRAGMA user_version = {VERSION}")
        return False

    def _read(self, db: sqlite3.Connection) -> None:
        tiers = dict[int, TierState]()
        for number, name, *counters, facts in db.execute("SELECT * FROM witness_tiers ORDER BY tier"):
            tier = tiers[number] = TierState(number, name, self._numbers)
            tier.records, tier.skipped, tier.foreign, tier.negative = map(int, counters)
            tier.facts = dict(json.loads(facts))
        for number, topic, partition, offset in db.execute("SELECT * FROM witness_positions"):
            tiers[number].positions[topic, partition] = offset
        spools = _read_spools(db, tiers)
        _read_bitmaps(db, spools)
        _read_blocks(db, spools)
        self._numbers = itertools.count(1 + max((*tiers, *spools), default=0))
        self._tiers = {tier.name: _Tier(tier) for tier in tiers.values()}
        for one in self._tiers.values():
            one.tier.begin(self._numbers)
            one.written()


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection, begin: str) -> Iterator[None]:
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _read_spools(db: sqlite3.Connection, tiers: Mapping[int, TierState]) -> dict[int, SpoolSeen]:
    spools = dict[int, SpoolSeen]()
    for number, tier, uuid, summed_end in db.execute("SELECT * FROM witness_spools ORDER BY spool"):
        spools[number] = tiers[tier].add(number, uuid)
        spools[number].summed_end = summed_end
    return spools


def _read_bitmaps(db: sqlite3.Connection, spools: Mapping[int, SpoolSeen]) -> None:
    for number, name, data, xxh3 in db.execute("SELECT spool, name, data, xxh3 FROM witness_bitmaps"):
        if _signed(digest(data)) != xxh3:
            raise ValueError("a bitmap in it is damaged")
        bitmap = spools[number].sets[name].bitmap
        bitmap |= BitMap64.deserialize(data)


def _read_blocks(db: sqlite3.Connection, spools: Mapping[int, SpoolSeen]) -> None:
    for number, block, content, times, count, untimed in db.execute("SELECT * FROM witness_blocks"):
        row = spools[number].row(block)
        if row < 0 or not 0 <= untimed <= count <= BLOCK:
            raise ValueError("the sums of a block in it are damaged")
        spools[number].table.rows[row] = (number, block, content % (1 << 64), times, count, untimed)


def _row_of(tier: TierState) -> tuple[Any, ...]:
    counters = (tier.records, tier.skipped, tier.foreign, tier.negative)
    return (tier.number, tier.name, *counters, json.dumps(tier.facts))


def _write(db: sqlite3.Connection, one: _Tier) -> None:
    """Write what changed of a tier."""
    row, number = _row_of(one.tier), one.tier.number
    if row != one.row:
        db.execute("REPLACE INTO witness_tiers VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    old, new = one.positions, one.tier.positions
    gone = ((number, *at) for at in old.keys() - new.keys())
    db.executemany("DELETE FROM witness_positions WHERE tier = ? AND topic = ? AND partition = ?", gone)
    moved = ((number, *at, int(offset)) for at, offset in new.items() if old.get(at) != offset)
    db.executemany("REPLACE INTO witness_positions VALUES (?, ?, ?, ?)", moved)
    for spool in one.tier:
        _write_spool(db, number, spool)
    # Behind the rows that are removed: a row of the table may have another block by now.
    db.executemany("REPLACE INTO witness_blocks VALUES (?, ?, ?, ?, ?, ?)", one.tier.table.packed())


def _write_spool(db: sqlite3.Connection, tier: int, spool: SpoolSeen) -> None:
    number = spool.number
    if spool.is_changed:
        row = (number, tier, spool.uuid, spool.summed_end)
        db.execute("REPLACE INTO witness_spools VALUES (?, ?, ?, ?)", row)
    for name, one in spool.sets.items():
        if one.parts:
            parts = ((number, name, part, data, _signed(digest(data))) for part, data in one.packed())
            db.executemany("REPLACE INTO witness_bitmaps VALUES (?, ?, ?, ?, ?)", parts)
    if spool.gone:
        blocks = ((number, block) for block in spool.gone)
        db.executemany("DELETE FROM witness_blocks WHERE spool = ? AND block = ?", blocks)


def _signed(number: int) -> int:
    """A number of 64 bits, for SQLite."""
    return number - (1 << 64) if number >> 63 else number
