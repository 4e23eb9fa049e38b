"""Kafka's protocol, as far as a producer needs it: which requests are answered, and how.

To its clients bruce is a cluster of one broker, that is always there and leads every partition. Requests of
consumers, of transactions and of administrators are refused with an error by which their client says what is
wrong. Those that a broker may leave out of its list of APIs are left out: clients name them.

    frame  := size:i32 header body
    header := api_key:i16 api_version:i16 correlation_id:i32 client_id:nullable_string tagged_fields?

The library knows all versions of requests and answers. `ingest.kafka.produce` has the one that is frequent.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

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

from ingest.kafka import produce
from ingest.kafka.errors import BadRequest, Code
from ingest.kafka.produce import Cursor

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, SASL, API_VERSIONS, INIT_PRODUCER = 0, 1, 3, 10, 17, 18, 22
MOST_OTHER_BYTES = 64 << 10
"""Of a request that is no ProduceRequest: the library takes 8 µs for a topic of 2 bytes."""
MOST_KEYS = 100
"""Coordinators in one question, each of which is answered with a sentence."""
_HEADER = struct.Struct(">hhi")
_I16 = struct.Struct(">h")
_FRAME = struct.Struct(">ii")
_SIZE_BYTES, _CORRELATION = 4, struct.Struct(">i")
KEPT_S, MOST_KEPT = 0.1, 256
"""For how long an answer is given again to the same question, and how many are kept."""
NODE = 1
_RACKLESS: dict[str, Any] = {"rack": None}
_CONSUMES = "bruce takes messages for Kafka, and has none to give: consume from Kafka's own brokers"
_TRANSACTS = "bruce takes no transactions: use an idempotent producer, or Kafka's own brokers"
_TRANSACTION = 1
"""The type of coordinator."""


class Header(NamedTuple):
    """The head of a request."""

    api: int
    version: int
    correlation: int
    body: int
    """The offset of the body."""


class Where(NamedTuple):
    """The address that a client came to, which is where it shall send to."""

    host: str
    port: int


Partitions = Callable[[str], int]
"""How many partitions a topic has, or -Code."""


@dataclass(frozen=True, slots=True)
class _Api:
    oldest: int
    newest: int
    request: Any = None
    answer: Any = None


_APIS = {
    # Clients take an oldest version of 0 for a broker that knows all codecs; Kafka 4 says so, too.
    PRODUCE: _Api(0, produce.NEWEST),
    FETCH: _Api(4, 12, FetchRequest, FetchResponse),
    METADATA: _Api(0, 12, MetadataRequest, MetadataResponse),
    FIND_COORDINATOR: _Api(0, 4, FindCoordinatorRequest, FindCoordinatorResponse),
    SASL: _Api(0, 1, SaslHandshakeRequest, SaslHandshakeResponse),
    API_VERSIONS: _Api(0, 4, ApiVersionsRequest, ApiVersionsResponse),
    INIT_PRODUCER: _Api(0, 4, InitProducerIdRequest, InitProducerIdResponse),
}


def read_header(frame: memoryview) -> Header:
    """The header of a request. Raises BadRequest for what is none, or of a version that is not answered."""
    if len(frame) < _HEADER.size:
        raise BadRequest("it has no header")
    api, version, correlation = _HEADER.unpack_from(frame)
    known = _APIS.get(api)
    if known is None:
        raise BadRequest(f"API key {api} is not among those that bruce answers")
    if api == API_VERSIONS and not known.oldest <= version <= known.newest:
        return Header(api, version, correlation, len(frame))
    if api == PRODUCE and version < produce.OLDEST:
        raise BadRequest(f"version {version} of ProduceRequest is of a client from before Kafka 0.11")
    if not known.oldest <= version <= known.newest:
        raise BadRequest(f"version {version} of API key {api} is not among those that bruce answers")
    cursor = Cursor(frame, _HEADER.size, flexible=_is_flexible(api, version))
    # The name that the client gives itself.
    cursor.take(max(0, cursor.number(_I16)))
    cursor.end_structure()
    return Header(api, version, correlation, cursor.at)


def _is_flexible(api: int, version: int) -> bool:
    if api == PRODUCE:
        return version >= produce.FLEXIBLE
    return bool(_APIS[api].request.flexible_version_q(version))


def frame_of(correlation: int, body: bytes) -> bytes:
    """An answer as it goes out; `body`: with the tagged fields of its header."""
    return _FRAME.pack(len(body) + 4, correlation) + body


class Responder:
    """Answers all requests but ProduceRequests."""

    def __init__(
        self,
        cluster: str,
        partitions: Partitions,
        topics: Callable[[], Iterable[str]],
        warn: Callable[[str], None],
    ) -> None:
        """`cluster`: its id. `partitions`: of a topic, or -Code. `topics`: those that are known.

        `warn`: takes a sentence for the log, for each refusal; there are few different ones.
        """
        self._cluster, self._partitions, self._topics, self._warn = cluster, partitions, topics, warn
        self._answers: dict[tuple[object, ...], bytes] = {}
        self._answered_at = 0.0

    def answer(self, header: Header, frame: memoryview, where: Where) -> bytes:
        """The answer to a request. Raises BadRequest."""
        if header.api == INIT_PRODUCER:
            return self._answer(header, frame, where)
        now = time.monotonic()
        if now - self._answered_at >= KEPT_S or len(self._answers) >= MOST_KEPT:
            self._answers.clear()
            self._answered_at = now
        # The same question has the same answer, but for its number; to write one takes 0.1 ms.
        question = header.api, header.version, bytes(frame[header.body :]), where
        found = self._answers.get(question)
        if found is None:
            found = self._answers[question] = self._answer(header, frame, where)
        return found[:_SIZE_BYTES] + _CORRELATION.pack(header.correlation) + found[_FRAME.size :]

    def _answer(self, header: Header, frame: memoryview, where: Where) -> bytes:
        api, version = _APIS[header.api], header.version
        if header.api == API_VERSIONS:
            return self._encode(header, *self._api_versions(version))
        try:
            request = api.request.decode(frame[header.body :], version=version)
        except (ValueError, LookupError, struct.error, TypeError, OverflowError):
            raise BadRequest("its fields run past its end") from None
        fields = {
            FETCH: self._refuse_fetch,
            METADATA: self._metadata,
            FIND_COORDINATOR: self._refuse_coordinator,
            SASL: self._refuse_sasl,
            INIT_PRODUCER: self._producer_id,
        }[header.api](request, version, where)
        return self._encode(header, version, fields)

    @staticmethod
    def _encode(header: Header, version: int, fields: dict[str, Any]) -> bytes:
        answer = _APIS[header.api].answer(version=version, **fields)
        answer.with_header(header.correlation)
        return bytes(answer.encode(header=True, framed=True))

    @staticmethod
    def _api_versions(version: int) -> tuple[int, dict[str, Any]]:
        """A client that asks in a version that is too new asks again in one that it finds here."""
        known = _APIS[API_VERSIONS]
        fits = known.oldest <= version <= known.newest
        one = ApiVersionsResponse.ApiVersion
        apis = [
            one(api_key=key, min_version=api.oldest, max_version=api.newest)
            for key, api in sorted(_APIS.items())
        ]
        error = Code.NONE if fits else Code.UNSUPPORTED_VERSION
        fields: dict[str, Any] = {"error_code": int(error), "api_keys": apis, "throttle_time_ms": 0}
        return version if fits else 0, fields

    def _metadata(self, request: Any, version: int, where: Where) -> dict[str, Any]:
        wanted = request.topics
        if wanted is None or (version == 0 and not wanted):
            names: list[str | None] = [*self._topics()]
        else:
            names = [*dict.fromkeys(topic.name for topic in wanted)]
        topics = []
        for name in names:
            count = self._partitions(name) if name else -Code.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(_topic(name, count))
        broker = MetadataResponse.MetadataResponseBroker(node_id=NODE, **where._asdict(), **_RACKLESS)
        return {
            "throttle_time_ms": 0,
            "brokers": [broker],
            "cluster_id": self._cluster,
            "controller_id": NODE,
            "topics": topics,
        }

    def _producer_id(self, request: Any, _version: int, _where: Where) -> dict[str, Any]:
        if request.transactional_id is not None:
            self._warn(f"a client wants to begin transactions: {_TRANSACTS}")
            return {"error_code": int(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), "producer_id": -1}
        # By chance, as nothing that is kept here outlives the host, and its clients do not either.
        found = int.from_bytes(os.urandom(8), "big") >> 2
        return {"error_code": 0, "producer_id": found or 1, "producer_epoch": 0}

    def _refuse_coordinator(self, request: Any, version: int, _where: Where) -> dict[str, Any]:
        transacts = version > 0 and request.key_type == _TRANSACTION
        sentence = _TRANSACTS if transacts else _CONSUMES
        self._warn(f"a client looks for a coordinator: {sentence}")
        # Those by which both Java's client and librdkafka's end at once, and say why.
        code = Code.CLUSTER_AUTHORIZATION_FAILED if transacts else Code.GROUP_AUTHORIZATION_FAILED
        error = {"error_code": int(code), "error_message": sentence}
        nowhere = {"node_id": -1, "host": "", "port": -1}
        if version < 4:  # noqa: PLR2004  (the first with several keys)
            return {**error, **nowhere}
        one = FindCoordinatorResponse.Coordinator
        if len(keys := _not_null(request.coordinator_keys)) > MOST_KEYS:
            raise BadRequest(f"it asks for {len(keys)} coordinators: expected at most {MOST_KEYS}")
        return {"coordinators": [one(key=key, **nowhere, **error) for key in keys]}

    def _refuse_sasl(self, _request: Any, _version: int, _where: Where) -> dict[str, Any]:
        self._warn("a client wants to log in by SASL, which this input does not have: set PLAINTEXT")
        return {"error_code": int(Code.UNSUPPORTED_SASL_MECHANISM), "mechanisms": []}

    def _refuse_fetch(self, request: Any, _version: int, _where: Where) -> dict[str, Any]:
        kind = FetchResponse.FetchableTopicResponse
        topics = [
            kind(
                topic=topic.topic,
                partitions=[
                    kind.PartitionData(
                        partition_index=partition.partition,
                        error_code=int(Code.TOPIC_AUTHORIZATION_FAILED),
                        high_watermark=-1,
                        aborted_transactions=[],
                        # librdkafka takes null for damage, and asks again without end.
                        records=b"",
                    )
                    for partition in _not_null(topic.partitions)
                ],
            )
            for topic in _not_null(request.topics)
        ]
        self._warn(f"a client wants to consume: {_CONSUMES}")
        return {"error_code": 0, "session_id": 0, "responses": topics}


def _not_null(values: list[Any] | None) -> list[Any]:
    """A list of a request. Raises BadRequest for null."""
    if values is None:
        raise BadRequest("it has null for a list")
    return values


def _topic(name: str | None, count: int) -> Any:
    kind = MetadataResponse.MetadataResponseTopic
    partitions = [
        kind.MetadataResponsePartition(
            error_code=0,
            partition_index=number,
            leader_id=NODE,
            leader_epoch=0,
            replica_nodes=[NODE],
            isr_nodes=[NODE],
            offline_replicas=[],
        )
        for number in range(max(count, 0))
    ]
    return kind(error_code=max(-count, 0), name=name, is_internal=False, partitions=partitions)
