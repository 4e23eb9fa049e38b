"""The hash of a message: the same from its bytes in a segment, in a record of Kafka, and in columns.

The hash of the content is XXH64 (github.com/Cyan4973/xxHash, as the xxhash wheel carries it) in the way of
Spark's `xxhash64`: the hash of each field is the seed of the next, the first seed is 42, a null leaves the
seed as it is, and numbers are hashed as their bytes, little-endian:

    content := xxhash64(topic, length of the key, length of the value, key, value, H)
    H       := xxhash64(length of each header's value, each header's name and value); null without headers

A length is 32 bits, and -1 for a null. The header that a replay adds is none of these. Two words tell of one
message in a sum (`spool.format.block_sums`), each of them XXH64 of 8 bytes with another number as its seed:

    word      := XXH64(sequence, seed: content)
    time word := XXH64(milliseconds since the epoch, seed: sequence)

All hashes are 64 bits, signed. They tell rot and mistakes: who wants two messages with one hash can make
them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spool.format.frame import FRAME_AT, Frames, holds_datagrams
from spool.format.segment_format import COUNT_AT, FLAGS_AT, HEAD_BYTES, PIDS, SEQUENCE_AT, UIDS
from spool.format.wire import (
    KIND_AT,
    NAME_SIZE_BYTES,
    NULL,
    SIZE_BYTES,
    TIMESTAMP_BYTES,
    TOPIC_SIZE_BYTES,
    Kind,
    load_be16,
    load_be32,
    load_be64,
    topic_at,
)
from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, call, load_i64, load_u8, load_u16, load_u32, store_i64

SEED = 42
REPLAY_NAME = b"bruce-replay"
"""The header that a replay adds: when it was asked for, ms since the epoch, in digits."""
_REPLAY_BYTES = len(REPLAY_NAME)
_REPLAY_START = int.from_bytes(REPLAY_NAME[:8], "little")
_REPLAY_END = int.from_bytes(REPLAY_NAME[8:], "little")
_LONG = int(Kind.MESSAGE)
Words = npt.NDArray[np.int64]
Xxh = tuple[int, Address]
"""The address of the function XXH64, and of 8 bytes of scratch."""


@subkernel
def hash_bytes(xxh: Xxh, at: Address, length: int, seed: int) -> int:
    """The hash of bytes at an address; a length below zero is a null."""
    return seed if length < 0 else call(xxh[0], at, length, seed)


@subkernel
def hash_length(xxh: Xxh, length: int, seed: int) -> int:
    """The hash of a length."""
    store_i64(xxh[1], length)
    return call(xxh[0], xxh[1], 4, seed)


@subkernel
def hash_word(xxh: Xxh, word: int, seed: int) -> int:
    """The hash of a number of 64 bits."""
    store_i64(xxh[1], word)
    return call(xxh[0], xxh[1], 8, seed)


@subkernel
def is_replay(at: Address, length: int) -> bool:
    """Whether the name of a header is that of a replay."""
    return length == _REPLAY_BYTES and load_i64(at) == _REPLAY_START and load_u32(at + 8) == _REPLAY_END


@subkernel
def hash_body(
    xxh: Xxh,
    topic: int,
    key: Address,
    key_bytes: int,
    value: Address,
    value_bytes: int,
) -> int:
    """The hash of key and value behind the hash of the topic. A length below zero is a null."""
    seed = hash_length(xxh, key_bytes, topic)
    seed = hash_length(xxh, value_bytes, seed)
    seed = hash_bytes(xxh, key, key_bytes, seed)
    return hash_bytes(xxh, value, value_bytes, seed)


@subkernel
def hash_headers(xxh: Xxh, at: Address, end: Address, seed: int) -> int:
    """The hash with the headers of a Message, which are between two addresses (spool.format.wire)."""
    found, count = SEED, 0
    for part in range(2):
        one = at
        while one < end:
            name_bytes = load_be16(one)
            name = Address(one + NAME_SIZE_BYTES)
            value_bytes = load_be32(Address(name + name_bytes))
            value = Address(name + name_bytes + SIZE_BYTES)
            one = Address(value + max(value_bytes, 0))
            if is_replay(name, name_bytes):
                continue
            count += 1
            if part == 0:
                found = hash_length(xxh, value_bytes, found)
            else:
                found = hash_bytes(xxh, name, name_bytes, found)
                found = hash_bytes(xxh, value, value_bytes, found)
    return hash_word(xxh, found, seed) if count > 0 else seed


@subkernel
def hash_message(xxh: Xxh, datagram: Address, length: int) -> tuple[int, int]:
    """(content, milliseconds since the epoch) of a well-formed message of `length` bytes at an address."""
    topic = topic_at(datagram)
    size = load_be16(topic)
    name = Address(topic + TOPIC_SIZE_BYTES)
    sent_at = Address(name + size)
    key_at = Address(sent_at + TIMESTAMP_BYTES)
    key_bytes = load_be32(key_at)
    key = Address(key_at + SIZE_BYTES)
    value_at = Address(key + max(key_bytes, 0))
    value_bytes = load_be32(value_at)
    value = Address(value_at + SIZE_BYTES)
    is_long = load_u8(datagram + KIND_AT) == _LONG
    if key_bytes == 0 and not is_long:
        key_bytes = NULL
    content = hash_bytes(xxh, name, size, SEED)
    content = hash_body(xxh, content, key, key_bytes, value, value_bytes)
    if is_long:
        headers, end = Address(value + max(value_bytes, 0)), Address(datagram + length)
        content = hash_headers(xxh, headers, end, content)
    sent_ms = load_be64(sent_at)
    # librdkafka reads 0 as "now": such a message goes out with 1.
    return content, 1 if sent_ms == 0 else sent_ms


@kernel
def hash_frames(
    base: Address,
    frames: Frames,
    xxh: Xxh,
    sequences: Words,
    words: Words,
    time_words: Words,
) -> int:
    """The words of the messages of good frames: how many there are. Offset 0 of the segment is at `base`.

    `frames` int64[n, ROW]. The others are int64[messages], and are written. A frame that holds anything but
    well-formed messages has none.
    """
    row = 0
    for f in range(frames.shape[0]):
        at = Address(base + frames[f, FRAME_AT])
        if not holds_datagrams(at):
            continue
        flags, count, first = load_u16(at + FLAGS_AT), load_u32(at + COUNT_AT), load_i64(at + SEQUENCE_AT)
        datagram = at + HEAD_BYTES + 4 * count * (1 + (flags & UIDS) + ((flags & PIDS) >> 1))
        for i in range(count):
            length = load_u32(at + HEAD_BYTES + 4 * i)
            content, sent_ms = hash_message(xxh, Address(datagram), length)
            sequences[row] = first + i
            words[row] = hash_word(xxh, first + i, content)
            time_words[row] = hash_word(xxh, sent_ms, first + i)
            datagram += length
            row += 1
    return row
