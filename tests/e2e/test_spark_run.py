"""`brucectl spark run` in a daemon's stead: with engine = "spark" nobody else delivers; it may be killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from dispatch.embedded import EmbeddedKafka
from tests.daemon import ROOT, RunningBruce, consume
from tests.router.outlet import check_order, keyed, numbers

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.slow]

PATIENCE_S = 600.0


@contextmanager
def running(bruce: RunningBruce) -> Iterator[psutil.Popen]:
    """`brucectl spark run` over the daemon's spool; at the end it is killed, with all that it started."""
    brucectl = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]
    process = psutil.Popen(
        [*brucectl, "spark", "run"],
        cwd=ROOT,
        env=bruce.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            for one in process.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    one.kill()
        process.kill()
        process.communicate(timeout=60)


def test_a_query_delivers_and_may_be_killed(tmp_path: Path) -> None:
    """What was there, what comes while it runs, and what came while it was dead: all of it, in order."""
    with (
        EmbeddedKafka(brokers=2, topics=[("t", 4)]) as kafka,
        RunningBruce(tmp_path, kafka.bootstrap_servers, settings={"dispatch": {"engine": "spark"}}) as bruce,
    ):
        sent = bruce.send(keyed(500))
        bruce.await_status(lambda seen: seen.watermarks.synced == sent)
        assert bruce.status().delivered == 0
        with running(bruce):
            bruce.await_status(lambda seen: seen.delivered == sent, PATIENCE_S)
            sent += bruce.send(keyed(500, first=sent))
            bruce.await_status(lambda seen: seen.delivered == sent, PATIENCE_S)
            sent += bruce.send(keyed(500, first=sent))
            # Killed wherever it is by now.
        sent += bruce.send(keyed(500, first=sent))
        with running(bruce):
            bruce.await_status(lambda seen: (seen.delivered, seen.backlog) == (sent, 0), PATIENCE_S)
        records = consume(kafka.bootstrap_servers, "t", 4, sent)
    assert set(numbers(records)) == set(range(sent))
    check_order(records)
