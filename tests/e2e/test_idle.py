"""A daemon with nothing to do costs next to nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from dispatch.embedded import EmbeddedKafka
from tests.daemon import RunningBruce
from tests.router.outlet import keyed

SECONDS = 5.0
"""Each timer of 5 s falls into it once."""
LITTLE = 1 << 20
MOST = 15
"""Wake-ups a second of all threads. 7 to 10 were measured, half of them librdkafka's, also beside six busy
processes on two processors; 52 by fixed timers."""


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker in this process."""
    with EmbeddedKafka(topics=[("a", 2)]) as running:
        yield running


def wakes(bruce: RunningBruce) -> int:
    """How often threads of the daemon have slept so far."""
    supervisor = psutil.Process(bruce.pid)
    count = 0
    for process in [supervisor, *supervisor.children(recursive=True)]:
        for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
            # A thread may end meanwhile.
            with suppress(FileNotFoundError, ProcessLookupError):
                (line,) = (one for one in status.read_text().splitlines() if one.startswith("voluntary"))
                count += int(line.split()[1])
    return count


def compiler_bytes(pid: int) -> int:
    """How much of LLVM's code is mapped into a process now."""
    lines = iter(Path(f"/proc/{pid}/smaps").read_text().splitlines())
    for line in lines:
        if "libllvmlite" in line and " r-xp " in line:
            rss = next(one for one in lines if one.startswith("Rss:"))
            return 1024 * int(rss.split()[1])
    return 0


def test_what_has_delivered_lets_go_of_the_compiler(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Loops come through LLVM, whose pages the delivery worker alone has by then: some 10 MB."""
    found = []
    for name in ("compiles", "loads"):
        (tmp_path / name).mkdir()
        # In a process of its own: a fork of the tests' has the loops already.
        with RunningBruce(tmp_path / name, kafka.bootstrap_servers, prefix=("env",)) as bruce:
            bruce.send(keyed(10))
            snapshot = bruce.await_status(lambda s: s.delivered == 10)
            found += [compiler_bytes(one.pid) for one in snapshot.workers if one.role == "delivery"]
    assert len(found) == 2
    assert found[1] < LITTLE


def wakes_in(bruce: RunningBruce, seconds: float) -> int:
    """Wake-ups of all threads within a time."""
    before = wakes(bruce)
    time.sleep(seconds)
    return wakes(bruce) - before


def test_nothing_is_done_by_timer(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """After some traffic all workers sleep until something comes; then it is delivered as ever."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        bruce.send(keyed(10))
        bruce.await_status(lambda s: s.delivered == 10)
        # On a busy machine all need a moment to come to rest.
        assert any(wakes_in(bruce, SECONDS) <= MOST * SECONDS for _ in range(6))
        bruce.send(keyed(10))
        bruce.await_status(lambda s: s.delivered == 20)
