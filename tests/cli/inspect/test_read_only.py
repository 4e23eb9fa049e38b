"""Commands that run on, or ask Kafka, on a filesystem that is mounted read-only, and on a copy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.cli.commands.inspect.test_repair import looked_at
from tests.cli.program import run
from tests.daemon import ROOT, RunningBruce

MESSAGES = 30


@contextmanager
def mounted_read_only(directory: Path) -> Iterator[None]:
    """Mount the directory read-only if possible; otherwise do not restrict it."""
    flags = ["mount", "--bind", "-o", "ro", directory, directory]
    mounted = os.geteuid() == 0 and subprocess.run(flags, capture_output=True, check=False).returncode == 0
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", directory], check=True)


@pytest.fixture(params=["read-only mount", "copy"])
def spool(request: pytest.FixtureRequest, bruce: RunningBruce, tmp_path: Path) -> Iterator[Path]:
    """A spool whose daemon was killed, all of it delivered; the copy has no lock files."""
    bruce.send(encode(b"t", b"%d" % n, partition_key=n) for n in range(MESSAGES))
    bruce.await_status(lambda s: s.delivered == MESSAGES)
    bruce.kill9()
    if request.param == "copy":
        shutil.copytree(bruce.spool, tmp_path / "copy", ignore=shutil.ignore_patterns("lock*", "owner"))
        yield tmp_path / "copy"
        return
    with mounted_read_only(bruce.spool):
        yield bruce.spool


def test_following_writes_nothing(spool: Path, bruce: RunningBruce) -> None:
    """`records --follow` prints committed messages and waits for more; every file stays unchanged."""
    before = looked_at(spool)
    program = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]
    following = subprocess.Popen(
        [*program, "inspect", "records", "--follow", "--json", "--from", "-1d", "--spool", str(spool)],
        cwd=ROOT,
        env=bruce.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert following.stdout
        found = [json.loads(following.stdout.readline()) for _ in range(MESSAGES)]
        following.send_signal(signal.SIGINT)
        rest, said = following.communicate(timeout=60)
    finally:
        following.kill()
    assert [one["sequence"] for one in found] == list(range(MESSAGES))
    assert (following.returncode, rest, said) == (0, b"", b"")
    assert looked_at(spool) == before


def test_asking_kafka_writes_nothing(spool: Path, bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """`show --kafka` asks the brokers; every file stays unchanged, and LMDB creates no lock file.

    Only a real Kafka can show whether it finds the record: this one knows no offset by its time.
    """
    before = looked_at(spool)
    arguments = ("--kafka", "--bootstrap-servers", kafka.bootstrap_servers, "--json", "--spool", spool)
    done = run("inspect", "show", 17, *arguments, environ=bruce.environ)
    assert done.returncode == 0, done
    shown = json.loads(done.stdout)
    assert (shown["fate"], type(shown["kafka"])) == ("delivered", list)
    assert looked_at(spool) == before
