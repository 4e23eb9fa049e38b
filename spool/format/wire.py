"""The datagrams that programs send, one message each. No I/O happens here.

    AnyPartition  := size:i32 api_key:i16=256 version:i16=0 flags:i16=0
                     topic_size:i16 topic timestamp:i64 key_size:i32 key value_size:i32 value
    PartitionKey  := size:i32 api_key:i16=257 version:i16=0 flags:i16=0 partition_key:i32
                     topic_size:i16 topic timestamp:i64 key_size:i32 key value_size:i32 value

Big-endian, signed, no padding. `size` counts the whole datagram, itself included; `value` ends where
the datagram ends. This is the input format of Bruce 1.0 and Dory 3.2, and segments store datagrams as
they were received, so everything that reads a segment parses this too.

Example: topic `t`, timestamp 0, no key, no value:

    0000001d 0100 0000 0000 0001 74 0000000000000000 00000000 00000000

The order of the checks is Bruce's, so that a datagram wrong in two ways is counted under the same name:
length, size, api key, version, then field by field.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from bruce_client.message import MAX_DATAGRAM_BYTES, encode
from spool.native.kernel import kernel
from spool.native.memory import Address, load_u8, load_u16

__all__ = [
    "DEAD_LETTERED",
    "MAX_DATAGRAM_BYTES",
    "REASONS",
    "TOPIC_SIZE_BYTES",
    "Reason",
    "check",
    "encode",
    "load_be16",
    "load_be32",
    "load_be64",
    "reason_name",
    "sampled_topic",
    "split_topic",
    "topic_at",
    "with_topic",
]


class Reason(IntEnum):
    """Why a message was not stored, or not delivered. The numbers are part of the segment format."""

    ACCEPTED = 0
    SHORT = 1
    """Fewer than 8 bytes, an empty datagram included."""
    SIZE = 2
    """The size field is not the number of bytes received."""
    API_KEY = 3
    """Neither AnyPartition nor PartitionKey."""
    API_VERSION = 4
    FLAGS = 5
    TOPIC = 6
    """No topic, or one that runs past the end."""
    TIMESTAMP = 7
    """The datagram ends before or inside the timestamp."""
    KEY = 8
    """A negative key length, or a key that runs past the end."""
    VALUE = 9
    """A negative value length, or one that is not exactly what is left."""
    TRUNCATED = 10
    """Longer than the largest datagram: the kernel cut off the rest, or all of it when short of memory."""
    POISON = 11
    """In a burst that failed three times; its bytes are in quarantine/."""
    SPOOL_FULL = 12
    """Accepted from the socket while the spool had no room."""
    DAMAGED = 13
    """Stored, but unreadable when it was to be delivered."""
    UNKNOWN_TOPIC = 14
    """Kafka did not know the topic within the grace time."""
    TOO_LARGE = 15
    """Refused as too large, by librdkafka or by the broker."""
    INVALID_RECORD = 16
    """Refused by the broker for what it contains."""
    OVER_QUOTA = 17
    """Its topic had more than its share of the spool undelivered."""
    EVICTED = 18
    """Among the oldest undelivered when the spool was full, and given up to make room."""
    RATE_LIMITED = 19
    """Beyond the rate that its topic may have."""
    UNCONFIRMED = 20
    """At most once: handed over, and never acknowledged; it may be in Kafka."""
    BAD_SIZE = 21
    """On a stream, a size field below 4; it ended the connection."""
    TOO_LONG = 22
    """On a stream, a size field above the limit; it ended the connection."""
    UNCLEAN = 23
    """A stream ended inside this message."""
    TLS = 24
    """A client spoke TLS to the TCP input; it ended the connection."""
    HTTP = 25
    """A client spoke HTTP to the TCP input; it ended the connection."""
    NOT_PERMITTED = 26
    """By a rule of [access] its sender may not write to its topic."""
    TOO_MANY_TOPICS = 27
    """The spool has messages of more topics than [spool] max_topics, and Kafka does not know this one."""
    USER_LIMIT = 28
    """On streams, its user had the most connections, or the most memory for unfinished messages, when others
    needed some; it ended a connection, with the message that had begun there, if any."""
    TOO_SLOW = 29
    """On a stream, the rest of this message did not come in time; it ended the connection."""
    PARTITIONER = 30
    """The function that is its topic's partitioner raised, or gave no partition for it."""


TOPIC_SIZE_BYTES = 2
"""Of the length before a topic."""
_API_KEY_LOW_AT, _TOPIC_AT, _PARTITION_KEY_BYTES = 5, 10, 4

REASONS = 32
"""Room for that many reasons in headers that count by reason."""


DEAD_LETTERED = 256
"""Added to the reason of a message that is discarded here because it is in the dead-letter topic."""


def reason_name(reason: int) -> str:
    """The name in status and logs, such as `api_version`; in the dead-letter topic or not."""
    reason &= ~DEAD_LETTERED
    try:
        return Reason(reason).name.lower()
    except ValueError:
        return f"reason_{reason}"


@kernel
def load_be32(at: int) -> int:
    """A big-endian, signed 32-bit integer."""
    value = (load_u8(at) << 24) | (load_u8(at + 1) << 16) | (load_u8(at + 2) << 8) | load_u8(at + 3)
    return value - ((value >> 31) << 32)


@kernel
def load_be16(at: int) -> int:
    """A big-endian, signed 16-bit integer."""
    value = (load_u8(at) << 8) | load_u8(at + 1)
    return value - ((value >> 15) << 16)


@kernel
def load_be64(at: int) -> int:
    """A big-endian, signed 64-bit integer."""
    return (load_be32(at) << 32) | (load_be32(at + 4) & 0xFFFFFFFF)


@kernel
def topic_at(datagram: Address) -> Address:
    """The address of the topic's length, an i16, in a well-formed datagram; the topic is behind it."""
    # The low byte of api_key is 1 where there is a partition key.
    return Address(datagram + _TOPIC_AT + _PARTITION_KEY_BYTES * load_u8(datagram + _API_KEY_LOW_AT))


@kernel
def check(at: int, length: int) -> int:
    """The Reason to refuse the datagram of `length` bytes at address `at`; 0 accepts it."""
    if length < 8:
        return 1
    if load_be32(at) != length:
        return 2
    # One 16-bit load in the host's order: 0x0100 and 0x0101 read from big-endian bytes.
    api = load_u16(at + 4)
    if api != 0x0001 and api != 0x0101:
        return 3
    if load_u16(at + 6) != 0:
        return 4
    fixed = 10 if api == 0x0001 else 14
    if length < 10 or load_u16(at + 8) != 0:
        return 5
    if length < fixed + 2:
        return 6
    topic = load_be16(at + fixed)
    left = length - fixed - 2 - topic
    if topic <= 0 or left < 0:
        return 6
    if left < 8:
        return 7
    if left < 12:
        return 8
    at_key = at + fixed + 10 + topic
    key = load_be32(at_key)
    left -= 12
    if key < 0 or key > left:
        return 8
    left -= key
    if left < 4:
        return 9
    if load_be32(at_key + 4 + key) != left - 4:
        return 9
    return 0


def split_topic(datagram: bytes) -> tuple[bytes, bytes, bytes]:
    """(bytes before the topic's length, topic, bytes behind it) of a datagram that was accepted."""
    at = 14 if datagram[4:6] == b"\x01\x01" else 10
    end = at + 2 + int.from_bytes(datagram[at : at + 2], "big")
    return datagram[:at], datagram[at + 2 : end], datagram[end:]


def sampled_topic(reason: int, sample: bytes) -> bytes:
    """The topic in the first bytes of a datagram refused at intake, as far as they go; empty: not known."""
    if reason in (Reason.OVER_QUOTA, Reason.NOT_PERMITTED):
        # The only ones that are well-formed.
        return split_topic(sample)[1]
    return b""


def with_topic(datagram: bytes, topic: bytes) -> bytes:
    """The same message for another topic."""
    head, _, rest = split_topic(datagram)
    size = len(head) + 2 + len(topic) + len(rest)
    return struct.pack(">i", size) + head[4:] + struct.pack(">h", len(topic)) + topic + rest
