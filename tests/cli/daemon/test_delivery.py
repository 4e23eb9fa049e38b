"""[kafka] and [dispatch] take effect in delivery, as the embedded Kafka and its connections show."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from cli.config.config import load_config
from cli.daemon.delivery import REST_S, Delivery, Orders, Progress
from dispatch.embedded import EmbeddedKafka
from router.context import CommittedEnd
from router.outcomes.acks import Acks
from router.router import Router
from router.timing import FEW_COMMIT_S, OBSERVE_S
from spool.format.wire import encode
from spool.shared.state import Field
from tests.cli.conftest import PARTITIONS
from tests.daemon import RunningBruce, consume
from tests.e2e.test_embedded import check_complete, check_totals
from tests.router.outlet import keyed
from tests.spool.fixture import SpoolFixture

PRODUCE = 0


@pytest.mark.long
def test_linger_ms(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Messages within it go in one request; and a lone message waits that long, and no longer."""
    kafka.requests()
    rounds, linger_s = 25, 1.5
    messages = keyed(4 * rounds, keys=1)

    def slowly(linger: float, *, alone: bool) -> tuple[int, list[float], float]:
        """(requests of all rounds; when each was over, delivered if `alone`; a lone one's seconds)."""
        directory = tmp_path / str(linger)
        directory.mkdir()
        settings = {"kafka": {"linger.ms": str(int(1000 * linger))}, "spool": {"sync_interval_ms": 1}}
        with RunningBruce(directory, kafka.bootstrap_servers, settings=settings) as bruce:
            bruce.send(keyed(1))
            bruce.await_status(lambda s: s.delivered == 1)
            before, times = kafka.requests().get(PRODUCE, 0), [time.monotonic()]
            for first in range(0, 4 * rounds, 4):
                bruce.send(messages[first : first + 4])
                wanted = first + 5
                if alone:
                    bruce.await_status(lambda s, wanted=wanted: s.delivered == wanted)
                else:
                    bruce.await_status(lambda s, wanted=wanted: s.watermarks.synced == wanted)
                times.append(time.monotonic())
            bruce.await_status(lambda s: s.delivered == 4 * rounds + 1)
            requests = kafka.requests().get(PRODUCE, 0) - before
            times.append(time.monotonic())
            began = time.monotonic()
            bruce.send(messages[:1])
            bruce.await_status(lambda s: s.delivered == 4 * rounds + 2)
            return requests, times, time.monotonic() - began

    requests, times, _ = slowly(0, alone=True)
    assert requests >= rounds
    assert min(np.diff(times[:-1])) < linger_s, "something lingers"
    requests, times, lone = slowly(linger_s, alone=False)
    assert requests <= 1 + (times[-1] - times[0]) / linger_s
    assert lone >= linger_s - 0.1


def test_batch_size(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """A request holds no more than that: ten times smaller, several times the number."""
    kafka.requests()
    messages = keyed(2000, keys=1, bytes_each=100)
    counts = {}
    for size in (10_000, 100_000):
        directory = tmp_path / str(size)
        directory.mkdir()
        settings = {"kafka": {"batch.size": str(size), "linger.ms": "300"}}
        with RunningBruce(directory, kafka.bootstrap_servers, settings=settings) as bruce:
            # All of them are there when the first is sent: on a slow machine, too.
            kafka.down()
            bruce.send(messages)
            bruce.await_status(lambda s: s.watermarks.synced == 2000)
            kafka.up()
            bruce.await_status(lambda s: s.delivered == 2000)
            counts[size] = kafka.requests()[PRODUCE] - sum(counts.values())
    assert counts[10_000] > 4 * counts[100_000]
    assert counts[10_000] >= 2000 * 150 / 10_000


def fetched(servers: str, topic: str, count: int) -> tuple[int, list[Message]]:
    """(bytes that came over the wire, records): a broker hands out batches as they were stored."""
    wire: list[int] = []
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "test",
            "log_level": 0,
            "statistics.interval.ms": 100,
            "stats_cb": lambda text: wire.append(json.loads(text)["rx_bytes"]),
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
    records: list[Message] = []
    end = time.monotonic() + 60
    try:
        while len(records) < count:
            assert time.monotonic() < end
            records += consumer.consume(1000, 0.1)
        seen = len(wire)
        while len(wire) < seen + 2:
            consumer.poll(0.05)
    finally:
        consumer.close()
    return wire[-1], records


def test_compression_type(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """For all topics in [kafka], for one in its own table; the records are what they were."""
    value = b"compressible " * 50
    count = 400
    for topic in ("all", "own", "plain"):
        kafka.topic(topic, 2)
    settings = {
        "kafka": {"compression.type": "zstd"},
        'topics."own"': {"compression.type": "lz4"},
        'topics."plain"': {"compression.type": "none"},
    }
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings) as bruce:
        bruce.send(encode(t, value, timestamp=1) for t in (b"all", b"own", b"plain") for _ in range(count))
        bruce.await_status(lambda s: s.delivered == 3 * count)
    sizes = {}
    for topic in ("all", "own", "plain"):
        sizes[topic], records = fetched(kafka.bootstrap_servers, topic, count)
        assert {record.value() for record in records} == {value}
    assert sizes["plain"] > count * len(value)
    assert sizes["all"] < sizes["plain"] / 4
    assert sizes["own"] < sizes["plain"] / 4
    assert sizes["own"] != sizes["all"]


@pytest.mark.parametrize("stamp", [True, False])
def test_stamp(kafka: EmbeddedKafka, tmp_path: Path, *, stamp: bool) -> None:
    """The header is the spool's uuid and the sequence, or is not there; the record is as sent either way."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings={"dispatch": {"stamp": stamp}}) as bruce:
        bruce.send(
            [
                encode(b"t", b"with a key", key=b"key", timestamp=1_700_000_000_001),
                encode(b"t", b"without", timestamp=-5),
                encode(b"t", b"", timestamp=7, partition_key=3),
            ]
        )
        bruce.await_status(lambda s: s.delivered == 3)
        spool = uuid.UUID(bruce.status().spool.uuid).bytes
        records = consume(kafka.bootstrap_servers, "t", PARTITIONS, 3)
    found = {r.value(): (r.key(), r.timestamp(), r.headers(), r.partition()) for r in records}
    headers = [[("bruce-id", spool + n.to_bytes(8, "big"))] if stamp else None for n in range(3)]
    assert found[b"with a key"][:3] == (b"key", (1, 1_700_000_000_001), headers[0])
    assert found[b"without"][:3] == (None, (1, -5), headers[1])
    assert found[b""] == (None, (1, 7), headers[2], 3)


def test_window_messages(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """No more than that is in flight at a broker that does not answer; the rest waits in the spool."""
    with RunningBruce(
        tmp_path, kafka.bootstrap_servers, settings={"dispatch": {"window_messages": 100}}
    ) as bruce:
        bruce.send(keyed(12))
        bruce.await_status(lambda s: s.delivered == 12)
        for broker in (1, 2, 3):
            kafka.rtt(broker, 600_000)
        bruce.send(keyed(3000, first=12))
        bruce.await_status(lambda s: s.received == 3012 and all(b.in_flight > 50 for b in s.brokers))
        # Half a window of room is waited for: how full it gets depends on how the messages came.
        time.sleep(1)
        seen = bruce.status()
        assert all(50 < broker.in_flight <= 100 for broker in seen.brokers)
        check_totals(seen)
        assert seen.backlog >= 3000 - 300
        for broker in (1, 2, 3):
            kafka.rtt(broker, 0)
        bruce.kill9()
        bruce.start()
        bruce.await_status(lambda s: s.delivered == 3012)
        check_complete(consume(kafka.bootstrap_servers, "t", PARTITIONS, 3012), 3012)


def deliverer_of(
    spool: SpoolFixture,
    kafka: EmbeddedKafka,
    report: Callable[[Progress], None],
    orders: Orders | None = None,
) -> Delivery:
    """A deliverer of this spool, in this process."""
    file = spool.options.directory.with_suffix(".toml")
    file.write_text(f'[kafka]\n"bootstrap.servers" = "{kafka.bootstrap_servers}"\n')
    return Delivery(
        spool.layout,
        spool.identity.spool,
        load_config(file, environ={}),
        committed=CommittedEnd(spool.shared.words[Field.SYNCED :][:1]),
        bell=spool.bell,
        report=report,
        orders=orders,
    )


def test_the_last_messages_are_reported_before_the_rest(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deliverer does not rest while its report lacks what the marks have: who waits sees the end."""
    spool = SpoolFixture(tmp_path)
    spool.append([encode(b"t", b"%d" % number, timestamp=1) for number in range(50)])
    spool.step()
    reports: list[Progress] = []
    unreported: list[float] = []
    deliverer = deliverer_of(spool, kafka, reports.append)
    sleep = deliverer._fast_path.wait

    def wait(pause: float, ordinary: float) -> None:
        if reports and reports[-1].low_watermark != deliverer.low_watermark:
            unreported.append(ordinary)
        sleep(pause, ordinary)

    monkeypatch.setattr(deliverer._fast_path, "wait", wait)
    try:
        while not reports or reports[-1].low_watermark < spool.synced:
            deliverer.turn()
    finally:
        deliverer.close()
        spool.crash()
    assert all(pause < REST_S for pause in unreported)


def test_what_only_a_step_finds_out_is_looked_for(
    tmp_path: Path, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deliverer that waits for reports alone sleeps until marks are due; for anything more, OBSERVE_S."""
    spool = SpoolFixture(tmp_path)
    deliverer = deliverer_of(spool, kafka, lambda _: None)
    pauses: list[float] = []
    monkeypatch.setattr(deliverer._fast_path, "wait", lambda _, ordinary: pauses.append(ordinary))
    monkeypatch.setattr(Acks, "unwritten", True)
    try:
        for awaits in (True, False):
            monkeypatch.setattr(Router, "awaits_more", awaits)
            deliverer._sleep()
        assert pauses == [OBSERVE_S, FEW_COMMIT_S]
    finally:
        monkeypatch.undo()
        deliverer.close()
        spool.crash()


def test_who_stops_it_waits_for_marks(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """As a client may: the marks are written more often until the end."""
    spool = SpoolFixture(tmp_path)
    waits = [False]
    orders = Orders(wants_marks=lambda: waits[0])
    deliverer = deliverer_of(spool, kafka, lambda _: None, orders=orders)
    try:
        assert deliverer._acks.next_write.late > deliverer._acks.next_write.soon
        for waits[0], orders.stopping in ((True, False), (False, True)):
            assert deliverer._acks.next_write.late == deliverer._acks.next_write.soon
    finally:
        deliverer.close()
        spool.crash()


def test_a_delivery_that_ends_lets_go_of_the_log(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """Segments that are removed later would take their room until the process ends."""
    spool = SpoolFixture(tmp_path / "spool")
    spool.append([encode(b"t", b"v")])
    spool.step()

    def opened() -> list[str]:
        links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        return [name for link in links if link.is_symlink() and ".seg" in (name := os.readlink(link))]

    before = len(opened())
    deliverer = deliverer_of(spool, kafka, lambda _: None)
    while deliverer.low_watermark < spool.synced:
        deliverer.turn()
    assert len(opened()) > before
    deliverer.close()
    assert len(opened()) == before
    spool.crash()
