"""Group commit: the keeper's wait, in which a compiled loop commits what is ordinary.

The keeper waits for the sync interval, or less where somebody waits, then for its bell. On most days a few
frames have come by then, in the segment that it knows, and they are sound. So the wait itself commits them,
as `spool.log.committer` does: it reads them back, syncs the segment, and moves the watermark. Python runs
four times a second, and not for each commit: counts, and the index's entries, get all frames of that time at
once.

The loop commits nothing that it cannot finish: the first frame of a segment, damage, a flood. It returns, and
the committer goes on there. A sync that failed is reported: a second one of the same file proves nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from errno import EINTR
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool.format.damage import HOLE, Holes, walk_over
from spool.format.frame import (
    BURST,
    DIGEST,
    FRAME_AT,
    FRAME_FIRST,
    POSITION,
    ROW,
    SEQUENCE,
    TAIL_FIELDS,
    Frames,
    Tail,
)
from spool.format.scan import Chunk, digest_address
from spool.format.segment_format import MARK_BYTES
from spool.format.version_1 import NO_LINKS
from spool.index.committed import SLOT_WORDS, write_committed
from spool.index.index import Entry
from spool.log.committer import Committer
from spool.native.kernel import bind, kernel, subkernel
from spool.native.libc import MONOTONIC, SCRATCH_WORDS, Libc, await_bells, failure, libc, now, ring, rung
from spool.native.memory import Address, address_of, call, fence, load_acquire, publish_i64
from spool.shared.state import WORDS, Field, SharedState
from spool.storage.failpoint import ARMED

READ_BYTES = 256 << 10
"""Most that is read before Python runs: more is a flood."""
_FRAMES, _ENTRIES = 4096, 8
SOONER = 4
"""So many times shorter is the interval while a client waits for a commit."""
SLICE_NS = 20_000_000
"""While little is written: between two looks whether sync_bytes are reached."""

(
    _PAGE,  # address of the shared state
    _FD,  # of the segment in use; -1: nothing is ordinary
    _NUMBER,  # of that segment
    _BEGAN,  # offset in it of the first byte of the buffer
    _ENTERED,  # offset of the last entry of the index
    _INTERVAL_NS,  # between the beginnings of two commits
    _MOST,  # unsynced bytes that are committed at once
    _SYNCED_AT_NS,  # monotonic, as all times: when the last commit began
    _UNTIL_NS,  # when to return
    _BUSY_NS,  # when to return once something was committed
    _BELL,  # eventfd: the appender has written something
    _ROWS,  # rows of `frames` that are committed
    _LISTED,  # rows of `entries`
    _ERRNO,  # of a sync that failed; -1: none did
    _COMMITTED_FD,  # of spool.index.committed
    _UNWRITTEN,  # errno of a write there that failed; -1: none did
    _SCRATCH,
) = range(17)
_WORDS = _SCRATCH + SCRATCH_WORDS
_WRITTEN, _SYNCED = 8 * int(Field.WRITTEN), 8 * int(Field.SYNCED)
_SYNC_WANTED, _SYNC_SOON = 8 * int(Field.SYNC_WANTED), 8 * int(Field.SYNC_SOON)
_SYNCED_SEQUENCE = 8 * int(Field.SYNCED_SEQUENCE)
_KEEPER_WAITS, _SUSPECT = 8 * int(Field.KEEPER_WAITS), 8 * int(Field.SUSPECT)


class Segment(NamedTuple):
    """The segment in use, and room for what is read of it."""

    tail: Tail
    buffer: npt.NDArray[np.uint8]
    """uint8[READ_BYTES]"""
    frames: Frames
    holes: Holes
    entries: npt.NDArray[np.int64]
    """int64[n, 4]: sequence and offset of frames for the index, digest and burst before them."""
    committed: npt.NDArray[np.int64]
    """The `words` of a CommittedFile."""
    told: npt.NDArray[np.int64]
    """int64[n]: eventfds that ring when the watermark has moved."""


@kernel
def commit_on(words: npt.NDArray[np.int64], functions: Libc, digest: int, segment: Segment) -> bool:
    """Commit what is written, until it is time to return; whether something is left to the committer.

    `words`: int64[_WORDS], what the loop is given and what it has done. `digest`: the address of the digest
    function. A signal ends the wait.
    """
    scratch = Address(words.ctypes.data + 8 * _SCRATCH)
    while _await(words, functions):
        if not _commit(words, functions, digest, segment):
            return True
        words[_UNTIL_NS] = min(words[_UNTIL_NS], words[_BUSY_NS])
        # A slow disk always finds something written behind its sync: time is over all the same.
        if now(functions, scratch, MONOTONIC) >= words[_UNTIL_NS]:
            return False
    return False


@subkernel
def _await(words: npt.NDArray[np.int64], functions: Libc) -> bool:
    """Sleep until something is to be committed; False when it is time to return, or a signal came."""
    page, scratch, most = Address(words[_PAGE]), Address(words.ctypes.data + 8 * _SCRATCH), words[_MOST]
    while True:
        time_ns, until, unsynced = now(functions, scratch, MONOTONIC), words[_UNTIL_NS], _unsynced(page, most)
        synced = load_acquire(Address(page + _SYNCED_SEQUENCE))
        soon = load_acquire(Address(page + _SYNC_SOON)) > synced
        left = words[_SYNCED_AT_NS] + words[_INTERVAL_NS] // (SOONER if soon else 1) - time_ns
        rests = left <= 0 or load_acquire(Address(page + _SYNC_WANTED)) > synced
        if unsynced > 0 and (rests or unsynced >= most):
            return True
        if time_ns >= until:
            return False
        if rests:
            woken = _rest(words, functions, until - time_ns)
        else:
            part = words[_INTERVAL_NS] // 8
            part = part if unsynced > most // 8 else max(part, SLICE_NS)
            woken = await_bells(functions, scratch, words[_BELL], -1, min(left, until - time_ns, part))
        if not woken:
            return False
        if rung(functions, scratch, 0, words[_BELL]) > 0 and _unsynced(page, most) <= 0:
            # It wants something else: a segment.
            words[_UNTIL_NS] = min(until, max(words[_BUSY_NS], time_ns + SLICE_NS))


@subkernel
def _rest(words: npt.NDArray[np.int64], functions: Libc, most_ns: int) -> bool:
    """Sleep until the appender rings; False when a signal came.

    Within the interval it need not ring, since each bell costs both a system call.
    """
    page, scratch = Address(words[_PAGE]), Address(words.ctypes.data + 8 * _SCRATCH)
    publish_i64(Address(page + _KEEPER_WAITS), 1)
    fence()
    if _unsynced(page, words[_MOST]) > 0:
        most_ns = 0
    woken = await_bells(functions, scratch, words[_BELL], -1, most_ns)
    publish_i64(Address(page + _KEEPER_WAITS), 0)
    return woken


@subkernel
def _unsynced(page: Address, most: int) -> int:
    """Bytes written and not synced; `most` if they are in more than one segment."""
    written, synced = load_acquire(Address(page + _WRITTEN)), load_acquire(Address(page + _SYNCED))
    if written >> 32 != synced >> 32:
        return most
    return (written - synced) << 3


@subkernel
def _commit(words: npt.NDArray[np.int64], functions: Libc, digest: int, segment: Segment) -> bool:
    """Commit all that is written; False when it is not, and the tail is where it was."""
    page, scratch = Address(words[_PAGE]), Address(words.ctypes.data + 8 * _SCRATCH)
    written, before = load_acquire(Address(page + _WRITTEN)), segment.tail.copy()
    if words[_FD] < 0 or written >> 32 != words[_NUMBER]:
        return False
    words[_SYNCED_AT_NS] = now(functions, scratch, MONOTONIC)
    found = _read_back(words, functions, digest, segment, (written & 0xFFFFFFFF) << 3)
    if found == 0 or not _sync(words, functions):
        segment.tail[:] = before
        return False
    _enter(words, segment, before)
    words[_ROWS] += found
    if not write_committed(
        functions, words[_COMMITTED_FD], segment.committed, words[_NUMBER], segment.tail, digest
    ):
        words[_UNWRITTEN] = failure(functions)
    publish_i64(Address(page + _SYNCED_SEQUENCE), segment.tail[SEQUENCE])
    publish_i64(Address(page + _SYNCED), written)
    for bell in segment.told:
        ring(functions, scratch, bell)
    return True


@subkernel
def _read_back(words: npt.NDArray[np.int64], functions: Libc, digest: int, segment: Segment, end: int) -> int:
    """Move the tail to offset `end` over good frames, and count them; 0 if that cannot be done here."""
    start, began = segment.tail[POSITION], words[_BEGAN]
    if end <= start or end - began > len(segment.buffer) or words[_LISTED] == len(segment.entries):
        return 0
    base, frames = Address(segment.buffer.ctypes.data - began), segment.frames[words[_ROWS] :]
    if call(functions.pread, words[_FD], Address(base + start), end - start, start) != end - start:
        return 0
    _, found, _ = walk_over(base, end, end, segment.tail, frames, segment.holes, 0, False, digest, NO_LINKS)
    return found if segment.tail[POSITION] == end else 0


@subkernel
def _sync(words: npt.NDArray[np.int64], functions: Libc) -> bool:
    """Sync the segment. One whose sync fails is suspect; not one whose sync a signal has ended."""
    if call(functions.fdatasync, words[_FD]) & 0xFFFFFFFF == 0:
        return True
    error = failure(functions)
    if error != EINTR:
        # Before anything else: a keeper that comes behind a kill here must not sync this file again.
        publish_i64(Address(words[_PAGE] + _SUSPECT), words[_NUMBER])
        words[_ERRNO] = error
    return False


@subkernel
def _enter(words: npt.NDArray[np.int64], segment: Segment, before: Tail) -> None:
    """Note the next row of the frames for the index, if it is far enough from the last entry.

    `before`: the tail before that frame.
    """
    if before[POSITION] < words[_ENTERED] + MARK_BYTES:
        return
    entry, frame = segment.entries[words[_LISTED]], segment.frames[words[_ROWS]]
    entry[0], entry[1], entry[2], entry[3] = (
        frame[FRAME_FIRST],
        frame[FRAME_AT],
        before[DIGEST],
        before[BURST],
    )
    words[_LISTED] += 1
    words[_ENTERED] = before[POSITION]


class GroupCommit:
    """The wait of one keeper."""

    def __init__(
        self, shared: SharedState, bell: int, told: Sequence[int], *, interval_s: float, most_bytes: int
    ) -> None:
        """`bell`: the eventfd that the appender rings. `told`: those that ring when the watermark has moved.

        A commit begins `interval_s` after the last one began, or when `most_bytes` are not synced; sooner for
        SYNC_SOON, and at once for SYNC_WANTED.
        """
        self._digest = digest_address()
        self._array = np.zeros(_WORDS, np.int64)
        # Some words at a time: an index of NumPy's costs more than all else that Python does here.
        self._words = words = self._array.data
        words[_PAGE], words[_BELL] = address_of(shared.words), bell
        words[_INTERVAL_NS], words[_MOST] = int(1e9 * interval_s), most_bytes
        self._buffer = np.empty(READ_BYTES, np.uint8)
        self._frames = np.empty((_FRAMES, ROW), np.int64)
        self._entries = np.empty((_ENTRIES, 4), np.int64)
        self._told = np.array(told, np.int64)
        self._loop: Callable[[], bool] = lambda: False
        self._bound = np.zeros(0, np.int64), np.zeros(0, np.int64)
        """The tail and the words that `_loop` moves."""
        self._bind(np.zeros(TAIL_FIELDS, np.int64), np.zeros(SLOT_WORDS, np.int64))

    def begin(self) -> None:
        """A commit begins, of the committer's own: the interval counts from now on."""
        self._words[_SYNCED_AT_NS] = time.monotonic_ns()

    def wait(self, committer: Committer, rest_s: float, busy_s: float) -> bool:
        """Commit what is ordinary for `rest_s`, or from the first commit on for `busy_s`.

        Whether something is left to `committer.commit`.
        """
        # A test that kills at a named place (spool.storage.failpoint) does so in the committer.
        opened = None if ARMED else committer.opened()
        words, time_ns = self._words, time.monotonic_ns()
        words[_UNTIL_NS], words[_BUSY_NS] = time_ns + int(1e9 * rest_s), time_ns + int(1e9 * busy_s)
        words[_FD], words[_ROWS], words[_LISTED], words[_ERRNO], words[_UNWRITTEN] = -1, 0, 0, -1, -1
        if opened is not None:
            words[_FD], words[_NUMBER], words[_ENTERED] = opened.fd, opened.number, opened.entered
            words[_BEGAN], words[_COMMITTED_FD] = opened.tail[POSITION], opened.committed.fd
            self._bind(opened.tail, opened.committed.words)
        left = self._loop()
        if words[_ROWS] or words[_ERRNO] >= 0:
            self._tell(committer)
        if opened is not None and words[_UNWRITTEN] >= 0 and opened.committed.fd >= 0:
            opened.committed.note_failure(OSError(words[_UNWRITTEN], os.strerror(words[_UNWRITTEN])))
        return left

    def _bind(self, tail: Tail, committed: npt.NDArray[np.int64]) -> None:
        """Have the loop move these; most often they are those of the last time."""
        if tail is self._bound[0] and committed is self._bound[1]:
            return
        self._bound = tail, committed
        room = self._buffer, self._frames, np.empty((1, HOLE), np.int64), self._entries
        self._loop = bind(
            commit_on, self._array, libc(), self._digest, Segment(tail, *room, committed, self._told)
        )

    def _tell(self, committer: Committer) -> None:
        """Have the committer take over what the loop has done."""
        words = self._words
        number = words[_NUMBER]
        chunk = Chunk(self._buffer, words[_BEGAN], self._frames[: words[_ROWS]])
        entries: list[Entry] = [
            (sequence, number, offset, before & 0xFFFFFFFFFFFFFFFF, burst)
            for sequence, offset, before, burst in self._entries[: words[_LISTED]].tolist()
        ]
        committer.take_over(chunk, entries, words[_ERRNO])


def compile_kernels() -> None:
    """Compile the loop: with nothing written, and no time left."""
    words, page = np.zeros(_WORDS, np.int64), np.zeros(WORDS, np.int64)
    words[_PAGE], words[_MOST] = address_of(page), 1
    frames, holes, entries = (np.zeros((1, columns), np.int64) for columns in (ROW, HOLE, 4))
    tail, slot, told = (np.zeros(length, np.int64) for length in (TAIL_FIELDS, SLOT_WORDS, 0))
    segment = Segment(tail, np.zeros(1, np.uint8), frames, holes, entries, slot, told)
    commit_on(words, libc(), digest_address(), segment)
