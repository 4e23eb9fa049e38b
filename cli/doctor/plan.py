"""How long Kafka may be away: hours of outage by the disk that they take, at the rate at which messages came.

Measured from what the spool keeps: its footers, and the frames of the segment in use. A spool keeps what was
delivered while there is room, so that is days rather than hours.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cli.doctor.disk import existing
from spool.format.packed import compress
from spool.format.segment_format import HEADER_BYTES
from spool.options import SpoolOptions, reserve
from spool.read.overview import Overview, State, Timeline
from spool.storage.disk import free_bytes, open_to_read, read_at

HOUR_S = 3600
GIB = 1 << 30
LEAST_S = 1.0
"""From less no rate can be told."""
_SECOND = 10**9
_SAMPLE_BYTES, _SAMPLES = 1 << 20, 16


@dataclass(frozen=True, slots=True)
class Compression:
    """How far the log shrinks on the disk."""

    ratio: float
    """Bytes on disk for each byte of the log."""
    known_by: str
    """`packed`: of segments that are packed; `sample`: tried on a part of one that is not; `none`."""


@dataclass(frozen=True, slots=True)
class Load:
    """A rate of messages, and for how many hours of it there is room."""

    messages_per_second: float
    bytes_per_second: float
    """Of the log, before any compression."""
    hours_per_gib: float
    """That a GiB of disk holds."""
    hours: float
    """That the whole spool holds."""
    hours_left: float
    """That fit beside what waits in it now."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long Kafka may be away."""

    measured_seconds: float
    compression: Compression
    room_bytes: int
    """The bytes that undelivered segments may take: max_bytes, or the room that the disk has."""
    left_bytes: int
    """The part of them that undelivered segments do not take now."""
    mean: Load
    busiest_hour: Load


def make_plan(options: SpoolOptions, segments: Sequence[Overview], live: Timeline) -> Plan | None:
    """Plan for a spool of these segments, the frames of those without a footer being in `live`.

    None when there is too little to measure a rate by. Raises OSError.
    """
    rows = intervals(segments, live)
    elapsed = (rows[:, 1].max() - rows[:, 0].min()) / _SECOND if len(rows) else 0.0
    if elapsed < LEAST_S or not rows[:, 3].any():
        return None
    compression = measure_compression(segments, packs=options.recompress)
    room, left = measure_room(options, segments)

    def load(messages: float, size: float) -> Load:
        hourly = size * compression.ratio * HOUR_S
        return Load(messages, size, GIB / hourly, room / hourly, left / hourly)

    window = min(HOUR_S, elapsed)
    peaks = [busiest(rows[:, 0], rows[:, 1], rows[:, column], window) / window for column in (2, 3)]
    means = rows[:, 2:].sum(axis=0) / elapsed
    return Plan(elapsed, compression, room, left, load(*means.tolist()), load(*peaks))


def intervals(segments: Sequence[Overview], live: Timeline) -> npt.NDArray[np.int64]:
    """int64[n, 4]: from, to (ns), messages, bytes of the log; of each segment, and each step of `live`."""
    sealed = [
        (one.first_received_ns, one.last_received_ns, one.messages, one.log_bytes)
        for one in segments
        if one.first_received_ns and one.log_bytes
    ]
    step = live.step_s * _SECOND
    rest = np.stack([live.start_ns, live.start_ns + step, live.messages, live.bytes], axis=1)
    return np.concatenate([np.array(sealed, np.int64).reshape(-1, 4), rest])


def busiest(
    start_ns: npt.NDArray[np.int64],
    end_ns: npt.NDArray[np.int64],
    amount: npt.NDArray[np.int64],
    window_s: float,
) -> float:
    """The most that came in any `window_s`; what came in an interval is taken to have come evenly."""
    first = start_ns.min()
    starts, ends = (start_ns - first) / _SECOND, np.maximum(end_ns, start_ns + 1) - first
    rates = amount / (ends / _SECOND - starts)
    times, where = np.unique(np.concatenate([starts, ends / _SECOND]), return_inverse=True)
    changes = np.zeros(len(times))
    np.add.at(changes, where, np.concatenate([rates, -rates]))
    sums = np.concatenate([[0], np.cumsum(np.cumsum(changes)[:-1] * np.diff(times))])
    begin = np.concatenate([times, times - window_s])
    return float((np.interp(begin + window_s, times, sums) - np.interp(begin, times, sums)).max())


def measure_compression(segments: Sequence[Overview], *, packs: bool) -> Compression:
    """By the segments that are packed; else, where they would be (`packs`), by a part of one that is not."""
    full = [one for one in segments if one.log_bytes]
    if packed := [one for one in full if one.packed]:
        return Compression(_ratio(packed), "packed")
    if not packs or not full:
        return Compression(_ratio(full) if full else 1.0, "none")
    return Compression(_try_to_pack(full[-1]), "sample")


def _ratio(segments: Sequence[Overview]) -> float:
    return sum(one.disk_bytes for one in segments) / sum(one.log_bytes or 0 for one in segments)


def _try_to_pack(segment: Overview) -> float:
    """The ratio to which a sixteenth of its MiBs shrinks when packed, or all of them when there are few."""
    size = segment.log_bytes or 0
    step = max(_SAMPLE_BYTES, size // _SAMPLES)
    fd = open_to_read(segment.path)
    try:
        parts = [read_at(fd, min(_SAMPLE_BYTES, size - at), HEADER_BYTES + at) for at in range(0, size, step)]
    finally:
        os.close(fd)
    return sum(len(compress(part)) for part in parts) / max(1, sum(map(len, parts)))


def measure_room(options: SpoolOptions, segments: Sequence[Overview]) -> tuple[int, int]:
    """(bytes that undelivered segments may take, those that are left of them)."""
    free, size = free_bytes(existing(options.directory))
    used = sum(one.disk_bytes for one in segments)
    room = min(options.max_bytes, used + max(0, free - reserve(options.min_free_bytes, size)))
    waiting = sum(one.disk_bytes for one in segments if one.state in (State.SEALED, State.OPEN))
    return room, max(0, room - waiting)
