"""`brucectl replay`, interrupted in every way and asked for again: no gap, nothing sent a second time.

That transactions leave nothing doubled behind a SIGKILL, only real brokers can show
(tests/real_kafka/test_replay.py): the embedded one lets everybody read what was aborted.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.replay_order import Order
from dispatch.embedded import EmbeddedKafka
from spool.identity import read_identity
from spool.layout import Layout
from spool.wire import encode
from tests.cli.conftest import PARTITIONS
from tests.cli.program import Ended, run
from tests.daemon import ROOT, RunningBruce, consume

MESSAGES = 1200
PROGRAM = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]


@pytest.fixture
def stored(bruce: RunningBruce, kafka: EmbeddedKafka) -> RunningBruce:
    """A daemon that has delivered 1,200 messages to `t`, over several segments; and a topic `again`."""
    kafka.topic("again", PARTITIONS)
    bruce.send(encode(b"t", b"%d" % n + b" " * 600, partition_key=n % 5) for n in range(MESSAGES))
    bruce.await_status(lambda s: s.delivered == MESSAGES)
    return bruce


def command(bruce: RunningBruce, *arguments: object) -> list[str]:
    """The same replay each time, and more arguments."""
    states = bruce.config.with_name("states")
    fixed = ("replay", "--from", "-1h", "--to-topic", "again", "--state", states)
    return [*map(str, fixed), *map(str, arguments)]


def replay(bruce: RunningBruce, *arguments: object) -> Ended:
    """Run it to its end."""
    return run(*command(bruce, *arguments), environ=bruce.environ)


def report(bruce: RunningBruce, *arguments: object) -> dict[str, Any]:
    """What it prints."""
    done = replay(bruce, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@contextmanager
def running(bruce: RunningBruce, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """The replay in a process of its own, 20 messages a second, once some are sent and known to be."""
    process = subprocess.Popen(
        [*PROGRAM, *command(bruce, "--yes", "--rate", 20, *arguments)],
        cwd=ROOT,
        env=bruce.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        bruce.await_true(lambda: 0 < report(bruce)["left"] < MESSAGES)
        yield process
    finally:
        process.kill()
        process.communicate()


def found(kafka: EmbeddedKafka, count: int) -> Counter[int]:
    """How often each number arrived."""
    records = consume(kafka.bootstrap_servers, "again", PARTITIONS, count)
    return Counter(int(record.value()) for record in records)


@pytest.mark.crash
@pytest.mark.parametrize("mode", [[], ["--at-least-once"]], ids=["transactions", "at-least-once"])
def test_after_sigkill(stored: RunningBruce, kafka: EmbeddedKafka, mode: list[str]) -> None:
    """Two kills on the way; the messages meant at first all arrive, and what was written down not again."""
    lefts = [MESSAGES]
    for _ in range(2):
        with running(stored, *mode) as process:
            stored.await_true(lambda: report(stored)["left"] < lefts[-1])
            process.kill()
            process.wait()
            lefts.append(report(stored)["left"])
    before = sum(found(kafka, MESSAGES - lefts[-1]).values())
    # What came since then is not meant.
    stored.send([encode(b"t", b"%d" % MESSAGES)])
    stored.await_status(lambda s: s.delivered == MESSAGES + 1)
    dry = report(stored)
    assert (dry["messages"], dry["left"]) == (MESSAGES, lefts[-1])
    assert dry["begun"] is not None
    done = report(stored, "--yes", *mode)
    assert (done["messages"], done["sent"], done["left"]) == (MESSAGES, MESSAGES, 0)
    arrived = found(kafka, MESSAGES)
    assert set(arrived) == set(range(MESSAGES))
    # The last run has sent at most what was left.
    assert before < arrived.total() <= before + lefts[-1]
    # It is over: what is asked for now is another replay.
    assert report(stored)["begun"] is None
    assert report(stored)["messages"] == MESSAGES + 1


@pytest.mark.crash
@pytest.mark.parametrize("point", ["replay.sent", "replay.told", "replay.forgotten"])
def test_killed_at_its_end(stored: RunningBruce, kafka: EmbeddedKafka, tmp_path: Path, point: str) -> None:
    """When all is sent, a kill has nothing sent again before somebody was told that it is."""
    points = tmp_path / "points"
    points.write_text(f"{point}\n")
    killed = subprocess.run(
        [*PROGRAM, *command(stored, "--yes", "--json", "--at-least-once")],
        cwd=ROOT,
        env={**stored.environ, "BRUCE_CRASH_POINTS": str(points)},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert points.read_text() == ""
    told = point != "replay.sent"
    assert bool(killed.stdout) == told
    if told:
        assert json.loads(killed.stdout)["sent"] == MESSAGES
    if point != "replay.forgotten":
        again = report(stored, "--yes", "--at-least-once")
        assert (again["sent"], again["left"]) == (MESSAGES, 0)
    assert found(kafka, MESSAGES) == Counter(range(MESSAGES))
    # It is over: what is asked for now is another replay.
    assert report(stored)["left"] == MESSAGES


@pytest.mark.crash
def test_after_ctrl_c(stored: RunningBruce, kafka: EmbeddedKafka) -> None:
    """What is in flight is waited for: each message arrives once. The sentence says how to go on, code 1."""
    with running(stored) as process:
        # So that there is always something in flight.
        kafka.rtt(-1, 200)
        before = report(stored)["left"]
        stored.await_true(lambda: report(stored)["left"] < before)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    left = report(stored)["left"]
    assert 0 < left < MESSAGES
    last = err.decode().splitlines()[-1]
    assert last == f"{left:,} of {MESSAGES:,} messages are left: the same command goes on with them"
    dry = replay(stored).stderr.splitlines()[-1]
    assert dry.startswith(f"nothing was sent; --yes sends {left:,} messages to topic again, begun at ")
    assert report(stored, "--yes")["sent"] == MESSAGES
    assert found(kafka, MESSAGES) == Counter(range(MESSAGES))


def test_one_at_a_time(stored: RunningBruce) -> None:
    """The same replay beside itself is refused with one sentence, code 3."""
    with running(stored) as process:
        done = replay(stored, "--yes")
        assert done.returncode == 3
        assert done.stderr.startswith("another brucectl sends just these messages: ")
        assert f"is held by process {process.pid}" in done.stderr
        assert done.stderr.count("\n") == 1


def test_what_went_meanwhile(stored: RunningBruce) -> None:
    """A gap that retention made between two runs is told, and not passed over."""
    with running(stored) as process:
        process.kill()
        process.wait()
    stored.stop()
    layout = Layout(stored.spool)
    for pair in layout.list_segments()[:-1]:
        layout.segment(*pair).unlink()
    done = replay(stored, "--yes")
    assert done.returncode == 1
    assert " of this replay were removed from " in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_goes_while_it_is_sent(stored: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Segments go under a replay: what was not sent of them is counted, with code 1, and the rest goes."""
    stored.stop()
    layout = Layout(stored.spool)
    *older, (kept, _) = layout.list_segments()[:3]
    with running(stored, "--rate", 100, "--json") as process:
        for pair in older:
            layout.segment(*pair).unlink()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    done = json.loads(out)
    arrived = found(kafka, done["sent"])
    missing = set(range(MESSAGES)) - set(arrived)
    assert (len(missing), arrived.total()) == (done["gone"], done["sent"])
    assert max(missing) < kept
    assert (done["messages"], done["sent"] + done["gone"], done["left"]) == (MESSAGES, MESSAGES, 0)
    assert report(stored)["begun"] is None


def test_at_a_rate(stored: RunningBruce, kafka: EmbeddedKafka) -> None:
    """A second's worth goes at once, and then so many a second; rates below one a second, too."""
    done = report(stored, "--yes", "--to", 300, "--rate", 200)
    assert (done["sent"], done["left"]) == (300, 0)
    assert done["seconds"] >= 0.5
    assert report(stored, "--yes", "--to", 2, "--rate", 0.9, "--timeout", 60)["sent"] == 2
    assert found(kafka, 302).total() == 302


def test_another_cluster(stored: RunningBruce, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """`--kafka FILE` sends there, by the rest of the configuration, and nothing here."""
    with EmbeddedKafka(brokers=1, topics=[("t", PARTITIONS), ("bruce-progress", 1)]) as other:
        file = tmp_path / "other.toml"
        file.write_text(f'[kafka]\n"bootstrap.servers" = "{other.bootstrap_servers}"\n')
        states = ("--state", tmp_path / "states")
        done = run("replay", "--from", "5", "--kafka", file, *states, "--yes", environ=stored.environ)
        assert done.returncode == 0, done.stderr
        there = consume(other.bootstrap_servers, "t", PARTITIONS, MESSAGES - 5)
        assert sorted(int(record.value()) for record in there) == list(range(5, MESSAGES))
    assert len(consume(kafka.bootstrap_servers, "t", PARTITIONS, MESSAGES)) == MESSAGES
    file.write_text("[spool]\n")
    done = run("replay", "--from", "5", "--kafka", file, environ=stored.environ)
    assert (done.returncode, done.stderr) == (
        2,
        f'{file}: names no brokers: expected [kafka] with "bootstrap.servers"\n',
    )


def test_from_bare_segments(stored: RunningBruce, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """A copy of segments/ alone will do, that of a daemon which was killed, too; nothing in it changes."""
    stored.kill9()
    copy = tmp_path / "copy"
    shutil.copytree(stored.spool / "segments", copy / "segments")
    before = contents(copy)
    assert report(stored, "--spool", copy, "--yes")["sent"] == MESSAGES
    assert found(kafka, MESSAGES) == Counter(range(MESSAGES))
    assert contents(copy) == before


def contents(directory: Path) -> dict[str, tuple[int, int]]:
    """Every file of a directory: its size, and when it was changed."""
    return {
        str(path.relative_to(directory)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in directory.rglob("*")
    }


def test_a_whole_spool_stays_as_it_is(stored: RunningBruce) -> None:
    """In a spool with index and marks nothing is written either."""
    stored.stop()
    before = contents(stored.spool)
    assert report(stored, "--yes")["sent"] == MESSAGES
    assert contents(stored.spool) == before


def test_state_that_is_damaged(stored: RunningBruce) -> None:
    """One sentence, with what to remove; code 2."""
    states = stored.config.with_name("states")
    name = Order("-1h", None, to_topic="again").name(
        read_identity(Layout(stored.spool)), _servers(stored.config)
    )
    (states / name).mkdir(parents=True)
    (states / name / "replay.json").write_text("{}")
    done = replay(stored, "--yes")
    assert done.returncode == 2
    assert f"remove {states / name} to begin anew" in done.stderr


def _servers(config: Path) -> str:
    lines = config.read_text().splitlines()
    return next(json.loads(line.split(" = ")[1]) for line in lines if "bootstrap.servers" in line)
