"""Errors on the way to Kafka: ours, and the codes of Kafka and librdkafka.

    DispatchError
      NoLibrary          librdkafka is not there, or of a version we have not tried
      BadProperty        a property that librdkafka, or our contract, refuses: key
      Unreachable        the cluster did not answer in time, or answered with an error: code
      EmbeddedFailed     the embedded Kafka did not start, or refused a command

A message that fails is no exception: its outcome carries Kafka's error code, and `dispatch.retry`
says what follows from it. Each text here is one sentence that says what, where and what to do.

`Code` has the codes of Kafka (positive) and of librdkafka itself (negative) that a producer can be told.
The numbers are those of `rd_kafka_resp_err_t`; the positive ones are fixed by Kafka's protocol. Codes that
only consumers, transactions' coordinators among themselves, or administrators see are not here.
"""

from __future__ import annotations

from enum import IntEnum


class DispatchError(Exception):
    """Anything dispatch refuses or cannot do."""


class NoLibrary(DispatchError):
    """librdkafka is missing, or of a version we have not tried."""


class BadProperty(DispatchError):
    """A Kafka property that cannot be used. `key` is the property's name."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key


class Unreachable(DispatchError):
    """The cluster's metadata could not be fetched. `code` is Kafka's error code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class EmbeddedFailed(DispatchError):
    """The embedded Kafka did not start, or refused a command."""


class Code(IntEnum):
    """The error codes that `dispatch.retry` decides about, by name."""

    BAD_MSG = -199
    BAD_COMPRESSION = -198
    DESTROY = -197
    FAIL = -196
    TRANSPORT = -195
    CRIT_SYS_RESOURCE = -194
    RESOLVE = -193
    MSG_TIMED_OUT = -192
    UNKNOWN_PARTITION = -190
    FS = -189
    UNKNOWN_TOPIC = -188
    ALL_BROKERS_DOWN = -187
    INVALID_ARG = -186
    TIMED_OUT = -185
    QUEUE_FULL = -184
    ISR_INSUFFICIENT = -183
    NODE_UPDATE = -182
    SSL = -181
    WAIT_COORDINATOR = -180
    IN_PROGRESS = -178
    PREVIOUS_IN_PROGRESS = -177
    CONFLICT = -173
    STATE = -172
    UNKNOWN_PROTOCOL = -171
    NOT_IMPLEMENTED = -170
    AUTHENTICATION = -169
    OUTDATED = -167
    TIMED_OUT_QUEUE = -166
    UNSUPPORTED_FEATURE = -165
    WAIT_CACHE = -164
    INTERRUPTED = -163
    PARTIAL = -158
    NO_ENTRY = -156
    UNDERFLOW = -155
    INVALID_TYPE = -154
    RETRY = -153
    PURGE_QUEUE = -152
    PURGE_INFLIGHT = -151
    FATAL = -150
    INCONSISTENT = -149
    GAPLESS_GUARANTEE = -148
    UNKNOWN_BROKER = -146
    NOT_CONFIGURED = -145
    FENCED = -144
    APPLICATION = -143
    INVALID_DIFFERENT_RECORD = -138
    DESTROY_BROKER = -137
    UNKNOWN = -1
    NONE = 0
    INVALID_MSG = 2
    UNKNOWN_TOPIC_OR_PART = 3
    INVALID_MSG_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MSG_SIZE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    TOPIC_AUTHORIZATION_FAILED = 29
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE = 45
    DUPLICATE_SEQUENCE = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_EXPIRED = 66
    LISTENER_NOT_FOUND = 72
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTION_ABORTABLE = 120
    REBOOTSTRAP_REQUIRED = 129


def name_of(code: int) -> str:
    """The name of the code, for a log; its number when it has no name here."""
    return Code(code).name.lower() if code in Code.__members__.values() else str(code)
