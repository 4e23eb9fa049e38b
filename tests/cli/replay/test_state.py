"""`brucectl replay`, interrupted in every way and repeated: no gap, nothing sent a second time.

Only real brokers can show that transactions leave no duplicates after a SIGKILL
(tests/real_kafka/test_replay.py): the embedded Kafka lets everyone read aborted records.
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

from cli.replay.state import Order
from cli.terminal.errors import BadArgument
from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from spool.index.identity import read_identity
from spool.layout import Layout
from tests.cli.conftest import PARTITIONS
from tests.cli.program import Ended, run
from tests.cli.replay.conftest import MESSAGES
from tests.daemon import ROOT, RunningBruce, consume

PROGRAM = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]


def command(bruce: RunningBruce, *arguments: object) -> list[str]:
    """The same replay each time, and more arguments."""
    states = bruce.config.with_name("states")
    fixed = ("replay", "--from", "-1h", "--to-topic", "again", "--state", states)
    return [*map(str, fixed), *map(str, arguments)]


def replay(bruce: RunningBruce, *arguments: object) -> Ended:
    """Run it to its end."""
    return run(*command(bruce, *arguments), environ=bruce.environ)


def report(bruce: RunningBruce, *arguments: object) -> dict[str, Any]:
    """The report that replay prints."""
    done = replay(bruce, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@contextmanager
def running(bruce: RunningBruce, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """The replay in a separate process, 20 messages a second, once some are sent and recorded."""
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


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.parametrize("mode", [[], ["--at-least-once"]], ids=["transactions", "at-least-once"])
def test_after_sigkill(stored: RunningBruce, kafka: EmbeddedKafka, mode: list[str]) -> None:
    """Two kills on the way; all messages of the first plan arrive, and recorded ones are not sent again."""
    lefts = [MESSAGES]
    for _ in range(2):
        with running(stored, *mode) as process:
            stored.await_true(lambda: report(stored)["left"] < lefts[-1])
            process.kill()
            process.wait()
            lefts.append(report(stored)["left"])
    before = sum(found(kafka, MESSAGES - lefts[-1]).values())
    # Messages that came since then are not part of this replay.
    stored.send([encode(b"t", b"%d" % MESSAGES)])
    stored.await_status(lambda s: s.delivered == MESSAGES + 1)
    dry = report(stored)
    assert (dry["messages"], dry["left"]) == (MESSAGES, lefts[-1])
    assert dry["begun"] is not None
    done = report(stored, "--yes", *mode)
    assert (done["messages"], done["sent"], done["left"]) == (MESSAGES, MESSAGES, 0)
    arrived = found(kafka, MESSAGES)
    assert set(arrived) == set(range(MESSAGES))
    # The last run has sent at most the remaining messages.
    assert before < arrived.total() <= before + lefts[-1]
    # This replay is over: the next request is another one.
    assert report(stored)["begun"] is None
    assert report(stored)["messages"] == MESSAGES + 1


@pytest.mark.sample(one_of=3)
@pytest.mark.crash
@pytest.mark.parametrize("point", ["replay.sent", "replay.told", "replay.forgotten"])
def test_killed_at_its_end(stored: RunningBruce, kafka: EmbeddedKafka, tmp_path: Path, point: str) -> None:
    """If a kill comes after everything is sent, nothing is sent again before a run has reported the end."""
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
    # This replay is over: the next request is another one.
    assert report(stored)["left"] == MESSAGES


@pytest.mark.long
@pytest.mark.crash
def test_after_ctrl_c(stored: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Messages in flight are waited for: each arrives once. The sentence says how to go on, code 130."""
    with running(stored) as process:
        # So that there is always a message in flight.
        kafka.rtt(-1, 200)
        before = report(stored)["left"]
        stored.await_true(lambda: report(stored)["left"] < before)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    left = report(stored)["left"]
    assert 0 < left < MESSAGES
    last = err.decode().splitlines()[-1]
    assert last == f"{left:,} of {MESSAGES:,} messages left: the same command goes on"
    dry = replay(stored).stderr.splitlines()[-1]
    assert dry.startswith(f"nothing was sent; --yes sends {left:,} messages to topic again, begun at ")
    assert report(stored, "--yes")["sent"] == MESSAGES
    assert found(kafka, MESSAGES) == Counter(range(MESSAGES))


def test_one_at_a_time(stored: RunningBruce) -> None:
    """A second run of the same replay is refused with one sentence, code 1."""
    with running(stored) as process:
        done = replay(stored, "--yes")
        assert done.returncode == 1
        assert done.stderr.startswith("another brucectl sends just these messages: ")
        assert f"is held by process {process.pid}" in done.stderr
        assert done.stderr.count("\n") == 1


def test_what_went_meanwhile(stored: RunningBruce) -> None:
    """A gap that retention made between two runs is reported, not skipped."""
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


def test_from_bare_segments(stored: RunningBruce, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """A copy of segments/ alone suffices, also that of a killed daemon; nothing in it changes."""
    stored.kill9()
    copy = tmp_path / "copy"
    shutil.copytree(stored.spool / "segments", copy / "segments")
    before = contents(copy)
    assert report(stored, "--spool", copy, "--yes")["sent"] == MESSAGES
    assert found(kafka, MESSAGES) == Counter(range(MESSAGES))
    assert contents(copy) == before


def contents(directory: Path) -> dict[str, tuple[int, int]]:
    """Every file of a directory: its size, and its modification time."""
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
    """One sentence names the file to remove; code 2."""
    states = stored.config.with_name("states")
    name = Order("-1h", None, to_topic="again").name(
        read_identity(Layout(stored.spool)), _servers(stored.config)
    )
    (states / name).mkdir(parents=True)
    (states / name / "replay.json").write_text("{}")
    done = replay(stored, "--yes")
    assert done.returncode == 2
    assert f"remove {states / name} to begin again" in done.stderr


def _servers(config: Path) -> str:
    lines = config.read_text().splitlines()
    return next(json.loads(line.split(" = ")[1]) for line in lines if "bootstrap.servers" in line)


@pytest.mark.parametrize("name", ["", "..", "a b", "t" * 250])
def test_a_topic_that_no_kafka_has(name: str) -> None:
    """It is refused before a message is counted."""
    with pytest.raises(BadArgument, match="no topic of Kafka can be called that"):
        Order("0", to_topic=name).wanted()
    assert Order("0", to_topic="again").wanted()
