"""The targets of the fuzzer. Each takes any bytes; an exception that leaves it is a finding."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cli.config.config import load_config
from cli.terminal.errors import ConfigError
from spool.errors import SpoolError
from spool.format.batch import Batch, Topics, decode
from spool.format.damage import malformed
from spool.format.frame import MARK, POSITION, ROW, TAIL_FIELDS, find, tail_at_start, walk
from spool.format.scan import digest_address
from spool.format.segment_format import HEADER_BYTES, OLD_KEYS, decode_header
from spool.format.wire import MAX_DATAGRAM_BYTES, Reason, check
from spool.fsck import examination
from spool.fsck.examination import Examination
from spool.native.memory import address_of
from spool.read.files import Span, Unreadable, read_file
from tests.spool import plain
from tools.fuzzers.intake import NEIGHBOUR, Intake
from tools.fuzzers.kafka_requests import Requests
from tools.fuzzers.sealed import seal_input
from tools.fuzzers.wall import Wall

MOST_BYTES = 64 << 10
_TABLE_ROWS = 512
_FOOTER_BYTES = 24
"""Behind the frames the independent reader looks for the end of a footer."""


class Broken(AssertionError):
    """A parser returned an impossible value."""


def _expect(holds: object, text: str) -> None:
    if not holds:
        raise Broken(text)


@cache
def _wall() -> Wall:
    return Wall(2 * MOST_BYTES)


@cache
def _file() -> int:
    # No process writes beside us, so an examination need not wait at a torn end.
    examination._PATIENCE_S = 0.0  # noqa: SLF001
    return os.memfd_create("fuzz")


def _write(data: bytes) -> Path:
    """A file with these bytes, in memory; valid until the next."""
    fd = _file()
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)
    return Path(f"/proc/self/fd/{fd}")


def _topics() -> Topics:
    """A small table: many wait for Python to collect them."""
    return Topics(capacity=64)


@cache
def _intake() -> Intake:
    return Intake()


def datagram(data: bytes) -> None:
    """A datagram between two others, into a segment: as a reader of the specification alone expects it.

    Its messages are all there, and read back as they were sent, or none is, and its row has the reason.
    """
    # Of a longer one the kernel hands over no more.
    data = data[:MAX_DATAGRAM_BYTES]
    memory = _wall().place(data)
    parsed = plain.parse(data)
    reason = Reason[parsed.upper()] if isinstance(parsed, str) else Reason.ACCEPTED
    _expect(check(address_of(memory), len(data)) == reason, f"not the verdict {reason.name}")
    segment = _intake().store(data)
    (frame,) = plain.read_segment(segment + bytes(_FOOTER_BYTES)).frames
    messages = [] if reason else plain.split(data)
    _expect(frame.datagrams == [NEIGHBOUR, *messages, NEIGHBOUR], "stored something else")
    rows = [(int(reason), plain.count_messages(data), plain.sample_of(data))] if reason else []
    _expect(frame.rows == rows, f"counted as {frame.rows}")
    body = _wall().place(segment[frame.offset :])
    table = np.array([[0, 7, len(frame.datagrams), 0, frame.flags]], np.int64)
    _expect(malformed(address_of(body), table) < 0, "accepted, and called malformed")
    batch = decode(body, 0, table, _topics(), digest_address())
    for row, message in enumerate(frame.datagrams):
        _expect(batch.datagram(row) == message, "decoded from somewhere else")
        _check_message(batch, row)


def _check_message(batch: Batch, row: int) -> None:
    """The columns say what the independent reader finds in the bytes."""
    data, number = batch.datagram(row), int(batch.number[row])
    found = plain.Message(
        batch.topic_name(row),
        int(batch.timestamp[row]),
        batch.key(row),
        batch.value(row),
        number if batch.keyed[row] else None,
        number if batch.numbered[row] else None,
        tuple(batch.headers(row)),
    )
    _expect(plain.parse_datagram(data) == found, "read as something else")
    _expect(batch.encode(row, found.topic) == data, "decoded to something else")


def frames(data: bytes) -> None:
    """Segments: walked in memory up to a wall, read from a file, and examined."""
    segment = seal_input(data)
    _walk(segment)
    path = _write(segment)
    try:
        for part in read_file(path, _topics(), Span()):
            if not isinstance(part, Unreadable):
                _check_batch(part)
    except SpoolError as error:
        _expect("\n" not in str(error), "an error of more than one line")
    looked = Examination(path, last=True)
    for finding in looked.findings():
        _expect(finding.offset >= 0 and "\n" not in finding.sentence, "a finding that cannot be read")


def _walk(segment: bytes) -> None:
    memory = _wall().place(segment)
    base, limit = address_of(memory), len(segment)
    table = np.zeros((_TABLE_ROWS, ROW), np.int64)
    try:
        tail = tail_at_start(decode_header(segment, "input"))
    except SpoolError:
        tail = np.zeros(TAIL_FIELDS, np.int64)
        tail[POSITION], tail[MARK] = min(HEADER_BYTES, limit), OLD_KEYS.mark
    before = int(tail[POSITION])
    _, rows = walk(base, limit, tail, table, digest_address())
    _expect(before <= tail[POSITION] <= (limit + 7) & ~7, "the walk left the segment")
    malformed(base, table[:rows])
    nowhere, position = tail.copy(), 0
    nowhere[POSITION] = 0
    for _ in range(_TABLE_ROWS):
        found, whole = find(base, position, limit, limit, nowhere, digest_address())
        if found < 0:
            return
        _expect(position <= found and not whole, "found behind the end of all there is")
        position = int(found) + 8


def _check_batch(batch: Batch) -> None:
    room = len(batch.data)
    for at, length in ((batch.key_at, batch.key_bytes), (batch.value_at, batch.value_bytes)):
        _expect(bool((_inside(at, length, room)).all()), "a key or value outside of what was read")
    _expect(bool((batch.topic >= 0).all()), "a topic without a number")
    for row in range(len(batch)):
        _check_message(batch, row)


def _inside(at: npt.NDArray[np.int64], length: npt.NDArray[np.int32], room: int) -> npt.NDArray[np.bool_]:
    return (at >= 0) & (length >= 0) & (at + length <= room)


def config(data: bytes) -> None:
    """A bruce.toml, and after each zero byte a variable NAME=VALUE: options, or one line why not."""
    text, *variables = data.split(b"\0")
    file = _write(text)
    pairs = [os.fsdecode(variable).partition("=")[::2] for variable in variables]
    try:
        load_config(file, environ=dict(pairs), uid=1)
    except ConfigError as error:
        _expect("\n" not in str(error), f"a sentence of several lines: {error}")


@cache
def _requests() -> Requests:
    return Requests()


def kafka(data: bytes) -> None:
    """A request of a Kafka client, without its size."""
    _requests().take(data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "frames": frames,
    "datagram": datagram,
    "config": config,
    "kafka": kafka,
}
