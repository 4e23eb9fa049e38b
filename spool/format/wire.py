"""The datagrams that programs send: a message, or a batch of messages. No I/O happens here.

    AnyPartition  := size:i32 api_key:i16=256 version:i16=0 flags:i16=0
                     topic_size:i16 topic timestamp:i64 key_size:i32 key value_size:i32 value
    PartitionKey  := size:i32 api_key:i16=257 version:i16=0 flags:i16=0 partition_key:i32
                     topic_size:i16 topic timestamp:i64 key_size:i32 key value_size:i32 value
    Message       := size:i32 api_key:i16=258 version:i16=0 flags:i16 number:i32
                     topic_size:i16 topic timestamp:i64 key_size:i32 key value_size:i32 value header*
    header        := name_size:i16 name value_size:i32 value
    Batch         := size:i32 api_key:i16=259 version:i16=0 flags:i16=0 message*      of the kinds above

Big-endian, signed, no padding. `size` counts the whole datagram, itself included; `value`, the last header
or the last message of a batch ends where the datagram ends. AnyPartition and PartitionKey are the input
format of Bruce 1.0 and Dory 3.2. Segments store each message as it was received, without its batch, so
everything that reads a segment parses this too.

A Message says by its flags what its number is: 0 nothing, and the number is 0; 4 a partition key; 8 a
partition. A size of -1 makes its key, its value or the value of a header null. It has up to 256 headers,
whose names are UTF-8 of up to 255 bytes, without a zero byte. A batch has 1 to 256 messages. It is accepted
as a whole, or refused as a whole for the first thing in it that is wrong.

Example: topic `t`, timestamp 0, no key, no value:

    0000001d 0100 0000 0000 0001 74 0000000000000000 00000000 00000000

On a stream messages are one behind the other. A connection that bruce ends for what came, or did not come in
time, has one byte before its end: the number of the reason, 21 bad_size, 22 too_long, 23 unclean, 24 tls,
25 http, 28 user_limit, 29 too_slow. Else there is nothing to read before the end.

The order of the checks is Bruce's, so that a datagram wrong in two ways is counted under the same name:
length, size, api key, version, then field by field.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from bruce_client.message import (
    BATCH_HEAD_BYTES,
    MAX_BATCH,
    MAX_DATAGRAM_BYTES,
    MAX_HEADERS,
    MAX_NAME_BYTES,
    encode,
    encode_batch,
    encode_message,
)
from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, load_u8, load_u16

__all__ = [
    "BATCH_HEAD_BYTES",
    "BY_PARTITION",
    "BY_PARTITION_KEY",
    "DEAD_LETTERED",
    "KIND_AT",
    "MAX_BATCH",
    "MAX_DATAGRAM_BYTES",
    "MAX_HEADERS",
    "MAX_NAME_BYTES",
    "MESSAGE_FLAGS_AT",
    "NAME_SIZE_BYTES",
    "NULL",
    "NUMBER_AT",
    "NUMBER_BYTES",
    "REASONS",
    "REST_BYTES",
    "SIZE_BYTES",
    "TIMESTAMP_BYTES",
    "TOPIC_AT",
    "TOPIC_SIZE_BYTES",
    "Kind",
    "Reason",
    "check",
    "check_headers",
    "check_message",
    "count_messages",
    "encode",
    "encode_batch",
    "encode_message",
    "first_wrong",
    "is_batch",
    "is_text",
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
    """None of those that are known here."""
    API_VERSION = 4
    FLAGS = 5
    """Flags that are not known, or a number that they do not speak of."""
    TOPIC = 6
    """No topic, or one that runs past the end."""
    TIMESTAMP = 7
    """The datagram ends before or inside the timestamp."""
    KEY = 8
    """A negative key length that is not null's, or a key that runs past the end."""
    VALUE = 9
    """A negative value length that is not null's, or one that is not what is left, or more than is left."""
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
    """A batch of too many messages; or, on a stream, a size field above the limit, which ended it."""
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
    HEADERS = 31
    """A header that runs past the end, a name that is too long or not text, or too many headers."""
    PARTITION = 32
    """It names a partition that its topic does not have."""


class Kind(IntEnum):
    """The low byte of an api key: the kind of the datagram."""

    ANY_PARTITION = 0
    PARTITION_KEY = 1
    MESSAGE = 2
    BATCH = 3


_API_KEY_AT, _API_VERSION_AT, MESSAGE_FLAGS_AT = 4, 6, 8
_BEGINNING_BYTES = MESSAGE_FLAGS_AT
"""Of size, api key and version: no datagram is checked without them."""
BY_PARTITION_KEY, BY_PARTITION = 4, 8
"""The flags of a Message whose number is a partition key, or a partition."""
NULL = -1
"""As a size: null, and not nothing."""
KIND_AT = 5
"""The low byte of the api key: a Kind."""
TOPIC_AT = NUMBER_AT = 10
"""The topic's length is NUMBER_BYTES further on in all kinds but AnyPartition."""
NUMBER_BYTES = 4
TOPIC_SIZE_BYTES = 2
"""Of the length before a topic."""
TIMESTAMP_BYTES, SIZE_BYTES, NAME_SIZE_BYTES = 8, 4, 2
"""Behind the topic: of the timestamp; of the length before a key or a value; before a header's name."""
REST_BYTES = TIMESTAMP_BYTES + 2 * SIZE_BYTES
"""Behind the topic of a message with neither key nor value."""
_ANY_PARTITION, _PARTITION_KEY, _MESSAGE, _BATCH = 0x0001, 0x0101, 0x0201, 0x0301
"""The api keys 256 to 259, read from their big-endian bytes by one load in the host's order."""

_SHORT, _SIZE = int(Reason.SHORT), int(Reason.SIZE)
_API_KEY, _API_VERSION, _FLAGS = int(Reason.API_KEY), int(Reason.API_VERSION), int(Reason.FLAGS)
_TOPIC, _TIMESTAMP = int(Reason.TOPIC), int(Reason.TIMESTAMP)
_KEY, _VALUE, _HEADERS = int(Reason.KEY), int(Reason.VALUE), int(Reason.HEADERS)
_TOO_LONG = int(Reason.TOO_LONG)
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


@subkernel
def load_be16(at: Address) -> int:
    """The big-endian, signed 16-bit integer at an address."""
    value = (load_u8(at) << 8) | load_u8(at + 1)
    return value - ((value >> 15) << 16)


@subkernel
def load_be64(at: Address) -> int:
    """The big-endian, signed 64-bit integer at an address."""
    return (load_be32(at) << 32) | (load_be32(Address(at + 4)) & 0xFFFFFFFF)


@subkernel
def topic_at(datagram: Address) -> Address:
    """The address of the topic's length, an i16, in a well-formed message; the topic is behind it."""
    return Address(datagram + TOPIC_AT + (NUMBER_BYTES if load_u8(datagram + KIND_AT) != 0 else 0))


@subkernel
def is_batch(at: Address, length: int) -> bool:
    """Whether the datagram of `length` bytes at address `at` says that it is a batch."""
    return length >= _BEGINNING_BYTES and load_u16(at + _API_KEY_AT) == _BATCH


@kernel
def check(at: Address, length: int) -> int:
    """The Reason to refuse the message or batch of `length` bytes at address `at`; 0 accepts it."""
    return first_wrong(at, length)[0]


@subkernel
def first_wrong(at: Address, length: int) -> tuple[int, Address]:
    """The Reason to refuse what is at address `at`, and where the first message that is wrong begins.

    (0, the address behind it all) accepts it.
    """
    if not is_batch(at, length):
        return check_message(at, length), at
    if load_be32(at) != length:
        return _SIZE, at
    if load_u16(at + _API_VERSION_AT) != 0:
        return _API_VERSION, at
    if length < BATCH_HEAD_BYTES or load_u16(at + MESSAGE_FLAGS_AT) != 0:
        return _FLAGS, at
    end, one = Address(at + length), Address(at + BATCH_HEAD_BYTES)
    for _ in range(MAX_BATCH):
        left = end - one
        if left < _BEGINNING_BYTES:
            return _SHORT, one
        size = load_be32(one)
        if size > left:
            return _SIZE, one
        wrong = check_message(one, size)
        if wrong != 0:
            return wrong, one
        one = Address(one + size)
        if one == end:
            return 0, one
    return _TOO_LONG, at


@subkernel
def count_messages(at: Address, length: int) -> int:
    """How many messages a batch of `length` bytes has, as far as their sizes say; at least one."""
    one, end, count = Address(at + BATCH_HEAD_BYTES), Address(at + length), 0
    while end - one >= _BEGINNING_BYTES:
        size = load_be32(one)
        if size < _BEGINNING_BYTES or size > end - one:
            break
        one = Address(one + size)
        count += 1
    return max(count, 1)


@subkernel
def check_message(at: Address, length: int) -> int:
    """The Reason to refuse the message of `length` bytes at address `at`; 0 accepts it."""
    if length < _BEGINNING_BYTES:
        return _SHORT
    if load_be32(at) != length:
        return _SIZE
    api = load_u16(at + _API_KEY_AT)
    if api != _ANY_PARTITION and api != _PARTITION_KEY and api != _MESSAGE:
        return _API_KEY
    if load_u16(at + _API_VERSION_AT) != 0:
        return _API_VERSION
    fixed = TOPIC_AT if api == _ANY_PARTITION else TOPIC_AT + NUMBER_BYTES
    if length < TOPIC_AT:
        return _FLAGS
    if (api == _MESSAGE or load_u16(at + MESSAGE_FLAGS_AT) != 0) and not _are_flags(at, length, api):
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
    left -= TIMESTAMP_BYTES + SIZE_BYTES
    if api == _MESSAGE:
        return _check_content(at_key, left)
    key = load_be32(at_key)
    if key < 0 or key > left:
        return _KEY
    left -= key
    if left < SIZE_BYTES:
        return _VALUE
    if load_be32(Address(at_key + SIZE_BYTES + key)) != left - SIZE_BYTES:
        return _VALUE
    return 0


@subkernel
def _are_flags(at: Address, length: int, api: int) -> bool:
    """Whether the flags of the message at address `at` are those of a Message, and fit its number."""
    flags = load_be16(Address(at + MESSAGE_FLAGS_AT))
    if flags == 0:
        return length < NUMBER_AT + NUMBER_BYTES or load_be32(Address(at + NUMBER_AT)) == 0
    return api == _MESSAGE and flags in (BY_PARTITION_KEY, BY_PARTITION)


@subkernel
def _check_content(at: Address, left: int) -> int:
    """KEY, VALUE or HEADERS if these of a Message are wrong; else 0.

    `at`: address of the size of its key, behind which it has `left` bytes.
    """
    key = load_be32(at)
    if key < NULL or key > left:
        return _KEY
    at = Address(at + SIZE_BYTES + max(key, 0))
    left -= max(key, 0) + SIZE_BYTES
    if left < 0:
        return _VALUE
    value = load_be32(at)
    if value < NULL or value > left:
        return _VALUE
    return check_headers(Address(at + SIZE_BYTES + max(value, 0)), left - max(value, 0))


@subkernel
def check_headers(at: Address, left: int) -> int:
    """HEADERS if the `left` bytes at address `at` are not up to MAX_HEADERS headers; else 0."""
    for _ in range(MAX_HEADERS):
        if left == 0:
            return 0
        if left < NAME_SIZE_BYTES:
            return _HEADERS
        name = load_be16(at)
        left -= NAME_SIZE_BYTES + name + SIZE_BYTES
        if not 0 <= name <= MAX_NAME_BYTES or left < 0 or not is_text(Address(at + NAME_SIZE_BYTES), name):
            return _HEADERS
        at = Address(at + NAME_SIZE_BYTES + name)
        value = load_be32(at)
        if value < NULL or value > left:
            return _HEADERS
        value = max(value, 0)
        at = Address(at + SIZE_BYTES + value)
        left -= value
    return 0 if left == 0 else _HEADERS


@subkernel
def is_text(at: Address, length: int) -> bool:
    """Whether the bytes are UTF-8, by the table in section 4 of RFC 3629, without a zero byte."""
    i = 0
    while i < length:
        byte = load_u8(at + i)
        i += 1
        if 0 < byte < 0x80:
            continue
        more, least, most = 0, 0x80, 0xBF
        if 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            least = 0xA0 if byte == 0xE0 else 0x80
            most = 0x9F if byte == 0xED else 0xBF
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            least = 0x90 if byte == 0xF0 else 0x80
            most = 0x8F if byte == 0xF4 else 0xBF
        if more == 0 or more > length - i:
            return False
        for _ in range(more):
            byte = load_u8(at + i)
            if byte < least or byte > most:
                return False
            least, most = 0x80, 0xBF
            i += 1
    return True


def split_topic(datagram: bytes) -> tuple[bytes, bytes, bytes]:
    """(bytes before the topic's length, topic, bytes behind it) of a datagram that was accepted."""
    at = TOPIC_AT + NUMBER_BYTES * (datagram[KIND_AT] != Kind.ANY_PARTITION)
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
