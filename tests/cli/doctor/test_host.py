"""The host: how each limit of the kernel is judged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from cli.doctor import Level, host
from cli.doctor.host import (
    ENOUGH_QUEUED,
    LOCKED_BYTES,
    MEMORY_BYTES,
    QUEUE_LENGTH,
    UNSYNCHRONISED,
    check_clock,
    check_locking,
    check_loops,
    check_memory,
    check_queue,
    clock_state,
    read_locking,
    read_queue_length,
)


def test_the_queue_of_a_socket() -> None:
    """For a queue shorter than a burst, doctor advises a command; it says so when it cannot read a limit."""
    short = check_queue(10)
    assert (short.level, "max_dgram_qlen is 10" in short.sentence) == (Level.ADVICE, True)
    assert f"sysctl -w net.unix.max_dgram_qlen={ENOUGH_QUEUED}" in short.remedy
    assert check_queue(ENOUGH_QUEUED).level is Level.OK
    assert check_queue(None).level is Level.UNKNOWN
    assert read_queue_length() == int(QUEUE_LENGTH.read_text())


def test_memory_that_cannot_be_locked() -> None:
    """Doctor advises about a limit that is too low, unless the process may lock any amount of memory."""
    assert check_locking(LOCKED_BYTES - 1, privileged=False).level is Level.ADVICE
    assert check_locking(LOCKED_BYTES, privileged=False).level is Level.OK
    assert check_locking(None, privileged=False).level is Level.OK
    assert check_locking(0, privileged=True).level is Level.OK


def test_the_limit_is_that_of_the_worker() -> None:
    """The worker's limit counts, not that of the process that asks: a service has its own limits."""
    code = (
        "import resource; hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1];"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, hard)); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        found, mine = read_locking(worker.pid), read_locking(None)
        worker.kill()
    assert found[0] == 4096
    assert mine[0] != 4096
    assert found[1] == mine[1] == (os.geteuid() == 0 and found[1])


def test_a_small_tmpfs(tmp_path: Path) -> None:
    """Staging has less room than it reserves."""
    small = check_memory(tmp_path, MEMORY_BYTES - 1)
    assert (small.level, str(tmp_path) in small.sentence) == (Level.ADVICE, True)
    assert check_memory(tmp_path, MEMORY_BYTES).level is Level.OK


@pytest.mark.parametrize(
    ("state", "level"), [(0, Level.OK), (1, Level.OK), (UNSYNCHRONISED, Level.ADVICE), (-1, Level.UNKNOWN)]
)
def test_a_clock(state: int, level: Level) -> None:
    """The clock is judged by adjtimex; a coming leap second is no trouble."""
    assert check_clock(state).level is level
    assert -1 <= clock_state() <= UNSYNCHRONISED


def test_loops_that_are_not_kept_are_advised_about(tmp_path: Path) -> None:
    """If they are not there, and no place can be written: the places are named."""
    nowhere = [Path("/proc/no/where/at/all/loops.bin"), Path("/proc/nor/where/at/all/loops.bin")]
    found = check_loops(nowhere, made=False)
    assert (found.level, all(str(place) in found.sentence for place in nowhere)) == (Level.ADVICE, True)
    assert check_loops([*nowhere, tmp_path / "bruce" / "loops.bin"], made=False).level is Level.OK
    assert check_loops(nowhere, made=True).level is Level.OK


def test_without_pyspark_nothing_is_wrong() -> None:
    """A host that runs only the daemon needs neither pyspark nor Java."""
    with mock.patch.object(host, "find_spec", return_value=None), mock.patch.dict(os.environ, PATH=""):
        found = list(host.look_at_environment())
    assert {one.level for one in found} == {Level.OK}, found
    assert "no pyspark" in found[-1].sentence
