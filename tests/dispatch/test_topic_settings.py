"""How late messages of a topic may come, by its settings; tests/real_kafka/test_lateness.py asks brokers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from dispatch.client import KafkaClient
from dispatch.embedded import EmbeddedKafka
from dispatch.options import DispatchOptions
from dispatch.topic_settings import Lateness, lateness_of, read_lateness, write_lateness
from spool.layout import Layout


@pytest.mark.parametrize(
    ("settings", "lateness"),
    [
        ({"retention.ms": "3600000", "cleanup.policy": "delete"}, Lateness(3600, None)),
        ({"retention.ms": "3600000", "cleanup.policy": "compact,delete"}, Lateness(3600, None)),
        ({"retention.ms": "3600000", "cleanup.policy": "compact"}, Lateness(None, None)),
        ({"retention.ms": "3600000", "message.timestamp.type": "LogAppendTime"}, Lateness(None, None)),
        (
            {"retention.ms": "-1", "message.timestamp.before.max.ms": "9223372036854775807"},
            Lateness(None, None),
        ),
        ({"message.timestamp.before.max.ms": "60000"}, Lateness(None, 60)),
        ({"retention.ms": "", "message.timestamp.before.max.ms": "soon"}, Lateness(None, None)),
    ],
)
def test_how_late_a_message_may_come(settings: dict[str, str], lateness: Lateness) -> None:
    """By its own timestamp, unless the broker's counts; -1 and Kafka's highest number limit nothing."""
    assert lateness_of(settings) == lateness


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A spool with the folder of its deliverer."""
    (tmp_path / "delivery").mkdir()
    return Layout(tmp_path)


def test_what_is_noted_is_read(layout: Layout) -> None:
    """The topics with a limit alone; nothing before anything is noted."""
    assert read_lateness(layout) == {}
    write_lateness(layout, {b"a": Lateness(1.5, None), b"b": Lateness(None, 9.0), b"c": Lateness(None, None)})
    assert read_lateness(layout) == {b"a": Lateness(1.5, None), b"b": Lateness(None, 9.0)}


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{",
        b"[]",
        b"17",
        b"\xff",
        b'{"t": 3}',
        b'{"t": [1]}',
        b'{"t": [1, 2, 3]}',
        b'{"t": ["1", null]}',
        b'{"t": [-1, null]}',
        b'{"t": [NaN, null]}',
        b'{"t": [Infinity, null]}',
        b'{"t": [1e99, null]}',
        b"[" * 100_000,
        b'{"t": [1, null], "u": "' + bytes(4 << 20) + b'"}',
    ],
    ids=lambda value: repr(value[:20]),
)
def test_a_damaged_file_says_nothing(layout: Layout, damaged: bytes) -> None:
    """It is one that is not there, for any bytes."""
    layout.lateness.write_bytes(damaged)
    assert read_lateness(layout) == {}


def test_brokers_that_describe_nothing() -> None:
    """A Kafka without this request, and one that does not answer, tell nothing; so does no topic."""
    with (
        EmbeddedKafka(topics=[("t", 1)]) as kafka,
        closing(KafkaClient(DispatchOptions(kafka={"bootstrap.servers": kafka.bootstrap_servers}))) as client,
    ):
        assert client.fetch_lateness([], 0.1) == {}
        assert client.fetch_lateness([b"t"], 0.5) == {}
