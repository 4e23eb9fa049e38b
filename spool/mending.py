"""A damaged segment, written anew: its good frames where they were, and gaps for what is lost.

Frames keep their places and numbers, and a footer that is whole stays; so marks, offsets and the segments
around hold. Packed segments are written unpacked. A footer that is damaged, or another segment's, is made of
the frames, and of what the next segment's header says of those that are gone.
"""

from __future__ import annotations

import os
from pathlib import Path

from spool.contents import Contents
from spool.crash_point import reach
from spool.disk import make_anew, sync_directory, write_at
from spool.format import Record, keys_of
from spool.frame import POSITION, SEQUENCE, STORED, tail_at_start
from spool.gap import GAP_BYTES, encode_gap
from spool.holes import Hole, State, conclude, hole_at
from spool.layout import Layout
from spool.live import read_footer
from spool.packed import open_plain
from spool.quarantine import free_place
from spool.renewal import copy_readable
from spool.scan import Scan
from spool.segment import following


def look_into(fd: int, header: Record, behind: Record | None) -> tuple[State, Contents]:
    """Read a plain segment with this header; `behind`: that of the segment which follows it, if it is there.

    Raises OSError.
    """
    footer = read_footer(fd, header)
    tail, contents, holes, messages = tail_at_start(header), Contents(os.fstat(fd).st_size), list[Hole](), 0
    scan = Scan(fd, tail, int(footer[0]["end"]) if footer else None)
    while True:
        while chunk := scan.next():
            contents.add(chunk)
            messages += int(chunk.frames[:, 2].sum())
        position, first = int(tail[POSITION]), int(tail[SEQUENCE])
        if position >= scan.limit or (missing := scan.skip()) is None:
            break
        holes.append(hole_at(scan, position, int(tail[POSITION]), first, missing))
    if footer and position < scan.limit:
        lost = int(header["stored"]) + int(footer[0]["count"]) - int(tail[STORED])
        holes.append(hole_at(scan, position, scan.limit, first, lost))
    found = State(header, tuple(holes), tail, footer is not None, messages)
    return conclude(found, behind, int(footer[0]["digest"]) if footer else None), contents


def write_copy(path: Path, target: Path, header: Record, behind: Record | None, *, inside: bool) -> None:
    """Write a sealed copy of a segment to `target`, with gaps for its holes, durable; see look_into.

    `inside`: also for those that have good frames behind them. Raises OSError.
    """
    fd = make_anew(target)
    try:
        source = open_plain(path, keys_of(header))
        try:
            copy_readable(source, fd)
        finally:
            os.close(source)
        write_at(fd, header.tobytes(), 0)
        state, contents = look_into(fd, header, behind)
        for hole in state.holes:
            if (inside or hole.offset == state.tail[POSITION]) and hole.end - hole.offset >= GAP_BYTES:
                write_at(
                    fd, encode_gap(hole.end - hole.offset, hole.messages, keys_of(header).key), hole.offset
                )
        if not state.sealed:
            _write_footer(fd, state, contents, behind)
        os.fsync(fd)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _write_footer(fd: int, state: State, contents: Contents, behind: Record | None) -> None:
    """Seal what was copied, behind its last good frame, and the gap that is there."""
    tail = state.tail.copy()
    if behind is not None and state.holes and state.holes[-1].offset == tail[POSITION]:
        tail = tail_at_start(behind)
        tail[POSITION] = state.holes[-1].end
    goes_on = following(state.header, tail) if behind is None else int(behind["first_sequence"])
    footer = contents.footer(state.header, tail, goes_on)
    write_at(fd, footer, int(tail[POSITION]))
    os.ftruncate(fd, int(tail[POSITION]) + len(footer))


def write_anew(layout: Layout, path: Path, header: Record, behind: Record | None, *, inside: bool) -> None:
    """Put a copy (see write_copy) in the place of a segment, which goes to quarantine. Raises OSError."""
    fresh = path.with_suffix(path.suffix + ".tmp")
    write_copy(path, fresh, header, behind, inside=inside)
    reach("repair.synced")
    os.link(path, free_place(layout, f"{path.name}.damaged"))
    sync_directory(layout.quarantine)
    reach("repair.kept")
    os.rename(fresh, path)
    reach("repair.named")
    sync_directory(layout.segments)
