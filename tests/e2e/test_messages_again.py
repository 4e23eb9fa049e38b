"""A message with all that it can have is the same when a command shows it, or sends it once more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message as Record

from bruce_client.message import encode_batch, encode_message
from dispatch.embedded import EmbeddedKafka
from tests.cli.tracing import trace
from tests.daemon import ROOT, RunningBruce, consume

PARTITIONS = 3
HEADERS: list[tuple[str, bytes | None]] = [("n", b"1"), ("n", b"\xff"), ("grüße", None), ("", b"")]
SENT = [
    encode_message(b"orders", None, key=b"gone", timestamp=1, partition=2, headers=HEADERS),
    encode_message(b"orders", b"", key=b"", timestamp=2, partition_key=4, headers=HEADERS[:1]),
    encode_message(b"orders", b"v", timestamp=3),
]
Shape = tuple[int | None, bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]
"""Partition (None: any), key, value, timestamp, headers."""
SHAPES: list[Shape] = [
    (2, b"gone", None, 1, HEADERS),
    (1, b"", b"", 2, HEADERS[:1]),
    (None, None, b"v", 3, []),
]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker with one topic."""
    with EmbeddedKafka(brokers=1, topics=[("orders", PARTITIONS)]) as cluster:
        yield cluster


def all_are_right(kafka: EmbeddedKafka, copies: int, topic: str = "orders") -> bool:
    """Whether Kafka has each message so many times, with all that it had."""
    found = consume(kafka.bootstrap_servers, topic, PARTITIONS, copies * len(SENT))
    shapes = sorted(map(shape, found), key=lambda one: one[3])
    wanted = [one for one in SHAPES for _ in range(copies)]
    return all(
        one[1:] == other[1:] and other[0] in (None, one[0]) for one, other in zip(shapes, wanted, strict=True)
    )


def shape(record: Record) -> Shape:
    """Its fields, without bruce's own headers."""
    headers: list[tuple[str, bytes | None]] = list(record.headers() or [])  # type: ignore[arg-type]
    own = [header for header in headers if header[0] not in ("bruce-id", "bruce-replay")]
    return record.partition(), record.key(), record.value(), record.timestamp()[1], own


def send_exported(bruce: RunningBruce, datagrams: bytes) -> None:
    """Hand datagrams to the daemon as new messages."""
    command = [sys.executable, "-c", "from cli.app import brucectl; brucectl()", "send", "--datagrams"]
    subprocess.run(command, cwd=ROOT, env=bruce.environ, input=datagrams, check=True, timeout=60)


def test_sent_again(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """A trace shows it; a replay, and an export that is sent, bring it to Kafka as it was."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers, segment_bytes=4 << 20) as bruce:
        with trace(bruce, tmp_path / "out", "--topic", "orders", "--payload") as found:
            bruce.send([encode_batch(SENT)])
            bruce.await_true(lambda: found.has("acknowledged", len(SENT)))
        first = next(event for event in found.events() if event["event"] == "received")
        assert (first["key"], first["value"]) == ("gone", None)
        assert first["headers"] == [
            {"name": "n", "value": "1"},
            {"name": "n", "value_base64": "/w=="},
            {"name": "grüße", "value": None},
            {"name": "", "value": ""},
        ]
        assert all_are_right(kafka, 1)
        again = bruce.brucectl("replay", "--from", 0, "--yes", "--state", tmp_path / "state")
        assert again.returncode == 0, again.stderr
        assert all_are_right(kafka, 2)
        exported = bruce.brucectl("inspect", "export", "--datagrams")
        assert exported.returncode == 0, exported.stderr
        send_exported(bruce, exported.stdout)
        bruce.await_status(lambda s: s.delivered == 2 * len(SENT))
        assert all_are_right(kafka, 3)


def test_discarded_and_sent_again(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The discard file keeps all of a message, and `replay --discards` sends it, here to another topic."""
    settings: dict[str, dict[str, object]] = {
        "kafka": {"allow.auto.create.topics": False},
        "dispatch": {"discard_file": str(tmp_path / "discards"), "unknown_topic_seconds": 1},
    }
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings) as bruce:
        bruce.send([one.replace(b"orders", b"ordars") for one in SENT])
        bruce.await_status(lambda s: s.discarded.get("unknown_topic") == len(SENT))
        again = bruce.brucectl("replay", "--discards", "--from", 0, "--to-topic", "orders", "--yes")
        assert again.returncode == 0, again.stderr
        bruce.await_status(lambda s: s.delivered == len(SENT))
        assert all_are_right(kafka, 1)
