"""`brucectl replay`: what it would send, in one sentence why it cannot, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.cli.conftest import MESSAGES
from tests.cli.program import run
from tests.cli.replay.test_replay import counted, numbers, records, replayed, states
from tests.daemon import RunningBruce


def test_dry_run(delivered: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Without `--yes`, it counts by topic and time, says what it would send, and neither sends nor writes."""
    kafka.down()
    done = delivered.brucectl("replay", "--from", 100, "--to", 110, "--state", states(delivered))
    lines = [line.split(b"\t") for line in done.stdout.splitlines()]
    assert (done.returncode, [line[:2] for line in lines]) == (0, [[b"t", b"5"], [b"u", b"5"]])
    assert all(line[2] <= line[3] and line[2].startswith(b"20") for line in lines)
    *progress, last = done.stderr.splitlines()
    # A longer replay reports its progress.
    assert all(b" of 10 messages, " in line for line in progress)
    assert last == b"nothing was sent; --yes sends 10 messages to the topics they were sent to at first"
    assert not states(delivered).exists()
    report = counted(delivered, "--topic", "u")
    assert (report["version"], report["dry_run"], report["topics"]) == (1, True, {"u": 2000})
    assert (report["sent"], report["left"], report["begun"]) == (0, 2000, None)
    kafka.up()
    assert numbers(records(kafka, "u", 2000)) == list(range(1, MESSAGES, 2))


def test_messages_that_kafka_refuses(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """A permanent refusal is counted by reason, affects no other message, and ends in exit code 1."""
    bruce.send(encode(b"t", b"%d" % n + b" " * (5000 if n == 7 else 0), partition_key=0) for n in range(20))
    bruce.await_status(lambda s: s.delivered == 20)
    small = bruce.config.read_text().replace("[kafka]\n", '[kafka]\n"message.max.bytes" = 2000\n')
    config = bruce.config.with_name("small.toml")
    config.write_text(small)
    report = replayed(bruce, "--config", config, "--from", 0, code=1)
    assert (report["messages"], report["sent"], report["left"]) == (20, 19, 0)
    assert report["refused"] == {"too_large": 1}
    assert numbers(records(kafka, "t", 39)) == sorted([*range(20), *(n for n in range(20) if n != 7)])
    where = ["--from", 7, "--to", 8, "--state", states(bruce)]
    said = bruce.brucectl("replay", "--yes", "--config", config, *where).stderr.decode().splitlines()
    assert "1 message was refused for good: too_large (larger than Kafka takes)" in said
    assert said[-1].startswith("0 messages sent in ")


@pytest.mark.long
def test_no_kafka(delivered: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Without a broker within the time: exit code 3, and the number of remaining messages is reported."""
    kafka.down()
    report = replayed(delivered, "--from", 0, "--to", 100, "--timeout", 2, code=3)
    assert (report["sent"], report["left"], report["reachable"]) == (0, 100, False)


def test_no_time_at_all(delivered: RunningBruce) -> None:
    """`--timeout 0` asks no broker, and names none: exit code 1, and all is left."""
    report = replayed(delivered, "--from", 0, "--to", 100, "--timeout", 0, code=1)
    assert (report["sent"], report["left"], report["reachable"]) == (0, 100, True)
    assert replayed(delivered, "--from", 0, "--to", 100)["sent"] == 100


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--yes"], "say what to send again, with --from, --to, --topic, ...; --from 0 is everything"),
        (["--partition-key", "2147483648"], "--partition-key 2147483648: expected -2147483648 to 2147483647"),
        (["--discards", "--key", "k"], "with --discards say which by --from, --to and --topic only"),
        (["--from", "5", "--to", "4"], "--from 5 is behind --to 4"),
        (["--from", "-1h", "--to", "-2h"], "--from -1h is behind --to -2h"),
        (["--from", "yesterday"], "--from 'yesterday': expected a sequence number, a time such as"),
        (["--to", "-5x"], "--to '-5x': expected a sequence number, a time such as"),
    ],
)
def test_bad_ranges(arguments: list[str], sentence: str) -> None:
    """An impossible range is one sentence, exit code 2."""
    done = run("replay", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1


def test_an_embedded_kafka_is_out_of_reach(tmp_path: Path) -> None:
    """Only its daemon knows its address: one sentence, exit code 2."""
    with RunningBruce(tmp_path, "embedded") as bruce:
        done = run("replay", "--from", "0", "--yes", environ=bruce.environ)
    assert done.returncode == 2
    assert done.stderr.startswith("the embedded Kafka is known to `bruce run` alone")
