"""Another release on the same spool: what an older one left is delivered, a newer one's is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.terminal.errors import FOUND
from dispatch.embedded import EmbeddedKafka
from spool.format.segment_format import VERSION
from spool.format.wire import encode
from spool.layout import Layout
from tests.daemon import RunningBruce, consume
from tests.gallery.kinds import rewrite_header
from tests.spool import plain

GOLDEN = Path(__file__).parents[1] / "golden/v1"
PARTITIONS = 2


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A Kafka that has the topics of the golden files."""
    with EmbeddedKafka(brokers=1, topics=[("clicks", PARTITIONS), ("t", PARTITIONS)]) as running:
        yield running


def golden_messages() -> Iterator[plain.Message]:
    """The messages in sealed.seg and, behind it, in unsealed.seg."""
    bursts = json.loads((GOLDEN / "expected.json").read_text())["bursts"]
    for burst in bursts + bursts[:2]:
        for datagram in burst["datagrams"]:
            message = plain.parse_datagram(bytes.fromhex(datagram))
            assert isinstance(message, plain.Message)
            yield message


def test_a_spool_of_version_1_is_delivered(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """Of it only its two segments are left; each message comes to Kafka, and new ones behind them."""
    settings = {"dispatch": {"unknown_topic_seconds": 0}}
    bruce = RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings)
    segments = Layout(bruce.spool).segments
    segments.mkdir(parents=True)
    shutil.copy(GOLDEN / "sealed.seg", Layout(bruce.spool).segment(0))
    shutil.copy(GOLDEN / "unsealed.seg", Layout(bruce.spool).segment(24))
    with bruce:
        stored = list(golden_messages())
        status = bruce.await_status(lambda s: s.received > len(stored) and s.backlog == 0)
        # The message whose topic's name Kafka does not allow, twice, is discarded: each is accounted for.
        assert status.delivered + status.discarded.get("unknown_topic", 0) >= len(stored)
        before = status.received
        bruce.send([encode(b"t", b"new")])
        bruce.await_status(lambda s: s.received == before + 1 and s.backlog == 0)
    for topic in ("clicks", "t"):
        wanted = sorted(m.value for m in stored if m.topic == topic.encode())
        wanted += [b"new"] if topic == "t" else []
        records = consume(kafka.bootstrap_servers, topic, PARTITIONS, len(wanted))
        assert sorted(record.value() or b"" for record in records) == sorted(wanted)


def test_a_downgrade_is_refused(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """With a sentence that names the file, both versions and the remedy; nothing is touched, nothing lost."""
    bruce = RunningBruce(tmp_path, kafka.bootstrap_servers, settings={"dispatch": {"drain_seconds": 0}})
    with bruce:
        kafka.down()
        bruce.send(encode(b"t", b"%d" % i) for i in range(100))
        bruce.await_status(lambda s: s.watermarks.synced == 100)
        bruce.stop()
        (last,) = (Layout(bruce.spool).segment(*row) for row in Layout(bruce.spool).list_segments()[:1])
        rewrite_header(last, version=VERSION + 1)
        before = digests(bruce.spool)
        bruce.start(wait=False)
        assert bruce.await_end() == FOUND
        assert (
            bruce.logged(
                f"{last} has format version {VERSION + 1}, this bruce reads up to {VERSION}; "
                "use the release that wrote it, or a newer one"
            )
            == 1
        )
        assert not bruce.logged("Traceback")
        assert digests(bruce.spool) == before
        rewrite_header(last, version=VERSION)
        kafka.up()
        bruce.start()
        bruce.await_status(lambda s: s.delivered == 100)
    records = consume(kafka.bootstrap_servers, "t", PARTITIONS, 100)
    assert sorted(int(record.value()) for record in records) == list(range(100))


def digests(directory: Path) -> dict[str, str]:
    """The digest of every file, by name, but the one that names the running process."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file() and path.name != "lock"
    }
