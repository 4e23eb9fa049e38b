"""Forked daemons equal those that a start makes, and die with the process that forked them."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from unittest import mock

import psutil

from tests.daemon import RunningBruce, alive
from tests.e2e.zygote import Daemonised
from tests.nursery import Nursery, nursery


def test_who_is_suited(tmp_path: Path) -> None:
    """Not a daemon that would import something else, as with a library before all others."""
    bruce = RunningBruce(tmp_path, "127.0.0.1:1")
    assert nursery().suits(bruce.environ)
    for name in ("LD_PRELOAD", "NUMBA_DISABLE_JIT"):
        assert not nursery().suits({**bruce.environ, name: "1"})
    bruce.close()


def test_how_it_ends(tmp_path: Path) -> None:
    """By an exit code, or by a signal, as a child of ours; what it says is in its log."""
    bruce = RunningBruce(tmp_path, "127.0.0.1:1", settings={"dispatch": {"drain_seconds": 0}})
    with bruce:
        assert bruce.stop() == 0
        assert bruce.logged("stopped") == 1
        bruce.configure({"dispatch": {"mode": "perhaps"}})
        bruce.start(wait=False)
        assert bruce.await_end() == 2
        bruce.configure({"dispatch": {"mode": "at_least_once"}})
        bruce.start()
        bruce.tell(signal.SIGKILL)
        assert bruce.await_end() == -signal.SIGKILL


def test_daemons_die_with_it(tmp_path: Path) -> None:
    """As when the run of the tests is killed."""
    own, bruce = Nursery(), RunningBruce(tmp_path, "127.0.0.1:1")
    forked = own.start(bruce.environ, bruce.config, bruce.log)
    bruce.await_true(bruce.socket.exists)
    daemon = psutil.Process(forked.pid)
    family = [daemon, *daemon.children()]
    own.close()
    bruce.await_true(lambda: not any(map(alive, family)))
    bruce.close()


def test_one_that_is_gone_is_no_error() -> None:
    """A daemon that is no child of ours has ended, for `poll`, also when it goes between two questions."""
    with subprocess.Popen(["sleep", "600"]) as process:
        daemon = Daemonised(process.pid)
        assert daemon.poll() is None
        process.kill()
    assert daemon.poll() == 0
    with mock.patch.object(daemon, "is_running", return_value=True):
        assert daemon.poll() == 0
