"""Error codes of Kafka (positive) and of librdkafka itself (negative), as far as we tell them apart.

The numbers are those of `rd_kafka_resp_err_t`; the positive ones are fixed by Kafka's protocol.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Codes that a decision depends on; all others are treated alike."""

    UNKNOWN_PARTITION = -190
    UNKNOWN_TOPIC = -188
    QUEUE_FULL = -184
    NODE_UPDATE = -182
    PURGE_QUEUE = -152
    PURGE_INFLIGHT = -151
    FATAL = -150
    INCONSISTENT = -149
    GAPLESS_GUARANTEE = -148
    INVALID_DIFFERENT_RECORD = -138
    NONE = 0
    INVALID_MSG = 2
    UNKNOWN_TOPIC_OR_PART = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER = 6
    MSG_SIZE_TOO_LARGE = 10
    INVALID_TOPIC = 17
    RECORD_LIST_TOO_LARGE = 18
    TOPIC_AUTHORIZATION_FAILED = 29
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    OUT_OF_ORDER_SEQUENCE = 45
    INVALID_PRODUCER_EPOCH = 47
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    INVALID_RECORD = 87
    UNKNOWN_TOPIC_ID = 100
