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
    "KEYED_AT",
    "MAX_DATAGRAM_BYTES",
    "PARTITION_KEY_AT",
    "PARTITION_KEY_BYTES",
    "REASONS",
    "REST_BYTES",
    "SIZE_BYTES",
    "TIMESTAMP_BYTES",
    "TOPIC_AT",
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


_API_KEY_AT, _API_VERSION_AT, _FLAGS_AT = 4, 6, 8
_BEGINNING_BYTES = _FLAGS_AT
"""Of size, api key and version: no datagram is checked without them."""
KEYED_AT = 5
"""The low byte of the api key: 1 where there is a partition key, else 0."""
TOPIC_AT = PARTITION_KEY_AT = 10
"""The topic's length is PARTITION_KEY_BYTES further on where there is a partition key."""
PARTITION_KEY_BYTES = 4
TOPIC_SIZE_BYTES = 2
"""Of the length before a topic."""
TIMESTAMP_BYTES, SIZE_BYTES = 8, 4
"""Behind the topic: of the timestamp; of the length before a key, and before a value."""
REST_BYTES = TIMESTAMP_BYTES + 2 * SIZE_BYTES
"""Behind the topic of a message with neither key nor value."""
_ANY_PARTITION, _PARTITION_KEY = 0x0001, 0x0101
"""The api keys 256 and 257, read from their big-endian bytes by one load in the host's order."""
_PARTITION_KEY_API = _PARTITION_KEY.to_bytes(2, "little")

_SHORT, _SIZE = int(Reason.SHORT), int(Reason.SIZE)
_API_KEY, _API_VERSION, _FLAGS = int(Reason.API_KEY), int(Reason.API_VERSION), int(Reason.FLAGS)
_TOPIC, _TIMESTAMP = int(Reason.TOPIC), int(Reason.TIMESTAMP)
_KEY, _VALUE = int(Reason.KEY), int(Reason.VALUE)
"""The results of `check`: plain integers, as a compiled loop has them."""

REASONS = 32
"""Room for that many reasons in headers that count by reason: for more the segment's version would rise."""


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
def load_be32(at: Address) -> int:
    """The big-endian, signed 32-bit integer at an address."""
    value = (load_u8(at) << 24) | (load_u8(at + 1) << 16) | (load_u8(at + 2) << 8) | load_u8(at + 3)
    return value - ((value >> 31) << 32)


@kernel
def load_be16(at: Address) -> int:
    """The big-endian, signed 16-bit integer at an address."""
    value = (load_u8(at) << 8) | load_u8(at + 1)
    return value - ((value >> 15) << 16)


@kernel
def load_be64(at: Address) -> int:
    """The big-endian, signed 64-bit integer at an address."""
    return (load_be32(at) << 32) | (load_be32(Address(at + 4)) & 0xFFFFFFFF)


@kernel
def topic_at(datagram: Address) -> Address:
    """The address of the topic's length, an i16, in a well-formed datagram; the topic is behind it."""
    return Address(datagram + TOPIC_AT + PARTITION_KEY_BYTES * load_u8(datagram + KEYED_AT))


@kernel
def check(at: Address, length: int) -> int:
    """The Reason to refuse the datagram of `length` bytes at address `at`; 0 accepts it."""
    if length < _BEGINNING_BYTES:
        return _SHORT
    if load_be32(at) != length:
        return _SIZE
    api = load_u16(at + _API_KEY_AT)
    if api != _ANY_PARTITION and api != _PARTITION_KEY:
        return _API_KEY
    if load_u16(at + _API_VERSION_AT) != 0:
        return _API_VERSION
    fixed = TOPIC_AT if api == _ANY_PARTITION else TOPIC_AT + PARTITION_KEY_BYTES
    if length < TOPIC_AT or load_u16(at + _FLAGS_AT) != 0:
        return _FLAGS
    if length < fixed + TOPIC_SIZE_BYTES:
        return _TOPIC
    topic = load_be16(Address(at + fixed))
    left = length - fixed - TOPIC_SIZE_BYTES - topic
    if topic <= 0 or left < 0:
        return _TOPIC
    if left < TIMESTAMP_BYTES:
        return _TIMESTAMP
    if left < TIMESTAMP_BYTES + SIZE_BYTES:
        return _KEY
    at_key = Address(at + fixed + TOPIC_SIZE_BYTES + topic + TIMESTAMP_BYTES)
    key = load_be32(at_key)
    left -= TIMESTAMP_BYTES + SIZE_BYTES
    if key < 0 or key > left:
        return _KEY
    left -= key
    if left < SIZE_BYTES:
        return _VALUE
    if load_be32(Address(at_key + SIZE_BYTES + key)) != left - SIZE_BYTES:
        return _VALUE
    return 0


def split_topic(datagram: bytes) -> tuple[bytes, bytes, bytes]:
    """(bytes before the topic's length, topic, bytes behind it) of a datagram that was accepted."""
    has_key = datagram[_API_KEY_AT:_API_VERSION_AT] == _PARTITION_KEY_API
    at = TOPIC_AT + PARTITION_KEY_BYTES * has_key
    name = at + TOPIC_SIZE_BYTES
    end = name + int.from_bytes(datagram[at:name], "big")
    return datagram[:at], datagram[name:end], datagram[end:]


def sampled_topic(reason: int, sample: bytes) -> bytes:
    """The topic in the first bytes of a datagram refused at intake, as far as they go; empty: not known."""
    if reason in (Reason.OVER_QUOTA, Reason.NOT_PERMITTED):
        # The only ones that are well-formed.
        return split_topic(sample)[1]
    return b""


def with_topic(datagram: bytes, topic: bytes) -> bytes:
    """The same message for another topic."""
    head, _, rest = split_topic(datagram)
    size = len(head) + TOPIC_SIZE_BYTES + len(topic) + len(rest)
    return struct.pack(">i", size) + head[SIZE_BYTES:] + struct.pack(">h", len(topic)) + topic + rest
