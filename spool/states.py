"""What each segment of a spool holds, for whoever repairs it: good frames, holes, what cannot be read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from spool.disk import is_regular
from spool.errors import BadSpool, ReadFailed
from spool.examination import Examination
from spool.format import Record, decode_header, keys_of
from spool.headers import header_for
from spool.holes import State
from spool.layout import Layout
from spool.mending import look_into
from spool.packed import open_plain
from spool.placement import list_misplaced
from spool.scan import read_header
from spool.segment import bound_spares

Found = tuple[Path, Record, Record | None, State]
"""A segment, its header, that of the segment which follows it, and what it holds."""
Unread = tuple[Path, Record | None, Record | None]
"""A segment that the disk does not give whole; its header, if that is given, and the one behind it."""


def can_be_copied(path: Path) -> bool:
    """Whether the rest of a segment can be had, beside what the disk does not give: not of a packed one."""
    try:
        os.close(open_plain(path))
    except ReadFailed:
        return False
    return True


def list_states(
    layout: Layout,
    unread: list[Unread],
    spool: bytes | None = None,
    examined: Iterable[Examination] = (),
) -> Iterator[Found]:
    """The segments that belong here, by number. `spool`: also those whose header is still to be mended.

    `examined`: these are not read again. What the disk gives an error for goes to `unread`.
    """
    read = {one.path: one for one in examined if one.header is not None and not one.unread}
    headers = list(_good_headers(layout, unread, spool))
    following = {int(header["number"]): header for _, header in headers}
    for path, header in headers:
        behind = following.get(int(header["number"]) + 1)
        if path in read:
            yield path, header, behind, read[path].state(behind)
            continue
        try:
            state = _look_into(path, header, behind)
        except ReadFailed:
            unread.append((path, header, behind))
        else:
            yield path, header, behind, state


def _look_into(path: Path, header: Record, behind: Record | None) -> State:
    fd = open_plain(path, keys_of(header))
    try:
        return look_into(fd, header, behind)[0]
    finally:
        os.close(fd)


def _good_headers(layout: Layout, unread: list[Unread], spool: bytes | None) -> list[tuple[Path, Record]]:
    found = list(bound_spares(layout))
    aside = {one.path for one in list_misplaced(layout, spool) if one.to is None} if spool else set()
    for pair in layout.list_segments():
        path = layout.segment(*pair)
        if path in aside or not is_regular(path) or not path.stat().st_size:
            continue
        try:
            found.append((path, read_header(path)))
        except ReadFailed:
            unread.append((path, None, None))
        except BadSpool:
            if spool and (data := header_for(layout, pair)):
                found.append((path, decode_header(data, path)))
    kept = [(path, header) for path, header in found if path not in aside]
    return sorted(kept, key=lambda one: int(one[1]["number"]))
