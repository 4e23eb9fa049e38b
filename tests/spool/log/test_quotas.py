"""Topics whose undelivered messages exceed their share: measured near enough, and allowed again later."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.format.wire import encode
from spool.log.keeper import Pauses
from spool.log.quotas import ALLOWED, BACKLOG, NAME, NAME_BYTES, OVER, publish_open, row_at
from spool.options import over_quota
from spool.shared.state import MOST_QUOTAS, QUOTA_ROW, WORDS, Field
from tests.spool.fixture import SEGMENT_BYTES, SpoolFixture

MAX_BYTES = 128 * SEGMENT_BYTES
SHARE = 0.25


def made(memory: Path) -> SpoolFixture:
    """A spool with quotas for `a` and `b`."""
    return SpoolFixture(
        memory, pauses=Pauses(quotas=0.0), max_bytes=MAX_BYTES, quotas={b"a": SHARE, b"b": SHARE}
    )


def backlog(spool: SpoolFixture) -> list[int]:
    """The keeper's counts of undelivered bytes of `a` and `b`."""
    spool.step()
    return [int(spool.shared.words[row_at(n) + BACKLOG]) for n in (0, 1)]


def over(spool: SpoolFixture) -> list[bool]:
    """Whether each topic is over its quota."""
    spool.step()
    found = [bool(spool.shared.words[row_at(n) + OVER]) for n in (0, 1)]
    assert int(spool.shared.words[Field.QUOTAS]) == sum(found)
    return found


def append(spool: SpoolFixture, topic: bytes, frames: int, size: int = 200) -> list[bytes]:
    """Frames of five messages of one topic."""
    sent = [[encode(topic, b"v" * size)] * 5 for _ in range(frames)]
    for burst in sent:
        spool.append(burst)
    return [message for burst in sent for message in burst]


def total(messages: Sequence[bytes]) -> int:
    """Bytes."""
    return sum(map(len, messages))


@given(st.integers(0, 10**12), st.integers(1, 10**12))
def test_between_the_thresholds_nothing_changes(held: int, quota: int) -> None:
    """Over at the quota and above, not over at nine tenths and below, and as before in between."""
    after = over_quota(held, quota, before=False), over_quota(held, quota, before=True)
    if held >= quota:
        assert after == (True, True)
    elif held <= quota - max(1, quota // 10):
        assert after == (False, False)
    else:
        assert after == (False, True)


@pytest.mark.parametrize(("held", "expected"), [(999, False), (1000, True), (1001, True)])
def test_the_quota_is_kept_to_the_byte(held: int, *, expected: bool) -> None:
    """One byte less than the quota is no reason to discard."""
    assert over_quota(held, 1000, before=False) is expected


def test_what_a_failed_sync_has_committed_twice_counts_once(memory: Path) -> None:
    """The messages are read again from the fresh file: no topic is over a quota for that."""
    spool = made(memory)
    sent = append(spool, b"b", 3)
    with mock.patch.object(os, "fdatasync", side_effect=OSError(errno.EIO, os.strerror(errno.EIO))):
        spool.keeper.commit()
    assert spool.shared.words[Field.SUSPECT] == spool.writer.number
    assert spool.writer.switch()
    sent += append(spool, b"b", 1)
    spool.keeper.commit()
    assert not spool.shared.words[Field.SUSPECT]
    assert backlog(spool) == [0, total(sent)]


def test_one_topic_in_flood_is_over_and_the_others_are_not(memory: Path) -> None:
    """Exact for messages that this keeper committed; over at the quota; not over after delivery."""
    spool = made(memory)
    few = append(spool, b"b", 3)
    many: list[bytes] = []
    append(spool, b"other", 5)
    while not over(spool)[0]:
        many += append(spool, b"a", 4)
        assert backlog(spool) == [total(many), total(few)]
    assert abs(total(many) - SHARE * MAX_BYTES) <= 20 * len(many[0])
    assert over(spool) == [True, False]
    spool.shared.words[Field.LOW_WATERMARK] = spool.synced // 20
    assert over(spool) == [True, False]
    spool.shared.words[Field.LOW_WATERMARK] = spool.synced // 2
    assert over(spool) == [False, False]
    spool.crash()


def test_what_is_delivered_behind_a_stuck_message_is_no_backlog(memory: Path) -> None:
    """`b` is stuck, so the low watermark stays; all of `a` is delivered: it is not over its quota."""
    spool = made(memory)
    append(spool, b"b", 1)
    while not over(spool)[0]:
        append(spool, b"a", 4)
    publish_open(spool.shared, spool.synced, np.array([0, 5], np.int64))
    assert over(spool) == [False, False]
    assert backlog(spool) == [0, 5 * len(encode(b"b", b"v" * 200))]
    later = append(spool, b"a", 2)
    assert backlog(spool)[0] == total(later)
    spool.crash()


@pytest.mark.parametrize("sizes", [(200, 200), (20, 900)])
def test_after_a_restart_it_is_near_enough(memory: Path, sizes: tuple[int, int]) -> None:
    """Earlier segments count by footers and first frames: within a tenth, for large and small messages."""
    spool = made(memory)
    sent: dict[bytes, list[bytes]] = {b"a": [], b"b": []}
    for _ in range(40):
        for topic, size in zip(sent, sizes, strict=True):
            sent[topic] += append(spool, topic, 1, size)
        spool.step()
    for _ in range(10):
        spool.step()
    spool.reopen()
    for _ in range(5):
        found = backlog(spool)
    for held, messages in zip(found, sent.values(), strict=True):
        assert abs(held - total(messages)) <= 0.1 * total(messages)
    spool.crash()


def test_without_quotas_nothing_is_counted(spool: SpoolFixture) -> None:
    """Without quotas, the shared state says so, and no frame is parsed for them."""
    append(spool, b"a", 30)
    spool.step()
    assert spool.shared.words[Field.QUOTA_TOPICS] == 0
    assert spool.keeper._quotas._open_bytes is None


def test_rows_have_room_for_every_name_and_fit_the_page(memory: Path) -> None:
    """The rows hold the largest number of topics with a quota, with the longest names that Kafka allows."""
    names = [b"%02d" % n + b"n" * 247 for n in range(MOST_QUOTAS)]
    spool = SpoolFixture(memory, quotas=dict.fromkeys(names, 0.01))
    assert row_at(MOST_QUOTAS) <= WORDS
    for number, name in enumerate(names):
        row = spool.shared.words[row_at(number) :][:QUOTA_ROW]
        assert row[NAME:].tobytes()[: int(row[NAME_BYTES])] == name
        assert row[ALLOWED] == int(0.01 * (1 << 20))
    spool.crash()
