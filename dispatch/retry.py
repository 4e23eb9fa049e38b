"""What follows from an error code: one table, no state.

Anything not in the table is tried again: a message may wait in the spool for as long as it takes, but
a code we do not know is no reason to lose one.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from dispatch.codes import Code
from spool.wire import Reason


class Action(Enum):
    """What is to be done with a message that was not acknowledged."""

    RETRY = "retry"
    """Send it again; the cause is expected to pass."""
    REFRESH = "refresh"
    """Fetch the metadata, choose its broker anew, and send it again."""
    DISCARD = "discard"
    """It will never be taken: count it with the reason, and go on."""
    REBUILD = "rebuild"
    """The producer is finished: build a new one and feed it in order from what is unreported."""
    STOP = "stop"
    """Nothing can be sent until somebody changes the configuration or the rights."""


class Decision(NamedTuple):
    """An action and, for DISCARD, the reason under which the message is counted."""

    action: Action
    reason: Reason = Reason.ACCEPTED


_RETRY = Decision(Action.RETRY)
_REFRESH = Decision(Action.REFRESH)
_REBUILD = Decision(Action.REBUILD)
_STOP = Decision(Action.STOP)
_TOO_LARGE = Decision(Action.DISCARD, Reason.TOO_LARGE)
_INVALID = Decision(Action.DISCARD, Reason.INVALID_RECORD)

_TABLE = {
    # librdkafka uses the broker's code for its own `message.max.bytes` as well.
    Code.MSG_SIZE_TOO_LARGE: _TOO_LARGE,
    Code.RECORD_LIST_TOO_LARGE: _TOO_LARGE,
    Code.INVALID_RECORD: _INVALID,
    Code.INVALID_TIMESTAMP: _INVALID,
    # Taken along by a bad record in the same batch, itself sound.
    Code.INVALID_DIFFERENT_RECORD: _RETRY,
    # "Invalid message" is a checksum that did not match on arrival: the next copy may.
    Code.INVALID_MSG: _RETRY,
    Code.UNKNOWN_TOPIC: _REFRESH,
    Code.UNKNOWN_PARTITION: _REFRESH,
    Code.UNKNOWN_TOPIC_OR_PART: _REFRESH,
    Code.UNKNOWN_TOPIC_ID: _REFRESH,
    Code.INVALID_TOPIC: _REFRESH,
    Code.LEADER_NOT_AVAILABLE: _REFRESH,
    Code.NOT_LEADER: _REFRESH,
    Code.FENCED_LEADER_EPOCH: _REFRESH,
    Code.UNKNOWN_LEADER_EPOCH: _REFRESH,
    Code.KAFKA_STORAGE_ERROR: _REFRESH,
    Code.NODE_UPDATE: _REFRESH,
    Code.FATAL: _REBUILD,
    Code.PURGE_QUEUE: _REBUILD,
    Code.PURGE_INFLIGHT: _REBUILD,
    Code.INCONSISTENT: _REBUILD,
    Code.GAPLESS_GUARANTEE: _REBUILD,
    Code.OUT_OF_ORDER_SEQUENCE: _REBUILD,
    Code.INVALID_PRODUCER_EPOCH: _REBUILD,
    Code.UNKNOWN_PRODUCER_ID: _REBUILD,
    # The right may be granted while we wait, but librdkafka refuses the topic until metadata says otherwise.
    Code.TOPIC_AUTHORIZATION_FAILED: _REFRESH,
    Code.CLUSTER_AUTHORIZATION_FAILED: _STOP,
}


def decide(code: int) -> Decision:
    """What to do with a message whose outcome is `code` (not 0).

    A broker that names no record refuses the whole batch with one code: send each message by itself
    before a DISCARD is believed.
    """
    return _TABLE.get(code, _RETRY)  # type: ignore[call-overload]
