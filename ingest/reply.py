"""The protocol of the acknowledgement socket: requests and replies. No I/O happens here.

A program binds a UNIX datagram socket of its own, to an absolute path or an abstract address, and sends
messages to `[ingest] ack_socket` as it would to `datagram_socket`, but with sendto: a socket that is
connected gets no replies, as the kernel sets no limit to its queue, and the memory is that of all clients.
Replies come from `ack_socket`. The flags of a message say which replies its sender wants:

    0x0001    when the message is synced: it survives power loss, and will be delivered
    0x0002    when the message is delivered: the broker has acknowledged it, and that is on disk
    0         nothing

With both it gets two replies. On the other sockets a message has none of these, nor has it any in the log.
A batch has its own flags, and one reply for all of its messages: it is synced or delivered when all of them
are, and discarded when one of them was. `timestamp` and `sequence` are those of its first message.
A reply is a datagram of 32 bytes:

    reply := magic:4 = "bAck"  version:u8 = 1  status:u8  reason:i16
             sequence:i64  timestamp:i64  size:i32  crc32:u32

Big-endian. `timestamp` and `size` are those of the message, `crc32` (as of zlib) that of the datagram as it
was sent: together they say which message is meant. Of a datagram that is malformed, `timestamp` is 0.
Messages that have all three in common are the same to their reader: two replies mean that there are two.

    status         sequence   reason   the message
    0 synced       its own    0        is synced
    1 delivered    its own    0        is delivered
    2 discarded    -1         why      was not taken: malformed, or the spool is full (12)
                   its own    why      was discarded after it was taken; 256 more: is in the dead-letter topic
    3 unknown      -1         0        has left no trace in the log, for 30 s or while later ones did
                   its own    0        is synced; whether it is delivered is not known here

The reasons are those of bruce-spool(5). Status 0 and 1 are never said of a message that is not so. Silence
says nothing: replies are lost when bruce or one of its processes ends, when 4,096 wait for one client or
65,536 for all, and when a client has read nothing for 30 s. A sender
without a reply in time, or with `unknown`, sends again; then the message may come twice. With
`mode = "at_most_once"` bruce does not know which messages are delivered: the reply is 3.

In the log these messages have the uid and pid of the process of bruce that passed them on.

Example: topic `t`, timestamp 1, no key, no value, to be acknowledged when synced, and the reply to it:

    0000001d 0100 0000 0001 0001 74 0000000000000001 00000000 00000000
    6241636b 01 00 0000 0000000000000000 0000000000000001 0000001d 16df63fd
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from spool.format.wire import (
    BATCH_HEAD_BYTES,
    KIND_AT,
    NUMBER_BYTES,
    SIZE_BYTES,
    TIMESTAMP_BYTES,
    TOPIC_AT,
    TOPIC_SIZE_BYTES,
    Kind,
)

WHEN_SYNCED, WHEN_DELIVERED = 1, 2
MAGIC = b"bAck"
VERSION = 1
REPLY_BYTES = 32
_HEAD = struct.Struct(">4sBBhq")
_TAG = struct.Struct(">qiI")
_FLAGS_AT = 8


class Status(IntEnum):
    """The status in a reply."""

    SYNCED = 0
    DELIVERED = 1
    DISCARDED = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, read. Of a message: its `timestamp`, and `size` and `crc32` of its datagram."""

    status: int
    reason: int
    sequence: int
    timestamp: int
    size: int
    crc32: int


def read_flags(datagram: memoryview) -> int:
    """The flags of a datagram; of one too short to have any, WHEN_SYNCED: its sender wants to know."""
    if len(datagram) < _FLAGS_AT + 2:
        return WHEN_SYNCED
    return int.from_bytes(datagram[_FLAGS_AT : _FLAGS_AT + 2], "big")


def clear_flags(datagram: memoryview) -> None:
    """Make the datagram one for the other sockets: without the flags of this one."""
    if len(datagram) >= _FLAGS_AT + 2:
        datagram[_FLAGS_AT + 1] &= 0xFF ^ (WHEN_SYNCED | WHEN_DELIVERED)


def list_messages(datagram: memoryview) -> list[memoryview]:
    """The messages of a datagram that is well-formed: itself, or those of the batch that it is."""
    if datagram[KIND_AT] != Kind.BATCH:
        return [datagram]
    found, at = [], BATCH_HEAD_BYTES
    while at < len(datagram):
        end = at + int.from_bytes(datagram[at : at + SIZE_BYTES], "big")
        found.append(datagram[at:end])
        at = end
    return found


def read_topic(datagram: memoryview) -> memoryview:
    """The topic of a message that is well-formed."""
    begin, end = _topic_at(datagram)
    return datagram[begin:end]


def read_timestamp(datagram: memoryview) -> int:
    """The timestamp of a message that is well-formed."""
    _begin, at = _topic_at(datagram)
    return int.from_bytes(datagram[at : at + TIMESTAMP_BYTES], "big", signed=True)


def _topic_at(datagram: memoryview) -> tuple[int, int]:
    size_at = TOPIC_AT + NUMBER_BYTES * (datagram[KIND_AT] != Kind.ANY_PARTITION)
    begin = size_at + TOPIC_SIZE_BYTES
    return begin, begin + int.from_bytes(datagram[size_at:begin], "big")


def tag(timestamp: int, size: int, crc32: int) -> bytes:
    """The part of a reply that identifies its message."""
    return _TAG.pack(timestamp, size, crc32)


def encode(status: int, marked: bytes, *, sequence: int = -1, reason: int = 0) -> bytes:
    """A reply about the message with this tag."""
    return _HEAD.pack(MAGIC, VERSION, status, reason, sequence) + marked


def decode(reply: bytes) -> Reply:
    """Read a reply. Raises ValueError."""
    if len(reply) != REPLY_BYTES:
        raise ValueError(f"a reply has {REPLY_BYTES} bytes, not {len(reply)}")
    magic, version, status, reason, sequence = _HEAD.unpack_from(reply)
    if magic != MAGIC or version != VERSION:
        raise ValueError("no reply of this version")
    return Reply(status, reason, sequence, *_TAG.unpack_from(reply, _HEAD.size))
