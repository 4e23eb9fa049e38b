"""The compiled loops of a host: a daemon works without them while they are made, and with them afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.daemon import compiling
from cli.daemon.compiling import PARTS, Compiler
from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from spool.native.kernel import compile_at_once, interprets
from tests.daemon import PATIENCE_S, RunningBruce

COMPILED_S = 600.0
"""For all loops, on a machine that has other work."""
COUNT = 200


def bruce_without_loops(place: Path, servers: str) -> RunningBruce:
    """Its cache of compiled loops is empty, and below `place`."""
    return RunningBruce(place, servers, prefix=("env", f"NUMBA_CACHE_DIR={place}/cache"))


def messages() -> list[bytes]:
    """With a key each."""
    return [encode(b"t", b"%d" % n, key=b"k%d" % (n % 7)) for n in range(COUNT)]


def test_a_first_start_takes_and_delivers_messages_at_once(tmp_path: Path) -> None:
    """Without compiled loops it says that it compiles, and delivers meanwhile; a stop ends the compiler."""
    with (
        EmbeddedKafka(brokers=1, topics=[("t", 3)]) as kafka,
        bruce_without_loops(tmp_path, kafka.bootstrap_servers) as bruce,
    ):
        assert bruce.send(messages()) == COUNT
        bruce.await_status(lambda seen: seen.delivered == COUNT)
        assert bruce.logged("compiling for this host, once") == 1
        assert bruce.logged("compiled; new workers") == 0
        assert bruce.stop() == 0
        assert bruce.logged("ended by an error") == 0


FOLLOW = """
import sys
import numpy as np
from router.outcomes.trace import with_key
data, key, rows = np.full(1, 107, np.uint8), np.frombuffer(b"k", np.uint8), np.ones(1, np.bool_)
print(with_key(data, np.zeros(1, np.int64), np.ones(1, np.int32), key, rows), "numba" in sys.modules)
"""
"""As the delivery worker does for `brucectl trace --key`."""


def has_numba(pid: int) -> bool:
    """Whether a process has loaded it."""
    return "/numba/" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def loops(place: Path) -> set[tuple[str, int]]:
    """Each file of compiled code that was kept below `place`, and when it was written, ns."""
    return {(path.name, path.stat().st_mtime_ns) for path in place.glob("cache/*/*.nbc")}


NOWHERE = "/proc/no/where/at/all"
LIBRARY = f"{NOWHERE}/loops.{sys.implementation.cache_tag}.bin"


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "NUMBA_CACHE_DIR",
            NOWHERE,
            f"there is no place for compiled loops, {LIBRARY} cannot be written: set NUMBA_CACHE_DIR",
        ),
        ("NUMBA_DISABLE_JIT", "1", "NUMBA_DISABLE_JIT is set, with which nothing is compiled"),
    ],
)
def test_nothing_can_be_compiled(name: str, value: str, sentence: str) -> None:
    """`bruce compile` says so before it begins, code 4."""
    done = subprocess.run(
        [sys.executable, "-c", "from cli.app import bruce; bruce()", "compile"],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (4, "", f"{sentence}\n")


@pytest.mark.long
def test_compiled_ahead(tmp_path: Path) -> None:
    """After `bruce compile`, which leaves only loops, a daemon that delivers has no use for a compiler."""
    with EmbeddedKafka(brokers=1, topics=[("t", 3)]) as kafka:
        bruce = bruce_without_loops(tmp_path, kafka.bootstrap_servers)
        bruce.configure({"dispatch": {"dead_letter_topic": "d"}})
        environ = {**bruce.environ, "NUMBA_CACHE_DIR": f"{tmp_path}/cache", "TMPDIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", "from cli.app import bruce; bruce()", "compile"],
            env=environ,
            capture_output=True,
            text=True,
            check=True,
            timeout=COMPILED_S,
        )
        parts = PARTS + 1
        assert f"compiled {parts} of {parts} parts" in done.stderr
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("bruce-")] == []
        before = loops(tmp_path)
        with bruce:
            sent = bruce.send(messages())
            bruce.send([encode(b"no topic has this name", b"v")])
            seen = bruce.await_status(lambda seen: (seen.delivered, seen.dead_lettered) == (sent, 1))
            assert not [worker for worker in seen.workers if has_numba(worker.pid)]
            assert bruce.stop() == 0
        command = [sys.executable, "-c", FOLLOW]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        assert done.stdout == "1 False\n"
        assert bruce.logged("compiling for this host") == 0
        assert before
        assert loops(tmp_path) == before


@pytest.mark.long
def test_workers_with_compiled_loops_follow(tmp_path: Path) -> None:
    """When they are made, new workers run them, and compile none; every message is delivered once."""
    with (
        EmbeddedKafka(brokers=1, topics=[("t", 3)]) as kafka,
        bruce_without_loops(tmp_path, kafka.bootstrap_servers) as bruce,
    ):
        sent = bruce.send(messages())
        bruce.await_true(lambda: bruce.logged("compiled; new workers") == 1, COMPILED_S)
        before = loops(tmp_path)
        bruce.await_true(lambda: bruce.logged("gave way to a successor") >= 3)
        sent += bruce.send(messages())
        seen = bruce.await_status(lambda seen: seen.delivered == sent)
        assert not [worker for worker in seen.workers if has_numba(worker.pid)]
        assert (seen.received, seen.backlog) == (sent, 0)
        assert bruce.stop() == 0
    assert before
    assert loops(tmp_path) == before


@pytest.mark.parametrize("work", [lambda: None, lambda: 1 / 0])
def test_the_compiler_beside_the_workers(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> None:
    """Loops are plain Python until it has ended, which it tells once; also if it failed at what is left."""
    monkeypatch.setattr(compiling, "compile_all", work)
    monkeypatch.setattr(compiling, "is_compiled", lambda: True)
    monkeypatch.setattr(compiling, "load_loops", lambda: None)
    compiler = Compiler()
    assert interprets()
    until = time.monotonic() + PATIENCE_S
    while not compiler.has_ended():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not interprets()
    assert not compiler.has_ended()


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """With nothing compiled, loops stay plain Python, and the log says so once."""
    monkeypatch.setattr(compiling, "compile_all", lambda: 1 / 0)
    monkeypatch.setattr(compiling, "is_compiled", lambda: False)
    compiler = Compiler()
    until = time.monotonic() + PATIENCE_S
    while not [line for line in caplog.messages if line.startswith("nothing was compiled")]:
        assert not compiler.has_ended()
        assert time.monotonic() < until
        time.sleep(0.01)
    assert interprets()
    assert not compiler.has_ended()
    compile_at_once()


def test_a_compiler_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone, however soon after its beginning: a signal is not lost to the daemon's own handler."""
    monkeypatch.setattr(compiling, "compile_all", lambda: time.sleep(600))
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        for _ in range(10):
            compiler = Compiler()
            compiler.stop()
            assert not compiler.has_ended()
            compile_at_once()
    finally:
        signal.signal(signal.SIGTERM, before)
