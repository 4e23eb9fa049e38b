"""The consequences of each error code."""

from __future__ import annotations

import pytest

from dispatch.errors import Code
from dispatch.librdkafka import load
from dispatch.retry import TABLE, Action, decide
from spool.format.wire import Reason

NOT_A_PRODUCERS = {
    *(-191, -179, -176, -175, -174, -168, -162, -161, -160, -159, -157, -147, -142, -141, -140, -139),
    *(1, 12, 22, 23, 24, 25, 26, 27, 28, 30, 68, 69, 70, 71, 78, 79, 81, 82, 86, 88),
    *(36, 37, 38, 39, 40, 61, 62, 63, 64, 65, 67, 73, 84, 85, 91, 92, 93, 94, 95, 96),
    *(110, 111, 112, 113, 114, 115, 116, 117, 118, 119, *range(121, 129), 130, 131, 132, 133),
}
"""Codes that only consumers, administrators, brokers among themselves, telemetry and streams receive."""


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


def test_every_code_is_decided_about() -> None:
    """Each code that the library knows is in the table, with its reason, or named here as no producer's.

    A new librdkafka with a new code fails this test: a developer has to decide on it.
    """
    library = load()
    known = {c for c in range(-200, 200) if not library.error_name(c).startswith("ERR_")} - {0}
    assert set(TABLE) == {int(code) for code in Code} - {0}
    assert known - set(TABLE) == NOT_A_PRODUCERS
    assert all(decision.why for decision in TABLE.values())


def test_nothing_passing_is_discarded() -> None:
    """Four codes speak of the record itself; whatever else Kafka says, the message is kept."""
    discards = {code for code, decision in TABLE.items() if decision.action is Action.DISCARD}
    assert discards == {
        Code.MSG_SIZE_TOO_LARGE,
        Code.RECORD_LIST_TOO_LARGE,
        Code.INVALID_RECORD,
        Code.INVALID_TIMESTAMP,
    }
    assert decide(Code.NOT_ENOUGH_REPLICAS).action is Action.RETRY
