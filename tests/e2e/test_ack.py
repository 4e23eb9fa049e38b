"""The acknowledgement socket of a daemon: the clients' answers, of which none is false."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from dispatch.embedded import EmbeddedKafka
from ingest.reply import WHEN_DELIVERED, WHEN_SYNCED, Status
from spool.format.batch import Topics
from spool.format.wire import Reason, encode
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.read.reader import Reader
from status.report import AckView, Snapshot
from tests.ack_client import Client, with_flags, without_flags
from tests.daemon import RunningBruce, consume
from tests.e2e.test_embedded import PARTITIONS, check_totals

BOTH = WHEN_SYNCED | WHEN_DELIVERED


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Three brokers and a topic of six partitions."""
    with EmbeddedKafka(brokers=3, topics=[("t", PARTITIONS)]) as running:
        yield running


@pytest.fixture
def bruce(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[RunningBruce]:
    """A daemon with an acknowledgement socket."""
    running = RunningBruce(tmp_path, kafka.bootstrap_servers)
    running.configure(
        {"ingest": {"ack_socket": str(socket_of(running))}, "kafka": {"message.max.bytes": "50000"}}
    )
    with running:
        running.await_true(lambda: worker_of(running) > 0)
        yield running


def socket_of(bruce: RunningBruce) -> Path:
    """The socket for clients that want answers."""
    return bruce.runtime / "ack.sock"


def worker_of(bruce: RunningBruce, role: str = "ack") -> int:
    """The pid of the acknowledger, or of another worker."""
    return next((w.pid for w in bruce.status().workers if w.role == role), 0)


def stored(bruce: RunningBruce) -> Counter[bytes]:
    """Every datagram in the log of a daemon that is dead or idle, and how often it is there."""
    reader = Reader(SegmentList(Layout(bruce.spool)), Topics())
    reader.seek(0)
    reader.allow(1 << 30, 0)
    found: Counter[bytes] = Counter()
    while (batch := reader.next()) is not None:
        found.update(batch.datagram(row) for row in range(len(batch)))
    reader.close()
    return found


def check_synced(bruce: RunningBruce, *clients: Client) -> None:
    """No message is called synced more often than it is in the log."""
    said: Counter[bytes] = Counter()
    for client in clients:
        said += without_flags(client.said(Status.SYNCED))
    assert not said - stored(bruce)


def check_delivered(records: list[Message], *clients: Client) -> None:
    """No message is called delivered that Kafka does not have."""
    values = Counter(record.value() for record in records)
    for client in clients:
        for datagram in client.said(Status.DELIVERED):
            assert any(datagram.endswith(value) for value in values if value), datagram


def test_synced_and_delivered(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Each reply names its message and its place in the log; what wants both gets both, in that order."""
    with Client(socket_of(bruce)) as client:
        keys = [client.send(b"value %d" % i, flags, timestamp=i) for i, flags in enumerate((1, 2, 3, 0))]
        wanted = {
            (Status.SYNCED, keys[0]),
            (Status.DELIVERED, keys[1]),
            (Status.SYNCED, keys[2]),
            (Status.DELIVERED, keys[2]),
        }
        client.collect(lambda seen: seen.keys() >= wanted)
        bruce.await_status(lambda s: s.delivered == 4)
        client.drain()
        assert client.counted() == Counter(wanted)
        assert {(r.timestamp, r.sequence) for r in client.told} == {(0, 0), (1, 1), (2, 2)}
        assert [r.status for r in client.told if r.sequence == 2] == [Status.SYNCED, Status.DELIVERED]
        records = consume(kafka.bootstrap_servers, "t", PARTITIONS, 4)
        assert {record.value() for record in records} == {b"value %d" % i for i in range(4)}
        # As all messages in the log, they have flags of 0.
        assert stored(bruce) == without_flags(client.sent.values())
        # They are counted after a look at the log, not with each reply.
        seen = bruce.await_status(lambda s: acks(s).replied >= 4 and acks(s).waiting == 0)
        assert (acks(seen).taken, acks(seen).replied) == (4, 4)
        check_totals(seen)


def test_the_other_socket_is_silent(bruce: RunningBruce) -> None:
    """On the plain socket flags other than 0 are an error, as before, and no client gets an answer."""
    with Client(bruce.socket) as client:
        client.send(b"plain", 0)
        client.send(b"asking", WHEN_SYNCED)
        seen = bruce.await_status(lambda s: s.received == 2 and s.delivered == 1 and s.backlog == 0)
        assert seen.discarded == {"flags": 1}
        client.drain()
        assert client.told == []


def test_kafka_away(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """`synced` is answered once a message is synced; `delivered` once it is delivered."""
    with Client(socket_of(bruce)) as client:
        client.send(b"first", BOTH)
        client.collect_all(Status.DELIVERED)
        kafka.down()
        for i in range(50):
            client.send(b"meanwhile %d" % i, BOTH)
        client.collect_all(Status.SYNCED)
        assert len(client.said(Status.DELIVERED)) == 1
        assert bruce.status().delivered == 1
        kafka.up()
        client.collect_all(Status.DELIVERED)
        check_delivered(consume(kafka.bootstrap_servers, "t", PARTITIONS, 51), client)


def test_discarded(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Malformed ones at once, with the reason that they are counted under; later ones when it is decided."""
    right = encode(b"t", b"v", timestamp=1, partition_key=1)
    wrong = {
        Reason.SHORT: b"abc",
        Reason.SIZE: with_flags(right + b"more", 1),
        Reason.API_KEY: with_flags(right[:4] + b"\x01\x07" + right[6:], 1),
        Reason.FLAGS: with_flags(right, 1 | 4),
        Reason.VALUE: with_flags(right[:-5] + b"\x00\x00\x00\x07" + right[-1:], 2),
        Reason.TRUNCATED: with_flags((70_000).to_bytes(4, "big") + right[4:] + bytes(70_000 - len(right)), 1),
    }
    with Client(socket_of(bruce)) as client:
        for datagram in wrong.values():
            client.again(datagram)
        client.again(with_flags(right + b"more", 0))
        too_large = client.send(bytes(60_000), BOTH, topic=b"small")
        client.collect(lambda seen: sum(seen.values()) == len(wrong) + 2)
        refused = [r for r in client.told if r.sequence < 0]
        assert [r.reason for r in refused] == list(wrong)
        assert {r.status for r in refused} == {Status.DISCARDED}
        assert [r.size for r in refused] == [min(len(data), 65537) for data in wrong.values()]
        late = [(r.status, r.reason) for r in client.told if (r.timestamp, r.size, r.crc32) == too_large]
        assert late == [(Status.SYNCED, 0), (Status.DISCARDED, Reason.TOO_LARGE)]
        seen = bruce.await_status(lambda s: s.received == len(wrong) + 2 and s.backlog == 0)
        expected = Counter({reason.name.lower(): 1 for reason in wrong}) + Counter(size=1, too_large=1)
        assert seen.discarded == expected
        check_totals(seen)


@pytest.mark.sample("ack", "delivery")
@pytest.mark.crash
@pytest.mark.parametrize("role", ["ack", "ingest", "keeper", "delivery"])
def test_a_worker_is_killed(bruce: RunningBruce, kafka: EmbeddedKafka, role: str) -> None:
    """In the middle of traffic: each answer is true, and a client without one sends again until it has it."""
    with Client(socket_of(bruce)) as client:
        killer = threading.Thread(target=kill_often, args=(bruce, role))
        killer.start()
        for number in range(1000):
            client.send(b"%d" % number, BOTH)
            client.drain()
            time.sleep(0.002)
        killer.join(120)
        assert not killer.is_alive()
        send_until_delivered(client)
        seen = bruce.await_status(lambda s: s.backlog == 0)
        check_totals(seen)
        assert stored(bruce).keys() == without_flags(client.sent.values()).keys()
        check_synced(bruce, client)
        check_delivered(consume(kafka.bootstrap_servers, "t", PARTITIONS, len(client.sent)), client)


def kill_often(bruce: RunningBruce, role: str) -> None:
    """SIGKILL a worker and its next four successors."""
    last = 0
    for _ in range(4):
        bruce.await_true(lambda last=last: worker_of(bruce, role) not in (0, last))  # type: ignore[misc]
        time.sleep(0.3)
        last = worker_of(bruce, role)
        os.kill(last, signal.SIGKILL)


def send_until_delivered(client: Client) -> None:
    """Do as a client does that had no answer for a while: send again."""
    for _ in range(20):
        with contextlib.suppress(AssertionError):
            client.collect_all(Status.DELIVERED, timeout_s=5)
            return
        known = set(client.said(Status.DELIVERED))
        for datagram in client.sent.values():
            if datagram not in known:
                client.again(datagram)
                client.drain()
    raise AssertionError(f"{len(client.sent) - len(known)} messages are never called delivered")


@pytest.mark.crash
def test_all_are_killed(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """At whatever instant: what was called synced is in the log afterwards, and is delivered."""
    with contextlib.ExitStack() as stack:
        clients: list[Client] = []
        for round_ in range(3):
            client = stack.enter_context(Client(socket_of(bruce)))
            clients.append(client)
            for i in range(300):
                client.send(b"%d of round %d" % (i, round_), BOTH)
                if i % 100 == 30 * round_:
                    client.drain()
            if round_ == 1:
                client.collect(lambda seen: any(status == Status.SYNCED for status, _ in seen))
            bruce.kill9()
            client.drain()
            check_synced(bruce, *clients)
            bruce.start()
            bruce.await_true(lambda: worker_of(bruce) > 0)
        assert sum(len(client.said(Status.SYNCED)) for client in clients) > 0
        seen = bruce.await_status(lambda s: s.backlog == 0)
        check_delivered(consume(kafka.bootstrap_servers, "t", PARTITIONS, seen.delivered), *clients)


def test_clients_that_do_not_read(bruce: RunningBruce) -> None:
    """A dead one, a deaf one, a connected one, one without an address: others do not feel it."""
    with contextlib.ExitStack() as stack:
        live, deaf = (stack.enter_context(Client(socket_of(bruce))) for _ in range(2))
        connected = stack.enter_context(Client(socket_of(bruce)))
        connected.socket.connect(str(socket_of(bruce)))
        nameless = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        count = 2 * int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()) + 100
        for i in range(count):
            live.send(b"live %d" % i, WHEN_SYNCED)
            deaf.send(b"deaf %d" % i, WHEN_SYNCED)
            connected.socket.send(with_flags(encode(b"t", b"connected %d" % i), BOTH))
            nameless.sendto(with_flags(encode(b"t", b"nameless %d" % i), BOTH), str(socket_of(bruce)))
            with Client(socket_of(bruce)) as dead:
                dead.send(b"dead %d" % i, BOTH)
            live.drain()
        live.collect_all(Status.SYNCED)
        # No client is there to answer, or none whose queue has a limit: counted after a look at the log.
        bruce.await_status(
            lambda s: s.received == 5 * count and acks(s).waiting <= count and acks(s).dropped >= 3 * count,
        )
        connected.drain()
        assert connected.told == []
        # Answers that found no room come when the client reads.
        deaf.collect_all(Status.SYNCED)
        check_synced(bruce, live, deaf)
        assert live.counted() == Counter({(Status.SYNCED, key): 1 for key in live.sent})


def acks(seen: Snapshot) -> AckView:
    """The acknowledger at work."""
    assert seen.acknowledgements is not None
    return seen.acknowledgements


@pytest.mark.long
def test_a_hundred_clients(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """All at once, with equal messages among them: each client gets its own answer; none counts twice."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(socket_of(bruce))) for _ in range(100)]
        for i in range(20):
            for number, client in enumerate(clients):
                client.send(b"%d from %d" % (i, number % 50), BOTH)
                client.drain()
        for client in clients:
            client.collect_all(Status.SYNCED)
            client.collect_all(Status.DELIVERED)
            said = (Status.SYNCED, Status.DELIVERED)
            assert client.counted() == Counter({(status, key): 1 for status in said for key in client.sent})
        sequences = [r.sequence for client in clients for r in client.told if r.status == Status.SYNCED]
        assert sorted(sequences) == list(range(2000))
        check_synced(bruce, *clients)
        check_delivered(consume(kafka.bootstrap_servers, "t", PARTITIONS, 2000), *clients)


def test_beside_other_traffic(bruce: RunningBruce) -> None:
    """Its messages are found among those of others; a busy and then quiet log does not hide them."""
    with Client(socket_of(bruce)) as client:
        for round_ in range(20):
            bruce.send(encode(b"t", b"other %d" % i) for i in range(400))
            client.send(b"mine %d" % round_, BOTH)
            bruce.send(encode(b"t", b"other %d" % i) for i in range(10))
            client.collect_all(Status.SYNCED)
        client.collect_all(Status.DELIVERED)
        check_synced(bruce, client)


def test_a_stop(bruce: RunningBruce) -> None:
    """Senders are refused, what was taken is stored and said to be, and the socket is gone."""
    with Client(socket_of(bruce)) as client:
        for i in range(100):
            client.send(b"%d" % i, WHEN_SYNCED)
            client.drain()
        assert bruce.stop() == 0
        client.drain()
        assert bruce.status().received == 100
        assert len(client.said(Status.SYNCED)) > 0
        check_synced(bruce, client)
        assert not socket_of(bruce).exists()
