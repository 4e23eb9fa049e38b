"""Kafka cannot be reached: its name does not resolve, or there is no route to it."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from status.report import Snapshot
from tests.daemon import RunningBruce, consume
from tests.router.outlet import check_order, keyed, numbers

PARTITIONS = 4
PATIENCE_S = 90.0
NAME = "kafka.bruce.invalid"
_CLONE_NEWNET = 0x40000000
_MOUNT = 'mount --bind "$0" /etc/hosts && exec "$@"'


def await_recovery(
    bruce: RunningBruce, kafka: EmbeddedKafka, sent: int, says: str, mend: Callable[[], object]
) -> Snapshot:
    """The status that says it; everything is delivered once the trouble is mended, by the same workers."""
    seen = bruce.await_status(lambda s: s.received == sent and says in str(s.trouble), PATIENCE_S)
    assert seen.backlog == sent - seen.delivered > 0
    assert seen.discarded == {}
    mend()
    well = bruce.await_status(lambda s: s.delivered == sent and s.trouble is None, PATIENCE_S)
    assert well.workers == seen.workers
    records = consume(kafka.bootstrap_servers, "t", PARTITIONS, sent)
    assert set(numbers(records)) == set(range(sent))
    check_order(records)
    return seen


@pytest.mark.long
def test_a_name_that_does_not_resolve(tmp_path: Path) -> None:
    """Status says so, with the name; when the name is there, everything goes, without a restart."""
    if os.geteuid() != 0:
        pytest.skip("its own /etc/hosts takes root")
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    prefix = ["unshare", "--mount", "sh", "-c", _MOUNT, str(hosts)]
    with EmbeddedKafka(brokers=1, topics=[("t", PARTITIONS)]) as kafka:
        port = kafka.bootstrap_servers.rpartition(":")[2]
        with RunningBruce(tmp_path, f"{NAME}:{port}", prefix=prefix) as bruce:
            sent = bruce.send(keyed(1000))

            def name_it() -> None:
                hosts.write_text(f"127.0.0.1 localhost {NAME}\n")

            seen = await_recovery(bruce, kafka, sent, "does not resolve", name_it)
    assert NAME in str(seen.trouble)


def test_a_full_queue_is_no_dead_end(tmp_path: Path) -> None:
    """Librdkafka's queue, far smaller than our windows, runs full while Kafka is away, and empties again."""
    settings = {"kafka": {"queue.buffering.max.messages": "200"}}
    with (
        EmbeddedKafka(brokers=1, topics=[("t", PARTITIONS)]) as kafka,
        RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings) as bruce,
    ):
        sent = bruce.send(keyed(500))
        bruce.await_status(lambda s: s.delivered == sent)
        kafka.rtt(1, 600_000)
        sent += bruce.send(keyed(5000, first=sent))
        bruce.await_status(lambda s: s.received == sent and any(b.in_flight >= 190 for b in s.brokers))

        def answer() -> None:
            kafka.rtt(1, 0)
            kafka.down()
            kafka.up()

        await_recovery(bruce, kafka, sent, "", answer)


@pytest.fixture
def own_network() -> Iterator[None]:
    """This thread, and what it starts, in a network of their own, which is down."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if libc.unshare(_CLONE_NEWNET):
        pytest.skip(f"no network of its own: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        assert libc.setns(before, _CLONE_NEWNET) == 0
        os.close(before)


def ip(*words: str) -> None:
    """Change this network."""
    subprocess.run(["ip", *words], check=True, timeout=60)


INTERFACE = ("link", "set", "lo", "down"), ("link", "set", "lo", "up")
ADDRESS = ("addr", "del", "127.0.0.1/8", "dev", "lo"), ("addr", "add", "127.0.0.1/8", "dev", "lo")


@pytest.mark.long
@pytest.mark.parametrize(
    ("lose", "restore", "why"),
    [(*ADDRESS, "127.0.0.1"), (*INTERFACE, "nothing comes back from 127.0.0.1")],
    ids=["no route", "no answer"],
)
def test_the_network_goes(
    own_network: None, tmp_path: Path, lose: tuple[str, ...], restore: tuple[str, ...], why: str
) -> None:
    """In the middle of it: packets find no route and the kernel says so, or they vanish without an error."""
    ip(*INTERFACE[1])
    with (
        EmbeddedKafka(brokers=1, topics=[("t", PARTITIONS)]) as kafka,
        RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce,
    ):
        sent = bruce.send(keyed(500))
        bruce.await_status(lambda s: s.delivered == sent)
        ip(*lose)
        sent += bruce.send(keyed(1000, first=sent))
        seen = await_recovery(bruce, kafka, sent, f"no broker can be reached ({why}", lambda: ip(*restore))
    assert "\n" not in str(seen.trouble)
