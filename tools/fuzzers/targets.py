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
from spool.format.segment_format import HEAD_BYTES, HEADER_BYTES, OLD_KEYS, PIDS, UIDS, decode_header
from spool.format.wire import REASONS, check
from spool.fsck import examination
from spool.fsck.examination import Examination
from spool.log.writer import encode_body
from spool.native.memory import address_of
from spool.read.files import Span, Unreadable, read_file
from tools.fuzzers.sealed import seal_input
from tools.fuzzers.wall import Wall

MOST_BYTES = 64 << 10
_TABLE_ROWS = 512


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


def datagram(data: bytes) -> None:
    """The checks of the intake; a datagram that they accept is decoded, and gives the same message."""
    memory = _wall().place(data)
    verdict = int(check(address_of(memory), len(data)))
    _expect(0 <= verdict < REASONS, f"the verdict {verdict}")
    if verdict:
        return
    body, _ = encode_body([data], {}, (1, 2))
    head = np.zeros(HEAD_BYTES, np.uint8)
    head[14:16].view("<u2")[0], head[16:20].view("<u4")[0] = UIDS | PIDS, 1
    head[24:28].view("<u4")[0] = len(body)
    frame = _wall().place(head.tobytes() + body)
    table = np.array([[0, 7, 1, 0, UIDS | PIDS]], np.int64)
    _expect(malformed(address_of(frame), table) < 0, "accepted, and called malformed")
    batch = decode(frame, 0, table, Topics(), digest_address())
    _expect(batch.encode(0, batch.topic_name(0)) == data, "decoded to something else")


def frames(data: bytes) -> None:
    """Segments: walked in memory up to a wall, read from a file, and examined."""
    segment = seal_input(data)
    _walk(segment)
    path = _write(segment)
    try:
        for part in read_file(path, Topics(), Span()):
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


TARGETS: dict[str, Callable[[bytes], None]] = {"frames": frames, "datagram": datagram, "config": config}
