"""Messages as text: a line of columns for people, a JSON object for programs.

    {"sequence": 17, "received": "2026-03-01T11:00:00.000000001Z", "topic": "clicks", "partition_key": null,
     "to_partition": null, "timestamp": 1772362800000, "key": null, "value": "hello",
     "headers": [{"name": "content-type", "value": "text/plain"}], "uid": 1000, "pid": 4711}

`received` is UTC, to the ns; `timestamp` is the sender's, in ms; `to_partition` is the one that the sender
names. Bytes that are not UTF-8 are in base64, under `topic_base64`, `key_base64`, `value_base64` instead. A
null key or value is null. Without values: `key_bytes` and `value_bytes`, and no headers.

A span is chosen by --from and --to: sequence numbers, times, or lengths of time before now.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from cli.terminal.errors import BadArgument
from cli.terminal.output import as_text, as_utc, printable, topic_name
from spool.errors import BadSpool
from spool.format.batch import Batch, Topics
from spool.format.frame import POSITION, SEQUENCE
from spool.format.packed import UNPACKED
from spool.index.committed import read_committed
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.read.files import FOR_EVER, Span, Unreadable, of_segment, read_file
from spool.read.patterns import Pattern, Plain
from spool.read.reader import Reader
from spool.storage.parallel import in_order
from spool.words import utc

_SEQUENCE = re.compile(r"[0-9]{1,18}")
_DIGITS = re.compile(r"[0-9]{19,}")
_AGO = re.compile(r"-([0-9]{1,9})([smhd])")
_LENGTH = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Bound(NamedTuple):
    """A sequence number, or a time of reception in ns since the epoch."""

    value: int
    is_time: bool


def parse_bound(option: str, text: str, now_ns: int) -> Bound:
    """The place that "4711", "2026-03-01T12:00", "2026-03-01 12:00:00+01:00" or "-2h" means.

    A time without an offset is local. Raises BadArgument, naming `option`.
    """
    if _SEQUENCE.fullmatch(text):
        return Bound(int(text), is_time=False)
    if ago := _AGO.fullmatch(text):
        return Bound(now_ns - int(ago[1]) * _SECONDS[ago[2]] * 10**9, is_time=True)
    try:
        # Which would take a long number for a date without its dashes.
        seconds = datetime.fromisoformat(_DIGITS.sub("", text)).timestamp()
    except (ValueError, OverflowError):
        raise BadArgument(
            f"{option} {text!r}: expected a sequence number, a time such as 2026-03-01T12:00:00, "
            "or how long ago, such as -2h"
        ) from None
    return Bound(round(seconds * 1e6) * 1000, is_time=True)


def parse_length(option: str, text: str) -> int:
    """The seconds that "10s", "5m", "1h" or "1d" means. Raises BadArgument, naming `option`."""
    found = _LENGTH.fullmatch(text)
    if not found:
        raise BadArgument(f"{option} {text}: expected a length of time, as 10s, 5m, 1h or 1d")
    return int(found[1]) * _SECONDS[found[2]]


def parse_span(
    since: str | None, until: str | None, topics: Iterable[str] = (), *, now_ns: int | None = None
) -> Span:
    """The messages from one place up to, but not including, another. Raises BadArgument."""
    now = time.time_ns() if now_ns is None else now_ns
    limits: dict[str, int] = {}
    if since is not None:
        start = parse_bound("--from", since, now)
        limits["from_ns" if start.is_time else "first"] = start.value
    if until is not None:
        stop = parse_bound("--to", until, now)
        limits["to_ns" if stop.is_time else "end"] = stop.value
    span = Span(**limits, topics=frozenset(topic.encode(errors="surrogateescape") for topic in topics))
    if span.first > span.end or (span.from_ns > span.to_ns and span.to_ns != FOR_EVER):
        raise BadArgument(f"--from {since} is behind --to {until}")
    return span


NOBODY = 0xFFFFFFFF
"""The uid and pid of a sender that the kernel did not name."""

_Rows = tuple[Batch, list[int]]
"""Messages of one batch."""


def select(
    paths: Iterable[Path],
    span: Span,
    damaged: Callable[[str], None],
    *,
    pattern: Pattern | None = None,
    fleeting: bool,
) -> Iterator[tuple[Batch, int]]:
    """(batch, row) of each message that is asked for; `damaged` gets a sentence for each unreadable place.

    A batch is valid until the next. `fleeting`: a daemon may rename or remove files meanwhile; what is gone
    is passed over. Raises OSError.
    """

    def found(path: Path) -> Iterator[_Rows | str]:
        return _find(path, span, pattern)

    def read(path: Path) -> Iterator[_Rows | str]:
        return of_segment(found, path) if fleeting else found(path)

    # Python has one thread at a time for regular expressions; and who selects all has enough of one file.
    threads = None if isinstance(pattern, Plain) else 1
    for one in in_order(read, list(paths), threads, UNPACKED):
        if isinstance(one, str):
            damaged(one)
            continue
        batch, rows = one
        for row in rows:
            yield batch, row


def _find(path: Path, span: Span, pattern: Pattern | None) -> Iterator[_Rows | str]:
    """The messages of a file that are asked for; a sentence of what cannot be read.

    Batches of `pattern` stay valid, others until the next.
    """
    try:
        for found in read_file(path, Topics.of_reader(), span, pattern):
            if isinstance(found, Unreadable):
                yield found.sentence
                continue
            wanted = span.rows(found)
            if pattern and wanted.any():
                wanted &= pattern.rows(found)
            if wanted.any():
                yield found.kept() if pattern else found, wanted.nonzero()[0].tolist()
    except BadSpool as error:
        yield f"{error}"


def as_object(batch: Batch, row: int, *, values: bool) -> dict[str, Any]:
    """A message for JSON; nothing of it is lost."""
    uid, pid, number = int(batch.uid[row]), int(batch.pid[row]), int(batch.number[row])
    found: dict[str, Any] = {
        "sequence": int(batch.sequence[row]),
        "received": as_utc(int(batch.received_ns[row])),
        **as_text("topic", batch.topic_name(row)),
        "partition_key": number if batch.keyed[row] else None,
        "to_partition": number if batch.numbered[row] else None,
        "timestamp": int(batch.timestamp[row]),
    }
    if values:
        found |= as_text("key", batch.key(row)) | as_text("value", batch.value(row))
        found["headers"] = [{"name": name} | as_text("value", data) for name, data in batch.headers(row)]
    else:
        found |= {"key_bytes": int(batch.key_bytes[row]), "value_bytes": int(batch.value_bytes[row])}
    return found | {"uid": None if uid == NOBODY else uid, "pid": None if pid == NOBODY else pid}


def as_columns(batch: Batch, row: int, *, values: bool) -> tuple[str, ...]:
    """A message for people: sequence, received, topic, partition key, timestamp, key, value."""
    if values:
        content = (printable(batch.key(row) or b""), printable(batch.value(row) or b""))
    else:
        content = (str(batch.key_bytes[row]), str(batch.value_bytes[row]))
    return (
        str(batch.sequence[row]),
        utc(int(batch.received_ns[row]), ms=True),
        topic_name(batch.topic_name(row)),
        str(batch.number[row]) if batch.keyed[row] else "-",
        str(batch.timestamp[row]),
        *content,
    )


class Committed:
    """The end of what is committed in a log; the index is read again only for messages behind it."""

    def __init__(self, layout: Layout | None) -> None:
        """`layout`: None for files by themselves, for which no index says it."""
        self._layout = layout
        self._end = self._look()

    def covers(self, sequence: int) -> bool | None:
        """Whether this message is committed; None when no index says so."""
        if self._end is not None and sequence >= self._end:
            self._end = self._look()
        return None if self._end is None else sequence < self._end

    def _look(self) -> int | None:
        known = self._layout and read_committed(self._layout.index)
        return int(known[1][SEQUENCE]) if known else None


LOOK_S = 0.2


def follow(
    layout: Layout, span: Span, pattern: Pattern | None, damaged: Callable[[str], None]
) -> Iterator[tuple[Batch, int]]:
    """(batch, row) of what is asked for, from now on or from where the span begins, without an end.

    `damaged` is called with a sentence for what is unreadable.
    """
    reader = Reader(SegmentList(layout), Topics.of_reader())
    known = read_committed(layout.index)
    now = int(known[1][SEQUENCE]) if known else 0
    reader.seek(span.first if span != Span(topics=span.topics) else now)
    try:
        while reader.sequence < span.end:
            batch = reader.next()
            for one in reader.take_damage():
                damaged(
                    f"messages {one.first} to {one.end - 1} cannot be read; see `brucectl inspect verify`"
                )
            if batch is None:
                sys.stdout.flush()
                time.sleep(LOOK_S)
                if known := read_committed(layout.index):
                    reader.allow(known[0], int(known[1][POSITION]))
                continue
            wanted = span.rows(batch)
            if pattern and wanted.any():
                wanted &= pattern.rows(batch)
            for row in wanted.nonzero()[0].tolist():
                yield batch, row
    finally:
        reader.close()
