"""The segments of a spool at a glance: from headers, footers and the index; no frame is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from spool.disk import allocated_bytes, open_to_read
from spool.errors import BadSpool
from spool.files import of_segment
from spool.format import HEADER_BYTES
from spool.frame import SEQUENCE, STORED, Tail
from spool.index import read_committed
from spool.layout import SENT, SPARE, Layout
from spool.live import named_topics, read_footer
from spool.packed import header_of, is_packed
from spool.segment import UNBOUND


class State(StrEnum):
    """What a segment file is."""

    SPARE = "spare"
    """Allocated ahead of need; nothing is in it."""
    OPEN = "open"
    """In use, or left by a daemon that died: it has no footer."""
    SEALED = "sealed"
    SENT = "sent"
    """Sealed, and all that is in it is resolved."""
    DAMAGED = "damaged"
    """Its header, or its footer, cannot be read."""


@dataclass(frozen=True, slots=True)
class Overview:
    """One segment file."""

    path: Path
    state: State
    packed: bool = False
    disk_bytes: int = 0
    number: int | None = None
    first_sequence: int | None = None
    next_sequence: int | None = None
    """Behind its last message; of an open one, as far as it is committed. None: not known."""
    messages: int | None = None
    first_received_ns: int | None = None
    last_received_ns: int | None = None
    log_bytes: int | None = None
    """What its frames take before they are packed; None without a footer."""
    topics: tuple[tuple[bytes, int], ...] = ()
    """(topic, messages), as the footer has them."""
    trouble: str = ""
    """Why it is called damaged."""


def overview(paths: Iterable[Path], layout: Layout | None) -> Iterator[Overview]:
    """Each of these files, in their order; those that are gone meanwhile are passed over. Raises OSError."""
    committed = layout and read_committed(layout.index)

    def look(path: Path) -> Iterator[Overview]:
        yield _look_at(path, committed or None)

    for path in paths:
        yield from of_segment(look, path) if layout else look(path)


def _look_at(path: Path, committed: tuple[int, Tail] | None) -> Overview:
    fd = open_to_read(path)
    try:
        size = allocated_bytes(path)
        try:
            header, packed, footer = header_of(fd, path), is_packed(fd, path), read_footer(fd)
        except BadSpool as error:
            return Overview(path, State.DAMAGED, disk_bytes=size, trouble=str(error))
    finally:
        os.close(fd)
    number, first = int(header["number"]), int(header["first_sequence"])
    if first == UNBOUND:
        return Overview(path, State.SPARE, disk_bytes=size, number=number)
    if footer is None:
        known = committed is not None and committed[0] == number
        tail = committed[1] if known and committed else None
        return Overview(
            path,
            State.OPEN,
            disk_bytes=size,
            number=number,
            first_sequence=first,
            next_sequence=None if tail is None else int(tail[SEQUENCE]),
            messages=None if tail is None else int(tail[STORED]) - int(header["stored"]),
        )
    fields = footer[0]
    return Overview(
        path,
        State.SENT if path.suffix == SENT else State.SEALED,
        packed,
        size,
        number,
        first,
        int(fields["next_sequence"]),
        int(fields["count"]),
        int(fields["first_received_ns"]) or None,
        int(fields["last_received_ns"]) or None,
        int(fields["end"]) - HEADER_BYTES,
        tuple(named_topics(footer)),
    )


def segment_paths(layout: Layout) -> list[Path]:
    """All of a spool, spares at the end."""
    named = [layout.segment(*pair) for pair in layout.list_segments()]
    return named + [layout.segment(number, SPARE) for number in layout.list_spares()]
