"""Who sent how much: each message counts once for its sender, whatever is killed in between."""

from __future__ import annotations

import shutil

import pytest

from spool import senders
from spool.banks import BANKS_BYTES
from spool.files import list_files
from spool.format import SENDERS
from spool.frame import BURST
from spool.page import Field
from spool.senders import UNKNOWN, SenderTable, read_senders
from spool.wire import Reason, encode
from tests.spool.rig import Rig

A, B = 1001, 1002


def told(rig: Rig) -> dict[int | None, tuple[int, int]]:
    """(stored, refused) by uid."""
    return {one.uid: (one.stored, one.refused.total()) for one in read_senders(rig.layout)}


def append(rig: Rig, uid: int, count: int, *, short: int = 0) -> None:
    """Write a frame of this sender, with so many refused ones."""
    sample = uid.to_bytes(4, "little") + b"x"
    refused = {int(Reason.SHORT): (short, sample)} if short else None
    rig.append([encode(b"t", b"")] * count, sender=(uid, 1), refused=refused, flags=SENDERS)


@pytest.fixture
def counting(rig: Rig) -> Rig:
    """A spool of which a table has been begun."""
    append(rig, A, 1)
    rig.keeper.commit()
    rig.keeper._save_senders()
    return rig


def test_before_a_table_there_is_nothing(rig: Rig) -> None:
    """A spool of an earlier release is not walked for it."""
    assert read_senders(rig.layout) == []


def test_the_first_second(rig: Rig) -> None:
    """Of a new spool frames tell before there is a table; of a longer one they might not tell all."""
    append(rig, A, 3, short=2)
    assert not rig.layout.senders.exists()
    assert told(rig) == {A: (3, 2)}
    while len(rig.layout.list_segments()) < 2:
        append(rig, A, 40)
        rig.keeper.commit()
    rig.layout.senders.unlink(missing_ok=True)
    assert read_senders(rig.layout) == []


def test_a_segment_that_gets_another_name_meanwhile(counting: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for again: nobody's count is short for a moment."""
    append(counting, B, 5)
    counting.keeper.commit()
    wanted, listed = told(counting), list_files(counting.layout)
    lists = iter([[path.with_suffix(".spare") for path in listed]])
    monkeypatch.setattr(senders, "list_files", lambda _: next(lists, listed))
    assert told(counting) == wanted


def test_stored_and_refused_by_sender(counting: Rig) -> None:
    """What is behind the table is counted from the frames, committed or not."""
    append(counting, A, 3, short=2)
    append(counting, B, 5)
    assert told(counting) == {A: (4, 2), B: (5, 0)}
    counting.keeper.commit()
    assert told(counting) == {A: (4, 2), B: (5, 0)}
    counting.keeper._save_senders()
    assert told(counting) == {A: (4, 2), B: (5, 0)}


def test_rows_without_a_sender(counting: Rig) -> None:
    """Those of earlier releases are of nobody known; and so is what came by TCP."""
    refused = {int(Reason.SHORT): (7, b"x")}
    counting.writer.append([encode(b"t", b"")] * 2, sender=(UNKNOWN, UNKNOWN), refused=refused)
    assert told(counting) == {A: (1, 0), UNKNOWN: (2, 7)}


def test_a_frame_counts_once(counting: Rig) -> None:
    """Over segments, kills before the table is saved, and a keeper that reads them all again."""
    for n in range(40):
        append(counting, A if n % 2 else B, 30, short=1)
        if n == 20:
            counting.keeper._save_senders()
    counting.keeper.commit()
    wanted = {A: (1 + 20 * 30, 20), B: (20 * 30, 20)}
    assert len(counting.layout.list_segments()) > 1
    assert told(counting) == wanted
    counting.crash()
    counting.reopen()
    assert told(counting) == wanted
    counting.keeper._save_senders()
    assert told(counting) == wanted


def test_the_table_is_never_ahead_of_what_is_committed(counting: Rig) -> None:
    """While it counts what is not, as of a suspect segment, it is not saved."""
    append(counting, B, 5)
    senders = counting.keeper._senders
    senders.save(0)
    before = counting.layout.senders.read_bytes()
    counting.keeper.commit()
    burst = int(counting.writer.tail[BURST])
    senders.save(burst - 1)
    assert counting.layout.senders.read_bytes() == before
    senders.save(burst)
    assert counting.layout.senders.read_bytes() != before
    assert told(counting) == {A: (1, 0), B: (5, 0)}


def test_another_log_has_another_table(counting: Rig) -> None:
    """When the segments are gone the spool begins anew: what was sent to the one before is not its own."""
    append(counting, B, 5)
    counting.keeper.commit()
    counting.keeper._save_senders()
    counting.crash()
    shutil.rmtree(counting.layout.segments)
    counting.open()
    append(counting, A, 2)
    counting.keeper.commit()
    counting.keeper._save_senders()
    assert told(counting) == {A: (2, 0)}


def test_senders_beyond_the_rows_are_others(counting: Rig) -> None:
    """There are 223 rows; who finds none is counted with the others, and nobody is lost."""
    for uid in range(2000, 2300):
        append(counting, uid, 1)
    counting.keeper.commit()
    found = told(counting)
    assert found[None] == (300 + 1 - 223, 0)
    assert len(found) == 224
    assert sum(stored for stored, _ in found.values()) == 301


def test_a_segment_goes_when_it_is_counted(counting: Rig) -> None:
    """Removed segments stay counted: the table is saved before."""
    while len(counting.layout.list_segments()) < 3:
        append(counting, B, 40)
        counting.keeper.commit()
    wanted = told(counting)
    counting.page.words[Field.FLOOR] = counting.synced
    counting.keeper._retire()
    first = counting.layout.list_segments()[0][0]
    counting.keeper._stock.remove([first])
    assert counting.layout.list_segments()[0][0] > first
    assert told(counting) == wanted
    counting.crash()
    counting.reopen()
    assert told(counting) == wanted


@pytest.mark.parametrize(
    "content", [b"", bytes(BANKS_BYTES), b"\xff" * BANKS_BYTES], ids=["cut", "zeros", "rot"]
)
def test_a_table_that_cannot_be_read_is_begun_anew(counting: Rig, content: bytes) -> None:
    """It is derived: nothing else depends on it."""
    counting.layout.senders.write_bytes(content)
    assert read_senders(counting.layout) == []
    counting.crash()
    counting.reopen()
    append(counting, B, 2)
    counting.keeper.commit()
    counting.keeper._save_senders()
    assert told(counting)[B] == (2, 0)


def test_a_table_ahead_of_the_log(counting: Rig) -> None:
    """After a disk lost what it had called synced, the numbers of bursts are given again, and are counted."""
    table = SenderTable(counting.layout)
    table._count.burst += 1000
    table.save(1 << 40)
    table.close()
    counting.crash()
    counting.reopen()
    append(counting, B, 2)
    counting.keeper.commit()
    counting.keeper._save_senders()
    assert told(counting)[B] == (2, 0)
