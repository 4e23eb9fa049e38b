"""One sender: its datagrams, its socket, and the process that runs the hot loop over them."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bruce_client.message import BATCH_HEAD_BYTES, encode, encode_batch, encode_message
from spool.native.memory import address_of, function_address
from tools import load_kernel as hot
from tools.payload import (
    KEY_BYTES,
    LEAST_BYTES,
    NOTHING,
    PLACED,
    TOMBSTONE,
    TRACE,
    WITH_HEADERS,
    blank_value,
    headers_of,
)

RECONNECT = (errno.ECONNREFUSED, errno.EPIPE, errno.ENOENT, errno.ENOTCONN, errno.ECONNRESET, errno.ENOTSOCK)
"""The errors of a sender while the daemon is away: it tries again."""
PAUSE_S = 0.002
SEND_TIMEOUT_S = 0.2
"""How long a blocked send keeps a sender from seeing the stop signal."""
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_NOTHING_BYTES = 2 + len(NOTHING[0]) + 4
"""Of the last header of a tombstone."""

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Mix:
    """The mix of a sender's messages."""

    topics: Sequence[str]
    sizes: tuple[int, int]
    """Least and largest message, in bytes; each slot of a sender has one size."""
    keyed: float
    """The share of PartitionKey messages."""
    key_bytes: int
    """Of the message's own key: 8, or 0 for none."""
    slots: int
    seed: int
    large: int = 0
    """Bytes of the message in the last slot; 0: like the others."""
    batch: int = 1
    """Messages of a datagram; 1: they are not in batches."""
    headers: float = 0.0
    placed: float = 0.0
    tombstones: float = 0.0
    """The shares of messages with headers, with a partition that they name, and with a null value."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message with its fields still to be written."""

    data: bytes
    fields: tuple[int, ...]
    """Of a row of the plan, all behind ADDRESS."""


class Datagrams:
    """The datagrams of one sender, and the mmsghdr array that points at them."""

    def __init__(self, mix: Mix) -> None:
        rng = random.Random(mix.seed)  # noqa: S311  (a load, not a secret)
        count = max(1, mix.slots // mix.batch)
        last = count * mix.batch - 1
        sizes = [mix.large if mix.large and slot == last else 0 for slot in range(last + 1)]
        messages = [_prepare(mix, rng, slot, size) for slot, size in enumerate(sizes)]
        batches = [messages[first : first + mix.batch] for first in range(0, len(messages), mix.batch)]
        head = BATCH_HEAD_BYTES if mix.batch > 1 else 0
        datagrams = [encode_batch(one.data for one in batch) if head else batch[0].data for batch in batches]
        stride = (max(map(len, datagrams)) + 127) & ~63
        self._bytes = np.zeros((count, stride), np.uint8)
        self.plan = np.zeros((len(messages), hot.PLAN_FIELDS), np.int64)
        self._vectors = np.zeros((count, 2), np.int64)
        self._headers = np.zeros((count, hot.MMSGHDR_BYTES // 8), np.int64)
        rows = iter(self.plan)
        for number, (data, batch) in enumerate(zip(datagrams, batches, strict=True)):
            self._bytes[number, : len(data)] = np.frombuffer(data, np.uint8)
            address = address_of(self._bytes) + number * stride
            self._vectors[number] = (address, len(data))
            address += head
            for one in batch:
                next(rows)[:] = (address, *one.fields)
                address += len(one.data)
        self._headers[:, 2] = address_of(self._vectors) + 16 * np.arange(count)
        self._headers[:, 3] = 1

    @property
    def headers(self) -> int:
        """The address of mmsghdr[datagrams]."""
        return address_of(self._headers)


def _prepare(mix: Mix, rng: random.Random, slot: int, size: int) -> Prepared:
    """The message of a slot, with `size` bytes; 0: one of the mix's sizes. Raises ValueError without room."""
    topic = mix.topics[slot % len(mix.topics)].encode()
    keyed = rng.random() < mix.keyed
    size = size or rng.randint(*mix.sizes)
    shares = {WITH_HEADERS: mix.headers, PLACED: mix.placed, TOMBSTONE: mix.tombstones}
    traits = sum(trait for trait, share in shares.items() if share and rng.random() < share)
    # A message that names its partition has no key.
    key = b"" if traits & PLACED else bytes(mix.key_bytes)
    spare = size - len(_encode(topic, key, blank_value(LEAST_BYTES), traits, keyed=keyed))
    value = blank_value(LEAST_BYTES + spare)
    data = _encode(topic, key, value, traits, keyed=keyed)
    timestamp_at = (16 if keyed or traits else 12) + len(topic)
    key_at = timestamp_at + 12
    behind = key_at + len(key) + 4 + (0 if traits & TOMBSTONE else len(value))
    value_at = (len(data) - _NOTHING_BYTES if traits & TOMBSTONE else behind) - len(value)
    trace_at = behind + 2 + len(TRACE) + 4
    word = traits | (mix.batch - 1) << 8
    fields = (timestamp_at, key_at, value_at, len(value), int(keyed), len(key), word, trace_at)
    return Prepared(data, fields)


def _encode(topic: bytes, key: bytes, value: bytes, traits: int, *, keyed: bool) -> bytes:
    """A message; the hot loop writes its numbers."""
    partition_key = 0 if keyed else None
    if not traits:
        return encode(topic, value, key=key, partition_key=partition_key)
    where = {"partition": 0} if traits & PLACED else {"partition_key": partition_key}
    return encode_message(
        topic,
        None if traits & TOMBSTONE else value,
        key=key or None,
        headers=headers_of(traits, bytes(KEY_BYTES), value),
        **where,
    )


def fill_job(job: npt.NDArray[np.int64], datagrams: Datagrams, scratch: npt.NDArray[np.int64]) -> None:
    """Give the hot loop the addresses that it works with, and the clock."""
    job[hot.HEADERS] = datagrams.headers
    job[hot.SENDMMSG] = function_address(libc.sendmmsg)
    job[hot.ERRNO] = function_address(libc["__errno_location"])
    job[hot.CLOCK] = function_address(libc.clock_gettime)
    job[hot.SLEEP] = function_address(libc.clock_nanosleep)
    job[hot.SCRATCH] = address_of(scratch)
    job[hot.WALL] = time.time_ns() - time.monotonic_ns()


def compile_loop() -> None:
    """Compile, or load from the cache, before the senders fork and the clock runs."""
    mix = Mix(["t"], (128, 128), 0.5, KEY_BYTES, slots=2, seed=0)
    datagrams, scratch, stop = Datagrams(mix), np.zeros(8, np.int64), np.ones(1, np.int64)
    job = np.zeros(hot.JOB_FIELDS, np.int64)
    fill_job(job, datagrams, scratch)
    job[hot.STOP] = address_of(stop)
    hot.send(job, datagrams.plan, np.zeros(hot.BUCKETS, np.int64))


def run_sender(
    path: Path,
    mix: Mix,
    job: npt.NDArray[np.int64],
    histogram: npt.NDArray[np.int64],
    stop: npt.NDArray[np.int64],
) -> None:
    """Run the job, over as many connections as it takes; returns when it is done.

    Raises OSError when the socket fails for good.
    """
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    datagrams, scratch = Datagrams(mix), np.zeros(8, np.int64)
    fill_job(job, datagrams, scratch)
    job[hot.STOP] = address_of(stop)
    while not stop[0] and time.monotonic_ns() < job[hot.END]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            code = _connect(sender, path)
            job[hot.FD] = sender.fileno()
            code = code or hot.send(job, datagrams.plan, histogram)
        if code == 0:
            return
        if code not in RECONNECT:
            raise OSError(code, os.strerror(code), str(path))
        job[hot.RECONNECTS] += 1
        time.sleep(PAUSE_S)


def _connect(sender: socket.socket, path: Path) -> int:
    """0, or why not."""
    timeout = bytes(8) + int(SEND_TIMEOUT_S * 1_000_000).to_bytes(8, "little")
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
    try:
        sender.connect(str(path))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def become_sender(parent: int, uid: int = 0) -> None:
    """Die with the parent, which counts the messages; leave the signals to it. `uid`: become this user."""
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    # After the change of user, which clears it.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
