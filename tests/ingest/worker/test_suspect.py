"""A segment whose sync has failed: the worker stores nothing more into it, and loses nothing for it."""

from __future__ import annotations

import errno
import os
from unittest import mock

import pytest

from ingest.buffers.staging import MSG_DONTWAIT, MSG_WAITFORONE
from ingest.worker import burst
from spool.format.segment import create_spare
from spool.format.wire import encode
from spool.layout import SPARE
from spool.shared.state import Field
from tests.ingest.intake import Intake


def datagrams(first: int, count: int) -> list[bytes]:
    """Distinct messages."""
    return [encode(b"t", b"%d" % i) for i in range(first, first + count)]


def fail_sync(intake: Intake) -> int:
    """The live segment's next sync fails; its number."""
    number = intake.worker.writer.number
    with mock.patch.object(os, "fdatasync", side_effect=OSError(errno.EIO, "")):
        intake.spool.keeper.commit()
    assert intake.spool.shared.words[Field.SUSPECT] == number
    return number


@pytest.fixture
def intake(intake: Intake) -> Intake:
    """An intake with 20 messages that are synced, and 20 that are not."""
    intake.take(datagrams(0, 20))
    intake.spool.step()
    assert intake.spool.synced == 20
    intake.worker.job[burst.FLAGS] = MSG_WAITFORONE | MSG_DONTWAIT
    intake.queue(datagrams(20, 5))
    intake.worker._round()
    return intake


def test_the_next_burst_goes_into_the_next_segment(intake: Intake) -> None:
    """In the middle of a flood: the kernel asks for a new segment, and the suspect gets nothing more."""
    number = fail_sync(intake)
    size = intake.spool.segments()[-1].end
    intake.queue(datagrams(25, 5))
    intake.worker._round()
    assert intake.worker.writer.number == number + 1
    assert intake.spool.segments()[-2].end == size
    intake.spool.step()
    assert intake.spool.synced == 30
    assert intake.stored() == datagrams(0, 30)


def test_an_idle_worker_lets_go_of_it(intake: Intake) -> None:
    """Without senders the worker goes on at the next end of its wait, so that the keeper can rewrite."""
    number = fail_sync(intake)
    intake.spool.step()
    assert intake.spool.synced == 20
    assert not intake.worker._round()
    assert intake.worker.writer.number == number + 1
    intake.spool.step()
    assert intake.spool.synced == 25


def test_a_successor_does_not_store_into_it_either(intake: Intake) -> None:
    """The worker dies while a burst waits in staging: the salvaged burst goes into the next segment."""
    number = fail_sync(intake)
    intake.queue(datagrams(25, 5))
    assert intake.receive() == 5
    assert intake.restart() == 5
    assert intake.worker.writer.number == number + 1
    intake.spool.step()
    assert intake.spool.synced == 30
    assert intake.stored() == datagrams(0, 30)


def test_two_suspects_in_a_row_are_no_poison(intake: Intake) -> None:
    """The next segment becomes suspect before the waiting burst is in it: it goes into the one behind."""
    number, worker, words = fail_sync(intake), intake.worker, intake.spool.shared.words
    layout, switch = intake.spool.layout, worker.writer.switch
    if not layout.segment(number + 2, SPARE).exists():
        create_spare(layout, intake.spool.identity, number + 2, intake.spool.options.segment_bytes)
    words[Field.SPARE] = number + 2

    def switch_into_a_suspect() -> bool:
        done = switch()
        words[Field.SUSPECT] = number + 1
        return done

    intake.queue(datagrams(25, 5))
    with mock.patch.object(worker.writer, "switch", switch_into_a_suspect):
        worker._round()
    assert worker.writer.number == number + 2
    assert intake.refused() == {}
    assert intake.stored() == datagrams(0, 30)
