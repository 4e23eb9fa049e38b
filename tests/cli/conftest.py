"""A Kafka in memory, a daemon that delivers to it, and spools that no process has open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import Reason, encode
from spool.layout import Layout
from spool.log.recovery import open_spool
from spool.log.retention import Stock
from spool.log.writer import Writer
from spool.options import SpoolOptions
from spool.shared.state import SharedState
from tests.cli.inspecting import ODD
from tests.daemon import RunningBruce
from tests.spool.fixture import SpoolFixture

PARTITIONS = 4
MESSAGES = 4000
SECOND = 10**9
START = 1_800_000_000 * SECOND
"""2027-01-15T08:00:00Z"""


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Each test has its own cluster, with the topics `t` and `u` and the topic of transactions."""
    topics = [("t", PARTITIONS), ("u", PARTITIONS), ("bruce-progress", 1)]
    with EmbeddedKafka(brokers=3, topics=topics) as running:
        yield running


@pytest.fixture
def bruce(tmp_path: Path, kafka: EmbeddedKafka) -> Iterator[RunningBruce]:
    """A running daemon."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as running:
        yield running


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A spool that no process has open: 20 messages in two frames, the second with everything odd."""
    options = SpoolOptions(tmp_path / "spool", segment_bytes=256 << 10)
    own = open_spool(options)
    shared = SharedState(tmp_path / "page")
    Stock(own.layout, own.identity, options).make_spare(1)
    shared.words[18] = 1
    writer = Writer(own.layout, own.identity, shared)
    writer.append(
        [encode(b"t", b"%d" % n, timestamp=n) for n in range(17)], received_ns=1_000_000_000_000_000_001
    )
    writer.append(
        [
            encode(b"u", "välue".encode(), key=b"key", timestamp=-5, partition_key=-7),
            encode(b"u", ODD, key=ODD),
            encode(b"odd\xff", b""),
        ],
        received_ns=1_000_000_060_000_000_000,
        sender=(1000, 4711),
    )
    writer.close()
    own.lock.release()
    return own.layout


@pytest.fixture
def discards(tmp_path: Path) -> Path:
    """Short datagrams at the beginning and ten seconds later; later, two topics over their quota."""
    spool = SpoolFixture(tmp_path)
    quota = [encode(topic, b"value") for topic in (b"t", b"u")]
    for second, refused in (
        (0, {Reason.SHORT: (2, b"first")}),
        (10, {Reason.SHORT: (3, b"second")}),
        (60, {Reason.OVER_QUOTA: (4, quota[0])}),
        (70, {Reason.OVER_QUOTA: (5, quota[1])}),
    ):
        spool.append([encode(b"t", b"v")], refused=refused, received_ns=START + second * SECOND)
    spool.step()
    spool.crash()
    return spool.layout.directory


@pytest.fixture
def delivered(bruce: RunningBruce) -> RunningBruce:
    """A daemon with 4,000 delivered messages: topics `t` and `u` in turn, over several segments."""
    bruce.send(
        encode(
            b"tu"[n % 2 : n % 2 + 1],
            b"%d" % n + b" " * 300,
            key=b"k%d" % n,
            timestamp=n + 1,
            partition_key=n % 5,
        )
        for n in range(MESSAGES)
    )
    bruce.await_status(lambda s: s.delivered == MESSAGES)
    return bruce
