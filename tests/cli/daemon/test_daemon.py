"""The daemon as a whole: what a start takes from another one, or finds of one that was killed, and says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.daemon import RunningBruce

MESSAGES = 100


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker and a topic."""
    with EmbeddedKafka(brokers=1, topics=[("t", 1)]) as running:
        yield running


def test_a_second_daemon_takes_no_socket(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """With the same socket and another spool it ends with 2 and one sentence; the first notices nothing."""
    (tmp_path / "second").mkdir()
    first = RunningBruce(tmp_path, kafka.bootstrap_servers)
    second = RunningBruce(tmp_path / "second", kafka.bootstrap_servers)
    second.configure({"ingest": {"datagram_socket": str(first.socket)}})
    with first:
        before = first.socket.stat().st_ino
        second.start(wait=False)
        assert second.await_end() == 2
        assert second.logged(f"another process receives at {first.socket}") == 1
        assert first.socket.stat().st_ino == before
        first.send([encode(b"t", b"v")])
        seen = first.await_status(lambda s: s.delivered == 1)
        assert seen.lost_inputs is None
    second.close()


def test_a_start_after_a_kill_says_what_it_found(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """One line counts what waits; after an end in order, and in a new spool, there is none."""
    line = "the daemon before was killed, or its host went down: "
    bruce = RunningBruce(tmp_path, "127.0.0.1:1", settings={"dispatch": {"drain_seconds": 0}})
    bruce.start()
    bruce.send(encode(b"t", b"%d" % n) for n in range(MESSAGES))
    bruce.await_status(lambda s: s.watermarks.synced == MESSAGES)
    assert bruce.logged(line) == 0
    bruce.kill9()
    bruce.start()
    assert bruce.logged(f"{line}{MESSAGES} messages wait for delivery, 0 of them still in staging") == 1
    assert bruce.logged(f"it goes on at message {MESSAGES}") == 1
    assert bruce.stop() == 0
    bruce.start()
    assert bruce.logged(line) == 1
    bruce.close()
