"""Messages as text: a line of columns for people, a JSON object for programs.

    {"sequence": 17, "received": "2026-03-01T11:00:00.000000001Z", "topic": "clicks", "partition_key": null,
     "timestamp": 1772362800000, "key": null, "value": "hello", "uid": 1000, "pid": 4711}

`received` is UTC, to the ns; `timestamp` is the sender's, in ms. What is not UTF-8 stands in base64 under
`topic_base64`, `key_base64`, `value_base64` instead. Without values: `key_bytes` and `value_bytes`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cli.controls import CONTROLS
from spool.abreast import in_order
from spool.errors import BadSpool
from spool.files import Span, Unreadable, of_segment, read_file
from spool.pattern import Pattern, Plain
from spool.record import Batch, Topics

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
    """(batch, row) of each message that is asked for; `damaged` is told a sentence of what cannot be read.

    A batch is valid until the next. `fleeting`: a daemon may rename or remove files meanwhile; what is gone
    is passed over. Raises OSError.
    """

    def found(path: Path) -> Iterator[_Rows | str]:
        return _find(path, span, pattern)

    def read(path: Path) -> Iterator[_Rows | str]:
        return of_segment(found, path) if fleeting else found(path)

    # Python has one thread at a time for regular expressions; and who selects all has enough of one file.
    threads = None if isinstance(pattern, Plain) else 1
    for one in in_order(read, list(paths), threads):
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
        for found in read_file(path, Topics(), span, pattern):
            if isinstance(found, Unreadable):
                yield f"{path}: {found.messages} messages cannot be read at byte {found.offset}"
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
    keyed, uid, pid = bool(batch.keyed[row]), int(batch.uid[row]), int(batch.pid[row])
    found: dict[str, Any] = {
        "sequence": int(batch.sequence[row]),
        "received": as_utc(int(batch.received_ns[row])),
        **as_text("topic", batch.topics.names[int(batch.topic[row])]),
        "partition_key": int(batch.partition_key[row]) if keyed else None,
        "timestamp": int(batch.timestamp[row]),
    }
    if values:
        found |= as_text("key", batch.key(row)) | as_text("value", batch.value(row))
    else:
        found |= {"key_bytes": int(batch.key_bytes[row]), "value_bytes": int(batch.value_bytes[row])}
    return found | {"uid": None if uid == NOBODY else uid, "pid": None if pid == NOBODY else pid}


def as_columns(batch: Batch, row: int, *, values: bool) -> tuple[str, ...]:
    """A message for people: sequence, received, topic, partition key, timestamp, key, value."""
    if values:
        content = (printable(batch.key(row) or b""), printable(batch.value(row)))
    else:
        content = (str(batch.key_bytes[row]), str(batch.value_bytes[row]))
    return (
        str(batch.sequence[row]),
        as_local(int(batch.received_ns[row])),
        printable(batch.topics.names[int(batch.topic[row])]),
        str(batch.partition_key[row]) if batch.keyed[row] else "-",
        str(batch.timestamp[row]),
        *content,
    )


def printable(data: bytes) -> str:
    """Bytes as text that stays on its line and commands no terminal."""
    return data.decode("utf-8", "backslashreplace").translate(CONTROLS)


def as_text(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes under a name, or in base64 under another."""
    try:
        return {name: None if data is None else data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode("ascii")}


def as_local(ns: int, timespec: str = "milliseconds") -> str:
    """A time for people, to the ms by default, with the offset of where they are."""
    return datetime.fromtimestamp(ns / 1e9).astimezone().isoformat(sep=" ", timespec=timespec)


def as_utc(ns: int) -> str:
    """A time in ISO 8601, to the ns."""
    seconds, rest = divmod(ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
