"""The times of dispatch fit each other: what waits for something else waits longer than that takes."""

from __future__ import annotations

import ast

from dispatch import timing
from tests.daemon import ROOT

KAFKA_ENDS_S = 60.0
"""librdkafka's default of `transaction.timeout.ms`, which dispatch leaves as it is."""
TIMES = {name for name in vars(timing) if name.endswith(("_S", "_MS", "_NS"))}


def imported_times() -> set[str]:
    """Those that dispatch imports."""
    nodes = [
        node
        for path in (ROOT / "dispatch").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]
    found = [one for one in nodes if isinstance(one, ast.ImportFrom) and one.module == timing.__name__]
    return {alias.name for one in found for alias in one.names}


def test_each_time_is_used() -> None:
    """Nothing waits for no time, and no time is here that the code does not use."""
    assert min(getattr(timing, name) for name in TIMES) > 0
    assert imported_times() == TIMES


def test_no_other_file_has_times() -> None:
    """Each time of this package is in one place; those that a user may set have their default in options."""
    found = [
        f"{path.name}: {target.id}"
        for path in (ROOT / "dispatch").rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        for target in (node.targets if isinstance(node, ast.Assign) else ())
        if isinstance(target, ast.Name) and target.id.endswith(("_S", "_MS", "_NS"))
    ]
    assert sorted(found) == [
        "options.py: UNKNOWN_TOPIC_S",
        *sorted(f"timing.py: {name}" for name in TIMES),
        "topic_settings.py: _MOST_S",
    ]


def test_a_transaction_is_given_up_before_kafka_ends_it() -> None:
    """Also with one attempt to fence and one step that is tried again: our log says why, not the broker."""
    assert timing.COMMIT_S + timing.INIT_S + timing.RETRY_S + timing.STUCK_S < KAFKA_ENDS_S


def test_a_task_is_called_dead_late() -> None:
    """Several signs of life are missing by then, though one answer took all of its time."""
    assert 3 * timing.KEEP_S + timing.PROGRESS_ANSWER_S < timing.STILL_S


def test_a_broker_without_an_answer_is_left_alone_for_longer() -> None:
    """The pause doubles some times, and one without a connection, which is soon seen, is left the least."""
    assert timing.DOWN_S < timing.LEAVE_S
    assert 4 * timing.LEAVE_S < timing.LEAVE_MOST_S


def test_one_that_was_fenced_hears_of_it() -> None:
    """The other process says so before the next look, or the one after it."""
    assert timing.GRACE_S <= timing.FOLLOW_S < timing.INIT_S
