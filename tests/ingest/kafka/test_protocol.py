"""All requests but those to produce: another library's are answered, and it reads the answers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse
from kafka.protocol.sasl import SaslHandshakeRequest, SaslHandshakeResponse

from ingest.kafka.errors import BadRequest, Code
from ingest.kafka.produce import NEWEST, OLDEST
from ingest.kafka.protocol import MOST_OTHER_BYTES, NODE, PRODUCE, Responder, Where, read_header

CLUSTER = "a cluster"
WHERE = Where("127.0.0.7", 19_092)
TOPICS = {"orders": 3, "payments": 1, "new": -int(Code.LEADER_NOT_AVAILABLE)}
PAIRS: dict[int, tuple[Any, Any]] = {
    1: (FetchRequest, FetchResponse),
    3: (MetadataRequest, MetadataResponse),
    10: (FindCoordinatorRequest, FindCoordinatorResponse),
    17: (SaslHandshakeRequest, SaslHandshakeResponse),
    18: (ApiVersionsRequest, ApiVersionsResponse),
    22: (InitProducerIdRequest, InitProducerIdResponse),
}
RANGES = {0: (0, 12), 1: (4, 12), 3: (0, 12), 10: (0, 4), 17: (0, 1), 18: (0, 4), 22: (0, 4)}
"""By API key, the versions that clients find in the list."""
WARNED: list[str] = []


@pytest.fixture(autouse=True)
def warned() -> list[str]:
    """The sentences for the log."""
    WARNED.clear()
    return WARNED


def versions(key: int) -> pytest.MarkDecorator:
    """Each version of an API that is in the list."""
    oldest, newest = RANGES[key]
    return pytest.mark.parametrize("version", range(oldest, newest + 1))


def made(partitions: Callable[[str], int] | None = None) -> Responder:
    """One that knows TOPICS."""
    count = partitions or (lambda name: TOPICS.get(name, -int(Code.UNKNOWN_TOPIC_OR_PARTITION)))
    known = [name for name, count in TOPICS.items() if count > 0]
    return Responder(CLUSTER, count, lambda: known, WARNED.append)


def answer(frame: bytes, responder: Responder | None = None) -> bytes:
    """The answer to a request, as the worker asks for it."""
    view = memoryview(frame)
    return (responder or made()).answer(read_header(view), view, WHERE)


def encoded(request: Any, version: int, correlation: int = 77, client: str | None = "me") -> bytes:
    """A request as kafka-python writes it, without its size."""
    request.with_header(correlation, client)
    return bytes(request.encode(version=version, header=True))


def ask(request: Any, version: int, correlation: int = 77, *, responder: Responder | None = None) -> Any:
    """The answer to a request, as kafka-python reads it."""
    found = answer(encoded(request, version, correlation), responder)
    assert struct.unpack_from(">i", found) == (len(found) - 4,)
    read = PAIRS[request.API_KEY][1].decode(found, version=version, header=True, framed=True)
    assert read.header.correlation_id == correlation
    # Nothing behind it.
    read.with_header(correlation)
    assert bytes(read.encode(header=True, framed=True)) == found
    return read


def head(key: int, version: int, *, flexible: bool = False) -> bytes:
    """The header of a request of a client without a name."""
    return struct.pack(">hhih", key, version, 77, -1) + (b"\0" if flexible else b"")


def is_flexible(key: int, version: int) -> bool:
    """Whether a version of an API has tagged fields."""
    return bool(PAIRS[key][0].flexible_version_q(version))


@versions(18)
@pytest.mark.parametrize("correlation", [0, -1, 1 << 30])
def test_api_versions(version: int, correlation: int) -> None:
    """A client finds the versions of all APIs, and no error."""
    request = ApiVersionsRequest(client_software_name="it", client_software_version="1")
    found = ask(request, version, correlation)
    assert found.error_code == 0
    assert {one.api_key: (one.min_version, one.max_version) for one in found.api_keys} == RANGES
    assert RANGES[PRODUCE][1] == NEWEST


@pytest.mark.parametrize("version", [5, 6, 127, (1 << 15) - 1, -1])
def test_api_versions_too_new(version: int) -> None:
    """A client of a later Kafka is answered in version 0, with an error and the list to choose from."""
    for rest in (b"", b"\xff", b"\0\2c\0\2a\2b\0"):
        frame = answer(struct.pack(">hhi", 18, version, 9) + rest)
        found = ApiVersionsResponse.decode(frame, version=0, header=True, framed=True)
        assert found.header.correlation_id == 9
        assert found.error_code == Code.UNSUPPORTED_VERSION == 35
        assert {one.api_key: (one.min_version, one.max_version) for one in found.api_keys} == RANGES
        assert len(frame) == 4 + 4 + 2 + 4 + 6 * len(RANGES)


def wanted(names: Sequence[str] | None) -> Any:
    """A request for the metadata of these topics."""
    one = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(topics=None if names is None else [one(name=name) for name in names])


def counts(found: Any) -> dict[str, tuple[int, int]]:
    """By topic, its error and how many partitions it has."""
    return {topic.name: (topic.error_code, len(topic.partitions)) for topic in found.topics}


@versions(3)
def test_metadata(version: int) -> None:
    """A client sees each topic that it names, and one broker that leads all, at its own address."""
    found = ask(wanted(["payments", "orders", "none", "new"]), version)
    assert [(one.node_id, one.host, one.port) for one in found.brokers] == [(NODE, *WHERE)]
    assert counts(found) == {"payments": (0, 1), "orders": (0, 3), "none": (3, 0), "new": (5, 0)}
    orders = found.topics[1]
    assert [(one.error_code, one.partition_index) for one in orders.partitions] == [(0, 0), (0, 1), (0, 2)]
    assert all(
        (one.leader_id, one.replica_nodes, one.isr_nodes) == (NODE, [NODE], [NODE])
        for one in orders.partitions
    )
    if version >= 1:
        assert (found.controller_id, found.brokers[0].rack, orders.is_internal) == (NODE, None, False)
    if version >= 2:
        assert found.cluster_id == CLUSTER
    if version >= 3:
        assert found.throttle_time_ms == 0


@versions(3)
def test_metadata_of_all(version: int) -> None:
    """A client that names no list sees all topics that are known; an empty list is none, but in version 0."""
    everything = {"payments": (0, 1), "orders": (0, 3)}
    assert counts(ask(wanted(None), version)) == everything
    assert counts(ask(wanted([]), version)) == ({} if version else everything)


@pytest.mark.parametrize("version", [0, 8, 9])
def test_metadata_of_no_name(version: int) -> None:
    """A topic with an empty name is not known, and not asked for."""
    asked = list[str]()
    found = ask(wanted([""]), version, responder=made(lambda name: asked.append(name) or 1))
    assert (counts(found), asked) == ({"": (3, 0)}, [])


def test_metadata_by_id() -> None:
    """A topic without a name, by its id alone, is not known."""
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=None)])
    assert counts(ask(request, 12)) == {None: (3, 0)}


@versions(22)
def test_producer_ids(version: int) -> None:
    """Each producer gets an id of its own, with a first epoch."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    found = [ask(request, version, number) for number in range(20)]
    assert {(one.error_code, one.producer_epoch) for one in found} == {(0, 0)}
    assert len({one.producer_id for one in found}) == 20
    assert all(0 < one.producer_id < 1 << 62 for one in found)


@versions(22)
def test_no_transactions(version: int, warned: list[str]) -> None:
    """A producer with a transactional id is refused, and the log says why."""
    found = ask(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1), version)
    assert (found.error_code, found.producer_id) == (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)
    assert "bruce takes no transactions" in warned[0]


REFUSED = [Code.GROUP_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(("kind", "sentence"), [(0, "consume from"), (1, "bruce takes no transactions")])
def test_no_coordinator(version: int, kind: int, sentence: str, warned: list[str]) -> None:
    """A client that looks for the coordinator of a group or a transaction hears why there is none."""
    found = ask(FindCoordinatorRequest(key="group", key_type=kind), version)
    assert (found.error_code, found.node_id, found.host, found.port) == (REFUSED[kind], -1, "", -1)
    assert sentence in found.error_message
    assert sentence in warned[0]


@pytest.mark.parametrize(("kind", "sentence"), [(0, "consume from"), (1, "bruce takes no transactions")])
def test_no_coordinators(kind: int, sentence: str) -> None:
    """A client that looks for several coordinators hears it of each."""
    found = ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=["a", "b"]), 4).coordinators
    assert [(one.key, one.error_code, one.node_id, one.host, one.port) for one in found] == [
        (key, REFUSED[kind], -1, "", -1) for key in ("a", "b")
    ]
    assert all(sentence in one.error_message for one in found)


def test_no_coordinator_in_version_0() -> None:
    """The first version, which groups alone use, and which has no room for a sentence, is refused, too."""
    found = ask(FindCoordinatorRequest(key="group"), 0)
    assert (found.error_code, found.node_id, found.host, found.port) == (REFUSED[0], -1, "", -1)


@versions(17)
def test_no_sasl(version: int, warned: list[str]) -> None:
    """A client that wants to log in is refused, and the log says how to set it up."""
    found = ask(SaslHandshakeRequest(mechanism="PLAIN"), version)
    assert (found.error_code, found.mechanisms) == (Code.UNSUPPORTED_SASL_MECHANISM, [])
    assert "PLAINTEXT" in warned[0]


def fetch(topics: Sequence[tuple[str, Sequence[int]]]) -> Any:
    """A request of a consumer."""
    topic = FetchRequest.FetchTopic
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=1,
        min_bytes=1,
        max_bytes=1,
        isolation_level=0,
        session_id=0,
        session_epoch=0,
        forgotten_topics_data=[],
        rack_id="",
        topics=[
            topic(
                topic=name,
                partitions=[topic.FetchPartition(partition=i, fetch_offset=0) for i in partitions],
            )
            for name, partitions in topics
        ],
    )


@versions(1)
def test_no_fetch(version: int, warned: list[str]) -> None:
    """A consumer is refused for each partition, without records, and the log says why."""
    found = ask(fetch([("orders", [0, 2]), ("none", [1]), ("empty", [])]), version)
    assert [(one.topic, [p.partition_index for p in one.partitions]) for one in found.responses] == [
        ("orders", [0, 2]),
        ("none", [1]),
        ("empty", []),
    ]
    parts = [one for topic in found.responses for one in topic.partitions]
    assert {one.error_code for one in parts} == {Code.TOPIC_AUTHORIZATION_FAILED}
    assert not any(one.records for one in parts)
    assert "consume from Kafka's own brokers" in warned[0]
    if version >= 7:
        assert (found.error_code, found.session_id) == (0, 0)


@pytest.mark.parametrize("key", [*(key for key in range(-2, 100) if key not in RANGES), 1 << 14])
def test_unknown_api(key: int) -> None:
    """An API that is not in the list is refused by its number."""
    with pytest.raises(BadRequest, match=f"API key {key} "):
        read_header(memoryview(head(key, 0) + bytes(20)))


@pytest.mark.parametrize("key", [key for key in RANGES if key != 18])
def test_unknown_version(key: int) -> None:
    """A version that is not in the list is refused by its number."""
    oldest, newest = RANGES[key]
    for version in (-(1 << 15), oldest - 1, newest + 1, (1 << 15) - 1):
        with pytest.raises(BadRequest, match=f"version {version} of"):
            read_header(memoryview(head(key, version) + bytes(20)))


@pytest.mark.parametrize("version", range(OLDEST))
def test_old_produce(version: int) -> None:
    """A version of ProduceRequest that is in the list for librdkafka alone is refused."""
    with pytest.raises(BadRequest, match="from before Kafka"):
        read_header(memoryview(head(PRODUCE, version) + bytes(20)))


@pytest.mark.parametrize("key", RANGES)
@pytest.mark.parametrize("client", [None, "", "a client", "é" * 100])
def test_header(key: int, client: str | None) -> None:
    """The header of each version is read whole: the body begins behind it."""
    for version in range(OLDEST if key == PRODUCE else RANGES[key][0], RANGES[key][1] + 1):
        flexible = version >= 9 if key == PRODUCE else is_flexible(key, version)
        name = b"" if client is None else client.encode()
        size = -1 if client is None else len(name)
        data = struct.pack(">hhih", key, version, -5, size) + name + b"\x01\x07\x03abc" * flexible
        assert read_header(memoryview(data + b"body")) == (key, version, -5, len(data))
        for cut in range(len(data)):
            with pytest.raises(BadRequest):
                read_header(memoryview(data[:cut]))


def test_odd_client() -> None:
    """The name of a client that is no text is none of its errors; one beyond the end is."""
    assert read_header(memoryview(struct.pack(">hhih", 3, 0, 1, 2) + b"\xff\xfe")) == (3, 0, 1, 12)
    for size in (1, 100, (1 << 15) - 1):
        with pytest.raises(BadRequest):
            read_header(memoryview(struct.pack(">hhih", 3, 0, 1, size)))


NO_KEYS = FindCoordinatorRequest(key="", key_type=0, coordinator_keys=[])
BODIES = [
    ApiVersionsRequest(client_software_name="it", client_software_version="1"),
    wanted(["orders", "none"]),
    wanted(None),
    InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000),
    FindCoordinatorRequest(key="group", key_type=1, coordinator_keys=["a", "b"]),
    NO_KEYS,
    SaslHandshakeRequest(mechanism="PLAIN"),
    fetch([("orders", [0, 2]), ("none", [1])]),
]


FRAMES = [
    encoded(request, version)
    for request in BODIES
    for version in range(RANGES[request.API_KEY][0], RANGES[request.API_KEY][1] + 1)
]
"""A request of each kind in each version."""


def check(frame: bytes, responder: Responder | None = None) -> None:
    """It is answered, or refused; anything else would end the worker."""
    try:
        answer(frame, responder)
    except BadRequest:
        return


def test_cut_short() -> None:
    """A request that is cut short is refused, or read as a shorter one, wherever it is cut."""
    for frame in FRAMES:
        for cut in range(len(frame)):
            check(frame[:cut])


def test_cut_fields() -> None:
    """A request that ends before its last field is refused."""
    for frame in FRAMES:
        header = read_header(memoryview(frame))
        if header.api != 18 and len(frame) - header.body > 4:
            with pytest.raises(BadRequest):
                answer(frame[: header.body + 1])


NULLS = [
    (1, 4, struct.pack(">iiiibi", -1, 0, 0, 0, 0, -1)),
    (1, 4, struct.pack(">iiiibihsi", -1, 0, 0, 0, 0, 1, 1, b"t", -1)),
    (1, 12, struct.pack(">iiiibii", -1, 0, 0, 0, 0, 0, 0) + b"\0\1\1\0"),
    (10, 4, b"\0\0\0"),
]
"""Requests with null for a list that is never null."""
LONG = b"\xff" * 12 + b"\x01"
HUGE = [(10, 3, LONG + bytes(4)), (22, 2, LONG + bytes(10)), (22, 4, LONG + bytes(20))]
"""Requests with a string of more bytes than there are addresses."""


@given(st.sampled_from(sorted(PAIRS)), st.integers(0, 12), st.binary(max_size=60))
@example(*NULLS[0])
@example(*HUGE[0])
@settings(max_examples=500)
def test_any_body(key: int, version: int, body: bytes) -> None:
    """Any bytes at all behind a header are answered or refused."""
    version = min(max(version, RANGES[key][0]), RANGES[key][1])
    check(head(key, version, flexible=is_flexible(key, version)) + body)


@given(st.integers(0, len(FRAMES) - 1), st.integers(0, 200), st.integers(0, 255))
@example(FRAMES.index(encoded(NO_KEYS, 4)), 1, 0)
@settings(max_examples=500)
def test_damage(number: int, at: int, byte: int) -> None:
    """A request with a byte changed is answered or refused."""
    frame = bytearray(FRAMES[number])
    begin = read_header(memoryview(FRAMES[number])).body
    if begin < len(frame):
        frame[begin + at % (len(frame) - begin)] = byte
    check(bytes(frame))


@pytest.mark.parametrize(("key", "version", "body"), NULLS + HUGE)
def test_hostile_bodies(key: int, version: int, body: bytes) -> None:
    """A null for a list, and a size beyond all addresses, are refused."""
    with pytest.raises(BadRequest):
        answer(head(key, version, flexible=is_flexible(key, version)) + body)


@pytest.mark.parametrize(
    ("key", "version", "begin", "one"),
    [
        (3, 0, struct.pack(">i", (1 << 31) - 1), b"\0\0"),
        (3, 9, b"", b"\xff"),
        (3, 9, b"\x02", b"\xff"),
        (10, 4, b"\0", b"\xff"),
        (3, 9, b"\xff\xff\x7f", b"\x01\x01\x00\x00"),
    ],
)
def test_large_hostile_bodies(key: int, version: int, begin: bytes, one: bytes) -> None:
    """Counts and sizes beyond the end are refused in requests as large as any may be."""
    frame = head(key, version, flexible=is_flexible(key, version)) + begin
    with pytest.raises(BadRequest):
        answer(frame + one * ((MOST_OTHER_BYTES - len(frame)) // len(one)))


@pytest.mark.parametrize("version", [1, 9])
def test_one_topic_many_times(version: int) -> None:
    """A topic that is named many times is answered once, as by a broker."""
    found = answer(encoded(wanted(["orders"] * 300), version), made(lambda _name: 100))
    assert len(found) < 10_000


def test_many_coordinators() -> None:
    """A request for thousands of coordinators is refused, or takes no more memory than it has sent."""
    frame = encoded(FindCoordinatorRequest(key_type=0, coordinator_keys=["a"] * 10_000), 4)
    try:
        assert len(answer(frame)) < 10 * len(frame)
    except BadRequest:
        return
