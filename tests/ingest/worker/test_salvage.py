"""Every state in which a worker can die, made by hand: its successor loses nothing and doubles nothing."""

from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

import pytest

from ingest.buffers.staging import load_length, read_staging
from ingest.worker import burst
from ingest.worker.worker import ATTEMPTS
from spool.format.frame import BURST, POSITION, SEQUENCE
from spool.format.segment_format import HEAD_BYTES, HEADER_BYTES, POISON, SALVAGED
from spool.format.wire import Reason, encode, encode_batch
from spool.shared.histogram import SIZE_WORDS, read_sizes
from spool.shared.ledger import read_ledger
from spool.shared.state import Field
from tests.ingest.intake import SEGMENT_BYTES, Intake
from tests.ingest.worker.test_burst import sized
from tests.spool.memory import Chain

MIXED = [sized(40, 1), b"", b"abc", sized(5000, 2), b"\xff" * 70000, sized(65536, 3)]
"""Right, empty, short, large, truncated, largest."""
RIGHT = [MIXED[0], MIXED[3], MIXED[5]]
REFUSED = {"short": 2, "truncated": 1}


def is_mixed(intake: Intake) -> None:
    """MIXED is there, once."""
    assert intake.stored() == RIGHT
    assert intake.refused() == REFUSED


def test_armed_but_nothing_received(intake: Intake) -> None:
    """Killed while waiting: there is nothing to salvage, and intake goes on."""
    assert intake.receive() == -1
    assert intake.restart() == 0
    intake.take(MIXED)
    is_mixed(intake)
    assert all(not frame.flags & SALVAGED for frame in intake.frames())


def test_received_but_not_stored(intake: Intake) -> None:
    """Killed after recvmmsg: the successor appends the burst, and counts its bad datagrams as usual."""
    intake.queue(MIXED)
    assert intake.receive() == len(MIXED)
    assert read_staging(intake.staging_path) == [(1, len(MIXED))]
    assert intake.restart() == len(MIXED)
    is_mixed(intake)
    assert intake.frames()[0].flags & SALVAGED
    assert intake.restart() == 0
    is_mixed(intake)


def test_stored_but_its_sizes_not_counted(intake: Intake) -> None:
    """Killed between the frame and the count of its sizes: the successor counts them, once."""
    words = intake.spool.shared.words[Field.SIZES :][:SIZE_WORDS]
    intake.take([sized(40, 1)])
    before = words[:1].copy()
    intake.take([sized(5000, 2), sized(100, 3)])
    burst_number = int(intake.worker.writer.tail[BURST])
    words[0], words[1] = before[0], burst_number
    assert sum(read_sizes(words).counts) == 1
    for _ in range(2):
        assert intake.restart() == 0
        assert (sum(read_sizes(words).counts), read_sizes(words).total) == (3, 5140)


def test_part_of_the_slots_received(intake: Intake) -> None:
    """Killed inside recvmmsg: the slots before the first that was not received, and no others."""
    intake.queue(MIXED)
    intake.receive()
    headers = intake.worker.staging.buffer(0)
    assert load_length(headers, 1) == 0
    with mock.patch("ingest.buffers.staging.count_received", return_value=2):
        assert intake.restart() == 2
    assert intake.stored() == MIXED[:1]
    assert intake.refused() == {"short": 1}


def test_stored_but_still_armed(intake: Intake) -> None:
    """Killed between the digest and the next arm: the burst is in the log, and not appended again."""
    intake.queue(MIXED)
    used = intake.list_received()
    assert intake.worker.staging.armed == 1
    intake.spool.step()
    intake.worker._store(used, 0)
    assert intake.worker.staging.armed == int(intake.worker.writer.tail[BURST]) == 1
    assert intake.restart() == 0
    is_mixed(intake)


@pytest.mark.parametrize("written", [1, 8, 30, HEAD_BYTES, 100, 5000, 60000])
def test_a_torn_frame_is_written_over(intake: Intake, written: int) -> None:
    """Killed while copying into the segment: the frame without its digest is replaced by the whole one."""
    intake.take([sized(50, 0)])
    intake.queue(MIXED)
    intake.receive()
    writer = intake.worker.writer
    assert writer._mapping
    at = int(writer.tail[POSITION])
    # Anything but the digest may be there; the magic is part of a head that was begun.
    writer._mapping.bytes[at + 8 : at + 8 + written] = 0x55
    writer._mapping.bytes[at + 8 : at + 12] = list(b"bfrm")
    assert intake.restart() == len(MIXED)
    assert intake.stored() == [sized(50, 0), *RIGHT]
    assert intake.refused() == REFUSED
    intake.take([sized(60, 1)])
    assert intake.stored() == [sized(50, 0), *RIGHT, sized(60, 1)]


def planted(intake: Intake, burst_number: int, *, insider: bool) -> bytes:
    """A message that holds whole frames with fitting numbers, and a sender and a topic that are not its own.

    `insider`: with the keys of the segment that it is stored in, which no sender knows.
    """
    tail = intake.worker.writer.tail
    fields = {"secret": intake.spool.identity.secret} if insider else {"version": 1}
    chain = Chain(4096, 0, **fields)
    chain.tail[[SEQUENCE, BURST]] = tail[SEQUENCE], burst_number - 1
    chain.append([encode(b"forbidden", b"forged")], {}, (0, 1))
    frame = chain.data()[HEADER_BYTES : int(chain.tail[POSITION])]
    return encode(b"t", b"".join(bytes(shift) + frame for shift in range(8)))


@pytest.mark.parametrize("insider", [False, True])
@pytest.mark.parametrize("burst_number", [2, 3, (1 << 62) - 1])
@pytest.mark.parametrize("first", [False, True])
def test_a_frame_inside_a_message_is_no_frame(
    intake: Intake, burst_number: int, *, insider: bool, first: bool
) -> None:
    """Killed before the digest, all else of the frame being in the log: its messages are stored, no others.

    A frame in a message is not believed even with the right keys: nothing behind the announced end is
    searched.
    """
    if not first:
        intake.take([sized(50, 0)])
    before, writer = intake.stored(), intake.worker.writer
    at, announced = (
        int(writer.tail[POSITION]) if writer.number else HEADER_BYTES,
        int(intake.spool.shared.words[Field.WRITTEN]),
    )
    sent = [planted(intake, burst_number, insider=insider), sized(60, 1), sized(70, 2)]
    intake.queue(sent)
    used = intake.list_received()
    intake.spool.step()
    intake.worker._store(used, 0)
    assert writer._mapping
    writer._mapping.bytes[at : at + 8] = 0
    if not first:
        intake.spool.shared.words[Field.WRITTEN] = announced
    else:
        writer.tail[POSITION] = HEADER_BYTES
        writer.publish()
    assert intake.restart() == len(sent)
    assert intake.stored() == [*before, *sent]
    intake.take([sized(80, 3)])
    assert intake.stored() == [*before, *sent, sized(80, 3)]
    assert {frame.burst for frame in intake.frames()} == set(range(1, len(intake.frames()) + 1))


def test_killed_between_the_ledger_and_the_next_arm(intake: Intake) -> None:
    """Counted in the ledger and killed: the successor neither counts nor stores the burst again."""
    intake.queue(MIXED)
    used = intake.list_received()
    intake.worker._discard(used, 0)
    before = read_ledger(intake.spool.layout.ledger)
    assert {(d.topic, d.reason, d.count) for d in before} == {
        (b"t", Reason.SPOOL_FULL, 3),
        (b"", Reason.SHORT, 2),
        (b"", Reason.TRUNCATED, 1),
    }
    assert intake.restart() == 0
    assert read_ledger(intake.spool.layout.ledger) == before
    assert intake.stored() == []
    intake.take([sized(40)])
    assert intake.stored() == [sized(40)]
    assert intake.restart() == 0


def test_killed_inside_the_ledger(intake: Intake) -> None:
    """Killed between begin and commit: nothing was counted, the burst is salvaged into the log."""
    intake.queue(MIXED)
    used = intake.list_received()
    burst.discard(intake.worker.job, intake.worker.ledger.begin(), intake.worker._messages, used, 0)
    assert intake.restart() == len(MIXED)
    is_mixed(intake)
    assert read_ledger(intake.spool.layout.ledger) == []


def test_a_burst_that_kills_three_times_is_poison(intake: Intake) -> None:
    """After three failures it goes to quarantine as it is, is counted by reason, and intake goes on."""
    intake.queue(MIXED)
    intake.receive()
    for _ in range(ATTEMPTS):
        with (
            mock.patch("ingest.worker.burst.store", side_effect=RuntimeError("killed")),
            pytest.raises(RuntimeError),
        ):
            intake.restart()
    assert intake.restart() == len(MIXED)
    assert intake.stored() == []
    assert intake.refused() == {"poison": len(MIXED)}
    assert intake.frames()[0].flags & POISON
    kept = (intake.spool.layout.quarantine / "burst-1.poison").read_bytes()
    assert kept == b"".join(len(d[:65536]).to_bytes(4, "little") + d[:65536] for d in MIXED)
    intake.take(MIXED)
    assert intake.stored() == RIGHT


def test_the_messages_of_a_batch_that_is_poison_count(intake: Intake) -> None:
    """Each of them, as far as the sizes go; in the log, and in the ledger where the spool is full."""
    batch = encode_batch([sized(40), sized(50), sized(60)])
    datagrams = [batch, sized(40), batch[:-1], encode_batch([sized(40)])[:9]]
    words = intake.spool.shared.words
    spare = words[Field.SPARE]
    for full in (True, False):
        intake.queue(datagrams)
        intake.receive()
        for _ in range(ATTEMPTS):
            intake.worker.staging.attempt()
        intake.start()
        words[Field.FULL], words[Field.SPARE] = full, intake.spool.writer.number if full else spare
        assert intake.worker.salvage() == len(datagrams)
    (row,) = read_ledger(intake.spool.layout.ledger)
    assert (row.reason, row.count) == (Reason.POISON, 3 + 1 + 2 + 1)
    assert intake.refused() == {"poison": row.count}


def test_attempts_of_one_burst_do_not_count_for_the_next(intake: Intake) -> None:
    """Kills right after a salvage, however many, never make a later burst poison."""
    for i in range(ATTEMPTS + 2):
        intake.queue([sized(40, i)])
        intake.receive()
        settle = mock.patch.object(type(intake.worker.staging), "settle", side_effect=RuntimeError("killed"))
        with settle, pytest.raises(RuntimeError):
            intake.restart()
        assert intake.restart() == 0
    assert intake.stored() == [sized(40, i) for i in range(ATTEMPTS + 2)]
    assert intake.refused() == {}


def test_being_killed_while_waiting_for_room_is_no_failure(intake: Intake) -> None:
    """The keeper is behind, and the worker is killed again and again: the burst is not given up for that."""
    intake.queue(MIXED)
    intake.receive()
    for _ in range(ATTEMPTS + 2):
        intake.start()
        spare = intake.spool.shared.words[Field.SPARE]
        intake.spool.shared.words[Field.SPARE] = 0
        with mock.patch("ingest.worker.worker.time", wraps=time) as clock:
            clock.sleep.side_effect = RuntimeError("killed")
            with pytest.raises(RuntimeError):
                intake.worker.salvage()
        intake.spool.shared.words[Field.SPARE] = spare
    assert intake.restart() == len(MIXED)
    is_mixed(intake)


def test_poison_without_room_is_counted_in_the_ledger(intake: Intake) -> None:
    """A poison burst on a full spool, its quarantine refused by the disk: counted, and intake lives."""
    intake.queue(MIXED)
    intake.receive()
    for _ in range(ATTEMPTS):
        intake.worker.staging.attempt()
    intake.start()
    words = intake.spool.shared.words
    words[Field.FULL], words[Field.SPARE] = 1, intake.spool.writer.number
    with mock.patch("spool.storage.disk.write_file", side_effect=OSError(28, "No space left on device")):
        assert intake.worker.salvage() == len(MIXED)
    (row,) = read_ledger(intake.spool.layout.ledger)
    assert (row.topic, row.reason, row.count) == (b"", Reason.POISON, len(MIXED))
    assert intake.restart() == 0


def test_a_burst_larger_than_segments_are_now_is_given_up_and_counted(memory: Path) -> None:
    """Received under larger segments, salvaged under smaller ones: to quarantine, and no endless roll."""
    intake = Intake(memory)
    intake.queue(sized(60000, i) for i in range(8))
    assert intake.receive() == 8
    intake.spool.replace(segment_bytes=65536)
    number = intake.spool.writer.number
    assert intake.restart() == 8
    assert intake.refused() == {"poison": 8}
    assert intake.spool.writer.number <= number + 1
    assert (intake.spool.layout.quarantine / "burst-1.poison").stat().st_size == 8 * 60004
    intake.close()


def test_salvage_begins_a_new_segment_when_it_must(memory: Path) -> None:
    """The burst that waits in staging does not fit what is left of the segment: it goes into the next."""
    intake = Intake(memory, segment_bytes=SEGMENT_BYTES)
    while (
        int(intake.spool.writer.tail[POSITION]) + 70000 < intake.spool.writer.capacity
        or not intake.spool.writer.base
    ):
        intake.take([sized(50000)])
    before = len(intake.stored())
    intake.queue(MIXED)
    intake.receive()
    assert intake.restart() == len(MIXED)
    assert intake.stored()[before:] == RIGHT
    assert len(intake.spool.segments()) == 2
    intake.close()


def test_a_burst_that_is_not_the_next_is_left_alone(intake: Intake) -> None:
    """When the log has gone past the armed burst, the datagrams in staging were stored long ago."""
    intake.take([sized(40, i) for i in range(30)])
    intake.queue(MIXED)
    intake.receive()
    intake.spool.append([encode(b"t", b"written meanwhile")])
    assert intake.restart() == 0
    assert intake.stored() == [sized(40, i) for i in range(30)] + [encode(b"t", b"written meanwhile")]
