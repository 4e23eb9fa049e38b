"""`brucectl spark run` instead of the daemon: with engine = "spark" it alone delivers; it may be killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import Reason, encode
from spool.marks.discard_file import read_discard_file, read_file
from tests.daemon import ROOT, RunningBruce, consume
from tests.router.outlet import check_order, keyed, numbers

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.long]

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
    """Messages from before, during and after the query's life all arrive, in order."""
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


def mixed(count: int, first: int) -> list[bytes]:
    """Messages of which every fifth is larger than Kafka takes."""
    return [
        encode(b"t", b"%d:%d:" % (n % 4, n) + bytes(5000 if n % 5 == 0 else 0), partition_key=n % 4)
        for n in range(first, first + count)
    ]


def test_discards_are_filed_whoever_is_killed(tmp_path: Path) -> None:
    """Messages that Kafka refuses are in the daemon's discard file and counted: none is left, or doubled.

    The daemon's delivery worker is killed with messages in the file that no mark has, then the query is, and
    then both.
    """
    path, points = tmp_path / "discards", tmp_path / "points"
    settings = {
        "dispatch": {"engine": "spark", "discard_file": str(path)},
        "kafka": {"message.max.bytes": "4000"},
    }
    kills = 2
    points.write_text("")
    with EmbeddedKafka(brokers=2, topics=[("t", 4)]) as kafka:
        bruce = RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings)
        bruce.environ["BRUCE_CRASH_POINTS"] = str(points)
        with bruce:
            del bruce.environ["BRUCE_CRASH_POINTS"]
            all_sent: list[bytes] = []
            for _ in range(kills):
                all_sent += mixed(500, len(all_sent))
                bruce.send(all_sent[-500:])
                points.write_text("adopt.filed\n")
                with running(bruce):
                    bruce.await_true(lambda: not points.read_text(), PATIENCE_S)
                    # The query is killed, too, wherever it is by now.
            all_sent += mixed(500, len(all_sent))
            bruce.send(all_sent[-500:])
            refused = all_sent[::5]
            with running(bruce):
                seen = bruce.await_status(lambda s: (s.received, s.backlog) == (1500, 0), PATIENCE_S)
        assert (seen.delivered, seen.discarded) == (1200, {"too_large": 300})
        assert sorted(one.datagram for one in read_discard_file(path)) == sorted(refused)
        assert {(one.reason, one.datagram) for one in read_file(path)} == {
            (Reason.TOO_LARGE, datagram) for datagram in refused
        }
        # As the daemon's own: what was in the file and not marked, 100 of them, each time it is killed.
        assert 300 < len(list(read_file(path))) <= 300 + kills * 100
        records = consume(kafka.bootstrap_servers, "t", 4, 1200)
    assert set(numbers(records)) == {n for n in range(1500) if n % 5}
    check_order(records)
