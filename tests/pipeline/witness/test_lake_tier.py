"""The witness of an archive finds what the table lacks, and has twice, through compactions and kills."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from threading import Event, Timer

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.table import Table

from pipeline.archive.iceberg import TABLE, local_catalog, open_table
from pipeline.archive.iceberg_changes import BATCH_ROWS
from pipeline.archive.job import run_archive
from pipeline.embedded.engine import DuckEngine
from pipeline.embedded.iceberg import IcebergFiles
from pipeline.source.fields import to_schema
from pipeline.witness.expected import Spools
from pipeline.witness.judge import Verdict
from pipeline.witness.lake_tier import COLUMNS, LakePlace, LakeTier, columns_of, uuids_of
from pipeline.witness.report import report
from pipeline.witness.run import Witness, watch
from pipeline.witness.state import WitnessState
from spool.format.segment_format import BLOCK
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from tests.pipeline.archive.test_job import ODD
from tests.pipeline.witness.spools import leave
from tests.spool.fixture import SpoolFixture

DUCK = DuckEngine()
TOPICS = 3
Found = tuple[list[int], list[int], list[int], list[int], int]


def among(sequences: Iterable[int]) -> str:
    """Rows of these messages."""
    return f"sequence IN ({', '.join(map(str, [*sequences, -1]))})"


class Lake:
    """A spool, its archive, and a witness of it that works step by step and can be killed."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.lake, self.now, self.stored = directory, directory / "lake", 100.0, 0
        self.spool = SpoolFixture(directory, segment_bytes=1 << 18, max_bytes=16 << 20)
        self.uuid, self.is_used = self.spool.identity.spool.hex(), True
        self.batch_rows = BATCH_ROWS

    def __call__(self) -> float:
        """The time: it stays until a test moves it."""
        return self.now

    @property
    def path(self) -> str:
        """Of the spool."""
        return str(self.spool.options.directory)

    @property
    def table(self) -> Table:
        """As a process finds it."""
        return open_table(local_catalog(str(self.lake)), TABLE)

    def store(self, count: int) -> None:
        """Store this many messages more."""
        for at in range(self.stored, self.stored + count, 64):
            end = min(at + 64, self.stored + count)
            self.spool.append(
                [encode(b"t%d" % (one % TOPICS), b"v%d" % one, timestamp=one) for one in range(at, end)]
            )
            self.spool.step()
        self.stored += count

    def archive(self, *, compact: bool = False) -> None:
        """Add what is new to the table."""
        run_archive(DUCK, IcebergFiles(DUCK, self.table), [self.path], compact=compact)

    def deliver(self, end: int, discarded: Iterable[int] = ()) -> None:
        """Seal all segments, if that is not done, and have all messages below `end` resolved."""
        if self.is_used:
            self.spool.stop()
        self.is_used = False
        marks = Marks(self.spool.layout.delivery, SegmentList(self.spool.layout))
        gone = [Discard(np.array([one]), 15, b"t", 7) for one in discarded]
        marks.commit(Changes(low_watermark=end, discarded=gone))
        marks.close()

    def rows(self, sequences: Iterable[int]) -> pa.Table:
        """Rows of the table."""
        return self.table.scan(among(sequences)).to_arrow()

    def delete(self, sequences: Iterable[int]) -> None:
        """Have another program remove rows."""
        self.table.delete(among(sequences))

    def open(self) -> None:
        """Begin to watch, or go on where the last checkpoint was."""
        self.state = WitnessState(self.directory / "witness")
        self.tier = LakeTier(self.state.tier("lake"), LakePlace(str(self.lake), batch_rows=self.batch_rows))
        self.witness = Witness(self.state, Spools([self.path]), [self.tier], late_s=60.0, clock=self)

    def kill(self) -> None:
        """Nothing is written."""
        self.tier.close()
        self.state.close()

    def read(self) -> None:
        """Look, and read all that the table has."""
        self.witness.look()
        while self.tier.lag or self.tier.is_behind(self.tier.ends):
            before = self.state.tier("lake").records, dict(self.state.tier("lake").facts)
            self.witness.read(0.0)
            assert (self.state.tier("lake").records, self.state.tier("lake").facts) != before, self.tier.error
        self.witness.look()

    def verdict(self) -> Verdict:
        """Read all, and let time pass until all that is delivered is due."""
        self.read()
        for _ in range(2):
            self.now += 61.0
            self.read()
        self.witness.look()
        with closing(WitnessState(self.directory / "witness", readonly=True)) as state:
            (row,) = report(state, Spools([self.path]).look()).rows
        return row.verdict

    def settled(self) -> list[int]:
        """Blocks whose sums were found to be right."""
        return list(self.state.tier("lake").spool(self.uuid).settled)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """One, with a spool that is still empty, and no witness yet."""
    return Lake(tmp_path)


def found(verdict: Verdict) -> Found:
    """(missing, duplicated, altered, uncompared, late)."""
    return (
        list(verdict.missing),
        list(verdict.duplicated),
        list(verdict.altered),
        list(verdict.uncompared),
        verdict.late,
    )


SOUND: Found = ([], [], [], [], 0)


def test_every_message_arrives_once(lake: Lake) -> None:
    """Through two jobs and a compaction while it reads; discarded ones are in the table, and in the sums."""
    lake.open()
    lake.store(5000)
    lake.archive()
    lake.read()
    lake.store(1000)
    lake.archive()
    lake.archive(compact=True)
    lake.store(2 * BLOCK + 1000 - 6000)
    lake.archive(compact=True)
    gone = [*range(70, 90), 5000]
    lake.deliver(lake.stored, gone)
    verdict = lake.verdict()
    assert found(verdict) == SOUND
    assert verdict.judged == lake.stored - len(gone)
    assert lake.settled() == [0, 1]
    assert lake.state.tier("lake").records == lake.stored
    assert (lake.tier.error, lake.tier.lag) == ("", 0)


def test_planted_faults_are_found(lake: Lake) -> None:
    """Rows that another program removed, doubled or changed before the witness began."""
    lake.store(2 * BLOCK)
    lake.archive()
    lost, twice, altered = {0, 3, 77, 4000}, {9, 4200}, {BLOCK + 500}
    rows, changed = lake.rows(twice), lake.rows(altered)
    lake.delete(lost | altered)
    lake.table.append(rows)
    at = changed.schema.get_field_index("value")
    lake.table.append(changed.set_column(at, changed.field(at), pa.array([b"!"], changed.field(at).type)))
    lake.deliver(lake.stored)
    lake.open()
    assert found(lake.verdict()) == (sorted(lost), sorted(twice), [1], [], 0)


def test_faults_of_later_snapshots_are_found(lake: Lake) -> None:
    """Appended rows count, also those of another program; what compactions and deletions write does not."""
    lake.store(600)
    lake.archive()
    lake.open()
    lake.read()
    lake.table.append(lake.rows([5, 6]))
    lake.store(600)
    lake.archive(compact=True)
    lake.delete([40, 41])
    lake.table.append(lake.rows([700]))
    lake.deliver(lake.stored)
    assert found(lake.verdict()) == ([], [5, 6, 700], [], [], 0)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("reads", [1, 4, 9])
def test_it_is_exact_after_a_kill(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, *, is_first: bool, reads: int
) -> None:
    """Within a snapshot, of the first ones and of further ones: rows before the checkpoint stay read."""
    lake.batch_rows = 300
    if not is_first:
        lake.store(20)
        lake.archive()
    lake.open()
    lake.read()
    lake.store(BLOCK + 100)
    lake.archive()
    lake.store(1000)
    lake.archive()
    lake.deliver(lake.stored)
    lake.witness.look()
    for _ in range(3):
        for _ in range(reads):
            lake.witness.read(0.0)
        lake.state.checkpoint()
        for _ in range(3):
            lake.witness.read(0.0)
        lake.kill()
        lake.open()
        lake.witness.look()
    assert found(lake.verdict()) == SOUND
    assert lake.settled() == [0]
    assert lake.state.tier("lake").records == lake.stored


def expire(table: Table, number: int) -> None:
    """Have a program remove the snapshot of this sequence number."""
    (one,) = [one for one in table.metadata.snapshots if one.sequence_number == number]
    table.maintenance.expire_snapshots().by_id(one.snapshot_id).commit()


def test_snapshots_that_are_gone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, reads the table again, also through a kill, and counts no row twice."""
    lake.batch_rows = 300
    lake.store(700)
    lake.archive()
    lake.open()
    lake.read()
    for _ in range(3):
        lake.store(700)
        lake.archive()
    expire(lake.table, 2)
    lake.deliver(lake.stored)
    lake.witness.look()
    assert "snapshots were removed before the witness had read them" in lake.tier.error
    assert lake.tier.lag == lake.stored
    for _ in range(4):
        lake.witness.read(0.0)
    lake.witness.look()
    lake.witness.read(0.0)
    lake.kill()
    lake.open()
    assert found(lake.verdict()) == SOUND
    assert lake.tier.error == ""
    lake.table.append(lake.rows([8]))
    assert found(lake.verdict()) == ([], [8], [], [], 0)


def test_the_first_reading_is_lost(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot of which a part was read is gone: what was read of it counts once, through two kills."""
    lake.batch_rows = 300
    lake.store(2000)
    lake.archive()
    lake.open()
    lake.witness.look()
    for _ in range(3):
        lake.witness.read(0.0)
    lake.state.checkpoint()
    lake.kill()
    lake.store(10)
    lake.archive()
    expire(lake.table, 1)
    lake.deliver(lake.stored)
    lake.open()
    lake.witness.look()
    lake.witness.read(0.0)
    lake.state.checkpoint()
    lake.kill()
    lake.open()
    assert found(lake.verdict()) == SOUND


def test_the_snapshot_that_was_read_may_go(lake: Lake) -> None:
    """Nothing is lost with it: the ones behind it say that they follow it."""
    lake.store(100)
    lake.archive()
    lake.open()
    lake.read()
    lake.store(100)
    lake.archive()
    expire(lake.table, 1)
    lake.deliver(lake.stored)
    lake.witness.look()
    assert (lake.tier.error, lake.tier.lag) == ("", 100)
    assert found(lake.verdict()) == SOUND


def test_a_table_that_is_rolled_back_or_made_again(lake: Lake) -> None:
    """It is read again, and no message counts twice; a new one with fewer snapshots is read to its end."""
    lake.open()
    for _ in range(3):
        lake.store(100)
        lake.archive()
    lake.read()
    table = lake.table
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id).commit()
    lake.archive()
    lake.witness.look()
    assert "or the table was rolled back" in lake.tier.error
    lake.deliver(lake.stored)
    assert found(lake.verdict()) == SOUND
    old = lake.tier.ends
    local_catalog(str(lake.lake)).drop_table(TABLE)
    lake.archive()
    lake.witness.look()
    assert lake.tier.is_behind(lake.tier.ends)
    assert found(lake.verdict()) == SOUND
    assert not lake.tier.is_behind(old)


def test_a_table_that_is_not_there_yet(lake: Lake) -> None:
    """That is a sentence, and no message is missing for it; then it is read from its beginning."""
    lake.store(300)
    lake.deliver(lake.stored)
    lake.open()
    lake.witness.look()
    assert (lake.tier.lag, lake.tier.is_fresh) == (0, False)
    assert lake.tier.error.endswith("is not there yet: nothing is archived")
    assert not lake.lake.exists()
    lake.now += 1000.0
    assert found(lake.verdict()) == ([], [], [], [], 300)
    assert lake.table.current_snapshot() is None
    assert found(lake.verdict()) == ([], [], [], [], 300)
    lake.archive()
    assert found(lake.verdict()) == SOUND
    assert lake.tier.error == ""


def test_a_catalog_and_files_that_are_away(lake: Lake) -> None:
    """Each is a sentence until it is back; nothing is missing meanwhile."""
    lake.store(300)
    lake.archive()
    lake.deliver(lake.stored)
    lake.open()
    away = lake.lake / "bruce/messages/data"
    away.rename(lake.lake / "away")
    lake.witness.look()
    lake.witness.read(0.0)
    lake.witness.look()
    assert "cannot be used" in lake.tier.error
    (lake.lake / "away").rename(away)
    catalog = lake.lake / "catalog.db"
    catalog.rename(lake.lake / "catalog")
    catalog.write_bytes(b"no database" * 1000)
    lake.kill()
    lake.open()
    lake.witness.look()
    assert "not a database" in lake.tier.error
    assert not lake.tier.is_fresh
    (lake.lake / "catalog").rename(catalog)
    assert found(lake.verdict()) == SOUND
    assert lake.tier.error == ""


def test_the_archive_is_ahead_of_delivery(lake: Lake) -> None:
    """Messages that wait are seen already: that is no fault, also when they are discarded in the end."""
    lake.store(BLOCK + 100)
    lake.archive()
    lake.deliver(100)
    lake.open()
    verdict = lake.verdict()
    assert (found(verdict), verdict.judged) == (SOUND, 100)
    assert lake.settled() == [0]
    lake.deliver(lake.stored, [100, 101])
    verdict = lake.verdict()
    assert (found(verdict), verdict.judged) == (SOUND, lake.stored - 2)


def test_delivery_is_ahead_of_the_archive(lake: Lake) -> None:
    """A message is late until the archive says that it came so far, however long that takes."""
    lake.store(500)
    lake.archive()
    lake.store(500)
    lake.deliver(lake.stored)
    lake.delete([7])
    lake.open()
    lake.verdict()
    lake.now += 5000.0
    assert found(lake.verdict()) == ([7], [], [], [], 500)
    lake.archive()
    assert found(lake.verdict()) == ([7], [], [], [], 0)


def test_what_left_the_spool_before_the_archive_began(lake: Lake) -> None:
    """Is not missing; the later messages are judged."""
    lake.store(3 * BLOCK)
    lake.deliver(lake.stored)
    leave(lake.spool, 2)
    first = lake.spool.layout.list_segments()[0][0]
    assert first > 0
    lake.archive()
    lake.delete([first, first + 5])
    lake.open()
    verdict = lake.verdict()
    assert (found(verdict)[0], verdict.judged) == ([first, first + 5], lake.stored - first)


def test_after_segments_are_gone(lake: Lake) -> None:
    """Of one with a discarded message the blocks cannot be compared any more; the others can."""
    lake.store(3 * BLOCK)
    lake.archive()
    lake.deliver(lake.stored, [10])
    leave(lake.spool, 1)
    (side,) = Spools([lake.path]).look()
    assert BLOCK < side.begin < 2 * BLOCK
    lake.open()
    verdict = lake.verdict()
    assert (list(verdict.altered), list(verdict.uncompared)) == ([], [0, 1])
    assert lake.settled() == [2]


def test_odd_messages(lake: Lake) -> None:
    """Of topics that Kafka could not have, of odd times and keys: their sums are the spool's."""
    lake.spool.append(ODD)
    lake.spool.step()
    lake.stored = len(ODD)
    lake.store(BLOCK)
    lake.archive()
    lake.deliver(lake.stored, range(4, len(ODD)))
    lake.open()
    assert found(lake.verdict()) == SOUND
    assert lake.settled() == [0]


def test_beside_a_spool_that_comes_later(lake: Lake) -> None:
    """Its rows that were read before it was watched are not missing: it is judged from then on."""
    lake.store(300)
    lake.archive()
    lake.open()
    lake.witness = Witness(lake.state, Spools([]), [lake.tier], late_s=60.0, clock=lake)
    lake.read()
    lake.witness = Witness(lake.state, Spools([lake.path]), [lake.tier], late_s=60.0, clock=lake)
    lake.read()
    lake.store(300)
    lake.deliver(lake.stored)
    lake.archive()
    lake.delete([400])
    lake.table.append(lake.rows([500]))
    verdict = lake.verdict()
    assert (found(verdict)[:2], verdict.judged) == (([], [500]), 300)


def test_it_works_with_the_rest(lake: Lake) -> None:
    """As `brucectl witness run` does it: the document has the tier."""
    lake.store(300)
    lake.archive()
    lake.deliver(lake.stored)
    directory, stop = lake.directory / "witness", Event()
    # Time enough for a slow machine.
    timer = Timer(20.0, stop.set)
    timer.start()
    watch(directory, [lake.path], {"lake": LakePlace(str(lake.lake))}, stop, late_s=0.0)
    timer.join()
    (tier,) = json.loads((directory / "witness.json").read_bytes())["tiers"]
    assert (tier["tier"], tier["records"], tier["lag"], tier["error"]) == ("lake", 300, 0, "")
    assert [one["spool"] for one in tier["spools"]] == [lake.uuid]


def test_rows_of_others(lake: Lake) -> None:
    """Rows of a spool that is not watched are counted; those with a spool that is none are left out."""
    lake.store(50)
    lake.archive()
    rows = lake.rows([1, 2, 3])
    at = rows.schema.get_field_index("spool")
    lake.table.append(rows.set_column(at, rows.field(at), pa.array(["0" * 32, "x" * 32, None])))
    lake.deliver(lake.stored)
    lake.open()
    assert found(lake.verdict()) == SOUND
    assert (lake.state.tier("lake").records, lake.state.tier("lake").foreign) == (51, 1)


def test_uuids() -> None:
    """Of text with 32 digits each, also within a slice; nothing else is one."""
    good = ["0123456789abcdef" * 2, "f" * 32]
    bad = ["", "f" * 31, "g" * 32, None, "F" * 32, "\u00e9" * 16]
    for texts in (good, good + bad, bad, [], bad[:3] + good):
        found, are_good = uuids_of(pa.array(["a" * 32, *texts], pa.string())[1:])
        assert are_good.tolist() == [text in good for text in texts]
        assert [one.tobytes().hex() for one in found[are_good]] == [text for text in texts if text in good]


def test_columns_of_a_slice(lake: Lake) -> None:
    """A part of a batch has the hashes that it has within the batch."""
    lake.spool.append(ODD)
    lake.spool.step()
    lake.archive()
    batch = lake.table.scan().to_arrow().select(COLUMNS).combine_chunks().to_batches()[0]
    batch = batch.cast(to_schema(COLUMNS))
    whole, part = columns_of(batch), columns_of(batch.slice(2, 5))
    assert part.contents.tolist() == whole.contents[2:7].tolist()
    assert part.sequences.tolist() == batch["sequence"].to_pylist()[2:7]
    zero = batch.set_column(COLUMNS.index("timestamp_ms"), "timestamp_ms", pc.multiply(batch["sequence"], 0))
    assert columns_of(zero).sent_ms.tolist() == [1] * len(ODD)
