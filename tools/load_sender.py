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

from spool.format.wire import encode
from spool.native.memory import address_of, function_address
from tools import load_kernel as hot
from tools.payload import KEY_BYTES, blank_value

RECONNECT = (errno.ECONNREFUSED, errno.EPIPE, errno.ENOENT, errno.ENOTCONN, errno.ECONNRESET, errno.ENOTSOCK)
"""The errors of a sender while the daemon is away: it tries again."""
PAUSE_S = 0.002
SEND_TIMEOUT_S = 0.2
"""How long a blocked send keeps a sender from seeing the stop signal."""
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_FIXED_BYTES = 28

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Mix:
    """The mix of a sender's messages."""

    topics: Sequence[str]
    sizes: tuple[int, int]
    """Least and largest datagram, in bytes; each slot of a sender has one size."""
    keyed: float
    """The share of PartitionKey messages."""
    key_bytes: int
    """Of the message's own key: 8, or 0 for none."""
    slots: int
    seed: int
    large: int = 0
    """Bytes of the datagram in the last slot; 0: like the others."""


class Datagrams:
    """The datagrams of one sender, and the mmsghdr array that points at them."""

    def __init__(self, mix: Mix) -> None:
        rng = random.Random(mix.seed)  # noqa: S311  (a load, not a secret)
        datagrams = [self._make(mix, rng, slot) for slot in range(mix.slots)]
        stride = (max(len(data) for _, data, _ in datagrams) + 127) & ~63
        self._bytes = np.zeros((mix.slots, stride), np.uint8)
        self.plan = np.zeros((mix.slots, hot.PLAN_FIELDS), np.int64)
        self._vectors = np.zeros((mix.slots, 2), np.int64)
        self._headers = np.zeros((mix.slots, hot.MMSGHDR_BYTES // 8), np.int64)
        for slot, (keyed, data, topic) in enumerate(datagrams):
            self._bytes[slot, : len(data)] = np.frombuffer(data, np.uint8)
            address = address_of(self._bytes) + slot * stride
            timestamp = 12 + 4 * keyed + topic
            key = timestamp + 12
            value = key + mix.key_bytes + 4
            self.plan[slot] = (address, timestamp, key, value, len(data) - value, keyed, mix.key_bytes)
            self._vectors[slot] = (address, len(data))
        self._headers[:, 2] = address_of(self._vectors) + 16 * np.arange(mix.slots)
        self._headers[:, 3] = 1

    @property
    def headers(self) -> int:
        """The address of mmsghdr[slots]."""
        return address_of(self._headers)

    def bytes_of(self, slot: int) -> bytes:
        """The datagram in a slot, as it is now."""
        return self._bytes[slot, : int(self._vectors[slot, 1])].tobytes()

    @staticmethod
    def _make(mix: Mix, rng: random.Random, slot: int) -> tuple[int, bytes, int]:
        """(keyed, datagram, length of the topic). Raises ValueError when the size leaves no room."""
        topic = mix.topics[slot % len(mix.topics)].encode()
        keyed = rng.random() < mix.keyed
        size = mix.large if mix.large and slot == mix.slots - 1 else rng.randint(*mix.sizes)
        room = size - _FIXED_BYTES - 4 * keyed - len(topic) - mix.key_bytes
        partition_key = 0 if keyed else None
        data = encode(topic, blank_value(room), key=bytes(mix.key_bytes), partition_key=partition_key)
        return int(keyed), data, len(topic)


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
