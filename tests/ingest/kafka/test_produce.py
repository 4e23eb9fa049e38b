"""ProduceRequests and their answers are those of another library, and hostile ones are refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from ingest.kafka.errors import BadRequest
from ingest.kafka.produce import (
    FLEXIBLE,
    MOST_PARTS,
    NEWEST,
    OLDEST,
    Answer,
    Part,
    read_request,
    varint,
    write_answer,
)
from ingest.kafka.produce import ProduceRequest as Read
from ingest.kafka.protocol import PRODUCE, Header, frame_of, read_header

VERSIONS = range(OLDEST, NEWEST + 1)
each_version = pytest.mark.parametrize("version", VERSIONS)
_I32S = st.integers(-(1 << 31), (1 << 31) - 1)
_I64S = st.integers(-(1 << 63), (1 << 63) - 1)
_TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=200)
_PARTITIONS = st.lists(st.tuples(_I32S, st.none() | st.binary(max_size=300)), max_size=4)
_TOPICS = st.lists(st.tuples(_TEXT, _PARTITIONS), max_size=4)
Topics = Sequence[tuple[str, Sequence[tuple[int, bytes | None]]]]
SOME: Topics = [("orders", [(0, b"records"), (7, None)]), ("payments", [(1, b"x" * 200)])]


def encoded(
    version: int,
    topics: Topics,
    *,
    transactional: str | None = None,
    acks: int = -1,
    timeout_ms: int = 30_000,
    correlation: int = 5,
    client: str | None = "client",
) -> bytes:
    """A request as kafka-python writes it, without its size."""
    topic = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=transactional,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            topic(
                name=name,
                partition_data=[topic.PartitionProduceData(index=i, records=r) for i, r in partitions],
            )
            for name, partitions in topics
        ],
        version=version,
    )
    request.with_header(correlation, client)
    return bytes(request.encode(version=version, header=True))


def read(frame: bytes) -> tuple[Header, Read]:
    """A request as the worker reads it."""
    view = memoryview(frame)
    header = read_header(view)
    return header, read_request(header.version, view, header.body)


def body(version: int, topics: bytes, *, head: bytes | None = None) -> tuple[int, memoryview, int]:
    """The arguments to read a request with these topics; `head`: the bytes before them."""
    null = varint(0) if version >= FLEXIBLE else struct.pack(">h", -1)
    return version, memoryview((null + struct.pack(">hi", 1, 1000) if head is None else head) + topics), 0


@each_version
@given(
    topics=_TOPICS,
    transactional=st.none() | _TEXT,
    acks=st.integers(-(1 << 15), (1 << 15) - 1),
    timeout_ms=_I32S,
    correlation=_I32S,
    client=st.none() | _TEXT,
)
@settings(max_examples=40)
def test_request(
    version: int,
    topics: Topics,
    transactional: str | None,
    acks: int,
    timeout_ms: int,
    correlation: int,
    client: str | None,
) -> None:
    """A request that kafka-python writes is read with all its fields."""
    header, request = read(
        encoded(
            version,
            topics,
            transactional=transactional,
            acks=acks,
            timeout_ms=timeout_ms,
            correlation=correlation,
            client=client,
        )
    )
    assert header[:3] == (PRODUCE, version, correlation)
    assert request == Read(
        transactional is not None,
        acks,
        max(0, timeout_ms) / 1000,
        [Part(name.encode(), i, r or b"") for name, partitions in topics for i, r in partitions],
    )


_ANSWERS = st.builds(Answer, st.integers(-1, 120), _TEXT, _I64S)


@each_version
@given(
    correlation=_I32S,
    topics=st.lists(
        st.tuples(_TEXT, st.lists(st.tuples(_I32S, _ANSWERS), min_size=1, max_size=4)),
        max_size=4,
        unique_by=lambda topic: topic[0],
    ),
)
@settings(max_examples=40)
def test_answer(
    version: int, correlation: int, topics: Sequence[tuple[str, Sequence[tuple[int, Answer]]]]
) -> None:
    """An answer is read by kafka-python with all its fields, behind the header of its request."""
    answers = [
        (Part(name.encode(), i, memoryview(b"")), one) for name, partitions in topics for i, one in partitions
    ]
    frame = frame_of(correlation, write_answer(version, answers))
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    found = ProduceResponse.decode(frame, version=version, header=True, framed=True)
    assert found.header.correlation_id == correlation
    assert found.throttle_time_ms == 0
    assert [
        (topic.name, [(one.index, one.error_code, one.base_offset) for one in topic.partition_responses])
        for topic in found.responses
    ] == [(name, [(i, one.error, one.offset) for i, one in partitions]) for name, partitions in topics]
    for (_part, answer), one in zip(
        answers, [one for topic in found.responses for one in topic.partition_responses], strict=True
    ):
        assert one.log_append_time_ms == -1
        if version >= 5:
            assert one.log_start_offset == 0
        if version >= 8:
            assert (one.record_errors, one.error_message) == ([], answer.message or None)
    # Nothing behind it, and nothing that kafka-python writes otherwise.
    found.with_header(correlation)
    assert bytes(found.encode(header=True, framed=True)) == frame


@each_version
def test_answer_in_turns(version: int) -> None:
    """The partitions of a topic that came in turns with another one are answered together."""
    names = [b"a", b"b", b"a"]
    parts = [(Part(name, i, memoryview(b"")), Answer(offset=i)) for i, name in enumerate(names)]
    found = ProduceResponse.decode(
        frame_of(1, write_answer(version, parts)), version=version, header=True, framed=True
    )
    assert [(one.name, [p.index for p in one.partition_responses]) for one in found.responses] == [
        ("a", [0, 2]),
        ("b", [1]),
    ]


@each_version
def test_cut_short(version: int) -> None:
    """A request that is cut short is refused, wherever it is cut."""
    whole = encoded(version, SOME, transactional="t")
    read(whole)
    for cut in range(len(whole)):
        with pytest.raises(BadRequest):
            read(whole[:cut])


@each_version
@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_any_bytes(version: int, data: bytes) -> None:
    """Any bytes at all are a request, or are refused."""
    try:
        found = read_request(version, memoryview(data), 0)
    except BadRequest:
        return
    assert sum(len(part.records) + len(part.topic) for part in found.parts) <= len(data)


@each_version
@given(st.data())
@settings(max_examples=60)
def test_damage(version: int, data: st.DataObject) -> None:
    """A request with a byte changed is another request, or is refused."""
    whole = bytearray(encoded(version, SOME, transactional="t"))
    at = data.draw(st.integers(10, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    try:
        read(bytes(whole))
    except BadRequest:
        return


def _strings(size: int) -> list[bytes]:
    """Topics whose name, and whose records, have this length, in the form of old versions."""
    topic = struct.pack(">ihs", 1, 1, b"t")
    records = struct.pack(">iii", 1, 0, size) + b"records"
    return [struct.pack(">ih", 1, max(size, -(1 << 15))) + b"name", topic + records]


@pytest.mark.parametrize("size", [-2, -3, -(1 << 15), -(1 << 31), 100, (1 << 15) - 1])
def test_hostile_sizes(size: int) -> None:
    """A name or records of a negative size, or of one beyond the end, are refused."""
    for topics in _strings(size):
        with pytest.raises(BadRequest):
            read_request(*body(3, topics))


@pytest.mark.parametrize("size", [-2, -(1 << 15), 100, (1 << 15) - 1])
def test_hostile_transactional_id(size: int) -> None:
    """A transactional id of a negative size, or of one beyond the end, is refused."""
    with pytest.raises(BadRequest):
        read_request(*body(3, struct.pack(">i", 0), head=struct.pack(">hhi", size, 1, 1)))


@pytest.mark.parametrize(
    "count", [1, MOST_PARTS, MOST_PARTS + 1, (1 << 31) - 1], ids=["one", "most", "more", "huge"]
)
@pytest.mark.parametrize("inner", [False, True])
def test_hostile_counts(count: int, *, inner: bool) -> None:
    """More topics or partitions than there are bytes for are refused."""
    begin = struct.pack(">ihs", 1, 1, b"t") if inner else b""
    with pytest.raises(BadRequest):
        read_request(*body(3, begin + struct.pack(">i", count)))
    begin = b"\x02\x02t" if inner else b""
    with pytest.raises(BadRequest):
        read_request(*body(9, begin + varint(count + 1)))


@pytest.mark.parametrize("count", [-1, -2, -(1 << 31)])
@pytest.mark.parametrize("inner", [False, True])
def test_negative_counts(count: int, *, inner: bool) -> None:
    """Fewer topics or partitions than none are refused: these arrays are never null."""
    begin = struct.pack(">ihs", 1, 1, b"t") if inner else b""
    with pytest.raises(BadRequest):
        read_request(*body(3, begin + struct.pack(">i", count)))


@pytest.mark.parametrize("behind", [b"", b"\0" * 100, b"\xff" * 100])
def test_long_varints(behind: bytes) -> None:
    """A length of more than five bytes is refused, even if its value is small."""
    for length in (b"\x80" * 5 + b"\0", b"\xff" * 5 + b"\x01", b"\xff" * 100):
        for topics in (length, b"\x02" + length, b"\x02\x02t" + length, b"\x02\x02t\x02\0\0\0\0" + length):
            with pytest.raises(BadRequest):
                read_request(*body(9, topics + behind))
        with pytest.raises(BadRequest):
            read_request(*body(9, b"", head=length + behind))


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x07", b"\xff\xff\x7f"])
def test_huge_varints(length: bytes) -> None:
    """Lengths, counts and sizes of tagged fields that reach beyond the end are refused."""
    part = b"\x02\x02t\x02\0\0\0\0"
    for topics in (length, b"\x02" + length, b"\x02\x02t" + length, part + length):
        with pytest.raises(BadRequest):
            read_request(*body(9, topics))
    for tags in (length, b"\x01" + length + length, b"\x01\x07" + length):
        with pytest.raises(BadRequest):
            read_request(*body(9, part + b"\0" + tags))


@pytest.mark.parametrize("version", [OLDEST, FLEXIBLE, NEWEST])
def test_topic_without_a_name(version: int) -> None:
    """A topic whose name is null is refused."""
    with pytest.raises(BadRequest, match="no name"):
        read_request(*body(version, b"\x02\0" if version >= FLEXIBLE else struct.pack(">ih", 1, -1)))


@pytest.mark.parametrize("version", [OLDEST, FLEXIBLE, NEWEST])
def test_most_parts(version: int) -> None:
    """As many partitions as the limit are read, over one topic or several; one more are refused."""
    half = MOST_PARTS // 2
    one: Topics = [("t", [(i, b"r") for i in range(MOST_PARTS)])]
    two: Topics = [(name, [(i, b"r") for i in range(half)]) for name in ("t", "u")]
    for topics in (one, two):
        assert len(read(encoded(version, topics))[1].parts) == MOST_PARTS
        with pytest.raises(BadRequest, match="more than"):
            read(encoded(version, [*topics, ("v", [(0, b"r")])]))
    with pytest.raises(BadRequest, match="more than"):
        read(encoded(version, [("t", [(i, b"r") for i in range(MOST_PARTS + 1)])]))
    with pytest.raises(BadRequest, match="more than"):
        read(encoded(version, [("t", [])] * (MOST_PARTS + 1)))


def uvarint(value: int) -> bytes:
    """A varint without a sign, by the definition."""
    found = []
    while True:
        found.append(value % 128)
        value //= 128
        if not value:
            break
    return bytes([*(one + 128 for one in found[:-1]), found[-1]])


def tags(fields: Sequence[tuple[int, bytes]]) -> bytes:
    """Tagged fields."""
    each = [uvarint(tag) + uvarint(len(data)) + data for tag, data in fields]
    return uvarint(len(fields)) + b"".join(each)


_TAGS = st.lists(st.tuples(st.integers(0, (1 << 32) - 1), st.binary(max_size=200)), max_size=3)


@pytest.mark.parametrize("version", range(FLEXIBLE, NEWEST + 1))
@given(st.tuples(*[_TAGS] * 5))
@settings(max_examples=60)
def test_tagged_fields(version: int, fields: tuple[Sequence[tuple[int, bytes]], ...]) -> None:
    """Tagged fields of the header and of each structure are passed over."""
    header, first, second, topic, request = map(tags, fields)
    frame = (
        struct.pack(">hhih", PRODUCE, version, 9, 1)
        + b"c"
        + header
        + b"\x00"
        + struct.pack(">hi", 1, 1500)
        + b"\x02\x02t\x03"
        + struct.pack(">i", 4)
        + b"\x03ab"
        + first
        + struct.pack(">i", 5)
        + b"\x00"
        + second
        + topic
        + request
    )
    parts = [Part(b"t", 4, memoryview(b"ab")), Part(b"t", 5, memoryview(b""))]
    assert read(frame)[1] == Read(is_transactional=False, acks=1, timeout_s=1.5, parts=parts)


def test_many_tagged_fields() -> None:
    """A request of nothing but tagged fields is refused, before it takes long."""
    with pytest.raises(BadRequest):
        read_request(*body(9, b"\x01" + uvarint(100_000) + b"\0\0" * 100_000))


@given(st.integers(0, (1 << 35) - 1))
def test_varint(value: int) -> None:
    """A varint is written by its definition."""
    assert varint(value) == uvarint(value)
