"""The decision that follows from an error code: one table, no state.

A code that is not in the table is tried again: a message may wait in the spool without limit, and
a code we do not know is no reason to lose one. Nothing is discarded for a cause that can pass.

`router/failures.py` acts on it; how long it pauses is in `router/timing.py`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from dispatch.errors import Code
from spool.format.wire import Reason


class Action(Enum):
    """The next step with a message that was not acknowledged."""

    RETRY = "retry"
    """Send it again; the cause is expected to pass."""
    REFRESH = "refresh"
    """Fetch the metadata, choose its broker again, and send it."""
    DISCARD = "discard"
    """It will never be taken: count it with the reason, and go on."""
    REBUILD = "rebuild"
    """The producer is finished: build a new one and feed it in order from what is unreported."""
    STOP = "stop"
    """Nothing can be sent until somebody changes the configuration or the rights; looked at now and then."""


class Decision(NamedTuple):
    """An action; why, in words; and for DISCARD the reason under which the message is counted."""

    action: Action
    why: str
    reason: Reason = Reason.ACCEPTED


_CONNECTION = Decision(Action.RETRY, "the connection broke, or the broker did not answer in time")
_BUSY = Decision(Action.RETRY, "the broker, or librdkafka, is busy with something that ends by itself")
_REPLICAS = Decision(Action.RETRY, "too few replicas are in sync; they may catch up or come back")
_GARBLED = Decision(Action.RETRY, "the batch arrived garbled; the next copy may not")
_COMPANY = Decision(Action.RETRY, "a bad record in the same batch took this one along, itself sound")
_HERE = Decision(Action.RETRY, "this host lacks something for a moment: memory, a file, a name's address")
_UNCLEAR = Decision(Action.RETRY, "the broker says that something went wrong, and not what")
_ABORTED = Decision(Action.RETRY, "the transaction is aborted; another takes the message again")
_KNOWN = Decision(
    Action.RETRY, "the broker has a message of this number; librdkafka counts that as delivered"
)
_MOVED = Decision(Action.REFRESH, "another broker leads this partition by now, or soon will")
_UNKNOWN = Decision(Action.REFRESH, "the cluster does not know the topic or partition, or not yet")
_FORBIDDEN_TOPIC = Decision(
    Action.REFRESH, "the right to write to the topic is missing; librdkafka asks again with the metadata"
)
_FAILED_DISK = Decision(Action.REFRESH, "the broker cannot use its disk; another may lead the partition soon")
_TOO_LARGE = Decision(Action.DISCARD, "the record is larger than the limits allow", Reason.TOO_LARGE)
_INVALID = Decision(Action.DISCARD, "the topic's rules refuse the record", Reason.INVALID_RECORD)
_FINISHED = Decision(Action.REBUILD, "the producer's numbering and the broker's do not match any more")
_PURGED = Decision(Action.REBUILD, "its producer was ended before it could tell what became of it")
_RIGHTS = Decision(Action.STOP, "the cluster refuses who we are, or what we may do")
_SETTINGS = Decision(Action.STOP, "the broker and our configuration do not go together")
_FENCED = Decision(Action.STOP, "another daemon with the same identity has taken over")

_CODES = {
    _CONNECTION: (
        Code.DESTROY,
        Code.FAIL,
        Code.TRANSPORT,
        Code.ALL_BROKERS_DOWN,
        Code.MSG_TIMED_OUT,
        Code.TIMED_OUT,
        Code.TIMED_OUT_QUEUE,
        Code.DESTROY_BROKER,
        Code.UNKNOWN_BROKER,
        Code.REQUEST_TIMED_OUT,
        Code.BROKER_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
        Code.LISTENER_NOT_FOUND,
        Code.REBOOTSTRAP_REQUIRED,
    ),
    _BUSY: (
        Code.QUEUE_FULL,
        Code.WAIT_COORDINATOR,
        Code.IN_PROGRESS,
        Code.PREVIOUS_IN_PROGRESS,
        Code.CONFLICT,
        Code.STATE,
        Code.OUTDATED,
        Code.WAIT_CACHE,
        Code.INTERRUPTED,
        Code.RETRY,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.STALE_CONTROLLER_EPOCH,
        Code.NOT_CONTROLLER,
        Code.CONCURRENT_TRANSACTIONS,
        Code.TRANSACTION_COORDINATOR_FENCED,
        Code.OPERATION_NOT_ATTEMPTED,
        Code.REASSIGNMENT_IN_PROGRESS,
        Code.STALE_BROKER_EPOCH,
        Code.THROTTLING_QUOTA_EXCEEDED,
    ),
    _REPLICAS: (
        Code.ISR_INSUFFICIENT,
        Code.NOT_ENOUGH_REPLICAS,
        # Appended all the same: idempotence drops the copy that a retry brings.
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ),
    # "Invalid message" is a checksum that did not match on arrival.
    _GARBLED: (
        Code.BAD_MSG,
        Code.BAD_COMPRESSION,
        Code.PARTIAL,
        Code.UNDERFLOW,
        Code.INVALID_MSG,
        Code.INVALID_MSG_SIZE,
        Code.INVALID_REQUEST,
    ),
    _COMPANY: (Code.INVALID_DIFFERENT_RECORD,),
    _HERE: (Code.CRIT_SYS_RESOURCE, Code.FS, Code.RESOLVE),
    _UNCLEAR: (
        Code.UNKNOWN,
        Code.APPLICATION,
        Code.NO_ENTRY,
        Code.INVALID_ARG,
        Code.INVALID_TYPE,
        Code.PRINCIPAL_DESERIALIZATION_FAILURE,
    ),
    _ABORTED: (Code.TRANSACTION_ABORTABLE,),
    _KNOWN: (Code.DUPLICATE_SEQUENCE,),
    _MOVED: (
        Code.NODE_UPDATE,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER,
        Code.REPLICA_NOT_AVAILABLE,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.PREFERRED_LEADER_NOT_AVAILABLE,
        Code.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    ),
    _UNKNOWN: (
        Code.UNKNOWN_TOPIC,
        Code.UNKNOWN_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PART,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
        Code.INVALID_TOPIC,
    ),
    _FORBIDDEN_TOPIC: (Code.TOPIC_AUTHORIZATION_FAILED,),
    _FAILED_DISK: (Code.KAFKA_STORAGE_ERROR, Code.LOG_DIR_NOT_FOUND),
    # librdkafka uses the broker's code for its own `message.max.bytes` as well.
    _TOO_LARGE: (Code.MSG_SIZE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE),
    _INVALID: (Code.INVALID_RECORD, Code.INVALID_TIMESTAMP),
    _FINISHED: (
        Code.FATAL,
        Code.INCONSISTENT,
        Code.GAPLESS_GUARANTEE,
        Code.OUT_OF_ORDER_SEQUENCE,
        Code.INVALID_PRODUCER_EPOCH,
        Code.UNKNOWN_PRODUCER_ID,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.INVALID_TXN_STATE,
    ),
    _PURGED: (Code.PURGE_QUEUE, Code.PURGE_INFLIGHT),
    _RIGHTS: (
        Code.AUTHENTICATION,
        Code.SSL,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Code.SASL_AUTHENTICATION_FAILED,
        Code.DELEGATION_TOKEN_EXPIRED,
    ),
    _SETTINGS: (
        Code.UNKNOWN_PROTOCOL,
        Code.NOT_IMPLEMENTED,
        Code.UNSUPPORTED_FEATURE,
        Code.NOT_CONFIGURED,
        Code.INVALID_REQUIRED_ACKS,
        Code.UNSUPPORTED_SASL_MECHANISM,
        Code.ILLEGAL_SASL_STATE,
        Code.UNSUPPORTED_VERSION,
        Code.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        Code.POLICY_VIOLATION,
        Code.INVALID_TRANSACTION_TIMEOUT,
        Code.SECURITY_DISABLED,
        Code.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    _FENCED: (Code.FENCED, Code.PRODUCER_FENCED),
}
TABLE = {int(code): decision for decision, codes in _CODES.items() for code in codes}
"""By code."""
_UNHEARD_OF = Decision(Action.RETRY, "a code that this release does not know")


def decide(code: int) -> Decision:
    """The decision about a message whose outcome is `code` (not 0).

    A broker that names no record refuses the whole batch with one code: send each message by itself
    before a DISCARD is believed.
    """
    return TABLE.get(code, _UNHEARD_OF)


def needs_people(code: int) -> bool:
    """Whether messages with this outcome wait for somebody who mends configuration or rights."""
    return code == Code.TOPIC_AUTHORIZATION_FAILED or decide(code).action is Action.STOP
