"""The bytes of a segment, version 4. No I/O happens here.

    segment := header frame* [footer] zeros
    frame   := head body pad                        pad: zeros up to a multiple of 8

Little-endian throughout. `xxh3` is XXH3-64 of the xxHash library; a `digest` is an xxh3 that is seeded
with the digest before it XOR the segment's key, so that a missing, swapped or stale frame cannot pass for a
good one.

Each header has a secret, 16 random bytes that the segments of a spool share. The segment's keys are the 12
bytes of BLAKE2b (RFC 7693) of `first_sequence` as u64, keyed with the secret: `key` is the first 8 of them,
`mark` the last 4. Every frame begins with the mark, and all checks behind the header are seeded with the key.
A sender who knows everything but the contents of the spool's files knows neither, so no bytes in a message
pass for a frame or a footer, and no frame passes for one of another segment.

Header, 384 bytes, at offset 0:

    0    magic           8 bytes   "bruceseg"
    8    version         u32       4
    12   header_bytes    u32       384
    16   spool           16 bytes  uuid of the spool
    32   boot            16 bytes  boot id of the host when the segment was taken into use
    48   number          u64       segment number, from 1, without holes
    56   first_sequence  i64       of its first message; -1 while it is a spare
    64   previous        u64       digest of the last frame before it, 0 for the first segment
    72   created_ns      u64       ns since the epoch
    80   stored          u64       messages in all earlier segments
    88   burst           u64       number of the last burst before it
    96   discarded       u64[32]   messages discarded at intake before it, by reason (wire.Reason)
    352  secret          16 bytes
    368  zero            8 bytes
    376  check           u64       xxh3 of bytes 0 to 375, seed 0

Frame head, 64 bytes, at a multiple of 8. One frame holds one burst of the intake:

    0    digest          u64       xxh3 of bytes 8 of the head to the end of the body, seeded with `previous`
                                   XOR `key`
    8    mark            u32       the segment's `mark`
    12   head_bytes      u16       64
    14   flags           u16       1: uids, 2: pids, 4: salvaged after a crash, 8: a burst given up as poison,
                                   16: the sample of a discard row begins with the sender's uid:u32
    16   count           u32       messages stored
    20   discarded       u32       datagrams refused
    24   body_bytes      u32       without the padding
    28   discard_bytes   u32       of the discard rows at the end of the body
    32   first_sequence  u64       sequence number of its first message
    40   burst           u64       rises from frame to frame; bursts that the ledger took leave holes
    48   received_ns     u64       ns since the epoch
    56   previous        u64       digest of the frame before it; of the header's `previous` for the first

    body := length:u32[count] [uid:u32[count]] [pid:u32[count]] datagrams discard_row*
    discard_row := reason:u16 sample_bytes:u16 count:u32 sample     one a reason and sender, of over_quota
                                                                    one a topic, too; sample: first bytes
                                                                    of the first datagram

The digest is stored last: a frame whose digest is right was written whole. Eight zero bytes where a
frame could begin end the log. A datagram's own bytes are specified in spool.format.wire.

Footer, written when a segment is sealed, behind the last frame; the file then ends with it:

    footer := magic:"bruceftr" version:u32=4 marks:u32 topics:u32 blocks:u32
              end:u64 count:u64 next_sequence:u64 digest:u64 burst:u64
              first_received_ns:u64 last_received_ns:u64 first_timestamp:i64 last_timestamp:i64
              discarded:u64[32]                       of this segment
              mark:(offset:u64 first_sequence:u64 received_ns:u64)[marks]
              topic:(name_bytes:u16 count:u64 first_timestamp:i64 last_timestamp:i64 name)[topics]
              sum:(content:u64 times:u32 count:u32)[blocks]
              check:u64 footer_bytes:u64 magic:"brucefin"

`end` is the offset behind the last frame, at which the footer begins. A footer elsewhere is another
segment's, or this one's when it ended sooner, and is not believed. A mark names a frame; the first frame
has one, and so has the first after every 64 KiB. The first 10,000 topics with names of at most 249 bytes have
a row each, as far as these fit in a 32nd of the bytes before the footer (4 KiB where that is more); a last
row without a name counts all other topics together. Timestamps are the senders' (ms). A block has the
sequences from 4,096 * n on. There is a sum for the block of the segment's first sequence, and for each up to
that of its last message: of the words of the block's messages in this segment, and of their time words
(spool.format.message_hash), modulo 2^64 and 2^32; `count` is how many these are. `check` is the xxh3 of the
footer before it, seeded with `key`. No reader takes more than 64 MiB for a footer, and of this version no
more than twice that 32nd for its topics, marks and sums.

Version 1 has no secret: its `mark` is "bfrm" and its `key` 0. A sender can put a frame of version 1 into a
message. So behind damage a frame of version 1 is believed only where the digest of a frame that the spool
wrote leads to it (spool.format.version_1). Its footers list all topics. A frame without flag 16 has one
discard row a reason, of all senders.

Version 2 has no messages of the kind Message (spool.format.wire), and at most 512 messages in a frame.

Versions before 4 have no sums: `blocks` is 0.

Versions: a reader refuses a version above its own (UnknownVersion) and reads every one below. Every version
keeps the first 12 bytes of the header and its check, so that a reader can tell a later one from a damaged
one.

Example: an empty frame, burst 7, one datagram refused as too short, received at 0:

    digest.. mark.... 4000 0000 00000000 01000000 08000000 08000000 ...  0100 0000 01000000
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spool.errors import BadSpool, UnknownVersion
from spool.format.wire import MAX_BATCH, MAX_DATAGRAM_BYTES, REASONS
from spool.native.digest import digest

VERSION = 4
MAGIC = b"bruceseg"
SECRET_BYTES = 16
FOOTER_MAGIC = b"bruceftr"
FOOTER_END = b"brucefin"

HEADER_BYTES = 384
HEAD_BYTES = 64
MARK_BYTES = 64 * 1024
"""Distance of the footer's marks."""
MAX_TOPICS = 10_000
"""Most topics that a footer lists by name."""
MAX_TOPIC_BYTES = 249
"""Longer names are not listed: Kafka takes none."""
UNLISTED = b""
"""The name in the row of all topics that a footer does not list."""


def topic_room(end: int) -> int:
    """Bytes that topics may take in the footer of a segment whose frames end at offset `end`."""
    return max(4096, end // 32)


MOST_FOOTER_BYTES = 64 << 20
"""No reader takes more for a footer. Those of version 1 have no other bound."""


def most_footer_bytes(version: int, end: int) -> int:
    """Most bytes of a footer of this version in a segment whose frames end at most at offset `end`."""
    if version < 2:  # noqa: PLR2004
        return MOST_FOOTER_BYTES
    rows = 2 * topic_room(end)  # marks and sums take less than topics may
    return min(FOOTER.itemsize + rows + FOOTER_TAIL.itemsize, MOST_FOOTER_BYTES)


SAMPLE_BYTES = 256
"""Bytes kept of one refused datagram, a burst, a reason and a sender."""
ROW_REASON_AT, ROW_SIZE_AT, ROW_COUNT_AT, ROW_UID_AT = 0, 2, 4, 8
"""Offsets in a discard row, for compiled loops; its size is that of what follows the count."""
ROW_HEAD_BYTES = 8
"""Of a discard row, before the sample, or the uid of its sender."""
UID_BYTES = 4
ROW_BYTES = ROW_HEAD_BYTES + UID_BYTES + SAMPLE_BYTES
"""Most bytes of a discard row."""
MAX_BURST = 512
"""Most datagrams in a burst."""
MAX_MESSAGES = MAX_BURST * MAX_BATCH
"""Most messages in a frame, which holds a burst."""
COLUMNS_BYTES = 12
"""Of a message, in the columns of a frame: its length, uid and pid."""
MOST_COLUMNS_BYTES = MAX_BATCH * COLUMNS_BYTES
"""The same of a datagram, at most."""
MAX_BODY_BYTES = MAX_BURST * (MOST_COLUMNS_BYTES + MAX_DATAGRAM_BYTES) + REASONS * ROW_BYTES
"""No frame's body is longer."""


def body_room(segment_bytes: int) -> int:
    """Bytes of the largest frame body that fits in an empty segment."""
    return min(segment_bytes - HEADER_BYTES - HEAD_BYTES - 8, MAX_BODY_BYTES)


def largest_message(segment_bytes: int) -> int:
    """Bytes of the largest message that fits in an empty segment, its size field not counted."""
    return body_room(segment_bytes) - REASONS * ROW_BYTES - MOST_COLUMNS_BYTES - 4


UIDS, PIDS, SALVAGED, POISON, SENDERS = 1, 2, 4, 8, 16

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("header_bytes", "<u4"),
        ("spool", "V16"),
        ("boot", "V16"),
        ("number", "<u8"),
        ("first_sequence", "<i8"),
        ("previous", "<u8"),
        ("created_ns", "<u8"),
        ("stored", "<u8"),
        ("burst", "<u8"),
        ("discarded", "<u8", (REASONS,)),
        ("secret", "V16"),
        ("zero", "V8"),
        ("check", "<u8"),
    ]
)

HEAD = np.dtype(
    [
        ("digest", "<u8"),
        ("mark", "<u4"),
        ("head_bytes", "<u2"),
        ("flags", "<u2"),
        ("count", "<u4"),
        ("discarded", "<u4"),
        ("body_bytes", "<u4"),
        ("discard_bytes", "<u4"),
        ("first_sequence", "<u8"),
        ("burst", "<u8"),
        ("received_ns", "<u8"),
        ("previous", "<u8"),
    ]
)
(
    MARK_AT,
    HEAD_BYTES_AT,
    FLAGS_AT,
    COUNT_AT,
    DISCARDED_AT,
    BODY_BYTES_AT,
    DISCARD_BYTES_AT,
    SEQUENCE_AT,
    BURST_AT,
    RECEIVED_AT,
    PREVIOUS_AT,
) = (int(HEAD.fields[name][1]) for name in (HEAD.names or ())[1:])  # type: ignore[index]
"""Offsets of a head's fields, for compiled loops; its digest is at 0, and is of all behind."""

FOOTER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("marks", "<u4"),
        ("topics", "<u4"),
        ("blocks", "<u4"),
        ("end", "<u8"),
        ("count", "<u8"),
        ("next_sequence", "<u8"),
        ("digest", "<u8"),
        ("burst", "<u8"),
        ("first_received_ns", "<u8"),
        ("last_received_ns", "<u8"),
        ("first_timestamp", "<i8"),
        ("last_timestamp", "<i8"),
        ("discarded", "<u8", (REASONS,)),
    ]
)
MARK = np.dtype([("offset", "<u8"), ("first_sequence", "<u8"), ("received_ns", "<u8")])
_TOPIC = struct.Struct("<HQqq")
"""Bytes of the name, messages, first and last timestamp; the name follows."""
TOPIC_BYTES = _TOPIC.size
SUM = np.dtype([("content", "<u8"), ("times", "<u4"), ("count", "<u4")])
SUM_BITS = 12
BLOCK = 1 << SUM_BITS
"""Sequences of a block, which a SUM is of."""
FOOTER_TAIL = np.dtype([("check", "<u8"), ("footer_bytes", "<u8"), ("magic", "S8")])

SUMS_SINCE = 4
"""The first version whose footers have sums."""

Record = npt.NDArray[Any]
"""One structured value, as a 0-dimensional array of one of the dtypes above."""


class Keys(NamedTuple):
    """The numbers by which the frames and the footer of one segment are known."""

    key: int
    """int64: seeds every check behind the header; 0 in version 1."""
    mark: int
    """uint32: begins every frame."""


OLD_KEYS = Keys(0, int.from_bytes(b"bfrm", "little"))
"""Those of version 1, which everybody knows."""


def keys_from(secret: bytes, first_sequence: int) -> Keys:
    """The keys of the segment of version 2 with this secret and first sequence."""
    data = first_sequence.to_bytes(8, "little", signed=True)
    drawn = hashlib.blake2b(data, digest_size=12, key=secret).digest()
    return Keys(int.from_bytes(drawn[:8], "little", signed=True), int.from_bytes(drawn[8:], "little"))


def keys_of(header: Record) -> Keys:
    """The keys of the segment with this header."""
    if header["version"] < 2:  # noqa: PLR2004
        return OLD_KEYS
    return keys_from(bytes(header["secret"]), int(header["first_sequence"]))


def unsigned(value: int) -> int:
    """An int64 as the uint64 with the same bits."""
    return value & 0xFFFFFFFFFFFFFFFF


def encode_header(**fields: Any) -> bytes:
    """A header with these fields; magic, size and check are filled in, and the version if it is not given."""
    record = np.zeros((), HEADER)
    record["magic"], record["version"], record["header_bytes"] = MAGIC, VERSION, HEADER_BYTES
    for name, value in fields.items():
        record[name] = value
    record["check"] = digest(record.tobytes()[:-8])
    return record.tobytes()


def decode_header(data: bytes, where: object) -> Record:
    """The header at the start of `data`, as a HEADER record.

    Raises BadSpool when it is no whole header, UnknownVersion when a later release wrote it.
    `where` names the file in the message.
    """
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        raise BadSpool(f"{where} is no segment: it does not begin with a segment header")
    record = np.frombuffer(data, HEADER, 1)[0]
    if record["check"] != digest(data[: HEADER_BYTES - 8]):
        raise BadSpool(f"{where} has a damaged segment header; see `brucectl inspect verify`")
    if record["version"] > VERSION:
        raise UnknownVersion(
            f"{where} has format version {record['version']}, this bruce reads up to {VERSION}; "
            "use the release that wrote it, or a newer one"
        )
    return np.asarray(record)


class Footer(NamedTuple):
    """A footer, taken apart."""

    fields: Record
    """FOOTER."""
    marks: Record
    """MARK rows."""
    topics: list[tuple[bytes, int, int, int]]
    """(name, messages, first and last timestamp)."""
    sums: Record
    """SUM rows; none before version 4."""


def encode_footer(
    header: Record,
    fields: dict[str, Any],
    marks: Record,
    topics: list[tuple[bytes, int, int, int]],
    sums: Record,
) -> bytes:
    """The footer of the segment with this header; the arguments are as in Footer."""
    record = np.zeros((), FOOTER)
    record["magic"], record["version"] = FOOTER_MAGIC, header["version"]
    sums = sums if header["version"] >= SUMS_SINCE else sums[:0]
    record["marks"], record["topics"], record["blocks"] = len(marks), len(topics), len(sums)
    for name, value in fields.items():
        record[name] = value
    rows = b"".join(_TOPIC.pack(len(name), *rest) + name for name, *rest in topics)
    data = record.tobytes() + marks.tobytes() + rows + sums.tobytes()
    check = digest(data, unsigned(keys_of(header).key))
    tail = np.array((check, len(data) + FOOTER_TAIL.itemsize, FOOTER_END), FOOTER_TAIL)
    return data + tail.tobytes()


def footer_bytes(tail: bytes) -> int:
    """The length of the footer whose last bytes are `tail`; 0 when no footer ends there."""
    if len(tail) < FOOTER_TAIL.itemsize:
        return 0
    record = np.frombuffer(tail[-FOOTER_TAIL.itemsize :], FOOTER_TAIL)[0]
    length = int(record["footer_bytes"])
    least = FOOTER.itemsize + FOOTER_TAIL.itemsize
    return length if record["magic"] == FOOTER_END and length >= least else 0


def decode_footer(data: bytes, header: Record) -> Footer | None:
    """The whole footer of the segment with this header.

    None when it is damaged, or another segment's. No count in it is believed, whatever its check says.
    """
    if footer_bytes(data) != len(data) or not data.startswith(FOOTER_MAGIC):
        return None
    body, tail = data[: -FOOTER_TAIL.itemsize], np.frombuffer(data[-FOOTER_TAIL.itemsize :], FOOTER_TAIL)[0]
    record = np.frombuffer(body, FOOTER, 1)[0]
    own = digest(body, unsigned(keys_of(header).key)) == tail["check"]
    if not own or record["version"] != header["version"]:
        return None
    topics_at = FOOTER.itemsize + int(record["marks"]) * MARK.itemsize
    sums_at = len(body) - int(record["blocks"]) * SUM.itemsize
    if topics_at > sums_at:
        return None
    topics = _decode_topics(body[:sums_at], topics_at, int(record["topics"]))
    if topics is None:
        return None
    marks = np.frombuffer(body[FOOTER.itemsize : topics_at], MARK)
    return Footer(np.asarray(record), marks, topics, np.frombuffer(body[sums_at:], SUM))


def _decode_topics(data: bytes, at: int, rows: int) -> list[tuple[bytes, int, int, int]] | None:
    """The rows of topics from `at` to the end of the bytes; None when these are not so many rows."""
    topics = []
    for _ in range(rows):
        if at + _TOPIC.size > len(data):
            return None
        size, *rest = _TOPIC.unpack_from(data, at)
        at += _TOPIC.size
        topics.append((data[at : at + size], *rest))
        at += size
    return topics if at == len(data) else None
