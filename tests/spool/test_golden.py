"""Files written once by an earlier version: every later one reads them, with the same content.

tools/golden.py wrote them. When a test here fails, the code has changed the format, not the files.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from spool.format.batch import Topics, decode
from spool.format.frame import END, FRAME_ROW, POSITION, tail_at_start
from spool.format.scan import Scan, digest_address, read_header
from spool.format.segment_format import FOOTER, HEADER, SUMS_SINCE, VERSION
from spool.format.wire import Reason
from spool.index.log_end import LiveSegment, end_of, read_footer
from spool.log.intake_totals import UNKNOWN, SenderCount, list_senders
from tests.spool import plain

ROOT = Path(__file__).parents[1] / "golden"
RECEIVED_NS = 1_700_000_000_000_000_000
SECRET = bytes(range(32, 48))
"""The secret of the segments since version 2."""


class Golden:
    """The files of one version, and their expected content."""

    def __init__(self, version: int) -> None:
        self.version, self.directory = version, ROOT / f"v{version}"
        self.expected = json.loads((self.directory / "expected.json").read_text())
        bursts = self.expected["bursts"]
        self.bursts = {"sealed": bursts, "unsealed": bursts[:2], "torn": bursts[:3]}

    def path(self, name: str) -> Path:
        """One of the segments."""
        return self.directory / f"{name}.seg"


@pytest.fixture(params=[1, 2, 3, 4], ids=["v1", "v2", "v3", "v4"])
def golden(request: pytest.FixtureRequest) -> Golden:
    """Each version of the format."""
    return Golden(request.param)


NAMES = pytest.mark.parametrize("name", ["sealed", "unsealed", "torn"])


def as_json(value: np.ndarray) -> object:
    """A field in the form of expected.json."""
    found = value.tolist()
    return found.hex() if isinstance(found, bytes) else found


@pytest.mark.parametrize("name", ["sealed", "unsealed"])
def test_header_says_what_it_said(golden: Golden, name: str) -> None:
    """Every field of the header is as written."""
    record = read_header(golden.path(name))
    names = [n for n in HEADER.names or () if n not in ("zero", "check")]
    found = {n: as_json(record[n]) for n in names}
    # Files of version 1 were described before there was a secret.
    wanted = {"secret": bytes(16).hex()} | golden.expected[name]["header"]
    assert (found["version"], found["secret"]) == (
        golden.version,
        (SECRET if golden.version > 1 else bytes(16)).hex(),
    )
    assert found == wanted


@NAMES
def test_frames_say_what_they_said(golden: Golden, name: str) -> None:
    """Every field of every frame, datagram and discard row, read by the independent reader."""
    segment = plain.read_segment((golden.path(name)).read_bytes())
    sequence, burst = int(str(segment.header["first_sequence"])), int(str(segment.header["burst"]))
    assert len(segment.frames) == len(golden.bursts[name])
    for i, (frame, wanted) in enumerate(zip(segment.frames, golden.bursts[name], strict=True)):
        burst += 1 + i
        uid, pid = wanted["sender"]
        assert [d.hex() for d in frame.datagrams] == wanted["datagrams"]
        assert [[r, n, sample.hex()] for r, n, sample in frame.rows] == wanted["refused"]
        assert (frame.sequence, frame.burst, frame.received_ns) == (sequence, burst, RECEIVED_NS + i)
        assert frame.flags == wanted["flags"] | 3
        assert (set(frame.uids), set(frame.pids)) in (({uid}, {pid}), (set(), set()))
        sequence += len(frame.datagrams)


def test_rows_that_name_their_sender(golden: Golden) -> None:
    """Flag 16: the sender of a refused datagram is before its sample, for both readers."""
    wanted = json.loads((golden.directory / "senders.json").read_text())
    segment = plain.read_segment((golden.path("senders")).read_bytes())
    for frame, burst in zip(segment.frames, wanted, strict=True):
        assert frame.flags == burst["flags"] | 3 == 19
        rows = zip(frame.row_uids, frame.rows, strict=True)
        told = [[r, n, (uid or 0).to_bytes(4, "little").hex() + sample.hex()] for uid, (r, n, sample) in rows]
        assert told == burst["refused"]
        assert [d.hex() for d in frame.datagrams] == burst["datagrams"]
    count = SenderCount(0, b"")
    count.read_frames(golden.path("senders"))
    assert {one.uid: (one.stored, dict(one.refused)) for one in list_senders(count)} == {
        1000: (2, {}),
        1001: (0, {Reason.SHORT: 3, Reason.UNCLEAN: 1}),
        0: (0, {Reason.NOT_PERMITTED: 1}),
        UNKNOWN: (0, {Reason.SHORT: 2}),
    }


def test_rows_that_name_no_sender(golden: Golden) -> None:
    """Without flag 16 the same readers find all of a sample, and no sender."""
    segment = plain.read_segment((golden.path("sealed")).read_bytes())
    assert {uid for frame in segment.frames for uid in frame.row_uids} == {None}
    count = SenderCount(0, b"")
    count.read_frames(golden.path("sealed"))
    found = {one.uid: dict(one.refused) for one in list_senders(count)}
    assert found == {1000: {}, 0: {}, UNKNOWN: {Reason.SHORT: 2, Reason.VALUE: 1, Reason.API_KEY: 512}}


@NAMES
def test_the_package_reads_what_the_independent_reader_reads(golden: Golden, name: str) -> None:
    """Scan and decode give the same frames and the same messages, column by column."""
    path = golden.path(name)
    segment = plain.read_segment(path.read_bytes())
    fd, tail = os.open(path, os.O_RDONLY), tail_at_start(read_header(path))
    scan, topics = Scan(fd, tail), Topics()
    chunk = scan.next()
    assert chunk is not None
    rows = [(f.offset, f.sequence, len(f.datagrams), f.received_ns, f.flags) for f in segment.frames]
    assert chunk.frames.view(FRAME_ROW).ravel().tolist() == rows
    batch = decode(chunk.data, chunk.offset, chunk.frames, topics, digest_address())
    assert list(zip(batch.sequence.tolist(), map(batch.datagram, range(len(batch))), strict=True)) == (
        segment.messages()
    )
    for row, (_, data) in enumerate(segment.messages()):
        message = plain.parse_datagram(data)
        assert isinstance(message, plain.Message)
        assert topics.names[batch.topic[row]] == message.topic
        assert (batch.key(row), batch.value(row)) == (message.key, message.value)
        assert batch.headers(row) == list(message.headers)
        assert batch.timestamp[row] == message.timestamp
        assert (batch.number[row] if batch.keyed[row] else None) == message.partition_key
        assert (batch.number[row] if batch.numbered[row] else None) == message.partition
    assert scan.next() is None
    os.close(fd)


def test_footer_says_what_it_said(golden: Golden) -> None:
    """Every field of the footer, its marks and its topics are unchanged."""
    fd = os.open(golden.path("sealed"), os.O_RDONLY)
    footer = read_footer(fd)
    os.close(fd)
    assert footer is not None
    record, marks, topics, sums = footer
    found = {n: as_json(record[n]) for n in FOOTER.names or () if n not in ("magic", "blocks")}
    if golden.version >= SUMS_SINCE:
        found["blocks"], found["sum_rows"] = int(record["blocks"]), [list(row) for row in sums.tolist()]
    else:
        assert len(sums) == 0
    found["mark_rows"] = [list(row) for row in marks.tolist()]
    found["topic_rows"] = [[name.hex(), *rest] for name, *rest in topics]
    assert found == golden.expected["sealed"]["footer"]


def test_the_sums_are_those_of_the_messages(golden: Golden) -> None:
    """The independent reader computes the same sums from the messages, whatever the version."""
    segment = plain.read_segment(golden.path("sealed").read_bytes())
    told = golden.expected["sealed"]["footer"].get("sum_rows", [])
    assert [list(row) for row in plain.sums(segment)] == told or golden.version < SUMS_SINCE
    assert segment.footer is not None
    assert [list(row) for row in segment.footer["sums"]] == told


@pytest.mark.parametrize("name", ["sealed", "unsealed", "torn"])
def test_the_end_is_found(golden: Golden, name: str) -> None:
    """A sealed segment ends where its footer says, an open one and a torn one behind the last good frame.

    Nothing is appended to one of an earlier version: its release would take the frames for damage.
    """
    path = golden.path(name)
    end = end_of(LiveSegment(path, read_header(path)))
    assert (end.appendable, end.damaged) == (golden.version == VERSION and name != "sealed", False)
    assert end.tail[POSITION] == plain.read_segment(path.read_bytes()).end


def test_zeros_follow_the_last_frame(golden: Golden) -> None:
    """Preallocated bytes that were never written end the log."""
    fd = os.open(golden.path("unsealed"), os.O_RDONLY)
    scan = Scan(fd, tail_at_start(read_header(golden.path("unsealed"))))
    while scan.next():
        continue
    assert scan.stopped == END
    os.close(fd)
