"""Messages as they are committed, on and on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

from spool.catalogue import Catalogue
from spool.files import Span
from spool.frame import POSITION, SEQUENCE
from spool.index import read_committed
from spool.layout import Layout
from spool.pattern import Pattern
from spool.reader import Reader
from spool.record import Batch, Topics

LOOK_S = 0.2


def follow(
    layout: Layout, span: Span, pattern: Pattern | None, damaged: Callable[[str], None]
) -> Iterator[tuple[Batch, int]]:
    """(batch, row) of what is asked for, from now on or from where the span begins, without an end.

    `damaged` is told a sentence of what cannot be read.
    """
    reader = Reader(Catalogue(layout), Topics())
    known = read_committed(layout.index)
    now = int(known[1][SEQUENCE]) if known else 0
    reader.seek(span.first if span != Span(topics=span.topics) else now)
    try:
        while reader.sequence < span.end:
            batch = reader.next()
            for one in reader.damage:
                damaged(
                    f"messages {one.first} to {one.end - 1} cannot be read; see `brucectl inspect verify`"
                )
            reader.damage.clear()
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
