"""A second reader of segments and datagrams, written from the specification alone.

It shares no line with the package: structs by hand, bytes by slices, no kernel. Tests compare the two.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field, replace

import xxhash

HEADER_BYTES = 384


@dataclass(frozen=True)
class Message:
    """One well-formed message. An empty key of the kinds 256 and 257 is a null key."""

    topic: bytes
    timestamp: int
    key: bytes | None
    value: bytes | None
    partition_key: int | None = None
    partition: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass
class Frame:
    """One frame. `rows`: (reason, count, sample); `row_uids`: their senders."""

    offset: int
    flags: int
    sequence: int
    burst: int
    received_ns: int
    previous: int
    digest: int
    discarded: int
    datagrams: list[bytes]
    uids: list[int]
    pids: list[int]
    rows: list[tuple[int, int, bytes]]
    row_uids: list[int | None]


@dataclass
class Segment:
    """One segment file: header fields by name, frames in order, footer fields by name when it has one."""

    header: dict[str, object]
    frames: list[Frame] = field(default_factory=list)
    end: int = HEADER_BYTES
    footer: dict[str, object] | None = None

    def messages(self) -> list[tuple[int, bytes]]:
        """(sequence, datagram) of every message."""
        return [(f.sequence + i, d) for f in self.frames for i, d in enumerate(f.datagrams)]

    def refused(self) -> dict[int, int]:
        """Datagrams refused at intake, by reason."""
        totals: dict[int, int] = {}
        for frame in self.frames:
            for reason, count, _ in frame.rows:
                totals[reason] = totals.get(reason, 0) + count
        return totals


class _Refused(Exception):
    """With the name of the reason."""


def parse_datagram(data: bytes) -> Message | str:
    """The message, or the name of the reason to refuse it: the checks of BRUCE_WIRE.md in their order."""
    try:
        return _parse_message(data)
    except _Refused as reason:
        return str(reason)


def parse(data: bytes) -> list[Message] | str:
    """The messages of a datagram, one or a batch, or the name of the reason to refuse all."""
    try:
        return _parse_batch(data) if _is_batch(data) else [_parse_message(data)]
    except _Refused as reason:
        return str(reason)


def split(data: bytes) -> list[bytes]:
    """The messages of a datagram that is well-formed, each as it is in the log."""
    found, at = [], 10
    while _is_batch(data) and at < len(data):
        found.append(_cut(data, at))
        at += len(found[-1])
    return found or [data]


def count_messages(data: bytes) -> int:
    """How many messages a refused datagram counts as: those of a batch, as far as their sizes go."""
    count, at = 0, 10
    while _is_batch(data) and at + 8 <= len(data):
        size = struct.unpack_from(">i", data, at)[0]
        if not 8 <= size <= len(data) - at:
            break
        count, at = count + 1, at + size
    return max(1, count)


def sample_of(data: bytes) -> bytes:
    """The first bytes of a refused datagram that are kept: of a batch, those of the message that is wrong."""
    head = parse(struct.pack(">i", min(len(data), 10)) + data[4:10]) if _is_batch(data) else ""
    whole = len(data) >= 4 and int.from_bytes(data[:4], "big", signed=True) == len(data)
    at = 0
    # Its head is right: it is called short only because nothing is behind it.
    if whole and head == "short" and parse(data) != "too_long":
        at = 10
        while isinstance(parse(_cut(data, at)), list):
            at += struct.unpack_from(">i", data, at)[0]
    return data[at:][:256]


def _cut(data: bytes, at: int) -> bytes:
    """The message at this place of a batch, as far as its size says; nothing if it has no size that fits."""
    size = int.from_bytes(data[at : at + 4], "big", signed=True)
    return data[at : at + size] if 8 <= size <= len(data) - at and not _is_batch(data[at:]) else b""


def _is_batch(data: bytes) -> bool:
    return len(data) >= 8 and data[4:6] == b"\1\3"


def _demand(what: object, reason: str) -> None:
    if not what:
        raise _Refused(reason)


def _parse_batch(data: bytes) -> list[Message]:
    _demand(struct.unpack_from(">i", data)[0] == len(data), "size")
    _demand(data[6:8] == b"\0\0", "api_version")
    _demand(data[8:10] == b"\0\0", "flags")
    found: list[Message] = []
    rest = data[10:]
    while rest or not found:
        _demand(len(found) < 256, "too_long")
        _demand(len(rest) >= 8, "short")
        length = struct.unpack_from(">i", rest)[0]
        _demand(length <= len(rest), "size")
        found.append(_parse_message(rest[: max(length, 0)]))
        rest = rest[length:]
    return found


def _parse_message(data: bytes) -> Message:
    _demand(len(data) >= 8, "short")
    size, api_key, version = struct.unpack_from(">ihh", data)
    _demand(size == len(data), "size")
    _demand(api_key in (256, 257, 258), "api_key")
    _demand(version == 0, "api_version")
    flags, rest = _take(">h", data[8:])
    _demand(flags == 0 or (api_key == 258 and flags in (4, 8)), "flags")
    # A number cut short leaves nothing for the topic's length, and that length is then missing.
    number, rest = _take(">i", rest) if api_key != 256 else (None, rest)
    _demand(api_key != 258 or flags != 0 or not number, "flags")
    parsed = _parse_rest(rest, long=api_key == 258)
    by_key = api_key == 257 or flags == 4
    return replace(parsed, partition_key=number if by_key else None, partition=number if flags == 8 else None)


def _parse_rest(rest: bytes, *, long: bool) -> Message:
    length, rest = _take(">h", rest)
    _demand(length is not None and 0 < length <= len(rest), "topic")
    topic, rest = rest[:length], rest[length:]
    timestamp, rest = _take(">q", rest)
    _demand(timestamp is not None, "timestamp")
    key, rest = _take_sized(rest, "key", null=long)
    value, rest = _take_sized(rest, "value", null=long)
    _demand(long or not rest, "value")
    headers: list[tuple[str, bytes | None]] = []
    while rest:
        _demand(len(headers) < 256, "headers")
        name, rest = _take_name(rest)
        data, rest = _take_sized(rest, "headers", null=True)
        headers.append((name, data))
    return Message(topic, timestamp or 0, key if long else key or None, value, headers=tuple(headers))


def _take_name(data: bytes) -> tuple[str, bytes]:
    length, rest = _take(">h", data)
    _demand(length is not None and 0 <= length <= min(255, len(rest)), "headers")
    try:
        name = rest[:length].decode()
    except UnicodeDecodeError:
        raise _Refused("headers") from None
    _demand("\0" not in name, "headers")
    return name, rest[length:]


def _take_sized(data: bytes, reason: str, *, null: bool) -> tuple[bytes | None, bytes]:
    """(what a size says, what is behind it)."""
    length, rest = _take(">i", data)
    if length == -1 and null:
        return None, rest
    _demand(length is not None and 0 <= length <= len(rest), reason)
    return rest[:length], rest[length or 0 :]


def _take(code: str, data: bytes) -> tuple[int | None, bytes]:
    size = struct.calcsize(code)
    if len(data) < size:
        return None, b""
    return struct.unpack(code, data[:size])[0], data[size:]


def read_segment(data: bytes) -> Segment:
    """Everything in the bytes of a segment, up to the first bad frame."""
    names = "magic version header_bytes spool boot number first_sequence previous created_ns stored burst"
    values = struct.unpack_from("<8sII16s16sQqQQQQ", data)
    header: dict[str, object] = dict(zip(names.split(), values, strict=True))
    header["discarded"] = list(struct.unpack_from("<32Q", data, 96))
    assert header["magic"] == b"bruceseg"
    assert header["header_bytes"] == HEADER_BYTES
    key, mark = (0, b"bfrm") if header["version"] == 1 else keys(data[352:368], values[6])
    assert data[352 if header["version"] == 1 else 368 : 376].strip(b"\0") == b""
    assert struct.unpack_from("<Q", data, 376)[0] == xxhash.xxh3_64_intdigest(data[:376])
    segment = Segment(header)
    previous = values[7]
    while frame := _read_frame(data, segment.end, previous, key, mark):
        segment.frames.append(frame)
        previous = frame.digest
        body = struct.unpack_from("<I", data, segment.end + 24)[0]
        segment.end += 64 + (body + 7) // 8 * 8
    segment.footer = _read_footer(data, key)
    return segment


def keys(secret: bytes, first_sequence: int) -> tuple[int, bytes]:
    """(seed of all checks, mark of all frames) of a segment of version 2."""
    drawn = hashlib.blake2b(struct.pack("<q", first_sequence), key=secret, digest_size=12).digest()
    return struct.unpack("<Q", drawn[:8])[0], drawn[8:]


def _read_frame(data: bytes, at: int, previous: int, key: int, mark: bytes) -> Frame | None:
    if len(data) < at + 64:
        return None
    (
        digest,
        found_mark,
        head_bytes,
        flags,
        count,
        discarded,
        body_bytes,
        discard_bytes,
        sequence,
        burst,
        received,
        before,
    ) = struct.unpack_from("<Q4sHHIIIIQQQQ", data, at)
    end = at + 64 + body_bytes
    if found_mark != mark or head_bytes != 64 or before != previous or (end + 7) // 8 * 8 > len(data):
        return None
    if xxhash.xxh3_64_intdigest(data[at + 8 : end], seed=previous ^ key) != digest:
        return None
    at_body = at + 64
    columns = []
    for present in (1, flags & 1, flags & 2):
        columns.append(list(struct.unpack_from(f"<{count}I", data, at_body)) if present else [])
        at_body += 4 * count if present else 0
    datagrams = []
    for length in columns[0]:
        datagrams.append(data[at_body : at_body + length])
        at_body += length
    assert at_body == end - discard_bytes
    rows, row_uids = [], []
    while at_body < end:
        reason, length, number = struct.unpack_from("<HHI", data, at_body)
        sample = data[at_body + 8 : at_body + 8 + length]
        row_uids.append(int.from_bytes(sample[:4], "little") if flags & 16 else None)
        rows.append((reason, number, sample[4:] if flags & 16 else sample))
        at_body += 8 + length
    assert at_body == end
    return Frame(
        at,
        flags,
        sequence,
        burst,
        received,
        before,
        digest,
        discarded,
        datagrams,
        *columns[1:],
        rows,
        row_uids,
    )


def _read_footer(data: bytes, key: int) -> dict[str, object] | None:
    check, length, magic = struct.unpack("<QQ8s", data[-24:])
    if magic != b"brucefin":
        return None
    footer = data[-length:]
    assert footer.startswith(b"bruceftr")
    assert xxhash.xxh3_64_intdigest(footer[:-24], seed=key) == check
    names = (
        "version marks topics blocks end count next_sequence digest burst first_received_ns last_received_ns"
    )
    values = struct.unpack_from("<IIIIQQQQQQQqq32Q", footer, 8)
    named = [*names.split(), "first_timestamp", "last_timestamp"]
    found: dict[str, object] = dict(zip(named, values[:13], strict=True))
    found["discarded"] = list(values[13:])
    at = 8 + struct.calcsize("<IIIIQQQQQQQqq32Q")
    found["marks"] = [struct.unpack_from("<QQQ", footer, at + 24 * i) for i in range(values[1])]
    at += 24 * values[1]
    topics = []
    for _ in range(values[2]):
        size, count, first, last = struct.unpack_from("<HQqq", footer, at)
        topics.append((footer[at + 26 : at + 26 + size], count, first, last))
        at += 26 + size
    found["topics"] = topics
    found["sums"] = [struct.unpack_from("<QII", footer, at + 16 * i) for i in range(values[3])]
    assert at + 16 * values[3] == len(footer) - 24
    return found


def content(message: Message) -> int:
    """The hash of a message's content, unsigned."""
    hashed = _chain(
        message.topic, _length(message.key), _length(message.value), message.key, message.value, seed=42
    )
    own = [(name.encode(), value) for name, value in message.headers if name != "bruce-replay"]
    if own:
        headers = _chain(*(_length(value) for _, value in own), seed=42)
        for name, value in own:
            headers = _chain(name, value, seed=headers)
        hashed = _chain(struct.pack("<Q", headers), seed=hashed)
    return hashed


def word(sequence: int, message: Message) -> int:
    """The word of a message in a sum, unsigned."""
    return _chain(struct.pack("<q", sequence), seed=content(message))


def _chain(*parts: bytes | None, seed: int) -> int:
    for part in parts:
        seed = seed if part is None else xxhash.xxh64_intdigest(part, seed)
    return seed


def _length(part: bytes | None) -> bytes:
    return struct.pack("<i", -1 if part is None else len(part))


def sums(segment: Segment) -> list[tuple[int, int, int]]:
    """(sum of words, of time words, messages) of each block of 4,096 sequences, from the first one's on."""
    first = int(str(segment.header["first_sequence"])) // 4096
    blocks: dict[int, list[int]] = {}
    for sequence, datagram in segment.messages():
        message = parse_datagram(datagram)
        assert isinstance(message, Message)
        row = blocks.setdefault(sequence // 4096 - first, [0, 0, 0])
        sent = struct.pack("<q", message.timestamp or 1)
        row[0] = (row[0] + word(sequence, message)) % (1 << 64)
        row[1] = (row[1] + xxhash.xxh64_intdigest(sent, sequence)) % (1 << 32)
        row[2] += 1
    rows = [blocks.get(at, [0, 0, 0]) for at in range(max(blocks, default=-1) + 1)]
    return [(content, times, count) for content, times, count in rows]
