"""The daemon as an unprivileged user: it works, and no other user can read its files."""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dispatch.embedded import EmbeddedKafka
from tests.daemon import RunningBruce, consume
from tests.router.outlet import keyed

NOBODY = 65534
COUNT = 50
BECOME = f"""
import contextlib, importlib, io, os, pkgutil, sys
sys.path.insert(0, os.getcwd())
# Modules that are imported and compiled now need not be read by a user who may not read their folder.
for name in ("spool", "ingest", "router", "dispatch", "status", "cli"):
    for module in pkgutil.walk_packages(importlib.import_module(name).__path__, name + "."):
        importlib.import_module(module.name) if ".spark" not in module.name else None
from cli.daemon.compiling import load_loops
from cli.app import bruce
load_loops()
run, sys.argv = sys.argv[-3:], ["bruce", "run", "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    bruce()
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
sys.argv = ["bruce", *run]
bruce()
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that belongs to no user."""
    if os.geteuid():
        pytest.skip("becoming another user needs root")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as name:
        os.chown(name, NOBODY, NOBODY)
        yield Path(name)


@pytest.mark.long
def test_a_user_without_any_right(home: Path) -> None:
    """No process has a capability, messages arrive, files are its own, sockets have the set modes."""
    with EmbeddedKafka(brokers=1, topics=[("t", 2)]) as kafka:
        start = [sys.executable, "-c", BECOME]
        bruce = RunningBruce(home, kafka.bootstrap_servers, segment_bytes=4 << 20, prefix=start)
        os.chown(bruce.runtime, NOBODY, NOBODY)
        bruce.configure(
            {"ingest": {"socket_mode": "0622", "stream_socket": str(bruce.runtime / "stream.sock")}}
        )
        before = os.umask(0)
        try:
            bruce.start()
        finally:
            os.umask(before)
        try:
            bruce.send(keyed(COUNT))
            bruce.await_status(lambda s: s.delivered == COUNT)
            supervisor = psutil.Process(bruce.pid)
            for process in [supervisor, *supervisor.children(recursive=True)]:
                told = Path(f"/proc/{process.pid}/status").read_text()
                assert re.search(rf"^Uid:\s+{NOBODY}\s+{NOBODY}\s+{NOBODY}", told, re.MULTILINE)
                assert re.search(r"^CapEff:\s+0+$", told, re.MULTILINE), told
            assert mode_of(bruce.spool) == 0o700
            sockets = {path.name: mode_of(path) for path in bruce.runtime.iterdir() if path.is_socket()}
            assert sockets == {"bruce.sock": 0o622, "stream.sock": 0o622}
            files = [path for path in bruce.runtime.rglob("*") if path.is_file()]
            assert files
            assert {path.name: mode_of(path) for path in files if mode_of(path) & 0o007} == {}
            assert {path.stat().st_uid for path in bruce.spool.rglob("*")} == {NOBODY}
            assert bruce.stop() == 0
        finally:
            bruce.close()
        assert len(consume(kafka.bootstrap_servers, "t", 2, COUNT)) == COUNT


def mode_of(path: Path) -> int:
    """As chmod takes it."""
    return stat.S_IMODE(path.stat().st_mode)
