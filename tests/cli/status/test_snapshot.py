"""The status line for a service manager, and the workers."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cli.status import snapshot
from cli.status.snapshot import ROLES, _brokers, list_workers, status_line
from dispatch.tables import State
from ingest.role import PATIENCE
from spool.options import Full, WhenFull
from spool.shared.state import BROKER_TIME_WORDS, BROKER_WORDS, FORKED, WORKER_WORDS, Field, SharedState


@pytest.fixture
def shared(tmp_path: Path) -> SharedState:
    """The shared state of a daemon with nothing to report."""
    return SharedState(tmp_path / "page")


def test_what_was_done(shared: SharedState) -> None:
    """The line when all is well."""
    shared.words[[Field.DELIVERED, Field.DISCARDED]] = (1234, 5)
    assert status_line(shared.words) == "messages are taken in; 1,234 delivered, 5 discarded"


def test_what_is_wrong_comes_first(shared: SharedState) -> None:
    """Problems of delivery come before those of room, and these before the intake pause; one line each."""
    shared.words[Field.PAUSED] = 1
    assert status_line(shared.words) == "the intake is stopped by an operator: senders wait"
    shared.words[[Field.FULL, Field.WHEN_FULL, Field.FULL_SINCE_NS]] = (Full.MAX_BYTES, WhenFull.BLOCK, 1)
    assert status_line(shared.words).startswith("the spool is full since ")
    shared.write_text(Field.TROUBLE, "no broker can be reached")
    assert status_line(shared.words) == "no broker can be reached"


def test_brokers_are_in_the_order_of_their_numbers(shared: SharedState) -> None:
    """The delivery worker may meet them in any order; each one keeps its own figures and times."""
    words, met = shared.words, [10, 2, 9]
    words[Field.BROKERS] = len(met)
    for row, number in enumerate(met):
        words[Field.BROKERS + 1 + BROKER_WORDS * row :][:BROKER_WORDS] = (number, State.HEALTHY, 7, number, 0)
        words[Field.BROKER_TIMES + BROKER_TIME_WORDS * row] = number
    found = [(one.id, one.in_flight, one.round_trip.count) for one in _brokers(words)]
    assert found == [(2, 2, 2), (9, 9, 9), (10, 10, 10)]


def test_a_worker_that_does_nothing(shared: SharedState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is measured from the last beat; one without a start and a beat is not watched."""
    rows = shared.words[Field.WORKERS :].reshape(-1, WORKER_WORDS)
    rows[: len(ROLES), 0] = os.getpid()
    for role in ("ingest", "delivery"):
        shared.beat(ROLES.index(role))
    monkeypatch.setattr(snapshot, "_alive", lambda _: True)
    monkeypatch.setattr(snapshot, "waits_for_disk", lambda _: True)
    now = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    assert {one.silent_seconds for one in list_workers(shared.words)} == {None}
    monkeypatch.setattr(time, "monotonic_ns", lambda: now + 3600 * 10**9)
    silent = [one for one in list_workers(shared.words) if one.silent_seconds is not None]
    assert [one.role for one in silent] == ["ingest", "delivery"]
    assert all(one.silent_seconds and one.silent_seconds >= 3600 and not one.hangs for one in silent)


def test_a_worker_that_never_begins(shared: SharedState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its silence counts from its start, and shows after PATIENCE.begin; if it is not watched, never."""
    rows = shared.words[Field.WORKERS :].reshape(-1, WORKER_WORDS)
    rows[: len(ROLES), 0] = os.getpid()
    now = time.monotonic_ns()
    rows[[ROLES.index("keeper"), ROLES.index("delivery")], FORKED] = now
    monkeypatch.setattr(snapshot, "_alive", lambda _: True)
    monkeypatch.setattr(snapshot, "waits_for_disk", lambda _: False)
    for seconds, told in ((PATIENCE.begin - 1, []), (PATIENCE.begin, ["keeper", "delivery"])):
        monkeypatch.setattr(time, "monotonic_ns", lambda seconds=seconds: now + round(seconds * 1e9))
        assert [one.role for one in list_workers(shared.words) if one.hangs] == told
    assert list_workers(shared.words)[ROLES.index("delivery")].sentence.endswith(
        f"has done nothing for {PATIENCE.begin:.0f} s"
    )
