"""The embedded Kafka starts, obeys, and says when it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from dispatch.errors import EmbeddedFailed
from tests.dispatch.batches import Message
from tests.dispatch.fixture import PATIENCE_S, await_true, connected

ROOT = Path(__file__).parents[2]
PRODUCE = 0


def test_it_speaks_its_protocol_and_nothing_else() -> None:
    """Standard output holds the servers and one answer a command, errors included; it ends with its input."""
    commands = [["up", -1], ["down", 7], ["nonsense"], ["topic", "x"], ["requests"], ["quit"]]
    run = subprocess.run(
        [sys.executable, "-m", "dispatch.embedded", "--brokers", "2", "--topic", "a:3"],
        input="".join(json.dumps(command) + "\n" for command in commands) + "ignored\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        timeout=PATIENCE_S,
    )
    servers, *answers = run.stdout.splitlines()
    assert servers.count("127.0.0.1:") == 2
    replies = [json.loads(answer) for answer in answers]
    assert replies[0] is None
    assert "BROKER_NOT_AVAILABLE" in replies[1]["error"]
    assert "nonsense" in replies[2]["error"]
    assert "missing" in replies[3]["error"]
    assert replies[4] == {}
    assert len(replies) == 5
    assert run.stderr == ""


def test_a_refused_command_raises(kafka: EmbeddedKafka) -> None:
    """A command that the cluster refuses becomes EmbeddedFailed with its words."""
    with pytest.raises(EmbeddedFailed, match="BROKER_NOT_AVAILABLE"):
        kafka.down(99)
    kafka.up(-1)


def test_a_dead_process_raises() -> None:
    """Commanding a process that is gone fails at once instead of waiting."""
    with EmbeddedKafka(brokers=1) as kafka:
        kafka._process.kill()
        kafka._process.wait(PATIENCE_S)
        with pytest.raises(EmbeddedFailed, match=r"is gone|has ended"):
            kafka.up()


def test_it_dies_with_its_parent() -> None:
    """A parent that is killed leaves no cluster behind."""
    parent = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent("""
            import os, signal
            from dispatch.embedded import EmbeddedKafka
            kafka = EmbeddedKafka(brokers=1)
            print(kafka._process.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=PATIENCE_S,
    )
    pid = int(parent.stdout)
    await_true(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(") ")[2][0] != "Z"


def test_requests_are_counted_by_api_key(kafka: EmbeddedKafka) -> None:
    """Counting starts with the first question and adds up from there."""
    assert kafka.requests() == {}
    with connected(kafka) as producer:
        producer.send([Message(0, 0, b"v")], partition=0)
        producer.collect(1)
        first = kafka.requests()
        assert first[PRODUCE] == 1
        producer.send([Message(1, 0, b"v")], partition=0)
        producer.collect(1)
        assert kafka.requests()[PRODUCE] == 2


def test_leaders_move_and_topics_appear(kafka: EmbeddedKafka) -> None:
    """`leader` and `topic` change what the metadata says."""
    kafka.topic("fresh", 2)
    kafka.leader("t", 0, 3)
    with connected(kafka, [b"t", b"fresh"]) as producer:
        cluster = producer.client.fetch_cluster([], 5)
        assert cluster.topics[b"t"][0] == 3
        assert len(cluster.topics[b"fresh"]) == 2
        assert set(cluster.brokers) == {1, 2, 3}
        assert ",".join(sorted(cluster.brokers.values())) == ",".join(
            sorted(kafka.bootstrap_servers.split(","))
        )
