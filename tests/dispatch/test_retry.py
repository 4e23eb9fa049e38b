"""What follows from an error code."""

from __future__ import annotations

import pytest

from dispatch.codes import Code
from dispatch.librdkafka import load
from dispatch.retry import Action, decide
from spool.wire import Reason


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (Code.MSG_SIZE_TOO_LARGE, Action.DISCARD),
        (Code.RECORD_LIST_TOO_LARGE, Action.DISCARD),
        (Code.INVALID_RECORD, Action.DISCARD),
        (Code.INVALID_TIMESTAMP, Action.DISCARD),
        (Code.INVALID_DIFFERENT_RECORD, Action.RETRY),
        (Code.UNKNOWN_TOPIC_OR_PART, Action.REFRESH),
        (Code.UNKNOWN_PARTITION, Action.REFRESH),
        (Code.NOT_LEADER, Action.REFRESH),
        (Code.FATAL, Action.REBUILD),
        (Code.PURGE_INFLIGHT, Action.REBUILD),
        (Code.CLUSTER_AUTHORIZATION_FAILED, Action.STOP),
        (Code.TOPIC_AUTHORIZATION_FAILED, Action.REFRESH),
        (7, Action.RETRY),  # request timed out
        (19, Action.RETRY),  # not enough replicas
        (20, Action.RETRY),  # not enough replicas after append
        (-195, Action.RETRY),  # transport
        (31337, Action.RETRY),  # not invented yet
    ],
)
def test_each_kind_of_error_has_its_action(code: int, action: Action) -> None:
    """Nothing is discarded unless Kafka refuses the record itself."""
    assert decide(code).action is action


def test_a_discard_names_its_reason_and_nothing_else_does() -> None:
    """The reason is the one under which `brucectl discards` counts it."""
    assert decide(Code.MSG_SIZE_TOO_LARGE).reason is Reason.TOO_LARGE
    assert decide(Code.INVALID_RECORD).reason is Reason.INVALID_RECORD
    for code in range(-200, 130):
        decision = decide(code)
        assert (decision.action is Action.DISCARD) == (decision.reason is not Reason.ACCEPTED)


def test_codes_are_librdkafkas() -> None:
    """Each number of ours has a name in the library."""
    library = load()
    for code in Code:
        assert not library.error_name(code).startswith("ERR_"), code
