"""A segment file: a spare, taken into use by stores alone, sealed behind its last good frame."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from spool.errors import SpoolFull, UnknownVersion
from spool.format.frame import BURST, DISCARDED, KEY, MARK, POSITION, SEQUENCE
from spool.format.scan import read_header
from spool.format.segment import (
    UNBOUND,
    Identity,
    bound_spares,
    create_spare,
    following,
    list_files,
    seal,
    take_into_use,
)
from spool.format.segment_format import FOOTER_MAGIC, HEADER_BYTES, decode_header
from spool.layout import SPARE, Layout
from spool.storage.disk import Mapping
from tests.spool import plain
from tests.spool.fixture import SEGMENT_BYTES, SpoolFixture
from tests.spool.fsck.checked import flip, rewrite_header
from tests.spool.memory import Chain

IDENTITY = Identity(b"spool" * 3 + b"s", b"boot" * 4, b"secret" * 2 + b"key.")


@pytest.fixture
def layout(memory: Path) -> Layout:
    """A spool with the spares 1 to 3, and nothing in use."""
    made = Layout(memory)
    made.segments.mkdir()
    for number in (1, 2, 3):
        create_spare(made, IDENTITY, number, SEGMENT_BYTES)
    return made


def bind(layout: Layout, number: int, before: Chain) -> None:
    """Take a spare into use behind a segment in memory."""
    mapping = Mapping(os.open(layout.segment(number, SPARE), os.O_RDWR))
    take_into_use(mapping, IDENTITY, number, before.tail)
    mapping.close()


def test_a_spare_is_allocated_and_unbound(layout: Layout) -> None:
    """It has all its blocks, its number and its spool; no first message and no secret is in it yet."""
    path = layout.segment(2, SPARE)
    header = read_header(path)
    assert path.stat().st_blocks * 512 >= path.stat().st_size == SEGMENT_BYTES
    assert (int(header["number"]), int(header["first_sequence"])) == (2, UNBOUND)
    assert (header["spool"].tobytes(), header["boot"].tobytes()) == (IDENTITY.spool, IDENTITY.boot)
    assert IDENTITY.secret not in path.read_bytes()
    assert list_files(layout) == []


def test_a_segment_continues_the_one_before(layout: Layout) -> None:
    """Its header and its tail go on with the numbers, counts and the chain; no system call binds it."""
    before = Chain.of(3)
    mapping = Mapping(os.open(layout.segment(1, SPARE), os.O_RDWR))
    with mock.patch.object(os, "pwrite", side_effect=AssertionError):
        header, tail = take_into_use(mapping, IDENTITY, 1, before.tail)
    mapping.close()
    assert read_header(layout.segment(1, SPARE)) == header
    assert header["secret"].tobytes() == IDENTITY.secret
    goes_on = np.ones(len(tail), np.bool_)
    # A segment has its own beginning, and its own keys.
    goes_on[[POSITION, KEY, MARK]] = False
    assert np.array_equal(tail[goes_on], before.tail[goes_on])
    assert (tail[POSITION], tail[BURST], tail[DISCARDED + 1]) == (HEADER_BYTES, 3, 3)


@pytest.mark.parametrize(("messages", "skipped"), [(2, 0), (0, 1)])
def test_no_segment_takes_the_name_of_the_one_before(messages: int, skipped: int) -> None:
    """Behind a segment without messages, whose name is that of its first, one number is skipped."""
    one = Chain()
    one.append([b"x" * 40] * messages, {1: (1, b"x")}, (0, 0))
    assert following(decode_header(one.data(), "x"), one.tail) == int(one.tail[SEQUENCE]) + skipped


def test_spares_in_use_are_segments(layout: Layout) -> None:
    """By number, behind those with a name; a spare whose header was torn while it was bound is one still."""
    named = layout.segment(0)
    named.write_bytes(Chain.of(1).data())
    for number in (1, 2, 3):
        bind(layout, number, Chain.of(number))
    flip(layout.segment(2, SPARE), 100)
    assert [(path, int(header["number"])) for path, header in bound_spares(layout)] == [
        (layout.segment(1, SPARE), 1),
        (layout.segment(3, SPARE), 3),
    ]
    assert list_files(layout) == [named, layout.segment(1, SPARE), layout.segment(3, SPARE)]


def test_a_spare_of_a_newer_release_is_not_passed_over(layout: Layout) -> None:
    """It may hold messages, unlike one that is torn."""
    bind(layout, 1, Chain.of(1))
    rewrite_header(layout.segment(1, SPARE), version=1000)
    with pytest.raises(UnknownVersion):
        list_files(layout)


def unsealed(directory: Path) -> Path:
    """A segment with three frames, and zeros behind them."""
    path = directory / "1.seg"
    path.write_bytes(Chain.of(3).data())
    return path


def test_a_seal_that_is_not_synced_leaves_no_footer(memory: Path) -> None:
    """A reader would find it in the page cache, and believe it; the frames stay."""
    path = unsealed(memory)
    before = plain.read_segment(path.read_bytes())
    with (
        mock.patch.object(os, "fsync", side_effect=OSError(errno.EIO, "")),
        pytest.raises(OSError, match=str(errno.EIO)),
    ):
        seal(path)
    after = plain.read_segment(path.read_bytes())
    assert (after.footer, after.frames, path.stat().st_size) == (None, before.frames, before.end)


def test_a_seal_without_room_changes_nothing(memory: Path) -> None:
    """On a full disk the segment is sealed later, from what is there."""
    path = unsealed(memory)
    before = path.read_bytes()
    with (
        mock.patch.object(os, "posix_fallocate", side_effect=OSError(errno.ENOSPC, "full")),
        pytest.raises(SpoolFull),
    ):
        seal(path)
    assert path.read_bytes() == before


def test_a_footer_has_the_number_that_it_is_given(memory: Path) -> None:
    """For a next segment that does not follow directly; else it is the number behind the last message."""
    one, tail = unsealed(memory), Chain.of(3).tail
    seal(one)
    follows = plain.read_segment(one.read_bytes())
    one = unsealed(memory)
    seal(one, next_sequence=1 << 32)
    found = plain.read_segment(one.read_bytes())
    assert follows.footer
    assert found.footer
    assert (follows.footer["next_sequence"], found.footer["next_sequence"]) == (tail[SEQUENCE], 1 << 32)


def test_sealing_cuts_behind_the_last_good_frame(spool: SpoolFixture, tmp_path: Path) -> None:
    """The footer takes the place of the torn frame; the segment's counts are those of the good frames."""
    spool.fill(3)
    data = bytearray(spool.last_path().read_bytes())
    segment = plain.read_segment(bytes(data))
    start = segment.frames[-1].offset
    data[start + 20 : segment.end] = bytes(segment.end - start - 20)
    path = tmp_path / "torn.seg"
    path.write_bytes(data)
    seal(path)
    assert path.read_bytes().index(FOOTER_MAGIC) == start
    sealed = plain.read_segment(path.read_bytes())
    assert sealed.footer is not None
    assert (sealed.footer["end"], sealed.footer["count"], sealed.footer["next_sequence"]) == (start, 6, 6)
    assert sealed.messages() == segment.messages()[:6]
