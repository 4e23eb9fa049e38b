"""Two histograms in the shared state, filled by compiled loops: how large messages are, how long they took.

Sizes are those of datagrams as they were sent, in bytes; a message counts when it is stored. Bounds, each
included in its bucket: 64, 128, 256, ... 16,777,216, and everything larger.

    sizes := state:i64 prepared:i64 slot[2]
    slot  := messages:i64[SIZE_BUCKETS] bytes:i64 stored:i64[4] refused:i64[4]

`stored` and `refused` count messages by input: datagrams, UNIX streams, TCP, Kafka.

`state` is the last burst that is counted, times two, plus the number of the slot that counts it. A burst is
added to a copy of that slot, `prepared` says which, and `state` follows when its frame is in the log. So a
burst counts once, whichever process is killed in between: `settle` compares with the log.

Latency is the time from a message's `received_ns` to its acknowledgement: by a broker, or of the transaction
that it went in. Bounds in seconds, each included: LATENCY_SECONDS. A clock that was set back counts as 0.

    latency := messages:i64[LATENCY_BUCKETS] microseconds:i64

A sum that reaches the end of its word stays there: a clock set forward ten years needs 30,000 messages.

Both start at zero with a new shared state. A SIGKILL of the delivery worker can leave the sum one message
behind.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, copy, load_i64, publish_i64, store_i64

SIZE_BYTES = tuple(1 << power for power in range(6, 25))
SIZE_BUCKETS = len(SIZE_BYTES) + 1
_SMALLEST = SIZE_BYTES[0]
INPUTS = ("datagram", "stream", "tcp", "kafka")
DATAGRAM, STREAM, TCP, KAFKA = range(len(INPUTS))
_SLOTS = 16
_BY_INPUT = SIZE_BUCKETS + 1
_SLOT_WORDS = _BY_INPUT + 2 * len(INPUTS)
_REFUSED_BYTES = 8 * len(INPUTS)
_SLOT_BYTES = 8 * _SLOT_WORDS
SIZE_WORDS = 2 + 2 * _SLOT_WORDS

LATENCY_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0),
)
LATENCY_BUCKETS = len(LATENCY_SECONDS) + 1
LATENCY_WORDS = LATENCY_BUCKETS + 1
_MOST = (1 << 63) - 1
_LATENCY_NS = np.array([round(1e9 * bound) for bound in LATENCY_SECONDS], np.int64)


class Histogram(NamedTuple):
    """A histogram at one moment."""

    bounds: tuple[float, ...]
    """Of all buckets but the last, which has none; in base units, ascending."""
    counts: tuple[int, ...]
    """By bucket, not cumulated."""
    total: float
    """Sum of all values, in base units."""


@subkernel
def begin_sizes(sizes: Address) -> Address:
    """The address of a slot that a burst's messages may be added to; `sizes`: that of SIZE_WORDS words."""
    right = load_i64(sizes) & 1
    other = Address(sizes + _SLOTS + (1 - right) * _SLOT_BYTES)
    copy(other, sizes + _SLOTS + right * _SLOT_BYTES, _SLOT_BYTES)
    return other


@subkernel
def add_size(slot: Address, size: int) -> None:
    """Count a message of `size` bytes in the bank at an address; `prepare_sizes` adds the bytes."""
    at: int = slot
    bound = _SMALLEST
    while size > bound and at < slot + 8 * (SIZE_BUCKETS - 1):
        at += 8
        bound <<= 1
    store_i64(at, load_i64(at) + 1)


@subkernel
def add_by_input(slot: Address, number: int, stored: int, refused: int) -> None:
    """Count so many messages of an input, by its number in INPUTS, in the bank at an address."""
    at = slot + 8 * (_BY_INPUT + number)
    store_i64(at, load_i64(at) + stored)
    store_i64(at + _REFUSED_BYTES, load_i64(at + _REFUSED_BYTES) + refused)


@subkernel
def prepare_sizes(sizes: Address, slot: Address, total: int, burst: int) -> None:
    """All messages of a burst, `total` bytes, are in the slot; its frame comes next."""
    store_i64(slot + 8 * SIZE_BUCKETS, load_i64(slot + 8 * SIZE_BUCKETS) + total)
    publish_i64(sizes + 8, burst)


@subkernel
def commit_sizes(sizes: Address, burst: int) -> None:
    """The frame of the burst that was prepared is in the log."""
    publish_i64(sizes, 2 * burst + 1 - (load_i64(sizes) & 1))


def settle(sizes: npt.NDArray[np.int64], burst: int) -> None:
    """Count what a predecessor had prepared, if its frame is the log's last, with number `burst`."""
    state, prepared = sizes[:2].tolist()
    if prepared == burst and state >> 1 != burst:
        sizes[0] = 2 * burst + 1 - (state & 1)
    sizes[1] = 0


@kernel
def add_latencies(latency: npt.NDArray[np.int64], received_ns: npt.NDArray[np.int64], now_ns: int) -> None:
    """Count messages received at these times, ns since the epoch, that are acknowledged now.

    `latency` int64[LATENCY_WORDS]; `received_ns` int64[n].
    """
    total = latency[LATENCY_BUCKETS]
    for received in received_ns:
        age = max(0, now_ns - received)
        at = 0
        while at < LATENCY_BUCKETS - 1 and age > _LATENCY_NS[at]:
            at += 1
        latency[at] += 1
        total += min(age // 1000, _MOST - total)
    latency[LATENCY_BUCKETS] = total


def read_sizes(words: npt.NDArray[np.int64]) -> Histogram:
    """The sizes, in bytes, from SIZE_WORDS words of a copied shared state."""
    *counts, total = _right_bank(words)[: SIZE_BUCKETS + 1].tolist()
    return Histogram(tuple(map(float, SIZE_BYTES)), tuple(counts), total)


def read_by_input(words: npt.NDArray[np.int64]) -> dict[str, tuple[int, int]]:
    """From the words of `read_sizes`: (messages stored, refused) by INPUTS."""
    stored, refused = _right_bank(words)[_BY_INPUT:].reshape(2, -1).tolist()
    return dict(zip(INPUTS, zip(stored, refused, strict=True), strict=True))


def _right_bank(words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return words[2 + _SLOT_WORDS * (int(words[0]) & 1) :][:_SLOT_WORDS]


def read_latency(words: npt.NDArray[np.int64]) -> Histogram:
    """The latencies, in seconds, from LATENCY_WORDS words of a copied shared state."""
    found = words[:LATENCY_WORDS].tolist()
    return Histogram(LATENCY_SECONDS, tuple(found[:-1]), found[-1] / 1e6)


def compile_kernels() -> None:
    """Compile the loop of delivery; those of intake are part of its loops."""
    nothing = np.zeros(0, np.int64)
    add_latencies(np.zeros(LATENCY_WORDS, np.int64), nothing, 0)
