"""Progress records: what a transaction delivered, written into Kafka by the transaction itself.

    record := head block* letter*
    head   := check:u64 magic:8s version:u16 host_bytes:u16 blocks:u32 number:u64 generation:u64
              instance:16s started_ns:u64
              host
    block  := segment:u64 identity:u64 runs:u32 first:u64[runs] length:u32[runs]
    letter := reason:u16 topic_bytes:u16 runs:u32 topic first:u64[runs] length:u32[runs]

Little-endian; all behind the head is deflated (zlib). `check` is the xxh3 of everything behind it.

`number` counts a spool's transactions. The runs are of sequence numbers, by segment; a segment is known by
its number and by the digest of its header, so that a record cannot speak of messages of a restored copy. They
are all that was delivered since the commit `generation` of the marks, this transaction included: of several
records the last one is enough, which is what a compacted topic keeps. Letters say which of them went to the
dead-letter topic instead of their own `topic`, and for which reason. `instance` tells one process of a daemon
from the next; with the host's name and `started_ns` it says in words who else delivers.

A task of a job has no marks: its runs are what no outcome file has, and `generation` is the epoch of its
lease (spool.marks.task_files). The key of a record is the transactional id of its producer
(`transactional_id` and the functions behind it).
"""

from __future__ import annotations

import os
import socket
import struct
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.errors import DispatchError
from spool.native.digest import digest

MAGIC = b"bruceprg"
VERSION = 1
INSTANCE_BYTES = 16
_CHECK = struct.Struct("<Q")
_HEAD = struct.Struct("<8sHHIQQ16sQ")
_BLOCK = struct.Struct("<QQI")
_LETTER = struct.Struct("<HHI")
_RUN_BYTES = 12


def transactional_id(spool_uuid: bytes) -> str:
    """The id under which the daemon delivers this spool. The ids of jobs begin with it."""
    return f"bruce-{spool_uuid.hex()}"


def task_transactional_id(spool_uuid: bytes, partition: int) -> str:
    """The id of the job's task that delivers the messages for partitions of this number."""
    return f"{transactional_id(spool_uuid)}-{partition}"


def replay_id(replay: str) -> str:
    """The id of one replay, which goes on under it when it was interrupted."""
    return f"bruce-replay-{replay}"


class BadProgress(DispatchError):
    """A record in the progress topic that cannot be read."""


class Runs(NamedTuple):
    """Sequences of one segment, as runs; columns of one length."""

    segment: int
    identity: int
    first: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]

    def sequences(self) -> npt.NDArray[np.int64]:
        """All of them, one by one."""
        return _one_by_one(self.first, self.length)


class DeadLetterRuns(NamedTuple):
    """Messages of one topic that the dead-letter topic has, for one reason; as runs of sequences."""

    reason: int
    """A spool.format.wire.Reason."""
    topic: bytes
    first: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]

    def sequences(self) -> npt.NDArray[np.int64]:
        """All of them, one by one."""
        return _one_by_one(self.first, self.length)


def _one_by_one(first: npt.NDArray[np.int64], length: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    starts = np.repeat(first - np.concatenate([[0], np.cumsum(length)[:-1]]), length)
    return np.asarray(starts + np.arange(len(starts)), np.int64)


class Deliverer(NamedTuple):
    """A process that delivers."""

    instance: bytes
    """16 random bytes."""
    host: str
    started_ns: int
    """Since the epoch."""


def deliverer() -> Deliverer:
    """This process, from now on."""
    return Deliverer(os.urandom(INSTANCE_BYTES), socket.gethostname(), time.time_ns())


class Progress(NamedTuple):
    """One record."""

    number: int
    generation: int
    by: Deliverer
    delivered: Sequence[Runs]
    """Dead letters included."""
    letters: Sequence[DeadLetterRuns] = ()


def runs_of(sequences: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(first, length) of the runs in int64 sequences, which may come in any order, each once."""
    ordered = np.sort(sequences)
    starts = np.flatnonzero(np.diff(ordered, prepend=-2) != 1)
    return ordered[starts], np.diff(starts, append=len(ordered))


def merge(blocks: Iterable[Runs]) -> list[Runs]:
    """One block a segment, with the runs of all."""
    by_segment: dict[tuple[int, int], list[Runs]] = {}
    for block in blocks:
        by_segment.setdefault((block.segment, block.identity), []).append(block)
    out = []
    for (segment, identity), same in by_segment.items():
        sequences = np.unique(np.concatenate([block.sequences() for block in same]))
        out.append(Runs(segment, identity, *runs_of(sequences)))
    return out


def dead_letter_runs(posted: Mapping[int, tuple[int, bytes]]) -> list[DeadLetterRuns]:
    """One for each reason and topic, of dead letters by sequence."""
    found: dict[tuple[int, bytes], list[int]] = {}
    for sequence, why in posted.items():
        found.setdefault(why, []).append(sequence)
    return [DeadLetterRuns(*why, *runs_of(np.array(same, np.int64))) for why, same in found.items()]


def encode(progress: Progress) -> bytes:
    """The bytes of a record."""
    host = progress.by.host.encode()[:255]
    blocks = b"".join(
        _BLOCK.pack(b.segment, b.identity, len(b.first)) + _pack_runs(b.first, b.length)
        for b in progress.delivered
    )
    letters = b"".join(
        _LETTER.pack(one.reason, len(one.topic), len(one.first))
        + one.topic
        + _pack_runs(one.first, one.length)
        for one in progress.letters
    )
    head = _HEAD.pack(
        MAGIC,
        VERSION,
        len(host),
        len(progress.delivered),
        progress.number,
        progress.generation,
        progress.by.instance,
        progress.by.started_ns,
    )
    body = head + zlib.compress(host + blocks + letters, 1)
    return _CHECK.pack(digest(body)) + body


def decode(record: bytes) -> Progress:
    """The meaning of a record's bytes. Raises BadProgress."""
    body = record[_CHECK.size :]
    if len(body) < _HEAD.size or _CHECK.unpack_from(record)[0] != digest(body):
        raise BadProgress("it is damaged, or no progress record of bruce")
    magic, version, host_bytes, blocks, number, generation, instance, started_ns = _HEAD.unpack_from(body)
    if magic != MAGIC:
        raise BadProgress("it is no progress record of bruce")
    if version != VERSION:
        raise BadProgress(f"it has version {version}, and this release knows {VERSION}: use a newer one")
    rest = zlib.decompress(body[_HEAD.size :])
    at, delivered = host_bytes, []
    for _ in range(blocks):
        segment, identity, runs = _BLOCK.unpack_from(rest, at)
        at += _BLOCK.size
        delivered.append(Runs(segment, identity, *_unpack_runs(rest, at, runs)))
        at += _RUN_BYTES * runs
    letters = []
    while at < len(rest):
        reason, topic_bytes, runs = _LETTER.unpack_from(rest, at)
        at += _LETTER.size
        topic = rest[at : at + topic_bytes]
        at += topic_bytes
        letters.append(DeadLetterRuns(reason, topic, *_unpack_runs(rest, at, runs)))
        at += _RUN_BYTES * runs
    by = Deliverer(instance, rest[:host_bytes].decode(errors="replace"), started_ns)
    return Progress(number, generation, by, delivered, letters)


def _pack_runs(first: npt.NDArray[np.int64], length: npt.NDArray[np.int64]) -> bytes:
    return first.astype("<u8").tobytes() + length.astype("<u4").tobytes()


def _unpack_runs(data: bytes, at: int, runs: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(first, length) of so many runs."""
    first = np.frombuffer(data, "<u8", runs, at).astype(np.int64)
    return first, np.frombuffer(data, "<u4", runs, at + 8 * runs).astype(np.int64)
