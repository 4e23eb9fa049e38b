"""The keeper: spares ahead of need, the order of commits, failures of the disk, full and not full."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from pathlib import Path
from unittest import mock

import pytest

from spool.errors import SpoolFull
from spool.format.frame import DISCARDED, SEQUENCE
from spool.format.scan import CHUNK_BYTES
from spool.format.segment import create_spare
from spool.format.wire import Reason, encode
from spool.layout import SENT, SPARE
from spool.log.keeper import EVICTION_S, Pauses
from spool.options import Full
from spool.shared.state import Field
from tests.spool.fixture import SEGMENT_BYTES, SpoolFixture
from tests.spool.unreadable import unreadable


def failing(name: str, code: int, *, times: int = 1) -> mock._patch:
    """The system call `name` fails a number of times."""
    real, left = getattr(os, name), [times]

    def call(*arguments: object) -> object:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(code, os.strerror(code))
        return real(*arguments)

    return mock.patch.object(os, name, call)


def step_often(spool: SpoolFixture) -> None:
    """Steps of the keeper until it has done everything that was due."""
    for _ in range(4):
        spool.keeper.step()


def test_a_segment_in_use_that_cannot_be_read_back(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The keeper lives, logs it once, calls nothing behind it synced, and goes on when the disk heals."""
    spool = SpoolFixture(memory, pauses=Pauses(unread=0.0), segment_bytes=64 << 10)
    spool.append([encode(b"t", b"v")])
    spool.step()
    words, (_, position) = spool.shared.words, spool.shared.place(Field.SYNCED)
    for _ in range(20):
        spool.append([encode(b"t", b"v" * 100)])
    synced = int(words[Field.SYNCED])
    # Some of the new frames can be read, and none of them is called synced.
    with unreadable(spool.last_path(), position + 1000):
        step_often(spool)
        assert int(words[Field.SYNCED]) == synced
        assert int(words[Field.SYNC_ERROR]) == errno.EIO
    assert len([line for line in caplog.messages if "; what is not committed waits" in line]) == 1
    with mock.patch.object(os, "fdatasync", wraps=os.fdatasync) as synced_by:
        step_often(spool)
    synced_by.assert_called()
    assert words[Field.SYNCED] == words[Field.WRITTEN]
    assert words[Field.SYNC_ERROR] == 0
    spool.crash()
    spool.reopen()
    assert len(spool.records()) == 21


def test_unsealed_segments_behind_a_dead_keeper_are_all_committed_and_sealed(memory: Path) -> None:
    """Several named segments without footers, left by a keeper that was killed between rolls."""
    spool = SpoolFixture(memory)
    with mock.patch.object(spool.keeper._committer, "seal_one", return_value=False):
        sent = spool.fill(40, messages=6)
        spool.step()
    assert len([s for s in spool.segments() if not s.footer]) >= 3
    spool.reopen()
    assert spool.synced == len(sent)
    sent += spool.fill(10, messages=6)
    for _ in range(6):
        spool.step()
    assert spool.synced == len(sent)
    assert [bool(s.footer) for s in spool.segments()] == [True] * (len(spool.segments()) - 1) + [False]
    assert spool.records() == list(enumerate(sent))
    spool.crash()


def test_a_restart_never_takes_back_what_was_announced(spool: SpoolFixture) -> None:
    """While a new keeper walks the segments again, the watermark does not move backwards."""
    spool.fill(40, messages=4)
    spool.keeper.commit()
    seen, announced = [], spool.synced
    real = os.fdatasync

    def sync(fd: int) -> None:
        real(fd)
        seen.append(spool.synced)

    spool.crash()
    with mock.patch.object(os, "fdatasync", sync):
        spool.open()
    assert len(seen) > 1
    assert set(seen) == {announced}


def test_a_long_commit_is_no_hang(memory: Path) -> None:
    """While a backlog of several chunks is committed, the keeper's heartbeat goes on with each."""
    spool = SpoolFixture(memory, segment_bytes=4 << 20, max_bytes=64 << 20)
    spool.append([encode(b"t", b"v")])
    spool.step()
    for _ in range(3 * CHUNK_BYTES // 50_000):
        spool.append([encode(b"t", bytes(50_000))])
    beats: list[int] = []
    spool.keeper.beat = lambda: beats.append(int(spool.keeper._committer.tail[SEQUENCE]))
    spool.keeper.commit()
    assert len(beats) >= 3
    assert beats == sorted(set(beats))
    spool.crash()


def test_spares_run_without_gaps_after_a_restart(spool: SpoolFixture) -> None:
    """A missing spare between others is made again; the appender is not sent to a missing one."""
    spool.fill(3)
    spool.step()
    high = spool.layout.list_spares()[-1]
    spool.crash()
    create_spare(spool.layout, spool.identity, high + 2, SEGMENT_BYTES)
    spool.open()
    sent = spool.fill(200)
    spool.step()
    assert spool.records()[-len(sent) :] == list(enumerate(sent, 9))


def test_spares_never_take_more_than_a_quarter(memory: Path) -> None:
    """At any rate, most of max_bytes is left to messages."""
    spool = SpoolFixture(memory, max_bytes=12 * SEGMENT_BYTES)
    provision = spool.keeper._provision
    with mock.patch("time.monotonic", return_value=provision._counted_at + 0.5):
        provision._counted = -(1 << 40)
        spool.step()
    assert provision.rate > 1 << 30
    assert len(spool.layout.list_spares()) <= 3
    spool.crash()


def test_full_is_left_with_two_segments_of_room_not_with_one(memory: Path) -> None:
    """Hysteresis: one segment that becomes free does not let a full spool accept for a moment."""
    spool = SpoolFixture(memory, max_bytes=8 * SEGMENT_BYTES)
    words = spool.shared.words
    while words[Field.SPARE] > spool.writer.number or not words[Field.FULL]:
        spool.fill(1, messages=8)
        spool.keeper.commit()
        spool.keeper._committer.seal_one()
        if spool.writer.tail[0] + 1300 > spool.writer.capacity:
            spool.step()
    with pytest.raises(SpoolFull):
        spool.fill(8, messages=8)
    spare, named = int(words[Field.SPARE]), spool.layout.list_segments()
    words[Field.LOW_WATERMARK] = named[1][0]
    spool.step()
    spool.step()
    assert words[Field.FULL] == 1
    assert words[Field.SPARE] == spare
    assert spool.layout.list_segments()[0][1] != SENT
    words[Field.LOW_WATERMARK] = named[3][0]
    spool.step()
    spool.step()
    assert words[Field.FULL] == 0
    assert words[Field.SPARE] == spare + 2
    spool.fill(8, messages=8)
    spool.crash()


@pytest.mark.parametrize("name", ["rename", "posix_fallocate", "fsync"])
def test_a_failed_file_operation_shows_in_the_page(spool: SpoolFixture, name: str) -> None:
    """Status reports any call that the disk refuses, and the next keeper goes on."""
    sent = spool.fill(25)
    with failing(name, errno.EIO), pytest.raises(OSError, match=os.strerror(errno.EIO)):
        step_often(spool)
    assert spool.shared.words[Field.SYNC_ERROR] == errno.EIO
    spool.reopen()
    sent += spool.fill(25)
    spool.step()
    assert spool.shared.words[Field.SYNC_ERROR] == 0
    assert spool.records() == list(enumerate(sent))
    assert spool.synced == len(sent)


def test_a_footer_without_room_waits(spool: SpoolFixture) -> None:
    """Without room for a footer the segment stays unsealed, the keeper lives, and seals it later."""
    with mock.patch("spool.format.segment.reserve", side_effect=SpoolFull("no room")):
        sent = spool.fill(60)
        spool.step()
        spool.keeper._committer.seal_last()
    assert not any(segment.footer for segment in spool.segments())
    spool.reopen()
    for _ in range(5):
        spool.step()
    assert spool.segments()[0].footer
    assert spool.records() == list(enumerate(sent))


def test_a_segment_delivered_before_its_turn_is_sealed_under_its_new_name(spool: SpoolFixture) -> None:
    """Called sent, or removed, before it is sealed: the keeper goes on with the next."""
    sent = spool.fill(100)
    spool.keeper.commit()
    spool.shared.words[Field.LOW_WATERMARK] = len(sent) // 2
    spool.keeper._retire()
    assert spool.layout.list_segments()[0][1] == SENT
    spool.keeper._stock._remove_one()
    for _ in range(10):
        spool.step()
    assert [bool(s.footer) for s in spool.segments()] == [True] * (len(spool.segments()) - 1) + [False]


def test_refusals_are_said_at_the_end(spool: SpoolFixture, caplog: pytest.LogCaptureFixture) -> None:
    """Those since the last line, too: the next start takes them for said."""
    keeper = spool.keeper
    for refused in (0, 1, 2):
        keeper._committer.tail[DISCARDED + Reason.SHORT] += refused
        keeper._note_history()
    spool.stop()
    found = [line.partition(" discarded")[0] for line in caplog.messages if " at intake" in line]
    assert found == ["1 message was", "2 messages were"]


def test_damage_in_the_live_segment_is_passed_over_and_said(
    spool: SpoolFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """A frame that rots before its commit costs itself; those behind it are committed."""
    spool.fill(4)
    path, frames = spool.last_path(), spool.segments()[-1].frames
    with path.open("r+b") as file:
        file.seek(frames[1].offset + 100)
        file.write(b"\xff\xfe")
    spool.step()
    assert spool.synced == 12
    assert "3 messages cannot be read" in caplog.text


def test_rot_in_the_last_frame_is_said_once_and_waits(
    spool: SpoolFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a good frame behind it the watermark waits before the damage; the next frame lets it pass."""
    spool.fill(3)
    path, frames = spool.last_path(), spool.segments()[-1].frames
    with path.open("r+b") as file:
        file.seek(frames[2].offset + 100)
        file.write(b"\xff\xfe")
    for _ in range(3):
        spool.step()
    assert spool.synced == 6
    assert caplog.text.count("is damaged") == 1
    spool.append([encode(b"t", b"next")])
    spool.step()
    assert spool.synced == 10


def test_a_spare_is_bound_while_the_keeper_looks(spool: SpoolFixture) -> None:
    """A header that is half written at this moment is not in use yet, and no error."""
    spool.fill(1)
    spool.step()
    path = spool.layout.segment(spool.writer.number + 1, SPARE)
    with path.open("r+b") as file:
        file.seek(56)
        file.write(bytes(8))
    spool.keeper._committer.commit(spool.writer.number + 1, 384)
    assert spool.keeper._committer.number == spool.writer.number


def fill_to_the_end(spool: SpoolFixture) -> list[bytes]:
    """Append until no segment is left."""
    sent = []
    with contextlib.suppress(SpoolFull):
        while True:
            sent += spool.fill(1, messages=8)
            spool.step()
    return sent


def test_a_slow_search_for_room_does_not_hide_that_there_is_none(spool: SpoolFixture) -> None:
    """When the last spare is taken the spool is full, also while the keeper waits before the next search."""
    words, tries = spool.shared.words, list[int]()

    def search(number: int) -> None:
        tries.append(number)
        time.sleep(0.2)
        raise SpoolFull("no room")

    spool.fill(1)
    spool.step()
    with (
        mock.patch.object(spool.keeper._stock, "make_spare", search),
        mock.patch("spool.log.keeper.free_bytes", return_value=(0, 1 << 30)),
    ):
        while int(words[Field.SPARE]) > spool.writer.number:
            number = spool.writer.number
            while spool.writer.number == number:
                spool.writer.append([encode(b"t", bytes(1000))])
            spool.step()
    assert tries
    assert words[Field.FULL] == Full.DISK


def test_the_oldest_are_to_be_given_up_before_the_newest_are_refused(memory: Path) -> None:
    """Without room the shared state gives a limit; segments below it go, and intake was never refused."""
    spool = SpoolFixture(memory, max_bytes=8 * SEGMENT_BYTES, when_full="discard_oldest")
    words = spool.shared.words
    while not words[Field.EVICT]:
        spool.fill(1, messages=8)
        spool.step()
    limit, named = int(words[Field.EVICT]), [first for first, _ in spool.layout.list_segments()]
    assert limit == named[2]
    assert not words[Field.FULL]
    spool.step()
    assert words[Field.EVICT] == limit
    words[Field.LOW_WATERMARK] = limit
    for _ in range(20):
        spool.fill(1, messages=8)
        spool.step()
        words[Field.LOW_WATERMARK] = words[Field.EVICT]
    assert named[0] not in [first for first, _ in spool.layout.list_segments()]
    assert not words[Field.FULL]
    spool.crash()


def test_nobody_gives_the_oldest_up(memory: Path) -> None:
    """While the delivery worker does not discard them within its time, the newest are refused."""
    spool = SpoolFixture(memory, max_bytes=8 * SEGMENT_BYTES, when_full="discard_oldest")
    fill_to_the_end(spool)
    assert not spool.shared.words[Field.FULL]
    spool.keeper._provision._asked_at -= EVICTION_S
    spool.keeper._provision._again_at = 0.0
    spool.step()
    assert spool.shared.words[Field.FULL] == Full.MAX_BYTES
    spool.shared.words[Field.LOW_WATERMARK] = spool.shared.words[Field.EVICT]
    step_often(spool)
    assert not spool.shared.words[Field.FULL]
    spool.fill(8, messages=8)
    spool.crash()


def test_delivered_segments_go_before_any_is_given_up(memory: Path) -> None:
    """Delivered segments make room first; no undelivered one is given up while any of them is left."""
    spool = SpoolFixture(memory, max_bytes=12 * SEGMENT_BYTES, when_full="discard_oldest")
    words = spool.shared.words
    for _ in range(150):
        spool.fill(1, messages=8)
        words[Field.LOW_WATERMARK] = max(0, spool.synced - 100)
        spool.step()
        assert not words[Field.EVICT]
    assert not words[Field.FULL]
    assert spool.layout.list_segments()[0][0] > 0
    spool.crash()


@pytest.mark.parametrize("keep", [0, 3 * SEGMENT_BYTES])
def test_delivered_segments_are_kept_by_bytes(memory: Path, keep: int) -> None:
    """Only that many bytes of them stay, even if max_bytes allows more, and no other segment goes."""
    spool = SpoolFixture(memory, keep_delivered_bytes=keep)
    sent = spool.fill(100, messages=6)
    spool.keeper.commit()
    while spool.keeper._committer.seal_one():
        continue
    assert all(suffix != SENT for _, suffix in spool.layout.list_segments())
    half = spool.layout.list_segments()[8][0]
    spool.shared.words[Field.LOW_WATERMARK] = half
    spool.keeper._expired_at = -math.inf
    spool.step()
    gone = [suffix for first, suffix in spool.layout.list_segments() if first < half]
    assert sum(size for _, size in spool.keeper._stock.sent()) <= keep
    assert len(gone) == len(spool.keeper._stock.sent())
    assert keep - sum(size for _, size in spool.keeper._stock.sent()) < 2 * SEGMENT_BYTES
    assert [d for s, d in spool.records() if s >= half] == sent[half:]
    spool.crash()


def test_delivered_segments_are_kept_by_hours_of_running(memory: Path) -> None:
    """Two hours old, with a restart in between: removed after the hours, at any time of the wall clock."""
    spool = SpoolFixture(memory, keep_delivered_hours=2)
    spool.fill(60, messages=6)
    step_often(spool)
    half = spool.layout.list_segments()[3][0]
    spool.shared.words[Field.LOW_WATERMARK] = half

    def step(hours: float) -> list[int]:
        clock = time.monotonic()
        with mock.patch.object(spool.keeper._ages, "_clock", return_value=clock + 3600 * hours):
            spool.keeper._expired_at = -math.inf
            spool.step()
        return [first for first, suffix in spool.layout.list_segments() if suffix == SENT]

    for jump in (0, 10 * 365 * 86400, -10 * 365 * 86400):
        with mock.patch("time.time_ns", return_value=time.time_ns() + jump * 10**9):
            assert len(step(0)) == 3
    assert len(step(1.5)) == 3
    spool.reopen()
    assert len(step(0)) == 3
    assert len(step(0.4)) == 3
    assert step(0.6) == []
    assert spool.layout.list_segments()[0][0] == half
    spool.crash()
