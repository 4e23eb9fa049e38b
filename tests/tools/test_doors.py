"""tools/door: clients that we did not write, and the judgement of what became of their records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import free_port
from tools.bruce_process import Bruce
from tools.doors.clients import CLIENTS, Missing, Program
from tools.doors.trial import PARTITIONS, TOPIC, Outcome, run_trial
from tools.targets import Embedded

COUNT, RATE = 600, 2000
INSTALLED = ("confluent", "kafka_python", "aiokafka", "kcat", "rsyslog", "syslog_ng")
"""Those that are not built first."""


@pytest.fixture
def kafka() -> Iterator[Embedded]:
    """One broker."""
    with Embedded(1, {TOPIC: PARTITIONS}) as target:
        yield target


def trial(name: str, trouble: str, target: Embedded, directory: Path, count: int = COUNT) -> Outcome:
    """Run one client; the daemon runs at its end."""
    try:
        program: Program = CLIENTS[name]()
    except Missing as error:
        pytest.skip(str(error))
    with Bruce(directory / "bruce", target.bootstrap, inputs=[{"kafka": free_port()}]) as bruce:
        bruce.start()
        found = run_trial(program, trouble, bruce, target, count, RATE)
        assert bruce.runs()
        return found


@pytest.mark.parametrize("name", INSTALLED)
def test_all_that_a_client_sends_is_in_kafka(kafka: Embedded, tmp_path: Path, name: str) -> None:
    """As it was sent, where its client put it, in order, once."""
    found = trial(name, "none", kafka, tmp_path)
    assert not found.faults
    assert (len(found.acked), found.stored) == (COUNT, COUNT)


def test_the_daemon_lives_on_behind_its_troubles(kafka: Embedded, tmp_path: Path) -> None:
    """Killed and started three times; all that is acknowledged is delivered at the end."""
    found = trial("confluent", "daemon", kafka, tmp_path, 10 * COUNT)
    assert not found.faults
