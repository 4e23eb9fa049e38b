"""Spools full of messages, like those of daemons that ended: made by the appender and the keeper themselves.

Messages of host N are those of sender N, numbered as they are stored: a message's id is its sequence number.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spool.format.frame import POSITION
from spool.format.packed import is_packed
from spool.format.segment_format import HEAD_BYTES
from spool.layout import SEGMENT, Layout
from spool.log.keeper import Keeper
from spool.log.recovery import open_spool
from spool.log.retention import AFTER_S, LOOK_S, Packer
from spool.log.writer import Writer
from spool.options import SpoolOptions
from spool.shared.state import SharedState
from tools.fleets.frames import Frames
from tools.waiting import wait_until

OUTAGE_S = 3 * 3600
"""The time over which messages were sent, until now."""
LEAST_SEGMENTS = 6
MIB = 1 << 20
FRAME = np.dtype(
    [("segment", "<i8"), ("offset", "<i8"), ("first", "<i8"), ("count", "<i8"), ("sealed", "u1")]
)
"""A frame: its segment (by first sequence), its offset there, its first sequence and its messages."""
PACKED_S = 1800.0

Table = npt.NDArray[np.void]
Sequences = npt.NDArray[np.int64]


def segment_bytes(messages: int) -> int:
    """A size by which a spool of this many messages has several segments."""
    return min(64 * MIB, max(MIB, messages * 300 // LEAST_SEGMENTS // 4096 * 4096))


def fill(directory: Path, messages: int, topics: Sequence[str], sender: int, seed: int) -> Table:
    """Make a spool of this many messages; its frames, FRAME rows. Raises OSError, SpoolFull."""
    size = segment_bytes(messages)
    options = SpoolOptions(directory, segment_bytes=size, max_bytes=1 << 40, min_free_bytes=0)
    runtime = Path(tempfile.mkdtemp(prefix="bruce-fleet-", dir="/dev/shm"))
    spool = open_spool(options)
    bell = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        shared = SharedState(runtime / "page")
        keeper = Keeper(spool.layout, spool.identity, options, shared, bell=bell)
        keeper.step()
        writer = Writer(spool.layout, spool.identity, shared)
        rows = _write(writer, keeper, Frames(topics, sender, seed), messages)
        writer.close()
        keeper.stopping = True
        keeper.run()
    finally:
        os.close(bell)
        spool.lock.release()
        shutil.rmtree(runtime, ignore_errors=True)
    return _table(rows, spool.layout)


def _write(writer: Writer, keeper: Keeper, frames: Frames, messages: int) -> list[tuple[int, int, int, int]]:
    """Append frames up to this many messages: (segment number, offset, first sequence, messages)."""
    step_ns = OUTAGE_S * 1_000_000_000 // messages
    begun_ns = time.time_ns() - OUTAGE_S * 1_000_000_000
    rows, done, largest = [], 0, frames.largest()
    while done < messages:
        if int(writer.tail[POSITION]) + largest > writer.capacity:
            keeper.step()
            if not writer.switch():
                continue
        offset, first, count = frames.append(writer, messages - done, begun_ns + done * step_ns, step_ns)
        rows.append((writer.number, offset, first, count))
        done += count
    return rows


def _table(rows: list[tuple[int, int, int, int]], layout: Layout) -> Table:
    numbers, offsets, firsts, counts = np.array(rows, np.int64).T
    names = [first for first, _ in layout.list_segments()]
    table = np.zeros(len(rows), FRAME)
    table["segment"] = np.array(names)[np.searchsorted(names, firsts, "right") - 1]
    table["offset"], table["first"], table["count"] = offsets, firsts, counts
    table["sealed"] = numbers < numbers[-1]
    return table


def damage(layout: Layout, table: Table, frames: int, seed: int) -> Sequences:
    """Flip a byte in this many frames of sealed segments; the sequences of their messages, in order.

    No two of them are neighbours. Raises ValueError when there are too few frames.
    """
    rng = random.Random(seed)  # noqa: S311  (a load, not a secret)
    places = [int(at) for at in np.flatnonzero(table["sealed"])[1:-1:2]]
    chosen = table[sorted(rng.sample(places, frames))]
    for row in chosen:
        with layout.segment(int(row["segment"]), SEGMENT).open("r+b") as file:
            file.seek(int(row["offset"]) + HEAD_BYTES + 12 * int(row["count"]) + 40)
            (byte,) = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 0x55]))
    spans = [np.arange(row["first"], row["first"] + row["count"]) for row in chosen]
    return np.concatenate(spans).astype(np.int64)


def pack(layout: Layout) -> int:
    """Compress the sealed segments by the daemon's own packer, except the last; how many there are."""
    now = 0.0

    def clock() -> float:
        return now

    packer = Packer(layout, clock=clock)
    wanted = [layout.segment(*pair) for pair in layout.list_segments()[:-1]]

    def step() -> bool:
        nonlocal now
        now += AFTER_S + LOOK_S
        packer.step()
        return all(map(_is_packed, wanted))

    try:
        wait_until(step, PACKED_S, f"the segments in {layout.segments} to be packed", pause_s=0.005)
    finally:
        packer.close()
    return len(wanted)


def _is_packed(path: Path) -> bool:
    with path.open("rb", buffering=0) as file:
        return is_packed(file.fileno(), path)
