"""An intake pause, as its owner sees it; tests/cli/replay/test_drain_pause.py shows the worker's side."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ingest.pause import IntakePause
from spool.errors import SpoolBusy
from spool.layout import Layout
from spool.shared.state import PAUSE_NS, Field, SharedState


def await_true(condition: Callable[[], bool]) -> None:
    """Ask until it is so."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def obey(shared: SharedState) -> None:
    """Do as the worker does."""
    shared.words[Field.PAUSED] = shared.words[Field.PAUSE]


@pytest.fixture
def path(memory: Path) -> Path:
    """The path of a daemon's shared state."""
    return memory / "page"


def test_it_stands_once_the_worker_says_so(memory: Path, path: Path) -> None:
    """Not before, and not by what the worker said to the one before; at the end it is given back."""
    shared = SharedState(path)
    shared.words[Field.PAUSED] = time.monotonic_ns()
    with IntakePause(Layout(memory), path, renew_s=0.01) as pause:
        assert not pause.in_force()
        assert 0 < shared.words[Field.PAUSE] - time.monotonic_ns() <= PAUSE_NS
        obey(shared)
        assert pause.in_force()
        first = int(shared.words[Field.PAUSE])
        await_true(lambda: int(shared.words[Field.PAUSE]) > first)
        assert pause.in_force()
        with pytest.raises(SpoolBusy):
            IntakePause(Layout(memory), path)
    assert shared.words[Field.PAUSE] == 0


def test_one_that_ran_out_was_none(memory: Path, path: Path) -> None:
    """A worker that hung for too long has to obey once more: messages may have come meanwhile."""
    shared = SharedState(path)
    with IntakePause(Layout(memory), path, renew_s=0.01) as pause:
        obey(shared)
        assert pause.in_force()
        shared.words[Field.PAUSE] = 1
        await_true(lambda: int(shared.words[Field.PAUSE]) > 1)
        await_true(lambda: not pause.in_force())
        obey(shared)
        assert pause.in_force()


def test_a_daemon_that_is_started_again_is_held_too(memory: Path, path: Path) -> None:
    """Its shared state is another one; until it says so, the hold does not count."""
    with IntakePause(Layout(memory), path, renew_s=0.01) as pause:
        assert not pause.in_force()
        obey_first = SharedState(path)
        await_true(lambda: int(obey_first.words[Field.PAUSE]) > 0)
        obey(obey_first)
        assert pause.in_force()
        path.unlink()
        assert not pause.in_force()
        shared = SharedState(path)
        assert not pause.in_force()
        await_true(lambda: int(shared.words[Field.PAUSE]) > 0)
        assert not pause.in_force()
        obey(shared)
        assert pause.in_force()
