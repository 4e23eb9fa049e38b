"""Errors of the Kafka input: Kafka's codes, and what ends a connection."""

from __future__ import annotations

from enum import IntEnum

from ingest.errors import IngestError


class BadRequest(IngestError):
    """Bytes that are no request; they end their connection, as there is no saying what follows them."""


class Code(IntEnum):
    """Kafka's error codes, as its protocol guide names them."""

    NONE = 0
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    INVALID_TOPIC = 17
    NOT_ENOUGH_REPLICAS = 19
    """The one that all clients send again for: what is refused may be taken later."""
    INVALID_REQUIRED_ACKS = 21
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87
